#include "cases/cases.h"

/* clang-format off */

#define BINARY(name) static gt_tensor *run_##name(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; (void)arg; return gt_##name(in[0], in[1]); }
#define UNARY(name) static gt_tensor *run_##name(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; (void)arg; return gt_##name(in[0]); }
#define SCALAR(name) static gt_tensor *run_##name(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; return gt_##name(in[0], arg[0]); }
BINARY(add) BINARY(sub) BINARY(mul) BINARY(div) BINARY(maximum) BINARY(minimum) BINARY(equal)
UNARY(neg) UNARY(abs) UNARY(square) UNARY(sqrt) UNARY(exp) UNARY(log) UNARY(tanh) UNARY(sigmoid) UNARY(relu) UNARY(gelu) UNARY(gelu_tanh) UNARY(silu)
SCALAR(add_scalar) SCALAR(mul_scalar) SCALAR(pow_scalar)

static gt_tensor *run_dropout(gt_context *ctx, gt_tensor **in, const double *arg)
{
    return gt_random_seed(ctx, 5) == GT_OK ? gt_dropout(in[0], arg[0], 1) : NULL;
}

#define TWO(name, v, a, b, ...) {.op = #name, .fn = run_##name, .in = {IN(a, .values = v), IN(b, .values = v)}, __VA_ARGS__}
#define WITH(d, l) d, .layout = l
#define BINARY_CASES(name, v, ...)                                                                                                         \
    TWO(name, v, D1(7), D1(7), __VA_ARGS__), TWO(name, v, D0, D0, __VA_ARGS__), TWO(name, v, D2(3, 4), D0, __VA_ARGS__),                   \
        TWO(name, v, WITH(D2(3, 5), TRANSPOSED), D2(3, 5), __VA_ARGS__), TWO(name, v, D2(3, 5), WITH(D2(3, 5), SLICED), __VA_ARGS__),      \
        TWO(name, v, WITH(D2(3, 5), TRANSPOSED), WITH(D2(3, 5), TRANSPOSED), __VA_ARGS__),                                                 \
        TWO(name, v, D3(3, 1, 4), D2(5, 1), __VA_ARGS__), TWO(name, v, D2(1, 6), D2(5, 1), __VA_ARGS__),                                   \
        TWO(name, v, D2(0, 3), D2(0, 3), __VA_ARGS__), TWO(name, v, D2(0, 3), D2(1, 3), __VA_ARGS__),                                      \
        TWO(name, v, WITH(D4(2, 3, 4, 5), CHANNELS_LAST), D3(3, 1, 1), __VA_ARGS__),                                                       \
        TWO(name, v, WITH(D4(2, 3, 4, 5), CHANNELS_LAST), WITH(D4(2, 3, 4, 5), CHANNELS_LAST), __VA_ARGS__),                               \
        TWO(name, v, WITH(D3(3, 2, 5), EXPANDED), D3(3, 2, 5), __VA_ARGS__),                                                               \
        TWO(name, v, WITH(D2(5, 7), OFFSET), D2(5, 7), __VA_ARGS__),                                                                       \
        TWO(name, v, D5(2, 1, 3, 1, 2), D5(1, 2, 3, 2, 1), __VA_ARGS__),                                                                   \
        TWO(name, v, D2(257, 129), D2(257, 129), .large = 1, __VA_ARGS__),                                                                 \
        TWO(name, v, D3(33, 65, 70), D1(70), .large = 1, __VA_ARGS__),                                                                     \
        TWO(name, v, D3(33, 65, 70), D3(33, 1, 1), .large = 1, __VA_ARGS__),                                                               \
        TWO(name, v, WITH(D2(513, 67), TRANSPOSED), WITH(D2(513, 67), OFFSET), .large = 1, __VA_ARGS__),                                   \
        TWO(name, v, WITH(D4(3, 17, 33, 31), CHANNELS_LAST), D4(3, 17, 33, 31), .large = 1, __VA_ARGS__)

#define ONE(name, v, a, ...) {.op = #name, .fn = run_##name, .in = {IN(a, .values = v)}, __VA_ARGS__}
#define UNARY_CASES(name, v, ...)                                                                                                          \
    ONE(name, v, D1(7), __VA_ARGS__), ONE(name, v, D0, __VA_ARGS__), ONE(name, v, D2(0, 3), __VA_ARGS__),                                  \
        ONE(name, v, WITH(D2(3, 5), TRANSPOSED), __VA_ARGS__), ONE(name, v, WITH(D2(3, 5), SLICED), __VA_ARGS__),                          \
        ONE(name, v, WITH(D3(4, 1, 3), EXPANDED), __VA_ARGS__), ONE(name, v, WITH(D4(2, 3, 2, 3), CHANNELS_LAST), __VA_ARGS__),            \
        ONE(name, v, WITH(D1(37), OFFSET), __VA_ARGS__), ONE(name, v, D2(257, 1023), .large = 1, __VA_ARGS__),                             \
        ONE(name, v, WITH(D2(511, 130), TRANSPOSED), .large = 1, __VA_ARGS__),                                                             \
        ONE(name, v, WITH(D1(100003), OFFSET), .large = 1, __VA_ARGS__),                                                                   \
        ONE(name, v, WITH(D4(3, 17, 33, 31), CHANNELS_LAST), .large = 1, __VA_ARGS__)

const op_case elementwise_cases[] = {
    BINARY_CASES(add, SMOOTH), BINARY_CASES(sub, SMOOTH), BINARY_CASES(mul, GRID), BINARY_CASES(div, POSITIVE, .loose = 2),
    BINARY_CASES(maximum, SMOOTH), BINARY_CASES(minimum, SMOOTH), BINARY_CASES(equal, TIES, .no_gradient = 1),
    /* where both are equal each gets half: no difference quotient there, but all devices must agree */
    TWO(maximum, TIES, D2(33, 65), D2(33, 65), .large = 1), TWO(minimum, TIES, D2(33, 65), D1(65), .large = 1),

    UNARY_CASES(neg, SMOOTH), UNARY_CASES(abs, SMOOTH), UNARY_CASES(square, SMOOTH), UNARY_CASES(sqrt, POSITIVE),
    UNARY_CASES(exp, SMOOTH),
    UNARY_CASES(log, POSITIVE), UNARY_CASES(tanh, SMOOTH), UNARY_CASES(sigmoid, SMOOTH), UNARY_CASES(relu, SMOOTH),
    UNARY_CASES(gelu, SMOOTH),
    UNARY_CASES(gelu_tanh, SMOOTH), UNARY_CASES(silu, SMOOTH),
    UNARY_CASES(add_scalar, SMOOTH, ARG(0.75)), UNARY_CASES(mul_scalar, SMOOTH, ARG(-1.5)), UNARY_CASES(pow_scalar, POSITIVE, ARG(2.5)),
    ONE(pow_scalar, SMOOTH, D2(3, 5), ARG(3)), ONE(pow_scalar, SMOOTH, D2(3, 5), ARG(2)), ONE(pow_scalar, SMOOTH, D2(3, 5), ARG(1)),
    ONE(pow_scalar, POSITIVE, D2(3, 5), ARG(-0.5)), ONE(pow_scalar, SMOOTH, D2(3, 5), ARG(-2)),
    ONE(pow_scalar, POSITIVE, D2(3, 5), ARG(0.5)),
    ONE(relu, TIES, D2(65, 33), .large = 1), ONE(abs, TIES, D2(65, 33), .large = 1),
    UNARY_CASES(dropout, SMOOTH, ARG(0.4)), ONE(dropout, SMOOTH, D2(9, 7), ARG(1)), ONE(dropout, SMOOTH, D2(9, 7), ARG(0)),
    {0},
};

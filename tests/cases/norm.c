#include "cases/cases.h"

/* clang-format off */

/* in: x; or x, weight, bias; or x, weight, bias, running mean, running var; arg: training, "in[1], in[2] are the running ones",
epsilon */
static gt_tensor *run_batch_norm(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    double epsilon = arg[2] > 0 ? arg[2] : 1e-5;
    if (arg[1] > 0) return gt_batch_norm(in[0], NULL, NULL, in[1], in[2], (int32_t)arg[0], 0.1, epsilon);
    return gt_batch_norm(in[0], in[1], in[2], in[3], in[4], (int32_t)arg[0], 0.1, epsilon);
}
/* The same with relu; and with in: x, residual, then the rest. */
static gt_tensor *run_batch_norm_relu(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    return gt_batch_norm_activation(in[0], in[1], in[2], in[3], in[4], NULL, (int32_t)arg[0], 0.1, 1e-5, GT_ACTIVATION_RELU);
}
static gt_tensor *run_batch_norm_add_relu(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    return gt_batch_norm_activation(in[0], in[2], in[3], in[4], in[5], in[1], (int32_t)arg[0], 0.1, 1e-5, GT_ACTIVATION_RELU);
}
/* arg: axes */
static gt_tensor *run_layer_norm(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; return gt_layer_norm(in[0], in[1], in[2], (int32_t)arg[0], 1e-5); }
static gt_tensor *run_softmax(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; return gt_softmax(in[0], (int32_t)arg[0]); }
static gt_tensor *run_log_softmax(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; return gt_log_softmax(in[0], (int32_t)arg[0]); }

#define C(name, ...) {.op = #name, .fn = run_##name, __VA_ARGS__}
#define L(d, l) d, .layout = l
#define BIG .large = 1
#define PER(n) IN(D1(n), .wide = 1)
#define RUN(n) IN(D1(n), .wide = 1, .constant = 1), IN(D1(n), .wide = 1, .constant = 1, .values = POSITIVE)
#define BN(x, n, ...) C(batch_norm, .in = {IN(x), PER(n), PER(n)}, __VA_ARGS__)
#define BNR(x, n, ...) C(batch_norm, .in = {IN(x), PER(n), PER(n), RUN(n)}, __VA_ARGS__)

#define FROZEN(n) IN(D1(n), .wide = 1, .constant = 1)
#define BR(x, n, ...) C(batch_norm_relu, .in = {IN(x), PER(n), PER(n)}, __VA_ARGS__)
#define BRR(x, n, ...) C(batch_norm_relu, .in = {IN(x), PER(n), PER(n), RUN(n)}, __VA_ARGS__)
#define BA(x, n, ...) C(batch_norm_add_relu, .in = {IN(x), IN(x), PER(n), PER(n)}, __VA_ARGS__)
#define BAR(x, n, ...) C(batch_norm_add_relu, .in = {IN(x), IN(x), PER(n), PER(n), RUN(n)}, __VA_ARGS__)

const op_case norm_cases[] = {
    BN(D2(4, 3), 3, ARG(1)), BN(D4(2, 3, 2, 2), 3, ARG(1)), BN(L(D4(2, 3, 3, 2), CHANNELS_LAST), 3, ARG(1)),
    BN(L(D4(2, 3, 3, 2), TRANSPOSED), 3, ARG(1)),
    BN(L(D2(5, 3), SLICED), 3, ARG(1)), BNR(D2(4, 3), 3, ARG(1)), BNR(D4(2, 3, 2, 2), 3, ARG(1)), BNR(D4(2, 3, 2, 2), 3, ARG(0)),
    BNR(D2(4, 3), 3, ARG(0)),
    BNR(D2(1, 3), 3, ARG(0)), C(batch_norm, .in = {IN(D4(2, 3, 2, 2))}, ARG(1)),
    C(batch_norm, .in = {IN(D4(2, 3, 2, 2)), RUN(3)}, ARG(0, 1)),
    BN(D4(1, 2, 3, 3), 2, ARG(1)), BN(D2(5, 1), 1, ARG(1)), BN(D4(0, 3, 2, 2), 3, ARG(1)), BNR(D2(0, 3), 3, ARG(1)),
    BNR(D2(0, 3), 3, ARG(0)),
    C(batch_norm, .in = {IN(D2(4, 3), .constant = 1), PER(3), PER(3)}, ARG(1)),
    C(batch_norm, .in = {IN(D2(4, 3)), IN(D1(3), .wide = 1, .constant = 1), PER(3)}, ARG(1)),
    C(batch_norm, .in = {IN(D4(2, 3, 2, 2), .constant = 1), IN(D1(3), .wide = 1, .constant = 1), PER(3)}, ARG(1)),
    C(batch_norm, .in = {IN(D4(2, 3, 2, 2)), IN(D1(3), .wide = 1, .constant = 1), IN(D1(3), .wide = 1, .constant = 1)}, ARG(1)),
    BN(D4(9, 67, 13, 11), 67, ARG(1), BIG, .loose = 4), BN(L(D4(8, 64, 14, 14), CHANNELS_LAST), 64, ARG(1), BIG, .loose = 4),
    BNR(D4(8, 64, 14, 14), 64, ARG(0), BIG, .loose = 4),
    BN(D2(257, 129), 129, ARG(1), BIG, .loose = 4), BN(D4(3, 3, 65, 67), 3, ARG(1), BIG, .loose = 4),
    BN(D4(2, 1030, 2, 2), 1030, ARG(1), BIG, .loose = 4),
    BNR(D2(66000, 2), 2, ARG(1), BIG, .loose = 10), BNR(D4(16, 8, 33, 31), 8, ARG(1), BIG, .loose = 4),

    BR(D2(4, 3), 3, ARG(1)), BR(D4(2, 3, 2, 2), 3, ARG(1)), BR(L(D4(2, 3, 3, 2), CHANNELS_LAST), 3, ARG(1)),
    BR(L(D4(2, 3, 3, 2), TRANSPOSED), 3, ARG(1)), BR(L(D2(5, 3), SLICED), 3, ARG(1)), BRR(D4(2, 3, 2, 2), 3, ARG(1)),
    BRR(D4(2, 3, 2, 2), 3, ARG(0)), BRR(D2(1, 3), 3, ARG(0)), C(batch_norm_relu, .in = {IN(D4(2, 3, 2, 2))}, ARG(1)),
    BR(D4(0, 3, 2, 2), 3, ARG(1)), BRR(D2(0, 3), 3, ARG(0)), BR(D2(5, 1), 1, ARG(1)),
    C(batch_norm_relu, .in = {IN(D4(2, 3, 2, 2), .constant = 1), PER(3), PER(3)}, ARG(1)),
    C(batch_norm_relu, .in = {IN(D4(2, 3, 2, 2), .constant = 1), FROZEN(3), PER(3)}, ARG(1)),
    C(batch_norm_relu, .in = {IN(D4(2, 3, 2, 2)), FROZEN(3), FROZEN(3)}, ARG(1)),
    BR(D4(9, 67, 13, 11), 67, ARG(1), BIG, .loose = 4), BR(L(D4(8, 64, 14, 14), CHANNELS_LAST), 64, ARG(1), BIG, .loose = 4),
    BRR(D4(8, 64, 14, 14), 64, ARG(0), BIG, .loose = 4), BR(D4(2, 1030, 2, 2), 1030, ARG(1), BIG, .loose = 4),
    BRR(D4(16, 8, 33, 31), 8, ARG(1), BIG, .loose = 4), BR(D4(3, 3, 65, 67), 3, ARG(1), BIG, .loose = 4),
    BR(L(D4(32, 256, 14, 14), CHANNELS_LAST), 256, ARG(1), BIG, .loose = 4), BR(D4(5, 48, 7, 7), 48, ARG(1), BIG, .loose = 4),

    BA(D2(4, 3), 3, ARG(1)), BA(D4(2, 3, 2, 2), 3, ARG(1)), BA(L(D4(2, 3, 3, 2), CHANNELS_LAST), 3, ARG(1)),
    C(batch_norm_add_relu, .in = {IN(L(D4(2, 3, 3, 2), TRANSPOSED)), IN(L(D4(2, 3, 3, 2), CHANNELS_LAST)), PER(3), PER(3)}, ARG(1)),
    C(batch_norm_add_relu, .in = {IN(D4(2, 3, 3, 2)), IN(L(D4(2, 3, 3, 2), EXPANDED)), PER(3), PER(3)}, ARG(1)),
    BAR(D4(2, 3, 2, 2), 3, ARG(1)), BAR(D4(2, 3, 2, 2), 3, ARG(0)), C(batch_norm_add_relu, .in = {IN(D2(4, 3)), IN(D2(4, 3))}, ARG(1)),
    BA(D4(0, 3, 2, 2), 3, ARG(1)), BAR(D2(0, 3), 3, ARG(0)),
    C(batch_norm_add_relu, .in = {IN(D2(4, 3), .constant = 1), IN(D2(4, 3)), FROZEN(3), FROZEN(3)}, ARG(1)),
    C(batch_norm_add_relu, .in = {IN(D2(4, 3), .constant = 1), IN(D2(4, 3)), FROZEN(3), PER(3)}, ARG(1)),
    C(batch_norm_add_relu, .in = {IN(D2(4, 3), .constant = 1), IN(D2(4, 3)), PER(3), PER(3)}, ARG(1)),
    C(batch_norm_add_relu, .in = {IN(D4(2, 3, 2, 2)), IN(D4(2, 3, 2, 2), .constant = 1), PER(3), PER(3)}, ARG(1)),
    BA(D4(9, 67, 13, 11), 67, ARG(1), BIG, .loose = 4), BA(L(D4(8, 64, 14, 14), CHANNELS_LAST), 64, ARG(1), BIG, .loose = 4),
    BAR(D4(8, 64, 14, 14), 64, ARG(0), BIG, .loose = 4), BA(D4(2, 1030, 2, 2), 1030, ARG(1), BIG, .loose = 4),
    C(batch_norm_add_relu, .in = {IN(L(D4(8, 64, 14, 14), CHANNELS_LAST)), IN(D4(8, 64, 14, 14), .constant = 1), PER(64), PER(64)},
      ARG(1), BIG, .loose = 4),
    BA(L(D4(32, 256, 14, 14), CHANNELS_LAST), 256, ARG(1), BIG, .loose = 4), BA(D4(5, 48, 7, 7), 48, ARG(1), BIG, .loose = 4),

    C(layer_norm, .in = {IN(D2(3, 5)), PER(5), PER(5)}, ARG(1)), C(layer_norm, .in = {IN(D2(3, 5))}, ARG(1)),
    C(layer_norm, .in = {IN(D3(2, 3, 4)), PER(4), PER(4)}, ARG(1)),
    C(layer_norm, .in = {IN(D3(2, 3, 4)), IN(D2(3, 4), .wide = 1), IN(D2(3, 4), .wide = 1)}, ARG(2)),
    C(layer_norm, .in = {IN(D2(3, 5)), PER(5)}, ARG(1)),
    C(layer_norm, .in = {IN(D2(3, 5), .layout = TRANSPOSED), PER(5), PER(5)}, ARG(1)),
    C(layer_norm, .in = {IN(D2(3, 5), .layout = SLICED), PER(5), PER(5)}, ARG(1)),
    C(layer_norm, .in = {IN(D2(0, 5)), PER(5), PER(5)}, ARG(1)), C(layer_norm, .in = {IN(D1(6)), PER(6), PER(6)}, ARG(1)),
    C(layer_norm, .in = {IN(D4(2, 3, 2, 2), .layout = CHANNELS_LAST)}, ARG(3)),
    C(layer_norm, .in = {IN(D2(3, 5), .constant = 1), PER(5), PER(5)}, ARG(1)),
    C(layer_norm, .in = {IN(D2(3, 5)), IN(D1(5), .wide = 1, .constant = 1), PER(5)}, ARG(1)),
    C(layer_norm, .in = {IN(D2(3, 5), .constant = 1), IN(D1(5), .wide = 1, .constant = 1), PER(5)}, ARG(1)),
    C(layer_norm, .in = {IN(D2(3, 1)), PER(1), PER(1)}, ARG(1), .least = 3e-5), /* a zero gradient, times 1/sqrt(epsilon) */
    C(layer_norm, .in = {IN(D2(130, 768)), PER(768), PER(768)}, ARG(1), BIG, .loose = 4),
    C(layer_norm, .in = {IN(D2(257, 129)), PER(129), PER(129)}, ARG(1), BIG, .loose = 4),
    C(layer_norm, .in = {IN(D3(5, 17, 1031)), PER(1031), PER(1031)}, ARG(1), BIG, .loose = 4),
    C(layer_norm, .in = {IN(D2(3, 20001)), PER(20001), PER(20001)}, ARG(1), BIG, .loose = 4),
    C(layer_norm, .in = {IN(D2(70000, 5)), PER(5), PER(5)}, ARG(1), BIG, .loose = 8),

#define SOFTMAX_CASES(name)                                                                                                                \
    C(name, .in = {IN(D2(3, 5))}, ARG(1)), C(name, .in = {IN(D2(3, 5))}, ARG(0)), C(name, .in = {IN(D3(2, 3, 4))}, ARG(1)),                \
    C(name, .in = {IN(D1(4))}, ARG(-1)),                                                                                                   \
        C(name, .in = {IN(D2(3, 5), .layout = TRANSPOSED)}, ARG(1)), C(name, .in = {IN(D3(2, 3, 5), .layout = SLICED)}, ARG(-2)),          \
        C(name, .in = {IN(D2(0, 5))}, ARG(1)),                                                                                             \
        C(name, .in = {IN(D2(3, 0))}, ARG(1)), C(name, .in = {IN(D2(3, 1))}, ARG(1)),                                                      \
        C(name, .in = {IN(D4(2, 3, 2, 2), .layout = CHANNELS_LAST)}, ARG(1)),                                                              \
        C(name, .in = {IN(D2(257, 1000))}, ARG(1), BIG, .loose = 2), C(name, .in = {IN(D3(5, 131, 67))}, ARG(1), BIG, .loose = 2),         \
        C(name, .in = {IN(D2(7, 50257))}, ARG(1), BIG, .loose = 2),                                                                        \
        C(name, .in = {IN(D2(70000, 3))}, ARG(1), BIG, .loose = 2), C(name, .in = {IN(D2(65, 33))}, ARG(1), BIG, .loose = 2)
    SOFTMAX_CASES(softmax), SOFTMAX_CASES(log_softmax),
    {0},
};

#include "cases/cases.h"

/* clang-format off */

/* arg: stride 0, 1; padding 2, 3; dilation 4, 5; groups 6 (0: the defaults); activation 7 */
static gt_tensor *run_conv2d(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    gt_conv2d_options o;
    if (gt_conv2d_options_init(&o, sizeof o) != GT_OK) return NULL;
    for (int i = 0; i < 2; i++) {
        if (arg[i] > 0) o.stride[i] = (int64_t)arg[i];
        o.padding[i] = (int64_t)arg[2 + i];
        if (arg[4 + i] > 0) o.dilation[i] = (int64_t)arg[4 + i];
    }
    if (arg[6] > 0) o.groups = (int64_t)arg[6];
    o.activation = (gt_activation)arg[7];
    return gt_conv2d(in[0], in[1], in[2], &o);
}
#define run_conv2d_relu run_conv2d

/* arg: kernel 0, 1; stride 2, 3; padding 4, 5; padding left out of averages 6 */
static gt_tensor *pool(gt_tensor *x, const double *arg, int max)
{
    gt_pool2d_options o;
    if (gt_pool2d_options_init(&o, sizeof o) != GT_OK) return NULL;
    for (int i = 0; i < 2; i++) {
        o.kernel[i] = (int64_t)arg[i];
        o.stride[i] = (int64_t)arg[2 + i];
        o.padding[i] = (int64_t)arg[4 + i];
    }
    o.count_include_pad = arg[6] == 0;
    return max ? gt_max_pool2d(x, &o) : gt_avg_pool2d(x, &o);
}
static gt_tensor *run_max_pool2d(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; return pool(in[0], arg, 1); }
static gt_tensor *run_avg_pool2d(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; return pool(in[0], arg, 0); }
static gt_tensor *run_adaptive_avg_pool2d(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    return gt_adaptive_avg_pool2d(in[0], (int64_t)arg[0], (int64_t)arg[1]);
}

#define C(name, ...) {.op = #name, .fn = run_##name, __VA_ARGS__}
#define G .values = GRID
#define B .values = GRID_ODD
#define CONV(x, w, b, ...) C(conv2d, .in = {IN(x, G), IN(w, G), IN(b, B)}, __VA_ARGS__)
#define CONVR(x, w, b, ...) C(conv2d_relu, .in = {IN(x, G), IN(w, G), IN(b, B)}, __VA_ARGS__)
#define L(d, l) d, .layout = l
#define BIG .large = 1
#define RELU 0, 0, 0, 0, 0, 0, 0, 1

const op_case conv_cases[] = {
    CONV(D4(2, 3, 5, 5), D4(4, 3, 3, 3), D1(4)), C(conv2d, .in = {IN(D4(2, 3, 5, 5), G), IN(D4(4, 3, 3, 3), G)}),
    CONV(D4(1, 1, 1, 1), D4(1, 1, 1, 1), D1(1)),
    CONV(L(D4(2, 3, 5, 6), CHANNELS_LAST), L(D4(4, 3, 3, 3), CHANNELS_LAST), D1(4)),
    CONV(L(D4(2, 3, 5, 6), TRANSPOSED), D4(2, 3, 3, 2), D1(2)),
    CONV(L(D4(2, 3, 5, 6), SLICED), L(D4(2, 3, 3, 2), SLICED), L(D1(2), SLICED)),
    CONV(L(D4(2, 3, 5, 6), EXPANDED), D4(2, 3, 2, 2), D1(2)),
    CONV(D4(2, 2, 6, 5), D4(3, 2, 3, 2), D1(3), ARG(2, 1, 1, 0)), CONV(D4(2, 2, 7, 8), D4(3, 2, 3, 3), D1(3), ARG(1, 2, 2, 1, 2, 1)),
    CONV(D4(2, 4, 5, 5), D4(6, 2, 3, 3), D1(6), ARG(1, 1, 1, 1, 1, 1, 2)),
    CONV(D4(1, 4, 5, 4), D4(4, 1, 3, 3), D1(4), ARG(1, 1, 1, 1, 1, 1, 4)),
    CONV(D4(1, 2, 3, 3), D4(2, 2, 3, 3), D1(2)), CONV(D4(1, 2, 2, 2), D4(2, 2, 3, 3), D1(2), ARG(1, 1, 1, 1)),
    CONV(D4(2, 3, 4, 1), D4(2, 3, 3, 1), D1(2)),
    CONV(D4(2, 3, 4, 4), D4(5, 3, 1, 1), D1(5)), CONV(D4(2, 3, 5, 5), D4(5, 3, 1, 1), D1(5), ARG(2, 2)),
    CONV(D4(0, 3, 5, 5), D4(4, 3, 3, 3), D1(4)),
    CONV(D4(1, 1, 9, 9), D4(1, 1, 3, 3), D1(1), ARG(3, 3, 0, 0, 2, 2)),
    C(conv2d, .in = {IN(D4(1, 2, 4, 4), G, .constant = 1), IN(D4(2, 2, 3, 3), G), IN(D1(2), B)}),
    C(conv2d, .in = {IN(D4(1, 2, 4, 4), G), IN(D4(2, 2, 3, 3), G, .constant = 1), IN(D1(2), B)}),
    C(conv2d, .in = {IN(D4(1, 2, 4, 4), G, .constant = 1), IN(D4(2, 2, 3, 3), G, .constant = 1), IN(D1(2), B)}),
    CONV(D4(64, 1, 28, 28), D4(32, 1, 3, 3), D1(32), BIG), CONV(D4(9, 32, 26, 26), D4(64, 32, 3, 3), D1(64), BIG, .loose = 8),
    CONV(D4(5, 17, 15, 13), D4(9, 17, 5, 3), D1(9), ARG(2, 1, 2, 1), BIG),
    CONV(D4(3, 32, 14, 14), D4(32, 8, 3, 3), D1(32), ARG(1, 1, 1, 1, 1, 1, 4), BIG),
    CONV(D4(3, 24, 14, 14), D4(24, 1, 3, 3), D1(24), ARG(2, 2, 1, 1, 1, 1, 24), BIG),
    CONV(D4(3, 64, 14, 14), D4(128, 64, 1, 1), D1(128), BIG, .loose = 2),
    CONV(D4(3, 3, 33, 33), D4(16, 3, 7, 7), D1(16), ARG(2, 2, 3, 3), BIG),
    CONV(L(D4(4, 16, 14, 14), CHANNELS_LAST), L(D4(24, 16, 3, 3), CHANNELS_LAST), D1(24), ARG(1, 1, 1, 1), BIG),
    CONV(D4(3, 8, 15, 15), D4(8, 8, 3, 3), D1(8), ARG(1, 1, 2, 2, 2, 2), BIG),
    CONV(D4(66000, 1, 3, 3), D4(2, 1, 2, 2), D1(2), BIG), CONV(D4(1, 3, 1, 200), D4(5, 3, 1, 9), D1(5), BIG),

    CONVR(D4(2, 3, 5, 5), D4(4, 3, 3, 3), D1(4), ARG(RELU)),
    CONVR(L(D4(2, 3, 5, 6), CHANNELS_LAST), D4(4, 3, 3, 3), D1(4), ARG(2, 1, 1, 1, 1, 1, 1, 1)),
    CONVR(D4(0, 3, 5, 5), D4(4, 3, 3, 3), D1(4), ARG(RELU)), CONVR(D4(2, 4, 5, 5), D4(6, 2, 3, 3), D1(6), ARG(1, 1, 1, 1, 1, 1, 2, 1)),
    C(conv2d_relu, .in = {IN(D4(2, 3, 5, 5)), IN(D4(4, 3, 3, 3))}, ARG(RELU), .loose = 4),
    C(conv2d_relu, .in = {IN(D4(1, 2, 4, 4), G, .constant = 1), IN(D4(2, 2, 3, 3), G), IN(D1(2), B, .constant = 1)}, ARG(RELU)),
    C(conv2d_relu, .in = {IN(D4(1, 2, 4, 4), G, .constant = 1), IN(D4(2, 2, 3, 3), G, .constant = 1), IN(D1(2), B)}, ARG(RELU)),
    CONVR(D4(64, 1, 28, 28), D4(32, 1, 3, 3), D1(32), ARG(RELU), BIG),
    CONVR(D4(9, 32, 26, 26), D4(64, 32, 3, 3), D1(64), ARG(RELU), BIG, .loose = 8) /* Winograd rounds more */,
    CONVR(D4(5, 17, 15, 13), D4(9, 17, 5, 3), D1(9), ARG(2, 1, 2, 1, 1, 1, 1, 1), BIG),
    {0},
};

#define P(name, x, ...) C(name, .in = {IN(x, .values = DISTINCT)}, __VA_ARGS__)
#define A(name, x, ...) C(name, .in = {IN(x, G)}, __VA_ARGS__)
#define POOL_CASES(M, name)                                                                                                                \
    M(name, D4(2, 3, 4, 4), ARG(2, 2)), M(name, D4(2, 3, 5, 7), ARG(3, 2, 2, 1, 1, 1)),                                                    \
    M(name, L(D4(2, 3, 5, 4), CHANNELS_LAST), ARG(2, 3, 1, 1)),                                                                            \
        M(name, L(D4(2, 3, 4, 5), TRANSPOSED), ARG(2, 2)), M(name, L(D4(2, 3, 4, 5), SLICED), ARG(2, 2, 1, 1, 1, 0)),                      \
        M(name, D4(1, 1, 1, 1), ARG(1, 1)),                                                                                                \
        M(name, D4(0, 3, 4, 4), ARG(2, 2)), M(name, D4(2, 0, 4, 4), ARG(2, 2)), M(name, D4(1, 2, 3, 3), ARG(3, 3)),                        \
        M(name, D4(1, 2, 7, 7), ARG(2, 2, 3, 3)),                                                                                          \
        M(name, D4(1, 1, 5, 5), ARG(5, 5, 1, 1, 2, 2)), M(name, D4(9, 64, 24, 24), ARG(2, 2), BIG),                                        \
        M(name, D4(5, 17, 23, 21), ARG(3, 3, 2, 2, 1, 1), BIG),                                                                            \
        M(name, D4(3, 64, 32, 32), ARG(3, 3, 2, 2, 1, 1), BIG), M(name, D4(2, 3, 33, 35), ARG(17, 18, 2, 3, 8, 9), BIG),                   \
        M(name, D4(66000, 1, 2, 2), ARG(2, 2), BIG)

const op_case pool_cases[] = {
    POOL_CASES(P, max_pool2d), C(max_pool2d, .in = {IN(D4(3, 5, 9, 9), .values = TIES)}, ARG(3, 3, 1, 1, 1, 1), BIG),
    C(max_pool2d, .in = {IN(D4(3, 64, 9, 9), .values = TIES)}, ARG(2, 2), BIG),
    POOL_CASES(A, avg_pool2d), A(avg_pool2d, D4(2, 3, 5, 7), ARG(3, 2, 2, 1, 1, 1, 1)),
    A(avg_pool2d, D4(5, 17, 23, 21), ARG(3, 3, 2, 2, 1, 1, 1), BIG),
    A(adaptive_avg_pool2d, D4(2, 3, 4, 4), ARG(2, 2)), A(adaptive_avg_pool2d, D4(2, 3, 5, 7), ARG(3, 4)),
    A(adaptive_avg_pool2d, D4(2, 3, 3, 2), ARG(5, 4)),
    A(adaptive_avg_pool2d, L(D4(2, 3, 5, 7), CHANNELS_LAST), ARG(1, 1)), A(adaptive_avg_pool2d, D4(0, 3, 4, 4), ARG(2, 2)),
    A(adaptive_avg_pool2d, L(D4(2, 3, 5, 4), SLICED), ARG(2, 3)),
    A(adaptive_avg_pool2d, D4(5, 67, 7, 7), ARG(1, 1), BIG), A(adaptive_avg_pool2d, D4(3, 17, 23, 21), ARG(6, 5), BIG),
    {0},
};

/* dtype and layout, views, concat, pad, and reductions. */
#include "cases/cases.h"

/* clang-format off */

static gt_tensor *run_cast(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    gt_dtype dtype = (gt_dtype)arg[0];
    return gt_cast(in[0], gt_tensor_dtype(in[0]) == GT_DTYPE_F64 ? GT_DTYPE_F64 : dtype);
}
static gt_tensor *run_contiguous(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; (void)arg; return gt_contiguous(in[0]); }
static gt_tensor *run_channels_last(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; (void)arg; return gt_channels_last(in[0]); }

static int32_t shape_from(const double *arg, int64_t *shape) /* ndim, sizes */
{
    for (int i = 0; i < (int)arg[0]; i++) shape[i] = (int64_t)arg[1 + i];
    return (int32_t)arg[0];
}
static gt_tensor *run_reshape(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    int64_t shape[GT_MAX_DIMS];
    int32_t ndim = shape_from(arg, shape);
    return gt_square(gt_reshape(in[0], ndim, shape));
}
static gt_tensor *run_expand(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    int64_t shape[GT_MAX_DIMS];
    int32_t ndim = shape_from(arg, shape);
    return gt_square(gt_expand(in[0], ndim, shape));
}
static gt_tensor *run_flatten(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; return gt_square(gt_flatten(in[0], (int32_t)arg[0])); }
static gt_tensor *run_transpose(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    return gt_square(gt_transpose(in[0], (int32_t)arg[0], (int32_t)arg[1]));
}
static gt_tensor *run_permute(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    int32_t axes[GT_MAX_DIMS];
    for (int i = 0; i < GT_MAX_DIMS; i++) axes[i] = (int32_t)arg[i];
    return gt_square(gt_permute(in[0], axes));
}
static gt_tensor *run_slice(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    return gt_square(gt_slice(in[0], (int32_t)arg[0], (int64_t)arg[1], (int64_t)arg[2], (int64_t)arg[3]));
}
static gt_tensor *run_concat(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    return gt_concat(in, (int32_t)arg[1], (int32_t)arg[0]);
}
static gt_tensor *run_pad(gt_context *ctx, gt_tensor **in, const double *arg) /* value, then (before, after) an axis */
{
    (void)ctx;
    int64_t before[GT_MAX_DIMS], after[GT_MAX_DIMS];
    for (int i = 0; i < gt_tensor_ndim(in[0]); i++) {
        before[i] = (int64_t)arg[1 + 2 * i];
        after[i] = (int64_t)arg[2 + 2 * i];
    }
    return gt_square(gt_pad(in[0], before, after, arg[0]));
}

#define C(name, ...) {.op = #name, .fn = run_##name, __VA_ARGS__}
#define X(...) .in = {IN(__VA_ARGS__)}

const op_case shape_cases[] = {
    C(cast, X(D2(3, 5)), ARG(GT_DTYPE_F16), .loose = 100), C(cast, X(D2(3, 5)), ARG(GT_DTYPE_BF16), .large = 1, .loose = 1600),
    C(cast, X(D2(3, 5), .layout = SLICED), ARG(GT_DTYPE_F32)), C(cast, X(D4(2, 3, 4, 5), .layout = CHANNELS_LAST), ARG(GT_DTYPE_F32)),
    C(cast, X(D2(0, 4)), ARG(GT_DTYPE_F32)), C(cast, X(D2(301, 1001)), ARG(GT_DTYPE_F32), .large = 1),
    C(cast, X(D1(9), .layout = OFFSET), ARG(GT_DTYPE_F32)),
    C(contiguous, X(D2(3, 5), .layout = TRANSPOSED)), C(contiguous, X(D2(3, 5))), C(contiguous, X(D3(3, 2, 5), .layout = SLICED)),
    C(contiguous, X(D3(3, 2, 5), .layout = EXPANDED)), C(contiguous, X(D4(2, 3, 4, 5), .layout = CHANNELS_LAST)),
    C(contiguous, X(D4(5, 67, 35, 33), .layout = CHANNELS_LAST), .large = 1),
    C(contiguous, X(D3(4, 300, 517), .layout = TRANSPOSED), .large = 1),
    C(contiguous, X(D2(0, 5), .layout = TRANSPOSED)), C(contiguous, X(D2(1000, 333), .layout = SLICED), .large = 1),
    C(channels_last, X(D4(2, 3, 4, 5))), C(channels_last, X(D4(2, 1, 4, 5))), C(channels_last, X(D4(0, 3, 4, 5))),
    C(channels_last, X(D4(2, 3, 4, 5), .layout = TRANSPOSED)), C(channels_last, X(D4(5, 67, 35, 33)), .large = 1),
    C(channels_last, X(D4(5, 64, 32, 32)), .large = 1),
    C(reshape, X(D2(3, 4)), ARG(1, 12)), C(reshape, X(D2(3, 4)), ARG(3, 2, -1, 3)),
    C(reshape, X(D2(3, 4), .layout = TRANSPOSED), ARG(1, 12)),
    C(reshape, X(D2(3, 4), .layout = TRANSPOSED), ARG(3, 3, 2, 2)), C(reshape, X(D4(2, 3, 2, 2), .layout = CHANNELS_LAST), ARG(2, 2, -1)),
    C(reshape, X(D2(3, 4), .layout = SLICED), ARG(3, 3, 2, 2)), C(reshape, X(D1(1)), ARG(0)), C(reshape, X(D0), ARG(2, 1, 1)),
    C(reshape, X(D2(0, 4)), ARG(2, 4, 0)), C(reshape, X(D3(2, 3, 4), .layout = EXPANDED), ARG(2, 6, 4)),
    C(flatten, X(D4(2, 3, 2, 2)), ARG(1)), C(flatten, X(D4(2, 3, 2, 2), .layout = CHANNELS_LAST), ARG(1)),
    C(flatten, X(D4(2, 3, 2, 2)), ARG(-2)),
    C(flatten, X(D0), ARG(0)), C(flatten, X(D3(0, 3, 2)), ARG(1)),
    C(flatten, X(D4(7, 64, 12, 12), .layout = CHANNELS_LAST), ARG(1), .large = 1),
    C(transpose, X(D2(3, 5)), ARG(0, 1)), C(transpose, X(D3(2, 3, 4)), ARG(-1, 0)),
    C(transpose, X(D3(2, 3, 4), .layout = SLICED), ARG(1, 1)),
    C(transpose, X(D2(257, 129)), ARG(0, 1), .large = 1),
    C(permute, X(D3(2, 3, 4)), ARG(2, 0, 1)), C(permute, X(D4(2, 3, 2, 2)), ARG(0, 2, 3, 1)),
    C(permute, X(D3(2, 3, 4), .layout = TRANSPOSED), ARG(-1, -3, -2)),
    C(permute, X(D0)), C(permute, X(D4(3, 33, 17, 65)), ARG(3, 1, 0, 2), .large = 1),
    C(expand, X(D2(3, 1)), ARG(2, 3, 4)), C(expand, X(D1(4)), ARG(3, 2, 3, 4)), C(expand, X(D0), ARG(2, 2, 3)),
    C(expand, X(D2(3, 4)), ARG(2, 3, 4)),
    C(expand, X(D2(3, 1)), ARG(3, 0, 3, 1)), C(expand, X(D3(2, 1, 3), .layout = SLICED), ARG(4, 2, 2, 5, 3)),
    C(expand, X(D2(65, 1)), ARG(3, 33, 65, 70), .large = 1, .loose = 4),
    C(slice, X(D2(5, 4)), ARG(0, 1, 4, 1)), C(slice, X(D2(5, 4)), ARG(0, 0, 5, 2)), C(slice, X(D2(5, 4)), ARG(1, -3, -1, 1)),
    C(slice, X(D2(5, 4)), ARG(0, 4, 2, 1)),
    C(slice, X(D2(5, 4)), ARG(1, 1, 100, 3)), C(slice, X(D2(5, 4), .layout = TRANSPOSED), ARG(0, 1, 5, 2)),
    C(slice, X(D1(6), .layout = SLICED), ARG(0, 1, 6, 2)),
    C(slice, X(D4(2, 3, 4, 5), .layout = CHANNELS_LAST), ARG(1, 1, 3, 1)), C(slice, X(D3(65, 130, 67)), ARG(1, 3, 127, 2), .large = 1),
    C(concat, .in = {IN(D2(2, 3)), IN(D2(2, 4))}, ARG(1, 2)), C(concat, .in = {IN(D2(2, 3)), IN(D2(1, 3)), IN(D2(0, 3))}, ARG(0, 3)),
    C(concat, .in = {IN(D2(2, 3), .layout = TRANSPOSED), IN(D2(2, 4), .layout = SLICED)}, ARG(-1, 2)),
    C(concat, .in = {IN(D1(3))}, ARG(0, 1)),
    C(concat, .in = {IN(D4(2, 3, 2, 2), .layout = CHANNELS_LAST), IN(D4(2, 2, 2, 2), .layout = CHANNELS_LAST)}, ARG(1, 2)),
    C(concat, .in = {IN(D3(17, 33, 65)), IN(D3(17, 1, 65)), IN(D3(17, 127, 65))}, ARG(1, 3), .large = 1),
    C(concat, .in = {IN(D2(1025, 31)), IN(D2(1025, 66), .layout = TRANSPOSED), IN(D2(1025, 5))}, ARG(1, 3), .large = 1),
    C(pad, X(D2(2, 3)), ARG(0.5, 1, 0, 2, 1)), C(pad, X(D2(2, 3)), ARG(0)),
    C(pad, X(D4(1, 2, 3, 2), .layout = CHANNELS_LAST), ARG(-1, 0, 0, 0, 0, 1, 1, 2, 0)),
    C(pad, X(D2(0, 3)), ARG(2, 1, 1, 0, 0)), C(pad, X(D2(3, 2), .layout = TRANSPOSED), ARG(0, 0, 1, 1, 0)), C(pad, X(D0)),
    C(pad, X(D4(3, 17, 31, 33)), ARG(0, 0, 0, 0, 0, 2, 1, 1, 2), .large = 1),
    {0},
};

/* ---- reductions: arg = number of axes, the axes, keep_dims at [5] -------------------------------------------------------------- */

#define REDUCTION(name)                                                                                                                    \
    static gt_tensor *run_##name(gt_context *ctx, gt_tensor **in, const double *arg)                                                       \
    {                                                                                                                                      \
        (void)ctx;                                                                                                                         \
        int32_t axes[4];                                                                                                                   \
        for (int i = 0; i < 4; i++) axes[i] = (int32_t)arg[1 + i];                                                                         \
        return gt_##name(in[0], axes, (int32_t)arg[0], (int32_t)arg[5]);                                                                   \
    }
REDUCTION(sum) REDUCTION(mean) REDUCTION(max)
static gt_tensor *run_argmax(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; return gt_argmax(in[0], (int32_t)arg[0], (int32_t)arg[1]); }

#define REDUCE_CASES(name, v)                                                                                                              \
    C(name, X(D2(3, 4), .values = v), ARG(0)), C(name, X(D2(3, 4), .values = v), ARG(1, 1)),                                               \
    C(name, X(D2(3, 4), .values = v), ARG(1, 0)),                                                                                          \
        C(name, X(D2(3, 4), .values = v), ARG(1, -1, 0, 0, 0, 1)), C(name, X(D3(2, 3, 4), .values = v), ARG(2, 0, 2)),                     \
        C(name, X(D3(2, 3, 4), .values = v), ARG(1, 1, 0, 0, 0, 1)),                                                                       \
        C(name, X(D3(2, 3, 4), .layout = TRANSPOSED, .values = v), ARG(1, 1)),                                                             \
        C(name, X(D2(3, 5), .layout = SLICED, .values = v), ARG(1, 1)),                                                                    \
        C(name, X(D4(2, 3, 4, 2), .layout = CHANNELS_LAST, .values = v), ARG(3, 0, 2, 3)),                                                 \
        C(name, X(D4(2, 3, 4, 2), .layout = CHANNELS_LAST, .values = v), ARG(2, 2, 3, 0, 0, 1)), C(name, X(D0, .values = v), ARG(0)),      \
        C(name, X(D1(1), .values = v), ARG(1, 0)), C(name, X(D2(0, 3), .values = v), ARG(1, 1)),                                           \
        C(name, X(D3(1, 5, 1), .values = v), ARG(2, 0, 2)),                                                                                \
        C(name, X(D2(130, 1027), .values = v), ARG(1, 1), .large = 1), C(name, X(D2(1027, 130), .values = v), ARG(1, 0), .large = 1),      \
        C(name, X(D1(100003), .values = v), ARG(0), .large = 1),                                                                           \
        C(name, X(D4(9, 67, 33, 31), .layout = CHANNELS_LAST, .values = v), ARG(3, 0, 2, 3), .large = 1),                                  \
        C(name, X(D4(9, 67, 33, 31), .values = v), ARG(3, 0, 2, 3), .large = 1),                                                           \
        C(name, X(D3(33, 300, 65), .values = v), ARG(1, 1), .large = 1),                                                                   \
        C(name, X(D4(9, 67, 13, 11), .layout = CHANNELS_LAST, .values = v), ARG(2, 2, 3), .large = 1),                                     \
        C(name, X(D3(70000, 3, 2), .values = v), ARG(1, 1), .large = 1),                                                                   \
        C(name, X(D2(513, 257), .layout = TRANSPOSED, .values = v), ARG(1, 1), .large = 1)

const op_case reduce_cases[] = {
    REDUCE_CASES(sum, GRID), REDUCE_CASES(mean, SMOOTH), REDUCE_CASES(max, DISTINCT), C(sum, X(D2(0, 3)), ARG(0)),
    C(sum, X(D2(0, 3)), ARG(1, 0)),
    C(max, X(D2(33, 65), .values = TIES), ARG(1, 1), .large = 1), C(max, X(D2(33, 65), .values = TIES), ARG(1, 0), .large = 1),
    C(argmax, X(D2(3, 4), .values = DISTINCT), ARG(1), .no_gradient = 1),
    C(argmax, X(D2(3, 4), .values = TIES), ARG(0, 1), .no_gradient = 1),
    C(argmax, X(D3(3, 4, 5), .values = TIES, .layout = TRANSPOSED), ARG(1), .no_gradient = 1),
    C(argmax, X(D1(1)), ARG(0), .no_gradient = 1),
    C(argmax, X(D2(0, 4)), ARG(1), .no_gradient = 1), C(argmax, X(D2(257, 1003), .values = TIES), ARG(1), .no_gradient = 1),
    C(argmax, X(D3(33, 1003, 5), .values = TIES), ARG(1), .no_gradient = 1),
    C(argmax, X(D4(3, 10, 5, 6), .layout = CHANNELS_LAST), ARG(1), .no_gradient = 1),
    {0},
};

/* Gradients of weights written into, or added to, a gradient kept in f32 (f64 for f64): against loops in f64. */
#include "unit/ops_util.h"

#include "ops/ops.h"

#include <stdlib.h>

static double noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*state >> 33) * 0x1p-30 - 1.0;
}

/* Values that every dtype holds exactly: eighths up to 4. */
static gt_tensor *grid(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, uint64_t *state, double *values) {
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; i++) n *= shape[i];
    for (int64_t i = 0; i < n; i++) values[i] = floor(noise(state) * 16) / 4;
    return make(ctx, dtype, ndim, shape, values);
}

static double tolerance(gt_dtype dtype) { return dtype == GT_DTYPE_F64 ? 1e-12 : 2e-5; }

/* rounding: what each of two sums may lose besides, relative. */
static void check(gt_tensor *into, const double *want, int64_t n, double scale, gt_dtype dtype, double rounding, const char *what) {
    double *got = malloc((size_t)n * sizeof *got);
    CHECK_OK(gt_tensor_read(gt_cast(into, GT_DTYPE_F64), got, (size_t)n * sizeof *got));
    for (int64_t i = 0; i < n; i++) {
        double error = fabs(got[i] - want[i]);
        if (!(error <= tolerance(dtype) * (scale + fabs(want[i])) + 2 * rounding * (1 + fabs(want[i]))))
            FAIL("%s: element %lld is %.9g, want %.9g", what, (long long)i, got[i], want[i]);
    }
    free(got);
}

/* `into` starts with 0.5 everywhere: kept if added to, gone if not. */
static gt_tensor *start(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    return CHECK_TENSOR(gt_tensor_full(ctx, gt__dtype_accumulate(dtype), ndim, shape, 0.5));
}

/* --- linear ---------------------------------------------------------------------------------------------------------------------------------- */
static void linear_reference(int64_t m, int64_t n, int64_t k, const double *dz, const double *x, double begin, double *dw) {
    for (int64_t i = 0; i < n * k; i++) dw[i] = begin;
    for (int64_t row = 0; row < m; row++)
        for (int64_t o = 0; o < n; o++)
            for (int64_t i = 0; i < k; i++) dw[o * k + i] += dz[row * n + o] * x[row * k + i];
}

TEST_DEVICES(unit, linear_weight_gradient_is_written_or_added_in_f32) {
    const gt_context_options options = {.struct_size = sizeof options, .workspace_limit = GT_WORKSPACE_AUTO}; /* no TF32 */
    gt_context *ctx = test_context_with(t, &options);
    const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {64, 48, 32}, {33, 10, 129}, {128, 1, 9}, {0, 4, 6}, {257, 64, 100}};
    static double dz[257 * 129], x[257 * 129], dw[129 * 129];
    uint64_t state = 3;
    EACH_FLOAT(dtype)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int way = 0; way < 8; way++) {
            bool accumulate = way & 1, turned = way & 2, repeated = way & 4;
            int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
            CHECK_OK(gt_scope_begin(ctx));
            gt_tensor *a = grid(ctx, *dtype, SHAPE(m, n), &state, dz), *b = grid(ctx, *dtype, SHAPE(m, k), &state, x);
            if (repeated) { /* what a mean's gradient looks like: no matrix in memory */
                a = gt_expand(grid(ctx, *dtype, SHAPE(1, 1), &state, dz), SHAPE(m, n));
                for (int64_t i = m * n - 1; i > 0; i--) dz[i] = dz[0];
            }
            /* a weight may lie column-major */
            gt_tensor *into = turned ? gt_transpose(start(ctx, *dtype, SHAPE(k, n)), 0, 1) : start(ctx, *dtype, SHAPE(n, k));
            CHECK_TENSOR(into);
            for (int again = 0; again < 2; again++) { /* the second time by the plan that the first has made */
                CHECK_OK(gt__linear_weight_grad(a, b, into, accumulate));
                linear_reference(m, n, k, dz, x, accumulate ? 0.5 : 0, dw);
                for (int64_t i = 0; i < n * k && accumulate && again; i++) dw[i] += dw[i] - 0.5;
                check(into, dw, n * k, sqrt((double)m), *dtype, 0, gt_dtype_name(*dtype));
            }
            CHECK_OK(gt_scope_end(ctx));
        }
}

/* Sums that a half could not hold. */
TEST_DEVICES(unit, half_weight_gradients_do_not_overflow_or_vanish) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *big = gt_tensor_full(ctx, GT_DTYPE_F16, SHAPE(64, 8), 256),
              *small = gt_tensor_full(ctx, GT_DTYPE_F16, SHAPE(64, 8), 0x1p-14);
    gt_tensor *into = start(ctx, GT_DTYPE_F16, SHAPE(8, 8));
    CHECK_OK(gt__linear_weight_grad(big, big, into, false));
    CHECK_VALUES(gt_max(into, NULL, 0, 0), 64 * 65536.0);
    CHECK_OK(gt__linear_weight_grad(small, small, into, false));
    CHECK_VALUES(gt_max(into, NULL, 0, 0), 0x1p-22);
    gt_scope_end(ctx);
}

/* --- convolution ------------------------------------------------------------------------------------------------------------------------------ */
typedef struct geometry {
    int64_t n, c, h, w, out, kh, kw, stride[2], padding[2], dilation[2], groups;
} geometry;

static int64_t result_size(const geometry *g, int axis) {
    int64_t size = axis ? g->w : g->h, kernel = axis ? g->kw : g->kh;
    return (size + 2 * g->padding[axis] - g->dilation[axis] * (kernel - 1) - 1) / g->stride[axis] + 1;
}

static void conv_reference(const geometry *g, const double *dz, const double *x, double begin, double *dw) {
    int64_t oh = result_size(g, 0), ow = result_size(g, 1), in = g->c / g->groups, per = g->out / g->groups;
    for (int64_t o = 0; o < g->out; o++)
        for (int64_t i = 0; i < in; i++)
            for (int64_t r = 0; r < g->kh; r++)
                for (int64_t s = 0; s < g->kw; s++) {
                    double sum = begin;
                    for (int64_t b = 0; b < g->n; b++)
                        for (int64_t y = 0; y < oh; y++)
                            for (int64_t z = 0; z < ow; z++) {
                                int64_t h = y * g->stride[0] - g->padding[0] + r * g->dilation[0];
                                int64_t w = z * g->stride[1] - g->padding[1] + s * g->dilation[1];
                                if (h < 0 || h >= g->h || w < 0 || w >= g->w) continue;
                                int64_t channel = o / per * in + i;
                                sum += dz[((b * g->out + o) * oh + y) * ow + z] * x[((b * g->c + channel) * g->h + h) * g->w + w];
                            }
                    dw[((o * in + i) * g->kh + r) * g->kw + s] = sum;
                }
}

static const geometry geometries[] = {
    {2, 3, 7, 6, 4, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {3, 16, 8, 8, 32, 3, 3, {2, 2}, {1, 1}, {1, 1}, 1},
    {1, 5, 9, 4, 7, 2, 3, {2, 1}, {0, 2}, {1, 1}, 1},
    {2, 8, 6, 6, 12, 3, 3, {1, 1}, {1, 1}, {1, 1}, 4},
    {2, 6, 5, 5, 6, 3, 3, {1, 1}, {2, 2}, {2, 2}, 6},
    {4, 32, 4, 4, 64, 1, 1, {1, 1}, {0, 0}, {1, 1}, 1},
    {0, 4, 5, 5, 8, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {2, 64, 10, 10, 64, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    /* few channels and taps: kernels of their own on CUDA, where the last has many blocks whose sums are joined */
    {3, 1, 9, 11, 33, 5, 5, {1, 1}, {2, 2}, {1, 1}, 1},
    {2, 2, 8, 13, 7, 3, 4, {2, 3}, {1, 2}, {1, 1}, 1},
    {1, 4, 5, 6, 70, 1, 9, {1, 1}, {0, 4}, {1, 1}, 1},
    {32, 1, 28, 28, 8, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1},
    /* the same with channels in sixteens, which in halves are for the tensor cores */
    {24, 1, 28, 28, 32, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1},
    {3, 1, 9, 11, 64, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {2, 1, 13, 12, 48, 5, 5, {1, 1}, {2, 2}, {1, 1}, 1},
    {3, 3, 15, 17, 32, 3, 3, {2, 2}, {1, 1}, {1, 1}, 1},
    {2, 3, 9, 10, 16, 3, 3, {1, 2}, {0, 0}, {1, 1}, 1},
};

static void conv_case(gt_context *ctx, const geometry *g, gt_dtype dtype, uint64_t *state) {
    int64_t oh = result_size(g, 0), ow = result_size(g, 1), in = g->c / g->groups, count = g->out * in * g->kh * g->kw;
    double *dz = malloc((size_t)(g->n * g->out * oh * ow + 1) * sizeof *dz),
           *x = malloc((size_t)(g->n * g->c * g->h * g->w + 1) * sizeof *x);
    double *dw = malloc((size_t)count * sizeof *dw);
    /* Where cuDNN has no engine that writes f32 from halves, one convolution's result is rounded to a half before it is widened. */
    bool rounds = gt_context_device(ctx) == GT_DEVICE_CUDA && gt__dtype_is_half(dtype);
    double rounding = !rounds ? 0 : dtype == GT_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    gt__attrs attr = gt__attrs_zero();
    for (int i = 0; i < 2; i++) {
        attr.conv.stride[i] = g->stride[i];
        attr.conv.padding[i] = g->padding[i];
        attr.conv.dilation[i] = g->dilation[i];
    }
    attr.conv.groups = g->groups;
    for (int way = 0; way < 4; way++) {
        bool accumulate = way & 1, rows = way & 2; /* rows: a weight of the user's that lies row-major */
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *a = grid(ctx, dtype, SHAPE(g->n, g->out, oh, ow), state, dz),
                  *b = grid(ctx, dtype, SHAPE(g->n, g->c, g->h, g->w), state, x);
        gt_tensor *into = start(ctx, dtype, SHAPE(g->out, in, g->kh, g->kw));
        if (!rows) into = CHECK_TENSOR(gt_channels_last(into));
        for (int again = 0; again < 2; again++) {
            CHECK_OK(gt__conv_weight_grad(a, b, &attr, into, accumulate));
            conv_reference(g, dz, x, accumulate ? 0.5 : 0, dw);
            for (int64_t i = 0; i < count && accumulate && again; i++) dw[i] += dw[i] - 0.5;
            check(into, dw, count, sqrt((double)(g->n * oh * ow)), dtype, rounding, gt_dtype_name(dtype));
        }
        CHECK_OK(gt_scope_end(ctx));
    }
    free(dz);
    free(x);
    free(dw);
}

static void conv_cases(test_case *t, uint64_t workspace, int32_t deterministic) {
    const gt_context_options options = {.struct_size = sizeof options, .workspace_limit = workspace, .deterministic = deterministic};
    gt_context *ctx = test_context_with(t, &options);
    uint64_t state = 5;
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) EACH_FLOAT(dtype) conv_case(ctx, &geometries[i], *dtype, &state);
}

TEST_DEVICES(unit, conv2d_weight_gradient_is_written_or_added_in_f32) { conv_cases(t, GT_WORKSPACE_AUTO, 0); }
TEST_DEVICES(unit, conv2d_weight_gradient_is_written_or_added_without_workspace) { conv_cases(t, 0, 0); }
TEST_DEVICES(unit, conv2d_weight_gradient_is_written_or_added_deterministically) { conv_cases(t, GT_WORKSPACE_AUTO, 1); }

/* --- the gradient of a convolution's weight with that of the relu behind it, and the bias's ------------------------------------------------------ */

/* Part of a larger tensor, so that it begins at an odd address where images are odd. */
static gt_tensor *part_of(gt_tensor *whole) {
    gt_tensor *rest = CHECK_TENSOR(gt_slice(CHECK_TENSOR(gt_channels_last(whole)), 0, 1, gt_tensor_size(whole, 0), 1));
    return rest;
}

/* The kernel itself, which alone can be given outputs to add to. dw, db: either may be NULL. */
static void relu_weight_grad(gt_tensor *const in[3], const gt__attrs *attr, gt_tensor *dw, gt_tensor *db, bool accumulate) {
    gt_context *ctx = in[0]->ctx;
    gt__call call = {.ctx = ctx, .in = in, .n_in = 3, .n_out = 2, .out = {dw, db}, .attr = *attr, .op = GT__OP_CONV2D_RELU_BACKWARD_WEIGHT};
    call.attr.conv.accumulate = accumulate;
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->kernels[call.op](ctx->device, &call);
    gt__leave(ctx, previous);
    CHECK_OK(status);
}

static void relu_case(gt_context *ctx, const geometry *g, gt_dtype dtype, uint64_t *state) {
    int64_t oh = result_size(g, 0), ow = result_size(g, 1), in = g->c / g->groups, count = g->out * in * g->kh * g->kw;
    int64_t image = g->out * oh * ow, pixels = g->c * g->h * g->w, results = g->n * image;
    double *dy = malloc((size_t)(results + image) * sizeof *dy), *y = malloc((size_t)(results + image) * sizeof *y),
           *x = malloc((size_t)((g->n + 1) * pixels) * sizeof *x);
    double *dw = malloc((size_t)count * sizeof *dw), *db = malloc((size_t)g->out * sizeof *db);
    bool rounds = gt_context_device(ctx) == GT_DEVICE_CUDA && gt__dtype_is_half(dtype);
    double rounding = !rounds ? 0 : dtype == GT_DTYPE_F16 ? 0x1p-11 : 0x1p-8, scale = sqrt((double)(g->n * oh * ow));
    gt__attrs attr = gt__attrs_zero();
    for (int i = 0; i < 2; i++) {
        attr.conv.stride[i] = g->stride[i];
        attr.conv.padding[i] = g->padding[i];
        attr.conv.dilation[i] = g->dilation[i];
    }
    attr.conv.groups = g->groups;
    const int64_t shape[4] = {g->out, in, g->kh, g->kw};
    memcpy(attr.conv.shape, shape, sizeof shape);

    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *list[3] = {part_of(grid(ctx, dtype, SHAPE(g->n + 1, g->out, oh, ow), state, dy)),
                          part_of(grid(ctx, dtype, SHAPE(g->n + 1, g->out, oh, ow), state, y)), /* some of it is 0 */
                          part_of(grid(ctx, dtype, SHAPE(g->n + 1, g->c, g->h, g->w), state, x))};
    for (int64_t i = 0; i < results; i++)
        if (y[image + i] <= 0) dy[image + i] = 0;
    for (int64_t o = 0; o < g->out; o++) {
        db[o] = 0;
        for (int64_t i = 0; i < results; i++) db[o] += i / (oh * ow) % g->out == o ? dy[image + i] : 0;
    }
    conv_reference(g, dy + image, x + pixels, 0, dw);

    gt_tensor *out[GT__MAX_OUT] = {NULL}, *two[GT__MAX_OUT] = {NULL};
    for (uint32_t want = 1; want <= 3; want++) {
        out[0] = out[1] = NULL;
        CHECK_OK(gt__op_multi(GT__OP_CONV2D_RELU_BACKWARD_WEIGHT, list, 3, &attr, want, out));
        CHECK((out[0] != NULL) == ((want & 1) != 0) && (out[1] != NULL) == ((want & 2) != 0));
        if (out[0]) {
            CHECK_EQ_INT(gt_tensor_dtype(out[0]), gt__dtype_accumulate(dtype));
            check(out[0], dw, count, scale, dtype, rounding, gt_dtype_name(dtype));
        }
        if (out[1]) {
            CHECK_EQ_INT(gt_tensor_dtype(out[1]), gt__dtype_accumulate(dtype));
            check(out[1], db, g->out, scale, dtype, 0, gt_dtype_name(dtype));
        }
    }
    /* the two ops that it stands for */
    CHECK_OK(gt__op_multi(GT__OP_BIAS_RELU_BACKWARD, list, 2, NULL, 3, two));
    gt_tensor *into = CHECK_TENSOR(gt_channels_last(start(ctx, dtype, 4, shape)));
    CHECK_OK(gt__conv_weight_grad(two[0], list[2], &attr, into, false));
    gt_tensor *wide[2] = {CHECK_TENSOR(gt_cast(into, GT_DTYPE_F64)), CHECK_TENSOR(gt_cast(two[1], GT_DTYPE_F64))};
    CHECK_OK(gt_tensor_read(wide[0], dw, (size_t)count * sizeof *dw));
    CHECK_OK(gt_tensor_read(wide[1], db, (size_t)g->out * sizeof *db));
    check(out[0], dw, count, scale, dtype, 2 * rounding, "dw of two ops");
    check(out[1], db, g->out, scale, dtype, 0, "db of two ops");
    /* added, and into one of them alone */
    for (int way = 0; way < 6; way++) {
        bool accumulate = way & 1;
        gt_tensor *to = way / 2 == 1 ? NULL : CHECK_TENSOR(gt_channels_last(start(ctx, dtype, 4, shape))),
                  *bias = way / 2 == 2 ? NULL : start(ctx, dtype, 1, shape);
        double begin = accumulate ? 0.5 : 0;
        relu_weight_grad(list, &attr, to, bias, accumulate);
        for (int64_t i = 0; i < count; i++) dw[i] += begin;
        for (int64_t i = 0; i < g->out; i++) db[i] += begin;
        if (to) check(to, dw, count, scale, dtype, 2 * rounding, "dw added");
        if (bias) check(bias, db, g->out, scale, dtype, 0, "db added");
        for (int64_t i = 0; i < count; i++) dw[i] -= begin;
        for (int64_t i = 0; i < g->out; i++) db[i] -= begin;
    }
    CHECK_OK(gt_scope_end(ctx));
    free(dy);
    free(y);
    free(x);
    free(dw);
    free(db);
}

static void relu_cases(test_case *t, uint64_t workspace, int32_t deterministic) {
    const gt_context_options options = {.struct_size = sizeof options, .workspace_limit = workspace, .deterministic = deterministic};
    gt_context *ctx = test_context_with(t, &options);
    uint64_t state = 7;
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) EACH_FLOAT(dtype) relu_case(ctx, &geometries[i], *dtype, &state);
}

TEST_DEVICES(unit, conv2d_relu_weight_gradient_is_that_of_two_ops) { relu_cases(t, GT_WORKSPACE_AUTO, 0); }
TEST_DEVICES(unit, conv2d_relu_weight_gradient_needs_no_workspace) { relu_cases(t, 0, 0); }
TEST_DEVICES(unit, conv2d_relu_weight_gradient_is_computed_deterministically) { relu_cases(t, GT_WORKSPACE_AUTO, 1); }

TEST_DEVICES(unit, conv2d_relu_weight_gradient_keeps_nan) {
    gt_context *ctx = test_context(t);
    gt__attrs attr = gt__attrs_zero();
    for (int i = 0; i < 2; i++) attr.conv.stride[i] = attr.conv.dilation[i] = 1;
    attr.conv.groups = 1;
    EACH_FLOAT(dtype)
    for (int64_t channels = 8; channels <= 32; channels += 24) {
        const int64_t shape[4] = {channels, 1, 3, 3};
        memcpy(attr.conv.shape, shape, sizeof shape);
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *list[3] = {gt_tensor_full(ctx, *dtype, SHAPE(4, channels, 6, 6), 1),
                              gt_tensor_full(ctx, *dtype, SHAPE(4, channels, 6, 6), 1), gt_tensor_full(ctx, *dtype, SHAPE(4, 1, 8, 8), 1)};
        CHECK_OK(gt_tensor_fill(gt_slice(gt_slice(list[1], 0, 3, 4, 1), 1, 5, 6, 1), NAN)); /* of one channel */
        CHECK_OK(gt_tensor_fill(gt_slice(list[0], 1, 2, 3, 1), NAN));                       /* behind relu, which stops it */
        CHECK_OK(gt_tensor_fill(gt_slice(list[1], 1, 2, 3, 1), 0));
        gt_tensor *out[GT__MAX_OUT] = {NULL};
        CHECK_OK(gt__op_multi(GT__OP_CONV2D_RELU_BACKWARD_WEIGHT, list, 3, &attr, 3, out));
        double dw[32 * 9], db[32];
        CHECK_OK(gt_tensor_read(gt_cast(out[0], GT_DTYPE_F64), dw, (size_t)channels * 9 * sizeof *dw));
        CHECK_OK(gt_tensor_read(gt_cast(out[1], GT_DTYPE_F64), db, (size_t)channels * sizeof *db));
        for (int i = 0; i < channels * 9; i++) CHECK(i / 9 == 5 ? isnan(dw[i]) : dw[i] == (i / 9 == 2 ? 0 : 144));
        for (int i = 0; i < channels; i++) CHECK(i == 5 ? isnan(db[i]) : db[i] == (i == 2 ? 0 : 144));
        CHECK_OK(gt_scope_end(ctx));
    }
}

/* --- biases ------------------------------------------------------------------------------------------------------------------------------------ */
TEST_DEVICES(unit, bias_gradients_of_halves_are_f32) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (int way = 0; way < 4; way++) {
        int relu = way & 1, cast = way & 2;
        gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F16, SHAPE(4096, 4)), *w = gt_tensor_zeros(ctx, GT_DTYPE_F16, SHAPE(3, 4));
        gt_tensor *b = gt_tensor_full(ctx, cast ? GT_DTYPE_F32 : GT_DTYPE_F16, SHAPE(3), 1); /* cast: as autocast does */
        CHECK_OK(gt_tensor_set_requires_grad(b, 1));
        gt_tensor *y = gt_linear_activation(x, w, gt_cast(b, GT_DTYPE_F16), relu ? GT_ACTIVATION_RELU : GT_ACTIVATION_NONE);
        gt_tensor *dy = gt_tensor_full(ctx, GT_DTYPE_F16, SHAPE(4096, 3), 20);
        CHECK_OK(gt_backward_from(&y, &dy, 1, 1));
        CHECK_EQ_INT(gt_tensor_dtype(gt_tensor_grad(b)), GT_DTYPE_F32);
        CHECK_VALUES(gt_tensor_grad(b), 81920, 81920, 81920); /* beyond f16 */
        CHECK_OK(gt_backward_from(&y, &dy, 1, 0));
        CHECK_VALUES(gt_tensor_grad(b), 163840, 163840, 163840);
    }
    gt_scope_end(ctx);
}

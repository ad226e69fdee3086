/* What depends on how images lie in memory: pooling, against its definition, and copies between layouts. */
#include "unit/ops_util.h"

#include "core/core.h"

#include <stdlib.h>

/* --- pooling by its definition ------------------------------------------------------------------------------------------------------- */

typedef enum pool_kind { MAXIMUM, AVERAGE, AVERAGE_INSIDE, ADAPTIVE } pool_kind;

typedef struct pooling {
    pool_kind kind;
    int64_t kernel[2], stride[2], padding[2]; /* ADAPTIVE: kernel is the result's size, 0: half of the image, rounded up */
} pooling;

typedef enum pool_values { PLAIN, WITH_NAN, WITH_INFINITY } pool_values;

/* Images by rows: [n,c,h,w]. */
typedef struct pooled {
    int64_t x_shape[4], y_shape[4];
    int64_t x_count, y_count;
    double *x, *dy, *y, *dx;
    int64_t *place;
} pooled;

static int64_t count_of(const int64_t *shape) { return shape[0] * shape[1] * shape[2] * shape[3]; }

static void *array(int64_t count, size_t bytes) {
    void *data = calloc((size_t)count + 1, bytes);
    CHECK(data != NULL);
    return data;
}

static void pooled_free(pooled *p) {
    free(p->x);
    free(p->dy);
    free(p->y);
    free(p->dx);
    free(p->place);
}

/* Multiples of 1/8 in [-1, 1]: sums of a few are exact in every dtype. */
static void fill(double *values, int64_t count, uint32_t seed, pool_values what) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (double)((int)(seed >> 16) % 17 - 8) / 8;
        if (what != PLAIN && (seed >> 8) % 3 == 0) values[i] = what == WITH_NAN ? NAN : -INFINITY;
    }
}

static pooled pool_by_definition(const pooling *op, const int64_t *shape, pool_values values, uint32_t seed) {
    pooled p;
    int64_t size[2];
    memcpy(p.x_shape, shape, sizeof p.x_shape);
    memcpy(p.y_shape, shape, sizeof p.y_shape);
    for (int a = 0; a < 2; a++) {
        size[a] = op->kernel[a] ? op->kernel[a] : (shape[2 + a] + 1) / 2;
        p.y_shape[2 + a] = op->kind == ADAPTIVE ? size[a] : (shape[2 + a] + 2 * op->padding[a] - op->kernel[a]) / op->stride[a] + 1;
    }
    p.x_count = count_of(p.x_shape);
    p.y_count = count_of(p.y_shape);
    p.x = array(p.x_count, sizeof *p.x);
    p.dx = array(p.x_count, sizeof *p.dx);
    p.y = array(p.y_count, sizeof *p.y);
    p.dy = array(p.y_count, sizeof *p.dy);
    p.place = array(p.y_count, sizeof *p.place);
    fill(p.x, p.x_count, seed, values);
    fill(p.dy, p.y_count, seed + 1, PLAIN);
    int64_t in[2] = {shape[2], shape[3]}, out[2] = {p.y_shape[2], p.y_shape[3]};
    for (int64_t i = 0; i < p.y_count; i++) {
        int64_t at[2] = {i / out[1] % out[0], i % out[1]}, plane = i / out[0] / out[1] * in[0] * in[1], begin[2], end[2], places = 1;
        for (int a = 0; a < 2; a++) {
            begin[a] = op->kind == ADAPTIVE ? at[a] * in[a] / out[a] : at[a] * op->stride[a] - op->padding[a];
            end[a] = op->kind == ADAPTIVE ? ((at[a] + 1) * in[a] + out[a] - 1) / out[a] : begin[a] + op->kernel[a];
            int64_t inside = (end[a] < in[a] ? end[a] : in[a]) - (begin[a] > 0 ? begin[a] : 0);
            places *= op->kind == AVERAGE ? op->kernel[a] : inside;
        }
        int64_t best = -1;
        double sum = 0;
        for (int64_t h = begin[0]; h < end[0]; h++) {
            for (int64_t w = begin[1]; w < end[1]; w++) {
                if (h < 0 || w < 0 || h >= in[0] || w >= in[1]) continue;
                int64_t from = plane + h * in[1] + w;
                double value = p.x[from];
                sum += value;
                if (best < 0 || value > p.x[best] || (isnan(value) && !isnan(p.x[best]))) {
                    best = from;
                    p.place[i] = (h - begin[0]) * op->kernel[1] + w - begin[1];
                }
                if (op->kind != MAXIMUM) p.dx[from] += p.dy[i] / (double)places;
            }
        }
        p.y[i] = op->kind == MAXIMUM ? p.x[best] : sum / (double)places;
        if (op->kind == MAXIMUM) p.dx[best] += p.dy[i];
    }
    return p;
}

/* --- images in memory ---------------------------------------------------------------------------------------------------------------- */

static int64_t channels_last_place(const int64_t *shape, int64_t i) {
    int64_t w = i % shape[3], h = i / shape[3] % shape[2], c = i / shape[3] / shape[2] % shape[1], n = i / shape[3] / shape[2] / shape[1];
    return ((n * shape[2] + h) * shape[3] + w) * shape[1] + c;
}

static gt_tensor *as_image(gt_tensor *pixels) { return CHECK_TENSOR(gt_permute(pixels, (const int32_t[]){0, 3, 1, 2})); }

/* Channels-last, its first element `offset` elements into its memory. */
static gt_tensor *image(gt_context *ctx, gt_dtype dtype, const int64_t *shape, const double *values, int64_t offset) {
    int64_t count = count_of(shape), all = count + offset;
    double *memory = array(all, sizeof *memory);
    for (int64_t i = 0; i < count; i++) memory[offset + channels_last_place(shape, i)] = values[i];
    gt_tensor *flat = gt_slice(make(ctx, dtype, 1, &all, memory), 0, offset, all, 1);
    free(memory);
    return as_image(CHECK_TENSOR(gt_reshape(flat, 4, (const int64_t[]){shape[0], shape[2], shape[3], shape[1]})));
}

/* The caller frees. By rows, whatever the layout. */
static double *values_of(gt_tensor *x) {
    double *values = array(gt_tensor_numel(CHECK_TENSOR(x)), sizeof *values);
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(x, GT_DTYPE_F64)), values, (size_t)gt_tensor_numel(x) * sizeof *values));
    return values;
}

static void check_values(const char *what, const pooling *op, gt_tensor *x, const double *want, double tolerance) {
    double *got = values_of(x);
    char text[64];
    for (int64_t i = 0; i < gt_tensor_numel(x); i++) {
        if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i])) || fabs(got[i] - want[i]) <= tolerance) continue;
        FAIL("%s of kind %d, window %lld x %lld, %s %s: element %lld is %g, should be %g", what, (int)op->kind, (long long)op->kernel[0],
             (long long)op->kernel[1], gt_dtype_name(gt_tensor_dtype(x)), gt__meta_text(text, sizeof text, &x->meta), (long long)i, got[i],
             want[i]);
    }
    free(got);
}

static void check_places(const pooling *op, gt_tensor *index, const int64_t *want) {
    double *places = array(gt_tensor_numel(index), sizeof *places);
    for (int64_t i = 0; i < gt_tensor_numel(index); i++) places[i] = (double)want[i];
    check_values("place", op, index, places, 0);
    free(places);
}

static gt__attrs attributes(const pooling *op, const pooled *p) {
    gt__attrs attr;
    memset(&attr, 0, sizeof attr);
    for (int a = 0; a < 2; a++) {
        attr.pool.kernel[a] = op->kind == ADAPTIVE ? p->y_shape[2 + a] : op->kernel[a];
        attr.pool.stride[a] = op->stride[a];
        attr.pool.padding[a] = op->padding[a];
    }
    memcpy(attr.pool.shape, p->x_shape, sizeof attr.pool.shape);
    attr.pool.count_include_pad = op->kind == AVERAGE;
    return attr;
}

static const pooling poolings[] = {
    {MAXIMUM, {2, 2}, {2, 2}, {0, 0}},  {MAXIMUM, {3, 3}, {2, 2}, {1, 1}},        {MAXIMUM, {3, 3}, {1, 1}, {1, 1}},
    {MAXIMUM, {3, 2}, {2, 2}, {1, 1}},  {MAXIMUM, {2, 2}, {2, 1}, {0, 1}},        {AVERAGE, {2, 2}, {2, 2}, {0, 0}},
    {AVERAGE, {3, 3}, {2, 2}, {1, 1}},  {AVERAGE_INSIDE, {3, 3}, {2, 2}, {1, 1}}, {AVERAGE_INSIDE, {2, 3}, {1, 2}, {1, 1}},
    {ADAPTIVE, {0, 0}, {0, 0}, {0, 0}}, {ADAPTIVE, {1, 1}, {0, 0}, {0, 0}},       {ADAPTIVE, {4, 3}, {0, 0}, {0, 0}},
};
enum { POOLINGS = sizeof poolings / sizeof *poolings };

static const int64_t image_sizes[][2] = {{1, 1}, {2, 3}, {1, 6}, {9, 1}, {5, 7}, {8, 6}, {13, 12}};
static const int64_t image_channels[] = {1, 5, 8, 24, 64};

static bool fits(const pooling *op, const int64_t *shape) {
    for (int a = 0; a < 2 && op->kind != ADAPTIVE; a++)
        if (op->kernel[a] > shape[2 + a] + 2 * op->padding[a]) return false;
    return true;
}

static void check_pooling(gt_context *ctx, gt_dtype dtype, const pooling *op, const int64_t *shape, pool_values values, int64_t offset) {
    static const gt__op_id forward[] = {GT__OP_MAX_POOL2D, GT__OP_AVG_POOL2D, GT__OP_AVG_POOL2D, GT__OP_ADAPTIVE_AVG_POOL2D},
                           backward[] = {GT__OP_MAX_POOL2D_BACKWARD, GT__OP_AVG_POOL2D_BACKWARD, GT__OP_AVG_POOL2D_BACKWARD,
                                         GT__OP_ADAPTIVE_AVG_POOL2D_BACKWARD};
    CHECK_OK(gt_scope_begin(ctx));
    pooled p = pool_by_definition(op, shape, values, (uint32_t)(shape[1] * 100 + shape[2] * 10 + shape[3]));
    double tolerance = op->kind == MAXIMUM ? 0 : 2 * tolerance_of(dtype);
    gt__attrs attr = attributes(op, &p);
    gt_tensor *x = image(ctx, dtype, p.x_shape, p.x, offset), *out[GT__MAX_OUT] = {NULL}, *alone[GT__MAX_OUT] = {NULL};
    CHECK_OK(gt__op_multi(forward[op->kind], &x, 1, &attr, op->kind == MAXIMUM ? 3 : 1, out));
    check_values("result", op, out[0], p.y, tolerance);
    if (op->kind == MAXIMUM) {
        check_places(op, out[1], p.place);
        CHECK_OK(gt__op_multi(forward[op->kind], &x, 1, &attr, 1, alone));
        check_values("result alone", op, alone[0], p.y, tolerance);
    }
    gt_tensor *in[2] = {image(ctx, dtype, p.y_shape, p.dy, offset), out[1]};
    check_values("gradient", op, CHECK_TENSOR(gt__op(backward[op->kind], in, op->kind == MAXIMUM ? 2 : 1, &attr)), p.dx, tolerance);
    pooled_free(&p);
    CHECK_OK(gt_scope_end(ctx));
}

static void check_poolings(test_case *t, gt_dtype dtype) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_no_grad_begin(ctx));
    for (int k = 0; k < POOLINGS; k++)
        for (size_t s = 0; s < sizeof image_sizes / sizeof *image_sizes; s++)
            for (size_t c = 0; c < sizeof image_channels / sizeof *image_channels; c++) {
                const int64_t shape[4] = {2, image_channels[c], image_sizes[s][0], image_sizes[s][1]};
                if (!fits(&poolings[k], shape)) continue;
                check_pooling(ctx, dtype, &poolings[k], shape, PLAIN, 0);
                check_pooling(ctx, dtype, &poolings[k], shape, PLAIN, 1);
                for (int v = WITH_NAN; v <= WITH_INFINITY && poolings[k].kind == MAXIMUM; v++)
                    check_pooling(ctx, dtype, &poolings[k], shape, (pool_values)v, 0);
            }
    CHECK_OK(gt_no_grad_end(ctx));
}

TEST_DEVICES(unit, pooling_is_as_defined_in_f32) { check_poolings(t, GT_DTYPE_F32); }
TEST_DEVICES(unit, pooling_is_as_defined_in_f16) { check_poolings(t, GT_DTYPE_F16); }
TEST_DEVICES(unit, pooling_is_as_defined_in_bf16) { check_poolings(t, GT_DTYPE_BF16); }
TEST_DEVICES(unit, pooling_is_as_defined_in_f64) { check_poolings(t, GT_DTYPE_F64); }

/* --- results of max pooling in other layouts ----------------------------------------------------------------------------------------- */

enum { ROWS, ROWS_APART, PIXELS_APART, PIXELS_APART_ODD, LAYOUTS };
static const double untouched = 7; /* no result is that */

/* An image of `shape` inside of *memory, all of which is `untouched`. */
static gt_tensor *blank(gt_context *ctx, gt_dtype dtype, const int64_t *s, int layout, gt_tensor **memory) {
    int64_t gap = layout == PIXELS_APART ? 16 : 3;
    if (layout >= PIXELS_APART) {
        *memory = CHECK_TENSOR(gt_tensor_full(ctx, dtype, SHAPE(s[0], s[2], s[3], s[1] + gap), untouched));
        return as_image(CHECK_TENSOR(gt_slice(*memory, 3, 0, s[1], 1)));
    }
    *memory = CHECK_TENSOR(gt_tensor_full(ctx, dtype, SHAPE(s[0], s[1], s[2], layout == ROWS ? s[3] : 2 * s[3] + 1), untouched));
    return layout == ROWS ? *memory : CHECK_TENSOR(gt_slice(*memory, 3, 1, 2 * s[3] + 1, 2));
}

static void run_kernel(const gt__call *call) {
    int32_t previous = gt__enter(call->ctx);
    gt_status status = call->ctx->backend->kernels[call->op](call->ctx->device, call);
    gt__leave(call->ctx, previous);
    CHECK_OK(status);
}

static void check_layout(gt_context *ctx, gt_dtype dtype, const pooling *op, const int64_t *shape, int layout, pool_values values) {
    CHECK_OK(gt_scope_begin(ctx));
    pooled p = pool_by_definition(op, shape, values, (uint32_t)(shape[1] + shape[2] * shape[3]));
    gt_tensor *memory, *x = image(ctx, dtype, p.x_shape, p.x, 0), *y = blank(ctx, dtype, p.y_shape, layout, &memory);
    gt_tensor *index = CHECK_TENSOR(gt_channels_last(gt_tensor_zeros(ctx, GT_DTYPE_U8, 4, p.y_shape)));
    gt__call call = {.ctx = ctx, .in = &x, .n_in = 1, .n_out = 2, .out = {y, index}, .attr = attributes(op, &p), .op = GT__OP_MAX_POOL2D};
    run_kernel(&call);
    check_values("result", op, y, p.y, 0);
    check_places(op, index, p.place);
    double *all = values_of(memory);
    int64_t left = 0;
    for (int64_t i = 0; i < gt_tensor_numel(memory); i++) left += all[i] == untouched;
    CHECK_EQ_INT(left, gt_tensor_numel(memory) - p.y_count);
    free(all);

    gt_tensor *dy = blank(ctx, dtype, p.y_shape, layout, &memory);
    CHECK_OK(gt_tensor_copy(dy, image(ctx, dtype, p.y_shape, p.dy, 0)));
    gt_tensor *in[2] = {dy, index}, *dx = CHECK_TENSOR(gt_channels_last(gt_tensor_full(ctx, dtype, 4, p.x_shape, untouched)));
    gt__call gradient = {.ctx = ctx, .in = in, .n_in = 2, .n_out = 1, .out = {dx}, .attr = call.attr, .op = GT__OP_MAX_POOL2D_BACKWARD};
    run_kernel(&gradient);
    check_values("gradient", op, dx, p.dx, 0);
    pooled_free(&p);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, max_pool2d_kernels_take_results_of_any_strides) {
    static const int64_t shapes[][4] = {{3, 64, 24, 24}, {2, 16, 7, 5}, {1, 24, 1, 1}, {2, 8, 9, 8},
                                        {2, 5, 6, 7},    {1, 1, 5, 4},  {5, 40, 2, 3}};
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_no_grad_begin(ctx));
    EACH_FLOAT(d)
    for (int k = 0; k < POOLINGS; k++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int layout = 0; layout < LAYOUTS; layout++)
                if (poolings[k].kind == MAXIMUM && fits(&poolings[k], shapes[s]))
                    for (int v = PLAIN; v <= WITH_INFINITY; v++) check_layout(ctx, *d, &poolings[k], shapes[s], layout, (pool_values)v);
    CHECK_OK(gt_no_grad_end(ctx));
}

/* --- max pooling's gradient with relu's ---------------------------------------------------------------------------------------------- */

enum { CHANNELS_LAST = LAYOUTS };

static gt_tensor *count_equal(gt_tensor *a, gt_tensor *b) { return gt_sum(gt_cast(gt_equal(a, b), GT_DTYPE_F64), NULL, 0, 0); }

static gt_tensor *laid_out(gt_context *ctx, gt_dtype dtype, const int64_t *shape, const double *values, int layout) {
    gt_tensor *memory, *from = image(ctx, dtype, shape, values, 0);
    if (layout == CHANNELS_LAST) return from;
    gt_tensor *to = blank(ctx, dtype, shape, layout, &memory);
    CHECK_OK(gt_tensor_copy(to, from));
    return to;
}

/* p->dx of the masked gradient, and its sums. */
static void relu_by_definition(const pooling *op, pooled *p, const double *y, double *db) {
    const int64_t *in = p->x_shape, *out = p->y_shape;
    memset(p->dx, 0, (size_t)p->x_count * sizeof *p->dx);
    memset(db, 0, (size_t)in[1] * sizeof *db);
    for (int64_t i = 0; i < p->y_count; i++) {
        double dz = isnan(y[i]) ? NAN : y[i] > 0 ? p->dy[i] : 0;
        int64_t plane = i / (out[2] * out[3]), h = i / out[3] % out[2] * op->stride[0] - op->padding[0] + p->place[i] / op->kernel[1],
                w = i % out[3] * op->stride[1] - op->padding[1] + p->place[i] % op->kernel[1];
        p->dx[(plane * in[2] + h) * in[3] + w] += dz;
        db[plane % in[1]] += dz;
    }
}

static void check_relu(gt_context *ctx, gt_dtype dtype, const pooling *op, const int64_t *shape, int dy_layout, int y_layout, bool nan) {
    CHECK_OK(gt_scope_begin(ctx));
    pooled p = pool_by_definition(op, shape, PLAIN, (uint32_t)(shape[1] + shape[2] * shape[3]));
    double *y = array(p.y_count, sizeof *y), *want = array(shape[1], sizeof *want);
    fill(y, p.y_count, 77, nan ? WITH_NAN : PLAIN);
    relu_by_definition(op, &p, y, want);
    gt__attrs attr = attributes(op, &p);
    gt_tensor *x = image(ctx, dtype, p.x_shape, p.x, 0), *pooled_out[GT__MAX_OUT] = {NULL};
    CHECK_OK(gt__op_multi(GT__OP_MAX_POOL2D, &x, 1, &attr, 3, pooled_out));
    gt_tensor *in[3] = {laid_out(ctx, dtype, p.y_shape, p.dy, dy_layout), pooled_out[1], laid_out(ctx, dtype, p.y_shape, y, y_layout)};
    for (int wants_sum = 0; wants_sum < 2; wants_sum++) {
        gt_tensor *dx = CHECK_TENSOR(gt_channels_last(gt_tensor_full(ctx, dtype, 4, p.x_shape, untouched)));
        gt_tensor *db = wants_sum ? CHECK_TENSOR(gt_tensor_full(ctx, gt__dtype_accumulate(dtype), 1, &shape[1], untouched)) : NULL;
        gt__call call = {.ctx = ctx, .in = in, .n_in = 3, .n_out = 2, .out = {dx, db}, .attr = attr, .op = GT__OP_MAX_POOL2D_RELU_BACKWARD};
        run_kernel(&call);
        check_values("relu's gradient", op, dx, p.dx, 0);
        if (db) check_values("sum", op, db, want, 0);
    }
    gt_tensor *out[GT__MAX_OUT] = {NULL};
    CHECK_OK(gt__op_multi(GT__OP_MAX_POOL2D_RELU_BACKWARD, in, 3, &attr, 3, out));
    check_values("relu's gradient by the op", op, out[0], p.dx, 0);
    check_values("sum by the op", op, out[1], want, 0);
    CHECK_EQ_INT(gt_tensor_dtype(out[1]), gt__dtype_accumulate(dtype));
    free(y);
    free(want);
    pooled_free(&p);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, max_pool2d_gradient_takes_relus_and_its_sums) {
    static const int64_t shapes[][4] = {{3, 64, 8, 12}, {2, 16, 7, 5}, {1, 24, 2, 2}, {2, 8, 9, 8}, {2, 5, 6, 7},
                                        {1, 1, 5, 4},   {5, 40, 2, 3}, {2, 72, 8, 8}, {0, 8, 4, 4}, {30, 128, 4, 4}};
    static const int layouts[][2] = {
        {CHANNELS_LAST, CHANNELS_LAST}, {ROWS, ROWS}, {ROWS, CHANNELS_LAST}, {CHANNELS_LAST, ROWS}, {ROWS_APART, ROWS}};
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_no_grad_begin(ctx));
    EACH_FLOAT(d)
    for (int k = 0; k < POOLINGS; k++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
                if (poolings[k].kind == MAXIMUM && fits(&poolings[k], shapes[s]))
                    for (int nan = 0; nan < 2; nan++) check_relu(ctx, *d, &poolings[k], shapes[s], layouts[l][0], layouts[l][1], nan);
    CHECK_OK(gt_no_grad_end(ctx));
}

/* As one op after the other, also where blocks have several images each; and twice the same. */
TEST_DEVICES(unit, max_pool2d_gradient_with_relus_is_that_of_two_ops) {
    gt_context *ctx = test_context(t);
    const bool large = test_device(t) == GT_DEVICE_CUDA;
    CHECK_OK(gt_no_grad_begin(ctx));
    EACH_FLOAT(d)
    for (int rows = 0; rows < 2; rows++) {
        CHECK_OK(gt_scope_begin(ctx));
        const int64_t shape[4] = {large ? 1000 : 3, 64, 24, 24};
        gt_tensor *x = gt_channels_last(gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, shape, 0, 1), *d)), *made[GT__MAX_OUT] = {NULL};
        pooled p = {.x_count = 0};
        memcpy(p.x_shape, shape, sizeof p.x_shape);
        gt__attrs attr = attributes(&poolings[0], &p);
        CHECK_OK(gt__op_multi(GT__OP_MAX_POOL2D, &x, 1, &attr, 3, made));
        gt_tensor *dy = gt_channels_last(gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, SHAPE(shape[0], 64, 12, 12), 0, 1), *d));
        gt_tensor *masked[2] = {dy, made[0]}, *want[GT__MAX_OUT] = {NULL}, *memory;
        CHECK_OK(gt__op_multi(GT__OP_BIAS_RELU_BACKWARD, masked, 2, NULL, 3, want));
        gt_tensor *pooled_in[2] = {want[0], made[1]};
        gt_tensor *want_dx = CHECK_TENSOR(gt__op(GT__OP_MAX_POOL2D_BACKWARD, pooled_in, 2, &attr));
        gt_tensor *in[3] = {dy, made[1], made[0]};
        for (int k = 0; k < 3 && rows; k += 2) {
            gt_tensor *to = blank(ctx, *d, gt_tensor_shape(dy), ROWS, &memory);
            CHECK_OK(gt_tensor_copy(to, in[k]));
            in[k] = to;
        }
        gt_tensor *sums[2];
        for (int again = 0; again < 2; again++) {
            gt_tensor *dx = CHECK_TENSOR(gt_channels_last(gt_tensor_full(ctx, *d, 4, shape, untouched)));
            sums[again] = CHECK_TENSOR(gt_tensor_full(ctx, gt__dtype_accumulate(*d), 1, &shape[1], untouched));
            gt__call call = {
                .ctx = ctx, .in = in, .n_in = 3, .n_out = 2, .out = {dx, sums[again]}, .attr = attr, .op = GT__OP_MAX_POOL2D_RELU_BACKWARD};
            run_kernel(&call);
            CHECK_VALUES(count_equal(dx, want_dx), (double)gt_tensor_numel(dx));
        }
        CHECK_VALUES(count_equal(sums[0], sums[1]), 64);
        double *got = values_of(sums[0]), *two = values_of(want[1]);
        for (int c = 0; c < 64; c++) CHECK_NEAR(got[c], two[c], *d == GT_DTYPE_F64 ? 1e-9 : 2e-5 * sqrt((double)shape[0] * 144));
        free(got);
        free(two);
        CHECK_OK(gt_scope_end(ctx));
    }
    CHECK_OK(gt_no_grad_end(ctx));
}

/* --- large batches ------------------------------------------------------------------------------------------------------------------- */

static gt_tensor *pool_forward_backward(gt_tensor *x, const pooling *op, gt_tensor *dy, gt_tensor **y) {
    pooled p = {.x_count = 0};
    memcpy(p.x_shape, gt_tensor_shape(x), sizeof p.x_shape);
    gt__attrs attr = attributes(op, &p);
    gt_tensor *out[GT__MAX_OUT] = {NULL};
    bool max = op->kind == MAXIMUM;
    CHECK_OK(gt__op_multi(max ? GT__OP_MAX_POOL2D : GT__OP_AVG_POOL2D, &x, 1, &attr, max ? 3 : 1, out));
    *y = out[0];
    gt_tensor *in[2] = {dy ? dy : out[0], out[1]};
    return CHECK_TENSOR(gt__op(max ? GT__OP_MAX_POOL2D_BACKWARD : GT__OP_AVG_POOL2D_BACKWARD, in, max ? 2 : 1, &attr));
}

/* Large batches are computed by fewer threads an image. */
TEST_CUDA_ONLY(unit, pooling_does_not_depend_on_the_batch) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_no_grad_begin(ctx));
    EACH_FLOAT(d)
    for (int k = 0; k < POOLINGS; k++) {
        if (poolings[k].kind == ADAPTIVE) continue;
        CHECK_OK(gt_scope_begin(ctx));
        const int64_t n = *d == GT_DTYPE_F64 ? 24 : *d == GT_DTYPE_F32 ? 48 : 96, part = 5;
        gt_tensor *x = gt_channels_last(gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, SHAPE(n, 64, 37, 75), 0, 1), *d)), *y;
        gt_tensor *dx = pool_forward_backward(CHECK_TENSOR(x), &poolings[k], NULL, &y);
        for (int64_t i = 0; i < n; i += part) {
            CHECK_OK(gt_scope_begin(ctx));
            const int64_t end = i + part < n ? i + part : n;
            gt_tensor *few_y, *want_y = gt_slice(y, 0, i, end, 1);
            gt_tensor *few_dx = pool_forward_backward(CHECK_TENSOR(gt_slice(x, 0, i, end, 1)), &poolings[k], want_y, &few_y);
            CHECK_VALUES(count_equal(few_y, want_y), (double)gt_tensor_numel(few_y));
            CHECK_VALUES(count_equal(few_dx, gt_slice(dx, 0, i, end, 1)), (double)gt_tensor_numel(few_dx));
            CHECK_OK(gt_scope_end(ctx));
        }
        CHECK_OK(gt_scope_end(ctx));
    }
    CHECK_OK(gt_no_grad_end(ctx));
}

/* --- copies between layouts ---------------------------------------------------------------------------------------------------------- */

/* Whole numbers that every dtype holds. */
static double number(int64_t i) { return (double)(i * 7 % 251); }

/* x [n,c,h,w] against number(place), where place is counted in channels-last order of images with `all` channels, of which x has those from `first`. */
static void check_numbers(const char *what, gt_tensor *x, int64_t all, int64_t first) {
    double *got = values_of(x);
    const int64_t *s = gt_tensor_shape(x), full[4] = {s[0], all, s[2], s[3]};
    CHECK(gt__meta_is_row_major(&x->meta));
    for (int64_t i = 0; i < gt_tensor_numel(x); i++) {
        int64_t plane = s[2] * s[3], n = i / plane / s[1], c = i / plane % s[1];
        double want = number(channels_last_place(full, (n * all + c + first) * plane + i % plane));
        if (got[i] != want)
            FAIL("%s, %s [%lld,%lld,%lld,%lld]: element %lld is %g, should be %g", what, gt_dtype_name(gt_tensor_dtype(x)), (long long)s[0],
                 (long long)s[1], (long long)s[2], (long long)s[3], (long long)i, got[i], want);
    }
    free(got);
}

/* The same of memory that is channels-last. */
static void check_memory(const char *what, gt_tensor *x) {
    gt_tensor *pixels = CHECK_TENSOR(gt_permute(x, (const int32_t[]){0, 2, 3, 1}));
    CHECK(gt__meta_is_row_major(&pixels->meta));
    double *got = values_of(pixels);
    for (int64_t i = 0; i < gt_tensor_numel(x); i++)
        if (got[i] != number(i))
            FAIL("%s, %s: element %lld in memory is %g, should be %g", what, gt_dtype_name(gt_tensor_dtype(x)), (long long)i, got[i],
                 number(i));
    free(got);
}

static void check_copies(gt_context *ctx, gt_dtype dtype, const int64_t *s, int64_t offset) {
    CHECK_OK(gt_scope_begin(ctx));
    double *values = array(count_of(s), sizeof *values);
    for (int64_t i = 0; i < count_of(s); i++) values[i] = number(channels_last_place(s, i));
    gt_tensor *x = image(ctx, dtype, s, values, offset);
    gt_tensor *rows = CHECK_TENSOR(gt_contiguous(x));
    check_numbers("to rows", rows, s[1], 0);
    check_numbers("channels from 8", CHECK_TENSOR(gt_contiguous(gt_slice(x, 1, 8, s[1], 1))), s[1], 8);
    check_numbers("channels from 1", CHECK_TENSOR(gt_contiguous(gt_slice(x, 1, 1, s[1], 1))), s[1], 1);
    /* Into a part of something larger, at an odd place of it or not, and out of it. */
    for (int32_t axis = 1; axis <= 2; axis++) {
        gt_tensor *both = CHECK_TENSOR(gt_concat((gt_tensor *[]){x, x}, 2, axis));
        for (int half = 0; half < 2; half++) {
            gt_tensor *part = CHECK_TENSOR(gt_slice(both, axis, half * s[axis], (half + 1) * s[axis], 1));
            check_numbers("concat", gt_contiguous(part), s[1], 0);
            check_memory("out of a part", CHECK_TENSOR(gt_channels_last(part)));
        }
    }
    int64_t all = count_of(s) + offset;
    gt_tensor *flat = gt_tensor_full(ctx, dtype, 1, &all, 0), *shifted = gt_reshape(gt_slice(flat, 0, offset, all, 1), 4, s);
    CHECK_OK(gt_tensor_copy(CHECK_TENSOR(shifted), x));
    check_numbers("to rows at an offset", shifted, s[1], 0);
    check_memory("to channels-last", CHECK_TENSOR(gt_channels_last(shifted)));
    free(values);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, copies_between_layouts_move_every_element) {
    static const int64_t shapes[][4] = {{3, 64, 7, 7},  {2, 64, 12, 12}, {1, 96, 14, 14}, {2, 72, 5, 13},  {3, 130, 8, 8},
                                        {2, 17, 4, 4},  {1, 64, 1, 20},  {2, 24, 16, 9},  {70, 16, 4, 4},  {2, 512, 7, 7},
                                        {2, 200, 3, 2}, {1, 9, 40, 40},  {0, 64, 12, 12}, {300, 24, 5, 4}, {2, 65, 10, 13}};
    static const gt_dtype dtypes[] = {GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F32, GT_DTYPE_F64, GT_DTYPE_U8, GT_DTYPE_I32, GT_DTYPE_I64};
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_no_grad_begin(ctx));
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int64_t offset = 0; offset < 4; offset += offset + 1) check_copies(ctx, dtypes[d], shapes[s], offset);
    CHECK_OK(gt_no_grad_end(ctx));
}

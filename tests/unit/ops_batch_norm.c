/* Batch norm with relu and a residual in one op: what it computes, keeps and refuses. */
#include "unit/ops_util.h"

#include "core/core.h"

enum { N = 6, C = 8, H = 5, W = 3, COUNT = N * C * H * W, LEAVES = 4 };

typedef struct leaves {
    gt_tensor *x, *weight, *bias, *residual;
} leaves;

static gt_tensor *leaf(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, double phase, double shift) {
    double values[COUNT];
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; i++) n *= shape[i];
    for (int64_t i = 0; i < n; i++) values[i] = shift + sin(0.37 * (double)(i * i % 911) + phase);
    gt_tensor *t = make(ctx, dtype, ndim, shape, values);
    CHECK_OK(gt_tensor_set_requires_grad(t, 1));
    return t;
}

static leaves make_leaves(gt_context *ctx, gt_dtype dtype) {
    gt_dtype wide = dtype == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32;
    return (leaves){leaf(ctx, dtype, SHAPE(N, C, H, W), 0, 0.5), leaf(ctx, wide, SHAPE(C), 1, 0.2), leaf(ctx, wide, SHAPE(C), 2, 0.1),
                    leaf(ctx, dtype, SHAPE(N, C, H, W), 3, 0)};
}

static void read_doubles(gt_tensor *x, double *values) {
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(gt_tensor_detach(CHECK_TENSOR(x)), GT_DTYPE_F64)), values,
                            (size_t)gt_tensor_numel(x) * sizeof *values));
}

static gt_tensor *fused(const leaves *l, int residual, gt_tensor *mean, gt_tensor *var, int training) {
    return gt_batch_norm_activation(l->x, l->weight, l->bias, mean, var, residual ? l->residual : NULL, training, 0.1, 1e-5,
                                    GT_ACTIVATION_RELU);
}

static gt_tensor *unfused(const leaves *l, int residual, gt_tensor *mean, gt_tensor *var, int training) {
    gt_tensor *y = gt_batch_norm(l->x, l->weight, l->bias, mean, var, training, 0.1, 1e-5);
    return gt_relu(residual ? gt_add(y, l->residual) : y);
}

/* y, the gradients of the leaves, running mean and variance after one forward and backward; all but the statistics `n` long. */
static void run(gt_context *ctx, gt_dtype dtype, int fuse, int residual, int training, double (*out)[COUNT], double *running) {
    gt_dtype wide = dtype == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32;
    CHECK_OK(gt_scope_begin(ctx));
    leaves l = make_leaves(ctx, dtype);
    gt_tensor *mean = gt_tensor_full(ctx, wide, SHAPE(C), 0.4), *var = gt_tensor_full(ctx, wide, SHAPE(C), 0.6);
    gt_tensor *y = CHECK_TENSOR((fuse ? fused : unfused)(&l, residual, mean, var, training));
    read_doubles(y, out[0]);
    gt_tensor *dy = gt_tensor_detach(leaf(ctx, dtype, SHAPE(N, C, H, W), 5, 0.3));
    CHECK_OK(gt_backward_from(&y, &dy, 1, 0));
    gt_tensor *all[LEAVES] = {l.x, l.weight, l.bias, l.residual};
    for (int i = 0; i < LEAVES - !residual; i++) read_doubles(gt_tensor_grad(all[i]), out[1 + i]);
    read_doubles(mean, running);
    read_doubles(var, running + C);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, batch_norm_activation_computes_what_its_parts_compute) {
    static double one[1 + LEAVES][COUNT], parts[1 + LEAVES][COUNT];
    double running[2 * C], running_parts[2 * C];
    gt_context *ctx = test_context(t);
    EACH_FLOAT(d)
    for (int residual = 0; residual < 2; residual++)
        for (int training = 0; training < 2; training++) {
            run(ctx, *d, 1, residual, training, one, running);
            run(ctx, *d, 0, residual, training, parts, running_parts);
            /* Halves are rounded once and not three times. */
            int half = *d == GT_DTYPE_F16 || *d == GT_DTYPE_BF16, exact = !half || !residual;
            double near = *d == GT_DTYPE_F64 ? 1e-13 : half ? 4 * tolerance_of(*d) : 2e-6;
            for (int i = 0; i < COUNT; i++) {
                if (exact) CHECK(one[0][i] == parts[0][i]);
                CHECK_NEAR(one[0][i], parts[0][i], near);
                /* where halves decide otherwise on which side of 0 a sum lies, the gradients are other ones */
                if (half && residual && (one[0][i] > 0) != (parts[0][i] > 0)) continue;
                if (residual) CHECK(one[4][i] == parts[4][i]);
            }
            double sum = half && residual ? 0.3 : near * 40;
            for (int i = 0; i < C; i++) CHECK_NEAR(one[2][i], parts[2][i], sum);
            for (int i = 0; i < C; i++) CHECK_NEAR(one[3][i], parts[3][i], sum);
            for (int i = 0; i < COUNT && exact; i++) CHECK_NEAR(one[1][i], parts[1][i], near * 20);
            for (int i = 0; i < 2 * C; i++) CHECK(running[i] == running_parts[i]);
        }
}

static gt_tensor *count_equal(gt_tensor *a, gt_tensor *b) { return gt_sum(gt_cast(gt_equal(a, b), GT_DTYPE_F64), NULL, 0, 0); }

/* A recomputed output must not differ from the one that was dropped. */
TEST_DEVICES(unit, batch_norm_apply_gives_the_bits_of_the_forward) {
    gt_context *ctx = test_context(t);
    static const int64_t shapes[][4] = {{N, C, H, W}, {3, 5, 2, 2}, {16, 64, 14, 14}, {2, 12, 1, 1}, {70, 4, 40, 41}};
    EACH_FLOAT(d)
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int relu = 0; relu < 2; relu++)
            for (int training = 0; training < 2; training++) {
                gt_dtype wide = *d == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32;
                CHECK_OK(gt_scope_begin(ctx));
                CHECK_OK(gt_no_grad_begin(ctx));
                const int64_t channels = shapes[s][1];
                gt_tensor *x = gt_channels_last(gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, shapes[s], 30, 2), *d));
                gt_tensor *w = gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, 1, &channels, 1, 0.5), wide),
                          *b = gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, 1, &channels, 0, 1), wide);
                gt_tensor *mean = gt_tensor_full(ctx, wide, 1, &channels, 29.7), *var = gt_tensor_full(ctx, wide, 1, &channels, 3);
                gt_tensor *in[5] = {x, w, b, mean, var}, *out[GT__MAX_OUT] = {NULL}, *alone[GT__MAX_OUT] = {NULL};
                gt__attrs attr;
                memset(&attr, 0, sizeof attr);
                attr.norm.epsilon = 1e-5;
                attr.norm.momentum = 0.1;
                attr.norm.training = training;
                CHECK_OK(gt__op_multi(relu ? GT__OP_BATCH_NORM_RELU : GT__OP_BATCH_NORM, in, 5, &attr, 7, out));
                attr.norm.activation = relu ? GT_ACTIVATION_RELU : GT_ACTIVATION_NONE;
                gt_tensor *again[5] = {x, w, b, out[1], out[2]}, *y = CHECK_TENSOR(gt__op(GT__OP_BATCH_NORM_APPLY, again, 5, &attr));
                CHECK_VALUES(count_equal(y, out[0]), (double)gt_tensor_numel(x));
                /* Nor does y depend on whether somebody wants the statistics. */
                CHECK_OK(gt__op_multi(relu ? GT__OP_BATCH_NORM_RELU : GT__OP_BATCH_NORM, in, 5, &attr, 1, alone));
                CHECK(alone[1] == NULL && alone[2] == NULL);
                if (!training) CHECK_VALUES(count_equal(alone[0], out[0]), (double)gt_tensor_numel(x));
                CHECK_OK(gt_no_grad_end(ctx));
                CHECK_OK(gt_scope_end(ctx));
            }
}

static uint64_t activation_bytes(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    return stats.category_in_use[GT_MEMORY_ACTIVATION];
}

TEST_DEVICES(unit, batch_norm_with_relu_keeps_its_input_alone) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[4] = {8, 64, 32, 32}, channels = 64;
    const uint64_t image = 8 * 64 * 32 * 32 * 4, small = 16384;
    gt_tensor *w = gt_tensor_full(ctx, GT_DTYPE_F32, 1, &channels, 1), *b = gt_tensor_full(ctx, GT_DTYPE_F32, 1, &channels, 0),
              *leaf_x = gt_tensor_normal(ctx, GT_DTYPE_F32, 4, shape, 0, 1),
              *residual = gt_tensor_normal(ctx, GT_DTYPE_F32, 4, shape, 0, 1);
    gt_tensor *trained[4] = {w, b, leaf_x, residual};
    for (int i = 0; i < 4; i++) CHECK_OK(gt_tensor_set_requires_grad(trained[i], 1));
    for (int add = 0; add < 2; add++) {
        const uint64_t before = activation_bytes(ctx);
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *kept = NULL;
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *x = gt_mul_scalar(leaf_x, 2),
                  *y = CHECK_TENSOR(gt_batch_norm_activation(x, w, b, NULL, NULL, add ? gt_mul_scalar(residual, 2) : NULL, 1, 0.1, 1e-5,
                                                             GT_ACTIVATION_RELU));
        kept = gt_tensor_retain(gt_sum(y, NULL, 0, 0));
        CHECK_OK(gt_scope_end(ctx));
        const uint64_t saved = activation_bytes(ctx) - before;
        CHECK(saved >= (uint64_t)(1 + add) * image);
        CHECK(saved <= (uint64_t)(1 + add) * image + small); /* x; with a residual also y, which the next layer keeps anyway */
        CHECK_OK(gt_backward(kept));
        gt_tensor_release(kept);
        CHECK_OK(gt_scope_end(ctx));
    }
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, batch_norm_activation_gradient_of_the_residual_alone) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = F32(ctx, SHAPE(4, 1), 1, 2, 3, 4), *residual = F32(ctx, SHAPE(4, 1), 1, 0.5, -1, -1);
    CHECK_OK(gt_tensor_set_requires_grad(residual, 1));
    gt_tensor *y = gt_batch_norm_activation(x, NULL, NULL, NULL, NULL, residual, 1, 0.1, 0, GT_ACTIVATION_RELU);
    CHECK_VALUES_TOL(y, 1e-5, 0, 0.5 - 0.4472136, 0, 0.3416408);
    gt_tensor *dy = F32(ctx, SHAPE(4, 1), 1, 2, 3, 4);
    CHECK_OK(gt_backward_from(&y, &dy, 1, 0));
    CHECK_VALUES(gt_tensor_grad(residual), 0, 2, 0, 4);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, batch_norm_activation_refuses_by_name) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(4, 3)), *other = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(4, 1)),
              *half = gt_tensor_zeros(ctx, GT_DTYPE_F16, SHAPE(4, 3));
    CHECK_REFUSED(gt_batch_norm_activation(x, NULL, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5, 7), GT_BAD_ARGUMENT, "7 is not an activation");
    for (gt_activation a = GT_ACTIVATION_NONE; a <= GT_ACTIVATION_RELU; a++) {
        CHECK_REFUSED(gt_batch_norm_activation(x, NULL, NULL, NULL, NULL, other, 1, 0.1, 1e-5, a), GT_BAD_SHAPE, "the residual [4,1]");
        CHECK_REFUSED(gt_batch_norm_activation(x, NULL, NULL, NULL, NULL, half, 1, 0.1, 1e-5, a), GT_BAD_DTYPE, "the residual is f16");
    }
    CHECK_REFUSED(gt_batch_norm_activation(NULL, NULL, NULL, NULL, NULL, x, 1, 0.1, 1e-5, GT_ACTIVATION_RELU), GT_BAD_ARGUMENT, "x");
    /* Without an activation it is the sum. */
    gt_tensor *values = F32(ctx, SHAPE(2, 1), -1, 1), *ten = F32(ctx, SHAPE(2, 1), -10, 10);
    CHECK_VALUES(gt_batch_norm_activation(values, NULL, NULL, NULL, NULL, ten, 1, 0.1, 0, GT_ACTIVATION_NONE), -11, 11);
    CHECK_VALUES(gt_batch_norm_activation(values, NULL, NULL, NULL, NULL, NULL, 1, 0.1, 0, GT_ACTIVATION_NONE), -1, 1);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(contract, L2_nan_goes_through_relu_that_runs_with_batch_norm) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    EACH_FLOAT(d)
    for (int add = 0; add < 2; add++) {
        gt_dtype wide = *d == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32;
        gt_tensor *mean = MAKE(ctx, wide, SHAPE(2), 0, 0), *var = MAKE(ctx, wide, SHAPE(2), 1, 1);
        gt_tensor *x = MAKE(ctx, *d, SHAPE(3, 2), NAN, 1, -1, 2, 3, -4), *residual = MAKE(ctx, *d, SHAPE(3, 2), 0, 0, 0, NAN, 0, 0);
        CHECK_OK(gt_tensor_set_requires_grad(x, 1));
        gt_tensor *y = gt_batch_norm_activation(x, NULL, NULL, mean, var, add ? residual : NULL, 0, 0.1, 0, GT_ACTIVATION_RELU);
        CHECK_VALUES(y, NAN, 1, 0, add ? NAN : 2, 3, 0);
        gt_tensor *dy = MAKE(ctx, *d, SHAPE(3, 2), 1, 1, 1, 1, 1, 1);
        CHECK_OK(gt_backward_from(&y, &dy, 1, 0));
        CHECK_VALUES(gt_tensor_grad(x), NAN, 1, 0, add ? NAN : 1, 1, 0);
        y = gt_batch_norm_activation(x, NULL, NULL, NULL, NULL, add ? residual : NULL, 1, 0.1, 0, GT_ACTIVATION_RELU);
        double v[6];
        CHECK_OK(gt_tensor_read(gt_cast(y, GT_DTYPE_F64), v, sizeof v));
        CHECK(isnan(v[0]) && isnan(v[2]) && isnan(v[4])); /* the batch's statistics are NaN */
    }
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(contract, D4_an_empty_batch_leaves_the_statistics_with_relu_too) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *mean = F32(ctx, SHAPE(2), 0.5, -1), *var = F32(ctx, SHAPE(2), 2, 3), *w = F32(ctx, SHAPE(2), 1, 1),
              *b = F32(ctx, SHAPE(2), 0, 0);
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    CHECK_OK(gt_tensor_set_requires_grad(b, 1));
    for (int add = 0; add < 2; add++) {
        gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(0, 2, 3, 3)),
                  *residual = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(0, 2, 3, 3));
        gt_tensor *y = CHECK_TENSOR(gt_batch_norm_activation(x, w, b, mean, var, add ? residual : NULL, 1, 0.1, 1e-5, GT_ACTIVATION_RELU));
        CHECK_EQ_INT(gt_tensor_numel(y), 0);
        CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
        CHECK_VALUES(gt_tensor_grad(w), 0, 0);
        CHECK_VALUES(gt_tensor_grad(b), 0, 0);
    }
    CHECK_VALUES(mean, 0.5, -1);
    CHECK_VALUES(var, 2, 3);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(contract, D5_one_value_a_channel_is_BAD_BATCH_with_relu_too) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(1, 3, 1, 1)), *mean = F32(ctx, SHAPE(1), 0), *var = F32(ctx, SHAPE(1), 1);
    CHECK_REFUSED(gt_batch_norm_activation(x, NULL, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5, GT_ACTIVATION_RELU), GT_BAD_BATCH, "[1,3,1,1]");
    CHECK_REFUSED(gt_batch_norm_activation(x, NULL, NULL, NULL, NULL, x, 1, 0.1, 1e-5, GT_ACTIVATION_RELU), GT_BAD_BATCH, "[1,3,1,1]");
    x = F32(ctx, SHAPE(4, 1, 1, 1), 1, 2, 3, 4);
    CHECK_VALUES_TOL(gt_batch_norm_activation(x, NULL, NULL, mean, var, NULL, 1, 0.1, 1e-5, GT_ACTIVATION_RELU), 1e-6, 0, 0, 0.447212,
                     1.341635);
    CHECK_VALUES_TOL(mean, 1e-6, 0.25);
    CHECK_VALUES_TOL(var, 1e-6, 1.0666667);
    CHECK_OK(gt_scope_end(ctx));
}

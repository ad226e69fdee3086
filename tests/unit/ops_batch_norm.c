/* Batch norm with relu and a residual in one op: what it computes, keeps and refuses. */
#include "unit/ops_util.h"

#include "core/core.h"
#include "core/op_cost.h"

#include <stdlib.h>

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

/* ---- the gradient as a sum of two ----------------------------------------------------------------------------------------------------------- */

/* Multiples of 1/8 from -8 to 8: halves hold them and their sums. */
static gt_tensor *eighths(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, int seed) {
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; i++) n *= shape[i];
    double *values = malloc((size_t)(n + 1) * sizeof *values);
    CHECK(values != NULL);
    for (int64_t i = 0; i < n; i++) values[i] = (double)((i * i % 9973 * 31 + i * seed) % 129 - 64) / 8;
    gt_tensor *t = make(ctx, dtype, ndim, shape, values);
    free(values);
    return t;
}

/* The same elements, where nothing is aligned. */
static gt_tensor *moved_by_one(gt_tensor *x) {
    const int64_t n = gt_tensor_numel(x), all = n + 1;
    gt_tensor *room = CHECK_TENSOR(gt_tensor_zeros(gt_tensor_context(x), gt_tensor_dtype(x), 1, &all)),
              *view = gt_slice(room, 0, 1, all, 1);
    view = CHECK_TENSOR(gt_reshape(view, gt_tensor_ndim(x), gt_tensor_shape(x)));
    CHECK_OK(gt_tensor_copy(view, x));
    return view;
}

/* x, its statistics, and what else a gradient of batch norm takes. */
typedef struct norm_inputs {
    gt_tensor *x, *weight, *bias, *y, *mean, *rstd;
    gt__attrs attr;
} norm_inputs;

static const gt__op_id norm_forward[3] = {GT__OP_BATCH_NORM, GT__OP_BATCH_NORM_RELU, GT__OP_BATCH_NORM_ADD_RELU},
                       norm_gradient[3] = {GT__OP_BATCH_NORM_BACKWARD, GT__OP_BATCH_NORM_RELU_BACKWARD,
                                           GT__OP_BATCH_NORM_ADD_RELU_BACKWARD};

static norm_inputs norm_inputs_of(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, int op, int training) {
    gt_dtype wide = dtype == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32;
    norm_inputs n;
    memset(&n, 0, sizeof n);
    n.attr.norm.epsilon = 1e-5;
    n.attr.norm.training = training;
    n.x = gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, ndim, shape, 1, 2), dtype);
    if (ndim == 4) n.x = gt_channels_last(n.x);
    n.weight = gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, 1, shape + 1, 1, 0.5), wide);
    n.bias = gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, 1, shape + 1, 0, 1), wide);
    gt_tensor *in[6] = {n.x,
                        n.weight,
                        n.bias,
                        gt_tensor_full(ctx, wide, 1, shape + 1, 0.9),
                        gt_tensor_full(ctx, wide, 1, shape + 1, 3),
                        gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, ndim, shape, 0, 1), dtype)},
              *out[GT__MAX_OUT] = {NULL};
    CHECK_OK(gt__op_multi(norm_forward[op], in, op == 2 ? 6 : 5, &n.attr, 7, out));
    n.y = out[0];
    n.mean = out[1];
    n.rstd = out[2];
    return n;
}

static gt_status norm_gradient_of(const norm_inputs *n, int op, gt_tensor *dy, gt_tensor *dy2, uint32_t want, gt_tensor **out) {
    gt_tensor *plain[6] = {dy, n->x, n->weight, n->mean, n->rstd, dy2},
              *masked[7] = {dy, n->x, n->weight, op == 1 ? n->bias : n->y, n->mean, n->rstd, dy2};
    int32_t count = (op == 0 ? 5 : 6) + (dy2 != NULL);
    for (int k = 0; k < GT__MAX_OUT; k++) out[k] = NULL;
    return gt__op_multi(norm_gradient[op], op == 0 ? plain : masked, count, &n->attr, want, out);
}

/* To the bit on the CPU; a GPU's kernel for two gradients may cut the rows otherwise, and so sum them in another order. */
static void check_same(gt_tensor *a, gt_tensor *b) {
    static const double tolerance[] = {[GT_DTYPE_F32] = 1e-5, [GT_DTYPE_F64] = 1e-13, [GT_DTYPE_F16] = 2e-3, [GT_DTYPE_BF16] = 2e-2};
    if (gt_context_device(gt_tensor_context(a)) == GT_DEVICE_CPU || gt_tensor_numel(a) == 0) {
        CHECK_VALUES(count_equal(a, b), (double)gt_tensor_numel(b));
        return;
    }
    double difference, size;
    CHECK_OK(gt_tensor_item(gt_max(gt_abs(gt_sub(gt_cast(a, GT_DTYPE_F64), gt_cast(b, GT_DTYPE_F64))), NULL, 0, 0), &difference));
    CHECK_OK(gt_tensor_item(gt_max(gt_abs(gt_cast(b, GT_DTYPE_F64)), NULL, 0, 0), &size));
    CHECK(difference <= tolerance[gt_tensor_dtype(a)] * size);
}

/* Where the sum of the gradients is a number of their dtype; want: which results. */
static void check_two_gradients(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, int op, int training, uint32_t want,
                                int unaligned) {
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_no_grad_begin(ctx));
    norm_inputs n = norm_inputs_of(ctx, dtype, ndim, shape, op, training);
    /* The first lies as the kernels want it, the second does not if it has four axes. */
    gt_tensor *dy = eighths(ctx, dtype, ndim, shape, 3), *dy2 = eighths(ctx, dtype, ndim, shape, 5), *sum = CHECK_TENSOR(gt_add(dy, dy2));
    if (ndim == 4) dy = gt_channels_last(dy);
    if (unaligned) dy2 = moved_by_one(dy2);
    gt_tensor *both[GT__MAX_OUT], *one[GT__MAX_OUT], *first[GT__MAX_OUT];
    CHECK_OK(norm_gradient_of(&n, op, dy, dy2, want, both));
    CHECK_OK(norm_gradient_of(&n, op, sum, NULL, want, one));
    CHECK_OK(norm_gradient_of(&n, op, dy, NULL, want, first));
    for (int k = 0; k < GT__MAX_OUT; k++) {
        CHECK((both[k] != NULL) == (want >> k & 1));
        if (both[k] == NULL) continue;
        check_same(both[k], one[k]);
        double same;
        CHECK_OK(gt_tensor_item(count_equal(both[k], first[k]), &same));
        if (gt_tensor_numel(n.x) > 0) CHECK(same < (double)gt_tensor_numel(one[k])); /* the second counts */
    }
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_OK(gt_scope_end(ctx));
}

/* `all`: also with the statistics of an evaluation, and with some of the results alone. */
static void check_all_gradients(gt_context *ctx, int all) {
    static const struct {
        int32_t ndim;
        int64_t shape[4];
        int unaligned;
    } cases[] = {{4, {6, 8, 5, 3}, 0},   {4, {3, 5, 2, 2}, 0}, {4, {4, 64, 14, 14}, 0}, {4, {2, 12, 1, 1}, 0}, {4, {9, 4, 40, 41}, 0},
                 {4, {2, 132, 5, 7}, 0}, {2, {130, 7}, 0},     {2, {700, 8}, 0},        {2, {700, 8}, 1},      {4, {0, 8, 3, 3}, 0}};
    static const uint32_t wants[] = {15, 7, 1, 6, 8, 9, 12};
    for (int op = 0; op < 3; op++) {
        EACH_FLOAT(d)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            for (int training = !all; training < 2; training++)
                for (size_t w = op < 2; w < (!all || cases[c].shape[0] == 9 ? 1u + (op < 2) : op < 2 ? 4u : 7u); w++)
                    check_two_gradients(ctx, *d, cases[c].ndim, cases[c].shape, op, training, wants[w], cases[c].unaligned);
    }
}

TEST_DEVICES(unit, batch_norm_gradient_of_two_is_that_of_their_sum) { check_all_gradients(test_context(t), 1); }

TEST_DEVICES(unit, batch_norm_gradient_of_two_needs_no_scratch_memory) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.workspace_limit = 0;
    options.deterministic = 1;
    check_all_gradients(test_context_with(t, &options), 0);
}

/* 1024 and 1/4 are halves, and their sum is not. */
TEST_DEVICES(unit, batch_norm_gradient_of_two_does_not_round_their_sum) {
    gt_context *ctx = test_context(t);
    enum { ROWS = 16 };
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_no_grad_begin(ctx));
    static const int64_t channels[] = {8, 3};
    EACH_FLOAT(d)
    for (int op = 0; op < 3; op++)
        for (int c = 0; c < 2; c++) {
            const int64_t shape[2] = {ROWS, channels[c]};
            norm_inputs n = norm_inputs_of(ctx, *d, 2, shape, op, 0);
            /* Where relu lets all through. */
            n.bias = gt_tensor_full(ctx, gt_tensor_dtype(n.weight), 1, shape + 1, 100);
            n.y = gt_tensor_full(ctx, *d, 2, shape, 1);
            gt_tensor *dy = gt_tensor_full(ctx, *d, 2, shape, 1024), *dy2 = gt_tensor_full(ctx, *d, 2, shape, 0.25), *out[GT__MAX_OUT];
            CHECK_OK(norm_gradient_of(&n, op, dy, dy2, op == 2 ? 15 : 7, out));
            gt_tensor *want = gt_tensor_full(ctx, gt_tensor_dtype(n.weight), 1, shape + 1, ROWS * 1024.25);
            CHECK_VALUES(count_equal(out[2], want), (double)channels[c]);
            int half = *d == GT_DTYPE_F16 || *d == GT_DTYPE_BF16;
            gt_tensor *residual = gt_tensor_full(ctx, *d, 2, shape, half ? 1024 : 1024.25);
            if (op == 2) CHECK_VALUES(count_equal(out[3], residual), (double)(ROWS * channels[c]));
        }
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(contract, L2_nan_in_either_gradient_goes_where_relu_lets_it) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_no_grad_begin(ctx));
    EACH_FLOAT(d)
    for (int second = 0; second < 2; second++) {
        norm_inputs n = norm_inputs_of(ctx, *d, 2, (const int64_t[]){4, 2}, 2, 0);
        gt_tensor *nans = MAKE(ctx, *d, SHAPE(4, 2), NAN, NAN, 1, 1, 1, 1, 1, 1), *ones = gt_tensor_full(ctx, *d, SHAPE(4, 2), 1);
        gt_tensor *out[GT__MAX_OUT];
        n.y = MAKE(ctx, *d, SHAPE(4, 2), 1, 0, 2, -1, NAN, 0, 3, 4);
        CHECK_OK(norm_gradient_of(&n, 2, second ? ones : nans, second ? nans : ones, 15, out));
        CHECK_VALUES(out[3], NAN, 0, 2, 0, NAN, 0, 2, 2);
        double dx[8], db[2];
        CHECK_OK(gt_tensor_read(gt_cast(out[0], GT_DTYPE_F64), dx, sizeof dx));
        CHECK_OK(gt_tensor_read(gt_cast(out[2], GT_DTYPE_F64), db, sizeof db));
        CHECK(isnan(dx[0]) && dx[1] == 0 && isnan(dx[4]) && dx[5] == 0 && isnan(db[0]) && db[1] == 2);
    }
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, batch_norm_gradient_of_two_refuses_by_name) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_no_grad_begin(ctx));
    const int64_t shape[2] = {6, 4};
    for (int op = 0; op < 3; op++) {
        norm_inputs n = norm_inputs_of(ctx, GT_DTYPE_F32, 2, shape, op, 1);
        gt_tensor *dy = gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, shape), *out[GT__MAX_OUT];
        CHECK_STATUS(norm_gradient_of(&n, op, dy, gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(6, 1)), 7, out), GT_BAD_SHAPE);
        CHECK_ERROR_HAS("the second gradient [6,1]");
        CHECK_STATUS(norm_gradient_of(&n, op, dy, gt_tensor_zeros(ctx, GT_DTYPE_F16, 2, shape), 7, out), GT_BAD_DTYPE);
        CHECK_ERROR_HAS("the second gradient is f16");
        gt_clear_error();
    }
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, batch_norm_gradient_of_two_costs_a_sum_more) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_no_grad_begin(ctx));
    const int64_t shape[2] = {6, 4};
    for (int op = 0; op < 3; op++) {
        norm_inputs n = norm_inputs_of(ctx, GT_DTYPE_F32, 2, shape, op, 1);
        gt_tensor *dy = gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, shape), *in[7] = {dy, n.x, n.weight, n.bias, n.mean, n.rstd, NULL};
        const int32_t second = op == 0 ? 5 : 6;
        in[second] = NULL;
        gt__call call = {.ctx = ctx, .in = in, .n_in = second + 1, .n_out = 1, .out = {dy}, .op = norm_gradient[op]};
        gt__cost one, two;
        gt__op_cost(&call, &one);
        in[second] = dy;
        gt__op_cost(&call, &two);
        CHECK_EQ_INT(two.flops - one.flops, 24);
        CHECK_EQ_INT(two.bytes - one.bytes, 24 * sizeof(float));
    }
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_OK(gt_scope_end(ctx));
}

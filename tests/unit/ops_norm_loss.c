/* Normalisation, softmax, losses, embedding. */
#include "unit/ops_util.h"

TEST_DEVICES(unit, batch_norm_uses_and_moves_the_running_statistics) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_dtype wide = *d == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32;
        gt_tensor *x = MAKE(ctx, *d, SHAPE(2, 2), 0, 1, 2, 5), *mean = MAKE(ctx, wide, SHAPE(2), 0, 0),
                  *var = MAKE(ctx, wide, SHAPE(2), 1, 1);
        gt_tensor *w = MAKE(ctx, wide, SHAPE(2), 2, 1), *b = MAKE(ctx, wide, SHAPE(2), 10, 0);
        double tol = *d == GT_DTYPE_F64 || *d == GT_DTYPE_F32 ? 2e-5 : 4e-3;
        CHECK_VALUES_TOL(gt_batch_norm(x, w, b, mean, var, 1, 0.1, 0), tol, 8, -1, 12, 1);
        CHECK_VALUES_TOL(mean, 1e-6, 0.1, 0.3);
        CHECK_VALUES_TOL(var, 1e-6, 0.9 + 0.2, 0.9 + 0.8); /* unbiased: 2 and 8 */
        CHECK_OK(gt_tensor_copy(mean, MAKE(ctx, wide, SHAPE(2), 1, 0)));
        CHECK_OK(gt_tensor_fill(var, 4));
        CHECK_VALUES_TOL(gt_batch_norm(x, NULL, NULL, mean, var, 0, 0.1, 0), tol, -0.5, 0.5, 0.5, 2.5);
        CHECK_VALUES(mean, 1, 0); /* not moved */
        CHECK_VALUES(var, 4, 4);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, batch_norm_refuses_by_name_and_number) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F16, SHAPE(4, 3)), *half = gt_tensor_zeros(ctx, GT_DTYPE_F16, SHAPE(3)),
              *w = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(3));
    gt_tensor *v = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(3)), *two = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2)),
              *strided = gt_slice(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(6)), 0, 0, 6, 2);
    CHECK_REFUSED(gt_batch_norm(x, half, half, NULL, NULL, 1, 0.1, 1e-5), GT_BAD_DTYPE, "weight is f16, but must be f32");
    CHECK_REFUSED(gt_batch_norm(x, w, NULL, NULL, NULL, 1, 0.1, 1e-5), GT_BAD_ARGUMENT, "weight and bias");
    CHECK_REFUSED(gt_batch_norm(x, two, two, NULL, NULL, 1, 0.1, 1e-5), GT_BAD_SHAPE, "weight is [2], but must be [3]");
    CHECK_REFUSED(gt_batch_norm(x, NULL, NULL, w, NULL, 1, 0.1, 1e-5), GT_BAD_ARGUMENT, "running_mean and running_var");
    CHECK_REFUSED(gt_batch_norm(x, NULL, NULL, NULL, NULL, 0, 0.1, 1e-5), GT_BAD_ARGUMENT, "needed when not training");
    CHECK_REFUSED(gt_batch_norm(x, NULL, NULL, strided, w, 1, 0.1, 1e-5), GT_BAD_ARGUMENT, "contiguous");
    CHECK_REFUSED(gt_batch_norm(x, NULL, NULL, w, w, 1, 0.1, 1e-5), GT_BAD_ARGUMENT, "one tensor");
    CHECK_REFUSED(gt_batch_norm(x, NULL, NULL, w, v, 1, 2, 1e-5), GT_BAD_ARGUMENT, "momentum is 2");
    CHECK_REFUSED(gt_batch_norm(x, NULL, NULL, w, v, 1, 0.1, -1), GT_BAD_ARGUMENT, "epsilon is -1");
    CHECK_REFUSED(gt_batch_norm(gt_reshape(x, SHAPE(2, 2, 3)), NULL, NULL, NULL, NULL, 1, 0.1, 1e-5), GT_BAD_SHAPE, "[2,2,3]");
    CHECK_OK(gt_tensor_set_requires_grad(v, 1));
    CHECK_REFUSED(gt_batch_norm(x, NULL, NULL, w, v, 1, 0.1, 1e-5), GT_BAD_STATE, "must not require a gradient");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, layer_norm_gives_known_values) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2, 2, 2), 1, 3, 5, 7, 0, 0, 0, 4);
    CHECK_VALUES_TOL(gt_layer_norm(x, NULL, NULL, 1, 0), 1e-6, -1, 1, -1, 1, NAN, NAN, -1, 1);
    gt_tensor *w = F32(ctx, SHAPE(2, 2), 1, 2, 3, 4), *b = F32(ctx, SHAPE(2, 2), 0, 0, 1, 1);
    double r = 1 / sqrt(5), q = 1 / sqrt(3);
    CHECK_VALUES_TOL(gt_layer_norm(x, w, b, 2, 0), 1e-6, -3 * r, -2 * r, 1 + 3 * r, 1 + 12 * r, -q, -2 * q, 1 - 3 * q, 1 + 12 * q);
    CHECK_SHAPE(gt_layer_norm(x, w, b, 2, 0), 2, 2, 2);
    CHECK_REFUSED(gt_layer_norm(x, NULL, NULL, 4, 0), GT_BAD_ARGUMENT, "last 4 axes");
    CHECK_REFUSED(gt_layer_norm(x, NULL, NULL, 0, 0), GT_BAD_ARGUMENT, "last 0 axes");
    CHECK_REFUSED(gt_layer_norm(x, w, b, 1, 0), GT_BAD_SHAPE, "weight is [2,2]");
    CHECK_REFUSED(gt_layer_norm(x, w, gt_cast(b, GT_DTYPE_F16), 2, 0), GT_BAD_DTYPE, "bias is f16");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, softmax_survives_large_and_infinite_inputs) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(3, 3), 1000, 1000, 999, -1000, -1000, -INFINITY, 0, NAN, 0);
    double e = exp(-1), s = 2 + e;
    CHECK_VALUES_TOL(gt_softmax(x, 1), 1e-6, 1 / s, 1 / s, e / s, 0.5, 0.5, 0, NAN, NAN, NAN);
    CHECK_VALUES_TOL(gt_log_softmax(x, -1), 1e-6, -log(s), -log(s), -1 - log(s), -log(2), -log(2), -INFINITY, NAN, NAN, NAN);
    CHECK_REFUSED(gt_softmax(x, 2), GT_BAD_ARGUMENT, "axis 2");
    CHECK_REFUSED(gt_softmax(gt_cast(x, GT_DTYPE_I32), 0), GT_BAD_DTYPE, "i32");
    gt_scope_end(ctx);
}

static gt_cross_entropy_options loss_options(void) {
    gt_cross_entropy_options o;
    CHECK_OK(gt_cross_entropy_options_init(&o, sizeof o));
    CHECK_EQ_INT(o.ignore_label, -100);
    return o;
}

TEST_DEVICES(unit, cross_entropy_gives_known_values) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    const gt_dtype label_dtypes[] = {GT_DTYPE_I64, GT_DTYPE_I32, GT_DTYPE_U8};
    double l0 = log(3), l1 = log(2 + exp(2)) - 2; /* rows [0,0,0] label 1; [0,2,0] label 1 */
    EACH_FLOAT(d)
    for (int k = 0; k < 3; k++) {
        gt_tensor *x = MAKE(ctx, *d, SHAPE(2, 3), 0, 0, 0, 0, 2, 0), *y = MAKE(ctx, label_dtypes[k], SHAPE(2), 1, 1);
        gt_cross_entropy_options o = loss_options();
        CHECK_VALUES_TOL(gt_cross_entropy(x, y, NULL), 1e-6, (l0 + l1) / 2);
        CHECK_EQ_INT(gt_tensor_dtype(gt_cross_entropy(x, y, NULL)), *d == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32);
        o.reduction = GT_REDUCTION_SUM;
        CHECK_VALUES_TOL(gt_cross_entropy(x, y, &o), 1e-6, l0 + l1);
        o.reduction = GT_REDUCTION_NONE;
        CHECK_VALUES_TOL(gt_cross_entropy(x, y, &o), 1e-6, l0, l1);
        o.label_smoothing = 0.3;
        CHECK_VALUES_TOL(gt_cross_entropy(x, y, &o), 1e-6, l0, 0.7 * l1 + 0.1 * (l1 + 2 * (l1 + 2)));
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, cross_entropy_weights_the_mean_by_class) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(3, 2), 0, 0, 0, 2, 1, 1), *y = MAKE(ctx, GT_DTYPE_I64, SHAPE(3), 0, 1, -100);
    gt_cross_entropy_options o = loss_options();
    o.class_weights = F32(ctx, SHAPE(2), 1, 3);
    double l0 = log(2), l1 = log(1 + exp(-2));
    CHECK_VALUES_TOL(gt_cross_entropy(x, y, &o), 1e-6, (l0 + 3 * l1) / 4);
    o.label_smoothing = 0.2; /* row: .8 w[y] nll + .1 sum over c of w[c] nll[c] */
    double r0 = 0.8 * l0 + 0.1 * (l0 + 3 * l0), r1 = 0.8 * 3 * l1 + 0.1 * (l1 + 2 + 3 * l1);
    CHECK_VALUES_TOL(gt_cross_entropy(x, y, &o), 1e-6, (r0 + r1) / 4);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, cross_entropy_refuses_by_name_and_number) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F16, SHAPE(4, 3)), *y = gt_tensor_zeros(ctx, GT_DTYPE_I64, SHAPE(4));
    gt_cross_entropy_options o = loss_options();
    CHECK_REFUSED(gt_cross_entropy(y, y, NULL), GT_BAD_DTYPE, "the tensor of logits is i64");
    CHECK_REFUSED(gt_cross_entropy(x, x, NULL), GT_BAD_DTYPE, "the labels are f16");
    CHECK_REFUSED(gt_cross_entropy(x, gt_tensor_zeros(ctx, GT_DTYPE_I64, SHAPE(5)), NULL), GT_BAD_SHAPE,
                  "the labels are [5], but must be [4]");
    CHECK_REFUSED(gt_cross_entropy(gt_reshape(x, SHAPE(2, 2, 3)), y, NULL), GT_BAD_SHAPE, "[2,2,3]");
    CHECK_REFUSED(gt_cross_entropy(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(4, 0)), y, NULL), GT_BAD_SHAPE, "no classes");
    o.label_smoothing = 1.5;
    CHECK_REFUSED(gt_cross_entropy(x, y, &o), GT_BAD_ARGUMENT, "label_smoothing is 1.5");
    o = loss_options();
    o.reduction = 3;
    CHECK_REFUSED(gt_cross_entropy(x, y, &o), GT_BAD_ARGUMENT, "3 is not a reduction");
    o = loss_options();
    o.class_weights = gt_tensor_zeros(ctx, GT_DTYPE_F16, SHAPE(3));
    CHECK_REFUSED(gt_cross_entropy(x, y, &o), GT_BAD_DTYPE, "class_weights is f16, but must be f32");
    o.class_weights = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(4));
    CHECK_REFUSED(gt_cross_entropy(x, y, &o), GT_BAD_SHAPE, "class_weights is [4], but must be [3]");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, mse_loss_widens_half_precision) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = MAKE(ctx, GT_DTYPE_F16, SHAPE(2), 1000, 0), *y = MAKE(ctx, GT_DTYPE_F16, SHAPE(2), 0, 2);
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    gt_tensor *loss = gt_mse_loss(x, y, GT_REDUCTION_MEAN);
    CHECK_EQ_INT(gt_tensor_dtype(loss), GT_DTYPE_F32);
    CHECK_VALUES_TOL(loss, 1e-6, 500002);
    CHECK_OK(gt_backward(loss));
    CHECK_VALUES(gt_tensor_grad(x), 1000, -2);
    CHECK_VALUES(gt_mse_loss(x, y, GT_REDUCTION_SUM), 1000004);
    CHECK_VALUES(gt_mse_loss(x, y, GT_REDUCTION_NONE), 1000000, 4);
    CHECK_REFUSED(gt_mse_loss(x, gt_reshape(y, SHAPE(2, 1)), GT_REDUCTION_MEAN), GT_BAD_SHAPE, "[2] and the target [2,1]");
    CHECK_REFUSED(gt_mse_loss(x, gt_cast(y, GT_DTYPE_F32), GT_REDUCTION_MEAN), GT_BAD_DTYPE, "the input is f16 and the target f32");
    CHECK_REFUSED(gt_mse_loss(x, y, -1), GT_BAD_ARGUMENT, "-1 is not a reduction");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, embedding_takes_rows_and_adds_their_gradients) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_tensor *w = MAKE(ctx, *d, SHAPE(3, 2), 1, 2, 3, 4, 5, 6), *i = MAKE(ctx, GT_DTYPE_I64, SHAPE(2, 2), 2, 0, 2, 2);
        CHECK_OK(gt_tensor_set_requires_grad(w, 1));
        gt_tensor *y = gt_embedding(w, i);
        CHECK_SHAPE(y, 2, 2, 2);
        CHECK_VALUES(y, 5, 6, 1, 2, 5, 6, 5, 6);
        CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
        CHECK_VALUES(gt_tensor_grad(w), 1, 1, 0, 0, 3, 3);
        CHECK_REFUSED(gt_embedding(w, w), GT_BAD_DTYPE, "the indices are");
        CHECK_REFUSED(gt_embedding(gt_reshape(w, SHAPE(6)), i), GT_BAD_SHAPE, "weight is [6]");
        CHECK_REFUSED(gt_embedding(w, gt_tensor_zeros(ctx, GT_DTYPE_I32, SHAPE(1, 1, 1, 1, 1, 1, 1, 1))), GT_BAD_SHAPE, "8 axes");
    }
    gt_scope_end(ctx);
}

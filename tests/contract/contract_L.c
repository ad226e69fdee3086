/* L: losses. L5 is tested with the trainer. */
#include "unit/ops_util.h"

static gt_cross_entropy_options loss_options(void) {
    gt_cross_entropy_options o;
    CHECK_OK(gt_cross_entropy_options_init(&o, sizeof o));
    return o;
}

/* The CPU knows at once, a GPU when something waits. */
static void expect_bad_label(test_case *t, gt_context *ctx, gt_tensor *result, const char *op, const char *row, const char *value,
                             const char *classes) {
    gt_status status;
    if (test_device(t) == GT_DEVICE_CPU) {
        CHECK(result == NULL);
        status = gt_last_error()->status;
    } else {
        CHECK_TENSOR(result);
        status = gt_context_synchronize(ctx);
    }
    CHECK_STATUS(status, GT_BAD_LABEL);
    CHECK_ERROR_HAS(op);
    CHECK_ERROR_HAS(row);
    CHECK_ERROR_HAS(value);
    CHECK_ERROR_HAS(classes);
    gt_clear_error();
    CHECK_OK(gt_context_synchronize(ctx)); /* said once */
}

TEST_DEVICES(contract, L1_a_label_out_of_range_is_BAD_LABEL_with_row_value_and_classes) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_tensor *x = gt_tensor_zeros(ctx, *d, SHAPE(5, 10)), *good = gt_tensor_zeros(ctx, GT_DTYPE_I64, SHAPE(5));
        expect_bad_label(t, ctx, gt_cross_entropy(x, MAKE(ctx, GT_DTYPE_I64, SHAPE(5), 0, 1, 2, 10, 3), NULL), "cross_entropy", "row 3",
                         "10", "10 classes");
        expect_bad_label(t, ctx, gt_cross_entropy(x, MAKE(ctx, GT_DTYPE_I32, SHAPE(5), 0, -1, 2, 1, 3), NULL), "cross_entropy", "row 1",
                         "-1", "10 classes");
        expect_bad_label(t, ctx, gt_cross_entropy(x, MAKE(ctx, GT_DTYPE_U8, SHAPE(5), 0, 1, 2, 1, 156), NULL), "cross_entropy", "row 4",
                         "156", "10 classes");
        /* values whose low 32 bits look like a class */
        expect_bad_label(t, ctx, gt_cross_entropy(x, MAKE(ctx, GT_DTYPE_I64, SHAPE(5), 4294967297.0, 1, 2, 1, 3), NULL), "cross_entropy",
                         "row 0", "4294967297", "10 classes");
        CHECK_VALUES_TOL(gt_cross_entropy(x, good, NULL), 1e-6, log(10));
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, L1_only_the_ignore_value_is_ignored) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(3, 2), 0, 0, 0, 2, 5, 0);
    gt_cross_entropy_options o = loss_options();
    o.ignore_label = -1;
    CHECK_VALUES_TOL(gt_cross_entropy(x, MAKE(ctx, GT_DTYPE_I64, SHAPE(3), 0, 1, -1), &o), 1e-6, (log(2) + log(1 + exp(-2))) / 2);
    expect_bad_label(t, ctx, gt_cross_entropy(x, MAKE(ctx, GT_DTYPE_I64, SHAPE(3), 0, 1, -100), &o), "cross_entropy", "row 2", "-100",
                     "2 classes");
    o.ignore_label = 1; /* a class may be the ignored one */
    CHECK_VALUES_TOL(gt_cross_entropy(x, MAKE(ctx, GT_DTYPE_I32, SHAPE(3), 0, 1, 1), &o), 1e-6, log(2));
    o.ignore_label = 255;
    CHECK_VALUES_TOL(gt_cross_entropy(x, MAKE(ctx, GT_DTYPE_U8, SHAPE(3), 0, 255, 255), &o), 1e-6, log(2));
    o.ignore_label = INT64_MIN;
    int64_t extreme[3] = {0, INT64_MIN, INT64_MIN};
    CHECK_VALUES_TOL(gt_cross_entropy(x, gt_tensor_from_data(ctx, GT_DTYPE_I64, SHAPE(3), extreme, sizeof extreme), &o), 1e-6, log(2));
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, L1_an_index_out_of_range_is_BAD_LABEL) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *w = F32(ctx, SHAPE(3, 2), 1, 2, 3, 4, 5, 6);
    expect_bad_label(t, ctx, gt_embedding(w, MAKE(ctx, GT_DTYPE_I64, SHAPE(4), 0, 1, 3, 2)), "embedding", "2", "3", "3");
    expect_bad_label(t, ctx, gt_embedding(w, MAKE(ctx, GT_DTYPE_I32, SHAPE(2, 2), 0, 1, 1, -7)), "embedding", "3", "-7", "3");
    CHECK_VALUES(gt_embedding(w, MAKE(ctx, GT_DTYPE_I32, SHAPE(1), 2)), 5, 6);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, L2_nan_goes_through_relu_and_max_pooling) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d)
    for (int channels = 1; channels <= 16; channels += 15) {
        gt_pool2d_options o;
        CHECK_OK(gt_pool2d_options_init(&o, sizeof o));
        o.kernel[0] = o.kernel[1] = 2;
        double v[256], y[64];
        int n = channels * 16;
        for (int place = 0; place < 4; place++) { /* wherever in the window it stands */
            for (int i = 0; i < n; i++) v[i] = 1 + i % 7;
            v[place / 2 * 4 + place % 2] = NAN;
            v[n - 1] = INFINITY;
            gt_tensor *x = make(ctx, *d, SHAPE(1, channels, 4, 4), v);
            CHECK_OK(gt_tensor_read(gt_cast(gt_max_pool2d(x, &o), GT_DTYPE_F64), y, (size_t)n / 4 * sizeof *y));
            CHECK(isnan(y[0]));
            for (int i = 1; i < n / 4 - 1; i++) CHECK(!isnan(y[i]));
            CHECK(isinf(y[n / 4 - 1]));
            CHECK_OK(gt_tensor_read(gt_cast(gt_relu(x), GT_DTYPE_F64), v, (size_t)n * sizeof *v));
            CHECK(isnan(v[place / 2 * 4 + place % 2]) && v[2] == 3);
        }
    }
    gt_tensor *x = F32(ctx, SHAPE(1, 2), NAN, 1), *w = F32(ctx, SHAPE(1, 2), 1, 1);
    CHECK_VALUES(gt_linear_activation(x, w, NULL, GT_ACTIVATION_RELU), NAN);
    gt_conv2d_options o;
    CHECK_OK(gt_conv2d_options_init(&o, sizeof o));
    o.activation = GT_ACTIVATION_RELU;
    CHECK_VALUES(gt_conv2d(gt_reshape(x, SHAPE(1, 1, 1, 2)), gt_reshape(w, SHAPE(1, 1, 1, 2)), F32(ctx, SHAPE(1), 0), &o), NAN);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, L3_every_label_ignored_is_loss_zero_and_gradient_zero) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d)
    for (int reduction = 0; reduction < 3; reduction++)
        for (int extra = 0; extra < 2; extra++) {
            gt_tensor *x = MAKE(ctx, *d, SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *y = MAKE(ctx, GT_DTYPE_I64, SHAPE(2), -100, -100);
            gt_cross_entropy_options o = loss_options();
            o.reduction = reduction;
            if (extra) {
                o.label_smoothing = 0.1;
                o.class_weights = MAKE(ctx, *d == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32, SHAPE(3), 1, 2, 3);
            }
            CHECK_OK(gt_tensor_set_requires_grad(x, 1));
            gt_tensor *loss = gt_cross_entropy(x, y, &o);
            if (reduction == GT_REDUCTION_NONE)
                CHECK_VALUES(loss, 0, 0);
            else
                CHECK_VALUES(loss, 0);
            CHECK_OK(gt_backward(gt_sum(loss, NULL, 0, 0)));
            CHECK_VALUES(gt_tensor_grad(x), 0, 0, 0, 0, 0, 0);
        }
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, L3_a_batch_of_ignored_labels_adds_nothing_to_another) {
    gt_context *ctx = test_context(t);
    double alone[6], both[6];
    gt_scope_begin(ctx);
    gt_tensor *w = F32(ctx, SHAPE(3, 2), 0.1, -0.2, 0.3, 0.4, -0.5, 0.6), *x = F32(ctx, SHAPE(2, 2), 1, 2, 3, 4);
    gt_tensor *labels = MAKE(ctx, GT_DTYPE_I64, SHAPE(2), 0, 2), *ignored = MAKE(ctx, GT_DTYPE_I64, SHAPE(2), -100, -100);
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    CHECK_OK(gt_backward(gt_cross_entropy(gt_linear(x, w, NULL), labels, NULL)));
    CHECK_OK(gt_tensor_read(gt_cast(gt_tensor_grad(w), GT_DTYPE_F64), alone, sizeof alone));
    CHECK_OK(gt_tensor_zero_grad(w));
    CHECK_OK(gt_backward(gt_cross_entropy(gt_linear(x, w, NULL), ignored, NULL)));
    CHECK_OK(gt_backward(gt_cross_entropy(gt_linear(x, w, NULL), labels, NULL)));
    CHECK_OK(gt_tensor_read(gt_cast(gt_tensor_grad(w), GT_DTYPE_F64), both, sizeof both));
    for (int i = 0; i < 6; i++) CHECK_NEAR(both[i], alone[i], 1e-7);
    gt_scope_end(ctx);
}

/* Whatever stands in an ignored row, the loss and the other rows' gradients are those without it. */
TEST_DEVICES(contract, L4_smoothing_and_weights_leave_ignored_rows_out) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    const double junk[3] = {5, NAN, INFINITY};
    EACH_FLOAT(d)
    for (int reduction = 0; reduction < 3; reduction++)
        for (int j = 0; j < 3; j++) {
            gt_tensor *x = MAKE(ctx, *d, SHAPE(3, 2), 0.5, 1, junk[j], 1, 2, -1), *y = MAKE(ctx, GT_DTYPE_I64, SHAPE(3), 1, -100, 0);
            gt_tensor *kept = MAKE(ctx, *d, SHAPE(2, 2), 0.5, 1, 2, -1), *kept_y = MAKE(ctx, GT_DTYPE_I64, SHAPE(2), 1, 0);
            gt_cross_entropy_options o = loss_options();
            o.reduction = reduction;
            o.label_smoothing = 0.2;
            o.class_weights = MAKE(ctx, *d == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32, SHAPE(2), 1, 3);
            CHECK_OK(gt_tensor_set_requires_grad(x, 1));
            CHECK_OK(gt_tensor_set_requires_grad(kept, 1));
            gt_tensor *a = gt_sum(gt_cross_entropy(x, y, &o), NULL, 0, 0), *b = gt_sum(gt_cross_entropy(kept, kept_y, &o), NULL, 0, 0);
            double va = 0, vb = 0, ga[6], gb[4];
            CHECK_OK(gt_tensor_item(a, &va));
            CHECK_OK(gt_tensor_item(b, &vb));
            CHECK_NEAR(va, vb, 1e-6);
            CHECK_OK(gt_backward(a));
            CHECK_OK(gt_backward(b));
            CHECK_OK(gt_tensor_read(gt_cast(gt_tensor_grad(x), GT_DTYPE_F64), ga, sizeof ga));
            CHECK_OK(gt_tensor_read(gt_cast(gt_tensor_grad(kept), GT_DTYPE_F64), gb, sizeof gb));
            for (int i = 0; i < 2; i++) {
                CHECK_NEAR(ga[i], gb[i], 1e-6);
                CHECK(ga[2 + i] == 0);
                CHECK_NEAR(ga[4 + i], gb[2 + i], 1e-6);
            }
        }
    gt_scope_end(ctx);
}

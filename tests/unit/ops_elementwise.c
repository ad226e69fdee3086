#include "unit/ops_util.h"

TEST_DEVICES(unit, add_broadcasts_like_numpy) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *a = F32(ctx, SHAPE(2, 1, 2), 1, 2, 3, 4), *b = F32(ctx, SHAPE(3, 1), 10, 20, 30);
    gt_tensor *y = gt_add(a, b);
    CHECK_SHAPE(y, 2, 3, 2);
    CHECK_VALUES(y, 11, 12, 21, 22, 31, 32, 13, 14, 23, 24, 33, 34);
    CHECK_VALUES(gt_sub(b, F32(ctx, SHAPE(1), 1)), 9, 19, 29);
    CHECK_REFUSED(gt_add(a, F32(ctx, SHAPE(3), 1, 2, 3)), GT_BAD_SHAPE, "add: [2,1,2] and [3] do not broadcast");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, binary_ops_compute_in_every_dtype) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_tensor *a = MAKE(ctx, *d, SHAPE(4), 1, -2, 3, 0.5), *b = MAKE(ctx, *d, SHAPE(4), 2, 4, 3, -0.5);
        CHECK_VALUES(gt_add(a, b), 3, 2, 6, 0);
        CHECK_VALUES(gt_sub(a, b), -1, -6, 0, 1);
        CHECK_VALUES(gt_mul(a, b), 2, -8, 9, -0.25);
        CHECK_VALUES(gt_div(a, b), 0.5, -0.5, 1, -1);
        CHECK_VALUES(gt_maximum(a, b), 2, 4, 3, 0.5);
        CHECK_VALUES(gt_minimum(a, b), 1, -2, 3, -0.5);
        CHECK_VALUES(gt_equal(a, b), 0, 0, 1, 0);
        CHECK_EQ_INT(gt_tensor_dtype(gt_equal(a, b)), *d);
    }
    const gt_dtype ints[] = {GT_DTYPE_I32, GT_DTYPE_I64};
    for (int i = 0; i < 2; i++) {
        gt_tensor *a = MAKE(ctx, ints[i], SHAPE(3), 7, -2, 5), *b = MAKE(ctx, ints[i], SHAPE(3), 3, -2, 1);
        CHECK_VALUES(gt_add(a, b), 10, -4, 6);
        CHECK_VALUES(gt_sub(a, b), 4, 0, 4);
        CHECK_VALUES(gt_mul(a, b), 21, 4, 5);
        CHECK_VALUES(gt_equal(a, b), 0, 1, 0);
        CHECK_REFUSED(gt_div(a, b), GT_BAD_DTYPE, "div: does not take i");
        CHECK_REFUSED(gt_maximum(a, b), GT_BAD_DTYPE, "does not take");
    }
    gt_tensor *bytes = MAKE(ctx, GT_DTYPE_U8, SHAPE(3), 7, 2, 255);
    CHECK_VALUES(gt_equal(bytes, MAKE(ctx, GT_DTYPE_U8, SHAPE(3), 7, 3, 255)), 1, 0, 1);
    CHECK_REFUSED(gt_add(bytes, bytes), GT_BAD_DTYPE, "add: does not take u8");
    CHECK_REFUSED(gt_relu(bytes), GT_BAD_DTYPE, "relu: the input is u8");
    CHECK_REFUSED(gt_add(F32(ctx, SHAPE(1), 1), MAKE(ctx, GT_DTYPE_F16, SHAPE(1), 1)), GT_BAD_DTYPE, "f32 and f16");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, unary_ops_give_known_values) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        double tol = tolerance_of(*d);
        gt_tensor *x = MAKE(ctx, *d, SHAPE(5), -2, -0.5, 0, 1, 3);
        CHECK_VALUES(gt_neg(x), 2, 0.5, 0, -1, -3);
        CHECK_VALUES(gt_abs(x), 2, 0.5, 0, 1, 3);
        CHECK_VALUES(gt_square(x), 4, 0.25, 0, 1, 9);
        CHECK_VALUES(gt_relu(x), 0, 0, 0, 1, 3);
        CHECK_VALUES_TOL(gt_exp(x), tol, exp(-2), exp(-0.5), 1, exp(1), exp(3));
        CHECK_VALUES_TOL(gt_tanh(x), tol, tanh(-2), tanh(-0.5), 0, tanh(1), tanh(3));
        CHECK_VALUES_TOL(gt_sigmoid(x), tol, 1 / (1 + exp(2)), 1 / (1 + exp(0.5)), 0.5, 1 / (1 + exp(-1)), 1 / (1 + exp(-3)));
        CHECK_VALUES_TOL(gt_gelu(x), tol, -0.04550026389635842, -0.15426876936299347, 0, 0.8413447460685429, 2.9959503059051095);
        CHECK_VALUES_TOL(gt_gelu_tanh(x), tol, -0.04540230591222494, -0.15428599017485606, 0, 0.8411919906082768, 2.996362607918227);
        CHECK_VALUES_TOL(gt_silu(x), tol, -2 / (1 + exp(2)), -0.5 / (1 + exp(0.5)), 0, 1 / (1 + exp(-1)), 3 / (1 + exp(-3)));
        CHECK_VALUES(gt_add_scalar(x, 1.5), -0.5, 1, 1.5, 2.5, 4.5);
        CHECK_VALUES(gt_mul_scalar(x, -2), 4, 1, 0, -2, -6);
        CHECK_VALUES(gt_pow_scalar(x, 2), 4, 0.25, 0, 1, 9);
        CHECK_VALUES(gt_pow_scalar(x, 0), 1, 1, 1, 1, 1);
        gt_tensor *p = MAKE(ctx, *d, SHAPE(3), 0.25, 1, 4);
        CHECK_VALUES(gt_sqrt(p), 0.5, 1, 2);
        CHECK_VALUES_TOL(gt_log(p), tol, log(0.25), 0, log(4));
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, extreme_inputs_saturate_without_nan) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(4), -1000, -100, 100, 1000);
    CHECK_VALUES_TOL(gt_sigmoid(x), 1e-37, 0, 0, 1, 1); /* GPUs divide small numbers to 0 */
    CHECK_VALUES(gt_tanh(x), -1, -1, 1, 1);
    CHECK_VALUES(gt_gelu(x), 0, 0, 100, 1000);
    CHECK_VALUES(gt_gelu_tanh(x), 0, 0, 100, 1000);
    CHECK_VALUES_TOL(gt_silu(x), 1e-30, 0, 0, 100, 1000);
    CHECK_VALUES(gt_exp(F32(ctx, SHAPE(2), -1000, 1000)), 0, INFINITY);
    CHECK_VALUES(gt_log(F32(ctx, SHAPE(2), 0, INFINITY)), -INFINITY, INFINITY);
    CHECK_VALUES(gt_div(F32(ctx, SHAPE(2), 1, 0), F32(ctx, SHAPE(2), 0, 0)), INFINITY, NAN);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, nan_passes_through_elementwise_ops) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_tensor *x = MAKE(ctx, *d, SHAPE(2), NAN, 1), *one = MAKE(ctx, *d, SHAPE(2), 1, 1);
        CHECK_VALUES(gt_maximum(x, one), NAN, 1);
        CHECK_VALUES(gt_maximum(one, x), NAN, 1);
        CHECK_VALUES(gt_minimum(x, one), NAN, 1);
        CHECK_VALUES(gt_minimum(one, x), NAN, 1);
        CHECK_VALUES(gt_equal(x, x), 0, 1);
        CHECK_VALUES(gt_add(x, one), NAN, 2);
        CHECK_VALUES(gt_abs(x), NAN, 1);
        CHECK_VALUES(gt_relu(x), NAN, 1);
        gt_tensor *(*const ops[])(gt_tensor *) = {gt_neg,  gt_square,  gt_sqrt, gt_exp,       gt_log,
                                                  gt_tanh, gt_sigmoid, gt_gelu, gt_gelu_tanh, gt_silu};
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
            double v[2];
            CHECK_OK(gt_tensor_read(gt_cast(ops[i](x), GT_DTYPE_F64), v, sizeof v));
            CHECK(isnan(v[0]) && !isnan(v[1]));
        }
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, elementwise_results_keep_the_layout) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_channels_last(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 3, 4, 5)));
    CHECK_EQ_INT(gt_tensor_strides(x)[1], 1);
    CHECK_EQ_INT(gt_tensor_strides(gt_relu(x))[1], 1);
    gt_tensor *bias = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(3, 1, 1));
    CHECK_EQ_INT(gt_tensor_strides(gt_add(bias, x))[1], 1);
    CHECK_EQ_INT(gt_tensor_strides(gt_cast(x, GT_DTYPE_F16))[1], 1);
    gt_tensor *wide = gt_expand(bias, SHAPE(2, 3, 4, 5));
    CHECK_EQ_INT(gt_tensor_is_contiguous(gt_exp(wide)), 1);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, null_tensors_keep_the_first_error) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2), 1, 2);
    gt_tensor *bad = gt_add(x, F32(ctx, SHAPE(3), 1, 2, 3));
    CHECK(bad == NULL);
    CHECK(gt_relu(gt_linear(gt_mul(bad, x), x, NULL)) == NULL);
    CHECK_STATUS(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK_ERROR_HAS("add: [2] and [3]");
    CHECK_REFUSED(gt_relu(NULL), GT_BAD_ARGUMENT, "gt_relu");
    CHECK_REFUSED(gt_add(x, NULL), GT_BAD_ARGUMENT, "gt_add");
    CHECK_REFUSED(gt_concat((gt_tensor *const[]){x, NULL}, 2, 0), GT_BAD_ARGUMENT, "gt_concat");
    CHECK_REFUSED(gt_concat(NULL, 0, 0), GT_BAD_ARGUMENT, "at least one");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, tensors_of_two_contexts_are_refused) {
    gt_context *ctx = test_context(t), *other = test_context(t);
    gt_scope_begin(ctx);
    gt_scope_begin(other);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 2)), *y = gt_tensor_zeros(other, GT_DTYPE_F32, SHAPE(2, 2));
    CHECK_REFUSED(gt_add(x, y), GT_BAD_DEVICE, "add");
    CHECK_REFUSED(gt_matmul(x, y), GT_BAD_DEVICE, "matmul");
    CHECK_REFUSED(gt_mse_loss(x, y, GT_REDUCTION_MEAN), GT_BAD_DEVICE, "mse_loss");
    CHECK_REFUSED(gt_concat((gt_tensor *const[]){x, y}, 2, 0), GT_BAD_DEVICE, "concat");
    CHECK_VALUES(gt_add(x, x), 0, 0, 0, 0);
    gt_scope_end(other);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, ops_without_a_scope_leak_nothing) {
    gt_context *ctx = test_context(t); /* the harness checks bytes in use at the end */
    gt_tensor *x = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(2, 3, 4), -1, 1),
              *y = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(2, 4, 3), -1, 1);
    gt_tensor *w = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(5, 4), -1, 1),
              *flat = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(4, 3), -1, 1);
    gt_tensor *image = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(1, 1, 4, 4), -1, 1);
    gt_tensor *row = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(1, 4, 3), -1, 1);
    gt_pool2d_options pool;
    CHECK_OK(gt_pool2d_options_init(&pool, sizeof pool));
    pool.kernel[0] = pool.kernel[1] = 2;
    for (int grad = 0; grad < 2; grad++) {
        CHECK_OK(gt_tensor_set_requires_grad(x, grad));
        CHECK_OK(gt_tensor_set_requires_grad(image, grad));
        gt_tensor *swapped = CHECK_TENSOR(gt_transpose(x, 0, 1));
        gt_tensor *results[] = {gt_matmul(x, y),
                                gt_matmul(x, flat),
                                gt_matmul(x, row),
                                gt_linear(x, w, NULL),
                                gt_layer_norm(x, NULL, NULL, 2, 1e-5),
                                gt_layer_norm(x, NULL, NULL, 1, 1e-5),
                                gt_mse_loss(x, x, GT_REDUCTION_MEAN),
                                gt_reshape(swapped, SHAPE(24)),
                                gt_contiguous(x),
                                gt_cast(x, GT_DTYPE_F32),
                                gt_dropout(x, 0.5, 0),
                                gt_dropout(x, 0.5, 1),
                                gt_max_pool2d(image, &pool),
                                gt_batch_norm(image, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5),
                                gt_flatten(x, 0),
                                gt_channels_last(image),
                                gt_softmax(x, 1),
                                gt_max(x, NULL, 0, 0),
                                gt_sum(x, NULL, 0, 1)};
        for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
            CHECK_TENSOR(results[i]);
            gt_tensor_release(results[i]);
        }
        gt_tensor_release(swapped);
    }
    CHECK_STATUS(gt_scope_end(ctx), GT_BAD_STATE); /* no op left a scope open */
    gt_tensor_release(x);
    gt_tensor_release(y);
    gt_tensor_release(w);
    gt_tensor_release(flat);
    gt_tensor_release(image);
    gt_tensor_release(row);
}

TEST_DEVICES(unit, dropout_zeroes_or_scales) {
    gt_context *ctx = test_context(t);
    enum { N = 10000 };
    static double v[N], again[N];
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_tensor *x = gt_tensor_full(ctx, *d, SHAPE(N), 3);
        int kept = 0;
        CHECK_OK(gt_random_seed(ctx, 11));
        CHECK_OK(gt_tensor_read(gt_cast(gt_dropout(x, 0.25, 1), GT_DTYPE_F64), v, sizeof v));
        for (int i = 0; i < N; i++) {
            CHECK(v[i] == 0 || v[i] == 4);
            kept += v[i] != 0;
        }
        CHECK(kept > 7300 && kept < 7700);
        CHECK_OK(gt_tensor_read(gt_cast(gt_dropout(x, 0.25, 1), GT_DTYPE_F64), again, sizeof again));
        CHECK(memcmp(v, again, sizeof v) != 0); /* the next draw is another */
        CHECK_OK(gt_random_seed(ctx, 11));
        CHECK_OK(gt_tensor_read(gt_cast(gt_dropout(x, 0.25, 1), GT_DTYPE_F64), again, sizeof again));
        CHECK(memcmp(v, again, sizeof v) == 0);
    }
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(3), 3);
    CHECK_VALUES(gt_dropout(x, 1, 1), 0, 0, 0);
    CHECK(gt_dropout(x, 0, 1) == x);
    CHECK(gt_dropout(x, 0.5, 0) == x);
    uint64_t before, after;
    CHECK_OK(gt_random_state_get(ctx, NULL, &before));
    CHECK_REFUSED(gt_dropout(x, 1.5, 1), GT_BAD_ARGUMENT, "probability is 1.5");
    CHECK_REFUSED(gt_dropout(x, NAN, 1), GT_BAD_ARGUMENT, "probability");
    CHECK_REFUSED(gt_dropout(gt_tensor_zeros(ctx, GT_DTYPE_I32, SHAPE(3)), 0.5, 1), GT_BAD_DTYPE, "i32");
    CHECK_OK(gt_random_state_get(ctx, NULL, &after));
    CHECK_EQ_INT(before, after);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, dropout_that_fails_draws_nothing) {
    gt_context *ctx = test_context(t);
    uint64_t before, after;
    gt_scope_begin(ctx);
    gt_tensor *x = gt_expand(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(1)), SHAPE(1ll << 30));
    CHECK_OK(gt_context_set_memory_limit(ctx, 64 << 20));
    CHECK_OK(gt_random_state_get(ctx, NULL, &before));
    CHECK_REFUSED(gt_dropout(x, 0.5, 1), GT_OUT_OF_MEMORY, "dropout");
    CHECK_OK(gt_random_state_get(ctx, NULL, &after));
    CHECK_EQ_INT(before, after);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, dropout_numbers_elements_in_logical_order) {
    gt_context *ctx = test_context(t);
    double plain[30], seen[30];
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(5, 6), 1),
              *swapped = gt_transpose(gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(6, 5), 1), 0, 1);
    CHECK_OK(gt_random_seed(ctx, 3));
    CHECK_OK(gt_tensor_read(gt_cast(gt_dropout(x, 0.5, 1), GT_DTYPE_F64), plain, sizeof plain));
    CHECK_OK(gt_random_seed(ctx, 3));
    CHECK_OK(gt_tensor_read(gt_cast(gt_dropout(swapped, 0.5, 1), GT_DTYPE_F64), seen, sizeof seen));
    for (int i = 0; i < 30; i++) CHECK_NEAR(seen[i], plain[i], 0);
    gt_scope_end(ctx);
}

/* D: device libraries. D1, D6 and D7 need the libraries themselves and are tested beside them. */
#include "unit/ops_util.h"

#include <stdlib.h>

static gt_conv2d_options conv_options(void) {
    gt_conv2d_options o;
    CHECK_OK(gt_conv2d_options_init(&o, sizeof o));
    return o;
}

static void convolve_ones(gt_context *ctx, gt_dtype dtype) {
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_full(ctx, dtype, SHAPE(1, 1, 4, 4), 1), *k = gt_tensor_full(ctx, dtype, SHAPE(1, 1, 3, 3), 1);
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_tensor_set_requires_grad(k, 1));
    gt_tensor *y = gt_conv2d(x, k, NULL, NULL);
    CHECK_SHAPE(y, 1, 1, 2, 2);
    CHECK_VALUES(y, 9, 9, 9, 9);
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(k), 4, 4, 4, 4, 4, 4, 4, 4, 4);
    CHECK_VALUES(gt_tensor_grad(x), 1, 2, 2, 1, 2, 4, 4, 2, 2, 4, 4, 2, 1, 2, 2, 1);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, D2_workspace_zero_still_computes) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.workspace_limit = 0;
    gt_context *ctx = test_context_with(t, &options), *other = test_context(t);
    EACH_FLOAT(d) {
        convolve_ones(ctx, *d);
        CHECK_OK(gt_context_set_workspace_limit(other, GT_WORKSPACE_AUTO));
        convolve_ones(other, *d);
        CHECK_OK(gt_context_set_workspace_limit(other, 0));
        convolve_ones(other, *d);
    }
}

/* What a small layer computes must not depend on how much scratch memory it may use. */
TEST_DEVICES(contract, D2_workspace_zero_gives_the_same_results) {
    enum { N = 3 * 24 * 12 * 12 };
    static float with[N], without[N];
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.allow_tf32 = 0;
    gt_context *ctx = test_context_with(t, &options);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(3, 16, 14, 14), -1, 1),
              *w = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(24, 16, 3, 3), -1, 1);
    CHECK_OK(gt_tensor_read(gt_conv2d(x, w, NULL, NULL), with, sizeof with));
    CHECK_OK(gt_context_set_workspace_limit(ctx, 0));
    CHECK_OK(gt_tensor_read(gt_conv2d(x, w, NULL, NULL), without, sizeof without));
    CHECK_ALLCLOSE_F32(without, with, N, 1e-5, 1e-4);
    gt_tensor *a = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(64, 4000), -1, 1),
              *b = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(4000, 10), -1, 1);
    CHECK_OK(gt_tensor_read(gt_matmul(a, b), without, 640 * sizeof(float)));
    CHECK_OK(gt_context_set_workspace_limit(ctx, GT_WORKSPACE_AUTO));
    CHECK_OK(gt_tensor_read(gt_matmul(a, b), with, 640 * sizeof(float)));
    CHECK_ALLCLOSE_F32(without, with, 640, 1e-5, 1e-3);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, D3_batches_over_65535_work) {
    enum { N = 70000 };
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(N, 1, 2, 2), 1), *w = gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(1, 1, 2, 2), 1);
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    gt_pool2d_options pool;
    CHECK_OK(gt_pool2d_options_init(&pool, sizeof pool));
    pool.kernel[0] = pool.kernel[1] = 2;
    CHECK_VALUES(gt_sum(gt_max_pool2d(x, &pool), NULL, 0, 0), N);
    CHECK_VALUES(gt_sum(gt_avg_pool2d(x, &pool), NULL, 0, 0), N);
    CHECK_VALUES(gt_mean(gt_softmax(gt_reshape(x, SHAPE(N, 4)), 1), NULL, 0, 0), 0.25);
    gt_tensor *m = gt_reshape(x, SHAPE(N, 2, 2));
    CHECK_VALUES(gt_sum(gt_matmul(m, gt_transpose(m, 1, 2)), NULL, 0, 0), 8 * N);
    CHECK_OK(gt_backward(gt_sum(gt_conv2d(x, w, NULL, NULL), NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(w), N, N, N, N);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, D3_views_at_odd_offsets_and_expanded_views_work) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_tensor *base = gt_cast(gt_tensor_arange(ctx, GT_DTYPE_F32, 0, 1, 37), *d);
        gt_tensor *x = gt_reshape(gt_slice(base, 0, 1, 37, 1), SHAPE(6, 6)), *wide = gt_expand(gt_slice(x, 0, 1, 2, 1), SHAPE(6, 6));
        const int32_t last = 1;
        CHECK_VALUES(gt_sum(x, &last, 1, 0), 21, 57, 93, 129, 165, 201);
        CHECK_VALUES(gt_sum(wide, &last, 1, 0), 57, 57, 57, 57, 57, 57);
        CHECK_VALUES(gt_slice(gt_add(x, wide), 0, 5, 6, 1), 38, 40, 42, 44, 46, 48);
        CHECK_VALUES(gt_slice(gt_matmul(x, gt_transpose(wide, 0, 1)), 0, 0, 1, 1), 217, 217, 217, 217, 217, 217);
        CHECK_VALUES(gt_slice(gt_relu(x), 0, 0, 1, 1), 1, 2, 3, 4, 5, 6);
        CHECK_VALUES(gt_argmax(wide, 1, 0), 5, 5, 5, 5, 5, 5);
        CHECK_VALUES(gt_max(x, &last, 1, 0), 6, 12, 18, 24, 30, 36);
        gt_tensor *image = gt_reshape(x, SHAPE(1, 1, 6, 6)), *one = gt_tensor_full(ctx, *d, SHAPE(1, 1, 6, 1), 1);
        CHECK_VALUES(gt_conv2d(image, one, NULL, NULL), 96, 102, 108, 114, 120, 126);
    }
    gt_scope_end(ctx);
}

TEST_CUDA_ONLY(contract, D3_tensors_over_2_31_elements_work) {
    const int64_t n = (1ll << 31) + 9;
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F16, SHAPE(n), -1);
    if (!x && gt_last_error()->status == GT_OUT_OF_MEMORY) SKIP("less than 13 GB of device memory are free");
    CHECK_OK(gt_tensor_fill(gt_slice(x, 0, n - 2, n, 1), 3));
    CHECK_VALUES(gt_mean(x, NULL, 0, 0), -1);
    CHECK_VALUES(gt_max(x, NULL, 0, 0), 3);
    CHECK_VALUES(gt_argmax(x, 0, 0), (double)(n - 2));
    gt_tensor *y = gt_relu(x);
    if (!y && gt_last_error()->status == GT_OUT_OF_MEMORY) SKIP("less than 13 GB of device memory are free");
    CHECK_VALUES(gt_slice(y, 0, n - 3, n, 1), 0, 3, 3);
    CHECK_VALUES(gt_slice(gt_add(y, gt_slice(x, 0, n - 1, n, 1)), 0, n - 3, n, 1), 3, 6, 6);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, D4_an_empty_batch_convolves_to_an_empty_one) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d)
    for (int relu = 0; relu < 2; relu++) {
        gt_conv2d_options o = conv_options();
        o.activation = relu ? GT_ACTIVATION_RELU : GT_ACTIVATION_NONE;
        gt_tensor *x = gt_tensor_zeros(ctx, *d, SHAPE(0, 3, 8, 8)), *w = gt_tensor_full(ctx, *d, SHAPE(4, 3, 3, 3), 1),
                  *b = gt_tensor_full(ctx, *d, SHAPE(4), 1);
        gt_tensor *leaves[3] = {x, w, b};
        for (int i = 0; i < 3; i++) CHECK_OK(gt_tensor_set_requires_grad(leaves[i], 1));
        gt_tensor *y = gt_conv2d(x, w, b, &o);
        CHECK_SHAPE(y, 0, 4, 6, 6);
        CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
        CHECK_SHAPE(gt_tensor_grad(x), 0, 3, 8, 8);
        double v[108];
        CHECK_OK(gt_tensor_read(gt_cast(gt_tensor_grad(w), GT_DTYPE_F64), v, sizeof v));
        for (int i = 0; i < 108; i++) CHECK(v[i] == 0);
        CHECK_VALUES(gt_tensor_grad(b), 0, 0, 0, 0);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, D4_an_empty_batch_leaves_the_statistics) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *mean = F32(ctx, SHAPE(2), 0.5, -1), *var = F32(ctx, SHAPE(2), 2, 3), *w = F32(ctx, SHAPE(2), 1, 1),
              *b = F32(ctx, SHAPE(2), 0, 0);
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    CHECK_OK(gt_tensor_set_requires_grad(b, 1));
    const int64_t shapes[2][4] = {{0, 2, 3, 3}, {0, 2}};
    for (int i = 0; i < 2; i++) {
        gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, i ? 2 : 4, shapes[i]),
                  *y = CHECK_TENSOR(gt_batch_norm(x, w, b, mean, var, 1, 0.1, 1e-5));
        CHECK_EQ_INT(gt_tensor_numel(y), 0);
        CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
        CHECK_VALUES(gt_tensor_grad(w), 0, 0);
        CHECK_VALUES(gt_tensor_grad(b), 0, 0);
    }
    CHECK_VALUES(mean, 0.5, -1);
    CHECK_VALUES(var, 2, 3);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, D4_empty_batches_go_through_every_layer) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(0, 6)), *image = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(0, 2, 4, 4)),
              *labels = gt_tensor_zeros(ctx, GT_DTYPE_I64, SHAPE(0));
    gt_tensor *w = gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(3, 6), 1), *b = gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(3), 1),
              *g = gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(6), 1);
    gt_pool2d_options pool;
    CHECK_OK(gt_pool2d_options_init(&pool, sizeof pool));
    pool.kernel[0] = pool.kernel[1] = 2;
    gt_tensor *leaves[3] = {w, b, g};
    for (int i = 0; i < 3; i++) CHECK_OK(gt_tensor_set_requires_grad(leaves[i], 1));
    CHECK_SHAPE(gt_max_pool2d(image, &pool), 0, 2, 2, 2);
    CHECK_SHAPE(gt_avg_pool2d(image, &pool), 0, 2, 2, 2);
    CHECK_SHAPE(gt_adaptive_avg_pool2d(image, 3, 1), 0, 2, 3, 1);
    CHECK_SHAPE(gt_flatten(image, 1), 0, 32);
    CHECK_SHAPE(gt_dropout(x, 0.5, 1), 0, 6);
    CHECK_SHAPE(gt_softmax(x, 1), 0, 6);
    CHECK_SHAPE(gt_argmax(x, 1, 0), 0);
    CHECK_SHAPE(gt_embedding(w, labels), 0, 6);
    gt_tensor *loss = gt_cross_entropy(gt_linear_activation(gt_layer_norm(x, g, g, 1, 1e-5), w, b, GT_ACTIVATION_RELU), labels, NULL);
    CHECK_VALUES(loss, 0);
    CHECK_OK(gt_backward(loss));
    for (int i = 0; i < 3; i++) {
        double v[18];
        int64_t n = gt_tensor_numel(leaves[i]);
        CHECK_OK(gt_tensor_read(gt_cast(gt_tensor_grad(leaves[i]), GT_DTYPE_F64), v, (size_t)n * sizeof *v));
        for (int64_t j = 0; j < n; j++) CHECK(v[j] == 0);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, D5_one_value_a_channel_in_training_is_BAD_BATCH) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *mean = F32(ctx, SHAPE(3), 1, 2, 3), *var = F32(ctx, SHAPE(3), 1, 2, 3);
    CHECK_REFUSED(gt_batch_norm(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(1, 3, 1, 1)), NULL, NULL, mean, var, 1, 0.1, 1e-5), GT_BAD_BATCH,
                  "batch_norm: one value a channel in training has no variance (input [1,3,1,1])");
    CHECK_REFUSED(gt_batch_norm(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(1, 3)), NULL, NULL, mean, var, 1, 0.1, 1e-5), GT_BAD_BATCH,
                  "[1,3]");
    CHECK_VALUES(mean, 1, 2, 3);
    CHECK_TENSOR(gt_batch_norm(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(1, 3)), NULL, NULL, mean, var, 0, 0.1, 1e-5));
    CHECK_TENSOR(gt_batch_norm(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(1, 3, 1, 2)), NULL, NULL, mean, var, 1, 0.1, 1e-5));
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, D5_batch_norm_gives_the_worked_numbers) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_dtype wide = *d == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32;
        gt_tensor *x = MAKE(ctx, *d, SHAPE(4, 1, 1, 1), 1, 2, 3, 4), *mean = gt_tensor_zeros(ctx, wide, SHAPE(1)),
                  *var = gt_tensor_full(ctx, wide, SHAPE(1), 1);
        CHECK_VALUES_TOL(gt_batch_norm(x, NULL, NULL, mean, var, 1, 0.1, 1e-5),
                         GT_DTYPE_F32 == wide && *d != GT_DTYPE_F32 ? tolerance_of(*d) : 1e-6, -1.341635, -0.447212, 0.447212, 1.341635);
        CHECK_VALUES_TOL(mean, 1e-6, 0.25);
        CHECK_VALUES_TOL(var, 1e-6, 1.066667);
    }
    gt_scope_end(ctx);
}

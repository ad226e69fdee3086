/* A4: sums and gradients accumulate in f32 whatever the tensors' dtype. */
#include "unit/ops_util.h"

static const gt_dtype halves[2] = {GT_DTYPE_F16, GT_DTYPE_BF16};

/* f16 cannot count ones beyond 2048, bf16 not beyond 256. */
TEST_DEVICES(contract, A4_sums_of_half_precision_count_in_f32) {
    gt_context *ctx = test_context(t);
    const int32_t first = 0, last = 1;
    gt_scope_begin(ctx);
    for (int h = 0; h < 2; h++) {
        gt_tensor *x = gt_tensor_full(ctx, halves[h], SHAPE(4096), 1), *m = gt_tensor_full(ctx, halves[h], SHAPE(8192, 2), 1);
        CHECK_VALUES(gt_sum(x, NULL, 0, 0), 4096);
        CHECK_VALUES(gt_mean(x, NULL, 0, 0), 1);
        CHECK_VALUES(gt_sum(m, &first, 1, 0), 8192, 8192);
        CHECK_VALUES(gt_sum(gt_transpose(m, 0, 1), &last, 1, 0), 8192, 8192);
        CHECK_VALUES(gt_matmul(gt_reshape(x, SHAPE(1, 4096)), gt_reshape(x, SHAPE(4096, 1))), 4096);
        CHECK_VALUES(gt_conv2d(gt_reshape(x, SHAPE(1, 64, 8, 8)), gt_reshape(x, SHAPE(1, 64, 8, 8)), NULL, NULL), 4096);
        gt_tensor *sixteenths = gt_tensor_full(ctx, halves[h], SHAPE(1, 1, 64, 64), 0.0625);
        gt_pool2d_options pool;
        CHECK_OK(gt_pool2d_options_init(&pool, sizeof pool));
        pool.kernel[0] = pool.kernel[1] = 64;
        CHECK_VALUES(gt_avg_pool2d(sixteenths, &pool), 0.0625);
        CHECK_VALUES(gt_adaptive_avg_pool2d(sixteenths, 1, 1), 0.0625);
        CHECK_VALUES(gt_sum(gt_softmax(gt_tensor_zeros(ctx, halves[h], SHAPE(1, 4096)), 1), NULL, 0, 0), 1);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, A4_weight_gradients_of_half_precision_count_in_f32) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (int h = 0; h < 2; h++)
        for (int relu = 0; relu < 2; relu++) {
            gt_tensor *x = gt_tensor_full(ctx, halves[h], SHAPE(4096, 1), 1), *w = gt_tensor_full(ctx, halves[h], SHAPE(1, 1), 1),
                      *b = gt_tensor_full(ctx, halves[h], SHAPE(1), 1);
            gt_tensor *image = gt_reshape(x, SHAPE(64, 1, 8, 8)), *k = gt_tensor_full(ctx, halves[h], SHAPE(1, 1, 1, 1), 1),
                      *kb = gt_tensor_full(ctx, halves[h], SHAPE(1), 1);
            gt_tensor *leaves[4] = {w, b, k, kb};
            for (int i = 0; i < 4; i++) CHECK_OK(gt_tensor_set_requires_grad(leaves[i], 1));
            gt_conv2d_options o;
            CHECK_OK(gt_conv2d_options_init(&o, sizeof o));
            o.activation = relu ? GT_ACTIVATION_RELU : GT_ACTIVATION_NONE;
            gt_tensor *out[2] = {gt_linear_activation(x, w, b, o.activation), gt_conv2d(image, k, kb, &o)};
            gt_tensor *dy[2] = {gt_tensor_full(ctx, halves[h], SHAPE(4096, 1), 1), gt_tensor_full(ctx, halves[h], SHAPE(64, 1, 8, 8), 1)};
            CHECK_OK(gt_backward_from(out, dy, 2, 0));
            for (int i = 0; i < 4; i++) CHECK_VALUES(gt_tensor_grad(leaves[i]), 4096);
        }
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, A4_scatter_adds_of_half_precision_count_in_f32) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (int h = 0; h < 2; h++) {
        gt_tensor *w = gt_tensor_full(ctx, halves[h], SHAPE(2, 1), 1), *i = gt_tensor_zeros(ctx, GT_DTYPE_I64, SHAPE(3001));
        CHECK_OK(gt_tensor_set_requires_grad(w, 1));
        gt_tensor *y = gt_embedding(w, i), *dy = gt_tensor_full(ctx, halves[h], SHAPE(3001, 1), 1);
        CHECK_OK(gt_backward_from(&y, &dy, 1, 0));
        CHECK_EQ_INT(gt_tensor_dtype(gt_tensor_grad(w)), GT_DTYPE_F32);
        CHECK_VALUES(gt_tensor_grad(w), 3001, 0);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, A4_gradients_that_meet_are_summed_in_f32) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (int h = 0; h < 2; h++) {
        double big = h == 0 ? 2048 : 256;
        gt_tensor *w = gt_tensor_full(ctx, halves[h], 0, NULL, 1);
        CHECK_OK(gt_tensor_set_requires_grad(w, 1));
        /* in a leaf, over two backwards */
        CHECK_OK(gt_backward(gt_mul_scalar(w, big)));
        CHECK_OK(gt_backward(gt_mul_scalar(w, 1)));
        CHECK_VALUES(gt_tensor_grad(w), big + 1);
        /* and on the way: big + 1 + 1, rounded once at the end */
        CHECK_OK(gt_tensor_zero_grad(w));
        gt_tensor *y = gt_neg(w);
        CHECK_OK(gt_backward(gt_add(gt_add(gt_mul_scalar(y, 1), gt_mul_scalar(y, 1)), gt_mul_scalar(y, big))));
        CHECK_VALUES(gt_tensor_grad(w), -(big + 2));
    }
    gt_scope_end(ctx);
}

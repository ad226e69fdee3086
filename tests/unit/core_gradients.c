/* What backward keeps and where gradients are summed: recomputed norms, weight gradients written straight into leaves, halves that meet. */
#include "unit/ops_util.h"

#include <stdbool.h>

static uint64_t in_use(gt_context *ctx, gt_memory_category category) {
    gt_memory_stats s;
    CHECK_OK(gt_memory_stats_init(&s, sizeof s));
    CHECK_OK(gt_memory_get_stats(ctx, &s));
    return s.category_in_use[category];
}

static gt_tensor *leaf(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, double low, double high) {
    gt_tensor *t = CHECK_TENSOR(gt_cast(CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, ndim, shape, low, high)), dtype));
    t = CHECK_TENSOR(gt_tensor_detach(t));
    CHECK_OK(gt_tensor_set_requires_grad(t, 1));
    return t;
}

/* conv2d(relu(batch_norm(conv2d(x)))), with the two in the middle as one op or as two. The scope of the caller keeps only the result. */
static gt_tensor *conv_norm_conv(gt_tensor *x, gt_tensor *const *p, bool fused) {
    gt_context *ctx = gt_tensor_context(x);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *h = gt_conv2d(x, p[0], NULL, NULL);
    if (fused)
        h = gt_batch_norm_activation(h, p[1], p[2], NULL, NULL, NULL, 1, 0.1, 1e-5, GT_ACTIVATION_RELU);
    else
        h = gt_relu(gt_batch_norm(h, p[1], p[2], NULL, NULL, 1, 0.1, 1e-5));
    return CHECK_TENSOR(gt_scope_return(ctx, gt_sum(gt_square(gt_conv2d(h, p[3], NULL, NULL)), NULL, 0, 0)));
}

TEST_DEVICES(unit, a_large_normalised_activation_is_computed_again_instead_of_kept) {
    gt_context *ctx = test_context(t);
    enum { N = 8, C = 16, SIZE = 66, MIDDLE = N * C * 64 * 64 }; /* 2 MiB of f32 behind the first convolution */
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(N, 3, SIZE, SIZE), -1, 1));
    gt_tensor *p[4] = {leaf(ctx, GT_DTYPE_F32, SHAPE(C, 3, 3, 3), -0.3, 0.3), leaf(ctx, GT_DTYPE_F32, SHAPE(C), 0.5, 1.5),
                       leaf(ctx, GT_DTYPE_F32, SHAPE(C), -0.5, 0.5), leaf(ctx, GT_DTYPE_F32, SHAPE(4, C, 3, 3), -0.1, 0.1)};
    static float grads[2][4][4 * C * 3 * 3];
    uint64_t kept[2];
    for (int fused = 0; fused < 2; ++fused) {
        uint64_t before = in_use(ctx, GT_MEMORY_ACTIVATION);
        gt_tensor *loss = conv_norm_conv(x, p, fused != 0);
        kept[fused] = in_use(ctx, GT_MEMORY_ACTIVATION) - before;
        CHECK_OK(gt_backward(loss));
        for (int k = 0; k < 4; ++k) {
            CHECK_OK(gt_tensor_read(gt_tensor_grad(p[k]), grads[fused][k], gt_tensor_bytes(gt_tensor_grad(p[k]))));
            CHECK_OK(gt_tensor_zero_grad(p[k]));
        }
    }
    const uint64_t middle = MIDDLE * sizeof(float);
    EXPECT(kept[0] >= 2 * middle);       /* the norm's input, and the relu's output */
    EXPECT(kept[1] < 2 * middle);        /* the input alone, */
    EXPECT(kept[0] - kept[1] >= middle); /* which is one less */
    for (int k = 0; k < 4; ++k) CHECK_ALLCLOSE_F32(grads[1][k], grads[0][k], gt_tensor_numel(p[k]), 2e-3, 2e-2);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, a_recomputed_norm_whose_weight_was_changed_is_an_error) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(8, 3, 66, 66), -1, 1));
    gt_tensor *p[4] = {leaf(ctx, GT_DTYPE_F32, SHAPE(16, 3, 3, 3), -0.3, 0.3), leaf(ctx, GT_DTYPE_F32, SHAPE(16), 0.5, 1.5),
                       leaf(ctx, GT_DTYPE_F32, SHAPE(16), -0.5, 0.5), leaf(ctx, GT_DTYPE_F32, SHAPE(4, 16, 3, 3), -0.1, 0.1)};
    gt_tensor *loss = conv_norm_conv(x, p, true);
    CHECK_OK(gt_no_grad_begin(ctx));
    CHECK_OK(gt_tensor_fill(p[1], 1));
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_STATUS(gt_backward(loss), GT_SAVED_MODIFIED);
    EXPECT_ERROR_HAS("batch_norm_relu");
    CHECK_OK(gt_scope_end(ctx));
}

/* 2049 ones: an f16 would round the sum to 2048. */
TEST_DEVICES(unit, weight_gradients_of_half_products_are_summed_in_f32) {
    gt_context *ctx = test_context(t);
    enum { ROWS = 2049 };
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *ones = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F16, SHAPE(ROWS, 8), 1));
    gt_tensor *weight = leaf(ctx, GT_DTYPE_F32, SHAPE(8, 8), 0, 0.01), *bias = leaf(ctx, GT_DTYPE_F32, SHAPE(8), 0, 0.01);
    for (int step = 1; step <= 3; ++step) {
        CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
        gt_tensor *y = CHECK_TENSOR(gt_linear(ones, weight, bias));
        CHECK_OK(gt_autocast_end(ctx));
        CHECK_EQ_INT(gt_tensor_dtype(y), GT_DTYPE_F16);
        gt_tensor *dy = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F16, SHAPE(ROWS, 8), 1));
        CHECK_OK(gt_backward_from(&y, &dy, 1, 0));
        CHECK_EQ_INT(gt_tensor_dtype(gt_tensor_grad(weight)), GT_DTYPE_F32);
        float dw[64], db[8];
        CHECK_OK(gt_tensor_read(gt_tensor_grad(weight), dw, sizeof dw));
        CHECK_OK(gt_tensor_read(gt_tensor_grad(bias), db, sizeof db));
        for (int i = 0; i < 64; ++i) CHECK(dw[i] == (float)(ROWS * step));
        for (int i = 0; i < 8; ++i) CHECK(db[i] == (float)(ROWS * step));
    }
    CHECK_OK(gt_scope_end(ctx));
}

/* A gradient that somebody keeps is not added to behind his back. */
TEST_DEVICES(unit, a_retained_gradient_stays_as_it_was) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(2, 2), 1)), *weight = leaf(ctx, GT_DTYPE_F32, SHAPE(2, 2), 1, 2);
    CHECK_OK(gt_backward(gt_sum(gt_linear(x, weight, NULL), NULL, 0, 0)));
    gt_tensor *kept = gt_tensor_retain(gt_tensor_grad(weight));
    CHECK_OK(gt_backward(gt_sum(gt_linear(x, weight, NULL), NULL, 0, 0)));
    CHECK_VALUES(kept, 2, 2, 2, 2);
    CHECK_VALUES(gt_tensor_grad(weight), 4, 4, 4, 4);
    gt_tensor_release(kept);
    CHECK_OK(gt_scope_end(ctx));
}

/* y is used `uses` times with gradients of 1, 2^-11, 2^-11: in f16 1 + 2^-11 rounds to 1, so that the third would vanish too if halves were summed. */
static double halves_met(gt_context *ctx, int uses) {
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = leaf(ctx, GT_DTYPE_F16, SHAPE(4), 0, 1), *y = CHECK_TENSOR(gt_mul_scalar(x, 1));
    gt_tensor *dys[3], *ys[3];
    for (int i = 0; i < uses; ++i) {
        ys[i] = CHECK_TENSOR(gt_mul_scalar(y, 1));
        dys[i] = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F16, SHAPE(4), i == 0 ? 1 : ldexp(1, -11)));
    }
    CHECK_OK(gt_backward_from(ys, dys, uses, 0));
    double sum = 0;
    CHECK_OK(gt_tensor_item(gt_slice(gt_tensor_grad(x), 0, 0, 1, 1), &sum));
    CHECK_OK(gt_scope_end(ctx));
    return sum;
}

TEST_DEVICES(unit, halves_that_meet_are_summed_in_f32_and_rounded_once) {
    gt_context *ctx = test_context(t);
    CHECK(halves_met(ctx, 2) == 1.0);                 /* 1 + 2^-11 is half way: to even */
    CHECK(halves_met(ctx, 3) == 1.0 + ldexp(1, -10)); /* 1 + 2^-10 */
}

/* The sum of two halves takes the place of one of them. */
TEST_DEVICES(unit, halves_that_meet_need_no_f32_copy) {
    gt_context *ctx = test_context(t);
    enum { COUNT = 1 << 22 };
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = leaf(ctx, GT_DTYPE_F16, SHAPE(COUNT), 0, 1);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *y = CHECK_TENSOR(gt_mul_scalar(x, 1));
    gt_tensor *loss = CHECK_TENSOR(gt_sum(gt_cast(gt_add(gt_mul_scalar(y, 2), gt_mul_scalar(y, 3)), GT_DTYPE_F32), NULL, 0, 0));
    gt_tensor_retain(loss);
    CHECK_OK(gt_scope_end(ctx));
    gt_memory_stats s;
    CHECK_OK(gt_memory_stats_init(&s, sizeof s));
    CHECK_OK(gt_memory_get_stats(ctx, &s));
    uint64_t before = s.in_use;
    CHECK_OK(gt_memory_reset_peak(ctx));
    CHECK_OK(gt_backward(loss));
    gt_tensor_release(loss);
    CHECK_OK(gt_memory_get_stats(ctx, &s));
    /* the leaf's f32 gradient (4 bytes an element) with the last half (2) or, before, the cast's f32 (4) with halves (2): with an f32 sum it would be 8 */
    EXPECT(s.peak_in_use - before <= 6ull * COUNT + (1 << 16));
    CHECK_OK(gt_scope_end(ctx));
}

/* Contract S: what an optimizer promises of half-precision steps and of gradient norms. */
#include "harness/test.h"

#include <float.h>
#include <gtrain/gtrain.h>
#include <math.h>

static gt_tensor *leaf(gt_context *ctx, gt_dtype dtype, int64_t n, double value) {
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, dtype, 1, &n, value));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    return w;
}

static gt_optimizer *optimizer_for(gt_optimizer_kind kind, double rate, double momentum, gt_tensor *w) {
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, kind));
    o.learning_rate = rate;
    o.momentum = momentum;
    o.weight_decay = 0;
    CHECK_OK(gt_optimizer_create(&o, &w, 1, &optimizer));
    return optimizer;
}

/* Gives w exactly this gradient. */
static void set_gradient(gt_tensor *w, const float *gradient) {
    gt_context *ctx = gt_tensor_context(w);
    CHECK_OK(gt_tensor_zero_grad(w));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *g =
        gt_cast(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, gt_tensor_shape(w), gradient, (size_t)gt_tensor_numel(w) * sizeof *gradient),
                gt_tensor_dtype(w));
    gt_tensor *y = gt_mul_scalar(w, 1);
    CHECK_OK(gt_backward_from(&y, &g, 1, 0));
    CHECK_OK(gt_scope_end(ctx));
}

static void read_f32(gt_tensor *w, float *out, int64_t n) {
    gt_context *ctx = gt_tensor_context(w);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_tensor_read(gt_cast(gt_tensor_detach(w), GT_DTYPE_F32), out, (size_t)n * sizeof *out));
    CHECK_OK(gt_scope_end(ctx));
}

static double clip(gt_optimizer *optimizer, gt_context *ctx, double max_norm) {
    double value = -1;
    gt_tensor *norm = NULL;
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_optimizer_clip_grad_norm(optimizer, max_norm, &norm));
    CHECK_OK(gt_tensor_item(norm, &value));
    CHECK_OK(gt_scope_end(ctx));
    return value;
}

TEST_DEVICES(contract, S4_clipping_sees_true_gradients) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = leaf(ctx, GT_DTYPE_F32, 2, 0);
    gt_optimizer *optimizer = optimizer_for(GT_OPTIMIZER_SGD, 1, 0, w);
    set_gradient(w, (const float[]){3, 4});
    CHECK_NEAR(clip(optimizer, ctx, 1), 5, 1e-6);
    CHECK_OK(gt_optimizer_step(optimizer));
    float end[2];
    read_f32(w, end, 2);
    CHECK_NEAR(end[0], -0.6, 1e-6);
    CHECK_NEAR(end[1], -0.8, 1e-6);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, S5_norm_neither_overflows_nor_underflows) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = leaf(ctx, GT_DTYPE_F32, 3, 0);
    gt_optimizer *optimizer = optimizer_for(GT_OPTIMIZER_SGD, 1, 0, w);
    static const float scales[] = {1e30f, 5e37f, 1e-30f, 1e-37f};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; ++i) {
        const float gradient[3] = {3 * scales[i], 0, 4 * scales[i]};
        set_gradient(w, gradient);
        double norm = clip(optimizer, ctx, (double)scales[i]);
        CHECK(fabs(norm / (double)scales[i] - 5) < 1e-5);
        float clipped[3];
        read_f32(gt_tensor_grad(w), clipped, 3);
        CHECK(fabs((double)clipped[0] / (double)scales[i] - 0.6) < 1e-5);
        CHECK(fabs((double)clipped[2] / (double)scales[i] - 0.8) < 1e-5);
    }
    /* The norm itself is beyond f32: still finite, and the gradients are scaled. */
    set_gradient(w, (const float[]){FLT_MAX, -FLT_MAX, FLT_MAX});
    CHECK_NEAR(clip(optimizer, ctx, 1) / (double)FLT_MAX, sqrt(3), 1e-6);
    float clipped[3];
    read_f32(gt_tensor_grad(w), clipped, 3);
    CHECK_NEAR(clipped[0], 1 / sqrt(3), 1e-6);
    CHECK(clipped[1] == -clipped[0]);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, S5_a_norm_that_is_not_finite_leaves_gradients) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = leaf(ctx, GT_DTYPE_F32, 3, 0);
    gt_optimizer *optimizer = optimizer_for(GT_OPTIMIZER_SGD, 1, 0, w);
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < 3; ++i) {
        const float gradient[3] = {100, bad[i], -7};
        set_gradient(w, gradient);
        CHECK(!isfinite(clip(optimizer, ctx, 1)));
        float after[3];
        read_f32(gt_tensor_grad(w), after, 3);
        CHECK(memcmp(after, gradient, sizeof after) == 0 || (isnan(bad[i]) && isnan(after[1]) && after[0] == 100 && after[2] == -7));
    }
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

/* 1 - 1e-4 is 1 in f16 and bf16: without a master copy, nothing would ever move. */
static void check_small_updates(test_case *t, gt_dtype dtype) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = leaf(ctx, dtype, 2, 1);
    gt_optimizer *optimizer = optimizer_for(GT_OPTIMIZER_SGD, 1e-4, 0, w);
    for (int i = 0; i < 1000; ++i) {
        set_gradient(w, (const float[]){1, 0});
        CHECK_OK(gt_optimizer_step(optimizer));
    }
    float end[2];
    read_f32(w, end, 2);
    CHECK_NEAR(end[0], 0.9, dtype == GT_DTYPE_F16 ? 5e-4 : 4e-3);
    CHECK(end[1] == 1);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, S9_small_updates_of_f16_are_not_lost) { check_small_updates(t, GT_DTYPE_F16); }
TEST_DEVICES(contract, S9_small_updates_of_bf16_are_not_lost) { check_small_updates(t, GT_DTYPE_BF16); }

TEST_DEVICES(contract, S9_a_zero_gradient_never_gives_nan) {
    gt_context *ctx = test_context(t);
    static const gt_dtype dtypes[] = {GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F32};
    for (size_t d = 0; d < 3; ++d) {
        for (gt_optimizer_kind kind = GT_OPTIMIZER_SGD; kind <= GT_OPTIMIZER_ADAMW; ++kind) {
            gt_tensor *w = leaf(ctx, dtypes[d], 2, 0.5);
            gt_optimizer *optimizer = optimizer_for(kind, 0.1, 0.9, w);
            for (int i = 0; i < 5; ++i) {
                set_gradient(w, (const float[]){0, 0});
                CHECK_OK(gt_optimizer_step(optimizer));
            }
            float end[2];
            read_f32(w, end, 2);
            CHECK(end[0] == 0.5f && end[1] == 0.5f);
            gt_optimizer_destroy(optimizer);
            gt_tensor_release(w);
        }
    }
}

/* Squares of 2^-14 and smaller are zero in f16: a half-precision second moment would divide by epsilon alone. */
TEST_DEVICES(contract, S9_state_of_half_parameters_is_f32) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = leaf(ctx, GT_DTYPE_F16, 2, 1);
    gt_optimizer *optimizer = optimizer_for(GT_OPTIMIZER_ADAM, 0.125, 0, w);
    set_gradient(w, (const float[]){6.1035e-5f, -6.1035e-5f});
    CHECK_OK(gt_optimizer_step(optimizer)); /* Adam's first step is the learning rate, whatever the gradient's size */
    float end[2];
    read_f32(w, end, 2);
    CHECK_NEAR(end[0], 0.875, 1e-3);
    CHECK_NEAR(end[1], 1.125, 1e-3);
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK_EQ_INT(stats.category_in_use[GT_MEMORY_OPTIMIZER], 4 * 512); /* master, both moments and step counts, as the allocator rounds */
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

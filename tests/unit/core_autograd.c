#include "harness/test.h"

#include <gtrain/gtrain.h>

static double item(gt_tensor *x) {
    double value = -1e30;
    CHECK_OK(gt_tensor_item(x, &value));
    return value;
}

static gt_tensor *leaf(gt_context *ctx, double value) {
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 0, NULL, value));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    return w;
}

TEST_DEVICES(unit, gradients_add_up_over_uses_and_backwards) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *w = leaf(ctx, 3);
    CHECK(gt_tensor_grad(w) == NULL);
    CHECK_OK(gt_backward(gt_add(gt_square(w), gt_mul(w, w)))); /* 4 w */
    CHECK_NEAR(item(gt_tensor_grad(w)), 12, 0);
    CHECK_OK(gt_backward(gt_square(w)));
    CHECK_NEAR(item(gt_tensor_grad(w)), 18, 0);
    CHECK_OK(gt_tensor_zero_grad(w));
    CHECK(gt_tensor_grad(w) == NULL);
    CHECK_OK(gt_backward(w));
    CHECK_NEAR(item(gt_tensor_grad(w)), 1, 0);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, a_diamond_visits_each_node_once) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *w = leaf(ctx, 1.5);
    gt_tensor *x = w;
    for (int i = 0; i < 40; ++i) x = gt_mul_scalar(gt_add(x, x), 0.5); /* 2^40 paths */
    CHECK_OK(gt_backward(x));
    CHECK_NEAR(item(gt_tensor_grad(w)), 1, 1e-6);
    CHECK_OK(gt_scope_end(ctx));
}

TEST(unit, a_long_chain_does_not_overflow_the_stack) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = leaf(ctx, 1);
    gt_tensor *x = gt_tensor_retain(w);
    for (int i = 0; i < 200000; ++i) {
        gt_tensor *next = gt_add_scalar(x, 0);
        gt_tensor_release(x);
        x = CHECK_TENSOR(next);
    }
    gt_tensor *y = CHECK_TENSOR(gt_add_scalar(x, 1));
    gt_tensor_release(x); /* never walked backward: freed from the end */
    gt_tensor_release(y);
    gt_tensor_release(w);
}

TEST_DEVICES(unit, no_grad_records_nothing) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *w = leaf(ctx, 3);
    CHECK_OK(gt_no_grad_begin(ctx));
    gt_tensor *y = CHECK_TENSOR(gt_square(w));
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_EQ_INT(gt_tensor_requires_grad(y), 0);
    CHECK_STATUS(gt_backward(y), GT_BAD_STATE);
    CHECK_ERROR_HAS("requires no gradient");
    gt_tensor *d = CHECK_TENSOR(gt_tensor_detach(gt_square(w)));
    CHECK_EQ_INT(gt_tensor_requires_grad(d), 0);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, a_second_backward_needs_retain) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *w = leaf(ctx, 3);
    gt_tensor *y = CHECK_TENSOR(gt_square(w));
    CHECK_OK(gt_backward_from(&y, NULL, 1, 1));
    CHECK_OK(gt_backward(y));
    CHECK_NEAR(item(gt_tensor_grad(w)), 12, 0);
    CHECK_STATUS(gt_backward(y), GT_BAD_STATE);
    CHECK_ERROR_HAS("square");
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, backward_takes_gradients_for_several_outputs) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[1] = {3};
    const float v[3] = {1, 2, 3}, g[3] = {1, 10, 100};
    float out[3];
    gt_tensor *w = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, shape, v, sizeof v));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    gt_tensor *roots[2] = {CHECK_TENSOR(gt_square(w)), CHECK_TENSOR(gt_sum(w, NULL, 0, 0))};
    gt_tensor *gradients[2] = {CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, shape, g, sizeof g)), NULL};
    CHECK_OK(gt_backward_from(roots, gradients, 2, 0));
    CHECK_OK(gt_tensor_read(gt_tensor_grad(w), out, sizeof out));
    CHECK_NEAR(out[0], 3, 0);
    CHECK_NEAR(out[1], 41, 0);
    CHECK_NEAR(out[2], 601, 0);
    CHECK_OK(gt_tensor_read(gradients[0], out, sizeof out)); /* the caller's gradient is not taken over */
    CHECK_NEAR(out[2], 100, 0);
    gt_tensor *whole = gt_square(w);
    CHECK_STATUS(gt_backward(whole), GT_BAD_SHAPE);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, half_leaves_have_f32_gradients) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F16, 0, NULL, 1));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    CHECK_OK(gt_backward(gt_mul_scalar(w, 2048)));
    CHECK_OK(gt_backward(w));
    CHECK_EQ_INT(gt_tensor_dtype(gt_tensor_grad(w)), GT_DTYPE_F32);
    CHECK_NEAR(item(gt_tensor_grad(w)), 2049, 0); /* f16 would say 2048 */
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, a_failed_backward_leaves_no_gradients_and_nothing_pending) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *a = leaf(ctx, 2), *b = leaf(ctx, 3);
    gt_tensor *early = CHECK_TENSOR(gt_mul(a, b)); /* saves a and b */
    gt_tensor *loss = CHECK_TENSOR(gt_add(gt_square(b), early));
    CHECK_OK(gt_tensor_fill(a, 5));
    CHECK_STATUS(gt_backward(loss), GT_SAVED_MODIFIED);
    CHECK(gt_tensor_grad(a) == NULL);
    CHECK(gt_tensor_grad(b) == NULL);
    CHECK_OK(gt_backward(gt_mul(a, b))); /* and the context goes on */
    CHECK_NEAR(item(gt_tensor_grad(b)), 5, 0);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(contract, C4_a_saved_tensor_changed_in_place_is_named) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *a = leaf(ctx, 2), *b = leaf(ctx, 3);
    CHECK_OK(gt_tensor_set_name(b, "weights of mine"));
    gt_tensor *y = CHECK_TENSOR(gt_mul(a, b));
    const float four = 4;
    CHECK_OK(gt_tensor_write(b, &four, sizeof four));
    CHECK_STATUS(gt_backward(y), GT_SAVED_MODIFIED);
    CHECK_ERROR_HAS("mul");
    CHECK_ERROR_HAS("weights of mine");
    /* an op that does not need its input does not mind */
    gt_tensor *z = CHECK_TENSOR(gt_add(a, b));
    CHECK_OK(gt_tensor_fill(b, 7));
    CHECK_OK(gt_backward(z));
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(contract, C4_views_changed_in_place_give_the_right_gradient) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[1] = {4}, half[1] = {2};
    const float v[4] = {1, 2, 3, 4}, u[2] = {5, 6};
    float out[4];
    gt_tensor *w = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, shape, v, sizeof v));
    gt_tensor *s = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, half, u, sizeof u));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    CHECK_OK(gt_tensor_set_requires_grad(s, 1));
    gt_tensor *x = CHECK_TENSOR(gt_mul_scalar(w, 2));          /* 2 4 6 8 */
    gt_tensor *before = CHECK_TENSOR(gt_slice(x, 0, 1, 4, 1)); /* a view made before the change sees it */
    gt_tensor *part = CHECK_TENSOR(gt_slice(x, 0, 1, 3, 1));
    CHECK_OK(gt_tensor_copy(part, gt_mul_scalar(s, 3))); /* x = 2 15 18 8 */
    CHECK_OK(gt_tensor_read(x, out, sizeof out));
    CHECK_NEAR(out[1], 15, 0);
    CHECK_NEAR(out[3], 8, 0);
    gt_tensor *roots[2] = {CHECK_TENSOR(gt_sum(gt_square(x), NULL, 0, 0)), CHECK_TENSOR(gt_sum(before, NULL, 0, 0))};
    CHECK_OK(gt_backward_from(roots, NULL, 2, 0));
    /* d/dx = 2 x + [0 1 1 1] = 4 31 37 17; dw = 2 d/dx outside the view, 0 inside; ds = 3 d/dx inside */
    CHECK_OK(gt_tensor_read(gt_tensor_grad(w), out, sizeof out));
    CHECK_NEAR(out[0], 8, 0);
    CHECK_NEAR(out[1], 0, 0);
    CHECK_NEAR(out[2], 0, 0);
    CHECK_NEAR(out[3], 34, 0);
    CHECK_OK(gt_tensor_read(gt_tensor_grad(s), out, 8));
    CHECK_NEAR(out[0], 93, 0);
    CHECK_NEAR(out[1], 111, 0);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, overwriting_a_result_cuts_its_history) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *a = leaf(ctx, 2), *b = leaf(ctx, 3);
    gt_tensor *x = CHECK_TENSOR(gt_mul_scalar(a, 5));
    CHECK_OK(gt_tensor_copy(x, gt_mul_scalar(b, 7)));
    CHECK_OK(gt_backward(gt_mul_scalar(x, 10)));
    CHECK(gt_tensor_grad(a) == NULL);
    CHECK_NEAR(item(gt_tensor_grad(b)), 70, 0);
    CHECK_STATUS(gt_tensor_copy(a, gt_mul_scalar(b, 7)), GT_BAD_STATE);
    CHECK_OK(gt_no_grad_begin(ctx));
    CHECK_OK(gt_tensor_copy(a, gt_mul_scalar(b, 7)));
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_NEAR(item(a), 21, 0);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(contract, M2_keeping_losses_keeps_no_graph) {
    gt_context *ctx = test_context(t);
    enum { STEPS = 200 };
    static gt_tensor *losses[STEPS];
    const int64_t shape[1] = {1 << 18}; /* 1 MiB */
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 0.5));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    gt_memory_stats first, last;
    CHECK_OK(gt_memory_stats_init(&first, sizeof first));
    CHECK_OK(gt_memory_stats_init(&last, sizeof last));
    for (int i = 0; i < STEPS; ++i) {
        CHECK_OK(gt_scope_begin(ctx));
        losses[i] = gt_tensor_retain(gt_sum(gt_tanh(w), NULL, 0, 0));
        CHECK_OK(gt_backward(losses[i]));
        CHECK_OK(gt_scope_end(ctx));
        CHECK_OK(gt_memory_get_stats(ctx, i == 0 ? &first : &last));
    }
    CHECK(last.in_use - first.in_use <= 4096u * (STEPS - 1));
    for (int i = 0; i < STEPS; ++i) gt_tensor_release(losses[i]);
    gt_tensor_release(w);
}

TEST_DEVICES(unit, backward_releases_memory_as_it_goes) {
    gt_context *ctx = test_context(t);
    const int64_t image[4] = {8, 16, 64, 64}, kernel[4] = {16, 16, 1, 1}, bias[1] = {16}; /* 2 MiB each image */
    const uint64_t mib = 1u << 20;
    gt_conv2d_options options;
    CHECK_OK(gt_conv2d_options_init(&options, sizeof options));
    options.activation = GT_ACTIVATION_RELU;
    CHECK_OK(gt_context_set_workspace_limit(ctx, 0));
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 4, kernel, 0.01));
    gt_tensor *b = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, bias, 0.01));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    CHECK_OK(gt_tensor_set_requires_grad(b, 1));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = gt_tensor_retain(CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 4, image, 1)));
    CHECK_OK(gt_scope_end(ctx));
    for (int i = 0; i < 6; ++i) {
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *y = gt_tensor_retain(CHECK_TENSOR(gt_conv2d(x, w, b, &options)));
        CHECK_OK(gt_scope_end(ctx));
        gt_tensor_release(x);
        x = y;
    }
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *loss = CHECK_TENSOR(gt_scope_return(ctx, gt_sum(gt_square(x), NULL, 0, 0)));
    gt_tensor_release(x); /* only the record keeps the activations: x and six results */
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK(stats.in_use >= 14 * mib && stats.in_use < 15 * mib);
    CHECK_OK(gt_memory_reset_peak(ctx));
    CHECK_OK(gt_backward(loss));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK(stats.in_use < mib);
    CHECK(stats.peak_in_use < 19 * mib); /* never more than two gradients beside them: a result goes when its gradient was applied */
    CHECK_OK(gt_scope_end(ctx));
    gt_tensor_release(w);
    gt_tensor_release(b);
}

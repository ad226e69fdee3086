/* C4: a tensor changed in place after it was saved is an error that names it, never a silently wrong gradient. */
#include "unit/ops_util.h"

static gt_tensor *leaf(gt_context *ctx, const char *name) {
    gt_tensor *x = F32(ctx, SHAPE(2), 2, 3);
    CHECK_OK(gt_tensor_set_name(x, name));
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    return x;
}

TEST_DEVICES(contract, C4_a_changed_saved_tensor_is_named) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (int way = 0; way < 4; way++) {
        gt_tensor *x = leaf(ctx, "speed"), *y = gt_sum(gt_square(x), NULL, 0, 0);
        CHECK_OK(gt_no_grad_begin(ctx));
        if (way == 0) CHECK_OK(gt_tensor_fill(x, 0));
        if (way == 1) CHECK_OK(gt_tensor_write(x, (const float[]){0, 0}, 8));
        if (way == 2) CHECK_OK(gt_tensor_copy(x, gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2))));
        if (way == 3) CHECK_OK(gt_tensor_fill(gt_slice(x, 0, 0, 1, 1), 0)); /* through a view */
        CHECK_OK(gt_no_grad_end(ctx));
        CHECK_STATUS(gt_backward(y), GT_SAVED_MODIFIED);
        CHECK_ERROR_HAS("square");
        CHECK_ERROR_HAS("\"speed\"");
        CHECK(gt_tensor_grad(x) == NULL);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, C4_a_changed_saved_output_is_named) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = leaf(ctx, "x"), *y = gt_exp(x);
    CHECK_OK(gt_tensor_set_name(y, "growth"));
    gt_tensor *loss = gt_sum(y, NULL, 0, 0);
    CHECK_OK(gt_no_grad_begin(ctx));
    CHECK_OK(gt_tensor_fill(y, 1));
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_STATUS(gt_backward(loss), GT_SAVED_MODIFIED);
    CHECK_ERROR_HAS("exp");
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, C4_what_no_gradient_needs_may_be_changed) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = leaf(ctx, "x"), *c = F32(ctx, SHAPE(2), 5, 7);
    gt_tensor *h = gt_add(x, c), *y = gt_relu(h), *loss = gt_sum(y, NULL, 0, 0); /* add saves nothing, relu its output */
    CHECK_OK(gt_tensor_fill(c, 100));
    CHECK_OK(gt_no_grad_begin(ctx));
    CHECK_OK(gt_tensor_fill(h, -1));
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_OK(gt_backward(loss));
    CHECK_VALUES(gt_tensor_grad(x), 1, 1);
    /* y = x w saves w for x alone: x may change if only x wants a gradient */
    gt_tensor *a = leaf(ctx, "a"), *w = F32(ctx, SHAPE(2), 10, 20), *p = gt_sum(gt_mul(a, w), NULL, 0, 0);
    CHECK_OK(gt_no_grad_begin(ctx));
    CHECK_OK(gt_tensor_fill(a, 0));
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_OK(gt_backward(p));
    CHECK_VALUES(gt_tensor_grad(a), 10, 20);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, C4_batch_norm_counts_as_a_change_of_its_statistics) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2, 1), 1, 3), *mean = F32(ctx, SHAPE(1), 2), *var = F32(ctx, SHAPE(1), 1), *w = F32(ctx, SHAPE(1), 3);
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    gt_tensor *loss = gt_mul(w, mean);
    CHECK_TENSOR(gt_batch_norm(x, NULL, NULL, mean, var, 1, 0.5, 1e-5));
    CHECK_STATUS(gt_backward(loss), GT_SAVED_MODIFIED);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, C4_a_copy_into_a_view_reaches_both_sources) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *v = F32(ctx, SHAPE(2), 10, 20);
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_tensor_set_requires_grad(v, 1));
    gt_tensor *h = gt_mul_scalar(x, 2), *column = gt_reshape(gt_slice(h, 1, 1, 2, 1), SHAPE(2)), *other = gt_transpose(h, 0, 1);
    CHECK_OK(gt_tensor_copy(column, v));
    CHECK_VALUES(h, 2, 10, 6, 8, 20, 12);
    CHECK_OK(gt_backward(gt_sum(gt_square(other), NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(x), 8, 0, 24, 32, 0, 48);
    CHECK_VALUES(gt_tensor_grad(v), 20, 40);
    gt_scope_end(ctx);
}

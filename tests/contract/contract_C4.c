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

TEST_DEVICES(contract, C4_a_weight_changed_under_autocast_is_named) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (int way = 0; way < 3; way++) {
        gt_tensor *w = F32(ctx, SHAPE(1, 2), 2, 3), *x = F32(ctx, SHAPE(1, 2), 1, 1);
        CHECK_OK(gt_tensor_set_name(w, "fc1.weight"));
        CHECK_OK(gt_tensor_set_requires_grad(w, 1));
        CHECK_OK(gt_tensor_set_requires_grad(x, 1));
        CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
        gt_tensor *y = gt_linear(x, w, NULL);
        CHECK_OK(gt_no_grad_begin(ctx));
        CHECK_OK(gt_tensor_fill(way == 1 ? gt_slice(w, 1, 0, 1, 1) : w, 7));
        if (way == 2) CHECK_VALUES(gt_linear(x, w, NULL), 14); /* another use has renewed the half copy that y's record holds */
        CHECK_OK(gt_no_grad_end(ctx));
        CHECK_OK(gt_autocast_end(ctx));
        CHECK_STATUS(gt_backward(y), GT_SAVED_MODIFIED);
        CHECK_ERROR_HAS("linear");
        CHECK_ERROR_HAS("\"fc1.weight\"");
        CHECK(gt_tensor_grad(w) == NULL);
        CHECK(gt_tensor_grad(x) == NULL);
    }
    gt_scope_end(ctx);
}

/* --- segments */
typedef struct segment_use {
    gt_tensor *w;
    int way;
} segment_use;

static gt_status weighted(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    segment_use *use = user;
    gt_context *ctx = gt_tensor_context(inputs[0]);
    gt_tensor *h = gt_mul(inputs[0], use->w);
    if (use->way == 1) { /* a change in place of a result, through a view */
        if (gt_tensor_fill(gt_slice(h, 0, 0, 1, 1), 5) != GT_OK) return gt_last_error()->status;
    }
    if (use->way == 2) { /* a copy of something that depends on the input into a fresh tensor */
        gt_tensor *fresh = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2));
        if (gt_tensor_copy(gt_slice(fresh, 0, 1, 2, 1), gt_slice(h, 0, 0, 1, 1)) != GT_OK) return gt_last_error()->status;
        h = fresh;
    }
    outputs[0] = gt_square(h);
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

TEST_DEVICES(contract, C4_what_a_segment_used_is_named_if_it_was_changed) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (int way = 0; way < 4; way++) {
        gt_tensor *x = leaf(ctx, "speed"), *w = F32(ctx, SHAPE(2), 4, 5), *y = NULL;
        CHECK_OK(gt_tensor_set_name(w, "gain"));
        if (way == 3) CHECK_OK(gt_tensor_set_requires_grad(w, 1));
        segment_use use = {.w = w};
        CHECK_OK(gt_checkpoint(ctx, weighted, &use, &x, 1, &y, 1));
        gt_tensor *loss = gt_sum(y, NULL, 0, 0);
        CHECK_OK(gt_no_grad_begin(ctx));
        if (way == 0) CHECK_OK(gt_tensor_fill(x, 0));
        if (way == 1) CHECK_OK(gt_tensor_fill(gt_slice(w, 0, 0, 1, 1), 0));
        if (way >= 2) CHECK_OK(gt_tensor_write(w, (const float[]){0, 0}, 8));
        CHECK_OK(gt_no_grad_end(ctx));
        uint64_t offset, after;
        CHECK_OK(gt_random_state_get(ctx, NULL, &offset));
        CHECK_STATUS(gt_backward(loss), GT_SAVED_MODIFIED);
        CHECK_ERROR_HAS(way == 0 ? "\"speed\"" : "\"gain\"");
        CHECK_ERROR_HAS("checkpoint");
        CHECK(gt_tensor_grad(x) == NULL && gt_tensor_grad(w) == NULL);
        CHECK_OK(gt_random_state_get(ctx, NULL, &after));
        CHECK_EQ_INT(offset, after);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, C4_changes_in_place_and_views_inside_a_segment) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (int way = 1; way <= 2; way++) {
        gt_tensor *x = leaf(ctx, "x"), *w = F32(ctx, SHAPE(2), 4, 5), *y = NULL;
        CHECK_OK(gt_tensor_set_requires_grad(w, 1));
        segment_use use = {.w = w, .way = way};
        CHECK_OK(gt_checkpoint(ctx, weighted, &use, &x, 1, &y, 1));
        CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
        if (way == 1) { /* h = (5, 15) */
            CHECK_VALUES(y, 25, 225);
            CHECK_VALUES(gt_tensor_grad(x), 0, 2 * 15 * 5);
            CHECK_VALUES(gt_tensor_grad(w), 0, 2 * 15 * 3);
        } else { /* h = (0, 8) */
            CHECK_VALUES(y, 0, 64);
            CHECK_VALUES(gt_tensor_grad(x), 2 * 8 * 4, 0);
            CHECK_VALUES(gt_tensor_grad(w), 2 * 8 * 2, 0);
        }
    }
    gt_scope_end(ctx);
}

/* An input that the segment itself overwrites cannot be had again; a tensor from outside cannot take what carries a gradient. */
static gt_status overwrites(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    gt_tensor *outside = user;
    if (outside && gt_tensor_copy(outside, gt_square(inputs[0])) != GT_OK) return gt_last_error()->status;
    if (!outside && gt_tensor_fill(inputs[0], 1) != GT_OK) return gt_last_error()->status;
    outputs[0] = gt_square(inputs[0]);
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

TEST_DEVICES(contract, C4_a_segment_that_overwrites_what_is_not_its_own) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = leaf(ctx, "x"), *h = gt_mul_scalar(x, 2), *outside = F32(ctx, SHAPE(2), 0, 0), *y = NULL;
    CHECK_OK(gt_tensor_set_name(h, "half"));
    CHECK_OK(gt_tensor_set_name(outside, "elsewhere"));
    CHECK_OK(gt_checkpoint(ctx, overwrites, NULL, &h, 1, &y, 1));
    CHECK_STATUS(gt_backward(gt_sum(y, NULL, 0, 0)), GT_SAVED_MODIFIED);
    CHECK_ERROR_HAS("\"half\"");
    CHECK_STATUS(gt_checkpoint(ctx, overwrites, outside, &x, 1, &y, 1), GT_BAD_STATE);
    CHECK_ERROR_HAS("\"elsewhere\"");
    CHECK(y == NULL);
    CHECK_VALUES(outside, 0, 0);
    gt_scope_end(ctx);
}

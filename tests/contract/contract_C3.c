/* C3: a segment whose input needs no gradient still gives its weights theirs; a frozen segment is not computed again. */
#include "unit/ops_util.h"

typedef struct scale {
    gt_tensor *w;
    int calls;
} scale;

static gt_status multiply(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    scale *s = user;
    s->calls++;
    outputs[0] = gt_mul(s->w, inputs[0]);
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

TEST_DEVICES(contract, C3_weights_get_their_gradient_without_the_input) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2), 1, 2), *y = NULL;
    scale s = {.w = F32(ctx, SHAPE(1), 3)};
    CHECK_OK(gt_tensor_set_requires_grad(s.w, 1));
    CHECK_OK(gt_checkpoint(ctx, multiply, &s, &x, 1, &y, 1));
    CHECK_VALUES(y, 3, 6);
    CHECK_EQ_INT(gt_tensor_requires_grad(y), 1);
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(s.w), 3);
    CHECK(gt_tensor_grad(x) == NULL);
    CHECK_EQ_INT(s.calls, 2);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, C3_a_frozen_segment_is_not_computed_again) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2), 1, 2), *y = NULL, *head = F32(ctx, SHAPE(2), 5, 7);
    scale s = {.w = F32(ctx, SHAPE(1), 3)};
    CHECK_OK(gt_tensor_set_requires_grad(head, 1));
    CHECK_OK(gt_checkpoint(ctx, multiply, &s, &x, 1, &y, 1));
    CHECK_EQ_INT(gt_tensor_requires_grad(y), 0);
    CHECK_OK(gt_backward(gt_sum(gt_mul(y, head), NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(head), 3, 6);
    CHECK_EQ_INT(s.calls, 1);
    /* nor in a no-grad region, where weights do not count */
    CHECK_OK(gt_tensor_set_requires_grad(s.w, 1));
    CHECK_OK(gt_no_grad_begin(ctx));
    CHECK_OK(gt_checkpoint(ctx, multiply, &s, &x, 1, &y, 1));
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_EQ_INT(gt_tensor_requires_grad(y), 0);
    CHECK_EQ_INT(s.calls, 2);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, C3_a_module_whose_input_needs_none) {
    gt_context *ctx = test_context(t);
    gt_module *layer = gt_nn_linear(ctx, 1, 1, NULL);
    gt_tensor *w = NULL;
    CHECK(layer != NULL);
    CHECK_OK(gt_module_find(layer, "weight", &w));
    CHECK_OK(gt_module_set_checkpointing(layer, 1));
    gt_scope_begin(ctx);
    CHECK_OK(gt_backward(gt_sum(gt_module_forward(layer, F32(ctx, SHAPE(2, 1), 1, 2)), NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(w), 3);
    gt_scope_end(ctx);
    gt_module_destroy(layer);
}

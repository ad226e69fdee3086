/* C7: outputs of a segment may be unused, integer, NULL, or need no gradient. */
#include "unit/ops_util.h"

static gt_status many(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    gt_tensor *x = inputs[0], *c = inputs[1];
    ++*(int *)user;
    outputs[0] = gt_mul_scalar(x, 2);
    outputs[1] = gt_argmax(x, 0, 0);
    outputs[2] = gt_mul_scalar(c, 3); /* of what needs no gradient */
    outputs[3] = NULL;
    outputs[4] = gt_square(x); /* not used by the loss */
    outputs[5] = gt_tensor_detach(outputs[4]);
    outputs[6] = x; /* an input itself */
    outputs[7] = gt_mul(x, c);
    for (int k = 0; k < 8; k++)
        if (k != 3 && outputs[k] == NULL) return gt_last_error()->status;
    return GT_OK;
}

TEST_DEVICES(contract, C7_unused_integer_and_no_gradient_outputs) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    int calls = 0;
    gt_tensor *x = F32(ctx, SHAPE(3), 1, 5, 2), *c = F32(ctx, SHAPE(3), 10, 20, 30), *out[8];
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    gt_tensor *in[2] = {x, c};
    CHECK_OK(gt_checkpoint(ctx, many, &calls, in, 2, out, 8));
    CHECK_VALUES(out[0], 2, 10, 4);
    CHECK_VALUES(out[1], 1);
    CHECK_VALUES(out[2], 30, 60, 90);
    CHECK(out[3] == NULL);
    CHECK_VALUES(out[5], 1, 25, 4);
    CHECK_EQ_INT(gt_tensor_requires_grad(out[0]), 1);
    CHECK_EQ_INT(gt_tensor_requires_grad(out[1]), 0);
    CHECK_EQ_INT(gt_tensor_requires_grad(out[2]), 0);
    gt_tensor *loss = gt_sum(gt_add(gt_add(out[0], out[7]), gt_add(out[6], out[2])), NULL, 0, 0);
    CHECK_OK(gt_backward(loss));
    CHECK_VALUES(gt_tensor_grad(x), 2 + 10 + 1, 2 + 20 + 1, 2 + 30 + 1);
    CHECK(gt_tensor_grad(c) == NULL);
    CHECK_EQ_INT(calls, 2);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, C7_a_segment_whose_outputs_are_not_used_is_not_run_again) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    int calls = 0;
    gt_tensor *x = F32(ctx, SHAPE(3), 1, 5, 2), *c = F32(ctx, SHAPE(3), 10, 20, 30), *out[8];
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    gt_tensor *in[2] = {x, c};
    CHECK_OK(gt_checkpoint(ctx, many, &calls, in, 2, out, 8));
    CHECK_OK(gt_backward(gt_sum(gt_mul(out[2], x), NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(x), 30, 60, 90);
    CHECK_EQ_INT(calls, 1);
    gt_scope_end(ctx);
}

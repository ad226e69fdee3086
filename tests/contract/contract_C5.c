/* C5: segments nest, the inner forward runs at most three times, and a second backward without retaining is an error. */
#include "unit/ops_util.h"

static gt_status inner(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    ++*(int *)user;
    outputs[0] = gt_square(inputs[0]);
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

static gt_status outer(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    gt_tensor *y = NULL;
    gt_status status = gt_checkpoint(gt_tensor_context(inputs[0]), inner, user, inputs, 1, &y, 1);
    if (status != GT_OK) return status;
    outputs[0] = gt_square(y);
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

TEST_DEVICES(contract, C5_segments_nest) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    int calls = 0;
    gt_tensor *x = F32(ctx, SHAPE(1), 3), *y = NULL;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_checkpoint(ctx, outer, &calls, &x, 1, &y, 1));
    CHECK_VALUES(y, 81);
    CHECK_OK(gt_backward(y));
    CHECK_VALUES(gt_tensor_grad(x), 108);
    CHECK(calls <= 3);
    CHECK_STATUS(gt_backward(y), GT_BAD_STATE);
    CHECK_ERROR_HAS("an earlier backward");
    CHECK(calls <= 3);
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, C5_retaining_allows_more_backwards) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    int calls = 0;
    gt_tensor *x = F32(ctx, SHAPE(1), 3), *y = NULL;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_checkpoint(ctx, outer, &calls, &x, 1, &y, 1));
    CHECK_OK(gt_backward_from(&y, NULL, 1, 1));
    CHECK_VALUES(gt_tensor_grad(x), 108);
    CHECK_OK(gt_backward_from(&y, NULL, 1, 1));
    CHECK_VALUES(gt_tensor_grad(x), 216);
    CHECK_OK(gt_backward(y));
    CHECK_VALUES(gt_tensor_grad(x), 324);
    CHECK_STATUS(gt_backward(y), GT_BAD_STATE);
    gt_scope_end(ctx);
}

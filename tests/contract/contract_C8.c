/* C8: recomputation runs in the precision mode that the forward used. */
#include "unit/ops_util.h"

static gt_status product(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    gt_tensor *w = user;
    outputs[0] = gt_matmul(inputs[0], w);
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

/* y = x w in an autocast region, the backward outside of it (or in one of another dtype). */
static gt_tensor *gradient(gt_context *ctx, int checkpoint, int other_mode) {
    gt_tensor *x = F32(ctx, SHAPE(1, 1), 1), *w = F32(ctx, SHAPE(1, 1), .1), *y = NULL;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    if (checkpoint)
        CHECK_OK(gt_checkpoint(ctx, product, w, &x, 1, &y, 1));
    else
        CHECK_OK(product(w, &x, &y));
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_EQ_INT(gt_tensor_dtype(y), GT_DTYPE_F16);
    gt_tensor *loss = CHECK_TENSOR(gt_sum(gt_cast(y, GT_DTYPE_F32), NULL, 0, 0));
    if (other_mode) CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_BF16));
    CHECK_OK(gt_backward(loss));
    if (other_mode) {
        CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_BF16);
        CHECK_OK(gt_autocast_end(ctx));
    }
    CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_F32);
    CHECK_VALUES(gt_tensor_grad(w), 1);
    return gt_tensor_grad(x);
}

TEST_DEVICES(contract, C8_the_precision_mode_of_the_forward) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    CHECK_VALUES(gradient(ctx, 0, 0), .0999755859375);
    CHECK_VALUES(gradient(ctx, 1, 0), .0999755859375);
    CHECK_VALUES(gradient(ctx, 1, 1), .0999755859375);
    gt_scope_end(ctx);
}

static gt_status cast_product(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    outputs[0] = gt_matmul(gt_cast(inputs[0], GT_DTYPE_F16), gt_cast(user, GT_DTYPE_F16));
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

TEST_DEVICES(contract, C8_casts_by_hand) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(1, 1), 1), *w = F32(ctx, SHAPE(1, 1), .1), *y = NULL;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_checkpoint(ctx, cast_product, w, &x, 1, &y, 1));
    CHECK_OK(gt_backward(gt_sum(gt_cast(y, GT_DTYPE_F32), NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(x), .0999755859375);
    gt_scope_end(ctx);
}

/* y = x w with w = .1 in f32, used as f16: dx is that f16's value. */
TEST_DEVICES(contract, C8_gradients_run_in_the_precision_of_the_forward) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (int inside = 0; inside < 2; inside++) {
        gt_tensor *x = F32(ctx, SHAPE(1, 1), 3), *w = F32(ctx, SHAPE(1, 1), 0.1);
        CHECK_OK(gt_tensor_set_requires_grad(x, 1));
        CHECK_OK(gt_tensor_set_requires_grad(w, 1));
        CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
        gt_tensor *y = gt_linear(x, w, NULL);
        CHECK_EQ_INT(gt_tensor_dtype(y), GT_DTYPE_F16);
        if (inside) CHECK_OK(gt_backward(y)); /* wherever the backward is called */
        CHECK_OK(gt_autocast_end(ctx));
        if (!inside) CHECK_OK(gt_backward(y));
        CHECK_EQ_INT(gt_tensor_dtype(gt_tensor_grad(x)), GT_DTYPE_F32);
        CHECK_VALUES(gt_tensor_grad(x), 0.0999755859375);
        CHECK_VALUES(gt_tensor_grad(w), 3);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(contract, C8_a_backward_inside_a_region_runs_as_the_forward_outside_did) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(1, 1), 3), *w = F32(ctx, SHAPE(1, 1), 0.1);
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    gt_tensor *forward_outside = gt_linear(x, w, NULL);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    CHECK_OK(gt_backward(forward_outside));
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_VALUES(gt_tensor_grad(x), 0.1f);
    gt_scope_end(ctx);
}

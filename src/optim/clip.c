/* Gradient clipping over all parameters of an optimizer, in one or two calls of the backend. */
#include "optim/optimizer.h"

#include <math.h>

static gt_status collect(gt_optimizer *optimizer, const char *who, int32_t *count) {
    int32_t found = 0;
    gt__optimizer_list_grads(optimizer, 0, optimizer->grads, count, &found);
    GT_REQUIRE(found > 0, GT_NO_GRADS, "%s: none of the %d parameters has a gradient; call gt_backward before", who, optimizer->count);
    return gt__optimizer_check_free(optimizer, who);
}

gt_status gt_optimizer_clip_grad_norm(gt_optimizer *optimizer, double max_norm, gt_tensor **norm) {
    GT_REQUIRE_HANDLE(optimizer);
    GT_REQUIRE(max_norm >= 0, GT_BAD_ARGUMENT, "gt_optimizer_clip_grad_norm: max_norm is %g; it must not be negative", max_norm);
    gt_context *ctx;
    int32_t count = 0;
    GT_TRY(gt__optimizer_context(optimizer, "gt_optimizer_clip_grad_norm", &ctx));
    GT_TRY(collect(optimizer, "gt_optimizer_clip_grad_norm", &count));
    gt__meta meta;
    GT_TRY(gt__meta_make(&meta, GT_DTYPE_F64, 0, NULL, "gt_optimizer_clip_grad_norm"));
    gt_tensor *total = gt__tensor_new_for(ctx, &meta, GT_MEMORY_TEMPORARY, "clip_grad_norm");
    if (total == NULL) return gt_last_error()->status;
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->grad_norm(ctx->device, optimizer->grads, count, total->data, NULL);
    if (status == GT_OK && count > 0) status = ctx->backend->grad_clip_norm(ctx->device, optimizer->grads, count, total->data, max_norm);
    gt__leave(ctx, previous);
    if (status == GT_OK) gt__optimizer_mark_grads(optimizer);
    if (status != GT_OK || norm == NULL) {
        gt_tensor_release(total);
        return status;
    }
    total = gt__scope_add(total);
    if (total == NULL) return gt_last_error()->status;
    *norm = total;
    return GT_OK;
}

gt_status gt_optimizer_clip_grad_value(gt_optimizer *optimizer, double max_value) {
    GT_REQUIRE_HANDLE(optimizer);
    GT_REQUIRE(max_value >= 0, GT_BAD_ARGUMENT, "gt_optimizer_clip_grad_value: max_value is %g; it must not be negative", max_value);
    gt_context *ctx;
    int32_t count = 0;
    GT_TRY(gt__optimizer_context(optimizer, "gt_optimizer_clip_grad_value", &ctx));
    GT_TRY(collect(optimizer, "gt_optimizer_clip_grad_value", &count));
    if (count > 0) {
        int32_t previous = gt__enter(ctx);
        gt_status status = ctx->backend->grad_clip_value(ctx->device, optimizer->grads, count, max_value);
        gt__leave(ctx, previous);
        GT_TRY(status);
    }
    gt__optimizer_mark_grads(optimizer);
    return GT_OK;
}

/* Scopes: a stack of handles, cut at the places where scopes began. */
#include "core/offload.h"

gt_tensor *gt__scope_add(gt_tensor *tensor) {
    if (tensor == NULL) return NULL;
    gt_context *ctx = tensor->ctx;
    if (ctx->n_scopes == 0) return tensor;
    if (ctx->n_scoped == ctx->cap_scoped) {
        int32_t capacity = GT__MAX(ctx->cap_scoped * 2, 256);
        gt_tensor **grown = gt__realloc(ctx->scoped, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            gt_tensor_release(tensor);
            return NULL;
        }
        ctx->scoped = grown;
        ctx->cap_scoped = capacity;
    }
    ctx->scoped[ctx->n_scoped++] = tensor;
    return tensor;
}

gt_status gt__scope_begin(gt_context *ctx) {
    if (ctx->n_scopes == ctx->cap_scopes) {
        int32_t capacity = GT__MAX(ctx->cap_scopes * 2, 16);
        gt__scope *grown = gt__realloc(ctx->scopes, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        ctx->scopes = grown;
        ctx->cap_scopes = capacity;
    }
    ctx->scopes[ctx->n_scopes++] = (gt__scope){.first = ctx->n_scoped};
    return GT_OK;
}

gt_status gt_scope_begin(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    GT_TRY(gt__scope_begin(ctx));
    ctx->scopes[ctx->n_scopes - 1].callers = true;
    return GT_OK;
}

gt_status gt_scope_end(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE(ctx->n_scopes > 0, GT_BAD_STATE, "gt_scope_end: no scope is open");
    gt__scope scope = ctx->scopes[--ctx->n_scopes];
    while (ctx->n_scoped > scope.first) gt_tensor_release(ctx->scoped[--ctx->n_scoped]);
    if (ctx->n_scopes == 0 && scope.callers) {
        if (!ctx->stepped && ctx->open_windows == 0) gt__allocator_next_step(ctx->allocator);
        ctx->stepped = false;
    }
    return GT_OK;
}

gt_tensor *gt_scope_return(gt_context *ctx, gt_tensor *result) {
    gt_tensor_retain(result);
    if (gt_scope_end(ctx) != GT_OK) {
        gt_tensor_release(result);
        return NULL;
    }
    return gt__scope_add(result);
}

gt_status gt__regions_enter(gt_context *ctx, gt__open_regions *open) {
    open->scopes = ctx->n_scopes;
    open->no_grad = ctx->no_grad;
    open->n_autocast = ctx->n_autocast;
    open->n_offload = gt__offload_depth(ctx);
    open->autocast = ctx->autocast;
    memcpy(open->autocast_before, ctx->autocast_before, sizeof open->autocast_before);
    return gt__scope_begin(ctx);
}

bool gt__regions_hold(const gt_context *ctx, const gt__open_regions *open) {
    return ctx->n_scopes > open->scopes && ctx->no_grad >= open->no_grad && ctx->n_autocast >= open->n_autocast &&
           gt__offload_depth(ctx) >= open->n_offload;
}

void gt__regions_leave(gt_context *ctx, const gt__open_regions *open) {
    while (ctx->n_scopes > open->scopes) (void)gt_scope_end(ctx);
    while (ctx->n_scopes < open->scopes && gt__scope_begin(ctx) == GT_OK) {
    }
    ctx->no_grad = open->no_grad;
    ctx->n_autocast = open->n_autocast;
    ctx->autocast = open->autocast;
    memcpy(ctx->autocast_before, open->autocast_before, sizeof open->autocast_before);
    gt__offload_set_depth(ctx, open->n_offload);
}

/* The public side of the allocator's history and of the files that show it. */
#include "core/core.h"
#include "memory/files.h"

#define MOST_EVENTS ((int64_t)1 << 24)

gt_status gt_memory_set_history(gt_context *ctx, int64_t events) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE(events >= 0 && events <= MOST_EVENTS, GT_BAD_ARGUMENT, "gt_memory_set_history: %lld events, not 0 to %lld",
               (long long)events, (long long)MOST_EVENTS);
    return gt__allocator_set_history(ctx->allocator, events);
}

typedef gt_status (*write_fn)(const char *who, const gt__allocator *allocator, const gt__memory_origin *origin, const char *path);

static gt_status write_file(const char *who, gt_context *ctx, const char *path, write_fn write) {
    if (ctx == NULL) return gt__error_null(who, "ctx", __FILE__, __LINE__);
    GT_REQUIRE(path != NULL && path[0] != '\0', GT_BAD_ARGUMENT, "%s: the path is %s", who, path ? "empty" : "NULL");
    gt__dropped_release(ctx);
    gt__memory_origin origin = {.device = ctx->device->name};
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->memory_info(ctx->device, &origin.free, &origin.total);
    gt__leave(ctx, previous);
    if (status != GT_OK) origin.free = origin.total = 0; /* a device that is lost is no reason to hide what happened on it */
    return write(who, ctx->allocator, &origin, path);
}

gt_status gt_memory_snapshot(gt_context *ctx, const char *path) { return write_file(__func__, ctx, path, gt__memory_write_snapshot); }
gt_status gt_memory_timeline(gt_context *ctx, const char *path) { return write_file(__func__, ctx, path, gt__memory_write_timeline); }
gt_status gt_memory_viz(gt_context *ctx, const char *path) { return write_file(__func__, ctx, path, gt__memory_write_viz); }

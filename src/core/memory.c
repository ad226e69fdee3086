/* The public side of memory statistics. */
#include "core/core.h"
#include "core/offload.h"

static const char *const category_names[] = {
#define CATEGORY_NAME(name, value, title) [value] = title,
    GT_MEMORY_LIST(CATEGORY_NAME)
#undef CATEGORY_NAME
};

const char *gt_memory_category_name(gt_memory_category category) {
    if (category < 0 || category >= GT_MEMORY_CATEGORY_COUNT) return "?";
    return category_names[category];
}

gt_status gt_memory_stats_init(gt_memory_stats *stats, size_t size) {
    gt_memory_stats defaults = {.struct_size = sizeof defaults};
    return gt__options_write(stats, size, &defaults, sizeof defaults, "gt_memory_stats");
}

gt_status gt_memory_get_stats(const gt_context *ctx, gt_memory_stats *stats) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE_HANDLE(stats);
    GT_REQUIRE(stats->struct_size >= sizeof(uint32_t), GT_BAD_ABI,
               "gt_memory_get_stats: struct_size is %u; fill the struct with gt_memory_stats_init first", (unsigned)stats->struct_size);
    gt_memory_stats ours = {.struct_size = stats->struct_size};
    gt__dropped_release((gt_context *)ctx);
    gt__allocator_stats(ctx->allocator, &ours);
    memcpy(stats, &ours, GT__MIN((size_t)stats->struct_size, sizeof ours));
    return GT_OK;
}

gt_status gt_memory_reset_peak(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    gt__dropped_release(ctx);
    gt__allocator_reset_peak(ctx->allocator);
    return GT_OK;
}

gt_status gt_memory_next_step(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    gt__step_done(ctx);
    return GT_OK;
}

void gt__step_done(gt_context *ctx) {
    ctx->stepped = true;
    if (ctx->tracer != NULL) return;
    gt__allocator_next_step(ctx->allocator);
    if (GT__UNLIKELY(ctx->profiler != NULL)) ctx->profiler->step_done(ctx->profiler);
}

gt_status gt_memory_trim(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    GT_TRY(gt_context_synchronize(ctx));
    gt__dropped_release(ctx);
    gt__half_copies_drop(ctx);
    gt__offload_trim(ctx);
    gt__allocator_trim(ctx->allocator);
    return GT_OK;
}

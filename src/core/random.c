/* The context's place in its stream of random numbers. Element i of a draw is word i % 4 of Philox block offset + i / 4. */
#include "core/core.h"

void gt__random_take(gt_context *ctx, int64_t count, gt__attrs *attr) {
    attr->random.seed = ctx->rng_seed;
    attr->random.offset = ctx->rng_offset;
    attr->random.cells = ctx->tracer ? ctx->tracer->random_cells : NULL;
    ctx->rng_offset += ((uint64_t)count + 3) / 4;
}

gt_status gt_random_seed(gt_context *ctx, uint64_t seed) { return gt_random_state_set(ctx, seed, 0); }

gt_status gt_random_state_get(const gt_context *ctx, uint64_t *seed, uint64_t *offset) {
    GT_REQUIRE_HANDLE(ctx);
    if (seed) *seed = ctx->rng_seed;
    if (offset) *offset = ctx->rng_offset;
    return GT_OK;
}

gt_status gt_random_state_set(gt_context *ctx, uint64_t seed, uint64_t offset) {
    GT_REQUIRE_HANDLE(ctx);
    ctx->rng_seed = seed;
    ctx->rng_offset = offset;
    return GT_OK;
}

/* A chain on the CPU, for chain_emulated.cpp. */
#include "core/core.h"
#include "cuda/chain_samples.h"

#include <gtrain/gtrain.h>

gt_status chain_reference(const gt__chain *chain);
gt_status chain_reference(const gt__chain *chain) {
    gt_context *ctx = NULL;
    gt_status status = gt_context_create(NULL, &ctx);
    if (status == GT_OK) status = ctx->backend->run_chain(ctx->device, chain);
    gt_context_destroy(ctx);
    return status;
}

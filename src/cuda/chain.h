/* Chains on CUDA. */
#ifndef GT_CUDA_CHAIN_H
#define GT_CUDA_CHAIN_H

#include "core/chain.h"
#include "cuda/device.h"
#include "cuda/launch.h"

bool gt__cuda_can_chain(gt__device *device, const gt__chain *chain, bool prepare);
gt_status gt__cuda_run_chain(gt__device *device, const gt__chain *chain);
/* With the context current; `gone`: CUDA is. */
void gt__cuda_chains_close(gt__cuda_device *cuda, bool gone);

#endif

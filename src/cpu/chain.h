/* Chains on the CPU: block by block, with the functions of the kernels. */
#ifndef GT_CPU_CHAIN_H
#define GT_CPU_CHAIN_H

#include "backend/backend.h"
#include "core/chain.h"

bool gt__cpu_can_chain(gt__device *device, const gt__chain *chain, bool prepare);
gt_status gt__cpu_run_chain(gt__device *device, const gt__chain *chain);

/* random.c: elements [first, first + n) of a dropout, of f32 or f64 as its dtype is computed in; halves are rounded. y may be x. */
void gt__cpu_dropout_run(const gt__chain_node *node, int64_t first, int64_t n, void *y, const void *x);

#endif

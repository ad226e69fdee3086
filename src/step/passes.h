/* Passes over a program, in the order in which they run. Each may be left out, and leaves results the same to the bit unless it says
 * otherwise. */
#ifndef GT_STEP_PASSES_H
#define GT_STEP_PASSES_H

#include "step/program.h"

/* Brings the inputs (n of these metas, in these buffers; -1: an empty one) in by the program's first instruction, GT__DO_MOVES, whose sources are set for every run. */
gt_status gt__pass_inputs(gt__program *program, const gt__meta *metas, const int32_t *buffers, int32_t n);
/* A window of one micro-batch, whose number of items is known, is seeded with the scale itself: readers of the seed read the scaler's, or `one` where there is none, and its
 * end keeps the books. */
gt_status gt__pass_seed(gt__program *program, const float *one);
/* Cross-entropy and its gradient become one call where what flows back into it is there before. */
gt_status gt__pass_loss(gt__program *program);
/* The last layer, its loss and their gradients in two calls, where there are few classes. After pass_loss. Sums are taken in another order. */
gt_status gt__pass_head(gt__program *program);
/* relu's gradient before that of a max pooling that follows relu, and in one call with it; around a flatten, pooling and that call are row-major, without the copies. A bias's
 * gradient is summed in another order. */
gt_status gt__pass_pool(gt__program *program);
/* relu's gradient and the weight gradient of a first convolution with few channels in one call. Sums are taken in another order. */
gt_status gt__pass_first_conv(gt__program *program);
/* A sum of two gradients that batch norm's gradient alone reads is left to that. Halves are not rounded between. */
gt_status gt__pass_norm_add(gt__program *program);
/* Copies that move nothing new: the maker of the source writes where the copy would, or the readers of the destination read the source. */
gt_status gt__pass_copies(gt__program *program);
/* Instructions, and outputs of calls, whose results nobody reads. */
gt_status gt__pass_dead(gt__program *program);
/* Bit k: kernels of all devices leave output k out where it is NULL. */
uint32_t gt__optional_outputs(gt__op_id op);
/* Elementwise calls of which one reads what another makes, or that read the same, become one instruction, with a sum that follows, where the device can do it so: what lies between them is never in
 * memory. After other passes that look for calls. */
gt_status gt__pass_chains(gt__program *program, gt__device *device);
/* Buffers of forward that are not to be kept (of all buffers; those that cannot be made again are kept all the same) are computed again in backward, before their first
 * use there. After passes that fuse, before those that write over what is not needed any more. */
gt_status gt__pass_recompute(gt__program *program, const bool *keep);
/* A legal order with a lower peak of memory; the one that is there, if none is found. */
gt_status gt__pass_order(gt__program *program);
/* Elementwise calls write into an input that is not needed any more. Before the order, which counts with it, and once more after it: when something is not needed any more
 * depends on it. */
gt_status gt__pass_inplace(gt__program *program);

#endif

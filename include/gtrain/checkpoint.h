/* gtrain/checkpoint.h: less memory for activations, by computing them again or by keeping them on the host.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * static gt_status block(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
 *     gt_module *layer = user;
 *     outputs[0] = gt_relu(gt_module_forward(layer, inputs[0]));
 *     return outputs[0] ? GT_OK : gt_last_error()->status;
 * }
 * gt_tensor *forward(gt_module *layer, gt_tensor *x) {
 *     gt_tensor *y = NULL;
 *     return gt_checkpoint(gt_tensor_context(x), block, layer, &x, 1, &y, 1) == GT_OK ? y : NULL;
 * }
 * @endcode
 */
#ifndef GTRAIN_CHECKPOINT_H
#define GTRAIN_CHECKPOINT_H

#include <gtrain/nn.h>

GT_EXTERN_C_BEGIN

/* --- activation checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016) ---------------------------------- */
/* Most outputs of a segment. */
#define GT_CHECKPOINT_MAX_OUTPUTS 8

/* A segment: computes `outputs` (preset to NULL; NULL stays NULL) from `inputs` with ops, as results of the innermost scope. It may use other tensors too (weights). It must
 * do the same each time it is called. Any other status than GT_OK fails the call. */
typedef gt_status (*gt_checkpoint_fn)(void *user, gt_tensor *const *inputs, gt_tensor **outputs);
/* Runs the segment and keeps its inputs alone; backward runs it again. The second run draws the same random numbers, runs in the same precision mode,
 * and moves no running statistics. `user` must stay valid until the backward is done or the outputs are released. Segments nest. Outputs
 * may be integer, unused, or need no gradient. A segment in which nothing requires a gradient is not run again. SAVED_MODIFIED in the backward, naming the
 * tensor, if an input or a tensor that the segment used was changed in place in between; BAD_STATE there if the second run's outputs differ in shape or dtype. BAD_STATE in the forward if
 * the segment copies something that requires a gradient into a tensor from outside. An output that shares memory with an input or another output becomes a
 * copy. @since 0.1 */
GT_API gt_status gt_checkpoint(gt_context *ctx, gt_checkpoint_fn fn, void *user, gt_tensor *const *inputs, int32_t n_inputs,
                               gt_tensor **outputs, int32_t n_outputs);

/* The module's forward becomes a segment (not 0), or not (0, as at first). The module must outlive the backward. @since 0.1 */
GT_API gt_status gt_module_set_checkpointing(gt_module *module, int32_t on);
GT_API int32_t gt_module_checkpointing(const gt_module *module); /* 1 if its forward is a segment, else 0. @since 0.1 */
/* A sequential's children as `segments` segments of as nearly equal numbers of children as can be; 0: none. BAD_ARGUMENT for more segments than
 * children, BAD_STATE for a module that is not a sequential. @since 0.1 */
GT_API gt_status gt_nn_sequential_set_segments(gt_module *sequential, int32_t segments);

/* --- offload ------------------------------------------------------------------------------------------------------------------------- */
/* Until the matching end, tensors of at least `min_bytes` that ops save for backward move to pinned host memory on a copy stream as soon as nothing else
 * needs them, and are fetched back ahead of their use in backward. Weights stay. Regions nest; the innermost counts. (Rhu et al., "vDNN", MICRO 2016.)
 * @since 0.1 */
GT_API gt_status gt_offload_begin(gt_context *ctx, uint64_t min_bytes);
GT_API gt_status gt_offload_end(gt_context *ctx); /* BAD_STATE without a begin. @since 0.1 */

GT_EXTERN_C_END
#endif

/* Segments (gt_checkpoint): a piece of forward whose inside is not recorded but computed again in backward.
 *
 * Forward runs the segment in a no-grad region of its own, while dispatch shows it every call (gt__segment_saw). So it learns which outputs depend on
 * something that requires a gradient, and which tensors from outside were used, at which version. If no output wants a gradient, that is all. Else one
 * CHECKPOINT record stands for the whole segment and keeps its inputs.
 *
 * In backward the segment runs once more on those inputs, recorded this time and linked to where they came from. The new records are younger than all
 * that waits in the engine's heap, so handing them the gradients of the outputs is all there is to do: they are walked next, and their gradients reach the
 * leaves and the older records by the ordinary way. There is no backward inside a backward, however deep segments nest. */
#ifndef GT_CORE_CHECKPOINT_H
#define GT_CORE_CHECKPOINT_H

#include "core/node.h"
#include <gtrain/checkpoint.h>

/* What a segment runs. Copied into it. */
typedef struct gt__segment_code {
    gt_status (*run)(const struct gt__segment_code *code, gt_tensor *const *in, int32_t n_in, gt_tensor **out);
    gt_checkpoint_fn fn; /* for the public call */
    void *user;
    int32_t first, last; /* for whoever runs a part of something */
    /* An empty tensor whose version rises when `user` is destroyed, counted by the segment, or NULL. */
    gt_tensor *anchor;
} gt__segment_code;

/* gt_checkpoint for callers inside the library; the arguments are right. */
gt_status gt__checkpoint(gt_context *ctx, const gt__segment_code *code, gt_tensor *const *in, int32_t n_in, gt_tensor **out, int32_t n_out);

/* --- what a running segment is shown; ctx->segment is not NULL */
/* A call that has run. */
gt_status gt__segment_saw(const gt__call *call);
/* Before the version of `tensor` goes up: it is overwritten, with `source` or (NULL) with numbers. */
gt_status gt__segment_overwrites(gt_tensor *tensor, gt_tensor *source);
/* A switch that the forward obeys and that may be another at backward: recomputation sets it as it is now. `anchor` is as in gt__segment_code. */
gt_status gt__segment_flag(gt_context *ctx, bool *flag, gt_tensor *anchor);

/* Runs node's segment once more, recorded. out[] (n_out, counted) are linked to the node's own sources. */
gt_status gt__segment_run_again(gt__node *node, gt_tensor **out);
void gt__segment_release(struct gt__segment *segment);
/* What a recorded segment keeps: its inputs. */
const gt__saved *gt__segment_inputs(const struct gt__segment *segment, int32_t *count);

#endif

/* A node is the record of one op call: its attributes, where its inputs came from, and just the tensors that its gradient rule needs. */
#ifndef GT_CORE_NODE_H
#define GT_CORE_NODE_H

#include "core/core.h"

/* Where an input came from: another node's output, a leaf that wants a gradient, or neither. */
typedef struct gt__edge {
    struct gt__node *node; /* counted */
    gt_tensor *leaf;       /* counted */
    int32_t output;
} gt__edge;

typedef struct gt__saved {
    gt_tensor *tensor; /* an alias outside the record, counted; NULL: not saved */
    uint32_t version;
    struct gt__node *recipe; /* in place of the tensor: the call that computes it again from what it saved itself; counted */
} gt__saved;

#define GT__NODE_INLINE_IN 6
#define GT__MAX_NODE_OUT   8 /* a segment's; GT_CHECKPOINT_MAX_OUTPUTS */

typedef struct gt__node {
    int64_t references;
    uint64_t sequence; /* newer nodes have larger ones: backward goes from large to small */
    gt_context *ctx;
    gt__op_id op;
    int32_t n_in, n_out, cap_in;
    gt__attrs attr;
    const char *module_path;
    gt__edge *edges;   /* n_in */
    gt__meta *in_meta; /* n_in */
    uint8_t *needs;    /* n_in */
    gt__saved saved_in[GT__MAX_SAVED_IN];
    gt__saved saved_out[GT__MAX_OUT];
    gt_dtype out_dtype[GT__MAX_NODE_OUT];
    gt_tensor *pending[GT__MAX_NODE_OUT]; /* gradients that have arrived during a backward */
    gt_tensor *second[GT__MAX_NODE_OUT];  /* a second one in half precision: two are summed in f32 and rounded once, in place */
    bool queued;                          /* in the running backward's heap */
    bool freed;                           /* what it saved is gone: another backward is refused */
    uint8_t walk_flags;                   /* core/oom_facts.c, with `walk`: which walk over the records last came here */
    uint32_t walk;
    struct gt__node *next_free;
} gt__node;

/* An empty node for `n_in` inputs, references 1. */
gt_status gt__node_new(gt_context *ctx, gt__op_id op, int32_t n_in, gt__node **node);
/* Connects input k to where `tensor` came from. */
gt_status gt__node_connect(gt__node *node, int32_t k, gt_tensor *tensor);
/* Lets go of what was saved and of the edges; the node itself stays. */
void gt__node_strip(gt__node *node);
void gt__node_drop_pending(gt__node *node);
/* Keeps `tensor` for backward. Memory of category `from` is counted as activations from now on. */
gt_status gt__save(gt__saved *slot, gt_tensor *tensor, gt_memory_category from);

/* The call that can compute `tensor` again more cheaply than memory can keep it, or NULL: a normalisation with relu, whose input is saved anyway. */
gt__node *gt__recipe_of(const gt_tensor *tensor);

#endif

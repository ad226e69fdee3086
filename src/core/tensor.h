/* The inside of a tensor handle: a meta (shape, strides, dtype) over a counted storage, and its place in the record of operations. */
#ifndef GT_CORE_TENSOR_H
#define GT_CORE_TENSOR_H

#include "core/shape.h"

GT_EXTERN_C_BEGIN

struct gt__block;
struct gt__node;

/* Device memory shared by a tensor and its views. */
typedef struct gt__storage {
    gt_context *ctx;
    void *data;
    struct gt__block *block; /* NULL when empty */
    int64_t references;
    uint32_t version;      /* counts changes in place */
    uint32_t half_version; /* the version that `half` is a copy of */
    gt_tensor *half;       /* what autocast uses instead of a weight, counted; NULL: nothing yet (core/autocast.c) */
    size_t bytes;          /* as asked for */
    int64_t saved;         /* how many of the references are records' */
    struct gt__parcel *parcel; /* where it is, if it may move to the host (core/offload.c), else NULL */
    uint64_t birth;        /* storages and segments are numbered in the order in which they were made */
    uint64_t seen, flows;  /* numbers of the last segment that used it, and that computed it from what requires a gradient (core/checkpoint.c) */
    uint32_t walk;         /* core/oom_facts.c: which walk over the records last came here */
    uint32_t walk_flags;
    int32_t traced;               /* not 0: there is no memory, the program's buffer number `traced` - 1 stands for it (step/trace.h) */
    int32_t padding;
    void (*release)(void *owner); /* gives memory back that is not the allocator's (core/external.c); may be NULL */
    void *owner;
} gt__storage;

/* gt_tensor.saved */
enum { GT__SAVED_NOT, GT__SAVED_STALE /* `data` is what it was before the storage moved, if it did */, GT__SAVED };

struct gt_tensor {
    gt__meta meta;
    void *data; /* of the first element; NULL if there are none */
    gt__storage *storage;
    gt_context *ctx; /* NULL once the context is gone */
    int64_t references;
    struct gt__node *node; /* the call that made it; NULL for leaves. Use gt__tensor_node, which knows about views */
    gt_tensor *grad;       /* leaves; valid if grad_valid */
    gt_tensor *view_base;  /* the differentiable tensor that this is a view of, counted; else NULL */
    char *name;
    uint32_t view_version; /* storage version at which `node` was right, for views */
    uint8_t output;        /* which output of `node` */
    uint8_t requires_grad;
    uint8_t saved;      /* a record's handle: GT__SAVED_ */
    uint8_t grad_valid; /* the gradient buffer holds a gradient of this window */
    gt_tensor *live_next, *live_prev; /* all handles of the context */
    gt_tensor *drop_next;             /* core/drop.c: the next that waits to be released */
    uint32_t drops;                   /* how often; not 0: it is in the list */
};

static inline void *gt__data(const gt_tensor *t) { return t->data; }

GT_EXTERN_C_END
#endif

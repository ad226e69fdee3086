/* The context's inside, and what the rest of the library calls in core. Not for backends: they see core/op.h and backend/backend.h. */
#ifndef GT_CORE_CORE_H
#define GT_CORE_CORE_H

#include "backend/backend.h"
#include "base/parallel.h"
#include "core/op.h"
#include "memory/allocator.h"
#include <stdatomic.h>

/* Handles made since a gt_scope_begin. */
typedef struct gt__scope {
    int32_t first; /* index in ctx->scoped of the scope's first handle */
    bool callers;  /* begun by the caller: its end, if it is the outermost, ends a step */
} gt__scope;

/* Pinned memory through which small writes go to the device without making the caller wait. */
typedef struct gt__staging {
    void *data;
    size_t bytes;
    gt__event *event; /* of the last copy out of it */
    bool used;
} gt__staging;
#define GT__STAGING_SLOTS 4

/* Scratch memory whose place was planned, or (data NULL) whose size is being measured. */
typedef struct gt__scratch {
    char *data;
    size_t bytes;      /* there are */
    size_t used, most; /* now, and at the most since it was set to 0 */
    int32_t open;      /* requests that were not freed yet */
} gt__scratch;

#define GT__AUTOCAST_DEPTH 64

/* Where in a program a call stands, and what finds the first whose result is not finite (core/diagnose.c). */
typedef struct gt__op_site {
    const char *module; /* the context's string, or NULL */
    gt__op_id op;
    bool backward;
} gt__op_site;
typedef struct gt__diagnosis {
    gt__op_site *sites; /* all so far; the low half of a mark is an index here */
    int32_t n_sites, cap_sites, next_site;
    uint32_t calls;  /* since the window began: the high half of a mark */
    uint64_t *least; /* device: the least mark of a call whose result is not finite */
} gt__diagnosis;

/* Sees what a context does while ctx->observer points at it: for whoever writes a forward down (io/onnx_trace.c). Any other status than GT_OK fails what it sees. */
typedef struct gt__observer {
    gt_status (*call)(struct gt__observer *observer, const gt__call *call); /* has run; in[] are as they were given */
    gt_status (*read)(struct gt__observer *observer, const gt_tensor *tensor, const char *who); /* before its values go to the host */
    /* Before it is overwritten with `source`, or (NULL) with numbers. */
    gt_status (*overwrite)(struct gt__observer *observer, const gt_tensor *tensor, const gt_tensor *source, const char *who);
} gt__observer;

struct gt__custom_gradient;

/* Takes the place of the allocator while a context's device is one that writes down instead of computing (step/trace.h). */
typedef struct gt__tracer {
    /* Fills data, bytes, traced and release of a storage of `bytes`. */
    gt_status (*storage)(struct gt__tracer *tracer, gt__storage *storage, size_t bytes, const gt__tag *tag);
    gt_memory_category *(*category)(struct gt__tracer *tracer, const gt__storage *storage); /* of a traced storage; to be read and changed */
    uint64_t *random_cells;                                                                  /* what draws refer to */
    gt_status (*custom_backward)(struct gt__tracer *tracer, const struct gt__custom_gradient *gradient); /* in place of gt__custom_backward_run */
} gt__tracer;

/* What stands before a context's device to see what is asked of it (profile/profile.h), and is told of what is not asked of the device. */
typedef struct gt__profiler {
    void (*step_done)(struct gt__profiler *profiler);
    /* A custom op's backward, which is no backend call, runs between the two. */
    bool (*custom_begin)(struct gt__profiler *profiler, const struct gt__custom_gradient *gradient);
    void (*custom_end)(struct gt__profiler *profiler, const struct gt__custom_gradient *gradient, gt_status status);
    void (*close)(struct gt__profiler *profiler); /* the context goes: frees it */
    bool lists; /* compiled steps are to run call by call, not as one graph */
} gt__profiler;

struct gt_context {
    gt_context_options options;
    gt__device *opened; /* the device itself, whatever stands before it */
    gt__device *device;
    const gt__backend *backend;
    gt__allocator *allocator;
    gt_tensor **scoped; /* stack of handles owned by scopes */
    int32_t n_scoped, cap_scoped;
    gt__scope *scopes;
    int32_t n_scopes, cap_scopes;
    int32_t no_grad; /* depth of no-grad regions */
    gt_dtype autocast;                           /* GT_DTYPE_F16 or BF16 in an autocast region, GT_DTYPE_F32 outside */
    int32_t n_autocast;                          /* regions that are open */
    uint8_t autocast_before[GT__AUTOCAST_DEPTH]; /* what `autocast` was when each began */
    bool in_backward;
    struct gt__engine *engine; /* of the running backward, else NULL */
    bool recomputing;           /* a segment runs again: no running statistics move */
    struct gt__segment *segment; /* that runs forward and is shown every call (core/checkpoint.h), else NULL */
    gt__observer *observer;      /* or NULL */
    gt__tracer *tracer;          /* or NULL */
    gt__profiler *profiler;      /* or NULL: nobody has profiled this context */
    uint64_t storages_made;
    struct gt__offload *offload; /* made by the first gt_offload_begin (core/offload.c), else NULL */
    uint64_t rng_seed, rng_offset;
    uint64_t node_sequence;
    const char *module_path; /* "block1.conv" while a module's forward runs, else NULL */
    /* How far the forward has come: layers of the outermost module that runs or ran last, and how many of them have run. */
    int32_t module_depth, layers, layers_run;
    bool stepped;         /* an optimizer has stepped since the outermost scope began */
    int32_t open_windows; /* accumulation windows that have begun: scopes inside them end no step */
    gt_tensor live;          /* list head of all handles */
    gt_tensor *free_tensors; /* recycled handles, linked by live_next */
    gt_tensor *_Atomic dropped; /* let go of by any thread, linked by drop_next (core/drop.c) */
    struct gt__node *free_nodes;
    gt__staging staging[GT__STAGING_SLOTS];
    int32_t staging_next;
    struct gt__string *strings; /* see gt__context_string */
    struct gt__oom *oom;        /* core/oom.c */
    gt__diagnosis *diagnosis;   /* a scaler's; NULL: nobody looks for overflows */
    gt__scratch *scratch;       /* where kernels' scratch memory comes from while a compiled step runs, else NULL: the allocator */
};

/* --- tensors (core/tensor.c) */
/* A new handle over new memory, in the innermost scope. meta's strides must be dense. */
gt_tensor *gt__tensor_new(gt_context *ctx, const gt__meta *meta, gt_memory_category category);
/* The same, not in any scope (references 1, the caller's), tagged with the op that it is for. */
gt_tensor *gt__tensor_new_for(gt_context *ctx, const gt__meta *meta, gt_memory_category category, const char *op);
/* BAD_STATE if the tensor's context was destroyed. */
gt_status gt__tensor_check(const gt_tensor *tensor, const char *who);
/* --- handles that other threads let go of (core/drop.c) */
void gt__dropped_release_all(gt_context *ctx);
static inline void gt__dropped_release(gt_context *ctx) {
    if (GT__UNLIKELY(atomic_load_explicit(&ctx->dropped, memory_order_relaxed) != NULL)) gt__dropped_release_all(ctx);
}
/* Takes an emptied handle's context from it, and one reference. */
void gt__tensor_release_orphan(gt_tensor *tensor);
/* Empties all handles that are still retained when their context goes. */
void gt__tensors_orphan(gt_context *ctx);
/* The same for those over traced memory, which goes with the trace. Returns how many there were. */
int32_t gt__tensors_orphan_traced(gt_context *ctx);
/* A new handle over `of`'s storage, outside the record, not in any scope (references 1, the caller's). */
gt_tensor *gt__tensor_alias(const gt_tensor *of);
/* Puts a handle that the caller owns into the innermost scope (no scope: stays the caller's). Returns it; on failure releases it and returns NULL. */
gt_tensor *gt__scope_add(gt_tensor *tensor);
/* gt_scope_begin for the library's own scopes. */
gt_status gt__scope_begin(gt_context *ctx);
/* The scopes and regions that are open before a caller's function runs. */
typedef struct gt__open_regions {
    int32_t scopes, no_grad, n_autocast, n_offload;
    gt_dtype autocast;
    uint8_t autocast_before[GT__AUTOCAST_DEPTH];
} gt__open_regions;
/* Remembers them, and begins a scope for what the function makes. */
gt_status gt__regions_enter(gt_context *ctx, gt__open_regions *open);
/* False: the function ended something that it had not begun. What it returned may be gone then, and must not be touched. */
bool gt__regions_hold(const gt_context *ctx, const gt__open_regions *open);
/* Ends that scope and whatever the function left open, and opens again what it ended. */
void gt__regions_leave(gt_context *ctx, const gt__open_regions *open);
void gt__storage_release(gt__storage *storage);
void gt__tensor_set_category(gt_tensor *tensor, gt_memory_category category);
/* Of a storage; GT_MEMORY_USER where the memory is not ours. */
gt_memory_category gt__storage_category(const gt__storage *storage);
void gt__storage_set_category(gt__storage *storage, gt_memory_category category);
/* Shares like gt__tensor_alias but with another meta and offset (elements, from of's first element). */
gt_tensor *gt__tensor_view(const gt_tensor *of, const gt__meta *meta, int64_t offset);
/* "parameter "fc1.weight" [128,9216]" or "result of conv2d [..]": for messages. */
const char *gt__tensor_text(const gt_tensor *tensor, char *buffer, size_t size);

/* An optimizer has updated: a step has ended. */
void gt__step_done(gt_context *ctx);

/* --- core/strings.c: `text` once more, valid until the context is destroyed; the same text gives the same pointer. NULL: no host memory. */
const char *gt__context_string(gt_context *ctx, const char *text);
void gt__context_strings_free(gt_context *ctx); /* called last by gt_context_destroy */

/* --- one call (core/dispatch.c), in steps that autocast stands between: infer, prepare, execute, record. The outputs are the caller's, in no scope. */
gt_status gt__call_run(gt__call *call, uint32_t want);

/* --- autocast (core/autocast.c) */
/* gt__call_run with the inputs cast as the op's policy says. */
gt_status gt__autocast_run(gt__call *call, uint32_t want);
/* For public wrappers that work on an op's input before the call: `x` as the op will take it, in the innermost scope, or `x` itself. NULL: failed. */
gt_tensor *gt__autocast_input(gt__op_id op, gt_tensor *x);
/* Ops run as in a region of `dtype` (F32: none) until what is returned is set again; for gradient rules and recomputation. */
static inline gt_dtype gt__autocast_set(gt_context *ctx, gt_dtype dtype) {
    gt_dtype before = ctx->autocast;
    ctx->autocast = dtype;
    return before;
}
/* A weight's half copy, borrowed, whatever version of the weight it is of; NULL: there is none. For an optimizer, whose kernel writes it with the weight, and from
 * the weight where it skips the step. */
gt_tensor *gt__half_copy_of(gt_tensor *leaf);
/* The copy that gt__half_copy_of gave has been written with the weight. Called after the weight's version has gone up. */
void gt__half_copy_written(gt_tensor *leaf);
void gt__half_copies_drop(gt_context *ctx);
/* Makes a weight's half copy, or brings it up to date. */
gt_status gt__half_copy_make(gt_tensor *leaf, gt_dtype dtype);
/* Whether a half copy of this storage is there and is what the weight is now. */
static inline bool gt__half_copy_is_fresh(const gt__storage *storage) { return storage->half == NULL || storage->half_version == storage->version; }
/* To be called for every change in place: what was saved of this memory, or of its half copy, is not what it was. */
static inline void gt__storage_changed(gt__storage *storage) {
    storage->version++;
    if (GT__UNLIKELY(storage->half != NULL)) storage->half->storage->version++;
}

/* --- looking for overflows (core/diagnose.c) */
gt_status gt__diagnose(const gt__call *call); /* a call that has run, while ctx->diagnosis is there */
const gt__op_site *gt__diagnosis_site(const gt__diagnosis *diagnosis, uint64_t mark); /* NULL: the mark is of no call */

/* --- random numbers: reserves `count` elements' worth of the stream and fills attr->random.seed, .offset. */
void gt__random_take(gt_context *ctx, int64_t count, gt__attrs *attr);

/* --- host access and changes in place (core/transfer.c, core/inplace.c) */
gt_status gt__fill(gt_tensor *tensor, double value);                     /* dense or strided; leaves the version alone */
gt_status gt__upload(gt_tensor *tensor, const void *data, size_t bytes); /* host memory in logical order; leaves the version alone */
gt_status gt__check_writable(gt_tensor *tensor, const char *who);        /* refuses expanded tensors */
gt_status gt__overwritten(gt_tensor *tensor, gt_tensor *source);         /* new version, new history (source may be NULL) */
void gt__staging_free(gt_context *ctx);
/* Reports what only the device knew. The caller has waited. */
gt_status gt__check_device(gt_context *ctx);
void gt__log_text(gt_context *ctx, gt_log_level level, const char *text);

/* --- autograd (core/tape.c, core/node.c, core/backward.c) */
/* Records a call whose outputs are made. Called by dispatch when gradients are wanted. */
gt_status gt__record(const gt__call *call, gt_tensor *const *in);
bool gt__needs_grad(const gt_tensor *tensor);
/* The call that made the tensor, NULL for leaves. Views whose memory was changed in place are linked to their base's history first. */
gt_status gt__tensor_node(gt_tensor *tensor, struct gt__node **node);
void gt__nodes_free(gt_context *ctx);
/* Records that the running backward has before it and holds itself: the i-th, or NULL. In no order. */
struct gt__node *gt__backward_waiting(const gt_context *ctx, int32_t i);
void gt__node_retain(struct gt__node *node);
void gt__node_release(struct gt__node *node); /* not recursive: long chains are freed in a loop */

/* --- custom ops (ops/custom.c): counted by records. */
void gt__custom_retain(struct gt__custom *op);
void gt__custom_release(struct gt__custom *op);
const char *gt__custom_name(const struct gt__custom *op);
uint32_t gt__custom_saves(const struct gt__custom *op, int32_t n_in); /* mask of GT__IN, GT__OUT */
/* A custom op's backward: what its callback is given. Dense arrays; pointers are NULL where there is nothing. */
typedef struct gt__custom_gradient {
    struct gt__custom *op;
    int32_t n_in, n_out;
    gt__meta in_meta[GT__MAX_SAVED_IN], out_meta[GT__MAX_OUT];
    void *in[GT__MAX_SAVED_IN], *out[GT__MAX_OUT];           /* read, where the op saves them */
    void *in_grad[GT__MAX_SAVED_IN], *out_grad[GT__MAX_OUT]; /* written, and read */
} gt__custom_gradient;
gt_status gt__custom_backward_run(gt__device *device, const gt__custom_gradient *gradient); /* calls the user's function */

/* Device current for this thread between these two. */
static inline int32_t gt__enter(gt_context *ctx) { return ctx->backend->enter ? ctx->backend->enter(ctx->device) : -1; }
static inline void gt__leave(gt_context *ctx, int32_t previous) {
    if (ctx->backend->enter) ctx->backend->leave(ctx->device, previous);
}

#endif

/* The context's inside, and what the rest of the library calls in core. Not for backends: they see core/op.h and backend/backend.h. */
#ifndef GT_CORE_CORE_H
#define GT_CORE_CORE_H

#include "backend/backend.h"
#include "base/parallel.h"
#include "core/op.h"
#include "memory/allocator.h"

/* Handles made since a gt_scope_begin. */
typedef struct gt__scope {
    int32_t first; /* index in ctx->scoped of the scope's first handle */
} gt__scope;

/* Pinned memory through which small writes go to the device without making the caller wait. */
typedef struct gt__staging {
    void *data;
    size_t bytes;
    gt__event *event; /* of the last copy out of it */
    bool used;
} gt__staging;
#define GT__STAGING_SLOTS 4

struct gt_context {
    gt_context_options options;
    gt__device *device;
    const gt__backend *backend;
    gt__allocator *allocator;
    gt_tensor **scoped; /* stack of handles owned by scopes */
    int32_t n_scoped, cap_scoped;
    gt__scope *scopes;
    int32_t n_scopes, cap_scopes;
    int32_t no_grad; /* depth of no-grad regions */
    bool in_backward;
    uint64_t rng_seed, rng_offset;
    uint64_t node_sequence;
    const char *module_path; /* "block1.conv" while a module's forward runs, else NULL */
    gt_tensor live;          /* list head of all handles */
    gt_tensor *free_tensors; /* recycled handles, linked by live_next */
    struct gt__node *free_nodes;
    gt__staging staging[GT__STAGING_SLOTS];
    int32_t staging_next;
    struct gt__string *strings; /* see gt__context_string */
};

/* --- tensors (core/tensor.c) */
/* A new handle over new memory, in the innermost scope. meta's strides must be dense. */
gt_tensor *gt__tensor_new(gt_context *ctx, const gt__meta *meta, gt_memory_category category);
/* The same, not in any scope (references 1, the caller's), tagged with the op that it is for. */
gt_tensor *gt__tensor_new_for(gt_context *ctx, const gt__meta *meta, gt_memory_category category, const char *op);
/* BAD_STATE if the tensor's context was destroyed. */
gt_status gt__tensor_check(const gt_tensor *tensor, const char *who);
/* Empties all handles that are still retained when their context goes. */
void gt__tensors_orphan(gt_context *ctx);
/* A new handle over `of`'s storage, outside the record, not in any scope (references 1, the caller's). */
gt_tensor *gt__tensor_alias(const gt_tensor *of);
/* Puts a handle that the caller owns into the innermost scope (no scope: stays the caller's). Returns it; on failure releases it and returns NULL. */
gt_tensor *gt__scope_add(gt_tensor *tensor);
void gt__storage_release(gt__storage *storage);
void gt__tensor_set_category(gt_tensor *tensor, gt_memory_category category);
/* Shares like gt__tensor_alias but with another meta and offset (elements, from of's first element). */
gt_tensor *gt__tensor_view(const gt_tensor *of, const gt__meta *meta, int64_t offset);
/* "parameter "fc1.weight" [128,9216]" or "result of conv2d [..]": for messages. */
const char *gt__tensor_text(const gt_tensor *tensor, char *buffer, size_t size);

/* --- core/strings.c: `text` once more, valid until the context is destroyed; the same text gives the same pointer. NULL: no host memory. */
const char *gt__context_string(gt_context *ctx, const char *text);
void gt__context_strings_free(gt_context *ctx); /* called last by gt_context_destroy */

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
void gt__node_retain(struct gt__node *node);
void gt__node_release(struct gt__node *node); /* not recursive: long chains are freed in a loop */

/* --- custom ops (ops/custom.c): counted by records. */
void gt__custom_retain(struct gt__custom *op);
void gt__custom_release(struct gt__custom *op);
uint32_t gt__custom_saves(const struct gt__custom *op, int32_t n_in); /* mask of GT__IN, GT__OUT */

/* Device current for this thread between these two. */
static inline int32_t gt__enter(gt_context *ctx) { return ctx->backend->enter ? ctx->backend->enter(ctx->device) : -1; }
static inline void gt__leave(gt_context *ctx, int32_t previous) {
    if (ctx->backend->enter) ctx->backend->leave(ctx->device, previous);
}

#endif

/* Handles and storages: making, counting, viewing, naming. */
#include "core/node.h"
#include "core/offload.h"

#include <stdio.h>

static gt_tensor *handle_new(gt_context *ctx) {
    gt_tensor *t = ctx->free_tensors;
    if (t) {
        ctx->free_tensors = t->live_next;
        memset(t, 0, sizeof *t);
    } else {
        t = gt__calloc(1, sizeof *t);
        if (t == NULL) return NULL;
    }
    t->ctx = ctx;
    t->references = 1;
    t->live_next = ctx->live.live_next;
    t->live_prev = &ctx->live;
    t->live_next->live_prev = t;
    ctx->live.live_next = t;
    return t;
}

void gt__storage_release(gt__storage *storage) {
    if (--storage->references > 0) {
        if (GT__UNLIKELY(storage->parcel != NULL) && storage->references == storage->saved) gt__offload_idle(storage);
        return;
    }
    if (storage->parcel) gt__offload_forget(storage);
    if (storage->half) gt_tensor_release(storage->half);
    if (storage->block) gt__allocator_free(storage->ctx->allocator, storage->block);
    if (GT__UNLIKELY(storage->release != NULL)) storage->release(storage->owner);
    gt__free(storage);
}

/* No record needs it any more, but somebody keeps it: that is not backward's memory. */
static void storage_kept(gt__storage *storage) {
    if (gt__storage_category(storage) == GT_MEMORY_ACTIVATION) gt__storage_set_category(storage, GT_MEMORY_TEMPORARY);
}

/* Drops everything the handle holds. */
static void handle_empty(gt_tensor *t) {
    gt__node *node = t->node;
    gt_tensor *grad = t->grad, *base = t->view_base;
    gt__storage *storage = t->storage;
    t->node = NULL;
    t->grad = NULL;
    t->view_base = NULL;
    t->storage = NULL;
    t->data = NULL;
    if (node) gt__node_release(node);
    if (grad) gt_tensor_release(grad);
    if (base) gt_tensor_release(base);
    if (storage && t->saved && --storage->saved == 0 && storage->references > 1) storage_kept(storage);
    if (storage) gt__storage_release(storage);
}

gt_tensor *gt_tensor_retain(gt_tensor *tensor) {
    if (tensor) tensor->references++;
    return tensor;
}

void gt_tensor_release(gt_tensor *t) {
    if (t == NULL || --t->references > 0) return;
    gt_context *ctx = t->ctx;
    gt__free(t->name);
    t->name = NULL;
    if (ctx == NULL) { /* the context was destroyed before */
        gt__free(t);
        return;
    }
    handle_empty(t);
    t->live_prev->live_next = t->live_next;
    t->live_next->live_prev = t->live_prev;
    t->live_next = ctx->free_tensors;
    ctx->free_tensors = t;
}

void gt__tensors_orphan(gt_context *ctx) {
    gt__dropped_release(ctx);
    while (ctx->live.live_next != &ctx->live) {
        gt_tensor *t = ctx->live.live_next;
        t->references++; /* emptying one may release another, never this one */
        handle_empty(t);
        t->live_prev->live_next = t->live_next;
        t->live_next->live_prev = t->live_prev;
        gt__tensor_release_orphan(t);
    }
    gt__dropped_release(ctx); /* what was dropped meanwhile */
    while (ctx->free_tensors) {
        gt_tensor *t = ctx->free_tensors;
        ctx->free_tensors = t->live_next;
        gt__free(t);
    }
}

int32_t gt__tensors_orphan_traced(gt_context *ctx) {
    int32_t found = 0;
    gt__dropped_release(ctx);
    for (gt_tensor *t = ctx->live.live_next; t != &ctx->live;) {
        if (t->storage == NULL || !t->storage->traced) {
            t = t->live_next;
            continue;
        }
        t->references++; /* emptying one may release another, never this one */
        handle_empty(t);
        t->live_prev->live_next = t->live_next;
        t->live_next->live_prev = t->live_prev;
        gt__tensor_release_orphan(t);
        ++found;
        t = ctx->live.live_next; /* the list may be another now */
    }
    return found;
}

gt_tensor *gt__tensor_new_for(gt_context *ctx, const gt__meta *meta, gt_memory_category category, const char *op) {
    gt__storage *storage = gt__calloc(1, sizeof *storage);
    if (storage == NULL) return NULL;
    storage->ctx = ctx;
    storage->references = 1;
    storage->birth = ++ctx->storages_made;
    if (meta->numel > 0) {
        size_t bytes = (size_t)meta->numel * gt_dtype_size(meta->dtype);
        const gt__tag tag = {
            .op = op, .module = ctx->module_path, .shape = meta->shape, .ndim = meta->ndim, .dtype = meta->dtype, .category = category};
        gt_status status = ctx->tracer ? ctx->tracer->storage(ctx->tracer, storage, bytes, &tag)
                                       : gt__allocator_alloc(ctx->allocator, bytes, &tag, false, &storage->block);
        if (status != GT_OK) {
            gt__free(storage);
            return NULL;
        }
        if (storage->block) storage->data = gt__block_data(storage->block);
        storage->bytes = bytes;
    }
    gt_tensor *t = handle_new(ctx);
    if (t == NULL) {
        gt__storage_release(storage);
        return NULL;
    }
    t->meta = *meta;
    t->storage = storage;
    t->data = storage->data;
    return t;
}

gt_tensor *gt__tensor_new(gt_context *ctx, const gt__meta *meta, gt_memory_category category) {
    return gt__scope_add(gt__tensor_new_for(ctx, meta, category, NULL));
}

gt_tensor *gt__tensor_view(const gt_tensor *of, const gt__meta *meta, int64_t offset) {
    gt_tensor *t = handle_new(of->ctx);
    if (t == NULL) return NULL;
    t->meta = *meta;
    t->storage = of->storage;
    t->storage->references++;
    t->data = of->data && meta->numel > 0 ? (char *)of->data + offset * (int64_t)gt_dtype_size(meta->dtype) : NULL;
    t->view_version = t->storage->version;
    return t;
}

gt_tensor *gt__tensor_alias(const gt_tensor *of) {
    gt_tensor *t = gt__tensor_view(of, &of->meta, 0);
    if (t == NULL || of->name == NULL) return t;
    t->name = gt__strdup(of->name);
    if (t->name == NULL) {
        gt_tensor_release(t);
        return NULL;
    }
    return t;
}

gt_tensor *gt_tensor_detach(gt_tensor *tensor) {
    if (tensor == NULL) {
        (void)gt__error_null("gt_tensor_detach", "tensor", __FILE__, __LINE__);
        return NULL;
    }
    GT_TRY_NULL(gt__tensor_check(tensor, "detach"));
    return gt__scope_add(gt__tensor_alias(tensor));
}

gt_status gt__tensor_check(const gt_tensor *tensor, const char *who) {
    GT_REQUIRE(tensor->ctx != NULL, GT_BAD_STATE, "%s: the tensor's context was destroyed", who);
    return GT_OK;
}

gt_memory_category gt__storage_category(const gt__storage *storage) {
    if (storage->block) return gt__block_category(storage->block);
    return storage->traced && storage->ctx->tracer ? *storage->ctx->tracer->category(storage->ctx->tracer, storage) : GT_MEMORY_USER;
}

void gt__storage_set_category(gt__storage *storage, gt_memory_category category) {
    gt_context *ctx = storage->ctx;
    if (storage->block)
        gt__block_set_category(ctx->allocator, storage->block, category);
    else if (storage->traced && ctx->tracer)
        *ctx->tracer->category(ctx->tracer, storage) = category;
}

void gt__tensor_set_category(gt_tensor *tensor, gt_memory_category category) { gt__storage_set_category(tensor->storage, category); }

const char *gt__tensor_text(const gt_tensor *tensor, char *buffer, size_t size) {
    char shape[GT__SHAPE_TEXT];
    gt__meta_text(shape, sizeof shape, &tensor->meta);
    if (tensor->name) {
        (void)snprintf(buffer, size, "\"%s\" %s %s", tensor->name, gt_dtype_name(tensor->meta.dtype), shape);
    } else if (tensor->node) {
        (void)snprintf(buffer, size, "result of %s %s %s", gt__op_table[tensor->node->op].name, gt_dtype_name(tensor->meta.dtype), shape);
    } else {
        (void)snprintf(buffer, size, "%s %s", gt_dtype_name(tensor->meta.dtype), shape);
    }
    return buffer;
}

gt_context *gt_tensor_context(const gt_tensor *t) { return t ? t->ctx : NULL; }
gt_dtype gt_tensor_dtype(const gt_tensor *t) { return t ? t->meta.dtype : -1; }
int32_t gt_tensor_ndim(const gt_tensor *t) { return t ? t->meta.ndim : -1; }
const int64_t *gt_tensor_shape(const gt_tensor *t) { return t ? t->meta.shape : NULL; }
const int64_t *gt_tensor_strides(const gt_tensor *t) { return t ? t->meta.strides : NULL; }
int64_t gt_tensor_numel(const gt_tensor *t) { return t ? t->meta.numel : -1; }
void *gt_tensor_data(gt_tensor *t) { return t && !(t->storage && t->storage->traced) ? t->data : NULL; }
const char *gt_tensor_name(const gt_tensor *t) { return t && t->name ? t->name : ""; }
int32_t gt_tensor_is_contiguous(const gt_tensor *t) { return t ? gt__meta_is_row_major(&t->meta) : 0; }
size_t gt_tensor_bytes(const gt_tensor *t) { return t ? (size_t)t->meta.numel * gt_dtype_size(t->meta.dtype) : 0; }

int64_t gt_tensor_size(const gt_tensor *t, int32_t axis) {
    int32_t at = t ? gt__axis(t->meta.ndim, axis) : -1;
    return at < 0 ? -1 : t->meta.shape[at];
}

gt_status gt_tensor_set_name(gt_tensor *tensor, const char *name) {
    GT_REQUIRE_HANDLE(tensor);
    char *copy = NULL;
    if (name && name[0]) {
        copy = gt__strdup(name);
        if (copy == NULL) return GT_OUT_OF_HOST_MEMORY;
    }
    gt__free(tensor->name);
    tensor->name = copy;
    return GT_OK;
}

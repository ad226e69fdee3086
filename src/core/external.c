/* Tensors over memory that somebody else owns. Their storage has no block: the allocator knows nothing of them, and offload, which takes
 * blocks alone, leaves them where they are. */
#include "core/core.h"

/* The farthest element, or -1 if that does not fit in the range of addresses. */
static int64_t extent(const gt__meta *meta) {
    const int64_t most = (INT64_C(1) << 62) / (int64_t)gt_dtype_size(meta->dtype);
    int64_t last = 0;
    for (int32_t i = 0; i < meta->ndim; ++i) {
        int64_t steps = meta->shape[i] - 1;
        if (steps > 0 && meta->strides[i] > (most - last) / steps) return -1;
        last += steps > 0 ? steps * meta->strides[i] : 0;
    }
    return last;
}

static gt_tensor *make(gt_context *ctx, const gt__meta *meta, void *data, void (*release)(void *user), void *user) {
    gt__dropped_release(ctx);
    gt_tensor *t =
        gt__tensor_new_for(ctx, &(gt__meta){.shape = {0}, .strides = {1}, .ndim = 1, .dtype = meta->dtype}, GT_MEMORY_USER, NULL);
    if (t == NULL) return NULL;
    t->meta = *meta;
    if (meta->numel > 0) {
        t->data = t->storage->data = data;
        t->storage->bytes = (size_t)(extent(meta) + 1) * gt_dtype_size(meta->dtype);
    }
    /* From here on the memory is given back by the storage, but not when the call fails: then it stays the caller's. */
    gt_tensor_retain(t);
    gt_tensor *added = gt__scope_add(t);
    if (added != NULL) {
        t->storage->release = release;
        t->storage->owner = user;
    }
    gt_tensor_release(t);
    return added;
}

gt_tensor *gt_tensor_from_memory(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *strides, void *data,
                                 void (*release)(void *user), void *user) {
    if (ctx == NULL) {
        (void)gt__error_null("gt_tensor_from_memory", "ctx", __FILE__, __LINE__);
        return NULL;
    }
    gt__meta meta;
    GT_TRY_NULL(gt__meta_make(&meta, dtype, ndim, shape, "tensor_from_memory"));
    size_t size = gt_dtype_size(dtype);
    for (int32_t i = 0; strides && i < ndim; ++i) {
        GT_REQUIRE_NULL(strides[i] >= 0 || shape[i] < 2, GT_BAD_SHAPE,
                        "tensor_from_memory: the stride of axis %d is %lld; it must not be negative", (int)i, (long long)strides[i]);
        if (shape[i] > 1) meta.strides[i] = strides[i];
    }
    GT_REQUIRE_NULL(extent(&meta) >= 0, GT_BAD_SHAPE, "tensor_from_memory: the strides reach beyond the range of addresses");
    GT_REQUIRE_NULL(data != NULL || meta.numel == 0, GT_BAD_ARGUMENT, "tensor_from_memory: data is NULL");
    GT_REQUIRE_NULL((uintptr_t)data % size == 0, GT_BAD_ARGUMENT, "tensor_from_memory: data is not aligned to %zu bytes, the size of an %s",
                    size, gt_dtype_name(dtype));
    return make(ctx, &meta, data, release, user);
}

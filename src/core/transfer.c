/* Making tensors from values, and moving them between host and device. */
#include "core/core.h"

void gt__staging_free(gt_context *ctx) {
    for (int i = 0; i < GT__STAGING_SLOTS; ++i) {
        gt__staging *slot = &ctx->staging[i];
        if (slot->event) ctx->backend->event_destroy(ctx->device, slot->event);
        if (slot->data) ctx->backend->host_free(ctx->device, slot->data);
        *slot = (gt__staging){0};
    }
}

/* A pinned buffer that no copy reads from any more. */
static gt_status staging_take(gt_context *ctx, size_t bytes, gt__staging **out) {
    gt__staging *slot = &ctx->staging[ctx->staging_next];
    ctx->staging_next = (ctx->staging_next + 1) % GT__STAGING_SLOTS;
    if (slot->event == NULL) GT_TRY(ctx->backend->event_create(ctx->device, &slot->event));
    if (slot->used) GT_TRY(ctx->backend->event_wait_host(ctx->device, slot->event));
    slot->used = false;
    if (slot->bytes < bytes) {
        if (slot->data) ctx->backend->host_free(ctx->device, slot->data);
        slot->data = NULL;
        slot->bytes = 0;
        GT_TRY(ctx->backend->host_alloc(ctx->device, bytes, &slot->data));
        slot->bytes = bytes;
    }
    *out = slot;
    return GT_OK;
}

/* Host memory to a dense device tensor. Small ones go through pinned memory and do not wait. */
static gt_status upload(gt_tensor *t, const void *data, size_t bytes) {
    enum { STAGED_MOST = 1 << 20 };
    gt_context *ctx = t->ctx;
    const gt__backend *b = ctx->backend;
    if (bytes == 0) return GT_OK;
    if (b->kind != GT_DEVICE_CPU && bytes <= STAGED_MOST) {
        gt__staging *slot;
        GT_TRY(staging_take(ctx, bytes, &slot));
        memcpy(slot->data, data, bytes);
        GT_TRY(b->copy(ctx->device, GT__STREAM_COMPUTE, GT__COPY_HOST_TO_DEVICE, t->data, slot->data, bytes));
        slot->used = true;
        return b->event_record(ctx->device, slot->event, GT__STREAM_COMPUTE);
    }
    GT_TRY(b->copy(ctx->device, GT__STREAM_COMPUTE, GT__COPY_HOST_TO_DEVICE, t->data, data, bytes));
    return b->synchronize(ctx->device, GT__STREAM_COMPUTE);
}

static gt_status with_device(gt_tensor *t, const void *data, size_t bytes) {
    int32_t previous = gt__enter(t->ctx);
    gt_status status = upload(t, data, bytes);
    gt__leave(t->ctx, previous);
    return status;
}

static gt_tensor *make(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, const char *who) {
    if (ctx == NULL) {
        (void)gt__error_null(who, "ctx", __FILE__, __LINE__);
        return NULL;
    }
    gt__meta meta;
    GT_TRY_NULL(gt__meta_make(&meta, dtype, ndim, shape, who));
    gt__dropped_release(ctx);
    return gt__tensor_new_for(ctx, &meta, GT_MEMORY_USER, who);
}

/* Runs a generator op into a fresh tensor and hands it to the scope. */
static gt_tensor *generate(gt_tensor *t, gt__op_id op, const gt__attrs *attr) {
    if (t && gt__op_into(op, NULL, 0, attr, t) != GT_OK) {
        gt_tensor_release(t);
        return NULL;
    }
    return gt__scope_add(t);
}

gt_tensor *gt_tensor_empty(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    return gt__scope_add(make(ctx, dtype, ndim, shape, "tensor_empty"));
}

gt_tensor *gt_tensor_zeros(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    return gt_tensor_full(ctx, dtype, ndim, shape, 0.0);
}

gt_tensor *gt_tensor_full(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, double value) {
    gt_tensor *t = make(ctx, dtype, ndim, shape, "tensor_full");
    if (t && gt__fill(t, value) != GT_OK) {
        gt_tensor_release(t);
        return NULL;
    }
    return gt__scope_add(t);
}

gt_tensor *gt_tensor_from_data(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, const void *data, size_t bytes) {
    gt_tensor *t = make(ctx, dtype, ndim, shape, "tensor_from_data");
    if (t == NULL) return NULL;
    gt_status status;
    if (bytes != gt_tensor_bytes(t)) {
        char text[GT__SHAPE_TEXT];
        status = GT_RAISE(GT_BAD_ARGUMENT, "tensor_from_data: %s of %s takes %zu bytes, %zu were given",
                          gt__meta_text(text, sizeof text, &t->meta), gt_dtype_name(dtype), gt_tensor_bytes(t), bytes);
    } else if (data == NULL && bytes > 0) {
        status = GT_RAISE(GT_BAD_ARGUMENT, "tensor_from_data: data is NULL");
    } else {
        status = with_device(t, data, bytes);
    }
    if (status != GT_OK) {
        gt_tensor_release(t);
        return NULL;
    }
    return gt__scope_add(t);
}

static gt_tensor *draw(gt_context *ctx, gt__op_id op, gt_dtype dtype, int32_t ndim, const int64_t *shape, double a, double b,
                       const char *who) {
    GT_REQUIRE_NULL(gt__dtype_is_float(dtype), GT_BAD_DTYPE, "%s: %s is not a floating-point dtype", who, gt_dtype_name(dtype));
    gt_tensor *t = make(ctx, dtype, ndim, shape, who);
    if (t == NULL) return NULL;
    gt__attrs attr = {.random = {.a = a, .b = b}};
    gt__random_take(ctx, t->meta.numel, &attr);
    return generate(t, op, &attr);
}

gt_tensor *gt_tensor_uniform(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, double low, double high) {
    return draw(ctx, GT__OP_UNIFORM, dtype, ndim, shape, low, high, "tensor_uniform");
}

gt_tensor *gt_tensor_normal(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, double mean, double std) {
    return draw(ctx, GT__OP_NORMAL, dtype, ndim, shape, mean, std, "tensor_normal");
}

gt_tensor *gt_tensor_arange(gt_context *ctx, gt_dtype dtype, double start, double step, int64_t count) {
    gt__attrs attr = {.random = {.a = start, .b = step}};
    return generate(make(ctx, dtype, 1, &count, "tensor_arange"), GT__OP_ARANGE, &attr);
}

gt_status gt__fill(gt_tensor *t, double value) {
    if (t->meta.numel == 0) return GT_OK;
    if (value == 0.0 && gt__meta_is_dense(&t->meta)) {
        int32_t previous = gt__enter(t->ctx);
        gt_status status = t->ctx->backend->memset_zero(t->ctx->device, GT__STREAM_COMPUTE, t->data, gt_tensor_bytes(t));
        gt__leave(t->ctx, previous);
        return status;
    }
    gt__attrs attr = {.scalar = {.value = value}};
    return gt__op_into(GT__OP_FILL, NULL, 0, &attr, t);
}

static gt_status check_size(const gt_tensor *t, const void *data, size_t bytes, const char *who) {
    GT_TRY(gt__tensor_check(t, who));
    char text[2 * GT__SHAPE_TEXT];
    GT_REQUIRE(bytes == gt_tensor_bytes(t), GT_BAD_ARGUMENT, "%s: %s takes %zu bytes, %zu were given", who,
               gt__tensor_text(t, text, sizeof text), gt_tensor_bytes(t), bytes);
    GT_REQUIRE(data != NULL || bytes == 0, GT_BAD_ARGUMENT, "%s: data is NULL", who);
    return GT_OK;
}

gt_status gt_tensor_read(gt_tensor *tensor, void *data, size_t bytes) {
    GT_REQUIRE_HANDLE(tensor);
    GT_TRY(check_size(tensor, data, bytes, "gt_tensor_read"));
    gt_context *ctx = tensor->ctx;
    if (ctx->observer) GT_TRY(ctx->observer->read(ctx->observer, tensor, "gt_tensor_read"));
    gt_tensor *dense = gt_tensor_retain(tensor);
    if (!gt__meta_is_row_major(&tensor->meta)) {
        gt__meta meta = tensor->meta;
        gt__meta_set_row_major(&meta);
        gt_tensor_release(dense);
        dense = gt__tensor_new_for(ctx, &meta, GT_MEMORY_TEMPORARY, "tensor_read");
        if (dense == NULL) return gt_last_error()->status;
        gt_status status = gt__op_into(GT__OP_COPY, &tensor, 1, NULL, dense);
        if (status != GT_OK) {
            gt_tensor_release(dense);
            return status;
        }
    }
    int32_t previous = gt__enter(ctx);
    gt_status status =
        bytes ? ctx->backend->copy(ctx->device, GT__STREAM_COMPUTE, GT__COPY_DEVICE_TO_HOST, data, dense->data, bytes) : GT_OK;
    if (status == GT_OK) status = ctx->backend->synchronize(ctx->device, GT__STREAM_COMPUTE);
    gt__leave(ctx, previous);
    gt_tensor_release(dense);
    return status == GT_OK ? gt__check_device(ctx) : status;
}

gt_status gt__upload(gt_tensor *tensor, const void *data, size_t bytes) {
    if (gt__meta_is_row_major(&tensor->meta)) return with_device(tensor, data, bytes);
    gt__meta meta = tensor->meta;
    gt__meta_set_row_major(&meta);
    gt_tensor *dense = gt__tensor_new_for(tensor->ctx, &meta, GT_MEMORY_TEMPORARY, "tensor_write");
    if (dense == NULL) return gt_last_error()->status;
    gt_status status = with_device(dense, data, bytes);
    if (status == GT_OK) status = gt__op_into(GT__OP_COPY, &dense, 1, NULL, tensor);
    gt_tensor_release(dense);
    return status;
}

gt_status gt_tensor_write(gt_tensor *tensor, const void *data, size_t bytes) {
    GT_REQUIRE_HANDLE(tensor);
    GT_TRY(check_size(tensor, data, bytes, "gt_tensor_write"));
    GT_TRY(gt__check_writable(tensor, "gt_tensor_write"));
    GT_TRY(gt__upload(tensor, data, bytes));
    return gt__overwritten(tensor, NULL);
}

gt_status gt_tensor_item(gt_tensor *tensor, double *value) {
    GT_REQUIRE_HANDLE(tensor);
    GT_REQUIRE_HANDLE(value);
    GT_TRY(gt__tensor_check(tensor, "gt_tensor_item"));
    char text[2 * GT__SHAPE_TEXT];
    GT_REQUIRE(tensor->meta.numel == 1, GT_BAD_SHAPE, "gt_tensor_item: %s has %lld elements, not one",
               gt__tensor_text(tensor, text, sizeof text), (long long)tensor->meta.numel);
    if (tensor->ctx->observer) GT_TRY(tensor->ctx->observer->read(tensor->ctx->observer, tensor, "gt_tensor_item"));
    gt__meta meta;
    GT_TRY(gt__meta_make(&meta, GT_DTYPE_F64, 0, NULL, "gt_tensor_item"));
    gt_tensor *wide = gt__tensor_new_for(tensor->ctx, &meta, GT_MEMORY_TEMPORARY, "tensor_item");
    if (wide == NULL) return gt_last_error()->status;
    gt__attrs attr = {.layout = {.dtype = GT_DTYPE_F64}};
    gt_status status = gt__op_into(GT__OP_CAST, &tensor, 1, &attr, wide);
    double result = 0;
    if (status == GT_OK) status = gt_tensor_read(wide, &result, sizeof result);
    gt_tensor_release(wide);
    if (status == GT_OK) *value = result;
    return status;
}

/* Opening and closing a context, its options, and waiting for its device. */
#include "core/oom.h"
#include "core/offload.h"

#include <stdio.h>

#define GT__HISTORY_EVENTS 16384 /* of the allocator, kept by default */

#define WITH_DEFAULTS                                                                                                                      \
    { .struct_size = sizeof(gt_context_options), .device = GT_DEVICE_AUTO, .workspace_limit = GT_WORKSPACE_AUTO, .allow_tf32 = 1, }

gt_status gt_context_options_init(gt_context_options *options, size_t size) {
    gt_context_options defaults = WITH_DEFAULTS;
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_context_options");
}

static gt_status open_device(gt_context *ctx, const gt__backend *backend) {
    gt_status status = backend->open(ctx, &ctx->options, &ctx->device);
    if (status != GT_OK) return status;
    ctx->backend = backend;
    ctx->opened = ctx->device;
    ctx->device->backend = backend;
    ctx->device->ctx = ctx;
    ctx->device->deterministic = ctx->options.deterministic;
    ctx->device->allow_tf32 = ctx->options.allow_tf32;
    ctx->device->workspace_limit = ctx->options.workspace_limit;
    return GT_OK;
}

static gt_status open_cuda(gt_context *ctx) {
    const gt__backend *backend;
    GT_TRY(gt__backend_cuda(&backend));
    return open_device(ctx, backend);
}

static gt_status open_any(gt_context *ctx) {
    switch (ctx->options.device) {
    case GT_DEVICE_CPU:
        return open_device(ctx, gt__backend_cpu());
    case GT_DEVICE_CUDA:
        return open_cuda(ctx);
    case GT_DEVICE_AUTO:
        if (open_cuda(ctx) == GT_OK) return GT_OK;
        gt__log(ctx, GT_LOG_WARNING, "no GPU is used: %s", gt_last_error()->message);
        gt_clear_error();
        return open_device(ctx, gt__backend_cpu());
    default:
        GT_FAIL(GT_BAD_ARGUMENT, "gt_context_create: device %d is none of GT_DEVICE_AUTO, GT_DEVICE_CPU, GT_DEVICE_CUDA",
                (int)ctx->options.device);
    }
}

gt_status gt_context_create(const gt_context_options *options, gt_context **out) {
    GT_REQUIRE_HANDLE(out);
    gt_context_options mine = WITH_DEFAULTS;
    if (options) GT_TRY(gt__options_read(&mine, sizeof mine, options, "gt_context_options"));
    GT_REQUIRE(mine.cpu_threads >= 0 && mine.cpu_threads <= 4096, GT_BAD_ARGUMENT, "gt_context_create: cpu_threads is %d, not 0 to 4096",
               (int)mine.cpu_threads);
    GT_REQUIRE(mine.device_index >= 0, GT_BAD_ARGUMENT, "gt_context_create: device_index is %d", (int)mine.device_index);
    gt_context *ctx = gt__calloc(1, sizeof *ctx);
    if (ctx == NULL) return GT_OUT_OF_HOST_MEMORY;
    ctx->options = mine;
    ctx->rng_seed = mine.seed;
    ctx->live.live_next = ctx->live.live_prev = &ctx->live;
    const gt__allocator_options memory = {
        .limit = mine.memory_limit, .history = GT__HISTORY_EVENTS, .expandable = true, .on_shortage = gt__oom_shortage, .user = ctx};
    gt_status status = open_any(ctx);
    if (status == GT_OK) status = gt__oom_create(ctx);
    if (status == GT_OK) status = gt__allocator_create(ctx->device, &memory, &ctx->allocator);
    if (status != GT_OK) {
        if (ctx->device) ctx->backend->close(ctx->device);
        gt__oom_destroy(ctx);
        gt__free(ctx);
        return status;
    }
    *out = ctx;
    return GT_OK;
}

void gt_context_destroy(gt_context *ctx) {
    if (ctx == NULL) return;
    gt_error before = *gt_last_error(); /* closing must not replace what the caller may still want to read */
    if (ctx->profiler) ctx->profiler->close(ctx->profiler);
    int32_t previous = gt__enter(ctx);
    if (ctx->backend->synchronize(ctx->device, GT__STREAM_COMPUTE) != GT_OK ||
        ctx->backend->synchronize(ctx->device, GT__STREAM_COPY) != GT_OK) {
        gt__log(ctx, GT_LOG_WARNING, "closing the context: %s", gt_last_error()->message);
        if (before.status == GT_OK) gt_clear_error();
    }
    gt__offload_stop(ctx);
    while (ctx->n_scopes > 0) (void)gt_scope_end(ctx);
    gt__tensors_orphan(ctx);
    gt__nodes_free(ctx);
    gt__offload_free(ctx);
    gt__staging_free(ctx);
    gt__allocator_destroy(ctx->allocator);
    gt__leave(ctx, previous);
    ctx->backend->close(ctx->device);
    gt__free(ctx->scoped);
    gt__free(ctx->scopes);
    gt__context_strings_free(ctx);
    gt__oom_destroy(ctx);
    gt__free(ctx);
}

gt_device_kind gt_context_device(const gt_context *ctx) { return ctx ? ctx->backend->kind : GT_DEVICE_AUTO; }
const char *gt_context_device_name(const gt_context *ctx) { return ctx ? ctx->opened->name : ""; }

gt_status gt__check_device(gt_context *ctx) {
    gt__device_error error = {0};
    int32_t previous = gt__enter(ctx);
    ctx->backend->take_error(ctx->device, &error);
    gt__leave(ctx, previous);
    if (error.status == GT_OK) return GT_OK;
    const char *op = error.op >= 0 && error.op < GT__OP_COUNT ? gt__op_table[error.op].name : "op";
    GT_FAIL_HINT(error.status, "check the data set's labels; the row was left out of the loss",
                 "%s: row %lld has label %lld, there are %lld classes", op, (long long)error.row, (long long)error.value,
                 (long long)error.classes);
}

gt_status gt_context_synchronize(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->synchronize(ctx->device, GT__STREAM_COMPUTE);
    if (status == GT_OK) status = ctx->backend->synchronize(ctx->device, GT__STREAM_COPY);
    gt__leave(ctx, previous);
    return status == GT_OK ? gt__check_device(ctx) : status;
}

void *gt_context_stream(gt_context *ctx) { return ctx ? ctx->backend->stream(ctx->device, GT__STREAM_COMPUTE) : NULL; }

gt_status gt_context_set_workspace_limit(gt_context *ctx, uint64_t bytes) {
    GT_REQUIRE_HANDLE(ctx);
    ctx->options.workspace_limit = bytes;
    ctx->device->workspace_limit = ctx->opened->workspace_limit = bytes;
    return GT_OK;
}

gt_status gt_context_set_memory_limit(gt_context *ctx, uint64_t bytes) {
    GT_REQUIRE_HANDLE(ctx);
    ctx->options.memory_limit = bytes;
    gt__allocator_set_limit(ctx->allocator, bytes);
    return GT_OK;
}

void gt__log_text(gt_context *ctx, gt_log_level level, const char *text) {
    if (ctx->options.log) ctx->options.log(ctx->options.log_user, level, text);
}

void gt__log(gt_context *ctx, gt_log_level level, const char *format, ...) {
    if (ctx->options.log == NULL) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    gt__log_text(ctx, level, text);
}

/* Requests lie one after the other; when the last one is freed all is free again. */
static gt_status planned_scratch(gt__scratch *s, size_t bytes, void **pointer, void **handle, bool quiet) {
    size_t whole = (bytes + 511) & ~(size_t)511;
    if (whole > s->bytes - s->used) {
        if (quiet) return GT_OUT_OF_MEMORY;
        GT_FAIL(GT_OUT_OF_MEMORY, "a kernel asked for %zu bytes of scratch memory, and %zu were planned for it", bytes, s->bytes - s->used);
    }
    *pointer = s->data + s->used;
    *handle = s;
    s->used += whole;
    s->open++;
    return GT_OK;
}

static gt_status scratch(gt_context *ctx, size_t bytes, void **pointer, void **handle, bool quiet) {
    gt__block *block = NULL;
    *pointer = NULL;
    *handle = NULL;
    if (bytes == 0) return GT_OK;
    if (ctx->scratch && ctx->scratch->data) return planned_scratch(ctx->scratch, bytes, pointer, handle, quiet);
    const gt__tag tag = {.op = "workspace", .module = ctx->module_path, .category = GT_MEMORY_WORKSPACE};
    gt_status status = gt__allocator_alloc(ctx->allocator, bytes, &tag, quiet, &block);
    if (status != GT_OK) return status;
    *pointer = gt__block_data(block);
    *handle = block;
    if (ctx->scratch) {
        ctx->scratch->used += gt__block_bytes(block);
        ctx->scratch->most = GT__MAX(ctx->scratch->most, ctx->scratch->used);
    }
    return GT_OK;
}

gt_status gt__scratch_alloc(gt_context *ctx, size_t bytes, void **pointer, void **handle) {
    return scratch(ctx, bytes, pointer, handle, false);
}
gt_status gt__scratch_alloc_quiet(gt_context *ctx, size_t bytes, void **pointer, void **handle) {
    return scratch(ctx, bytes, pointer, handle, true);
}
bool gt__cache_release(gt_context *ctx) {
    gt_memory_stats before = {.struct_size = sizeof before}, after = before;
    gt__allocator_stats(ctx->allocator, &before);
    gt__allocator_trim(ctx->allocator);
    gt__allocator_stats(ctx->allocator, &after);
    return after.reserved < before.reserved;
}
void gt__scratch_free(gt_context *ctx, void *handle) {
    gt__scratch *s = ctx->scratch;
    if (handle == NULL) return;
    if (s && s->data) { /* a planned place */
        if (--s->open == 0) s->used = 0;
        return;
    }
    if (s) s->used -= gt__block_bytes(handle);
    gt__allocator_free(ctx->allocator, handle);
}

/* In libgtrain_cuda.so only: the names that the backend's code calls, over the table that libgtrain.so hands in. The module links none of its
 * symbols, so that it can be loaded for a program that has gtrain linked in statically too. */
#include "backend/backend.h"
#include "core/op.h"

#include <stdio.h>

static const gt__host_api *host;

gt_status gt_backend_cuda_v1(const gt__host_api *functions, const gt__backend **backend) {
    /* Nothing can be raised without a table of a known form. */
    if (functions->abi != GT__BACKEND_ABI || functions->op_count != GT__OP_COUNT) return GT_BAD_ABI;
    host = functions;
    return gt__cuda_backend(backend);
}

gt_status gt__error_raisev(gt_status status, const char *file, int line, int64_t native_code, const char *native_name, const char *hint,
                           const char *format, va_list arguments) {
    return host->error_raisev(status, file, line, native_code, native_name, hint, format, arguments);
}

gt_status gt__error_raise(gt_status status, const char *file, int line, int64_t native_code, const char *native_name, const char *hint,
                          const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)host->error_raisev(status, file, line, native_code, native_name, hint, format, arguments);
    va_end(arguments);
    return status;
}

void *gt__malloc(size_t size) { return host->malloc_fn(size); }
void *gt__calloc(size_t count, size_t size) { return host->calloc_fn(count, size); }
void *gt__realloc(void *pointer, size_t size) { return host->realloc_fn(pointer, size); }
void gt__free(void *pointer) { host->free_fn(pointer); }

gt_status gt__scratch_alloc(gt_context *ctx, size_t bytes, void **pointer, void **handle) {
    return host->scratch_alloc(ctx, bytes, pointer, handle);
}
gt_status gt__scratch_alloc_quiet(gt_context *ctx, size_t bytes, void **pointer, void **handle) {
    return host->scratch_alloc_quiet(ctx, bytes, pointer, handle);
}
void gt__scratch_free(gt_context *ctx, void *handle) { host->scratch_free(ctx, handle); }
bool gt__cache_release(gt_context *ctx) { return host->cache_release(ctx); }

void gt__log(gt_context *ctx, gt_log_level level, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    host->log(ctx, level, text);
}

const char *gt__call_text(const gt__call *call, char *buffer, size_t size) { return host->call_text(call, buffer, size); }

gt_status gt__call_fail(const gt__call *call, gt_status status, const char *file, int line, const char *hint, const char *format, ...) {
    char who[256], message[768];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return gt__error_raise(status, file, line, 0, NULL, hint, "%s: %s", gt__call_text(call, who, sizeof who), message);
}

const char *gt__shape_text(char *buffer, size_t size, int32_t ndim, const int64_t *shape) {
    return host->shape_text(buffer, size, ndim, shape);
}

gt_status gt__custom_run(gt__device *device, const gt__call *call) { return host->custom_run(device, call); }

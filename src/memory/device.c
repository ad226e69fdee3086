/* The backend's memory calls, with the device current. */
#include "memory/internal.h"

static int32_t enter(const gt__allocator *a) { return a->device->backend->enter ? a->device->backend->enter(a->device) : 0; }
static void leave(const gt__allocator *a, int32_t previous) {
    if (a->device->backend->enter) a->device->backend->leave(a->device, previous);
}

gt_status gt__device_alloc(gt__allocator *a, size_t bytes, void **data) {
    int32_t previous = enter(a);
    gt_status status = a->device->backend->memory_alloc(a->device, bytes, data);
    leave(a, previous);
    return status;
}

void gt__device_free(gt__allocator *a, void *data) {
    int32_t previous = enter(a);
    a->device->backend->memory_free(a->device, data);
    leave(a, previous);
}

gt_status gt__device_info(const gt__allocator *a, uint64_t *free_bytes, uint64_t *total_bytes) {
    int32_t previous = enter(a);
    gt_status status = a->device->backend->memory_info(a->device, free_bytes, total_bytes);
    leave(a, previous);
    return status;
}

size_t gt__device_grain(gt__allocator *a) {
    const gt__backend *backend = a->device->backend;
    if (!backend->map_grain) return 0;
    int32_t previous = enter(a);
    size_t grain = backend->map_grain(a->device);
    leave(a, previous);
    return grain % GT__MEMORY_UNIT == 0 ? grain : 0;
}

gt_status gt__device_reserve(gt__allocator *a, size_t bytes, void **address) {
    int32_t previous = enter(a);
    gt_status status = a->device->backend->address_reserve(a->device, bytes, address);
    leave(a, previous);
    return status;
}

void gt__device_release(gt__allocator *a, void *address, size_t bytes) {
    int32_t previous = enter(a);
    a->device->backend->address_release(a->device, address, bytes);
    leave(a, previous);
}

gt_status gt__device_map(gt__allocator *a, void *address, size_t bytes) {
    int32_t previous = enter(a);
    gt_status status = a->device->backend->memory_map(a->device, address, bytes);
    leave(a, previous);
    return status;
}

void gt__device_unmap(gt__allocator *a, void *address, size_t bytes) {
    int32_t previous = enter(a);
    a->device->backend->memory_unmap(a->device, address, bytes);
    leave(a, previous);
}

gt_status gt__device_wait(gt__allocator *a) {
    int32_t previous = enter(a);
    gt_status status = a->device->backend->synchronize(a->device, GT__STREAM_COMPUTE);
    if (status == GT_OK) status = a->device->backend->synchronize(a->device, GT__STREAM_COPY);
    leave(a, previous);
    return status;
}

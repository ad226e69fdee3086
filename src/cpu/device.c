/* The CPU as a device: host memory, copies at once, streams and events that are always done. */
#include "cpu/device.h"

#include "cpu/chain.h"
#include "cpu/onednn.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

struct gt__event {
    double seconds; /* when it was recorded */
};

/* --- memory ----------------------------------------------------------------------------------------------------------------------- */

/* The number after `key` in a small text file, or `otherwise`. An empty key: the file's first number. */
static uint64_t number_in_file(const char *path, const char *key, uint64_t otherwise) {
    FILE *file = fopen(path, "re");
    if (!file) return otherwise;
    char line[256];
    uint64_t result = otherwise;
    size_t length = strlen(key);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) != 0) continue;
        char *end;
        unsigned long long value = strtoull(line + length, &end, 10);
        if (end != line + length) result = value;
        break;
    }
    fclose(file);
    return result;
}

/* The machine's memory, or less where the process's control group is given less. */
static void memory_of_process(uint64_t *free_bytes, uint64_t *total_bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    uint64_t available = number_in_file("/proc/meminfo", "MemAvailable:", 0) * 1024;
    if (available == 0) available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;

    uint64_t limit = number_in_file("/sys/fs/cgroup/memory.max", "", UINT64_MAX), used = 0;
    if (limit != UINT64_MAX)
        used = number_in_file("/sys/fs/cgroup/memory.current", "", 0);
    else if ((limit = number_in_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", UINT64_MAX)) != UINT64_MAX)
        used = number_in_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "", 0);
    if (limit < total) {
        total = limit;
        uint64_t left = used < limit ? limit - used : 0;
        available = GT__MIN(available, left);
    }
    *total_bytes = total;
    *free_bytes = GT__MIN(available, total);
}

/* Raises nothing: the allocator, which knows what the memory is for, does. */
static gt_status cpu_memory_alloc(gt__device *device, size_t bytes, void **pointer) {
    (void)device;
    /* A size that cannot exist is refused here: with overcommitted memory malloc may grant it. */
    uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes > physical) return GT_OUT_OF_MEMORY;
    size_t alignment = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : 64;
    size_t rounded = (bytes + alignment - 1) & ~(alignment - 1);
    void *memory = aligned_alloc(alignment, rounded ? rounded : alignment);
    if (!memory) return GT_OUT_OF_MEMORY;
    if (alignment == HUGE_PAGE) (void)madvise(memory, rounded, MADV_HUGEPAGE);
    *pointer = memory;
    return GT_OK;
}

static void cpu_memory_free(gt__device *device, void *pointer) {
    (void)device;
    free(pointer);
}

static gt_status cpu_memory_info(gt__device *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    (void)device;
    memory_of_process(free_bytes, total_bytes);
    return GT_OK;
}

static gt_status cpu_host_alloc(gt__device *device, size_t bytes, void **pointer) {
    (void)device;
    void *memory = gt__malloc(bytes);
    if (!memory) return GT_OUT_OF_HOST_MEMORY;
    *pointer = memory;
    return GT_OK;
}

static void cpu_host_free(gt__device *device, void *pointer) {
    (void)device;
    gt__free(pointer);
}

static gt_status cpu_copy(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *destination, const void *source,
                          size_t bytes) {
    (void)device;
    (void)stream;
    (void)kind;
    if (bytes) memmove(destination, source, bytes);
    return GT_OK;
}

static gt_status cpu_memset_zero(gt__device *device, gt__stream_id stream, void *pointer, size_t bytes) {
    (void)device;
    (void)stream;
    if (bytes) memset(pointer, 0, bytes);
    return GT_OK;
}

/* --- streams and events ------------------------------------------------------------------------------------------------------------ */

static gt_status cpu_synchronize(gt__device *device, gt__stream_id stream) {
    (void)device;
    (void)stream;
    return GT_OK;
}

static gt_status cpu_event_create(gt__device *device, gt__event **event) {
    (void)device;
    gt__event *made = gt__calloc(1, sizeof *made);
    if (!made) return GT_OUT_OF_HOST_MEMORY;
    *event = made;
    return GT_OK;
}

static void cpu_event_destroy(gt__device *device, gt__event *event) {
    (void)device;
    gt__free(event);
}

static gt_status cpu_event_record(gt__device *device, gt__event *event, gt__stream_id stream) {
    (void)device;
    (void)stream;
    event->seconds = gt__clock_seconds();
    return GT_OK;
}

static gt_status cpu_event_wait_stream(gt__device *device, gt__event *event, gt__stream_id stream) {
    (void)device;
    (void)event;
    (void)stream;
    return GT_OK;
}

static gt_status cpu_event_elapsed(gt__device *device, gt__event *begin, gt__event *end, double *seconds) {
    (void)device;
    *seconds = end->seconds - begin->seconds;
    return GT_OK;
}

static gt_status cpu_event_wait_host(gt__device *device, gt__event *event) {
    (void)device;
    (void)event;
    return GT_OK;
}

static gt_status cpu_event_query(gt__device *device, gt__event *event, int32_t *done) {
    (void)device;
    (void)event;
    *done = 1;
    return GT_OK;
}

static void *cpu_stream(gt__device *device, gt__stream_id stream) {
    (void)device;
    (void)stream;
    return NULL;
}

static void cpu_take_error(gt__device *device, gt__device_error *error) {
    (void)device;
    memset(error, 0, sizeof *error);
}

/* --- opening ------------------------------------------------------------------------------------------------------------------------ */

static void cpu_close(gt__device *head) {
    if (!head) return;
    gt__cpu_device *device = gt__cpu(head);
    gt__onednn_destroy(device->onednn);
    gt__pool_destroy(device->pool);
    gt__free(device->pack);
    gt__free(device);
}

gt_status gt__cpu_room(gt__device *device, size_t bytes, void **data, void **handle) {
    if (bytes > device->workspace_limit) return GT_NOT_SUPPORTED;
    if (device->deterministic) return gt__scratch_alloc(device->ctx, bytes, data, handle);
    return gt__scratch_alloc_quiet(device->ctx, bytes, data, handle) == GT_OK ? GT_OK : GT_NOT_SUPPORTED;
}

static gt_status cpu_open(gt_context *ctx, const gt_context_options *options, gt__device **out) {
    gt__cpu_device *device = gt__calloc(1, sizeof *device);
    if (!device) return GT_OUT_OF_HOST_MEMORY;
    device->head.backend = gt__backend_cpu();
    device->head.ctx = ctx;
    device->head.deterministic = options->deterministic;
    device->head.allow_tf32 = options->allow_tf32;
    device->head.workspace_limit = options->workspace_limit;
    gt_status status;
    GT_TRY_GOTO(status, gt__pool_create(options->cpu_threads, &device->pool), fail);
    device->threads = gt__pool_threads(device->pool);
    GT_TRY_GOTO(status, gt__onednn_create(device->threads, &device->onednn), fail);
    char library[64];
    snprintf(device->head.name, sizeof device->head.name, "CPU (%d thread%s%s)", (int)device->threads, device->threads == 1 ? "" : "s",
             gt__onednn_version(library, sizeof library));
    *out = &device->head;
    return GT_OK;
fail:
    cpu_close(&device->head);
    return status;
}

static const gt__backend cpu_backend = {
    .abi = GT__BACKEND_ABI,
    .kind = GT_DEVICE_CPU,
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .memory_alloc = cpu_memory_alloc,
    .memory_free = cpu_memory_free,
    .memory_info = cpu_memory_info,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .copy = cpu_copy,
    .memset_zero = cpu_memset_zero,
    .synchronize = cpu_synchronize,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait_stream = cpu_event_wait_stream,
    .event_wait_host = cpu_event_wait_host,
    .event_query = cpu_event_query,
    .stream = cpu_stream,
    .take_error = cpu_take_error,
    .kernels = gt__cpu_kernels,
    .update = gt__cpu_update,
    .grad_norm = gt__cpu_grad_norm,
    .grad_clip_norm = gt__cpu_grad_clip_norm,
    .grad_clip_value = gt__cpu_grad_clip_value,
    .grad_scale = gt__cpu_grad_scale,
    .step_task = gt__cpu_step_task,
    .grad_step_task = gt__cpu_grad_step_task,
    .mark_not_finite = gt__cpu_mark_not_finite,
    .copy_many = gt__cpu_copy_many,
    .move_many = gt__cpu_move_many,
    .can_chain = gt__cpu_can_chain,
    .run_chain = gt__cpu_run_chain,
    .timer_create = cpu_event_create,
    .event_elapsed = cpu_event_elapsed,
};

const gt__backend *gt__backend_cpu(void) { return &cpu_backend; }

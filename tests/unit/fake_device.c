#include "unit/fake_device.h"

#include <stdlib.h>
#include <sys/mman.h>

/* --- host memory: the linker sends the library's calls here ------------------------------------------------------------------------- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void __real_free(void *pointer);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);
void __wrap_free(void *pointer);

static _Atomic int64_t fail_after = -1, live;
static _Atomic int failed;

static int fails_now(void) {
    if (fail_after < 0 || fail_after-- > 0) return 0;
    failed = 1;
    return 1;
}

void *__wrap_malloc(size_t size) {
    void *pointer = fails_now() ? NULL : __real_malloc(size);
    if (pointer) live++;
    return pointer;
}
void *__wrap_calloc(size_t count, size_t size) {
    void *pointer = fails_now() ? NULL : __real_calloc(count, size);
    if (pointer) live++;
    return pointer;
}
void *__wrap_realloc(void *pointer, size_t size) {
    void *grown = fails_now() ? NULL : __real_realloc(pointer, size);
    if (grown && !pointer) live++;
    return grown;
}
void __wrap_free(void *pointer) {
    if (pointer) live--;
    __real_free(pointer);
}

void fake_host_fail(int64_t after) {
    fail_after = after;
    failed = 0;
}
int fake_host_failed(void) { return failed; }
int64_t fake_host_live(void) { return live; }

/* --- the device ---------------------------------------------------------------------------------------------------------------------- */

static char *addresses(size_t bytes, int access) {
    void *memory = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static gt_status fake_alloc(gt__device *device, size_t bytes, void **pointer) {
    fake_device *f = (fake_device *)device;
    f->allocs++;
    if (f->failing != GT_OK) return f->failing;
    if (bytes > f->capacity - f->used) return GT_OUT_OF_MEMORY;
    char *memory = addresses(bytes, PROT_READ | PROT_WRITE);
    fake_piece *piece = __real_calloc(1, sizeof *piece);
    if (!memory || !piece) abort();
    *piece = (fake_piece){memory, bytes, f->pieces};
    f->pieces = piece;
    f->used += bytes;
    *pointer = memory;
    return GT_OK;
}

static void fake_free(gt__device *device, void *pointer) {
    fake_device *f = (fake_device *)device;
    f->frees++;
    if (f->busy) f->faults++;
    for (fake_piece **at = &f->pieces; *at; at = &(*at)->next) {
        fake_piece *piece = *at;
        if (piece->data != pointer) continue;
        *at = piece->next;
        f->used -= piece->bytes;
        (void)munmap(piece->data, piece->bytes);
        __real_free(piece);
        return;
    }
    f->faults++;
}

static gt_status fake_info(gt__device *device, uint64_t *free_bytes, uint64_t *total) {
    fake_device *f = (fake_device *)device;
    *free_bytes = f->capacity - f->used;
    *total = f->capacity + f->others;
    return GT_OK;
}

static size_t fake_grain(gt__device *device) { return ((fake_device *)device)->grain; }

static gt_status fake_reserve(gt__device *device, size_t bytes, void **address) {
    fake_device *f = (fake_device *)device;
    f->reserves++;
    if (f->reserves_left-- <= 0) return GT_OUT_OF_MEMORY;
    fake_range *range = __real_calloc(1, sizeof *range);
    if (!range || bytes % f->grain) abort();
    *range = (fake_range){addresses(bytes, PROT_NONE), bytes, __real_calloc(bytes / f->grain, 1), f->ranges};
    if (!range->data || !range->mapped) abort();
    f->ranges = range;
    *address = range->data;
    return GT_OK;
}

/* The grains of [address, address + bytes) if they are as `mapped` says, else NULL. */
static unsigned char *grains_of(fake_device *f, void *address, size_t bytes, unsigned char mapped) {
    char *begin = address;
    for (fake_range *r = f->ranges; r; r = r->next) {
        if (begin < r->data || begin + bytes > r->data + r->bytes) continue;
        size_t offset = (size_t)(begin - r->data);
        if (bytes == 0 || offset % f->grain || bytes % f->grain) break;
        for (size_t i = 0; i < bytes / f->grain; ++i)
            if (r->mapped[offset / f->grain + i] != mapped) return NULL;
        return r->mapped + offset / f->grain;
    }
    return NULL;
}

static void fake_release(gt__device *device, void *address, size_t bytes) {
    fake_device *f = (fake_device *)device;
    for (fake_range **at = &f->ranges; *at; at = &(*at)->next) {
        fake_range *r = *at;
        if (r->data != address || r->bytes != bytes) continue;
        if (!grains_of(f, address, bytes, 0)) f->faults++; /* something is still mapped */
        *at = r->next;
        (void)munmap(r->data, r->bytes);
        __real_free(r->mapped);
        __real_free(r);
        return;
    }
    f->faults++;
}

static gt_status fake_map(gt__device *device, void *address, size_t bytes) {
    fake_device *f = (fake_device *)device;
    f->maps++;
    if (f->failing != GT_OK) return f->failing;
    unsigned char *grains = grains_of(f, address, bytes, 0);
    if (!grains) {
        f->faults++;
        return GT_LIBRARY;
    }
    if (bytes > f->capacity - f->used) return GT_OUT_OF_MEMORY;
    if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) abort();
    memset(grains, 1, bytes / f->grain);
    f->used += bytes;
    return GT_OK;
}

static void fake_unmap(gt__device *device, void *address, size_t bytes) {
    fake_device *f = (fake_device *)device;
    f->unmaps++;
    unsigned char *grains = grains_of(f, address, bytes, 1);
    if (!grains || f->busy) f->faults++;
    if (!grains) return;
    (void)madvise(address, bytes, MADV_DONTNEED);
    if (mprotect(address, bytes, PROT_NONE) != 0) abort();
    memset(grains, 0, bytes / f->grain);
    f->used -= bytes;
}

static gt_status fake_synchronize(gt__device *device, gt__stream_id stream) {
    fake_device *f = (fake_device *)device;
    f->waits++;
    f->busy &= ~(1u << stream);
    return GT_OK;
}

void fake_open(fake_device *f, size_t capacity, size_t grain) {
    *f = (fake_device){.capacity = capacity, .grain = grain, .reserves_left = INT32_MAX};
    f->backend = (gt__backend){.abi = GT__BACKEND_ABI,
                               .memory_alloc = fake_alloc,
                               .memory_free = fake_free,
                               .memory_info = fake_info,
                               .map_grain = grain ? fake_grain : NULL,
                               .address_reserve = grain ? fake_reserve : NULL,
                               .address_release = grain ? fake_release : NULL,
                               .memory_map = grain ? fake_map : NULL,
                               .memory_unmap = grain ? fake_unmap : NULL,
                               .synchronize = fake_synchronize};
    f->head.backend = &f->backend;
}

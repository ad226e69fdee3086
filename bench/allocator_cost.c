/* What an allocation and its free cost the host when the cache has what is asked, in nanoseconds: the tag, two history events and two readings of the clock
 * included.
 *
 *     allocator_cost
 *
 * The device is an invented one: addresses without memory. "one size": the same block again and again. "mixed": 4096 blocks of many sizes live, a random
 * one of them is freed and another allocated, so that blocks are split and merged. "no history": the same without events. */
#include "memory/allocator.h"

#include <stdio.h>
#include <sys/mman.h>

static gt_status device_alloc(gt__device *device, size_t bytes, void **pointer) {
    (void)device;
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return GT_OUT_OF_MEMORY;
    *pointer = memory;
    return GT_OK;
}
static void device_free(gt__device *device, void *pointer) { (void)device, (void)pointer; /* at the end of the process */ }
static gt_status device_info(gt__device *device, uint64_t *free_bytes, uint64_t *total) {
    (void)device;
    *free_bytes = *total = 1ull << 37;
    return GT_OK;
}
static size_t map_grain(gt__device *device) { return (void)device, (size_t)2 << 20; }
static gt_status map(gt__device *device, void *address, size_t bytes) { return (void)device, (void)address, (void)bytes, GT_OK; }
static void unmap(gt__device *device, void *address, size_t bytes) { (void)device, (void)address, (void)bytes; }
static gt_status synchronize(gt__device *device, gt__stream_id stream) { return (void)device, (void)stream, GT_OK; }
static const gt__backend backend = {.memory_alloc = device_alloc,
                                    .memory_free = device_free,
                                    .memory_info = device_info,
                                    .map_grain = map_grain,
                                    .address_reserve = device_alloc,
                                    .address_release = unmap,
                                    .memory_map = map,
                                    .memory_unmap = unmap,
                                    .synchronize = synchronize};

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

enum { OPS = 40, MODULES = 60, LIVE = 4096, PAIRS = 200000, ROUNDS = 7 };
static char names[OPS + MODULES];

static gt_status one(gt__allocator *a, uint32_t random, size_t bytes, gt__block **block) {
    const int64_t shape[4] = {32, 64, 56, 56};
    const gt__tag tag = {.op = &names[random % OPS],
                         .module = &names[OPS + random / OPS % MODULES],
                         .shape = shape,
                         .ndim = 4,
                         .dtype = GT_DTYPE_F32,
                         .category = GT_MEMORY_TEMPORARY};
    return gt__allocator_alloc(a, bytes, &tag, false, block);
}

/* Seconds for a pair: the best round. */
static double same_size(gt__allocator *a, size_t bytes) {
    double best = 1;
    for (int r = 0; r < ROUNDS; ++r) {
        double begin = gt__clock_seconds();
        for (int i = 0; i < PAIRS; ++i) {
            gt__block *block;
            if (one(a, 7, bytes, &block) != GT_OK) return -1;
            gt__allocator_free(a, block);
        }
        best = GT__MIN(best, (gt__clock_seconds() - begin) / PAIRS);
    }
    return best;
}

static size_t some_size(uint32_t random) { return 1 + random % (1u << (9 + random % 15)); }

static double mixed(gt__allocator *a) {
    static gt__block *live[LIVE];
    uint32_t random = 2463534242u;
    for (int i = 0; i < LIVE; ++i)
        if (one(a, next_random(&random), some_size(next_random(&random)), &live[i]) != GT_OK) return -1;
    double best = 1;
    for (int r = 0; r < ROUNDS; ++r) {
        double begin = gt__clock_seconds();
        for (int i = 0; i < PAIRS; ++i) {
            gt__block **block = &live[next_random(&random) % LIVE];
            gt__allocator_free(a, *block);
            if (one(a, next_random(&random), some_size(next_random(&random)), block) != GT_OK) return -1;
        }
        best = GT__MIN(best, (gt__clock_seconds() - begin) / PAIRS);
    }
    for (int i = 0; i < LIVE; ++i) gt__allocator_free(a, live[i]);
    return best;
}

int main(void) {
    gt__device device = {.backend = &backend};
    double begin = gt__clock_seconds();
    for (int i = 0; i < PAIRS; ++i) (void)gt__clock_seconds();
    printf("one reading of the clock %.1f ns\n%-24s %10s %10s %10s %12s\n", (gt__clock_seconds() - begin) / PAIRS * 1e9, "ns a pair",
           "4 KiB", "16 MiB", "mixed", "no history");
    for (int expandable = 0; expandable < 2; ++expandable) {
        const gt__allocator_options options = {.history = 16384, .expandable = expandable != 0};
        gt__allocator *a;
        if (gt__allocator_create(&device, &options, &a) != GT_OK) return 1;
        double little = same_size(a, 4096), large = same_size(a, 16u << 20), all = mixed(a);
        if (gt__allocator_set_history(a, 0) != GT_OK) return 1;
        double without = same_size(a, 4096);
        if (little < 0 || large < 0 || all < 0 || without < 0) {
            fprintf(stderr, "%s\n", gt_last_error()->message);
            return 1;
        }
        printf("%-24s %10.1f %10.1f %10.1f %12.1f\n", expandable ? "expandable segments" : "plain segments", little * 1e9, large * 1e9,
               all * 1e9, without * 1e9);
        gt__allocator_destroy(a);
    }
    return 0;
}

/* A device for the allocator's tests: a hard capacity, with or without maps, real contents, and an eye on the caller: memory that is given back or unmapped while
 * work may use it, maps that are not whole grains, and memory that it does not know are counted as faults. */
#ifndef GTRAIN_TESTS_FAKE_DEVICE_H
#define GTRAIN_TESTS_FAKE_DEVICE_H

#include "memory/allocator.h"

typedef struct fake_piece {
    char *data;
    size_t bytes;
    struct fake_piece *next;
} fake_piece;

typedef struct fake_range {
    char *data;
    size_t bytes;
    unsigned char *mapped; /* one a grain */
    struct fake_range *next;
} fake_range;

typedef struct fake_device {
    gt__device head;
    gt__backend backend;
    size_t capacity, used;
    size_t grain; /* 0: no maps */
    fake_piece *pieces;
    fake_range *ranges;
    int faults;
    unsigned busy; /* bit a stream: the test has queued work since it was waited for */
    int waits, allocs, frees, maps, unmaps, reserves;
    gt_status failing; /* what memory_alloc and memory_map return, unless OK */
    int reserves_left; /* address_reserve fails when they are used up */
    uint64_t others;   /* bytes that another process holds */
} fake_device;

/* `grain` 0: a device without maps. */
void fake_open(fake_device *f, size_t capacity, size_t grain);
/* Work is queued on both streams. */
static inline void fake_work(fake_device *f) { f->busy = 3; }

/* Host memory: makes the `after`th allocation from now on fail (0: the next), just that one; negative: none. fake_host_live: how many are live. */
void fake_host_fail(int64_t after);
int fake_host_failed(void); /* one has failed since then */
int64_t fake_host_live(void);

#endif

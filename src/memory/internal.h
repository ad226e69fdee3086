/* The allocator's inside, shared by the files of this folder.
 *
 * A segment is device memory (plain) or a range of addresses of which some grains are backed (expandable). Its blocks lie one beside the other and cover it:
 *   - the record of a segment's first block stays the first: merging and splitting keep the left record;
 *   - neighbours are never both free, nor both unmapped;
 *   - an unmapped block begins and ends on a grain;
 *   - free blocks are in the classes of their pool, unmapped ones in their segment's list;
 *   - reserved = bytes of used and free blocks. */
#ifndef GT_MEMORY_INTERNAL_H
#define GT_MEMORY_INTERNAL_H

#include "memory/allocator.h"

enum {
    GT__MEMORY_UNIT = 512, /* sizes are multiples of it */
    GT__CLASS_SUB_BITS = 4,
    GT__CLASS_COUNT = 64 << GT__CLASS_SUB_BITS,
    GT__CLASS_WORDS = GT__CLASS_COUNT / 64
};
static const size_t gt__small_most = 1u << 20; /* requests up to this share small segments */

typedef struct gt__segment {
    char *data;
    size_t bytes;    /* of its addresses */
    size_t reserved; /* of them with memory behind them */
    gt__block *first;
    gt__block *unmapped; /* in no order */
    struct gt__segment *next, *previous;
    bool small, expandable;
} gt__segment;

/* Bytes in use by one (op, module, category). */
typedef struct gt__tag_bytes {
    const char *op, *module;
    gt_memory_category category;
    int32_t padding;
    uint64_t now;
    uint64_t synced;                  /* steps whose ends are in `bytes` */
    uint64_t bytes[GT__GROWTH_STEPS]; /* at the end of step t: [t % GT__GROWTH_STEPS] */
} gt__tag_bytes;

typedef struct gt__tags {
    gt__tag_bytes **slots; /* open addressing; a power of two of them */
    size_t capacity, count;
} gt__tags;

typedef struct gt__history {
    gt__memory_event *events; /* made by the first event */
    uint64_t capacity;        /* 0: nothing is kept */
    uint64_t count;           /* events so far, those that are lost included */
    uint64_t first;           /* number of the first event that could be kept */
} gt__history;

/* Three cache lines: what merging neighbours touches is in the first. */
struct gt__block {
    char *data;
    size_t bytes;
    gt__segment *segment;
    gt__block *left, *right;    /* neighbours in the segment, by address */
    gt__block *next, *previous; /* in a class, or in the segment's unmapped ones */
    gt__block_state state;
    /* used blocks: */
    gt_memory_category category; /* tagged's too, unless the host had no memory for a tag */
    gt__tag_bytes *tagged;
    size_t asked;
    uint64_t sequence;
    double seconds;
    uint64_t step;
    gt__phase phase;
    int32_t ndim;
    gt_dtype dtype;
    int32_t padding;
    int64_t shape[GT_MAX_DIMS];
    int64_t unused;
};
_Static_assert(sizeof(struct gt__block) == 192, "whole cache lines");

struct gt__allocator {
    gt__device *device;
    uint64_t limit;
    gt__block *spare; /* block records that are not used, linked by next */
    int32_t spares;
    gt__phase phase;
    gt_memory_stats stats;
    double begin; /* of the clock */
    gt__tags tags;
    gt__history history;
    uint64_t bitmap[2][GT__CLASS_WORDS]; /* [small]: classes that are not empty */
    gt__block *classes[2][GT__CLASS_COUNT];
    gt__segment *segments;
    struct gt__block_slab *slabs;
    size_t grain;          /* 0: segments are plain */
    size_t range_bytes[2]; /* [small]: of a range of addresses, once there is one */
    bool plain[2];         /* [small]: reserving addresses failed */
    bool asking;           /* on_shortage runs */
    gt__shortage_fn on_shortage;
    void *user;
};

static inline size_t gt__round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
static inline char *gt__block_end(const gt__block *block) { return block->data + block->bytes; }
/* The grain that `address` lies in begins, and the next one from there. */
static inline char *gt__grain_down(const gt__allocator *a, const gt__segment *s, char *address) {
    return address - (size_t)(address - s->data) % a->grain;
}
static inline char *gt__grain_up(const gt__allocator *a, const gt__segment *s, char *address) {
    return s->data + gt__round_up((size_t)(address - s->data), a->grain);
}
static inline double gt__allocator_clock(const gt__allocator *a) { return gt__clock_seconds() - a->begin; }

/* --- blocks.c: records, and free blocks by size */
/* At least `count` spare records. OUT_OF_HOST_MEMORY. */
gt_status gt__blocks_ensure(gt__allocator *a, int32_t count);
void gt__blocks_free(gt__allocator *a);
gt__block *gt__block_new(gt__allocator *a); /* there is a spare one */
void gt__block_recycle(gt__allocator *a, gt__block *block);
/* Cuts the block after `bytes`; the new right part has its state, is in no list, and is returned. */
gt__block *gt__block_cut(gt__allocator *a, gt__block *block, size_t bytes);
/* Joins block->right, which is in no list, into the block. */
void gt__block_join_right(gt__allocator *a, gt__block *block);
/* Joins a block that is in no list with free neighbours and puts the result into its class. */
gt__block *gt__block_set_free(gt__allocator *a, gt__block *block);
void gt__class_remove(gt__allocator *a, gt__block *block);
/* The free block that fits best, or nearly; NULL only where none fits. */
gt__block *gt__class_find(const gt__allocator *a, bool small, size_t bytes);
/* The largest free block's bytes. */
size_t gt__class_largest(const gt__allocator *a, bool small);

/* --- device.c: the backend's calls, with the device current */
gt_status gt__device_alloc(gt__allocator *a, size_t bytes, void **data);
void gt__device_free(gt__allocator *a, void *data);
gt_status gt__device_info(const gt__allocator *a, uint64_t *free_bytes, uint64_t *total_bytes);
size_t gt__device_grain(gt__allocator *a);
gt_status gt__device_reserve(gt__allocator *a, size_t bytes, void **address);
void gt__device_release(gt__allocator *a, void *address, size_t bytes);
gt_status gt__device_map(gt__allocator *a, void *address, size_t bytes);
void gt__device_unmap(gt__allocator *a, void *address, size_t bytes);
gt_status gt__device_wait(gt__allocator *a); /* for the compute and the copy stream */

/* --- segment.c: plain segments, and what both kinds share */
bool gt__limit_allows(const gt__allocator *a, size_t bytes);
void gt__segment_link(gt__allocator *a, gt__segment *s);
void gt__segment_unlink(gt__allocator *a, gt__segment *s);
void gt__segments_free(gt__allocator *a);
/* Counts memory at `address` that was taken from the device, or given back. */
void gt__reserved_add(gt__allocator *a, gt__segment *s, const void *address, size_t bytes);
void gt__reserved_remove(gt__allocator *a, gt__segment *s, const void *address, size_t bytes);
/* A new plain segment as one free block in its class. */
gt_status gt__segment_new(gt__allocator *a, size_t bytes, bool small, gt__block **block);
/* Gives a wholly free plain segment, known by its only block, back. */
void gt__segment_return(gt__allocator *a, gt__block *block);

/* --- expandable.c */
/* Where a request could go, addresses without memory included. */
typedef struct gt__place {
    gt__segment *segment;
    gt__block *run;   /* first of the free and unmapped blocks, one beside the other, that it lies in */
    char *low, *high; /* its grains */
    char *begin;
    size_t fresh;     /* bytes of them to be mapped */
    size_t exclusive; /* fresh, and those of wholly free grains: what the request keeps from being moved elsewhere */
} gt__place;
/* The place that needs the fewest new grains or, `tight`, the one that takes the fewest grains that others could use. False: none is large enough. */
bool gt__place_find(const gt__allocator *a, bool small, size_t bytes, bool tight, gt__place *place);
/* Maps what the place needs; *block is then free and has room for the request. OUT_OF_MEMORY: a part may have been mapped, which is then cached. */
gt_status gt__place_map(gt__allocator *a, const gt__place *place, gt__block **block);
/* A new range of addresses for a pool. */
gt_status gt__range_new(gt__allocator *a, bool small);
void gt__range_free(gt__allocator *a, gt__segment *s);
/* Takes the memory from [from, to), whole grains of a free block; there are two spare records. */
void gt__range_unmap(gt__allocator *a, gt__block *block, char *from, char *to);
/* The largest request that `spare` bytes of grains could serve in an expandable segment of the pool. */
size_t gt__range_largest(const gt__allocator *a, bool small, size_t spare);

/* --- reclaim.c: giving free memory back */
/* Bytes that reclaim could give back, leaving `keep` (may be NULL) alone. */
size_t gt__reclaimable(const gt__allocator *a, const gt__place *keep);
/* Gives at least `wanted` bytes back, or all there is; *got says how many. Waits for the device if there is something. */
gt_status gt__reclaim(gt__allocator *a, size_t wanted, const gt__place *keep, size_t *got);

/* --- tags.c */
/* NULL with OUT_OF_HOST_MEMORY raised. */
gt__tag_bytes *gt__tags_find(gt__tags *tags, const char *op, const char *module, gt_memory_category category, uint64_t steps);
void gt__tags_free(gt__tags *tags);
/* Fills in the ends of the steps since it last changed. */
void gt__tag_sync(gt__tag_bytes *tag, uint64_t steps);
static inline void gt__tag_add(gt__tag_bytes *tag, uint64_t bytes, uint64_t steps) {
    if (GT__UNLIKELY(tag->synced != steps)) gt__tag_sync(tag, steps);
    tag->now += bytes;
}
static inline void gt__tag_remove(gt__tag_bytes *tag, uint64_t bytes, uint64_t steps) {
    if (GT__UNLIKELY(tag->synced != steps)) gt__tag_sync(tag, steps);
    tag->now -= bytes;
}

/* --- history.c */
/* A new event to be filled in, or NULL. Its time, step and phase are set, and it has no tensor. */
gt__memory_event *gt__history_add(gt__allocator *a, gt__event_kind kind, double seconds);
void gt__history_block(gt__allocator *a, gt__event_kind kind, double seconds, const gt__block *block, gt_memory_category before);
void gt__history_bytes(gt__allocator *a, gt__event_kind kind, const void *address, size_t bytes);

#endif

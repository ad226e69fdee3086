/* The caching allocator: device memory for one context, over a backend's raw memory. Sizes are rounded to 512 bytes; free blocks are kept, split and
 * merged; best fit. Reuse is ordered by the compute stream, so a block may be freed while queued work still uses it.
 *
 * Where the backend can map memory, there is one segment for small and one for large requests, each a range of addresses as large as the device, of which just
 * the used part is backed: memory that is free anywhere can be moved to where it is needed, so that fragmentation is not a reason to fail. */
#ifndef GT_MEMORY_ALLOCATOR_H
#define GT_MEMORY_ALLOCATOR_H

#include "backend/backend.h"
#include <gtrain/memory.h>

typedef struct gt__allocator gt__allocator;
typedef struct gt__block gt__block;

/* What an allocation is for. Strings may be NULL, and stay valid as long as the allocator (op names, gt__context_string). */
typedef struct gt__tag {
    const char *op, *module;
    const int64_t *shape; /* ndim sizes, copied; NULL: no tensor */
    int32_t ndim;
    gt_dtype dtype;
    gt_memory_category category;
} gt__tag;

typedef int32_t gt__phase;
enum { GT__PHASE_OTHER, GT__PHASE_FORWARD, GT__PHASE_BACKWARD, GT__PHASE_UPDATE, GT__PHASE_COUNT };

/* A request that nothing could satisfy. */
typedef struct gt__shortage {
    size_t bytes;   /* as asked */
    size_t rounded; /* as it would have been taken */
    const gt__tag *tag;
    bool host; /* the host's own memory ran out while serving it: there is no remedy on the device */
} gt__shortage;
/* Asked before an allocation that is not quiet fails, with the allocator in order: it may free blocks, trim, change the limit and allocate (which asks no hook).
 * True: try once more (something was freed); after very many tries the allocation fails all the same. False: the hook has raised what the allocation returns,
 * OUT_OF_MEMORY or, for `host`, OUT_OF_HOST_MEMORY. */
typedef bool (*gt__shortage_fn)(void *user, const gt__shortage *shortage);

typedef struct gt__allocator_options {
    uint64_t limit;              /* most bytes to reserve; 0: the device's */
    int64_t history;             /* events kept */
    bool expandable;             /* where the backend can map memory */
    gt__shortage_fn on_shortage; /* NULL: a plain message */
    void *user;
} gt__allocator_options;

gt_status gt__allocator_create(gt__device *device, const gt__allocator_options *options, gt__allocator **allocator);
void gt__allocator_destroy(gt__allocator *allocator); /* gives everything back to the device, live blocks too */
void gt__allocator_set_limit(gt__allocator *allocator, uint64_t limit);
uint64_t gt__allocator_limit(const gt__allocator *allocator);

/* OUT_OF_MEMORY unless `quiet`, then just the status; OUT_OF_HOST_MEMORY; what the device's calls return otherwise. A failure leaves everything in use as it was.
 * Waits for the device only where memory that is free elsewhere must be given back or moved. bytes > 0. */
gt_status gt__allocator_alloc(gt__allocator *allocator, size_t bytes, const gt__tag *tag, bool quiet, gt__block **block);
void gt__allocator_free(gt__allocator *allocator, gt__block *block);
void *gt__block_data(const gt__block *block);
size_t gt__block_bytes(const gt__block *block); /* as taken, rounded */
/* Moves a live block to another category. */
void gt__block_set_category(gt__allocator *allocator, gt__block *block, gt_memory_category category);
gt_memory_category gt__block_category(const gt__block *block);

void gt__allocator_set_phase(gt__allocator *allocator, gt__phase phase); /* what allocations from now on are part of */
gt__phase gt__allocator_phase(const gt__allocator *allocator);
/* Ends a step: its high-water marks and the bytes that each tag holds are remembered for reports. */
void gt__allocator_next_step(gt__allocator *allocator);

void gt__allocator_stats(const gt__allocator *allocator, gt_memory_stats *stats); /* struct_size is left alone */
void gt__allocator_reset_peak(gt__allocator *allocator);
/* Returns all that is free to the device: whole segments, and free pieces of expandable ones. Waits for the device if there is something. */
void gt__allocator_trim(gt__allocator *allocator);

/* --- looking inside, for reports and pictures ------------------------------------------------------------------------------------ */
typedef int32_t gt__block_state;
enum { GT__BLOCK_USED, GT__BLOCK_FREE, GT__BLOCK_UNMAPPED /* addresses without memory behind them */ };

typedef struct gt__block_info {
    const void *address;
    const void *segment;  /* address of its segment */
    size_t segment_bytes; /* reserved memory in it; addresses without memory are not counted */
    size_t bytes;         /* as taken */
    size_t asked;         /* used blocks: as asked for */
    const char *op, *module;
    int64_t shape[GT_MAX_DIMS];
    int64_t step;      /* in which it was allocated */
    uint64_t sequence; /* of the allocation, rising */
    double seconds;    /* when, on the allocator's clock */
    int32_t ndim;      /* -1: no tensor */
    gt_dtype dtype;
    gt_memory_category category;
    gt__phase phase;
    gt__block_state state;
    bool expandable, small; /* of its segment */
} gt__block_info;
typedef void (*gt__block_visitor)(void *user, const gt__block_info *block);
/* Segment by segment, in the order of addresses in each. The visitor must not allocate or free device memory. */
void gt__allocator_visit(const gt__allocator *allocator, gt__block_visitor visit, void *user);

typedef int32_t gt__event_kind;
enum {
    GT__MEMORY_ALLOC,
    GT__MEMORY_FREE,
    GT__MEMORY_RESERVE,   /* memory was taken from the device: address, bytes */
    GT__MEMORY_UNRESERVE, /* and given back */
    GT__MEMORY_CATEGORY,  /* a live block moved to another category */
    GT__MEMORY_STEP,      /* a step ended */
    GT__MEMORY_OOM        /* a request failed: bytes asked */
};
typedef struct gt__memory_event {
    const void *address;
    size_t bytes;
    const char *op, *module;
    int64_t shape[GT_MAX_DIMS];
    double seconds;    /* since the allocator was made */
    uint64_t sequence; /* of the block's allocation: the same in ALLOC, CATEGORY and FREE */
    int32_t step;
    gt__event_kind kind;
    gt_memory_category category, category_before; /* before: CATEGORY alone */
    gt__phase phase;
    int32_t ndim;
    gt_dtype dtype;
} gt__memory_event;
gt_status gt__allocator_set_history(gt__allocator *allocator, int64_t events); /* 0: none. Forgets what was kept */
/* Events from the oldest to the newest that is kept; the number of those lost before is returned. */
typedef void (*gt__event_visitor)(void *user, const gt__memory_event *event);
uint64_t gt__allocator_visit_history(const gt__allocator *allocator, gt__event_visitor visit, void *user);

/* Bytes in use by one (op, module, category) at the ends of the last steps, oldest first. */
#define GT__GROWTH_STEPS 8
typedef struct gt__tag_growth {
    const char *op, *module;
    gt_memory_category category;
    int32_t steps; /* entries of `bytes` that are there */
    uint64_t bytes[GT__GROWTH_STEPS];
    uint64_t now;
} gt__tag_growth;
typedef void (*gt__tag_visitor)(void *user, const gt__tag_growth *tag);
void gt__allocator_visit_tags(const gt__allocator *allocator, gt__tag_visitor visit, void *user);

/* The largest single request that would succeed now without freeing anything, counting what can be moved or given back. Exact but for the device's own
 * rounding. */
uint64_t gt__allocator_largest_possible(const gt__allocator *allocator);
/* The largest free block: what can be had without asking the device or moving anything. */
uint64_t gt__allocator_largest_free(const gt__allocator *allocator);

#endif

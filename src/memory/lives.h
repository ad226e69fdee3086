/* The allocator's history made whole: every block that lived while events were kept, from its birth to its death. Blocks that were made before the oldest
 * event are found again from what freed them, or from what is still there. */
#ifndef GT_MEMORY_LIVES_H
#define GT_MEMORY_LIVES_H

#include "memory/allocator.h"

#define GT__BORN_BEFORE (-1) /* the first event that is kept */
#define GT__NOT_DIED    INT64_MAX

typedef struct gt__life {
    uint64_t sequence; /* of its allocation */
    uint64_t bytes;
    const char *op, *module; /* may be NULL */
    int64_t shape[GT_MAX_DIMS];
    int64_t step;       /* in which it was made; -1: unknown, it was before the first event and is gone */
    int64_t born, died; /* indices of events, GT__BORN_BEFORE, GT__NOT_DIED */
    int32_t ndim;       /* -1: no tensor */
    gt_dtype dtype;
    gt_memory_category category; /* at birth, or at the first event */
    gt__phase phase;             /* in which it was made; OTHER where the step is unknown */
} gt__life;

typedef struct gt__lives {
    gt__memory_event *events; /* oldest first */
    int64_t n_events;
    uint64_t lost;          /* events before the first that is kept */
    gt__block_info *blocks; /* all of them now: used, free, without memory */
    int64_t n_blocks;
    gt__life *list; /* in the order of allocation */
    int64_t count;
    int64_t *life_of;           /* by event: the index in `list`, -1 for events that are not of a block */
    uint64_t reserved_at_start; /* bytes, before the first event */
    gt_memory_stats stats;      /* now */
} gt__lives;

/* OUT_OF_HOST_MEMORY. Free it even after a failure. */
gt_status gt__lives_collect(const gt__allocator *allocator, gt__lives *lives);
void gt__lives_free(gt__lives *lives);

/* "forward" …; "alloc" …; static. */
const char *gt__phase_name(gt__phase phase);
const char *gt__event_name(gt__event_kind kind);

#endif

/* Places for buffers whose lives are known: offsets in one arena, so that no two that live at once overlap. */
#ifndef GT_STEP_MEMORY_PLAN_H
#define GT_STEP_MEMORY_PLAN_H

#include "base/host.h"

typedef struct gt__life {
    size_t bytes;        /* 0: needs no place */
    int32_t first, last; /* steps at whose beginning and end it is there, 0 <= first <= last */
} gt__life;

#define GT__ARENA_GRAIN 512

/* *bytes: of the arena. *bound: the most bytes that live at once, in whole grains; no plan is smaller. The same lives give the same plan, in a time that is bounded
 * whatever they are. */
gt_status gt__memory_plan(const gt__life *lives, int32_t count, size_t *offsets, size_t *bytes, size_t *bound);

#endif

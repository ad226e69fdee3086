/* Who touches which memory of a program, and when: what passes decide by.
 *
 * Memory is divided into areas: every buffer of the program is one, with the buffer's number; behind them, pieces of memory outside that overlap through some
 * access are one together. Accesses of different areas never overlap. */
#ifndef GT_STEP_FLOW_H
#define GT_STEP_FLOW_H

#include "step/program.h"

typedef struct gt__touch {
    gt__access access;
    int32_t instruction, area;
} gt__touch;

typedef struct gt__flow {
    gt__touch *touches; /* in the program's order */
    int32_t *first;     /* those of instruction i: first[i] to first[i + 1] */
    int32_t *by_area;   /* numbers of touches, area by area, each in the program's order */
    int32_t *area;      /* those of area a: by_area[area[a]] to by_area[area[a + 1]] */
    int32_t count, n_areas;
} gt__flow;

/* Right until the program's list of instructions changes. */
gt_status gt__flow_make(gt__program *program, gt__flow *flow);
void gt__flow_free(gt__flow *flow);

static inline int32_t gt__flow_count(const gt__flow *flow, int32_t area) { return flow->area[area + 1] - flow->area[area]; }
static inline gt__touch *gt__flow_touch(const gt__flow *flow, int32_t area, int32_t k) {
    return &flow->touches[flow->by_area[flow->area[area] + k]];
}
static inline uintptr_t gt__touch_begin(const gt__touch *t) { return (uintptr_t)t->access.pointer; }
static inline uintptr_t gt__touch_end(const gt__touch *t) { return (uintptr_t)t->access.pointer + t->access.bytes; }
/* All touches of the area lie in [begin, end). */
bool gt__flow_area_within(const gt__flow *flow, int32_t area, uintptr_t begin, uintptr_t end);
/* Moves all pointers into an area: what pointed to `from` points to `to` afterwards. The area keeps its number here. */
void gt__flow_move(gt__flow *flow, int32_t area, const void *from, const void *to);

#endif

/* Touches in the program's order, and again by area. */
#include "step/flow.h"

#include <stdlib.h>

typedef struct filling {
    gt__program *program;
    gt__touch *touches; /* NULL: only counts */
    int32_t count, now;
} filling;

static void note(void *user, const gt__access *access) {
    filling *f = user;
    if (f->touches) f->touches[f->count] = (gt__touch){*access, f->now, gt__program_buffer(f->program, access->pointer)};
    f->count++;
}

static void fill(filling *f, int32_t *first) {
    f->count = 0;
    for (f->now = 0; f->now < f->program->count; ++f->now) {
        if (first) first[f->now] = f->count;
        gt__instruction_visit(&f->program->list[f->now], note, f);
    }
    if (first) first[f->now] = f->count;
}

/* --- memory outside ---------------------------------------------------------------------------------------------------------------------- */

typedef struct piece {
    uintptr_t begin, end;
    int32_t touch;
} piece;

static int by_begin(const void *a, const void *b) {
    const piece *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->touch - y->touch;
}

/* Numbers the areas outside from `next` on. Returns the number after the last. */
static int32_t number_outside(gt__flow *flow, piece *pieces, int32_t next) {
    int32_t n = 0;
    for (int32_t t = 0; t < flow->count; ++t) {
        const gt__touch *touch = &flow->touches[t];
        if (touch->area < 0) pieces[n++] = (piece){gt__touch_begin(touch), gt__touch_end(touch), t};
    }
    qsort(pieces, (size_t)n, sizeof *pieces, by_begin);
    uintptr_t end = 0;
    for (int32_t i = 0; i < n; ++i) {
        if (i == 0 || pieces[i].begin >= end) next++;
        end = i == 0 ? pieces[i].end : GT__MAX(end, pieces[i].end);
        flow->touches[pieces[i].touch].area = next - 1;
    }
    return next;
}

/* A counting sort, which keeps the program's order. */
static void sort_by_area(gt__flow *flow) {
    for (int32_t a = 0; a <= flow->n_areas; ++a) flow->area[a] = 0;
    for (int32_t t = 0; t < flow->count; ++t) flow->area[flow->touches[t].area + 1]++;
    for (int32_t a = 0; a < flow->n_areas; ++a) flow->area[a + 1] += flow->area[a];
    for (int32_t t = 0; t < flow->count; ++t) flow->by_area[flow->area[flow->touches[t].area]++] = t;
    for (int32_t a = flow->n_areas; a > 0; --a) flow->area[a] = flow->area[a - 1]; /* what was begun is done now */
    flow->area[0] = 0;
}

gt_status gt__flow_make(gt__program *program, gt__flow *flow) {
    *flow = (gt__flow){0};
    filling f = {.program = program};
    fill(&f, NULL);
    size_t n = (size_t)f.count, areas = n + (size_t)program->n_buffers;
    flow->touches = gt__malloc((n + 1) * sizeof *flow->touches);
    flow->first = gt__malloc(((size_t)program->count + 1 + n + 1 + areas + 1) * sizeof *flow->first);
    piece *pieces = gt__malloc((n + 1) * sizeof *pieces);
    if (flow->touches == NULL || flow->first == NULL || pieces == NULL) {
        gt__free(pieces);
        gt__flow_free(flow);
        return GT_OUT_OF_HOST_MEMORY;
    }
    flow->by_area = flow->first + program->count + 1;
    flow->area = flow->by_area + n + 1;
    f.touches = flow->touches;
    fill(&f, flow->first);
    flow->count = f.count;
    flow->n_areas = number_outside(flow, pieces, program->n_buffers);
    sort_by_area(flow);
    gt__free(pieces);
    return GT_OK;
}

void gt__flow_free(gt__flow *flow) {
    gt__free(flow->touches);
    gt__free(flow->first);
    *flow = (gt__flow){0};
}

bool gt__flow_area_within(const gt__flow *flow, int32_t area, uintptr_t begin, uintptr_t end) {
    for (int32_t k = 0; k < gt__flow_count(flow, area); ++k) {
        const gt__touch *t = gt__flow_touch(flow, area, k);
        if (gt__touch_begin(t) < begin || gt__touch_end(t) > end) return false;
    }
    return true;
}

void gt__flow_move(gt__flow *flow, int32_t area, const void *from, const void *to) {
    for (int32_t k = 0; k < gt__flow_count(flow, area); ++k) {
        gt__touch *t = gt__flow_touch(flow, area, k);
        t->access.pointer = (const char *)to + ((const char *)t->access.pointer - (const char *)from);
        gt__access_set(&t->access, t->access.pointer);
    }
}

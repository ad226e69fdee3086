/* Greedy by size (Pisarchyk & Lee 2020, "Efficient Memory Management for Deep Neural Net Inference"): the largest buffer first, each at the best gap between those that
 * are there already and live at the same time. */
#include "step/memory_plan.h"

#include <stdlib.h>

typedef struct item {
    size_t bytes, offset;
    int32_t first, last, index;
} item;

static size_t grains(size_t bytes) { return (bytes + GT__ARENA_GRAIN - 1) / GT__ARENA_GRAIN * GT__ARENA_GRAIN; }

static int larger_first(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->index - y->index;
}

/* placed[0 .. n-1] are sorted by offset. */
static size_t best_gap(const item *placed, int32_t n, const item *x) {
    size_t end = 0, best = SIZE_MAX, least = SIZE_MAX;
    for (int32_t i = 0; i < n; ++i) {
        const item *p = &placed[i];
        if (p->last < x->first || p->first > x->last) continue;
        if (p->offset > end && p->offset - end >= x->bytes && p->offset - end < least) {
            least = p->offset - end;
            best = end;
        }
        end = GT__MAX(end, p->offset + p->bytes);
    }
    return best == SIZE_MAX ? end : best;
}

static size_t most_at_once(const item *items, int32_t n, int32_t steps, int64_t *change) {
    for (int32_t i = 0; i <= steps; ++i) change[i] = 0;
    for (int32_t i = 0; i < n; ++i) {
        change[items[i].first] += (int64_t)items[i].bytes;
        change[items[i].last + 1] -= (int64_t)items[i].bytes;
    }
    int64_t now = 0, most = 0;
    for (int32_t i = 0; i <= steps; ++i) {
        now += change[i];
        most = GT__MAX(most, now);
    }
    return (size_t)most;
}

gt_status gt__memory_plan(const gt__life *lives, int32_t count, size_t *offsets, size_t *bytes, size_t *bound) {
    int32_t n = 0, steps = 0;
    *bytes = *bound = 0;
    if (count == 0) return GT_OK;
    item *items = gt__malloc(2 * (size_t)count * sizeof *items), *placed = items ? items + count : NULL;
    if (items == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < count; ++i) {
        offsets[i] = 0;
        if (lives[i].bytes == 0) continue;
        items[n++] = (item){.bytes = grains(lives[i].bytes), .first = lives[i].first, .last = lives[i].last, .index = i};
        steps = GT__MAX(steps, lives[i].last + 1);
    }
    int64_t *change = gt__malloc((size_t)(steps + 1) * sizeof *change);
    if (change == NULL) {
        gt__free(items);
        return GT_OUT_OF_HOST_MEMORY;
    }
    *bound = most_at_once(items, n, steps, change);
    gt__free(change);
    qsort(items, (size_t)n, sizeof *items, larger_first);
    for (int32_t i = 0; i < n; ++i) {
        item x = items[i];
        x.offset = best_gap(placed, i, &x);
        int32_t at = i;
        for (; at > 0 && placed[at - 1].offset > x.offset; --at) placed[at] = placed[at - 1];
        placed[at] = x;
        offsets[x.index] = x.offset;
        *bytes = GT__MAX(*bytes, x.offset + x.bytes);
    }
    gt__free(items);
    return GT_OK;
}

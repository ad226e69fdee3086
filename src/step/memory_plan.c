/* Dynamic storage allocation with all lives known: to find the smallest arena is NP-hard (Garey & Johnson 1979, SR2), but the most bytes that live at once are a lower
 * bound, which programs nearly always meet. Buffers are placed one after the other, each in a gap between those that are there and live at the same time; what
 * decides is their order. Tried are, until a plan is good enough:
 *   - the greedy orders of Pisarchyk & Lee 2020, "Efficient Memory Management for Deep Neural Net Inference", by size and by breadth (the memory that is live around
 *     a buffer); by area (size times life); by life; and by beginning, as an allocator would that sees the program run; each at the lowest gap and the tightest;
 *   - a skyline over time, to whose lowest stretch the buffer is added that fills it best (Burke, Kendall & Whitwell 2004, "A new placement heuristic for the
 *     orthogonal stock-cutting problem"; Sekiyama et al. 2018, "Profile-guided memory optimization for deep neural networks"). Placed at the lowest gap in the
 *     order of these offsets, no buffer comes to lie higher;
 *   - from the best of these, squeaky wheel optimisation (Joslin & Clements 1999): the first buffer that ends too high goes further to the front of the order.
 * The search ends after a number of comparisons, not a time: plans are the same on every machine. */
#include "step/memory_plan.h"

#include <stdlib.h>

#define SEARCH_STEPS 20000000 /* comparisons of two buffers: some 20 ms */
#define GOOD_ENOUGH  512      /* the part of the bound that a plan may be above it without any further search */

typedef struct item {
    size_t bytes, offset;
    size_t breadth; /* the most bytes that live at once while it does */
    int32_t first, last, index;
} item;

typedef struct search {
    item *items; /* those with bytes, the largest first */
    int32_t n, steps;
    /* Those that are placed, by offset: numbers of items and their lives. */
    int32_t *placed, *first, *last;
    int32_t *order, *best_order;
    size_t *best_offsets; /* of items */
    size_t best, bound;
    int64_t left; /* comparisons */
    uint64_t random;
} search;

static size_t grains(size_t bytes) { return (bytes + GT__ARENA_GRAIN - 1) / GT__ARENA_GRAIN * GT__ARENA_GRAIN; }

/* --- placing ------------------------------------------------------------------------------------------------------------------------------- */

/* The lowest gap among n placed items, or the tightest. */
static size_t find_gap(const search *s, int32_t n, const item *x, bool tightest) {
    size_t end = 0, best = SIZE_MAX, least = SIZE_MAX;
    for (int32_t i = 0; i < n; ++i) {
        if (s->last[i] < x->first || s->first[i] > x->last) continue;
        const item *p = &s->items[s->placed[i]];
        if (p->offset > end && p->offset - end >= x->bytes && p->offset - end < least) {
            if (!tightest) return end;
            least = p->offset - end;
            best = end;
        }
        end = GT__MAX(end, p->offset + p->bytes);
    }
    return best == SIZE_MAX ? end : best;
}

static void insert(search *s, int32_t n, int32_t k) {
    const item *x = &s->items[k];
    int32_t low = 0, high = n;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (s->items[s->placed[middle]].offset <= x->offset)
            low = middle + 1;
        else
            high = middle;
    }
    size_t behind = (size_t)(n - low) * sizeof(int32_t);
    memmove(s->placed + low + 1, s->placed + low, behind);
    memmove(s->first + low + 1, s->first + low, behind);
    memmove(s->last + low + 1, s->last + low, behind);
    s->placed[low] = k;
    s->first[low] = x->first;
    s->last[low] = x->last;
}

/* Until all are placed or one ends at `limit` or higher. Returns how many were placed; *top: where the highest ends. */
static int32_t place(search *s, const int32_t *order, bool tightest, size_t limit, size_t *top) {
    int32_t i = 0;
    for (*top = 0; i < s->n && *top < limit; ++i) {
        item *x = &s->items[order[i]];
        x->offset = find_gap(s, i, x, tightest);
        insert(s, i, order[i]);
        *top = GT__MAX(*top, x->offset + x->bytes);
        s->left -= i + 16;
    }
    return i;
}

static bool good_enough(const search *s) { return s->best - s->bound <= s->bound / GOOD_ENOUGH; }

/* Keeps what the order gives, if it ends below `limit`. Returns the first that does not, or -1. */
static int32_t attempt(search *s, bool tightest, size_t limit) {
    size_t top;
    int32_t placed = place(s, s->order, tightest, limit, &top);
    if (top >= limit) return placed - 1;
    s->best = top;
    memcpy(s->best_order, s->order, (size_t)s->n * sizeof *s->order);
    for (int32_t i = 0; i < s->n; ++i) s->best_offsets[i] = s->items[i].offset;
    return -1;
}

/* --- greedy orders -------------------------------------------------------------------------------------------------------------------------- */

static int larger_first(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->index - y->index;
}

typedef enum rule { BY_SIZE, BY_AREA, BY_BREADTH, BY_LIFE, BY_BEGINNING, RULES } rule;

static double weight(const item *x, rule r) {
    int32_t life = x->last - x->first + 1;
    switch (r) {
    case BY_AREA:
        return (double)x->bytes * life;
    case BY_BREADTH:
        return (double)x->breadth;
    case BY_LIFE:
        return life;
    case BY_BEGINNING:
        return -(double)x->first;
    default:
        return (double)x->bytes;
    }
}

typedef struct ranked {
    double weight;
    int32_t item;
} ranked;

static int heavier_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return x->item - y->item; /* the larger */
}

/* --- skyline ------------------------------------------------------------------------------------------------------------------------------ */

enum { SKYLINES = 4 };

/* How well an item fills the stretch [begin, end] of the skyline: four rules. */
static double fill(const item *x, int32_t begin, int32_t end, int32_t kind) {
    double life = x->last - x->first + 1, walls = (x->first == begin) + (x->last == end);
    if (kind == 0) return life;
    if (kind == 1) return life * (double)x->bytes;
    if (kind == 2) return life * (1000 + walls);
    return walls * 1e12 + life;
}

/* Of left[0 .. n-1], those that live within the stretch: the place of the best; -1: there is none. */
static int32_t best_fill(const search *s, const int32_t *left, int32_t n, int32_t begin, int32_t end, int32_t kind) {
    int32_t best = -1;
    double most = -1;
    for (int32_t k = 0; k < n; ++k) {
        const item *x = &s->items[left[k]];
        if (x->first < begin || x->last > end) continue;
        double mine = fill(x, begin, end, kind);
        if (mine > most) most = mine, best = k;
    }
    return best;
}

/* To s->order. Where nothing fits, a stretch is filled up to its lower neighbour. */
static gt_status skyline(search *s, int32_t kind) {
    int64_t *height = gt__calloc((size_t)s->steps, sizeof *height);
    int32_t *left = gt__malloc((size_t)s->n * sizeof *left), n = s->n;
    gt_status status = height && left ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; left && i < n; ++i) left[i] = i;
    while (status == GT_OK && n > 0) {
        int32_t begin = 0, end;
        for (int32_t t = 1; t < s->steps; ++t)
            if (height[t] < height[begin]) begin = t;
        for (end = begin; end + 1 < s->steps && height[end + 1] == height[begin];) end++;
        int32_t best = best_fill(s, left, n, begin, end, kind);
        s->left -= s->steps + n;
        if (best >= 0) {
            const item *x = &s->items[left[best]];
            for (int32_t t = x->first; t <= x->last; ++t) height[t] += (int64_t)x->bytes;
            s->order[s->n - n] = left[best];
            memmove(left + best, left + best + 1, (size_t)(--n - best) * sizeof *left);
        } else {
            int64_t up = begin > 0 ? height[begin - 1] : INT64_MAX;
            if (end + 1 < s->steps) up = GT__MIN(up, height[end + 1]);
            for (int32_t t = begin; t <= end; ++t) height[t] = up;
        }
    }
    gt__free(height);
    gt__free(left);
    return status;
}

/* --- all of them -------------------------------------------------------------------------------------------------------------------------- */

static gt_status try_rules(search *s) {
    ranked *list = gt__malloc((size_t)s->n * sizeof *list);
    if (list == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (rule r = BY_SIZE; r < RULES && (r == BY_SIZE || (s->left > 0 && !good_enough(s))); ++r) {
        for (int32_t i = 0; i < s->n; ++i) list[i] = (ranked){weight(&s->items[i], r), i};
        qsort(list, (size_t)s->n, sizeof *list, heavier_first);
        for (int32_t i = 0; i < s->n; ++i) s->order[i] = list[i].item;
        (void)attempt(s, true, s->best);
        if (s->left > 0 && !good_enough(s)) (void)attempt(s, false, s->best);
    }
    gt__free(list);
    for (int32_t kind = 0; kind < SKYLINES && s->left > 0 && !good_enough(s); ++kind) {
        GT_TRY(skyline(s, kind));
        (void)attempt(s, false, s->best);
    }
    return GT_OK;
}

/* --- search ---------------------------------------------------------------------------------------------------------------------------------- */

/* xorshift64* (Vigna 2016), in [0, n). */
static int32_t below(search *s, int32_t n) {
    s->random ^= s->random >> 12;
    s->random ^= s->random << 25;
    s->random ^= s->random >> 27;
    return (int32_t)((s->random * UINT64_C(2685821657736338717) >> 33) % (uint64_t)n);
}

static void improve(search *s) {
    memcpy(s->order, s->best_order, (size_t)s->n * sizeof *s->order);
    while (s->left > 0 && !good_enough(s)) {
        int32_t high = attempt(s, false, s->bound + (s->best - s->bound) / 8 * 7);
        if (high > 0) {
            int32_t to = below(s, high / 2 + 1), moved = s->order[high];
            memmove(s->order + to + 1, s->order + to, (size_t)(high - to) * sizeof *s->order);
            s->order[to] = moved;
        }
        s->left -= s->n;
    }
}

/* --- the plan ---------------------------------------------------------------------------------------------------------------------------------- */

/* Fills breadths. Returns the most bytes at once. */
static size_t find_breadths(search *s, int32_t steps, int64_t *load) {
    for (int32_t i = 0; i <= steps; ++i) load[i] = 0;
    for (int32_t i = 0; i < s->n; ++i) {
        load[s->items[i].first] += (int64_t)s->items[i].bytes;
        load[s->items[i].last + 1] -= (int64_t)s->items[i].bytes;
    }
    int64_t most = 0;
    for (int32_t i = 0; i <= steps; ++i) {
        load[i] += i > 0 ? load[i - 1] : 0;
        most = GT__MAX(most, load[i]);
    }
    for (int32_t i = 0; i < s->n; ++i) {
        int64_t breadth = 0;
        for (int32_t t = s->items[i].first; t <= s->items[i].last; ++t) breadth = GT__MAX(breadth, load[t]);
        s->items[i].breadth = (size_t)breadth;
    }
    return (size_t)most;
}

static gt_status plan(search *s, int32_t steps, size_t *offsets) {
    size_t n = (size_t)s->n;
    int64_t *load = gt__malloc(((size_t)steps + 1) * sizeof *load + n * (sizeof(size_t) + 5 * sizeof(int32_t)));
    if (load == NULL) return GT_OUT_OF_HOST_MEMORY;
    s->best_offsets = (size_t *)(void *)(load + steps + 1);
    s->placed = (int32_t *)(void *)(s->best_offsets + n);
    s->first = s->placed + n;
    s->last = s->first + n;
    s->order = s->last + n;
    s->best_order = s->order + n;
    qsort(s->items, n, sizeof *s->items, larger_first);
    s->bound = find_breadths(s, steps, load);
    s->best = SIZE_MAX;
    s->steps = steps;
    gt_status status = try_rules(s);
    if (status == GT_OK) {
        improve(s);
        for (int32_t i = 0; i < s->n; ++i) offsets[s->items[i].index] = s->best_offsets[i];
    }
    gt__free(load);
    return status;
}

gt_status gt__memory_plan(const gt__life *lives, int32_t count, size_t *offsets, size_t *bytes, size_t *bound) {
    search s = {.left = SEARCH_STEPS, .random = UINT64_C(0x9E3779B97F4A7C15)};
    int32_t steps = 0;
    *bytes = *bound = 0;
    for (int32_t i = 0; i < count; ++i) offsets[i] = 0;
    s.items = gt__malloc(((size_t)count + 1) * sizeof *s.items);
    if (s.items == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < count; ++i) {
        if (lives[i].bytes == 0) continue;
        s.items[s.n++] = (item){.bytes = grains(lives[i].bytes), .first = lives[i].first, .last = lives[i].last, .index = i};
        steps = GT__MAX(steps, lives[i].last + 1);
    }
    gt_status status = s.n > 0 ? plan(&s, steps, offsets) : GT_OK;
    if (status == GT_OK && s.n > 0) {
        *bytes = s.best;
        *bound = s.bound;
    }
    gt__free(s.items);
    return status;
}

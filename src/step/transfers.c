#include "step/transfers.h"

#include "step/flow.h"
#include "step/memory_plan.h"

#include <stdlib.h>

enum { LEAST_BYTES = 4096 };

static size_t grains(size_t bytes) { return (bytes + GT__ARENA_GRAIN - 1) / GT__ARENA_GRAIN * GT__ARENA_GRAIN; }

/* --- when ---------------------------------------------------------------------------------------------------------------------------------- */

/* What happens at an instruction's beginning, in this order. */
typedef struct moment {
    int32_t at, item;
    enum { LEAVES, HAS_LEFT, FETCHED, IS_BACK } what;
} moment;

typedef struct timing {
    const gt__program *program;
    const double *seconds;
    const gt__link *link;
    double *at;     /* where each instruction begins, if nothing is waited for; count + 1 */
    int32_t *order; /* of the list's items */
    double *done;   /* of the items: when their copy under way is over */
    moment *moments;
} timing;

static gt_status timing_make(const gt__program *p, const double *seconds, const gt__link *link, int32_t most, timing *t) {
    *t = (timing){.program = p, .seconds = seconds, .link = link};
    t->at = gt__malloc(((size_t)p->count + 2 + (size_t)most) * sizeof *t->at);
    t->order = gt__malloc(((size_t)most + 1) * sizeof *t->order);
    t->moments = gt__malloc(4 * ((size_t)most + 1) * sizeof *t->moments);
    if (t->at == NULL || t->order == NULL || t->moments == NULL) return GT_OUT_OF_HOST_MEMORY;
    t->done = t->at + p->count + 1;
    t->at[0] = 0;
    for (int32_t i = 0; i < p->count; ++i) t->at[i + 1] = t->at[i] + seconds[i];
    return GT_OK;
}

static void timing_free(timing *t) {
    gt__free(t->at);
    gt__free(t->order);
    gt__free(t->moments);
}

static double out_seconds(const timing *t, const gt__away *a) {
    return t->link->each + (double)t->program->buffers[a->buffer].bytes * t->link->out;
}
static double back_seconds(const timing *t, const gt__away *a) {
    return t->link->each + (double)t->program->buffers[a->buffer].bytes * t->link->back;
}

/* The first boundary that is not before `time`, or with `below` the last that is not after it. */
static int32_t boundary(const timing *t, double time, bool below) {
    int32_t low = 0, high = t->program->count; /* at[low] <= time <= at[high], about */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (t->at[middle] <= time)
            low = middle;
        else
            high = middle;
    }
    if (below) return t->at[high] <= time ? high : low;
    return t->at[low] >= time ? low : high;
}

/* Sorted by one of the instructions' numbers; the list is short. */
static void sort_items(int32_t *order, int32_t n, const gt__away *list, bool by_end) {
    for (int32_t i = 0; i < n; ++i) {
        int32_t k = i;
        for (; k > 0; --k) {
            const gt__away *before = &list[order[k - 1]];
            if ((by_end ? before->to : before->from) <= (by_end ? list[i].to : list[i].from)) break;
            order[k] = order[k - 1];
        }
        order[k] = i;
    }
}

/* With nothing beside them copies are over when they have begun. */
static bool at_once(const timing *t, const gt__away *a) { return a->urgent || !t->link->beside; }

/* Copies out one after the other, awaited where they are over; copies back as late as they may begin, from the last to the first. */
static void place_copies(timing *t, gt__away *list, int32_t n) {
    double free_at = 0, next = t->at[t->program->count];
    sort_items(t->order, n, list, false);
    for (int32_t k = 0; k < n; ++k) {
        gt__away *a = &list[t->order[k]];
        double begin = GT__MAX(free_at, t->at[a->from + 1]);
        free_at = begin + out_seconds(t, a);
        a->left = at_once(t, a) ? a->from + 1 : GT__MIN(GT__MAX(boundary(t, free_at, false), a->from + 1), a->to);
    }
    sort_items(t->order, n, list, true);
    for (int32_t k = n - 1; k >= 0; --k) {
        gt__away *a = &list[t->order[k]];
        next = GT__MIN(next, t->at[a->to]) - back_seconds(t, a);
        a->fetch = at_once(t, a) ? a->to : GT__MIN(GT__MAX(boundary(t, next, true), a->left), a->to);
    }
}

static int by_time(const void *a, const void *b) {
    const moment *x = a, *y = b;
    if (x->at != y->at) return x->at - y->at;
    return x->what != y->what ? (int)x->what - (int)y->what : x->item - y->item;
}

/* Seconds that instructions wait for copies. */
static double waited(timing *t, gt__away *list, int32_t n) {
    double stalls = 0, free_at = 0;
    place_copies(t, list, n);
    for (int32_t k = 0; k < n; ++k) {
        t->moments[4 * k] = (moment){list[k].from + 1, k, LEAVES};
        t->moments[4 * k + 1] = (moment){list[k].left, k, HAS_LEFT};
        t->moments[4 * k + 2] = (moment){list[k].fetch, k, FETCHED};
        t->moments[4 * k + 3] = (moment){list[k].to, k, IS_BACK};
    }
    if (n > 0) qsort(t->moments, 4 * (size_t)n, sizeof *t->moments, by_time);
    for (int32_t m = 0; m < 4 * n; ++m) {
        const moment *it = &t->moments[m];
        double now = t->at[it->at] + stalls;
        if (it->what == LEAVES || it->what == FETCHED)
            free_at = t->done[it->item] = GT__MAX(free_at, now) + (it->what == LEAVES ? out_seconds : back_seconds)(t, &list[it->item]);
        else if (t->done[it->item] > now)
            stalls += t->done[it->item] - now;
    }
    return stalls;
}

/* --- who --------------------------------------------------------------------------------------------------------------------------------- */

typedef struct search {
    timing t;
    gt__program *program;
    gt__away *may;   /* of the buffers: the longest time without a use; buffer -1: it has none */
    int32_t *item;   /* of the buffers: in the list; -1: it is not */
    int64_t *change; /* bytes at each instruction against those at the one before */
    size_t bound;
    int32_t peak;
    gt__transfers *made;
} search;

static void find_gap(search *s, const gt__flow *flow, int32_t b) {
    gt__away *a = &s->may[b];
    double longest = 0;
    int32_t n = gt__flow_count(flow, b);
    *a = (gt__away){.buffer = -1};
    if (s->program->buffers[b].bytes < LEAST_BYTES) return;
    for (int32_t k = 0; k + 1 < n; ++k) {
        const gt__touch *before = gt__flow_touch(flow, b, k), *after = gt__flow_touch(flow, b, k + 1);
        double time = s->t.at[after->instruction] - s->t.at[before->instruction + 1];
        bool reads = false;
        for (int32_t j = k + 1; j < n && gt__flow_touch(flow, b, j)->instruction == after->instruction; ++j)
            reads |= gt__flow_touch(flow, b, j)->access.reads;
        if (after->instruction <= before->instruction + 1 || !reads || time <= longest) continue;
        longest = time;
        *a = (gt__away){.buffer = b, .from = before->instruction, .to = after->instruction};
    }
}

static void live(search *s, size_t bytes, int32_t first, int32_t last) {
    if (last < first) return;
    s->change[first] += (int64_t)grains(bytes);
    s->change[last + 1] -= (int64_t)grains(bytes);
}

static void find_bound(search *s) {
    const gt__program *p = s->program;
    memset(s->change, 0, ((size_t)p->count + 2) * sizeof *s->change);
    for (int32_t b = 0; b < p->n_buffers; ++b) {
        const gt__buffer *buffer = &p->buffers[b];
        if (buffer->first < 0) continue;
        const gt__away *a = s->item[b] >= 0 ? &s->made->list[s->item[b]] : NULL;
        live(s, buffer->bytes, buffer->first, a ? a->left - 1 : buffer->last);
        if (a) live(s, buffer->bytes, a->fetch, buffer->last);
    }
    int64_t now = 0;
    s->bound = 0;
    s->peak = 0;
    for (int32_t i = 0; i < p->count; ++i) {
        now += s->change[i];
        size_t here = (size_t)now + grains(p->list[i].workspace);
        if (here <= s->bound) continue;
        s->bound = here;
        s->peak = i;
    }
}

static bool frees_peak(const search *s, const gt__away *a) { return a->left <= s->peak && s->peak < a->fetch; }

/* With this one added, or made urgent if it is there: seconds that are waited for, if it frees memory at the peak; negative: it does not. */
static double try_item(search *s, int32_t b, bool urgent) {
    gt__transfers *m = s->made;
    int32_t k = s->item[b] >= 0 ? s->item[b] : m->count;
    gt__away before = k < m->count ? m->list[k] : (gt__away){0};
    if (k == m->count) m->list[k] = s->may[b];
    m->list[k].urgent = urgent;
    double seconds = waited(&s->t, m->list, GT__MAX(m->count, k + 1));
    bool frees = frees_peak(s, &m->list[k]);
    if (k < m->count) m->list[k] = before;
    return frees ? seconds : -1;
}

/* The one that has the instructions wait least for its bytes; false: nobody can free memory there. */
static bool step(search *s) {
    gt__transfers *m = s->made;
    double best = -1, now = waited(&s->t, m->list, m->count);
    int32_t who = -1;
    bool urgently = false;
    size_t bytes = 0;
    for (int32_t b = 0; b < s->program->n_buffers; ++b) {
        const gt__away *a = &s->may[b];
        if (a->buffer < 0 || a->from >= s->peak || a->to <= s->peak) continue;
        bool there = s->item[b] >= 0;
        if (there && m->list[s->item[b]].urgent) continue;
        for (int32_t urgent = there; urgent < 2; ++urgent) {
            double seconds = try_item(s, b, urgent != 0);
            if (seconds < 0) continue;
            double cost = (GT__MAX(seconds - now, 0) + 1e-12) / (double)s->program->buffers[b].bytes;
            if (best >= 0 && (cost > best || (cost == best && s->program->buffers[b].bytes <= bytes))) continue;
            best = cost;
            bytes = s->program->buffers[b].bytes;
            who = b;
            urgently = urgent != 0;
        }
    }
    if (who < 0) return false;
    if (s->item[who] < 0) {
        s->item[who] = m->count;
        m->list[m->count++] = s->may[who];
    }
    m->list[s->item[who]].urgent = urgently;
    double seconds = waited(&s->t, m->list, m->count);
    find_bound(s);
    m->steps[m->n_steps++] = (gt__away_step){s->item[who] | (urgently ? INT32_MIN : 0), s->bound, seconds};
    return true;
}

static gt_status search_all(search *s, const gt__flow *flow) {
    enum { MOST_STEPS = 96 };
    int32_t n = s->program->n_buffers;
    for (int32_t b = 0; b < n; ++b) {
        find_gap(s, flow, b);
        s->item[b] = -1;
    }
    gt__program_lives(s->program);
    (void)waited(&s->t, s->made->list, 0);
    find_bound(s);
    while (s->made->n_steps < GT__MIN(2 * n, MOST_STEPS) && step(s)) continue;
    return GT_OK;
}

gt_status gt__transfers_find(gt__program *program, const double *seconds, const gt__link *link, gt__transfers *transfers) {
    size_t b = (size_t)program->n_buffers + 1;
    search s = {.program = program, .made = transfers};
    gt__flow flow = {0};
    *transfers = (gt__transfers){0};
    gt_status status = timing_make(program, seconds, link, (int32_t)b, &s.t);
    s.may = gt__malloc(b * sizeof *s.may);
    s.item = gt__malloc(b * sizeof *s.item);
    s.change = gt__malloc(((size_t)program->count + 2) * sizeof *s.change);
    transfers->list = gt__calloc(b, sizeof *transfers->list);
    transfers->steps = gt__calloc(2 * b, sizeof *transfers->steps);
    if (!s.may || !s.item || !s.change || !transfers->list || !transfers->steps) status = GT_OUT_OF_HOST_MEMORY;
    if (status == GT_OK) status = gt__flow_make(program, &flow);
    if (status == GT_OK) status = search_all(&s, &flow);
    gt__flow_free(&flow);
    timing_free(&s.t);
    gt__free(s.may);
    gt__free(s.item);
    gt__free(s.change);
    if (status != GT_OK) gt__transfers_free(transfers);
    return status;
}

void gt__transfers_free(gt__transfers *transfers) {
    gt__free(transfers->list);
    gt__free(transfers->steps);
    *transfers = (gt__transfers){0};
}

/* --- writing them ------------------------------------------------------------------------------------------------------------------------- */

typedef struct writing {
    gt__program *program;
    const gt__away *list;
    int32_t count, now, first_copy; /* the k-th has its other place in buffer first_copy + k */
} writing;

static void redirect(void *user, const gt__access *access) {
    const writing *w = user;
    const gt__buffer *buffers = w->program->buffers;
    int32_t b = gt__program_buffer(w->program, access->pointer);
    for (int32_t k = 0; k < w->count && b >= 0; ++k) {
        if (w->list[k].buffer != b || w->now < w->list[k].to) continue;
        gt__access_set(access,
                       (const void *)(uintptr_t)(buffers[w->first_copy + k].address + ((uintptr_t)access->pointer - buffers[b].address)));
        return;
    }
}

/* Places behind all others. */
static gt_status add_buffers(gt__program *p, const gt__away *list, int32_t count) {
    gt__buffer *grown = gt__realloc(p->buffers, (size_t)(p->n_buffers + count) * sizeof *grown);
    if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
    p->buffers = grown;
    p->cap_buffers = p->n_buffers + count;
    for (int32_t k = 0; k < count; ++k) {
        const gt__buffer *before = &grown[p->n_buffers - 1];
        uint64_t step = (before->bytes + 2 * GT__BUFFER_ALIGNMENT - 1) & ~(uint64_t)(GT__BUFFER_ALIGNMENT - 1);
        grown[p->n_buffers] = grown[list[k].buffer];
        grown[p->n_buffers].address = before->address + step;
        grown[p->n_buffers++].input = false;
    }
    return GT_OK;
}

static void add_transfer(writing *w, gt__instruction *list, int32_t *n, gt__instruction_kind kind, int32_t k, bool back, size_t host) {
    int32_t b = back ? w->first_copy + k : w->list[k].buffer;
    const gt__instruction *beside = &w->program->list[back ? w->list[k].to : w->list[k].from];
    gt__instruction *made = &list[(*n)++];
    *made = (gt__instruction){.kind = kind, .phase = beside->phase, .module = beside->module};
    made->transfer.data = (void *)(uintptr_t)w->program->buffers[b].address;
    made->transfer.bytes = w->program->buffers[b].bytes;
    made->transfer.place = host;
    made->transfer.number = k;
    made->transfer.back = back;
}

static void write_list(writing *w, gt__instruction *list, const size_t *host) {
    gt__program *p = w->program;
    int32_t n = 0;
    for (int32_t i = 0; i < p->count; ++i) {
        for (int32_t k = 0; k < w->count; ++k)
            if (w->list[k].from + 1 == i) add_transfer(w, list, &n, GT__DO_LEAVE, k, false, host[k]);
        for (int32_t k = 0; k < w->count; ++k)
            if (w->list[k].left == i) add_transfer(w, list, &n, GT__DO_AWAIT, k, false, host[k]);
        for (int32_t k = 0; k < w->count; ++k)
            if (w->list[k].fetch == i) add_transfer(w, list, &n, GT__DO_FETCH, k, true, host[k]);
        for (int32_t k = 0; k < w->count; ++k)
            if (w->list[k].to == i) add_transfer(w, list, &n, GT__DO_AWAIT, k, true, host[k]);
        list[n] = p->list[i];
        w->now = i;
        gt__instruction_visit(&list[n++], redirect, w);
    }
    gt__free(p->list);
    p->list = list;
    p->count = n;
    p->capacity = n;
}

/* Those that the first steps take, placed in time. */
static gt_status take_steps(gt__program *p, const double *seconds, const gt__link *link, const gt__transfers *from, int32_t steps,
                            gt__away *list, int32_t *count) {
    timing t;
    *count = 0;
    for (int32_t k = 0; k < steps; ++k) {
        int32_t item = from->steps[k].item & INT32_MAX;
        list[item] = from->list[item];
        list[item].urgent = from->steps[k].item < 0;
        *count = GT__MAX(*count, item + 1);
    }
    gt_status status = timing_make(p, seconds, link, *count, &t);
    if (status == GT_OK) place_copies(&t, list, *count);
    timing_free(&t);
    return status;
}

gt_status gt__transfers_apply(gt__program *program, const double *seconds, const gt__link *link, const gt__transfers *transfers,
                              int32_t steps, size_t *host_bytes) {
    int32_t count = 0;
    *host_bytes = 0;
    if (steps == 0) return GT_OK;
    gt__away *list = gt__calloc((size_t)transfers->count + 1, sizeof *list);
    size_t *host = gt__calloc((size_t)transfers->count + 1, sizeof *host);
    gt__instruction *written = gt__calloc((size_t)program->count + 4 * (size_t)transfers->count + 1, sizeof *written);
    gt_status status = list && host && written ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    if (status == GT_OK) status = take_steps(program, seconds, link, transfers, steps, list, &count);
    writing w = {.program = program, .list = list, .count = count, .first_copy = program->n_buffers};
    if (status == GT_OK) status = add_buffers(program, list, count);
    if (status == GT_OK) {
        for (int32_t k = 0; k < count; ++k) {
            host[k] = *host_bytes;
            *host_bytes += grains(program->buffers[list[k].buffer].bytes);
        }
        write_list(&w, written, host);
    } else {
        gt__free(written);
    }
    gt__free(list);
    gt__free(host);
    return status;
}

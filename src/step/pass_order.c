/* The order of instructions by what they do to memory. Two ways, of which the better result is taken, if it is better than the order that was traced:
 *   - list scheduling: of the instructions whose dependences are met, always the one after which the least memory is taken, one that does not raise the peak before
 *     others (the greedy rule of Goodman & Hsu 1988, "Code scheduling and register allocation in large basic blocks", for bytes in place of registers);
 *   - repair: at the peak, whatever frees memory that lives there is moved before it, or what makes such memory is moved behind it, each with all that it depends
 *     on or that depends on it, as long as the peak falls. */
#include "step/flow.h"
#include "step/passes.h"

#define REPAIR_STEPS 10000000 /* some 20 ms */
#define WORTH        128      /* the part of the peak that must be gained: near their makers, results are found in caches */

/* Lists of numbers, one an instruction. */
typedef struct lists {
    int32_t *first, *entry;
} lists;

typedef struct ordering {
    gt__program *program;
    int32_t n;
    lists before, after;   /* instructions that each depends on, and that depend on it */
    lists uses;            /* its buffers, each once */
    int64_t *bytes;        /* of buffers, in whole grains */
    int64_t *change;       /* n + 1: room for a profile */
    int32_t *first, *last; /* of buffers, in the order that was looked at last */
    int32_t *place;        /* where each instruction stands in it */
    int32_t *trial;
    bool *moves; /* instructions of a move */
} ordering;

typedef struct peak {
    int64_t bytes;
    int32_t at, times; /* where it is first, and how many instructions stand there */
} peak;

static bool is_lower(const peak *a, const peak *b) { return a->bytes < b->bytes || (a->bytes == b->bytes && a->times < b->times); }

/* --- dependences --------------------------------------------------------------------------------------------------------------------------- */

typedef struct edges {
    int32_t *pairs; /* from, to */
    int64_t count, capacity;
} edges;

static gt_status edge(edges *e, int32_t from, int32_t to) {
    if (from == to || from < 0) return GT_OK;
    if (e->count == e->capacity) {
        int64_t capacity = GT__MAX(2 * e->capacity, 1024);
        int32_t *grown = gt__realloc(e->pairs, (size_t)capacity * 2 * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        e->pairs = grown;
        e->capacity = capacity;
    }
    e->pairs[2 * e->count] = from;
    e->pairs[2 * e->count++ + 1] = to;
    return GT_OK;
}

/* Reads wait for the write before them; a write waits for all reads since the write before it, or for that. An area counts as a whole. */
static gt_status area_edges(edges *e, const gt__flow *flow, int32_t area) {
    int32_t writer = -1, since = 0, n = gt__flow_count(flow, area);
    for (int32_t k = 0; k < n;) {
        int32_t now = gt__flow_touch(flow, area, k)->instruction, next = k;
        bool writes = false;
        for (; next < n && gt__flow_touch(flow, area, next)->instruction == now; ++next)
            writes |= gt__flow_touch(flow, area, next)->access.writes;
        GT_TRY(edge(e, writer, now));
        if (writes) {
            for (int32_t r = since; r < k; ++r) GT_TRY(edge(e, gt__flow_touch(flow, area, r)->instruction, now));
            writer = now;
            since = next;
        }
        k = next;
    }
    return GT_OK;
}

/* Functions of custom ops may do what nobody sees here: they keep their order. */
static bool calls_out(const gt__instruction *n) {
    return n->kind == GT__DO_CUSTOM_BACKWARD || (n->kind == GT__DO_CALL && n->call->call.op == GT__OP_CUSTOM);
}

/* Changes what a step that fails must not have changed: what stood before it, and may fail, stays before it. */
static bool commits(const gt__instruction *n) {
    bool task = n->kind == GT__DO_STEP_TASK || n->kind == GT__DO_GRAD_STEP_TASK;
    return n->kind == GT__DO_UPDATE || (task && n->task.task.kind != GT__STEP_SEED);
}

static gt_status find_edges(edges *e, const gt__program *program, const gt__flow *flow) {
    for (int32_t a = 0; a < flow->n_areas; ++a) GT_TRY(area_edges(e, flow, a));
    for (int32_t i = 0, called = -1, since = 0; i < program->count; ++i) {
        const gt__instruction *n = &program->list[i];
        for (int32_t later = i + 1; later < program->count && n->kind == GT__DO_MOVES; ++later)
            GT_TRY(edge(e, i, later)); /* it stays first */
        if (calls_out(n)) {
            GT_TRY(edge(e, called, i));
            called = i;
        } else if (commits(n)) {
            for (int32_t before = since; before < i; ++before) GT_TRY(edge(e, before, i));
            since = i;
        }
    }
    return GT_OK;
}

/* to[k] of every pair goes to the list of by[k]. */
static void fill_lists(lists *l, int32_t n, const edges *e, int32_t by, int32_t to) {
    for (int32_t i = 0; i <= n; ++i) l->first[i] = 0;
    for (int64_t k = 0; k < e->count; ++k) l->first[e->pairs[2 * k + by]]++;
    for (int32_t i = 0, sum = 0; i <= n; ++i) {
        sum += i < n ? l->first[i] : 0;
        l->first[i] = sum;
    }
    for (int64_t k = e->count - 1; k >= 0; --k) l->entry[--l->first[e->pairs[2 * k + by]]] = e->pairs[2 * k + to];
}

static void fill_uses(ordering *o, const gt__flow *flow) {
    int32_t count = 0;
    for (int32_t b = 0; b < o->program->n_buffers; ++b) o->last[b] = -1;
    for (int32_t i = 0; i < o->n; ++i) {
        o->uses.first[i] = count;
        for (int32_t t = flow->first[i]; t < flow->first[i + 1]; ++t) {
            int32_t b = flow->touches[t].area;
            if (b >= o->program->n_buffers || o->last[b] == i) continue;
            o->last[b] = i;
            o->uses.entry[count++] = b;
        }
    }
    o->uses.first[o->n] = count;
}

static void free_ordering(ordering *o) {
    gt__free(o->before.first);
    gt__free(o->bytes);
    gt__free(o->moves);
}

static gt_status make_room(ordering *o, int64_t n_edges, int32_t n_touches) {
    size_t n = (size_t)o->n, buffers = (size_t)o->program->n_buffers;
    size_t numbers = 5 * (n + 1) + 2 * (size_t)n_edges + (size_t)n_touches + 2 * buffers;
    int32_t *at = gt__malloc((numbers + 1) * sizeof *at);
    o->before.first = at;
    o->bytes = gt__malloc((n + buffers + 2) * sizeof *o->bytes);
    o->moves = gt__calloc(n + 1, sizeof *o->moves);
    if (at == NULL || o->bytes == NULL || o->moves == NULL) return GT_OUT_OF_HOST_MEMORY;
    o->change = o->bytes + buffers;
    o->after.first = at += n + 1;
    o->uses.first = at += n + 1;
    o->place = at += n + 1;
    o->trial = at += n + 1;
    o->before.entry = at += n + 1;
    o->after.entry = at += n_edges;
    o->uses.entry = at += n_edges;
    o->first = at += n_touches;
    o->last = at + buffers;
    return GT_OK;
}

static gt_status make_ordering(ordering *o) {
    gt__flow flow;
    edges e = {0};
    GT_TRY(gt__flow_make(o->program, &flow));
    gt_status status = find_edges(&e, o->program, &flow);
    if (status == GT_OK) status = make_room(o, e.count, flow.count);
    if (status == GT_OK) {
        fill_lists(&o->before, o->n, &e, 1, 0);
        fill_lists(&o->after, o->n, &e, 0, 1);
        fill_uses(o, &flow);
        for (int32_t b = 0; b < o->program->n_buffers; ++b)
            o->bytes[b] = (int64_t)((o->program->buffers[b].bytes + GT__BUFFER_ALIGNMENT - 1) & ~(size_t)(GT__BUFFER_ALIGNMENT - 1));
    }
    gt__free(e.pairs);
    gt__flow_free(&flow);
    return status;
}

/* --- what an order takes --------------------------------------------------------------------------------------------------------------------- */

static peak peak_of(ordering *o, const int32_t *order) {
    const gt__program *p = o->program;
    for (int32_t b = 0; b < p->n_buffers; ++b) o->first[b] = -1;
    for (int32_t i = 0; i < o->n; ++i) {
        o->place[order[i]] = i;
        for (int32_t u = o->uses.first[order[i]]; u < o->uses.first[order[i] + 1]; ++u) {
            int32_t b = o->uses.entry[u];
            if (o->first[b] < 0) o->first[b] = p->buffers[b].input ? 0 : i;
            o->last[b] = i;
        }
    }
    for (int32_t i = 0; i <= o->n; ++i) o->change[i] = 0;
    for (int32_t b = 0; b < p->n_buffers; ++b) {
        if (o->first[b] < 0) continue;
        o->change[o->first[b]] += o->bytes[b];
        o->change[o->last[b] + 1] -= o->bytes[b];
    }
    peak most = {-1, 0, 0};
    int64_t now = 0;
    for (int32_t i = 0; i < o->n; ++i) {
        now += o->change[i];
        int64_t here = now + (int64_t)p->list[order[i]].workspace;
        if (here > most.bytes) most = (peak){here, i, 0};
        most.times += here == most.bytes;
    }
    return most;
}

/* --- list scheduling -------------------------------------------------------------------------------------------------------------------------- */

typedef struct choice {
    int64_t during, after; /* bytes, from what is taken now */
} choice;

/* users: instructions that still are to use a buffer; -1: there is none of it yet. */
static choice effect(const ordering *o, int32_t i, const int32_t *users, const bool *there) {
    choice c = {(int64_t)o->program->list[i].workspace, 0};
    for (int32_t u = o->uses.first[i]; u < o->uses.first[i + 1]; ++u) {
        int32_t b = o->uses.entry[u];
        if (!there[b]) c.during += o->bytes[b];
        if (!there[b]) c.after += o->bytes[b];
        if (users[b] == 1) c.after -= o->bytes[b];
    }
    return c;
}

/* Better after a peak of `most` with `now` taken; of equals, the first that was traced. */
static bool is_better(choice a, choice b, int64_t room) {
    bool a_fits = a.during <= room, b_fits = b.during <= room;
    if (a_fits != b_fits) return a_fits;
    if (!a_fits && a.during != b.during) return a.during < b.during;
    return a.after < b.after;
}

static gt_status schedule(ordering *o, int32_t *order) {
    const gt__program *p = o->program;
    size_t n = (size_t)o->n, buffers = (size_t)p->n_buffers;
    int32_t *waits = gt__calloc(2 * n + buffers + 1, sizeof *waits), *ready = waits ? waits + n : NULL, *users = waits ? ready + n : NULL;
    bool *there = gt__calloc(buffers + 1, sizeof *there);
    int32_t n_ready = 0;
    int64_t now = 0, most = 0;
    for (int32_t i = 0; waits && there && i < o->n; ++i) {
        waits[i] = o->before.first[i + 1] - o->before.first[i];
        if (waits[i] == 0) ready[n_ready++] = i;
        for (int32_t u = o->uses.first[i]; u < o->uses.first[i + 1]; ++u) users[o->uses.entry[u]]++;
    }
    for (int32_t b = 0; waits && there && b < p->n_buffers; ++b) {
        there[b] = p->buffers[b].input && users[b] > 0;
        now += there[b] ? o->bytes[b] : 0;
    }
    for (int32_t done = 0; waits && there && done < o->n; ++done) {
        int32_t best = -1;
        choice c = {0, 0};
        for (int32_t r = 0; r < n_ready; ++r) {
            choice mine = effect(o, ready[r], users, there);
            bool better = best < 0 || is_better(mine, c, most - now) || (!is_better(c, mine, most - now) && ready[r] < ready[best]);
            if (better) best = r, c = mine;
        }
        int32_t i = order[done] = ready[best];
        ready[best] = ready[--n_ready];
        most = GT__MAX(most, now + c.during);
        now += c.after;
        for (int32_t u = o->uses.first[i]; u < o->uses.first[i + 1]; ++u) {
            there[o->uses.entry[u]] = true;
            users[o->uses.entry[u]]--;
        }
        for (int32_t k = o->after.first[i]; k < o->after.first[i + 1]; ++k)
            if (--waits[o->after.entry[k]] == 0) ready[n_ready++] = o->after.entry[k];
    }
    gt_status status = waits && there ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    gt__free(waits);
    gt__free(there);
    return status;
}

/* --- repair ----------------------------------------------------------------------------------------------------------------------------------- */

/* Marks instruction `i` of the order and all between it and `peak` that must move with it. False: that is the peak's own, or nothing moves. */
static bool mark_move(ordering *o, const int32_t *order, int32_t i, int32_t at) {
    memset(o->moves, 0, (size_t)o->n * sizeof *o->moves);
    o->moves[order[i]] = true;
    bool up = i > at;
    for (int32_t k = i; k != at; k += up ? -1 : 1) {
        if (!o->moves[order[k]]) continue;
        const lists *l = up ? &o->before : &o->after;
        for (int32_t e = l->first[order[k]]; e < l->first[order[k] + 1]; ++e) {
            int32_t place = o->place[l->entry[e]];
            if (place == at) return false;
            if (up ? place > at : place < at) o->moves[l->entry[e]] = true;
        }
    }
    return i != at;
}

/* The marked ones go before what stands at `at`, or behind it; all others keep their order. */
static void apply_move(const ordering *o, const int32_t *order, int32_t i, int32_t at, int32_t *to) {
    int32_t begin = GT__MIN(i, at), end = GT__MAX(i, at), n = 0;
    for (int32_t k = 0; k < begin; ++k) to[n++] = order[k];
    for (int pass = 0; pass < 2; ++pass)
        for (int32_t k = begin; k <= end; ++k)
            if (o->moves[order[k]] == (pass == (i > at ? 0 : 1))) to[n++] = order[k];
    for (int32_t k = end + 1; k < o->n; ++k) to[n++] = order[k];
}

/* Before what stands at `at`, or behind it. */
static bool try_move(ordering *o, int32_t *order, int32_t i, int32_t at, peak *now) {
    if (!mark_move(o, order, i, at)) return false;
    apply_move(o, order, i, at, o->trial);
    peak then = peak_of(o, o->trial);
    if (!is_lower(&then, now)) {
        (void)peak_of(o, order); /* for places and lives */
        return false;
    }
    memcpy(order, o->trial, (size_t)o->n * sizeof *order);
    *now = then;
    return true;
}

/* How early, or late, instruction `i` of the order may stand alone. */
static int32_t farthest(const ordering *o, const int32_t *order, int32_t i, bool early) {
    const lists *l = early ? &o->before : &o->after;
    int32_t limit = early ? 0 : o->n - 1;
    for (int32_t e = l->first[order[i]]; e < l->first[order[i] + 1]; ++e) {
        int32_t place = o->place[l->entry[e]];
        limit = early ? GT__MAX(limit, place + 1) : GT__MIN(limit, place - 1);
    }
    return limit;
}

/* To the other side of the peak, with what it needs there; or alone as far as it may go. */
static bool try_moves(ordering *o, int32_t *order, int32_t i, peak *now, int32_t *left) {
    int32_t far = farthest(o, order, i, i > now->at);
    *left -= 2;
    return try_move(o, order, i, now->at, now) || ((i > now->at ? far <= now->at : far > now->at) && try_move(o, order, i, far, now));
}

/* Tries buffers that live at the peak, until a move helps. */
static bool repair_once(ordering *o, int32_t *order, peak *now, int32_t *left) {
    for (int32_t b = 0; b < o->program->n_buffers; ++b) {
        if (*left <= 0) return false;
        int32_t first = o->first[b], last = o->last[b], at = now->at;
        if (first < 0 || first > at || last < at || o->bytes[b] == 0) continue;
        if (last > at && try_moves(o, order, last, now, left)) return true;
        if (first < at && !o->program->buffers[b].input && try_moves(o, order, first, now, left)) return true;
    }
    return false;
}

static peak repair(ordering *o, int32_t *order) {
    peak now = peak_of(o, order);
    const int32_t size = o->n + o->uses.first[o->n] + o->program->n_buffers;
    int32_t left = GT__MAX(REPAIR_STEPS / GT__MAX(size, 1), 16); /* moves looked at */
    while (left > 0 && repair_once(o, order, &now, &left)) {
    }
    return now;
}

/* --- the pass ----------------------------------------------------------------------------------------------------------------------------------- */

static gt_status find_order(ordering *o, int32_t *order, int32_t *other, bool *better) {
    for (int32_t i = 0; i < o->n; ++i) order[i] = i;
    peak traced = peak_of(o, order), repaired = repair(o, order);
    GT_TRY(schedule(o, other));
    peak scheduled = repair(o, other);
    if (scheduled.bytes < repaired.bytes) memcpy(order, other, (size_t)o->n * sizeof *order);
    *better = traced.bytes - GT__MIN(scheduled.bytes, repaired.bytes) > traced.bytes / WORTH;
    return GT_OK;
}

gt_status gt__pass_order(gt__program *program) {
    if (program->count == 0) return GT_OK;
    ordering o = {.program = program, .n = program->count};
    bool better = false;
    int32_t *order = gt__malloc(2 * (size_t)program->count * sizeof *order);
    gt_status status = order ? make_ordering(&o) : GT_OUT_OF_HOST_MEMORY;
    if (status == GT_OK) status = find_order(&o, order, order + program->count, &better);
    if (status == GT_OK && better) status = gt__program_reorder(program, order);
    free_ordering(&o);
    gt__free(order);
    return status;
}

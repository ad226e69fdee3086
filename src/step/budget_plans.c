/* Plans by three methods, each of which gives many:
 * - Segments. Forward is cut at its narrow points, where few bytes are under way, and for a row of segments it is decided which are kept whole, and which runs of segments
 *   keep no more than what enters them and are computed again before their backward (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). Dynamic
 *   programming over segments and memory finds the least time: for a chain in which nothing is computed more than twice that is the optimum of the model (rotor, Beaumont et
 *   al. 2019, allows more often), up to the steps in which memory is counted, each 1/128 of the target; a segment's bytes are rounded up to them.
 * - Removal, one by one of what lives where the peak is, by bytes times life over the time to make it again (Capuchin, Peng et al. 2020), for any graph. What the integer
 *   program of Checkmate (Jain et al. 2020) finds is not proved to be reached.
 * - From each of these, what was removed is kept again, the most time for its bytes first, as long as the target holds.
 * Every plan's bytes and time are those of the rewritten program, not the model's. */
#include "step/budget.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_POINTS = 48, LEVELS = 128, MOST_TARGETS = 40 };
static const double effort = 6e7; /* touches that are looked at in all, about */

/* What is decided together: a result of an instruction of forward, in all micro-batches. */
typedef struct group {
    int32_t first, count; /* buffers: members[first .. first + count - 1] */
} group;

typedef struct search {
    gt__budget_plans *plans;
    const gt__recompute *r;
    const double *seconds;
    group *groups;
    int32_t *members, *group_of; /* of the buffers; -1: none */
    int32_t n_groups;
    bool *keep;    /* of the buffers: the plan that is being looked at */
    int32_t *seen; /* of the instructions: stamps */
    int32_t stamp;
    int32_t *stack;
    int32_t *order; /* of the groups */
    double *rank;
} search;

/* --- groups -------------------------------------------------------------------------------------------------------------------------------- */

static bool same_chain(const gt__chain *a, const gt__chain *b) {
    bool same = a->n_nodes == b->n_nodes && a->n_inputs == b->n_inputs && a->n_outputs == b->n_outputs;
    for (int32_t k = 0; same && k < a->n_nodes; ++k) same = a->nodes[k].op == b->nodes[k].op;
    for (int32_t k = 0; same && k < a->n_outputs; ++k) same = a->outputs[k].node == b->outputs[k].node;
    return same;
}

/* The instruction of another run that does what i does in the first: at the same distance from backward. -1: none. */
static int32_t twin(const gt__recompute *r, int32_t i, int32_t run) {
    int32_t at = r->begins[run] - (r->begins[0] - i);
    if (r->begins[run] < 0 || r->begins[0] < 0 || at < 0 || r->run[at] != run) return -1;
    const gt__instruction *a = &r->program->list[i], *b = &r->program->list[at];
    bool same = a->kind == b->kind && r->again[i] == r->again[at] && (a->kind != GT__DO_CALL || a->call->call.op == b->call->call.op);
    same = same && (a->kind != GT__DO_CHAIN || same_chain(a->chain, b->chain));
    return same && r->flow.first[i + 1] - r->flow.first[i] == r->flow.first[at + 1] - r->flow.first[at] ? at : -1;
}

static void add_member(search *s, int32_t b, int32_t *n) {
    s->members[(*n)++] = b;
    s->groups[s->n_groups - 1].count++;
    s->group_of[b] = s->n_groups - 1;
}

static void make_groups(search *s) {
    const gt__recompute *r = s->r;
    int32_t n = 0;
    for (int32_t i = 0; i < r->program->count; ++i) {
        for (int32_t t = r->flow.first[i]; t < r->flow.first[i + 1]; ++t) {
            int32_t b = r->flow.touches[t].area;
            if (b >= r->program->n_buffers || r->writer[b] != i || s->group_of[b] >= 0) continue;
            s->groups[s->n_groups++] = (group){n, 0};
            add_member(s, b, &n);
            for (int32_t run = 1; run < r->n_runs && r->run[i] == 0; ++run) {
                int32_t other = twin(r, i, run);
                if (other < 0) continue;
                int32_t c = r->flow.touches[r->flow.first[other] + (t - r->flow.first[i])].area;
                if (c < r->program->n_buffers && r->writer[c] == other && s->group_of[c] < 0) add_member(s, c, &n);
            }
        }
    }
}

static void set_group(search *s, int32_t g, bool keep) {
    for (int32_t k = 0; k < s->groups[g].count; ++k) s->keep[s->members[s->groups[g].first + k]] = keep;
}

static bool is_kept(const search *s, int32_t g) { return s->keep[s->members[s->groups[g].first]]; }

/* --- plans --------------------------------------------------------------------------------------------------------------------------------- */

static gt_status note(search *s) {
    gt__budget_plans *p = s->plans;
    const gt__schedule *made = &p->s;
    double seconds = 0; /* whatever it was searched by */
    for (int32_t i = 0; i < s->r->program->count; ++i) seconds += made->done[i] ? p->seconds[i] : 0;
    for (int32_t k = 0; k < p->count; ++k) /* no better than one that is there */
        if (p->list[k].bound <= made->bound && p->list[k].seconds <= seconds) return GT_OK;
    if (p->count == p->capacity) {
        int32_t capacity = GT__MAX(2 * p->capacity, 64);
        gt__kept_plan *grown = gt__realloc(p->list, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        p->list = grown;
        p->capacity = capacity;
    }
    size_t bytes = ((size_t)s->r->program->n_buffers + 1) * sizeof(bool);
    bool *keep = gt__malloc(bytes);
    if (keep == NULL) return GT_OUT_OF_HOST_MEMORY;
    memcpy(keep, s->keep, bytes);
    p->list[p->count++] = (gt__kept_plan){.keep = keep, .bound = made->bound, .seconds = seconds};
    return GT_OK;
}

static void look(search *s) { gt__schedule_fill(s->r, s->keep, s->seconds, &s->plans->s); }

/* What is only of use in forward is never kept for backward unless that is found to pay. */
static void keep_all(search *s) {
    for (int32_t b = 0; b < s->r->program->n_buffers; ++b) s->keep[b] = s->r->needed[b];
}

/* --- removal ------------------------------------------------------------------------------------------------------------------------------- */

typedef struct costing {
    search *s;
    int32_t n_stack;
    double seconds;
} costing;

static void cost_of(void *user, int32_t b) {
    costing *c = user;
    search *s = c->s;
    int32_t w = s->r->writer[b];
    if (w < 0 || s->keep[b] || s->seen[w] == s->stamp || s->plans->s.done[w]) return;
    s->seen[w] = s->stamp;
    c->seconds += s->seconds[w];
    s->stack[c->n_stack++] = w;
}

/* What it would take more to make the group's buffers again. */
static double time_to_make(search *s, int32_t g) {
    costing c = {.s = s};
    s->stamp++;
    set_group(s, g, false);
    for (int32_t k = 0; k < s->groups[g].count; ++k) cost_of(&c, s->members[s->groups[g].first + k]);
    while (c.n_stack > 0) gt__recompute_reads(s->r, s->stack[--c.n_stack], cost_of, &c);
    set_group(s, g, true);
    return c.seconds;
}

/* Bytes of the group that wait where the peak is for somebody behind it, times how long. */
static double waiting(const search *s, int32_t g) {
    const gt__schedule *made = &s->plans->s;
    double worth = 0;
    for (int32_t k = 0; k < s->groups[g].count; ++k) {
        int32_t b = s->members[s->groups[g].first + k], from = made->place[s->r->split[b]], to = made->first_back[b];
        if (to > made->peak && from < made->peak) worth += (double)s->r->program->buffers[b].bytes * (to - from);
    }
    return worth;
}

/* Until the most at once is at most `target`, or there is nothing to remove where it is. Every plan on the way counts. */
static gt_status remove_until(search *s, size_t target) {
    look(s);
    GT_TRY(note(s));
    while (s->plans->s.bound > target) {
        int32_t best = -1;
        double most = 0;
        for (int32_t g = 0; g < s->n_groups; ++g) {
            if (!is_kept(s, g)) continue;
            double worth = waiting(s, g);
            if (worth <= 0) continue;
            worth /= time_to_make(s, g) + 1e-12;
            if (worth <= most) continue;
            most = worth;
            best = g;
        }
        if (best < 0) return GT_OK;
        set_group(s, best, false);
        look(s);
        GT_TRY(note(s));
    }
    return GT_OK;
}

static int by_rank(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (x[0] < y[0]) - (x[0] > y[0]);
}

/* Removes what waits at the peak as long as that lowers it, wherever it is then. */
static gt_status descend(search *s) {
    int32_t looks = (int32_t)GT__MIN(effort / (4 * (double)(s->r->flow.count + 1)), 4000);
    bool lower = true;
    look(s);
    while (lower) {
        size_t before = s->plans->s.bound;
        int32_t n = 0;
        lower = false;
        for (int32_t g = 0; g < s->n_groups; ++g) {
            double worth = is_kept(s, g) ? waiting(s, g) : 0;
            if (worth <= 0) continue;
            s->rank[2 * n] = worth / (time_to_make(s, g) + 1e-12);
            s->rank[2 * n++ + 1] = g;
        }
        qsort(s->rank, (size_t)n, 2 * sizeof *s->rank, by_rank);
        for (int32_t k = 0; k < n && !lower && looks > 0; ++k, --looks) {
            set_group(s, (int32_t)s->rank[2 * k + 1], false);
            look(s);
            lower = s->plans->s.bound < before;
            if (!lower) set_group(s, (int32_t)s->rank[2 * k + 1], true);
        }
        if (lower) GT_TRY(note(s));
    }
    return GT_OK;
}

/* Keeps again what saves the most time for its bytes, within the target. */
static gt_status keep_again(search *s, size_t target) {
    int32_t n = 0;
    look(s);
    if (s->plans->s.bound > target) return GT_OK;
    for (int32_t g = 0; g < s->n_groups; ++g) {
        int32_t b = s->members[s->groups[g].first], w = s->r->writer[b];
        if (is_kept(s, g) || !s->plans->s.done[w]) continue;
        s->rank[2 * n] = s->seconds[w] / ((double)s->r->program->buffers[b].bytes + 1);
        s->rank[2 * n++ + 1] = g;
    }
    qsort(s->rank, (size_t)n, 2 * sizeof *s->rank, by_rank);
    for (int32_t k = 0; k < n; ++k) {
        int32_t g = (int32_t)s->rank[2 * k + 1];
        double before = s->plans->s.seconds;
        set_group(s, g, true);
        look(s);
        if (s->plans->s.bound <= target && s->plans->s.seconds < before) continue;
        set_group(s, g, false);
        s->plans->s.seconds = before;
    }
    look(s);
    return note(s);
}

/* --- segments ------------------------------------------------------------------------------------------------------------------------------ */

typedef struct segment {
    int32_t first, last; /* instructions of the first run's forward */
    double kept;         /* bytes, if all that backward wants is kept */
    double forced;       /* bytes that are kept in any case */
    double passing;      /* the most bytes of a buffer that forward alone wants */
    double crossing;     /* bytes under way behind `last` */
    double beside;       /* the most bytes, other than forward's, in use in the backward of what is made here */
    double seconds;      /* to do all again that may be */
} segment;

typedef struct cutting {
    segment list[MOST_POINTS + 1];
    int32_t count;
    double *cut;     /* of the instructions of the first run: bytes under way behind it */
    int32_t *points; /* narrow ones */
    int32_t n_points;
} cutting;

/* Made by forward of the first run. */
static bool in_forward(const gt__recompute *r, int32_t b, int32_t *made, int32_t *last, bool *backward) {
    int32_t n = gt__flow_count(&r->flow, b);
    *made = n > 0 && !r->program->buffers[b].input ? gt__flow_touch(&r->flow, b, 0)->instruction : -1;
    *last = *made;
    *backward = false;
    if (*made < 0 || *made >= r->begins[0]) return false;
    for (int32_t k = 0; k < n; ++k) {
        int32_t i = gt__flow_touch(&r->flow, b, k)->instruction;
        if (i < r->begins[0])
            *last = i;
        else
            *backward = true;
    }
    return true;
}

static void find_points(search *s, cutting *c) {
    const gt__recompute *r = s->r;
    int32_t end = r->begins[0], made, last;
    bool backward;
    for (int32_t b = 0; b < r->program->n_buffers; ++b) {
        if (r->writer[b] < 0 || !in_forward(r, b, &made, &last, &backward)) continue;
        c->cut[made] += (double)r->program->buffers[b].bytes;
        c->cut[last] -= (double)r->program->buffers[b].bytes;
    }
    double now = 0;
    for (int32_t i = 0; i < end; ++i) now += c->cut[i], c->cut[i] = now; /* behind i: made, and used further on */
    for (int32_t i = 1; i + 1 < end; ++i)
        if (c->cut[i] > 0 && c->cut[i] <= c->cut[i - 1] && c->cut[i] < c->cut[i + 1]) c->points[c->n_points++] = i;
}

/* Of neighbours those stay that cut forward into equal times, about: the point goes whose segments are the shortest together. */
static void thin_points(search *s, cutting *c) {
    while (c->n_points > MOST_POINTS) {
        int32_t least = 0;
        double shortest = INFINITY;
        for (int32_t k = 0; k < c->n_points; ++k) {
            int32_t from = k > 0 ? c->points[k - 1] : 0, to = k + 1 < c->n_points ? c->points[k + 1] : s->r->begins[0];
            double time = 0;
            for (int32_t i = from; i < to; ++i) time += s->seconds[i];
            if (time >= shortest) continue;
            shortest = time;
            least = k;
        }
        memmove(&c->points[least], &c->points[least + 1], (size_t)(--c->n_points - least) * sizeof *c->points);
    }
}

static int32_t segment_of(const cutting *c, int32_t instruction) {
    int32_t k = 0;
    while (k + 1 < c->count && c->list[k].last < instruction) ++k;
    return k;
}

/* Bytes of buffers that forward has not made, instruction by instruction, with all kept. */
static void find_beside(search *s, cutting *c, double *bytes) {
    const gt__recompute *r = s->r;
    int32_t made, last, n = r->program->count;
    bool backward;
    for (int32_t b = 0; b < r->program->n_buffers; ++b) {
        int32_t touches = gt__flow_count(&r->flow, b);
        if (touches == 0 || in_forward(r, b, &made, &last, &backward)) continue;
        int32_t first = r->program->buffers[b].input ? 0 : gt__flow_touch(&r->flow, b, 0)->instruction;
        bytes[first] += (double)r->program->buffers[b].bytes;
        bytes[gt__flow_touch(&r->flow, b, touches - 1)->instruction + 1] -= (double)r->program->buffers[b].bytes;
    }
    for (int32_t i = 1; i < n; ++i) bytes[i] += bytes[i - 1];
    for (int32_t b = 0; b < r->program->n_buffers; ++b) {
        if (!in_forward(r, b, &made, &last, &backward) || !backward) continue;
        segment *g = &c->list[segment_of(c, made)];
        for (int32_t k = 0; k < gt__flow_count(&r->flow, b); ++k) {
            int32_t i = gt__flow_touch(&r->flow, b, k)->instruction;
            if (i >= r->begins[0]) g->beside = GT__MAX(g->beside, bytes[i] + (double)r->program->list[i].workspace);
        }
    }
}

static void fill_segments(search *s, cutting *c) {
    const gt__recompute *r = s->r;
    int32_t made, last;
    bool backward;
    for (int32_t k = 0; k <= c->n_points; ++k) {
        int32_t end = k < c->n_points ? c->points[k] : r->begins[0] - 1;
        c->list[k] = (segment){.first = k > 0 ? c->points[k - 1] + 1 : 0, .last = end, .crossing = k < c->n_points ? c->cut[end] : 0};
    }
    c->count = c->n_points + 1;
    for (int32_t b = 0; b < r->program->n_buffers; ++b) {
        if (!in_forward(r, b, &made, &last, &backward)) continue;
        segment *g = &c->list[segment_of(c, made)];
        double bytes = (double)r->program->buffers[b].bytes;
        if (backward && r->writer[b] < 0) g->forced += bytes;
        if (backward && r->writer[b] >= 0) g->kept += bytes;
        if (!backward && r->writer[b] >= 0) g->passing = GT__MAX(g->passing, bytes);
    }
    for (int32_t i = 0; i < r->begins[0]; ++i)
        if (r->again[i] != GT__AGAIN_NEVER) c->list[segment_of(c, i)].seconds += s->seconds[i];
}

typedef struct state {
    float seconds; /* INFINITY: cannot be */
    int16_t from;  /* the segment before, where this run of segments begins */
    int16_t level; /* and its level */
    bool whole;
} state;

static int32_t levels_of(double bytes, double unit) { return bytes / unit > LEVELS ? LEVELS + 1 : (int32_t)ceil(bytes / unit); }

static void reach(state *to, double seconds, int32_t from, int32_t level, bool whole) {
    if ((float)seconds < to->seconds) *to = (state){(float)seconds, (int16_t)from, (int16_t)level, whole};
}

/* table[k * (LEVELS + 1) + m]: the first k segments are placed, and m levels are taken for good. */
static void solve(const cutting *c, double target, state *table) {
    double unit = target / LEVELS;
    for (int32_t k = 0; k < (c->count + 1) * (LEVELS + 1); ++k) table[k] = (state){.seconds = INFINITY};
    table[0].seconds = 0;
    for (int32_t k = 0; k < c->count; ++k) {
        double kept = 0, forced = 0, passing = 0, beside = 0, seconds = 0;
        for (int32_t to = k; to < c->count; ++to) {
            const segment *g = &c->list[to];
            kept += g->kept;
            forced += g->forced;
            seconds += g->seconds;
            passing = GT__MAX(passing, g->passing);
            beside = GT__MAX(beside, g->beside);
            int32_t again = levels_of(forced + g->crossing, unit), work = levels_of(kept + forced + passing + beside, unit);
            int32_t whole = levels_of(kept + forced, unit), whole_work = levels_of(kept + forced + beside, unit);
            for (int32_t m = 0; m <= LEVELS; ++m) {
                double so_far = table[k * (LEVELS + 1) + m].seconds;
                if (so_far == INFINITY) continue;
                state *row = &table[(to + 1) * (LEVELS + 1)];
                if (m + work <= LEVELS && m + again <= LEVELS) reach(&row[m + again], so_far + seconds, k, m, false);
                if (to == k && m + whole_work <= LEVELS && m + whole <= LEVELS) reach(&row[m + whole], so_far, k, m, true);
            }
        }
    }
}

/* Everything under way at a point is kept. */
static void keep_crossing(search *s, int32_t point) {
    for (int32_t g = 0; g < s->n_groups; ++g) {
        int32_t b = s->members[s->groups[g].first];
        if (s->r->run[s->r->writer[b]] == 0 && s->r->writer[b] <= point && s->r->split[b] > point) set_group(s, g, true);
    }
}

/* Back from the end, the way of the least time; `run` sees every run of segments on it, from `first` to the one before `end`. */
static void walk_back(search *s, const cutting *c, const state *table, int32_t m,
                      void (*run)(search *s, const cutting *c, int32_t first, int32_t end)) {
    for (int32_t k = c->count; k > 0;) {
        const state *at = &table[k * (LEVELS + 1) + m];
        if (!at->whole) run(s, c, at->from, k);
        k = at->from;
        m = at->level;
    }
}

static void keep_nothing(search *s, const cutting *c, int32_t first, int32_t end) {
    for (int32_t g = 0; g < s->n_groups; ++g) {
        int32_t w = s->r->writer[s->members[s->groups[g].first]];
        if (s->r->run[w] == 0 && w >= c->list[first].first && w <= c->list[end - 1].last) set_group(s, g, false);
    }
}

static void keep_bounds(search *s, const cutting *c, int32_t first, int32_t end) {
    if (end < c->count) keep_crossing(s, c->list[end - 1].last);
    if (first > 0) keep_crossing(s, c->list[first - 1].last);
}

static bool take_solution(search *s, const cutting *c, const state *table) {
    const state *row = &table[c->count * (LEVELS + 1)];
    int32_t m = 0;
    for (int32_t level = 1; level <= LEVELS; ++level)
        if (row[level].seconds < row[m].seconds) m = level;
    keep_all(s);
    if (row[m].seconds == INFINITY) return false;
    walk_back(s, c, table, m, keep_nothing);
    walk_back(s, c, table, m, keep_bounds);
    return true;
}

static gt_status search_target(search *s, const cutting *c, double target, state *table, bool *solved) {
    solve(c, target, table);
    *solved = take_solution(s, c, table);
    if (!*solved) return GT_OK; /* the removal has gone as far as it can from everything */
    look(s);
    GT_TRY(note(s));
    if (s->plans->s.bound < target) { /* the model is careful: with what it leaves */
        solve(c, target * target / (double)s->plans->s.bound, table);
        (void)take_solution(s, c, table);
    }
    GT_TRY(remove_until(s, (size_t)target));
    return keep_again(s, (size_t)target);
}

/* Targets from the whole down, then closer and closer to the least that can be solved, and from there as far as removal goes. */
static gt_status search_targets(search *s, const cutting *c, state *table) {
    enum { HALVINGS = 6 };
    double all = (double)s->plans->list[0].bound, work = effort / ((double)(s->r->flow.count + 1) * (s->n_groups + 1));
    int32_t targets = work > MOST_TARGETS ? MOST_TARGETS : work < 4 ? 4 : (int32_t)work;
    double possible = all, impossible = 0;
    bool solved = true;
    for (int32_t k = 1; k <= targets && solved; ++k) {
        double target = all * (1 - (double)k / (targets + 1));
        GT_TRY(search_target(s, c, target, table, &solved));
        if (solved)
            possible = target;
        else
            impossible = target;
    }
    for (int32_t k = 0; k < HALVINGS; ++k) {
        double target = (possible + impossible) / 2;
        GT_TRY(search_target(s, c, target, table, &solved));
        if (solved)
            possible = target;
        else
            impossible = target;
    }
    solve(c, possible, table);
    (void)take_solution(s, c, table);
    return descend(s);
}

static gt_status search_segments(search *s) {
    const gt__recompute *r = s->r;
    if (r->begins[0] <= 0) return GT_OK;
    size_t n = (size_t)r->program->count + 2;
    cutting *c = gt__calloc(1, sizeof *c);
    double *bytes = gt__calloc(2 * n, sizeof *bytes);
    int32_t *points = gt__calloc(n, sizeof *points);
    state *table = gt__malloc((size_t)(MOST_POINTS + 2) * (LEVELS + 1) * sizeof *table);
    gt_status status = c && bytes && points && table ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    if (status == GT_OK) {
        c->cut = bytes + n;
        c->points = points;
        find_points(s, c);
        thin_points(s, c);
        fill_segments(s, c);
        find_beside(s, c, bytes);
        status = search_targets(s, c, table);
    }
    gt__free(c);
    gt__free(bytes);
    gt__free(points);
    gt__free(table);
    return status;
}

/* --- all plans ------------------------------------------------------------------------------------------------------------------------------ */

static int faster_first(const void *a, const void *b) {
    const gt__kept_plan *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return (x->bound > y->bound) - (x->bound < y->bound);
}

/* So few that each may be placed: the fastest of those that take about the same. */
static void thin_plans(gt__budget_plans *plans) {
    double work = 2e4 / (double)(plans->r.program->count + 1), step = work > 200 ? 0.002 : work < 20 ? 0.02 : 0.4 / work;
    int32_t kept = 0;
    size_t least = SIZE_MAX;
    for (int32_t k = 0; k < plans->count; ++k) least = GT__MIN(least, plans->list[k].bound);
    bool has_least = false;
    for (int32_t k = 0; k < plans->count; ++k) {
        const gt__kept_plan p = plans->list[k];
        bool smallest = p.bound == least && !has_least;
        if (kept == 0 || smallest || (double)p.bound < (1 - step) * (double)plans->list[kept - 1].bound) {
            plans->list[kept++] = p;
            has_least |= smallest;
        } else {
            gt__free(p.keep);
        }
    }
    plans->count = kept;
}

static gt_status search_all(search *s, const double *seconds) {
    s->seconds = seconds;
    keep_all(s);
    GT_TRY(remove_until(s, 0));
    return search_segments(s);
}

gt_status gt__budget_plans_make(gt__program *program, const double *seconds, const double *modelled, gt__budget_plans *plans) {
    *plans = (gt__budget_plans){.seconds = seconds};
    GT_TRY(gt__recompute_make(program, &plans->r));
    size_t n = (size_t)program->count + 1, b = (size_t)program->n_buffers + 1;
    search s = {.plans = plans, .r = &plans->r};
    gt_status status = gt__schedule_new(&plans->r, &plans->s);
    s.groups = gt__calloc(b, sizeof *s.groups);
    s.members = gt__calloc(2 * b + 2 * n, sizeof *s.members);
    s.keep = gt__calloc(b, sizeof *s.keep);
    s.rank = gt__malloc(2 * b * sizeof *s.rank);
    if (s.groups == NULL || s.members == NULL || s.keep == NULL || s.rank == NULL) status = GT_OUT_OF_HOST_MEMORY;
    if (status == GT_OK) {
        s.group_of = s.members + b;
        s.seen = s.group_of + b;
        s.stack = s.seen + n;
        for (size_t k = 0; k < b; ++k) s.group_of[k] = -1;
        make_groups(&s);
        status = search_all(&s, seconds);
    }
    if (status == GT_OK && modelled) status = search_all(&s, modelled);
    gt__free(s.groups);
    gt__free(s.members);
    gt__free(s.keep);
    gt__free(s.rank);
    if (status == GT_OK) {
        qsort(plans->list, (size_t)plans->count, sizeof *plans->list, faster_first);
        thin_plans(plans);
    } else {
        gt__budget_plans_free(plans);
    }
    return status;
}

void gt__budget_plans_free(gt__budget_plans *plans) {
    for (int32_t k = 0; k < plans->count; ++k) gt__free(plans->list[k].keep);
    gt__free(plans->list);
    gt__schedule_free(&plans->s);
    gt__recompute_free(&plans->r);
    *plans = (gt__budget_plans){0};
}

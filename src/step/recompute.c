/* Who may be done again, and what a program with some of it would take. */
#include "step/recompute.h"

#include "step/passes.h"

#include <stdlib.h>

/* --- who may ------------------------------------------------------------------------------------------------------------------------------- */

static gt_status find_runs(gt__recompute *r) {
    const gt__program *p = r->program;
    bool before = false;
    for (int32_t i = 0; i < p->count; ++i) {
        r->backward[i] = p->list[i].phase == GT__PHASE_BACKWARD;
        if (before && !r->backward[i]) r->n_runs++;
        before = r->backward[i];
        r->run[i] = r->n_runs;
    }
    r->n_runs++;
    r->begins = gt__malloc(2 * (size_t)r->n_runs * sizeof *r->begins);
    if (r->begins == NULL) return GT_OUT_OF_HOST_MEMORY;
    r->ends = r->begins + r->n_runs;
    for (int32_t m = 0; m < 2 * r->n_runs; ++m) r->begins[m] = -1;
    for (int32_t i = 0; i < p->count; ++i) {
        if (!r->backward[i]) continue;
        if (r->begins[r->run[i]] < 0) r->begins[r->run[i]] = i;
        r->ends[r->run[i]] = i;
    }
    return GT_OK;
}

gt__again gt__again_of(const gt__instruction *n) {
    if (n->kind == GT__DO_COPY || n->kind == GT__DO_ZERO || n->kind == GT__DO_COPY_MANY || n->kind == GT__DO_CHAIN)
        return GT__AGAIN_AS_IT_IS;
    if (n->kind != GT__DO_CALL || n->call->call.op == GT__OP_CUSTOM) return GT__AGAIN_NEVER;
    const gt__call *call = &n->call->call;
    bool moves = false;
    for (int32_t k = 0; k < call->n_in; ++k) moves |= gt__call_changes_input(call, k);
    if (!moves) return GT__AGAIN_AS_IT_IS;
    bool kept = call->out[0] && call->out[1] && call->out[2] && gt__is_traced(call->out[1]->data) && gt__is_traced(call->out[2]->data);
    return call->op != GT__OP_BATCH_NORM_ADD_RELU && kept ? GT__AGAIN_APPLY : GT__AGAIN_NO_MOVE;
}

/* An access to memory that batch norm done again leaves alone. */
static bool left_out(const gt__recompute *r, int32_t i, const gt__touch *t) {
    return r->again[i] >= GT__AGAIN_APPLY && t->access.reads && t->access.writes;
}

/* Nobody writes into the area after instruction i and not after `end`. */
static bool unchanged(const gt__flow *flow, int32_t area, int32_t i, int32_t end) {
    for (int32_t k = gt__flow_count(flow, area) - 1; k >= 0; --k) {
        const gt__touch *t = gt__flow_touch(flow, area, k);
        if (t->instruction <= i) break;
        if (t->instruction <= end && t->access.writes) return false;
    }
    return true;
}

static bool whole(const gt__recompute *r, const gt__touch *t) {
    const gt__buffer *b = &r->program->buffers[t->area];
    return !t->access.reads && gt__touch_begin(t) == b->address && t->access.bytes >= b->bytes;
}

/* Its results follow from its inputs alone, and these are there as they were until backward has ended. */
static bool is_pure(const gt__recompute *r, int32_t i) {
    const gt__flow *f = &r->flow;
    int32_t end = r->ends[r->run[i]];
    if (r->backward[i] || r->program->list[i].phase == GT__PHASE_UPDATE || end < i) return false;
    for (int32_t t = f->first[i]; t < f->first[i + 1]; ++t) {
        const gt__touch *touch = &f->touches[t];
        if (left_out(r, i, touch)) continue;
        if (touch->access.writes && (touch->area >= r->program->n_buffers || !whole(r, touch))) return false;
        if (touch->access.reads && !unchanged(f, touch->area, i, end)) return false;
    }
    return true;
}

/* Written once, by instruction i, and then only read, not after the run's backward. */
static bool find_split(gt__recompute *r, int32_t b, int32_t i) {
    int32_t end = r->ends[r->run[i]];
    r->split[b] = i;
    if (r->program->buffers[b].input) return false;
    for (int32_t k = 0; k < gt__flow_count(&r->flow, b); ++k) {
        const gt__touch *t = gt__flow_touch(&r->flow, b, k);
        if (k == 0 && t->instruction == i && t->access.writes) continue;
        if (t->access.writes || t->instruction <= i || t->instruction > end) return false;
        if (r->backward[t->instruction])
            r->needed[b] = true;
        else
            r->split[b] = t->instruction;
    }
    return true;
}

static void find_writers(gt__recompute *r) {
    for (int32_t i = 0; i < r->program->count; ++i) {
        r->again[i] = gt__again_of(&r->program->list[i]);
        if (r->again[i] == GT__AGAIN_NEVER) continue;
        if (!is_pure(r, i)) {
            r->again[i] = GT__AGAIN_NEVER;
            continue;
        }
        for (int32_t t = r->flow.first[i]; t < r->flow.first[i + 1]; ++t) {
            const gt__touch *touch = &r->flow.touches[t];
            if (!touch->access.writes || left_out(r, i, touch)) continue;
            const gt__instruction *n = &r->program->list[i];
            bool result = r->again[i] == GT__AGAIN_AS_IT_IS || touch->access.place == (void *)&n->call->call.out[0]->data;
            if (result && find_split(r, touch->area, i)) r->writer[touch->area] = i;
        }
    }
}

gt_status gt__recompute_make(gt__program *program, gt__recompute *r) {
    *r = (gt__recompute){.program = program};
    size_t n = (size_t)program->count + 1, b = (size_t)program->n_buffers + 1;
    r->again = gt__calloc(n, sizeof *r->again);
    r->backward = gt__calloc(n, sizeof *r->backward);
    r->needed = gt__calloc(b, sizeof *r->needed);
    r->run = gt__calloc(n + 2 * b, sizeof *r->run);
    gt_status status = r->again && r->backward && r->needed && r->run ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    if (status == GT_OK) {
        r->writer = r->run + n;
        r->split = r->writer + b;
        for (size_t k = 0; k < b; ++k) r->writer[k] = -1;
        status = find_runs(r);
    }
    if (status == GT_OK) status = gt__flow_make(program, &r->flow);
    if (status == GT_OK)
        find_writers(r);
    else
        gt__recompute_free(r);
    return status;
}

void gt__recompute_free(gt__recompute *r) {
    gt__flow_free(&r->flow);
    gt__free(r->again);
    gt__free(r->backward);
    gt__free(r->needed);
    gt__free(r->run);
    gt__free(r->begins);
    *r = (gt__recompute){0};
}

/* --- schedules ----------------------------------------------------------------------------------------------------------------------------- */

static int32_t buffer_of(const gt__recompute *r, const gt_tensor *t) { return gt__program_buffer(r->program, t->data); }

void gt__recompute_reads(const gt__recompute *r, int32_t i, gt__again_visitor visit, void *user) {
    const gt__flow *f = &r->flow;
    if (r->again[i] == GT__AGAIN_APPLY) {
        const gt__call *call = &r->program->list[i].call->call;
        visit(user, buffer_of(r, call->out[1]));
        visit(user, buffer_of(r, call->out[2]));
    }
    for (int32_t t = f->first[i]; t < f->first[i + 1]; ++t)
        if (f->touches[t].access.reads && f->touches[t].area < r->program->n_buffers && !left_out(r, i, &f->touches[t]))
            visit(user, f->touches[t].area);
}

gt_status gt__schedule_new(const gt__recompute *r, gt__schedule *s) {
    size_t n = (size_t)r->program->count + 1, b = (size_t)r->program->n_buffers + 1;
    *s = (gt__schedule){0};
    s->order = gt__malloc((2 * n + b + n + 2 * n + b) * sizeof *s->order);
    s->lives = gt__malloc(2 * b * sizeof *s->lives);
    s->done = gt__malloc(n * sizeof *s->done);
    s->change = gt__malloc(2 * n * sizeof *s->change);
    if (s->order == NULL || s->lives == NULL || s->done == NULL || s->change == NULL) {
        gt__schedule_free(s);
        return GT_OUT_OF_HOST_MEMORY;
    }
    s->first_back = s->order + 2 * n;
    s->place = s->first_back + b;
    s->list = s->place + n;
    s->stack = s->list + n; /* of writers, each once */
    return GT_OK;
}

void gt__schedule_free(gt__schedule *s) {
    gt__free(s->order);
    gt__free(s->lives);
    gt__free(s->done);
    gt__free(s->change);
    *s = (gt__schedule){0};
}

typedef struct filling {
    const gt__recompute *r;
    const bool *keep;
    gt__schedule *s;
    int32_t n_stack, n_list;
} filling;

static bool is_again(const filling *f, int32_t b) { return f->r->writer[b] >= 0 && !f->keep[b]; }

static void live(filling *f, int32_t number) {
    gt__life *l = &f->s->lives[number];
    int32_t n = f->r->program->n_buffers, b = number < n ? number : number - n;
    const gt__buffer *buffer = &f->r->program->buffers[b];
    if (l->first < 0) *l = (gt__life){buffer->bytes, number < n && buffer->input ? 0 : f->s->count, 0};
    l->last = f->s->count;
}

/* Whoever makes the buffer is to be done again. */
static void want(void *user, int32_t b) {
    filling *f = user;
    int32_t w = f->r->writer[b];
    if (!is_again(f, b) || f->s->done[w]) return;
    f->s->done[w] = true;
    f->s->list[f->n_list++] = w;
    f->s->stack[f->n_stack++] = w;
}

static void read_again(void *user, int32_t b) {
    filling *f = user;
    bool again = is_again(f, b);
    if (!again && f->s->first_back[b] < 0) f->s->first_back[b] = f->s->count;
    live(f, again ? f->r->program->n_buffers + b : b);
}

static int rising(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* Outputs that the kernel may leave out are left out where they are kept. */
static bool is_written_again(const filling *f, int32_t i, const gt__touch *t) {
    if (!t->access.writes || left_out(f->r, i, t)) return false;
    const gt__instruction *n = &f->r->program->list[i];
    if (is_again(f, t->area)) return true;
    if (n->kind != GT__DO_CALL) return n->kind != GT__DO_CHAIN;
    const gt__call *call = &n->call->call;
    for (int32_t k = 1; k < call->n_out; ++k)
        if (call->out[k] && t->access.place == (void *)&call->out[k]->data) return !(gt__optional_outputs(call->op) >> k & 1);
    return true;
}

static void do_again(filling *f, int32_t i) {
    const gt__flow *flow = &f->r->flow;
    f->s->order[f->s->count] = ~i;
    gt__recompute_reads(f->r, i, read_again, f);
    for (int32_t t = flow->first[i]; t < flow->first[i + 1]; ++t)
        if (is_written_again(f, i, &flow->touches[t])) live(f, f->r->program->n_buffers + flow->touches[t].area);
    f->s->count++;
}

/* In the order of forward, which is one that their inputs allow. */
static void do_wanted(filling *f) {
    while (f->n_stack > 0) gt__recompute_reads(f->r, f->s->stack[--f->n_stack], want, f);
    if (f->n_list > 1) qsort(f->s->list, (size_t)f->n_list, sizeof *f->s->list, rising);
    for (int32_t k = 0; k < f->n_list; ++k) do_again(f, f->s->list[k]);
    f->n_list = 0;
}

static bool reads_copy(const filling *f, int32_t i, int32_t b) { return f->r->backward[i] && is_again(f, b) && i > f->r->split[b]; }

static void step_over(filling *f, int32_t i) {
    const gt__flow *flow = &f->r->flow;
    int32_t n = f->r->program->n_buffers;
    gt__schedule *s = f->s;
    for (int32_t t = flow->first[i]; t < flow->first[i + 1] && f->r->backward[i]; ++t)
        if (flow->touches[t].area < n && reads_copy(f, i, flow->touches[t].area)) want(f, flow->touches[t].area);
    if (f->n_list > 0) do_wanted(f);
    s->place[i] = s->count;
    s->order[s->count] = i;
    for (int32_t t = flow->first[i]; t < flow->first[i + 1]; ++t) {
        int32_t b = flow->touches[t].area;
        if (b >= n) continue;
        bool copy = reads_copy(f, i, b);
        if (!copy && f->r->backward[i] && s->first_back[b] < 0) s->first_back[b] = s->count;
        live(f, copy ? n + b : b);
    }
    s->count++;
}

static size_t grains(size_t bytes) { return (bytes + GT__ARENA_GRAIN - 1) / GT__ARENA_GRAIN * GT__ARENA_GRAIN; }

static void find_bound(const gt__recompute *r, gt__schedule *s) {
    for (int32_t i = 0; i <= s->count; ++i) s->change[i] = 0;
    for (int32_t k = 0; k < 2 * r->program->n_buffers; ++k) {
        if (s->lives[k].first < 0) continue;
        s->change[s->lives[k].first] += (int64_t)grains(s->lives[k].bytes);
        s->change[s->lives[k].last + 1] -= (int64_t)grains(s->lives[k].bytes);
    }
    int64_t now = 0;
    s->bound = 0;
    s->peak = 0;
    for (int32_t i = 0; i < s->count; ++i) {
        now += s->change[i];
        int32_t from = s->order[i] < 0 ? ~s->order[i] : s->order[i];
        size_t here = (size_t)now + grains(r->program->list[from].workspace);
        if (here <= s->bound) continue;
        s->bound = here;
        s->peak = i;
    }
}

void gt__schedule_fill(const gt__recompute *r, const bool *keep, const double *seconds, gt__schedule *s) {
    const gt__program *p = r->program;
    filling f = {.r = r, .keep = keep, .s = s};
    s->count = 0;
    s->seconds = 0;
    for (int32_t i = 0; i < p->count; ++i) s->done[i] = false;
    for (int32_t b = 0; b < p->n_buffers; ++b) {
        s->lives[b] = s->lives[p->n_buffers + b] = (gt__life){0, -1, -1};
        s->first_back[b] = -1;
    }
    for (int32_t i = 0; i < p->count; ++i) step_over(&f, i);
    for (int32_t i = 0; i < p->count && seconds; ++i)
        if (s->done[i]) s->seconds += seconds[i];
    find_bound(r, s);
}

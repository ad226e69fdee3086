/* Copies that move nothing new. Source and destination become one piece of memory, where nobody could tell:
 *   - forward: the source is a buffer, and whoever makes it writes the destination instead; nobody may touch the destination between that and the copy.
 *   - back: the destination is a buffer that begins with the copy, and whoever reads it reads the source instead.
 * After the copy both may be read on; once one is written to, the other must not be touched any more. */
#include "step/flow.h"
#include "step/passes.h"

typedef struct move {
    const void *from, *to;
    size_t bytes;
} move;

/* The instruction copies `bytes` as they are. */
static bool is_move(const gt__instruction *n, move *m) {
    if (n->kind == GT__DO_COPY) {
        *m = (move){n->copy.source, n->copy.destination, n->copy.bytes};
        return n->copy.kind == GT__COPY_DEVICE_TO_DEVICE;
    }
    if (n->kind != GT__DO_CALL || (n->call->call.op != GT__OP_COPY && n->call->call.op != GT__OP_CAST)) return false;
    const gt_tensor *from = n->call->call.in[0], *to = n->call->call.out[0];
    *m = (move){from->data, to->data, (size_t)to->meta.numel * gt_dtype_size(to->meta.dtype)};
    return from->meta.dtype == to->meta.dtype && gt__meta_is_dense(&to->meta) && gt__meta_same_layout(&from->meta, &to->meta);
}

/* Kernels that choose by alignment must find what they found before. */
static bool aligned(const void *pointer) { return (uintptr_t)pointer % (gt__is_traced(pointer) ? GT__BUFFER_ALIGNMENT : 64) == 0; }

typedef struct side {
    int32_t area;
    uintptr_t begin, end;
    bool outside; /* and so read by somebody when the program has run */
} side;

static bool overlaps(const side *s, const gt__touch *t) { return gt__touch_begin(t) < s->end && gt__touch_end(t) > s->begin; }

/* The last instruction after `now` that touches it; INT32_MAX: its value counts at the end. */
static int32_t last_touch(const gt__flow *flow, const side *s, int32_t now) {
    int32_t last = s->outside ? INT32_MAX : now;
    for (int32_t k = 0; k < gt__flow_count(flow, s->area); ++k) {
        const gt__touch *t = gt__flow_touch(flow, s->area, k);
        if (t->instruction > last && overlaps(s, t)) last = t->instruction;
    }
    return last;
}

static bool written_between(const gt__flow *flow, const side *s, int32_t after, int32_t last) {
    for (int32_t k = 0; k < gt__flow_count(flow, s->area); ++k) {
        const gt__touch *t = gt__flow_touch(flow, s->area, k);
        if (t->access.writes && t->instruction > after && t->instruction <= last && overlaps(s, t)) return true;
    }
    return false;
}

static bool touched_between(const gt__flow *flow, const side *s, int32_t first, int32_t before) {
    for (int32_t k = 0; k < gt__flow_count(flow, s->area); ++k) {
        const gt__touch *t = gt__flow_touch(flow, s->area, k);
        if (t->instruction >= first && t->instruction < before && overlaps(s, t)) return true;
    }
    return false;
}

/* Nobody could tell after instruction `now` that the two are one. */
static bool agree_after(const gt__flow *flow, const side *from, const side *to, int32_t now) {
    return !written_between(flow, from, now, last_touch(flow, to, now)) && !written_between(flow, to, now, last_touch(flow, from, now));
}

/* A buffer of the program that no caller fills, and that lies within the side. */
static bool own(const gt__program *program, const gt__flow *flow, const side *s) {
    return !s->outside && !program->buffers[s->area].input && gt__flow_area_within(flow, s->area, s->begin, s->end);
}

static bool merge(gt__program *program, gt__flow *flow, int32_t now, const move *m, const side *from, const side *to) {
    if (!agree_after(flow, from, to, now)) return false;
    bool back = own(program, flow, to) && aligned(m->from) && gt__flow_touch(flow, to->area, 0)->instruction == now;
    if (back) {
        gt__flow_move(flow, to->area, m->to, m->from);
        return true;
    }
    bool forward =
        own(program, flow, from) && aligned(m->to) && !touched_between(flow, to, gt__flow_touch(flow, from->area, 0)->instruction, now);
    if (forward) gt__flow_move(flow, from->area, m->from, m->to);
    return forward;
}

static side side_of(const gt__program *program, const gt__touch *t) {
    return (side){t->area, gt__touch_begin(t), gt__touch_end(t), t->area >= program->n_buffers};
}

/* One round. *again: copies were left for the next, as what they touch has changed. */
static gt_status copies_once(gt__program *program, bool *again) {
    gt__flow flow;
    GT_TRY(gt__flow_make(program, &flow));
    bool *drop = gt__calloc((size_t)program->count + (size_t)flow.n_areas + 1, sizeof *drop),
         *changed = drop ? drop + program->count : NULL;
    *again = false;
    for (int32_t i = 0; drop && i < program->count; ++i) {
        move m;
        if (!is_move(&program->list[i], &m) || flow.first[i + 1] - flow.first[i] != 2) continue;
        const gt__touch *t = &flow.touches[flow.first[i]];
        bool first_reads = t[0].access.reads;
        side from = side_of(program, first_reads ? t : t + 1), to = side_of(program, first_reads ? t + 1 : t);
        if (changed[from.area] || changed[to.area]) {
            *again = true;
        } else if (from.area != to.area) {
            drop[i] = merge(program, &flow, i, &m, &from, &to);
            changed[from.area] = changed[to.area] = drop[i];
        } else {
            drop[i] = from.begin == to.begin; /* onto itself */
        }
    }
    if (drop) gt__program_remove(program, drop);
    gt_status status = drop ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    gt__free(drop);
    gt__flow_free(&flow);
    return status;
}

gt_status gt__pass_copies(gt__program *program) {
    for (bool again = true; again;) GT_TRY(copies_once(program, &again));
    return GT_OK;
}

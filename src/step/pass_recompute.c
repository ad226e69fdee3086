/* Rematerialisation: the program is written anew, with what is not kept made again where backward wants it. */
#include "step/passes.h"
#include "step/recompute.h"

typedef struct writing {
    const gt__recompute *r;
    const bool *keep;
    const int32_t *copy; /* of the buffers: the copy's number; -1: there is none */
    int32_t now;
    bool again;
} writing;

static const void *in_copy(const writing *w, int32_t b, const void *pointer) {
    const gt__buffer *buffers = w->r->program->buffers;
    return (const void *)(uintptr_t)(buffers[w->copy[b]].address + ((uintptr_t)pointer - buffers[b].address));
}

static void redirect(void *user, const gt__access *access) {
    const writing *w = user;
    int32_t b = gt__program_buffer(w->r->program, access->pointer);
    if (b < 0 || w->copy[b] < 0) return;
    bool not_kept = w->r->writer[b] >= 0 && !w->keep[b];
    bool reads_copy = access->reads && not_kept && (w->again || w->now > w->r->split[b]);
    if (reads_copy || (access->writes && w->again)) gt__access_set(access, in_copy(w, b, access->pointer));
}

/* y of batch norm from x and the statistics that its first run has kept. */
static gt_status make_apply(const gt__instruction *from, gt__instruction *to) {
    enum { INPUTS = 5 };
    const gt__call *call = &from->call->call;
    *to = *from;
    gt__traced_call *made = gt__calloc(1, sizeof *made + INPUTS * sizeof(gt_tensor *) + (INPUTS + 1) * sizeof(gt_tensor));
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    made->tensors = (gt_tensor *)(made + 1);
    made->in = (gt_tensor **)(made->tensors + INPUTS + 1);
    const gt_tensor *const in[INPUTS] = {call->in[0], call->in[1], call->in[2], call->out[1], call->out[2]};
    for (int32_t k = 0; k < INPUTS; ++k) {
        if (in[k] == NULL) continue;
        made->tensors[k] = *in[k];
        made->in[k] = &made->tensors[k];
    }
    made->tensors[INPUTS] = *call->out[0];
    made->call =
        (gt__call){.ctx = call->ctx, .in = made->in, .n_in = INPUTS, .n_out = 1, .attr = call->attr, .op = GT__OP_BATCH_NORM_APPLY};
    made->call.attr.norm.activation = call->op == GT__OP_BATCH_NORM_RELU ? GT_ACTIVATION_RELU : GT_ACTIVATION_NONE;
    made->call.out[0] = &made->tensors[INPUTS];
    made->call.meta[0] = call->meta[0];
    to->memory = to->call = made;
    return GT_OK;
}

/* Outputs that nobody has use for a second time. */
static void leave_out(const writing *w, gt__call *call) {
    for (int32_t k = 0; k < call->n_out; ++k) {
        int32_t b = call->out[k] ? gt__program_buffer(w->r->program, call->out[k]->data) : -1;
        if (b >= 0 && w->copy[b] < 0) call->out[k] = NULL;
    }
}

static void leave_out_of_chain(const writing *w, gt__chain *c) {
    for (int32_t k = 0; k < c->n_outputs; ++k) {
        int32_t b = gt__program_buffer(w->r->program, c->outputs[k].data);
        if (b >= 0 && w->copy[b] < 0) c->outputs[k].data = NULL;
    }
    int32_t b = gt__program_buffer(w->r->program, c->sum.data);
    if (b >= 0 && w->copy[b] < 0) c->sum.data = NULL;
}

gt_status gt__again_make(const gt__instruction *from, gt__again again, gt__instruction *to) {
    GT_TRY(again == GT__AGAIN_APPLY ? make_apply(from, to) : gt__instruction_copy(from, to));
    if (again == GT__AGAIN_NO_MOVE) to->call->in[3] = to->call->in[4] = NULL;
    return GT_OK;
}

static gt_status make_again(const writing *w, gt__instruction *to) {
    GT_TRY(gt__again_make(&w->r->program->list[w->now], w->r->again[w->now], to));
    if (to->kind == GT__DO_CALL) leave_out(w, &to->call->call);
    if (to->kind == GT__DO_CHAIN) leave_out_of_chain(w, to->chain);
    to->phase = GT__PHASE_BACKWARD;
    return GT_OK;
}

/* Places for the copies behind all others. */
static gt_status add_buffers(gt__program *p, const gt__schedule *s, int32_t *copy) {
    int32_t n = p->n_buffers, count = 0;
    for (int32_t b = 0; b < n; ++b) {
        copy[b] = s->lives[n + b].first < 0 ? -1 : n + count;
        count += copy[b] >= 0;
    }
    if (count == 0) return GT_OK;
    gt__buffer *grown = gt__realloc(p->buffers, (size_t)(n + count) * sizeof *grown);
    if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
    p->buffers = grown;
    p->cap_buffers = n + count;
    uint64_t cursor = grown[n - 1].address;
    for (int32_t b = 0, before = n - 1; b < n; ++b) {
        if (copy[b] < 0) continue;
        cursor += (grown[before].bytes + 2 * GT__BUFFER_ALIGNMENT - 1) & ~(uint64_t)(GT__BUFFER_ALIGNMENT - 1);
        grown[copy[b]] = grown[b];
        grown[copy[b]].address = cursor;
        grown[copy[b]].input = false;
        before = copy[b];
    }
    p->n_buffers = n + count;
    return GT_OK;
}

static gt_status write_list(writing *w, const gt__schedule *s, gt__instruction *list) {
    gt__program *p = w->r->program;
    for (int32_t k = 0; k < s->count; ++k) { /* first all that can fail */
        if (s->order[k] >= 0) continue;
        w->now = ~s->order[k];
        gt__instruction made;
        GT_TRY(make_again(w, &made));
        list[k] = made;
    }
    for (int32_t k = 0; k < s->count; ++k) {
        w->again = s->order[k] < 0;
        w->now = w->again ? ~s->order[k] : s->order[k];
        if (!w->again) list[k] = p->list[w->now];
        if (w->again || w->r->backward[w->now]) gt__instruction_visit(&list[k], redirect, w);
    }
    return GT_OK;
}

gt_status gt__recompute_apply(gt__recompute *r, const bool *keep) {
    gt__program *p = r->program;
    gt__schedule s;
    GT_TRY(gt__schedule_new(r, &s));
    gt__schedule_fill(r, keep, NULL, &s);
    int32_t *copy = gt__malloc(((size_t)p->n_buffers + 1) * sizeof *copy);
    gt__instruction *list = gt__calloc((size_t)s.count + 1, sizeof *list);
    gt_status status = copy && list ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    if (status == GT_OK) status = add_buffers(p, &s, copy);
    writing w = {.r = r, .keep = keep, .copy = copy};
    if (status == GT_OK) status = write_list(&w, &s, list);
    if (status == GT_OK) {
        gt__free(p->list);
        p->list = list;
        p->count = s.count;
        p->capacity = s.count + 1;
    } else {
        for (int32_t k = 0; list && k < s.count; ++k) gt__instruction_free(&list[k]); /* those that are done again, and empty ones */
        gt__free(list);
    }
    gt__free(copy);
    gt__schedule_free(&s);
    return status;
}

gt_status gt__pass_recompute(gt__program *program, const bool *keep) {
    gt__recompute r;
    GT_TRY(gt__recompute_make(program, &r));
    gt_status status = gt__recompute_apply(&r, keep);
    gt__recompute_free(&r);
    return status;
}

/* Two gradients whose sum flows into batch norm's alone: its gradient takes both, and adds them as it reads. What was written and read once more is not. */
#include "step/flow.h"
#include "step/passes.h"

/* The input of a batch norm's gradient that is added to its first; -1: another op. */
static int32_t second_gradient(gt__op_id op) {
    switch (op) {
    case GT__OP_BATCH_NORM_BACKWARD:
        return 5;
    case GT__OP_BATCH_NORM_RELU_BACKWARD:
    case GT__OP_BATCH_NORM_ADD_RELU_BACKWARD:
        return 6;
    default:
        return -1;
    }
}

typedef struct range {
    int32_t area;
    uintptr_t begin, end;
} range;

static bool overlaps(const range *r, const gt__touch *t) { return gt__touch_begin(t) < r->end && gt__touch_end(t) > r->begin; }

/* What the instruction touches through that place. */
static range range_of(const gt__flow *flow, int32_t instruction, void *const *place) {
    for (int32_t t = flow->first[instruction]; t < flow->first[instruction + 1]; ++t) {
        const gt__touch *touch = &flow->touches[t];
        if (touch->access.place == (const void *)place) return (range){touch->area, gt__touch_begin(touch), gt__touch_end(touch)};
    }
    return (range){.area = -1};
}

static bool same_elements(const gt_tensor *a, const gt_tensor *b) {
    return a->meta.dtype == b->meta.dtype && gt__meta_same_layout(&a->meta, &b->meta);
}

/* Both inputs and the sum lie in memory in one order, without holes. */
static bool is_plain_add(const gt__instruction *n) {
    if (n->kind != GT__DO_CALL || n->call->call.op != GT__OP_ADD) return false;
    const gt__call *call = &n->call->call;
    const gt_tensor *sum = call->out[0];
    return sum->meta.numel > 0 && gt__dtype_is_float(sum->meta.dtype) && gt__meta_is_dense(&sum->meta) && same_elements(call->in[0], sum) &&
           same_elements(call->in[1], sum);
}

/* The instruction that reads the sum next, if it is one that could add, and the only one. */
static int32_t find_reader(const gt__program *program, const gt__flow *flow, int32_t add, const range *sum) {
    int32_t reader = -1;
    for (int32_t k = 0; k < gt__flow_count(flow, sum->area); ++k) {
        const gt__touch *t = gt__flow_touch(flow, sum->area, k);
        if (t->instruction <= add || !overlaps(sum, t)) continue;
        if (reader >= 0) {
            if (t->access.reads || t->instruction == reader) return -1;
            if (gt__touch_begin(t) <= sum->begin && gt__touch_end(t) >= sum->end) break; /* another value from here on */
            continue;
        }
        const gt__instruction *n = &program->list[t->instruction];
        int32_t second = n->kind == GT__DO_CALL ? second_gradient(n->call->call.op) : -1;
        if (second < 0 || t->access.writes || (n->call->call.n_in > second && n->call->call.in[second])) return -1;
        const gt_tensor *dy = n->call->call.in[0];
        if (t->access.place != (void *)&dy->data || !same_elements(dy, program->list[add].call->call.out[0])) return -1;
        reader = t->instruction;
    }
    return reader;
}

/* Until the reader has run; it may not write there itself. */
static bool written_until(const gt__flow *flow, const range *r, int32_t after, int32_t reader) {
    for (int32_t k = 0; k < gt__flow_count(flow, r->area); ++k) {
        const gt__touch *t = gt__flow_touch(flow, r->area, k);
        if (t->access.writes && t->instruction > after && t->instruction <= reader && overlaps(r, t)) return true;
    }
    return false;
}

/* The reader's call again, with both gradients for their sum. */
static gt_status take_both(gt__instruction *n, const gt__call *add) {
    const gt__traced_call *old = n->call;
    const int32_t second = second_gradient(old->call.op), n_in = second + 1, outs = old->call.n_out;
    const size_t tensors = (size_t)(n_in + outs);
    gt__traced_call *made = gt__calloc(1, sizeof *made + tensors * sizeof(gt_tensor) + (size_t)n_in * sizeof(gt_tensor *));
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    made->call = old->call;
    made->tensors = (gt_tensor *)(made + 1);
    made->in = (gt_tensor **)(made->tensors + tensors);
    made->call.in = made->in;
    made->call.n_in = n_in;
    for (int32_t k = 0; k < n_in; ++k) {
        const gt_tensor *from = k == 0 ? add->in[0] : k == second ? add->in[1] : old->call.in[k];
        if (from == NULL) continue;
        made->tensors[k] = *from;
        made->in[k] = &made->tensors[k];
    }
    for (int32_t k = 0; k < outs; ++k) {
        if (old->call.out[k] == NULL) continue;
        made->tensors[n_in + k] = *old->call.out[k];
        made->call.out[k] = &made->tensors[n_in + k];
    }
    gt__free(n->memory);
    n->memory = n->call = made;
    return GT_OK;
}

static int32_t find_taker(gt__program *program, const gt__flow *flow, int32_t i) {
    if (!is_plain_add(&program->list[i])) return -1;
    const gt__call *add = &program->list[i].call->call;
    const range a = range_of(flow, i, &add->in[0]->data), b = range_of(flow, i, &add->in[1]->data),
                sum = range_of(flow, i, &add->out[0]->data);
    if (a.area < 0 || b.area < 0 || sum.area < 0 || sum.area >= program->n_buffers) return -1;
    int32_t reader = find_reader(program, flow, i, &sum);
    return reader >= 0 && !written_until(flow, &a, i, reader) && !written_until(flow, &b, i, reader) ? reader : -1;
}

gt_status gt__pass_norm_add(gt__program *program) {
    gt__flow flow;
    GT_TRY(gt__flow_make(program, &flow));
    bool *drop = gt__calloc((size_t)program->count + 1, sizeof *drop);
    gt_status status = drop ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < program->count && status == GT_OK; ++i) {
        int32_t reader = find_taker(program, &flow, i);
        if (reader < 0) continue;
        status = take_both(&program->list[reader], &program->list[i].call->call);
        drop[i] = status == GT_OK;
    }
    if (drop) gt__program_remove(program, drop);
    gt__free(drop);
    gt__flow_free(&flow);
    return status;
}

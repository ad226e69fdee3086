/* Dead code: from the end to the beginning, what nobody reads afterwards is not wanted. */
#include "step/flow.h"
#include "step/passes.h"

/* Others are kept with their call. */
uint32_t gt__optional_outputs(gt__op_id op) {
    switch (op) {
    case GT__OP_MAX_POOL2D:               /* the places of the maxima */
    case GT__OP_MAX_POOL2D_RELU_BACKWARD: /* the bias's gradient */
        return 2;
    case GT__OP_BATCH_NORM: /* the statistics */
    case GT__OP_BATCH_NORM_RELU:
    case GT__OP_BATCH_NORM_ADD_RELU:
    case GT__OP_LAYER_NORM:
    case GT__OP_CROSS_ENTROPY:
        return 2 | 4;
    case GT__OP_LINEAR_CROSS_ENTROPY: /* logits and sums */
        return 2 | 4;
    case GT__OP_LINEAR_RELU_BACKWARD: /* the gradients of biases */
        return 2 | 4;
    case GT__OP_BIAS_RELU_BACKWARD:
        return 1 | 2;
    case GT__OP_BATCH_NORM_BACKWARD:
    case GT__OP_BATCH_NORM_RELU_BACKWARD:
    case GT__OP_BATCH_NORM_ADD_RELU_BACKWARD:
    case GT__OP_LAYER_NORM_BACKWARD:
        return 1 | 2 | 4 | 8;
    default:
        return 0;
    }
}

typedef struct sweep {
    gt__program *program;
    const gt__flow *flow;
    bool *wanted; /* buffers that an instruction further on reads */
} sweep;

static bool is_wanted(const sweep *s, const gt__touch *t) { return t->area >= s->program->n_buffers || s->wanted[t->area]; }

/* The functions of a custom op may do what nobody sees here, and every run begins with the inputs. */
static bool keeps_itself(const gt__instruction *n) {
    return n->kind == GT__DO_MOVES || n->kind == GT__DO_CUSTOM_BACKWARD || (n->kind == GT__DO_CALL && n->call->call.op == GT__OP_CUSTOM);
}

static bool needed(const sweep *s, int32_t i) {
    if (keeps_itself(&s->program->list[i])) return true;
    for (int32_t t = s->flow->first[i]; t < s->flow->first[i + 1]; ++t)
        if (s->flow->touches[t].access.writes && is_wanted(s, &s->flow->touches[t])) return true;
    return false;
}

/* The output of the call that the touch is; -1: none. */
static int32_t output_of(const gt__call *call, const gt__touch *t) {
    for (int32_t k = 0; k < call->n_out; ++k)
        if (call->out[k] && t->access.place == (void *)&call->out[k]->data) return k;
    return -1;
}

static void drop_outputs(const sweep *s, int32_t i) {
    gt__instruction *n = &s->program->list[i];
    if (n->kind != GT__DO_CALL) return;
    gt__call *call = &n->call->call;
    for (int32_t t = s->flow->first[i]; t < s->flow->first[i + 1]; ++t) {
        const gt__touch *touch = &s->flow->touches[t];
        int32_t k = is_wanted(s, touch) ? -1 : output_of(call, touch);
        if (k >= 0 && !touch->access.reads && (gt__optional_outputs(call->op) >> k & 1)) call->out[k] = NULL;
    }
}

static bool overwrites_all(const sweep *s, const gt__touch *t) {
    if (t->area >= s->program->n_buffers || !t->access.writes) return false;
    const gt__buffer *b = &s->program->buffers[t->area];
    return gt__touch_begin(t) == b->address && t->access.bytes >= b->bytes;
}

/* What is both written and read is wanted before. */
static void step_over(const sweep *s, int32_t i) {
    const gt__flow *f = s->flow;
    for (int32_t t = f->first[i]; t < f->first[i + 1]; ++t)
        if (overwrites_all(s, &f->touches[t])) s->wanted[f->touches[t].area] = false;
    for (int32_t t = f->first[i]; t < f->first[i + 1]; ++t)
        if (f->touches[t].access.reads && f->touches[t].area < s->program->n_buffers) s->wanted[f->touches[t].area] = true;
}

gt_status gt__pass_dead(gt__program *program) {
    gt__flow flow;
    GT_TRY(gt__flow_make(program, &flow));
    bool *drop = gt__calloc((size_t)program->count + (size_t)program->n_buffers + 1, sizeof *drop);
    gt_status status = drop ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    if (drop) {
        const sweep s = {program, &flow, drop + program->count};
        for (int32_t i = program->count - 1; i >= 0; --i) {
            drop[i] = !needed(&s, i);
            if (drop[i]) continue;
            drop_outputs(&s, i);
            step_over(&s, i);
        }
        gt__program_remove(program, drop);
    }
    gt__free(drop);
    gt__flow_free(&flow);
    return status;
}

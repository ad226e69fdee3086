/* A network's first convolution needs no gradient for its input, so that nobody but its weight gradient reads what relu's gradient makes: both become one call, which reads
 * what flows back once and writes nothing of that size. */
#include "step/passes.h"

static gt__call *call_at(gt__program *program, int32_t i, gt__op_id op) {
    gt__instruction *n = &program->list[i];
    return n->kind == GT__DO_CALL && n->call->call.op == op ? &n->call->call : NULL;
}

/* Those that have a kernel of their own (cuda/k_conv_few.cu). */
static bool is_small(const gt__call *weight) {
    const gt__meta *dw = &weight->out[0]->meta;
    return weight->attr.conv.groups == 1 && weight->attr.conv.dilation[0] == 1 && weight->attr.conv.dilation[1] == 1 && dw->shape[1] <= 4 &&
           dw->shape[1] * dw->shape[2] * dw->shape[3] <= 36;
}

typedef struct looking {
    uintptr_t begin, end;
    int32_t touches;
} looking;

static void look(void *user, const gt__access *access) {
    looking *l = user;
    uintptr_t begin = (uintptr_t)access->pointer;
    l->touches += begin < l->end && begin + access->bytes > l->begin;
}

static int32_t touches(gt__program *program, int32_t from, int32_t to, const gt_tensor *t) {
    uintptr_t begin = (uintptr_t)t->data;
    looking l = {.begin = begin, .end = begin + (size_t)t->meta.numel * gt_dtype_size(t->meta.dtype)};
    for (int32_t i = from; i < to; ++i) gt__instruction_visit(&program->list[i], look, &l);
    return l.touches;
}

static gt_status join(gt__program *program, int32_t relu, int32_t weight) {
    const gt__call *r = &program->list[relu].call->call, *w = &program->list[weight].call->call;
    enum { INPUTS = 3, OUTPUTS = 2 };
    const gt_tensor *in[INPUTS] = {r->in[0], r->in[1], w->in[1]}, *out[OUTPUTS] = {w->out[0], r->out[1]};
    gt__traced_call *made = gt__calloc(1, sizeof *made + (INPUTS + OUTPUTS) * sizeof(gt_tensor) + INPUTS * sizeof(gt_tensor *));
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    made->call = *w;
    made->call.op = GT__OP_CONV2D_RELU_BACKWARD_WEIGHT;
    made->call.n_in = INPUTS;
    made->call.n_out = OUTPUTS;
    made->tensors = (gt_tensor *)(made + 1);
    made->in = (gt_tensor **)(made->tensors + INPUTS + OUTPUTS);
    made->call.in = made->in;
    for (int32_t k = 0; k < INPUTS; ++k) {
        made->tensors[k] = *in[k];
        made->in[k] = &made->tensors[k];
    }
    memset(made->call.out, 0, sizeof made->call.out);
    for (int32_t k = 0; k < OUTPUTS; ++k) {
        if (out[k]) made->tensors[INPUTS + k] = *out[k];
        made->call.out[k] = out[k] ? &made->tensors[INPUTS + k] : NULL;
    }
    gt__instruction *n = &program->list[relu];
    gt__free(n->memory);
    n->memory = n->call = made;
    gt__instruction_free(&program->list[weight]);
    memmove(program->list + weight, program->list + weight + 1, (size_t)(program->count - weight - 1) * sizeof *program->list);
    program->count--;
    return GT_OK;
}

static bool fits(gt__program *program, int32_t relu, int32_t weight) {
    const gt__call *r = call_at(program, relu, GT__OP_BIAS_RELU_BACKWARD), *w = call_at(program, weight, GT__OP_CONV2D_BACKWARD_WEIGHT);
    if (r == NULL || w == NULL || r->out[0] == NULL || r->out[0]->data != w->in[0]->data || !is_small(w)) return false;
    if (r->in[0]->meta.ndim != 4 || w->out[0]->meta.dtype != gt__dtype_accumulate(r->in[0]->meta.dtype)) return false;
    if (w->attr.conv.accumulate || (r->out[1] && r->out[1]->meta.dtype != w->out[0]->meta.dtype)) return false;
    bool alone = gt__is_traced(r->out[0]->data) && touches(program, 0, program->count, r->out[0]) == 2;
    return alone && touches(program, relu, weight, w->out[0]) == 0;
}

gt_status gt__pass_first_conv(gt__program *program) {
    for (int32_t relu = 0; relu < program->count; ++relu) {
        if (call_at(program, relu, GT__OP_BIAS_RELU_BACKWARD) == NULL) continue;
        for (int32_t weight = relu + 1; weight < program->count; ++weight) {
            if (!fits(program, relu, weight)) continue;
            GT_TRY(join(program, relu, weight));
            break;
        }
    }
    return GT_OK;
}

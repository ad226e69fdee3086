/* Elementwise calls whose result takes the place of an input that nobody needs after them: the two buffers become one. Every element is written after it was
 * read, by whom it was read, so that results are the same. */
#include "step/flow.h"
#include "step/passes.h"

/* Inputs over which the output of `replacing_output` may be written, in kernels of all devices. */
static uint32_t replaceable_inputs(gt__op_id op) {
    switch (op) {
    case GT__OP_ADD:
    case GT__OP_SUB:
    case GT__OP_MUL:
    case GT__OP_DIV:
    case GT__OP_MAXIMUM:
    case GT__OP_MINIMUM:
    case GT__OP_EQUAL:
    case GT__OP_GREATER:
    case GT__OP_TANH_BACKWARD:
    case GT__OP_SIGMOID_BACKWARD:
    case GT__OP_RELU_BACKWARD:
    case GT__OP_GELU_BACKWARD:
    case GT__OP_GELU_TANH_BACKWARD:
    case GT__OP_SILU_BACKWARD:
    case GT__OP_BIAS_RELU_BACKWARD: /* dz over dy or y; the bias's gradient is summed in passing */
    case GT__OP_SOFTMAX_BACKWARD:   /* a row is summed before it is written */
    case GT__OP_LOG_SOFTMAX_BACKWARD:
        return 1 | 2;
    case GT__OP_NEG:
    case GT__OP_ABS:
    case GT__OP_SIGN:
    case GT__OP_SQUARE:
    case GT__OP_SQRT:
    case GT__OP_EXP:
    case GT__OP_LOG:
    case GT__OP_TANH:
    case GT__OP_SIGMOID:
    case GT__OP_RELU:
    case GT__OP_GELU:
    case GT__OP_GELU_TANH:
    case GT__OP_SILU:
    case GT__OP_ADD_SCALAR:
    case GT__OP_MUL_SCALAR:
    case GT__OP_POW_SCALAR:
    case GT__OP_DROPOUT:
    case GT__OP_SOFTMAX:
    case GT__OP_LOG_SOFTMAX:
        return 1;
    case GT__OP_CROSS_ENTROPY_BACKWARD: /* the logits */
    case GT__OP_CROSS_ENTROPY_BOTH:     /* their gradient is made when all else is */
        return 2;
    default:
        return 0;
    }
}

static int32_t replacing_output(gt__op_id op) { return op == GT__OP_CROSS_ENTROPY_BOTH ? 3 : 0; }

static const gt__touch *touch_of(const gt__flow *flow, int32_t i, const gt_tensor *t) {
    for (int32_t k = flow->first[i]; t && k < flow->first[i + 1]; ++k)
        if (flow->touches[k].access.place == (const void *)&t->data) return &flow->touches[k];
    return NULL;
}

/* All that the call reads of this memory it reads as `in` lies. */
static bool read_alike(const gt__flow *flow, const gt__call *call, int32_t i, const gt_tensor *in, int32_t area) {
    for (int32_t k = 0; k < call->n_in; ++k) {
        const gt__touch *t = touch_of(flow, i, call->in[k]);
        if (t == NULL || t->area != area) continue;
        if (call->in[k]->data != in->data || !gt__meta_same_layout(&call->in[k]->meta, &in->meta)) return false;
    }
    return true;
}

static bool fits(const gt__program *program, const gt__flow *flow, int32_t i, const gt_tensor *in, const gt_tensor *out) {
    const gt__touch *from = touch_of(flow, i, in), *to = touch_of(flow, i, out);
    if (from == NULL || to == NULL || from->area >= program->n_buffers || to->area >= program->n_buffers || from->area == to->area)
        return false;
    int32_t last = gt__flow_count(flow, from->area) - 1;
    return in->meta.dtype == out->meta.dtype && gt__meta_is_dense(&in->meta) && gt__meta_same_layout(&in->meta, &out->meta) &&
           (uintptr_t)in->data % GT__BUFFER_ALIGNMENT == 0 && !program->buffers[to->area].input && !to->access.reads &&
           gt__flow_touch(flow, to->area, 0)->instruction == i && gt__flow_touch(flow, from->area, last)->instruction == i &&
           gt__flow_area_within(flow, to->area, gt__touch_begin(to), gt__touch_end(to)) &&
           read_alike(flow, &program->list[i].call->call, i, in, from->area);
}

static const gt__touch *touch_at(const gt__flow *flow, int32_t i, const void *place) {
    for (int32_t k = flow->first[i]; k < flow->first[i + 1]; ++k)
        if (flow->touches[k].access.place == place) return &flow->touches[k];
    return NULL;
}

/* How many touches of instruction i are in the area. */
static int32_t touches_in(const gt__flow *flow, int32_t i, int32_t area) {
    int32_t n = 0;
    for (int32_t k = flow->first[i]; k < flow->first[i + 1]; ++k) n += flow->touches[k].area == area;
    return n;
}

static bool chain_fits(const gt__program *program, const gt__flow *flow, int32_t i, int32_t in, int32_t out) {
    const gt__chain *c = program->list[i].chain;
    const gt__touch *from = touch_at(flow, i, &c->inputs[in].data), *to = touch_at(flow, i, &c->outputs[out].data);
    if (from == NULL || to == NULL || from->area >= program->n_buffers || to->area >= program->n_buffers || from->area == to->area)
        return false;
    int32_t last = gt__flow_count(flow, from->area) - 1;
    return c->inputs[in].dtype == c->nodes[c->outputs[out].node].dtype && gt__chain_input_is_whole(c, in) &&
           gt__touch_begin(from) % GT__BUFFER_ALIGNMENT == 0 && !program->buffers[to->area].input &&
           gt__flow_touch(flow, to->area, 0)->instruction == i && gt__flow_touch(flow, from->area, last)->instruction == i &&
           touches_in(flow, i, from->area) == 1 && gt__flow_area_within(flow, to->area, gt__touch_begin(to), gt__touch_end(to));
}

static void chain_in_place(const gt__program *program, gt__flow *flow, int32_t i) {
    const gt__chain *c = program->list[i].chain;
    uint32_t taken = 0;
    for (int32_t out = 0; out < c->n_outputs; ++out) {
        for (int32_t in = 0; in < c->n_inputs; ++in) {
            if (taken >> in & 1 || !chain_fits(program, flow, i, in, out)) continue;
            gt__flow_move(flow, touch_at(flow, i, &c->outputs[out].data)->area, c->outputs[out].data, c->inputs[in].data);
            taken |= 1u << in;
            break;
        }
    }
}

gt_status gt__pass_inplace(gt__program *program) {
    gt__flow flow;
    GT_TRY(gt__flow_make(program, &flow));
    for (int32_t i = 0; i < program->count; ++i) {
        if (program->list[i].kind == GT__DO_CHAIN) chain_in_place(program, &flow, i);
        const gt__call *call = program->list[i].kind == GT__DO_CALL ? &program->list[i].call->call : NULL;
        uint32_t inputs = call ? replaceable_inputs(call->op) : 0;
        gt_tensor *out = call ? call->out[replacing_output(call->op)] : NULL;
        for (int32_t j = 0; inputs >> j && j < call->n_in; ++j) {
            if ((inputs >> j & 1) == 0 || !fits(program, &flow, i, call->in[j], out)) continue;
            gt__flow_move(&flow, touch_of(&flow, i, out)->area, out->data, call->in[j]->data);
            break;
        }
    }
    gt__flow_free(&flow);
    return GT_OK;
}

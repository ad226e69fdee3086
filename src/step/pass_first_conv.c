/* A network's first convolution needs no gradient for its input, so that nobody but its weight gradient reads what relu's gradient makes: both become one call, which reads
 * what flows back once and writes nothing of that size. */
#include "step/calls.h"
#include "step/passes.h"

/* Those that have a kernel of their own (cuda/k_conv_few.cu). */
static bool is_small(const gt__call *weight) {
    const gt__meta *dw = &weight->out[0]->meta;
    return weight->attr.conv.groups == 1 && weight->attr.conv.dilation[0] == 1 && weight->attr.conv.dilation[1] == 1 && dw->shape[1] <= 4 &&
           dw->shape[1] * dw->shape[2] * dw->shape[3] <= 36;
}

static gt_status join(gt__program *program, int32_t relu, int32_t weight) {
    const gt__call *r = &program->list[relu].call->call, *w = &program->list[weight].call->call;
    const gt_tensor *in[] = {r->in[0], r->in[1], w->in[1]}, *out[] = {w->out[0], r->out[1]};
    GT_TRY(gt__call_replace(&program->list[relu], GT__OP_CONV2D_RELU_BACKWARD_WEIGHT, w, in, 3, out, 2));
    gt__program_drop(program, weight);
    return GT_OK;
}

static bool fits(gt__program *program, int32_t relu, int32_t weight) {
    const gt__call *r = gt__call_at(program, relu, GT__OP_BIAS_RELU_BACKWARD),
                   *w = gt__call_at(program, weight, GT__OP_CONV2D_BACKWARD_WEIGHT);
    if (r == NULL || w == NULL || r->out[0] == NULL || r->out[0]->data != w->in[0]->data || !is_small(w)) return false;
    if (r->in[0]->meta.ndim != 4 || w->out[0]->meta.dtype != gt__dtype_accumulate(r->in[0]->meta.dtype)) return false;
    if (w->attr.conv.accumulate || (r->out[1] && r->out[1]->meta.dtype != w->out[0]->meta.dtype)) return false;
    bool alone = gt__is_traced(r->out[0]->data) && gt__uses_of(program, 0, program->count, r->out[0]).count == 2;
    return alone && gt__uses_of(program, relu, weight, w->out[0]).count == 0;
}

gt_status gt__pass_first_conv(gt__program *program) {
    for (int32_t relu = 0; relu < program->count; ++relu) {
        if (gt__call_at(program, relu, GT__OP_BIAS_RELU_BACKWARD) == NULL) continue;
        for (int32_t weight = relu + 1; weight < program->count; ++weight) {
            if (!fits(program, relu, weight)) continue;
            GT_TRY(join(program, relu, weight));
            break;
        }
    }
    return GT_OK;
}

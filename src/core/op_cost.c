#include "core/op_cost.h"

typedef struct flops_rule {
    uint64_t (*flops)(const gt__call *call, uint64_t each);
    uint64_t each; /* flops an element, or a term that the function knows */
    bool matrix;
} flops_rule;

/* --- metas ---------------------------------------------------------------------------------------------------------------------------------- */

static const gt__meta *in_meta(const gt__call *call, int32_t k) { return k < call->n_in && call->in[k] ? &call->in[k]->meta : NULL; }

/* Of output k, wanted or not: what has not run yet has no outputs. */
static const gt__meta *out_meta(const gt__call *call, int32_t k) { return call->out[k] ? &call->out[k]->meta : &call->meta[k]; }

static bool has_run(const gt__call *call) {
    for (int32_t k = 0; k < call->n_out; ++k)
        if (call->out[k]) return true;
    return false;
}

static uint64_t count_of(const gt__meta *meta) { return meta ? (uint64_t)meta->numel : 0; }

/* Bytes of the elements that are there: axes with a stride of 0 repeat them, and windows that overlap share them. */
static uint64_t bytes_of(const gt__meta *meta) {
    if (meta == NULL || meta->numel == 0) return 0;
    uint64_t elements = 1, last = 0;
    for (int32_t i = 0; i < meta->ndim; ++i) {
        if (meta->strides[i] != 0) elements *= (uint64_t)meta->shape[i];
        last += (uint64_t)((meta->shape[i] - 1) * meta->strides[i]);
    }
    return GT__MIN(elements, last + 1) * gt_dtype_size(meta->dtype);
}

/* --- flops: functions of the table ------------------------------------------------------------------------------------------------------------ */

static uint64_t no_flops(const gt__call *call, uint64_t each) {
    (void)call;
    return each;
}

static uint64_t each_output(const gt__call *call, uint64_t each) { return each * count_of(out_meta(call, 0)); }
static uint64_t each_input(const gt__call *call, uint64_t each) { return each * count_of(in_meta(call, 0)); }

/* (dloss, logits, …) */
static uint64_t each_logit(const gt__call *call, uint64_t each) { return each * count_of(in_meta(call, 1)); }

/* (dloss, x [N,K], w [C,K], …): the product with its bias, cross-entropy and its gradient, the sum of that. */
static uint64_t linear_cross_entropy(const gt__call *call, uint64_t each) {
    const gt__meta *x = in_meta(call, 1), *w = in_meta(call, 2);
    if (x == NULL || w == NULL || x->ndim == 0 || w->ndim == 0) return 0;
    return count_of(x) * 2 * (uint64_t)w->shape[0] + (each + 2) * (uint64_t)x->shape[0] * (uint64_t)w->shape[0];
}

/* (dy [N,C], w [C,K], y) */
static uint64_t linear_relu_backward(const gt__call *call, uint64_t each) {
    const gt__meta *w = in_meta(call, 1), *y = in_meta(call, 2);
    return w == NULL || w->ndim == 0 ? 0 : count_of(y) * (2 * (uint64_t)w->shape[0] + each);
}

static uint64_t mean(const gt__call *call, uint64_t each) { return each_input(call, each) + each_output(call, 1); }

/* Terms of `meta`'s last axis that make an element of the output. */
static uint64_t products(const gt__call *call, const gt__meta *meta) {
    if (meta == NULL || meta->ndim == 0) return 0;
    return 2 * (uint64_t)meta->shape[meta->ndim - 1] * count_of(out_meta(call, 0));
}

/* What follows the sums of a product: the bias, and the activation's `each`. */
static uint64_t epilogue(const gt__call *call, uint64_t each) { return each_output(call, (in_meta(call, 2) != NULL) + each); }

static uint64_t matmul(const gt__call *call, uint64_t each) {
    (void)each;
    return products(call, in_meta(call, 0));
}

enum { GELU = 5, GELU_TANH = 9, SIGMOID = 4, SILU = 4 };

static uint64_t activation(gt_activation kind) { return kind == GT_ACTIVATION_RELU; }

static uint64_t linear(const gt__call *call, uint64_t each) {
    return products(call, in_meta(call, 0)) + epilogue(call, each ? each : activation(call->attr.linear.activation));
}

/* (dz [M,N], x [M,K]) */
static uint64_t linear_backward_weight(const gt__call *call, uint64_t each) {
    const gt__meta *dz = in_meta(call, 0);
    if (dz == NULL || dz->ndim == 0) return 0;
    return 2 * (uint64_t)dz->shape[0] * count_of(out_meta(call, 0)) + (call->attr.linear.accumulate ? each_output(call, each) : 0);
}

/* Elements of one filter of a weight [filters, channels, height, width]. */
static uint64_t filter(const gt__meta *w) {
    return w && w->ndim == 4 ? (uint64_t)w->shape[1] * (uint64_t)w->shape[2] * (uint64_t)w->shape[3] : 0;
}

static uint64_t conv2d(const gt__call *call, uint64_t each) {
    return each_output(call, 2 * filter(in_meta(call, 1))) + epilogue(call, each ? each : activation(call->attr.conv.activation));
}

static uint64_t conv2d_backward_input(const gt__call *call, uint64_t each) {
    (void)each;
    return each_input(call, 2 * filter(in_meta(call, 1)));
}

static uint64_t conv2d_backward_weight(const gt__call *call, uint64_t each) {
    return each_input(call, 2 * filter(out_meta(call, 0))) + (call->attr.conv.accumulate ? each_output(call, each) : 0);
}

/* (dy, y, x) of conv2d_relu: the mask and the bias's sum besides. */
static uint64_t conv2d_relu_backward_weight(const gt__call *call, uint64_t each) {
    uint64_t added = call->out[0] && call->attr.conv.accumulate ? each_output(call, each) : 0;
    return each_input(call, 2 * filter(out_meta(call, 0)) + 2) + added;
}

static uint64_t window(const gt__call *call) { return (uint64_t)(call->attr.pool.kernel[0] * call->attr.pool.kernel[1]); }

static uint64_t pool_forward(const gt__call *call, uint64_t each) { return each_output(call, window(call) + each); }

static uint64_t avg_pool_backward(const gt__call *call, uint64_t each) { return each_input(call, window(call) + each); }

/* Sum of the lengths of an adaptive pool's windows along one axis of `from` places, cut into `to`. */
static uint64_t adaptive_lengths(int64_t from, int64_t to) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < to; ++i) sum += (uint64_t)(((i + 1) * from + to - 1) / to - i * from / to);
    return sum;
}

/* `x` and `y` are the large and the small image. */
static uint64_t adaptive(const gt__meta *x, const gt__meta *y, uint64_t each) {
    if (x == NULL || y == NULL || x->ndim != 4 || y->ndim != 4) return 0;
    uint64_t planes = (uint64_t)x->shape[0] * (uint64_t)x->shape[1];
    return planes * adaptive_lengths(x->shape[2], y->shape[2]) * adaptive_lengths(x->shape[3], y->shape[3]) + each * count_of(y);
}

static uint64_t adaptive_forward(const gt__call *call, uint64_t each) { return adaptive(in_meta(call, 0), out_meta(call, 0), each); }
static uint64_t adaptive_backward(const gt__call *call, uint64_t each) { return adaptive(out_meta(call, 0), in_meta(call, 0), each); }

/* `each`: relu's and the residual's, beside normalising. Statistics: the mean, then the squares of differences. */
enum { NORM_STATISTICS = 4, NORM_APPLY = 4, NORM_BACKWARD = 11 };

static uint64_t batch_norm(const gt__call *call, uint64_t each) {
    return each_output(call, NORM_APPLY + each + (call->attr.norm.training ? NORM_STATISTICS : 0));
}

/* With a second gradient: the sum of both. */
static uint64_t batch_norm_backward(const gt__call *call, uint64_t each) {
    int32_t second = call->op == GT__OP_BATCH_NORM_BACKWARD ? 5 : 6;
    return each_input(call, each + (in_meta(call, second) != NULL));
}

static uint64_t batch_norm_apply(const gt__call *call, uint64_t each) {
    return each_output(call, each + activation(call->attr.norm.activation));
}

/* --- the table --------------------------------------------------------------------------------------------------------------------------------- */

static const flops_rule rules[GT__OP_COUNT] = {
    [GT__OP_ADD] = {each_output, 1, false},
    [GT__OP_SUB] = {each_output, 1, false},
    [GT__OP_MUL] = {each_output, 1, false},
    [GT__OP_DIV] = {each_output, 1, false},
    [GT__OP_MAXIMUM] = {each_output, 1, false},
    [GT__OP_MINIMUM] = {each_output, 1, false},
    [GT__OP_EQUAL] = {each_output, 1, false},
    [GT__OP_GREATER] = {each_output, 1, false},
    [GT__OP_NEG] = {each_output, 1, false},
    [GT__OP_ABS] = {each_output, 1, false},
    [GT__OP_SIGN] = {each_output, 1, false},
    [GT__OP_SQUARE] = {each_output, 1, false},
    [GT__OP_SQRT] = {each_output, 1, false},
    [GT__OP_EXP] = {each_output, 1, false},
    [GT__OP_LOG] = {each_output, 1, false},
    [GT__OP_TANH] = {each_output, 1, false},
    [GT__OP_SIGMOID] = {each_output, SIGMOID, false}, /* 1 / (1 + exp(-x)) */
    [GT__OP_RELU] = {each_output, 1, false},
    [GT__OP_GELU] = {each_output, GELU, false},           /* 0.5 x (1 + erf(c x)) */
    [GT__OP_GELU_TANH] = {each_output, GELU_TANH, false}, /* 0.5 x (1 + tanh(a x (1 + b x x))) */
    [GT__OP_SILU] = {each_output, SILU, false},           /* x / (1 + exp(-x)) */
    [GT__OP_ADD_SCALAR] = {each_output, 1, false},
    [GT__OP_MUL_SCALAR] = {each_output, 1, false},
    [GT__OP_POW_SCALAR] = {each_output, 1, false},
    [GT__OP_DROPOUT] = {each_output, 1, false},
    [GT__OP_TANH_BACKWARD] = {each_output, 3, false},
    [GT__OP_SIGMOID_BACKWARD] = {each_output, 3, false},
    [GT__OP_RELU_BACKWARD] = {each_output, 1, false},
    [GT__OP_GELU_BACKWARD] = {each_output, 11, false},      /* dy (0.5 (1 + erf(c x)) + a x exp(-0.5 x x)) */
    [GT__OP_GELU_TANH_BACKWARD] = {each_output, 18, false}, /* dy (0.5 (1 + t) + 0.5 x (1 - t t) (a + d x x)), t = tanh(…) */
    [GT__OP_SILU_BACKWARD] = {each_output, 8, false},       /* s = 1 / (1 + exp(-x)): dy s (1 + x (1 - s)) */
    [GT__OP_CAST] = {no_flops, 0, false},
    [GT__OP_COPY] = {no_flops, 0, false},
    [GT__OP_FILL] = {no_flops, 0, false},
    [GT__OP_UNIFORM] = {no_flops, 0, false},
    [GT__OP_NORMAL] = {no_flops, 0, false},
    [GT__OP_ARANGE] = {each_output, 2, false},
    [GT__OP_RESHAPE] = {no_flops, 0, false},
    [GT__OP_PERMUTE] = {no_flops, 0, false},
    [GT__OP_EXPAND] = {no_flops, 0, false},
    [GT__OP_SLICE] = {no_flops, 0, false},
    [GT__OP_AS_STRIDED] = {no_flops, 0, false},
    [GT__OP_COPY_INTO] = {no_flops, 0, false},
    [GT__OP_SLICE_BACKWARD] = {no_flops, 0, false},
    [GT__OP_CONCAT] = {no_flops, 0, false},
    [GT__OP_PAD] = {no_flops, 0, false},
    [GT__OP_SUM] = {each_input, 1, false},
    [GT__OP_MEAN] = {mean, 1, false},
    [GT__OP_MAX] = {each_input, 1, false},
    [GT__OP_ARGMAX] = {each_input, 1, false},
    [GT__OP_MATMUL] = {matmul, 0, true},
    [GT__OP_LINEAR] = {linear, 0, true},
    [GT__OP_LINEAR_RELU] = {linear, 1, true},
    [GT__OP_LINEAR_BACKWARD_WEIGHT] = {linear_backward_weight, 1, true},
    [GT__OP_BIAS_RELU_BACKWARD] = {each_input, 2, false}, /* the mask and the sum */
    [GT__OP_CONV2D] = {conv2d, 0, true},
    [GT__OP_CONV2D_RELU] = {conv2d, 1, true},
    [GT__OP_CONV2D_BACKWARD_INPUT] = {conv2d_backward_input, 0, true},
    [GT__OP_CONV2D_BACKWARD_WEIGHT] = {conv2d_backward_weight, 1, true},
    [GT__OP_CONV2D_RELU_BACKWARD_WEIGHT] = {conv2d_relu_backward_weight, 1, true},
    [GT__OP_MAX_POOL2D] = {pool_forward, 0, false},
    [GT__OP_MAX_POOL2D_BACKWARD] = {each_input, 1, false},
    [GT__OP_MAX_POOL2D_RELU_BACKWARD] = {each_input, 3, false}, /* the mask and the sum besides */
    [GT__OP_AVG_POOL2D] = {pool_forward, 1, false},
    [GT__OP_AVG_POOL2D_BACKWARD] = {avg_pool_backward, 1, false},
    [GT__OP_ADAPTIVE_AVG_POOL2D] = {adaptive_forward, 1, false},
    [GT__OP_ADAPTIVE_AVG_POOL2D_BACKWARD] = {adaptive_backward, 1, false},
    [GT__OP_BATCH_NORM] = {batch_norm, 0, false},
    [GT__OP_BATCH_NORM_BACKWARD] = {batch_norm_backward, NORM_BACKWARD, false},
    [GT__OP_BATCH_NORM_RELU] = {batch_norm, 1, false},
    [GT__OP_BATCH_NORM_ADD_RELU] = {batch_norm, 2, false},
    [GT__OP_BATCH_NORM_RELU_BACKWARD] = {batch_norm_backward, NORM_BACKWARD + 1, false},
    [GT__OP_BATCH_NORM_ADD_RELU_BACKWARD] = {batch_norm_backward, NORM_BACKWARD + 1, false},
    [GT__OP_BATCH_NORM_APPLY] = {batch_norm_apply, NORM_APPLY, false},
    [GT__OP_LAYER_NORM] = {each_output, NORM_STATISTICS + NORM_APPLY, false},
    [GT__OP_LAYER_NORM_BACKWARD] = {each_input, NORM_BACKWARD, false},
    [GT__OP_SOFTMAX] = {each_input, 5, false}, /* maximum, difference, exp, sum, quotient */
    [GT__OP_SOFTMAX_BACKWARD] = {each_input, 4, false},
    [GT__OP_LOG_SOFTMAX] = {each_input, 5, false},
    [GT__OP_LOG_SOFTMAX_BACKWARD] = {each_input, 4, false},
    [GT__OP_CROSS_ENTROPY] = {each_input, 4, false}, /* maximum, difference, exp, sum */
    [GT__OP_CROSS_ENTROPY_BOTH] = {each_logit, 8, false},
    [GT__OP_LINEAR_CROSS_ENTROPY] = {linear_cross_entropy, 8, true},
    [GT__OP_LINEAR_RELU_BACKWARD] = {linear_relu_backward, 2, true},
    [GT__OP_CROSS_ENTROPY_BACKWARD] = {each_output, 4, false},
    [GT__OP_EMBEDDING] = {no_flops, 0, false},
    [GT__OP_EMBEDDING_BACKWARD] = {each_input, 1, false},
    [GT__OP_CHECKPOINT] = {no_flops, 0, false},
    [GT__OP_CUSTOM] = {no_flops, 0, false},
};

bool gt__op_has_cost(gt__op_id op) { return rules[op].flops != NULL; }

/* --- bytes -------------------------------------------------------------------------------------------------------------------------------------- */

/* Kernels that add to their output read it first. */
static bool adds_to_output(const gt__call *call) {
    if (call->op == GT__OP_LINEAR_BACKWARD_WEIGHT) return call->attr.linear.accumulate != 0;
    return call->op == GT__OP_CONV2D_BACKWARD_WEIGHT && call->attr.conv.accumulate != 0;
}

/* Running statistics of batch norm in training are written too. */
static bool writes_input(const gt__call *call, int32_t k) {
    bool norm = call->op == GT__OP_BATCH_NORM || call->op == GT__OP_BATCH_NORM_RELU || call->op == GT__OP_BATCH_NORM_ADD_RELU;
    return norm && call->attr.norm.training && (k == 3 || k == 4);
}

static uint64_t call_bytes(const gt__call *call) {
    const bool run = has_run(call);
    uint64_t bytes = 0;
    for (int32_t k = 0; k < call->n_in; ++k) {
        uint64_t of = bytes_of(in_meta(call, k));
        if (call->op == GT__OP_EMBEDDING && k == 0) of = GT__MIN(of, bytes_of(out_meta(call, 0))); /* the rows looked up */
        bytes += writes_input(call, k) ? 2 * of : of;
    }
    for (int32_t k = 0; k < call->n_out; ++k) {
        if (run && call->out[k] == NULL) continue; /* not wanted */
        uint64_t of = bytes_of(out_meta(call, k));
        bytes += adds_to_output(call) ? 2 * of : of;
    }
    return bytes;
}

void gt__op_cost(const gt__call *call, gt__cost *cost) {
    const flops_rule *r = &rules[call->op];
    *cost = (gt__cost){0};
    if (r->flops == NULL || gt__op_table[call->op].layout == GT__LAYOUT_VIEW) return;
    cost->flops = r->flops(call, r->each);
    cost->matrix = r->matrix;
    cost->bytes = call_bytes(call);
}

/* Results that stay inside are not moved. */
void gt__chain_cost(const gt__chain *chain, gt__cost *cost) {
    const uint64_t n = (uint64_t)chain->n;
    *cost = (gt__cost){0};
    for (int32_t k = 0; k < chain->n_inputs; ++k) cost->bytes += gt__chain_input_bytes(&chain->inputs[k]);
    for (int32_t k = 0; k < chain->n_nodes; ++k) cost->flops += n * rules[chain->nodes[k].op].each;
    for (int32_t k = 0; k < chain->n_outputs; ++k)
        if (chain->outputs[k].data) cost->bytes += n * gt_dtype_size(chain->nodes[chain->outputs[k].node].dtype);
    if (chain->sum.data == NULL) return;
    cost->bytes += (uint64_t)chain->sum.kept * gt_dtype_size(chain->sum.dtype);
    cost->flops += n + (chain->sum.mean ? (uint64_t)chain->sum.kept : 0);
}

/* --- the backend's other functions -------------------------------------------------------------------------------------------------------------- */

static uint64_t update_flops(const gt__update_rule *rule, const gt__update *u) {
    uint64_t decay = rule->weight_decay != 0 ? 2 : 0;
    if (u->state1)
        return decay + 13; /* Adam: the moments 3 and 4, the root 1, its correction and epsilon 2, the quotient 1, the weight 2 */
    if (u->state0 == NULL) return decay + 2;
    return decay + 4 + (rule->dampening != 0) + (rule->nesterov ? 2 : 0);
}

void gt__update_cost(const gt__update_rule *rule, const gt__update *list, int32_t count, bool control, gt__cost *cost) {
    *cost = (gt__cost){0};
    for (int32_t i = 0; i < count; ++i) {
        const gt__update *u = &list[i];
        const bool is_double = u->param_dtype == GT_DTYPE_F64;
        const uint64_t n = (uint64_t)u->count, param = gt_dtype_size(u->param_dtype), state = is_double ? 8 : 4;
        uint64_t each = gt_dtype_size(u->grad_dtype) + (u->master ? 2 * sizeof(float) + param : 2 * param);
        each += (u->state0 ? 2 * state : 0) + (u->state1 ? 2 * state : 0) + (u->half ? gt_dtype_size(u->half_dtype) : 0);
        cost->bytes += n * each;
        cost->flops += n * (update_flops(rule, u) + control);
    }
}

void gt__grads_cost(const gt__grad_list_item *list, int32_t count, uint64_t each, bool writes, gt__cost *cost) {
    *cost = (gt__cost){0};
    for (int32_t i = 0; i < count; ++i) {
        cost->bytes += (uint64_t)list[i].count * gt_dtype_size(list[i].dtype) * (writes ? 2 : 1);
        cost->flops += (uint64_t)list[i].count * each;
    }
}

void gt__copies_cost(const gt__copy_item *list, int32_t count, gt__cost *cost) {
    *cost = (gt__cost){0};
    for (int32_t i = 0; i < count; ++i) cost->bytes += 2 * (uint64_t)list[i].bytes;
}

#include "io/onnx_nets.h"

#include <string.h>

gt_module *module_of(gt_context *ctx, gt_nn_forward_fn forward, int32_t n_inputs) {
    gt_nn_custom_options o;
    if (gt_nn_custom_options_init(&o, sizeof o) != GT_OK) return NULL;
    o.n_inputs = n_inputs;
    o.forward = forward;
    return gt_nn_custom(ctx, &o);
}

/* --- networks ---------------------------------------------------------------------------------------------------------------------------------- */

static gt_module *make_mlp(gt_context *ctx) {
    gt_module *layers[] = {
        gt_nn_linear(ctx, 20, 32, NULL), gt_nn_relu(ctx),    gt_nn_dropout(ctx, 0.5),
        gt_nn_linear(ctx, 32, 16, NULL), gt_nn_gelu(ctx, 0), gt_nn_identity(ctx),
        gt_nn_linear(ctx, 16, 10, NULL),
    };
    return gt_nn_sequential_from(ctx, layers, 7);
}

/* That of examples/cnn.c, on smaller images. */
static gt_module *make_cnn(gt_context *ctx) {
    gt_module *layers[] = {
        gt_nn_conv2d(ctx, 1, 32, 3, NULL),
        gt_nn_relu(ctx),
        gt_nn_conv2d(ctx, 32, 64, 3, NULL),
        gt_nn_relu(ctx),
        gt_nn_max_pool2d(ctx, 2, NULL),
        gt_nn_dropout(ctx, 0.25),
        gt_nn_flatten(ctx, 1),
        gt_nn_linear(ctx, 64 * 4 * 4, 128, NULL),
        gt_nn_relu(ctx),
        gt_nn_dropout(ctx, 0.5),
        gt_nn_linear(ctx, 128, 10, NULL),
    };
    return gt_nn_sequential_from(ctx, layers, 11);
}

/* Statistics that are not those of a new network. */
static gt_module *run_in(gt_context *ctx, gt_module *m, int64_t size) {
    const int64_t shape[4] = {4, 3, size, size};
    if (m == NULL || gt_scope_begin(ctx) != GT_OK) return NULL;
    gt_tensor *x = gt_tensor_uniform(ctx, GT_DTYPE_F32, 4, shape, -1, 1), *y = NULL;
    for (int i = 0; i < 3; ++i) y = gt_module_forward(m, x);
    (void)gt_scope_end(ctx);
    if (y) return m;
    gt_module_destroy(m);
    return NULL;
}

static gt_module *make_resnet18(gt_context *ctx) { return run_in(ctx, gt_nn_resnet18(ctx, 10), 32); }
static gt_module *make_resnet50(gt_context *ctx) { return run_in(ctx, gt_nn_resnet50(ctx, 10), 32); }

/* A transformer's block on tokens [N,T]: positions that are expanded to the batch, causal attention of two heads, a mean over time. */
enum { T = 6, WIDTH = 16, HEADS = 2, HEAD = WIDTH / HEADS };

static gt_tensor *heads_of(gt_tensor *x, int64_t batch) {
    const int64_t shape[4] = {batch, T, HEADS, HEAD};
    return gt_transpose(gt_reshape(x, 4, shape), 1, 2);
}

static gt_tensor *causal_mask(gt_context *ctx) {
    float mask[T * T];
    for (int i = 0; i < T; ++i)
        for (int k = 0; k < T; ++k) mask[i * T + k] = k > i ? -1e4f : 0;
    const int64_t shape[2] = {T, T};
    return gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, shape, mask, sizeof mask);
}

static gt_tensor *child(gt_module *m, const char *name, gt_tensor *x) {
    gt_module *found;
    return gt_module_find_module(m, name, &found) == GT_OK ? gt_module_forward(found, x) : NULL;
}

static gt_tensor *transformer(void *user, gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)user, (void)n;
    gt_context *ctx = gt_module_context(m);
    int64_t batch = gt_tensor_size(in[0], 0);
    const int64_t full[3] = {batch, T, WIDTH}, joined[3] = {batch, T, WIDTH};
    gt_tensor *position;
    if (gt_module_find(m, "position", &position) != GT_OK) return NULL;
    gt_tensor *x = gt_add(child(m, "tokens", in[0]), gt_expand(position, 3, full));
    gt_tensor *y = child(m, "norm", x);
    gt_tensor *q = heads_of(child(m, "q", y), batch), *k = heads_of(child(m, "k", y), batch), *v = heads_of(child(m, "v", y), batch);
    gt_tensor *scores = gt_mul_scalar(gt_matmul(q, gt_transpose(k, 2, 3)), 0.35355339);
    gt_tensor *attention = gt_softmax(gt_add(scores, causal_mask(ctx)), -1);
    x = gt_add(x, child(m, "out", gt_reshape(gt_transpose(gt_matmul(attention, v), 1, 2), 3, joined)));
    const int32_t time[1] = {1};
    return child(m, "head", gt_mean(x, time, 1, 0));
}

static gt_module *make_transformer(gt_context *ctx) {
    gt_module *m = module_of(ctx, transformer, 1);
    const int64_t position[2] = {T, WIDTH}, width = WIDTH;
    gt_tensor *p = gt_tensor_uniform(ctx, GT_DTYPE_F32, 2, position, -1, 1);
    gt_status status = gt_module_add_parameter(m, "position", p, 0);
    gt_tensor_release(p);
    if (status == GT_OK) status = gt_module_add_child(m, "tokens", gt_nn_embedding(ctx, 11, WIDTH));
    if (status == GT_OK) status = gt_module_add_child(m, "norm", gt_nn_layer_norm(ctx, 1, &width, NULL));
    const char *const linears[] = {"q", "k", "v", "out"};
    for (int i = 0; i < 4 && status == GT_OK; ++i) status = gt_module_add_child(m, linears[i], gt_nn_linear(ctx, WIDTH, WIDTH, NULL));
    if (status == GT_OK) status = gt_module_add_child(m, "head", gt_nn_linear(ctx, WIDTH, 3, NULL));
    if (status == GT_OK) return m;
    gt_module_destroy(m);
    return NULL;
}

#define F32_IN(lo, hi, rank, ...)                                                                                                          \
    { .dtype = GT_DTYPE_F32, .ndim = (rank), .shape = {__VA_ARGS__}, .low = (lo), .high = (hi) }

const net networks[] = {
    {"mlp", make_mlp, NULL, 1, {F32_IN(-1, 1, 2, 4, 20)}, 0},
    {"cnn", make_cnn, NULL, 1, {F32_IN(0, 1, 4, 3, 1, 12, 12)}, 0},
    {"resnet18", make_resnet18, NULL, 1, {F32_IN(-1, 1, 4, 1, 3, 32, 32)}, 0},
    {"resnet50", make_resnet50, NULL, 1, {F32_IN(-1, 1, 4, 1, 3, 32, 32)}, 0},
    {"transformer", make_transformer, NULL, 1, {{.dtype = GT_DTYPE_I64, .ndim = 2, .shape = {1, T}, .low = 0, .high = 11}}, 0},
};
const int32_t n_networks = sizeof networks / sizeof networks[0];

/* --- one op each --------------------------------------------------------------------------------------------------------------------------------- */

#define OP(name, ...)                                                                                                                      \
    static gt_tensor *name##_forward(void *user, gt_module *m, gt_tensor *const *in, int32_t n) {                                          \
        gt_tensor *x = in[0], *y = in[n - 1];                                                                                              \
        (void)user, (void)m, (void)x, (void)y;                                                                                             \
        return __VA_ARGS__;                                                                                                                \
    }
#define SHAPE(...)                                                                                                                         \
    (const int64_t[]) { __VA_ARGS__ }
#define AXES(...)                                                                                                                          \
    (const int32_t[]) { __VA_ARGS__ }

OP(add, gt_add(x, y))
OP(sub, gt_sub(x, y))
OP(mul, gt_mul(x, y))
OP(div, gt_div(x, y))
OP(maximum, gt_maximum(x, y))
OP(minimum, gt_minimum(x, y))
OP(equal, gt_equal(gt_cast(gt_mul_scalar(x, 2), GT_DTYPE_I32), gt_cast(gt_mul_scalar(y, 2), GT_DTYPE_I32)))
OP(neg, gt_neg(x))
OP(abs, gt_abs(x))
OP(square, gt_square(x))
OP(sqrt, gt_sqrt(x))
OP(exp, gt_exp(x))
OP(log, gt_log(x))
OP(tanh, gt_tanh(x))
OP(sigmoid, gt_sigmoid(x))
OP(relu, gt_relu(x))
OP(gelu, gt_gelu(x))
OP(gelu_tanh, gt_gelu_tanh(x))
OP(silu, gt_silu(x))
OP(add_scalar, gt_add_scalar(x, 0.75))
OP(mul_scalar, gt_mul_scalar(x, -1.25))
OP(pow_scalar, gt_pow_scalar(x, 1.5))
OP(cast, gt_cast(gt_mul_scalar(x, 3), GT_DTYPE_I64))
OP(cast_f64, gt_exp(gt_cast(x, GT_DTYPE_F64)))
OP(contiguous, gt_exp(gt_contiguous(gt_transpose(x, 1, 2))))
OP(channels_last, gt_reshape(gt_channels_last(x), 3, SHAPE(gt_tensor_size(x, 0), 3, 25)))
OP(reshape_joins_batch, gt_reshape(x, 2, SHAPE(-1, 3)))
OP(reshape_copies_batch, gt_exp(gt_reshape(x, 3, SHAPE(gt_tensor_size(x, 0), 2, 6))))
OP(reshape_moves_batch, gt_reshape(gt_transpose(x, 0, 1), 3, SHAPE(2, -1, gt_tensor_size(x, 0))))
OP(reshape_to_itself, gt_reshape(x, 3, gt_tensor_shape(x)))
OP(flatten, gt_flatten(x, 1))
OP(permute, gt_permute(x, AXES(2, 0, 1)))
OP(expand, gt_expand(gt_slice(x, 1, 0, 1, 1), 3, SHAPE(gt_tensor_size(x, 0), 5, 3)))
OP(expand_to_batch, gt_expand(gt_slice(x, 0, 0, 1, 1), 4, SHAPE(2, gt_tensor_size(x, 0) * 3, 4, 3)))
OP(slice, gt_slice(x, 1, 1, 4, 2))
OP(slice_batch, gt_slice(x, 0, 1, INT64_MAX, 1))
OP(slice_batch_end, gt_slice(x, 0, -2, -1, 1))
OP(concat, gt_concat((gt_tensor *const[]){x, gt_neg(x), y}, 3, 1))
OP(concat_batch, gt_concat((gt_tensor *const[]){x, y}, 2, 0))
OP(pad, gt_pad(x, SHAPE(0, 1, 0), SHAPE(0, 2, 1), 0.5))
OP(sum, gt_sum(x, AXES(1, 2), 2, 0))
OP(sum_all, gt_sum(x, NULL, 0, 0))
OP(sum_scalar, gt_sum(gt_sum(x, NULL, 0, 0), NULL, 0, 0))
OP(mean, gt_mean(x, AXES(2), 1, 1))
OP(max, gt_max(x, AXES(0, 2), 2, 0))
OP(argmax, gt_argmax(x, 2, 0))
OP(argmax_keeps, gt_argmax(x, 1, 1))
OP(matmul, gt_matmul(x, gt_transpose(y, 1, 2)))
OP(matmul_broadcast,
   gt_matmul(gt_reshape(x, 4, SHAPE(gt_tensor_size(x, 0), 1, 4, 3)), gt_reshape(gt_slice(x, 0, 0, 2, 1), 3, SHAPE(2, 3, 4))))
OP(linear, gt_linear(x, gt_slice(gt_reshape(y, 2, SHAPE(-1, 3)), 0, 0, 4, 1), NULL))
OP(batch_norm, gt_batch_norm(x, NULL, NULL, gt_mean(x, AXES(0, 2, 3), 3, 0), gt_max(x, AXES(0, 2, 3), 3, 0), 0, 0.1, 1e-3))
OP(batch_norm_relu_1d, gt_batch_norm_activation(gt_reshape(x, 2, SHAPE(-1, 12)), gt_slice(gt_flatten(y, 0), 0, 0, 12, 1),
                                                gt_slice(gt_flatten(y, 0), 0, 12, 24, 1), gt_slice(gt_flatten(x, 0), 0, 0, 12, 1),
                                                gt_abs(gt_slice(gt_flatten(x, 0), 0, 0, 12, 1)), NULL, 0, 0.1, 1e-2, GT_ACTIVATION_RELU))
OP(layer_norm, gt_layer_norm(x, NULL, NULL, 2, 1e-3))
OP(softmax, gt_softmax(x, 1))
OP(log_softmax, gt_log_softmax(x, -1))
OP(adaptive_to_one, gt_adaptive_avg_pool2d(x, 1, 1))
OP(adaptive_even, gt_adaptive_avg_pool2d(gt_slice(gt_slice(x, 2, 0, 4, 1), 3, 0, 4, 1), 2, 4))
OP(constant_result, gt_tensor_full(gt_module_context(m), GT_DTYPE_F32, 1, SHAPE(3), 2.5))
OP(input_result, gt_reshape(x, 3, gt_tensor_shape(x)))

static gt_tensor *conv_forward(void *user, gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)user, (void)n;
    gt_conv2d_options o;
    (void)gt_conv2d_options_init(&o, sizeof o);
    o.stride[0] = 2, o.padding[0] = 1, o.padding[1] = 2, o.dilation[1] = 2, o.groups = 3;
    const float values[24] = {1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12, .5f, -.5f, 2, 1, 0, 3, -3, 1, 1, 2, 2, -1}, bias[3] = {1, 2, -3};
    gt_tensor *w = gt_tensor_from_data(gt_module_context(m), GT_DTYPE_F32, 4, SHAPE(3, 1, 2, 3), values, 18 * sizeof *values);
    gt_tensor *b = gt_tensor_from_data(gt_module_context(m), GT_DTYPE_F32, 1, SHAPE(3), bias, sizeof bias);
    return gt_conv2d(in[0], w, b, &o);
}

static gt_tensor *pools_forward(void *user, gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)user, (void)m, (void)n;
    gt_pool2d_options o;
    (void)gt_pool2d_options_init(&o, sizeof o);
    o.kernel[0] = 3, o.kernel[1] = 2, o.stride[0] = 1, o.stride[1] = 2, o.padding[0] = 1, o.padding[1] = 1;
    gt_tensor *a = gt_max_pool2d(in[0], &o), *b = gt_avg_pool2d(in[0], &o);
    o.count_include_pad = 0;
    return gt_concat((gt_tensor *const[]){a, b, gt_avg_pool2d(in[0], &o)}, 3, 1);
}

/* An autocast region in a forward: casts of weights and inputs. */
static gt_tensor *autocast_forward(void *user, gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)user, (void)n;
    gt_context *ctx = gt_module_context(m);
    if (gt_autocast_begin(ctx, GT_DTYPE_F16) != GT_OK) return NULL;
    gt_tensor *y = gt_softmax(gt_matmul(in[0], gt_transpose(in[0], 1, 2)), -1);
    (void)gt_autocast_end(ctx);
    return gt_sum(gt_mul(y, y), AXES(1), 1, 0);
}

#define CUBE(lo, hi) F32_IN(lo, hi, 3, 3, 4, 3)
#define ONE(name)                                                                                                                          \
    { #name, NULL, name##_forward, 1, {CUBE(-2, 2) }, 0 }
#define POSITIVE(name)                                                                                                                     \
    { #name, NULL, name##_forward, 1, {CUBE(0.1, 2) }, 0 }
#define TWO(name)                                                                                                                          \
    { #name, NULL, name##_forward, 2, {CUBE(-2, 2), CUBE(0.5, 2) }, 0 }
#define BROADCAST(name)                                                                                                                    \
    { #name, NULL, name##_forward, 2, {CUBE(-2, 2), F32_IN(0.5, 2, 3, 3, 1, 3) }, 0 }
#define IMAGE(name)                                                                                                                        \
    { #name, NULL, name##_forward, 1, {F32_IN(0.1, 2, 4, 3, 3, 5, 5) }, 0 }

#define IMAGE_F32(name)                                                                                                                    \
    { #name, NULL, name##_forward, 1, {F32_IN(0.1, 2, 4, 3, 3, 5, 5) }, 1 }
#define TWO_F32(name)                                                                                                                      \
    { #name, NULL, name##_forward, 2, {CUBE(-2, 2), CUBE(0.5, 2) }, 1 }

const net op_nets[] = {
    BROADCAST(add),
    BROADCAST(sub),
    BROADCAST(mul),
    BROADCAST(div),
    BROADCAST(maximum),
    BROADCAST(minimum),
    TWO(equal),
    ONE(neg),
    ONE(abs),
    ONE(square),
    POSITIVE(sqrt),
    ONE(exp),
    POSITIVE(log),
    ONE(tanh),
    ONE(sigmoid),
    ONE(relu),
    ONE(gelu),
    ONE(gelu_tanh),
    ONE(silu),
    ONE(add_scalar),
    ONE(mul_scalar),
    POSITIVE(pow_scalar),
    ONE(cast),
    ONE(cast_f64),
    ONE(contiguous),
    IMAGE(channels_last),
    ONE(reshape_joins_batch),
    ONE(reshape_copies_batch),
    ONE(reshape_moves_batch),
    ONE(reshape_to_itself),
    ONE(flatten),
    ONE(permute),
    ONE(expand),
    ONE(expand_to_batch),
    ONE(slice),
    ONE(slice_batch),
    ONE(slice_batch_end),
    TWO(concat),
    TWO(concat_batch),
    ONE(pad),
    ONE(sum),
    ONE(sum_all),
    ONE(sum_scalar),
    ONE(mean),
    ONE(max),
    ONE(argmax),
    ONE(argmax_keeps),
    TWO(matmul),
    ONE(matmul_broadcast),
    TWO(linear),
    IMAGE_F32(batch_norm),
    TWO_F32(batch_norm_relu_1d),
    ONE(layer_norm),
    ONE(softmax),
    ONE(log_softmax),
    IMAGE(adaptive_to_one),
    IMAGE(adaptive_even),
    ONE(constant_result),
    ONE(input_result),
    IMAGE_F32(conv),
    IMAGE(pools),
    ONE(autocast),
};
const int32_t n_op_nets = sizeof op_nets / sizeof op_nets[0];

/* --- making them ---------------------------------------------------------------------------------------------------------------------------------- */

const net *net_named(const char *name) {
    for (int32_t i = 0; i < n_networks; ++i)
        if (strcmp(networks[i].name, name) == 0) return &networks[i];
    for (int32_t i = 0; i < n_op_nets; ++i)
        if (strcmp(op_nets[i].name, name) == 0) return &op_nets[i];
    return NULL;
}

gt_module *net_make(const net *n, gt_context *ctx) { return n->make ? n->make(ctx) : module_of(ctx, n->forward, n->n_inputs); }

gt_tensor *net_input_make(const net *n, int32_t k, gt_context *ctx, int64_t rows) {
    const net_input *in = &n->inputs[k];
    int64_t shape[GT_MAX_DIMS];
    memcpy(shape, in->shape, sizeof shape);
    if (rows > 0) shape[0] = rows;
    gt_tensor *x = gt_tensor_uniform(ctx, GT_DTYPE_F32, in->ndim, shape, in->low, in->high);
    return in->dtype == GT_DTYPE_F32 ? x : gt_cast(x, in->dtype);
}

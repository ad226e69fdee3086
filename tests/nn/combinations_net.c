#include "combinations_net.h"

typedef struct builder {
    gt_context *ctx;
    dice d;
    const net_plan *plan;
    net_kind kind; /* of what the layers are given now; tokens are [N, T, width] */
    int64_t width, extent;
} builder;

static gt_module *conv(builder *b, int64_t out, int64_t kernel) {
    gt_nn_conv2d_options o;
    if (gt_nn_conv2d_options_init(&o, sizeof o) != GT_OK) return NULL;
    o.bias = chance(&b->d, 50);
    o.padding[0] = o.padding[1] = kernel / 2;
    gt_module *m = gt_nn_conv2d(b->ctx, b->width, out, kernel, &o);
    b->width = out;
    return m;
}

static gt_module *product(builder *b, int64_t out) {
    if (b->kind == NET_IMAGE) return conv(b, out, chance(&b->d, 70) ? 3 : 1);
    gt_nn_linear_options o;
    if (gt_nn_linear_options_init(&o, sizeof o) != GT_OK) return NULL;
    o.bias = chance(&b->d, 70);
    gt_module *m = gt_nn_linear(b->ctx, b->width, out, &o);
    b->width = out;
    return m;
}

static gt_module *norm(builder *b) {
    if (b->kind != NET_TOKENS && !b->plan->plain && (b->kind == NET_IMAGE || chance(&b->d, 60)))
        return gt_nn_batch_norm(b->ctx, b->width, NULL);
    if (b->plan->plain && b->kind == NET_IMAGE && b->extent < 4) return gt_nn_tanh(b->ctx); /* of two values a norm makes a step */
    if (b->kind == NET_IMAGE) return gt_nn_layer_norm(b->ctx, 1, &b->extent, NULL);
    return gt_nn_layer_norm(b->ctx, 1, &b->width, NULL);
}

static gt_module *activation(builder *b) {
    switch (below(&b->d, 7)) {
    case 0:
        return gt_nn_gelu(b->ctx, (int32_t)below(&b->d, 2));
    case 1:
        return gt_nn_tanh(b->ctx);
    case 2:
        return gt_nn_silu(b->ctx);
    default:
        return gt_nn_relu(b->ctx);
    }
}

static int64_t some_width(builder *b) { return b->plan->large && b->kind == NET_IMAGE ? 8 : 4 + 4 * below(&b->d, 3); }

/* --- modules of the test's own ------------------------------------------------------------------------------------------------------------ */

/* y = x |x| on the CPU, by way of pointers. */
static gt_status signed_square(const gt_custom_call *call) {
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;
    int64_t n = 1;
    for (int32_t i = 0; i < call->inputs[0].ndim; i++) n *= call->inputs[0].shape[i];
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * fabsf(x[i]);
    return GT_OK;
}

static gt_status signed_square_backward(const gt_custom_call *call) {
    const float *x = call->inputs[0].data, *dy = call->output_grads[0].data;
    float *dx = call->input_grads[0].data;
    int64_t n = 1;
    for (int32_t i = 0; i < call->inputs[0].ndim; i++) n *= call->inputs[0].shape[i];
    for (int64_t i = 0; i < n && dx; i++) dx[i] = 2 * fabsf(x[i]) * dy[i];
    return GT_OK;
}

static gt_tensor *square_forward(void *user, gt_module *module, gt_tensor *const *in, int32_t count) {
    (void)user;
    (void)count;
    gt_dtype dtype = gt_tensor_dtype(in[0]);
    gt_tensor *x = gt_tanh(gt_cast(in[0], GT_DTYPE_F32)), *y = NULL;
    if (gt_context_device(gt_module_context(module)) != GT_DEVICE_CPU) return gt_cast(gt_mul(x, gt_abs(x)), dtype);
    gt_custom_op_options o;
    if (x == NULL || gt_custom_op_options_init(&o, sizeof o) != GT_OK) return NULL;
    o.name = "signed_square";
    o.forward = signed_square;
    o.backward = signed_square_backward;
    o.saves_outputs = 0;
    return gt_custom_op_call(&o, &x, 1, &y) == GT_OK ? gt_cast(y, dtype) : NULL;
}

/* a sigmoid(b) + scale b */
static gt_tensor *join_forward(void *user, gt_module *module, gt_tensor *const *in, int32_t count) {
    (void)user;
    gt_tensor *scale = NULL;
    if (count != 2 || gt_module_find(module, "scale", &scale) != GT_OK) return NULL;
    return gt_add(gt_mul(in[0], gt_sigmoid(in[1])), gt_mul(in[1], scale));
}

enum { BRANCH_DISABLES = 1, BRANCH_NESTS = 2, BRANCH_DETACHES = 4 };

static gt_module *child(gt_module *module, int32_t index) {
    gt_module *found = NULL;
    return gt_module_child(module, index, NULL, &found) == GT_OK ? found : NULL;
}

/* join(left(x), right(x)): the right one without autocast, or in bf16, or what it makes twice and once without its history. */
static gt_tensor *branch_forward(void *user, gt_module *module, gt_tensor *const *in, int32_t count) {
    (void)count;
    int flags = (int)(intptr_t)user;
    gt_context *ctx = gt_module_context(module);
    gt_module *right = child(module, 1);
    gt_tensor *x = in[0], *weight = NULL, *pair[2] = {gt_module_forward(child(module, 0), x), NULL};
    if (pair[0] == NULL || gt_module_parameter(right, 0, NULL, &weight) != GT_OK) return NULL;
    if (flags & BRANCH_DISABLES) {
        if (gt_autocast_disable(ctx) != GT_OK) return NULL;
        x = gt_cast(x, gt_tensor_dtype(weight));
    } else if (flags & BRANCH_NESTS && gt_autocast_dtype(ctx) != GT_DTYPE_F32) {
        if (gt_autocast_begin(ctx, GT_DTYPE_BF16) != GT_OK) return NULL;
    } else {
        flags &= ~(BRANCH_NESTS | BRANCH_DISABLES);
    }
    pair[1] = gt_module_forward(right, x);
    if (pair[1] == NULL) return NULL; /* what was opened is closed by the module */
    if (flags & (BRANCH_DISABLES | BRANCH_NESTS) && gt_autocast_end(ctx) != GT_OK) return NULL;
    if (flags & BRANCH_DETACHES) pair[1] = gt_add(pair[1], gt_tensor_detach(pair[1]));
    return pair[1] ? gt_module_forward_many(child(module, 2), pair, 2) : NULL;
}

static gt_module *custom(builder *b, const char *kind, gt_nn_forward_fn forward, int32_t n_inputs, int flags) {
    gt_nn_custom_options o;
    if (gt_nn_custom_options_init(&o, sizeof o) != GT_OK) return NULL;
    o.kind = kind;
    o.n_inputs = n_inputs;
    o.forward = forward;
    o.user = (void *)(intptr_t)flags;
    return gt_nn_custom(b->ctx, &o);
}

static gt_module *block(builder *b, int64_t out, int depth);

static gt_module *branch(builder *b, int depth) {
    gt_module *m = custom(b, "Branch", branch_forward, 1, (int)below(&b->d, 8));
    gt_module *join = custom(b, "Join", join_forward, 2, 0);
    int64_t before = b->width;
    gt_tensor *scale = gt_tensor_full(b->ctx, GT_DTYPE_F32, 0, NULL, 0.5);
    int ok = m && join && scale && gt_module_add_parameter(join, "scale", scale, 0) == GT_OK;
    gt_tensor_release(scale);
    gt_module *left = block(b, before, depth + 1), *right = block(b, before, depth + 1);
    ok = gt_module_add_child(m, "left", left) == GT_OK && ok;
    ok = gt_module_add_child(m, "right", right) == GT_OK && ok;
    ok = gt_module_add_child(m, "join", join) == GT_OK && ok;
    if (ok) return m;
    gt_module_destroy(m);
    return NULL;
}

/* --- layers ----------------------------------------------------------------------------------------------------------------------------------- */

/* A product, perhaps a norm, perhaps an activation: a sequential. */
static gt_module *block(builder *b, int64_t out, int depth) {
    gt_module *s = gt_nn_sequential(b->ctx);
    (void)gt_nn_sequential_add(s, product(b, out));
    int32_t more = depth < 3 ? (int32_t)below(&b->d, 4) : 1;
    for (int32_t i = 0; i < more; i++) (void)gt_nn_sequential_add(s, chance(&b->d, 50) ? norm(b) : activation(b));
    if (depth < 2 && chance(&b->d, 30)) (void)gt_nn_sequential_add(s, product(b, out));
    return s;
}

static gt_module *residual(builder *b, int depth) {
    gt_nn_residual_options o;
    if (gt_nn_residual_options_init(&o, sizeof o) != GT_OK) return NULL;
    o.activation = (gt_activation)chance(&b->d, 60);
    int64_t in = b->width, out = chance(&b->d, 50) ? in : some_width(b);
    gt_module *body = block(b, out, depth + 1), *shortcut;
    if (chance(&b->d, 60)) (void)gt_nn_sequential_add(body, norm(b));
    b->width = in;
    if (in == out && chance(&b->d, 60)) {
        shortcut = chance(&b->d, 70) || b->plan->plain ? gt_nn_identity(b->ctx) : gt_nn_dropout(b->ctx, 0.3);
    } else {
        shortcut = gt_nn_sequential(b->ctx);
        (void)gt_nn_sequential_add(shortcut, b->kind == NET_IMAGE ? conv(b, out, 1) : product(b, out));
        if (chance(&b->d, 50)) (void)gt_nn_sequential_add(shortcut, norm(b));
    }
    return gt_nn_residual(body, shortcut, &o);
}

static gt_module *pooling(builder *b) {
    b->extent /= 2;
    return chance(&b->d, 50) ? gt_nn_max_pool2d(b->ctx, 2, NULL) : gt_nn_avg_pool2d(b->ctx, 2, NULL);
}

static void add_layers(builder *b, gt_module *s, int32_t count, int depth) {
    for (int32_t i = 0; i < count; i++) {
        gt_module *layer;
        switch (below(&b->d, 11)) {
        case 0:
        case 1:
            layer = product(b, some_width(b));
            break;
        case 2:
        case 3:
            (void)gt_nn_sequential_add(s, norm(b));
            layer = activation(b);
            break;
        case 4:
            layer = activation(b);
            break;
        case 5:
            layer = b->plan->plain ? activation(b) : gt_nn_dropout(b->ctx, 0.25);
            break;
        case 6:
            layer = b->kind == NET_IMAGE && b->extent >= 4 && !b->plan->large ? pooling(b) : norm(b);
            break;
        case 7:
        case 8:
            layer = residual(b, depth);
            break;
        case 9:
            if (depth >= 2) {
                layer = block(b, some_width(b), depth);
                break;
            }
            layer = gt_nn_sequential(b->ctx);
            add_layers(b, layer, 1 + (int32_t)below(&b->d, 4), depth + 1);
            break;
        default:
            layer = b->plan->plain      ? product(b, some_width(b))
                    : chance(&b->d, 60) ? branch(b, depth)
                                        : custom(b, "Square", square_forward, 1, 0);
            break;
        }
        (void)gt_nn_sequential_add(s, layer);
    }
}

gt_module *random_net(gt_context *ctx, const net_plan *plan) {
    builder b = {.ctx = ctx, .d = {plan->seed}, .plan = plan, .kind = plan->kind, .width = plan->width, .extent = plan->extent};
    gt_module *s = gt_nn_sequential(ctx);
    if (b.kind == NET_TOKENS) (void)gt_nn_sequential_add(s, gt_nn_embedding(ctx, 11, b.width));
    add_layers(&b, s, 2 + (int32_t)below(&b.d, 6), 0);
    if (b.kind == NET_IMAGE && plan->large) {
        (void)gt_nn_sequential_add(s, gt_nn_adaptive_avg_pool2d(ctx, 2, 2));
        b.extent = 2;
    }
    int64_t features = b.kind == NET_IMAGE ? b.width * b.extent * b.extent : b.kind == NET_TOKENS ? b.width * b.extent : b.width;
    if (b.kind != NET_VECTOR) (void)gt_nn_sequential_add(s, gt_nn_flatten(ctx, 1));
    (void)gt_nn_sequential_add(s, gt_nn_linear(ctx, features, plan->classes, NULL));
    if (gt_module_check(s) == GT_OK) return s;
    gt_module_destroy(s);
    return NULL;
}

gt_tensor *random_input(gt_context *ctx, const net_plan *plan, dice *d, int64_t rows) {
    int64_t shape[4] = {rows, plan->width, plan->extent, plan->extent};
    int32_t ndim = plan->kind == NET_IMAGE ? 4 : 2;
    if (plan->kind == NET_TOKENS) shape[1] = plan->extent;
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; i++) n *= shape[i];
    int32_t *indices = malloc((size_t)n * 4);
    float *values = (float *)(void *)indices;
    for (int64_t i = 0; i < n; i++) {
        if (plan->kind == NET_TOKENS)
            indices[i] = (int32_t)below(d, 11);
        else
            values[i] = (float)(below(d, 2001) - 1000) / 500.0f;
    }
    gt_tensor *x = gt_tensor_from_data(ctx, plan->kind == NET_TOKENS ? GT_DTYPE_I32 : GT_DTYPE_F32, ndim, shape, indices, (size_t)n * 4);
    free(indices);
    return x;
}

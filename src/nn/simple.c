/* Layers without parameters: activations, pooling, dropout, flatten. */
#include "nn/module.h"

#include <math.h>

/* --- identity */
static gt_tensor *identity_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)m, (void)n;
    return gt__scope_add(gt_tensor_retain(in[0]));
}

static const gt__module_kind identity_kind = {.name = "Identity", .n_inputs = 1, .forward = identity_forward};

gt_module *gt_nn_identity(gt_context *ctx) { return gt__module_new(ctx, &identity_kind); }

/* --- activations */
#define ACTIVATION(constructor, linkage, kind, title, op)                                                                                  \
    static gt_tensor *kind##_forward(gt_module *m, gt_tensor *const *in, int32_t n) {                                                      \
        (void)m, (void)n;                                                                                                                  \
        return op(in[0]);                                                                                                                  \
    }                                                                                                                                      \
    linkage const gt__module_kind kind = {.name = title, .n_inputs = 1, .forward = kind##_forward};                                        \
    gt_module *constructor(gt_context *ctx) { return gt__module_new(ctx, &kind); }

ACTIVATION(gt_nn_relu, /* looked for by sequential */, gt__relu_kind, "ReLU", gt_relu)
ACTIVATION(gt_nn_silu, static, silu_kind, "SiLU", gt_silu)
ACTIVATION(gt_nn_tanh, static, tanh_kind, "Tanh", gt_tanh)
ACTIVATION(gt_nn_sigmoid, static, sigmoid_kind, "Sigmoid", gt_sigmoid)

typedef struct gelu_state {
    int32_t tanh_approximation;
} gelu_state;

static gt_tensor *gelu_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    const gelu_state *s = gt__module_state(m);
    return s->tanh_approximation ? gt_gelu_tanh(in[0]) : gt_gelu(in[0]);
}

static gt_status gelu_describe(const gt_module *m, gt__text *text) {
    const gelu_state *s = gt__module_state(m);
    return gt__text_add(text, "approximate='%s'", s->tanh_approximation ? "tanh" : "none");
}

static const gt__module_kind gelu_kind = {
    .name = "GELU", .n_inputs = 1, .state_size = sizeof(gelu_state), .forward = gelu_forward, .describe = gelu_describe};

gt_module *gt_nn_gelu(gt_context *ctx, int32_t tanh_approximation) {
    gt_module *m = gt__module_new(ctx, &gelu_kind);
    if (m) ((gelu_state *)gt__module_state(m))->tanh_approximation = tanh_approximation != 0;
    return m;
}

/* --- pooling. What does not fit an input is refused by the op when it runs; what fits no input, here. */
static gt_tensor *max_pool2d_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    return gt_max_pool2d(in[0], gt__module_state(m));
}

static gt_tensor *avg_pool2d_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    return gt_avg_pool2d(in[0], gt__module_state(m));
}

static gt_status pool2d_describe(const gt_module *m, gt__text *text) {
    const gt_pool2d_options *o = gt__module_state(m);
    return gt__text_add(text, "kernel_size=(%lld, %lld), stride=(%lld, %lld), padding=(%lld, %lld)", (long long)o->kernel[0],
                        (long long)o->kernel[1], (long long)o->stride[0], (long long)o->stride[1], (long long)o->padding[0],
                        (long long)o->padding[1]);
}

static const gt__module_kind max_pool2d_kind = {.name = "MaxPool2d",
                                                .n_inputs = 1,
                                                .state_size = sizeof(gt_pool2d_options),
                                                .forward = max_pool2d_forward,
                                                .describe = pool2d_describe};
static const gt__module_kind avg_pool2d_kind = {.name = "AvgPool2d",
                                                .n_inputs = 1,
                                                .state_size = sizeof(gt_pool2d_options),
                                                .forward = avg_pool2d_forward,
                                                .describe = pool2d_describe};

static gt_module *pool2d_new(gt_context *ctx, const gt__module_kind *kind, const char *who, int64_t kernel,
                             const gt_pool2d_options *options) {
    gt_pool2d_options o;
    GT_TRY_NULL(gt_pool2d_options_init(&o, sizeof o));
    if (options) GT_TRY_NULL(gt__options_read(&o, sizeof o, options, "gt_pool2d_options"));
    for (int i = 0; i < 2; ++i) {
        if (o.kernel[i] == 0) o.kernel[i] = kernel;
        if (o.stride[i] == 0) o.stride[i] = o.kernel[i];
        GT_REQUIRE_NULL(o.kernel[i] > 0 && o.stride[i] > 0, GT_BAD_ARGUMENT, "%s: kernel %lld and stride %lld must be at least 1", who,
                        (long long)o.kernel[i], (long long)o.stride[i]);
        GT_REQUIRE_NULL(o.padding[i] >= 0 && o.padding[i] <= o.kernel[i] / 2, GT_BAD_ARGUMENT,
                        "%s: padding %lld must be 0 to half the kernel's %lld", who, (long long)o.padding[i], (long long)o.kernel[i]);
    }
    gt_module *m = gt__module_new(ctx, kind);
    if (m) *(gt_pool2d_options *)gt__module_state(m) = o;
    return m;
}

gt_module *gt_nn_max_pool2d(gt_context *ctx, int64_t kernel, const gt_pool2d_options *options) {
    return pool2d_new(ctx, &max_pool2d_kind, "max_pool2d", kernel, options);
}

gt_module *gt_nn_avg_pool2d(gt_context *ctx, int64_t kernel, const gt_pool2d_options *options) {
    return pool2d_new(ctx, &avg_pool2d_kind, "avg_pool2d", kernel, options);
}

typedef struct adaptive_state {
    int64_t height, width;
} adaptive_state;

static gt_tensor *adaptive_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    const adaptive_state *s = gt__module_state(m);
    return gt_adaptive_avg_pool2d(in[0], s->height, s->width);
}

static gt_status adaptive_describe(const gt_module *m, gt__text *text) {
    const adaptive_state *s = gt__module_state(m);
    return gt__text_add(text, "output_size=(%lld, %lld)", (long long)s->height, (long long)s->width);
}

static const gt__module_kind adaptive_kind = {.name = "AdaptiveAvgPool2d",
                                              .n_inputs = 1,
                                              .state_size = sizeof(adaptive_state),
                                              .forward = adaptive_forward,
                                              .describe = adaptive_describe};

gt_module *gt_nn_adaptive_avg_pool2d(gt_context *ctx, int64_t height, int64_t width) {
    GT_REQUIRE_NULL(height > 0 && width > 0, GT_BAD_ARGUMENT, "adaptive_avg_pool2d: an output of %lld by %lld; both must be at least 1",
                    (long long)height, (long long)width);
    gt_module *m = gt__module_new(ctx, &adaptive_kind);
    if (m) *(adaptive_state *)gt__module_state(m) = (adaptive_state){height, width};
    return m;
}

/* --- dropout */
typedef struct dropout_state {
    double probability;
} dropout_state;

static gt_tensor *dropout_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    const dropout_state *s = gt__module_state(m);
    return gt_dropout(in[0], s->probability, m->training);
}

static gt_status dropout_describe(const gt_module *m, gt__text *text) {
    char number[32];
    const dropout_state *s = gt__module_state(m);
    return gt__text_add(text, "p=%s", gt__number_text(number, sizeof number, s->probability));
}

static const gt__module_kind dropout_kind = {
    .name = "Dropout", .n_inputs = 1, .state_size = sizeof(dropout_state), .forward = dropout_forward, .describe = dropout_describe};

gt_module *gt_nn_dropout(gt_context *ctx, double probability) {
    GT_REQUIRE_NULL(probability >= 0 && probability <= 1, GT_BAD_ARGUMENT, "dropout: the probability %g is outside [0, 1]", probability);
    gt_module *m = gt__module_new(ctx, &dropout_kind);
    if (m) ((dropout_state *)gt__module_state(m))->probability = probability;
    return m;
}

/* --- flatten */
typedef struct flatten_state {
    int32_t start_axis;
} flatten_state;

static gt_tensor *flatten_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    const flatten_state *s = gt__module_state(m);
    return gt_flatten(in[0], s->start_axis);
}

static gt_status flatten_describe(const gt_module *m, gt__text *text) {
    const flatten_state *s = gt__module_state(m);
    return gt__text_add(text, "start_dim=%d, end_dim=-1", s->start_axis);
}

static const gt__module_kind flatten_kind = {
    .name = "Flatten", .n_inputs = 1, .state_size = sizeof(flatten_state), .forward = flatten_forward, .describe = flatten_describe};

gt_module *gt_nn_flatten(gt_context *ctx, int32_t start_axis) {
    GT_REQUIRE_NULL(start_axis >= -GT_MAX_DIMS && start_axis < GT_MAX_DIMS, GT_BAD_ARGUMENT,
                    "flatten: start_axis is %d; it must be %d to %d", start_axis, -GT_MAX_DIMS, GT_MAX_DIMS - 1);
    gt_module *m = gt__module_new(ctx, &flatten_kind);
    if (m) ((flatten_state *)gt__module_state(m))->start_axis = start_axis;
    return m;
}

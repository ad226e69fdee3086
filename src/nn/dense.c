/* Layers with weight matrices: linear, conv2d, embedding. */
#include "nn/module.h"

#include <math.h>

/* All dimensions that a caller gives must be positive. */
static gt_status positive(const char *who, const char *what, int64_t value) {
    GT_REQUIRE(value > 0, GT_BAD_ARGUMENT, "%s: %s is %lld; it must be at least 1", who, what, (long long)value);
    return GT_OK;
}

/* kaiming_uniform with a = sqrt(5), PyTorch's default for linear and convolution, is U(-1/sqrt(fan_in), 1/sqrt(fan_in)). */
static gt_status init_default(gt_module *m, double fan_in) {
    double bound = 1.0 / sqrt(fan_in);
    for (int32_t i = 0; i < m->n_slots; ++i) GT_TRY(gt_nn_init_uniform(m->slots[i].tensor, -bound, bound));
    return GT_OK;
}

static gt_tensor *slot(const gt_module *m, int32_t index) { return index < m->n_slots ? m->slots[index].tensor : NULL; }

/* --- linear: weight, then bias if it has one */
typedef struct linear_state {
    int64_t in, out;
} linear_state;

gt_status gt_nn_linear_options_init(gt_nn_linear_options *options, size_t size) {
    gt_nn_linear_options defaults = {.struct_size = sizeof defaults, .bias = 1};
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_nn_linear_options");
}

gt_tensor *gt__linear_run(gt_module *m, gt_tensor *x, gt_activation activation) {
    return gt_linear_activation(x, slot(m, 0), slot(m, 1), activation);
}

static gt_tensor *linear_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    return gt__linear_run(m, in[0], GT_ACTIVATION_NONE);
}

static gt_status linear_describe(const gt_module *m, gt__text *text) {
    const linear_state *s = gt__module_state(m);
    return gt__text_add(text, "in_features=%lld, out_features=%lld, bias=%s", (long long)s->in, (long long)s->out,
                        slot(m, 1) ? "True" : "False");
}

const gt__module_kind gt__linear_kind = {
    .name = "Linear", .n_inputs = 1, .state_size = sizeof(linear_state), .forward = linear_forward, .describe = linear_describe};

static gt_status linear_build(gt_module *m, int64_t in, int64_t out, bool bias) {
    linear_state *s = gt__module_state(m);
    *s = (linear_state){in, out};
    const int64_t shape[2] = {out, in};
    GT_TRY(gt__module_tensor_new(m, "weight", 0, GT_DTYPE_F32, 2, shape));
    if (bias) GT_TRY(gt__module_tensor_new(m, "bias", 0, GT_DTYPE_F32, 1, shape));
    return init_default(m, (double)in);
}

gt_module *gt_nn_linear(gt_context *ctx, int64_t in_features, int64_t out_features, const gt_nn_linear_options *options) {
    gt_nn_linear_options o;
    GT_TRY_NULL(gt_nn_linear_options_init(&o, sizeof o));
    if (options) GT_TRY_NULL(gt__options_read(&o, sizeof o, options, "gt_nn_linear_options"));
    GT_TRY_NULL(positive("linear", "in_features", in_features));
    GT_TRY_NULL(positive("linear", "out_features", out_features));
    gt_module *m = gt__module_new(ctx, &gt__linear_kind);
    return m ? gt__module_finish(m, linear_build(m, in_features, out_features, o.bias != 0)) : NULL;
}

/* --- conv2d */
typedef struct conv2d_state {
    gt_conv2d_options options;
    int64_t in, out, kernel[2];
} conv2d_state;

gt_status gt_nn_conv2d_options_init(gt_nn_conv2d_options *options, size_t size) {
    gt_nn_conv2d_options defaults = {.struct_size = sizeof defaults, .bias = 1, .stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_nn_conv2d_options");
}

gt_tensor *gt__conv2d_run(gt_module *m, gt_tensor *x, gt_activation activation) {
    gt_conv2d_options options = ((conv2d_state *)gt__module_state(m))->options;
    options.activation = activation;
    return gt_conv2d(x, slot(m, 0), slot(m, 1), &options);
}

static gt_tensor *conv2d_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    return gt__conv2d_run(m, in[0], GT_ACTIVATION_NONE);
}

static gt_status add_pair(gt__text *text, const char *name, const int64_t *pair, int64_t left_out) {
    if (pair[0] == left_out && pair[1] == left_out) return GT_OK;
    return gt__text_add(text, ", %s=(%lld, %lld)", name, (long long)pair[0], (long long)pair[1]);
}

static gt_status conv2d_describe(const gt_module *m, gt__text *text) {
    const conv2d_state *s = gt__module_state(m);
    GT_TRY(gt__text_add(text, "%lld, %lld", (long long)s->in, (long long)s->out));
    GT_TRY(add_pair(text, "kernel_size", s->kernel, -1));
    GT_TRY(add_pair(text, "stride", s->options.stride, -1));
    GT_TRY(add_pair(text, "padding", s->options.padding, 0));
    GT_TRY(add_pair(text, "dilation", s->options.dilation, 1));
    if (s->options.groups != 1) GT_TRY(gt__text_add(text, ", groups=%lld", (long long)s->options.groups));
    return slot(m, 1) ? GT_OK : gt__text_add(text, ", bias=False");
}

const gt__module_kind gt__conv2d_kind = {
    .name = "Conv2d", .n_inputs = 1, .state_size = sizeof(conv2d_state), .forward = conv2d_forward, .describe = conv2d_describe};

static gt_status conv2d_check(int64_t in, int64_t out, const gt_nn_conv2d_options *o) {
    GT_TRY(positive("conv2d", "in_channels", in));
    GT_TRY(positive("conv2d", "out_channels", out));
    GT_TRY(positive("conv2d", "groups", o->groups));
    GT_REQUIRE(in % o->groups == 0 && out % o->groups == 0, GT_BAD_ARGUMENT,
               "conv2d: groups %lld must divide in_channels %lld and out_channels %lld", (long long)o->groups, (long long)in,
               (long long)out);
    for (int i = 0; i < 2; ++i) {
        GT_TRY(positive("conv2d", i ? "kernel width" : "kernel height", o->kernel[i]));
        GT_TRY(positive("conv2d", i ? "horizontal stride" : "vertical stride", o->stride[i]));
        GT_TRY(positive("conv2d", i ? "horizontal dilation" : "vertical dilation", o->dilation[i]));
        GT_REQUIRE(o->padding[i] >= 0, GT_BAD_ARGUMENT, "conv2d: padding [%lld,%lld] must not be negative", (long long)o->padding[0],
                   (long long)o->padding[1]);
    }
    return GT_OK;
}

static gt_status conv2d_build(gt_module *m, int64_t in, int64_t out, const gt_nn_conv2d_options *o) {
    conv2d_state *s = gt__module_state(m);
    GT_TRY(gt_conv2d_options_init(&s->options, sizeof s->options));
    s->in = in;
    s->out = out;
    s->options.groups = o->groups;
    for (int i = 0; i < 2; ++i) {
        s->kernel[i] = o->kernel[i];
        s->options.stride[i] = o->stride[i];
        s->options.padding[i] = o->padding[i];
        s->options.dilation[i] = o->dilation[i];
    }
    const int64_t shape[4] = {out, in / o->groups, o->kernel[0], o->kernel[1]};
    GT_TRY(gt__module_tensor_new(m, "weight", GT__SLOT_CHANNELS_LAST, GT_DTYPE_F32, 4, shape));
    if (o->bias) GT_TRY(gt__module_tensor_new(m, "bias", 0, GT_DTYPE_F32, 1, shape));
    return init_default(m, (double)shape[1] * (double)shape[2] * (double)shape[3]);
}

gt_module *gt_nn_conv2d(gt_context *ctx, int64_t in_channels, int64_t out_channels, int64_t kernel, const gt_nn_conv2d_options *options) {
    gt_nn_conv2d_options o;
    GT_TRY_NULL(gt_nn_conv2d_options_init(&o, sizeof o));
    if (options) GT_TRY_NULL(gt__options_read(&o, sizeof o, options, "gt_nn_conv2d_options"));
    for (int i = 0; i < 2; ++i)
        if (o.kernel[i] == 0) o.kernel[i] = kernel;
    GT_TRY_NULL(conv2d_check(in_channels, out_channels, &o));
    gt_module *m = gt__module_new(ctx, &gt__conv2d_kind);
    return m ? gt__module_finish(m, conv2d_build(m, in_channels, out_channels, &o)) : NULL;
}

/* --- embedding */
static gt_tensor *embedding_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    return gt_embedding(slot(m, 0), in[0]);
}

static gt_status embedding_describe(const gt_module *m, gt__text *text) {
    const int64_t *shape = gt_tensor_shape(slot(m, 0));
    return gt__text_add(text, "%lld, %lld", (long long)shape[0], (long long)shape[1]);
}

static const gt__module_kind embedding_kind = {
    .name = "Embedding", .n_inputs = 1, .forward = embedding_forward, .describe = embedding_describe};

static gt_status embedding_build(gt_module *m, int64_t rows, int64_t width) {
    const int64_t shape[2] = {rows, width};
    GT_TRY(gt__module_tensor_new(m, "weight", 0, GT_DTYPE_F32, 2, shape));
    return gt_nn_init_normal(slot(m, 0), 0, 1);
}

gt_module *gt_nn_embedding(gt_context *ctx, int64_t rows, int64_t width) {
    GT_TRY_NULL(positive("embedding", "rows", rows));
    GT_TRY_NULL(positive("embedding", "width", width));
    gt_module *m = gt__module_new(ctx, &embedding_kind);
    return m ? gt__module_finish(m, embedding_build(m, rows, width)) : NULL;
}

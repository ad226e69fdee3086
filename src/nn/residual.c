/* Residual blocks. Children: the body, then the shortcut if there is one. */
#include "nn/module.h"

typedef struct residual_state {
    gt_activation activation;
} residual_state;

gt_status gt_nn_residual_options_init(gt_nn_residual_options *options, size_t size) {
    gt_nn_residual_options defaults = {
        .struct_size = sizeof defaults, .activation = GT_ACTIVATION_NONE, .body_name = "body", .shortcut_name = "shortcut"};
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_nn_residual_options");
}

/* Where the body ends in a batch norm: the sum and the relu run with that as one op, whatever is checkpointed, since that changes no number. A segment of the norm
 * alone would keep no less. */
static gt_module *last_norm(const gt_module *m) {
    gt_module *last = gt__sequential_last(m->children[0]);
    return last && last->kind == &gt__batch_norm_kind ? last : NULL;
}

static gt_tensor *shortcut_of(gt_module *m, gt_tensor *const *in) {
    return m->n_children > 1 ? gt__module_call(m->children[1], in, 1) : in[0];
}

static gt_tensor *run_norm(gt_module *norm, gt_tensor *x, gt_tensor *residual, gt_activation activation) {
    const char *outer = norm->ctx->module_path;
    if (norm->tag[0]) norm->ctx->module_path = norm->tag;
    gt_tensor *y = gt__module_watch(norm) == GT_OK ? gt__batch_norm_run_with(norm, x, residual, activation) : NULL;
    norm->ctx->module_path = outer;
    return y;
}

static gt_tensor *run_with_norm(gt_module *m, gt_module *norm, gt_tensor *const *in) {
    gt_tensor *x = gt__sequential_run_before_last(m->children[0], in[0]);
    gt_tensor *shortcut = x ? shortcut_of(m, in) : NULL;
    if (shortcut == NULL) return NULL;
    if (shortcut->meta.dtype == x->meta.dtype && gt__meta_same_shape(&shortcut->meta, &x->meta))
        return run_norm(norm, x, shortcut, GT_ACTIVATION_RELU);
    return gt_relu(gt_add(run_norm(norm, x, NULL, GT_ACTIVATION_NONE), shortcut)); /* other dtypes or shapes: they broadcast, or are refused */
}

static gt_tensor *residual_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    const residual_state *s = gt__module_state(m);
    GT_TRY_NULL(gt__scope_begin(m->ctx));
    gt_module *norm = s->activation == GT_ACTIVATION_RELU ? last_norm(m) : NULL;
    if (norm) return gt_scope_return(m->ctx, run_with_norm(m, norm, in));
    gt_tensor *y = gt__module_call(m->children[0], in, 1);
    gt_tensor *shortcut = y ? shortcut_of(m, in) : NULL;
    y = y && shortcut ? gt_add(y, shortcut) : NULL;
    if (y && s->activation == GT_ACTIVATION_RELU) y = gt_relu(y);
    return gt_scope_return(m->ctx, y);
}

static gt_status residual_describe(const gt_module *m, gt__text *text) {
    const residual_state *s = gt__module_state(m);
    return gt__text_add(text, "activation=%s", s->activation == GT_ACTIVATION_RELU ? "ReLU" : "None");
}

static const gt__module_kind residual_kind = {
    .name = "Residual", .n_inputs = 1, .state_size = sizeof(residual_state), .forward = residual_forward, .describe = residual_describe};

static gt_status residual_check(const gt_module *body, const gt_module *shortcut, const gt_nn_residual_options *o) {
    GT_REQUIRE(o->activation == GT_ACTIVATION_NONE || o->activation == GT_ACTIVATION_RELU, GT_BAD_ARGUMENT,
               "residual: activation %d is not one of gt_activation", o->activation);
    GT_REQUIRE(body->n_inputs <= 1 && (shortcut == NULL || shortcut->n_inputs <= 1), GT_BAD_ARGUMENT,
               "residual: the body and the shortcut are given one input each");
    GT_REQUIRE(strchr(o->body_name, '.') == NULL && strchr(o->shortcut_name, '.') == NULL, GT_BAD_ARGUMENT,
               "residual: the names \"%s\" and \"%s\" must have no dots", o->body_name, o->shortcut_name);
    if (shortcut == NULL) return GT_OK;
    GT_REQUIRE(o->shortcut_name[0] && strcmp(o->body_name, o->shortcut_name) != 0, GT_BAD_ARGUMENT,
               "residual: the shortcut's name \"%s\" must not be empty or the body's", o->shortcut_name);
    for (int32_t i = 0; o->body_name[0] == '\0' && i < body->n_children; ++i)
        GT_REQUIRE(strcmp(body->children[i]->name, o->shortcut_name) != 0, GT_BAD_ARGUMENT,
                   "residual: a child of the body has the shortcut's name \"%s\" already", o->shortcut_name);
    return GT_OK;
}

static gt_status residual_build(gt_module **made, gt_module *body, gt_module *shortcut, bool has_shortcut,
                                const gt_nn_residual_options *options) {
    gt_nn_residual_options o;
    GT_TRY(gt_nn_residual_options_init(&o, sizeof o));
    if (options) GT_TRY(gt__options_read(&o, sizeof o, options, "gt_nn_residual_options"));
    if (body == NULL || (has_shortcut && shortcut == NULL))
        return gt__error_null("gt_nn_residual", body ? "shortcut" : "body", __FILE__, __LINE__);
    if (o.body_name == NULL) o.body_name = "body";
    if (o.shortcut_name == NULL) o.shortcut_name = "shortcut";
    GT_TRY(residual_check(body, shortcut, &o));
    GT_REQUIRE(body->parent == NULL && (shortcut == NULL || shortcut->parent == NULL) && body != shortcut, GT_BAD_STATE,
               "residual: the body or the shortcut has an owner already");
    *made = gt__module_new(body->ctx, &residual_kind);
    if (*made == NULL) return gt_last_error()->status;
    ((residual_state *)gt__module_state(*made))->activation = o.activation;
    GT_TRY(gt__module_attach(*made, o.body_name, body));
    return shortcut ? gt__module_attach(*made, o.shortcut_name, shortcut) : GT_OK;
}

/* `has_shortcut` tells a shortcut that failed from one that is not wanted. */
static gt_module *residual_new(gt_module *body, gt_module *shortcut, bool has_shortcut, const gt_nn_residual_options *options) {
    gt_module *m = NULL;
    gt_status status = residual_build(&m, body, shortcut, has_shortcut, options);
    if (status == GT_OK) return m;
    /* Before m exists both are ours to destroy; afterwards attaching has taken over the body, and the shortcut if it got that far. */
    bool body_taken = m != NULL, shortcut_taken = m != NULL && m->n_children > 0;
    if (!shortcut_taken && shortcut != body) gt_module_destroy(shortcut);
    if (!body_taken) gt_module_destroy(body);
    gt_module_destroy(m);
    return NULL;
}

gt_module *gt_nn_residual(gt_module *body, gt_module *shortcut, const gt_nn_residual_options *options) {
    return residual_new(body, shortcut, true, options);
}

/* --- ResNet's blocks (He et al. 2016) */
static gt_module *convolution(gt_context *ctx, int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    gt_nn_conv2d_options o;
    GT_TRY_NULL(gt_nn_conv2d_options_init(&o, sizeof o));
    o.bias = 0;
    o.stride[0] = o.stride[1] = stride;
    o.padding[0] = o.padding[1] = kernel / 2;
    return gt_nn_conv2d(ctx, in, out, kernel, &o);
}

typedef struct stage {
    int64_t out, kernel, stride;
} stage;

static gt_module *resnet_block(gt_context *ctx, const char *who, int64_t in, const stage *stages, int32_t n_stages, int64_t stride) {
    static const char *const conv_names[] = {"conv1", "conv2", "conv3"}, *const norm_names[] = {"bn1", "bn2", "bn3"},
                             *const relu_names[] = {"relu1", "relu2", "relu3"};
    int64_t out = stages[n_stages - 1].out;
    GT_REQUIRE_NULL(in > 0 && out > 0 && stride > 0, GT_BAD_ARGUMENT, "%s: %lld channels in, %lld out, stride %lld; all must be at least 1",
                    who, (long long)in, (long long)out, (long long)stride);
    gt_module *body = gt_nn_sequential(ctx), *shortcut = NULL;
    if (body == NULL) return NULL;
    gt_status status = GT_OK;
    int64_t channels = in;
    for (int32_t i = 0; i < n_stages && status == GT_OK; ++i) {
        status =
            gt_nn_sequential_add_named(body, conv_names[i], convolution(ctx, channels, stages[i].out, stages[i].kernel, stages[i].stride));
        if (status == GT_OK) status = gt_nn_sequential_add_named(body, norm_names[i], gt_nn_batch_norm(ctx, stages[i].out, NULL));
        if (status == GT_OK && i + 1 < n_stages) status = gt_nn_sequential_add_named(body, relu_names[i], gt_nn_relu(ctx));
        channels = stages[i].out;
    }
    bool changes_shape = stride != 1 || in != out;
    if (status == GT_OK && changes_shape) {
        gt_module *layers[] = {convolution(ctx, in, out, 1, stride), gt_nn_batch_norm(ctx, out, NULL)};
        shortcut = gt_nn_sequential_from(ctx, layers, 2);
    }
    if (status != GT_OK || (changes_shape && shortcut == NULL)) {
        gt_module_destroy(body);
        return NULL;
    }
    gt_nn_residual_options o;
    (void)gt_nn_residual_options_init(&o, sizeof o);
    o.activation = GT_ACTIVATION_RELU;
    o.body_name = "";
    o.shortcut_name = "downsample";
    return residual_new(body, shortcut, changes_shape, &o);
}

gt_module *gt_nn_resnet_basic_block(gt_context *ctx, int64_t in_channels, int64_t channels, int64_t stride) {
    const stage stages[] = {{channels, 3, stride}, {channels, 3, 1}};
    return resnet_block(ctx, "resnet_basic_block", in_channels, stages, 2, stride);
}

gt_module *gt_nn_resnet_bottleneck(gt_context *ctx, int64_t in_channels, int64_t width, int64_t stride) {
    GT_REQUIRE_NULL(width > 0 && width <= INT64_MAX / 4, GT_BAD_ARGUMENT, "resnet_bottleneck: width is %lld", (long long)width);
    const stage stages[] = {{width, 1, 1}, {width, 3, stride}, {4 * width, 1, 1}};
    return resnet_block(ctx, "resnet_bottleneck", in_channels, stages, 3, stride);
}

/* Whole residual networks for images (He et al. 2016), with torchvision's names, stride placement and initialisation. */
#include "nn/module.h"

typedef gt_module *(*block_fn)(gt_context *ctx, int64_t in_channels, int64_t width, int64_t stride);

typedef struct plan {
    const char *name;
    block_fn block;
    int64_t expansion; /* a block's output channels by its width */
    int32_t counts[4];
} plan;

/* `count` blocks, the first of which changes the shape. */
static gt_module *make_stage(gt_context *ctx, const plan *p, int64_t in, int64_t width, int32_t count, int64_t stride) {
    gt_module *stage = gt_nn_sequential(ctx);
    for (int32_t i = 0; stage && i < count; ++i)
        (void)gt_nn_sequential_add(stage, p->block(ctx, i == 0 ? in : p->expansion * width, width, i == 0 ? stride : 1));
    return stage;
}

static gt_module *make_stem(gt_context *ctx) {
    gt_nn_conv2d_options o;
    GT_TRY_NULL(gt_nn_conv2d_options_init(&o, sizeof o));
    o.bias = 0;
    o.stride[0] = o.stride[1] = 2;
    o.padding[0] = o.padding[1] = 3;
    return gt_nn_conv2d(ctx, 3, 64, 7, &o);
}

static gt_module *make_pool(gt_context *ctx) {
    gt_pool2d_options o;
    GT_TRY_NULL(gt_pool2d_options_init(&o, sizeof o));
    o.stride[0] = o.stride[1] = 2;
    o.padding[0] = o.padding[1] = 1;
    return gt_nn_max_pool2d(ctx, 3, &o);
}

/* A child that failed marks the network, so the last status tells of all. */
static gt_status add_layers(gt_module *net, gt_context *ctx, const plan *p, int64_t classes) {
    static const char *const stages[] = {"layer1", "layer2", "layer3", "layer4"};
    (void)gt_nn_sequential_add_named(net, "conv1", make_stem(ctx));
    (void)gt_nn_sequential_add_named(net, "bn1", gt_nn_batch_norm(ctx, 64, NULL));
    (void)gt_nn_sequential_add_named(net, "relu", gt_nn_relu(ctx));
    (void)gt_nn_sequential_add_named(net, "maxpool", make_pool(ctx));
    int64_t channels = 64;
    for (int32_t i = 0; i < 4; ++i) {
        int64_t width = (int64_t)64 << i;
        (void)gt_nn_sequential_add_named(net, stages[i], make_stage(ctx, p, channels, width, p->counts[i], i == 0 ? 1 : 2));
        channels = p->expansion * width;
    }
    (void)gt_nn_sequential_add_named(net, "avgpool", gt_nn_adaptive_avg_pool2d(ctx, 1, 1));
    (void)gt_nn_sequential_add_named(net, "flatten", gt_nn_flatten(ctx, 1));
    (void)gt_nn_sequential_add_named(net, "fc", gt_nn_linear(ctx, channels, classes, NULL));
    return gt_module_check(net);
}

/* Convolutions by their outputs; norms and the last layer are as their modules make them. */
static gt_status initialise(gt_module *net) {
    int32_t count = gt_module_parameter_count(net);
    for (int32_t i = 0; i < count; ++i) {
        gt_tensor *tensor = NULL;
        GT_TRY(gt_module_parameter(net, i, NULL, &tensor));
        if (gt_tensor_ndim(tensor) == 4) GT_TRY(gt_nn_init_kaiming_normal(tensor, 0, GT_NN_FAN_OUT));
    }
    return GT_OK;
}

static gt_module *make_network(gt_context *ctx, const plan *p, int64_t classes) {
    GT_REQUIRE_NULL(classes > 0, GT_BAD_ARGUMENT, "%s: classes is %lld; it must be at least 1", p->name, (long long)classes);
    gt_module *net = gt_nn_sequential(ctx);
    if (net == NULL) return NULL;
    gt_status status = add_layers(net, ctx, p, classes);
    if (status == GT_OK) status = initialise(net);
    return gt__module_finish(net, status);
}

gt_module *gt_nn_resnet18(gt_context *ctx, int64_t classes) {
    static const plan p = {"resnet18", gt_nn_resnet_basic_block, 1, {2, 2, 2, 2}};
    return make_network(ctx, &p, classes);
}

gt_module *gt_nn_resnet50(gt_context *ctx, int64_t classes) {
    static const plan p = {"resnet50", gt_nn_resnet_bottleneck, 4, {3, 4, 6, 3}};
    return make_network(ctx, &p, classes);
}

/* Residual networks, and batch norm that runs together with what follows it. */
#include "nn/support.h"

#include <string.h>

TEST(unit, resnet50_has_torchvisions_names_and_size) {
    gt_context *ctx = exact_context(t);
    gt_module *net = gt_nn_resnet50(ctx, 1000), *small = gt_nn_resnet18(ctx, 10);
    CHECK(net != NULL && small != NULL);
    int64_t elements;
    CHECK_OK(gt_module_size(net, &elements, NULL));
    CHECK_EQ_INT(elements, 25557032);
    CHECK_EQ_INT(gt_module_parameter_count(net), 161);
    CHECK_EQ_INT(gt_module_buffer_count(net), 53 * 3);
    CHECK_OK(gt_module_size(small, &elements, NULL));
    CHECK_EQ_INT(elements, 11689512 - 990 * 513);
    CHECK_EQ_INT(gt_module_parameter_count(small), 62);
    static const struct {
        const char *name;
        int32_t ndim;
        int64_t shape[4];
    } want[] = {{"conv1.weight", 4, {64, 3, 7, 7}},
                {"bn1.running_mean", 1, {64}},
                {"bn1.num_batches_tracked", 0, {0}},
                {"layer1.0.conv1.weight", 4, {64, 64, 1, 1}},
                {"layer1.0.downsample.0.weight", 4, {256, 64, 1, 1}},
                {"layer1.0.downsample.1.bias", 1, {256}},
                {"layer2.0.conv2.weight", 4, {128, 128, 3, 3}},
                {"layer3.5.bn3.weight", 1, {1024}},
                {"layer4.2.conv3.weight", 4, {2048, 512, 1, 1}},
                {"fc.weight", 2, {1000, 2048}},
                {"fc.bias", 1, {1000}}};
    for (size_t i = 0; i < sizeof want / sizeof *want; ++i) {
        gt_tensor *tensor = named(net, want[i].name);
        CHECK_EQ_INT(gt_tensor_ndim(tensor), want[i].ndim);
        for (int32_t k = 0; k < want[i].ndim; ++k) CHECK_EQ_INT(gt_tensor_shape(tensor)[k], want[i].shape[k]);
    }
    gt_tensor *none;
    CHECK_STATUS(gt_module_find(net, "layer1.1.downsample.0.weight", &none), GT_NOT_FOUND);
    gt_module_destroy(net);
    gt_module_destroy(small);
    CHECK(gt_nn_resnet50(ctx, 0) == NULL);
    CHECK(gt_nn_resnet18(NULL, 10) == NULL);
    CHECK_EQ_INT(bytes_in_use(ctx, -1), 0);
}

/* The deviation of the values about 0, times sqrt(fan_out / 2). */
static double spread(gt_module *net, const char *name, double fan_out) {
    gt_tensor *w = gt_tensor_detach(named(net, name));
    return sqrt(item(gt_mean(gt_square(w), NULL, 0, 0)) * fan_out / 2);
}

TEST_DEVICES(unit, resnet_starts_as_torchvisions_does) {
    gt_context *ctx = exact_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_module *net = gt_nn_resnet18(ctx, 10);
    CHECK(net != NULL);
    CHECK_NEAR(spread(net, "conv1.weight", 64 * 49), 1, 0.05);
    CHECK_NEAR(spread(net, "layer2.0.downsample.0.weight", 128), 1, 0.05);
    CHECK_NEAR(spread(net, "layer4.1.conv2.weight", 512 * 9), 1, 0.02);
    CHECK_NEAR(item(gt_mean(gt_tensor_detach(named(net, "layer4.1.conv2.weight")), NULL, 0, 0)), 0, 1e-3);
    CHECK_NEAR(item(gt_mean(named(net, "bn1.weight"), NULL, 0, 0)), 1, 0);
    CHECK_NEAR(item(gt_max(gt_abs(named(net, "layer3.0.bn2.bias")), NULL, 0, 0)), 0, 0);
    CHECK(item(gt_max(gt_abs(named(net, "fc.weight")), NULL, 0, 0)) <= 1 / sqrt(512));
    gt_module_destroy(net);
    CHECK_OK(gt_scope_end(ctx));
}

static void train(test_case *t, gt_module *(*make)(gt_context *ctx, int64_t classes)) {
    gt_context *ctx = exact_context(t);
    gt_module *net = make(ctx, 10);
    CHECK(net != NULL);
    gt_optimizer_options options;
    CHECK_OK(gt_optimizer_options_init(&options, sizeof options, GT_OPTIMIZER_SGD));
    options.learning_rate = 0.001;
    options.momentum = 0.9;
    gt_optimizer *optimizer;
    CHECK_OK(gt_optimizer_create_for(&options, net, &optimizer));
    const int64_t labels[] = {1, 5, 7, 2}, count = 4;
    double first = 0, last = 0;
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = gt_tensor_normal(ctx, GT_DTYPE_F32, 4, (const int64_t[]){4, 3, 32, 32}, 0, 1),
              *y = gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, &count, labels, sizeof labels);
    for (int step = 0; step < 2; ++step) {
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_optimizer_zero_grad(optimizer));
        gt_tensor *logits = CHECK_TENSOR(gt_module_forward(net, x));
        CHECK(gt_tensor_ndim(logits) == 2 && gt_tensor_shape(logits)[0] == 4 && gt_tensor_shape(logits)[1] == 10);
        gt_tensor *loss = CHECK_TENSOR(gt_cross_entropy(logits, y, NULL));
        last = item(loss);
        if (step == 0) first = last;
        CHECK_OK(gt_backward(loss));
        for (int32_t i = 0; i < gt_module_parameter_count(net); ++i) {
            const char *name;
            gt_tensor *parameter;
            CHECK_OK(gt_module_parameter(net, i, &name, &parameter));
            if (gt_tensor_grad(parameter) == NULL) FAIL("%s has no gradient", name);
        }
        CHECK_OK(gt_optimizer_step(optimizer));
        CHECK_OK(gt_scope_end(ctx));
    }
    CHECK(isfinite(last) && last < first);
    CHECK_NEAR(item(named(net, "bn1.num_batches_tracked")), 2, 0);
    CHECK_NEAR(item(named(net, "layer4.0.downsample.1.num_batches_tracked")), 2, 0);
    CHECK_NEAR(item(named(net, make == gt_nn_resnet50 ? "layer2.1.bn3.num_batches_tracked" : "layer2.1.bn2.num_batches_tracked")), 2, 0);
    CHECK_OK(gt_scope_end(ctx));
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}

TEST_DEVICES(unit, resnet50_trains_on_small_images) { train(t, gt_nn_resnet50); }
TEST_DEVICES(unit, resnet18_trains_on_small_images) { train(t, gt_nn_resnet18); }

/* Runs its child, so that nothing can be fused with that. */
static gt_tensor *pass_on(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count) {
    (void)user, (void)count;
    gt_module *child = NULL;
    if (gt_module_child(module, 0, NULL, &child) != GT_OK) return NULL;
    return gt_module_forward(child, inputs[0]);
}

static gt_module *norm_of(gt_context *ctx, int wrapped) {
    gt_module *norm = gt_nn_batch_norm(ctx, 4, NULL);
    if (!wrapped) return norm;
    gt_nn_custom_options o;
    CHECK_OK(gt_nn_custom_options_init(&o, sizeof o));
    o.forward = pass_on;
    gt_module *m = gt_nn_custom(ctx, &o);
    CHECK_OK(gt_module_add_child(m, "norm", norm));
    return m;
}

/* A block of two norms with a relu between and, unless `wrapped`, everything in two fused ops. */
static gt_module *block_of(gt_context *ctx, int wrapped, int projected) {
    gt_nn_conv2d_options conv;
    CHECK_OK(gt_nn_conv2d_options_init(&conv, sizeof conv));
    conv.padding[0] = conv.padding[1] = 1;
    gt_module *layers[] = {gt_nn_conv2d(ctx, 4, 4, 3, &conv), norm_of(ctx, wrapped), gt_nn_relu(ctx), gt_nn_conv2d(ctx, 4, 4, 3, &conv),
                           norm_of(ctx, wrapped)};
    gt_nn_residual_options o;
    CHECK_OK(gt_nn_residual_options_init(&o, sizeof o));
    o.activation = GT_ACTIVATION_RELU;
    gt_module *shortcut = projected ? gt_nn_conv2d(ctx, 4, 4, 1, NULL) : gt_nn_identity(ctx);
    gt_module *block = gt_nn_residual(gt_nn_sequential_from(ctx, layers, 5), shortcut, &o);
    CHECK(block != NULL);
    fill_parameters(block);
    return block;
}

TEST_DEVICES(unit, residual_block_is_the_same_with_its_norms_fused) {
    gt_context *ctx = exact_context(t);
    for (int projected = 0; projected < 2; ++projected)
        for (int training = 0; training < 2; ++training) {
            gt_module *blocks[2] = {block_of(ctx, 0, projected), block_of(ctx, 1, projected)};
            CHECK_OK(gt_scope_begin(ctx));
            gt_tensor *y[2], *dx[2];
            for (int i = 0; i < 2; ++i) {
                CHECK_OK(gt_module_set_training(blocks[i], training));
                gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 4, (const int64_t[]){3, 4, 6, 6});
                CHECK_OK(gt_tensor_set_requires_grad(x, 1));
                y[i] = CHECK_TENSOR(gt_module_forward(blocks[i], x));
                CHECK_OK(gt_backward(gt_sum(gt_square(y[i]), NULL, 0, 0)));
                dx[i] = CHECK_TENSOR(gt_tensor_grad(x));
            }
            CHECK_NEAR(item(gt_max(gt_abs(gt_sub(gt_tensor_detach(y[0]), gt_tensor_detach(y[1]))), NULL, 0, 0)), 0, 1e-5);
            CHECK_NEAR(item(gt_max(gt_abs(gt_sub(dx[0], dx[1])), NULL, 0, 0)), 0, 2e-3);
            static const char *const buffers[][2] = {{"body.1.running_mean", "body.1.norm.running_mean"},
                                                     {"body.4.running_var", "body.4.norm.running_var"},
                                                     {"body.1.num_batches_tracked", "body.1.norm.num_batches_tracked"},
                                                     {"body.4.num_batches_tracked", "body.4.norm.num_batches_tracked"}};
            for (size_t k = 0; k < sizeof buffers / sizeof *buffers; ++k)
                CHECK_NEAR(item(gt_max(gt_abs(gt_sub(gt_cast(named(blocks[0], buffers[k][0]), GT_DTYPE_F64),
                                                     gt_cast(named(blocks[1], buffers[k][1]), GT_DTYPE_F64))),
                                       NULL, 0, 0)),
                           0, 1e-5);
            CHECK_NEAR(item(named(blocks[0], "body.4.num_batches_tracked")), training, 0);
            CHECK_OK(gt_scope_end(ctx));
            gt_module_destroy(blocks[0]);
            gt_module_destroy(blocks[1]);
        }
}

TEST(unit, fused_norms_fail_in_their_own_names) {
    gt_context *ctx = exact_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_module *block = block_of(ctx, 0, 0);
    gt_tensor *one = gt_tensor_zeros(ctx, GT_DTYPE_F32, 4, (const int64_t[]){1, 4, 1, 1});
    CHECK(gt_module_forward(block, one) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_BATCH);
    CHECK(strstr(gt_last_error()->message, "\"body.1\"") != NULL);
    gt_module *layers[] = {gt_nn_identity(ctx), gt_nn_batch_norm(ctx, 4, NULL)};
    gt_nn_residual_options o;
    CHECK_OK(gt_nn_residual_options_init(&o, sizeof o));
    o.activation = GT_ACTIVATION_RELU;
    gt_module *last = gt_nn_residual(gt_nn_sequential_from(ctx, layers, 2), gt_nn_identity(ctx), &o);
    CHECK(gt_module_forward(last, one) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_BATCH);
    CHECK(strstr(gt_last_error()->message, "\"body.1\"") != NULL);
    gt_module_destroy(block);
    gt_module_destroy(last);
    CHECK_OK(gt_scope_end(ctx));
}

/* The shortcut is of another dtype or shape than the body: they promote and broadcast as a sum does. */
TEST_DEVICES(unit, residual_block_sums_as_before_what_it_cannot_fuse) {
    gt_context *ctx = exact_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_module *layers[] = {gt_nn_identity(ctx), gt_nn_batch_norm(ctx, 4, NULL)};
    gt_nn_residual_options o;
    CHECK_OK(gt_nn_residual_options_init(&o, sizeof o));
    o.activation = GT_ACTIVATION_RELU;
    gt_module *block = gt_nn_residual(gt_nn_sequential_from(ctx, layers, 2), gt_nn_adaptive_avg_pool2d(ctx, 1, 1), &o);
    CHECK(block != NULL);
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 4, (const int64_t[]){3, 4, 5, 5});
    gt_tensor *want = gt_relu(gt_add(gt_batch_norm(x, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5), gt_adaptive_avg_pool2d(x, 1, 1)));
    gt_tensor *y = CHECK_TENSOR(gt_module_forward(block, x));
    CHECK_NEAR(item(gt_max(gt_abs(gt_sub(gt_tensor_detach(y), want)), NULL, 0, 0)), 0, 1e-6);
    gt_module_destroy(block);
    CHECK_OK(gt_scope_end(ctx));
}

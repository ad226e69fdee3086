/* Trees of modules: names, ownership, failures, memory. */
#include "support.h"

static void check_names(gt_module *net, const char *const *want, int32_t count) {
    CHECK_EQ_INT(gt_module_parameter_count(net) + gt_module_buffer_count(net), count);
    for (int32_t i = 0; i < count; ++i) {
        const char *name = NULL;
        gt_tensor *tensor = NULL;
        int32_t parameters = gt_module_parameter_count(net);
        CHECK_OK(i < parameters ? gt_module_parameter(net, i, &name, &tensor) : gt_module_buffer(net, i - parameters, &name, &tensor));
        CHECK_EQ_STR(name, want[i]);
        CHECK_EQ_STR(gt_tensor_name(tensor), want[i]);
        CHECK_EQ_INT(gt_tensor_requires_grad(tensor), i < parameters);
    }
}

TEST(unit, names_are_those_of_pytorch) {
    gt_context *ctx = exact_context(t);
    gt_module *stem = gt_nn_sequential(ctx), *net = gt_nn_sequential(ctx), *layer1 = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add(stem, gt_nn_conv2d(ctx, 1, 2, 3, NULL)));
    CHECK_OK(gt_nn_sequential_add(stem, gt_nn_batch_norm(ctx, 2, NULL)));
    CHECK_OK(gt_nn_sequential_add_named(net, "stem", stem));
    CHECK_OK(gt_nn_sequential_add_named(net, "layer1", layer1));
    CHECK_OK(gt_nn_sequential_add(layer1, gt_nn_resnet_basic_block(ctx, 2, 2, 1)));
    CHECK_OK(gt_nn_sequential_add(layer1, gt_nn_resnet_bottleneck(ctx, 2, 1, 2)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, 4, 3, NULL)));
    static const char *const want[] = {"stem.0.weight",
                                       "stem.0.bias",
                                       "stem.1.weight",
                                       "stem.1.bias",
                                       "layer1.0.conv1.weight",
                                       "layer1.0.bn1.weight",
                                       "layer1.0.bn1.bias",
                                       "layer1.0.conv2.weight",
                                       "layer1.0.bn2.weight",
                                       "layer1.0.bn2.bias",
                                       "layer1.1.conv1.weight",
                                       "layer1.1.bn1.weight",
                                       "layer1.1.bn1.bias",
                                       "layer1.1.conv2.weight",
                                       "layer1.1.bn2.weight",
                                       "layer1.1.bn2.bias",
                                       "layer1.1.conv3.weight",
                                       "layer1.1.bn3.weight",
                                       "layer1.1.bn3.bias",
                                       "layer1.1.downsample.0.weight",
                                       "layer1.1.downsample.1.weight",
                                       "layer1.1.downsample.1.bias",
                                       "2.weight",
                                       "2.bias",
                                       "stem.1.running_mean",
                                       "stem.1.running_var",
                                       "stem.1.num_batches_tracked",
                                       "layer1.0.bn1.running_mean",
                                       "layer1.0.bn1.running_var",
                                       "layer1.0.bn1.num_batches_tracked",
                                       "layer1.0.bn2.running_mean",
                                       "layer1.0.bn2.running_var",
                                       "layer1.0.bn2.num_batches_tracked",
                                       "layer1.1.bn1.running_mean",
                                       "layer1.1.bn1.running_var",
                                       "layer1.1.bn1.num_batches_tracked",
                                       "layer1.1.bn2.running_mean",
                                       "layer1.1.bn2.running_var",
                                       "layer1.1.bn2.num_batches_tracked",
                                       "layer1.1.bn3.running_mean",
                                       "layer1.1.bn3.running_var",
                                       "layer1.1.bn3.num_batches_tracked",
                                       "layer1.1.downsample.1.running_mean",
                                       "layer1.1.downsample.1.running_var",
                                       "layer1.1.downsample.1.num_batches_tracked"};
    check_names(net, want, (int32_t)(sizeof want / sizeof want[0]));

    gt_module *block = NULL, *bn = NULL;
    const char *name = NULL;
    CHECK_OK(gt_module_find_module(net, "layer1.1", &block));
    CHECK_EQ_STR(gt_module_path(block), "layer1.1");
    CHECK_EQ_STR(gt_module_kind(block), "Residual");
    CHECK_OK(gt_module_parameter(block, 0, &name, NULL)); /* names are relative to who is asked */
    CHECK_EQ_STR(name, "conv1.weight");
    CHECK_OK(gt_module_find_module(block, "bn2", &bn));
    CHECK_EQ_STR(gt_module_path(bn), "layer1.1.bn2");
    CHECK_STATUS(gt_module_find_module(net, "layer1.7", &bn), GT_NOT_FOUND);
    CHECK_STATUS(gt_module_find(net, "layer1.1.conv1.wieght", &(gt_tensor *){NULL}), GT_NOT_FOUND);
    CHECK_ERROR_HAS("layer1.1.conv1.weight");
    CHECK_STATUS(gt_module_parameter(net, 24, &name, NULL), GT_BAD_ARGUMENT);
    CHECK_EQ_INT(gt_module_child_count(net), 3);
    CHECK_OK(gt_module_child(net, 1, &name, &block));
    CHECK_EQ_STR(name, "layer1");
    CHECK(block == layer1);
    gt_module_destroy(layer1); /* belongs to net: left alone */
    CHECK_EQ_INT(gt_module_child_count(layer1), 2);
    gt_module_destroy(net);
}

TEST(unit, resnet_blocks_have_the_sizes_of_resnet50) {
    gt_context *ctx = exact_context(t);
    gt_module *first = gt_nn_resnet_bottleneck(ctx, 64, 64, 1), *second = gt_nn_resnet_bottleneck(ctx, 256, 128, 2),
              *plain = gt_nn_resnet_bottleneck(ctx, 256, 64, 1);
    int64_t n = 0;
    CHECK_OK(gt_module_size(first, &n, NULL));
    CHECK_EQ_INT(n, 75008);
    CHECK_OK(gt_module_size(second, &n, NULL));
    CHECK_EQ_INT(n, 379392);
    CHECK_OK(gt_module_size(plain, &n, NULL));
    CHECK_EQ_INT(n, 70400);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *y = CHECK_TENSOR(gt_module_forward(second, gt_tensor_zeros(ctx, GT_DTYPE_F32, 4, (const int64_t[]){2, 256, 4, 4})));
    CHECK(gt_tensor_size(y, 1) == 512 && gt_tensor_size(y, 2) == 2 && gt_tensor_size(y, 3) == 2);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(first);
    gt_module_destroy(second);
    gt_module_destroy(plain);
}

TEST(unit, a_network_is_checked_once) {
    gt_context *ctx = exact_context(t);
    gt_module *net = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, 4, 4, NULL)));
    CHECK_STATUS(gt_nn_sequential_add(net, gt_nn_conv2d(ctx, 0, 4, 3, NULL)), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_nn_sequential_add(net, gt_nn_relu(ctx)), GT_BAD_ARGUMENT); /* relu is destroyed, the first error counts */
    CHECK_EQ_INT(gt_module_child_count(net), 1);
    gt_clear_error();
    CHECK_STATUS(gt_module_check(net), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("in_channels is 0");
    gt_clear_error();
    CHECK_OK(gt_scope_begin(ctx));
    CHECK(gt_module_forward(net, gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){1, 4})) == NULL);
    CHECK_ERROR_HAS("in_channels is 0");
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);

    gt_module *layers[] = {gt_nn_linear(ctx, 4, 4, NULL), gt_nn_dropout(ctx, 7), gt_nn_linear(ctx, 4, 4, NULL)};
    CHECK(gt_nn_sequential_from(ctx, layers, 3) == NULL);
    CHECK_ERROR_HAS("dropout");
    CHECK_EQ_INT(bytes_in_use(ctx, -1), 0);

    CHECK(gt_nn_residual(gt_nn_linear(ctx, 4, 4, NULL), gt_nn_linear(ctx, 4, 0, NULL), NULL) == NULL);
    CHECK_ERROR_HAS("out_features is 0");
    CHECK(gt_nn_residual(NULL, gt_nn_linear(ctx, 4, 4, NULL), NULL) == NULL);
    CHECK(gt_nn_resnet_basic_block(ctx, 3, 0, 1) == NULL);
    CHECK(gt_nn_sequential_add(NULL, gt_nn_linear(ctx, 4, 4, NULL)) != GT_OK);
    CHECK_EQ_INT(bytes_in_use(ctx, -1), 0);
}

TEST(unit, a_module_has_one_owner) {
    gt_context *ctx = exact_context(t), *other = exact_context(t);
    gt_module *a = gt_nn_sequential(ctx), *b = gt_nn_sequential(ctx), *layer = gt_nn_linear(ctx, 2, 2, NULL);
    CHECK_OK(gt_nn_sequential_add(a, layer));
    CHECK_STATUS(gt_nn_sequential_add(b, layer), GT_BAD_STATE);
    CHECK_ERROR_HAS("has an owner already");
    CHECK_STATUS(gt_module_check(b), GT_BAD_STATE);
    gt_module_destroy(b);
    CHECK_EQ_INT(gt_module_parameter_count(a), 2); /* still there */
    gt_module *outer = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add(outer, a));
    CHECK_STATUS(gt_nn_sequential_add(a, outer), GT_BAD_STATE);
    CHECK_ERROR_HAS("inside itself");
    gt_module_destroy(outer);

    gt_module *twice[2] = {gt_nn_linear(ctx, 2, 2, NULL), NULL};
    twice[1] = twice[0];
    CHECK(gt_nn_sequential_from(ctx, twice, 2) == NULL);
    gt_module *shared = gt_nn_linear(ctx, 2, 2, NULL);
    CHECK(gt_nn_residual(shared, shared, NULL) == NULL);

    b = gt_nn_sequential(ctx);
    CHECK_STATUS(gt_nn_sequential_add(b, gt_nn_linear(other, 2, 2, NULL)), GT_BAD_DEVICE);
    CHECK_STATUS(gt_nn_sequential_add(b, gt_nn_relu(ctx)), GT_BAD_DEVICE);
    gt_module_destroy(b);
    CHECK_EQ_INT(bytes_in_use(ctx, -1), 0);
    CHECK_EQ_INT(bytes_in_use(other, -1), 0);
}

TEST(unit, trees_have_a_greatest_depth) {
    gt_context *ctx = exact_context(t);
    gt_module *root = gt_nn_sequential(ctx);
    gt_status status = GT_OK;
    int depth = 1;
    for (; depth < 1000 && status == GT_OK; ++depth) {
        gt_module *outer = gt_nn_sequential(ctx);
        status = gt_nn_sequential_add(outer, root); /* on failure root is destroyed */
        root = outer;
    }
    CHECK_EQ_INT(status, GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("deep");
    CHECK(depth > 100);
    gt_module_destroy(root);
}

TEST(unit, bad_names_are_refused) {
    gt_context *ctx = exact_context(t);
    static const char *const bad[] = {"", "a.b", NULL};
    for (size_t i = 0; i < 3; ++i) {
        gt_module *net = gt_nn_sequential(ctx);
        CHECK_STATUS(gt_nn_sequential_add_named(net, bad[i], gt_nn_linear(ctx, 2, 2, NULL)), GT_BAD_ARGUMENT);
        gt_module_destroy(net);
    }
    gt_module *net = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add_named(net, "fc", gt_nn_linear(ctx, 2, 2, NULL)));
    CHECK_STATUS(gt_nn_sequential_add_named(net, "fc", gt_nn_linear(ctx, 2, 2, NULL)), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("\"fc\" already");
    gt_module_destroy(net);
    CHECK_EQ_INT(bytes_in_use(ctx, -1), 0);
}

TEST_DEVICES(unit, residual_adds_its_shortcut) {
    gt_context *ctx = exact_context(t);
    gt_nn_residual_options o;
    CHECK_OK(gt_nn_residual_options_init(&o, sizeof o));
    o.activation = GT_ACTIVATION_RELU;
    gt_module *m = gt_nn_residual(gt_nn_tanh(ctx), gt_nn_identity(ctx), &o);
    CHECK(m != NULL);
    CHECK_OK(gt_scope_begin(ctx));
    const float values[3] = {-1, 0.5f, 2};
    const double want[3] = {0, 0.5 + 0.46211715726, 2 + 0.96402758008};
    CHECK_VALUES(gt_module_forward(m, gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, (const int64_t[]){3}, values, sizeof values)), want, 1e-6);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(m);
}

/* Eight layers of 1 MiB each; without backward at most two of them live at once beside the input. */
TEST_DEVICES(unit, sequential_lets_go_of_what_is_used) {
    gt_context *ctx = exact_context(t);
    gt_module *net = gt_nn_sequential(ctx);
    for (int i = 0; i < 8; ++i) CHECK_OK(gt_nn_sequential_add(net, i % 2 ? gt_nn_tanh(ctx) : gt_nn_sigmoid(ctx)));
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[1] = {1 << 18};
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, shape);
    uint64_t before = bytes_in_use(ctx, -1);
    CHECK_OK(gt_memory_reset_peak(ctx));
    CHECK_TENSOR(gt_module_forward(net, x));
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK_EQ_INT(stats.peak_in_use - before, 2 << 20);
    CHECK_EQ_INT(stats.in_use - before, 1 << 20);
    CHECK_OK(gt_scope_end(ctx));

    /* Without any scope the result is the caller's, and the only thing left. */
    x = gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, shape);
    gt_tensor *y = CHECK_TENSOR(gt_module_forward(net, x));
    CHECK_EQ_INT(bytes_in_use(ctx, -1), 2 << 20);
    gt_tensor_release(x);
    gt_tensor_release(y);
    gt_module_destroy(net);
}

TEST(unit, relu_after_linear_keeps_no_copy_of_its_input) {
    gt_context *ctx = exact_context(t);
    gt_module *layers[] = {gt_nn_linear(ctx, 256, 1024, NULL), gt_nn_relu(ctx)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 2);
    CHECK(net != NULL);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){256, 256});
    uint64_t before = bytes_in_use(ctx, -1);
    CHECK_OK(gt_memory_reset_peak(ctx));
    gt_tensor *y = CHECK_TENSOR(gt_module_forward(net, x));
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK(stats.peak_in_use - before < 2 * gt_tensor_bytes(y)); /* one op: no result before the activation */
    gt_tensor *want = gt_relu(gt_linear(x, named(net, "0.weight"), named(net, "0.bias")));
    CHECK_NEAR(item(gt_max(gt_abs(gt_sub(y, want)), NULL, 0, 0)), 0, 1e-6);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
}

TEST(unit, memory_of_modules_counts_as_parameters) {
    gt_context *ctx = exact_context(t);
    gt_module *m = gt_nn_linear(ctx, 1024, 256, NULL);
    CHECK(m != NULL);
    CHECK_EQ_INT(bytes_in_use(ctx, GT_MEMORY_PARAMETER), 1024 * 256 * 4 + 256 * 4);
    CHECK_EQ_INT(bytes_in_use(ctx, -1), bytes_in_use(ctx, GT_MEMORY_PARAMETER));
    gt_module_destroy(m);
    CHECK_EQ_INT(bytes_in_use(ctx, -1), 0);
}

TEST(unit, a_layer_that_does_not_fit_leaves_nothing) {
    gt_context_options o;
    CHECK_OK(gt_context_options_init(&o, sizeof o));
    o.memory_limit = 4 << 20;
    gt_context *ctx = test_context_with(t, &o);
    for (int i = 0; i < 20; ++i) {
        gt_module *layers[] = {gt_nn_linear(ctx, 512, 512, NULL), gt_nn_linear(ctx, 2048, 2048, NULL)};
        CHECK(gt_nn_sequential_from(ctx, layers, 2) == NULL);
        CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
        CHECK_EQ_INT(bytes_in_use(ctx, -1), 0);
    }
}

TEST(unit, describe_prints_the_tree) {
    gt_context *ctx = exact_context(t);
    gt_nn_conv2d_options conv;
    CHECK_OK(gt_nn_conv2d_options_init(&conv, sizeof conv));
    conv.bias = 0;
    conv.padding[0] = conv.padding[1] = 1;
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 32, 3, &conv), gt_nn_batch_norm(ctx, 32, NULL), gt_nn_dropout(ctx, 0.25),
                           gt_nn_linear(ctx, 784, 512, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 4);
    CHECK(net != NULL);
    CHECK_OK(gt_module_set_trainable(layers[0], 0));
    static const char want[] =
        "Sequential(\n"
        "  (0): Conv2d(1, 32, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)  # 288 parameters, 1.1 KiB, frozen\n"
        "  (1): BatchNorm(32, eps=1e-05, momentum=0.1)  # 64 parameters, 256 bytes\n"
        "  (2): Dropout(p=0.25)\n"
        "  (3): Linear(in_features=784, out_features=512, bias=True)  # 401,920 parameters, 1.5 MiB\n"
        ")\n"
        "402,272 parameters in 5 tensors, 1.5 MiB; 3 buffers, 264 bytes\n";
    size_t needed = 0;
    CHECK_OK(gt_module_describe(net, NULL, 0, &needed));
    CHECK_EQ_INT(needed, sizeof want);
    char text[1024], cut[12];
    CHECK_OK(gt_module_describe(net, text, sizeof text, &needed));
    CHECK_EQ_STR(text, want);
    CHECK_OK(gt_module_describe(net, cut, sizeof cut, NULL));
    CHECK_EQ_STR(cut, "Sequential(");
    CHECK_STATUS(gt_module_describe(net, NULL, 10, NULL), GT_BAD_ARGUMENT);
    gt_module_destroy(net);
}

TEST(unit, frozen_parameters_get_no_gradient) {
    gt_context *ctx = exact_context(t);
    gt_module *layers[] = {gt_nn_linear(ctx, 2, 3, NULL), gt_nn_tanh(ctx), gt_nn_linear(ctx, 3, 1, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 3);
    CHECK(net != NULL);
    CHECK_OK(gt_module_set_trainable(layers[0], 0));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 2});
    CHECK_OK(gt_backward(gt_sum(gt_module_forward(net, x), NULL, 0, 0)));
    CHECK(gt_tensor_grad(named(net, "0.weight")) == NULL);
    CHECK(gt_tensor_grad(named(net, "2.weight")) != NULL);
    CHECK_OK(gt_module_zero_grad(net));
    CHECK(gt_tensor_grad(named(net, "2.weight")) == NULL);
    CHECK_OK(gt_module_set_trainable(net, 1));
    CHECK_OK(gt_backward(gt_sum(gt_module_forward(net, x), NULL, 0, 0)));
    CHECK(gt_tensor_grad(named(net, "0.weight")) != NULL);
    CHECK_OK(gt_module_set_trainable(net, 0));
    CHECK(gt_tensor_grad(named(net, "0.weight")) == NULL);
    CHECK_STATUS(gt_backward(gt_sum(gt_module_forward(net, x), NULL, 0, 0)), GT_BAD_STATE);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
}

TEST(unit, modules_may_outlive_their_context) {
    gt_context *ctx = NULL;
    CHECK_OK(gt_context_create(&(gt_context_options){.struct_size = sizeof(gt_context_options), .device = GT_DEVICE_CPU}, &ctx));
    gt_module *net = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, 2, 2, NULL)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_batch_norm(ctx, 2, NULL)));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){0, 2})),
              *y = CHECK_TENSOR(gt_module_forward(net, x));
    gt_context_destroy(ctx);
    const char *name = NULL;
    CHECK(gt_module_context(net) == NULL);
    CHECK_OK(gt_module_parameter(net, 0, &name, NULL));
    CHECK_EQ_STR(name, "0.weight");
    CHECK(gt_module_forward(net, y) == NULL);
    CHECK_STATUS(gt_module_to_dtype(net, GT_DTYPE_F16), GT_BAD_STATE);
    char text[512];
    CHECK_OK(gt_module_describe(net, text, sizeof text, NULL));
    gt_module_destroy(net);
    gt_tensor_release(x);
    gt_tensor_release(y);
}

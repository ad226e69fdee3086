/* Single layers: what they compute, refuse, and how they follow the mode. */
#include "support.h"

/* The op on the same input gives what the module gives. */
static void check_same(gt_tensor *a, gt_tensor *b) {
    CHECK_TENSOR(a);
    CHECK_TENSOR(b);
    double x[256], y[256];
    int64_t n = gt_tensor_numel(a);
    CHECK(n <= 256);
    CHECK_EQ_INT(gt_tensor_ndim(a), gt_tensor_ndim(b));
    read_values(a, x, n);
    read_values(b, y, n);
    CHECK_ALLCLOSE_F64(x, y, n, 0, 0);
}

TEST_DEVICES(unit, layers_without_parameters_compute_their_op) {
    gt_context *ctx = exact_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 4, (const int64_t[]){1, 2, 6, 4});
    gt_pool2d_options pool, same;
    CHECK_OK(gt_pool2d_options_init(&pool, sizeof pool));
    same = pool;
    pool.kernel[0] = 3;
    pool.kernel[1] = 2;
    pool.stride[0] = 2;
    pool.padding[0] = 1;
    same.kernel[0] = same.kernel[1] = 2;
    struct {
        gt_module *module;
        gt_tensor *want;
    } cases[] = {
        {gt_nn_identity(ctx), x},
        {gt_nn_relu(ctx), gt_relu(x)},
        {gt_nn_gelu(ctx, 0), gt_gelu(x)},
        {gt_nn_gelu(ctx, 1), gt_gelu_tanh(x)},
        {gt_nn_silu(ctx), gt_silu(x)},
        {gt_nn_tanh(ctx), gt_tanh(x)},
        {gt_nn_sigmoid(ctx), gt_sigmoid(x)},
        {gt_nn_max_pool2d(ctx, 2, NULL), gt_max_pool2d(x, &same)},
        {gt_nn_max_pool2d(ctx, 2, &pool), gt_max_pool2d(x, &pool)},
        {gt_nn_avg_pool2d(ctx, 2, NULL), gt_avg_pool2d(x, &same)},
        {gt_nn_avg_pool2d(ctx, 7, &pool), gt_avg_pool2d(x, &pool)},
        {gt_nn_adaptive_avg_pool2d(ctx, 2, 3), gt_adaptive_avg_pool2d(x, 2, 3)},
        {gt_nn_flatten(ctx, 1), gt_flatten(x, 1)},
        {gt_nn_flatten(ctx, -2), gt_flatten(x, -2)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        CHECK(cases[i].module != NULL);
        check_same(gt_module_forward(cases[i].module, x), cases[i].want);
        CHECK_EQ_INT(gt_module_parameter_count(cases[i].module), 0);
        gt_module_destroy(cases[i].module);
    }
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, linear_and_conv2d_without_bias) {
    gt_context *ctx = exact_context(t);
    gt_nn_linear_options linear;
    gt_nn_conv2d_options conv;
    CHECK_OK(gt_nn_linear_options_init(&linear, sizeof linear));
    CHECK_OK(gt_nn_conv2d_options_init(&conv, sizeof conv));
    linear.bias = conv.bias = 0;
    conv.groups = 2;
    conv.kernel[0] = 1;
    gt_module *a = gt_nn_linear(ctx, 3, 2, &linear), *b = gt_nn_conv2d(ctx, 4, 6, 3, &conv);
    CHECK(a && b);
    CHECK_EQ_INT(gt_module_parameter_count(a), 1);
    CHECK_EQ_INT(gt_module_parameter_count(b), 1);
    const int64_t *shape = gt_tensor_shape(named(b, "weight"));
    CHECK(shape[0] == 6 && shape[1] == 2 && shape[2] == 1 && shape[3] == 3);
    CHECK_EQ_INT(gt_tensor_strides(named(b, "weight"))[1], 1); /* channels-last */
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, 4, (const int64_t[]){1, 4, 5, 5});
    gt_tensor *y = CHECK_TENSOR(gt_module_forward(b, x));
    CHECK_EQ_INT(gt_tensor_size(y, 2), 5);
    CHECK_EQ_INT(gt_tensor_size(y, 3), 3);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(a);
    gt_module_destroy(b);
}

TEST(unit, constructors_refuse_numbers_by_name) {
    gt_context *ctx = exact_context(t);
    CHECK(gt_nn_linear(ctx, 0, 3, NULL) == NULL);
    CHECK_ERROR_HAS("in_features is 0");
    CHECK(gt_nn_linear(ctx, 3, -1, NULL) == NULL);
    CHECK_ERROR_HAS("out_features is -1");
    CHECK(gt_nn_linear(ctx, INT64_MAX / 2, 1 << 20, NULL) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK(gt_nn_conv2d(ctx, 3, 8, 0, NULL) == NULL);
    CHECK_ERROR_HAS("kernel height is 0");
    gt_nn_conv2d_options conv;
    CHECK_OK(gt_nn_conv2d_options_init(&conv, sizeof conv));
    conv.groups = 2;
    CHECK(gt_nn_conv2d(ctx, 3, 8, 3, &conv) == NULL);
    CHECK_ERROR_HAS("groups 2 must divide in_channels 3");
    conv.groups = 1;
    conv.padding[1] = -1;
    CHECK(gt_nn_conv2d(ctx, 3, 8, 3, &conv) == NULL);
    CHECK_ERROR_HAS("padding [0,-1]");
    CHECK(gt_nn_batch_norm(ctx, 0, NULL) == NULL);
    CHECK_ERROR_HAS("features is 0");
    gt_nn_batch_norm_options norm;
    CHECK_OK(gt_nn_batch_norm_options_init(&norm, sizeof norm));
    norm.momentum = 1.5;
    CHECK(gt_nn_batch_norm(ctx, 3, &norm) == NULL);
    CHECK_ERROR_HAS("momentum is 1.5");
    norm.momentum = NAN;
    CHECK(gt_nn_batch_norm(ctx, 3, &norm) == NULL);
    CHECK(gt_nn_layer_norm(ctx, 0, NULL, NULL) == NULL);
    CHECK_ERROR_HAS("n_axes is 0");
    CHECK(gt_nn_layer_norm(ctx, 2, (const int64_t[]){3, 0}, NULL) == NULL);
    CHECK_ERROR_HAS("shape[1] is 0");
    CHECK(gt_nn_embedding(ctx, 10, 0) == NULL);
    CHECK_ERROR_HAS("width is 0");
    CHECK(gt_nn_dropout(ctx, 1.5) == NULL);
    CHECK_ERROR_HAS("1.5");
    CHECK(gt_nn_dropout(ctx, NAN) == NULL);
    CHECK(gt_nn_max_pool2d(ctx, 0, NULL) == NULL);
    CHECK_ERROR_HAS("max_pool2d");
    gt_pool2d_options pool;
    CHECK_OK(gt_pool2d_options_init(&pool, sizeof pool));
    pool.padding[0] = 2;
    CHECK(gt_nn_avg_pool2d(ctx, 2, &pool) == NULL);
    CHECK_ERROR_HAS("padding 2");
    CHECK(gt_nn_adaptive_avg_pool2d(ctx, 0, 1) == NULL);
    CHECK(gt_nn_flatten(ctx, 9) == NULL);
    gt_clear_error();
    CHECK(gt_nn_relu(NULL) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_ARGUMENT);
    CHECK_EQ_INT(bytes_in_use(ctx, -1), 0);
}

TEST(unit, options_of_other_versions) {
    gt_context *ctx = exact_context(t);
    struct {
        gt_nn_linear_options known;
        int32_t later;
    } longer = {{0, 0}, 0};
    CHECK_OK(gt_nn_linear_options_init(&longer.known, sizeof longer));
    gt_module *m = gt_nn_linear(ctx, 2, 2, &longer.known);
    CHECK(m != NULL);
    gt_module_destroy(m);
    longer.later = 1;
    CHECK(gt_nn_linear(ctx, 2, 2, &longer.known) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_ABI);
    uint32_t shorter = sizeof shorter; /* a struct that ends after struct_size: the rest are defaults */
    m = gt_nn_linear(ctx, 2, 2, (const gt_nn_linear_options *)(const void *)&shorter);
    CHECK(m != NULL);
    CHECK_EQ_INT(gt_module_parameter_count(m), 2);
    gt_module_destroy(m);
}

TEST_DEVICES(unit, dropout_acts_in_training_only) {
    gt_context *ctx = exact_context(t);
    gt_module *m = gt_nn_dropout(ctx, 0.5);
    CHECK(m && gt_module_training(m) == 1);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F32, 1, (const int64_t[]){200}, 1);
    double y[200];
    int zeros = 0;
    read_values(gt_module_forward(m, x), y, 200);
    for (int i = 0; i < 200; ++i) {
        CHECK(y[i] == 0 || y[i] == 2);
        zeros += y[i] == 0;
    }
    CHECK(zeros > 60 && zeros < 140);
    CHECK_OK(gt_module_set_training(m, 0));
    read_values(gt_module_forward(m, x), y, 200);
    for (int i = 0; i < 200; ++i) CHECK(y[i] == 1);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(m);
}

TEST_DEVICES(unit, batch_norm_counts_batches_and_follows_a_written_count) {
    gt_context *ctx = exact_context(t);
    gt_module *m = gt_nn_batch_norm(ctx, 2, NULL);
    CHECK(m != NULL);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){3, 2});
    gt_tensor *empty = gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){0, 2});
    for (int i = 0; i < 3; ++i) CHECK_TENSOR(gt_module_forward(m, x));
    CHECK_TENSOR(gt_module_forward(m, empty)); /* leaves its statistics */
    CHECK_EQ_INT(gt_tensor_dtype(named(m, "num_batches_tracked")), GT_DTYPE_I64);
    CHECK_NEAR(item(named(m, "num_batches_tracked")), 3, 0);
    const int64_t loaded = 1000;
    CHECK_TENSOR(gt_module_forward(m, x));
    CHECK_OK(gt_tensor_write(named(m, "num_batches_tracked"), &loaded, sizeof loaded));
    CHECK_TENSOR(gt_module_forward(m, x));
    gt_tensor *count = NULL;
    CHECK_OK(gt_module_buffer(m, 2, NULL, &count));
    CHECK_NEAR(item(count), 1001, 0);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(m);
}

TEST_DEVICES(unit, batch_norm_without_affine_or_running_statistics) {
    gt_context *ctx = exact_context(t);
    gt_nn_batch_norm_options o;
    CHECK_OK(gt_nn_batch_norm_options_init(&o, sizeof o));
    o.affine = 0;
    o.track_running_stats = 0;
    gt_module *m = gt_nn_batch_norm(ctx, 1, &o);
    CHECK(m != NULL);
    CHECK_EQ_INT(gt_module_parameter_count(m), 0);
    CHECK_EQ_INT(gt_module_buffer_count(m), 0);
    CHECK_OK(gt_module_set_training(m, 0)); /* the batch's own statistics all the same */
    CHECK_OK(gt_scope_begin(ctx));
    const float values[4] = {1, 2, 3, 4};
    const double want[4] = {-1.341635, -0.447212, 0.447212, 1.341635};
    CHECK_VALUES(gt_module_forward(m, gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, (const int64_t[]){4, 1}, values, sizeof values)), want,
                 1e-6);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(m);
}

TEST(unit, batch_norm_names_its_path_when_the_batch_is_too_small) {
    gt_context *ctx = exact_context(t);
    gt_module *inner = gt_nn_sequential(ctx), *net = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add_named(inner, "bn", gt_nn_batch_norm(ctx, 3, NULL)));
    CHECK_OK(gt_nn_sequential_add_named(net, "head", inner));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){1, 3});
    CHECK(gt_module_forward(net, x) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_BATCH);
    CHECK_ERROR_HAS("\"head.bn\"");
    CHECK_ERROR_HAS("[1,3]");
    CHECK_NEAR(item(named(net, "head.bn.num_batches_tracked")), 0, 0);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
}

TEST(unit, layer_norm_refuses_another_width) {
    gt_context *ctx = exact_context(t);
    gt_nn_layer_norm_options o;
    CHECK_OK(gt_nn_layer_norm_options_init(&o, sizeof o));
    o.affine = 0;
    gt_module *m = gt_nn_layer_norm(ctx, 2, (const int64_t[]){3, 4}, &o);
    CHECK(m && gt_module_parameter_count(m) == 0);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_TENSOR(gt_module_forward(m, gt_tensor_zeros(ctx, GT_DTYPE_F32, 3, (const int64_t[]){2, 3, 4})));
    CHECK(gt_module_forward(m, gt_tensor_zeros(ctx, GT_DTYPE_F32, 3, (const int64_t[]){2, 4, 3})) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK_ERROR_HAS("[2,4,3] must end in [3,4]");
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(m);
}

TEST(unit, forward_refuses_what_it_cannot_take) {
    gt_context *ctx = exact_context(t), *other = exact_context(t);
    gt_module *m = gt_nn_linear(ctx, 2, 2, NULL);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_scope_begin(other));
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){1, 2});
    gt_tensor *two[2] = {x, x};
    CHECK(gt_module_forward_many(m, two, 2) == NULL);
    CHECK_ERROR_HAS("takes 1 inputs, it was given 2");
    CHECK(gt_module_forward(m, gt_tensor_zeros(other, GT_DTYPE_F32, 2, (const int64_t[]){1, 2})) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_DEVICE);
    CHECK(gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, (const int64_t[]){-1}) == NULL);
    CHECK(gt_module_forward(m, NULL) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE); /* the first error stays */
    gt_clear_error();
    CHECK(gt_module_forward(NULL, x) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_ARGUMENT);
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_scope_end(other));
    gt_module_destroy(m);
}

/* Autocast: what each op's inputs become, and the half copies of weights. */
#include "unit/ops_util.h"

#include "core/core.h"

#include <stdlib.h>

#define EXPECT_DTYPE(expr, want) EXPECT_EQ_INT(gt_tensor_dtype(CHECK_TENSOR(expr)), (want))

static gt_tensor *weight(gt_context *ctx, const char *name, int32_t ndim, const int64_t *shape) {
    gt_tensor *w = CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, ndim, shape, -1, 1));
    CHECK_OK(gt_tensor_set_name(w, name));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    return w;
}

static uint64_t parameter_bytes(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    return stats.category_in_use[GT_MEMORY_PARAMETER];
}

/* Dense tensors of one dtype: the same bits. */
static void expect_same_bits(gt_tensor *a, gt_tensor *b) {
    CHECK_TENSOR(a);
    CHECK_TENSOR(b);
    CHECK_EQ_INT(gt_tensor_dtype(a), gt_tensor_dtype(b));
    CHECK_EQ_INT(gt_tensor_bytes(a), gt_tensor_bytes(b));
    size_t bytes = gt_tensor_bytes(a);
    void *one = malloc(bytes), *two = malloc(bytes);
    gt_status first = gt_tensor_read(a, one, bytes), second = gt_tensor_read(b, two, bytes);
    bool same = memcmp(one, two, bytes) == 0;
    free(one);
    free(two);
    CHECK_OK(first);
    CHECK_OK(second);
    CHECK(same);
}

static void expect_close(gt_tensor *a, gt_tensor *b, double relative, double absolute) {
    size_t n = (size_t)gt_tensor_numel(a), bytes = n * sizeof(double);
    double *one = malloc(bytes), *two = malloc(bytes), worst = 0;
    gt_status first = gt_tensor_read(gt_cast(a, GT_DTYPE_F64), one, bytes), second = gt_tensor_read(gt_cast(b, GT_DTYPE_F64), two, bytes);
    for (size_t i = 0; first == GT_OK && second == GT_OK && i < n; i++)
        worst = fmax(worst, fabs(one[i] - two[i]) / (absolute + relative * fabs(two[i])));
    free(one);
    free(two);
    CHECK_OK(first);
    CHECK_OK(second);
    CHECK(worst <= 1);
}

/* --- counting kernels: a backend's table with the COPY and CAST kernels behind counters --------------------------------------------------- */
static gt__kernel real_copy, real_cast;
static int copies, casts;
static const gt_tensor *watched; /* whose copies are counted; NULL: everyone's */

static gt_status counting_copy(gt__device *device, const gt__call *call) {
    copies += watched == NULL || call->in[0]->data == watched->data;
    return real_copy(device, call);
}

static gt_status counting_cast(gt__device *device, const gt__call *call) {
    casts++;
    return real_cast(device, call);
}

static gt__backend counting_table;
static gt__kernel counting_kernels[GT__OP_COUNT];

static const gt__backend *count_kernels(gt_context *ctx, const gt_tensor *of) {
    watched = of;
    const gt__backend *before = ctx->backend;
    counting_table = *before;
    memcpy(counting_kernels, before->kernels, sizeof counting_kernels);
    real_copy = counting_kernels[GT__OP_COPY];
    real_cast = counting_kernels[GT__OP_CAST];
    counting_kernels[GT__OP_COPY] = counting_copy;
    counting_kernels[GT__OP_CAST] = counting_cast;
    counting_table.kernels = counting_kernels;
    ctx->backend = &counting_table;
    copies = casts = 0;
    return before;
}

/* --- regions -------------------------------------------------------------------------------------------------------------------------------- */
TEST(unit, autocast_regions_nest) {
    gt_context *ctx = test_context(t);
    CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_F32);
    CHECK_STATUS(gt_autocast_end(ctx), GT_BAD_STATE);
    CHECK_STATUS(gt_autocast_begin(ctx, GT_DTYPE_F32), GT_BAD_DTYPE);
    CHECK_ERROR_HAS("f32");
    gt_clear_error();
    CHECK_STATUS(gt_autocast_begin(NULL, GT_DTYPE_F16), GT_BAD_ARGUMENT);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_F16);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_BF16));
    CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_BF16);
    CHECK_OK(gt_autocast_disable(ctx));
    CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_F32);
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_BF16);
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_F16);
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_F32);
    CHECK_STATUS(gt_autocast_end(ctx), GT_BAD_STATE);
    for (int i = 0; i < 64; i++) CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    CHECK_STATUS(gt_autocast_begin(ctx, GT_DTYPE_F16), GT_BAD_STATE);
    CHECK_ERROR_HAS("gt_autocast_end");
}

TEST(unit, autocast_tells_its_policies) {
    CHECK_EQ_INT(gt_autocast_policy("conv2d"), GT_CAST_HALF);
    CHECK_EQ_INT(gt_autocast_policy("linear_relu"), GT_CAST_HALF);
    CHECK_EQ_INT(gt_autocast_policy("softmax"), GT_CAST_F32);
    CHECK_EQ_INT(gt_autocast_policy("concat"), GT_CAST_PROMOTE);
    CHECK_EQ_INT(gt_autocast_policy("layer_norm"), GT_CAST_NONE);
    CHECK_EQ_INT(gt_autocast_policy("no such op"), GT_CAST_NONE);
    CHECK_EQ_INT(gt_autocast_policy(NULL), GT_CAST_NONE);
}

/* --- dtypes ----------------------------------------------------------------------------------------------------------------------------------- */
static void products_in(gt_context *ctx, gt_dtype half) {
    gt_tensor *x = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(4, 6), -1, 1), *w = weight(ctx, "w", SHAPE(5, 6));
    gt_tensor *b = weight(ctx, "b", SHAPE(5)), *image = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(2, 3, 5, 5), -1, 1);
    gt_tensor *kernel = weight(ctx, "kernel", SHAPE(4, 3, 3, 3)), *batch = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(3, 2, 6), -1, 1);
    gt_conv2d_options relu;
    CHECK_OK(gt_conv2d_options_init(&relu, sizeof relu));
    relu.activation = GT_ACTIVATION_RELU;
    CHECK_OK(gt_autocast_begin(ctx, half));
    EXPECT_DTYPE(gt_linear(x, w, b), half);
    EXPECT_DTYPE(gt_linear(batch, w, b), half);
    EXPECT_DTYPE(gt_linear_activation(gt_cast(x, half), w, NULL, GT_ACTIVATION_RELU), half);
    EXPECT_DTYPE(gt_linear(gt_cast(x, half == GT_DTYPE_F16 ? GT_DTYPE_BF16 : GT_DTYPE_F16), w, b), half);
    EXPECT_DTYPE(gt_matmul(x, gt_transpose(w, 0, 1)), half);
    EXPECT_DTYPE(gt_matmul(batch, gt_transpose(w, 0, 1)), half);
    CHECK_REFUSED(gt_matmul(batch, x), GT_BAD_SHAPE, "matmul");
    EXPECT_DTYPE(gt_matmul(w, gt_transpose(batch, 1, 2)), half); /* broadcast */
    EXPECT_DTYPE(gt_conv2d(image, kernel, NULL, NULL), half);
    EXPECT_DTYPE(gt_conv2d(image, kernel, gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(4)), &relu), half);
    CHECK_OK(gt_autocast_end(ctx));
    EXPECT_DTYPE(gt_linear(x, w, b), GT_DTYPE_F32);
}

TEST_DEVICES(unit, autocast_runs_products_in_half) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    products_in(ctx, GT_DTYPE_F16);
    products_in(ctx, GT_DTYPE_BF16);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, autocast_keeps_range_and_precision_in_f32) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *h = MAKE(ctx, GT_DTYPE_F16, SHAPE(2, 2), 300, 300, 2, 1), *f = F32(ctx, SHAPE(2, 2), 1, 2, 3, 4);
    gt_tensor *labels = gt_tensor_zeros(ctx, GT_DTYPE_I64, SHAPE(2)), *ones = F32(ctx, SHAPE(2), 1, 1);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    CHECK_VALUES(gt_square(h), 90000, 90000, 4, 1); /* beyond f16 */
    EXPECT_DTYPE(gt_square(h), GT_DTYPE_F32);
    EXPECT_DTYPE(gt_exp(h), GT_DTYPE_F32);
    EXPECT_DTYPE(gt_log(h), GT_DTYPE_F32);
    CHECK_VALUES(gt_pow_scalar(h, 3), 27e6, 27e6, 8, 1);
    EXPECT_DTYPE(gt_softmax(h, 1), GT_DTYPE_F32);
    EXPECT_DTYPE(gt_log_softmax(h, 1), GT_DTYPE_F32);
    gt_tensor *many = gt_tensor_full(ctx, GT_DTYPE_F16, SHAPE(1000), 1000);
    EXPECT_DTYPE(gt_sum(many, NULL, 0, 0), GT_DTYPE_F32);
    CHECK_VALUES(gt_sum(many, NULL, 0, 0), 1e6);
    EXPECT_DTYPE(gt_sum(labels, NULL, 0, 0), GT_DTYPE_I64);
    /* These have f32 inside. */
    EXPECT_DTYPE(gt_mean(h, NULL, 0, 0), GT_DTYPE_F16);
    CHECK_VALUES(gt_mean(many, NULL, 0, 0), 1000);
    EXPECT_DTYPE(gt_cross_entropy(h, labels, NULL), GT_DTYPE_F32);
    EXPECT_DTYPE(gt_cross_entropy(f, labels, NULL), GT_DTYPE_F32);
    EXPECT_DTYPE(gt_layer_norm(h, ones, NULL, 1, 1e-5), GT_DTYPE_F16);
    EXPECT_DTYPE(gt_batch_norm(h, ones, ones, NULL, NULL, 1, .1, 1e-5), GT_DTYPE_F16);
    EXPECT_DTYPE(gt_relu(h), GT_DTYPE_F16);
    EXPECT_DTYPE(gt_gelu(f), GT_DTYPE_F32);
    /* The target keeps its dtype, as in a region it must. */
    EXPECT_DTYPE(gt_mse_loss(h, f, GT_REDUCTION_MEAN), GT_DTYPE_F32);
    EXPECT_DTYPE(gt_mse_loss(f, h, GT_REDUCTION_SUM), GT_DTYPE_F32);
    EXPECT_DTYPE(gt_mse_loss(h, h, GT_REDUCTION_NONE), GT_DTYPE_F32);
    CHECK_VALUES_TOL(gt_mse_loss(h, f, GT_REDUCTION_SUM), 1e-6, 299.0 * 299 + 298 * 298 + 1 + 9);
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_REFUSED(gt_mse_loss(h, f, GT_REDUCTION_MEAN), GT_BAD_DTYPE, "f16");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, autocast_promotes_to_the_widest) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *h = MAKE(ctx, GT_DTYPE_F16, SHAPE(2), 1, 2), *b = MAKE(ctx, GT_DTYPE_BF16, SHAPE(2), 4, 8), *f = F32(ctx, SHAPE(2), 0.1, 3);
    gt_tensor *d = MAKE(ctx, GT_DTYPE_F64, SHAPE(2), 1, 2);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    EXPECT_DTYPE(gt_add(h, f), GT_DTYPE_F32);
    CHECK_VALUES(gt_add(h, f), 1.1f, 5);
    EXPECT_DTYPE(gt_mul(f, h), GT_DTYPE_F32);
    EXPECT_DTYPE(gt_add(h, h), GT_DTYPE_F16);
    EXPECT_DTYPE(gt_add(h, b), GT_DTYPE_F32);
    EXPECT_DTYPE(gt_add(b, b), GT_DTYPE_BF16);
    CHECK_VALUES(gt_maximum(h, b), 4, 8);
    gt_tensor *many[12];
    for (int i = 0; i < 12; i++) many[i] = i % 3 == 0 ? h : i % 3 == 1 ? f : b;
    gt_tensor *joined = gt_concat(many, 12, 0);
    EXPECT_DTYPE(joined, GT_DTYPE_F32);
    CHECK_VALUES_TOL(joined, 1e-7, 1, 2, 0.1, 3, 4, 8, 1, 2, 0.1, 3, 4, 8, 1, 2, 0.1, 3, 4, 8, 1, 2, 0.1, 3, 4, 8);
    /* f64 is never touched, nor what it is used with. */
    EXPECT_DTYPE(gt_add(d, d), GT_DTYPE_F64);
    EXPECT_DTYPE(gt_square(d), GT_DTYPE_F64);
    EXPECT_DTYPE(gt_matmul(gt_reshape(d, SHAPE(2, 1)), gt_reshape(d, SHAPE(1, 2))), GT_DTYPE_F64);
    CHECK_REFUSED(gt_add(d, f), GT_BAD_DTYPE, "f32");
    CHECK_REFUSED(gt_matmul(gt_reshape(d, SHAPE(2, 1)), gt_reshape(f, SHAPE(1, 2))), GT_BAD_DTYPE, "f32");
    CHECK_OK(gt_autocast_disable(ctx));
    CHECK_REFUSED(gt_add(h, f), GT_BAD_DTYPE, "f16");
    gt_scope_end(ctx);
}

/* --- gradients ---------------------------------------------------------------------------------------------------------------------------------- */
typedef struct network {
    gt_tensor *kernel, *kernel_bias, *w, *b, *scale;
} network;

/* Cast by hand where `half` is not f32, else left to autocast. */
static gt_tensor *run_network(const network *n, gt_tensor *x, gt_tensor *labels, gt_dtype half) {
    gt_tensor *in[5] = {x, n->kernel, n->kernel_bias, n->w, n->b};
    for (int i = 0; i < 5 && half != GT_DTYPE_F32; i++) in[i] = gt_cast(in[i], half);
    gt_conv2d_options relu;
    CHECK_OK(gt_conv2d_options_init(&relu, sizeof relu));
    relu.activation = GT_ACTIVATION_RELU;
    gt_tensor *y = gt_conv2d(in[0], in[1], in[2], &relu);
    y = gt_layer_norm(gt_reshape(y, SHAPE(2, 36)), n->scale, NULL, 1, 1e-5);
    y = gt_linear(y, in[3], in[4]);
    return gt_cross_entropy(y, labels, NULL);
}

TEST_DEVICES(unit, autocast_gives_the_gradients_of_casts_by_hand) {
    const gt_context_options options = {.struct_size = sizeof options, .deterministic = 1, .workspace_limit = GT_WORKSPACE_AUTO, .seed = 7};
    gt_context *ctx = test_context_with(t, &options);
    gt_scope_begin(ctx);
    for (int kind = 0; kind < 2; kind++) {
        gt_dtype half = kind ? GT_DTYPE_BF16 : GT_DTYPE_F16;
        network auto_cast = {weight(ctx, "kernel", SHAPE(4, 3, 3, 3)), weight(ctx, "kernel_bias", SHAPE(4)), weight(ctx, "w", SHAPE(5, 36)),
                             weight(ctx, "b", SHAPE(5)), weight(ctx, "scale", SHAPE(36))};
        network by_hand;
        gt_tensor **from = &auto_cast.kernel, **to = &by_hand.kernel;
        for (int i = 0; i < 5; i++) {
            to[i] = gt_tensor_empty(ctx, GT_DTYPE_F32, gt_tensor_ndim(from[i]), gt_tensor_shape(from[i]));
            CHECK_OK(gt_no_grad_begin(ctx));
            CHECK_OK(gt_tensor_copy(to[i], from[i]));
            CHECK_OK(gt_no_grad_end(ctx));
            CHECK_OK(gt_tensor_set_requires_grad(to[i], 1));
        }
        gt_tensor *x = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(2, 3, 5, 5), -1, 1),
                  *labels = gt_tensor_zeros(ctx, GT_DTYPE_I64, SHAPE(2));
        for (int twice = 0; twice < 2; twice++) { /* the second time from the kept copies, adding to the gradients */
            gt_tensor *one = CHECK_TENSOR(run_network(&by_hand, x, labels, half));
            CHECK_OK(gt_backward(one));
            CHECK_OK(gt_autocast_begin(ctx, half));
            gt_tensor *two = CHECK_TENSOR(run_network(&auto_cast, x, labels, GT_DTYPE_F32));
            CHECK_OK(gt_backward(two)); /* inside the region: rules do not see it */
            CHECK_EQ_INT(gt_autocast_dtype(ctx), half);
            CHECK_OK(gt_autocast_end(ctx));
            expect_same_bits(one, two);
        }
        for (int i = 0; i < 5; i++) {
            EXPECT_EQ_INT(gt_tensor_dtype(gt_tensor_grad(from[i])), GT_DTYPE_F32);
            expect_same_bits(gt_tensor_grad(to[i]), gt_tensor_grad(from[i]));
        }
    }
    gt_scope_end(ctx);
}

/* Softmax reads halves and writes f32, its gradient the other way round: as casts around it do, without the copies. */
TEST_DEVICES(unit, autocast_softmax_converts_as_casts_do) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    const int64_t shapes[][2] = {{5, 64}, {3, 7}, {2, 4096}, {64, 3}};
    for (int way = 0; way < 16; way++) {
        gt_dtype half = way & 1 ? GT_DTYPE_BF16 : GT_DTYPE_F16;
        int32_t axis = way & 2 ? 0 : 1;
        const int64_t *shape = shapes[way / 4];
        gt_tensor *(*op)(gt_tensor *, int32_t) = way & 1 ? gt_log_softmax : gt_softmax;
        gt_tensor *values = gt_tensor_normal(ctx, half, 2, shape, 0, 3), *weights = gt_tensor_uniform(ctx, GT_DTYPE_F32, 2, shape, -1, 1);
        gt_tensor *grads[2], *results[2];
        for (int by_hand = 0; by_hand < 2; by_hand++) {
            gt_tensor *x = CHECK_TENSOR(gt_tensor_detach(values));
            CHECK_OK(gt_tensor_set_requires_grad(x, 1));
            if (!by_hand) CHECK_OK(gt_autocast_begin(ctx, half));
            results[by_hand] = CHECK_TENSOR(op(by_hand ? gt_cast(x, GT_DTYPE_F32) : x, axis));
            EXPECT_DTYPE(results[by_hand], GT_DTYPE_F32);
            gt_tensor *loss = gt_sum(gt_mul(results[by_hand], weights), NULL, 0, 0);
            if (!by_hand) CHECK_OK(gt_autocast_end(ctx));
            CHECK_OK(gt_backward(loss));
            grads[by_hand] = gt_tensor_grad(x);
        }
        /* Sums are taken in another order. */
        expect_close(results[0], results[1], 1e-6, 1e-6);
        expect_close(grads[0], grads[1], tolerance_of(half), 1e-6);
    }
    gt_scope_end(ctx);
}

/* --- half copies ---------------------------------------------------------------------------------------------------------------------------------- */
TEST_DEVICES(unit, autocast_casts_a_weight_once_a_version) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *w = weight(ctx, "w", SHAPE(64, 32)), *x = gt_tensor_uniform(ctx, GT_DTYPE_F16, SHAPE(8, 32), -1, 1);
    const gt__backend *before = count_kernels(ctx, w);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    for (int i = 0; i < 5; i++) {
        CHECK_OK(gt_backward(gt_sum(gt_linear(x, w, NULL), NULL, 0, 0)));
        if (i == 2) CHECK_OK(gt_no_grad_begin(ctx));
        if (i == 2) CHECK_TENSOR(gt_linear(x, w, NULL));
        if (i == 2) CHECK_OK(gt_no_grad_end(ctx));
    }
    EXPECT_EQ_INT(copies, 1);
    CHECK(w->storage->half_version == w->storage->version);
    CHECK_OK(gt_no_grad_begin(ctx));
    CHECK_OK(gt_tensor_fill(w, 2));
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK(w->storage->half_version != w->storage->version);
    gt_tensor *ones = gt_tensor_full(ctx, GT_DTYPE_F16, SHAPE(1, 32), 1);
    gt_tensor *y = gt_sum(gt_linear(ones, w, NULL), NULL, 0, 0);
    CHECK_VALUES(y, 64 * 64);
    EXPECT_EQ_INT(copies, 2);
    CHECK_VALUES(gt_sum(gt_linear(ones, w, NULL), NULL, 0, 0), 64 * 64);
    EXPECT_EQ_INT(copies, 2);
    /* The other half dtype is another copy. */
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_BF16));
    EXPECT_DTYPE(gt_linear(ones, w, NULL), GT_DTYPE_BF16);
    EXPECT_EQ_INT(copies, 3);
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_OK(gt_backward(y)); /* its own copy lives on */
    CHECK_OK(gt_autocast_end(ctx));
    ctx->backend = before;
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, autocast_does_not_keep_copies_of_inputs) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *w = weight(ctx, "w", SHAPE(64, 32)), *x = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(8, 32), -1, 1);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    CHECK_TENSOR(gt_linear(x, w, NULL));
    CHECK(x->storage->half == NULL);
    CHECK(w->storage->half != NULL);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, autocast_keeps_copies_of_frozen_parameters) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_module *layer = gt_nn_linear(ctx, 32, 64, NULL);
    CHECK_OK(gt_module_set_trainable(layer, 0));
    gt_tensor *x = gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(8, 32), -1, 1);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    const gt__backend *before = count_kernels(ctx, NULL);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(gt_tensor_requires_grad(CHECK_TENSOR(gt_module_forward(layer, x))), 0);
    EXPECT_EQ_INT(copies, 2); /* weight and bias */
    EXPECT_EQ_INT(casts, 3);  /* x */
    ctx->backend = before;
    gt_module_destroy(layer);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, autocast_copies_are_parameters_and_go_with_the_weight) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = weight(ctx, "w", SHAPE(512, 256));
    uint64_t bytes = parameter_bytes(ctx);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_uniform(ctx, GT_DTYPE_F16, SHAPE(1, 256), -1, 1);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    CHECK_TENSOR(gt_linear(x, w, NULL));
    CHECK_EQ_INT(parameter_bytes(ctx) - bytes, 512 * 256 * 2);
    CHECK_OK(gt_scope_end(ctx));
    CHECK_EQ_INT(parameter_bytes(ctx) - bytes, 512 * 256 * 2);
    CHECK_OK(gt_memory_trim(ctx));
    CHECK_EQ_INT(parameter_bytes(ctx), bytes);
    gt_scope_begin(ctx);
    x = gt_tensor_uniform(ctx, GT_DTYPE_F16, SHAPE(1, 256), -1, 1);
    CHECK_TENSOR(gt_linear(x, w, NULL));
    CHECK_OK(gt_scope_end(ctx));
    CHECK_EQ_INT(parameter_bytes(ctx) - bytes, 512 * 256 * 2);
    gt_tensor_release(w);
    CHECK_EQ_INT(parameter_bytes(ctx), 0);
}

TEST_DEVICES(unit, autocast_copies_go_when_a_module_changes_dtype) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_module *layer = gt_nn_linear(ctx, 32, 64, NULL);
    gt_tensor *x = gt_tensor_uniform(ctx, GT_DTYPE_F16, SHAPE(8, 32), -1, 1);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    gt_tensor *before = gt_module_forward(layer, x);
    CHECK_TENSOR(before);
    CHECK_OK(gt_module_to_dtype(layer, GT_DTYPE_F64));
    gt_tensor *w = NULL;
    CHECK_OK(gt_module_find(layer, "weight", &w));
    CHECK(w->storage->half == NULL);
    CHECK_OK(gt_module_to_dtype(layer, GT_DTYPE_F32));
    CHECK_OK(gt_no_grad_begin(ctx));
    expect_same_bits(before, gt_module_forward(layer, x));
    CHECK_OK(gt_no_grad_end(ctx));
    gt_module_destroy(layer);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, autocast_uses_the_copy_that_an_optimizer_wrote) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *w = weight(ctx, "fc1.weight", SHAPE(1, 2)), *x = F32(ctx, SHAPE(1, 2), 1, 1);
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_no_grad_begin(ctx));
    CHECK_OK(gt_tensor_fill(w, 1));
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK(gt__half_copy_of(w) == NULL);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    gt_tensor *old = gt_linear(x, w, NULL);
    gt_tensor *half = gt__half_copy_of(w);
    CHECK(half != NULL);
    CHECK_EQ_INT(half->meta.dtype, GT_DTYPE_F16);
    /* What a step's kernel does: both at once, and only then the versions. */
    CHECK_OK(gt__fill(w, 3));
    CHECK_OK(gt__fill(half, 5)); /* not 3: shows that it is used as it is */
    w->storage->version++;
    gt__half_copy_written(w);
    CHECK(gt__half_copy_of(w) == half);
    CHECK_VALUES(gt_linear(x, w, NULL), 10);
    /* An old graph must not take the new copy for its own. */
    CHECK_STATUS(gt_backward(old), GT_SAVED_MODIFIED);
    CHECK_ERROR_HAS("\"fc1.weight\" f16");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, autocast_without_memory_changes_nothing) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    CHECK_OK(gt_context_set_memory_limit(ctx, 160 << 20));
    gt_tensor *w = weight(ctx, "w", SHAPE(32768, 1024)), *x = gt_tensor_uniform(ctx, GT_DTYPE_F16, SHAPE(1, 1024), -1, 1);
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    uint64_t in_use = stats.in_use;
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    for (int i = 0; i < 3; i++) {
        CHECK_REFUSED(gt_linear(x, w, NULL), GT_OUT_OF_MEMORY, "autocast copy");
        CHECK_OK(gt_memory_get_stats(ctx, &stats));
        CHECK_EQ_INT(stats.in_use, in_use);
    }
    CHECK_OK(gt_context_set_memory_limit(ctx, 0));
    CHECK_TENSOR(gt_linear(x, w, NULL));
    gt_scope_end(ctx);
}

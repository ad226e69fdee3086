/* gt_module_to_dtype. */
#include "support.h"

static gt_module *small_net(gt_context *ctx) {
    gt_module *layers[] = {gt_nn_conv2d(ctx, 2, 3, 3, NULL), gt_nn_batch_norm(ctx, 3, NULL), gt_nn_relu(ctx), gt_nn_flatten(ctx, 1),
                           gt_nn_linear(ctx, 12, 4, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 5);
    CHECK(net != NULL);
    return net;
}

TEST_DEVICES(unit, to_half_keeps_norms_in_f32_and_runs) {
    gt_context *ctx = exact_context(t);
    static const gt_dtype halves[] = {GT_DTYPE_F16, GT_DTYPE_BF16};
    for (int i = 0; i < 2; ++i) {
        gt_module *net = small_net(ctx);
        gt_tensor *weight = named(net, "0.weight");
        double before[54], after[54];
        read_values(weight, before, 54);
        CHECK_OK(gt_module_to_dtype(net, halves[i]));
        CHECK(named(net, "0.weight") == weight); /* the handle stays */
        CHECK_EQ_INT(gt_tensor_dtype(weight), halves[i]);
        CHECK_EQ_INT(gt_tensor_strides(weight)[1], 1); /* still channels-last */
        CHECK_EQ_STR(gt_tensor_name(weight), "0.weight");
        CHECK_EQ_INT(gt_tensor_requires_grad(weight), 1);
        read_values(weight, after, 54);
        CHECK_ALLCLOSE_F64(after, before, 54, i ? 4e-3 : 5e-4, 1e-7);
        CHECK_EQ_INT(gt_tensor_dtype(named(net, "1.weight")), GT_DTYPE_F32);
        CHECK_EQ_INT(gt_tensor_dtype(named(net, "1.running_var")), GT_DTYPE_F32);
        CHECK_EQ_INT(gt_tensor_dtype(named(net, "1.num_batches_tracked")), GT_DTYPE_I64);
        CHECK_EQ_INT(gt_tensor_dtype(named(net, "4.bias")), halves[i]);
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 4, (const int64_t[]){2, 2, 4, 4});
        CHECK_OK(gt_backward(gt_sum(gt_module_forward(net, gt_cast(x, halves[i])), NULL, 0, 0)));
        CHECK_EQ_INT(gt_tensor_dtype(gt_tensor_grad(weight)), GT_DTYPE_F32);
        CHECK_OK(gt_scope_end(ctx));
        CHECK_OK(gt_module_to_dtype(net, GT_DTYPE_F32));
        CHECK(gt_tensor_grad(weight) == NULL);
        CHECK_EQ_INT(gt_tensor_dtype(weight), GT_DTYPE_F32);
        gt_module_destroy(net);
    }
    CHECK_EQ_INT(bytes_in_use(ctx, -1), 0);
}

TEST(unit, to_double_converts_statistics_too) {
    gt_context *ctx = exact_context(t);
    gt_module *net = small_net(ctx);
    CHECK_OK(gt_module_to_dtype(net, GT_DTYPE_F64));
    CHECK_EQ_INT(gt_tensor_dtype(named(net, "1.running_mean")), GT_DTYPE_F64);
    CHECK_EQ_INT(gt_tensor_dtype(named(net, "1.weight")), GT_DTYPE_F64);
    CHECK_EQ_INT(bytes_in_use(ctx, -1), bytes_in_use(ctx, GT_MEMORY_PARAMETER));
    CHECK_STATUS(gt_module_to_dtype(net, GT_DTYPE_I32), GT_BAD_DTYPE);
    CHECK_STATUS(gt_module_to_dtype(net, 99), GT_BAD_DTYPE);
    gt_module_destroy(net);
}

TEST(unit, to_dtype_without_memory_changes_nothing) {
    gt_context_options o;
    CHECK_OK(gt_context_options_init(&o, sizeof o));
    o.memory_limit = 24 << 20;
    gt_context *ctx = test_context_with(t, &o);
    gt_module *layers[] = {gt_nn_linear(ctx, 1024, 1024, NULL), gt_nn_linear(ctx, 1024, 2048, NULL)}; /* 4 and 8 MiB; in f64 8 and 16 */
    gt_module *net = gt_nn_sequential_from(ctx, layers, 2);
    CHECK(net != NULL);
    uint64_t before = bytes_in_use(ctx, -1);
    for (int i = 0; i < 10; ++i) {
        CHECK_STATUS(gt_module_to_dtype(net, GT_DTYPE_F64), GT_OUT_OF_MEMORY);
        CHECK_EQ_INT(bytes_in_use(ctx, -1), before);
        CHECK_EQ_INT(gt_tensor_dtype(named(net, "0.weight")), GT_DTYPE_F32);
        CHECK_EQ_INT(gt_tensor_dtype(named(net, "1.weight")), GT_DTYPE_F32);
    }
    CHECK_OK(gt_module_to_dtype(net, GT_DTYPE_F16));
    gt_module_destroy(net);
}

TEST(unit, a_backward_recorded_before_the_conversion_still_computes_the_old_function) {
    gt_context *ctx = exact_context(t);
    gt_module *m = gt_nn_linear(ctx, 1, 1, NULL);
    CHECK_OK(gt_nn_init_constant(named(m, "weight"), 3));
    CHECK_OK(gt_nn_init_constant(named(m, "bias"), 0));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *loss = gt_sum(gt_square(gt_module_forward(m, gt_tensor_full(ctx, GT_DTYPE_F32, 2, (const int64_t[]){1, 1}, 2))), NULL, 0, 0);
    CHECK_OK(gt_module_to_dtype(m, GT_DTYPE_F64));
    CHECK_OK(gt_backward(loss));
    CHECK_EQ_INT(gt_tensor_dtype(gt_tensor_grad(named(m, "weight"))), GT_DTYPE_F64);
    CHECK_NEAR(item(gt_tensor_grad(named(m, "weight"))), 24, 0); /* 2 * 6 * 2 */
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(m);
}

/* M6 over a long run: batch and image sizes that change at every step do not make reserved memory grow. */
#include "train/support.h"

enum { STEPS = 10000, SETTLED = 500, CLASSES = 4 };

static gt_module *small_cnn(gt_context *ctx) {
    gt_nn_conv2d_options o;
    CHECK_OK(gt_nn_conv2d_options_init(&o, sizeof o));
    o.padding[0] = o.padding[1] = 1;
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 8, 3, &o),
                           gt_nn_batch_norm(ctx, 8, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_conv2d(ctx, 8, 8, 3, &o),
                           gt_nn_relu(ctx),
                           gt_nn_adaptive_avg_pool2d(ctx, 1, 1),
                           gt_nn_flatten(ctx, 1),
                           gt_nn_linear(ctx, 8, CLASSES, NULL)};
    return gt_nn_sequential_from(ctx, layers, (int32_t)(sizeof layers / sizeof *layers));
}

static uint64_t reserved(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    return stats.reserved;
}

static gt_status step(gt_module *net, gt_optimizer *optimizer, uint64_t *random) {
    gt_context *ctx = gt_module_context(net);
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    int64_t batch = 2 + (int64_t)(*random >> 33) % 11, height = 4 + (int64_t)(*random >> 41) % 13,
            width = 4 + (int64_t)(*random >> 50) % 13;
    gt_tensor *x = gt_tensor_uniform(ctx, GT_DTYPE_F32, 4, (const int64_t[]){batch, 1, height, width}, -1, 1);
    gt_tensor *y = gt_tensor_zeros(ctx, GT_DTYPE_I64, 1, &batch);
    gt_status status = gt_optimizer_zero_grad(optimizer);
    if (status == GT_OK) status = gt_backward(gt_cross_entropy(gt_module_forward(net, x), y, NULL));
    return status == GT_OK ? gt_optimizer_step(optimizer) : status;
}

TEST_DEVICES(slow, reserved_memory_is_flat_over_10000_steps_of_changing_shapes) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.cpu_threads = 1;
    gt_context *ctx = test_context_with(t, &options);
    gt_module *net = small_cnn(ctx);
    gt_optimizer *optimizer = sgd(net, 0.01);
    uint64_t random = 7, settled = 0;
    for (int i = 0; i < STEPS; ++i) {
        CHECK_OK(gt_scope_begin(ctx));
        gt_status status = step(net, optimizer, &random);
        CHECK_OK(gt_scope_end(ctx));
        CHECK_OK(status);
        if (i + 1 == SETTLED) settled = reserved(ctx);
    }
    CHECK_EQ_INT(reserved(ctx), settled);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}

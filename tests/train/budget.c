/* A trainer with a memory budget trains the same in less memory, and says so where it cannot. */
#include "train/support.h"

#include <stdlib.h>

enum { SIDE = 16, CHANNELS = 16, SAMPLES = 64 };

typedef struct fitted {
    gt_status status;
    uint64_t peak;
    int64_t micro_batch;
    size_t bytes;
    char *bits;
} fitted;

static int32_t on_step(void *user, const gt_train_progress *now) {
    ((fitted *)user)->micro_batch = now->micro_batch;
    return 0;
}

static fitted fit(test_case *t, uint64_t budget, int32_t shrink, uint64_t offload) {
    static float x[SAMPLES * SIDE * SIDE];
    static int64_t y[SAMPLES];
    for (int i = 0; i < SAMPLES * SIDE * SIDE; ++i) x[i] = (float)((i * 31 + i / SIDE) % 97 - 48) / 50;
    for (int i = 0; i < SAMPLES; ++i) y[i] = i * 7 % 5;
    fitted f = {0};
    gt_context_options context;
    CHECK_OK(gt_context_options_init(&context, sizeof context));
    context.seed = 3;
    context.deterministic = 1;
    context.allow_tf32 = 0;
    gt_context *ctx = test_context_with(t, &context);
    gt_module *net = gt_nn_sequential(ctx);
    for (int i = 0; i < 4; ++i) {
        CHECK_OK(gt_nn_sequential_add(net, gt_nn_conv2d(ctx, i ? CHANNELS : 1, CHANNELS, 3, NULL)));
        CHECK_OK(gt_nn_sequential_add(net, gt_nn_batch_norm(ctx, CHANNELS, NULL)));
        CHECK_OK(gt_nn_sequential_add(net, gt_nn_gelu(ctx, 0)));
    }
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_adaptive_avg_pool2d(ctx, 1, 1)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_flatten(ctx, 1)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, CHANNELS, 5, NULL)));
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.length = SAMPLES;
    format.sample_ndim = 3;
    format.sample_shape[0] = 1;
    format.sample_shape[1] = format.sample_shape[2] = SIDE;
    format.has_labels = 1;
    gt_dataset *dataset = NULL;
    gt_loader *loader = NULL;
    gt_loader_options loading;
    CHECK_OK(gt_dataset_from_arrays(&format, x, y, 0, &dataset));
    CHECK_OK(gt_loader_options_init(&loading, sizeof loading));
    loading.batch_size = SAMPLES / 2;
    CHECK_OK(gt_loader_create(ctx, dataset, &loading, &loader));
    gt_trainer_options options = trainer_options(sgd(net, 0.05));
    gt_trainer *trainer = NULL;
    options.memory_budget = budget;
    options.offload = offload;
    options.compile = budget == 0;
    options.shrink_on_oom = shrink;
    options.on_step = on_step;
    options.callback_user = &f;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    f.status = gt_trainer_fit(trainer, loader, NULL, 1, NULL);
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    f.peak = stats.peak_in_use;
    for (int32_t i = 0; i < gt_module_parameter_count(net); ++i) {
        gt_tensor *p;
        CHECK_OK(gt_module_parameter(net, i, NULL, &p));
        f.bits = realloc(f.bits, f.bytes + gt_tensor_bytes(p));
        CHECK_OK(gt_tensor_read(p, f.bits + f.bytes, gt_tensor_bytes(p)));
        f.bytes += gt_tensor_bytes(p);
    }
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_dataset_destroy(dataset);
    gt_optimizer_destroy(options.optimizer);
    gt_module_destroy(net);
    return f;
}

TEST(unit, trainer_memory_budget_trains_the_same_in_less) {
    fitted whole = fit(t, 0, 0, 0);
    CHECK_OK(whole.status);
    fitted less = fit(t, whole.peak * 2 / 3, 0, 0);
    CHECK_OK(less.status);
    CHECK(less.peak < whole.peak * 4 / 5);
    CHECK_EQ_INT(less.micro_batch, SAMPLES / 2);
    CHECK(less.bytes == whole.bytes && memcmp(less.bits, whole.bits, less.bytes) == 0);
    fitted away = fit(t, whole.peak * 2 / 3, 0, 1); /* the host's memory may serve */
    CHECK_OK(away.status);
    CHECK(away.peak < whole.peak * 4 / 5);
    CHECK(away.bytes == whole.bytes && memcmp(away.bits, whole.bits, away.bytes) == 0);
    fitted least = fit(t, whole.peak / 6, 0, 0);
    CHECK_STATUS(least.status, GT_OUT_OF_MEMORY);
    CHECK_ERROR_HAS("the smallest that would do with micro_batches 1 is ");
    gt_clear_error();
    fitted parts = fit(t, whole.peak / 6, 1, 0);
    CHECK_OK(parts.status);
    CHECK(parts.micro_batch < SAMPLES / 2);
    free(whole.bits);
    free(less.bits);
    free(away.bits);
    free(least.bits);
    free(parts.bits);
}

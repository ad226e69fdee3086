/* A training step never waits for the device. */
#include "core/core.h"
#include "train/support.h"

static struct watch {
    const gt__backend *real;
    gt__backend table;
    int32_t waits;
    int32_t waits_at_step[64];
    int32_t steps;
} watch;

static gt_status watch_synchronize(gt__device *device, gt__stream_id stream) {
    watch.waits++;
    return watch.real->synchronize(device, stream);
}

static gt_status watch_copy(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *to, const void *from, size_t bytes) {
    watch.waits += kind == GT__COPY_DEVICE_TO_HOST;
    return watch.real->copy(device, stream, kind, to, from, bytes);
}

static int32_t note_waits(void *user, const gt_train_progress *now) {
    (void)user, (void)now;
    watch.waits_at_step[watch.steps++] = watch.waits;
    return 0;
}

TEST(unit, trainer_waits_only_to_read_metrics) {
    gt_context *ctx = test_context(t);
    float x[80];
    int64_t labels[40];
    for (int i = 0; i < 80; ++i) x[i] = (float)(i % 7), labels[i / 2] = i / 2 % 2;
    gt_module *net = gt_nn_linear(ctx, 2, 2, NULL);
    gt_optimizer *optimizer = sgd(net, 0.01);
    gt_loader *loader = vectors_loader(ctx, x, 2, labels, 40, 1);
    gt_trainer_options options = trainer_options(optimizer);
    options.clip_norm = 1;
    options.log_every = 10;
    options.on_step = note_waits;
    gt_trainer *trainer = NULL;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    memset(&watch, 0, sizeof watch);
    watch.real = ctx->backend;
    watch.table = *ctx->backend;
    watch.table.synchronize = watch_synchronize;
    watch.table.copy = watch_copy;
    ctx->backend = &watch.table;
    gt_status status = gt_trainer_fit(trainer, loader, NULL, 1, NULL);
    ctx->backend = watch.real;
    CHECK_OK(status);
    CHECK_EQ_INT(watch.steps, 40);
    for (int step = 1; step < 40; ++step) {
        int32_t waited = watch.waits_at_step[step] - watch.waits_at_step[step - 1];
        if ((step + 1) % 10 != 0 || step == 39)
            EXPECT_EQ_INT(waited, 0);
        else
            EXPECT(waited > 0); /* so the watch sees waits */
    }
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}

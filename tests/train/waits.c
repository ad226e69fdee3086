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

static gt_status watch_event(gt__device *device, gt__event *event) {
    watch.waits++;
    return watch.real->event_wait_host(device, event);
}

static gt_status watch_copy(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *to, const void *from, size_t bytes) {
    watch.waits += kind == GT__COPY_DEVICE_TO_HOST;
    return watch.real->copy(device, stream, kind, to, from, bytes);
}

static void watch_begin(gt_context *ctx) {
    memset(&watch, 0, sizeof watch);
    watch.real = ctx->backend;
    watch.table = *ctx->backend;
    watch.table.synchronize = watch_synchronize;
    watch.table.event_wait_host = watch_event;
    watch.table.copy = watch_copy;
    ctx->backend = &watch.table;
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
    watch_begin(ctx);
    /* The loader waits until a pinned buffer was copied, before it fills it again. */
    watch.table.event_wait_host = watch.real->event_wait_host;
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

/* One micro-batch in f16 whose inputs are on the device already. */
static gt_status half_micro_batch(gt_window *window, gt_module *net, gt_tensor *x, gt_tensor *labels) {
    gt_context *ctx = gt_module_context(net);
    gt_status status = gt_window_micro_begin(window);
    if (status == GT_OK) status = gt_scope_begin(ctx);
    if (status == GT_OK) status = gt_autocast_begin(ctx, GT_DTYPE_F16);
    if (status != GT_OK) return status;
    gt_tensor *loss = gt_cross_entropy(gt_module_forward(net, x), labels, NULL);
    (void)gt_autocast_end(ctx);
    status = gt_window_micro_end(window, loss, 0, gt_cross_entropy_valid(loss));
    (void)gt_scope_end(ctx);
    return status;
}

/* Scaling, skipping, clipping, averaging and scheduling in f16, and nothing of it comes back to the host. */
TEST_DEVICES(unit, windows_never_wait) {
    gt_context *ctx = test_context(t);
    gt_module *const layers[] = {gt_nn_linear(ctx, 8, 16, NULL), gt_nn_batch_norm(ctx, 16, NULL), gt_nn_relu(ctx), gt_nn_dropout(ctx, 0.1),
                                 gt_nn_linear(ctx, 16, 4, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 5);
    CHECK(net != NULL);
    gt_optimizer_options oo;
    gt_optimizer *optimizer;
    CHECK_OK(gt_optimizer_options_init(&oo, sizeof oo, GT_OPTIMIZER_ADAMW));
    CHECK_OK(gt_optimizer_create_for(&oo, net, &optimizer));
    gt_scaler_options so;
    gt_scaler *scaler;
    CHECK_OK(gt_scaler_options_init(&so, sizeof so));
    so.growth_interval = 2; /* grows until steps are skipped */
    CHECK_OK(gt_scaler_create(ctx, &so, &scaler));
    gt_schedule schedule;
    CHECK_OK(gt_schedule_init(&schedule, sizeof schedule, GT_SCHEDULE_COSINE));
    schedule.base = 0.01;
    schedule.total_steps = 50;
    schedule.warmup_steps = 5;
    gt_window_options o;
    gt_window *window;
    CHECK_OK(gt_window_options_init(&o, sizeof o));
    o.micro_batches = 2;
    o.optimizers = &optimizer;
    o.n_optimizers = 1;
    o.module = net;
    o.scaler = scaler;
    o.schedule = &schedule;
    o.clip_norm = 0.5;
    o.clip_value = 0.1;
    CHECK_OK(gt_window_create(&o, &window));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, 2, (const int64_t[]){16, 8}, 0, 1));
    gt_tensor *labels = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_I64, 1, (const int64_t[]){16}, 2));
    for (int i = 0; i < 4; ++i) CHECK_OK(half_micro_batch(window, net, x, labels)); /* plans are chosen by timing */
    watch_begin(ctx);
    gt_status status = GT_OK;
    for (int i = 0; i < 120 && status == GT_OK; ++i) status = half_micro_batch(window, net, x, labels);
    if (status == GT_OK) status = gt_window_micro_begin(window);
    if (status == GT_OK) status = gt_window_cancel(window); /* nor does going back */
    ctx->backend = watch.real;
    CHECK_OK(status);
    CHECK_EQ_INT(watch.waits, 0);
    gt_window_state state;
    CHECK_OK(gt_window_state_init(&state, sizeof state));
    CHECK_OK(gt_window_get_state(window, &state));
    CHECK(state.updates > 30 && state.skipped > 0 && state.updates + state.skipped == 62);
    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
    gt_tensor_release(x);
    gt_tensor_release(labels);
}

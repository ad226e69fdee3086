/* Making a trainer, its options and state, and evaluation. */
#include "train/trainer.h"

#include <gtrain/checkpoint.h>

#include <math.h>

/* --- options -------------------------------------------------------------------------------------------------------------------- */

const gt_metrics gt__no_metrics = {.struct_size = sizeof(gt_metrics), .loss = NAN, .accuracy = NAN};

gt_status gt_metrics_init(gt_metrics *metrics, size_t size) {
    return gt__options_write(metrics, size, &gt__no_metrics, sizeof gt__no_metrics, "gt_metrics");
}

static const gt_trainer_options defaults = {
    .struct_size = sizeof(gt_trainer_options),
    .log_every = 50,
    .accumulation = 1,
};

gt_status gt_trainer_options_init(gt_trainer_options *options, size_t size) {
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_trainer_options");
}

static gt_status check_memory_options(const gt_trainer_options *o) {
    GT_REQUIRE(o->precision >= GT_PRECISION_F32 && o->precision <= GT_PRECISION_BF16, GT_BAD_ARGUMENT,
               "trainer: option precision is %d, which is none of GT_PRECISION_…", (int)o->precision);
    GT_REQUIRE(o->accumulation > 0, GT_BAD_ARGUMENT, "trainer: option accumulation is %d; an update takes at least 1 batch",
               (int)o->accumulation);
    GT_REQUIRE(o->checkpointing >= 0, GT_BAD_ARGUMENT, "trainer: option checkpointing is %d segments; 0 means none", (int)o->checkpointing);
    GT_REQUIRE(!o->compile || o->memory_budget > 0 || o->offload == 0, GT_NOT_SUPPORTED,
               "trainer: option offload is %llu bytes and option compile is set without a memory_budget, but in a compiled step the budget "
               "decides what goes to the host; "
               "set one, or leave one of them out",
               (unsigned long long)o->offload);
    return GT_OK;
}

static gt_status check_options(const gt_trainer_options *o) {
    GT_REQUIRE(o->loss == GT_LOSS_CROSS_ENTROPY || o->loss == GT_LOSS_MSE || o->loss == GT_LOSS_CUSTOM, GT_BAD_ARGUMENT,
               "trainer: option loss is %d, which is none of GT_LOSS_…", (int)o->loss);
    GT_REQUIRE((o->loss == GT_LOSS_CUSTOM) == (o->loss_fn != NULL), GT_BAD_ARGUMENT, "trainer: option loss_fn is %s, but loss is %d",
               o->loss_fn ? "set" : "NULL", (int)o->loss);
    GT_REQUIRE(isfinite(o->clip_norm) && o->clip_norm >= 0, GT_BAD_ARGUMENT, "trainer: option clip_norm is %g; 0 means no limit",
               o->clip_norm);
    GT_REQUIRE(isfinite(o->clip_value) && o->clip_value >= 0, GT_BAD_ARGUMENT, "trainer: option clip_value is %g; 0 means no limit",
               o->clip_value);
    GT_REQUIRE(o->log_every >= 0, GT_BAD_ARGUMENT, "trainer: option log_every is %lld", (long long)o->log_every);
    return check_memory_options(o);
}

static gt_status copy_objective(gt_trainer *trainer) {
    const gt_trainer_options *o = &trainer->options;
    gt__objective *objective = &trainer->objective;
    objective->kind = o->loss;
    objective->fn = o->loss_fn;
    objective->user = o->loss_user;
    gt_cross_entropy_options ours;
    GT_TRY(gt_cross_entropy_options_init(&ours, sizeof ours));
    if (o->cross_entropy) GT_TRY(gt__options_read(&ours, sizeof ours, o->cross_entropy, "gt_cross_entropy_options"));
    GT_REQUIRE(ours.reduction == GT_REDUCTION_MEAN, GT_BAD_ARGUMENT,
               "trainer: option cross_entropy has reduction %d; the trainer's loss is the mean (GT_REDUCTION_MEAN)", (int)ours.reduction);
    GT_REQUIRE(ours.label_smoothing >= 0 && ours.label_smoothing <= 1, GT_BAD_ARGUMENT,
               "trainer: option cross_entropy has label_smoothing %g, which is not from 0 to 1", ours.label_smoothing);
    gt_tensor_retain(ours.class_weights);
    objective->cross_entropy = ours;
    return GT_OK;
}

/* The scaler, the window, and segments. */
static gt_status prepare_memory(gt_trainer *trainer) {
    const gt_trainer_options *o = &trainer->options;
    trainer->scaler = o->scaler;
    if (o->scaler == NULL && o->precision == GT_PRECISION_F16) {
        GT_TRY(gt_scaler_create(trainer->ctx, NULL, &trainer->own_scaler));
        trainer->scaler = trainer->own_scaler;
    }
    if (o->checkpointing > 0) GT_TRY(gt_nn_sequential_set_segments(trainer->module, o->checkpointing));
    if (o->optimizer == NULL) return GT_OK;
    trainer->kept = gt__calloc((size_t)o->accumulation, sizeof *trainer->kept);
    if (trainer->kept == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_window_options w;
    GT_TRY(gt_window_options_init(&w, sizeof w));
    w.micro_batches = o->accumulation;
    w.optimizers = &o->optimizer;
    w.n_optimizers = 1;
    w.module = trainer->module;
    w.scaler = trainer->scaler;
    w.schedule = trainer->has_schedule ? &trainer->schedule : NULL;
    w.clip_norm = o->clip_norm;
    w.clip_value = o->clip_value;
    return gt_window_create(&w, &trainer->window);
}

static gt_status compile(gt_trainer *trainer) {
    if (!trainer->options.compile && trainer->options.memory_budget == 0) return GT_OK;
    if (trainer->window) GT_TRY(gt__compiled_create(trainer, true, NULL, &trainer->compiled));
    return gt__compiled_create(trainer, false, trainer->compiled, &trainer->evaluation);
}

gt_status gt_trainer_create(gt_module *module, const gt_trainer_options *caller_options, gt_trainer **result) {
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE(result != NULL, GT_BAD_ARGUMENT, "trainer_create: the result pointer is NULL");
    gt_trainer_options options = defaults;
    if (caller_options) GT_TRY(gt__options_read(&options, sizeof options, caller_options, "gt_trainer_options"));
    GT_TRY(check_options(&options));
    GT_TRY(gt_module_check(module));

    gt_trainer *trainer = gt__calloc(1, sizeof *trainer);
    if (trainer == NULL) return GT_OUT_OF_HOST_MEMORY;
    trainer->module = module;
    trainer->ctx = gt_module_context(module);
    trainer->options = options;
    gt_status status = GT_OK;
    GT_TRY_GOTO(status, copy_objective(trainer), fail);
    if (options.schedule) {
        GT_TRY_GOTO(status, gt_schedule_init(&trainer->schedule, sizeof trainer->schedule, GT_SCHEDULE_CONSTANT), fail);
        GT_TRY_GOTO(status, gt__options_read(&trainer->schedule, sizeof trainer->schedule, options.schedule, "gt_schedule"), fail);
        double rate;
        GT_TRY_GOTO(status, gt_schedule_rate(&trainer->schedule, 0, &rate), fail); /* names a field that does not fit */
        trainer->has_schedule = true;
    }
    trainer->parts = trainer->evaluation_parts = 1;
    GT_TRY_GOTO(status, prepare_memory(trainer), fail);
    GT_TRY_GOTO(status, compile(trainer), fail);
    trainer->options.schedule = NULL;
    trainer->options.cross_entropy = NULL;
    *result = trainer;
    return GT_OK;
fail:
    gt_trainer_destroy(trainer);
    return status;
}

void gt_trainer_destroy(gt_trainer *trainer) {
    if (trainer == NULL) return;
    if (trainer->window) gt__trainer_drop_window(trainer);
    gt__compiled_destroy(trainer->evaluation);
    gt__compiled_destroy(trainer->compiled);
    gt_window_destroy(trainer->window);
    gt_scaler_destroy(trainer->own_scaler);
    gt__meter_end(&trainer->meter);
    gt__free(trainer->kept);
    gt_tensor_release(trainer->objective.cross_entropy.class_weights);
    gt__free(trainer);
}

gt_scaler *gt_trainer_scaler(const gt_trainer *trainer) { return trainer ? trainer->scaler : NULL; }

gt_status gt_trainer_state_get(const gt_trainer *trainer, int64_t *epoch, int64_t *total_steps) {
    GT_REQUIRE_HANDLE(trainer);
    gt_window_state state;
    GT_TRY(gt_window_state_init(&state, sizeof state));
    if (trainer->window) GT_TRY(gt_window_get_state(trainer->window, &state));
    if (epoch) *epoch = trainer->epoch;
    if (total_steps) *total_steps = trainer->window ? state.updates : trainer->total_steps;
    return GT_OK;
}

gt_status gt_trainer_state_set(gt_trainer *trainer, int64_t epoch, int64_t total_steps) {
    GT_REQUIRE_HANDLE(trainer);
    GT_REQUIRE(epoch >= 0 && total_steps >= 0, GT_BAD_ARGUMENT, "trainer_state_set: epoch %lld, total_steps %lld", (long long)epoch,
               (long long)total_steps);
    if (trainer->window) GT_TRY(gt_window_set_updates(trainer->window, total_steps));
    gt__meter_end(&trainer->meter);
    trainer->epoch = epoch;
    trainer->batch = trainer->batches = 0;
    trainer->total_steps = total_steps;
    trainer->skipped = 0;
    return GT_OK;
}

/* --- evaluation ------------------------------------------------------------------------------------------------------------------- */

gt_status gt__trainer_check_loader(const gt_trainer *trainer, const gt_loader *loader, const char *which) {
    GT_REQUIRE(loader != NULL, GT_BAD_ARGUMENT, "trainer: the %s loader is NULL", which);
    GT_REQUIRE(gt_loader_context(loader) == trainer->ctx, GT_BAD_DEVICE,
               "trainer: the %s loader belongs to another context than the module", which);
    return GT_OK;
}

gt_status gt__trainer_forward(gt_trainer *trainer, gt_tensor *x, gt_tensor *y, int64_t count, bool training, gt__loss *loss) {
    const gt_trainer_options *o = &trainer->options;
    gt_context *ctx = trainer->ctx;
    bool half = o->precision != GT_PRECISION_F32, offload = training && o->offload > 0 && o->memory_budget == 0;
    if (half) GT_TRY(gt_autocast_begin(ctx, o->precision == GT_PRECISION_F16 ? GT_DTYPE_F16 : GT_DTYPE_BF16));
    gt_status status = offload ? gt_offload_begin(ctx, o->offload) : GT_OK;
    bool offloading = offload && status == GT_OK;
    if (status == GT_OK) status = gt__loss_run(&trainer->objective, gt_module_forward(trainer->module, x), y, count, loss);
    if (offloading) (void)gt_offload_end(ctx);
    if (half) (void)gt_autocast_end(ctx);
    return status;
}

gt_status gt__trainer_items(const gt_trainer *trainer, const gt__loss *loss, gt_tensor **items) {
    /* A window of one micro-batch is the mean already; else what counts is what the loss divided by. */
    bool alone = trainer->options.accumulation == 1 && trainer->parts == 1;
    *items = NULL;
    if (alone || loss->sums == NULL) return GT_OK;
    *items = gt_slice(gt_tensor_detach(loss->sums), 0, 0, 1, 1);
    return *items ? GT_OK : gt_last_error()->status;
}

/* In a scope of its own. */
static gt_status evaluate_part(gt_trainer *trainer, gt_tensor *x, gt_tensor *y, int64_t begin, int64_t end, gt__meter *meter) {
    bool whole = begin == 0 && end == gt_tensor_size(x, 0);
    GT_TRY(gt_scope_begin(trainer->ctx));
    gt_tensor *xi = whole ? x : gt_slice(x, 0, begin, end, 1), *yi = whole || y == NULL ? y : gt_slice(y, 0, begin, end, 1);
    gt__loss loss;
    gt_status status = xi && (yi || y == NULL) ? GT_OK : gt_last_error()->status;
    if (status == GT_OK && trainer->evaluation) {
        status = gt__compiled_run(trainer->evaluation, meter, xi, yi, end - begin, 1, true);
    } else if (status == GT_OK) {
        status = gt__trainer_forward(trainer, xi, yi, end - begin, false, &loss);
        if (status == GT_OK) status = gt__meter_add(meter, &loss);
    }
    (void)gt_scope_end(trainer->ctx);
    return status;
}

/* Forward and metrics of the loader's next batch; *count 0 at the end. Inside a scope. */
static gt_status evaluate_batch(gt_trainer *trainer, gt_loader *loader, gt__meter *meter, int64_t *count) {
    gt_tensor *x, *y;
    GT_TRY(gt_loader_next(loader, &x, &y, count));
    for (int64_t begin = 0; begin < *count;) {
        int64_t most = (*count + trainer->evaluation_parts - 1) / trainer->evaluation_parts, end = GT__MIN(begin + most, *count);
        gt_status status = evaluate_part(trainer, x, y, begin, end, meter);
        if (status == GT_OK) {
            begin = end;
        } else if (status == GT_OUT_OF_MEMORY && trainer->options.shrink_on_oom && most > 1) { /* samples do not see each other here */
            trainer->evaluation_parts *= 2;
            gt_clear_error();
        } else {
            return status;
        }
    }
    return GT_OK;
}

static gt_status evaluate(gt_trainer *trainer, gt_loader *loader, gt_metrics *metrics) {
    gt__meter meter = {0};
    gt__meter_begin(&meter, trainer->ctx, &trainer->objective);
    int64_t count = 1;
    gt_status status = gt_loader_start_epoch(loader, 0);
    while (status == GT_OK && count > 0) {
        status = gt_scope_begin(trainer->ctx);
        if (status != GT_OK) break;
        status = evaluate_batch(trainer, loader, &meter, &count);
        (void)gt_scope_end(trainer->ctx);
    }
    if (status == GT_OK) status = gt__compiled_settle(trainer->evaluation, &meter);
    if (status == GT_OK) status = gt__meter_read(&meter, metrics);
    gt__meter_end(&meter);
    return status;
}

gt_status gt__trainer_evaluate(gt_trainer *trainer, gt_loader *loader, gt_metrics *metrics) {
    int32_t training = gt_module_training(trainer->module);
    GT_TRY(gt_no_grad_begin(trainer->ctx));
    gt_status status = gt_module_set_training(trainer->module, 0);
    if (status == GT_OK) status = evaluate(trainer, loader, metrics);
    gt_status back = gt_module_set_training(trainer->module, training);
    (void)gt_no_grad_end(trainer->ctx);
    return status != GT_OK ? status : back;
}

gt_status gt_trainer_evaluate(gt_trainer *trainer, gt_loader *loader, gt_metrics *metrics) {
    GT_REQUIRE_HANDLE(trainer);
    GT_TRY(gt__trainer_check_loader(trainer, loader, "evaluation"));
    GT_REQUIRE(metrics != NULL, GT_BAD_ARGUMENT, "trainer_evaluate: metrics is NULL");
    gt_metrics ours = gt__no_metrics;
    GT_TRY(gt__options_read(&ours, sizeof ours, metrics, "gt_metrics"));
    GT_TRY(gt__compiled_reset(trainer->evaluation));
    ours = gt__no_metrics;
    GT_TRY(gt__trainer_evaluate(trainer, loader, &ours));
    return gt__options_write(metrics, metrics->struct_size, &ours, sizeof ours, "gt_metrics");
}

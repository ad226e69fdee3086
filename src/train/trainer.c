#include "train/loss.h"
#include "train/metrics.h"

#include <math.h>

struct gt_trainer {
    gt_module *module;
    gt_context *ctx;
    gt_trainer_options options;
    gt__objective objective;
    gt_schedule schedule;
    bool has_schedule;
    int64_t epoch; /* number of the next one */
    int64_t total_steps;
};

/* --- options -------------------------------------------------------------------------------------------------------------------- */

static const gt_metrics no_metrics = {.struct_size = sizeof(gt_metrics), .loss = NAN, .accuracy = NAN};

gt_status gt_metrics_init(gt_metrics *metrics, size_t size) {
    return gt__options_write(metrics, size, &no_metrics, sizeof no_metrics, "gt_metrics");
}

static const gt_fit_result no_result = {
    .struct_size = sizeof(gt_fit_result),
    .training = {.struct_size = sizeof(gt_metrics), .loss = NAN, .accuracy = NAN},
    .validation = {.struct_size = sizeof(gt_metrics), .loss = NAN, .accuracy = NAN},
};

gt_status gt_fit_result_init(gt_fit_result *result, size_t size) {
    return gt__options_write(result, size, &no_result, sizeof no_result, "gt_fit_result");
}

static const gt_trainer_options defaults = {
    .struct_size = sizeof(gt_trainer_options),
    .log_every = 50,
    .accumulation = 1,
};

gt_status gt_trainer_options_init(gt_trainer_options *options, size_t size) {
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_trainer_options");
}

/* Options that later versions will honour are refused, so that nobody believes they work. */
static gt_status check_future_options(const gt_trainer_options *o) {
    GT_REQUIRE(o->precision == GT_PRECISION_F32,
               o->precision == GT_PRECISION_F16 || o->precision == GT_PRECISION_BF16 ? GT_NOT_SUPPORTED : GT_BAD_ARGUMENT,
               "trainer: option precision is %d; this version trains in f32 only (GT_PRECISION_F32, %d)", (int)o->precision,
               GT_PRECISION_F32);
    GT_REQUIRE(o->accumulation > 0, GT_BAD_ARGUMENT, "trainer: option accumulation is %d; a window has at least 1 micro-batch",
               (int)o->accumulation);
    GT_REQUIRE(o->accumulation == 1, GT_NOT_SUPPORTED, "trainer: option accumulation is %d; this version updates after every batch (1)",
               (int)o->accumulation);
    GT_REQUIRE(o->checkpointing == 0, GT_NOT_SUPPORTED, "trainer: option checkpointing is %d; this version keeps all activations (0)",
               (int)o->checkpointing);
    GT_REQUIRE(o->memory_budget == 0, GT_NOT_SUPPORTED,
               "trainer: option memory_budget is %llu bytes; this version cannot plan for one (0). The context's memory_limit works",
               (unsigned long long)o->memory_budget);
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
    return check_future_options(o);
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
    gt_tensor_release(trainer->objective.cross_entropy.class_weights);
    gt__free(trainer);
}

gt_status gt_trainer_state_get(const gt_trainer *trainer, int64_t *epoch, int64_t *total_steps) {
    GT_REQUIRE_HANDLE(trainer);
    if (epoch) *epoch = trainer->epoch;
    if (total_steps) *total_steps = trainer->total_steps;
    return GT_OK;
}

gt_status gt_trainer_state_set(gt_trainer *trainer, int64_t epoch, int64_t total_steps) {
    GT_REQUIRE_HANDLE(trainer);
    GT_REQUIRE(epoch >= 0 && total_steps >= 0, GT_BAD_ARGUMENT, "trainer_state_set: epoch %lld, total_steps %lld", (long long)epoch,
               (long long)total_steps);
    trainer->epoch = epoch;
    trainer->total_steps = total_steps;
    return GT_OK;
}

/* --- evaluation ------------------------------------------------------------------------------------------------------------------- */

static gt_status check_loader(const gt_trainer *trainer, const gt_loader *loader, const char *which) {
    GT_REQUIRE(loader != NULL, GT_BAD_ARGUMENT, "trainer: the %s loader is NULL", which);
    GT_REQUIRE(gt_loader_context(loader) == trainer->ctx, GT_BAD_DEVICE,
               "trainer: the %s loader belongs to another context than the module", which);
    return GT_OK;
}

/* Forward and metrics of the loader's next batch; *count 0 at the end. Inside a scope. */
static gt_status evaluate_batch(gt_trainer *trainer, gt_loader *loader, gt__meter *meter, int64_t *count) {
    gt_tensor *x, *y;
    GT_TRY(gt_loader_next(loader, &x, &y, count));
    if (*count == 0) return GT_OK;
    gt__loss loss;
    GT_TRY(gt__loss_run(&trainer->objective, gt_module_forward(trainer->module, x), y, *count, &loss));
    return gt__meter_add(meter, &loss);
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
    if (status == GT_OK) status = gt__meter_read(&meter, metrics);
    gt__meter_end(&meter);
    return status;
}

/* In evaluation mode, without gradients; the mode before is put back. */
static gt_status evaluate_quietly(gt_trainer *trainer, gt_loader *loader, gt_metrics *metrics) {
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
    GT_TRY(check_loader(trainer, loader, "evaluation"));
    GT_REQUIRE(metrics != NULL, GT_BAD_ARGUMENT, "trainer_evaluate: metrics is NULL");
    gt_metrics ours = no_metrics;
    GT_TRY(gt__options_read(&ours, sizeof ours, metrics, "gt_metrics"));
    ours = no_metrics;
    GT_TRY(evaluate_quietly(trainer, loader, &ours));
    return gt__options_write(metrics, metrics->struct_size, &ours, sizeof ours, "gt_metrics");
}

/* --- training --------------------------------------------------------------------------------------------------------------------- */

/* One call of gt_trainer_fit. */
typedef struct fit {
    gt_trainer *trainer;
    gt_loader *training, *validation;
    gt__meter meter;
    gt_train_progress progress;
    gt_fit_result result;
    int64_t last_epoch;    /* number of the first epoch after this fit */
    int64_t samples;       /* trained on in this fit */
    int64_t epoch_samples; /* and in this epoch */
    double began, epoch_began;
} fit;

static gt_status update(gt_trainer *trainer, gt_tensor *loss, double *rate) {
    const gt_trainer_options *o = &trainer->options;
    if (trainer->has_schedule) {
        GT_TRY(gt_schedule_rate(&trainer->schedule, trainer->total_steps, rate));
        GT_TRY(gt_optimizer_set_learning_rate(o->optimizer, *rate));
    } else {
        *rate = gt_optimizer_learning_rate(o->optimizer);
    }
    GT_TRY(gt_optimizer_zero_grad(o->optimizer));
    GT_TRY(gt_backward(loss));
    if (o->clip_value > 0) GT_TRY(gt_optimizer_clip_grad_value(o->optimizer, o->clip_value));
    if (o->clip_norm > 0) GT_TRY(gt_optimizer_clip_grad_norm(o->optimizer, o->clip_norm, NULL));
    return gt_optimizer_step(o->optimizer);
}

/* Inside a scope. *count 0: the epoch is over. */
static gt_status train_batch(fit *f, int64_t *count) {
    gt_trainer *trainer = f->trainer;
    gt_tensor *x, *y;
    GT_TRY(gt_loader_next(f->training, &x, &y, count));
    if (*count == 0) return GT_OK;
    gt__loss loss;
    GT_TRY(gt__loss_run(&trainer->objective, gt_module_forward(trainer->module, x), y, *count, &loss));
    GT_TRY(update(trainer, loss.value, &f->progress.learning_rate));
    return gt__meter_add(&f->meter, &loss);
}

/* Reads the metrics, and with them the clock: before, the device may have been behind. */
static gt_status measure(fit *f) {
    gt_train_progress *p = &f->progress;
    GT_TRY(gt__meter_read(&f->meter, &p->training));
    gt_memory_stats memory;
    GT_TRY(gt_memory_stats_init(&memory, sizeof memory));
    GT_TRY(gt_memory_get_stats(f->trainer->ctx, &memory));
    p->memory_in_use = memory.in_use;
    p->memory_peak = memory.peak_in_use;
    double seconds = gt__clock_seconds() - f->epoch_began;
    p->samples_per_second = seconds > 0 ? (double)f->epoch_samples / seconds : 0;
    p->measured = 1;
    return GT_OK;
}

static void look_ahead(fit *f) {
    gt_train_progress *p = &f->progress;
    double left = (double)(gt_loader_samples(f->training) - f->epoch_samples) +
                  (double)(f->last_epoch - p->epoch - 1) * (double)gt_loader_samples(f->training);
    p->seconds = gt__clock_seconds() - f->began;
    p->seconds_left = p->samples_per_second > 0 ? left / p->samples_per_second : 0;
}

static gt_status train_epoch(fit *f) {
    gt_trainer *trainer = f->trainer;
    const gt_trainer_options *o = &trainer->options;
    gt_train_progress *p = &f->progress;
    GT_TRY(gt_module_set_training(trainer->module, 1));
    GT_TRY(gt_loader_start_epoch(f->training, trainer->epoch));
    gt__meter_begin(&f->meter, trainer->ctx, &trainer->objective);
    p->training = p->validation = no_metrics;
    p->epoch = trainer->epoch;
    p->step = 0;
    f->epoch_samples = 0;
    f->epoch_began = gt__clock_seconds();
    int64_t count = 1;
    while (count > 0 && !f->result.stopped) {
        GT_TRY(gt_scope_begin(trainer->ctx));
        gt_status status = train_batch(f, &count);
        (void)gt_scope_end(trainer->ctx);
        if (status != GT_OK) return status;
        if (count == 0) break;
        trainer->total_steps++;
        f->result.steps++;
        f->epoch_samples += count;
        f->samples += count;
        p->step++;
        p->total_steps = trainer->total_steps;
        p->measured = 0;
        if (o->log_every > 0 && p->step % o->log_every == 0 && p->step < p->steps) GT_TRY(measure(f));
        if (o->on_step) {
            look_ahead(f);
            f->result.stopped = o->on_step(o->callback_user, p) != 0;
        }
    }
    GT_TRY(measure(f));
    f->result.training_seconds += gt__clock_seconds() - f->epoch_began;
    f->result.training = p->training;
    return GT_OK;
}

static gt_status end_epoch(fit *f) {
    gt_trainer *trainer = f->trainer;
    gt_train_progress *p = &f->progress;
    trainer->epoch++;
    f->result.epochs++;
    if (f->validation) {
        GT_TRY(evaluate_quietly(trainer, f->validation, &p->validation));
        f->result.validation = p->validation;
    }
    look_ahead(f);
    if (trainer->options.on_epoch && trainer->options.on_epoch(trainer->options.callback_user, p) != 0) f->result.stopped = 1;
    return GT_OK;
}

gt_status gt_trainer_fit(gt_trainer *trainer, gt_loader *training, gt_loader *validation, int64_t epochs, gt_fit_result *result) {
    GT_REQUIRE_HANDLE(trainer);
    GT_REQUIRE(trainer->options.optimizer != NULL, GT_BAD_ARGUMENT, "trainer_fit: the trainer was made without an optimizer");
    GT_TRY(check_loader(trainer, training, "training"));
    if (validation) GT_TRY(check_loader(trainer, validation, "validation"));
    GT_REQUIRE(training != validation, GT_BAD_ARGUMENT, "trainer_fit: training and validation need a loader each");
    GT_REQUIRE(epochs >= 0 && epochs <= INT64_MAX - trainer->epoch, GT_BAD_ARGUMENT, "trainer_fit: epochs is %lld", (long long)epochs);
    gt_fit_result ours = no_result;
    if (result) GT_TRY(gt__options_read(&ours, sizeof ours, result, "gt_fit_result"));

    fit f = {.trainer = trainer, .training = training, .validation = validation, .result = no_result};
    f.last_epoch = trainer->epoch + epochs;
    f.progress = (gt_train_progress){.struct_size = sizeof f.progress,
                                     .epochs = f.last_epoch,
                                     .steps = gt_loader_batches(training),
                                     .training = no_metrics,
                                     .validation = no_metrics};
    f.began = gt__clock_seconds();
    gt_status status = GT_OK;
    while (status == GT_OK && trainer->epoch < f.last_epoch && !f.result.stopped) {
        status = train_epoch(&f);
        if (status == GT_OK && f.progress.step == f.progress.steps) status = end_epoch(&f);
        if (status == GT_OK) status = gt_module_set_training(trainer->module, 1);
    }
    gt__meter_end(&f.meter);
    if (status != GT_OK) return status;
    f.result.seconds = gt__clock_seconds() - f.began;
    f.result.samples_per_second = f.result.training_seconds > 0 ? (double)f.samples / f.result.training_seconds : 0;
    return result ? gt__options_write(result, result->struct_size, &f.result, sizeof f.result, "gt_fit_result") : GT_OK;
}

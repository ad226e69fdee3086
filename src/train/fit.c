/* gt_trainer_fit: epochs of batches, progress, and validation. */
#include "train/trainer.h"

#include <math.h>

static const gt_fit_result no_result = {
    .struct_size = sizeof(gt_fit_result),
    .training = {.struct_size = sizeof(gt_metrics), .loss = NAN, .accuracy = NAN},
    .validation = {.struct_size = sizeof(gt_metrics), .loss = NAN, .accuracy = NAN},
};

gt_status gt_fit_result_init(gt_fit_result *result, size_t size) {
    return gt__options_write(result, size, &no_result, sizeof no_result, "gt_fit_result");
}

/* --- training --------------------------------------------------------------------------------------------------------------------- */

/* One call of gt_trainer_fit. */
typedef struct fit {
    gt_trainer *trainer;
    gt_loader *training, *validation;
    gt_train_progress progress;
    gt_fit_result result;
    int64_t last_epoch;     /* number of the first epoch after this fit */
    int64_t samples;        /* trained on in this fit */
    int64_t epoch_samples;  /* and in this epoch */
    int64_t samples_before; /* of this epoch, in an earlier fit */
    double began, epoch_began;
} fit;

/* What the device is going to use, as far as the host can tell without waiting: updates that loss scaling left out are known late. */
static gt_status expected_rate(const gt_trainer *trainer, double *rate) {
    *rate = gt_optimizer_learning_rate(trainer->options.optimizer);
    return trainer->has_schedule ? gt_schedule_rate(&trainer->schedule, GT__MAX(trainer->total_steps - trainer->skipped, 0), rate) : GT_OK;
}

/* Inside a scope. *count 0: the epoch is over. */
static gt_status train_batch(fit *f, int64_t *count) {
    gt_trainer *trainer = f->trainer;
    gt_tensor *x, *y;
    GT_TRY(gt_loader_next(f->training, &x, &y, count));
    if (*count == 0) return GT_OK;
    GT_TRY(expected_rate(trainer, &f->progress.learning_rate));
    GT_TRY(gt__trainer_batch(trainer, x, y, *count));
    f->progress.micro_batch = (*count + trainer->parts - 1) / trainer->parts;
    return GT_OK;
}

/* A skipped update is a scaler's daily work; without one, or where it cannot help any more, somebody should know. */
static void warn_of_skipped(gt_trainer *trainer, int64_t skipped, const gt_scaler_state *scaler) {
    if (skipped <= trainer->skipped) return;
    if (trainer->scaler == NULL) {
        gt__log(trainer->ctx, GT_LOG_WARNING, "%lld updates were left out since the last look: a gradient was not finite",
                (long long)(skipped - trainer->skipped));
    } else if (scaler->status == GT_SCALER_STUCK_AT_FLOOR) {
        gt__log(trainer->ctx, GT_LOG_WARNING,
                "updates are left out at the smallest loss scale, %g: the gradient of \"%s\" is not finite by itself", scaler->scale,
                scaler->parameter);
    }
}

/* What loss scaling has done. */
static gt_status measure_window(fit *f) {
    gt_trainer *trainer = f->trainer;
    gt_train_progress *p = &f->progress;
    gt_window_state window;
    GT_TRY(gt_window_state_init(&window, sizeof window));
    GT_TRY(gt_window_get_state(trainer->window, &window));
    p->updates = window.updates;
    gt_scaler_state scaler;
    GT_TRY(gt_scaler_state_init(&scaler, sizeof scaler));
    if (trainer->scaler) GT_TRY(gt_scaler_get_state(trainer->scaler, &scaler));
    p->loss_scale = trainer->scaler ? scaler.scale : 1;
    warn_of_skipped(trainer, window.skipped, &scaler);
    p->skipped = trainer->skipped = window.skipped;
    return GT_OK;
}

/* Reads the metrics, and with them the clock: before, the device may have been behind. */
static gt_status measure(fit *f) {
    gt_train_progress *p = &f->progress;
    GT_TRY(gt__compiled_settle(f->trainer->compiled, &f->trainer->meter));
    GT_TRY(gt__meter_read(&f->trainer->meter, &p->training));
    GT_TRY(measure_window(f));
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
    double left = (double)(gt_loader_samples(f->training) - f->samples_before - f->epoch_samples) +
                  (double)(f->last_epoch - p->epoch - 1) * (double)gt_loader_samples(f->training);
    p->seconds = gt__clock_seconds() - f->began;
    p->seconds_left = p->samples_per_second > 0 ? left / p->samples_per_second : 0;
}

/* At its beginning, or where the last fit or a saved run left it. */
static gt_status begin_epoch(fit *f) {
    gt_trainer *trainer = f->trainer;
    gt_train_progress *p = &f->progress;
    GT_REQUIRE(
        trainer->batch == 0 || trainer->batches == p->steps, GT_BAD_STATE,
        "trainer_fit: epoch %lld was left after %lld of its %lld batches, and this loader has %lld; use the same data and batch size, or "
        "gt_trainer_state_set to begin the epoch again",
        (long long)trainer->epoch, (long long)trainer->batch, (long long)trainer->batches, (long long)p->steps);
    GT_TRY(gt_module_set_training(trainer->module, 1));
    GT_TRY(gt_loader_state_set(f->training, trainer->epoch, trainer->batch));
    if (trainer->batch == 0) gt__meter_begin(&trainer->meter, trainer->ctx, &trainer->objective);
    trainer->batches = p->steps;
    p->training = p->validation = gt__no_metrics;
    p->epoch = trainer->epoch;
    p->step = trainer->batch;
    f->samples_before = GT__MIN(trainer->batch * gt_loader_batch_size(f->training), gt_loader_samples(f->training));
    f->epoch_samples = 0;
    f->epoch_began = gt__clock_seconds();
    return GT_OK;
}

/* Inside a scope. *count 0: there was no batch left. */
static gt_status train_step(fit *f, int64_t *count) {
    gt_trainer *trainer = f->trainer;
    gt_train_progress *p = &f->progress;
    GT_TRY(train_batch(f, count));
    if (*count == 0) return GT_OK;
    f->result.steps++;
    f->epoch_samples += *count;
    f->samples += *count;
    p->step++;
    p->total_steps = trainer->total_steps;
    p->open_batches = trainer->n_kept;
    p->measured = 0;
    if (trainer->n_kept == 0) trainer->batch = p->step;
    return GT_OK;
}

/* Stopped in the middle of a window: its batches come again when training goes on, so that the end does not depend on where it was interrupted. */
static gt_status take_back(fit *f) {
    gt_trainer *trainer = f->trainer;
    f->result.steps -= trainer->n_kept;
    gt__trainer_take_back_window(trainer);
    f->progress.step = trainer->batch;
    f->progress.open_batches = 0;
    return gt_loader_state_set(f->training, trainer->epoch, trainer->batch);
}

static gt_status train_epoch(fit *f) {
    gt_trainer *trainer = f->trainer;
    const gt_trainer_options *o = &trainer->options;
    gt_train_progress *p = &f->progress;
    GT_TRY(begin_epoch(f));
    int64_t count = 1;
    while (count > 0 && !f->result.stopped) {
        GT_TRY(gt_scope_begin(trainer->ctx));
        gt_status status = train_step(f, &count);
        (void)gt_scope_end(trainer->ctx);
        if (status != GT_OK) return status;
        if (count == 0) break;
        if (o->log_every > 0 && p->step % o->log_every == 0 && p->step < p->steps) GT_TRY(measure(f));
        if (o->on_step) {
            look_ahead(f);
            f->result.stopped = o->on_step(o->callback_user, p) != 0;
        }
    }
    if (p->step < p->steps && trainer->n_kept > 0) GT_TRY(take_back(f));
    GT_TRY(gt__trainer_end_window(trainer)); /* the last, short window counts too */
    trainer->batch = p->step;
    p->open_batches = 0;
    p->total_steps = trainer->total_steps;
    GT_TRY(gt__compiled_settle(trainer->compiled, &trainer->meter));
    gt__meter so_far = trainer->meter;
    if (p->step < p->steps) gt__meter_retain(&so_far); /* reading now must not change how the epoch's sums are rounded */
    gt_status status = measure(f);
    if (p->step < p->steps) {
        gt__meter_end(&trainer->meter);
        trainer->meter = so_far;
    }
    GT_TRY(status);
    f->result.training_seconds += gt__clock_seconds() - f->epoch_began;
    f->result.training = p->training;
    return GT_OK;
}

static gt_status end_epoch(fit *f) {
    gt_trainer *trainer = f->trainer;
    gt_train_progress *p = &f->progress;
    gt__meter_end(&trainer->meter);
    trainer->epoch++;
    trainer->batch = trainer->batches = 0;
    f->result.epochs++;
    if (f->validation) {
        GT_TRY(gt__trainer_evaluate(trainer, f->validation, &p->validation));
        f->result.validation = p->validation;
    }
    look_ahead(f);
    if (trainer->options.on_epoch && trainer->options.on_epoch(trainer->options.callback_user, p) != 0) f->result.stopped = 1;
    return GT_OK;
}

gt_status gt_trainer_fit(gt_trainer *trainer, gt_loader *training, gt_loader *validation, int64_t epochs, gt_fit_result *result) {
    GT_REQUIRE_HANDLE(trainer);
    GT_REQUIRE(trainer->options.optimizer != NULL, GT_BAD_ARGUMENT, "trainer_fit: the trainer was made without an optimizer");
    GT_TRY(gt__trainer_check_loader(trainer, training, "training"));
    if (validation) GT_TRY(gt__trainer_check_loader(trainer, validation, "validation"));
    GT_REQUIRE(training != validation, GT_BAD_ARGUMENT, "trainer_fit: training and validation need a loader each");
    GT_REQUIRE(epochs >= 0 && epochs <= INT64_MAX - trainer->epoch, GT_BAD_ARGUMENT, "trainer_fit: epochs is %lld", (long long)epochs);
    gt_fit_result ours = no_result;
    if (result) GT_TRY(gt__options_read(&ours, sizeof ours, result, "gt_fit_result"));

    GT_TRY(gt__compiled_reset(trainer->compiled));
    GT_TRY(gt__compiled_reset(trainer->evaluation));

    fit f = {.trainer = trainer, .training = training, .validation = validation, .result = no_result};
    f.last_epoch = trainer->epoch + epochs;
    f.progress = (gt_train_progress){.struct_size = sizeof f.progress,
                                     .epochs = f.last_epoch,
                                     .steps = gt_loader_batches(training),
                                     .training = gt__no_metrics,
                                     .validation = gt__no_metrics};
    f.began = gt__clock_seconds();
    gt_status status = GT_OK;
    while (status == GT_OK && trainer->epoch < f.last_epoch && !f.result.stopped) {
        status = train_epoch(&f);
        if (status == GT_OK && f.progress.step == f.progress.steps) status = end_epoch(&f);
        if (status == GT_OK) status = gt_module_set_training(trainer->module, 1);
    }
    gt__trainer_take_back_window(trainer);
    if (status != GT_OK) return status;
    f.result.seconds = gt__clock_seconds() - f.began;
    f.result.samples_per_second = f.result.training_seconds > 0 ? (double)f.samples / f.result.training_seconds : 0;
    return result ? gt__options_write(result, result->struct_size, &f.result, sizeof f.result, "gt_fit_result") : GT_OK;
}

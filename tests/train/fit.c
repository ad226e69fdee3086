/* Training: updates by hand, schedules, clipping, stopping, and what is reported. */
#include "train/support.h"

#include <math.h>

/* Runs one epoch of y = w x towards 0 on samples of 1, one a batch: the gradient of each step is 2 w. Returns w. */
static double fit_scale(gt_context *ctx, double w, double rate, int64_t steps, void (*adjust)(gt_trainer_options *)) {
    float ones[16], zeros[16];
    for (int i = 0; i < 16; ++i) ones[i] = 1, zeros[i] = 0;
    gt_module *net = scale_module(ctx, w);
    gt_optimizer *optimizer = sgd(net, rate);
    gt_loader *loader = pairs_loader(ctx, ones, zeros, 1, steps, 1);
    gt_trainer_options options = trainer_options(optimizer);
    options.loss = GT_LOSS_MSE;
    if (adjust) adjust(&options);
    gt_trainer *trainer = NULL;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_OK(gt_trainer_fit(trainer, loader, NULL, 1, NULL));
    w = scale_of(net);
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
    return w;
}

TEST_DEVICES(unit, trainer_steps_by_hand) {
    gt_context *ctx = test_context(t);
    CHECK_NEAR(fit_scale(ctx, 3, 0.25, 1, NULL), 1.5, 1e-6);
    CHECK_NEAR(fit_scale(ctx, 3, 0.25, 4, NULL), 3.0 / 16, 1e-6);
}

static void clip_by_value(gt_trainer_options *options) { options->clip_value = 0.5; }
static void clip_by_norm(gt_trainer_options *options) { options->clip_norm = 2; }
static void clip_by_both(gt_trainer_options *options) { options->clip_value = 4, options->clip_norm = 1; }

TEST_DEVICES(unit, trainer_clips_gradients) {
    gt_context *ctx = test_context(t);
    CHECK_NEAR(fit_scale(ctx, 3, 1, 1, clip_by_value), 2.5, 1e-5);
    CHECK_NEAR(fit_scale(ctx, 3, 1, 1, clip_by_norm), 1, 1e-5);
    CHECK_NEAR(fit_scale(ctx, 3, 1, 1, clip_by_both), 2, 1e-5);
    CHECK_NEAR(fit_scale(ctx, 0.125, 1, 1, clip_by_norm), -0.125, 1e-5); /* not made larger */
}

typedef struct seen {
    int64_t steps, epochs, stop_step, stop_epoch;
    double rates[32];
    int32_t measured;
    gt_train_progress last;
} seen;

static int32_t see_step(void *user, const gt_train_progress *now) {
    seen *s = user;
    s->rates[s->steps++ % 32] = now->learning_rate;
    s->measured += now->measured;
    s->last = *now;
    return s->steps == s->stop_step;
}

static int32_t see_epoch(void *user, const gt_train_progress *now) {
    seen *s = user;
    s->epochs++;
    s->last = *now;
    return s->epochs == s->stop_epoch;
}

/* A trainer of y = w x on 10 samples in batches of 4, that notes what its callbacks see. */
typedef struct bench {
    gt_module *net;
    gt_optimizer *optimizer;
    gt_loader *training, *validation;
    gt_trainer *trainer;
} bench;

static bench bench_make(gt_context *ctx, seen *s, const gt_schedule *schedule, int64_t log_every) {
    float ones[10], twos[10];
    for (int i = 0; i < 10; ++i) ones[i] = 1, twos[i] = 2;
    bench b = {.net = scale_module(ctx, 1)};
    b.optimizer = sgd(b.net, 0.0);
    b.training = pairs_loader(ctx, ones, twos, 1, 10, 4);
    b.validation = pairs_loader(ctx, ones, twos, 1, 5, 2);
    gt_trainer_options options = trainer_options(b.optimizer);
    options.loss = GT_LOSS_MSE;
    options.schedule = schedule;
    options.on_step = see_step;
    options.on_epoch = see_epoch;
    options.callback_user = s;
    options.log_every = log_every;
    CHECK_OK(gt_trainer_create(b.net, &options, &b.trainer));
    return b;
}

static void bench_free(bench *b) {
    gt_trainer_destroy(b->trainer);
    gt_loader_destroy(b->training);
    gt_loader_destroy(b->validation);
    gt_optimizer_destroy(b->optimizer);
    gt_module_destroy(b->net);
}

TEST_DEVICES(unit, trainer_reports_progress_and_results) {
    gt_context *ctx = test_context(t);
    seen s = {0};
    bench b = bench_make(ctx, &s, NULL, 2);
    gt_fit_result result;
    CHECK_OK(gt_fit_result_init(&result, sizeof result));
    CHECK_OK(gt_trainer_fit(b.trainer, b.training, b.validation, 2, &result));
    CHECK_EQ_INT(s.steps, 6);
    CHECK_EQ_INT(s.epochs, 2);
    CHECK_EQ_INT(s.measured, 2); /* at the second of three steps, in each epoch */
    CHECK_EQ_INT(s.last.epoch, 1);
    CHECK_EQ_INT(s.last.epochs, 2);
    CHECK_EQ_INT(s.last.step, 3);
    CHECK_EQ_INT(s.last.steps, 3);
    CHECK_EQ_INT(s.last.total_steps, 6);
    CHECK_EQ_INT(s.last.training.samples, 10);
    CHECK_EQ_INT(s.last.validation.samples, 5);
    CHECK_NEAR(s.last.training.loss, 1, 1e-6);
    CHECK_NEAR(s.last.validation.loss, 1, 1e-6);
    CHECK(isnan(s.last.training.accuracy));
    CHECK(s.last.samples_per_second > 0 && s.last.memory_in_use > 0 && s.last.memory_peak >= s.last.memory_in_use);
    CHECK_NEAR(s.last.seconds_left, 0, 0);
    CHECK_EQ_INT(result.stopped, 0);
    CHECK_EQ_INT(result.epochs, 2);
    CHECK_EQ_INT(result.steps, 6);
    CHECK_EQ_INT(result.training.samples, 10);
    CHECK(result.seconds >= result.training_seconds && result.training_seconds > 0 && result.samples_per_second > 0);
    CHECK_NEAR(result.validation.loss, 1, 1e-6);
    CHECK_EQ_INT(gt_module_training(b.net), 1);
    int64_t epoch, steps;
    CHECK_OK(gt_trainer_state_get(b.trainer, &epoch, &steps));
    CHECK(epoch == 2 && steps == 6);
    CHECK_OK(gt_trainer_fit(b.trainer, b.training, NULL, 1, &result)); /* goes on */
    CHECK_EQ_INT(s.last.epoch, 2);
    CHECK_EQ_INT(s.last.epochs, 3);
    CHECK_EQ_INT(s.last.validation.samples, 0);
    bench_free(&b);
}

TEST(unit, trainer_follows_a_schedule_across_fits) {
    gt_context *ctx = test_context(t);
    gt_schedule schedule;
    CHECK_OK(gt_schedule_init(&schedule, sizeof schedule, GT_SCHEDULE_COSINE));
    schedule.base = 0.01;
    schedule.total_steps = 9;
    seen s = {0};
    bench b = bench_make(ctx, &s, &schedule, 0);
    schedule.base = 77; /* the trainer has a copy */
    CHECK_OK(gt_trainer_fit(b.trainer, b.training, NULL, 1, NULL));
    CHECK_OK(gt_trainer_fit(b.trainer, b.training, NULL, 2, NULL));
    schedule.base = 0.01;
    CHECK_EQ_INT(s.steps, 9);
    for (int64_t step = 0; step < 9; ++step) {
        double rate;
        CHECK_OK(gt_schedule_rate(&schedule, step, &rate));
        CHECK_NEAR(s.rates[step], rate, 0);
    }
    CHECK_OK(gt_trainer_state_set(b.trainer, 5, 4));
    CHECK_OK(gt_trainer_fit(b.trainer, b.training, NULL, 1, NULL));
    CHECK_NEAR(s.rates[9], s.rates[4], 0);
    CHECK_STATUS(gt_trainer_state_set(b.trainer, -1, 0), GT_BAD_ARGUMENT);
    bench_free(&b);
}

TEST_DEVICES(unit, trainer_callbacks_stop_it_without_an_error) {
    gt_context *ctx = test_context(t);
    seen s = {.stop_step = 5};
    bench b = bench_make(ctx, &s, NULL, 50);
    gt_fit_result result;
    CHECK_OK(gt_fit_result_init(&result, sizeof result));
    CHECK_OK(gt_trainer_fit(b.trainer, b.training, b.validation, 4, &result));
    CHECK_EQ_INT(result.stopped, 1);
    CHECK_EQ_INT(result.steps, 5);
    CHECK_EQ_INT(result.epochs, 1);
    CHECK_EQ_INT(result.training.samples, 8); /* of the epoch that was begun */
    CHECK_EQ_INT(s.epochs, 1);

    s = (seen){.stop_epoch = 2};
    CHECK_OK(gt_trainer_fit(b.trainer, b.training, b.validation, 4, &result)); /* that epoch goes on */
    CHECK_EQ_INT(result.stopped, 1);
    CHECK_EQ_INT(result.epochs, 2);
    CHECK_EQ_INT(s.steps, 4);
    CHECK_EQ_INT(s.last.epoch, 2);
    bench_free(&b);
}

static gt_tensor *first_difference(void *user, gt_tensor *output, gt_tensor *y) {
    ++*(int *)user;
    return gt_mul_scalar(gt_sum(gt_abs(gt_sub(output, y)), NULL, 0, 0), 1.0 / (double)gt_tensor_size(y, 0));
}

static gt_tensor *no_loss(void *user, gt_tensor *output, gt_tensor *y) {
    (void)user, (void)output, (void)y;
    return NULL;
}

static gt_tensor *many_losses(void *user, gt_tensor *output, gt_tensor *y) {
    (void)user, (void)y;
    return output;
}

TEST_DEVICES(unit, trainer_takes_a_loss_of_the_callers) {
    gt_context *ctx = test_context(t);
    const float x[5] = {1, 1, 1, 1, 1}, y[5] = {0, 0, 0, 0, 10};
    gt_module *net = scale_module(ctx, 3);
    gt_loader *loader = pairs_loader(ctx, x, y, 1, 5, 4);
    gt_optimizer *optimizer = sgd(net, 0.5);
    gt_trainer_options options = trainer_options(optimizer);
    int calls = 0;
    options.loss = GT_LOSS_CUSTOM;
    options.loss_fn = first_difference;
    options.loss_user = &calls;
    gt_trainer *trainer = NULL;
    gt_metrics metrics;
    CHECK_OK(gt_metrics_init(&metrics, sizeof metrics));
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_OK(gt_trainer_evaluate(trainer, loader, &metrics));
    CHECK_NEAR(metrics.loss, (4 * 3 + 7) / 5.0, 1e-6);
    CHECK_EQ_INT(metrics.samples, 5);
    CHECK_OK(gt_trainer_fit(trainer, loader, NULL, 1, NULL));
    CHECK_EQ_INT(calls, 4);
    CHECK_NEAR(scale_of(net), 3, 1e-6); /* -.5, then +.5 */
    gt_trainer_destroy(trainer);

    options.loss_fn = no_loss;
    gt_clear_error();
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_STATUS(gt_trainer_fit(trainer, loader, NULL, 1, NULL), GT_CALLBACK);
    CHECK_ERROR_HAS("the loss function returned NULL without an error");
    gt_trainer_destroy(trainer);
    options.loss_fn = many_losses;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_STATUS(gt_trainer_fit(trainer, loader, NULL, 1, NULL), GT_BAD_SHAPE);
    CHECK_ERROR_HAS("the loss has 4 elements of f32");
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}

TEST_DEVICES(unit, trainer_learns_to_separate_two_clouds) {
    gt_context *ctx = test_context(t);
    float samples[400];
    int64_t labels[200];
    for (int i = 0; i < 200; ++i) { /* a spread that no line separates */
        double angle = 0.37 * i, radius = i % 2 ? 1.0 : 0.3;
        samples[2 * i] = (float)(radius * cos(angle));
        samples[2 * i + 1] = (float)(radius * sin(angle));
        labels[i] = i % 2;
    }
    gt_module *layers[] = {gt_nn_linear(ctx, 2, 32, NULL), gt_nn_relu(ctx), gt_nn_linear(ctx, 32, 2, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 3);
    CHECK(net != NULL);
    gt_optimizer_options adam;
    CHECK_OK(gt_optimizer_options_init(&adam, sizeof adam, GT_OPTIMIZER_ADAM));
    adam.learning_rate = 0.02;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_create_for(&adam, net, &optimizer));
    gt_loader *loader = vectors_loader(ctx, samples, 2, labels, 200, 32);
    gt_trainer_options options = trainer_options(optimizer);
    gt_trainer *trainer = NULL;
    gt_fit_result result;
    CHECK_OK(gt_fit_result_init(&result, sizeof result));
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_OK(gt_trainer_fit(trainer, loader, NULL, 30, &result));
    CHECK(result.training.accuracy > 0.98);
    CHECK(result.training.loss < 0.2);
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}

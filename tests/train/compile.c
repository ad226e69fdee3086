/* A compiled fit is the uncompiled one: weights, buffers, random state, metrics and what the callbacks see, to the bit. */
#include "train/support.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 6, CLASSES = 5, SAMPLES = 53, BATCH = 8, BATCHES = 7, EPOCHS = 2, MOST = 2 * EPOCHS * BATCHES };

typedef struct setting {
    gt_loss_kind loss;
    gt_precision precision;
    int32_t accumulation; /* 0: 1 */
    int32_t checkpointing;
    int32_t log_every; /* 0: 2 */
    bool norm, dropout, adam, clip, schedule, shrink, ignored, own_scaler, diagnose;
    int64_t choke;      /* not 0: forward runs out of memory with more samples */
    int64_t stop_after; /* not 0: a callback stops the fit after so many steps of the process, which then goes on */
    bool saved;         /* and it goes on in another process, from a file */
    bool in_callback;   /* which the callback itself has written */
} setting;

/* What callbacks have seen, and where it ended. */
typedef struct record {
    gt_train_progress steps[MOST], epochs[EPOCHS];
    int64_t n_steps, n_epochs, stop_after, micro_batch;
    gt_fit_result fit;
    gt_metrics evaluated;
    uint64_t random;
    double scale;
    char *bits;
    size_t n_bits;
    char path[512];
    const gt_state_parts *parts; /* not NULL: on_step saves these when it stops the fit */
} record;

typedef struct job {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_scaler *scaler;
    gt_trainer *trainer;
    gt_loader *training, *validation;
} job;

static int32_t on_step(void *user, const gt_train_progress *now) {
    record *s = user;
    CHECK(s->n_steps < MOST);
    s->steps[s->n_steps++] = *now;
    if (s->n_steps == s->stop_after && s->parts) CHECK_OK(gt_state_save(s->path, s->parts));
    return s->n_steps == s->stop_after;
}

static int32_t on_epoch(void *user, const gt_train_progress *now) {
    record *s = user;
    s->epochs[s->n_epochs++] = *now;
    return 0;
}

/* --- networks and losses --------------------------------------------------------------------------------------------------------------------- */

/* Passes on up to *user samples. */
static gt_tensor *choke_forward(void *user, gt_module *self, gt_tensor *const *inputs, int32_t count) {
    (void)self, (void)count;
    if (gt_tensor_size(inputs[0], 0) <= *(const int64_t *)user) return gt_mul_scalar(inputs[0], 1);
    const int64_t huge[2] = {INT64_C(1) << 31, INT64_C(1) << 29}; /* 2^62 bytes: nothing has that, no trace either */
    return gt_tensor_zeros(gt_tensor_context(inputs[0]), GT_DTYPE_F32, 2, huge);
}

static gt_module *choke(gt_context *ctx, const int64_t *most) {
    gt_nn_custom_options o;
    CHECK_OK(gt_nn_custom_options_init(&o, sizeof o));
    o.kind = "Choke";
    o.forward = choke_forward;
    memcpy(&o.user, &most, sizeof most);
    return gt_nn_custom(ctx, &o);
}

static gt_module *network(gt_context *ctx, const setting *s) {
    gt_module *net = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_conv2d(ctx, 1, 4, 3, NULL)));
    if (s->norm) CHECK_OK(gt_nn_sequential_add(net, gt_nn_batch_norm(ctx, 4, NULL)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_relu(ctx)));
    if (s->choke) CHECK_OK(gt_nn_sequential_add(net, choke(ctx, &s->choke)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_flatten(ctx, 1)));
    if (s->dropout) CHECK_OK(gt_nn_sequential_add(net, gt_nn_dropout(ctx, 0.3)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, 4 * 16, 12, NULL)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_relu(ctx)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, 12, CLASSES, NULL)));
    CHECK_OK(gt_module_check(net));
    return net;
}

static gt_tensor *huber(void *user, gt_tensor *output, gt_tensor *y) {
    (void)user;
    gt_tensor *error = gt_sub(output, y);
    return gt_mean(gt_minimum(gt_mul(error, error), gt_abs(error)), NULL, 0, 0);
}

static gt_loader *images(gt_context *ctx, const setting *s, int64_t length, int32_t shuffle) {
    static float pixels[SAMPLES][SIDE * SIDE], targets[SAMPLES][CLASSES];
    static int64_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES; ++i) {
        labels[i] = s->ignored && i % 4 == 1 ? -100 : i % CLASSES;
        for (int k = 0; k < SIDE * SIDE; ++k) pixels[i][k] = (float)((i * 37 + k * (i % CLASSES + 1)) % 23 - 11) / 9;
        for (int k = 0; k < CLASSES; ++k) targets[i][k] = (float)((i + k) % 7) / 5;
    }
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.length = length;
    format.sample_ndim = 3;
    format.sample_shape[0] = 1;
    format.sample_shape[1] = format.sample_shape[2] = SIDE;
    if (s->loss == GT_LOSS_CROSS_ENTROPY) {
        format.has_labels = 1;
    } else {
        format.label_dtype = GT_DTYPE_F32;
        format.label_ndim = 1;
        format.label_shape[0] = CLASSES;
    }
    gt_dataset *dataset = NULL;
    gt_loader *loader = NULL;
    gt_loader_options options;
    const void *y = s->loss == GT_LOSS_CROSS_ENTROPY ? (const void *)labels : (const void *)targets;
    CHECK_OK(gt_dataset_from_arrays(&format, pixels, y, 0, &dataset));
    CHECK_OK(gt_loader_options_init(&options, sizeof options));
    options.batch_size = BATCH;
    options.shuffle = shuffle;
    options.seed = 5;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    gt_dataset_destroy(dataset);
    return loader;
}

/* --- one fit ---------------------------------------------------------------------------------------------------------------------------------- */

static job start(test_case *t, const setting *s, record *seen, bool compile, uint64_t seed) {
    job j = {0};
    gt_context_options context;
    gt_schedule schedule;
    gt_trainer_options o;
    gt_optimizer_options rule;
    CHECK_OK(gt_context_options_init(&context, sizeof context));
    context.seed = seed;
    context.deterministic = 1;
    context.allow_tf32 = 0;
    j.ctx = test_context_with(t, &context);
    j.net = network(j.ctx, s);
    j.training = images(j.ctx, s, SAMPLES, 1);
    j.validation = images(j.ctx, s, 21, 0);
    CHECK_OK(gt_optimizer_options_init(&rule, sizeof rule, s->adam ? GT_OPTIMIZER_ADAMW : GT_OPTIMIZER_SGD));
    rule.learning_rate = s->adam ? 0.01 : 0.1;
    if (!s->adam) rule.momentum = 0.9;
    CHECK_OK(gt_optimizer_create_for(&rule, j.net, &j.optimizer));
    CHECK_OK(gt_schedule_init(&schedule, sizeof schedule, GT_SCHEDULE_COSINE));
    schedule.base = rule.learning_rate;
    schedule.total_steps = EPOCHS * BATCHES;
    CHECK_OK(gt_trainer_options_init(&o, sizeof o));
    o.optimizer = j.optimizer;
    o.loss = s->loss;
    if (s->loss == GT_LOSS_CUSTOM) o.loss_fn = huber;
    o.precision = s->precision;
    o.accumulation = s->accumulation ? s->accumulation : 1;
    o.checkpointing = s->checkpointing;
    o.log_every = s->log_every ? s->log_every : 2;
    o.shrink_on_oom = s->shrink;
    o.clip_norm = s->clip ? 0.5 : 0;
    o.schedule = s->schedule ? &schedule : NULL;
    o.on_step = on_step;
    o.on_epoch = on_epoch;
    o.callback_user = seen;
    o.compile = compile;
    if (s->own_scaler) {
        gt_scaler_options so;
        CHECK_OK(gt_scaler_options_init(&so, sizeof so));
        so.scale = 0x1p20; /* too much at first: the first updates are left out */
        so.cap = 0x1p20;
        so.growth_interval = 4;
        so.diagnose = s->diagnose;
        CHECK_OK(gt_scaler_create(j.ctx, &so, &j.scaler));
        o.scaler = j.scaler;
    }
    CHECK_OK(gt_trainer_create(j.net, &o, &j.trainer));
    return j;
}

static void end(job *j) {
    gt_trainer_destroy(j->trainer);
    gt_scaler_destroy(j->scaler);
    gt_optimizer_destroy(j->optimizer);
    gt_loader_destroy(j->training);
    gt_loader_destroy(j->validation);
    gt_module_destroy(j->net);
}

static void read_bits(job *j, record *s) {
    int32_t parameters = gt_module_parameter_count(j->net), count = parameters + gt_module_buffer_count(j->net);
    for (int32_t i = 0; i < count; ++i) {
        gt_tensor *tensor;
        CHECK_OK(i < parameters ? gt_module_parameter(j->net, i, NULL, &tensor) : gt_module_buffer(j->net, i - parameters, NULL, &tensor));
        size_t bytes = gt_tensor_bytes(tensor);
        s->bits = realloc(s->bits, s->n_bits + bytes + 1);
        CHECK(s->bits != NULL);
        CHECK_OK(gt_tensor_read(tensor, s->bits + s->n_bits, bytes));
        s->n_bits += bytes;
    }
}

static gt_state_parts parts_of(const job *j) {
    gt_state_parts parts;
    CHECK_OK(gt_state_parts_init(&parts, sizeof parts));
    parts.trainer = j->trainer;
    parts.loader = j->training;
    return parts;
}

/* The fit goes on after the callback has stopped it: with the trainer, or with another one that reads the state of the first from a file. */
static void go_on(test_case *t, const setting *s, record *seen, job *j, bool compile) {
    CHECK_EQ_INT(seen->fit.stopped, 1);
    seen->n_steps =
        seen->steps[s->stop_after - 1].epoch * BATCHES + seen->steps[s->stop_after - 1].step - seen->steps[s->stop_after - 1].open_batches;
    seen->stop_after = 0;
    if (s->saved) {
        gt_state_parts parts = parts_of(j);
        if (!s->in_callback) CHECK_OK(gt_state_save(seen->path, &parts));
        seen->parts = NULL;
        end(j);
        *j = start(t, s, seen, compile, 77);
        parts = parts_of(j);
        CHECK_OK(gt_state_load(seen->path, &parts));
    }
    int64_t epoch;
    CHECK_OK(gt_trainer_state_get(j->trainer, &epoch, NULL));
    CHECK_OK(gt_trainer_fit(j->trainer, j->training, j->validation, EPOCHS - epoch, &seen->fit));
}

static void fit(test_case *t, const setting *s, bool compile, record *seen) {
    *seen = (record){.stop_after = s->stop_after};
    CHECK_OK(gt_fit_result_init(&seen->fit, sizeof seen->fit));
    CHECK_OK(gt_metrics_init(&seen->evaluated, sizeof seen->evaluated));
    job j = start(t, s, seen, compile, 3);
    gt_state_parts parts = parts_of(&j);
    if (s->in_callback) seen->parts = &parts;
    (void)snprintf(seen->path, sizeof seen->path, "%s", test_temp_path(t, compile ? "compiled.safetensors" : "eager.safetensors"));
    CHECK_OK(gt_trainer_fit(j.trainer, j.training, j.validation, EPOCHS, &seen->fit));
    if (s->stop_after) go_on(t, s, seen, &j, compile);
    CHECK_OK(gt_trainer_evaluate(j.trainer, j.training, &seen->evaluated));
    CHECK_OK(gt_random_state_get(j.ctx, NULL, &seen->random));
    if (gt_trainer_scaler(j.trainer)) {
        gt_scaler_state scaler;
        CHECK_OK(gt_scaler_state_init(&scaler, sizeof scaler));
        CHECK_OK(gt_scaler_get_state(gt_trainer_scaler(j.trainer), &scaler));
        seen->scale = scaler.scale;
    }
    read_bits(&j, seen);
    end(&j);
}

/* --- comparing --------------------------------------------------------------------------------------------------------------------------------- */

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void same_metrics(const gt_metrics *a, const gt_metrics *b) {
    CHECK_EQ_INT(a->samples, b->samples);
    CHECK_EQ_INT(a->correct, b->correct);
    CHECK(same(a->loss, b->loss));
    CHECK(same(a->accuracy, b->accuracy));
}

static void same_progress(const gt_train_progress *a, const gt_train_progress *b) {
    CHECK_EQ_INT(a->measured, b->measured);
    CHECK_EQ_INT(a->epoch, b->epoch);
    CHECK_EQ_INT(a->step, b->step);
    CHECK_EQ_INT(a->total_steps, b->total_steps);
    CHECK(same(a->learning_rate, b->learning_rate));
    same_metrics(&a->training, &b->training);
    same_metrics(&a->validation, &b->validation);
    CHECK_EQ_INT(a->updates, b->updates);
    CHECK_EQ_INT(a->skipped, b->skipped);
    CHECK(a->loss_scale == b->loss_scale);
    CHECK_EQ_INT(a->micro_batch, b->micro_batch);
    CHECK_EQ_INT(a->open_batches, b->open_batches);
}

static void same_seen(const record *a, const record *b) {
    CHECK_EQ_INT(a->n_steps, b->n_steps);
    CHECK_EQ_INT(a->n_epochs, b->n_epochs);
    for (int64_t i = 0; i < a->n_steps; ++i) same_progress(&a->steps[i], &b->steps[i]);
    for (int64_t i = 0; i < a->n_epochs; ++i) same_progress(&a->epochs[i], &b->epochs[i]);
    CHECK_EQ_INT(a->fit.steps, b->fit.steps);
    same_metrics(&a->fit.training, &b->fit.training);
    same_metrics(&a->fit.validation, &b->fit.validation);
    same_metrics(&a->evaluated, &b->evaluated);
    CHECK_EQ_INT(a->random, b->random);
    CHECK(a->scale == b->scale);
    CHECK(a->n_bits == b->n_bits && memcmp(a->bits, b->bits, a->n_bits) == 0);
}

static void compare(test_case *t, const setting *s) {
    static record eager, compiled;
    fit(t, s, false, &eager);
    CHECK(isfinite(eager.fit.training.loss) && eager.epochs[1].training.loss < eager.epochs[0].training.loss); /* it learns */
    fit(t, s, true, &compiled);
    same_seen(&eager, &compiled);
    if (s->own_scaler) CHECK(compiled.epochs[1].skipped > 0 && compiled.epochs[1].updates > 0);
    if (s->choke) CHECK_EQ_INT(compiled.steps[compiled.n_steps - 2].micro_batch, s->choke);
    free(eager.bits);
    free(compiled.bits);
}

#define CASE(name, ...)                                                                                                                    \
    TEST_DEVICES(unit, compiled_fit_is_the_same_##name) {                                                                                  \
        const setting s = {__VA_ARGS__};                                                                                                   \
        compare(t, &s);                                                                                                                    \
    }

CASE(plain, .log_every = 2)
CASE(norm_and_dropout, .norm = true, .dropout = true, .adam = true, .clip = true, .schedule = true)
CASE(accumulation, .accumulation = 3, .norm = true, .dropout = true)
CASE(accumulation_measured_in_windows, .accumulation = 3, .log_every = 1, .ignored = true, .adam = true)
CASE(accumulation_of_a_whole_epoch, .accumulation = 100, .norm = true)
CASE(ignored_labels, .ignored = true)
CASE(mse, .loss = GT_LOSS_MSE, .accumulation = 2)
CASE(custom_loss, .loss = GT_LOSS_CUSTOM, .dropout = true)
CASE(f16, .precision = GT_PRECISION_F16, .norm = true, .dropout = true, .adam = true)
CASE(f16_skipping, .precision = GT_PRECISION_F16, .own_scaler = true, .accumulation = 2, .norm = true)
CASE(f16_diagnosing, .precision = GT_PRECISION_F16, .own_scaler = true, .diagnose = true)
CASE(bf16, .precision = GT_PRECISION_BF16, .loss = GT_LOSS_CUSTOM, .accumulation = 2)
CASE(checkpointing, .checkpointing = 2, .norm = true, .dropout = true, .accumulation = 2)
CASE(shrinking, .choke = 2, .shrink = true, .norm = true, .dropout = true)
CASE(shrinking_in_windows, .choke = 4, .shrink = true, .accumulation = 3, .dropout = true, .ignored = true)
CASE(stopped, .stop_after = 10, .norm = true, .dropout = true, .adam = true, .schedule = true)
CASE(stopped_in_a_window, .stop_after = 5, .accumulation = 3, .norm = true, .dropout = true, .log_every = 4)
CASE(stopped_at_once, .stop_after = 1, .accumulation = 3, .norm = true, .log_every = 1)
CASE(resumed_plainly, .stop_after = 10, .saved = true)
CASE(resumed, .stop_after = 10, .saved = true, .norm = true, .dropout = true, .adam = true, .schedule = true)
CASE(resumed_in_a_window, .stop_after = 5, .saved = true, .accumulation = 3, .norm = true, .dropout = true)
CASE(resumed_from_what_a_callback_saved, .stop_after = 10, .saved = true, .in_callback = true, .norm = true, .log_every = 2)
CASE(resumed_from_what_a_callback_saved_between_windows, .stop_after = 3, .saved = true, .in_callback = true, .accumulation = 3,
     .norm = true)
CASE(resumed_with_a_scaler, .stop_after = 4, .saved = true, .precision = GT_PRECISION_F16, .norm = true, .adam = true, .clip = true)
CASE(everything, .stop_after = 9, .saved = true, .precision = GT_PRECISION_F16, .accumulation = 2, .norm = true, .dropout = true,
     .adam = true, .clip = true, .schedule = true, .checkpointing = 2, .choke = 4, .shrink = true, .ignored = true)

/* A file that a compiled fit has written is one for an uncompiled one, and the other way round. */
static void crossed(test_case *t, bool first_compiled, record *whole) {
    static record crossing;
    const setting s = {.stop_after = 5, .accumulation = 2, .norm = true, .dropout = true};
    char path[512];
    (void)snprintf(path, sizeof path, "%s", test_temp_path(t, first_compiled ? "a.safetensors" : "b.safetensors"));
    crossing = (record){.stop_after = s.stop_after};
    job j = start(t, &s, &crossing, first_compiled, 3);
    CHECK_OK(gt_trainer_fit(j.trainer, j.training, j.validation, EPOCHS, NULL));
    gt_state_parts parts = parts_of(&j);
    CHECK_OK(gt_state_save(path, &parts));
    end(&j);
    j = start(t, &s, &crossing, !first_compiled, 9);
    parts = parts_of(&j);
    CHECK_OK(gt_state_load(path, &parts));
    crossing.stop_after = 0;
    CHECK_OK(gt_trainer_fit(j.trainer, j.training, j.validation, EPOCHS, NULL));
    read_bits(&j, &crossing);
    end(&j);
    CHECK(crossing.n_bits == whole->n_bits && memcmp(crossing.bits, whole->bits, whole->n_bits) == 0);
    same_metrics(&crossing.epochs[EPOCHS - 1].training, &whole->epochs[EPOCHS - 1].training);
    free(crossing.bits);
}

TEST_DEVICES(unit, compiled_and_uncompiled_fits_read_each_others_files) {
    static record whole;
    const setting s = {.accumulation = 2, .norm = true, .dropout = true};
    fit(t, &s, false, &whole);
    crossed(t, true, &whole);
    crossed(t, false, &whole);
    free(whole.bits);
}

/* --- failures ---------------------------------------------------------------------------------------------------------------------------------- */

/* A batch with a label that is none, in the middle of a window. On the CPU it is found when the program runs, after batch norm has moved. */
static void fail_in_the_middle(test_case *t, bool compile, int32_t accumulation, record *seen) {
    static float pixels[SAMPLES * SIDE * SIDE];
    static int64_t labels[SAMPLES];
    const setting s = {.norm = true, .dropout = true, .accumulation = accumulation, .log_every = 1};
    *seen = (record){0};
    job j = start(t, &s, seen, compile, 3);
    for (int i = 0; i < SAMPLES; ++i) labels[i] = i == 3 * BATCH + 5 ? CLASSES + 7 : i % CLASSES;
    for (int i = 0; i < SAMPLES * SIDE * SIDE; ++i) pixels[i] = (float)(i % 13 - 6) / 5;
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.length = SAMPLES;
    format.sample_ndim = 3;
    format.sample_shape[0] = 1;
    format.sample_shape[1] = format.sample_shape[2] = SIDE;
    format.has_labels = 1;
    gt_dataset *dataset = NULL;
    gt_loader *loader = NULL;
    gt_loader_options options;
    CHECK_OK(gt_dataset_from_arrays(&format, pixels, labels, 0, &dataset));
    CHECK_OK(gt_loader_options_init(&options, sizeof options));
    options.batch_size = BATCH;
    CHECK_OK(gt_loader_create(j.ctx, dataset, &options, &loader));
    CHECK_STATUS(gt_trainer_fit(j.trainer, loader, NULL, 1, NULL), GT_BAD_LABEL);
    CHECK_EQ_INT(seen->n_steps, 3);
    read_bits(&j, seen);
    int64_t epoch = -1, updates = -1;
    CHECK_OK(gt_trainer_state_get(j.trainer, &epoch, &updates));
    CHECK_EQ_INT(epoch, 0);
    CHECK_EQ_INT(updates, 3 / accumulation);
    labels[3 * BATCH + 5] = 0; /* the data set has a copy: it fails again, and the trainer is still of use with another */
    CHECK_OK(gt_random_state_get(j.ctx, NULL, &seen->random));
    CHECK_OK(gt_trainer_fit(j.trainer, j.training, j.validation, 1, NULL));
    read_bits(&j, seen);
    gt_loader_destroy(loader);
    gt_dataset_destroy(dataset);
    end(&j);
}

TEST(unit, compiled_fit_fails_as_the_uncompiled_one) {
    static record eager, compiled;
    for (int32_t accumulation = 1; accumulation <= 2; ++accumulation) {
        fail_in_the_middle(t, false, accumulation, &eager);
        fail_in_the_middle(t, true, accumulation, &compiled);
        CHECK_EQ_INT(eager.random, compiled.random);
        CHECK_EQ_INT(eager.n_steps, compiled.n_steps);
        for (int64_t i = 0; i < eager.n_steps; ++i) same_progress(&eager.steps[i], &compiled.steps[i]);
        CHECK(eager.n_bits == compiled.n_bits && memcmp(eager.bits, compiled.bits, eager.n_bits) == 0);
        free(eager.bits);
        free(compiled.bits);
    }
}

static gt_tensor *reading_loss(void *user, gt_tensor *output, gt_tensor *y) {
    double value;
    gt_tensor *loss = gt_mse_loss(output, y, GT_REDUCTION_MEAN);
    *(gt_status *)user = gt_tensor_item(loss, &value);
    return *(gt_status *)user == GT_OK ? loss : NULL;
}

TEST_DEVICES(unit, compiled_fit_refuses_by_name) {
    gt_context *ctx = test_context(t);
    float ones[4] = {1, 1, 1, 1}, zeros[4] = {0};
    gt_status status = GT_OK;
    gt_module *net = scale_module(ctx, 3);
    gt_loader *loader = pairs_loader(ctx, ones, zeros, 1, 4, 2);
    gt_trainer_options options = trainer_options(sgd(net, 0.25));
    gt_trainer *trainer = NULL;
    options.compile = 1;
    options.offload = 1 << 20;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_NOT_SUPPORTED);
    CHECK_ERROR_HAS("option offload");
    CHECK_ERROR_HAS("leave one of them out");
    options.offload = 0;
    options.loss = GT_LOSS_CUSTOM;
    options.loss_fn = reading_loss;
    options.loss_user = &status;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_STATUS(gt_trainer_fit(trainer, loader, NULL, 1, NULL), GT_BAD_STATE);
    CHECK_ERROR_HAS("while a step is traced");
    CHECK_EQ_INT(status, GT_BAD_STATE);
    CHECK_NEAR(scale_of(net), 3, 0);
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(options.optimizer);
    gt_module_destroy(net);
}

/* --- memory ------------------------------------------------------------------------------------------------------------------------------------- */

enum { WIDE = 128, ROWS = 2048 };

/* Fits a deep network; *peak: most bytes reserved, *in_use: in use, *micro_batch: in the end. The weights are the caller's to free. */
static float *fit_wide(test_case *t, uint64_t limit, int64_t batch, int32_t accumulation, bool compile, uint64_t *peak, uint64_t *in_use,
                       int64_t *micro_batch) {
    static float x[2 * ROWS * WIDE];
    static int64_t y[2 * ROWS];
    for (int i = 0; i < 2 * ROWS * WIDE; ++i) x[i] = (float)((i * 31 + i / WIDE) % 97 - 48) / 50;
    for (int i = 0; i < 2 * ROWS; ++i) y[i] = i * 7 % CLASSES;
    gt_context_options context;
    CHECK_OK(gt_context_options_init(&context, sizeof context));
    context.seed = 3;
    context.deterministic = 1;
    context.allow_tf32 = 0;
    context.memory_limit = limit;
    gt_context *ctx = test_context_with(t, &context);
    gt_module *net = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, WIDE, WIDE, NULL)));
    for (int i = 0; i < 10; ++i) CHECK_OK(gt_nn_sequential_add(net, i % 5 == 4 ? gt_nn_dropout(ctx, 0.1) : gt_nn_sigmoid(ctx)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, WIDE, CLASSES, NULL)));
    record seen = {0};
    gt_loader *loader = vectors_loader(ctx, x, WIDE, y, 2 * ROWS, batch);
    gt_trainer_options options = trainer_options(sgd(net, 0.05));
    options.accumulation = accumulation;
    options.shrink_on_oom = limit > 0;
    options.compile = compile;
    options.on_step = on_step;
    options.callback_user = &seen;
    gt_trainer *trainer = NULL;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_OK(gt_trainer_fit(trainer, loader, NULL, 1, NULL));
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    *peak = stats.peak_reserved;
    *in_use = stats.peak_in_use;
    *micro_batch = seen.steps[seen.n_steps - 1].micro_batch;
    gt_tensor *weight = NULL;
    CHECK_OK(gt_module_find(net, "0.weight", &weight));
    float *weights = malloc(gt_tensor_bytes(weight));
    CHECK_OK(gt_tensor_read(weight, weights, gt_tensor_bytes(weight)));
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(options.optimizer);
    gt_module_destroy(net);
    return weights;
}

TEST_DEVICES(unit, compiled_fit_shrinks_when_its_memory_is_not_to_be_had) {
    uint64_t whole, less, in_use;
    int64_t micro_batch;
    float *a = fit_wide(t, 0, ROWS, 1, true, &whole, &in_use, &micro_batch);
    CHECK_EQ_INT(micro_batch, ROWS);
    float *b = fit_wide(t, whole - (4 << 20), ROWS, 1, true, &less, &in_use, &micro_batch);
    CHECK(less <= whole - (4 << 20) && micro_batch < ROWS && micro_batch >= ROWS / 8);
    float *c = fit_wide(t, 0, micro_batch, (int32_t)(ROWS / micro_batch), false, &less, &in_use,
                        &micro_batch); /* so from the start, and uncompiled */
    CHECK(memcmp(b, c, WIDE * WIDE * sizeof *b) == 0);
    CHECK(memcmp(a, c, WIDE * WIDE * sizeof *b) != 0);
    free(a);
    free(b);
    free(c);
}

/* Gradients that wait for the window's end, and one arena for all places in it: hardly more than the uncompiled trainer takes. */
TEST_DEVICES(unit, compiled_windows_need_no_more_memory) {
    uint64_t reserved, eager, compiled;
    int64_t micro_batch;
    free(fit_wide(t, 0, ROWS / 4, 4, false, &reserved, &eager, &micro_batch));
    free(fit_wide(t, 0, ROWS / 4, 4, true, &reserved, &compiled, &micro_batch));
    CHECK((double)compiled <= 1.05 * (double)eager + 2.0 * ROWS / 4 * WIDE * sizeof(float)); /* the inputs, and one activation */
}

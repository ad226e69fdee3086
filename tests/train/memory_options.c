/* The trainer's ways to need less memory: accumulation, precision, segments, offload, and shrinking when memory runs out. */
#include "train/support.h"

#include <math.h>
#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>

enum { WIDTH = 64, CLASSES = 8, SAMPLES = 96, BATCH = 32, HIDDEN = 128 };

/* A problem that is learnt in a few steps: the class is the largest of the first CLASSES features. */
typedef struct problem {
    float x[SAMPLES * WIDTH];
    int64_t y[SAMPLES];
} problem;

static const problem *make_problem(void) {
    static problem p;
    uint64_t random = 3;
    for (int i = 0; i < SAMPLES; ++i) {
        int best = 0;
        for (int k = 0; k < WIDTH; ++k) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            p.x[i * WIDTH + k] = (float)(random >> 40) / (float)(1 << 23) - 1;
            if (k < CLASSES && p.x[i * WIDTH + k] > p.x[i * WIDTH + best]) best = k;
        }
        p.y[i] = best;
    }
    return &p;
}

static gt_module *make_net(gt_context *ctx, bool norm) {
    CHECK_OK(gt_random_seed(ctx, 11));
    gt_module *net = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, WIDTH, HIDDEN, NULL)));
    if (norm) CHECK_OK(gt_nn_sequential_add(net, gt_nn_batch_norm(ctx, HIDDEN, NULL)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_relu(ctx)));
    if (norm) CHECK_OK(gt_nn_sequential_add(net, gt_nn_dropout(ctx, 0.2)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, HIDDEN, HIDDEN, NULL)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_relu(ctx)));
    CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, HIDDEN, CLASSES, NULL)));
    return net;
}

typedef struct outcome {
    float *weights; /* all parameters and buffers, one after the other */
    size_t count;
    gt_fit_result fit;
    uint64_t peak;
    int64_t micro_batch;
} outcome;

static void read_all(gt_module *net, outcome *o) {
    int32_t parameters = gt_module_parameter_count(net), buffers = gt_module_buffer_count(net);
    o->count = 0;
    o->weights = NULL;
    for (int32_t i = 0; i < parameters + buffers; ++i) {
        gt_tensor *tensor = NULL;
        if (i < parameters)
            CHECK_OK(gt_module_parameter(net, i, NULL, &tensor));
        else
            CHECK_OK(gt_module_buffer(net, i - parameters, NULL, &tensor));
        size_t n = (size_t)gt_tensor_numel(tensor);
        o->weights = realloc(o->weights, (o->count + n) * sizeof *o->weights);
        CHECK(o->weights != NULL);
        gt_tensor *wide = CHECK_TENSOR(gt_cast(tensor, GT_DTYPE_F32));
        CHECK_OK(gt_tensor_read(wide, o->weights + o->count, n * sizeof(float)));
        gt_tensor_release(wide);
        o->count += n;
    }
}

static int32_t note_micro_batch(void *user, const gt_train_progress *now) {
    *(int64_t *)user = now->micro_batch;
    return 0;
}

static outcome fit(gt_context *ctx, bool norm, int64_t batch, int64_t epochs, const gt_trainer_options *adjusted) {
    const problem *p = make_problem();
    gt_module *net = make_net(ctx, norm);
    gt_loader *loader = vectors_loader(ctx, p->x, WIDTH, p->y, SAMPLES, batch);
    gt_trainer_options options = *adjusted;
    options.optimizer = sgd(net, 0.5);
    outcome o = {.micro_batch = 0};
    options.on_step = note_micro_batch;
    options.callback_user = &o.micro_batch;
    gt_trainer *trainer = NULL;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_OK(gt_fit_result_init(&o.fit, sizeof o.fit));
    CHECK_OK(gt_memory_reset_peak(ctx));
    CHECK_OK(gt_trainer_fit(trainer, loader, NULL, epochs, &o.fit));
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    o.peak = stats.peak_in_use;
    read_all(net, &o);
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(options.optimizer);
    gt_module_destroy(net);
    return o;
}

/* Without batch norm, K batches to an update give what one batch of their size gives. */
TEST_DEVICES(unit, trainer_accumulates_to_what_a_large_batch_gives) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.allow_tf32 = 0;
    gt_context *ctx = test_context_with(t, &options);
    gt_trainer_options plain = trainer_options(NULL), eight = plain;
    eight.accumulation = 8;
    outcome a = fit(ctx, false, BATCH, 4, &plain), b = fit(ctx, false, BATCH / 8, 4, &eight);
    CHECK_EQ_INT(a.fit.steps * 8, b.fit.steps);
    CHECK_ALLCLOSE_F32(b.weights, a.weights, a.count, 1e-5, 1e-5);
    CHECK_NEAR(b.fit.training.loss, a.fit.training.loss, 1e-5);
    free(a.weights), free(b.weights);
}

/* 7 batches with 4 to an update are two updates (A2). */
static int32_t count_updates(void *user, const gt_train_progress *now) {
    *(int64_t *)user = now->total_steps;
    return 0;
}

TEST_DEVICES(unit, trainer_updates_with_an_epochs_last_short_window) {
    gt_context *ctx = test_context(t);
    float ones[7] = {1, 1, 1, 1, 1, 1, 1}, zeros[7] = {0};
    gt_module *net = scale_module(ctx, 3);
    gt_loader *loader = pairs_loader(ctx, ones, zeros, 1, 7, 1);
    gt_trainer_options options = trainer_options(sgd(net, 0.25));
    options.loss = GT_LOSS_MSE;
    options.accumulation = 4;
    int64_t updates = 0, epoch = 0, done = 0;
    options.on_epoch = count_updates;
    options.callback_user = &updates;
    gt_trainer *trainer = NULL;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_OK(gt_trainer_fit(trainer, loader, NULL, 1, NULL));
    CHECK_NEAR(scale_of(net), 3.0 / 4, 1e-6); /* each update halves w */
    CHECK_EQ_INT(updates, 2);
    CHECK_OK(gt_trainer_state_get(trainer, &epoch, &done));
    CHECK_EQ_INT(epoch, 1);
    CHECK_EQ_INT(done, 2);
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(options.optimizer);
    gt_module_destroy(net);
}

TEST_DEVICES(unit, trainer_learns_in_every_precision) {
    gt_context *ctx = test_context(t);
    gt_trainer_options options = trainer_options(NULL);
    double loss[3];
    for (gt_precision p = GT_PRECISION_F32; p <= GT_PRECISION_BF16; ++p) {
        options.precision = p;
        outcome o = fit(ctx, false, BATCH, 12, &options);
        loss[p] = o.fit.training.loss;
        for (size_t i = 0; i < o.count; ++i) CHECK(isfinite(o.weights[i]));
        free(o.weights);
    }
    EXPECT(loss[GT_PRECISION_F32] < 1.6); /* from 2.1 */
    EXPECT_NEAR(loss[GT_PRECISION_F16], loss[GT_PRECISION_F32], 0.02);
    EXPECT_NEAR(loss[GT_PRECISION_BF16], loss[GT_PRECISION_F32], 0.05);
}

/* Computing again, and keeping on the host, change nothing but the memory. */
TEST_DEVICES(unit, trainer_segments_and_offload_change_no_weight) {
    gt_context_options context;
    CHECK_OK(gt_context_options_init(&context, sizeof context));
    context.deterministic = 1;
    gt_context *ctx = test_context_with(t, &context);
    gt_trainer_options plain = trainer_options(NULL), segments = plain, offload = plain;
    segments.checkpointing = 2;
    offload.offload = 1024;
    outcome a = fit(ctx, true, BATCH, 2, &plain), b = fit(ctx, true, BATCH, 2, &segments), c = fit(ctx, true, BATCH, 2, &offload);
    CHECK(memcmp(a.weights, b.weights, a.count * sizeof(float)) == 0);
    CHECK(memcmp(a.weights, c.weights, a.count * sizeof(float)) == 0);
    free(a.weights), free(b.weights), free(c.weights);
}

/* --- shrinking ---------------------------------------------------------------------------------------------------------------------- */

typedef struct log_book {
    int warnings;
    char last[1024];
} log_book;

static void note_log(void *user, gt_log_level level, const char *text) {
    log_book *book = user;
    if (level != GT_LOG_WARNING || strstr(text, "out of memory") == NULL) return;
    book->warnings++;
    (void)snprintf(book->last, sizeof book->last, "%s", text);
}

/* A module whose forward fails with OUT_OF_MEMORY for more than `most` samples, late in the network: a limit that does not depend on the device. */
typedef struct choke {
    int64_t most;
    int calls;
} choke;

static gt_tensor *choke_forward(void *user, gt_module *self, gt_tensor *const *inputs, int32_t count) {
    choke *c = user;
    (void)self, (void)count;
    c->calls++;
    if (gt_tensor_size(inputs[0], 0) <= c->most) return gt_mul_scalar(inputs[0], 1);
    const int64_t huge[2] = {1 << 24, 1 << 24}; /* 2^50 bytes: no device has that */
    return gt_tensor_zeros(gt_tensor_context(inputs[0]), GT_DTYPE_F32, 2, huge);
}

static gt_module *choking_net(gt_context *ctx, choke *c, bool norm) {
    CHECK_OK(gt_random_seed(ctx, 11));
    gt_nn_custom_options o;
    CHECK_OK(gt_nn_custom_options_init(&o, sizeof o));
    o.kind = "Choke";
    o.forward = choke_forward;
    o.user = c;
    gt_module *layers[] = {gt_nn_linear(ctx, WIDTH, 32, NULL),
                           norm ? gt_nn_batch_norm(ctx, 32, NULL) : gt_nn_tanh(ctx),
                           gt_nn_relu(ctx),
                           gt_nn_dropout(ctx, 0.2),
                           gt_nn_custom(ctx, &o),
                           gt_nn_linear(ctx, 32, CLASSES, NULL)};
    return gt_nn_sequential_from(ctx, layers, (int32_t)(sizeof layers / sizeof *layers));
}

static outcome fit_choking(gt_context *ctx, int64_t most, int64_t batch, int32_t accumulation, int64_t epochs) {
    const problem *p = make_problem();
    choke c = {.most = most};
    gt_module *net = choking_net(ctx, &c, true);
    gt_loader *loader = vectors_loader(ctx, p->x, WIDTH, p->y, SAMPLES, batch);
    gt_trainer_options options = trainer_options(sgd(net, 0.1));
    options.accumulation = accumulation;
    options.shrink_on_oom = 1;
    outcome o = {.micro_batch = 0};
    options.on_step = note_micro_batch;
    options.callback_user = &o.micro_batch;
    gt_trainer *trainer = NULL;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_OK(gt_fit_result_init(&o.fit, sizeof o.fit));
    CHECK_OK(gt_trainer_fit(trainer, loader, NULL, epochs, &o.fit));
    read_all(net, &o);
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(options.optimizer);
    gt_module_destroy(net);
    return o;
}

/* Batch norm and dropout see the micro-batches that they would have seen from the start: the weights are the same to the last bit. */
TEST_DEVICES(contract, M3_trainer_shrinks_to_the_weights_of_the_smaller_micro_batch) {
    log_book book = {0};
    gt_context_options context;
    CHECK_OK(gt_context_options_init(&context, sizeof context));
    context.deterministic = 1;
    context.log = note_log;
    context.log_user = &book;
    gt_context *ctx = test_context_with(t, &context);
    outcome small = fit_choking(ctx, 1000, BATCH / 4, 4, 2); /* 8 at a time, 4 to an update, from the start */
    CHECK_EQ_INT(book.warnings, 0);
    outcome shrunk = fit_choking(ctx, BATCH / 4, BATCH, 1, 2);
    CHECK_EQ_INT(book.warnings, 2); /* 32 to 16, 16 to 8, and never again */
    CHECK(strstr(book.last, "16 samples") && strstr(book.last, "with 8 at a time"));
    CHECK_EQ_INT(shrunk.micro_batch, BATCH / 4);
    CHECK_EQ_INT(shrunk.fit.steps, 2 * SAMPLES / BATCH);
    CHECK(memcmp(small.weights, shrunk.weights, small.count * sizeof(float)) == 0);
    CHECK_NEAR(shrunk.fit.training.loss, small.fit.training.loss, 1e-6);
    CHECK_EQ_INT(shrunk.fit.training.samples, SAMPLES);
    free(small.weights), free(shrunk.weights);

    /* and when the window is of several batches, of which the first have been done already */
    outcome window = fit_choking(ctx, BATCH / 4, BATCH / 2, 2, 2);
    outcome same = fit_choking(ctx, 1000, BATCH / 4, 4, 2);
    CHECK(memcmp(window.weights, same.weights, same.count * sizeof(float)) == 0);
    free(window.weights), free(same.weights);
}

TEST_DEVICES(contract, M3_trainer_fails_when_one_sample_is_too_much) {
    gt_context *ctx = test_context(t);
    const problem *p = make_problem();
    choke c = {.most = 0};
    gt_module *net = choking_net(ctx, &c, false);
    gt_loader *loader = vectors_loader(ctx, p->x, WIDTH, p->y, SAMPLES, 4);
    gt_trainer_options options = trainer_options(sgd(net, 0.1));
    options.shrink_on_oom = 1;
    gt_trainer *trainer = NULL;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    outcome before, after;
    read_all(net, &before);
    CHECK_STATUS(gt_trainer_fit(trainer, loader, NULL, 1, NULL), GT_OUT_OF_MEMORY);
    CHECK_EQ_INT(c.calls, 3); /* 4, 2, 1 */
    read_all(net, &after);
    CHECK(memcmp(before.weights, after.weights, before.count * sizeof(float)) == 0);
    free(before.weights), free(after.weights);
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(options.optimizer);
    gt_module_destroy(net);
}

/* A diverged run is not silent. */
static void note_warning(void *user, gt_log_level level, const char *text) {
    if (level == GT_LOG_WARNING) (void)snprintf(user, 256, "%s", text);
}

TEST_DEVICES(unit, trainer_warns_of_updates_that_were_left_out) {
    char warning[256] = "";
    gt_context_options context;
    CHECK_OK(gt_context_options_init(&context, sizeof context));
    context.log = note_warning;
    context.log_user = warning;
    gt_context *ctx = test_context_with(t, &context);
    warning[0] = '\0'; /* opening may have warned of something else */
    float samples[4] = {1, (float)NAN, 1, (float)NAN}, zeros[4] = {0};
    for (gt_precision p = GT_PRECISION_F32; p <= GT_PRECISION_F16; ++p) {
        gt_module *net = scale_module(ctx, 1);
        gt_loader *loader = pairs_loader(ctx, samples, zeros, 1, 4, 1);
        gt_trainer_options options = trainer_options(sgd(net, 0.25));
        options.loss = GT_LOSS_MSE;
        options.precision = p;
        gt_scaler_options so;
        CHECK_OK(gt_scaler_options_init(&so, sizeof so));
        so.scale = so.floor = 1;
        if (p == GT_PRECISION_F16) CHECK_OK(gt_scaler_create(ctx, &so, &options.scaler));
        gt_trainer *trainer = NULL;
        CHECK_OK(gt_trainer_create(net, &options, &trainer));
        warning[0] = '\0';
        CHECK_OK(gt_trainer_fit(trainer, loader, NULL, 1, NULL));
        if (p == GT_PRECISION_F32)
            CHECK(strstr(warning, "2 updates were left out"));
        else
            CHECK(strstr(warning, "smallest loss scale") && strstr(warning, "\"weight\""));
        CHECK_NEAR(scale_of(net), 0.25, 1e-3); /* the two that were done halve w */
        gt_trainer_destroy(trainer);
        gt_scaler_destroy(options.scaler);
        gt_loader_destroy(loader);
        gt_optimizer_destroy(options.optimizer);
        gt_module_destroy(net);
    }
}

/* Under a limit that a whole batch does not fit, for real. */
static uint64_t fit_images(gt_context *ctx, int32_t shrink, int64_t *micro_batch, double *loss) {
    enum { N = 32, SIZE = 32 };
    static float x[N * SIZE * SIZE];
    static int64_t y[N];
    for (int i = 0; i < N * SIZE * SIZE; ++i) x[i] = (float)(i % 17) / 17;
    for (int i = 0; i < N; ++i) y[i] = i % 4;
    CHECK_OK(gt_random_seed(ctx, 5));
    gt_nn_conv2d_options conv;
    CHECK_OK(gt_nn_conv2d_options_init(&conv, sizeof conv));
    conv.padding[0] = conv.padding[1] = 1;
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 64, 3, &conv),
                           gt_nn_tanh(ctx),
                           gt_nn_tanh(ctx),
                           gt_nn_tanh(ctx),
                           gt_nn_tanh(ctx),
                           gt_nn_adaptive_avg_pool2d(ctx, 1, 1),
                           gt_nn_flatten(ctx, 1),
                           gt_nn_linear(ctx, 64, 4, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, (int32_t)(sizeof layers / sizeof *layers));
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.sample_ndim = 3;
    format.sample_shape[0] = 1;
    format.sample_shape[1] = format.sample_shape[2] = SIZE;
    format.length = N;
    format.has_labels = 1;
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_arrays(&format, x, y, 0, &dataset));
    gt_loader_options lo;
    CHECK_OK(gt_loader_options_init(&lo, sizeof lo));
    lo.batch_size = N;
    gt_loader *loader = NULL;
    CHECK_OK(gt_loader_create(ctx, dataset, &lo, &loader));
    gt_dataset_destroy(dataset);
    gt_trainer_options options = trainer_options(sgd(net, 0.1));
    options.shrink_on_oom = shrink;
    options.on_step = note_micro_batch;
    options.callback_user = micro_batch;
    gt_trainer *trainer = NULL;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    gt_fit_result result;
    CHECK_OK(gt_fit_result_init(&result, sizeof result));
    gt_status status = gt_trainer_fit(trainer, loader, NULL, 2, &result);
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    *loss = result.training.loss;
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(options.optimizer);
    gt_module_destroy(net);
    if (shrink)
        CHECK_OK(status);
    else if (status != GT_OK)
        CHECK_STATUS(status, GT_OUT_OF_MEMORY);
    return status == GT_OK ? stats.peak_in_use : 0;
}

TEST_DEVICES(contract, M3_trainer_shrinks_under_a_memory_limit) {
    int64_t micro_batch = 0;
    double plain = 0, shrunk = 0;
    CHECK(fit_images(test_context(t), 0, &micro_batch, &plain) > 48u << 20); /* five activations of 8 MiB, and a gradient */
    log_book book = {0};
    gt_context_options context;
    CHECK_OK(gt_context_options_init(&context, sizeof context));
    context.memory_limit = 40u << 20;
    context.log = note_log;
    context.log_user = &book;
    gt_context *ctx = test_context_with(t, &context);
    CHECK_EQ_INT(fit_images(ctx, 0, &micro_batch, &shrunk), 0); /* it does not fit as it is */
    CHECK(fit_images(ctx, 1, &micro_batch, &shrunk) <= context.memory_limit);
    CHECK_EQ_INT(book.warnings, 1);
    CHECK_EQ_INT(micro_batch, 16);
    CHECK_NEAR(shrunk, plain, 1e-3);
}

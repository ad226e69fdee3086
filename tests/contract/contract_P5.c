/* Contract P5: a run that is stopped anywhere, saved, and loaded by another process ends as if it had not been stopped. Contract S8: so does a scaler. */
#include "contract/step_support.h"
#include "io/support.h"

#include <unistd.h>

enum { SAMPLES = 52, BATCH = 4, BATCHES = 13, EPOCHS = 3, MOST = 3 * BATCHES + 8 };

typedef struct seen {
    double loss[EPOCHS][BATCHES]; /* the epoch's, so far, after each batch */
    double rate[EPOCHS][BATCHES];
    gt_metrics validation[EPOCHS];
    double scale;
    int64_t stop_after; /* batches of this process; 0: never */
    int64_t done;
    int64_t save_after; /* batches after which the callback itself saves; 0: never */
    const char *path;
    const gt_state_parts *parts;
} seen;

typedef struct job {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_trainer *trainer;
    gt_loader *training, *validation;
} job;

static int32_t on_step(void *user, const gt_train_progress *p) {
    seen *s = user;
    s->loss[p->epoch][p->step - 1] = p->training.loss;
    s->rate[p->epoch][p->step - 1] = p->learning_rate;
    if (++s->done == s->save_after) {
        EXPECT_OK(gt_state_save(s->path, s->parts));
    } else if (s->save_after && p->open_batches > 0) {
        EXPECT_STATUS(gt_state_save(s->path, s->parts), GT_BAD_STATE);
        EXPECT_ERROR_HAS("a window is open");
    }
    return s->done == s->stop_after;
}

static int32_t on_epoch(void *user, const gt_train_progress *p) {
    seen *s = user;
    s->loss[p->epoch][BATCHES - 1] = p->training.loss;
    s->validation[p->epoch] = p->validation;
    s->scale = p->loss_scale;
    return 0;
}

static gt_loader *images(gt_context *ctx, int32_t shuffle, uint64_t seed) {
    static float pixels[SAMPLES][64];
    static int64_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES; ++i) {
        labels[i] = i % 4;
        for (int k = 0; k < 64; ++k) pixels[i][k] = (float)((i * 37 + k * (int)(labels[i] + 1)) % 23) / 23.0f;
    }
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.length = SAMPLES;
    format.classes = 4;
    format.sample_ndim = 3;
    format.sample_shape[0] = 1;
    format.sample_shape[1] = format.sample_shape[2] = 8;
    gt_dataset *dataset = NULL;
    gt_transform *transform = NULL;
    gt_loader *loader = NULL;
    gt_loader_options options;
    CHECK_OK(gt_dataset_from_arrays(&format, pixels, labels, 0, &dataset));
    CHECK_OK(gt_transform_create(&transform));
    CHECK_OK(gt_transform_horizontal_flip(transform, 0.5));
    CHECK_OK(gt_loader_options_init(&options, sizeof options));
    options.batch_size = BATCH;
    options.shuffle = shuffle;
    options.seed = seed;
    options.transform = transform;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    gt_transform_destroy(transform);
    gt_dataset_destroy(dataset);
    return loader;
}

/* `seed` of weights and dropout: a process that goes on has another one, which must not matter. */
static job start(test_case *t, uint64_t seed, seen *s, gt_precision precision, int32_t accumulation) {
    job j = {0};
    gt_context_options context;
    CHECK_OK(gt_context_options_init(&context, sizeof context));
    context.seed = seed;
    context.deterministic = 1;
    j.ctx = test_context_with(t, &context);
    j.net = io_net(j.ctx);
    j.training = images(j.ctx, 1, 5);
    j.validation = images(j.ctx, 0, 0);
    gt_optimizer_options adam;
    gt_schedule schedule;
    gt_trainer_options options;
    CHECK_OK(gt_optimizer_options_init(&adam, sizeof adam, GT_OPTIMIZER_ADAMW));
    CHECK_OK(gt_optimizer_create_for(&adam, j.net, &j.optimizer));
    CHECK_OK(gt_schedule_init(&schedule, sizeof schedule, GT_SCHEDULE_ONE_CYCLE));
    schedule.base = 0.01;
    schedule.total_steps = EPOCHS * ((BATCHES + accumulation - 1) / accumulation);
    CHECK_OK(gt_trainer_options_init(&options, sizeof options));
    options.optimizer = j.optimizer;
    options.schedule = &schedule;
    options.precision = precision;
    options.accumulation = accumulation;
    options.clip_norm = 1;
    options.log_every = 4;
    options.on_step = on_step;
    options.on_epoch = on_epoch;
    options.callback_user = s;
    CHECK_OK(gt_trainer_create(j.net, &options, &j.trainer));
    return j;
}

static void end(job *j) {
    gt_trainer_destroy(j->trainer);
    gt_optimizer_destroy(j->optimizer);
    gt_loader_destroy(j->training);
    gt_loader_destroy(j->validation);
    gt_module_destroy(j->net);
}

static gt_state_parts parts_of(const job *j) {
    gt_state_parts parts;
    CHECK_OK(gt_state_parts_init(&parts, sizeof parts));
    parts.trainer = j->trainer;
    parts.loader = j->training;
    return parts;
}

static void check_resume(test_case *t, gt_precision precision, int32_t accumulation, int64_t stop_after) {
    static seen whole, broken;
    whole = (seen){0};
    broken = (seen){.stop_after = stop_after};
    job j = start(t, 1, &whole, precision, accumulation);
    CHECK_OK(gt_trainer_fit(j.trainer, j.training, j.validation, EPOCHS, NULL));
    size_t size = 0;
    unsigned char *bits = io_bits(j.net, &size);
    uint64_t seed, offset;
    CHECK_OK(gt_random_state_get(j.ctx, &seed, &offset));
    end(&j);

    char *path = io_path(t, "run.safetensors");
    gt_fit_result result;
    CHECK_OK(gt_fit_result_init(&result, sizeof result));
    j = start(t, 1, &broken, precision, accumulation);
    CHECK_OK(gt_trainer_fit(j.trainer, j.training, j.validation, EPOCHS, &result));
    CHECK_EQ_INT(result.stopped, 1);
    gt_state_parts parts = parts_of(&j);
    CHECK_OK(gt_state_save(path, &parts));
    end(&j);

    broken.stop_after = 0;
    j = start(t, 99, &broken, precision, accumulation);
    parts = parts_of(&j);
    CHECK_OK(gt_state_load(path, &parts));
    int64_t epoch = 0;
    CHECK_OK(gt_trainer_state_get(j.trainer, &epoch, NULL));
    CHECK_OK(gt_trainer_fit(j.trainer, j.training, j.validation, EPOCHS - epoch, &result));
    io_check_bits(j.net, bits, size); /* the weights and the statistics, bit by bit */
    for (int e = 0; e < EPOCHS; ++e) {
        CHECK(whole.validation[e].loss == broken.validation[e].loss);
        CHECK_EQ_INT(whole.validation[e].correct, broken.validation[e].correct);
        for (int b = 0; b < BATCHES; ++b) CHECK(whole.rate[e][b] == broken.rate[e][b]);
        CHECK(whole.loss[e][BATCHES - 1] == broken.loss[e][BATCHES - 1]); /* the sum over the epoch, too, though it was interrupted */
    }
    CHECK(whole.scale == broken.scale);
    uint64_t other_seed, other_offset;
    CHECK_OK(gt_random_state_get(j.ctx, &other_seed, &other_offset));
    CHECK(seed == other_seed && offset == other_offset);
    end(&j);
    free(bits);
    free(path);
}

/* On the GPU the same holds in deterministic mode. */
TEST_DEVICES(contract, P5_resuming_in_the_middle_of_an_epoch_ends_bitwise_the_same) {
    check_resume(t, GT_PRECISION_F32, 1, BATCHES + 5);
    check_resume(t, GT_PRECISION_F32, 1, 1);
    check_resume(t, GT_PRECISION_F32, 1, 2 * BATCHES + 12);
}
TEST_DEVICES(contract, P5_resuming_at_an_epochs_end_ends_bitwise_the_same) { check_resume(t, GT_PRECISION_F32, 1, BATCHES); }
/* 13 batches in windows of 4: stopped in a window's middle, at its end, and in the last, short one. */
TEST_DEVICES(contract, P5_resuming_from_the_middle_of_a_window_ends_bitwise_the_same) {
    check_resume(t, GT_PRECISION_F32, 4, BATCHES + 6);
    check_resume(t, GT_PRECISION_F32, 4, BATCHES + 8);
    check_resume(t, GT_PRECISION_F32, 4, 3);
    check_resume(t, GT_PRECISION_F32, 4, BATCHES);
}
TEST_DEVICES(contract, P5_resuming_in_mixed_precision_ends_bitwise_the_same) {
    check_resume(t, GT_PRECISION_F16, 1, BATCHES + 5);
    check_resume(t, GT_PRECISION_BF16, 4, BATCHES + 6);
}

/* A state that a callback has saved on the way, while training went on. */
TEST_DEVICES(contract, P5_a_callback_saves_a_state_to_resume_from) {
    static const int64_t moments[] = {BATCHES + 8, BATCHES, 4}; /* after an update, with 13 batches in windows of 4 */
    for (int i = 0; i < 3; ++i) {
        static seen whole, again;
        whole = (seen){.save_after = moments[i]};
        again = (seen){0};
        char *path = io_path(t, "run.safetensors");
        job j = start(t, 1, &whole, GT_PRECISION_F32, i == 1 ? 1 : 4);
        gt_state_parts parts = parts_of(&j);
        whole.path = path;
        whole.parts = &parts;
        CHECK_OK(gt_trainer_fit(j.trainer, j.training, j.validation, EPOCHS, NULL));
        size_t size = 0;
        unsigned char *bits = io_bits(j.net, &size);
        end(&j);
        int64_t epoch = 0;
        j = start(t, 7, &again, GT_PRECISION_F32, i == 1 ? 1 : 4);
        parts = parts_of(&j);
        CHECK_OK(gt_state_load(path, &parts));
        CHECK_OK(gt_trainer_state_get(j.trainer, &epoch, NULL));
        CHECK_OK(gt_trainer_fit(j.trainer, j.training, j.validation, EPOCHS - epoch, NULL));
        io_check_bits(j.net, bits, size);
        for (int e = 0; e < EPOCHS; ++e) CHECK(e < epoch || whole.loss[e][BATCHES - 1] == again.loss[e][BATCHES - 1]);
        CHECK(epoch == 1 || i > 0); /* in the middle of the second epoch, at the end of the first, in the first */
        end(&j);
        free(bits);
        free(path);
    }
}

/* A fit that goes on after a stop without a file in between does so as well. */
TEST_DEVICES(contract, P5_a_fit_goes_on_where_the_last_one_stopped) {
    static seen whole, broken;
    whole = (seen){0};
    broken = (seen){.stop_after = BATCHES + 6};
    job j = start(t, 1, &whole, GT_PRECISION_F32, 4), k = start(t, 1, &broken, GT_PRECISION_F32, 4);
    CHECK_OK(gt_trainer_fit(j.trainer, j.training, NULL, EPOCHS, NULL));
    CHECK_OK(gt_trainer_fit(k.trainer, k.training, NULL, EPOCHS, NULL));
    CHECK_OK(gt_trainer_fit(k.trainer, k.training, NULL, EPOCHS - 1, NULL));
    size_t size = 0;
    unsigned char *bits = io_bits(j.net, &size);
    io_check_bits(k.net, bits, size);
    free(bits);
    end(&j);
    end(&k);
}

/* One epoch of a loop by hand, from where the loader stands. `most`: batches; 0: all that are left. */
static void loop(gt_context *ctx, gt_module *net, gt_window *window, gt_loader *loader, int most) {
    int64_t count = 1;
    for (int done = 0; count > 0 && (most == 0 || done < most); ++done) {
        gt_tensor *x, *y;
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_loader_next(loader, &x, &y, &count));
        if (count > 0) {
            CHECK_OK(gt_window_micro_begin(window));
            CHECK_OK(gt_window_micro_end(window, gt_cross_entropy(gt_module_forward(net, x), y, NULL), (double)count, NULL));
        }
        CHECK_OK(gt_scope_end(ctx));
    }
}

static void check_by_hand(test_case *t, int save_after) {
    char *path = io_path(t, "hand.safetensors");
    unsigned char *bits = NULL;
    size_t size = 0;
    for (int part = 0; part < 2; ++part) {
        gt_context *ctx = test_context(t);
        gt_module *net = io_net(ctx);
        gt_loader *loader = images(ctx, 1, 5);
        gt_optimizer_options sgd;
        gt_optimizer *optimizer = NULL;
        CHECK_OK(gt_optimizer_options_init(&sgd, sizeof sgd, GT_OPTIMIZER_SGD));
        sgd.momentum = 0.9;
        CHECK_OK(gt_optimizer_create_for(&sgd, net, &optimizer));
        gt_schedule schedule;
        CHECK_OK(gt_schedule_init(&schedule, sizeof schedule, GT_SCHEDULE_STEP));
        schedule.base = 0.05;
        schedule.step_size = 4;
        gt_window_options options = step_window_options(&optimizer, 1, 1);
        options.module = net;
        options.schedule = &schedule;
        gt_window *window = step_window(&options);
        gt_state_parts parts;
        CHECK_OK(gt_state_parts_init(&parts, sizeof parts));
        parts.module = net;
        parts.optimizers = &optimizer;
        parts.n_optimizers = 1;
        parts.window = window;
        parts.loader = loader;
        if (part == 0) {
            CHECK_OK(gt_loader_start_epoch(loader, 2));
            loop(ctx, net, window, loader, save_after);
            CHECK_OK(gt_state_save(path, &parts));
        } else {
            CHECK_OK(gt_random_seed(ctx, 1234));
            CHECK_OK(gt_state_load(path, &parts));
        }
        loop(ctx, net, window, loader, 0);
        if (part == 0)
            bits = io_bits(net, &size);
        else
            io_check_bits(net, bits, size);
        CHECK_EQ_INT(step_window_state(window).updates, BATCHES);
        gt_window_destroy(window);
        gt_optimizer_destroy(optimizer);
        gt_loader_destroy(loader);
        gt_module_destroy(net);
    }
    free(bits);
    free(path);
}

TEST(contract, P5_a_loop_by_hand_resumes_in_the_middle_of_an_epoch) {
    check_by_hand(t, 5);
    check_by_hand(t, BATCHES - 1);
}

TEST_DEVICES(contract, P5_other_data_is_refused) {
    static seen s;
    s = (seen){.stop_after = 5};
    job j = start(t, 1, &s, GT_PRECISION_F32, 1);
    char *path = io_path(t, "run.safetensors");
    CHECK_OK(gt_trainer_fit(j.trainer, j.training, NULL, 1, NULL));
    gt_state_parts parts = parts_of(&j);
    CHECK_OK(gt_state_save(path, &parts));
    gt_loader *other = images(j.ctx, 1, 6);
    parts.loader = other;
    CHECK_STATUS(gt_state_load(path, &parts), GT_BAD_FILE);
    CHECK_ERROR_HAS("\"loader.seed\" is 5 in the file, 6 here");
    gt_loader_destroy(other);
    gt_dataset *small = NULL;
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.has_labels = 0;
    format.length = 9;
    const float nine[9] = {0};
    CHECK_OK(gt_dataset_from_arrays(&format, nine, NULL, 0, &small));
    CHECK_OK(gt_loader_create(j.ctx, small, NULL, &other));
    gt_dataset_destroy(small);
    CHECK_STATUS(gt_trainer_fit(j.trainer, other, NULL, 1, NULL), GT_BAD_STATE);
    CHECK_ERROR_HAS("epoch 0 was left after 5 of its 13 batches, and this loader has 9");
    gt_loader_destroy(other);
    end(&j);
    free(path);
}

TEST_DEVICES(contract, S8_a_state_file_keeps_scale_and_growth_count) {
    char *path = io_path(t, "scaler.safetensors");
    for (int part = 0; part < 2; ++part) {
        gt_context *ctx = test_context(t);
        gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 1);
        CHECK_OK(gt_tensor_set_name(w, "w"));
        gt_optimizer *optimizer = step_sgd(w, 0.1);
        gt_scaler *scaler = step_scaler(ctx, 65536, 3);
        gt_state_parts parts;
        CHECK_OK(gt_state_parts_init(&parts, sizeof parts));
        parts.optimizers = &optimizer;
        parts.n_optimizers = 1;
        parts.scaler = scaler;
        if (part == 1) CHECK_OK(gt_state_load(path, &parts));
        for (int i = 0; i < (part ? 1 : 2); ++i) {
            step_scaled(scaler, optimizer, w, NULL, 1);
            CHECK_STATUS(gt_state_save(path, &parts), GT_BAD_STATE); /* between a step and its update */
            CHECK_OK(gt_scaler_update(scaler));
        }
        if (part == 0) CHECK_OK(gt_state_save(path, &parts));
        if (part == 1) CHECK(step_state(scaler).scale == 131072);
        gt_scaler_destroy(scaler);
        gt_optimizer_destroy(optimizer);
        gt_tensor_release(w);
    }
    free(path);
}

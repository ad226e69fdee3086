/* Accumulation windows over whole networks, with several optimizers, clipping and schedules; and what is refused while one is open. */
#include "contract/step_support.h"

enum { FEATURES = 6, HIDDEN = 10, CLASSES = 3, ROWS = 32 };

typedef struct task {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizers[2]; /* first layer: AdamW; last: SGD with momentum */
} task;

static gt_optimizer *part_optimizer(gt_module *net, gt_optimizer_kind kind, double rate, const char *layer) {
    gt_module *m;
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_module_find_module(net, layer, &m));
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, kind));
    o.learning_rate = rate;
    if (kind == GT_OPTIMIZER_SGD) o.momentum = 0.9;
    CHECK_OK(gt_optimizer_create_for(&o, m, &optimizer));
    return optimizer;
}

static void task_begin(test_case *t, task *k) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.seed = 11;
    options.allow_tf32 = 0;
    k->ctx = test_context_with(t, &options);
    gt_module *const layers[] = {gt_nn_linear(k->ctx, FEATURES, HIDDEN, NULL), gt_nn_tanh(k->ctx),
                                 gt_nn_linear(k->ctx, HIDDEN, CLASSES, NULL)};
    k->net = gt_nn_sequential_from(k->ctx, layers, 3);
    CHECK(k->net != NULL);
    k->optimizers[0] = part_optimizer(k->net, GT_OPTIMIZER_ADAMW, 0.01, "0");
    k->optimizers[1] = part_optimizer(k->net, GT_OPTIMIZER_SGD, 0.1, "2");
}

static void task_end(task *k) {
    for (int i = 0; i < 2; ++i) gt_optimizer_destroy(k->optimizers[i]);
    gt_module_destroy(k->net);
}

/* The loss of rows [first, first + n) of a made-up data set, in the innermost scope. */
static gt_tensor *loss_of(task *k, int first, int n) {
    float x[ROWS * FEATURES];
    int64_t y[ROWS];
    for (int r = 0; r < n; ++r) {
        y[r] = (first + r) * 5 % CLASSES;
        for (int f = 0; f < FEATURES; ++f) x[r * FEATURES + f] = (float)(((first + r) * 7 + f * 3) % 13 - 6) / 4;
    }
    const int64_t shape[2] = {n, FEATURES}, rows = n;
    gt_tensor *in = gt_tensor_from_data(k->ctx, GT_DTYPE_F32, 2, shape, x, (size_t)(n * FEATURES) * sizeof *x);
    gt_tensor *labels = gt_tensor_from_data(k->ctx, GT_DTYPE_I64, 1, &rows, y, (size_t)n * sizeof *y);
    return gt_cross_entropy(gt_module_forward(k->net, in), labels, NULL);
}

static void window_of(task *k, gt_window *window, const int *sizes, int n) {
    for (int i = 0, first = 0; i < n; first += sizes[i++]) {
        CHECK_OK(gt_window_micro_begin(window));
        CHECK_OK(gt_scope_begin(k->ctx));
        CHECK_OK(gt_window_micro_end(window, loss_of(k, first, sizes[i]), sizes[i], NULL));
        CHECK_OK(gt_scope_end(k->ctx));
    }
}

static int64_t weights_of(task *k, float *out) {
    int64_t n = 0;
    for (int32_t i = 0; i < gt_module_parameter_count(k->net); ++i) {
        gt_tensor *tensor;
        CHECK_OK(gt_module_parameter(k->net, i, NULL, &tensor));
        step_read(tensor, out + n, gt_tensor_numel(tensor));
        n += gt_tensor_numel(tensor);
    }
    return n;
}

static double rate_at(const gt_schedule *schedule, int64_t step) {
    double rate = NAN;
    CHECK_OK(gt_schedule_rate(schedule, step, &rate));
    return rate;
}

/* What a window is to come to, by hand: one big batch, both optimizers clipped by their common norm. */
static void big_step(task *k, double clip_norm, double clip_value, const gt_schedule *schedule, int64_t step, double *norm) {
    CHECK_OK(gt_scope_begin(k->ctx));
    CHECK_OK(gt_backward(loss_of(k, 0, ROWS)));
    double squares = 0;
    for (int i = 0; i < 2; ++i) {
        gt_tensor *one;
        CHECK_OK(gt_optimizer_clip_grad_norm(k->optimizers[i], 1e9, &one));
        squares += step_value(one) * step_value(one);
    }
    *norm = sqrt(squares);
    for (int32_t i = 0; i < gt_module_parameter_count(k->net); ++i) {
        gt_tensor *p;
        CHECK_OK(gt_module_parameter(k->net, i, NULL, &p));
        if (clip_norm > 0 && *norm > clip_norm) {
            gt_tensor *g = gt_tensor_grad(p);
            CHECK_OK(gt_tensor_copy(g, gt_mul_scalar(g, clip_norm / *norm)));
        }
    }
    for (int i = 0; i < 2; ++i) {
        if (clip_value > 0) CHECK_OK(gt_optimizer_clip_grad_value(k->optimizers[i], clip_value));
        if (schedule) CHECK_OK(gt_optimizer_set_learning_rate(k->optimizers[i], rate_at(schedule, step)));
        CHECK_OK(gt_optimizer_step(k->optimizers[i]));
        CHECK_OK(gt_optimizer_zero_grad(k->optimizers[i]));
    }
    CHECK_OK(gt_scope_end(k->ctx));
}

static void compare(test_case *t, const int *sizes, int n, double scale, double clip_norm, double clip_value, const gt_schedule *schedule) {
    task big, small;
    task_begin(t, &big);
    task_begin(t, &small);
    gt_scaler *scaler = scale > 0 ? step_scaler(small.ctx, scale, 2) : NULL;
    gt_window_options o = step_window_options(small.optimizers, 2, n);
    o.module = small.net;
    o.scaler = scaler;
    o.clip_norm = clip_norm;
    o.clip_value = clip_value;
    o.schedule = schedule;
    gt_window *window = step_window(&o);
    float a[256], b[256];
    for (int step = 0; step < 5; ++step) {
        double norm;
        big_step(&big, clip_norm, clip_value, schedule, step, &norm);
        window_of(&small, window, sizes, n);
        int64_t count = weights_of(&big, a);
        CHECK_EQ_INT(weights_of(&small, b), count);
        CHECK_ALLCLOSE_F32(b, a, count, 1e-5, 1e-5);
        gt_window_state state = step_window_state(window);
        CHECK_EQ_INT(state.updates, step + 1);
        CHECK_NEAR(state.gradient_norm, norm, 1e-5);
        CHECK_NEAR(state.learning_rate, schedule ? rate_at(schedule, step) : 0.01, 1e-12);
        CHECK_NEAR(state.items, ROWS, 0);
        if (clip_norm > 0) CHECK(norm > clip_norm); /* so that it matters */
    }
    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    task_end(&big);
    task_end(&small);
}

static const int eights[8] = {4, 4, 4, 4, 4, 4, 4, 4}, uneven[5] = {1, 12, 3, 9, 7};

TEST_DEVICES(unit, window_of_eight_equals_one_big_batch) {
    compare(t, eights, 8, 0, 0, 0, NULL);
    compare(t, eights, 8, 65536, 0, 0, NULL);
    compare(t, uneven, 5, 65536, 0, 0, NULL);
}

TEST_DEVICES(unit, window_clips_over_all_its_optimizers) {
    compare(t, eights, 8, 1024, 0.05, 0, NULL);
    compare(t, uneven, 5, 0, 0.05, 0, NULL);
    compare(t, uneven, 5, 1024, 0, 0.01, NULL);
    compare(t, uneven, 5, 1024, 0.05, 0.01, NULL);
}

TEST_DEVICES(unit, window_schedules_on_the_device) {
    for (gt_schedule_kind kind = GT_SCHEDULE_CONSTANT; kind <= GT_SCHEDULE_ONE_CYCLE; ++kind) {
        gt_schedule schedule;
        CHECK_OK(gt_schedule_init(&schedule, sizeof schedule, kind));
        schedule.base = 0.05;
        schedule.step_size = 2;
        schedule.total_steps = 5;
        if (kind != GT_SCHEDULE_ONE_CYCLE) schedule.warmup_steps = 2;
        compare(t, eights, 8, 1024, 0, 0, &schedule);
    }
}

/* One micro-batch a window is the plain step, bit by bit. */
TEST_DEVICES(unit, window_of_one_is_a_plain_step) {
    task plain, windowed;
    task_begin(t, &plain);
    task_begin(t, &windowed);
    gt_window_options o = step_window_options(windowed.optimizers, 2, 1);
    gt_window *window = step_window(&o);
    const int all = ROWS;
    for (int step = 0; step < 5; ++step) {
        double norm;
        big_step(&plain, 0, 0, NULL, step, &norm);
        window_of(&windowed, window, &all, 1);
    }
    float a[256], b[256];
    int64_t count = weights_of(&plain, a);
    CHECK_EQ_INT(weights_of(&windowed, b), count);
    CHECK(memcmp(a, b, (size_t)count * sizeof *a) == 0);
    gt_window_destroy(window);
    task_end(&plain);
    task_end(&windowed);
}

TEST_DEVICES(unit, window_of_half_precision_weights_and_losses) {
    gt_context *ctx = test_context(t);
    static const gt_dtype dtypes[] = {GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F32, GT_DTYPE_F64};
    for (int d = 0; d < 4; ++d) {
        gt_tensor *w = step_leaf(ctx, dtypes[d], 1, 1);
        gt_optimizer *optimizer = step_sgd(w, 0.25);
        gt_scaler *scaler = step_scaler(ctx, 1024, 0);
        gt_window_options o = step_window_options(&optimizer, 1, 2);
        o.scaler = scaler;
        gt_window *window = step_window(&o);
        for (int i = 0; i < 2; ++i) {
            CHECK_OK(gt_scope_begin(ctx));
            CHECK_OK(gt_window_micro_begin(window));
            gt_tensor *loss = gt_mul_scalar(w, i ? 3 : 1); /* shape [1], of w's dtype */
            CHECK_OK(gt_window_micro_end(window, loss, 1, NULL));
            CHECK_OK(gt_scope_end(ctx));
        }
        CHECK(step_value(w) == 0.5);
        gt_window_destroy(window);
        gt_scaler_destroy(scaler);
        gt_optimizer_destroy(optimizer);
        gt_tensor_release(w);
    }
}

TEST_DEVICES(unit, open_window_keeps_others_away) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 1);
    gt_optimizer *optimizer = step_sgd(w, 0.5);
    gt_scaler *scaler = step_scaler(ctx, 0, 0);
    gt_scaler_state state = step_state(scaler);
    gt_window_options o = step_window_options(&optimizer, 1, 3);
    o.scaler = scaler;
    gt_window *window = step_window(&o), *other = step_window(&o);
    CHECK_STATUS(gt_window_micro_end(window, w, 1, NULL), GT_BAD_STATE);
    step_micro(window, w, NULL, 1, 1);
    CHECK_STATUS(gt_window_micro_end(window, w, 1, NULL), GT_BAD_STATE);
    CHECK_STATUS(gt_optimizer_step(optimizer), GT_BAD_STATE);
    CHECK_ERROR_HAS("window");
    CHECK_STATUS(gt_optimizer_clip_grad_value(optimizer, 1), GT_BAD_STATE);
    CHECK_STATUS(gt_scaler_step(scaler, optimizer), GT_BAD_STATE);
    CHECK_STATUS(gt_scaler_unscale(scaler, optimizer), GT_BAD_STATE);
    CHECK_STATUS(gt_scaler_update(scaler), GT_BAD_STATE);
    CHECK_STATUS(gt_scaler_set_state(scaler, &state), GT_BAD_STATE);
    CHECK_STATUS(gt_window_micro_begin(other), GT_BAD_STATE);
    CHECK_STATUS(gt_window_set_micro_batches(window, 2), GT_BAD_STATE);
    CHECK_STATUS(gt_window_set_updates(window, 2), GT_BAD_STATE);
    CHECK_OK(gt_window_micro_begin(window));
    CHECK_STATUS(gt_window_micro_begin(window), GT_BAD_STATE);
    CHECK_STATUS(gt_window_flush(window), GT_BAD_STATE);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_window_micro_end(window, step_loss_of(w, NULL, 1), 1, NULL));
    CHECK_OK(gt_scope_end(ctx));
    CHECK(step_value(w) == 1 && step_window_state(window).micro_batches == 2);
    CHECK_OK(gt_window_flush(window));
    CHECK_NEAR(step_value(w), 0.5, 1e-6);
    CHECK_OK(gt_window_set_updates(other, 40));
    CHECK_EQ_INT(step_window_state(other).updates, 40);
    step_micro(other, w, NULL, 1, 1); /* free again */
    gt_window_destroy(other);
    gt_window_destroy(window);
    CHECK(gt_tensor_grad(w) == NULL);
    CHECK_NEAR(step_value(w), 0.5, 1e-6);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(unit, window_refuses_what_it_cannot_use) {
    gt_context *ctx = test_context(t), *elsewhere = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 2, 1), *far = step_leaf(elsewhere, GT_DTYPE_F32, 1, 1);
    gt_optimizer *optimizer = step_sgd(w, 0.5), *twice[2] = {optimizer, optimizer}, *two[2] = {optimizer, step_sgd(far, 1)};
    gt_window *window = NULL;
    gt_window_options o = step_window_options(&optimizer, 0, 1);
    CHECK_STATUS(gt_window_create(&o, &window), GT_BAD_ARGUMENT);
    o = step_window_options(twice, 2, 1);
    CHECK_STATUS(gt_window_create(&o, &window), GT_BAD_ARGUMENT);
    o = step_window_options(two, 2, 1);
    CHECK_STATUS(gt_window_create(&o, &window), GT_BAD_DEVICE);
    o = step_window_options(&optimizer, 1, 1);
    o.clip_norm = -1;
    CHECK_STATUS(gt_window_create(&o, &window), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("clip_norm");
    o.clip_norm = 0;
    gt_schedule schedule;
    CHECK_OK(gt_schedule_init(&schedule, sizeof schedule, GT_SCHEDULE_COSINE));
    o.schedule = &schedule;
    CHECK_STATUS(gt_window_create(&o, &window), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("total_steps");
    o.schedule = NULL;
    gt_scaler *scaler = step_scaler(elsewhere, 0, 0);
    o.scaler = scaler;
    CHECK_STATUS(gt_window_create(&o, &window), GT_BAD_DEVICE);
    o.scaler = NULL;
    CHECK(window == NULL);
    window = step_window(&o);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *loss = step_loss_of(w, NULL, 1), *many = gt_mul_scalar(w, 1), *items = gt_tensor_full(ctx, GT_DTYPE_I64, 0, NULL, 1);
    static const double bad[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 3; ++i) {
        CHECK_OK(gt_window_micro_begin(window));
        CHECK_STATUS(gt_window_micro_end(window, loss, bad[i], NULL), GT_BAD_ARGUMENT);
    }
    CHECK_OK(gt_window_micro_begin(window));
    CHECK_STATUS(gt_window_micro_end(window, many, 1, NULL), GT_BAD_SHAPE);
    CHECK_OK(gt_window_micro_begin(window));
    CHECK_STATUS(gt_window_micro_end(window, loss, 1, items), GT_BAD_SHAPE);
    CHECK_OK(gt_window_micro_begin(window));
    CHECK_STATUS(gt_window_micro_end(window, gt_dropout(w, 2, 1), 1, NULL), GT_BAD_ARGUMENT);
    CHECK_OK(gt_window_micro_begin(window));
    CHECK_OK(gt_window_micro_end(window, loss, 1, NULL));
    CHECK_OK(gt_scope_end(ctx));
    CHECK_EQ_INT(step_window_state(window).updates, 1);
    gt_window_destroy(window);
    gt_window_destroy(NULL);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_optimizer_destroy(two[1]);
    gt_tensor_release(w);
    gt_tensor_release(far);
}

/* Handles may outlive their context. */
TEST_DEVICES(unit, windows_and_scalers_outlive_their_context) {
    gt_context_options options;
    gt_context *ctx = NULL;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.device = test_device(t);
    if (gt_context_create(&options, &ctx) != GT_OK) SKIP(gt_last_error()->message);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 1);
    gt_optimizer *optimizer = step_sgd(w, 0.5);
    gt_scaler *scaler = step_scaler(ctx, 0, 0);
    gt_window_options o = step_window_options(&optimizer, 1, 2);
    o.scaler = scaler;
    gt_window *window = step_window(&o);
    step_micro(window, w, NULL, 1, 1);
    gt_context_destroy(ctx);
    gt_window_state state;
    CHECK_OK(gt_window_state_init(&state, sizeof state));
    CHECK_STATUS(gt_window_micro_begin(window), GT_BAD_STATE);
    CHECK_STATUS(gt_window_flush(window), GT_BAD_STATE);
    CHECK_STATUS(gt_window_cancel(window), GT_BAD_STATE);
    CHECK_STATUS(gt_window_get_state(window, &state), GT_BAD_STATE);
    CHECK_STATUS(gt_scaler_update(scaler), GT_BAD_STATE);
    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

/* Contract A: what a window of micro-batches adds up to. */
#include "step_support.h"

/* Micro-batches of these items, whose mean losses have these gradients: w from 0 at learning rate 1 ends at minus the window's gradient. */
static double gradient_of(test_case *t, int32_t n, const double *items, const double *gradients, bool on_device, double scale) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 0);
    gt_optimizer *optimizer = step_sgd(w, 1);
    gt_scaler *scaler = scale > 0 ? step_scaler(ctx, scale, 0) : NULL;
    gt_window_options o = step_window_options(&optimizer, 1, n);
    o.scaler = scaler;
    gt_window *window = step_window(&o);
    for (int32_t i = 0; i < n; ++i) {
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *count = gt_tensor_full(ctx, i % 2 ? GT_DTYPE_F64 : GT_DTYPE_F32, 0, NULL, items[i]);
        CHECK_OK(gt_window_micro_begin(window));
        CHECK_OK(gt_window_micro_end(window, step_loss_of(w, NULL, gradients[i]), items[i], on_device ? count : NULL));
        CHECK_OK(gt_scope_end(ctx));
    }
    gt_window_state state = step_window_state(window);
    double sum = 0, value = step_value(w);
    for (int32_t i = 0; i < n; ++i) sum += items[i];
    CHECK_NEAR(state.items, sum, 0);
    CHECK_EQ_INT(state.status, sum > 0 ? GT_WINDOW_UPDATED : GT_WINDOW_EMPTY);
    CHECK_EQ_INT(state.empty, sum == 0);
    CHECK_EQ_INT(state.micro_batches, 0);
    CHECK(gt_tensor_grad(w) == NULL);
    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
    return -value;
}

TEST_DEVICES(contract, A1_the_mean_is_over_valid_items) {
    for (int on_device = 0; on_device < 2; ++on_device) {
        for (int scaled = 0; scaled < 2; ++scaled) {
            double scale = scaled * 65536.0;
            CHECK_NEAR(gradient_of(t, 2, (const double[]){1, 3}, (const double[]){4, 0}, on_device, scale), 1.0, 1e-6);
            CHECK_NEAR(gradient_of(t, 3, (const double[]){4, 4, 2}, (const double[]){1, 1, 5}, on_device, scale), 1.8, 1e-6);
            CHECK_NEAR(gradient_of(t, 2, (const double[]){0, 0}, (const double[]){4, 4}, on_device, scale), 0, 0);
            CHECK_NEAR(gradient_of(t, 3, (const double[]){0, 1, 1}, (const double[]){7, 1, 3}, on_device, scale), 2, 1e-6);
        }
    }
}

/* Not even momentum, weight decay, the scale or the schedule move. */
TEST_DEVICES(contract, A1_a_window_without_a_valid_item_changes_nothing) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 1);
    gt_optimizer_options oo;
    gt_optimizer *optimizer;
    CHECK_OK(gt_optimizer_options_init(&oo, sizeof oo, GT_OPTIMIZER_SGD));
    oo.momentum = 0.9;
    oo.weight_decay = 0.5;
    CHECK_OK(gt_optimizer_create(&oo, &w, 1, &optimizer));
    gt_scaler *scaler = step_scaler(ctx, 0, 2);
    gt_window_options o = step_window_options(&optimizer, 1, 2);
    o.scaler = scaler;
    gt_window *window = step_window(&o);
    for (int i = 0; i < 2; ++i) step_micro(window, w, NULL, 1, 1);
    double value = step_value(w);
    CHECK(value != 1);
    for (int i = 0; i < 4; ++i) step_micro(window, w, NULL, 1, 0);
    CHECK(step_value(w) == value);
    gt_window_state state = step_window_state(window);
    CHECK(state.status == GT_WINDOW_EMPTY && state.empty == 2 && state.updates == 1 && state.items == 0);
    CHECK(step_state(scaler).scale == 65536 && step_state(scaler).growth_count == 1);
    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

/* Tokens of a language model: the device alone knows how many labels are not ignored. */
TEST_DEVICES(contract, A1_cross_entropy_tells_its_valid_rows) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 3, 0);
    gt_tensor *big = step_leaf(ctx, GT_DTYPE_F32, 3, 0);
    static const int64_t labels[2][4] = {{0, -100, -100, -100}, {1, 1, 2, -100}}, all[8] = {0, -100, -100, -100, 1, 1, 2, -100};
    static const float weights[3] = {0.5f, 2, 1};
    const int64_t classes = 3, rows[2] = {4, 3}, all_rows[2] = {8, 3};
    for (int weighted = 0; weighted < 2; ++weighted) {
        gt_optimizer *optimizer = step_sgd(w, 1), *other = step_sgd(big, 1);
        gt_window_options o = step_window_options(&optimizer, 1, 2);
        gt_window *window = step_window(&o);
        gt_cross_entropy_options ce;
        CHECK_OK(gt_cross_entropy_options_init(&ce, sizeof ce));
        CHECK_OK(gt_scope_begin(ctx));
        if (weighted) ce.class_weights = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, &classes, weights, sizeof weights));
        for (int i = 0; i < 2; ++i) {
            const int64_t n = 4;
            gt_tensor *y = gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, &n, labels[i], sizeof labels[i]);
            CHECK_OK(gt_window_micro_begin(window));
            gt_tensor *loss = gt_cross_entropy(gt_add(w, gt_tensor_full(ctx, GT_DTYPE_F32, 2, rows, 0)), y, &ce);
            gt_tensor *valid = CHECK_TENSOR(gt_cross_entropy_valid(loss));
            CHECK_EQ_INT(gt_tensor_numel(valid), 1);
            CHECK_NEAR(step_value(valid), weighted ? (i ? 5 : 0.5) : (i ? 3 : 1), 1e-6);
            CHECK_OK(gt_window_micro_end(window, loss, 0, valid));
            CHECK(gt_cross_entropy_valid(loss) == NULL && gt_last_error()->status == GT_BAD_STATE);
        }
        const int64_t n = 8;
        gt_tensor *y = gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, &n, all, sizeof all);
        CHECK_OK(gt_backward(gt_cross_entropy(gt_add(big, gt_tensor_full(ctx, GT_DTYPE_F32, 2, all_rows, 0)), y, &ce)));
        CHECK_OK(gt_optimizer_step(other));
        CHECK_OK(gt_optimizer_zero_grad(other));
        CHECK(gt_cross_entropy_valid(w) == NULL && gt_last_error()->status == GT_BAD_STATE);
        float a[3], b[3];
        step_read(w, a, 3);
        step_read(big, b, 3);
        CHECK(b[0] != 0);
        CHECK_ALLCLOSE_F32(a, b, 3, 1e-6, 1e-7);
        CHECK_OK(gt_scope_end(ctx));
        gt_window_destroy(window);
        gt_optimizer_destroy(optimizer);
        gt_optimizer_destroy(other);
    }
    gt_tensor_release(w);
    gt_tensor_release(big);
}

TEST_DEVICES(contract, A2_the_last_short_window_counts) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 0);
    gt_optimizer *optimizer = step_sgd(w, 77);
    gt_schedule schedule;
    CHECK_OK(gt_schedule_init(&schedule, sizeof schedule, GT_SCHEDULE_STEP));
    schedule.base = 0.1;
    schedule.step_size = 2;
    schedule.gamma = 0.5;
    gt_window_options o = step_window_options(&optimizer, 1, 4);
    o.schedule = &schedule;
    gt_window *window = step_window(&o);
    for (int i = 0; i < 7; ++i) step_micro(window, w, NULL, 1, 2);
    CHECK_EQ_INT(step_window_state(window).micro_batches, 3);
    CHECK_EQ_INT(step_window_state(window).updates, 1);
    CHECK_OK(gt_window_flush(window));
    CHECK_NEAR(step_value(w), -0.2, 1e-6);
    gt_window_state state = step_window_state(window);
    CHECK_EQ_INT(state.updates, 2);
    CHECK_NEAR(state.learning_rate, 0.1, 1e-12);
    CHECK_EQ_INT(state.micro_batches, 0);
    CHECK(gt_tensor_grad(w) == NULL); /* the next epoch starts at zero */
    CHECK_OK(gt_window_flush(window));
    CHECK_EQ_INT(step_window_state(window).updates, 2); /* nothing was open */
    for (int i = 0; i < 3; ++i) step_micro(window, w, NULL, 1, 2);
    CHECK_OK(gt_window_flush(window));
    CHECK_NEAR(step_value(w), -0.25, 1e-6);
    state = step_window_state(window);
    CHECK_EQ_INT(state.updates, 3);
    CHECK_NEAR(state.learning_rate, 0.05, 1e-12);
    gt_window_destroy(window);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, A2_three_micro_batches_of_four_are_one_update) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 0);
    gt_optimizer *optimizer = step_sgd(w, 0.1);
    gt_window_options o = step_window_options(&optimizer, 1, 4);
    gt_window *window = step_window(&o);
    for (int i = 0; i < 3; ++i) step_micro(window, w, NULL, 1, 5);
    CHECK_OK(gt_window_flush(window));
    CHECK_NEAR(step_value(w), -0.1, 1e-6);
    CHECK_EQ_INT(step_window_state(window).updates, 1);
    CHECK_STATUS(gt_window_set_micro_batches(window, 0), GT_BAD_ARGUMENT);
    CHECK_OK(gt_window_set_micro_batches(window, 1));
    gt_window_destroy(window);
    o.micro_batches = 0;
    CHECK_STATUS(gt_window_create(&o, &window), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("micro_batches");
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, A3_a_window_moves_batch_statistics_once_a_micro_batch) {
    gt_context *ctx = test_context(t);
    gt_module *m = gt_nn_batch_norm(ctx, 1, NULL);
    gt_optimizer_options oo;
    gt_optimizer *optimizer;
    CHECK_OK(gt_optimizer_options_init(&oo, sizeof oo, GT_OPTIMIZER_SGD));
    CHECK_OK(gt_optimizer_create_for(&oo, m, &optimizer));
    gt_window_options o = step_window_options(&optimizer, 1, 2);
    o.module = m;
    gt_window *window = step_window(&o);
    static const float batches[2][2] = {{0, 2}, {4, 6}};
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *x = gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 1}, batches[i], sizeof batches[i]);
        CHECK_OK(gt_window_micro_begin(window));
        CHECK_OK(gt_window_micro_end(window, gt_mean(gt_square(gt_module_forward(m, x)), NULL, 0, 0), 2, NULL));
        CHECK_OK(gt_scope_end(ctx));
    }
    gt_tensor *mean, *variance, *count;
    CHECK_OK(gt_module_find(m, "running_mean", &mean));
    CHECK_OK(gt_module_find(m, "running_var", &variance));
    CHECK_OK(gt_module_find(m, "num_batches_tracked", &count));
    CHECK_NEAR(step_value(mean), 0.59, 1e-6);
    CHECK_NEAR(step_value(variance), 1.19, 1e-6);
    CHECK_NEAR(step_value(count), 2, 0);
    gt_window_destroy(window);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(m);
}

TEST_DEVICES(contract, A5_a_window_keeps_step_counts_per_parameter) {
    gt_context *ctx = test_context(t);
    gt_tensor *pair[2] = {step_leaf(ctx, GT_DTYPE_F32, 1, 0), step_leaf(ctx, GT_DTYPE_F32, 1, 0)};
    gt_optimizer *optimizer = step_optimizer(GT_OPTIMIZER_ADAM, 0.1, pair, 2);
    gt_window_options o = step_window_options(&optimizer, 1, 2);
    gt_window *window = step_window(&o);
    for (int i = 0; i < 10; ++i) step_micro(window, pair[0], NULL, 3, 1);
    CHECK(step_value(pair[1]) == 0);
    for (int i = 0; i < 2; ++i) step_micro(window, pair[i], NULL, 3, 1);
    CHECK_NEAR(step_value(pair[1]), -0.1, 1e-6); /* Adam's first step, five windows later */
    gt_window_destroy(window);
    gt_optimizer_destroy(optimizer);
    for (int i = 0; i < 2; ++i) gt_tensor_release(pair[i]);
}

/* Contract S: dynamic loss scaling. */
#include "step_support.h"

TEST_DEVICES(contract, S1_scale_stays_below_its_cap_and_unscales_exactly) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 0);
    gt_optimizer *optimizer = step_sgd(w, 1);
    gt_scaler *scaler = step_scaler(ctx, 0x1p120, 1);
    for (int i = 0; i < 20; ++i) {
        step_scaled(scaler, optimizer, w, NULL, 1);
        CHECK_OK(gt_scaler_update(scaler));
        CHECK(step_value(w) == -(i + 1));
        CHECK(step_state(scaler).scale == ldexp(1, i < 6 ? 121 + i : 126));
    }
    gt_scaler_state state = step_state(scaler);
    CHECK_EQ_INT(state.status, GT_SCALER_STEPPED);
    CHECK_EQ_INT(state.updates, 20);
    CHECK_EQ_INT(state.skipped, 0);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, S1_defaults_and_ranges) {
    gt_context *ctx = test_context(t);
    gt_scaler_options o;
    gt_scaler *scaler = NULL;
    CHECK_OK(gt_scaler_options_init(&o, sizeof o));
    CHECK(o.scale == 65536 && o.growth == 2 && o.backoff == 0.5 && o.growth_interval == 2000 && o.dynamic == 1);
    CHECK(o.floor == 0x1p-14 && o.cap == 0x1p24);
    o.cap = 0x1p127;
    CHECK_STATUS(gt_scaler_create(ctx, &o, &scaler), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("cap");
    o.cap = 0x1p126;
    o.floor = 0x1p127;
    CHECK_STATUS(gt_scaler_create(ctx, &o, &scaler), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("floor");
    o.floor = 1;
    o.scale = 0.5;
    CHECK_STATUS(gt_scaler_create(ctx, &o, &scaler), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("scale is 0.5");
    o.scale = 2;
    o.backoff = 1;
    CHECK_STATUS(gt_scaler_create(ctx, &o, &scaler), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("backoff");
    o.backoff = 0.5;
    o.growth = NAN;
    CHECK_STATUS(gt_scaler_create(ctx, &o, &scaler), GT_BAD_ARGUMENT);
    o.growth = 2;
    o.growth_interval = 0;
    CHECK_STATUS(gt_scaler_create(ctx, &o, &scaler), GT_BAD_ARGUMENT);
    CHECK(scaler == NULL);
}

/* 2^20 is beyond f16. */
TEST_DEVICES(contract, S1_a_scale_is_never_rounded_to_f16) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 1);
    gt_scaler *scaler = step_scaler(ctx, 0x1p20, 0);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    gt_tensor *loss = CHECK_TENSOR(gt_scaler_scale(scaler, gt_cast(gt_sum(w, NULL, 0, 0), GT_DTYPE_F16)));
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_EQ_INT(gt_tensor_dtype(loss), GT_DTYPE_F32);
    CHECK(step_value(loss) == 0x1p20);
    CHECK_OK(gt_scope_end(ctx));
    gt_scaler_destroy(scaler);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, S2_a_step_that_is_not_finite_changes_nothing) {
    gt_context *ctx = test_context(t);
    for (gt_optimizer_kind kind = GT_OPTIMIZER_SGD; kind <= GT_OPTIMIZER_ADAMW; ++kind) {
        gt_tensor *pair[2] = {step_leaf(ctx, GT_DTYPE_F32, 3, 0.3), step_leaf(ctx, GT_DTYPE_F32, 3, 0.7)};
        gt_tensor *other = step_leaf(ctx, GT_DTYPE_F32, 3, 0.7);
        CHECK_OK(gt_tensor_set_name(pair[1], "fc.weight"));
        gt_optimizer *optimizer = step_optimizer(kind, 0.1, pair, 2), *untouched = step_optimizer(kind, 0.1, &other, 1);
        gt_scaler *scaler = step_scaler(ctx, 0, 0);
        float before[3], after[3];
        step_read(pair[1], before, 3);
        for (int i = 0; i < 400; ++i) {
            step_scaled(scaler, optimizer, pair[1], (const float[]){1, NAN, 1}, 0);
            CHECK_OK(gt_scaler_update(scaler));
            if (i == 0) CHECK(step_state(scaler).status == GT_SCALER_SKIPPED && step_state(scaler).scale == 32768);
        }
        step_read(pair[1], after, 3);
        CHECK(memcmp(before, after, sizeof before) == 0);
        gt_scaler_state state = step_state(scaler);
        CHECK_EQ_INT(state.skipped, 400);
        CHECK_EQ_INT(state.skipped_in_row, 400);
        CHECK_EQ_INT(state.updates, 0);
        CHECK_EQ_INT(state.status, GT_SCALER_STUCK_AT_FLOOR);
        CHECK(state.scale == 0x1p-14);
        CHECK_EQ_STR(state.parameter, "fc.weight");
        /* Neither moments nor step counts moved: the next step is the first. */
        step_scaled(scaler, optimizer, pair[1], NULL, 0.25);
        CHECK_OK(gt_scaler_update(scaler));
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_backward(step_loss_of(other, NULL, 0.25)));
        CHECK_OK(gt_scope_end(ctx));
        CHECK_OK(gt_optimizer_step(untouched));
        step_read(pair[1], before, 3);
        step_read(other, after, 3);
        CHECK(memcmp(before, after, sizeof before) == 0 && before[0] != 0.7f);
        state = step_state(scaler);
        CHECK_EQ_INT(state.status, GT_SCALER_STEPPED);
        CHECK_EQ_INT(state.skipped_in_row, 0);
        gt_scaler_destroy(scaler);
        gt_optimizer_destroy(optimizer);
        gt_optimizer_destroy(untouched);
        for (int i = 0; i < 2; ++i) gt_tensor_release(pair[i]);
        gt_tensor_release(other);
    }
}

TEST_DEVICES(contract, S2_the_scale_falls_until_an_f16_gradient_fits) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F16, 1, 0);
    gt_optimizer *optimizer = step_sgd(w, 0x1p-17);
    gt_scaler *scaler = step_scaler(ctx, 1, 0);
    static const double scales[] = {0.5, 0.25, 0.25}, weights[] = {0, 0, -1}; /* 131072 * 2^-17 */
    for (int i = 0; i < 3; ++i) {
        CHECK_OK(gt_optimizer_zero_grad(optimizer));
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *y = gt_mul_scalar(gt_mul_scalar(w, 512), 256); /* all in f16, whose largest value is 65504 */
        CHECK_OK(gt_backward(gt_scaler_scale(scaler, gt_sum(gt_cast(y, GT_DTYPE_F32), NULL, 0, 0))));
        CHECK_OK(gt_scope_end(ctx));
        CHECK_OK(gt_scaler_step(scaler, optimizer));
        CHECK_OK(gt_scaler_update(scaler));
        CHECK(step_state(scaler).scale == scales[i]);
        CHECK(step_value(w) == weights[i]);
    }
    CHECK_EQ_INT(step_state(scaler).skipped, 2);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, S3_unscaling_twice_is_refused) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 0, 2);
    gt_optimizer *optimizer = step_sgd(w, 1);
    gt_scaler *scaler = step_scaler(ctx, 1024, 0);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_backward(gt_scaler_scale(scaler, gt_mul_scalar(w, 3))));
    CHECK_OK(gt_scope_end(ctx));
    CHECK(step_value(gt_tensor_grad(w)) == 3072);
    CHECK_OK(gt_scaler_unscale(scaler, optimizer));
    CHECK(step_value(gt_tensor_grad(w)) == 3);
    CHECK_STATUS(gt_scaler_unscale(scaler, optimizer), GT_BAD_STATE);
    CHECK_ERROR_HAS("unscaled already");
    CHECK(step_value(gt_tensor_grad(w)) == 3);
    CHECK_STATUS(gt_scaler_update(scaler), GT_BAD_STATE);
    CHECK_OK(gt_scaler_step(scaler, optimizer));
    CHECK_STATUS(gt_scaler_step(scaler, optimizer), GT_BAD_STATE);
    CHECK_STATUS(gt_scaler_unscale(scaler, optimizer), GT_BAD_STATE);
    CHECK_OK(gt_scaler_update(scaler));
    CHECK(step_value(w) == -1);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, S4_clipping_after_unscaling_sees_true_gradients) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 2, 0);
    gt_optimizer *optimizer = step_sgd(w, 1);
    gt_scaler *scaler = step_scaler(ctx, 65536, 0);
    gt_tensor *norm = NULL;
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_backward(gt_scaler_scale(scaler, step_loss_of(w, (const float[]){3, 4}, 0))));
    CHECK_OK(gt_scaler_unscale(scaler, optimizer));
    CHECK_OK(gt_optimizer_clip_grad_norm(optimizer, 1, &norm));
    CHECK_NEAR(step_value(norm), 5, 1e-6);
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_scaler_step(scaler, optimizer));
    float end[2];
    step_read(w, end, 2);
    CHECK_NEAR(end[0], -0.6, 1e-6);
    CHECK_NEAR(end[1], -0.8, 1e-6);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, S4_a_window_clips_true_gradients) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 2, 0);
    gt_optimizer *optimizer = step_sgd(w, 1);
    gt_scaler *scaler = step_scaler(ctx, 65536, 0);
    gt_window_options o = step_window_options(&optimizer, 1, 2);
    o.scaler = scaler;
    o.clip_norm = 1;
    gt_window *window = step_window(&o);
    step_micro(window, w, (const float[]){6, 4}, 0, 3);
    step_micro(window, w, (const float[]){0, 4}, 0, 3);
    float end[2];
    step_read(w, end, 2);
    CHECK_NEAR(end[0], -0.6, 1e-6);
    CHECK_NEAR(end[1], -0.8, 1e-6);
    CHECK_NEAR(step_window_state(window).gradient_norm, 5, 1e-6);
    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(contract, S6_one_bad_micro_batch_skips_its_window_once) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 1), *v = step_leaf(ctx, GT_DTYPE_F32, 1, 5);
    CHECK_OK(gt_tensor_set_name(w, "w"));
    gt_optimizer *optimizers[2] = {step_sgd(v, 1), step_sgd(w, 0.1)}; /* v's gradient is finite, and is skipped too */
    gt_scaler *scaler = step_scaler(ctx, 0, 0);
    gt_window_options o = step_window_options(optimizers, 2, 2);
    o.scaler = scaler;
    gt_window *window = step_window(&o);
    CHECK_OK(gt_window_micro_begin(window));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *loss = gt_add(step_loss_of(w, NULL, INFINITY), step_loss_of(v, NULL, 1));
    CHECK_OK(gt_window_micro_end(window, loss, 1, NULL));
    CHECK_OK(gt_scope_end(ctx));
    CHECK(step_state(scaler).scale == 65536); /* not inside the window */
    step_micro(window, w, NULL, 1, 1);
    gt_window_state state = step_window_state(window);
    CHECK_EQ_INT(state.status, GT_WINDOW_SKIPPED);
    CHECK_EQ_INT(state.skipped, 1);
    CHECK_EQ_INT(state.updates, 0);
    CHECK(isnan(state.learning_rate) && !isfinite(state.gradient_norm));
    CHECK(step_value(w) == 1 && step_value(v) == 5);
    CHECK(step_state(scaler).scale == 32768 && step_state(scaler).skipped == 1);
    CHECK_EQ_STR(step_state(scaler).parameter, "w");
    step_micro(window, w, NULL, 1, 1);
    step_micro(window, w, NULL, 1, 1);
    CHECK_NEAR(step_value(w), 0.9, 1e-6);
    CHECK(step_value(v) == 5);
    state = step_window_state(window);
    CHECK_EQ_INT(state.status, GT_WINDOW_UPDATED);
    CHECK_NEAR(state.learning_rate, 1, 0); /* without a schedule: the first optimizer's */
    CHECK(step_state(scaler).scale == 32768);
    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    for (int i = 0; i < 2; ++i) gt_optimizer_destroy(optimizers[i]);
    gt_tensor_release(w);
    gt_tensor_release(v);
}

TEST_DEVICES(contract, S7_one_scaler_serves_several_optimizers) {
    gt_context *ctx = test_context(t);
    gt_tensor *a = step_leaf(ctx, GT_DTYPE_F32, 1, 1), *b = step_leaf(ctx, GT_DTYPE_F32, 1, 1);
    CHECK_OK(gt_tensor_set_name(a, "a"));
    gt_optimizer *first = step_sgd(a, 0.5), *second = step_sgd(b, 0.5);
    gt_scaler *scaler = step_scaler(ctx, 0, 0);
    CHECK_STATUS(gt_scaler_step(scaler, first), GT_NO_GRADS);
    CHECK_STATUS(gt_scaler_unscale(scaler, first), GT_NO_GRADS);
    CHECK_STATUS(gt_scaler_update(scaler), GT_BAD_STATE);
    CHECK(step_value(a) == 1 && step_state(scaler).scale == 65536);
    step_scaled(scaler, first, a, NULL, INFINITY);
    step_scaled(scaler, second, b, NULL, 1);
    CHECK_OK(gt_scaler_update(scaler));
    CHECK(step_value(a) == 1 && step_value(b) == 0.5);
    gt_scaler_state state = step_state(scaler);
    CHECK(state.scale == 32768 && state.skipped == 1 && state.status == GT_SCALER_SKIPPED);
    step_scaled(scaler, first, a, NULL, 1);
    CHECK_OK(gt_scaler_update(scaler));
    CHECK(step_value(a) == 0.5 && step_state(scaler).scale == 32768);
    step_scaled(scaler, second, b, NULL, NAN); /* both, the later parameter first */
    step_scaled(scaler, first, a, NULL, NAN);
    CHECK_OK(gt_scaler_update(scaler));
    state = step_state(scaler);
    CHECK(state.scale == 16384 && state.skipped == 2);
    CHECK_EQ_STR(state.parameter, "a");
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(first);
    gt_optimizer_destroy(second);
    gt_tensor_release(a);
    gt_tensor_release(b);
}

TEST_DEVICES(contract, S7_a_window_without_a_gradient_is_no_grads) {
    gt_context *ctx = test_context(t);
    gt_tensor *a = step_leaf(ctx, GT_DTYPE_F32, 1, 1), *b = step_leaf(ctx, GT_DTYPE_F32, 1, 1);
    gt_optimizer *optimizer = step_sgd(a, 0.5);
    gt_scaler *scaler = step_scaler(ctx, 0, 1);
    gt_window_options o = step_window_options(&optimizer, 1, 1);
    o.scaler = scaler;
    gt_window *window = step_window(&o);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_window_micro_begin(window));
    CHECK_STATUS(gt_window_micro_end(window, step_loss_of(b, NULL, 1), 1, NULL), GT_NO_GRADS);
    CHECK_OK(gt_scope_end(ctx));
    CHECK(step_state(scaler).scale == 65536 && step_state(scaler).updates == 0);
    CHECK_EQ_INT(step_window_state(window).updates, 0);
    CHECK_EQ_INT(step_window_state(window).status, GT_WINDOW_NONE);
    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(a);
    gt_tensor_release(b);
}

TEST_DEVICES(contract, S8_saving_keeps_scale_and_growth_count) {
    gt_scaler_state state;
    for (int process = 0; process < 2; ++process) {
        gt_context *ctx = test_context(t);
        gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 0);
        gt_optimizer *optimizer = step_sgd(w, 1);
        gt_scaler *scaler = step_scaler(ctx, 0, 3);
        if (process == 1) CHECK_OK(gt_scaler_set_state(scaler, &state));
        for (int i = 0; i < 2 - process; ++i) {
            step_scaled(scaler, optimizer, w, NULL, 1);
            CHECK_OK(gt_scaler_update(scaler));
        }
        state = step_state(scaler);
        CHECK(state.scale == (process ? 131072 : 65536));
        CHECK_EQ_INT(state.growth_count, process ? 0 : 2);
        CHECK_EQ_INT(state.updates, process ? 3 : 2);
        gt_scaler_state wrong = state;
        wrong.scale = 0x1p25;
        CHECK_STATUS(gt_scaler_set_state(scaler, &wrong), GT_BAD_ARGUMENT);
        CHECK(step_state(scaler).scale == state.scale);
        gt_scaler_destroy(scaler);
        gt_optimizer_destroy(optimizer);
        gt_tensor_release(w);
    }
}

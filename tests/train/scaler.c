/* Loss scaling: diagnosis of overflows, names of parameters, half copies of weights, many parameters at once. */
#include "contract/step_support.h"

#include <stdio.h>

static gt_scaler *diagnosing(gt_context *ctx) {
    gt_scaler_options o;
    gt_scaler *scaler = NULL;
    CHECK_OK(gt_scaler_options_init(&o, sizeof o));
    o.diagnose = 1;
    CHECK_OK(gt_scaler_create(ctx, &o, &scaler));
    return scaler;
}

/* One window; `big` multiplies the hidden values in the forward, `steep` the gradients in the backward. */
static void diagnosed_step(gt_scaler *scaler, gt_optimizer *optimizer, gt_module *net, float big, double steep) {
    gt_context *ctx = gt_module_context(net);
    CHECK_OK(gt_optimizer_zero_grad(optimizer));
    CHECK_OK(gt_scope_begin(ctx));
    const float x[4] = {1, big, 1, 1};
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    gt_tensor *y = gt_module_forward(net, gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 2}, x, sizeof x));
    gt_tensor *loss = gt_mul_scalar(gt_sum(y, NULL, 0, 0), steep);
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_OK(gt_backward(gt_scaler_scale(scaler, loss)));
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_scaler_step(scaler, optimizer));
    CHECK_OK(gt_scaler_update(scaler));
}

TEST_DEVICES(unit, scaler_names_the_first_op_that_overflowed) {
    gt_context *ctx = test_context(t);
    gt_module *const layers[] = {gt_nn_linear(ctx, 2, 2, NULL), gt_nn_identity(ctx), gt_nn_linear(ctx, 2, 2, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 3);
    CHECK(net != NULL);
    for (int32_t i = 0; i < gt_module_parameter_count(net); ++i) {
        gt_tensor *p;
        CHECK_OK(gt_module_parameter(net, i, NULL, &p));
        CHECK_OK(gt_tensor_fill(p, 2));
    }
    gt_optimizer_options oo;
    gt_optimizer *optimizer;
    CHECK_OK(gt_optimizer_options_init(&oo, sizeof oo, GT_OPTIMIZER_SGD));
    oo.learning_rate = 0;
    CHECK_OK(gt_optimizer_create_for(&oo, net, &optimizer));
    gt_scaler *scaler = diagnosing(ctx), *second = NULL;
    gt_scaler_options o;
    CHECK_OK(gt_scaler_options_init(&o, sizeof o));
    o.diagnose = 1;
    CHECK_STATUS(gt_scaler_create(ctx, &o, &second), GT_BAD_STATE);

    diagnosed_step(scaler, optimizer, net, 1, 0x1p-14);
    gt_scaler_state state = step_state(scaler);
    CHECK_EQ_INT(state.status, GT_SCALER_STEPPED);
    CHECK_EQ_STR(state.op, "");
    CHECK_EQ_STR(state.parameter, "");

    diagnosed_step(scaler, optimizer, net, 60000, 0x1p-20); /* 2 * 60000 is beyond f16 in the first layer's forward */
    state = step_state(scaler);
    CHECK_EQ_INT(state.status, GT_SCALER_SKIPPED);
    CHECK_EQ_STR(state.op, "linear");
    CHECK_EQ_STR(state.module, "0");
    CHECK_EQ_INT(state.op_backward, 0);
    CHECK_EQ_STR(state.parameter, "2.weight"); /* whose gradient has that as a factor */

    diagnosed_step(scaler, optimizer, net, 1, 0x1p-14);
    CHECK_EQ_INT(step_state(scaler).status, GT_SCALER_STEPPED);
    CHECK_EQ_STR(step_state(scaler).op, "linear"); /* of the last that was skipped */

    diagnosed_step(scaler, optimizer, net, 1, 0x1p10); /* the gradient 2^10 * 2^15 does not fit f16 */
    state = step_state(scaler);
    CHECK_EQ_INT(state.status, GT_SCALER_SKIPPED);
    CHECK_EQ_INT(state.op_backward, 1);
    CHECK(state.op[0] != 0 && strcmp(state.op, "linear") != 0);

    gt_scaler_destroy(scaler);
    second = diagnosing(ctx); /* the context is free for another */
    gt_scaler_destroy(second);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}

TEST_DEVICES(unit, scaler_diagnoses_windows) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 1);
    gt_optimizer *optimizer = step_sgd(w, 1);
    gt_scaler *scaler = diagnosing(ctx);
    gt_window_options o = step_window_options(&optimizer, 1, 2);
    o.scaler = scaler;
    gt_window *window = step_window(&o);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_window_micro_begin(window)); /* overflows, but the window is given up */
    (void)gt_exp(gt_mul_scalar(w, 1000));
    CHECK_OK(gt_window_cancel(window));
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(gt_window_micro_begin(window));
        gt_tensor *y = gt_mul_scalar(w, i ? 1 : 1e30);
        CHECK_OK(gt_window_micro_end(window, gt_sum(gt_square(y), NULL, 0, 0), 1, NULL)); /* 1e60 */
    }
    CHECK_OK(gt_scope_end(ctx));
    gt_scaler_state state = step_state(scaler);
    CHECK_EQ_INT(state.status, GT_SCALER_SKIPPED);
    CHECK_EQ_STR(state.op, "square");
    CHECK_EQ_INT(state.op_backward, 0);
    CHECK_EQ_STR(state.parameter, "parameter 0, f32 [1]");
    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

/* More parameters than one launch of small kernel parameters takes, with the bad ones at chosen places. */
TEST_DEVICES(unit, scaler_finds_the_first_of_many_parameters) {
    enum { N = 300 };
    gt_context *ctx = test_context(t);
    gt_tensor *list[N];
    for (int i = 0; i < N; ++i) list[i] = step_leaf(ctx, i % 5 ? GT_DTYPE_F32 : GT_DTYPE_F64, i % 7 * 3 + (i == 150 ? 70000 : 1), 0.5);
    gt_optimizer *optimizer = step_optimizer(GT_OPTIMIZER_ADAM, 0.125, list, N);
    gt_scaler *scaler = step_scaler(ctx, 0, 0);
    static const int bad[][2] = {{299, 150}, {150, 151}, {10, 11}, {0, 299}, {-1, -1}};
    for (int k = 0; k < 5; ++k) {
        CHECK_OK(gt_optimizer_zero_grad(optimizer));
        CHECK_OK(gt_scope_begin(ctx));
        for (int i = 0; i < N; ++i) {
            bool is_bad = i == bad[k][0] || i == bad[k][1];
            gt_tensor *g = gt_tensor_full(ctx, gt_tensor_dtype(list[i]), 1, gt_tensor_shape(list[i]), is_bad ? INFINITY : 65536.0 * 4);
            gt_tensor *y = gt_mul_scalar(list[i], 1);
            CHECK_OK(gt_backward_from(&y, &g, 1, 0));
        }
        CHECK_OK(gt_scope_end(ctx));
        CHECK_OK(gt_scaler_step(scaler, optimizer));
        CHECK_OK(gt_scaler_update(scaler));
        gt_scaler_state state = step_state(scaler);
        char want[40];
        int first = bad[k][0] < bad[k][1] ? bad[k][0] : bad[k][1];
        (void)snprintf(want, sizeof want, "parameter %d, ", first);
        if (k < 4) CHECK(state.status == GT_SCALER_SKIPPED && strncmp(state.parameter, want, strlen(want)) == 0);
        if (k == 4) CHECK_EQ_INT(state.status, GT_SCALER_STEPPED);
    }
    for (int i = 0; i < N; ++i) {
        int64_t n = gt_tensor_numel(list[i]);
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *largest = gt_max(
            gt_abs(gt_sub(gt_cast(gt_tensor_detach(list[i]), GT_DTYPE_F32), gt_tensor_full(ctx, GT_DTYPE_F32, 1, &n, 0.375))), NULL, 0, 0);
        CHECK(step_value(largest) < 1e-6); /* Adam's first step */
        CHECK_OK(gt_scope_end(ctx));
        gt_tensor_release(list[i]);
    }
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
}

/* Autocast's copies are what the weight is, after steps and after skipped ones. */
TEST_DEVICES(unit, scaler_steps_keep_half_copies_right) {
    gt_context *ctx = test_context(t);
    const int64_t shape[2] = {4, 3}, wide[2] = {2, 4};
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 0.5));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    gt_optimizer *optimizer = step_sgd(w, 0.25);
    gt_scaler *scaler = step_scaler(ctx, 4, 0);
    double want = 0.5;
    for (int i = 0; i < 6; ++i) {
        if (i == 4) {
            CHECK_OK(gt_tensor_fill(w, 3)); /* the copy is stale when the skipped step comes */
            want = 3;
        }
        bool skip = i == 1 || i == 4;
        CHECK_OK(gt_optimizer_zero_grad(optimizer));
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_backward(gt_scaler_scale(scaler, gt_mul_scalar(gt_sum(w, NULL, 0, 0), skip ? INFINITY : 1))));
        CHECK_OK(gt_scaler_step(scaler, optimizer));
        CHECK_OK(gt_scaler_update(scaler));
        want -= skip ? 0 : 0.25;
        CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
        gt_tensor *y = CHECK_TENSOR(gt_matmul(gt_tensor_full(ctx, GT_DTYPE_F32, 2, wide, 1), w));
        CHECK_OK(gt_autocast_end(ctx));
        CHECK_EQ_INT(gt_tensor_dtype(y), GT_DTYPE_F16);
        float got[6];
        step_read(y, got, 6);
        for (int k = 0; k < 6; ++k) CHECK((double)got[k] == 4 * want);
        CHECK_OK(gt_scope_end(ctx));
    }
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

/* A scaled loss belongs to its scale. */
TEST_DEVICES(unit, scaled_loss_expires_with_its_scale) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 1);
    gt_optimizer *optimizer = step_sgd(w, 1);
    gt_scaler *scaler = step_scaler(ctx, 0, 0);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *old = gt_scaler_scale(scaler, step_loss_of(w, NULL, 1));
    step_scaled(scaler, optimizer, w, NULL, 1);
    CHECK_OK(gt_scaler_update(scaler));
    CHECK_STATUS(gt_backward(old), GT_SAVED_MODIFIED);
    CHECK_OK(gt_scope_end(ctx));
    CHECK(gt_scaler_scale(scaler, NULL) == NULL);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(unit, a_fixed_scale_skips_and_stays) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = step_leaf(ctx, GT_DTYPE_F32, 1, 1);
    gt_optimizer *optimizer = step_sgd(w, 1);
    gt_scaler_options o;
    gt_scaler *scaler;
    CHECK_OK(gt_scaler_options_init(&o, sizeof o));
    o.dynamic = 0;
    o.scale = 3; /* no power of two */
    o.growth_interval = 1;
    CHECK_OK(gt_scaler_create(ctx, &o, &scaler));
    step_scaled(scaler, optimizer, w, NULL, NAN);
    CHECK_OK(gt_scaler_update(scaler));
    CHECK(step_state(scaler).status == GT_SCALER_SKIPPED && step_state(scaler).scale == 3 && step_value(w) == 1);
    step_scaled(scaler, optimizer, w, NULL, 0.5);
    CHECK_OK(gt_scaler_update(scaler));
    CHECK(step_state(scaler).status == GT_SCALER_STEPPED && step_state(scaler).scale == 3);
    CHECK_NEAR(step_value(w), 0.5, 1e-6);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

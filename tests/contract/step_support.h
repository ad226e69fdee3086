/* Shared by the contract tests of steps: leaves with given gradients, optimizers, scalers, windows. */
#ifndef TESTS_CONTRACT_STEP_SUPPORT_H
#define TESTS_CONTRACT_STEP_SUPPORT_H

#include "harness/test.h"

#include <gtrain/gtrain.h>
#include <math.h>
#include <stdbool.h>

static inline gt_tensor *step_leaf(gt_context *ctx, gt_dtype dtype, int64_t n, double value) {
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, dtype, n ? 1 : 0, n ? &n : NULL, value));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    return w;
}

static inline gt_optimizer *step_optimizer(gt_optimizer_kind kind, double rate, gt_tensor *const *list, int32_t count) {
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, kind));
    o.learning_rate = rate;
    o.weight_decay = 0;
    CHECK_OK(gt_optimizer_create(&o, list, count, &optimizer));
    return optimizer;
}

static inline gt_optimizer *step_sgd(gt_tensor *w, double rate) { return step_optimizer(GT_OPTIMIZER_SGD, rate, &w, 1); }

static inline void step_read(gt_tensor *w, float *out, int64_t n) {
    gt_context *ctx = gt_tensor_context(w);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_tensor_read(gt_cast(gt_tensor_detach(w), GT_DTYPE_F32), out, (size_t)n * sizeof *out));
    CHECK_OK(gt_scope_end(ctx));
}

static inline double step_value(gt_tensor *w) {
    double value = NAN;
    CHECK_OK(gt_tensor_item(w, &value));
    return value;
}

/* A loss whose gradient is `gradient` (NULL: `one` everywhere), a tensor of the innermost scope. */
static inline gt_tensor *step_loss_of(gt_tensor *w, const float *gradient, double one) {
    gt_context *ctx = gt_tensor_context(w);
    gt_tensor *g = gradient ? gt_tensor_from_data(ctx, GT_DTYPE_F32, gt_tensor_ndim(w), gt_tensor_shape(w), gradient,
                                                  (size_t)gt_tensor_numel(w) * sizeof *gradient)
                            : gt_tensor_full(ctx, GT_DTYPE_F32, gt_tensor_ndim(w), gt_tensor_shape(w), one);
    return CHECK_TENSOR(gt_sum(gt_mul(gt_cast(w, GT_DTYPE_F32), g), NULL, 0, 0));
}

static inline gt_scaler *step_scaler(gt_context *ctx, double scale, int32_t interval) {
    gt_scaler_options o;
    gt_scaler *scaler = NULL;
    CHECK_OK(gt_scaler_options_init(&o, sizeof o));
    if (scale > 0) o.scale = scale;
    if (interval > 0) o.growth_interval = interval;
    if (o.scale > o.cap) o.cap = 0x1p126;
    CHECK_OK(gt_scaler_create(ctx, &o, &scaler));
    return scaler;
}

static inline gt_scaler_state step_state(gt_scaler *scaler) {
    gt_scaler_state state;
    CHECK_OK(gt_scaler_state_init(&state, sizeof state));
    CHECK_OK(gt_scaler_get_state(scaler, &state));
    return state;
}

/* zero, backward of the scaled loss, step; no update of the scaler. */
static inline void step_scaled(gt_scaler *scaler, gt_optimizer *optimizer, gt_tensor *w, const float *gradient, double one) {
    gt_context *ctx = gt_tensor_context(w);
    CHECK_OK(gt_optimizer_zero_grad(optimizer));
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_backward(gt_scaler_scale(scaler, step_loss_of(w, gradient, one))));
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_scaler_step(scaler, optimizer));
}

static inline gt_window_options step_window_options(gt_optimizer *const *optimizers, int32_t n, int32_t micro_batches) {
    gt_window_options o;
    CHECK_OK(gt_window_options_init(&o, sizeof o));
    o.optimizers = optimizers;
    o.n_optimizers = n;
    o.micro_batches = micro_batches;
    return o;
}

static inline gt_window *step_window(const gt_window_options *options) {
    gt_window *window = NULL;
    CHECK_OK(gt_window_create(options, &window));
    return window;
}

static inline gt_window_state step_window_state(gt_window *window) {
    gt_window_state state;
    CHECK_OK(gt_window_state_init(&state, sizeof state));
    CHECK_OK(gt_window_get_state(window, &state));
    return state;
}

/* One micro-batch whose mean loss has this gradient. */
static inline void step_micro(gt_window *window, gt_tensor *w, const float *gradient, double one, double items) {
    gt_context *ctx = gt_tensor_context(w);
    CHECK_OK(gt_window_micro_begin(window));
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_window_micro_end(window, step_loss_of(w, gradient, one), items, NULL));
    CHECK_OK(gt_scope_end(ctx));
}

#endif

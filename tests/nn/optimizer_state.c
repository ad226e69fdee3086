/* An optimizer's state by name: what a program reads, keeps and puts back. */
#include "support.h"

static gt_tensor *weights(gt_context *ctx, gt_dtype dtype) {
    gt_tensor *w = CHECK_TENSOR(gt_tensor_empty(ctx, GT_DTYPE_F32, 1, (const int64_t[]){6}));
    write_pattern(w, 0.3, 1, 0.1);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *cast = gt_tensor_retain(gt_cast(w, dtype));
    CHECK_OK(gt_scope_end(ctx));
    gt_tensor_release(w);
    CHECK_OK(gt_tensor_set_name(cast, "w"));
    CHECK_OK(gt_tensor_set_requires_grad(cast, 1));
    return cast;
}

static gt_optimizer *optimizer_of(gt_optimizer_kind kind, double momentum, gt_tensor *w) {
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, kind));
    o.learning_rate = 0.05;
    o.momentum = momentum;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_create(&o, &w, 1, &optimizer));
    return optimizer;
}

static void step(gt_optimizer *optimizer, gt_tensor *w) {
    gt_context *ctx = gt_tensor_context(w);
    CHECK_OK(gt_optimizer_zero_grad(optimizer));
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_backward(gt_sum(gt_square(gt_square(w)), NULL, 0, 0)));
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_optimizer_step(optimizer));
}

static void copy_state(gt_optimizer *to, gt_optimizer *from, const char *name) {
    gt_tensor *state = NULL;
    CHECK_OK(gt_optimizer_state_get(from, 0, name, &state));
    CHECK_OK(gt_optimizer_state_set(to, 0, name, state));
}

static void check_continues(test_case *t, gt_optimizer_kind kind, double momentum, gt_dtype dtype, const char *const *names) {
    gt_context *ctx = exact_context(t);
    gt_tensor *w = weights(ctx, dtype), *v = weights(ctx, dtype);
    gt_optimizer *first = optimizer_of(kind, momentum, w), *second = optimizer_of(kind, momentum, v);
    for (int i = 0; i < 3; ++i) step(first, w);
    CHECK_OK(gt_no_grad_begin(ctx));
    CHECK_OK(gt_tensor_copy(v, w));
    CHECK_OK(gt_no_grad_end(ctx));
    for (; *names; ++names) copy_state(second, first, *names);
    int64_t steps = 0;
    CHECK_OK(gt_optimizer_steps_get(first, &steps));
    CHECK_EQ_INT(steps, 3);
    CHECK_OK(gt_optimizer_steps_set(second, &steps));
    for (int i = 0; i < 3; ++i) {
        step(first, w);
        step(second, v);
    }
    double want[6];
    read_values(w, want, 6);
    CHECK_VALUES(v, want, 0);
    CHECK_OK(gt_optimizer_steps_get(second, &steps));
    CHECK_EQ_INT(steps, 6);
    gt_optimizer_destroy(first);
    gt_optimizer_destroy(second);
    gt_tensor_release(w);
    gt_tensor_release(v);
}

TEST_DEVICES(unit, an_optimizer_continues_from_anothers_state) {
    static const char *const adam[] = {"exp_avg", "exp_avg_sq", NULL}, *const sgd[] = {"momentum_buffer", NULL};
    static const char *const half[] = {"master", "exp_avg", "exp_avg_sq", NULL};
    check_continues(t, GT_OPTIMIZER_ADAM, 0, GT_DTYPE_F32, adam);
    check_continues(t, GT_OPTIMIZER_ADAMW, 0, GT_DTYPE_F64, adam);
    check_continues(t, GT_OPTIMIZER_SGD, 0.9, GT_DTYPE_F32, sgd);
    check_continues(t, GT_OPTIMIZER_ADAM, 0, GT_DTYPE_F16, half);
}

/* The first step of Adam moves by the rate whatever the gradient, which tells whether moments and counts are as at first. */
TEST_DEVICES(unit, state_set_to_null_is_as_at_first) {
    gt_context *ctx = exact_context(t);
    gt_tensor *w = weights(ctx, GT_DTYPE_F16);
    gt_optimizer *optimizer = optimizer_of(GT_OPTIMIZER_ADAM, 0, w);
    for (int i = 0; i < 5; ++i) step(optimizer, w);
    double before[6], after[6];
    CHECK_OK(gt_optimizer_state_set(optimizer, 0, "exp_avg", NULL));
    CHECK_OK(gt_optimizer_state_set(optimizer, 0, "exp_avg_sq", NULL));
    CHECK_OK(gt_optimizer_state_set(optimizer, 0, "master", NULL));
    CHECK_OK(gt_optimizer_steps_set(optimizer, (const int64_t[]){0}));
    gt_tensor *master = NULL;
    CHECK_OK(gt_optimizer_state_get(optimizer, 0, "master", &master));
    read_values(w, before, 6);
    CHECK_VALUES(master, before, 0);
    step(optimizer, w);
    CHECK_OK(gt_optimizer_state_get(optimizer, 0, "master", &master));
    read_values(master, after, 6);
    for (int i = 0; i < 6; ++i) CHECK_NEAR(fabs(after[i] - before[i]), 0.05, 1e-3);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST(unit, state_is_refused_by_name_and_number) {
    gt_context *ctx = exact_context(t), *other = exact_context(t);
    gt_tensor *w = weights(ctx, GT_DTYPE_F32), *foreign = weights(other, GT_DTYPE_F32), *state = NULL, *parameter = NULL;
    gt_optimizer *adam = optimizer_of(GT_OPTIMIZER_ADAM, 0, w), *sgd = optimizer_of(GT_OPTIMIZER_SGD, 0, w);
    CHECK_OK(gt_optimizer_parameter(adam, 0, &parameter));
    CHECK(parameter == w);
    CHECK_STATUS(gt_optimizer_parameter(adam, 1, &parameter), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_parameter(adam, -1, &parameter), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_parameter(adam, 0, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_parameter(NULL, 0, &parameter), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_state_get(adam, 0, "momentum_buffer", &state), GT_NOT_FOUND);
    CHECK_ERROR_HAS("it has exp_avg, exp_avg_sq");
    CHECK_ERROR_HAS("\"w\"");
    CHECK_STATUS(gt_optimizer_state_get(sgd, 0, "momentum_buffer", &state), GT_NOT_FOUND);
    CHECK_ERROR_HAS("it has none");
    CHECK_STATUS(gt_optimizer_state_get(adam, 1, "exp_avg", &state), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_state_get(adam, 0, NULL, &state), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_state_get(adam, 0, "exp_avg", NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_state_set(adam, 0, "exp_avg", foreign), GT_BAD_DEVICE);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_STATUS(gt_optimizer_state_set(adam, 0, "exp_avg", gt_tensor_zeros(ctx, GT_DTYPE_F32, 0, NULL)), GT_BAD_SHAPE);
    CHECK_ERROR_HAS("[6]");
    CHECK_STATUS(gt_optimizer_state_set(adam, 0, "exp_avg", gt_tensor_zeros(ctx, GT_DTYPE_I32, 1, (const int64_t[]){6})), GT_BAD_DTYPE);
    CHECK_OK(gt_scope_end(ctx));
    CHECK_STATUS(gt_optimizer_steps_set(adam, (const int64_t[]){-1}), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_steps_set(adam, (const int64_t[]){INT32_MAX}), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("\"w\"");
    CHECK_STATUS(gt_optimizer_steps_set(adam, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_steps_get(adam, NULL), GT_BAD_ARGUMENT);
    int64_t steps = -1;
    CHECK_OK(gt_optimizer_steps_get(adam, &steps));
    CHECK_EQ_INT(steps, 0);
    gt_optimizer_destroy(adam);
    gt_optimizer_destroy(sgd);
    gt_tensor_release(w);
    gt_tensor_release(foreign);
}

TEST(unit, state_ends_with_the_context) {
    (void)t;
    gt_context *ctx = NULL;
    CHECK_OK(gt_context_create(&(gt_context_options){.struct_size = sizeof(gt_context_options), .device = GT_DEVICE_CPU}, &ctx));
    gt_tensor *w = weights(ctx, GT_DTYPE_F32), *state = NULL;
    gt_optimizer *optimizer = optimizer_of(GT_OPTIMIZER_ADAM, 0, w);
    int64_t steps = 0;
    gt_context_destroy(ctx);
    CHECK_STATUS(gt_optimizer_state_get(optimizer, 0, "exp_avg", &state), GT_BAD_STATE);
    CHECK_STATUS(gt_optimizer_state_set(optimizer, 0, "exp_avg", NULL), GT_BAD_STATE);
    CHECK_STATUS(gt_optimizer_steps_get(optimizer, &steps), GT_BAD_STATE);
    CHECK_STATUS(gt_optimizer_steps_set(optimizer, &steps), GT_BAD_STATE);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST_DEVICES(unit, state_is_not_written_inside_a_window) {
    gt_context *ctx = exact_context(t);
    gt_tensor *w = weights(ctx, GT_DTYPE_F32), *state = NULL;
    gt_optimizer *optimizer = optimizer_of(GT_OPTIMIZER_ADAM, 0, w);
    gt_window_options o;
    gt_window *window = NULL;
    CHECK_OK(gt_window_options_init(&o, sizeof o));
    o.optimizers = &optimizer;
    o.n_optimizers = 1;
    o.micro_batches = 2;
    CHECK_OK(gt_window_create(&o, &window));
    CHECK_OK(gt_window_micro_begin(window));
    CHECK_STATUS(gt_optimizer_state_set(optimizer, 0, "exp_avg", NULL), GT_BAD_STATE);
    CHECK_STATUS(gt_optimizer_steps_set(optimizer, (const int64_t[]){4}), GT_BAD_STATE);
    CHECK_OK(gt_optimizer_state_get(optimizer, 0, "exp_avg", &state));
    CHECK_OK(gt_window_cancel(window));
    CHECK_OK(gt_optimizer_steps_set(optimizer, (const int64_t[]){4}));
    gt_window_destroy(window);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

/* A program may compute with a borrowed state tensor: a step in between must not go unnoticed. */
TEST(unit, a_step_makes_records_of_its_state_stale) {
    gt_context *ctx = exact_context(t);
    gt_tensor *w = weights(ctx, GT_DTYPE_F32), *x = weights(ctx, GT_DTYPE_F32), *state = NULL;
    gt_optimizer *optimizer = optimizer_of(GT_OPTIMIZER_SGD, 0.9, w);
    CHECK_OK(gt_optimizer_state_get(optimizer, 0, "momentum_buffer", &state));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *loss = gt_sum(gt_mul(x, state), NULL, 0, 0);
    step(optimizer, w);
    CHECK_STATUS(gt_backward(loss), GT_SAVED_MODIFIED);
    CHECK_OK(gt_scope_end(ctx));
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
    gt_tensor_release(x);
}

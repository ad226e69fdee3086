/* Update rules against PyTorch, and everything around a step. */
#include "pytorch_values.h"
#include "support.h"

typedef struct rule {
    const char *name;
    gt_optimizer_kind kind;
    double momentum, dampening, weight_decay;
    int nesterov;
    double beta1, beta2, epsilon; /* 0: the default */
    const double *want;
} rule;

static const rule rules[] = {
    {"sgd", GT_OPTIMIZER_SGD, 0, 0, 0, 0, 0, 0, 0, steps_sgd},
    {"sgd_decay", GT_OPTIMIZER_SGD, 0, 0, 0.05, 0, 0, 0, 0, steps_sgd_decay},
    {"sgd_momentum", GT_OPTIMIZER_SGD, 0.9, 0, 0, 0, 0, 0, 0, steps_sgd_momentum},
    {"sgd_dampening", GT_OPTIMIZER_SGD, 0.9, 0.3, 0.01, 0, 0, 0, 0, steps_sgd_dampening},
    {"sgd_nesterov", GT_OPTIMIZER_SGD, 0.8, 0, 0.01, 1, 0, 0, 0, steps_sgd_nesterov},
    {"adam", GT_OPTIMIZER_ADAM, 0, 0, 0, 0, 0, 0, 0, steps_adam},
    {"adam_decay", GT_OPTIMIZER_ADAM, 0, 0, 0.1, 0, 0.8, 0.95, 1e-6, steps_adam_decay},
    {"adamw", GT_OPTIMIZER_ADAMW, 0, 0, 0.1, 0, 0, 0, 0, steps_adamw},
};

static gt_optimizer *optimizer_of(const rule *r, gt_tensor *const *parameters, int32_t count) {
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, r->kind));
    o.learning_rate = 0.1;
    o.momentum = r->momentum;
    o.dampening = r->dampening;
    o.weight_decay = r->weight_decay;
    o.nesterov = r->nesterov;
    if (r->beta1 != 0) o.beta1 = r->beta1;
    if (r->beta2 != 0) o.beta2 = r->beta2;
    if (r->epsilon != 0) o.epsilon = r->epsilon;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_create(&o, parameters, count, &optimizer));
    return optimizer;
}

/* 0.5 sum(a w^2); */
static gt_status backward_bowl(gt_tensor *w) {
    static const double slopes[4] = {1, -0.5, 2, 0.25};
    static const float singles[4] = {1, -0.5f, 2, 0.25f};
    gt_context *ctx = gt_tensor_context(w);
    int is_f64 = gt_tensor_dtype(w) == GT_DTYPE_F64;
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *a = gt_tensor_from_data(ctx, is_f64 ? GT_DTYPE_F64 : GT_DTYPE_F32, 1, (const int64_t[]){4},
                                       is_f64 ? (const void *)slopes : singles, is_f64 ? sizeof slopes : sizeof singles);
    gt_tensor *half = gt_cast(a, gt_tensor_dtype(w));
    gt_status status = gt_backward(gt_mul_scalar(gt_sum(gt_mul(half, gt_square(w)), NULL, 0, 0), 0.5));
    CHECK_OK(gt_scope_end(ctx));
    return status;
}

static gt_tensor *start(gt_context *ctx, gt_dtype dtype) {
    static const float values[4] = {0.5f, -1, 2, 0.125f};
    gt_tensor *w = CHECK_TENSOR(gt_tensor_empty(ctx, dtype, 1, (const int64_t[]){4}));
    CHECK_OK(gt_scope_begin(ctx));
    gt_status status = gt_tensor_copy(w, gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, (const int64_t[]){4}, values, sizeof values));
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(status);
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    return w;
}

static void check_rules(test_case *t, gt_dtype dtype, double tol) {
    gt_context *ctx = exact_context(t);
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i) {
        gt_tensor *w = start(ctx, dtype);
        gt_optimizer *optimizer = optimizer_of(&rules[i], &w, 1);
        for (int step = 0; step < 6; ++step) {
            CHECK_OK(gt_optimizer_zero_grad(optimizer));
            CHECK_OK(backward_bowl(w));
            CHECK_OK(gt_optimizer_step(optimizer));
        }
        check_values(w, rules[i].want, 4, tol, __FILE__, __LINE__, rules[i].name);
        gt_optimizer_destroy(optimizer);
        gt_tensor_release(w);
    }
}

TEST_DEVICES(parity, optimizers_match_pytorch_in_double) { check_rules(t, GT_DTYPE_F64, 1e-9); }
TEST_DEVICES(parity, optimizers_match_pytorch_in_float) { check_rules(t, GT_DTYPE_F32, 1e-6); }

/* The gradient is that of the rounded weight, so the path is near PyTorch's, not on it. */
TEST_DEVICES(parity, optimizers_in_half_precision_stay_near_pytorch) {
    check_rules(t, GT_DTYPE_F16, 4e-3);
    check_rules(t, GT_DTYPE_BF16, 3e-2);
}

TEST(unit, optimizer_options_have_the_defaults_of_pytorch) {
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    CHECK(o.learning_rate == 1e-2 && o.momentum == 0 && o.weight_decay == 0);
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAM));
    CHECK(o.learning_rate == 1e-3 && o.beta1 == 0.9 && o.beta2 == 0.999 && o.epsilon == 1e-8 && o.weight_decay == 0);
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAMW));
    CHECK(o.learning_rate == 1e-3 && o.weight_decay == 1e-2);
    CHECK_STATUS(gt_optimizer_options_init(&o, sizeof o, 3), GT_BAD_ARGUMENT);
}

static void check_refused(gt_tensor *w, const gt_optimizer_options *o, const char *text) {
    gt_optimizer *optimizer = NULL;
    CHECK_STATUS(gt_optimizer_create(o, &w, 1, &optimizer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS(text);
    CHECK(optimizer == NULL);
}

TEST(unit, optimizer_refuses_rates_by_name) {
    gt_context *ctx = exact_context(t);
    gt_tensor *w = start(ctx, GT_DTYPE_F32);
    gt_optimizer_options sgd, adam, o;
    CHECK_OK(gt_optimizer_options_init(&sgd, sizeof sgd, GT_OPTIMIZER_SGD));
    CHECK_OK(gt_optimizer_options_init(&adam, sizeof adam, GT_OPTIMIZER_ADAM));
#define REFUSED(base, field, value, text) (o = base, o.field = value, check_refused(w, &o, text))
    REFUSED(sgd, learning_rate, -1, "learning_rate is -1");
    REFUSED(sgd, learning_rate, NAN, "learning_rate");
    REFUSED(sgd, momentum, -0.5, "momentum is -0.5");
    REFUSED(sgd, weight_decay, -1, "weight_decay is -1");
    REFUSED(sgd, nesterov, 1, "nesterov needs momentum");
    REFUSED(adam, beta1, 1, "beta1 is 1");
    REFUSED(adam, beta2, -0.1, "beta2 is -0.1");
    REFUSED(adam, epsilon, -1, "epsilon is -1");
    REFUSED(adam, kind, 7, "kind 7");
#undef REFUSED
    gt_optimizer *optimizer = NULL;
    CHECK_STATUS(gt_optimizer_create(NULL, &w, 1, &optimizer), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_create(&sgd, &w, 0, &optimizer), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_create(&sgd, NULL, 1, &optimizer), GT_BAD_ARGUMENT);
    o = sgd;
    o.struct_size = 0;
    CHECK_STATUS(gt_optimizer_create(&o, &w, 1, &optimizer), GT_BAD_ABI);
    CHECK_OK(gt_optimizer_create(&sgd, &w, 1, &optimizer));
    CHECK_STATUS(gt_optimizer_set_learning_rate(optimizer, INFINITY), GT_BAD_ARGUMENT);
    CHECK_OK(gt_optimizer_set_learning_rate(optimizer, 0.5));
    CHECK_NEAR(gt_optimizer_learning_rate(optimizer), 0.5, 0);
    gt_optimizer_destroy(optimizer);
    gt_optimizer_destroy(NULL);
    gt_tensor_release(w);
}

TEST(unit, optimizer_refuses_tensors_that_it_cannot_step) {
    gt_context *ctx = exact_context(t), *other = exact_context(t);
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAM));
    gt_tensor *w = start(ctx, GT_DTYPE_F32), *foreign = start(other, GT_DTYPE_F32);
    CHECK_OK(gt_tensor_set_name(w, "w"));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *plain = gt_tensor_zeros(ctx, GT_DTYPE_F32, 0, NULL), *alias = gt_tensor_detach(w);
    CHECK_OK(gt_tensor_set_requires_grad(alias, 1));
    uint64_t before = bytes_in_use(ctx, -1);
    CHECK_STATUS(gt_optimizer_create(&o, (gt_tensor *[]){w, plain}, 2, &optimizer), GT_BAD_STATE);
    CHECK_ERROR_HAS("parameter 1");
    CHECK_STATUS(gt_optimizer_create(&o, (gt_tensor *[]){w, gt_square(w)}, 2, &optimizer), GT_BAD_STATE);
    CHECK_STATUS(gt_optimizer_create(&o, (gt_tensor *[]){w, foreign}, 2, &optimizer), GT_BAD_DEVICE);
    CHECK_STATUS(gt_optimizer_create(&o, (gt_tensor *[]){w, alias}, 2, &optimizer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("share memory");
    gt_clear_error();
    CHECK(gt_optimizer_create(&o, (gt_tensor *[]){w, NULL}, 2, &optimizer) != GT_OK);
    CHECK(optimizer == NULL);
    CHECK(bytes_in_use(ctx, GT_MEMORY_OPTIMIZER) == 0 && bytes_in_use(ctx, -1) >= before);
    CHECK_OK(gt_scope_end(ctx));
    gt_module *frozen = gt_nn_linear(ctx, 2, 2, NULL);
    CHECK_OK(gt_module_set_trainable(frozen, 0));
    CHECK_STATUS(gt_optimizer_create_for(&o, frozen, &optimizer), GT_BAD_STATE);
    gt_module_destroy(frozen);
    gt_tensor_release(w);
    gt_tensor_release(foreign);
}

TEST_DEVICES(unit, a_tensor_listed_twice_is_stepped_once) {
    gt_context *ctx = exact_context(t);
    gt_tensor *w = start(ctx, GT_DTYPE_F32), *v = start(ctx, GT_DTYPE_F32);
    gt_optimizer *optimizer = optimizer_of(&rules[0], (gt_tensor *[]){w, v, w}, 3);
    CHECK_EQ_INT(gt_optimizer_parameter_count(optimizer), 2);
    CHECK_OK(backward_bowl(w));
    CHECK_OK(gt_optimizer_step(optimizer));
    const double want[4] = {0.45, -1.05, 1.6, 0.121875};
    CHECK_VALUES(w, want, 1e-6);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
    gt_tensor_release(v);
}

TEST_DEVICES(unit, a_step_without_gradients_changes_nothing) {
    gt_context *ctx = exact_context(t);
    gt_tensor *w = start(ctx, GT_DTYPE_F32);
    gt_optimizer *optimizer = optimizer_of(&rules[7], &w, 1);
    CHECK_STATUS(gt_optimizer_step(optimizer), GT_NO_GRADS);
    CHECK_ERROR_HAS("none of the 1 parameters");
    CHECK_STATUS(gt_optimizer_clip_grad_norm(optimizer, 1, NULL), GT_NO_GRADS);
    CHECK_STATUS(gt_optimizer_clip_grad_value(optimizer, 1), GT_NO_GRADS);
    CHECK_OK(backward_bowl(w));
    CHECK_OK(gt_optimizer_zero_grad(optimizer));
    CHECK_STATUS(gt_optimizer_step(optimizer), GT_NO_GRADS);
    const double want[4] = {0.5, -1, 2, 0.125};
    CHECK_VALUES(w, want, 0);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST(unit, optimizer_state_has_its_own_category_and_fails_cleanly) {
    gt_context_options co;
    CHECK_OK(gt_context_options_init(&co, sizeof co));
    co.memory_limit = 12 << 20;
    gt_context *ctx = test_context_with(t, &co);
    gt_module *m = gt_nn_linear(ctx, 1024, 1024, NULL); /* 4 MiB */
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAM));
    for (int i = 0; i < 20; ++i) {
        CHECK_STATUS(gt_optimizer_create_for(&o, m, &optimizer), GT_OUT_OF_MEMORY);
        CHECK_EQ_INT(bytes_in_use(ctx, GT_MEMORY_OPTIMIZER), 0);
    }
    o.kind = GT_OPTIMIZER_SGD;
    o.momentum = 0.9;
    CHECK_OK(gt_optimizer_create_for(&o, m, &optimizer));
    const uint64_t counts = 512; /* step counts, as the allocator rounds */
    CHECK_EQ_INT(bytes_in_use(ctx, GT_MEMORY_OPTIMIZER), bytes_in_use(ctx, GT_MEMORY_PARAMETER) + counts);
    gt_optimizer_destroy(optimizer);
    o.momentum = 0;
    CHECK_OK(gt_optimizer_create_for(&o, m, &optimizer));
    CHECK_EQ_INT(bytes_in_use(ctx, GT_MEMORY_OPTIMIZER), counts);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(m);
}

TEST(unit, a_step_makes_an_older_record_stale) {
    gt_context *ctx = exact_context(t);
    gt_tensor *w = start(ctx, GT_DTYPE_F32);
    CHECK_OK(gt_tensor_set_name(w, "fc.weight"));
    gt_optimizer *optimizer = optimizer_of(&rules[0], &w, 1);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *loss = gt_sum(gt_square(w), NULL, 0, 0);
    CHECK_OK(backward_bowl(w));
    CHECK_OK(gt_optimizer_step(optimizer));
    CHECK_STATUS(gt_backward(loss), GT_SAVED_MODIFIED);
    CHECK_ERROR_HAS("fc.weight");
    CHECK_OK(gt_scope_end(ctx));
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST(unit, changing_the_dtype_under_an_optimizer_is_refused) {
    gt_context *ctx = exact_context(t);
    gt_module *m = gt_nn_linear(ctx, 2, 2, NULL);
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAM));
    CHECK_OK(gt_optimizer_create_for(&o, m, &optimizer));
    CHECK_OK(gt_module_to_dtype(m, GT_DTYPE_F16));
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_backward(gt_sum(gt_module_forward(m, gt_tensor_zeros(ctx, GT_DTYPE_F16, 2, (const int64_t[]){1, 2})), NULL, 0, 0)));
    CHECK_OK(gt_scope_end(ctx));
    CHECK_STATUS(gt_optimizer_step(optimizer), GT_BAD_STATE);
    CHECK_ERROR_HAS("was f32 when the optimizer was created");
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(m);
}

TEST_DEVICES(unit, a_written_half_parameter_is_what_the_next_step_starts_from) {
    gt_context *ctx = exact_context(t);
    gt_tensor *w = start(ctx, GT_DTYPE_F16);
    gt_optimizer *optimizer = optimizer_of(&rules[0], &w, 1);
    CHECK_OK(backward_bowl(w));
    CHECK_OK(gt_optimizer_step(optimizer));
    CHECK_OK(gt_tensor_fill(w, 4));
    CHECK_OK(gt_optimizer_zero_grad(optimizer));
    CHECK_OK(backward_bowl(w));
    CHECK_OK(gt_optimizer_step(optimizer));
    const double want[4] = {3.6, 4.2, 3.2, 3.9};
    CHECK_VALUES(w, want, 1e-3);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

TEST(unit, an_optimizer_may_outlive_its_context) {
    gt_context *ctx = NULL;
    CHECK_OK(gt_context_create(&(gt_context_options){.struct_size = sizeof(gt_context_options), .device = GT_DEVICE_CPU}, &ctx));
    gt_tensor *w = start(ctx, GT_DTYPE_F16);
    gt_optimizer *optimizer = optimizer_of(&rules[5], &w, 1);
    gt_context_destroy(ctx);
    CHECK_STATUS(gt_optimizer_step(optimizer), GT_BAD_STATE);
    CHECK_STATUS(gt_optimizer_clip_grad_norm(optimizer, 1, NULL), GT_BAD_STATE);
    CHECK_OK(gt_optimizer_zero_grad(optimizer));
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(w);
}

/* What a profile costs: steps with and without one take turns, and the fastest of each count. */
#include "profile/network.h"

#include <stdio.h>
#include <time.h>

typedef struct bench {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_step *step; /* NULL: eager */
    gt_tensor *inputs[2];
    clockid_t clock;
} bench;

static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t count, gt_step_result *r) {
    (void)count;
    r->loss = gt_cross_entropy(gt_module_forward(user, inputs[0]), inputs[1], NULL);
    return r->loss ? GT_OK : gt_last_error()->status;
}

/* An MLP of `layers` hidden layers. */
static void begin(test_case *t, bench *b, int64_t in, int64_t width, int layers, int64_t batch, int compiled) {
    gt_context_options c;
    CHECK_OK(gt_context_options_init(&c, sizeof c));
    c.cpu_threads = 1;
    *b = (bench){.ctx = test_context_with(t, &c)};
    /* Of the thread, where one does all: what other programs take does not count. */
    b->clock = test_device(t) == GT_DEVICE_CPU ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    b->net = gt_nn_sequential(b->ctx);
    CHECK(b->net != NULL);
    for (int i = 0; i < layers; ++i) {
        CHECK_OK(gt_nn_sequential_add(b->net, gt_nn_linear(b->ctx, i == 0 ? in : width, width, NULL)));
        CHECK_OK(gt_nn_sequential_add(b->net, gt_nn_relu(b->ctx)));
    }
    CHECK_OK(gt_nn_sequential_add(b->net, gt_nn_linear(b->ctx, width, 10, NULL)));
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    CHECK_OK(gt_optimizer_create_for(&o, b->net, &b->optimizer));
    const int64_t shape[2] = {batch, in};
    b->inputs[0] = CHECK_TENSOR(gt_tensor_full(b->ctx, GT_DTYPE_F32, 2, shape, 0.1));
    b->inputs[1] = CHECK_TENSOR(gt_tensor_full(b->ctx, GT_DTYPE_I64, 1, &batch, 3));
    if (!compiled) return;
    gt_step_options s;
    CHECK_OK(gt_step_options_init(&s, sizeof s));
    s.fn = loss_of;
    s.user = s.module = b->net;
    s.optimizers = &b->optimizer;
    s.n_optimizers = 1;
    CHECK_OK(gt_step_create(b->ctx, &s, &b->step));
}

static void end(bench *b) {
    gt_step_destroy(b->step);
    gt_optimizer_destroy(b->optimizer);
    gt_module_destroy(b->net);
    for (int i = 0; i < 2; ++i) gt_tensor_release(b->inputs[i]);
}

static void train(bench *b) {
    if (b->step) {
        CHECK_OK(gt_step_run(b->step, b->inputs, 2));
        return;
    }
    CHECK_OK(gt_scope_begin(b->ctx));
    CHECK_OK(gt_optimizer_zero_grad(b->optimizer));
    CHECK_OK(gt_backward(gt_cross_entropy(gt_module_forward(b->net, b->inputs[0]), b->inputs[1], NULL)));
    CHECK_OK(gt_optimizer_step(b->optimizer));
    CHECK_OK(gt_scope_end(b->ctx));
}

static double seconds_of(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Of some steps in a row, the least of several times. */
static double fastest(bench *b, int times) {
    enum { STEPS = 4 };
    double least = 1e9;
    for (int i = 0; i < times; ++i) {
        CHECK_OK(gt_context_synchronize(b->ctx));
        double begin = seconds_of(b->clock);
        for (int k = 0; k < STEPS; ++k) train(b);
        CHECK_OK(gt_context_synchronize(b->ctx));
        double seconds = (seconds_of(b->clock) - begin) / STEPS;
        if (seconds < least) least = seconds;
    }
    return least;
}

static void compare(bench *b, int whole_graphs) {
    double off = 1e9, on = 1e9;
    gt_profile_options o;
    gt_profile *p;
    CHECK_OK(gt_profile_options_init(&o, sizeof o));
    o.whole_graphs = whole_graphs;
    (void)fastest(b, 4);
    for (int round = 0; round < 200 && !(round >= 10 && on < 1.01 * off); ++round) {
        double seconds = fastest(b, 3);
        if (seconds < off) off = seconds;
        CHECK_OK(gt_profile_create(b->ctx, &o, &p)); /* the first measures ceilings */
        seconds = fastest(b, 3);
        if (seconds < on) on = seconds;
        gt_profile_destroy(p);
    }
    printf("a step: %.1f us without, %.1f us with a profile\n", off * 1e6, on * 1e6);
    if (on > 1.02 * off) FAIL("%.1f us a step with a profile, %.1f us without: %.1f %%", on * 1e6, off * 1e6, 100 * (on / off - 1));
}

TEST(slow, profile_costs_less_than_two_percent_of_a_small_step) {
    for (int compiled = 0; compiled < 2; ++compiled) {
        bench b;
        begin(t, &b, 256, 128, 2, 64, compiled);
        compare(&b, 0);
        end(&b);
    }
}

TEST_CUDA_ONLY(slow, profile_costs_less_than_two_percent_of_a_large_step) {
    for (int compiled = 0; compiled < 2; ++compiled) {
        bench b;
        begin(t, &b, 4096, 4096, 4, 4096, compiled);
        compare(&b, compiled);
        end(&b);
    }
}

/* Contract E1 for compiled steps: each host allocation in turn may fail, and all is then as it was. */
#include "support.h"

#include "unit/fake_device.h"

typedef struct world {
    net_step n;
    gt_tensor *inputs[2], *more[2];
} world;

static world begin(test_case *t, bool half) {
    world w = {.n = {.ctx = net_context(t)}};
    w.n.net = net_mlp(w.n.ctx, NET_IN, NET_HIDDEN);
    w.n.optimizer = net_adam(w.n.net);
    if (half) CHECK_OK(gt_scaler_create(w.n.ctx, NULL, &w.n.scaler));
    net_batch(w.n.ctx, 8, 0, w.inputs);
    net_batch(w.n.ctx, 10, 1, w.more);
    return w;
}

static void end(world *w) {
    for (int i = 0; i < 2; ++i) {
        gt_tensor_release(w->inputs[i]);
        gt_tensor_release(w->more[i]);
    }
    net_end(&w->n);
}

/* With elementwise ops for a chain. */
static gt_status swish_loss(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    (void)n;
    gt_tensor *x = gt_module_forward(user, inputs[0]);
    r->outputs[0] = gt_mul_scalar(gt_mul(x, gt_sigmoid(x)), 1.5);
    r->loss = gt_cross_entropy(r->outputs[0], inputs[1], NULL);
    return r->loss ? GT_OK : gt_last_error()->status;
}

static bool has_chain(gt_step *step) {
    char text[20000];
    CHECK_OK(gt_step_describe(step, GT_STEP_TEXT, text, sizeof text, NULL));
    return strstr(text, "chain(") != NULL;
}

static gt_status make(world *w, int32_t micro_batches) {
    gt_step_options o = net_options(&w->n);
    o.fn = swish_loss;
    o.micro_batches = micro_batches;
    return gt_step_create(w->n.ctx, &o, &w->n.step);
}

typedef gt_status (*action)(world *w, int32_t micro_batches);

static gt_status run(world *w, int32_t micro_batches) {
    (void)micro_batches;
    return gt_step_run(w->n.step, w->inputs, 2);
}
static gt_status run_more(world *w, int32_t micro_batches) {
    (void)micro_batches;
    return gt_step_run(w->n.step, w->more, 2);
}
static gt_status plan(world *w, int32_t micro_batches) {
    const gt_step_input in[2] = {{.shape = {30, NET_IN}, .ndim = 2, .dtype = GT_DTYPE_F32},
                                 {.shape = {30}, .ndim = 1, .dtype = GT_DTYPE_I64}};
    gt_step_memory m = net_step_memory();
    return gt_step_plan(w->n.step, in, 2, micro_batches, &m);
}
static gt_status describe(world *w, int32_t micro_batches) {
    gt_status status = gt_step_describe(w->n.step, GT_STEP_TEXT, NULL, 0, NULL);
    (void)micro_batches;
    return status == GT_OK ? gt_step_describe(w->n.step, GT_STEP_GRAPHVIZ, NULL, 0, NULL) : status;
}

/* Until it succeeds: each failure has its status, and leaves weights, buffers and random numbers. */
static int fail_each(world *w, action act, int32_t micro_batches) {
    size_t bytes, left;
    char *before = net_values(w->n.net, &bytes);
    uint64_t offset, later;
    CHECK_OK(gt_random_state_get(w->n.ctx, NULL, &offset));
    gt_status status = GT_OUT_OF_HOST_MEMORY;
    int failures = 0;
    for (int64_t k = 0; status != GT_OK; ++k) {
        CHECK(k < 100000);
        fake_host_fail(k);
        status = act(w, micro_batches);
        bool failed = fake_host_failed();
        fake_host_fail(-1);
        if (status == GT_OK) break;
        CHECK(failed);
        if (status != GT_OUT_OF_HOST_MEMORY) FAIL("allocation %d: %s", (int)k, gt_last_error()->message);
        ++failures;
        char *after = net_values(w->n.net, &left);
        CHECK(left == bytes && memcmp(before, after, bytes) == 0);
        free(after);
        CHECK_OK(gt_random_state_get(w->n.ctx, NULL, &later));
        CHECK_EQ_INT(offset, later);
    }
    free(before);
    return failures;
}

static void survive(test_case *t, bool half, int32_t micro_batches) {
    world w = begin(t, half), twin = begin(t, half);
    CHECK(fail_each(&w, make, micro_batches) > 5);
    CHECK_OK(make(&twin, micro_batches));
    CHECK(fail_each(&w, run, micro_batches) > 50);
    CHECK_OK(run(&twin, micro_batches));
    net_same(w.n.net, twin.n.net);
    CHECK(has_chain(w.n.step));
    CHECK(fail_each(&w, plan, micro_batches) > 50);
    CHECK(fail_each(&w, describe, micro_batches) > 20);
    CHECK(fail_each(&w, run_more, micro_batches) > 50);
    CHECK_OK(run_more(&twin, micro_batches));
    net_same(w.n.net, twin.n.net);
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(run(&w, micro_batches));
        CHECK_OK(run(&twin, micro_batches));
        net_same(w.n.net, twin.n.net);
    }
    /* what failed has left no memory behind */
    int64_t live = fake_host_live();
    uint64_t in_use = net_memory(w.n.ctx).in_use;
    for (int i = 0; i < 3; ++i) {
        CHECK_OK(gt_step_reset(w.n.step));
        (void)fail_each(&w, plan, micro_batches);
        fake_host_fail(40 + 7 * i);
        CHECK_STATUS(run(&w, micro_batches), GT_OUT_OF_HOST_MEMORY);
        fake_host_fail(-1);
        CHECK_OK(run(&w, micro_batches));
        CHECK_OK(run_more(&w, micro_batches));
    }
    CHECK_EQ_INT(net_memory(w.n.ctx).in_use, in_use);
    CHECK(fake_host_live() - live < 64);
    end(&w);
    end(&twin);
}

TEST(contract, E1_compiled_steps_survive_each_failing_host_allocation) { survive(t, false, 1); }
TEST(contract, E1_compiled_steps_in_f16_survive_each_failing_host_allocation) { survive(t, true, 2); }

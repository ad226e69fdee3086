/* Contract E1 for memory budgets: each host allocation of the search in turn may fail, and all is then as it was. */
#include "step/budget.h"
#include "support.h"

#include "unit/fake_device.h"

/* Times are what the model says, whatever the machine did meanwhile: so the number of micro-batches stays. */
static void forget_the_clock(gt_step *step) {
    gt__time_model model;
    gt__program *p = &step->last->program;
    gt__time_model_make(step->ctx, NULL, &model);
    for (int32_t k = 0; k < step->times.capacity; ++k) step->times.slots[k].seconds = -1;
    for (int32_t i = 0; i < p->count; ++i) gt__times_note(&step->times, &p->list[i], gt__time_modelled(&model, &p->list[i]));
}

/* One run, after every `stride`th allocation that it makes has failed once. */
static void fail_each(gt_step *step, gt_tensor *const *inputs, int64_t stride, int least) {
    int64_t live = 0;
    int failures = 0, plans = -1;
    for (int64_t at = 0;; at += stride) {
        fake_host_fail(at);
        gt_status status = gt_step_run(step, inputs, 2);
        bool failed = fake_host_failed();
        fake_host_fail(-1);
        if (status == GT_OK) break;
        if (status != GT_OUT_OF_HOST_MEMORY || !failed) FAIL("allocation %d: %s", (int)at, gt_last_error()->message);
        gt_clear_error();
        if (++failures == 20 || plans != step->n_plans) live = fake_host_live();
        plans = step->n_plans;
        if (failures > 20) CHECK(fake_host_live() - live < 64); /* nothing is left behind */
    }
    if (failures <= least) FAIL("%d failures", failures);
}

TEST(contract, E1_memory_budgets_survive_each_failing_host_allocation) {
    net_step n = {.ctx = net_context(t)};
    gt_tensor *inputs[2];
    gt_module *layers[9];
    for (int i = 0; i < 9; ++i)
        layers[i] = i % 2 ? gt_nn_gelu(n.ctx, 0) : gt_nn_linear(n.ctx, i ? 16 : NET_IN, i < 8 ? 16 : NET_CLASSES, NULL);
    n.net = gt_nn_sequential_from(n.ctx, layers, 9);
    CHECK(n.net != NULL);
    n.optimizer = net_adam(n.net);
    net_batch(n.ctx, 32, 0, inputs);
    gt_step_options o = net_options(&n);
    o.memory_budget = 1;
    CHECK_OK(gt_step_create(n.ctx, &o, &n.step));
    CHECK_STATUS(gt_step_run(n.step, inputs, 2), GT_OUT_OF_MEMORY);
    o.memory_budget = n.step->budget_least;
    gt_step_destroy(n.step);
    gt_clear_error();
    for (int32_t k = 0; k < 2; ++k) { /* one micro-batch, then as many as are best */
        o.micro_batches = 1 - k;
        CHECK_OK(gt_step_create(n.ctx, &o, &n.step));
        fail_each(n.step, inputs, k ? 211 : 1, k ? 20 : 200);
        CHECK(n.step->last->fixed + n.step->last->arena_bytes <= o.memory_budget);
        CHECK_OK(gt_step_run(n.step, inputs, 2));
        CHECK(!n.step->last->settled && n.step->last->modelled);
        forget_the_clock(n.step);
        fail_each(n.step, inputs, k ? 211 : 1, k ? 10 : 150); /* planned again */
        CHECK(n.step->last->settled && n.step->last->fixed + n.step->last->arena_bytes <= o.memory_budget);
        CHECK_OK(gt_step_run(n.step, inputs, 2));
        gt_step_destroy(n.step);
    }
    n.step = NULL;
    for (int i = 0; i < 2; ++i) gt_tensor_release(inputs[i]);
    net_end(&n);
}

/* With offload: where there is no memory to have buffers wait in, the plan is another one, or the budget is too small. */
TEST(contract, E1_offload_survives_failing_host_allocations) {
    net_step n = {.ctx = net_context(t)};
    gt_tensor *inputs[2];
    gt_module *layers[9];
    for (int i = 0; i < 9; ++i)
        layers[i] = i % 2 ? gt_nn_gelu(n.ctx, 0) : gt_nn_linear(n.ctx, i ? 48 : NET_IN, i < 8 ? 48 : NET_CLASSES, NULL);
    n.net = gt_nn_sequential_from(n.ctx, layers, 9);
    CHECK(n.net != NULL);
    n.optimizer = net_adam(n.net);
    net_batch(n.ctx, NET_ROWS, 0, inputs);
    gt_step_options o = net_options(&n);
    o.memory_budget = 1;
    o.offload = 1;
    CHECK_OK(gt_step_create(n.ctx, &o, &n.step));
    n.step->times.link[0] = n.step->times.link[1] = 1e-15;
    CHECK_STATUS(gt_step_run(n.step, inputs, 2), GT_OUT_OF_MEMORY);
    gt_clear_error();
    n.step->options.memory_budget = n.step->budget_least;
    CHECK_OK(gt_step_run(n.step, inputs, 2));
    CHECK(n.step->last->host.bytes > 0);
    CHECK_OK(gt_step_reset(n.step));
    int64_t live = fake_host_live();
    int failures = 0;
    for (int64_t at = 0;; at += 1 + at / 16) {
        fake_host_fail(at);
        gt_status status = gt_step_run(n.step, inputs, 2);
        bool failed = fake_host_failed();
        fake_host_fail(-1);
        if (!failed) {
            CHECK_OK(status);
            break;
        }
        if (status != GT_OK && status != GT_OUT_OF_HOST_MEMORY && status != GT_OUT_OF_MEMORY)
            FAIL("allocation %d: %s", (int)at, gt_last_error()->message);
        failures++;
        gt_clear_error();
        CHECK_OK(gt_step_reset(n.step));
        if (fake_host_live() - live >= 16) FAIL("allocation %d left %d behind", (int)at, (int)(fake_host_live() - live));
    }
    CHECK(failures > 50);
    for (int i = 0; i < 4; ++i) CHECK_OK(gt_step_run(n.step, inputs, 2));
    gt_step_destroy(n.step);
    n.step = NULL;
    for (int i = 0; i < 2; ++i) gt_tensor_release(inputs[i]);
    net_end(&n);
}

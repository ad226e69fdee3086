/* What a step will take, before it has run: gt_step_plan, gt_step_largest_batch, gt_step_get_memory. */
#include "support.h"

static gt_step_input matrix(int64_t rows, int64_t columns) {
    return (gt_step_input){.shape = {rows, columns}, .ndim = 2, .dtype = GT_DTYPE_F32};
}
static gt_step_input labels(int64_t rows) { return (gt_step_input){.shape = {rows}, .ndim = 1, .dtype = GT_DTYPE_I64}; }

/* ---- as measured ------------------------------------------------------------------------------------------------------------------------- */

/* The most in use in two runs, after three in which kernels are chosen and, on a GPU, scratch memory gets places in the arena. */
static uint64_t measured(net_step *n, const gt_step_input *in) {
    for (int i = 0; i < 5; ++i) {
        CHECK_OK(gt_scope_begin(n->ctx));
        gt_tensor *inputs[2] = {CHECK_TENSOR(gt_tensor_normal(n->ctx, in[0].dtype, in[0].ndim, in[0].shape, 0, 1)),
                                CHECK_TENSOR(gt_tensor_zeros(n->ctx, in[1].dtype, in[1].ndim, in[1].shape))};
        if (i == 3) CHECK_OK(gt_memory_reset_peak(n->ctx));
        CHECK_OK(gt_step_run(n->step, inputs, 2));
        CHECK_OK(gt_scope_end(n->ctx));
    }
    return net_memory(n->ctx).peak_in_use;
}

static void near(uint64_t got, uint64_t want, double share) {
    double off = ((double)got - (double)want) / (double)want;
    if (off > share || off < -share) FAIL("predicted %llu, measured %llu", (unsigned long long)got, (unsigned long long)want);
}

static uint64_t sum(const uint64_t *list) {
    uint64_t total = 0;
    for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) total += list[c];
    return total;
}

static void adds_up(const gt_step_memory *m) {
    CHECK_EQ_INT(m->peak, m->fixed + m->inputs + m->arena + m->workspace);
    CHECK_EQ_INT(m->fixed, sum(m->fixed_category));
    CHECK_EQ_INT(m->live, sum(m->live_category));
    CHECK(m->live <= m->arena + m->workspace && m->micro_batch <= m->live);
    CHECK(m->instruction >= 0 && m->instruction < m->instructions);
    CHECK(m->op[0] != '\0' && m->module != NULL && m->phase != NULL);
}

static void predicted_is_measured(test_case *t, bool half, int k, int rows) {
    net_step n = net_begin(net_context(t), half, k);
    const gt_step_input in[2] = {matrix(rows, NET_IN), labels(rows)};
    gt_step_memory before = net_step_memory(), after = net_step_memory();
    CHECK_OK(gt_step_plan(n.step, in, 2, 0, &before));
    adds_up(&before);
    CHECK_EQ_INT(before.workspace_known, 0);
    CHECK_EQ_INT(before.workspace, 0);
    CHECK_EQ_INT(before.micro_batches, k);
    uint64_t peak = measured(&n, in);

    CHECK_OK(gt_step_get_memory(n.step, &after));
    adds_up(&after);
    near(after.peak, peak, 0.005);
    CHECK_EQ_INT(after.workspace_known, 1);
    CHECK_EQ_INT(after.instructions, before.instructions);
    CHECK_EQ_INT(after.inputs, before.inputs);
    CHECK_EQ_INT(after.fixed, before.fixed);
    CHECK(before.peak <= peak && before.arena <= after.arena);
    if (test_device(t) == GT_DEVICE_CPU) {
        CHECK_EQ_INT(after.arena, before.arena);
        near(before.peak + after.workspace, peak, 0.005);
        if (rows > 1000) near(before.peak, peak, 0.02); /* what kernels' scratch memory adds is little there */
    } else {
        CHECK_EQ_INT(after.workspace, 0); /* in the arena */
    }
    net_end(&n);
}

TEST_DEVICES(unit, step_plan_is_what_is_measured_of_an_mlp) { predicted_is_measured(t, false, 1, 64); }
TEST_DEVICES(unit, step_plan_is_what_is_measured_with_micro_batches) { predicted_is_measured(t, false, 3, 64); }
TEST_DEVICES(unit, step_plan_is_what_is_measured_of_a_large_batch) { predicted_is_measured(t, false, 1, 16384); }
TEST_DEVICES(unit, step_plan_is_what_is_measured_of_a_large_batch_in_f16) { predicted_is_measured(t, true, 2, 16384); }
TEST_DEVICES(unit, step_plan_is_what_is_measured_in_f16) { predicted_is_measured(t, true, 1, 64); }
TEST_DEVICES(unit, step_plan_is_what_is_measured_in_f16_with_micro_batches) { predicted_is_measured(t, true, 2, 64); }

/* A convolution, whose kernels take scratch memory: the prediction says that it is not in it, and after a run it is. */
TEST(unit, step_get_memory_has_the_workspace_that_a_prediction_lacks) {
    gt_context *ctx = net_context(t);
    gt_module *const layers[] = {gt_nn_conv2d(ctx, 3, 8, 3, NULL), gt_nn_relu(ctx), gt_nn_flatten(ctx, 1),
                                 gt_nn_linear(ctx, 8 * 36, NET_CLASSES, NULL)};
    net_step n = {.ctx = ctx, .net = gt_nn_sequential_from(ctx, layers, 4)};
    n.optimizer = net_adam(n.net);
    gt_step_options o = net_options(&n);
    CHECK_OK(gt_step_create(ctx, &o, &n.step));
    const gt_step_input in[2] = {{.shape = {16, 3, 8, 8}, .ndim = 4, .dtype = GT_DTYPE_F32}, labels(16)};
    gt_step_memory before = net_step_memory(), after = net_step_memory();
    CHECK_OK(gt_step_plan(n.step, in, 2, 0, &before));
    uint64_t peak = measured(&n, in);
    CHECK_OK(gt_step_get_memory(n.step, &after));
    adds_up(&after);
    near(after.peak, peak, 0.005);
    CHECK(after.workspace_known && after.peak == before.peak + after.workspace); /* 0 where products need none: without oneDNN */
    net_end(&n);
}

/* ---- without a trace -------------------------------------------------------------------------------------------------------------------- */

TEST_DEVICES(unit, step_plan_leaves_nothing_behind) {
    for (int half = 0; half < 2; ++half) {
        net_step a = net_begin(net_context(t), half, 2), b = net_begin(net_context(t), half, 2);
        const gt_step_input in[2] = {matrix(40, NET_IN), labels(40)};
        gt_step_memory m = net_step_memory();
        int64_t rows;
        for (int i = 0; i < 6; ++i) {
            gt_memory_stats before = net_memory(a.ctx);
            uint64_t seed, offset, later;
            CHECK_OK(gt_random_state_get(a.ctx, &seed, &offset));
            CHECK_OK(gt_step_plan(a.step, in, 2, i % 3 + 1, &m));
            if (i == 3) CHECK_OK(gt_step_largest_batch(a.step, in, 2, 0, 1 << 20, &rows, NULL));
            gt_memory_stats after = net_memory(a.ctx);
            CHECK_EQ_INT(after.in_use, before.in_use);
            CHECK_EQ_INT(after.allocations, before.allocations);
            CHECK_EQ_INT(after.steps, before.steps);
            CHECK_OK(gt_random_state_get(a.ctx, &seed, &later));
            CHECK_EQ_INT(later, offset);
            net_same(a.net, b.net);
            CHECK_OK(net_run(&a, i < 4 ? 40 : 30, i));
            CHECK_OK(net_run(&b, i < 4 ? 40 : 30, i));
            net_same(a.net, b.net);
        }
        gt_window_state x, y;
        CHECK_OK(gt_window_state_init(&x, sizeof x));
        CHECK_OK(gt_window_state_init(&y, sizeof y));
        CHECK_OK(gt_step_get_state(a.step, &x));
        CHECK_OK(gt_step_get_state(b.step, &y));
        CHECK_EQ_INT(x.updates, 6);
        CHECK(x.updates == y.updates && x.gradient_norm == y.gradient_norm);
        net_end(&a);
        net_end(&b);
    }
}

/* In the middle of a step without gt_step: the record and the gradients stay. */
TEST_DEVICES(unit, step_plan_leaves_gradients_and_records_alone) {
    net_step n = net_begin(net_context(t), true, 1);
    const gt_step_input in[2] = {matrix(8, NET_IN), labels(8)};
    gt_step_memory m = net_step_memory();
    gt_tensor *inputs[2], *weight;
    float first[NET_IN * NET_HIDDEN], second[NET_IN * NET_HIDDEN];
    CHECK_OK(gt_module_find(n.net, "0.weight", &weight));
    CHECK_OK(gt_scope_begin(n.ctx));
    net_batch(n.ctx, 8, 0, inputs);
    CHECK_OK(gt_module_set_training(n.net, 0)); /* twice the same */
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(gt_autocast_begin(n.ctx, GT_DTYPE_F16));
        gt_tensor *loss = CHECK_TENSOR(gt_cross_entropy(gt_module_forward(n.net, inputs[0]), inputs[1], NULL));
        CHECK_OK(gt_autocast_end(n.ctx));
        CHECK_OK(gt_step_plan(n.step, in, 2, 0, &m));
        CHECK_OK(gt_backward(loss));
        CHECK_OK(gt_step_plan(n.step, in, 2, 0, &m));
        CHECK(gt_tensor_grad(weight) != NULL);
        CHECK_OK(gt_tensor_read(gt_tensor_grad(weight), i ? second : first, sizeof first));
    }
    for (int i = 0; i < NET_IN * NET_HIDDEN; ++i) CHECK_NEAR(second[i], 2 * first[i], 1e-6); /* they have added up */
    CHECK_OK(gt_scope_end(n.ctx));
    net_end(&n);
}

/* An eager step leaves half copies behind their weights; a prediction must not take them for what they are not. */
TEST_DEVICES(unit, step_plan_does_not_hide_that_a_half_copy_is_old) {
    net_step n = net_begin(net_context(t), true, 1);
    const gt_step_input in[2] = {matrix(8, NET_IN), labels(8)};
    gt_step_memory m = net_step_memory();
    gt_tensor *inputs[2], *weight;
    CHECK_OK(gt_module_find(n.net, "0.weight", &weight));
    CHECK_OK(gt_module_set_training(n.net, 0));
    CHECK_OK(gt_scope_begin(n.ctx));
    net_batch(n.ctx, 8, 0, inputs);
    double loss[2];
    for (int i = 0; i < 2; ++i) {
        if (i) CHECK_OK(gt_tensor_fill(weight, 0.125));
        if (i) CHECK_OK(gt_step_plan(n.step, in, 2, 0, &m));
        CHECK_OK(gt_autocast_begin(n.ctx, GT_DTYPE_F16));
        CHECK_OK(gt_tensor_item(gt_cross_entropy(gt_module_forward(n.net, inputs[0]), inputs[1], NULL), &loss[i]));
        CHECK_OK(gt_autocast_end(n.ctx));
    }
    CHECK(loss[0] != loss[1]);
    CHECK_OK(gt_scope_end(n.ctx));
    net_end(&n);
}

/* ---- sizes that no machine has ------------------------------------------------------------------------------------------------------------ */

static gt_status loss_alone(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    gt_status status = net_loss(user, inputs, n, r);
    r->outputs[0] = NULL;
    return status;
}

TEST(unit, step_plan_needs_no_memory_for_what_it_plans) {
    gt_context *ctx = net_context(t);
    net_step n = {.ctx = ctx, .net = net_mlp(ctx, NET_IN, NET_HIDDEN)};
    n.optimizer = net_adam(n.net);
    gt_step_options o = net_options(&n);
    o.fn = loss_alone;
    CHECK_OK(gt_step_create(ctx, &o, &n.step));
    const int64_t rows = INT64_C(1) << 32;
    const gt_step_input in[2] = {matrix(rows, NET_IN), labels(rows)};
    gt_step_memory m = net_step_memory(), two = net_step_memory(), many = net_step_memory();
    CHECK_OK(gt_step_plan(n.step, in, 2, 0, &m));
    CHECK(m.peak > (uint64_t)rows * (NET_IN + 3 * NET_HIDDEN) * 4);
    CHECK(strcmp(m.phase, "forward") == 0 || strcmp(m.phase, "backward") == 0);
    CHECK_OK(gt_step_plan(n.step, in, 2, 2, &two));
    CHECK_OK(gt_step_plan(n.step, in, 2, 16, &many));
    CHECK(two.peak < m.peak && many.peak < two.peak);
    near(two.micro_batch, m.micro_batch / 2, 0.1);
    near(many.micro_batch, m.micro_batch / 16, 0.1);
    net_end(&n);
}

TEST(unit, step_largest_batch_fits_and_one_more_row_does_not) {
    net_step n = net_begin(net_context(t), false, 1);
    const gt_step_input some[2] = {matrix(10, NET_IN), labels(10)};
    for (int k = 1; k <= 3; k += 2) {
        int64_t rows = 0;
        gt_step_memory best = net_step_memory(), m = net_step_memory();
        const uint64_t budget = 3000000;
        CHECK_OK(gt_step_largest_batch(n.step, some, 2, k, budget, &rows, &best));
        CHECK(rows > 1000 && rows % k == 0 && best.peak <= budget && best.micro_batches == k);
        const gt_step_input fits[2] = {matrix(rows, NET_IN), labels(rows)}, more[2] = {matrix(rows + k, NET_IN), labels(rows + k)};
        CHECK_OK(gt_step_plan(n.step, fits, 2, k, &m));
        CHECK_EQ_INT(m.peak, best.peak);
        CHECK_OK(gt_step_plan(n.step, more, 2, k, &m));
        CHECK(m.peak > budget);
    }
    int64_t all;
    CHECK_OK(gt_context_set_memory_limit(n.ctx, 3000000));
    CHECK_OK(gt_step_largest_batch(n.step, some, 2, 1, 0, &all, NULL));
    CHECK(all > 1000);
    CHECK_OK(gt_context_set_memory_limit(n.ctx, 0));
    int64_t unlimited;
    CHECK_OK(gt_step_largest_batch(n.step, some, 2, 1, 0, &unlimited, NULL));
    CHECK(unlimited > 100 * all);
    net_end(&n);
}

TEST(unit, step_largest_batch_says_what_is_in_the_way_of_one_row) {
    net_step n = net_begin(net_context(t), false, 2);
    const gt_step_input in[2] = {matrix(10, NET_IN), labels(10)};
    int64_t rows = -1;
    CHECK_STATUS(gt_step_largest_batch(n.step, in, 2, 0, 4096, &rows, NULL), GT_OUT_OF_MEMORY);
    CHECK_ERROR_HAS("2 rows in each of 2 micro-batches, the fewest that can be, take "); /* batch norm needs two */
    CHECK_ERROR_HAS("the budget is 4.0 KiB");
    CHECK_EQ_INT(rows, -1);
    net_end(&n);
}

TEST(unit, step_plan_refuses_what_cannot_be) {
    net_step n = net_begin(net_context(t), false, 1);
    gt_step_memory m = net_step_memory();
    int64_t rows;
    gt_step_input in[2] = {matrix(8, NET_IN), labels(8)};
    CHECK_STATUS(gt_step_get_memory(n.step, &m), GT_BAD_STATE);
    gt_clear_error(); /* a NULL handle would pass on the error that is there */
    CHECK_STATUS(gt_step_plan(NULL, in, 2, 0, &m), GT_BAD_ARGUMENT);
    gt_clear_error();
    CHECK_STATUS(gt_step_plan(n.step, in, 2, 0, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_step_plan(n.step, NULL, 2, 0, &m), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_step_plan(n.step, in, 0, 0, &m), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_step_plan(n.step, in, 2, -1, &m), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_step_plan(n.step, in, 2, 9, &m), GT_BAD_SHAPE);
    m.struct_size = 1;
    CHECK_STATUS(gt_step_plan(n.step, in, 2, 0, &m), GT_BAD_ABI);
    m = net_step_memory();
    in[0].channels_last = 1;
    CHECK_STATUS(gt_step_plan(n.step, in, 2, 0, &m), GT_BAD_SHAPE);
    in[0] = matrix(8, NET_IN + 1); /* not what the network takes: its own error */
    CHECK_STATUS(gt_step_plan(n.step, in, 2, 0, &m), GT_BAD_SHAPE);
    CHECK_ERROR_HAS("linear");
    in[0].ndim = 0;
    CHECK_STATUS(gt_step_largest_batch(n.step, in, 2, 0, 1 << 20, &rows, NULL), GT_BAD_SHAPE);
    in[0] = matrix(8, NET_IN);
    CHECK_OK(gt_step_plan(n.step, in, 2, 0, &m)); /* and goes on */
    CHECK_OK(net_run(&n, 8, 0));
    CHECK_OK(gt_step_get_memory(n.step, &m));
    net_end(&n);
}

/* Budgets by times and scratch memory that runs have shown: made up here, so that no clock decides. */
#include "fake_graphs.h"
#include "step/budget.h"

enum { WIDTH = 48, LAYERS = 6, MANY = 512 };

/* Each activation is made by an op that takes as long as the others for all that the model knows. */
static gt_module *deep(gt_context *ctx) {
    gt_module *layers[4 * LAYERS + 1];
    int32_t n = 0;
    for (int i = 0; i < LAYERS; ++i) {
        layers[n++] = gt_nn_linear(ctx, i ? WIDTH : NET_IN, WIDTH, NULL);
        layers[n++] = gt_nn_gelu(ctx, 0);
        layers[n++] = gt_nn_linear(ctx, WIDTH, WIDTH, NULL);
        layers[n++] = gt_nn_silu(ctx);
    }
    layers[n++] = gt_nn_linear(ctx, WIDTH, NET_CLASSES, NULL);
    return gt_nn_sequential_from(ctx, layers, n);
}

static net_step begin(test_case *t, bool graphs, uint64_t budget, int32_t micro_batches) {
    net_step n = {.ctx = net_context(t)};
    if (graphs) fake_graphs_begin(n.ctx);
    n.net = deep(n.ctx);
    CHECK(n.net != NULL);
    n.optimizer = net_adam(n.net);
    gt_step_options o = net_options(&n);
    o.memory_budget = budget;
    o.micro_batches = micro_batches;
    CHECK_OK(gt_step_create(n.ctx, &o, &n.step));
    fake.step = n.step;
    return n;
}

static gt_status run(net_step *n, int rows, int number) {
    static float x[MANY * NET_IN];
    int64_t y[MANY];
    gt_tensor *inputs[2];
    for (int i = 0; i < rows * NET_IN; ++i) x[i] = (float)((i * 7 + number * 13 + i / 5) % 23 - 11) / 7;
    for (int i = 0; i < rows; ++i) y[i] = (i * 3 + number) % NET_CLASSES;
    CHECK_OK(gt_scope_begin(n->ctx));
    inputs[0] =
        CHECK_TENSOR(gt_tensor_from_data(n->ctx, GT_DTYPE_F32, 2, (const int64_t[]){rows, NET_IN}, x, (size_t)rows * NET_IN * sizeof *x));
    inputs[1] = CHECK_TENSOR(gt_tensor_from_data(n->ctx, GT_DTYPE_I64, 1, (const int64_t[]){rows}, y, (size_t)rows * sizeof *y));
    gt_status status = gt_step_run(n->step, inputs, 2);
    CHECK_OK(gt_scope_end(n->ctx));
    return status;
}

static double loss_of(const net_step *n) {
    double loss;
    CHECK_OK(gt_tensor_item(gt_step_loss(n->step), &loss));
    return loss;
}

typedef struct sizes {
    uint64_t least, whole;
} sizes;

/* Of budgets, without scratch memory and branches of a graph. */
static sizes sizes_of(test_case *t, int rows) {
    sizes s;
    net_step n = begin(t, false, 1, 1);
    CHECK_STATUS(run(&n, rows, 0), GT_OUT_OF_MEMORY);
    gt_clear_error();
    s.least = n.step->budget_least;
    n.step->options.memory_budget = UINT64_MAX;
    CHECK_OK(run(&n, rows, 0));
    s.whole = n.step->last->fixed + n.step->last->arena_bytes;
    CHECK(n.step->last->kept_all);
    net_end(&n);
    return s;
}

/* How often an op of forward is done again. */
static int32_t again(const gt__plan *plan, gt__op_id op) {
    int32_t n = 0;
    for (int32_t i = 0; i < plan->program.count; ++i) {
        const gt__instruction *k = &plan->program.list[i];
        n += k->kind == GT__DO_CALL && k->phase == GT__PHASE_BACKWARD && k->call->call.op == op;
    }
    return n;
}

/* What an op is made to take. */
static double made_up(gt__op_id op, gt__op_id slow) { return op == slow ? 5e-3 : op == GT__OP_LINEAR ? 1e-3 : 1e-5; }

static void set_times(gt__op_id slow) {
    for (int32_t op = 0; op < GT__OP_COUNT; ++op) fake.seconds[op] = made_up(op, slow);
}

/* ---- times ---------------------------------------------------------------------------------------------------------------------------------- */

/* On a device with graphs: two runs as the model has it, the third as the times want it, and nothing changes any more. */
TEST(unit, step_budget_plans_again_by_measured_times) {
    enum { RUNS = 8 };
    const gt__op_id slow[2] = {GT__OP_GELU, GT__OP_SILU}, other[2] = {GT__OP_SILU, GT__OP_GELU};
    const sizes s = sizes_of(t, NET_ROWS);
    double losses[RUNS];
    net_step plain = begin(t, false, 0, 1);
    for (int i = 0; i < RUNS; ++i) {
        CHECK_OK(run(&plain, NET_ROWS, i));
        losses[i] = loss_of(&plain);
    }
    for (int k = 0; k < 2; ++k) {
        net_step n = begin(t, true, s.whole - (s.whole - s.least) / 3, 1);
        set_times(slow[k]);
        double modelled = 0, by_times = 0;
        int32_t count = 0;
        gt_tensor *loss = NULL;
        for (int i = 0; i < RUNS; ++i) {
            CHECK_OK(run(&n, NET_ROWS, i));
            CHECK(loss_of(&n) == losses[i]);
            const gt__plan *plan = n.step->last;
            CHECK(plan->fixed + plan->arena_bytes <= n.step->options.memory_budget);
            if (i == 0) {
                CHECK(again(plan, GT__OP_GELU) > 0 || again(plan, GT__OP_SILU) > 0);
                for (int32_t j = 0; j < plan->program.count; ++j)
                    if (plan->program.list[j].kind == GT__DO_CALL) modelled += made_up(plan->program.list[j].call->call.op, slow[k]);
                CHECK(plan->modelled);
                loss = gt_step_loss(n.step);
            }
            if (i == 2) {
                CHECK_EQ_INT(again(plan, slow[k]), 0);
                CHECK(again(plan, other[k]) > 0);
                CHECK(!plan->modelled);
                by_times = plan->seconds;
                count = fake.timed;
            }
        }
        CHECK(by_times < modelled);
        CHECK(gt_step_loss(n.step) == loss); /* results stay where they were */
        CHECK(n.step->last->seconds == by_times && fake.captures == 1 && fake.launches > 0);
        CHECK_EQ_INT(n.step->n_plans, 1);
        CHECK(fake.timed >= count);
        net_same(plain.net, n.net);
        char text[6000];
        CHECK_OK(gt_step_budget_text(n.step, text, sizeof text, NULL));
        CHECK(strstr(text, "\ntimes: ") && strstr(text, " ms, ") && !strstr(text, "(modelled)"));
        net_end(&n);
    }
    net_end(&plain);
}

/* By the same times, whatever the model has chosen first. */
TEST(unit, step_budget_that_is_larger_is_not_slower_by_measured_times) {
    enum { STEPS = 8, RUNS = 5 };
    const sizes s = sizes_of(t, NET_ROWS);
    double before = 0, slowest = 0;
    for (int k = 0; k <= STEPS; ++k) {
        net_step n = begin(t, true, s.least + (s.whole - s.least) * (uint64_t)k / STEPS + (k == STEPS ? s.whole : 0), 1);
        set_times(GT__OP_SILU);
        for (int i = 0; i < RUNS; ++i) CHECK_OK(run(&n, NET_ROWS, i));
        const gt__plan *plan = n.step->last;
        CHECK(k == 0 || plan->seconds <= before + 1e-12);
        CHECK((plan->seconds > plan->whole_seconds) == (k < STEPS));
        if (k == 0) slowest = plan->seconds;
        CHECK(k < STEPS / 2 || plan->seconds < slowest);
        before = plan->seconds;
        net_end(&n);
    }
}

/* The CPU, which makes no graphs, plans again before its third run. */
TEST(unit, step_budget_plans_again_on_the_cpu) {
    const sizes s = sizes_of(t, NET_ROWS);
    for (int k = 0; k < 2; ++k) {
        const gt__op_id slow = k ? GT__OP_SILU : GT__OP_GELU, other = k ? GT__OP_GELU : GT__OP_SILU;
        net_step n = begin(t, false, s.whole - (s.whole - s.least) / 3, 1), plain = begin(t, false, 0, 1);
        for (int i = 0; i < 5; ++i) {
            if (i == 2) { /* other times than the clock's */
                gt__program *p = &n.step->last->program;
                CHECK(n.step->times.round == 1);
                for (int32_t j = 0; j < n.step->times.capacity; ++j) n.step->times.slots[j].seconds = -1;
                for (int32_t j = 0; j < p->count; ++j)
                    gt__times_note(&n.step->times, &p->list[j],
                                   p->list[j].kind == GT__DO_CALL ? made_up(p->list[j].call->call.op, slow) : 1e-5);
            }
            CHECK_OK(run(&n, NET_ROWS, i));
            CHECK_OK(run(&plain, NET_ROWS, i));
            CHECK(loss_of(&n) == loss_of(&plain));
            CHECK(n.step->last->fixed + n.step->last->arena_bytes <= n.step->options.memory_budget);
        }
        CHECK_EQ_INT(again(n.step->last, slow), 0);
        CHECK(again(n.step->last, other) > 0);
        net_same(plain.net, n.net);
        net_end(&plain);
        net_end(&n);
    }
}

/* What one number of micro-batches has shown tells what another will take, by the ratio to the model. */
TEST(unit, step_times_of_other_shapes_follow_the_op) {
    net_step n = begin(t, true, UINT64_MAX, 1);
    gt__time_model m;
    set_times(GT__OP_GELU);
    for (int i = 0; i < 2; ++i) CHECK_OK(run(&n, NET_ROWS, i));
    gt__time_model_make(n.ctx, &n.step->times, &m);
    gt__program *p = &n.step->last->program;
    int32_t seen = 0, timed;
    for (int32_t i = 0; i < p->count; ++i) {
        bool measured;
        if (p->list[i].kind != GT__DO_CALL || p->list[i].call->call.op != GT__OP_GELU) continue;
        CHECK_NEAR(gt__time_of(&m, &p->list[i], &measured), 5e-3, 1e-9);
        CHECK(measured);
        gt__instruction half;
        CHECK_OK(gt__instruction_copy(&p->list[i], &half));
        gt__call *call = &half.call->call;
        call->in[0]->meta.shape[0] /= 2;
        call->in[0]->meta.numel /= 2;
        call->out[0]->meta = call->in[0]->meta;
        double seconds = gt__time_of(&m, &half, &measured);
        CHECK(!measured && seconds > 2e-3 && seconds < 5e-3);
        gt__instruction_free(&half);
        seen++;
    }
    CHECK_EQ_INT(seen, LAYERS);
    gt__times_begin(&n.step->times); /* a later run changes nothing of what was seen */
    for (int32_t i = 0; i < p->count; ++i) {
        double before = gt__times_find(&n.step->times, &p->list[i])->seconds;
        gt__times_note(&n.step->times, &p->list[i], before / 2);
        CHECK(gt__times_find(&n.step->times, &p->list[i])->seconds == before);
    }
    timed = fake.timed;
    for (int i = 0; i < 3; ++i) CHECK_OK(run(&n, NET_ROWS, i));
    CHECK_EQ_INT(fake.timed, timed); /* once */
    net_end(&n);
}

/* Shapes without end take no memory without end. */
TEST(unit, step_times_are_bounded) {
    gt__times times = {0};
    gt__program p = {0};
    gt__instruction *n = gt__program_add(&p, GT__DO_ZERO, 0);
    n->zero.data = (void *)(uintptr_t)GT__TRACE_BEGIN;
    int32_t most = 0;
    for (size_t bytes = 1; bytes < 3 * GT__TIMES_MOST; ++bytes) {
        n->zero.bytes = bytes;
        CHECK_OK(gt__times_reserve(&times, 1));
        gt__times_note(&times, n, 1e-3);
        CHECK(gt__is_timed(gt__times_find(&times, n)));
        most = most > times.capacity ? most : times.capacity;
    }
    CHECK(most <= 4 * GT__TIMES_MOST && times.count <= GT__TIMES_MOST + 1);
    gt__times_free(&times);
    gt__program_free(&p);
}

/* ---- micro-batches ----------------------------------------------------------------------------------------------------------------------------- */

/* Measured, doing again turns out to cost less than the calls of another micro-batch: there is one less from the third run on, and it stays so. */
TEST(unit, step_budget_chooses_micro_batches_again) {
    const sizes s = sizes_of(t, MANY);
    net_step n = begin(t, true, s.least + (s.whole - s.least) / 8, 0);
    int32_t chosen[8];
    for (int32_t op = 0; op < GT__OP_COUNT; ++op)
        fake.seconds[op] = op == GT__OP_LINEAR || op == GT__OP_GELU || op == GT__OP_SILU ? 1e-9 : 1e-3;
    for (int i = 0; i < 8; ++i) {
        CHECK_OK(run(&n, MANY, i));
        chosen[i] = n.step->last->micro_batches;
        CHECK_EQ_INT(n.step->n_plans, 1);
        CHECK(n.step->last->fixed + n.step->last->arena_bytes <= n.step->options.memory_budget);
    }
    CHECK(chosen[0] == 2 && chosen[1] == 2 && chosen[2] == 1);
    for (int i = 3; i < 8; ++i) CHECK_EQ_INT(chosen[i], chosen[2]);
    gt_window_state state;
    CHECK_OK(gt_window_state_init(&state, sizeof state));
    CHECK_OK(gt_step_get_state(n.step, &state));
    CHECK_EQ_INT(state.updates, 8);
    char text[6000];
    CHECK_OK(gt_step_budget_text(n.step, text, sizeof text, NULL));
    CHECK(strstr(text, "\nmicro-batches: 1\n") && strstr(text, "\nrecompute "));
    net_end(&n);
}

/* ---- scratch memory -------------------------------------------------------------------------------------------------------------------------- */

/* Scratch memory that is known by the third run is planned with: a plan that would be too large with it makes room for a smaller one. */
TEST(unit, step_budget_makes_room_for_scratch_memory) {
    enum { RUNS = 7, SCRATCH = 40000 };
    const sizes s = sizes_of(t, NET_ROWS);
    net_step n = begin(t, true, s.whole, 1), plain = begin(t, false, 0, 1);
    fake.step = n.step;
    for (int32_t op = 0; op < GT__OP_COUNT; ++op) fake.scratch[op] = SCRATCH;
    for (int i = 0; i < RUNS; ++i) {
        CHECK_OK(run(&n, NET_ROWS, i));
        CHECK_OK(run(&plain, NET_ROWS, i));
        CHECK(loss_of(&n) == loss_of(&plain));
        const gt__plan *plan = n.step->last;
        CHECK(plan->kept_all == (i < 2));
        CHECK(plan->fixed + plan->arena_bytes <= s.whole);
    }
    CHECK(fake.captures == 1 && fake.launches > 0 && n.step->last->measured == 2);
    net_same(plain.net, n.net);
    net_end(&plain);
    net_end(&n);
}

/* Where there is no smaller plan the third run is refused; weights and all else are as the second left them, and a budget of what it asks for goes on from there. */
TEST(unit, step_budget_refuses_scratch_memory_without_loss) {
    enum { SCRATCH = 400000 };
    const sizes s = sizes_of(t, NET_ROWS);
    net_step n = begin(t, true, s.least, 1), plain = begin(t, false, 0, 1);
    fake.step = n.step;
    for (int32_t op = 0; op < GT__OP_COUNT; ++op) fake.scratch[op] = SCRATCH;
    for (int i = 0; i < 6; ++i) {
        CHECK_OK(run(&plain, NET_ROWS, i));
        if (i == 2) {
            gt_tensor *loss = gt_step_loss(n.step);
            for (int k = 0; k < 2; ++k) {
                CHECK_STATUS(run(&n, NET_ROWS, i), GT_OUT_OF_MEMORY);
                CHECK_ERROR_HAS("the smallest that would do");
                CHECK_ERROR_HAS("workspace");
                gt_clear_error();
            }
            CHECK(gt_step_loss(n.step) == loss && n.step->n_plans == 1);
            CHECK(n.step->budget_least > s.least && n.step->budget_least < s.least + 2 * SCRATCH);
            n.step->options.memory_budget = n.step->budget_least;
        }
        CHECK_OK(run(&n, NET_ROWS, i));
        CHECK(loss_of(&n) == loss_of(&plain));
        CHECK(i < 2 || n.step->last->fixed + n.step->last->arena_bytes <= n.step->options.memory_budget);
    }
    CHECK(n.step->last->measured == 2);
    net_same(plain.net, n.net);
    net_end(&plain);
    net_end(&n);
}

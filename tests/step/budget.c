/* Steps that keep to a memory budget: what fits, what it costs, and that the results are the same to the bit. */
#include "step/budget.h"
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { IMAGE = 16, IMAGES = 32 };

typedef gt_module *(*make_net)(gt_context *ctx);

/* One of several equal worlds. */
typedef struct world {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_scaler *scaler;
    gt_step *step;
    int images; /* in a batch; 0: it takes rows */
} world;

static gt_module *deep_mlp(gt_context *ctx) {
    gt_module *layers[24];
    int32_t n = 0;
    for (int i = 0; i < 6; ++i) {
        layers[n++] = gt_nn_linear(ctx, i ? 40 : NET_IN, 40, NULL);
        if (i % 2) layers[n++] = gt_nn_batch_norm(ctx, 40, NULL);
        layers[n++] = i % 3 ? gt_nn_relu(ctx) : gt_nn_gelu(ctx, 0);
        if (i == 2) layers[n++] = gt_nn_dropout(ctx, 0.25);
    }
    layers[n++] = gt_nn_linear(ctx, 40, NET_CLASSES, NULL);
    return gt_nn_sequential_from(ctx, layers, n);
}

/* Its first results have more than 1 MiB: what relu gives there is not kept for backward in any case. */
static gt_module *cnn(gt_context *ctx) {
    gt_module *const layers[] = {gt_nn_conv2d(ctx, 3, 48, 3, NULL),
                                 gt_nn_batch_norm(ctx, 48, NULL),
                                 gt_nn_relu(ctx),
                                 gt_nn_conv2d(ctx, 48, 48, 3, NULL),
                                 gt_nn_batch_norm(ctx, 48, NULL),
                                 gt_nn_relu(ctx),
                                 gt_nn_max_pool2d(ctx, 2, NULL),
                                 gt_nn_dropout(ctx, 0.3),
                                 gt_nn_conv2d(ctx, 48, 16, 3, NULL),
                                 gt_nn_gelu(ctx, 0),
                                 gt_nn_flatten(ctx, 1),
                                 gt_nn_linear(ctx, 16 * 16, NET_CLASSES, NULL)};
    return gt_nn_sequential_from(ctx, layers, 12);
}

static gt_module *small_resnet(gt_context *ctx) {
    gt_module *const layers[] = {gt_nn_conv2d(ctx, 3, 16, 3, NULL),        gt_nn_resnet_basic_block(ctx, 16, 16, 1),
                                 gt_nn_resnet_bottleneck(ctx, 16, 8, 1),   gt_nn_resnet_bottleneck(ctx, 32, 8, 1),
                                 gt_nn_resnet_basic_block(ctx, 32, 32, 2), gt_nn_resnet_basic_block(ctx, 32, 32, 1),
                                 gt_nn_adaptive_avg_pool2d(ctx, 1, 1),     gt_nn_flatten(ctx, 1),
                                 gt_nn_linear(ctx, 32, NET_CLASSES, NULL)};
    return gt_nn_sequential_from(ctx, layers, 9);
}

static gt_step_options options_of(world *w, uint64_t budget, int32_t micro_batches) {
    const net_step n = {.net = w->net, .optimizer = w->optimizer, .scaler = w->scaler};
    gt_step_options o = net_options(&n);
    o.optimizers = &w->optimizer;
    o.memory_budget = budget;
    o.micro_batches = micro_batches;
    return o;
}

static world world_begin(test_case *t, make_net make, bool half, uint64_t budget, int32_t micro_batches) {
    world w = {.ctx = net_context(t), .images = make == deep_mlp ? 0 : make == cnn && !half ? IMAGES : IMAGES / 8};
    w.net = make(w.ctx);
    CHECK(w.net != NULL);
    w.optimizer = net_adam(w.net);
    if (half) CHECK_OK(gt_scaler_create(w.ctx, NULL, &w.scaler));
    gt_step_options o = options_of(&w, budget, micro_batches);
    CHECK_OK(gt_step_create(w.ctx, &o, &w.step));
    return w;
}

static void world_end(world *w) {
    gt_step_destroy(w->step);
    gt_scaler_destroy(w->scaler);
    gt_optimizer_destroy(w->optimizer);
    gt_module_destroy(w->net);
}

static gt_status world_run(world *w, int number) {
    static float x[IMAGES * 3 * IMAGE * IMAGE];
    gt_tensor *inputs[2];
    CHECK_OK(gt_scope_begin(w->ctx));
    if (w->images) {
        const int64_t n = w->images;
        int64_t y[IMAGES];
        for (int i = 0; i < (int)(sizeof x / sizeof *x); ++i) x[i] = (float)((i * 7 + number * 13 + i / 11) % 29 - 14) / 9;
        for (int i = 0; i < n; ++i) y[i] = (i * 3 + number) % NET_CLASSES;
        inputs[0] = CHECK_TENSOR(gt_tensor_from_data(w->ctx, GT_DTYPE_F32, 4, (const int64_t[]){n, 3, IMAGE, IMAGE}, x,
                                                     (size_t)n * 3 * IMAGE * IMAGE * sizeof *x));
        inputs[1] = CHECK_TENSOR(gt_tensor_from_data(w->ctx, GT_DTYPE_I64, 1, (const int64_t[]){n}, y, (size_t)n * sizeof *y));
    } else {
        net_batch(w->ctx, NET_ROWS, number, inputs);
    }
    gt_status status = gt_step_run(w->step, inputs, 2);
    CHECK_OK(gt_scope_end(w->ctx));
    return status;
}

static double world_loss(world *w) {
    double loss;
    CHECK_OK(gt_tensor_item(gt_step_loss(w->step), &loss));
    return loss;
}

/* The smallest budget that would do, as the refusal of one byte says. */
static uint64_t least_budget(test_case *t, make_net make, bool half, int32_t micro_batches) {
    world w = world_begin(t, make, half, 1, micro_batches);
    char number[40];
    CHECK_STATUS(world_run(&w, 0), GT_OUT_OF_MEMORY);
    uint64_t least = w.step->budget_least;
    (void)snprintf(number, sizeof number, "(%llu bytes)", (unsigned long long)least);
    CHECK_ERROR_HAS(number);
    CHECK_ERROR_HAS("the smallest that would do");
    world_end(&w);
    return least;
}

/* ---- the same results ---------------------------------------------------------------------------------------------------------------------- */

static int32_t count_phase(const gt__program *p, gt__phase phase) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->count; ++i) n += p->list[i].phase == phase;
    return n;
}

static void same_under_budgets(test_case *t, make_net make, bool half, int32_t micro_batches) {
    enum { STEPS = 3, RUNS = 2 };
    world plain = world_begin(t, make, half, 0, micro_batches);
    double losses[RUNS];
    for (int i = 0; i < RUNS; ++i) {
        CHECK_OK(world_run(&plain, i));
        losses[i] = world_loss(&plain);
    }
    gt__plan *p = plain.step->last;
    uint64_t fixed, least = least_budget(t, make, half, micro_batches);
    CHECK_OK(gt__budget_fixed(&p->program, &fixed));
    uint64_t whole = fixed + p->arena_bytes;
    CHECK(least < whole && least > fixed);
    double before = 0;
    for (int s = 0; s <= STEPS; ++s) {
        uint64_t budget = least + (whole - least) * (uint64_t)s / STEPS;
        world w = world_begin(t, make, half, budget, micro_batches);
        for (int i = 0; i < RUNS; ++i) {
            CHECK_OK(world_run(&w, i));
            CHECK(world_loss(&w) == losses[i]);
        }
        net_same(plain.net, w.net);
        const gt__plan *q = w.step->last;
        uint64_t now;
        CHECK_OK(gt__budget_fixed(&((gt__plan *)(uintptr_t)q)->program, &now));
        CHECK_EQ_INT(now, fixed);
        CHECK(q->fixed + q->arena_bytes <= budget);
        CHECK(s == 0 || q->seconds <= before);
        before = q->seconds;
        bool all = s == STEPS;
        CHECK((q->seconds > q->whole_seconds) == !all);
        CHECK((count_phase(&q->program, GT__PHASE_BACKWARD) > count_phase(&p->program, GT__PHASE_BACKWARD)) == !all);
        world_end(&w);
    }
    /* One byte less than the least is refused, and leaves everything as it was. */
    world w = world_begin(t, make, half, least - 1, micro_batches);
    CHECK_STATUS(world_run(&w, 0), GT_OUT_OF_MEMORY);
    CHECK_EQ_INT(w.step->budget_least, least);
    world fresh = world_begin(t, make, half, 0, micro_batches);
    net_same(fresh.net, w.net);
    world_end(&fresh);
    world_end(&w);
    world_end(&plain);
}

TEST(unit, step_budget_gives_the_same_mlp) { same_under_budgets(t, deep_mlp, false, 1); }
TEST(unit, step_budget_gives_the_same_mlp_in_f16) { same_under_budgets(t, deep_mlp, true, 1); }
TEST(unit, step_budget_gives_the_same_mlp_with_micro_batches) { same_under_budgets(t, deep_mlp, false, 3); }
TEST(unit, step_budget_gives_the_same_cnn) { same_under_budgets(t, cnn, false, 1); }
TEST(unit, step_budget_gives_the_same_cnn_in_f16_with_micro_batches) { same_under_budgets(t, cnn, true, 2); }
TEST(unit, step_budget_gives_the_same_resnet) { same_under_budgets(t, small_resnet, false, 1); }
TEST(unit, step_budget_gives_the_same_resnet_with_micro_batches) { same_under_budgets(t, small_resnet, false, 2); }

/* Nothing is made again from what was written over in between: u would be worth it, but t is no more what it was made of. */
static gt_status loss_with_changes(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    (void)n;
    const int32_t last = 1;
    gt_tensor *x = gt_module_forward(user, inputs[0]), *sum = NULL;
    for (int i = 0; i < 6; ++i) {
        gt_tensor *t = gt_sum(gt_add_scalar(x, 0.125 * i), &last, 1, 1), *u = gt_add(t, inputs[0]);
        if (t == NULL || u == NULL) return gt_last_error()->status;
        gt_status status = gt_no_grad_begin(gt_tensor_context(x));
        if (status == GT_OK) status = gt_tensor_fill(t, 3);
        (void)gt_no_grad_end(gt_tensor_context(x));
        if (status != GT_OK) return status;
        gt_tensor *v = gt_add(gt_slice(gt_gelu(gt_gelu(u)), 1, 0, NET_CLASSES, 1), gt_gelu(t));
        sum = sum ? gt_add(sum, v) : v;
    }
    r->loss = gt_cross_entropy(sum, inputs[1], NULL);
    return r->loss ? GT_OK : gt_last_error()->status;
}

TEST(unit, step_budget_respects_changes_in_place) {
    uint64_t least = 0;
    float weights[2][NET_IN * NET_HIDDEN];
    for (int k = 0; k < 2; ++k) {
        net_step n = {.ctx = net_context(t)};
        n.net = net_mlp(n.ctx, NET_IN, NET_HIDDEN);
        n.optimizer = net_adam(n.net);
        gt_step_options o = net_options(&n);
        o.fn = loss_with_changes;
        o.memory_budget = k ? least : 0;
        CHECK_OK(gt_step_create(n.ctx, &o, &n.step));
        for (int i = 0; i < 3; ++i) CHECK_OK(net_run(&n, NET_ROWS, i));
        gt_tensor *weight;
        CHECK_OK(gt_module_find(n.net, "0.weight", &weight));
        CHECK_OK(gt_tensor_read(weight, weights[k], sizeof weights[k]));
        if (k == 0) { /* the least there can be */
            gt_step *refused;
            o.memory_budget = 1;
            CHECK_OK(gt_step_create(n.ctx, &o, &refused));
            gt_step *whole = n.step;
            n.step = refused;
            CHECK_STATUS(net_run(&n, NET_ROWS, 0), GT_OUT_OF_MEMORY);
            least = refused->budget_least;
            gt_step_destroy(refused);
            n.step = whole;
        } else {
            CHECK(n.step->last->seconds > n.step->last->whole_seconds);
        }
        net_end(&n);
    }
    CHECK(memcmp(weights[0], weights[1], sizeof weights[0]) == 0);
}

/* With the least budget, through the runs in which a GPU's graph is made. Scratch memory, which counts once it is known, may need a larger one: the refusal says which. */
static void same_on_device(test_case *t, make_net make, bool half) {
    enum { RUNS = 6 };
    world plain = world_begin(t, make, half, 0, 1), w = world_begin(t, make, half, 1, 1);
    for (int i = 0; i < RUNS; ++i) {
        CHECK_OK(world_run(&plain, i));
        gt_status status = world_run(&w, i);
        if (status == GT_OUT_OF_MEMORY && w.step->budget_least > w.step->options.memory_budget) {
            w.step->options.memory_budget = w.step->budget_least;
            gt_clear_error();
            status = world_run(&w, i);
        }
        CHECK_OK(status);
        CHECK(world_loss(&w) == world_loss(&plain));
        CHECK(w.step->last->seconds > w.step->last->whole_seconds);
        CHECK(w.step->last->fixed + w.step->last->arena_bytes <= w.step->options.memory_budget);
    }
    net_same(plain.net, w.net);
    world_end(&w);
    world_end(&plain);
}

TEST_DEVICES(unit, step_budget_trains_the_same_mlp) { same_on_device(t, deep_mlp, false); }
TEST_DEVICES(unit, step_budget_trains_the_same_mlp_in_f16) { same_on_device(t, deep_mlp, true); }
TEST_DEVICES(unit, step_budget_trains_the_same_cnn_in_f16) { same_on_device(t, cnn, true); }
TEST_DEVICES(unit, step_budget_trains_the_same_resnet) { same_on_device(t, small_resnet, false); }

/* ---- a large network, on shapes ------------------------------------------------------------------------------------------------------------ */

static double now(void) {
    struct timespec at;
    (void)timespec_get(&at, TIME_UTC);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

#ifdef __SANITIZE_ADDRESS__
static const double patience = 60; /* seconds */
#else
static const double patience = 2;
#endif

static gt_module *resnet50(gt_context *ctx) { return gt_nn_resnet50(ctx, 1000); }

TEST(unit, step_budget_of_resnet50_holds_from_the_least_to_the_whole) {
    enum { ROWS = 64, STEPS = 12 };
    world w = world_begin(t, resnet50, true, 0, 1);
    gt__meta metas[2];
    CHECK_OK(gt__meta_make(&metas[0], GT_DTYPE_F32, 4, (const int64_t[]){ROWS, 3, 224, 224}, "test"));
    CHECK_OK(gt__meta_make(&metas[1], GT_DTYPE_I64, 1, (const int64_t[]){ROWS}, "test"));
    gt__plan *plan;
    double began = now();
    CHECK_OK(gt__step_trace_aside(w.step, metas, 2, 1, &plan));
    double traced = now() - began;
    uint64_t fixed;
    CHECK_OK(gt__budget_fixed(&plan->program, &fixed));
    uint64_t whole = fixed + plan->arena_bytes;
    gt__plan_destroy(w.step, plan);
    w.step->options.memory_budget = 1;
    began = now();
    CHECK_STATUS(gt__step_trace_aside(w.step, metas, 2, 1, &plan), GT_OUT_OF_MEMORY);
    double took = now() - began;
    if (took > patience) FAIL("planning took %.2f s, tracing alone %.2f s", took, traced);
    uint64_t least = w.step->budget_least;
    CHECK(least > fixed && (least - fixed) * 2 < whole - fixed);
    double before = INFINITY;
    for (int s = 0; s <= STEPS; ++s) {
        w.step->options.memory_budget = least + (whole - least) / STEPS * (uint64_t)s + (s == STEPS ? STEPS : 0);
        began = now();
        CHECK_OK(gt__step_trace_aside(w.step, metas, 2, 1, &plan));
        took = now() - began;
        if (took > patience) FAIL("planning took %.2f s, tracing alone %.2f s", took, traced);
        CHECK(plan->fixed == fixed && fixed + plan->arena_bytes <= w.step->options.memory_budget);
        CHECK(plan->seconds <= before);
        CHECK((plan->seconds > plan->whole_seconds) == (s < STEPS));
        before = plan->seconds;
        gt__plan_destroy(w.step, plan);
    }
    world_end(&w);
}

/* ---- what is chosen and said ---------------------------------------------------------------------------------------------------------------- */

TEST(unit, step_budget_chooses_micro_batches_where_it_may) {
    uint64_t least = least_budget(t, deep_mlp, false, 1), with_any = least_budget(t, deep_mlp, false, 0);
    CHECK(with_any < least);
    world w = world_begin(t, deep_mlp, false, with_any, 0);
    for (int i = 0; i < 3; ++i) CHECK_OK(world_run(&w, i));
    CHECK(w.step->last->micro_batches > 1);
    CHECK(w.step->last->fixed + w.step->last->arena_bytes <= with_any);
    CHECK_EQ_INT(w.step->n_plans, 1);
    gt_window_state state;
    CHECK_OK(gt_window_state_init(&state, sizeof state));
    CHECK_OK(gt_step_get_state(w.step, &state));
    CHECK_EQ_INT(state.updates, 3);
    char text[2000];
    CHECK_OK(gt_step_budget_text(w.step, text, sizeof text, NULL));
    CHECK(strstr(text, ", chosen: with all kept the arena is ") != NULL);
    world_end(&w);
    /* With enough there is one. */
    world large = world_begin(t, deep_mlp, false, UINT64_C(1) << 30, 0);
    CHECK_OK(world_run(&large, 0));
    CHECK_EQ_INT(large.step->last->micro_batches, 1);
    world_end(&large);
}

TEST(unit, step_budget_says_what_was_chosen) {
    uint64_t least = least_budget(t, small_resnet, false, 1);
    world w = world_begin(t, small_resnet, false, least, 1);
    char text[4000], part[20];
    size_t needed = 0;
    CHECK_STATUS(gt_step_budget_text(w.step, text, sizeof text, NULL), GT_BAD_STATE);
    CHECK_OK(world_run(&w, 0));
    CHECK_OK(gt_step_budget_text(w.step, text, sizeof text, &needed));
    CHECK_EQ_INT(needed, strlen(text) + 1);
    CHECK(strstr(text, "memory budget ") == text && strstr(text, "\nmicro-batches: 1\n") && strstr(text, "\nrecompute "));
    CHECK(strstr(text, "\n  1: ") && strstr(text, " more time\n"));
    CHECK_OK(gt_step_budget_text(w.step, part, sizeof part, &needed));
    CHECK(strlen(part) == sizeof part - 1 && strncmp(part, text, sizeof part - 1) == 0);
    CHECK_STATUS(gt_step_budget_text(w.step, NULL, 5, NULL), GT_BAD_ARGUMENT);
    world_end(&w);
    world none = world_begin(t, small_resnet, false, 0, 1);
    CHECK_STATUS(gt_step_budget_text(none.step, text, sizeof text, NULL), GT_BAD_STATE);
    gt_step_options o = options_of(&none, 0, 0);
    gt_step *step;
    CHECK_STATUS(gt_step_create(none.ctx, &o, &step), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("memory_budget");
    o.micro_batches = 1;
    o.offload = -1;
    CHECK_STATUS(gt_step_create(none.ctx, &o, &step), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("offload is -1");
    world_end(&none);
}

/* The largest batch is then one that the budget can be kept with; more than with all kept. */
TEST(unit, step_largest_batch_keeps_to_the_budget) {
    const uint64_t budget = 2000000;
    int64_t rows[2];
    for (int k = 0; k < 2; ++k) {
        world w = world_begin(t, deep_mlp, false, k ? budget : 0, 1);
        gt_step_input in[2] = {{.shape = {16, NET_IN}, .ndim = 2, .dtype = GT_DTYPE_F32},
                               {.shape = {16}, .ndim = 1, .dtype = GT_DTYPE_I64}};
        gt_step_memory m = net_step_memory();
        CHECK_OK(gt_step_largest_batch(w.step, in, 2, 1, k ? 0 : budget, &rows[k], &m));
        in[0].shape[0] = in[1].shape[0] = rows[k];
        CHECK_OK(gt_step_plan(w.step, in, 2, 1, &m));
        in[0].shape[0] = in[1].shape[0] = rows[k] + 1;
        if (k) CHECK_STATUS(gt_step_plan(w.step, in, 2, 1, &m), GT_OUT_OF_MEMORY);
        w.step->options.memory_budget = 1000;
        if (k) CHECK_STATUS(gt_step_largest_batch(w.step, in, 2, 1, 0, &rows[0], NULL), GT_OUT_OF_MEMORY);
        if (k) CHECK_ERROR_HAS("the memory budget is 1000 bytes");
        world_end(&w);
    }
    CHECK(rows[1] > rows[0] * 5 / 4);
}

/* The prediction keeps to the budget too, and is what the run takes. */
TEST(unit, step_plan_keeps_to_the_budget) {
    uint64_t least = least_budget(t, small_resnet, false, 1);
    world w = world_begin(t, small_resnet, false, least, 1);
    const gt_step_input in[2] = {{.shape = {w.images, 3, IMAGE, IMAGE}, .ndim = 4, .dtype = GT_DTYPE_F32},
                                 {.shape = {w.images}, .ndim = 1, .dtype = GT_DTYPE_I64}};
    gt_step_memory m = net_step_memory();
    CHECK_OK(gt_step_plan(w.step, in, 2, 0, &m));
    CHECK_OK(world_run(&w, 0));
    CHECK_EQ_INT(m.arena, w.step->last->arena_bytes);
    CHECK(w.step->last->fixed + m.arena <= least);
    world_end(&w);
}

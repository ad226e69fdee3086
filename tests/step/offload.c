/* Buffers of a compiled step that wait in host memory: who may, when, that nothing else meets them, and that the results are the same to the bit. */
#include "fake_graphs.h"
#include "hand_made.h"
#include "step/budget.h"
#include "step/transfers.h"

/* ---- programs made by hand ------------------------------------------------------------------------------------------------------------------- */

enum { N = 4096, LONG = 10 };

/* x + f(... f(a) ...): x waits for the whole chain, in whose middle the most is in use. */
static gt__program chain(gt_context *ctx, float *result, int length) {
    gt__program p = {0};
    operand a = buffer(&p, N), x = buffer(&p, N), out = outside(result, N);
    p.buffers[number(&p, &a)].input = true;
    unary(&p, ctx, GT__OP_EXP, &x, &a);
    for (int i = 0; i < length; ++i) {
        operand b = buffer(&p, N);
        unary(&p, ctx, GT__OP_TANH, &b, &a);
        if (i == length / 2) {
            operand c = buffer(&p, N), d = buffer(&p, N);
            unary(&p, ctx, GT__OP_EXP, &c, &a);
            binary(&p, ctx, GT__OP_MUL, &d, &b, &c);
            b = d;
        }
        a = b;
    }
    binary(&p, ctx, GT__OP_ADD, &out, &a, &x);
    return p;
}

static double *all_take(const gt__program *p, double seconds) {
    double *list = calloc((size_t)p->count + 1, sizeof *list);
    for (int32_t i = 0; i < p->count; ++i) list[i] = seconds;
    return list;
}

static int32_t place_of(const gt__program *p, gt__instruction_kind kind, bool back) {
    for (int32_t i = 0; i < p->count; ++i)
        if (p->list[i].kind == kind && p->list[i].transfer.back == back) return i;
    return -1;
}

/* Copies that there is time for are waited for by nobody: they are awaited when they are over, and begin when they must. */
TEST(unit, step_transfers_take_place_beside_instructions) {
    float result[N];
    gt_context *ctx = net_context(t);
    gt__program p = chain(ctx, result, LONG);
    double *seconds = all_take(&p, 1);
    const gt__link link = {1.5 / (N * sizeof(float)), 2.5 / (N * sizeof(float)), 0, true};
    gt__transfers found;
    size_t host, *before, *after;
    size_t whole = arena_of(&p, &before);
    CHECK_OK(gt__transfers_find(&p, seconds, &link, &found));
    CHECK(found.n_steps > 0);
    CHECK_EQ_INT(found.list[0].buffer, 1);
    CHECK(found.steps[0].seconds == 0);
    CHECK_OK(gt__transfers_apply(&p, seconds, &link, &found, 1, &host));
    CHECK_EQ_INT(host, N * sizeof(float));
    /* Made by 0; out from 1 to 2.5, so awaited before what was instruction 3; needed by what was 13, so back from 10.5: begins before what was 10. */
    CHECK_EQ_INT(place_of(&p, GT__DO_LEAVE, false), 1);
    CHECK_EQ_INT(place_of(&p, GT__DO_AWAIT, false), 4);
    CHECK_EQ_INT(place_of(&p, GT__DO_FETCH, true), 12);
    CHECK_EQ_INT(place_of(&p, GT__DO_AWAIT, true), 16);
    CHECK(arena_of(&p, &after) < whole);
    free(before);
    free(after);
    free(seconds);
    gt__transfers_free(&found);
    gt__program_free(&p);
}

/* Where there is no time they are waited for, and it is known how long. */
TEST(unit, step_transfers_know_what_is_waited_for) {
    float result[N];
    gt_context *ctx = net_context(t);
    gt__program p = chain(ctx, result, 2);
    double *seconds = all_take(&p, 1);
    const gt__link link = {5. / (N * sizeof(float)), 2.5 / (N * sizeof(float)), 0.25, true};
    gt__transfers found;
    CHECK_OK(gt__transfers_find(&p, seconds, &link, &found));
    CHECK(found.n_steps > 0);
    /* Out for 5.25 at once, back for 2.75 as late as can be. */
    CHECK(found.steps[0].item < 0 && found.list[0].urgent);
    CHECK_NEAR(found.steps[0].seconds, 5.25 + 2.75, 1e-12);
    free(seconds);
    gt__transfers_free(&found);
    gt__program_free(&p);
}

/* On the CPU there is nothing beside: all of it is waited for, so nothing is gained by awaiting it late. */
TEST(unit, step_transfers_without_a_stream_hide_nothing) {
    float result[N];
    gt_context *ctx = net_context(t);
    gt__program p = chain(ctx, result, LONG);
    double *seconds = all_take(&p, 1);
    const gt__link link = {1.5 / (N * sizeof(float)), 2.5 / (N * sizeof(float)), 0, false};
    gt__transfers found;
    size_t host;
    CHECK_OK(gt__transfers_find(&p, seconds, &link, &found));
    CHECK(found.n_steps > 0);
    CHECK_NEAR(found.steps[0].seconds, 4, 1e-12);
    CHECK_OK(gt__transfers_apply(&p, seconds, &link, &found, 1, &host));
    CHECK_EQ_INT(place_of(&p, GT__DO_AWAIT, false), place_of(&p, GT__DO_LEAVE, false) + 1);
    CHECK_EQ_INT(place_of(&p, GT__DO_AWAIT, true), place_of(&p, GT__DO_FETCH, true) + 1);
    free(seconds);
    gt__transfers_free(&found);
    gt__program_free(&p);
}

/* ---- networks ---------------------------------------------------------------------------------------------------------------------------------- */

enum { SIDE = 12, PICTURES = 12, WIDTH = 64 };

typedef gt_module *(*make_net)(gt_context *ctx);

static gt_module *mlp(gt_context *ctx) {
    gt_module *layers[24];
    int32_t n = 0;
    for (int i = 0; i < 6; ++i) {
        layers[n++] = gt_nn_linear(ctx, i ? WIDTH : NET_IN, WIDTH, NULL);
        if (i % 2) layers[n++] = gt_nn_batch_norm(ctx, WIDTH, NULL);
        layers[n++] = i % 3 ? gt_nn_relu(ctx) : gt_nn_gelu(ctx, 0);
        if (i == 2) layers[n++] = gt_nn_dropout(ctx, 0.25);
    }
    layers[n++] = gt_nn_linear(ctx, WIDTH, NET_CLASSES, NULL);
    return gt_nn_sequential_from(ctx, layers, n);
}

static gt_module *cnn(gt_context *ctx) {
    gt_module *const layers[] = {gt_nn_conv2d(ctx, 3, 16, 3, NULL),
                                 gt_nn_batch_norm(ctx, 16, NULL),
                                 gt_nn_relu(ctx),
                                 gt_nn_resnet_basic_block(ctx, 16, 16, 1),
                                 gt_nn_dropout(ctx, 0.3),
                                 gt_nn_conv2d(ctx, 16, 16, 3, NULL),
                                 gt_nn_gelu(ctx, 0),
                                 gt_nn_max_pool2d(ctx, 2, NULL),
                                 gt_nn_adaptive_avg_pool2d(ctx, 1, 1),
                                 gt_nn_flatten(ctx, 1),
                                 gt_nn_linear(ctx, 16, NET_CLASSES, NULL)};
    return gt_nn_sequential_from(ctx, layers, 11);
}

static net_step begin(test_case *t, make_net make, bool graphs, uint64_t budget, int32_t micro_batches, int32_t offload) {
    net_step n = {.ctx = net_context(t)};
    if (graphs) fake_graphs_begin(n.ctx);
    n.net = make(n.ctx);
    CHECK(n.net != NULL);
    n.optimizer = net_adam(n.net);
    gt_step_options o = net_options(&n);
    o.memory_budget = budget;
    o.micro_batches = micro_batches;
    o.offload = offload;
    CHECK_OK(gt_step_create(n.ctx, &o, &n.step));
    fake.step = n.step;
    return n;
}

static gt_status run(net_step *n, make_net make, int number_of_run) {
    static float x[PICTURES * 3 * SIDE * SIDE];
    int64_t y[PICTURES];
    gt_tensor *inputs[2];
    if (make == mlp) return net_run(n, NET_ROWS, number_of_run);
    const int64_t shape[4] = {PICTURES, 3, SIDE, SIDE}, rows = PICTURES;
    for (int i = 0; i < (int)(sizeof x / sizeof *x); ++i) x[i] = (float)((i * 7 + number_of_run * 13 + i / 11) % 29 - 14) / 9;
    for (int i = 0; i < PICTURES; ++i) y[i] = (i * 3 + number_of_run) % NET_CLASSES;
    CHECK_OK(gt_scope_begin(n->ctx));
    inputs[0] = CHECK_TENSOR(gt_tensor_from_data(n->ctx, GT_DTYPE_F32, 4, shape, x, sizeof x));
    inputs[1] = CHECK_TENSOR(gt_tensor_from_data(n->ctx, GT_DTYPE_I64, 1, &rows, y, sizeof y));
    gt_status status = gt_step_run(n->step, inputs, 2);
    CHECK_OK(gt_scope_end(n->ctx));
    return status;
}

static double loss_of(const net_step *n) {
    double loss;
    CHECK_OK(gt_tensor_item(gt_step_loss(n->step), &loss));
    return loss;
}

static void set_link(net_step *n, double seconds) { n->step->times.link[0] = n->step->times.link[1] = seconds; }

/* Calls are made to take long, so that what costs least are copies. */
static void set_times(net_step *n) {
    gt__program *p = &n->step->last->program;
    for (int32_t k = 0; k < n->step->times.capacity; ++k) n->step->times.slots[k].seconds = -1;
    for (int32_t i = 0; i < p->count; ++i) gt__times_note(&n->step->times, &p->list[i], p->list[i].kind == GT__DO_CALL ? 1e-2 : 1e-9);
}

static int32_t count_kind(const gt__plan *plan, gt__instruction_kind kind) {
    int32_t n = 0;
    for (int32_t i = 0; i < plan->program.count; ++i) n += plan->program.list[i].kind == kind;
    return n;
}

typedef struct sizes {
    uint64_t least, whole;
} sizes;

static sizes sizes_of(test_case *t, make_net make, int32_t micro_batches, int32_t offload) {
    sizes s;
    net_step n = begin(t, make, false, 1, micro_batches, offload);
    set_link(&n, 1e-15);
    CHECK_STATUS(run(&n, make, 0), GT_OUT_OF_MEMORY);
    gt_clear_error();
    s.least = n.step->budget_least;
    n.step->options.memory_budget = UINT64_MAX;
    CHECK_OK(run(&n, make, 0));
    s.whole = n.step->last->fixed + n.step->last->arena_bytes;
    net_end(&n);
    return s;
}

/* From the memory's beginning to its end nobody else has any of it; memory is in use from its first touch to its last, and while a copy may be under way. */
static void check_places(const gt__plan *plan) {
    gt__program *p = (gt__program *)(uintptr_t)&plan->program;
    gt__program_lives(p);
    for (int32_t a = 0; a < p->n_buffers; ++a) {
        const gt__buffer *x = &p->buffers[a];
        for (int32_t b = 0; b < a && x->first >= 0; ++b) {
            const gt__buffer *y = &p->buffers[b];
            if (y->first < 0 || y->last < x->first || x->last < y->first) continue;
            CHECK(plan->offsets[a] + x->bytes <= plan->offsets[b] || plan->offsets[b] + y->bytes <= plan->offsets[a]);
        }
    }
    int32_t number_of, n = count_kind(plan, GT__DO_LEAVE);
    CHECK_EQ_INT(count_kind(plan, GT__DO_FETCH), n);
    CHECK_EQ_INT(count_kind(plan, GT__DO_AWAIT), 2 * n);
    for (int32_t i = 0; i < p->count; ++i) {
        const gt__instruction *leave = &p->list[i];
        if (leave->kind != GT__DO_LEAVE) continue;
        number_of = leave->transfer.number;
        int32_t left = -1, fetch = -1, back = -1;
        for (int32_t k = i; k < p->count; ++k) {
            const gt__instruction *other = &p->list[k];
            if (other->kind < GT__DO_LEAVE || other->kind > GT__DO_AWAIT || other->transfer.number != number_of) continue;
            if (other->kind == GT__DO_AWAIT) *(other->transfer.back ? &back : &left) = k;
            if (other->kind == GT__DO_FETCH) fetch = k;
        }
        CHECK(i < left && left < fetch && fetch < back);
        const gt__buffer *gone = &p->buffers[gt__program_buffer(p, leave->transfer.data)];
        const gt__buffer *there = &p->buffers[gt__program_buffer(p, p->list[fetch].transfer.data)];
        CHECK(gone->last == left && there->first == fetch && there->last > back);
    }
}

/* At once, and as late as can be: on the CPU itself copies are over when they begin. */
static void same_with_offload(test_case *t, make_net make, int32_t micro_batches) {
    enum { STEPS = 3, RUNS = 5 };
    net_step plain = begin(t, make, false, 0, micro_batches, 0);
    double losses[RUNS];
    for (int i = 0; i < RUNS; ++i) {
        CHECK_OK(run(&plain, make, i));
        losses[i] = loss_of(&plain);
    }
    const sizes s = sizes_of(t, make, micro_batches, 1);
    for (int k = 0; k < 2 * STEPS; ++k) {
        bool late = k >= STEPS;
        net_step n = begin(t, make, late, s.least + (s.whole - s.least) * (uint64_t)(k % STEPS) / STEPS, micro_batches, 1);
        set_link(&n, 1e-15);
        fake.late = late;
        for (int i = 0; i < RUNS; ++i) {
            if (i == 2) set_times(&n);
            CHECK_OK(run(&n, make, i));
            CHECK(loss_of(&n) == losses[i]);
            const gt__plan *plan = n.step->last;
            CHECK(plan->fixed + plan->arena_bytes <= n.step->options.memory_budget);
            CHECK(count_kind(plan, GT__DO_LEAVE) > 0 && plan->host.bytes > 0 && plan->host.memory);
            check_places(plan);
        }
        CHECK(!late || (fake.captures > 0 && fake.launches > 0));
        net_same(plain.net, n.net);
        net_end(&n);
        CHECK(!late || fake.host == 0);
    }
    net_end(&plain);
}

TEST(unit, step_offload_gives_the_same_mlp) { same_with_offload(t, mlp, 1); }
TEST(unit, step_offload_gives_the_same_mlp_with_micro_batches) { same_with_offload(t, mlp, 3); }
TEST(unit, step_offload_gives_the_same_cnn) { same_with_offload(t, cnn, 1); }
TEST(unit, step_offload_gives_the_same_cnn_with_micro_batches) { same_with_offload(t, cnn, 2); }

/* On the device itself, through the runs in which its graph is made. */
static void same_on_device(test_case *t, make_net make) {
    enum { RUNS = 8 };
    net_step plain = begin(t, make, false, 0, 1, 0), n = begin(t, make, false, 1, 1, 1);
    set_link(&n, 1e-15);
    for (int i = 0; i < RUNS; ++i) {
        CHECK_OK(run(&plain, make, i));
        if (i == 2) set_times(&n);
        gt_status status = run(&n, make, i);
        if (status == GT_OUT_OF_MEMORY && n.step->budget_least > n.step->options.memory_budget) {
            n.step->options.memory_budget = n.step->budget_least;
            gt_clear_error();
            status = run(&n, make, i);
        }
        CHECK_OK(status);
        CHECK(loss_of(&n) == loss_of(&plain));
        CHECK(count_kind(n.step->last, GT__DO_LEAVE) > 0);
        CHECK(n.step->last->fixed + n.step->last->arena_bytes <= n.step->options.memory_budget);
    }
    net_same(plain.net, n.net);
    net_end(&n);
    net_end(&plain);
}

TEST_DEVICES(unit, step_offload_trains_the_same_mlp) { same_on_device(t, mlp); }
TEST_DEVICES(unit, step_offload_trains_the_same_cnn) { same_on_device(t, cnn); }

/* A run that fails has copies under way, which meet nothing of the next. */
TEST(unit, step_offload_goes_on_after_a_failure) {
    enum { RUNS = 6 };
    const sizes s = sizes_of(t, mlp, 1, 1);
    net_step plain = begin(t, mlp, false, 0, 1, 0);
    double losses[RUNS];
    for (int i = 0; i < RUNS; ++i) {
        CHECK_OK(run(&plain, mlp, i));
        losses[i] = loss_of(&plain);
    }
    for (int at = 1; at < 60; at += 4) {
        net_step n = begin(t, mlp, true, s.least + (s.whole - s.least) / 4, 1, 1);
        set_link(&n, 1e-15);
        fake.late = true;
        for (int i = 0; i < RUNS; ++i) {
            if (i == 1) {
                fake.failing = at;
                gt_status status = run(&n, mlp, i);
                if (status == GT_OK) break; /* there are no more calls */
                CHECK(status == GT_NOT_SUPPORTED && fake.copied == fake.queued);
                gt_clear_error();
            }
            CHECK_OK(run(&n, mlp, i));
            CHECK(loss_of(&n) == losses[i]);
            CHECK(i > 2 || count_kind(n.step->last, GT__DO_LEAVE) > 0);
        }
        net_end(&n);
    }
    net_end(&plain);
}

/* ---- the choice --------------------------------------------------------------------------------------------------------------------------------- */

/* A way to the host that costs nothing is taken before anything is done again; one that takes for ever is not; and more budget is never slower. */
TEST(unit, step_offload_is_chosen_where_it_pays) {
    enum { STEPS = 6 };
    const sizes s = sizes_of(t, cnn, 1, 0), with = sizes_of(t, cnn, 1, 1);
    CHECK(with.least <= s.least && with.whole == s.whole);
    const double links[3] = {1e-15, 1e-10, 1};
    for (int l = 0; l < 3; ++l) {
        double before = 0;
        for (int k = 0; k <= STEPS; ++k) {
            uint64_t budget = s.least + (s.whole - s.least) * (uint64_t)k / STEPS;
            net_step n = begin(t, cnn, false, budget, 1, 1), again = begin(t, cnn, false, budget, 1, 0);
            set_link(&n, links[l]);
            CHECK_OK(run(&n, cnn, 0));
            CHECK_OK(run(&again, cnn, 0));
            const gt__plan *plan = n.step->last;
            CHECK(plan->seconds <= again.step->last->seconds);
            CHECK(k == 0 || plan->seconds <= before + 1e-12);
            CHECK((plan->host.bytes > 0) == (count_kind(plan, GT__DO_LEAVE) > 0));
            if (l == 0) CHECK((plan->host.bytes > 0) == (k < STEPS));
            if (l == 2) CHECK(plan->host.bytes == 0);
            before = plan->seconds;
            net_end(&again);
            net_end(&n);
        }
    }
    net_step off = begin(t, cnn, false, s.least, 1, 0);
    set_link(&off, 1e-15);
    CHECK_OK(run(&off, cnn, 0));
    CHECK(off.step->last->host.bytes == 0);
    net_end(&off);
}

TEST(unit, step_offload_is_said) {
    const sizes s = sizes_of(t, cnn, 1, 1);
    net_step n = begin(t, cnn, false, s.least + (s.whole - s.least) / 2, 1, 1);
    set_link(&n, 1e-12);
    char text[8000], *whole;
    size_t needed;
    CHECK_OK(run(&n, cnn, 0));
    CHECK_OK(gt_step_budget_text(n.step, text, sizeof text, NULL));
    CHECK(strstr(text, "\noffload ") && strstr(text, " of host memory: copies take ") && strstr(text, " are waited for, "));
    CHECK(strstr(text, " to the host, "));
    for (gt_step_format f = GT_STEP_TEXT; f <= GT_STEP_GRAPHVIZ; ++f) {
        CHECK_OK(gt_step_describe(n.step, f, NULL, 0, &needed));
        whole = malloc(needed);
        CHECK_OK(gt_step_describe(n.step, f, whole, needed, NULL));
        CHECK(strstr(whole, f == GT_STEP_TEXT ? " = leave[" : ": leave") && strstr(whole, f == GT_STEP_TEXT ? " = fetch[" : ": fetch"));
        CHECK(strstr(whole, f == GT_STEP_TEXT ? "(host memory)" : "label=\"host\""));
        free(whole);
    }
    /* A prediction has the same plan, and takes no memory for it. */
    const gt_step_input in[2] = {{.shape = {PICTURES, 3, SIDE, SIDE}, .ndim = 4, .dtype = GT_DTYPE_F32},
                                 {.shape = {PICTURES}, .ndim = 1, .dtype = GT_DTYPE_I64}};
    gt_step_memory m = net_step_memory();
    CHECK_OK(gt_step_plan(n.step, in, 2, 1, &m));
    CHECK_EQ_INT(m.arena, n.step->last->arena_bytes);
    net_end(&n);
}

/* No pinned memory: the budget is kept by computing again. */
TEST(unit, step_offload_does_without_host_memory) {
    const sizes s = sizes_of(t, cnn, 1, 0);
    net_step n = begin(t, cnn, true, s.least + (s.whole - s.least) / 2, 1, 1), plain = begin(t, cnn, false, 0, 1, 0);
    fake.step = n.step;
    set_link(&n, 1e-15);
    fake.no_host = true;
    for (int i = 0; i < 5; ++i) {
        CHECK_OK(run(&n, cnn, i));
        CHECK_OK(run(&plain, cnn, i));
        CHECK(loss_of(&n) == loss_of(&plain));
        CHECK(count_kind(n.step->last, GT__DO_LEAVE) == 0 && n.step->last->host.bytes == 0);
        CHECK(n.step->last->seconds > n.step->last->whole_seconds);
    }
    net_end(&plain);
    net_end(&n);
}

/* The way to the host is measured in the run that is timed, and the plan made again by it. */
TEST(unit, step_offload_measures_the_way_to_the_host) {
    const sizes s = sizes_of(t, cnn, 1, 0);
    net_step n = begin(t, cnn, false, s.least + (s.whole - s.least) / 2, 1, 1);
    CHECK_OK(run(&n, cnn, 0));
    CHECK(n.step->times.link[0] == 0);
    CHECK_OK(run(&n, cnn, 1));
    CHECK(n.step->times.link[0] > 0 && n.step->times.link[1] > 0 && n.step->last->modelled);
    CHECK_OK(run(&n, cnn, 2));
    CHECK(!n.step->last->modelled);
    net_end(&n);
}

/* ---- a large network, on shapes ------------------------------------------------------------------------------------------------------------ */

static gt_module *resnet50(gt_context *ctx) { return gt_nn_resnet50(ctx, 1000); }

#ifdef __SANITIZE_ADDRESS__
static const double patience = 120; /* seconds */
#else
static const double patience = 4;
#endif

TEST(unit, step_offload_of_resnet50_is_planned_in_time) {
    enum { ROWS = 64, STEPS = 4 };
    net_step n = begin(t, resnet50, false, 1, 1, 1);
    gt__meta metas[2];
    CHECK_OK(gt__meta_make(&metas[0], GT_DTYPE_F32, 4, (const int64_t[]){ROWS, 3, 224, 224}, "test"));
    CHECK_OK(gt__meta_make(&metas[1], GT_DTYPE_I64, 1, (const int64_t[]){ROWS}, "test"));
    set_link(&n, 1e-11);
    gt__plan *plan;
    CHECK_STATUS(gt__step_trace_aside(n.step, metas, 2, 1, &plan), GT_OUT_OF_MEMORY);
    gt_clear_error();
    uint64_t least = n.step->budget_least, whole;
    n.step->options.memory_budget = UINT64_MAX;
    CHECK_OK(gt__step_trace_aside(n.step, metas, 2, 1, &plan));
    whole = plan->fixed + plan->arena_bytes;
    gt__plan_destroy(n.step, plan);
    double before = 0;
    size_t host = 0;
    for (int k = 0; k < STEPS; ++k) {
        n.step->options.memory_budget = least + (whole - least) / STEPS * (uint64_t)k;
        double began = gt__clock_seconds();
        CHECK_OK(gt__step_trace_aside(n.step, metas, 2, 1, &plan));
        double took = gt__clock_seconds() - began;
        if (took > patience) FAIL("planning took %.2f s", took);
        CHECK(plan->host.bytes > 0 && plan->host.memory == NULL);
        CHECK(k == 0 || plan->seconds <= before);
        CHECK(plan->fixed + plan->arena_bytes <= n.step->options.memory_budget);
        check_places(plan);
        before = plan->seconds;
        CHECK(k < 2 || plan->host.bytes < host); /* no more than it takes */
        host = plan->host.bytes;
        gt__plan_destroy(n.step, plan);
    }
    net_end(&n);
}

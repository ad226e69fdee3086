/* A compiled step beside what can go wrong, and beside all that may happen between its runs. The measure is a twin of the same seed that does the same by windows. */
#include "support.h"

#include <math.h>

/* ---- the twin ------------------------------------------------------------------------------------------------------------------------------- */

typedef struct pair {
    net_step a; /* with the step */
    net_step b; /* without */
    gt_window *window;
} pair;

static pair pair_begin(test_case *t, bool half, int32_t micro_batches) {
    pair p = {.a = net_begin(net_context(t), half, micro_batches)};
    p.b.ctx = net_context(t);
    p.b.net = net_mlp(p.b.ctx, NET_IN, NET_HIDDEN);
    p.b.optimizer = net_adam(p.b.net);
    gt_window_options o;
    CHECK_OK(gt_window_options_init(&o, sizeof o));
    o.module = p.b.net;
    o.optimizers = &p.b.optimizer;
    o.n_optimizers = 1;
    o.micro_batches = micro_batches;
    if (half) CHECK_OK(gt_scaler_create(p.b.ctx, NULL, &p.b.scaler));
    o.scaler = p.b.scaler;
    CHECK_OK(gt_window_create(&o, &p.window));
    return p;
}

static void pair_end(pair *p) {
    gt_window_destroy(p->window);
    net_end(&p->a);
    net_end(&p->b);
}

/* An update of `n` by the window, which is of one micro-batch. */
static void eager(net_step *n, gt_window *window, int rows, int number) {
    gt_tensor *inputs[2];
    gt_step_result r = {0};
    CHECK_OK(gt_scope_begin(n->ctx));
    net_batch(n->ctx, rows, number, inputs);
    CHECK_OK(gt_window_micro_begin(window));
    if (n->scaler) CHECK_OK(gt_autocast_begin(n->ctx, GT_DTYPE_F16));
    CHECK_OK(net_loss(n->net, inputs, 2, &r));
    if (n->scaler) CHECK_OK(gt_autocast_end(n->ctx));
    CHECK_OK(gt_window_micro_end(window, r.loss, rows, NULL));
    CHECK_OK(gt_scope_end(n->ctx));
}

static void pair_same(const pair *p) {
    uint64_t x, y;
    net_same(p->a.net, p->b.net);
    CHECK_OK(gt_random_state_get(p->a.ctx, NULL, &x));
    CHECK_OK(gt_random_state_get(p->b.ctx, NULL, &y));
    CHECK_EQ_INT(x, y);
}

/* Both go on, and stay the same. */
static void both(pair *p, int rows, int number) {
    CHECK_OK(net_run(&p->a, rows, number));
    eager(&p->b, p->window, rows, number);
    pair_same(p);
}

/* ---- a function that misbehaves ----------------------------------------------------------------------------------------------------------- */

typedef enum trick { GOOD, ITEM, READ, DATA, FAILS, NO_LOSS, WIDE_LOSS, KEEPS, OPENS, ENDS, STRAY, NESTS } trick;

typedef struct trickster {
    gt_module *net;
    trick trick;
    gt_tensor *kept, *leaf;
    gt_step *step;
    int calls, at; /* the trick is played in the call with that number */
} trickster;

static gt_status tricky(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    trickster *w = user;
    gt_context *ctx = gt_module_context(w->net);
    trick play = w->calls++ == w->at ? w->trick : GOOD;
    double value;
    float buffer[NET_ROWS * NET_CLASSES];
    (void)n;
    gt_status status = net_loss(w->net, inputs, 2, r);
    if (status != GT_OK) return status;
    switch (play) {
    case ITEM:
        return gt_tensor_item(r->loss, &value);
    case READ:
        return gt_tensor_read(r->outputs[0], buffer, gt_tensor_bytes(r->outputs[0]));
    case DATA:
        CHECK(gt_tensor_data(r->loss) == NULL && gt_tensor_data(inputs[0]) == NULL);
        CHECK(gt_tensor_data(gt_tensor_detach(r->outputs[0])) == NULL);
        break;
    case FAILS:
        return GT_IO;
    case NO_LOSS:
        r->loss = NULL;
        break;
    case WIDE_LOSS:
        r->loss = r->outputs[0];
        break;
    case KEEPS:
        w->kept = gt_tensor_retain(r->outputs[0]);
        break;
    case OPENS:
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_no_grad_begin(ctx));
        break;
    case ENDS:
        CHECK_OK(gt_scope_end(ctx));
        break;
    case NESTS:
        return gt_step_run(w->step, inputs, 2);
    case STRAY:
        r->loss = gt_add(r->loss, gt_sum(gt_square(w->leaf), NULL, 0, 0));
        break;
    default:
        break;
    }
    return r->loss || play == NO_LOSS ? GT_OK : gt_last_error()->status;
}

/* A step whose function plays a trick while it is traced, between good runs. */
static void play(test_case *t, trick play, gt_status want, const char *text, int32_t micro_batches) {
    pair p = pair_begin(t, false, micro_batches);
    gt_step_destroy(p.a.step);
    trickster w = {.net = p.a.net, .at = -1};
    w.leaf = CHECK_TENSOR(gt_tensor_full(p.a.ctx, GT_DTYPE_F32, 0, NULL, 2));
    CHECK_OK(gt_tensor_set_requires_grad(w.leaf, 1));
    gt_step_options o = net_options(&p.a);
    o.fn = tricky;
    o.user = &w;
    o.micro_batches = micro_batches;
    CHECK_OK(gt_step_create(p.a.ctx, &o, &p.a.step));
    w.step = p.a.step;
    if (micro_batches == 1) both(&p, 16, 0);
    for (int again = 0; again < 2; ++again) {
        uint64_t before = net_memory(p.a.ctx).in_use, x, y;
        CHECK_OK(gt_random_state_get(p.a.ctx, NULL, &x));
        w.trick = play;
        w.at = w.calls + micro_batches - 1;
        size_t left, right;
        char *values = net_values(p.a.net, &left);
        gt_status status = net_run(&p.a, 20, 1); /* of another shape: it is traced */
        CHECK_STATUS(status, want);
        if (want != GT_OK) {
            CHECK_ERROR_HAS(text);
            char *after = net_values(p.a.net, &right);
            CHECK(left == right && memcmp(values, after, left) == 0);
            free(after);
            CHECK_OK(gt_random_state_get(p.a.ctx, NULL, &y));
            CHECK_EQ_INT(x, y);
            CHECK_EQ_INT(net_memory(p.a.ctx).in_use, before);
        }
        free(values);
        if (w.kept) CHECK(gt_tensor_data(w.kept) == NULL && gt_tensor_context(w.kept) == NULL); /* emptied */
        gt_tensor_release(w.kept);
        w.kept = NULL;
        CHECK(gt_tensor_grad(w.leaf) == NULL);
        if (want == GT_OK) break;
    }
    w.trick = GOOD;
    if (micro_batches == 1 && want == GT_OK) eager(&p.b, p.window, 20, 1);
    if (micro_batches == 1) both(&p, 20, 2);
    if (micro_batches == 1) both(&p, 16, 3);
    if (micro_batches == 1) both(&p, 18, 4); /* traced once more */
    CHECK_OK(net_run(&p.a, 20, 5));
    gt_tensor_release(w.leaf);
    pair_end(&p);
}

TEST_DEVICES(unit, step_refuses_to_read_a_number_while_it_is_traced) {
    play(t, ITEM, GT_BAD_STATE, "gt_tensor_item: result of cross_entropy", 1);
    CHECK(strstr(gt_last_error()->hint, "output") != NULL || gt_last_error()->status == GT_OK);
}
TEST_DEVICES(unit, step_refuses_to_read_a_tensor_while_it_is_traced) { play(t, READ, GT_BAD_STATE, "is read while a step is traced", 1); }
TEST_DEVICES(unit, step_gives_no_address_of_what_is_traced) { play(t, DATA, GT_OK, "", 1); }
TEST_DEVICES(unit, step_hands_on_what_its_function_returns) { play(t, FAILS, GT_IO, "", 1); }
TEST_DEVICES(unit, step_needs_a_loss) { play(t, NO_LOSS, GT_BAD_ARGUMENT, "gave no loss", 1); }
TEST_DEVICES(unit, step_needs_a_loss_of_one_element) { play(t, WIDE_LOSS, GT_BAD_SHAPE, "the loss has 100 elements", 1); }
TEST_DEVICES(unit, step_refuses_a_tensor_that_is_kept) { play(t, KEEPS, GT_BAD_STATE, "kept 1 tensors beyond the call", 1); }
TEST_DEVICES(unit, step_closes_scopes_and_regions_that_its_function_left_open) { play(t, OPENS, GT_OK, "", 1); }
TEST_DEVICES(unit, step_refuses_a_function_that_ends_its_scope) { play(t, ENDS, GT_BAD_STATE, "ended a scope or a region", 1); }
TEST_DEVICES(unit, step_refuses_gradients_for_nobody) { play(t, STRAY, GT_BAD_STATE, "is in no optimizer and not in the module", 1); }

TEST_DEVICES(unit, step_refuses_a_function_that_runs_a_step) {
    play(t, NESTS, GT_BAD_STATE, "a step is being traced; its function cannot run or plan one", 1);
}

/* In the last of several micro-batches, with the window half done. */
TEST_DEVICES(unit, step_comes_back_from_a_failure_in_a_later_micro_batch) {
    play(t, ITEM, GT_BAD_STATE, "gt_tensor_item", 3);
    play(t, FAILS, GT_IO, "", 2);
    play(t, WIDE_LOSS, GT_BAD_SHAPE, "elements; it must be one number", 2);
    play(t, KEEPS, GT_BAD_STATE, "beyond the call", 2);
}

/* What is traced does not depend on the regions in which the first run happens to be. */
TEST_DEVICES(unit, step_minds_no_region_of_its_caller) {
    pair p = pair_begin(t, false, 1);
    for (int i = 0; i < 4; ++i) {
        CHECK_OK(gt_no_grad_begin(p.a.ctx));
        CHECK_OK(gt_autocast_begin(p.a.ctx, GT_DTYPE_BF16));
        gt_status status = net_run(&p.a, i < 3 ? 16 : 12, i);
        gt_tensor *weight;
        CHECK_OK(gt_module_find(p.a.net, "0.weight", &weight));
        CHECK_OK(gt_scope_begin(p.a.ctx));
        gt_tensor *half = CHECK_TENSOR(gt_matmul(weight, gt_transpose(weight, 0, 1))); /* the region is there still */
        CHECK_EQ_INT(gt_tensor_dtype(half), GT_DTYPE_BF16);
        CHECK(!gt_grad_enabled(p.a.ctx));
        CHECK_OK(gt_scope_end(p.a.ctx));
        CHECK_OK(gt_autocast_end(p.a.ctx));
        CHECK_OK(gt_no_grad_end(p.a.ctx));
        CHECK_OK(status);
        eager(&p.b, p.window, i < 3 ? 16 : 12, i);
        pair_same(&p);
    }
    pair_end(&p);
}

/* Half copies that were behind their weights are so still after a trace that has failed. */
TEST_DEVICES(unit, step_that_fails_to_trace_leaves_no_old_half_copies) {
    pair p = pair_begin(t, true, 1);
    gt_step_destroy(p.a.step);
    trickster w = {.net = p.a.net, .at = -1, .trick = FAILS};
    gt_step_options o = net_options(&p.a);
    o.fn = tricky;
    o.user = &w;
    CHECK_OK(gt_step_create(p.a.ctx, &o, &p.a.step));
    both(&p, 16, 0);
    for (int k = 0; k < 2; ++k) {
        gt_tensor *weight;
        CHECK_OK(gt_module_find(k ? p.b.net : p.a.net, "0.weight", &weight));
        CHECK_OK(gt_tensor_fill(weight, 0.25));
    }
    w.at = w.calls;
    CHECK_STATUS(net_run(&p.a, 20, 1), GT_IO);
    both(&p, 16, 2);
    pair_end(&p);
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------------------------------- */

TEST_DEVICES(unit, step_refuses_inputs_that_it_cannot_cut) {
    net_step n = net_begin(net_context(t), false, 4);
    CHECK_STATUS(net_run(&n, 3, 0), GT_BAD_SHAPE);
    CHECK_ERROR_HAS("input 0, f32 [3,12], cannot be cut into 4 micro-batches");
    CHECK_OK(net_run(&n, 9, 0));
    CHECK_STATUS(net_run(&n, 3, 0), GT_BAD_SHAPE);
    gt_tensor *inputs[2] = {NULL, NULL};
    gt_clear_error();
    CHECK_STATUS(gt_step_run(n.step, inputs, 2), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_step_run(n.step, inputs, 0), GT_BAD_ARGUMENT);
    CHECK_OK(net_run(&n, 9, 1));
    net_end(&n);
}

static gt_status run_with_label(net_step *n, int rows, int number, int64_t label) {
    gt_tensor *inputs[2];
    CHECK_OK(gt_scope_begin(n->ctx));
    net_batch(n->ctx, rows, number, inputs);
    int64_t y[NET_ROWS];
    CHECK_OK(gt_tensor_read(inputs[1], y, (size_t)rows * sizeof *y));
    y[rows / 2] = label;
    CHECK_OK(gt_tensor_write(inputs[1], y, (size_t)rows * sizeof *y));
    gt_status status = gt_step_run(n->step, inputs, 2);
    CHECK_OK(gt_scope_end(n->ctx));
    return status;
}

/* The CPU sees a bad label at once, in the middle of a run whose running statistics have moved. */
TEST(unit, step_with_a_bad_label_changes_nothing_and_goes_on) {
    for (int half = 0; half < 2; ++half) {
        pair p = pair_begin(t, half, 1);
        for (int i = 0; i < 6; ++i) {
            if (i == 0 || i == 3) {
                CHECK_STATUS(run_with_label(&p.a, 16, i, NET_CLASSES), GT_BAD_LABEL);
                CHECK_ERROR_HAS("label 5");
                pair_same(&p);
            }
            both(&p, 16, i);
        }
        gt_window_state s;
        CHECK_OK(gt_window_state_init(&s, sizeof s));
        CHECK_OK(gt_step_get_state(p.a.step, &s));
        CHECK_EQ_INT(s.updates, 6);
        CHECK_EQ_INT(s.skipped, 0);
        pair_end(&p);
    }
}

TEST_DEVICES(unit, step_keeps_more_shapes_than_it_has_places) {
    pair p = pair_begin(t, false, 1);
    for (int round = 0; round < 2; ++round)
        for (int rows = 4; rows < 24; ++rows) both(&p, rows, rows + round);
    for (int i = 0; i < 3; ++i) both(&p, 23 - i, i);
    CHECK(gt_step_loss(p.a.step) != NULL);
    pair_end(&p);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------------------------- */

TEST_DEVICES(unit, step_without_room_says_what_its_plan_takes) {
    gt_context *ctx = net_context(t);
    gt_module *const layers[] = {gt_nn_linear(ctx, 64, 256, NULL), gt_nn_relu(ctx), gt_nn_linear(ctx, 256, NET_CLASSES, NULL)};
    net_step n = {.ctx = ctx, .net = gt_nn_sequential_from(ctx, layers, 3)};
    n.optimizer = net_adam(n.net);
    gt_step_options o = net_options(&n);
    CHECK_OK(gt_step_create(ctx, &o, &n.step));
    for (int i = 0; i < 4; ++i) {
        int64_t rows = i % 2 ? 16384 : 32;
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *inputs[2] = {CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, 2, (const int64_t[]){rows, 64}, 0, 1)),
                                CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_I64, 1, &rows))};
        CHECK_OK(gt_memory_trim(ctx));
        if (i == 1) CHECK_OK(gt_context_set_memory_limit(ctx, net_memory(ctx).reserved + (8 << 20)));
        if (i > 1) CHECK_OK(gt_context_set_memory_limit(ctx, 0));
        size_t left, right;
        char *values = net_values(n.net, &left);
        gt_status status = gt_step_run(n.step, inputs, 2);
        CHECK_STATUS(status, i == 1 ? GT_OUT_OF_MEMORY : GT_OK);
        if (i == 1) {
            CHECK_ERROR_HAS("gt_step_run: the plan takes ");
            CHECK_ERROR_HAS(" bytes in one piece, with 1 micro-batches: ");
            CHECK_ERROR_HAS(" at once at instruction ");
            CHECK_ERROR_HAS("activations saved for backward ");
            CHECK(gt_last_error()->hint[0] != '\0');
            char *after = net_values(n.net, &right);
            CHECK(left == right && memcmp(values, after, left) == 0);
            free(after);
        }
        free(values);
        CHECK_OK(gt_scope_end(ctx));
    }
    net_end(&n);
}

TEST_DEVICES(unit, step_does_not_grow_over_300_runs_of_changing_shapes) {
    net_step n = net_begin(net_context(t), true, 1);
    uint64_t settled = 0, random = 3;
    for (int i = 0; i < 300; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        CHECK_OK(net_run(&n, i < 60 ? 64 - i : 4 + (int)(random >> 33) % 60, i));
        if (i == 80) settled = net_memory(n.ctx).reserved;
    }
    CHECK_EQ_INT(net_memory(n.ctx).reserved, settled);
    net_end(&n);
}

/* ---- between runs ---------------------------------------------------------------------------------------------------------------------------- */

TEST_DEVICES(unit, step_takes_turns_with_eager_updates) {
    for (int half = 0; half < 2; ++half) {
        pair p = pair_begin(t, half, 1);
        gt_window *own;
        gt_window_options o;
        CHECK_OK(gt_window_options_init(&o, sizeof o));
        o.module = p.a.net;
        o.optimizers = &p.a.optimizer;
        o.n_optimizers = 1;
        o.scaler = p.a.scaler;
        CHECK_OK(gt_window_create(&o, &own));
        for (int i = 0; i < 9; ++i) {
            if (i % 3 == 1) {
                eager(&p.a, own, 16, i);
                eager(&p.b, p.window, 16, i);
                pair_same(&p);
            } else {
                both(&p, i % 2 ? 16 : 24, i);
            }
        }
        gt_window_destroy(own);
        pair_end(&p);
    }
}

TEST_DEVICES(unit, step_takes_weights_that_were_loaded_or_written) {
    for (int half = 0; half < 2; ++half) {
        pair p = pair_begin(t, half, 1);
        const char *path = test_temp_path(t, half ? "half.safetensors" : "full.safetensors");
        for (int i = 0; i < 10; ++i) {
            if (i == 2) CHECK_OK(gt_module_save(p.a.net, path, NULL, 0));
            for (int k = 0; k < 2; ++k) {
                net_step *n = k ? &p.b : &p.a;
                gt_tensor *weight;
                CHECK_OK(gt_module_find(n->net, "4.weight", &weight));
                if (i == 4) CHECK_OK(gt_module_load(n->net, path, NULL));
                if (i == 6) CHECK_OK(gt_tensor_fill(weight, 0.25));
                if (i == 8) CHECK_OK(gt_memory_trim(n->ctx)); /* half copies go */
                if (i == 9) CHECK_OK(gt_tensor_fill(weight, -0.125));
            }
            both(&p, i == 7 ? 24 : 16, i);
        }
        pair_end(&p);
    }
}

/* Another step over the same weights, in f16, makes half copies that the first, in f32, knows nothing of. */
TEST_DEVICES(unit, step_in_f32_does_not_pass_old_half_copies_off_as_new) {
    net_step n = net_begin(net_context(t), false, 1), other = {.ctx = net_context(t)};
    gt_step_options o = net_options(&n);
    gt_step *half;
    other.net = net_mlp(other.ctx, NET_IN, NET_HIDDEN); /* always made anew, so nothing of it can be old */
    o.n_optimizers = 0;
    o.autocast = GT_DTYPE_F16;
    CHECK_OK(gt_step_create(n.ctx, &o, &half));
    for (int i = 0; i < 4; ++i) {
        CHECK_OK(gt_module_set_training(n.net, 1));
        CHECK_OK(net_run(&n, 16, i));
        CHECK_OK(gt_module_set_training(n.net, 0));
        gt_tensor *inputs[2];
        double got, want;
        gt_step_result r = {0};
        CHECK_OK(gt_scope_begin(n.ctx));
        net_batch(n.ctx, 16, 7, inputs);
        CHECK_OK(gt_step_run(half, inputs, 2));
        CHECK_OK(gt_tensor_item(gt_step_loss(half), &got));
        CHECK_OK(gt_scope_end(n.ctx));
        net_copy(n.net, other.net);
        CHECK_OK(gt_module_set_training(other.net, 0));
        CHECK_OK(gt_scope_begin(other.ctx));
        net_batch(other.ctx, 16, 7, inputs);
        CHECK_OK(gt_autocast_begin(other.ctx, GT_DTYPE_F16));
        CHECK_OK(net_loss(other.net, inputs, 2, &r));
        CHECK_OK(gt_autocast_end(other.ctx));
        CHECK_OK(gt_tensor_item(r.loss, &want));
        CHECK(got == want);
        CHECK_OK(gt_scope_end(other.ctx));
    }
    gt_step_destroy(half);
    net_end(&n);
    net_end(&other);
}

TEST_DEVICES(unit, step_without_optimizers_is_the_forward_in_evaluation) {
    for (int half = 0; half < 2; ++half) {
        net_step n = {.ctx = net_context(t)};
        n.net = net_mlp(n.ctx, NET_IN, NET_HIDDEN);
        gt_step_options o = net_options(&n);
        if (half) o.autocast = GT_DTYPE_F16;
        CHECK_OK(gt_step_create(n.ctx, &o, &n.step));
        CHECK_OK(gt_module_set_training(n.net, 0));
        gt_window_state state;
        CHECK_OK(gt_window_state_init(&state, sizeof state));
        CHECK_STATUS(gt_step_get_state(n.step, &state), GT_BAD_STATE);
        for (int i = 0; i < 4; ++i) {
            float got[NET_ROWS * NET_CLASSES], want[NET_ROWS * NET_CLASSES];
            gt_tensor *inputs[2], *weight;
            gt_step_result r = {0};
            double loss, wanted;
            const int rows = 16;
            CHECK_OK(gt_scope_begin(n.ctx));
            net_batch(n.ctx, rows, i, inputs);
            CHECK_OK(gt_module_find(n.net, "0.weight", &weight));
            if (i == 2) CHECK_OK(gt_tensor_fill(weight, 0.5)); /* no optimizer has it */
            CHECK_OK(gt_step_run(n.step, inputs, 2));
            CHECK_OK(gt_no_grad_begin(n.ctx));
            if (half) CHECK_OK(gt_autocast_begin(n.ctx, GT_DTYPE_F16));
            CHECK_OK(net_loss(n.net, inputs, 2, &r));
            if (half) CHECK_OK(gt_autocast_end(n.ctx));
            CHECK_OK(gt_no_grad_end(n.ctx));
            CHECK_OK(gt_tensor_item(gt_step_loss(n.step), &loss));
            CHECK_OK(gt_tensor_item(r.loss, &wanted));
            CHECK(loss == wanted);
            gt_tensor *wide[2] = {gt_cast(gt_step_output(n.step, 0), GT_DTYPE_F32), gt_cast(r.outputs[0], GT_DTYPE_F32)};
            CHECK_OK(gt_tensor_read(wide[0], got, (size_t)rows * NET_CLASSES * sizeof *got));
            CHECK_OK(gt_tensor_read(wide[1], want, (size_t)rows * NET_CLASSES * sizeof *want));
            CHECK(memcmp(got, want, (size_t)rows * NET_CLASSES * sizeof *got) == 0);
            CHECK(gt_tensor_grad(weight) == NULL);
            CHECK_OK(gt_scope_end(n.ctx));
        }
        net_end(&n);
    }
}

TEST_DEVICES(unit, step_follows_the_training_mode_and_forgets_on_reset) {
    pair p = pair_begin(t, false, 1);
    for (int i = 0; i < 12; ++i) {
        if (i % 4 == 2)
            for (int k = 0; k < 2; ++k) CHECK_OK(gt_module_set_training(k ? p.b.net : p.a.net, i % 8 != 2));
        if (i == 5) {
            CHECK_OK(gt_step_reset(p.a.step));
            CHECK(gt_step_loss(p.a.step) == NULL && gt_step_output(p.a.step, 0) == NULL);
        }
        both(&p, 16, i);
    }
    CHECK(gt_step_output(p.a.step, -1) == NULL && gt_step_output(p.a.step, GT_STEP_MAX_OUTPUTS) == NULL);
    pair_end(&p);
}

/* A network that has grown has more buffers than the window knew when it was made. */
TEST_DEVICES(unit, step_runs_a_module_that_has_grown_after_reset) {
    pair p = pair_begin(t, false, 1);
    both(&p, 16, 0);
    for (int k = 0; k < 2; ++k) {
        net_step *n = k ? &p.b : &p.a;
        for (int i = 0; i < 9; ++i) {
            gt_module *norm = gt_nn_batch_norm(n->ctx, NET_CLASSES, NULL);
            CHECK_OK(gt_nn_sequential_add(n->net, norm));
        }
    }
    CHECK_OK(gt_step_reset(p.a.step));
    both(&p, 16, 1);
    both(&p, 16, 2);
    both(&p, 16, 3);
    CHECK_STATUS(run_with_label(&p.a, 16, 4, -7), test_device(t) == GT_DEVICE_CPU ? GT_BAD_LABEL : GT_OK);
    if (test_device(t) == GT_DEVICE_CPU) both(&p, 16, 4);
    if (test_device(t) != GT_DEVICE_CPU) (void)gt_context_synchronize(p.a.ctx); /* which tells */
    pair_end(&p);
}

TEST_DEVICES(unit, step_refuses_to_run_after_the_weights_have_moved) {
    for (int half = 0; half < 2; ++half) {
        net_step n = {.ctx = net_context(t)};
        n.net = net_mlp(n.ctx, NET_IN, NET_HIDDEN);
        gt_step_options o = net_options(&n);
        if (half) o.autocast = GT_DTYPE_BF16;
        CHECK_OK(gt_step_create(n.ctx, &o, &n.step));
        CHECK_OK(net_run(&n, 8, 0));
        CHECK_OK(gt_module_to_dtype(n.net, GT_DTYPE_F64));
        CHECK_OK(gt_module_to_dtype(n.net, GT_DTYPE_F32)); /* the same, elsewhere */
        CHECK_STATUS(net_run(&n, 8, 0), GT_BAD_STATE);
        CHECK_ERROR_HAS("has other memory than when the step was traced");
        CHECK_OK(gt_step_reset(n.step));
        CHECK_OK(net_run(&n, 8, 0));
        net_end(&n);
        n = net_begin(net_context(t), false, 1); /* with an optimizer */
        CHECK_OK(net_run(&n, 8, 0));
        CHECK_OK(gt_module_to_dtype(n.net, GT_DTYPE_F16));
        CHECK_STATUS(net_run(&n, 8, 0), GT_BAD_STATE);
        CHECK_STATUS(net_run(&n, 9, 0), GT_BAD_DTYPE); /* traced: the first layer says so */
        net_end(&n);
    }
}

TEST_DEVICES(unit, step_may_outlive_its_context) {
    for (int half = 0; half < 2; ++half) {
        gt_context_options options;
        gt_context *ctx;
        CHECK_OK(gt_context_options_init(&options, sizeof options));
        options.device = test_device(t);
        CHECK_OK(gt_context_create(&options, &ctx));
        net_step n = net_begin(ctx, half, 2);
        for (int i = 0; i < 4; ++i) CHECK_OK(net_run(&n, 8 + i % 2, i)); /* on a GPU there is a graph */
        gt_context_destroy(ctx);
        gt_window_state state;
        gt_step_memory m = net_step_memory();
        CHECK_OK(gt_window_state_init(&state, sizeof state));
        CHECK_STATUS(gt_step_get_state(n.step, &state), GT_BAD_STATE);
        CHECK_STATUS(gt_step_reset(n.step), GT_BAD_STATE);
        CHECK_STATUS(gt_step_get_memory(n.step, &m), GT_BAD_STATE);
        CHECK_STATUS(gt_step_describe(n.step, GT_STEP_TEXT, NULL, 0, NULL), GT_BAD_STATE);
        CHECK_STATUS(gt_step_run(n.step, NULL, 1), GT_BAD_STATE);
        net_end(&n);
    }
}

/* ---- optimizers and scaler -------------------------------------------------------------------------------------------------------------------- */

static void two_optimizers(gt_module *net, gt_optimizer **optimizers) {
    for (int i = 0; i < 2; ++i) {
        gt_optimizer_options o;
        gt_tensor *p[3];
        CHECK_OK(gt_optimizer_options_init(&o, sizeof o, i ? GT_OPTIMIZER_ADAM : GT_OPTIMIZER_SGD));
        o.learning_rate = i ? 0.003 : 0.05;
        for (int k = 0; k < 3; ++k) CHECK_OK(gt_module_parameter(net, 3 * i + k, NULL, &p[k]));
        CHECK_OK(gt_optimizer_create(&o, p, 3, &optimizers[i]));
    }
}

TEST_DEVICES(unit, step_with_two_optimizers_has_their_own_rates) {
    pair p = {.a = {.ctx = net_context(t)}, .b = {.ctx = net_context(t)}};
    gt_optimizer *optimizers[4];
    p.a.net = net_mlp(p.a.ctx, NET_IN, NET_HIDDEN);
    p.b.net = net_mlp(p.b.ctx, NET_IN, NET_HIDDEN);
    two_optimizers(p.a.net, optimizers);
    two_optimizers(p.b.net, optimizers + 2);
    gt_step_options so = net_options(&p.a);
    so.optimizers = optimizers;
    so.n_optimizers = 2;
    CHECK_OK(gt_step_create(p.a.ctx, &so, &p.a.step));
    gt_window_options o;
    CHECK_OK(gt_window_options_init(&o, sizeof o));
    o.module = p.b.net;
    o.optimizers = optimizers + 2;
    o.n_optimizers = 2;
    CHECK_OK(gt_window_create(&o, &p.window));
    for (int i = 0; i < 8; ++i) {
        if (i == 4) /* one of the two */
            for (int k = 0; k < 2; ++k) CHECK_OK(gt_optimizer_set_learning_rate(optimizers[2 * k + 1], 0.05));
        both(&p, i % 3 ? 16 : 20, i);
    }
    pair_end(&p);
    for (int i = 0; i < 4; ++i) gt_optimizer_destroy(optimizers[i]);
}

static gt_scaler_state scaler_of(gt_scaler *scaler) {
    gt_scaler_state s;
    CHECK_OK(gt_scaler_state_init(&s, sizeof s));
    CHECK_OK(gt_scaler_get_state(scaler, &s));
    return s;
}

/* A scale that is far too large: updates are left out, and the scale halves, until it fits. */
TEST_DEVICES(unit, step_skips_an_update_that_overflows_and_halves_the_scale) {
    pair p = pair_begin(t, true, 1);
    for (int k = 0; k < 2; ++k) {
        gt_scaler *scaler = k ? p.b.scaler : p.a.scaler;
        gt_scaler_state s = scaler_of(scaler);
        s.scale = ldexp(1, 24);
        CHECK_OK(gt_scaler_set_state(scaler, &s));
    }
    double before = ldexp(1, 24);
    for (int i = 0; i < 8; ++i) {
        both(&p, 16, i);
        gt_scaler_state x = scaler_of(p.a.scaler), y = scaler_of(p.b.scaler);
        CHECK(x.scale == y.scale && x.status == y.status && x.skipped == y.skipped);
        if (i == 0) CHECK_EQ_INT(x.status, GT_SCALER_SKIPPED);
        CHECK(x.scale == (x.status == GT_SCALER_SKIPPED ? before / 2 : before));
        before = x.scale;
        gt_window_state left, right;
        CHECK_OK(gt_window_state_init(&left, sizeof left));
        CHECK_OK(gt_window_state_init(&right, sizeof right));
        CHECK_OK(gt_step_get_state(p.a.step, &left));
        CHECK_OK(gt_window_get_state(p.window, &right));
        CHECK(left.status == right.status && left.updates == right.updates && left.skipped == right.skipped);
    }
    CHECK_EQ_INT(scaler_of(p.a.scaler).status, GT_SCALER_STEPPED);
    pair_end(&p);
}

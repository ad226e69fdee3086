/* Contract M3 for windows: a window that fails takes everything back to its start, and its repeat is what an undisturbed run gives, bit by bit. */
#include "step_support.h"

/* An op that fails when it is told to. */
typedef struct fuse {
    bool blown;
} fuse;

static gt_status fuse_forward(const gt_custom_call *call) { return ((const fuse *)call->user)->blown ? GT_CALLBACK : GT_OK; }

/* x itself, or NULL; the op's own result is not used. */
static gt_tensor *fused(gt_tensor *x, fuse *f) {
    gt_custom_op_options o;
    gt_tensor *unused = NULL;
    if (x == NULL || gt_custom_op_options_init(&o, sizeof o) != GT_OK) return NULL;
    o.name = "fuse";
    o.user = f;
    o.forward = fuse_forward;
    return gt_custom_op_call(&o, &x, 1, &unused) == GT_OK ? x : NULL;
}

typedef struct run {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_scaler *scaler;
    gt_window *window;
    fuse fuse;
} run;

static void run_begin(test_case *t, run *r) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.seed = 7;
    options.deterministic = 1;
    *r = (run){.ctx = test_context_with(t, &options), .fuse = {false}};
    gt_module *const layers[] = {gt_nn_linear(r->ctx, 4, 8, NULL), gt_nn_batch_norm(r->ctx, 8, NULL), gt_nn_dropout(r->ctx, 0.5),
                                 gt_nn_linear(r->ctx, 8, 1, NULL)};
    r->net = gt_nn_sequential_from(r->ctx, layers, 4);
    CHECK(r->net != NULL);
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAM));
    o.learning_rate = 0.01;
    CHECK_OK(gt_optimizer_create_for(&o, r->net, &r->optimizer));
    r->scaler = step_scaler(r->ctx, 0, 2);
    gt_window_options w = step_window_options(&r->optimizer, 1, 3);
    w.module = r->net;
    w.scaler = r->scaler;
    w.clip_norm = 0.5;
    r->window = step_window(&w);
}

static void run_end(run *r) {
    gt_window_destroy(r->window);
    gt_scaler_destroy(r->scaler);
    gt_optimizer_destroy(r->optimizer);
    gt_module_destroy(r->net);
}

static gt_status micro(run *r, int number) {
    float x[12];
    for (int i = 0; i < 12; ++i) x[i] = (float)((i * 7 + number * 5) % 11) - 5;
    gt_status status = gt_window_micro_begin(r->window);
    if (status != GT_OK) return status;
    CHECK_OK(gt_scope_begin(r->ctx));
    gt_tensor *in = gt_tensor_from_data(r->ctx, GT_DTYPE_F32, 2, (const int64_t[]){3, 4}, x, sizeof x);
    gt_tensor *y = fused(gt_module_forward(r->net, in), &r->fuse);
    status = gt_window_micro_end(r->window, y ? gt_mean(gt_square(y), NULL, 0, 0) : NULL, 3, NULL);
    CHECK_OK(gt_scope_end(r->ctx));
    return status;
}

/* Weights, statistics and the numbers on the host, as bytes. */
typedef struct picture {
    float values[256];
    size_t n;
    uint64_t seed, offset;
    gt_scaler_state scaler;
    int64_t updates;
} picture;

static void take(run *r, picture *p) {
    memset(p, 0, sizeof *p);
    for (int32_t i = 0; i < gt_module_parameter_count(r->net) + gt_module_buffer_count(r->net); ++i) {
        gt_tensor *tensor;
        int32_t n = gt_module_parameter_count(r->net);
        if (i < n)
            CHECK_OK(gt_module_parameter(r->net, i, NULL, &tensor));
        else
            CHECK_OK(gt_module_buffer(r->net, i - n, NULL, &tensor));
        CHECK(p->n + (size_t)gt_tensor_numel(tensor) <= 256);
        step_read(tensor, p->values + p->n, gt_tensor_numel(tensor));
        p->n += (size_t)gt_tensor_numel(tensor);
    }
    CHECK_OK(gt_random_state_get(r->ctx, &p->seed, &p->offset));
    p->scaler = step_state(r->scaler);
    p->scaler.parameter = p->scaler.op = p->scaler.module = NULL;
    p->updates = step_window_state(r->window).updates;
}

static void check_same(const picture *a, const picture *b) { CHECK(memcmp(a, b, sizeof *a) == 0); }

static void check_no_gradients(run *r) {
    for (int32_t i = 0; i < gt_module_parameter_count(r->net); ++i) {
        gt_tensor *tensor;
        CHECK_OK(gt_module_parameter(r->net, i, NULL, &tensor));
        CHECK(gt_tensor_grad(tensor) == NULL);
    }
}

static uint64_t in_use(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    return stats.in_use;
}

/* `windows` of three micro-batches; in each, before it succeeds, the k-th micro-batch fails for each k (if `disturb`). */
static void train(run *r, int windows, bool disturb, picture *end) {
    picture before, after;
    for (int w = 0; w < windows; ++w) {
        take(r, &before);
        uint64_t bytes = in_use(r->ctx);
        for (int k = 0; k < 3 && disturb; ++k) {
            for (int i = 0; i <= k; ++i) {
                r->fuse.blown = i == k;
                gt_status status = micro(r, 3 * w + i);
                r->fuse.blown = false;
                if (i < k) {
                    CHECK_OK(status);
                } else {
                    CHECK_STATUS(status, GT_CALLBACK);
                    CHECK_ERROR_HAS("fuse");
                }
            }
            check_no_gradients(r);
            CHECK_EQ_INT(in_use(r->ctx), bytes);
            CHECK_EQ_INT(step_window_state(r->window).micro_batches, 0);
            take(r, &after);
            check_same(&before, &after);
        }
        for (int i = 0; i < 3; ++i) CHECK_OK(micro(r, 3 * w + i));
    }
    take(r, end);
    CHECK_EQ_INT(end->updates, windows);
}

TEST_DEVICES(contract, M3_a_failed_micro_batch_takes_its_window_back) {
    run undisturbed, disturbed;
    picture a, b;
    run_begin(t, &undisturbed);
    run_begin(t, &disturbed);
    train(&undisturbed, 4, false, &a);
    train(&disturbed, 4, true, &b);
    check_same(&a, &b); /* Adam's moments and step counts too, or the weights would differ */
    CHECK(a.scaler.scale == 4 * 65536.0);
    run_end(&undisturbed);
    run_end(&disturbed);
}

/* Out of memory in the middle: a limit that the third micro-batch meets. */
TEST_DEVICES(contract, M3_out_of_memory_takes_the_window_back) {
    run r;
    picture before, after;
    run_begin(t, &r);
    for (int round = 0; round < 100; ++round) {
        take(&r, &before);
        CHECK_OK(micro(&r, 0));
        CHECK_OK(micro(&r, 1));
        CHECK_OK(gt_window_micro_begin(r.window));
        CHECK_OK(gt_scope_begin(r.ctx));
        gt_tensor *x = gt_tensor_full(r.ctx, GT_DTYPE_F32, 2, (const int64_t[]){3, 4}, 1);
        gt_tensor *y = gt_module_forward(r.net, x);
        gt_tensor *huge = gt_tensor_zeros(r.ctx, GT_DTYPE_F32, 2, (const int64_t[]){(int64_t)1 << 28, (int64_t)1 << 28});
        CHECK_STATUS(gt_window_micro_end(r.window, gt_sum(gt_mul(y, huge), NULL, 0, 0), 3, NULL), GT_OUT_OF_MEMORY);
        CHECK_OK(gt_scope_end(r.ctx));
        check_no_gradients(&r);
        take(&r, &after);
        check_same(&before, &after);
    }
    for (int i = 0; i < 3; ++i) CHECK_OK(micro(&r, i));
    CHECK_EQ_INT(step_window_state(r.window).updates, 1);
    run_end(&r);
}

/* The step itself fails: the window's optimizer has no gradient, though the loss has one. */
TEST_DEVICES(contract, M3_a_failed_step_takes_its_window_back) {
    run r;
    picture before, after;
    run_begin(t, &r);
    gt_tensor *alien = step_leaf(r.ctx, GT_DTYPE_F32, 1, 1);
    CHECK_OK(gt_module_set_trainable(r.net, 0));
    take(&r, &before);
    for (int i = 0; i < 3; ++i) {
        CHECK_OK(gt_window_micro_begin(r.window));
        CHECK_OK(gt_scope_begin(r.ctx));
        gt_tensor *y = gt_module_forward(r.net, gt_tensor_full(r.ctx, GT_DTYPE_F32, 2, (const int64_t[]){3, 4}, i + 1));
        gt_status status = gt_window_micro_end(r.window, gt_sum(gt_mul(y, alien), NULL, 0, 0), 3, NULL);
        CHECK_OK(gt_scope_end(r.ctx));
        CHECK_STATUS(status, i < 2 ? GT_OK : GT_NO_GRADS);
    }
    take(&r, &after);
    check_same(&before, &after);
    CHECK_OK(gt_module_set_trainable(r.net, 1));
    for (int i = 0; i < 3; ++i) CHECK_OK(micro(&r, i));
    CHECK_EQ_INT(step_window_state(r.window).updates, 1);
    gt_tensor_release(alien);
    run_end(&r);
}

TEST_DEVICES(contract, M3_cancelling_takes_the_window_back) {
    run r;
    picture before, after;
    run_begin(t, &r);
    take(&r, &before);
    CHECK_OK(gt_window_cancel(r.window)); /* nothing is open */
    CHECK_OK(micro(&r, 0));
    gt_tensor *count = NULL;
    CHECK_OK(gt_module_find(r.net, "1.num_batches_tracked", &count)); /* written in the middle of the window */
    CHECK(step_value(count) == 1);
    CHECK_OK(micro(&r, 1));
    CHECK_OK(gt_window_micro_begin(r.window));
    CHECK_OK(gt_window_cancel(r.window));
    take(&r, &after);
    check_same(&before, &after);
    check_no_gradients(&r);
    CHECK_OK(micro(&r, 0));
    gt_window_destroy(r.window);
    r.window = NULL;
    CHECK_OK(gt_module_find(r.net, "1.num_batches_tracked", &count));
    CHECK(step_value(count) == 0);
    CHECK_OK(gt_random_state_get(r.ctx, NULL, &after.offset));
    CHECK(after.offset == before.offset);
    run_end(&r);
}

/* More buffers than one launch copies, and one of several blocks with an odd end. */
TEST_DEVICES(contract, M3_all_buffers_go_back) {
    gt_context *ctx = test_context(t);
    for (int many = 0; many < 2; ++many) {
        const int64_t features = many ? 5 : 20001;
        gt_module *net = gt_nn_sequential(ctx);
        for (int i = 0; i < (many ? 120 : 1); ++i) CHECK_OK(gt_nn_sequential_add(net, gt_nn_batch_norm(ctx, features, NULL)));
        gt_optimizer_options o;
        gt_optimizer *optimizer;
        CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
        CHECK_OK(gt_optimizer_create_for(&o, net, &optimizer));
        gt_window_options w = step_window_options(&optimizer, 1, 2);
        w.module = net;
        gt_window *window = step_window(&w);
        for (int round = 0; round < 2; ++round) {
            CHECK_OK(gt_scope_begin(ctx));
            gt_tensor *x = gt_tensor_normal(ctx, GT_DTYPE_F32, 2, (const int64_t[]){4, features}, 3, 2);
            CHECK_OK(gt_window_micro_begin(window));
            CHECK_OK(gt_window_micro_end(window, gt_mean(gt_module_forward(net, x), NULL, 0, 0), 4, NULL));
            CHECK_OK(gt_window_cancel(window));
            for (int32_t i = 0; i < gt_module_buffer_count(net); ++i) {
                gt_tensor *buffer;
                CHECK_OK(gt_module_buffer(net, i, NULL, &buffer));
                gt_tensor *wide = gt_cast(buffer, GT_DTYPE_F64);
                double least = step_value(gt_neg(gt_max(gt_neg(wide), NULL, 0, 0))), most = step_value(gt_max(wide, NULL, 0, 0));
                CHECK(least == (i % 3 == 1) && most == (i % 3 == 1)); /* mean 0, variance 1, count 0 */
            }
            CHECK_OK(gt_scope_end(ctx));
        }
        gt_window_destroy(window);
        gt_optimizer_destroy(optimizer);
        gt_module_destroy(net);
    }
}

/* What a profile counts, on a network whose numbers are known. */
#include "profile/network.h"

#include "core/core.h"
#include "profile/profile.h"

enum { STEPS = 3 };

static void check(const gt_profile *p, const char *op, const char *module, const char *phase, int64_t calls, uint64_t flops,
                  uint64_t bytes) {
    const gt_profile_entry *e = network_entry(p, op, module, phase);
    if (e->calls != STEPS * calls) FAIL("%s \"%s\": %lld calls, not %lld", op, module, (long long)e->calls, (long long)(STEPS * calls));
    if (e->flops != STEPS * flops)
        FAIL("%s \"%s\": %llu flops, not %llu", op, module, (unsigned long long)e->flops, (unsigned long long)(STEPS * flops));
    if (bytes > 0 && e->bytes != STEPS * bytes)
        FAIL("%s \"%s\": %llu bytes, not %llu", op, module, (unsigned long long)e->bytes, (unsigned long long)(STEPS * bytes));
}

/* What both ways of running a step have in common: the convolution makes [4,8,6,6], pooling [4,8,3,3]. */
static void check_network(const gt_profile *p) {
    const uint64_t convolved = 4 * 8 * 6 * 6, pooled = 4 * 8 * 3 * 3;
    check(p, "conv2d_relu", "0", "forward", 1, convolved * (2 * 9 + 2), 4 * (4 * 64 + 72 + 8 + convolved));
    check(p, "max_pool2d", "2", "forward", 1, pooled * 4, 0);
    check(p, "linear_relu", "4", "forward", 1, 2 * 72 * 64 + 2 * 64, 4 * (4 * 72 + 16 * 72 + 16 + 64));
    check(p, "linear", "6", "forward", 1, 2 * 16 * 20 + 20, 4 * (64 + 80 + 5 + 20));
    check(p, "matmul", "6", "backward", 1, 2 * 5 * 64, 4 * (20 + 80 + 64));
    check(p, "linear_backward_weight", "6", "backward", 1, 2 * 4 * 80, 4 * (20 + 64 + 80));
    check(p, "matmul", "4", "backward", 1, 2 * 16 * pooled, 4 * (64 + 16 * 72 + pooled));
    check(p, "linear_backward_weight", "4", "backward", 1, 2 * 4 * 16 * 72, 4 * (64 + pooled + 16 * 72));
    check(p, "max_pool2d_backward", "2", "backward", 1, pooled, 0);
    check(p, "conv2d_backward_weight", "0", "backward", 1, convolved * 2 * 9, 4 * (convolved + 4 * 64 + 72));
}

static void check_sums(const gt_profile *p, double most_seconds) {
    gt_profile_summary s;
    gt_profile_summary sum = {0};
    CHECK_OK(gt_profile_summary_init(&s, sizeof s));
    CHECK_OK(gt_profile_get_summary(p, &s));
    CHECK_EQ_INT(s.steps, STEPS);
    CHECK_EQ_INT(s.untimed, 0);
    CHECK_EQ_INT(s.dropped_events, 0);
    CHECK(s.wall_seconds > 0 && s.wall_seconds <= most_seconds);
    double before = 1e9;
    for (int32_t i = 0; i < gt_profile_entry_count(p); ++i) {
        const gt_profile_entry *e = gt_profile_get_entry(p, i);
        CHECK(e->calls > 0 && e->host_seconds >= 0 && e->device_seconds >= 0);
        CHECK(e->device_seconds <= before); /* the most first */
        before = e->device_seconds;
        sum.calls += e->calls;
        sum.host_seconds += e->host_seconds;
        sum.device_seconds += e->device_seconds;
        sum.bytes += e->bytes;
        sum.flops += e->flops;
        if (e->device_seconds <= 0) continue;
        CHECK_NEAR(e->bytes_per_second * e->device_seconds, (double)e->bytes, 1e-9);
        CHECK_NEAR(e->flops_per_second * e->device_seconds, (double)e->flops, 1e-9);
        /* Where the memory or, for products, the processors would be the limit (network_set_ceilings). */
        double least = (double)e->bytes / 1e10;
        if (e->matrix && (double)e->flops / 1e11 > least) least = (double)e->flops / 1e11;
        CHECK_NEAR(e->ceiling, strncmp(e->op, "copy ", 5) == 0 && strcmp(e->op, "copy on device") != 0 ? 0 : least / e->device_seconds,
                   1e-9);
    }
    CHECK(gt_profile_get_entry(p, gt_profile_entry_count(p)) == NULL && gt_profile_get_entry(p, -1) == NULL);
    CHECK_EQ_INT(sum.calls, s.calls);
    CHECK_EQ_INT(sum.bytes, s.bytes);
    CHECK_EQ_INT(sum.flops, s.flops);
    CHECK_NEAR(sum.host_seconds, s.host_seconds, 1e-9);
    CHECK_NEAR(sum.device_seconds, s.device_seconds, 1e-9);
    CHECK(s.host_seconds <= s.wall_seconds);
    CHECK(s.device_seconds <= s.wall_seconds); /* calls of one stream do not overlap, and nothing else is copied meanwhile */
    CHECK(s.device_seconds > 0);
}

static void count_eagerly(test_case *t, int timers) {
    network n;
    network_begin(t, &n, 0);
    if (timers) network_use_timers(&n);
    network_train(&n);
    gt_profile *p = network_profile(&n, 0, 0, 0, 0);
    double begin = gt__clock_seconds();
    for (int i = 0; i < STEPS; ++i) network_train(&n);
    CHECK_OK(gt_profile_stop(p));
    double seconds = gt__clock_seconds() - begin + 1e-3;
    check_network(p);
    check(p, "bias_relu_backward", "4", "backward", 1, 2 * 64, 4 * (64 + 64 + 64 + 16));
    check(p, "cross_entropy", "", "other", 1, 4 * 20, 0);
    check(p, "cross_entropy_backward", "", "backward", 1, 4 * 20, 0);
    check(p, "update", "", "update", 1, 2 * (72 + 8 + 1152 + 16 + 80 + 5), 12 * (72 + 8 + 1152 + 16 + 80 + 5));
    check(p, "copy host to device", "", "other", 2, 0, 0);
    check_sums(p, seconds);
    gt_profile_destroy(p);
    network_end(&n);
}

TEST_DEVICES(unit, profile_counts_an_eager_step_exactly) { count_eagerly(t, 0); }
/* The way of a GPU, whose times are read when the round is over. */
TEST(unit, profile_counts_with_timers) { count_eagerly(t, 1); }

TEST_DEVICES(unit, profile_counts_a_compiled_step_exactly) {
    network n;
    network_begin(t, &n, 1);
    for (int i = 0; i < 5; ++i) network_train(&n); /* on CUDA it is a graph by then */
    gt_profile *p = network_profile(&n, 0, 0, 0, 0);
    double begin = gt__clock_seconds();
    for (int i = 0; i < STEPS; ++i) network_train(&n);
    CHECK_OK(gt_profile_stop(p));
    check_network(p);
    check_sums(p, gt__clock_seconds() - begin + 1e-3);
    CHECK_EQ_INT(network_entry(p, "update", NULL, "update")->calls, STEPS);
    gt_profile_destroy(p);
    network_end(&n);
}

/* What a step computes does not depend on who looks. */
TEST_DEVICES(unit, profile_changes_no_result) {
    for (int compiled = 0; compiled < 2; ++compiled) {
        network plain, watched;
        network_begin(t, &plain, compiled);
        network_begin(t, &watched, compiled);
        gt_profile *p = network_profile(&watched, 1, 1, 2, 2);
        for (int i = 0; i < 10; ++i) {
            double a = network_train_loss(&plain), b = network_train_loss(&watched);
            if (a != b) FAIL("compiled %d, step %d: %.17g with a profile, %.17g without", compiled, i, b, a);
        }
        gt_profile_destroy(p);
        network_end(&plain);
        network_end(&watched);
    }
}

/* Off means: nothing stands between the context and its device. */
TEST_DEVICES(unit, profile_stands_in_between_only_while_it_looks) {
    network n;
    network_begin(t, &n, 0);
    const gt__backend *own = n.ctx->backend;
    gt__device *device = n.ctx->device;
    CHECK(device == n.ctx->opened);
    gt_profile *p = network_profile(&n, 1, 1, 1, 2);
    static const int between[] = {0, 1, 1, 0, 1, 1, 0, 0};
    for (int i = 0; i < 8; ++i) {
        CHECK_EQ_INT(n.ctx->backend != own, between[i]);
        CHECK_EQ_INT(n.ctx->device != device, between[i]);
        CHECK(gt_context_device_name(n.ctx) == device->name);
        network_train(&n);
    }
    gt_profile_destroy(p);
    CHECK(n.ctx->backend == own && n.ctx->device == device);
    network_end(&n);
}

/* A backend function that the table before it forgets would be a crash, or a thing that the device seems to lack. */
TEST_DEVICES(unit, profile_hands_on_all_that_the_device_has) {
    network n;
    network_begin(t, &n, 0);
    const gt__backend own = *n.ctx->backend;
    gt_profile *p = network_profile(&n, 0, 0, 0, 0);
    gt__backend between = *n.ctx->backend;
    CHECK_EQ_INT(between.kind, own.kind);
    CHECK(between.open == NULL && between.close == NULL); /* a context opens and closes the device itself */
    between.open = own.open;
    between.close = own.close;
    for (size_t at = offsetof(gt__backend, name); at < sizeof own; at += sizeof(void *)) {
        void *a, *b;
        memcpy(&a, (const char *)&own + at, sizeof a);
        memcpy(&b, (const char *)&between + at, sizeof b);
        if ((a == NULL) != (b == NULL))
            FAIL("field %zu of the table is %s", at / sizeof(void *), b ? "there, the device has none" : "missing");
    }
    for (int op = 0; op < GT__OP_COUNT; ++op) CHECK_EQ_INT(between.kernels[op] != NULL, own.kernels[op] != NULL);
    gt_profile_destroy(p);
    network_end(&n);
}

TEST_DEVICES(unit, profile_passes_options_of_the_context_on) {
    network n;
    network_begin(t, &n, 0);
    gt_profile *p = network_profile(&n, 0, 0, 0, 0);
    CHECK_OK(gt_context_set_workspace_limit(n.ctx, 12345));
    CHECK_EQ_INT(n.ctx->opened->workspace_limit, 12345);
    CHECK_EQ_INT(n.ctx->device->workspace_limit, 12345);
    gt_profile_destroy(p);
    CHECK_EQ_INT(n.ctx->device->workspace_limit, 12345);
    network_end(&n);
}

TEST_DEVICES(unit, profile_of_two_contexts_is_two_profiles) {
    network a, b;
    network_begin(t, &a, 0);
    network_begin(t, &b, 1);
    gt_profile *p = network_profile(&a, 0, 0, 0, 0), *q = network_profile(&b, 0, 0, 0, 0);
    network_train(&a);
    network_train(&b);
    network_train(&b);
    CHECK_OK(gt_profile_stop(p));
    network_train(&b);
    CHECK_OK(gt_profile_stop(q));
    CHECK_EQ_INT(network_entry(p, "conv2d_relu", "0", "forward")->calls, 1);
    CHECK_EQ_INT(network_entry(q, "conv2d_relu", "0", "forward")->calls, 3);
    gt_profile_destroy(p);
    gt_profile_destroy(q);
    network_end(&a);
    network_end(&b);
}

static gt_status do_nothing(const gt_custom_call *call) {
    (void)call;
    return GT_OK;
}

static gt_status refuse(const gt_custom_call *call) {
    (void)call;
    return GT_CALLBACK;
}

TEST_DEVICES(unit, profile_names_custom_ops_and_leaves_failed_calls_out) {
    gt_context *ctx = test_context(t);
    gt_profile *p = NULL;
    gt_custom_op_options good, bad;
    CHECK_OK(gt_custom_op_options_init(&good, sizeof good));
    good.name = "my_op";
    network_set_ceilings(ctx);
    good.forward = good.backward = do_nothing;
    good.saves_inputs = good.saves_outputs = 0;
    bad = good;
    bad.name = "bad_op";
    bad.forward = refuse;
    CHECK_OK(gt_profile_create(ctx, NULL, &p));
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[1] = {10};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 1)), *y = NULL;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_custom_op_call(&good, &x, 1, &y));
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    CHECK_STATUS(gt_custom_op_call(&bad, &x, 1, &y), GT_CALLBACK);
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_profile_stop(p));
    CHECK_EQ_INT(network_entry(p, "my_op", "", "other")->calls, 1);
    CHECK_EQ_INT(network_entry(p, "my_op", "", "other")->bytes, 80);
    CHECK_EQ_INT(network_entry(p, "my_op", "", "backward")->calls, 1);
    CHECK_EQ_INT(network_entry(p, "my_op", "", "backward")->bytes, 80); /* the gradients alone: it saves nothing */
    for (int32_t i = 0; i < gt_profile_entry_count(p); ++i) CHECK(strcmp(gt_profile_get_entry(p, i)->op, "bad_op") != 0);
    gt_profile_destroy(p);
}

TEST_DEVICES(unit, ceilings_are_measured_once_and_leave_no_memory) {
    gt_context *ctx = test_context(t);
    gt_memory_stats before, after;
    gt_profile_ceilings a, b;
    CHECK_OK(gt_memory_stats_init(&before, sizeof before));
    CHECK_OK(gt_memory_stats_init(&after, sizeof after));
    CHECK_OK(gt_profile_ceilings_init(&a, sizeof a));
    CHECK_OK(gt_profile_ceilings_init(&b, sizeof b));
    CHECK_OK(gt_memory_get_stats(ctx, &before));
    CHECK_OK(gt_profile_get_ceilings(ctx, &a));
    CHECK_OK(gt_memory_get_stats(ctx, &after));
    CHECK_EQ_INT(after.peak_in_use, before.peak_in_use);
    CHECK_EQ_INT(after.reserved, before.reserved);
    CHECK(a.bytes_per_second > 1e8 && a.bytes_per_second < 1e14);
    CHECK(a.f32_flops_per_second > 1e7 && a.f32_flops_per_second < 1e16);
    CHECK(a.f16_flops_per_second > 1e6 && a.f16_flops_per_second < 1e16);
    double begin = gt__clock_seconds();
    CHECK_OK(gt_profile_get_ceilings(ctx, &b));
    CHECK(gt__clock_seconds() - begin < 1e-3);
    CHECK(memcmp(&a, &b, sizeof a) == 0);
}

TEST_DEVICES(unit, ceilings_stay_unknown_where_the_limit_leaves_no_memory) {
    gt_context *ctx = test_context(t);
    gt_profile_ceilings c;
    gt_profile *p = NULL;
    CHECK_OK(gt_profile_ceilings_init(&c, sizeof c));
    CHECK_OK(gt_context_set_memory_limit(ctx, 4 << 20));
    CHECK_STATUS(gt_profile_get_ceilings(ctx, &c), GT_OUT_OF_MEMORY);
    CHECK_OK(gt_profile_create(ctx, NULL, &p)); /* all the same */
    const int64_t shape[1] = {1000};
    gt_tensor_release(CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 1)));
    CHECK_OK(gt_profile_stop(p));
    CHECK(network_entry(p, "fill", "", "other")->ceiling == 0);
    gt_profile_destroy(p);
    CHECK_OK(gt_context_set_memory_limit(ctx, 0));
    CHECK_OK(gt_profile_get_ceilings(ctx, &c));
}

/* A profile that ends where nobody expects it, or that finds no memory. */
#include "profile/network.h"

#include "core/core.h"
#include "io/host_memory.h"
#include "profile/profile.h"

/* Destroyed in the middle of a round: training goes on as before. */
TEST_DEVICES(unit, profile_may_be_destroyed_in_the_middle) {
    for (int compiled = 0; compiled < 2; ++compiled) {
        network n, plain;
        network_begin(t, &n, compiled);
        network_begin(t, &plain, compiled);
        for (int i = 0; i < 4; ++i) {
            gt_profile *p = network_profile(&n, 0, i % 2, 3, 0);
            CHECK(network_train_loss(&n) == network_train_loss(&plain));
            gt_profile_destroy(p);
            CHECK(network_train_loss(&n) == network_train_loss(&plain));
        }
        CHECK(n.ctx->device == n.ctx->opened);
        network_end(&n);
        network_end(&plain);
    }
}

/* While a step is traced, another device stands before the profile's. */
static void destroy_it(void *user) {
    gt_profile **p = user;
    if (*p == NULL) return;
    EXPECT_STATUS(gt_profile_step(*p), GT_BAD_STATE);
    EXPECT_STATUS(gt_profile_stop(*p), GT_BAD_STATE);
    EXPECT_ERROR_HAS("traced");
    gt_profile_destroy(*p);
    *p = NULL;
}

TEST_DEVICES(unit, profile_may_be_destroyed_while_a_step_is_traced) {
    network n, plain;
    network_begin(t, &n, 1);
    network_begin(t, &plain, 1);
    gt_profile *p = network_profile(&n, 0, 0, 0, 0);
    n.tracing = destroy_it;
    n.user = &p;
    for (int i = 0; i < 5; ++i) {
        CHECK(network_train_loss(&n) == network_train_loss(&plain));
        CHECK(p == NULL);
        CHECK(n.ctx->device == n.ctx->opened); /* the end of the step has taken it away */
    }
    p = network_profile(&n, 0, 0, 0, 0); /* and another may come */
    network_train(&n);
    CHECK_OK(gt_profile_stop(p));
    CHECK_EQ_INT(network_entry(p, "conv2d_relu", "0", "forward")->calls, 1);
    gt_profile_destroy(p);
    network_end(&n);
    network_end(&plain);
}

static void create_it(void *user) {
    network *n = user;
    gt_profile *p;
    EXPECT_STATUS(gt_profile_create(n->ctx, NULL, &p), GT_BAD_STATE);
}

TEST(unit, profile_cannot_begin_while_a_step_is_traced) {
    network n;
    network_begin(t, &n, 1);
    n.tracing = create_it;
    n.user = &n;
    network_train(&n);
    network_end(&n);
}

static gt_profile *victim;
static gt_status kill_it(const gt_custom_call *call) {
    gt_profile *other;
    EXPECT_STATUS(gt_profile_step(victim), GT_BAD_STATE);
    EXPECT_STATUS(gt_profile_stop(victim), GT_BAD_STATE);
    EXPECT_ERROR_HAS("custom op");
    EXPECT_OK(gt_memory_next_step(call->user)); /* no step of the profile */
    gt_profile_destroy(victim);
    EXPECT_STATUS(gt_profile_create(call->user, NULL, &other), GT_BAD_STATE);
    victim = NULL;
    return GT_OK;
}

TEST(unit, profile_may_be_destroyed_by_a_custom_op_that_it_sees) {
    gt_context *ctx = test_context(t);
    gt_custom_op_options o;
    CHECK_OK(gt_custom_op_options_init(&o, sizeof o));
    o.name = "killer";
    o.forward = kill_it;
    o.user = ctx;
    network_set_ceilings(ctx);
    CHECK_OK(gt_profile_create(ctx, NULL, &victim));
    const int64_t shape[1] = {10};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 1)), *y = NULL;
    CHECK_OK(gt_custom_op_call(&o, &x, 1, &y));
    CHECK(victim == NULL);
    CHECK(ctx->device == ctx->opened);
    gt_tensor_release(y);
    gt_tensor_release(CHECK_TENSOR(gt_relu(x)));
    gt_tensor_release(x);
}

static void destroy_in_callback(void *user, gt_profile *profile) {
    ++*(int *)user;
    gt_profile_destroy(profile);
}

TEST(unit, profile_may_be_destroyed_by_its_callback) {
    network n;
    gt_profile_options o;
    gt_profile *p;
    int count = 0;
    network_begin(t, &n, 0);
    CHECK_OK(gt_profile_options_init(&o, sizeof o));
    o.active = 2;
    o.on_round = destroy_in_callback;
    o.user = &count;
    CHECK_OK(gt_profile_create(n.ctx, &o, &p));
    for (int i = 0; i < 6; ++i) network_train(&n);
    CHECK_EQ_INT(count, 1);
    CHECK_OK(gt_profile_create(n.ctx, &o, &p));
    network_train(&n);
    CHECK_OK(gt_profile_stop(p)); /* the callback has freed it */
    CHECK_EQ_INT(count, 2);
    CHECK(n.ctx->device == n.ctx->opened);
    network_end(&n);
}

/* Results outlive the context. */
TEST_DEVICES(unit, profile_outlives_its_context) {
    gt_context_options options;
    gt_context *ctx;
    gt_profile *p;
    char text[4096], again[4096];
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.device = test_device(t);
    CHECK_OK(gt_context_create(&options, &ctx));
    network_set_ceilings(ctx);
    CHECK_OK(gt_profile_create(ctx, NULL, &p));
    const int64_t shape[2] = {100, 10};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1));
    gt_tensor_release(CHECK_TENSOR(gt_relu(x)));
    gt_tensor_release(x);
    gt_context_destroy(ctx); /* ends the round */
    CHECK_EQ_INT(gt_profile_get_phase(p), GT_PROFILE_DONE);
    CHECK_EQ_INT(network_entry(p, "relu", "", "other")->calls, 1);
    CHECK(network_entry(p, "relu", "", "other")->device_seconds > 0);
    CHECK_OK(gt_profile_text(p, GT_PROFILE_BY_ALL, 0, text, sizeof text, NULL));
    CHECK_OK(gt_profile_step(p));
    CHECK_OK(gt_profile_stop(p));
    CHECK_OK(gt_profile_text(p, GT_PROFILE_BY_ALL, 0, again, sizeof again, NULL));
    CHECK_EQ_STR(text, again);
    gt_profile_destroy(p);
}

/* Every allocation of the host fails once: a status or an incomplete profile, training never notices. */
TEST(unit, profile_without_host_memory_leaves_training_alone) {
    network n, plain;
    network_begin(t, &n, 0);
    network_begin(t, &plain, 0);
    int incomplete = 0, failed = 1;
    for (int k = 0; failed; ++k) {
        gt_profile *p = NULL;
        host_memory_watch(k);
        gt_status status = gt_profile_create(n.ctx, NULL, &p);
        failed = host_memory_failed();
        host_memory_watch(-1);
        CHECK(status == GT_OK || status == GT_OUT_OF_HOST_MEMORY);
        CHECK(status == GT_OK || n.ctx->device == n.ctx->opened);
        if (status == GT_OK) gt_profile_destroy(p);
    }
    /* What training itself allocates it has by now; what fails is the profile's. */
    for (int i = 0; i < 3; ++i) CHECK(network_train_loss(&n) == network_train_loss(&plain));
    failed = 1;
    for (int k = 0; failed && k < 400; ++k) {
        network_use_timers(&n);
        gt_profile *p = network_profile(&n, 0, 0, 0, 0);
        gt__profiled *d = gt__profiled_of(n.ctx->device);
        gt__watch w;
        const gt__cost cost = {.bytes = 8, .flops = 2};
        static const char *const ops[] = {"a", "b", "c", "d"};
        host_memory_watch(k);
        for (int i = 0; i < 40; ++i) {
            gt__watch_begin(d, &w, ops[i % 4], GT_DTYPE_F32, GT__STREAM_COMPUTE);
            gt__watch_end(d, &w, &cost, GT_OK);
        }
        gt__watch_step(p);
        failed = host_memory_failed();
        host_memory_watch(-1);
        gt_status status = gt_profile_stop(p);
        gt_profile_summary s;
        CHECK_OK(gt_profile_summary_init(&s, sizeof s));
        CHECK_OK(gt_profile_get_summary(p, &s));
        CHECK(s.calls <= 40);
        if (failed) incomplete += status != GT_OK || s.calls < 40 || s.untimed > 0 || s.dropped_events > 0;
        if (!failed) CHECK(status == GT_OK && s.calls == 40 && s.untimed == 0 && s.dropped_events == 0);
        gt_profile_destroy(p);
        CHECK(network_train_loss(&n) == network_train_loss(&plain));
    }
    CHECK(!failed && incomplete > 10);
    network_end(&n);
    network_end(&plain);
}

/* A long round keeps no more calls than it may, and its timers are used again. */
TEST_DEVICES(unit, profile_of_a_long_round_keeps_its_memory_bounded) {
    gt_context *ctx = test_context(t);
    gt_profile_options o;
    gt_profile *p;
    gt_profile_summary s;
    enum { CALLS = 100000 };
    CHECK_OK(gt_profile_options_init(&o, sizeof o));
    CHECK_OK(gt_profile_summary_init(&s, sizeof s));
    o.max_events = 1000;
    network_use_timers(&(network){.ctx = ctx});
    network_set_ceilings(ctx);
    CHECK_OK(gt_profile_create(ctx, &o, &p));
    const int64_t shape[1] = {4};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 1));
    for (int i = 0; i < CALLS; ++i) gt_tensor_release(CHECK_TENSOR(gt_neg(x)));
    CHECK(p->n_calls == 1000 && p->n_pending <= 1 << 15);
    CHECK_OK(gt_profile_stop(p));
    CHECK_OK(gt_profile_get_summary(p, &s));
    CHECK_EQ_INT(s.calls, CALLS + 1);
    CHECK_EQ_INT(s.dropped_events, CALLS + 1 - 1000);
    CHECK_EQ_INT(network_entry(p, "neg", "", "other")->calls, CALLS);
    if (test_device(t) == GT_DEVICE_CPU) CHECK_EQ_INT(s.untimed, 0);
    gt_profile_destroy(p);
    gt_tensor_release(x);
}

/* Which steps a profile measures, and when its results can be had. */
#include "profile/network.h"

enum { MOST = 64 };

typedef struct log {
    char phases[MOST]; /* before each step: w(ait), u (warm-up), a(ctive), d(one) */
    int rounds;
    int64_t steps[MOST], calls[MOST]; /* as the callback saw them */
    gt_profile *profile;
} log;

static void on_round(void *user, gt_profile *profile) {
    log *l = user;
    gt_profile_summary s;
    EXPECT_OK(gt_profile_summary_init(&s, sizeof s));
    EXPECT_OK(gt_profile_get_summary(profile, &s));
    EXPECT_EQ_INT(s.rounds, l->rounds + 1);
    l->steps[l->rounds] = s.steps;
    l->calls[l->rounds++] = network_entry(profile, "conv2d_relu", "0", "forward")->calls;
    EXPECT_STATUS(gt_profile_step(profile), GT_BAD_STATE);
    EXPECT_STATUS(gt_profile_stop(profile), GT_BAD_STATE);
}

static void begin(network *n, log *l, gt_profile_options *o) {
    *l = (log){.rounds = 0};
    o->on_round = on_round;
    o->user = l;
    CHECK_OK(gt_profile_create(n->ctx, o, &l->profile));
}

static void run(network *n, log *l, int steps) {
    for (int i = 0; i < steps; ++i) {
        l->phases[i] = "wuad"[gt_profile_get_phase(l->profile)];
        network_train(n);
    }
    l->phases[steps] = '\0';
}

TEST(unit, profile_schedule_is_torch_profilers) {
    static const struct {
        int skip_first, wait, warmup, active, repeat;
        const char *phases; /* of 14 steps */
        int rounds;
    } cases[] = {
        {0, 0, 0, 0, 0, "aaaaaaaaaaaaaa", 0}, {0, 2, 1, 0, 0, "wwuaaaaaaaaaaa", 0}, {0, 1, 1, 2, 0, "wuaawuaawuaawu", 3},
        {0, 1, 1, 2, 2, "wuaawuaadddddd", 2}, {3, 1, 1, 2, 1, "wwwwuaaddddddd", 1}, {0, 0, 0, 3, 0, "aaaaaaaaaaaaaa", 4},
        {2, 0, 0, 1, 3, "wwaaaddddddddd", 3}, {0, 0, 2, 1, 0, "uuauuauuauuauu", 4},
    };
    network n;
    network_begin(t, &n, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        gt_profile_options o;
        log l;
        CHECK_OK(gt_profile_options_init(&o, sizeof o));
        o.skip_first = cases[i].skip_first;
        o.wait = cases[i].wait;
        o.warmup = cases[i].warmup;
        o.active = cases[i].active;
        o.repeat = cases[i].repeat;
        begin(&n, &l, &o);
        run(&n, &l, 14);
        CHECK_EQ_STR(l.phases, cases[i].phases);
        CHECK_EQ_INT(l.rounds, cases[i].rounds);
        for (int r = 0; r < l.rounds; ++r) {
            CHECK_EQ_INT(l.steps[r], cases[i].active);
            CHECK_EQ_INT(l.calls[r], cases[i].active);
        }
        gt_profile_destroy(l.profile);
    }
    network_end(&n);
}

/* A round that is stopped in its middle has what it saw; results of a finished one outlive waiting and warming up. */
TEST_DEVICES(unit, profile_results_stay_until_the_next_round_measures) {
    network n;
    network_begin(t, &n, 0);
    gt_profile *p = network_profile(&n, 1, 2, 2, 0);
    gt_profile_summary s;
    char text[100];
    int64_t calls = 0;
    CHECK_OK(gt_profile_summary_init(&s, sizeof s));
    for (int i = 0; i < 15; ++i) {
        int position = i % 5, first = i < 5;
        if (position >= 3 || first) {
            CHECK_STATUS(gt_profile_get_summary(p, &s), GT_BAD_STATE);
            CHECK_STATUS(gt_profile_text(p, GT_PROFILE_BY_ALL, 0, text, sizeof text, NULL), GT_BAD_STATE);
            CHECK_EQ_INT(gt_profile_entry_count(p), 0);
        } else {
            CHECK_OK(gt_profile_get_summary(p, &s));
            CHECK_EQ_INT(s.steps, 2);
            if (position == 0) calls = s.calls;
            CHECK_EQ_INT(s.calls, calls);
            CHECK_EQ_INT(network_entry(p, "conv2d_relu", "0", "forward")->calls, 2);
        }
        if (i == 14) break;
        network_train(&n);
    }
    CHECK_OK(gt_profile_stop(p)); /* after one of two active steps */
    CHECK_OK(gt_profile_stop(p));
    CHECK_OK(gt_profile_get_summary(p, &s));
    CHECK_EQ_INT(s.steps, 1);
    CHECK_EQ_INT(s.rounds, 3);
    CHECK_EQ_INT(network_entry(p, "conv2d_relu", "0", "forward")->calls, 1);
    network_train(&n); /* not seen */
    CHECK_EQ_INT(network_entry(p, "conv2d_relu", "0", "forward")->calls, 1);
    CHECK_STATUS(gt_profile_step(p), GT_BAD_STATE);
    gt_profile_destroy(p);
    network_end(&n);
}

TEST(unit, profile_steps_are_ended_by_hand_where_asked) {
    network n;
    gt_profile_options o;
    gt_profile_summary s;
    log l;
    network_begin(t, &n, 0);
    CHECK_OK(gt_profile_options_init(&o, sizeof o));
    CHECK_OK(gt_profile_summary_init(&s, sizeof s));
    o.active = 2;
    o.repeat = 1;
    o.manual_steps = 1;
    begin(&n, &l, &o);
    for (int i = 0; i < 3; ++i) network_train(&n); /* three updates in one step */
    CHECK_OK(gt_profile_step(l.profile));
    CHECK_EQ_INT(gt_profile_get_phase(l.profile), GT_PROFILE_ACTIVE);
    network_train(&n);
    CHECK_OK(gt_profile_step(l.profile));
    CHECK_EQ_INT(gt_profile_get_phase(l.profile), GT_PROFILE_DONE);
    CHECK_EQ_INT(l.rounds, 1);
    CHECK_EQ_INT(l.calls[0], 4);
    CHECK_OK(gt_profile_step(l.profile)); /* nothing more */
    CHECK_OK(gt_profile_get_summary(l.profile, &s));
    CHECK_EQ_INT(s.steps, 2);
    gt_profile_destroy(l.profile);
    network_end(&n);
}

TEST(unit, profile_options_are_checked) {
    gt_context *ctx = test_context(t);
    gt_profile_options o;
    gt_profile *p = NULL, *other = NULL;
    network_set_ceilings(ctx);
    CHECK_OK(gt_profile_options_init(&o, sizeof o));
    o.warmup = -1;
    CHECK_STATUS(gt_profile_create(ctx, &o, &p), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("warmup is -1");
    o.warmup = 0;
    o.repeat = 2;
    CHECK_STATUS(gt_profile_create(ctx, &o, &p), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("active");
    CHECK_STATUS(gt_profile_create(NULL, NULL, &p), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_profile_create(ctx, NULL, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_profile_step(NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_profile_stop(NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_profile_text(NULL, 0, 0, NULL, 0, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_profile_json(NULL, "x"), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_profile_trace(NULL, "x"), GT_BAD_ARGUMENT);
    gt_profile_destroy(NULL);
    CHECK_OK(gt_profile_create(ctx, NULL, &p));
    CHECK_STATUS(gt_profile_create(ctx, NULL, &other), GT_BAD_STATE);
    CHECK_ERROR_HAS("has a profile");
    CHECK_OK(gt_profile_stop(p));
    CHECK_OK(gt_profile_create(ctx, NULL, &other)); /* the other has stopped */
    gt_profile_destroy(p);
    gt_profile_destroy(other);
    CHECK_OK(gt_profile_create(ctx, NULL, &p));
    gt_profile_destroy(p);
}

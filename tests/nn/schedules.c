/* Learning-rate schedules against PyTorch's. */
#include "pytorch_values.h"
#include "support.h"

static gt_schedule schedule_of(gt_schedule_kind kind) {
    gt_schedule s;
    CHECK_OK(gt_schedule_init(&s, sizeof s, kind));
    s.base = 0.4;
    return s;
}

static void check_rates(const gt_schedule *s, const double *want, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        double rate = -1;
        CHECK_OK(gt_schedule_rate(s, i, &rate));
        CHECK(fabs(rate - want[i]) <= 1e-10);
    }
}

TEST(parity, schedules_match_pytorch) {
    gt_schedule s = schedule_of(GT_SCHEDULE_STEP);
    s.step_size = 3;
    s.gamma = 0.5;
    check_rates(&s, rates_step, 8);
    s = schedule_of(GT_SCHEDULE_COSINE);
    s.total_steps = 8;
    s.min_factor = 0.1;
    check_rates(&s, rates_cosine, 9);
    s = schedule_of(GT_SCHEDULE_ONE_CYCLE);
    s.total_steps = 10;
    check_rates(&s, rates_one_cycle, 10);
    s.total_steps = 7;
    s.pct_start = 0.4;
    s.div_factor = 10;
    s.final_div_factor = 100;
    check_rates(&s, rates_one_cycle_uneven, 7);
    s = schedule_of(GT_SCHEDULE_CONSTANT);
    s.warmup_steps = 4;
    check_rates(&s, rates_warmup, 6);
    s = schedule_of(GT_SCHEDULE_COSINE);
    s.warmup_steps = 3;
    s.total_steps = 9;
    check_rates(&s, rates_warmup_cosine, 9);
}

TEST(unit, schedules_stay_at_their_end) {
    double rate = -1;
    gt_schedule s = schedule_of(GT_SCHEDULE_COSINE);
    s.total_steps = 8;
    CHECK_OK(gt_schedule_rate(&s, 12, &rate));
    CHECK_NEAR(rate, 0, 0);
    s = schedule_of(GT_SCHEDULE_ONE_CYCLE);
    s.total_steps = 10;
    CHECK_OK(gt_schedule_rate(&s, 1000, &rate));
    CHECK(fabs(rate - 1.6e-6) < 1e-12);
    s.total_steps = 1; /* nothing to rise or fall over */
    CHECK_OK(gt_schedule_rate(&s, 0, &rate));
    CHECK_NEAR(rate, 0.4, 0);
    s.total_steps = 3; /* the rise is shorter than a step */
    CHECK_OK(gt_schedule_rate(&s, 0, &rate));
    CHECK_NEAR(rate, 0.4, 0);
    s = schedule_of(GT_SCHEDULE_STEP);
    s.step_size = 1;
    CHECK_OK(gt_schedule_rate(&s, INT64_MAX, &rate));
    CHECK_NEAR(rate, 0, 0);
}

static void check_refused(const gt_schedule *s, int64_t step, const char *text) {
    double rate = 7;
    CHECK_STATUS(gt_schedule_rate(s, step, &rate), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS(text);
    CHECK(rate == 7);
}

TEST(unit, schedules_refuse_fields_by_name) {
    gt_schedule s = schedule_of(GT_SCHEDULE_STEP);
    check_refused(&s, 0, "step_size is 0");
    s.step_size = 1;
    check_refused(&s, -1, "step is -1");
    s.gamma = -1;
    check_refused(&s, 0, "gamma is -1");
    s = schedule_of(GT_SCHEDULE_COSINE);
    check_refused(&s, 0, "total_steps is 0");
    s.total_steps = 5;
    s.warmup_steps = 5;
    check_refused(&s, 0, "more than warmup_steps, 5");
    s = schedule_of(GT_SCHEDULE_ONE_CYCLE);
    s.total_steps = 5;
    s.pct_start = 2;
    check_refused(&s, 0, "pct_start is 2");
    s.pct_start = 0.3;
    s.warmup_steps = 1;
    check_refused(&s, 0, "warmup_steps is 1");
    s = schedule_of(GT_SCHEDULE_CONSTANT);
    s.base = NAN;
    check_refused(&s, 0, "base");
    s.base = 1;
    s.kind = 9;
    check_refused(&s, 0, "kind 9");
    double rate;
    CHECK_STATUS(gt_schedule_rate(NULL, 0, &rate), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_schedule_init(&s, sizeof s, -1), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_schedule_init(&s, 0, GT_SCHEDULE_STEP), GT_BAD_ABI);
}

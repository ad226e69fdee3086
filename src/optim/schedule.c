/* Learning-rate schedules as plain functions of the update's number. */
#include "optim/schedule.h"

#include "core/step_math.h"

static gt_status check_kind(gt_schedule_kind kind) {
    GT_REQUIRE(kind >= GT_SCHEDULE_CONSTANT && kind <= GT_SCHEDULE_ONE_CYCLE, GT_BAD_ARGUMENT,
               "schedule: kind %d is none of gt_schedule_kind", kind);
    return GT_OK;
}

static gt_schedule defaults_of(gt_schedule_kind kind) {
    return (gt_schedule){
        .struct_size = sizeof(gt_schedule), .kind = kind, .gamma = 0.1, .pct_start = 0.3, .div_factor = 25, .final_div_factor = 1e4};
}

gt_status gt_schedule_init(gt_schedule *schedule, size_t size, gt_schedule_kind kind) {
    GT_TRY(check_kind(kind));
    gt_schedule defaults = defaults_of(kind);
    return gt__options_write(schedule, size, &defaults, sizeof defaults, "gt_schedule");
}

static gt_status check(const gt_schedule *s) {
    GT_TRY(check_kind(s->kind));
    GT_REQUIRE(isfinite(s->base) && s->base >= 0, GT_BAD_ARGUMENT, "schedule: base is %g; it must be finite and not negative", s->base);
    GT_REQUIRE(s->warmup_steps >= 0, GT_BAD_ARGUMENT, "schedule: warmup_steps is %lld; it must not be negative",
               (long long)s->warmup_steps);
    if (s->kind == GT_SCHEDULE_STEP) {
        GT_REQUIRE(s->step_size > 0, GT_BAD_ARGUMENT, "schedule: step_size is %lld; it must be at least 1", (long long)s->step_size);
        GT_REQUIRE(isfinite(s->gamma) && s->gamma >= 0, GT_BAD_ARGUMENT, "schedule: gamma is %g; it must be finite and not negative",
                   s->gamma);
    }
    if (s->kind == GT_SCHEDULE_COSINE) {
        GT_REQUIRE(s->total_steps > s->warmup_steps, GT_BAD_ARGUMENT,
                   "schedule: total_steps is %lld; it must be more than warmup_steps, %lld", (long long)s->total_steps,
                   (long long)s->warmup_steps);
        GT_REQUIRE(s->min_factor >= 0 && s->min_factor <= 1, GT_BAD_ARGUMENT, "schedule: min_factor is %g; it must be in [0, 1]",
                   s->min_factor);
    }
    if (s->kind == GT_SCHEDULE_ONE_CYCLE) {
        GT_REQUIRE(s->total_steps > 0, GT_BAD_ARGUMENT, "schedule: total_steps is %lld; it must be at least 1", (long long)s->total_steps);
        GT_REQUIRE(s->warmup_steps == 0, GT_BAD_ARGUMENT, "schedule: warmup_steps is %lld; one-cycle rises by itself (pct_start)",
                   (long long)s->warmup_steps);
        GT_REQUIRE(s->pct_start >= 0 && s->pct_start <= 1, GT_BAD_ARGUMENT, "schedule: pct_start is %g; it must be in [0, 1]",
                   s->pct_start);
        GT_REQUIRE(isfinite(s->div_factor) && s->div_factor > 0, GT_BAD_ARGUMENT, "schedule: div_factor is %g; it must be more than 0",
                   s->div_factor);
        GT_REQUIRE(isfinite(s->final_div_factor) && s->final_div_factor > 0, GT_BAD_ARGUMENT,
                   "schedule: final_div_factor is %g; it must be more than 0", s->final_div_factor);
    }
    return GT_OK;
}

gt_status gt__schedule_read(const gt_schedule *theirs, gt_schedule *ours) {
    *ours = defaults_of(GT_SCHEDULE_CONSTANT);
    GT_TRY(gt__options_read(ours, sizeof *ours, theirs, "gt_schedule"));
    return check(ours);
}

gt_status gt_schedule_rate(const gt_schedule *schedule, int64_t step, double *rate) {
    GT_REQUIRE(schedule != NULL && rate != NULL, GT_BAD_ARGUMENT, "gt_schedule_rate: %s is NULL", schedule ? "rate" : "schedule");
    GT_REQUIRE(step >= 0, GT_BAD_ARGUMENT, "schedule: step is %lld; it must not be negative", (long long)step);
    gt_schedule s;
    GT_TRY(gt__schedule_read(schedule, &s));
    *rate = gt__scheduled_rate(&s, step);
    return GT_OK;
}

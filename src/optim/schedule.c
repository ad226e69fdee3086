/* Learning-rate schedules as plain functions of the update's number. */
#include "base/host.h"
#include <gtrain/optim.h>

#include <math.h>

static const double pi = 3.14159265358979323846;

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

static double half_cosine(double from, double to, double part) { return to + (from - to) / 2 * (1 + cos(pi * part)); }

static double cosine_rate(const gt_schedule *s, int64_t step) {
    int64_t total = s->total_steps - s->warmup_steps;
    if (step >= total) return s->base * s->min_factor; /* stays down: the formula alone would rise again */
    return half_cosine(s->base, s->base * s->min_factor, (double)step / (double)total);
}

/* The rising part ends at step pct_start * total - 1, which need not be whole; the falling part at the last step. */
static double one_cycle_rate(const gt_schedule *s, int64_t step) {
    double initial = s->base / s->div_factor, last = (double)(s->total_steps - 1), peak = s->pct_start * (double)s->total_steps - 1;
    double at = (double)GT__MIN(step, s->total_steps - 1);
    if (peak > 0 && at <= peak) return half_cosine(initial, s->base, at / peak);
    peak = GT__MAX(peak, 0);
    return last > peak ? half_cosine(s->base, initial / s->final_div_factor, (at - peak) / (last - peak)) : s->base;
}

gt_status gt_schedule_rate(const gt_schedule *schedule, int64_t step, double *rate) {
    GT_REQUIRE(schedule != NULL && rate != NULL, GT_BAD_ARGUMENT, "gt_schedule_rate: %s is NULL", schedule ? "rate" : "schedule");
    GT_REQUIRE(step >= 0, GT_BAD_ARGUMENT, "schedule: step is %lld; it must not be negative", (long long)step);
    gt_schedule s = defaults_of(GT_SCHEDULE_CONSTANT);
    GT_TRY(gt__options_read(&s, sizeof s, schedule, "gt_schedule"));
    GT_TRY(check(&s));
    if (s.kind != GT_SCHEDULE_ONE_CYCLE && step < s.warmup_steps) {
        *rate = s.base * (double)(step + 1) / (double)s.warmup_steps;
        return GT_OK;
    }
    int64_t since = step - s.warmup_steps;
    switch (s.kind) {
    case GT_SCHEDULE_STEP:
        *rate = s.base * pow(s.gamma, (double)(since / s.step_size));
        break;
    case GT_SCHEDULE_COSINE:
        *rate = cosine_rate(&s, since);
        break;
    case GT_SCHEDULE_ONE_CYCLE:
        *rate = one_cycle_rate(&s, step);
        break;
    default:
        *rate = s.base;
        break;
    }
    return GT_OK;
}

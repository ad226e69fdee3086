/* The numbers of an update, computed where they are needed: on the host or by one thread of the device. Steps are counted, gradients unscaled, clipped
 * and averaged, and learning rates scheduled without the host knowing whether an update was done. */
#ifndef GT_CORE_STEP_MATH_H
#define GT_CORE_STEP_MATH_H

#include "backend/backend.h"

#include <float.h>
#include <gtrain/amp.h>
#include <gtrain/window.h>
#include <math.h>

#ifdef __CUDACC__
#define GT__STEP_FN static inline __host__ __device__
#else
#define GT__STEP_FN static inline
#endif

GT__STEP_FN bool gt__is_finite(double x) { return x - x == 0; }

/* base^n by squaring: as exact as pow for a bias correction, far quicker on a GPU, and the same on every device. */
GT__STEP_FN double gt__power(double base, int32_t n) {
    double result = 1;
    for (; n > 0; n >>= 1) {
        if (n & 1) result *= base;
        base *= base;
    }
    return result;
}

/* --- schedules ----------------------------------------------------------------------------------------------------------------------- */
GT__STEP_FN double gt__half_cosine(double from, double to, double part) {
    return to + (from - to) / 2 * (1 + cos(3.14159265358979323846 * part));
}

/* The rising part ends at step pct_start * total - 1, which need not be whole; the falling part at the last step. */
GT__STEP_FN double gt__one_cycle_rate(const gt_schedule *s, int64_t step) {
    double initial = s->base / s->div_factor, last = (double)(s->total_steps - 1), peak = s->pct_start * (double)s->total_steps - 1;
    double at = (double)GT__MIN(step, s->total_steps - 1);
    if (peak > 0 && at <= peak) return gt__half_cosine(initial, s->base, at / peak);
    peak = GT__MAX(peak, 0);
    return last > peak ? gt__half_cosine(s->base, initial / s->final_div_factor, (at - peak) / (last - peak)) : s->base;
}

/* The rate of update number `step`. The schedule's fields are known to be in range. */
GT__STEP_FN double gt__scheduled_rate(const gt_schedule *s, int64_t step) {
    if (s->kind == GT_SCHEDULE_ONE_CYCLE) return gt__one_cycle_rate(s, step);
    if (step < s->warmup_steps) return s->base * (double)(step + 1) / (double)s->warmup_steps;
    step -= s->warmup_steps;
    if (s->kind == GT_SCHEDULE_STEP) return s->base * pow(s->gamma, (double)(step / s->step_size));
    if (s->kind == GT_SCHEDULE_COSINE) {
        int64_t total = s->total_steps - s->warmup_steps;
        if (step >= total) return s->base * s->min_factor; /* stays down: the formula alone would rise again */
        return gt__half_cosine(s->base, s->base * s->min_factor, (double)step / (double)total);
    }
    return s->base;
}

/* --- one parameter's update ---------------------------------------------------------------------------------------------------------- */
typedef struct gt__update_numbers {
    double factor, limit; /* of the gradient, as in gt__step_control */
    double learning_rate;
    double shrink;          /* AdamW: what the weight is multiplied by */
    double step_size;       /* Adam: learning rate over 1 - beta1^t */
    double root_correction; /* Adam: square root of 1 - beta2^t */
    int32_t first;          /* of this parameter */
    int32_t skip;
} gt__update_numbers;

/* `done`: updates of this parameter before. control may be NULL. */
GT__STEP_FN gt__update_numbers gt__update_numbers_of(const gt__update_rule *rule, const gt__step_control *control, int32_t done) {
    gt__update_numbers n = {1, 0, rule->learning_rate, 1, 0, 1, done == 0, 0};
    if (rule->rate_cell) n.learning_rate = *rule->rate_cell;
    if (control) {
        n.factor = control->factor;
        n.limit = control->limit;
        n.skip = control->skip;
        if (control->learning_rate == control->learning_rate) n.learning_rate = control->learning_rate;
    }
    if (rule->kind == GT_OPTIMIZER_ADAMW) n.shrink = 1.0 - n.learning_rate * rule->weight_decay;
    if (rule->kind != GT_OPTIMIZER_SGD) {
        n.step_size = n.learning_rate / (1.0 - gt__power(rule->beta1, done + 1));
        n.root_correction = sqrt(1.0 - gt__power(rule->beta2, done + 1));
    }
    return n;
}

/* The count that a step cell is to get; it stays at its greatest, where no bias correction can tell the difference. */
GT__STEP_FN int32_t gt__next_step(int32_t done, int32_t skip) { return skip || done == INT32_MAX - 1 ? done : done + 1; }

/* --- the scaler ------------------------------------------------------------------------------------------------------------------------ */
GT__STEP_FN void gt__scaler_found(gt__scaler_cells *s, const gt__step_control *c) {
    s->found = 1;
    if (c->first_bad < s->found_first) s->found_first = c->first_bad;
}

GT__STEP_FN float gt__scaler_clamp(const gt__scaler_cells *s, double scale) {
    return scale < (double)s->floor ? s->floor : scale > (double)s->cap ? s->cap : (float)scale;
}

GT__STEP_FN void gt__scaler_advance(gt__scaler_cells *s) {
    if (s->found) {
        s->status = s->dynamic && s->scale <= s->floor ? GT_SCALER_STUCK_AT_FLOOR : GT_SCALER_SKIPPED;
        s->skipped++;
        s->skipped_in_row++;
        s->growth_count = 0;
        s->last_first = s->found_first;
        s->last_overflow = s->overflow;
        if (s->dynamic) s->scale = gt__scaler_clamp(s, (double)s->scale * s->backoff);
    } else {
        s->status = GT_SCALER_STEPPED;
        s->updates++;
        s->skipped_in_row = 0;
        if (s->dynamic && ++s->growth_count >= s->growth_interval) {
            s->growth_count = 0;
            s->scale = gt__scaler_clamp(s, (double)s->scale * s->growth);
        }
    }
    s->found = 0;
    s->found_first = INT32_MAX;
    s->overflow = UINT64_MAX;
}

/* Not finite, or no longer when multiplied by a factor that makes it larger. */
GT__STEP_FN bool gt__norm_is_bad(const gt__step_control *c, double factor) {
    return c->first_bad != INT32_MAX || !gt__is_finite(c->norm) || (factor > 1 && c->norm * factor > (double)FLT_MAX);
}

/* --- tasks (backend.h) ------------------------------------------------------------------------------------------------------------------ */
GT__STEP_FN void gt__step_seed(const gt__step_task *t) {
    gt__window_cells *w = t->window;
    double items = t->items, scale = t->scaler ? (double)t->scaler->scale : 1;
    if (t->items_cell) items = t->items_dtype == GT_DTYPE_F64 ? *(const double *)t->items_cell : (double)*(const float *)t->items_cell;
    if (t->first) {
        w->items = 0;
        /* Seeds then have the size that a mean over the window would have, which keeps half-precision gradients in their range; one micro-batch a window
         * is seeded with the scale itself. */
        w->reference = (items > 0 && gt__is_finite(items) ? items : 1) * t->micro_batches;
    }
    w->items += items;
    *t->seed = (float)(scale * items / w->reference);
}

GT__STEP_FN void gt__step_window_end(const gt__step_task *t) {
    gt__window_cells *w = t->window;
    gt__step_control *c = t->control;
    if (t->alone) w->items = w->reference = t->items;
    double items = w->items, scale = t->scaler ? (double)t->scaler->scale : 1;
    double factor = items > 0 ? w->reference / items / scale : 0;
    bool empty = items == 0, bad = !empty && (!(items > 0) || gt__norm_is_bad(c, factor));
    c->norm *= factor;
    if (t->clip_norm > 0 && c->norm > t->clip_norm) factor *= t->clip_norm / c->norm;
    c->factor = factor;
    c->limit = t->clip_value;
    c->learning_rate = t->schedule.struct_size ? gt__scheduled_rate(&t->schedule, w->updates) : (double)NAN;
    c->skip = empty || bad;
    w->last_items = items;
    w->last_norm = c->norm;
    w->status = empty ? GT_WINDOW_EMPTY : bad ? GT_WINDOW_SKIPPED : GT_WINDOW_UPDATED;
    if (empty) {
        w->empty++;
        return;
    }
    if (bad) {
        w->skipped++;
    } else {
        w->updates++;
        w->last_rate = t->schedule.struct_size ? c->learning_rate : t->rate_cell ? *t->rate_cell : t->learning_rate;
    }
    if (t->scaler) {
        if (bad) gt__scaler_found(t->scaler, c);
        gt__scaler_advance(t->scaler);
    }
}

GT__STEP_FN void gt__step_unscale(const gt__step_task *t) {
    gt__step_control *c = t->control;
    double factor = 1 / (double)t->scaler->scale;
    bool bad = gt__norm_is_bad(c, factor);
    if (bad) gt__scaler_found(t->scaler, c);
    c->factor = factor;
    c->limit = 0;
    c->learning_rate = (double)NAN;
    c->norm *= factor;
    c->skip = bad;
    c[1] = c[0];
    c[1].factor = 1;
}

/* Done by `threads` threads, of which this is number `thread`. */
GT__STEP_FN void gt__step_advance(const gt__step_task *t, int32_t thread, int32_t threads) {
    for (int32_t i = thread; i < t->settle_count; i += threads) t->settle[2 * i] = t->settle[2 * i + 1];
    if (thread == 0 && t->random_cells) t->random_cells[1] += t->random_advance;
}

/* By one thread, after gt__step_advance. */
GT__STEP_FN void gt__step_run(const gt__step_task *task) {
    switch (task->kind) {
    case GT__STEP_SEED:
        gt__step_seed(task);
        break;
    case GT__STEP_WINDOW_END:
        gt__step_window_end(task);
        break;
    case GT__STEP_UNSCALE:
        gt__step_unscale(task);
        break;
    case GT__STEP_SCALER_UPDATE:
        gt__scaler_advance(task->scaler);
        break;
    default:
        break;
    }
}

#endif

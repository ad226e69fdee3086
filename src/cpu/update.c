/* Optimizer updates, gradient norm and clipping over lists of parameters. The formulas are those of torch.optim, in its order of operations. */
#include "core/step_math.h"
#include "cpu/copy.h"
#include "cpu/device.h"
#include "cpu/target.h"

/* --- rules ------------------------------------------------------------------------------------------------------------------------------ */

typedef struct rule_numbers {
    double learning_rate, momentum, one_minus_dampening, beta1, beta2, one_minus_beta1, one_minus_beta2, epsilon, weight_decay;
    double step_size, root_of_correction2, shrink; /* Adam */
    bool first, nesterov;
} rule_numbers;

#define RULES(suffix, real, root)                                                                                                          \
    GT__CPU_CLONES static void sgd_##suffix(const rule_numbers *r, int64_t n, real *w, const real *grad, real *m) {                        \
        real rate = (real)r->learning_rate, decay = (real)r->weight_decay, momentum = (real)r->momentum;                                   \
        real share = (real)r->one_minus_dampening;                                                                                         \
        for (int64_t i = 0; i < n; i++) {                                                                                                  \
            real g = grad[i];                                                                                                              \
            if (decay != 0) g = g + decay * w[i];                                                                                          \
            if (m) {                                                                                                                       \
                real b = r->first ? g : momentum * m[i] + share * g;                                                                       \
                m[i] = b;                                                                                                                  \
                g = r->nesterov ? g + momentum * b : b;                                                                                    \
            }                                                                                                                              \
            w[i] = w[i] - rate * g;                                                                                                        \
        }                                                                                                                                  \
    }                                                                                                                                      \
    GT__CPU_CLONES static void adam_##suffix(const rule_numbers *r, int64_t n, real *w, const real *grad, real *m, real *v) {              \
        real decay = (real)r->weight_decay, shrink = (real)r->shrink, step_size = (real)r->step_size;                                      \
        real share1 = (real)r->one_minus_beta1, beta2 = (real)r->beta2, share2 = (real)r->one_minus_beta2;                                 \
        real correction = (real)r->root_of_correction2, epsilon = (real)r->epsilon;                                                        \
        for (int64_t i = 0; i < n; i++) {                                                                                                  \
            real p = w[i] * shrink;                                                                                                        \
            real g = grad[i];                                                                                                              \
            if (decay != 0) g = g + decay * p;                                                                                             \
            m[i] = m[i] + share1 * (g - m[i]);                                                                                             \
            v[i] = beta2 * v[i] + share2 * g * g;                                                                                          \
            w[i] = p - step_size * (m[i] / (root(v[i]) / correction + epsilon));                                                           \
        }                                                                                                                                  \
    }

RULES(f32, float, sqrtf)
RULES(f64, double, sqrt)

typedef struct update_job {
    const gt__update_rule *rule;
    const gt__update *item;
    rule_numbers numbers;
    double factor, limit; /* of gradients */
    bool skip;
} update_job;

/* The product is made in double: a factor may be too small or too large for f32 where its product is not. */
#define TRUE_GRADIENT(suffix, real)                                                                                                        \
    GT__CPU_CLONES static void true_gradient_##suffix(real *to, const real *from, int64_t n, double factor, double limit) {                \
        real bound = (real)limit;                                                                                                          \
        for (int64_t i = 0; i < n; i++) to[i] = (real)((double)from[i] * factor);                                                          \
        for (int64_t i = 0; i < n && limit > 0; i++) to[i] = to[i] > bound ? bound : to[i] < -bound ? -bound : to[i];                      \
    }
TRUE_GRADIENT(f32, float)
TRUE_GRADIENT(f64, double)

static void update_f64(const update_job *job, int64_t begin, int64_t end) {
    const gt__update *u = job->item;
    bool as_is = job->factor == 1 && job->limit == 0;
    double buffer[GT__CHUNK];
    for (int64_t i = begin, n; i < end; i += n) {
        n = as_is ? end - i : GT__MIN(end - i, GT__CHUNK);
        const double *g = (const double *)u->grad + i;
        double *w = (double *)u->param + i, *m = u->state0 ? (double *)u->state0 + i : NULL;
        if (!as_is) {
            true_gradient_f64(buffer, g, n, job->factor, job->limit);
            g = buffer;
        }
        if (job->rule->kind != GT_OPTIMIZER_SGD)
            adam_f64(&job->numbers, n, w, g, m, (double *)u->state1 + i);
        else
            sgd_f64(&job->numbers, n, w, g, m);
    }
}

static void update_f32(const update_job *job, int64_t begin, int64_t end) {
    const gt__update *u = job->item;
    bool as_is = job->factor == 1 && job->limit == 0, half = gt__dtype_is_half(u->param_dtype);
    float *whole = half ? (float *)u->master : (float *)u->param;
    float gradient[GT__CHUNK], buffer[GT__CHUNK];
    for (int64_t i = begin, n; i < end; i += n) {
        n = as_is && !half && !u->half ? end - i : GT__MIN(end - i, GT__CHUNK);
        const float *g = (const float *)u->grad + i;
        float *w = whole ? whole + i : buffer, *m = u->state0 ? (float *)u->state0 + i : NULL;
        if (!whole) gt__cpu_load_f32(buffer, gt__cpu_at(u->param, u->param_dtype, i), u->param_dtype, 1, n);
        if (!as_is) {
            true_gradient_f32(gradient, g, n, job->factor, job->limit);
            g = gradient;
        }
        if (job->rule->kind != GT_OPTIMIZER_SGD)
            adam_f32(&job->numbers, n, w, g, m, (float *)u->state1 + i);
        else
            sgd_f32(&job->numbers, n, w, g, m);
        if (half) gt__cpu_store_f32(gt__cpu_at_mut(u->param, u->param_dtype, i), u->param_dtype, 1, w, n);
        if (u->half) gt__cpu_store_f32(gt__cpu_at_mut(u->half, u->half_dtype, i), u->half_dtype, 1, w, n);
    }
}

static void update_range(void *argument, int64_t begin, int64_t end) {
    const update_job *job = argument;
    const gt__update *u = job->item;
    if (job->skip) {
        if (u->half)
            gt__cpu_store_f32(gt__cpu_at_mut(u->half, u->half_dtype, begin), u->half_dtype, 1, (const float *)u->param + begin,
                              end - begin);
    } else if (u->param_dtype == GT_DTYPE_F64) {
        update_f64(job, begin, end);
    } else {
        update_f32(job, begin, end);
    }
}

gt_status gt__cpu_update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count,
                         const gt__step_control *control) {
    update_job job = {.rule = rule};
    rule_numbers *r = &job.numbers;
    r->momentum = rule->momentum;
    r->one_minus_dampening = 1.0 - rule->dampening;
    r->beta2 = rule->beta2;
    r->one_minus_beta1 = 1.0 - rule->beta1;
    r->one_minus_beta2 = 1.0 - rule->beta2;
    r->epsilon = rule->epsilon;
    r->nesterov = rule->nesterov != 0;
    r->weight_decay = rule->kind == GT_OPTIMIZER_ADAMW ? 0.0 : rule->weight_decay;
    for (int32_t k = 0; k < count; k++) {
        int32_t done = *list[k].step;
        gt__update_numbers n = gt__update_numbers_of(rule, control, done);
        r->learning_rate = n.learning_rate;
        r->shrink = n.shrink;
        r->step_size = n.step_size;
        r->root_of_correction2 = n.root_correction;
        r->first = n.first != 0;
        job.factor = n.factor;
        job.limit = n.limit;
        job.skip = n.skip != 0;
        job.item = &list[k];
        gt__cpu_for(device, list[k].count, gt__cpu_grain(4), update_range, &job);
        *(int32_t *)((uintptr_t)list[k].step ^ 4) = gt__next_step(done, n.skip);
    }
    return GT_OK;
}

/* --- norm and clipping ---------------------------------------------------------------------------------------------------------------- */

typedef struct norm_job {
    const gt__grad_list_item *item;
    double *sums;
    uint8_t *bad; /* an element is not finite */
    int64_t part_length;
} norm_job;

GT__CPU_CLONES static double squares_f32(const float *x, int64_t n) {
    double lanes[16] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) lanes[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int k = 0; k < 16; k++) sum += lanes[k];
    return sum;
}

static void norm_range(void *argument, int64_t begin, int64_t end) {
    const norm_job *job = argument;
    for (int64_t part = begin; part < end; part++) {
        int64_t first = part * job->part_length, last = GT__MIN(first + job->part_length, job->item->count);
        double sum = 0;
        bool bad = false;
        if (first < last && job->item->dtype == GT_DTYPE_F32) {
            sum = squares_f32((const float *)job->item->grad + first, last - first);
            bad = !gt__is_finite(sum); /* that of finite f32 values is */
        }
        if (job->item->dtype == GT_DTYPE_F64) {
            const double *x = job->item->grad;
            for (int64_t i = first; i < last; i++) {
                sum += x[i] * x[i];
                bad |= !gt__is_finite(x[i]);
            }
        }
        job->sums[part] = sum;
        job->bad[part] = bad;
    }
}

gt_status gt__cpu_grad_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, double *norm, int32_t *first_bad) {
    enum { PARTS = 256 };
    double sums[PARTS], total = 0;
    uint8_t bad[PARTS];
    int32_t first = INT32_MAX;
    for (int32_t k = 0; k < count; k++) {
        int64_t parts = GT__MIN(GT__MAX(list[k].count / 16384, 1), PARTS);
        norm_job job = {.item = &list[k], .sums = sums, .bad = bad, .part_length = (list[k].count + parts - 1) / parts};
        gt__cpu_for(device, parts, 4, norm_range, &job);
        for (int64_t part = 0; part < parts; part++) {
            total += sums[part];
            if (bad[part]) first = GT__MIN(first, list[k].index);
        }
    }
    *norm = sqrt(total);
    if (first_bad) *first_bad = first;
    return GT_OK;
}

typedef struct clip_job {
    const gt__grad_list_item *item;
    double value;
    bool scale; /* multiply by value; else clamp to [-value, value] */
} clip_job;

static void clip_range(void *argument, int64_t begin, int64_t end) {
    const clip_job *job = argument;
    if (job->item->dtype == GT_DTYPE_F64) {
        double *g = job->item->grad, bound = job->value;
        for (int64_t i = begin; i < end; i++) g[i] = job->scale ? g[i] * bound : g[i] > bound ? bound : g[i] < -bound ? -bound : g[i];
    } else {
        float *g = job->item->grad, bound = (float)job->value;
        double scale = job->value; /* may be too small for f32 */
        for (int64_t i = begin; i < end; i++)
            g[i] = job->scale ? (float)((double)g[i] * scale) : g[i] > bound ? bound : g[i] < -bound ? -bound : g[i];
    }
}

static gt_status clip(gt__device *device, const gt__grad_list_item *list, int32_t count, double value, bool scale) {
    for (int32_t k = 0; k < count; k++) {
        clip_job job = {.item = &list[k], .value = value, .scale = scale};
        gt__cpu_for(device, list[k].count, gt__cpu_grain(1), clip_range, &job);
    }
    return GT_OK;
}

gt_status gt__cpu_grad_clip_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, const double *norm, double max_norm) {
    double length = *norm;
    if (!(length - length == 0.0) || length <= max_norm) return GT_OK;
    return clip(device, list, count, max_norm / length, true);
}

gt_status gt__cpu_grad_clip_value(gt__device *device, const gt__grad_list_item *list, int32_t count, double max_value) {
    return clip(device, list, count, max_value, false);
}

gt_status gt__cpu_grad_scale(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_control *control) {
    return clip(device, list, count, control->factor, true);
}

gt_status gt__cpu_step_task(gt__device *device, const gt__step_task *task) {
    (void)device;
    gt__step_advance(task, 0, 1);
    gt__step_run(task);
    return GT_OK;
}

gt_status gt__cpu_grad_step_task(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_task *task) {
    GT_TRY(gt__cpu_grad_norm(device, list, count, &task->control->norm, &task->control->first_bad));
    return gt__cpu_step_task(device, task);
}

/* --- looking for numbers that are not finite ---------------------------------------------------------------------------------------- */
typedef struct finite_job {
    const void *data;
    gt_dtype dtype;
    int32_t found;
} finite_job;

static void finite_range(void *argument, int64_t begin, int64_t end) {
    finite_job *job = argument;
    bool bad = false;
    for (int64_t i = begin; i < end && !bad; i++) bad = !gt__is_finite(gt__cpu_get_f64(job->data, job->dtype, i));
    if (bad) __atomic_store_n(&job->found, 1, __ATOMIC_RELAXED);
}

gt_status gt__cpu_mark_not_finite(gt__device *device, const void *data, gt_dtype dtype, int64_t count, uint64_t mark, uint64_t *least) {
    finite_job job = {.data = data, .dtype = dtype};
    gt__cpu_for(device, count, gt__cpu_grain(4), finite_range, &job);
    if (job.found) *least = GT__MIN(*least, mark);
    return GT_OK;
}

/* --- a program's inputs ---------------------------------------------------------------------------------------------------------------- */
static void move_range(void *argument, int64_t begin, int64_t end) {
    const gt__move *m = argument;
    gt__cpu_convert(gt__cpu_at_mut(m->destination, m->to, begin), m->to, 1, gt__cpu_at(m->source, m->from, begin), m->from, 1, end - begin);
}

gt_status gt__cpu_move_many(gt__device *device, const gt__move *list, int32_t count) {
    for (int32_t k = 0; k < count; k++) {
        gt__move m = list[k];
        gt__cpu_for(device, m.count, gt__cpu_grain(2), move_range, &m);
    }
    return GT_OK;
}

/* --- many copies ---------------------------------------------------------------------------------------------------------------------- */
gt_status gt__cpu_copy_many(gt__device *device, const gt__copy_item *list, int32_t count) {
    (void)device;
    for (int32_t k = 0; k < count; k++)
        if (list[k].bytes) memcpy(list[k].destination, list[k].source, list[k].bytes);
    return GT_OK;
}

/* Optimizer updates, gradient norm and clipping over lists of parameters. The formulas are those of torch.optim, in its order of operations. */
#include "cpu/device.h"
#include "cpu/target.h"

#include <float.h>
#include <gtrain/optim.h>
#include <math.h>

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
} update_job;

static void update_range(void *argument, int64_t begin, int64_t end) {
    const update_job *job = argument;
    const gt__update *u = job->item;
    bool adam = job->rule->kind != GT_OPTIMIZER_SGD;
    if (u->param_dtype == GT_DTYPE_F64) {
        double *w = (double *)u->param + begin, *m = u->state0 ? (double *)u->state0 + begin : NULL;
        const double *g = (const double *)u->grad + begin;
        if (adam)
            adam_f64(&job->numbers, end - begin, w, g, m, (double *)u->state1 + begin);
        else
            sgd_f64(&job->numbers, end - begin, w, g, m);
        return;
    }
    const float *g = (const float *)u->grad + begin;
    float *m = u->state0 ? (float *)u->state0 + begin : NULL, *v = u->state1 ? (float *)u->state1 + begin : NULL;
    bool half = gt__dtype_is_half(u->param_dtype);
    float *whole = half ? (float *)u->master : (float *)u->param;
    for (int64_t i = begin; i < end; i += GT__CHUNK) {
        int64_t n = GT__MIN(end - i, half ? GT__CHUNK : end - i);
        float buffer[GT__CHUNK];
        float *w = whole ? whole + i : buffer;
        if (!whole) gt__cpu_load_f32(buffer, gt__cpu_at(u->param, u->param_dtype, i), u->param_dtype, 1, n);
        if (adam)
            adam_f32(&job->numbers, n, w, g + (i - begin), m + (i - begin), v + (i - begin));
        else
            sgd_f32(&job->numbers, n, w, g + (i - begin), m ? m + (i - begin) : NULL);
        if (!half) return;
        gt__cpu_store_f32(gt__cpu_at_mut(u->param, u->param_dtype, i), u->param_dtype, 1, w, n);
    }
}

gt_status gt__cpu_update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count) {
    update_job job = {.rule = rule};
    rule_numbers *r = &job.numbers;
    r->learning_rate = rule->learning_rate;
    r->momentum = rule->momentum;
    r->one_minus_dampening = 1.0 - rule->dampening;
    r->beta2 = rule->beta2;
    r->one_minus_beta1 = 1.0 - rule->beta1;
    r->one_minus_beta2 = 1.0 - rule->beta2;
    r->epsilon = rule->epsilon;
    r->nesterov = rule->nesterov != 0;
    bool decoupled = rule->kind == GT_OPTIMIZER_ADAMW;
    r->weight_decay = decoupled ? 0.0 : rule->weight_decay;
    r->shrink = decoupled ? 1.0 - rule->learning_rate * rule->weight_decay : 1.0;
    for (int32_t k = 0; k < count; k++) {
        double step = (double)list[k].step;
        r->first = list[k].step <= 1;
        r->step_size = rule->learning_rate / (1.0 - pow(rule->beta1, step));
        r->root_of_correction2 = sqrt(1.0 - pow(rule->beta2, step));
        job.item = &list[k];
        gt__cpu_for(device, list[k].count, gt__cpu_grain(4), update_range, &job);
    }
    return GT_OK;
}

/* --- norm and clipping ---------------------------------------------------------------------------------------------------------------- */

typedef struct norm_job {
    const gt__grad_list_item *item;
    double *sums;
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
        if (first < last && job->item->dtype == GT_DTYPE_F32) sum = squares_f32((const float *)job->item->grad + first, last - first);
        if (job->item->dtype == GT_DTYPE_F64)
            for (int64_t i = first; i < last; i++) sum += ((const double *)job->item->grad)[i] * ((const double *)job->item->grad)[i];
        job->sums[part] = sum;
    }
}

gt_status gt__cpu_grad_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, double *norm) {
    enum { PARTS = 256 };
    double sums[PARTS], total = 0;
    for (int32_t k = 0; k < count; k++) {
        int64_t parts = GT__MIN(GT__MAX(list[k].count / 16384, 1), PARTS);
        norm_job job = {.item = &list[k], .sums = sums, .part_length = (list[k].count + parts - 1) / parts};
        gt__cpu_for(device, parts, 4, norm_range, &job);
        for (int64_t part = 0; part < parts; part++) total += sums[part];
    }
    *norm = sqrt(total);
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

#include "train/metrics.h"

#include <math.h>

void gt__meter_begin(gt__meter *meter, gt_context *ctx, const gt__objective *objective) {
    gt__meter_end(meter);
    *meter = (gt__meter){.ctx = ctx, .objective = objective};
}

void gt__meter_end(gt__meter *meter) {
    gt_tensor_release(meter->loss);
    gt_tensor_release(meter->sums);
    gt_tensor_release(meter->correct);
    meter->loss = meter->sums = meter->correct = NULL;
    meter->in_cells = false;
}

void gt__meter_retain(gt__meter *meter) {
    gt_tensor_retain(meter->loss);
    gt_tensor_retain(meter->sums);
    gt_tensor_retain(meter->correct);
}

/* *sum += value, as a new handle that outlives the scope. */
static gt_status accumulate(gt_tensor **sum, gt_tensor *value) {
    gt_tensor *next = *sum ? gt_add(*sum, value) : value;
    if (next == NULL) return gt_last_error()->status;
    gt_tensor_retain(next);
    gt_tensor_release(*sum);
    *sum = next;
    return GT_OK;
}

static gt_tensor *element(gt_tensor *vector, int64_t i) { return gt_slice(vector, 0, i, i + 1, 1); }

/* Valid rows whose largest logit is the label's, as an i64 scalar. */
static gt_tensor *count_correct(const gt__objective *objective, const gt__loss *loss) {
    gt_tensor *labels = loss->labels;
    if (gt_tensor_dtype(labels) != GT_DTYPE_I64) labels = gt_cast(labels, GT_DTYPE_I64);
    gt_tensor *hits = gt_equal(gt_argmax(loss->output, 1, 0), labels);
    int64_t ignore = objective->cross_entropy.ignore_label;
    if (ignore >= 0 && ignore < gt_tensor_size(loss->output, 1)) { /* only then can an ignored row seem right */
        gt_tensor *value = gt_tensor_full(gt_tensor_context(loss->output), GT_DTYPE_I64, 0, NULL, (double)ignore);
        gt_tensor *ignored = gt_equal(labels, value);
        hits = gt_sub(hits, gt_mul(hits, ignored));
    }
    return gt_sum(hits, NULL, 0, 0);
}

gt_status gt__meter_terms(const gt__objective *objective, const gt__loss *loss, gt_tensor **terms) {
    gt_tensor *value = gt_tensor_detach(loss->value);
    terms[0] = terms[1] = terms[2] = NULL;
    if (loss->sums == NULL) {
        const int64_t one = 1;
        terms[0] = gt_mul_scalar(gt_reshape(value, 1, &one), (double)loss->count);
        return terms[0] ? GT_OK : gt_last_error()->status;
    }
    terms[1] = gt_tensor_detach(loss->sums);
    terms[0] = gt_mul(value, element(terms[1], 0));
    terms[2] = count_correct(objective, loss);
    return terms[0] && terms[2] ? GT_OK : gt_last_error()->status;
}

static gt_status add(gt__meter *meter, const gt__loss *loss) {
    gt_tensor *terms[3], **sums[3] = {&meter->loss, &meter->sums, &meter->correct};
    GT_TRY(gt__meter_terms(meter->objective, loss, terms));
    for (int i = 0; i < 3; ++i)
        if (terms[i]) GT_TRY(accumulate(sums[i], terms[i]));
    if (loss->sums == NULL) meter->rows += loss->count;
    return GT_OK;
}

gt_status gt__meter_add(gt__meter *meter, const gt__loss *loss) {
    GT_TRY(gt_no_grad_begin(meter->ctx));
    gt_status status = add(meter, loss);
    (void)gt_no_grad_end(meter->ctx);
    return status;
}

static gt_status read_sums(gt__meter *meter) {
    if (meter->loss == NULL) return GT_OK;
    double loss = 0, correct = 0, sums[2] = {(double)meter->rows, (double)meter->rows};
    GT_TRY(gt_tensor_item(meter->loss, &loss));
    if (meter->sums) {
        GT_TRY(gt_tensor_item(element(meter->sums, 0), &sums[0]));
        GT_TRY(gt_tensor_item(element(meter->sums, 1), &sums[1]));
        GT_TRY(gt_tensor_item(meter->correct, &correct));
    }
    meter->total_loss += loss;
    meter->total_weight += sums[0];
    meter->total_rows += (int64_t)(sums[1] + 0.5);
    meter->total_correct += (int64_t)correct;
    meter->rows = 0;
    gt__meter_end(meter);
    return GT_OK;
}

gt_status gt__meter_read(gt__meter *meter, gt_metrics *metrics) {
    GT_TRY(gt_scope_begin(meter->ctx));
    gt_status status = read_sums(meter);
    (void)gt_scope_end(meter->ctx);
    if (status != GT_OK) return status;
    bool any = meter->total_rows > 0, classes = meter->objective->kind == GT_LOSS_CROSS_ENTROPY;
    metrics->samples = meter->total_rows;
    metrics->correct = meter->total_correct;
    metrics->loss = any && meter->total_weight != 0 ? meter->total_loss / meter->total_weight : (double)NAN;
    metrics->accuracy = any && classes ? (double)meter->total_correct / (double)meter->total_rows : (double)NAN;
    return GT_OK;
}

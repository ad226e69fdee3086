/* Cross-entropy of class labels, as torch.nn.functional.cross_entropy: label smoothing and class weights leave ignored rows out. */
#include "cpu/copy.h"
#include "cpu/kernels.h"
#include "cpu/rows.h"

#include <math.h>

typedef struct loss_job {
    const void *logits, *labels, *weights; /* weights may be NULL */
    gt_dtype dtype, label_dtype, weights_dtype;
    int64_t classes;
    int64_t ignore;
    double smoothing;
    double weights_sum; /* over all classes */
    /* forward */
    double *losses;
    gt_tensor *lse_out;
    /* backward */
    const gt_tensor *dloss, *lse, *sums;
    gt_tensor *dlogits;
    gt_reduction reduction;
} loss_job;

static double class_weight(const loss_job *job, int64_t c) {
    return job->weights ? gt__cpu_get_f64(job->weights, job->weights_dtype, c) : 1.0;
}

static loss_job loss_job_for(const gt__call *call, const gt_tensor *logits, const gt_tensor *labels, const gt_tensor *weights) {
    loss_job job = {.logits = gt__data(logits),
                    .labels = gt__data(labels),
                    .weights = weights ? gt__data(weights) : NULL,
                    .dtype = logits->meta.dtype,
                    .label_dtype = labels->meta.dtype,
                    .weights_dtype = weights ? weights->meta.dtype : GT_DTYPE_F32,
                    .classes = logits->meta.shape[1],
                    .ignore = call->attr.loss.ignore_label,
                    .smoothing = call->attr.loss.label_smoothing,
                    .reduction = call->attr.loss.reduction};
    for (int64_t c = 0; c < job.classes; c++) job.weights_sum += class_weight(&job, c);
    return job;
}

/* Before anything is written. */
static gt_status check_labels(const gt__call *call, const loss_job *job, int64_t rows) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t label = gt__cpu_get_i64(job->labels, job->label_dtype, row);
        GT_CALL_REQUIRE(call, (label >= 0 && label < job->classes) || label == job->ignore, GT_BAD_LABEL,
                        "row %lld has label %lld, there are %lld classes (and ignored label %lld)", (long long)row, (long long)label,
                        (long long)job->classes, (long long)job->ignore);
    }
    return GT_OK;
}

static void forward_range(void *argument, int64_t begin, int64_t end) {
    const loss_job *job = argument;
    double buffer[GT__CHUNK];
    for (int64_t row = begin; row < end; row++) {
        const void *x = gt__cpu_at(job->logits, job->dtype, row * job->classes);
        int64_t label = gt__cpu_get_i64(job->labels, job->label_dtype, row);
        double most, sum;
        gt__cpu_log_sum_exp(x, job->dtype, 1, job->classes, &most, &sum);
        double lse = most + log(sum);
        if (job->lse_out) gt__cpu_put_f64(gt__data(job->lse_out), job->lse_out->meta.dtype, row, lse);
        double loss = 0;
        if (label != job->ignore) {
            /* log(sum) - (x - most) keeps what lse - x would cancel where logits are large. */
            double log_sum = log(sum);
            loss = (1.0 - job->smoothing) * class_weight(job, label) * (log_sum - (gt__cpu_get_f64(x, job->dtype, label) - most));
            if (job->smoothing > 0) {
                double smooth = 0;
                for (int64_t i = 0; i < job->classes; i += GT__CHUNK) {
                    int64_t m = GT__MIN(job->classes - i, GT__CHUNK);
                    gt__cpu_load_f64(buffer, gt__cpu_at(x, job->dtype, i), job->dtype, 1, m);
                    for (int64_t k = 0; k < m; k++) smooth += class_weight(job, i + k) * (log_sum - (buffer[k] - most));
                }
                loss += job->smoothing / (double)job->classes * smooth;
            }
        }
        job->losses[row] = loss;
    }
}

GT__CPU_KERNEL(cross_entropy) {
    int64_t rows = call->in[0]->meta.shape[0];
    loss_job job = loss_job_for(call, call->in[0], call->in[1], call->n_in > 2 ? call->in[2] : NULL);
    GT_TRY(check_labels(call, &job, rows));
    double few[256];
    job.losses = rows > (int64_t)GT__COUNT(few) ? gt__calloc((size_t)rows, sizeof *job.losses) : few;
    if (!job.losses) return GT_OUT_OF_HOST_MEMORY;
    job.lse_out = call->n_out > 1 ? call->out[1] : NULL;
    gt__cpu_for(device, rows, gt__cpu_grain(job.classes * 32), forward_range, &job);

    double weight = 0, valid = 0, loss = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t label = gt__cpu_get_i64(job.labels, job.label_dtype, row);
        loss += job.losses[row];
        if (label == job.ignore) continue;
        weight += class_weight(&job, label);
        valid += 1;
    }
    gt_tensor *out = call->out[0], *sums = call->n_out > 2 ? call->out[2] : NULL;
    if (out && job.reduction == GT_REDUCTION_NONE)
        gt__cpu_store_f64(gt__data(out), out->meta.dtype, 1, job.losses, rows);
    else if (out)
        gt__cpu_put_f64(gt__data(out), out->meta.dtype, 0, job.reduction == GT_REDUCTION_SUM ? loss : valid == 0 ? 0.0 : loss / weight);
    if (sums) {
        gt__cpu_put_f64(gt__data(sums), sums->meta.dtype, 0, weight);
        gt__cpu_put_f64(gt__data(sums), sums->meta.dtype, 1, valid);
    }
    if (job.losses != few) gt__free(job.losses);
    return GT_OK;
}

/* Of a row: p (share + smoothing / classes * sum of weights), less smoothing / classes * weight of each class and `share` at the label, where
 * share = (1 - smoothing) * weight of the label. */
static void backward_range(void *argument, int64_t begin, int64_t end) {
    const loss_job *job = argument;
    double buffer[GT__CHUNK];
    double mean = job->reduction == GT_REDUCTION_MEAN ? gt__cpu_get_f64(gt__data(job->sums), job->sums->meta.dtype, 0) : 1.0;
    for (int64_t row = begin; row < end; row++) {
        const void *x = gt__cpu_at(job->logits, job->dtype, row * job->classes);
        void *dx = gt__cpu_at_mut(gt__data(job->dlogits), job->dtype, row * job->classes);
        int64_t label = gt__cpu_get_i64(job->labels, job->label_dtype, row);
        bool valid = label != job->ignore && label >= 0 && label < job->classes;
        double dloss = gt__cpu_get_f64(gt__data(job->dloss), job->dloss->meta.dtype, job->reduction == GT_REDUCTION_NONE ? row : 0);
        double scale = dloss / mean, lse = gt__cpu_get_f64(gt__data(job->lse), job->lse->meta.dtype, row);
        double share = valid ? (1.0 - job->smoothing) * class_weight(job, label) : 0.0, each = job->smoothing / (double)job->classes;
        double all = share + each * job->weights_sum;
        for (int64_t i = 0; i < job->classes; i += GT__CHUNK) {
            int64_t m = GT__MIN(job->classes - i, GT__CHUNK);
            if (valid) {
                gt__cpu_load_f64(buffer, gt__cpu_at(x, job->dtype, i), job->dtype, 1, m);
                for (int64_t k = 0; k < m; k++) {
                    double g = exp(buffer[k] - lse) * all;
                    if (each > 0) g -= each * class_weight(job, i + k);
                    if (i + k == label) g -= share;
                    buffer[k] = g * scale;
                }
            } else {
                memset(buffer, 0, sizeof buffer);
            }
            gt__cpu_store_f64(gt__cpu_at_mut(dx, job->dtype, i), job->dtype, 1, buffer, m);
        }
    }
}

GT__CPU_KERNEL(cross_entropy_backward) {
    loss_job job = loss_job_for(call, call->in[1], call->in[2], call->in[3]);
    job.dloss = call->in[0];
    job.lse = call->in[4];
    job.sums = call->in[5];
    job.dlogits = call->out[0];
    gt__cpu_for(device, call->in[1]->meta.shape[0], gt__cpu_grain(job.classes * 32), backward_range, &job);
    return GT_OK;
}

GT__CPU_KERNEL(cross_entropy_both) {
    gt_tensor *const *in = call->in;
    gt_tensor *forward[3] = {in[1], in[2], in[3]}, *backward[6] = {in[0], in[1], in[2], in[3], call->out[1], call->out[2]};
    gt__call one = *call;
    one.in = forward;
    one.n_in = one.n_out = 3;
    GT_TRY(gt__cpu_cross_entropy(device, &one));
    one.in = backward;
    one.n_in = 6;
    one.n_out = 1;
    one.out[0] = call->out[3];
    return gt__cpu_cross_entropy_backward(device, &one);
}

/* One after the other. The log-sum-exps, and what is not wanted, go to memory of their own. */
GT__CPU_KERNEL(linear_cross_entropy) {
    gt_tensor *const *in = call->in, *dlogits = call->out[3];
    gt_tensor *first[3] = {in[1], in[2], in[3]}, logits = *dlogits, lse = *call->out[0], sums = lse;
    const int64_t rows = dlogits->meta.shape[0], two = 2;
    GT_TRY(gt__meta_make(&lse.meta, lse.meta.dtype, 1, &rows, "linear_cross_entropy"));
    GT_TRY(gt__meta_make(&sums.meta, lse.meta.dtype, 1, &two, "linear_cross_entropy"));
    double *memory = gt__calloc((size_t)rows + 2, sizeof *memory);
    if (memory == NULL) return GT_OUT_OF_HOST_MEMORY;
    sums.data = memory;
    lse.data = memory + 2;
    gt_tensor *second[4] = {in[0], call->out[1] ? call->out[1] : &logits, in[4], in[5]};
    gt__call one = *call;
    one.op = GT__OP_LINEAR;
    memset(&one.attr, 0, sizeof one.attr);
    one.in = first;
    one.n_in = 3;
    one.n_out = 1;
    one.out[0] = second[1];
    gt_status status = gt__cpu_linear(device, &one);
    one = *call;
    one.op = GT__OP_CROSS_ENTROPY_BOTH;
    one.in = second;
    one.n_in = one.n_out = 4;
    one.out[1] = &lse;
    if (one.out[2] == NULL) one.out[2] = &sums;
    if (status == GT_OK) status = gt__cpu_cross_entropy_both(device, &one);
    gt__free(memory);
    return status;
}

/* softmax, log_softmax and their gradients along one axis of a row-major tensor. */
#include "cpu/kernels.h"
#include "cpu/rows.h"

#include <math.h>

typedef struct softmax_job {
    const void *x, *y; /* forward: x; backward: dy and y */
    void *out;
    gt_dtype dtype, out_dtype;
    int64_t extent, inner; /* elements of a row lie `inner` apart */
    bool log;
} softmax_job;

static softmax_job softmax_job_for(const gt__call *call, bool log) {
    const gt__meta *meta = &call->out[0]->meta;
    int32_t axis = call->attr.softmax.axis;
    softmax_job job = {.x = gt__data(call->in[0]),
                       .out = gt__data(call->out[0]),
                       .dtype = call->in[0]->meta.dtype,
                       .out_dtype = meta->dtype,
                       .extent = meta->shape[axis],
                       .inner = 1,
                       .log = log};
    for (int32_t i = axis + 1; i < meta->ndim; i++) job.inner *= meta->shape[i];
    return job;
}

static int64_t row_offset(const softmax_job *job, int64_t row) { return row / job->inner * job->extent * job->inner + row % job->inner; }

static void forward_range(void *argument, int64_t begin, int64_t end) {
    const softmax_job *job = argument;
    int64_t stride = job->inner, n = job->extent;
    for (int64_t row = begin; row < end; row++) {
        const void *x = gt__cpu_at(job->x, job->dtype, row_offset(job, row));
        void *out = gt__cpu_at_mut(job->out, job->out_dtype, row_offset(job, row));
        double most, sum;
        gt__cpu_log_sum_exp(x, job->dtype, stride, n, &most, &sum);
        double log_sum = log(sum);
        double buffer[GT__CHUNK];
        for (int64_t i = 0; i < n; i += GT__CHUNK) {
            int64_t m = GT__MIN(n - i, GT__CHUNK);
            gt__cpu_load_f64(buffer, gt__cpu_at(x, job->dtype, i * stride), job->dtype, stride, m);
            for (int64_t k = 0; k < m; k++) buffer[k] = job->log ? buffer[k] - most - log_sum : exp(buffer[k] - most) / sum;
            gt__cpu_store_f64(gt__cpu_at_mut(out, job->out_dtype, i * stride), job->out_dtype, stride, buffer, m);
        }
    }
}

static gt_status forward(gt__device *device, const gt__call *call, bool log) {
    if (call->out[0]->meta.numel == 0) return GT_OK;
    softmax_job job = softmax_job_for(call, log);
    gt__cpu_for(device, call->out[0]->meta.numel / job.extent, gt__cpu_grain(job.extent * 32), forward_range, &job);
    return GT_OK;
}

GT__CPU_KERNEL(softmax) { return forward(device, call, false); }
GT__CPU_KERNEL(log_softmax) { return forward(device, call, true); }

/* softmax: y (dy - sum(dy y)); log_softmax: dy - exp(y) sum(dy). */
static void backward_range(void *argument, int64_t begin, int64_t end) {
    const softmax_job *job = argument;
    int64_t stride = job->inner, n = job->extent;
    double dy[GT__CHUNK], y[GT__CHUNK];
    for (int64_t row = begin; row < end; row++) {
        int64_t offset = row_offset(job, row);
        double sum = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = 0; i < n; i += GT__CHUNK) {
                int64_t m = GT__MIN(n - i, GT__CHUNK), at = offset + i * stride;
                gt__cpu_load_f64(dy, gt__cpu_at(job->x, job->dtype, at), job->dtype, stride, m);
                gt__cpu_load_f64(y, gt__cpu_at(job->y, job->dtype, at), job->dtype, stride, m);
                if (pass == 0) {
                    for (int64_t k = 0; k < m; k++) sum += job->log ? dy[k] : dy[k] * y[k];
                    continue;
                }
                for (int64_t k = 0; k < m; k++) dy[k] = job->log ? dy[k] - exp(y[k]) * sum : y[k] * (dy[k] - sum);
                gt__cpu_store_f64(gt__cpu_at_mut(job->out, job->out_dtype, at), job->out_dtype, stride, dy, m);
            }
        }
    }
}

static gt_status backward(gt__device *device, const gt__call *call, bool log) {
    if (call->out[0]->meta.numel == 0) return GT_OK;
    softmax_job job = softmax_job_for(call, log);
    job.y = gt__data(call->in[1]);
    gt__cpu_for(device, call->out[0]->meta.numel / job.extent, gt__cpu_grain(job.extent * 16), backward_range, &job);
    return GT_OK;
}

GT__CPU_KERNEL(softmax_backward) { return backward(device, call, false); }
GT__CPU_KERNEL(log_softmax_backward) { return backward(device, call, true); }

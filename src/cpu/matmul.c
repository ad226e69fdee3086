/* matmul, linear and linear_relu; the gradients of linear's weight and of a fused relu with its bias. */
#include "cpu/gemm.h"
#include "cpu/kernels.h"
#include "cpu/map.h"
#include "cpu/onednn.h"
#include "cpu/target.h"

GT__CPU_KERNEL(matmul) {
    const gt_tensor *a = call->in[0], *b = call->in[1];
    gt_tensor *c = call->out[0];
    int32_t ndim = c->meta.ndim, batch = ndim - 2;
    if (c->meta.numel == 0) return GT_OK;
    gt_status status = gt__onednn_matmul(device, call);
    if (status != GT_NOT_SUPPORTED) return status;

    const gt__meta *ma = &a->meta, *mb = &b->meta, *mc = &c->meta;
    gt__gemm gemm = {.m = mc->shape[batch],
                     .n = mc->shape[batch + 1],
                     .k = ma->shape[ma->ndim - 1],
                     .c = gt__data(c),
                     .c_dtype = mc->dtype,
                     .row_stride = mc->strides[batch],
                     .column_stride = mc->strides[batch + 1],
                     .batch_ndim = batch};
    gemm.a = gt__gemm_matrix(gt__data(a), ma->dtype, ma->strides[ma->ndim - 2], ma->strides[ma->ndim - 1]);
    gemm.b = gt__gemm_matrix(gt__data(b), mb->dtype, mb->strides[mb->ndim - 1], mb->strides[mb->ndim - 2]);
    for (int32_t axis = 0; axis < batch; axis++) {
        gemm.batch_shape[axis] = mc->shape[axis];
        gemm.c_batch_strides[axis] = mc->strides[axis];
        gemm.a.batch_strides[axis] = ma->shape[axis] == 1 ? 0 : ma->strides[axis];
        gemm.b.batch_strides[axis] = mb->shape[axis] == 1 ? 0 : mb->strides[axis];
    }
    return gt__cpu_gemm(device, &gemm);
}

static gt_status linear(gt__device *device, const gt__call *call, bool relu) {
    const gt_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL;
    gt_tensor *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    gt_status status = gt__onednn_linear(device, call);
    if (status == GT_OK && relu) gt__cpu_relu_in_place(device, gt__data(y), y->meta.numel);
    if (status != GT_NOT_SUPPORTED) return status;

    gt__gemm gemm = {.m = y->meta.shape[0],
                     .n = y->meta.shape[1],
                     .k = x->meta.shape[1],
                     .c = gt__data(y),
                     .c_dtype = y->meta.dtype,
                     .row_stride = y->meta.strides[0],
                     .column_stride = y->meta.strides[1],
                     .bias = bias ? gt__data(bias) : NULL,
                     .bias_dtype = bias ? bias->meta.dtype : GT_DTYPE_F32,
                     .relu = relu};
    gemm.a = gt__gemm_matrix(gt__data(x), x->meta.dtype, x->meta.strides[0], x->meta.strides[1]);
    gemm.b = gt__gemm_matrix(gt__data(w), w->meta.dtype, w->meta.strides[0], w->meta.strides[1]);
    return gt__cpu_gemm(device, &gemm);
}

GT__CPU_KERNEL(linear) { return linear(device, call, call->attr.linear.activation == GT_ACTIVATION_RELU); }
GT__CPU_KERNEL(linear_relu) { return linear(device, call, true); }

GT__CPU_KERNEL(linear_backward_weight) {
    const gt_tensor *dz = call->in[0], *x = call->in[1];
    gt_tensor *dw = call->out[0];
    if (dw->meta.numel == 0) return GT_OK;
    gt_status status = gt__onednn_linear_backward_weight(device, call);
    if (status != GT_NOT_SUPPORTED) return status;

    gt__gemm gemm = {.m = dw->meta.shape[0],
                     .n = dw->meta.shape[1],
                     .k = x->meta.shape[0],
                     .c = gt__data(dw),
                     .c_dtype = dw->meta.dtype,
                     .row_stride = dw->meta.strides[0],
                     .column_stride = dw->meta.strides[1],
                     .accumulate = call->attr.linear.accumulate};
    gemm.a = gt__gemm_matrix(gt__data(dz), dz->meta.dtype, dz->meta.strides[1], dz->meta.strides[0]);
    gemm.b = gt__gemm_matrix(gt__data(x), x->meta.dtype, x->meta.strides[1], x->meta.strides[0]);
    return gt__cpu_gemm(device, &gemm);
}

/* --- (dy, y) -> dz = dy where y > 0, db = sum of dz a channel ------------------------------------------------------------------------- */

typedef struct bias_relu_job {
    const gt_tensor *dy, *y;
    gt_tensor *dz; /* NULL if not wanted */
    double *sums;  /* channels a part, or NULL */
    int64_t rows, channels, rows_each;
} bias_relu_job;

GT__CPU_CLONES static void masked_row_f32(int64_t n, float *dz, double *sums, const float *dy, const float *y) {
    for (int64_t c = 0; c < n; c++) {
        float v = y[c] > 0 ? dy[c] : (y[c] != y[c] ? y[c] : 0.0f);
        dz[c] = v;
        sums[c] += (double)v;
    }
}

GT__CPU_CLONES static void masked_row_f64(int64_t n, double *dz, double *sums, const double *dy, const double *y) {
    for (int64_t c = 0; c < n; c++) {
        double v = y[c] > 0 ? dy[c] : (y[c] != y[c] ? y[c] : 0.0);
        dz[c] = v;
        sums[c] += v;
    }
}

static void bias_relu_range(void *argument, int64_t begin, int64_t end) {
    const bias_relu_job *job = argument;
    gt_dtype dtype = job->dy->meta.dtype;
    int64_t channels = job->channels;
    for (int64_t part = begin; part < end; part++) {
        double *sums = job->sums + part * channels;
        int64_t last = GT__MIN((part + 1) * job->rows_each, job->rows);
        for (int64_t row = part * job->rows_each; row < last; row++) {
            for (int64_t c = 0; c < channels; c += GT__CHUNK) {
                int64_t n = GT__MIN(channels - c, GT__CHUNK), at = row * channels + c;
                const void *dy = gt__cpu_at(gt__data(job->dy), dtype, at), *y = gt__cpu_at(gt__data(job->y), job->y->meta.dtype, at);
                void *dz = job->dz ? gt__cpu_at_mut(gt__data(job->dz), job->dz->meta.dtype, at) : NULL;
                if (dtype == GT_DTYPE_F64) {
                    double result[GT__CHUNK], buffer[GT__CHUNK], buffer_y[GT__CHUNK];
                    masked_row_f64(n, result, sums + c, gt__cpu_view_f64(dy, dtype, 1, n, buffer),
                                   gt__cpu_view_f64(y, job->y->meta.dtype, 1, n, buffer_y));
                    if (dz) gt__cpu_store_f64(dz, job->dz->meta.dtype, 1, result, n);
                } else {
                    float result[GT__CHUNK], buffer[GT__CHUNK], buffer_y[GT__CHUNK];
                    bool direct = dz && job->dz->meta.dtype == GT_DTYPE_F32;
                    masked_row_f32(n, direct ? (float *)dz : result, sums + c, gt__cpu_view_f32(dy, dtype, 1, n, buffer),
                                   gt__cpu_view_f32(y, job->y->meta.dtype, 1, n, buffer_y));
                    if (dz && !direct) gt__cpu_store_f32(dz, job->dz->meta.dtype, 1, result, n);
                }
            }
        }
    }
}

/* Both inputs are row-major [rows, channels] in memory: rank 2, or channels-last. */
GT__CPU_KERNEL(bias_relu_backward) {
    const gt_tensor *dy = call->in[0], *y = call->in[1];
    gt_tensor *db = call->n_out > 1 ? call->out[1] : NULL;
    bias_relu_job job = {.dy = dy, .y = y, .dz = call->out[0], .channels = dy->meta.shape[1]};
    job.rows = job.channels ? dy->meta.numel / job.channels : 0;
    if (job.channels == 0) return GT_OK;
    int64_t parts = job.rows * job.channels >= 131072 ? GT__MIN(gt__cpu(device)->threads, job.rows) : 1;
    parts = GT__MAX(parts, 1);
    job.rows_each = (job.rows + parts - 1) / parts;
    job.sums = gt__calloc((size_t)(parts * job.channels), sizeof *job.sums);
    if (!job.sums) return GT_OUT_OF_HOST_MEMORY;
    gt__cpu_for(device, parts, 1, bias_relu_range, &job);
    for (int64_t part = 1; part < parts; part++)
        for (int64_t c = 0; c < job.channels; c++) job.sums[c] += job.sums[part * job.channels + c];
    if (db) gt__cpu_store_f64(gt__data(db), db->meta.dtype, 1, job.sums, job.channels);
    gt__free(job.sums);
    return GT_OK;
}

/* One after the other, the product in dz. */
GT__CPU_KERNEL(linear_relu_backward) {
    gt_tensor *dy = call->in[0], *w = call->in[1], *y = call->in[2], *dz = call->out[0];
    gt_tensor *product[2] = {dy, w}, *masked[2] = {dz, y};
    gt__call one = *call;
    memset(&one.attr, 0, sizeof one.attr);
    one.op = GT__OP_MATMUL;
    one.in = product;
    one.n_in = 2;
    one.n_out = 1;
    GT_TRY(gt__cpu_matmul(device, &one));
    one.op = GT__OP_BIAS_RELU_BACKWARD;
    one.in = masked;
    one.n_out = 2;
    GT_TRY(gt__cpu_bias_relu_backward(device, &one));
    if (call->out[2] == NULL) return GT_OK;
    one.op = GT__OP_SUM;
    one.in = &dy;
    one.n_in = one.n_out = 1;
    one.out[0] = call->out[2];
    one.attr.reduce.mask = 1;
    one.attr.reduce.wide = 1;
    return gt__cpu_sum(device, &one);
}

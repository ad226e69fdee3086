/* Rows of a table by index, and the sum of gradients into them. */
#include "cpu/copy.h"
#include "cpu/kernels.h"

typedef struct embedding_job {
    const gt_tensor *from; /* weight, or dy */
    const gt_tensor *indices;
    gt_tensor *to;
    int64_t width;
} embedding_job;

static gt_status check_indices(const gt__call *call, const gt_tensor *indices, int64_t rows) {
    for (int64_t i = 0; i < indices->meta.numel; i++) {
        int64_t index = gt__cpu_get_i64(gt__data(indices), indices->meta.dtype, i);
        GT_CALL_REQUIRE(call, index >= 0 && index < rows, GT_BAD_LABEL, "position %lld has index %lld, the weight has %lld rows",
                        (long long)i, (long long)index, (long long)rows);
    }
    return GT_OK;
}

static void forward_range(void *argument, int64_t begin, int64_t end) {
    const embedding_job *job = argument;
    gt_dtype dtype = job->from->meta.dtype;
    for (int64_t i = begin; i < end; i++) {
        int64_t index = gt__cpu_get_i64(gt__data(job->indices), job->indices->meta.dtype, i);
        gt__cpu_convert(gt__cpu_at_mut(gt__data(job->to), job->to->meta.dtype, i * job->width), job->to->meta.dtype, 1,
                        gt__cpu_at(gt__data(job->from), dtype, index * job->width), dtype, 1, job->width);
    }
}

GT__CPU_KERNEL(embedding) {
    const gt_tensor *weight = call->in[0], *indices = call->in[1];
    GT_TRY(check_indices(call, indices, weight->meta.shape[0]));
    if (call->out[0]->meta.numel == 0) return GT_OK;
    embedding_job job = {.from = weight, .indices = indices, .to = call->out[0], .width = weight->meta.shape[1]};
    gt__cpu_for(device, indices->meta.numel, gt__cpu_grain(job.width), forward_range, &job);
    return GT_OK;
}

/* Each thread takes some columns of the table and adds all positions to them in order: deterministic, and no two threads write the same place. */
static void backward_columns(void *argument, int64_t begin, int64_t end) {
    const embedding_job *job = argument;
    gt_dtype dtype = job->from->meta.dtype, to_dtype = job->to->meta.dtype;
    for (int64_t i = 0; i < job->indices->meta.numel; i++) {
        int64_t row = gt__cpu_get_i64(gt__data(job->indices), job->indices->meta.dtype, i);
        if (row < 0 || row >= job->to->meta.shape[0]) continue; /* refused by the forward */
        for (int64_t c = begin; c < end; c += GT__CHUNK) {
            int64_t n = GT__MIN(end - c, GT__CHUNK);
            const void *dy = gt__cpu_at(gt__data(job->from), dtype, i * job->width + c);
            void *to = gt__cpu_at_mut(gt__data(job->to), to_dtype, row * job->width + c);
            if (to_dtype == GT_DTYPE_F64) {
                double buffer[GT__CHUNK], *sum = to;
                const double *add = gt__cpu_view_f64(dy, dtype, 1, n, buffer);
                for (int64_t k = 0; k < n; k++) sum[k] += add[k];
            } else {
                float buffer[GT__CHUNK], *sum = to;
                const float *add = gt__cpu_view_f32(dy, dtype, 1, n, buffer);
                for (int64_t k = 0; k < n; k++) sum[k] += add[k];
            }
        }
    }
}

GT__CPU_KERNEL(embedding_backward) {
    gt_tensor *dw = call->out[0];
    GT_CALL_REQUIRE(call, dw->meta.dtype == GT_DTYPE_F32 || dw->meta.dtype == GT_DTYPE_F64, GT_INTERNAL, "sums in %s",
                    gt_dtype_name(dw->meta.dtype));
    gt__cpu_fill_tensor(device, gt__data(dw), &dw->meta, 0.0);
    if (dw->meta.numel == 0) return GT_OK;
    embedding_job job = {.from = call->in[0], .indices = call->in[1], .to = dw, .width = dw->meta.shape[1]};
    gt__cpu_for(device, job.width, GT__MAX(16, gt__cpu_grain(job.indices->meta.numel)), backward_columns, &job);
    return GT_OK;
}

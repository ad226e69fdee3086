#include "cpu/map.h"

void gt__cpu_walk(const gt__iter *iter, int64_t begin, int64_t end, gt__run_fn run, void *argument) {
    if (begin >= end) return;
    int32_t last = iter->ndim - 1;
    int64_t index[GT_MAX_DIMS], offsets[GT__ITER_OPERANDS] = {0}, rest = begin;
    for (int32_t axis = last; axis >= 0; axis--) {
        index[axis] = rest % iter->shape[axis];
        rest /= iter->shape[axis];
        for (int32_t k = 0; k < iter->n; k++) offsets[k] += index[axis] * iter->strides[k][axis];
    }
    for (int64_t position = begin;;) {
        int64_t n = GT__MIN(iter->shape[last] - index[last], end - position);
        run(argument, offsets, position, n);
        position += n;
        if (position >= end) return;
        /* The stretch ended with its axis: step the axes outside it. */
        for (int32_t k = 0; k < iter->n; k++) offsets[k] -= index[last] * iter->strides[k][last];
        index[last] = 0;
        for (int32_t axis = last - 1; axis >= 0; axis--) {
            for (int32_t k = 0; k < iter->n; k++) offsets[k] += iter->strides[k][axis];
            if (++index[axis] < iter->shape[axis]) break;
            for (int32_t k = 0; k < iter->n; k++) offsets[k] -= iter->shape[axis] * iter->strides[k][axis];
            index[axis] = 0;
        }
    }
}

typedef struct map_job {
    gt__iter iter;
    const gt__map_functions *functions;
    const void *parameter;
    char *data[3]; /* y, a, b */
    gt_dtype dtype;
    bool binary;
} map_job;

/* Computes a stretch in `type`: in place where all operands lie as needed, else through buffers. */
#define MAP_RUN(type, suffix, tag)                                                                                                         \
    static void map_run_##suffix(void *argument, const int64_t *offsets, int64_t position, int64_t n) {                                    \
        (void)position;                                                                                                                    \
        const map_job *job = argument;                                                                                                     \
        int32_t last = job->iter.ndim - 1;                                                                                                 \
        int64_t sy = job->iter.strides[0][last], sa = job->iter.strides[1][last], sb = job->binary ? job->iter.strides[2][last] : 1;       \
        char *y = gt__cpu_at_mut(job->data[0], job->dtype, offsets[0]);                                                                    \
        const char *a = gt__cpu_at(job->data[1], job->dtype, offsets[1]);                                                                  \
        const char *b = job->binary ? gt__cpu_at(job->data[2], job->dtype, offsets[2]) : NULL;                                             \
        if (job->dtype == tag && sy == 1 && sa == 1 && sb == 1) {                                                                          \
            job->functions->suffix(n, (type *)(void *)y, (const type *)(const void *)a, (const type *)(const void *)b, job->parameter);    \
            return;                                                                                                                        \
        }                                                                                                                                  \
        int64_t size = gt__cpu_size(job->dtype);                                                                                           \
        type buffer_y[GT__CHUNK], buffer_a[GT__CHUNK], buffer_b[GT__CHUNK];                                                                \
        for (int64_t i = 0; i < n; i += GT__CHUNK) {                                                                                       \
            int64_t m = GT__MIN(n - i, GT__CHUNK);                                                                                         \
            gt__cpu_load_##suffix(buffer_a, a + i * sa * size, job->dtype, sa, m);                                                         \
            if (job->binary) gt__cpu_load_##suffix(buffer_b, b + i * sb * size, job->dtype, sb, m);                                        \
            job->functions->suffix(m, buffer_y, buffer_a, job->binary ? buffer_b : NULL, job->parameter);                                  \
            gt__cpu_store_##suffix(y + i * sy * size, job->dtype, sy, buffer_y, m);                                                        \
        }                                                                                                                                  \
    }

MAP_RUN(float, f32, GT_DTYPE_F32)
MAP_RUN(double, f64, GT_DTYPE_F64)
MAP_RUN(int64_t, i64, GT_DTYPE_I64)

static void map_range(void *argument, int64_t begin, int64_t end) {
    map_job *job = argument;
    gt__run_fn run = gt__dtype_is_int(job->dtype) ? map_run_i64 : job->dtype == GT_DTYPE_F64 ? map_run_f64 : map_run_f32;
    gt__cpu_walk(&job->iter, begin, end, run, job);
}

gt_status gt__cpu_map(gt__device *device, const gt__call *call, const gt__map_functions *functions, const void *parameter) {
    map_job job = {.functions = functions, .parameter = parameter, .binary = call->n_in == 2, .dtype = call->out[0]->meta.dtype};
    GT_CALL_REQUIRE(call, functions->i64 || !gt__dtype_is_int(job.dtype), GT_BAD_DTYPE, "cannot be computed in %s",
                    gt_dtype_name(job.dtype));
    const gt__meta *metas[3] = {&call->out[0]->meta, &call->in[0]->meta, NULL};
    job.data[0] = gt__data(call->out[0]);
    job.data[1] = gt__data(call->in[0]);
    if (job.binary) {
        metas[2] = &call->in[1]->meta;
        job.data[2] = gt__data(call->in[1]);
    }
    if (metas[0]->numel == 0) return GT_OK;
    gt__iter_make(&job.iter, metas, job.binary ? 3 : 2);
    gt__cpu_for(device, job.iter.numel, gt__cpu_grain(functions->cost), map_range, &job);
    return GT_OK;
}

#include "cpu/copy.h"

#include "cpu/kernels.h"
#include "cpu/map.h"

/* --- runs of elements ---------------------------------------------------------------------------------------------------------------- */

#define COPY_AS(type)                                                                                                                      \
    do {                                                                                                                                   \
        type *t = to;                                                                                                                      \
        const type *f = from;                                                                                                              \
        for (int64_t i = 0; i < n; i++) t[i * to_stride] = f[i * from_stride];                                                             \
    } while (0)

static void copy_run(void *to, int64_t to_stride, const void *from, int64_t from_stride, size_t size, int64_t n) {
    if (to_stride == 1 && from_stride == 1)
        memcpy(to, from, (size_t)n * size);
    else if (size == 4)
        COPY_AS(uint32_t);
    else if (size == 2)
        COPY_AS(uint16_t);
    else if (size == 8)
        COPY_AS(uint64_t);
    else
        COPY_AS(uint8_t);
}

static void integer_range(gt_dtype dtype, int64_t *low, int64_t *high) {
    *low = dtype == GT_DTYPE_U8 ? 0 : dtype == GT_DTYPE_I32 ? INT32_MIN : INT64_MIN;
    *high = dtype == GT_DTYPE_U8 ? UINT8_MAX : dtype == GT_DTYPE_I32 ? INT32_MAX : INT64_MAX;
}

/* Cut towards zero, saturated, NaN to 0. */
static int64_t integer_from(double value, int64_t low, int64_t high) {
    if (value != value) return 0;
    if (value <= (double)low) return low;
    if (value >= (double)high) return high;
    return (int64_t)value;
}

static void convert_chunk(void *to, gt_dtype to_dtype, int64_t to_stride, const void *from, gt_dtype from_dtype, int64_t from_stride,
                          int64_t n) {
    union {
        float f32[GT__CHUNK];
        double f64[GT__CHUNK];
        int64_t i64[GT__CHUNK];
    } values;
    bool to_int = gt__dtype_is_int(to_dtype), from_int = gt__dtype_is_int(from_dtype);
    int64_t low = 0, high = 0;
    if (to_int) integer_range(to_dtype, &low, &high);

    if (from_int && to_int) {
        gt__cpu_load_i64(values.i64, from, from_dtype, from_stride, n);
        for (int64_t i = 0; i < n; i++) values.i64[i] = GT__MAX(low, GT__MIN(high, values.i64[i]));
        gt__cpu_store_i64(to, to_dtype, to_stride, values.i64, n);
    } else if (from_int && to_dtype == GT_DTYPE_F32) {
        float *target = to;
        gt__cpu_load_i64(values.i64, from, from_dtype, from_stride, n);
        for (int64_t i = 0; i < n; i++) target[i * to_stride] = (float)values.i64[i];
    } else if (from_int) {
        gt__cpu_load_i64(values.i64, from, from_dtype, from_stride, n);
        double as_double[GT__CHUNK];
        for (int64_t i = 0; i < n; i++) as_double[i] = (double)values.i64[i];
        gt__cpu_store_f64(to, to_dtype, to_stride, as_double, n);
    } else if (to_int) {
        double as_double[GT__CHUNK];
        gt__cpu_load_f64(as_double, from, from_dtype, from_stride, n);
        for (int64_t i = 0; i < n; i++) values.i64[i] = integer_from(as_double[i], low, high);
        gt__cpu_store_i64(to, to_dtype, to_stride, values.i64, n);
    } else if (from_dtype == GT_DTYPE_F64 || to_dtype == GT_DTYPE_F64) {
        gt__cpu_load_f64(values.f64, from, from_dtype, from_stride, n);
        gt__cpu_store_f64(to, to_dtype, to_stride, values.f64, n);
    } else {
        const float *view = gt__cpu_view_f32(from, from_dtype, from_stride, n, values.f32);
        gt__cpu_store_f32(to, to_dtype, to_stride, view, n);
    }
}

void gt__cpu_convert(void *to, gt_dtype to_dtype, int64_t to_stride, const void *from, gt_dtype from_dtype, int64_t from_stride,
                     int64_t n) {
    if (to_dtype == from_dtype) {
        copy_run(to, to_stride, from, from_stride, (size_t)gt__cpu_size(to_dtype), n);
        return;
    }
    for (int64_t i = 0; i < n; i += GT__CHUNK)
        convert_chunk(gt__cpu_at_mut(to, to_dtype, i * to_stride), to_dtype, to_stride, gt__cpu_at(from, from_dtype, i * from_stride),
                      from_dtype, from_stride, GT__MIN(n - i, GT__CHUNK));
}

/* --- tensors --------------------------------------------------------------------------------------------------------------------------- */

typedef struct copy_job {
    gt__iter iter;
    char *to;
    const char *from;
    gt_dtype to_dtype, from_dtype;
} copy_job;

static void copy_stretch(void *argument, const int64_t *offsets, int64_t position, int64_t n) {
    (void)position;
    const copy_job *job = argument;
    int32_t last = job->iter.ndim - 1;
    gt__cpu_convert(gt__cpu_at_mut(job->to, job->to_dtype, offsets[0]), job->to_dtype, job->iter.strides[0][last],
                    gt__cpu_at(job->from, job->from_dtype, offsets[1]), job->from_dtype, job->iter.strides[1][last], n);
}

static void copy_range(void *argument, int64_t begin, int64_t end) {
    copy_job *job = argument;
    gt__cpu_walk(&job->iter, begin, end, copy_stretch, job);
}

void gt__cpu_copy_tensor(gt__device *device, void *to, const gt__meta *to_meta, const void *from, const gt__meta *from_meta) {
    if (to_meta->numel == 0) return;
    copy_job job = {.to = to, .from = from, .to_dtype = to_meta->dtype, .from_dtype = from_meta->dtype};
    const gt__meta *metas[2] = {to_meta, from_meta};
    gt__iter_make(&job.iter, metas, 2);
    gt__cpu_for(device, job.iter.numel, gt__cpu_grain(to_meta->dtype == from_meta->dtype ? 1 : 2), copy_range, &job);
}

void gt__cpu_fill_tensor(gt__device *device, void *to, const gt__meta *meta, double value) {
    int64_t one[1];
    gt__meta scalar = {.dtype = meta->dtype, .numel = 1};
    gt__cpu_convert(one, meta->dtype, 1, &value, GT_DTYPE_F64, 1, 1);
    gt__cpu_copy_tensor(device, to, meta, one, &scalar);
}

/* --- kernels ----------------------------------------------------------------------------------------------------------------------------- */

GT__CPU_KERNEL(copy) {
    gt__cpu_copy_tensor(device, gt__data(call->out[0]), &call->out[0]->meta, gt__data(call->in[0]), &call->in[0]->meta);
    return GT_OK;
}

GT__CPU_KERNEL(cast) { return gt__cpu_copy(device, call); }

GT__CPU_KERNEL(fill) {
    gt__cpu_fill_tensor(device, gt__data(call->out[0]), &call->out[0]->meta, call->attr.scalar.value);
    return GT_OK;
}

/* The part of `whole` that starts at `start` along `axis`, `extent` long with the given step. Returns its first element. */
static void *part_of(gt_tensor *whole, int32_t axis, int64_t start, int64_t extent, int64_t step, gt__meta *part) {
    *part = whole->meta;
    part->numel = part->shape[axis] ? part->numel / part->shape[axis] * extent : 0;
    part->shape[axis] = extent;
    part->strides[axis] *= step;
    return part->numel ? gt__cpu_at_mut(gt__data(whole), part->dtype, start * whole->meta.strides[axis]) : NULL;
}

GT__CPU_KERNEL(slice_backward) {
    gt_tensor *dx = call->out[0];
    const gt__meta *dy = &call->in[0]->meta;
    int32_t axis = call->attr.slice.axis;
    gt__cpu_fill_tensor(device, gt__data(dx), &dx->meta, 0.0);
    gt__meta part;
    void *to = part_of(dx, axis, call->attr.slice.start, dy->shape[axis], call->attr.slice.step, &part);
    gt__cpu_copy_tensor(device, to, &part, gt__data(call->in[0]), dy);
    return GT_OK;
}

GT__CPU_KERNEL(concat) {
    int32_t axis = call->attr.slice.axis;
    int64_t start = 0;
    for (int32_t k = 0; k < call->n_in; k++) {
        const gt__meta *from = &call->in[k]->meta;
        gt__meta part;
        void *to = part_of(call->out[0], axis, start, from->shape[axis], 1, &part);
        gt__cpu_copy_tensor(device, to, &part, gt__data(call->in[k]), from);
        start += from->shape[axis];
    }
    return GT_OK;
}

GT__CPU_KERNEL(pad) {
    gt_tensor *y = call->out[0];
    const gt__meta *x = &call->in[0]->meta;
    if (y->meta.numel == 0) return GT_OK;
    gt__cpu_fill_tensor(device, gt__data(y), &y->meta, call->attr.pad.value);
    gt__meta part = y->meta;
    int64_t offset = 0;
    for (int32_t axis = 0; axis < x->ndim; axis++) {
        offset += call->attr.pad.before[axis] * y->meta.strides[axis];
        part.shape[axis] = x->shape[axis];
    }
    part.numel = x->numel;
    if (x->numel) gt__cpu_copy_tensor(device, gt__cpu_at_mut(gt__data(y), y->meta.dtype, offset), &part, gt__data(call->in[0]), x);
    return GT_OK;
}

/* Runs of elements of any dtype to and from the types that kernels compute in: f32 and f64 for floating dtypes, i64 for integers. */
#ifndef GT_CPU_LOAD_H
#define GT_CPU_LOAD_H

#include "core/shape.h"

/* gt_dtype_size of a known dtype, without a call. */
static inline int64_t gt__cpu_size(gt_dtype dtype) {
    static const int8_t sizes[GT_DTYPE_COUNT] = {
#define SIZE_OF(constant, name, value, bytes) [value] = (bytes),
        GT_DTYPE_LIST(SIZE_OF)
#undef SIZE_OF
    };
    return sizes[dtype];
}

/* Elements that a kernel converts at a time, on its stack. */
#define GT__CHUNK 256

/* to[i] = from[i * stride], i < n. Floating dtypes for f32 and f64, integer dtypes for i64. */
void gt__cpu_load_f32(float *to, const void *from, gt_dtype dtype, int64_t stride, int64_t n);
void gt__cpu_load_f64(double *to, const void *from, gt_dtype dtype, int64_t stride, int64_t n);
void gt__cpu_load_i64(int64_t *to, const void *from, gt_dtype dtype, int64_t stride, int64_t n);
/* to[i * stride] = from[i]. Halves are rounded once; integers keep their low bits. */
void gt__cpu_store_f32(void *to, gt_dtype dtype, int64_t stride, const float *from, int64_t n);
void gt__cpu_store_f64(void *to, gt_dtype dtype, int64_t stride, const double *from, int64_t n);
void gt__cpu_store_i64(void *to, gt_dtype dtype, int64_t stride, const int64_t *from, int64_t n);

/* The values themselves where they lie as they are needed, else converted into `buffer` (n of them). */
static inline const float *gt__cpu_view_f32(const void *from, gt_dtype dtype, int64_t stride, int64_t n, float *buffer) {
    if (dtype == GT_DTYPE_F32 && (stride == 1 || n == 1)) return (const float *)from;
    gt__cpu_load_f32(buffer, from, dtype, stride, n);
    return buffer;
}

static inline const double *gt__cpu_view_f64(const void *from, gt_dtype dtype, int64_t stride, int64_t n, double *buffer) {
    if (dtype == GT_DTYPE_F64 && (stride == 1 || n == 1)) return (const double *)from;
    gt__cpu_load_f64(buffer, from, dtype, stride, n);
    return buffer;
}

/* One element, by its index. */
static inline const void *gt__cpu_at(const void *base, gt_dtype dtype, int64_t index) {
    return (const char *)base + index * gt__cpu_size(dtype);
}

static inline void *gt__cpu_at_mut(void *base, gt_dtype dtype, int64_t index) { return (char *)base + index * gt__cpu_size(dtype); }

static inline double gt__cpu_get_f64(const void *from, gt_dtype dtype, int64_t index) {
    if (dtype == GT_DTYPE_F32) return (double)((const float *)from)[index];
    if (dtype == GT_DTYPE_F64) return ((const double *)from)[index];
    double value;
    gt__cpu_load_f64(&value, gt__cpu_at(from, dtype, index), dtype, 1, 1);
    return value;
}

static inline void gt__cpu_put_f64(void *to, gt_dtype dtype, int64_t index, double value) {
    if (dtype == GT_DTYPE_F32)
        ((float *)to)[index] = (float)value;
    else if (dtype == GT_DTYPE_F64)
        ((double *)to)[index] = value;
    else
        gt__cpu_store_f64(gt__cpu_at_mut(to, dtype, index), dtype, 1, &value, 1);
}

static inline int64_t gt__cpu_get_i64(const void *from, gt_dtype dtype, int64_t index) {
    if (dtype == GT_DTYPE_I64) return ((const int64_t *)from)[index];
    if (dtype == GT_DTYPE_I32) return ((const int32_t *)from)[index];
    return ((const uint8_t *)from)[index];
}

#endif

/* Numbers that every floating dtype and TF32 hold exactly, and whose sums of products f32 holds exactly: a device's result can be compared to
 * the CPU's to the last bit, up to the rounding of the result itself. */
#ifndef GTRAIN_TESTS_CUDA_SUPPORT_H
#define GTRAIN_TESTS_CUDA_SUPPORT_H

#include <gtrain/gtrain.h>

#include "harness/test.h"

#include <math.h>
#include <stdlib.h>

/* Multiples of 1/8 in [-1, 1], the same for one seed everywhere. */
static inline gt_tensor *exact_numbers(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, uint32_t seed) {
    int64_t count = 1;
    for (int32_t i = 0; i < ndim; i++) count *= shape[i];
    float *values = malloc(((size_t)count + 1) * sizeof *values);
    CHECK(values != NULL);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)((int)(seed >> 16) % 17 - 8) / 8;
    }
    gt_tensor *x = gt_tensor_from_data(ctx, GT_DTYPE_F32, ndim, shape, values, (size_t)count * sizeof *values);
    free(values);
    return dtype == GT_DTYPE_F32 ? x : gt_cast(x, dtype);
}

/* The caller frees. */
static inline float *read_f32(gt_tensor *x) {
    gt_context *ctx = gt_tensor_context(x);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *f32 = gt_cast(x, GT_DTYPE_F32);
    CHECK_TENSOR(f32);
    size_t bytes = gt_tensor_bytes(f32);
    float *values = malloc(bytes + 1);
    CHECK(values != NULL);
    CHECK_OK(gt_tensor_read(f32, values, bytes));
    CHECK_OK(gt_scope_end(ctx));
    return values;
}

/* What rounding the result to dtype may cost. */
static inline double rounding(gt_dtype dtype) { return dtype == GT_DTYPE_F16 ? 0x1p-10 : dtype == GT_DTYPE_BF16 ? 0x1p-7 : 0; }

static inline gt_context *cpu_context(void) {
    gt_context_options options;
    gt_context_options_init(&options, sizeof options);
    options.device = GT_DEVICE_CPU;
    gt_context *ctx = NULL;
    CHECK_OK(gt_context_create(&options, &ctx));
    return ctx;
}

/* |a - b| <= tolerance * max(1, |b|), or, `scaled`, the largest |b| of all: where an algorithm's rounding errors spread over elements. Says where it is
 * worst. */
static inline void check_close(const char *what, gt_tensor *got, gt_tensor *want, double tolerance, int scaled) {
    int64_t count = gt_tensor_numel(want);
    CHECK_EQ_INT(gt_tensor_numel(got), count);
    float *a = read_f32(got), *b = read_f32(want);
    double worst = -1, largest = 1;
    int64_t place = 0;
    for (int64_t i = 0; i < count && scaled; i++) largest = fmax(largest, fabs((double)b[i]));
    for (int64_t i = 0; i < count; i++) {
        double off = fabs((double)a[i] - b[i]) / fmax(largest, fabs((double)b[i]));
        if (isnan(a[i]) != isnan(b[i]))
            off = INFINITY;
        else if (isnan(a[i]))
            off = 0;
        if (off > worst) worst = off, place = i;
    }
    if (worst > tolerance)
        FAIL("%s: element %lld is %.9g, should be %.9g (off by %.3g, allowed %.3g)", what, (long long)place, (double)a[place],
             (double)b[place], worst, tolerance);
    free(a);
    free(b);
}

#endif

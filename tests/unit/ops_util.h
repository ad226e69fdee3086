/* Short forms for tests of ops by hand-computed values. */
#ifndef GTRAIN_TEST_OPS_UTIL_H
#define GTRAIN_TEST_OPS_UTIL_H

#include "harness/test.h"

#include <gtrain/gtrain.h>

#include <math.h>

#define SHAPE(...)                                                                                                                         \
    (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }
#define COUNT_OF(...) (sizeof((double[]){__VA_ARGS__}) / sizeof(double))

/* A tensor of any dtype from doubles. */
static inline gt_tensor *make(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, const double *values) {
    size_t n = 1;
    for (int32_t i = 0; i < ndim; i++) n *= (size_t)shape[i];
    gt_tensor *wide = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F64, ndim, shape, values, n * sizeof *values));
    return CHECK_TENSOR(gt_tensor_detach(CHECK_TENSOR(gt_cast(wide, dtype))));
}
/* F32(ctx, SHAPE(2, 3), 1, 2, 3, 4, 5, 6) */
#define MAKE(ctx, dtype, shape, ...) make(ctx, dtype, shape, (const double[]){__VA_ARGS__})
#define F32(ctx, shape, ...)         make(ctx, GT_DTYPE_F32, shape, (const double[]){__VA_ARGS__})

static inline void expect_values(gt_tensor *x, const double *want, size_t n, double tolerance, const char *file, int line) {
    double got[512];
    if (!x) {
        test_fail(1, file, line, "NULL: %s: %s", gt_status_name(gt_last_error()->status), gt_last_error()->message);
        return;
    }
    if ((size_t)gt_tensor_numel(x) != n || n > sizeof got / sizeof *got)
        test_fail(1, file, line, "%lld elements, want %zu", (long long)gt_tensor_numel(x), n);
    gt_tensor *wide = gt_cast(x, GT_DTYPE_F64);
    if (gt_tensor_read(wide, got, n * sizeof *got) != GT_OK) test_fail(1, file, line, "%s", gt_last_error()->message);
    test_allclose_f64(got, want, n, tolerance, tolerance, 1, file, line, "values");
}
#define CHECK_VALUES_TOL(x, tolerance, ...)                                                                                                \
    expect_values((x), (const double[]){__VA_ARGS__}, COUNT_OF(__VA_ARGS__), (tolerance), __FILE__, __LINE__)
#define CHECK_VALUES(x, ...) CHECK_VALUES_TOL(x, 0, __VA_ARGS__)

static inline void expect_shape(const gt_tensor *x, int32_t ndim, const int64_t *shape, const char *file, int line) {
    if (!x) test_fail(1, file, line, "NULL: %s: %s", gt_status_name(gt_last_error()->status), gt_last_error()->message);
    test_int(gt_tensor_ndim(x), ndim, 1, file, line, "ndim", "want");
    for (int32_t i = 0; i < ndim; i++) test_int(gt_tensor_shape(x)[i], shape[i], 1, file, line, "size", "want");
}
#define CHECK_SHAPE(x, ...) expect_shape((x), SHAPE(__VA_ARGS__), __FILE__, __LINE__)

static inline void expect_refused(const gt_tensor *x, gt_status want, const char *substring, const char *file, int line, const char *expr) {
    if (x) test_fail(1, file, line, "%s was accepted, want %s", expr, gt_status_name(want));
    test_status(gt_last_error()->status, want, 1, file, line, expr);
    test_error_has(substring, 1, file, line);
    gt_clear_error();
}
/* The op returns NULL with that status, and the message has the substring. */
#define CHECK_REFUSED(expr, status, substring) (gt_clear_error(), expect_refused((expr), (status), (substring), __FILE__, __LINE__, #expr))

/* A unit in the last place or two of a value near 1. */
static inline double tolerance_of(gt_dtype d) {
    return d == GT_DTYPE_F64 ? 1e-14 : d == GT_DTYPE_F32 ? 1e-6 : d == GT_DTYPE_F16 ? 1e-3 : 8e-3;
}

#define FLOAT_DTYPES                                                                                                                       \
    { GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64 }
#define EACH_FLOAT(dtype)                                                                                                                  \
    for (const gt_dtype *dtype = (const gt_dtype[])FLOAT_DTYPES, *dtype##_end = dtype + 4; dtype < dtype##_end; dtype++)

#endif

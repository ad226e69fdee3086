/* Shared by the tests of modules and optimizers. */
#ifndef TESTS_NN_SUPPORT_H
#define TESTS_NN_SUPPORT_H

#include "harness/test.h"

#include <gtrain/gtrain.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A context that computes f32 as f32. */
static inline gt_context *exact_context(test_case *t) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.allow_tf32 = 0;
    return test_context_with(t, &options);
}

static inline void read_values(gt_tensor *tensor, double *out, int64_t n) {
    CHECK_TENSOR(tensor);
    CHECK_EQ_INT(gt_tensor_numel(tensor), n);
    if (gt_tensor_dtype(tensor) == GT_DTYPE_F64) {
        CHECK_OK(gt_tensor_read(tensor, out, (size_t)n * sizeof *out));
        return;
    }
    gt_context *ctx = gt_tensor_context(tensor);
    float *values = malloc((size_t)n * sizeof *values);
    CHECK_OK(gt_scope_begin(ctx));
    gt_status status = gt_tensor_read(gt_cast(gt_tensor_detach(tensor), GT_DTYPE_F32), values, (size_t)n * sizeof *values);
    CHECK_OK(gt_scope_end(ctx));
    for (int64_t i = 0; status == GT_OK && i < n; ++i) out[i] = (double)values[i];
    free(values);
    CHECK_OK(status);
}

#define CHECK_VALUES(tensor, want, tol)                                                                                                    \
    check_values(tensor, want, (int64_t)(sizeof(want) / sizeof((want)[0])), tol, __FILE__, __LINE__, #tensor)
static inline void check_values(gt_tensor *tensor, const double *want, int64_t n, double tol, const char *file, int line,
                                const char *text) {
    double got[256];
    CHECK(n <= 256);
    read_values(tensor, got, n);
    test_allclose_f64(got, want, (size_t)n, tol, tol, 1, file, line, text);
}

/* scale * sin(0.7 i + phase) + shift, in logical order. */
static inline void write_pattern(gt_tensor *tensor, double phase, double scale, double shift) {
    int64_t n = gt_tensor_numel(tensor);
    double *values = malloc((size_t)n * sizeof *values);
    float *singles = malloc((size_t)n * sizeof *singles);
    for (int64_t i = 0; i < n; ++i) singles[i] = (float)(values[i] = scale * sin(0.7 * (double)i + phase) + shift);
    int is_f64 = gt_tensor_dtype(tensor) == GT_DTYPE_F64;
    gt_status status =
        gt_tensor_write(tensor, is_f64 ? (const void *)values : singles, (size_t)n * (is_f64 ? sizeof *values : sizeof *singles));
    free(values);
    free(singles);
    CHECK_OK(status);
}

static inline gt_tensor *pattern(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    gt_tensor *x = CHECK_TENSOR(gt_tensor_empty(ctx, dtype, ndim, shape));
    write_pattern(x, 0.25, 1, 0);
    return x;
}

/* As pytorch_values.py fills a network; its norms' weights are the vectors named "...weight". */
static inline void fill_parameters(gt_module *net) {
    for (int32_t i = 0; i < gt_module_parameter_count(net); ++i) {
        const char *name;
        gt_tensor *p;
        CHECK_OK(gt_module_parameter(net, i, &name, &p));
        size_t length = strlen(name);
        int is_norm = gt_tensor_ndim(p) == 1 && length >= 6 && strcmp(name + length - 6, "weight") == 0;
        write_pattern(p, (double)i, 0.5, is_norm ? 1 : 0);
    }
}

static inline gt_tensor *named(gt_module *net, const char *name) {
    gt_tensor *tensor = NULL;
    CHECK_OK(gt_module_find(net, name, &tensor));
    return tensor;
}

static inline double item(gt_tensor *tensor) {
    double value = NAN;
    CHECK_OK(gt_tensor_item(CHECK_TENSOR(tensor), &value));
    return value;
}

static inline uint64_t bytes_in_use(gt_context *ctx, gt_memory_category category) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    return category < 0 ? stats.in_use : stats.category_in_use[category];
}

#endif

/* C[i, j] = sum over k of A[i, k] B[k, j], plus a bias a column, then relu: the blocked product under matmul, linear and convolution where oneDNN does
 * not compute them. A and B are given by how to fetch runs of their elements, so that a convolution's patches need never be stored. Sums are kept
 * in f32, or f64 for f64. */
#ifndef GT_CPU_GEMM_H
#define GT_CPU_GEMM_H

#include "cpu/device.h"

typedef struct gt__gemm_source gt__gemm_source;

/* A fetch returns n elements, in place or converted into `buffer`: with along_k those of row (A) or column (B) `fixed` from k = begin; without, those
 * at k = fixed from row or column `begin`. `data` is the source's, moved to the batch entry. n is at most GT__CHUNK. */
struct gt__gemm_source {
    const float *(*fetch_f32)(const gt__gemm_source *source, const void *data, int64_t fixed, int64_t begin, int64_t n, float *buffer);
    const double *(*fetch_f64)(const gt__gemm_source *source, const void *data, int64_t fixed, int64_t begin, int64_t n, double *buffer);
    const void *data;
    const void *geometry;       /* for the fetches' own use */
    int64_t stride_i, stride_k; /* of matrices: along rows (A) or columns (B), and along k */
    int64_t batch_strides[GT_MAX_DIMS];
    gt_dtype dtype;
    bool along_k;
};

/* An ordinary strided matrix. */
gt__gemm_source gt__gemm_matrix(const void *data, gt_dtype dtype, int64_t stride_i, int64_t stride_k);

typedef struct gt__gemm {
    int64_t m, n, k;
    gt__gemm_source a, b;
    void *c;
    gt_dtype c_dtype;
    gt_dtype bias_dtype;
    int64_t row_stride, column_stride;
    const void *bias; /* n of them, or NULL */
    int32_t relu;
    int32_t accumulate; /* C += … */
    int32_t batch_ndim; /* entries of the arrays below and of batch_strides; 0: one product */
    int64_t batch_shape[GT_MAX_DIMS], c_batch_strides[GT_MAX_DIMS], bias_batch_strides[GT_MAX_DIMS];
} gt__gemm;

/* Any of m, n, k may be 0. */
gt_status gt__cpu_gemm(gt__device *device, const gt__gemm *gemm);

/* --- gemm_kernels.c: c[MR][NR] += a[k][MR] b[k][NR] on packed panels, for the processor at hand ------------------------------------------ */
typedef struct gt__gemm_kernel_f32 {
    void (*run)(int64_t k, const float *a, const float *b, float *c, int64_t c_stride);
    int32_t mr, nr;
} gt__gemm_kernel_f32;
typedef struct gt__gemm_kernel_f64 {
    void (*run)(int64_t k, const double *a, const double *b, double *c, int64_t c_stride);
    int32_t mr, nr;
} gt__gemm_kernel_f64;
gt__gemm_kernel_f32 gt__gemm_kernel_for_f32(void);
gt__gemm_kernel_f64 gt__gemm_kernel_for_f64(void);

#endif

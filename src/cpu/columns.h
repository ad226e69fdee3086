/* What batch norm does to the columns of an f32 matrix that lies row by row: each reads memory once and computes in f32, its sums in f64 from one block of
 * rows to the next. Each returns false, and leaves undefined results, where f32 cannot do it (another dtype, no memory, values beyond its range): the caller's
 * f64 loops then do. */
#ifndef GT_CPU_COLUMNS_H
#define GT_CPU_COLUMNS_H

#include "cpu/device.h"

/* Each column's mean, and the sum of its squares about that mean. */
bool gt__cpu_columns_moments(gt__device *device, const gt_tensor *x, int64_t rows, int64_t width, double epsilon, double *mean,
                             double *squares);
/* Each column's sums of dy and of dy (x - mean). */
bool gt__cpu_columns_products(gt__device *device, const gt_tensor *dy, const gt_tensor *x, int64_t rows, int64_t width, const double *mean,
                              double *sums, double *products);
/* y = (x - mean) scale + shift, plus the residual if there is one, then relu if wanted */
bool gt__cpu_columns_scale(gt__device *device, const gt_tensor *x, const gt_tensor *residual, gt_tensor *y, int64_t rows, int64_t width,
                           const double *mean, const double *scale, const double *shift, bool relu);
/* dz = relu's gradient of dy, or of dy + dy2 unless that is NULL, where relu had been given (x - mean) scale + shift */
bool gt__cpu_columns_mask(gt__device *device, const gt_tensor *dy, const gt_tensor *dy2, const gt_tensor *x, gt_tensor *dz, int64_t rows,
                          int64_t width, const double *mean, const double *scale, const double *shift);
/* dx = scale (dy - shift - (x - mean) dot); dx may be dy's memory */
bool gt__cpu_columns_gradient(gt__device *device, const gt_tensor *dy, const gt_tensor *x, gt_tensor *dx, int64_t rows, int64_t width,
                              const double *mean, const double *scale, const double *shift, const double *dot);

#endif

/* What softmax and the losses need of a row. */
#ifndef GT_CPU_ROWS_H
#define GT_CPU_ROWS_H

#include "cpu/load.h"

/* most = max(x), sum = sum(exp(x - most)), over n > 0 elements `stride` apart. A NaN makes both NaN; if all are -inf, or one is +inf, the sum is NaN, as a
 * softmax of them is. */
void gt__cpu_log_sum_exp(const void *x, gt_dtype dtype, int64_t stride, int64_t n, double *most, double *sum);

#endif

#include "cpu/rows.h"

#include <math.h>

void gt__cpu_log_sum_exp(const void *x, gt_dtype dtype, int64_t stride, int64_t n, double *most_out, double *sum_out) {
    double buffer[GT__CHUNK], most = -(double)INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i += GT__CHUNK) {
        int64_t m = GT__MIN(n - i, GT__CHUNK);
        const double *view = gt__cpu_view_f64(gt__cpu_at(x, dtype, i * stride), dtype, stride, m, buffer);
        for (int64_t k = 0; k < m; k++) most = (most > view[k] || most != most) ? most : view[k];
    }
    for (int64_t i = 0; i < n; i += GT__CHUNK) {
        int64_t m = GT__MIN(n - i, GT__CHUNK);
        const double *view = gt__cpu_view_f64(gt__cpu_at(x, dtype, i * stride), dtype, stride, m, buffer);
        for (int64_t k = 0; k < m; k++) sum += exp(view[k] - most);
    }
    *most_out = most;
    *sum_out = sum;
}

/* The steps of a sum, in the order in which the kernel of sum takes them: whoever makes the elements on the way takes the same steps and gets the same bits. */
#ifndef GT_CPU_REDUCE_H
#define GT_CPU_REDUCE_H

#include "backend/backend.h"

/* In how many parts the reduced elements of `kept` sums are taken: each of them ceil(reduced / parts) long, summed from 0, and the parts' sums added up in order. */
int64_t gt__cpu_sum_parts(gt__device *device, int64_t kept, int64_t reduced);

/* A run of f32 that lies together: lanes from 0, then whole groups (n is a multiple of the lanes) in any number of calls, then what is left. */
#define GT__SUM_LANES 16
void gt__cpu_sum_lanes_f32(double *lanes, const float *x, int64_t n);
double gt__cpu_sum_end_f32(const double *lanes, const float *rest, int64_t n);
/* A run of another dtype: GT__CHUNK elements at a time, and the chunks' sums added up. */
double gt__cpu_sum_f64(const double *x, int64_t n);
/* Neighbouring sums with one element more each: to[i] += x[i]. */
void gt__cpu_sum_row_f32(double *to, const float *x, int64_t n);

#endif

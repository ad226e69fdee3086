/* Elementwise kernels: a function for a run of elements in each type that is computed in, and the walk that applies it to tensors of any dtype
 * and strides. */
#ifndef GT_CPU_MAP_H
#define GT_CPU_MAP_H

#include "cpu/device.h"

/* y[i] = f(a[i], b[i]), i < n; b is NULL for one operand. y may be a or b. */
typedef void (*gt__map_f32)(int64_t n, float *y, const float *a, const float *b, const void *parameter);
typedef void (*gt__map_f64)(int64_t n, double *y, const double *a, const double *b, const void *parameter);
typedef void (*gt__map_i64)(int64_t n, int64_t *y, const int64_t *a, const int64_t *b, const void *parameter);

typedef struct gt__map_functions {
    gt__map_f32 f32; /* also halves */
    gt__map_f64 f64;
    gt__map_i64 i64; /* NULL: integers are not supported */
    int64_t cost;    /* simple operations an element, about */
} gt__map_functions;

/* out[0] = f(in[0], in[1]) with broadcasting; in[1] only if call->n_in is 2. */
gt_status gt__cpu_map(gt__device *device, const gt__call *call, const gt__map_functions *functions, const void *parameter);

/* The functions behind the kernel of an op of core/chain.h; NULL for those of its last list. Their parameter is the scalar's double, if the op has one. */
const gt__map_functions *gt__cpu_map_functions(gt__op_id op);

/* y[i] = relu(y[i]) for n dense elements of f32: what follows a library's product in a fused op. */
void gt__cpu_relu_in_place(gt__device *device, float *y, int64_t n);

/* Where a walk over an iteration stands: calls `run` for each stretch of its innermost axis between the flat positions begin and end, with each operand's offset
 * in elements. */
typedef void (*gt__run_fn)(void *argument, const int64_t *offsets, int64_t position, int64_t n);
void gt__cpu_walk(const gt__iter *iter, int64_t begin, int64_t end, gt__run_fn run, void *argument);

#endif

/* Strided copies that convert dtypes: what copy, cast, concat, pad and slice's gradient are made of. */
#ifndef GT_CPU_COPY_H
#define GT_CPU_COPY_H

#include "cpu/device.h"

/* to = from, broadcast to its shape. The two do not overlap. */
void gt__cpu_copy_tensor(gt__device *device, void *to, const gt__meta *to_meta, const void *from, const gt__meta *from_meta);
/* Every element of a tensor of any strides = value: rounded, or cut and saturated for integers. */
void gt__cpu_fill_tensor(gt__device *device, void *to, const gt__meta *meta, double value);
/* n elements from one dtype to another. */
void gt__cpu_convert(void *to, gt_dtype to_dtype, int64_t to_stride, const void *from, gt_dtype from_dtype, int64_t from_stride, int64_t n);

#endif

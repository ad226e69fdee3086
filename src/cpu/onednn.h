/* oneDNN behind a small door: the one place that knows its API, versions 2 and 3. Each function computes the call, or returns
 * GT_NOT_SUPPORTED without a record where oneDNN cannot (dtype, shape, no oneDNN in this build): the caller's own kernel then does. They leave
 * out the relu of a fused op. */
#ifndef GT_CPU_ONEDNN_H
#define GT_CPU_ONEDNN_H

#include "cpu/device.h"

typedef struct gt__onednn gt__onednn;

/* *onednn is NULL where oneDNN is not in this build. */
gt_status gt__onednn_create(int32_t threads, gt__onednn **onednn);
void gt__onednn_destroy(gt__onednn *onednn);
/* ", oneDNN 2.6", or "". */
const char *gt__onednn_version(char *buffer, size_t size);

gt_status gt__onednn_matmul(gt__device *device, const gt__call *call);
gt_status gt__onednn_linear(gt__device *device, const gt__call *call);
gt_status gt__onednn_linear_backward_weight(gt__device *device, const gt__call *call); /* attr.linear.accumulate too */
gt_status gt__onednn_conv2d(gt__device *device, const gt__call *call);
gt_status gt__onednn_conv2d_backward_input(gt__device *device, const gt__call *call);
gt_status gt__onednn_conv2d_backward_weight(gt__device *device, const gt__call *call); /* without accumulate */

#endif

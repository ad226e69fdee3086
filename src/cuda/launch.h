/* Launching our kernels: the one place that calls the CUDA runtime's launch function. */
#ifndef GT_CUDA_LAUNCH_H
#define GT_CUDA_LAUNCH_H

#include "cuda/kernels.h"

#include <cuda_runtime_api.h>

GT_EXTERN_C_BEGIN

/* Queues `kernel` on the device's compute stream. `call` names the op in a failure; `what` does where there is no call. The launch's own return code
 * tells of failure: cudaGetLastError would also bring up errors that the host program left behind. */
gt_status gt__cuda_launch(gt__device *device, const gt__call *call, const char *what, const void *kernel, uint32_t grid_x, uint32_t grid_y,
                          uint32_t block_x, uint32_t block_y, void **arguments);
typedef struct gt__cuda_grid {
    uint32_t x, y, z;
} gt__cuda_grid;
/* The same with `shared` bytes of dynamic shared memory; beyond 48 KiB gt__cuda_allow_shared comes first. */
gt_status gt__cuda_launch_shared(gt__device *device, const gt__call *call, const void *kernel, gt__cuda_grid grid, uint32_t block,
                                 size_t shared, void **arguments);
gt_status gt__cuda_allow_shared(gt__device *device, const gt__call *call, const void *kernel, size_t shared);
/* Zeros on the compute stream. */
gt_status gt__cuda_zero(gt__device *device, const gt__call *call, void *pointer, size_t bytes);
/* Dense copy on the device, on the compute stream. */
gt_status gt__cuda_copy_dense(gt__device *device, const gt__call *call, void *to, const void *from, size_t bytes);
/* Raises BAD_DTYPE: this kernel does not take `dtype`. */
gt_status gt__cuda_refuse_dtype(const gt__call *call, gt_dtype dtype);
/* Scratch memory that only makes things faster: false where the workspace limit or the memory does not allow it, with no error set. */
bool gt__cuda_scratch_try(gt__device *device, size_t bytes, void **pointer, void **handle);

GT_EXTERN_C_END
#endif

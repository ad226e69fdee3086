/* What every file of the CUDA backend shares: the device's stream and error slot, and the macros that turn a CUDA library's status into
 * our error record. Usable from C and from .cu files. */
#ifndef GT_CUDA_CUDA_UTIL_H
#define GT_CUDA_CUDA_UTIL_H

#include "backend/backend.h"

#include <cuda_runtime_api.h>

GT_EXTERN_C_BEGIN

/* The compute stream of a CUDA device. */
cudaStream_t gt__cuda_stream(gt__device *device);
/* Where kernels report what only the device knows. The first error wins: a kernel claims the slot in device memory, since not every machine has
 * atomics on host memory, and then writes the record, which lies in mapped host memory so that looking at it costs no copy. */
typedef struct gt__error_slot {
    gt__device_error *record;
    int *claimed; /* 0 until the first error */
} gt__error_slot;
gt__error_slot gt__cuda_error_slot(gt__device *device);

/* Raises what a failed CUDA runtime call means and returns that status: OUT_OF_MEMORY for cudaErrorMemoryAllocation, else LIBRARY. `call`
 * is the call's text. Clears the runtime's last error, which is ours: a later check of the host program must not find it. */
gt_status gt__cuda_raise(cudaError_t code, const char *call, const char *file, int line);
/* The same for the driver, cuDNN and cuBLASLt, whose status types stay out of this header. */
gt_status gt__cuda_raise_driver(int code, const char *call, const char *file, int line);
gt_status gt__cuda_raise_cudnn(int code, const char *call, const char *file, int line);
gt_status gt__cuda_raise_cublas(int code, const char *call, const char *file, int line);

GT_EXTERN_C_END

#define GT_TRY_CUDA(expr)                                                                                                                  \
    do {                                                                                                                                   \
        cudaError_t gt__cuda_code = (expr);                                                                                                \
        if (GT__UNLIKELY(gt__cuda_code != cudaSuccess)) return gt__cuda_raise(gt__cuda_code, #expr, __FILE__, __LINE__);                   \
    } while (0)
#define GT_TRY_CUDNN(expr)                                                                                                                 \
    do {                                                                                                                                   \
        int gt__cudnn_code = (int)(expr);                                                                                                  \
        if (GT__UNLIKELY(gt__cudnn_code != 0)) return gt__cuda_raise_cudnn(gt__cudnn_code, #expr, __FILE__, __LINE__);                     \
    } while (0)
#define GT_TRY_CUBLAS(expr)                                                                                                                \
    do {                                                                                                                                   \
        int gt__cublas_code = (int)(expr);                                                                                                 \
        if (GT__UNLIKELY(gt__cublas_code != 0)) return gt__cuda_raise_cublas(gt__cublas_code, #expr, __FILE__, __LINE__);                  \
    } while (0)

#endif

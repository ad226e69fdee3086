#include "cuda/launch.h"
#include "cuda/cuda_util.h"

/* Takes our own failure out of the runtime's per-thread error, so that it is not found by the host program. */
static gt_status launch_failed(const gt__call *call, const char *what, cudaError_t code) {
    (void)cudaGetLastError();
    const gt_status status = code == cudaErrorMemoryAllocation ? GT_OUT_OF_MEMORY : GT_LIBRARY;
    const char *hint = code == cudaErrorNoKernelImageForDevice
                           ? "The CUDA module was built without this GPU's architecture: add it to GTRAIN_CUDA_ARCHITECTURES."
                           : NULL;
    char text[256];
    if (call) what = gt__call_text(call, text, sizeof text);
    return gt__error_raise(status, __FILE__, __LINE__, (int64_t)code, "cudaError_t", hint, "%s: %s (%s)", what, cudaGetErrorString(code),
                           cudaGetErrorName(code));
}

static gt_status launch(gt__device *device, const gt__call *call, const char *what, const void *kernel, dim3 grid, dim3 block,
                        size_t shared, void **arguments) {
    cudaError_t code = cudaLaunchKernel(kernel, grid, block, arguments, shared, gt__cuda_stream(device));
    /* The first launch loads the kernel, which takes device memory. */
    if (GT__UNLIKELY(code == cudaErrorMemoryAllocation) && gt__cache_release(device->ctx))
        code = cudaLaunchKernel(kernel, grid, block, arguments, shared, gt__cuda_stream(device));
    return GT__LIKELY(code == cudaSuccess) ? GT_OK : launch_failed(call, what, code);
}

gt_status gt__cuda_launch(gt__device *device, const gt__call *call, const char *what, const void *kernel, uint32_t grid_x, uint32_t grid_y,
                          uint32_t block_x, uint32_t block_y, void **arguments) {
    return launch(device, call, what, kernel, (dim3){grid_x, grid_y, 1}, (dim3){block_x, block_y, 1}, 0, arguments);
}

gt_status gt__cuda_launch_shared(gt__device *device, const gt__call *call, const void *kernel, gt__cuda_grid grid, uint32_t block,
                                 size_t shared, void **arguments) {
    return launch(device, call, "kernel", kernel, (dim3){grid.x, grid.y, grid.z}, (dim3){block, 1, 1}, shared, arguments);
}

gt_status gt__cuda_allow_shared(gt__device *device, const gt__call *call, const void *kernel, size_t shared) {
    (void)device;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    return GT__LIKELY(code == cudaSuccess) ? GT_OK : launch_failed(call, "shared memory of a kernel", code);
}

gt_status gt__cuda_zero(gt__device *device, const gt__call *call, void *pointer, size_t bytes) {
    if (bytes == 0) return GT_OK;
    const cudaError_t code = cudaMemsetAsync(pointer, 0, bytes, gt__cuda_stream(device));
    return GT__LIKELY(code == cudaSuccess) ? GT_OK : launch_failed(call, "filling with zeros", code);
}

gt_status gt__cuda_copy_dense(gt__device *device, const gt__call *call, void *to, const void *from, size_t bytes) {
    if (bytes == 0 || to == from) return GT_OK;
    const cudaError_t code = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, gt__cuda_stream(device));
    return GT__LIKELY(code == cudaSuccess) ? GT_OK : launch_failed(call, "copy", code);
}

gt_status gt__cuda_refuse_dtype(const gt__call *call, gt_dtype dtype) {
    const char *name = gt_dtype_name(dtype);
    if (!call) GT_FAIL(GT_BAD_DTYPE, "not computed in dtype %s on CUDA", name);
    GT_CALL_FAIL(call, GT_BAD_DTYPE, "not computed in dtype %s on CUDA", name);
}

bool gt__cuda_scratch_try(gt__device *device, size_t bytes, void **pointer, void **handle) {
    if (device->workspace_limit != GT_WORKSPACE_AUTO && bytes > device->workspace_limit) return false;
    return gt__scratch_alloc_quiet(device->ctx, bytes, pointer, handle) == GT_OK;
}

/* The statuses of CUDA's libraries as our error record. */
#include "cuda/device.h"

bool gt__cuda_memory_is_full(size_t *free_bytes) {
    size_t total;
    if (cudaMemGetInfo(free_bytes, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        *free_bytes = 0;
        return false;
    }
    return *free_bytes < GT__CUDA_FULL_BYTES;
}

bool gt__cuda_make_room(gt__cuda_device *cuda) {
    size_t free_bytes;
    return gt__cuda_memory_is_full(&free_bytes) && gt__cache_release(cuda->base.ctx);
}

/* "cudaMalloc" of "cudaMalloc(&pointer, bytes)". */
static int name_length(const char *call) { return (int)strcspn(call, "("); }

static const char out_of_memory_hint[] = "Other processes or other contexts hold the device's memory: free some of it, lower "
                                         "memory_limit, or call gt_memory_trim, and repeat the call.";

gt_status gt__cuda_raise(cudaError_t code, const char *call, const char *file, int line) {
    (void)cudaGetLastError();
    const char *name = cudaGetErrorName(code), *text = cudaGetErrorString(code);
    if (code == cudaErrorMemoryAllocation)
        return gt__error_raise(GT_OUT_OF_MEMORY, file, line, code, "cudaError_t", out_of_memory_hint,
                               "%.*s: the device's memory is exhausted (%s)", name_length(call), call, name);
    if (code == cudaErrorNoKernelImageForDevice)
        return gt__error_raise(GT_NOT_SUPPORTED, file, line, code, "cudaError_t",
                               "Build with this GPU's architecture in GTRAIN_CUDA_ARCHITECTURES.", "%.*s: %s (%s)", name_length(call), call,
                               text, name);
    const char *hint = "After an error while a kernel ran, the process's CUDA context cannot be used again: restart the process. "
                       "compute-sanitizer names the kernel.";
    return gt__error_raise(GT_LIBRARY, file, line, code, "cudaError_t", hint, "%.*s: %s (%s)", name_length(call), call, text, name);
}

gt_status gt__cuda_raise_driver(int code, const char *call, const char *file, int line) {
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        return gt__error_raise(GT_OUT_OF_MEMORY, file, line, code, "CUresult", out_of_memory_hint, "%s: the device's memory is exhausted",
                               call);
    return gt__error_raise(GT_LIBRARY, file, line, code, "CUresult", NULL, "%s: the NVIDIA driver returned error %d", call, code);
}

/* Libraries report a card that is too full to start on as a failed initialisation, or as an internal error. */
static gt_status raise_library(const char *library, const char *type, int code, const char *text, bool allocation, bool maybe_full,
                               const char *call, const char *file, int line) {
    size_t free_bytes = 0;
    bool full = maybe_full && gt__cuda_memory_is_full(&free_bytes);
    if (allocation || full) {
        if (!free_bytes) (void)gt__cuda_memory_is_full(&free_bytes);
        return gt__error_raise(GT_OUT_OF_MEMORY, file, line, code, type, out_of_memory_hint,
                               "%.*s: %s could not get the device memory that it needs; %zu bytes are free (%s)", name_length(call), call,
                               library, free_bytes, text);
    }
    return gt__error_raise(GT_LIBRARY, file, line, code, type, NULL, "%.*s: %s (%d)", name_length(call), call, text, code);
}

gt_status gt__cuda_raise_cudnn(int code, const char *call, const char *file, int line) {
    (void)cudaGetLastError();
    bool allocation = code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    if (code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED) {
        size_t free_bytes;
        /* The old CUDNN_STATUS_ALLOC_FAILED, which stood for both kinds of memory, has this value. */
        if (!gt__cuda_memory_is_full(&free_bytes))
            return gt__error_raise(GT_OUT_OF_HOST_MEMORY, file, line, code, "cudnnStatus_t", NULL, "%.*s: %s", name_length(call), call,
                                   cudnnGetErrorString((cudnnStatus_t)code));
        allocation = true;
    }
    int category = code / 1000 * 1000;
    bool maybe_full = category == 1000 || category == 4000 || category == 5000;
    return raise_library("cuDNN", "cudnnStatus_t", code, cudnnGetErrorString((cudnnStatus_t)code), allocation, maybe_full, call, file,
                         line);
}

gt_status gt__cuda_raise_cublas(int code, const char *call, const char *file, int line) {
    (void)cudaGetLastError();
    bool allocation = code == CUBLAS_STATUS_ALLOC_FAILED;
    bool maybe_full =
        code == CUBLAS_STATUS_NOT_INITIALIZED || code == CUBLAS_STATUS_INTERNAL_ERROR || code == CUBLAS_STATUS_EXECUTION_FAILED;
    return raise_library("cuBLASLt", "cublasStatus_t", code, cublasLtGetStatusString((cublasStatus_t)code), allocation, maybe_full, call,
                         file, line);
}

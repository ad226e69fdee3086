/* Opening and closing a GPU, its streams, events and copies. */
#include "backend/architectures.h"
#include "cuda/chain.h"
#include "cuda/device.h"
#include "cuda/kernels.h"

#include <pthread.h>
#include <stdio.h>

#define MAX_GPUS     64
#define SLOT_BYTES   4096
#define PROBE_OFFSET 512
#define GEMM_PLANS   4096
#define CONV_PLANS   1024

_Static_assert(sizeof(gt__device_error) <= PROBE_OFFSET, "the error slot and the probe's words share a page");

static gt__cuda_driver driver;
static CUcontext primaries[MAX_GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool gt__cuda_driver_find(const char *name, void **function) {
    enum cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaError_t code = cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, &found);
#else
    cudaError_t code = cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &found);
#endif
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code == cudaSuccess && found == cudaDriverEntryPointSuccess && *function;
}

static gt_status driver_function(const char *name, void **function) {
    GT_REQUIRE(gt__cuda_driver_find(name, function), GT_VERSION_MISMATCH, "the NVIDIA driver has no function %s", name);
    return GT_OK;
}

/* Called with the lock held. */
static gt_status load_driver(void) {
    if (driver.primary_retain) return GT_OK;
    gt__cuda_driver loaded;
    GT_TRY(driver_function("cuCtxGetCurrent", (void **)&loaded.ctx_get_current));
    GT_TRY(driver_function("cuCtxPushCurrent", (void **)&loaded.ctx_push));
    GT_TRY(driver_function("cuCtxPopCurrent", (void **)&loaded.ctx_pop));
    GT_TRY(driver_function("cuEventQuery", (void **)&loaded.event_query));
    GT_TRY(driver_function("cuDevicePrimaryCtxRetain", (void **)&loaded.primary_retain));
    driver = loaded;
    return GT_OK;
}

/* The primary context is shared with whoever uses the runtime in this process. It is retained once and never released: the last release would destroy a
 * host program's own allocations. */
static gt_status retain_primary(int index, CUcontext *primary) {
    if (!primaries[index]) {
        CUresult code = driver.primary_retain(&primaries[index], index);
        if (code != CUDA_SUCCESS) {
            primaries[index] = NULL;
            bool memory = code == CUDA_ERROR_OUT_OF_MEMORY;
            return gt__error_raise(memory ? GT_OUT_OF_MEMORY : GT_NO_DEVICE, __FILE__, __LINE__, code, "CUresult",
                                   memory ? "Other processes hold the device's memory; repeat the call when some is free." : NULL,
                                   "cuDevicePrimaryCtxRetain: GPU %d could not be started (%d)", index, (int)code);
        }
    }
    *primary = primaries[index];
    return GT_OK;
}

static gt_status count_gpus(int *count) {
    cudaError_t code = cudaGetDeviceCount(count);
    if (code == cudaSuccess && *count > 0) return GT_OK;
    (void)cudaGetLastError();
    gt_status status = code == cudaErrorInsufficientDriver ? GT_VERSION_MISMATCH : GT_NO_DEVICE;
    if (code == cudaSuccess) code = cudaErrorNoDevice;
    return gt__error_raise(status, __FILE__, __LINE__, code, "cudaError_t",
                           "nvidia-smi shows what the driver sees; CUDA_VISIBLE_DEVICES may hide GPUs.", "no usable GPU: %s",
                           cudaGetErrorString(code));
}

static gt_status check_capability(int index, const char *name, int *capability) {
    int major = 0, minor = 0;
    GT_TRY_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    GT_TRY_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
    *capability = major * 10 + minor;
    GT_REQUIRE(gt__architectures_cover(gt__cuda_architectures(), *capability) != GT__GPU_CODE_NONE, GT_NO_DEVICE,
               "%s (cuda:%d) has compute capability %d.%d, this build has code for %s: rebuild with "
               "-DGTRAIN_CUDA_ARCHITECTURES=%d",
               name, index, major, minor, gt__cuda_architectures(), *capability);
    return GT_OK;
}

/* What needs the primary context current. */
static gt_status open_inside(gt__cuda_device *cuda) {
    struct cudaDeviceProp properties;
    GT_TRY_CUDA(cudaGetDeviceProperties(&properties, cuda->index));
    GT_TRY(check_capability(cuda->index, properties.name, &cuda->capability));
    snprintf(cuda->base.name, sizeof cuda->base.name, "%.100s (cuda:%d)", properties.name, cuda->index);
    cuda->multiprocessors = properties.multiProcessorCount;
    GT_TRY_CUDA(cudaStreamCreateWithFlags(&cuda->compute, cudaStreamNonBlocking));
    GT_TRY_CUDA(cudaStreamCreateWithFlags(&cuda->copy, cudaStreamNonBlocking));
    GT_TRY_CUDA(cudaStreamCreateWithFlags(&cuda->aside, cudaStreamNonBlocking));
    GT_TRY_CUDA(cudaEventCreateWithFlags(&cuda->branch_event, cudaEventDisableTiming));
    GT_TRY_CUDA(cudaEventCreate(&cuda->tune_begin));
    GT_TRY_CUDA(cudaEventCreate(&cuda->tune_end));
    GT_TRY_CUDA(cudaHostAlloc((void **)&cuda->error_host, SLOT_BYTES, cudaHostAllocMapped));
    memset(cuda->error_host, 0, SLOT_BYTES);
    cuda->probe_host = (unsigned char *)cuda->error_host + PROBE_OFFSET;
    GT_TRY_CUDA(cudaHostGetDevicePointer((void **)&cuda->error_slot.record, cuda->error_host, 0));
    const size_t words = (1 + 2 * GT__CUDA_COUNTERS) * sizeof(int);
    GT_TRY_CUDA(cudaMalloc((void **)&cuda->error_slot.claimed, words));
    GT_TRY_CUDA(cudaMemsetAsync(cuda->error_slot.claimed, 0, words, cuda->compute));
    GT_TRY_CUBLAS(cublasLtCreate(&cuda->lt));
    return GT_OK;
}

/* With the context current. At process exit CUDA may be gone already and every call fails: there is nothing left to free then. */
static void close_inside(gt__cuda_device *cuda) {
    if (cuda->compute) (void)cudaStreamSynchronize(cuda->compute);
    if (cuda->copy) (void)cudaStreamSynchronize(cuda->copy);
    bool gone = cudaFree(NULL) == cudaErrorCudartUnloading;
    gt__plan_cache_clear(&cuda->gemm_plans, gone);
    gt__plan_cache_clear(&cuda->conv_plans, gone);
    gt__cuda_chains_close(cuda, gone);
    if (!gone) {
        if (cuda->cudnn) (void)cudnnDestroy(cuda->cudnn);
        if (cuda->lt) (void)cublasLtDestroy(cuda->lt);
        if (cuda->tune_begin) (void)cudaEventDestroy(cuda->tune_begin);
        if (cuda->tune_end) (void)cudaEventDestroy(cuda->tune_end);
        if (cuda->error_host) (void)cudaFreeHost(cuda->error_host);
        if (cuda->error_slot.claimed) (void)cudaFree(cuda->error_slot.claimed);
        if (cuda->branch_event) (void)cudaEventDestroy(cuda->branch_event);
        if (cuda->aside) (void)cudaStreamDestroy(cuda->aside);
        if (cuda->compute) (void)cudaStreamDestroy(cuda->compute);
        if (cuda->copy) (void)cudaStreamDestroy(cuda->copy);
    }
    (void)cudaGetLastError();
}

gt_status gt__cuda_open(gt_context *ctx, const gt_context_options *options, gt__device **device) {
    int count = 0, index = options->device_index;
    GT_TRY(gt__cuda_check_driver());
    GT_TRY(count_gpus(&count));
    GT_REQUIRE(index >= 0, GT_BAD_ARGUMENT, "device_index is %d, GPUs are numbered from 0", index);
    GT_REQUIRE(index < GT__MIN(count, MAX_GPUS), GT_NO_DEVICE, "device_index is %d, but there are %d GPUs (numbered from 0)", index, count);

    gt__cuda_device *cuda = gt__calloc(1, sizeof *cuda);
    if (!cuda) return GT_OUT_OF_HOST_MEMORY;
    cuda->base.backend = &gt__cuda_table;
    cuda->base.ctx = ctx;
    cuda->base.deterministic = options->deterministic;
    cuda->base.allow_tf32 = options->allow_tf32;
    cuda->base.workspace_limit = options->workspace_limit;
    cuda->index = index;
    gt__cuda_gemm_cache_init(&cuda->gemm_plans, GEMM_PLANS);
    gt__cuda_conv_cache_init(&cuda->conv_plans, CONV_PLANS);

    (void)pthread_mutex_lock(&lock);
    gt_status status = load_driver();
    if (status == GT_OK) status = retain_primary(index, &cuda->primary);
    /* Before anything else is made: from here on the process cannot fork and go on using the GPU. */
    if (status == GT_OK) status = gt__cuda_fork_guard(&gt__cuda_table);
    (void)pthread_mutex_unlock(&lock);
    if (status == GT_OK) {
        int32_t previous = gt__cuda_enter(&cuda->base);
        status = open_inside(cuda);
        if (status != GT_OK) close_inside(cuda);
        gt__cuda_leave(&cuda->base, previous);
    }
    if (status != GT_OK) {
        gt__free(cuda);
        return status;
    }
    *device = &cuda->base;
    return GT_OK;
}

void gt__cuda_close(gt__device *device) {
    int32_t previous = gt__cuda_enter(device);
    close_inside(gt__cuda(device));
    gt__cuda_leave(device, previous);
    gt__free(gt__cuda(device));
}

/* Pushing and popping puts back whatever the thread had current, a host program's own driver context and none at all included; cudaSetDevice could not. */
int32_t gt__cuda_enter(gt__device *device) {
    CUcontext current = NULL, ours = gt__cuda(device)->primary;
    if (driver.ctx_get_current(&current) == CUDA_SUCCESS && current == ours) return 0;
    return driver.ctx_push(ours) == CUDA_SUCCESS;
}

void gt__cuda_leave(gt__device *device, int32_t previous) {
    (void)device;
    CUcontext popped;
    if (previous) (void)driver.ctx_pop(&popped);
}

/* --- streams, copies, events -------------------------------------------------------------------------------------------------- */

static cudaStream_t stream_of(gt__device *device, gt__stream_id stream) {
    return stream == GT__STREAM_COPY ? gt__cuda(device)->copy : gt__cuda(device)->compute;
}

void *gt__cuda_stream_of(gt__device *device, gt__stream_id stream) { return stream_of(device, stream); }

cudaStream_t gt__cuda_stream(gt__device *device) { return gt__cuda(device)->compute; }

uint32_t *gt__cuda_counters(const gt__device *device) {
    const gt__cuda_device *cuda = (const gt__cuda_device *)device;
    return (uint32_t *)cuda->error_slot.claimed + 1 + (cuda->main ? GT__CUDA_COUNTERS : 0); /* a branch has its own */
}

int32_t gt__cuda_capability(const gt__device *device) { return ((const gt__cuda_device *)device)->capability; }

int32_t gt__cuda_multiprocessors(const gt__device *device) { return ((const gt__cuda_device *)device)->multiprocessors; }

gt_status gt__cuda_memcpy(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *destination, const void *source,
                          size_t bytes) {
    static const enum cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
    if (bytes == 0) return GT_OK;
    GT_TRY_CUDA(cudaMemcpyAsync(destination, source, bytes, kinds[kind], stream_of(device, stream)));
    return GT_OK;
}

gt_status gt__cuda_memset_zero(gt__device *device, gt__stream_id stream, void *pointer, size_t bytes) {
    if (bytes == 0) return GT_OK;
    GT_TRY_CUDA(cudaMemsetAsync(pointer, 0, bytes, stream_of(device, stream)));
    return GT_OK;
}

gt_status gt__cuda_synchronize(gt__device *device, gt__stream_id stream) {
    GT_TRY_CUDA(cudaStreamSynchronize(stream_of(device, stream)));
    return GT_OK;
}

gt_status gt__cuda_event_create(gt__device *device, gt__event **event) {
    (void)device;
    cudaEvent_t created;
    GT_TRY_CUDA(cudaEventCreateWithFlags(&created, cudaEventDisableTiming));
    *event = (gt__event *)created;
    return GT_OK;
}

gt_status gt__cuda_timer_create(gt__device *device, gt__event **event) {
    (void)device;
    cudaEvent_t created;
    GT_TRY_CUDA(cudaEventCreate(&created));
    *event = (gt__event *)created;
    return GT_OK;
}

gt_status gt__cuda_event_elapsed(gt__device *device, gt__event *begin, gt__event *end, double *seconds) {
    (void)device;
    float milliseconds;
    GT_TRY_CUDA(cudaEventElapsedTime(&milliseconds, (cudaEvent_t)begin, (cudaEvent_t)end));
    *seconds = 1e-3 * (double)milliseconds;
    return GT_OK;
}

void gt__cuda_event_destroy(gt__device *device, gt__event *event) {
    (void)device;
    if (event && cudaEventDestroy((cudaEvent_t)event) != cudaSuccess) (void)cudaGetLastError();
}

gt_status gt__cuda_event_record(gt__device *device, gt__event *event, gt__stream_id stream) {
    GT_TRY_CUDA(cudaEventRecord((cudaEvent_t)event, stream_of(device, stream)));
    return GT_OK;
}

gt_status gt__cuda_event_wait_stream(gt__device *device, gt__event *event, gt__stream_id stream) {
    GT_TRY_CUDA(cudaStreamWaitEvent(stream_of(device, stream), (cudaEvent_t)event, 0));
    return GT_OK;
}

gt_status gt__cuda_event_wait_host(gt__device *device, gt__event *event) {
    (void)device;
    GT_TRY_CUDA(cudaEventSynchronize((cudaEvent_t)event));
    return GT_OK;
}

/* The driver's own: the runtime's leaves "not ready" behind as its last error, which is the host program's to read. */
gt_status gt__cuda_event_query(gt__device *device, gt__event *event, int32_t *done) {
    (void)device;
    CUresult code = driver.event_query((CUevent)event);
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_READY) return gt__cuda_raise_driver(code, "cuEventQuery", __FILE__, __LINE__);
    *done = code == CUDA_SUCCESS;
    return GT_OK;
}

/* --- errors that only the device knew ------------------------------------------------------------------------------------------ */

gt__error_slot gt__cuda_error_slot(gt__device *device) { return gt__cuda(device)->error_slot; }

void gt__cuda_take_error(gt__device *device, gt__device_error *error) {
    /* The GPU wrote it; the caller has waited for it. */
    volatile gt__device_error *slot = gt__cuda(device)->error_host;
    error->status = slot->status;
    error->op = slot->op;
    error->row = slot->row;
    error->value = slot->value;
    error->classes = slot->classes;
    if (error->status == GT_OK) return;
    memset(gt__cuda(device)->error_host, 0, sizeof(gt__device_error));
    (void)cudaMemsetAsync(gt__cuda(device)->error_slot.claimed, 0, sizeof(int), gt__cuda(device)->compute);
}

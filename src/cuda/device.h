/* The inside of a CUDA device: one per context. Not for .cu files, which see cuda_util.h. */
#ifndef GT_CUDA_DEVICE_H
#define GT_CUDA_DEVICE_H

#include "cuda/cuda_util.h"
#include "cuda/plan_cache.h"
#include "core/op.h"

#include <cuda.h>
#include <cublasLt.h>
#include <cudnn.h>

typedef struct gt__cuda_device {
    gt__device base; /* first: a gt__device * of this backend is a gt__cuda_device * */
    int index;
    int capability; /* major * 10 + minor */
    int multiprocessors;
    CUcontext primary; /* the device's primary context, retained for the life of the process */
    cudaStream_t compute;
    cudaStream_t copy;
    cudaEvent_t tune_begin, tune_end;
    cublasLtHandle_t lt;
    cudnnHandle_t cudnn; /* made by the first convolution */
    size_t grain;        /* of maps; memory.c */
    /* One page of mapped host memory: the error slot, and after it a few words into which probes read results back. */
    gt__device_error *error_host;
    gt__error_slot error_slot;
    unsigned char *probe_host;
    cudaStream_t main, aside;        /* graph.c: while a branch is captured `compute` is `aside`, and `main` what it was; else NULL and what was made for it */
    cudaEvent_t branch_event;
    cudaGraphNode_t captured_moves; /* graph.c: the inputs' launch of the capture that is under way, or NULL */
    gt__plan_cache gemm_plans;
    gt__plan_cache conv_plans;
    struct gt__chain_kernel *chains; /* chain.c */
    int32_t chain_count;
} gt__cuda_device;

static inline gt__cuda_device *gt__cuda(gt__device *device) { return (gt__cuda_device *)device; }

/* --- device.c */
/* The driver's functions that the runtime has no equal of: they put back exactly the context that a host program had current. */
typedef struct gt__cuda_driver {
    CUresult(CUDAAPI *ctx_get_current)(CUcontext *);
    CUresult(CUDAAPI *ctx_push)(CUcontext);
    CUresult(CUDAAPI *ctx_pop)(CUcontext *);
    CUresult(CUDAAPI *event_query)(CUevent);
    CUresult(CUDAAPI *primary_retain)(CUcontext *, CUdevice);
} gt__cuda_driver;
/* A function of the driver, as of CUDA 12.0; false if it has none of that name. Raises nothing. */
bool gt__cuda_driver_find(const char *name, void **function);

/* The memory-full test behind OUT_OF_MEMORY for libraries that report it as a failed start: less than this is free. */
#define GT__CUDA_FULL_BYTES ((size_t)256 << 20)
/* True where the current device has too little memory left for a library to start. */
bool gt__cuda_memory_is_full(size_t *free_bytes);
/* Where it is full, gives the context's cached memory back. True: a call that failed for want of memory may now work. */
bool gt__cuda_make_room(gt__cuda_device *cuda);

/* --- versions.c */
/* VERSION_MISMATCH if a library or the driver is older than what the module was built for; touches no GPU. */
gt_status gt__cuda_check_libraries(void);
gt_status gt__cuda_check_driver(void);

/* --- build_note.c */
/* What nvcc compiled for, as CMAKE_CUDA_ARCHITECTURES: see backend/architectures.h. */
const char *gt__cuda_architectures(void);

/* --- fork.c */
/* From now on a fork leaves the child with a backend whose every call fails with FORKED. Called once a device has been opened. */
gt_status gt__cuda_fork_guard(gt__backend *table);

/* --- table.c */
extern gt__backend gt__cuda_table;
/* Backend functions of device.c, memory.c and holders.c, for the table. */
gt_status gt__cuda_open(gt_context *ctx, const gt_context_options *options, gt__device **device);
void gt__cuda_close(gt__device *device);
int32_t gt__cuda_enter(gt__device *device);
void gt__cuda_leave(gt__device *device, int32_t previous);
gt_status gt__cuda_memory_alloc(gt__device *device, size_t bytes, void **pointer);
void gt__cuda_memory_free(gt__device *device, void *pointer);
gt_status gt__cuda_memory_info(gt__device *device, uint64_t *free_bytes, uint64_t *total_bytes);
int32_t gt__cuda_memory_holders(gt__device *device, gt__memory_holder *list, int32_t capacity);
size_t gt__cuda_map_grain(gt__device *device);
gt_status gt__cuda_address_reserve(gt__device *device, size_t bytes, void **address);
void gt__cuda_address_release(gt__device *device, void *address, size_t bytes);
gt_status gt__cuda_memory_map(gt__device *device, void *address, size_t bytes);
void gt__cuda_memory_unmap(gt__device *device, void *address, size_t bytes);
gt_status gt__cuda_host_alloc(gt__device *device, size_t bytes, void **pointer);
void gt__cuda_host_free(gt__device *device, void *pointer);
gt_status gt__cuda_memcpy(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *destination, const void *source,
                          size_t bytes);
gt_status gt__cuda_memset_zero(gt__device *device, gt__stream_id stream, void *pointer, size_t bytes);
gt_status gt__cuda_synchronize(gt__device *device, gt__stream_id stream);
gt_status gt__cuda_event_create(gt__device *device, gt__event **event);
void gt__cuda_event_destroy(gt__device *device, gt__event *event);
gt_status gt__cuda_event_record(gt__device *device, gt__event *event, gt__stream_id stream);
gt_status gt__cuda_event_wait_stream(gt__device *device, gt__event *event, gt__stream_id stream);
gt_status gt__cuda_event_wait_host(gt__device *device, gt__event *event);
gt_status gt__cuda_event_query(gt__device *device, gt__event *event, int32_t *done);
gt_status gt__cuda_timer_create(gt__device *device, gt__event **event);
gt_status gt__cuda_event_elapsed(gt__device *device, gt__event *begin, gt__event *end, double *seconds);
void *gt__cuda_stream_of(gt__device *device, gt__stream_id stream);
void gt__cuda_take_error(gt__device *device, gt__device_error *error);

/* --- graph.c */
gt_status gt__cuda_capture_begin(gt__device *device);
gt_status gt__cuda_capture_end(gt__device *device, gt__graph **graph);
gt_status gt__cuda_capture_branch(gt__device *device, bool aside);
gt_status gt__cuda_capture_join(gt__device *device);
gt_status gt__cuda_graph_launch(gt__device *device, gt__graph *graph);
gt_status gt__cuda_graph_move(gt__device *device, gt__graph *graph, const gt__move *list, int32_t count);
gt_status gt__cuda_moves(gt__device *device, const gt__move *list, int32_t count); /* backend.h's move_many */
void gt__cuda_graph_destroy(gt__device *device, gt__graph *graph);

/* --- ranges.c */
void gt__cuda_range_push(gt__device *device, const char *text);
void gt__cuda_range_pop(gt__device *device);

/* --- gemm.c, conv.c */
void gt__cuda_gemm_cache_init(gt__plan_cache *cache, uint32_t capacity);
void gt__cuda_conv_cache_init(gt__plan_cache *cache, uint32_t capacity);
gt_status gt__cuda_matmul(gt__device *device, const gt__call *call);
gt_status gt__cuda_linear(gt__device *device, const gt__call *call);
gt_status gt__cuda_linear_relu(gt__device *device, const gt__call *call);
gt_status gt__cuda_linear_backward_weight(gt__device *device, const gt__call *call);
gt_status gt__cuda_conv2d(gt__device *device, const gt__call *call);
gt_status gt__cuda_conv2d_relu(gt__device *device, const gt__call *call);
gt_status gt__cuda_conv2d_backward_input(gt__device *device, const gt__call *call);
gt_status gt__cuda_conv2d_backward_weight(gt__device *device, const gt__call *call);
gt_status gt__cuda_conv2d_relu_backward_weight(gt__device *device, const gt__call *call);

#endif

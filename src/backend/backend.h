/* All that a device implements. Nothing outside src/cuda includes a CUDA header; nothing outside src/cpu knows oneDNN.
 *
 * A backend is one table of functions. Kernels are indexed by op (core/op.h); a NULL kernel means "not supported", so that what
 * is supported and what computes cannot disagree. Every function queues its work on the device's compute stream and returns without
 * waiting unless it says so. The CPU computes at once and ignores streams and events. */
#ifndef GT_BACKEND_BACKEND_H
#define GT_BACKEND_BACKEND_H

#include "base/host.h"
#include <gtrain/context.h>
#include <gtrain/optim.h>
#include <gtrain/tensor.h>

GT_EXTERN_C_BEGIN

struct gt__call;
struct gt__chain; /* core/chain.h */
typedef struct gt__backend gt__backend;

/* Common head of every backend's device; the backend's own struct begins with it. */
typedef struct gt__device {
    const gt__backend *backend;
    gt_context *ctx;       /* whose device it is; needed for scratch memory and logs */
    int32_t deterministic; /* from the context's options */
    int32_t allow_tf32;
    uint64_t workspace_limit; /* bytes, or GT_WORKSPACE_AUTO */
    char name[128];           /* for gt_context_device_name */
} gt__device;

typedef gt_status (*gt__kernel)(gt__device *device, const struct gt__call *call);

/* What only the device knew, found when the host waits. status GT_OK: nothing. */
typedef struct gt__device_error {
    int32_t status; /* GT_BAD_LABEL */
    int32_t op;     /* gt__op_id */
    int64_t row;
    int64_t value;
    int64_t classes;
} gt__device_error;

/* One parameter in a multi-tensor update. All arrays are dense, `count` long, in the parameter's memory order. */
typedef struct gt__update {
    void *param;
    void *master; /* f32 master copy of a half-precision param, else NULL */
    const void *grad;
    void *state0; /* SGD: momentum buffer; Adam: first moment. NULL if unused */
    void *state1; /* Adam: second moment. f64 for f64 params, else f32 */
    int64_t count;
    gt_dtype param_dtype;
    gt_dtype grad_dtype; /* f32, or f64 for f64 params */
    /* Updates of this parameter so far, on the device: a pair of cells aligned to 8 bytes. `step` is the one to read; the update writes the number after it
     * to the other one (its address ^ 4), so that no block of a launch reads what another has written. */
    int32_t *step;
    void *half;          /* a half-precision copy of an f32 param, written too (where the step is skipped: from the param), or NULL */
    gt_dtype half_dtype; /* of `half` */
    int32_t padding;
} gt__update;

/* Device memory: what an update does where only the device knows. */
typedef struct gt__step_control {
    double factor;        /* gradients are multiplied by it: unscaling, the mean over items, clipping */
    double limit;         /* and then clamped to [-limit, limit]; 0: not */
    double learning_rate; /* in place of the rule's, unless NaN */
    double norm;          /* of the true gradients, before clipping */
    int32_t skip;         /* not 0: nothing is changed, step counts included */
    int32_t first_bad;    /* gt__grad_list_item.index of the first gradient that is not finite; INT32_MAX: none */
} gt__step_control;

typedef struct gt__update_rule {
    int32_t kind; /* gt_optimizer_kind */
    int32_t nesterov;
    double learning_rate, momentum, dampening, beta1, beta2, epsilon, weight_decay;
    const double *rate_cell; /* device memory: in place of learning_rate; NULL: not */
} gt__update_rule;

typedef struct gt__grad_list_item {
    void *grad;
    int64_t count;
    gt_dtype dtype; /* f32 or f64 */
    int32_t index;  /* what gt__step_control.first_bad says of it */
} gt__grad_list_item;

/* Device memory: a loss scaler. Scales are f32, so powers of two stay exact. */
typedef struct gt__scaler_cells {
    float scale; /* first: a tensor of one element lies over it */
    float floor, cap;
    int32_t status; /* gt_scaler_status */
    double growth, backoff;
    int64_t updates, skipped, skipped_in_row;
    int32_t growth_count, growth_interval;
    int32_t dynamic;
    int32_t found;          /* not 0: since the last update gradients of some optimizer were not finite */
    int32_t found_first;    /* the least gt__grad_list_item.index of those; INT32_MAX: none */
    int32_t last_first;     /* found_first when an update was last left out */
    uint64_t overflow;      /* diagnosis: least mark of an op whose result is not finite since the last update; UINT64_MAX: none */
    uint64_t last_overflow; /* overflow when an update was last left out */
} gt__scaler_cells;

/* Device memory: an accumulation window. */
typedef struct gt__window_cells {
    double items;     /* valid items of the open window so far */
    double reference; /* a micro-batch of so many items would be seeded with the scale itself */
    int64_t updates, skipped, empty;
    double last_items, last_norm, last_rate; /* what gt_window_get_state tells */
    int32_t status;                          /* gt_window_status */
    int32_t padding;
} gt__window_cells;

/* A few sums on a few numbers of device memory, done by one thread: core/step_math.h says what. */
typedef int32_t gt__step_task_kind;
enum {
    GT__STEP_SEED,         /* a micro-batch's items; *seed: the gradient of its loss */
    GT__STEP_WINDOW_END,   /* control of a window's update from its norm and first_bad; the scaler's update */
    GT__STEP_UNSCALE,      /* control[0] unscales gradients, control[1] updates with unscaled ones */
    GT__STEP_SCALER_UPDATE, /* of the scaler alone */
    GT__STEP_ADVANCE        /* what every kind does first, and no more */
};
typedef struct gt__step_task {
    gt__scaler_cells *scaler; /* NULL: no loss scaling */
    gt__window_cells *window;
    gt__step_control *control; /* norm and first_bad are there */
    float *seed;
    const void *items_cell; /* the number of items, or NULL: in `items` */
    double items;
    double clip_norm, clip_value; /* 0: no limit */
    double learning_rate;         /* without a schedule */
    gt_schedule schedule;         /* struct_size 0: none */
    gt__step_task_kind kind;
    gt_dtype items_dtype;  /* of items_cell: f32 or f64 */
    int32_t first;         /* the window's first micro-batch */
    int32_t micro_batches; /* that the window is to have */
    /* For a program that runs many times with the same arguments; done first by every kind. NULL: nothing. */
    const double *rate_cell;  /* in place of learning_rate */
    uint64_t *random_cells;   /* seed and offset: the offset rises by random_advance */
    uint64_t random_advance;
    int32_t *settle;          /* settle_count pairs of step counts (gt__update.step): the first of each becomes what the last update wrote to the second */
    int32_t settle_count;
    int32_t alone; /* WINDOW_END: the window had one micro-batch, of `items` (not 0), which nobody has seeded */
} gt__step_task;

/* One piece of a copy_many: dense device memory, not overlapping. */
typedef struct gt__copy_item {
    void *destination;
    const void *source;
    size_t bytes;
} gt__copy_item;

/* One of a program's inputs: `count` elements, dense, converted from f32 to a half-precision dtype where the dtypes differ. */
typedef struct gt__move {
    void *destination;
    const void *source;
    int64_t count;
    gt_dtype to, from;
} gt__move;
#define GT__MOVES 8 /* of one call, at most */

/* A process that holds memory of the device. */
typedef struct gt__memory_holder {
    int64_t process;
    uint64_t bytes; /* 0: unknown */
} gt__memory_holder;

typedef struct gt__event gt__event;
typedef struct gt__graph gt__graph;

typedef enum gt__copy_kind { GT__COPY_HOST_TO_DEVICE, GT__COPY_DEVICE_TO_HOST, GT__COPY_DEVICE_TO_DEVICE } gt__copy_kind;
typedef enum gt__stream_id { GT__STREAM_COMPUTE, GT__STREAM_COPY } gt__stream_id;

#define GT__BACKEND_ABI 5

struct gt__backend {
    uint32_t abi; /* GT__BACKEND_ABI */
    gt_device_kind kind;
    const char *name; /* "cpu", "cuda" */

    /* Opens device `options->device_index`. */
    gt_status (*open)(gt_context *ctx, const gt_context_options *options, gt__device **device);
    void (*close)(gt__device *device);

    /* Makes the device current for the calling thread and returns what was current; leave puts that back. May be NULL. */
    int32_t (*enter)(gt__device *device);
    void (*leave)(gt__device *device, int32_t previous);

    /* Raw device memory. OUT_OF_MEMORY, with nothing raised: the allocator says what it was for. Freed memory must no longer be in use. */
    gt_status (*memory_alloc)(gt__device *device, size_t bytes, void **pointer);
    void (*memory_free)(gt__device *device, void *pointer);
    gt_status (*memory_info)(gt__device *device, uint64_t *free_bytes, uint64_t *total_bytes);
    /* Who holds the device's memory: fills up to `capacity` entries, this process included, and returns how many there are; 0 where nobody can tell. May be
     * NULL. Slow (NVML): for reports alone. */
    int32_t (*memory_holders)(gt__device *device, gt__memory_holder *list, int32_t capacity);
    /* Virtual memory: addresses that are backed by memory piece by piece. All NULL where there is none.
     * map_grain: bytes that pieces are made of, 0 if this device cannot after all. memory_map backs [address, address + bytes), a multiple of the
     * grain, by one piece a grain: all of it or nothing (OUT_OF_MEMORY, with nothing raised). memory_unmap gives any run of grains back; the caller has waited for the work
     * that used it. */
    size_t (*map_grain)(gt__device *device);
    gt_status (*address_reserve)(gt__device *device, size_t bytes, void **address);
    void (*address_release)(gt__device *device, void *address, size_t bytes);
    gt_status (*memory_map)(gt__device *device, void *address, size_t bytes);
    void (*memory_unmap)(gt__device *device, void *address, size_t bytes);
    /* Host memory that the device can copy from without a detour (pinned). */
    gt_status (*host_alloc)(gt__device *device, size_t bytes, void **pointer);
    void (*host_free)(gt__device *device, void *pointer);

    /* Dense copies. With pageable host memory a copy may wait; a host source may be reused on return only if it waited or was staged:
     * core always waits or uses pinned memory. */
    gt_status (*copy)(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *destination, const void *source, size_t bytes);
    gt_status (*memset_zero)(gt__device *device, gt__stream_id stream, void *pointer, size_t bytes);

    gt_status (*synchronize)(gt__device *device, gt__stream_id stream); /* waits */
    gt_status (*event_create)(gt__device *device, gt__event **event);
    void (*event_destroy)(gt__device *device, gt__event *event);
    gt_status (*event_record)(gt__device *device, gt__event *event, gt__stream_id stream);
    gt_status (*event_wait_stream)(gt__device *device, gt__event *event, gt__stream_id stream); /* the stream waits, not the host */
    gt_status (*event_wait_host)(gt__device *device, gt__event *event);                         /* waits */
    gt_status (*event_query)(gt__device *device, gt__event *event, int32_t *done);              /* *done: all before it has run */
    void *(*stream)(gt__device *device, gt__stream_id stream);

    /* Moves the first device-side error, if any, to *error and clears it. Call after synchronize. */
    void (*take_error)(gt__device *device, gt__device_error *error);

    const gt__kernel *kernels; /* GT__OP_COUNT entries */

    /* Many small copies on the compute stream in one launch. */
    gt_status (*copy_many)(gt__device *device, const gt__copy_item *list, int32_t count);

    /* Multi-tensor calls: one launch for many parameters. `control` (device, may be NULL: multiply by 1, the rule's rate, never skip). */
    gt_status (*update)(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count,
                        const gt__step_control *control);
    /* *norm (device f64 scalar) = 2-norm over the whole list, summed in f64: that of finite f32 gradients may be beyond f32. *first_bad (device, may be
     * NULL) = the least index of an item with an element that is not finite, INT32_MAX if there is none. */
    gt_status (*grad_norm)(gt__device *device, const gt__grad_list_item *list, int32_t count, double *norm, int32_t *first_bad);
    /* Scales by min(1, max_norm / *norm) where *norm (device) is finite; leaves the list where it is not. */
    gt_status (*grad_clip_norm)(gt__device *device, const gt__grad_list_item *list, int32_t count, const double *norm, double max_norm);
    gt_status (*grad_clip_value)(gt__device *device, const gt__grad_list_item *list, int32_t count, double max_value);
    /* Multiplies by control->factor (device). */
    gt_status (*grad_scale)(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_control *control);
    gt_status (*step_task)(gt__device *device, const gt__step_task *task);
    /* grad_norm into task->control, then the task: a launch less. */
    gt_status (*grad_step_task)(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_task *task);
    /* *least (device) = min(*least, mark) if an element of a dense floating array is not finite. */
    gt_status (*mark_not_finite)(gt__device *device, const void *data, gt_dtype dtype, int64_t count, uint64_t mark, uint64_t *least);

    /* On the compute stream, in one launch; they do not overlap. */
    gt_status (*move_many)(gt__device *device, const gt__move *list, int32_t count);

    /* Work on the compute stream written down instead of done, to be launched as one thing again and again. Between begin and end nothing may wait, and the
     * device's memory stays as it is. All NULL where there is no such thing. */
    gt_status (*capture_begin)(gt__device *device);
    gt_status (*capture_end)(gt__device *device, gt__graph **graph); /* NULL: what was written down is thrown away */
    /* Between begin and end of a capture: what follows is put on a branch beside what was there so far (aside), or on the main one again; join makes the main one
     * wait for the branch. */
    gt_status (*capture_branch)(gt__device *device, bool aside);
    gt_status (*capture_join)(gt__device *device);
    gt_status (*graph_launch)(gt__device *device, gt__graph *graph);
    /* Other sources for the move_many of the graph: as many moves, of the same sizes and dtypes. */
    gt_status (*graph_move)(gt__device *device, gt__graph *graph, const gt__move *list, int32_t count);
    void (*graph_destroy)(gt__device *device, gt__graph *graph);

    /* Elementwise ops in one pass over memory. can_chain: whether run_chain can do it, by its ops, dtypes and sizes; where the data lies is of no matter. `prepare`: and makes all that it
     * takes beside the arguments (a kernel), so that it does not fail for want of that. Raises nothing. Both NULL where there is no such thing. */
    bool (*can_chain)(gt__device *device, const struct gt__chain *chain, bool prepare);
    gt_status (*run_chain)(gt__device *device, const struct gt__chain *chain);

    /* For the profiler. An event that notes when the stream comes to it; *seconds: from `begin` to `end`, which have both come and were not recorded inside a
     * capture. */
    gt_status (*timer_create)(gt__device *device, gt__event **event);
    gt_status (*event_elapsed)(gt__device *device, gt__event *begin, gt__event *end, double *seconds);
    /* Ranges of the calling thread that a profiler of the device's maker shows; they nest. May be NULL. */
    void (*range_push)(gt__device *device, const char *text);
    void (*range_pop)(gt__device *device);
};

/* What the CUDA module is given when it is loaded: the functions of libgtrain.so that it may call (it links none of its symbols).
 * cuda/module_host.c turns them into the ordinary names again; core/host_api.c fills the table. */
typedef struct gt__host_api {
    uint32_t abi; /* GT__BACKEND_ABI */
    uint32_t op_count;
    gt_status (*error_raisev)(gt_status status, const char *file, int line, int64_t native_code, const char *native_name, const char *hint,
                              const char *format, va_list arguments);
    void *(*malloc_fn)(size_t size);
    void *(*calloc_fn)(size_t count, size_t size);
    void *(*realloc_fn)(void *pointer, size_t size);
    void (*free_fn)(void *pointer);
    gt_status (*scratch_alloc)(gt_context *ctx, size_t bytes, void **pointer, void **handle);
    void (*scratch_free)(gt_context *ctx, void *handle);
    gt_status (*scratch_alloc_quiet)(gt_context *ctx, size_t bytes, void **pointer, void **handle);
    bool (*cache_release)(gt_context *ctx);
    void (*log)(gt_context *ctx, gt_log_level level, const char *text);
    const char *(*call_text)(const struct gt__call *call, char *buffer, size_t size);
    gt__kernel custom_run;
    const char *(*shape_text)(char *buffer, size_t size, int32_t ndim, const int64_t *shape);
} gt__host_api;
const gt__host_api *gt__host_functions(void);

/* --- callable from kernels, in every build ---------------------------------------------------------------------------------------
 * Scratch device memory for one call. It may be freed as soon as the work that uses it is queued (reuse is stream-ordered). `_quiet` sets no
 * error record when memory is short, so that a kernel can take a smaller algorithm. */
gt_status gt__scratch_alloc(gt_context *ctx, size_t bytes, void **pointer, void **handle);
gt_status gt__scratch_alloc_quiet(gt_context *ctx, size_t bytes, void **pointer, void **handle);
void gt__scratch_free(gt_context *ctx, void *handle); /* NULL is allowed */
/* For libraries that need device memory of their own and find none: gives what the context has cached back to the device, and waits for it. False: there was
 * nothing. */
bool gt__cache_release(gt_context *ctx);
void gt__log(gt_context *ctx, gt_log_level level, const char *format, ...) GT__PRINTF(3, 4);
/* The kernel of CUSTOM on every device: calls the user's functions (ops/custom.c). */
gt_status gt__custom_run(gt__device *device, const struct gt__call *call);

/* --- loader.c ------------------------------------------------------------------------------------------------------------------- */
const gt__backend *gt__backend_cpu(void);
/* The CUDA backend: linked in, or loaded from libgtrain_cuda.so beside libgtrain.so (GTRAIN_CUDA_MODULE overrides the path). NO_DEVICE
 * with what was missing, where it was looked for and what to install. Loaded once per process and kept. */
gt_status gt__backend_cuda(const gt__backend **backend);
/* cuda/table.c. VERSION_MISMATCH where a CUDA library is older than what was built for. */
gt_status gt__cuda_backend(const gt__backend **backend);
/* The module's one exported symbol: binds the host's functions, then gt__cuda_backend. */
GT_API gt_status gt_backend_cuda_v1(const gt__host_api *host, const gt__backend **backend);

GT_EXTERN_C_END
#endif

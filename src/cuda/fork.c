/* A CUDA context does not survive a fork, and a call on it in the child may hang or bring the process down. So the child's copy of the backend
 * table is replaced, in the fork itself, by functions that fail at once and touch nothing. The parent pays nothing for it. */
#include "cuda/chain_kernels.h"
#include "cuda/device.h"

#include <pthread.h>

static gt__backend *guarded;
static gt_status registered = GT_OK;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static gt_status forked(void) {
    GT_FAIL_HINT(GT_FORKED, "Start the child with exec (spawn), or open the GPU after the fork.",
                 "the GPU was opened by the parent process of a fork and cannot be used in the child");
}

static gt_status forked_kernel(gt__device *device, const gt__call *call) {
    (void)device;
    GT_CALL_FAIL_HINT(call, GT_FORKED, "Start the child with exec (spawn), or open the GPU after the fork.",
                      "the GPU was opened by the parent process of a fork and cannot be used in the child");
}

static gt_status forked_open(gt_context *ctx, const gt_context_options *options, gt__device **device) {
    (void)ctx, (void)options, (void)device;
    return forked();
}
static void forked_close(gt__device *device) {
    gt__cuda_device *cuda = gt__cuda(device);
    gt__plan_cache_clear(&cuda->gemm_plans, true);
    gt__plan_cache_clear(&cuda->conv_plans, true);
    gt__chain_kernels_clear(cuda, NULL);
    gt__free(cuda);
}
static int32_t forked_enter(gt__device *device) {
    (void)device;
    return 0;
}
static void forked_leave(gt__device *device, int32_t previous) { (void)device, (void)previous; }
static gt_status forked_alloc(gt__device *device, size_t bytes, void **pointer) {
    (void)device, (void)bytes, (void)pointer;
    return forked();
}
static void forked_free(gt__device *device, void *pointer) { (void)device, (void)pointer; }
static gt_status forked_info(gt__device *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    (void)device, (void)free_bytes, (void)total_bytes;
    return forked();
}
static int32_t forked_holders(gt__device *device, gt__memory_holder *list, int32_t capacity) {
    (void)device, (void)list, (void)capacity;
    return 0;
}
static size_t forked_grain(gt__device *device) {
    (void)device;
    return 0;
}
static gt_status forked_map(gt__device *device, void *address, size_t bytes) {
    (void)device, (void)address, (void)bytes;
    return forked();
}
static void forked_unmap(gt__device *device, void *address, size_t bytes) { (void)device, (void)address, (void)bytes; }
static gt_status forked_copy(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *destination, const void *source,
                             size_t bytes) {
    (void)device, (void)stream, (void)kind, (void)destination, (void)source, (void)bytes;
    return forked();
}
static gt_status forked_memset(gt__device *device, gt__stream_id stream, void *pointer, size_t bytes) {
    (void)device, (void)stream, (void)pointer, (void)bytes;
    return forked();
}
static gt_status forked_synchronize(gt__device *device, gt__stream_id stream) {
    (void)device, (void)stream;
    return forked();
}
static gt_status forked_event_create(gt__device *device, gt__event **event) {
    (void)device, (void)event;
    return forked();
}
static void forked_event_destroy(gt__device *device, gt__event *event) { (void)device, (void)event; }
static gt_status forked_event_stream(gt__device *device, gt__event *event, gt__stream_id stream) {
    (void)device, (void)event, (void)stream;
    return forked();
}
static gt_status forked_event_host(gt__device *device, gt__event *event) {
    (void)device, (void)event;
    return forked();
}
static gt_status forked_elapsed(gt__device *device, gt__event *begin, gt__event *end, double *seconds) {
    (void)device, (void)begin, (void)end, (void)seconds;
    return forked();
}
static gt_status forked_event_query(gt__device *device, gt__event *event, int32_t *done) {
    (void)device, (void)event, (void)done;
    return forked();
}
static gt_status forked_capture_begin(gt__device *device) {
    (void)device;
    return forked();
}
static gt_status forked_capture_end(gt__device *device, gt__graph **graph) {
    (void)device, (void)graph;
    return forked();
}
static gt_status forked_graph_launch(gt__device *device, gt__graph *graph) {
    (void)device, (void)graph;
    return forked();
}
static gt_status forked_graph_move(gt__device *device, gt__graph *graph, const gt__move *list, int32_t count) {
    (void)device, (void)graph, (void)list, (void)count;
    return forked();
}
static gt_status forked_moves(gt__device *device, const gt__move *list, int32_t count) {
    (void)device, (void)list, (void)count;
    return forked();
}
static gt_status forked_capture_branch(gt__device *device, bool aside) {
    (void)device, (void)aside;
    return forked();
}
static void forked_graph_destroy(gt__device *device, gt__graph *graph) { (void)device, (void)graph; }
static void forked_take_error(gt__device *device, gt__device_error *error) {
    (void)device;
    *error = (gt__device_error){0};
}
static gt_status forked_update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count,
                               const gt__step_control *control) {
    (void)control, (void)device, (void)rule, (void)list, (void)count;
    return forked();
}
static gt_status forked_grad_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, double *norm, int32_t *first_bad) {
    (void)first_bad, (void)device, (void)list, (void)count, (void)norm;
    return forked();
}
static gt_status forked_clip_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, const double *norm, double max_norm) {
    (void)device, (void)list, (void)count, (void)norm, (void)max_norm;
    return forked();
}
static gt_status forked_clip_value(gt__device *device, const gt__grad_list_item *list, int32_t count, double max_value) {
    (void)device, (void)list, (void)count, (void)max_value;
    return forked();
}
static gt_status forked_grad_scale(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_control *control) {
    (void)device, (void)list, (void)count, (void)control;
    return forked();
}
static gt_status forked_step_task(gt__device *device, const gt__step_task *task) {
    (void)device, (void)task;
    return forked();
}
static gt_status forked_grad_step_task(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_task *task) {
    (void)device, (void)list, (void)count, (void)task;
    return forked();
}
static gt_status forked_mark(gt__device *device, const void *data, gt_dtype dtype, int64_t count, uint64_t mark, uint64_t *least) {
    (void)device, (void)data, (void)dtype, (void)count, (void)mark, (void)least;
    return forked();
}
static gt_status forked_copy_many(gt__device *device, const gt__copy_item *list, int32_t count) {
    (void)device, (void)list, (void)count;
    return forked();
}

static bool forked_can_chain(gt__device *device, const struct gt__chain *chain, bool prepare) {
    (void)device, (void)chain, (void)prepare;
    return false;
}
static gt_status forked_chain(gt__device *device, const struct gt__chain *chain) {
    (void)device, (void)chain;
    return forked();
}

#define FORKED_KERNEL(id, name, shape, grad, layout, saves, cast) [GT__OP_##id] = forked_kernel,
static const gt__kernel forked_kernels[GT__OP_COUNT] = {GT__OP_LIST(FORKED_KERNEL)};

/* In the child, before fork returns there: assignments alone. */
static void in_child(void) {
    guarded->open = forked_open;
    guarded->close = forked_close;
    guarded->enter = forked_enter;
    guarded->leave = forked_leave;
    guarded->memory_alloc = guarded->host_alloc = forked_alloc;
    guarded->memory_free = guarded->host_free = forked_free;
    guarded->memory_info = forked_info;
    guarded->memory_holders = forked_holders;
    guarded->map_grain = forked_grain;
    guarded->address_reserve = forked_alloc;
    guarded->memory_map = forked_map;
    guarded->address_release = guarded->memory_unmap = forked_unmap;
    guarded->copy = forked_copy;
    guarded->memset_zero = forked_memset;
    guarded->synchronize = forked_synchronize;
    guarded->event_create = guarded->timer_create = forked_event_create;
    guarded->event_elapsed = forked_elapsed;
    guarded->range_push = NULL;
    guarded->range_pop = NULL;
    guarded->event_destroy = forked_event_destroy;
    guarded->event_record = guarded->event_wait_stream = forked_event_stream;
    guarded->event_wait_host = forked_event_host;
    guarded->event_query = forked_event_query;
    guarded->take_error = forked_take_error;
    guarded->kernels = forked_kernels;
    guarded->update = forked_update;
    guarded->grad_norm = forked_grad_norm;
    guarded->grad_clip_norm = forked_clip_norm;
    guarded->grad_clip_value = forked_clip_value;
    guarded->grad_scale = forked_grad_scale;
    guarded->step_task = forked_step_task;
    guarded->grad_step_task = forked_grad_step_task;
    guarded->mark_not_finite = forked_mark;
    guarded->capture_begin = forked_capture_begin;
    guarded->capture_end = forked_capture_end;
    guarded->capture_branch = forked_capture_branch;
    guarded->capture_join = forked_capture_begin;
    guarded->graph_launch = forked_graph_launch;
    guarded->graph_move = forked_graph_move;
    guarded->graph_destroy = forked_graph_destroy;
    guarded->copy_many = forked_copy_many;
    guarded->move_many = forked_moves;
    guarded->can_chain = forked_can_chain;
    guarded->run_chain = forked_chain;
}

static void register_handler(void) {
    if (pthread_atfork(NULL, NULL, in_child) != 0) registered = GT_OUT_OF_HOST_MEMORY;
}

gt_status gt__cuda_fork_guard(gt__backend *table) {
    guarded = table;
    (void)pthread_once(&once, register_handler);
    GT_REQUIRE(registered == GT_OK, registered, "pthread_atfork: no memory for a handler");
    return GT_OK;
}

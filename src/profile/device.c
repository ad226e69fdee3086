/* The device that stands before the context's own: every function hands on, through the real table as it is at that moment (a fork replaces it), and
 * those that give the device work are noted. Nothing above the backend knows of it. */
#include "profile/profile.h"

const char *const gt__copy_names[3] = {
    [GT__COPY_HOST_TO_DEVICE] = "copy host to device",
    [GT__COPY_DEVICE_TO_HOST] = "copy device to host",
    [GT__COPY_DEVICE_TO_DEVICE] = "copy on device",
};

#define REAL(device)                                                                                                                       \
    gt__profiled *p = gt__profiled_of(device);                                                                                             \
    gt__device *real = p->real;                                                                                                            \
    const gt__backend *b = real->backend

/* `find_cost` fills `cost`. */
#define WATCHED(op, dtype, stream, call, find_cost)                                                                                        \
    if (!gt__watches(p)) return call;                                                                                                      \
    gt__watch watch;                                                                                                                       \
    gt__cost cost = {0};                                                                                                                   \
    gt__watch_begin(p, &watch, op, dtype, stream);                                                                                         \
    gt_status status = call;                                                                                                               \
    find_cost;                                                                                                                             \
    gt__watch_end(p, &watch, &cost, status);                                                                                               \
    return status

/* --- what is noted --------------------------------------------------------------------------------------------------------------------------- */

static const char *op_name(gt__profiled *p, const gt__call *call) {
    const char *name = gt__op_table[call->op].name;
    if (call->op != GT__OP_CUSTOM) return name;
    const char *own = gt__context_string(p->ctx, gt__custom_name(call->attr.custom.op));
    return own ? own : name;
}

static int32_t dtype_of(const gt__call *call) {
    if (call->n_in > 0 && call->in[0]) return call->in[0]->meta.dtype;
    return call->n_out > 0 && call->out[0] ? call->out[0]->meta.dtype : -1;
}

static gt_status kernel(gt__device *device, const gt__call *call) {
    REAL(device);
    gt__kernel run = b->kernels[call->op];
    WATCHED(op_name(p, call), dtype_of(call), GT__STREAM_COMPUTE, run(real, call), gt__op_cost(call, &cost));
}

static gt_status copy(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *destination, const void *source, size_t bytes) {
    REAL(device);
    if (bytes == 0) return b->copy(real, stream, kind, destination, source, bytes);
    WATCHED(gt__copy_names[kind], -1, (int32_t)stream, b->copy(real, stream, kind, destination, source, bytes),
            cost.bytes = (uint64_t)bytes * (kind == GT__COPY_DEVICE_TO_DEVICE ? 2 : 1));
}

static gt_status memset_zero(gt__device *device, gt__stream_id stream, void *pointer, size_t bytes) {
    REAL(device);
    if (bytes == 0) return b->memset_zero(real, stream, pointer, bytes);
    WATCHED("zero", -1, (int32_t)stream, b->memset_zero(real, stream, pointer, bytes), cost.bytes = bytes);
}

static gt_status copy_many(gt__device *device, const gt__copy_item *list, int32_t count) {
    REAL(device);
    WATCHED("copy_many", -1, GT__STREAM_COMPUTE, b->copy_many(real, list, count), gt__copies_cost(list, count, &cost));
}

static gt_status update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count,
                        const gt__step_control *control) {
    REAL(device);
    WATCHED("update", count > 0 ? list[0].param_dtype : -1, GT__STREAM_COMPUTE, b->update(real, rule, list, count, control),
            gt__update_cost(rule, list, count, control != NULL, &cost));
}

#define GRADS_DTYPE (count > 0 ? list[0].dtype : -1)

static gt_status grad_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, double *norm, int32_t *first_bad) {
    REAL(device);
    WATCHED("grad_norm", GRADS_DTYPE, GT__STREAM_COMPUTE, b->grad_norm(real, list, count, norm, first_bad),
            gt__grads_cost(list, count, 2, false, &cost));
}

static gt_status grad_clip_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, const double *norm, double max_norm) {
    REAL(device);
    WATCHED("grad_clip_norm", GRADS_DTYPE, GT__STREAM_COMPUTE, b->grad_clip_norm(real, list, count, norm, max_norm),
            gt__grads_cost(list, count, 1, true, &cost));
}

static gt_status grad_clip_value(gt__device *device, const gt__grad_list_item *list, int32_t count, double max_value) {
    REAL(device);
    WATCHED("grad_clip_value", GRADS_DTYPE, GT__STREAM_COMPUTE, b->grad_clip_value(real, list, count, max_value),
            gt__grads_cost(list, count, 2, true, &cost));
}

static gt_status grad_scale(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_control *control) {
    REAL(device);
    WATCHED("grad_scale", GRADS_DTYPE, GT__STREAM_COMPUTE, b->grad_scale(real, list, count, control),
            gt__grads_cost(list, count, 1, true, &cost));
}

static gt_status step_task(gt__device *device, const gt__step_task *task) {
    REAL(device);
    WATCHED("step_task", -1, GT__STREAM_COMPUTE, b->step_task(real, task), (void)cost);
}

static gt_status grad_step_task(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_task *task) {
    REAL(device);
    WATCHED("grad_step_task", GRADS_DTYPE, GT__STREAM_COMPUTE, b->grad_step_task(real, list, count, task),
            gt__grads_cost(list, count, 2, false, &cost));
}

static gt_status mark_not_finite(gt__device *device, const void *data, gt_dtype dtype, int64_t count, uint64_t mark, uint64_t *least) {
    REAL(device);
    WATCHED("mark_not_finite", dtype, GT__STREAM_COMPUTE, b->mark_not_finite(real, data, dtype, count, mark, least),
            cost.bytes = (uint64_t)count * gt_dtype_size(dtype));
}

static uint64_t moves_bytes(const gt__move *list, int32_t count) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < count; ++i) bytes += (uint64_t)list[i].count * (gt_dtype_size(list[i].from) + gt_dtype_size(list[i].to));
    return bytes;
}

static gt_status move_many(gt__device *device, const gt__move *list, int32_t count) {
    REAL(device);
    WATCHED("inputs", -1, GT__STREAM_COMPUTE, b->move_many(real, list, count), cost.bytes = moves_bytes(list, count));
}

static gt_status run_chain(gt__device *device, const gt__chain *chain) {
    REAL(device);
    WATCHED(chain->name ? chain->name : "chain", chain->nodes[chain->n_nodes - 1].dtype, GT__STREAM_COMPUTE, b->run_chain(real, chain),
            gt__chain_cost(chain, &cost));
}

static gt_status graph_launch(gt__device *device, gt__graph *graph) {
    REAL(device);
    WATCHED("graph", -1, GT__STREAM_COMPUTE, b->graph_launch(real, graph), (void)cost);
}

/* The host's own time: it waits. */
static gt_status synchronize(gt__device *device, gt__stream_id stream) {
    REAL(device);
    WATCHED("wait for device", -1, GT__STREAM_NONE, b->synchronize(real, stream), gt__watch_gap(p, stream));
}

static gt_status event_wait_host(gt__device *device, gt__event *event) {
    REAL(device);
    WATCHED("wait for device", -1, GT__STREAM_NONE, b->event_wait_host(real, event), (void)cost);
}

/* What follows on the stream waits for another: that is no call's time. */
static gt_status event_wait_stream(gt__device *device, gt__event *event, gt__stream_id stream) {
    REAL(device);
    gt__watch_gap(p, stream);
    return b->event_wait_stream(real, event, stream);
}

/* Between the two nothing is done, and a timer would become part of the graph. */
static gt_status capture_begin(gt__device *device) {
    REAL(device);
    gt_status status = b->capture_begin(real);
    p->capturing = status == GT_OK;
    return status;
}

static gt_status capture_end(gt__device *device, gt__graph **graph) {
    REAL(device);
    p->capturing = false;
    gt__watch_gap(p, GT__STREAM_COMPUTE);
    return b->capture_end(real, graph);
}

/* --- what is handed on ------------------------------------------------------------------------------------------------------------------------- */

static int32_t enter(gt__device *device) {
    REAL(device);
    return b->enter(real);
}
static void leave(gt__device *device, int32_t previous) {
    REAL(device);
    b->leave(real, previous);
}
static gt_status memory_alloc(gt__device *device, size_t bytes, void **pointer) {
    REAL(device);
    return b->memory_alloc(real, bytes, pointer);
}
static void memory_free(gt__device *device, void *pointer) {
    REAL(device);
    b->memory_free(real, pointer);
}
static gt_status memory_info(gt__device *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    REAL(device);
    return b->memory_info(real, free_bytes, total_bytes);
}
static int32_t memory_holders(gt__device *device, gt__memory_holder *list, int32_t capacity) {
    REAL(device);
    return b->memory_holders(real, list, capacity);
}
static size_t map_grain(gt__device *device) {
    REAL(device);
    return b->map_grain(real);
}
static gt_status address_reserve(gt__device *device, size_t bytes, void **address) {
    REAL(device);
    return b->address_reserve(real, bytes, address);
}
static void address_release(gt__device *device, void *address, size_t bytes) {
    REAL(device);
    b->address_release(real, address, bytes);
}
static gt_status memory_map(gt__device *device, void *address, size_t bytes) {
    REAL(device);
    return b->memory_map(real, address, bytes);
}
static void memory_unmap(gt__device *device, void *address, size_t bytes) {
    REAL(device);
    b->memory_unmap(real, address, bytes);
}
static gt_status host_alloc(gt__device *device, size_t bytes, void **pointer) {
    REAL(device);
    return b->host_alloc(real, bytes, pointer);
}
static void host_free(gt__device *device, void *pointer) {
    REAL(device);
    b->host_free(real, pointer);
}
static gt_status event_create(gt__device *device, gt__event **event) {
    REAL(device);
    return b->event_create(real, event);
}
static void event_destroy(gt__device *device, gt__event *event) {
    REAL(device);
    b->event_destroy(real, event);
}
static gt_status event_record(gt__device *device, gt__event *event, gt__stream_id stream) {
    REAL(device);
    return b->event_record(real, event, stream);
}
static gt_status event_query(gt__device *device, gt__event *event, int32_t *done) {
    REAL(device);
    return b->event_query(real, event, done);
}
static void *stream_of(gt__device *device, gt__stream_id stream) {
    REAL(device);
    return b->stream(real, stream);
}
static void take_error(gt__device *device, gt__device_error *error) {
    REAL(device);
    b->take_error(real, error);
}
static gt_status capture_branch(gt__device *device, bool aside) {
    REAL(device);
    return b->capture_branch(real, aside);
}
static gt_status capture_join(gt__device *device) {
    REAL(device);
    return b->capture_join(real);
}
static gt_status graph_move(gt__device *device, gt__graph *graph, const gt__move *list, int32_t count) {
    REAL(device);
    return b->graph_move(real, graph, list, count);
}
static void graph_destroy(gt__device *device, gt__graph *graph) {
    REAL(device);
    b->graph_destroy(real, graph);
}
static bool can_chain(gt__device *device, const gt__chain *chain, bool prepare) {
    REAL(device);
    return b->can_chain(real, chain, prepare);
}
static gt_status timer_create(gt__device *device, gt__event **event) {
    REAL(device);
    return b->timer_create(real, event);
}
static gt_status event_elapsed(gt__device *device, gt__event *begin, gt__event *end, double *seconds) {
    REAL(device);
    return b->event_elapsed(real, begin, end, seconds);
}
static void range_push(gt__device *device, const char *text) {
    REAL(device);
    if (b->range_push) b->range_push(real, text);
}
static void range_pop(gt__device *device) {
    REAL(device);
    if (b->range_pop) b->range_pop(real);
}

/* --- the table ------------------------------------------------------------------------------------------------------------------------------------ */

/* A function that the device lacks stays NULL. */
#define IF(name) .name = real->name ? name : NULL

static void fill_table(gt__profiled *p) {
    const gt__backend *real = p->real->backend;
    for (int32_t op = 0; op < GT__OP_COUNT; ++op) p->kernels[op] = real->kernels[op] ? kernel : NULL;
    p->table = (gt__backend){
        .abi = real->abi,
        .kind = real->kind,
        .name = real->name,
        IF(enter),
        IF(leave),
        IF(memory_alloc),
        IF(memory_free),
        IF(memory_info),
        IF(memory_holders),
        IF(map_grain),
        IF(address_reserve),
        IF(address_release),
        IF(memory_map),
        IF(memory_unmap),
        IF(host_alloc),
        IF(host_free),
        IF(copy),
        IF(memset_zero),
        IF(synchronize),
        IF(event_create),
        IF(event_destroy),
        IF(event_record),
        IF(event_wait_stream),
        IF(event_wait_host),
        IF(event_query),
        .stream = real->stream ? stream_of : NULL,
        IF(take_error),
        .kernels = p->kernels,
        IF(copy_many),
        IF(update),
        IF(grad_norm),
        IF(grad_clip_norm),
        IF(grad_clip_value),
        IF(grad_scale),
        IF(step_task),
        IF(grad_step_task),
        IF(mark_not_finite),
        IF(move_many),
        IF(capture_begin),
        IF(capture_end),
        IF(capture_branch),
        IF(capture_join),
        IF(graph_move),
        IF(graph_launch),
        IF(graph_destroy),
        IF(can_chain),
        IF(run_chain),
        IF(timer_create),
        IF(event_elapsed),
        IF(range_push),
        IF(range_pop),
    };
}

/* --- a custom op's backward, which is a call of the user's function -------------------------------------------------------------------------------- */

static gt__profiled *of_hooks(gt__profiler *hooks) { return (gt__profiled *)(void *)((char *)hooks - offsetof(gt__profiled, hooks)); }

static bool custom_begin(gt__profiler *hooks, const gt__custom_gradient *g) {
    gt__profiled *p = of_hooks(hooks);
    if (p->ctx->device != &p->device || !gt__watches(p)) return false;
    const char *name = gt__context_string(p->ctx, gt__custom_name(g->op));
    gt__watch_begin(p, &p->custom, name ? name : "custom", g->n_out > 0 ? g->out_meta[0].dtype : -1, GT__STREAM_COMPUTE);
    return true;
}

static uint64_t bytes_where(void *const *data, const gt__meta *meta, int32_t count) {
    uint64_t bytes = 0;
    for (int32_t k = 0; k < count; ++k)
        if (data[k]) bytes += (uint64_t)meta[k].numel * gt_dtype_size(meta[k].dtype);
    return bytes;
}

static void custom_end(gt__profiler *hooks, const gt__custom_gradient *g, gt_status status) {
    gt__profiled *p = of_hooks(hooks);
    gt__cost cost = {0};
    cost.bytes = bytes_where(g->in, g->in_meta, g->n_in) + bytes_where(g->in_grad, g->in_meta, g->n_in);
    cost.bytes += bytes_where(g->out, g->out_meta, g->n_out) + bytes_where(g->out_grad, g->out_meta, g->n_out);
    gt__watch_end(p, &p->custom, &cost, status);
}

/* --- making, placing ---------------------------------------------------------------------------------------------------------------------------------- */

gt_status gt__profiled_get(gt_context *ctx, gt__profiled **profiled) {
    if (ctx->profiler == NULL) {
        gt__profiled *p = gt__calloc(1, sizeof *p);
        if (p == NULL) return GT_OUT_OF_HOST_MEMORY;
        p->ctx = ctx;
        p->real = ctx->opened;
        p->timers = ctx->opened->backend->kind != GT_DEVICE_CPU;
        p->hooks = (gt__profiler){.step_done = gt__profile_step_done,
                                  .custom_begin = custom_begin,
                                  .custom_end = custom_end,
                                  .close = gt__profile_context_closes};
        fill_table(p);
        ctx->profiler = &p->hooks;
    }
    *profiled = of_hooks(ctx->profiler);
    return GT_OK;
}

gt__profiled *gt__profiled_of_hooks(gt__profiler *hooks) { return of_hooks(hooks); }

void gt__profiled_place(gt__profiled *p) {
    p->device = *p->real; /* its options as they are now */
    p->device.backend = &p->table;
    p->ctx->device = &p->device;
    p->ctx->backend = &p->table;
}

void gt__profiled_remove(gt__profiled *p) {
    p->hooks.lists = false;
    if (p->ctx->device != &p->device) return; /* not there, or a trace stands before it */
    p->ctx->device = p->real;
    p->ctx->backend = p->real->backend;
}

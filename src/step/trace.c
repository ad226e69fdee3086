/* The device that writes down. */
#include "step/trace.h"

struct gt__trace {
    gt__device device; /* first: what backend functions are given */
    gt__backend table;
    gt__kernel kernels[GT__OP_COUNT];
    gt__tracer tracer;
    gt__observer observer;
    gt__program *program;
    gt_context *ctx;
    gt__device *real;
    const gt__backend *real_backend;
    gt__observer *observer_before;
    gt__outside *outside;
    int32_t n_outside, cap_outside;
    uint64_t cursor; /* the next address */
    uint64_t rng_seed, rng_offset;
    int32_t no_grad; /* regions of the caller's, which are not the program's business */
    gt_dtype autocast;
};

static gt__trace *trace_of(gt__device *device) { return (gt__trace *)(void *)device; }

/* --- writing down --------------------------------------------------------------------------------------------------------------------------- */

static gt__instruction *add(gt__device *device, gt__instruction_kind kind, size_t memory_bytes) {
    gt__trace *trace = trace_of(device);
    gt__instruction *n = gt__program_add(trace->program, kind, memory_bytes);
    if (n == NULL) return NULL;
    n->phase = gt__allocator_phase(trace->ctx->allocator);
    n->module = trace->ctx->module_path;
    return n;
}

static gt_status note_outside(gt__trace *trace, const gt_tensor *tensor, bool written) {
    const gt__storage *storage = tensor->storage;
    if (storage->traced || storage->data == NULL) return GT_OK;
    for (int32_t i = 0; i < trace->n_outside; ++i) {
        if (trace->outside[i].handle->storage != storage) continue;
        trace->outside[i].written |= written;
        return GT_OK;
    }
    if (trace->n_outside == trace->cap_outside) {
        int32_t capacity = GT__MAX(trace->cap_outside * 2, 64);
        gt__outside *grown = gt__realloc(trace->outside, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        trace->outside = grown;
        trace->cap_outside = capacity;
    }
    gt_tensor *handle = gt__tensor_view(tensor, &tensor->meta, 0);
    if (handle == NULL) return GT_OUT_OF_HOST_MEMORY;
    trace->outside[trace->n_outside++] = (gt__outside){handle, storage->data, written};
    return GT_OK;
}

static gt_tensor *bare(gt_tensor *into, const gt_tensor *from) {
    *into = (gt_tensor){.meta = from->meta, .data = from->data, .ctx = from->ctx, .references = 1};
    return into;
}

static gt_status record_call(gt__device *device, const gt__call *call) {
    gt__trace *trace = trace_of(device);
    size_t n = (size_t)(call->n_in + call->n_out);
    size_t bytes = sizeof(gt__traced_call) + n * sizeof(gt_tensor) + (size_t)call->n_in * sizeof(gt_tensor *);
    gt__instruction *i = add(device, GT__DO_CALL, bytes);
    if (i == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__traced_call *t = i->call = i->memory;
    t->call = *call;
    t->tensors = (gt_tensor *)(t + 1);
    t->in = (gt_tensor **)(t->tensors + n);
    t->call.in = t->in;
    for (int32_t k = 0; k < call->n_in; ++k) {
        if (call->in[k] == NULL) continue;
        t->in[k] = bare(&t->tensors[k], call->in[k]);
        GT_TRY(note_outside(trace, call->in[k], gt__call_changes_input(call, k)));
    }
    for (int32_t k = 0; k < call->n_out; ++k) {
        if (call->out[k] == NULL) continue;
        t->call.out[k] = bare(&t->tensors[call->n_in + k], call->out[k]);
        GT_TRY(note_outside(trace, call->out[k], true));
    }
    if (call->op == GT__OP_CUSTOM) gt__custom_retain(call->attr.custom.op);
    return GT_OK;
}

static gt_status record_copy(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *destination, const void *source,
                             size_t bytes) {
    (void)stream;
    if (bytes == 0) return GT_OK;
    if (kind == GT__COPY_DEVICE_TO_HOST)
        GT_FAIL_HINT(GT_BAD_STATE, "return what is to be looked at as an output of the step, and read it after gt_step_run",
                     "a value is read while a step is traced, when there are no values yet");
    bool host = kind == GT__COPY_HOST_TO_DEVICE;
    gt__instruction *i = add(device, GT__DO_COPY, host ? bytes : 0);
    if (i == NULL) return GT_OUT_OF_HOST_MEMORY;
    i->copy.kind = kind;
    i->copy.destination = destination;
    i->copy.source = host ? i->memory : source;
    i->copy.bytes = bytes;
    if (host) memcpy(i->memory, source, bytes);
    return GT_OK;
}

static gt_status record_zero(gt__device *device, gt__stream_id stream, void *pointer, size_t bytes) {
    (void)stream;
    if (bytes == 0) return GT_OK;
    gt__instruction *i = add(device, GT__DO_ZERO, 0);
    if (i == NULL) return GT_OUT_OF_HOST_MEMORY;
    i->zero.data = pointer;
    i->zero.bytes = bytes;
    return GT_OK;
}

/* An instruction whose memory is a list. */
static gt__instruction *add_list(gt__device *device, gt__instruction_kind kind, const void *list, int32_t count, size_t size) {
    gt__instruction *i = add(device, kind, (size_t)count * size);
    if (i && count > 0) memcpy(i->memory, list, (size_t)count * size);
    return i;
}

static gt_status record_copy_many(gt__device *device, const gt__copy_item *list, int32_t count) {
    if (count == 0) return GT_OK;
    gt__instruction *i = add_list(device, GT__DO_COPY_MANY, list, count, sizeof *list);
    if (i == NULL) return GT_OUT_OF_HOST_MEMORY;
    i->copies.list = i->memory;
    i->copies.count = count;
    return GT_OK;
}

static gt_status record_update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count,
                               const gt__step_control *control) {
    gt__instruction *i = add_list(device, GT__DO_UPDATE, list, count, sizeof *list);
    if (i == NULL) return GT_OUT_OF_HOST_MEMORY;
    i->update.rule = *rule;
    i->update.list = i->memory;
    i->update.count = count;
    i->update.control = control;
    return GT_OK;
}

static gt_status record_grads(gt__device *device, gt__instruction_kind kind, const gt__grad_list_item *list, int32_t count,
                              gt__instruction **made) {
    gt__instruction *i = *made = add_list(device, kind, list, count, sizeof *list);
    if (i == NULL) return GT_OUT_OF_HOST_MEMORY;
    i->grads.list = i->memory;
    i->grads.count = count;
    return GT_OK;
}

static gt_status record_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, double *norm, int32_t *first_bad) {
    gt__instruction *i;
    GT_TRY(record_grads(device, GT__DO_GRAD_NORM, list, count, &i));
    i->grads.norm = norm;
    i->grads.first_bad = first_bad;
    return GT_OK;
}

static gt_status record_clip_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, const double *norm, double max_norm) {
    gt__instruction *i;
    GT_TRY(record_grads(device, GT__DO_GRAD_CLIP_NORM, list, count, &i));
    memcpy(&i->grads.norm, &norm, sizeof norm);
    i->grads.most = max_norm;
    return GT_OK;
}

static gt_status record_clip_value(gt__device *device, const gt__grad_list_item *list, int32_t count, double max_value) {
    gt__instruction *i;
    GT_TRY(record_grads(device, GT__DO_GRAD_CLIP_VALUE, list, count, &i));
    i->grads.most = max_value;
    return GT_OK;
}

static gt_status record_scale(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_control *control) {
    gt__instruction *i;
    GT_TRY(record_grads(device, GT__DO_GRAD_SCALE, list, count, &i));
    i->grads.control = control;
    return GT_OK;
}

static gt_status record_task(gt__device *device, const gt__step_task *task) {
    gt__instruction *i = add(device, GT__DO_STEP_TASK, 0);
    if (i == NULL) return GT_OUT_OF_HOST_MEMORY;
    i->task.list = NULL;
    i->task.count = 0;
    i->task.task = *task;
    return GT_OK;
}

static gt_status record_grad_task(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_task *task) {
    gt__instruction *i = add_list(device, GT__DO_GRAD_STEP_TASK, list, count, sizeof *list);
    if (i == NULL) return GT_OUT_OF_HOST_MEMORY;
    i->task.list = i->memory;
    i->task.count = count;
    i->task.task = *task;
    return GT_OK;
}

static gt_status record_mark(gt__device *device, const void *data, gt_dtype dtype, int64_t count, uint64_t mark, uint64_t *least) {
    gt__instruction *i = add(device, GT__DO_MARK_NOT_FINITE, 0);
    if (i == NULL) return GT_OUT_OF_HOST_MEMORY;
    i->mark.data = data;
    i->mark.dtype = dtype;
    i->mark.count = count;
    i->mark.mark = mark;
    i->mark.least = least;
    return GT_OK;
}

/* --- what goes through to the device ------------------------------------------------------------------------------------------------------------ */
#define THROUGH(device, type, call)                                                                                                        \
    gt__trace *trace = trace_of(device);                                                                                                   \
    const gt__backend *b = trace->real_backend;                                                                                            \
    gt__device *real = trace->real;                                                                                                        \
    int32_t previous = b->enter ? b->enter(real) : -1;                                                                                     \
    type result = call;                                                                                                                    \
    if (b->enter) b->leave(real, previous);                                                                                                \
    return result

static gt_status memory_info(gt__device *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    THROUGH(device, gt_status, b->memory_info(real, free_bytes, total_bytes));
}
static gt_status host_alloc(gt__device *device, size_t bytes, void **pointer) {
    THROUGH(device, gt_status, b->host_alloc(real, bytes, pointer));
}
static gt_status event_create(gt__device *device, gt__event **event) { THROUGH(device, gt_status, b->event_create(real, event)); }
static gt_status event_record(gt__device *device, gt__event *event, gt__stream_id stream) {
    THROUGH(device, gt_status, b->event_record(real, event, stream));
}
static gt_status event_wait_stream(gt__device *device, gt__event *event, gt__stream_id stream) {
    THROUGH(device, gt_status, b->event_wait_stream(real, event, stream));
}
static gt_status event_wait_host(gt__device *device, gt__event *event) { THROUGH(device, gt_status, b->event_wait_host(real, event)); }
static void *stream_of(gt__device *device, gt__stream_id stream) { THROUGH(device, void *, b->stream(real, stream)); }

static void host_free(gt__device *device, void *pointer) {
    gt__trace *trace = trace_of(device);
    trace->real_backend->host_free(trace->real, pointer);
}
static void event_destroy(gt__device *device, gt__event *event) {
    gt__trace *trace = trace_of(device);
    trace->real_backend->event_destroy(trace->real, event);
}

/* Nothing is under way that could be waited for. */
static gt_status no_wait(gt__device *device, gt__stream_id stream) {
    (void)device;
    (void)stream;
    return GT_OK;
}

static void no_error(gt__device *device, gt__device_error *error) {
    (void)device;
    *error = (gt__device_error){0};
}

static void fill_table(gt__trace *trace) {
    const gt__backend *real = trace->real_backend;
    for (int32_t op = 0; op < GT__OP_COUNT; ++op) trace->kernels[op] = real->kernels[op] ? record_call : NULL;
    trace->table = (gt__backend){
        .abi = real->abi,
        .kind = real->kind,
        .name = real->name,
        .memory_info = memory_info,
        .host_alloc = host_alloc,
        .host_free = host_free,
        .copy = record_copy,
        .memset_zero = record_zero,
        .synchronize = no_wait,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_wait_stream = event_wait_stream,
        .event_wait_host = event_wait_host,
        .stream = stream_of,
        .take_error = no_error,
        .kernels = trace->kernels,
        .copy_many = record_copy_many,
        .update = record_update,
        .grad_norm = record_norm,
        .grad_clip_norm = record_clip_norm,
        .grad_clip_value = record_clip_value,
        .grad_scale = record_scale,
        .step_task = record_task,
        .grad_step_task = record_grad_task,
        .mark_not_finite = record_mark,
    };
}

/* --- memory ---------------------------------------------------------------------------------------------------------------------------------------- */

static gt__trace *tracing(gt__tracer *tracer) { return (gt__trace *)(void *)((char *)tracer - offsetof(gt__trace, tracer)); }

static gt_status trace_storage(gt__tracer *tracer, gt__storage *storage, size_t bytes, const gt__tag *tag) {
    gt__trace *trace = tracing(tracer);
    gt__program *p = trace->program;
    if (p->n_buffers == p->cap_buffers) {
        int32_t capacity = GT__MAX(p->cap_buffers * 2, 64);
        gt__buffer *grown = gt__realloc(p->buffers, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        p->buffers = grown;
        p->cap_buffers = capacity;
    }
    GT_REQUIRE(bytes < GT__TRACE_END - trace->cursor, GT_OUT_OF_MEMORY, "a traced step takes more than %llu bytes",
               (unsigned long long)(GT__TRACE_END - GT__TRACE_BEGIN));
    gt__buffer *buffer = &p->buffers[p->n_buffers++];
    *buffer = (gt__buffer){.address = trace->cursor,
                           .bytes = bytes,
                           .op = tag->op,
                           .module = tag->module,
                           .ndim = tag->shape ? tag->ndim : -1,
                           .dtype = tag->dtype,
                           .category = tag->category,
                           .first = -1,
                           .last = -1};
    for (int32_t i = 0; i < buffer->ndim; ++i) buffer->shape[i] = tag->shape[i];
    trace->cursor += (bytes + 1023) & ~(uint64_t)511; /* one past the end is no other's */
    storage->data = (void *)(uintptr_t)buffer->address;
    storage->traced = p->n_buffers;
    return GT_OK;
}

static gt_memory_category *category_of(gt__tracer *tracer, const gt__storage *storage) {
    return &tracing(tracer)->program->buffers[storage->traced - 1].category;
}

static gt_status record_custom_backward(gt__tracer *tracer, const gt__custom_gradient *gradient) {
    gt__trace *trace = tracing(tracer);
    gt__instruction *i = add(&trace->device, GT__DO_CUSTOM_BACKWARD, sizeof *gradient);
    if (i == NULL) return GT_OUT_OF_HOST_MEMORY;
    i->custom = i->memory;
    *i->custom = *gradient;
    gt__custom_retain(gradient->op);
    return GT_OK;
}

gt_tensor *gt__trace_input(gt__trace *trace, const gt__meta *meta) {
    gt_tensor *t = gt__tensor_new_for(trace->ctx, meta, GT_MEMORY_INPUT, "step input");
    if (t && t->storage->traced) trace->program->buffers[t->storage->traced - 1].input = true;
    return t;
}

gt_tensor *gt__trace_real(gt__trace *trace, const gt__meta *meta, gt_memory_category category, const char *op) {
    trace->ctx->tracer = NULL;
    gt_tensor *t = gt__tensor_new_for(trace->ctx, meta, category, op);
    trace->ctx->tracer = &trace->tracer;
    return t;
}

gt_tensor *gt__trace_phantom(gt_context *ctx, const gt__meta *meta) {
    gt__meta none;
    const int64_t empty = 0;
    GT_TRY_NULL(gt__meta_make(&none, meta->dtype, 1, &empty, "gt_step"));
    gt__tracer *tracer = ctx->tracer;
    ctx->tracer = NULL;
    gt_tensor *t = gt__tensor_new_for(ctx, &none, GT_MEMORY_USER, "gt_step");
    ctx->tracer = tracer;
    if (t == NULL) return NULL;
    t->meta = *meta;
    t->storage->bytes = gt_tensor_bytes(t);
    t->storage->data = t->data = (void *)(uintptr_t)(GT__TRACE_END + (t->storage->birth << 32)); /* no other's */
    return t;
}

/* --- opening and closing ------------------------------------------------------------------------------------------------------------------------------- */

static gt_status ignore_call(gt__observer *observer, const gt__call *call) {
    (void)observer;
    (void)call;
    return GT_OK;
}

static gt_status refuse_read(gt__observer *observer, const gt_tensor *tensor, const char *who) {
    (void)observer;
    char text[300];
    GT_FAIL_HINT(GT_BAD_STATE, "return it as an output of the step and read it after gt_step_run",
                 "%s: %s is read while a step is traced, when there are no values yet", who, gt__tensor_text(tensor, text, sizeof text));
}

static gt_status allow_overwrite(gt__observer *observer, const gt_tensor *tensor, const gt_tensor *source, const char *who) {
    (void)observer;
    (void)tensor;
    (void)source;
    (void)who;
    return GT_OK;
}

gt_status gt__trace_allowed(const gt_context *ctx, const char *who) {
    GT_REQUIRE(ctx->tracer == NULL, GT_BAD_STATE, "%s: a step is being traced; its function cannot run or plan one", who);
    GT_REQUIRE(!ctx->in_backward && ctx->segment == NULL && ctx->observer == NULL, GT_BAD_STATE,
               "%s: not possible inside a backward, a segment or an export", who);
    return GT_OK;
}

gt_status gt__trace_begin(gt_context *ctx, gt__program *program, uint64_t *random_cells, gt__trace **result) {
    GT_TRY(gt__trace_allowed(ctx, "gt_step"));
    gt__trace *trace = gt__calloc(1, sizeof *trace);
    if (trace == NULL) return GT_OUT_OF_HOST_MEMORY;
    trace->program = program;
    trace->ctx = ctx;
    trace->real = ctx->device;
    trace->real_backend = ctx->backend;
    trace->cursor = GT__TRACE_BEGIN;
    fill_table(trace);
    trace->device = *ctx->device;
    trace->device.backend = &trace->table;
    trace->tracer = (gt__tracer){
        .storage = trace_storage, .category = category_of, .random_cells = random_cells, .custom_backward = record_custom_backward};
    trace->observer = (gt__observer){.call = ignore_call, .read = refuse_read, .overwrite = allow_overwrite};
    trace->rng_seed = ctx->rng_seed;
    trace->rng_offset = ctx->rng_offset;
    trace->no_grad = ctx->no_grad;
    trace->autocast = gt__autocast_set(ctx, GT_DTYPE_F32);
    ctx->no_grad = 0;
    gt__dropped_release(ctx);
    ctx->device = &trace->device;
    ctx->backend = &trace->table;
    ctx->tracer = &trace->tracer;
    ctx->observer = &trace->observer;
    ctx->rng_offset = 0;
    *result = trace;
    return GT_OK;
}

void gt__trace_end(gt__trace *trace, uint64_t *drawn, int32_t *left) {
    gt_context *ctx = trace->ctx;
    *left = gt__tensors_orphan_traced(ctx);
    *drawn = ctx->rng_offset;
    ctx->rng_seed = trace->rng_seed;
    ctx->rng_offset = trace->rng_offset;
    ctx->no_grad = trace->no_grad;
    (void)gt__autocast_set(ctx, trace->autocast);
    ctx->device = trace->real;
    ctx->backend = trace->real_backend;
    ctx->tracer = NULL;
    ctx->observer = NULL;
    gt__outside_free(trace->outside, trace->n_outside);
    gt__free(trace);
}

gt__outside *gt__trace_outside(gt__trace *trace, int32_t *count) {
    gt__outside *list = trace->outside;
    *count = trace->n_outside;
    trace->outside = NULL;
    trace->n_outside = trace->cap_outside = 0;
    return list;
}

void gt__outside_free(gt__outside *list, int32_t count) {
    for (int32_t i = 0; i < count; ++i) gt_tensor_release(list[i].handle);
    gt__free(list);
}

/* The CPU as a device that makes graphs, whose kernels take the times and the scratch memory that a test wants: the way of a step on a GPU, without one. What is captured is not
 * done; a graph that is launched is the plan's list. */
#ifndef GT_TEST_STEP_FAKE_GRAPHS_H
#define GT_TEST_STEP_FAKE_GRAPHS_H

#include "step/step.h"
#include "support.h"

enum { FAKE_COPIES = 1024 };

typedef struct fake_graphs {
    gt__backend real, table;
    gt__kernel kernels[GT__OP_COUNT];
    gt_step *step; /* whose graphs they are */
    bool capturing;
    double clock;                 /* seconds, moved on by kernels alone */
    double seconds[GT__OP_COUNT]; /* that a kernel takes */
    size_t scratch[GT__OP_COUNT]; /* bytes that it takes */
    int captures, launches;
    int timed; /* events that were asked for their time */
    bool late; /* copies beside the compute stream are done when they are awaited; else at once */
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } queue[FAKE_COPIES]; /* a ring */
    int queued, copied;
    bool no_host; /* there is no pinned memory */
    int failing;  /* the kernel call with that number fails, counted down; 0: none */
    size_t host;  /* bytes of it that are in use */
} fake_graphs;

typedef struct fake_event {
    double clock;
    int queued;
} fake_event;

static fake_graphs fake;

static gt_status fake_kernel(gt__device *device, const gt__call *call) {
    void *memory, *handle;
    size_t bytes = fake.scratch[call->op];
    fake.clock += fake.seconds[call->op];
    if (fake.failing > 0 && --fake.failing == 0)
        return gt__error_raise(GT_NOT_SUPPORTED, __FILE__, __LINE__, 0, NULL, NULL, "made to fail");
    if (bytes > 0) {
        gt_status status = gt__scratch_alloc(call->ctx, bytes, &memory, &handle);
        if (status != GT_OK) return status;
        if (!fake.capturing) memset(memory, 0xff, bytes);
        gt__scratch_free(call->ctx, handle);
    }
    if (fake.capturing) return GT_OK;
    gt__scratch *planned = call->ctx->scratch;
    call->ctx->scratch = NULL; /* what the CPU's kernel takes is none of the device's */
    gt_status status = fake.real.kernels[call->op](device, call);
    call->ctx->scratch = planned;
    return status;
}

static gt_status fake_copy(gt__device *d, gt__stream_id s, gt__copy_kind k, void *to, const void *from, size_t bytes) {
    if (fake.capturing) return GT_OK;
    if (!fake.late || s != GT__STREAM_COPY) return fake.real.copy(d, s, k, to, from, bytes);
    CHECK(fake.queued - fake.copied < FAKE_COPIES);
    if (k == GT__COPY_HOST_TO_DEVICE) memset(to, 0xff, bytes); /* nobody's any more */
    fake.queue[fake.queued % FAKE_COPIES].to = to;
    fake.queue[fake.queued % FAKE_COPIES].from = from;
    fake.queue[fake.queued++ % FAKE_COPIES].bytes = bytes;
    return GT_OK;
}

static void fake_copies_until(int end) {
    for (; fake.copied < end; ++fake.copied) {
        int at = fake.copied % FAKE_COPIES;
        memcpy(fake.queue[at].to, fake.queue[at].from, fake.queue[at].bytes);
    }
}

static gt_status fake_event_wait_stream(gt__device *device, gt__event *event, gt__stream_id stream) {
    (void)device;
    if (stream == GT__STREAM_COMPUTE && !fake.capturing) fake_copies_until(((const fake_event *)(const void *)event)->queued);
    return GT_OK;
}

static gt_status fake_synchronize(gt__device *device, gt__stream_id stream) {
    fake_copies_until(fake.queued);
    return fake.real.synchronize(device, stream);
}

static gt_status fake_host_alloc(gt__device *device, size_t bytes, void **pointer) {
    if (fake.no_host) return GT_OUT_OF_HOST_MEMORY;
    fake.host += bytes;
    gt_status status = fake.real.host_alloc(device, bytes + sizeof(size_t) * 64, pointer);
    if (status == GT_OK) memcpy(*pointer, &bytes, sizeof bytes);
    if (status == GT_OK) *pointer = (char *)*pointer + sizeof(size_t) * 64;
    return status;
}
static void fake_host_free(gt__device *device, void *pointer) {
    size_t bytes;
    void *whole = (char *)pointer - sizeof(size_t) * 64;
    memcpy(&bytes, whole, sizeof bytes);
    fake.host -= bytes;
    fake.real.host_free(device, whole);
}
static gt_status fake_zero(gt__device *d, gt__stream_id s, void *to, size_t bytes) {
    return fake.capturing ? GT_OK : fake.real.memset_zero(d, s, to, bytes);
}
static gt_status fake_copy_many(gt__device *d, const gt__copy_item *list, int32_t n) {
    return fake.capturing ? GT_OK : fake.real.copy_many(d, list, n);
}
static gt_status fake_move_many(gt__device *d, const gt__move *list, int32_t n) {
    return fake.capturing ? GT_OK : fake.real.move_many(d, list, n);
}
static gt_status fake_update(gt__device *d, const gt__update_rule *rule, const gt__update *list, int32_t n,
                             const gt__step_control *control) {
    return fake.capturing ? GT_OK : fake.real.update(d, rule, list, n, control);
}
static gt_status fake_step_task(gt__device *d, const gt__step_task *task) { return fake.capturing ? GT_OK : fake.real.step_task(d, task); }
static gt_status fake_grad_step_task(gt__device *d, const gt__grad_list_item *list, int32_t n, const gt__step_task *task) {
    return fake.capturing ? GT_OK : fake.real.grad_step_task(d, list, n, task);
}

static gt_status fake_event_create(gt__device *device, gt__event **event) {
    (void)device;
    *event = calloc(1, sizeof(fake_event));
    return *event ? GT_OK : GT_OUT_OF_HOST_MEMORY;
}
static void fake_event_destroy(gt__device *device, gt__event *event) {
    (void)device;
    free(event);
}
static gt_status fake_event_record(gt__device *device, gt__event *event, gt__stream_id stream) {
    const fake_event now = {fake.clock, stream == GT__STREAM_COPY ? fake.queued : 0};
    (void)device;
    memcpy(event, &now, sizeof now);
    return GT_OK;
}
static gt_status fake_event_elapsed(gt__device *device, gt__event *begin, gt__event *end, double *seconds) {
    fake_event from, to;
    (void)device;
    memcpy(&from, begin, sizeof from);
    memcpy(&to, end, sizeof to);
    *seconds = to.clock - from.clock;
    fake.timed++;
    return GT_OK;
}

static gt_status fake_capture_begin(gt__device *device) {
    (void)device;
    fake.capturing = true;
    return GT_OK;
}
static gt_status fake_capture_end(gt__device *device, gt__graph **graph) {
    (void)device;
    fake.capturing = false;
    fake.captures++;
    if (graph) *graph = calloc(1, 1);
    return GT_OK;
}
static gt_status fake_branch(gt__device *device, bool aside) {
    (void)device, (void)aside;
    return GT_OK;
}
static gt_status fake_join(gt__device *device) {
    (void)device;
    return GT_OK;
}
static gt_status fake_graph_move(gt__device *device, gt__graph *graph, const gt__move *list, int32_t count) {
    (void)device, (void)graph, (void)list, (void)count; /* the list has them */
    return GT_OK;
}
static void fake_graph_destroy(gt__device *device, gt__graph *graph) {
    (void)device;
    free(graph);
}

static gt_status fake_launch(gt__device *device, gt__graph *graph) {
    const gt__plan *plan = NULL;
    for (int32_t p = 0; p < fake.step->n_plans; ++p)
        if (fake.step->plans[p]->graph == graph) plan = fake.step->plans[p];
    CHECK(plan != NULL);
    fake.launches++;
    gt_context *ctx = device->ctx;
    char *arena = (*gt__step_arena(fake.step))->data;
    for (int32_t i = 0; i < plan->program.count; ++i) {
        gt__scratch scratch = {.data = arena + plan->offsets[plan->program.n_buffers + i], .bytes = plan->program.list[i].workspace};
        ctx->scratch = &scratch;
        gt_status status = gt__instruction_run(&plan->bound_list[i], device);
        ctx->scratch = NULL;
        if (status != GT_OK) return status;
    }
    return GT_OK;
}

/* The context's device is this from now on, before any step is made. */
static inline void fake_graphs_begin(gt_context *ctx) {
    fake = (fake_graphs){.real = *ctx->backend, .table = *ctx->backend};
    for (int32_t op = 0; op < GT__OP_COUNT; ++op) fake.kernels[op] = fake.real.kernels[op] ? fake_kernel : NULL;
    gt__backend *b = &fake.table;
    b->kernels = fake.kernels;
    b->copy = fake_copy;
    b->memset_zero = fake_zero;
    b->copy_many = fake_copy_many;
    b->move_many = fake_move_many;
    b->update = fake_update;
    b->step_task = fake_step_task;
    b->grad_step_task = fake_grad_step_task;
    b->event_create = b->timer_create = fake_event_create;
    b->event_destroy = fake_event_destroy;
    b->event_record = fake_event_record;
    b->event_elapsed = fake_event_elapsed;
    b->event_wait_stream = fake_event_wait_stream;
    b->synchronize = fake_synchronize;
    b->host_alloc = fake_host_alloc;
    b->host_free = fake_host_free;
    b->capture_begin = fake_capture_begin;
    b->capture_end = fake_capture_end;
    b->capture_branch = fake_branch;
    b->capture_join = fake_join;
    b->graph_launch = fake_launch;
    b->graph_move = fake_graph_move;
    b->graph_destroy = fake_graph_destroy;
    ctx->backend = ctx->device->backend = b;
}

#endif

/* The CPU as a device that makes graphs, whose kernels take the times and the scratch memory that a test wants: the way of a step on a GPU, without one. What is captured is not
 * done; a graph that is launched is the plan's list. */
#ifndef GT_TEST_STEP_FAKE_GRAPHS_H
#define GT_TEST_STEP_FAKE_GRAPHS_H

#include "step/step.h"
#include "support.h"

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
} fake_graphs;

static fake_graphs fake;

static gt_status fake_kernel(gt__device *device, const gt__call *call) {
    void *memory, *handle;
    size_t bytes = fake.scratch[call->op];
    fake.clock += fake.seconds[call->op];
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
    return fake.capturing ? GT_OK : fake.real.copy(d, s, k, to, from, bytes);
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
    *event = calloc(1, sizeof(double));
    return *event ? GT_OK : GT_OUT_OF_HOST_MEMORY;
}
static void fake_event_destroy(gt__device *device, gt__event *event) {
    (void)device;
    free(event);
}
static gt_status fake_event_record(gt__device *device, gt__event *event, gt__stream_id stream) {
    (void)device, (void)stream;
    memcpy(event, &fake.clock, sizeof fake.clock);
    return GT_OK;
}
static gt_status fake_event_elapsed(gt__device *device, gt__event *begin, gt__event *end, double *seconds) {
    double from, to;
    (void)device;
    memcpy(&from, begin, sizeof from);
    memcpy(&to, end, sizeof to);
    *seconds = to - from;
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

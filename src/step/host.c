/* Host memory for buffers that leave the arena for a while. */
#include "step/step.h"

static gt_status make_events(gt_context *ctx, gt__host_side *h, int32_t count) {
    h->events = gt__calloc((size_t)count, sizeof(gt__event *));
    if (h->events == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (; h->n_events < count; ++h->n_events) GT_TRY(ctx->opened->backend->event_create(ctx->opened, &h->events[h->n_events]));
    return GT_OK;
}

static bool is_transfer(const gt__instruction *n) { return n->kind == GT__DO_LEAVE || n->kind == GT__DO_FETCH || n->kind == GT__DO_AWAIT; }

gt_status gt__plan_make_host(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    gt__host_side *h = &plan->host;
    gt__program *p = &plan->program;
    int32_t count = 0, previous = gt__enter(ctx);
    h->backend = ctx->opened->backend;
    for (int32_t i = 0; i < p->count; ++i) count += p->list[i].kind == GT__DO_LEAVE;
    gt_status status = make_events(ctx, h, count + 1);
    if (status == GT_OK) status = h->backend->host_alloc(ctx->opened, h->bytes, &h->memory);
    gt__leave(ctx, previous);
    if (status != GT_OK) {
        gt__plan_drop_host(step, plan);
        return status;
    }
    for (int32_t i = 0; i < p->count; ++i) {
        gt__instruction *n = &p->list[i];
        if (!is_transfer(n)) continue;
        n->transfer.host = (char *)h->memory + n->transfer.place;
        n->transfer.begins = h->events[count];
        n->transfer.is_over = h->events[n->transfer.number];
    }
    return GT_OK;
}

/* The bytes stay: they say what the plan needs. */
void gt__plan_drop_host(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->cells->ctx;
    gt__host_side *h = &plan->host;
    if (h->backend == NULL) return;
    gt__device *device = ctx ? ctx->opened : NULL;
    int32_t previous = ctx ? gt__enter(ctx) : -1;
    if (ctx && h->memory) { /* whatever becomes of it: a device that fails here copies no more */
        (void)h->backend->synchronize(device, GT__STREAM_COMPUTE);
        (void)h->backend->synchronize(device, GT__STREAM_COPY);
    }
    if (h->memory) h->backend->host_free(device, h->memory);
    for (int32_t k = 0; k < h->n_events; ++k) h->backend->event_destroy(device, h->events[k]);
    if (ctx) gt__leave(ctx, previous);
    gt__free(h->events);
    *h = (gt__host_side){.bytes = h->bytes};
}

void gt__plan_settle_host(gt_step *step, const gt__plan *plan) {
    const gt__host_side *h = &plan->host;
    gt_context *ctx = step->ctx;
    if (h->memory == NULL) return;
    gt__event *last = h->events[h->n_events - 1];
    if (ctx->backend->event_record(ctx->device, last, GT__STREAM_COPY) == GT_OK)
        (void)ctx->backend->event_wait_stream(ctx->device, last, GT__STREAM_COMPUTE);
}

/* --- how fast the way there is --------------------------------------------------------------------------------------------------------------- */

typedef struct probe {
    gt__event *timers[3];
    void *memory;
    double seconds[2];
} probe;

static gt_status copy_both_ways(gt_context *ctx, probe *p, void *data, size_t bytes) {
    const gt__backend *b = ctx->backend;
    gt__device *device = ctx->device;
    for (int32_t k = 0; k < 3; ++k) GT_TRY(b->timer_create(device, &p->timers[k]));
    GT_TRY(b->host_alloc(device, bytes, &p->memory));
    for (int32_t round = 0; round < 2; ++round) { /* the first touches the memory */
        GT_TRY(b->event_record(device, p->timers[0], GT__STREAM_COPY));
        GT_TRY(b->copy(device, GT__STREAM_COPY, GT__COPY_DEVICE_TO_HOST, p->memory, data, bytes));
        GT_TRY(b->event_record(device, p->timers[1], GT__STREAM_COPY));
        GT_TRY(b->copy(device, GT__STREAM_COPY, GT__COPY_HOST_TO_DEVICE, data, p->memory, bytes));
        GT_TRY(b->event_record(device, p->timers[2], GT__STREAM_COPY));
        GT_TRY(b->event_wait_host(device, p->timers[2]));
    }
    for (int32_t k = 0; k < 2; ++k) GT_TRY(b->event_elapsed(device, p->timers[k], p->timers[k + 1], &p->seconds[k]));
    return GT_OK;
}

void gt__step_measure_link(gt_step *step) {
    enum { MOST = 32 << 20 };
    gt_context *ctx = step->ctx;
    gt_tensor *arena = *gt__step_arena(step);
    gt__link link;
    if (step->options.offload <= 0 || arena == NULL || gt__times_link(&step->times, ctx, &link)) return;
    probe p = {.memory = NULL};
    size_t bytes = GT__MIN(gt_tensor_bytes(arena), (size_t)MOST);
    gt_status status = ctx->backend->synchronize(ctx->device, GT__STREAM_COMPUTE);
    if (status == GT_OK) status = copy_both_ways(ctx, &p, arena->data, bytes);
    if (status != GT_OK) {
        (void)ctx->backend->synchronize(ctx->device, GT__STREAM_COPY);
        gt_clear_error(); /* the run has succeeded */
    }
    for (int32_t k = 0; k < 3; ++k)
        if (p.timers[k]) ctx->backend->event_destroy(ctx->device, p.timers[k]);
    if (p.memory) ctx->backend->host_free(ctx->device, p.memory);
    for (int32_t k = 0; k < 2 && status == GT_OK; ++k) step->times.link[k] = GT__MAX(p.seconds[k], 1e-9) / (double)bytes;
}

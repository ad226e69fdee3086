/* Running a plan: real addresses, what the host keeps in step with the device, and the graph. */
#include "step/step.h"

/* --- real addresses ----------------------------------------------------------------------------------------------------------------------- */

typedef struct binding {
    const gt__plan *plan;
    char *arena;
} binding;

static void bind_pointer(void *user, const gt__access *access) {
    const binding *b = user;
    int32_t k = gt__program_buffer(&b->plan->program, access->pointer);
    if (k < 0) return;
    size_t inside = (size_t)((uintptr_t)access->pointer - b->plan->program.buffers[k].address);
    gt__access_set(access, b->arena + b->plan->offsets[k] + inside);
}

static void unbind(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    if (plan->graph) ctx->backend->graph_destroy(ctx->device, plan->graph);
    plan->graph = NULL;
    for (int32_t i = 0; plan->bound_list && i < plan->program.count; ++i) gt__instruction_free(&plan->bound_list[i]);
    gt__free(plan->bound_list);
    plan->bound_list = NULL;
}

/* The arena, large enough for this plan. */
static gt_status make_arena(gt_step *step, const gt__plan *plan) {
    if (plan->arena_bytes == 0 || (step->arena && gt_tensor_bytes(step->arena) >= plan->arena_bytes)) return GT_OK;
    gt__meta meta;
    const int64_t bytes = (int64_t)plan->arena_bytes;
    GT_TRY(gt__meta_make(&meta, GT_DTYPE_U8, 1, &bytes, "gt_step"));
    gt_tensor_release(step->arena); /* what was in it is of no use any more */
    step->arena = gt__tensor_new_for(step->ctx, &meta, GT_MEMORY_TEMPORARY, "compiled step");
    return step->arena ? GT_OK : gt_last_error()->status;
}

static gt_status bind(gt_step *step, gt__plan *plan) {
    GT_TRY(make_arena(step, plan));
    char *arena = step->arena ? step->arena->data : NULL;
    if (plan->bound_list && plan->bound_to == arena) return GT_OK;
    unbind(step, plan);
    plan->bound_list = gt__calloc((size_t)plan->program.count + 1, sizeof *plan->bound_list);
    if (plan->bound_list == NULL) return GT_OUT_OF_HOST_MEMORY;
    binding b = {plan, arena};
    for (int32_t i = 0; i < plan->program.count; ++i) {
        GT_TRY(gt__instruction_copy(&plan->program.list[i], &plan->bound_list[i]));
        gt__instruction_visit(&plan->bound_list[i], bind_pointer, &b);
    }
    plan->bound_to = arena;
    return GT_OK;
}

/* --- what the host keeps ----------------------------------------------------------------------------------------------------------------------- */

/* Step counts: the second of each pair is the one that the next run reads. */
static gt_status sync_step_counts(gt_step *step) {
    gt_context *ctx = step->ctx;
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) {
        gt_optimizer *o = step->optimizers[i];
        int32_t *pairs = (int32_t *)(void *)((char *)o->cells->data + GT__CONTROLS * sizeof(gt__step_control));
        for (int32_t k = 0; k < o->count; ++k) {
            if (o->slots[k].step_cell == 1) continue;
            const gt__copy_item item = {.destination = pairs + 2 * k + 1, .source = pairs + 2 * k, .bytes = sizeof *pairs};
            GT_TRY(ctx->backend->copy_many(ctx->device, &item, 1));
            o->slots[k].step_cell = 1;
        }
    }
    return GT_OK;
}

/* Random state and learning rates, where they are not what the device has. */
static gt_status sync_cells(gt_step *step) {
    gt_context *ctx = step->ctx;
    gt__step_cells *host = step->host_cells;
    bool same = host->random[0] == ctx->rng_seed && host->random[1] == ctx->rng_offset;
    host->random[0] = ctx->rng_seed;
    host->random[1] = ctx->rng_offset;
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) {
        double rate = step->optimizers[i]->options.learning_rate;
        same &= host->rates[i] == rate;
        host->rates[i] = rate;
    }
    return same ? GT_OK : gt__upload(step->cells, host, gt_tensor_bytes(step->cells));
}

/* Half copies and masters of weights that somebody else than a step has written. */
static gt_status sync_weights(gt_step *step) {
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) {
        gt_optimizer *o = step->optimizers[i];
        for (int32_t k = 0; k < o->count; ++k) {
            gt_tensor *p = o->slots[k].parameter;
            if (!gt__half_copy_is_fresh(p->storage)) GT_TRY(gt__half_copy_make(p, p->storage->half->meta.dtype));
        }
        GT_TRY(gt__optimizer_refresh_masters(o));
    }
    return GT_OK;
}

static gt_status check_outside(const gt__plan *plan) {
    for (int32_t i = 0; i < plan->n_outside; ++i) {
        const gt__outside *o = &plan->outside[i];
        GT_REQUIRE(o->storage->data == o->data, GT_BAD_STATE,
                   "gt_step_run: memory of %zu bytes that the step uses has moved; gt_step_reset after changing a module's dtype",
                   o->storage->bytes);
    }
    return GT_OK;
}

static void after_run(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    gt_module *module = step->options.module;
    ctx->rng_offset += plan->drawn;
    step->host_cells->random[1] = ctx->rng_offset;
    for (int32_t i = 0; i < plan->n_outside; ++i)
        if (plan->outside[i].written) gt__storage_changed(plan->outside[i].storage);
    const uint8_t *updated = plan->updated;
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) {
        gt__optimizer_updated(step->optimizers[i], updated);
        updated += step->optimizers[i]->count;
    }
    if (module) (void)gt__module_counters_add(module, plan->counters);
    if (step->options.scaler && step->window) gt__scaler_updated(step->options.scaler);
    if (step->window) gt__step_done(ctx);
    plan->runs++;
    plan->used = ++step->runs;
    step->last = plan;
}

/* --- running ------------------------------------------------------------------------------------------------------------------------------------ */

static gt_status copy_inputs(gt_step *step, gt__plan *plan, gt_tensor *const *inputs) {
    gt_context *ctx = step->ctx;
    for (int32_t i = 0; i < plan->n_inputs; ++i) {
        const gt__buffer *b = plan->input_buffers[i] >= 0 ? &plan->program.buffers[plan->input_buffers[i]] : NULL;
        if (b == NULL || b->first < 0) continue; /* empty, or nobody looks at it */
        char *to = (char *)step->arena->data + plan->offsets[plan->input_buffers[i]];
        if (gt__meta_same_layout(&inputs[i]->meta, &plan->inputs[i])) {
            GT_TRY(ctx->backend->copy(ctx->device, GT__STREAM_COMPUTE, GT__COPY_DEVICE_TO_DEVICE, to, inputs[i]->data, b->bytes));
        } else {
            gt_tensor into = {.meta = plan->inputs[i], .data = to, .ctx = ctx, .references = 1};
            GT_TRY(gt__op_into(GT__OP_COPY, &inputs[i], 1, NULL, &into));
        }
    }
    return GT_OK;
}

/* One by one. `measure`: and notes how much scratch memory each takes. */
static gt_status run_list(gt_step *step, gt__plan *plan, bool measure) {
    gt_context *ctx = step->ctx;
    const char *module = ctx->module_path;
    gt__phase phase = gt__allocator_phase(ctx->allocator);
    gt__scratch scratch = {0};
    gt_status status = GT_OK;
    for (int32_t i = 0; i < plan->program.count && status == GT_OK; ++i) {
        const gt__instruction *n = &plan->bound_list[i];
        ctx->module_path = n->module;
        gt__allocator_set_phase(ctx->allocator, n->phase);
        scratch.most = scratch.used = 0;
        if (measure) ctx->scratch = &scratch;
        status = gt__instruction_run(n, ctx->device);
        ctx->scratch = NULL;
        if (measure) plan->program.list[i].workspace = scratch.most;
    }
    ctx->module_path = module;
    gt__allocator_set_phase(ctx->allocator, phase);
    return status;
}

/* The buffers of the module as they were before the run; on a GPU nothing fails in the middle. */
static void go_back(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    if (plan->remember < 0) return;
    const gt__instruction *n = &plan->bound_list[plan->remember];
    for (int32_t i = 0; i < n->copies.count; ++i) {
        void *buffer;
        memcpy(&buffer, &n->copies.list[i].source, sizeof buffer); /* it was only read until now */
        const gt__copy_item back = {buffer, n->copies.list[i].destination, n->copies.list[i].bytes};
        (void)ctx->backend->copy_many(ctx->device, &back, 1);
    }
}

/* Written down with every scratch request at its planned place. */
static gt_status capture_list(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    gt_status status = GT_OK;
    for (int32_t i = 0; i < plan->program.count && status == GT_OK; ++i) {
        gt__scratch scratch = {.data = (char *)step->arena->data + plan->offsets[plan->program.n_buffers + i],
                               .bytes = plan->program.list[i].workspace};
        ctx->scratch = step->arena ? &scratch : NULL;
        status = gt__instruction_run(&plan->bound_list[i], ctx->device);
        ctx->scratch = NULL;
    }
    return status;
}

static gt_status capture(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    GT_TRY(gt__plan_place(plan)); /* with scratch memory */
    plan->bound_to = NULL;
    unbind(step, plan);
    GT_TRY(bind(step, plan));
    GT_TRY(ctx->backend->capture_begin(ctx->device));
    gt_status status = capture_list(step, plan);
    gt__graph *graph = NULL;
    gt_status ended = ctx->backend->capture_end(ctx->device, status == GT_OK ? &graph : NULL);
    if (status == GT_OK) status = ended;
    plan->graph = graph;
    return status;
}

/* The first run chooses kernels, the second measures what scratch memory they take, the third is captured. */
static gt_status run(gt_step *step, gt__plan *plan, gt_tensor *const *inputs) {
    gt_context *ctx = step->ctx;
    bool captures = ctx->backend->capture_begin != NULL;
    GT_TRY(bind(step, plan));
    GT_TRY(sync_weights(step));
    GT_TRY(sync_step_counts(step));
    GT_TRY(sync_cells(step));
    if (captures && plan->runs >= 2 && plan->graph == NULL) GT_TRY(capture(step, plan));
    GT_TRY(copy_inputs(step, plan, inputs));
    if (plan->graph) return ctx->backend->graph_launch(ctx->device, plan->graph);
    gt_status status = run_list(step, plan, captures && plan->runs == 1);
    if (status != GT_OK) go_back(step, plan);
    return status;
}

gt_status gt__plan_run(gt_step *step, gt__plan *plan, gt_tensor *const *inputs) {
    gt_context *ctx = step->ctx;
    gt__dropped_release(ctx);
    GT_TRY(check_outside(plan));
    int32_t previous = gt__enter(ctx);
    gt_status status = run(step, plan, inputs);
    gt__leave(ctx, previous);
    if (status == GT_OK) after_run(step, plan);
    return status;
}

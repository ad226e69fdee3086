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

void gt__plan_unbind(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    if (plan->graph) ctx->backend->graph_destroy(ctx->device, plan->graph);
    plan->graph = NULL;
    for (int32_t i = 0; plan->bound_list && i < plan->program.count; ++i) gt__instruction_free(&plan->bound_list[i]);
    gt__free(plan->bound_list);
    plan->bound_list = NULL;
    plan->bound_to = NULL;
}

static gt_status raise_no_room(const gt__plan *plan) {
    gt__text text = {0};
    const gt_error before = *gt_last_error();
    gt_status status = gt__plan_peak_text(plan, &text);
    if (status == GT_OK)
        status = GT_RAISE_HINT(GT_OUT_OF_MEMORY, "more micro-batches, or a smaller batch: gt_step_largest_batch finds one that fits",
                               "gt_step_run: the plan takes %zu bytes in one piece, with %d micro-batches: %s; %s", plan->arena_bytes,
                               (int)plan->micro_batches, text.data, before.message);
    gt__text_free(&text);
    return status;
}

/* The arena, large enough for this plan. */
static gt_status make_arena(gt_step *step, const gt__plan *plan) {
    gt_tensor **arena = gt__step_arena(step);
    if (plan->arena_bytes == 0 || (*arena && gt_tensor_bytes(*arena) >= plan->arena_bytes)) return GT_OK;
    gt__meta meta;
    const int64_t bytes = (int64_t)plan->arena_bytes;
    GT_TRY(gt__meta_make(&meta, GT_DTYPE_U8, 1, &bytes, "gt_step"));
    gt_tensor_release(*arena); /* what was in it is of no use any more */
    *arena = gt__tensor_new_for(step->ctx, &meta, GT_MEMORY_TEMPORARY, "compiled step");
    if (*arena) return GT_OK;
    gt_status status = gt_last_error()->status;
    return status == GT_OUT_OF_MEMORY ? raise_no_room(plan) : status;
}

static gt_status bind(gt_step *step, gt__plan *plan) {
    GT_TRY(make_arena(step, plan));
    gt_tensor *memory = *gt__step_arena(step);
    char *arena = memory ? memory->data : NULL;
    if (plan->bound_list && plan->bound_to == arena) return GT_OK;
    gt__plan_unbind(step, plan);
    plan->bound_list = gt__calloc((size_t)plan->program.count + 1, sizeof *plan->bound_list);
    if (plan->bound_list == NULL) return GT_OUT_OF_HOST_MEMORY;
    binding b = {plan, arena};
    for (int32_t i = 0; i < plan->program.count; ++i) {
        gt_status status = gt__instruction_copy(&plan->program.list[i], &plan->bound_list[i]);
        if (status != GT_OK) {
            gt__plan_unbind(step, plan);
            return status;
        }
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

/* Half copies and masters of weights that somebody else than this step has written. The half copy is the one that the program uses, whatever another has put in
 * its place. */
static gt_status sync_weights(gt_step *step, const gt__plan *plan) {
    for (int32_t i = 0; i < plan->n_watched; ++i) {
        const gt__watched *w = &plan->watched[i];
        gt__storage *s = w->handle->storage;
        if (w->half == NULL) continue;
        if (GT__UNLIKELY(s->half != w->half)) {
            gt_tensor_release(s->half);
            s->half = gt_tensor_retain(w->half);
            s->half_version = s->version - 1;
        }
        if (!gt__half_copy_is_fresh(s)) GT_TRY(gt__half_copy_make(w->handle, w->half->meta.dtype));
    }
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) GT_TRY(gt__optimizer_refresh_masters(step->optimizers[i]));
    return GT_OK;
}

static gt_status check_outside(const gt__plan *plan) {
    for (int32_t i = 0; i < plan->n_outside; ++i) {
        const gt__outside *o = &plan->outside[i];
        GT_REQUIRE(o->handle->storage->data == o->data, GT_BAD_STATE, "gt_step_run: memory of %zu bytes that the step uses has moved",
                   o->handle->storage->bytes);
    }
    for (int32_t i = 0; i < plan->n_watched; ++i) {
        const gt__watched *w = &plan->watched[i];
        if (GT__LIKELY(w->handle->data == w->data)) continue;
        char text[300];
        GT_FAIL_HINT(GT_BAD_STATE, "gt_step_reset; and a new optimizer, if it is one of its parameters",
                     "gt_step_run: %s has other memory than when the step was traced (gt_module_to_dtype gives it some)",
                     gt__tensor_text(w->handle, text, sizeof text));
    }
    return GT_OK;
}

/* What the window's next micro-batches go on from. */
static void leave_grads(gt_step *step, gt__plan *plan) {
    for (int32_t i = 0; i < step->n_parameters; ++i) {
        gt_tensor *p = gt__step_parameter(step, i);
        if (plan->leaves[i] == NULL || p->grad == plan->leaves[i]) continue;
        gt_tensor_release(p->grad);
        p->grad = gt_tensor_retain(plan->leaves[i]);
        p->grad_valid = 1;
    }
}

static void after_run(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    gt_module *module = step->options.module;
    ctx->rng_offset += plan->drawn;
    step->host_cells->random[1] = ctx->rng_offset;
    for (int32_t i = 0; i < plan->n_outside; ++i)
        if (plan->outside[i].written) gt__storage_changed(plan->outside[i].handle->storage);
    const uint8_t *updated = plan->updated;
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) {
        gt__optimizer_updated(step->optimizers[i], updated);
        updated += step->optimizers[i]->count;
    }
    if (module) (void)gt__module_counters_add(module, plan->counters);
    if (step->window && !plan->ends) leave_grads(step, plan);
    if (step->options.scaler && step->window && plan->ends) gt__scaler_updated(step->options.scaler);
    if (step->window && plan->ends) gt__step_done(ctx);
    plan->runs++;
    plan->warm++;
    plan->used = ++step->runs;
    step->last = plan;
}

/* --- running ------------------------------------------------------------------------------------------------------------------------------------ */

/* Where the program's inputs come from in this run. Those that do not lie in memory as the program was made for are copied first: staged (counted). */
static gt_status place_inputs(gt_step *step, gt__plan *plan, gt_tensor *const *inputs, gt_tensor **staged) {
    gt_context *ctx = step->ctx;
    gt__instruction *n = &plan->bound_list[0];
    bool changed = false;
    for (int32_t i = 0; i < plan->n_inputs; ++i) {
        gt_tensor *input = inputs[i];
        if (n->moves.list[i].count == 0) continue;
        if (!gt__meta_same_layout(&input->meta, &plan->inputs[i])) {
            staged[i] = gt__tensor_new_for(ctx, &plan->inputs[i], GT_MEMORY_TEMPORARY, "step input");
            if (staged[i] == NULL) return gt_last_error()->status;
            GT_TRY(gt__op_into(GT__OP_COPY, &input, 1, NULL, staged[i]));
            input = staged[i];
        }
        changed |= n->moves.list[i].source != input->data;
        n->moves.list[i].source = input->data;
    }
    return changed && plan->graph ? ctx->backend->graph_move(ctx->device, plan->graph, n->moves.list, n->moves.count) : GT_OK;
}

/* What is in use beside the arena, for gt_step_get_memory. */
static void note_memory(gt_step *step, gt__plan *plan, gt_tensor *const *inputs) {
    gt_memory_stats stats = {.struct_size = sizeof stats};
    const gt_tensor *arena = *gt__step_arena(step);
    gt__allocator_stats(step->ctx->allocator, &stats);
    memcpy(plan->beside, stats.category_in_use, sizeof plan->beside);
    if (arena) plan->beside[GT_MEMORY_TEMPORARY] -= gt__block_bytes(arena->storage->block);
    memset(plan->input_bytes, 0, sizeof plan->input_bytes);
    for (int32_t i = 0; i < plan->n_inputs; ++i) {
        const gt__storage *s = inputs[i]->storage;
        bool seen = s->block == NULL; /* empty, or memory of somebody else's */
        for (int32_t k = 0; k < i; ++k) seen |= inputs[k]->storage == s;
        if (!seen) plan->input_bytes[gt__block_category(s->block)] += gt__block_bytes(s->block);
    }
}

/* A profile that is to see the parts has them run one by one. */
static bool as_graph(const gt_step *step, const gt__plan *plan) {
    const gt__profiler *profiler = step->ctx->profiler;
    return plan->graph && !(profiler && profiler->lists);
}

/* --- times of instructions, for a budget ------------------------------------------------------------------------------------------------------ */

typedef struct watch {
    gt__event **timers; /* count + 1: between them the instructions; NULL: they are not timed */
    int32_t count;
} watch;

static void watch_free(gt_step *step, watch *w) {
    for (int32_t i = 0; w->timers && i <= w->count; ++i)
        if (w->timers[i]) step->ctx->backend->event_destroy(step->ctx->device, w->timers[i]);
    gt__free(w->timers);
    *w = (watch){0};
}

static bool all_timed(const gt_step *step, const gt__program *p) {
    for (int32_t i = 0; i < p->count; ++i)
        if (!gt__is_timed(gt__times_find(&step->times, &p->list[i]))) return false;
    return true;
}

/* All that noting times and scratch memory may fail in. */
static gt_status watch_make(gt_step *step, const gt__plan *plan, watch *w) {
    if (step->options.memory_budget == 0) return GT_OK;
    GT_TRY(gt__times_reserve(&step->times, plan->program.count));
    if (plan->warm != 1 || all_timed(step, &plan->program)) return GT_OK;
    w->count = plan->program.count;
    w->timers = gt__calloc((size_t)w->count + 1, sizeof(gt__event *));
    if (w->timers == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i <= w->count; ++i) GT_TRY(step->ctx->backend->timer_create(step->ctx->device, &w->timers[i]));
    return GT_OK;
}

/* Waits. What cannot be read stays unknown. */
static void watch_read(gt_step *step, gt__plan *plan, const watch *w) {
    const gt__backend *b = step->ctx->backend;
    gt__device *device = step->ctx->device;
    if (w->timers == NULL || b->event_wait_host(device, w->timers[w->count]) != GT_OK) return;
    gt__times_begin(&step->times);
    for (int32_t i = 0; i < w->count; ++i) {
        double seconds;
        if (b->event_elapsed(device, w->timers[i], w->timers[i + 1], &seconds) == GT_OK)
            gt__times_note(&step->times, &plan->program.list[i], seconds);
    }
    gt__step_measure_link(step);
}

static void note_scratch(gt_step *step, gt__plan *plan, int32_t i, size_t bytes) {
    plan->program.list[i].workspace = bytes;
    if (step->options.memory_budget > 0) gt__times_note_workspace(&step->times, &plan->program.list[i], bytes);
}

/* One by one. `measure`: and notes how much scratch memory each takes. Where there is a graph, scratch memory has its place. */
static gt_status run_list(gt_step *step, gt__plan *plan, bool measure, const watch *w) {
    gt_context *ctx = step->ctx;
    const char *module = ctx->module_path;
    gt__phase phase = gt__allocator_phase(ctx->allocator);
    gt__scratch scratch = {0};
    gt_status status = w->timers ? ctx->backend->event_record(ctx->device, w->timers[0], GT__STREAM_COMPUTE) : GT_OK;
    for (int32_t i = 0; i < plan->program.count && status == GT_OK; ++i) {
        const gt__instruction *n = &plan->bound_list[i];
        ctx->module_path = n->module;
        gt__allocator_set_phase(ctx->allocator, n->phase);
        scratch.most = scratch.used = 0;
        if (plan->graph && *gt__step_arena(step)) {
            scratch.data = (char *)(*gt__step_arena(step))->data + plan->offsets[plan->program.n_buffers + i];
            scratch.bytes = plan->program.list[i].workspace;
        }
        if (measure || scratch.data) ctx->scratch = &scratch;
        status = gt__instruction_run(n, ctx->device);
        ctx->scratch = NULL;
        if (measure) note_scratch(step, plan, i, scratch.most);
        if (w->timers && status == GT_OK) status = ctx->backend->event_record(ctx->device, w->timers[i + 1], GT__STREAM_COMPUTE);
    }
    ctx->module_path = module;
    gt__allocator_set_phase(ctx->allocator, phase);
    return status;
}

/* Before a run that is a whole window: what a failure in its middle goes back to. A graph is launched whole. */
static gt_status remember(gt_step *step, const gt__plan *plan) {
    if (step->window == NULL || gt__window_is_open(step->window)) return GT_OK;
    if (step->options.scaler) GT_TRY(gt__scaler_restart_diagnosis(step->options.scaler));
    return as_graph(step, plan) ? GT_OK : gt__window_remember(step->window);
}

static void go_back(gt_step *step) {
    if (step->window && !gt__window_is_open(step->window)) (void)gt__window_go_back(step->window);
}

/* Written down with every scratch request at its planned place. */
static gt_status branch(gt_step *step, const gt__plan *plan, int32_t i) {
    const gt__backend *b = step->ctx->backend;
    bool before = i > 0 && plan->aside[i - 1];
    if (i == plan->join && memchr(plan->aside, 1, (size_t)i) != NULL) return b->capture_join(step->ctx->device);
    return plan->aside[i] || before ? b->capture_branch(step->ctx->device, plan->aside[i] != 0) : GT_OK;
}

static gt_status capture_list(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    gt_tensor *arena = *gt__step_arena(step);
    gt_status status = GT_OK;
    for (int32_t i = 0; i < plan->program.count && status == GT_OK; ++i) {
        gt__scratch scratch = {.data = (char *)arena->data + plan->offsets[plan->program.n_buffers + i],
                               .bytes = plan->program.list[i].workspace};
        if (plan->aside) status = branch(step, plan, i);
        if (status != GT_OK) break;
        ctx->scratch = arena ? &scratch : NULL;
        status = gt__instruction_run(&plan->bound_list[i], ctx->device);
        ctx->scratch = NULL;
    }
    return status;
}

/* With the scratch memory that was measured. */
static gt_status place_again(gt_step *step, gt__plan *plan) {
    GT_TRY(gt__plan_place(plan));
    gt__plan_unbind(step, plan);
    return bind(step, plan);
}

static gt_status capture(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    GT_TRY(ctx->backend->capture_begin(ctx->device));
    gt_status status = capture_list(step, plan);
    gt__graph *graph = NULL;
    gt_status ended = ctx->backend->capture_end(ctx->device, status == GT_OK ? &graph : NULL);
    if (status == GT_OK) status = ended;
    plan->graph = graph;
    if (status == GT_OK) plan->measured = 2;
    return status;
}

/* The first run chooses kernels, the second measures what scratch memory they take and, for a budget, what time; the third is captured. */
static gt_status run(gt_step *step, gt__plan *plan, gt_tensor *const *inputs, gt_tensor **staged) {
    gt_context *ctx = step->ctx;
    bool captures = ctx->backend->capture_begin != NULL, measure = plan->warm == captures;
    watch w = {0};
    GT_TRY(bind(step, plan));
    GT_TRY(sync_weights(step, plan));
    GT_TRY(sync_step_counts(step));
    GT_TRY(sync_cells(step));
    bool captures_now = captures && plan->warm >= 2 && plan->graph == NULL;
    if (captures_now) GT_TRY(place_again(step, plan));
    GT_TRY(place_inputs(step, plan, inputs, staged));
    if (captures_now) GT_TRY(capture(step, plan));
    GT_TRY(remember(step, plan));
    if (plan->warm < 3) note_memory(step, plan, inputs);
    if (as_graph(step, plan)) return ctx->backend->graph_launch(ctx->device, plan->graph);
    gt_status status = watch_make(step, plan, &w);
    if (status == GT_OK) status = run_list(step, plan, measure, &w);
    if (status != GT_OK) gt__plan_settle_host(step, plan);
    if (status != GT_OK)
        go_back(step);
    else if (measure)
        plan->measured = 1;
    if (status == GT_OK) watch_read(step, plan, &w);
    watch_free(step, &w);
    return status;
}

gt_status gt__plan_run(gt_step *step, gt__plan *plan, gt_tensor *const *inputs) {
    gt_context *ctx = step->ctx;
    gt__dropped_release(ctx);
    GT_TRY(check_outside(plan));
    GT_TRY(gt__plan_again(step, plan));
    int32_t previous = gt__enter(ctx);
    gt_tensor *staged[GT_STEP_MAX_INPUTS] = {NULL};
    gt_status status = run(step, plan, inputs, staged);
    for (int32_t i = 0; i < plan->n_inputs; ++i) gt_tensor_release(staged[i]); /* its memory is used again after what was queued */
    gt__leave(ctx, previous);
    if (status == GT_OK) after_run(step, plan);
    return status;
}

/* From a step's function to a plan: traces it, and places its memory. */
#include "step/memory_plan.h"
#include "step/step.h"

/* --- tracing ----------------------------------------------------------------------------------------------------------------------------- */

/* What is under way while a step is traced. */
typedef struct tracing {
    gt_step *step;
    gt__plan *plan;
    gt__trace *trace;
    gt_tensor *inputs[GT_STEP_MAX_INPUTS]; /* counted */
    gt_tensor *total;                      /* of the loss over the micro-batches so far, counted */
    gt_tensor *items;                      /* and of items, counted; NULL: their number is known */
    gt_tensor **parts;                     /* micro_batches entries an output, counted */
    gt_tensor **weights;                   /* whose half copies are to be made, counted, and in which dtype */
    gt_dtype *dtypes;
    int32_t n_weights;
} tracing;

static gt_status keep(gt_tensor **place, gt_tensor *value) {
    if (value == NULL) return gt_last_error()->status;
    gt_tensor_retain(value);
    gt_tensor_release(*place);
    *place = value;
    return GT_OK;
}

static gt_status kept_sum(gt_tensor **sum, gt_tensor *value) { return keep(sum, *sum && value ? gt_add(*sum, value) : value); }

/* The loss so far, weighted by items where the micro-batches may have different numbers of them. */
static gt_status add_loss(tracing *t, const gt_step_result *r, double rows) {
    int32_t k = t->step->options.micro_batches;
    gt_tensor *loss = gt_reshape(gt_cast(gt_tensor_detach(r->loss), GT_DTYPE_F32), 0, NULL);
    if (k == 1) return keep(&t->total, loss);
    if (r->items == NULL) return kept_sum(&t->total, gt_mul_scalar(loss, rows / (double)t->plan->inputs[0].shape[0]));
    gt_tensor *items = gt_reshape(gt_cast(gt_tensor_detach(r->items), GT_DTYPE_F32), 0, NULL);
    GT_TRY(kept_sum(&t->items, items));
    return kept_sum(&t->total, gt_mul(loss, items));
}

static gt_status run_function(tracing *t, gt_tensor *const *inputs, gt_step_result *result) {
    gt_step *step = t->step;
    gt_context *ctx = step->ctx;
    const gt_step_options *o = &step->options;
    gt__open_regions open;
    *result = (gt_step_result){0};
    bool half = o->autocast != GT_DTYPE_F32;
    if (half) GT_TRY(gt_autocast_begin(ctx, o->autocast));
    gt_status status = gt__regions_enter(ctx, &open);
    if (status == GT_OK) {
        status = o->fn(o->user, inputs, t->plan->n_inputs, result);
        if (status == GT_OK && !gt__regions_hold(ctx, &open))
            status = GT_RAISE(GT_BAD_STATE, "gt_step: its function ended a scope or a region that it had not begun");
        gt_tensor *all[2 + GT_STEP_MAX_OUTPUTS] = {result->loss, result->items};
        memcpy(all + 2, result->outputs, sizeof result->outputs);
        for (size_t i = 0; i < GT__COUNT(all) && status == GT_OK; ++i) gt_tensor_retain(all[i]);
        gt__regions_leave(ctx, &open);
        for (size_t i = 0; i < GT__COUNT(all) && status == GT_OK; ++i)
            if (all[i]) (void)gt__scope_add(all[i]);
    }
    if (half) (void)gt_autocast_end(ctx);
    return status;
}

static gt_status check_result(const gt_step *step, const gt_step_result *r) {
    GT_REQUIRE(r->loss != NULL || step->window == NULL, GT_BAD_ARGUMENT, "gt_step: its function gave no loss, but there are optimizers");
    GT_REQUIRE(r->loss == NULL || gt_tensor_numel(r->loss) == 1, GT_BAD_SHAPE, "gt_step: the loss has %lld elements; it must be one number",
               (long long)gt_tensor_numel(r->loss));
    return GT_OK;
}

/* In a scope of its own. */
static gt_status micro_batch(tracing *t, int32_t number) {
    gt_step *step = t->step;
    gt__plan *plan = t->plan;
    int32_t k = step->options.micro_batches;
    gt_tensor *inputs[GT_STEP_MAX_INPUTS] = {NULL};
    int64_t rows = 0;
    for (int32_t i = 0; i < plan->n_inputs; ++i) {
        int64_t all = plan->inputs[i].ndim > 0 ? plan->inputs[i].shape[0] : 1, begin = all * number / k, end = all * (number + 1) / k;
        inputs[i] = k == 1 ? t->inputs[i] : gt_slice(t->inputs[i], 0, begin, end, 1);
        if (inputs[i] == NULL) return gt_last_error()->status;
        if (i == 0) rows = end - begin;
    }
    if (step->window) GT_TRY(gt_window_micro_begin(step->window));
    gt_step_result r;
    gt_status status = run_function(t, inputs, &r);
    if (status == GT_OK) status = check_result(step, &r);
    if (status == GT_OK && r.loss) {
        (void)gt_no_grad_begin(step->ctx);
        status = add_loss(t, &r, (double)rows);
        (void)gt_no_grad_end(step->ctx);
    }
    for (int32_t i = 0; i < GT_STEP_MAX_OUTPUTS && r.outputs[i] && status == GT_OK; ++i)
        status = keep(&t->parts[i * k + number], gt_tensor_detach(r.outputs[i]));
    if (step->window == NULL) return status;
    if (status != GT_OK) {
        (void)gt_window_cancel(step->window);
        return status;
    }
    return gt_window_micro_end(step->window, r.loss, (double)rows, r.items);
}

/* `value` copied to a tensor that stays, which is made here. */
static gt_status result_of(tracing *t, gt_tensor *value, gt_tensor **result) {
    if (value == NULL) return gt_last_error()->status;
    gt__meta meta = value->meta;
    if (!gt__meta_is_dense(&meta)) gt__meta_set_row_major(&meta);
    *result = gt__trace_real(t->trace, &meta, GT_MEMORY_USER, "step result");
    if (*result == NULL) return gt_last_error()->status;
    return meta.numel > 0 ? gt__op_into(GT__OP_COPY, &value, 1, NULL, *result) : GT_OK;
}

static gt_status make_results(tracing *t) {
    int32_t k = t->step->options.micro_batches;
    if (t->total) GT_TRY(result_of(t, t->items ? gt_div(t->total, t->items) : t->total, &t->plan->loss));
    for (int32_t i = 0; i < GT_STEP_MAX_OUTPUTS && t->parts[i * k]; ++i) {
        gt_tensor **parts = t->parts + i * k, *whole = parts[0];
        if (k > 1 && whole->meta.ndim > 0) {
            whole = gt_concat(parts, k, 0);
        } else {
            for (int32_t n = 1; n < k && whole; ++n) whole = gt_add(whole, parts[n]);
        }
        GT_TRY(result_of(t, whole, &t->plan->outputs[i]));
    }
    return GT_OK;
}

static gt_status trace_body(tracing *t) {
    gt_step *step = t->step;
    gt_context *ctx = step->ctx;
    for (int32_t i = 0; i < t->plan->n_inputs; ++i) {
        t->inputs[i] = gt__trace_input(t->trace, &t->plan->inputs[i]);
        if (t->inputs[i] == NULL) return gt_last_error()->status;
        t->plan->input_buffers[i] = t->inputs[i]->storage->traced - 1;
    }
    if (step->window == NULL) GT_TRY(gt_no_grad_begin(ctx));
    gt_status status = GT_OK;
    for (int32_t number = 0; number < step->options.micro_batches && status == GT_OK; ++number) {
        status = gt__scope_begin(ctx);
        if (status != GT_OK) break;
        status = micro_batch(t, number);
        (void)gt_scope_end(ctx);
    }
    if (step->window == NULL) (void)gt_no_grad_end(ctx);
    if (status != GT_OK) return status;
    GT_TRY(gt__scope_begin(ctx));
    GT_TRY(gt_no_grad_begin(ctx));
    status = make_results(t);
    (void)gt_no_grad_end(ctx);
    (void)gt_scope_end(ctx);
    return status;
}

static void drop_handles(tracing *t) {
    for (int32_t i = 0; i < GT_STEP_MAX_INPUTS; ++i) gt_tensor_release(t->inputs[i]);
    gt_tensor_release(t->total);
    gt_tensor_release(t->items);
    for (int32_t i = 0; i < GT_STEP_MAX_OUTPUTS * t->step->options.micro_batches; ++i) gt_tensor_release(t->parts[i]);
}

/* --- what a trace changes on the host, and what every run will change ------------------------------------------------------------------------ */

/* Each optimizer reads the first of a parameter's two step counts while it is traced. */
static void set_step_cells(gt_step *step, uint8_t cell) {
    for (int32_t i = 0; i < step->options.n_optimizers; ++i)
        for (int32_t k = 0; k < step->optimizers[i]->count; ++k) step->optimizers[i]->slots[k].step_cell = cell;
}

static int32_t *pairs_of(const gt_optimizer *optimizer) {
    return (int32_t *)(void *)((char *)optimizer->cells->data + GT__CONTROLS * sizeof(gt__step_control));
}

/* The optimizers after the first settle their step counts before anything else. */
static gt_status trace_settling(gt_step *step) {
    gt_context *ctx = step->ctx;
    for (int32_t i = 1; i < step->options.n_optimizers; ++i) {
        const gt__step_task task = {
            .kind = GT__STEP_ADVANCE, .settle = pairs_of(step->optimizers[i]), .settle_count = step->optimizers[i]->count};
        GT_TRY(ctx->backend->step_task(ctx->device, &task));
    }
    return GT_OK;
}

/* The first optimizer's step counts, and the random offset, go with the window's end, which is there anyway. */
static gt_status complete_end(gt_step *step, gt__plan *plan, uint64_t drawn) {
    uint64_t *random = gt__step_cells_of(step)->random;
    for (int32_t i = plan->program.count - 1; i >= 0 && step->window; --i) {
        gt__instruction *n = &plan->program.list[i];
        bool task = n->kind == GT__DO_STEP_TASK || n->kind == GT__DO_GRAD_STEP_TASK;
        if (!task || n->task.task.kind != GT__STEP_WINDOW_END) continue;
        n->task.task.rate_cell = gt__step_cells_of(step)->rates;
        n->task.task.settle = pairs_of(step->optimizers[0]);
        n->task.task.settle_count = step->optimizers[0]->count;
        n->task.task.random_cells = drawn > 0 ? random : NULL;
        n->task.task.random_advance = drawn;
        return GT_OK;
    }
    if (drawn == 0) return GT_OK;
    gt__instruction *n = gt__program_add(&plan->program, GT__DO_STEP_TASK, 0);
    if (n == NULL) return GT_OUT_OF_HOST_MEMORY;
    n->task.task = (gt__step_task){.kind = GT__STEP_ADVANCE, .random_cells = random, .random_advance = drawn};
    return GT_OK;
}

/* Takes down which weights got half copies over traced memory, and drops these. */
static gt_status take_half_copies(tracing *t) {
    gt_context *ctx = t->step->ctx;
    gt_status status = GT_OK;
    for (gt_tensor *w = ctx->live.live_next; w != &ctx->live; w = w->live_next) {
        gt_tensor *half = w->storage && !w->storage->traced ? gt__half_copy_of(w) : NULL;
        if (half == NULL || !half->storage->traced) continue;
        gt_tensor **weights = gt__realloc(t->weights, (size_t)(t->n_weights + 1) * sizeof *weights);
        if (weights) t->weights = weights;
        gt_dtype *dtypes = gt__realloc(t->dtypes, (size_t)(t->n_weights + 1) * sizeof *dtypes);
        if (dtypes) t->dtypes = dtypes;
        if (weights && dtypes) {
            t->weights[t->n_weights] = gt_tensor_retain(w);
            t->dtypes[t->n_weights++] = half->meta.dtype;
        } else {
            status = GT_OUT_OF_HOST_MEMORY;
        }
        w->storage->half = NULL;
        gt_tensor_release(half);
    }
    return status;
}

/* They are made for good, with the trace closed: the next one finds them. */
static gt_status make_half_copies(tracing *t, gt_status status) {
    for (int32_t i = 0; i < t->n_weights; ++i) {
        if (status == GT_OK) status = gt__half_copy_make(t->weights[i], t->dtypes[i]);
        gt_tensor_release(t->weights[i]);
    }
    gt__free(t->weights);
    gt__free(t->dtypes);
    return status;
}

static void drop_gradients(gt_step *step) {
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) (void)gt_optimizer_zero_grad(step->optimizers[i]);
    if (step->options.module) (void)gt_module_zero_grad(step->options.module);
}

/* Which parameters the program's updates name. */
static gt_status find_updated(gt_step *step, gt__plan *plan) {
    size_t total = 1;
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) total += (size_t)step->optimizers[i]->count;
    plan->updated = gt__calloc(total, 1);
    if (plan->updated == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t at = 0; at < plan->program.count; ++at) {
        const gt__instruction *n = &plan->program.list[at];
        uint8_t *updated = plan->updated;
        for (int32_t i = 0; i < step->options.n_optimizers && n->kind == GT__DO_UPDATE; ++i) {
            const gt_optimizer *o = step->optimizers[i];
            for (int32_t k = 0, u = 0; k < o->count && u < n->update.count; ++k) { /* both in the same order */
                if (n->update.list[u].param != o->slots[k].parameter->data) continue;
                updated[k] = 1;
                ++u;
            }
            updated += o->count;
        }
    }
    return GT_OK;
}

static int32_t find_remember(const gt__plan *plan) {
    for (int32_t i = 0; i < plan->program.count; ++i) {
        const gt__instruction *n = &plan->program.list[i];
        if (n->kind == GT__DO_COPY_MANY) return i;
        if (n->kind == GT__DO_CALL) break;
    }
    return -1;
}

static gt_status trace_once(gt_step *step, gt__plan *plan, bool *again) {
    gt_context *ctx = step->ctx;
    gt_module *module = step->options.module;
    tracing *t = gt__calloc(1, sizeof *t);
    if (t == NULL) return GT_OUT_OF_HOST_MEMORY;
    t->step = step;
    t->plan = plan;
    gt_status status = GT_OK;
    int64_t *before = NULL;
    t->parts = gt__calloc((size_t)(GT_STEP_MAX_OUTPUTS * step->options.micro_batches), sizeof *t->parts);
    if (t->parts == NULL) GT_TRY_GOTO(status, GT_OUT_OF_HOST_MEMORY, done);
    if (module) {
        plan->n_counters = gt__module_counters(module, NULL, false);
        before = gt__calloc((size_t)plan->n_counters + 1, sizeof *before);
        plan->counters = gt__calloc((size_t)plan->n_counters + 1, sizeof *plan->counters);
        if (before == NULL || plan->counters == NULL) GT_TRY_GOTO(status, GT_OUT_OF_HOST_MEMORY, done);
        (void)gt__module_counters(module, before, false);
    }
    drop_gradients(step);
    gt__phase phase = gt__allocator_phase(ctx->allocator);
    bool stepped = ctx->stepped;
    GT_TRY_GOTO(status, gt__trace_begin(ctx, &plan->program, gt__step_cells_of(step)->random, &t->trace), done);
    set_step_cells(step, 0);
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) step->optimizers[i]->rate_cell = &gt__step_cells_of(step)->rates[i];
    status = trace_settling(step);
    if (status == GT_OK) status = trace_body(t);
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) step->optimizers[i]->rate_cell = NULL;
    set_step_cells(step, 1);
    drop_gradients(step);
    drop_handles(t);
    gt_status taken = take_half_copies(t);
    if (status == GT_OK) status = taken;
    *again = t->n_weights > 0;
    if (status == GT_OK) plan->outside = gt__trace_outside(t->trace, &plan->n_outside);
    int32_t left;
    gt__trace_end(t->trace, &plan->drawn, &left);
    ctx->stepped = stepped;
    gt__allocator_set_phase(ctx->allocator, phase);
    status = make_half_copies(t, status);
    for (int32_t i = 0; module && i < plan->n_counters; ++i) plan->counters[i] = -before[i];
    if (module) {
        int64_t *after = gt__calloc((size_t)plan->n_counters + 1, sizeof *after);
        if (after == NULL) GT_TRY_GOTO(status, GT_OUT_OF_HOST_MEMORY, done);
        (void)gt__module_counters(module, after, false);
        for (int32_t i = 0; i < plan->n_counters; ++i) plan->counters[i] += after[i];
        gt__free(after);
        (void)gt__module_counters(module, before, true);
    }
    if (status == GT_OK && left > 0)
        status =
            GT_RAISE(GT_BAD_STATE,
                     "gt_step: its function kept %d tensors beyond the call; what is to be seen must be an output of the step", (int)left);
    if (status == GT_OK && !*again) status = complete_end(step, plan, plan->drawn);
    if (status == GT_OK && !*again) status = find_updated(step, plan);
    plan->remember = find_remember(plan);
done:
    gt__free(before);
    gt__free(t->parts);
    gt__free(t);
    return status;
}

/* --- places -------------------------------------------------------------------------------------------------------------------------------------- */

gt_status gt__plan_place(gt__plan *plan) {
    gt__program *p = &plan->program;
    size_t n = (size_t)p->n_buffers + (size_t)p->count;
    gt__life *lives = gt__calloc(n, sizeof *lives);
    if (lives == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__program_lives(p);
    for (int32_t b = 0; b < p->n_buffers; ++b)
        if (p->buffers[b].first >= 0) lives[b] = (gt__life){p->buffers[b].bytes, p->buffers[b].first, p->buffers[b].last};
    for (int32_t i = 0; i < p->count; ++i) lives[p->n_buffers + i] = (gt__life){p->list[i].workspace, i, i};
    size_t *offsets = gt__realloc(plan->offsets, n * sizeof *offsets);
    gt_status status = offsets ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    if (offsets) {
        plan->offsets = offsets;
        status = gt__memory_plan(lives, (int32_t)n, offsets, &plan->arena_bytes, &plan->bound);
    }
    gt__free(lives);
    return status;
}

/* --- plans ---------------------------------------------------------------------------------------------------------------------------------------- */

static void empty(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->ctx;
    if (plan->graph) {
        int32_t previous = gt__enter(ctx);
        ctx->backend->graph_destroy(ctx->device, plan->graph);
        gt__leave(ctx, previous);
    }
    for (int32_t i = 0; plan->bound_list && i < plan->program.count; ++i) gt__instruction_free(&plan->bound_list[i]);
    gt__free(plan->bound_list);
    gt_tensor_release(plan->loss);
    for (int32_t i = 0; i < GT_STEP_MAX_OUTPUTS; ++i) gt_tensor_release(plan->outputs[i]);
    gt__outside_free(plan->outside, plan->n_outside);
    gt__program_free(&plan->program);
    gt__free(plan->offsets);
    gt__free(plan->updated);
    gt__free(plan->counters);
}

void gt__plan_destroy(gt_step *step, gt__plan *plan) {
    if (plan == NULL) return;
    empty(step, plan);
    gt__free(plan);
}

static gt_status build(gt_step *step, gt__plan *plan, const gt__meta *inputs, int32_t n_inputs) {
    bool again = true;
    for (int32_t tries = 0; again; ++tries) {
        GT_REQUIRE(tries < 3, GT_INTERNAL, "gt_step: weights' half copies are made anew by every trace");
        if (tries > 0) empty(step, plan);
        *plan =
            (gt__plan){.n_inputs = n_inputs, .remember = -1, .training = step->options.module && gt_module_training(step->options.module)};
        memcpy(plan->inputs, inputs, (size_t)n_inputs * sizeof *inputs);
        GT_TRY(trace_once(step, plan, &again));
    }
    return gt__plan_place(plan);
}

gt_status gt__plan_create(gt_step *step, const gt__meta *inputs, int32_t n_inputs, gt__plan **result) {
    gt__plan *plan = gt__calloc(1, sizeof *plan);
    if (plan == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = build(step, plan, inputs, n_inputs);
    if (status == GT_OK)
        *result = plan;
    else
        gt__plan_destroy(step, plan);
    return status;
}

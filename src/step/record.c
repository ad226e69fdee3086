/* Tracing a step: its function is called on shapes, and whatever that changes on the host is put back. */
#include "step/memory_plan.h"
#include "step/step.h"

#include <stdlib.h>

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
    int32_t first_stand_in;                /* buffer of the first of the gradients' stand-ins */
    gt_tensor **grads;                     /* n_parameters: what the parameters' gradients were before, taken from them; counted */
    uint8_t *step_cells;                   /* n_parameters: which of its two step counts each had */
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
    int32_t k = t->plan->micro_batches;
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
    int32_t k = plan->micro_batches;
    bool results = step->extension.window == NULL;
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
    if (status == GT_OK && r.loss && results) {
        (void)gt_no_grad_begin(step->ctx);
        status = add_loss(t, &r, (double)rows);
        (void)gt_no_grad_end(step->ctx);
    }
    for (int32_t i = 0; i < GT_STEP_MAX_OUTPUTS && r.outputs[i] && status == GT_OK && results; ++i)
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
    *result = t->plan->predicted ? gt__trace_phantom(t->step->ctx, &meta) : gt__trace_real(t->trace, &meta, GT_MEMORY_USER, "step result");
    if (*result == NULL) return gt_last_error()->status;
    return meta.numel > 0 ? gt__op_into(GT__OP_COPY, &value, 1, NULL, *result) : GT_OK;
}

static gt_status make_results(tracing *t) {
    int32_t k = t->plan->micro_batches;
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
    for (int32_t number = 0; number < t->plan->micro_batches && status == GT_OK; ++number) {
        status = gt__scope_begin(ctx);
        if (status != GT_OK) break;
        status = micro_batch(t, number);
        (void)gt_scope_end(ctx);
    }
    if (step->window == NULL) (void)gt_no_grad_end(ctx);
    if (status == GT_OK && step->window && t->plan->ends) status = gt_window_flush(step->window);
    if (status != GT_OK) return status;
    GT_TRY(gt__scope_begin(ctx));
    GT_TRY(gt_no_grad_begin(ctx));
    status = make_results(t);
    if (status == GT_OK && step->extension.end) status = step->extension.end(step->options.user, t->plan->begins);
    (void)gt_no_grad_end(ctx);
    (void)gt_scope_end(ctx);
    return status;
}

static void drop_handles(tracing *t) {
    for (int32_t i = 0; i < GT_STEP_MAX_INPUTS; ++i) gt_tensor_release(t->inputs[i]);
    gt_tensor_release(t->total);
    gt_tensor_release(t->items);
    for (int32_t i = 0; i < GT_STEP_MAX_OUTPUTS * t->plan->micro_batches; ++i) gt_tensor_release(t->parts[i]);
}

/* --- what a trace changes on the host, and what every run will change ------------------------------------------------------------------------ */

/* Each optimizer reads the first of a parameter's two step counts while it is traced; `before` is for where they are. */
static void take_step_cells(gt_step *step, uint8_t *before) {
    for (int32_t i = 0; i < step->options.n_optimizers; ++i)
        for (int32_t k = 0; k < step->optimizers[i]->count; ++k) {
            *before++ = step->optimizers[i]->slots[k].step_cell;
            step->optimizers[i]->slots[k].step_cell = 0;
        }
}

static void put_step_cells_back(gt_step *step, const uint8_t *before) {
    for (int32_t i = 0; i < step->options.n_optimizers; ++i)
        for (int32_t k = 0; k < step->optimizers[i]->count; ++k) step->optimizers[i]->slots[k].step_cell = *before++;
}

static int32_t *pairs_of(const gt_optimizer *optimizer) {
    return (int32_t *)(void *)((char *)optimizer->cells->data + GT__CONTROLS * sizeof(gt__step_control));
}

/* The optimizers after the first settle their step counts before anything else. */
static gt_status trace_settling(gt_step *step, const gt__plan *plan) {
    gt_context *ctx = step->ctx;
    for (int32_t i = 1; i < step->options.n_optimizers && plan->ends; ++i) {
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

static gt_status phantom_half_copy(gt__plan *plan, gt_tensor *weight, gt_dtype dtype) {
    gt__meta meta = weight->meta;
    meta.dtype = dtype;
    gt_tensor *half = gt__trace_phantom(weight->ctx, &meta);
    if (half == NULL) return gt_last_error()->status;
    gt_tensor_release(weight->storage->half);
    weight->storage->half = half;
    weight->storage->half_version = weight->storage->version;
    plan->halves += (gt_tensor_bytes(half) + GT__ARENA_GRAIN - 1) / GT__ARENA_GRAIN * GT__ARENA_GRAIN;
    return GT_OK;
}

void gt__drop_phantom_half_copies(gt_context *ctx) {
    for (gt_tensor *t = ctx->live.live_next; t != &ctx->live; t = t->live_next) {
        gt_tensor *half = t->storage ? t->storage->half : NULL;
        if (half == NULL || !gt__is_phantom(half)) continue;
        t->storage->half = NULL;
        gt_tensor_release(half);
    }
}

/* They are made for good, with the trace closed: the next one finds them. */
static gt_status make_half_copies(tracing *t, gt_status status) {
    for (int32_t i = 0; i < t->n_weights; ++i) {
        if (status == GT_OK)
            status = t->plan->predicted ? phantom_half_copy(t->plan, t->weights[i], t->dtypes[i])
                                        : gt__half_copy_make(t->weights[i], t->dtypes[i]);
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
                updated[k] = n->update.list[u].half ? 2 : 1;
                ++u;
            }
            updated += o->count;
        }
    }
    return GT_OK;
}

/* --- gradients that outlive a run -------------------------------------------------------------------------------------------------------------- */

/* The parameters' gradients as they are are put aside, and stand-ins over traced memory take their places: what is traced adds to these. */
static gt_status put_grads_aside(tracing *t) {
    gt_step *step = t->step;
    gt__plan *plan = t->plan;
    size_t n = (size_t)step->n_parameters + 1;
    plan->takes = gt__calloc(n, sizeof *plan->takes);
    plan->leaves = gt__calloc(n, sizeof *plan->leaves);
    if (plan->takes == NULL || plan->leaves == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < step->n_parameters && !plan->begins; ++i) {
        gt_tensor *p = gt__step_parameter(step, i), *grad = gt__valid_grad(p);
        if (grad == NULL || grad->storage->traced) continue; /* of a parameter that two optimizers have: done */
        gt_tensor *stand_in = gt__trace_input(t->trace, &grad->meta);
        if (stand_in == NULL) return gt_last_error()->status;
        t->grads[i] = grad;
        p->grad = stand_in;
        plan->takes[i] = grad->data;
    }
    return GT_OK;
}

/* Afterwards they are back. */
static void put_grads_back(tracing *t) {
    for (int32_t i = 0; t->grads && i < t->step->n_parameters; ++i) {
        if (t->grads[i] == NULL) continue;
        gt_tensor *p = gt__step_parameter(t->step, i);
        (void)gt_tensor_zero_grad(p);
        p->grad = t->grads[i];
        p->grad_valid = 1;
    }
    gt__free(t->grads);
    t->grads = NULL;
}

typedef struct settling {
    const gt__program *program;
    char **places; /* of the program's buffers: where they really are, or NULL */
} settling;

static void settle(void *user, const gt__access *access) {
    const settling *s = user;
    int32_t b = gt__program_buffer(s->program, access->pointer);
    if (b >= 0 && s->places[b]) gt__access_set(access, s->places[b] + ((uintptr_t)access->pointer - s->program->buffers[b].address));
}

/* Memory for parameter i's gradient, which is the same for all programs if it lies in the same order. */
static gt_status make_grad(tracing *t, int32_t i, const gt__meta *meta, gt_tensor **grad) {
    gt_step *step = t->step;
    gt_tensor **kept = &step->grads[i];
    if (*kept == NULL || (*kept)->meta.dtype != meta->dtype || !gt__meta_same_layout(&(*kept)->meta, meta)) {
        gt_tensor *made = gt__trace_real(t->trace, meta, GT_MEMORY_GRADIENT, "gradient");
        if (made == NULL) return gt_last_error()->status;
        gt_tensor_release(*kept);
        *kept = made;
    }
    *grad = gt_tensor_retain(*kept);
    return GT_OK;
}

/* What the trace has left as a parameter's gradient is to be in memory that stays: as a rule in its very place, so that nothing is copied. */
static gt_status leave_grad(tracing *t, int32_t i, char **places) {
    gt__plan *plan = t->plan;
    const gt__program *program = &plan->program;
    gt_tensor *p = gt__step_parameter(t->step, i), *grad = gt__valid_grad(p);
    if (grad == NULL || !grad->storage->traced) return GT_OK;
    if (t->grads[i])
        plan->leaves[i] = gt_tensor_retain(t->grads[i]);
    else
        GT_TRY(make_grad(t, i, &grad->meta, &plan->leaves[i]));
    gt_tensor *real = plan->leaves[i];
    int32_t b = grad->storage->traced - 1;
    bool whole = (uintptr_t)grad->data == program->buffers[b].address && grad->meta.dtype == real->meta.dtype &&
                 gt__meta_is_dense(&grad->meta) && gt__meta_same_layout(&grad->meta, &real->meta) &&
                 gt_tensor_bytes(grad) == grad->storage->bytes;
    if (whole)
        places[b] = real->data;
    else
        GT_TRY(gt__op_into(GT__OP_COPY, &grad, 1, NULL, real));
    gt_tensor_retain(real);
    gt_tensor_release(p->grad);
    p->grad = real;
    return GT_OK;
}

/* The gradients that this program takes over and leaves become memory outside of it. */
static gt_status settle_grads(tracing *t) {
    gt_step *step = t->step;
    gt__plan *plan = t->plan;
    gt__program *program = &plan->program;
    if (plan->begins && plan->ends) return GT_OK;
    char **places = gt__calloc((size_t)program->n_buffers + 1, sizeof *places);
    if (places == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = GT_OK;
    for (int32_t i = 0, b = t->first_stand_in; i < step->n_parameters; ++i) /* in this order they were made */
        if (t->grads[i] && t->grads[i]->meta.numel > 0) places[b++] = t->grads[i]->data;
    if (step->grads == NULL) {
        step->grads = gt__calloc((size_t)step->n_parameters + 1, sizeof *step->grads);
        if (step->grads == NULL) status = GT_OUT_OF_HOST_MEMORY;
    }
    for (int32_t i = 0; i < step->n_parameters && !plan->ends && status == GT_OK; ++i) status = leave_grad(t, i, places);
    settling s = {program, places};
    for (int32_t i = 0; i < program->count && status == GT_OK; ++i) gt__instruction_visit(&program->list[i], settle, &s);
    gt__free(places);
    return status;
}

/* Leaves of the caller's that are in no optimizer and in no module would gather gradients for nobody. */
static gt_status drop_stray_gradients(gt_context *ctx) {
    gt_status status = GT_OK;
    for (gt_tensor *t = ctx->live.live_next; t != &ctx->live; t = t->live_next) {
        if (t->grad == NULL || t->storage == NULL || t->storage->traced || !t->grad->storage || !t->grad->storage->traced) continue;
        char text[300];
        if (status == GT_OK)
            status = GT_RAISE_HINT(GT_BAD_STATE, "give it to an optimizer of the step, or detach it",
                                   "gt_step: the loss has a gradient for %s, which is in no optimizer and not in the module",
                                   gt__tensor_text(t, text, sizeof text));
        (void)gt_tensor_zero_grad(t);
    }
    return status;
}

/* --- the caller's tensors --------------------------------------------------------------------------------------------------------------------- */

typedef struct used {
    const gt__storage *storage;
    const gt_tensor *handle;
} used;

static int by_storage(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const used *)a)->storage, y = (uintptr_t)((const used *)b)->storage;
    return (x > y) - (x < y);
}

static const used *find_used(const used *list, int32_t n, const gt__storage *storage) {
    const used key = {.storage = storage};
    return bsearch(&key, list, (size_t)n, sizeof *list, by_storage);
}

/* Leaves that lie over the memory which the program uses, or whose half copy does. */
static gt_status find_watched(gt_context *ctx, gt__plan *plan) {
    int32_t n = plan->n_outside, capacity = 0;
    if (n == 0) return GT_OK;
    used *list = gt__malloc((size_t)n * sizeof *list);
    if (list == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < n; ++i) list[i] = (used){plan->outside[i].handle->storage, plan->outside[i].handle};
    qsort(list, (size_t)n, sizeof *list, by_storage);
    gt_status status = GT_OK;
    for (gt_tensor *t = ctx->live.live_next; t != &ctx->live && status == GT_OK; t = t->live_next) {
        const gt__storage *s = t->storage;
        if (s == NULL || s->traced || t->node || t->view_base || t->data == NULL || t->data != s->data) continue;
        const used *whole = find_used(list, n, s);
        gt_tensor *half = gt__half_copy_of(t);
        if (half && find_used(list, n, half->storage) == NULL) half = NULL;
        if ((whole == NULL && half == NULL) || (whole && whole->handle == t)) continue;
        if (plan->n_watched == capacity) {
            capacity = GT__MAX(capacity * 2, 64);
            gt__watched *grown = gt__realloc(plan->watched, (size_t)capacity * sizeof *grown);
            if (grown == NULL) {
                status = GT_OUT_OF_HOST_MEMORY;
                break;
            }
            plan->watched = grown;
        }
        plan->watched[plan->n_watched++] = (gt__watched){gt_tensor_retain(t), t->data, gt_tensor_retain(half)};
    }
    gt__free(list);
    return status;
}

gt_status gt__step_freshen(gt_step *step) {
    gt_context *ctx = step->ctx;
    for (gt_tensor *t = ctx->live.live_next; t != &ctx->live; t = t->live_next) {
        gt_tensor *half = t->storage && !gt__half_copy_is_fresh(t->storage) ? gt__half_copy_of(t) : NULL;
        if (half) GT_TRY(gt__half_copy_make(t, half->meta.dtype));
    }
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) GT_TRY(gt__optimizer_refresh_masters(step->optimizers[i]));
    return GT_OK;
}

gt_status gt__plan_trace(gt_step *step, gt__plan *plan, bool *again) {
    gt_context *ctx = step->ctx;
    gt_module *module = step->options.module;
    tracing *t = gt__calloc(1, sizeof *t);
    if (t == NULL) return GT_OUT_OF_HOST_MEMORY;
    t->step = step;
    t->plan = plan;
    gt_status status = GT_OK;
    int64_t *before = NULL, *after = NULL;
    t->parts = gt__calloc((size_t)(GT_STEP_MAX_OUTPUTS * plan->micro_batches), sizeof *t->parts);
    t->grads = gt__calloc((size_t)step->n_parameters + 1, sizeof *t->grads);
    t->step_cells = gt__calloc((size_t)step->n_parameters + 1, 1);
    if (t->parts == NULL || t->grads == NULL || t->step_cells == NULL) GT_TRY_GOTO(status, GT_OUT_OF_HOST_MEMORY, done);
    if (module) {
        plan->n_counters = gt__module_counters(module, NULL, false);
        before = gt__calloc((size_t)plan->n_counters + 1, sizeof *before);
        after = gt__calloc((size_t)plan->n_counters + 1, sizeof *after);
        plan->counters = gt__calloc((size_t)plan->n_counters + 1, sizeof *plan->counters);
        if (before == NULL || after == NULL || plan->counters == NULL) GT_TRY_GOTO(status, GT_OUT_OF_HOST_MEMORY, done);
        (void)gt__module_counters(module, before, false);
    }
    GT_TRY_GOTO(status, gt__step_freshen(step), done);
    if (plan->begins) drop_gradients(step);
    gt__phase phase = gt__allocator_phase(ctx->allocator);
    bool stepped = ctx->stepped;
    GT_TRY_GOTO(status, gt__trace_begin(ctx, &plan->program, gt__step_cells_of(step)->random, &t->trace), done);
    take_step_cells(step, t->step_cells);
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) step->optimizers[i]->rate_cell = &gt__step_cells_of(step)->rates[i];
    gt__window_place place;
    if (step->window) gt__window_trace_begin(step->window, &place);
    t->first_stand_in = plan->program.n_buffers;
    status = put_grads_aside(t);
    if (status == GT_OK) status = trace_settling(step, plan);
    if (status == GT_OK) status = trace_body(t);
    if (status == GT_OK) status = settle_grads(t);
    if (step->window) gt__window_trace_end(step->window, &place);
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) step->optimizers[i]->rate_cell = NULL;
    put_step_cells_back(step, t->step_cells);
    drop_gradients(step);
    put_grads_back(t);
    gt_status stray = drop_stray_gradients(ctx);
    if (status == GT_OK) status = stray;
    drop_handles(t);
    gt_status taken = take_half_copies(t);
    if (status == GT_OK) status = taken;
    *again = t->n_weights > 0;
    if (status == GT_OK) plan->outside = gt__trace_outside(t->trace, &plan->n_outside);
    if (status == GT_OK && !*again) status = find_watched(ctx, plan);
    int32_t left;
    gt__trace_end(t->trace, &plan->drawn, &left);
    ctx->stepped = stepped;
    gt__allocator_set_phase(ctx->allocator, phase);
    status = make_half_copies(t, status);
    for (int32_t i = 0; module && i < plan->n_counters; ++i) plan->counters[i] = -before[i];
    if (module) {
        (void)gt__module_counters(module, after, false);
        for (int32_t i = 0; i < plan->n_counters; ++i) plan->counters[i] += after[i];
        (void)gt__module_counters(module, before, true);
    }
    if (status == GT_OK && left > 0)
        status =
            GT_RAISE(GT_BAD_STATE,
                     "gt_step: its function kept %d tensors beyond the call; what is to be seen must be an output of the step", (int)left);
    if (status == GT_OK && !*again) status = complete_end(step, plan, plan->drawn);
    if (status == GT_OK && !*again) status = find_updated(step, plan);
done:
    gt__free(before);
    gt__free(after);
    gt__free(t->grads);
    gt__free(t->step_cells);
    gt__free(t->parts);
    gt__free(t);
    return status;
}

/* gt_step: making one, choosing the plan for a run's inputs, and what a run leaves to be read. */
#include "step/budget.h"

#include <math.h>

static const gt_step_options defaults = {.struct_size = sizeof(gt_step_options), .micro_batches = 1, .autocast = GT_DTYPE_F32};

gt_status gt_step_options_init(gt_step_options *options, size_t size) {
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_step_options");
}

static gt_status check_options(gt_context *ctx, const gt_step_options *o) {
    GT_REQUIRE(o->fn != NULL, GT_BAD_ARGUMENT, "gt_step: option fn is NULL; it must compute the loss");
    GT_REQUIRE(o->micro_batches >= (o->memory_budget == 0), GT_BAD_ARGUMENT,
               "gt_step: option micro_batches is %d; it must be at least 1, or 0 with a memory_budget that chooses", (int)o->micro_batches);
    GT_REQUIRE(o->offload >= 0, GT_BAD_ARGUMENT, "gt_step: option offload is %d; it is 0, or more if the budget may use the host's memory",
               (int)o->offload);
    GT_REQUIRE(o->n_optimizers >= 0 && (o->n_optimizers == 0 || o->optimizers != NULL), GT_BAD_ARGUMENT, "gt_step: n_optimizers is %d%s",
               (int)o->n_optimizers, o->optimizers ? "" : ", optimizers NULL");
    GT_REQUIRE(o->autocast == GT_DTYPE_F32 || gt__dtype_is_half(o->autocast), GT_BAD_DTYPE,
               "gt_step: option autocast can be f16, bf16 or (none) f32, not %s", gt_dtype_name(o->autocast));
    GT_REQUIRE(o->module == NULL || gt_module_context(o->module) == ctx, GT_BAD_DEVICE, "gt_step: the module belongs to another context");
    return GT_OK;
}

static gt_status make_window(gt_step *step, const gt_step_options *o) {
    gt_window_options w;
    GT_TRY(gt_window_options_init(&w, sizeof w));
    w.micro_batches = GT__MAX(o->micro_batches, 1); /* 0: as the budget chooses before each run */
    w.optimizers = o->optimizers;
    w.n_optimizers = o->n_optimizers;
    w.module = o->module;
    w.scaler = o->scaler;
    w.schedule = o->schedule;
    w.clip_norm = o->clip_norm;
    w.clip_value = o->clip_value;
    if (step->extension.window)
        step->window = step->extension.window;
    else
        GT_TRY(gt_window_create(&w, &step->window));
    for (int32_t i = 0; i < o->n_optimizers; ++i) {
        gt_context *ctx;
        GT_TRY(gt__optimizer_context(o->optimizers[i], "gt_step_create", &ctx));
        GT_REQUIRE(ctx == step->ctx, GT_BAD_DEVICE, "gt_step: optimizer %d belongs to another context", (int)i);
    }
    return GT_OK;
}

static gt_status build(gt_step *step) {
    gt_step_options *o = &step->options;
    gt_context *ctx = step->ctx;
    step->free_to_round = ctx->backend->kind == GT_DEVICE_CUDA && !ctx->options.deterministic;
    if (o->n_optimizers > 0) {
        GT_TRY(make_window(step, o));
        step->optimizers = gt__calloc((size_t)o->n_optimizers, sizeof *step->optimizers);
        if (step->optimizers == NULL) return GT_OUT_OF_HOST_MEMORY;
        memcpy(step->optimizers, o->optimizers, (size_t)o->n_optimizers * sizeof *step->optimizers);
        for (int32_t i = 0; i < o->n_optimizers; ++i) step->n_parameters += o->optimizers[i]->count;
    }
    const int64_t bytes = (int64_t)(sizeof(gt__step_cells) + (size_t)o->n_optimizers * sizeof(double));
    step->host_cells = gt__calloc(1, (size_t)bytes);
    if (step->host_cells == NULL) return GT_OUT_OF_HOST_MEMORY;
    step->host_cells->random[1] = UINT64_MAX; /* not what the device has */
    step->host_cells->one = 1;
    gt__meta meta;
    GT_TRY(gt__meta_make(&meta, GT_DTYPE_U8, 1, &bytes, "gt_step"));
    step->cells = gt__tensor_new_for(ctx, &meta, GT_MEMORY_OPTIMIZER, "compiled step");
    return step->cells ? gt__fill(step->cells, 0) : gt_last_error()->status;
}

gt_status gt_step_create(gt_context *ctx, const gt_step_options *options, gt_step **step) {
    return gt__step_create_with(ctx, options, NULL, step);
}

gt_status gt__step_create_with(gt_context *ctx, const gt_step_options *options, const gt__step_extension *extension, gt_step **step) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE(options != NULL && step != NULL, GT_BAD_ARGUMENT, "gt_step_create: %s is NULL", options ? "step" : "options");
    gt_step_options o = defaults;
    GT_TRY(gt__options_read(&o, sizeof o, options, "gt_step_options"));
    GT_TRY(check_options(ctx, &o));
    gt_step *made = gt__calloc(1, sizeof *made);
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    made->options = o;
    made->ctx = ctx;
    made->backend = ctx->backend;
    if (extension) made->extension = *extension;
    gt_status status = build(made);
    made->options.optimizers = NULL;
    made->options.schedule = NULL;
    if (status == GT_OK)
        *step = made;
    else
        gt_step_destroy(made);
    return status;
}

static void drop_plans(gt_step *step) {
    for (int32_t i = 0; i < step->n_plans; ++i) gt__plan_destroy(step, step->plans[i]);
    step->n_plans = 0;
    step->last = NULL;
}

void gt_step_destroy(gt_step *step) {
    if (step == NULL) return;
    drop_plans(step);
    if (step->extension.window == NULL) gt_window_destroy(step->window);
    for (int32_t i = 0; step->grads && i < step->n_parameters; ++i) gt_tensor_release(step->grads[i]);
    gt__free(step->grads);
    gt_tensor_release(step->arena);
    gt_tensor_release(step->cells);
    gt__free(step->host_cells);
    gt__free(step->optimizers);
    gt__times_free(&step->times);
    gt__free(step);
}

gt_tensor *gt__step_parameter(const gt_step *step, int32_t number) {
    int32_t i = 0;
    for (; number >= step->optimizers[i]->count; ++i) number -= step->optimizers[i]->count;
    return step->optimizers[i]->slots[number].parameter;
}

/* --- running ------------------------------------------------------------------------------------------------------------------------------ */

static gt_status check(const gt_step *step, const char *who) { return gt__tensor_check(step->cells, who); }

static gt_status check_inputs(const gt_step *step, gt_tensor *const *inputs, int32_t n, int32_t k) {
    GT_REQUIRE(n >= 1 && n <= GT_STEP_MAX_INPUTS && inputs != NULL, GT_BAD_ARGUMENT, "gt_step_run: %d inputs; there must be from 1 to %d",
               (int)n, GT_STEP_MAX_INPUTS);
    for (int32_t i = 0; i < n; ++i) {
        if (inputs[i] == NULL) return gt__error_null("gt_step_run", "an input", __FILE__, __LINE__);
        GT_TRY(gt__tensor_check(inputs[i], "gt_step_run"));
        GT_REQUIRE(inputs[i]->ctx == step->ctx, GT_BAD_DEVICE, "gt_step_run: input %d belongs to another context than the step", (int)i);
        char text[300];
        GT_REQUIRE(k == 1 || (inputs[i]->meta.ndim > 0 && inputs[i]->meta.shape[0] >= k), GT_BAD_SHAPE,
                   "gt_step_run: input %d, %s, cannot be cut into %d micro-batches along axis 0", (int)i,
                   gt__tensor_text(inputs[i], text, sizeof text), (int)k);
    }
    return GT_OK;
}

/* How an input lies in the program: as it is if it is dense. */
static gt__meta traced_meta(const gt_tensor *input) {
    gt__meta meta = input->meta;
    if (!gt__meta_is_dense(&meta)) gt__meta_set_row_major(&meta);
    return meta;
}

/* Where the window stands, and with it the gradients. */
static bool plan_begins_here(const gt_step *step, const gt__plan *plan) {
    const gt_window *w = step->window;
    if (w == NULL) return true;
    bool begins = !gt__window_is_open(w) || gt__window_done(w) == 0;
    if (plan->begins != begins || plan->of != gt__window_micro_batches(w)) return false;
    for (int32_t i = 0; i < step->n_parameters && !begins; ++i) {
        const gt_tensor *grad = gt__valid_grad(gt__step_parameter(step, i));
        if (plan->takes[i] != (grad ? grad->data : NULL)) return false;
    }
    return true;
}

static bool is_for(const gt_step *step, const gt__plan *plan, const gt__meta *metas, int32_t n) {
    bool training = step->options.module && gt_module_training(step->options.module);
    bool same = plan->n_inputs == n && plan->training == training;
    for (int32_t i = 0; i < n && same; ++i)
        same = plan->inputs[i].dtype == metas[i].dtype && gt__meta_same_layout(&plan->inputs[i], &metas[i]);
    return same;
}

static void drop_plan(gt_step *step, int32_t p) {
    if (step->last == step->plans[p]) step->last = NULL;
    gt__plan_destroy(step, step->plans[p]);
    step->plans[p] = step->plans[--step->n_plans];
}

static gt_status find_plan(gt_step *step, gt_tensor *const *inputs, int32_t n, int32_t micro_batches, bool ends, gt__plan **found) {
    gt__meta metas[GT_STEP_MAX_INPUTS];
    for (int32_t i = 0; i < n; ++i) metas[i] = traced_meta(inputs[i]);
    int32_t oldest = 0;
    for (int32_t p = 0; p < step->n_plans; ++p) {
        gt__plan *plan = step->plans[p];
        bool same = plan->micro_batches == micro_batches && plan->ends == ends && is_for(step, plan, metas, n);
        if (same && plan_begins_here(step, plan)) {
            *found = plan;
            return GT_OK;
        }
        if (plan->used < step->plans[oldest]->used) oldest = p;
    }
    gt__plan *made;
    GT_TRY(gt__plan_create(step, metas, n, micro_batches, ends, false, &made));
    if (step->n_plans == GT__PLANS) drop_plan(step, oldest);
    step->plans[step->n_plans++] = *found = made;
    return GT_OK;
}

/* Of a window that is open: whatever fails takes it back to its start. */
static gt_status run_part(gt_step *step, gt_tensor *const *inputs, int32_t n, int32_t micro_batches, bool ends) {
    gt__plan *plan;
    gt_status status = find_plan(step, inputs, n, micro_batches, ends, &plan);
    if (status == GT_OK) status = gt__plan_run(step, plan, inputs);
    if (status == GT_OK) return gt__window_advance(step->window, micro_batches, ends);
    gt_status back = gt_window_cancel(step->window);
    return back == GT_OK ? status : back;
}

gt_status gt__step_run(gt_step *step, gt_tensor *const *inputs, int32_t n_inputs, int32_t micro_batches, bool last) {
    gt_window *w = step->window;
    bool open = w && gt__window_is_open(w);
    GT_TRY(check(step, "gt_step_run"));
    GT_TRY(gt__trace_allowed(step->ctx, "gt_step_run"));
    GT_TRY(check_inputs(step, inputs, n_inputs, micro_batches));
    for (int32_t i = 0; i < step->options.n_optimizers && !open; ++i) GT_TRY(gt__optimizer_check_free(step->optimizers[i], "gt_step_run"));
    if (step->options.scaler && w && !open) GT_TRY(gt__scaler_check(step->options.scaler, "gt_step_run", true));
    bool ends = last || w == NULL || gt__window_done(w) + micro_batches >= gt__window_micro_batches(w);
    if (w && !open && !ends) GT_TRY(gt__window_open(w, "gt_step_run"));
    if (w && (open || !ends)) return run_part(step, inputs, n_inputs, micro_batches, ends);
    gt__plan *plan;
    GT_TRY(find_plan(step, inputs, n_inputs, micro_batches, ends, &plan));
    return gt__plan_run(step, plan, inputs);
}

/* As the plan for these inputs has it; without one, or where that is to be chosen again, as the memory budget wants it. *replaced: that one, if there is to be another. */
static gt_status choose_micro_batches(gt_step *step, gt_tensor *const *inputs, int32_t n, int32_t *micro_batches,
                                      const gt__plan **replaced) {
    GT_TRY(check(step, "gt_step_run"));
    GT_TRY(gt__trace_allowed(step->ctx, "gt_step_run"));
    GT_TRY(check_inputs(step, inputs, n, 1));
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) GT_TRY(gt__optimizer_check_free(step->optimizers[i], "gt_step_run"));
    gt__meta metas[GT_STEP_MAX_INPUTS];
    for (int32_t i = 0; i < n; ++i) metas[i] = traced_meta(inputs[i]);
    gt__plan *plan = NULL;
    bool outdated = false;
    for (int32_t p = 0; p < step->n_plans && plan == NULL; ++p)
        if (is_for(step, step->plans[p], metas, n)) plan = step->plans[p];
    if (plan) GT_TRY(gt__plan_outdated(step, plan, &outdated));
    if (plan && !outdated)
        *micro_batches = plan->micro_batches;
    else
        GT_TRY(gt__budget_micro_batches(step, metas, n, plan ? plan->micro_batches : 0, micro_batches));
    *replaced = plan && *micro_batches != plan->micro_batches ? plan : NULL;
    return step->window ? gt_window_set_micro_batches(step->window, *micro_batches) : GT_OK;
}

gt_status gt_step_run(gt_step *step, gt_tensor *const *inputs, int32_t n_inputs) {
    GT_REQUIRE_HANDLE(step);
    int32_t micro_batches = step->options.micro_batches;
    const gt__plan *replaced = NULL;
    if (micro_batches == 0) GT_TRY(choose_micro_batches(step, inputs, n_inputs, &micro_batches, &replaced));
    step->planning_again = replaced != NULL;
    gt_status status = gt__step_run(step, inputs, n_inputs, micro_batches, true);
    step->planning_again = false;
    for (int32_t p = 0; p < step->n_plans && replaced && status == GT_OK; ++p)
        if (step->plans[p] == replaced) drop_plan(step, p--);
    return status;
}

/* --- results -------------------------------------------------------------------------------------------------------------------------------- */

gt_tensor *gt_step_loss(const gt_step *step) { return step && step->last ? step->last->loss : NULL; }

gt_tensor *gt_step_output(const gt_step *step, int32_t index) {
    return step && step->last && index >= 0 && index < GT_STEP_MAX_OUTPUTS ? step->last->outputs[index] : NULL;
}

gt_status gt_step_get_state(gt_step *step, gt_window_state *state) {
    GT_REQUIRE_HANDLE(step);
    GT_REQUIRE(step->window != NULL, GT_BAD_STATE, "gt_step_get_state: the step has no optimizers");
    return gt_window_get_state(step->window, state);
}

gt_status gt_step_reset(gt_step *step) {
    GT_REQUIRE_HANDLE(step);
    GT_TRY(check(step, "gt_step_reset"));
    drop_plans(step);
    return GT_OK;
}

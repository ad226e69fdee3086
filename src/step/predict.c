/* What a step takes: of a plan that is there, and of inputs that are not, for which a plan is traced that never runs. */
#include "memory/report.h"
#include "step/budget.h"
#include "step/memory_plan.h"
#include "step/step.h"

static const gt_step_memory no_memory = {.struct_size = sizeof(gt_step_memory), .instruction = -1, .op = "", .module = "", .phase = ""};

gt_status gt_step_memory_init(gt_step_memory *memory, size_t size) {
    return gt__options_write(memory, size, &no_memory, sizeof no_memory, "gt_step_memory");
}

/* --- the arena, instruction by instruction --------------------------------------------------------------------------------------------------- */

static uint64_t grains(uint64_t bytes) { return (bytes + GT__ARENA_GRAIN - 1) / GT__ARENA_GRAIN * GT__ARENA_GRAIN; }

/* The last instruction during which nobody else may have an instruction's scratch memory, as gt__plan_place has it. */
static int32_t scratch_until(const gt__plan *plan, int32_t i) { return plan->aside && plan->aside[i] ? GT__MAX(plan->join, i) : i; }

gt_status gt__plan_live(const gt__plan *plan, uint64_t *live) {
    const gt__program *p = &plan->program;
    int64_t *change = gt__calloc((size_t)p->count + 2, sizeof *change), now = 0; /* lives may reach one beyond the end */
    if (change == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t b = 0; b < p->n_buffers; ++b) {
        if (p->buffers[b].first < 0) continue;
        change[p->buffers[b].first] += (int64_t)grains(p->buffers[b].bytes);
        change[p->buffers[b].last + 1] -= (int64_t)grains(p->buffers[b].bytes);
    }
    for (int32_t i = 0; i < p->count; ++i) {
        change[i] += (int64_t)grains(p->list[i].workspace);
        change[scratch_until(plan, i) + 1] -= (int64_t)grains(p->list[i].workspace);
        now += change[i];
        live[i] = (uint64_t)now;
    }
    gt__free(change);
    return GT_OK;
}

gt_status gt__plan_peak(const gt__plan *plan, int32_t *instruction, uint64_t *by_category) {
    const gt__program *p = &plan->program;
    *instruction = -1;
    memset(by_category, 0, GT_MEMORY_CATEGORY_COUNT * sizeof *by_category);
    if (p->count == 0) return GT_OK;
    uint64_t *live = gt__calloc((size_t)p->count, sizeof *live);
    if (live == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = gt__plan_live(plan, live);
    int32_t at = 0;
    for (int32_t i = 1; i < p->count; ++i)
        if (live[i] > live[at]) at = i;
    gt__free(live);
    GT_TRY(status);
    for (int32_t b = 0; b < p->n_buffers; ++b)
        if (p->buffers[b].first >= 0 && p->buffers[b].first <= at && p->buffers[b].last >= at)
            by_category[p->buffers[b].category] += grains(p->buffers[b].bytes);
    for (int32_t i = 0; i <= at; ++i)
        if (scratch_until(plan, i) >= at) by_category[GT_MEMORY_WORKSPACE] += grains(p->list[i].workspace);
    *instruction = at;
    return GT_OK;
}

static const char *phase_of(const gt__instruction *n) {
    static const char *const names[GT__PHASE_COUNT] = {"", "forward", "backward", "update"};
    return names[n->phase];
}

gt_status gt__plan_peak_text(const gt__plan *plan, gt__text *text) {
    int32_t at;
    uint64_t parts[GT_MEMORY_CATEGORY_COUNT], live = 0;
    char buffer[GT__BYTES_TEXT], who[256];
    GT_TRY(gt__plan_peak(plan, &at, parts));
    if (at < 0) return gt__text_add(text, "nothing");
    for (int32_t c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) live += parts[c];
    const gt__instruction *n = &plan->program.list[at];
    GT_TRY(gt__text_add(text, "%s at once at instruction %d, %s%s%s", gt__bytes_text(live, buffer), (int)at,
                        gt__report_who(gt__instruction_name(n), n->module, who, sizeof who), n->phase ? " in " : "", phase_of(n)));
    for (int32_t k = 0; live > 0; ++k) { /* the most first */
        int32_t most = 0;
        for (int32_t c = 1; c < GT_MEMORY_CATEGORY_COUNT; ++c)
            if (parts[c] > parts[most]) most = c;
        GT_TRY(gt__text_add(text, "%s%s %s", k ? ", " : " (", gt_memory_category_name(most), gt__bytes_text(parts[most], buffer)));
        live -= parts[most];
        parts[most] = 0;
        if (live == 0) GT_TRY(gt__text_add(text, ")"));
    }
    return GT_OK;
}

/* --- numbers ----------------------------------------------------------------------------------------------------------------------------------- */

/* All but what lies beside the arena. */
static gt_status arena_numbers(const gt__plan *plan, gt_step_memory *m) {
    const gt__program *p = &plan->program;
    *m = no_memory;
    m->workspace_known = plan->measured > 0;
    m->arena = plan->arena_bytes;
    m->micro_batches = plan->micro_batches;
    m->instructions = p->count;
    for (int32_t i = 0; i < p->count && plan->measured == 1; ++i) m->workspace = GT__MAX(m->workspace, grains(p->list[i].workspace));
    GT_TRY(gt__plan_peak(plan, &m->instruction, m->live_category));
    for (int32_t c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) m->live += m->live_category[c];
    m->micro_batch = m->live_category[GT_MEMORY_ACTIVATION] + m->live_category[GT_MEMORY_TEMPORARY] + m->live_category[GT_MEMORY_WORKSPACE];
    if (m->instruction < 0) return GT_OK;
    const gt__instruction *n = &p->list[m->instruction];
    m->op = gt__instruction_name(n);
    m->module = n->module ? n->module : "";
    m->phase = phase_of(n);
    return GT_OK;
}

static void add_up(gt_step_memory *m) {
    for (int32_t c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) m->fixed += m->fixed_category[c];
    m->peak = m->fixed + m->inputs + m->arena + m->workspace;
}

static uint64_t bytes_of(const gt_tensor *t) { return t ? grains(gt_tensor_bytes(t)) : 0; }

/* Of a plan that will not run: beside its arena there is what is in use now, and what a first run would make. */
static gt_status predicted_numbers(gt_step *step, const gt__plan *plan, gt_step_memory *m) {
    gt_memory_stats stats = {.struct_size = sizeof stats};
    const gt_tensor *arena = *gt__step_arena(step);
    GT_TRY(arena_numbers(plan, m));
    gt__allocator_stats(step->ctx->allocator, &stats);
    memcpy(m->fixed_category, stats.category_in_use, sizeof m->fixed_category);
    if (arena) m->fixed_category[GT_MEMORY_TEMPORARY] -= gt__block_bytes(arena->storage->block);
    m->fixed_category[GT_MEMORY_PARAMETER] += plan->halves;
    m->fixed_category[GT_MEMORY_USER] += bytes_of(plan->loss);
    for (int32_t i = 0; i < GT_STEP_MAX_OUTPUTS; ++i) m->fixed_category[GT_MEMORY_USER] += bytes_of(plan->outputs[i]);
    for (int32_t i = 0; i < plan->n_inputs; ++i)
        m->inputs += grains((uint64_t)plan->inputs[i].numel * gt_dtype_size(plan->inputs[i].dtype));
    add_up(m);
    return GT_OK;
}

/* Writes as much as the caller's struct has room for. */
static gt_status give(const gt_step_memory *m, gt_step_memory *theirs) {
    return gt__options_write(theirs, theirs->struct_size, m, sizeof *m, "gt_step_memory");
}

static gt_status check_struct(const gt_step_memory *memory) {
    gt_step_memory ours = no_memory;
    return gt__options_read(&ours, sizeof ours, memory, "gt_step_memory");
}

gt_status gt_step_get_memory(gt_step *step, gt_step_memory *memory) {
    GT_REQUIRE_HANDLE(step);
    GT_REQUIRE_HANDLE(memory);
    GT_TRY(gt__tensor_check(step->cells, "gt_step_get_memory"));
    GT_TRY(check_struct(memory));
    const gt__plan *plan = step->last;
    GT_REQUIRE(plan != NULL, GT_BAD_STATE, "gt_step_get_memory: the step has not run yet; gt_step_plan predicts");
    gt_step_memory m;
    GT_TRY(arena_numbers(plan, &m));
    for (int32_t c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) {
        m.fixed_category[c] = plan->beside[c] - plan->input_bytes[c];
        m.inputs += plan->input_bytes[c];
    }
    add_up(&m);
    return give(&m, memory);
}

/* --- a trace that leaves nothing behind -------------------------------------------------------------------------------------------------------- */

/* What a trace changes of a tensor of the caller's. */
typedef struct kept {
    gt_tensor *handle; /* counted */
    gt_tensor *grad;   /* taken from it */
    const gt__storage *storage;
    uint32_t version, half_version;
    uint8_t grad_valid;
} kept;

typedef struct kept_list {
    kept *list;
    int32_t count;
} kept_list;

/* Everything that is live, with the gradients taken away. */
static gt_status put_aside(gt_context *ctx, kept_list *k) {
    size_t n = 1;
    for (gt_tensor *t = ctx->live.live_next; t != &ctx->live; t = t->live_next) ++n;
    k->list = gt__calloc(n, sizeof *k->list);
    if (k->list == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (gt_tensor *t = ctx->live.live_next; t != &ctx->live; t = t->live_next) {
        if (t->storage == NULL) continue;
        const gt__storage *s = t->storage;
        k->list[k->count++] = (kept){gt_tensor_retain(t), t->grad, s, s->version, s->half_version, t->grad_valid};
        t->grad = NULL;
        t->grad_valid = 0;
    }
    return GT_OK;
}

/* Nothing has been computed since. */
static void put_back(gt_step *step, kept_list *k) {
    for (int32_t i = 0; i < k->count; ++i) {
        kept *e = &k->list[i];
        gt__storage *s = e->handle->storage;
        gt_tensor_release(e->handle->grad);
        e->handle->grad = e->grad;
        e->handle->grad_valid = e->grad_valid;
        if (s != e->storage) continue;
        s->version = e->version;
        s->half_version = e->half_version;
    }
    for (int32_t i = 0; i < k->count; ++i) gt_tensor_release(k->list[i].handle);
    for (int32_t i = 0; i < step->options.n_optimizers; ++i)
        for (int32_t s = 0; s < step->optimizers[i]->count; ++s)
            step->optimizers[i]->slots[s].master_version = step->optimizers[i]->slots[s].parameter->storage->version;
    gt__free(k->list);
}

gt_status gt__step_trace_aside(gt_step *step, const gt__meta *metas, int32_t n, int32_t micro_batches, gt__plan **plan) {
    kept_list k = {0};
    int32_t window = step->window ? gt__window_micro_batches(step->window) : micro_batches;
    GT_TRY(gt__step_freshen(step));
    if (step->window) GT_TRY(gt_window_set_micro_batches(step->window, micro_batches));
    gt_status status = put_aside(step->ctx, &k);
    if (status == GT_OK) status = gt__plan_create(step, metas, n, micro_batches, true, true, plan);
    put_back(step, &k);
    if (step->window) (void)gt_window_set_micro_batches(step->window, window);
    return status;
}

/* `micro_batches` 0: as many as the budget wants. */
static gt_status trace(gt_step *step, const gt__meta *metas, int32_t n, int32_t micro_batches, gt_step_memory *m) {
    gt__plan *plan = NULL;
    if (micro_batches == 0) GT_TRY(gt__budget_micro_batches(step, metas, n, 0, &micro_batches));
    GT_TRY(gt__step_trace_aside(step, metas, n, micro_batches, &plan));
    gt_status status = predicted_numbers(step, plan, m);
    gt__plan_destroy(step, plan);
    return status;
}

/* --- prediction -------------------------------------------------------------------------------------------------------------------------------- */

static gt_status meta_of(const gt_step_input *input, int64_t rows, int32_t number, gt__meta *meta) {
    GT_REQUIRE(input->ndim >= 0 && input->ndim <= GT_MAX_DIMS, GT_BAD_SHAPE, "gt_step_plan: input %d has ndim %d", (int)number,
               (int)input->ndim);
    int64_t shape[GT_MAX_DIMS];
    memcpy(shape, input->shape, sizeof shape);
    if (rows > 0) shape[0] = rows;
    GT_TRY(gt__meta_make(meta, input->dtype, input->ndim, shape, "gt_step_plan"));
    GT_REQUIRE(!input->channels_last || input->ndim == 4, GT_BAD_SHAPE, "gt_step_plan: input %d is channels-last, but of rank %d",
               (int)number, (int)input->ndim);
    if (input->channels_last) gt__meta_set_channels_last(meta);
    return GT_OK;
}

/* `rows` 0: as the inputs say. */
static gt_status predict(gt_step *step, const gt_step_input *inputs, int32_t n, int64_t rows, int32_t micro_batches, gt_step_memory *m) {
    gt__meta metas[GT_STEP_MAX_INPUTS];
    for (int32_t i = 0; i < n; ++i) {
        bool follows = rows > 0 && inputs[i].ndim > 0 && inputs[i].shape[0] == inputs[0].shape[0];
        GT_TRY(meta_of(&inputs[i], follows ? rows : 0, i, &metas[i]));
        char text[GT__SHAPE_TEXT];
        GT_REQUIRE(micro_batches <= 1 || (metas[i].ndim > 0 && metas[i].shape[0] >= micro_batches), GT_BAD_SHAPE,
                   "gt_step_plan: input %d, %s, cannot be cut into %d micro-batches along axis 0", (int)i,
                   gt__meta_text(text, sizeof text, &metas[i]), (int)micro_batches);
    }
    return trace(step, metas, n, micro_batches, m);
}

static gt_status check(gt_step *step, const gt_step_input *inputs, int32_t n, int32_t *micro_batches, const char *who) {
    GT_TRY(gt__tensor_check(step->cells, who));
    GT_TRY(gt__trace_allowed(step->ctx, who));
    GT_REQUIRE(n >= 1 && n <= GT_STEP_MAX_INPUTS && inputs != NULL, GT_BAD_ARGUMENT, "%s: %d inputs%s; there must be from 1 to %d", who,
               (int)n, inputs ? "" : " at NULL", GT_STEP_MAX_INPUTS);
    GT_REQUIRE(*micro_batches >= 0, GT_BAD_ARGUMENT, "%s: micro_batches is %d", who, (int)*micro_batches);
    if (*micro_batches == 0) *micro_batches = step->options.micro_batches;
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) GT_TRY(gt__optimizer_check_free(step->optimizers[i], who));
    return step->options.scaler && step->window ? gt__scaler_check(step->options.scaler, who, true) : GT_OK;
}

gt_status gt_step_plan(gt_step *step, const gt_step_input *inputs, int32_t n_inputs, int32_t micro_batches, gt_step_memory *memory) {
    GT_REQUIRE_HANDLE(step);
    GT_REQUIRE_HANDLE(memory);
    GT_TRY(check_struct(memory));
    GT_TRY(check(step, inputs, n_inputs, &micro_batches, "gt_step_plan"));
    gt_step_memory m;
    GT_TRY(predict(step, inputs, n_inputs, 0, micro_batches, &m));
    return give(&m, memory);
}

/* --- the largest batch -------------------------------------------------------------------------------------------------------------------------- */

static gt_status budget_of(gt_context *ctx, uint64_t *budget) {
    uint64_t unused;
    if (*budget == 0) *budget = gt__allocator_limit(ctx->allocator);
    return *budget ? GT_OK : ctx->backend->memory_info(ctx->device, &unused, budget);
}

static gt_status refuse(const gt_step_memory *m, uint64_t budget, int64_t rows) {
    char peak[GT__BYTES_TEXT], fixed[GT__BYTES_TEXT], live[GT__BYTES_TEXT], has[GT__BYTES_TEXT], who[256];
    GT_FAIL_HINT(GT_OUT_OF_MEMORY, "gt_module_set_checkpointing, half precision, or a larger budget",
                 "gt_step_largest_batch: %lld rows in each of %d micro-batches, the fewest that can be, take %s (%llu bytes), the budget "
                 "is %s; %s of "
                 "it is there whatever the batch, and %s is in use at once at %s",
                 (long long)rows, (int)m->micro_batches, gt__bytes_text(m->peak, peak), (unsigned long long)m->peak,
                 gt__bytes_text(budget, has), gt__bytes_text(m->fixed, fixed), gt__bytes_text(m->live, live),
                 gt__report_who(m->op, m->module, who, sizeof who));
}

/* More than the step's own budget allows is too much for any. */
static gt_status predict_rows(gt_step *step, const gt_step_input *inputs, int32_t n, int64_t rows, int32_t micro_batches,
                              gt_step_memory *m) {
    step->budget_least = 0;
    gt_status status = predict(step, inputs, n, rows, micro_batches, m);
    if (status != GT_OUT_OF_MEMORY || step->budget_least == 0) return status;
    *m = no_memory;
    m->peak = UINT64_MAX;
    return GT_OK;
}

gt_status gt_step_largest_batch(gt_step *step, const gt_step_input *inputs, int32_t n_inputs, int32_t micro_batches, uint64_t budget,
                                int64_t *rows, gt_step_memory *memory) {
    enum { MOST_DOUBLINGS = 50 };
    GT_REQUIRE_HANDLE(step);
    GT_REQUIRE_HANDLE(rows);
    if (memory) GT_TRY(check_struct(memory));
    GT_TRY(check(step, inputs, n_inputs, &micro_batches, "gt_step_largest_batch"));
    if (micro_batches == 0) micro_batches = 1;
    GT_REQUIRE(inputs[0].ndim > 0, GT_BAD_SHAPE, "gt_step_largest_batch: the first input is a scalar; it has no rows");
    GT_TRY(budget_of(step->ctx, &budget));
    gt_step_memory m, best = no_memory, least = no_memory;
    int64_t low = 0, high = GT__MAX(inputs[0].shape[0] / micro_batches, 1); /* rows of a micro-batch: too many, after this loop */
    for (int32_t i = 0;; ++i, high *= 2) {
        GT_TRY(predict_rows(step, inputs, n_inputs, high * micro_batches, micro_batches, &m));
        if (m.peak > budget) break;
        low = high;
        best = m;
        GT_REQUIRE(i < MOST_DOUBLINGS && high < INT64_MAX / 4 / micro_batches, GT_BAD_ARGUMENT,
                   "gt_step_largest_batch: %lld rows take no more memory than a few", (long long)(high * micro_batches));
    }
    least = m;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        gt_status status = predict_rows(step, inputs, n_inputs, middle * micro_batches, micro_batches, &m);
        if (status == GT_BAD_BATCH || status == GT_BAD_SHAPE) { /* too few to be trained on */
            low = middle;
            continue;
        }
        GT_TRY(status);
        if (m.peak > budget) {
            high = middle;
            least = m;
        } else {
            low = middle;
            best = m;
        }
    }
    gt_clear_error();
    if (best.instruction < 0 && least.peak == UINT64_MAX) return predict(step, inputs, n_inputs, high * micro_batches, micro_batches, &m);
    if (best.instruction < 0) return refuse(&least, budget, high);
    *rows = low * micro_batches;
    return memory ? give(&best, memory) : GT_OK;
}

/* Plans: a traced program, rewritten by the passes, with its memory in places. */
#include "step/branches.h"
#include "step/budget.h"
#include "step/memory_plan.h"
#include "step/passes.h"
#include "step/step.h"

/* --- places -------------------------------------------------------------------------------------------------------------------------------------- */

typedef struct joining {
    gt__program *program;
    int32_t join;
} joining;

static void lives_until(void *user, const gt__access *access) {
    const joining *j = user;
    int32_t b = gt__program_buffer(j->program, access->pointer);
    if (b >= 0) j->program->buffers[b].last = GT__MAX(j->program->buffers[b].last, j->join);
}

/* What a branch touches nobody else may have before it has ended. */
static void live_until_join(gt__plan *plan) {
    joining j = {&plan->program, plan->join};
    for (int32_t i = 0; i < plan->program.count; ++i)
        if (plan->aside[i]) gt__instruction_visit(&plan->program.list[i], lives_until, &j);
}

gt_status gt__plan_place(gt__plan *plan) {
    gt__program *p = &plan->program;
    size_t n = (size_t)p->n_buffers + (size_t)p->count;
    gt__life *lives = gt__calloc(n, sizeof *lives);
    if (lives == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__program_lives(p);
    if (plan->aside) live_until_join(plan);
    for (int32_t b = 0; b < p->n_buffers; ++b)
        if (p->buffers[b].first >= 0) lives[b] = (gt__life){p->buffers[b].bytes, p->buffers[b].first, p->buffers[b].last};
    for (int32_t i = 0; i < p->count; ++i)
        lives[p->n_buffers + i] = (gt__life){p->list[i].workspace, i, plan->aside && plan->aside[i] ? plan->join : i};
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

/* Also with the context gone. */
static void empty(gt_step *step, gt__plan *plan) {
    gt_context *ctx = step->cells->ctx;
    if (plan->graph) {
        int32_t previous = ctx ? gt__enter(ctx) : -1;
        step->backend->graph_destroy(ctx ? ctx->device : NULL, plan->graph);
        if (ctx) gt__leave(ctx, previous);
    }
    for (int32_t i = 0; plan->bound_list && i < plan->program.count; ++i) gt__instruction_free(&plan->bound_list[i]);
    gt__free(plan->bound_list);
    gt_tensor_release(plan->loss);
    for (int32_t i = 0; i < GT_STEP_MAX_OUTPUTS; ++i) gt_tensor_release(plan->outputs[i]);
    gt__outside_free(plan->outside, plan->n_outside);
    for (int32_t i = 0; i < plan->n_watched; ++i) {
        gt_tensor_release(plan->watched[i].handle);
        gt_tensor_release(plan->watched[i].half);
    }
    gt__free(plan->watched);
    gt__plan_drop_host(step, plan);
    gt__program_free(&plan->program);
    gt__program_free(&plan->traced);
    gt__free(plan->offsets);
    for (int32_t i = 0; plan->leaves && i < step->n_parameters; ++i) gt_tensor_release(plan->leaves[i]);
    gt__free(plan->leaves);
    gt__free(plan->takes);
    gt__free(plan->aside);
    gt__free(plan->updated);
    gt__free(plan->budget_text);
    gt__free(plan->counters);
}

void gt__plan_destroy(gt_step *step, gt__plan *plan) {
    if (plan == NULL) return;
    empty(step, plan);
    gt__free(plan);
}

gt_status gt__plan_order(gt__plan *plan) {
    GT_TRY(gt__pass_inplace(&plan->program)); /* the order counts with it */
    GT_TRY(gt__pass_order(&plan->program));
    return gt__pass_inplace(&plan->program); /* what the order has made possible */
}

gt_status gt__plan_finish(gt__plan *plan) {
    GT_TRY(gt__plan_order(plan));
    return gt__plan_place(plan);
}

/* Whether the arena, which takes `alone` bytes without a branch, may be as it is. */
static bool branch_fits(const gt_step *step, const gt__plan *plan, size_t alone) {
    const size_t little = (size_t)64 << 20;
    uint64_t budget = step->options.memory_budget;
    bool fits = budget == 0 || plan->arena_bytes <= alone || plan->fixed + plan->arena_bytes <= budget;
    return fits && (plan->arena_bytes <= little || plan->arena_bytes <= alone + alone / 16);
}

/* What may run on the branch as early as it may; back again where that takes too much memory. */
static gt_status branch_early(gt_step *step, gt__plan *plan, size_t alone) {
    size_t n = (size_t)plan->program.count;
    int32_t *order = gt__calloc(2 * n, sizeof *order), *back = order + n;
    if (order == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = gt__branch_order(&plan->program, order);
    for (size_t i = 0; i < n; ++i) back[order[i]] = (int32_t)i;
    if (status == GT_OK) status = gt__program_reorder(&plan->program, order);
    if (status == GT_OK) status = gt__find_branches(&plan->program, plan->aside, &plan->join);
    if (status == GT_OK) status = gt__plan_place(plan);
    if (status == GT_OK && !branch_fits(step, plan, alone)) status = gt__program_reorder(&plan->program, back);
    gt__free(order);
    return status;
}

/* Where the branch costs next to no memory. What is on the host for a while has a branch of its own. */
static gt_status make_branches(gt_step *step, gt__plan *plan) {
    if (step->ctx->backend->capture_branch == NULL || plan->host.bytes > 0) return GT_OK;
    size_t alone = plan->arena_bytes;
    plan->aside = gt__calloc((size_t)plan->program.count + 1, 1);
    if (plan->aside == NULL) return GT_OUT_OF_HOST_MEMORY;
    GT_TRY(branch_early(step, plan, alone));
    GT_TRY(gt__find_branches(&plan->program, plan->aside, &plan->join));
    GT_TRY(gt__plan_place(plan));
    if (branch_fits(step, plan, alone)) return GT_OK;
    gt__free(plan->aside);
    plan->aside = NULL;
    return gt__plan_place(plan);
}

/* In a deterministic context on a GPU, where sums would be taken in another order, only if it is asked for. */
static bool chains(const gt_step *step) {
    int32_t fuse = step->options.fuse_elementwise;
    return fuse > 0 || (fuse == 0 && (step->ctx->backend->kind == GT_DEVICE_CPU || step->free_to_round));
}

static gt_status build(gt_step *step, gt__plan *plan, const gt__meta *inputs, int32_t n_inputs, int32_t micro_batches, bool ends,
                       bool predicted) {
    uint64_t halves = 0;
    bool again = true, begins = step->window == NULL || !gt__window_is_open(step->window) || gt__window_done(step->window) == 0;
    for (int32_t tries = 0; again; ++tries) {
        if (tries > 0) empty(step, plan);
        *plan = (gt__plan){.n_inputs = n_inputs,
                           .micro_batches = micro_batches,
                           .of = step->window ? gt__window_micro_batches(step->window) : micro_batches,
                           .begins = begins,
                           .ends = ends,
                           .training = step->options.module && gt_module_training(step->options.module),
                           .predicted = predicted,
                           .halves = halves};
        GT_REQUIRE(tries < 3, GT_INTERNAL, "gt_step: weights' half copies are made anew by every trace");
        memcpy(plan->inputs, inputs, (size_t)n_inputs * sizeof *inputs);
        GT_TRY(gt__plan_trace(step, plan, &again));
        halves = plan->halves;
    }
    GT_TRY(gt__pass_inputs(&plan->program, plan->inputs, plan->input_buffers, n_inputs));
    GT_TRY(gt__pass_seed(&plan->program, &gt__step_cells_of(step)->one));
    GT_TRY(gt__pass_loss(&plan->program));
    /* These round otherwise than the calls do one by one. */
    bool free_to_round = step->free_to_round;
    if (free_to_round) GT_TRY(gt__pass_pool(&plan->program));
    if (free_to_round) GT_TRY(gt__pass_first_conv(&plan->program));
    if (free_to_round) GT_TRY(gt__pass_norm_add(&plan->program));
    GT_TRY(gt__pass_copies(&plan->program));
    if (free_to_round) GT_TRY(gt__pass_head(&plan->program)); /* sums for biases are in their places now */
    GT_TRY(gt__pass_dead(&plan->program));
    if (chains(step)) GT_TRY(gt__pass_chains(&plan->program, step->ctx->device));
    if (step->options.memory_budget == 0) {
        GT_TRY(gt__plan_finish(plan));
    } else {
        if (!predicted) GT_TRY(gt__program_copy(&plan->program, &plan->traced));
        GT_TRY(gt__plan_budget(step, plan));
        plan->modelled &= !step->planning_again;
    }
    return make_branches(step, plan);
}

gt_status gt__plan_create(gt_step *step, const gt__meta *inputs, int32_t n_inputs, int32_t micro_batches, bool ends, bool predicted,
                          gt__plan **result) {
    gt__plan *plan = gt__calloc(1, sizeof *plan);
    if (plan == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = build(step, plan, inputs, n_inputs, micro_batches, ends, predicted);
    if (predicted) gt__drop_phantom_half_copies(step->ctx);
    if (status == GT_OK)
        *result = plan;
    else
        gt__plan_destroy(step, plan);
    return status;
}

/* --- once more, when more is known ----------------------------------------------------------------------------------------------------------------- */

/* A graph has scratch memory in the arena. */
static gt_status fits_with_scratch(const gt_step *step, const gt__plan *plan, bool *fits) {
    gt__plan trial = *plan;
    gt_status status = GT_OK;
    trial.offsets = NULL;
    if (step->ctx->backend->capture_begin) status = gt__plan_place(&trial);
    *fits = trial.fixed + trial.arena_bytes <= step->options.memory_budget;
    gt__free(trial.offsets);
    return status;
}

gt_status gt__plan_outdated(const gt_step *step, gt__plan *plan, bool *outdated) {
    *outdated = false;
    if (step->options.memory_budget == 0 || plan->settled || plan->graph || plan->warm < 2) return GT_OK;
    bool fastest = plan->kept_all && (step->options.micro_batches > 0 || plan->micro_batches == 1); /* whatever the times are */
    *outdated = plan->modelled && !fastest;
    if (!*outdated) {
        bool fits;
        GT_TRY(fits_with_scratch(step, plan, &fits));
        *outdated = !fits;
    }
    plan->settled = !*outdated;
    return GT_OK;
}

static bool same_program(const gt__program *a, const gt__program *b) {
    bool same = a->count == b->count && a->n_buffers == b->n_buffers;
    for (int32_t i = 0; i < a->count && same; ++i) same = gt__does_same(&a->list[i], &b->list[i]) && a->list[i].module == b->list[i].module;
    return same;
}

static bool scratch_is_known(const gt_step *step, const gt__program *p) {
    for (int32_t i = 0; i < p->count; ++i) {
        const gt__seen *seen = gt__times_find(&step->times, &p->list[i]);
        if (seen == NULL || !seen->workspace_known) return false;
    }
    return true;
}

/* Another program has to run once before a graph is made of it, and twice if it has kernels that never ran. */
static void replace(gt_step *step, gt__plan *plan, gt__plan *next) {
    bool captures = step->ctx->backend->capture_begin != NULL;
    gt__plan_unbind(step, plan);
    plan->warm = !captures || !scratch_is_known(step, &next->program) ? 0 : same_program(&plan->program, &next->program) ? 2 : 1;
    plan->measured = plan->warm > 0;
    gt__plan_drop_host(step, plan);
    gt__program_free(&plan->program);
    gt__free(plan->offsets);
    gt__free(plan->aside);
    gt__free(plan->budget_text);
    plan->host = next->host;
    plan->program = next->program;
    plan->offsets = next->offsets;
    plan->aside = next->aside;
    plan->join = next->join;
    plan->arena_bytes = next->arena_bytes;
    plan->bound = next->bound;
    plan->seconds = next->seconds;
    plan->whole_seconds = next->whole_seconds;
    plan->kept_all = next->kept_all;
    plan->budget_text = next->budget_text;
    plan->modelled = false;
    plan->settled = !captures;
}

/* Where this leads to kernels that never ran, and these to a larger arena, it is done again: each time more is known, and times stay as they were seen first. */
gt_status gt__plan_again(gt_step *step, gt__plan *plan) {
    bool outdated;
    GT_TRY(gt__plan_outdated(step, plan, &outdated));
    if (!outdated) return GT_OK;
    gt__plan next = {.micro_batches = plan->micro_batches};
    gt_status status = gt__program_copy(&plan->traced, &next.program);
    if (status == GT_OK) status = gt__plan_budget(step, &next);
    if (status == GT_OK) status = make_branches(step, &next);
    if (status == GT_OK) {
        replace(step, plan, &next);
        return GT_OK;
    }
    empty(step, &next);
    bool fits = false;
    if (status == GT_OUT_OF_MEMORY) GT_TRY(fits_with_scratch(step, plan, &fits));
    if (!fits) return status;
    gt_clear_error(); /* the plans that were found this time are larger */
    plan->modelled = false;
    plan->settled = true;
    return GT_OK;
}

/* The cost model, the choice of a plan within the budget, and what there is to say about it. */
#include "step/budget.h"

#include "core/op_cost.h"
#include "memory/report.h"
#include "profile/profile.h"
#include "step/passes.h"

#include <stdio.h>
#include <stdlib.h>

/* --- the cost model ------------------------------------------------------------------------------------------------------------------------ */

typedef struct rates {
    double bytes, flops, half_flops; /* a second */
    double launch;                   /* seconds */
} rates;

/* Of an H200 and of a desktop's CPU, in round numbers: only what they are to each other decides. */
static const rates cuda_rates = {3.5e12, 4e13, 6e14, 2e-6}, cpu_rates = {2e10, 2e11, 1e11, 1e-6};

static rates rates_of(const gt_context *ctx) {
    rates r = ctx->backend->kind == GT_DEVICE_CUDA ? cuda_rates : cpu_rates;
    const gt__profiled *d = ctx->profiler ? gt__profiled_of_hooks(ctx->profiler) : NULL;
    if (d == NULL || !d->measured) return r;
    if (d->ceilings.bytes_per_second > 0) r.bytes = d->ceilings.bytes_per_second;
    if (d->ceilings.f32_flops_per_second > 0) r.flops = d->ceilings.f32_flops_per_second;
    if (d->ceilings.f16_flops_per_second > 0) r.half_flops = d->ceilings.f16_flops_per_second;
    return r;
}

static void add_access(void *user, const gt__access *access) {
    uint64_t *bytes = user;
    *bytes += access->bytes * (uint64_t)(access->reads + access->writes);
}

static double seconds_of(const rates *r, const gt__instruction *n) {
    gt__cost cost = {0};
    bool half = false;
    switch (n->kind) {
    case GT__DO_CALL: {
        const gt__call *call = &n->call->call;
        gt__op_cost(call, &cost);
        for (int32_t k = 0; k < call->n_in; ++k) half |= call->in[k] && gt__dtype_is_half(call->in[k]->meta.dtype);
        break;
    }
    case GT__DO_CHAIN:
        gt__chain_cost(n->chain, &cost);
        break;
    case GT__DO_UPDATE:
        gt__update_cost(&n->update.rule, n->update.list, n->update.count, n->update.control != NULL, &cost);
        break;
    default:
        gt__instruction_visit((gt__instruction *)(uintptr_t)n, add_access, &cost.bytes); /* which changes nothing of itself */
        break;
    }
    double move = (double)cost.bytes / r->bytes, compute = cost.matrix ? (double)cost.flops / (half ? r->half_flops : r->flops) : 0;
    return GT__MAX(move, compute) + r->launch;
}

void gt__budget_seconds(const gt_context *ctx, const gt__program *program, double *seconds) {
    const rates r = rates_of(ctx);
    for (int32_t i = 0; i < program->count; ++i) seconds[i] = seconds_of(&r, &program->list[i]);
}

/* --- memory outside the arena -------------------------------------------------------------------------------------------------------------- */

static uint64_t grains(uint64_t bytes) { return (bytes + GT__ARENA_GRAIN - 1) / GT__ARENA_GRAIN * GT__ARENA_GRAIN; }

static uint64_t fixed_of(const gt__flow *flow, int32_t n_buffers) {
    uint64_t total = 0;
    for (int32_t area = n_buffers; area < flow->n_areas; ++area) {
        uintptr_t begin = UINTPTR_MAX, end = 0;
        for (int32_t k = 0; k < gt__flow_count(flow, area); ++k) {
            begin = GT__MIN(begin, gt__touch_begin(gt__flow_touch(flow, area, k)));
            end = GT__MAX(end, gt__touch_end(gt__flow_touch(flow, area, k)));
        }
        if (end > begin) total += grains(end - begin);
    }
    return total;
}

gt_status gt__budget_fixed(gt__program *program, uint64_t *bytes) {
    gt__flow flow;
    GT_TRY(gt__flow_make(program, &flow));
    *bytes = fixed_of(&flow, program->n_buffers);
    gt__flow_free(&flow);
    return GT_OK;
}

/* --- what was chosen ----------------------------------------------------------------------------------------------------------------------- */

typedef struct chosen {
    gt_step *step;
    gt__plan *plan;
    gt__budget_plans plans;
    double *seconds;
    double total; /* seconds of the program, with all kept */
    size_t whole; /* bytes of the arena, with all kept */
    size_t room;  /* that there is for it */
    int32_t number;
    gt__plan made; /* program and places of the plan with that number */
} chosen;

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/* "layer1" of "layer1.0.conv1". */
static int32_t head_of(const char *path) { return (int32_t)strcspn(path, "."); }

static const char *module_of(const chosen *c, int32_t instruction) {
    const char *module = c->plan->program.list[instruction].module;
    return module ? module : "";
}

typedef struct part {
    int32_t buffers;
    uint64_t bytes;
    double seconds;
} part;

/* Of what is done again in modules that begin with this name. */
static part part_of(const chosen *c, const char *name, int32_t length, bool all) {
    const gt__recompute *r = &c->plans.r;
    const bool *keep = c->plans.list[c->number].keep;
    part p = {0};
    for (int32_t b = 0; b < r->program->n_buffers; ++b) {
        if (r->writer[b] < 0 || keep[b] || !r->needed[b]) continue;
        const char *module = module_of(c, r->writer[b]);
        if (!all && (head_of(module) != length || strncmp(module, name, (size_t)length) != 0)) continue;
        p.buffers++;
        p.bytes += grains(r->program->buffers[b].bytes);
    }
    for (int32_t i = 0; i < r->program->count; ++i) {
        if (!c->plans.s.done[i]) continue;
        const char *module = module_of(c, i);
        if (all || (head_of(module) == length && strncmp(module, name, (size_t)length) == 0)) p.seconds += c->seconds[i];
    }
    return p;
}

static gt_status add_parts(const chosen *c, gt__text *text) {
    char bytes[GT__BYTES_TEXT];
    for (int32_t i = 0; i < c->plan->program.count; ++i) {
        if (!c->plans.s.done[i]) continue;
        const char *name = module_of(c, i);
        int32_t length = head_of(name);
        bool seen = false;
        for (int32_t k = 0; k < i && !seen; ++k)
            seen = c->plans.s.done[k] && head_of(module_of(c, k)) == length && strncmp(module_of(c, k), name, (size_t)length) == 0;
        if (seen) continue;
        const part p = part_of(c, name, length, false);
        GT_TRY(gt__text_add(text, "  %.*s: %d results, %s, %.2f %% more time\n", length > 0 ? length : 17,
                            length > 0 ? name : "(outside modules)", (int)p.buffers, gt__bytes_text(p.bytes, bytes),
                            percent(p.seconds, c->total)));
    }
    return GT_OK;
}

/* What more micro-batches alone have changed. */
static gt_status add_micro_batches(const chosen *c, gt__text *text) {
    const gt_step *step = c->step;
    char bytes[GT__BYTES_TEXT];
    GT_TRY(gt__text_add(text, "micro-batches: %d", (int)c->plan->micro_batches));
    if (step->options.micro_batches == 0 && c->plan->micro_batches > 1 && step->whole_batch_seconds > 0)
        GT_TRY(gt__text_add(text, ", chosen: with all kept the arena is %s less than with one, for %.2f %% more time",
                            gt__bytes_text(step->whole_batch_arena > c->whole ? step->whole_batch_arena - c->whole : 0, bytes),
                            percent(c->total - step->whole_batch_seconds, step->whole_batch_seconds)));
    return gt__text_add(text, "\n");
}

static gt_status say(const chosen *c, gt__text *text) {
    size_t arena = c->made.arena_bytes;
    char budget[GT__BYTES_TEXT], fixed[GT__BYTES_TEXT], takes[GT__BYTES_TEXT], whole[GT__BYTES_TEXT], less[GT__BYTES_TEXT];
    GT_TRY(gt__text_add(text, "memory budget %s: weights, optimizer state and results %s, arena %s (%s with all kept)\n",
                        gt__bytes_text(c->step->options.memory_budget, budget), gt__bytes_text(c->plan->fixed, fixed),
                        gt__bytes_text(arena, takes), gt__bytes_text(c->whole, whole)));
    GT_TRY(add_micro_batches(c, text));
    if (c->number == 0) return gt__text_add(text, "recompute: nothing\n");
    const part all = part_of(c, "", 0, true);
    GT_TRY(gt__text_add(text, "recompute %d buffers of %s that forward makes for backward: the arena is %s less, for %.2f %% more time\n",
                        (int)all.buffers, gt__bytes_text(all.bytes, budget), gt__bytes_text(c->whole > arena ? c->whole - arena : 0, less),
                        percent(c->plans.list[c->number].seconds, c->total)));
    return add_parts(c, text);
}

/* Every line of its own; those of modules for who wants to know more. */
static void log_lines(gt_context *ctx, const char *text) {
    for (; *text; text += strcspn(text, "\n") + 1)
        gt__log(ctx, *text == ' ' ? GT_LOG_DEBUG : GT_LOG_INFO, "gt_step: %.*s", (int)strcspn(text, "\n"), text);
}

static gt_status keep_text(chosen *c) {
    gt__text text = {0};
    gt_status status = say(c, &text);
    if (status == GT_OK) {
        c->plan->budget_text = text.data;
        if (!c->plan->predicted) log_lines(c->step->ctx, text.data);
    } else {
        gt__text_free(&text);
    }
    return status;
}

/* --- the choice ---------------------------------------------------------------------------------------------------------------------------- */

static gt_status copy_program(const gt__program *from, gt__program *to) {
    *to = (gt__program){.cap_buffers = from->n_buffers, .capacity = from->count + 1};
    to->buffers = gt__malloc(((size_t)from->n_buffers + 1) * sizeof *to->buffers);
    to->list = gt__malloc((size_t)to->capacity * sizeof *to->list);
    if (to->buffers == NULL || to->list == NULL) return GT_OUT_OF_HOST_MEMORY;
    to->n_buffers = from->n_buffers;
    memcpy(to->buffers, from->buffers, (size_t)from->n_buffers * sizeof *to->buffers);
    for (; to->count < from->count; ++to->count) GT_TRY(gt__instruction_copy(&from->list[to->count], &to->list[to->count]));
    return GT_OK;
}

static void drop_made(chosen *c) {
    gt__program_free(&c->made.program);
    gt__free(c->made.offsets);
    c->made = (gt__plan){0};
}

/* keep NULL: all is kept. */
static gt_status make(chosen *c, const bool *keep) {
    drop_made(c);
    GT_TRY(copy_program(&c->plan->program, &c->made.program));
    if (keep) GT_TRY(gt__pass_recompute(&c->made.program, keep));
    return gt__plan_finish(&c->made);
}

/* The fastest that has room; number -1: none. Passes that come later make programs smaller, by about as much as they do where all is kept; plans that cannot have room are
 * passed over, but the smallest is always made. So with more room none is passed over that was not with less. */
static gt_status find(chosen *c) {
    const gt__budget_plans *p = &c->plans;
    double shrinks = (double)c->whole / (double)GT__MAX(p->list[0].bound, 1);
    size_t least = p->list[0].bound;
    for (int32_t k = 1; k < p->count; ++k) least = GT__MIN(least, p->list[k].bound);
    size_t smallest = c->whole;
    int32_t number = 0, last = 0;
    for (int32_t k = 1; k < p->count; ++k) {
        if (p->list[k].bound > least && (double)p->list[k].bound * shrinks > 1.1 * (double)c->room) continue;
        GT_TRY(make(c, p->list[k].keep));
        c->number = last = k;
        if (c->made.arena_bytes <= c->room) return GT_OK;
        if (c->made.arena_bytes >= smallest) continue;
        smallest = c->made.arena_bytes;
        number = k;
    }
    c->number = -1;
    return last == number && number > 0 ? GT_OK : make(c, number > 0 ? p->list[number].keep : NULL);
}

/* What was made is the smallest. */
static gt_status refuse(chosen *c) {
    gt_step *step = c->step;
    char budget[GT__BYTES_TEXT], would[GT__BYTES_TEXT], fixed[GT__BYTES_TEXT], arena[GT__BYTES_TEXT], scratch[GT__BYTES_TEXT],
        room[80] = "";
    gt__text text = {0};
    gt_status status = gt__plan_peak_text(&c->made, &text);
    if (status != GT_OK) {
        gt__text_free(&text);
        return status;
    }
    step->budget_least = c->plan->fixed + step->budget_scratch + c->made.arena_bytes;
    if (step->budget_scratch > 0)
        (void)snprintf(room, sizeof room, ", %s are left for kernels' scratch memory", gt__bytes_text(step->budget_scratch, scratch));
    status = GT_RAISE_HINT(GT_OUT_OF_MEMORY,
                           step->options.micro_batches == 0
                               ? "a larger budget, half precision, or a smaller batch"
                               : "a larger budget, more micro-batches (0 lets the budget choose), half precision, or a smaller batch",
                           "gt_step: the memory budget is %s (%llu bytes); the smallest that would do with micro_batches %d is %s (%llu "
                           "bytes): %s are weights, "
                           "optimizer state and results%s, and the arena takes %s: %s",
                           gt__bytes_text(step->options.memory_budget, budget), (unsigned long long)step->options.memory_budget,
                           (int)c->plan->micro_batches, gt__bytes_text(step->budget_least, would), (unsigned long long)step->budget_least,
                           gt__bytes_text(c->plan->fixed, fixed), room, gt__bytes_text(c->made.arena_bytes, arena), text.data);
    gt__text_free(&text);
    return status;
}

/* The plan takes over what was made. */
static void take(chosen *c) {
    gt__plan *plan = c->plan;
    gt__program_free(&plan->program);
    gt__free(plan->offsets);
    plan->program = c->made.program;
    plan->offsets = c->made.offsets;
    plan->arena_bytes = c->made.arena_bytes;
    plan->bound = c->made.bound;
    if (c->number > 0) plan->seconds += c->plans.list[c->number].seconds;
    c->made = (gt__plan){0};
}

static gt_status choose(chosen *c) {
    GT_TRY(make(c, NULL));
    c->whole = c->made.arena_bytes;
    if (c->plan->micro_batches == 1) {
        c->step->whole_batch_seconds = c->total;
        c->step->whole_batch_arena = c->whole;
    }
    if (c->whole > c->room) {
        GT_TRY(gt__budget_plans_make(&c->plan->program, c->seconds, &c->plans));
        GT_TRY(find(c));
        if (c->number < 0) return refuse(c);
        gt__schedule_fill(&c->plans.r, c->plans.list[c->number].keep, c->seconds, &c->plans.s);
    }
    GT_TRY(keep_text(c));
    return GT_OK;
}

gt_status gt__plan_budget(gt_step *step, gt__plan *plan) {
    chosen c = {.step = step, .plan = plan};
    step->budget_least = 0;
    GT_TRY(gt__budget_fixed(&plan->program, &plan->fixed));
    uint64_t budget = step->options.memory_budget, taken = plan->fixed + step->budget_scratch;
    c.room = budget > taken ? (size_t)(budget - taken) : 0;
    c.seconds = gt__malloc(((size_t)plan->program.count + 1) * sizeof *c.seconds);
    if (c.seconds == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__budget_seconds(step->ctx, &plan->program, c.seconds);
    for (int32_t i = 0; i < plan->program.count; ++i) c.total += c.seconds[i];
    plan->seconds = plan->whole_seconds = c.total;
    gt_status status = choose(&c);
    if (status == GT_OK) take(&c);
    gt__budget_plans_free(&c.plans);
    drop_made(&c);
    gt__free(c.seconds);
    return status;
}

/* --- micro-batches ------------------------------------------------------------------------------------------------------------------------- */

/* Each number that there may be is tried whatever the budget is, so that a larger one never takes more time. */
gt_status gt__budget_micro_batches(gt_step *step, const gt__meta *inputs, int32_t n_inputs, int32_t *micro_batches) {
    enum { MOST = 16 };
    double best = 0;
    uint64_t least = UINT64_MAX;
    int32_t found = 0, smallest = 1;
    int64_t rows = INT64_MAX;
    for (int32_t i = 0; i < n_inputs; ++i) rows = GT__MIN(rows, inputs[i].ndim > 0 ? inputs[i].shape[0] : 1);
    for (int32_t k = 1; k <= MOST && (k == 1 || k <= rows); k *= 2) {
        gt__plan *plan = NULL;
        step->budget_least = 0;
        gt_status status = gt__step_trace_aside(step, inputs, n_inputs, k, &plan);
        if (status == GT_OUT_OF_MEMORY && step->budget_least > 0) {
            if (step->budget_least < least) smallest = k;
            least = GT__MIN(least, step->budget_least);
            continue;
        }
        bool too_few = k > 1 && (status == GT_BAD_BATCH || status == GT_BAD_SHAPE);
        if (too_few) break;
        GT_TRY(status);
        double seconds = plan->seconds;
        gt__plan_destroy(step, plan);
        if (found > 0 && seconds >= best) continue;
        best = seconds;
        found = k;
    }
    gt_clear_error();
    *micro_batches = found > 0 ? found : smallest; /* whose trace says what is in the way */
    return GT_OK;
}

/* --- public -------------------------------------------------------------------------------------------------------------------------------- */

gt_status gt_step_budget_text(gt_step *step, char *buffer, size_t size, size_t *needed) {
    GT_REQUIRE_HANDLE(step);
    GT_REQUIRE(buffer != NULL || size == 0, GT_BAD_ARGUMENT, "gt_step_budget_text: the buffer is NULL and its size %zu", size);
    GT_TRY(gt__tensor_check(step->cells, "gt_step_budget_text"));
    GT_REQUIRE(step->options.memory_budget > 0, GT_BAD_STATE, "gt_step_budget_text: the step has no option memory_budget");
    GT_REQUIRE(step->last != NULL, GT_BAD_STATE, "gt_step_budget_text: the step has not run yet, so nothing was chosen");
    const char *text = step->last->budget_text ? step->last->budget_text : "";
    size_t length = strlen(text);
    if (size > 0) {
        size_t cut = GT__MIN(length, size - 1);
        memcpy(buffer, text, cut);
        buffer[cut] = '\0';
    }
    if (needed) *needed = length + 1;
    return GT_OK;
}

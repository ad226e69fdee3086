/* The choice of a plan within the budget, and what there is to say about it. */
#include "step/budget.h"

#include "memory/report.h"
#include "step/passes.h"
#include "step/transfers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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

/* A plan of what is kept, and how much of it waits on the host. */
typedef struct choice {
    int32_t kept;   /* of the plans */
    int32_t base;   /* of the bases; -1: nothing goes to the host */
    int32_t steps;  /* of the base's transfers */
    double bound;   /* about the bytes of the arena */
    double seconds; /* more than with all kept */
} choice;

/* A plan of what is kept on which transfers are built. */
typedef struct base {
    int32_t kept;
    gt__transfers transfers;
} base;

enum { MOST_BASES = 5 };

typedef struct chosen {
    gt_step *step;
    gt__plan *plan;
    gt__budget_plans plans;
    double *seconds, *again; /* of the instructions; when they are done again */
    double *modelled;        /* again, with nothing measured */
    bool *timed, *again_timed;
    int32_t n_instructions, n_timed; /* of the program, with all kept */
    double total;                    /* seconds of the program, with all kept */
    size_t whole;                    /* bytes of the arena, with all kept */
    size_t room;                     /* that there is for it */
    gt__time_model model;
    gt__link link;
    bool link_measured, may_offload;
    base bases[MOST_BASES];
    int32_t n_bases;
    choice *choices; /* the least seconds first; the first keeps all */
    int32_t n_choices, capacity;
    int32_t number; /* of the choice that was made; -1: none has room */
    gt__plan made;  /* its program, places and host memory */
} chosen;

/* --- times --------------------------------------------------------------------------------------------------------------------------------- */

/* An instruction as it would be done again. */
static gt_status time_again(const gt__time_model *m, const gt__time_model *plain, chosen *c, int32_t i) {
    const gt__instruction *n = &c->plan->program.list[i];
    gt__again again = gt__again_of(n);
    c->again[i] = c->seconds[i];
    c->again_timed[i] = c->timed[i];
    c->modelled[i] = gt__time_modelled(plain, &c->plan->program.list[i]);
    if (again <= GT__AGAIN_AS_IT_IS) return GT_OK;
    gt__instruction made;
    GT_TRY(gt__again_make(n, again, &made));
    c->again[i] = gt__time_of(m, &made, &c->again_timed[i]);
    c->modelled[i] = gt__time_modelled(plain, &made);
    gt__instruction_free(&made);
    return GT_OK;
}

static gt_status find_times(chosen *c) {
    gt__program *p = &c->plan->program;
    size_t n = (size_t)p->count + 1;
    gt__time_model plain, *m = &c->model;
    c->seconds = gt__calloc(3 * n, sizeof *c->seconds);
    c->timed = gt__calloc(2 * n, sizeof *c->timed);
    if (c->seconds == NULL || c->timed == NULL) return GT_OUT_OF_HOST_MEMORY;
    c->again = c->seconds + n;
    c->modelled = c->again + n;
    c->again_timed = c->timed + n;
    c->n_instructions = p->count;
    gt__time_model_make(c->step->ctx, &c->step->times, m);
    c->link_measured = gt__times_link(&c->step->times, c->step->ctx, &c->link);
    gt__time_model_make(c->step->ctx, NULL, &plain);
    for (int32_t i = 0; i < p->count; ++i) {
        c->seconds[i] = gt__time_of(m, &p->list[i], &c->timed[i]);
        c->total += c->seconds[i];
        c->n_timed += c->timed[i];
        GT_TRY(time_again(m, &plain, c, i));
    }
    return GT_OK;
}

/* Where a graph will have scratch memory in the arena, what is known of it counts from the beginning. */
static void set_scratch(const gt_step *step, gt__program *p) {
    if (step->ctx->backend->capture_begin == NULL) return;
    for (int32_t i = 0; i < p->count; ++i) {
        const gt__seen *seen = gt__times_find(&step->times, &p->list[i]);
        if (seen && seen->workspace_known) p->list[i].workspace = seen->workspace;
    }
}

/* --- what there is to say ------------------------------------------------------------------------------------------------------------------ */

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
    bool modelled; /* some of these seconds */
} part;

enum { TIME_TEXT = 40 };
static const char *time_text(char *text, double seconds, bool is_modelled) {
    (void)snprintf(text, TIME_TEXT, "%.3f ms%s", seconds * 1e3, is_modelled ? " (modelled)" : "");
    return text;
}

/* Of what is done again in modules that begin with this name. */
static part part_of(const chosen *c, const char *name, int32_t length, bool all) {
    const gt__recompute *r = &c->plans.r;
    const bool *keep = c->plans.list[c->choices[c->number].kept].keep;
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
        if (!all && (head_of(module) != length || strncmp(module, name, (size_t)length) != 0)) continue;
        p.seconds += c->again[i];
        p.modelled |= !c->again_timed[i];
    }
    return p;
}

static gt_status add_parts(const chosen *c, gt__text *text) {
    char bytes[GT__BYTES_TEXT], time[TIME_TEXT];
    for (int32_t i = 0; i < c->plan->program.count; ++i) {
        if (!c->plans.s.done[i]) continue;
        const char *name = module_of(c, i);
        int32_t length = head_of(name);
        bool seen = false;
        for (int32_t k = 0; k < i && !seen; ++k)
            seen = c->plans.s.done[k] && head_of(module_of(c, k)) == length && strncmp(module_of(c, k), name, (size_t)length) == 0;
        if (seen) continue;
        const part p = part_of(c, name, length, false);
        GT_TRY(gt__text_add(text, "  %.*s: %d results, %s, %s, %.2f %% more time\n", length > 0 ? length : 17,
                            length > 0 ? name : "(outside modules)", (int)p.buffers, gt__bytes_text(p.bytes, bytes),
                            time_text(time, p.seconds, p.modelled), percent(p.seconds, c->total)));
    }
    return GT_OK;
}

/* What more micro-batches alone have changed. */
static gt_status add_micro_batches(const chosen *c, gt__text *text) {
    const gt_step *step = c->step;
    char bytes[GT__BYTES_TEXT], time[TIME_TEXT];
    GT_TRY(gt__text_add(text, "micro-batches: %d", (int)c->plan->micro_batches));
    if (step->options.micro_batches == 0 && c->plan->micro_batches > 1 && step->whole_batch_seconds > 0)
        GT_TRY(gt__text_add(text, ", chosen: with all kept the arena is %s less than with one, for %s, %.2f %% more time",
                            gt__bytes_text(step->whole_batch_arena > c->whole ? step->whole_batch_arena - c->whole : 0, bytes),
                            time_text(time, c->total - step->whole_batch_seconds, true),
                            percent(c->total - step->whole_batch_seconds, step->whole_batch_seconds)));
    return gt__text_add(text, "\n");
}

/* What waits on the host in modules that begin with this name. */
static part away_in(const chosen *c, const char *name, int32_t length, bool all) {
    part p = {0};
    for (int32_t i = 0; i < c->made.program.count; ++i) {
        const gt__instruction *n = &c->made.program.list[i];
        if (n->kind != GT__DO_LEAVE) continue;
        const char *module = n->module ? n->module : "";
        if (!all && (head_of(module) != length || strncmp(module, name, (size_t)length) != 0)) continue;
        p.buffers++;
        p.bytes += n->transfer.bytes;
        p.seconds += 2 * c->link.each + (double)n->transfer.bytes * (c->link.out + c->link.back);
    }
    return p;
}

static gt_status add_away(const chosen *c, gt__text *text) {
    const choice *at = &c->choices[c->number];
    char bytes[GT__BYTES_TEXT], host[GT__BYTES_TEXT], copies[TIME_TEXT], waits[TIME_TEXT];
    const part all = away_in(c, "", 0, true);
    double waited = at->seconds - c->plans.list[at->kept].seconds;
    GT_TRY(gt__text_add(text,
                        "offload %d buffers of %s to %s of host memory: copies take %s, of which %s are waited for, %.2f %% more time\n",
                        (int)all.buffers, gt__bytes_text(all.bytes, bytes), gt__bytes_text(c->made.host.bytes, host),
                        time_text(copies, all.seconds, !c->link_measured),
                        time_text(waits, waited, !c->link_measured || c->n_timed < c->n_instructions), percent(waited, c->total)));
    const gt__program *p = &c->made.program;
    for (int32_t i = 0; i < p->count; ++i) {
        if (p->list[i].kind != GT__DO_LEAVE) continue;
        const char *name = p->list[i].module ? p->list[i].module : "";
        int32_t length = head_of(name);
        bool seen = false;
        for (int32_t k = 0; k < i && !seen; ++k) {
            const char *other = p->list[k].module ? p->list[k].module : "";
            seen = p->list[k].kind == GT__DO_LEAVE && head_of(other) == length && strncmp(other, name, (size_t)length) == 0;
        }
        if (seen) continue;
        const part away = away_in(c, name, length, false);
        GT_TRY(gt__text_add(text, "  %.*s: %d to the host, %s, copies take %s\n", length > 0 ? length : 17,
                            length > 0 ? name : "(outside modules)", (int)away.buffers, gt__bytes_text(away.bytes, bytes),
                            time_text(copies, away.seconds, !c->link_measured)));
    }
    return GT_OK;
}

static gt_status say(const chosen *c, gt__text *text) {
    size_t arena = c->made.arena_bytes;
    char budget[GT__BYTES_TEXT], fixed[GT__BYTES_TEXT], takes[GT__BYTES_TEXT], whole[GT__BYTES_TEXT], less[GT__BYTES_TEXT], time[TIME_TEXT];
    GT_TRY(gt__text_add(text, "memory budget %s: weights, optimizer state and results %s, arena %s (%s with all kept)\n",
                        gt__bytes_text(c->step->options.memory_budget, budget), gt__bytes_text(c->plan->fixed, fixed),
                        gt__bytes_text(arena, takes), gt__bytes_text(c->whole, whole)));
    GT_TRY(add_micro_batches(c, text));
    GT_TRY(gt__text_add(text, "times: %s with all kept, %d of %d instructions measured\n",
                        time_text(time, c->total, c->n_timed < c->n_instructions), (int)c->n_timed, (int)c->n_instructions));
    if (c->choices[c->number].base >= 0) GT_TRY(add_away(c, text));
    if (c->choices[c->number].kept == 0) return gt__text_add(text, "recompute: nothing\n");
    const part all = part_of(c, "", 0, true);
    GT_TRY(gt__text_add(text,
                        "recompute %d buffers of %s that forward makes for backward: the arena is %s less, for %s, %.2f %% more time\n",
                        (int)all.buffers, gt__bytes_text(all.bytes, budget), gt__bytes_text(c->whole > arena ? c->whole - arena : 0, less),
                        time_text(time, all.seconds, all.modelled), percent(all.seconds, c->total)));
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

static void drop_made(chosen *c) {
    gt__plan_drop_host(c->step, &c->made);
    gt__program_free(&c->made.program);
    gt__free(c->made.offsets);
    c->made = (gt__plan){0};
}

/* The program in its last order, with buffers away for the base's first `steps`. */
static gt_status make_program(chosen *c, const bool *keep) {
    drop_made(c);
    GT_TRY(gt__program_copy(&c->plan->program, &c->made.program));
    if (keep) GT_TRY(gt__pass_recompute(&c->made.program, keep));
    set_scratch(c->step, &c->made.program);
    return gt__plan_order(&c->made);
}

static gt_status seconds_of_made(chosen *c, double **seconds) {
    const gt__program *p = &c->made.program;
    bool measured;
    *seconds = gt__malloc(((size_t)p->count + 1) * sizeof **seconds);
    if (*seconds == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < p->count; ++i) (*seconds)[i] = gt__time_of(&c->model, &p->list[i], &measured);
    return GT_OK;
}

static gt_status make(chosen *c, const choice *of) {
    GT_TRY(make_program(c, of->kept > 0 ? c->plans.list[of->kept].keep : NULL));
    if (of->base >= 0) {
        double *seconds;
        GT_TRY(seconds_of_made(c, &seconds));
        gt_status status =
            gt__transfers_apply(&c->made.program, seconds, &c->link, &c->bases[of->base].transfers, of->steps, &c->made.host.bytes);
        gt__free(seconds);
        GT_TRY(status);
    }
    return gt__plan_place(&c->made);
}

static gt_status add_choice(chosen *c, choice added) {
    if (c->n_choices == c->capacity) {
        int32_t capacity = GT__MAX(2 * c->capacity, 64);
        choice *grown = gt__realloc(c->choices, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        c->choices = grown;
        c->capacity = capacity;
    }
    c->choices[c->n_choices++] = added;
    return GT_OK;
}

/* Transfers on top of one plan: each step that makes the program smaller. */
static gt_status add_base(chosen *c, int32_t kept) {
    base *b = &c->bases[c->n_bases];
    double *seconds, least;
    *b = (base){.kept = kept};
    GT_TRY(make_program(c, kept > 0 ? c->plans.list[kept].keep : NULL));
    GT_TRY(seconds_of_made(c, &seconds));
    gt_status status = gt__transfers_find(&c->made.program, seconds, &c->link, &b->transfers);
    gt__free(seconds);
    GT_TRY(status);
    c->n_bases++;
    least = INFINITY;
    for (int32_t k = 0; k < b->transfers.n_steps; ++k) {
        const gt__away_step *s = &b->transfers.steps[k];
        if ((double)s->bound >= least) continue;
        least = (double)s->bound;
        GT_TRY(add_choice(c, (choice){kept, c->n_bases - 1, k + 1, least, c->plans.list[kept].seconds + s->seconds}));
    }
    return GT_OK;
}

static int faster_first(const void *a, const void *b) {
    const choice *x = a, *y = b;
    bool first = x->kept == 0 && x->base < 0, second = y->kept == 0 && y->base < 0; /* all is kept */
    if (first != second) return first ? -1 : 1;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return (x->bound < y->bound) - (x->bound > y->bound); /* no more copies than it takes */
}

/* So few that each may be placed: the fastest of those that take about the same, and the smallest. */
static void thin_choices(chosen *c) {
    double least = INFINITY, now = INFINITY;
    int32_t n = 0;
    for (int32_t k = 0; k < c->n_choices; ++k) least = GT__MIN(least, c->choices[k].bound);
    for (int32_t k = 0; k < c->n_choices; ++k) {
        const choice *at = &c->choices[k];
        if (k > 0 && at->bound >= (at->bound > least ? 0.99 : 1) * now) continue;
        now = at->bound;
        c->choices[n++] = *at;
    }
    c->n_choices = n;
}

/* Passes that come after a plan of what is kept make programs smaller, by about as much as they do where all is kept. */
static gt_status find_choices(chosen *c) {
    const gt__budget_plans *p = &c->plans;
    double shrinks = (double)c->whole / (double)GT__MAX(p->list[0].bound, 1);
    c->n_choices = 0;
    for (int32_t k = 0; k < p->count; ++k)
        GT_TRY(add_choice(c, (choice){k, -1, 0, (double)p->list[k].bound * shrinks, k > 0 ? p->list[k].seconds : 0}));
    int32_t bases = c->may_offload ? GT__MIN(p->count, MOST_BASES) : 0;
    for (int32_t k = 0; k < bases; ++k) GT_TRY(add_base(c, bases > 1 ? k * (p->count - 1) / (bases - 1) : 0));
    qsort(c->choices, (size_t)c->n_choices, sizeof *c->choices, faster_first);
    if (c->n_bases > 0) thin_choices(c);
    return GT_OK;
}

/* The fastest that has room; number -1: none. Those that cannot have room are passed over, but the smallest is always made. So with more room none is passed over that was not
 * with less. */
static gt_status find(chosen *c) {
    double least = c->choices[0].bound;
    for (int32_t k = 1; k < c->n_choices; ++k) least = GT__MIN(least, c->choices[k].bound);
    size_t smallest = c->whole;
    int32_t number = 0, last = 0;
    for (int32_t k = 1; k < c->n_choices; ++k) {
        if (c->choices[k].bound > least && c->choices[k].bound > 1.1 * (double)c->room) continue;
        GT_TRY(make(c, &c->choices[k]));
        c->number = last = k;
        if (c->made.arena_bytes <= c->room) return GT_OK;
        if (c->made.arena_bytes >= smallest) continue;
        smallest = c->made.arena_bytes;
        number = k;
    }
    c->number = -1;
    return last == number && number > 0 ? GT_OK : make(c, &c->choices[number]);
}

/* What was made is the smallest. */
static gt_status refuse(chosen *c) {
    gt_step *step = c->step;
    char budget[GT__BYTES_TEXT], would[GT__BYTES_TEXT], fixed[GT__BYTES_TEXT], arena[GT__BYTES_TEXT];
    gt__text text = {0};
    gt_status status = gt__plan_peak_text(&c->made, &text);
    if (status != GT_OK) {
        gt__text_free(&text);
        return status;
    }
    step->budget_least = c->plan->fixed + c->made.arena_bytes;
    status = GT_RAISE_HINT(GT_OUT_OF_MEMORY,
                           step->options.micro_batches == 0
                               ? "a larger budget, half precision, or a smaller batch"
                               : "a larger budget, more micro-batches (0 lets the budget choose), half precision, or a smaller batch",
                           "gt_step: the memory budget is %s (%llu bytes); the smallest that would do with micro_batches %d is %s (%llu "
                           "bytes): %s are weights, "
                           "optimizer state and results, and the arena takes %s: %s",
                           gt__bytes_text(step->options.memory_budget, budget), (unsigned long long)step->options.memory_budget,
                           (int)c->plan->micro_batches, gt__bytes_text(step->budget_least, would), (unsigned long long)step->budget_least,
                           gt__bytes_text(c->plan->fixed, fixed), gt__bytes_text(c->made.arena_bytes, arena), text.data);
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
    plan->host = c->made.host;
    plan->kept_all = c->number == 0;
    plan->modelled = c->n_timed < c->n_instructions || (c->may_offload && !c->link_measured);
    plan->seconds += c->choices[c->number].seconds;
    c->made = (gt__plan){0};
}

static void drop_bases(chosen *c) {
    for (int32_t k = 0; k < c->n_bases; ++k) gt__transfers_free(&c->bases[k].transfers);
    c->n_bases = 0;
}

/* Among plans with transfers first; without, if there is no host memory for them. */
static gt_status find_with_host(chosen *c) {
    GT_TRY(find_choices(c));
    GT_TRY(find(c));
    if (c->number < 0) return refuse(c);
    if (c->made.host.bytes == 0 || c->plan->predicted || gt__plan_make_host(c->step, &c->made) == GT_OK) return GT_OK;
    gt_clear_error();
    gt__log(c->step->ctx, GT_LOG_WARNING, "gt_step: no %zu bytes of host memory for offload; the budget is kept without",
            c->made.host.bytes);
    c->may_offload = false;
    drop_bases(c);
    return find_with_host(c);
}

static gt_status choose(chosen *c) {
    GT_TRY(add_choice(c, (choice){.base = -1}));
    GT_TRY(make(c, &c->choices[0]));
    c->whole = c->made.arena_bytes;
    if (c->plan->micro_batches == 1) {
        c->step->whole_batch_seconds = c->total;
        c->step->whole_batch_arena = c->whole;
    }
    if (c->whole > c->room) {
        GT_TRY(gt__budget_plans_make(&c->plan->program, c->again, c->step->times.round > 0 ? c->modelled : NULL, &c->plans));
        GT_TRY(find_with_host(c));
        gt__schedule_fill(&c->plans.r, c->plans.list[c->choices[c->number].kept].keep, c->again, &c->plans.s);
    }
    GT_TRY(keep_text(c));
    return GT_OK;
}

gt_status gt__plan_budget(gt_step *step, gt__plan *plan) {
    chosen c = {.step = step, .plan = plan, .may_offload = step->options.offload > 0};
    step->budget_least = 0;
    GT_TRY(gt__budget_fixed(&plan->program, &plan->fixed));
    uint64_t budget = step->options.memory_budget;
    c.room = budget > plan->fixed ? (size_t)(budget - plan->fixed) : 0;
    set_scratch(step, &plan->program);
    gt_status status = find_times(&c);
    plan->seconds = plan->whole_seconds = c.total;
    if (status == GT_OK) status = choose(&c);
    if (status == GT_OK) take(&c);
    gt__budget_plans_free(&c.plans);
    drop_bases(&c);
    drop_made(&c);
    gt__free(c.choices);
    gt__free(c.seconds);
    gt__free(c.timed);
    return status;
}

/* --- micro-batches ------------------------------------------------------------------------------------------------------------------------- */

/* Each number that there may be is tried whatever the budget is, so that a larger one never takes more time. */
gt_status gt__budget_micro_batches(gt_step *step, const gt__meta *inputs, int32_t n_inputs, int32_t otherwise, int32_t *micro_batches) {
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
    *micro_batches = found > 0 ? found : otherwise > 0 ? otherwise : smallest; /* whose trace says what is in the way */
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

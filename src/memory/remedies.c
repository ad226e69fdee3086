/* What can be done, from what is live: each remedy with the bytes that it takes off the moment that failed, and what the whole step would then need. All estimates lean
 * to the careful side: a remedy that is said to be enough should be. */
#include "memory/report.h"

#include <stdio.h>

#define MIB ((uint64_t)1 << 20)
enum { LEADING_MOST = 8, HOLDERS_MOST = 3 };

typedef struct estimate {
    const gt__live_list *live;
    const gt__report_facts *facts;
    gt_oom_report *report;
    uint64_t capacity; /* most that can be in use */
    bool limited;      /* by the caller's limit */
    int64_t batch;
    int64_t leading[LEADING_MOST]; /* first sizes of tensors that grow with the batch */
    int32_t n_leading;
    uint64_t scaled;   /* live bytes that grow with the batch, the request among them */
    uint64_t expected; /* the same at the step's fullest moment */
    uint64_t fixed;    /* the rest, with gradients still to come */
} estimate;

static uint64_t share(uint64_t bytes, int64_t part, int64_t whole) { return (uint64_t)((double)bytes * ((double)part / (double)whole)); }

/* --- how the step's memory depends on the batch ---------------------------------------------------------------------------------------- */

static bool holds_samples(gt_memory_category category) { return category == GT_MEMORY_ACTIVATION || category == GT_MEMORY_INPUT; }

/* The leading size that most bytes of saved activations and input batches have. */
static int64_t guess_batch(const estimate *e) {
    int64_t sizes[64], best = 0;
    uint64_t bytes[64], most = 0;
    int n = 0;
    for (int64_t i = 0; i < e->live->count; ++i) {
        const gt__live_block *b = &e->live->blocks[i];
        if (!holds_samples(b->category) || b->ndim < 1) continue;
        int at = 0;
        while (at < n && sizes[at] != b->shape[0]) ++at;
        if (at == (int)GT__COUNT(sizes)) continue;
        if (at == n) {
            sizes[n] = b->shape[0];
            bytes[n++] = 0;
        }
        bytes[at] += b->bytes;
        if (bytes[at] > most) {
            most = bytes[at];
            best = sizes[at];
        }
    }
    return best > 0 || e->report->ndim < 1 ? best : e->report->shape[0];
}

static bool is_leading(const estimate *e, int64_t size) {
    for (int32_t i = 0; i < e->n_leading; ++i)
        if (e->leading[i] == size) return true;
    return false;
}

/* The batch itself, and its multiples among what is saved: flattened tokens. A weight's gradient that happens to have such a size is the price of not knowing. */
static void find_leading(estimate *e) {
    e->leading[e->n_leading++] = e->batch;
    for (int64_t i = 0; i < e->live->count; ++i) {
        const gt__live_block *b = &e->live->blocks[i];
        if (!holds_samples(b->category) || b->ndim < 1 || b->shape[0] <= 0 || b->shape[0] % e->batch != 0) continue;
        if (e->n_leading < LEADING_MOST && !is_leading(e, b->shape[0])) e->leading[e->n_leading++] = b->shape[0];
    }
}

static bool scales(const estimate *e, gt_memory_category category, int32_t ndim, const int64_t *shape) {
    return e->batch > 0 && ndim >= 1 && (holds_samples(category) || category == GT_MEMORY_TEMPORARY) && is_leading(e, shape[0]);
}

/* What earlier steps left behind is not this step's doing. */
static bool block_scales(const estimate *e, const gt__live_block *b) {
    return b->step >= e->report->step && scales(e, b->category, b->ndim, b->shape);
}

/* What the step needs at its fullest: known where steps have ended, else as much for each layer to come as for those that have run. */
static void foresee(estimate *e) {
    const gt_oom_report *r = e->report;
    uint64_t live = 0, activations = 0, largest = 0;
    for (int64_t i = 0; i < e->live->count; ++i) {
        const gt__live_block *b = &e->live->blocks[i];
        if (!block_scales(e, b)) continue;
        live += b->bytes;
        largest = GT__MAX(largest, b->bytes);
        if (b->category == GT_MEMORY_ACTIVATION) activations += b->bytes;
    }
    bool request_scales = scales(e, r->category, r->ndim, r->shape);
    e->scaled = live + (request_scales ? r->rounded : 0);
    e->fixed = r->in_use - live + (request_scales ? 0 : r->rounded) + e->facts->missing_gradients;
    e->expected = e->scaled;
    if (r->step > 0) {
        uint64_t peak = r->category_peak[GT_MEMORY_ACTIVATION];
        if (peak > activations) e->expected += peak - activations;
    } else if (strcmp(r->phase, "forward") == 0 && r->layers > r->layers_run) {
        e->expected = share(e->scaled, r->layers, GT__MAX(r->layers_run, 1));
    }
    if (strcmp(r->phase, "forward") == 0) e->expected += largest; /* a gradient beside the one that it comes from */
}

/* --- the list -------------------------------------------------------------------------------------------------------------------------- */

static const char *const costs[GT_OOM_REMEDY_KINDS] = {
#define COST(name, value, cost) [value] = cost,
    GT_OOM_REMEDY_LIST(COST)
#undef COST
};

static void add(estimate *e, gt_oom_remedy remedy) {
    gt_oom_report *r = e->report;
    uint64_t noise = GT__MAX(r->rounded, r->in_use / 4) / 64;
    if (remedy.bytes == 0 || remedy.bytes < noise) return;
    (void)snprintf(remedy.cost, sizeof remedy.cost, "%s", costs[remedy.kind]);
    if (remedy.need) remedy.enough = remedy.need <= e->capacity;
    int32_t at = r->n_remedies;
    while (at > 0 && r->remedies[at - 1].bytes < remedy.bytes && remedy.kind != GT_OOM_REMEDY_RAISE_LIMIT)
        --at; /* it frees nothing: last */
    if (at == GT_OOM_REMEDIES) return;
    if (r->n_remedies < GT_OOM_REMEDIES) r->n_remedies++;
    memmove(&r->remedies[at + 1], &r->remedies[at], (size_t)(r->n_remedies - 1 - at) * sizeof *r->remedies);
    r->remedies[at] = remedy;
}

/* The step's need when `bytes` of what is live go. What grows with the batch has its share in what is still to come too. */
static uint64_t need_without(const estimate *e, uint64_t bytes, bool of_activations) {
    uint64_t all = e->fixed + e->expected;
    if (of_activations && e->scaled > 0) bytes = (uint64_t)((double)bytes * ((double)e->expected / (double)e->scaled));
    return all > bytes ? all - bytes : 1;
}

static void micro_batch(estimate *e) {
    if (e->batch < 2 || e->scaled == 0 || strcmp(e->report->phase, "update") == 0) return;
    const uint64_t careful = e->capacity - e->capacity / 32; /* pieces do not fit together without waste */
    int64_t n = e->batch;
    do n = (n + 1) / 2;
    while (n > 1 && e->fixed + share(e->expected, n, e->batch) > careful);
    gt_oom_remedy remedy = {.kind = GT_OOM_REMEDY_MICRO_BATCH,
                            .bytes = e->scaled - share(e->scaled, n, e->batch),
                            .need = e->fixed + share(e->expected, n, e->batch),
                            .micro_batch = n,
                            .accumulation = (e->batch + n - 1) / n};
    (void)snprintf(remedy.subject, sizeof remedy.subject, "micro-batches of %lld out of %lld, accumulated over %lld", (long long)n,
                   (long long)e->batch, (long long)remedy.accumulation);
    add(e, remedy);
}

static void checkpoint(estimate *e) {
    gt__checkpoint_plan plan;
    gt__checkpoint_plan_make(e->live, e->report->step, &plan);
    gt_oom_remedy remedy = {.kind = GT_OOM_REMEDY_CHECKPOINT,
                            .bytes = plan.frees,
                            .need = need_without(e, plan.frees, true),
                            .depth = plan.depth,
                            .segments = plan.segments,
                            .count = plan.count};
    (void)snprintf(remedy.target, sizeof remedy.target, "%s", plan.target);
    if (plan.segments > 0)
        (void)snprintf(remedy.subject, sizeof remedy.subject, "checkpoint \"%.60s\" to \"%.60s\" as %lld segments", plan.first, plan.last,
                       (long long)plan.segments);
    else
        (void)snprintf(remedy.subject, sizeof remedy.subject, "checkpoint \"%.60s\" to \"%.60s\" (%lld modules)", plan.first, plan.last,
                       (long long)plan.count);
    add(e, remedy);
}

static uint64_t halved_temporaries(const estimate *e) {
    const gt__report_facts *facts = e->facts;
    const gt_oom_report *r = e->report;
    if (facts->half_result == NULL) return 0;
    uint64_t bytes = 0;
    for (int64_t i = 0; i < e->live->count; ++i) {
        const gt__live_block *b = &e->live->blocks[i];
        if (b->step >= r->step && b->category == GT_MEMORY_TEMPORARY && b->dtype == GT_DTYPE_F32 && b->ndim >= 0 &&
            facts->half_result(facts->user, b->op))
            bytes += b->bytes / 2;
    }
    if (r->category == GT_MEMORY_TEMPORARY && r->dtype == GT_DTYPE_F32 && r->ndim >= 0 && facts->half_result(facts->user, r->op))
        bytes += r->rounded / 2;
    return bytes;
}

static void half_precision(estimate *e) {
    const gt__report_facts *facts = e->facts;
    if (facts->autocast || facts->half_saved == 0) return;
    uint64_t bytes = facts->half_saved + halved_temporaries(e);
    if (bytes <= facts->half_copies) return;
    bytes -= facts->half_copies;
    gt_oom_remedy remedy = {.kind = GT_OOM_REMEDY_HALF_PRECISION, .bytes = bytes, .need = need_without(e, bytes, true)};
    (void)snprintf(remedy.subject, sizeof remedy.subject, "half precision for products and convolutions (gt_autocast_begin)");
    add(e, remedy);
}

/* The tensor that an op uses now is there all the same, and the two that are fetched ahead. */
static void offload(estimate *e) {
    if (e->facts->offload) return;
    uint64_t bytes = 0, largest = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < e->live->count; ++i) {
        const gt__live_block *b = &e->live->blocks[i];
        if (b->category != GT_MEMORY_ACTIVATION || b->bytes < MIB || b->step < e->report->step) continue;
        bytes += b->bytes;
        largest = GT__MAX(largest, b->bytes);
        ++count;
    }
    if (bytes <= 3 * largest) return;
    bytes -= 3 * largest;
    gt_oom_remedy remedy = {
        .kind = GT_OOM_REMEDY_OFFLOAD, .bytes = bytes, .need = need_without(e, bytes, true), .limit = MIB, .count = count};
    (void)snprintf(remedy.subject, sizeof remedy.subject, "keep saved activations from 1 MiB on the host (gt_offload_begin)");
    add(e, remedy);
}

static void workspace(estimate *e) {
    const gt_oom_report *r = e->report;
    if (e->facts->workspace_limit == 0) return;
    uint64_t bytes = r->category_in_use[GT_MEMORY_WORKSPACE];
    gt_oom_remedy remedy = {.kind = GT_OOM_REMEDY_WORKSPACE_LIMIT, .bytes = bytes, .need = need_without(e, bytes, false)};
    (void)snprintf(remedy.subject, sizeof remedy.subject, "no workspace for faster algorithms (gt_context_set_workspace_limit to 0)");
    add(e, remedy);
}

static void release(estimate *e) {
    const gt__report_facts *facts = e->facts;
    const gt_oom_report *r = e->report;
    char who[128];
    uint64_t old = facts->held - GT__MIN(facts->held, facts->held_newest);
    if (facts->graphs > 1 && old > 0) {
        gt_oom_remedy remedy = {
            .kind = GT_OOM_REMEDY_RELEASE_GRAPHS, .bytes = old, .need = need_without(e, old, false), .count = facts->graphs - 1};
        (void)snprintf(remedy.subject, sizeof remedy.subject, "run the backward of, or release, %lld results (%s) of earlier forwards",
                       (long long)remedy.count, gt__report_who(facts->root_op, facts->root_module, who, sizeof who));
        add(e, remedy);
    }
    if (r->growth_steps > 0 && (facts->graphs <= 1 || r->growth_category != GT_MEMORY_ACTIVATION)) {
        char rate[GT__BYTES_TEXT];
        gt_oom_remedy remedy = {.kind = GT_OOM_REMEDY_RELEASE_KEPT, .bytes = r->growth_now, .need = need_without(e, r->growth_now, false)};
        (void)snprintf(remedy.subject, sizeof remedy.subject, "release results of %s that are kept: %s more in each step",
                       gt__report_who(r->growth_op, r->growth_module, who, sizeof who), gt__bytes_text(r->growth, rate));
        add(e, remedy);
    }
}

static void other_processes(estimate *e) {
    const gt_oom_report *r = e->report;
    if (e->limited) return;
    for (int32_t i = 0; i < GT__MIN(r->n_holders, HOLDERS_MOST); ++i) {
        const gt_oom_holder *h = &r->holders[i];
        gt_oom_remedy remedy = {
            .kind = GT_OOM_REMEDY_OTHER_PROCESS, .bytes = h->bytes, .need = e->fixed + e->expected, .process = h->process};
        (void)snprintf(remedy.subject, sizeof remedy.subject, "end process %lld, or move it to another device", (long long)h->process);
        e->capacity += h->bytes;
        add(e, remedy);
        e->capacity -= h->bytes;
    }
}

static void raise_limit(estimate *e) {
    const gt_oom_report *r = e->report;
    if (!e->limited) return;
    uint64_t need = e->fixed + e->expected, most = r->reserved + r->device_free;
    uint64_t limit = (need + need / 16 + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    if (r->device_total > 0) limit = GT__MIN(limit, most);
    if (limit <= r->limit || limit < r->in_use + r->rounded) return;
    char text[GT__BYTES_TEXT];
    gt_oom_remedy remedy = {.kind = GT_OOM_REMEDY_RAISE_LIMIT, .bytes = limit - r->limit, .need = need, .limit = limit};
    (void)snprintf(remedy.subject, sizeof remedy.subject, "raise the memory limit to %s", gt__bytes_text(limit, text));
    uint64_t capacity = e->capacity;
    e->capacity = limit;
    add(e, remedy);
    e->capacity = capacity;
}

void gt__remedies_add(const gt__live_list *live, const gt__report_facts *facts, gt_oom_report *report) {
    estimate e = {.live = live, .facts = facts, .report = report, .batch = facts->batch};
    e.capacity = report->device_total > 0 ? report->reserved + report->device_free : UINT64_MAX;
    e.limited = report->limit > 0 && report->limit < e.capacity;
    if (e.limited) e.capacity = report->limit;
    if (e.batch <= 0) report->batch = e.batch = guess_batch(&e);
    if (e.batch > 0) find_leading(&e);
    foresee(&e);
    micro_batch(&e);
    checkpoint(&e);
    half_precision(&e);
    offload(&e);
    workspace(&e);
    release(&e);
    other_processes(&e);
    raise_limit(&e);
}

const gt_oom_remedy *gt__report_best(const gt_oom_report *report) {
    const gt_oom_remedy *enough = NULL;
    for (int32_t i = 0; i < report->n_remedies; ++i) {
        const gt_oom_remedy *r = &report->remedies[i];
        bool of_cause =
            (report->cause == GT_OOM_GROWTH && (r->kind == GT_OOM_REMEDY_RELEASE_GRAPHS || r->kind == GT_OOM_REMEDY_RELEASE_KEPT)) ||
            (report->cause == GT_OOM_EXTERNAL && r->kind == GT_OOM_REMEDY_OTHER_PROCESS);
        if (of_cause) return r;
        if (r->enough && enough == NULL) enough = r;
    }
    return enough ? enough : report->n_remedies > 0 ? &report->remedies[0] : NULL;
}

/* Collecting: the request, the device's bytes, what is live and what pins free pieces, what grows; then the cause. */
#include "memory/report.h"

#include <stdio.h>
#include <stdlib.h>

/* --- live blocks --------------------------------------------------------------------------------------------------------------------- */

static const char *or_empty(const char *text) { return text ? text : ""; }

static void count_used(void *user, const gt__block_info *info) {
    if (info->state == GT__BLOCK_USED) ++*(int64_t *)user;
}

typedef struct collector {
    gt__live_list *live;
    int64_t capacity;
    const void *segment;  /* of the block before */
    uint64_t free_before; /* bytes of the free block before, in the same segment */
    bool used_before;     /* the last of `live` is the block before, in the same segment */
} collector;

/* Free memory in an expandable segment can be moved, so nothing pins it. */
static void collect_block(void *user, const gt__block_info *info) {
    collector *c = user;
    if (info->segment != c->segment || info->state == GT__BLOCK_UNMAPPED) {
        c->free_before = 0;
        c->used_before = false;
    }
    c->segment = info->segment;
    uint64_t free_bytes = info->state == GT__BLOCK_FREE && !info->expandable ? info->bytes : 0;
    if (info->state != GT__BLOCK_USED) {
        if (c->used_before) c->live->blocks[c->live->count - 1].pinned += free_bytes;
        c->free_before = free_bytes;
        c->used_before = false;
        return;
    }
    if (c->live->count == c->capacity) return;
    gt__live_block *block = &c->live->blocks[c->live->count++];
    *block = (gt__live_block){.op = or_empty(info->op),
                              .module = or_empty(info->module),
                              .bytes = info->bytes,
                              .sequence = info->sequence,
                              .step = info->step,
                              .pinned = c->free_before,
                              .ndim = info->ndim,
                              .dtype = info->dtype,
                              .category = info->category};
    if (info->ndim > 0) memcpy(block->shape, info->shape, (size_t)info->ndim * sizeof *block->shape);
    c->free_before = 0;
    c->used_before = true;
}

static int by_sequence(const void *a, const void *b) {
    uint64_t x = ((const gt__live_block *)a)->sequence, y = ((const gt__live_block *)b)->sequence;
    return (x > y) - (x < y);
}

/* An empty list where the host has no memory for it. */
static void collect_live(const gt__allocator *allocator, gt__live_list *live) {
    int64_t count = 0;
    *live = (gt__live_list){0};
    gt__allocator_visit(allocator, count_used, &count);
    if (count == 0) return;
    live->blocks = gt__calloc((size_t)count, sizeof *live->blocks);
    if (live->blocks == NULL) return;
    collector c = {.live = live, .capacity = count};
    gt__allocator_visit(allocator, collect_block, &c);
    qsort(live->blocks, (size_t)live->count, sizeof *live->blocks, by_sequence);
}

/* --- groups -------------------------------------------------------------------------------------------------------------------------- */

static int compare_names(const gt__live_block *x, const gt__live_block *y) {
    int order = strcmp(x->op, y->op);
    if (order == 0) order = strcmp(x->module, y->module);
    if (order == 0) order = (x->category > y->category) - (x->category < y->category);
    return order;
}

static int by_name(const void *a, const void *b) {
    int order = compare_names(a, b);
    return order ? order : by_sequence(a, b);
}

/* Keeps `list` the largest `capacity` groups, the largest first. */
static void group_insert(gt_oom_group *list, int32_t *count, int32_t capacity, const gt_oom_group *group, bool by_pinned) {
    uint64_t size = by_pinned ? group->pinned : group->bytes;
    if (size == 0) return;
    int32_t at = *count;
    while (at > 0 && (by_pinned ? list[at - 1].pinned : list[at - 1].bytes) < size) --at;
    if (at == capacity) return;
    if (*count < capacity) ++*count;
    memmove(&list[at + 1], &list[at], (size_t)(*count - 1 - at) * sizeof *list);
    list[at] = *group;
}

static void make_groups(gt__live_list *live, gt_oom_report *report) {
    if (live->count == 0) return;
    qsort(live->blocks, (size_t)live->count, sizeof *live->blocks, by_name);
    gt_oom_group group = {0};
    for (int64_t i = 0; i < live->count; ++i) {
        const gt__live_block *b = &live->blocks[i];
        if (i == 0 || compare_names(b, &live->blocks[i - 1]) != 0)
            group = (gt_oom_group){.op = b->op, .module = b->module, .category = b->category};
        group.bytes += b->bytes;
        group.pinned += b->pinned;
        group.count++;
        if (b->bytes > group.largest) {
            group.largest = b->bytes;
            group.ndim = b->ndim;
            group.dtype = b->dtype;
            memcpy(group.shape, b->shape, sizeof group.shape);
        }
        if (i + 1 < live->count && compare_names(b, &live->blocks[i + 1]) == 0) continue;
        group_insert(report->groups, &report->n_groups, GT_OOM_GROUPS, &group, false);
        group_insert(report->pins, &report->n_pins, GT_OOM_PINS, &group, true);
    }
    qsort(live->blocks, (size_t)live->count, sizeof *live->blocks, by_sequence);
}

/* --- growth -------------------------------------------------------------------------------------------------------------------------- */

enum { RISES_LEAST = 4 }; /* steps in a row in which a tag must have grown */

typedef struct growth_search {
    gt_oom_report *report;
    uint64_t fastest; /* bytes a step of the tag that grows fastest: it gives its name to all */
} growth_search;

static void see_growth(void *user, const gt__tag_growth *tag) {
    growth_search *search = user;
    gt_oom_report *report = search->report;
    int32_t last = tag->steps - 1, rises = last;
    if (last < 1) return;
    for (int32_t i = 0; i < last; ++i)
        if (tag->bytes[i + 1] <= tag->bytes[i]) return;
    if (tag->now < tag->bytes[last]) return;
    rises += tag->now > tag->bytes[last];
    if (rises < RISES_LEAST) return;
    /* What has gathered since the first step, if it grew as fast all the time: never more than there is. */
    uint64_t rate = (tag->bytes[last] - tag->bytes[0]) / (uint64_t)last;
    uint64_t steps = (uint64_t)GT__MAX(report->step, (int64_t)tag->steps);
    report->growth += rate;
    report->growth_now += rate > tag->now / steps ? tag->now : rate * steps;
    /* Of tags that grow together, what is saved for backward says most. */
    bool tells = rate == search->fastest && tag->category == GT_MEMORY_ACTIVATION && report->growth_category != GT_MEMORY_ACTIVATION;
    if (rate <= search->fastest && !tells) return;
    search->fastest = rate;
    report->growth_op = or_empty(tag->op);
    report->growth_module = or_empty(tag->module);
    report->growth_category = tag->category;
    report->growth_steps = rises;
}

static void find_growth(const gt__allocator *allocator, gt_oom_report *report) {
    growth_search search = {.report = report};
    gt__allocator_visit_tags(allocator, see_growth, &search);
}

/* --- the device ---------------------------------------------------------------------------------------------------------------------- */

static void add_holder(gt_oom_report *report, gt_oom_holder holder) {
    int32_t at = report->n_holders;
    while (at > 0 && report->holders[at - 1].bytes < holder.bytes) --at;
    if (at == GT_OOM_HOLDERS) return;
    if (report->n_holders < GT_OOM_HOLDERS) report->n_holders++;
    memmove(&report->holders[at + 1], &report->holders[at], (size_t)(report->n_holders - 1 - at) * sizeof *report->holders);
    report->holders[at] = holder;
}

/* Memory that was reserved but never touched may count as free for a system that backs it on first use: it is ours all the same. */
static void divide_device(const gt__report_facts *facts, gt_oom_report *report) {
    report->ours = report->reserved;
    report->device_total = GT__MAX(facts->device_total, report->ours);
    report->device_free = GT__MIN(facts->device_free, report->device_total - report->ours);
    report->others = report->device_total - report->ours - report->device_free;
    for (int32_t i = 0; i < facts->n_holders; ++i) {
        const gt__memory_holder *h = &facts->holders[i];
        if (h->process == facts->process)
            report->here = h->bytes > report->ours ? GT__MIN(h->bytes - report->ours, report->others) : 0;
        else
            add_holder(report, (gt_oom_holder){.process = h->process, .bytes = h->bytes});
    }
}

/* --- the cause ----------------------------------------------------------------------------------------------------------------------- */

static bool fits(uint64_t a, uint64_t b, uint64_t most) { return a <= most && b <= most - a; }

/* A driver takes some of the device for itself; that is no other program's fault. */
static uint64_t external_bytes(const gt_oom_report *report) {
    const uint64_t driver = GT__MIN((uint64_t)1 << 30, report->device_total / 16);
    return report->others > driver ? report->others - driver : 0;
}

uint64_t gt__report_room(const gt_oom_report *r) {
    return r->limit ? GT__MIN(r->device_free, r->limit > r->reserved ? r->limit - r->reserved : 0) : r->device_free;
}

static gt_oom_cause find_cause(const gt__shortage *shortage, const gt_oom_report *r) {
    if (shortage == NULL) return GT_OOM_NONE;
    if (shortage->host) return GT_OOM_HOST;
    if (r->device_total > 0 && r->rounded > r->device_total) return GT_OOM_TOO_LARGE;
    const uint64_t obtainable = r->cached + gt__report_room(r), lacking = r->rounded - GT__MIN(r->rounded, obtainable);
    bool limited = r->limit && !fits(r->in_use, r->rounded, r->limit);
    uint64_t external = limited || gt__report_room(r) < r->device_free ? 0 : external_bytes(r);
    /* What gathers explains the shortage if it is a good part of what is in use, and more than what others hold or what lies about in pieces. */
    bool much = r->growth_now >= r->in_use / 4 || (r->growth_now >= lacking && r->growth_now >= r->in_use / 10);
    if (r->growth_steps > 0 && much && r->growth_now >= external && (lacking > 0 || r->growth_now >= r->cached)) return GT_OOM_GROWTH;
    /* Memory is taken from a device in pieces: what is left of the last one is not worth the name. */
    const uint64_t piece = 2u << 20;
    if (lacking == 0 && obtainable - r->rounded >= piece) return GT_OOM_FRAGMENTED;
    if (lacking == 0 && r->limit && gt__report_room(r) < r->device_free) limited = true;
    if (limited) return GT_OOM_LIMIT;
    return external > 0 && external >= lacking ? GT_OOM_EXTERNAL : GT_OOM_CAPACITY;
}

/* --- all of it ----------------------------------------------------------------------------------------------------------------------- */

static const char *phase_text(gt__phase phase) {
    static const char *const texts[GT__PHASE_COUNT] = {
        [GT__PHASE_OTHER] = "", [GT__PHASE_FORWARD] = "forward", [GT__PHASE_BACKWARD] = "backward", [GT__PHASE_UPDATE] = "update"};
    return phase >= 0 && phase < GT__PHASE_COUNT ? texts[phase] : "";
}

static void take_request(const gt__shortage *shortage, gt_oom_report *report) {
    const gt__tag *tag = shortage->tag;
    report->requested = shortage->bytes;
    report->rounded = GT__MAX(shortage->rounded, shortage->bytes);
    report->op = or_empty(tag->op);
    report->module = or_empty(tag->module);
    report->category = tag->category;
    report->dtype = tag->dtype;
    if (tag->shape == NULL) return;
    report->ndim = GT__MIN(tag->ndim, GT_MAX_DIMS);
    memcpy(report->shape, tag->shape, (size_t)report->ndim * sizeof *report->shape);
}

void gt__report_make(const gt__allocator *allocator, const gt__report_facts *facts, gt_oom_report *report) {
    uint32_t struct_size = report->struct_size;
    memset(report, 0, sizeof *report);
    report->struct_size = struct_size;
    report->op = report->module = report->growth_op = report->growth_module = "";
    report->ndim = -1;
    report->phase = phase_text(gt__allocator_phase(allocator));
    report->layers = facts->layers;
    report->layers_run = facts->layers_run;
    if (facts->shortage) take_request(facts->shortage, report);

    gt_memory_stats stats = {.struct_size = sizeof stats};
    gt__allocator_stats(allocator, &stats);
    report->step = (int64_t)stats.steps;
    report->limit = gt__allocator_limit(allocator);
    report->in_use = stats.in_use;
    report->cached = stats.cached;
    report->reserved = stats.reserved;
    report->peak_in_use = stats.peak_in_use;
    report->last_step_peak = stats.last_step_peak;
    report->largest_free = gt__allocator_largest_free(allocator);
    report->largest_possible = gt__allocator_largest_possible(allocator);
    memcpy(report->category_in_use, stats.category_in_use, sizeof report->category_in_use);
    memcpy(report->category_peak, stats.category_peak, sizeof report->category_peak);
    report->saved = facts->saved;
    report->graphs = facts->graphs;
    report->batch = facts->batch;

    find_growth(allocator, report);
    divide_device(facts, report);
    gt__live_list live;
    collect_live(allocator, &live);
    make_groups(&live, report);
    report->cause = find_cause(facts->shortage, report);
    if (report->cause != GT_OOM_FRAGMENTED && report->cause != GT_OOM_NONE) { /* what lies between free pieces did no harm */
        memset(report->pins, 0, sizeof report->pins);
        report->n_pins = 0;
    }
    if (report->cause != GT_OOM_HOST) gt__remedies_add(&live, facts, report);
    gt__free(live.blocks);
}

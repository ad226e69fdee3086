#include "memory/lives.h"

#include <stdlib.h>

const char *gt__phase_name(gt__phase phase) {
    static const char *const names[GT__PHASE_COUNT] = {"other", "forward", "backward", "update"};
    return phase >= 0 && phase < GT__PHASE_COUNT ? names[phase] : "?";
}

const char *gt__event_name(gt__event_kind kind) {
    static const char *const names[] = {"alloc", "free", "reserve", "unreserve", "category", "step", "oom"};
    return kind >= 0 && (size_t)kind < GT__COUNT(names) ? names[kind] : "?";
}

static bool of_block(const gt__memory_event *event) {
    return event->kind == GT__MEMORY_ALLOC || event->kind == GT__MEMORY_FREE || event->kind == GT__MEMORY_CATEGORY;
}

/* --- copying what the allocator shows: counted first, so that memory is taken once and outside the visit */
static void count_event(void *user, const gt__memory_event *event) {
    (void)event;
    ((gt__lives *)user)->n_events++;
}
static void keep_event(void *user, const gt__memory_event *event) {
    gt__lives *h = user;
    h->events[h->n_events++] = *event;
}
static void count_block(void *user, const gt__block_info *block) {
    (void)block;
    ((gt__lives *)user)->n_blocks++;
}
static void keep_block(void *user, const gt__block_info *block) {
    gt__lives *h = user;
    h->blocks[h->n_blocks++] = *block;
}

static gt_status copy_all(const gt__allocator *allocator, gt__lives *h) {
    (void)gt__allocator_visit_history(allocator, count_event, h);
    gt__allocator_visit(allocator, count_block, h);
    h->events = gt__calloc((size_t)h->n_events, sizeof *h->events);
    h->life_of = gt__calloc((size_t)h->n_events, sizeof *h->life_of);
    h->blocks = gt__calloc((size_t)h->n_blocks, sizeof *h->blocks);
    h->list = gt__calloc((size_t)(h->n_events + h->n_blocks), sizeof *h->list);
    if (h->events == NULL || h->life_of == NULL || h->blocks == NULL || h->list == NULL) return GT_OUT_OF_HOST_MEMORY;
    h->n_events = h->n_blocks = 0;
    h->lost = gt__allocator_visit_history(allocator, keep_event, h);
    gt__allocator_visit(allocator, keep_block, h);
    gt__allocator_stats(allocator, &h->stats);
    return GT_OK;
}

/* --- lives */
static int by_sequence(const void *a, const void *b) {
    uint64_t x = ((const gt__life *)a)->sequence, y = ((const gt__life *)b)->sequence;
    return (x > y) - (x < y);
}

static gt__life *find(const gt__lives *h, uint64_t sequence) {
    gt__life key = {.sequence = sequence};
    return bsearch(&key, h->list, (size_t)h->count, sizeof key, by_sequence);
}

/* One entry for each allocation that an event or a live block speaks of, in order. */
static void list_all(gt__lives *h) {
    int64_t n = 0;
    for (int64_t i = 0; i < h->n_events; ++i)
        if (of_block(&h->events[i])) h->list[n++].sequence = h->events[i].sequence;
    for (int64_t i = 0; i < h->n_blocks; ++i)
        if (h->blocks[i].state == GT__BLOCK_USED) h->list[n++].sequence = h->blocks[i].sequence;
    qsort(h->list, (size_t)n, sizeof *h->list, by_sequence);
    for (int64_t i = 0; i < n; ++i) {
        uint64_t sequence = h->list[i].sequence;
        if (h->count > 0 && h->list[h->count - 1].sequence == sequence) continue;
        h->list[h->count++] = (gt__life){.sequence = sequence, .born = GT__BORN_BEFORE, .died = GT__NOT_DIED};
    }
}

static void describe_by_event(gt__life *life, const gt__memory_event *event) {
    bool birth = event->kind == GT__MEMORY_ALLOC; /* later events have their own step and phase */
    life->bytes = event->bytes;
    life->op = event->op;
    life->module = event->module;
    for (int32_t i = 0; i < event->ndim; ++i) life->shape[i] = event->shape[i];
    life->ndim = event->ndim;
    life->dtype = event->dtype;
    life->step = birth ? event->step : -1;
    life->phase = birth ? event->phase : GT__PHASE_OTHER;
    life->category = event->kind == GT__MEMORY_CATEGORY ? event->category_before : event->category;
}

static void describe_by_block(gt__life *life, const gt__block_info *block) {
    if (life->bytes == 0) life->category = block->category; /* no event changed it */
    life->bytes = block->bytes;
    life->op = block->op;
    life->module = block->module;
    for (int32_t i = 0; i < block->ndim; ++i) life->shape[i] = block->shape[i];
    life->ndim = block->ndim;
    life->dtype = block->dtype;
    life->step = block->step;
    life->phase = block->phase;
}

gt_status gt__lives_collect(const gt__allocator *allocator, gt__lives *h) {
    *h = (gt__lives){.stats = {.struct_size = sizeof h->stats}};
    GT_TRY(copy_all(allocator, h));
    list_all(h);
    uint64_t grown = 0; /* reserved since the first event; may wrap */
    for (int64_t i = 0; i < h->n_events; ++i) {
        const gt__memory_event *event = &h->events[i];
        h->life_of[i] = -1;
        if (event->kind == GT__MEMORY_RESERVE) grown += event->bytes;
        if (event->kind == GT__MEMORY_UNRESERVE) grown -= event->bytes;
        if (!of_block(event)) continue;
        gt__life *life = find(h, event->sequence);
        h->life_of[i] = life - h->list;
        if (life->bytes == 0) describe_by_event(life, event);
        if (event->kind == GT__MEMORY_ALLOC) life->born = i;
        if (event->kind == GT__MEMORY_FREE) life->died = i;
    }
    h->reserved_at_start = h->stats.reserved - grown;
    for (int64_t i = 0; i < h->n_blocks; ++i)
        if (h->blocks[i].state == GT__BLOCK_USED) describe_by_block(find(h, h->blocks[i].sequence), &h->blocks[i]);
    return GT_OK;
}

void gt__lives_free(gt__lives *h) {
    gt__free(h->events);
    gt__free(h->life_of);
    gt__free(h->blocks);
    gt__free(h->list);
    *h = (gt__lives){0};
}

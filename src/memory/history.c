/* The last events, in a ring. */
#include "memory/internal.h"

gt_status gt__allocator_set_history(gt__allocator *a, int64_t events) {
    GT_REQUIRE(events >= 0 && (uint64_t)events <= SIZE_MAX / 2 / sizeof(gt__memory_event), GT_BAD_ARGUMENT,
               "memory history: %lld events cannot be kept", (long long)events);
    gt__free(a->history.events);
    a->history = (gt__history){.capacity = (uint64_t)events};
    return GT_OK;
}

/* The ring is made by the first event. Without host memory for it events are lost, and counted as such: that is no reason to fail an allocation. */
static bool ring_new(gt__history *h) {
    bool clean = gt_last_error()->status == GT_OK;
    h->events = gt__malloc((size_t)h->capacity * sizeof *h->events);
    if (h->events == NULL && clean) gt_clear_error();
    h->first = h->count;
    return h->events != NULL;
}

gt__memory_event *gt__history_add(gt__allocator *a, gt__event_kind kind, double seconds) {
    gt__history *h = &a->history;
    if (h->capacity == 0) return NULL;
    if (GT__UNLIKELY(h->events == NULL) && !ring_new(h)) {
        h->count++;
        return NULL;
    }
    gt__memory_event *e = &h->events[(h->count - h->first) % h->capacity];
    h->count++;
    e->address = NULL;
    e->bytes = 0;
    e->op = e->module = NULL;
    e->seconds = seconds;
    e->sequence = 0;
    e->step = (int32_t)a->stats.steps;
    e->kind = kind;
    e->category = e->category_before = GT_MEMORY_USER;
    e->phase = a->phase;
    e->ndim = -1;
    e->dtype = GT_DTYPE_F32;
    return e;
}

void gt__history_block(gt__allocator *a, gt__event_kind kind, double seconds, const gt__block *block, gt_memory_category before) {
    gt__memory_event *e = gt__history_add(a, kind, seconds);
    if (e == NULL) return;
    e->address = block->data;
    e->bytes = block->bytes;
    e->op = block->tagged->op;
    e->module = block->tagged->module;
    e->sequence = block->sequence;
    e->category = block->category;
    e->category_before = before;
    e->ndim = block->ndim;
    e->dtype = block->dtype;
    for (int32_t i = 0; i < block->ndim; ++i) e->shape[i] = block->shape[i];
}

void gt__history_bytes(gt__allocator *a, gt__event_kind kind, const void *address, size_t bytes) {
    if (a->history.capacity == 0) return;
    gt__memory_event *e = gt__history_add(a, kind, gt__allocator_clock(a));
    if (e == NULL) return;
    e->address = address;
    e->bytes = bytes;
}

uint64_t gt__allocator_visit_history(const gt__allocator *a, gt__event_visitor visit, void *user) {
    const gt__history *h = &a->history;
    if (h->events == NULL) return h->count;
    uint64_t kept = GT__MIN(h->count - h->first, h->capacity);
    for (uint64_t i = h->count - kept; i < h->count; ++i) visit(user, &h->events[(i - h->first) % h->capacity]);
    return h->count - kept;
}

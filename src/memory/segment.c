/* Plain segments, and what plain and expandable ones share. */
#include "memory/internal.h"

bool gt__limit_allows(const gt__allocator *a, size_t bytes) {
    return a->limit == 0 || (bytes <= a->limit && a->stats.reserved <= a->limit - bytes);
}

void gt__segment_link(gt__allocator *a, gt__segment *s) {
    s->previous = NULL;
    s->next = a->segments;
    if (s->next) s->next->previous = s;
    a->segments = s;
    a->stats.segments++;
}

void gt__segment_unlink(gt__allocator *a, gt__segment *s) {
    if (s->previous)
        s->previous->next = s->next;
    else
        a->segments = s->next;
    if (s->next) s->next->previous = s->previous;
    a->stats.segments--;
}

void gt__reserved_add(gt__allocator *a, gt__segment *s, const void *address, size_t bytes) {
    s->reserved += bytes;
    a->stats.reserved += bytes;
    a->stats.peak_reserved = GT__MAX(a->stats.peak_reserved, a->stats.reserved);
    gt__history_bytes(a, GT__MEMORY_RESERVE, address, bytes);
}

void gt__reserved_remove(gt__allocator *a, gt__segment *s, const void *address, size_t bytes) {
    s->reserved -= bytes;
    a->stats.reserved -= bytes;
    gt__history_bytes(a, GT__MEMORY_UNRESERVE, address, bytes);
}

gt_status gt__segment_new(gt__allocator *a, size_t bytes, bool small, gt__block **out) {
    GT_TRY(gt__blocks_ensure(a, 1));
    gt__segment *s = gt__calloc(1, sizeof *s);
    if (s == NULL) return GT_OUT_OF_HOST_MEMORY;
    void *data = NULL;
    gt_status status = gt__device_alloc(a, bytes, &data);
    if (status != GT_OK) {
        gt__free(s);
        return status;
    }
    s->data = data;
    s->bytes = bytes;
    s->small = small;
    gt__segment_link(a, s);
    gt__reserved_add(a, s, data, bytes);
    gt__block *block = gt__block_new(a);
    block->data = s->data;
    block->bytes = bytes;
    block->segment = s;
    s->first = block;
    *out = gt__block_set_free(a, block);
    return GT_OK;
}

void gt__segment_return(gt__allocator *a, gt__block *block) {
    gt__segment *s = block->segment;
    gt__class_remove(a, block);
    gt__block_recycle(a, block);
    gt__device_free(a, s->data);
    gt__reserved_remove(a, s, s->data, s->bytes);
    gt__segment_unlink(a, s);
    gt__free(s);
}

void gt__segments_free(gt__allocator *a) {
    while (a->segments) {
        gt__segment *s = a->segments;
        gt__segment_unlink(a, s);
        if (s->expandable)
            gt__range_free(a, s);
        else
            gt__device_free(a, s->data);
        gt__free(s);
    }
}

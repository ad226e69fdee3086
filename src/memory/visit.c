/* Looking inside: blocks, and how much a request could get. */
#include "memory/internal.h"

void gt__allocator_visit(const gt__allocator *a, gt__block_visitor visit, void *user) {
    for (const gt__segment *s = a->segments; s; s = s->next) {
        for (const gt__block *b = s->first; b; b = b->right) {
            gt__block_info info = {.address = b->data,
                                   .segment = s->data,
                                   .segment_bytes = s->reserved,
                                   .bytes = b->bytes,
                                   .ndim = -1,
                                   .state = b->state,
                                   .expandable = s->expandable,
                                   .small = s->small};
            if (b->state == GT__BLOCK_USED) {
                info.asked = b->asked;
                info.op = b->tagged->op;
                info.module = b->tagged->module;
                info.step = (int64_t)b->step;
                info.sequence = b->sequence;
                info.seconds = b->seconds;
                info.ndim = b->ndim;
                info.dtype = b->dtype;
                info.category = b->category;
                info.phase = b->phase;
                for (int32_t i = 0; i < b->ndim; ++i) info.shape[i] = b->shape[i];
            }
            visit(user, &info);
        }
    }
}

uint64_t gt__allocator_largest_free(const gt__allocator *a) { return GT__MAX(gt__class_largest(a, false), gt__class_largest(a, true)); }

uint64_t gt__allocator_largest_possible(const gt__allocator *a) {
    uint64_t device_free = 0, total = 0, room = UINT64_MAX, cached = gt__class_largest(a, false);
    if (a->limit) room = a->limit > a->stats.reserved ? a->limit - a->stats.reserved : 0;
    if (gt__device_info(a, &device_free, &total) == GT_OK) room = GT__MIN(room, device_free);
    size_t back = gt__reclaimable(a, NULL);
    /* A limit below what is reserved takes from what can be given back. */
    if (a->limit && a->stats.reserved > a->limit) back -= (size_t)GT__MIN(back, a->stats.reserved - a->limit);
    room = GT__MIN(room, UINT64_MAX - back) + back;
    room = GT__MIN(room, (uint64_t)SIZE_MAX / 4);
    room -= room % GT__MEMORY_UNIT;
    uint64_t fresh = room;
    if (a->grain && !a->plain[0]) {
        size_t spare = (size_t)(room / a->grain * a->grain);
        fresh = GT__MAX(gt__range_largest(a, false, spare), spare);
        if (a->limit && room < a->grain) fresh = GT__MAX(fresh, room);
    }
    return GT__MAX(cached, fresh);
}

/* What gt__allocator_visit shows, added up and checked: blocks cover their segments, neighbours are merged, the sums are those of the statistics. */
#ifndef GTRAIN_TESTS_MEMORY_STATE_H
#define GTRAIN_TESTS_MEMORY_STATE_H

#include "harness/test.h"

#include "unit/fake_device.h"

typedef struct memory_state {
    const fake_device *device;
    uint64_t used, free, in_use_by[GT_MEMORY_CATEGORY_COUNT];
    uint64_t returnable;      /* wholly free plain segments and free grains */
    uint64_t largest_free[2]; /* [small] */
    int64_t segments, blocks;
    /* while visiting: */
    const char *segment, *end;
    uint64_t reserved_here, segment_reserved;
    size_t first_bytes;
    gt__block_state last;
    int here;
} memory_state;

static inline void memory_state_segment_done(memory_state *s) {
    if (!s->segment) return;
    CHECK(s->reserved_here == s->segment_reserved);
}

static inline void memory_state_block(void *user, const gt__block_info *b) {
    memory_state *s = user;
    const char *address = b->address;
    CHECK(b->bytes > 0 && b->bytes % 512 == 0);
    if (b->segment != s->segment) {
        memory_state_segment_done(s);
        CHECK(address == b->segment);
        s->segments++;
        s->segment = b->segment;
        s->reserved_here = 0;
        s->segment_reserved = b->segment_bytes;
        s->here = 0;
    } else {
        CHECK(address == s->end);
        CHECK(b->state == GT__BLOCK_USED || b->state != s->last);
    }
    s->blocks++;
    s->here++;
    s->end = address + b->bytes;
    s->last = b->state;
    if (b->state != GT__BLOCK_UNMAPPED) s->reserved_here += b->bytes;
    if (b->state == GT__BLOCK_USED) {
        CHECK(b->asked > 0 && b->asked <= b->bytes);
        s->used += b->bytes;
        s->in_use_by[b->category] += b->bytes;
    } else if (b->state == GT__BLOCK_FREE) {
        s->free += b->bytes;
        if (b->bytes > s->largest_free[b->small]) s->largest_free[b->small] = b->bytes;
        if (!b->expandable) {
            if (b->bytes == b->segment_bytes) s->returnable += b->bytes;
        } else {
            size_t grain = s->device->grain, from = (size_t)(address - s->segment);
            size_t low = (from + grain - 1) / grain * grain, high = (from + b->bytes) / grain * grain;
            if (high > low) s->returnable += high - low;
        }
    } else {
        CHECK(b->expandable);
        CHECK((size_t)(address - s->segment) % s->device->grain == 0 && b->bytes % s->device->grain == 0);
    }
}

static inline memory_state memory_state_of(const gt__allocator *a, const fake_device *f) {
    memory_state s = {.device = f};
    gt_memory_stats stats = {.struct_size = sizeof stats};
    gt__allocator_visit(a, memory_state_block, &s);
    memory_state_segment_done(&s);
    gt__allocator_stats(a, &stats);
    CHECK(stats.in_use == s.used && stats.cached == s.free && stats.reserved == s.used + s.free);
    CHECK(stats.reserved == f->used);
    CHECK(stats.segments == (uint64_t)s.segments);
    uint64_t sum = 0, largest = s.largest_free[0] > s.largest_free[1] ? s.largest_free[0] : s.largest_free[1];
    for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) {
        CHECK(stats.category_in_use[c] == s.in_use_by[c] && stats.category_peak[c] >= s.in_use_by[c]);
        sum += stats.category_in_use[c];
    }
    CHECK(sum == stats.in_use && stats.peak_in_use >= stats.in_use && stats.peak_reserved >= stats.reserved);
    CHECK(stats.step_peak >= stats.in_use && stats.step_peak <= stats.peak_in_use);
    CHECK(stats.largest_free == largest && gt__allocator_largest_free(a) == largest);
    CHECK_NEAR(stats.fragmentation, s.free ? 1.0 - (double)largest / (double)s.free : 0.0, 1e-12);
    CHECK_EQ_INT(f->faults, 0);
    return s;
}

static inline gt_status memory_take(gt__allocator *a, size_t bytes, gt_memory_category category, bool quiet, gt__block **block) {
    const gt__tag tag = {.op = "op", .category = category};
    return gt__allocator_alloc(a, bytes, &tag, quiet, block);
}

#endif

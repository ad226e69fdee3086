/* Random traces over a device with a hard capacity: what must hold after every operation, and that a request fails only if there is no way to serve it. */
#include "unit/memory_state.h"

enum { SLOTS = 256, MIB = 1 << 20 };

typedef struct slot {
    gt__block *block;
    size_t asked;
    uint64_t stamp;
} slot;

typedef struct trace {
    fake_device f;
    gt__allocator *a;
    slot slots[SLOTS];
    uint32_t random, live_most;
    uint64_t stamps, successes, failures, frees, retries, largest_checked;
    size_t limit, largest;
} trace;

static uint32_t next_random(trace *t) {
    t->random ^= t->random << 13;
    t->random ^= t->random >> 17;
    t->random ^= t->random << 5;
    return t->random;
}

/* A stamp at the block's first and last asked bytes: contents that are lost, or of another block, are found out. */
static void write_stamp(trace *t, slot *s) {
    s->stamp = ++t->stamps * 0x9e3779b97f4a7c15ull;
    char *data = gt__block_data(s->block);
    if (s->asked >= sizeof s->stamp) {
        memcpy(data, &s->stamp, sizeof s->stamp);
        memcpy(data + s->asked - sizeof s->stamp, &s->stamp, sizeof s->stamp);
    }
    fake_work(&t->f);
}

static void check_stamp(const slot *s) {
    const char *data = gt__block_data(s->block);
    if (s->asked < sizeof s->stamp) return;
    CHECK(memcmp(data + s->asked - sizeof s->stamp, &s->stamp, sizeof s->stamp) == 0);
    if (s->asked >= 2 * sizeof s->stamp) CHECK(memcmp(data, &s->stamp, sizeof s->stamp) == 0);
}

static void release(trace *t, slot *s) {
    check_stamp(s);
    gt__allocator_free(t->a, s->block);
    fake_work(&t->f); /* what used it may still be queued */
    s->block = NULL;
    t->frees++;
}

static size_t room_of(const trace *t, const memory_state *s) {
    size_t reserved = (size_t)(s->used + s->free), room = t->f.capacity - t->f.used;
    size_t limited = t->limit + (size_t)s->returnable > reserved ? t->limit + (size_t)s->returnable - reserved : 0;
    room += (size_t)s->returnable;
    return t->limit && limited < room ? limited : room;
}

/* Nothing could have served it: no free block of its kind fits, nor do the device's memory, the limit and all that could be given back allow for it. */
static void check_failure(trace *t, size_t bytes) {
    memory_state s = memory_state_of(t->a, &t->f);
    size_t rounded = (bytes + 511) / 512 * 512, room = room_of(t, &s);
    bool small = rounded <= MIB;
    CHECK(s.largest_free[0] < rounded && (!small || s.largest_free[1] < rounded));
    if (t->f.grain)
        CHECK((rounded + t->f.grain - 1) / t->f.grain > room / t->f.grain);
    else
        CHECK(rounded > room);
}

/* A request of any size up to the largest, small ones more often. */
static size_t some_size(trace *t) {
    size_t most = t->largest;
    for (uint32_t halvings = next_random(t) % 16; halvings > 0 && most > 1024; --halvings) most /= 2;
    return 1 + next_random(t) % most;
}

static void take(trace *t, slot *s) {
    bool quiet = next_random(t) % 4 != 0;
    gt_memory_stats before = {.struct_size = sizeof before}, after = before;
    gt__allocator_stats(t->a, &before);
    s->asked = some_size(t);
    gt_status status = memory_take(t->a, s->asked, (gt_memory_category)(next_random(t) % 8), quiet, &s->block);
    gt__allocator_stats(t->a, &after);
    if (status == GT_OK) {
        t->successes++;
        CHECK(after.in_use == before.in_use + gt__block_bytes(s->block) && gt__block_bytes(s->block) >= s->asked);
        if (after.reserved > before.reserved) CHECK(t->limit == 0 || after.reserved <= t->limit);
        write_stamp(t, s);
    } else {
        CHECK_STATUS(status, GT_OUT_OF_MEMORY);
        s->block = NULL;
        t->failures++;
        CHECK(after.in_use == before.in_use && after.out_of_memory == before.out_of_memory + !quiet);
        check_failure(t, s->asked);
        if (!quiet) CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
        gt_clear_error();
    }
    CHECK(after.reserved <= t->f.capacity && after.in_use + after.cached == after.reserved);
    CHECK_EQ_INT(gt_last_error()->status, GT_OK);
}

/* The largest request that is said to be possible is, and no larger one. */
static void check_largest(trace *t) {
    gt__block *block;
    uint64_t largest = gt__allocator_largest_possible(t->a);
    if (largest <= MIB) return; /* small requests have their own segments */
    CHECK_STATUS(memory_take(t->a, (size_t)largest + 1, 0, true, &block), GT_OUT_OF_MEMORY);
    CHECK(gt__allocator_largest_possible(t->a) == largest);
    CHECK_OK(memory_take(t->a, (size_t)largest, 0, true, &block));
    gt__allocator_free(t->a, block);
    fake_work(&t->f);
    t->successes++;
    t->frees++;
    t->largest_checked++;
}

static void other_operation(trace *t, uint32_t which) {
    slot *s = &t->slots[next_random(t) % t->live_most];
    switch (which) {
    case 0:
        gt__allocator_trim(t->a);
        CHECK_EQ_INT(memory_state_of(t->a, &t->f).returnable, 0);
        break;
    case 1: /* any limit, one below what is in use included */
        t->limit = next_random(t) % 3 == 0 ? 0 : 1 + next_random(t) % (2 * t->f.capacity);
        gt__allocator_set_limit(t->a, t->limit);
        CHECK(gt__allocator_limit(t->a) == t->limit);
        break;
    case 2:
        gt__allocator_next_step(t->a);
        break;
    case 3:
        check_largest(t);
        break;
    case 4:
        gt__allocator_reset_peak(t->a);
        gt__allocator_next_step(t->a);
        break;
    default:
        if (s->block) gt__block_set_category(t->a, s->block, (gt_memory_category)(next_random(t) % 8));
    }
}

/* Returns how many ranges of addresses were reserved. */
static int run(size_t capacity, size_t grain, size_t largest, uint32_t live_most, int operations, uint32_t seed) {
    static trace t;
    t = (trace){.random = seed, .largest = largest, .live_most = live_most};
    fake_open(&t.f, capacity, grain);
    CHECK_OK(gt__allocator_create(&t.f.head, &(gt__allocator_options){.history = 1000, .expandable = true}, &t.a));
    gt_clear_error();
    for (int i = 0; i < operations; ++i) {
        uint32_t choice = next_random(&t) % 1000;
        if (choice < 12) {
            other_operation(&t, choice < 1 ? 0 : choice / 2);
        } else {
            slot *s = &t.slots[next_random(&t) % t.live_most];
            if (s->block)
                release(&t, s);
            else
                take(&t, s);
        }
        if (i % 256 == 0) (void)memory_state_of(t.a, &t.f);
    }
    gt_memory_stats stats = {.struct_size = sizeof stats};
    gt__allocator_stats(t.a, &stats);
    CHECK_EQ_INT(stats.allocations, t.successes);
    CHECK_EQ_INT(stats.frees, t.frees);
    CHECK(stats.retries > 0);
    CHECK(t.failures > (uint64_t)operations / 1000 && t.largest_checked > 10); /* the trace is one that meets the end of memory */
    for (int i = 0; i < SLOTS; ++i)
        if (t.slots[i].block) release(&t, &t.slots[i]);
    memory_state s = memory_state_of(t.a, &t.f);
    CHECK_EQ_INT(s.used, 0);
    if (grain) CHECK(s.returnable == s.free); /* all merged */
    gt__allocator_trim(t.a);
    s = memory_state_of(t.a, &t.f);
    CHECK(t.f.used == 0 && s.free == 0 && (grain ? s.blocks == s.segments : s.segments == 0));
    gt__allocator_destroy(t.a);
    CHECK(t.f.faults == 0 && t.f.pieces == NULL && t.f.ranges == NULL);
    return t.f.reserves;
}

TEST(unit, allocator_trace_plain) { CHECK_EQ_INT(run(96 * MIB, 0, 24 * MIB, SLOTS, 250000, 12345), 0); }
TEST(unit, allocator_trace_plain_few) { CHECK_EQ_INT(run(64 * MIB, 0, 32 * MIB, 24, 150000, 99), 0); }
TEST(unit, allocator_trace_maps) { CHECK_EQ_INT(run(96 * MIB, 2 * MIB, 24 * MIB, SLOTS, 250000, 12345), 2); }
TEST(unit, allocator_trace_maps_few) { CHECK_EQ_INT(run(24 * MIB, 2 * MIB, 12 * MIB, 24, 150000, 4711), 2); }
TEST(unit, allocator_trace_maps_of_small_grains) {
    CHECK(run(48 * MIB, 64 << 10, 12 * MIB, SLOTS, 250000, 777) > 2); /* holes everywhere: one range's addresses do not do */
}

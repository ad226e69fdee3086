/* The caching allocator over an invented device: one behaviour a case. Random traces are in memory_trace.c. */
#include "unit/memory_state.h"

enum { MIB = 1 << 20 };

typedef struct bench {
    fake_device f;
    gt__allocator *a;
} bench;

static void open_with(bench *b, size_t capacity, size_t grain, const gt__allocator_options *options) {
    fake_open(&b->f, capacity, grain);
    CHECK_OK(gt__allocator_create(&b->f.head, options, &b->a));
}

static void open(bench *b, size_t capacity, size_t grain, uint64_t limit) {
    open_with(b, capacity, grain, &(gt__allocator_options){.limit = limit, .history = 100, .expandable = true});
}

static void close(bench *b) {
    b->f.busy = 0; /* the context waits before it closes */
    gt__allocator_destroy(b->a);
    CHECK(b->f.used == 0 && b->f.pieces == NULL && b->f.ranges == NULL);
    CHECK_EQ_INT(b->f.faults, 0);
}

static gt__block *take(bench *b, size_t bytes) {
    gt__block *block = NULL;
    CHECK_OK(memory_take(b->a, bytes, GT_MEMORY_USER, false, &block));
    return block;
}

static gt_memory_stats stats_of(const bench *b) {
    gt_memory_stats stats = {.struct_size = sizeof stats};
    gt__allocator_stats(b->a, &stats);
    (void)memory_state_of(b->a, &b->f);
    return stats;
}

static void refused(bench *b, size_t bytes) {
    gt__block *block;
    CHECK_STATUS(memory_take(b->a, bytes, GT_MEMORY_USER, false, &block), GT_OUT_OF_MEMORY);
    gt_clear_error();
}

TEST(unit, allocator_reuses_splits_and_merges) {
    bench b;
    open(&b, 1ull << 30, 0, 0);
    gt__block *blocks[3];
    for (int i = 0; i < 3; ++i) blocks[i] = take(&b, 6 * MIB);
    CHECK_EQ_INT(b.f.allocs, 1); /* three in one 20 MiB segment */
    gt__allocator_free(b.a, blocks[0]);
    gt__allocator_free(b.a, blocks[2]);
    gt__allocator_free(b.a, blocks[1]); /* between two free ones */
    (void)take(&b, 20 * MIB);
    CHECK_EQ_INT(b.f.allocs, 1);
    close(&b);
}

TEST(unit, allocator_maps_just_the_grains_that_are_missing) {
    bench b;
    open(&b, 1ull << 30, 2 * MIB, 0);
    gt__block *x = take(&b, 5 * MIB);
    CHECK_EQ_INT(b.f.used, 6 * MIB);
    gt__block *y = take(&b, 2 * MIB); /* half of it is in the last grain */
    CHECK_EQ_INT(b.f.used, 8 * MIB);
    CHECK(gt__block_data(y) == (char *)gt__block_data(x) + 5 * MIB);
    memset(gt__block_data(y), 7, 2 * MIB);
    gt__allocator_free(b.a, x);
    (void)take(&b, 9 * MIB); /* does not fit where x was: one free MiB after y and four new grains */
    CHECK_EQ_INT(b.f.used, 16 * MIB);
    CHECK_EQ_INT(b.f.reserves, 1);
    (void)take(&b, 100); /* small requests live in a range of their own */
    CHECK_EQ_INT(b.f.reserves, 2);
    CHECK_EQ_INT(stats_of(&b).segments, 2);
    CHECK_EQ_INT(((char *)gt__block_data(y))[2 * MIB - 1], 7);
    close(&b);
}

TEST(unit, allocator_returns_cached_memory_before_it_fails) {
    for (size_t grain = 0; grain <= 2 * MIB; grain += 2 * MIB) {
        bench b;
        open(&b, 64 * MIB, grain, 0);
        gt__block *x = take(&b, 40 * MIB), *y;
        gt__allocator_free(b.a, x);
        fake_work(&b.f);
        y = take(&b, 60 * MIB);
        const gt__tag tag = {.op = "conv2d", .module = "block1.conv"};
        CHECK_STATUS(gt__allocator_alloc(b.a, 40 * MIB, &tag, false, &x), GT_OUT_OF_MEMORY);
        CHECK_ERROR_HAS("conv2d \"block1.conv\"");
        CHECK_ERROR_HAS("user tensors 60.0 MiB");
        gt_clear_error();
        CHECK_STATUS(gt__allocator_alloc(b.a, SIZE_MAX, &tag, false, &x), GT_OUT_OF_MEMORY);
        gt_clear_error();
        CHECK_STATUS(gt__allocator_alloc(b.a, SIZE_MAX - 100, &tag, true, &x), GT_OUT_OF_MEMORY);
        CHECK_EQ_INT(gt_last_error()->status, GT_OK); /* quiet */
        gt__allocator_free(b.a, y);
        close(&b);
    }
}

/* Ten blocks of 10 MiB at a limit of 100 MiB, every second freed. `whole`: cut from one piece. */
static void ten_blocks(bench *b, size_t grain, bool whole) {
    gt__block *blocks[10];
    open(b, 1ull << 30, grain, 100 * MIB);
    if (whole) gt__allocator_free(b->a, take(b, 100 * MIB));
    for (int i = 0; i < 10; ++i) blocks[i] = take(b, 10 * MIB);
    for (int i = 0; i < 10; i += 2) gt__allocator_free(b->a, blocks[i]);
    fake_work(&b->f);
}

TEST(unit, allocator_fragmented_segments_fail_unless_memory_can_be_moved) {
    bench b;
    ten_blocks(&b, 0, true);
    refused(&b, 20 * MIB);
    gt_memory_stats stats = stats_of(&b);
    CHECK_EQ_INT(stats.in_use, 52428800);
    CHECK_EQ_INT(stats.cached, 52428800);
    CHECK_EQ_INT(stats.largest_free, 10485760);
    CHECK_NEAR(stats.fragmentation, 0.8, 1e-12);
    CHECK_EQ_INT(stats.out_of_memory, 1);
    CHECK_EQ_INT(gt__allocator_largest_possible(b.a), 10485760);
    refused(&b, 60 * MIB);
    close(&b);

    ten_blocks(&b, 0, false);
    CHECK_EQ_INT(stats_of(&b).segments, 10);
    (void)take(&b, 20 * MIB); /* what is free goes back first */
    CHECK_EQ_INT(stats_of(&b).retries, 1);
    close(&b);

    ten_blocks(&b, 2 * MIB, true);
    CHECK_EQ_INT(stats_of(&b).largest_free, 10485760);
    CHECK_EQ_INT(gt__allocator_largest_possible(b.a), 52428800);
    int unmaps = b.f.unmaps;
    refused(&b, 60 * MIB);
    CHECK_EQ_INT(b.f.unmaps, unmaps); /* nothing is given back in vain */
    (void)take(&b, 20 * MIB);
    stats = stats_of(&b);
    CHECK_EQ_INT(stats.in_use, 72 * MIB - 2 * MIB);
    CHECK_EQ_INT(stats.reserved, 100 * MIB);
    CHECK_EQ_INT(stats.retries, 1);
    CHECK_EQ_INT(stats.largest_free, 10485760);
    (void)take(&b, 30 * MIB);
    CHECK_EQ_INT(stats_of(&b).cached, 0);
    close(&b);
}

/* What lies in live blocks stays when memory is moved around them. */
TEST(unit, allocator_moves_memory_between_pools_and_keeps_contents) {
    bench b;
    open(&b, 32 * MIB, 2 * MIB, 0);
    gt__block *small[160];
    for (int i = 0; i < 160; ++i) { /* 20 MiB of small blocks */
        small[i] = take(&b, 128 << 10);
        memset(gt__block_data(small[i]), i, 128 << 10);
    }
    gt__block *large = take(&b, 12 * MIB);
    memset(gt__block_data(large), 77, 12 * MIB);
    refused(&b, 2 * MIB);
    for (int i = 16; i < 80; ++i) gt__allocator_free(b.a, small[i]); /* four whole grains */
    fake_work(&b.f);
    gt__block *second = take(&b, 8 * MIB);
    memset(gt__block_data(second), 88, 8 * MIB);
    CHECK_EQ_INT(b.f.used, 32 * MIB);
    gt__allocator_free(b.a, large);
    fake_work(&b.f);
    for (int i = 16; i < 80; ++i) small[i] = take(&b, 128 << 10); /* and back */
    for (int i = 0; i < 160; ++i) {
        const unsigned char *data = gt__block_data(small[i]);
        if (i < 16 || i >= 80) CHECK(data[0] == i && data[(128 << 10) - 1] == i);
    }
    CHECK(((char *)gt__block_data(second))[0] == 88 && ((char *)gt__block_data(second))[8 * MIB - 1] == 88);
    (void)stats_of(&b);
    close(&b);
}

TEST(unit, allocator_waits_only_to_give_back) {
    for (size_t grain = 0; grain <= 2 * MIB; grain += 2 * MIB) {
        bench b;
        open(&b, 64 * MIB, grain, 0);
        gt__block *x = take(&b, 30 * MIB), *y = take(&b, 30 * MIB);
        gt__allocator_trim(b.a);
        refused(&b, 30 * MIB);
        CHECK_EQ_INT(b.f.waits, 0); /* nothing is free */
        gt__allocator_free(b.a, x);
        fake_work(&b.f);
        x = take(&b, 30 * MIB);
        CHECK_EQ_INT(b.f.waits, 0); /* reuse is in the stream's order */
        gt__allocator_free(b.a, x);
        gt__allocator_free(b.a, y);
        fake_work(&b.f);
        (void)take(&b, 60 * MIB); /* the two are one with maps */
        CHECK_EQ_INT(b.f.waits, grain ? 0 : 2);
        close(&b);
    }
}

TEST(unit, allocator_limit_can_change_at_any_time) {
    for (size_t grain = 0; grain <= 2 * MIB; grain += 2 * MIB) {
        bench b;
        open(&b, 256 * MIB, grain, 0);
        gt__block *x = take(&b, 40 * MIB), *y = take(&b, 40 * MIB);
        gt__allocator_free(b.a, x);
        gt__allocator_set_limit(b.a, 60 * MIB); /* below what is reserved */
        CHECK_EQ_INT(stats_of(&b).limit, 60 * MIB);
        CHECK_EQ_INT(stats_of(&b).reserved, 80 * MIB);
        x = take(&b, 40 * MIB); /* from the cache: nothing grows */
        gt__allocator_free(b.a, x);
        CHECK_EQ_INT(gt__allocator_largest_possible(b.a), 40 * MIB);
        x = take(&b, 20 * MIB);
        refused(&b, 30 * MIB);
        CHECK_EQ_INT(stats_of(&b).in_use, grain ? 60 * MIB : 60 * MIB);
        gt__allocator_free(b.a, x);
        gt__allocator_set_limit(b.a, 90 * MIB);
        x = take(&b, 50 * MIB); /* cached memory goes back first */
        CHECK_EQ_INT(stats_of(&b).reserved, 90 * MIB);
        gt__allocator_set_limit(b.a, 1);
        refused(&b, 2 * MIB);
        gt__allocator_free(b.a, y);
        (void)take(&b, 20 * MIB);
        gt__allocator_set_limit(b.a, 0);
        (void)take(&b, 100 * MIB);
        close(&b);
    }
}

TEST(unit, allocator_a_limit_below_a_grain_still_serves) {
    bench b;
    open(&b, 256 * MIB, 2 * MIB, 300000);
    gt__block *x = take(&b, 200000);
    refused(&b, 200000);
    (void)take(&b, 90000);
    CHECK(stats_of(&b).reserved <= 300000);
    gt__allocator_free(b.a, x);
    (void)take(&b, 150000);
    close(&b);
}

TEST(unit, allocator_segments_are_plain_where_there_are_no_maps) {
    bench b;
    open_with(&b, 256 * MIB, 2 * MIB, &(gt__allocator_options){.expandable = false});
    (void)take(&b, 5 * MIB);
    CHECK(b.f.reserves == 0 && b.f.maps == 0 && b.f.allocs == 1);
    close(&b);

    open(&b, 256 * MIB, 2 * MIB, 0); /* no addresses for the second pool */
    b.f.reserves_left = 1;
    (void)take(&b, 5 * MIB);
    (void)take(&b, 500);
    (void)take(&b, 500000);
    CHECK_EQ_INT(gt_last_error()->status, GT_OK);
    CHECK(b.f.reserves == 2 && b.f.maps == 1 && b.f.allocs == 1);
    CHECK_EQ_INT(stats_of(&b).segments, 2);
    close(&b);
}

/* More free blocks of about the size than a search looks at before it tries larger ones, of which there are none. */
TEST(unit, allocator_finds_the_one_block_that_fits) {
    bench b;
    enum { COUNT = 100 };
    gt__block *fitting[COUNT];
    open(&b, 512 * MIB, 0, 512 * MIB);
    gt__block *whole = take(&b, 512 * MIB);
    gt__allocator_free(b.a, whole);
    for (int i = 0; i < COUNT; ++i) {
        fitting[i] = take(&b, 4 * MIB + (i == 0 ? 4096 : 0));
        (void)take(&b, MIB + 512);
    }
    whole = take(&b, 512 * MIB - COUNT * (5 * MIB + 512) - 4096);
    for (int i = 0; i < COUNT; ++i) gt__allocator_free(b.a, fitting[i]);
    CHECK_EQ_INT(stats_of(&b).largest_free, 4 * MIB + 4096);
    (void)take(&b, 4 * MIB + 4096);
    close(&b);
}

TEST(unit, allocator_passes_other_failures_of_the_device_on) {
    for (size_t grain = 0; grain <= 2 * MIB; grain += 2 * MIB) {
        bench b;
        gt__block *block;
        open(&b, 256 * MIB, grain, 0);
        gt__block *x = take(&b, 5 * MIB);
        b.f.failing = GT_LIBRARY;
        gt_memory_stats before = stats_of(&b), after;
        CHECK_STATUS(memory_take(b.a, 50 * MIB, GT_MEMORY_USER, false, &block), GT_LIBRARY);
        CHECK_STATUS(memory_take(b.a, 50 * MIB, GT_MEMORY_USER, true, &block), GT_LIBRARY);
        CHECK_STATUS(memory_take(b.a, 50, GT_MEMORY_USER, false, &block), GT_LIBRARY);
        after = stats_of(&b);
        CHECK(after.in_use == before.in_use && after.reserved == before.reserved && after.out_of_memory == 0);
        b.f.failing = GT_OUT_OF_MEMORY; /* another process was quicker than memory_info tells */
        CHECK_STATUS(memory_take(b.a, 50 * MIB, GT_MEMORY_USER, false, &block), GT_OUT_OF_MEMORY);
        b.f.failing = GT_OK;
        (void)take(&b, 50 * MIB);
        gt__allocator_free(b.a, x);
        close(&b);
    }
}

TEST(unit, allocator_figures_of_steps_and_categories) {
    bench b;
    gt__block *x, *y;
    open(&b, 256 * MIB, 2 * MIB, 0);
    CHECK_OK(memory_take(b.a, 4 * MIB, GT_MEMORY_PARAMETER, false, &x));
    CHECK_OK(memory_take(b.a, 6 * MIB, GT_MEMORY_TEMPORARY, false, &y));
    gt__allocator_free(b.a, y);
    gt__allocator_next_step(b.a);
    CHECK_OK(memory_take(b.a, 2 * MIB, GT_MEMORY_TEMPORARY, false, &y));
    gt__block_set_category(b.a, y, GT_MEMORY_ACTIVATION);
    CHECK_EQ_INT(gt__block_category(y), GT_MEMORY_ACTIVATION);
    gt_memory_stats s = stats_of(&b);
    CHECK(s.steps == 1 && s.last_step_peak == 10 * MIB && s.step_peak == 6 * MIB && s.peak_in_use == 10 * MIB);
    CHECK(s.category_peak[GT_MEMORY_TEMPORARY] == 6 * MIB && s.category_peak[GT_MEMORY_ACTIVATION] == 2 * MIB);
    CHECK(s.category_at_peak[GT_MEMORY_PARAMETER] == 4 * MIB && s.category_at_peak[GT_MEMORY_TEMPORARY] == 6 * MIB);
    CHECK(s.allocations == 3 && s.frees == 1 && s.device_allocations == 2 && s.retries == 0);
    gt__allocator_reset_peak(b.a);
    s = stats_of(&b);
    CHECK(s.peak_in_use == 6 * MIB && s.category_peak[GT_MEMORY_TEMPORARY] == 0 && s.category_peak[GT_MEMORY_ACTIVATION] == 2 * MIB);
    close(&b);
}

/* --- the hook ------------------------------------------------------------------------------------------------------------------------- */

typedef struct helper {
    bench b;
    gt__block *hoard[4];
    int calls, hoarded;
    bool always; /* true without having done anything */
    gt__shortage last;
} helper;

static bool help(void *user, const gt__shortage *shortage) {
    helper *h = user;
    h->calls++;
    h->last = *shortage;
    (void)stats_of(&h->b); /* in order */
    CHECK_EQ_STR(shortage->tag->op, "op");
    if (h->always) return true;
    if (h->hoarded == 0) {
        (void)GT_RAISE(GT_OUT_OF_MEMORY, "the hook's own words");
        return false;
    }
    gt__block *block;
    if (h->hoarded == 4)
        CHECK_STATUS(memory_take(h->b.a, 200 * MIB, GT_MEMORY_USER, false, &block), GT_OUT_OF_MEMORY); /* it is not asked again */
    gt_clear_error();
    gt__allocator_free(h->b.a, h->hoard[--h->hoarded]);
    CHECK_OK(memory_take(h->b.a, 300, GT_MEMORY_USER, false, &block));
    gt__allocator_free(h->b.a, block);
    if (h->hoarded == 1) gt__allocator_trim(h->b.a);
    if (h->hoarded == 0) gt__allocator_set_limit(h->b.a, gt__allocator_limit(h->b.a) + 20 * MIB);
    return true;
}

TEST(unit, allocator_asks_the_hook_before_it_fails) {
    for (size_t grain = 0; grain <= 2 * MIB; grain += 2 * MIB) {
        helper h = {0};
        gt__block *block;
        open_with(&h.b, 256 * MIB, grain, &(gt__allocator_options){.limit = 82 * MIB, .expandable = true, .on_shortage = help, .user = &h});
        for (; h.hoarded < 4; ++h.hoarded) h.hoard[h.hoarded] = take(&h.b, 20 * MIB);
        CHECK_STATUS(memory_take(h.b.a, 40 * MIB, GT_MEMORY_USER, true, &block), GT_OUT_OF_MEMORY);
        CHECK_EQ_INT(h.calls, 0); /* quiet */
        block = take(&h.b, 39 * MIB + 1);
        CHECK_EQ_INT(h.calls, 2);
        CHECK(h.last.bytes == 39 * MIB + 1 && h.last.rounded == 39 * MIB + 512 && !h.last.host);
        gt_memory_stats s = stats_of(&h.b);
        CHECK(s.retries == 1 && s.out_of_memory == 1); /* that of the hook's own request */
        gt__allocator_free(h.b.a, block);
        block = take(&h.b, 98 * MIB); /* with a higher limit at last */
        CHECK_EQ_INT(h.calls, 4);
        CHECK_STATUS(memory_take(h.b.a, 40 * MIB, GT_MEMORY_USER, false, &h.hoard[0]), GT_OUT_OF_MEMORY);
        CHECK_ERROR_HAS("the hook's own words");
        CHECK_EQ_INT(stats_of(&h.b).out_of_memory, 2);
        h.always = true;
        h.calls = 0;
        CHECK_STATUS(memory_take(h.b.a, 40 * MIB, GT_MEMORY_USER, false, &h.hoard[0]), GT_OUT_OF_MEMORY);
        CHECK_ERROR_HAS("40.0 MiB");
        CHECK(h.calls > 100 && h.calls < 10000); /* a hook that cannot help does not hang the caller */
        gt_clear_error();
        close(&h.b);
    }
}

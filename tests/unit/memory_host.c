/* Every host allocation of the allocator in turn fails: the call says OUT_OF_HOST_MEMORY or succeeds, and everything stays in order. */
#include "unit/memory_state.h"

enum { MIB = 1 << 20, BLOCKS = 220 };

static int failures;

static gt_status take(gt__allocator *a, fake_device *f, size_t bytes, const char *module, gt__block **block) {
    gt_memory_stats before = {.struct_size = sizeof before}, after = before;
    gt__allocator_stats(a, &before);
    const gt__tag tag = {.op = "op", .module = module, .category = GT_MEMORY_TEMPORARY};
    gt_status status = gt__allocator_alloc(a, bytes, &tag, false, block);
    gt__allocator_stats(a, &after);
    (void)memory_state_of(a, f);
    if (status == GT_OK) return status;
    CHECK_STATUS(status, GT_OUT_OF_HOST_MEMORY);
    CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_HOST_MEMORY);
    CHECK(after.in_use == before.in_use && after.allocations == before.allocations && after.out_of_memory == before.out_of_memory + 1);
    gt_clear_error();
    failures++;
    CHECK_OK(gt__allocator_alloc(a, bytes, &tag, false, block)); /* just that one failed */
    return GT_OK;
}

/* A life with growth, fragments, moves, many tags and a trim; the `at`th host allocation fails. False: there were fewer. */
static bool life(size_t grain, int64_t at) {
    static char names[BLOCKS];
    gt__block *blocks[BLOCKS];
    fake_device f;
    gt__allocator *a;
    const gt__allocator_options options = {.limit = 40 * MIB, .history = 50, .expandable = true};
    fake_open(&f, 64 * MIB, grain);
    int64_t live = fake_host_live();
    fake_host_fail(at);
    gt_status status = gt__allocator_create(&f.head, &options, &a);
    if (status != GT_OK) {
        CHECK_STATUS(status, GT_OUT_OF_HOST_MEMORY);
        gt_clear_error();
        failures++;
        CHECK_OK(gt__allocator_create(&f.head, &options, &a));
    }
    for (int i = 0; i < 8; ++i) (void)take(a, &f, 4 * MIB + 512, NULL, &blocks[i]);
    for (int i = 0; i < 8; i += 2) gt__allocator_free(a, blocks[i]);
    if (grain) (void)take(a, &f, 12 * MIB, NULL, &blocks[0]); /* moves */
    for (int i = 8; i < BLOCKS; ++i) (void)take(a, &f, 700, &names[i], &blocks[i]);
    for (int i = 8; i < BLOCKS; i += 3) {
        gt__block_set_category(a, blocks[i], GT_MEMORY_ACTIVATION);
        CHECK_EQ_INT(gt__block_category(blocks[i]), GT_MEMORY_ACTIVATION);
    }
    for (int i = 9; i < BLOCKS; i += 3) gt__allocator_free(a, blocks[i]);
    gt__allocator_next_step(a);
    gt__allocator_trim(a);
    (void)memory_state_of(a, &f);
    bool failed = fake_host_failed() != 0;
    fake_host_fail(-1);
    CHECK_EQ_INT(gt_last_error()->status, GT_OK);
    for (int i = 1; i < 8; i += 2) gt__allocator_free(a, blocks[i]);
    if (grain) gt__allocator_free(a, blocks[0]);
    for (int i = 8; i < BLOCKS; ++i)
        if (i % 3 != 0) gt__allocator_free(a, blocks[i]);
    memory_state s = memory_state_of(a, &f);
    CHECK_EQ_INT(s.used, 0);
    gt__allocator_trim(a);
    CHECK_EQ_INT(f.used, 0);
    gt__allocator_destroy(a);
    CHECK(f.pieces == NULL && f.ranges == NULL && f.faults == 0);
    CHECK_EQ_INT(fake_host_live(), live);
    return failed;
}

TEST(unit, allocator_survives_each_host_allocation_failing) {
    for (size_t grain = 0; grain <= 2 * MIB; grain += 2 * MIB) {
        int64_t at = 0;
        failures = 0;
        gt_clear_error();
        while (life(grain, at)) ++at;
        CHECK(at > BLOCKS && failures > BLOCKS); /* a tag each at least, and they were told of */
    }
}

/* One cause, and the right one. */
#include "memory/report_support.h"

TEST(unit, oom_report_names_what_was_asked) {
    bench b;
    bench_open(&b, 256 * MIB, 0, 100 * MIB);
    gt__block *block = bench_take(&b, 60 * MIB, GT_MEMORY_PARAMETER, "parameter", "fc");
    const gt_oom_report *r = bench_fail(&b, 50 * MIB);
    CHECK_EQ_INT(r->requested, 50 * MIB);
    CHECK_EQ_STR(r->op, "conv2d");
    CHECK_EQ_STR(r->module, "block1.conv");
    CHECK_EQ_INT(r->ndim, 1);
    CHECK_EQ_INT(r->shape[0], (int64_t)(50 * MIB / 4));
    CHECK_EQ_INT(r->category, GT_MEMORY_TEMPORARY);
    CHECK_EQ_INT(r->n_groups, 1);
    CHECK_EQ_STR(r->groups[0].op, "parameter");
    CHECK_EQ_STR(r->groups[0].module, "fc");
    CHECK_EQ_INT(r->groups[0].bytes, 60 * MIB);
    CHECK_EQ_INT(r->groups[0].count, 1);
    CHECK_EQ_INT(r->groups[0].ndim, -1);
    check_sums(r);
    gt__allocator_free(b.allocator, block);
    bench_close(&b);
}

TEST(unit, oom_cause_is_LIMIT_below_the_limit_alone) {
    bench b;
    bench_open(&b, 1024 * MIB, 0, 100 * MIB);
    gt__block *block = bench_take(&b, 60 * MIB, GT_MEMORY_USER, "x", NULL);
    const gt_oom_report *r = bench_fail(&b, 41 * MIB);
    CHECK_EQ_INT(r->cause, GT_OOM_LIMIT);
    const gt_oom_remedy *raise = find_remedy(r, GT_OOM_REMEDY_RAISE_LIMIT);
    CHECK(raise != NULL && raise->enough && raise->limit >= 101 * MIB && raise->limit <= 112 * MIB);
    CHECK_EQ_INT(raise->bytes, raise->limit - 100 * MIB);
    /* More than the limit by itself is no less a matter of the limit. */
    CHECK_EQ_INT(bench_fail(&b, 200 * MIB)->cause, GT_OOM_LIMIT);
    gt__allocator_free(b.allocator, block);
    bench_close(&b);
}

TEST(unit, oom_cause_is_TOO_LARGE_above_the_device) {
    bench b;
    bench_open(&b, 256 * MIB, 0, 100 * MIB);
    const gt_oom_report *r = bench_fail(&b, 257 * MIB);
    CHECK_EQ_INT(r->cause, GT_OOM_TOO_LARGE);
    CHECK(find_remedy(r, GT_OOM_REMEDY_RAISE_LIMIT) == NULL); /* to what? */
    CHECK_EQ_INT(bench_fail(&b, 1ull << 62)->cause, GT_OOM_TOO_LARGE);
    bench_close(&b);
}

TEST(unit, oom_cause_is_CAPACITY_where_we_hold_the_device) {
    bench b;
    bench_open(&b, 256 * MIB, 0, 0);
    gt__block *block = bench_take(&b, 200 * MIB, GT_MEMORY_USER, "x", NULL);
    const gt_oom_report *r = bench_fail(&b, 80 * MIB);
    CHECK_EQ_INT(r->cause, GT_OOM_CAPACITY);
    CHECK_EQ_INT(r->ours, 200 * MIB);
    CHECK_EQ_INT(r->others, 0);
    CHECK_EQ_INT(r->device_free, 56 * MIB);
    check_sums(r);
    CHECK(find_remedy(r, GT_OOM_REMEDY_RAISE_LIMIT) == NULL);
    gt__allocator_free(b.allocator, block);
    bench_close(&b);
}

/* M1's worked numbers. */
static void fragmented(bench *b, uint64_t grain, gt__block **blocks) {
    bench_open(b, 1024 * MIB, grain, 100 * MIB);
    gt__allocator_free(b->allocator, bench_take(b, 100 * MIB, GT_MEMORY_USER, "whole", NULL)); /* one segment of 100 MiB */
    for (int i = 0; i < 10; ++i) blocks[i] = bench_take(b, 10 * MIB, GT_MEMORY_USER, i % 2 ? "odd" : "even", "m");
    for (int i = 1; i < 10; i += 2) gt__allocator_free(b->allocator, blocks[i]);
}

TEST(contract, M1_fragmented_or_at_the_limit) {
    bench b;
    gt__block *blocks[10];
    fragmented(&b, 0, blocks);
    const gt_oom_report *r = bench_fail(&b, 20 * MIB);
    CHECK_EQ_INT(r->cause, GT_OOM_FRAGMENTED);
    CHECK_EQ_INT(r->in_use, 52428800);
    CHECK_EQ_INT(r->cached, 52428800);
    CHECK_EQ_INT(r->largest_free, 10485760);
    CHECK_EQ_INT(r->largest_possible, 10485760);
    check_sums(r);
    CHECK_EQ_INT(r->n_pins, 1); /* who is in the way: five blocks, with ten free sides but the last's right */
    CHECK_EQ_STR(r->pins[0].op, "even");
    CHECK_EQ_INT(r->pins[0].count, 5);
    CHECK_EQ_INT(r->pins[0].pinned, 90 * MIB);
    r = bench_fail(&b, 60 * MIB);
    CHECK_EQ_INT(r->cause, GT_OOM_LIMIT);
    CHECK_EQ_INT(r->n_pins, 0);
    check_sums(r);
    for (int i = 0; i < 10; i += 2) gt__allocator_free(b.allocator, blocks[i]);
    bench_close(&b);
}

TEST(contract, M1_pieces_that_can_be_moved_do_not_fail) {
    bench b;
    gt__block *blocks[10];
    fragmented(&b, 2 * MIB, blocks);
    gt__allocator_free(b.allocator, bench_take(&b, 20 * MIB, GT_MEMORY_USER, "x", NULL));
    CHECK_EQ_INT(bench_fail(&b, 60 * MIB)->cause, GT_OOM_LIMIT);
    for (int i = 0; i < 10; i += 2) gt__allocator_free(b.allocator, blocks[i]);
    bench_close(&b);
    /* Ten segments of their own. */
    bench_open(&b, 1024 * MIB, 0, 100 * MIB);
    for (int i = 0; i < 10; ++i) blocks[i] = bench_take(&b, 10 * MIB, GT_MEMORY_USER, "x", NULL);
    CHECK_EQ_INT(b.device.allocs, 10);
    for (int i = 1; i < 10; i += 2) gt__allocator_free(b.allocator, blocks[i]);
    gt__block *twenty = bench_take(&b, 20 * MIB, GT_MEMORY_USER, "x", NULL);
    gt__allocator_free(b.allocator, twenty);
    for (int i = 0; i < 10; i += 2) gt__allocator_free(b.allocator, blocks[i]);
    bench_close(&b);
}

TEST(contract, M1_another_process_holds_all_but_64_MiB) {
    bench b;
    bench_open(&b, 96 * MIB, 0, 0);
    b.device.others = 928 * MIB; /* of 1 GiB */
    const gt__memory_holder holders[2] = {{.process = 41, .bytes = 32 * MIB}, {.process = 4711, .bytes = 928 * MIB}};
    b.facts.holders = holders;
    b.facts.n_holders = 2;
    b.facts.process = 41;
    gt__block *block = bench_take(&b, 32 * MIB, GT_MEMORY_USER, "x", NULL);
    const gt_oom_report *r = bench_fail(&b, 256 * MIB);
    CHECK_EQ_INT(r->cause, GT_OOM_EXTERNAL);
    CHECK_EQ_INT(r->device_total, 1024 * MIB);
    CHECK_EQ_INT(r->ours, 32 * MIB);
    CHECK_EQ_INT(r->others, 928 * MIB);
    CHECK_EQ_INT(r->here, 0);
    CHECK_EQ_INT(r->device_free, 64 * MIB);
    check_sums(r);
    CHECK_EQ_INT(r->n_holders, 1); /* we are not among the others */
    CHECK_EQ_INT(r->holders[0].process, 4711);
    const gt_oom_remedy *end = find_remedy(r, GT_OOM_REMEDY_OTHER_PROCESS);
    CHECK(end != NULL && end->process == 4711 && end->bytes == 928 * MIB && end->enough);
    CHECK(gt__report_best(r) == end);
    CHECK(strstr(end->subject, "4711") != NULL);
    b.device.capacity += 928 * MIB; /* applied: the process ends */
    b.device.others = 0;
    gt__allocator_free(b.allocator, bench_take(&b, 256 * MIB, GT_MEMORY_USER, "x", NULL));
    gt__allocator_free(b.allocator, block);
    bench_close(&b);
}

TEST(unit, oom_cause_is_not_EXTERNAL_for_the_drivers_own_share) {
    bench b;
    bench_open(&b, 1000 * MIB, 0, 0);
    b.device.others = 24 * MIB;
    gt__block *block = bench_take(&b, 990 * MIB, GT_MEMORY_USER, "x", NULL);
    CHECK_EQ_INT(bench_fail(&b, 20 * MIB)->cause, GT_OOM_CAPACITY);
    gt__allocator_free(b.allocator, block);
    bench_close(&b);
}

/* Others hold most, but the limit is in the way first. */
TEST(unit, oom_cause_is_LIMIT_where_the_limit_binds_before_the_others) {
    bench b;
    bench_open(&b, 96 * MIB, 0, 64 * MIB);
    b.device.others = 928 * MIB;
    CHECK_EQ_INT(bench_fail(&b, 80 * MIB)->cause, GT_OOM_LIMIT);
    bench_close(&b);
}

TEST(unit, oom_cause_is_GROWTH_where_a_tag_rose_every_step) {
    bench b;
    bench_open(&b, 1024 * MIB, 0, 100 * MIB);
    gt__block *blocks[100], *steady = bench_take(&b, 20 * MIB, GT_MEMORY_PARAMETER, "parameter", "fc");
    int n = 0;
    for (; n < 20; ++n) {
        blocks[n] = bench_take(&b, 3 * MIB, GT_MEMORY_USER, "cross_entropy", "head");
        gt__allocator_free(b.allocator, bench_take(&b, 2 * MIB, GT_MEMORY_TEMPORARY, "relu", "body"));
        gt__allocator_next_step(b.allocator);
    }
    const gt_oom_report *r = bench_fail(&b, 30 * MIB);
    CHECK_EQ_INT(r->cause, GT_OOM_GROWTH);
    CHECK_EQ_STR(r->growth_op, "cross_entropy");
    CHECK_EQ_STR(r->growth_module, "head");
    CHECK_EQ_INT(r->growth, 3 * MIB);
    CHECK_EQ_INT(r->growth_now, 60 * MIB);
    CHECK(r->growth_steps >= 4);
    const gt_oom_remedy *release = find_remedy(r, GT_OOM_REMEDY_RELEASE_KEPT);
    CHECK(release != NULL && release->bytes == 60 * MIB && release->enough);
    CHECK(gt__report_best(r) == release);
    while (n > 0) gt__allocator_free(b.allocator, blocks[--n]); /* applied */
    gt__allocator_free(b.allocator, bench_take(&b, 30 * MIB, GT_MEMORY_USER, "x", NULL));
    gt__allocator_free(b.allocator, steady);
    bench_close(&b);
}

TEST(unit, oom_cause_is_not_GROWTH_for_a_little_or_a_pause) {
    bench b;
    bench_open(&b, 1024 * MIB, 0, 100 * MIB);
    gt__block *blocks[20], *steady = bench_take(&b, 80 * MIB, GT_MEMORY_USER, "x", NULL);
    for (int n = 0; n < 10; ++n) { /* 64 KiB a step */
        blocks[n] = bench_take(&b, MIB / 16, GT_MEMORY_USER, "log", NULL);
        gt__allocator_next_step(b.allocator);
    }
    const gt_oom_report *r = bench_fail(&b, 30 * MIB);
    CHECK_EQ_INT(r->cause, GT_OOM_LIMIT);
    CHECK_EQ_INT(r->growth, MIB / 16);    /* told all the same */
    gt__allocator_next_step(b.allocator); /* a step without growth */
    CHECK_EQ_INT(bench_fail(&b, 30 * MIB)->growth_steps, 0);
    for (int n = 0; n < 10; ++n) gt__allocator_free(b.allocator, blocks[n]);
    gt__allocator_free(b.allocator, steady);
    bench_close(&b);
}

TEST(unit, oom_report_says_less_where_the_host_is_short) {
    bench b;
    bench_open(&b, 1024 * MIB, 0, 100 * MIB);
    gt__block *block = bench_take(&b, 60 * MIB, GT_MEMORY_USER, "x", NULL);
    (void)bench_fail(&b, 60 * MIB);
    gt__report_facts facts = {.shortage = NULL, .device_total = 1024 * MIB, .device_free = 900 * MIB};
    for (int after = 0; after < 8; ++after) {
        gt_oom_report r = {.struct_size = sizeof r};
        fake_host_fail(after);
        gt__report_make(b.allocator, &facts, &r);
        int failed = fake_host_failed();
        fake_host_fail(-1);
        CHECK_EQ_INT(r.in_use, 60 * MIB);
        CHECK_EQ_INT(r.cause, GT_OOM_NONE);
        check_sums(&r);
        if (!failed) CHECK_EQ_INT(r.n_groups, 1);
    }
    gt__allocator_free(b.allocator, block);
    bench_close(&b);
}

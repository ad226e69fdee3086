/* The parts of remedies that can be worked out by hand. */
#include "memory/report_support.h"

#include <stdio.h>

typedef struct plan_list {
    gt__live_block blocks[64];
    gt__live_list live;
} plan_list;

static void saved(plan_list *list, const char *module, uint64_t mib) {
    gt__live_block *b = &list->blocks[list->live.count];
    *b = (gt__live_block){.op = "op", .module = module, .bytes = mib * MIB, .sequence = (uint64_t)list->live.count + 1, .ndim = 2};
    b->category = GT_MEMORY_ACTIVATION;
    b->shape[0] = 32;
    list->live.blocks = list->blocks;
    list->live.count++;
}

static gt__checkpoint_plan plan_of(const plan_list *list) {
    gt__checkpoint_plan plan;
    gt__checkpoint_plan_make(&list->live, 0, &plan);
    return plan;
}

TEST(unit, checkpoint_plan_takes_whole_blocks) {
    plan_list list = {0};
    const char *names[] = {"block.0.a", "block.0.b", "block.0.c", "block.1.a", "block.1.b", "block.1.c",
                           "block.2.a", "block.2.b", "block.2.c", "block.3.a", "block.3.b", "block.3.c"};
    for (int i = 0; i < 12; ++i) saved(&list, names[i], 10);
    gt__checkpoint_plan plan = plan_of(&list);
    /* 120 saved; three outputs of 10 stay, and 30 come back when the last is computed again. */
    CHECK_EQ_INT(plan.depth, 2);
    CHECK_EQ_INT(plan.count, 4);
    CHECK_EQ_INT(plan.frees, 60 * MIB);
    CHECK_EQ_STR(plan.first, "block.0");
    CHECK_EQ_STR(plan.last, "block.3");
}

TEST(unit, checkpoint_plan_cuts_a_flat_sequential_into_segments) {
    plan_list list = {0};
    char names[16][8];
    for (int i = 0; i < 16; ++i) {
        (void)snprintf(names[i], sizeof names[i], "%d", i);
        saved(&list, names[i], 16);
    }
    gt__checkpoint_plan plan = plan_of(&list);
    /* C6: 256 saved; in 4 segments of 4, three outputs stay and the 64 of a segment come back. */
    CHECK_EQ_INT(plan.segments, 4);
    CHECK_EQ_INT(plan.frees, (256 - 3 * 16 - 64) * MIB);
    CHECK_EQ_STR(plan.target, "");
    CHECK_EQ_STR(plan.first, "0");
    CHECK_EQ_STR(plan.last, "15");
}

TEST(unit, checkpoint_plan_names_the_sequential_inside) {
    plan_list list = {0};
    char names[16][24];
    for (int i = 0; i < 16; ++i) {
        (void)snprintf(names[i], sizeof names[i], "features.%d", i);
        saved(&list, names[i], 16);
    }
    gt__checkpoint_plan plan = plan_of(&list);
    CHECK_EQ_INT(plan.segments, 4);
    CHECK_EQ_STR(plan.target, "features");
}

TEST(unit, checkpoint_plan_offers_nothing_where_nothing_is_gained) {
    plan_list list = {0};
    CHECK_EQ_INT(plan_of(&list).frees, 0);
    saved(&list, "a", 10); /* layers that keep just their input keep it as segments too */
    saved(&list, "b", 10);
    saved(&list, "c", 10);
    CHECK_EQ_INT(plan_of(&list).frees, 0);
    plan_list outside = {0};
    for (int i = 0; i < 8; ++i) saved(&outside, "", 10); /* no modules at all */
    CHECK_EQ_INT(plan_of(&outside).frees, 0);
}

/* Forty samples: 4 MiB of input, 76 MiB saved, the rest is not the batch's business. */
static void open_step(bench *b, gt__block **blocks, uint64_t limit) {
    bench_open(b, 1024 * MIB, 0, limit);
    const int64_t input[2] = {40, 1 << 15}, flat[2] = {400, 1 << 14}, weight[2] = {1 << 11, 1 << 10};
    const gt__tag tags[4] = {
        {.op = "loader", .shape = input, .ndim = 2, .category = GT_MEMORY_INPUT},
        {.op = "linear", .module = "body", .shape = flat, .ndim = 2, .category = GT_MEMORY_ACTIVATION},
        {.op = "parameter", .module = "body", .shape = weight, .ndim = 2, .category = GT_MEMORY_PARAMETER},
        {.op = "linear", .module = "head", .shape = input, .ndim = 2, .category = GT_MEMORY_ACTIVATION},
    };
    const uint64_t mib[4] = {4, 36, 8, 40};
    for (int i = 0; i < 4; ++i) CHECK_OK(gt__allocator_alloc(b->allocator, (size_t)(mib[i] * MIB), &tags[i], false, &blocks[i]));
}

static void close_step(bench *b, gt__block **blocks) {
    for (int i = 0; i < 4; ++i) gt__allocator_free(b->allocator, blocks[i]);
    bench_close(b);
}

TEST(unit, micro_batch_remedy_halves_until_the_step_fits) {
    bench b;
    gt__block *blocks[4];
    open_step(&b, blocks, 100 * MIB);
    b.facts.missing_gradients = 8 * MIB;
    const gt_oom_report *r = bench_fail(&b, 20 * MIB); /* not of the batch: [5242880] */
    CHECK_EQ_INT(r->batch, 40);
    const gt_oom_remedy *m = find_remedy(r, GT_OOM_REMEDY_MICRO_BATCH);
    CHECK(m != NULL);
    /* 80 grow with the batch, 8 + 8 + 20 do not: 76 of 97 fit with 20 samples. */
    CHECK_EQ_INT(m->micro_batch, 20);
    CHECK_EQ_INT(m->accumulation, 2);
    CHECK_EQ_INT(m->bytes, 40 * MIB);
    CHECK_EQ_INT(m->need, 76 * MIB);
    CHECK(m->enough);
    CHECK_OK((gt__allocator_set_limit(b.allocator, 60 * MIB), GT_OK));
    r = bench_fail(&b, 20 * MIB);
    m = find_remedy(r, GT_OOM_REMEDY_MICRO_BATCH);
    CHECK_EQ_INT(m->micro_batch, 10);
    CHECK_EQ_INT(m->accumulation, 4);
    close_step(&b, blocks);
}

TEST(unit, micro_batch_remedy_foresees_the_layers_to_come) {
    bench b;
    gt__block *blocks[4];
    open_step(&b, blocks, 100 * MIB);
    gt__allocator_set_phase(b.allocator, GT__PHASE_FORWARD);
    b.facts.layers = 20;
    b.facts.layers_run = 10;
    const gt_oom_remedy *m = find_remedy(bench_fail(&b, 20 * MIB), GT_OOM_REMEDY_MICRO_BATCH);
    /* 80 so far, so 160 in the end and 40 for a gradient: 28 + 200 / 4. */
    CHECK(m != NULL && m->micro_batch == 10 && m->need == 78 * MIB);
    close_step(&b, blocks);
}

TEST(unit, remedies_that_are_on_are_not_offered) {
    bench b;
    gt__block *blocks[4], *more[8];
    open_step(&b, blocks, 200 * MIB);
    const int64_t shape[2] = {40, 1 << 15};
    const gt__tag tag = {.op = "conv2d", .module = "conv", .shape = shape, .ndim = 2, .category = GT_MEMORY_ACTIVATION};
    for (int i = 0; i < 8; ++i) CHECK_OK(gt__allocator_alloc(b.allocator, 5 * MIB, &tag, false, &more[i]));
    gt__block *scratch = bench_take(&b, 16 * MIB, GT_MEMORY_WORKSPACE, "workspace", "conv");
    b.facts.half_saved = 50 * MIB;
    b.facts.half_copies = 4 * MIB;
    b.facts.workspace_limit = GT_WORKSPACE_AUTO;
    const gt_oom_report *r = bench_fail(&b, 100 * MIB);
    const gt_oom_remedy *half = find_remedy(r, GT_OOM_REMEDY_HALF_PRECISION), *work = find_remedy(r, GT_OOM_REMEDY_WORKSPACE_LIMIT);
    CHECK(half != NULL && half->bytes == 46 * MIB);
    CHECK(work != NULL && work->bytes == 16 * MIB && work->limit == 0);
    CHECK(find_remedy(r, GT_OOM_REMEDY_OFFLOAD) == NULL); /* the 40 MiB tensor and two like it may be back at once */
    b.facts.autocast = true;
    b.facts.workspace_limit = 0;
    r = bench_fail(&b, 100 * MIB);
    CHECK(find_remedy(r, GT_OOM_REMEDY_HALF_PRECISION) == NULL);
    CHECK(find_remedy(r, GT_OOM_REMEDY_WORKSPACE_LIMIT) == NULL);
    gt__allocator_free(b.allocator, blocks[3]); /* the 40 MiB */
    blocks[3] = bench_take(&b, 512, GT_MEMORY_USER, "x", NULL);
    gt__allocator_free(b.allocator, blocks[1]); /* and the 36 */
    blocks[1] = bench_take(&b, 512, GT_MEMORY_USER, "x", NULL);
    const gt_oom_remedy *offload = find_remedy(bench_fail(&b, 160 * MIB), GT_OOM_REMEDY_OFFLOAD);
    CHECK(offload != NULL && offload->bytes == (8 - 3) * 5 * MIB && offload->count == 8);
    b.facts.offload = true;
    CHECK(find_remedy(bench_fail(&b, 160 * MIB), GT_OOM_REMEDY_OFFLOAD) == NULL);
    for (int i = 0; i < 8; ++i) gt__allocator_free(b.allocator, more[i]);
    gt__allocator_free(b.allocator, scratch);
    close_step(&b, blocks);
}

TEST(unit, release_remedy_counts_the_graphs_but_the_newest) {
    bench b;
    gt__block *blocks[4];
    open_step(&b, blocks, 100 * MIB);
    b.facts.graphs = 7;
    b.facts.held = 76 * MIB;
    b.facts.held_newest = 16 * MIB;
    b.facts.root_op = "cross_entropy";
    const gt_oom_remedy *m = find_remedy(bench_fail(&b, 20 * MIB), GT_OOM_REMEDY_RELEASE_GRAPHS);
    CHECK(m != NULL && m->bytes == 60 * MIB && m->count == 6 && m->enough);
    CHECK(strstr(m->subject, "cross_entropy") != NULL);
    b.facts.graphs = 1;
    CHECK(find_remedy(bench_fail(&b, 20 * MIB), GT_OOM_REMEDY_RELEASE_GRAPHS) == NULL);
    close_step(&b, blocks);
}

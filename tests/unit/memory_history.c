/* The allocator's history of events, and the growth of its tags. */
#include "unit/memory_state.h"

enum { MIB = 1 << 20, KEPT = 64 };

typedef struct record {
    gt__memory_event events[KEPT];
    int count;
} record;

static void keep(void *user, const gt__memory_event *event) {
    record *r = user;
    CHECK(r->count < KEPT);
    r->events[r->count++] = *event;
}

static record history_of(const gt__allocator *a, uint64_t lost) {
    record r = {.count = 0};
    CHECK(gt__allocator_visit_history(a, keep, &r) == lost);
    return r;
}

static gt__allocator *allocator_on(fake_device *f, size_t grain, int64_t history) {
    gt__allocator *a;
    fake_open(f, 64 * MIB, grain);
    CHECK_OK(gt__allocator_create(&f->head, &(gt__allocator_options){.history = history, .expandable = true}, &a));
    return a;
}

TEST(unit, history_tells_what_happened_to_a_block) {
    fake_device f;
    gt__allocator *a = allocator_on(&f, 2 * MIB, KEPT);
    const int64_t shape[3] = {4, 5, 6};
    const gt__tag tag = {.op = "relu", .module = "fc1", .shape = shape, .ndim = 3, .dtype = GT_DTYPE_F16, .category = GT_MEMORY_TEMPORARY};
    gt__block *block;
    gt__allocator_set_phase(a, GT__PHASE_FORWARD);
    CHECK_EQ_INT(gt__allocator_phase(a), GT__PHASE_FORWARD);
    CHECK_OK(gt__allocator_alloc(a, 240, &tag, false, &block));
    const void *data = gt__block_data(block);
    gt__block_set_category(a, block, GT_MEMORY_ACTIVATION);
    gt__block_set_category(a, block, GT_MEMORY_ACTIVATION); /* no change, no event */
    gt__allocator_next_step(a);
    gt__allocator_set_phase(a, GT__PHASE_BACKWARD);
    gt__allocator_free(a, block);
    CHECK_STATUS(gt__allocator_alloc(a, 200 * MIB, &tag, false, &block), GT_OUT_OF_MEMORY);
    gt_clear_error();
    CHECK_STATUS(gt__allocator_alloc(a, 200 * MIB, &tag, true, &block), GT_OUT_OF_MEMORY); /* quiet: no event */
    gt__allocator_trim(a);
    record r = history_of(a, 0);
    static const gt__event_kind kinds[] = {GT__MEMORY_RESERVE, GT__MEMORY_ALLOC, GT__MEMORY_CATEGORY, GT__MEMORY_STEP,
                                           GT__MEMORY_FREE,    GT__MEMORY_OOM,   GT__MEMORY_UNRESERVE};
    CHECK_EQ_INT(r.count, GT__COUNT(kinds));
    for (int i = 0; i < r.count; ++i) {
        const gt__memory_event *e = &r.events[i];
        CHECK_EQ_INT(e->kind, kinds[i]);
        CHECK(e->seconds >= 0 && e->seconds < 60 && (i == 0 || e->seconds >= r.events[i - 1].seconds));
        CHECK_EQ_INT(e->step, i < 4 ? 0 : 1);
        CHECK_EQ_INT(e->phase, i < 4 ? GT__PHASE_FORWARD : GT__PHASE_BACKWARD);
        bool of_block = i == 1 || i == 2 || i == 4;
        if (of_block) CHECK(e->address == data && e->bytes == 512 && e->sequence == 1);
        if (of_block || i == 5) {
            CHECK_EQ_STR(e->op, "relu");
            CHECK_EQ_STR(e->module, "fc1");
            CHECK(e->ndim == 3 && e->shape[0] == 4 && e->shape[2] == 6 && e->dtype == GT_DTYPE_F16);
        } else {
            CHECK(e->ndim == -1 && e->op == NULL && e->module == NULL);
        }
    }
    CHECK(r.events[0].bytes == 2 * MIB && r.events[6].bytes == 2 * MIB && r.events[0].address == r.events[6].address);
    CHECK(r.events[1].category == GT_MEMORY_TEMPORARY && r.events[2].category_before == GT_MEMORY_TEMPORARY);
    CHECK(r.events[2].category == GT_MEMORY_ACTIVATION && r.events[4].category == GT_MEMORY_ACTIVATION);
    CHECK_EQ_INT(r.events[5].bytes, 200 * MIB);
    gt__allocator_destroy(a);
}

TEST(unit, history_keeps_the_last_events) {
    fake_device f;
    gt__block *block;
    gt__allocator *a = allocator_on(&f, 0, 10);
    CHECK_EQ_INT(history_of(a, 0).count, 0);
    for (int i = 0; i < 50; ++i) { /* one RESERVE, then ALLOC and FREE by turns */
        CHECK_OK(memory_take(a, 512, GT_MEMORY_USER, false, &block));
        gt__allocator_free(a, block);
        uint64_t events = 1 + 2 * ((uint64_t)i + 1), lost = events > 10 ? events - 10 : 0;
        record r = history_of(a, lost);
        CHECK_EQ_INT(r.count, events - lost);
        CHECK(r.events[r.count - 1].kind == GT__MEMORY_FREE && r.events[r.count - 1].sequence == (uint64_t)i + 1);
        if (lost) CHECK(r.events[0].kind == GT__MEMORY_ALLOC && r.events[0].sequence == (uint64_t)i - 3);
    }
    CHECK_OK(memory_take(a, 512, GT_MEMORY_USER, false, &block));
    CHECK_OK(gt__allocator_set_history(a, 3)); /* what was kept is forgotten */
    CHECK_EQ_INT(history_of(a, 0).count, 0);
    gt__allocator_free(a, block);
    CHECK_EQ_INT(history_of(a, 0).events[0].kind, GT__MEMORY_FREE);
    CHECK_OK(gt__allocator_set_history(a, 0));
    gt__allocator_next_step(a);
    CHECK_EQ_INT(history_of(a, 0).count, 0);
    CHECK_STATUS(gt__allocator_set_history(a, -1), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt__allocator_set_history(a, INT64_MAX), GT_BAD_ARGUMENT);
    gt_clear_error();
    gt__allocator_destroy(a);
}

TEST(unit, history_without_host_memory_is_lost_and_nothing_else) {
    fake_device f;
    gt__block *block;
    gt__allocator *a = allocator_on(&f, 0, 10);
    CHECK_OK(memory_take(a, 512, GT_MEMORY_USER, false, &block));
    CHECK_OK(gt__allocator_set_history(a, 20));
    fake_host_fail(0);
    gt__allocator_free(a, block);
    fake_host_fail(-1);
    CHECK_EQ_INT(gt_last_error()->status, GT_OK);
    CHECK_EQ_INT(history_of(a, 1).count, 0);
    CHECK_OK(memory_take(a, 512, GT_MEMORY_USER, false, &block));
    record r = history_of(a, 1);
    CHECK(r.count == 1 && r.events[0].kind == GT__MEMORY_ALLOC);
    gt__allocator_destroy(a);
}

/* --- growth ----------------------------------------------------------------------------------------------------------------------------- */

typedef struct wanted {
    const char *op, *module;
    gt_memory_category category;
    gt__tag_growth found;
    int times, tags;
} wanted;

static void find(void *user, const gt__tag_growth *tag) {
    wanted *w = user;
    w->tags++;
    if (tag->op != w->op || tag->module != w->module || tag->category != w->category) return;
    w->found = *tag;
    w->times++;
}

static wanted growth_of(const gt__allocator *a, const char *op, const char *module, gt_memory_category category) {
    wanted w = {.op = op, .module = module, .category = category};
    gt__allocator_visit_tags(a, find, &w);
    return w;
}

TEST(unit, growth_is_told_by_op_module_and_category) {
    static const char relu[] = "relu", add[] = "add", fc1[] = "fc1";
    fake_device f;
    gt__block *still, *leak[20], *come;
    gt__allocator *a = allocator_on(&f, 0, 0);
    CHECK_OK(gt__allocator_alloc(a, 512, &(gt__tag){.op = add, .category = GT_MEMORY_PARAMETER}, false, &still));
    wanted w = growth_of(a, add, NULL, GT_MEMORY_PARAMETER);
    CHECK(w.times == 1 && w.found.steps == 0 && w.found.now == 512);
    for (int step = 0; step < 20; ++step) {
        if (step >= 3)
            CHECK_OK(gt__allocator_alloc(a, 1024, &(gt__tag){.op = relu, .module = fc1, .category = GT_MEMORY_USER}, false, &leak[step]));
        if (step == 5) CHECK_OK(gt__allocator_alloc(a, 512, &(gt__tag){.op = relu, .module = fc1}, false, &come));
        if (step == 16) gt__allocator_free(a, come);
        gt__allocator_next_step(a);
    }
    w = growth_of(a, relu, fc1, GT_MEMORY_USER);
    CHECK(w.times == 1 && w.tags == 3 && w.found.steps == GT__GROWTH_STEPS && w.found.now == 17 * 1024);
    for (int i = 0; i < GT__GROWTH_STEPS; ++i) CHECK_EQ_INT(w.found.bytes[i], (10 + i) * 1024);
    w = growth_of(a, add, NULL, GT_MEMORY_PARAMETER);
    for (int i = 0; i < GT__GROWTH_STEPS; ++i) CHECK_EQ_INT(w.found.bytes[i], 512);
    w = growth_of(a, relu, fc1, GT_MEMORY_PARAMETER); /* another category is another tag */
    for (int i = 0; i < GT__GROWTH_STEPS; ++i) CHECK_EQ_INT(w.found.bytes[i], i < 4 ? 512 : 0);
    CHECK_EQ_INT(w.found.now, 0);
    gt__block_set_category(a, leak[3], GT_MEMORY_GRADIENT);
    CHECK_EQ_INT(growth_of(a, relu, fc1, GT_MEMORY_USER).found.now, 16 * 1024);
    CHECK_EQ_INT(growth_of(a, relu, fc1, GT_MEMORY_GRADIENT).found.now, 1024);
    gt__allocator_free(a, leak[3]);
    CHECK_EQ_INT(growth_of(a, relu, fc1, GT_MEMORY_GRADIENT).times, 0); /* all nought: nothing to tell */
    gt__allocator_destroy(a);
}

TEST(unit, growth_keeps_many_tags_apart) {
    enum { COUNT = 3000 };
    static char names[COUNT];
    static gt__block *blocks[COUNT];
    fake_device f;
    gt__allocator *a = allocator_on(&f, 0, 0);
    for (int i = 0; i < COUNT; ++i)
        CHECK_OK(gt__allocator_alloc(a, 512 * (size_t)(1 + i % 7), &(gt__tag){.module = &names[i]}, false, &blocks[i]));
    for (int i = 0; i < COUNT; i += 2) gt__allocator_free(a, blocks[i]);
    for (int i = 0; i < COUNT; i += 97) {
        wanted w = growth_of(a, NULL, &names[i], GT_MEMORY_PARAMETER);
        CHECK_EQ_INT(w.times, i % 2);
        CHECK_EQ_INT(w.tags, COUNT / 2);
        if (i % 2) CHECK_EQ_INT(w.found.now, 512 * (1 + i % 7));
    }
    gt__allocator_destroy(a);
}

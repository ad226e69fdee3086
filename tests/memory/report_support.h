/* An allocator over a fake device whose shortages end in a report. */
#ifndef TESTS_MEMORY_REPORT_SUPPORT_H
#define TESTS_MEMORY_REPORT_SUPPORT_H

#include "harness/test.h"

#include "memory/report.h"
#include "unit/fake_device.h"

#define MIB ((uint64_t)1 << 20)

typedef struct bench {
    fake_device device;
    gt__allocator *allocator;
    gt__report_facts facts; /* what the next report is told beside the shortage and the device */
    gt_oom_report report;
    int shortages;
} bench;

static inline bool bench_shortage(void *user, const gt__shortage *shortage) {
    bench *b = user;
    gt__report_facts facts = b->facts;
    facts.shortage = shortage;
    CHECK_OK(b->device.backend.memory_info(&b->device.head, &facts.device_free, &facts.device_total));
    b->report.struct_size = sizeof b->report;
    gt__report_make(b->allocator, &facts, &b->report);
    b->shortages++;
    (void)gt__error_raise(GT_OUT_OF_MEMORY, __FILE__, __LINE__, 0, NULL, NULL, "short");
    return false;
}

static inline void bench_open(bench *b, uint64_t capacity, uint64_t grain, uint64_t limit) {
    memset(b, 0, sizeof *b);
    fake_open(&b->device, (size_t)capacity, (size_t)grain);
    const gt__allocator_options options = {.limit = limit, .expandable = grain != 0, .on_shortage = bench_shortage, .user = b};
    CHECK_OK(gt__allocator_create(&b->device.head, &options, &b->allocator));
}

static inline void bench_close(bench *b) { gt__allocator_destroy(b->allocator); }

static inline gt__block *bench_take(bench *b, uint64_t bytes, gt_memory_category category, const char *op, const char *module) {
    const gt__tag tag = {.op = op, .module = module, .category = category};
    gt__block *block = NULL;
    CHECK_OK(gt__allocator_alloc(b->allocator, (size_t)bytes, &tag, false, &block));
    return block;
}

/* A request that must fail. */
static inline const gt_oom_report *bench_fail(bench *b, uint64_t bytes) {
    const int64_t shape[1] = {(int64_t)bytes / 4};
    const gt__tag tag = {.op = "conv2d", .module = "block1.conv", .shape = shape, .ndim = 1, .category = GT_MEMORY_TEMPORARY};
    gt__block *block = NULL;
    int before = b->shortages;
    CHECK_STATUS(gt__allocator_alloc(b->allocator, (size_t)bytes, &tag, false, &block), GT_OUT_OF_MEMORY);
    CHECK_EQ_INT(b->shortages, before + 1);
    return &b->report;
}

static inline void check_sums(const gt_oom_report *r) {
    CHECK_EQ_INT(r->in_use + r->cached, r->reserved);
    CHECK_EQ_INT(r->ours + r->others + r->device_free, r->device_total);
    uint64_t sum = 0;
    for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) sum += r->category_in_use[c];
    CHECK_EQ_INT(sum, r->in_use);
    for (int32_t i = 1; i < r->n_remedies; ++i)
        CHECK(r->remedies[i - 1].bytes >= r->remedies[i].bytes || r->remedies[i].kind == GT_OOM_REMEDY_RAISE_LIMIT);
}

static inline const gt_oom_remedy *find_remedy(const gt_oom_report *r, gt_oom_remedy_kind kind) {
    for (int32_t i = 0; i < r->n_remedies; ++i)
        if (r->remedies[i].kind == kind) return &r->remedies[i];
    return NULL;
}

#endif

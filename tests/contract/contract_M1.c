/* M1, the report's part: its sums and its cause. What needs another process, or a device that cannot move memory, is in tests/memory and tests/cuda. */
#include "harness/test.h"

#include <gtrain/gtrain.h>

#include <stdlib.h>

enum { MIB = 1 << 20 };

static gt_tensor *piece(gt_context *ctx, int64_t mib) {
    const int64_t bytes = mib * MIB;
    return gt_tensor_empty(ctx, GT_DTYPE_U8, 1, &bytes);
}

/* The report of a request that fails. */
static void report_of(gt_context *ctx, int64_t mib, gt_oom_report *r) {
    gt_clear_error();
    CHECK(piece(ctx, mib) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
    CHECK_OK(gt_oom_report_init(r, sizeof *r));
    CHECK_OK(gt_memory_last_oom(ctx, r));
    CHECK_EQ_INT(r->requested, (uint64_t)mib * MIB);
    CHECK_EQ_INT(r->in_use + r->cached, r->reserved);
    CHECK_EQ_INT(r->ours + r->others + r->device_free, r->device_total);
    CHECK_EQ_INT(r->ours, r->reserved);
    uint64_t by_category = 0;
    for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) by_category += r->category_in_use[c];
    CHECK_EQ_INT(by_category, r->in_use);
    CHECK_ERROR_HAS(gt_oom_cause_name(r->cause));
}

TEST_DEVICES(contract, M1_the_report_adds_up_and_its_cause_is_right) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.memory_limit = 100 * MIB;
    gt_context *ctx = test_context_with(t, &options);
    gt_oom_report *r = malloc(sizeof *r);
    gt_tensor *pieces[10], *twenty;
    gt_tensor_release(CHECK_TENSOR(piece(ctx, 100))); /* one segment */
    for (int i = 0; i < 10; ++i) pieces[i] = CHECK_TENSOR(piece(ctx, 10));
    for (int i = 1; i < 10; i += 2) gt_tensor_release(pieces[i]);
    if (test_device(t) == GT_DEVICE_CPU) {
        report_of(ctx, 20, r);
        CHECK_EQ_INT(r->cause, GT_OOM_FRAGMENTED);
        CHECK_EQ_INT(r->in_use, 52428800);
        CHECK_EQ_INT(r->cached, 52428800);
        CHECK_EQ_INT(r->largest_free, 10485760);
        CHECK_EQ_INT(r->n_pins, 1);
        CHECK_EQ_STR(r->pins[0].op, "tensor_empty");
        CHECK_EQ_INT(r->pins[0].count, 5);
    } else {
        twenty = CHECK_TENSOR(piece(ctx, 20));
        gt_tensor_release(twenty);
    }
    report_of(ctx, 60, r);
    CHECK_EQ_INT(r->cause, GT_OOM_LIMIT);
    CHECK_EQ_INT(r->in_use, 52428800);
    CHECK(r->largest_possible < 60 * MIB);
    for (int i = 0; i < 10; i += 2) gt_tensor_release(pieces[i]);
    CHECK_OK(gt_memory_trim(ctx));
    for (int i = 0; i < 10; ++i) pieces[i] = CHECK_TENSOR(piece(ctx, 10)); /* ten segments */
    for (int i = 1; i < 10; i += 2) gt_tensor_release(pieces[i]);
    twenty = CHECK_TENSOR(piece(ctx, 20));
    gt_tensor_release(twenty);
    report_of(ctx, 60, r);
    CHECK_EQ_INT(r->cause, GT_OOM_LIMIT);
    for (int i = 0; i < 10; i += 2) gt_tensor_release(pieces[i]);
    CHECK_OK(gt_context_set_memory_limit(ctx, 0));
    report_of(ctx, 1ll << 32, r); /* 4 PiB */
    CHECK_EQ_INT(r->cause, GT_OOM_TOO_LARGE);
    free(r);
}

/* M1, the allocator's part: what can be had at a limit of 100 MiB, and the numbers when it cannot. GPUs move memory, so that fragments do not matter there. */
#include "harness/test.h"

#include <gtrain/gtrain.h>

#include <stdlib.h>

enum { MIB = 1 << 20 };

static gt_context *limited(test_case *t) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.memory_limit = 100 * MIB;
    return test_context_with(t, &options);
}

static gt_tensor *piece(gt_context *ctx, int64_t mib) {
    const int64_t bytes = mib * MIB;
    return gt_tensor_empty(ctx, GT_DTYPE_U8, 1, &bytes);
}

static gt_memory_stats stats_of(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK(stats.in_use + stats.cached == stats.reserved && stats.reserved <= stats.limit);
    return stats;
}

/* Ten of 10 MiB, every second freed. */
static void ten(gt_context *ctx, gt_tensor **pieces) {
    for (int i = 0; i < 10; ++i) pieces[i] = CHECK_TENSOR(piece(ctx, 10));
    for (int i = 0; i < 10; i += 2) {
        gt_tensor_release(pieces[i]);
        pieces[i] = NULL;
    }
}

static void release(gt_tensor **pieces) {
    for (int i = 0; i < 10; ++i) gt_tensor_release(pieces[i]);
}

static void refused(gt_context *ctx, int64_t mib) {
    gt_memory_stats before = stats_of(ctx);
    CHECK(piece(ctx, mib) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
    gt_clear_error();
    gt_memory_stats after = stats_of(ctx);
    CHECK(after.in_use == before.in_use && after.out_of_memory == before.out_of_memory + 1);
}

TEST_DEVICES(contract, M1_one_segment_in_pieces) {
    gt_tensor *pieces[10], *more;
    gt_context *ctx = limited(t);
    gt_tensor_release(CHECK_TENSOR(piece(ctx, 100)));
    ten(ctx, pieces);
    gt_memory_stats s = stats_of(ctx);
    CHECK_EQ_INT(s.in_use, 52428800);
    CHECK_EQ_INT(s.cached, 52428800);
    CHECK_EQ_INT(s.largest_free, 10485760);
    CHECK_NEAR(s.fragmentation, 0.8, 1e-12);
    CHECK_EQ_INT(s.segments, 1);
    refused(ctx, 60);
    if (test_device(t) == GT_DEVICE_CPU) {
        refused(ctx, 20);
        s = stats_of(ctx);
        CHECK(s.in_use == 52428800 && s.cached == 52428800 && s.largest_free == 10485760);
        release(pieces);
        return;
    }
    unsigned char *values = malloc(20 * MIB);
    CHECK(values != NULL);
    CHECK_OK(gt_tensor_fill(pieces[5], 7));
    more = CHECK_TENSOR(piece(ctx, 20)); /* from the memory of two of the five */
    CHECK_OK(gt_tensor_fill(more, 9));
    CHECK_OK(gt_tensor_read(pieces[5], values, 10 * MIB));
    CHECK(values[0] == 7 && values[10 * MIB - 1] == 7);
    CHECK_OK(gt_tensor_read(more, values, 20 * MIB));
    CHECK(values[0] == 9 && values[20 * MIB - 1] == 9);
    free(values);
    s = stats_of(ctx);
    CHECK_EQ_INT(s.retries, 1);
    CHECK_EQ_INT(s.reserved, 100 * MIB);
    gt_tensor_release(more);
    release(pieces);
}

TEST_DEVICES(contract, M1_ten_separate_segments) {
    gt_tensor *pieces[10];
    gt_context *ctx = limited(t);
    ten(ctx, pieces);
    if (test_device(t) == GT_DEVICE_CPU) CHECK_EQ_INT(stats_of(ctx).segments, 10);
    gt_tensor *more = CHECK_TENSOR(piece(ctx, 20));
    CHECK_EQ_INT(stats_of(ctx).in_use, 70 * MIB);
    refused(ctx, 60);
    gt_tensor_release(more);
    release(pieces);
}

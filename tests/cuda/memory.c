/* The GPU's memory functions: maps, many copies, event queries, who holds the memory. */
#include "harness/test.h"

#include "core/core.h"

#include <gtrain/gtrain.h>

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static size_t device_free(void) {
    size_t free_bytes = 0, total;
    CHECK(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess);
    return free_bytes;
}

static gt_memory_stats stats_of(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK(stats.in_use + stats.cached == stats.reserved);
    return stats;
}

static gt_tensor *filled(gt_context *ctx, int64_t bytes, int value) {
    gt_tensor *x = CHECK_TENSOR(gt_tensor_empty(ctx, GT_DTYPE_U8, 1, &bytes));
    CHECK_OK(gt_tensor_fill(x, value));
    return x;
}

static void check_filled(gt_tensor *x, int value) {
    size_t bytes = gt_tensor_bytes(x);
    unsigned char *values = malloc(bytes);
    CHECK(values != NULL);
    CHECK_OK(gt_tensor_read(x, values, bytes));
    for (size_t i = 0; i < bytes; i += 511) CHECK_EQ_INT(values[i], value);
    CHECK_EQ_INT(values[bytes - 1], value);
    free(values);
}

/* --- through the allocator ------------------------------------------------------------------------------------------------------------ */

TEST_CUDA_ONLY(unit, memory_grows_in_grains_and_goes_back) {
    gt_context *ctx = test_context(t);
    CHECK(ctx->backend->map_grain(ctx->device) == 2 * MIB);
    gt_tensor *first = filled(ctx, 5 * MIB, 1);
    CHECK_EQ_INT(stats_of(ctx).reserved, 6 * MIB);
    size_t before = device_free();
    gt_tensor *second = filled(ctx, 200 * MIB, 2); /* begins in the first one's last grain */
    CHECK_EQ_INT(stats_of(ctx).reserved, 206 * MIB);
    CHECK(before - device_free() >= 200 * MIB);
    gt_tensor *third = filled(ctx, 300, 3);
    gt_tensor_release(second);
    CHECK_OK(gt_memory_trim(ctx));
    gt_memory_stats s = stats_of(ctx);
    CHECK(s.reserved == 8 * MIB && s.segments == 2);
    CHECK(device_free() + 3 * MIB >= before); /* the small range's grain is new */
    check_filled(first, 1);
    check_filled(third, 3);
    gt_tensor_release(first);
    gt_tensor_release(third);
}

TEST_CUDA_ONLY(unit, memory_moves_around_what_is_in_use) {
    enum { COUNT = 64 };
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.memory_limit = COUNT * 4 * MIB;
    gt_context *ctx = test_context_with(t, &options);
    gt_tensor *pieces[COUNT], *wide[4];
    for (int i = 0; i < COUNT; ++i) pieces[i] = filled(ctx, 4 * MIB, i);
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < COUNT; i += 2) gt_tensor_release(pieces[i]); /* no two free ones are neighbours */
        for (int k = 0; k < 4; ++k) wide[k] = filled(ctx, COUNT / 8 * 4 * MIB, 200 + k);
        CHECK_EQ_INT(stats_of(ctx).cached, 0);
        CHECK_EQ_INT(stats_of(ctx).reserved, COUNT * 4 * MIB);
        for (int i = 1; i < COUNT; i += 2) check_filled(pieces[i], i);
        for (int k = 0; k < 4; ++k) {
            check_filled(wide[k], 200 + k);
            gt_tensor_release(wide[k]);
        }
        for (int i = 0; i < COUNT; i += 2) pieces[i] = filled(ctx, 4 * MIB, i);
    }
    for (int i = 0; i < COUNT; ++i) {
        check_filled(pieces[i], i);
        gt_tensor_release(pieces[i]);
    }
    CHECK(cudaPeekAtLastError() == cudaSuccess);
}

/* Work that is queued may still use memory that is freed and moved at once. */
TEST_CUDA_ONLY(unit, memory_moves_only_after_the_work_on_it) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.memory_limit = 1024ull * MIB;
    gt_context *ctx = test_context_with(t, &options);
    const int64_t wide[1] = {64 * MIB};
    for (int i = 0; i < 20; ++i) {
        gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, wide, 1));
        for (int k = 0; k < 4; ++k) {
            gt_tensor *y = CHECK_TENSOR(gt_add(x, x));
            gt_tensor_release(x);
            x = y;
        }
        gt_tensor *sum = CHECK_TENSOR(gt_max(x, NULL, 0, 0));
        gt_tensor_release(x);
        gt_tensor *large = CHECK_TENSOR(gt_tensor_empty(ctx, GT_DTYPE_U8, 1, (const int64_t[]){900 * (int64_t)MIB})); /* takes all of it */
        double value;
        CHECK_OK(gt_tensor_item(sum, &value));
        CHECK(value == 16);
        gt_tensor_release(large);
        gt_tensor_release(sum);
    }
}

/* --- the backend's functions ---------------------------------------------------------------------------------------------------------- */

TEST_CUDA_ONLY(unit, map_is_all_or_nothing_and_raises_nothing) {
    gt_context *ctx = test_context(t);
    const gt__backend *b = ctx->backend;
    const size_t grain = b->map_grain(ctx->device);
    uint64_t free_bytes, total;
    void *address = NULL;
    int32_t previous = gt__enter(ctx);
    CHECK_OK(b->memory_info(ctx->device, &free_bytes, &total));
    const size_t range = (size_t)(total / grain * grain) * 2;
    CHECK_OK(b->address_reserve(ctx->device, range, &address));
    CHECK((uintptr_t)address % grain == 0);
    CHECK_OK(b->memory_map(ctx->device, (char *)address + grain, 3 * grain));
    CHECK_OK(b->memset_zero(ctx->device, GT__STREAM_COMPUTE, (char *)address + grain, 3 * grain));
    CHECK_OK(b->synchronize(ctx->device, GT__STREAM_COMPUTE));
    const size_t before = device_free();
    gt_clear_error();
    CHECK_STATUS(b->memory_map(ctx->device, (char *)address + 8 * grain, range / 2), GT_OUT_OF_MEMORY);
    CHECK_EQ_INT(gt_last_error()->status, GT_OK);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    CHECK(device_free() + 64 * MIB >= before); /* what had been mapped is given back */
    void *memory;
    CHECK_STATUS(b->memory_alloc(ctx->device, (size_t)total, &memory), GT_OUT_OF_MEMORY);
    CHECK_EQ_INT(gt_last_error()->status, GT_OK);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    /* Any run of grains goes back. */
    b->memory_unmap(ctx->device, (char *)address + 2 * grain, grain);
    CHECK_OK(b->memory_map(ctx->device, (char *)address + 2 * grain, grain));
    CHECK_OK(b->memset_zero(ctx->device, GT__STREAM_COMPUTE, (char *)address + grain, 3 * grain));
    CHECK_OK(b->synchronize(ctx->device, GT__STREAM_COMPUTE));
    b->memory_unmap(ctx->device, (char *)address + grain, 3 * grain);
    b->address_release(ctx->device, address, range);
    CHECK(device_free() >= before + 3 * grain);
    gt__leave(ctx, previous);
}

TEST_CUDA_ONLY(unit, copy_many_copies_pieces_of_any_size_and_place) {
    enum { COUNT = 1500 };
    static gt__copy_item list[COUNT];
    gt_context *ctx = test_context(t);
    size_t at = 0, offsets[COUNT], most = 4 * MIB;
    uint32_t random = 12345;
    for (int i = 0; i < COUNT; ++i) {
        random = random * 1664525u + 1013904223u;
        offsets[i] = at;
        list[i].bytes = i % 50 == 0 ? 0 : (random >> 8) % (i % 10 == 0 ? 20000 : 600);
        at += list[i].bytes + random % 3; /* places that are not aligned, alike or not */
    }
    CHECK(at + 2 * COUNT < most);
    unsigned char *host = malloc(most), *got = malloc(most);
    CHECK(host && got);
    for (size_t i = 0; i < most; ++i) host[i] = (unsigned char)(i * 2654435761u >> 13);
    const int64_t shape[1] = {(int64_t)most};
    gt_tensor *from = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_U8, 1, shape, host, most)), *to = filled(ctx, (int64_t)most, 99);
    for (int i = 0; i < COUNT; ++i) {
        list[i].source = (char *)gt_tensor_data(from) + offsets[i];
        list[i].destination = (char *)gt_tensor_data(to) + offsets[i] + i; /* in order, and apart */
    }
    int32_t previous = gt__enter(ctx);
    CHECK_OK(ctx->backend->copy_many(ctx->device, list, COUNT));
    CHECK_OK(ctx->backend->copy_many(ctx->device, list, 0));
    gt__leave(ctx, previous);
    CHECK_OK(gt_tensor_read(to, got, most));
    unsigned char *want = malloc(most);
    CHECK(want != NULL);
    memset(want, 99, most);
    for (int i = 0; i < COUNT; ++i) memcpy(want + offsets[i] + i, host + offsets[i], list[i].bytes);
    for (size_t i = 0; i < most; ++i)
        if (got[i] != want[i]) FAIL("byte %zu is %d, should be %d", i, got[i], want[i]);
    free(host);
    free(got);
    free(want);
    gt_tensor_release(from);
    gt_tensor_release(to);
}

TEST_CUDA_ONLY(unit, event_query_tells_without_waiting) {
    gt_context *ctx = test_context(t);
    const gt__backend *b = ctx->backend;
    gt__event *event;
    int32_t done = -1;
    const int64_t shape[2] = {8192, 8192};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1)), *y = CHECK_TENSOR(gt_matmul(x, x));
    gt_tensor_release(y);
    CHECK_OK(gt_context_synchronize(ctx));
    int32_t previous = gt__enter(ctx);
    CHECK_OK(b->event_create(ctx->device, &event));
    CHECK_OK(b->event_query(ctx->device, event, &done));
    CHECK_EQ_INT(done, 1);                                                        /* never recorded: nothing to wait for */
    for (int i = 0; i < 5; ++i) gt_tensor_release(CHECK_TENSOR(gt_matmul(x, x))); /* some ten milliseconds */
    CHECK_OK(b->event_record(ctx->device, event, GT__STREAM_COMPUTE));
    CHECK_OK(b->event_query(ctx->device, event, &done));
    CHECK_EQ_INT(done, 0);
    CHECK(cudaPeekAtLastError() == cudaSuccess); /* "not ready" is not left behind */
    for (int64_t i = 0; !done && i < 100000000; ++i) CHECK_OK(b->event_query(ctx->device, event, &done));
    CHECK_EQ_INT(done, 1);
    b->event_destroy(ctx->device, event);
    gt__leave(ctx, previous);
    gt_tensor_release(x);
}

TEST_CUDA_ONLY(unit, memory_holders_include_this_process_or_nobody) {
    gt_context *ctx = test_context(t);
    gt__memory_holder list[64];
    gt_tensor *x = filled(ctx, 300 * MIB, 1);
    int32_t previous = gt__enter(ctx);
    const int32_t count = ctx->backend->memory_holders(ctx->device, list, 64);
    gt__leave(ctx, previous);
    CHECK(count >= 0);
    uint64_t free_bytes, total;
    CHECK_OK(ctx->backend->memory_info(ctx->device, &free_bytes, &total));
    bool ours = false, enough = false;
    for (int32_t i = 0; i < count && i < 64; ++i) {
        CHECK(list[i].process > 0 && list[i].bytes <= total);
        ours = ours || list[i].process == (int64_t)getpid();
        enough = enough || list[i].bytes == 0 || list[i].bytes >= 300 * MIB;
        if (list[i].process == (int64_t)getpid()) CHECK(list[i].bytes == 0 || list[i].bytes >= 300 * MIB);
    }
    /* In a container processes may be listed by the host's numbers: then one of those is this one. */
    if (count > 0) CHECK(ours || enough);
    gt_tensor_release(x);
}

/* --- a full card ------------------------------------------------------------------------------------------------------------------------ */

TEST_CUDA_ONLY(unit, memory_of_a_card_that_others_fill) {
    gt_context *ctx = test_context(t);
    gt_tensor *x = filled(ctx, 100 * MIB, 5);
    void *others = NULL;
    CHECK(cudaMalloc(&others, device_free() - 300 * (size_t)MIB) == cudaSuccess);
    const int64_t large[1] = {500 * MIB};
    CHECK(gt_tensor_empty(ctx, GT_DTYPE_U8, 1, large) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
    gt_clear_error();
    CHECK_EQ_INT(stats_of(ctx).in_use, 100 * MIB);
    gt_tensor *y = filled(ctx, 150 * MIB, 6);
    gt_tensor_release(x);
    x = filled(ctx, 110 * MIB, 7); /* of the cache's grains, and some that are left */
    check_filled(y, 6);
    check_filled(x, 7);
    gt_tensor_release(x);
    gt_tensor_release(y);
    CHECK(cudaFree(others) == cudaSuccess);
    gt_tensor_release(filled(ctx, 500 * MIB, 8));
    CHECK(cudaPeekAtLastError() == cudaSuccess);
}

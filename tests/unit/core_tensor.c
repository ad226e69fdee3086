#include "harness/test.h"

#include <gtrain/gtrain.h>

TEST_DEVICES(unit, write_then_read_gives_the_same_bytes) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    static const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64, GT_DTYPE_I32, GT_DTYPE_I64, GT_DTYPE_U8};
    const int64_t shape[3] = {3, 1, 5};
    unsigned char in[15 * 8], out[15 * 8];
    for (size_t i = 0; i < sizeof in; ++i) in[i] = (unsigned char)(i * 37 + 11);
    for (int d = 0; d < 7; ++d) {
        size_t bytes = 15 * gt_dtype_size(dtypes[d]);
        gt_tensor *x = CHECK_TENSOR(gt_tensor_from_data(ctx, dtypes[d], 3, shape, in, bytes));
        CHECK_EQ_INT(gt_tensor_bytes(x), bytes);
        memset(out, 0, sizeof out);
        CHECK_OK(gt_tensor_read(x, out, bytes));
        CHECK(memcmp(in, out, bytes) == 0);
    }
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, views_read_in_logical_order) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[2] = {2, 3};
    const float values[6] = {1, 2, 3, 4, 5, 6}, turned[6] = {1, 4, 2, 5, 3, 6}, nine[6] = {10, 20, 30, 40, 50, 60};
    float out[6];
    gt_tensor *x = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, shape, values, sizeof values));
    gt_tensor *y = CHECK_TENSOR(gt_transpose(x, 0, 1));
    CHECK_EQ_INT(gt_tensor_size(y, 0), 3);
    CHECK_EQ_INT(gt_tensor_is_contiguous(y), 0);
    CHECK_OK(gt_tensor_read(y, out, sizeof out));
    CHECK(memcmp(out, turned, sizeof out) == 0);
    CHECK_OK(gt_tensor_write(y, nine, sizeof nine)); /* writes through the view */
    const float through[6] = {10, 30, 50, 20, 40, 60};
    CHECK_OK(gt_tensor_read(x, out, sizeof out));
    CHECK(memcmp(out, through, sizeof out) == 0);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, a_host_buffer_may_be_reused_at_once) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    enum { N = 5000, K = 40 };
    static int32_t buffer[N], out[N];
    const int64_t shape[1] = {N};
    gt_tensor *made[K];
    for (int k = 0; k < K; ++k) {
        for (int i = 0; i < N; ++i) buffer[i] = k * N + i;
        made[k] = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_I32, 1, shape, buffer, sizeof buffer));
        memset(buffer, 0, sizeof buffer);
    }
    for (int k = 0; k < K; ++k) {
        CHECK_OK(gt_tensor_read(made[k], out, sizeof out));
        for (int i = 0; i < N; ++i) CHECK_EQ_INT(out[i], k * N + i);
    }
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(unit, scalars_and_empty_tensors_are_valid) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t empty[2] = {0, 3};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, empty));
    CHECK_EQ_INT(gt_tensor_numel(x), 0);
    CHECK(gt_tensor_data(x) == NULL);
    CHECK_OK(gt_tensor_read(x, NULL, 0));
    gt_tensor *s = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F16, 0, NULL, 1.5));
    double value = 0;
    CHECK_OK(gt_tensor_item(s, &value));
    CHECK_NEAR(value, 1.5, 0);
    CHECK_EQ_INT(gt_tensor_numel(s), 1);
    CHECK_STATUS(gt_tensor_item(x, &value), GT_BAD_SHAPE);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(contract, M5_sizes_never_wrap) {
    gt_context *ctx = test_context(t);
    const int64_t a[1] = {((int64_t)1 << 62) + 2}, b[4] = {2, 2, 1, (int64_t)1 << 61}, c[1] = {-1},
                  d[3] = {0, (int64_t)1 << 40, (int64_t)1 << 40};
    const int64_t good[2] = {0, 3};
    gt_memory_stats before, after;
    CHECK_OK(gt_memory_stats_init(&before, sizeof before));
    CHECK_OK(gt_memory_stats_init(&after, sizeof after));
    CHECK_OK(gt_memory_get_stats(ctx, &before));
    gt_clear_error();
    CHECK(gt_tensor_empty(ctx, GT_DTYPE_F32, 1, a) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK(gt_tensor_empty(ctx, GT_DTYPE_F32, 4, b) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK(gt_tensor_empty(ctx, GT_DTYPE_F32, 1, c) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK(gt_tensor_empty(ctx, GT_DTYPE_F32, 3, d) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK_OK(gt_memory_get_stats(ctx, &after));
    CHECK_EQ_INT(before.allocations, after.allocations);
    gt_tensor *e = CHECK_TENSOR(gt_tensor_empty(ctx, GT_DTYPE_F32, 2, good));
    gt_tensor *s = CHECK_TENSOR(gt_tensor_empty(ctx, GT_DTYPE_F32, 0, NULL));
    gt_tensor_release(e);
    gt_tensor_release(s);
}

TEST_DEVICES(unit, scopes_release_what_was_made_inside) {
    gt_context *ctx = test_context(t);
    const int64_t shape[1] = {100000};
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *outer = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 1));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *kept = gt_tensor_retain(CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 2)));
    CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 3));
    gt_tensor *returned = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 4));
    CHECK(gt_scope_return(ctx, returned) == returned);
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK_EQ_INT(stats.in_use / 400384, 3);
    float first;
    const int64_t one[1] = {1};
    (void)one;
    CHECK_OK(gt_tensor_read(gt_slice(returned, 0, 0, 1, 1), &first, sizeof first));
    CHECK_NEAR(first, 4, 0);
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK_EQ_INT(stats.in_use / 400384, 1);
    gt_tensor_release(kept);
    (void)outer;
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK_EQ_INT(stats.in_use, 0);
    CHECK_EQ_INT(stats.reserved, stats.cached);
    CHECK_OK(gt_memory_trim(ctx));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK_EQ_INT(stats.reserved, 0);
}

TEST_DEVICES(unit, memory_limit_is_kept_and_named) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.memory_limit = 8u << 20;
    gt_context *ctx = test_context_with(t, &options);
    const int64_t big[1] = {3 << 20}, fits[1] = {1 << 20};
    gt_clear_error();
    CHECK(gt_tensor_empty(ctx, GT_DTYPE_F32, 1, big) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
    CHECK_ERROR_HAS("limit 8.0 MiB");
    for (int i = 0; i < 20; ++i) { /* different sizes: cached segments must be given back */
        const int64_t shape[1] = {(1 << 20) - i * 5000};
        gt_tensor *x = CHECK_TENSOR(gt_tensor_empty(ctx, GT_DTYPE_F32, 1, i % 2 ? shape : fits));
        gt_tensor_release(x);
    }
    CHECK_OK(gt_context_set_memory_limit(ctx, 0));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_empty(ctx, GT_DTYPE_F32, 1, big));
    gt_tensor_release(x);
}

TEST_DEVICES(unit, random_numbers_continue_from_a_saved_state) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[1] = {1001};
    float a[1001], b[1001], again[1001];
    CHECK_OK(gt_random_seed(ctx, 42));
    CHECK_OK(gt_tensor_read(gt_tensor_uniform(ctx, GT_DTYPE_F32, 1, shape, 0, 1), a, sizeof a));
    uint64_t seed, offset;
    CHECK_OK(gt_random_state_get(ctx, &seed, &offset));
    CHECK_EQ_INT(offset, 251);
    CHECK_OK(gt_tensor_read(gt_tensor_uniform(ctx, GT_DTYPE_F32, 1, shape, 0, 1), b, sizeof b));
    CHECK(memcmp(a, b, sizeof a) != 0);
    CHECK_OK(gt_random_state_set(ctx, seed, offset));
    CHECK_OK(gt_tensor_read(gt_tensor_uniform(ctx, GT_DTYPE_F32, 1, shape, 0, 1), again, sizeof again));
    CHECK(memcmp(again, b, sizeof b) == 0);
    double mean = 0, low = 1, high = 0;
    for (int i = 0; i < 1001; ++i) {
        mean += a[i] / 1001;
        if (a[i] < low) low = a[i];
        if (a[i] > high) high = a[i];
    }
    CHECK_NEAR(mean, 0.5, 0.05);
    CHECK(low >= 0 && high < 1 && low < 0.02 && high > 0.98);
    CHECK_OK(gt_scope_end(ctx));
}

/* CPU kernels: exact sums, NaN, ties, and what the walks over strides must not get wrong. */
#include "harness/test.h"

#include <gtrain/gtrain.h>
#include <math.h>

TEST(unit, large_sums_are_exact_enough) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t many[1] = {10000000}, tall[2] = {2000000, 5}, wide[2] = {5, 2000000};
    const int32_t first = 0, second = 1;
    double value = 0;
    CHECK_OK(gt_tensor_item(CHECK_TENSOR(gt_sum(CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, many, 1)), NULL, 0, 0)), &value));
    CHECK(value == 1e7);
    float sums[5];
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_sum(CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, tall, 0.1)), &first, 1, 0)), sums,
                            sizeof sums));
    for (int i = 0; i < 5; i++) CHECK_NEAR(sums[i], 2e6 * (double)0.1f, 1e-7);
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_mean(CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, wide, 0.1)), &second, 1, 0)), sums,
                            sizeof sums));
    for (int i = 0; i < 5; i++) CHECK_NEAR(sums[i], (double)0.1f, 1e-7);
    CHECK_OK(gt_scope_end(ctx));
}

TEST(contract, A4_half_sums_accumulate_in_f32) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[2] = {3000, 7}, rows[2] = {4, 6}, n[1] = {5000}; /* 2048 + 1 is 2048 in f16 */
    const int32_t axis = 0;
    float sums[7], table[24];
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F16, 2, shape, 1));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(gt_sum(x, &axis, 1, 0), GT_DTYPE_F32)), sums, sizeof sums));
    for (int i = 0; i < 7; i++) CHECK(sums[i] == 3000);
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F16, 2, rows, 1));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    gt_tensor *y = CHECK_TENSOR(gt_embedding(w, CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_I32, 1, n, 2))));
    gt_tensor *dy = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F16, 2, gt_tensor_shape(y), 1));
    CHECK_OK(gt_backward_from(&y, &dy, 1, 0));
    CHECK_OK(gt_tensor_read(gt_tensor_grad(w), table, sizeof table));
    for (int i = 0; i < 24; i++) CHECK(table[i] == (i / 6 == 2 ? 5000 : 0));
    CHECK_OK(gt_scope_end(ctx));
}

TEST(contract, L2_nan_goes_through_relu_and_max_pool) {
    gt_context *ctx = test_context(t);
    static const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64};
    for (int d = 0; d < 4; d++) {
        CHECK_OK(gt_scope_begin(ctx));
        enum { N = 16 };
        const int64_t shape[4] = {1, 1, 2, N / 2};
        const double values[N] = {1, 5, NAN, 1, -INFINITY, -INFINITY, 9, 1, /**/ 5, 2, 3, NAN, -INFINITY, -INFINITY, NAN, 10};
        double out[N];
        gt_tensor *x = CHECK_TENSOR(gt_cast(gt_tensor_from_data(ctx, GT_DTYPE_F64, 4, shape, values, sizeof values), dtypes[d]));
        CHECK_OK(gt_tensor_set_requires_grad(x, 1));
        CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(gt_relu(x), GT_DTYPE_F64)), out, sizeof out));
        for (int i = 0; i < N; i++) CHECK(isnan(values[i]) ? isnan(out[i]) : out[i] == (values[i] > 0 ? values[i] : 0));
        gt_pool2d_options options;
        CHECK_OK(gt_pool2d_options_init(&options, sizeof options));
        options.kernel[0] = options.kernel[1] = 2;
        gt_tensor *y = CHECK_TENSOR(gt_max_pool2d(x, &options));
        CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(y, GT_DTYPE_F64)), out, 4 * sizeof *out));
        CHECK(out[0] == 5 && isnan(out[1]) && out[2] == -INFINITY && isnan(out[3]));
        gt_tensor *dy = CHECK_TENSOR(gt_tensor_full(ctx, dtypes[d], 4, gt_tensor_shape(y), 1));
        CHECK_OK(gt_backward_from(&y, &dy, 1, 0));
        CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(gt_tensor_grad(x), GT_DTYPE_F64)), out, sizeof out));
        const double first[N] = {0, 1, 1, 0, 1, 0, 0, 0, /**/ 0, 0, 0, 0, 0, 0, 1, 0}; /* the first of equal maxima, and of NaNs */
        for (int i = 0; i < N; i++) CHECK(out[i] == first[i]);
        CHECK_OK(gt_scope_end(ctx));
    }
}

TEST(unit, max_pool_places_beyond_255_are_kept) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    enum { H = 20, W = 18 };
    const int64_t shape[4] = {1, 1, H, W};
    static float x[H * W], dx[H * W];
    for (int i = 0; i < H * W; i++) x[i] = (float)i;
    gt_tensor *tx = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 4, shape, x, sizeof x));
    CHECK_OK(gt_tensor_set_requires_grad(tx, 1));
    gt_pool2d_options options;
    CHECK_OK(gt_pool2d_options_init(&options, sizeof options));
    options.kernel[0] = H;
    options.kernel[1] = W;
    CHECK_OK(gt_backward(CHECK_TENSOR(gt_sum(gt_max_pool2d(tx, &options), NULL, 0, 0))));
    CHECK_OK(gt_tensor_read(gt_tensor_grad(tx), dx, sizeof dx));
    for (int i = 0; i < H * W; i++) CHECK(dx[i] == (i == H * W - 1));
    CHECK_OK(gt_scope_end(ctx));
}

/* Element i depends on i alone: not on the layout, nor on how many threads draw. */
TEST(unit, random_elements_do_not_depend_on_layout_or_threads) {
    enum { N = 6 * 5 * 40 * 33 };
    static float a[N], b[N];
    const int64_t shape[4] = {6, 5, 40, 33};
    for (int threads = 1; threads <= 3; threads++) {
        gt_context_options options;
        CHECK_OK(gt_context_options_init(&options, sizeof options));
        options.cpu_threads = threads;
        options.seed = 42;
        gt_context *ctx = test_context_with(t, &options);
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, shape, 0, 1)), threads == 1 ? a : b, sizeof a));
        if (threads > 1) CHECK(memcmp(a, b, sizeof a) == 0);
        CHECK_OK(gt_scope_end(ctx));
    }
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *ones = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 4, shape, 1)), *last = CHECK_TENSOR(gt_channels_last(ones));
    CHECK_OK(gt_random_seed(ctx, 9));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_dropout(ones, 0.3, 1)), a, sizeof a));
    CHECK_OK(gt_random_seed(ctx, 9));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_dropout(last, 0.3, 1)), b, sizeof b));
    CHECK(memcmp(a, b, sizeof a) == 0);
    int dropped = 0;
    for (int i = 0; i < N; i++) {
        CHECK(a[i] == 0 || fabsf(a[i] - 1 / 0.7f) < 1e-6f);
        dropped += a[i] == 0;
    }
    CHECK_NEAR(dropped / (double)N, 0.3, 0.02);
    CHECK_OK(gt_scope_end(ctx));
}

TEST(unit, casts_to_integers_cut_saturate_and_map_nan_to_zero) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t n[1] = {7};
    const double x[7] = {2.9, -2.9, NAN, 1e30, -1e30, 255.9, 256};
    int32_t i32[7];
    int64_t i64[7];
    uint8_t u8[7];
    gt_tensor *tx = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F64, 1, n, x, sizeof x));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(tx, GT_DTYPE_I32)), i32, sizeof i32));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(tx, GT_DTYPE_I64)), i64, sizeof i64));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(tx, GT_DTYPE_U8)), u8, sizeof u8));
    CHECK(i32[0] == 2 && i32[1] == -2 && i32[2] == 0 && i32[3] == INT32_MAX && i32[4] == INT32_MIN && i32[5] == 255);
    CHECK(i64[0] == 2 && i64[1] == -2 && i64[2] == 0 && i64[3] == INT64_MAX && i64[4] == INT64_MIN);
    CHECK(u8[0] == 2 && u8[1] == 0 && u8[2] == 0 && u8[3] == 255 && u8[4] == 0 && u8[5] == 255 && u8[6] == 255);
    CHECK_OK(gt_scope_end(ctx));
}

TEST(contract, L1_bad_label_names_row_value_and_classes) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[2] = {4, 3}, n[1] = {4};
    const int64_t labels[4] = {0, -100, 7, 1};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, shape)),
              *y = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, n, labels, sizeof labels));
    CHECK(gt_cross_entropy(x, y, NULL) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_LABEL);
    CHECK_ERROR_HAS("row 2");
    CHECK_ERROR_HAS("label 7");
    CHECK_ERROR_HAS("3 classes");
    CHECK(gt_embedding(x, y) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_LABEL);
    CHECK_ERROR_HAS("position 1");
    CHECK_TENSOR(gt_softmax(x, 1)); /* and the context is usable */
    CHECK_OK(gt_scope_end(ctx));
}

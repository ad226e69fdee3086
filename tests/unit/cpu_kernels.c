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

/* Means far from 0, a first row far from the others, columns that do not change, and squares beyond f32, in one matrix; against f64. */
TEST(unit, batch_norm_statistics_are_safe) {
    enum { ROWS = 5003, COLUMNS = 5 };
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[2] = {ROWS, COLUMNS}, columns[1] = {COLUMNS};
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS], dx[ROWS * COLUMNS];
    for (int variant = 0; variant < 2; variant++) { /* the second has a column that f32 cannot square */
        uint32_t state = 1;
        for (int i = 0; i < ROWS; i++) {
            for (int c = 0; c < COLUMNS; c++) {
                state = state * 1664525u + 1013904223u;
                x[i * COLUMNS + c] = (float)(state >> 8) / 16777216.0f * 3.4641016f - 1.7320508f; /* variance 1 */
            }
            x[i * COLUMNS + 1] += 1e4f;
            x[i * COLUMNS + 2] += i < 16 ? 1e4f : 0; /* all that the first block is sampled by */
            x[i * COLUMNS + 3] = 0.1f;
            x[i * COLUMNS + 4] *= variant ? 1e25f : 1e-3f;
        }
        gt_tensor *input = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, shape, x, sizeof x));
        gt_tensor *mean = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, columns)),
                  *var = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, columns));
        CHECK_OK(gt_tensor_set_requires_grad(input, 1));
        gt_tensor *output = CHECK_TENSOR(gt_batch_norm(input, NULL, NULL, mean, var, 1, 1, 1e-5));
        CHECK_OK(gt_tensor_read(output, y, sizeof y));
        gt_tensor *loss = CHECK_TENSOR(gt_sum(CHECK_TENSOR(gt_square(CHECK_TENSOR(gt_square(output)))), NULL, 0, 0));
        CHECK_OK(gt_backward(loss));
        CHECK_OK(gt_tensor_read(gt_tensor_grad(input), dx, sizeof dx));
        float got_mean[COLUMNS], got_var[COLUMNS];
        CHECK_OK(gt_tensor_read(mean, got_mean, sizeof got_mean));
        CHECK_OK(gt_tensor_read(var, got_var, sizeof got_var));
        for (int c = 0; c < COLUMNS; c++) {
            double m = 0, v = 0, sum = 0, product = 0;
            for (int i = 0; i < ROWS; i++) m += (double)x[i * COLUMNS + c] / ROWS;
            for (int i = 0; i < ROWS; i++) v += ((double)x[i * COLUMNS + c] - m) * ((double)x[i * COLUMNS + c] - m);
            double rstd = 1 / sqrt(v / ROWS + 1e-5);
            CHECK_NEAR(got_mean[c] * rstd, m * rstd, 1e-6 + fabs(m * rstd) * 1e-7);
            if (variant == 0 || c < 4) CHECK_NEAR(got_var[c], v / (ROWS - 1), 1e-12 + v / ROWS * 2e-6);
            for (int i = 0; i < ROWS; i++) {
                double normal = ((double)x[i * COLUMNS + c] - m) * rstd, dy = 4 * normal * normal * normal;
                CHECK_NEAR(y[i * COLUMNS + c], normal, 1e-5 + fabs(normal) * 1e-5);
                sum += dy / ROWS;
                product += dy * normal / ROWS;
            }
            for (int i = 0; i < ROWS; i++) {
                double normal = ((double)x[i * COLUMNS + c] - m) * rstd, dy = 4 * normal * normal * normal;
                double scale = fabs(dy) + fabs(sum) + fabs(normal * product) + 1;
                double rounded = fabs(m) * rstd * 6e-8; /* the mean is kept for the gradient in f32 */
                CHECK_NEAR(dx[i * COLUMNS + c] / rstd, dy - sum - normal * product, 2e-5 * scale + rounded * (fabs(product) + scale));
            }
        }
    }
    CHECK_OK(gt_scope_end(ctx));
}

/* The f32 loops against the f64 ones, in numbers of channels that end in every kind of tail: y, and the gradient that y itself sends back. */
TEST(unit, f32_norms_and_average_pools_agree_with_f64) {
    enum { IMAGES = 3, HEIGHT = 9, WIDTH = 7, PIXELS = IMAGES * HEIGHT * WIDTH, MOST = 275 };
    static const int64_t channels[] = {3, 83, MOST};
    static double x[PIXELS * MOST], y[2][PIXELS * MOST], dx[2][PIXELS * MOST];
    gt_context *ctx = test_context(t);
    for (int which = 0; which < 3 * 4; which++) {
        CHECK_OK(gt_scope_begin(ctx));
        int64_t n = channels[which / 4], count = 0, op = which % 4;
        const int64_t shape[4] = {IMAGES, n, HEIGHT, WIDTH};
        uint32_t state = 1;
        for (int64_t i = 0; i < PIXELS * n; i++) {
            state = state * 1664525u + 1013904223u;
            x[i] = (double)(state >> 8) / 16777216.0 - 0.25;
        }
        for (int wide = 0; wide < 2; wide++) {
            gt_tensor *input = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F64, 4, shape, x, (size_t)(PIXELS * n) * sizeof *x));
            input = CHECK_TENSOR(gt_tensor_detach(gt_channels_last(gt_cast(input, wide ? GT_DTYPE_F64 : GT_DTYPE_F32))));
            CHECK_OK(gt_tensor_set_requires_grad(input, 1));
            gt_pool2d_options options;
            CHECK_OK(gt_pool2d_options_init(&options, sizeof options));
            options.kernel[0] = options.kernel[1] = 3;
            options.stride[0] = options.stride[1] = 2;
            options.padding[0] = options.padding[1] = 1;
            options.count_include_pad = op == 1;
            gt_tensor *output = CHECK_TENSOR(op < 2    ? gt_avg_pool2d(input, &options)
                                             : op == 2 ? gt_adaptive_avg_pool2d(input, 4, 3)
                                                       : gt_batch_norm(input, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5));
            count = gt_tensor_numel(output);
            CHECK_OK(gt_backward(CHECK_TENSOR(gt_sum(CHECK_TENSOR(gt_square(CHECK_TENSOR(gt_add_scalar(output, 1)))), NULL, 0, 0))));
            CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(output, GT_DTYPE_F64)), y[wide], (size_t)count * sizeof **y));
            CHECK_OK(
                gt_tensor_read(CHECK_TENSOR(gt_cast(gt_tensor_grad(input), GT_DTYPE_F64)), dx[wide], (size_t)(PIXELS * n) * sizeof **dx));
        }
        for (int64_t i = 0; i < count; i++) CHECK_NEAR(y[0][i], y[1][i], 2e-6);
        for (int64_t i = 0; i < PIXELS * n; i++) CHECK_NEAR(dx[0][i], dx[1][i], 1e-5);
        CHECK_OK(gt_scope_end(ctx));
    }
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

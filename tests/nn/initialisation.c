/* Initial weights: bounds, moments, reproducibility. */
#include "support.h"

typedef struct moments {
    double low, high, mean, deviation;
} moments;

static moments moments_of(gt_tensor *tensor) {
    int64_t n = gt_tensor_numel(tensor);
    double *values = malloc((size_t)n * sizeof *values), sum = 0, squares = 0;
    read_values(tensor, values, n);
    moments m = {INFINITY, -INFINITY, 0, 0};
    for (int64_t i = 0; i < n; ++i) {
        m.low = fmin(m.low, values[i]);
        m.high = fmax(m.high, values[i]);
        sum += values[i];
        squares += values[i] * values[i];
    }
    free(values);
    m.mean = sum / (double)n;
    m.deviation = sqrt(squares / (double)n - m.mean * m.mean);
    return m;
}

static void check_uniform(gt_tensor *tensor, double bound) {
    moments m = moments_of(tensor);
    CHECK(m.low >= -bound && m.high <= bound);
    CHECK(m.low < -0.99 * bound && m.high > 0.99 * bound);
    CHECK(fabs(m.mean) < 0.02 * bound);
    CHECK(fabs(m.deviation - bound / sqrt(3)) < 0.02 * bound);
}

static void check_normal(gt_tensor *tensor, double mean, double deviation) {
    moments m = moments_of(tensor);
    CHECK(fabs(m.mean - mean) < 0.02 * deviation);
    CHECK(fabs(m.deviation - deviation) < 0.02 * deviation);
    CHECK(m.high > mean + 3 * deviation && m.low < mean - 3 * deviation);
}

TEST_DEVICES(unit, default_initialisations_are_those_of_pytorch) {
    gt_context *ctx = exact_context(t);
    gt_module *linear = gt_nn_linear(ctx, 400, 300, NULL), *conv = gt_nn_conv2d(ctx, 64, 128, 3, NULL),
              *embedding = gt_nn_embedding(ctx, 500, 100), *norm = gt_nn_batch_norm(ctx, 10, NULL),
              *wide = gt_nn_linear(ctx, 16, 20000, NULL);
    CHECK(linear && conv && embedding && norm && wide);
    check_uniform(named(linear, "weight"), 1 / sqrt(400));
    check_uniform(named(wide, "bias"), 0.25);
    check_uniform(named(conv, "weight"), 1 / sqrt(64 * 9));
    check_normal(named(embedding, "weight"), 0, 1);
    moments m = moments_of(named(norm, "weight"));
    CHECK(m.low == 1 && m.high == 1);
    m = moments_of(named(norm, "bias"));
    CHECK(m.low == 0 && m.high == 0);
    m = moments_of(named(norm, "running_var"));
    CHECK(m.low == 1 && m.high == 1);
    m = moments_of(named(norm, "running_mean"));
    CHECK(m.low == 0 && m.high == 0);
    gt_module_destroy(linear);
    gt_module_destroy(conv);
    gt_module_destroy(embedding);
    gt_module_destroy(norm);
    gt_module_destroy(wide);
}

TEST_DEVICES(unit, explicit_initialisations_have_their_moments) {
    gt_context *ctx = exact_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *w = CHECK_TENSOR(gt_tensor_empty(ctx, GT_DTYPE_F32, 4, (const int64_t[]){128, 64, 3, 3})); /* fans 576 and 1152 */
    CHECK_OK(gt_nn_init_uniform(w, -2, 2));
    check_uniform(w, 2);
    CHECK_OK(gt_nn_init_normal(w, 5, 0.5));
    check_normal(w, 5, 0.5);
    CHECK_OK(gt_nn_init_xavier_uniform(w, 2));
    check_uniform(w, 2 * sqrt(6.0 / (576 + 1152)));
    CHECK_OK(gt_nn_init_xavier_normal(w, 1));
    check_normal(w, 0, sqrt(2.0 / (576 + 1152)));
    CHECK_OK(gt_nn_init_kaiming_uniform(w, sqrt(5), GT_NN_FAN_IN));
    check_uniform(w, 1 / sqrt(576));
    CHECK_OK(gt_nn_init_kaiming_normal(w, 0, GT_NN_FAN_OUT));
    check_normal(w, 0, sqrt(2.0 / 1152));
    CHECK_OK(gt_nn_init_constant(w, 0.5));
    moments m = moments_of(w);
    CHECK(m.low == 0.5 && m.high == 0.5);

    /* every second row of a matrix, the others untouched */
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){8, 5000});
    CHECK_OK(gt_nn_init_uniform(gt_slice(x, 0, 0, 8, 2), -1, 1));
    check_uniform(gt_slice(x, 0, 0, 8, 2), 1);
    m = moments_of(gt_slice(x, 0, 1, 8, 2));
    CHECK(m.low == 0 && m.high == 0);
    CHECK_OK(gt_nn_init_uniform(gt_tensor_empty(ctx, GT_DTYPE_F32, 1, (const int64_t[]){0}), 0, 1));
    CHECK_OK(gt_scope_end(ctx));
}

TEST(unit, initialisations_refuse_what_has_no_meaning) {
    gt_context *ctx = exact_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *vector = gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, (const int64_t[]){4}),
              *integers = gt_tensor_zeros(ctx, GT_DTYPE_I64, 2, (const int64_t[]){2, 2});
    CHECK_STATUS(gt_nn_init_xavier_uniform(vector, 1), GT_BAD_SHAPE);
    CHECK_ERROR_HAS("[4]");
    CHECK_STATUS(gt_nn_init_kaiming_normal(integers, 0, GT_NN_FAN_IN), GT_BAD_DTYPE);
    CHECK_STATUS(gt_nn_init_uniform(vector, 1, 0), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_nn_init_uniform(vector, 0, INFINITY), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_nn_init_normal(vector, 0, -1), GT_BAD_ARGUMENT);
    gt_tensor *w = gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 2});
    CHECK_STATUS(gt_nn_init_kaiming_normal(w, 0, 2), GT_BAD_ARGUMENT);
    gt_clear_error();
    CHECK(gt_nn_init_constant(NULL, 0) != GT_OK);
    CHECK_OK(gt_scope_end(ctx));
}

TEST(unit, the_same_seed_makes_the_same_network) {
    float weights[3][12];
    for (int i = 0; i < 3; ++i) {
        gt_context_options o;
        CHECK_OK(gt_context_options_init(&o, sizeof o));
        o.seed = i == 2 ? 8 : 7;
        gt_context *ctx = test_context_with(t, &o);
        gt_module *m = gt_nn_linear(ctx, 3, 4, NULL);
        CHECK_OK(gt_tensor_read(named(m, "weight"), weights[i], sizeof weights[i]));
        gt_module_destroy(m);
    }
    CHECK(memcmp(weights[0], weights[1], sizeof weights[0]) == 0);
    CHECK(memcmp(weights[0], weights[2], sizeof weights[0]) != 0);
}

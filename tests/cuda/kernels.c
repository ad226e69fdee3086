/* What the op cases do not reach in our own kernels: lists of more tensors than a launch takes, reductions in several parts, results that must repeat to
 * the last bit, statistics far from zero, every pair of dtypes. */
#include "cuda/support.h"

#include <stdio.h>

/* --- many tensors in one launch ------------------------------------------------------------------------------------------------------ */

enum { MANY = 1500 };

typedef struct training {
    gt_tensor *parameters[MANY];
    gt_optimizer *optimizer;
} training;

/* Sizes from 0 to a few chunks, odd ones too, in every dtype in turn. */
static void training_begin(gt_context *ctx, training *run, int count, const gt_optimizer_options *options) {
    static const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_F32, GT_DTYPE_BF16, GT_DTYPE_F64};
    CHECK_OK(gt_scope_begin(ctx));
    for (int k = 0; k < count; k++) {
        const int64_t size = k % 97 == 0 ? 9001 + k : k % 37;
        gt_tensor *p = CHECK_TENSOR(exact_numbers(ctx, dtypes[k % 5], 1, &size, (uint32_t)k + 1));
        CHECK_OK(gt_tensor_set_requires_grad(p, 1));
        run->parameters[k] = gt_tensor_retain(p);
    }
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_optimizer_create(options, run->parameters, count, &run->optimizer));
}

static void training_gradients(training *run, int count, uint32_t seed) {
    CHECK_OK(gt_optimizer_zero_grad(run->optimizer));
    for (int k = 0; k < count; k++) {
        gt_tensor *p = run->parameters[k];
        gt_context *ctx = gt_tensor_context(p);
        const int64_t size = gt_tensor_numel(p);
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *w = exact_numbers(ctx, gt_tensor_dtype(p), 1, &size, seed + (uint32_t)k);
        CHECK_OK(gt_backward(CHECK_TENSOR(gt_sum(gt_mul(p, w), NULL, 0, 0))));
        CHECK_OK(gt_scope_end(ctx));
    }
}

static void training_end(training *run, int count) {
    gt_optimizer_destroy(run->optimizer);
    for (int k = 0; k < count; k++) gt_tensor_release(run->parameters[k]);
}

static void compare_parameters(training *a, training *b, int count, double tolerance) {
    for (int k = 0; k < count; k++) {
        const gt_dtype dtype = gt_tensor_dtype(a->parameters[k]);
        char what[64];
        snprintf(what, sizeof what, "parameter %d (%s)", k, gt_dtype_name(dtype));
        gt_context *ctx[2] = {gt_tensor_context(a->parameters[k]), gt_tensor_context(b->parameters[k])};
        for (int i = 0; i < 2; i++) CHECK_OK(gt_scope_begin(ctx[i]));
        check_close(what, gt_tensor_detach(a->parameters[k]), gt_tensor_detach(b->parameters[k]), tolerance + rounding(dtype), 0);
        for (int i = 0; i < 2; i++) CHECK_OK(gt_scope_end(ctx[i]));
    }
}

static void check_updates(gt_context *cuda, const gt_optimizer_options *options, int count) {
    gt_context *cpu = cpu_context();
    training *runs = calloc(2, sizeof *runs);
    CHECK(runs != NULL);
    training_begin(cuda, &runs[0], count, options);
    training_begin(cpu, &runs[1], count, options);
    for (uint32_t step = 0; step < 3; step++) {
        double norms[2];
        for (int i = 0; i < 2; i++) {
            gt_context *ctx = i ? cpu : cuda;
            gt_tensor *norm = NULL;
            training_gradients(&runs[i], count, step * 1000);
            CHECK_OK(gt_scope_begin(ctx));
            CHECK_OK(gt_optimizer_clip_grad_value(runs[i].optimizer, 0.9));
            CHECK_OK(gt_optimizer_clip_grad_norm(runs[i].optimizer, 2.0, &norm));
            CHECK_OK(gt_tensor_item(norm, &norms[i]));
            CHECK_OK(gt_scope_end(ctx));
            CHECK_OK(gt_optimizer_step(runs[i].optimizer));
        }
        CHECK_NEAR(norms[0], norms[1], 1e-6);
    }
    compare_parameters(&runs[0], &runs[1], count, 3e-6);
    for (int i = 0; i < 2; i++) training_end(&runs[i], count);
    free(runs);
    gt_context_destroy(cpu);
}

static gt_optimizer_options rule(gt_optimizer_kind kind, double weight_decay) {
    gt_optimizer_options options;
    CHECK_OK(gt_optimizer_options_init(&options, sizeof options, kind));
    options.weight_decay = weight_decay;
    options.learning_rate = 0.01;
    if (kind == GT_OPTIMIZER_SGD) {
        options.momentum = 0.9;
        options.nesterov = weight_decay != 0;
    }
    return options;
}

#define UPDATE_TEST(name, kind, decay, count)                                                                                              \
    TEST_CUDA_ONLY(parity, name) {                                                                                                         \
        const gt_optimizer_options options = rule(kind, decay);                                                                            \
        check_updates(test_context(t), &options, count);                                                                                   \
    }
UPDATE_TEST(sgd_updates_a_few_tensors, GT_OPTIMIZER_SGD, 0, 11)
UPDATE_TEST(sgd_updates_hundreds_of_tensors, GT_OPTIMIZER_SGD, 0.01, 300)
UPDATE_TEST(adam_updates_a_few_tensors, GT_OPTIMIZER_ADAM, 0.01, 11)
UPDATE_TEST(adam_updates_hundreds_of_tensors, GT_OPTIMIZER_ADAM, 0, 300)
UPDATE_TEST(adamw_updates_more_tensors_than_a_launch_takes, GT_OPTIMIZER_ADAMW, 0.1, MANY)

/* --- results that repeat ------------------------------------------------------------------------------------------------------------- */

static float *values_of(gt_tensor *x, int64_t *count) {
    *count = gt_tensor_numel(CHECK_TENSOR(x));
    return read_f32(x);
}

/* Runs `make` twice and compares bits. */
static void check_repeats(gt_context *ctx, const char *what, gt_tensor *(*make)(gt_context *ctx)) {
    float *first = NULL;
    int64_t count = 0;
    for (int run = 0; run < 2; run++) {
        CHECK_OK(gt_scope_begin(ctx));
        float *values = values_of(make(ctx), &count);
        CHECK_OK(gt_scope_end(ctx));
        if (run == 0) {
            first = values;
        } else {
            if (memcmp(first, values, (size_t)count * sizeof *values) != 0) FAIL("%s differs from run to run", what);
            free(values);
        }
    }
    free(first);
}

static gt_tensor *rough(gt_context *ctx, int32_t ndim, const int64_t *shape) {
    CHECK_OK(gt_random_seed(ctx, 7));
    return gt_tensor_normal(ctx, GT_DTYPE_F32, ndim, shape, 0.1, 1);
}

static gt_tensor *sum_of_all(gt_context *ctx) { return gt_sum(rough(ctx, 1, (const int64_t[]){3000001}), NULL, 0, 0); }
static gt_tensor *sum_of_columns(gt_context *ctx) {
    return gt_sum(rough(ctx, 2, (const int64_t[]){70001, 37}), (const int32_t[]){0}, 1, 0);
}
static gt_tensor *batch_norm_of(gt_context *ctx) {
    return gt_batch_norm(rough(ctx, 4, (const int64_t[]){16, 24, 40, 40}), NULL, NULL, NULL, NULL, 1, 0.1, 1e-5);
}
static gt_tensor *embedding_gradient(gt_context *ctx) {
    gt_tensor *weight = rough(ctx, 2, (const int64_t[]){50, 33});
    CHECK_OK(gt_tensor_set_requires_grad(weight, 1));
    gt_tensor *indices = gt_cast(gt_mul_scalar(gt_tensor_uniform(ctx, GT_DTYPE_F32, 1, (const int64_t[]){5000}, 0, 1), 50), GT_DTYPE_I64);
    gt_tensor *y = gt_embedding(weight, indices);
    CHECK_OK(gt_backward(CHECK_TENSOR(gt_sum(gt_mul(y, rough(ctx, 2, (const int64_t[]){5000, 33})), NULL, 0, 0))));
    return gt_tensor_grad(weight);
}

TEST_CUDA_ONLY(parity, sums_and_statistics_repeat_to_the_bit) {
    gt_context *ctx = test_context(t);
    check_repeats(ctx, "sum of all", sum_of_all);
    check_repeats(ctx, "sum of columns", sum_of_columns);
    check_repeats(ctx, "batch_norm", batch_norm_of);
}

TEST_CUDA_ONLY(parity, deterministic_embedding_gradient_repeats_to_the_bit) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.deterministic = 1;
    check_repeats(test_context_with(t, &options), "embedding's gradient", embedding_gradient);
}

TEST_CUDA_ONLY(parity, both_embedding_gradients_agree) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.deterministic = 1;
    gt_context *ctx[2] = {test_context_with(t, &options), test_context(t)};
    for (int i = 0; i < 2; i++) CHECK_OK(gt_scope_begin(ctx[i]));
    check_close("embedding's gradient", embedding_gradient(ctx[0]), embedding_gradient(ctx[1]), 1e-5, 1);
    for (int i = 0; i < 2; i++) CHECK_OK(gt_scope_end(ctx[i]));
}

/* --- sums in several parts ------------------------------------------------------------------------------------------------------------ */

TEST_CUDA_ONLY(parity, ten_million_ones_sum_exactly) {
    gt_context *ctx = test_context(t);
    static const int64_t shapes[][2] = {{10000000, 1}, {2500, 4000}, {4, 2500000}, {2500000, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *ones = gt_tensor_full(ctx, GT_DTYPE_F32, 2, shapes[i], 1);
        for (int32_t axis = 0; axis < 2; axis++) {
            int64_t count;
            float *sums = values_of(gt_sum(ones, &axis, 1, 0), &count);
            for (int64_t k = 0; k < count; k++) CHECK(sums[k] == (float)shapes[i][axis]);
            free(sums);
        }
        double all;
        CHECK_OK(gt_tensor_item(CHECK_TENSOR(gt_sum(ones, NULL, 0, 0)), &all));
        CHECK(all == 1e7);
        CHECK_OK(gt_scope_end(ctx));
    }
}

/* x [rows, channels] about 10000: what is left after the mean is taken away must not be lost. */
TEST_CUDA_ONLY(parity, norms_far_from_zero_keep_the_variance) {
    gt_context *ctx = test_context(t);
    static const int64_t shapes[][2] = {{8, 640}, {100, 96}, {20001, 96}, {20001, 7}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *x = exact_numbers(ctx, GT_DTYPE_F32, 2, shapes[i], 3);
        gt_tensor *far = gt_add_scalar(x, 10000);
        check_close("batch_norm", gt_batch_norm(far, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5),
                    gt_batch_norm(x, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5), 5e-3, 0);
        check_close("layer_norm", gt_layer_norm(far, NULL, NULL, 1, 1e-5), gt_layer_norm(x, NULL, NULL, 1, 1e-5), 5e-3, 0);
        CHECK_OK(gt_scope_end(ctx));
    }
}

/* No scratch memory: every kernel that works in parts has one part. */
TEST_CUDA_ONLY(parity, sums_without_workspace_agree) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.workspace_limit = 0;
    gt_context *ctx[2] = {test_context_with(t, &options), test_context(t)};
    static gt_tensor *(*const makes[])(gt_context *) = {sum_of_all, sum_of_columns, batch_norm_of};
    for (size_t k = 0; k < 3; k++) {
        for (int i = 0; i < 2; i++) CHECK_OK(gt_scope_begin(ctx[i]));
        check_close("without workspace", makes[k](ctx[0]), makes[k](ctx[1]), 2e-5, 1);
        for (int i = 0; i < 2; i++) CHECK_OK(gt_scope_end(ctx[i]));
    }
}

TEST_CUDA_ONLY(parity, cross_entropy_of_many_rows_counts_each_once) {
    gt_context *ctx = test_context(t);
    static const int64_t shapes[][2] = {{100, 10}, {5000, 10}, {70001, 3}, {3001, 1000}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t rows = shapes[i][0];
        CHECK_OK(gt_scope_begin(ctx));
        /* Equal logits: each row's loss is log(classes). Every third row is ignored. */
        gt_tensor *logits = gt_tensor_full(ctx, GT_DTYPE_F32, 2, shapes[i], 2.5);
        int64_t *labels = malloc((size_t)rows * sizeof *labels), valid = 0;
        CHECK(labels != NULL);
        for (int64_t k = 0; k < rows; k++) {
            labels[k] = k % 3 == 2 ? -100 : k % shapes[i][1];
            valid += labels[k] >= 0;
        }
        gt_tensor *target = gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, &rows, labels, (size_t)rows * sizeof *labels);
        gt_cross_entropy_options options;
        CHECK_OK(gt_cross_entropy_options_init(&options, sizeof options));
        options.reduction = GT_REDUCTION_SUM;
        double sum, mean;
        CHECK_OK(gt_tensor_item(CHECK_TENSOR(gt_cross_entropy(logits, target, &options)), &sum));
        CHECK_OK(gt_tensor_item(CHECK_TENSOR(gt_cross_entropy(logits, target, NULL)), &mean));
        CHECK_NEAR(mean, log((double)shapes[i][1]), 1e-6);
        CHECK_NEAR(sum / (double)valid, log((double)shapes[i][1]), 1e-6);
        labels[rows - 1] = shapes[i][1];
        target = gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, &rows, labels, (size_t)rows * sizeof *labels);
        CHECK_STATUS(gt_tensor_item(CHECK_TENSOR(gt_cross_entropy(logits, target, NULL)), &mean), GT_BAD_LABEL);
        free(labels);
        CHECK_OK(gt_scope_end(ctx));
    }
}

/* --- conversions and random numbers --------------------------------------------------------------------------------------------------- */

TEST_CUDA_ONLY(parity, every_dtype_converts_to_every_other) {
    gt_context *ctx[2] = {test_context(t), cpu_context()};
    static const double hard[] = {0,      -0.0,    1,     -1,  1.5,        -1.5,         2.999,         254.9, 255,
                                  256,    -300,    65504, 1e5, 2147483520, 2147483648.0, -2147483648.0, -3e9,  4e9,
                                  9.3e18, -9.3e18, 1e30,  NAN, INFINITY,   -INFINITY,    3e-6,          1e-8};
    const int64_t count = (int64_t)(sizeof hard / sizeof *hard);
    for (gt_dtype from = 0; from < GT_DTYPE_COUNT; from++) {
        for (gt_dtype to = 0; to < GT_DTYPE_COUNT; to++) {
            double values[2][sizeof hard / sizeof *hard];
            for (int i = 0; i < 2; i++) {
                CHECK_OK(gt_scope_begin(ctx[i]));
                gt_tensor *x = gt_tensor_from_data(ctx[i], GT_DTYPE_F64, 1, &count, hard, sizeof hard);
                gt_tensor *y = gt_cast(gt_cast(gt_cast(x, from), to), GT_DTYPE_F64);
                CHECK_OK(gt_tensor_read(CHECK_TENSOR(y), values[i], sizeof values[i]));
                CHECK_OK(gt_scope_end(ctx[i]));
            }
            for (int64_t k = 0; k < count; k++)
                if (!(values[0][k] == values[1][k] || (isnan(values[0][k]) && isnan(values[1][k]))))
                    FAIL("%g as %s as %s is %.17g, should be %.17g", hard[k], gt_dtype_name(from), gt_dtype_name(to), values[0][k],
                         values[1][k]);
        }
    }
    gt_context_destroy(ctx[1]);
}

TEST_CUDA_ONLY(parity, uniform_numbers_and_dropout_masks_are_those_of_the_cpu) {
    gt_context *ctx[2] = {test_context(t), cpu_context()};
    const int64_t shape[4] = {3, 5, 7, 11};
    enum { COUNT = 3 * 5 * 7 * 11 };
    float values[2][3][COUNT];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(gt_scope_begin(ctx[i]));
        CHECK_OK(gt_random_seed(ctx[i], 11));
        gt_tensor *u = gt_tensor_uniform(ctx[i], GT_DTYPE_F32, 4, shape, -2.5, 7.25);
        gt_tensor *ones = gt_tensor_full(ctx[i], GT_DTYPE_F32, 4, shape, 1);
        CHECK_OK(gt_tensor_read(CHECK_TENSOR(u), values[i][0], sizeof values[i][0]));
        CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_dropout(ones, 0.3, 1)), values[i][1], sizeof values[i][1]));
        CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_dropout(gt_channels_last(ones), 0.3, 1)), values[i][2], sizeof values[i][2]));
        CHECK_OK(gt_scope_end(ctx[i]));
    }
    for (int k = 0; k < 3; k++) CHECK(memcmp(values[0][k], values[1][k], sizeof values[0][k]) == 0);
    gt_context_destroy(ctx[1]);
}

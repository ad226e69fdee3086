/* Convolutions, forward and both gradients, against the CPU. */
#include "cuda/support.h"

#include <stdio.h>

typedef struct conv_case {
    int64_t n, c, h, w, k, r, s;
    int64_t stride[2], padding[2], dilation[2], groups;
} conv_case;

static const conv_case cases[] = {
    {16, 1, 28, 28, 32, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1}, /* the first layer of a CNN on grey images */
    {8, 32, 26, 26, 64, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1},
    {8, 3, 33, 31, 16, 7, 7, {2, 2}, {3, 3}, {1, 1}, 1},
    {4, 64, 14, 14, 64, 1, 1, {1, 1}, {0, 0}, {1, 1}, 1},
    {4, 64, 14, 14, 128, 1, 1, {2, 2}, {0, 0}, {1, 1}, 1},
    {2, 5, 9, 7, 7, 3, 2, {2, 1}, {1, 0}, {1, 1}, 1}, /* odd channels */
    {2, 8, 13, 11, 6, 3, 3, {1, 1}, {2, 2}, {2, 2}, 1},
    {2, 8, 13, 11, 12, 3, 3, {1, 2}, {1, 1}, {1, 1}, 4},
    {2, 16, 12, 12, 16, 3, 3, {1, 1}, {1, 1}, {1, 1}, 16}, /* depthwise */
    {1, 1, 4, 4, 1, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1},
    {3, 4, 1, 20, 5, 1, 5, {1, 1}, {0, 2}, {1, 1}, 1}, /* one-dimensional */
    {2, 3, 5, 5, 4, 5, 5, {1, 1}, {0, 0}, {1, 1}, 1},  /* one output place */
    /* few channels and taps, for which there are kernels of our own: odd sizes, several tiles of channels, more tiles than blocks that run at once */
    {3, 1, 30, 29, 33, 5, 5, {1, 1}, {2, 2}, {1, 1}, 1},
    {2, 2, 17, 40, 70, 3, 4, {2, 3}, {1, 2}, {1, 1}, 1},
    {5, 3, 16, 16, 32, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {64, 1, 64, 64, 32, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1},
    {2, 4, 12, 300, 130, 1, 9, {1, 2}, {0, 4}, {1, 1}, 1},
    {3, 1, 19, 21, 48, 5, 5, {1, 1}, {2, 2}, {1, 1}, 1},
    {5, 3, 33, 31, 64, 3, 3, {2, 2}, {1, 1}, {1, 1}, 1},
    /* 16, 32 or 64 channels on one side or both, for our kernels on tensor cores: tiles that end inside rows and reach over several images, blocks that are not full */
    {9, 16, 5, 4, 24, 2, 3, {1, 1}, {1, 2}, {1, 1}, 1},
    {3, 64, 15, 17, 32, 5, 5, {1, 1}, {2, 2}, {1, 1}, 1},
    {40, 32, 24, 24, 64, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {2, 32, 9, 70, 72, 3, 1, {1, 1}, {0, 0}, {1, 1}, 1},
};

/* The first layer of a ResNet: cuDNN is faster on images that were copied with more channels. */
static const conv_case first_layer = {16, 3, 112, 110, 64, 7, 7, {2, 2}, {3, 3}, {1, 1}, 1};

static const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64};

typedef struct results {
    gt_tensor *y, *dx, *dw, *db;
} results;

static results run(gt_context *ctx, gt_dtype dtype, const conv_case *c, int bias, gt_activation activation) {
    const int64_t x_shape[4] = {c->n, c->c, c->h, c->w}, w_shape[4] = {c->k, c->c / c->groups, c->r, c->s};
    gt_conv2d_options options;
    CHECK_OK(gt_conv2d_options_init(&options, sizeof options));
    for (int i = 0; i < 2; i++) options.stride[i] = c->stride[i], options.padding[i] = c->padding[i], options.dilation[i] = c->dilation[i];
    options.groups = c->groups;
    options.activation = activation;
    gt_tensor *x = gt_tensor_detach(exact_numbers(ctx, dtype, 4, x_shape, 1)),
              *w = gt_tensor_detach(exact_numbers(ctx, dtype, 4, w_shape, 2));
    /* An odd multiple of 1/128: no sum is zero, where rounding would decide whether relu lets the gradient through. */
    gt_tensor *b = bias ? gt_tensor_detach(gt_add_scalar(exact_numbers(ctx, dtype, 1, &c->k, 3), -0x1p-7)) : NULL;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    if (b) CHECK_OK(gt_tensor_set_requires_grad(b, 1));
    gt_tensor *y = CHECK_TENSOR(gt_conv2d(x, w, b, &options));
    gt_tensor *dy = exact_numbers(ctx, dtype, 4, gt_tensor_shape(y), 4);
    CHECK_OK(gt_backward_from(&y, &dy, 1, 0));
    return (results){y, gt_tensor_grad(x), gt_tensor_grad(w), b ? gt_tensor_grad(b) : NULL};
}

static void check_conv(gt_context *cuda, gt_context *cpu, gt_dtype dtype, const conv_case *c, int i, int bias, gt_activation activation,
                       double tolerance) {
    char what[100];
    CHECK_OK(gt_scope_begin(cuda));
    CHECK_OK(gt_scope_begin(cpu));
    results want = run(cpu, GT_DTYPE_F32, c, bias, activation), got = run(cuda, dtype, c, bias, activation);
    gt_tensor *const pairs[4][2] = {{got.y, want.y}, {got.dx, want.dx}, {got.dw, want.dw}, {got.db, want.db}};
    static const char *const names[4] = {"y", "dx", "dw", "db"};
    int compared = bias ? 4 : activation == GT_ACTIVATION_NONE ? 3 : 1;
    for (int k = 0; k < compared; k++) {
        snprintf(what, sizeof what, "%s, case %d, %s", gt_dtype_name(dtype), i, names[k]);
        check_close(what, pairs[k][0], pairs[k][1], tolerance, 1);
    }
    CHECK_OK(gt_scope_end(cuda));
    CHECK_OK(gt_scope_end(cpu));
}

static void check_case(gt_context *cuda, gt_context *cpu, gt_dtype dtype, int i, int bias, gt_activation activation, double tolerance) {
    check_conv(cuda, cpu, dtype, &cases[i], i, bias, activation, tolerance);
}

/* Winograd's transforms round, in the dtype's own precision. */
static double tolerance_of(gt_dtype dtype) {
    return dtype == GT_DTYPE_F16 ? 4e-3 : dtype == GT_DTYPE_BF16 ? 3e-2 : dtype == GT_DTYPE_F64 ? 1e-12 : 2e-4;
}

TEST_CUDA_ONLY(parity, conv2d_of_every_kind) {
    gt_context *cuda = test_context(t), *cpu = cpu_context();
    for (size_t d = 0; d < 4; d++)
        for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
            check_case(cuda, cpu, dtypes[d], i, 0, GT_ACTIVATION_NONE, tolerance_of(dtypes[d]));
    gt_context_destroy(cpu);
}

TEST_CUDA_ONLY(parity, conv2d_with_bias_and_relu) {
    gt_context *cuda = test_context(t), *cpu = cpu_context();
    for (size_t d = 0; d < 4; d++)
        for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
            for (int kind = 0; kind < 3; kind++) /* bias; relu; both */
                check_case(cuda, cpu, dtypes[d], i, kind != 1, kind ? GT_ACTIVATION_RELU : GT_ACTIVATION_NONE, 2 * tolerance_of(dtypes[d]));
    gt_context_destroy(cpu);
}

/* Where our kernels take a shape they are not one candidate among others here, but what runs. */
TEST_CUDA_ONLY(parity, conv2d_in_deterministic_mode) {
    gt_context_options options;
    gt_context_options_init(&options, sizeof options);
    options.deterministic = 1;
    gt_context *cuda = test_context_with(t, &options), *cpu = cpu_context();
    for (size_t d = 0; d < 4; d++)
        for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
            for (int kind = 0; kind < 2; kind++) /* nothing; bias and relu */
                check_case(cuda, cpu, dtypes[d], i, kind, kind ? GT_ACTIVATION_RELU : GT_ACTIVATION_NONE, 2 * tolerance_of(dtypes[d]));
    gt_context_destroy(cpu);
}

TEST_CUDA_ONLY(parity, conv2d_of_a_first_layer) {
    gt_context *cuda = test_context(t), *cpu = cpu_context();
    for (size_t d = 1; d < 3; d++) /* the halves */
        for (int kind = 0; kind < 2; kind++) {
            check_conv(cuda, cpu, dtypes[d], &first_layer, -1, kind, kind ? GT_ACTIVATION_RELU : GT_ACTIVATION_NONE,
                       2 * tolerance_of(dtypes[d]));
            /* again, by the plan that was chosen; and with too little scratch memory for more channels */
            CHECK_OK(gt_context_set_workspace_limit(cuda, kind ? 1 << 20 : GT_WORKSPACE_AUTO));
            check_conv(cuda, cpu, dtypes[d], &first_layer, -1, kind, kind ? GT_ACTIVATION_RELU : GT_ACTIVATION_NONE,
                       2 * tolerance_of(dtypes[d]));
            CHECK_OK(gt_context_set_workspace_limit(cuda, GT_WORKSPACE_AUTO));
        }
    gt_context_destroy(cpu);
}

/* NaN in an image, and behind relu in deterministic mode, where our kernels for few channels run. */
TEST_CUDA_ONLY(contract, L2_conv2d_relu_of_few_channels_keeps_nan) {
    gt_context_options options;
    gt_context_options_init(&options, sizeof options);
    options.deterministic = 1;
    gt_context *ctx = test_context_with(t, &options);
    gt_conv2d_options conv;
    CHECK_OK(gt_conv2d_options_init(&conv, sizeof conv));
    conv.activation = GT_ACTIVATION_RELU;
    const int64_t x_shape[4] = {8, 1, 12, 12};
    for (size_t d = 0; d < 4; d++)
        for (int64_t channels = 24; channels <= 32; channels += 8) { /* halves of 32: on tensor cores */
            const int64_t w_shape[4] = {channels, 1, 3, 3};
            CHECK_OK(gt_scope_begin(ctx));
            gt_tensor *x = exact_numbers(ctx, dtypes[d], 4, x_shape, 1), *w = exact_numbers(ctx, dtypes[d], 4, w_shape, 2);
            gt_tensor *bias = exact_numbers(ctx, dtypes[d], 1, &channels, 3);
            CHECK_OK(gt_tensor_fill(gt_slice(x, 0, 7, 8, 1), NAN)); /* the last image */
            float *y = read_f32(CHECK_TENSOR(gt_conv2d(x, w, bias, &conv)));
            int64_t image = channels * 10 * 10;
            for (int64_t i = 0; i < 8 * image; i++) CHECK((isnan(y[i]) != 0) == (i / image == 7) && !(y[i] < 0));
            free(y);
            CHECK_OK(gt_scope_end(ctx));
        }
}

TEST_CUDA_ONLY(contract, D2_conv2d_without_workspace) {
    gt_context *cuda = test_context(t), *cpu = cpu_context();
    CHECK_OK(gt_context_set_workspace_limit(cuda, 0));
    for (size_t d = 0; d < 4; d++)
        for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
            check_case(cuda, cpu, dtypes[d], i, 1, GT_ACTIVATION_RELU, 2 * tolerance_of(dtypes[d]));
    gt_context_destroy(cpu);
}

/* D6: the same bits from run to run, also from a second context whose caches are empty. */
TEST_CUDA_ONLY(contract, D6_conv2d_and_matmul_are_bitwise_the_same) {
    gt_context_options options;
    gt_context_options_init(&options, sizeof options);
    options.deterministic = 1;
    for (int n = 0; n < 2 * (int)(sizeof cases / sizeof *cases); n++) { /* in f32 and in f16 */
        int i = n / 2;
        gt_tensor *all[2][3];
        gt_context *contexts[2];
        for (int k = 0; k < 2; k++) {
            contexts[k] = test_context_with(t, &options);
            CHECK_OK(gt_scope_begin(contexts[k]));
            results r = run(contexts[k], dtypes[n % 2], &cases[i], 1, GT_ACTIVATION_RELU);
            all[k][0] = r.y, all[k][1] = r.dx, all[k][2] = r.dw;
        }
        for (int k = 0; k < 3; k++) {
            float *a = read_f32(all[0][k]), *b = read_f32(all[1][k]);
            CHECK(memcmp(a, b, (size_t)gt_tensor_numel(all[0][k]) * sizeof *a) == 0);
            free(a);
            free(b);
        }
        for (int k = 0; k < 2; k++) CHECK_OK(gt_scope_end(contexts[k]));
    }
}

TEST_CUDA_ONLY(contract, L2_conv2d_relu_keeps_nan) {
    gt_context *ctx = test_context(t);
    gt_conv2d_options options;
    CHECK_OK(gt_conv2d_options_init(&options, sizeof options));
    options.activation = GT_ACTIVATION_RELU;
    const int64_t x_shape[4] = {64, 32, 26, 26}, w_shape[4] = {64, 32, 3, 3}, channels = 64;
    for (size_t d = 0; d < 4; d++) {
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *x = exact_numbers(ctx, dtypes[d], 4, x_shape, 1), *w = exact_numbers(ctx, dtypes[d], 4, w_shape, 2);
        gt_tensor *bias = exact_numbers(ctx, dtypes[d], 1, &channels, 3);
        CHECK_OK(gt_tensor_fill(gt_slice(x, 0, 63, 64, 1), NAN)); /* the last image */
        float *y = read_f32(CHECK_TENSOR(gt_conv2d(x, w, bias, &options)));
        int64_t image = 64 * 24 * 24;
        for (int64_t i = 0; i < 64 * image; i++) CHECK((isnan(y[i]) != 0) == (i / image == 63));
        free(y);
        CHECK_OK(gt_scope_end(ctx));
    }
}

TEST_CUDA_ONLY(contract, D4_conv2d_of_an_empty_batch) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const conv_case empty = {0, 3, 8, 8, 4, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1};
    results r = run(ctx, GT_DTYPE_F32, &empty, 1, GT_ACTIVATION_RELU);
    CHECK_EQ_INT(gt_tensor_size(r.y, 0), 0);
    CHECK_EQ_INT(gt_tensor_size(r.y, 2), 6);
    float *dw = read_f32(CHECK_TENSOR(r.dw));
    for (int i = 0; i < 4 * 3 * 9; i++) CHECK(dw[i] == 0);
    free(dw);
    CHECK_OK(gt_scope_end(ctx));
}

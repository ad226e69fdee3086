/* Matrix products in every layout and at every alignment. */
#include "cuda/support.h"

#include <stdio.h>

typedef enum form { PLAIN, TRANSPOSED, SHIFTED, SHIFTED_TRANSPOSED } form;

/* [rows, cols], row- or column-major, dense, or one column into a matrix with one column more. */
static gt_tensor *matrix(gt_context *ctx, gt_dtype dtype, int64_t rows, int64_t cols, form f, uint32_t seed) {
    int transposed = f == TRANSPOSED || f == SHIFTED_TRANSPOSED;
    int64_t inner = transposed ? rows : cols, shape[2] = {transposed ? cols : rows, inner};
    if (f >= SHIFTED) shape[1]++;
    gt_tensor *x = exact_numbers(ctx, dtype, 2, shape, seed);
    if (f >= SHIFTED) x = gt_slice(x, 1, 1, inner + 1, 1);
    return transposed ? gt_transpose(x, 0, 1) : x;
}

typedef struct product_case {
    int64_t m, n, k;
    form a, b;
} product_case;

static const product_case products[] = {
    {64, 512, 784, PLAIN, TRANSPOSED},
    {512, 784, 64, TRANSPOSED, PLAIN},
    {64, 784, 512, PLAIN, PLAIN},
    {1, 1, 1, PLAIN, PLAIN},
    {1, 10, 7, PLAIN, PLAIN},
    {10, 1, 7, PLAIN, TRANSPOSED},
    {7, 5, 1, TRANSPOSED, PLAIN},
    {7, 1, 1, PLAIN, PLAIN},
    {1, 7, 1, TRANSPOSED, TRANSPOSED},
    {33, 17, 65, SHIFTED, PLAIN},
    {33, 17, 65, PLAIN, SHIFTED},
    {33, 17, 65, SHIFTED, SHIFTED_TRANSPOSED},
    {3, 5, 999, SHIFTED_TRANSPOSED, PLAIN},
    {128, 10, 128, PLAIN, TRANSPOSED},
    {257, 255, 129, PLAIN, PLAIN},
    {5, 6, 0, PLAIN, PLAIN},
    {0, 6, 4, PLAIN, PLAIN},
    {6, 0, 4, PLAIN, PLAIN},
};

static const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64};

TEST_CUDA_ONLY(parity, matmul_takes_every_layout_and_alignment) {
    gt_context *cuda = test_context(t), *cpu = cpu_context();
    for (size_t d = 0; d < 4; d++) {
        for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
            const product_case *c = &products[i];
            gt_tensor *result[2];
            CHECK_OK(gt_scope_begin(cuda));
            CHECK_OK(gt_scope_begin(cpu));
            for (int on = 0; on < 2; on++) {
                gt_context *ctx = on ? cuda : cpu;
                gt_dtype dtype = on ? dtypes[d] : GT_DTYPE_F32;
                result[on] = CHECK_TENSOR(gt_matmul(matrix(ctx, dtype, c->m, c->k, c->a, 1), matrix(ctx, dtype, c->k, c->n, c->b, 2)));
            }
            char what[100];
            snprintf(what, sizeof what, "%s %lldx%lldx%lld", gt_dtype_name(dtypes[d]), (long long)c->m, (long long)c->n, (long long)c->k);
            check_close(what, result[1], result[0], rounding(dtypes[d]), 0);
            CHECK_OK(gt_scope_end(cuda));
            CHECK_OK(gt_scope_end(cpu));
        }
    }
    gt_context_destroy(cpu);
}

TEST_CUDA_ONLY(parity, linear_takes_every_layout_bias_and_activation) {
    gt_context *cuda = test_context(t), *cpu = cpu_context();
    for (size_t d = 0; d < 4; d++) {
        for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
            for (int kind = 0; kind < 4; kind++) {
                const product_case *c = &products[i];
                gt_tensor *result[2];
                CHECK_OK(gt_scope_begin(cuda));
                CHECK_OK(gt_scope_begin(cpu));
                for (int on = 0; on < 2; on++) {
                    gt_context *ctx = on ? cuda : cpu;
                    gt_dtype dtype = on ? dtypes[d] : GT_DTYPE_F32;
                    gt_tensor *x = matrix(ctx, dtype, c->m, c->k, c->a, 1), *w = matrix(ctx, dtype, c->n, c->k, c->b, 2), *bias = NULL;
                    /* the bias at an address that no vector load takes */
                    if (kind & 1) bias = gt_slice(exact_numbers(ctx, dtype, 1, (int64_t[]){c->n + 1}, 3), 0, i & 1, c->n + (i & 1), 1);
                    result[on] = CHECK_TENSOR(gt_linear_activation(x, w, bias, kind & 2 ? GT_ACTIVATION_RELU : GT_ACTIVATION_NONE));
                }
                char what[100];
                snprintf(what, sizeof what, "%s %lldx%lldx%lld%s%s", gt_dtype_name(dtypes[d]), (long long)c->m, (long long)c->n,
                         (long long)c->k, kind & 1 ? " bias" : "", kind & 2 ? " relu" : "");
                check_close(what, result[1], result[0], rounding(dtypes[d]), 0);
                CHECK_OK(gt_scope_end(cuda));
                CHECK_OK(gt_scope_end(cpu));
            }
        }
    }
    gt_context_destroy(cpu);
}

static void check_batch(gt_context *cuda, gt_context *cpu, gt_dtype dtype, int64_t batch, int64_t m, int64_t n, int64_t k, int expanded) {
    gt_tensor *result[2];
    CHECK_OK(gt_scope_begin(cuda));
    CHECK_OK(gt_scope_begin(cpu));
    for (int on = 0; on < 2; on++) {
        gt_context *ctx = on ? cuda : cpu;
        gt_dtype type = on ? dtype : GT_DTYPE_F32;
        const int64_t a_shape[3] = {batch, m, k}, b_shape[3] = {expanded & 1 ? 1 : batch, k, n}, one[3] = {1, m, k};
        gt_tensor *a = exact_numbers(ctx, type, 3, expanded & 2 ? one : a_shape, 5), *b = exact_numbers(ctx, type, 3, b_shape, 6);
        result[on] = CHECK_TENSOR(gt_matmul(a, b));
    }
    check_close("batched product", result[1], result[0], rounding(dtype), 0);
    CHECK_OK(gt_scope_end(cuda));
    CHECK_OK(gt_scope_end(cpu));
}

TEST_CUDA_ONLY(parity, matmul_batches_with_and_without_repeated_operands) {
    gt_context *cuda = test_context(t), *cpu = cpu_context();
    for (size_t d = 0; d < 4; d++)
        for (int expanded = 0; expanded < 3; expanded++) {
            check_batch(cuda, cpu, dtypes[d], 6, 9, 7, 13, expanded);
            check_batch(cuda, cpu, dtypes[d], 12, 64, 64, 32, expanded);
            check_batch(cuda, cpu, dtypes[d], 1, 3, 3, 3, expanded);
        }
    gt_context_destroy(cpu);
}

TEST_CUDA_ONLY(contract, D3_matmul_batches_over_65535) {
    gt_context *cuda = test_context(t), *cpu = cpu_context();
    check_batch(cuda, cpu, GT_DTYPE_F32, 70000, 2, 3, 4, 0);
    check_batch(cuda, cpu, GT_DTYPE_F16, 65536, 1, 2, 3, 1);
    gt_context_destroy(cpu);
}

TEST_CUDA_ONLY(contract, D2_matmul_without_workspace) {
    gt_context *cuda = test_context(t), *cpu = cpu_context();
    CHECK_OK(gt_context_set_workspace_limit(cuda, 0));
    for (size_t d = 0; d < 4; d++) check_batch(cuda, cpu, dtypes[d], 2, 65, 33, 1000, 0);
    gt_context_destroy(cpu);
}

/* L2: a NaN must not be hidden by an activation that is computed inside the product. */
TEST_CUDA_ONLY(contract, L2_linear_relu_keeps_nan) {
    gt_context *ctx = test_context(t);
    static const int64_t sizes[][3] = {{64, 512, 784}, {64, 10, 128}, {1, 1, 1}, {33, 17, 65}, {8192, 256, 64}};
    for (size_t d = 0; d < 4; d++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            CHECK_OK(gt_scope_begin(ctx));
            const int64_t *s = sizes[i];
            gt_tensor *x = exact_numbers(ctx, dtypes[d], 2, (int64_t[]){s[0], s[2]}, 1),
                      *w = exact_numbers(ctx, dtypes[d], 2, (int64_t[]){s[1], s[2]}, 2);
            CHECK_OK(gt_tensor_fill(gt_slice(x, 0, s[0] - 1, s[0], 1), NAN)); /* the last row */
            for (int biased = 0; biased < 2; biased++) {
                gt_tensor *bias = biased ? exact_numbers(ctx, dtypes[d], 1, &s[1], 3) : NULL;
                float *y = read_f32(CHECK_TENSOR(gt_linear_activation(x, w, bias, GT_ACTIVATION_RELU)));
                for (int64_t j = 0; j < s[0] * s[1]; j++) {
                    int expected = j / s[1] == s[0] - 1, found = isnan(y[j]) != 0;
                    if (found != expected)
                        FAIL("%s, case %d: element %lld is %g", gt_dtype_name(dtypes[d]), (int)i, (long long)j, (double)y[j]);
                }
                free(y);
            }
            CHECK_OK(gt_scope_end(ctx));
        }
    }
}

/* allow_tf32 = 0 means all of f32's bits: 1 + 2^-12 is 1 in TF32. */
TEST_CUDA_ONLY(unit, f32_keeps_its_bits_without_tf32) {
    gt_context_options options;
    gt_context_options_init(&options, sizeof options);
    options.allow_tf32 = 0;
    gt_context *ctx = test_context_with(t, &options);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[2] = {128, 128}, image[4] = {8, 32, 16, 16}, kernel[4] = {32, 32, 1, 1};
    gt_tensor *a = gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1 + 0x1p-12), *b = gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1);
    float *y = read_f32(CHECK_TENSOR(gt_matmul(a, b)));
    CHECK_NEAR(y[0] / 128, 1 + 0x1p-12, 1e-7);
    free(y);
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F32, 4, image, 1 + 0x1p-12), *w = gt_tensor_full(ctx, GT_DTYPE_F32, 4, kernel, 1);
    y = read_f32(CHECK_TENSOR(gt_conv2d(x, w, NULL, NULL)));
    CHECK_NEAR(y[0] / 32, 1 + 0x1p-12, 1e-7);
    free(y);
    CHECK_OK(gt_scope_end(ctx));
}

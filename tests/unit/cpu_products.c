/* Matrix products and convolutions on the CPU against loops in f64, by every path: oneDNN, and the blocked product that a workspace limit of 0, a
 * half-precision dtype or a build without oneDNN leads to. */
#include "harness/test.h"

#include "core/op.h"
#include "cpu/gemm.h"
#include "cpu/half.h"

#include <gtrain/gtrain.h>
#include <math.h>
#include <stdlib.h>

static double noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*state >> 33) * 0x1p-30 - 1.0;
}

static gt__device *open_cpu(int threads) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.cpu_threads = threads;
    gt__device *device = NULL;
    CHECK_OK(gt__backend_cpu()->open(NULL, &options, &device));
    return device;
}

TEST(unit, blocked_product_is_right_for_all_shapes_and_strides) {
    const int64_t sizes[][3] = {{1, 1, 1}, {1, 33, 7}, {13, 1, 5}, {12, 32, 256}, {97, 257, 300}, {5, 600, 2}, {200, 3, 513}, {4, 4, 0}};
    static float a[200 * 513], b[300 * 600], c[97 * 600];
    static double ref[97 * 600];
    uint64_t state = 1;
    for (int threads = 1; threads <= 3; threads += 2) {
        gt__device *device = open_cpu(threads);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
            for (int turned = 0; turned < 4; turned++) {
                int64_t ai = turned & 1 ? 1 : k, ak = turned & 1 ? m : 1, bj = turned & 2 ? k : 1, bk = turned & 2 ? 1 : n;
                float bias[600];
                for (int64_t i = 0; i < m * k; i++) a[i] = (float)noise(&state);
                for (int64_t i = 0; i < n * k; i++) b[i] = (float)noise(&state);
                for (int64_t j = 0; j < n; j++) bias[j] = (float)noise(&state);
                for (int64_t i = 0; i < m; i++)
                    for (int64_t j = 0; j < n; j++) {
                        double sum = 0;
                        for (int64_t x = 0; x < k; x++) sum += (double)a[i * ai + x * ak] * (double)b[j * bj + x * bk];
                        sum += (double)bias[j];
                        ref[i * n + j] = sum > 0 ? sum : 0;
                    }
                gt__gemm gemm = {.m = m,
                                 .n = n,
                                 .k = k,
                                 .c = c,
                                 .c_dtype = GT_DTYPE_F32,
                                 .row_stride = n,
                                 .column_stride = 1,
                                 .bias = bias,
                                 .bias_dtype = GT_DTYPE_F32,
                                 .relu = 1};
                gemm.a = gt__gemm_matrix(a, GT_DTYPE_F32, ai, ak);
                gemm.b = gt__gemm_matrix(b, GT_DTYPE_F32, bj, bk);
                memset(c, 0xff, sizeof c);
                CHECK_OK(gt__cpu_gemm(device, &gemm));
                for (int64_t i = 0; i < m * n; i++) CHECK(fabs((double)c[i] - ref[i]) <= 1e-5 * (1 + sqrt((double)k)));
            }
        }
        gt__backend_cpu()->close(device);
    }
}

/* --- convolution ------------------------------------------------------------------------------------------------------------------------ */

typedef struct conv_case {
    int64_t n, c, h, w, o, kernel[2], stride[2], padding[2], dilation[2], groups;
} conv_case;

static const conv_case conv_cases[] = {
    {2, 3, 9, 8, 4, {3, 3}, {1, 1}, {0, 0}, {1, 1}, 1},     {1, 1, 6, 6, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
    {3, 4, 8, 9, 6, {3, 2}, {2, 1}, {1, 1}, {1, 1}, 2},     {2, 6, 7, 7, 6, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 6},
    {1, 5, 11, 10, 7, {2, 3}, {2, 3}, {1, 0}, {2, 2}, 1},   {2, 16, 8, 8, 32, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1},
    {2, 16, 12, 12, 16, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 4}, {2, 8, 6, 6, 16, {3, 3}, {4, 4}, {1, 1}, {1, 1}, 8},
    {4, 1, 28, 28, 32, {3, 3}, {1, 1}, {0, 0}, {1, 1}, 1},
};

static void fill(double *x, int64_t n, uint64_t *state, int half) {
    for (int64_t i = 0; i < n; i++) x[i] = half ? (double)gt__f16_to_f32(gt__f32_to_f16((float)noise(state))) : (double)(float)noise(state);
}

static gt_tensor *tensor_of(gt_context *ctx, const double *x, const int64_t *shape, int32_t ndim, gt_dtype dtype, int grad) {
    size_t n = 1;
    for (int32_t i = 0; i < ndim; i++) n *= (size_t)shape[i];
    gt_tensor *t = CHECK_TENSOR(gt_cast(CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F64, ndim, shape, x, n * sizeof *x)), dtype));
    if (grad) CHECK_OK(gt_tensor_set_requires_grad(t, 1));
    return t;
}

static void check_against(gt_tensor *t, const double *want, int64_t n, double tolerance, const char *what) {
    double *got = malloc((size_t)n * sizeof *got);
    CHECK(got != NULL);
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(t, GT_DTYPE_F64)), got, (size_t)n * sizeof *got));
    for (int64_t i = 0; i < n; i++) {
        if (fabs(got[i] - want[i]) <= tolerance * (1 + fabs(want[i]))) continue;
        double wrong = got[i];
        free(got);
        FAIL("%s: element %lld is %g, should be %g", what, (long long)i, wrong, want[i]);
    }
    free(got);
}

/* y, dx, dw and db of sum(relu(conv(x)) * g) by their definitions. */
static void check_conv(gt_context *ctx, const conv_case *s, gt_dtype dtype, double tolerance) {
    int64_t oh = (s->h + 2 * s->padding[0] - s->dilation[0] * (s->kernel[0] - 1) - 1) / s->stride[0] + 1;
    int64_t ow = (s->w + 2 * s->padding[1] - s->dilation[1] * (s->kernel[1] - 1) - 1) / s->stride[1] + 1;
    int64_t gc = s->c / s->groups, go = s->o / s->groups;
    int64_t nx = s->n * s->c * s->h * s->w, nw = s->o * gc * s->kernel[0] * s->kernel[1], ny = s->n * s->o * oh * ow;
    double *room = calloc((size_t)(2 * nx + 2 * nw + 2 * ny + 2 * s->o), sizeof *room);
    CHECK(room != NULL);
    double *x = room, *dx = x + nx, *w = dx + nx, *dw = w + nw, *y = dw + nw, *g = y + ny, *b = g + ny, *db = b + s->o;
    uint64_t state = 7;
    int half = dtype == GT_DTYPE_F16;
    fill(x, nx, &state, half);
    fill(w, nw, &state, half);
    fill(g, ny, &state, half);
    fill(b, s->o, &state, half);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < ny; i++) {
            int64_t q = i % ow, p = i / ow % oh, o = i / ow / oh % s->o, n = i / ow / oh / s->o;
            double sum = b[o], up = pass && y[i] > 0 ? g[i] : 0;
            for (int64_t c = 0; c < gc; c++)
                for (int64_t r = 0; r < s->kernel[0]; r++)
                    for (int64_t t = 0; t < s->kernel[1]; t++) {
                        int64_t h = p * s->stride[0] - s->padding[0] + r * s->dilation[0],
                                v = q * s->stride[1] - s->padding[1] + t * s->dilation[1];
                        if (h < 0 || h >= s->h || v < 0 || v >= s->w) continue;
                        int64_t at = ((n * s->c + o / go * gc + c) * s->h + h) * s->w + v,
                                wt = ((o * gc + c) * s->kernel[0] + r) * s->kernel[1] + t;
                        sum += x[at] * w[wt];
                        dx[at] += up * w[wt];
                        dw[wt] += up * x[at];
                    }
            db[o] += up;
            y[i] = sum > 0 ? sum : 0;
        }
    }
    const int64_t xs[4] = {s->n, s->c, s->h, s->w}, ws[4] = {s->o, gc, s->kernel[0], s->kernel[1]}, ys[4] = {s->n, s->o, oh, ow};
    gt_conv2d_options options;
    CHECK_OK(gt_conv2d_options_init(&options, sizeof options));
    options.activation = GT_ACTIVATION_RELU;
    options.groups = s->groups;
    for (int i = 0; i < 2; i++) {
        options.stride[i] = s->stride[i];
        options.padding[i] = s->padding[i];
        options.dilation[i] = s->dilation[i];
    }
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *tx = tensor_of(ctx, x, xs, 4, dtype, 1), *tw = tensor_of(ctx, w, ws, 4, dtype, 1),
              *tb = tensor_of(ctx, b, &s->o, 1, dtype, 1);
    gt_tensor *ty = CHECK_TENSOR(gt_conv2d(tx, tw, tb, &options)), *tg = tensor_of(ctx, g, ys, 4, dtype, 0);
    check_against(ty, y, ny, tolerance, "y");
    CHECK_OK(gt_backward_from(&ty, &tg, 1, 0));
    check_against(gt_tensor_grad(tx), dx, nx, tolerance * 4, "dx");
    check_against(gt_tensor_grad(tw), dw, nw, tolerance * 8, "dw");
    check_against(gt_tensor_grad(tb), db, s->o, tolerance * 8, "db");
    CHECK_OK(gt_scope_end(ctx));
    free(room);
}

static void check_convs(test_case *t, uint64_t workspace, gt_dtype dtype, double tolerance) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.workspace_limit = workspace;
    options.cpu_threads = 3;
    gt_context *ctx = test_context_with(t, &options);
    for (size_t i = 0; i < sizeof conv_cases / sizeof conv_cases[0]; i++) check_conv(ctx, &conv_cases[i], dtype, tolerance);
}

TEST(unit, conv2d_f32_is_its_definition) { check_convs(t, GT_WORKSPACE_AUTO, GT_DTYPE_F32, 2e-5); }
TEST(unit, conv2d_f32_without_workspace_is_its_definition) { check_convs(t, 0, GT_DTYPE_F32, 2e-5); }
TEST(unit, conv2d_f64_is_its_definition) { check_convs(t, GT_WORKSPACE_AUTO, GT_DTYPE_F64, 1e-12); }
TEST(unit, conv2d_f16_sums_in_f32) { check_convs(t, GT_WORKSPACE_AUTO, GT_DTYPE_F16, 2e-3); }

/* --- NaN, many shapes, same bits ---------------------------------------------------------------------------------------------------------- */

TEST(contract, L2_nan_goes_through_fused_relu) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t xs[4] = {1, 16, 8, 8}, ws[4] = {16, 16, 3, 3}, ms[2] = {32, 64}, vs[2] = {48, 64};
    static float x[32 * 64], y[32 * 48];
    for (int i = 0; i < 32 * 64; i++) x[i] = -1;
    x[5] = NAN;
    gt_tensor *tx = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 4, xs, x, 1024 * sizeof *x));
    gt_conv2d_options options;
    CHECK_OK(gt_conv2d_options_init(&options, sizeof options));
    options.activation = GT_ACTIVATION_RELU;
    gt_tensor *r = CHECK_TENSOR(gt_conv2d(tx, CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 4, ws, 1)), NULL, &options));
    CHECK_OK(gt_tensor_read(r, y, 16 * 36 * sizeof *y));
    for (int i = 0; i < 16 * 36; i++)
        CHECK(i % 36 / 6 == 0 && i % 6 >= 3 ? isnan(y[i]) : y[i] == 0); /* row 0, columns 3 to 5 see element 5 */
    tx = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, ms, x, sizeof x));
    r = CHECK_TENSOR(gt_linear_activation(tx, CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, vs, 1)), NULL, GT_ACTIVATION_RELU));
    CHECK_OK(gt_tensor_read(r, y, sizeof y));
    for (int i = 0; i < 32 * 48; i++) CHECK(i < 48 ? isnan(y[i]) : y[i] == 0);
    CHECK_OK(gt_scope_end(ctx));
}

TEST(contract, M6_many_product_shapes_keep_memory_bounded) {
    gt_context *ctx = test_context(t);
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    uint64_t after_first = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t k = 1; k <= 400; k++) { /* more shapes than plans are kept */
            CHECK_OK(gt_scope_begin(ctx));
            const int64_t as[2] = {32, k}, bs[2] = {k, 32};
            gt_tensor *a = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, as, 1)),
                      *b = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, bs, 2));
            double sum = 0;
            CHECK_OK(gt_tensor_item(CHECK_TENSOR(gt_sum(CHECK_TENSOR(gt_matmul(a, b)), NULL, 0, 0)), &sum));
            CHECK_NEAR(sum, 2.0 * 32 * 32 * (double)k, 1e-9);
            CHECK_OK(gt_scope_end(ctx));
        }
        CHECK_OK(gt_memory_get_stats(ctx, &stats));
        if (pass == 0) after_first = stats.reserved;
        CHECK_EQ_INT(stats.reserved, after_first);
    }
}

static void products(gt_context *ctx, float *out, size_t n) {
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_random_seed(ctx, 3));
    const int64_t xs[4] = {8, 16, 12, 12}, ws[4] = {16, 16, 3, 3}, ls[2] = {50, 1600};
    gt_tensor *w = CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, ws, 0, 1)),
              *l = CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, 2, ls, 0, 1));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    CHECK_OK(gt_tensor_set_requires_grad(l, 1));
    gt_tensor *y = gt_linear(gt_flatten(gt_relu(gt_conv2d(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, xs, 0, 1), w, NULL, NULL)), 1), l, NULL);
    CHECK_OK(gt_backward(CHECK_TENSOR(gt_mean(gt_square(y), NULL, 0, 0))));
    CHECK(n == (16 * 16 * 9 + 50 * 1600));
    CHECK_OK(gt_tensor_read(gt_tensor_grad(w), out, 16 * 16 * 9 * sizeof *out));
    CHECK_OK(gt_tensor_read(gt_tensor_grad(l), out + 16 * 16 * 9, 50 * 1600 * sizeof *out));
    CHECK_OK(gt_scope_end(ctx));
}

TEST(contract, D6_same_threads_give_the_same_bits) {
    enum { N = 16 * 16 * 9 + 50 * 1600 };
    static float a[N], b[N];
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.cpu_threads = 3;
    products(test_context_with(t, &options), a, N);
    gt_context *again = test_context_with(t, &options);
    for (int i = 0; i < 3; i++) {
        products(again, b, N);
        CHECK(memcmp(a, b, sizeof a) == 0);
    }
}

#ifdef _OPENMP
/* A host that calls from its own parallel region, each thread with a context of its own. */
TEST(unit, contexts_work_inside_a_parallel_region_of_the_host) {
    enum { N = 16 * 16 * 9 + 50 * 1600, HOSTS = 2 };
    static float want[N], got[HOSTS][N];
    gt_context *contexts[HOSTS];
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.cpu_threads = 3;
    products(test_context_with(t, &options), want, N);
    for (int i = 0; i < HOSTS; i++) contexts[i] = test_context_with(t, &options);
#pragma omp parallel for num_threads(HOSTS) schedule(static, 1)
    for (int i = 0; i < HOSTS; i++) products(contexts[i], got[i], N);
    for (int i = 0; i < HOSTS; i++)
        for (int k = 0; k < N; k++) CHECK(fabsf(got[i][k] - want[k]) <= 1e-4f * (1 + fabsf(want[k])));
}
#endif

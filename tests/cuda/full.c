/* D1: libraries that start, or load their kernels, on a card that is full. In a program of its own: elsewhere they may have started already. */
#include "cuda/support.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

enum { MOST = 4096, MIB = 1 << 20 };

static void *held[MOST];
static int holds;

/* Takes all of the card. */
static void fill(void) {
    for (size_t bytes = (size_t)4 << 30; bytes >= 64 << 10; bytes /= 2) {
        while (holds < MOST && cudaMalloc(&held[holds], bytes) == cudaSuccess) holds++;
        (void)cudaGetLastError();
    }
}

static void empty(void) {
    while (holds > 0) CHECK(cudaFree(held[--holds]) == cudaSuccess);
}

typedef struct inputs {
    gt_tensor *a, *image, *kernel;
} inputs;

static gt_tensor *call_matmul(const inputs *in) { return gt_matmul(in->a, in->a); }
static gt_tensor *call_conv(const inputs *in) { return gt_conv2d(in->image, in->kernel, NULL, NULL); }

typedef struct try {
    const char *name;
    gt_tensor *(*call)(const inputs *in);
    double want;
}
try;

/* On the full card: it computes, by what needs no more memory, or says OUT_OF_MEMORY and which call it was. Then, with room, it works. */
static void on_a_full_card(test_case *t, const try *op) {
    gt_context *ctx = test_context(t);
    const int64_t square[2] = {96, 96}, image[4] = {2, 16, 12, 12}, kernel[4] = {8, 16, 3, 3};
    inputs in = {gt_tensor_full(ctx, GT_DTYPE_F32, 2, square, 1), gt_tensor_full(ctx, GT_DTYPE_F32, 4, image, 1),
                 gt_tensor_full(ctx, GT_DTYPE_F32, 4, kernel, 1)};
    CHECK(in.a && in.image && in.kernel);
    CHECK_OK(gt_context_synchronize(ctx));
    fill(); /* what is left of the small segment's grain is enough for the results */
    for (int i = 0; i < 3; ++i) {
        gt_tensor *y = op->call(&in);
        if (y == NULL) {
            const gt_error *e = gt_last_error();
            if (e->status != GT_OUT_OF_MEMORY) FAIL("%s on a full card: %s: %s", op->name, gt_status_name(e->status), e->message);
            CHECK(strchr(e->message, ':') != NULL);
            printf("%s on a full card: %s\n", op->name, e->message);
            gt_clear_error();
        } else {
            printf("%s computes on a full card\n", op->name);
        }
        gt_status waited = gt_context_synchronize(ctx);
        if (waited != GT_OK) CHECK_STATUS(waited, GT_OUT_OF_MEMORY);
        gt_tensor_release(y);
        CHECK(cudaPeekAtLastError() == cudaSuccess);
    }
    empty();
    for (int i = 0; i < 2; ++i) {
        gt_tensor *y = CHECK_TENSOR(op->call(&in));
        float *values = read_f32(y);
        for (int64_t k = 0; k < gt_tensor_numel(y); k += 7) CHECK_NEAR(values[k], op->want, 1e-6);
        free(values);
        gt_tensor_release(y);
    }
    gt_tensor_release(in.a);
    gt_tensor_release(in.image);
    gt_tensor_release(in.kernel);
}

/* What the context itself has cached is no reason to fail. */
TEST_CUDA_ONLY(contract, D1_own_cache_goes_back_for_a_library) {
    gt_context *ctx = test_context(t);
    const int64_t image[4] = {2, 16, 12, 12}, kernel[4] = {8, 16, 3, 3};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 4, image, 1)),
              *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 4, kernel, 1));
    const int64_t cached[1] = {(int64_t)3 << 30}, square[2] = {64, 64};
    gt_tensor *large = CHECK_TENSOR(gt_tensor_empty(ctx, GT_DTYPE_U8, 1, cached));
    gt_tensor_release(large);
    gt_tensor *m = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, square, 1));
    CHECK_OK(gt_context_synchronize(ctx));
    fill();
    gt_tensor *y = CHECK_TENSOR(gt_conv2d(x, w, NULL, NULL));
    gt_tensor *z = CHECK_TENSOR(gt_matmul(m, m));
    float *values = read_f32(y);
    CHECK_NEAR(values[0], 144, 1e-6);
    free(values);
    values = read_f32(z);
    CHECK_NEAR(values[0], 64, 1e-6);
    free(values);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    empty();
    gt_tensor_release(x);
    gt_tensor_release(w);
    gt_tensor_release(m);
    gt_tensor_release(y);
    gt_tensor_release(z);
}

TEST_CUDA_ONLY(contract, D1_first_convolution_on_a_full_card) { on_a_full_card(t, &(try){"conv2d", call_conv, 144}); }
TEST_CUDA_ONLY(contract, D1_first_product_on_a_full_card) { on_a_full_card(t, &(try){"matmul", call_matmul, 96}); }

TEST_CUDA_ONLY(contract, D1_a_context_on_a_full_card) {
    (void)test_context(t); /* skips without a GPU */
    gt_context_options options;
    gt_context *ctx = NULL;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.device = GT_DEVICE_CUDA;
    fill();
    gt_status status = gt_context_create(&options, &ctx);
    if (status != GT_OK) CHECK_STATUS(status, GT_OUT_OF_MEMORY);
    gt_context_destroy(status == GT_OK ? ctx : NULL);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    empty();
    gt_clear_error();
    CHECK_OK(gt_context_create(&options, &ctx));
    const int64_t shape[2] = {16, 16};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1)), *y = CHECK_TENSOR(gt_matmul(x, x));
    double value;
    gt_tensor *most = CHECK_TENSOR(gt_max(y, NULL, 0, 0));
    CHECK_OK(gt_tensor_item(most, &value));
    CHECK(value == 16);
    gt_tensor_release(most);
    gt_tensor_release(y);
    gt_tensor_release(x);
    gt_context_destroy(ctx);
}

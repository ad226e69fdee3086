/* The backend's manners in a host program's process. */
#include "cuda/support.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static gt_context_options cuda_options(void) {
    gt_context_options options;
    gt_context_options_init(&options, sizeof options);
    options.device = GT_DEVICE_CUDA;
    return options;
}

TEST_CUDA_ONLY(contract, E2_opening_and_closing_50_times) {
    (void)test_context(t); /* skips without a GPU */
    size_t before = 0, after = 0, total;
    for (int i = 0; i < 50; i++) {
        gt_context_options options = cuda_options();
        gt_context *ctx = NULL;
        CHECK_OK(gt_context_create(&options, &ctx));
        CHECK_OK(gt_scope_begin(ctx));
        const int64_t shape[2] = {16, 16};
        gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1);
        float *y = read_f32(CHECK_TENSOR(gt_matmul(x, x)));
        CHECK(y[0] == 16);
        free(y);
        CHECK_OK(gt_scope_end(ctx));
        gt_context_destroy(ctx);
        if (i == 2) CHECK(cudaMemGetInfo(&before, &total) == cudaSuccess);
    }
    CHECK(cudaMemGetInfo(&after, &total) == cudaSuccess);
    CHECK(after + (16u << 20) >= before);
}

/* A thread that never touched CUDA has no context current, before and after. */
static void *other_thread(void *argument) {
    (void)argument;
    int device = -1;
    gt_context_options options = cuda_options();
    gt_context *ctx = NULL;
    CHECK_OK(gt_context_create(&options, &ctx));
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[2] = {4, 4};
    float *y = read_f32(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1));
    free(y);
    CHECK_OK(gt_scope_end(ctx));
    gt_context_destroy(ctx);
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    CHECK_EQ_INT(device, 0);
    return NULL;
}

TEST_CUDA_ONLY(contract, E8_the_current_device_is_as_it_was) {
    gt_context *ctx = test_context(t);
    int count = 0, device = -1;
    CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
    CHECK(cudaSetDevice(count - 1) == cudaSuccess);
    const int64_t shape[2] = {4, 4};
    CHECK_OK(gt_scope_begin(ctx));
    float *y = read_f32(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1));
    free(y);
    CHECK_OK(gt_scope_end(ctx));
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    CHECK_EQ_INT(device, count - 1);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
    pthread_join(thread, NULL);
}

TEST_CUDA_ONLY(contract, M4_no_sticky_error_and_no_blame) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t huge[1] = {(int64_t)1 << 40}, small[1] = {100};
    for (int i = 0; i < 100; i++) {
        CHECK(gt_tensor_empty(ctx, GT_DTYPE_F32, 1, huge) == NULL);
        CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
        CHECK(cudaPeekAtLastError() == cudaSuccess);
        CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, small, 1));
    }
    /* the host program's own mistake */
    CHECK(cudaSetDevice(9999) != cudaSuccess);
    float *y = read_f32(CHECK_TENSOR(gt_relu(gt_tensor_full(ctx, GT_DTYPE_F32, 1, small, 2))));
    CHECK(y[99] == 2);
    free(y);
    CHECK_OK(gt_context_synchronize(ctx));
    CHECK(cudaGetLastError() != cudaSuccess);
    CHECK_OK(gt_scope_end(ctx));
}

TEST_CUDA_ONLY(contract, E4_calls_in_a_forked_child_fail_with_forked) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[2] = {4, 4};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1));
    CHECK_OK(gt_context_synchronize(ctx));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        float values[16];
        int wrong = 0;
        wrong |= gt_relu(x) != NULL || gt_last_error()->status != GT_FORKED;
        wrong |= (gt_tensor_read(x, values, sizeof values) != GT_FORKED) << 1;
        wrong |= (gt_context_synchronize(ctx) != GT_FORKED) << 2;
        gt_context_options options = cuda_options();
        gt_context *other = NULL;
        wrong |= (gt_context_create(&options, &other) != GT_FORKED) << 3;
        options.device = GT_DEVICE_CPU;
        wrong |= (gt_context_create(&options, &other) != GT_OK) << 4;
        if (other) {
            gt_tensor *y = gt_relu(gt_tensor_full(other, GT_DTYPE_F32, 2, shape, 3));
            wrong |= (gt_tensor_read(y, values, sizeof values) != GT_OK || values[5] != 3) << 5;
            gt_tensor_release(y);
        }
        gt_context_destroy(ctx);
        _exit(wrong);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_EQ_INT(WEXITSTATUS(status), 0);
    float values[16];
    CHECK_OK(gt_tensor_read(x, values, sizeof values)); /* the parent goes on */
    CHECK_OK(gt_scope_end(ctx));
}

TEST_CUDA_ONLY(unit, cuda_device_index_is_checked) {
    (void)test_context(t);
    gt_context_options options = cuda_options();
    gt_context *ctx = NULL;
    options.device_index = 63;
    CHECK_STATUS(gt_context_create(&options, &ctx), GT_NO_DEVICE);
    CHECK_ERROR_HAS("63");
}

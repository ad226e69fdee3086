/* cuDNN's own times of the ops that gtrain computes with its own kernels, on the images of bench/op_time: why pooling and batch norm are not cuDNN's here.
 *
 *     cudnn_ops
 */
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <stdio.h>

#define N    256
#define C    64
#define SIDE 112
#define TRY(expr)                                                                                                                          \
    do {                                                                                                                                   \
        int status_ = (int)(expr);                                                                                                         \
        if (status_ != 0) {                                                                                                                \
            fprintf(stderr, "%s: %d at line %d\n", #expr, status_, __LINE__);                                                              \
            return 1;                                                                                                                      \
        }                                                                                                                                  \
    } while (0)

static cudaEvent_t begin, end;

/* Best of 30, in microseconds. */
#define MEASURE(result, expr)                                                                                                              \
    do {                                                                                                                                   \
        result = 1e9f;                                                                                                                     \
        for (int r_ = 0; r_ < 30; ++r_) {                                                                                                  \
            float ms_;                                                                                                                     \
            TRY(cudaEventRecord(begin, 0));                                                                                                \
            TRY(expr);                                                                                                                     \
            TRY(cudaEventRecord(end, 0));                                                                                                  \
            TRY(cudaEventSynchronize(end));                                                                                                \
            TRY(cudaEventElapsedTime(&ms_, begin, end));                                                                                   \
            if (ms_ * 1e3f < result) result = ms_ * 1e3f;                                                                                  \
        }                                                                                                                                  \
    } while (0)

static int run(cudnnHandle_t dnn, cudnnDataType_t type, size_t size, const char *name) {
    const float one = 1, zero = 0;
    const int out = (SIDE + 2 - 3) / 2 + 1;
    size_t bytes = (size_t)N * C * SIDE * SIDE * size, small = (size_t)N * C * out * out * size;
    void *x, *y, *dx, *py, *pdy, *workspace = NULL, *reserve = NULL;
    float *channel[8];
    TRY(cudaMalloc(&x, bytes));
    TRY(cudaMalloc(&y, bytes));
    TRY(cudaMalloc(&dx, bytes));
    TRY(cudaMalloc(&py, small));
    TRY(cudaMalloc(&pdy, small));
    TRY(cudaMemset(x, 0x3c, bytes)); /* not zeros: 0.0115… in f32, 1.06 in f16 */
    TRY(cudaMemset(y, 0x3c, bytes));
    TRY(cudaMemset(pdy, 0x3c, small));
    for (int i = 0; i < 8; ++i) {
        TRY(cudaMalloc((void **)&channel[i], C * sizeof(float)));
        TRY(cudaMemset(channel[i], 0x3c, C * sizeof(float)));
    }
    cudnnTensorDescriptor_t image, pooled, norm;
    TRY(cudnnCreateTensorDescriptor(&image));
    TRY(cudnnCreateTensorDescriptor(&pooled));
    TRY(cudnnCreateTensorDescriptor(&norm));
    TRY(cudnnSetTensor4dDescriptor(image, CUDNN_TENSOR_NHWC, type, N, C, SIDE, SIDE));
    TRY(cudnnSetTensor4dDescriptor(pooled, CUDNN_TENSOR_NHWC, type, N, C, out, out));
    static const cudnnPoolingMode_t modes[] = {CUDNN_POOLING_MAX, CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING};
    for (int m = 0; m < 2; ++m) {
        cudnnPoolingDescriptor_t pool;
        float forward, backward;
        TRY(cudnnCreatePoolingDescriptor(&pool));
        TRY(cudnnSetPooling2dDescriptor(pool, modes[m], CUDNN_PROPAGATE_NAN, 3, 3, 1, 1, 2, 2));
        MEASURE(forward, cudnnPoolingForward(dnn, pool, &one, image, x, &zero, pooled, py));
        MEASURE(backward, cudnnPoolingBackward(dnn, pool, &one, pooled, py, pooled, pdy, image, x, &zero, image, dx));
        printf("cuDNN %s %-10s forward %8.1f us   backward %8.1f us\n", name, m ? "avg_pool2d" : "max_pool2d", (double)forward,
               (double)backward);
        TRY(cudnnDestroyPoolingDescriptor(pool));
    }
    const cudnnBatchNormMode_t mode = CUDNN_BATCHNORM_SPATIAL_PERSISTENT;
    const cudnnBatchNormOps_t ops = CUDNN_BATCHNORM_OPS_BN;
    size_t forward_bytes, backward_bytes, reserve_bytes;
    TRY(cudnnDeriveBNTensorDescriptor(norm, image, mode));
    TRY(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(dnn, mode, ops, image, NULL, image, norm, NULL, &forward_bytes));
    TRY(cudnnGetBatchNormalizationBackwardExWorkspaceSize(dnn, mode, ops, image, NULL, image, NULL, image, norm, NULL, &backward_bytes));
    TRY(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(dnn, mode, ops, NULL, image, &reserve_bytes));
    size_t workspace_bytes = forward_bytes > backward_bytes ? forward_bytes : backward_bytes;
    TRY(cudaMalloc(&workspace, workspace_bytes + 1));
    TRY(cudaMalloc(&reserve, reserve_bytes + 1));
    float forward, backward;
    MEASURE(forward, cudnnBatchNormalizationForwardTrainingEx(dnn, mode, ops, &one, &zero, image, x, NULL, NULL, image, dx, norm,
                                                              channel[0], channel[1], 0.1, channel[2], channel[3], 1e-5, channel[4],
                                                              channel[5], NULL, workspace, workspace_bytes, reserve, reserve_bytes));
    MEASURE(backward, cudnnBatchNormalizationBackwardEx(dnn, mode, ops, &one, &zero, &one, &zero, image, x, NULL, NULL, image, y, NULL,
                                                        NULL, image, dx, norm, channel[0], channel[1], channel[6], channel[7], 1e-5,
                                                        channel[4], channel[5], NULL, workspace, workspace_bytes, reserve, reserve_bytes));
    printf("cuDNN %s batch_norm forward %8.1f us   backward %8.1f us\n", name, (double)forward, (double)backward);
    void *all[] = {x, y, dx, py, pdy, workspace, reserve};
    for (int i = 0; i < 7; ++i) TRY(cudaFree(all[i]));
    for (int i = 0; i < 8; ++i) TRY(cudaFree(channel[i]));
    TRY(cudnnDestroyTensorDescriptor(image));
    TRY(cudnnDestroyTensorDescriptor(pooled));
    TRY(cudnnDestroyTensorDescriptor(norm));
    return 0;
}

int main(void) {
    cudnnHandle_t dnn;
    TRY(cudnnCreate(&dnn));
    TRY(cudaEventCreate(&begin));
    TRY(cudaEventCreate(&end));
    printf("cuDNN %zu, [%d,%d,%d,%d] channels-last, best of 30\n", cudnnGetVersion(), N, C, SIDE, SIDE);
    int code = run(dnn, CUDNN_DATA_FLOAT, 4, "f32");
    if (code == 0) code = run(dnn, CUDNN_DATA_HALF, 2, "f16");
    TRY(cudnnDestroy(dnn));
    return code;
}

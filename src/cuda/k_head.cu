/* linear_cross_entropy and linear_relu_backward (head.cuh): the launches. */
#include "cuda/head.cuh"

namespace {
using namespace gt;

template <typename T, int V, int N>
gt_status linear_cross_entropy(gt__device *device, const gt__call *call) {
    using C = compute_t<T>;
    gt_tensor *const *in = call->in;
    const Loss<C> info = loss_make<C>(device, call, call->out[3], in[4], in[5]);
    const uint32_t blocks = grid_for(info.rows, kHeadTile);
    void *partial = nullptr, *handle = nullptr;
    if (blocks > 1) GT_TRY(gt__scratch_alloc(device->ctx, blocks * sizeof(C), &partial, &handle));
    const gt_status status =
        launch(device, call, k_linear_cross_entropy<T, V, N>, blocks, kHeadBlock, data<const C>(in[0]), data<const T>(in[1]),
               data<const T>(in[2]), data<const T>(in[3]), in[1]->meta.shape[1], info, data<C>(call->out[0]), data<T>(call->out[1]),
               data<C>(call->out[2]), data<T>(call->out[3]), static_cast<C *>(partial), gt__cuda_counters(device));
    gt__scratch_free(device->ctx, handle);
    return status;
}

template <typename T, int V>
gt_status linear_cross_entropy(gt__device *device, const gt__call *call) {
    return call->out[3]->meta.shape[1] <= 16 ? linear_cross_entropy<T, V, 16>(device, call) : linear_cross_entropy<T, V, 32>(device, call);
}

template <typename T, int V>
gt_status linear_relu_backward(gt__device *device, const gt__call *call) {
    using C = compute_t<T>;
    const gt_tensor *dy = call->in[0], *w = call->in[1], *y = call->in[2], *db = call->out[1], *sums = call->out[2];
    const int64_t classes = dy->meta.shape[1];
    Columns columns;
    columns.rows = y->meta.shape[0];
    columns.channels = y->meta.shape[1];
    columns.block_x = kHeadWide;
    columns.block_y = kHeadHigh;
    columns.part_rows = kHeadRows * kHeadHigh;
    columns.tiles = static_cast<uint32_t>(ceil_div(columns.channels, kHeadWide * V));
    columns.parts = static_cast<uint32_t>(ceil_div(columns.rows, columns.part_rows));
    GT_CALL_REQUIRE(call, columns.tiles <= GT__CUDA_COUNTERS, GT_NOT_SUPPORTED, "%lld columns", (long long)columns.channels);
    void *partial = nullptr, *handle = nullptr;
    if (columns.parts > 1 && (db || sums))
        GT_TRY(
            gt__scratch_alloc(device->ctx, columns.parts * static_cast<size_t>(columns.channels + classes) * sizeof(C), &partial, &handle));
    const gt_dtype dtype = db ? db->meta.dtype : sums ? sums->meta.dtype : dy->meta.dtype;
    const gt_status status = columns_launch(device, call, k_linear_relu_backward<T, V>, columns, data<const T>(dy), data<const T>(w),
                                            data<const T>(y), data<T>(call->out[0]), data(db), data(sums), dtype,
                                            static_cast<int32_t>(classes), static_cast<C *>(partial), gt__cuda_counters(device), columns);
    gt__scratch_free(device->ctx, handle);
    return status;
}

gt_status check(const gt__call *call, const gt_tensor *logits) {
    const int64_t *shape = logits->meta.shape;
    GT_CALL_REQUIRE(call, shape[0] > 0 && shape[0] <= kHeadMostRows && shape[1] > 0 && shape[1] <= kHeadMostClasses, GT_NOT_SUPPORTED,
                    "%lld rows of %lld classes", (long long)shape[0], (long long)shape[1]);
    return GT_OK;
}

} // namespace

gt_status gt__cuda_linear_cross_entropy(gt__device *device, const gt__call *call) {
    GT_TRY(check(call, call->out[3]));
    const gt_tensor *x = call->in[1], *w = call->in[2];
    const int64_t width = x->meta.shape[1];
    if (width % 16 == 0 && aligned(data(x), 4) && aligned(data(w), 4) && gt__cuda_capability(device) >= kMmaCapability) {
        if (x->meta.dtype == GT_DTYPE_F16) return linear_cross_entropy<__half, 0>(device, call);
        if (x->meta.dtype == GT_DTYPE_BF16) return linear_cross_entropy<__nv_bfloat16, 0>(device, call);
    }
    const bool vector = aligned(data(x), 16) && aligned(data(w), 16);
    GT__FOR_FLOATS(call, x->meta.dtype, if (vector && width % kVector<T> == 0) return linear_cross_entropy<T, kVector<T>>(device, call);
                   return linear_cross_entropy<T, 1>(device, call));
    return GT_OK;
}

gt_status gt__cuda_linear_relu_backward(gt__device *device, const gt__call *call) {
    GT_TRY(check(call, call->in[0]));
    const gt_tensor *w = call->in[1], *y = call->in[2];
    const bool aligned16 =
        aligned(data(call->in[0]), 16) && aligned(data(w), 16) && aligned(data(y), 16) && aligned(data(call->out[0]), 16);
    GT__FOR_FLOATS(call, y->meta.dtype,
                   if (aligned16 && y->meta.shape[1] % kVector<T> == 0) return linear_relu_backward<T, kVector<T>>(device, call);
                   return linear_relu_backward<T, 1>(device, call));
    return GT_OK;
}

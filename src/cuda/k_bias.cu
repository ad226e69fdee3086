/* Bias and relu: after a matrix product or convolution whose library call could not take them, and their gradient in one pass. */
#include "cuda/columns.cuh"

namespace {
using namespace gt;

template <typename T, int V>
__global__ void __launch_bounds__(kColumnBlock) k_bias_act(T *y, const T *bias, Columns columns, bool relu) {
    using C = compute_t<T>;
    const int64_t channel = column_channel(V);
    if (channel >= columns.channels) return;
    C add[V];
#pragma unroll
    for (int i = 0; i < V; i++) add[i] = bias ? convert<C>(bias[channel + i]) : C(0);
    const int64_t end = column_end(columns);
    for (int64_t row = column_begin(columns); row < end; row += kColumnUnroll * blockDim.y) {
        Pack<T, V> pack[kColumnUnroll];
#pragma unroll
        for (int u = 0; u < kColumnUnroll; u++)
            if (row + u * blockDim.y < end) pack[u] = load_pack<T, V>(y + (row + u * blockDim.y) * columns.channels + channel, true);
#pragma unroll
        for (int u = 0; u < kColumnUnroll; u++) {
            if (row + u * blockDim.y >= end) break;
#pragma unroll
            for (int i = 0; i < V; i++) {
                const C value = convert<C>(pack[u].v[i]) + add[i];
                pack[u].v[i] = convert<T>(relu && value <= C(0) ? C(0) : value);
            }
            store_pack(y + (row + u * blockDim.y) * columns.channels + channel, pack[u], true);
        }
    }
}

/* dz = relu's gradient (NULL: not wanted), and its sums over rows to `db`: of several parts by way of partial[part, channel], which the last block of a tile of
 * channels joins. */
template <typename T, int V>
__global__ void __launch_bounds__(kColumnBlock) k_bias_relu_backward(const T *dy, const T *y, T *dz, void *db, gt_dtype dtype,
                                                                     compute_t<T> *partial, uint32_t *counters, Columns columns) {
    using C = compute_t<T>;
    __shared__ C shared[kColumnBlock * V];
    const int64_t channel = column_channel(V);
    C sum[V];
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = C(0);
    if (channel < columns.channels) {
        const int64_t end = column_end(columns);
        for (int64_t row = column_begin(columns); row < end; row += kColumnUnroll * blockDim.y) {
            Pack<T, V> gradient[kColumnUnroll], result[kColumnUnroll];
#pragma unroll
            for (int u = 0; u < kColumnUnroll; u++) {
                if (row + u * blockDim.y >= end) break;
                const int64_t at = (row + u * blockDim.y) * columns.channels + channel;
                gradient[u] = load_pack<T, V>(dy + at, true);
                result[u] = load_pack<T, V>(y + at, true);
            }
#pragma unroll
            for (int u = 0; u < kColumnUnroll; u++) {
                if (row + u * blockDim.y >= end) break;
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const C g = convert<C>(gradient[u].v[i]), r = convert<C>(result[u].v[i]);
                    const C z = r > C(0) ? g : (r != r ? r : C(0));
                    sum[i] += z;
                    gradient[u].v[i] = convert<T>(z);
                }
                if (dz) store_pack(dz + (row + u * blockDim.y) * columns.channels + channel, gradient[u], true);
            }
        }
    }
    if (!db) return;
    column_sum(sum, shared);
    if (partial) {
        if (threadIdx.y == 0 && channel < columns.channels) {
#pragma unroll
            for (int i = 0; i < V; i++) partial[blockIdx.y * columns.channels + channel + i] = sum[i];
        }
        if (!last_of_tile(counters, columns.parts)) return;
        if (channel < columns.channels) column_parts(partial, columns, channel, sum);
        column_sum(sum, shared);
    }
    if (threadIdx.y != 0 || channel >= columns.channels) return;
#pragma unroll
    for (int i = 0; i < V; i++) store_as(db, dtype, channel + i, sum[i]);
}

template <typename T, int V>
gt_status bias_act(gt__device *device, void *y, const void *bias, int64_t rows, int64_t channels, bool relu) {
    const Columns columns = columns_make(device, rows, channels, V, 4, kMaxGridY);
    return columns_launch(device, nullptr, k_bias_act<T, V>, columns, static_cast<T *>(y), static_cast<const T *>(bias), columns, relu);
}

template <typename T, int V>
gt_status bias_relu_backward(gt__device *device, const gt__call *call, int64_t rows, int64_t channels) {
    using C = compute_t<T>;
    const gt_tensor *db = call->out[1];
    Columns columns = columns_make(device, rows, channels, V, 8, 4 * static_cast<int64_t>(gt__cuda_multiprocessors(device)));
    void *partial = nullptr, *handle = nullptr;
    if (columns.tiles > GT__CUDA_COUNTERS) columns_join(&columns);
    if (db && columns.parts > 1 &&
        !gt__cuda_scratch_try(device, columns.parts * static_cast<size_t>(channels) * sizeof(C), &partial, &handle))
        columns_join(&columns);
    const gt_dtype dtype = db ? db->meta.dtype : call->in[0]->meta.dtype;
    gt_status status =
        columns_launch(device, call, k_bias_relu_backward<T, V>, columns, data<const T>(call->in[0]), data<const T>(call->in[1]),
                       data<T>(call->out[0]), data(db), dtype, static_cast<C *>(partial), gt__cuda_counters(device), columns);
    gt__scratch_free(device->ctx, handle);
    return status;
}

} // namespace

gt_status gt__cuda_bias_act(gt__device *device, void *y, const void *bias, int64_t rows, int64_t channels, gt_dtype dtype, int32_t relu) {
    if (rows <= 0 || channels <= 0 || (!bias && !relu)) return GT_OK;
    const int64_t v = 16 / element_bytes(dtype);
    const bool vector = channels % v == 0 && aligned(y, 16);
    GT__FOR_FLOATS(nullptr, dtype,
                   return vector ? bias_act<T, kVector<T>>(device, y, bias, rows, channels, relu != 0)
                                 : bias_act<T, 1>(device, y, bias, rows, channels, relu != 0));
    return GT_OK;
}

gt_status gt__cuda_bias_relu_backward(gt__device *device, const gt__call *call) {
    const gt__meta *meta = &call->in[0]->meta;
    GT_CALL_REQUIRE(call, meta->ndim == 2 || meta->ndim == 4, GT_BAD_SHAPE, "takes rank 2 or 4, the input has rank %d", (int)meta->ndim);
    const int64_t channels = meta->shape[1];
    if (channels == 0) return GT_OK;
    int64_t rows = meta->shape[0];
    if (meta->ndim == 4) rows *= meta->shape[2] * meta->shape[3];
    const void *dy = data(call->in[0]), *y = data(call->in[1]), *dz = data(call->out[0]);
    const int64_t v = 16 / element_bytes(meta->dtype);
    const bool vector = channels % v == 0 && aligned(dy, 16) && aligned(y, 16) && aligned(dz, 16);
    GT__FOR_FLOATS(call, meta->dtype,
                   return vector ? bias_relu_backward<T, kVector<T>>(device, call, rows, channels)
                                 : bias_relu_backward<T, 1>(device, call, rows, channels));
    return GT_OK;
}

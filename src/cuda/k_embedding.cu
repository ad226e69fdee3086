/* Rows of a weight by index, and the sum of gradients back into them. */
#include "cuda/launch.cuh"
#include "cuda/report.cuh"

namespace {
using namespace gt;

constexpr int kBlock = 256;

/* A block's y-rows of threads each copy a row, in units of U. A bad index gives zeros and a report. */
template <typename U>
__global__ void __launch_bounds__(kBlock) k_embedding(const U *weight, const void *indices, gt_dtype index_dtype, U *y, int64_t count,
                                                      int64_t rows, int64_t width, int32_t op, gt__error_slot error) {
    for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.y) + threadIdx.y; i < count;
         i += gridDim.x * static_cast<int64_t>(blockDim.y)) {
        const int64_t row = load_index(indices, index_dtype, i);
        const bool good = row >= 0 && row < rows;
        if (!good && threadIdx.x == 0) report_label(error, op, i, row, rows);
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x) y[i * width + j] = good ? weight[row * width + j] : U{};
    }
}

template <typename T>
__global__ void __launch_bounds__(kBlock) k_embedding_scatter(const T *dy, const void *indices, gt_dtype index_dtype, compute_t<T> *dw,
                                                              int64_t count, int64_t rows, int64_t width) {
    using C = compute_t<T>;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.y) + threadIdx.y; i < count;
         i += gridDim.x * static_cast<int64_t>(blockDim.y)) {
        const int64_t row = load_index(indices, index_dtype, i);
        if (row < 0 || row >= rows) continue;
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x) atomicAdd(dw + row * width + j, convert<C>(dy[i * width + j]));
    }
}

/* Without atomics: a warp owns a row of the weight, looks through all indices 32 at a time, and adds what it finds in their order. */
template <typename T>
__global__ void __launch_bounds__(kBlock) k_embedding_gather(const T *dy, const void *indices, gt_dtype index_dtype, compute_t<T> *dw,
                                                             int64_t count, int64_t rows, int64_t width) {
    using C = compute_t<T>;
    const int lane = threadIdx.x & 31;
    const int64_t warps = gridDim.x * static_cast<int64_t>(kBlock / 32);
    for (int64_t row = blockIdx.x * static_cast<int64_t>(kBlock / 32) + (threadIdx.x >> 5); row < rows; row += warps) {
        C *out = dw + row * width;
        for (int64_t first = 0; first < count; first += 32) {
            const bool mine = first + lane < count && load_index(indices, index_dtype, first + lane) == row;
            uint32_t found = __ballot_sync(0xffffffffu, mine);
            while (found) {
                const T *in = dy + (first + __ffs(static_cast<int>(found)) - 1) * width;
                for (int64_t j = lane; j < width; j += 32) out[j] += convert<C>(in[j]);
                found &= found - 1;
            }
        }
    }
}

/* Threads along a row and rows a block. */
void row_block(int64_t width, uint32_t *x, uint32_t *y) {
    *x = 1;
    while (*x < kBlock && *x < width) *x *= 2;
    *y = kBlock / *x;
}

template <typename U>
gt_status gather(gt__device *device, const gt__call *call, int64_t count, int64_t rows, int64_t width) {
    const gt_tensor *indices = call->in[1];
    uint32_t x, y;
    row_block(width, &x, &y);
    return launch2(device, call, "embedding", k_embedding<U>, grid_for(count, y), 1u, x, y, data<const U>(call->in[0]),
                   data<const void>(indices), indices->meta.dtype, data<U>(call->out[0]), count, rows, width,
                   static_cast<int32_t>(call->op), gt__cuda_error_slot(device));
}

} // namespace

gt_status gt__cuda_embedding(gt__device *device, const gt__call *call) {
    const gt_tensor *weight = call->in[0], *indices = call->in[1], *y = call->out[0];
    const int64_t rows = weight->meta.shape[0], bytes = weight->meta.shape[1] * element_bytes(weight->meta.dtype);
    if (y->meta.numel == 0) return GT_OK;
    const int64_t count = indices->meta.numel;
    int64_t unit = 16;
    while (bytes % unit != 0 || !aligned(data(weight), static_cast<size_t>(unit)) || !aligned(data(y), static_cast<size_t>(unit)))
        unit /= 2;
    switch (unit) {
    case 16:
        return gather<uint4>(device, call, count, rows, bytes / 16);
    case 8:
        return gather<uint2>(device, call, count, rows, bytes / 8);
    case 4:
        return gather<uint32_t>(device, call, count, rows, bytes / 4);
    case 2:
        return gather<uint16_t>(device, call, count, rows, bytes / 2);
    default:
        return gather<uint8_t>(device, call, count, rows, bytes);
    }
}

gt_status gt__cuda_embedding_backward(gt__device *device, const gt__call *call) {
    const gt_tensor *dy = call->in[0], *indices = call->in[1], *dw = call->out[0];
    const int64_t rows = call->attr.view.shape[0], width = call->attr.view.shape[1], count = indices->meta.numel;
    GT_TRY(gt__cuda_zero(device, call, data(dw), static_cast<size_t>(dw->meta.numel * element_bytes(dw->meta.dtype))));
    if (count == 0 || dw->meta.numel == 0) return GT_OK;
    if (device->deterministic) {
        GT__FOR_FLOATS(call, dy->meta.dtype,
                       return launch(device, call, k_embedding_gather<T>, grid_for(rows, kBlock / 32), kBlock, data<const T>(dy),
                                     data<const void>(indices), indices->meta.dtype, data<compute_t<T>>(dw), count, rows, width));
    }
    uint32_t x, y;
    row_block(width, &x, &y);
    GT__FOR_FLOATS(call, dy->meta.dtype,
                   return launch2(device, call, "embedding_backward", k_embedding_scatter<T>, grid_for(count, y), 1u, x, y,
                                  data<const T>(dy), data<const void>(indices), indices->meta.dtype, data<compute_t<T>>(dw), count, rows,
                                  width));
    return GT_OK;
}

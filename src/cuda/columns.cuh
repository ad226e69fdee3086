/* Passes over [rows, channels] with channels innermost: each thread keeps V neighbouring channels and steps over rows, so that what belongs to a
 * channel stays in registers. blockIdx.x is a tile of channels, blockIdx.y a part of the rows. */
#ifndef GT_CUDA_COLUMNS_CUH
#define GT_CUDA_COLUMNS_CUH

#include "cuda/launch.cuh"

namespace gt {

constexpr int kColumnBlock = 256;
constexpr int kColumnUnroll = 4; /* rows whose loads are in flight together */

struct Columns {
    int64_t rows, channels;
    int64_t part_rows; /* rows of a part */
    uint32_t tiles, parts, block_x, block_y;
};

/* V channels a thread. `rows_per_thread`: no more parts than leave each thread that many rows; `most_parts` at most. */
inline Columns columns_make(gt__device *device, int64_t rows, int64_t channels, int v, int64_t rows_per_thread, int64_t most_parts) {
    Columns c;
    c.rows = rows;
    c.channels = channels;
    const int64_t threads = ceil_div(channels, v);
    c.block_x = 1;
    while (c.block_x < 32 && c.block_x < threads) c.block_x *= 2;
    c.block_y = kColumnBlock / c.block_x;
    const int64_t processors = gt__cuda_multiprocessors(device);
    /* Few rows: narrower blocks, and more of them, instead of many rows for each thread. */
    while (c.block_x > 8 && rows > c.block_y && ceil_div(threads, c.block_x) * ceil_div(rows, 2 * c.block_y) < processors) {
        c.block_x /= 2;
        c.block_y *= 2;
    }
    c.tiles = static_cast<uint32_t>(max64(ceil_div(threads, c.block_x), 1));
    const int64_t wanted = ceil_div(8 * processors, c.tiles);
    const int64_t parts = min64(min64(wanted, rows / (rows_per_thread * c.block_y)), min64(most_parts, kMaxGridY));
    c.parts = static_cast<uint32_t>(max64(parts, 1));
    c.part_rows = ceil_div(rows, c.parts);
    return c;
}

/* All rows in one part. */
inline void columns_join(Columns *c) {
    c->parts = 1;
    c->part_rows = c->rows;
}

template <typename... P>
inline gt_status columns_launch(gt__device *device, const gt__call *call, void (*kernel)(P...), const Columns &c,
                                const typename Same<P>::type &...arguments) {
    return launch2(device, call, "kernel", kernel, c.tiles, c.parts, c.block_x, c.block_y, arguments...);
}

#ifdef __CUDACC__

__device__ __forceinline__ int64_t column_channel(int v) { return (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * v; }
__device__ __forceinline__ int64_t column_begin(const Columns &c) { return blockIdx.y * c.part_rows + threadIdx.y; }
__device__ __forceinline__ int64_t column_end(const Columns &c) {
    const int64_t end = (blockIdx.y + 1) * c.part_rows;
    return end < c.rows ? end : c.rows;
}

/* Sums over the block's rows of threads; the first of them gets the result. `shared` holds kColumnBlock * V values and may be used again at once. */
template <typename C, int V>
__device__ __forceinline__ void column_sum(C (&values)[V], C *shared) {
    for (uint32_t half = blockDim.y / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y >= half && threadIdx.y < 2 * half) {
#pragma unroll
            for (int i = 0; i < V; i++) shared[(i * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x] = values[i];
        }
        __syncthreads();
        if (threadIdx.y < half) {
#pragma unroll
            for (int i = 0; i < V; i++) values[i] += shared[(i * blockDim.y + threadIdx.y + half) * blockDim.x + threadIdx.x];
        }
    }
}

/* True in all threads of the block that is the last of its tile of channels to come here. */
__device__ __forceinline__ bool last_of_tile(uint32_t *counters, uint32_t parts) { return is_last_block(counters + blockIdx.x, parts); }

/* 16 aligned bytes that other blocks of this launch have written. */
template <typename C, int V>
__device__ __forceinline__ Pack<C, V> load_others(const C *p) {
    union {
        uint4 bits;
        Pack<C, V> pack;
    } u;
    u.bits = __ldcg(reinterpret_cast<const uint4 *>(p));
    return u.pack;
}

/* In the last block of a tile: the thread's share of partial[part, channel] over the parts, several loads at a time; column_sum follows. */
template <typename C, int V>
__device__ __forceinline__ void column_parts(const C *partial, const Columns &c, int64_t channel, C (&sum)[V]) {
    constexpr int kBatch = 4, kWide = V * sizeof(C) >= 16 ? static_cast<int>(16 / sizeof(C)) : 1;
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = C(0);
    for (uint32_t part = threadIdx.y; part < c.parts; part += kBatch * blockDim.y) {
        C values[kBatch][V];
#pragma unroll
        for (int u = 0; u < kBatch; u++) {
            if (part + u * blockDim.y >= c.parts) break;
#pragma unroll
            for (int i = 0; i < V; i += kWide) {
                const C *at = partial + static_cast<int64_t>(part + u * blockDim.y) * c.channels + channel + i;
                if constexpr (kWide > 1) {
                    const Pack<C, kWide> pack = load_others<C, kWide>(at);
#pragma unroll
                    for (int k = 0; k < kWide; k++) values[u][i + k] = pack.v[k];
                } else {
                    values[u][i] = __ldcg(at);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < kBatch; u++) {
            if (part + u * blockDim.y >= c.parts) break;
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] += values[u][i];
        }
    }
}

/* out[i] and out2[i] (either may be NULL) = the sums over parts of partial[part, i], i < count, and of partial[part, count + i]; with out2 NULL and
 * `width` == count there is only one array. */
template <typename C>
__global__ void __launch_bounds__(kColumnBlock)
    k_sum_parts(const C *partial, uint32_t parts, int64_t count, int64_t width, void *out, void *out2, C *copy, gt_dtype dtype) {
    __shared__ C shared[kColumnBlock];
    const int64_t i = column_channel(1);
    C value[1] = {C(0)};
    if (i < width) {
#pragma unroll 4
        for (uint32_t part = threadIdx.y; part < parts; part += blockDim.y) value[0] += partial[part * width + i];
    }
    column_sum(value, shared);
    if (threadIdx.y != 0 || i >= width) return;
    void *to = i < count ? out : out2;
    if (to) store_as(to, dtype, i < count ? i : i - count, value[0]);
    if (copy) copy[i] = value[0];
}

template <typename C>
inline gt_status sum_parts(gt__device *device, const gt__call *call, const C *partial, uint32_t parts, int64_t count, int64_t width,
                           void *out, void *out2, C *copy, gt_dtype dtype) {
    return launch2(device, call, "sum", k_sum_parts<C>, static_cast<uint32_t>(ceil_div(width, 32)), 1u, 32u, kColumnBlock / 32u, partial,
                   parts, count, width, out, out2, copy, dtype);
}

#endif

} // namespace gt

#endif

/* Max pooling with windows of 2 x 2 that do not overlap, where the pooled image is row-major: what a flatten reads. And its gradient with that of the relu
 * before it, of either layout.
 *
 * A block has a slab: some pixels of one pooled image, and the channels that up to 8 packs of 16 bytes hold. The larger image is moved by packs of channels, a
 * row-major one by packs of pixels, and what lies between them is turned in shared memory. */
#ifndef GT_CUDA_POOL_FLAT_CUH
#define GT_CUDA_POOL_FLAT_CUH

#include "cuda/columns.cuh"
#include "cuda/pool_units.cuh"

namespace gt {

constexpr int kFlatBlock = 512; /* threads: packs of channels, by pixels */
constexpr int kFlatPacks = 8;   /* at most, and a power of 2 */
constexpr int kFlatUnroll = 3;  /* times that many pixels make a slab, at most */

struct Slabs {
    int64_t channels;
    int32_t in_rows, in_columns, out_rows, out_columns;
    int32_t pixels; /* of a pooled image */
    int32_t size;   /* of them in a slab */
    int32_t count;
    FastDivide by_columns, by_slabs, by_packs; /* slabs of an image; packs of pixels in a slab */
};

#ifdef __CUDACC__

struct Slab {
    int64_t image;
    int32_t begin, end; /* pixels */
};

__device__ __forceinline__ Slab slab_of(const Slabs &slabs, uint32_t i) {
    Slab slab;
    const uint32_t image = slabs.by_slabs.quotient(i);
    slab.image = image;
    slab.begin = static_cast<int32_t>(i - image * slabs.by_slabs.divisor) * slabs.size;
    slab.end = min(slab.begin + slabs.size, slabs.pixels);
    return slab;
}

/* Where a channel of the slab's pixel is in shared memory. The packs of a pixel change places, so that neither those of one pixel nor one channel's of neighbouring packs of
 * W pixels are in the same banks. */
template <typename T, int W>
__device__ __forceinline__ T *flat_at(T *tile, int32_t pixel, int32_t channel) {
    constexpr int V = kVector<T>;
    const int32_t packs = static_cast<int32_t>(blockDim.x), pack = (channel / V) ^ (pixel / W & (packs - 1));
    return tile + (pixel * packs + pack) * V + channel % V;
}

/* Calls use(u, place in a row-major image, pixel of the slab, channel of the block) for the thread's packs of W pixels, kFlatUnroll at a time, and after
 * them between(). */
template <int W, typename Use, typename Between>
__device__ __forceinline__ void for_rows(const Slabs &slabs, const Slab &slab, int64_t first, int32_t channels, Use use, Between between) {
    const int32_t count = channels * static_cast<int32_t>(slabs.by_packs.divisor);
    const int64_t rows = (slab.image * slabs.channels + first) * slabs.pixels + slab.begin;
    for (int32_t i = static_cast<int32_t>(threadIdx.y * blockDim.x + threadIdx.x); i < count; i += kFlatUnroll * kFlatBlock) {
#pragma unroll
        for (int u = 0; u < kFlatUnroll; u++) {
            const int32_t at = i + u * kFlatBlock, channel = static_cast<int32_t>(slabs.by_packs.quotient(static_cast<uint32_t>(at)));
            const int32_t pixel = (at - channel * static_cast<int32_t>(slabs.by_packs.divisor)) * W;
            if (at < count && slab.begin + pixel < slab.end)
                use(u, rows + static_cast<int64_t>(channel) * slabs.pixels + pixel, pixel, channel);
        }
        between(i);
    }
}

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> relu_masked(const Pack<T, N> &dy, const Pack<T, N> &y) {
    using C = compute_t<T>;
    Pack<T, N> dz;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const C result = convert<C>(y.v[k]);
        dz.v[k] = result > C(0) ? dy.v[k] : (result != result ? y.v[k] : convert<T>(C(0)));
    }
    return dz;
}

/* The block's channels that there are. */
__device__ __forceinline__ int32_t flat_channels(const Slabs &slabs, int64_t first, int v) {
    const int64_t left = slabs.channels - first, most = static_cast<int64_t>(blockDim.x) * v;
    return static_cast<int32_t>(left < most ? left : most);
}

/* y row-major, in packs of W pixels. */
template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock, 2) k_pool_flat(const T *x, T *y, uint8_t *index, Slabs slabs) {
    constexpr int V = kVector<T>;
    __shared__ uint4 memory[kFlatBlock * kFlatUnroll];
    T *tile = reinterpret_cast<T *>(memory);
    const int64_t first = blockIdx.x * static_cast<int64_t>(blockDim.x) * V, channel = first + threadIdx.x * V;
    const int64_t line = slabs.in_columns * slabs.channels;
    const int32_t channels = flat_channels(slabs, first, V);
    for (uint32_t i = blockIdx.y; i < static_cast<uint32_t>(slabs.count); i += gridDim.y) {
        const Slab slab = slab_of(slabs, i);
        for (int32_t pixel = slab.begin + static_cast<int32_t>(threadIdx.y); pixel < slab.end && channel < slabs.channels;
             pixel += static_cast<int32_t>(blockDim.y)) {
            const int32_t row = static_cast<int32_t>(slabs.by_columns.quotient(static_cast<uint32_t>(pixel))),
                          column = pixel - row * slabs.out_columns;
            const T *from = x + (slab.image * slabs.in_rows + 2 * row) * line + 2 * column * slabs.channels + channel;
            Pack<T, V> pixels[4];
#pragma unroll
            for (int p = 0; p < 4; p++) pixels[p] = load_pack<T, V>(from + p / 2 * line + p % 2 * slabs.channels, true);
            Part<true, T, V> best;
            best.begin(pixels[0], 0);
#pragma unroll
            for (int p = 1; p < 4; p++) best.add(pixels[p], p);
            store_pack(flat_at<T, W>(tile, pixel - slab.begin, static_cast<int32_t>(threadIdx.x) * V), best.result(compute_t<T>(1)), true);
            if (index) store_pack(index + (slab.image * slabs.pixels + pixel) * slabs.channels + channel, best.places(), true);
        }
        __syncthreads();
        for_rows<W>(
            slabs, slab, first, channels,
            [&](int, int64_t to, int32_t pixel, int32_t of) {
                Pack<T, W> pack;
#pragma unroll
                for (int k = 0; k < W; k++) pack.v[k] = *flat_at<T, W>(tile, pixel + k, of);
                store_pack(y + to, pack, true);
            },
            [](int32_t) {});
        __syncthreads();
    }
}

/* dx, and the sums of the masked gradient to `db` (NULL: not wanted) as in k_bias.cu. kRows: dy and y are row-major, in packs of W pixels; else channels-last,
 * and W is a pack of channels. */
template <typename T, bool kRows, int W>
__global__ void __launch_bounds__(kFlatBlock, 2)
    k_pool_flat_backward(const T *dy, const uint8_t *index, const T *y, T *dx, void *db, gt_dtype dtype, compute_t<T> *partial,
                         uint32_t *counters, Slabs slabs, Columns columns) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    using G = Gift<true, T, V>;
    __shared__ uint4 memory[kFlatBlock * kFlatUnroll]; /* the slab, and at the end the block's sums */
    static_assert(sizeof memory >= kFlatBlock * V * sizeof(C), "sums");
    T *tile = reinterpret_cast<T *>(memory);
    const int64_t first = blockIdx.x * static_cast<int64_t>(blockDim.x) * V, channel = first + threadIdx.x * V;
    const int64_t line = slabs.in_columns * slabs.channels;
    const int32_t channels = flat_channels(slabs, first, V);
    C sum[V];
#pragma unroll
    for (int k = 0; k < V; k++) sum[k] = C(0);
    for (uint32_t i = blockIdx.y; i < static_cast<uint32_t>(slabs.count); i += gridDim.y) {
        const Slab slab = slab_of(slabs, i);
        const int32_t mine = channel < slabs.channels ? slab.begin + static_cast<int32_t>(threadIdx.y) : slab.end;
        const int64_t start = slab.image * slabs.pixels * slabs.channels + channel; /* of the index, and of a channels-last dy and y */
        G gift[kFlatUnroll];
        Pack<T, W> gradient[kFlatUnroll], result[kFlatUnroll];
#pragma unroll
        for (int u = 0; u < kFlatUnroll; u++) {
            const int32_t pixel = mine + u * static_cast<int32_t>(blockDim.y);
            if (pixel < slab.end) gift[u].place = load_pack<uint8_t, V>(index + start + pixel * slabs.channels, true);
        }
        if (kRows) {
            int32_t pixels[kFlatUnroll], of[kFlatUnroll];
            const auto forget = [&] {
#pragma unroll
                for (int u = 0; u < kFlatUnroll; u++) pixels[u] = -1;
            };
            forget();
            for_rows<W>(
                slabs, slab, first, channels,
                [&](int u, int64_t from, int32_t pixel, int32_t at) {
                    gradient[u] = load_pack<T, W>(dy + from, true);
                    result[u] = load_pack<T, W>(y + from, true);
                    pixels[u] = pixel;
                    of[u] = at;
                },
                [&](int32_t) {
#pragma unroll
                    for (int u = 0; u < kFlatUnroll; u++) {
                        if (pixels[u] < 0) continue;
                        const Pack<T, W> dz = relu_masked(gradient[u], result[u]);
#pragma unroll
                        for (int k = 0; k < W; k++) *flat_at<T, W>(tile, pixels[u] + k, of[u]) = dz.v[k];
                    }
                    forget();
                });
            __syncthreads();
        } else {
#pragma unroll
            for (int u = 0; u < kFlatUnroll; u++) {
                const int32_t pixel = mine + u * static_cast<int32_t>(blockDim.y);
                if (pixel >= slab.end) break;
                gradient[u] = load_pack<T, W>(dy + start + pixel * slabs.channels, true);
                result[u] = load_pack<T, W>(y + start + pixel * slabs.channels, true);
            }
        }
#pragma unroll
        for (int u = 0; u < kFlatUnroll; u++) {
            const int32_t pixel = mine + u * static_cast<int32_t>(blockDim.y);
            if (pixel >= slab.end) break;
            if constexpr (kRows)
                gift[u].gradient = load_pack<T, V>(flat_at<T, W>(tile, pixel - slab.begin, static_cast<int32_t>(threadIdx.x) * V), true);
            else
                gift[u].gradient = relu_masked(gradient[u], result[u]);
#pragma unroll
            for (int k = 0; k < V; k++) sum[k] += convert<C>(gift[u].gradient.v[k]);
            const int32_t row = static_cast<int32_t>(slabs.by_columns.quotient(static_cast<uint32_t>(pixel))),
                          column = pixel - row * slabs.out_columns;
            T *to = dx + (slab.image * slabs.in_rows + 2 * row) * line + 2 * column * slabs.channels + channel;
            /* The last windows have what no window covers: a row and a column of an odd size. */
            const bool below = row + 1 == slabs.out_rows && (slabs.in_rows & 1),
                       right = column + 1 == slabs.out_columns && (slabs.in_columns & 1);
            Pack<T, V> value;
#pragma unroll
            for (int p = 0; p < 4; p++) {
#pragma unroll
                for (int k = 0; k < G::kUnits; k++) G::set(value, k, gift[u].at(k, p));
                store_pack(to + p / 2 * line + p % 2 * slabs.channels, value, true);
            }
            if (!below && !right) continue;
#pragma unroll
            for (int k = 0; k < V; k++) value.v[k] = convert<T>(C(0));
            for (int p = 0; p < 9; p++)
                if ((p / 3 == 2 && below && (p % 3 < 2 || right)) || (p % 3 == 2 && right && p / 3 < 2))
                    store_pack(to + p / 3 * line + p % 3 * slabs.channels, value, true);
        }
        if (kRows) __syncthreads();
    }
    if (!db) return;
    C *shared = reinterpret_cast<C *>(memory);
    column_sum(sum, shared);
    if (partial) {
        if (threadIdx.y == 0 && channel < columns.channels) {
#pragma unroll
            for (int k = 0; k < V; k++) partial[blockIdx.y * columns.channels + channel + k] = sum[k];
        }
        if (!last_of_tile(counters, columns.parts)) return;
        if (channel < columns.channels) column_parts(partial, columns, channel, sum);
        column_sum(sum, shared);
    }
    if (threadIdx.y != 0 || channel >= columns.channels) return;
#pragma unroll
    for (int k = 0; k < V; k++) store_as(db, dtype, channel + k, sum[k]);
}

#endif

} // namespace gt

#endif

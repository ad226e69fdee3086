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

constexpr int kFlatBlock = 512;                       /* threads: packs of channels, by pixels */
constexpr int kFlatPacks = 8;                         /* at most, and a power of 2 */
constexpr int kFlatUnroll = 3;                        /* times that many pixels make a slab, at most */
constexpr int kFlatBlocks = 2;                        /* that a multiprocessor is to have at once */
constexpr int kFlatShared = kFlatBlock * kFlatUnroll; /* packs of 16 bytes */
constexpr int kFlatBatch = 2;                         /* packs of the gradient and of the result whose loads are in flight together */

struct Slabs {
    int64_t channels;
    int32_t in_rows, in_columns, out_rows, out_columns;
    int32_t pixels; /* of a pooled image */
    int32_t size;   /* of them in a slab */
    int32_t count;
    FastDivide by_columns, by_slabs, by_packs; /* slabs of an image; packs of pixels in a slab */
};

constexpr int64_t kFewPixels = 32; /* of a slab, which is not cut for more blocks then */

/* `larger`, `smaller`: the shapes of the images. v channels a pack, w pixels. The launch in `columns`: a block a slab. */
inline Slabs slabs_make(int64_t processors, const int64_t *larger, const int64_t *smaller, int v, int w, Columns *columns) {
    Slabs s;
    const int64_t images = larger[0], pixels = smaller[2] * smaller[3], packs = larger[1] / v;
    columns->block_x = 1;
    while (columns->block_x < kFlatPacks && columns->block_x < packs) columns->block_x *= 2;
    columns->block_y = kFlatBlock / columns->block_x;
    columns->tiles = static_cast<uint32_t>(ceil_div(packs, columns->block_x));
    int64_t slabs = ceil_div(pixels, columns->block_y * kFlatUnroll);
    const int64_t wanted = ceil_div(kFlatBlocks * processors, columns->tiles);
    while (images * slabs < wanted && pixels > 2 * kFewPixels * slabs) slabs *= 2;
    const int64_t size = ceil_div(ceil_div(pixels, slabs), w) * w;
    slabs = ceil_div(pixels, size);
    s.channels = columns->channels = larger[1];
    s.in_rows = static_cast<int32_t>(larger[2]);
    s.in_columns = static_cast<int32_t>(larger[3]);
    s.out_rows = static_cast<int32_t>(smaller[2]);
    s.out_columns = static_cast<int32_t>(smaller[3]);
    s.pixels = static_cast<int32_t>(pixels);
    s.size = static_cast<int32_t>(size);
    s.count = static_cast<int32_t>(images * slabs);
    s.by_columns.set(s.out_columns);
    s.by_slabs.set(slabs);
    s.by_packs.set(size / w);
    columns->rows = s.count;
    columns->part_rows = 1;
    columns->parts = static_cast<uint32_t>(min64(s.count, kMaxGridY));
    return s;
}

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
 * W pixels are in the same banks; within such a pack pixels are blockDim.x packs of channels apart. */
template <typename T, int W>
__device__ __forceinline__ T *flat_at(T *tile, int32_t pixel, int32_t channel) {
    constexpr int V = kVector<T>;
    const int32_t packs = static_cast<int32_t>(blockDim.x), pack = (channel / V) ^ (pixel / W & (packs - 1));
    return tile + (pixel * packs + pack) * V + channel % V;
}

/* A thread's packs of W pixels of a row-major image. */
struct FlatItem {
    int32_t pixel, channel; /* of the slab, of the block */
    bool valid;
};
template <int W>
__device__ __forceinline__ FlatItem flat_item(const Slabs &slabs, const Slab &slab, int32_t i, int32_t channels) {
    FlatItem item;
    const int32_t packs = static_cast<int32_t>(slabs.by_packs.divisor);
    item.channel = static_cast<int32_t>(slabs.by_packs.quotient(static_cast<uint32_t>(i)));
    item.pixel = (i - item.channel * packs) * W;
    item.valid = item.channel < channels && slab.begin + item.pixel < slab.end;
    return item;
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
__global__ void __launch_bounds__(kFlatBlock, kFlatBlocks) k_pool_flat(const T *x, T *y, uint8_t *index, Slabs slabs) {
    constexpr int V = kVector<T>;
#ifdef GT__EMULATED
    unsigned char *memory = gt__emulated_shared;
#else
    __shared__ uint4 memory[kFlatShared];
#endif
    T *tile = reinterpret_cast<T *>(memory);
    const int64_t first = blockIdx.x * static_cast<int64_t>(blockDim.x) * V, channel = first + threadIdx.x * V;
    const int64_t line = slabs.in_columns * slabs.channels;
    const int32_t channels = flat_channels(slabs, first, V),
                  step = static_cast<int32_t>(blockDim.x) * V; /* from pixel to pixel in shared memory */
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
        const int32_t count = channels * static_cast<int32_t>(slabs.by_packs.divisor);
        T *rows = y + (slab.image * slabs.channels + first) * slabs.pixels + slab.begin;
        for (int32_t at = static_cast<int32_t>(threadIdx.y * blockDim.x + threadIdx.x); at < count; at += kFlatBlock) {
            const FlatItem item = flat_item<W>(slabs, slab, at, channels);
            if (!item.valid) continue;
            const T *from = flat_at<T, W>(tile, item.pixel, item.channel);
            Pack<T, W> pack;
#pragma unroll
            for (int k = 0; k < W; k++) pack.v[k] = from[k * step];
            store_pack(rows + static_cast<int64_t>(item.channel) * slabs.pixels + item.pixel, pack, true);
        }
        __syncthreads();
    }
}

/* dx, and the sums of the masked gradient to `db` (NULL: not wanted) as in k_bias.cu. kRows: dy and y are row-major, in packs of W pixels; else channels-last,
 * and W is a pack of channels. */
template <typename T, bool kRows, int W>
__global__ void __launch_bounds__(kFlatBlock, kFlatBlocks)
    k_pool_flat_backward(const T *dy, const uint8_t *index, const T *y, T *dx, void *db, gt_dtype dtype, compute_t<T> *partial,
                         uint32_t *counters, Slabs slabs, Columns columns) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    using G = Gift<true, T, V>;
    static_assert(kFlatShared * sizeof(uint4) >= kFlatBlock * V * sizeof(C), "the block's sums stand where the slab was");
#ifdef GT__EMULATED
    unsigned char *memory = gt__emulated_shared;
#else
    __shared__ uint4 memory[kFlatShared];
#endif
    T *tile = reinterpret_cast<T *>(memory);
    const int64_t first = blockIdx.x * static_cast<int64_t>(blockDim.x) * V, channel = first + threadIdx.x * V;
    const int64_t line = slabs.in_columns * slabs.channels;
    const int32_t channels = flat_channels(slabs, first, V),
                  step = static_cast<int32_t>(blockDim.x) * V; /* from pixel to pixel in shared memory */
    C sum[V];
#pragma unroll
    for (int k = 0; k < V; k++) sum[k] = C(0);
    const auto spend = [&](const Slab &slab, int32_t pixel, const G &gift) {
#pragma unroll
        for (int k = 0; k < V; k++) sum[k] += convert<C>(gift.gradient.v[k]);
        const int32_t row = static_cast<int32_t>(slabs.by_columns.quotient(static_cast<uint32_t>(pixel))),
                      column = pixel - row * slabs.out_columns;
        T *to = dx + (slab.image * slabs.in_rows + 2 * row) * line + 2 * column * slabs.channels + channel;
        Pack<T, V> value;
#pragma unroll
        for (int p = 0; p < 4; p++) {
#pragma unroll
            for (int k = 0; k < G::kUnits; k++) G::set(value, k, gift.at(k, p));
            store_pack(to + p / 2 * line + p % 2 * slabs.channels, value, true);
        }
        /* The last windows have what no window covers: a row and a column of an odd size. */
        const bool below = row + 1 == slabs.out_rows && (slabs.in_rows & 1),
                   right = column + 1 == slabs.out_columns && (slabs.in_columns & 1);
        if (!below && !right) return;
#pragma unroll
        for (int k = 0; k < V; k++) value.v[k] = convert<T>(C(0));
        for (int p = 0; p < 9; p++)
            if ((p / 3 == 2 && below && (p % 3 < 2 || right)) || (p % 3 == 2 && right && p / 3 < 2))
                store_pack(to + p / 3 * line + p % 3 * slabs.channels, value, true);
    };
    for (uint32_t i = blockIdx.y; i < static_cast<uint32_t>(slabs.count); i += gridDim.y) {
        const Slab slab = slab_of(slabs, i);
        const int32_t lanes = static_cast<int32_t>(blockDim.y),
                      mine = channel < slabs.channels ? slab.begin + static_cast<int32_t>(threadIdx.y) : slab.end;
        const int64_t start = slab.image * slabs.pixels * slabs.channels + channel; /* of the index, and of a channels-last dy and y */
        if constexpr (kRows) {
            Pack<uint8_t, V> place; /* of the next pixel */
            if (mine < slab.end) place = load_pack<uint8_t, V>(index + start + mine * slabs.channels, true);
            const int32_t count = channels * static_cast<int32_t>(slabs.by_packs.divisor);
            const int64_t rows = (slab.image * slabs.channels + first) * slabs.pixels + slab.begin;
            for (int32_t at = static_cast<int32_t>(threadIdx.y * blockDim.x + threadIdx.x); at < count; at += kFlatBatch * kFlatBlock) {
                Pack<T, W> gradient[kFlatBatch], result[kFlatBatch];
#pragma unroll
                for (int u = 0; u < kFlatBatch; u++) {
                    const FlatItem item = flat_item<W>(slabs, slab, at + u * kFlatBlock, channels);
                    if (!item.valid) continue;
                    const int64_t from = rows + static_cast<int64_t>(item.channel) * slabs.pixels + item.pixel;
                    gradient[u] = load_pack<T, W>(dy + from, true);
                    result[u] = load_pack<T, W>(y + from, true);
                }
#pragma unroll
                for (int u = 0; u < kFlatBatch; u++) {
                    const FlatItem item = flat_item<W>(slabs, slab, at + u * kFlatBlock, channels);
                    if (!item.valid) continue;
                    const Pack<T, W> dz = relu_masked(gradient[u], result[u]);
                    T *to = flat_at<T, W>(tile, item.pixel, item.channel);
#pragma unroll
                    for (int k = 0; k < W; k++) to[k * step] = dz.v[k];
                }
            }
            __syncthreads();
#pragma unroll 1
            for (int32_t pixel = mine; pixel < slab.end; pixel += lanes) {
                G gift;
                gift.place = place;
                if (pixel + lanes < slab.end) place = load_pack<uint8_t, V>(index + start + (pixel + lanes) * slabs.channels, true);
                gift.gradient = load_pack<T, V>(flat_at<T, W>(tile, pixel - slab.begin, static_cast<int32_t>(threadIdx.x) * V), true);
                spend(slab, pixel, gift);
            }
            __syncthreads();
        } else {
            for (int32_t pixel = mine; pixel < slab.end; pixel += kFlatBatch * lanes) {
                G gift[kFlatBatch];
                Pack<T, V> result[kFlatBatch];
#pragma unroll
                for (int u = 0; u < kFlatBatch; u++) {
                    if (pixel + u * lanes >= slab.end) break;
                    const int64_t from = start + (pixel + u * lanes) * slabs.channels;
                    gift[u].gradient = load_pack<T, V>(dy + from, true);
                    result[u] = load_pack<T, V>(y + from, true);
                    gift[u].place = load_pack<uint8_t, V>(index + from, true);
                }
#pragma unroll
                for (int u = 0; u < kFlatBatch; u++) {
                    if (pixel + u * lanes >= slab.end) break;
                    gift[u].gradient = relu_masked(gift[u].gradient, result[u]);
                    spend(slab, pixel + u * lanes, gift[u]);
                }
            }
        }
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

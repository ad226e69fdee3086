/* Max pooling with windows of 2 x 2 that do not overlap, where the pooled image is row-major: what a flatten reads. And its gradient with that of the relu
 * before it, of either layout.
 *
 * A block has a slab: some pixels of one pooled image, and the channels that up to 8 packs of 16 bytes hold. The larger image is moved by packs of channels, a
 * row-major one by packs of pixels, and what lies between them is turned in shared memory. */
#ifndef GT_CUDA_POOL_FLAT_CUH
#define GT_CUDA_POOL_FLAT_CUH

#include "cuda/columns.cuh"
#include "cuda/pool_units.cuh"

#include <type_traits>

namespace gt {

constexpr int kFlatPacks = 8; /* of channels a block has, at most, and a power of 2 */

/* Threads of a block: packs of channels, by pixels; times that many pixels make a slab, at most; blocks that a multiprocessor is to have at once. */
struct FlatBlock {
    int threads, unroll, blocks;
};
constexpr FlatBlock kFlat = {512, 3, 2};
/* Small blocks, each of which asks for all it reads at first: while some wait, others turn, and others write. */
constexpr FlatBlock kFlatBackward = {384, 1, 4};
/* What registers must allow: compute capability 7.5 has 1024 threads a multiprocessor. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kFlatBackwardResident = 1024 / kFlatBackward.threads;
#else
constexpr int kFlatBackwardResident = kFlatBackward.blocks;
#endif
/* Packs of 16 bytes that a slab has, at most. */
constexpr int kFlatShared = kFlat.threads * kFlat.unroll, kFlatBackwardShared = kFlatBackward.threads * kFlatBackward.unroll;

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
inline Slabs slabs_make(const FlatBlock &block, int64_t processors, const int64_t *larger, const int64_t *smaller, int v, int w,
                        Columns *columns) {
    Slabs s;
    const int64_t images = larger[0], pixels = smaller[2] * smaller[3], packs = larger[1] / v;
    columns->block_x = 1;
    while (columns->block_x < kFlatPacks && columns->block_x < packs) columns->block_x *= 2;
    columns->block_y = static_cast<uint32_t>(block.threads) / columns->block_x;
    columns->tiles = static_cast<uint32_t>(ceil_div(packs, columns->block_x));
    int64_t slabs = ceil_div(pixels, columns->block_y * block.unroll);
    const int64_t wanted = ceil_div(block.blocks * processors, columns->tiles);
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

/* How the blocks' sums are joined: group by group, then those of the groups. The last block of a group to come joins it, and the last of these blocks the groups'. */
struct FlatJoin {
    FastDivide by_group; /* blocks of a group */
    uint32_t parts, groups;
    uint32_t rows() const { return parts + (groups > 1 ? groups : 0); } /* partial[row, channel] */
};
constexpr int64_t kFlatParts = 32;   /* a multiprocessor, at most */
constexpr int64_t kFlatAtOnce = 256; /* that many are joined as one group */

/* Of what slabs_make made, whose columns->parts it changes; `processors` 0: a single part. */
inline FlatJoin flat_join_make(int64_t processors, int64_t counters, Columns *columns) {
    FlatJoin join;
    const int64_t tiles = columns->tiles, most = min64(max64(kFlatParts * processors / tiles, 1), columns->parts);
    int64_t parts = ceil_div(columns->rows, ceil_div(columns->rows, most)), group = parts;
    if (parts > kFlatAtOnce) {
        group = 1;
        while (group * group < parts) group++;
        if (tiles * (ceil_div(parts, group) + 1) > counters) group = parts;
    }
    if (2 * tiles > counters) parts = group = 1;
    join.by_group.set(group);
    join.parts = columns->parts = static_cast<uint32_t>(parts);
    join.groups = static_cast<uint32_t>(ceil_div(parts, group));
    return join;
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
    constexpr uint32_t V = kVector<T>;
    const uint32_t packs = blockDim.x, p = static_cast<uint32_t>(pixel), c = static_cast<uint32_t>(channel);
    return tile + (p * packs + (c / V ^ (p / W & (packs - 1)))) * V + c % V;
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
    Pack<T, N> dz;
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        using Words = Pack<uint32_t, N / 2>;
        const Words gradient = *reinterpret_cast<const Words *>(&dy), result = *reinterpret_cast<const Words *>(&y);
        Words words;
#pragma unroll
        for (int k = 0; k < N / 2; k++) {
            const auto pair = PairPart<T>::pair(result.v[k]);
            const uint32_t number = not_nan(pair), wanted = not_less_equal(pair, PairPart<T>::pair(0));
            words.v[k] = ((gradient.v[k] & number) | (result.v[k] & ~number)) & wanted;
        }
        dz = *reinterpret_cast<const Pack<T, N> *>(&words);
    } else {
        using C = compute_t<T>;
#pragma unroll
        for (int k = 0; k < N; k++) {
            const C result = convert<C>(y.v[k]);
            dz.v[k] = result > C(0) ? dy.v[k] : (result != result ? y.v[k] : convert<T>(C(0)));
        }
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
__global__ void __launch_bounds__(kFlat.threads, kFlat.blocks) k_pool_flat(const T *x, T *y, uint8_t *index, Slabs slabs) {
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
        for (int32_t at = static_cast<int32_t>(threadIdx.y * blockDim.x + threadIdx.x); at < count; at += kFlat.threads) {
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

/* The value, of which the compiler knows nothing: what depends on it is found where it is used, and not kept in registers around a loop. */
__device__ __forceinline__ int32_t anew(uint32_t value) {
#ifndef GT__EMULATED
    asm volatile("" : "+r"(value));
#endif
    return static_cast<int32_t>(value);
}

/* `sums` has kRows rows for each `width` threads, of `width` channels, of which there are `channels`: added up to `to`, or to the first row where that is NULL. True in
 * the first thread; other blocks see all of `to` before what it does then. */
template <int kRows, int V, typename C>
__device__ __forceinline__ bool flat_sums(C *sums, int32_t width, int32_t channels, C *to) {
    const int32_t thread = anew(threadIdx.y * blockDim.x + threadIdx.x),
                  parts = static_cast<int32_t>(blockDim.y / V); /* `width` is blockDim.x * V */
    __syncthreads();
    {
        const int32_t part = static_cast<int32_t>(threadIdx.y / V);
        C *mine = sums + (part * (kRows - 1) * width + thread), sum = mine[0];
#pragma unroll
        for (int r = 1; r < kRows; r++) sum += mine[r * width];
        mine[0] = sum;
    }
    __syncthreads();
    if (thread >= 32) return false;
#pragma unroll 1
    for (int32_t c = thread; c < channels; c += 32) {
        C sum = C(0);
#pragma unroll 4
        for (int32_t r = 0; r < parts; r++) sum += sums[r * kRows * width + c];
        *(to ? to + c : sums + c) = sum;
    }
    if (to) __threadfence();
    __syncwarp();
    return thread == 0;
}

/* 16 bytes' sums of every `step`-th row that other blocks have written, from `row` on. */
template <int kRead, typename C>
__device__ __forceinline__ void flat_rows(const C *from, int32_t all, uint32_t row, uint32_t end, int32_t step, int32_t channel, C *to) {
    constexpr int N = kVector<C>;
    C total[N];
#pragma unroll
    for (int k = 0; k < N; k++) total[k] = C(0);
    from += channel;
#pragma unroll 1
    for (; row < end; row += static_cast<uint32_t>(kRead * step)) {
        Pack<C, N> values[kRead];
#pragma unroll
        for (int u = 0; u < kRead; u++)
            values[u] = load_others<C, N>(from + min(row + static_cast<uint32_t>(u * step), end - 1) * static_cast<uint32_t>(all));
#pragma unroll
        for (int u = 0; u < kRead; u++) {
            if (row + static_cast<uint32_t>(u * step) >= end) continue;
#pragma unroll
            for (int k = 0; k < N; k++) total[k] += values[u].v[k];
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) to[k] = total[k];
}

/* Places in a window, as words: bytes that pass a branch are taken apart before it. */
template <int V>
using Places = typename std::conditional<V % 4 == 0, Pack<uint32_t, (V + 3) / 4>, Pack<uint16_t, V / 2>>::type;

/* The pixel of an image where the window of a pooled one begins. */
__device__ __forceinline__ int32_t flat_window(const Slabs &slabs, int32_t pixel) {
    const int32_t row = static_cast<int32_t>(slabs.by_columns.quotient(static_cast<uint32_t>(pixel)));
    return 2 * (row * (slabs.in_columns - slabs.out_columns) + pixel);
}

/* Zeros where no window is, beside the windows of every `lanes`-th pixel from `pixel` on. */
template <int V, typename T>
__device__ __forceinline__ void flat_rims(T *dx, const Slabs &slabs, int32_t pixel, int32_t end, int32_t lanes) {
    const int32_t all = static_cast<int32_t>(slabs.channels);
    Pack<T, V> zero;
#pragma unroll
    for (int k = 0; k < V; k++) zero.v[k] = convert<T>(compute_t<T>(0));
#pragma unroll 1
    for (; pixel < end; pixel += lanes) {
        const int32_t row = static_cast<int32_t>(slabs.by_columns.quotient(static_cast<uint32_t>(pixel))),
                      column = pixel - row * slabs.out_columns;
        const bool below = row + 1 == slabs.out_rows && (slabs.in_rows & 1),
                   right = column + 1 == slabs.out_columns && (slabs.in_columns & 1);
        if (!below && !right) continue;
        T *to = dx + flat_window(slabs, pixel) * all;
#pragma unroll 1
        for (int p = 0; p < 9; p++)
            if ((p / 3 == 2 && below && (p % 3 < 2 || right)) || (p % 3 == 2 && right && p / 3 < 2))
                store_pack(to + (p / 3 * slabs.in_columns + p % 3) * all, zero, true);
    }
}

/* dx, and the sums of the masked gradient to `db` (NULL: not wanted) as in k_bias.cu, by way of partial[row, channel] (NULL: there is one part). kRows: dy and y
 * are row-major, in packs of W pixels; else channels-last, and W is a pack of channels. No block is without a slab. */
template <typename T, bool kRows, int W>
__global__ void __launch_bounds__(kFlatBackward.threads, kFlatBackwardResident)
    k_pool_flat_backward(const T *dy, const uint8_t *index, const T *y, T *dx, void *db, gt_dtype dtype, compute_t<T> *partial,
                         uint32_t *counters, Slabs slabs, FlatJoin join) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>, kThreads = kFlatBackward.threads, kBatch = kFlatBackward.unroll, kWide = kVector<C>;
    constexpr int kLoads = W < V ? (V < 4 ? V : 4) : kBatch; /* of dy, in flight together */
    constexpr int kSums = kThreads * V * static_cast<int>(sizeof(C)) / 16;
    using G = Gift<true, T, V>;
#ifdef GT__EMULATED
    unsigned char *memory = gt__emulated_shared;
#else
    __shared__ uint4 memory[kSums + (kRows ? kFlatBackwardShared : 0)];
#endif
    __shared__ bool last;
    C *sums = reinterpret_cast<C *>(memory);
    T *tile = reinterpret_cast<T *>(memory + kSums * (sizeof(uint4) / sizeof *memory));
    const int32_t width = static_cast<int32_t>(blockDim.x) * V, lanes = static_cast<int32_t>(blockDim.y); /* channels, by pixels */
    const int32_t all = static_cast<int32_t>(slabs.channels), first = static_cast<int32_t>(blockIdx.x) * width,
                  channels = min(width, all - first);
    const int32_t below = slabs.in_columns * all; /* from row to row of dx */
    uint32_t ticket = 0;                          /* of the first thread */

    for (uint32_t i = blockIdx.y;; i += gridDim.y) {
        const Slab slab = slab_of(slabs, i);
        const int32_t x = anew(threadIdx.x), lane = anew(threadIdx.y), thread = lane * static_cast<int32_t>(blockDim.x) + x;
        const int64_t image = slab.image * (slabs.pixels * all);
        const int32_t size = slab.end - slab.begin, mine = x * V < channels ? lane : size; /* the thread's first pixel of the slab */
        const T *gradients = dy + image, *results = y + image;
        Places<V> place[kBatch];
        Pack<T, V> masked[kBatch];
        /* Where there is nothing for a thread it loads what another one does, and writes the same to the tile: loads behind branches are waited for there. */
        const int32_t start = slab.begin * all + first + (mine < size ? x * V : 0);
#pragma unroll
        for (int u = 0; u < kBatch; u++)
            place[u] = *reinterpret_cast<const Places<V> *>(index + image + start + min(mine + u * lanes, size - 1) * all);
        if constexpr (kRows) {
            const int32_t count = channels * static_cast<int32_t>(slabs.by_packs.divisor), rows = first * slabs.pixels + slab.begin;
            int32_t at = thread;
#pragma unroll 1
            do {
                FlatItem item[kLoads];
                Pack<T, W> gradient[kLoads], result[kLoads];
#pragma unroll
                for (int u = 0; u < kLoads; u++) {
                    item[u] = flat_item<W>(slabs, slab, at + u * kThreads, channels);
                    if (!item[u].valid) item[u].channel = item[u].pixel = 0;
                    const int32_t from = rows + item[u].channel * slabs.pixels + item[u].pixel;
                    gradient[u] = load_pack<T, W>(gradients + from, true);
                    result[u] = load_pack<T, W>(results + from, true);
                }
#pragma unroll
                for (int u = 0; u < kLoads; u++) {
                    const Pack<T, W> dz = relu_masked(gradient[u], result[u]);
                    T *to = flat_at<T, W>(tile, item[u].pixel, item[u].channel);
#pragma unroll
                    for (int k = 0; k < W; k++) to[k * width] = dz.v[k];
                }
                at += kLoads * kThreads;
            } while (W < V && at < count); /* packs of pixels: once is all */
            __syncthreads();
#pragma unroll
            for (int u = 0; u < kBatch; u++) masked[u] = load_pack<T, V>(flat_at<T, W>(tile, min(mine + u * lanes, size - 1), x * V), true);
        } else {
            Pack<T, V> result[kBatch];
#pragma unroll
            for (int u = 0; u < kBatch; u++) {
                const int32_t from = start + min(mine + u * lanes, size - 1) * all;
                masked[u] = load_pack<T, V>(gradients + from, true);
                result[u] = load_pack<T, V>(results + from, true);
            }
#pragma unroll
            for (int u = 0; u < kBatch; u++) masked[u] = relu_masked(masked[u], result[u]);
        }
        const bool more = i + gridDim.y < static_cast<uint32_t>(slabs.count);
        if (db) {
            using Sums = Pack<C, kWide>;
            Sums *own = reinterpret_cast<Sums *>(sums + thread * V);
#pragma unroll
            for (int k = 0; k < V; k += kWide) {
                Sums sum;
#pragma unroll
                for (int j = 0; j < kWide; j++) sum.v[j] = C(0);
#pragma unroll
                for (int u = 0; u < kBatch; u++)
                    if (mine + u * lanes < size) {
#pragma unroll
                        for (int j = 0; j < kWide; j++) sum.v[j] += convert<C>(masked[u].v[k + j]);
                    }
                if (i != blockIdx.y) {
                    const Sums before = own[k / kWide];
#pragma unroll
                    for (int j = 0; j < kWide; j++) sum.v[j] += before.v[j];
                }
                own[k / kWide] = sum;
            }
            if (!more) { /* ahead of the last stores, for which the first warp's fence would wait */
                C *to = partial ? partial + blockIdx.y * static_cast<uint32_t>(all) + first : nullptr;
                if (flat_sums<V, V>(sums, width, channels, to) && partial) {
                    const uint32_t group = join.by_group.quotient(blockIdx.y), begin = group * join.by_group.divisor;
                    ticket =
                        atomicInc(counters + blockIdx.x * (join.groups + 1) + group, min(join.by_group.divisor, join.parts - begin) - 1);
                }
            }
        }
        T *larger = dx + slab.image * (slabs.in_rows * below) + first + x * V;
#pragma unroll
        for (int u = 0; u < kBatch; u++) {
            if (mine + u * lanes >= size) continue;
            T *to = larger + flat_window(slabs, slab.begin + mine + u * lanes) * all;
            G gift;
            gift.gradient = masked[u];
            gift.place = *reinterpret_cast<const Pack<uint8_t, V> *>(&place[u]);
            Pack<T, V> value;
#pragma unroll
            for (int p = 0; p < 4; p++) {
#pragma unroll
                for (int k = 0; k < G::kUnits; k++) G::set(value, k, gift.at(k, p));
                store_pack(to + (p / 2 * below + p % 2 * all), value, true);
            }
        }
        /* The last windows have what no window covers: a row and a column of an odd size. */
        if ((slabs.in_rows | slabs.in_columns) & 1) flat_rims<V>(larger, slabs, slab.begin + mine, slab.end, lanes);
        if (!more) break;
        if constexpr (kRows) __syncthreads();
    }
    if (!db) return;

    /* Rows [begin, end) of partial: the group's, then those of the groups. */
    const int32_t thread = anew(threadIdx.y * blockDim.x + threadIdx.x);
    const uint32_t group = join.by_group.quotient(blockIdx.y);
    uint32_t begin = group * join.by_group.divisor, end = min(begin + join.by_group.divisor, join.parts);
    bool top = join.groups == 1;
#pragma unroll 1
    while (partial) {
        if (thread == 0) last = ticket == end - begin - 1;
        __syncthreads();
        if (!last) return;
        __threadfence();
        constexpr uint32_t kPart = V / kWide; /* lines of threads for a row */
        const int32_t rows = static_cast<int32_t>(blockDim.y / kPart), row = static_cast<int32_t>(threadIdx.y / kPart),
                      at = thread * kWide - row * width;
        flat_rows<4>(partial + first, all, begin + row, end, rows, at < channels ? at : 0, sums + row * width + at);
        C *to = top ? nullptr : partial + (join.parts + group) * static_cast<uint32_t>(all) + first;
        if (flat_sums<kWide, V>(sums, width, channels, to) && !top)
            ticket = atomicInc(counters + blockIdx.x * (join.groups + 1) + join.groups, join.groups - 1);
        if (top) break;
        top = true;
        begin = join.parts;
        end = join.parts + join.groups;
    }
#pragma unroll 1
    for (int32_t c = thread; c < channels && thread < 32; c += 32) store_as(db, dtype, first + c, sums[c]);
}

#endif

} // namespace gt

#endif

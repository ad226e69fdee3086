/* What the forward and the backward of batch norm share. Both take two passes over [rows, channels] with channels innermost: one that reduces every channel,
 * and an elementwise one. A thread keeps V neighbouring channels and steps over rows.
 *
 * The reducing pass goes through the matrix from front to back, all blocks side by side, and the elementwise one from back to front: it finds the end of
 * the matrix, or all of a small one, in the L2 cache. Of the blocks of a tile of channels the one that is done last joins what all have found, in the
 * order of the parts, so that results do not depend on which one that is. */
#ifndef GT_CUDA_NORM_CUH
#define GT_CUDA_NORM_CUH

#include "cuda/columns.cuh"
#include "cuda/math.cuh"

#include <initializer_list>
#include <type_traits>

namespace gt {

constexpr int kReduceBlock = 512; /* threads */
constexpr int kApplyBlock = 256;
/* Channels of a thread. Halves are loaded 8 bytes at a time and not 16: a thread's channels take half the registers, so that more threads are resident. */
template <typename T>
constexpr int kNormVector = sizeof(T) == 8 ? 2 : 4;
template <typename T>
constexpr bool kNarrow = sizeof(T) == 2;
constexpr int kChunkRows = 4; /* rows of a thread in a chunk of the reducing pass */

/* relu stands behind the normalisation, or behind the sum of that and a residual. */
enum class NormMode { Plain, Relu, AddRelu };

/* How the reducing pass is cut: blockIdx.x is a tile of channels; part blockIdx.y takes chunks blockIdx.y, blockIdx.y + parts, … */
struct Reduce {
    int64_t rows, channels;
    int64_t part_rows;                   /* of a part, but the first `longer` have a chunk more, and the last chunk lacks `missing` */
    uint32_t longer, last_part, missing; /* last_part: has the last chunk */
    int32_t chunk_rows;
    uint32_t tiles, parts, block_x, block_y;
};

/* How the elementwise pass is cut: blockIdx.y counts parts of neighbouring rows from the end. */
struct Apply {
    int64_t rows, channels, part_rows;
    uint32_t tiles, parts, block_x, block_y;
};

template <typename Cut>
inline void norm_tiles(Cut *cut, int64_t rows, int64_t channels, int v, int block) {
    const int64_t threads = ceil_div(channels, v);
    cut->rows = rows;
    cut->channels = channels;
    cut->block_x = 1;
    while (cut->block_x < 32 && cut->block_x < threads) cut->block_x *= 2;
    cut->block_y = static_cast<uint32_t>(block) / cut->block_x;
    cut->tiles = static_cast<uint32_t>(max64(ceil_div(threads, cut->block_x), 1));
}

/* As many parts as run at once, `resident` blocks a multiprocessor, but at least two chunks each. */
inline Reduce reduce_make(gt__device *device, int64_t rows, int64_t channels, int v, int resident) {
    Reduce cut;
    norm_tiles(&cut, rows, channels, v, kReduceBlock);
    cut.chunk_rows = static_cast<int32_t>(kChunkRows * cut.block_y);
    const int64_t chunks = ceil_div(rows, cut.chunk_rows);
    const int64_t wanted = resident * static_cast<int64_t>(gt__cuda_multiprocessors(device)) / cut.tiles;
    int64_t parts = max64(min64(wanted, chunks / 2), 1);
    if (cut.tiles > GT__CUDA_COUNTERS) parts = 1;
    parts = max64(ceil_div(chunks, max64(ceil_div(chunks, parts), 1)), 1);
    cut.parts = static_cast<uint32_t>(parts);
    cut.part_rows = chunks / parts * cut.chunk_rows;
    cut.longer = static_cast<uint32_t>(chunks % parts);
    cut.last_part = static_cast<uint32_t>(chunks > 0 ? (chunks - 1) % parts : 0);
    cut.missing = static_cast<uint32_t>(chunks * cut.chunk_rows - rows);
    return cut;
}

/* Large inputs get several blocks after one another on each multiprocessor, which evens out how fast these are. */
inline Apply apply_make(gt__device *device, int64_t rows, int64_t channels, int v, int resident, int unroll) {
    constexpr int64_t kWaves = 8, kBatches = 4;
    Apply cut;
    norm_tiles(&cut, rows, channels, v, kApplyBlock);
    const int64_t wave = ceil_div(static_cast<int64_t>(resident) * gt__cuda_multiprocessors(device), cut.tiles),
                  batch = static_cast<int64_t>(unroll) * cut.block_y;
    int64_t parts = min64(wave * kWaves, rows / (kBatches * batch));
    parts = max64(parts, min64(wave, rows / batch));
    parts = max64(min64(parts, kMaxGridY), 1);
    cut.part_rows = max64(ceil_div(rows, parts), 1);
    cut.parts = static_cast<uint32_t>(max64(ceil_div(rows, cut.part_rows), 1));
    return cut;
}

template <typename Cut, typename... P>
inline gt_status norm_launch(gt__device *device, const gt__call *call, void (*kernel)(P...), const Cut &cut,
                             const typename Same<P>::type &...arguments) {
    return launch2(device, call, "batch_norm", kernel, cut.tiles, cut.parts, cut.block_x, cut.block_y, arguments...);
}

/* Scratch for `values` numbers. False where there is none: all has to be done in one launch. */
inline bool norm_scratch(gt__device *device, int64_t values, size_t size, void **memory, void **handle) {
    return gt__cuda_scratch_try(device, static_cast<size_t>(values) * size, memory, handle);
}

/* [N,C] or [N,C,H,W]. */
inline void rows_and_channels(const gt__meta *meta, int64_t *rows, int64_t *channels) {
    *rows = meta->shape[0];
    *channels = meta->shape[1];
    for (int32_t a = 2; a < meta->ndim; a++) *rows *= meta->shape[a];
}

/* All of them can be read and written kNormVector values at a time. */
inline bool norm_vector(const gt__meta *meta, std::initializer_list<const gt_tensor *> tensors) {
    const int64_t size = element_bytes(meta->dtype), values = size == 8 ? kNormVector<double> : kNormVector<float>;
    if (meta->shape[1] % values != 0) return false;
    for (const gt_tensor *t : tensors)
        if (t && !aligned(gt__data(t), static_cast<size_t>(values * size))) return false;
    return true;
}

#ifdef __CUDACC__

__device__ __forceinline__ float math_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double math_fma(double a, double b, double c) { return __fma_rn(a, b, c); }

__device__ __forceinline__ int64_t norm_channel(int v) { return (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * v; }

/* V values of a channel each from `p`, or `otherwise` where that is NULL. */
template <int V, typename C>
__device__ __forceinline__ void load_channels(C (&to)[V], const C *p, int64_t channel, C otherwise) {
    constexpr int kWide = V * sizeof(C) >= 16 ? static_cast<int>(16 / sizeof(C)) : 1;
    if (!p) {
#pragma unroll
        for (int i = 0; i < V; i++) to[i] = otherwise;
        return;
    }
    const bool wide = kWide > 1 && (reinterpret_cast<uintptr_t>(p) & 15) == 0;
#pragma unroll
    for (int i = 0; i < V; i += kWide) {
        const Pack<C, kWide> pack = load_pack<C, kWide>(p + channel + i, wide || kWide == 1);
#pragma unroll
        for (int k = 0; k < kWide; k++) to[i + k] = pack.v[k];
    }
}

/* What other blocks of this launch have written. */
template <int V, typename C>
__device__ __forceinline__ Pack<C, V> load_fresh(const C *p) {
    if constexpr (V * sizeof(C) == 16) {
        union {
            uint4 bits;
            Pack<C, V> pack;
        } u;
        u.bits = __ldcg(reinterpret_cast<const uint4 *>(p));
        return u.pack;
    } else {
        Pack<C, V> pack;
#pragma unroll
        for (int i = 0; i < V; i++) pack.v[i] = __ldcg(p + i);
        return pack;
    }
}

/* Gives use(part, first, second) the thread's share of partial[part, 2, channel], several loads at a time. */
template <int V, typename C, typename Use>
__device__ __forceinline__ void visit_parts(const C *partial, const Reduce &cut, int64_t channel, Use use) {
    constexpr int kBatch = 4;
    for (uint32_t part = threadIdx.y; part < cut.parts; part += kBatch * blockDim.y) {
        Pack<C, V> first[kBatch], second[kBatch];
#pragma unroll
        for (int u = 0; u < kBatch; u++) {
            if (part + u * blockDim.y >= cut.parts) break;
            const C *at = partial + static_cast<int64_t>(part + u * blockDim.y) * 2 * cut.channels + channel;
            first[u] = load_fresh<V>(at);
            second[u] = load_fresh<V>(at + cut.channels);
        }
#pragma unroll
        for (int u = 0; u < kBatch; u++) {
            if (part + u * blockDim.y >= cut.parts) break;
            use(part + u * blockDim.y, first[u].v, second[u].v);
        }
    }
}

/* V values of a row. `last`: nobody reads them soon. */
template <typename T, int V, bool last>
__device__ __forceinline__ Pack<T, V> load_row(const T *p) {
    using Bits = typename std::conditional<sizeof(T) * V == 16, uint4, uint2>::type;
    if constexpr (last && sizeof(T) * V == sizeof(Bits)) {
        union {
            Bits bits;
            Pack<T, V> pack;
        } u;
        u.bits = __ldcs(reinterpret_cast<const Bits *>(p));
        return u.pack;
    } else {
        return load_pack<T, V>(p, true);
    }
}

/* Gives use(rows, at) each of `count` rows (at most U, and U where `full`) of the N inputs: first all are loaded. `at` is the place of the first, the
 * next are `step` on. */
template <typename T, int V, int N, int U, bool full, bool last, typename Use>
__device__ __forceinline__ void visit(const T *const (&in)[N], int64_t at, int64_t step, int32_t count, Use use) {
    Pack<T, V> pack[U][N];
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (!full && u >= count) break;
#pragma unroll
        for (int k = 0; k < N; k++) pack[u][k] = load_row<T, V, last>(in[k] + at + u * step);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (!full && u >= count) break;
        use(pack[u], at + u * step);
    }
}

/* The thread's rows of the reducing pass. Returns how many they were. */
template <typename T, int V, int N, int U, typename Use>
__device__ __forceinline__ int32_t visit_reduce(const T *const (&in)[N], const Reduce &cut, int64_t channel, Use use) {
    const int64_t step = blockDim.y * cut.channels, stride = static_cast<int64_t>(cut.parts) * cut.chunk_rows * cut.channels;
    int64_t chunk = blockIdx.y, at = (chunk * cut.chunk_rows + threadIdx.y) * cut.channels + channel;
    int32_t seen = 0;
    for (; (chunk + 1) * cut.chunk_rows <= cut.rows; chunk += cut.parts, at += stride) {
#pragma unroll
        for (int b = 0; b < kChunkRows; b += U) visit<T, V, N, U, true, false>(in, at + b * step, step, U, use);
        seen += kChunkRows;
    }
    const int64_t left = cut.rows - chunk * cut.chunk_rows - threadIdx.y;
    if (left > 0) {
        const int32_t count = static_cast<int32_t>((left + blockDim.y - 1) / blockDim.y);
#pragma unroll
        for (int b = 0; b < kChunkRows; b += U)
            if (b < count) visit<T, V, N, U, false, false>(in, at + b * step, step, count - b, use);
        seen += count;
    }
    return seen;
}

/* The thread's rows of the elementwise pass: [begin, end) of its part. */
template <typename T, int V, int N, int U, bool last, typename Use>
__device__ __forceinline__ void visit_rows(const T *const (&in)[N], int64_t channels, int64_t begin, int64_t end, int64_t channel,
                                           Use use) {
    const int64_t step = blockDim.y * channels, batch = static_cast<int64_t>(U) * blockDim.y;
    int64_t row = begin + threadIdx.y, at = row * channels + channel;
    for (; row + batch - blockDim.y < end; row += batch, at += U * step) visit<T, V, N, U, true, last>(in, at, step, U, use);
    if (row < end) visit<T, V, N, U, false, last>(in, at, step, static_cast<int32_t>((end - row + blockDim.y - 1) / blockDim.y), use);
}

template <typename T, int V, int N, int U, typename Use>
__device__ __forceinline__ void visit_apply(const T *const (&in)[N], const Apply &cut, int64_t channel, Use use) {
    const int64_t begin = (gridDim.y - 1 - blockIdx.y) * cut.part_rows, end = begin + cut.part_rows;
    visit_rows<T, V, N, U, true>(in, cut.channels, begin, end < cut.rows ? end : cut.rows, channel, use);
}

/* Rows of a part of the reducing pass. */
__device__ __forceinline__ int64_t part_count(const Reduce &cut, uint32_t part) {
    return cut.part_rows + (part < cut.longer ? cut.chunk_rows : 0) - (part == cut.last_part ? cut.missing : 0);
}

/* y = (x - center) scale + shift. One rounding order everywhere: the backward finds the same sign again, and batch_norm_apply the same bits. */
template <typename C, int V>
struct Affine {
    C center[V], scale[V], shift[V];

    __device__ __forceinline__ void set(const C (&mean)[V], const C (&rstd)[V], const C *weight, const C *bias, int64_t channel) {
        load_channels<V>(scale, weight, channel, C(1));
        load_channels<V>(shift, bias, channel, C(0));
#pragma unroll
        for (int i = 0; i < V; i++) {
            center[i] = mean[i];
            scale[i] *= rstd[i];
        }
    }
    __device__ __forceinline__ C operator()(int i, C x) const { return math_fma(x - center[i], scale[i], shift[i]); }
};

template <typename C>
__device__ __forceinline__ C relu(C x) {
    return x <= C(0) ? C(0) : x; /* NaN stays */
}
/* relu's gradient where it had made, or been given, y. */
template <typename C>
__device__ __forceinline__ C relu_slope(C y, C dy) {
    return y > C(0) ? dy : (y != y ? y : C(0));
}

#endif

} // namespace gt

#endif

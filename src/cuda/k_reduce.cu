/* sum, mean and max over any axes, with any strides. The input's axes are divided into kept and reduced ones, each a walk in the order of memory.
 *
 *   rows     memory runs along a reduced axis: a block, or some lanes of a warp, make one result together
 *   columns  memory runs along a kept axis: neighbouring threads make neighbouring results, and a block's rows of threads share the reduced elements
 *
 * With few results the reduced elements are split over more blocks, whose partial results a second launch combines. The order of
 * additions depends on the shape alone. */
#include "cuda/launch.cuh"

#include <math_constants.h>

namespace {
using namespace gt;

constexpr int kBlock = 256;

template <typename T>
struct Accumulate {
    using type = compute_t<T>;
};
template <>
struct Accumulate<int32_t> {
    using type = int64_t;
};
template <typename T>
using accumulate_t = typename Accumulate<T>::type;

struct Sum {
    template <typename C>
    static __device__ __forceinline__ C identity() {
        return C(0);
    }
    template <typename C>
    __device__ __forceinline__ C operator()(C a, C b) const {
        return a + b;
    }
};
struct Max {
    template <typename C>
    static __device__ __forceinline__ C identity() {
        return C(-CUDART_INF);
    }
    template <typename C>
    __device__ __forceinline__ C operator()(C a, C b) const {
        return max_nan(a, b);
    }
};

/* Where results go: a final one divided by `divisor`, or, of several parts, a partial one to [part, result]. */
template <typename C>
struct Results {
    void *out;
    gt_dtype dtype;
    int32_t parts;
    int64_t count;
    C divisor;
    __device__ __forceinline__ void put(int64_t part, int64_t at, C value) const {
        if (parts > 1) {
            static_cast<C *>(out)[part * count + at] = value;
        } else {
            store_as(out, dtype, at, value / divisor);
        }
    }
};

/* One item (a result's part) is made by `lanes` neighbouring threads: a power of two up to 32, or the whole block. */
template <typename T, typename Op>
__global__ void __launch_bounds__(kBlock)
    k_reduce_rows(const T *x, Walk<2> kept, Walk<1> reduced, Results<accumulate_t<T>> results, int64_t part_length, int lanes, bool unit) {
    using C = accumulate_t<T>;
    constexpr int V = kVector<T>;
    __shared__ C shared[32];
    const Op combine;
    const int lane = threadIdx.x % lanes;
    const int64_t items = kept.numel * results.parts, per_block = kBlock / lanes;
    for (int64_t first = blockIdx.x * per_block; first < items; first += gridDim.x * per_block) {
        const int64_t item = first + threadIdx.x / lanes;
        C value = Op::template identity<C>();
        int64_t result = 0, part = 0, at[2] = {0, 0};
        if (item < items) {
            part = results.parts > 1 ? item / kept.numel : 0;
            result = item - part * kept.numel;
            walk_offsets(kept, result, at);
            const T *row = x + at[0];
            int64_t begin = part * part_length;
            const int64_t end = begin + part_length < reduced.numel ? begin + part_length : reduced.numel;
            if (unit && (reinterpret_cast<uintptr_t>(row + begin) & 15) == 0) {
                C values[V];
#pragma unroll
                for (int i = 0; i < V; i++) values[i] = Op::template identity<C>();
                const int64_t packs = (end - begin) / V;
#pragma unroll 4
                for (int64_t p = lane; p < packs; p += lanes) {
                    const Pack<T, V> pack = load_pack<T, V>(row + begin + p * V, true);
#pragma unroll
                    for (int i = 0; i < V; i++) values[i] = combine(values[i], convert<C>(pack.v[i]));
                }
#pragma unroll
                for (int i = 0; i < V; i++) value = combine(value, values[i]);
                begin += packs * V;
            }
            if (reduced.ndim == 1) {
                const int64_t stride = reduced.stride[0][0];
#pragma unroll 4
                for (int64_t j = begin + lane; j < end; j += lanes) value = combine(value, convert<C>(row[j * stride]));
            } else {
                for (int64_t j = begin + lane; j < end; j += lanes) {
                    int64_t offset[1];
                    walk_offsets(reduced, j, offset);
                    value = combine(value, convert<C>(row[offset[0]]));
                }
            }
        }
        value = lanes > 32 ? block_reduce(value, Op::template identity<C>(), shared, combine) : lanes_reduce(value, lanes, combine);
        if (item < items && lane == 0) results.put(part, at[1], value);
    }
}

/* A thread makes V neighbouring results of a part, together with the threads of its column of the block. blockIdx.y is the part. */
template <typename T, typename Op, int V>
__global__ void __launch_bounds__(kBlock)
    k_reduce_columns(const T *x, Walk<2> kept, Walk<1> reduced, Results<accumulate_t<T>> results, int64_t part_length) {
    using C = accumulate_t<T>;
    __shared__ C shared[kBlock * V];
    const Op combine;
    const int64_t result = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * V;
    C values[V];
#pragma unroll
    for (int i = 0; i < V; i++) values[i] = Op::template identity<C>();
    int64_t at[2] = {0, 0};
    if (result < kept.numel) {
        walk_offsets(kept, result, at);
        const T *column = x + at[0];
        const int64_t begin = blockIdx.y * part_length;
        const int64_t end = begin + part_length < reduced.numel ? begin + part_length : reduced.numel;
        if (reduced.ndim == 1) {
            const int64_t stride = reduced.stride[0][0];
#pragma unroll 4
            for (int64_t j = begin + threadIdx.y; j < end; j += blockDim.y) {
                const Pack<T, V> pack = load_pack<T, V>(column + j * stride, true);
#pragma unroll
                for (int i = 0; i < V; i++) values[i] = combine(values[i], convert<C>(pack.v[i]));
            }
        } else {
#pragma unroll 2
            for (int64_t j = begin + threadIdx.y; j < end; j += blockDim.y) {
                int64_t offset[1];
                walk_offsets(reduced, j, offset);
                const Pack<T, V> pack = load_pack<T, V>(column + offset[0], true);
#pragma unroll
                for (int i = 0; i < V; i++) values[i] = combine(values[i], convert<C>(pack.v[i]));
            }
        }
    }
    for (int half = blockDim.y / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y >= half && threadIdx.y < 2 * half)
#pragma unroll
            for (int i = 0; i < V; i++) shared[(i * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x] = values[i];
        __syncthreads();
        if (threadIdx.y < half)
#pragma unroll
            for (int i = 0; i < V; i++)
                values[i] = combine(values[i], shared[(i * blockDim.y + threadIdx.y + half) * blockDim.x + threadIdx.x]);
    }
    if (threadIdx.y == 0 && result < kept.numel)
#pragma unroll
        for (int i = 0; i < V; i++) results.put(blockIdx.y, at[1] + i, values[i]);
}

int32_t power_of_two(int64_t n, int32_t most) {
    int32_t p = 1;
    while (p < n && p < most) p *= 2;
    return p;
}

template <int V>
bool columns_fit(const void *x, size_t bytes, const Walk<2> &kept, const Walk<1> &reduced) {
    if (kept.stride[0][0] != 1 || kept.stride[1][0] != 1 || kept.size[0] % V != 0 || !aligned(x, bytes)) return false;
    for (int32_t a = 1; a < kept.ndim; a++)
        if (kept.stride[0][a] % V != 0) return false;
    for (int32_t a = 0; a < reduced.ndim; a++)
        if (reduced.stride[0][a] % V != 0) return false;
    return true;
}

template <typename T, typename Op>
gt_status reduce(gt__device *device, const gt__call *call, const T *x, const Walk<2> &kept, const Walk<1> &reduced, void *out,
                 gt_dtype dtype, accumulate_t<T> divisor, bool may_split) {
    using C = accumulate_t<T>;
    constexpr int V = kVector<T>;
    const bool columns = kept.numel > 1 && reduced.numel > 1 && kept.stride[0][0] < reduced.stride[0][0];
    const bool vector = columns && columns_fit<V>(x, 16, kept, reduced);
    const int64_t blocks_wanted = 4 * static_cast<int64_t>(gt__cuda_multiprocessors(device));

    int64_t blocks, parts; /* blocks for one part */
    int32_t lanes = 1, block_x = 1;
    if (columns) {
        const int64_t threads = ceil_div(kept.numel, vector ? V : 1);
        block_x = power_of_two(threads, 32);
        blocks = ceil_div(threads, block_x);
        parts = min64(blocks_wanted / blocks, reduced.numel / (8 * (kBlock / block_x)));
    } else {
        const int64_t loads = reduced.stride[0][0] == 1 ? ceil_div(reduced.numel, V) : reduced.numel;
        lanes = loads > 256 || (loads > 64 && kept.numel < blocks_wanted) ? kBlock : power_of_two(loads, 32);
        blocks = ceil_div(kept.numel, kBlock / lanes);
        parts = lanes == kBlock ? min64(blocks_wanted / blocks, loads / (16 * kBlock)) : 1;
    }
    parts = may_split ? min64(max64(parts, 1), 1024) : 1;

    void *partial = nullptr, *handle = nullptr;
    if (parts > 1 && !gt__cuda_scratch_try(device, static_cast<size_t>(parts * kept.numel) * sizeof(C), &partial, &handle)) parts = 1;
    int64_t part_length = ceil_div(reduced.numel, parts);
    part_length = ceil_div(part_length, V) * V;
    const Results<C> results = {parts > 1 ? partial : out, dtype, static_cast<int32_t>(parts), kept.numel, divisor};

    gt_status status;
    if (!columns) {
        const bool unit = reduced.ndim == 1 && reduced.stride[0][0] == 1;
        status = launch(device, call, k_reduce_rows<T, Op>, grid_for(kept.numel * parts, kBlock / lanes), kBlock, x, kept, reduced, results,
                        part_length, lanes, unit);
    } else {
        const auto kernel = vector ? k_reduce_columns<T, Op, V> : k_reduce_columns<T, Op, 1>;
        status = launch2(device, call, "reduction", kernel, static_cast<uint32_t>(blocks), static_cast<uint32_t>(parts),
                         static_cast<uint32_t>(block_x), static_cast<uint32_t>(kBlock / block_x), x, kept, reduced, results, part_length);
    }
    if (parts > 1 && status == GT_OK) {
        const int64_t count = kept.numel, one = 1, part_stride = count;
        Walk<2> kept_parts;
        Walk<1> over_parts;
        walk_make<2>(&kept_parts, 1, &count, {&one, &one});
        walk_make<1>(&over_parts, 1, &parts, {&part_stride});
        status = reduce<C, Op>(device, call, static_cast<const C *>(partial), kept_parts, over_parts, out, dtype, divisor, false);
    }
    gt__scratch_free(device->ctx, handle);
    return status;
}

template <typename T, typename Op>
gt_status run(gt__device *device, const gt__call *call, uint32_t mask, bool mean) {
    const gt_tensor *x = call->in[0], *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    int64_t shape[2][GT_MAX_DIMS], strides[2][GT_MAX_DIMS], out_strides[GT_MAX_DIMS];
    int32_t n[2] = {0, 0};
    for (int32_t a = 0; a < x->meta.ndim; a++) {
        const int32_t side = static_cast<int32_t>(mask >> a & 1);
        shape[side][n[side]] = x->meta.shape[a];
        strides[side][n[side]++] = x->meta.strides[a];
    }
    int64_t step = 1;
    for (int32_t a = n[0] - 1; a >= 0; a--) {
        out_strides[a] = step;
        step *= shape[0][a];
    }
    Walk<2> kept;
    Walk<1> reduced;
    walk_make<2>(&kept, n[0], shape[0], {strides[0], out_strides});
    walk_make<1>(&reduced, n[1], shape[1], {strides[1]});
    const accumulate_t<T> divisor = static_cast<accumulate_t<T>>(mean ? reduced.numel : 1);
    return reduce<T, Op>(device, call, data<const T>(x), kept, reduced, data(y), y->meta.dtype, divisor, true);
}

} // namespace

gt_status gt__cuda_sum(gt__device *device, const gt__call *call) {
    const gt_dtype dtype = call->in[0]->meta.dtype;
    if (dtype == GT_DTYPE_I32) return run<int32_t, Sum>(device, call, call->attr.reduce.mask, false);
    if (dtype == GT_DTYPE_I64) return run<int64_t, Sum>(device, call, call->attr.reduce.mask, false);
    GT__FOR_FLOATS(call, dtype, return run<T, Sum>(device, call, call->attr.reduce.mask, false));
    return GT_OK;
}

gt_status gt__cuda_mean_axes(gt__device *device, const gt__call *call, uint32_t mask) {
    GT__FOR_FLOATS(call, call->in[0]->meta.dtype, return run<T, Sum>(device, call, mask, true));
    return GT_OK;
}

gt_status gt__cuda_mean(gt__device *device, const gt__call *call) { return gt__cuda_mean_axes(device, call, call->attr.reduce.mask); }

gt_status gt__cuda_max(gt__device *device, const gt__call *call) {
    GT__FOR_FLOATS(call, call->in[0]->meta.dtype, return run<T, Max>(device, call, call->attr.reduce.mask, false));
    return GT_OK;
}

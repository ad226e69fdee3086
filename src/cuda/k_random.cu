/* uniform, normal, dropout. Element i, in logical row-major order, uses word i % 4 of Philox block offset + i / 4, as on every device. */
#include "core/philox.h"
#include "cuda/launch.cuh"
#include "cuda/math.cuh"

#include <math.h>

namespace {
using namespace gt;

constexpr int kBlock = 256;

/* Where a call's random numbers are. */
struct Place {
    uint64_t seed, offset;
    const uint64_t *cells; /* a seed in place of `seed`, and what `offset` is counted from; or null */
};
Place place_of(const gt__call *call) { return {call->attr.random.seed, call->attr.random.offset, call->attr.random.cells}; }
__device__ __forceinline__ Place found(Place place) {
    return place.cells ? Place{place.cells[0], place.cells[1] + place.offset, nullptr} : place;
}

__device__ __forceinline__ uint32_t word_of(uint64_t seed, uint64_t offset, int64_t index) {
    const gt__philox_block block = gt__philox(seed, offset + static_cast<uint64_t>(index >> 2));
    const uint32_t low = (index & 1) ? block.word[1] : block.word[0], high = (index & 1) ? block.word[3] : block.word[2];
    return (index & 2) ? high : low;
}

/* u in [0, 1) to [a, b): rounding must not reach b, and the products are rounded as on the CPU. */
struct Between {
    double a, b;
    __device__ __forceinline__ void four(const gt__philox_block &words, float (&out)[4]) const {
        const float low = static_cast<float>(a), high = static_cast<float>(b);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float value = __fadd_rn(low, __fmul_rn(__fsub_rn(high, low), gt__philox_uniform_f32(words.word[k])));
            out[k] = value >= high && low < high ? nextafterf(high, low) : value;
        }
    }
    __device__ __forceinline__ void four(const gt__philox_block &words, double (&out)[4]) const {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const double value = __dadd_rn(a, __dmul_rn(__dsub_rn(b, a), gt__philox_uniform_f64(words.word[k])));
            out[k] = value >= b && a < b ? nextafter(b, a) : value;
        }
    }
};

/* Box & Muller 1958, on words (0, 1) and (2, 3). */
struct Gauss {
    double a, b;
    __device__ __forceinline__ void four(const gt__philox_block &words, float (&out)[4]) const {
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            const float radius = sqrtf(-2.0f * logf((static_cast<float>(words.word[k]) + 1.0f) * 0x1p-32f));
            float sine, cosine;
            sincosf(6.283185307f * (static_cast<float>(words.word[k + 1]) * 0x1p-32f), &sine, &cosine);
            out[k] = __fadd_rn(static_cast<float>(a), __fmul_rn(static_cast<float>(b), __fmul_rn(radius, cosine)));
            out[k + 1] = __fadd_rn(static_cast<float>(a), __fmul_rn(static_cast<float>(b), __fmul_rn(radius, sine)));
        }
    }
    __device__ __forceinline__ void four(const gt__philox_block &words, double (&out)[4]) const {
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            const double radius = sqrt(-2.0 * log((static_cast<double>(words.word[k]) + 1.0) * 0x1p-32));
            double sine, cosine;
            sincos(6.283185307179586477 * (static_cast<double>(words.word[k + 1]) * 0x1p-32), &sine, &cosine);
            out[k] = __dadd_rn(a, __dmul_rn(b, __dmul_rn(radius, cosine)));
            out[k + 1] = __dadd_rn(a, __dmul_rn(b, __dmul_rn(radius, sine)));
        }
    }
};

/* `row_major`: element i lies at i, and a thread makes a Philox block's four. Else the walk goes over y and the logical index, and a thread makes one. */
template <typename T, typename Make>
__global__ void __launch_bounds__(kBlock) k_random(T *y, Make make, Place place, bool row_major, Walk<2> walk) {
    using C = compute_t<T>;
    const Place p = found(place);
    const int64_t n = walk.numel, step = gridDim.x * static_cast<int64_t>(kBlock);
    const int64_t first = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x;
    C values[4];
    if (row_major) {
        for (int64_t block = first; block * 4 < n; block += step) {
            make.four(gt__philox(p.seed, p.offset + static_cast<uint64_t>(block)), values);
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (block * 4 + k < n) y[block * 4 + k] = convert<T>(values[k]);
        }
    } else {
        for (int64_t i = first; i < n; i += step) {
            int64_t at[2];
            walk_offsets(walk, i, at);
            make.four(gt__philox(p.seed, p.offset + static_cast<uint64_t>(at[1] >> 2)), values);
            const int k = static_cast<int>(at[1] & 3);
            const C low = (k & 1) ? values[1] : values[0], high = (k & 1) ? values[3] : values[2];
            y[at[0]] = convert<T>((k & 2) ? high : low);
        }
    }
}

/* Row-major strides of the shape: with them a walk tells the logical index. */
void logical_strides(const gt__meta *meta, int64_t *strides) {
    int64_t step = 1;
    for (int32_t a = meta->ndim - 1; a >= 0; a--) {
        strides[a] = step;
        step *= meta->shape[a];
    }
}

template <typename Make>
gt_status run_random(gt__device *device, const gt__call *call) {
    const gt_tensor *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    int64_t order[GT_MAX_DIMS];
    logical_strides(&y->meta, order);
    Walk<2> walk;
    walk_make<2>(&walk, y->meta.ndim, y->meta.shape, {y->meta.strides, order});
    const bool row_major = walk.linear();
    const uint32_t grid = grid_for(row_major ? ceil_div(walk.numel, 4) : walk.numel, kBlock);
    const Make make = {call->attr.random.a, call->attr.random.b};
    GT__FOR_FLOATS(call, y->meta.dtype,
                   return launch(device, call, k_random<T, Make>, grid, kBlock, data<T>(y), make, place_of(call), row_major, walk));
    return GT_OK;
}

/* --- dropout: kept where uniform(i) >= p, that is where the upper 24 bits are at least `threshold` ------------------------------------ */

struct Dropout {
    Place place;
    uint32_t threshold;
    double scale;
};

/* x and y row-major; a thread does four elements. */
template <typename T>
__global__ void __launch_bounds__(kBlock) k_dropout_dense(const T *x, T *y, int64_t n, Dropout drop, bool vector) {
    using C = compute_t<T>;
    const Place place = found(drop.place);
    const C scale = static_cast<C>(drop.scale);
    const int64_t step = gridDim.x * static_cast<int64_t>(kBlock);
    for (int64_t block = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; block * 4 < n; block += step) {
        const gt__philox_block words = gt__philox(place.seed, place.offset + static_cast<uint64_t>(block));
        const int64_t at = block * 4;
        if (at + 4 <= n) {
            Pack<T, 4> pack = load_pack<T, 4>(x + at, vector);
#pragma unroll
            for (int k = 0; k < 4; k++)
                pack.v[k] = convert<T>((words.word[k] >> 8) >= drop.threshold ? convert<C>(pack.v[k]) * scale : C(0));
            store_pack(y + at, pack, vector);
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (at + k < n) y[at + k] = convert<T>((words.word[k] >> 8) >= drop.threshold ? convert<C>(x[at + k]) * scale : C(0));
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(kBlock) k_dropout_strided(const T *x, T *y, Dropout drop, Walk<3> walk) {
    using C = compute_t<T>;
    const Place place = found(drop.place);
    const C scale = static_cast<C>(drop.scale);
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < walk.numel;
         i += gridDim.x * static_cast<int64_t>(kBlock)) {
        int64_t at[3];
        walk_offsets(walk, i, at);
        const bool keep = (word_of(place.seed, place.offset, at[2]) >> 8) >= drop.threshold;
        y[at[0]] = convert<T>(keep ? convert<C>(x[at[1]]) * scale : C(0));
    }
}

template <typename T>
gt_status run_dropout(gt__device *device, const gt__call *call, const Walk<3> &walk, const Dropout &drop) {
    const T *x = data<const T>(call->in[0]);
    T *y = data<T>(call->out[0]);
    if (walk.linear()) {
        const bool vector = aligned(x, 4 * sizeof(T)) && aligned(y, 4 * sizeof(T));
        return launch(device, call, k_dropout_dense<T>, grid_for(ceil_div(walk.numel, 4), kBlock), kBlock, x, y, walk.numel, drop, vector);
    }
    return launch(device, call, k_dropout_strided<T>, grid_for(walk.numel, kBlock), kBlock, x, y, drop, walk);
}

} // namespace

gt_status gt__cuda_uniform(gt__device *device, const gt__call *call) { return run_random<Between>(device, call); }
gt_status gt__cuda_normal(gt__device *device, const gt__call *call) { return run_random<Gauss>(device, call); }

gt_status gt__cuda_dropout(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    int64_t order[GT_MAX_DIMS];
    logical_strides(&y->meta, order);
    Walk<3> walk;
    walk_make<3>(&walk, y->meta.ndim, y->meta.shape, {y->meta.strides, x->meta.strides, order});
    const double p = call->attr.random.a;
    const Dropout drop = {place_of(call), static_cast<uint32_t>(ceil(p * 16777216.0)), p < 1.0 ? 1.0 / (1.0 - p) : 0.0};
    GT__FOR_FLOATS(call, y->meta.dtype, return run_dropout<T>(device, call, walk, drop));
    return GT_OK;
}

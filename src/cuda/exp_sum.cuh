/* Sums of exponentials relative to the maximum, made in one pass and joined across threads (Milakov & Gimelshein 2018). -inf adds nothing; a NaN
 * makes the sum NaN. */
#ifndef GT_CUDA_EXP_SUM_CUH
#define GT_CUDA_EXP_SUM_CUH

#include "cuda/math.cuh"
#include "cuda/types.cuh"

#ifdef __CUDACC__

#include <math_constants.h>

namespace gt {

template <typename C>
struct ExpSum {
    C max, sum;
};

template <typename C>
__device__ __forceinline__ ExpSum<C> exp_sum_zero() {
    return {C(-CUDART_INF), C(0)};
}

template <typename C>
__device__ __forceinline__ void exp_sum_add(ExpSum<C> &total, C x) {
    if (x > total.max) {
        total.sum = total.sum * math_exp(total.max - x) + C(1);
        total.max = x;
    } else if (x != C(-CUDART_INF)) {
        total.sum += math_exp(x - total.max);
    }
}

/* The equal case also keeps exp(-inf + inf) out. */
template <typename C>
__device__ __forceinline__ ExpSum<C> exp_sum_join(ExpSum<C> a, ExpSum<C> b) {
    const C max = a.max > b.max ? a.max : b.max;
    const C left = a.max == max ? a.sum : a.sum * math_exp(a.max - max);
    const C right = b.max == max ? b.sum : b.sum * math_exp(b.max - max);
    return {max, left + right};
}

/* Over `lanes` neighbouring threads (a power of two up to 32); all of them get it. Every lane of the warp must take part. */
template <typename C>
__device__ __forceinline__ ExpSum<C> exp_sum_lanes(ExpSum<C> total, int lanes) {
    for (int step = lanes >> 1; step > 0; step >>= 1) {
        const ExpSum<C> other = {__shfl_xor_sync(0xffffffffu, total.max, step), __shfl_xor_sync(0xffffffffu, total.sum, step)};
        total = exp_sum_join(total, other);
    }
    return total;
}

/* The same, or over a block of whole warps for more lanes. `shared` holds 32 values. */
template <typename C>
__device__ __forceinline__ ExpSum<C> exp_sum_row(ExpSum<C> total, int lanes, ExpSum<C> *shared) {
    if (lanes <= 32) return exp_sum_lanes(total, lanes);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    total = exp_sum_lanes(total, 32);
    __syncthreads();
    if (lane == 0) shared[warp] = total;
    __syncthreads();
    return exp_sum_lanes(lane < warps ? shared[lane] : exp_sum_zero<C>(), 32);
}

} // namespace gt

#endif
#endif

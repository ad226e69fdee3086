/* Types and arithmetic that our kernels share on the device: conversions, 16-byte packs, division by a fixed number, sums over a warp or block. */
#ifndef GT_CUDA_TYPES_CUH
#define GT_CUDA_TYPES_CUH

#include <gtrain/tensor.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdint.h>

namespace gt {

/* What a dtype is computed in: f32 for halves, else itself. */
template <typename T>
struct Compute {
    using type = T;
};
template <>
struct Compute<__half> {
    using type = float;
};
template <>
struct Compute<__nv_bfloat16> {
    using type = float;
};
template <typename T>
using compute_t = typename Compute<T>::type;

/* Quotients by a number that is fixed for a launch, for numerators below 2^31 (Granlund & Montgomery 1994). */
struct FastDivide {
    static constexpr int64_t kLimit = 0x7fffffff;
    uint32_t divisor, multiplier, shift;

    void set(int64_t d) { /* 1 <= d <= kLimit */
        divisor = static_cast<uint32_t>(d);
        shift = 0;
        while ((static_cast<uint64_t>(1) << shift) < divisor) shift++;
        multiplier =
            static_cast<uint32_t>(((static_cast<uint64_t>(1) << 32) * ((static_cast<uint64_t>(1) << shift) - divisor)) / divisor + 1);
    }
#ifdef __CUDACC__
    __device__ __forceinline__ uint32_t quotient(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
#endif
};

/* V neighbours, moved as one access where the address allows it. */
template <typename T, int V>
struct alignas(sizeof(T) * V) Pack {
    T v[V];
};
/* Elements in 16 bytes. */
template <typename T>
constexpr int kVector = static_cast<int>(16 / sizeof(T));

#ifdef __CUDACC__

/* Between float types and from integers; float to integer is in k_copy.cu, with its own rules. */
template <typename To, typename From>
__device__ __forceinline__ To convert(From x) {
    return static_cast<To>(x);
}
template <>
__device__ __forceinline__ float convert<float, __half>(__half x) {
    return __half2float(x);
}
template <>
__device__ __forceinline__ float convert<float, __nv_bfloat16>(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
template <>
__device__ __forceinline__ double convert<double, __half>(__half x) {
    return static_cast<double>(__half2float(x));
}
template <>
__device__ __forceinline__ double convert<double, __nv_bfloat16>(__nv_bfloat16 x) {
    return static_cast<double>(__bfloat162float(x));
}
template <>
__device__ __forceinline__ __half convert<__half, float>(float x) {
    return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 convert<__nv_bfloat16, float>(float x) {
    return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half convert<__half, double>(double x) {
    return __float2half_rn(static_cast<float>(x));
}
template <>
__device__ __forceinline__ __nv_bfloat16 convert<__nv_bfloat16, double>(double x) {
    return __float2bfloat16_rn(static_cast<float>(x));
}

/* `vector`: the address is aligned for the pack. */
template <typename T, int V>
__device__ __forceinline__ Pack<T, V> load_pack(const T *p, bool vector) {
    Pack<T, V> pack;
    if (vector) {
        pack = *reinterpret_cast<const Pack<T, V> *>(p);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) pack.v[i] = p[i];
    }
    return pack;
}
template <typename T, int V>
__device__ __forceinline__ void store_pack(T *p, const Pack<T, V> &pack, bool vector) {
    if (vector) {
        *reinterpret_cast<Pack<T, V> *>(p) = pack;
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) p[i] = pack.v[i];
    }
}

/* For small results whose float dtype is known at run time only. */
template <typename C>
__device__ __forceinline__ void store_as(void *p, gt_dtype dtype, int64_t i, C value) {
    switch (dtype) {
    case GT_DTYPE_F32:
        static_cast<float *>(p)[i] = static_cast<float>(value);
        break;
    case GT_DTYPE_F16:
        static_cast<__half *>(p)[i] = __float2half_rn(static_cast<float>(value));
        break;
    case GT_DTYPE_BF16:
        static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn(static_cast<float>(value));
        break;
    case GT_DTYPE_F64:
        static_cast<double *>(p)[i] = static_cast<double>(value);
        break;
    case GT_DTYPE_I32:
        static_cast<int32_t *>(p)[i] = static_cast<int32_t>(value);
        break;
    case GT_DTYPE_I64:
        static_cast<int64_t *>(p)[i] = static_cast<int64_t>(value);
        break;
    default:
        static_cast<uint8_t *>(p)[i] = static_cast<uint8_t>(value);
        break;
    }
}

__device__ __forceinline__ int64_t load_index(const void *p, gt_dtype dtype, int64_t i) {
    switch (dtype) {
    case GT_DTYPE_I64:
        return static_cast<const int64_t *>(p)[i];
    case GT_DTYPE_I32:
        return static_cast<const int32_t *>(p)[i];
    default:
        return static_cast<const uint8_t *>(p)[i];
    }
}

/* Combines across `width` neighbouring lanes (a power of two); all of them get the result. Every lane of the warp must take part. */
template <typename C, typename Combine>
__device__ __forceinline__ C lanes_reduce(C value, int width, Combine combine) {
    for (int step = width >> 1; step > 0; step >>= 1) value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}
template <typename C>
__device__ __forceinline__ C lanes_sum(C value, int width) {
    return lanes_reduce(value, width, [](C a, C b) { return a + b; });
}

/* Combines across a one-dimensional block of whole warps; all threads get the result. `shared` holds 32 values and may be used again at once. */
template <typename C, typename Combine>
__device__ __forceinline__ C block_reduce(C value, C identity, C *shared, Combine combine) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    value = lanes_reduce(value, 32, combine);
    if (warps == 1) return value;
    __syncthreads();
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    return lanes_reduce(lane < warps ? shared[lane] : identity, 32, combine);
}
template <typename C>
__device__ __forceinline__ C block_sum(C value, C *shared) {
    return block_reduce(value, C(0), shared, [](C a, C b) { return a + b; });
}

/* True in all threads of the block that is the last of `count` to come here; it sees what the others had written before. The counter goes back to 0. */
__device__ __forceinline__ bool is_last_block(uint32_t *counter, uint32_t count) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) last = atomicInc(counter, count - 1) == count - 1;
    __syncthreads();
    if (!last) return false;
    __threadfence();
    return true;
}

/* The larger of two, NaN if either is. */
template <typename C>
__device__ __forceinline__ C max_nan(C a, C b) {
    return a > b || a != a ? a : b;
}
template <typename C>
__device__ __forceinline__ C min_nan(C a, C b) {
    return a < b || a != a ? a : b;
}

#endif

} // namespace gt

#endif

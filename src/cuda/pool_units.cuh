/* What pooling with small windows keeps of a window, V channels at a time: a part's sums or maxima on the way forward, and backward what the window gives to the
 * pixels under it. Maxima of halves are found two to a word. */
#ifndef GT_CUDA_POOL_UNITS_CUH
#define GT_CUDA_POOL_UNITS_CUH

#include "cuda/pool.cuh"

#ifdef __CUDACC__

namespace gt {

/* Over a part of a window: the sums, or the maxima and where they are. A maximum is the first of the greatest, or the first NaN. */
template <bool kMax, typename T, int V>
struct Part {
    using C = compute_t<T>;
    C value[V];
    int32_t place[V];

    __device__ __forceinline__ void begin(const Pack<T, V> &pixel, int32_t here) {
#pragma unroll
        for (int k = 0; k < V; k++) {
            value[k] = convert<C>(pixel.v[k]);
            place[k] = here;
        }
    }
    __device__ __forceinline__ void add(const Pack<T, V> &pixel, int32_t here) {
#pragma unroll
        for (int k = 0; k < V; k++) add(k, convert<C>(pixel.v[k]), here);
    }
    __device__ __forceinline__ void add(const Part &part, int32_t shift) { /* of what comes after */
#pragma unroll
        for (int k = 0; k < V; k++) add(k, part.value[k], part.place[k] + shift);
    }
    __device__ __forceinline__ void add(int k, C x, int32_t here) {
        if (!kMax) {
            value[k] += x;
        } else if (!(x <= value[k]) && value[k] == value[k]) {
            value[k] = x;
            place[k] = here;
        }
    }
    __device__ __forceinline__ void shift_places(int32_t shift) {
#pragma unroll
        for (int k = 0; k < V; k++) place[k] += shift;
    }
    __device__ __forceinline__ Pack<T, V> result(C count) const {
        Pack<T, V> pack;
#pragma unroll
        for (int k = 0; k < V; k++) pack.v[k] = convert<T>(kMax ? value[k] : value[k] / count);
        return pack;
    }
    __device__ __forceinline__ Pack<uint8_t, V> places() const {
        Pack<uint8_t, V> pack;
#pragma unroll
        for (int k = 0; k < V; k++) pack.v[k] = static_cast<uint8_t>(place[k]);
        return pack;
    }
};

/* Where a > b or either is NaN, and where a is not NaN: all bits of its half of the word. */
__device__ __forceinline__ uint32_t not_less_equal(__half2 a, __half2 b) { return __hgtu2_mask(a, b); }
__device__ __forceinline__ uint32_t not_less_equal(__nv_bfloat162 a, __nv_bfloat162 b) { return __hgtu2_mask(a, b); }
__device__ __forceinline__ uint32_t not_nan(__half2 a) { return __heq2_mask(a, a); }
__device__ __forceinline__ uint32_t not_nan(__nv_bfloat162 a) { return __heq2_mask(a, a); }

template <typename T>
struct Pair;
template <>
struct Pair<__half> {
    using type = __half2;
};
template <>
struct Pair<__nv_bfloat16> {
    using type = __nv_bfloat162;
};

/* Maxima of halves, two to a word. */
template <typename T>
struct PairPart {
    static constexpr int kWords = 4, V = 8;
    using P = typename Pair<T>::type;
    using Words = Pack<uint32_t, kWords>;
    Words value, place;

    static __device__ __forceinline__ P pair(uint32_t word) { return *reinterpret_cast<const P *>(&word); }
    static __device__ __forceinline__ Words words(const Pack<T, V> &pixel) { return *reinterpret_cast<const Words *>(&pixel); }
    static __device__ __forceinline__ uint32_t both(int32_t place) { return static_cast<uint32_t>(place) * 0x10001u; }

    __device__ __forceinline__ void begin(const Pack<T, V> &pixel, int32_t here) {
        value = words(pixel);
#pragma unroll
        for (int k = 0; k < kWords; k++) place.v[k] = both(here);
    }
    __device__ __forceinline__ void add(const Pack<T, V> &pixel, int32_t here) {
        const Words x = words(pixel);
#pragma unroll
        for (int k = 0; k < kWords; k++) add(k, x.v[k], both(here));
    }
    __device__ __forceinline__ void add(const PairPart &part, int32_t shift) {
#pragma unroll
        for (int k = 0; k < kWords; k++) add(k, part.value.v[k], part.place.v[k] + both(shift));
    }
    __device__ __forceinline__ void add(int k, uint32_t x, uint32_t here) {
        const uint32_t take = not_less_equal(pair(x), pair(value.v[k])) & not_nan(pair(value.v[k]));
        value.v[k] = (x & take) | (value.v[k] & ~take);
        place.v[k] = (here & take) | (place.v[k] & ~take);
    }
    __device__ __forceinline__ void shift_places(int32_t shift) {
#pragma unroll
        for (int k = 0; k < kWords; k++) place.v[k] += both(shift);
    }
    __device__ __forceinline__ Pack<T, V> result(float) const { return *reinterpret_cast<const Pack<T, V> *>(&value); }
    __device__ __forceinline__ Pack<uint8_t, V> places() const {
        Pack<uint32_t, 2> bytes;
#pragma unroll
        for (int k = 0; k < 2; k++) bytes.v[k] = __byte_perm(place.v[2 * k], place.v[2 * k + 1], 0x6420);
        return *reinterpret_cast<const Pack<uint8_t, V> *>(&bytes);
    }
};
template <>
struct Part<true, __half, 8> : PairPart<__half> {};
template <>
struct Part<true, __nv_bfloat16, 8> : PairPart<__nv_bfloat16> {};

/* What a window gives to the pixels under it: unit k to the pixel at `here`. */
template <bool kMax, typename T, int V>
struct Gift {
    static constexpr int kUnits = V;
    using C = compute_t<T>;
    Pack<T, V> gradient;
    Pack<uint8_t, V> place; /* of the pixel that gets it */
    C share;                /* or of all */

    __device__ __forceinline__ C at(int k, int32_t here) const {
        const C value = convert<C>(gradient.v[k]);
        if (kMax) return place.v[k] == here ? value : C(0);
        return value * share;
    }
    static __device__ __forceinline__ void set(Pack<T, V> &pixel, int k, C value) { pixel.v[k] = convert<T>(value); }
};

/* Two halves as they are, and a sum of such. */
template <typename T>
struct PairGiven {
    uint32_t word;
};
struct PairSum {
    float low, high;
};
__device__ __forceinline__ PairSum wide(PairGiven<__half> x) {
    const float2 both = __half22float2(*reinterpret_cast<const __half2 *>(&x.word));
    return {both.x, both.y};
}
__device__ __forceinline__ PairSum wide(PairGiven<__nv_bfloat16> x) {
    const float2 both = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&x.word));
    return {both.x, both.y};
}
template <typename T>
__device__ __forceinline__ PairSum operator+(PairSum a, PairGiven<T> b) {
    const PairSum more = wide(b);
    return {a.low + more.low, a.high + more.high};
}
template <typename T>
__device__ __forceinline__ PairSum operator+(PairGiven<T> a, PairGiven<T> b) {
    return wide(a) + b;
}

/* Gradients of maxima of halves, two to a word. */
template <typename T>
struct PairGift {
    static constexpr int kUnits = 4, V = 8;
    Pack<T, V> gradient;
    Pack<uint8_t, V> place;
    float share;

    /* Places are compared as subnormal numbers of 16 bits, for which one instruction makes two masks. */
    __device__ __forceinline__ PairGiven<T> at(int k, int32_t here) const {
        const uint32_t places = reinterpret_cast<const uint32_t *>(&place)[k / 2], both = static_cast<uint32_t>(here) * 0x10001u;
        const uint32_t lanes = __byte_perm(places, 0, k % 2 == 0 ? 0x4140 : 0x4342);
        const uint32_t mask = __heq2_mask(*reinterpret_cast<const __half2 *>(&lanes), *reinterpret_cast<const __half2 *>(&both));
        return {reinterpret_cast<const uint32_t *>(&gradient)[k] & mask};
    }
    static __device__ __forceinline__ void set(Pack<T, V> &pixel, int k, PairGiven<T> value) {
        reinterpret_cast<uint32_t *>(&pixel)[k] = value.word;
    }
    static __device__ __forceinline__ void set(Pack<T, V> &pixel, int k, PairSum value) {
        pixel.v[2 * k] = convert<T>(value.low);
        pixel.v[2 * k + 1] = convert<T>(value.high);
    }
};
template <>
struct Gift<true, __half, 8> : PairGift<__half> {};
template <>
struct Gift<true, __nv_bfloat16, 8> : PairGift<__nv_bfloat16> {};

} // namespace gt

#endif

#endif

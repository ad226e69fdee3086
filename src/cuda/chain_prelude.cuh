/* What a chain's kernel is made of. chain_source.c writes the rest behind it, and NVRTC compiles both for the GPU at hand (chain.c). Tests compile them for the host (tests/cuda/emulate.h).
 *
 * Arithmetic is that of the kernels of single ops. What follows one op is never contracted with the next one's: the last product or sum of each is rounded by itself. */
#ifndef GT_CUDA_CHAIN_PRELUDE_CUH
#define GT_CUDA_CHAIN_PRELUDE_CUH

#include "core/philox.h"
#include "cuda/math.cuh"

namespace gt {

typedef long long Index;

/* As gt__chain_arguments of chain_source.h. */
struct Arguments {
    const void *in[10];
    void *out[8];
    void *sum;
    void *partial; /* of the sum: of each part one after the other, unless there is just one */
    Index n, kept, reduced;
    Index parts, part; /* of the reduced elements, and how many one has */
    Index inner[10], size[10];
    double value[24]; /* the scalar; dropout: the scale */
    unsigned long long seed[24], offset[24];
    const unsigned long long *cells[24];
    unsigned threshold[24]; /* dropout keeps where the upper 24 bits of a number are at least that */
    double divisor;
    int vector; /* the address of everything whole is a multiple of 16 */
    int padding;
};

constexpr int kBlock = 256;

/* --- numbers in memory ------------------------------------------------------------------------------------------------------------------ */

#ifdef GT__EMULATED
inline float from_f16(unsigned short bits) {
    __half_raw raw;
    raw.x = bits;
    return __half2float(__half(raw));
}
inline unsigned short to_f16(float x) { return static_cast<__half_raw>(__float2half_rn(x)).x; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline unsigned bits_of(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float float_of(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
#else
__device__ __forceinline__ float from_f16(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
__device__ __forceinline__ unsigned short to_f16(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(unsigned bits) { return __uint_as_float(bits); }
#endif

__device__ __forceinline__ float from_bf16(unsigned short bits) { return float_of(static_cast<unsigned>(bits) << 16); }
__device__ __forceinline__ unsigned short to_bf16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#else
    const unsigned bits = bits_of(x);
    return static_cast<unsigned short>(x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

/* How a dtype lies in memory, and what it is computed in. */
struct F32 {
    typedef float Stored;
    typedef float Value;
    static __device__ __forceinline__ float load(float x) { return x; }
    static __device__ __forceinline__ float store(float x) { return x; }
};
struct F64 {
    typedef double Stored;
    typedef double Value;
    static __device__ __forceinline__ double load(double x) { return x; }
    static __device__ __forceinline__ double store(double x) { return x; }
};
struct F16 {
    typedef unsigned short Stored;
    typedef float Value;
    static __device__ __forceinline__ float load(unsigned short x) { return from_f16(x); }
    static __device__ __forceinline__ unsigned short store(float x) { return to_f16(x); }
};
struct BF16 {
    typedef unsigned short Stored;
    typedef float Value;
    static __device__ __forceinline__ float load(unsigned short x) { return from_bf16(x); }
    static __device__ __forceinline__ unsigned short store(float x) { return to_bf16(x); }
};

/* As if it had been in memory. */
template <typename D, typename C>
__device__ __forceinline__ typename D::Value rounded(C x) {
    return D::load(D::store(static_cast<typename D::Value>(x)));
}

template <typename S, int V>
struct alignas(sizeof(S) * V < 16 ? sizeof(S) * V : 16) Pack {
    S v[V];
};

template <typename D, int V>
__device__ __forceinline__ void load_pack(const void *from, Index i, int vector, typename D::Value (&to)[V]) {
    typedef typename D::Stored S;
    const S *at = static_cast<const S *>(from) + i;
    Pack<S, V> pack;
    if (vector) {
        pack = *reinterpret_cast<const Pack<S, V> *>(at);
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) pack.v[k] = at[k];
    }
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = D::load(pack.v[k]);
}

template <typename D, int V>
__device__ __forceinline__ void store_pack(void *to, Index i, int vector, const typename D::Value (&from)[V]) {
    typedef typename D::Stored S;
    S *at = static_cast<S *>(to) + i;
    Pack<S, V> pack;
#pragma unroll
    for (int k = 0; k < V; k++) pack.v[k] = D::store(from[k]);
    if (vector) {
        *reinterpret_cast<Pack<S, V> *>(at) = pack;
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) at[k] = pack.v[k];
    }
}

/* Of an input that is repeated: element i reads (i / inner) % size. */
template <typename D, int V>
__device__ __forceinline__ void load_repeated(const Arguments &a, int input, Index i, typename D::Value (&to)[V]) {
    const typename D::Stored *from = static_cast<const typename D::Stored *>(a.in[input]);
    const Index inner = a.inner[input], size = a.size[input];
    if (size == 1) {
        const typename D::Value value = D::load(from[0]);
#pragma unroll
        for (int k = 0; k < V; k++) to[k] = value;
    } else if (a.n <= 0x7fffffff) {
        const unsigned short_inner = static_cast<unsigned>(inner), short_size = static_cast<unsigned>(size);
#pragma unroll
        for (int k = 0; k < V; k++) {
            const unsigned at = static_cast<unsigned>(i + k) / short_inner;
            to[k] = D::load(from[at < short_size ? at : at % short_size]);
        }
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) to[k] = D::load(from[(i + k) / inner % size]);
    }
}

/* Where dropout keeps. A block of Philox is four neighbours' numbers. */
template <int V>
__device__ __forceinline__ void draw(const Arguments &a, int node, Index i, bool (&keep)[V]) {
    unsigned long long seed = a.seed[node], offset = a.offset[node];
    if (a.cells[node]) {
        seed = a.cells[node][0];
        offset += a.cells[node][1];
    }
    if (V % 4 == 0 && (i & 3) == 0) {
#pragma unroll
        for (int k = 0; k < V; k += 4) {
            const gt__philox_block words = gt__philox(seed, offset + static_cast<unsigned long long>((i + k) >> 2));
#pragma unroll
            for (int w = 0; w < 4 && k + w < V; w++) keep[k + w] = (words.word[w] >> 8) >= a.threshold[node];
        }
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) {
            const gt__philox_block words = gt__philox(seed, offset + static_cast<unsigned long long>((i + k) >> 2));
            const int w = static_cast<int>((i + k) & 3);
            const unsigned low = (w & 1) ? words.word[1] : words.word[0], high = (w & 1) ? words.word[3] : words.word[2];
            keep[k] = (((w & 2) ? high : low) >> 8) >= a.threshold[node];
        }
    }
}

/* --- ops: as in k_binary.cu and k_unary.cu ------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }

__device__ __forceinline__ float op_add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double op_add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ float op_sub(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ double op_sub(double a, double b) { return __dsub_rn(a, b); }

#define GT_BINARY(name, expression)                                                                                                        \
    template <typename C>                                                                                                                  \
    __device__ __forceinline__ C op_##name(C a, C b) {                                                                                     \
        return expression;                                                                                                                 \
    }
GT_BINARY(mul, product(a, b))
GT_BINARY(div, a / b)
GT_BINARY(maximum, a > b || a != a ? a : b)
GT_BINARY(minimum, a < b || a != a ? a : b)
GT_BINARY(equal, C(a == b))
GT_BINARY(greater, C(a > b))
GT_BINARY(tanh_backward, product(a, C(1) - b * b))
GT_BINARY(sigmoid_backward, product(a *b, C(1) - b))
GT_BINARY(relu_backward, b > C(0) ? a : (b != b ? b : C(0)))
GT_BINARY(gelu_backward, product(a, gelu_slope(b)))
GT_BINARY(gelu_tanh_backward, product(a, gelu_tanh_slope(b)))
GT_BINARY(silu_backward, product(a, silu_slope(b)))

#define GT_UNARY(name, expression)                                                                                                         \
    template <typename C>                                                                                                                  \
    __device__ __forceinline__ C op_##name(C x, C s) {                                                                                     \
        (void)s;                                                                                                                           \
        return expression;                                                                                                                 \
    }
GT_UNARY(neg, -x)
GT_UNARY(abs, math_abs(x))
GT_UNARY(sign, x > C(0) ? C(1) : (x < C(0) ? C(-1) : (x != x ? x : C(0))))
GT_UNARY(square, product(x, x))
GT_UNARY(sqrt, math_sqrt(x))
GT_UNARY(exp, math_exp(x))
GT_UNARY(log, math_log(x))
GT_UNARY(tanh, math_tanh(x))
GT_UNARY(sigmoid, sigmoid(x))
GT_UNARY(relu, x <= C(0) ? C(0) : x)
GT_UNARY(gelu, gelu(x))
GT_UNARY(gelu_tanh, gelu_tanh(x))
GT_UNARY(silu, product(x, sigmoid(x)))
GT_UNARY(add_scalar, op_add(x, s))
GT_UNARY(mul_scalar, product(x, s))
GT_UNARY(pow_scalar, math_pow(x, s))

template <typename C>
__device__ __forceinline__ C op_dropout(C x, bool keep, C scale) {
    return keep ? product(x, scale) : C(0);
}

/* --- sums: f32, or f64 of f64 ------------------------------------------------------------------------------------------------------------- */

#ifdef GT__EMULATED
#define GT_SHARED(type, name, count) type *name = reinterpret_cast<type *>(gt__emulated_shared)
#else
#define GT_SHARED(type, name, count) __shared__ type name[count]
#endif

/* Over a column of the block: threads of one x. All of its threads call this; those of y 0 get the result. `shared`: a value of each thread. */
template <typename C>
__device__ __forceinline__ C column_sum(C value, C *shared) {
    __syncthreads();
    shared[threadIdx.y * blockDim.x + threadIdx.x] = value;
    for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half)
            shared[threadIdx.y * blockDim.x + threadIdx.x] =
                shared[threadIdx.y * blockDim.x + threadIdx.x] + shared[(threadIdx.y + half) * blockDim.x + threadIdx.x];
    }
    return shared[threadIdx.x];
}

/* Result `at`, or a part of it. */
template <typename D, typename C>
__device__ __forceinline__ void put_sum(const Arguments &a, Index part, Index at, C value) {
    if (a.parts > 1)
        static_cast<C *>(a.partial)[part * a.kept + at] = value;
    else
        static_cast<typename D::Stored *>(a.sum)[at] = D::store(static_cast<typename D::Value>(value / static_cast<C>(a.divisor)));
}

/* The parts' sums: a block of one column a result, or a thread, where there are many results. */
template <typename D, typename C>
__device__ __forceinline__ void sum_parts(const Arguments &a) {
    GT_SHARED(C, shared, kBlock);
    C value = C(0);
    if (a.kept == 1) {
        for (Index p = threadIdx.y; p < a.parts; p += blockDim.y) value += static_cast<const C *>(a.partial)[p];
        value = column_sum(value, shared);
        if (threadIdx.y == 0)
            static_cast<typename D::Stored *>(a.sum)[0] = D::store(static_cast<typename D::Value>(value / static_cast<C>(a.divisor)));
        return;
    }
    const Index at = static_cast<Index>(blockIdx.x) * kBlock + threadIdx.y;
    if (at >= a.kept) return;
    for (Index p = 0; p < a.parts; p++) value += static_cast<const C *>(a.partial)[p * a.kept + at];
    static_cast<typename D::Stored *>(a.sum)[at] = D::store(static_cast<typename D::Value>(value / static_cast<C>(a.divisor)));
}

} // namespace gt

#endif

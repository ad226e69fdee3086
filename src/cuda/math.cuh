/* Activation functions and their slopes, in f32 and f64. */
#ifndef GT_CUDA_MATH_CUH
#define GT_CUDA_MATH_CUH

#ifdef __CUDACC__

namespace gt {

template <typename C>
struct MathConstants {
    static constexpr C sqrt_half = C(0.70710678118654752440);   /* 1 / sqrt(2) */
    static constexpr C normal_peak = C(0.39894228040143267794); /* 1 / sqrt(2 pi) */
    static constexpr C gelu_scale = C(0.79788456080286535588);  /* sqrt(2 / pi) */
    static constexpr C gelu_cubic = C(0.044715);
};

__device__ __forceinline__ float math_exp(float x) { return expf(x); }
__device__ __forceinline__ double math_exp(double x) { return exp(x); }
__device__ __forceinline__ float math_log(float x) { return logf(x); }
__device__ __forceinline__ double math_log(double x) { return log(x); }
__device__ __forceinline__ float math_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ double math_tanh(double x) { return tanh(x); }
__device__ __forceinline__ float math_erf(float x) { return erff(x); }
__device__ __forceinline__ double math_erf(double x) { return erf(x); }
__device__ __forceinline__ float math_sqrt(float x) { return sqrtf(x); }
__device__ __forceinline__ double math_sqrt(double x) { return sqrt(x); }
__device__ __forceinline__ float math_pow(float x, float y) { return powf(x, y); }
__device__ __forceinline__ double math_pow(double x, double y) { return pow(x, y); }
__device__ __forceinline__ float math_abs(float x) { return fabsf(x); }
__device__ __forceinline__ double math_abs(double x) { return fabs(x); }

/* By exp(-|x|), which neither overflows nor loses small results. */
template <typename C>
__device__ __forceinline__ C sigmoid(C x) {
    const C e = math_exp(-math_abs(x)), r = C(1) / (C(1) + e);
    return x < C(0) ? e * r : r; /* NaN stays */
}
template <typename C>
__device__ __forceinline__ C gelu(C x) {
    return C(0.5) * x * (C(1) + math_erf(x * MathConstants<C>::sqrt_half));
}
template <typename C>
__device__ __forceinline__ C gelu_slope(C x) {
    const C cumulative = C(0.5) * (C(1) + math_erf(x * MathConstants<C>::sqrt_half));
    return cumulative + x * MathConstants<C>::normal_peak * math_exp(C(-0.5) * x * x);
}
template <typename C>
__device__ __forceinline__ C gelu_tanh(C x) {
    return C(0.5) * x * (C(1) + math_tanh(MathConstants<C>::gelu_scale * (x + MathConstants<C>::gelu_cubic * x * x * x)));
}
template <typename C>
__device__ __forceinline__ C gelu_tanh_slope(C x) {
    const C t = math_tanh(MathConstants<C>::gelu_scale * (x + MathConstants<C>::gelu_cubic * x * x * x));
    const C inner = MathConstants<C>::gelu_scale * (C(1) + C(3) * MathConstants<C>::gelu_cubic * x * x);
    return C(0.5) * (C(1) + t) + C(0.5) * x * (C(1) - t * t) * inner;
}
template <typename C>
__device__ __forceinline__ C silu_slope(C x) {
    const C s = sigmoid(x);
    return s * (C(1) + x * (C(1) - s));
}

} // namespace gt

#endif
#endif

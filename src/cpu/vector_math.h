/* exp, sigmoid and tanh in f32 without branches or calls, so that loops over them become vector code. Within 3 units in the last place of the
 * true value; NaN, infinities and subnormal results are right. */
#ifndef GT_CPU_VECTOR_MATH_H
#define GT_CPU_VECTOR_MATH_H

#include "cpu/half.h"

/* exp(x) = 2^k exp(r) with |r| <= ln(2) / 2; the polynomial is Taylor's, cut where its rest is below half a unit. */
static inline float gt__exp_f32(float x) {
    float bounded = x < -104.0f ? -104.0f : x;
    bounded = bounded > 89.0f ? 89.0f : bounded; /* a NaN passes both comparisons */
    const float round = 0x1.8p23f;               /* adding and subtracting it rounds to the nearest integer */
    float k = (bounded * 1.44269504088896341f + round) - round;
    float r = bounded - k * 0x1.62e4p-1f; /* ln 2 in two parts; the first product is exact */
    r = r - k * 0x1.7f7d1cp-20f;
    float p = 1.9841270114e-4f;
    p = p * r + 1.3888889225e-3f;
    p = p * r + 8.3333337680e-3f;
    p = p * r + 4.1666667908e-2f;
    p = p * r + 1.6666666641e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    /* 2^k in two factors, since k reaches from -150 to 128 and either factor must be normal. */
    int32_t whole = (int32_t)(x == x ? k : 0.0f), half = whole >> 1;
    float first = gt__f32_from_bits((uint32_t)(half + 127) << 23), second = gt__f32_from_bits((uint32_t)(whole - half + 127) << 23);
    float result = p * first * second;
    return x == x ? result : x;
}

/* From exp(-|x|), which never overflows, so that the lower tail stays exact down to the smallest subnormal. */
static inline float gt__sigmoid_f32(float x) {
    float e = gt__exp_f32(x < 0 ? x : -x);
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/* Near 0, where 1 - 2 / (exp(2x) + 1) cancels, its own polynomial (Cephes). */
static inline float gt__tanh_f32(float x) {
    float magnitude = x < 0 ? -x : x;
    float e = gt__exp_f32(2.0f * magnitude);
    float far = 1.0f - 2.0f / (e + 1.0f);
    float s = x * x;
    float p = -5.70498872745e-3f;
    p = p * s + 2.06390887954e-2f;
    p = p * s - 5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s - 3.33332819422e-1f;
    float near = p * s * x + x;
    float signed_far = x < 0 ? -far : far;
    return magnitude < 0.625f ? near : signed_far;
}

#endif

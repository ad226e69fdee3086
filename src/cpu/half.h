/* f16 and bf16 to and from f32: rounded to nearest even, with subnormals, infinities and NaN (made quiet, payload's high bits kept). */
#ifndef GT_CPU_HALF_H
#define GT_CPU_HALF_H

#include <stdint.h>
#include <string.h>

static inline float gt__f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t gt__bits_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float gt__f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31) return gt__f32_from_bits(sign | 0x7f800000u | (mantissa ? 0x400000u | mantissa << 13 : 0));
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;
        return gt__f32_from_bits(sign | gt__bits_from_f32(magnitude));
    }
    return gt__f32_from_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

static inline uint16_t gt__f32_to_f16(float value) {
    uint32_t bits = gt__bits_from_f32(value), magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and up */
    if (magnitude < 0x38800000u) {                                   /* below 2^-14: a subnormal, in units of 2^-24 */
        if (magnitude <= 0x33000000u) return (uint16_t)sign;         /* 2^-25 ties to zero */
        uint32_t shift = 126u - (magnitude >> 23), mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        uint32_t result = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
        if (rest > tie || (rest == tie && (result & 1u))) result++;
        return (uint16_t)(sign | result);
    }
    uint32_t rebased = magnitude - 0x38000000u;
    return (uint16_t)(sign | (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13);
}

static inline float gt__bf16_to_f32(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    if ((bits & 0x7fffffffu) > 0x7f800000u) bits |= 0x400000u;
    return gt__f32_from_bits(bits);
}

static inline uint16_t gt__f32_to_bf16(float value) {
    uint32_t bits = gt__bits_from_f32(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* An f32 from which rounding to a half gives what rounding `value` itself would: cut towards zero, with the last bit set if
 * anything was cut off ("round to odd"). */
static inline float gt__f64_to_f32_odd(double value) {
    float nearest = (float)value;
    if (!(nearest - nearest == 0.0f)) { /* infinite or NaN */
        if (value - value == 0.0) return value < 0 ? -0x1.fffffep127f : 0x1.fffffep127f;
        return nearest;
    }
    double back = (double)nearest;
    if (back == value) return nearest;
    uint32_t bits = gt__bits_from_f32(nearest);
    if ((back < 0 ? -back : back) > (value < 0 ? -value : value)) bits--;
    return gt__f32_from_bits(bits | 1u);
}

/* The same for arrays of any length, with the processor's instructions where it has them and the same bits where not. */
void gt__f16_to_f32_array(float *to, const uint16_t *from, int64_t n);
void gt__f32_to_f16_array(uint16_t *to, const float *from, int64_t n);
void gt__bf16_to_f32_array(float *to, const uint16_t *from, int64_t n);
void gt__f32_to_bf16_array(uint16_t *to, const float *from, int64_t n);

#endif

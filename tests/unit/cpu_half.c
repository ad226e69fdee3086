/* Half-precision conversion against rounding done in exact arithmetic, and the vector functions against libm in f64. */
#include "harness/test.h"

#include "cpu/half.h"
#include "cpu/vector_math.h"

#include <math.h>
#include <stdlib.h>

/* The value of an f16 or bf16 by its fields. */
static double value_of(uint16_t bits, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1),
        mantissa = bits & ((1 << mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

TEST(unit, halves_widen_exactly) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        double f16 = value_of((uint16_t)bits, 5, 10), bf16 = value_of((uint16_t)bits, 8, 7);
        float got16 = gt__f16_to_f32((uint16_t)bits), gotb = gt__bf16_to_f32((uint16_t)bits);
        CHECK(isnan(f16) ? isnan(got16) : got16 == f16 && !!signbit(got16) == !!signbit(f16));
        CHECK(isnan(bf16) ? isnan(gotb) : gotb == bf16 && !!signbit(gotb) == !!signbit(bf16));
    }
}

/* `got` is the nearest of its neighbours, the even one where two are as near. */
static int nearest_even(double x, uint16_t got, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    double largest = ldexp(2.0 - ldexp(1.0, -mantissa_bits), bias), beyond = ldexp(1.0, bias + 1);
    double v = value_of(got, exponent_bits, mantissa_bits);
    if (isnan(x)) return isnan(v);
    if (!!signbit(x) != !!(got & 0x8000)) return 0;
    x = fabs(x);
    v = fabs(v);
    if (isinf(v)) return x >= (largest + beyond) / 2;
    double up = value_of((uint16_t)((got & 0x7fff) + 1), exponent_bits, mantissa_bits);
    double down = got & 0x7fff ? value_of((uint16_t)((got & 0x7fff) - 1), exponent_bits, mantissa_bits) : -1;
    if (isinf(up)) up = beyond;
    double error = fabs(x - v);
    if (error < fabs(x - up) && error < fabs(x - down)) return 1;
    return error <= fabs(x - up) && error <= fabs(x - down) && !(got & 1);
}

TEST(unit, f32_rounds_to_the_nearest_half) {
    for (uint64_t i = 0; i < 1u << 22; i++) {
        uint32_t bits = (uint32_t)(i * 1024 + (i * 2654435761u >> 7 & 1023)); /* all exponents, odd low bits */
        float x = gt__f32_from_bits(bits);
        CHECK(nearest_even((double)x, gt__f32_to_f16(x), 5, 10));
        CHECK(nearest_even((double)x, gt__f32_to_bf16(x), 8, 7));
    }
    for (uint32_t h = 0; h < 0x7c00; h++) { /* ties, and their neighbours */
        float tie = (float)((value_of((uint16_t)h, 5, 10) + (h + 1 < 0x7c00 ? value_of((uint16_t)(h + 1), 5, 10) : 65536.0)) / 2);
        CHECK(nearest_even((double)tie, gt__f32_to_f16(tie), 5, 10));
        CHECK(nearest_even((double)nextafterf(tie, 0), gt__f32_to_f16(nextafterf(tie, 0)), 5, 10));
        CHECK(nearest_even((double)nextafterf(tie, INFINITY), gt__f32_to_f16(nextafterf(tie, INFINITY)), 5, 10));
    }
}

TEST(unit, f64_is_rounded_to_a_half_once) {
    for (uint32_t h = 1; h < 0x7bff; h++) {
        double tie = (value_of((uint16_t)h, 5, 10) + value_of((uint16_t)(h + 1), 5, 10)) / 2;
        double above = nextafter(tie, INFINITY), below = nextafter(tie, 0); /* f32 would round both to the tie */
        CHECK_EQ_INT(gt__f32_to_f16(gt__f64_to_f32_odd(above)), h + 1);
        CHECK_EQ_INT(gt__f32_to_f16(gt__f64_to_f32_odd(below)), h);
        CHECK_EQ_INT(gt__f32_to_f16(gt__f64_to_f32_odd(-above)), 0x8000 | (h + 1));
    }
    CHECK_EQ_INT(gt__f32_to_f16(gt__f64_to_f32_odd(1e300)), 0x7c00);
    CHECK_EQ_INT(gt__f32_to_bf16(gt__f64_to_f32_odd(-1e300)), 0xff80);
    CHECK_EQ_INT(gt__f32_to_f16(gt__f64_to_f32_odd(1e-300)), 0);
}

TEST(unit, array_conversion_gives_the_same_bits_as_one_at_a_time) {
    enum { N = 65536 };
    static uint16_t half[N], back[N];
    static float wide[N];
    for (int i = 0; i < N; i++) half[i] = (uint16_t)i;
    for (int n = N - 9; n <= N; n += 3) {
        gt__f16_to_f32_array(wide, half, n);
        for (int i = 0; i < n; i++) CHECK_EQ_INT(gt__bits_from_f32(wide[i]), gt__bits_from_f32(gt__f16_to_f32(half[i])));
        gt__bf16_to_f32_array(wide, half, n);
        for (int i = 0; i < n; i++) CHECK_EQ_INT(gt__bits_from_f32(wide[i]), gt__bits_from_f32(gt__bf16_to_f32(half[i])));
    }
    for (int round = 0; round < 64; round++) {
        for (int i = 0; i < N; i++) wide[i] = gt__f32_from_bits((uint32_t)i * 65536u + (uint32_t)round * 1021u);
        gt__f32_to_f16_array(back, wide, N);
        for (int i = 0; i < N; i++) CHECK_EQ_INT(back[i], gt__f32_to_f16(wide[i]));
        gt__f32_to_bf16_array(back, wide, N);
        for (int i = 0; i < N; i++) CHECK_EQ_INT(back[i], gt__f32_to_bf16(wide[i]));
    }
}

static double units_off(float got, double want) {
    float rounded = (float)want;
    double unit = (double)nextafterf(fabsf(rounded), INFINITY) - fabs((double)rounded);
    return fabs((double)got - want) / unit;
}

TEST(unit, exp_sigmoid_and_tanh_are_within_three_units) {
    for (int i = -2000000; i <= 2000000; i++) {
        float x = (float)i * 5.2e-5f; /* up to 104 */
        if (x < 88.7f) CHECK(units_off(gt__exp_f32(x), exp((double)x)) <= 3);
        CHECK(units_off(gt__sigmoid_f32(x), 1 / (1 + exp(-(double)x))) <= 3);
        CHECK(units_off(gt__tanh_f32(x * 0.1f), tanh((double)(x * 0.1f))) <= 3);
    }
    CHECK(gt__exp_f32(-INFINITY) == 0 && gt__exp_f32(INFINITY) == INFINITY && gt__exp_f32(200) == INFINITY && gt__exp_f32(0) == 1);
    CHECK(isnan(gt__exp_f32(NAN)) && isnan(gt__sigmoid_f32(NAN)) && isnan(gt__tanh_f32(NAN)));
    CHECK(gt__tanh_f32(INFINITY) == 1 && gt__tanh_f32(-INFINITY) == -1 && gt__sigmoid_f32(-INFINITY) == 0 &&
          gt__sigmoid_f32(INFINITY) == 1);
}

#include "cpu/half.h"

#include "cpu/target.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Every processor with AVX2 has F16C. */
__attribute__((target("avx2,f16c"))) static int64_t f16_to_f32_avx2(float *to, const uint16_t *from, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i))));
    return i;
}

__attribute__((target("avx2,f16c"))) static int64_t f32_to_f16_avx2(uint16_t *to, const float *from, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}
#endif

void gt__f16_to_f32_array(float *to, const uint16_t *from, int64_t n) {
    int64_t i = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) i = f16_to_f32_avx2(to, from, n);
#endif
    for (; i < n; i++) to[i] = gt__f16_to_f32(from[i]);
}

void gt__f32_to_f16_array(uint16_t *to, const float *from, int64_t n) {
    int64_t i = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) i = f32_to_f16_avx2(to, from, n);
#endif
    for (; i < n; i++) to[i] = gt__f32_to_f16(from[i]);
}

/* Clones are static: clang gives an exported one another name than its callers elsewhere look for. */
GT__CPU_CLONES static void bf16_to_f32(float *to, const uint16_t *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = gt__bf16_to_f32(from[i]);
}

GT__CPU_CLONES static void f32_to_bf16(uint16_t *to, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = gt__f32_to_bf16(from[i]);
}

void gt__bf16_to_f32_array(float *to, const uint16_t *from, int64_t n) { bf16_to_f32(to, from, n); }

void gt__f32_to_bf16_array(uint16_t *to, const float *from, int64_t n) { f32_to_bf16(to, from, n); }

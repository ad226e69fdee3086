/* The inner loops of the blocked product. This file alone is compiled with contraction, so that a * b + c becomes one instruction. */
#include "cpu/gemm.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* `lanes` numbers a vector, MR rows, `vectors` vectors a row: all MR * vectors sums stay in registers. */
#define KERNEL(name, target_, real, lanes, MR, vectors)                                                                                    \
    typedef real name##_vector __attribute__((vector_size((lanes) * sizeof(real)), aligned(sizeof(real)), may_alias));                     \
    target_ static void name(int64_t k, const real *a, const real *b, real *c, int64_t c_stride) {                                         \
        name##_vector sums[MR][vectors];                                                                                                   \
        UNROLL for (int i = 0; i < (MR); i++) {                                                                                            \
            UNROLL for (int j = 0; j < (vectors); j++) sums[i][j] =                                                                        \
                *(const name##_vector *)(const void *)(c + i * c_stride + j * (lanes));                                                    \
        }                                                                                                                                  \
        for (; k > 0; k--, a += (MR), b += (vectors) * (lanes)) {                                                                          \
            name##_vector row[vectors];                                                                                                    \
            UNROLL for (int j = 0; j < (vectors); j++) row[j] = *(const name##_vector *)(const void *)(b + j * (lanes));                   \
            UNROLL for (int i = 0; i < (MR); i++) { UNROLL for (int j = 0; j < (vectors); j++) sums[i][j] += a[i] * row[j]; }              \
        }                                                                                                                                  \
        UNROLL for (int i = 0; i < (MR); i++) {                                                                                            \
            UNROLL for (int j = 0; j < (vectors); j++) * (name##_vector *)(void *)(c + i * c_stride + j * (lanes)) = sums[i][j];           \
        }                                                                                                                                  \
    }

KERNEL(product_f32, , float, 4, 4, 2)
KERNEL(product_f64, , double, 2, 4, 2)

#if defined(__x86_64__)
#define AVX2   __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx2,fma")))
KERNEL(product_f32_avx2, AVX2, float, 8, 6, 2)
KERNEL(product_f64_avx2, AVX2, double, 4, 6, 2)
KERNEL(product_f32_avx512, AVX512, float, 16, 12, 2)
KERNEL(product_f64_avx512, AVX512, double, 8, 12, 2)
#endif

gt__gemm_kernel_f32 gt__gemm_kernel_for_f32(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return (gt__gemm_kernel_f32){product_f32_avx512, 12, 32};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return (gt__gemm_kernel_f32){product_f32_avx2, 6, 16};
#endif
    return (gt__gemm_kernel_f32){product_f32, 4, 8};
}

gt__gemm_kernel_f64 gt__gemm_kernel_for_f64(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return (gt__gemm_kernel_f64){product_f64_avx512, 12, 16};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return (gt__gemm_kernel_f64){product_f64_avx2, 6, 8};
#endif
    return (gt__gemm_kernel_f64){product_f64, 4, 4};
}

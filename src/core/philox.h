/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): the one source of random numbers, on every device.
 * Element i of a draw uses word i % 4 of block offset + i / 4. */
#ifndef GT_CORE_PHILOX_H
#define GT_CORE_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define GT__PHILOX_FN static inline __host__ __device__
#else
#define GT__PHILOX_FN static inline
#endif

typedef struct gt__philox_block {
    uint32_t word[4];
} gt__philox_block;

GT__PHILOX_FN gt__philox_block gt__philox(uint64_t seed, uint64_t block) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    gt__philox_block result;
    result.word[0] = c0;
    result.word[1] = c1;
    result.word[2] = c2;
    result.word[3] = c3;
    return result;
}

/* Uniform in [0, 1): 24 bits in f32, 32 bits in f64. */
GT__PHILOX_FN float gt__philox_uniform_f32(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
GT__PHILOX_FN double gt__philox_uniform_f64(uint32_t word) { return (double)word * 0x1p-32; }

#endif

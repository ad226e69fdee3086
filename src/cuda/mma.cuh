/* The warp's matrix instructions of compute capability 8.0 and up (PTX ISA: ldmatrix, mma.m16n8k16, cp.async), on halves with sums in f32. Below 8.0 they do nothing, and
 * must not be called. */
#ifndef GT_CUDA_MMA_CUH
#define GT_CUDA_MMA_CUH

#include "cuda/types.cuh"

namespace gt {

constexpr int kMmaCapability = 80;

#if defined(__CUDACC__) && !defined(GT__EMULATED)

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define GT__MMA 1
#else
#define GT__MMA 0
#endif

__device__ __forceinline__ uint32_t shared_address(const void *shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

/* Four matrices of 8 x 8 halves. Lane 8 k + r gives the address of row r of matrix k (16 bytes, aligned to them); lane l gets the elements 2 (l % 4) and the next of
 * row l / 4 of each. */
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void *row) {
#if GT__MMA
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}
/* The same of the transposed matrices: lane l gets the elements of rows 2 (l % 4) and the next in column l / 4. */
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], const void *row) {
#if GT__MMA
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

/* sum [16, 8] += a [16, 16] b [16, 8]. Lane l has of a: rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next (a[0], a[1]) and those 8 further (a[2], a[3]); of b: rows
 * 2 (l % 4) and the next (b0) and those 8 further (b1) of column l / 4; of sum: columns 2 (l % 4) and the next of rows l / 4 (sum[0], sum[1]) and l / 4 + 8. */
template <typename T>
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__half>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if GT__MMA
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if GT__MMA
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* 16 bytes to shared memory, past the registers; zeros where not `valid` (`from` is not read then). Both are aligned to 16 bytes. There when copies_wait has returned, and for
 * other threads after a barrier. */
__device__ __forceinline__ void copy_async(void *shared, const void *from, bool valid) {
#if GT__MMA
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from), "r"(valid ? 16 : 0) : "memory");
#endif
}
__device__ __forceinline__ void copies_wait() {
#if GT__MMA
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

#endif

} // namespace gt

#endif

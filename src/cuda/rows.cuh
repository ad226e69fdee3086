/* Passes over rows of contiguous elements: `lanes` neighbouring threads share a row, a power of two up to 32, or the whole block of kRowBlock. */
#ifndef GT_CUDA_ROWS_CUH
#define GT_CUDA_ROWS_CUH

#include "cuda/launch.cuh"

namespace gt {

constexpr int kRowBlock = 256;

/* Lanes for rows of `length` elements, `v` of which are read at once. */
inline int rows_lanes(int64_t length, int v) {
    const int64_t loads = ceil_div(length, v);
    if (loads > 256) return kRowBlock;
    int lanes = 1;
    while (lanes < 32 && lanes < loads) lanes *= 2;
    return lanes;
}

inline uint32_t rows_grid(int64_t rows, int lanes) { return grid_for(rows, kRowBlock / lanes); }

#ifdef __CUDACC__

/* A sum over a row's lanes; all of them get it. Every thread of the block must take part. `shared` holds 32 values. */
template <typename C>
__device__ __forceinline__ C row_sum(C value, int lanes, C *shared) {
    return lanes > 32 ? block_sum(value, shared) : lanes_sum(value, lanes);
}

/* V values of the compute type; as several accesses where they take more than 16 bytes. */
template <typename C, int V>
__device__ __forceinline__ void load_values(const C *p, C (&values)[V], bool vector) {
    constexpr int W = V < kVector<C> ? V : kVector<C>;
#pragma unroll
    for (int k = 0; k < V; k += W) {
        const Pack<C, W> pack = load_pack<C, W>(p + k, vector);
#pragma unroll
        for (int i = 0; i < W; i++) values[k + i] = pack.v[i];
    }
}

#endif

} // namespace gt

#endif

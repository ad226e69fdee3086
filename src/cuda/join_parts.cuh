/* Sums of which each block of a launch has made a part, joined in the same launch: over groups of blocks and then over all groups, by whoever is last to finish but in a fixed
 * order, so that the bits are the same every time. A tile is a set of sums with parts of its own. */
#ifndef GT_CUDA_JOIN_PARTS_CUH
#define GT_CUDA_JOIN_PARTS_CUH

#include "cuda/launch.cuh"

namespace gt {

struct Parts {
    uint32_t parts, group, groups; /* group: parts in one */

    size_t blocks_of_sums(uint32_t tiles) const { return parts == 1 ? 0 : static_cast<size_t>(tiles) * (parts + groups); }
};

template <typename C>
struct PartSums : Parts {
    C *partial; /* [tile, part, value], then the groups' [tile, group, value]: blocks_of_sums times the values of a tile; NULL with one part */
    uint32_t *counters; /* gt__cuda_counters */
};

/* One part where the counters do not suffice. */
inline Parts parts_make(int64_t parts, uint32_t tiles) {
    Parts p = {1, 1, 1};
    p.parts = static_cast<uint32_t>(parts);
    while (p.group * p.group < p.parts) p.group++;
    p.groups = static_cast<uint32_t>(ceil_div(p.parts, p.group));
    return static_cast<int64_t>(tiles) * (p.groups + 1) > GT__CUDA_COUNTERS ? Parts{1, 1, 1} : p;
}

#ifdef __CUDACC__

/* True in all threads of the block that is the last of `count` to come here; it sees what the others had written before. */
__device__ __forceinline__ bool is_last(uint32_t *counter, uint32_t count) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) last = atomicInc(counter, count - 1) == count - 1;
    __syncthreads();
    const bool result = last;
    if (result) __threadfence();
    __syncthreads();
    return result;
}

template <int kBytes>
struct Words;
template <>
struct Words<8> {
    using type = uint2;
};
template <>
struct Words<16> {
    using type = uint4;
};

/* Gives use(i, sum) the thread's share of the sums over `count` blocks of partial[block, i], i < values: kBytes at a time, 16 of them in flight. */
template <int kBytes, typename C, typename Use>
__device__ __forceinline__ void sum_blocks(const C *partial, uint32_t count, uint32_t values, Use use) {
    using W = typename Words<kBytes>::type;
    constexpr uint32_t kBatch = 16, kWide = kBytes / sizeof(C);
    const uint32_t thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    for (uint32_t i = thread * kWide; i < values; i += threads * kWide) {
        C sum[kWide];
#pragma unroll
        for (uint32_t w = 0; w < kWide; w++) sum[w] = C(0);
        for (uint32_t k = 0; k < count; k += kBatch) {
            union {
                W bits;
                Pack<C, kWide> pack;
            } value[kBatch];
#pragma unroll
            for (uint32_t b = 0; b < kBatch; b++) {
                value[b].bits = {};
                if (k + b < count) value[b].bits = __ldcg(reinterpret_cast<const W *>(partial + ((k + b) * values + i)));
            }
#pragma unroll
            for (uint32_t b = 0; b < kBatch; b++) {
#pragma unroll
                for (uint32_t w = 0; w < kWide; w++) sum[w] += value[b].pack.v[w];
            }
        }
#pragma unroll
        for (uint32_t w = 0; w < kWide; w++) use(i + w, sum[w]);
    }
}

/* Where a block puts its sums. */
template <typename C>
__device__ __forceinline__ C *own_part(const PartSums<C> &s, uint32_t tile, uint32_t part, uint32_t values) {
    return s.partial + (static_cast<int64_t>(tile) * s.parts + part) * values;
}

/* After all of the block's sums are in own_part, of which there is more than one: the last block of the tile calls finish(i, sum) for each of the values, whose number is a
 * multiple of kBytes. Threads with few registers, or that are many, read fewer bytes each. */
template <int kBytes, typename C, typename Finish>
__device__ __forceinline__ void join_parts(const PartSums<C> &s, uint32_t tile, uint32_t tiles, uint32_t part, uint32_t values,
                                           Finish finish) {
    const uint32_t group = part / s.group, before = group * s.group, members = s.parts - before < s.group ? s.parts - before : s.group;
    if (!is_last(s.counters + tiles + tile * s.groups + group, members)) return;
    const C *of_group = own_part(s, tile, before, values);
    C *of_groups = s.partial + (static_cast<int64_t>(tiles) * s.parts + static_cast<int64_t>(tile) * s.groups) * values;
    sum_blocks<kBytes>(of_group, members, values, [&](uint32_t i, C value) {
        if (s.groups == 1)
            finish(i, value);
        else
            of_groups[static_cast<int64_t>(group) * values + i] = value;
    });
    if (s.groups == 1 || !is_last(s.counters + tile, s.groups)) return;
    sum_blocks<kBytes>(of_groups, s.groups, values, finish);
}

#endif

} // namespace gt

#endif

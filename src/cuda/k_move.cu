/* The inputs of a program in one launch: copied, or converted to half precision on the way. A captured launch gets new sources by gt__cuda_graph_move. */
#include "cuda/cuda_util.h"
#include "cuda/kernels.h"
#include "cuda/multi.cuh"

namespace {
using namespace gt;

constexpr int32_t kMoveChunk = 2048; /* elements a block */

struct Move {
    void *to;
    const void *from;
    int64_t count;
    int32_t kind; /* MoveKind */
    int32_t vector;
};
enum MoveKind : int32_t { kBytes, kToHalf, kToBfloat };
using MoveTable = Table<Move, kSmallParameters, 0>;

template <typename T>
__device__ __forceinline__ void convert_chunk(const Move &move, int64_t begin, int64_t end) {
    const float *from = static_cast<const float *>(move.from);
    T *to = static_cast<T *>(move.to);
#pragma unroll 2
    for (int64_t i = begin + threadIdx.x * 4; i < end; i += kMultiBlock * 4) {
        if (i + 4 <= end) {
            const Pack<float, 4> in = load_pack<float, 4>(from + i, move.vector);
            Pack<T, 4> out;
#pragma unroll
            for (int k = 0; k < 4; k++) out.v[k] = convert<T>(in.v[k]);
            store_pack(to + i, out, move.vector);
        } else {
            for (int64_t k = i; k < end; k++) to[k] = convert<T>(from[k]);
        }
    }
}

__device__ __forceinline__ void copy_chunk(const Move &move, int64_t begin, int64_t end) {
    const char *from = static_cast<const char *>(move.from);
    char *to = static_cast<char *>(move.to);
    int64_t at = begin;
    if (move.vector) {
        const int64_t whole = begin + ((end - begin) & ~int64_t(15));
#pragma unroll 2
        for (int64_t i = begin + threadIdx.x * int64_t(16); i < whole; i += kMultiBlock * 16)
            *reinterpret_cast<uint4 *>(to + i) = *reinterpret_cast<const uint4 *>(from + i);
        at = whole;
    }
    for (int64_t i = at + threadIdx.x; i < end; i += kMultiBlock) to[i] = from[i];
}

__global__ void __launch_bounds__(kMultiBlock) k_move(const __grid_constant__ MoveTable table) {
    uint32_t block;
    const Move &move = table.items[table.find(block)];
    const int64_t chunk = move.kind == kBytes ? kMoveChunk * 4 : kMoveChunk, begin = block * chunk;
    const int64_t end = begin + chunk < move.count ? begin + chunk : move.count;
    if (move.kind == kToHalf)
        convert_chunk<__half>(move, begin, end);
    else if (move.kind == kToBfloat)
        convert_chunk<__nv_bfloat16>(move, begin, end);
    else
        copy_chunk(move, begin, end);
}

gt_status fill(MoveTable *table, const gt__move *list, int32_t count) {
    table->count = 0;
    for (int32_t i = 0; i < count; i++) {
        const gt__move &m = list[i];
        Move move = {m.destination, m.source, m.count, kBytes, aligned(m.destination, 16) && aligned(m.source, 16)};
        if (m.to == m.from) {
            move.count *= element_bytes(m.to);
        } else if (m.from == GT_DTYPE_F32 && (m.to == GT_DTYPE_F16 || m.to == GT_DTYPE_BF16)) {
            move.kind = m.to == GT_DTYPE_F16 ? kToHalf : kToBfloat;
        } else {
            return gt__cuda_refuse_dtype(nullptr, m.from);
        }
        if (!table->add(move, move.count, move.kind == kBytes ? kMoveChunk * 4 : kMoveChunk))
            GT_FAIL(GT_BAD_SHAPE, "inputs: %lld elements are too many for one launch", (long long)m.count);
    }
    return GT_OK;
}

} // namespace

gt_status gt__cuda_move_many(gt__device *device, const gt__move *list, int32_t count) {
    MoveTable table;
    GT_TRY(fill(&table, list, count));
    if (table.count == 0) return GT_OK;
    return launch2(device, nullptr, "inputs", k_move, table.blocks(), 1u, kMultiBlock, 1u, table);
}

gt_status gt__cuda_move_node(void *ready, void *node, const gt__move *list, int32_t count) {
    MoveTable table;
    GT_TRY(fill(&table, list, count));
    if (table.count == 0) return GT_OK;
    void *arguments[] = {&table};
    cudaKernelNodeParams parameters = {};
    parameters.func = reinterpret_cast<void *>(k_move);
    parameters.gridDim = dim3(table.blocks(), 1, 1);
    parameters.blockDim = dim3(kMultiBlock, 1, 1);
    parameters.kernelParams = arguments;
    GT_TRY_CUDA(cudaGraphExecKernelNodeSetParams(static_cast<cudaGraphExec_t>(ready), static_cast<cudaGraphNode_t>(node), &parameters));
    return GT_OK;
}

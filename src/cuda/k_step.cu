/* What surrounds an update: sums on a few numbers, looking for results that are not finite, and many small copies in one launch. */
#include "core/step_math.h"
#include "cuda/multi.cuh"

namespace {
using namespace gt;

__global__ void __launch_bounds__(kMultiBlock) k_step_task(const __grid_constant__ gt__step_task task) {
    gt__step_advance(&task, threadIdx.x, blockDim.x);
    if (threadIdx.x == 0) gt__step_run(&task);
}

template <typename T>
__global__ void __launch_bounds__(kMultiBlock) k_mark_not_finite(const T *data, int64_t count, uint64_t mark, unsigned long long *least) {
    bool bad = false;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kMultiBlock) + threadIdx.x; i < count;
         i += static_cast<int64_t>(gridDim.x) * kMultiBlock)
        bad |= !gt__is_finite(convert<double>(data[i]));
    if (__syncthreads_or(bad) && threadIdx.x == 0) atomicMin(least, static_cast<unsigned long long>(mark));
}

template <typename T>
gt_status mark_in(gt__device *device, const void *data, int64_t count, uint64_t mark, uint64_t *least) {
    return launch2(device, nullptr, "overflow check", k_mark_not_finite<T>, grid_for(count, kMultiBlock * 8), 1u, kMultiBlock, 1u,
                   static_cast<const T *>(data), count, mark, reinterpret_cast<unsigned long long *>(least));
}

struct Copy {
    void *to;
    const void *from;
    int64_t bytes;
    int64_t vector; /* both aligned for 16 bytes */
};
template <size_t bytes>
using CopyTable = Table<Copy, bytes, 0>;
constexpr int64_t kCopyChunk = 32768; /* bytes a block */

template <size_t bytes>
__global__ void __launch_bounds__(kMultiBlock) k_copy_many(const __grid_constant__ CopyTable<bytes> table) {
    uint32_t block;
    const Copy &item = table.items[table.find(block)];
    const int64_t begin = block * kCopyChunk, end = begin + kCopyChunk < item.bytes ? begin + kCopyChunk : item.bytes;
    char *to = static_cast<char *>(item.to);
    const char *from = static_cast<const char *>(item.from);
    int64_t at = begin;
    if (item.vector) {
        const int64_t whole = begin + ((end - begin) & ~int64_t(15));
        for (int64_t i = begin + threadIdx.x * int64_t(16); i < whole; i += kMultiBlock * 16)
            *reinterpret_cast<uint4 *>(to + i) = *reinterpret_cast<const uint4 *>(from + i);
        at = whole;
    }
    for (int64_t i = at + threadIdx.x; i < end; i += kMultiBlock) to[i] = from[i];
}

template <size_t bytes>
gt_status copy_many(gt__device *device, const gt__copy_item *list, int32_t count) {
    CopyTable<bytes> table;
    int32_t k = 0;
    while (k < count) {
        table.count = 0;
        for (; k < count; k++) {
            const int64_t size = static_cast<int64_t>(list[k].bytes);
            const Copy item = {list[k].destination, list[k].source, size, aligned(list[k].destination, 16) && aligned(list[k].source, 16)};
            if (!table.add(item, size, kCopyChunk)) break;
        }
        if (table.count > 0)
            GT_TRY(launch2(device, nullptr, "copies", k_copy_many<bytes>, table.blocks(), 1u, kMultiBlock, 1u, table));
        else if (k < count)
            GT_FAIL(GT_BAD_SHAPE, "copies: %zu bytes are too many for one", list[k].bytes);
    }
    return GT_OK;
}

} // namespace

gt_status gt__cuda_step_task(gt__device *device, const gt__step_task *task) {
    return launch2(device, nullptr, "step", k_step_task, 1u, 1u, task->settle_count > 1 ? kMultiBlock : 1u, 1u, *task);
}

gt_status gt__cuda_mark_not_finite(gt__device *device, const void *data, gt_dtype dtype, int64_t count, uint64_t mark, uint64_t *least) {
    if (count == 0) return GT_OK;
    switch (dtype) {
    case GT_DTYPE_F32:
        return mark_in<float>(device, data, count, mark, least);
    case GT_DTYPE_F64:
        return mark_in<double>(device, data, count, mark, least);
    case GT_DTYPE_F16:
        return mark_in<__half>(device, data, count, mark, least);
    case GT_DTYPE_BF16:
        return mark_in<__nv_bfloat16>(device, data, count, mark, least);
    default:
        return gt__cuda_refuse_dtype(nullptr, dtype);
    }
}

gt_status gt__cuda_copy_many(gt__device *device, const gt__copy_item *list, int32_t count) {
    if (count > CopyTable<kSmallParameters>::kCapacity && large_parameters()) return copy_many<kLargeParameters>(device, list, count);
    return copy_many<kSmallParameters>(device, list, count);
}

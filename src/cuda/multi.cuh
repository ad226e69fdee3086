/* One launch over many tensors: a table of them travels as the kernel's parameter, and each block finds its tensor and chunk in it. */
#ifndef GT_CUDA_MULTI_CUH
#define GT_CUDA_MULTI_CUH

#include "cuda/launch.cuh"

namespace gt {

constexpr int kMultiBlock = 256;

/* Parameters of more than 4 KB need CUDA 12.1, in the compiler and in the driver. */
constexpr size_t kSmallParameters = 4000;
#if CUDART_VERSION >= 12010
constexpr size_t kLargeParameters = 32000;
#else
constexpr size_t kLargeParameters = kSmallParameters;
#endif

/* Tensor k has blocks first[k] .. first[k + 1] - 1. `extra`: bytes of the kernel's other parameters. */
template <typename Item, size_t bytes, size_t extra>
struct Table {
    static constexpr int kCapacity = static_cast<int>((bytes - extra - 16) / (sizeof(Item) + sizeof(uint32_t)));
    int32_t count;
    int32_t chunk; /* elements a block, where that depends on the list */
    uint32_t first[kCapacity + 1];
    Item items[kCapacity];

    /* False if it is full, or if its blocks would exceed a grid. Items without elements are left out. */
    bool add(const Item &item, int64_t elements, int64_t chunk) {
        const int64_t blocks = ceil_div(elements, chunk);
        if (blocks == 0) return true;
        if (count == kCapacity) return false;
        if (count == 0) first[0] = 0;
        if (first[count] + blocks > kMaxGridX) return false;
        items[count] = item;
        first[count + 1] = first[count] + static_cast<uint32_t>(blocks);
        count++;
        return true;
    }
    uint32_t blocks() const { return count ? first[count] : 0; }

#ifdef __CUDACC__
    /* The tensor of this block, and the number of the block in it. */
    __device__ __forceinline__ int find(uint32_t &block) const {
        int low = 0, high = count - 1;
        while (low < high) {
            const int middle = (low + high + 1) / 2;
            if (first[middle] <= blockIdx.x)
                low = middle;
            else
                high = middle - 1;
        }
        block = blockIdx.x - first[low];
        return low;
    }
#endif
};

/* Elements a block, from `least` to `most`, powers of two: enough blocks to give every multiprocessor some. It depends on the list's total alone, so that sums are
 * taken in the same order every time. */
inline int32_t chunk_for(gt__device *device, int64_t total, int32_t least, int32_t most) {
    while (most > least && total / most < 4 * static_cast<int64_t>(gt__cuda_multiprocessors(device))) most /= 2;
    return most;
}

/* Whether this driver takes large parameters. */
inline bool large_parameters() {
    int version = 0;
    return kLargeParameters > kSmallParameters && cudaDriverGetVersion(&version) == cudaSuccess && version >= 12010;
}

} // namespace gt

#endif

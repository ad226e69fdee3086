/* Adding a finished weight gradient of any float dtype to one kept in f32, where a library can only overwrite. */
#include "cuda/launch.cuh"

namespace {
using namespace gt;

constexpr int kBlock = 256;
constexpr int V = 4;

template <typename T>
__global__ void __launch_bounds__(kBlock) k_add_into(float *sum, const T *add, int64_t count, bool accumulate, bool vector) {
    const int64_t step = gridDim.x * static_cast<int64_t>(kBlock) * V;
    for (int64_t i = (blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x) * V; i < count; i += step) {
        if (i + V <= count) {
            const Pack<T, V> from = load_pack<T, V>(add + i, vector);
            Pack<float, V> to;
            if (accumulate) to = load_pack<float, V>(sum + i, vector);
#pragma unroll
            for (int k = 0; k < V; k++) to.v[k] = (accumulate ? to.v[k] : 0.0f) + convert<float>(from.v[k]);
            store_pack(sum + i, to, vector);
        } else {
            for (int64_t j = i; j < count; j++) sum[j] = (accumulate ? sum[j] : 0.0f) + convert<float>(add[j]);
        }
    }
}

} // namespace

gt_status gt__cuda_add_into(gt__device *device, float *sum, const void *add, gt_dtype dtype, int64_t count, int32_t accumulate) {
    if (count <= 0) return GT_OK;
    const bool vector = aligned(sum, 16) && aligned(add, 16);
    const uint32_t grid = grid_for(ceil_div(count, V), kBlock);
    switch (dtype) {
    case GT_DTYPE_F16:
        return launch(device, nullptr, k_add_into<__half>, grid, kBlock, sum, static_cast<const __half *>(add), count, accumulate != 0,
                      vector);
    case GT_DTYPE_BF16:
        return launch(device, nullptr, k_add_into<__nv_bfloat16>, grid, kBlock, sum, static_cast<const __nv_bfloat16 *>(add), count,
                      accumulate != 0, vector);
    default:
        return launch(device, nullptr, k_add_into<float>, grid, kBlock, sum, static_cast<const float *>(add), count, accumulate != 0,
                      vector);
    }
}

/* The index of the first maximum along an axis; NaN counts as the maximum. */
#include "cuda/launch.cuh"

namespace {
using namespace gt;

constexpr int kBlock = 256;

template <typename C>
__device__ __forceinline__ bool beats(C a, int64_t a_index, C b, int64_t b_index) {
    const bool a_nan = a != a, b_nan = b != b;
    if (a_nan != b_nan) return a_nan;
    if (a > b) return true;
    if (a < b) return false;
    return a_index < b_index;
}

/* `lanes` neighbouring threads (a power of two up to 32) look along one row together. */
template <typename T>
__global__ void __launch_bounds__(kBlock) k_argmax(const T *x, int64_t *y, Walk<2> rows, int64_t length, int64_t stride, int lanes) {
    using C = compute_t<T>;
    const int lane = threadIdx.x % lanes;
    const int64_t per_block = kBlock / lanes;
    for (int64_t first = blockIdx.x * per_block; first < rows.numel; first += gridDim.x * per_block) {
        const int64_t row = first + threadIdx.x / lanes;
        C best = 0;
        int64_t index = INT64_MAX, at[2] = {0, 0};
        if (row < rows.numel) {
            walk_offsets(rows, row, at);
            for (int64_t j = lane; j < length; j += lanes) {
                const C value = convert<C>(x[at[0] + j * stride]);
                if (index == INT64_MAX || beats(value, j, best, index)) {
                    best = value;
                    index = j;
                }
            }
        }
        for (int step = lanes >> 1; step > 0; step >>= 1) {
            const C other = __shfl_xor_sync(0xffffffffu, best, step);
            const int64_t other_index = __shfl_xor_sync(0xffffffffu, index, step);
            if (other_index != INT64_MAX && (index == INT64_MAX || beats(other, other_index, best, index))) {
                best = other;
                index = other_index;
            }
        }
        if (row < rows.numel && lane == 0) y[at[1]] = index;
    }
}

} // namespace

gt_status gt__cuda_argmax(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    const int32_t axis = call->attr.reduce.axis;
    int64_t shape[GT_MAX_DIMS], strides[GT_MAX_DIMS], out_strides[GT_MAX_DIMS];
    int32_t n = 0;
    for (int32_t a = 0; a < x->meta.ndim; a++) {
        if (a == axis) continue;
        shape[n] = x->meta.shape[a];
        strides[n++] = x->meta.strides[a];
    }
    int64_t step = 1;
    for (int32_t a = n - 1; a >= 0; a--) {
        out_strides[a] = step;
        step *= shape[a];
    }
    Walk<2> rows;
    walk_make<2>(&rows, n, shape, {strides, out_strides});
    const int64_t length = x->meta.shape[axis], stride = x->meta.strides[axis];
    int32_t lanes = 1;
    if (stride == 1)
        while (lanes < 32 && lanes * 2 <= length) lanes *= 2;
    const uint32_t grid = grid_for(rows.numel, kBlock / lanes);
    GT__FOR_FLOATS(call, x->meta.dtype,
                   return launch(device, call, k_argmax<T>, grid, kBlock, data<const T>(x), data<int64_t>(y), rows, length, stride, lanes));
    return GT_OK;
}

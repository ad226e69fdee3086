/* softmax and log_softmax along one axis of [outer, length, inner], and their gradients. To: the result's type, f32 of halves or the other way round where
 * a call converts. */
#include "cuda/exp_sum.cuh"
#include "cuda/rows.cuh"

namespace {
using namespace gt;

constexpr int kBlock = 256;

/* dx from dy, y and the row's sum: of dy y for softmax, of dy for log_softmax. */
template <bool logarithm, typename C>
__device__ __forceinline__ C slope(C dy, C y, C sum) {
    if constexpr (logarithm) return dy - math_exp(y) * sum;
    return y * (dy - sum);
}
template <bool logarithm, typename C>
__device__ __forceinline__ C weigh(C dy, C y) {
    if constexpr (logarithm) return dy;
    return dy * y;
}

/* --- inner 1: `lanes` threads share a row */

template <typename T, typename To, int V, bool logarithm>
__global__ void __launch_bounds__(kRowBlock) k_softmax_rows(const T *x, To *y, int64_t rows, int64_t length, int lanes) {
    using C = compute_t<T>;
    __shared__ ExpSum<C> shared[32];
    const int lane = threadIdx.x % lanes;
    const int64_t per_block = kRowBlock / lanes;
    for (int64_t first = blockIdx.x * per_block; first < rows; first += gridDim.x * per_block) {
        const int64_t row = first + threadIdx.x / lanes;
        const T *in = x + row * length;
        ExpSum<C> total = exp_sum_zero<C>();
        if (row < rows) {
#pragma unroll 2
            for (int64_t j = static_cast<int64_t>(lane) * V; j < length; j += static_cast<int64_t>(lanes) * V) {
                const Pack<T, V> pack = load_pack<T, V>(in + j, true);
#pragma unroll
                for (int i = 0; i < V; i++) exp_sum_add(total, convert<C>(pack.v[i]));
            }
        }
        total = exp_sum_row(total, lanes, shared);
        if (row >= rows) continue;
        const C factor = logarithm ? math_log(total.sum) : C(1) / total.sum;
        for (int64_t j = static_cast<int64_t>(lane) * V; j < length; j += static_cast<int64_t>(lanes) * V) {
            const Pack<T, V> pack = load_pack<T, V>(in + j, true);
            Pack<To, V> result;
#pragma unroll
            for (int i = 0; i < V; i++) {
                const C value = convert<C>(pack.v[i]);
                result.v[i] = convert<To>(logarithm ? value - total.max - factor : math_exp(value - total.max) * factor);
            }
            store_pack(y + row * length + j, result, true);
        }
    }
}

template <typename T, typename To, int V, bool logarithm>
__global__ void __launch_bounds__(kRowBlock)
    k_softmax_backward_rows(const T *dy, const T *y, To *dx, int64_t rows, int64_t length, int lanes) {
    using C = compute_t<T>;
    __shared__ C shared[32];
    const int lane = threadIdx.x % lanes;
    const int64_t per_block = kRowBlock / lanes;
    for (int64_t first = blockIdx.x * per_block; first < rows; first += gridDim.x * per_block) {
        const int64_t row = first + threadIdx.x / lanes, start = row * length;
        C sum = C(0);
        if (row < rows) {
#pragma unroll 2
            for (int64_t j = static_cast<int64_t>(lane) * V; j < length; j += static_cast<int64_t>(lanes) * V) {
                const Pack<T, V> gradient = load_pack<T, V>(dy + start + j, true), result = load_pack<T, V>(y + start + j, true);
#pragma unroll
                for (int i = 0; i < V; i++) sum += weigh<logarithm>(convert<C>(gradient.v[i]), convert<C>(result.v[i]));
            }
        }
        sum = row_sum(sum, lanes, shared);
        if (row >= rows) continue;
        for (int64_t j = static_cast<int64_t>(lane) * V; j < length; j += static_cast<int64_t>(lanes) * V) {
            const Pack<T, V> gradient = load_pack<T, V>(dy + start + j, true), result = load_pack<T, V>(y + start + j, true);
            Pack<To, V> made;
#pragma unroll
            for (int i = 0; i < V; i++) made.v[i] = convert<To>(slope<logarithm>(convert<C>(gradient.v[i]), convert<C>(result.v[i]), sum));
            store_pack(dx + start + j, made, true);
        }
    }
}

/* --- other inner sizes: a thread goes along the axis, its neighbours along inner */

template <typename T, typename To, bool logarithm>
__global__ void __launch_bounds__(kBlock) k_softmax_strided(const T *x, To *y, int64_t count, int64_t length, int64_t inner) {
    using C = compute_t<T>;
    for (int64_t k = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; k < count; k += gridDim.x * static_cast<int64_t>(kBlock)) {
        const int64_t outer = k / inner, start = outer * length * inner + (k - outer * inner);
        ExpSum<C> total = exp_sum_zero<C>();
#pragma unroll 4
        for (int64_t j = 0; j < length; j++) exp_sum_add(total, convert<C>(x[start + j * inner]));
        const C factor = logarithm ? math_log(total.sum) : C(1) / total.sum;
        for (int64_t j = 0; j < length; j++) {
            const C value = convert<C>(x[start + j * inner]);
            y[start + j * inner] = convert<To>(logarithm ? value - total.max - factor : math_exp(value - total.max) * factor);
        }
    }
}

template <typename T, typename To, bool logarithm>
__global__ void __launch_bounds__(kBlock)
    k_softmax_backward_strided(const T *dy, const T *y, To *dx, int64_t count, int64_t length, int64_t inner) {
    using C = compute_t<T>;
    for (int64_t k = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; k < count; k += gridDim.x * static_cast<int64_t>(kBlock)) {
        const int64_t outer = k / inner, start = outer * length * inner + (k - outer * inner);
        C sum = C(0);
#pragma unroll 4
        for (int64_t j = 0; j < length; j++) sum += weigh<logarithm>(convert<C>(dy[start + j * inner]), convert<C>(y[start + j * inner]));
        for (int64_t j = 0; j < length; j++) {
            const int64_t at = start + j * inner;
            dx[at] = convert<To>(slope<logarithm>(convert<C>(dy[at]), convert<C>(y[at]), sum));
        }
    }
}

struct Axis {
    int64_t outer, length, inner;
};

Axis axis_of(const gt__call *call) {
    const gt__meta *meta = &call->out[0]->meta;
    Axis a = {1, meta->shape[call->attr.softmax.axis], 1};
    for (int32_t i = 0; i < call->attr.softmax.axis; i++) a.outer *= meta->shape[i];
    for (int32_t i = call->attr.softmax.axis + 1; i < meta->ndim; i++) a.inner *= meta->shape[i];
    return a;
}

template <typename T, typename To, bool logarithm>
gt_status forward_to(gt__device *device, const gt__call *call) {
    const T *x = data<const T>(call->in[0]);
    To *y = data<To>(call->out[0]);
    const Axis a = axis_of(call);
    if (a.inner != 1)
        return launch(device, call, k_softmax_strided<T, To, logarithm>, grid_for(a.outer * a.inner, kBlock), kBlock, x, y,
                      a.outer * a.inner, a.length, a.inner);
    constexpr int V = kVector<T>;
    const bool vector = a.length % V == 0 && aligned(x, 16) && aligned(y, sizeof(Pack<To, V>));
    const int lanes = rows_lanes(a.length, vector ? V : 1);
    const auto kernel = vector ? k_softmax_rows<T, To, V, logarithm> : k_softmax_rows<T, To, 1, logarithm>;
    return launch(device, call, kernel, rows_grid(a.outer, lanes), kRowBlock, x, y, a.outer, a.length, lanes);
}

template <typename T, typename To, bool logarithm>
gt_status backward_to(gt__device *device, const gt__call *call) {
    const T *dy = data<const T>(call->in[0]), *y = data<const T>(call->in[1]);
    To *dx = data<To>(call->out[0]);
    const Axis a = axis_of(call);
    if (a.inner != 1)
        return launch(device, call, k_softmax_backward_strided<T, To, logarithm>, grid_for(a.outer * a.inner, kBlock), kBlock, dy, y, dx,
                      a.outer * a.inner, a.length, a.inner);
    constexpr int V = kVector<T>;
    const bool vector = a.length % V == 0 && aligned(dy, 16) && aligned(y, 16) && aligned(dx, sizeof(Pack<To, V>));
    const int lanes = rows_lanes(a.length, vector ? V : 1);
    const auto kernel = vector ? k_softmax_backward_rows<T, To, V, logarithm> : k_softmax_backward_rows<T, To, 1, logarithm>;
    return launch(device, call, kernel, rows_grid(a.outer, lanes), kRowBlock, dy, y, dx, a.outer, a.length, lanes);
}

template <bool logarithm>
gt_status forward(gt__device *device, const gt__call *call) {
    const gt_dtype from = call->in[0]->meta.dtype, to = call->out[0]->meta.dtype;
    if (call->out[0]->meta.numel == 0) return GT_OK;
    if (from == GT_DTYPE_F16 && to == GT_DTYPE_F32) return forward_to<__half, float, logarithm>(device, call);
    if (from == GT_DTYPE_BF16 && to == GT_DTYPE_F32) return forward_to<__nv_bfloat16, float, logarithm>(device, call);
    GT__FOR_FLOATS(call, from, return forward_to<T, T, logarithm>(device, call));
    return GT_OK;
}

template <bool logarithm>
gt_status backward(gt__device *device, const gt__call *call) {
    const gt_dtype from = call->in[0]->meta.dtype, to = call->out[0]->meta.dtype;
    if (call->out[0]->meta.numel == 0) return GT_OK;
    if (from == GT_DTYPE_F32 && to == GT_DTYPE_F16) return backward_to<float, __half, logarithm>(device, call);
    if (from == GT_DTYPE_F32 && to == GT_DTYPE_BF16) return backward_to<float, __nv_bfloat16, logarithm>(device, call);
    GT__FOR_FLOATS(call, from, return backward_to<T, T, logarithm>(device, call));
    return GT_OK;
}

} // namespace

gt_status gt__cuda_softmax(gt__device *device, const gt__call *call) { return forward<false>(device, call); }
gt_status gt__cuda_log_softmax(gt__device *device, const gt__call *call) { return forward<true>(device, call); }
gt_status gt__cuda_softmax_backward(gt__device *device, const gt__call *call) { return backward<false>(device, call); }
gt_status gt__cuda_log_softmax_backward(gt__device *device, const gt__call *call) { return backward<true>(device, call); }

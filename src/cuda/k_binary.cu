/* Elementwise ops on two tensors, with broadcasting, and the gradients that read (dy, y) or (dy, x). */
#include "cuda/launch.cuh"
#include "cuda/math.cuh"

namespace {
using namespace gt;

enum class Op {
    Add,
    Sub,
    Mul,
    Div,
    Maximum,
    Minimum,
    Equal,
    Greater,
    TanhBackward,
    SigmoidBackward,
    ReluBackward,
    GeluBackward,
    GeluTanhBackward,
    SiluBackward
};

template <Op op, typename C>
__device__ __forceinline__ C apply(C a, C b) {
    if constexpr (op == Op::Add) return a + b;
    if constexpr (op == Op::Sub) return a - b;
    if constexpr (op == Op::Mul) return a * b;
    if constexpr (op == Op::Div) return a / b;
    if constexpr (op == Op::Maximum) return max_nan(a, b);
    if constexpr (op == Op::Minimum) return min_nan(a, b);
    if constexpr (op == Op::Equal) return C(a == b);
    if constexpr (op == Op::Greater) return C(a > b);
    if constexpr (op == Op::TanhBackward) return a * (C(1) - b * b);
    if constexpr (op == Op::SigmoidBackward) return a * b * (C(1) - b);
    if constexpr (op == Op::ReluBackward) return b > C(0) ? a : (b != b ? b : C(0));
    if constexpr (op == Op::GeluBackward) return a * gelu_slope(b);
    if constexpr (op == Op::GeluTanhBackward) return a * gelu_tanh_slope(b);
    if constexpr (op == Op::SiluBackward) return a * silu_slope(b);
}

constexpr int kBlock = 256;
constexpr int kUnroll = 2;

/* All three dense in one layout; `vector`: all three 16-byte aligned. */
template <Op op, typename T>
__global__ void __launch_bounds__(kBlock) k_binary_dense(const T *a, const T *b, T *y, int64_t n, bool vector) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    constexpr int64_t kSpan = static_cast<int64_t>(kBlock) * kUnroll * V;
    for (int64_t begin = blockIdx.x * kSpan; begin < n; begin += gridDim.x * kSpan) {
        Pack<T, V> pa[kUnroll], pb[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            const int64_t at = begin + (static_cast<int64_t>(u) * kBlock + threadIdx.x) * V;
            if (at + V <= n) {
                pa[u] = load_pack<T, V>(a + at, vector);
                pb[u] = load_pack<T, V>(b + at, vector);
            }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            const int64_t at = begin + (static_cast<int64_t>(u) * kBlock + threadIdx.x) * V;
            if (at + V <= n) {
#pragma unroll
                for (int i = 0; i < V; i++) pa[u].v[i] = convert<T>(apply<op, C>(convert<C>(pa[u].v[i]), convert<C>(pb[u].v[i])));
                store_pack(y + at, pa[u], vector);
            } else {
                for (int64_t i = at; i < n; i++) y[i] = convert<T>(apply<op, C>(convert<C>(a[i]), convert<C>(b[i])));
            }
        }
    }
}

template <typename C>
__device__ __forceinline__ C apply_number(Op op, C a, C b) {
    switch (op) {
    case Op::Add:
        return apply<Op::Add>(a, b);
    case Op::Sub:
        return apply<Op::Sub>(a, b);
    case Op::Mul:
        return apply<Op::Mul>(a, b);
    case Op::Maximum:
        return apply<Op::Maximum>(a, b);
    case Op::Minimum:
        return apply<Op::Minimum>(a, b);
    case Op::Equal:
        return apply<Op::Equal>(a, b);
    default:
        return apply<Op::Greater>(a, b);
    }
}

template <typename C>
__device__ __forceinline__ C apply_float(Op op, C a, C b) {
    switch (op) {
    case Op::Div:
        return apply<Op::Div>(a, b);
    case Op::TanhBackward:
        return apply<Op::TanhBackward>(a, b);
    case Op::SigmoidBackward:
        return apply<Op::SigmoidBackward>(a, b);
    case Op::ReluBackward:
        return apply<Op::ReluBackward>(a, b);
    case Op::GeluBackward:
        return apply<Op::GeluBackward>(a, b);
    case Op::GeluTanhBackward:
        return apply<Op::GeluTanhBackward>(a, b);
    case Op::SiluBackward:
        return apply<Op::SiluBackward>(a, b);
    default:
        return apply_number(op, a, b);
    }
}

template <typename T>
struct IsFloat {
    static constexpr bool value = true;
};
template <>
struct IsFloat<int32_t> {
    static constexpr bool value = false;
};
template <>
struct IsFloat<int64_t> {
    static constexpr bool value = false;
};
template <>
struct IsFloat<uint8_t> {
    static constexpr bool value = false;
};

template <typename T>
__global__ void __launch_bounds__(kBlock) k_binary_strided(Op op, const T *a, const T *b, T *y, Walk<3> walk) {
    using C = compute_t<T>;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < walk.numel;
         i += gridDim.x * static_cast<int64_t>(kBlock)) {
        int64_t at[3];
        walk_offsets(walk, i, at);
        const C left = convert<C>(a[at[1]]), right = convert<C>(b[at[2]]);
        C result;
        if constexpr (IsFloat<T>::value) {
            result = apply_float<C>(op, left, right);
        } else {
            result = apply_number<C>(op, left, right);
        }
        y[at[0]] = convert<T>(result);
    }
}

template <Op op>
gt_status run(gt__device *device, const gt__call *call) {
    const gt_tensor *a = call->in[0], *b = call->in[1], *y = call->out[0];
    const gt_dtype dtype = y->meta.dtype;
    if (a->meta.dtype != dtype) return gt__cuda_refuse_dtype(call, a->meta.dtype);
    if (b->meta.dtype != dtype) return gt__cuda_refuse_dtype(call, b->meta.dtype);
    constexpr bool numbers = op <= Op::Greater && op != Op::Div;
    if (!numbers && !gt__dtype_is_float(dtype)) return gt__cuda_refuse_dtype(call, dtype);
    if (y->meta.numel == 0) return GT_OK;

    int64_t strides_a[GT_MAX_DIMS], strides_b[GT_MAX_DIMS];
    broadcast_strides(&a->meta, y->meta.ndim, y->meta.shape, strides_a);
    broadcast_strides(&b->meta, y->meta.ndim, y->meta.shape, strides_b);
    Walk<3> walk;
    walk_make<3>(&walk, y->meta.ndim, y->meta.shape, {y->meta.strides, strides_a, strides_b});
    const void *pa = data(a), *pb = data(b);
    void *py = data(y);

    if (walk.linear()) {
        const bool vector = aligned(pa, 16) && aligned(pb, 16) && aligned(py, 16);
        const int64_t n = walk.numel;
        switch (dtype) {
        case GT_DTYPE_F32:
            return launch(device, call, k_binary_dense<op, float>, grid_for(n, kBlock * kUnroll * 4), kBlock,
                          static_cast<const float *>(pa), static_cast<const float *>(pb), static_cast<float *>(py), n, vector);
        case GT_DTYPE_F16:
            return launch(device, call, k_binary_dense<op, __half>, grid_for(n, kBlock * kUnroll * 8), kBlock,
                          static_cast<const __half *>(pa), static_cast<const __half *>(pb), static_cast<__half *>(py), n, vector);
        case GT_DTYPE_BF16:
            return launch(device, call, k_binary_dense<op, __nv_bfloat16>, grid_for(n, kBlock * kUnroll * 8), kBlock,
                          static_cast<const __nv_bfloat16 *>(pa), static_cast<const __nv_bfloat16 *>(pb), static_cast<__nv_bfloat16 *>(py),
                          n, vector);
        default:
            break;
        }
    }
    const uint32_t grid = grid_for(walk.numel, kBlock);
    GT__FOR_NUMBERS(call, dtype,
                    return launch(device, call, k_binary_strided<T>, grid, kBlock, op, static_cast<const T *>(pa),
                                  static_cast<const T *>(pb), static_cast<T *>(py), walk));
    return GT_OK;
}

} // namespace

gt_status gt__cuda_add(gt__device *device, const gt__call *call) { return run<Op::Add>(device, call); }
gt_status gt__cuda_sub(gt__device *device, const gt__call *call) { return run<Op::Sub>(device, call); }
gt_status gt__cuda_mul(gt__device *device, const gt__call *call) { return run<Op::Mul>(device, call); }
gt_status gt__cuda_div(gt__device *device, const gt__call *call) { return run<Op::Div>(device, call); }
gt_status gt__cuda_maximum(gt__device *device, const gt__call *call) { return run<Op::Maximum>(device, call); }
gt_status gt__cuda_minimum(gt__device *device, const gt__call *call) { return run<Op::Minimum>(device, call); }
gt_status gt__cuda_equal(gt__device *device, const gt__call *call) { return run<Op::Equal>(device, call); }
gt_status gt__cuda_greater(gt__device *device, const gt__call *call) { return run<Op::Greater>(device, call); }
gt_status gt__cuda_tanh_backward(gt__device *device, const gt__call *call) { return run<Op::TanhBackward>(device, call); }
gt_status gt__cuda_sigmoid_backward(gt__device *device, const gt__call *call) { return run<Op::SigmoidBackward>(device, call); }
gt_status gt__cuda_relu_backward(gt__device *device, const gt__call *call) { return run<Op::ReluBackward>(device, call); }
gt_status gt__cuda_gelu_backward(gt__device *device, const gt__call *call) { return run<Op::GeluBackward>(device, call); }
gt_status gt__cuda_gelu_tanh_backward(gt__device *device, const gt__call *call) { return run<Op::GeluTanhBackward>(device, call); }
gt_status gt__cuda_silu_backward(gt__device *device, const gt__call *call) { return run<Op::SiluBackward>(device, call); }

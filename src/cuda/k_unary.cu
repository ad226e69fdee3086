/* Elementwise ops on one tensor. */
#include "cuda/launch.cuh"
#include "cuda/math.cuh"

namespace {
using namespace gt;

enum class Op { Neg, Abs, Sign, Square, Sqrt, Exp, Log, Tanh, Sigmoid, Relu, Gelu, GeluTanh, Silu, AddScalar, MulScalar, PowScalar };

template <Op op, typename C>
__device__ __forceinline__ C apply(C x, C value) {
    if constexpr (op == Op::Neg) return -x;
    if constexpr (op == Op::Abs) return math_abs(x);
    if constexpr (op == Op::Sign) return x > C(0) ? C(1) : (x < C(0) ? C(-1) : (x != x ? x : C(0)));
    if constexpr (op == Op::Square) return x * x;
    if constexpr (op == Op::Sqrt) return math_sqrt(x);
    if constexpr (op == Op::Exp) return math_exp(x);
    if constexpr (op == Op::Log) return math_log(x);
    if constexpr (op == Op::Tanh) return math_tanh(x);
    if constexpr (op == Op::Sigmoid) return sigmoid(x);
    if constexpr (op == Op::Relu) return x <= C(0) ? C(0) : x; /* NaN stays */
    if constexpr (op == Op::Gelu) return gelu(x);
    if constexpr (op == Op::GeluTanh) return gelu_tanh(x);
    if constexpr (op == Op::Silu) return x * sigmoid(x);
    if constexpr (op == Op::AddScalar) return x + value;
    if constexpr (op == Op::MulScalar) return x * value;
    if constexpr (op == Op::PowScalar) return math_pow(x, value);
}

constexpr int kBlock = 256;
constexpr int kUnroll = 2;

/* Both dense in one layout; `vector`: both 16-byte aligned. */
template <Op op, typename T>
__global__ void __launch_bounds__(kBlock) k_unary_dense(const T *x, T *y, int64_t n, compute_t<T> value, bool vector) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    constexpr int64_t kSpan = static_cast<int64_t>(kBlock) * kUnroll * V;
    for (int64_t begin = blockIdx.x * kSpan; begin < n; begin += gridDim.x * kSpan) {
        Pack<T, V> pack[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            const int64_t at = begin + (static_cast<int64_t>(u) * kBlock + threadIdx.x) * V;
            if (at + V <= n) pack[u] = load_pack<T, V>(x + at, vector);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            const int64_t at = begin + (static_cast<int64_t>(u) * kBlock + threadIdx.x) * V;
            if (at + V <= n) {
#pragma unroll
                for (int i = 0; i < V; i++) pack[u].v[i] = convert<T>(apply<op, C>(convert<C>(pack[u].v[i]), value));
                store_pack(y + at, pack[u], vector);
            } else {
                for (int64_t i = at; i < n; i++) y[i] = convert<T>(apply<op, C>(convert<C>(x[i]), value));
            }
        }
    }
}

template <typename C>
__device__ __forceinline__ C apply_any(Op op, C x, C value) {
    switch (op) {
    case Op::Neg:
        return apply<Op::Neg>(x, value);
    case Op::Abs:
        return apply<Op::Abs>(x, value);
    case Op::Sign:
        return apply<Op::Sign>(x, value);
    case Op::Square:
        return apply<Op::Square>(x, value);
    case Op::Sqrt:
        return apply<Op::Sqrt>(x, value);
    case Op::Exp:
        return apply<Op::Exp>(x, value);
    case Op::Log:
        return apply<Op::Log>(x, value);
    case Op::Tanh:
        return apply<Op::Tanh>(x, value);
    case Op::Sigmoid:
        return apply<Op::Sigmoid>(x, value);
    case Op::Relu:
        return apply<Op::Relu>(x, value);
    case Op::Gelu:
        return apply<Op::Gelu>(x, value);
    case Op::GeluTanh:
        return apply<Op::GeluTanh>(x, value);
    case Op::Silu:
        return apply<Op::Silu>(x, value);
    case Op::AddScalar:
        return apply<Op::AddScalar>(x, value);
    case Op::MulScalar:
        return apply<Op::MulScalar>(x, value);
    default:
        return apply<Op::PowScalar>(x, value);
    }
}

template <typename T>
__global__ void __launch_bounds__(kBlock) k_unary_strided(Op op, const T *x, T *y, compute_t<T> value, Walk<2> walk) {
    using C = compute_t<T>;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < walk.numel;
         i += gridDim.x * static_cast<int64_t>(kBlock)) {
        int64_t at[2];
        walk_offsets(walk, i, at);
        y[at[0]] = convert<T>(apply_any<C>(op, convert<C>(x[at[1]]), value));
    }
}

template <Op op, typename T>
gt_status run_dense(gt__device *device, const gt__call *call, const void *x, void *y, int64_t n, double value) {
    const bool vector = aligned(x, 16) && aligned(y, 16);
    return launch(device, call, k_unary_dense<op, T>, grid_for(n, kBlock * kUnroll * kVector<T>), kBlock, static_cast<const T *>(x),
                  static_cast<T *>(y), n, static_cast<compute_t<T>>(value), vector);
}

template <Op op>
gt_status run(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *y = call->out[0];
    const gt_dtype dtype = y->meta.dtype;
    if (x->meta.dtype != dtype) return gt__cuda_refuse_dtype(call, x->meta.dtype);
    if (y->meta.numel == 0) return GT_OK;
    const double value = op >= Op::AddScalar ? call->attr.scalar.value : 0.0;

    int64_t strides[GT_MAX_DIMS];
    broadcast_strides(&x->meta, y->meta.ndim, y->meta.shape, strides);
    Walk<2> walk;
    walk_make<2>(&walk, y->meta.ndim, y->meta.shape, {y->meta.strides, strides});
    if (walk.linear()) {
        switch (dtype) {
        case GT_DTYPE_F32:
            return run_dense<op, float>(device, call, data(x), data(y), walk.numel, value);
        case GT_DTYPE_F16:
            return run_dense<op, __half>(device, call, data(x), data(y), walk.numel, value);
        case GT_DTYPE_BF16:
            return run_dense<op, __nv_bfloat16>(device, call, data(x), data(y), walk.numel, value);
        default:
            break;
        }
    }
    const uint32_t grid = grid_for(walk.numel, kBlock);
    GT__FOR_FLOATS(call, dtype,
                   return launch(device, call, k_unary_strided<T>, grid, kBlock, op, data<const T>(x), data<T>(y),
                                 static_cast<compute_t<T>>(value), walk));
    return GT_OK;
}

} // namespace

gt_status gt__cuda_neg(gt__device *device, const gt__call *call) { return run<Op::Neg>(device, call); }
gt_status gt__cuda_abs(gt__device *device, const gt__call *call) { return run<Op::Abs>(device, call); }
gt_status gt__cuda_sign(gt__device *device, const gt__call *call) { return run<Op::Sign>(device, call); }
gt_status gt__cuda_square(gt__device *device, const gt__call *call) { return run<Op::Square>(device, call); }
gt_status gt__cuda_sqrt(gt__device *device, const gt__call *call) { return run<Op::Sqrt>(device, call); }
gt_status gt__cuda_exp(gt__device *device, const gt__call *call) { return run<Op::Exp>(device, call); }
gt_status gt__cuda_log(gt__device *device, const gt__call *call) { return run<Op::Log>(device, call); }
gt_status gt__cuda_tanh(gt__device *device, const gt__call *call) { return run<Op::Tanh>(device, call); }
gt_status gt__cuda_sigmoid(gt__device *device, const gt__call *call) { return run<Op::Sigmoid>(device, call); }
gt_status gt__cuda_relu(gt__device *device, const gt__call *call) { return run<Op::Relu>(device, call); }
gt_status gt__cuda_gelu(gt__device *device, const gt__call *call) { return run<Op::Gelu>(device, call); }
gt_status gt__cuda_gelu_tanh(gt__device *device, const gt__call *call) { return run<Op::GeluTanh>(device, call); }
gt_status gt__cuda_silu(gt__device *device, const gt__call *call) { return run<Op::Silu>(device, call); }
gt_status gt__cuda_add_scalar(gt__device *device, const gt__call *call) { return run<Op::AddScalar>(device, call); }
gt_status gt__cuda_mul_scalar(gt__device *device, const gt__call *call) { return run<Op::MulScalar>(device, call); }
gt_status gt__cuda_pow_scalar(gt__device *device, const gt__call *call) { return run<Op::PowScalar>(device, call); }

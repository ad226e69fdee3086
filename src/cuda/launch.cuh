/* What our kernels share on the host side: typed launches, grid sizes, choosing a type by dtype, and the walk over strided operands. */
#ifndef GT_CUDA_LAUNCH_CUH
#define GT_CUDA_LAUNCH_CUH

#include "cuda/launch.h"
#include "cuda/types.cuh"

namespace gt {

template <typename T>
struct Same {
    using type = T;
};

template <typename... P>
inline gt_status launch2(gt__device *device, const gt__call *call, const char *what, void (*kernel)(P...), uint32_t grid_x, uint32_t grid_y,
                         uint32_t block_x, uint32_t block_y, const typename Same<P>::type &...arguments) {
    void *pointers[] = {const_cast<void *>(static_cast<const void *>(&arguments))...};
    return gt__cuda_launch(device, call, what, reinterpret_cast<const void *>(kernel), grid_x, grid_y, block_x, block_y, pointers);
}

template <typename... P>
inline gt_status launch(gt__device *device, const gt__call *call, void (*kernel)(P...), uint32_t grid, uint32_t block,
                        const typename Same<P>::type &...arguments) {
    return launch2(device, call, "kernel", kernel, grid, 1u, block, 1u, arguments...);
}

constexpr int64_t kMaxGridX = 0x7fffffff;
constexpr int64_t kMaxGridY = 65535;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Blocks for `items` at `per_block` a block. At most 2^31 - 1: kernels loop with the grid's stride. */
inline uint32_t grid_for(int64_t items, int64_t per_block) {
    return static_cast<uint32_t>(min64(max64(ceil_div(items, per_block), 1), kMaxGridX));
}

inline bool aligned(const void *pointer, size_t bytes) { return (reinterpret_cast<uintptr_t>(pointer) & (bytes - 1)) == 0; }

inline int64_t element_bytes(gt_dtype dtype) {
    switch (dtype) {
    case GT_DTYPE_F16:
    case GT_DTYPE_BF16:
        return 2;
    case GT_DTYPE_F64:
    case GT_DTYPE_I64:
        return 8;
    case GT_DTYPE_U8:
        return 1;
    default:
        return 4;
    }
}

template <typename T = void>
inline T *data(const gt_tensor *tensor) {
    return tensor ? static_cast<T *>(gt__data(tensor)) : nullptr;
}

/* --- the walk ----------------------------------------------------------------------------------------------------------------------
 * N strided operands of one iteration shape. Axis 0 is the innermost. Axes of size 1 are dropped, axes are sorted by operand 0's strides and
 * neighbours joined, so that operands of one dense layout become a single axis of stride 1. */
template <int N>
struct Walk {
    int64_t numel;
    int32_t ndim; /* >= 1 */
    int32_t wide; /* indices need 64 bits */
    FastDivide divide[GT_MAX_DIMS];
    int64_t size[GT_MAX_DIMS];
    int64_t stride[N][GT_MAX_DIMS]; /* in elements */

    bool linear() const {
        if (ndim != 1) return false;
        for (int k = 0; k < N; k++)
            if (stride[k][0] != 1) return false;
        return true;
    }
};

/* `strides[k]` has `ndim` entries for operand k, 0 where it is repeated. */
template <int N>
inline void walk_make(Walk<N> *walk, int32_t ndim, const int64_t *shape, const int64_t *const (&strides)[N]) {
    int32_t n = 0;
    walk->numel = 1;
    for (int32_t a = ndim - 1; a >= 0; a--) {
        walk->numel *= shape[a];
        if (shape[a] == 1) continue;
        int32_t at = n++;
        for (; at > 0 && walk->stride[0][at - 1] > strides[0][a]; at--) {
            walk->size[at] = walk->size[at - 1];
            for (int k = 0; k < N; k++) walk->stride[k][at] = walk->stride[k][at - 1];
        }
        walk->size[at] = shape[a];
        for (int k = 0; k < N; k++) walk->stride[k][at] = strides[k][a];
    }
    if (n == 0) { /* one element */
        n = 1;
        walk->size[0] = 1;
        for (int k = 0; k < N; k++) walk->stride[k][0] = 1;
    }
    int32_t last = 0;
    for (int32_t a = 1; a < n; a++) {
        bool join = true;
        for (int k = 0; k < N; k++) join = join && walk->stride[k][a] == walk->stride[k][last] * walk->size[last];
        if (join) {
            walk->size[last] *= walk->size[a];
        } else {
            last++;
            walk->size[last] = walk->size[a];
            for (int k = 0; k < N; k++) walk->stride[k][last] = walk->stride[k][a];
        }
    }
    walk->ndim = last + 1;
    walk->wide = walk->numel > FastDivide::kLimit;
    for (int32_t a = 0; a < walk->ndim && !walk->wide && walk->numel > 0; a++) walk->divide[a].set(walk->size[a]);
}

/* `meta`'s strides as seen from a tensor of `ndim` axes and `shape` that it is broadcast to. */
inline void broadcast_strides(const gt__meta *meta, int32_t ndim, const int64_t *shape, int64_t *strides) {
    const int32_t missing = ndim - meta->ndim;
    for (int32_t a = 0; a < ndim; a++)
        strides[a] = a < missing || (meta->shape[a - missing] == 1 && shape[a] != 1) ? 0 : meta->strides[a - missing];
}

#ifdef __CUDACC__
/* Where element `index` of the walk lies in each operand. */
template <int N>
__device__ __forceinline__ void walk_offsets(const Walk<N> &walk, int64_t index, int64_t (&offset)[N]) {
#pragma unroll
    for (int k = 0; k < N; k++) offset[k] = 0;
    if (!walk.wide) {
        uint32_t rest = static_cast<uint32_t>(index);
#pragma unroll
        for (int a = 0; a < GT_MAX_DIMS; a++) {
            uint32_t at = rest;
            if (a + 1 < walk.ndim) {
                rest = walk.divide[a].quotient(at);
                at -= rest * static_cast<uint32_t>(walk.size[a]);
            }
#pragma unroll
            for (int k = 0; k < N; k++) offset[k] += static_cast<int64_t>(at) * walk.stride[k][a];
            if (a + 1 >= walk.ndim) break;
        }
    } else {
        int64_t rest = index;
        for (int a = 0; a < walk.ndim; a++) {
            int64_t at = rest;
            if (a + 1 < walk.ndim) {
                rest = at / walk.size[a];
                at -= rest * walk.size[a];
            }
            for (int k = 0; k < N; k++) offset[k] += at * walk.stride[k][a];
        }
    }
}
#endif

} // namespace gt

/* Runs the statements with T as the type of `dtype`; other dtypes leave the function with BAD_DTYPE. */
#define GT__CASE(id, type, ...)                                                                                                            \
    case GT_DTYPE_##id: {                                                                                                                  \
        using T = type;                                                                                                                    \
        __VA_ARGS__;                                                                                                                       \
        break;                                                                                                                             \
    }
#define GT__FOR_FLOATS(call, dtype, ...)                                                                                                   \
    switch (dtype) {                                                                                                                       \
        GT__CASE(F32, float, __VA_ARGS__)                                                                                                  \
        GT__CASE(F16, __half, __VA_ARGS__)                                                                                                 \
        GT__CASE(BF16, __nv_bfloat16, __VA_ARGS__)                                                                                         \
        GT__CASE(F64, double, __VA_ARGS__)                                                                                                 \
    default:                                                                                                                               \
        return gt__cuda_refuse_dtype(call, dtype);                                                                                         \
    }
#define GT__FOR_NUMBERS(call, dtype, ...)                                                                                                  \
    switch (dtype) {                                                                                                                       \
        GT__CASE(F32, float, __VA_ARGS__)                                                                                                  \
        GT__CASE(F16, __half, __VA_ARGS__)                                                                                                 \
        GT__CASE(BF16, __nv_bfloat16, __VA_ARGS__)                                                                                         \
        GT__CASE(F64, double, __VA_ARGS__)                                                                                                 \
        GT__CASE(I32, int32_t, __VA_ARGS__)                                                                                                \
        GT__CASE(I64, int64_t, __VA_ARGS__)                                                                                                \
        GT__CASE(U8, uint8_t, __VA_ARGS__)                                                                                                 \
    default:                                                                                                                               \
        return gt__cuda_refuse_dtype(call, dtype);                                                                                         \
    }

#endif

/* 2-d pooling: which pixels of the larger and the smaller image belong together, and which kernels are chosen for them. */
#ifndef GT_CUDA_POOL_CUH
#define GT_CUDA_POOL_CUH

#include "cuda/launch.cuh"

namespace gt {

/* Quotients of what is not negative. */
struct Divide {
    int64_t divisor;
    FastDivide fast;
    bool narrow;

    void set(int64_t d, int64_t largest) { /* numerators are at most `largest` */
        divisor = d;
        narrow = d <= FastDivide::kLimit && largest <= FastDivide::kLimit;
        if (narrow) fast.set(d);
    }
#ifdef __CUDACC__
    __device__ __forceinline__ int64_t quotient(int64_t n) const {
        return narrow ? static_cast<int64_t>(fast.quotient(static_cast<uint32_t>(n))) : n / divisor;
    }
#endif
};

/* Along one axis: which inputs an output reads, and which outputs read an input. */
struct Window {
    int64_t in, out; /* sizes of the axis */
    int64_t kernel, stride, padding;
    bool adaptive;
    Divide by_in, by_out, by_stride; /* the first two where adaptive, else the last */

#ifdef __CUDACC__
    __device__ __forceinline__ int64_t begin(int64_t o) const { /* may be negative */
        return adaptive ? by_out.quotient(o * in) : o * stride - padding;
    }
    __device__ __forceinline__ int64_t end(int64_t o) const { /* may be beyond the input */
        return adaptive ? by_out.quotient((o + 1) * in + out - 1) : o * stride - padding + kernel;
    }
    __device__ __forceinline__ int64_t first_reader(int64_t i) const {
        if (adaptive) return by_in.quotient(i * out);
        const int64_t beyond = i + padding - kernel; /* outputs up to beyond / stride end before i */
        return beyond < 0 ? 0 : by_stride.quotient(beyond) + 1;
    }
    __device__ __forceinline__ int64_t last_reader(int64_t i) const {
        const int64_t last = adaptive ? by_in.quotient((i + 1) * out - 1) : by_stride.quotient(i + padding);
        return last < out ? last : out - 1;
    }
#endif
};

/* The strides of the smaller image, in elements. */
struct Layout {
    int64_t image, channel, row, column;
};

#ifdef __CUDACC__
/* V channels of a pixel. Neighbours are one access, which the address allows. */
template <typename T, int V>
__device__ __forceinline__ Pack<T, V> load_channels(const T *p, int64_t step) {
    Pack<T, V> pack;
    if (step == 1) return load_pack<T, V>(p, true);
#pragma unroll
    for (int k = 0; k < V; k++) pack.v[k] = p[k * step];
    return pack;
}
template <typename T, int V>
__device__ __forceinline__ void store_channels(T *p, const Pack<T, V> &pack, int64_t step) {
    if (step == 1) {
        store_pack(p, pack, true);
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) p[k * step] = pack.v[k];
    }
}
#endif

struct Pool {
    Window rows, columns;
    Layout layout; /* of the smaller image */
    bool apart;    /* which is not channels-last */
    bool vector;   /* x, y (and their gradients) can be moved 16 bytes at a time, y where its channels are neighbours */
    int32_t tile;  /* 2 or 3: windows of this size are for pool_tiles; else 0 */
};

inline bool tile_window(const Window &w, int64_t size) {
    if (w.adaptive) return size == 2 && w.in % 2 == 0 && w.in / 2 == w.out;
    return w.kernel == size && w.stride == 2 && w.padding == size / 3;
}

/* x, y: the larger and the smaller image, or their gradients. */
inline Pool pool_make(const gt__call *call, const gt_tensor *x, const gt_tensor *y, const gt_tensor *index, bool adaptive) {
    Pool pool;
    Window *windows[2] = {&pool.rows, &pool.columns};
    for (int a = 0; a < 2; a++) {
        Window *w = windows[a];
        *w = {};
        w->in = x->meta.shape[2 + a];
        w->out = y->meta.shape[2 + a];
        w->kernel = call->attr.pool.kernel[a];
        w->stride = call->attr.pool.stride[a];
        w->padding = call->attr.pool.padding[a];
        w->adaptive = adaptive;
        if (adaptive) {
            const bool small = w->in < FastDivide::kLimit && w->out < FastDivide::kLimit;
            const int64_t largest = small ? (w->in + 1) * (w->out + 1) : INT64_MAX;
            w->by_in.set(w->in, largest);
            w->by_out.set(w->out, largest);
        } else {
            w->by_stride.set(w->stride, w->in + w->padding);
        }
    }
    const int64_t v = 16 / element_bytes(x->meta.dtype);
    const int64_t *strides = y->meta.strides;
    pool.layout = {strides[0], strides[1], strides[2], strides[3]};
    bool together = strides[1] == 1 && aligned(data(y), 16);
    for (int a = 0; a < 4; a++) together = together && (a == 1 || y->meta.shape[a] == 1 || strides[a] % v == 0);
    pool.apart = false;
    int64_t step = 1;
    for (int a : {1, 3, 2, 0}) {
        pool.apart = pool.apart || (y->meta.shape[a] != 1 && strides[a] != step);
        step *= y->meta.shape[a];
    }
    pool.vector = x->meta.shape[1] % v == 0 && aligned(data(x), 16) && aligned(data(index), 16) && (together || strides[1] != 1);
    pool.tile = 0;
    const bool fits = pool.vector && (!index || index->meta.dtype == GT_DTYPE_U8) && x->meta.numel / v <= FastDivide::kLimit &&
                      max64(pool.rows.in, pool.columns.in) <= FastDivide::kLimit / 2;
    for (int32_t size = 2; size <= 3 && fits; size++)
        if (tile_window(pool.rows, size) && tile_window(pool.columns, size)) pool.tile = size;
    return pool;
}

/* k_pool_tiles.cu: all of max or average pooling, or of its gradient, where pool.tile is not 0. */
gt_status pool_tiles(gt__device *device, const gt__call *call, const Pool &pool, bool max, bool include_padding);
gt_status pool_tiles_backward(gt__device *device, const gt__call *call, const Pool &pool, bool max, bool include_padding);

/* Whether an image of these strides is row-major without holes. */
inline bool pool_is_flat(const gt__meta *meta) {
    int64_t step = 1;
    for (int a = 3; a >= 0; a--) {
        if (meta->shape[a] != 1 && meta->strides[a] != step) return false;
        step *= meta->shape[a];
    }
    return true;
}
/* k_pool_flat.cu: all of max pooling where pool.tile is 2 and the result row-major. */
gt_status pool_flat(gt__device *device, const gt__call *call);

} // namespace gt

#endif

/* 2-d pooling of channels-last images. A thread makes V neighbouring channels of one pixel; gradients are gathered by input pixel, so that nothing is
 * added to from two places. The commonest windows, 2 x 2 and 3 x 3 at stride 2, have kernels of their own. The result of max pooling, and its gradient,
 * may have any strides. */
#include "cuda/pool.cuh"

namespace {
using namespace gt;

constexpr int kBlock = 256;

/* Pixels of [n, height, width] times packs of channels, as a flat range. */
struct Pixels {
    int64_t count, height, width, packs;
    FastDivide by_packs, by_width, by_height;
    bool wide;
};

Pixels pixels_make(const gt__meta *meta, int v) {
    Pixels p;
    p.packs = meta->shape[1] / v;
    p.height = meta->shape[2];
    p.width = meta->shape[3];
    p.count = meta->shape[0] * p.height * p.width * p.packs;
    p.wide = p.count > FastDivide::kLimit;
    if (!p.wide && p.count > 0) {
        p.by_packs.set(p.packs);
        p.by_width.set(p.width);
        p.by_height.set(p.height);
    }
    return p;
}

struct Place {
    int64_t n, y, x, pack;
};

__device__ __forceinline__ Place place_of(const Pixels &p, int64_t i) {
    Place at;
    if (p.wide) {
        at.pack = i % p.packs;
        i /= p.packs;
        at.x = i % p.width;
        i /= p.width;
        at.y = i % p.height;
        at.n = i / p.height;
    } else {
        const uint32_t index = static_cast<uint32_t>(i), row = p.by_packs.quotient(index), line = p.by_width.quotient(row),
                       image = p.by_height.quotient(line);
        at.pack = index - row * p.by_packs.divisor;
        at.x = row - line * p.by_width.divisor;
        at.y = line - image * p.by_height.divisor;
        at.n = image;
    }
    return at;
}

__device__ __forceinline__ int64_t clip_begin(int64_t i) { return i > 0 ? i : 0; }
__device__ __forceinline__ int64_t clip_end(int64_t i, int64_t size) { return i < size ? i : size; }

template <typename T, int V, typename I>
__global__ void __launch_bounds__(kBlock) k_max_pool(const T *x, T *y, I *index, Pixels out, Window rows, Window columns, Layout layout) {
    using C = compute_t<T>;
    const int64_t channels = out.packs * V;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < out.count;
         i += gridDim.x * static_cast<int64_t>(kBlock)) {
        const Place at = place_of(out, i);
        const int64_t row = rows.begin(at.y), column = columns.begin(at.x);
        const int64_t row_end = clip_end(rows.end(at.y), rows.in), column_end = clip_end(columns.end(at.x), columns.in);
        const T *image = x + at.n * rows.in * columns.in * channels + at.pack * V;
        Pack<T, V> best;
        C most[V];
        Pack<I, V> place;
        bool first = true;
        for (int64_t r = clip_begin(row); r < row_end; r++) {
            for (int64_t c = clip_begin(column); c < column_end; c++) {
                const Pack<T, V> pack = load_pack<T, V>(image + (r * columns.in + c) * channels, true);
                const I here = static_cast<I>((r - row) * columns.kernel + (c - column));
#pragma unroll
                for (int k = 0; k < V; k++) {
                    const C value = convert<C>(pack.v[k]);
                    if (first || value > most[k] || (value != value && most[k] == most[k])) {
                        most[k] = value;
                        best.v[k] = pack.v[k];
                        place.v[k] = here;
                    }
                }
                first = false;
            }
        }
        T *to = y + at.n * layout.image + at.y * layout.row + at.x * layout.column + at.pack * V * layout.channel;
        store_channels(to, best, layout.channel);
        if (index) store_pack(index + i * V, place, true);
    }
}

template <typename T, int V, typename I>
__global__ void __launch_bounds__(kBlock)
    k_max_pool_backward(const T *dy, const I *index, T *dx, Pixels in, Window rows, Window columns, Layout layout) {
    using C = compute_t<T>;
    const int64_t channels = in.packs * V;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < in.count; i += gridDim.x * static_cast<int64_t>(kBlock)) {
        const Place at = place_of(in, i);
        const I *places = index + at.n * rows.out * columns.out * channels + at.pack * V;
        const T *gradients = dy + at.n * layout.image + at.pack * V * layout.channel;
        C sum[V];
#pragma unroll
        for (int k = 0; k < V; k++) sum[k] = C(0);
        const int64_t last_row = rows.last_reader(at.y), first_column = columns.first_reader(at.x), last_column = columns.last_reader(at.x);
        for (int64_t r = rows.first_reader(at.y); r <= last_row; r++) {
            for (int64_t c = first_column; c <= last_column; c++) {
                const Pack<I, V> place = load_pack<I, V>(places + (r * columns.out + c) * channels, true);
                const Pack<T, V> gradient = load_channels<T, V>(gradients + r * layout.row + c * layout.column, layout.channel);
                const I here = static_cast<I>((at.y - rows.begin(r)) * columns.kernel + (at.x - columns.begin(c)));
#pragma unroll
                for (int k = 0; k < V; k++)
                    if (place.v[k] == here) sum[k] += convert<C>(gradient.v[k]);
            }
        }
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; k++) result.v[k] = convert<T>(sum[k]);
        store_pack(dx + i * V, result, true);
    }
}

/* How many values an average over output (r, c) divides by. */
template <typename C>
__device__ __forceinline__ C divisor(const Window &rows, const Window &columns, int64_t r, int64_t c, bool include_padding) {
    if (include_padding) return static_cast<C>(rows.kernel * columns.kernel);
    return static_cast<C>((clip_end(rows.end(r), rows.in) - clip_begin(rows.begin(r))) *
                          (clip_end(columns.end(c), columns.in) - clip_begin(columns.begin(c))));
}

template <typename T, int V>
__global__ void __launch_bounds__(kBlock) k_avg_pool(const T *x, T *y, Pixels out, Window rows, Window columns, bool include_padding) {
    using C = compute_t<T>;
    const int64_t channels = out.packs * V;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < out.count;
         i += gridDim.x * static_cast<int64_t>(kBlock)) {
        const Place at = place_of(out, i);
        const int64_t row_end = clip_end(rows.end(at.y), rows.in), column_end = clip_end(columns.end(at.x), columns.in);
        const T *image = x + at.n * rows.in * columns.in * channels + at.pack * V;
        C sum[V];
#pragma unroll
        for (int k = 0; k < V; k++) sum[k] = C(0);
        for (int64_t r = clip_begin(rows.begin(at.y)); r < row_end; r++) {
            for (int64_t c = clip_begin(columns.begin(at.x)); c < column_end; c++) {
                const Pack<T, V> pack = load_pack<T, V>(image + (r * columns.in + c) * channels, true);
#pragma unroll
                for (int k = 0; k < V; k++) sum[k] += convert<C>(pack.v[k]);
            }
        }
        const C count = divisor<C>(rows, columns, at.y, at.x, include_padding);
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; k++) result.v[k] = convert<T>(sum[k] / count);
        store_pack(y + i * V, result, true);
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(kBlock)
    k_avg_pool_backward(const T *dy, T *dx, Pixels in, Window rows, Window columns, bool include_padding) {
    using C = compute_t<T>;
    const int64_t channels = in.packs * V;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < in.count; i += gridDim.x * static_cast<int64_t>(kBlock)) {
        const Place at = place_of(in, i);
        const int64_t start = at.n * rows.out * columns.out * channels + at.pack * V;
        C sum[V];
#pragma unroll
        for (int k = 0; k < V; k++) sum[k] = C(0);
        const int64_t last_row = rows.last_reader(at.y), first_column = columns.first_reader(at.x), last_column = columns.last_reader(at.x);
        for (int64_t r = rows.first_reader(at.y); r <= last_row; r++) {
            for (int64_t c = first_column; c <= last_column; c++) {
                const Pack<T, V> gradient = load_pack<T, V>(dy + start + (r * columns.out + c) * channels, true);
                const C share = C(1) / divisor<C>(rows, columns, r, c, include_padding);
#pragma unroll
                for (int k = 0; k < V; k++) sum[k] += convert<C>(gradient.v[k]) * share;
            }
        }
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; k++) result.v[k] = convert<T>(sum[k]);
        store_pack(dx + i * V, result, true);
    }
}

/* One gradient for all pixels of an image. A thread writes up to kSpread of them, neighbouring threads neighbouring packs at a time. */
constexpr int kSpread = 8;

template <typename T, int V>
__global__ void __launch_bounds__(kBlock) k_spread(const T *dy, T *dx, Pixels groups, int64_t pixels) {
    using C = compute_t<T>;
    const int64_t channels = groups.packs * V;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < groups.count;
         i += gridDim.x * static_cast<int64_t>(kBlock)) {
        const Place at = place_of(groups, i);
        Pack<T, V> value = load_pack<T, V>(dy + at.n * channels + at.pack * V, true);
#pragma unroll
        for (int k = 0; k < V; k++) value.v[k] = convert<T>(convert<C>(value.v[k]) / static_cast<C>(pixels));
        T *image = dx + at.n * pixels * channels + at.pack * V;
#pragma unroll
        for (int j = 0; j < kSpread; j++) {
            const int64_t pixel = at.x + j * groups.width;
            if (pixel < pixels) store_pack(image + pixel * channels, value, true);
        }
    }
}

template <typename T, typename I>
gt_status max_forward(gt__device *device, const gt__call *call, const Pool &pool) {
    const gt_tensor *x = call->in[0], *y = call->out[0], *index = call->out[1];
    const Pixels out = pixels_make(&y->meta, pool.vector ? kVector<T> : 1);
    const auto kernel = pool.vector ? k_max_pool<T, kVector<T>, I> : k_max_pool<T, 1, I>;
    return launch(device, call, kernel, grid_for(out.count, kBlock), kBlock, data<const T>(x), data<T>(y), data<I>(index), out, pool.rows,
                  pool.columns, pool.layout);
}

template <typename T, typename I>
gt_status max_backward(gt__device *device, const gt__call *call, const Pool &pool) {
    const gt_tensor *dy = call->in[0], *index = call->in[1], *dx = call->out[0];
    const Pixels in = pixels_make(&dx->meta, pool.vector ? kVector<T> : 1);
    const auto kernel = pool.vector ? k_max_pool_backward<T, kVector<T>, I> : k_max_pool_backward<T, 1, I>;
    return launch(device, call, kernel, grid_for(in.count, kBlock), kBlock, data<const T>(dy), data<const I>(index), data<T>(dx), in,
                  pool.rows, pool.columns, pool.layout);
}

template <typename T>
gt_status avg_forward(gt__device *device, const gt__call *call, const Pool &pool, bool include_padding) {
    const gt_tensor *x = call->in[0], *y = call->out[0];
    const Pixels out = pixels_make(&y->meta, pool.vector ? kVector<T> : 1);
    const auto kernel = pool.vector ? k_avg_pool<T, kVector<T>> : k_avg_pool<T, 1>;
    return launch(device, call, kernel, grid_for(out.count, kBlock), kBlock, data<const T>(x), data<T>(y), out, pool.rows, pool.columns,
                  include_padding);
}

template <typename T>
gt_status avg_backward(gt__device *device, const gt__call *call, const Pool &pool, bool include_padding) {
    const gt_tensor *dy = call->in[0], *dx = call->out[0];
    const Pixels in = pixels_make(&dx->meta, pool.vector ? kVector<T> : 1);
    const auto kernel = pool.vector ? k_avg_pool_backward<T, kVector<T>> : k_avg_pool_backward<T, 1>;
    return launch(device, call, kernel, grid_for(in.count, kBlock), kBlock, data<const T>(dy), data<T>(dx), in, pool.rows, pool.columns,
                  include_padding);
}

/* The gradient of the average over whole images. */
template <typename T>
gt_status spread(gt__device *device, const gt__call *call, const Pool &pool) {
    const gt_tensor *dy = call->in[0], *dx = call->out[0];
    const int64_t pixels = pool.rows.in * pool.columns.in;
    gt__meta meta = dx->meta;
    meta.shape[2] = 1;
    meta.shape[3] = ceil_div(pixels, kSpread);
    const Pixels groups = pixels_make(&meta, pool.vector ? kVector<T> : 1);
    const auto kernel = pool.vector ? k_spread<T, kVector<T>> : k_spread<T, 1>;
    return launch(device, call, kernel, grid_for(groups.count, kBlock), kBlock, data<const T>(dy), data<T>(dx), groups, pixels);
}

} // namespace

gt_status gt__cuda_max_pool2d(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *y = call->out[0], *index = call->out[1];
    if (y->meta.numel == 0) return GT_OK;
    const Pool pool = pool_make(call, x, y, index, false);
    if (pool.tile) return pool_tiles(device, call, pool, true, false);
    const bool bytes = !index || index->meta.dtype == GT_DTYPE_U8;
    GT__FOR_FLOATS(call, x->meta.dtype,
                   return bytes ? max_forward<T, uint8_t>(device, call, pool) : max_forward<T, int32_t>(device, call, pool));
    return GT_OK;
}

gt_status gt__cuda_max_pool2d_backward(gt__device *device, const gt__call *call) {
    const gt_tensor *dy = call->in[0], *index = call->in[1], *dx = call->out[0];
    if (dx->meta.numel == 0) return GT_OK;
    const Pool pool = pool_make(call, dx, dy, index, false);
    if (pool.tile) return pool_tiles_backward(device, call, pool, true, false);
    GT__FOR_FLOATS(call, dy->meta.dtype,
                   return index->meta.dtype == GT_DTYPE_U8 ? max_backward<T, uint8_t>(device, call, pool)
                                                           : max_backward<T, int32_t>(device, call, pool));
    return GT_OK;
}

gt_status gt__cuda_avg_pool2d(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    const Pool pool = pool_make(call, x, y, nullptr, false);
    const bool include_padding = call->attr.pool.count_include_pad != 0;
    if (pool.tile) return pool_tiles(device, call, pool, false, include_padding);
    GT__FOR_FLOATS(call, x->meta.dtype, return avg_forward<T>(device, call, pool, include_padding));
    return GT_OK;
}

gt_status gt__cuda_avg_pool2d_backward(gt__device *device, const gt__call *call) {
    const gt_tensor *dy = call->in[0], *dx = call->out[0];
    if (dx->meta.numel == 0) return GT_OK;
    const Pool pool = pool_make(call, dx, dy, nullptr, false);
    const bool include_padding = call->attr.pool.count_include_pad != 0;
    if (pool.tile) return pool_tiles_backward(device, call, pool, false, include_padding);
    GT__FOR_FLOATS(call, dy->meta.dtype, return avg_backward<T>(device, call, pool, include_padding));
    return GT_OK;
}

gt_status gt__cuda_adaptive_avg_pool2d(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    /* To one pixel: [N,C,1,1] is the same memory row-major and channels-last. */
    if (y->meta.shape[2] == 1 && y->meta.shape[3] == 1) return gt__cuda_mean_axes(device, call, 1u << 2 | 1u << 3);
    const Pool pool = pool_make(call, x, y, nullptr, true);
    if (pool.tile) return pool_tiles(device, call, pool, false, false);
    GT__FOR_FLOATS(call, x->meta.dtype, return avg_forward<T>(device, call, pool, false));
    return GT_OK;
}

gt_status gt__cuda_adaptive_avg_pool2d_backward(gt__device *device, const gt__call *call) {
    const gt_tensor *dy = call->in[0], *dx = call->out[0];
    if (dx->meta.numel == 0) return GT_OK;
    const Pool pool = pool_make(call, dx, dy, nullptr, true);
    if (pool.tile) return pool_tiles_backward(device, call, pool, false, false);
    if (pool.rows.out == 1 && pool.columns.out == 1) GT__FOR_FLOATS(call, dy->meta.dtype, return spread<T>(device, call, pool));
    GT__FOR_FLOATS(call, dy->meta.dtype, return avg_backward<T>(device, call, pool, false));
    return GT_OK;
}

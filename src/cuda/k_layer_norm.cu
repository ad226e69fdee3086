/* Layer normalisation of [rows, width]. */
#include "cuda/columns.cuh"
#include "cuda/math.cuh"
#include "cuda/rows.cuh"

namespace {
using namespace gt;

/* Sums are taken about the row's first value, so that a large mean does not cancel the variance. */
template <typename T, int V>
__global__ void __launch_bounds__(kRowBlock)
    k_layer_norm(const T *x, T *y, const compute_t<T> *weight, const compute_t<T> *bias, compute_t<T> *mean_out, compute_t<T> *rstd_out,
                 int64_t rows, int64_t width, compute_t<T> epsilon, int lanes) {
    using C = compute_t<T>;
    __shared__ C shared[32];
    const int lane = threadIdx.x % lanes;
    const int64_t per_block = kRowBlock / lanes;
    for (int64_t first = blockIdx.x * per_block; first < rows; first += gridDim.x * per_block) {
        const int64_t row = first + threadIdx.x / lanes;
        const T *in = x + row * width;
        C about = C(0), sum = C(0), squares = C(0);
        if (row < rows) {
            about = convert<C>(in[0]);
#pragma unroll 2
            for (int64_t j = static_cast<int64_t>(lane) * V; j < width; j += static_cast<int64_t>(lanes) * V) {
                const Pack<T, V> pack = load_pack<T, V>(in + j, true);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const C d = convert<C>(pack.v[i]) - about;
                    sum += d;
                    squares += d * d;
                }
            }
        }
        sum = row_sum(sum, lanes, shared);
        squares = row_sum(squares, lanes, shared);
        const C n = static_cast<C>(width), shift = sum / n;
        C variance = (squares - sum * shift) / n;
        if (variance < C(0)) variance = C(0);
        const C mean = about + shift, rstd = C(1) / math_sqrt(variance + epsilon);
        if (row >= rows) continue;
        if (lane == 0) {
            if (mean_out) mean_out[row] = mean;
            if (rstd_out) rstd_out[row] = rstd;
        }
        for (int64_t j = static_cast<int64_t>(lane) * V; j < width; j += static_cast<int64_t>(lanes) * V) {
            Pack<T, V> pack = load_pack<T, V>(in + j, true);
            C scale[V], offset[V];
#pragma unroll
            for (int i = 0; i < V; i++) {
                scale[i] = C(1);
                offset[i] = C(0);
            }
            if (weight) load_values<C, V>(weight + j, scale, V > 1);
            if (bias) load_values<C, V>(bias + j, offset, V > 1);
#pragma unroll
            for (int i = 0; i < V; i++) pack.v[i] = convert<T>((convert<C>(pack.v[i]) - mean) * rstd * scale[i] + offset[i]);
            store_pack(y + row * width + j, pack, true);
        }
    }
}

/* With g = dy w and x^ = (x - mean) rstd:  dx = rstd (g - mean of g - x^ mean of g x^). */
template <typename T, int V>
__global__ void __launch_bounds__(kRowBlock)
    k_layer_norm_input_gradient(const T *dy, const T *x, T *dx, const compute_t<T> *weight, const compute_t<T> *means,
                                const compute_t<T> *rstds, int64_t rows, int64_t width, int lanes) {
    using C = compute_t<T>;
    __shared__ C shared[32];
    const int lane = threadIdx.x % lanes;
    const int64_t per_block = kRowBlock / lanes;
    for (int64_t first = blockIdx.x * per_block; first < rows; first += gridDim.x * per_block) {
        const int64_t row = first + threadIdx.x / lanes;
        const T *gradient_row = dy + row * width, *input_row = x + row * width;
        C mean = C(0), rstd = C(0), sum = C(0), product = C(0);
        if (row < rows) {
            mean = means[row];
            rstd = rstds[row];
#pragma unroll 2
            for (int64_t j = static_cast<int64_t>(lane) * V; j < width; j += static_cast<int64_t>(lanes) * V) {
                const Pack<T, V> gradient = load_pack<T, V>(gradient_row + j, true), input = load_pack<T, V>(input_row + j, true);
                C scale[V];
#pragma unroll
                for (int i = 0; i < V; i++) scale[i] = C(1);
                if (weight) load_values<C, V>(weight + j, scale, V > 1);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const C g = convert<C>(gradient.v[i]) * scale[i];
                    sum += g;
                    product += g * (convert<C>(input.v[i]) - mean);
                }
            }
        }
        sum = row_sum(sum, lanes, shared);
        product = row_sum(product, lanes, shared);
        if (row >= rows) continue;
        const C n = static_cast<C>(width), constant = sum / n, slope = product * rstd * rstd / n;
        for (int64_t j = static_cast<int64_t>(lane) * V; j < width; j += static_cast<int64_t>(lanes) * V) {
            Pack<T, V> gradient = load_pack<T, V>(gradient_row + j, true);
            const Pack<T, V> input = load_pack<T, V>(input_row + j, true);
            C scale[V];
#pragma unroll
            for (int i = 0; i < V; i++) scale[i] = C(1);
            if (weight) load_values<C, V>(weight + j, scale, V > 1);
#pragma unroll
            for (int i = 0; i < V; i++)
                gradient.v[i] =
                    convert<T>(rstd * (convert<C>(gradient.v[i]) * scale[i] - constant - (convert<C>(input.v[i]) - mean) * slope));
            store_pack(dx + row * width + j, gradient, true);
        }
    }
}

/* The part's sums of dy x^ and dy to partial[part, 0] and partial[part, 1], or, where that is NULL (one part), to dw and db. */
template <typename T, int V>
__global__ void __launch_bounds__(kColumnBlock)
    k_layer_norm_sums(const T *dy, const T *x, const compute_t<T> *means, const compute_t<T> *rstds, compute_t<T> *dw, compute_t<T> *db,
                      compute_t<T> *partial, Columns columns) {
    using C = compute_t<T>;
    __shared__ C shared[kColumnBlock * V];
    const int64_t channel = column_channel(V);
    C sum_dw[V], sum_db[V];
#pragma unroll
    for (int i = 0; i < V; i++) sum_dw[i] = sum_db[i] = C(0);
    if (channel < columns.channels) {
        const int64_t end = column_end(columns);
#pragma unroll 4
        for (int64_t row = column_begin(columns); row < end; row += blockDim.y) {
            const int64_t at = row * columns.channels + channel;
            const C mean = means[row], rstd = rstds[row];
            const Pack<T, V> gradient = load_pack<T, V>(dy + at, true), input = load_pack<T, V>(x + at, true);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const C g = convert<C>(gradient.v[i]);
                sum_db[i] += g;
                sum_dw[i] += g * ((convert<C>(input.v[i]) - mean) * rstd);
            }
        }
    }
    column_sum(sum_dw, shared);
    column_sum(sum_db, shared);
    if (threadIdx.y != 0 || channel >= columns.channels) return;
    C *to_dw = partial ? partial + blockIdx.y * 2 * columns.channels : dw;
    C *to_db = partial ? partial + (blockIdx.y * 2 + 1) * columns.channels : db;
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (to_dw) to_dw[channel + i] = sum_dw[i];
        if (to_db) to_db[channel + i] = sum_db[i];
    }
}

template <typename T, int V>
gt_status forward(gt__device *device, const gt__call *call, int64_t rows, int64_t width) {
    using C = compute_t<T>;
    const int lanes = rows_lanes(width, V);
    return launch(device, call, k_layer_norm<T, V>, rows_grid(rows, lanes), kRowBlock, data<const T>(call->in[0]), data<T>(call->out[0]),
                  data<const C>(call->in[1]), data<const C>(call->in[2]), data<C>(call->out[1]), data<C>(call->out[2]), rows, width,
                  static_cast<C>(call->attr.norm.epsilon), lanes);
}

template <typename T, int V>
gt_status backward(gt__device *device, const gt__call *call, int64_t rows, int64_t width) {
    using C = compute_t<T>;
    const T *dy = data<const T>(call->in[0]), *x = data<const T>(call->in[1]);
    const C *weight = data<const C>(call->in[2]), *mean = data<const C>(call->in[3]), *rstd = data<const C>(call->in[4]);
    C *dw = data<C>(call->out[1]), *db = data<C>(call->out[2]);
    if (call->out[0] && rows > 0) {
        const int lanes = rows_lanes(width, V);
        GT_TRY(launch(device, call, k_layer_norm_input_gradient<T, V>, rows_grid(rows, lanes), kRowBlock, dy, x, data<T>(call->out[0]),
                      weight, mean, rstd, rows, width, lanes));
    }
    if (!dw && !db) return GT_OK;
    Columns parts = columns_make(device, rows, width, V, 8, 1024);
    void *partial = nullptr, *handle = nullptr;
    if (parts.parts > 1 && !gt__cuda_scratch_try(device, parts.parts * static_cast<size_t>(2 * width) * sizeof(C), &partial, &handle))
        columns_join(&parts);
    gt_status status =
        columns_launch(device, call, k_layer_norm_sums<T, V>, parts, dy, x, mean, rstd, dw, db, static_cast<C *>(partial), parts);
    if (status == GT_OK && partial)
        status = sum_parts<C>(device, call, static_cast<const C *>(partial), parts.parts, width, 2 * width, dw, db,
                              static_cast<C *>(nullptr), sizeof(C) == 8 ? GT_DTYPE_F64 : GT_DTYPE_F32);
    gt__scratch_free(device->ctx, handle);
    return status;
}

/* Whether rows of `meta` and of all `pointers` can be read in 16 bytes. */
bool vectorised(const gt__meta *meta, const void *const *pointers, int count) {
    if (meta->shape[1] % (16 / element_bytes(meta->dtype)) != 0) return false;
    for (int k = 0; k < count; k++)
        if (!aligned(pointers[k], 16)) return false;
    return true;
}

} // namespace

gt_status gt__cuda_layer_norm(gt__device *device, const gt__call *call) {
    const gt__meta *meta = &call->in[0]->meta;
    const int64_t rows = meta->shape[0], width = meta->shape[1];
    if (rows == 0) return GT_OK;
    if (width == 0) { /* statistics of nothing */
        for (int k = 1; k < 3; k++)
            if (call->out[k])
                GT_TRY(
                    gt__cuda_zero(device, call, data(call->out[k]), static_cast<size_t>(rows * element_bytes(call->out[k]->meta.dtype))));
        return GT_OK;
    }
    const void *pointers[] = {data(call->in[0]), data(call->in[1]), data(call->in[2]), data(call->out[0])};
    const bool vector = vectorised(meta, pointers, 4);
    GT__FOR_FLOATS(call, meta->dtype,
                   return vector ? forward<T, kVector<T>>(device, call, rows, width) : forward<T, 1>(device, call, rows, width));
    return GT_OK;
}

gt_status gt__cuda_layer_norm_backward(gt__device *device, const gt__call *call) {
    const gt__meta *meta = &call->in[1]->meta;
    const int64_t rows = meta->shape[0], width = meta->shape[1];
    if (width == 0) return GT_OK;
    const void *pointers[] = {data(call->in[0]), data(call->in[1]), data(call->in[2]), data(call->out[0])};
    const bool vector = vectorised(meta, pointers, 4);
    GT__FOR_FLOATS(call, meta->dtype,
                   return vector ? backward<T, kVector<T>>(device, call, rows, width) : backward<T, 1>(device, call, rows, width));
    return GT_OK;
}

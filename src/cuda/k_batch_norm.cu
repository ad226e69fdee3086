/* Batch normalisation of [rows, channels], channels innermost. Large inputs take three passes over launches of their own: statistics by parts of the
 * rows, their combination, and the elementwise pass. Where one part holds all rows, one launch does everything. Statistics are means and sums
 * of squared deviations, joined pairwise in an order that the shape fixes (Chan, Golub & LeVeque 1983). */
#include "cuda/columns.cuh"
#include "cuda/math.cuh"

namespace {
using namespace gt;

template <typename C>
struct Moments {
    C count, mean, squares; /* squares: of the deviations from the mean */
};

template <typename C>
__device__ __forceinline__ void moments_join(Moments<C> &a, C count, C mean, C squares) {
    if (count == C(0)) return;
    const C total = a.count + count, delta = mean - a.mean, share = count / total;
    a.mean += delta * share;
    a.squares += squares + delta * delta * a.count * share;
    a.count = total;
}

/* What training's forward does with a channel's statistics. */
template <typename C>
struct NormOut {
    C *mean, *rstd, *running_mean, *running_var; /* running ones may be NULL; so may mean and rstd */
    C momentum, epsilon;
    __device__ __forceinline__ void put(int64_t channel, const Moments<C> &m, C rstd_value) const {
        if (mean) mean[channel] = m.mean;
        if (rstd) rstd[channel] = rstd_value;
        if (running_mean && m.count > C(1)) {
            running_mean[channel] += momentum * (m.mean - running_mean[channel]);
            running_var[channel] += momentum * (m.squares / (m.count - C(1)) - running_var[channel]);
        }
    }
    __device__ __forceinline__ C rstd_of(const Moments<C> &m) const {
        return C(1) / math_sqrt((m.count > C(0) ? m.squares / m.count : C(0)) + epsilon);
    }
};

/* The moments of the block's rows, for each of the thread's channels; right in all threads of row 0. Sums are taken about the first value
 * that a thread sees, so that a large mean does not cancel the variance. */
template <typename T, int V>
__device__ __forceinline__ void part_moments(const T *x, const Columns &columns, int64_t channel, Moments<compute_t<T>> (&moments)[V],
                                             compute_t<T> *shared) {
    using C = compute_t<T>;
    C about[V], sum[V], squares[V];
    int64_t count = 0;
#pragma unroll
    for (int i = 0; i < V; i++) about[i] = sum[i] = squares[i] = C(0);
    if (channel < columns.channels) {
        const int64_t begin = column_begin(columns), end = column_end(columns);
        if (begin < end) {
            count = (end - begin + blockDim.y - 1) / blockDim.y;
            const Pack<T, V> first = load_pack<T, V>(x + begin * columns.channels + channel, true);
#pragma unroll
            for (int i = 0; i < V; i++) about[i] = convert<C>(first.v[i]);
        }
#pragma unroll 4
        for (int64_t row = begin; row < end; row += blockDim.y) {
            const Pack<T, V> pack = load_pack<T, V>(x + row * columns.channels + channel, true);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const C d = convert<C>(pack.v[i]) - about[i];
                sum[i] += d;
                squares[i] += d * d;
            }
        }
    }
    const C n = static_cast<C>(count);
#pragma unroll
    for (int i = 0; i < V; i++) {
        const C mean = count ? sum[i] / n : C(0), m2 = squares[i] - sum[i] * mean;
        moments[i].count = n;
        moments[i].mean = about[i] + mean;
        moments[i].squares = m2 < C(0) ? C(0) : m2; /* NaN stays */
    }
    constexpr int kPlane = kColumnBlock * V;
    for (uint32_t half = blockDim.y / 2; half > 0; half /= 2) {
        C *at = shared + threadIdx.y * blockDim.x + threadIdx.x;
        __syncthreads();
        if (threadIdx.y >= half && threadIdx.y < 2 * half) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                at[i * kColumnBlock] = moments[i].count;
                at[kPlane + i * kColumnBlock] = moments[i].mean;
                at[2 * kPlane + i * kColumnBlock] = moments[i].squares;
            }
        }
        __syncthreads();
        if (threadIdx.y < half) {
            at += half * blockDim.x;
#pragma unroll
            for (int i = 0; i < V; i++)
                moments_join(moments[i], at[i * kColumnBlock], at[kPlane + i * kColumnBlock], at[2 * kPlane + i * kColumnBlock]);
        }
    }
}

/* y of the thread's channels over the part's rows. */
template <typename T, int V>
__device__ __forceinline__ void normalise(const T *x, T *y, const Columns &columns, int64_t channel, const compute_t<T> (&mean)[V],
                                          const compute_t<T> (&scale)[V], const compute_t<T> (&shift)[V]) {
    using C = compute_t<T>;
    const int64_t end = column_end(columns);
    for (int64_t row = column_begin(columns); row < end; row += kColumnUnroll * blockDim.y) {
        Pack<T, V> pack[kColumnUnroll];
#pragma unroll
        for (int u = 0; u < kColumnUnroll; u++)
            if (row + u * blockDim.y < end) pack[u] = load_pack<T, V>(x + (row + u * blockDim.y) * columns.channels + channel, true);
#pragma unroll
        for (int u = 0; u < kColumnUnroll; u++) {
            if (row + u * blockDim.y >= end) break;
#pragma unroll
            for (int i = 0; i < V; i++) pack[u].v[i] = convert<T>((convert<C>(pack[u].v[i]) - mean[i]) * scale[i] + shift[i]);
            store_pack(y + (row + u * blockDim.y) * columns.channels + channel, pack[u], true);
        }
    }
}

/* The means and sums of squares of a part to partial[part, 2, channel]. */
template <typename T, int V>
__global__ void __launch_bounds__(kColumnBlock) k_norm_moments(const T *x, compute_t<T> *partial, Columns columns) {
    using C = compute_t<T>;
    __shared__ C shared[3 * kColumnBlock * V];
    const int64_t channel = column_channel(V);
    Moments<C> moments[V];
    part_moments<T, V>(x, columns, channel, moments, shared);
    if (threadIdx.y != 0 || channel >= columns.channels) return;
    C *at = partial + blockIdx.y * 2 * columns.channels + channel;
#pragma unroll
    for (int i = 0; i < V; i++) {
        at[i] = moments[i].mean;
        at[columns.channels + i] = moments[i].squares;
    }
}

/* Joins the parts of `columns`; a block of 32 x 8 threads does 32 channels. mean and rstd also go to work[0] and work[1]. */
template <typename C>
__global__ void __launch_bounds__(kColumnBlock) k_norm_join(const C *partial, Columns columns, NormOut<C> out, C *work) {
    __shared__ C shared[3 * kColumnBlock];
    const int64_t channel = column_channel(1);
    Moments<C> moments = {C(0), C(0), C(0)};
    if (channel < columns.channels) {
        for (uint32_t part = threadIdx.y; part < columns.parts; part += blockDim.y) {
            const int64_t begin = part * columns.part_rows, left = columns.rows - begin;
            const int64_t count = left < columns.part_rows ? (left > 0 ? left : 0) : columns.part_rows;
            const C *at = partial + static_cast<int64_t>(part) * 2 * columns.channels + channel;
            moments_join(moments, static_cast<C>(count), at[0], at[columns.channels]);
        }
    }
    C *at = shared + threadIdx.y * 32 + threadIdx.x;
    at[0] = moments.count;
    at[kColumnBlock] = moments.mean;
    at[2 * kColumnBlock] = moments.squares;
    __syncthreads();
    if (threadIdx.y != 0 || channel >= columns.channels) return;
    for (uint32_t i = 1; i < blockDim.y; i++) moments_join(moments, at[i * 32], at[kColumnBlock + i * 32], at[2 * kColumnBlock + i * 32]);
    const C rstd = out.rstd_of(moments);
    out.put(channel, moments, rstd);
    work[channel] = moments.mean;
    work[columns.channels + channel] = rstd;
}

/* y from given statistics. `variance`: `spread` holds variances and not reciprocal deviations (evaluation); they are then also copied to `out`. */
template <typename T, int V>
__global__ void __launch_bounds__(kColumnBlock)
    k_norm_apply(const T *x, T *y, const compute_t<T> *mean, const compute_t<T> *spread, bool variance, const compute_t<T> *weight,
                 const compute_t<T> *bias, NormOut<compute_t<T>> out, Columns columns) {
    using C = compute_t<T>;
    const int64_t channel = column_channel(V);
    if (channel >= columns.channels) return;
    C center[V], scale[V], shift[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        center[i] = mean[channel + i];
        C rstd = spread[channel + i];
        if (variance) {
            rstd = C(1) / math_sqrt(rstd + out.epsilon);
            if (blockIdx.y == 0 && threadIdx.y == 0) {
                if (out.mean) out.mean[channel + i] = center[i];
                if (out.rstd) out.rstd[channel + i] = rstd;
            }
        }
        scale[i] = weight ? rstd * weight[channel + i] : rstd;
        shift[i] = bias ? bias[channel + i] : C(0);
    }
    normalise<T, V>(x, y, columns, channel, center, scale, shift);
}

/* Training's forward in one launch; columns has one part. */
template <typename T, int V>
__global__ void __launch_bounds__(kColumnBlock)
    k_norm_whole(const T *x, T *y, const compute_t<T> *weight, const compute_t<T> *bias, NormOut<compute_t<T>> out, Columns columns) {
    using C = compute_t<T>;
    __shared__ C shared[3 * kColumnBlock * V];
    __shared__ C statistics[2 * 32 * V];
    const int64_t channel = column_channel(V);
    Moments<C> moments[V];
    part_moments<T, V>(x, columns, channel, moments, shared);
    if (threadIdx.y == 0 && channel < columns.channels) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            const C rstd = out.rstd_of(moments[i]);
            out.put(channel + i, moments[i], rstd);
            statistics[threadIdx.x * V + i] = moments[i].mean;
            statistics[(32 + threadIdx.x) * V + i] = rstd;
        }
    }
    __syncthreads();
    if (channel >= columns.channels) return;
    C center[V], scale[V], shift[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        center[i] = statistics[threadIdx.x * V + i];
        scale[i] = statistics[(32 + threadIdx.x) * V + i];
        if (weight) scale[i] *= weight[channel + i];
        shift[i] = bias ? bias[channel + i] : C(0);
    }
    normalise<T, V>(x, y, columns, channel, center, scale, shift);
}

template <typename T, int V>
gt_status forward(gt__device *device, const gt__call *call, int64_t rows, int64_t channels) {
    using C = compute_t<T>;
    gt_tensor *const *in = call->in;
    const T *x = data<const T>(in[0]);
    T *y = data<T>(call->out[0]);
    const C *weight = data<const C>(in[1]), *bias = data<const C>(in[2]);
    const bool training = call->attr.norm.training != 0;
    const NormOut<C> out = {data<C>(call->out[1]),
                            data<C>(call->out[2]),
                            training ? data<C>(in[3]) : nullptr,
                            training ? data<C>(in[4]) : nullptr,
                            static_cast<C>(call->attr.norm.momentum),
                            static_cast<C>(call->attr.norm.epsilon)};
    const Columns apply = columns_make(device, rows, channels, V, 4, kMaxGridY);
    if (!training)
        return columns_launch(device, call, k_norm_apply<T, V>, apply, x, y, data<const C>(in[3]), data<const C>(in[4]), true, weight, bias,
                              out, apply);

    Columns parts = columns_make(device, rows, channels, V, 16, 1024);
    void *memory = nullptr, *handle = nullptr;
    if (parts.parts > 1 &&
        !gt__cuda_scratch_try(device, (parts.parts + 1) * static_cast<size_t>(2 * channels) * sizeof(C), &memory, &handle))
        columns_join(&parts);
    if (parts.parts == 1) return columns_launch(device, call, k_norm_whole<T, V>, parts, x, y, weight, bias, out, parts);

    C *partial = static_cast<C *>(memory), *work = partial + parts.parts * 2 * channels;
    gt_status status = columns_launch(device, call, k_norm_moments<T, V>, parts, x, partial, parts);
    if (status == GT_OK)
        status = launch2(device, call, "batch_norm", k_norm_join<C>, static_cast<uint32_t>(ceil_div(channels, 32)), 1u, 32u,
                         kColumnBlock / 32u, partial, parts, out, work);
    if (status == GT_OK)
        status = columns_launch(device, call, k_norm_apply<T, V>, apply, x, y, work, work + channels, false, weight, bias, out, apply);
    gt__scratch_free(device->ctx, handle);
    return status;
}

/* --- backward: with x^ = (x - mean) rstd, per channel  db = sum dy,  dw = sum dy x^,  dx = w rstd (dy - (db + x^ dw) / rows), or, where the statistics were
 * constants, dx = w rstd dy. ------------------------------------------------------------------------------------------------------- */

template <typename C>
struct NormBack {
    const C *weight, *mean, *rstd; /* weight may be NULL */
    C inverse_rows;                /* 0 in evaluation */
};

/* Both sums over the block's rows; right in all threads of row 0. */
template <typename T, int V>
__device__ __forceinline__ void part_sums(const T *dy, const T *x, const NormBack<compute_t<T>> &norm, const Columns &columns,
                                          int64_t channel, compute_t<T> (&sum_dw)[V], compute_t<T> (&sum_db)[V], compute_t<T> *shared) {
    using C = compute_t<T>;
    C mean[V];
#pragma unroll
    for (int i = 0; i < V; i++) mean[i] = sum_dw[i] = sum_db[i] = C(0);
    if (channel < columns.channels) {
#pragma unroll
        for (int i = 0; i < V; i++) mean[i] = norm.mean[channel + i];
        const int64_t end = column_end(columns);
#pragma unroll 4
        for (int64_t row = column_begin(columns); row < end; row += blockDim.y) {
            const int64_t at = row * columns.channels + channel;
            const Pack<T, V> gradient = load_pack<T, V>(dy + at, true), input = load_pack<T, V>(x + at, true);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const C g = convert<C>(gradient.v[i]);
                sum_db[i] += g;
                sum_dw[i] += g * (convert<C>(input.v[i]) - mean[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < V; i++) sum_dw[i] *= norm.rstd[channel + i];
    }
    column_sum(sum_dw, shared);
    column_sum(sum_db, shared);
}

template <typename T, int V>
__device__ __forceinline__ void input_gradient(const T *dy, const T *x, T *dx, const NormBack<compute_t<T>> &norm, const Columns &columns,
                                               int64_t channel, const compute_t<T> (&sum_dw)[V], const compute_t<T> (&sum_db)[V]) {
    using C = compute_t<T>;
    C mean[V], scale[V], slope[V], constant[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        const C rstd = norm.rstd[channel + i];
        mean[i] = norm.mean[channel + i];
        scale[i] = norm.weight ? rstd * norm.weight[channel + i] : rstd;
        slope[i] = sum_dw[i] * norm.inverse_rows * rstd;
        constant[i] = sum_db[i] * norm.inverse_rows;
    }
    const int64_t end = column_end(columns);
    for (int64_t row = column_begin(columns); row < end; row += kColumnUnroll * blockDim.y) {
        Pack<T, V> gradient[kColumnUnroll], input[kColumnUnroll];
#pragma unroll
        for (int u = 0; u < kColumnUnroll; u++) {
            if (row + u * blockDim.y >= end) break;
            const int64_t at = (row + u * blockDim.y) * columns.channels + channel;
            gradient[u] = load_pack<T, V>(dy + at, true);
            input[u] = load_pack<T, V>(x + at, true);
        }
#pragma unroll
        for (int u = 0; u < kColumnUnroll; u++) {
            if (row + u * blockDim.y >= end) break;
#pragma unroll
            for (int i = 0; i < V; i++)
                gradient[u].v[i] =
                    convert<T>(scale[i] * (convert<C>(gradient[u].v[i]) - constant[i] - (convert<C>(input[u].v[i]) - mean[i]) * slope[i]));
            store_pack(dx + (row + u * blockDim.y) * columns.channels + channel, gradient[u], true);
        }
    }
}

/* partial[part, 0] = sums for dw, partial[part, 1] = for db */
template <typename T, int V>
__global__ void __launch_bounds__(kColumnBlock)
    k_norm_sums(const T *dy, const T *x, NormBack<compute_t<T>> norm, compute_t<T> *partial, Columns columns) {
    using C = compute_t<T>;
    __shared__ C shared[kColumnBlock * V];
    const int64_t channel = column_channel(V);
    C sum_dw[V], sum_db[V];
    part_sums<T, V>(dy, x, norm, columns, channel, sum_dw, sum_db, shared);
    if (threadIdx.y != 0 || channel >= columns.channels) return;
    C *at = partial + blockIdx.y * 2 * columns.channels + channel;
#pragma unroll
    for (int i = 0; i < V; i++) {
        at[i] = sum_dw[i];
        at[columns.channels + i] = sum_db[i];
    }
}

/* sums: dw and db of every channel; NULL: zeros. */
template <typename T, int V>
__global__ void __launch_bounds__(kColumnBlock)
    k_norm_input_gradient(const T *dy, const T *x, T *dx, NormBack<compute_t<T>> norm, const compute_t<T> *sums, Columns columns) {
    using C = compute_t<T>;
    const int64_t channel = column_channel(V);
    if (channel >= columns.channels) return;
    C sum_dw[V], sum_db[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        sum_dw[i] = sums ? sums[channel + i] : C(0);
        sum_db[i] = sums ? sums[columns.channels + channel + i] : C(0);
    }
    input_gradient<T, V>(dy, x, dx, norm, columns, channel, sum_dw, sum_db);
}

/* All of it in one launch; columns has one part. dx, dw and db may be NULL. */
template <typename T, int V>
__global__ void __launch_bounds__(kColumnBlock) k_norm_backward_whole(const T *dy, const T *x, T *dx, compute_t<T> *dw, compute_t<T> *db,
                                                                      NormBack<compute_t<T>> norm, Columns columns) {
    using C = compute_t<T>;
    __shared__ C shared[kColumnBlock * V];
    const int64_t channel = column_channel(V);
    C sum_dw[V], sum_db[V];
    part_sums<T, V>(dy, x, norm, columns, channel, sum_dw, sum_db, shared);
    __syncthreads();
    if (threadIdx.y == 0 && channel < columns.channels) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            if (dw) dw[channel + i] = sum_dw[i];
            if (db) db[channel + i] = sum_db[i];
            shared[threadIdx.x * V + i] = sum_dw[i];
            shared[(32 + threadIdx.x) * V + i] = sum_db[i];
        }
    }
    __syncthreads();
    if (!dx || channel >= columns.channels) return;
#pragma unroll
    for (int i = 0; i < V; i++) {
        sum_dw[i] = shared[threadIdx.x * V + i];
        sum_db[i] = shared[(32 + threadIdx.x) * V + i];
    }
    input_gradient<T, V>(dy, x, dx, norm, columns, channel, sum_dw, sum_db);
}

template <typename T, int V>
gt_status backward(gt__device *device, const gt__call *call, int64_t rows, int64_t channels) {
    using C = compute_t<T>;
    const T *dy = data<const T>(call->in[0]), *x = data<const T>(call->in[1]);
    const bool training = call->attr.norm.training != 0;
    const NormBack<C> norm = {data<const C>(call->in[2]), data<const C>(call->in[3]), data<const C>(call->in[4]),
                              training && rows > 0 ? C(1) / static_cast<C>(rows) : C(0)};
    T *dx = data<T>(call->out[0]);
    C *dw = data<C>(call->out[1]), *db = data<C>(call->out[2]);
    const Columns apply = columns_make(device, rows, channels, V, 4, kMaxGridY);
    if (!training && !dw && !db)
        return columns_launch(device, call, k_norm_input_gradient<T, V>, apply, dy, x, dx, norm, static_cast<const C *>(nullptr), apply);

    Columns parts = columns_make(device, rows, channels, V, 16, 1024);
    void *memory = nullptr, *handle = nullptr;
    if (parts.parts > 1 &&
        !gt__cuda_scratch_try(device, (parts.parts + 1) * static_cast<size_t>(2 * channels) * sizeof(C), &memory, &handle))
        columns_join(&parts);
    if (parts.parts == 1) return columns_launch(device, call, k_norm_backward_whole<T, V>, parts, dy, x, dx, dw, db, norm, parts);

    C *partial = static_cast<C *>(memory), *sums = partial + parts.parts * 2 * channels;
    const gt_dtype dtype = sizeof(C) == 8 ? GT_DTYPE_F64 : GT_DTYPE_F32;
    gt_status status = columns_launch(device, call, k_norm_sums<T, V>, parts, dy, x, norm, partial, parts);
    if (status == GT_OK)
        status = sum_parts<C>(device, call, static_cast<const C *>(partial), parts.parts, channels, 2 * channels, dw, db, sums, dtype);
    if (status == GT_OK && dx) status = columns_launch(device, call, k_norm_input_gradient<T, V>, apply, dy, x, dx, norm, sums, apply);
    gt__scratch_free(device->ctx, handle);
    return status;
}

/* [N,C] or [N,C,H,W]. */
void rows_and_channels(const gt__meta *meta, int64_t *rows, int64_t *channels) {
    *rows = meta->shape[0];
    *channels = meta->shape[1];
    for (int32_t a = 2; a < meta->ndim; a++) *rows *= meta->shape[a];
}

} // namespace

gt_status gt__cuda_batch_norm(gt__device *device, const gt__call *call) {
    const gt__meta *meta = &call->in[0]->meta;
    int64_t rows, channels;
    rows_and_channels(meta, &rows, &channels);
    if (channels == 0) return GT_OK;
    const bool vector =
        channels % (16 / element_bytes(meta->dtype)) == 0 && aligned(data(call->in[0]), 16) && aligned(data(call->out[0]), 16);
    GT__FOR_FLOATS(call, meta->dtype,
                   return vector ? forward<T, kVector<T>>(device, call, rows, channels) : forward<T, 1>(device, call, rows, channels));
    return GT_OK;
}

gt_status gt__cuda_batch_norm_backward(gt__device *device, const gt__call *call) {
    const gt__meta *meta = &call->in[1]->meta;
    int64_t rows, channels;
    rows_and_channels(meta, &rows, &channels);
    if (channels == 0) return GT_OK;
    const bool vector = channels % (16 / element_bytes(meta->dtype)) == 0 && aligned(data(call->in[0]), 16) &&
                        aligned(data(call->in[1]), 16) && aligned(data(call->out[0]), 16);
    GT__FOR_FLOATS(call, meta->dtype,
                   return vector ? backward<T, kVector<T>>(device, call, rows, channels) : backward<T, 1>(device, call, rows, channels));
    return GT_OK;
}

/* Batch normalisation, alone, with relu, or with a residual and relu. Two launches: the statistics, and the elementwise pass. Where one block sees all rows
 * of its channels, one launch does everything. Statistics are means and sums of squared deviations, joined in an order that the shape fixes (Chan, Golub &
 * LeVeque 1983). */
#include "cuda/norm.cuh"

namespace {
using namespace gt;

/* Blocks on a multiprocessor, and rows of a thread in flight in the elementwise pass: 48 to 64 KiB on their way to each multiprocessor. */
template <typename T>
constexpr int kResident = kNarrow<T> ? 3 : 2;
template <typename T, NormMode mode>
constexpr int kApplyResident = kNarrow<T> &&mode != NormMode::AddRelu ? 6 : 4;
template <typename T, NormMode mode>
constexpr int kUnroll = kNarrow<T> || mode != NormMode::AddRelu ? 4 : 2;

/* Of V channels over the same rows. */
template <typename C, int V>
struct Moments {
    C count, mean[V], squares[V]; /* squares: of the deviations from the mean */

    __device__ __forceinline__ void join(C n, const C (&other_mean)[V], const C (&other_squares)[V]) {
        if (n == C(0)) return;
        const C total = count + n, share = n / total, weight = count * share;
#pragma unroll
        for (int i = 0; i < V; i++) {
            const C delta = other_mean[i] - mean[i];
            mean[i] += delta * share;
            squares[i] += other_squares[i] + delta * delta * weight;
        }
        count = total;
    }
};

/* What training's forward does with a channel's statistics. */
template <typename C>
struct NormOut {
    C *mean, *rstd, *running_mean, *running_var; /* running ones may be NULL; so may mean and rstd */
    C momentum, epsilon;
    int64_t channels;

    /* The second row is for what the mean lost by rounding: here it is computed as it is kept. */
    __device__ __forceinline__ void put_mean(int64_t channel, C value) const {
        if (!mean) return;
        mean[channel] = value;
        mean[channels + channel] = C(0);
    }

    template <int V>
    __device__ __forceinline__ void put(int64_t channel, const Moments<C, V> &m, C (&rstd_value)[V]) const {
#pragma unroll
        for (int i = 0; i < V; i++) {
            const int64_t c = channel + i;
            rstd_value[i] = C(1) / math_sqrt((m.count > C(0) ? m.squares[i] / m.count : C(0)) + epsilon);
            put_mean(c, m.mean[i]);
            if (rstd) rstd[c] = rstd_value[i];
            if (running_mean && m.count > C(1)) {
                running_mean[c] += momentum * (m.mean[i] - running_mean[c]);
                running_var[c] += momentum * (m.squares[i] / (m.count - C(1)) - running_var[c]);
            }
        }
    }
};

/* Room for the upper half of the block's threads. */
template <int V>
constexpr int kMomentsShared = (1 + 2 * V) * kReduceBlock / 2;

/* Joins the moments of the block's rows of threads; the first of these gets the result. */
template <typename C, int V>
__device__ __forceinline__ void block_moments(Moments<C, V> &m, C *shared) {
    constexpr int kPlane = kReduceBlock / 2;
    for (uint32_t half = blockDim.y / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y >= half && threadIdx.y < 2 * half) {
            C *at = shared + (threadIdx.y - half) * blockDim.x + threadIdx.x;
            at[0] = m.count;
#pragma unroll
            for (int i = 0; i < V; i++) {
                at[(1 + i) * kPlane] = m.mean[i];
                at[(1 + V + i) * kPlane] = m.squares[i];
            }
        }
        __syncthreads();
        if (threadIdx.y < half) {
            const C *at = shared + threadIdx.y * blockDim.x + threadIdx.x;
            C mean[V], squares[V];
#pragma unroll
            for (int i = 0; i < V; i++) {
                mean[i] = at[(1 + i) * kPlane];
                squares[i] = at[(1 + V + i) * kPlane];
            }
            m.join(at[0], mean, squares);
        }
    }
}

/* The moments of the block's part, right in its first row of threads. A thread sums about the first value it sees, so that a large mean does not cancel
 * the variance. */
template <typename T, int V>
__device__ __forceinline__ void part_moments(const T *x, const Reduce &cut, int64_t channel, Moments<compute_t<T>, V> &m,
                                             compute_t<T> *shared) {
    using C = compute_t<T>;
    C about[V], sum[V], squares[V];
    int32_t seen = 0;
#pragma unroll
    for (int i = 0; i < V; i++) about[i] = sum[i] = squares[i] = C(0);
    if (channel < cut.channels) {
        const int64_t first = blockIdx.y * static_cast<int64_t>(cut.chunk_rows) + threadIdx.y;
        if (first < cut.rows) {
            const Pack<T, V> pack = load_pack<T, V>(x + first * cut.channels + channel, true);
#pragma unroll
            for (int i = 0; i < V; i++) about[i] = convert<C>(pack.v[i]);
        }
        const T *const in[1] = {x};
        seen = visit_reduce<T, V, 1, 4>(in, cut, channel, [&](const Pack<T, V>(&row)[1], int64_t) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                const C d = convert<C>(row[0].v[i]) - about[i];
                sum[i] += d;
                squares[i] = math_fma(d, d, squares[i]);
            }
        });
    }
    m.count = static_cast<C>(seen);
    const C share = seen ? C(1) / m.count : C(0);
#pragma unroll
    for (int i = 0; i < V; i++) {
        const C off = sum[i] * share, rest = squares[i] - sum[i] * off;
        m.mean[i] = about[i] + off;
        m.squares[i] = rest < C(0) ? C(0) : rest; /* NaN stays */
    }
    block_moments(m, shared);
}

/* partial[part, 2, channel]: means and sums of squares of the parts; the last block of a tile joins them. */
template <typename T, int V>
__global__ void __launch_bounds__(kReduceBlock, kResident<T>)
    k_norm_statistics(const T *x, compute_t<T> *partial, uint32_t *counters, NormOut<compute_t<T>> out, Reduce cut) {
    using C = compute_t<T>;
    __shared__ C shared[kMomentsShared<V>];
    const int64_t channel = norm_channel(V);
    const bool mine = channel < cut.channels;
    Moments<C, V> m;
    part_moments<T, V>(x, cut, channel, m, shared);
    if (threadIdx.y == 0 && mine) {
        C *at = partial + blockIdx.y * 2 * cut.channels + channel;
#pragma unroll
        for (int i = 0; i < V; i++) {
            at[i] = m.mean[i];
            at[cut.channels + i] = m.squares[i];
        }
    }
    if (!last_of_tile(counters, cut.parts)) return;
    m.count = C(0);
#pragma unroll
    for (int i = 0; i < V; i++) m.mean[i] = m.squares[i] = C(0);
    if (mine)
        visit_parts<V>(partial, cut, channel, [&](uint32_t part, const C(&mean)[V], const C(&squares)[V]) {
            m.join(static_cast<C>(part_count(cut, part)), mean, squares);
        });
    block_moments(m, shared);
    C rstd[V];
    if (threadIdx.y == 0 && mine) out.put(channel, m, rstd);
}

template <typename T, int V, NormMode mode>
__device__ __forceinline__ void put_row(T *y, int64_t at, const Affine<compute_t<T>, V> &affine,
                                        const Pack<T, V> (&row)[mode == NormMode::AddRelu ? 2 : 1]) {
    using C = compute_t<T>;
    Pack<T, V> result;
#pragma unroll
    for (int i = 0; i < V; i++) {
        C value = affine(i, convert<C>(row[0].v[i]));
        if constexpr (mode == NormMode::AddRelu) value += convert<C>(row[1].v[i]);
        result.v[i] = convert<T>(mode == NormMode::Plain ? value : relu(value));
    }
    store_pack(y + at, result, true);
}

template <typename T, NormMode mode>
struct Inputs { /* of the elementwise pass */
    static constexpr int count = mode == NormMode::AddRelu ? 2 : 1;
    const T *x, *residual;
};

/* y from given statistics. `variance`: `spread` holds variances and not reciprocal deviations (evaluation); they are then also copied to `out`. */
template <typename T, int V, NormMode mode>
__global__ void __launch_bounds__(kApplyBlock, (kApplyResident<T, mode>))
    k_norm_apply(Inputs<T, mode> inputs, T *y, const compute_t<T> *mean, const compute_t<T> *spread, bool variance,
                 const compute_t<T> *weight, const compute_t<T> *bias, NormOut<compute_t<T>> out, Apply cut) {
    using C = compute_t<T>;
    const int64_t channel = norm_channel(V);
    if (channel >= cut.channels) return;
    C center[V], rstd[V];
    load_channels<V>(center, mean, channel, C(0));
    load_channels<V>(rstd, spread, channel, C(1));
    if (variance) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            rstd[i] = C(1) / math_sqrt(rstd[i] + out.epsilon);
            if (blockIdx.y == 0 && threadIdx.y == 0) {
                out.put_mean(channel + i, center[i]);
                if (out.rstd) out.rstd[channel + i] = rstd[i];
            }
        }
    }
    Affine<C, V> affine;
    affine.set(center, rstd, weight, bias, channel);
    constexpr int N = Inputs<T, mode>::count;
    const T *in[N];
    in[0] = inputs.x;
    if constexpr (N == 2) in[1] = inputs.residual;
    visit_apply<T, V, N, kUnroll<T, mode>>(in, cut, channel,
                                           [&](const Pack<T, V>(&row)[N], int64_t at) { put_row<T, V, mode>(y, at, affine, row); });
}

/* Training's forward in one launch; `cut` has one part. */
template <typename T, int V, NormMode mode>
__global__ void __launch_bounds__(kReduceBlock, 1) k_norm_whole(Inputs<T, mode> inputs, T *y, const compute_t<T> *weight,
                                                                const compute_t<T> *bias, NormOut<compute_t<T>> out, Reduce cut) {
    using C = compute_t<T>;
    __shared__ C shared[kMomentsShared<V>];
    __shared__ C statistics[2][32 * V];
    const int64_t channel = norm_channel(V);
    Moments<C, V> m;
    part_moments<T, V>(inputs.x, cut, channel, m, shared);
    C center[V], rstd[V];
    if (threadIdx.y == 0 && channel < cut.channels) {
        out.put(channel, m, rstd);
#pragma unroll
        for (int i = 0; i < V; i++) {
            statistics[0][threadIdx.x * V + i] = m.mean[i];
            statistics[1][threadIdx.x * V + i] = rstd[i];
        }
    }
    __syncthreads();
    if (channel >= cut.channels) return;
#pragma unroll
    for (int i = 0; i < V; i++) {
        center[i] = statistics[0][threadIdx.x * V + i];
        rstd[i] = statistics[1][threadIdx.x * V + i];
    }
    Affine<C, V> affine;
    affine.set(center, rstd, weight, bias, channel);
    constexpr int N = Inputs<T, mode>::count;
    const T *in[N];
    in[0] = inputs.x;
    if constexpr (N == 2) in[1] = inputs.residual;
    visit_rows<T, V, N, kUnroll<T, mode>, false>(in, cut.channels, 0, cut.rows, channel,
                                                 [&](const Pack<T, V>(&row)[N], int64_t at) { put_row<T, V, mode>(y, at, affine, row); });
}

template <typename T, int V, NormMode mode>
gt_status forward(gt__device *device, const gt__call *call, const gt_tensor *residual, int64_t rows, int64_t channels) {
    using C = compute_t<T>;
    gt_tensor *const *in = call->in;
    const Inputs<T, mode> inputs = {data<const T>(in[0]), data<const T>(residual)};
    T *y = data<T>(call->out[0]);
    const C *weight = data<const C>(in[1]), *bias = data<const C>(in[2]);
    const bool training = call->attr.norm.training != 0;
    NormOut<C> out = {data<C>(call->out[1]),
                      data<C>(call->out[2]),
                      training ? data<C>(in[3]) : nullptr,
                      training ? data<C>(in[4]) : nullptr,
                      static_cast<C>(call->attr.norm.momentum),
                      static_cast<C>(call->attr.norm.epsilon),
                      channels};
    const Apply apply = apply_make(device, rows, channels, V, kApplyResident<T, mode>, kUnroll<T, mode>);
    if (!training)
        return norm_launch(device, call, k_norm_apply<T, V, mode>, apply, inputs, y, data<const C>(in[3]), data<const C>(in[4]), true,
                           weight, bias, out, apply);

    Reduce reduce = reduce_make(device, rows, channels, V, kResident<T>);
    void *memory = nullptr, *handle = nullptr;
    if (reduce.parts > 1 && !norm_scratch(device, (reduce.parts * 2 + 3) * channels, sizeof(C), &memory, &handle)) reduce.parts = 1;
    if (reduce.parts == 1) return norm_launch(device, call, k_norm_whole<T, V, mode>, reduce, inputs, y, weight, bias, out, reduce);

    C *partial = static_cast<C *>(memory), *own = partial + reduce.parts * 2 * channels;
    if (!out.mean) out.mean = own;
    if (!out.rstd) out.rstd = own + 2 * channels;
    gt_status status =
        norm_launch(device, call, k_norm_statistics<T, V>, reduce, inputs.x, partial, gt__cuda_counters(device), out, reduce);
    if (status == GT_OK)
        status = norm_launch(device, call, k_norm_apply<T, V, mode>, apply, inputs, y, out.mean, out.rstd, false, weight, bias, out, apply);
    gt__scratch_free(device->ctx, handle);
    return status;
}

template <typename T, int V, NormMode mode>
gt_status given(gt__device *device, const gt__call *call, int64_t rows, int64_t channels) {
    using C = compute_t<T>;
    gt_tensor *const *in = call->in;
    const Inputs<T, mode> inputs = {data<const T>(in[0]), nullptr};
    const NormOut<C> none = {};
    const Apply apply = apply_make(device, rows, channels, V, kApplyResident<T, mode>, kUnroll<T, mode>);
    return norm_launch(device, call, k_norm_apply<T, V, mode>, apply, inputs, data<T>(call->out[0]), data<const C>(in[3]),
                       data<const C>(in[4]), false, data<const C>(in[1]), data<const C>(in[2]), none, apply);
}

template <NormMode mode>
gt_status forward_any(gt__device *device, const gt__call *call, const gt_tensor *residual) {
    const gt__meta *meta = &call->in[0]->meta;
    int64_t rows, channels;
    rows_and_channels(meta, &rows, &channels);
    if (channels == 0) return GT_OK;
    const bool vector = norm_vector(meta, {call->in[0], residual, call->out[0]});
    GT__FOR_FLOATS(call, meta->dtype,
                   return vector ? forward<T, kNormVector<T>, mode>(device, call, residual, rows, channels)
                                 : forward<T, 1, mode>(device, call, residual, rows, channels));
    return GT_OK;
}

template <NormMode mode>
gt_status given_any(gt__device *device, const gt__call *call) {
    const gt__meta *meta = &call->in[0]->meta;
    int64_t rows, channels;
    if (meta->numel == 0) return GT_OK;
    rows_and_channels(meta, &rows, &channels);
    const bool vector = norm_vector(meta, {call->in[0], call->out[0]});
    GT__FOR_FLOATS(call, meta->dtype,
                   return vector ? given<T, kNormVector<T>, mode>(device, call, rows, channels)
                                 : given<T, 1, mode>(device, call, rows, channels));
    return GT_OK;
}

} // namespace

gt_status gt__cuda_batch_norm(gt__device *device, const gt__call *call) { return forward_any<NormMode::Plain>(device, call, nullptr); }

gt_status gt__cuda_batch_norm_relu(gt__device *device, const gt__call *call) { return forward_any<NormMode::Relu>(device, call, nullptr); }

gt_status gt__cuda_batch_norm_add_relu(gt__device *device, const gt__call *call) {
    return forward_any<NormMode::AddRelu>(device, call, call->in[5]);
}

gt_status gt__cuda_batch_norm_apply(gt__device *device, const gt__call *call) {
    return call->attr.norm.activation == GT_ACTIVATION_RELU ? given_any<NormMode::Relu>(device, call)
                                                            : given_any<NormMode::Plain>(device, call);
}

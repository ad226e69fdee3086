/* The gradient of batch normalisation, alone, with relu, or with a residual and relu. With x^ = (x - mean) rstd and g = dy, masked where there is a relu, per
 * channel:  db = sum g,  dw = sum g x^,  dx = w rstd (g - (db + x^ dw) / rows), or, where the statistics were constants, dx = w rstd g; the residual's
 * gradient is g. Two launches: the sums (and g, where it is wanted), and dx. dy may be given as two tensors, which are summed as they are read and not rounded;
 * where g is stored, dx takes it from there. */
#include "cuda/norm.cuh"

namespace {
using namespace gt;

/* Blocks on a multiprocessor, and rows of a thread in flight, each of two to four loads. */
constexpr int kResident = 2, kApplyResident = 4;
template <typename T, NormMode mode, bool two>
constexpr int kUnroll = kNarrow<T> &&mode != NormMode::AddRelu && !two ? 4 : 2;

/* dy, x and, where the mask comes from it, y; last the second part of dy, where there are `two`. */
template <typename T, NormMode mode, bool two>
struct Inputs {
    static constexpr int first = mode == NormMode::AddRelu ? 3 : 2, count = first + two;
    const T *dy, *x, *y, *dy2;
    __device__ __forceinline__ void get(const T *(&in)[count]) const {
        in[0] = dy;
        in[1] = x;
        if constexpr (first == 3) in[2] = y;
        if constexpr (two) in[first] = dy2;
    }
};

template <typename C>
struct NormBack {
    const C *weight, *bias, *mean, *rstd; /* weight and bias may be NULL */
    C inverse_rows;                       /* 0 in evaluation */
};

/* g of one element. */
template <NormMode mode, typename C, int V>
__device__ __forceinline__ C masked(const Affine<C, V> &affine, int i, C dy, C x, C y) {
    if constexpr (mode == NormMode::Relu) return relu_slope(affine(i, x), dy);
    if constexpr (mode == NormMode::AddRelu) return relu_slope(y, dy);
    return dy;
}

/* g of element i of a row of all inputs. */
template <typename T, int V, NormMode mode, bool two, int N>
__device__ __forceinline__ compute_t<T> gradient_of(const Affine<compute_t<T>, V> &affine, int i, const Pack<T, V> (&row)[N],
                                                    compute_t<T> x) {
    using C = compute_t<T>;
    static_assert(N == Inputs<T, mode, two>::count, "a row of the inputs");
    C dy = convert<C>(row[0].v[i]);
    if constexpr (two) dy += convert<C>(row[N - 1].v[i]);
    return masked<mode>(affine, i, dy, x, convert<C>(row[Inputs<T, mode, two>::first - 1].v[i]));
}

template <typename T, int V, NormMode mode>
__device__ __forceinline__ void load_affine(Affine<compute_t<T>, V> &affine, const NormBack<compute_t<T>> &norm, int64_t channel) {
    using C = compute_t<T>;
    C mean[V], rstd[V];
    load_channels<V>(mean, norm.mean, channel, C(0));
    load_channels<V>(rstd, norm.rstd, channel, C(1));
    affine.set(mean, rstd, norm.weight, norm.bias, channel);
}

/* Sums over the block's rows of threads; the first of them gets the results. `shared` holds kReduceBlock * V values. */
template <typename C, int V>
__device__ __forceinline__ void block_sums(C (&a)[V], C (&b)[V], C *shared) {
    constexpr int kPlane = kReduceBlock / 2;
    for (uint32_t half = blockDim.y / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y >= half && threadIdx.y < 2 * half) {
            C *at = shared + (threadIdx.y - half) * blockDim.x + threadIdx.x;
#pragma unroll
            for (int i = 0; i < V; i++) {
                at[i * kPlane] = a[i];
                at[(V + i) * kPlane] = b[i];
            }
        }
        __syncthreads();
        if (threadIdx.y < half) {
            const C *at = shared + threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
            for (int i = 0; i < V; i++) {
                a[i] += at[i * kPlane];
                b[i] += at[(V + i) * kPlane];
            }
        }
    }
}

/* The sums of g (x - mean) and of g over the block's part, right in its first row of threads; g itself to dz, unless that is NULL. */
template <typename T, int V, NormMode mode, bool two>
__device__ __forceinline__ void part_sums(const Inputs<T, mode, two> &inputs, T *dz, const NormBack<compute_t<T>> &norm, const Reduce &cut,
                                          int64_t channel, compute_t<T> (&dot)[V], compute_t<T> (&sum)[V], compute_t<T> *shared) {
    using C = compute_t<T>;
#pragma unroll
    for (int i = 0; i < V; i++) dot[i] = sum[i] = C(0);
    if (channel < cut.channels) {
        constexpr int N = Inputs<T, mode, two>::count;
        Affine<C, V> affine;
        if constexpr (mode == NormMode::Relu)
            load_affine<T, V, mode>(affine, norm, channel);
        else
            load_channels<V>(affine.center, norm.mean, channel, C(0));
        const T *in[N];
        inputs.get(in);
        visit_reduce<T, V, N, kUnroll<T, mode, two>>(in, cut, channel, [&](const Pack<T, V>(&row)[N], int64_t at) {
            Pack<T, V> result;
#pragma unroll
            for (int i = 0; i < V; i++) {
                const C x = convert<C>(row[1].v[i]);
                const C g = gradient_of<T, V, mode, two>(affine, i, row, x);
                sum[i] += g;
                dot[i] = math_fma(g, x - affine.center[i], dot[i]);
                if constexpr (mode == NormMode::AddRelu) result.v[i] = convert<T>(g);
            }
            if (mode == NormMode::AddRelu && dz) store_pack(dz + at, result, true);
        });
    }
    block_sums(dot, sum, shared);
}

/* dw and db of the thread's channels, to wherever they are wanted. */
template <typename C, int V>
__device__ __forceinline__ void put_sums(C (&dot)[V], const C (&sum)[V], const C *rstd, C *dw, C *db, C *sums, int64_t channels,
                                         int64_t channel) {
#pragma unroll
    for (int i = 0; i < V; i++) {
        dot[i] *= rstd[channel + i];
        if (dw) dw[channel + i] = dot[i];
        if (db) db[channel + i] = sum[i];
        if (sums) {
            sums[channel + i] = dot[i];
            sums[channels + channel + i] = sum[i];
        }
    }
}

/* partial[part, 2, channel]; the last block of a tile adds the parts up: dw and db, and both to `sums` again. */
template <typename T, int V, NormMode mode, bool two>
__global__ void __launch_bounds__(kReduceBlock, kResident)
    k_norm_sums(Inputs<T, mode, two> inputs, T *dz, NormBack<compute_t<T>> norm, compute_t<T> *partial, uint32_t *counters,
                compute_t<T> *dw, compute_t<T> *db, compute_t<T> *sums, Reduce cut) {
    using C = compute_t<T>;
    __shared__ C shared[kReduceBlock * V];
    const int64_t channel = norm_channel(V);
    const bool mine = channel < cut.channels;
    C dot[V], sum[V];
    part_sums<T, V, mode, two>(inputs, dz, norm, cut, channel, dot, sum, shared);
    if (threadIdx.y == 0 && mine) {
        C *at = partial + blockIdx.y * 2 * cut.channels + channel;
#pragma unroll
        for (int i = 0; i < V; i++) {
            at[i] = dot[i];
            at[cut.channels + i] = sum[i];
        }
    }
    if (!last_of_tile(counters, cut.parts)) return;
#pragma unroll
    for (int i = 0; i < V; i++) dot[i] = sum[i] = C(0);
    if (mine)
        visit_parts<V>(partial, cut, channel, [&](uint32_t, const C(&more_dot)[V], const C(&more_sum)[V]) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                dot[i] += more_dot[i];
                sum[i] += more_sum[i];
            }
        });
    block_sums(dot, sum, shared);
    if (threadIdx.y == 0 && mine) put_sums(dot, sum, norm.rstd, dw, db, sums, cut.channels, channel);
}

/* dx = slope_g g + constant - slope_x (x - mean) */
template <typename C, int V>
struct InputGradient {
    Affine<C, V> affine; /* its scale is the slope of g */
    C constant[V], slope[V];

    template <typename T, NormMode mode>
    __device__ __forceinline__ void set(const NormBack<C> &norm, int64_t channel, const C (&dw)[V], const C (&db)[V]) {
        C rstd[V];
        load_channels<V>(rstd, norm.rstd, channel, C(1));
        load_affine<T, V, mode>(affine, norm, channel);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const C share = affine.scale[i] * norm.inverse_rows;
            constant[i] = -share * db[i];
            slope[i] = -share * dw[i] * rstd[i];
        }
    }

    template <typename T, NormMode mode, bool two>
    __device__ __forceinline__ void put(T *dx, int64_t at, const Pack<T, V> (&row)[Inputs<T, mode, two>::count]) const {
        Pack<T, V> result;
#pragma unroll
        for (int i = 0; i < V; i++) {
            const C x = convert<C>(row[1].v[i]);
            const C g = gradient_of<T, V, mode, two>(affine, i, row, x);
            result.v[i] = convert<T>(math_fma(g, affine.scale[i], math_fma(x - affine.center[i], slope[i], constant[i])));
        }
        store_pack(dx + at, result, true);
    }
};

/* sums: dw and db of every channel; NULL: zeros. */
template <typename T, int V, NormMode mode, bool two>
__global__ void __launch_bounds__(kApplyBlock, kApplyResident)
    k_norm_input_gradient(Inputs<T, mode, two> inputs, T *dx, NormBack<compute_t<T>> norm, const compute_t<T> *sums, Apply cut) {
    using C = compute_t<T>;
    const int64_t channel = norm_channel(V);
    if (channel >= cut.channels) return;
    InputGradient<C, V> gradient;
    {
        C dw[V], db[V];
        load_channels<V>(dw, sums, channel, C(0));
        load_channels<V>(db, sums ? sums + cut.channels : nullptr, channel, C(0));
        gradient.template set<T, mode>(norm, channel, dw, db);
    }
    constexpr int N = Inputs<T, mode, two>::count;
    const T *in[N];
    inputs.get(in);
    visit_apply<T, V, N, kUnroll<T, mode, two>>(
        in, cut, channel, [&](const Pack<T, V>(&row)[N], int64_t at) { gradient.template put<T, mode, two>(dx, at, row); });
}

/* All of it in one launch; `cut` has one part. dx, dz, dw and db may be NULL. */
template <typename T, int V, NormMode mode, bool two>
__global__ void __launch_bounds__(kReduceBlock, 1) k_norm_backward_whole(Inputs<T, mode, two> inputs, T *dx, T *dz, compute_t<T> *dw,
                                                                         compute_t<T> *db, NormBack<compute_t<T>> norm, Reduce cut) {
    using C = compute_t<T>;
    __shared__ C shared[kReduceBlock * V];
    const int64_t channel = norm_channel(V);
    C dot[V], sum[V];
    part_sums<T, V, mode, two>(inputs, dz, norm, cut, channel, dot, sum, shared);
    __syncthreads();
    if (threadIdx.y == 0 && channel < cut.channels) {
        put_sums(dot, sum, norm.rstd, dw, db, static_cast<C *>(nullptr), cut.channels, channel);
#pragma unroll
        for (int i = 0; i < V; i++) {
            shared[threadIdx.x * V + i] = dot[i];
            shared[(32 + threadIdx.x) * V + i] = sum[i];
        }
    }
    __syncthreads();
    if (!dx || channel >= cut.channels) return;
#pragma unroll
    for (int i = 0; i < V; i++) {
        dot[i] = shared[threadIdx.x * V + i];
        sum[i] = shared[(32 + threadIdx.x) * V + i];
    }
    InputGradient<C, V> gradient;
    gradient.template set<T, mode>(norm, channel, dot, sum);
    constexpr int N = Inputs<T, mode, two>::count;
    const T *in[N];
    inputs.get(in);
    visit_rows<T, V, N, kUnroll<T, mode, two>, false>(in, cut.channels, 0, cut.rows, channel, [&](const Pack<T, V>(&row)[N], int64_t at) {
        gradient.template put<T, mode, two>(dx, at, row);
    });
}

template <typename T, int V, NormMode mode, bool two>
gt_status input_gradient(gt__device *device, const gt__call *call, const Inputs<T, mode, two> &inputs, const NormBack<compute_t<T>> &norm,
                         const compute_t<T> *sums, int64_t rows, int64_t channels) {
    const Apply apply = apply_make(device, rows, channels, V, kApplyResident, kUnroll<T, mode, two>);
    return norm_launch(device, call, k_norm_input_gradient<T, V, mode, two>, apply, inputs, data<T>(call->out[0]), norm, sums, apply);
}

/* The tensors of a call; those that it does not have are NULL. */
struct Operands {
    const gt_tensor *dy, *x, *y, *weight, *bias, *mean, *rstd, *dy2;
    gt_tensor *dx, *dw, *db, *dz;
};

template <typename T, int V, NormMode mode, bool two>
gt_status backward(gt__device *device, const gt__call *call, const Operands &o, int64_t rows, int64_t channels) {
    using C = compute_t<T>;
    const Inputs<T, mode, two> inputs = {data<const T>(o.dy), data<const T>(o.x), data<const T>(o.y), data<const T>(o.dy2)};
    const bool training = call->attr.norm.training != 0;
    const NormBack<C> norm = {data<const C>(o.weight), data<const C>(o.bias), data<const C>(o.mean), data<const C>(o.rstd),
                              training && rows > 0 ? C(1) / static_cast<C>(rows) : C(0)};
    T *dx = data<T>(o.dx), *dz = data<T>(o.dz);
    C *dw = data<C>(o.dw), *db = data<C>(o.db);
    if (!training && !dw && !db && !dz) return input_gradient<T, V, mode, two>(device, call, inputs, norm, nullptr, rows, channels);

    Reduce reduce = reduce_make(device, rows, channels, V, kResident);
    void *memory = nullptr, *handle = nullptr;
    if (reduce.parts > 1 && !norm_scratch(device, (reduce.parts + 1) * 2 * channels, sizeof(C), &memory, &handle)) reduce.parts = 1;
    if (reduce.parts == 1)
        return norm_launch(device, call, k_norm_backward_whole<T, V, mode, two>, reduce, inputs, dx, dz, dw, db, norm, reduce);

    C *partial = static_cast<C *>(memory), *sums = partial + reduce.parts * 2 * channels;
    gt_status status = norm_launch(device, call, k_norm_sums<T, V, mode, two>, reduce, inputs, dz, norm, partial, gt__cuda_counters(device),
                                   dw, db, sums, reduce);
    if (status == GT_OK && dx) {
        if (dz) { /* g is there already */
            const Inputs<T, NormMode::Plain, false> masked = {dz, inputs.x, nullptr, nullptr};
            status = input_gradient<T, V, NormMode::Plain, false>(device, call, masked, norm, sums, rows, channels);
        } else {
            status = input_gradient<T, V, mode, two>(device, call, inputs, norm, sums, rows, channels);
        }
    }
    gt__scratch_free(device->ctx, handle);
    return status;
}

template <NormMode mode, bool two>
gt_status backward_of(gt__device *device, const gt__call *call, const Operands &o) {
    const gt__meta *meta = &o.x->meta;
    int64_t rows, channels;
    rows_and_channels(meta, &rows, &channels);
    if (channels == 0) return GT_OK;
    const bool vector = norm_vector(meta, {o.dy, o.x, o.y, o.dy2, o.dx, o.dz});
    GT__FOR_FLOATS(call, meta->dtype,
                   return vector ? backward<T, kNormVector<T>, mode, two>(device, call, o, rows, channels)
                                 : backward<T, 1, mode, two>(device, call, o, rows, channels));
    return GT_OK;
}

template <NormMode mode>
gt_status backward_any(gt__device *device, const gt__call *call, Operands o, int32_t second) {
    o.dy2 = second < call->n_in ? call->in[second] : nullptr;
    return o.dy2 ? backward_of<mode, true>(device, call, o) : backward_of<mode, false>(device, call, o);
}

} // namespace

gt_status gt__cuda_batch_norm_backward(gt__device *device, const gt__call *call) {
    gt_tensor *const *in = call->in, *const *out = call->out;
    return backward_any<NormMode::Plain>(
        device, call, {in[0], in[1], nullptr, in[2], nullptr, in[3], in[4], nullptr, out[0], out[1], out[2], nullptr}, 5);
}

gt_status gt__cuda_batch_norm_relu_backward(gt__device *device, const gt__call *call) {
    gt_tensor *const *in = call->in, *const *out = call->out;
    return backward_any<NormMode::Relu>(device, call,
                                        {in[0], in[1], nullptr, in[2], in[3], in[4], in[5], nullptr, out[0], out[1], out[2], nullptr}, 6);
}

gt_status gt__cuda_batch_norm_add_relu_backward(gt__device *device, const gt__call *call) {
    gt_tensor *const *in = call->in, *const *out = call->out;
    return backward_any<NormMode::AddRelu>(device, call,
                                           {in[0], in[1], in[3], in[2], nullptr, in[4], in[5], nullptr, out[0], out[1], out[2], out[3]}, 6);
}

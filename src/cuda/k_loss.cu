/* cross_entropy and its gradient. `lanes` neighbouring threads (a power of two up to 32) share a row. */
#include "cuda/exp_sum.cuh"
#include "cuda/loss.cuh"

namespace {
using namespace gt;

constexpr int kBlock = 256;
constexpr int kWideBlock = 1024; /* where one block does all rows */

/* With one block everything is finished here, and *total_weight (may be null) set by thread 0; else the block's totals go to partial[3, block]. loss, lse and sums may be NULL. */
template <typename T, int V>
__device__ __forceinline__ void forward_rows(const T *logits, const Loss<compute_t<T>> &info, compute_t<T> *loss, compute_t<T> *lse,
                                             compute_t<T> *sums, compute_t<T> *partial, compute_t<T> *total_weight) {
    using C = compute_t<T>;
    __shared__ C shared[32];
    const int lanes = info.lanes, lane = threadIdx.x % lanes;
    const int64_t per_block = blockDim.x / lanes;
    C loss_sum = C(0), weight_sum = C(0), count = C(0);
    for (int64_t first = blockIdx.x * per_block; first < info.rows; first += gridDim.x * per_block) {
        const int64_t row = first + threadIdx.x / lanes;
        const T *in = logits + row * info.classes;
        ExpSum<C> total = exp_sum_zero<C>();
        C weights = C(0), weighted = C(0); /* sums over classes of w and of w x, for smoothing */
        if (row < info.rows) {
#pragma unroll 2
            for (int64_t j = static_cast<int64_t>(lane) * V; j < info.classes; j += static_cast<int64_t>(lanes) * V) {
                const Pack<T, V> pack = load_pack<T, V>(in + j, true);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const C x = convert<C>(pack.v[i]);
                    exp_sum_add(total, x);
                    if (info.smoothing > C(0)) {
                        const C w = info.weight(j + i);
                        weights += w;
                        weighted += w * x;
                    }
                }
            }
        }
        total = exp_sum_lanes(total, lanes);
        if (info.smoothing > C(0)) {
            weights = lanes_sum(weights, lanes);
            weighted = lanes_sum(weighted, lanes);
        }
        if (row >= info.rows || lane != 0) continue;
        const C logarithm = math_log(total.sum), row_lse = total.max + logarithm;
        if (lse) lse[row] = row_lse;
        const int64_t label = info.label(row, true);
        C value = C(0);
        if (label >= 0) {
            const C w = info.weight(label);
            value = (C(1) - info.smoothing) * w * (logarithm - (convert<C>(in[label]) - total.max));
            if (info.smoothing > C(0)) value += info.smoothing / static_cast<C>(info.classes) * (weights * row_lse - weighted);
            loss_sum += value;
            weight_sum += w;
            count += C(1);
        }
        if (loss && info.reduction == GT_REDUCTION_NONE) loss[row] = value;
    }
    loss_sum = block_sum(loss_sum, shared);
    weight_sum = block_sum(weight_sum, shared);
    count = block_sum(count, shared);
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1) {
        if (total_weight) *total_weight = weight_sum;
        loss_finish(info.reduction, loss_sum, weight_sum, count, loss, sums);
    } else {
        partial[blockIdx.x] = loss_sum;
        partial[gridDim.x + blockIdx.x] = weight_sum;
        partial[2 * gridDim.x + blockIdx.x] = count;
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(kWideBlock) k_cross_entropy(const T *logits, Loss<compute_t<T>> info, compute_t<T> *loss,
                                                              compute_t<T> *lse, compute_t<T> *sums, compute_t<T> *partial) {
    forward_rows<T, V>(logits, info, loss, lse, sums, partial, static_cast<compute_t<T> *>(nullptr));
}

template <typename C>
__global__ void __launch_bounds__(kBlock)
    k_cross_entropy_finish(const C *partial, uint32_t parts, gt_reduction reduction, C *loss, C *sums) {
    __shared__ C shared[32];
    C loss_sum = C(0), weight_sum = C(0), count = C(0);
    for (uint32_t part = threadIdx.x; part < parts; part += kBlock) {
        loss_sum += partial[part];
        weight_sum += partial[parts + part];
        count += partial[2 * parts + part];
    }
    loss_sum = block_sum(loss_sum, shared);
    weight_sum = block_sum(weight_sum, shared);
    count = block_sum(count, shared);
    if (threadIdx.x == 0) loss_finish(reduction, loss_sum, weight_sum, count, loss, sums);
}

/* dlogits of rows first, first + step, … `rows_block` rows at a time; `lse` and `sums` are those of the forward. */
template <typename T, int V>
__device__ __forceinline__ void backward_rows(const compute_t<T> *dloss, const T *logits, const Loss<compute_t<T>> &info,
                                              const compute_t<T> *lse, compute_t<T> weight_sum, T *dx, int64_t first_block,
                                              int64_t blocks) {
    using C = compute_t<T>;
    const int lanes = info.lanes, lane = threadIdx.x % lanes;
    const int64_t per_block = blockDim.x / lanes;
    for (int64_t first = first_block * per_block; first < info.rows; first += blocks * per_block) {
        const int64_t row = first + threadIdx.x / lanes;
        C weights = static_cast<C>(info.classes);
        if (info.smoothing > C(0) && info.weights) {
            weights = C(0);
            for (int64_t j = lane; j < info.classes; j += lanes) weights += info.weights[j];
            weights = lanes_sum(weights, lanes);
        }
        if (row >= info.rows) continue;
        const T *in = logits + row * info.classes;
        T *out = dx + row * info.classes;
        const int64_t label = info.label(row, false);
        C hard = C(0), soft = C(0), row_lse = C(0);
        if (label >= 0) {
            C g = dloss[info.reduction == GT_REDUCTION_NONE ? row : 0];
            if (info.reduction == GT_REDUCTION_MEAN) g /= weight_sum;
            hard = g * (C(1) - info.smoothing) * info.weight(label);
            soft = g * info.smoothing / static_cast<C>(info.classes);
            row_lse = lse[row];
        }
        for (int64_t j = static_cast<int64_t>(lane) * V; j < info.classes; j += static_cast<int64_t>(lanes) * V) {
            Pack<T, V> pack;
            if (label >= 0) {
                pack = load_pack<T, V>(in + j, true);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const C p = math_exp(convert<C>(pack.v[i]) - row_lse);
                    C value = hard * (j + i == label ? p - C(1) : p);
                    if (info.smoothing > C(0)) value += soft * (p * weights - info.weight(j + i));
                    pack.v[i] = convert<T>(value);
                }
            } else {
#pragma unroll
                for (int i = 0; i < V; i++) pack.v[i] = convert<T>(C(0));
            }
            store_pack(out + j, pack, true);
        }
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(kBlock) k_cross_entropy_backward(const compute_t<T> *dloss, const T *logits, Loss<compute_t<T>> info,
                                                                   const compute_t<T> *lse, const compute_t<T> *sums, T *dx) {
    backward_rows<T, V>(dloss, logits, info, lse, sums[0], dx, blockIdx.x, gridDim.x);
}

/* One block does both: small batches take longer to launch than to compute. */
template <typename T, int V>
__global__ void __launch_bounds__(kWideBlock) k_cross_entropy_both(const compute_t<T> *dloss, const T *logits, Loss<compute_t<T>> info,
                                                                   compute_t<T> *loss, compute_t<T> *lse, compute_t<T> *sums, T *dx) {
    using C = compute_t<T>;
    __shared__ C weight_sum;
    forward_rows<T, V>(logits, info, loss, lse, sums, static_cast<C *>(nullptr), &weight_sum);
    __syncthreads(); /* lse and the sum of weights are there */
    backward_rows<T, V>(dloss, logits, info, lse, weight_sum, dx, 0, 1);
}

template <typename C>
Loss<C> info_of(gt__device *device, const gt__call *call, const gt_tensor *logits, const gt_tensor *labels, const gt_tensor *weights) {
    Loss<C> info = loss_make<C>(device, call, logits, labels, weights);
    /* More for few rows, as threads are there: a thread goes through its part of a row one by one. */
    while (info.lanes < 32 &&
           (info.lanes * 16 < info.classes || (info.lanes * 2 <= info.classes && info.rows * info.lanes < kWideBlock / 2)))
        info.lanes *= 2;
    return info;
}

template <typename T>
gt_status forward(gt__device *device, const gt__call *call) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    const T *logits = data<const T>(call->in[0]);
    const Loss<C> info = info_of<C>(device, call, call->in[0], call->in[1], call->in[2]);
    C *loss = data<C>(call->out[0]), *lse = data<C>(call->out[1]), *sums = data<C>(call->out[2]);
    const auto kernel = info.classes % V == 0 && aligned(logits, 16) ? k_cross_entropy<T, V> : k_cross_entropy<T, 1>;

    const int64_t threads = info.rows * info.lanes;
    uint32_t blocks = threads <= 4 * kWideBlock ? 1 : static_cast<uint32_t>(min64(ceil_div(threads, kBlock), 1024));
    void *partial = nullptr, *handle = nullptr;
    if (blocks > 1 && !gt__cuda_scratch_try(device, 3 * blocks * sizeof(C), &partial, &handle)) blocks = 1;
    const uint32_t block = blocks > 1 ? kBlock : static_cast<uint32_t>(min64(kWideBlock, max64(ceil_div(threads, 32), 1) * 32));
    gt_status status = launch(device, call, kernel, blocks, block, logits, info, loss, lse, sums, static_cast<C *>(partial));
    if (status == GT_OK && blocks > 1)
        status = launch(device, call, k_cross_entropy_finish<C>, 1u, kBlock, static_cast<const C *>(partial), blocks, info.reduction, loss,
                        sums);
    gt__scratch_free(device->ctx, handle);
    return status;
}

template <typename T>
gt_status backward(gt__device *device, const gt__call *call) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    const T *logits = data<const T>(call->in[1]);
    T *dx = data<T>(call->out[0]);
    const Loss<C> info = info_of<C>(device, call, call->in[1], call->in[2], call->in[3]);
    const auto kernel =
        info.classes % V == 0 && aligned(logits, 16) && aligned(dx, 16) ? k_cross_entropy_backward<T, V> : k_cross_entropy_backward<T, 1>;
    return launch(device, call, kernel, grid_for(info.rows, kBlock / info.lanes), kBlock, data<const C>(call->in[0]), logits, info,
                  data<const C>(call->in[4]), data<const C>(call->in[5]), dx);
}

/* False: too much for one block. */
template <typename T>
bool both_fit(const gt__call *call) {
    const Loss<compute_t<T>> info = info_of<compute_t<T>>(nullptr, call, call->in[1], call->in[2], call->in[3]);
    return info.rows * info.lanes <= kWideBlock && call->out[1] && call->out[3] && call->out[3]->meta.numel > 0;
}

template <typename T>
gt_status both(gt__device *device, const gt__call *call) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    const T *logits = data<const T>(call->in[1]);
    T *dx = data<T>(call->out[3]);
    const Loss<C> info = info_of<C>(device, call, call->in[1], call->in[2], call->in[3]);
    const auto kernel =
        info.classes % V == 0 && aligned(logits, 16) && aligned(dx, 16) ? k_cross_entropy_both<T, V> : k_cross_entropy_both<T, 1>;
    const uint32_t block = static_cast<uint32_t>(min64(kWideBlock, max64(ceil_div(info.rows * info.lanes, 32), 1) * 32));
    return launch(device, call, kernel, 1u, block, data<const C>(call->in[0]), logits, info, data<C>(call->out[0]), data<C>(call->out[1]),
                  data<C>(call->out[2]), dx);
}

} // namespace

gt_status gt__cuda_cross_entropy_both(gt__device *device, const gt__call *call) {
    GT__FOR_FLOATS(call, call->in[1]->meta.dtype, if (both_fit<T>(call)) return both<T>(device, call));
    gt_tensor *const *in = call->in;
    gt_tensor *first[3] = {in[1], in[2], in[3]}, *second[6] = {in[0], in[1], in[2], in[3], call->out[1], call->out[2]};
    gt__call one = *call;
    one.in = first;
    one.n_in = one.n_out = 3;
    GT_TRY(gt__cuda_cross_entropy(device, &one));
    one.in = second;
    one.n_in = 6;
    one.n_out = 1;
    one.out[0] = call->out[3];
    return gt__cuda_cross_entropy_backward(device, &one);
}

gt_status gt__cuda_cross_entropy(gt__device *device, const gt__call *call) {
    GT__FOR_FLOATS(call, call->in[0]->meta.dtype, return forward<T>(device, call));
    return GT_OK;
}

gt_status gt__cuda_cross_entropy_backward(gt__device *device, const gt__call *call) {
    if (call->out[0]->meta.numel == 0) return GT_OK;
    GT__FOR_FLOATS(call, call->in[1]->meta.dtype, return backward<T>(device, call));
    return GT_OK;
}

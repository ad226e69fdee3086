/* The last layer of a classifier and its loss, for few classes and rows: the kernels of k_head.cu. A batch of such a layer takes next to no time, and what counts is how many kernels
 * wait for one another. */
#ifndef GT_CUDA_HEAD_CUH
#define GT_CUDA_HEAD_CUH

#include "cuda/columns.cuh"
#include "cuda/exp_sum.cuh"
#include "cuda/loss.cuh"

namespace gt {

constexpr int kHeadMostClasses = 32, kHeadMostRows = 1024;
constexpr int kHeadBlock = 256, kHeadWarps = kHeadBlock / 32; /* a warp has a row */

#ifdef __CUDACC__

/* The warp's sums of N values a lane (16 or 32): lane l gets that of value l * N / 32. */
template <int N, typename C>
__device__ __forceinline__ C spread_sum(C (&values)[N]) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    int n = N;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        if (n > 1) {
            n /= 2;
#pragma unroll
            for (int k = 0; k < N / 2; k++) {
                if (k >= n) break;
                const bool upper = (lane & step) != 0;
                const C give = upper ? values[k] : values[k + n], keep = upper ? values[k + n] : values[k];
                values[k] = keep + __shfl_xor_sync(0xffffffffu, give, step);
            }
        } else {
            values[0] += __shfl_xor_sync(0xffffffffu, values[0], step);
        }
    }
    return values[0];
}

constexpr int kHeadBatch = 16; /* classes whose weights are loaded together */

/* Those that the block's thread counts; -1 where there is none. */
template <typename T, typename C, int N>
__device__ __forceinline__ void load_labels_of(const Loss<C> &info, int64_t (&labels)[N]) {
    const T *from = static_cast<const T *>(info.labels);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int64_t row = threadIdx.x + i * static_cast<int64_t>(kHeadBlock);
        labels[i] = row < info.rows ? static_cast<int64_t>(from[row]) : -1;
    }
}
template <typename C, int N>
__device__ __forceinline__ void load_labels(const Loss<C> &info, int64_t (&labels)[N]) {
    if (info.label_dtype == GT_DTYPE_I64)
        load_labels_of<int64_t>(info, labels);
    else if (info.label_dtype == GT_DTYPE_I32)
        load_labels_of<int32_t>(info, labels);
    else
        load_labels_of<uint8_t>(info, labels);
}

/* logits = x w^T + b, cross-entropy of them, and its gradient. x [rows, width], w [classes, width]; N: 16 or 32, no fewer than classes; V neighbours are loaded at once. With several
 * blocks partial[block] takes their sums of the loss. logits and sums may be NULL. */
template <typename T, int V, int N>
__global__ void __launch_bounds__(kHeadBlock)
    k_linear_cross_entropy(const compute_t<T> *dloss, const T *x, const T *w, const T *b, int64_t width, Loss<compute_t<T>> info,
                           compute_t<T> *loss, T *logits, compute_t<T> *sums, T *dlogits, compute_t<T> *partial, uint32_t *counter) {
    using C = compute_t<T>;
    __shared__ C shared[32];
    const int lane = static_cast<int>(threadIdx.x) & 31, classes = static_cast<int>(info.classes);
    const int64_t row = static_cast<int64_t>(blockIdx.x) * kHeadWarps + (threadIdx.x >> 5);
    const bool is_row = row < info.rows;

    /* All that comes from memory is asked for before any of it is waited for. */
    const int mine = lane * N / 32; /* the lane's class */
    const C slope_of_loss = dloss[0], bias = b && mine < classes ? convert<C>(b[mine]) : C(0);
    int64_t labels[kHeadMostRows / kHeadBlock];
    load_labels(info, labels);
    const int label = is_row ? static_cast<int>(info.label(row, lane == 0)) : -1;

    C values[N];
#pragma unroll
    for (int c = 0; c < N; c++) values[c] = C(0);
    for (int64_t k = static_cast<int64_t>(lane) * V; is_row && k < width; k += 32 * V) {
        const Pack<T, V> inputs = load_pack<T, V>(x + row * width + k, true);
#pragma unroll
        for (int first = 0; first < N; first += kHeadBatch) {
            Pack<T, V> weights[kHeadBatch];
#pragma unroll
            for (int c = 0; c < kHeadBatch; c++)
                weights[c] = load_pack<T, V>(w + (first + c < classes ? first + c : classes - 1) * width + k, true);
#pragma unroll
            for (int c = 0; c < kHeadBatch; c++)
#pragma unroll
                for (int i = 0; i < V; i++) values[first + c] += convert<C>(inputs.v[i]) * convert<C>(weights[c].v[i]);
        }
    }

    /* Every block finds out what the mean divides by. */
    C weight_sum = C(0), count = C(0);
#pragma unroll
    for (int64_t of : labels) {
        if (of < 0 || of >= info.classes || of == info.ignore) continue;
        weight_sum += info.weight(of);
        count += C(1);
    }
    const C product = spread_sum<N>(values);
    const bool owner = is_row && mine < classes && lane % (32 / N) == 0;
    const T rounded = convert<T>(product + bias);
    const C logit = convert<C>(rounded);

    ExpSum<C> total = exp_sum_zero<C>();
    if (owner) exp_sum_add(total, logit);
    total = exp_sum_lanes(total, 32);
    const C logarithm = math_log(total.sum), row_lse = total.max + logarithm;
    const C weight = owner ? info.weight(mine) : C(0);
    C weights = C(0), weighted = C(0); /* sums over classes of w and of w x, for smoothing */
    if (info.smoothing > C(0)) {
        weights = lanes_sum(weight, 32);
        weighted = lanes_sum(owner ? weight * logit : C(0), 32);
    }
    const C of_label = __shfl_sync(0xffffffffu, logit, (label < 0 ? 0 : label) * (32 / N));
    C value = C(0);
    if (label >= 0 && lane == 0) {
        value = (C(1) - info.smoothing) * info.weight(label) * (logarithm - (of_label - total.max));
        if (info.smoothing > C(0)) value += info.smoothing / static_cast<C>(info.classes) * (weights * row_lse - weighted);
    }
    weight_sum = block_sum(weight_sum, shared);
    count = block_sum(count, shared);

    if (owner) {
        C slope = C(0);
        if (label >= 0) {
            C g = slope_of_loss;
            if (info.reduction == GT_REDUCTION_MEAN) g /= weight_sum;
            const C p = math_exp(logit - row_lse);
            slope = g * (C(1) - info.smoothing) * info.weight(label) * (mine == label ? p - C(1) : p);
            if (info.smoothing > C(0)) slope += g * info.smoothing / static_cast<C>(info.classes) * (p * weights - weight);
        }
        if (logits) logits[row * info.classes + mine] = rounded;
        dlogits[row * info.classes + mine] = convert<T>(slope);
    }

    C loss_sum = block_sum(value, shared);
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) partial[blockIdx.x] = loss_sum;
        if (!is_last_block(counter, gridDim.x)) return;
        loss_sum = C(0);
        for (uint32_t block = threadIdx.x; block < gridDim.x; block += kHeadBlock) loss_sum += __ldcg(partial + block);
        loss_sum = block_sum(loss_sum, shared);
    }
    if (threadIdx.x == 0) loss_finish(info.reduction, loss_sum, weight_sum, count, loss, sums);
}

constexpr int kHeadWide = 8, kHeadHigh = 32; /* threads of a block, at most so many high */
constexpr int kHeadRows = 4;                 /* of a thread */

/* dz = relu's gradient of dy w, where y is relu's result; its sums over rows to db, and those of dy to `sums` (either may be NULL). dy [rows, classes], w [classes, channels],
 * y and dz [rows, channels]. Parts of kHeadRows * blockDim.y rows; with several of them partial has [part, channel], then [part, class]. */
template <typename T, int V>
__global__ void __launch_bounds__(kHeadWide *kHeadHigh)
    k_linear_relu_backward(const T *dy, const T *w, const T *y, T *dz, void *db, void *sums, gt_dtype dtype, int32_t classes,
                           compute_t<T> *partial, uint32_t *counters, Columns columns) {
    using C = compute_t<T>;
    __shared__ C slopes[kHeadRows * kHeadHigh * (kHeadMostClasses + 1)];
    __shared__ C shared[kHeadWide * kHeadHigh * V];
    __shared__ Pack<T, V> weights[kHeadMostClasses * kHeadWide];
    const int32_t pitch = classes | 1; /* so that rows begin in different banks */
    const int32_t thread = static_cast<int32_t>(threadIdx.y * blockDim.x + threadIdx.x),
                  threads = static_cast<int32_t>(blockDim.x * blockDim.y);
    const int64_t begin = static_cast<int64_t>(blockIdx.y) * columns.part_rows, end = column_end(columns);
    const int32_t rows = static_cast<int32_t>(end - begin);
    const int64_t channel = column_channel(V);
    const bool is_channel = channel < columns.channels;
    Pack<T, V> result[kHeadRows];
#pragma unroll
    for (int u = 0; u < kHeadRows; u++) {
        const int64_t row = begin + threadIdx.y + u * blockDim.y;
        if (is_channel && row < end) result[u] = load_pack<T, V>(y + row * columns.channels + channel, true);
    }
    for (int32_t i = thread; i < classes * kHeadWide; i += threads) {
        const int32_t c = i / kHeadWide;
        const int64_t at = (static_cast<int64_t>(blockIdx.x) * kHeadWide + i - c * kHeadWide) * V;
        if (at < columns.channels) weights[i] = load_pack<T, V>(w + c * columns.channels + at, true);
    }
    const T *from = dy + begin * classes;
    for (int32_t i = thread; i < rows * classes; i += 4 * threads) {
        C slope[4];
#pragma unroll
        for (int k = 0; k < 4; k++) slope[k] = i + k * threads < rows * classes ? convert<C>(from[i + k * threads]) : C(0);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int32_t at = i + k * threads, row = at / classes;
            if (at < rows * classes) slopes[row * pitch + at - row * classes] = slope[k];
        }
    }
    __syncthreads();

    C sum[V], product[kHeadRows][V];
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = C(0);
    if (is_channel) {
#pragma unroll
        for (int u = 0; u < kHeadRows; u++)
#pragma unroll
            for (int i = 0; i < V; i++) product[u][i] = C(0);
        for (int32_t c = 0; c < classes; c++) {
            const Pack<T, V> of_class = weights[c * kHeadWide + threadIdx.x];
#pragma unroll
            for (int u = 0; u < kHeadRows; u++) {
                const int32_t row = static_cast<int32_t>(threadIdx.y + u * blockDim.y);
                const C slope = row < rows ? slopes[row * pitch + c] : C(0);
#pragma unroll
                for (int i = 0; i < V; i++) product[u][i] += slope * convert<C>(of_class.v[i]);
            }
        }
#pragma unroll
        for (int u = 0; u < kHeadRows; u++) {
            const int64_t row = begin + threadIdx.y + u * blockDim.y;
            if (row >= end) break;
            Pack<T, V> pack;
#pragma unroll
            for (int i = 0; i < V; i++) {
                const C g = convert<C>(convert<T>(product[u][i])), r = convert<C>(result[u].v[i]);
                const C z = r > C(0) ? g : (r != r ? r : C(0));
                sum[i] += z;
                pack.v[i] = convert<T>(z);
            }
            store_pack(dz + row * columns.channels + channel, pack, true);
        }
    }

    if (db) {
        column_sum(sum, shared);
        if (threadIdx.y == 0 && is_channel) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                if (partial)
                    partial[blockIdx.y * columns.channels + channel + i] = sum[i];
                else
                    store_as(db, dtype, channel + i, sum[i]);
            }
        }
    }
    C *of_classes = partial ? partial + columns.parts * columns.channels : nullptr;
    if (sums && blockIdx.x == 0) {
        const int32_t lane = thread & 31, group = thread >> 5, groups = threads >> 5;
        C total = C(0);
        for (int32_t row = group; lane < classes && row < rows; row += groups) total += slopes[row * pitch + lane];
        __syncthreads();
        shared[thread] = total;
        __syncthreads();
        if (group == 0 && lane < classes) {
            for (int32_t g = 1; g < groups; g++) total += shared[g * 32 + lane];
            if (partial)
                of_classes[blockIdx.y * classes + lane] = total;
            else
                store_as(sums, dtype, lane, total);
        }
    }
    if (!partial || !last_of_tile(counters, columns.parts)) return;
    if (db) {
        if (is_channel) column_parts(partial, columns, channel, sum);
        column_sum(sum, shared);
        if (threadIdx.y == 0 && is_channel) {
#pragma unroll
            for (int i = 0; i < V; i++) store_as(db, dtype, channel + i, sum[i]);
        }
    }
    if (sums && blockIdx.x == 0 && thread < classes) {
        C total = C(0);
        for (uint32_t part = 0; part < columns.parts; part++) total += __ldcg(of_classes + part * classes + thread);
        store_as(sums, dtype, thread, total);
    }
}

#endif

} // namespace gt

#endif

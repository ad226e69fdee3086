/* The last layer of a classifier and its loss, for few classes and rows: the kernels of k_head.cu. A batch of such a layer takes next to no time, and what counts is how many kernels
 * wait for one another. */
#ifndef GT_CUDA_HEAD_CUH
#define GT_CUDA_HEAD_CUH

#include "cuda/columns.cuh"
#include "cuda/exp_sum.cuh"
#include "cuda/loss.cuh"
#include "cuda/mma.cuh"

namespace gt {

constexpr int kHeadMostClasses = 32, kHeadMostRows = 1024;
constexpr int kHeadBlock = 256, kHeadWarps = kHeadBlock / 32;
constexpr int kHeadTile = 16; /* rows of a block */

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

/* parts[row, class] = x w^T for the tile that begins at row `first`: a warp makes a row at a time, V neighbours of x at once. Classes that are not there get numbers too. */
template <typename T, int V, int N>
__device__ __forceinline__ void head_product(const T *x, const T *w, int64_t width, int64_t first, int64_t rows, int classes,
                                             compute_t<T> *parts) {
    using C = compute_t<T>;
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll 1
    for (int of_tile = static_cast<int>(threadIdx.x) >> 5; of_tile < kHeadTile && first + of_tile < rows; of_tile += kHeadWarps) {
        C values[N];
#pragma unroll
        for (int c = 0; c < N; c++) values[c] = C(0);
#pragma unroll 1
        for (int64_t k = static_cast<int64_t>(lane) * V; k < width; k += 32 * V) {
            const Pack<T, V> inputs = load_pack<T, V>(x + (first + of_tile) * width + k, true);
#pragma unroll
            for (int batch = 0; batch < N; batch += kHeadBatch) {
                Pack<T, V> weights[kHeadBatch];
#pragma unroll
                for (int c = 0; c < kHeadBatch; c++)
                    weights[c] = load_pack<T, V>(w + (batch + c < classes ? batch + c : classes - 1) * width + k, true);
#pragma unroll
                for (int c = 0; c < kHeadBatch; c++)
#pragma unroll
                    for (int i = 0; i < V; i++) values[batch + c] += convert<C>(inputs.v[i]) * convert<C>(weights[c].v[i]);
            }
        }
        const C value = spread_sum<N>(values);
        if (lane % (32 / N) == 0) parts[of_tile * N + lane * N / 32] = value;
    }
}

template <typename T>
__device__ __forceinline__ uint32_t load_two(const T *from) {
    return *reinterpret_cast<const uint32_t *>(from);
}

/* The same of halves on tensor cores: parts[warp, row, class], which are to be added up. `width` is a multiple of 16. Warps share the width, so that a short one is soon done. */
template <typename T, int N>
__device__ __forceinline__ void head_product_mma(const T *x, const T *w, int64_t width, int64_t first, int64_t rows, int classes,
                                                 float *parts) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5, group = lane >> 2,
              pair = (lane & 3) * 2;
    const int64_t low = first + group < rows ? first + group : rows - 1, high = first + group + 8 < rows ? first + group + 8 : rows - 1;
    const T *row0 = x + low * width + pair, *row1 = x + high * width + pair, *column[N / 8];
    float sum[N / 8][4];
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        column[n] = w + (n * 8 + group < classes ? n * 8 + group : classes - 1) * width + pair;
#pragma unroll
        for (int i = 0; i < 4; i++) sum[n][i] = 0.0f;
    }
#pragma unroll 4
    for (int64_t k = warp * 16; k < width; k += kHeadWarps * 16) {
        const uint32_t a[4] = {load_two(row0 + k), load_two(row1 + k), load_two(row0 + k + 8), load_two(row1 + k + 8)};
#pragma unroll
        for (int n = 0; n < N / 8; n++) multiply<T>(sum[n], a, load_two(column[n] + k), load_two(column[n] + k + 8));
    }
    float *to = parts + (warp * kHeadTile + group) * N + pair;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        to[n * 8] = sum[n][0];
        to[n * 8 + 1] = sum[n][1];
        to[8 * N + n * 8] = sum[n][2];
        to[8 * N + n * 8 + 1] = sum[n][3];
    }
}

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

/* logits = x w^T + b, cross-entropy of them, and its gradient. x [rows, width], w [classes, width]; N: 16 or 32, no fewer than classes; V neighbours are loaded at once, or with V = 0
 * the product is done on tensor cores. With several blocks partial[block] takes their sums of the loss. logits and sums may be NULL. */
template <typename T, int V, int N>
__global__ void __launch_bounds__(kHeadBlock)
    k_linear_cross_entropy(const compute_t<T> *dloss, const T *x, const T *w, const T *b, int64_t width, Loss<compute_t<T>> info,
                           compute_t<T> *loss, T *logits, compute_t<T> *sums, T *dlogits, compute_t<T> *partial, uint32_t *counter) {
    using C = compute_t<T>;
    constexpr int kEach = N / 16, kParts = V == 0 ? kHeadWarps : 1; /* a thread has kEach classes of a row, 16 apart */
    __shared__ C parts[kParts * kHeadTile * N];
    __shared__ C shared[32];
    const int classes = static_cast<int>(info.classes), lane = static_cast<int>(threadIdx.x) & 15,
              of_tile = static_cast<int>(threadIdx.x) >> 4;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kHeadTile, row = first + of_tile;
    const bool is_row = row < info.rows;

    /* All that comes from memory is asked for before any of it is waited for. */
    const C slope_of_loss = dloss[0];
    C bias[kEach];
#pragma unroll
    for (int e = 0; e < kEach; e++) bias[e] = b && lane + 16 * e < classes ? convert<C>(b[lane + 16 * e]) : C(0);
    int64_t labels[kHeadMostRows / kHeadBlock];
    load_labels(info, labels);
    const int label = is_row ? static_cast<int>(info.label(row, lane == 0)) : -1;
    if constexpr (V == 0)
        head_product_mma<T, N>(x, w, width, first, info.rows, classes, parts);
    else
        head_product<T, V, N>(x, w, width, first, info.rows, classes, parts);

    /* Every block finds out what the mean divides by. */
    C weight_sum = C(0), count = C(0);
#pragma unroll
    for (int64_t of : labels) {
        if (of < 0 || of >= info.classes || of == info.ignore) continue;
        weight_sum += info.weight(of);
        count += C(1);
    }
    weight_sum = block_sum(weight_sum, shared);
    count = block_sum(count, shared);
    __syncthreads(); /* parts */

    T rounded[kEach];
    C logit[kEach], weight[kEach], weights = C(0), weighted = C(0); /* the last two: sums over classes of w and of w x, for smoothing */
    ExpSum<C> total = exp_sum_zero<C>();
#pragma unroll
    for (int e = 0; e < kEach; e++) {
        const int c = lane + 16 * e;
        C product = C(0);
#pragma unroll
        for (int part = 0; part < kParts; part++) product += parts[(part * kHeadTile + of_tile) * N + c];
        rounded[e] = convert<T>(product + bias[e]);
        logit[e] = convert<C>(rounded[e]);
        weight[e] = c < classes ? info.weight(c) : C(0);
        if (is_row && c < classes) {
            exp_sum_add(total, logit[e]);
            weights += weight[e];
            weighted += weight[e] * logit[e];
        }
    }
    total = exp_sum_lanes(total, 16);
    const C logarithm = math_log(total.sum), row_lse = total.max + logarithm;
    if (info.smoothing > C(0)) {
        weights = lanes_sum(weights, 16);
        weighted = lanes_sum(weighted, 16);
    }
    C value = C(0);
#pragma unroll
    for (int e = 0; e < kEach; e++) {
        const int c = lane + 16 * e;
        if (c != label) continue; /* this thread has the label's logit */
        value = (C(1) - info.smoothing) * info.weight(label) * (logarithm - (logit[e] - total.max));
        if (info.smoothing > C(0)) value += info.smoothing / static_cast<C>(info.classes) * (weights * row_lse - weighted);
    }

    C g = slope_of_loss;
    if (info.reduction == GT_REDUCTION_MEAN) g /= weight_sum;
    const C hard = label >= 0 ? g * (C(1) - info.smoothing) * info.weight(label) : C(0);
#pragma unroll
    for (int e = 0; e < kEach; e++) {
        const int c = lane + 16 * e;
        if (!is_row || c >= classes) continue;
        C slope = C(0);
        if (label >= 0) {
            const C p = math_exp(logit[e] - row_lse);
            slope = hard * (c == label ? p - C(1) : p);
            if (info.smoothing > C(0)) slope += g * info.smoothing / static_cast<C>(info.classes) * (p * weights - weight[e]);
        }
        if (logits) logits[row * info.classes + c] = rounded[e];
        dlogits[row * info.classes + c] = convert<T>(slope);
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

constexpr int kHeadWide = 8, kHeadHigh = 32; /* threads of a block; a warp has four rows of them */
constexpr int kHeadRows = 2;                 /* of a thread */

/* dz = relu's gradient of dy w, where y is relu's result; its sums over rows to db, and those of dy to `sums` (either may be NULL). dy [rows, classes], w [classes, channels],
 * y and dz [rows, channels]. Parts of kHeadRows * kHeadHigh rows; with several of them partial has [part, channel], then [part, class]. With V > 1 all are aligned to 16 bytes. */
template <typename T, int V>
__global__ void __launch_bounds__(kHeadWide *kHeadHigh)
    k_linear_relu_backward(const T *__restrict__ dy, const T *__restrict__ w, const T *__restrict__ y, T *dz, void *db, void *sums,
                           gt_dtype dtype, int32_t classes, compute_t<T> *partial, uint32_t *counters, Columns columns) {
    using C = compute_t<T>;
    constexpr int kThreads = kHeadWide * kHeadHigh, kWarps = kThreads / 32;
    __shared__ C slopes[kHeadRows * kHeadHigh * kHeadMostClasses];
    __shared__ Pack<T, V> weights[kHeadMostClasses * kHeadWide];
    __shared__ C of_channels[kWarps][kHeadWide * V], of_classes[kWarps][32];
    const int32_t thread = static_cast<int32_t>(threadIdx.y * kHeadWide + threadIdx.x), lane = thread & 31, warp = thread >> 5;
    const int64_t begin = static_cast<int64_t>(blockIdx.y) * columns.part_rows, channel = column_channel(V);
    const int32_t rows = static_cast<int32_t>(column_end(columns) - begin), count = rows * classes;
    const bool is_channel = channel < columns.channels;
    Pack<T, V> result[kHeadRows];
#pragma unroll
    for (int u = 0; u < kHeadRows; u++) {
        const int32_t row = static_cast<int32_t>(threadIdx.y) + u * kHeadHigh;
        if (is_channel && row < rows) result[u] = load_pack<T, V>(y + (begin + row) * columns.channels + channel, true);
    }
    for (int32_t i = thread; i < classes * kHeadWide; i += kThreads) {
        const int32_t c = i / kHeadWide;
        const int64_t at = (static_cast<int64_t>(blockIdx.x) * kHeadWide + i - c * kHeadWide) * V;
        if (at < columns.channels) weights[i] = load_pack<T, V>(w + c * columns.channels + at, true);
    }
    for (int32_t i = thread * V; i < count; i += kThreads * V) {
        if (i + V <= count) {
            const Pack<T, V> pack = load_pack<T, V>(dy + begin * classes + i, true);
#pragma unroll
            for (int k = 0; k < V; k++) slopes[i + k] = convert<C>(pack.v[k]);
        } else {
            for (int32_t k = i; k < count; k++) slopes[k] = convert<C>(dy[begin * classes + k]);
        }
    }
    __syncthreads();

    C sum[V], product[kHeadRows][V];
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = C(0);
#pragma unroll
    for (int u = 0; u < kHeadRows; u++)
#pragma unroll
        for (int i = 0; i < V; i++) product[u][i] = C(0);
#pragma unroll 2
    for (int32_t c = 0; c < classes; c++) {
        const Pack<T, V> of_class = weights[c * kHeadWide + threadIdx.x];
#pragma unroll
        for (int u = 0; u < kHeadRows; u++) {
            const int32_t row = static_cast<int32_t>(threadIdx.y) + u * kHeadHigh;
            const C slope = slopes[(row < rows ? row : 0) * classes + c];
#pragma unroll
            for (int i = 0; i < V; i++) product[u][i] += slope * convert<C>(of_class.v[i]);
        }
    }
#pragma unroll
    for (int u = 0; u < kHeadRows; u++) {
        const int32_t row = static_cast<int32_t>(threadIdx.y) + u * kHeadHigh;
        if (!is_channel || row >= rows) continue;
        Pack<T, V> pack;
#pragma unroll
        for (int i = 0; i < V; i++) {
            const C g = convert<C>(convert<T>(product[u][i])), r = convert<C>(result[u].v[i]);
            const C z = r > C(0) ? g : (r != r ? r : C(0));
            sum[i] += z;
            pack.v[i] = convert<T>(z);
        }
        store_pack(dz + (begin + row) * columns.channels + channel, pack, true);
    }
    if (!db && !sums) return;

#pragma unroll
    for (int i = 0; i < V; i++) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 8);
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 16);
        if (lane < kHeadWide) of_channels[warp][lane * V + i] = sum[i];
    }
    if (sums && blockIdx.x == 0) {
        C total = C(0);
        for (int32_t row = warp; lane < classes && row < rows; row += kWarps) total += slopes[row * classes + lane];
        of_classes[warp][lane] = total;
    }
    __syncthreads();
    /* The first threads have a channel each, those from the middle on a class. */
    const int32_t mine = thread < kThreads / 2 ? thread : thread - kThreads / 2;
    const int64_t my_channel = static_cast<int64_t>(blockIdx.x) * kHeadWide * V + mine;
    void *to = nullptr;
    int64_t at = 0, stride = 0;
    C total = C(0);
    if (thread < kThreads / 2 && db && mine < kHeadWide * V && my_channel < columns.channels) {
        to = db;
        at = my_channel;
        stride = columns.channels;
#pragma unroll
        for (int k = 0; k < kWarps; k++) total += of_channels[k][mine];
    } else if (thread >= kThreads / 2 && sums && blockIdx.x == 0 && mine < classes) {
        to = sums;
        at = mine;
        stride = classes;
#pragma unroll
        for (int k = 0; k < kWarps; k++) total += of_classes[k][mine];
    }
    if (partial) {
        C *parts = partial + (to == sums ? columns.parts * columns.channels : 0) + at;
        if (to) parts[blockIdx.y * stride] = total;
        if (!last_of_tile(counters, columns.parts)) return;
        total = C(0);
#pragma unroll 4
        for (uint32_t part = 0; to && part < columns.parts; part++) total += __ldcg(parts + part * stride);
    }
    if (to) store_as(to, dtype, at, total);
}

#endif

} // namespace gt

#endif

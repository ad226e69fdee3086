/* The gradients' common norm, and clipping by norm and by value: one launch over many tensors. */
#include "core/step_math.h"
#include "cuda/multi.cuh"

#include <math_constants.h>

namespace {
using namespace gt;

constexpr int32_t kMostChunk = 16384, kLeastChunk = 2048; /* elements a block */

struct Item {
    void *grad;
    int64_t count;
    int32_t index;
    uint16_t is_double, vector; /* vector: 16-byte aligned */
};

template <size_t bytes>
using GradTable = Table<Item, bytes, 64>;

/* Calls `visit(value) -> value` on the block's elements, and stores what it returns if `write`. */
template <bool write, typename T, typename Visit>
__device__ __forceinline__ void visit_chunk(T *grad, int64_t begin, int64_t end, bool vector, Visit visit) {
    constexpr int V = kVector<T>;
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x * V; i < end; i += kMultiBlock * V) {
        if (i + V <= end) {
            Pack<T, V> pack = load_pack<T, V>(grad + i, vector);
#pragma unroll
            for (int k = 0; k < V; k++) pack.v[k] = visit(pack.v[k]);
            if constexpr (write) store_pack(grad + i, pack, vector);
        } else {
            for (int64_t j = i; j < end; j++) {
                const T value = visit(grad[j]);
                if constexpr (write) grad[j] = value;
            }
        }
    }
}

/* Of one block. */
struct Partial {
    double sum;
    int32_t bad; /* the tensor's index if an element is not finite, else INT32_MAX */
    int32_t padding;
};

/* Sums of squares, in f64 so that no finite f32 gradient over- or underflows, to partial[block]. */
template <size_t bytes>
__global__ void __launch_bounds__(kMultiBlock) k_grad_squares(const __grid_constant__ GradTable<bytes> table, Partial *partial) {
    __shared__ double shared[32];
    uint32_t block;
    const Item &item = table.items[table.find(block)];
    const int64_t begin = block * static_cast<int64_t>(table.chunk),
                  end = begin + table.chunk < item.count ? begin + table.chunk : item.count;
    double sum = 0.0;
    bool bad = false;
    if (item.is_double) {
        visit_chunk<false>(static_cast<double *>(item.grad), begin, end, item.vector != 0, [&sum, &bad](double value) {
            sum += value * value;
            bad |= !gt__is_finite(value);
            return value;
        });
        bad = __syncthreads_or(bad) != 0;
    } else {
        visit_chunk<false>(static_cast<float *>(item.grad), begin, end, item.vector != 0, [&sum](float value) {
            const double wide = static_cast<double>(value);
            sum += wide * wide;
            return value;
        });
    }
    sum = block_sum(sum, shared);
    if (!item.is_double) bad = !gt__is_finite(sum); /* that of finite f32 values is */
    if (threadIdx.x == 0) {
        partial[blockIdx.x].sum = sum;
        partial[blockIdx.x].bad = bad ? item.index : INT32_MAX;
    }
}

/* Of all blocks; thread 0 calls `use(norm, first_bad)`. */
template <typename Use>
__device__ __forceinline__ void combine(const Partial *partial, int64_t count, Use use) {
    __shared__ double shared[32];
    __shared__ int32_t least[32];
    double sum = 0.0;
    int32_t bad = INT32_MAX;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < count; i += kMultiBlock) {
        sum += partial[i].sum;
        bad = min(bad, partial[i].bad);
    }
    sum = block_sum(sum, shared);
    bad = block_reduce(bad, INT32_MAX, least, [](int32_t a, int32_t b) { return min(a, b); });
    if (threadIdx.x == 0) use(sqrt(sum), bad);
}

__global__ void __launch_bounds__(kMultiBlock) k_grad_norm(const Partial *partial, int64_t count, double *norm, int32_t *first_bad) {
    combine(partial, count, [norm, first_bad](double value, int32_t bad) {
        *norm = value;
        if (first_bad) *first_bad = bad;
    });
}

__global__ void __launch_bounds__(kMultiBlock)
    k_grad_step_task(const Partial *partial, int64_t count, const __grid_constant__ gt__step_task task) {
    gt__step_advance(&task, threadIdx.x, blockDim.x);
    combine(partial, count, [&task](double value, int32_t bad) {
        task.control->norm = value;
        task.control->first_bad = bad;
        gt__step_run(&task);
    });
}

template <size_t bytes>
__global__ void __launch_bounds__(kMultiBlock)
    k_grad_clip_norm(const __grid_constant__ GradTable<bytes> table, const double *norm, double max_norm) {
    const double length = *norm;
    if (!(length > max_norm) || length == CUDART_INF) return; /* NaN: not greater */
    const double scale = max_norm / length;
    uint32_t block;
    const Item &item = table.items[table.find(block)];
    const int64_t begin = block * static_cast<int64_t>(table.chunk),
                  end = begin + table.chunk < item.count ? begin + table.chunk : item.count;
    if (item.is_double) {
        visit_chunk<true>(static_cast<double *>(item.grad), begin, end, item.vector != 0, [scale](double g) { return g * scale; });
    } else {
        /* In double: the scale may be too small for f32. */
        visit_chunk<true>(static_cast<float *>(item.grad), begin, end, item.vector != 0,
                          [scale](float g) { return static_cast<float>(g * scale); });
    }
}

template <size_t bytes>
__global__ void __launch_bounds__(kMultiBlock)
    k_grad_scale(const __grid_constant__ GradTable<bytes> table, const gt__step_control *control) {
    const double factor = control->factor;
    uint32_t block;
    const Item &item = table.items[table.find(block)];
    const int64_t begin = block * static_cast<int64_t>(table.chunk),
                  end = begin + table.chunk < item.count ? begin + table.chunk : item.count;
    if (item.is_double)
        visit_chunk<true>(static_cast<double *>(item.grad), begin, end, item.vector != 0, [factor](double g) { return g * factor; });
    else
        visit_chunk<true>(static_cast<float *>(item.grad), begin, end, item.vector != 0,
                          [factor](float g) { return static_cast<float>(g * factor); });
}

template <size_t bytes>
__global__ void __launch_bounds__(kMultiBlock) k_grad_clip_value(const __grid_constant__ GradTable<bytes> table, double max_value) {
    uint32_t block;
    const Item &item = table.items[table.find(block)];
    const int64_t begin = block * static_cast<int64_t>(table.chunk),
                  end = begin + table.chunk < item.count ? begin + table.chunk : item.count;
    if (item.is_double) {
        visit_chunk<true>(static_cast<double *>(item.grad), begin, end, item.vector != 0,
                          [max_value](double g) { return g > max_value ? max_value : (g < -max_value ? -max_value : g); });
    } else {
        const float most = static_cast<float>(max_value);
        visit_chunk<true>(static_cast<float *>(item.grad), begin, end, item.vector != 0,
                          [most](float g) { return g > most ? most : (g < -most ? -most : g); });
    }
}

int32_t chunk_of(gt__device *device, const gt__grad_list_item *list, int32_t count) {
    int64_t total = 0;
    for (int32_t k = 0; k < count; k++) total += list[k].count;
    return chunk_for(device, total, kLeastChunk, kMostChunk);
}

/* Fills tables from the list and calls `launch_table(table)` for each. */
template <size_t bytes, typename Launch>
gt_status for_tables_of(const gt__grad_list_item *list, int32_t count, int32_t chunk, Launch launch_table) {
    GradTable<bytes> table;
    table.chunk = chunk;
    int32_t k = 0;
    while (k < count) {
        table.count = 0;
        for (; k < count; k++) {
            const Item item = {list[k].grad, list[k].count, list[k].index, list[k].dtype == GT_DTYPE_F64, aligned(list[k].grad, 16)};
            if (!table.add(item, list[k].count, chunk)) break;
        }
        if (table.count > 0)
            GT_TRY(launch_table(table));
        else if (k < count)
            GT_FAIL(GT_BAD_SHAPE, "gradient list: a gradient of %lld elements is too large", (long long)list[k].count);
    }
    return GT_OK;
}

template <typename Launch>
gt_status for_tables(const gt__grad_list_item *list, int32_t count, int32_t chunk, Launch launch_table) {
    for (int32_t k = 0; k < count; k++)
        GT_REQUIRE(list[k].dtype == GT_DTYPE_F32 || list[k].dtype == GT_DTYPE_F64, GT_BAD_DTYPE,
                   "gradient list: gradient %d has dtype %d, not f32 or f64", (int)k, (int)list[k].dtype);
    if (count > GradTable<kSmallParameters>::kCapacity && large_parameters())
        return for_tables_of<kLargeParameters>(list, count, chunk, launch_table);
    return for_tables_of<kSmallParameters>(list, count, chunk, launch_table);
}

/* Partial sums of the list in scratch memory, and `finish(partial, blocks)` to combine them. */
template <typename Finish>
gt_status norm_of(gt__device *device, const gt__grad_list_item *list, int32_t count, Finish finish) {
    const int32_t chunk = chunk_of(device, list, count);
    int64_t blocks = 0;
    for (int32_t k = 0; k < count; k++) blocks += ceil_div(list[k].count, chunk);
    void *memory = nullptr, *handle = nullptr;
    if (blocks > 0) GT_TRY(gt__scratch_alloc(device->ctx, static_cast<size_t>(blocks) * sizeof(Partial), &memory, &handle));
    Partial *partial = static_cast<Partial *>(memory);
    int64_t done = 0;
    gt_status status = for_tables(list, count, chunk, [&](const auto &table) {
        constexpr size_t bytes = sizeof(table) > kSmallParameters ? kLargeParameters : kSmallParameters;
        const gt_status st =
            launch2(device, nullptr, "gradient norm", k_grad_squares<bytes>, table.blocks(), 1u, kMultiBlock, 1u, table, partial + done);
        done += table.blocks();
        return st;
    });
    if (status == GT_OK) status = finish(static_cast<const Partial *>(partial), blocks);
    gt__scratch_free(device->ctx, handle);
    return status;
}

} // namespace

gt_status gt__cuda_grad_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, double *norm, int32_t *first_bad) {
    return norm_of(device, list, count, [=](const Partial *partial, int64_t blocks) {
        return launch2(device, nullptr, "gradient norm", k_grad_norm, 1u, 1u, kMultiBlock, 1u, partial, blocks, norm, first_bad);
    });
}

gt_status gt__cuda_grad_step_task(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_task *task) {
    return norm_of(device, list, count, [=](const Partial *partial, int64_t blocks) {
        return launch2(device, nullptr, "gradient norm", k_grad_step_task, 1u, 1u, kMultiBlock, 1u, partial, blocks, *task);
    });
}

gt_status gt__cuda_grad_clip_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, const double *norm, double max_norm) {
    return for_tables(list, count, chunk_of(device, list, count), [&](const auto &table) {
        constexpr size_t bytes = sizeof(table) > kSmallParameters ? kLargeParameters : kSmallParameters;
        return launch2(device, nullptr, "gradient clipping", k_grad_clip_norm<bytes>, table.blocks(), 1u, kMultiBlock, 1u, table, norm,
                       max_norm);
    });
}

gt_status gt__cuda_grad_clip_value(gt__device *device, const gt__grad_list_item *list, int32_t count, double max_value) {
    return for_tables(list, count, chunk_of(device, list, count), [&](const auto &table) {
        constexpr size_t bytes = sizeof(table) > kSmallParameters ? kLargeParameters : kSmallParameters;
        return launch2(device, nullptr, "gradient clipping", k_grad_clip_value<bytes>, table.blocks(), 1u, kMultiBlock, 1u, table,
                       max_value);
    });
}

gt_status gt__cuda_grad_scale(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_control *control) {
    return for_tables(list, count, chunk_of(device, list, count), [&](const auto &table) {
        constexpr size_t bytes = sizeof(table) > kSmallParameters ? kLargeParameters : kSmallParameters;
        return launch2(device, nullptr, "unscaling", k_grad_scale<bytes>, table.blocks(), 1u, kMultiBlock, 1u, table, control);
    });
}

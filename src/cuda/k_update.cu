/* The optimizers' updates, as torch.optim computes them: one launch for up to a few hundred parameters. */
#include "core/step_math.h"
#include "cuda/math.cuh"
#include "cuda/multi.cuh"

namespace {
using namespace gt;

constexpr int kWidth = 4;                                /* elements a thread moves at once */
constexpr int32_t kLeastChunk = 1024, kMostChunk = 4096; /* elements a block */

/* C: f32, or f64 for f64 parameters. */
template <typename C>
struct Item {
    void *param;
    C *master; /* where the exact value is kept; NULL: in param */
    const C *grad;
    C *state0, *state1;
    void *half; /* a rounded copy of param, or NULL */
    int32_t *step;
    int64_t count;
    uint8_t dtype, half_dtype; /* of param and half */
    uint8_t vector;            /* every array is aligned for kWidth elements */
    uint8_t padding[5];
};

/* What all parameters share and the host knows. */
template <typename C>
struct Rule {
    gt__update_rule rule;
    const gt__step_control *control;
    C momentum, undamped, beta2, rest1, rest2, epsilon, weight_decay;
};

/* What a block finds out first, from the parameter's step count and the control. */
template <typename C>
struct Numbers {
    double factor;
    C limit, learning_rate, shrink;
    C step_size, root_correction; /* Adam: lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
    int32_t first, skip;
};

template <typename C>
__device__ __forceinline__ void find_numbers(const Rule<C> &rule, const Item<C> &item, bool first_block, Numbers<C> *numbers) {
    const int32_t done = *item.step;
    const gt__update_numbers n = gt__update_numbers_of(&rule.rule, rule.control, done);
    numbers->factor = n.factor;
    numbers->limit = static_cast<C>(n.limit);
    numbers->learning_rate = static_cast<C>(n.learning_rate);
    numbers->shrink = static_cast<C>(n.shrink);
    numbers->step_size = static_cast<C>(n.step_size);
    numbers->root_correction = static_cast<C>(1.0 / n.root_correction);
    numbers->first = n.first;
    numbers->skip = n.skip;
    if (first_block) *reinterpret_cast<int32_t *>(reinterpret_cast<uintptr_t>(item.step) ^ 4) = gt__next_step(done, n.skip);
}

template <typename C>
__device__ __forceinline__ C load_param(const void *param, gt_dtype dtype, int64_t i) {
    switch (dtype) {
    case GT_DTYPE_F16:
        return convert<C>(static_cast<const __half *>(param)[i]);
    case GT_DTYPE_BF16:
        return convert<C>(static_cast<const __nv_bfloat16 *>(param)[i]);
    default:
        return static_cast<const C *>(param)[i];
    }
}

template <typename C>
__device__ __forceinline__ void update_one(const Rule<C> &rule, const Numbers<C> &now, const Item<C> &item, C &p, C g, C &s0, C &s1) {
    /* In double: a factor may be too small or too large for f32 where its product is not. */
    if (now.factor != 1.0) g = static_cast<C>(static_cast<double>(g) * now.factor);
    if (now.limit > C(0)) g = g > now.limit ? now.limit : (g < -now.limit ? -now.limit : g);
    if (rule.rule.kind == GT_OPTIMIZER_SGD) {
        if (rule.weight_decay != C(0)) g += rule.weight_decay * p;
        if (item.state0) {
            s0 = now.first ? g : rule.momentum * s0 + rule.undamped * g;
            g = rule.rule.nesterov ? g + rule.momentum * s0 : s0;
        }
        p -= now.learning_rate * g;
        return;
    }
    if (rule.rule.kind == GT_OPTIMIZER_ADAMW)
        p *= now.shrink;
    else if (rule.weight_decay != C(0))
        g += rule.weight_decay * p;
    s0 += rule.rest1 * (g - s0);
    s1 = rule.beta2 * s1 + rule.rest2 * g * g;
    p -= now.step_size * s0 / (math_sqrt(s1) * now.root_correction + rule.epsilon);
}

template <typename C>
__device__ __forceinline__ void store_rounded(void *param, gt_dtype dtype, int64_t i, const C (&p)[kWidth], bool vector) {
    if (dtype == GT_DTYPE_F16) {
        Pack<__half, kWidth> pack;
#pragma unroll
        for (int k = 0; k < kWidth; k++) pack.v[k] = convert<__half>(p[k]);
        store_pack(static_cast<__half *>(param) + i, pack, vector);
    } else {
        Pack<__nv_bfloat16, kWidth> pack;
#pragma unroll
        for (int k = 0; k < kWidth; k++) pack.v[k] = convert<__nv_bfloat16>(p[k]);
        store_pack(static_cast<__nv_bfloat16 *>(param) + i, pack, vector);
    }
}

/* kWidth values as accesses of 16 bytes. */
template <typename C>
__device__ __forceinline__ void load_four(const C *from, C (&values)[kWidth]) {
    constexpr int V = kVector<C>;
#pragma unroll
    for (int k = 0; k < kWidth; k += V) {
        const Pack<C, V> pack = load_pack<C, V>(from + k, true);
#pragma unroll
        for (int i = 0; i < V; i++) values[k + i] = pack.v[i];
    }
}
template <typename C>
__device__ __forceinline__ void store_four(C *to, const C (&values)[kWidth]) {
    constexpr int V = kVector<C>;
#pragma unroll
    for (int k = 0; k < kWidth; k += V) {
        Pack<C, V> pack;
#pragma unroll
        for (int i = 0; i < V; i++) pack.v[i] = values[k + i];
        store_pack(to + k, pack, true);
    }
}

template <typename C>
struct Four {
    C p[kWidth], g[kWidth], s0[kWidth], s1[kWidth];
};

template <typename C>
__device__ __forceinline__ void load_all(const Item<C> &item, const C *exact, int64_t i, Four<C> &four) {
    load_four(item.grad + i, four.g);
    if (item.state0) load_four(item.state0 + i, four.s0);
    if (item.state1) load_four(item.state1 + i, four.s1);
    if (exact) {
        load_four(exact + i, four.p);
    } else {
#pragma unroll
        for (int k = 0; k < kWidth; k++) four.p[k] = load_param<C>(item.param, static_cast<gt_dtype>(item.dtype), i + k);
    }
}

template <typename C, size_t bytes>
using UpdateTable = Table<Item<C>, bytes, sizeof(Rule<C>)>;

template <typename C, size_t bytes>
__global__ void __launch_bounds__(kMultiBlock)
    k_update(const __grid_constant__ UpdateTable<C, bytes> table, const __grid_constant__ Rule<C> rule) {
    __shared__ Numbers<C> now;
    uint32_t block;
    const Item<C> &item = table.items[table.find(block)];
    const int64_t begin = block * static_cast<int64_t>(table.chunk),
                  end = begin + table.chunk < item.count ? begin + table.chunk : item.count;
    const gt_dtype dtype = static_cast<gt_dtype>(item.dtype), half_dtype = static_cast<gt_dtype>(item.half_dtype);
    const bool half = dtype == GT_DTYPE_F16 || dtype == GT_DTYPE_BF16;
    C *exact = item.master ? item.master : (half ? nullptr : static_cast<C *>(item.param));
    const int64_t start = begin + threadIdx.x * kWidth;
    Four<C> four = {};
    /* The first elements are on their way while one thread works the numbers out. */
    if (item.vector && start + kWidth <= end) load_all(item, exact, start, four);
    if (threadIdx.x == 0) find_numbers(rule, item, block == 0, &now);
    __syncthreads();
    if (now.skip) {
        for (int64_t i = begin + threadIdx.x; i < end && item.half; i += kMultiBlock) store_as(item.half, half_dtype, i, exact[i]);
        return;
    }
    for (int64_t i = start; i < end; i += kMultiBlock * kWidth) {
        if (item.vector && i + kWidth <= end) {
            if (i != start) load_all(item, exact, i, four);
#pragma unroll
            for (int k = 0; k < kWidth; k++) update_one(rule, now, item, four.p[k], four.g[k], four.s0[k], four.s1[k]);
            if (item.state0) store_four(item.state0 + i, four.s0);
            if (item.state1) store_four(item.state1 + i, four.s1);
            if (exact) store_four(exact + i, four.p);
            if (half) store_rounded(item.param, dtype, i, four.p, true);
            if (item.half) store_rounded(item.half, half_dtype, i, four.p, true);
        } else {
            for (int64_t j = i; j < end && j < i + kWidth; j++) {
                C p = exact ? exact[j] : load_param<C>(item.param, dtype, j), s0 = item.state0 ? item.state0[j] : C(0);
                C s1 = item.state1 ? item.state1[j] : C(0);
                update_one(rule, now, item, p, item.grad[j], s0, s1);
                if (item.state0) item.state0[j] = s0;
                if (item.state1) item.state1[j] = s1;
                if (exact) exact[j] = p;
                if (half) store_as(item.param, dtype, j, p);
                if (item.half) store_as(item.half, half_dtype, j, p);
            }
        }
    }
}

template <typename C>
Rule<C> rule_of(const gt__update_rule *r, const gt__step_control *control) {
    Rule<C> rule;
    rule.rule = *r;
    rule.control = control;
    rule.momentum = static_cast<C>(r->momentum);
    rule.undamped = static_cast<C>(1.0 - r->dampening);
    rule.beta2 = static_cast<C>(r->beta2);
    rule.rest1 = static_cast<C>(1.0 - r->beta1);
    rule.rest2 = static_cast<C>(1.0 - r->beta2);
    rule.epsilon = static_cast<C>(r->epsilon);
    rule.weight_decay = static_cast<C>(r->weight_decay);
    return rule;
}

template <typename C>
Item<C> item_of(const gt__update *u) {
    Item<C> item = {};
    item.param = u->param;
    item.master = static_cast<C *>(u->master);
    item.grad = static_cast<const C *>(u->grad);
    item.state0 = static_cast<C *>(u->state0);
    item.state1 = static_cast<C *>(u->state1);
    item.half = u->half;
    item.step = u->step;
    item.count = u->count;
    item.dtype = static_cast<uint8_t>(u->param_dtype);
    item.half_dtype = static_cast<uint8_t>(u->half_dtype);
    item.vector = aligned(u->param, static_cast<size_t>(min64(element_bytes(u->param_dtype) * kWidth, 16))) && aligned(u->master, 16) &&
                  aligned(u->grad, 16) && aligned(u->state0, 16) && aligned(u->state1, 16) && aligned(u->half, 8);
    return item;
}

template <typename C, size_t bytes>
gt_status update_with(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count,
                      const gt__step_control *control) {
    UpdateTable<C, bytes> table;
    const Rule<C> shared = rule_of<C>(rule, control);
    int64_t total = 0;
    for (int32_t i = 0; i < count; i++) total += list[i].count;
    table.chunk = chunk_for(device, total, kLeastChunk, kMostChunk);
    int32_t k = 0;
    while (k < count) {
        table.count = 0;
        for (; k < count; k++) {
            if ((list[k].param_dtype == GT_DTYPE_F64) != (sizeof(C) == 8)) continue;
            if (!table.add(item_of<C>(&list[k]), list[k].count, table.chunk)) break;
        }
        if (table.count > 0)
            GT_TRY(launch2(device, nullptr, "optimizer update", k_update<C, bytes>, table.blocks(), 1u, kMultiBlock, 1u, table, shared));
        else if (k < count)
            GT_FAIL(GT_BAD_SHAPE, "optimizer update: a parameter of %lld elements is too large", (long long)list[k].count);
    }
    return GT_OK;
}

template <typename C>
gt_status update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count, const gt__step_control *control) {
    if (count > UpdateTable<C, kSmallParameters>::kCapacity && large_parameters())
        return update_with<C, kLargeParameters>(device, rule, list, count, control);
    return update_with<C, kSmallParameters>(device, rule, list, count, control);
}

} // namespace

gt_status gt__cuda_update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count,
                          const gt__step_control *control) {
    bool doubles = false, others = false;
    for (int32_t k = 0; k < count; k++) {
        if (list[k].param_dtype == GT_DTYPE_F64)
            doubles = true;
        else
            others = true;
        const gt_dtype grad = list[k].param_dtype == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32;
        GT_REQUIRE(gt__dtype_is_float(list[k].param_dtype) && list[k].grad_dtype == grad, GT_BAD_DTYPE,
                   "optimizer update: parameter %d has dtype %d and its gradient %d", (int)k, (int)list[k].param_dtype,
                   (int)list[k].grad_dtype);
    }
    if (others) GT_TRY(update<float>(device, rule, list, count, control));
    if (doubles) GT_TRY(update<double>(device, rule, list, count, control));
    return GT_OK;
}

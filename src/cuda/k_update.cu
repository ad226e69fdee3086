/* The optimizers' updates, as torch.optim computes them: one launch for up to a few hundred parameters. */
#include "cuda/multi.cuh"
#include "cuda/math.cuh"

#include <gtrain/optim.h>

#include <math.h>

namespace {
using namespace gt;

constexpr int kWidth = 4;        /* elements a thread moves at once */
constexpr int64_t kChunk = 4096; /* elements a block */

/* C: f32, or f64 for f64 parameters. */
template <typename C>
struct Item {
    void *param;
    C *master; /* where the exact value is kept; NULL: in param */
    const C *grad;
    C *state0, *state1;
    int64_t count;
    C step_size, root_correction; /* Adam: lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
    gt_dtype dtype;               /* of param */
    uint8_t vector, first;        /* every array is aligned for kWidth elements; first: this is its first update */
};

template <typename C>
struct Rule {
    C learning_rate, momentum, undamped, beta1, beta2, rest1, rest2, epsilon, weight_decay, decay; /* decay: what AdamW multiplies with */
    int32_t kind, nesterov;
};

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
__device__ __forceinline__ void update_one(const Rule<C> &rule, const Item<C> &item, C &p, C g, C &s0, C &s1) {
    if (rule.kind == GT_OPTIMIZER_SGD) {
        if (rule.weight_decay != C(0)) g += rule.weight_decay * p;
        if (item.state0) {
            s0 = item.first ? g : rule.momentum * s0 + rule.undamped * g;
            g = rule.nesterov ? g + rule.momentum * s0 : s0;
        }
        p -= rule.learning_rate * g;
        return;
    }
    if (rule.kind == GT_OPTIMIZER_ADAMW)
        p *= rule.decay;
    else if (rule.weight_decay != C(0))
        g += rule.weight_decay * p;
    s0 += rule.rest1 * (g - s0);
    s1 = rule.beta2 * s1 + rule.rest2 * g * g;
    p -= item.step_size * s0 / (math_sqrt(s1) * item.root_correction + rule.epsilon);
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

template <typename C, size_t bytes>
using UpdateTable = Table<Item<C>, bytes, sizeof(Rule<C>)>;

template <typename C, size_t bytes>
__global__ void __launch_bounds__(kMultiBlock)
    k_update(const __grid_constant__ UpdateTable<C, bytes> table, const __grid_constant__ Rule<C> rule) {
    uint32_t block;
    const Item<C> &item = table.items[table.find(block)];
    const int64_t begin = block * kChunk, end = begin + kChunk < item.count ? begin + kChunk : item.count;
    const bool half = item.dtype == GT_DTYPE_F16 || item.dtype == GT_DTYPE_BF16;
    C *exact = item.master ? item.master : (half ? nullptr : static_cast<C *>(item.param));
    for (int64_t i = begin + threadIdx.x * kWidth; i < end; i += kMultiBlock * kWidth) {
        if (item.vector && i + kWidth <= end) {
            C p[kWidth], g[kWidth], s0[kWidth] = {}, s1[kWidth] = {};
            load_four(item.grad + i, g);
            if (item.state0) load_four(item.state0 + i, s0);
            if (item.state1) load_four(item.state1 + i, s1);
            if (exact) {
                load_four(exact + i, p);
            } else {
#pragma unroll
                for (int k = 0; k < kWidth; k++) p[k] = load_param<C>(item.param, item.dtype, i + k);
            }
#pragma unroll
            for (int k = 0; k < kWidth; k++) update_one(rule, item, p[k], g[k], s0[k], s1[k]);
            if (item.state0) store_four(item.state0 + i, s0);
            if (item.state1) store_four(item.state1 + i, s1);
            if (exact) store_four(exact + i, p);
            if (half) store_rounded(item.param, item.dtype, i, p, true);
        } else {
            for (int64_t j = i; j < end && j < i + kWidth; j++) {
                C p = exact ? exact[j] : load_param<C>(item.param, item.dtype, j), s0 = item.state0 ? item.state0[j] : C(0);
                C s1 = item.state1 ? item.state1[j] : C(0);
                update_one(rule, item, p, item.grad[j], s0, s1);
                if (item.state0) item.state0[j] = s0;
                if (item.state1) item.state1[j] = s1;
                if (exact) exact[j] = p;
                if (half) store_as(item.param, item.dtype, j, p);
            }
        }
    }
}

template <typename C>
Rule<C> rule_of(const gt__update_rule *r) {
    Rule<C> rule;
    rule.learning_rate = static_cast<C>(r->learning_rate);
    rule.momentum = static_cast<C>(r->momentum);
    rule.undamped = static_cast<C>(1.0 - r->dampening);
    rule.beta1 = static_cast<C>(r->beta1);
    rule.beta2 = static_cast<C>(r->beta2);
    rule.rest1 = static_cast<C>(1.0 - r->beta1);
    rule.rest2 = static_cast<C>(1.0 - r->beta2);
    rule.epsilon = static_cast<C>(r->epsilon);
    rule.weight_decay = static_cast<C>(r->weight_decay);
    rule.decay = static_cast<C>(1.0 - r->learning_rate * r->weight_decay);
    rule.kind = r->kind;
    rule.nesterov = r->nesterov;
    return rule;
}

template <typename C>
Item<C> item_of(const gt__update_rule *rule, const gt__update *u) {
    Item<C> item;
    item.param = u->param;
    item.master = static_cast<C *>(u->master);
    item.grad = static_cast<const C *>(u->grad);
    item.state0 = static_cast<C *>(u->state0);
    item.state1 = static_cast<C *>(u->state1);
    item.count = u->count;
    item.step_size = item.root_correction = C(1);
    if (rule->kind != GT_OPTIMIZER_SGD) {
        const double t = static_cast<double>(u->step);
        item.step_size = static_cast<C>(rule->learning_rate / (1.0 - pow(rule->beta1, t)));
        item.root_correction = static_cast<C>(1.0 / sqrt(1.0 - pow(rule->beta2, t)));
    }
    item.dtype = u->param_dtype;
    item.first = u->step <= 1;
    item.vector = aligned(u->param, static_cast<size_t>(min64(element_bytes(u->param_dtype) * kWidth, 16))) && aligned(u->master, 16) &&
                  aligned(u->grad, 16) && aligned(u->state0, 16) && aligned(u->state1, 16);
    return item;
}

template <typename C, size_t bytes>
gt_status update_with(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count) {
    UpdateTable<C, bytes> table;
    const Rule<C> shared = rule_of<C>(rule);
    int32_t k = 0;
    while (k < count) {
        table.count = 0;
        for (; k < count; k++) {
            if ((list[k].param_dtype == GT_DTYPE_F64) != (sizeof(C) == 8)) continue;
            if (!table.add(item_of<C>(rule, &list[k]), list[k].count, kChunk)) break;
        }
        if (table.count > 0)
            GT_TRY(launch2(device, nullptr, "optimizer update", k_update<C, bytes>, table.blocks(), 1u, kMultiBlock, 1u, table, shared));
        else if (k < count)
            GT_FAIL(GT_BAD_SHAPE, "optimizer update: a parameter of %lld elements is too large", (long long)list[k].count);
    }
    return GT_OK;
}

template <typename C>
gt_status update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count) {
    if (count > UpdateTable<C, kSmallParameters>::kCapacity && large_parameters())
        return update_with<C, kLargeParameters>(device, rule, list, count);
    return update_with<C, kSmallParameters>(device, rule, list, count);
}

} // namespace

gt_status gt__cuda_update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count) {
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
    if (others) GT_TRY(update<float>(device, rule, list, count));
    if (doubles) GT_TRY(update<double>(device, rule, list, count));
    return GT_OK;
}

#include "step/times.h"

#include "core/op_cost.h"
#include "profile/profile.h"
#include "step/passes.h"

#include <math.h>

/* --- who does the same --------------------------------------------------------------------------------------------------------------------- */

static void mix(uint64_t *key, uint64_t number) {
    uint64_t x = *key ^ number * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    *key = x ^ x >> 29;
}

static void mix_all(uint64_t *key, const int64_t *numbers, int32_t n) {
    for (int32_t i = 0; i < n; ++i) mix(key, (uint64_t)numbers[i]);
}

static void mix_meta(uint64_t *key, const gt_tensor *t) {
    mix(key, t ? (uint64_t)t->meta.dtype + 1 : 0);
    if (t == NULL) return;
    mix(key, (uint64_t)t->meta.ndim);
    mix_all(key, t->meta.shape, t->meta.ndim);
    mix_all(key, t->meta.strides, t->meta.ndim);
}

/* Attributes that decide about time and do not follow from the operands. Others (seeds, slopes, labels) do not matter. */
static void mix_attributes(uint64_t *key, const gt__call *call) {
    const gt__attrs *a = &call->attr;
    switch (call->op) {
    case GT__OP_CONV2D:
    case GT__OP_CONV2D_RELU:
    case GT__OP_CONV2D_BACKWARD_INPUT:
    case GT__OP_CONV2D_BACKWARD_WEIGHT:
    case GT__OP_CONV2D_RELU_BACKWARD_WEIGHT:
        mix_all(key, a->conv.stride, 2);
        mix_all(key, a->conv.padding, 2);
        mix_all(key, a->conv.dilation, 2);
        mix(key, (uint64_t)a->conv.groups);
        mix(key, (uint64_t)a->conv.activation);
        mix(key, (uint64_t)a->conv.accumulate);
        break;
    case GT__OP_MAX_POOL2D:
    case GT__OP_MAX_POOL2D_BACKWARD:
    case GT__OP_AVG_POOL2D:
    case GT__OP_AVG_POOL2D_BACKWARD:
        mix_all(key, a->pool.kernel, 2);
        mix_all(key, a->pool.stride, 2);
        mix_all(key, a->pool.padding, 2);
        break;
    case GT__OP_LINEAR:
    case GT__OP_LINEAR_RELU:
    case GT__OP_LINEAR_BACKWARD_WEIGHT:
        mix(key, (uint64_t)a->linear.activation);
        mix(key, (uint64_t)a->linear.accumulate);
        break;
    case GT__OP_BATCH_NORM:
    case GT__OP_BATCH_NORM_RELU:
    case GT__OP_BATCH_NORM_ADD_RELU:
        mix(key, (uint64_t)a->norm.training);
        break;
    case GT__OP_CUSTOM:
        mix(key, (uint64_t)(uintptr_t)a->custom.op);
        mix(key, (uint64_t)a->custom.backward);
        break;
    default:
        break;
    }
}

static void mix_access(void *user, const gt__access *access) {
    mix(user, (uint64_t)access->bytes * 4 + (access->reads ? 2 : 0) + (access->writes ? 1 : 0));
}

static int32_t kind_of(const gt__instruction *n) {
    return n->kind == GT__DO_CALL ? (int32_t)n->call->call.op : (int32_t)GT__OP_COUNT + n->kind;
}

/* Outputs that may be left out do not count, so that what is done again without them is known. */
static uint64_t key_of(gt__instruction *n) {
    uint64_t key = 1;
    mix(&key, (uint64_t)kind_of(n));
    if (n->kind != GT__DO_CALL) {
        gt__instruction_visit(n, mix_access, &key);
        if (n->kind == GT__DO_UPDATE) mix(&key, (uint64_t)n->update.rule.kind);
        for (int32_t k = 0; n->kind == GT__DO_CHAIN && k < n->chain->n_nodes; ++k) mix(&key, (uint64_t)n->chain->nodes[k].op);
        return key ? key : 1;
    }
    const gt__call *call = &n->call->call;
    for (int32_t k = 0; k < call->n_in; ++k) mix_meta(&key, call->in[k]);
    for (int32_t k = 0; k < call->n_out; ++k)
        if (k == 0 || !(gt__optional_outputs(call->op) >> k & 1)) mix_meta(&key, call->out[k]);
    mix_attributes(&key, call);
    return key ? key : 1;
}

bool gt__does_same(gt__instruction *a, gt__instruction *b) { return a->kind == b->kind && key_of(a) == key_of(b); }

/* --- what was seen -------------------------------------------------------------------------------------------------------------------------- */

void gt__times_free(gt__times *times) {
    gt__free(times->slots);
    *times = (gt__times){0};
}

static gt__seen *slot_of(const gt__times *times, uint64_t key) {
    uint64_t mask = (uint64_t)times->capacity - 1, at = key & mask;
    while (times->slots[at].key != 0 && times->slots[at].key != key) at = (at + 1) & mask;
    return &times->slots[at];
}

gt_status gt__times_reserve(gt__times *times, int32_t more) {
    if (times->count > GT__TIMES_MOST) { /* shapes that change for ever must not take memory for ever */
        memset(times->slots, 0, (size_t)times->capacity * sizeof *times->slots);
        times->count = 0;
    }
    int32_t capacity = GT__MAX(times->capacity, 64);
    while (capacity / 2 < times->count + more) capacity *= 2;
    if (capacity == times->capacity) return GT_OK;
    gt__seen *slots = gt__calloc((size_t)capacity, sizeof *slots);
    if (slots == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__times grown = *times;
    grown.slots = slots;
    grown.capacity = capacity;
    for (int32_t i = 0; i < times->capacity; ++i)
        if (times->slots[i].key != 0) *slot_of(&grown, times->slots[i].key) = times->slots[i];
    gt__free(times->slots);
    *times = grown;
    return GT_OK;
}

void gt__times_begin(gt__times *times) { times->round++; }

static gt__work work_of(gt__instruction *n);

static gt__seen *seen_of(gt__times *times, gt__instruction *n) {
    uint64_t key = key_of(n);
    gt__seen *seen = slot_of(times, key);
    if (seen->key != 0) return seen;
    *seen = (gt__seen){.key = key, .work = work_of(n), .seconds = -1};
    times->count++;
    return seen;
}

void gt__times_note(gt__times *times, gt__instruction *n, double seconds) {
    gt__seen *seen = seen_of(times, n);
    if (seen->seconds >= 0 && seen->round != times->round) return;
    seconds = GT__MAX(seconds, 1e-9); /* whatever the clock's resolution: nothing is done again for nothing */
    seen->seconds = seen->seconds < 0 ? seconds : GT__MIN(seen->seconds, seconds);
    seen->round = times->round;
    seen->count++;
}

void gt__times_note_workspace(gt__times *times, gt__instruction *n, size_t bytes) {
    gt__seen *seen = seen_of(times, n);
    seen->workspace = GT__MAX(seen->workspace, bytes);
    seen->workspace_known = true;
}

const gt__seen *gt__times_find(const gt__times *times, gt__instruction *n) {
    if (times->count == 0) return NULL;
    const gt__seen *seen = slot_of(times, key_of(n));
    return seen->key != 0 ? seen : NULL;
}

bool gt__times_link(const gt__times *times, const gt_context *ctx, gt__link *link) {
    bool cuda = ctx->backend->kind == GT_DEVICE_CUDA, measured = times->link[0] > 0 && times->link[1] > 0;
    double assumed = cuda ? 1 / 2.5e10 : 1 / 1e10;
    *link = (gt__link){measured ? times->link[0] : assumed, measured ? times->link[1] : assumed, cuda ? 1e-5 : 1e-6,
                       ctx->backend->capture_begin != NULL};
    return measured;
}

/* --- the model ------------------------------------------------------------------------------------------------------------------------------ */

static void add_access(void *user, const gt__access *access) {
    uint64_t *bytes = user;
    *bytes += access->bytes * (uint64_t)(access->reads + access->writes);
}

static gt__work work_of(gt__instruction *n) {
    gt__cost cost = {0};
    gt__work work = {.kind = kind_of(n)};
    switch (n->kind) {
    case GT__DO_CALL: {
        const gt__call *call = &n->call->call;
        gt__op_cost(call, &cost);
        for (int32_t k = 0; k < call->n_in; ++k) work.half |= call->in[k] && gt__dtype_is_half(call->in[k]->meta.dtype);
        break;
    }
    case GT__DO_CHAIN:
        gt__chain_cost(n->chain, &cost);
        break;
    case GT__DO_UPDATE:
        gt__update_cost(&n->update.rule, n->update.list, n->update.count, n->update.control != NULL, &cost);
        break;
    default:
        gt__instruction_visit(n, add_access, &cost.bytes);
        break;
    }
    work.bytes = (double)cost.bytes;
    work.flops = cost.matrix ? (double)cost.flops : 0;
    return work;
}

static double modelled(const gt__time_model *m, const gt__work *work) {
    double move = work->bytes / m->bytes, compute = work->flops / (work->half ? m->half_flops : m->flops);
    return GT__MAX(move, compute) + m->launch;
}

static void find_rates(const gt_context *ctx, gt__time_model *m) {
    /* Of an H200 and of a desktop's CPU, in round numbers: before anything is measured only what they are to each other decides. */
    static const double of_cuda[4] = {3.5e12, 4e13, 6e14, 2e-6}, of_cpu[4] = {2e10, 2e11, 1e11, 1e-6};
    const double *r = ctx->backend->kind == GT_DEVICE_CUDA ? of_cuda : of_cpu;
    m->bytes = r[0];
    m->flops = r[1];
    m->half_flops = r[2];
    m->launch = r[3];
    const gt__profiled *d = ctx->profiler ? gt__profiled_of_hooks(ctx->profiler) : NULL;
    if (d == NULL || !d->measured) return;
    if (d->ceilings.bytes_per_second > 0) m->bytes = d->ceilings.bytes_per_second;
    if (d->ceilings.f32_flops_per_second > 0) m->flops = d->ceilings.f32_flops_per_second;
    if (d->ceilings.f16_flops_per_second > 0) m->half_flops = d->ceilings.f16_flops_per_second;
}

void gt__time_model_make(const gt_context *ctx, const gt__times *times, gt__time_model *m) {
    double seen[GT__WORK_KINDS] = {0}, expected[GT__WORK_KINDS] = {0}, all_seen = 0, all_expected = 0;
    *m = (gt__time_model){.times = times};
    find_rates(ctx, m);
    for (int32_t i = 0; times && i < times->capacity; ++i) {
        const gt__seen *s = &times->slots[i];
        if (s->key == 0 || s->seconds < 0) continue;
        seen[s->work.kind] += s->count * s->seconds;
        expected[s->work.kind] += s->count * modelled(m, &s->work);
    }
    for (int32_t k = 0; k < GT__WORK_KINDS; ++k) all_seen += seen[k], all_expected += expected[k];
    double other = all_expected > 0 ? all_seen / all_expected : 1;
    for (int32_t k = 0; k < GT__WORK_KINDS; ++k) m->ratio[k] = expected[k] > 0 ? seen[k] / expected[k] : other;
}

double gt__time_modelled(const gt__time_model *m, gt__instruction *n) {
    const gt__work work = work_of(n);
    return m->ratio[work.kind] * modelled(m, &work);
}

double gt__time_of(const gt__time_model *m, gt__instruction *n, bool *measured) {
    const gt__seen *seen = gt__times_find(m->times, n);
    *measured = gt__is_timed(seen);
    return *measured ? seen->seconds : gt__time_modelled(m, n);
}

/* Max pooling with what surrounds it, in three rounds.
 *
 * relu's gradient before max pooling's. max_pool(relu(x)) has its maximum where relu's output has it, and nothing flows back anywhere else. So what flows back may pass relu at the
 * pooled size, which is a quarter or less, and the gradient of a bias before is summed there. relu's output need not be kept for it any more, the pooled one is.
 *
 * Both gradients in one call, where windows are those of the device's kernel.
 *
 * Around a flatten: pooling writes row-major what only a copy into row-major order and such calls read, which take gradient and result row-major too. */
#include "step/calls.h"
#include "step/passes.h"

/* The max pooling of `y` that left `index`. */
static int32_t find_pooling(gt__program *program, int32_t before, const gt_tensor *y, const gt_tensor *index) {
    for (int32_t i = before - 1; i >= 0; --i) {
        const gt__call *c = gt__call_at(program, i, GT__OP_MAX_POOL2D);
        if (c && c->in[0]->data == y->data && c->out[1] && c->out[1]->data == index->data && c->out[0]) return i;
    }
    return -1;
}

/* Whether instruction b is relu's gradient, of what instruction p alone makes and it alone reads. */
static gt__call *relu_gradient(gt__program *program, int32_t p, int32_t b, const gt_tensor *dx) {
    gt__call *relu = gt__call_at(program, b, GT__OP_BIAS_RELU_BACKWARD);
    if (relu == NULL) relu = gt__call_at(program, b, GT__OP_RELU_BACKWARD);
    if (relu == NULL || relu->in[0]->data != dx->data || !gt__meta_same_layout(&relu->in[0]->meta, &dx->meta)) return NULL;
    bool alone =
        gt__is_traced(dx->data) && gt__uses_of(program, 0, program->count, dx).count == 2 && gt__uses_of(program, p, b + 1, dx).count == 2;
    return alone && relu->out[0] && gt__meta_same_layout(&relu->out[0]->meta, &dx->meta) ? relu : NULL;
}

static bool try_swap(gt__program *program, int32_t p, int32_t b) {
    gt__call *pool = gt__call_at(program, p, GT__OP_MAX_POOL2D_BACKWARD);
    gt__call *relu = relu_gradient(program, p, b, pool->out[0]);
    if (relu == NULL) return false;
    int32_t f = find_pooling(program, p, relu->in[1], pool->in[1]);
    if (f < 0) return false;
    const gt_tensor *pooled = gt__call_at(program, f, GT__OP_MAX_POOL2D)->out[0], *dy = pool->in[0];
    if (!gt__meta_same_layout(&pooled->meta, &dy->meta) || !gt__meta_is_channels_last(&dy->meta) || pooled->meta.dtype != dy->meta.dtype)
        return false;
    if (gt__uses_of(program, f + 1, b, pooled).writes || gt__uses_of(program, p, b, dy).writes ||
        gt__uses_of(program, p, b, pool->in[1]).writes)
        return false;
    if (gt__uses_of(program, p, b, relu->out[0]).count > 0) return false;
    if (relu->n_out > 1 && relu->out[1] && gt__uses_of(program, p, b, relu->out[1]).count > 0) return false;
    /* relu now writes where pooling did, in less memory. */
    gt_tensor *between = pool->out[0];
    gt_tensor small = *dy;
    small.data = between->data;
    program->buffers[gt__program_buffer(program, between->data)].bytes = (size_t)small.meta.numel * gt_dtype_size(small.meta.dtype);
    gt_tensor full = *relu->out[0];
    *relu->in[0] = *dy;
    *relu->in[1] = *pooled;
    *relu->out[0] = small;
    *pool->in[0] = small;
    *pool->out[0] = full;
    gt__instruction swap = program->list[p];
    program->list[p] = program->list[b];
    program->list[b] = swap;
    return true;
}

static void swap_gradients(gt__program *program) {
    for (int32_t p = 0; p < program->count; ++p) {
        if (gt__call_at(program, p, GT__OP_MAX_POOL2D_BACKWARD) == NULL) continue;
        for (int32_t b = p + 1; b < program->count; ++b)
            if (try_swap(program, p, b)) break;
    }
}

/* --- one call ---------------------------------------------------------------------------------------------------------------------------- */

/* What the devices' kernels are for: windows of 2 x 2 that do not overlap, and channels in packs of 16 bytes. */
static bool is_small(const gt__call *pool) {
    const gt__meta *meta = &pool->in[0]->meta;
    if (meta->shape[1] * (int64_t)gt_dtype_size(meta->dtype) % 16 != 0) return false;
    for (int32_t a = 0; a < 2; ++a)
        if (pool->attr.pool.kernel[a] != 2 || pool->attr.pool.stride[a] != 2 || pool->attr.pool.padding[a] != 0) return false;
    return true;
}

static bool is_image(const gt_tensor *t, gt_dtype dtype) { return t->meta.dtype == dtype && gt__meta_is_channels_last(&t->meta); }

/* Whether instruction r masks what pooling's gradient p alone reads. */
static bool fits(gt__program *program, int32_t r, int32_t p) {
    gt__call *relu = gt__call_at(program, r, GT__OP_BIAS_RELU_BACKWARD), *pool = gt__call_at(program, p, GT__OP_MAX_POOL2D_BACKWARD);
    if (relu == NULL) relu = gt__call_at(program, r, GT__OP_RELU_BACKWARD);
    if (relu == NULL || relu->out[0] == NULL || relu->out[0]->data != pool->in[0]->data) return false;
    const gt_tensor *dz = pool->in[0], *dx = pool->out[0];
    if (!gt__meta_same_layout(&dz->meta, &relu->out[0]->meta) || dz->meta.dtype != relu->out[0]->meta.dtype) return false;
    for (int32_t k = 0; k < 2; ++k)
        if (relu->in[k]->meta.ndim != 4 || !is_image(relu->in[k], dz->meta.dtype)) return false;
    if (!gt__is_traced(dz->data) || gt__uses_of(program, 0, program->count, dz).count != 2) return false;
    return !gt__uses_of(program, r, p, pool->in[1]).writes && gt__uses_of(program, r, p, dx).count == 0;
}

static gt_status join(gt__program *program, int32_t r, int32_t p) {
    const gt__call *relu = &program->list[r].call->call, *pool = &program->list[p].call->call;
    const gt_tensor *in[] = {relu->in[0], pool->in[1], relu->in[1]}, *out[] = {pool->out[0], relu->n_out > 1 ? relu->out[1] : NULL};
    GT_TRY(gt__call_replace(&program->list[r], GT__OP_MAX_POOL2D_RELU_BACKWARD, pool, in, 3, out, 2));
    gt__program_drop(program, p);
    return GT_OK;
}

static gt_status join_gradients(gt__program *program) {
    for (int32_t p = 1; p < program->count; ++p) {
        const gt__call *pool = gt__call_at(program, p, GT__OP_MAX_POOL2D_BACKWARD);
        if (pool == NULL || !is_small(pool)) continue;
        for (int32_t r = p - 1; r >= 0; --r) {
            if (!fits(program, r, p)) continue;
            GT_TRY(join(program, r, p));
            p--; /* the next one stands here now */
            break;
        }
    }
    return GT_OK;
}

/* --- row-major around a flatten ------------------------------------------------------------------------------------------------------------ */

/* A copy of an image between channels-last and row-major order. */
static const gt__call *turn_at(gt__program *program, int32_t i, bool to_rows) {
    const gt__call *copy = gt__call_at(program, i, GT__OP_COPY);
    if (copy == NULL || copy->in[0]->meta.ndim != 4 || copy->in[0]->meta.dtype != copy->out[0]->meta.dtype) return NULL;
    const gt__meta *from = &copy->in[0]->meta, *to = &copy->out[0]->meta, *rows = to_rows ? to : from, *last = to_rows ? from : to;
    if (!gt__meta_same_shape(from, to) || gt__meta_same_layout(from, to)) return NULL;
    return gt__meta_is_row_major(rows) && gt__meta_is_channels_last(last) ? copy : NULL;
}

/* The copy that makes the gradient which instruction b alone reads; -1: it comes otherwise. */
static int32_t find_turned(gt__program *program, int32_t b) {
    const gt_tensor *dy = program->list[b].call->call.in[0];
    if (!gt__is_traced(dy->data) || gt__uses_of(program, 0, program->count, dy).count != 2) return -1;
    for (int32_t i = b - 1; i >= 0; --i) {
        const gt__call *copy = turn_at(program, i, false);
        if (copy == NULL || copy->out[0]->data != dy->data || !gt__meta_same_layout(&copy->out[0]->meta, &dy->meta)) continue;
        return gt__uses_of(program, i + 1, b + 1, copy->in[0]).writes ? -1 : i;
    }
    return -1;
}

typedef struct readers {
    int32_t copy, last; /* into row-major order; the last of all. -1: none */
    bool fit;
} readers;

/* Those of what pooling f makes. */
static readers find_readers(gt__program *program, int32_t f) {
    const gt_tensor *y = program->list[f].call->call.out[0];
    readers found = {-1, -1, false};
    for (int32_t i = 0; i < program->count; ++i) {
        int32_t times = gt__uses_of(program, i, i + 1, y).count;
        if (times == 0 || i == f) continue;
        const gt__call *copy = turn_at(program, i, true), *gradient = gt__call_at(program, i, GT__OP_MAX_POOL2D_RELU_BACKWARD);
        bool is_copy = found.copy < 0 && copy && copy->in[0]->data == y->data && gt__meta_same_layout(&copy->in[0]->meta, &y->meta);
        bool is_gradient = gradient && gradient->in[2]->data == y->data && find_turned(program, i) > f;
        if (i < f || times != 1 || (!is_copy && !is_gradient)) return found;
        if (is_copy) found.copy = i;
        found.last = i;
    }
    found.fit = found.copy >= 0;
    return found;
}

static bool try_rows(gt__program *program, int32_t f) {
    gt__call *pool = gt__call_at(program, f, GT__OP_MAX_POOL2D);
    if (pool == NULL || !is_small(pool) || pool->out[0] == NULL || !gt__is_traced(pool->out[0]->data)) return false;
    readers r = find_readers(program, f);
    if (!r.fit) return false;
    const gt_tensor y = *pool->out[0], rows = *program->list[r.copy].call->call.out[0];
    int32_t to = gt__program_buffer(program, rows.data), from = gt__program_buffer(program, y.data);
    if (to < 0 || program->buffers[to].input) return false;
    if (gt__uses_of(program, f, r.copy, &rows).count > 0 || gt__uses_of(program, r.copy + 1, r.last + 1, &rows).writes) return false;
    for (int32_t i = r.last; i > f; --i) {
        gt__call *gradient = gt__call_at(program, i, GT__OP_MAX_POOL2D_RELU_BACKWARD);
        if (gradient == NULL || gradient->in[2]->data != y.data) continue;
        int32_t turned = find_turned(program, i);
        *gradient->in[0] = *program->list[turned].call->call.in[0];
        *gradient->in[2] = rows;
        gt__program_drop(program, turned); /* of what comes before, all but the copy of the result stand where they were */
        if (turned < r.copy) r.copy--;
        i -= turned < i;
    }
    *pool->out[0] = rows;
    gt__program_drop(program, r.copy);
    program->buffers[to].op = program->buffers[from].op;
    program->buffers[to].module = program->buffers[from].module;
    return true;
}

gt_status gt__pass_pool(gt__program *program) {
    swap_gradients(program);
    GT_TRY(join_gradients(program));
    for (int32_t f = 0; f < program->count; ++f) (void)try_rows(program, f);
    return GT_OK;
}

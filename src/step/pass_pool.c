/* relu's gradient before max pooling's. max_pool(relu(x)) has its maximum where relu's output has it, and nothing flows back anywhere else. So what flows back may pass relu at the
 * pooled size, which is a quarter or less, and the gradient of a bias before is summed there. relu's output need not be kept for it any more, the pooled one is. */
#include "step/passes.h"

static gt__call *call_at(gt__program *program, int32_t i, gt__op_id op) {
    gt__instruction *n = &program->list[i];
    return n->kind == GT__DO_CALL && n->call->call.op == op ? &n->call->call : NULL;
}

typedef struct looking {
    uintptr_t begin, end;
    int32_t touches;
    bool writes;
} looking;

static void look(void *user, const gt__access *access) {
    looking *l = user;
    uintptr_t begin = (uintptr_t)access->pointer;
    if (begin >= l->end || begin + access->bytes <= l->begin) return;
    l->touches++;
    l->writes |= access->writes;
}

static looking touches(gt__program *program, int32_t from, int32_t to, const gt_tensor *t) {
    uintptr_t begin = (uintptr_t)t->data;
    looking l = {.begin = begin, .end = begin + (size_t)t->meta.numel * gt_dtype_size(t->meta.dtype)};
    for (int32_t i = from; i < to; ++i) gt__instruction_visit(&program->list[i], look, &l);
    return l;
}

/* The max pooling of `y` that left `index`. */
static int32_t find_pooling(gt__program *program, int32_t before, const gt_tensor *y, const gt_tensor *index) {
    for (int32_t i = before - 1; i >= 0; --i) {
        const gt__call *c = call_at(program, i, GT__OP_MAX_POOL2D);
        if (c && c->in[0]->data == y->data && c->out[1] && c->out[1]->data == index->data && c->out[0]) return i;
    }
    return -1;
}

/* Whether instruction b is relu's gradient, of what instruction p alone makes and it alone reads. */
static gt__call *relu_gradient(gt__program *program, int32_t p, int32_t b, const gt_tensor *dx) {
    gt__call *relu = call_at(program, b, GT__OP_BIAS_RELU_BACKWARD);
    if (relu == NULL) relu = call_at(program, b, GT__OP_RELU_BACKWARD);
    if (relu == NULL || relu->in[0]->data != dx->data || !gt__meta_same_layout(&relu->in[0]->meta, &dx->meta)) return NULL;
    bool alone =
        gt__is_traced(dx->data) && touches(program, 0, program->count, dx).touches == 2 && touches(program, p, b + 1, dx).touches == 2;
    return alone && relu->out[0] && gt__meta_same_layout(&relu->out[0]->meta, &dx->meta) ? relu : NULL;
}

static bool try_swap(gt__program *program, int32_t p, int32_t b) {
    gt__call *pool = call_at(program, p, GT__OP_MAX_POOL2D_BACKWARD);
    gt__call *relu = relu_gradient(program, p, b, pool->out[0]);
    if (relu == NULL) return false;
    int32_t f = find_pooling(program, p, relu->in[1], pool->in[1]);
    if (f < 0) return false;
    const gt_tensor *pooled = call_at(program, f, GT__OP_MAX_POOL2D)->out[0], *dy = pool->in[0];
    if (!gt__meta_same_layout(&pooled->meta, &dy->meta) || !gt__meta_is_channels_last(&dy->meta) || pooled->meta.dtype != dy->meta.dtype)
        return false;
    if (touches(program, f + 1, b, pooled).writes || touches(program, p, b, dy).writes || touches(program, p, b, pool->in[1]).writes)
        return false;
    if (touches(program, p, b, relu->out[0]).touches > 0) return false;
    if (relu->n_out > 1 && relu->out[1] && touches(program, p, b, relu->out[1]).touches > 0) return false;
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

gt_status gt__pass_pool(gt__program *program) {
    for (int32_t p = 0; p < program->count; ++p) {
        if (call_at(program, p, GT__OP_MAX_POOL2D_BACKWARD) == NULL) continue;
        for (int32_t b = p + 1; b < program->count; ++b)
            if (try_swap(program, p, b)) break;
    }
    return GT_OK;
}

/* Programs made by hand, and running one: for tests of passes. All buffers are f32 vectors unless said otherwise. */
#ifndef GT_TEST_STEP_HAND_MADE_H
#define GT_TEST_STEP_HAND_MADE_H

#include "harness/test.h"
#include "step/memory_plan.h"
#include "step/passes.h"

#include <stdlib.h>

/* A tensor as an operand: memory and meta. */
typedef struct operand {
    void *data;
    gt__meta meta;
} operand;

static inline operand operand_of(void *data, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    operand o = {.data = data};
    CHECK_OK(gt__meta_make(&o.meta, dtype, ndim, shape, "test"));
    return o;
}

/* Memory outside of the program. */
static inline operand outside(float *data, int64_t n) { return operand_of(data, GT_DTYPE_F32, 1, &n); }

static inline int32_t add_buffer(gt__program *p, size_t bytes) {
    uint64_t address = GT__TRACE_BEGIN;
    if (p->n_buffers == p->cap_buffers) {
        p->cap_buffers = 2 * p->cap_buffers + 16;
        p->buffers = gt__realloc(p->buffers, (size_t)p->cap_buffers * sizeof *p->buffers);
    }
    if (p->n_buffers > 0) {
        const gt__buffer *before = &p->buffers[p->n_buffers - 1];
        address = before->address + ((before->bytes + 1023) & ~(uint64_t)511);
    }
    p->buffers[p->n_buffers] = (gt__buffer){.address = address, .bytes = bytes, .op = "test", .ndim = -1, .first = -1, .last = -1};
    return p->n_buffers++;
}

/* A new buffer of the program. */
static inline operand buffer(gt__program *p, int64_t n) {
    int32_t b = add_buffer(p, (size_t)n * sizeof(float));
    return operand_of((void *)(uintptr_t)p->buffers[b].address, GT_DTYPE_F32, 1, &n);
}

/* Elements [first, first + n) of an operand. */
static inline operand part(const operand *of, int64_t first, int64_t n) {
    return operand_of((char *)of->data + first * (int64_t)gt_dtype_size(of->meta.dtype), of->meta.dtype, 1, &n);
}

static inline int32_t number(const gt__program *p, const operand *o) { return gt__program_buffer(p, o->data); }

/* Operands may be NULL. Returns the call, for its attributes. */
static inline gt__call *add_call(gt__program *p, gt_context *ctx, gt__op_id op, const operand *const *out, int32_t n_out,
                                 const operand *const *in, int32_t n_in) {
    size_t n = (size_t)(n_in + n_out);
    gt__instruction *i =
        gt__program_add(p, GT__DO_CALL, sizeof(gt__traced_call) + n * sizeof(gt_tensor) + (size_t)n_in * sizeof(gt_tensor *));
    gt__traced_call *t = i->call = i->memory;
    t->tensors = (gt_tensor *)(t + 1);
    t->in = (gt_tensor **)(t->tensors + n);
    t->call = (gt__call){.ctx = ctx, .in = t->in, .n_in = n_in, .n_out = n_out, .op = op};
    for (int32_t k = 0; k < n_in + n_out; ++k) {
        const operand *o = k < n_in ? in[k] : out[k - n_in];
        if (o == NULL) continue;
        t->tensors[k] = (gt_tensor){.meta = o->meta, .data = o->data, .ctx = ctx, .references = 1};
        if (k < n_in)
            t->in[k] = &t->tensors[k];
        else
            t->call.out[k - n_in] = &t->tensors[k];
    }
    return &t->call;
}

static inline void unary(gt__program *p, gt_context *ctx, gt__op_id op, const operand *y, const operand *x) {
    (void)add_call(p, ctx, op, &y, 1, &x, 1);
}

static inline void binary(gt__program *p, gt_context *ctx, gt__op_id op, const operand *y, const operand *a, const operand *b) {
    const operand *in[] = {a, b};
    (void)add_call(p, ctx, op, &y, 1, in, 2);
}

/* Of all elements, to one. */
static inline void sum_of(gt__program *p, gt_context *ctx, const operand *y, const operand *x) {
    gt__call *call = add_call(p, ctx, GT__OP_SUM, &y, 1, &x, 1);
    call->attr.reduce.mask = 1;
    call->attr.reduce.keep_dims = 1;
}

static inline void device_copy(gt__program *p, const operand *to, const operand *from) {
    gt__instruction *i = gt__program_add(p, GT__DO_COPY, 0);
    i->copy.kind = GT__COPY_DEVICE_TO_DEVICE;
    i->copy.destination = to->data;
    i->copy.source = from->data;
    i->copy.bytes = (size_t)to->meta.numel * gt_dtype_size(to->meta.dtype);
}

static inline int32_t count_op(const gt__program *p, gt__op_id op) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->count; ++i) n += p->list[i].kind == GT__DO_CALL && p->list[i].call->call.op == op;
    return n;
}

static inline const gt__call *call_at(const gt__program *p, int32_t i) {
    CHECK(i < p->count && p->list[i].kind == GT__DO_CALL);
    return &p->list[i].call->call;
}

/* Places, and the arena's bytes. */
static inline size_t arena_of(gt__program *p, size_t **offsets) {
    gt__life *lives = calloc((size_t)p->n_buffers + 1, sizeof *lives);
    size_t bytes, bound;
    *offsets = calloc((size_t)p->n_buffers + 1, sizeof **offsets);
    gt__program_lives(p);
    for (int32_t b = 0; b < p->n_buffers; ++b)
        if (p->buffers[b].first >= 0) lives[b] = (gt__life){p->buffers[b].bytes, p->buffers[b].first, p->buffers[b].last};
    CHECK_OK(gt__memory_plan(lives, p->n_buffers, *offsets, &bytes, &bound));
    free(lives);
    return bytes;
}

typedef struct hand_binding {
    const gt__program *program;
    const size_t *offsets;
    char *arena;
} hand_binding;

static inline void hand_bind(void *user, const gt__access *access) {
    const hand_binding *b = user;
    int32_t k = gt__program_buffer(b->program, access->pointer);
    if (k >= 0) gt__access_set(access, b->arena + b->offsets[k] + ((uintptr_t)access->pointer - b->program->buffers[k].address));
}

/* On the CPU, in an arena full of NaNs but for the inputs, which are filled from `input`. */
static inline void run_by_hand(gt_context *ctx, gt__program *p, const float *input) {
    size_t *offsets, bytes = arena_of(p, &offsets);
    char *arena = aligned_alloc(GT__ARENA_GRAIN, bytes + GT__ARENA_GRAIN);
    memset(arena, 0xff, bytes + GT__ARENA_GRAIN);
    for (int32_t b = 0; b < p->n_buffers; ++b)
        if (input && p->buffers[b].input && p->buffers[b].first >= 0) memcpy(arena + offsets[b], input, p->buffers[b].bytes);
    hand_binding binding = {p, offsets, arena};
    for (int32_t i = 0; i < p->count; ++i) {
        gt__instruction bound;
        CHECK_OK(gt__instruction_copy(&p->list[i], &bound));
        gt__instruction_visit(&bound, hand_bind, &binding);
        CHECK_OK(gt__instruction_run(&bound, ctx->device));
        gt__instruction_free(&bound);
    }
    free(arena);
    free(offsets);
}

#endif

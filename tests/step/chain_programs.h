/* Random programs of elementwise calls, for tests of chains: made by hand, all on memory of the program but for the inputs and results. */
#ifndef GT_TEST_STEP_CHAIN_PROGRAMS_H
#define GT_TEST_STEP_CHAIN_PROGRAMS_H

#include "core/chain.h"
#include "hand_made.h"

#include <math.h>

enum { PROGRAM_INPUTS = 4, PROGRAM_RESULTS = 40, PROGRAM_CALLS = 30 };

typedef struct random_program {
    gt__program program;
    gt_context *ctx;
    uint64_t state;
    int64_t rows, columns;
    gt_dtype dtype;     /* of most values */
    operand values[64]; /* there now, and their last name in the program */
    int32_t n_values;
    void *results[PROGRAM_RESULTS]; /* memory outside, as large as it must be; the caller's */
    size_t result_bytes[PROGRAM_RESULTS];
    int32_t n_results;
    void *inputs[PROGRAM_INPUTS]; /* whole, a row, a column, one element */
} random_program;

static inline uint32_t random_below(random_program *r, uint32_t n) {
    r->state = r->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(r->state >> 33) % n;
}

static inline operand operand_like(const operand *meta_of, void *data) {
    operand o = *meta_of;
    o.data = data;
    return o;
}

static inline operand new_value(random_program *r, gt_dtype dtype) {
    const int64_t shape[2] = {r->rows, r->columns};
    int32_t b = add_buffer(&r->program, (size_t)(r->rows * r->columns) * gt_dtype_size(dtype));
    return operand_of((void *)(uintptr_t)r->program.buffers[b].address, dtype, 2, shape);
}

static inline operand new_result(random_program *r, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    CHECK(r->n_results < PROGRAM_RESULTS);
    operand o = operand_of(NULL, dtype, ndim, shape);
    size_t bytes = (size_t)o.meta.numel * gt_dtype_size(dtype);
    o.data = r->results[r->n_results] = calloc(1, bytes + 64);
    r->result_bytes[r->n_results++] = bytes;
    return o;
}

/* One of those of this dtype; the first is always there. */
static inline operand *some_value(random_program *r, gt_dtype dtype) {
    for (int tries = 0; tries < 40; ++tries) {
        /* mostly a late one, so that chains grow long */
        int32_t back = (int32_t)random_below(r, random_below(r, 3) ? 4 : (uint32_t)r->n_values);
        operand *o = &r->values[r->n_values - 1 - (back < r->n_values ? back : 0)];
        if (o->meta.dtype == dtype) return o;
    }
    return &r->values[0];
}

static const gt__op_id random_binary[] = {
#define ID(id, name) GT__OP_##id,
    GT__CHAIN_BINARY_LIST(ID)};
static const gt__op_id random_unary[] = {GT__CHAIN_UNARY_LIST(ID)
#undef ID
};

static inline gt__call *value_call(random_program *r, gt__op_id op, const operand *y, const operand *a, const operand *b) {
    const operand *in[2] = {a, b};
    gt__call *call = add_call(&r->program, r->ctx, op, &y, 1, in, b ? 2 : 1);
    r->program.list[r->program.count - 1].phase = GT__PHASE_FORWARD;
    if (op == GT__OP_ADD_SCALAR || op == GT__OP_MUL_SCALAR || op == GT__OP_POW_SCALAR)
        call->attr.scalar.value = 0.5 + random_below(r, 4) / 4.0;
    return call;
}

/* A row, a column, or one element, repeated; of the program's dtype. */
static inline operand repeated(random_program *r) {
    uint32_t kind = random_below(r, 3);
    const int64_t row[1] = {r->columns}, column[2] = {r->rows, 1}, one[1] = {1};
    if (kind == 0) return operand_of(r->inputs[1], r->dtype, 1, row);
    if (kind == 1) return operand_of(r->inputs[2], r->dtype, 2, column);
    return operand_of(r->inputs[3], r->dtype, 1, one);
}

static inline void random_sum(random_program *r, const operand *x) {
    uint32_t kind = random_below(r, 3);
    int64_t shape[2] = {kind == 1 ? 1 : r->rows, kind == 2 ? 1 : r->columns};
    if (kind == 0) shape[0] = shape[1] = 1;
    operand y = new_result(r, x->meta.dtype, 2, shape);
    gt__call *call = value_call(r, random_below(r, 2) ? GT__OP_SUM : GT__OP_MEAN, &y, x, NULL);
    call->attr.reduce.mask = kind == 0 ? 3u : kind;
    call->attr.reduce.keep_dims = 1;
}

static inline void random_call(random_program *r) {
    static const gt_dtype floats[] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64};
    uint32_t kind = random_below(r, 20);
    operand a = *some_value(r, random_below(r, 4) ? r->dtype : floats[random_below(r, 4)]);
    gt_dtype dtype = a.meta.dtype;
    if (kind == 0) {
        random_sum(r, &a);
        return;
    }
    if (kind == 1) { /* seen outside */
        const int64_t shape[2] = {r->rows, r->columns};
        operand y = new_result(r, dtype, 2, shape);
        (void)value_call(r, GT__OP_COPY, &y, &a, NULL);
        return;
    }
    if (kind == 2 && r->n_values > 1) { /* in place: what was there before has no name any more */
        operand *place = &r->values[1 + random_below(r, (uint32_t)r->n_values - 1)];
        operand over = *place, b = *some_value(r, over.meta.dtype);
        if (b.meta.dtype == over.meta.dtype) (void)value_call(r, GT__OP_MUL, &over, &over, &b);
        return;
    }
    if (kind == 6) { /* no chain's business: it stays where it is */
        operand y = new_value(r, dtype);
        device_copy(&r->program, &y, &a);
        r->program.list[r->program.count - 1].phase = GT__PHASE_FORWARD;
        r->values[r->n_values++] = y;
        return;
    }
    if (kind == 7 && r->n_values > 1 && r->rows > 1) { /* into the upper half of another */
        operand *place = &r->values[1 + random_below(r, (uint32_t)r->n_values - 1)];
        operand b = *some_value(r, place->meta.dtype);
        if (b.meta.dtype != place->meta.dtype || b.data == place->data) return;
        operand half = part(place, 0, r->rows / 2 * r->columns), from = part(&b, 0, half.meta.numel);
        (void)value_call(r, GT__OP_NEG, &half, &from, NULL);
        return;
    }
    bool cast = kind == 3 || kind == 4;
    operand y = new_value(r, cast ? floats[random_below(r, 4)] : dtype);
    if (cast) {
        (void)value_call(r, GT__OP_CAST, &y, &a, NULL);
    } else if (kind == 5) {
        gt__call *call = value_call(r, GT__OP_DROPOUT, &y, &a, NULL);
        call->attr.random.a = 0.25;
        call->attr.random.seed = 7;
        call->attr.random.offset = random_below(r, 100);
    } else if (kind < 12) {
        (void)value_call(r, random_unary[random_below(r, sizeof random_unary / sizeof *random_unary)], &y, &a, NULL);
    } else {
        operand b = *some_value(r, dtype);
        if (dtype == r->dtype && random_below(r, 4) == 0) b = repeated(r);
        if (b.meta.dtype != dtype) b = a;
        (void)value_call(r, random_binary[random_below(r, sizeof random_binary / sizeof *random_binary)], &y, &a, &b);
    }
    r->values[r->n_values++] = y;
}

/* Numbers of all sizes; with NaN, infinities and zeros of both signs where `odd`. */
static inline void *random_numbers(random_program *r, gt_dtype dtype, int64_t n, bool odd) {
    static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-40f, 65504.0f};
    float *wide = malloc((size_t)n * sizeof *wide);
    void *numbers = aligned_alloc(64, ((size_t)n * 8 + 127) / 64 * 64);
    for (int64_t i = 0; i < n; ++i)
        wide[i] = odd && random_below(r, 9) == 0 ? special[random_below(r, 7)] : ((float)random_below(r, 20001) - 10000.0f) / 4000.0f;
    const int64_t shape[1] = {n};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_from_data(r->ctx, GT_DTYPE_F32, 1, shape, wide, (size_t)n * sizeof *wide));
    gt_tensor *y = CHECK_TENSOR(gt_cast(x, dtype));
    CHECK_OK(gt_tensor_read(y, numbers, gt_tensor_bytes(y)));
    free(wide);
    return numbers;
}

/* The same program every time for the same numbers. */
static inline random_program random_program_make(gt_context *ctx, uint64_t seed, int64_t rows, int64_t columns, gt_dtype dtype, bool odd) {
    random_program r = {.ctx = ctx, .state = seed * 7919 + 1, .rows = rows, .columns = columns, .dtype = dtype};
    const int64_t sizes[PROGRAM_INPUTS] = {rows * columns, columns, rows, 1}, shape[2] = {rows, columns};
    CHECK_OK(gt_scope_begin(ctx));
    for (int k = 0; k < PROGRAM_INPUTS; ++k) r.inputs[k] = random_numbers(&r, dtype, sizes[k], odd);
    CHECK_OK(gt_scope_end(ctx));
    r.values[r.n_values++] = operand_of(r.inputs[0], dtype, 2, shape);
    int32_t calls = 2 + (int32_t)random_below(&r, PROGRAM_CALLS - 2);
    for (int32_t k = 0; k < calls; ++k) random_call(&r);
    operand last = r.values[r.n_values - 1], y = new_result(&r, last.meta.dtype, 2, shape);
    (void)value_call(&r, GT__OP_COPY, &y, &last, NULL);
    return r;
}

static inline void random_program_free(random_program *r) {
    gt__program_free(&r->program);
    for (int32_t k = 0; k < r->n_results; ++k) free(r->results[k]);
    for (int k = 0; k < PROGRAM_INPUTS; ++k) free(r->inputs[k]);
}

/* The context's device, but one that finds every chain worth its while. */
static struct {
    gt__device device, *real;
    gt__backend table;
} eager_to_chain;

static inline bool can_chain_anyhow(gt__device *device, const gt__chain *chain, bool prepare) {
    (void)device;
    (void)prepare;
    return eager_to_chain.real->backend->can_chain(eager_to_chain.real, chain, false);
}

static inline gt__device *device_that_chains(gt_context *ctx) {
    eager_to_chain.real = ctx->device;
    eager_to_chain.table = *ctx->device->backend;
    eager_to_chain.table.can_chain = can_chain_anyhow;
    eager_to_chain.device = *ctx->device;
    eager_to_chain.device.backend = &eager_to_chain.table;
    return &eager_to_chain.device;
}

static inline int32_t count_chains(const gt__program *p) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->count; ++i) n += p->list[i].kind == GT__DO_CHAIN;
    return n;
}

#endif

/* Chains for tests of their CUDA source: every op in every dtype, every shape of kernel, every way to read an input. Made of static storage: nothing is freed. */
#ifndef GT_TEST_CUDA_CHAIN_SAMPLES_H
#define GT_TEST_CUDA_CHAIN_SAMPLES_H

#include "core/chain.h"

#include <string.h>

/* 0 .. of these. Arrays are the caller's: in[k] and out[k] of `most` bytes each, which may be NULL + something for tests of sources alone. */
typedef struct chain_memory {
    void *in[GT__CHAIN_INPUTS], *out[GT__CHAIN_OUTPUTS], *sum;
    const uint64_t *cells;
} chain_memory;

static const gt_dtype sample_dtypes[4] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64};

static inline int32_t sample_input(gt__chain *c, const chain_memory *m, gt_dtype dtype, int64_t inner, int64_t size) {
    const gt__chain_input in = {m->in[c->n_inputs], inner, size, dtype, 0};
    c->inputs[c->n_inputs] = in;
    return ~c->n_inputs++;
}

static inline int32_t sample_node(gt__chain *c, gt__op_id op, gt_dtype dtype, int32_t a, int32_t b) {
    gt__chain_node *n = &c->nodes[c->n_nodes];
    n->op = op;
    n->dtype = dtype;
    n->a = a;
    n->b = b;
    n->value = op == GT__OP_DROPOUT ? 0.25 : 1.75;
    n->seed = 9;
    n->offset = 3;
    return c->n_nodes++;
}

static inline void sample_output(gt__chain *c, const chain_memory *m, int32_t node) {
    c->outputs[c->n_outputs].data = m->out[c->n_outputs];
    c->outputs[c->n_outputs++].node = node;
}

static inline void sample_sum(gt__chain *c, const chain_memory *m, int32_t node, int64_t kept, int leading, int mean, gt_dtype dtype) {
    c->sum.data = m->sum;
    c->sum.kept = kept;
    c->sum.reduced = c->n / kept;
    c->sum.dtype = dtype;
    c->sum.node = node;
    c->sum.leading = leading;
    c->sum.mean = mean;
}

static const gt__op_id sample_binary[] = {
#define SAMPLE_ID(id, name) GT__OP_##id,
    GT__CHAIN_BINARY_LIST(SAMPLE_ID)};
static const gt__op_id sample_unary[] = {GT__CHAIN_UNARY_LIST(SAMPLE_ID)
#undef SAMPLE_ID
};
enum { SAMPLE_BINARY = sizeof sample_binary / sizeof *sample_binary, SAMPLE_UNARY = sizeof sample_unary / sizeof *sample_unary };

/* All binary ops of one dtype, one output each as far as there is room: `part` 0, 1 (of the unary ones: 2, 3). */
static inline void sample_all_ops(gt__chain *c, const chain_memory *m, gt_dtype dtype, int part, int64_t n) {
    memset(c, 0, sizeof *c);
    c->n = n;
    int32_t x = sample_input(c, m, dtype, 1, n), y = part < 2 ? sample_input(c, m, dtype, 1, n) : 0;
    int count = part < 2 ? SAMPLE_BINARY : SAMPLE_UNARY, first = part % 2 * 8;
    for (int k = first; k < first + 8 && k < count; k++)
        sample_output(c, m, sample_node(c, part < 2 ? sample_binary[k] : sample_unary[k], dtype, x, y));
}

/* (x * row + column) * one, dropout, casts to every dtype and back; two outputs. */
static inline void sample_mixed(gt__chain *c, const chain_memory *m, gt_dtype dtype, int64_t rows, int64_t columns) {
    memset(c, 0, sizeof *c);
    c->n = rows * columns;
    int32_t x = sample_input(c, m, dtype, 1, c->n), row = sample_input(c, m, dtype, 1, columns),
            column = sample_input(c, m, dtype, columns, rows), one = sample_input(c, m, dtype, 1, 1);
    int32_t v = sample_node(c, GT__OP_ADD, dtype, sample_node(c, GT__OP_MUL, dtype, x, row), column);
    v = sample_node(c, GT__OP_MUL, dtype, v, one);
    v = sample_node(c, GT__OP_DROPOUT, dtype, v, 0);
    c->nodes[v].cells = m->cells;
    sample_output(c, m, v);
    for (int k = 0; k < 4; k++) v = sample_node(c, GT__OP_CAST, sample_dtypes[k], v, 0);
    v = sample_node(c, GT__OP_CAST, dtype, v, 0);
    v = sample_node(c, GT__OP_RELU, dtype, v, 0);
    sample_output(c, m, v);
}

/* (a - b)^2 and its sum: kept 1, over rows or columns; the squares are stored where `store`. */
static inline void sample_loss(gt__chain *c, const chain_memory *m, gt_dtype dtype, int64_t n, int64_t kept, int leading, int mean,
                               int store) {
    memset(c, 0, sizeof *c);
    c->n = n;
    int32_t a = sample_input(c, m, dtype, 1, n), b = sample_input(c, m, dtype, 1, n);
    int32_t d = sample_node(c, GT__OP_SUB, dtype, a, b), s = sample_node(c, GT__OP_MUL, dtype, d, d);
    if (store) sample_output(c, m, s);
    sample_sum(c, m, s, kept, leading, mean, dtype);
}

/* The samples that are run on the host: number k, or false beyond the last. Inputs and outputs take up to 4096 elements. */
static inline bool sample_chain(int k, gt__chain *c, const chain_memory *m) {
    enum { EACH = 12 };
    const gt_dtype dtype = sample_dtypes[k / EACH % 4];
    if (k >= 4 * EACH) return false;
    switch (k % EACH) {
    case 0:
    case 1:
    case 2:
    case 3:
        sample_all_ops(c, m, dtype, k % EACH, 1003);
        break;
    case 4:
        sample_mixed(c, m, dtype, 7, 19); /* element by element */
        sample_sum(c, m, c->n_nodes - 1, 7, 0, 0, dtype);
        break;
    case 5:
        sample_mixed(c, m, dtype, 16, 64);
        break;
    case 6:
        sample_loss(c, m, dtype, 4001, 1, 0, 1, 1);
        break;
    case 7:
        sample_loss(c, m, dtype, 3200, 20, 0, 0, 1); /* rows of packs */
        break;
    case 8:
        sample_loss(c, m, dtype, 3000, 200, 0, 1, 0); /* of single elements */
        break;
    case 9:
        sample_loss(c, m, dtype, 4096, 4, 0, 1, 0); /* of several parts */
        break;
    case 10:
        sample_loss(c, m, dtype, 4096, 16, 1, 1, 1);
        break;
    default:
        sample_loss(c, m, dtype, 3003, 7, 1, 0, 0);
        break;
    }
    return true;
}

#endif

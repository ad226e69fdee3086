/* A chain: elementwise ops of which one reads what another has made, done element by element in one pass over memory; and perhaps the sum of one of the results. Compiled steps
 * make chains of calls (step/pass_chains.c), a device runs them (gt__backend.run_chain).
 *
 * Elements are numbered by their place in memory: whatever has n elements lies densely. A node computes what its op's kernel would have, and its result is rounded to its dtype
 * as if it had been in memory. An output may lie over an input of one element each (inner 1, size n) and the same dtype: a device reads an element's inputs
 * before it writes its outputs. Else nothing that is written overlaps anything. */
#ifndef GT_CORE_CHAIN_H
#define GT_CORE_CHAIN_H

#include "core/op.h"

GT_EXTERN_C_BEGIN

/* The ops that a chain may hold.   X(ID, name) */
#define GT__CHAIN_BINARY_LIST(X)                                                                                                           \
    X(ADD, add)                                                                                                                            \
    X(SUB, sub)                                                                                                                            \
    X(MUL, mul)                                                                                                                            \
    X(DIV, div)                                                                                                                            \
    X(MAXIMUM, maximum)                                                                                                                    \
    X(MINIMUM, minimum)                                                                                                                    \
    X(EQUAL, equal)                                                                                                                        \
    X(GREATER, greater)                                                                                                                    \
    X(TANH_BACKWARD, tanh_backward)                                                                                                        \
    X(SIGMOID_BACKWARD, sigmoid_backward)                                                                                                  \
    X(RELU_BACKWARD, relu_backward)                                                                                                        \
    X(GELU_BACKWARD, gelu_backward)                                                                                                        \
    X(GELU_TANH_BACKWARD, gelu_tanh_backward)                                                                                              \
    X(SILU_BACKWARD, silu_backward)
#define GT__CHAIN_UNARY_LIST(X)                                                                                                            \
    X(NEG, neg)                                                                                                                            \
    X(ABS, abs)                                                                                                                            \
    X(SIGN, sign)                                                                                                                          \
    X(SQUARE, square)                                                                                                                      \
    X(SQRT, sqrt)                                                                                                                          \
    X(EXP, exp)                                                                                                                            \
    X(LOG, log)                                                                                                                            \
    X(TANH, tanh)                                                                                                                          \
    X(SIGMOID, sigmoid)                                                                                                                    \
    X(RELU, relu)                                                                                                                          \
    X(GELU, gelu)                                                                                                                          \
    X(GELU_TANH, gelu_tanh)                                                                                                                \
    X(SILU, silu)                                                                                                                          \
    X(ADD_SCALAR, add_scalar)                                                                                                              \
    X(MUL_SCALAR, mul_scalar)                                                                                                              \
    X(POW_SCALAR, pow_scalar)
/* Unary too, with kernels of their own kind. A copy moves nothing but rounds to another dtype, as a cast. */
#define GT__CHAIN_OTHER_LIST(X)                                                                                                            \
    X(CAST, cast)                                                                                                                          \
    X(COPY, copy)                                                                                                                          \
    X(DROPOUT, dropout)

#define GT__CHAIN_INPUTS  10
#define GT__CHAIN_NODES   24
#define GT__CHAIN_OUTPUTS 8

/* Element i of the chain reads element (i / inner) % size. */
typedef struct gt__chain_input {
    const void *data;
    int64_t inner, size;
    gt_dtype dtype; /* floating */
    int32_t padding;
} gt__chain_input;

/* k >= 0: node k, which comes before; ~k: input k. */
typedef int32_t gt__chain_operand;

typedef struct gt__chain_node {
    gt__op_id op;
    gt_dtype dtype;         /* of the result, floating; operands have it too but those of a cast or copy */
    gt__chain_operand a, b; /* b of binary ops alone */
    double value;           /* of the *_scalar ops; dropout: p */
    uint64_t seed, offset;  /* dropout's, as in gt__attrs.random: element i draws number i */
    const uint64_t *cells;
} gt__chain_node;

typedef struct gt__chain_output {
    void *data; /* NULL: not wanted */
    int32_t node, padding;
} gt__chain_output;

/* Of n = kept * reduced results. */
typedef struct gt__chain_sum {
    void *data; /* `kept` elements; NULL: there is no sum */
    int64_t kept, reduced;
    gt_dtype dtype;  /* of data */
    int32_t node;    /* whose results are summed */
    int32_t leading; /* not 0: element i goes to sum i % kept, else to i / reduced */
    int32_t mean;
} gt__chain_sum;

typedef struct gt__chain {
    int64_t n; /* > 0 */
    int32_t n_inputs, n_nodes, n_outputs, padding;
    const char *module, *name; /* the context's strings, or NULL; name: gt__chain_text */
    gt__chain_input inputs[GT__CHAIN_INPUTS];
    gt__chain_node nodes[GT__CHAIN_NODES];
    gt__chain_output outputs[GT__CHAIN_OUTPUTS];
    gt__chain_sum sum;
} gt__chain;

/* Operands of the op in a chain: 1 or 2; 0: it cannot be in one. */
int32_t gt__chain_operands(gt__op_id op);
static inline bool gt__chain_rounds_only(gt__op_id op) { return op == GT__OP_CAST || op == GT__OP_COPY; }
static inline gt_dtype gt__chain_dtype(const gt__chain *chain, gt__chain_operand o) {
    return o < 0 ? chain->inputs[~o].dtype : chain->nodes[o].dtype;
}
/* Reads one element of its own for each of the chain's. */
static inline bool gt__chain_input_is_whole(const gt__chain *chain, int32_t k) {
    return chain->inputs[k].inner == 1 && chain->inputs[k].size == chain->n;
}
static inline size_t gt__chain_input_bytes(const gt__chain_input *input) { return (size_t)input->size * gt_dtype_size(input->dtype); }

/* "chain(sub, square; mean)", cut to `size`. Long ones name their first ops and how many more there are. */
#define GT__CHAIN_TEXT 160
const char *gt__chain_text(const gt__chain *chain, char *buffer, size_t size);

GT_EXTERN_C_END
#endif

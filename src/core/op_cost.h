/* What backend calls cost: the bytes that must move between the device's memory and its processors, and the floating-point operations, by shapes alone. The
 * profiler and the planner of compiled steps stand on it.
 *
 * bytes: every element that is read or written counts once, however often a kernel comes back to it: the least traffic that the op can have. Elements that a
 *   tensor repeats by strides of 0 are read once; an output that is added to is read too; an embedding reads the rows that it looks up.
 * flops: a multiply-add is two, and every other arithmetic operation, comparison and function such as exp is one. Of matrix products and convolutions
 *   the terms that the definition has, whatever algorithm computes them, padding included; conversions, copies and random bits count nothing. */
#ifndef GT_CORE_OP_COST_H
#define GT_CORE_OP_COST_H

#include "backend/backend.h"
#include "core/chain.h"

typedef struct gt__cost {
    uint64_t bytes;
    uint64_t flops;
    bool matrix; /* the flops are those of a matrix product or convolution, for which devices have units of their own */
} gt__cost;

/* Of a call whose out[] are there, or (before it has run) whose meta[] are filled. Views cost nothing. A custom op's flops are not known: 0. */
void gt__op_cost(const gt__call *call, gt__cost *cost);
/* Whether src/core/op_cost.c has a line for the op. */
bool gt__op_has_cost(gt__op_id op);

/* Of the backend's other functions. */
void gt__chain_cost(const gt__chain *chain, gt__cost *cost);
void gt__update_cost(const gt__update_rule *rule, const gt__update *list, int32_t count, bool control, gt__cost *cost);
/* `each`: flops an element; `writes`: gradients are changed, not only read. */
void gt__grads_cost(const gt__grad_list_item *list, int32_t count, uint64_t each, bool writes, gt__cost *cost);
void gt__copies_cost(const gt__copy_item *list, int32_t count, gt__cost *cost);

#endif

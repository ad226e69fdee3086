/* Calls of a program, for passes that join them. */
#ifndef GT_STEP_CALLS_H
#define GT_STEP_CALLS_H

#include "step/program.h"

/* Instruction i, if it is a call of that op; else NULL. */
gt__call *gt__call_at(gt__program *program, int32_t i, gt__op_id op);
/* Its input k, or NULL. */
static inline const gt_tensor *gt__call_input(const gt__call *call, int32_t k) { return k < call->n_in ? call->in[k] : NULL; }

typedef struct gt__uses {
    int32_t count; /* accesses */
    bool reads, writes;
} gt__uses;
/* How instructions [from, to) use the tensor's memory, or any part of it. NULL: not at all. */
gt__uses gt__uses_of(gt__program *program, int32_t from, int32_t to, const gt_tensor *t);

/* The instruction, a call, becomes another, with the attributes and the context of `like`. Tensors are copied, and may be NULL; they may be its own. */
gt_status gt__call_replace(gt__instruction *instruction, gt__op_id op, const gt__call *like, const gt_tensor *const *in, int32_t n_in,
                           const gt_tensor *const *out, int32_t n_out);
/* Without instruction i. */
void gt__program_drop(gt__program *program, int32_t i);

#endif

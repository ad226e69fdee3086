/* Which instructions a graph may run beside the others: a small model's kernels leave most of a GPU idle. */
#ifndef GT_STEP_BRANCHES_H
#define GT_STEP_BRANCHES_H

#include "step/program.h"

/* aside[i] = 1 for instructions of backward whose results nobody wants before the gradients' norm (weight gradients): they may run on a second stream. *join: the
 * instruction before which the two must have come together again; nothing is aside where there is none. */
gt_status gt__find_branches(gt__program *program, uint8_t *aside, int32_t *join);
/* An order in which these come right after what they wait for, so that they have the most to run beside: order[k] is the number of the instruction that comes k-th. They
 * hold memory for longer then. */
gt_status gt__branch_order(gt__program *program, int32_t *order);

#endif

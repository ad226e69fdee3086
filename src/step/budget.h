/* The memory budget: which plan of those that fit takes the least time. */
#ifndef GT_STEP_BUDGET_H
#define GT_STEP_BUDGET_H

#include "step/recompute.h"
#include "step/step.h"

/* --- budget_plans.c: what may be given up for less memory, found without knowing how much there will be. */

/* One choice of what is kept. */
typedef struct gt__kept_plan {
    bool *keep;     /* of the program's buffers */
    size_t bound;   /* the most bytes at once, before the passes that come after */
    double seconds; /* what is done again takes */
} gt__kept_plan;

typedef struct gt__budget_plans {
    gt__recompute r;
    gt__schedule s;        /* of whichever plan was looked at last */
    const double *seconds; /* of the instructions, when they are done again; borrowed */
    gt__kept_plan *list;   /* the least seconds first; list[0] keeps all */
    int32_t count, capacity;
} gt__budget_plans;

/* Plans for one program, from the one that keeps all to the smallest that was found. The same for every budget: so a larger one never takes more time. It is searched by `seconds`, and
 * by `modelled` too where that is not NULL: so what was found before anything was measured is found afterwards. */
gt_status gt__budget_plans_make(gt__program *program, const double *seconds, const double *modelled, gt__budget_plans *plans);
void gt__budget_plans_free(gt__budget_plans *plans);
/* --- budget.c */

/* Bytes outside of the arena that the program uses: weights, half copies, optimizer state, results. */
gt_status gt__budget_fixed(gt__program *program, uint64_t *bytes);
/* gt__plan_finish for a step with a budget: the program is rewritten so that it fits, with the times and the scratch memory that the step's runs have shown. OUT_OF_MEMORY
 * with the least that would do. */
gt_status gt__plan_budget(gt_step *step, gt__plan *plan);
/* How many micro-batches take the least time within the budget. Where none does: `otherwise`, or if that is 0 those that take the least memory. */
gt_status gt__budget_micro_batches(gt_step *step, const gt__meta *inputs, int32_t n_inputs, int32_t otherwise, int32_t *micro_batches);

#endif

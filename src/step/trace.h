/* Tracing: while a trace is open the context's device is one that writes every backend call into a program instead of doing it, and the context's new memory
 * is addresses alone. Everything above the backend (dispatch, autograd, segments, windows, optimizers) runs as always and knows nothing of it. */
#ifndef GT_STEP_TRACE_H
#define GT_STEP_TRACE_H

#include "step/program.h"

typedef struct gt__trace gt__trace;

/* Opens a trace into `program`, which must outlive it. Draws refer to `random_cells` (a seed and an offset, device memory) and count from 0. BAD_STATE inside another
 * trace, a backward or a segment. */
gt_status gt__trace_begin(gt_context *ctx, gt__program *program, uint64_t *random_cells, gt__trace **trace);
/* Puts the context's own device back. Handles over traced memory are emptied; *left: how many there were but for leaves' gradients, which are the caller's to drop before.
 * *drawn: Philox blocks taken. */
void gt__trace_end(gt__trace *trace, uint64_t *drawn, int32_t *left);

/* Memory that the step's caller fills before each run, as a tensor (counted, in no scope). */
gt_tensor *gt__trace_input(gt__trace *trace, const gt__meta *meta);
/* A tensor over real memory, made while the trace is open (counted, in no scope). */
gt_tensor *gt__trace_real(gt__trace *trace, const gt__meta *meta, gt_memory_category category, const char *op);

/* Storages outside of the program that its calls use: counted. `written`: by some call. */
typedef struct gt__outside {
    gt__storage *storage;
    const void *data; /* where its memory was */
    bool written;
} gt__outside;
/* Hands over the list. */
gt__outside *gt__trace_outside(gt__trace *trace, int32_t *count);
void gt__outside_free(gt__outside *list, int32_t count);

#endif

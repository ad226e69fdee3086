/* Tracing: while a trace is open the context's device is one that writes every backend call into a program instead of doing it, and the context's new memory
 * is addresses alone. Everything above the backend (dispatch, autograd, segments, windows, optimizers) runs as always and knows nothing of it. */
#ifndef GT_STEP_TRACE_H
#define GT_STEP_TRACE_H

#include "step/program.h"

typedef struct gt__trace gt__trace;

/* BAD_STATE where a step can neither be traced nor run: inside another trace, a backward, a segment or an export. */
gt_status gt__trace_allowed(const gt_context *ctx, const char *who);
/* Opens a trace into `program`, which must outlive it. Draws refer to `random_cells` (a seed and an offset, device memory) and count from 0. Regions of the caller's without
 * gradients or of half precision are as if closed until the trace ends. */
gt_status gt__trace_begin(gt_context *ctx, gt__program *program, uint64_t *random_cells, gt__trace **trace);
/* Puts the context's own device back. Handles over traced memory are emptied; *left: how many there were but for leaves' gradients, which are the caller's to drop before.
 * *drawn: Philox blocks taken. */
void gt__trace_end(gt__trace *trace, uint64_t *drawn, int32_t *left);

/* Memory that the step's caller fills before each run, as a tensor (counted, in no scope). */
gt_tensor *gt__trace_input(gt__trace *trace, const gt__meta *meta);
/* A tensor over real memory, made while the trace is open (counted, in no scope). */
gt_tensor *gt__trace_real(gt__trace *trace, const gt__meta *meta, gt_memory_category category, const char *op);

/* Has an address and no memory: what a prediction only needs to know of. Counted, in no scope. */
gt_tensor *gt__trace_phantom(gt_context *ctx, const gt__meta *meta);
static inline bool gt__is_phantom(const gt_tensor *tensor) {
    return (uintptr_t)tensor->data >= GT__TRACE_END && (uintptr_t)tensor->data < 2 * GT__TRACE_END;
}

/* Memory outside of the program that its calls use. A handle, so that it is emptied with its context. `written`: by some call. */
typedef struct gt__outside {
    gt_tensor *handle; /* our own, counted */
    const void *data;  /* where its memory was */
    bool written;
} gt__outside;
/* Hands over the list. */
gt__outside *gt__trace_outside(gt__trace *trace, int32_t *count);
void gt__outside_free(gt__outside *list, int32_t count);

#endif

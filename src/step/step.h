/* The inside of a compiled step. */
#ifndef GT_STEP_STEP_H
#define GT_STEP_STEP_H

#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"
#include "step/trace.h"
#include <gtrain/step.h>

/* What a graph's constants would freeze: read by the device in every run, written by the host when it has changed. */
typedef struct gt__step_cells {
    uint64_t random[2]; /* seed, offset */
    double rates[];     /* of the optimizers */
} gt__step_cells;

/* A program for one set of input shapes. */
typedef struct gt__plan {
    gt__meta inputs[GT_STEP_MAX_INPUTS];
    int32_t n_inputs;
    bool training;                             /* the module's mode when it was traced */
    int32_t input_buffers[GT_STEP_MAX_INPUTS]; /* of the program; -1: an empty input */
    gt__program program;
    size_t *offsets; /* of the program's buffers in the arena, then of the instructions' scratch memory */
    size_t arena_bytes, bound;
    gt__instruction *bound_list; /* the program with real addresses; NULL: not yet */
    const void *bound_to;        /* the arena's place that they are for */
    gt_tensor *loss, *outputs[GT_STEP_MAX_OUTPUTS];
    gt__outside *outside;
    int32_t n_outside;
    uint8_t *updated;  /* of the optimizers' parameters, one after the other: whether a run updates it */
    int64_t *counters; /* what a run adds to the module's */
    int32_t n_counters;
    int32_t remember; /* the instruction that keeps the buffers for going back; -1: none */
    uint64_t drawn;   /* Philox blocks a run takes */
    int64_t runs, used;
    gt__graph *graph;
} gt__plan;

#define GT__PLANS 16

struct gt_step {
    gt_step_options options; /* whose pointers to arrays are not used after creation */
    gt_context *ctx;
    gt_optimizer **optimizers;
    gt_window *window; /* NULL without optimizers */
    bool own_window;
    gt_tensor *cells; /* u8: gt__step_cells */
    gt__step_cells *host_cells;
    gt_tensor *arena; /* u8: of all plans; NULL: not yet */
    gt__plan *plans[GT__PLANS];
    int32_t n_plans;
    int64_t runs;
    gt__plan *last;
};

/* plan.c: traces the step for inputs of these metas, and places its memory. */
gt_status gt__plan_create(gt_step *step, const gt__meta *inputs, int32_t n_inputs, gt__plan **plan);
void gt__plan_destroy(gt_step *step, gt__plan *plan);
/* Places buffers and scratch memory again, after scratch memory was measured. */
gt_status gt__plan_place(gt__plan *plan);

/* execute.c: one run; the inputs fit the plan. */
gt_status gt__plan_run(gt_step *step, gt__plan *plan, gt_tensor *const *inputs);

/* describe.c: the plan's program and memory, added to `text`. */
gt_status gt__plan_text(const gt__plan *plan, gt__text *text);

static inline gt__step_cells *gt__step_cells_of(const gt_step *step) { return (gt__step_cells *)step->cells->data; }

#endif

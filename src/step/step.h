/* The inside of a compiled step. */
#ifndef GT_STEP_STEP_H
#define GT_STEP_STEP_H

#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"
#include "step/times.h"
#include "step/trace.h"
#include "step/window.h"
#include <gtrain/step.h>

/* What a graph's constants would freeze: read by the device in every run, written by the host when it has changed. */
typedef struct gt__step_cells {
    uint64_t random[2]; /* seed, offset */
    float one;          /* always 1 */
    int32_t padding;
    double rates[]; /* of the optimizers */
} gt__step_cells;

/* A tensor of the caller's (a weight, a buffer, a constant) whose memory, or half copy, a program uses. */
typedef struct gt__watched {
    gt_tensor *handle; /* counted */
    const void *data;  /* where its memory was */
    gt_tensor *half;   /* counted: the half copy that the program uses; NULL: none */
} gt__watched;

/* Pinned memory for a plan's transfers. */
typedef struct gt__host_side {
    void *memory; /* NULL: none, or none yet */
    size_t bytes;
    gt__event **events; /* one a transfer, and one more */
    int32_t n_events;
    const gt__backend *backend; /* the device's own, which frees it when the context is gone */
} gt__host_side;

/* A program for one set of input shapes, and one place in a window. */
typedef struct gt__plan {
    gt__meta inputs[GT_STEP_MAX_INPUTS];
    int32_t n_inputs;
    int32_t micro_batches;                     /* that the inputs are cut into */
    int32_t of;                                /* and those of the whole window */
    bool begins, ends;                         /* the window: a program that does both is a whole one */
    bool training;                             /* the module's mode when it was traced */
    int32_t input_buffers[GT_STEP_MAX_INPUTS]; /* of the program; -1: an empty input */
    gt__program program;
    size_t *offsets; /* of the program's buffers in the arena, then of the instructions' scratch memory */
    uint8_t *aside;  /* of the program's instructions: those that a graph runs on a branch of its own; NULL: none */
    int32_t join;    /* where the branch ends */
    size_t arena_bytes, bound;
    gt__instruction *bound_list; /* the program with real addresses; NULL: not yet */
    const void *bound_to;        /* the arena's place that they are for */
    gt_tensor *loss, *outputs[GT_STEP_MAX_OUTPUTS];
    gt__outside *outside;
    int32_t n_outside;
    gt__watched *watched;
    int32_t n_watched;
    uint8_t *updated;  /* of the optimizers' parameters, one after the other: 1 if a run updates it, 2 if it writes its half copy too */
    int64_t *counters; /* what a run adds to the module's */
    int32_t n_counters;
    /* Gradients in memory of their own, for programs that are not a whole window; one an optimizers' parameter. */
    const void **takes; /* where each must be when a run begins; NULL: there is none */
    gt_tensor **leaves; /* what a run that does not end the window leaves; counted, NULL: none */
    uint64_t drawn;     /* Philox blocks a run takes */
    int64_t runs, used;
    int32_t warm; /* runs of the program as it is: the first chooses kernels, the second is measured, then a graph is made */
    gt__graph *graph;
    bool predicted;                                 /* never to be run: results and half copies have addresses alone */
    uint64_t halves;                                /* predicted: bytes of half copies that a run would make */
    uint64_t beside[GT_MEMORY_CATEGORY_COUNT];      /* bytes in use beside the arena in the first runs, the inputs among them */
    uint64_t input_bytes[GT_MEMORY_CATEGORY_COUNT]; /* of them the inputs */
    int32_t measured;                               /* scratch memory of the instructions: 0 unknown, 1 known, 2 known and in the arena */
    /* With a memory budget. */
    gt__program traced;   /* before anything was chosen */
    uint64_t fixed;       /* bytes outside of the arena that the program uses */
    double seconds;       /* of the program, by what was known when it was chosen */
    double whole_seconds; /* and with all kept */
    bool kept_all;        /* nothing is recomputed */
    bool modelled;        /* some of those times were none that was measured */
    bool settled;         /* it is not chosen again */
    char *budget_text;    /* what was chosen; NULL: nothing was */
    gt__host_side host;   /* where buffers wait */
} gt__plan;

#define GT__PLANS 16

/* What the library's own steps may ask for beyond gt_step_options. */
typedef struct gt__step_extension {
    gt_window *
        window; /* the caller's, of the options' optimizers, module, scaler, schedule and clipping: a run does some of its micro-batches. NULL: a window is made */
    gt_step *arena;                            /* whose arena is used too; it outlives the step. NULL: its own */
    gt_status (*end)(void *user, bool begins); /* traced last, without gradients: in a program that begins a window, or not. NULL: none */
} gt__step_extension;

struct gt_step {
    gt_step_options options; /* whose pointers to arrays are not used after creation */
    gt_context *ctx;
    const gt__backend *backend; /* the context's, which it outlives */
    gt_optimizer **optimizers;
    gt__step_extension extension;
    bool free_to_round;   /* passes may change how sums are rounded: on a GPU, unless the context is deterministic */
    gt_window *window;    /* NULL without optimizers; the extension's, or its own */
    int32_t n_parameters; /* of all optimizers */
    gt_tensor **grads;    /* n_parameters: memory for gradients that outlive a run; NULL: not needed yet */
    gt_tensor *cells;     /* u8: gt__step_cells */
    gt__step_cells *host_cells;
    gt_tensor *arena; /* u8: of all plans; NULL: not yet */
    gt__plan *plans[GT__PLANS];
    int32_t n_plans;
    int64_t runs;
    gt__plan *last;
    /* With a memory budget. */
    gt__times times;            /* of the instructions of all programs that ran */
    bool planning_again;        /* the plan that will be made comes after one that was measured: it is not chosen again for its times */
    uint64_t budget_least;      /* the smallest that would have done for the program that was refused last; 0: it was not for that */
    double whole_batch_seconds; /* of the last program of one micro-batch, with all kept */
    size_t whole_batch_arena;
};

/* step.c: with an extension's window, the loss is the caller's business: there is no gt_step_loss and no output. */
gt_status gt__step_create_with(gt_context *ctx, const gt_step_options *options, const gt__step_extension *extension, gt_step **step);
/* gt_step_run with inputs cut into `micro_batches`; `last`: the window ends with them, even if it is not full. */
gt_status gt__step_run(gt_step *step, gt_tensor *const *inputs, int32_t n_inputs, int32_t micro_batches, bool last);

/* The arena, which may be another step's. */
static inline gt_tensor **gt__step_arena(gt_step *step) { return step->extension.arena ? &step->extension.arena->arena : &step->arena; }

/* record.c: calls the step's function on shapes alone and fills the plan's program, results and what a run changes on the host. *again: half copies of weights were made first, and the
 * plan, emptied, must be traced once more. */
gt_status gt__plan_trace(gt_step *step, gt__plan *plan, bool *again);
/* Half copies over no memory, which a prediction has made. */
void gt__drop_phantom_half_copies(gt_context *ctx);

/* plan.c: traces the step for inputs of these metas, cut into `micro_batches`, from where the window stands. */
gt_status gt__plan_create(gt_step *step, const gt__meta *inputs, int32_t n_inputs, int32_t micro_batches, bool ends, bool predicted,
                          gt__plan **plan);
void gt__plan_destroy(gt_step *step, gt__plan *plan);
/* Brings half copies and masters that are behind their weights up to date. A trace takes them for what the weights are. */
gt_status gt__step_freshen(gt_step *step);
/* The passes that come last, because they write over what is not needed any more. */
gt_status gt__plan_order(gt__plan *plan);
/* These and places. */
gt_status gt__plan_finish(gt__plan *plan);
/* host.c: memory for plan->host.bytes, of which its transfers are told. After a failure there is none. */
gt_status gt__plan_make_host(gt_step *step, gt__plan *plan);
/* Waits for copies under way. Also with the context gone. */
void gt__plan_drop_host(gt_step *step, gt__plan *plan);
/* After a run that failed: nothing that is queued from now on meets its copies. */
void gt__plan_settle_host(gt_step *step, const gt__plan *plan);
/* What the way to the host takes, with what is in the arena, which nobody needs. Unknown where there is no memory for it. */
void gt__step_measure_link(gt_step *step);
/* Places buffers and scratch memory again, after scratch memory was measured. */
gt_status gt__plan_place(gt__plan *plan);

/* With a memory budget, before a run. A plan is chosen once more when its times were measured, if it was chosen by a model, and where the arena with the scratch memory that
 * is known now would be too large. What runs compute stays the same to the bit. After a failure (OUT_OF_MEMORY where no plan fits) all is as it was. */
gt_status gt__plan_again(gt_step *step, gt__plan *plan);
/* Whether it would be. */
gt_status gt__plan_outdated(const gt_step *step, gt__plan *plan, bool *outdated);

/* execute.c: one run; the inputs fit the plan. */
gt_status gt__plan_run(gt_step *step, gt__plan *plan, gt_tensor *const *inputs);
/* Forgets the real addresses, and the graph with them. */
void gt__plan_unbind(gt_step *step, gt__plan *plan);

/* describe.c: the plan's program and memory as readable text, or as a graph for Graphviz, added to `text`. */
gt_status gt__plan_text(const gt_step *step, const gt__plan *plan, gt__text *text);
gt_status gt__plan_graph(const gt_step *step, const gt__plan *plan, gt__text *text);

/* predict.c: bytes of the arena in use at each instruction, its scratch memory too: room for program.count numbers. */
gt_status gt__plan_live(const gt__plan *plan, uint64_t *live);
/* The instruction with the most of them (-1: there is none), and what they are. */
gt_status gt__plan_peak(const gt__plan *plan, int32_t *instruction, uint64_t *by_category);
/* "1.2 MiB at once at conv2d "block1.conv" of the backward (activations 1.0 MiB, ...)", added to `text`. */
gt_status gt__plan_peak_text(const gt__plan *plan, gt__text *text);

/* A plan that is never to run; the context is as before. */
gt_status gt__step_trace_aside(gt_step *step, const gt__meta *metas, int32_t n, int32_t micro_batches, gt__plan **plan);

/* The parameter with that number over all optimizers. */
gt_tensor *gt__step_parameter(const gt_step *step, int32_t number);

static inline gt__step_cells *gt__step_cells_of(const gt_step *step) { return (gt__step_cells *)step->cells->data; }

#endif

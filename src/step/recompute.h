/* What of a program's forward may be computed again in backward instead of being kept, and what the program would then take: found without making it.
 *
 * A buffer that a pure instruction of forward makes is either kept or not. Who reads one that is not kept in backward reads a copy, which the same
 * instruction makes just before, from copies of its own inputs where these are not kept either. Every instruction is done again once at the most; its
 * copies stay until their last reader. */
#ifndef GT_STEP_RECOMPUTE_H
#define GT_STEP_RECOMPUTE_H

#include "step/flow.h"
#include "step/memory_plan.h"

/* How an instruction is done again. */
typedef uint8_t gt__again;
enum {
    GT__AGAIN_NEVER,
    GT__AGAIN_AS_IT_IS,
    GT__AGAIN_APPLY,  /* batch norm in training: by batch_norm_apply, with the statistics that were kept */
    GT__AGAIN_NO_MOVE /* batch norm in training with a residual: without the running statistics */
};

typedef struct gt__recompute {
    gt__program *program;
    gt__flow flow;
    gt__again *again; /* of the instructions */
    bool *backward;   /* of the instructions: in a run of backward */
    int32_t *run;     /* of the instructions: one is a forward and the backward after it */
    int32_t *begins;  /* of the runs: the first instruction of their backward; -1: none */
    int32_t *ends;    /* of the runs: the last one */
    int32_t n_runs;
    int32_t *writer; /* of the buffers: the instruction that may make it again; -1: it is kept in any case */
    int32_t *split;  /* of these: the last instruction of forward that uses it */
    bool *needed;    /* of these: backward reads it */
} gt__recompute;

gt_status gt__recompute_make(gt__program *program, gt__recompute *r);
void gt__recompute_free(gt__recompute *r);

/* Shows the buffers that an instruction reads when it is done again; some more than once. */
typedef void (*gt__again_visitor)(void *user, int32_t buffer);
void gt__recompute_reads(const gt__recompute *r, int32_t instruction, gt__again_visitor visit, void *user);

/* A program that is not there yet. */
typedef struct gt__schedule {
    int32_t *order; /* instructions in their new order: ~i for i done again */
    int32_t count;
    gt__life *lives;     /* of the buffers, then of their copies */
    int32_t *first_back; /* of the buffers: where the kept one is read first in backward; -1: nowhere */
    int32_t *place;      /* of the instructions: where they are in the new order */
    bool *done;          /* of the instructions: done again */
    int32_t *stack, *list;
    int64_t *change; /* bytes at each place against those at the one before */
    size_t bound;    /* the most bytes at once */
    int32_t peak;    /* where */
    double seconds;  /* what is done again takes */
} gt__schedule;

gt_status gt__schedule_new(const gt__recompute *r, gt__schedule *s);
void gt__schedule_free(gt__schedule *s);
/* keep: of the buffers; those without a writer are kept whatever it says. `seconds` of the instructions. */
void gt__schedule_fill(const gt__recompute *r, const bool *keep, const double *seconds, gt__schedule *s);

/* How an instruction of this kind is done again; whether it may be is another question. */
gt__again gt__again_of(const gt__instruction *n);
/* A new instruction that does again what `from` does, with all its results. */
gt_status gt__again_make(const gt__instruction *from, gt__again again, gt__instruction *to);

/* Rewrites the program so. What was found out about it is out of date then. */
gt_status gt__recompute_apply(gt__recompute *r, const bool *keep);

#endif

/* What the device takes for an instruction: as measured where one that does the same was seen, else by a model that what was measured corrects.
 *
 * Instructions do the same if they are of one kind, their operands of the same dtypes and layouts, and the attributes that decide about their time equal: so
 * what one program's run has shown serves the step's other programs too. */
#ifndef GT_STEP_TIMES_H
#define GT_STEP_TIMES_H

#include "step/transfers.h"

enum { GT__WORK_KINDS = GT__OP_COUNT + GT__DO_COUNT }; /* ops, then the other kinds of instructions */

/* What a model reads off an instruction. */
typedef struct gt__work {
    double bytes, flops; /* flops: of matrix products and convolutions alone */
    int32_t kind;        /* one of GT__WORK_KINDS */
    bool half;
} gt__work;

typedef struct gt__seen {
    uint64_t key; /* 0: an empty place */
    gt__work work;
    double seconds;       /* the least in the first run that was timed; negative: not timed */
    size_t workspace;     /* the most scratch memory */
    int32_t count, round; /* how often it was timed, in which run */
    bool workspace_known;
} gt__seen;

typedef struct gt__times {
    gt__seen *slots; /* capacity of them, a power of two */
    int32_t count, capacity;
    int32_t round;
    double link[2]; /* seconds a byte to the host and back; 0: not measured */
} gt__times;

#define GT__TIMES_MOST 32768 /* beyond so many all are forgotten, and seen anew */
void gt__times_free(gt__times *times);
/* So that `more` instructions can be noted without host memory. */
gt_status gt__times_reserve(gt__times *times, int32_t more);
/* A run whose times will be noted begins. What earlier runs have shown stays as it is: plans that were chosen by it are compared with those that will be. */
void gt__times_begin(gt__times *times);
void gt__times_note(gt__times *times, gt__instruction *n, double seconds);
void gt__times_note_workspace(gt__times *times, gt__instruction *n, size_t bytes);
/* Two instructions do the same. */
bool gt__does_same(gt__instruction *a, gt__instruction *b);
/* NULL: never seen. */
const gt__seen *gt__times_find(const gt__times *times, gt__instruction *n);
static inline bool gt__is_timed(const gt__seen *seen) { return seen != NULL && seen->seconds >= 0; }

/* Bytes over bandwidth or operations over their rate, whichever takes longer, by the context's ceilings if they were measured (profile.h); times what instructions of the same
 * kind were seen to take of that, or if none was, all that were. */
typedef struct gt__time_model {
    const gt__times *times;
    double bytes, flops, half_flops; /* a second */
    double launch;                   /* seconds */
    double ratio[GT__WORK_KINDS];
} gt__time_model;
/* `times` NULL: as if nothing had been seen. */
void gt__time_model_make(const gt_context *ctx, const gt__times *times, gt__time_model *model);
/* The way to the host and back, as it was measured; false: as such a device's may be. */
bool gt__times_link(const gt__times *times, const gt_context *ctx, gt__link *link);
/* *measured: one that does the same was timed. */
double gt__time_of(const gt__time_model *model, gt__instruction *n, bool *measured);
/* By the model alone. */
double gt__time_modelled(const gt__time_model *model, gt__instruction *n);

#endif

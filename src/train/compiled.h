/* A trainer's batches as compiled steps: forward, loss, metrics, and in training backward and update are one program.
 *
 * The metrics' sums are in cells, which the program adds to; they go to the meter's own tensors when somebody wants to see them, and back before the next run. A
 * run that fails has added nothing, and the cells are copied when a window begins, for going back. */
#ifndef GT_TRAIN_COMPILED_H
#define GT_TRAIN_COMPILED_H

#include "train/metrics.h"
#include <gtrain/step.h>

typedef struct gt__compiled {
    gt_trainer *trainer;
    bool training;
    gt_step *step;
    gt_tensor *cells;    /* u8: the sums */
    gt_tensor *kept;     /* the same, as they were when the window began */
    gt_tensor *sums[3];  /* in the cells: loss, [weights, rows], correct; NULL: this loss has none, or nothing was traced yet */
    gt_tensor **pending; /* 3 a micro-batch: what a program that is being traced will add; counted */
    int32_t n_pending, cap_pending;
    int32_t runs; /* of the open window, that were done */
    bool ready;   /* the cells hold what the meter held before the window's first run */
} gt__compiled;

/* `arena`: whose memory it uses too, or NULL. */
gt_status gt__compiled_create(gt_trainer *trainer, bool training, const gt__compiled *arena, gt__compiled **compiled);
void gt__compiled_destroy(gt__compiled *compiled); /* NULL is allowed */
/* Forgets the programs: the caller may have changed the module. */
gt_status gt__compiled_reset(gt__compiled *compiled);

/* A batch, in `parts`, which adds to the meter. `last`: it ends its window. */
gt_status gt__compiled_run(gt__compiled *compiled, gt__meter *meter, gt_tensor *x, gt_tensor *y, int64_t count, int32_t parts, bool last);
/* Puts sums that are in the cells into the meter's own tensors. Never waits. */
gt_status gt__compiled_settle(gt__compiled *compiled, gt__meter *meter);

/* A window begins; and: its batches do not count, `meter` being again what it was then. */
void gt__compiled_window_begins(gt__compiled *compiled);
gt_status gt__compiled_window_back(gt__compiled *compiled, gt__meter *meter);

#endif

/* Running metrics. They are summed on the device, and read only when asked for, so that a step does not wait. */
#ifndef GT_TRAIN_METRICS_H
#define GT_TRAIN_METRICS_H

#include "train/loss.h"

typedef struct gt__meter {
    gt_context *ctx;
    const gt__objective *objective;
    /* since the last reading; counted, NULL if nothing was added */
    gt_tensor *loss;    /* sum of losses times weights */
    gt_tensor *sums;    /* cross-entropy: [weights, rows] */
    gt_tensor *correct; /* cross-entropy: i64 */
    int64_t rows;       /* other losses */
    bool in_cells;      /* the sums are in a compiled step's cells instead (train/compiled.h) */
    /* what was read before */
    double total_loss, total_weight;
    int64_t total_rows, total_correct;
} gt__meter;

void gt__meter_begin(gt__meter *meter, gt_context *ctx, const gt__objective *objective);
void gt__meter_end(gt__meter *meter);    /* releases what it holds; `meter` may be all zero */
void gt__meter_retain(gt__meter *meter); /* a copy of a meter holds its tensors too */

/* What a batch adds to loss, sums and correct; NULL: nothing. Inside a scope, outside of gradients. */
gt_status gt__meter_terms(const gt__objective *objective, const gt__loss *loss, gt_tensor **terms);
/* Adds a batch. Inside a scope; queues work and waits for nothing. */
gt_status gt__meter_add(gt__meter *meter, const gt__loss *loss);
/* Reads all that was added since gt__meter_begin. Waits for the device, and reports what only it knew. */
gt_status gt__meter_read(gt__meter *meter, gt_metrics *metrics);

#endif

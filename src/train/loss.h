/* A batch's loss together with what its metrics are made of, all on the device. */
#ifndef GT_TRAIN_LOSS_H
#define GT_TRAIN_LOSS_H

#include "core/core.h"
#include <gtrain/train.h>

/* What to minimise. */
typedef struct gt__objective {
    gt_loss_kind kind;
    gt_cross_entropy_options cross_entropy;
    gt_loss_fn fn;
    void *user;
} gt__objective;

/* Tensors of the innermost scope. */
typedef struct gt__loss {
    gt_tensor *value;  /* to go backward from */
    gt_tensor *sums;   /* cross-entropy: f32 or f64 [2], the sum of the valid rows' weights, and their number; else NULL */
    gt_tensor *output; /* of the module */
    gt_tensor *labels;
    int64_t count; /* samples in the batch */
} gt__loss;

/* Runs the objective on the module's output. */
gt_status gt__loss_run(const gt__objective *objective, gt_tensor *output, gt_tensor *labels, int64_t count, gt__loss *loss);

#endif

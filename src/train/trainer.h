/* The inside of a trainer: what it was told, and where it stands. */
#ifndef GT_TRAIN_TRAINER_H
#define GT_TRAIN_TRAINER_H

#include "train/compiled.h"
#include <gtrain/window.h>

/* One of the open window's batches, kept for a repetition. */
typedef struct gt__kept_batch {
    gt_tensor *x, *y; /* counted; y is NULL without labels */
    int64_t count;
} gt__kept_batch;

struct gt_trainer {
    gt_module *module;
    gt_context *ctx;
    gt_trainer_options options;
    gt__objective objective;
    gt_schedule schedule;
    bool has_schedule;
    gt_scaler *scaler;        /* options.scaler, or own_scaler, or NULL */
    gt_scaler *own_scaler;    /* made here */
    gt_window *window;        /* NULL without an optimizer */
    int64_t epoch;            /* number of the next one, or of the one that was begun */
    int64_t batch;            /* of that epoch: batches whose window has ended; 0: it has not begun */
    int64_t batches;          /* of that epoch, if it has begun */
    int64_t total_steps;      /* windows that have ended */
    int64_t skipped;          /* of them, left out; as known last */
    int32_t parts;            /* micro-batches that a batch is cut into */
    int64_t evaluation_parts; /* the same without gradients */
    gt__kept_batch *kept;     /* room for options.accumulation */
    int32_t n_kept;           /* batches in the open window */
    gt__meter meter;          /* of the epoch; kept while the epoch is half done */
    gt__compiled *compiled;   /* training, with options.compile, else NULL */
    gt__compiled *evaluation; /* the same for evaluation */
    gt__meter meter_kept;     /* as it was when the window began; its tensors are counted too */
};

/* --- trainer.c */
extern const gt_metrics gt__no_metrics;
gt_status gt__trainer_check_loader(const gt_trainer *trainer, const gt_loader *loader, const char *which);
/* In evaluation mode, without gradients; the mode before is put back. */
gt_status gt__trainer_evaluate(gt_trainer *trainer, gt_loader *loader, gt_metrics *metrics);
/* Forward and loss in the precision and with the offload that the options ask for. Inside a scope. */
gt_status gt__trainer_forward(gt_trainer *trainer, gt_tensor *x, gt_tensor *y, int64_t count, bool training, gt__loss *loss);

/* For the window: number of items that the loss divided by, where it is not what the caller would count; else NULL. Inside a scope. */
gt_status gt__trainer_items(const gt_trainer *trainer, const gt__loss *loss, gt_tensor **items);

/* --- micro.c */
/* Trains on a batch; the last one of a window updates. Inside a scope. On failure the window goes back to its start. */
gt_status gt__trainer_batch(gt_trainer *trainer, gt_tensor *x, gt_tensor *y, int64_t count);
gt_status gt__trainer_end_window(gt_trainer *trainer);  /* the open one, if there is one, updates with what it has */
void gt__trainer_drop_window(gt_trainer *trainer);      /* gives the open window up */
void gt__trainer_take_back_window(gt_trainer *trainer); /* the same, and its batches do not count in the metrics */

#endif

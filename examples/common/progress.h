/* What the training examples print: a live line on a terminal, plain lines elsewhere, and a summary. */
#ifndef EXAMPLES_PROGRESS_H
#define EXAMPLES_PROGRESS_H

#include "common/args.h"

typedef struct progress {
    int live;              /* stdout is a terminal */
    double last_shown;     /* seconds of the fit */
    int64_t samples_shown; /* in the figures of the last line */
} progress;

/* Also makes Ctrl-C and SIGTERM end the training in good order: the callbacks below then ask it to stop. */
void progress_begin(progress *p);
/* Seconds that only go forward, from some moment. */
double progress_clock(void);
/* Callbacks for gt_trainer_options, with a progress as the user's pointer. A loop without a trainer calls them itself. Not 0: stop. */
int32_t progress_step(void *user, const gt_train_progress *now);
int32_t progress_epoch(void *user, const gt_train_progress *now);

/* Prints the network. */
void progress_describe(gt_context *ctx, gt_module *net);
/* Prints accuracy, speed and the memory table and, with --json, the last line. */
gt_status progress_summary(const args *a, gt_context *ctx, const char *name, const gt_fit_result *result);

#endif

/* The inside of a loss scaler. Its numbers live on the device; the host knows which optimizers it has met and where each stands since the last update. */
#ifndef GT_OPTIM_SCALER_H
#define GT_OPTIM_SCALER_H

#include "optim/optimizer.h"
#include <gtrain/amp.h>

/* An optimizer that the scaler has met. Its parameters' gradients have the indices from `first` on. */
typedef struct gt__scaled {
    uint64_t id;
    int32_t first;
    bool unscaled, stepped; /* since the last update */
} gt__scaled;

struct gt_scaler {
    gt_scaler_options options;
    gt_context *ctx;  /* while `cells` says so */
    gt_tensor *cells; /* u8 [sizeof(gt__scaler_cells)] */
    gt_tensor *scale; /* f32 scalar: its first number */
    gt__scaled *met;
    char **names; /* of parameters, by gradient index */
    gt__diagnosis *diagnosis;
    int32_t n_met, cap_met, n_names;
    bool stepped;   /* some optimizer has, since the last update */
    bool in_window; /* an open gt_window updates it */
};

static inline gt__scaler_cells *gt__scaler_data(const gt_scaler *scaler) { return (gt__scaler_cells *)scaler->cells->data; }
/* BAD_STATE after the context's end, while a window is open, or (`between`) between a step and its update. */
gt_status gt__scaler_check(const gt_scaler *scaler, const char *who, bool between);
/* The optimizer's entry, made on first sight. BAD_DEVICE for another context's. */
gt_status gt__scaler_meet(gt_scaler *scaler, const gt_optimizer *optimizer, const char *who, gt__scaled **entry);
/* A window is about to begin: what was diagnosed before is forgotten. */
gt_status gt__scaler_restart_diagnosis(gt_scaler *scaler);
/* The device has the task that updates the scaler. */
void gt__scaler_updated(gt_scaler *scaler);

#endif

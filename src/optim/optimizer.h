/* The inside of an optimizer. */
#ifndef GT_OPTIM_OPTIMIZER_H
#define GT_OPTIM_OPTIMIZER_H

#include "core/core.h"
#include <gtrain/optim.h>

/* What belongs to one parameter. State tensors lie in memory as the parameter does. */
typedef struct gt__slot_state {
    gt_tensor *parameter;    /* counted */
    gt_tensor *master;       /* f32, of a half-precision parameter */
    gt_tensor *state0;       /* SGD with momentum: the buffer; Adam: first moment */
    gt_tensor *state1;       /* Adam: second moment */
    uint32_t master_version; /* the parameter's version that the master belongs to: another one means that somebody wrote the parameter */
    gt_dtype dtype;          /* of the parameter at creation */
    uint8_t step_cell;       /* which of its two step cells is the one to read */
} gt__slot_state;

/* An optimizer's numbers on the device: how steps go, then a pair of step counts a parameter. */
#define GT__CONTROLS 2 /* as gt__step_unscale makes them; a window uses the first */
static inline size_t gt__step_cells_bytes(int32_t count) {
    return GT__CONTROLS * sizeof(gt__step_control) + (size_t)count * 2 * sizeof(int32_t);
}

struct gt_optimizer {
    gt_optimizer_options options;
    gt__slot_state *slots;
    gt__update *updates;       /* room for `count` */
    gt__grad_list_item *grads; /* room for `count` */
    gt_tensor *cells;          /* u8 [gt__step_cells_bytes] */
    uint64_t id;               /* of no other optimizer of the context, later ones included */
    const double *rate_cell;   /* device: read in place of options.learning_rate while a step is traced; else NULL */
    int32_t count;
    bool in_window; /* its gradients are a window's, which are not true ones until its end */
};

/* The context, or BAD_STATE after its end. */
gt_status gt__optimizer_context(const gt_optimizer *optimizer, const char *who, gt_context **ctx);
/* BAD_STATE while a window has the optimizer's gradients. */
gt_status gt__optimizer_check_free(const gt_optimizer *optimizer, const char *who);
static inline gt__step_control *gt__optimizer_controls(const gt_optimizer *optimizer) { return (gt__step_control *)optimizer->cells->data; }
/* The parameter's gradient of this window, or NULL. */
static inline gt_tensor *gt__valid_grad(const gt_tensor *parameter) {
    return parameter->requires_grad && parameter->grad_valid ? parameter->grad : NULL;
}
/* Lists the gradients, the parameter's number plus `first_index` as index; at most optimizer->count. *found: parameters with a gradient, empty
 * ones included. */
void gt__optimizer_list_grads(const gt_optimizer *optimizer, int32_t first_index, gt__grad_list_item *list, int32_t *count, int32_t *found);
/* Gradients were changed in place. */
void gt__optimizer_mark_grads(gt_optimizer *optimizer);

/* An update in two parts, so that several optimizers change together or not at all: all that can fail for want of memory or for what the caller did, then the
 * launch. prepare: *count entries of optimizer->updates; *found as above. */
gt_status gt__optimizer_prepare(gt_optimizer *optimizer, const char *who, int32_t *count, int32_t *found);
gt_status gt__optimizer_launch(gt_optimizer *optimizer, int32_t count, const gt__step_control *control);
/* A compiled step has updated the parameters for which `updated` (one a slot) is 1, or 2: their half copies too. Versions go up, the second step count is the one
 * to read. */
void gt__optimizer_updated(gt_optimizer *optimizer, const uint8_t *updated);
/* Master copies follow their parameters where something else than a step has written these. */
gt_status gt__optimizer_refresh_masters(gt_optimizer *optimizer);

/* --- state.c: what continuing a run needs. */
#define GT__OPTIMIZER_STATES 3
/* The k-th state tensor of parameter i, borrowed, and its name in files; NULL where the rule or the dtype needs none. */
gt_tensor *gt__optimizer_state(const gt_optimizer *optimizer, int32_t i, int32_t k, const char **name);
/* Where the step count of parameter i, an int32_t, is in `cells`. */
size_t gt__optimizer_step_at(const gt_optimizer *optimizer, int32_t i);
/* Parameters, state and step counts were overwritten together. */
void gt__optimizer_loaded(gt_optimizer *optimizer);

#endif

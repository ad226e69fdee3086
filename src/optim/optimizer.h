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
    int64_t step;            /* updates so far */
    uint32_t master_version; /* the parameter's version that the master belongs to: another one means that somebody wrote the parameter */
    gt_dtype dtype;          /* of the parameter at creation */
} gt__slot_state;

struct gt_optimizer {
    gt_optimizer_options options;
    gt__slot_state *slots;
    gt__update *updates;       /* room for `count` */
    gt__grad_list_item *grads; /* room for `count` */
    int32_t count;
};

/* The context, or BAD_STATE after its end. */
gt_status gt__optimizer_context(const gt_optimizer *optimizer, const char *who, gt_context **ctx);
/* The parameter's gradient of this window, or NULL. */
static inline gt_tensor *gt__valid_grad(const gt_tensor *parameter) {
    return parameter->requires_grad && parameter->grad_valid ? parameter->grad : NULL;
}

#endif

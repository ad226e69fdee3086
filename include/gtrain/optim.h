/* gtrain/optim.h: update rules, gradient clipping, learning-rate schedules.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * gt_status one_step(gt_module *net, gt_optimizer *optimizer, gt_tensor *loss) {
 *     (void)net;
 *     gt_status status = gt_optimizer_zero_grad(optimizer);
 *     if (status == GT_OK) status = gt_backward(loss);
 *     if (status == GT_OK) status = gt_optimizer_clip_grad_norm(optimizer, 1.0, NULL);
 *     if (status == GT_OK) status = gt_optimizer_step(optimizer);
 *     return status;
 * }
 * @endcode
 */
#ifndef GTRAIN_OPTIM_H
#define GTRAIN_OPTIM_H

#include <gtrain/tensor.h>

GT_EXTERN_C_BEGIN

/* The update rules. */
typedef int32_t gt_optimizer_kind;
enum {
    GT_OPTIMIZER_SGD = 0,  /* as torch.optim.SGD */
    GT_OPTIMIZER_ADAM = 1, /* Kingma & Ba 2015; weight decay is added to the gradient */
    GT_OPTIMIZER_ADAMW = 2 /* Loshchilov & Hutter 2019; weight decay shrinks the weight */
};

typedef struct gt_optimizer_options {
    uint32_t struct_size;
    gt_optimizer_kind kind; /* the rule */
    double learning_rate;   /* defaults as in PyTorch: SGD 1e-2 (no default there), Adam and AdamW 1e-3 */
    double momentum;        /* SGD, default 0 */
    double dampening;       /* SGD, default 0 */
    double beta1;           /* Adam, default 0.9 */
    double beta2;           /* Adam, default 0.999 */
    double epsilon;         /* Adam, default 1e-8 */
    double weight_decay;    /* default 0; AdamW 1e-2 */
    int32_t nesterov;       /* SGD, default 0; needs momentum and no dampening */
    int32_t padding;
} gt_optimizer_options;
/* The defaults of that kind. `size` is sizeof(gt_optimizer_options) of the caller's header. @since 0.1 */
GT_API gt_status gt_optimizer_options_init(gt_optimizer_options *options, size_t size, gt_optimizer_kind kind);

/* An update rule over `count` leaf tensors of one context (retained; duplicates are stepped once). Half-precision parameters get an
 * f32 master copy and f32 state. BAD_ARGUMENT naming a rate out of range, BAD_STATE for a tensor that needs no gradient. @since 0.1 */
GT_API gt_status gt_optimizer_create(const gt_optimizer_options *options, gt_tensor *const *parameters, int32_t count,
                                     gt_optimizer **optimizer);
/* Over all parameters of a module that require a gradient. @since 0.1 */
GT_API gt_status gt_optimizer_create_for(const gt_optimizer_options *options, gt_module *module, gt_optimizer **optimizer);
GT_API void gt_optimizer_destroy(gt_optimizer *optimizer); /* NULL is allowed. @since 0.1 */

/* One update with the gradients that are there; a parameter without one is not moved, and its step count stays. NO_GRADS if none
 * has one. Never waits. @since 0.1 */
GT_API gt_status gt_optimizer_step(gt_optimizer *optimizer);
GT_API gt_status gt_optimizer_zero_grad(gt_optimizer *optimizer); /* forgets the gradients of its parameters. @since 0.1 */
/* Sets the rate, from the next update on. BAD_ARGUMENT if it is negative or not finite. @since 0.1 */
GT_API gt_status gt_optimizer_set_learning_rate(gt_optimizer *optimizer, double learning_rate);
GT_API double gt_optimizer_learning_rate(const gt_optimizer *optimizer);    /* the rate now; 0 for NULL. @since 0.1 */
GT_API int32_t gt_optimizer_parameter_count(const gt_optimizer *optimizer); /* parameters without duplicates; 0 for NULL. @since 0.1 */

/* --- state: what an optimizer keeps of each parameter, by PyTorch's names: "exp_avg" and "exp_avg_sq" (Adam, AdamW), "momentum_buffer" (SGD with momentum), each
 * of the parameter's shape, in f32 (f64 for f64 parameters); and "master", the f32 copy of a half-precision parameter that updates go on from. gt_state_save and
 * gt_state_load (gtrain/io.h) keep all of it in a file. */
/* The parameter of that number, from 0, in the order of creation without duplicates; borrowed. BAD_ARGUMENT for a number outside. @since 0.1 */
GT_API gt_status gt_optimizer_parameter(const gt_optimizer *optimizer, int32_t index, gt_tensor **parameter);
/* A state tensor of a parameter by its name, borrowed: it is the optimizer's own, so read it, and write it with gt_optimizer_state_set alone. NOT_FOUND, with the
 * names that there are, if this rule keeps none of that name for the parameter; BAD_ARGUMENT for a number outside. Never waits. @since 0.1 */
GT_API gt_status gt_optimizer_state_get(gt_optimizer *optimizer, int32_t index, const char *name, gt_tensor **state);
/* Overwrites the state tensor of that name with a copy of `source`, which has its shape and any floating dtype. NULL: as at first, zeros, and the master taken from the parameter. A master counts as
 * belonging to what the parameter is now: the next update goes on from it. BAD_SHAPE, BAD_DTYPE, BAD_DEVICE; BAD_STATE inside a window; NOT_FOUND and BAD_ARGUMENT as
 * above. Never waits. @since 0.1 */
GT_API gt_status gt_optimizer_state_set(gt_optimizer *optimizer, int32_t index, const char *name, gt_tensor *source);
/* Writes how many updates each parameter has had, those that loss scaling left out not counted, to `steps`, which has gt_optimizer_parameter_count entries.
 * Waits for the device. @since 0.1 */
GT_API gt_status gt_optimizer_steps_get(gt_optimizer *optimizer, int64_t *steps);
/* Sets these counts from `steps`, from 0 to 2^31 - 2: Adam corrects its bias by them, and the momentum of SGD begins at 0. BAD_ARGUMENT naming the parameter; BAD_STATE inside a
 * window. Waits for the device. @since 0.1 */
GT_API gt_status gt_optimizer_steps_set(gt_optimizer *optimizer, const int64_t *steps);

/* --- clipping */
/* Scales all gradients so that their global 2-norm is at most max_norm. *norm (may be NULL) gets an f64 scalar tensor of the norm before, in the
 * innermost scope, so that nothing waits. A norm that is not finite leaves the gradients. NO_GRADS if there are none. @since 0.1 */
GT_API gt_status gt_optimizer_clip_grad_norm(gt_optimizer *optimizer, double max_norm, gt_tensor **norm);
/* Clamps each gradient element to [-max_value, max_value]; NaN stays. @since 0.1 */
GT_API gt_status gt_optimizer_clip_grad_value(gt_optimizer *optimizer, double max_value);

/* --- schedules: a learning rate as a function of the number of updates done --------------------------------------------------------- */
/* How the rate changes. */
typedef int32_t gt_schedule_kind;
enum {
    GT_SCHEDULE_CONSTANT = 0, /* base throughout */
    GT_SCHEDULE_STEP = 1,     /* times gamma every step_size updates */
    GT_SCHEDULE_COSINE = 2, /* half a cosine from base to min_factor * base over total_steps (Loshchilov & Hutter 2017, without restarts) */
    GT_SCHEDULE_ONE_CYCLE = 3 /* Smith & Topin 2018, cosine form, as torch's OneCycleLR: base is the peak; without momentum cycling */
};
/* A learning rate as a function of the number of updates done. */
typedef struct gt_schedule {
    uint32_t struct_size;
    gt_schedule_kind kind;   /* the rule */
    double base;             /* learning rate */
    double gamma;            /* step: default 0.1 */
    double min_factor;       /* cosine: default 0 */
    double pct_start;        /* one-cycle: part of total_steps spent rising, default 0.3 */
    double div_factor;       /* one-cycle: start at base / div_factor, default 25 */
    double final_div_factor; /* one-cycle: end at start / final_div_factor, default 1e4 */
    int64_t step_size;       /* step: updates between two changes */
    int64_t total_steps;     /* cosine, one-cycle; warm-up included */
    int64_t warmup_steps; /* linear from base / warmup_steps up to base over that many updates, before any kind but one-cycle; default 0 */
} gt_schedule;
GT_API gt_status gt_schedule_init(gt_schedule *schedule, size_t size, gt_schedule_kind kind); /* @since 0.1 */
/* The learning rate of update number `step` (the first is 0). BAD_ARGUMENT naming the field that does not fit. @since 0.1 */
GT_API gt_status gt_schedule_rate(const gt_schedule *schedule, int64_t step, double *rate);

GT_EXTERN_C_END
#endif

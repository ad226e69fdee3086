/* gtrain/amp.h: mixed precision. Autocast regions run the ops that gain from it in half precision; a scaler keeps small gradients from
 * vanishing in f16. (Micikevicius et al., "Mixed Precision Training", ICLR 2018; names and defaults as in torch.amp.)
 *
 * @code
 * #include <gtrain/gtrain.h>
 * gt_status step(gt_module *net, gt_optimizer *optimizer, gt_scaler *scaler, gt_tensor *x, gt_tensor *y) {
 *     gt_context *ctx = gt_module_context(net);
 *     gt_status status = gt_optimizer_zero_grad(optimizer);
 *     if (status == GT_OK) status = gt_autocast_begin(ctx, GT_DTYPE_F16);
 *     if (status != GT_OK) return status;
 *     gt_tensor *loss = gt_cross_entropy(gt_module_forward(net, x), y, NULL);
 *     gt_autocast_end(ctx);
 *     status = gt_backward(gt_scaler_scale(scaler, loss));
 *     if (status == GT_OK) status = gt_scaler_step(scaler, optimizer); // unscales; skips where a gradient is not finite
 *     if (status == GT_OK) status = gt_scaler_update(scaler);
 *     return status;
 * }
 * @endcode
 *
 * gt_window (gtrain/window.h) does all of this and accumulates over micro-batches too.
 */
#ifndef GTRAIN_AMP_H
#define GTRAIN_AMP_H

#include <gtrain/tensor.h>

GT_EXTERN_C_BEGIN

/* --- autocast ---------------------------------------------------------------------------------------------------------------------- */
/* Until the matching end, matrix products and convolutions take their f32 inputs in `dtype` (F16 or BF16), ops that need the range or
 * precision run in f32, and ops on several tensors promote to the widest dtype; gt_autocast_policy tells which. f64 is never touched. Half copies
 * of leaves (weights) are kept until the leaf changes; an optimizer's step renews them as it writes the weights. Regions nest; the innermost counts.
 * BAD_DTYPE for another dtype. @since 0.1 */
GT_API gt_status gt_autocast_begin(gt_context *ctx, gt_dtype dtype);
/* Inside a region: ops run in the dtypes of their inputs until the matching gt_autocast_end. @since 0.1 */
GT_API gt_status gt_autocast_disable(gt_context *ctx);
GT_API gt_status gt_autocast_end(gt_context *ctx); /* BAD_STATE without a begin. @since 0.1 */
/* GT_DTYPE_F16 or GT_DTYPE_BF16 inside a region, GT_DTYPE_F32 outside. @since 0.1 */
GT_API gt_dtype gt_autocast_dtype(const gt_context *ctx);

typedef int32_t gt_cast_policy;
enum {
    GT_CAST_NONE = 0,   /* runs in the dtypes of its inputs */
    GT_CAST_HALF = 1,   /* floating inputs become the region's dtype */
    GT_CAST_F32 = 2,    /* half inputs become f32 */
    GT_CAST_PROMOTE = 3 /* floating inputs become the widest among them */
};
/* Of an op by its name ("conv2d"); GT_CAST_NONE for an unknown one. @since 0.1 */
GT_API gt_cast_policy gt_autocast_policy(const char *op);

/* --- loss scaling ------------------------------------------------------------------------------------------------------------------- */
typedef struct gt_scaler_options {
    uint32_t struct_size;
    int32_t dynamic;         /* default 1. 0: the scale stays, and steps with gradients that are not finite are skipped all the same */
    double scale;            /* at the start, default 65536 */
    double growth;           /* default 2 */
    double backoff;          /* default 0.5 */
    double floor;            /* default 2^-14 */
    double cap;              /* default 2^24, at most 2^126 */
    int32_t growth_interval; /* updates without overflow before the scale grows, default 2000 */
    int32_t diagnose;        /* not 0: also look for the first op whose output overflowed. Slow: a pass over every result */
} gt_scaler_options;
GT_API gt_status gt_scaler_options_init(gt_scaler_options *options, size_t size); /* @since 0.1 */

typedef int32_t gt_scaler_status;
enum {
    GT_SCALER_IDLE = 0,          /* no update yet */
    GT_SCALER_STEPPED = 1,       /* the last update was done */
    GT_SCALER_SKIPPED = 2,       /* the last update was left out: a gradient was not finite */
    GT_SCALER_STUCK_AT_FLOOR = 3 /* skipped, and the scale cannot fall further: the gradients themselves are not finite */
};

/* What is kept on the device, read together. */
typedef struct gt_scaler_state {
    uint32_t struct_size;
    gt_scaler_status status; /* what became of the last update */
    double scale;            /* that losses are multiplied by now */
    int64_t growth_count;    /* updates without overflow since the scale last changed */
    int64_t updates;         /* done */
    int64_t skipped;         /* left out */
    int64_t skipped_in_row;  /* since the last that was done */
    /* The first parameter whose gradient was not finite when an update was last skipped; "" if none was. Valid as long as the scaler. */
    const char *parameter;
    const char *op;      /* diagnose: the first op whose output was not finite in that window, else "" */
    const char *module;  /* its module's path, or "" */
    int32_t op_backward; /* not 0: it was in the backward */
    int32_t padding;
} gt_scaler_state;
GT_API gt_status gt_scaler_state_init(gt_scaler_state *state, size_t size); /* @since 0.1 */

/* BAD_ARGUMENT naming the option out of range (floor and cap: 2^-126 to 2^126); BAD_STATE if another scaler of the context diagnoses. @since 0.1 */
GT_API gt_status gt_scaler_create(gt_context *ctx, const gt_scaler_options *options, gt_scaler **scaler);
GT_API void gt_scaler_destroy(gt_scaler *scaler); /* NULL is allowed. @since 0.1 */

/* loss * scale, in f32 whatever the loss's dtype, as an op. Its backward belongs before the next gt_scaler_update (SAVED_MODIFIED). @since 0.1 */
GT_API gt_tensor *gt_scaler_scale(gt_scaler *scaler, gt_tensor *loss);
/* Divides the optimizer's gradients by the scale, so that they can be clipped. BAD_STATE if they are unscaled already. NO_GRADS. @since 0.1 */
GT_API gt_status gt_scaler_unscale(gt_scaler *scaler, gt_optimizer *optimizer);
/* gt_optimizer_step with unscaled gradients (unscaling them on the way if gt_scaler_unscale was not called), left out where one of them is not finite. One
 * scaler may serve several optimizers. Never waits. BAD_STATE if this optimizer has stepped since the last gt_scaler_update. NO_GRADS. @since 0.1 */
GT_API gt_status gt_scaler_step(gt_scaler *scaler, gt_optimizer *optimizer);
/* While a gt_window of the scaler is open, steps, updates and set_state are BAD_STATE: the window's end does all that.
 * After the last optimizer's step: the scale falls if a step was skipped, and grows after growth_interval updates. Never waits. BAD_STATE without a
 * step before. @since 0.1 */
GT_API gt_status gt_scaler_update(gt_scaler *scaler);
/* Waits for the device. @since 0.1 */
GT_API gt_status gt_scaler_get_state(gt_scaler *scaler, gt_scaler_state *state);
/* Puts scale, growth_count, updates, skipped and skipped_in_row back, to continue a run. BAD_ARGUMENT for a scale outside [floor, cap], BAD_STATE between
 * an unscale or step and its update. @since 0.1 */
GT_API gt_status gt_scaler_set_state(gt_scaler *scaler, const gt_scaler_state *state);

GT_EXTERN_C_END
#endif

/* Batch and layer normalisation. Statistics, weight and bias are kept in f32 for half-precision inputs. */
#include "ops/ops.h"

static gt_status check_epsilon(const gt__call *call) {
    GT_CALL_REQUIRE(call, call->attr.norm.epsilon >= 0, GT_BAD_ARGUMENT, "epsilon is %g, but must not be negative",
                    call->attr.norm.epsilon);
    return GT_OK;
}

static gt_status check_per_channel(const gt__call *call, const gt_tensor *tensor, const char *what, gt_dtype dtype, int64_t size) {
    if (tensor == NULL) return GT_OK;
    GT_TRY(gt__check_dtype(call, tensor, what, dtype));
    return gt__check_vector(call, tensor, what, size);
}

/* Batch norm's mean: a number a channel, and in a second row what that lost by rounding, or 0. */
static gt_status check_mean(const gt__call *call, const gt_tensor *mean, gt_dtype dtype, int64_t channels) {
    GT_TRY(gt__check_dtype(call, mean, "the mean", dtype));
    GT_CALL_REQUIRE(call, mean->meta.ndim == 2 && mean->meta.shape[0] == 2 && mean->meta.shape[1] == channels, GT_INTERNAL,
                    "the mean has another shape");
    return GT_OK;
}

/* The running statistics are written in place, so no copy may be handed to the kernel. */
static gt_status check_running(const gt__call *call, const gt_tensor *mean, const gt_tensor *var) {
    GT_CALL_REQUIRE(call, (mean == NULL) == (var == NULL), GT_BAD_ARGUMENT, "running_mean and running_var must both be given, or neither");
    GT_CALL_REQUIRE(call, call->attr.norm.training || mean != NULL, GT_BAD_ARGUMENT,
                    "running_mean and running_var are needed when not training");
    if (mean == NULL) return GT_OK;
    GT_CALL_REQUIRE(call, gt__meta_is_row_major(&mean->meta) && gt__meta_is_row_major(&var->meta), GT_BAD_ARGUMENT,
                    "running_mean and running_var must be contiguous");
    GT_CALL_REQUIRE(call, mean->meta.numel == 0 || mean->data != var->data, GT_BAD_ARGUMENT, "running_mean and running_var are one tensor");
    return GT_OK;
}

/* What is added to the normalised x. */
static gt_status check_residual(const gt__call *call, const gt_tensor *x, const gt_tensor *residual) {
    GT_TRY(gt__check_dtype(call, residual, "the residual", x->meta.dtype));
    return gt__check_same_shape(call, x, "the input", residual, "the residual");
}

gt_status gt__shape_batch_norm(gt__call *call) {
    bool adds = call->op == GT__OP_BATCH_NORM_ADD_RELU;
    GT_TRY(gt__check_inputs(call, adds ? 6 : 5, adds ? 1 | 32 : 1));
    const gt_tensor *x = call->in[0];
    const gt__meta *m = &x->meta;
    char text[GT__SHAPE_TEXT];
    GT_TRY(gt__check_float(call, x, "the input"));
    GT_TRY(check_epsilon(call));
    GT_CALL_REQUIRE(call, m->ndim == 2 || m->ndim == 4, GT_BAD_SHAPE, "the input is %s, but must be [N,C] or [N,C,H,W]",
                    GT__SHAPE_OF(text, x));
    gt_dtype dtype = gt__dtype_accumulate(m->dtype);
    int64_t channels = m->shape[1];
    GT_CALL_REQUIRE(call, (call->in[1] == NULL) == (call->in[2] == NULL), GT_BAD_ARGUMENT,
                    "weight and bias must both be given, or neither");
    GT_TRY(check_per_channel(call, call->in[1], "weight", dtype, channels));
    GT_TRY(check_per_channel(call, call->in[2], "bias", dtype, channels));
    GT_TRY(check_per_channel(call, call->in[3], "running_mean", dtype, channels));
    GT_TRY(check_per_channel(call, call->in[4], "running_var", dtype, channels));
    GT_TRY(check_running(call, call->in[3], call->in[4]));
    if (adds) GT_TRY(check_residual(call, x, call->in[5]));
    if (call->attr.norm.training) {
        double momentum = call->attr.norm.momentum;
        GT_CALL_REQUIRE(call, momentum >= 0 && momentum <= 1, GT_BAD_ARGUMENT, "momentum is %g, but must be from 0 to 1", momentum);
        if (m->numel > 0 && m->numel / channels == 1)
            GT_CALL_FAIL_HINT(call, GT_BAD_BATCH, "use a larger batch, or leave out a last short one (drop_last)",
                              "one value a channel in training has no variance (input %s)", GT__SHAPE_OF(text, x));
    }
    call->n_out = 3;
    call->meta[0] = *m;
    gt__meta_set_channels_last(&call->meta[0]);
    const int64_t rows[2] = {2, channels};
    GT_TRY(gt__out_shape(call, 1, dtype, 2, rows));
    return gt__out_shape(call, 2, dtype, 1, &channels);
}

/* (x, weight or NULL, bias or NULL, mean, rstd). */
gt_status gt__shape_batch_norm_apply(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 5, 1 | 8 | 16));
    const gt__meta *m = &call->in[0]->meta;
    GT_TRY(gt__check_float(call, call->in[0], "the input"));
    GT_CALL_REQUIRE(call, m->ndim == 2 || m->ndim == 4, GT_INTERNAL, "rank %d", (int)m->ndim);
    gt_dtype dtype = gt__dtype_accumulate(m->dtype);
    GT_TRY(check_per_channel(call, call->in[1], "weight", dtype, m->shape[1]));
    GT_TRY(check_per_channel(call, call->in[2], "bias", dtype, m->shape[1]));
    GT_TRY(check_mean(call, call->in[3], dtype, m->shape[1]));
    GT_TRY(check_per_channel(call, call->in[4], "the deviation", dtype, m->shape[1]));
    call->n_out = 1;
    call->meta[0] = *m;
    gt__meta_set_channels_last(&call->meta[0]);
    return GT_OK;
}

/* (x [rows, width], weight, bias). */
gt_status gt__shape_layer_norm(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 3, 1));
    const gt_tensor *x = call->in[0];
    GT_TRY(gt__check_float(call, x, "the input"));
    GT_TRY(check_epsilon(call));
    GT_CALL_REQUIRE(call, x->meta.ndim == 2, GT_INTERNAL, "rank other than 2");
    gt_dtype dtype = gt__dtype_accumulate(x->meta.dtype);
    GT_TRY(check_per_channel(call, call->in[1], "weight", dtype, x->meta.shape[1]));
    GT_TRY(check_per_channel(call, call->in[2], "bias", dtype, x->meta.shape[1]));
    call->n_out = 3;
    GT_TRY(gt__out_shape(call, 0, x->meta.dtype, 2, x->meta.shape));
    GT_TRY(gt__out_shape(call, 1, dtype, 1, x->meta.shape));
    return gt__out_shape(call, 2, dtype, 1, x->meta.shape);
}

/* (dy, x, weight or NULL, mean, rstd): dx, dw, db. With relu the third are (weight or NULL, bias or NULL); with a residual (weight or NULL, y), and a
 * fourth result is the residual's gradient. Batch norm's may have one input more, dy2 or NULL: the gradient is the sum of both. */
gt_status gt__shape_norm_backward(gt__call *call) {
    bool adds = call->op == GT__OP_BATCH_NORM_ADD_RELU_BACKWARD, relu = call->op == GT__OP_BATCH_NORM_RELU_BACKWARD;
    bool batch = call->op != GT__OP_LAYER_NORM_BACKWARD;
    int32_t mean = adds || relu ? 4 : 3;
    bool two = batch && call->n_in == mean + 3;
    GT_TRY(gt__check_inputs(call, mean + 2 + two, 1u | 2u | 3u << mean | (adds ? 8u : 0u)));
    const gt_tensor *dy = call->in[0], *x = call->in[1];
    GT_TRY(gt__check_float(call, dy, "the gradient"));
    GT_TRY(gt__check_dtype(call, x, "the input", dy->meta.dtype));
    GT_TRY(gt__check_same_shape(call, dy, "the gradient", x, "the input"));
    GT_CALL_REQUIRE(call, batch ? x->meta.ndim == 2 || x->meta.ndim == 4 : x->meta.ndim == 2, GT_INTERNAL, "rank %d", (int)x->meta.ndim);
    gt_dtype dtype = gt__dtype_accumulate(x->meta.dtype);
    int64_t width = x->meta.shape[1], groups = batch ? width : x->meta.shape[0];
    GT_TRY(check_per_channel(call, call->in[2], "weight", dtype, width));
    if (relu) GT_TRY(check_per_channel(call, call->in[3], "bias", dtype, width));
    if (adds) {
        GT_TRY(gt__check_dtype(call, call->in[3], "the output", dy->meta.dtype));
        GT_TRY(gt__check_same_shape(call, dy, "the gradient", call->in[3], "the output"));
    }
    if (two && call->in[mean + 2]) {
        GT_TRY(gt__check_dtype(call, call->in[mean + 2], "the second gradient", dy->meta.dtype));
        GT_TRY(gt__check_same_shape(call, dy, "the gradient", call->in[mean + 2], "the second gradient"));
    }
    GT_TRY(batch ? check_mean(call, call->in[mean], dtype, groups) : check_per_channel(call, call->in[mean], "the mean", dtype, groups));
    GT_TRY(check_per_channel(call, call->in[mean + 1], "the deviation", dtype, groups));
    call->n_out = adds ? 4 : 3;
    call->meta[0] = x->meta;
    gt__meta_set_channels_last(&call->meta[0]);
    call->meta[3] = call->meta[0];
    GT_TRY(gt__out_shape(call, 1, dtype, 1, &width));
    return gt__out_shape(call, 2, dtype, 1, &width);
}

/* dy summed over all but the channels. */
static gt_tensor *bias_gradient(gt_tensor *dy) {
    GT__NEED(dy);
    uint32_t mask = dy->meta.ndim == 4 ? 1u << 0 | 1u << 2 | 1u << 3 : 1u;
    return gt__sum_axes(gt_cast(dy, gt__dtype_accumulate(dy->meta.dtype)), mask, 0);
}

static uint32_t wanted(const gt__grad *grad) {
    uint32_t want = 0;
    for (uint32_t k = 0; k < 3; k++)
        if (grad->needs[k]) want |= 1u << k;
    return want;
}

static void take(gt__grad *grad, gt_tensor *const *out) {
    for (int32_t k = 0; k < 3; k++)
        if (grad->needs[k]) grad->dx[k] = out[k];
}

static gt_status norm_backward(gt__grad *grad, gt__op_id op) {
    gt_tensor *dy = grad->dy[0], *out[GT__MAX_OUT] = {NULL};
    if (!grad->needs[0] && !grad->needs[1]) { /* the bias alone, for which nothing was saved */
        GT__TRY_TENSOR(grad->dx[2], bias_gradient(dy));
        return GT_OK;
    }
    gt_tensor *in[5] = {dy, grad->in[0], grad->needs[0] ? grad->in[1] : NULL, grad->out[1], grad->out[2]};
    GT_TRY(gt__op_multi(op, in, 5, grad->attr, wanted(grad), out));
    take(grad, out);
    return GT_OK;
}

gt_status gt__grad_batch_norm(gt__grad *grad) { return norm_backward(grad, GT__OP_BATCH_NORM_BACKWARD); }

gt_status gt__grad_batch_norm_relu(gt__grad *grad) {
    gt_tensor *in[6] = {grad->dy[0], grad->in[0], grad->in[1], grad->in[2], grad->out[1], grad->out[2]}, *out[GT__MAX_OUT] = {NULL};
    GT_TRY(gt__op_multi(GT__OP_BATCH_NORM_RELU_BACKWARD, in, 6, grad->attr, wanted(grad), out));
    take(grad, out);
    return GT_OK;
}

gt_status gt__grad_batch_norm_add_relu(gt__grad *grad) {
    gt_tensor *dy = grad->dy[0], *y = grad->out[0], *out[GT__MAX_OUT] = {NULL};
    if (!grad->needs[0] && !grad->needs[1]) { /* y alone was saved */
        gt_tensor *dz;
        GT__TRY_TENSOR(dz, gt__op2(GT__OP_RELU_BACKWARD, dy, y, NULL));
        gt__grad_done_dy(grad, 0);
        gt__grad_done_out(grad, 0);
        if (grad->needs[2]) GT__TRY_TENSOR(grad->dx[2], bias_gradient(dz));
        if (grad->needs[5]) grad->dx[5] = dz;
        return GT_OK;
    }
    gt_tensor *in[6] = {dy, grad->in[0], grad->needs[0] ? grad->in[1] : NULL, y, grad->out[1], grad->out[2]};
    GT_TRY(gt__op_multi(GT__OP_BATCH_NORM_ADD_RELU_BACKWARD, in, 6, grad->attr, wanted(grad) | (grad->needs[5] ? 8u : 0u), out));
    take(grad, out);
    if (grad->needs[5]) grad->dx[5] = out[3];
    return GT_OK;
}

gt_status gt__grad_layer_norm(gt__grad *grad) { return norm_backward(grad, GT__OP_LAYER_NORM_BACKWARD); }

/* ---- public ------------------------------------------------------------------------------------------------------------------ */

/* `op` with all its inputs; `residual` is the sixth of batch_norm_add_relu. */
static gt_tensor *batch_norm(gt__op_id op, gt_tensor *x, gt_tensor *weight, gt_tensor *bias, gt_tensor *running_mean,
                             gt_tensor *running_var, gt_tensor *residual, int32_t training, double momentum, double epsilon) {
    gt__attrs attr = gt__attrs_zero();
    attr.norm.momentum = momentum;
    attr.norm.epsilon = epsilon;
    attr.norm.training = training != 0;
    if (training && x->ctx->recomputing) running_mean = running_var = NULL; /* they have moved in the forward, and are not read */
    bool moves = training && running_mean != NULL && running_var != NULL;
    GT__REQUIRE_OP(!moves || (!gt__needs_grad(running_mean) && !gt__needs_grad(running_var)), x, BATCH_NORM, GT_BAD_STATE,
                   "running_mean and running_var are changed in place and must not require a gradient");
    gt_tensor *in[6] = {x, weight, bias, running_mean, running_var, residual};
    bool recorded = gt__will_record(x) || gt__will_record(weight) || gt__will_record(bias);
    gt_tensor *y = gt__op_with(op, in, residual != NULL ? 6 : 5, &attr, training || recorded ? 7 : 1);
    if (y != NULL && moves && x->meta.numel > 0) {
        gt__storage_changed(running_mean->storage);
        gt__storage_changed(running_var->storage);
    }
    return y;
}

gt_tensor *gt_batch_norm(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, gt_tensor *running_mean, gt_tensor *running_var,
                         int32_t training, double momentum, double epsilon) {
    GT__NEED(x);
    return batch_norm(GT__OP_BATCH_NORM, x, weight, bias, running_mean, running_var, NULL, training, momentum, epsilon);
}

gt_tensor *gt_batch_norm_activation(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, gt_tensor *running_mean, gt_tensor *running_var,
                                    gt_tensor *residual, int32_t training, double momentum, double epsilon, gt_activation activation) {
    GT__NEED(x);
    GT__REQUIRE_OP(activation == GT_ACTIVATION_NONE || activation == GT_ACTIVATION_RELU, x, BATCH_NORM, GT_BAD_ARGUMENT,
                   "%d is not an activation", (int)activation);
    if (residual != NULL) GT__NEED(residual);
    gt__op_id op = activation == GT_ACTIVATION_NONE ? GT__OP_BATCH_NORM
                   : residual != NULL               ? GT__OP_BATCH_NORM_ADD_RELU
                                                    : GT__OP_BATCH_NORM_RELU;
    if (op != GT__OP_BATCH_NORM || residual == NULL)
        return batch_norm(op, x, weight, bias, running_mean, running_var, residual, training, momentum, epsilon);

    gt__call call = {.ctx = x->ctx, .op = op};
    GT_TRY_NULL(check_residual(&call, x, residual));
    GT_TRY_NULL(gt__scope_begin(x->ctx));
    gt_tensor *y = batch_norm(op, x, weight, bias, running_mean, running_var, NULL, training, momentum, epsilon);
    return gt_scope_return(x->ctx, y != NULL ? gt_add(y, residual) : NULL);
}

gt_tensor *gt_layer_norm(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, int32_t n_axes, double epsilon) {
    GT__NEED(x);
    char tx[GT__SHAPE_TEXT], tw[GT__SHAPE_TEXT];
    int32_t ndim = x->meta.ndim;
    GT__REQUIRE_OP(n_axes > 0 && n_axes <= ndim, x, LAYER_NORM, GT_BAD_ARGUMENT, "over the last %d axes: the input is %s", (int)n_axes,
                   GT__SHAPE_OF(tx, x));
    const int64_t *tail = x->meta.shape + (ndim - n_axes);
    int64_t rows[2] = {1, 1};
    for (int32_t i = 0; i < ndim; i++)
        GT__REQUIRE_OP(!__builtin_mul_overflow(rows[i >= ndim - n_axes], x->meta.shape[i], &rows[i >= ndim - n_axes]), x, LAYER_NORM,
                       GT_BAD_SHAPE, "axes of %s join to more than 2^63", GT__SHAPE_OF(tx, x));
    gt_tensor *in[3] = {x, weight, bias};
    for (int32_t k = 1; k < 3; k++) {
        if (in[k] == NULL) continue;
        GT__REQUIRE_OP(in[k]->meta.ndim == n_axes && memcmp(in[k]->meta.shape, tail, (size_t)n_axes * sizeof *tail) == 0, x, LAYER_NORM,
                       GT_BAD_SHAPE, "%s is %s, but must be the last %d axes of the input %s", k == 1 ? "weight" : "bias",
                       GT__SHAPE_OF(tw, in[k]), (int)n_axes, GT__SHAPE_OF(tx, x));
    }
    gt__attrs attr = gt__attrs_zero();
    attr.norm.epsilon = epsilon;
    attr.norm.training = 1;
    uint32_t want = gt__will_record(x) || gt__will_record(weight) || gt__will_record(bias) ? 7 : 1;
    if (ndim == 2 && n_axes == 1) return gt__op_with(GT__OP_LAYER_NORM, in, 3, &attr, want);

    gt_context *ctx = x->ctx;
    gt_tensor *y = NULL;
    GT_TRY_NULL(gt__scope_begin(ctx));
    in[0] = gt_reshape(x, 2, rows);
    bool ready = in[0] != NULL;
    for (int32_t k = 1; k < 3; k++) {
        if (in[k] == NULL || in[k]->meta.ndim == 1) continue;
        in[k] = gt_reshape(in[k], 1, &rows[1]);
        ready = ready && in[k] != NULL;
    }
    if (ready) y = gt__op_with(GT__OP_LAYER_NORM, in, 3, &attr, want);
    return gt_scope_return(ctx, y != NULL ? gt_reshape(y, ndim, x->meta.shape) : NULL);
}

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

gt_status gt__shape_batch_norm(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 5, 1));
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
    GT_TRY(gt__out_shape(call, 1, dtype, 1, &channels));
    return gt__out_shape(call, 2, dtype, 1, &channels);
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

/* (dy, x, weight or NULL, mean, rstd): dx, dw, db. */
gt_status gt__shape_norm_backward(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 5, 1 | 2 | 8 | 16));
    const gt_tensor *dy = call->in[0], *x = call->in[1];
    bool batch = call->op == GT__OP_BATCH_NORM_BACKWARD;
    GT_TRY(gt__check_float(call, dy, "the gradient"));
    GT_TRY(gt__check_dtype(call, x, "the input", dy->meta.dtype));
    GT_TRY(gt__check_same_shape(call, dy, "the gradient", x, "the input"));
    GT_CALL_REQUIRE(call, batch ? x->meta.ndim == 2 || x->meta.ndim == 4 : x->meta.ndim == 2, GT_INTERNAL, "rank %d", (int)x->meta.ndim);
    gt_dtype dtype = gt__dtype_accumulate(x->meta.dtype);
    int64_t width = x->meta.shape[1], groups = batch ? width : x->meta.shape[0];
    GT_TRY(check_per_channel(call, call->in[2], "weight", dtype, width));
    GT_TRY(check_per_channel(call, call->in[3], "the mean", dtype, groups));
    GT_TRY(check_per_channel(call, call->in[4], "the deviation", dtype, groups));
    call->n_out = 3;
    call->meta[0] = x->meta;
    gt__meta_set_channels_last(&call->meta[0]);
    GT_TRY(gt__out_shape(call, 1, dtype, 1, &width));
    return gt__out_shape(call, 2, dtype, 1, &width);
}

static gt_status norm_backward(gt__grad *grad, gt__op_id op) {
    gt_tensor *dy = grad->dy[0], *out[GT__MAX_OUT] = {NULL, NULL, NULL};
    if (!grad->needs[0] && !grad->needs[1]) { /* the bias alone, for which nothing was saved */
        uint32_t mask = dy->meta.ndim == 4 ? 1u << 0 | 1u << 2 | 1u << 3 : 1u;
        GT__TRY_TENSOR(grad->dx[2], gt__sum_axes(gt_cast(dy, gt__dtype_accumulate(dy->meta.dtype)), mask, 0));
        return GT_OK;
    }
    gt_tensor *in[5] = {dy, grad->in[0], grad->needs[0] ? grad->in[1] : NULL, grad->out[1], grad->out[2]};
    uint32_t want = 0;
    for (uint32_t k = 0; k < 3; k++)
        if (grad->needs[k]) want |= 1u << k;
    GT_TRY(gt__op_multi(op, in, 5, grad->attr, want, out));
    for (int32_t k = 0; k < 3; k++)
        if (grad->needs[k]) grad->dx[k] = out[k];
    return GT_OK;
}

gt_status gt__grad_batch_norm(gt__grad *grad) { return norm_backward(grad, GT__OP_BATCH_NORM_BACKWARD); }
gt_status gt__grad_layer_norm(gt__grad *grad) { return norm_backward(grad, GT__OP_LAYER_NORM_BACKWARD); }

/* ---- public ------------------------------------------------------------------------------------------------------------------ */

gt_tensor *gt_batch_norm(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, gt_tensor *running_mean, gt_tensor *running_var,
                         int32_t training, double momentum, double epsilon) {
    GT__NEED(x);
    gt__attrs attr = gt__attrs_zero();
    attr.norm.momentum = momentum;
    attr.norm.epsilon = epsilon;
    attr.norm.training = training != 0;
    bool moves = training && running_mean != NULL && running_var != NULL;
    GT__REQUIRE_OP(!moves || (!gt__needs_grad(running_mean) && !gt__needs_grad(running_var)), x, BATCH_NORM, GT_BAD_STATE,
                   "running_mean and running_var are changed in place and must not require a gradient");
    gt_tensor *in[5] = {x, weight, bias, running_mean, running_var};
    bool recorded = gt__will_record(x) || gt__will_record(weight) || gt__will_record(bias);
    gt_tensor *y = gt__op_with(GT__OP_BATCH_NORM, in, 5, &attr, training || recorded ? 7 : 1);
    if (y != NULL && moves && x->meta.numel > 0) {
        running_mean->storage->version++;
        running_var->storage->version++;
    }
    return y;
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
    GT_TRY_NULL(gt_scope_begin(ctx));
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

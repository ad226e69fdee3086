/* Losses: cross-entropy of class labels, mean squared error. For half-precision inputs they are f32. */
#include "core/node.h"
#include "core/offload.h"
#include "ops/ops.h"

/* logits [N,C], labels [N], weights [C] or NULL. */
static gt_status check_rows(const gt__call *call, const gt_tensor *logits, const gt_tensor *labels, const gt_tensor *weights) {
    char text[GT__SHAPE_TEXT], ltext[GT__SHAPE_TEXT];
    GT_TRY(gt__check_float(call, logits, "the tensor of logits"));
    GT_CALL_REQUIRE(call, logits->meta.ndim == 2, GT_BAD_SHAPE, "the logits are %s, but must be [N, classes]", GT__SHAPE_OF(text, logits));
    GT_CALL_REQUIRE(call, gt__dtype_is_int(labels->meta.dtype), GT_BAD_DTYPE, "the labels are %s, but must be i64, i32 or u8",
                    gt_dtype_name(labels->meta.dtype));
    GT_CALL_REQUIRE(call, labels->meta.ndim == 1 && labels->meta.shape[0] == logits->meta.shape[0], GT_BAD_SHAPE,
                    "the labels are %s, but must be [%lld], one for each row of the logits %s", GT__SHAPE_OF(ltext, labels),
                    (long long)logits->meta.shape[0], GT__SHAPE_OF(text, logits));
    GT_CALL_REQUIRE(call, logits->meta.shape[1] > 0, GT_BAD_SHAPE, "the logits %s have no classes", GT__SHAPE_OF(text, logits));
    if (weights != NULL) {
        GT_TRY(gt__check_dtype(call, weights, "class_weights", gt__dtype_accumulate(logits->meta.dtype)));
        GT_TRY(gt__check_vector(call, weights, "class_weights", logits->meta.shape[1]));
    }
    return GT_OK;
}

gt_status gt__shape_cross_entropy(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 3, 3));
    GT_TRY(check_rows(call, call->in[0], call->in[1], call->in[2]));
    double smoothing = call->attr.loss.label_smoothing;
    gt_reduction reduction = call->attr.loss.reduction;
    GT_CALL_REQUIRE(call, smoothing >= 0 && smoothing <= 1, GT_BAD_ARGUMENT, "label_smoothing is %g, but must be from 0 to 1", smoothing);
    GT_CALL_REQUIRE(call, reduction >= GT_REDUCTION_MEAN && reduction <= GT_REDUCTION_NONE, GT_BAD_ARGUMENT, "%d is not a reduction",
                    (int)reduction);
    gt_dtype dtype = gt__dtype_accumulate(call->in[0]->meta.dtype);
    const int64_t two = 2;
    call->n_out = 3;
    GT_TRY(gt__out_shape(call, 0, dtype, reduction == GT_REDUCTION_NONE ? 1 : 0, call->in[0]->meta.shape));
    GT_TRY(gt__out_shape(call, 1, dtype, 1, call->in[0]->meta.shape));
    return gt__out_shape(call, 2, dtype, 1, &two);
}

/* (dloss, logits, labels, class weights or NULL, log-sum-exp, sums). */
gt_status gt__shape_cross_entropy_backward(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 6, 1 | 2 | 4 | 16 | 32));
    const gt_tensor *dloss = call->in[0], *logits = call->in[1];
    GT_TRY(check_rows(call, logits, call->in[2], call->in[3]));
    gt_dtype dtype = gt__dtype_accumulate(logits->meta.dtype);
    GT_TRY(gt__check_dtype(call, dloss, "the gradient", dtype));
    GT_TRY(gt__check_dtype(call, call->in[4], "log-sum-exp", dtype));
    GT_TRY(gt__check_vector(call, call->in[4], "log-sum-exp", logits->meta.shape[0]));
    GT_TRY(gt__check_dtype(call, call->in[5], "sums", dtype));
    GT_TRY(gt__check_vector(call, call->in[5], "sums", 2));
    if (call->attr.loss.reduction == GT_REDUCTION_NONE)
        GT_TRY(gt__check_vector(call, dloss, "the gradient", logits->meta.shape[0]));
    else
        GT_CALL_REQUIRE(call, dloss->meta.ndim == 0, GT_INTERNAL, "the gradient is not a scalar");
    call->n_out = 1;
    return gt__out_shape(call, 0, logits->meta.dtype, 2, logits->meta.shape);
}

/* (dloss, logits, labels, class weights or NULL). */
gt_status gt__shape_cross_entropy_both(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 4, 1 | 2 | 4));
    const gt_tensor *logits = call->in[1];
    GT_TRY(check_rows(call, logits, call->in[2], call->in[3]));
    gt_dtype dtype = gt__dtype_accumulate(logits->meta.dtype);
    const int64_t two = 2;
    GT_TRY(gt__check_dtype(call, call->in[0], "the gradient", dtype));
    GT_CALL_REQUIRE(call, call->attr.loss.reduction != GT_REDUCTION_NONE && call->in[0]->meta.ndim == 0, GT_INTERNAL,
                    "the gradient is not a scalar");
    call->n_out = 4;
    GT_TRY(gt__out_shape(call, 0, dtype, 0, NULL));
    GT_TRY(gt__out_shape(call, 1, dtype, 1, logits->meta.shape));
    GT_TRY(gt__out_shape(call, 2, dtype, 1, &two));
    return gt__out_shape(call, 3, logits->meta.dtype, 2, logits->meta.shape);
}

/* (dloss, x, w, b or NULL, labels, class weights or NULL). */
gt_status gt__shape_linear_cross_entropy(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 6, 1 | 2 | 4 | 16));
    const gt_tensor *x = call->in[1], *w = call->in[2], *b = call->in[3];
    GT_TRY(gt__check_float(call, x, "the input"));
    GT_TRY(gt__check_dtype(call, w, "weight", x->meta.dtype));
    GT_CALL_REQUIRE(call, x->meta.ndim == 2 && w->meta.ndim == 2 && x->meta.shape[1] == w->meta.shape[1], GT_INTERNAL,
                    "input and weight do not fit");
    if (b) GT_TRY(gt__check_dtype(call, b, "bias", x->meta.dtype));
    if (b) GT_TRY(gt__check_vector(call, b, "bias", w->meta.shape[0]));
    const gt_dtype dtype = gt__dtype_accumulate(x->meta.dtype);
    const int64_t shape[2] = {x->meta.shape[0], w->meta.shape[0]}, two = 2;
    GT_CALL_REQUIRE(call, call->attr.loss.reduction != GT_REDUCTION_NONE && call->in[0]->meta.ndim == 0, GT_INTERNAL,
                    "the gradient is not a scalar");
    call->n_out = 4;
    GT_TRY(gt__out_shape(call, 0, dtype, 0, NULL));
    GT_TRY(gt__out_shape(call, 1, x->meta.dtype, 2, shape));
    GT_TRY(gt__out_shape(call, 2, dtype, 1, &two));
    return gt__out_shape(call, 3, x->meta.dtype, 2, shape);
}

gt_status gt__grad_cross_entropy(gt__grad *grad) {
    if (!grad->needs[0]) return GT_OK;
    gt_tensor *in[6] = {grad->dy[0], grad->in[0], grad->in[1], grad->in[2], grad->out[1], grad->out[2]};
    GT__TRY_TENSOR(grad->dx[0], gt__op(GT__OP_CROSS_ENTROPY_BACKWARD, in, 6, grad->attr));
    return GT_OK;
}

/* ---- public ------------------------------------------------------------------------------------------------------------------ */

static const gt_cross_entropy_options cross_entropy_defaults = {
    .struct_size = sizeof(gt_cross_entropy_options),
    .reduction = GT_REDUCTION_MEAN,
    .ignore_label = -100,
    .label_smoothing = 0,
    .class_weights = NULL,
};

gt_status gt_cross_entropy_options_init(gt_cross_entropy_options *options, size_t size) {
    return gt__options_write(options, size, &cross_entropy_defaults, sizeof cross_entropy_defaults, "gt_cross_entropy_options");
}

gt_tensor *gt_cross_entropy(gt_tensor *logits, gt_tensor *labels, const gt_cross_entropy_options *options) {
    GT__NEED(logits);
    GT__NEED(labels);
    gt_cross_entropy_options o = cross_entropy_defaults;
    if (options != NULL) GT_TRY_NULL(gt__options_read(&o, sizeof o, options, "gt_cross_entropy_options"));
    gt__attrs attr = gt__attrs_zero();
    attr.loss.ignore_label = o.ignore_label;
    attr.loss.label_smoothing = o.label_smoothing;
    attr.loss.reduction = o.reduction;
    gt_tensor *in[3] = {logits, labels, o.class_weights};
    return gt__op_with(GT__OP_CROSS_ENTROPY, in, 3, &attr, 7);
}

gt_tensor *gt_cross_entropy_valid(gt_tensor *loss) {
    GT__NEED(loss);
    GT_TRY_NULL(gt__tensor_check(loss, "cross_entropy_valid"));
    const gt__node *node = loss->node;
    char text[2 * GT__SHAPE_TEXT];
    GT_REQUIRE_NULL(node != NULL && node->op == GT__OP_CROSS_ENTROPY && loss->output == 0, GT_BAD_STATE,
                    "cross_entropy_valid: %s is not a recorded result of gt_cross_entropy; the logits must require a gradient",
                    gt__tensor_text(loss, text, sizeof text));
    gt_tensor *sums = node->saved_out[2].tensor;
    GT_REQUIRE_NULL(sums != NULL, GT_BAD_STATE, "cross_entropy_valid: the backward of %s has run already; ask before it",
                    gt__tensor_text(loss, text, sizeof text));
    if (sums->storage->parcel) GT_TRY_NULL(gt__offload_fetch(sums));
    gt__meta meta;
    GT_TRY_NULL(gt__meta_make(&meta, sums->meta.dtype, 0, NULL, "cross_entropy_valid"));
    return gt__scope_add(gt__tensor_view(sums, &meta, 0));
}

/* Half precision is widened first: squares and their sum would overflow. */
static gt_tensor *mse(gt_tensor *x, gt_tensor *target, gt_reduction reduction) {
    gt_dtype dtype = gt__dtype_accumulate(x->meta.dtype);
    gt_tensor *squares = gt_square(gt_sub(gt_cast(x, dtype), gt_cast(target, dtype)));
    if (reduction == GT_REDUCTION_MEAN) return gt_mean(squares, NULL, 0, 0);
    if (reduction == GT_REDUCTION_SUM) return gt_sum(squares, NULL, 0, 0);
    return squares;
}

gt_tensor *gt_mse_loss(gt_tensor *x, gt_tensor *target, gt_reduction reduction) {
    GT__NEED(x);
    GT__NEED(target);
    char tx[GT__SHAPE_TEXT], tt[GT__SHAPE_TEXT];
    GT_REQUIRE_NULL(reduction >= GT_REDUCTION_MEAN && reduction <= GT_REDUCTION_NONE, GT_BAD_ARGUMENT, "mse_loss: %d is not a reduction",
                    (int)reduction);
    GT_REQUIRE_NULL(x->ctx == target->ctx, GT_BAD_DEVICE, "mse_loss: the target belongs to another context than the input");
    bool mixes = x->ctx->autocast != GT_DTYPE_F32 && gt__dtype_accumulate(x->meta.dtype) == gt__dtype_accumulate(target->meta.dtype);
    GT_REQUIRE_NULL(gt__dtype_is_float(x->meta.dtype) && (x->meta.dtype == target->meta.dtype || mixes), GT_BAD_DTYPE,
                    "mse_loss: the input is %s and the target %s, but both must be f32, f16, bf16 or f64, the same; use gt_cast",
                    gt_dtype_name(x->meta.dtype), gt_dtype_name(target->meta.dtype));
    GT_REQUIRE_NULL(gt__meta_same_shape(&x->meta, &target->meta), GT_BAD_SHAPE,
                    "mse_loss: the input %s and the target %s must have one shape", GT__SHAPE_OF(tx, x), GT__SHAPE_OF(tt, target));
    gt_context *ctx = x->ctx;
    GT_TRY_NULL(gt__scope_begin(ctx));
    return gt_scope_return(ctx, mse(x, target, reduction));
}

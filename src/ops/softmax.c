/* softmax and log_softmax along one axis. */
#include "ops/ops.h"

gt_status gt__shape_softmax(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt__meta *x = &call->in[0]->meta;
    GT_TRY(gt__check_float(call, call->in[0], "the input"));
    GT_CALL_REQUIRE(call, call->attr.softmax.axis >= 0 && call->attr.softmax.axis < x->ndim, GT_INTERNAL, "axis %d",
                    (int)call->attr.softmax.axis);
    call->n_out = 1;
    return gt__out_shape(call, 0, call->attr.softmax.converts ? call->attr.softmax.dtype : x->dtype, x->ndim, x->shape);
}

gt_status gt__shape_softmax_backward(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 2, 3));
    const gt_tensor *dy = call->in[0], *y = call->in[1];
    GT_TRY(gt__check_float(call, dy, "the gradient"));
    GT_TRY(gt__check_dtype(call, y, "the result", dy->meta.dtype));
    GT_TRY(gt__check_same_shape(call, dy, "the gradient", y, "the result"));
    GT_CALL_REQUIRE(call, call->attr.softmax.axis >= 0 && call->attr.softmax.axis < y->meta.ndim, GT_INTERNAL, "axis %d",
                    (int)call->attr.softmax.axis);
    call->n_out = 1;
    return gt__out_shape(call, 0, call->attr.softmax.converts ? call->attr.softmax.dtype : y->meta.dtype, y->meta.ndim, y->meta.shape);
}

static gt_status softmax_grad(gt__grad *grad, gt__op_id op) {
    gt__attrs attr = *grad->attr;
    attr.softmax.dtype = grad->in_meta[0].dtype;
    GT__TRY_TENSOR(grad->dx[0], gt__op2(op, grad->dy[0], grad->out[0], &attr));
    return GT_OK;
}

gt_status gt__grad_softmax(gt__grad *grad) { return softmax_grad(grad, GT__OP_SOFTMAX_BACKWARD); }
gt_status gt__grad_log_softmax(gt__grad *grad) { return softmax_grad(grad, GT__OP_LOG_SOFTMAX_BACKWARD); }

static gt_tensor *along(gt__op_id op, gt_tensor *x, int32_t axis) {
    GT__NEED(x);
    char text[GT__SHAPE_TEXT];
    gt__attrs attr = gt__attrs_zero();
    attr.softmax.axis = gt__axis(x->meta.ndim, axis);
    GT_REQUIRE_NULL(attr.softmax.axis >= 0, GT_BAD_ARGUMENT, "%s: axis %d does not exist: the input is %s", gt__op_table[op].name,
                    (int)axis, GT__SHAPE_OF(text, x));
    return gt__op1(op, x, &attr);
}

gt_tensor *gt_softmax(gt_tensor *x, int32_t axis) { return along(GT__OP_SOFTMAX, x, axis); }
gt_tensor *gt_log_softmax(gt_tensor *x, int32_t axis) { return along(GT__OP_LOG_SOFTMAX, x, axis); }

/* dtype and memory layout: cast, copy, contiguous, channels_last. */
#include "ops/ops.h"

gt_status gt__shape_cast(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    gt_dtype dtype = call->attr.layout.dtype;
    GT_CALL_REQUIRE(call, gt_dtype_size(dtype) != 0, GT_BAD_DTYPE, "%d is not a dtype", (int)dtype);
    call->n_out = 1;
    GT_TRY(gt__out_shape(call, 0, dtype, call->in[0]->meta.ndim, call->in[0]->meta.shape));
    gt__meta like = call->in[0]->meta;
    like.dtype = dtype;
    gt__out_like(call, 0, &like);
    return GT_OK;
}

gt_status gt__grad_cast(gt__grad *grad) {
    GT__TRY_TENSOR(grad->dx[0], gt_cast(grad->dy[0], grad->in_meta[0].dtype));
    return GT_OK;
}

gt_tensor *gt_cast(gt_tensor *x, gt_dtype dtype) {
    GT__NEED(x);
    if (dtype == x->meta.dtype) return gt__same(x);
    gt__attrs attr = gt__attrs_zero();
    attr.layout.dtype = dtype;
    return gt__op1(GT__OP_CAST, x, &attr);
}

gt_status gt__shape_copy(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    char text[GT__SHAPE_TEXT];
    call->n_out = 1;
    call->meta[0] = call->in[0]->meta;
    if (call->attr.layout.channels_last) {
        GT_CALL_REQUIRE(call, call->meta[0].ndim == 4, GT_BAD_SHAPE, "channels-last needs [N,C,H,W], the input is %s",
                        GT__SHAPE_OF(text, call->in[0]));
        gt__meta_set_channels_last(&call->meta[0]);
    } else {
        gt__meta_set_row_major(&call->meta[0]);
    }
    return GT_OK;
}

gt_status gt__grad_copy(gt__grad *grad) {
    grad->dx[0] = grad->dy[0];
    return GT_OK;
}

gt_tensor *gt_contiguous(gt_tensor *x) {
    GT__NEED(x);
    if (gt__meta_is_row_major(&x->meta)) return gt__same(x);
    gt__attrs attr = gt__attrs_zero();
    attr.layout.dtype = x->meta.dtype;
    return gt__op1(GT__OP_COPY, x, &attr);
}

gt_tensor *gt_channels_last(gt_tensor *x) {
    GT__NEED(x);
    if (x->meta.ndim == 4 && gt__meta_is_channels_last(&x->meta)) return gt__same(x);
    gt__attrs attr = gt__attrs_zero();
    attr.layout.dtype = x->meta.dtype;
    attr.layout.channels_last = 1;
    return gt__op1(GT__OP_COPY, x, &attr);
}

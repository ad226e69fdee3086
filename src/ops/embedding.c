/* embedding: rows of a weight by their numbers. */
#include "ops/ops.h"

static gt_status check_indices(const gt__call *call, const gt_tensor *indices) {
    GT_CALL_REQUIRE(call, indices->meta.dtype == GT_DTYPE_I64 || indices->meta.dtype == GT_DTYPE_I32, GT_BAD_DTYPE,
                    "the indices are %s, but must be i64 or i32", gt_dtype_name(indices->meta.dtype));
    return GT_OK;
}

gt_status gt__shape_embedding(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 2, 3));
    const gt_tensor *weight = call->in[0], *indices = call->in[1];
    char text[GT__SHAPE_TEXT];
    GT_TRY(gt__check_float(call, weight, "weight"));
    GT_TRY(check_indices(call, indices));
    GT_CALL_REQUIRE(call, weight->meta.ndim == 2, GT_BAD_SHAPE, "weight is %s, but must be [rows, width]", GT__SHAPE_OF(text, weight));
    int32_t ndim = indices->meta.ndim;
    GT_CALL_REQUIRE(call, ndim < GT_MAX_DIMS, GT_BAD_SHAPE, "the indices %s have %d axes, at most %d are possible",
                    GT__SHAPE_OF(text, indices), (int)ndim, GT_MAX_DIMS - 1);
    int64_t shape[GT_MAX_DIMS];
    memcpy(shape, indices->meta.shape, (size_t)ndim * sizeof *shape);
    shape[ndim] = weight->meta.shape[1];
    call->n_out = 1;
    return gt__out_shape(call, 0, weight->meta.dtype, ndim + 1, shape);
}

/* (dy [..., width], indices [...]); attr.view: weight's shape. */
gt_status gt__shape_embedding_backward(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 2, 3));
    const gt_tensor *dy = call->in[0], *indices = call->in[1];
    GT_TRY(gt__check_float(call, dy, "the gradient"));
    GT_TRY(check_indices(call, indices));
    int32_t ndim = indices->meta.ndim;
    bool fits = call->attr.view.ndim == 2 && dy->meta.ndim == ndim + 1 && dy->meta.shape[ndim] == call->attr.view.shape[1] &&
                memcmp(dy->meta.shape, indices->meta.shape, (size_t)ndim * sizeof(int64_t)) == 0;
    GT_CALL_REQUIRE(call, fits, GT_INTERNAL, "gradient of another shape");
    call->n_out = 1;
    return gt__out_shape(call, 0, gt__dtype_accumulate(dy->meta.dtype), 2, call->attr.view.shape);
}

gt_status gt__grad_embedding(gt__grad *grad) {
    gt__attrs attr = gt__attrs_zero();
    attr.view.ndim = 2;
    attr.view.shape[0] = grad->in_meta[0].shape[0];
    attr.view.shape[1] = grad->in_meta[0].shape[1];
    GT__TRY_TENSOR(grad->dx[0], gt__op2(GT__OP_EMBEDDING_BACKWARD, grad->dy[0], grad->in[1], &attr));
    return GT_OK;
}

gt_tensor *gt_embedding(gt_tensor *weight, gt_tensor *indices) {
    GT__NEED(weight);
    GT__NEED(indices);
    return gt__op2(GT__OP_EMBEDDING, weight, indices, NULL);
}

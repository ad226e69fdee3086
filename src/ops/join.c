/* concat and pad. */
#include "ops/ops.h"

gt_status gt__shape_concat(gt__call *call) {
    GT_CALL_REQUIRE(call, call->n_in > 0, GT_BAD_ARGUMENT, "needs at least one tensor");
    const gt_tensor *first = call->in[0];
    int32_t ndim = first->meta.ndim, axis = call->attr.slice.axis;
    char ta[GT__SHAPE_TEXT], tb[GT__SHAPE_TEXT];
    GT_CALL_REQUIRE(call, axis >= 0 && axis < ndim, GT_BAD_ARGUMENT, "axis %d: %s has %d axes", (int)axis, GT__SHAPE_OF(ta, first),
                    (int)ndim);
    int64_t shape[GT_MAX_DIMS];
    memcpy(shape, first->meta.shape, sizeof shape);
    shape[axis] = 0;
    for (int32_t k = 0; k < call->n_in; k++) {
        const gt_tensor *x = call->in[k];
        GT_CALL_REQUIRE(call, x->ctx == call->ctx, GT_BAD_DEVICE, "tensor %d belongs to another context than tensor 0", (int)k);
        GT_CALL_REQUIRE(call, x->meta.dtype == first->meta.dtype, GT_BAD_DTYPE, "tensor %d is %s, tensor 0 is %s; use gt_cast", (int)k,
                        gt_dtype_name(x->meta.dtype), gt_dtype_name(first->meta.dtype));
        bool fits = x->meta.ndim == ndim;
        for (int32_t i = 0; fits && i < ndim; i++) fits = i == axis || x->meta.shape[i] == shape[i];
        GT_CALL_REQUIRE(call, fits, GT_BAD_SHAPE, "tensor %d is %s, tensor 0 is %s: all sizes but that of axis %d must be equal", (int)k,
                        GT__SHAPE_OF(ta, x), GT__SHAPE_OF(tb, first), (int)axis);
        GT_CALL_REQUIRE(call, !__builtin_add_overflow(shape[axis], x->meta.shape[axis], &shape[axis]), GT_BAD_SHAPE,
                        "the sizes of axis %d add up to more than 2^63", (int)axis);
    }
    call->n_out = 1;
    return gt__out_shape(call, 0, first->meta.dtype, ndim, shape);
}

gt_status gt__grad_concat(gt__grad *grad) {
    int32_t axis = grad->attr->slice.axis;
    int64_t start = 0;
    for (int32_t k = 0; k < grad->n_in; k++) {
        int64_t size = grad->in_meta[k].shape[axis];
        if (grad->needs[k]) GT__TRY_TENSOR(grad->dx[k], gt_slice(grad->dy[0], axis, start, start + size, 1));
        start += size;
    }
    return GT_OK;
}

gt_tensor *gt_concat(gt_tensor *const *tensors, int32_t count, int32_t axis) {
    GT_REQUIRE_NULL(tensors != NULL && count > 0, GT_BAD_ARGUMENT, "concat: needs at least one tensor, got %d", (int)count);
    for (int32_t k = 0; k < count; k++) GT__NEED(tensors[k]);
    char text[GT__SHAPE_TEXT];
    gt__attrs attr = gt__attrs_zero();
    attr.slice.axis = gt__axis(tensors[0]->meta.ndim, axis);
    GT__REQUIRE_OP(attr.slice.axis >= 0, tensors[0], CONCAT, GT_BAD_ARGUMENT, "axis %d: %s has %d axes", (int)axis,
                   GT__SHAPE_OF(text, tensors[0]), (int)tensors[0]->meta.ndim);
    return gt__op(GT__OP_CONCAT, tensors, count, &attr);
}

gt_status gt__shape_pad(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt__meta *x = &call->in[0]->meta;
    GT_TRY(gt__check_float(call, call->in[0], "the input"));
    int64_t shape[GT_MAX_DIMS];
    for (int32_t i = 0; i < x->ndim; i++) {
        int64_t before = call->attr.pad.before[i], after = call->attr.pad.after[i];
        GT_CALL_REQUIRE(call, before >= 0 && after >= 0, GT_BAD_ARGUMENT, "axis %d: %lld before and %lld after, but must not be negative",
                        (int)i, (long long)before, (long long)after);
        GT_CALL_REQUIRE(
            call, !__builtin_add_overflow(x->shape[i], before, &shape[i]) && !__builtin_add_overflow(shape[i], after, &shape[i]),
            GT_BAD_SHAPE, "axis %d: %lld + %lld + %lld passes 2^63", (int)i, (long long)before, (long long)x->shape[i], (long long)after);
    }
    call->n_out = 1;
    return gt__out_shape(call, 0, x->dtype, x->ndim, shape);
}

gt_status gt__grad_pad(gt__grad *grad) {
    gt_tensor *dx = grad->dy[0];
    const gt__meta *x = &grad->in_meta[0];
    for (int32_t i = 0; i < x->ndim; i++) {
        int64_t before = grad->attr->pad.before[i];
        if (before == 0 && grad->attr->pad.after[i] == 0) continue;
        GT__TRY_TENSOR(dx, gt_slice(dx, i, before, before + x->shape[i], 1));
    }
    grad->dx[0] = dx;
    return GT_OK;
}

gt_tensor *gt_pad(gt_tensor *x, const int64_t *before, const int64_t *after, double value) {
    GT__NEED(x);
    GT__REQUIRE_OP((before != NULL && after != NULL) || x->meta.ndim == 0, x, PAD, GT_BAD_ARGUMENT, "before or after is NULL");
    gt__attrs attr = gt__attrs_zero();
    attr.pad.value = value;
    for (int32_t i = 0; i < x->meta.ndim; i++) {
        attr.pad.before[i] = before[i];
        attr.pad.after[i] = after[i];
    }
    return gt__op1(GT__OP_PAD, x, &attr);
}

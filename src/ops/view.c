/* Views: ops whose result shares the input's memory. Their shape rules set the strides and the offset of the first element. */
#include "ops/ops.h"

/* ---- reshape ----------------------------------------------------------------------------------------------------------------- */

gt_status gt__shape_reshape(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt__meta *x = &call->in[0]->meta;
    char tx[GT__SHAPE_TEXT], to[GT__SHAPE_TEXT];
    call->n_out = 1;
    GT_TRY(gt__out_shape(call, 0, x->dtype, call->attr.view.ndim, call->attr.view.shape));
    GT_CALL_REQUIRE(call, call->meta[0].numel == x->numel, GT_BAD_SHAPE, "%s has %lld elements, %s has %lld", GT__SHAPE_OF(tx, call->in[0]),
                    (long long)x->numel, gt__meta_text(to, sizeof to, &call->meta[0]), (long long)call->meta[0].numel);
    GT_CALL_REQUIRE(call, gt__reshape_strides(x, &call->meta[0]), GT_INTERNAL, "%s needs a copy to become %s",
                    GT__SHAPE_OF(tx, call->in[0]), gt__meta_text(to, sizeof to, &call->meta[0]));
    call->view_offset = 0;
    return GT_OK;
}

gt_status gt__grad_reshape(gt__grad *grad) {
    GT__TRY_TENSOR(grad->dx[0], gt__reshape_to(grad->dy[0], &grad->in_meta[0]));
    return GT_OK;
}

gt_tensor *gt_reshape(gt_tensor *x, int32_t ndim, const int64_t *shape) {
    GT__NEED(x);
    char tx[GT__SHAPE_TEXT], to[GT__SHAPE_TEXT];
    GT__REQUIRE_OP(ndim >= 0 && ndim <= GT_MAX_DIMS, x, RESHAPE, GT_BAD_SHAPE, "%d dimensions, at most %d are possible", (int)ndim,
                   GT_MAX_DIMS);
    GT__REQUIRE_OP(shape != NULL || ndim == 0, x, RESHAPE, GT_BAD_ARGUMENT, "shape is NULL");
    gt__attrs attr = gt__attrs_zero();
    attr.view.ndim = ndim;
    int32_t inferred = -1;
    int64_t known = 1;
    for (int32_t i = 0; i < ndim; i++) {
        attr.view.shape[i] = shape[i];
        if (shape[i] == -1) {
            GT__REQUIRE_OP(inferred < 0, x, RESHAPE, GT_BAD_SHAPE, "%s has more than one -1", gt__shape_text(to, sizeof to, ndim, shape));
            inferred = i;
            continue;
        }
        GT__REQUIRE_OP(shape[i] >= 0 && !__builtin_mul_overflow(known, shape[i], &known), x, RESHAPE, GT_BAD_SHAPE, "%s is not a shape",
                       gt__shape_text(to, sizeof to, ndim, shape));
    }
    if (inferred >= 0) {
        GT__REQUIRE_OP(known > 0 && x->meta.numel % known == 0, x, RESHAPE, GT_BAD_SHAPE,
                       "the -1 in %s cannot be found from %s (%lld elements)", gt__shape_text(to, sizeof to, ndim, shape),
                       GT__SHAPE_OF(tx, x), (long long)x->meta.numel);
        attr.view.shape[inferred] = x->meta.numel / known;
    } else {
        GT__REQUIRE_OP(known == x->meta.numel, x, RESHAPE, GT_BAD_SHAPE, "%s has %lld elements, %s has %lld", GT__SHAPE_OF(tx, x),
                       (long long)x->meta.numel, gt__shape_text(to, sizeof to, ndim, shape), (long long)known);
    }
    gt__meta meta;
    if (gt__meta_make(&meta, x->meta.dtype, ndim, attr.view.shape, "reshape") != GT_OK) return NULL;
    if (gt__reshape_strides(&x->meta, &meta)) return gt__op1(GT__OP_RESHAPE, x, &attr);
    gt_context *ctx = x->ctx;
    if (gt__scope_begin(ctx) != GT_OK) return NULL;
    gt_tensor *copy = gt_contiguous(x);
    return gt_scope_return(ctx, copy != NULL ? gt__op1(GT__OP_RESHAPE, copy, &attr) : NULL);
}

gt_tensor *gt_flatten(gt_tensor *x, int32_t start_axis) {
    GT__NEED(x);
    char text[GT__SHAPE_TEXT];
    int32_t start = gt__axis(x->meta.ndim, start_axis);
    if (x->meta.ndim == 0 && (start_axis == 0 || start_axis == -1)) start = 0;
    GT__REQUIRE_OP(start >= 0, x, RESHAPE, GT_BAD_ARGUMENT, "flatten from axis %d: %s has %d axes", (int)start_axis, GT__SHAPE_OF(text, x),
                   (int)x->meta.ndim);
    int64_t shape[GT_MAX_DIMS], rest = 1;
    for (int32_t i = 0; i < x->meta.ndim; i++) {
        if (i < start)
            shape[i] = x->meta.shape[i];
        else
            GT__REQUIRE_OP(!__builtin_mul_overflow(rest, x->meta.shape[i], &rest), x, RESHAPE, GT_BAD_SHAPE,
                           "flattening %s from axis %d gives a size over 2^63", GT__SHAPE_OF(text, x), (int)start);
    }
    shape[start] = rest;
    return gt_reshape(x, start + 1, shape);
}

/* ---- permute ----------------------------------------------------------------------------------------------------------------- */

gt_status gt__shape_permute(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt__meta *x = &call->in[0]->meta;
    char text[GT__SHAPE_TEXT];
    uint32_t seen = 0;
    call->n_out = 1;
    call->meta[0] = *x;
    for (int32_t i = 0; i < x->ndim; i++) {
        int32_t from = call->attr.axes.axes[i];
        GT_CALL_REQUIRE(call, from >= 0 && from < x->ndim && !(seen >> from & 1), GT_BAD_ARGUMENT,
                        "axes must name each of the %d axes of %s once", (int)x->ndim, GT__SHAPE_OF(text, call->in[0]));
        seen |= 1u << from;
        call->meta[0].shape[i] = x->shape[from];
        call->meta[0].strides[i] = x->strides[from];
    }
    call->view_offset = 0;
    return GT_OK;
}

gt_status gt__grad_permute(gt__grad *grad) {
    gt__attrs attr = gt__attrs_zero();
    for (int32_t i = 0; i < grad->in_meta[0].ndim; i++) attr.axes.axes[grad->attr->axes.axes[i]] = i;
    GT__TRY_TENSOR(grad->dx[0], gt__op1(GT__OP_PERMUTE, grad->dy[0], &attr));
    return GT_OK;
}

gt_tensor *gt_transpose(gt_tensor *x, int32_t axis0, int32_t axis1) {
    GT__NEED(x);
    char text[GT__SHAPE_TEXT];
    int32_t a = gt__axis(x->meta.ndim, axis0), b = gt__axis(x->meta.ndim, axis1);
    GT__REQUIRE_OP(a >= 0 && b >= 0, x, PERMUTE, GT_BAD_ARGUMENT, "transpose of axes %d and %d: %s has %d axes", (int)axis0, (int)axis1,
                   GT__SHAPE_OF(text, x), (int)x->meta.ndim);
    gt__attrs attr = gt__attrs_zero();
    for (int32_t i = 0; i < x->meta.ndim; i++) attr.axes.axes[i] = i == a ? b : i == b ? a : i;
    return gt__op1(GT__OP_PERMUTE, x, &attr);
}

gt_tensor *gt_permute(gt_tensor *x, const int32_t *axes) {
    GT__NEED(x);
    GT__REQUIRE_OP(axes != NULL || x->meta.ndim == 0, x, PERMUTE, GT_BAD_ARGUMENT, "axes is NULL");
    gt__attrs attr = gt__attrs_zero();
    for (int32_t i = 0; i < x->meta.ndim; i++) attr.axes.axes[i] = gt__axis(x->meta.ndim, axes[i]);
    return gt__op1(GT__OP_PERMUTE, x, &attr);
}

/* ---- expand ------------------------------------------------------------------------------------------------------------------ */

gt_status gt__shape_expand(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt__meta *x = &call->in[0]->meta;
    char tx[GT__SHAPE_TEXT], to[GT__SHAPE_TEXT];
    int32_t ndim = call->attr.view.ndim, lead = ndim - x->ndim;
    call->n_out = 1;
    GT_TRY(gt__out_shape(call, 0, x->dtype, ndim, call->attr.view.shape));
    bool fits = lead >= 0;
    for (int32_t i = 0; fits && i < ndim; i++) {
        int64_t size = i < lead ? 1 : x->shape[i - lead];
        fits = size == call->meta[0].shape[i] || size == 1;
        call->meta[0].strides[i] = size == 1 && call->meta[0].shape[i] != 1 ? 0 : i < lead ? 0 : x->strides[i - lead];
    }
    GT_CALL_REQUIRE(call, fits, GT_BAD_SHAPE, "%s does not expand to %s: aligned at the end, sizes must be equal or 1",
                    GT__SHAPE_OF(tx, call->in[0]), gt__meta_text(to, sizeof to, &call->meta[0]));
    call->view_offset = 0;
    return GT_OK;
}

gt_status gt__grad_expand(gt__grad *grad) {
    GT__TRY_TENSOR(grad->dx[0], gt__sum_to_shape(grad->dy[0], &grad->in_meta[0]));
    return GT_OK;
}

gt_tensor *gt_expand(gt_tensor *x, int32_t ndim, const int64_t *shape) {
    GT__NEED(x);
    GT__REQUIRE_OP(ndim >= 0 && ndim <= GT_MAX_DIMS, x, EXPAND, GT_BAD_SHAPE, "%d dimensions, at most %d are possible", (int)ndim,
                   GT_MAX_DIMS);
    GT__REQUIRE_OP(shape != NULL || ndim == 0, x, EXPAND, GT_BAD_ARGUMENT, "shape is NULL");
    gt__attrs attr = gt__attrs_zero();
    attr.view.ndim = ndim;
    for (int32_t i = 0; i < ndim; i++) attr.view.shape[i] = shape[i];
    return gt__op1(GT__OP_EXPAND, x, &attr);
}

/* ---- slice ------------------------------------------------------------------------------------------------------------------- */

static int64_t slice_count(int64_t start, int64_t stop, int64_t step) { return start < stop ? (stop - start - 1) / step + 1 : 0; }

static gt_status check_slice(const gt__call *call, const int64_t *shape, int32_t ndim) {
    int32_t axis = call->attr.slice.axis;
    int64_t start = call->attr.slice.start, stop = call->attr.slice.stop, step = call->attr.slice.step;
    GT_CALL_REQUIRE(call, axis >= 0 && axis < ndim && step > 0 && start >= 0 && start <= stop && stop <= shape[axis], GT_INTERNAL,
                    "bad slice %lld:%lld:%lld of axis %d", (long long)start, (long long)stop, (long long)step, (int)axis);
    return GT_OK;
}

gt_status gt__shape_slice(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt__meta *x = &call->in[0]->meta;
    GT_TRY(check_slice(call, x->shape, x->ndim));
    int32_t axis = call->attr.slice.axis;
    int64_t start = call->attr.slice.start, step = call->attr.slice.step;
    int64_t count = slice_count(start, call->attr.slice.stop, step);
    int64_t shape[GT_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[axis] = count;
    call->n_out = 1;
    GT_TRY(gt__out_shape(call, 0, x->dtype, x->ndim, shape));
    if (call->meta[0].numel == 0) {
        call->view_offset = 0;
        return GT_OK;
    }
    memcpy(call->meta[0].strides, x->strides, sizeof x->strides);
    if (count > 1) call->meta[0].strides[axis] = x->strides[axis] * step;
    call->view_offset = start * x->strides[axis];
    return GT_OK;
}

gt_status gt__grad_slice(gt__grad *grad) {
    gt__attrs attr = *grad->attr;
    attr.slice.ndim = grad->in_meta[0].ndim;
    memcpy(attr.slice.shape, grad->in_meta[0].shape, sizeof attr.slice.shape);
    GT__TRY_TENSOR(grad->dx[0], gt__op1(GT__OP_SLICE_BACKWARD, grad->dy[0], &attr));
    return GT_OK;
}

gt_status gt__shape_slice_backward(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt__meta *dy = &call->in[0]->meta;
    GT_CALL_REQUIRE(call, dy->ndim == call->attr.slice.ndim, GT_INTERNAL, "gradient of another rank");
    GT_TRY(check_slice(call, call->attr.slice.shape, dy->ndim));
    for (int32_t i = 0; i < dy->ndim; i++) {
        int64_t size = i == call->attr.slice.axis ? slice_count(call->attr.slice.start, call->attr.slice.stop, call->attr.slice.step)
                                                  : call->attr.slice.shape[i];
        GT_CALL_REQUIRE(call, dy->shape[i] == size, GT_INTERNAL, "gradient of another shape");
    }
    call->n_out = 1;
    return gt__out_shape(call, 0, dy->dtype, dy->ndim, call->attr.slice.shape);
}

/* Python's rule: negative counts from the end, then clamped to [0, size]. */
static int64_t clamp_index(int64_t index, int64_t size) {
    if (index < 0) index += size;
    return index < 0 ? 0 : index > size ? size : index;
}

gt_tensor *gt_slice(gt_tensor *x, int32_t axis, int64_t start, int64_t stop, int64_t step) {
    GT__NEED(x);
    char text[GT__SHAPE_TEXT];
    gt__attrs attr = gt__attrs_zero();
    attr.slice.axis = gt__axis(x->meta.ndim, axis);
    GT__REQUIRE_OP(attr.slice.axis >= 0, x, SLICE, GT_BAD_ARGUMENT, "axis %d: %s has %d axes", (int)axis, GT__SHAPE_OF(text, x),
                   (int)x->meta.ndim);
    GT__REQUIRE_OP(step > 0, x, SLICE, GT_BAD_ARGUMENT, "step is %lld, but must be at least 1", (long long)step);
    int64_t size = x->meta.shape[attr.slice.axis];
    attr.slice.start = clamp_index(start, size);
    attr.slice.stop = GT__MAX(clamp_index(stop, size), attr.slice.start);
    attr.slice.step = step;
    return gt__op1(GT__OP_SLICE, x, &attr);
}

/* ---- as_strided -------------------------------------------------------------------------------------------------------------- */

/* Elements from the first to one past the last. */
static bool extent_of(const gt__meta *meta, int64_t *extent) {
    int64_t last = 0, step = 0;
    for (int32_t i = 0; i < meta->ndim; i++) {
        if (meta->shape[i] == 0) {
            *extent = 0;
            return true;
        }
        if (__builtin_mul_overflow(meta->shape[i] - 1, meta->strides[i], &step) || __builtin_add_overflow(last, step, &last)) return false;
    }
    *extent = last + 1;
    return true;
}

gt_status gt__shape_as_strided(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt__meta *x = &call->in[0]->meta;
    call->n_out = 1;
    GT_TRY(gt__out_shape(call, 0, x->dtype, call->attr.view.ndim, call->attr.view.shape));
    bool fits = call->attr.view.offset >= 0;
    for (int32_t i = 0; i < call->meta[0].ndim; i++) {
        call->meta[0].strides[i] = call->attr.view.strides[i];
        fits = fits && call->attr.view.strides[i] >= 0;
    }
    int64_t extent = 0;
    GT_CALL_REQUIRE(call, fits && extent_of(&call->meta[0], &extent), GT_BAD_ARGUMENT,
                    "strides and offset must not be negative or pass 2^63");
    call->view_offset = call->attr.view.offset;
    return GT_OK;
}

/* The base must fill its storage, as bases of recorded views do: the result then has the base's layout, and the view falls on the same
 * places. */
gt_status gt__grad_as_strided(gt__grad *grad) {
    const gt__meta *base = &grad->in_meta[0];
    gt_tensor *dy = grad->dy[0], *dx;
    gt__meta view = dy->meta;
    uint32_t repeated = 0;
    for (int32_t i = 0; i < view.ndim; i++) {
        view.strides[i] = grad->attr->view.strides[i];
        if (view.strides[i] == 0 && view.shape[i] > 1) {
            repeated |= 1u << i;
            view.shape[i] = 1;
        }
    }
    if (repeated) GT__TRY_TENSOR(dy, gt__sum_axes(dy, repeated, 1));
    int64_t extent = 0;
    bool inside = gt__meta_is_dense(base) && extent_of(&view, &extent) && grad->attr->view.offset <= base->numel - extent;
    GT_REQUIRE(inside, GT_NOT_SUPPORTED, "as_strided: no gradient for a view that reaches outside its base");
    for (int32_t i = 0; i < view.ndim; i++)
        for (int32_t j = i + 1; j < view.ndim; j++)
            GT_REQUIRE(view.shape[i] < 2 || view.shape[j] < 2 ||
                           GT__MAX(view.strides[i], view.strides[j]) >=
                               GT__MIN(view.strides[i], view.strides[j]) *
                                   (view.strides[i] < view.strides[j] ? view.shape[i] : view.shape[j]),
                       GT_NOT_SUPPORTED, "as_strided: no gradient for a view whose elements overlap");
    gt__meta meta = *base;
    meta.dtype = dy->meta.dtype;
    GT__TRY_TENSOR(dx, gt__tensor_new(grad->ctx, &meta, GT_MEMORY_TEMPORARY));
    GT_TRY(gt__fill(dx, 0));
    view.numel = dy->meta.numel;
    view.dtype = dy->meta.dtype;
    gt_tensor *target;
    GT__TRY_TENSOR(target, gt__tensor_view(dx, &view, grad->attr->view.offset));
    gt_status status = gt__op_into(GT__OP_COPY, &dy, 1, NULL, target);
    gt_tensor_release(target);
    grad->dx[0] = dx;
    return status;
}

/* Reductions over axes: sum, mean, max, argmax. */
#include "ops/ops.h"

/* The shape of x without (or with size 1 for) the axes of `mask`. */
static int32_t reduced_shape(const gt__meta *x, uint32_t mask, int32_t keep_dims, int64_t *shape) {
    int32_t n = 0;
    for (int32_t i = 0; i < x->ndim; i++) {
        if (!(mask >> i & 1))
            shape[n++] = x->shape[i];
        else if (keep_dims)
            shape[n++] = 1;
    }
    return n;
}

/* Elements that go into one result. */
static int64_t reduced_count(const gt__meta *x, uint32_t mask) {
    int64_t count = 1;
    for (int32_t i = 0; i < x->ndim; i++)
        if ((mask >> i & 1) && __builtin_mul_overflow(count, x->shape[i], &count)) return 0; /* only if another axis is empty */
    return count;
}

gt_status gt__shape_reduce(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt__meta *x = &call->in[0]->meta;
    char text[GT__SHAPE_TEXT];
    uint32_t mask = call->attr.reduce.mask;
    bool integers = call->op == GT__OP_SUM && (x->dtype == GT_DTYPE_I32 || x->dtype == GT_DTYPE_I64);
    if (!integers) GT_TRY(gt__check_float(call, call->in[0], "the input"));
    GT_CALL_REQUIRE(call, (mask >> x->ndim) == 0, GT_INTERNAL, "mask %#x for %s", (unsigned)mask, GT__SHAPE_OF(text, call->in[0]));
    if (call->op == GT__OP_MAX)
        GT_CALL_REQUIRE(call, reduced_count(x, mask) > 0, GT_BAD_SHAPE,
                        "there is no maximum of nothing: %s is empty along the reduced axes", GT__SHAPE_OF(text, call->in[0]));
    int64_t shape[GT_MAX_DIMS];
    int32_t ndim = reduced_shape(x, mask, call->attr.reduce.keep_dims, shape);
    call->n_out = 1;
    gt_dtype dtype = call->op == GT__OP_SUM && call->attr.reduce.wide ? gt__dtype_accumulate(x->dtype) : x->dtype;
    return gt__out_shape(call, 0, dtype, ndim, shape);
}

/* dy with the reduced axes put back as size 1. */
static gt_tensor *with_axes(gt_tensor *dy, const gt__grad *grad) {
    if (grad->attr->reduce.keep_dims || dy == NULL) return dy;
    int64_t shape[GT_MAX_DIMS];
    int32_t ndim = reduced_shape(&grad->in_meta[0], grad->attr->reduce.mask, 1, shape);
    return gt_reshape(dy, ndim, shape);
}

gt_status gt__grad_sum(gt__grad *grad) {
    GT__TRY_TENSOR(grad->dx[0], gt__expand_to(with_axes(grad->dy[0], grad), &grad->in_meta[0]));
    return GT_OK;
}

gt_status gt__grad_mean(gt__grad *grad) {
    int64_t count = reduced_count(&grad->in_meta[0], grad->attr->reduce.mask);
    gt_tensor *dy = grad->dy[0];
    if (count > 1) GT__TRY_TENSOR(dy, gt_mul_scalar(dy, 1.0 / (double)count));
    GT__TRY_TENSOR(grad->dx[0], gt__expand_to(with_axes(dy, grad), &grad->in_meta[0]));
    return GT_OK;
}

/* Counted in f32 for half precision, which cannot hold large counts. */
gt_status gt__grad_max(gt__grad *grad) {
    const gt__meta *x = &grad->in_meta[0];
    gt_dtype accumulate = gt__dtype_accumulate(x->dtype);
    gt_tensor *is_max = gt_cast(gt_equal(grad->in[0], with_axes(grad->out[0], grad)), accumulate);
    gt_tensor *count = gt__sum_axes(is_max, grad->attr->reduce.mask, 1);
    gt_tensor *share = gt_div(gt_cast(with_axes(grad->dy[0], grad), accumulate), count);
    GT__TRY_TENSOR(grad->dx[0], gt_cast(gt_mul(is_max, share), x->dtype));
    return GT_OK;
}

static gt_tensor *reduce(gt__op_id op, gt_tensor *x, const int32_t *axes, int32_t n_axes, int32_t keep_dims) {
    GT__NEED(x);
    char text[GT__SHAPE_TEXT];
    const gt__call call = {.ctx = x->ctx, .op = op};
    gt__attrs attr = gt__attrs_zero();
    attr.reduce.keep_dims = keep_dims != 0;
    if (n_axes == 0) attr.reduce.mask = (1u << x->meta.ndim) - 1;
    if (n_axes < 0 || n_axes > GT_MAX_DIMS || (n_axes > 0 && axes == NULL)) {
        (void)gt__call_fail(&call, GT_BAD_ARGUMENT, __FILE__, __LINE__, NULL, "axes is NULL or its number %d is not from 0 to %d",
                            (int)n_axes, GT_MAX_DIMS);
        return NULL;
    }
    for (int32_t i = 0; i < n_axes; i++) {
        int32_t axis = gt__axis(x->meta.ndim, axes[i]);
        if (axis < 0 || (attr.reduce.mask >> axis & 1)) {
            (void)gt__call_fail(&call, GT_BAD_ARGUMENT, __FILE__, __LINE__, NULL, "axis %d %s: the input is %s", (int)axes[i],
                                axis < 0 ? "does not exist" : "is given twice", GT__SHAPE_OF(text, x));
            return NULL;
        }
        attr.reduce.mask |= 1u << axis;
    }
    return gt__op1(op, x, &attr);
}

gt_tensor *gt_sum(gt_tensor *x, const int32_t *axes, int32_t n_axes, int32_t keep_dims) {
    return reduce(GT__OP_SUM, x, axes, n_axes, keep_dims);
}
gt_tensor *gt_mean(gt_tensor *x, const int32_t *axes, int32_t n_axes, int32_t keep_dims) {
    return reduce(GT__OP_MEAN, x, axes, n_axes, keep_dims);
}
gt_tensor *gt_max(gt_tensor *x, const int32_t *axes, int32_t n_axes, int32_t keep_dims) {
    return reduce(GT__OP_MAX, x, axes, n_axes, keep_dims);
}

gt_status gt__shape_argmax(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt__meta *x = &call->in[0]->meta;
    GT_TRY(gt__check_float(call, call->in[0], "the input"));
    char text[GT__SHAPE_TEXT];
    int32_t axis = call->attr.reduce.axis;
    GT_CALL_REQUIRE(call, axis >= 0 && axis < x->ndim, GT_INTERNAL, "axis %d of %s", (int)axis, GT__SHAPE_OF(text, call->in[0]));
    GT_CALL_REQUIRE(call, x->shape[axis] > 0, GT_BAD_SHAPE, "there is no maximum of nothing: axis %d of %s is empty", (int)axis,
                    GT__SHAPE_OF(text, call->in[0]));
    int64_t shape[GT_MAX_DIMS];
    int32_t ndim = reduced_shape(x, 1u << axis, call->attr.reduce.keep_dims, shape);
    call->n_out = 1;
    return gt__out_shape(call, 0, GT_DTYPE_I64, ndim, shape);
}

gt_tensor *gt_argmax(gt_tensor *x, int32_t axis, int32_t keep_dims) {
    GT__NEED(x);
    char text[GT__SHAPE_TEXT];
    gt__attrs attr = gt__attrs_zero();
    attr.reduce.axis = gt__axis(x->meta.ndim, axis);
    attr.reduce.keep_dims = keep_dims != 0;
    GT__REQUIRE_OP(attr.reduce.axis >= 0, x, ARGMAX, GT_BAD_ARGUMENT, "axis %d does not exist: the input is %s", (int)axis,
                   GT__SHAPE_OF(text, x));
    attr.reduce.mask = 1u << attr.reduce.axis;
    return gt__op1(GT__OP_ARGMAX, x, &attr);
}

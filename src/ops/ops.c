#include "ops/ops.h"

gt_status gt__tensor_usable(const gt_tensor *tensor, const char *function, const char *what, const char *file, int line) {
    if (tensor == NULL) return gt__error_null(function, what, file, line);
    if (tensor->ctx == NULL)
        return gt__error_raise(GT_BAD_STATE, file, line, 0, NULL, NULL, "%s: the context of %s was destroyed", function, what);
    return GT_OK;
}

gt_status gt__status_of_null(void) {
    gt_status status = gt_last_error()->status;
    return status != GT_OK ? status : GT_RAISE(GT_INTERNAL, "an op failed without an error");
}

/* ---- ops that have no rule --------------------------------------------------------------------------------------------------- */

gt_status gt__shape_none(gt__call *call) { GT_CALL_FAIL(call, GT_INTERNAL, "the result must be given"); }

gt_status gt__grad_none(gt__grad *grad) { GT_FAIL(GT_INTERNAL, "op %d has no gradient", (int)grad->op); }

/* ---- checks ------------------------------------------------------------------------------------------------------------------ */

gt_status gt__check_inputs(const gt__call *call, int32_t n, uint32_t required) {
    GT_CALL_REQUIRE(call, call->n_in == n, GT_INTERNAL, "called with %d inputs, takes %d", (int)call->n_in, (int)n);
    for (int32_t k = 0; k < n; k++) {
        if (call->in[k] == NULL) {
            GT_CALL_REQUIRE(call, !(required >> k & 1), GT_INTERNAL, "input %d is missing", (int)k);
            continue;
        }
        GT_CALL_REQUIRE(call, call->in[k]->ctx == call->ctx, GT_BAD_DEVICE,
                        "input %d belongs to another context than input 0; all tensors of a call must be of one context", (int)k);
    }
    return GT_OK;
}

gt_status gt__check_float(const gt__call *call, const gt_tensor *tensor, const char *what) {
    GT_CALL_REQUIRE(call, gt__dtype_is_float(tensor->meta.dtype), GT_BAD_DTYPE, "%s is %s, but must be f32, f16, bf16 or f64; use gt_cast",
                    what, gt_dtype_name(tensor->meta.dtype));
    return GT_OK;
}

gt_status gt__check_dtype(const gt__call *call, const gt_tensor *tensor, const char *what, gt_dtype wanted) {
    GT_CALL_REQUIRE(call, tensor->meta.dtype == wanted, GT_BAD_DTYPE, "%s is %s, but must be %s here; use gt_cast", what,
                    gt_dtype_name(tensor->meta.dtype), gt_dtype_name(wanted));
    return GT_OK;
}

gt_status gt__check_same_shape(const gt__call *call, const gt_tensor *a, const char *what_a, const gt_tensor *b, const char *what_b) {
    char ta[GT__SHAPE_TEXT], tb[GT__SHAPE_TEXT];
    GT_CALL_REQUIRE(call, gt__meta_same_shape(&a->meta, &b->meta), GT_BAD_SHAPE, "%s %s and %s %s must have one shape", what_a,
                    GT__SHAPE_OF(ta, a), what_b, GT__SHAPE_OF(tb, b));
    return GT_OK;
}

gt_status gt__check_vector(const gt__call *call, const gt_tensor *tensor, const char *what, int64_t size) {
    char text[GT__SHAPE_TEXT];
    GT_CALL_REQUIRE(call, tensor->meta.ndim == 1 && tensor->meta.shape[0] == size, GT_BAD_SHAPE, "%s is %s, but must be [%lld]", what,
                    GT__SHAPE_OF(text, tensor), (long long)size);
    return GT_OK;
}

/* ---- outputs ----------------------------------------------------------------------------------------------------------------- */

gt_status gt__out_shape(gt__call *call, int32_t k, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    return gt__meta_make(&call->meta[k], dtype, ndim, shape, gt__op_table[call->op].name);
}

void gt__out_like(gt__call *call, int32_t k, const gt__meta *like) {
    call->meta[k] = *like;
    if (like->numel == 0 || !gt__meta_is_dense(like)) gt__meta_set_row_major(&call->meta[k]);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------------ */

bool gt__broadcast_shapes(int32_t a_ndim, const int64_t *a, int32_t b_ndim, const int64_t *b, int32_t *ndim, int64_t *shape) {
    int32_t n = GT__MAX(a_ndim, b_ndim);
    for (int32_t i = 0; i < n; i++) {
        int32_t ia = i - (n - a_ndim), ib = i - (n - b_ndim);
        int64_t sa = ia < 0 ? 1 : a[ia], sb = ib < 0 ? 1 : b[ib];
        if (sa != sb && sa != 1 && sb != 1) return false;
        shape[i] = sa == 1 ? sb : sa;
    }
    *ndim = n;
    return true;
}

/* Both shapes are cut into the shortest groups of axes that hold equally many elements; within a group the old axes must be one even run. */
bool gt__reshape_strides(const gt__meta *from, gt__meta *to) {
    if (from->numel == 0) {
        gt__meta_set_row_major(to);
        return true;
    }
    int64_t shape[GT_MAX_DIMS], strides[GT_MAX_DIMS];
    int32_t n = 0;
    for (int32_t i = 0; i < from->ndim; i++) {
        if (from->shape[i] == 1) continue;
        shape[n] = from->shape[i];
        strides[n++] = from->strides[i];
    }
    int32_t old = n - 1;
    int64_t left = 1, stride = 1; /* elements of the run not yet handed out, and the stride of the next axis in it */
    for (int32_t i = to->ndim - 1; i >= 0; i--) {
        if (left == 1 && to->shape[i] != 1) {
            if (old < 0) return false;
            left = shape[old];
            stride = strides[old--];
        }
        while (to->shape[i] > 1 && left % to->shape[i] != 0) {
            if (old < 0 || strides[old] != stride * left) return false;
            left *= shape[old--];
        }
        to->strides[i] = stride;
        if (to->shape[i] == 1) continue;
        left /= to->shape[i];
        stride *= to->shape[i];
    }
    return left == 1 && old < 0;
}

/* ---- short forms of ops ------------------------------------------------------------------------------------------------------ */

gt_tensor *gt__op_with(gt__op_id op, gt_tensor *const *in, int32_t n_in, const gt__attrs *attr, uint32_t want) {
    if (want == 1) return gt__op(op, in, n_in, attr);
    gt_context *ctx = in[0]->ctx;
    gt_tensor *out[GT__MAX_OUT] = {NULL, NULL, NULL};
    GT_TRY_NULL(gt__scope_begin(ctx));
    gt_status status = gt__op_multi(op, in, n_in, attr, want, out);
    return gt_scope_return(ctx, status == GT_OK ? out[0] : NULL);
}

gt_tensor *gt__sum_axes(gt_tensor *x, uint32_t mask, int32_t keep_dims) {
    GT__NEED(x);
    gt__attrs attr = gt__attrs_zero();
    attr.reduce.mask = mask;
    attr.reduce.keep_dims = keep_dims;
    return gt__op1(GT__OP_SUM, x, &attr);
}

gt_tensor *gt__sum_to_shape(gt_tensor *x, const gt__meta *meta) {
    GT__NEED(x);
    if (gt__meta_same_shape(&x->meta, meta)) return x;
    int32_t lead = x->meta.ndim - meta->ndim;
    uint32_t mask = 0;
    for (int32_t i = 0; i < x->meta.ndim; i++)
        if (x->meta.shape[i] != 1 && (i < lead || meta->shape[i - lead] == 1)) mask |= 1u << i;
    if (mask) x = gt__sum_axes(x, mask, 1);
    return x != NULL && lead > 0 ? gt__reshape_to(x, meta) : x;
}

gt_tensor *gt__swap_last(gt_tensor *x) {
    GT__NEED(x);
    return gt_transpose(x, -2, -1);
}

gt_tensor *gt__reshape_to(gt_tensor *x, const gt__meta *meta) { return gt_reshape(x, meta->ndim, meta->shape); }

gt_tensor *gt__expand_to(gt_tensor *x, const gt__meta *meta) { return gt_expand(x, meta->ndim, meta->shape); }

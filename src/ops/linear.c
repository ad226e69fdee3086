/* Matrix products: matmul, linear with bias and activation. */
#include "ops/ops.h"

/* ---- matmul ------------------------------------------------------------------------------------------------------------------ */

static gt_status check_inner(const gt_tensor *a, const gt_tensor *b) {
    char ta[GT__SHAPE_TEXT], tb[GT__SHAPE_TEXT];
    int32_t na = a->meta.ndim, nb = b->meta.ndim;
    if (na < 2 || nb < 2)
        return GT__RAISE_OP(a, MATMUL, GT_BAD_SHAPE, "%s x %s: both must have at least 2 axes", GT__SHAPE_OF(ta, a), GT__SHAPE_OF(tb, b));
    if (a->meta.shape[na - 1] != b->meta.shape[nb - 2])
        return GT__RAISE_OP(a, MATMUL, GT_BAD_SHAPE, "%s x %s: the first has %lld columns, the second %lld rows", GT__SHAPE_OF(ta, a),
                            GT__SHAPE_OF(tb, b), (long long)a->meta.shape[na - 1], (long long)b->meta.shape[nb - 2]);
    return GT_OK;
}

gt_status gt__shape_matmul(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 2, 3));
    const gt_tensor *a = call->in[0], *b = call->in[1];
    GT_TRY(gt__check_float(call, a, "the first matrix"));
    GT_TRY(gt__check_dtype(call, b, "the second matrix", a->meta.dtype));
    GT_TRY(check_inner(a, b));
    char ta[GT__SHAPE_TEXT], tb[GT__SHAPE_TEXT];
    int32_t ndim = a->meta.ndim;
    bool fits = ndim == b->meta.ndim;
    for (int32_t i = 0; fits && i < ndim - 2; i++) fits = a->meta.shape[i] == b->meta.shape[i];
    GT_CALL_REQUIRE(call, fits, GT_INTERNAL, "%s x %s: the leading axes must be equal", GT__SHAPE_OF(ta, a), GT__SHAPE_OF(tb, b));
    int64_t shape[GT_MAX_DIMS];
    memcpy(shape, a->meta.shape, sizeof shape);
    shape[ndim - 1] = b->meta.shape[ndim - 1];
    call->n_out = 1;
    return gt__out_shape(call, 0, a->meta.dtype, ndim, shape);
}

gt_status gt__grad_matmul(gt__grad *grad) {
    gt_tensor *dy = grad->dy[0];
    if (grad->needs[0]) GT__TRY_TENSOR(grad->dx[0], gt__op2(GT__OP_MATMUL, dy, gt__swap_last(grad->in[1]), NULL));
    if (grad->needs[1]) GT__TRY_TENSOR(grad->dx[1], gt__op2(GT__OP_MATMUL, gt__swap_last(grad->in[0]), dy, NULL));
    return GT_OK;
}

/* The shape of x with all axes but the last joined. */
static gt_status joined_rows(const gt_tensor *x, int64_t *shape) {
    char text[GT__SHAPE_TEXT];
    shape[0] = 1;
    shape[1] = x->meta.shape[x->meta.ndim - 1];
    for (int32_t i = 0; i + 1 < x->meta.ndim; i++)
        GT_REQUIRE(!__builtin_mul_overflow(shape[0], x->meta.shape[i], &shape[0]), GT_BAD_SHAPE,
                   "the leading axes of %s join to more than 2^63 rows", GT__SHAPE_OF(text, x));
    return GT_OK;
}

/* x [..., K] as one matrix, if that takes no copy. */
static bool joins(const gt_tensor *x, const int64_t *shape) {
    gt__meta meta;
    return gt__meta_make(&meta, x->meta.dtype, 2, shape, "matmul") == GT_OK && gt__reshape_strides(&x->meta, &meta);
}

/* [..., M, K] x [K, N] as one product; NULL in *result if a would have to be copied. */
static gt_status matmul_joined(gt_tensor *a, gt_tensor *b, gt_tensor **result) {
    int64_t rows[2], shape[GT_MAX_DIMS];
    GT_TRY(joined_rows(a, rows));
    if (!joins(a, rows)) return GT_OK;
    memcpy(shape, a->meta.shape, sizeof shape);
    shape[a->meta.ndim - 1] = b->meta.shape[1];
    gt_tensor *flat = gt_reshape(a, 2, rows);
    GT__TRY_TENSOR(*result, gt_reshape(flat != NULL ? gt__op2(GT__OP_MATMUL, flat, b, NULL) : NULL, a->meta.ndim, shape));
    return GT_OK;
}

/* x with its leading axes broadcast to `lead`. */
static gt_tensor *broadcast_lead(gt_tensor *x, int32_t n, const int64_t *lead) {
    int64_t shape[GT_MAX_DIMS];
    int32_t ndim = x->meta.ndim;
    bool same = n == ndim - 2 && memcmp(lead, x->meta.shape, (size_t)n * sizeof *lead) == 0;
    if (same) return x;
    memcpy(shape, lead, (size_t)n * sizeof *lead);
    shape[n] = x->meta.shape[ndim - 2];
    shape[n + 1] = x->meta.shape[ndim - 1];
    return gt_expand(x, n + 2, shape);
}

static gt_status matmul_batched(gt_tensor *a, gt_tensor *b, gt_tensor **result) {
    char ta[GT__SHAPE_TEXT], tb[GT__SHAPE_TEXT];
    if (b->meta.ndim == 2) {
        GT_TRY(matmul_joined(a, b, result));
        if (*result != NULL) return GT_OK;
    }
    int64_t lead[GT_MAX_DIMS];
    int32_t n = 0;
    if (!gt__broadcast_shapes(a->meta.ndim - 2, a->meta.shape, b->meta.ndim - 2, b->meta.shape, &n, lead))
        return GT__RAISE_OP(a, MATMUL, GT_BAD_SHAPE, "%s x %s: the leading axes do not broadcast", GT__SHAPE_OF(ta, a),
                            GT__SHAPE_OF(tb, b));
    gt_tensor *wide_a, *wide_b;
    GT__TRY_TENSOR(wide_a, broadcast_lead(a, n, lead));
    GT__TRY_TENSOR(wide_b, broadcast_lead(b, n, lead));
    GT__TRY_TENSOR(*result, gt__op2(GT__OP_MATMUL, wide_a, wide_b, NULL));
    return GT_OK;
}

/* Autocast's casts come before the broadcast, which would make more of what is cast. */
static gt_status cast_early(gt_tensor **a, gt_tensor **b) {
    if ((*a)->meta.dtype == GT_DTYPE_F64 || (*b)->meta.dtype == GT_DTYPE_F64) return GT_OK;
    GT__TRY_TENSOR(*a, gt__autocast_input(GT__OP_MATMUL, *a));
    GT__TRY_TENSOR(*b, gt__autocast_input(GT__OP_MATMUL, *b));
    return GT_OK;
}

gt_tensor *gt_matmul(gt_tensor *a, gt_tensor *b) {
    GT__NEED(a);
    GT__NEED(b);
    if (a->meta.ndim == 2 && b->meta.ndim == 2) return gt__op2(GT__OP_MATMUL, a, b, NULL);
    GT_TRY_NULL(check_inner(a, b));
    gt_context *ctx = a->ctx;
    gt_tensor *result = NULL;
    GT_TRY_NULL(gt__scope_begin(ctx));
    gt_status status = cast_early(&a, &b);
    if (status == GT_OK) status = matmul_batched(a, b, &result);
    return gt_scope_return(ctx, status == GT_OK ? result : NULL);
}

/* ---- linear ------------------------------------------------------------------------------------------------------------------ */

gt_status gt__shape_linear(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 3, 3));
    const gt_tensor *x = call->in[0], *weight = call->in[1], *bias = call->in[2];
    char tx[GT__SHAPE_TEXT], tw[GT__SHAPE_TEXT];
    GT_TRY(gt__check_float(call, x, "the input"));
    GT_TRY(gt__check_dtype(call, weight, "weight", x->meta.dtype));
    GT_CALL_REQUIRE(call, weight->meta.ndim == 2, GT_BAD_SHAPE, "weight is %s, but must be [out, in]", GT__SHAPE_OF(tw, weight));
    GT_CALL_REQUIRE(call, x->meta.ndim == 2 && x->meta.shape[1] == weight->meta.shape[1], GT_BAD_SHAPE,
                    "weight expects %lld input features, input has %lld (input %s, weight %s)", (long long)weight->meta.shape[1],
                    (long long)(x->meta.ndim > 0 ? x->meta.shape[x->meta.ndim - 1] : 0), GT__SHAPE_OF(tx, x), GT__SHAPE_OF(tw, weight));
    if (bias != NULL) {
        GT_TRY(gt__check_dtype(call, bias, "bias", x->meta.dtype));
        GT_TRY(gt__check_vector(call, bias, "bias", weight->meta.shape[0]));
    }
    const int64_t shape[2] = {x->meta.shape[0], weight->meta.shape[0]};
    call->n_out = 1;
    return gt__out_shape(call, 0, x->meta.dtype, 2, shape);
}

gt_status gt__shape_linear_backward_weight(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 2, 3));
    const gt_tensor *dz = call->in[0], *x = call->in[1];
    GT_TRY(gt__check_float(call, dz, "the gradient"));
    GT_TRY(gt__check_dtype(call, x, "the input", dz->meta.dtype));
    GT_CALL_REQUIRE(call, dz->meta.ndim == 2 && x->meta.ndim == 2 && dz->meta.shape[0] == x->meta.shape[0], GT_INTERNAL,
                    "gradient and input do not fit");
    const int64_t shape[2] = {dz->meta.shape[1], x->meta.shape[1]};
    call->n_out = 1;
    return gt__out_shape(call, 0, gt__dtype_accumulate(dz->meta.dtype), 2, shape);
}

/* Into a tensor that does not lie as the kernels write it. */
static gt_status grad_by_way_of(gt__op_id op, gt_tensor *const *in, const gt__attrs *attr, const gt__meta *layout, gt_tensor *into,
                                bool accumulate) {
    gt_tensor *made = gt__tensor_new_for(into->ctx, layout, GT_MEMORY_TEMPORARY, "gradient");
    if (made == NULL) return gt_last_error()->status;
    gt_status status = gt__op_into(op, in, 2, attr, made);
    gt_tensor *sum[2] = {into, made};
    if (status == GT_OK) status = accumulate ? gt__op_into(GT__OP_ADD, sum, 2, NULL, into) : gt__op_into(GT__OP_COPY, &made, 1, NULL, into);
    gt_tensor_release(made);
    return status;
}

gt_status gt__linear_weight_grad(gt_tensor *dz, gt_tensor *x, gt_tensor *into, bool accumulate) {
    gt__attrs attr = gt__attrs_zero();
    gt_tensor *in[2] = {dz, x};
    if (gt__meta_is_row_major(&into->meta)) {
        attr.linear.accumulate = accumulate;
        return gt__op_into(GT__OP_LINEAR_BACKWARD_WEIGHT, in, 2, &attr, into);
    }
    gt__meta layout = into->meta;
    gt__meta_set_row_major(&layout);
    return grad_by_way_of(GT__OP_LINEAR_BACKWARD_WEIGHT, in, &attr, &layout, into, accumulate);
}

gt_status gt__conv_weight_grad(gt_tensor *dz, gt_tensor *x, const gt__attrs *conv, gt_tensor *into, bool accumulate) {
    gt__attrs attr = *conv;
    gt_tensor *in[2] = {dz, x};
    attr.conv.activation = GT_ACTIVATION_NONE;
    memcpy(attr.conv.shape, into->meta.shape, sizeof attr.conv.shape);
    attr.conv.accumulate = 0;
    if (gt__meta_is_channels_last(&into->meta)) {
        attr.conv.accumulate = accumulate;
        return gt__op_into(GT__OP_CONV2D_BACKWARD_WEIGHT, in, 2, &attr, into);
    }
    gt__meta layout = into->meta;
    gt__meta_set_channels_last(&layout);
    return grad_by_way_of(GT__OP_CONV2D_BACKWARD_WEIGHT, in, &attr, &layout, into, accumulate);
}

gt_status gt__bias_grad(gt_tensor *sums, gt_tensor *into, bool accumulate) {
    gt_tensor *in[2] = {into, sums};
    if (!accumulate) return gt__op_into(GT__OP_COPY, &sums, 1, NULL, into);
    GT_REQUIRE(sums->meta.dtype == into->meta.dtype, GT_INTERNAL, "sums of %s into %s", gt_dtype_name(sums->meta.dtype),
               gt_dtype_name(into->meta.dtype));
    return gt__op_into(GT__OP_ADD, in, 2, NULL, into);
}

gt_status gt__shape_bias_relu_backward(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 2, 3));
    const gt_tensor *dy = call->in[0], *y = call->in[1];
    GT_TRY(gt__check_float(call, dy, "the gradient"));
    GT_TRY(gt__check_dtype(call, y, "the result", dy->meta.dtype));
    GT_TRY(gt__check_same_shape(call, dy, "the gradient", y, "the result"));
    GT_CALL_REQUIRE(call, dy->meta.ndim >= 2, GT_INTERNAL, "rank %d", (int)dy->meta.ndim);
    call->n_out = 2;
    call->meta[0] = dy->meta;
    gt__meta_set_channels_last(&call->meta[0]);
    return gt__out_shape(call, 1, gt__dtype_accumulate(dy->meta.dtype), 1, &dy->meta.shape[1]);
}

/* (dy [N,C], w [C,K], y [N,K]). */
gt_status gt__shape_linear_relu_backward(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 3, 7));
    const gt_tensor *dy = call->in[0], *w = call->in[1], *y = call->in[2];
    GT_TRY(gt__check_float(call, dy, "the gradient"));
    GT_TRY(gt__check_dtype(call, w, "weight", dy->meta.dtype));
    GT_TRY(gt__check_dtype(call, y, "the result", dy->meta.dtype));
    GT_CALL_REQUIRE(call,
                    dy->meta.ndim == 2 && w->meta.ndim == 2 && y->meta.ndim == 2 && dy->meta.shape[1] == w->meta.shape[0] &&
                        y->meta.shape[0] == dy->meta.shape[0] && y->meta.shape[1] == w->meta.shape[1],
                    GT_INTERNAL, "gradient, weight and result do not fit");
    const gt_dtype sums = gt__dtype_accumulate(dy->meta.dtype);
    call->n_out = 3;
    GT_TRY(gt__out_shape(call, 0, dy->meta.dtype, 2, y->meta.shape));
    GT_TRY(gt__out_shape(call, 1, sums, 1, y->meta.shape + 1));
    return gt__out_shape(call, 2, sums, 1, w->meta.shape);
}

/* A half copy of an f32 bias: through the cast the sums would be rounded to halves, or overflow. */
static gt_status give_to_leaf(gt__grad *grad) {
    if (grad->dx[2] == NULL || !gt__dtype_is_half(grad->in_meta[2].dtype)) return GT_OK;
    gt__sink sink;
    GT_TRY(gt__grad_sink(grad, 2, &sink));
    if (sink.into == NULL) return GT_OK;
    GT_TRY(gt__grad_sink_done(&sink, gt__bias_grad(grad->dx[2], sink.into, sink.accumulate)));
    grad->dx[2] = NULL;
    return GT_OK;
}

gt_status gt__grad_bias_relu(gt__grad *grad, bool relu, uint32_t bias_axes, gt_tensor **dz) {
    bool product = grad->needs[0] || grad->needs[1], bias = grad->needs[2] != 0;
    *dz = grad->dy[0];
    if (relu && bias) {
        gt_tensor *in[2] = {grad->dy[0], grad->out[0]}, *out[GT__MAX_OUT] = {NULL, NULL, NULL};
        GT_TRY(gt__op_multi(GT__OP_BIAS_RELU_BACKWARD, in, 2, NULL, product ? 3 : 2, out));
        *dz = out[0];
        grad->dx[2] = out[1];
    } else if (relu) {
        GT__TRY_TENSOR(*dz, gt__op2(GT__OP_RELU_BACKWARD, grad->dy[0], grad->out[0], NULL));
    } else if (bias) {
        gt__attrs attr = gt__attrs_zero();
        attr.reduce.mask = bias_axes;
        attr.reduce.wide = 1;
        GT__TRY_TENSOR(grad->dx[2], gt__op1(GT__OP_SUM, grad->dy[0], &attr));
    }
    if (relu) {
        gt__grad_done_dy(grad, 0);
        gt__grad_done_out(grad, 0);
    }
    return give_to_leaf(grad);
}

gt_status gt__grad_linear(gt__grad *grad) {
    gt_tensor *dz;
    GT_TRY(gt__grad_bias_relu(grad, grad->op == GT__OP_LINEAR_RELU, 1u << 0, &dz));
    if (grad->needs[1]) {
        gt__sink sink;
        GT_TRY(gt__grad_sink(grad, 1, &sink));
        if (sink.into)
            GT_TRY(gt__grad_sink_done(&sink, gt__linear_weight_grad(dz, grad->in[0], sink.into, sink.accumulate)));
        else
            GT__TRY_TENSOR(grad->dx[1], gt__op2(GT__OP_LINEAR_BACKWARD_WEIGHT, dz, grad->in[0], NULL));
    }
    gt__grad_done_in(grad, 0);
    if (grad->needs[0]) GT__TRY_TENSOR(grad->dx[0], gt__op2(GT__OP_MATMUL, dz, grad->in[1], NULL));
    return GT_OK;
}

gt_tensor *gt_linear_activation(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, gt_activation activation) {
    GT__NEED(x);
    GT__NEED(weight);
    GT__REQUIRE_OP(activation == GT_ACTIVATION_NONE || activation == GT_ACTIVATION_RELU, x, LINEAR, GT_BAD_ARGUMENT,
                   "%d is not an activation", (int)activation);
    gt__op_id op = activation == GT_ACTIVATION_RELU ? GT__OP_LINEAR_RELU : GT__OP_LINEAR;
    gt__attrs attr = gt__attrs_zero();
    attr.linear.activation = activation;
    gt_tensor *in[3] = {x, weight, bias};
    if (x->meta.ndim == 2) return gt__op(op, in, 3, &attr);

    char tx[GT__SHAPE_TEXT], tw[GT__SHAPE_TEXT];
    int32_t ndim = x->meta.ndim;
    GT__REQUIRE_OP(ndim > 0 && weight->meta.ndim == 2 && x->meta.shape[ndim - 1] == weight->meta.shape[1], x, LINEAR, GT_BAD_SHAPE,
                   "input %s and weight %s do not fit: they must be [..., in] and [out, in]", GT__SHAPE_OF(tx, x),
                   GT__SHAPE_OF(tw, weight));
    int64_t rows[2], shape[GT_MAX_DIMS];
    GT_TRY_NULL(joined_rows(x, rows));
    memcpy(shape, x->meta.shape, sizeof shape);
    shape[ndim - 1] = weight->meta.shape[0];
    gt_context *ctx = x->ctx;
    GT_TRY_NULL(gt__scope_begin(ctx));
    in[0] = gt_reshape(x, 2, rows);
    gt_tensor *y = in[0] != NULL ? gt__op(op, in, 3, &attr) : NULL;
    return gt_scope_return(ctx, gt_reshape(y, ndim, shape));
}

gt_tensor *gt_linear(gt_tensor *x, gt_tensor *weight, gt_tensor *bias) { return gt_linear_activation(x, weight, bias, GT_ACTIVATION_NONE); }

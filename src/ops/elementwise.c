/* Elementwise ops of one and of two tensors. */
#include "ops/ops.h"

/* ---- shape rules ------------------------------------------------------------------------------------------------------------- */

gt_status gt__shape_unary(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    GT_TRY(gt__check_float(call, call->in[0], "the input"));
    if (call->op == GT__OP_DROPOUT)
        GT_CALL_REQUIRE(call, call->attr.random.a >= 0 && call->attr.random.a <= 1, GT_BAD_ARGUMENT,
                        "probability is %g, but must be from 0 to 1", call->attr.random.a);
    call->n_out = 1;
    gt__out_like(call, 0, &call->in[0]->meta);
    return GT_OK;
}

/* Which dtypes an op of two tensors takes, and whether it broadcasts. */
typedef struct binary_kind {
    bool ints;  /* i32 and i64 */
    bool bytes; /* u8 */
    bool broadcasts;
} binary_kind;

static binary_kind kind_of(gt__op_id op) {
    switch (op) {
    case GT__OP_ADD:
    case GT__OP_SUB:
    case GT__OP_MUL:
        return (binary_kind){true, false, true};
    case GT__OP_EQUAL:
    case GT__OP_GREATER:
        return (binary_kind){true, true, true};
    case GT__OP_DIV:
    case GT__OP_MAXIMUM:
    case GT__OP_MINIMUM:
        return (binary_kind){false, false, true};
    default:
        return (binary_kind){false, false, false};
    }
}

gt_status gt__shape_binary(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 2, 3));
    const gt_tensor *a = call->in[0], *b = call->in[1];
    binary_kind kind = kind_of(call->op);
    gt_dtype dtype = a->meta.dtype;
    GT_CALL_REQUIRE(call, dtype == b->meta.dtype, GT_BAD_DTYPE, "the inputs are %s and %s, but must have one dtype; use gt_cast",
                    gt_dtype_name(dtype), gt_dtype_name(b->meta.dtype));
    if (dtype == GT_DTYPE_U8 ? !kind.bytes : gt__dtype_is_int(dtype) && !kind.ints)
        GT_CALL_FAIL(call, GT_BAD_DTYPE, "does not take %s; use gt_cast", gt_dtype_name(dtype));
    call->n_out = 1;
    if (gt__meta_same_shape(&a->meta, &b->meta)) {
        bool a_dense = gt__meta_is_dense(&a->meta);
        gt__out_like(call, 0, a_dense ? &a->meta : &b->meta);
        return GT_OK;
    }
    char ta[GT__SHAPE_TEXT], tb[GT__SHAPE_TEXT];
    int64_t shape[GT_MAX_DIMS];
    int32_t ndim = 0;
    GT_CALL_REQUIRE(call, kind.broadcasts, GT_BAD_SHAPE, "%s and %s must have one shape", GT__SHAPE_OF(ta, a), GT__SHAPE_OF(tb, b));
    GT_CALL_REQUIRE(call, gt__broadcast_shapes(a->meta.ndim, a->meta.shape, b->meta.ndim, b->meta.shape, &ndim, shape), GT_BAD_SHAPE,
                    "%s and %s do not broadcast: aligned at the end, sizes must be equal or 1", GT__SHAPE_OF(ta, a), GT__SHAPE_OF(tb, b));
    GT_TRY(gt__out_shape(call, 0, dtype, ndim, shape));
    for (int32_t k = 0; k < 2; k++) {
        if (!gt__meta_same_shape(&call->in[k]->meta, &call->meta[0]) || !gt__meta_is_dense(&call->in[k]->meta)) continue;
        gt__out_like(call, 0, &call->in[k]->meta);
        break;
    }
    return GT_OK;
}

/* ---- gradients of two tensors ------------------------------------------------------------------------------------------------ */

static gt_status give(gt__grad *grad, int32_t k, gt_tensor *full) {
    GT__TRY_TENSOR(grad->dx[k], gt__sum_to_shape(full, &grad->in_meta[k]));
    return GT_OK;
}

gt_status gt__grad_add(gt__grad *grad) {
    for (int32_t k = 0; k < 2; k++)
        if (grad->needs[k]) GT_TRY(give(grad, k, grad->dy[0]));
    return GT_OK;
}

gt_status gt__grad_sub(gt__grad *grad) {
    if (grad->needs[0]) GT_TRY(give(grad, 0, grad->dy[0]));
    if (grad->needs[1]) {
        gt_tensor *sum;
        GT__TRY_TENSOR(sum, gt__sum_to_shape(grad->dy[0], &grad->in_meta[1]));
        GT__TRY_TENSOR(grad->dx[1], gt_neg(sum));
    }
    return GT_OK;
}

gt_status gt__grad_mul(gt__grad *grad) {
    if (grad->needs[0]) GT_TRY(give(grad, 0, gt_mul(grad->dy[0], grad->in[1])));
    if (grad->needs[1]) GT_TRY(give(grad, 1, gt_mul(grad->dy[0], grad->in[0])));
    return GT_OK;
}

gt_status gt__grad_div(gt__grad *grad) {
    gt_tensor *over_b;
    GT__TRY_TENSOR(over_b, gt_div(grad->dy[0], grad->in[1]));
    if (grad->needs[0]) GT_TRY(give(grad, 0, over_b));
    if (grad->needs[1]) GT_TRY(give(grad, 1, gt_neg(gt_mul(over_b, grad->out[0]))));
    return GT_OK;
}

/* dy where `winner` beats `loser`, half of it where they are equal. */
static gt_tensor *share_of(gt_tensor *dy, gt_tensor *winner, gt_tensor *loser) {
    gt_tensor *more = gt__op2(GT__OP_GREATER, winner, loser, NULL);
    return gt_mul(dy, gt_add(more, gt_mul_scalar(gt_equal(winner, loser), 0.5)));
}

gt_status gt__grad_maximum(gt__grad *grad) {
    for (int32_t k = 0; k < 2; k++)
        if (grad->needs[k]) GT_TRY(give(grad, k, share_of(grad->dy[0], grad->in[k], grad->in[1 - k])));
    return GT_OK;
}

gt_status gt__grad_minimum(gt__grad *grad) {
    for (int32_t k = 0; k < 2; k++)
        if (grad->needs[k]) GT_TRY(give(grad, k, share_of(grad->dy[0], grad->in[1 - k], grad->in[k])));
    return GT_OK;
}

/* ---- gradients of one tensor: each a formula in dy, x (saved input) and y (saved output) --------------------------------------- */

#define UNARY_GRAD(name, formula)                                                                                                          \
    gt_status gt__grad_##name(gt__grad *grad) {                                                                                            \
        gt_tensor *dy = grad->dy[0], *x = grad->in[0], *y = grad->out[0];                                                                  \
        (void)x;                                                                                                                           \
        (void)y;                                                                                                                           \
        GT__TRY_TENSOR(grad->dx[0], formula);                                                                                              \
        return GT_OK;                                                                                                                      \
    }

UNARY_GRAD(neg, gt_neg(dy))
UNARY_GRAD(abs, gt_mul(dy, gt__op1(GT__OP_SIGN, x, NULL)))
UNARY_GRAD(square, gt_mul(dy, gt_mul_scalar(x, 2)))
UNARY_GRAD(sqrt, gt_div(gt_mul_scalar(dy, 0.5), y))
UNARY_GRAD(exp, gt_mul(dy, y))
UNARY_GRAD(log, gt_div(dy, x))
UNARY_GRAD(tanh, gt__op2(GT__OP_TANH_BACKWARD, dy, y, NULL))
UNARY_GRAD(sigmoid, gt__op2(GT__OP_SIGMOID_BACKWARD, dy, y, NULL))
UNARY_GRAD(relu, gt__op2(GT__OP_RELU_BACKWARD, dy, y, NULL))
UNARY_GRAD(gelu, gt__op2(GT__OP_GELU_BACKWARD, dy, x, NULL))
UNARY_GRAD(gelu_tanh, gt__op2(GT__OP_GELU_TANH_BACKWARD, dy, x, NULL))
UNARY_GRAD(silu, gt__op2(GT__OP_SILU_BACKWARD, dy, x, NULL))
UNARY_GRAD(add_scalar, dy)
UNARY_GRAD(mul_scalar, gt_mul_scalar(dy, grad->attr->scalar.value))

gt_status gt__grad_pow_scalar(gt__grad *grad) {
    double value = grad->attr->scalar.value;
    if (value == 0) return GT_OK;
    GT__TRY_TENSOR(grad->dx[0], gt_mul(grad->dy[0], gt_mul_scalar(gt_pow_scalar(grad->in[0], value - 1), value)));
    return GT_OK;
}

/* ---- wrappers ---------------------------------------------------------------------------------------------------------------- */

#define BINARY(function, id)                                                                                                               \
    gt_tensor *function(gt_tensor *a, gt_tensor *b) {                                                                                      \
        GT__NEED(a);                                                                                                                       \
        GT__NEED(b);                                                                                                                       \
        return gt__op2(GT__OP_##id, a, b, NULL);                                                                                           \
    }
#define UNARY(function, id)                                                                                                                \
    gt_tensor *function(gt_tensor *x) {                                                                                                    \
        GT__NEED(x);                                                                                                                       \
        return gt__op1(GT__OP_##id, x, NULL);                                                                                              \
    }
#define WITH_SCALAR(function, id)                                                                                                          \
    gt_tensor *function(gt_tensor *x, double value) {                                                                                      \
        GT__NEED(x);                                                                                                                       \
        gt__attrs attr = gt__attrs_zero();                                                                                                 \
        attr.scalar.value = value;                                                                                                         \
        return gt__op1(GT__OP_##id, x, &attr);                                                                                             \
    }

BINARY(gt_add, ADD)
BINARY(gt_sub, SUB)
BINARY(gt_mul, MUL)
BINARY(gt_div, DIV)
BINARY(gt_maximum, MAXIMUM)
BINARY(gt_minimum, MINIMUM)
BINARY(gt_equal, EQUAL)
UNARY(gt_neg, NEG)
UNARY(gt_abs, ABS)
UNARY(gt_square, SQUARE)
UNARY(gt_sqrt, SQRT)
UNARY(gt_exp, EXP)
UNARY(gt_log, LOG)
UNARY(gt_tanh, TANH)
UNARY(gt_sigmoid, SIGMOID)
UNARY(gt_relu, RELU)
UNARY(gt_gelu, GELU)
UNARY(gt_gelu_tanh, GELU_TANH)
UNARY(gt_silu, SILU)
WITH_SCALAR(gt_add_scalar, ADD_SCALAR)
WITH_SCALAR(gt_mul_scalar, MUL_SCALAR)
WITH_SCALAR(gt_pow_scalar, POW_SCALAR)

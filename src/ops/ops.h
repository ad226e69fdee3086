/* What the op families share: checks for shape rules, and short forms for public wrappers and gradient rules.
 *
 * A family's file holds, for each of its ops, the shape rule (gt__shape_*: checks all that a kernel relies on), the gradient rule
 * (gt__grad_*: written with ops) and the public wrapper. */
#ifndef GT_OPS_OPS_H
#define GT_OPS_OPS_H

#include "core/core.h"

/* --- wrappers ----------------------------------------------------------------------------------------------------------------- */
gt_status gt__tensor_usable(const gt_tensor *tensor, const char *function, const char *what, const char *file, int line);
/* A required tensor: NULL keeps the first error. */
#define GT__NEED(tensor)                                                                                                                   \
    do {                                                                                                                                   \
        if (GT__UNLIKELY((tensor) == NULL || (tensor)->ctx == NULL)) {                                                                     \
            (void)gt__tensor_usable((tensor), __func__, #tensor, __FILE__, __LINE__);                                                      \
            return NULL;                                                                                                                   \
        }                                                                                                                                  \
    } while (0)
#define GT__RAISE_OP(tensor, id, code, ...)                                                                                                \
    gt__call_fail(&(const gt__call){.ctx = (tensor)->ctx, .op = GT__OP_##id}, (code), __FILE__, __LINE__, NULL, __VA_ARGS__)
/* In a wrapper, before there is a call: fails in the op's name. */
#define GT__REQUIRE_OP(cond, tensor, id, code, ...)                                                                                        \
    do {                                                                                                                                   \
        if (GT__UNLIKELY(!(cond))) {                                                                                                       \
            (void)GT__RAISE_OP(tensor, id, code, __VA_ARGS__);                                                                             \
            return NULL;                                                                                                                   \
        }                                                                                                                                  \
    } while (0)

static inline gt__attrs gt__attrs_zero(void) {
    gt__attrs attr;
    memset(&attr, 0, sizeof attr);
    return attr;
}

/* The first output of a call that has by-products: those of `want` are made, and kept only by the record. */
gt_tensor *gt__op_with(gt__op_id op, gt_tensor *const *in, int32_t n_in, const gt__attrs *attr, uint32_t want);
/* True if the call is going to be recorded for this input. */
static inline bool gt__will_record(const gt_tensor *x) { return x != NULL && x->ctx != NULL && x->ctx->no_grad == 0 && gt__needs_grad(x); }

/* A further reference to `x`, as an op's result. */
static inline gt_tensor *gt__same(gt_tensor *x) { return gt__scope_add(gt_tensor_retain(x)); }

/* --- shape rules -------------------------------------------------------------------------------------------------------------- */
#define GT__SHAPE_OF(buffer, tensor) gt__meta_text(buffer, sizeof buffer, &(tensor)->meta)

/* The call has `n` inputs, those of the mask `required` are there, and all are of the call's context. */
gt_status gt__check_inputs(const gt__call *call, int32_t n, uint32_t required);
gt_status gt__check_float(const gt__call *call, const gt_tensor *tensor, const char *what);
gt_status gt__check_dtype(const gt__call *call, const gt_tensor *tensor, const char *what, gt_dtype wanted);
gt_status gt__check_same_shape(const gt__call *call, const gt_tensor *a, const char *what_a, const gt_tensor *b, const char *what_b);
/* `tensor` is [size]. */
gt_status gt__check_vector(const gt__call *call, const gt_tensor *tensor, const char *what, int64_t size);
/* A row-major output. */
gt_status gt__out_shape(gt__call *call, int32_t k, gt_dtype dtype, int32_t ndim, const int64_t *shape);
/* An output like a tensor, keeping its layout if that is dense. */
void gt__out_like(gt__call *call, int32_t k, const gt__meta *like);

/* The part that linear's and conv2d's gradients share: *dz is the gradient before the activation, dx[2] the bias's, summed over `bias_axes`. With relu, dy and
 * the saved result are let go of. */
gt_status gt__grad_bias_relu(gt__grad *grad, bool relu, uint32_t bias_axes, gt_tensor **dz);

/* Weight gradients written into `into`, or added to it: a leaf's gradient or another tensor of the weight's shape, f32 for halves (else of their dtype), dense in
 * any order; as the weight lies (linear: row-major, conv2d: channels-last) nothing is copied. No half-precision result stands in between. */
gt_status gt__linear_weight_grad(gt_tensor *dz, gt_tensor *x, gt_tensor *into, bool accumulate); /* [M,N], [M,K]: [N,K] */
gt_status gt__conv_weight_grad(gt_tensor *dz, gt_tensor *x, const gt__attrs *conv, gt_tensor *into, bool accumulate);
/* The same for what gt__grad_bias_relu put in dx[2], which is f32 for halves. */
gt_status gt__bias_grad(gt_tensor *sums, gt_tensor *into, bool accumulate);

/* --- gradient rules ----------------------------------------------------------------------------------------------------------- */
gt_status gt__status_of_null(void);
/* result = expr, or return the error that made it NULL. */
#define GT__TRY_TENSOR(result, expr)                                                                                                       \
    do {                                                                                                                                   \
        (result) = (expr);                                                                                                                 \
        if (GT__UNLIKELY((result) == NULL)) return gt__status_of_null();                                                                   \
    } while (0)

/* Sums over the axes of the mask. NULL in, NULL out, like the wrappers. */
gt_tensor *gt__sum_axes(gt_tensor *x, uint32_t mask, int32_t keep_dims);
/* The gradient of broadcasting: sums what was repeated. `x` itself if nothing was. */
gt_tensor *gt__sum_to_shape(gt_tensor *x, const gt__meta *meta);
/* x with its last two axes swapped; a view. */
gt_tensor *gt__swap_last(gt_tensor *x);
gt_tensor *gt__reshape_to(gt_tensor *x, const gt__meta *meta);
gt_tensor *gt__expand_to(gt_tensor *x, const gt__meta *meta);

/* --- shapes ------------------------------------------------------------------------------------------------------------------- */
/* Strides of `to` (its shape is set) over the memory of `from`, where that is possible without a copy. */
bool gt__reshape_strides(const gt__meta *from, gt__meta *to);
/* NumPy's rule. False if the sizes of an axis differ and neither is 1. */
bool gt__broadcast_shapes(int32_t a_ndim, const int64_t *a, int32_t b_ndim, const int64_t *b, int32_t *ndim, int64_t *shape);

#endif

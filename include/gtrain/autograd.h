/* gtrain/autograd.h: gradients by reverse-mode differentiation of what was computed.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * int main(void) {
 *     gt_context *ctx;
 *     if (gt_context_create(NULL, &ctx) != GT_OK) return 1;
 *     gt_tensor *w = gt_tensor_full(ctx, GT_DTYPE_F32, 0, NULL, 3.0); // no scope: ours to release
 *     gt_tensor_set_requires_grad(w, 1);
 *     gt_scope_begin(ctx);
 *     gt_status status = gt_backward(gt_square(w));
 *     double gradient = 0; // d w^2 / dw = 6
 *     if (status == GT_OK) status = gt_tensor_item(gt_tensor_grad(w), &gradient);
 *     gt_scope_end(ctx);
 *     gt_tensor_release(w);
 *     gt_context_destroy(ctx);
 *     return status == GT_OK && gradient == 6 ? 0 : 1;
 * }
 * @endcode
 *
 * An op on a tensor that requires a gradient is recorded, together with just those inputs and outputs that its gradient rule needs.
 * gt_backward walks the records from the newest to the oldest and adds into the leaves' gradients. Gradients of half-precision
 * leaves are kept in f32.
 */
#ifndef GTRAIN_AUTOGRAD_H
#define GTRAIN_AUTOGRAD_H

#include <gtrain/tensor.h>

GT_EXTERN_C_BEGIN

/* Makes a leaf want a gradient (or not). Floating dtypes. BAD_STATE on the result of a recorded op. @since 0.1 */
GT_API gt_status gt_tensor_set_requires_grad(gt_tensor *tensor, int32_t requires_grad);
GT_API int32_t gt_tensor_requires_grad(const gt_tensor *tensor); /* 1 if backward makes a gradient for it, else 0. @since 0.1 */
/* The accumulated gradient of a leaf, borrowed until the next backward, gt_tensor_zero_grad or release; NULL if there is none
 * (no error is set). @since 0.1 */
GT_API gt_tensor *gt_tensor_grad(gt_tensor *tensor);
/* Forgets the leaf's gradient. @since 0.1 */
GT_API gt_status gt_tensor_zero_grad(gt_tensor *tensor);
/* A handle on the same memory, outside the record. @since 0.1 */
GT_API gt_tensor *gt_tensor_detach(gt_tensor *tensor);

/* Backward from a one-element loss with gradient 1. The record is freed on the way. NULL: the status of the last error.
 * BAD_STATE when nothing requires a gradient, or the record was freed by an earlier backward; SAVED_MODIFIED naming the tensor.
 * On failure the gradients of the leaves it reached are forgotten. @since 0.1 */
GT_API gt_status gt_backward(gt_tensor *loss);
/* Backward from several tensors. gradients[i] has the shape and dtype of tensors[i], or is NULL for 1 (one-element tensors); `gradients` may be
 * NULL. retain_graph != 0 keeps the record for another backward. @since 0.1 */
GT_API gt_status gt_backward_from(gt_tensor *const *tensors, gt_tensor *const *gradients, int32_t count, int32_t retain_graph);

/* Between begin and end nothing is recorded. Regions nest. @since 0.1 */
GT_API gt_status gt_no_grad_begin(gt_context *ctx);
GT_API gt_status gt_no_grad_end(gt_context *ctx);      /* BAD_STATE without a begin. @since 0.1 */
GT_API int32_t gt_grad_enabled(const gt_context *ctx); /* 1 where ops are recorded, 0 between gt_no_grad_begin and its end. @since 0.1 */

/* --- ops of your own ------------------------------------------------------------------------------------------------------------
 * The callbacks get raw device pointers and the stream (a cudaStream_t as void *, NULL on the CPU) on which to queue the work; they must not
 * wait and must not call gtrain with this context. Arrays are row-major. They return GT_OK, or any other status: the op then fails with
 * CALLBACK. */
/* An input, output or gradient of an op of your own. */
typedef struct gt_array {
    void *data;           /* device memory; NULL if it has no elements */
    const int64_t *shape; /* ndim entries */
    gt_dtype dtype;       /* of the elements */
    int32_t ndim;         /* number of axes */
} gt_array;

/* What the callbacks of an op of your own get. */
typedef struct gt_custom_call {
    uint32_t struct_size;
    int32_t n_inputs;  /* of the op */
    int32_t n_outputs; /* of the op */
    int32_t padding;
    void *user;                   /* from gt_custom_op_options */
    void *stream;                 /* on which to queue the work; NULL on the CPU */
    const gt_array *inputs;       /* n_inputs arrays. data is NULL in a backward that was told not to save them */
    const gt_array *outputs;      /* n_outputs arrays: to fill in the forward; in the backward as inputs */
    const gt_array *output_grads; /* backward only: n_outputs arrays; all zeros where nothing flowed back */
    const gt_array *input_grads;  /* backward only: n_inputs arrays to overwrite; data is NULL where no gradient is wanted */
} gt_custom_call;

/* Computes the outputs (forward) or the gradients of the inputs (backward) of `call`. */
typedef gt_status (*gt_custom_fn)(const gt_custom_call *call);
/* Called with inputs[i].shape/dtype set and data NULL. Fills, for each output, out_ndim[i], out_shape[i * GT_MAX_DIMS + axis] and out_dtype[i] (preset to the
 * first input's). */
typedef gt_status (*gt_custom_shape_fn)(const gt_custom_call *call, int32_t *out_ndim, int64_t *out_shape, gt_dtype *out_dtype);

typedef struct gt_custom_op_options {
    uint32_t struct_size;
    int32_t n_outputs;        /* 1 to 3; default 1 */
    const char *name;         /* for messages; copied */
    void *user;               /* handed to the callbacks; must outlive every tensor made by the op, and compiled steps that use it (step.h says when they call) */
    gt_custom_shape_fn shape; /* NULL: every output is like the first input */
    gt_custom_fn forward;     /* required */
    gt_custom_fn backward;    /* NULL: the outputs never require a gradient */
    int32_t saves_inputs;     /* not 0 (default): backward reads inputs */
    int32_t saves_outputs;    /* not 0 (default): backward reads outputs */
} gt_custom_op_options;
GT_API gt_status gt_custom_op_options_init(gt_custom_op_options *options, size_t size); /* @since 0.1 */
/* Runs a user-defined op. inputs[i] are made row-major if they are not. Writes options->n_outputs tensors to `outputs`; they belong to the
 * innermost scope. @since 0.1 */
GT_API gt_status gt_custom_op_call(const gt_custom_op_options *options, gt_tensor *const *inputs, int32_t n_inputs, gt_tensor **outputs);

GT_EXTERN_C_END
#endif

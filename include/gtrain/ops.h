/* gtrain/ops.h: differentiable operations on tensors.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * gt_tensor *two_layers(gt_tensor *x, gt_tensor *w1, gt_tensor *b1, gt_tensor *w2, gt_tensor *b2) {
 *     return gt_linear(gt_relu(gt_linear(x, w1, b1)), w2, b2); // NULL if any of them failed
 * }
 * @endcode
 *
 * Convention. An op returns a new tensor that belongs to the innermost scope, or NULL with the reason in gt_last_error(). An op
 * given NULL for a required tensor returns NULL and keeps the error that is there, so a chain is checked once at its end. All
 * tensors of a call belong to one context (else BAD_DEVICE) and, unless said otherwise, have one dtype (else BAD_DTYPE): f32, f16,
 * bf16 or f64. Half-precision ops compute and sum in f32. Elementwise results keep the inputs' memory layout. No op waits for the
 * device. Negative axes count from the end. NaN passes through every op.
 */
#ifndef GTRAIN_OPS_H
#define GTRAIN_OPS_H

#include <gtrain/tensor.h>

GT_EXTERN_C_BEGIN

/* --- elementwise, two tensors: NumPy broadcasting. maximum/minimum: NaN if either is NaN; where equal, each side gets half of
 * the gradient (as PyTorch). add, sub, mul also take i32 and i64 (no gradient). */
GT_API gt_tensor *gt_add(gt_tensor *a, gt_tensor *b);     /* a + b. @since 0.1 */
GT_API gt_tensor *gt_sub(gt_tensor *a, gt_tensor *b);     /* a - b. @since 0.1 */
GT_API gt_tensor *gt_mul(gt_tensor *a, gt_tensor *b);     /* a * b. @since 0.1 */
GT_API gt_tensor *gt_div(gt_tensor *a, gt_tensor *b);     /* a / b. @since 0.1 */
GT_API gt_tensor *gt_maximum(gt_tensor *a, gt_tensor *b); /* the larger of the two. @since 0.1 */
GT_API gt_tensor *gt_minimum(gt_tensor *a, gt_tensor *b); /* the smaller of the two. @since 0.1 */
/* 1 where equal, else 0, in the inputs' dtype (all dtypes); no gradient. @since 0.1 */
GT_API gt_tensor *gt_equal(gt_tensor *a, gt_tensor *b);

/* --- elementwise, one tensor */
GT_API gt_tensor *gt_neg(gt_tensor *x);                      /* -x. @since 0.1 */
GT_API gt_tensor *gt_abs(gt_tensor *x);                      /* |x|; gradient sign(x), 0 at 0. @since 0.1 */
GT_API gt_tensor *gt_square(gt_tensor *x);                   /* x * x. @since 0.1 */
GT_API gt_tensor *gt_sqrt(gt_tensor *x);                     /* square root; NaN below 0. @since 0.1 */
GT_API gt_tensor *gt_exp(gt_tensor *x);                      /* e ^ x. @since 0.1 */
GT_API gt_tensor *gt_log(gt_tensor *x);                      /* natural logarithm; -inf at 0, NaN below. @since 0.1 */
GT_API gt_tensor *gt_tanh(gt_tensor *x);                     /* hyperbolic tangent. @since 0.1 */
GT_API gt_tensor *gt_sigmoid(gt_tensor *x);                  /* 1 / (1 + e ^ -x). @since 0.1 */
GT_API gt_tensor *gt_relu(gt_tensor *x);                     /* max(x, 0); NaN stays NaN; gradient 0 at 0. @since 0.1 */
GT_API gt_tensor *gt_gelu(gt_tensor *x);                     /* x Phi(x) with erf (Hendrycks & Gimpel 2016). @since 0.1 */
GT_API gt_tensor *gt_gelu_tanh(gt_tensor *x);                /* its tanh approximation, as in GPT-2. @since 0.1 */
GT_API gt_tensor *gt_silu(gt_tensor *x);                     /* x sigmoid(x). @since 0.1 */
GT_API gt_tensor *gt_add_scalar(gt_tensor *x, double value); /* x + value. @since 0.1 */
GT_API gt_tensor *gt_mul_scalar(gt_tensor *x, double value); /* x * value. @since 0.1 */
GT_API gt_tensor *gt_pow_scalar(gt_tensor *x, double value); /* x ^ value. @since 0.1 */

/* --- dtype and layout */
/* Converts between any two dtypes; the gradient is cast back. Float to integer truncates; out of range saturates; NaN gives 0. @since 0.1 */
GT_API gt_tensor *gt_cast(gt_tensor *x, gt_dtype dtype);
/* Row-major copy, or x itself (a new handle) if it is so already. @since 0.1 */
GT_API gt_tensor *gt_contiguous(gt_tensor *x);
/* The same logical tensor stored channels-last; x [N,C,H,W]. @since 0.1 */
GT_API gt_tensor *gt_channels_last(gt_tensor *x);

/* --- shape: views where possible (they share memory with x); any dtype */
/* one entry may be -1; copies if strides demand it. @since 0.1 */
GT_API gt_tensor *gt_reshape(gt_tensor *x, int32_t ndim, const int64_t *shape);
/* the axes from start_axis on as one: [N,C,H,W] from 1: [N, C*H*W]. @since 0.1 */
GT_API gt_tensor *gt_flatten(gt_tensor *x, int32_t start_axis);
GT_API gt_tensor *gt_transpose(gt_tensor *x, int32_t axis0, int32_t axis1);    /* axis0 and axis1 exchanged. @since 0.1 */
GT_API gt_tensor *gt_permute(gt_tensor *x, const int32_t *axes);               /* the axes in another order; ndim entries. @since 0.1 */
GT_API gt_tensor *gt_expand(gt_tensor *x, int32_t ndim, const int64_t *shape); /* broadcast; stride 0 where repeated. @since 0.1 */
/* as Python's x[start:stop:step] on that axis, step > 0. @since 0.1 */
GT_API gt_tensor *gt_slice(gt_tensor *x, int32_t axis, int64_t start, int64_t stop, int64_t step);
/* one behind the other along `axis`; copies. @since 0.1 */
GT_API gt_tensor *gt_concat(gt_tensor *const *tensors, int32_t count, int32_t axis);
/* before[i], after[i]: elements added on each side of axis i (>= 0), filled with value. Floating dtypes. @since 0.1 */
GT_API gt_tensor *gt_pad(gt_tensor *x, const int64_t *before, const int64_t *after, double value);

/* --- reductions over `n_axes` axes (n_axes 0: all). keep_dims != 0 keeps the reduced axes with size 1. Over nothing: sum 0, mean NaN,
 * max is BAD_SHAPE. max: the gradient is shared equally among equal maxima; NaN if any is NaN. sum also takes i32 and i64. */
/* the sum of elements; half precision is summed in f32. @since 0.1 */
GT_API gt_tensor *gt_sum(gt_tensor *x, const int32_t *axes, int32_t n_axes, int32_t keep_dims);
GT_API gt_tensor *gt_mean(gt_tensor *x, const int32_t *axes, int32_t n_axes, int32_t keep_dims); /* the sum over the count. @since 0.1 */
GT_API gt_tensor *gt_max(gt_tensor *x, const int32_t *axes, int32_t n_axes, int32_t keep_dims);  /* the largest element. @since 0.1 */
/* Index (i64) of the first maximum along one axis; NaN counts as the maximum. @since 0.1 */
GT_API gt_tensor *gt_argmax(gt_tensor *x, int32_t axis, int32_t keep_dims);

/* --- linear algebra */
/* [..., M, K] x [..., K, N] = [..., M, N]; leading axes broadcast; both at least 2-dimensional. @since 0.1 */
GT_API gt_tensor *gt_matmul(gt_tensor *a, gt_tensor *b);

/* What is applied to a result in the same op. */
typedef int32_t gt_activation;
enum {
    GT_ACTIVATION_NONE = 0, /* the identity */
    GT_ACTIVATION_RELU = 1  /* gt_relu */
};

/* x [..., in], weight [out, in], bias [out] or NULL: x weight^T + bias. @since 0.1 */
GT_API gt_tensor *gt_linear(gt_tensor *x, gt_tensor *weight, gt_tensor *bias);
/* The same followed by an activation, in one kernel where the device can. @since 0.1 */
GT_API gt_tensor *gt_linear_activation(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, gt_activation activation);

/* --- convolution and pooling: x [N,C,H,W], results stored channels-last */
typedef struct gt_conv2d_options {
    uint32_t struct_size;
    gt_activation activation; /* applied after the bias, default none */
    int64_t stride[2];        /* vertical, horizontal; default 1, 1 */
    int64_t padding[2];       /* zeros on both sides; default 0, 0 */
    int64_t dilation[2];      /* default 1, 1 */
    int64_t groups;           /* default 1 */
} gt_conv2d_options;
GT_API gt_status gt_conv2d_options_init(gt_conv2d_options *options, size_t size); /* @since 0.1 */
/* weight [out, C / groups, kh, kw], bias [out] or NULL, options may be NULL. Cross-correlation, as in PyTorch. @since 0.1 */
GT_API gt_tensor *gt_conv2d(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, const gt_conv2d_options *options);

typedef struct gt_pool2d_options {
    uint32_t struct_size;
    int32_t count_include_pad; /* average: padding counts as zeros; default 1, as in PyTorch */
    int64_t kernel[2];         /* must be set */
    int64_t stride[2];         /* 0 (default): the kernel's size */
    int64_t padding[2];        /* at most half the kernel; default 0 */
} gt_pool2d_options;
GT_API gt_status gt_pool2d_options_init(gt_pool2d_options *options, size_t size); /* @since 0.1 */
/* the largest of each window; the gradient goes to the first. @since 0.1 */
GT_API gt_tensor *gt_max_pool2d(gt_tensor *x, const gt_pool2d_options *options);
GT_API gt_tensor *gt_avg_pool2d(gt_tensor *x, const gt_pool2d_options *options); /* the mean of each window. @since 0.1 */
/* Means of height x width windows, as in PyTorch: [floor(i H / h), ceil((i + 1) H / h)). @since 0.1 */
GT_API gt_tensor *gt_adaptive_avg_pool2d(gt_tensor *x, int64_t height, int64_t width);

/* --- normalisation. Statistics, weight and bias are f32 for half-precision x (f64 for f64). */
/* x [N,C] or [N,C,H,W]; weight, bias [C] or both NULL. training != 0: normalises with the batch's mean and biased variance and moves
 * running_mean, running_var (may both be NULL) by `momentum` towards the batch's mean and unbiased variance. training == 0: uses the
 * running ones, which must be there. BAD_BATCH for one value a channel in training. An empty batch leaves the statistics.
 * Ioffe & Szegedy 2015. @since 0.1 */
GT_API gt_tensor *gt_batch_norm(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, gt_tensor *running_mean, gt_tensor *running_var,
                                int32_t training, double momentum, double epsilon);
/* activation(batch_norm(x) + residual) in one op, with the other arguments as in gt_batch_norm; residual has x's shape and dtype, or is NULL for none. With relu its backward keeps x (and, with a
 * residual, the result) but nothing in between. Parameters and errors as gt_batch_norm's. @since 0.1 */
GT_API gt_tensor *gt_batch_norm_activation(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, gt_tensor *running_mean,
                                           gt_tensor *running_var, gt_tensor *residual, int32_t training, double momentum, double epsilon,
                                           gt_activation activation);
/* Over the last `n_axes` axes; weight, bias of their shape, or NULL. Ba, Kiros & Hinton 2016. @since 0.1 */
GT_API gt_tensor *gt_layer_norm(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, int32_t n_axes, double epsilon);
/* Each element is 0 with the given probability (0 <= p <= 1), else divided by 1 - p. The mask is drawn again in backward, not
 * stored. training == 0 or p == 0: x itself. @since 0.1 */
GT_API gt_tensor *gt_dropout(gt_tensor *x, double probability, int32_t training);

/* --- classification and losses */
GT_API gt_tensor *gt_softmax(gt_tensor *x, int32_t axis);     /* e ^ x over its sum along `axis`. @since 0.1 */
GT_API gt_tensor *gt_log_softmax(gt_tensor *x, int32_t axis); /* its logarithm, without the loss of precision. @since 0.1 */

/* What a loss makes of the losses of its rows or elements. */
typedef int32_t gt_reduction;
enum {
    GT_REDUCTION_MEAN = 0, /* over what counts */
    GT_REDUCTION_SUM = 1,  /* of all */
    GT_REDUCTION_NONE = 2  /* one loss a row or element */
};

typedef struct gt_cross_entropy_options {
    uint32_t struct_size;
    gt_reduction reduction;   /* default mean: over the rows that are not ignored, weighted by class_weights if given */
    int64_t ignore_label;     /* default -100 */
    double label_smoothing;   /* in [0, 1], default 0 */
    gt_tensor *class_weights; /* [classes], f32 (f64 for f64 logits), borrowed, or NULL */
} gt_cross_entropy_options;
GT_API gt_status gt_cross_entropy_options_init(gt_cross_entropy_options *options, size_t size); /* @since 0.1 */
/* logits [N, classes], labels i64, i32 or u8 [N]. The loss is f32 for half-precision logits: a scalar, or [N] for GT_REDUCTION_NONE
 * (0 where ignored). A label that is neither a class nor the ignore value is BAD_LABEL with row, value and class count: at once
 * on the CPU, from the next call that waits on a GPU (that row then counts as ignored). All ignored: 0. `options` may be NULL. @since 0.1 */
GT_API gt_tensor *gt_cross_entropy(gt_tensor *logits, gt_tensor *labels, const gt_cross_entropy_options *options);
/* What gt_cross_entropy divided by for its mean, as a scalar of the loss's dtype on the device: the number of rows that were not ignored or, with class
 * weights, the sum of their weights. For gt_window_micro_end. `loss` is the very result of gt_cross_entropy, before its backward; it must require a
 * gradient. BAD_STATE otherwise. @since 0.1 */
GT_API gt_tensor *gt_cross_entropy_valid(gt_tensor *loss);
/* Squared error of two tensors of one shape, reduced as `reduction` says. @since 0.1 */
GT_API gt_tensor *gt_mse_loss(gt_tensor *x, gt_tensor *target, gt_reduction reduction);
/* weight [rows, width]; indices i64 or i32 of any shape [...]: [..., width]. An index out of range is BAD_LABEL, as above. @since 0.1 */
GT_API gt_tensor *gt_embedding(gt_tensor *weight, gt_tensor *indices);

GT_EXTERN_C_END
#endif

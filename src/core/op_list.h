/* Every op, once: id, name, shape rule, gradient rule (or none), what layout its inputs must have when its kernel runs, and what the gradient of each
 * of its inputs needs to keep. A shape rule is gt__shape_<rule>, a gradient rule gt__grad_<rule>; both are declared from this list.
 *
 *   X(ID, "name", shape rule, gradient rule, layout, saves, cast)
 *
 * layout  ANY: the kernel walks strides; ROW_MAJOR, CHANNELS_LAST (rank 4 inputs; others row-major), MATRIX (each input's last two axes are a row- or
 *         column-major matrix and its leading axes step evenly); VIEW: there is no kernel, the result shares the first input's memory
 * saves   GT__SAVE(for input 0, for input 1, for input 2): masks of GT__IN(k), GT__OUT(k); GT__SAVE_REST has a fourth for all further inputs
 * cast    what autocast does to its floating inputs (gt_cast_policy): NONE, HALF, F32 or PROMOTE
 */
#ifndef GT_CORE_OP_LIST_H
#define GT_CORE_OP_LIST_H

/* clang-format off */
#define GT__OP_LIST(X)                                                                                                                        \
    /* elementwise, two tensors */                                                                                                            \
    X(ADD, "add", binary, add, ANY, GT__SAVE(0, 0, 0), PROMOTE)                                                                               \
    X(SUB, "sub", binary, sub, ANY, GT__SAVE(0, 0, 0), PROMOTE)                                                                               \
    X(MUL, "mul", binary, mul, ANY, GT__SAVE(GT__IN(1), GT__IN(0), 0), PROMOTE)                                                               \
    X(DIV, "div", binary, div, ANY, GT__SAVE(GT__IN(1), GT__IN(1) | GT__OUT(0), 0), PROMOTE)                                                  \
    X(MAXIMUM, "maximum", binary, maximum, ANY, GT__SAVE(GT__IN(0) | GT__IN(1), GT__IN(0) | GT__IN(1), 0), PROMOTE)                           \
    X(MINIMUM, "minimum", binary, minimum, ANY, GT__SAVE(GT__IN(0) | GT__IN(1), GT__IN(0) | GT__IN(1), 0), PROMOTE)                           \
    X(EQUAL, "equal", binary, none, ANY, GT__SAVE(0, 0, 0), PROMOTE)                                                                          \
    X(GREATER, "greater", binary, none, ANY, GT__SAVE(0, 0, 0), PROMOTE)                                                                      \
    /* elementwise, one tensor */                                                                                                             \
    X(NEG, "neg", unary, neg, ANY, GT__SAVE(0, 0, 0), NONE)                                                                                   \
    X(ABS, "abs", unary, abs, ANY, GT__SAVE(GT__IN(0), 0, 0), NONE)                                                                           \
    X(SIGN, "sign", unary, none, ANY, GT__SAVE(0, 0, 0), NONE)                                                                                \
    X(SQUARE, "square", unary, square, ANY, GT__SAVE(GT__IN(0), 0, 0), F32)                                                                   \
    X(SQRT, "sqrt", unary, sqrt, ANY, GT__SAVE(GT__OUT(0), 0, 0), NONE)                                                                       \
    X(EXP, "exp", unary, exp, ANY, GT__SAVE(GT__OUT(0), 0, 0), F32)                                                                           \
    X(LOG, "log", unary, log, ANY, GT__SAVE(GT__IN(0), 0, 0), F32)                                                                            \
    X(TANH, "tanh", unary, tanh, ANY, GT__SAVE(GT__OUT(0), 0, 0), NONE)                                                                       \
    X(SIGMOID, "sigmoid", unary, sigmoid, ANY, GT__SAVE(GT__OUT(0), 0, 0), NONE)                                                              \
    X(RELU, "relu", unary, relu, ANY, GT__SAVE(GT__OUT(0), 0, 0), NONE)                                                                       \
    X(GELU, "gelu", unary, gelu, ANY, GT__SAVE(GT__IN(0), 0, 0), NONE)                                                                        \
    X(GELU_TANH, "gelu_tanh", unary, gelu_tanh, ANY, GT__SAVE(GT__IN(0), 0, 0), NONE)                                                         \
    X(SILU, "silu", unary, silu, ANY, GT__SAVE(GT__IN(0), 0, 0), NONE)                                                                        \
    X(ADD_SCALAR, "add_scalar", unary, add_scalar, ANY, GT__SAVE(0, 0, 0), NONE)               /* attr.scalar.value */                        \
    X(MUL_SCALAR, "mul_scalar", unary, mul_scalar, ANY, GT__SAVE(0, 0, 0), NONE)                                                              \
    X(POW_SCALAR, "pow_scalar", unary, pow_scalar, ANY, GT__SAVE(GT__IN(0), 0, 0), F32)                                                       \
    X(DROPOUT, "dropout", unary, dropout, ANY, GT__SAVE(0, 0, 0), NONE)                        /* attr.random: p in a; its own gradient */    \
    /* their gradients: (dy, y) or (dy, x), one shape */                                                                                      \
    X(TANH_BACKWARD, "tanh_backward", binary, none, ANY, GT__SAVE(0, 0, 0), NONE)              /* dy (1 - y^2) */                             \
    X(SIGMOID_BACKWARD, "sigmoid_backward", binary, none, ANY, GT__SAVE(0, 0, 0), NONE)        /* dy y (1 - y) */                             \
    X(RELU_BACKWARD, "relu_backward", binary, none, ANY, GT__SAVE(0, 0, 0), NONE)              /* y > 0 ? dy : 0; NaN y gives NaN */          \
    X(GELU_BACKWARD, "gelu_backward", binary, none, ANY, GT__SAVE(0, 0, 0), NONE)                                                             \
    X(GELU_TANH_BACKWARD, "gelu_tanh_backward", binary, none, ANY, GT__SAVE(0, 0, 0), NONE)                                                   \
    X(SILU_BACKWARD, "silu_backward", binary, none, ANY, GT__SAVE(0, 0, 0), NONE)                                                             \
    /* dtype, layout, making. FILL, UNIFORM, NORMAL, ARANGE take no input: out[0] is given by the caller, dense */                            \
    X(CAST, "cast", cast, cast, ANY, GT__SAVE(0, 0, 0), NONE)                                  /* attr.layout.dtype */                        \
    X(COPY, "copy", copy, copy, ANY, GT__SAVE(0, 0, 0), NONE)                                  /* strided to strided, converts dtype */       \
    X(FILL, "fill", none, none, ANY, GT__SAVE(0, 0, 0), NONE)                                  /* attr.scalar.value */                        \
    X(UNIFORM, "uniform", none, none, ANY, GT__SAVE(0, 0, 0), NONE)                            /* attr.random: [a, b) */                      \
    X(NORMAL, "normal", none, none, ANY, GT__SAVE(0, 0, 0), NONE)                              /* attr.random: mean a, deviation b */         \
    X(ARANGE, "arange", none, none, ANY, GT__SAVE(0, 0, 0), NONE)                              /* attr.random: start a, step b */             \
    /* shape */                                                                                                                               \
    X(RESHAPE, "reshape", reshape, reshape, VIEW, GT__SAVE(0, 0, 0), NONE)                     /* attr.view */                                \
    X(PERMUTE, "permute", permute, permute, VIEW, GT__SAVE(0, 0, 0), NONE)                     /* attr.axes */                                \
    X(EXPAND, "expand", expand, expand, VIEW, GT__SAVE(0, 0, 0), NONE)                         /* attr.view */                                \
    X(SLICE, "slice", slice, slice, VIEW, GT__SAVE(0, 0, 0), NONE)                             /* attr.slice */                               \
    X(AS_STRIDED, "as_strided", as_strided, as_strided, VIEW, GT__SAVE(0, 0, 0), NONE)         /* attr.view with strides and offset */        \
    X(COPY_INTO, "copy_into", none, copy_into, VIEW, GT__SAVE(0, 0, 0), NONE)                  /* (base, source): a change of a view in place */ \
    X(SLICE_BACKWARD, "slice_backward", slice_backward, none, ANY, GT__SAVE(0, 0, 0), NONE)    /* attr.slice: zeros, dy at the slice */       \
    X(CONCAT, "concat", concat, concat, ANY, GT__SAVE(0, 0, 0), PROMOTE)                       /* attr.slice.axis */                          \
    X(PAD, "pad", pad, pad, ANY, GT__SAVE(0, 0, 0), NONE)                                      /* attr.pad */                                 \
    /* reductions: attr.reduce. out is row-major */                                                                                           \
    X(SUM, "sum", reduce, sum, ANY, GT__SAVE(0, 0, 0), F32)                                                                                   \
    X(MEAN, "mean", reduce, mean, ANY, GT__SAVE(0, 0, 0), NONE)                                                                               \
    X(MAX, "max", reduce, max, ANY, GT__SAVE(GT__IN(0) | GT__OUT(0), 0, 0), NONE)                                                             \
    X(ARGMAX, "argmax", argmax, none, ANY, GT__SAVE(0, 0, 0), NONE)                                                                           \
    /* linear algebra */                                                                                                                      \
    X(MATMUL, "matmul", matmul, matmul, MATRIX, GT__SAVE(GT__IN(1), GT__IN(0), 0), HALF)       /* batch axes already equal in number */       \
    X(LINEAR, "linear", linear, linear, MATRIX, GT__SAVE(GT__IN(1), GT__IN(0), 0), HALF)       /* x [M,K], w [N,K], b or NULL; attr.linear */    \
    X(LINEAR_RELU, "linear_relu", linear, linear, MATRIX, GT__SAVE(GT__IN(1) | GT__OUT(0), GT__IN(0) | GT__OUT(0), GT__OUT(0)), HALF)         \
    /* (dz [M,N], x [M,K]): dz^T x, the gradient of linear's weight; attr.linear. f32 for halves; written into a tensor of the caller's, or added to it */ \
    X(LINEAR_BACKWARD_WEIGHT, "linear_backward_weight", linear_backward_weight, none, MATRIX, GT__SAVE(0, 0, 0), NONE)                        \
    /* (dy, y) of linear_relu or conv2d_relu: dz = relu's gradient, db = sum of dz over all axes but the channel (axis 1) */                                          \
    X(BIAS_RELU_BACKWARD, "bias_relu_backward", bias_relu_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)           \
    /* convolution: attr.conv */                                                                                                              \
    X(CONV2D, "conv2d", conv2d, conv2d, CHANNELS_LAST, GT__SAVE(GT__IN(1), GT__IN(0), 0), HALF)      /* (x, w, b or NULL) */                        \
    X(CONV2D_RELU, "conv2d_relu", conv2d, conv2d, CHANNELS_LAST, GT__SAVE(GT__IN(1) | GT__OUT(0), GT__IN(0) | GT__OUT(0), GT__OUT(0)), HALF)  \
    X(CONV2D_BACKWARD_INPUT, "conv2d_backward_input", conv2d_backward_input, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)     /* (dy, w) */        \
    X(CONV2D_BACKWARD_WEIGHT, "conv2d_backward_weight", conv2d_backward_weight, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)  /* (dy, x) */        \
    /* (dy, y, x) of conv2d_relu: dw, db, in f32 for halves, as bias_relu_backward and conv2d_backward_weight make them one after the other */ \
    X(CONV2D_RELU_BACKWARD_WEIGHT, "conv2d_relu_backward_weight", conv2d_relu_backward_weight, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)  \
    /* pooling: attr.pool. max_pool2d's second output is the place of the maximum in its window: u8, or i32 where the window has over 256 places */ \
    X(MAX_POOL2D, "max_pool2d", max_pool2d, max_pool2d, CHANNELS_LAST, GT__SAVE(GT__OUT(1), 0, 0), NONE)                                      \
    X(MAX_POOL2D_BACKWARD, "max_pool2d_backward", pool2d_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)         /* (dy, index) */    \
    /* (dy, index, y): max_pool2d's gradient of (y > 0 ? dy : 0; NaN y gives NaN), and the sum of that a channel, in f32 for halves. dy and y may both be row-major */ \
    X(MAX_POOL2D_RELU_BACKWARD, "max_pool2d_relu_backward", pool2d_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)                    \
    X(AVG_POOL2D, "avg_pool2d", avg_pool2d, avg_pool2d, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)                                               \
    X(AVG_POOL2D_BACKWARD, "avg_pool2d_backward", pool2d_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)         /* (dy) */           \
    X(ADAPTIVE_AVG_POOL2D, "adaptive_avg_pool2d", adaptive_avg_pool2d, adaptive_avg_pool2d, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)           \
    X(ADAPTIVE_AVG_POOL2D_BACKWARD, "adaptive_avg_pool2d_backward", pool2d_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)            \
    /* normalisation: attr.norm. Outputs: y, mean (batch norm's: and what it lost by rounding, or 0), reciprocal standard deviation (f32, f64 for f64) */                                        \
    X(BATCH_NORM, "batch_norm", batch_norm, batch_norm, CHANNELS_LAST,                                                                        \
      GT__SAVE(GT__IN(0) | GT__IN(1) | GT__OUT(1) | GT__OUT(2), GT__IN(0) | GT__OUT(1) | GT__OUT(2), 0), NONE) /* (x, w, b, running mean, running var) */ \
    X(BATCH_NORM_BACKWARD, "batch_norm_backward", norm_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE) /* (dy, x, w, mean, rstd, dy2): dx, dw, db */ \
    /* relu(batch_norm(x)): the gradient finds where it passed from x again. Outputs as batch_norm's */                                       \
    X(BATCH_NORM_RELU, "batch_norm_relu", batch_norm, batch_norm_relu, CHANNELS_LAST,                                                         \
      GT__SAVE(GT__IN(0) | GT__IN(1) | GT__IN(2) | GT__OUT(1) | GT__OUT(2), GT__IN(0) | GT__IN(1) | GT__IN(2) | GT__OUT(1) | GT__OUT(2),      \
               GT__IN(0) | GT__IN(1) | GT__IN(2) | GT__OUT(1) | GT__OUT(2)), NONE)                                                            \
    /* relu(batch_norm(x) + residual): (x, w, b, running mean, running var, residual). The gradient keeps y, which is the next layer's input */ \
    X(BATCH_NORM_ADD_RELU, "batch_norm_add_relu", batch_norm, batch_norm_add_relu, CHANNELS_LAST,                                             \
      GT__SAVE_REST(GT__IN(0) | GT__IN(1) | GT__OUT(0) | GT__OUT(1) | GT__OUT(2), GT__IN(0) | GT__OUT(0) | GT__OUT(1) | GT__OUT(2),           \
                    GT__OUT(0), GT__OUT(0)), NONE)                                                                                            \
    /* (dy, x, w, b, mean, rstd, dy2): dx, dw, db. The gradient is dy + dy2; dy2 may be NULL or left out, here and in all of batch norm's */ \
    X(BATCH_NORM_RELU_BACKWARD, "batch_norm_relu_backward", norm_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)                      \
    /* (dy, x, w, y, mean, rstd, dy2): dx, dw, db, dresidual */                                                                               \
    X(BATCH_NORM_ADD_RELU_BACKWARD, "batch_norm_add_relu_backward", norm_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)              \
    /* (x, w, b, mean, rstd), attr.norm.activation: to the bit the y that batch_norm or batch_norm_relu made with these statistics */         \
    X(BATCH_NORM_APPLY, "batch_norm_apply", batch_norm_apply, none, CHANNELS_LAST, GT__SAVE(0, 0, 0), NONE)                                   \
    X(LAYER_NORM, "layer_norm", layer_norm, layer_norm, ROW_MAJOR,                                                                            \
      GT__SAVE(GT__IN(0) | GT__IN(1) | GT__OUT(1) | GT__OUT(2), GT__IN(0) | GT__OUT(1) | GT__OUT(2), 0), NONE) /* (x [rows, width], w, b) */        \
    X(LAYER_NORM_BACKWARD, "layer_norm_backward", norm_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0), NONE)     /* (dy, x, w, mean, rstd): dx, dw, db */   \
    /* classification: attr.softmax.axis; rows are taken along it */                                                                          \
    X(SOFTMAX, "softmax", softmax, softmax, ROW_MAJOR, GT__SAVE(GT__OUT(0), 0, 0), F32)                                                       \
    X(SOFTMAX_BACKWARD, "softmax_backward", softmax_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0), NONE)      /* (dy, y) */                     \
    X(LOG_SOFTMAX, "log_softmax", softmax, log_softmax, ROW_MAJOR, GT__SAVE(GT__OUT(0), 0, 0), F32)                                           \
    X(LOG_SOFTMAX_BACKWARD, "log_softmax_backward", softmax_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0), NONE)    /* (dy, y) */                     \
    /* (logits [N,C], labels [N], class weights [C] or NULL): loss, log-sum-exp [N], [sum of weights of valid rows, number of valid rows]; attr.loss */ \
    X(CROSS_ENTROPY, "cross_entropy", cross_entropy, cross_entropy, ROW_MAJOR,                                                                \
      GT__SAVE(GT__IN(0) | GT__IN(1) | GT__IN(2) | GT__OUT(1) | GT__OUT(2), 0, 0), NONE)                                                      \
    /* (dloss, logits, labels, class weights or NULL, log-sum-exp, sums): dlogits */                                                          \
    X(CROSS_ENTROPY_BACKWARD, "cross_entropy_backward", cross_entropy_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0), NONE)                     \
    /* (dloss, logits, labels, class weights or NULL): loss, log-sum-exp, sums, dlogits. Both at once, for a program that knows dloss before (step/pass_loss.c) */ \
    X(CROSS_ENTROPY_BOTH, "cross_entropy_both", cross_entropy_both, none, ROW_MAJOR, GT__SAVE(0, 0, 0), NONE)                                 \
    /* The last layer and its loss in few calls, for a program (step/pass_head.c): (dloss, x [N,K], w [C,K], b or NULL, labels, class weights or NULL): loss,\
       logits, sums, dlogits, as linear and cross_entropy_both make them; attr.loss */                                                        \
    X(LINEAR_CROSS_ENTROPY, "linear_cross_entropy", linear_cross_entropy, none, ROW_MAJOR, GT__SAVE(0, 0, 0), NONE)                           \
    /* (dy [N,C], w [C,K], y [N,K]): dz, db [K], as bias_relu_backward makes them from the product dy w and y, and the sum of dy over rows [C] */\
    X(LINEAR_RELU_BACKWARD, "linear_relu_backward", linear_relu_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0), NONE)                           \
    X(EMBEDDING, "embedding", embedding, embedding, ROW_MAJOR, GT__SAVE(GT__IN(1), 0, 0), NONE)              /* (weight, indices) */           \
    X(EMBEDDING_BACKWARD, "embedding_backward", embedding_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0), NONE)      /* (dy, indices); attr.view: weight's shape; f32 result for halves */ \
    X(CHECKPOINT, "checkpoint", none, none, VIEW, GT__SAVE(0, 0, 0), NONE)                                   /* attr.checkpoint: a segment, see core/checkpoint.h */ \
    X(CUSTOM, "custom", custom, custom, ROW_MAJOR, GT__SAVE(0, 0, 0), NONE)                                  /* attr.custom; saves by its own options */
/* clang-format on */

#endif

/* Every op, once: id, name, shape rule, gradient rule (or none), what layout its inputs must have when its kernel runs, and what the gradient of each
 * of its first three inputs needs to keep. A shape rule is gt__shape_<rule>, a gradient rule gt__grad_<rule>; both are declared from this list.
 *
 *   X(ID, "name", shape rule, gradient rule, layout, saves)
 *
 * layout  ANY: the kernel walks strides; ROW_MAJOR, CHANNELS_LAST (rank 4 inputs; others row-major), MATRIX (each input's last two axes are a row- or
 *         column-major matrix and its leading axes step evenly); VIEW: there is no kernel, the result shares the first input's memory
 * saves   GT__SAVE(for input 0, for input 1, for input 2): masks of GT__IN(k), GT__OUT(k)
 */
#ifndef GT_CORE_OP_LIST_H
#define GT_CORE_OP_LIST_H

/* clang-format off */
#define GT__OP_LIST(X)                                                                                                                        \
    /* elementwise, two tensors */                                                                                                            \
    X(ADD, "add", binary, add, ANY, GT__SAVE(0, 0, 0))                                                                                        \
    X(SUB, "sub", binary, sub, ANY, GT__SAVE(0, 0, 0))                                                                                        \
    X(MUL, "mul", binary, mul, ANY, GT__SAVE(GT__IN(1), GT__IN(0), 0))                                                                        \
    X(DIV, "div", binary, div, ANY, GT__SAVE(GT__IN(1), GT__IN(1) | GT__OUT(0), 0))                                                           \
    X(MAXIMUM, "maximum", binary, maximum, ANY, GT__SAVE(GT__IN(0) | GT__IN(1), GT__IN(0) | GT__IN(1), 0))                                    \
    X(MINIMUM, "minimum", binary, minimum, ANY, GT__SAVE(GT__IN(0) | GT__IN(1), GT__IN(0) | GT__IN(1), 0))                                    \
    X(EQUAL, "equal", binary, none, ANY, GT__SAVE(0, 0, 0))                                                                                   \
    X(GREATER, "greater", binary, none, ANY, GT__SAVE(0, 0, 0))                                                                               \
    /* elementwise, one tensor */                                                                                                             \
    X(NEG, "neg", unary, neg, ANY, GT__SAVE(0, 0, 0))                                                                                         \
    X(ABS, "abs", unary, abs, ANY, GT__SAVE(GT__IN(0), 0, 0))                                                                                 \
    X(SIGN, "sign", unary, none, ANY, GT__SAVE(0, 0, 0))                                                                                      \
    X(SQUARE, "square", unary, square, ANY, GT__SAVE(GT__IN(0), 0, 0))                                                                        \
    X(SQRT, "sqrt", unary, sqrt, ANY, GT__SAVE(GT__OUT(0), 0, 0))                                                                             \
    X(EXP, "exp", unary, exp, ANY, GT__SAVE(GT__OUT(0), 0, 0))                                                                                \
    X(LOG, "log", unary, log, ANY, GT__SAVE(GT__IN(0), 0, 0))                                                                                 \
    X(TANH, "tanh", unary, tanh, ANY, GT__SAVE(GT__OUT(0), 0, 0))                                                                             \
    X(SIGMOID, "sigmoid", unary, sigmoid, ANY, GT__SAVE(GT__OUT(0), 0, 0))                                                                    \
    X(RELU, "relu", unary, relu, ANY, GT__SAVE(GT__OUT(0), 0, 0))                                                                             \
    X(GELU, "gelu", unary, gelu, ANY, GT__SAVE(GT__IN(0), 0, 0))                                                                              \
    X(GELU_TANH, "gelu_tanh", unary, gelu_tanh, ANY, GT__SAVE(GT__IN(0), 0, 0))                                                               \
    X(SILU, "silu", unary, silu, ANY, GT__SAVE(GT__IN(0), 0, 0))                                                                              \
    X(ADD_SCALAR, "add_scalar", unary, add_scalar, ANY, GT__SAVE(0, 0, 0))                     /* attr.scalar.value */                        \
    X(MUL_SCALAR, "mul_scalar", unary, mul_scalar, ANY, GT__SAVE(0, 0, 0))                                                                    \
    X(POW_SCALAR, "pow_scalar", unary, pow_scalar, ANY, GT__SAVE(GT__IN(0), 0, 0))                                                            \
    X(DROPOUT, "dropout", unary, dropout, ANY, GT__SAVE(0, 0, 0))                              /* attr.random: p in a; its own gradient */    \
    /* their gradients: (dy, y) or (dy, x), one shape */                                                                                      \
    X(TANH_BACKWARD, "tanh_backward", binary, none, ANY, GT__SAVE(0, 0, 0))                    /* dy (1 - y^2) */                             \
    X(SIGMOID_BACKWARD, "sigmoid_backward", binary, none, ANY, GT__SAVE(0, 0, 0))              /* dy y (1 - y) */                             \
    X(RELU_BACKWARD, "relu_backward", binary, none, ANY, GT__SAVE(0, 0, 0))                    /* y > 0 ? dy : 0; NaN y gives NaN */          \
    X(GELU_BACKWARD, "gelu_backward", binary, none, ANY, GT__SAVE(0, 0, 0))                                                                   \
    X(GELU_TANH_BACKWARD, "gelu_tanh_backward", binary, none, ANY, GT__SAVE(0, 0, 0))                                                         \
    X(SILU_BACKWARD, "silu_backward", binary, none, ANY, GT__SAVE(0, 0, 0))                                                                   \
    /* dtype, layout, making. FILL, UNIFORM, NORMAL, ARANGE take no input: out[0] is given by the caller, dense */                            \
    X(CAST, "cast", cast, cast, ANY, GT__SAVE(0, 0, 0))                                        /* attr.layout.dtype */                        \
    X(COPY, "copy", copy, copy, ANY, GT__SAVE(0, 0, 0))                                        /* strided to strided, converts dtype */       \
    X(FILL, "fill", none, none, ANY, GT__SAVE(0, 0, 0))                                        /* attr.scalar.value */                        \
    X(UNIFORM, "uniform", none, none, ANY, GT__SAVE(0, 0, 0))                                  /* attr.random: [a, b) */                      \
    X(NORMAL, "normal", none, none, ANY, GT__SAVE(0, 0, 0))                                    /* attr.random: mean a, deviation b */         \
    X(ARANGE, "arange", none, none, ANY, GT__SAVE(0, 0, 0))                                    /* attr.random: start a, step b */             \
    /* shape */                                                                                                                               \
    X(RESHAPE, "reshape", reshape, reshape, VIEW, GT__SAVE(0, 0, 0))                           /* attr.view */                                \
    X(PERMUTE, "permute", permute, permute, VIEW, GT__SAVE(0, 0, 0))                           /* attr.axes */                                \
    X(EXPAND, "expand", expand, expand, VIEW, GT__SAVE(0, 0, 0))                               /* attr.view */                                \
    X(SLICE, "slice", slice, slice, VIEW, GT__SAVE(0, 0, 0))                                   /* attr.slice */                               \
    X(AS_STRIDED, "as_strided", as_strided, as_strided, VIEW, GT__SAVE(0, 0, 0))               /* attr.view with strides and offset */        \
    X(COPY_INTO, "copy_into", none, copy_into, VIEW, GT__SAVE(0, 0, 0))                        /* (base, source): a change of a view in place */ \
    X(SLICE_BACKWARD, "slice_backward", slice_backward, none, ANY, GT__SAVE(0, 0, 0))          /* attr.slice: zeros, dy at the slice */       \
    X(CONCAT, "concat", concat, concat, ANY, GT__SAVE(0, 0, 0))                                /* attr.slice.axis */                          \
    X(PAD, "pad", pad, pad, ANY, GT__SAVE(0, 0, 0))                                            /* attr.pad */                                 \
    /* reductions: attr.reduce. out is row-major */                                                                                           \
    X(SUM, "sum", reduce, sum, ANY, GT__SAVE(0, 0, 0))                                                                                        \
    X(MEAN, "mean", reduce, mean, ANY, GT__SAVE(0, 0, 0))                                                                                     \
    X(MAX, "max", reduce, max, ANY, GT__SAVE(GT__IN(0) | GT__OUT(0), 0, 0))                                                                   \
    X(ARGMAX, "argmax", argmax, none, ANY, GT__SAVE(0, 0, 0))                                                                                 \
    /* linear algebra */                                                                                                                      \
    X(MATMUL, "matmul", matmul, matmul, MATRIX, GT__SAVE(GT__IN(1), GT__IN(0), 0))             /* batch axes already equal in number */       \
    X(LINEAR, "linear", linear, linear, MATRIX, GT__SAVE(GT__IN(1), GT__IN(0), 0))             /* x [M,K], w [N,K], b or NULL; attr.linear */    \
    X(LINEAR_RELU, "linear_relu", linear, linear, MATRIX, GT__SAVE(GT__IN(1) | GT__OUT(0), GT__IN(0) | GT__OUT(0), GT__OUT(0)))               \
    /* (dy, y) of linear_relu or conv2d_relu: dz = relu's gradient, db = sum of dz over all axes but the channel (axis 1) */                                          \
    X(BIAS_RELU_BACKWARD, "bias_relu_backward", bias_relu_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0))                 \
    /* convolution: attr.conv */                                                                                                              \
    X(CONV2D, "conv2d", conv2d, conv2d, CHANNELS_LAST, GT__SAVE(GT__IN(1), GT__IN(0), 0))      /* (x, w, b or NULL) */                        \
    X(CONV2D_RELU, "conv2d_relu", conv2d, conv2d, CHANNELS_LAST, GT__SAVE(GT__IN(1) | GT__OUT(0), GT__IN(0) | GT__OUT(0), GT__OUT(0)))        \
    X(CONV2D_BACKWARD_INPUT, "conv2d_backward_input", conv2d_backward_input, none, CHANNELS_LAST, GT__SAVE(0, 0, 0))     /* (dy, w) */        \
    X(CONV2D_BACKWARD_WEIGHT, "conv2d_backward_weight", conv2d_backward_weight, none, CHANNELS_LAST, GT__SAVE(0, 0, 0))  /* (dy, x) */        \
    /* pooling: attr.pool. max_pool2d's second output is the place of the maximum in its window: u8, or i32 where the window has over 256 places */ \
    X(MAX_POOL2D, "max_pool2d", max_pool2d, max_pool2d, CHANNELS_LAST, GT__SAVE(GT__OUT(1), 0, 0))                                            \
    X(MAX_POOL2D_BACKWARD, "max_pool2d_backward", pool2d_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0))               /* (dy, index) */    \
    X(AVG_POOL2D, "avg_pool2d", avg_pool2d, avg_pool2d, CHANNELS_LAST, GT__SAVE(0, 0, 0))                                                     \
    X(AVG_POOL2D_BACKWARD, "avg_pool2d_backward", pool2d_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0))               /* (dy) */           \
    X(ADAPTIVE_AVG_POOL2D, "adaptive_avg_pool2d", adaptive_avg_pool2d, adaptive_avg_pool2d, CHANNELS_LAST, GT__SAVE(0, 0, 0))                 \
    X(ADAPTIVE_AVG_POOL2D_BACKWARD, "adaptive_avg_pool2d_backward", pool2d_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0))                  \
    /* normalisation: attr.norm. Outputs: y, mean, reciprocal standard deviation (f32, f64 for f64) */                                        \
    X(BATCH_NORM, "batch_norm", batch_norm, batch_norm, CHANNELS_LAST,                                                                        \
      GT__SAVE(GT__IN(0) | GT__IN(1) | GT__OUT(1) | GT__OUT(2), GT__IN(0) | GT__OUT(1) | GT__OUT(2), 0)) /* (x, w, b, running mean, running var) */ \
    X(BATCH_NORM_BACKWARD, "batch_norm_backward", norm_backward, none, CHANNELS_LAST, GT__SAVE(0, 0, 0)) /* (dy, x, w, mean, rstd): dx, dw, db */   \
    X(LAYER_NORM, "layer_norm", layer_norm, layer_norm, ROW_MAJOR,                                                                            \
      GT__SAVE(GT__IN(0) | GT__IN(1) | GT__OUT(1) | GT__OUT(2), GT__IN(0) | GT__OUT(1) | GT__OUT(2), 0)) /* (x [rows, width], w, b) */        \
    X(LAYER_NORM_BACKWARD, "layer_norm_backward", norm_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0))     /* (dy, x, w, mean, rstd): dx, dw, db */   \
    /* classification: attr.softmax.axis; rows are taken along it */                                                                          \
    X(SOFTMAX, "softmax", softmax, softmax, ROW_MAJOR, GT__SAVE(GT__OUT(0), 0, 0))                                                            \
    X(SOFTMAX_BACKWARD, "softmax_backward", softmax_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0))            /* (dy, y) */                     \
    X(LOG_SOFTMAX, "log_softmax", softmax, log_softmax, ROW_MAJOR, GT__SAVE(GT__OUT(0), 0, 0))                                                \
    X(LOG_SOFTMAX_BACKWARD, "log_softmax_backward", softmax_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0))    /* (dy, y) */                     \
    /* (logits [N,C], labels [N], class weights [C] or NULL): loss, log-sum-exp [N], [sum of weights of valid rows, number of valid rows]; attr.loss */ \
    X(CROSS_ENTROPY, "cross_entropy", cross_entropy, cross_entropy, ROW_MAJOR,                                                                \
      GT__SAVE(GT__IN(0) | GT__IN(1) | GT__IN(2) | GT__OUT(1) | GT__OUT(2), 0, 0))                                                            \
    /* (dloss, logits, labels, class weights or NULL, log-sum-exp, sums): dlogits */                                                          \
    X(CROSS_ENTROPY_BACKWARD, "cross_entropy_backward", cross_entropy_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0))                           \
    X(EMBEDDING, "embedding", embedding, embedding, ROW_MAJOR, GT__SAVE(GT__IN(1), 0, 0))                    /* (weight, indices) */           \
    X(EMBEDDING_BACKWARD, "embedding_backward", embedding_backward, none, ROW_MAJOR, GT__SAVE(0, 0, 0))      /* (dy, indices); attr.view: weight's shape; f32 result for halves */ \
    X(CUSTOM, "custom", custom, custom, ROW_MAJOR, GT__SAVE(0, 0, 0))                                        /* attr.custom; saves by its own options */
/* clang-format on */

#endif

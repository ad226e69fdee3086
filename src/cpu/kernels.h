/* Every CPU kernel. One line each; the table in table.c is made from this list. */
#ifndef GT_CPU_KERNELS_H
#define GT_CPU_KERNELS_H

#include "cpu/device.h"

/*   X(ID, op name): the kernel is gt__cpu_<op name> */
#define GT__CPU_KERNEL_LIST(X)                                                                                                             \
    X(ADD, add)                                                                                                                            \
    X(SUB, sub)                                                                                                                            \
    X(MUL, mul)                                                                                                                            \
    X(DIV, div)                                                                                                                            \
    X(MAXIMUM, maximum)                                                                                                                    \
    X(MINIMUM, minimum)                                                                                                                    \
    X(EQUAL, equal)                                                                                                                        \
    X(GREATER, greater)                                                                                                                    \
    X(NEG, neg)                                                                                                                            \
    X(ABS, abs)                                                                                                                            \
    X(SIGN, sign)                                                                                                                          \
    X(SQUARE, square)                                                                                                                      \
    X(SQRT, sqrt)                                                                                                                          \
    X(EXP, exp)                                                                                                                            \
    X(LOG, log)                                                                                                                            \
    X(TANH, tanh)                                                                                                                          \
    X(SIGMOID, sigmoid)                                                                                                                    \
    X(RELU, relu)                                                                                                                          \
    X(GELU, gelu)                                                                                                                          \
    X(GELU_TANH, gelu_tanh)                                                                                                                \
    X(SILU, silu)                                                                                                                          \
    X(ADD_SCALAR, add_scalar)                                                                                                              \
    X(MUL_SCALAR, mul_scalar)                                                                                                              \
    X(POW_SCALAR, pow_scalar)                                                                                                              \
    X(DROPOUT, dropout)                                                                                                                    \
    X(TANH_BACKWARD, tanh_backward)                                                                                                        \
    X(SIGMOID_BACKWARD, sigmoid_backward)                                                                                                  \
    X(RELU_BACKWARD, relu_backward)                                                                                                        \
    X(GELU_BACKWARD, gelu_backward)                                                                                                        \
    X(GELU_TANH_BACKWARD, gelu_tanh_backward)                                                                                              \
    X(SILU_BACKWARD, silu_backward)                                                                                                        \
    X(CAST, cast)                                                                                                                          \
    X(COPY, copy)                                                                                                                          \
    X(FILL, fill)                                                                                                                          \
    X(UNIFORM, uniform)                                                                                                                    \
    X(NORMAL, normal)                                                                                                                      \
    X(ARANGE, arange)                                                                                                                      \
    X(SLICE_BACKWARD, slice_backward)                                                                                                      \
    X(CONCAT, concat)                                                                                                                      \
    X(PAD, pad)                                                                                                                            \
    X(SUM, sum)                                                                                                                            \
    X(MEAN, mean)                                                                                                                          \
    X(MAX, max)                                                                                                                            \
    X(ARGMAX, argmax)                                                                                                                      \
    X(MATMUL, matmul)                                                                                                                      \
    X(LINEAR, linear)                                                                                                                      \
    X(LINEAR_RELU, linear_relu)                                                                                                            \
    X(LINEAR_BACKWARD_WEIGHT, linear_backward_weight)                                                                                      \
    X(BIAS_RELU_BACKWARD, bias_relu_backward)                                                                                              \
    X(CONV2D, conv2d)                                                                                                                      \
    X(CONV2D_RELU, conv2d_relu)                                                                                                            \
    X(CONV2D_BACKWARD_INPUT, conv2d_backward_input)                                                                                        \
    X(CONV2D_BACKWARD_WEIGHT, conv2d_backward_weight)                                                                                      \
    X(CONV2D_RELU_BACKWARD_WEIGHT, conv2d_relu_backward_weight)                                                                            \
    X(MAX_POOL2D, max_pool2d)                                                                                                              \
    X(MAX_POOL2D_BACKWARD, max_pool2d_backward)                                                                                            \
    X(MAX_POOL2D_RELU_BACKWARD, max_pool2d_relu_backward)                                                                                  \
    X(AVG_POOL2D, avg_pool2d)                                                                                                              \
    X(AVG_POOL2D_BACKWARD, avg_pool2d_backward)                                                                                            \
    X(ADAPTIVE_AVG_POOL2D, adaptive_avg_pool2d)                                                                                            \
    X(ADAPTIVE_AVG_POOL2D_BACKWARD, adaptive_avg_pool2d_backward)                                                                          \
    X(BATCH_NORM, batch_norm)                                                                                                              \
    X(BATCH_NORM_BACKWARD, batch_norm_backward)                                                                                            \
    X(BATCH_NORM_RELU, batch_norm_relu)                                                                                                    \
    X(BATCH_NORM_ADD_RELU, batch_norm_add_relu)                                                                                            \
    X(BATCH_NORM_RELU_BACKWARD, batch_norm_relu_backward)                                                                                  \
    X(BATCH_NORM_ADD_RELU_BACKWARD, batch_norm_add_relu_backward)                                                                          \
    X(BATCH_NORM_APPLY, batch_norm_apply)                                                                                                  \
    X(LAYER_NORM, layer_norm)                                                                                                              \
    X(LAYER_NORM_BACKWARD, layer_norm_backward)                                                                                            \
    X(SOFTMAX, softmax)                                                                                                                    \
    X(SOFTMAX_BACKWARD, softmax_backward)                                                                                                  \
    X(LOG_SOFTMAX, log_softmax)                                                                                                            \
    X(LOG_SOFTMAX_BACKWARD, log_softmax_backward)                                                                                          \
    X(CROSS_ENTROPY, cross_entropy)                                                                                                        \
    X(CROSS_ENTROPY_BOTH, cross_entropy_both)                                                                                              \
    X(LINEAR_CROSS_ENTROPY, linear_cross_entropy)                                                                                          \
    X(LINEAR_RELU_BACKWARD, linear_relu_backward)                                                                                          \
    X(CROSS_ENTROPY_BACKWARD, cross_entropy_backward)                                                                                      \
    X(EMBEDDING, embedding)                                                                                                                \
    X(EMBEDDING_BACKWARD, embedding_backward)

#define GT__CPU_DECLARE(id, name) GT__CPU_KERNEL(name);
GT__CPU_KERNEL_LIST(GT__CPU_DECLARE)
#undef GT__CPU_DECLARE

#endif

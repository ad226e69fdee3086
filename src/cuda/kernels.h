/* The library's own CUDA kernels (k_*.cu), as C functions. gt__cuda_<op name> is the kernel of that op in the backend's table; they all
 * queue on the device's compute stream and never wait. Matrix products and convolutions by cuBLASLt and cuDNN are in gemm.c and conv.c. */
#ifndef GT_CUDA_KERNELS_H
#define GT_CUDA_KERNELS_H

#include "backend/backend.h"
#include "core/op.h"

GT_EXTERN_C_BEGIN

#define GT__CUDA_KERNEL(name) gt_status gt__cuda_##name(gt__device *device, const gt__call *call)

/* k_binary.cu: two tensors */
GT__CUDA_KERNEL(add);
GT__CUDA_KERNEL(sub);
GT__CUDA_KERNEL(mul);
GT__CUDA_KERNEL(div);
GT__CUDA_KERNEL(maximum);
GT__CUDA_KERNEL(minimum);
GT__CUDA_KERNEL(equal);
GT__CUDA_KERNEL(greater);
GT__CUDA_KERNEL(tanh_backward);
GT__CUDA_KERNEL(sigmoid_backward);
GT__CUDA_KERNEL(relu_backward);
GT__CUDA_KERNEL(gelu_backward);
GT__CUDA_KERNEL(gelu_tanh_backward);
GT__CUDA_KERNEL(silu_backward);

/* k_unary.cu: one tensor */
GT__CUDA_KERNEL(neg);
GT__CUDA_KERNEL(abs);
GT__CUDA_KERNEL(sign);
GT__CUDA_KERNEL(square);
GT__CUDA_KERNEL(sqrt);
GT__CUDA_KERNEL(exp);
GT__CUDA_KERNEL(log);
GT__CUDA_KERNEL(tanh);
GT__CUDA_KERNEL(sigmoid);
GT__CUDA_KERNEL(relu);
GT__CUDA_KERNEL(gelu);
GT__CUDA_KERNEL(gelu_tanh);
GT__CUDA_KERNEL(silu);
GT__CUDA_KERNEL(add_scalar);
GT__CUDA_KERNEL(mul_scalar);
GT__CUDA_KERNEL(pow_scalar);

/* k_random.cu */
GT__CUDA_KERNEL(dropout);
GT__CUDA_KERNEL(uniform);
GT__CUDA_KERNEL(normal);

/* k_copy.cu */
GT__CUDA_KERNEL(cast);
GT__CUDA_KERNEL(copy);
GT__CUDA_KERNEL(fill);
GT__CUDA_KERNEL(arange);
GT__CUDA_KERNEL(slice_backward);
GT__CUDA_KERNEL(concat);
GT__CUDA_KERNEL(pad);

/* k_reduce.cu, k_argmax.cu */
GT__CUDA_KERNEL(sum);
GT__CUDA_KERNEL(mean);
GT__CUDA_KERNEL(max);
GT__CUDA_KERNEL(argmax);

/* k_bias.cu */
GT__CUDA_KERNEL(bias_relu_backward);

/* k_conv_direct.cu: any shape, every float dtype, no workspace. Slow; for what cuDNN has no engine for. */
GT__CUDA_KERNEL(conv2d_direct); /* CONV2D and CONV2D_RELU */
GT__CUDA_KERNEL(conv2d_backward_input_direct);
GT__CUDA_KERNEL(conv2d_backward_weight_direct);

/* k_conv_few.cu: CONV2D, CONV2D_RELU and the gradients of their weight where the input has few channels and the kernel few taps, by one launch; every float
 * dtype, the same bits every time. `scratch` has gt__cuda_conv2d_few_scratch bytes, which depend on shapes alone; NULL: one block sums. dw must be wanted. */
int32_t gt__cuda_conv2d_few_takes(const gt__call *call);
size_t gt__cuda_conv2d_few_scratch(gt__device *device, const gt__call *call);
gt_status gt__cuda_conv2d_few(gt__device *device, const gt__call *call, void *scratch);
/* k_first_conv_mma.cu: the same on tensor cores, to which those above hand what it takes: halves, up to 128 channels of the result in sixteens, up to 31 weights of each. */
int32_t gt__cuda_first_conv_takes(gt__device *device, const gt__call *call);
size_t gt__cuda_first_conv_scratch(gt__device *device, const gt__call *call);
gt_status gt__cuda_first_conv(gt__device *device, const gt__call *call, void *scratch);
/* k_conv_mma.cu: CONV2D, CONV2D_RELU and their gradients in halves where the image that is read in patches (x, or dy for the gradient of the input) has 16, 32 or 64 channels, on
 * tensor cores; the same bits every time. `scratch` has gt__cuda_conv2d_mma_scratch bytes. */
int32_t gt__cuda_conv2d_mma_takes(gt__device *device, const gt__call *call);
/* Whether it is worth trying where candidates are timed: a weight's gradient that takes all multiprocessors for few pixels is fast alone, but not beside other kernels. */
int32_t gt__cuda_conv2d_mma_pays(gt__device *device, const gt__call *call);
size_t gt__cuda_conv2d_mma_scratch(gt__device *device, const gt__call *call);
gt_status gt__cuda_conv2d_mma(gt__device *device, const gt__call *call, void *scratch);
/* Halves [pixels, from_channels] to [pixels, to_channels] with zeros behind, for what is faster with 4 or 8 channels; `to` is aligned to 16 bytes. */
gt_status gt__cuda_pad_channels(gt__device *device, void *to, const void *from, int64_t pixels, int64_t from_channels, int64_t to_channels);
/* The way back: to [pixels, to_channels] = the first channels of from [pixels, from_channels], or += where `accumulate` (f32 then). */
gt_status gt__cuda_crop_channels(gt__device *device, void *to, gt_dtype to_dtype, const void *from, gt_dtype from_dtype, int64_t pixels,
                                 int64_t from_channels, int64_t to_channels, int32_t accumulate);

/* k_pool.cu */
GT__CUDA_KERNEL(max_pool2d);
GT__CUDA_KERNEL(max_pool2d_backward);
GT__CUDA_KERNEL(max_pool2d_relu_backward); /* k_pool_flat.cu */
GT__CUDA_KERNEL(avg_pool2d);
GT__CUDA_KERNEL(avg_pool2d_backward);
GT__CUDA_KERNEL(adaptive_avg_pool2d);
GT__CUDA_KERNEL(adaptive_avg_pool2d_backward);

/* k_batch_norm.cu, k_batch_norm_backward.cu, k_layer_norm.cu */
GT__CUDA_KERNEL(batch_norm);
GT__CUDA_KERNEL(batch_norm_relu);
GT__CUDA_KERNEL(batch_norm_add_relu);
GT__CUDA_KERNEL(batch_norm_apply);
GT__CUDA_KERNEL(batch_norm_backward);
GT__CUDA_KERNEL(batch_norm_relu_backward);
GT__CUDA_KERNEL(batch_norm_add_relu_backward);
GT__CUDA_KERNEL(layer_norm);
GT__CUDA_KERNEL(layer_norm_backward);

/* k_softmax.cu, k_loss.cu, k_embedding.cu */
GT__CUDA_KERNEL(softmax);
GT__CUDA_KERNEL(softmax_backward);
GT__CUDA_KERNEL(log_softmax);
GT__CUDA_KERNEL(log_softmax_backward);
GT__CUDA_KERNEL(cross_entropy);
GT__CUDA_KERNEL(cross_entropy_backward);
GT__CUDA_KERNEL(cross_entropy_both);
GT__CUDA_KERNEL(embedding);
GT__CUDA_KERNEL(embedding_backward);

/* k_head.cu: at most 32 classes, and 1024 rows */
GT__CUDA_KERNEL(linear_cross_entropy);
GT__CUDA_KERNEL(linear_relu_backward);

/* out[0], row-major = the mean of in[0] over the axes of `mask`. k_reduce.cu */
gt_status gt__cuda_mean_axes(gt__device *device, const gt__call *call, uint32_t mask);

/* k_update.cu, k_grad.cu: backend.h's multi-tensor calls */
gt_status gt__cuda_update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count,
                          const gt__step_control *control);
gt_status gt__cuda_grad_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, double *norm, int32_t *first_bad);
gt_status gt__cuda_grad_clip_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, const double *norm, double max_norm);
gt_status gt__cuda_grad_clip_value(gt__device *device, const gt__grad_list_item *list, int32_t count, double max_value);
gt_status gt__cuda_grad_scale(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_control *control);
gt_status gt__cuda_step_task(gt__device *device, const gt__step_task *task);
gt_status gt__cuda_grad_step_task(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_task *task);
gt_status gt__cuda_mark_not_finite(gt__device *device, const void *data, gt_dtype dtype, int64_t count, uint64_t mark, uint64_t *least);
gt_status gt__cuda_copy_many(gt__device *device, const gt__copy_item *list, int32_t count);
/* k_move.cu. The second sets the arguments of a captured launch of the first: a cudaGraphExec_t and the node. */
gt_status gt__cuda_move_many(gt__device *device, const gt__move *list, int32_t count);
gt_status gt__cuda_move_node(void *ready, void *node, const gt__move *list, int32_t count);

/* In place on y [rows, channels], row-major: y += bias (same dtype; NULL: nothing is added), then relu if `relu`. For when a library's epilogue
 * cannot take them. k_bias.cu */
gt_status gt__cuda_bias_act(gt__device *device, void *y, const void *bias, int64_t rows, int64_t channels, gt_dtype dtype, int32_t relu);
/* sum (f32) = add (f32 or a half), or += add where `accumulate`. k_add_into.cu */
gt_status gt__cuda_add_into(gt__device *device, float *sum, const void *add, gt_dtype dtype, int64_t count, int32_t accumulate);
/* A strided copy between two views of one shape, with dtype conversion; for padding and packing operands. k_copy.cu */
gt_status gt__cuda_copy_strided(gt__device *device, void *destination, const gt__meta *destination_meta, const void *source,
                                const gt__meta *source_meta);

/* What the kernels need from device.c: gt__cuda_stream and gt__cuda_error_slot of cuda_util.h, and: */
int32_t gt__cuda_multiprocessors(const gt__device *device); /* how many the GPU has */
int32_t gt__cuda_capability(const gt__device *device);      /* major * 10 + minor */
/* Counters in device memory for launches whose last block goes on: 0 before and after each of them. Launches of the compute stream take turns;
 * a branch of a capture has counters of its own. */
#define GT__CUDA_COUNTERS 1023
uint32_t *gt__cuda_counters(const gt__device *device);

#undef GT__CUDA_KERNEL
GT_EXTERN_C_END
#endif

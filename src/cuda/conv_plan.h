/* Convolutions as cuDNN operation graphs: from a description to execution plans that can be run. Which plan is best is conv.c's affair. */
#ifndef GT_CUDA_CONV_PLAN_H
#define GT_CUDA_CONV_PLAN_H

#include "cuda/device.h"

typedef enum gt__conv_kind { GT__CONV_FORWARD, GT__CONV_BACKWARD_INPUT, GT__CONV_BACKWARD_WEIGHT } gt__conv_kind;

/* All that a plan depends on. Tensors are dense and channels-last, shapes logical (NCHW). Zero before filling: it is a cache key. */
typedef struct gt__conv_key {
    int64_t x[4], w[4], y[4];
    int64_t stride[2], padding[2], dilation[2];
    uint64_t workspace; /* most bytes that a plan may need */
    int32_t dtype;
    int32_t w_dtype; /* that of w: for the weight's gradient also f32 where the others are halves */
    uint8_t kind;
    uint8_t bias, relu;                            /* forward: what follows the convolution */
    uint8_t align_x, align_w, align_y, align_bias; /* of the addresses, as powers of two */
    uint8_t zero[1];
} gt__conv_key;

/* The addresses of one call. Backward writes x or w and reads the other two; y is then the gradient of the output. */
typedef struct gt__conv_data {
    void *x, *w, *y;
    const void *bias;
} gt__conv_data;

/* Our own kernels. */
typedef enum gt__conv_own { GT__CONV_DIRECT, GT__CONV_FEW, GT__CONV_MMA } gt__conv_own;

typedef struct gt__conv_engine {
    cudnnBackendDescriptor_t plan;   /* NULL: `own` */
    cudnnBackendDescriptor_t config; /* lives as long as the plan */
    cudnnBackendDescriptor_t pack;   /* the addresses last used, so that a step that repeats itself makes it once */
    gt__conv_data bound;
    void *bound_workspace;
    int64_t workspace;
    int32_t fused;    /* bias and relu are in the plan */
    int32_t narrow;   /* the plan gives w in `dtype`, and w_dtype is wanted */
    int32_t own;      /* gt__conv_own, where there is no plan */
    int32_t channels; /* the plan is for x and w with zeros up to so many channels; 0: for them as they are */
} gt__conv_engine;

/* Makes up to `capacity` runnable plans, cuDNN's best guess first; returns how many. Keeps to the context's deterministic and TF32 settings. `fused`: bias
 * and relu as the key says, in the graph. */
int gt__conv_engines(gt__cuda_device *cuda, const gt__conv_key *key, bool fused, gt__conv_engine *engines, int capacity);
/* Queues one run of a plan. */
cudnnStatus_t gt__conv_engine_run(gt__cuda_device *cuda, gt__conv_engine *engine, const gt__conv_data *data, void *workspace);
void gt__conv_engine_free(gt__conv_engine *engine);

#endif

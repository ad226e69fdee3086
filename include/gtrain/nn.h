/* gtrain/nn.h: modules, layers with named parameters that are put together into networks.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * gt_module *small_cnn(gt_context *ctx) {
 *     gt_module *layers[] = {
 *         gt_nn_conv2d(ctx, 1, 32, 3, NULL), gt_nn_relu(ctx),    gt_nn_max_pool2d(ctx, 2, NULL),
 *         gt_nn_flatten(ctx, 1),             gt_nn_dropout(ctx, 0.25), gt_nn_linear(ctx, 32 * 13 * 13, 10, NULL),
 *     };
 *     return gt_nn_sequential_from(ctx, layers, 6); // NULL if any of them failed, with the error of the first that did
 * }
 * @endcode
 *
 * Convention. A constructor returns a module that the caller owns, or NULL with the reason in gt_last_error(). A container takes
 * over what it is given and fails on NULL keeping that error, so a network is written as one expression and checked once. A module has at
 * most one owner; only the root of a tree is destroyed by the caller. All modules of a tree belong to one context.
 *
 * Names are PyTorch's: the children's names joined by dots, then "weight", "bias", "running_mean"…, so that a state dict fits by name.
 * Parameters start as f32 and require a gradient; a tensor's own name (gt_tensor_name) is its dotted name from the root.
 */
#ifndef GTRAIN_NN_H
#define GTRAIN_NN_H

#include <gtrain/ops.h>

GT_EXTERN_C_BEGIN

/* --- modules ------------------------------------------------------------------------------------------------------------------ */
/* Frees a root and all below it. A module that has an owner is left alone; NULL is allowed. Tensors that the caller retained, and records
 * of operations that still need a parameter, keep it alive. May be called after gt_context_destroy. @since 0.1 */
GT_API void gt_module_destroy(gt_module *module);

/* Runs the module on one input, as an op: a new tensor in the innermost scope, or NULL with the error kept; NULL in, NULL out. Errors and
 * memory reports of the ops inside name the module's path. @since 0.1 */
GT_API gt_tensor *gt_module_forward(gt_module *module, gt_tensor *x);
/* The same with several inputs. BAD_ARGUMENT if the module takes another number. @since 0.1 */
GT_API gt_tensor *gt_module_forward_many(gt_module *module, gt_tensor *const *inputs, int32_t count);

/* GT_OK, or the status of the first child that could not be made or added to the tree, with that failure's message raised again. @since 0.1 */
GT_API gt_status gt_module_check(gt_module *module);

/* training != 0: training mode (the mode of a new module), else evaluation: batch_norm uses its running statistics, dropout passes its input
 * on. Applies to all below. @since 0.1 */
GT_API gt_status gt_module_set_training(gt_module *module, int32_t training);
GT_API int32_t gt_module_training(const gt_module *module); /* 1 or 0; 0 for NULL. @since 0.1 */

/* trainable == 0 freezes: no parameter below wants a gradient any more, and gradients that are there are forgotten. @since 0.1 */
GT_API gt_status gt_module_set_trainable(gt_module *module, int32_t trainable);
/* Forgets the gradients of all parameters below. @since 0.1 */
GT_API gt_status gt_module_zero_grad(gt_module *module);
/* Converts floating-point parameters and buffers below; the handles stay the same, gradients are forgotten. Parameters and statistics of norms become
 * f32 for half precision, as the ops want them. All or nothing: OUT_OF_MEMORY leaves everything as it was. An optimizer
 * that was made before refuses to step. @since 0.1 */
GT_API gt_status gt_module_to_dtype(gt_module *module, gt_dtype dtype);

/* --- looking at a module. Names are relative to the module that is asked, borrowed, and valid until something is added below it or it is
 * destroyed; tensors and modules are borrowed too. A tensor registered under two names (tied weights) is listed under both. */
GT_API const char *gt_module_kind(const gt_module *module);        /* "Linear" …; "" for NULL. @since 0.1 */
GT_API const char *gt_module_path(const gt_module *module);        /* "layer1.0.conv1" from the root; "" for the root. @since 0.1 */
GT_API gt_context *gt_module_context(const gt_module *module);     /* borrowed; NULL once it was destroyed. @since 0.1 */
GT_API int32_t gt_module_parameter_count(const gt_module *module); /* tensors; 0 for NULL. @since 0.1 */
/* The parameter of that index and its name; `name` and `tensor` may be NULL. BAD_ARGUMENT for an index outside. @since 0.1 */
GT_API gt_status gt_module_parameter(gt_module *module, int32_t index, const char **name, gt_tensor **tensor);
GT_API int32_t gt_module_buffer_count(const gt_module *module); /* tensors; 0 for NULL. @since 0.1 */
/* as gt_module_parameter. @since 0.1 */
GT_API gt_status gt_module_buffer(gt_module *module, int32_t index, const char **name, gt_tensor **tensor);
/* The parameter or buffer of that name. NOT_FOUND, with the names that there are nearby. @since 0.1 */
GT_API gt_status gt_module_find(gt_module *module, const char *name, gt_tensor **tensor);
GT_API int32_t gt_module_child_count(const gt_module *module); /* direct children. @since 0.1 */
/* as gt_module_parameter. @since 0.1 */
GT_API gt_status gt_module_child(gt_module *module, int32_t index, const char **name, gt_module **child);
/* The module of a dotted path below this one; "" is the module itself. NOT_FOUND. @since 0.1 */
GT_API gt_status gt_module_find_module(gt_module *module, const char *path, gt_module **found);
/* Number of elements and bytes of all parameters, tied ones once. Either may be NULL. @since 0.1 */
GT_API gt_status gt_module_size(gt_module *module, int64_t *elements, uint64_t *bytes);
/* Writes a text in the manner of PyTorch's print, with sizes, cut to `size` bytes and NUL-terminated if size > 0. *needed (may be NULL) gets
 * the bytes of the whole text with its NUL. `buffer` may be NULL if `size` is 0. @since 0.1 */
GT_API gt_status gt_module_describe(gt_module *module, char *buffer, size_t size, size_t *needed);

/* --- layers with parameters: initialised as in PyTorch. Options may be NULL for the defaults. BAD_ARGUMENT naming the number that is out
 * of range; OUT_OF_MEMORY. */
typedef struct gt_nn_linear_options {
    uint32_t struct_size;
    int32_t bias; /* default 1 */
} gt_nn_linear_options;
GT_API gt_status gt_nn_linear_options_init(gt_nn_linear_options *options, size_t size); /* @since 0.1 */
/* x [..., in] -> [..., out], of in_features and out_features. weight [out, in], bias [out]; both U(-1/sqrt(in), 1/sqrt(in)). @since 0.1 */
GT_API gt_module *gt_nn_linear(gt_context *ctx, int64_t in_features, int64_t out_features, const gt_nn_linear_options *options);

typedef struct gt_nn_conv2d_options {
    uint32_t struct_size;
    int32_t bias;        /* default 1 */
    int64_t kernel[2];   /* vertical, horizontal; 0 (default): the constructor's square one */
    int64_t stride[2];   /* default 1, 1 */
    int64_t padding[2];  /* zeros on both sides; default 0, 0 */
    int64_t dilation[2]; /* default 1, 1 */
    int64_t groups;      /* default 1 */
} gt_nn_conv2d_options;
GT_API gt_status gt_nn_conv2d_options_init(gt_nn_conv2d_options *options, size_t size); /* @since 0.1 */
/* A convolution of in_channels with out_channels kernels of kernel x kernel. weight [out, in / groups, kh, kw], stored channels-last; bias [out]; both U(-b, b), b = 1 / sqrt(in / groups * kh * kw). @since 0.1 */
GT_API gt_module *gt_nn_conv2d(gt_context *ctx, int64_t in_channels, int64_t out_channels, int64_t kernel,
                               const gt_nn_conv2d_options *options);

typedef struct gt_nn_batch_norm_options {
    uint32_t struct_size;
    int32_t affine;              /* weight and bias; default 1 */
    int32_t track_running_stats; /* default 1; 0: the batch's own statistics in evaluation too */
    int32_t padding;
    double epsilon;  /* default 1e-5 */
    double momentum; /* default 0.1: how far the running statistics move a step */
} gt_nn_batch_norm_options;
GT_API gt_status gt_nn_batch_norm_options_init(gt_nn_batch_norm_options *options, size_t size); /* @since 0.1 */
/* x [N, C] or [N, C, H, W], C being `features`. weight 1, bias 0 [C]; buffers running_mean 0, running_var 1 [C] and num_batches_tracked, an i64 scalar that is brought
 * up to date when it is asked for by name or number. @since 0.1 */
GT_API gt_module *gt_nn_batch_norm(gt_context *ctx, int64_t features, const gt_nn_batch_norm_options *options);

typedef struct gt_nn_layer_norm_options {
    uint32_t struct_size;
    int32_t affine; /* weight and bias; default 1 */
    double epsilon; /* default 1e-5 */
} gt_nn_layer_norm_options;
GT_API gt_status gt_nn_layer_norm_options_init(gt_nn_layer_norm_options *options, size_t size); /* @since 0.1 */
/* Over the last `n_axes` axes, whose sizes are `shape`. weight 1, bias 0, of that shape. @since 0.1 */
GT_API gt_module *gt_nn_layer_norm(gt_context *ctx, int32_t n_axes, const int64_t *shape, const gt_nn_layer_norm_options *options);

/* Integer indices of any shape [...] -> [..., width]. weight [rows, width], N(0, 1). @since 0.1 */
GT_API gt_module *gt_nn_embedding(gt_context *ctx, int64_t rows, int64_t width);

/* --- layers without parameters -------------------------------------------------------------------------------------------------- */
GT_API gt_module *gt_nn_identity(gt_context *ctx); /* gives back its input. @since 0.1 */
GT_API gt_module *gt_nn_relu(gt_context *ctx);     /* gt_relu as a layer. @since 0.1 */
/* gt_gelu as a layer; tanh_approximation != 0: gt_gelu_tanh. @since 0.1 */
GT_API gt_module *gt_nn_gelu(gt_context *ctx, int32_t tanh_approximation);
GT_API gt_module *gt_nn_silu(gt_context *ctx);    /* gt_silu as a layer. @since 0.1 */
GT_API gt_module *gt_nn_tanh(gt_context *ctx);    /* gt_tanh as a layer. @since 0.1 */
GT_API gt_module *gt_nn_sigmoid(gt_context *ctx); /* gt_sigmoid as a layer. @since 0.1 */
/* gt_max_pool2d as a layer. options->kernel 0 means the square `kernel`, options->stride 0 the kernel's size. @since 0.1 */
GT_API gt_module *gt_nn_max_pool2d(gt_context *ctx, int64_t kernel, const gt_pool2d_options *options);
/* as gt_nn_max_pool2d, with the mean of each window. @since 0.1 */
GT_API gt_module *gt_nn_avg_pool2d(gt_context *ctx, int64_t kernel, const gt_pool2d_options *options);
/* gt_adaptive_avg_pool2d to height x width. @since 0.1 */
GT_API gt_module *gt_nn_adaptive_avg_pool2d(gt_context *ctx, int64_t height, int64_t width);
GT_API gt_module *gt_nn_dropout(gt_context *ctx, double probability); /* gt_dropout with 0 <= probability <= 1. @since 0.1 */
GT_API gt_module *gt_nn_flatten(gt_context *ctx, int32_t start_axis); /* gt_flatten; start_axis 1 keeps the batch axis. @since 0.1 */

/* --- containers. They take over a child that is added, and destroy it if adding fails; only a child that has an owner already (BAD_STATE)
 * is left alone. After a failed add the container refuses to run, with that error: see gt_module_check. */
/* Runs its children in turn, named "0", "1", …; a linear, conv2d or batch_norm followed by relu runs as one op. What a child made is released as soon as the next has
 * used it, unless backward needs it. @since 0.1 */
GT_API gt_module *gt_nn_sequential(gt_context *ctx);
/* The same from `count` children. If one is NULL or fails, all are destroyed and NULL is returned. @since 0.1 */
GT_API gt_module *gt_nn_sequential_from(gt_context *ctx, gt_module *const *children, int32_t count);
GT_API gt_status gt_nn_sequential_add(gt_module *sequential, gt_module *child); /* appends a child, named by its number. @since 0.1 */
/* With a name of its own, without dots, instead of its number. @since 0.1 */
GT_API gt_status gt_nn_sequential_add_named(gt_module *sequential, const char *name, gt_module *child);

typedef struct gt_nn_residual_options {
    uint32_t struct_size;
    gt_activation activation;  /* of the sum, default none */
    const char *body_name;     /* default "body"; "": the body's children are named as if they were the block's own */
    const char *shortcut_name; /* default "shortcut" */
} gt_nn_residual_options;
GT_API gt_status gt_nn_residual_options_init(gt_nn_residual_options *options, size_t size); /* @since 0.1 */
/* activation(body(x) + shortcut(x)), He et al. 2016; the shortcut is gt_nn_identity or, where the body changes the shape, a projection. Takes over
 * both, also on failure. @since 0.1 */
GT_API gt_module *gt_nn_residual(gt_module *body, gt_module *shortcut, const gt_nn_residual_options *options);
/* ResNet's blocks with torchvision's names: conv1, bn1, conv2, bn2 (and conv3, bn3), downsample.0 and .1 where the shape changes.
 * Basic: two 3x3 convolutions, in_channels -> channels. Bottleneck: 1x1, 3x3 (with the stride), 1x1, in_channels -> 4 * width. @since 0.1 */
GT_API gt_module *gt_nn_resnet_basic_block(gt_context *ctx, int64_t in_channels, int64_t channels, int64_t stride);
/* the other block. @since 0.1 */
GT_API gt_module *gt_nn_resnet_bottleneck(gt_context *ctx, int64_t in_channels, int64_t width, int64_t stride);
/* Whole networks for images [N, 3, H, W] -> [N, classes] with torchvision's names: conv1, bn1, layer1.0.conv1 … fc; a block's stride is on its 3x3
 * convolution, convolutions start as N(0, sqrt(2 / fan_out)). @since 0.1 */
GT_API gt_module *gt_nn_resnet18(gt_context *ctx, int64_t classes);
GT_API gt_module *gt_nn_resnet50(gt_context *ctx, int64_t classes); /* the same of 3, 4, 6 and 3 bottlenecks. @since 0.1 */

/* --- modules of your own ----------------------------------------------------------------------------------------------------------
 * `forward` computes with ops and with the forward of its children. What it makes is released when it returns, but for the result (unless backward
 * needs it). It returns NULL after an op failed, keeping that error; NULL without an error is CALLBACK. */
/* `inputs` has `count` tensors. */
typedef gt_tensor *(*gt_nn_forward_fn)(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count);
/* Frees what `user` points to. */
typedef void (*gt_nn_destroy_fn)(void *user);
typedef struct gt_nn_custom_options {
    uint32_t struct_size;
    int32_t n_inputs;         /* default 1; 0: any number from 1 */
    const char *kind;         /* for gt_module_kind and gt_module_describe; copied; default "Custom" */
    void *user;               /* handed to the callbacks */
    gt_nn_forward_fn forward; /* required */
    gt_nn_destroy_fn destroy; /* called once when the module is destroyed; NULL: nothing. Not called if the constructor fails */
} gt_nn_custom_options;
GT_API gt_status gt_nn_custom_options_init(gt_nn_custom_options *options, size_t size); /* @since 0.1 */
/* a module without parameters or children yet. @since 0.1 */
GT_API gt_module *gt_nn_custom(gt_context *ctx, const gt_nn_custom_options *options);
/* The add functions are for modules from gt_nn_custom (else BAD_STATE). Names are not empty, have no dots and are used once in a module.
 * A parameter is a floating-point leaf; it is retained, named and made to require a gradient. keep_f32 != 0: gt_module_to_dtype leaves it f32 in half
 * precision. @since 0.1 */
GT_API gt_status gt_module_add_parameter(gt_module *module, const char *name, gt_tensor *tensor, int32_t keep_f32);
/* As gt_module_add_parameter; a buffer belongs to the state but has no gradient. @since 0.1 */
GT_API gt_status gt_module_add_buffer(gt_module *module, const char *name, gt_tensor *tensor, int32_t keep_f32);
/* Takes over `child`, as containers do. @since 0.1 */
GT_API gt_status gt_module_add_child(gt_module *module, const char *name, gt_module *child);

/* Puts `child` (taken over) in the place of the child of that name of a sequential or a module from gt_nn_custom; NULL: leaves the place empty, and children that follow keep
 * their names. The child that was there becomes a root and the caller's if `removed` is not NULL, else it is destroyed. On failure all is as it was and `child` is still the
 * caller's: NOT_FOUND, BAD_STATE for another kind of module or a child that has an owner, BAD_DEVICE. @since 0.1 */
GT_API gt_status gt_module_replace_child(gt_module *module, const char *name, gt_module *child, gt_module **removed);

/* --- initialisation: overwrites a floating-point tensor from the context's random stream. Fans as in PyTorch: shape [out, in, ...]; fewer than two axes are
 * BAD_SHAPE. */
typedef int32_t gt_nn_fan;
enum {
    GT_NN_FAN_IN = 0, /* keeps the size of activations in the forward */
    GT_NN_FAN_OUT = 1 /* keeps the size of gradients in the backward */
};
GT_API gt_status gt_nn_init_constant(gt_tensor *tensor, double value);                /* every element is `value`. @since 0.1 */
GT_API gt_status gt_nn_init_uniform(gt_tensor *tensor, double low, double high);      /* [low, high). @since 0.1 */
GT_API gt_status gt_nn_init_normal(gt_tensor *tensor, double mean, double deviation); /* N(mean, deviation^2). @since 0.1 */
/* Glorot & Bengio 2010. U(-a, a), a = gain sqrt(6 / (in + out)); N(0, gain sqrt(2 / (in + out))). @since 0.1 */
GT_API gt_status gt_nn_init_xavier_uniform(gt_tensor *tensor, double gain);
GT_API gt_status gt_nn_init_xavier_normal(gt_tensor *tensor, double gain); /* the same with a normal distribution. @since 0.1 */
/* He et al. 2015, for a leaky relu of that negative_slope (relu: 0): g = sqrt(2 / (1 + slope^2)); U(-a, a), a = g sqrt(3 / fan);
 * N(0, g / sqrt(fan)). @since 0.1 */
GT_API gt_status gt_nn_init_kaiming_uniform(gt_tensor *tensor, double negative_slope, gt_nn_fan fan);
/* the same with a normal distribution. @since 0.1 */
GT_API gt_status gt_nn_init_kaiming_normal(gt_tensor *tensor, double negative_slope, gt_nn_fan fan);

GT_EXTERN_C_END
#endif

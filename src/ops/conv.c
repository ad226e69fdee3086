/* 2-d convolution. Images, results and weight gradients are stored channels-last. */
#include "ops/ops.h"

static const char *const axis_name[2] = {"height", "width"};

static gt_status check_options(const gt__call *call) {
    for (int32_t i = 0; i < 2; i++) {
        GT_CALL_REQUIRE(call, call->attr.conv.stride[i] > 0, GT_BAD_ARGUMENT, "stride along the %s is %lld, but must be at least 1",
                        axis_name[i], (long long)call->attr.conv.stride[i]);
        GT_CALL_REQUIRE(call, call->attr.conv.dilation[i] > 0, GT_BAD_ARGUMENT, "dilation along the %s is %lld, but must be at least 1",
                        axis_name[i], (long long)call->attr.conv.dilation[i]);
        GT_CALL_REQUIRE(call, call->attr.conv.padding[i] >= 0, GT_BAD_ARGUMENT, "padding along the %s is %lld, but must not be negative",
                        axis_name[i], (long long)call->attr.conv.padding[i]);
    }
    GT_CALL_REQUIRE(call, call->attr.conv.groups > 0, GT_BAD_ARGUMENT, "groups is %lld, but must be at least 1",
                    (long long)call->attr.conv.groups);
    return GT_OK;
}

/* The size of the result along one axis. */
static gt_status out_size(const gt__call *call, int32_t i, int64_t size, int64_t kernel, int64_t *result) {
    int64_t padded, reach, pad2;
    bool fits = !__builtin_mul_overflow(call->attr.conv.padding[i], (int64_t)2, &pad2) && !__builtin_add_overflow(size, pad2, &padded) &&
                !__builtin_mul_overflow(kernel - 1, call->attr.conv.dilation[i], &reach) && reach < INT64_MAX;
    GT_CALL_REQUIRE(call, fits, GT_BAD_SHAPE, "padding %lld or dilation %lld along the %s is too large",
                    (long long)call->attr.conv.padding[i], (long long)call->attr.conv.dilation[i], axis_name[i]);
    GT_CALL_REQUIRE(call, size > 0 && kernel > 0, GT_BAD_SHAPE,
                    "the %s of the input is %lld and that of the kernel %lld, but both must be at least 1", axis_name[i], (long long)size,
                    (long long)kernel);
    GT_CALL_REQUIRE(call, reach < padded, GT_BAD_SHAPE,
                    "the kernel spans %lld along the %s, more than the padded input's %lld (input %lld, padding %lld)",
                    (long long)(reach + 1), axis_name[i], (long long)padded, (long long)size, (long long)call->attr.conv.padding[i]);
    *result = (padded - reach - 1) / call->attr.conv.stride[i] + 1;
    return GT_OK;
}

/* Checks input and weight against each other and gives the result's shape. */
static gt_status conv_shape(const gt__call *call, const int64_t *x, const int64_t *w, int64_t *y) {
    char tx[GT__SHAPE_TEXT], tw[GT__SHAPE_TEXT];
    int64_t groups = call->attr.conv.groups, channels = 0;
    GT_CALL_REQUIRE(call, !__builtin_mul_overflow(w[1], groups, &channels) && channels == x[1], GT_BAD_SHAPE,
                    "weight expects %lld input channels, input has %lld (input %s, weight %s, groups %lld)", (long long)channels,
                    (long long)x[1], gt__shape_text(tx, sizeof tx, 4, x), gt__shape_text(tw, sizeof tw, 4, w), (long long)groups);
    GT_CALL_REQUIRE(call, x[1] > 0 && w[0] > 0, GT_BAD_SHAPE,
                    "%lld input and %lld output channels, but there must be at least 1 (input %s, weight %s)", (long long)x[1],
                    (long long)w[0], gt__shape_text(tx, sizeof tx, 4, x), gt__shape_text(tw, sizeof tw, 4, w));
    GT_CALL_REQUIRE(call, w[0] % groups == 0, GT_BAD_SHAPE, "groups %lld does not divide the %lld output channels (weight %s)",
                    (long long)groups, (long long)w[0], gt__shape_text(tw, sizeof tw, 4, w));
    y[0] = x[0];
    y[1] = w[0];
    for (int32_t i = 0; i < 2; i++) GT_TRY(out_size(call, i, x[2 + i], w[2 + i], &y[2 + i]));
    return GT_OK;
}

static gt_status channels_last_out(gt__call *call, gt_dtype dtype, const int64_t *shape) {
    call->n_out = 1;
    GT_TRY(gt__out_shape(call, 0, dtype, 4, shape));
    gt__meta_set_channels_last(&call->meta[0]);
    return GT_OK;
}

gt_status gt__shape_conv2d(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 3, 3));
    const gt_tensor *x = call->in[0], *weight = call->in[1], *bias = call->in[2];
    char text[GT__SHAPE_TEXT];
    GT_TRY(gt__check_float(call, x, "the input"));
    GT_TRY(gt__check_dtype(call, weight, "weight", x->meta.dtype));
    GT_CALL_REQUIRE(call, x->meta.ndim == 4, GT_BAD_SHAPE, "the input is %s, but must be [N,C,H,W]", GT__SHAPE_OF(text, x));
    GT_CALL_REQUIRE(call, weight->meta.ndim == 4, GT_BAD_SHAPE, "weight is %s, but must be [out, in / groups, height, width]",
                    GT__SHAPE_OF(text, weight));
    GT_TRY(check_options(call));
    int64_t shape[4];
    GT_TRY(conv_shape(call, x->meta.shape, weight->meta.shape, shape));
    if (bias != NULL) {
        GT_TRY(gt__check_dtype(call, bias, "bias", x->meta.dtype));
        GT_TRY(gt__check_vector(call, bias, "bias", shape[1]));
    }
    return channels_last_out(call, x->meta.dtype, shape);
}

/* (dy, other): `x` and `w` are the shapes of input and weight, one of them that of the gradient. */
static gt_status backward_shape(gt__call *call, const int64_t *x, const int64_t *w) {
    const gt_tensor *dy = call->in[0], *other = call->in[1];
    GT_TRY(gt__check_float(call, dy, "the gradient"));
    GT_TRY(gt__check_dtype(call, other, "the other input", dy->meta.dtype));
    GT_CALL_REQUIRE(call, dy->meta.ndim == 4 && other->meta.ndim == 4, GT_INTERNAL, "rank other than 4");
    GT_TRY(check_options(call));
    int64_t shape[4];
    GT_TRY(conv_shape(call, x, w, shape));
    GT_CALL_REQUIRE(call, memcmp(shape, dy->meta.shape, sizeof shape) == 0, GT_INTERNAL, "gradient of another shape");
    return channels_last_out(call, dy->meta.dtype, call->attr.conv.shape);
}

gt_status gt__shape_conv2d_backward_input(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 2, 3));
    return backward_shape(call, call->attr.conv.shape, call->in[1]->meta.shape);
}

gt_status gt__shape_conv2d_backward_weight(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 2, 3));
    return backward_shape(call, call->in[1]->meta.shape, call->attr.conv.shape);
}

/* (dy, y, x) */
gt_status gt__shape_conv2d_relu_backward_weight(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 3, 7));
    const gt_tensor *dy = call->in[0], *y = call->in[1], *x = call->in[2];
    GT_TRY(gt__check_dtype(call, x, "the input", dy->meta.dtype));
    GT_CALL_REQUIRE(call, x->meta.ndim == 4, GT_INTERNAL, "rank other than 4");
    GT_TRY(gt__check_same_shape(call, dy, "the gradient", y, "the result"));
    GT_TRY(backward_shape(call, x->meta.shape, call->attr.conv.shape));
    gt_dtype wide = gt__dtype_accumulate(dy->meta.dtype);
    GT_TRY(channels_last_out(call, wide, call->attr.conv.shape));
    call->n_out = 2;
    return gt__out_shape(call, 1, wide, 1, call->attr.conv.shape);
}

gt_status gt__grad_conv2d(gt__grad *grad) {
    gt_tensor *dz;
    GT_TRY(gt__grad_bias_relu(grad, grad->op == GT__OP_CONV2D_RELU, 1u << 0 | 1u << 2 | 1u << 3, &dz));
    gt__attrs attr = *grad->attr;
    attr.conv.activation = GT_ACTIVATION_NONE;
    if (grad->needs[1]) {
        memcpy(attr.conv.shape, grad->in_meta[1].shape, sizeof attr.conv.shape);
        gt__sink sink;
        GT_TRY(gt__grad_sink(grad, 1, &sink));
        if (sink.into)
            GT_TRY(gt__grad_sink_done(&sink, gt__conv_weight_grad(dz, grad->in[0], &attr, sink.into, sink.accumulate)));
        else
            GT__TRY_TENSOR(grad->dx[1], gt__op2(GT__OP_CONV2D_BACKWARD_WEIGHT, dz, grad->in[0], &attr));
    }
    gt__grad_done_in(grad, 0);
    if (grad->needs[0]) {
        memcpy(attr.conv.shape, grad->in_meta[0].shape, sizeof attr.conv.shape);
        GT__TRY_TENSOR(grad->dx[0], gt__op2(GT__OP_CONV2D_BACKWARD_INPUT, dz, grad->in[1], &attr));
    }
    return GT_OK;
}

/* ---- public ------------------------------------------------------------------------------------------------------------------ */

static const gt_conv2d_options conv2d_defaults = {
    .struct_size = sizeof(gt_conv2d_options),
    .activation = GT_ACTIVATION_NONE,
    .stride = {1, 1},
    .padding = {0, 0},
    .dilation = {1, 1},
    .groups = 1,
};

gt_status gt_conv2d_options_init(gt_conv2d_options *options, size_t size) {
    return gt__options_write(options, size, &conv2d_defaults, sizeof conv2d_defaults, "gt_conv2d_options");
}

gt_tensor *gt_conv2d(gt_tensor *x, gt_tensor *weight, gt_tensor *bias, const gt_conv2d_options *options) {
    GT__NEED(x);
    GT__NEED(weight);
    gt_conv2d_options o = conv2d_defaults;
    if (options != NULL) GT_TRY_NULL(gt__options_read(&o, sizeof o, options, "gt_conv2d_options"));
    GT__REQUIRE_OP(o.activation == GT_ACTIVATION_NONE || o.activation == GT_ACTIVATION_RELU, x, CONV2D, GT_BAD_ARGUMENT,
                   "%d is not an activation", (int)o.activation);
    gt__attrs attr = gt__attrs_zero();
    for (int32_t i = 0; i < 2; i++) {
        attr.conv.stride[i] = o.stride[i];
        attr.conv.padding[i] = o.padding[i];
        attr.conv.dilation[i] = o.dilation[i];
    }
    attr.conv.groups = o.groups;
    attr.conv.activation = o.activation;
    gt_tensor *in[3] = {x, weight, bias};
    return gt__op(o.activation == GT_ACTIVATION_RELU ? GT__OP_CONV2D_RELU : GT__OP_CONV2D, in, 3, &attr);
}

/* 2-d pooling: maximum, average, adaptive average. Results are stored channels-last. */
#include "ops/ops.h"

static const char *const axis_name[2] = {"height", "width"};

static gt_status image_out(gt__call *call, int32_t k, gt_dtype dtype, const int64_t *shape) {
    GT_TRY(gt__out_shape(call, k, dtype, 4, shape));
    gt__meta_set_channels_last(&call->meta[k]);
    return GT_OK;
}

static gt_status check_image(const gt__call *call, const gt_tensor *x) {
    char text[GT__SHAPE_TEXT];
    GT_TRY(gt__check_float(call, x, "the input"));
    GT_CALL_REQUIRE(call, x->meta.ndim == 4, GT_BAD_SHAPE, "the input is %s, but must be [N,C,H,W]", GT__SHAPE_OF(text, x));
    GT_CALL_REQUIRE(call, x->meta.shape[2] > 0 && x->meta.shape[3] > 0, GT_BAD_SHAPE, "the input %s has no pixels", GT__SHAPE_OF(text, x));
    return GT_OK;
}

/* Checks window, stride and padding against images of shape x; gives the result's shape. */
static gt_status pooled_shape(const gt__call *call, const int64_t *x, int64_t *y) {
    y[0] = x[0];
    y[1] = x[1];
    for (int32_t i = 0; i < 2; i++) {
        int64_t kernel = call->attr.pool.kernel[i], stride = call->attr.pool.stride[i], padding = call->attr.pool.padding[i], padded = 0;
        GT_CALL_REQUIRE(call, kernel > 0, GT_BAD_ARGUMENT, "the kernel's %s is %lld, but must be at least 1", axis_name[i],
                        (long long)kernel);
        GT_CALL_REQUIRE(call, stride > 0, GT_BAD_ARGUMENT, "stride along the %s is %lld, but must be at least 1 (0: the kernel's size)",
                        axis_name[i], (long long)stride);
        GT_CALL_REQUIRE(call, padding >= 0 && padding <= kernel / 2, GT_BAD_ARGUMENT,
                        "padding along the %s is %lld, but must be from 0 to half the kernel's %lld", axis_name[i], (long long)padding,
                        (long long)kernel);
        GT_CALL_REQUIRE(call, !__builtin_add_overflow(x[2 + i], 2 * padding, &padded) && kernel <= padded, GT_BAD_SHAPE,
                        "the kernel's %s is %lld, more than the padded input's (input %lld, padding %lld)", axis_name[i], (long long)kernel,
                        (long long)x[2 + i], (long long)padding);
        y[2 + i] = (padded - kernel) / stride + 1;
    }
    return GT_OK;
}

gt_status gt__shape_avg_pool2d(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    GT_TRY(check_image(call, call->in[0]));
    int64_t shape[4];
    GT_TRY(pooled_shape(call, call->in[0]->meta.shape, shape));
    call->n_out = 1;
    return image_out(call, 0, call->in[0]->meta.dtype, shape);
}

gt_status gt__shape_max_pool2d(gt__call *call) {
    int64_t places = 0;
    GT_TRY(gt__shape_avg_pool2d(call));
    GT_CALL_REQUIRE(call, !__builtin_mul_overflow(call->attr.pool.kernel[0], call->attr.pool.kernel[1], &places) && places <= INT32_MAX,
                    GT_BAD_SHAPE, "a kernel of %lld x %lld has more than 2^31 places", (long long)call->attr.pool.kernel[0],
                    (long long)call->attr.pool.kernel[1]);
    call->n_out = 2;
    return image_out(call, 1, places > 256 ? GT_DTYPE_I32 : GT_DTYPE_U8, call->meta[0].shape);
}

/* attr.pool.kernel is the size of the result. */
gt_status gt__shape_adaptive_avg_pool2d(gt__call *call) {
    GT_TRY(gt__check_inputs(call, 1, 1));
    const gt_tensor *x = call->in[0];
    GT_TRY(check_image(call, x));
    GT_CALL_REQUIRE(call, call->attr.pool.kernel[0] > 0 && call->attr.pool.kernel[1] > 0, GT_BAD_ARGUMENT,
                    "a result of %lld x %lld has no pixels", (long long)call->attr.pool.kernel[0], (long long)call->attr.pool.kernel[1]);
    const int64_t shape[4] = {x->meta.shape[0], x->meta.shape[1], call->attr.pool.kernel[0], call->attr.pool.kernel[1]};
    call->n_out = 1;
    return image_out(call, 0, x->meta.dtype, shape);
}

gt_status gt__shape_pool2d_backward(gt__call *call) {
    bool relu = call->op == GT__OP_MAX_POOL2D_RELU_BACKWARD, max = relu || call->op == GT__OP_MAX_POOL2D_BACKWARD;
    int32_t inputs = relu ? 3 : max ? 2 : 1;
    GT_TRY(gt__check_inputs(call, inputs, (1u << inputs) - 1));
    const gt_tensor *dy = call->in[0];
    GT_TRY(gt__check_float(call, dy, "the gradient"));
    GT_CALL_REQUIRE(call, dy->meta.ndim == 4, GT_INTERNAL, "rank other than 4");
    int64_t shape[4] = {call->attr.pool.shape[0], call->attr.pool.shape[1], call->attr.pool.kernel[0], call->attr.pool.kernel[1]};
    if (call->op != GT__OP_ADAPTIVE_AVG_POOL2D_BACKWARD) GT_TRY(pooled_shape(call, call->attr.pool.shape, shape));
    GT_CALL_REQUIRE(call, memcmp(shape, dy->meta.shape, sizeof shape) == 0, GT_INTERNAL, "gradient of another shape");
    if (max) {
        gt_dtype index = call->attr.pool.kernel[0] * call->attr.pool.kernel[1] > 256 ? GT_DTYPE_I32 : GT_DTYPE_U8;
        GT_TRY(gt__check_dtype(call, call->in[1], "the index", index));
        GT_TRY(gt__check_same_shape(call, dy, "the gradient", call->in[1], "the index"));
    }
    call->n_out = 1;
    GT_TRY(image_out(call, 0, dy->meta.dtype, call->attr.pool.shape));
    if (!relu) return GT_OK;
    GT_TRY(gt__check_dtype(call, call->in[2], "the result", dy->meta.dtype));
    GT_TRY(gt__check_same_shape(call, dy, "the gradient", call->in[2], "the result"));
    call->n_out = 2;
    return gt__out_shape(call, 1, gt__dtype_accumulate(dy->meta.dtype), 1, &dy->meta.shape[1]);
}

static gt_status backward_with(gt__grad *grad, gt__op_id op, gt_tensor *index) {
    gt__attrs attr = *grad->attr;
    memcpy(attr.pool.shape, grad->in_meta[0].shape, sizeof attr.pool.shape);
    gt_tensor *in[2] = {grad->dy[0], index};
    GT__TRY_TENSOR(grad->dx[0], gt__op(op, in, index != NULL ? 2 : 1, &attr));
    return GT_OK;
}

gt_status gt__grad_max_pool2d(gt__grad *grad) { return backward_with(grad, GT__OP_MAX_POOL2D_BACKWARD, grad->out[1]); }
gt_status gt__grad_avg_pool2d(gt__grad *grad) { return backward_with(grad, GT__OP_AVG_POOL2D_BACKWARD, NULL); }
gt_status gt__grad_adaptive_avg_pool2d(gt__grad *grad) { return backward_with(grad, GT__OP_ADAPTIVE_AVG_POOL2D_BACKWARD, NULL); }

/* ---- public ------------------------------------------------------------------------------------------------------------------ */

static const gt_pool2d_options pool2d_defaults = {.struct_size = sizeof(gt_pool2d_options), .count_include_pad = 1};

gt_status gt_pool2d_options_init(gt_pool2d_options *options, size_t size) {
    return gt__options_write(options, size, &pool2d_defaults, sizeof pool2d_defaults, "gt_pool2d_options");
}

static gt_tensor *pool(gt__op_id op, gt_tensor *x, const gt_pool2d_options *options) {
    GT__NEED(x);
    GT_REQUIRE_NULL(options != NULL, GT_BAD_ARGUMENT, "%s: options is NULL, but the kernel's size must be set", gt__op_table[op].name);
    gt_pool2d_options o = pool2d_defaults;
    GT_TRY_NULL(gt__options_read(&o, sizeof o, options, "gt_pool2d_options"));
    gt__attrs attr = gt__attrs_zero();
    for (int32_t i = 0; i < 2; i++) {
        attr.pool.kernel[i] = o.kernel[i];
        attr.pool.stride[i] = o.stride[i] == 0 ? o.kernel[i] : o.stride[i];
        attr.pool.padding[i] = o.padding[i];
    }
    attr.pool.count_include_pad = o.count_include_pad != 0;
    return gt__op_with(op, &x, 1, &attr, op == GT__OP_MAX_POOL2D && gt__will_record(x) ? 3 : 1);
}

gt_tensor *gt_max_pool2d(gt_tensor *x, const gt_pool2d_options *options) { return pool(GT__OP_MAX_POOL2D, x, options); }
gt_tensor *gt_avg_pool2d(gt_tensor *x, const gt_pool2d_options *options) { return pool(GT__OP_AVG_POOL2D, x, options); }

gt_tensor *gt_adaptive_avg_pool2d(gt_tensor *x, int64_t height, int64_t width) {
    GT__NEED(x);
    gt__attrs attr = gt__attrs_zero();
    attr.pool.kernel[0] = height;
    attr.pool.kernel[1] = width;
    return gt__op1(GT__OP_ADAPTIVE_AVG_POOL2D, x, &attr);
}

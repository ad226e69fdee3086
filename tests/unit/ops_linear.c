/* Matrix products, convolution and pooling. */
#include "unit/ops_util.h"

TEST_DEVICES(unit, matmul_and_linear_give_known_values) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_tensor *a = MAKE(ctx, *d, SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *b = MAKE(ctx, *d, SHAPE(3, 2), 1, 0, 0, 1, 2, -1);
        CHECK_VALUES(gt_matmul(a, b), 7, -1, 16, -1);
        gt_tensor *w = MAKE(ctx, *d, SHAPE(2, 3), 1, 0, 2, 0, 1, -1), *bias = MAKE(ctx, *d, SHAPE(2), 0.5, -2);
        CHECK_VALUES(gt_linear(a, w, NULL), 7, -1, 16, -1);
        CHECK_VALUES(gt_linear(a, w, bias), 7.5, -3, 16.5, -3);
        CHECK_VALUES(gt_linear_activation(a, w, bias, GT_ACTIVATION_RELU), 7.5, 0, 16.5, 0);
        CHECK_VALUES(gt_linear(gt_reshape(gt_slice(a, 0, 0, 1, 1), SHAPE(3)), w, bias), 7.5, -3);
        CHECK_SHAPE(gt_linear(gt_reshape(a, SHAPE(2, 1, 1, 3)), w, bias), 2, 1, 1, 2);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, products_over_nothing_are_zero_or_the_bias) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 0)), *w = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(3, 0));
    CHECK_VALUES(gt_matmul(x, gt_transpose(w, 0, 1)), 0, 0, 0, 0, 0, 0);
    CHECK_VALUES(gt_linear(x, w, F32(ctx, SHAPE(3), 1, 2, -3)), 1, 2, -3, 1, 2, -3);
    CHECK_VALUES(gt_linear_activation(x, w, F32(ctx, SHAPE(3), 1, 2, -3), GT_ACTIVATION_RELU), 1, 2, 0, 1, 2, 0);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, nan_passes_through_products) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2, 2), NAN, 1, 1, 1), *w = F32(ctx, SHAPE(1, 2), 0, 1);
    CHECK_VALUES(gt_linear(x, w, NULL), NAN, 1);
    CHECK_VALUES(gt_linear_activation(x, w, F32(ctx, SHAPE(1), 1), GT_ACTIVATION_RELU), NAN, 2);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, matmul_refuses_shapes_that_do_not_fit) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *a = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 3));
    CHECK_REFUSED(gt_matmul(a, a), GT_BAD_SHAPE, "[2,3] x [2,3]: the first has 3 columns, the second 2 rows");
    CHECK_REFUSED(gt_matmul(a, gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(3))), GT_BAD_SHAPE, "at least 2 axes");
    CHECK_REFUSED(gt_matmul(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 2, 3)), gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(3, 3, 1))),
                  GT_BAD_SHAPE, "the leading axes do not broadcast");
    CHECK_REFUSED(gt_matmul(a, gt_tensor_zeros(ctx, GT_DTYPE_F64, SHAPE(3, 2))), GT_BAD_DTYPE, "f64");
    CHECK_REFUSED(gt_matmul(gt_tensor_zeros(ctx, GT_DTYPE_I32, SHAPE(2, 2)), gt_tensor_zeros(ctx, GT_DTYPE_I32, SHAPE(2, 2))), GT_BAD_DTYPE,
                  "i32");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, linear_refuses_by_name_and_number) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(8, 32)), *w = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(10, 64)),
              *good = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(10, 32));
    CHECK_REFUSED(gt_linear(x, w, NULL), GT_BAD_SHAPE, "weight expects 64 input features, input has 32 (input [8,32], weight [10,64])");
    CHECK_REFUSED(gt_linear(gt_reshape(x, SHAPE(2, 4, 32)), w, NULL), GT_BAD_SHAPE, "[2,4,32]");
    CHECK_REFUSED(gt_linear(x, gt_reshape(good, SHAPE(320)), NULL), GT_BAD_SHAPE, "weight is [320]");
    CHECK_REFUSED(gt_linear(x, good, gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(9))), GT_BAD_SHAPE, "bias is [9], but must be [10]");
    CHECK_REFUSED(gt_linear(x, good, gt_tensor_zeros(ctx, GT_DTYPE_F16, SHAPE(10))), GT_BAD_DTYPE, "bias is f16");
    CHECK_REFUSED(gt_linear(x, gt_cast(good, GT_DTYPE_F16), NULL), GT_BAD_DTYPE, "weight is f16");
    CHECK_REFUSED(gt_linear(gt_tensor_zeros(ctx, GT_DTYPE_F32, 0, NULL), good, NULL), GT_BAD_SHAPE, "linear");
    CHECK_REFUSED(gt_linear_activation(x, good, NULL, 5), GT_BAD_ARGUMENT, "5 is not an activation");
    gt_scope_end(ctx);
}

static gt_conv2d_options conv_options(void) {
    gt_conv2d_options o;
    CHECK_OK(gt_conv2d_options_init(&o, sizeof o));
    return o;
}

TEST_DEVICES(unit, conv2d_is_cross_correlation) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_tensor *x = MAKE(ctx, *d, SHAPE(1, 1, 3, 3), 1, 2, 3, 4, 5, 6, 7, 8, 9), *w = MAKE(ctx, *d, SHAPE(1, 1, 2, 2), 1, 0, 0, -2);
        CHECK_VALUES(gt_conv2d(x, w, NULL, NULL), -9, -10, -12, -13);
        gt_conv2d_options o = conv_options();
        o.stride[0] = 2;
        o.padding[0] = 1;
        o.padding[1] = 1;
        o.activation = GT_ACTIVATION_RELU;
        gt_tensor *y = gt_conv2d(x, w, MAKE(ctx, *d, SHAPE(1), 10), &o);
        CHECK_SHAPE(y, 1, 1, 2, 4);
        CHECK_VALUES(y, 8, 6, 4, 10, 0, 0, 0, 16);
        gt_tensor *grouped = MAKE(ctx, *d, SHAPE(1, 2, 1, 2), 1, 2, 3, 4);
        o = conv_options();
        o.groups = 2;
        CHECK_VALUES(gt_conv2d(grouped, MAKE(ctx, *d, SHAPE(2, 1, 1, 1), 10, -1), NULL, &o), 10, 20, -3, -4);
        o = conv_options();
        o.dilation[0] = o.dilation[1] = 2;
        CHECK_VALUES(gt_conv2d(x, w, NULL, &o), 1 - 18);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, conv2d_results_are_channels_last) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 3, 5, 5)), *w = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(4, 3, 3, 3));
    gt_tensor *y = CHECK_TENSOR(gt_conv2d(x, w, NULL, NULL));
    CHECK_EQ_INT(gt_tensor_strides(y)[1], 1);
    gt_pool2d_options o;
    CHECK_OK(gt_pool2d_options_init(&o, sizeof o));
    o.kernel[0] = o.kernel[1] = 2;
    CHECK_EQ_INT(gt_tensor_strides(CHECK_TENSOR(gt_max_pool2d(x, &o)))[1], 1);
    CHECK_EQ_INT(gt_tensor_strides(CHECK_TENSOR(gt_batch_norm(x, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5)))[1], 1);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, conv2d_refuses_by_name_and_number) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(8, 32, 28, 28)), *w = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(16, 64, 3, 3));
    gt_tensor *good = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(16, 32, 3, 3)),
              *small = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(8, 32, 2, 28));
    CHECK_REFUSED(gt_conv2d(x, w, NULL, NULL), GT_BAD_SHAPE, "conv2d: weight expects 64 input channels, input has 32 (input [8,32,28,28]");
    CHECK_REFUSED(gt_conv2d(x, gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(16, 288)), NULL, NULL), GT_BAD_SHAPE, "weight is [16,288]");
    CHECK_REFUSED(gt_conv2d(gt_reshape(x, SHAPE(8, 32, 784)), good, NULL, NULL), GT_BAD_SHAPE, "the input is [8,32,784]");
    CHECK_REFUSED(gt_conv2d(small, good, NULL, NULL), GT_BAD_SHAPE, "the kernel spans 3 along the height, more than the padded input's 2");
    CHECK_REFUSED(gt_conv2d(x, good, gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(1)), NULL), GT_BAD_SHAPE, "bias is [1], but must be [16]");
    CHECK_REFUSED(gt_conv2d(x, gt_cast(good, GT_DTYPE_BF16), NULL, NULL), GT_BAD_DTYPE, "weight is bf16");
    gt_conv2d_options o = conv_options();
    o.stride[1] = 0;
    CHECK_REFUSED(gt_conv2d(x, good, NULL, &o), GT_BAD_ARGUMENT, "stride along the width is 0");
    o = conv_options();
    o.dilation[0] = -1;
    CHECK_REFUSED(gt_conv2d(x, good, NULL, &o), GT_BAD_ARGUMENT, "dilation along the height is -1");
    o = conv_options();
    o.padding[0] = -2;
    CHECK_REFUSED(gt_conv2d(x, good, NULL, &o), GT_BAD_ARGUMENT, "padding along the height is -2");
    o.padding[0] = INT64_MAX;
    CHECK_REFUSED(gt_conv2d(x, good, NULL, &o), GT_BAD_SHAPE, "too large");
    o.padding[0] = 1ll << 40;
    o.padding[1] = 1ll << 40;
    CHECK_REFUSED(gt_conv2d(x, good, NULL, &o), GT_BAD_SHAPE, "conv2d");
    o = conv_options();
    o.dilation[0] = INT64_MAX;
    CHECK_REFUSED(gt_conv2d(x, good, NULL, &o), GT_BAD_SHAPE, "too large");
    o = conv_options();
    o.groups = 0;
    CHECK_REFUSED(gt_conv2d(x, good, NULL, &o), GT_BAD_ARGUMENT, "groups is 0");
    o.groups = 32;
    CHECK_REFUSED(gt_conv2d(x, gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(16, 1, 3, 3)), NULL, &o), GT_BAD_SHAPE,
                  "groups 32 does not divide the 16 output channels");
    o = conv_options();
    o.activation = 9;
    CHECK_REFUSED(gt_conv2d(x, good, NULL, &o), GT_BAD_ARGUMENT, "9 is not an activation");
    o.struct_size = 3;
    CHECK_REFUSED(gt_conv2d(x, good, NULL, &o), GT_BAD_ABI, "gt_conv2d_options");
    CHECK_SHAPE(gt_conv2d(x, good, NULL, NULL), 8, 16, 26, 26); /* and all is well afterwards */
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, pooling_gives_known_values) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_tensor *x = MAKE(ctx, *d, SHAPE(1, 1, 3, 4), 1, 5, 2, 0, 3, 4, 8, 6, -1, -2, -3, -4);
        gt_pool2d_options o;
        CHECK_OK(gt_pool2d_options_init(&o, sizeof o));
        CHECK_EQ_INT(o.count_include_pad, 1);
        o.kernel[0] = o.kernel[1] = 2;
        CHECK_VALUES(gt_max_pool2d(x, &o), 5, 8);
        CHECK_VALUES(gt_avg_pool2d(x, &o), 3.25, 4);
        o.stride[0] = o.stride[1] = 2;
        o.padding[0] = o.padding[1] = 1;
        CHECK_VALUES(gt_max_pool2d(x, &o), 1, 5, 0, 3, 8, 6);
        CHECK_VALUES(gt_avg_pool2d(x, &o), 0.25, 1.75, 0, 0.5, 1.75, 0.5);
        o.count_include_pad = 0;
        CHECK_VALUES(gt_avg_pool2d(x, &o), 1, 3.5, 0, 1, 1.75, 1);
        CHECK_VALUES_TOL(gt_adaptive_avg_pool2d(x, 1, 2), tolerance_of(*d), 10.0 / 6, 1.5);
        CHECK_VALUES(gt_adaptive_avg_pool2d(x, 2, 2), 3.25, 4, 1, 1.75); /* rows 0-1 and 1-2 overlap */
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, max_pool2d_gradient_goes_to_the_first_maximum) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(1, 1, 2, 3), 7, 7, 7, 7, 7, 7);
    gt_pool2d_options o;
    CHECK_OK(gt_pool2d_options_init(&o, sizeof o));
    o.kernel[0] = o.kernel[1] = 2;
    o.stride[0] = o.stride[1] = 1;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_backward(gt_sum(gt_max_pool2d(x, &o), NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(x), 1, 1, 0, 0, 0, 0);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, pooling_refuses_by_number) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 3, 4, 4));
    gt_pool2d_options o;
    CHECK_OK(gt_pool2d_options_init(&o, sizeof o));
    CHECK_REFUSED(gt_max_pool2d(x, &o), GT_BAD_ARGUMENT, "kernel's height is 0");
    CHECK_REFUSED(gt_max_pool2d(x, NULL), GT_BAD_ARGUMENT, "max_pool2d: options is NULL");
    o.kernel[0] = o.kernel[1] = 3;
    o.padding[1] = 2;
    CHECK_REFUSED(gt_avg_pool2d(x, &o), GT_BAD_ARGUMENT, "padding along the width is 2, but must be from 0 to half the kernel's 3");
    o.padding[1] = 0;
    o.stride[0] = -1;
    CHECK_REFUSED(gt_avg_pool2d(x, &o), GT_BAD_ARGUMENT, "stride along the height is -1");
    o.stride[0] = 0;
    o.kernel[1] = 5;
    CHECK_REFUSED(gt_max_pool2d(x, &o), GT_BAD_SHAPE, "the kernel's width is 5, more than the padded input's");
    o.kernel[1] = INT64_MAX;
    CHECK_REFUSED(gt_max_pool2d(x, &o), GT_BAD_SHAPE, "more than");
    CHECK_REFUSED(gt_adaptive_avg_pool2d(x, 0, 2), GT_BAD_ARGUMENT, "0 x 2");
    CHECK_REFUSED(gt_adaptive_avg_pool2d(gt_reshape(x, SHAPE(6, 16)), 1, 1), GT_BAD_SHAPE, "[6,16]");
    CHECK_REFUSED(gt_adaptive_avg_pool2d(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(1, 1, 0, 2)), 1, 1), GT_BAD_SHAPE, "no pixels");
    gt_scope_end(ctx);
}

/* How a sequential is cut into segments. */
#include "core/checkpoint.h"
#include "unit/ops_util.h"

/* On a device without relu's kernel, a layer that is torn from its activation shows. */
TEST(unit, segments_keep_a_layer_and_its_activation_together) {
    gt_context *ctx = test_context(t);
    const gt__backend *real = ctx->backend;
    gt__kernel kernels[GT__OP_COUNT];
    gt__backend without_relu = *real;
    memcpy(kernels, real->kernels, sizeof kernels);
    kernels[GT__OP_RELU] = NULL;
    without_relu.kernels = kernels;
    gt_module *net = gt_nn_sequential(ctx);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, 3, 3, NULL)));
        CHECK_OK(gt_nn_sequential_add(net, gt_nn_relu(ctx)));
        if (i == 1) CHECK_OK(gt_nn_sequential_add(net, gt_nn_tanh(ctx)));
    }
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(1, 3), 1, 2, 3);
    ctx->backend = &without_relu;
    CHECK_STATUS(gt_relu(x) ? GT_OK : gt_last_error()->status, GT_NOT_SUPPORTED);
    for (int segments = 0; segments <= 9; segments++) {
        CHECK_OK(gt_nn_sequential_set_segments(net, segments));
        CHECK_OK(gt_backward(gt_sum(gt_module_forward(net, x), NULL, 0, 0)));
    }
    ctx->backend = real;
    gt_scope_end(ctx);
    gt_module_destroy(net);
}

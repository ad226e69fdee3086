/* Whole small networks against PyTorch: outputs, gradients, running statistics. */
#include "pytorch_values.h"
#include "support.h"

static void check_cnn(test_case *t, gt_dtype dtype, double tol) {
    gt_context *ctx = exact_context(t);
    gt_nn_conv2d_options conv;
    CHECK_OK(gt_nn_conv2d_options_init(&conv, sizeof conv));
    conv.stride[0] = conv.stride[1] = 2;
    conv.padding[0] = conv.padding[1] = 1;
    gt_module *layers[] = {gt_nn_conv2d(ctx, 2, 3, 3, &conv), gt_nn_batch_norm(ctx, 3, NULL), gt_nn_relu(ctx), gt_nn_flatten(ctx, 1),
                           gt_nn_linear(ctx, 12, 4, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 5);
    CHECK(net != NULL);
    CHECK_OK(gt_module_to_dtype(net, dtype));
    fill_parameters(net);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = pattern(ctx, dtype, 4, (const int64_t[]){2, 2, 4, 4});
    const int64_t labels[2] = {1, 3};
    gt_tensor *y = gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, (const int64_t[]){2}, labels, sizeof labels);
    gt_tensor *logits = gt_module_forward(net, x), *loss = gt_cross_entropy(logits, y, NULL);
    CHECK_VALUES(logits, cnn_logits, tol);
    CHECK_VALUES(loss, cnn_loss, tol);
    CHECK_OK(gt_backward(loss));
    CHECK_VALUES(gt_tensor_grad(named(net, "0.weight")), cnn_grad_0_weight, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "0.bias")), cnn_grad_0_bias, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "1.weight")), cnn_grad_1_weight, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "1.bias")), cnn_grad_1_bias, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "4.weight")), cnn_grad_4_weight, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "4.bias")), cnn_grad_4_bias, tol);
    CHECK_VALUES(named(net, "1.running_mean"), cnn_running_mean, tol);
    CHECK_VALUES(named(net, "1.running_var"), cnn_running_var, tol);
    CHECK_NEAR(item(named(net, "1.num_batches_tracked")), 1, 0);
    CHECK_OK(gt_module_set_training(net, 0));
    CHECK_VALUES(gt_module_forward(net, x), cnn_eval_logits, tol);
    CHECK_VALUES(named(net, "1.running_mean"), cnn_running_mean, tol);
    CHECK_NEAR(item(named(net, "1.num_batches_tracked")), 1, 0);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
}

TEST(parity, cnn_matches_pytorch_in_double) { check_cnn(t, GT_DTYPE_F64, 1e-8); }
TEST_DEVICES(parity, cnn_matches_pytorch_in_float) { check_cnn(t, GT_DTYPE_F32, 2e-6); }

static void check_text(test_case *t, gt_dtype dtype, double tol) {
    gt_context *ctx = exact_context(t);
    gt_module *layers[] = {gt_nn_embedding(ctx, 5, 4), gt_nn_layer_norm(ctx, 1, (const int64_t[]){4}, NULL), gt_nn_linear(ctx, 4, 3, NULL),
                           gt_nn_gelu(ctx, 0), gt_nn_linear(ctx, 3, 2, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 5);
    CHECK(net != NULL);
    CHECK_OK(gt_module_to_dtype(net, dtype));
    fill_parameters(net);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t tokens[4] = {0, 3, 3, 1};
    gt_tensor *x = gt_tensor_from_data(ctx, GT_DTYPE_I64, 2, (const int64_t[]){2, 2}, tokens, sizeof tokens);
    gt_tensor *y = gt_module_forward(net, x);
    CHECK_VALUES(y, text_y, tol);
    CHECK_OK(gt_backward(gt_mean(gt_square(y), NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(named(net, "0.weight")), text_grad_0_weight, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "1.weight")), text_grad_1_weight, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "1.bias")), text_grad_1_bias, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "2.weight")), text_grad_2_weight, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "2.bias")), text_grad_2_bias, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "4.weight")), text_grad_4_weight, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "4.bias")), text_grad_4_bias, tol);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
}

TEST(parity, text_network_matches_pytorch_in_double) { check_text(t, GT_DTYPE_F64, 1e-8); }
TEST_DEVICES(parity, text_network_matches_pytorch_in_float) { check_text(t, GT_DTYPE_F32, 2e-6); }

static void check_block(test_case *t, gt_dtype dtype, double tol) {
    gt_context *ctx = exact_context(t);
    gt_module *net = gt_nn_resnet_basic_block(ctx, 2, 3, 2);
    CHECK(net != NULL);
    CHECK_OK(gt_module_to_dtype(net, dtype));
    fill_parameters(net);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *y = gt_module_forward(net, pattern(ctx, dtype, 4, (const int64_t[]){1, 2, 4, 4}));
    CHECK_VALUES(y, block_y, tol);
    CHECK_OK(gt_backward(gt_sum(gt_square(y), NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(named(net, "conv1.weight")), block_grad_conv1, tol);
    CHECK_VALUES(gt_tensor_grad(named(net, "downsample.0.weight")), block_grad_downsample, tol);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
}

TEST(parity, resnet_block_matches_pytorch_in_double) { check_block(t, GT_DTYPE_F64, 1e-8); }
TEST_DEVICES(parity, resnet_block_matches_pytorch_in_float) { check_block(t, GT_DTYPE_F32, 1e-5); }

/* C2: recomputation has no side effect: batch norm's statistics move once, in the training-mode forward, with or without a backward. */
#include "unit/ops_util.h"

static gt_tensor *buffer(gt_module *net, const char *name) {
    gt_tensor *found = NULL;
    CHECK_OK(gt_module_find(net, name, &found));
    return found;
}

TEST_DEVICES(contract, C2_statistics_move_once) {
    gt_context *ctx = test_context(t);
    for (int backward = 0; backward < 3; backward++) {
        gt_module *net = gt_nn_sequential(ctx);
        CHECK_OK(gt_nn_sequential_add_named(net, "norm", gt_nn_batch_norm(ctx, 1, NULL)));
        CHECK_OK(gt_module_set_checkpointing(net, 1));
        CHECK_EQ_INT(gt_module_checkpointing(net), 1);
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *x = F32(ctx, SHAPE(2, 1), 0, 2), *weights = F32(ctx, SHAPE(2, 1), 1, 3);
        gt_tensor *loss = CHECK_TENSOR(gt_sum(gt_mul(gt_module_forward(net, x), weights), NULL, 0, 0));
        for (int i = 0; i < backward; i++) CHECK_OK(gt_backward_from(&loss, NULL, 1, i + 1 < backward));
        CHECK_VALUES_TOL(buffer(net, "norm.running_mean"), 1e-6, .1);
        CHECK_VALUES_TOL(buffer(net, "norm.running_var"), 1e-6, .9 + .1 * 2);
        CHECK_VALUES(buffer(net, "norm.num_batches_tracked"), 1);
        if (backward) CHECK_VALUES_TOL(gt_tensor_grad(buffer(net, "norm.weight")), 1e-4, backward * 2);
        CHECK_OK(gt_scope_end(ctx));
        gt_module_destroy(net);
    }
}

TEST_DEVICES(contract, C2_evaluation_between_forward_and_backward_changes_nothing) {
    gt_context *ctx = test_context(t);
    gt_module *net = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add_named(net, "norm", gt_nn_batch_norm(ctx, 1, NULL)));
    CHECK_OK(gt_nn_sequential_add_named(net, "drop", gt_nn_dropout(ctx, 0.5)));
    CHECK_OK(gt_module_set_checkpointing(net, 1));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = F32(ctx, SHAPE(4, 1), 1, 2, 3, 4), *y = CHECK_TENSOR(gt_module_forward(net, x));
    CHECK_OK(gt_module_set_training(net, 0)); /* the second run is in the mode of the first all the same */
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    CHECK_EQ_INT(gt_module_training(net), 0);
    float values[4], kept = 0, gradient;
    CHECK_OK(gt_tensor_read(y, values, sizeof values));
    for (int i = 0; i < 4; i++) kept += values[i] != 0 ? 2 : 0;
    CHECK_OK(gt_tensor_read(gt_tensor_grad(buffer(net, "norm.bias")), &gradient, sizeof gradient));
    CHECK_NEAR(gradient, kept, 1e-6);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
}

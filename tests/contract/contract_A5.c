/* Contract A3, A5: batch statistics move once a micro-batch; a parameter without a gradient in a window is left alone. */
#include "harness/test.h"

#include <gtrain/gtrain.h>
#include <math.h>

TEST_DEVICES(contract, A3_batch_norm_updates_once_a_micro_batch) {
    gt_context *ctx = test_context(t);
    gt_module *m = gt_nn_batch_norm(ctx, 1, NULL);
    CHECK(m != NULL);
    CHECK_OK(gt_scope_begin(ctx));
    static const float batches[2][2] = {{0, 2}, {4, 6}};
    for (int i = 0; i < 2; ++i) {
        gt_tensor *x = gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 1}, batches[i], sizeof batches[i]);
        CHECK_OK(gt_backward(gt_sum(gt_square(gt_module_forward(m, x)), NULL, 0, 0)));
    }
    gt_tensor *mean, *variance, *count;
    double value;
    CHECK_OK(gt_module_find(m, "running_mean", &mean));
    CHECK_OK(gt_module_find(m, "running_var", &variance));
    CHECK_OK(gt_module_find(m, "num_batches_tracked", &count));
    CHECK_OK(gt_tensor_item(mean, &value));
    CHECK_NEAR(value, 0.59, 1e-6);
    CHECK_OK(gt_tensor_item(variance, &value));
    CHECK_NEAR(value, 1.19, 1e-6);
    CHECK_OK(gt_tensor_item(count, &value));
    CHECK_NEAR(value, 2, 0);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(m);
}

static double value_of(gt_tensor *w) {
    double value = NAN;
    CHECK_OK(gt_tensor_item(w, &value));
    return value;
}

/* One window: gradient 1 for each of the chosen. */
static void window(gt_optimizer *optimizer, gt_tensor *a, gt_tensor *b) {
    gt_context *ctx = gt_tensor_context(a ? a : b);
    CHECK_OK(gt_optimizer_zero_grad(optimizer));
    CHECK_OK(gt_scope_begin(ctx));
    if (a) CHECK_OK(gt_backward(gt_mul_scalar(a, 1)));
    if (b) CHECK_OK(gt_backward(gt_mul_scalar(b, 1)));
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_optimizer_step(optimizer));
}

static gt_tensor *leaf(gt_context *ctx, double value) {
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 0, NULL, value));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    return w;
}

TEST_DEVICES(contract, A5_momentum_does_not_move_a_parameter_without_a_gradient) {
    gt_context *ctx = test_context(t);
    gt_tensor *a = leaf(ctx, 0), *b = leaf(ctx, 0);
    gt_optimizer_options o;
    gt_optimizer *optimizer;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    o.learning_rate = 0.1;
    o.momentum = 0.9;
    o.weight_decay = 0.5;
    CHECK_OK(gt_optimizer_create(&o, (gt_tensor *[]){a, b}, 2, &optimizer));
    window(optimizer, a, b); /* both: buffer 1, value -.1 */
    CHECK_NEAR(value_of(a), -0.1, 1e-6);
    CHECK_NEAR(value_of(b), -0.1, 1e-6);
    window(optimizer, a, NULL);
    window(optimizer, a, NULL);
    CHECK_NEAR(value_of(b), -0.1, 1e-6); /* neither momentum nor weight decay */
    window(optimizer, NULL, b);          /* gradient 1 - .05, buffer .9 + .95 */
    CHECK_NEAR(value_of(b), -0.285, 1e-6);
    gt_optimizer_destroy(optimizer);
    gt_tensor_release(a);
    gt_tensor_release(b);
}

/* Adam's first step is the learning rate thanks to its bias corrections, whenever a parameter takes it. */
TEST_DEVICES(contract, A5_step_counts_are_kept_per_parameter) {
    gt_context *ctx = test_context(t);
    gt_tensor *a = leaf(ctx, 0), *b = leaf(ctx, 0), *alone = leaf(ctx, 0);
    gt_optimizer_options o;
    gt_optimizer *both, *one;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAM));
    o.learning_rate = 0.1;
    CHECK_OK(gt_optimizer_create(&o, (gt_tensor *[]){a, b}, 2, &both));
    CHECK_OK(gt_optimizer_create(&o, &alone, 1, &one));
    for (int i = 0; i < 10; ++i) window(both, a, NULL);
    CHECK_NEAR(value_of(b), 0, 0);
    window(both, a, b);
    CHECK_NEAR(value_of(b), -0.1, 1e-6);
    /* What happened to a does not matter: b moves as if it were alone. */
    window(both, NULL, b);
    window(one, alone, NULL);
    window(one, alone, NULL);
    CHECK_NEAR(value_of(b), value_of(alone), 0);
    gt_optimizer_destroy(both);
    gt_optimizer_destroy(one);
    gt_tensor_release(a);
    gt_tensor_release(b);
    gt_tensor_release(alone);
}

/* Networks learn. */
#include "support.h"

enum { SAMPLES = 256, FEATURES = 8, CLASSES = 4 };

/* Points around one corner a class, from a generator of our own so that every device sees the same. */
static void make_points(float *x, int64_t *y) {
    uint32_t state = 12345;
    for (int i = 0; i < SAMPLES; ++i) {
        y[i] = i % CLASSES;
        for (int k = 0; k < FEATURES; ++k) {
            state = state * 1664525u + 1013904223u;
            float noise = (float)(state >> 8) / 16777216.0f - 0.5f;
            x[i * FEATURES + k] = ((k + (int)y[i]) % CLASSES == 0 ? 1.0f : -0.5f) + 0.8f * noise;
        }
    }
}

static double accuracy(gt_tensor *logits, gt_tensor *labels) {
    return item(gt_mean(gt_cast(gt_equal(gt_argmax(logits, 1, 0), labels), GT_DTYPE_F32), NULL, 0, 0));
}

static void learn(test_case *t, gt_optimizer_kind kind, double rate, double momentum, gt_dtype dtype) {
    gt_context *ctx = test_context(t);
    gt_module *layers[] = {gt_nn_linear(ctx, FEATURES, 32, NULL), gt_nn_batch_norm(ctx, 32, NULL), gt_nn_relu(ctx), gt_nn_dropout(ctx, 0.1),
                           gt_nn_linear(ctx, 32, CLASSES, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 5);
    CHECK(net != NULL);
    CHECK_OK(gt_module_to_dtype(net, dtype));
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, kind));
    o.learning_rate = rate;
    o.momentum = momentum;
    CHECK_OK(gt_optimizer_create_for(&o, net, &optimizer));

    static float points[SAMPLES * FEATURES];
    static int64_t classes[SAMPLES];
    make_points(points, classes);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = gt_cast(gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, (const int64_t[]){SAMPLES, FEATURES}, points, sizeof points), dtype);
    gt_tensor *y = gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, (const int64_t[]){SAMPLES}, classes, sizeof classes);
    double first = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *loss = CHECK_TENSOR(gt_cross_entropy(gt_module_forward(net, x), y, NULL));
        last = item(loss);
        if (step == 0) first = last;
        CHECK_OK(gt_optimizer_zero_grad(optimizer));
        CHECK_OK(gt_backward(loss));
        CHECK_OK(gt_optimizer_clip_grad_norm(optimizer, 5, NULL));
        CHECK_OK(gt_optimizer_step(optimizer));
        CHECK_OK(gt_scope_end(ctx));
    }
    CHECK(first > 1.0);
    CHECK(last < 0.1);
    CHECK_OK(gt_module_set_training(net, 0));
    CHECK(accuracy(gt_module_forward(net, x), y) > 0.98);
    CHECK_OK(gt_scope_end(ctx));
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}

TEST_DEVICES(unit, mlp_learns_with_sgd) { learn(t, GT_OPTIMIZER_SGD, 0.1, 0.9, GT_DTYPE_F32); }
TEST_DEVICES(unit, mlp_learns_with_adam) { learn(t, GT_OPTIMIZER_ADAM, 0.02, 0, GT_DTYPE_F32); }
TEST_DEVICES(unit, mlp_learns_with_adamw_in_f16) { learn(t, GT_OPTIMIZER_ADAMW, 0.02, 0, GT_DTYPE_F16); }
TEST_DEVICES(unit, mlp_learns_with_adamw_in_bf16) { learn(t, GT_OPTIMIZER_ADAMW, 0.02, 0, GT_DTYPE_BF16); }

/* A small CNN under autocast learns as it does in f32. */
#include "support.h"

enum { IMAGES = 96, SIZE = 12, CLASSES = 4, STEPS = 30 };

/* Stripes in one of four directions, from a generator of our own so that every device sees the same. */
static void make_images(float *x, int64_t *y) {
    uint32_t state = 777;
    for (int i = 0; i < IMAGES; ++i) {
        y[i] = i % CLASSES;
        for (int r = 0; r < SIZE; ++r)
            for (int c = 0; c < SIZE; ++c) {
                state = state * 1664525u + 1013904223u;
                float noise = (float)(state >> 8) / 16777216.0f - 0.5f;
                int phase = y[i] == 0 ? r : y[i] == 1 ? c : y[i] == 2 ? r + c : r - c + SIZE;
                x[(i * SIZE + r) * SIZE + c] = (phase % 3 == 0 ? 1.0f : -0.5f) + 2.0f * noise;
            }
    }
}

static gt_module *make_network(gt_context *ctx) {
    gt_nn_conv2d_options conv;
    CHECK_OK(gt_nn_conv2d_options_init(&conv, sizeof conv));
    conv.padding[0] = conv.padding[1] = 1;
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 8, 3, &conv),
                           gt_nn_batch_norm(ctx, 8, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_max_pool2d(ctx, 2, NULL),
                           gt_nn_conv2d(ctx, 8, 16, 3, &conv),
                           gt_nn_relu(ctx),
                           gt_nn_flatten(ctx, 1),
                           gt_nn_linear(ctx, 16 * 36, 32, NULL),
                           gt_nn_layer_norm(ctx, 1, (const int64_t[]){32}, NULL),
                           gt_nn_gelu(ctx, 0),
                           gt_nn_linear(ctx, 32, CLASSES, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, (int32_t)(sizeof layers / sizeof *layers));
    CHECK(net != NULL);
    return net;
}

/* The losses of training; half GT_DTYPE_F32: without autocast. f16 gradients are kept from vanishing by a fixed scale. */
static void train(test_case *t, gt_dtype half, double *losses) {
    gt_context *ctx = exact_context(t);
    gt_module *net = make_network(ctx);
    double scale = half == GT_DTYPE_F16 ? 1024 : 1;
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    o.learning_rate = 0.02 / scale;
    o.momentum = 0.9;
    CHECK_OK(gt_optimizer_create_for(&o, net, &optimizer));
    static float images[IMAGES * SIZE * SIZE];
    static int64_t classes[IMAGES];
    make_images(images, classes);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = gt_tensor_from_data(ctx, GT_DTYPE_F32, 4, (const int64_t[]){IMAGES, 1, SIZE, SIZE}, images, sizeof images);
    gt_tensor *y = gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, (const int64_t[]){IMAGES}, classes, sizeof classes);
    for (int step = 0; step < STEPS; ++step) {
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_optimizer_zero_grad(optimizer));
        if (half != GT_DTYPE_F32) CHECK_OK(gt_autocast_begin(ctx, half));
        gt_tensor *logits = CHECK_TENSOR(gt_module_forward(net, x)), *loss = CHECK_TENSOR(gt_cross_entropy(logits, y, NULL));
        CHECK_EQ_INT(gt_tensor_dtype(logits), half);
        CHECK_EQ_INT(gt_tensor_dtype(loss), GT_DTYPE_F32);
        if (half != GT_DTYPE_F32) CHECK_OK(gt_autocast_end(ctx));
        losses[step] = item(loss);
        CHECK_OK(gt_backward(gt_mul_scalar(loss, scale)));
        CHECK_OK(gt_optimizer_step(optimizer));
        CHECK_OK(gt_scope_end(ctx));
    }
    CHECK_OK(gt_scope_end(ctx));
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}

static void compare(test_case *t, gt_dtype half, double allowed) {
    double exact[STEPS], mixed[STEPS], worst = 0;
    train(t, GT_DTYPE_F32, exact);
    train(t, half, mixed);
    for (int i = 0; i < STEPS; ++i) worst = fmax(worst, fabs(mixed[i] - exact[i]));
    CHECK(exact[0] > 1.0 && exact[STEPS - 1] < 0.2);
    CHECK(mixed[STEPS - 1] < 0.2);
    if (!(worst <= allowed)) FAIL("losses are up to %.4f apart, allowed %.4f", worst, allowed);
}

TEST_DEVICES(unit, cnn_learns_under_autocast_in_f16) { compare(t, GT_DTYPE_F16, 0.002); }
TEST_DEVICES(unit, cnn_learns_under_autocast_in_bf16) { compare(t, GT_DTYPE_BF16, 0.01); }

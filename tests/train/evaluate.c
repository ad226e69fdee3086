/* Evaluation, and metrics over ignored and weighted rows. */
#include "train/support.h"

#include <math.h>

/* Evaluates logits as they are. */
static gt_metrics evaluate(gt_context *ctx, const float *logits, int64_t classes, const int64_t *labels, int64_t rows, int64_t batch,
                           const gt_cross_entropy_options *cross_entropy) {
    gt_module *net = gt_nn_flatten(ctx, 1);
    gt_loader *loader = vectors_loader(ctx, logits, classes, labels, rows, batch);
    gt_trainer_options options = trainer_options(NULL);
    options.cross_entropy = cross_entropy;
    gt_trainer *trainer = NULL;
    gt_metrics metrics;
    CHECK_OK(gt_metrics_init(&metrics, sizeof metrics));
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_OK(gt_trainer_evaluate(trainer, loader, &metrics));
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_module_destroy(net);
    return metrics;
}

/* Row losses with logits (0, 0): ln 2; (3, 0): l0 for class 0, l1 for class 1. */
static const double ln2 = 0.69314718055994531, l0 = 0.048587351573741958, l1 = 3.0485873515737420;
static const float logits[12] = {3, 0, 0, 0, 3, 0, 3, 0, 0, 0, 3, 0};

TEST_DEVICES(unit, evaluate_leaves_ignored_rows_out) {
    gt_context *ctx = test_context(t);
    const int64_t labels[6] = {0, -100, 1, -100, -100, -100};
    gt_metrics m = evaluate(ctx, logits, 2, labels, 6, 2, NULL); /* the last batch has no valid row */
    CHECK_EQ_INT(m.samples, 2);
    CHECK_EQ_INT(m.correct, 1);
    CHECK_NEAR(m.loss, (l0 + l1) / 2, 1e-6);
    CHECK_NEAR(m.accuracy, 0.5, 0);

    const int64_t none[2] = {-100, -100};
    m = evaluate(ctx, logits, 2, none, 2, 2, NULL);
    CHECK_EQ_INT(m.samples, 0);
    CHECK(isnan(m.loss) && isnan(m.accuracy));
}

TEST_DEVICES(unit, evaluate_ignores_a_label_that_is_a_class) {
    gt_context *ctx = test_context(t);
    gt_cross_entropy_options options;
    CHECK_OK(gt_cross_entropy_options_init(&options, sizeof options));
    options.ignore_label = 0;
    const int64_t labels[3] = {0, 1, 1}; /* the first row's argmax is 0 too: not a hit */
    const float rows[6] = {3, 0, 0, 3, 3, 0};
    gt_metrics m = evaluate(ctx, rows, 2, labels, 3, 2, &options);
    CHECK_EQ_INT(m.samples, 2);
    CHECK_EQ_INT(m.correct, 1);
    CHECK_NEAR(m.loss, (l0 + l1) / 2, 1e-6);
}

TEST_DEVICES(unit, evaluate_weighs_the_loss_by_class) {
    gt_context *ctx = test_context(t);
    const float weights[2] = {1, 3};
    const int64_t two = 2;
    gt_tensor *tensor = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, &two, weights, sizeof weights));
    gt_cross_entropy_options options;
    CHECK_OK(gt_cross_entropy_options_init(&options, sizeof options));
    options.class_weights = tensor;
    const int64_t labels[3] = {0, 1, 1};
    const float rows[6] = {3, 0, 0, 0, 3, 0};
    gt_metrics m = evaluate(ctx, rows, 2, labels, 3, 2, &options);
    CHECK_EQ_INT(m.samples, 3);
    CHECK_NEAR(m.loss, (l0 + 3 * ln2 + 3 * l1) / 7, 1e-6);
    CHECK_NEAR(m.accuracy, 1 / 3.0, 1e-9);
    gt_tensor_release(tensor);
}

TEST_DEVICES(unit, evaluate_changes_neither_mode_nor_gradients) {
    gt_context *ctx = test_context(t);
    const float x[2] = {1, 2};
    gt_module *layers[] = {gt_nn_linear(ctx, 1, 2, NULL), gt_nn_dropout(ctx, 0.9)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 2);
    const int64_t labels[2] = {0, 1};
    gt_loader *loader = vectors_loader(ctx, x, 1, labels, 2, 1);
    gt_trainer *trainer = NULL;
    gt_metrics first, second;
    CHECK_OK(gt_metrics_init(&first, sizeof first));
    second = first;
    CHECK_OK(gt_trainer_create(net, NULL, &trainer));
    for (int32_t training = 0; training <= 1; ++training) {
        CHECK_OK(gt_module_set_training(net, training));
        CHECK_OK(gt_trainer_evaluate(trainer, loader, &first));
        CHECK_OK(gt_trainer_evaluate(trainer, loader, &second));
        CHECK_NEAR(first.loss, second.loss, 0); /* no dropout */
        CHECK_EQ_INT(gt_module_training(net), training);
        CHECK_EQ_INT(gt_grad_enabled(ctx), 1);
    }
    for (int32_t i = 0; i < gt_module_parameter_count(net); ++i) {
        gt_tensor *parameter;
        CHECK_OK(gt_module_parameter(net, i, NULL, &parameter));
        CHECK(gt_tensor_grad(parameter) == NULL);
    }
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_module_destroy(net);
}

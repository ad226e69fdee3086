#include "train/support.h"

static gt_loader *make_loader(gt_context *ctx, const gt_dataset_format *format, const void *samples, const void *labels, int64_t batch) {
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_arrays(format, samples, labels, 0, &dataset));
    gt_loader_options options;
    CHECK_OK(gt_loader_options_init(&options, sizeof options));
    options.batch_size = batch;
    gt_loader *loader = NULL;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    gt_dataset_destroy(dataset);
    return loader;
}

static gt_dataset_format vectors(int64_t width, int64_t length) {
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.sample_ndim = 1;
    format.sample_shape[0] = width;
    format.length = length;
    return format;
}

gt_loader *vectors_loader(gt_context *ctx, const float *samples, int64_t width, const int64_t *labels, int64_t length, int64_t batch) {
    gt_dataset_format format = vectors(width, length);
    format.has_labels = labels != NULL;
    return make_loader(ctx, &format, samples, labels, batch);
}

gt_loader *pairs_loader(gt_context *ctx, const float *samples, const float *targets, int64_t width, int64_t length, int64_t batch) {
    gt_dataset_format format = vectors(width, length);
    format.label_dtype = GT_DTYPE_F32;
    format.label_ndim = 1;
    format.label_shape[0] = width;
    return make_loader(ctx, &format, samples, targets, batch);
}

static gt_tensor *weight_of(gt_module *scale) {
    gt_tensor *weight = NULL;
    CHECK_OK(gt_module_find(scale, "weight", &weight));
    return weight;
}

gt_module *scale_module(gt_context *ctx, double w) {
    gt_nn_linear_options options;
    CHECK_OK(gt_nn_linear_options_init(&options, sizeof options));
    options.bias = 0;
    gt_module *scale = gt_nn_linear(ctx, 1, 1, &options);
    CHECK(scale != NULL);
    CHECK_OK(gt_nn_init_constant(weight_of(scale), w));
    return scale;
}

double scale_of(gt_module *scale) {
    double w = 0;
    CHECK_OK(gt_tensor_item(weight_of(scale), &w));
    return w;
}

gt_optimizer *sgd(gt_module *module, double learning_rate) {
    gt_optimizer_options rule;
    CHECK_OK(gt_optimizer_options_init(&rule, sizeof rule, GT_OPTIMIZER_SGD));
    rule.learning_rate = learning_rate;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_create_for(&rule, module, &optimizer));
    return optimizer;
}

gt_trainer_options trainer_options(gt_optimizer *optimizer) {
    gt_trainer_options options;
    CHECK_OK(gt_trainer_options_init(&options, sizeof options));
    options.optimizer = optimizer;
    return options;
}

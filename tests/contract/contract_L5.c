/* L5: epoch metrics are weighted by samples; a loader that would yield nothing is refused at creation with its numbers. */
#include "harness/test.h"
#include <gtrain/gtrain.h>

static gt_dataset *make_dataset(const float *logits, const int64_t *labels, int64_t rows) {
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.sample_ndim = 1;
    format.sample_shape[0] = 2;
    format.length = rows;
    format.classes = 2;
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_arrays(&format, logits, labels, 0, &dataset));
    return dataset;
}

TEST_DEVICES(contract, L5_epoch_metrics_are_weighted_by_samples) {
    gt_context *ctx = test_context(t);
    /* Ten rows as 4, 4, 2: the loss of the first eight is ln 2, that of the last two 10 + ln(1 + e^-10). */
    float logits[20] = {0};
    int64_t labels[10] = {0};
    logits[16] = logits[18] = 10;
    labels[8] = labels[9] = 1;
    gt_dataset *dataset = make_dataset(logits, labels, 10);
    gt_loader_options loading;
    CHECK_OK(gt_loader_options_init(&loading, sizeof loading));
    loading.batch_size = 4;
    gt_loader *loader = NULL;
    CHECK_OK(gt_loader_create(ctx, dataset, &loading, &loader));
    gt_module *net = gt_nn_flatten(ctx, 1);
    gt_trainer *trainer = NULL;
    CHECK_OK(gt_trainer_create(net, NULL, &trainer));
    gt_metrics metrics;
    CHECK_OK(gt_metrics_init(&metrics, sizeof metrics));
    CHECK_OK(gt_trainer_evaluate(trainer, loader, &metrics));
    CHECK_EQ_INT(metrics.samples, 10);
    CHECK_EQ_INT(metrics.correct, 8);
    CHECK_NEAR(metrics.accuracy, 0.8, 1e-12);     /* the batches' mean would be 2/3 */
    CHECK_NEAR(metrics.loss, 2.5545268243, 1e-6); /* the batches' mean would be 3.795 */
    gt_trainer_destroy(trainer);
    gt_module_destroy(net);
    gt_loader_destroy(loader);
    gt_dataset_destroy(dataset);
}

TEST_DEVICES(contract, L5_loader_without_a_batch_is_refused_with_its_numbers) {
    gt_context *ctx = test_context(t);
    const float logits[20] = {0};
    const int64_t labels[10] = {0};
    gt_dataset *ten = make_dataset(logits, labels, 10), *none = make_dataset(NULL, NULL, 0);
    gt_loader_options loading;
    CHECK_OK(gt_loader_options_init(&loading, sizeof loading));
    loading.batch_size = 64;
    loading.drop_last = 1;
    gt_loader *loader = NULL;
    CHECK_STATUS(gt_loader_create(ctx, ten, &loading, &loader), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("10 samples in batches of 64");
    loading.drop_last = 0;
    CHECK_STATUS(gt_loader_create(ctx, none, &loading, &loader), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("0 samples");
    CHECK_ERROR_HAS("batch_size 64");
    CHECK(loader == NULL);
    CHECK_OK(gt_loader_create(ctx, ten, &loading, &loader));
    CHECK_EQ_INT(gt_loader_batches(loader), 1);
    gt_loader_destroy(loader);
    gt_dataset_destroy(ten);
    gt_dataset_destroy(none);
}

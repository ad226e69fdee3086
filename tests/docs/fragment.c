/* What a fragment of the guide stands in: docs/README.md says what its names are. */
#include <gtrain/gtrain.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        gt_status try_status = (call);                                                                                                     \
        if (try_status != GT_OK) return try_status;                                                                                        \
    } while (0)

enum { SAMPLES = 32, FEATURES = 8, CLASSES = 4 };

static gt_status fragment(gt_context *ctx, gt_module *net, gt_optimizer *optimizer, gt_loader *training, gt_loader *test, gt_tensor *x,
                          gt_tensor *y) {
    (void)ctx, (void)net, (void)optimizer, (void)training, (void)test, (void)x, (void)y;
    /* FRAGMENT */
    return GT_OK;
}

static gt_status loader(gt_context *ctx, const float *samples, const int64_t *labels, gt_loader **result) {
    gt_dataset_format format;
    TRY(gt_dataset_format_init(&format, sizeof format));
    format.sample_ndim = 1;
    format.sample_shape[0] = FEATURES;
    format.length = SAMPLES;
    format.classes = CLASSES;
    gt_dataset *dataset;
    TRY(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset));
    gt_loader_options options;
    TRY(gt_loader_options_init(&options, sizeof options));
    options.batch_size = 8;
    gt_status status = gt_loader_create(ctx, dataset, &options, result);
    gt_dataset_destroy(dataset);
    return status;
}

static gt_status run(gt_context *ctx) {
    float samples[SAMPLES * FEATURES];
    int64_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES * FEATURES; ++i) samples[i] = sinf((float)i);
    for (int i = 0; i < SAMPLES; ++i) labels[i] = i % CLASSES;
    gt_module *layers[] = {gt_nn_linear(ctx, FEATURES, 16, NULL),
                           gt_nn_batch_norm(ctx, 16, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_linear(ctx, 16, 16, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_linear(ctx, 16, CLASSES, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 6);
    gt_optimizer_options adam;
    gt_optimizer *optimizer = NULL;
    gt_loader *training = NULL, *test = NULL;
    const int64_t shape[2] = {SAMPLES, FEATURES}, rows[1] = {SAMPLES};
    gt_status status = gt_optimizer_options_init(&adam, sizeof adam, GT_OPTIMIZER_ADAM);
    if (status == GT_OK) status = gt_optimizer_create_for(&adam, net, &optimizer);
    if (status == GT_OK) status = loader(ctx, samples, labels, &training);
    if (status == GT_OK) status = loader(ctx, samples, labels, &test);
    gt_tensor *x = gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, shape, samples, sizeof samples);
    gt_tensor *y = gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, rows, labels, sizeof labels);
    if (status == GT_OK) status = gt_scope_begin(ctx);
    if (status == GT_OK) {
        status = fragment(ctx, net, optimizer, training, test, x, y);
        gt_status ended = gt_scope_end(ctx);
        if (status == GT_OK) status = ended;
    }
    gt_tensor_release(x);
    gt_tensor_release(y);
    gt_loader_destroy(training);
    gt_loader_destroy(test);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
    return status;
}

int main(void) {
    gt_context_options options;
    gt_context *ctx;
    gt_status status = gt_context_options_init(&options, sizeof options);
    options.device = GT_DEVICE_CPU;
    if (status == GT_OK) status = gt_context_create(&options, &ctx);
    if (status == GT_OK) {
        status = run(ctx);
        gt_context_destroy(ctx);
    }
    if (status != GT_OK) fprintf(stderr, "%s: %s %s\n", gt_status_name(status), gt_last_error()->message, gt_last_error()->hint);
    return status == GT_OK ? 0 : 1;
}

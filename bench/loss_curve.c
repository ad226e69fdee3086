/* The loss curve of the CNN on Fashion-MNIST, to lay beside PyTorch's from the same initial weights (bench/peers/torch_curve.py).
 *
 *     loss_curve DEVICE DATA_FOLDER EPOCHS WEIGHTS_FILE [f32|f16|bf16]
 *
 * Writes the initial weights to WEIGHTS_FILE (f32, in the order of the parameters, row-major), then trains in the files' order, batch 64, SGD 0.01
 * with momentum 0.9, and prints the mean loss of every 100 steps and the test accuracy after each epoch, one number a line after its name. */
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(expr)                                                                                                                          \
    do {                                                                                                                                   \
        if ((expr) != GT_OK) {                                                                                                             \
            fprintf(stderr, "%s: %s\n", gt_status_name(gt_last_error()->status), gt_last_error()->message);                                \
            return 1;                                                                                                                      \
        }                                                                                                                                  \
    } while (0)

static gt_status open_loader(gt_context *ctx, const char *folder, const char *set, gt_loader **loader) {
    char images[1024], labels[1024];
    snprintf(images, sizeof images, "%s/%s-images-idx3-ubyte.gz", folder, set);
    snprintf(labels, sizeof labels, "%s/%s-labels-idx1-ubyte.gz", folder, set);
    gt_dataset *dataset = NULL;
    gt_transform *transform = NULL;
    gt_loader_options options;
    gt_status status = gt_dataset_from_idx(images, labels, 10, &dataset);
    if (status == GT_OK) status = gt_transform_create(&transform);
    if (status == GT_OK) status = gt_transform_to_float(transform, 1.0 / 255);
    if (status == GT_OK) status = gt_loader_options_init(&options, sizeof options);
    if (status == GT_OK) {
        options.batch_size = 64;
        options.transform = transform;
        status = gt_loader_create(ctx, dataset, &options, loader);
    }
    gt_transform_destroy(transform);
    gt_dataset_destroy(dataset);
    return status;
}

static gt_status dump(gt_module *net, const char *path) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        perror(path);
        return GT_IO;
    }
    gt_status status = GT_OK;
    for (int32_t i = 0; i < gt_module_parameter_count(net) && status == GT_OK; ++i) {
        gt_tensor *parameter;
        status = gt_module_parameter(net, i, NULL, &parameter);
        size_t bytes = gt_tensor_bytes(parameter);
        void *data = malloc(bytes);
        if (data == NULL) status = GT_OUT_OF_HOST_MEMORY;
        if (status == GT_OK) status = gt_tensor_read(parameter, data, bytes);
        if (status == GT_OK && fwrite(data, 1, bytes, file) != bytes) status = GT_IO;
        free(data);
    }
    if (fclose(file) != 0) status = GT_IO;
    return status;
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: loss_curve cpu|cuda DATA_FOLDER EPOCHS WEIGHTS_FILE [f32|f16|bf16]\n");
        return 2;
    }
    const char *precision = argc == 6 ? argv[5] : "f32";
    const gt_dtype half = strcmp(precision, "f16") == 0 ? GT_DTYPE_F16 : strcmp(precision, "bf16") == 0 ? GT_DTYPE_BF16 : GT_DTYPE_F32;
    gt_context_options co;
    gt_context *ctx;
    TRY(gt_context_options_init(&co, sizeof co));
    co.device = strcmp(argv[1], "cuda") == 0 ? GT_DEVICE_CUDA : GT_DEVICE_CPU;
    TRY(gt_context_create(&co, &ctx));
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 32, 3, NULL), gt_nn_relu(ctx),       gt_nn_conv2d(ctx, 32, 64, 3, NULL), gt_nn_relu(ctx),
                           gt_nn_max_pool2d(ctx, 2, NULL),    gt_nn_flatten(ctx, 1), gt_nn_linear(ctx, 9216, 128, NULL), gt_nn_relu(ctx),
                           gt_nn_linear(ctx, 128, 10, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 9);
    TRY(gt_module_check(net));
    TRY(dump(net, argv[4]));
    gt_optimizer_options oo;
    gt_optimizer *optimizer;
    TRY(gt_optimizer_options_init(&oo, sizeof oo, GT_OPTIMIZER_SGD));
    oo.learning_rate = 0.01;
    oo.momentum = 0.9;
    TRY(gt_optimizer_create_for(&oo, net, &optimizer));
    gt_scaler *scaler = NULL;
    if (half == GT_DTYPE_F16) TRY(gt_scaler_create(ctx, NULL, &scaler));
    gt_loader *train, *test;
    TRY(open_loader(ctx, argv[2], "train", &train));
    TRY(open_loader(ctx, argv[2], "t10k", &test));
    for (int epoch = 0; epoch < atoi(argv[3]); ++epoch) {
        TRY(gt_loader_start_epoch(train, epoch));
        double sum = 0;
        for (int step = 1;; ++step) {
            gt_tensor *x, *y;
            int64_t count;
            double loss;
            TRY(gt_scope_begin(ctx));
            TRY(gt_loader_next(train, &x, &y, &count));
            if (count > 0) {
                if (half != GT_DTYPE_F32) TRY(gt_autocast_begin(ctx, half));
                gt_tensor *l = gt_cross_entropy(gt_module_forward(net, x), y, NULL);
                if (half != GT_DTYPE_F32) TRY(gt_autocast_end(ctx));
                TRY(gt_optimizer_zero_grad(optimizer));
                TRY(gt_backward(scaler ? gt_scaler_scale(scaler, l) : l));
                TRY(scaler ? gt_scaler_step(scaler, optimizer) : gt_optimizer_step(optimizer));
                if (scaler) TRY(gt_scaler_update(scaler));
                TRY(gt_tensor_item(l, &loss));
                sum += loss;
            }
            TRY(gt_scope_end(ctx));
            if (count == 0) break;
            if (step % 100 == 0) {
                printf("loss %.6f\n", sum / 100);
                sum = 0;
            }
        }
        double right = 0, total = 0;
        TRY(gt_module_set_training(net, 0));
        TRY(gt_no_grad_begin(ctx));
        TRY(gt_loader_start_epoch(test, 0));
        for (;;) {
            gt_tensor *x, *y;
            int64_t count;
            double hits = 0;
            TRY(gt_scope_begin(ctx));
            TRY(gt_loader_next(test, &x, &y, &count));
            if (count > 0) TRY(gt_tensor_item(gt_sum(gt_equal(gt_argmax(gt_module_forward(net, x), 1, 0), y), NULL, 0, 0), &hits));
            TRY(gt_scope_end(ctx));
            if (count == 0) break;
            right += hits;
            total += (double)count;
        }
        TRY(gt_no_grad_end(ctx));
        TRY(gt_module_set_training(net, 1));
        printf("accuracy %.4f\n", right / total);
        fflush(stdout);
    }
    gt_loader_destroy(train);
    gt_loader_destroy(test);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
    gt_context_destroy(ctx);
    return 0;
}

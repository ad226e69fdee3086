/* Time of a whole training step (forward, loss, backward, SGD with momentum) of two small networks, as one JSON line each.
 *
 *     train_step [--device cpu|cuda] [--threads n] [--steps n] [--deterministic] [--compile] WORKLOAD...      WORKLOAD: mlp64 cnn64 cnn512 …
 *
 * --compile: as a compiled step (gt_step) instead of eager calls.
 * mlp: 784-512-512-10. cnn: conv 3x3 1-32, relu, conv 3x3 32-64, relu, max pool 2, 9216-128, relu, 128-10 on 28x28, the network of PyTorch's MNIST example. */
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int report(void) {
    fprintf(stderr, "%s: %s %s\n", gt_status_name(gt_last_error()->status), gt_last_error()->message, gt_last_error()->hint);
    return 1;
}

static gt_module *make_network(gt_context *ctx, int cnn) {
    if (cnn) {
        gt_module *layers[] = {
            gt_nn_conv2d(ctx, 1, 32, 3, NULL), gt_nn_relu(ctx),       gt_nn_conv2d(ctx, 32, 64, 3, NULL), gt_nn_relu(ctx),
            gt_nn_max_pool2d(ctx, 2, NULL),    gt_nn_flatten(ctx, 1), gt_nn_linear(ctx, 9216, 128, NULL), gt_nn_relu(ctx),
            gt_nn_linear(ctx, 128, 10, NULL)};
        return gt_nn_sequential_from(ctx, layers, 9);
    }
    gt_module *layers[] = {gt_nn_linear(ctx, 784, 512, NULL), gt_nn_relu(ctx), gt_nn_linear(ctx, 512, 512, NULL), gt_nn_relu(ctx),
                           gt_nn_linear(ctx, 512, 10, NULL)};
    return gt_nn_sequential_from(ctx, layers, 5);
}

static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *result) {
    (void)n;
    result->loss = gt_cross_entropy(gt_module_forward(user, inputs[0]), inputs[1], NULL);
    return result->loss ? GT_OK : gt_last_error()->status;
}

static gt_status compile(gt_context *ctx, gt_module *net, gt_optimizer *optimizer, gt_step **compiled) {
    gt_step_options options;
    gt_status status = gt_step_options_init(&options, sizeof options);
    if (status != GT_OK) return status;
    options.fn = loss_of;
    options.user = options.module = net;
    options.optimizers = &optimizer;
    options.n_optimizers = 1;
    return gt_step_create(ctx, &options, compiled);
}

/* `compiled` NULL: with eager calls. */
static gt_status step(gt_context *ctx, gt_module *net, gt_optimizer *optimizer, gt_step *compiled, gt_tensor *x, gt_tensor *y) {
    gt_tensor *const inputs[] = {x, y};
    if (compiled) return gt_step_run(compiled, inputs, 2);
    gt_status status = gt_scope_begin(ctx);
    if (status != GT_OK) return status;
    status = gt_optimizer_zero_grad(optimizer);
    if (status == GT_OK) status = gt_backward(gt_cross_entropy(gt_module_forward(net, x), y, NULL));
    if (status == GT_OK) status = gt_optimizer_step(optimizer);
    (void)gt_scope_end(ctx);
    return status;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int run(gt_context *ctx, const char *workload, int steps, int compiles) {
    int cnn = strncmp(workload, "cnn", 3) == 0;
    int64_t batch = atoll(workload + 3);
    if ((!cnn && strncmp(workload, "mlp", 3) != 0) || batch <= 0) {
        fprintf(stderr, "%s: a workload is mlp or cnn and a batch size, such as cnn64\n", workload);
        return 2;
    }
    const int64_t image[4] = {batch, 1, 28, 28}, flat[2] = {batch, 784};
    int32_t *labels = malloc((size_t)batch * sizeof *labels);
    if (labels == NULL) return 1;
    for (int64_t i = 0; i < batch; ++i) labels[i] = (int32_t)(i * 7 % 10);
    gt_tensor *x = gt_tensor_normal(ctx, GT_DTYPE_F32, cnn ? 4 : 2, cnn ? image : flat, 0, 1);
    gt_tensor *y = gt_tensor_from_data(ctx, GT_DTYPE_I32, 1, &batch, labels, (size_t)batch * sizeof *labels);
    free(labels);
    gt_module *net = make_network(ctx, cnn);
    gt_optimizer_options options;
    gt_optimizer *optimizer = NULL;
    if (x == NULL || y == NULL || net == NULL || gt_optimizer_options_init(&options, sizeof options, GT_OPTIMIZER_SGD) != GT_OK)
        return report();
    options.learning_rate = 0.01;
    options.momentum = 0.9;
    gt_step *compiled = NULL;
    if (gt_optimizer_create_for(&options, net, &optimizer) != GT_OK) return report();
    if (compiles && compile(ctx, net, optimizer, &compiled) != GT_OK) return report();

    for (int i = 0; i < 5; ++i) {
        if (step(ctx, net, optimizer, compiled, x, y) != GT_OK) return report();
    }
    if (gt_context_synchronize(ctx) != GT_OK) return report();
    if (steps == 0) { /* about a second for each of five rounds */
        double begin = now();
        for (int i = 0; i < 10; ++i) (void)step(ctx, net, optimizer, compiled, x, y);
        if (gt_context_synchronize(ctx) != GT_OK) return report();
        steps = (int)(1.0 / ((now() - begin) / 10)) + 1;
        if (steps > 2000) steps = 2000;
    }
    double rounds[5], host = 0;
    for (int r = 0; r < 5; ++r) {
        double begin = now();
        for (int i = 0; i < steps; ++i) {
            if (step(ctx, net, optimizer, compiled, x, y) != GT_OK) return report();
        }
        double issued = now();
        if (gt_context_synchronize(ctx) != GT_OK) return report();
        rounds[r] = (now() - begin) / steps;
        host += (issued - begin) / steps / 5;
    }
    qsort(rounds, 5, sizeof rounds[0], by_value);
    gt_memory_stats memory;
    if (gt_memory_stats_init(&memory, sizeof memory) != GT_OK || gt_memory_get_stats(ctx, &memory) != GT_OK) return report();
    printf("{\"cfg\": \"gtrain:%s%s\", \"device\": \"%s\", \"ms\": %.4f, \"min_ms\": %.4f, \"max_ms\": %.4f, \"host_ms\": %.4f, "
           "\"samples_s\": %.0f, \"peak_mib\": %.1f}\n",
           workload, compiles ? ":compiled" : "", gt_context_device_name(ctx), rounds[2] * 1e3, rounds[0] * 1e3, rounds[4] * 1e3,
           host * 1e3, (double)batch / rounds[2], (double)memory.peak_in_use / 1048576.0);
    fflush(stdout);
    gt_step_destroy(compiled);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
    gt_tensor_release(x);
    gt_tensor_release(y);
    return 0;
}

int main(int argc, char **argv) {
    gt_context_options options;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return report();
    int steps = 0, first = 1, compiles = 0;
    for (; first < argc && strncmp(argv[first], "--", 2) == 0; ++first) {
        const char *value = first + 1 < argc ? argv[first + 1] : "";
        if (strcmp(argv[first], "--deterministic") == 0) {
            options.deterministic = 1;
            continue;
        } else if (strcmp(argv[first], "--compile") == 0) {
            compiles = 1;
            continue;
        } else if (strcmp(argv[first], "--device") == 0) {
            options.device = strcmp(value, "cuda") == 0 ? GT_DEVICE_CUDA : GT_DEVICE_CPU;
        } else if (strcmp(argv[first], "--threads") == 0) {
            options.cpu_threads = atoi(value);
        } else if (strcmp(argv[first], "--steps") == 0) {
            steps = atoi(value);
        } else {
            fprintf(stderr, "unknown option %s\n", argv[first]);
            return 2;
        }
        ++first;
    }
    gt_context *ctx;
    if (gt_context_create(&options, &ctx) != GT_OK) return report();
    int result = 0;
    if (first == argc) {
        static const char *const all[] = {"mlp64", "cnn64"};
        for (int i = 0; i < 2 && result == 0; ++i) result = run(ctx, all[i], steps, compiles);
    }
    for (; first < argc && result == 0; ++first) result = run(ctx, argv[first], steps, compiles);
    gt_context_destroy(ctx);
    return result;
}

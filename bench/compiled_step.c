/* Time and memory of a whole training step in f16 with dynamic loss scaling, compiled (gt_step) or eager (gt_window), as one JSON line each.
 *
 *     compiled_step [--eager] [--deterministic] [--budget MiB] [--offload] [--precision f16|bf16|f32] [--steps n] [--device cuda|cpu] WORKLOAD...
 *
 * WORKLOAD is a name and a batch size: mlp64 (784-512-512-10, SGD), cnn64, cnn1000 (PyTorch's MNIST example, SGD), wide8192 (MLP 4096 x 8 layers and 1000
 * classes, AdamW), resnet256 (ResNet-50, SGD). The peers' scripts are in bench/peers. */
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 5 };

typedef struct setup {
    int eager, steps;
    double budget; /* MiB; 0: none */
    int offload;   /* the budget may use the host's memory */
    gt_dtype precision;
} setup;

typedef struct workload {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_scaler *scaler;
    gt_step *step;
    gt_window *window;
    gt_tensor *inputs[2];
    int64_t batch;
    const setup *setup;
} workload;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int report(void) {
    fprintf(stderr, "%s: %s %s\n", gt_status_name(gt_last_error()->status), gt_last_error()->message, gt_last_error()->hint);
    return 1;
}

static gt_module *mlp(gt_context *ctx) {
    gt_module *layers[] = {gt_nn_linear(ctx, 784, 512, NULL), gt_nn_relu(ctx), gt_nn_linear(ctx, 512, 512, NULL), gt_nn_relu(ctx),
                           gt_nn_linear(ctx, 512, 10, NULL)};
    return gt_nn_sequential_from(ctx, layers, 5);
}

static gt_module *cnn(gt_context *ctx) {
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 32, 3, NULL), gt_nn_relu(ctx),       gt_nn_conv2d(ctx, 32, 64, 3, NULL), gt_nn_relu(ctx),
                           gt_nn_max_pool2d(ctx, 2, NULL),    gt_nn_flatten(ctx, 1), gt_nn_linear(ctx, 9216, 128, NULL), gt_nn_relu(ctx),
                           gt_nn_linear(ctx, 128, 10, NULL)};
    return gt_nn_sequential_from(ctx, layers, 9);
}

static gt_module *wide(gt_context *ctx) {
    gt_module *layers[17];
    for (int i = 0; i < 8; ++i) {
        layers[2 * i] = gt_nn_linear(ctx, 4096, 4096, NULL);
        layers[2 * i + 1] = gt_nn_relu(ctx);
    }
    layers[16] = gt_nn_linear(ctx, 4096, 1000, NULL);
    return gt_nn_sequential_from(ctx, layers, 17);
}

static gt_module *resnet(gt_context *ctx) { return gt_nn_resnet50(ctx, 1000); }

static const struct kind {
    const char *name;
    gt_module *(*make)(gt_context *ctx);
    int64_t ndim, shape[4], classes; /* shape[0]: the batch */
    gt_optimizer_kind optimizer;
    double rate;
} kinds[] = {
    {"mlp", mlp, 2, {0, 784}, 10, GT_OPTIMIZER_SGD, 0.01},
    {"cnn", cnn, 4, {0, 1, 28, 28}, 10, GT_OPTIMIZER_SGD, 0.01},
    {"wide", wide, 2, {0, 4096}, 1000, GT_OPTIMIZER_ADAMW, 1e-4},
    {"resnet", resnet, 4, {0, 3, 224, 224}, 1000, GT_OPTIMIZER_SGD, 0.1},
};

static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *result) {
    const workload *w = user;
    (void)n;
    result->loss = gt_cross_entropy(gt_module_forward(w->net, inputs[0]), inputs[1], NULL);
    return result->loss ? GT_OK : gt_last_error()->status;
}

static gt_status make_inputs(workload *w, const struct kind *kind) {
    int64_t shape[4];
    memcpy(shape, kind->shape, sizeof shape);
    shape[0] = w->batch;
    int32_t *labels = malloc((size_t)w->batch * sizeof *labels);
    if (labels == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int64_t i = 0; i < w->batch; ++i) labels[i] = (int32_t)(i * 7919 % kind->classes);
    gt_status status = gt_scope_begin(w->ctx);
    gt_tensor *x = gt_tensor_normal(w->ctx, GT_DTYPE_F32, (int32_t)kind->ndim, shape, 0, 1);
    if (kind->ndim == 4) x = gt_channels_last(x);
    w->inputs[0] = gt_tensor_retain(x);
    w->inputs[1] = gt_tensor_retain(gt_tensor_from_data(w->ctx, GT_DTYPE_I32, 1, &w->batch, labels, (size_t)w->batch * sizeof *labels));
    free(labels);
    if (status == GT_OK) status = gt_scope_end(w->ctx);
    return w->inputs[0] && w->inputs[1] ? status : gt_last_error()->status;
}

static gt_status make_step(workload *w) {
    gt_step_options step;
    gt_window_options window;
    gt_status status = gt_step_options_init(&step, sizeof step);
    if (status == GT_OK) status = gt_window_options_init(&window, sizeof window);
    if (status != GT_OK) return status;
    window.module = step.module = w->net;
    window.optimizers = step.optimizers = &w->optimizer;
    window.n_optimizers = step.n_optimizers = 1;
    window.scaler = step.scaler = w->scaler;
    step.fn = loss_of;
    step.user = w;
    step.autocast = w->setup->precision;
    step.memory_budget = (uint64_t)(w->setup->budget * 1048576.0);
    step.offload = w->setup->offload;
    return w->setup->eager ? gt_window_create(&window, &w->window) : gt_step_create(w->ctx, &step, &w->step);
}

static gt_status make(workload *w, const struct kind *kind) {
    gt_optimizer_options options;
    gt_status status = gt_optimizer_options_init(&options, sizeof options, kind->optimizer);
    if (status != GT_OK) return status;
    options.learning_rate = kind->rate;
    if (kind->optimizer == GT_OPTIMIZER_SGD) options.momentum = 0.9;
    w->net = kind->make(w->ctx);
    if (w->net == NULL) return gt_last_error()->status;
    status = gt_optimizer_create_for(&options, w->net, &w->optimizer);
    if (status == GT_OK && w->setup->precision == GT_DTYPE_F16) status = gt_scaler_create(w->ctx, NULL, &w->scaler);
    if (status == GT_OK) status = make_inputs(w, kind);
    return status == GT_OK ? make_step(w) : status;
}

static void drop(workload *w) {
    gt_step_destroy(w->step);
    gt_window_destroy(w->window);
    gt_scaler_destroy(w->scaler);
    gt_optimizer_destroy(w->optimizer);
    gt_module_destroy(w->net);
    gt_tensor_release(w->inputs[0]);
    gt_tensor_release(w->inputs[1]);
}

static gt_status step(workload *w) {
    if (w->step) return gt_step_run(w->step, w->inputs, 2);
    gt_step_result result = {0};
    int half = w->setup->precision != GT_DTYPE_F32;
    gt_status status = gt_scope_begin(w->ctx);
    if (status == GT_OK) status = gt_window_micro_begin(w->window);
    if (status == GT_OK && half) status = gt_autocast_begin(w->ctx, w->setup->precision);
    if (status == GT_OK) status = loss_of(w, w->inputs, 2, &result);
    if (half) (void)gt_autocast_end(w->ctx);
    if (status == GT_OK) status = gt_window_micro_end(w->window, result.loss, (double)w->batch, NULL);
    (void)gt_scope_end(w->ctx);
    return status;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(workload *w, const char *name, int steps) {
    double begin = now(), rounds[ROUNDS], host = 0;
    for (int i = 0; i < 5; ++i)
        if (step(w) != GT_OK) return report();
    if (gt_context_synchronize(w->ctx) != GT_OK) return report();
    double warm = now() - begin;
    if (steps == 0) { /* about half a second for each round */
        begin = now();
        for (int i = 0; i < 5; ++i) (void)step(w);
        if (gt_context_synchronize(w->ctx) != GT_OK) return report();
        double wanted = 0.5 / ((now() - begin) / 5) + 1;
        steps = wanted > 5000 ? 5000 : (int)wanted;
    }
    for (int r = 0; r < ROUNDS; ++r) {
        begin = now();
        for (int i = 0; i < steps; ++i)
            if (step(w) != GT_OK) return report();
        host += (now() - begin) / steps / ROUNDS;
        if (gt_context_synchronize(w->ctx) != GT_OK) return report();
        rounds[r] = (now() - begin) / steps;
    }
    qsort(rounds, ROUNDS, sizeof rounds[0], by_value);
    gt_memory_stats m;
    if (gt_memory_stats_init(&m, sizeof m) != GT_OK || gt_memory_get_stats(w->ctx, &m) != GT_OK) return report();
    double loss = 0;
    if (w->step && gt_tensor_item(gt_step_loss(w->step), &loss) != GT_OK) return report();
    printf("{\"cfg\": \"gtrain:%s:%s\", \"ms\": %.4f, \"min_ms\": %.4f, \"max_ms\": %.4f, \"host_ms\": %.4f, \"samples_s\": %.0f, "
           "\"warm_s\": %.2f, "
           "\"in_use_mib\": %.1f, \"peak_mib\": %.1f, \"reserved_mib\": %.1f, \"loss\": %.4f}\n",
           name, w->setup->eager ? "eager" : "compiled", rounds[ROUNDS / 2] * 1e3, rounds[0] * 1e3, rounds[ROUNDS - 1] * 1e3, host * 1e3,
           (double)w->batch / rounds[ROUNDS / 2], warm, (double)m.in_use / 1048576.0, (double)m.peak_in_use / 1048576.0,
           (double)m.peak_reserved / 1048576.0, loss);
    char text[4096];
    if (w->setup->budget > 0 && gt_step_budget_text(w->step, text, sizeof text, NULL) == GT_OK) puts(text);
    fflush(stdout);
    return 0;
}

static int run(const gt_context_options *options, const setup *s, const char *name) {
    const struct kind *kind = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i)
        if (strncmp(name, kinds[i].name, strlen(kinds[i].name)) == 0) kind = &kinds[i];
    workload w = {.setup = s, .batch = kind ? atoll(name + strlen(kind->name)) : 0};
    if (w.batch <= 0) {
        fprintf(stderr, "%s: a workload is mlp, cnn, wide or resnet and a batch size, such as cnn64\n", name);
        return 2;
    }
    if (gt_context_create(options, &w.ctx) != GT_OK) return report();
    int code = make(&w, kind) == GT_OK ? measure(&w, name, s->steps) : report();
    drop(&w);
    gt_context_destroy(w.ctx);
    return code;
}

int main(int argc, char **argv) {
    gt_context_options options;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return report();
    setup s = {.precision = GT_DTYPE_F16};
    int first = 1, code = 0;
    for (; first < argc && strncmp(argv[first], "--", 2) == 0; ++first) {
        const char *value = first + 1 < argc ? argv[first + 1] : "";
        if (strcmp(argv[first], "--eager") == 0) {
            s.eager = 1;
            continue;
        }
        if (strcmp(argv[first], "--offload") == 0) {
            s.offload = 1;
            continue;
        }
        if (strcmp(argv[first], "--deterministic") == 0) {
            options.deterministic = 1;
            continue;
        }
        if (strcmp(argv[first], "--budget") == 0) {
            s.budget = atof(value);
        } else if (strcmp(argv[first], "--steps") == 0) {
            s.steps = atoi(value);
        } else if (strcmp(argv[first], "--device") == 0) {
            options.device = strcmp(value, "cpu") == 0 ? GT_DEVICE_CPU : GT_DEVICE_CUDA;
        } else if (strcmp(argv[first], "--precision") == 0) {
            s.precision = strcmp(value, "f32") == 0 ? GT_DTYPE_F32 : strcmp(value, "bf16") == 0 ? GT_DTYPE_BF16 : GT_DTYPE_F16;
        } else {
            fprintf(stderr, "unknown option %s\n", argv[first]);
            return 2;
        }
        ++first;
    }
    for (; first < argc && code == 0; ++first) code = run(&options, &s, argv[first]);
    return code;
}

/* A whole training step of ResNet-50 on synthetic images that are on the device: forward, cross entropy, backward, SGD with momentum; in half precision with
 * autocast and, for f16, dynamic loss scaling. Time of a step and what memory it takes, to lay beside bench/peers/torch_resnet.py.
 *
 *     resnet [--batch n] [--precision f32|f16|bf16] [--checkpoint 0|1] [--offload] [--steps n] [--json]
 *            [--device cuda|cpu] [--image n] [--half-input] [--limit MiB]
 *
 * --checkpoint 1: one segment a block. --offload: saved activations go to the host. --half-input: the images are given in half precision. --limit: memory
 * that may be reserved. */
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 5, WARM_UP = 5, CLASSES = 1000 };
#define MIB 1048576.0

typedef struct setup {
    int64_t batch, image;
    gt_dtype precision;
    int checkpoint, offload, steps, json, cpu, half_input;
    double limit;
} setup;

typedef struct training {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_scaler *scaler; /* NULL: none */
    gt_tensor *x, *y;
    const setup *setup;
} training;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int report(void) {
    fprintf(stderr, "%s: %s %s\n", gt_status_name(gt_last_error()->status), gt_last_error()->message, gt_last_error()->hint);
    return 1;
}

static gt_tensor *forward(const training *t) {
    const setup *s = t->setup;
    const int half = s->precision != GT_DTYPE_F32;
    if (half && gt_autocast_begin(t->ctx, s->precision) != GT_OK) return NULL;
    if (s->offload && gt_offload_begin(t->ctx, 1 << 20) != GT_OK) return NULL;
    gt_tensor *loss = gt_cross_entropy(gt_module_forward(t->net, t->x), t->y, NULL);
    if (s->offload && gt_offload_end(t->ctx) != GT_OK) return NULL;
    if (half && gt_autocast_end(t->ctx) != GT_OK) return NULL;
    return loss;
}

/* *value (may be NULL) gets the loss, which waits for the device. */
static gt_status step(const training *t, double *value) {
    gt_status status = gt_scope_begin(t->ctx);
    if (status != GT_OK) return status;
    status = gt_optimizer_zero_grad(t->optimizer);
    gt_tensor *loss = status == GT_OK ? forward(t) : NULL;
    if (loss == NULL && status == GT_OK) status = gt_last_error()->status;
    if (status == GT_OK) status = gt_backward(t->scaler ? gt_scaler_scale(t->scaler, loss) : loss);
    if (status == GT_OK) status = t->scaler ? gt_scaler_step(t->scaler, t->optimizer) : gt_optimizer_step(t->optimizer);
    if (status == GT_OK && t->scaler) status = gt_scaler_update(t->scaler);
    if (status == GT_OK && value) status = gt_tensor_item(loss, value);
    (void)gt_scope_end(t->ctx);
    return status;
}

static gt_status set_checkpointing(gt_module *net) {
    static const char *const stages[] = {"layer1", "layer2", "layer3", "layer4"};
    for (int i = 0; i < 4; ++i) {
        gt_module *stage, *block;
        gt_status status = gt_module_find_module(net, stages[i], &stage);
        for (int32_t k = 0; status == GT_OK && k < gt_module_child_count(stage); ++k) {
            status = gt_module_child(stage, k, NULL, &block);
            if (status == GT_OK) status = gt_module_set_checkpointing(block, 1);
        }
        if (status != GT_OK) return status;
    }
    return GT_OK;
}

static gt_status make_data(training *t) {
    const setup *s = t->setup;
    const int64_t shape[4] = {s->batch, 3, s->image, s->image};
    int64_t *labels = malloc((size_t)s->batch * sizeof *labels);
    if (labels == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int64_t i = 0; i < s->batch; ++i) labels[i] = i * 7919 % CLASSES;
    gt_status status = gt_scope_begin(t->ctx);
    if (status == GT_OK) {
        gt_tensor *x = gt_channels_last(gt_tensor_normal(t->ctx, GT_DTYPE_F32, 4, shape, 0, 1));
        if (s->half_input && s->precision != GT_DTYPE_F32) x = gt_cast(x, s->precision);
        t->x = gt_tensor_retain(x);
        t->y = gt_tensor_retain(gt_tensor_from_data(t->ctx, GT_DTYPE_I64, 1, &s->batch, labels, (size_t)s->batch * sizeof *labels));
        (void)gt_scope_end(t->ctx);
        if (t->x == NULL || t->y == NULL) status = gt_last_error()->status;
    }
    free(labels);
    return status;
}

static gt_status make_training(training *t) {
    gt_optimizer_options options;
    gt_status status = gt_optimizer_options_init(&options, sizeof options, GT_OPTIMIZER_SGD);
    if (status != GT_OK) return status;
    options.learning_rate = 0.1;
    options.momentum = 0.9;
    options.weight_decay = 1e-4;
    t->net = gt_nn_resnet50(t->ctx, CLASSES);
    if (t->net == NULL) return gt_last_error()->status;
    if (t->setup->checkpoint) status = set_checkpointing(t->net);
    if (status == GT_OK) status = gt_optimizer_create_for(&options, t->net, &t->optimizer);
    if (status == GT_OK && t->setup->precision == GT_DTYPE_F16) status = gt_scaler_create(t->ctx, NULL, &t->scaler);
    return status == GT_OK ? make_data(t) : status;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int print(const training *t, const double *rounds, double host, double loss) {
    const setup *s = t->setup;
    gt_memory_stats m;
    static gt_oom_report device;
    if (gt_memory_stats_init(&m, sizeof m) != GT_OK || gt_memory_get_stats(t->ctx, &m) != GT_OK) return report();
    if (gt_oom_report_init(&device, sizeof device) != GT_OK || gt_memory_report(t->ctx, &device) != GT_OK) return report();
    const double used = (double)(device.device_total - device.device_free) / MIB, ms = rounds[ROUNDS / 2] * 1e3;
    if (s->json) {
        printf(
            "{\"cfg\": \"gtrain:resnet50\", \"device\": \"%s\", \"batch\": %lld, \"precision\": \"%s\", \"checkpoint\": %d, \"offload\": "
            "%d, "
            "\"ms\": %.3f, \"min_ms\": %.3f, \"max_ms\": %.3f, \"host_ms\": %.3f, \"samples_s\": %.1f, \"loss\": %.4f, \"peak_mib\": %.1f, "
            "\"peak_reserved_mib\": %.1f, \"device_used_mib\": %.1f",
            gt_context_device_name(t->ctx), (long long)s->batch, gt_dtype_name(s->precision), s->checkpoint, s->offload, ms,
            rounds[0] * 1e3, rounds[ROUNDS - 1] * 1e3, host * 1e3, (double)s->batch / rounds[ROUNDS / 2], loss, (double)m.peak_in_use / MIB,
            (double)m.peak_reserved / MIB, used);
        for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c)
            printf(", \"at_peak_%s_mib\": %.1f", gt_memory_category_name(c), (double)m.category_at_peak[c] / MIB);
        printf("}\n");
        return 0;
    }
    printf("%s, ResNet-50, batch %lld, %s%s%s\n", gt_context_device_name(t->ctx), (long long)s->batch, gt_dtype_name(s->precision),
           s->checkpoint ? ", a segment a block" : "", s->offload ? ", offload" : "");
    printf("step           %9.2f ms (%.2f to %.2f; host %.2f), %.0f images/s, loss %.4f\n", ms, rounds[0] * 1e3, rounds[ROUNDS - 1] * 1e3,
           host * 1e3, (double)s->batch / rounds[ROUNDS / 2], loss);
    printf("peak in use    %9.1f MiB\npeak reserved  %9.1f MiB\ndevice, used   %9.1f MiB (all processes and the driver)\n",
           (double)m.peak_in_use / MIB, (double)m.peak_reserved / MIB, used);
    for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c)
        printf("  %-30s %9.1f MiB at the peak, %9.1f at its own\n", gt_memory_category_name(c), (double)m.category_at_peak[c] / MIB,
               (double)m.category_peak[c] / MIB);
    return 0;
}

static int run(training *t) {
    double rounds[ROUNDS], host = 0, loss = 0;
    const int each = t->setup->steps / ROUNDS > 0 ? t->setup->steps / ROUNDS : 1;
    for (int i = 0; i < WARM_UP; ++i) {
        if (step(t, NULL) != GT_OK) return report();
    }
    if (gt_context_synchronize(t->ctx) != GT_OK || gt_memory_reset_peak(t->ctx) != GT_OK) return report();
    for (int r = 0; r < ROUNDS; ++r) {
        double begin = now();
        for (int i = 0; i < each; ++i) {
            if (step(t, NULL) != GT_OK) return report();
        }
        host += (now() - begin) / each / ROUNDS;
        if (gt_context_synchronize(t->ctx) != GT_OK) return report();
        rounds[r] = (now() - begin) / each;
    }
    qsort(rounds, ROUNDS, sizeof rounds[0], by_value);
    if (step(t, &loss) != GT_OK) return report();
    return print(t, rounds, host, loss);
}

static int parse(int argc, char **argv, setup *s) {
    for (int i = 1; i < argc; ++i) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--offload") == 0) {
            s->offload = 1;
            continue;
        } else if (strcmp(argv[i], "--json") == 0) {
            s->json = 1;
            continue;
        } else if (strcmp(argv[i], "--half-input") == 0) {
            s->half_input = 1;
            continue;
        } else if (strcmp(argv[i], "--batch") == 0) {
            s->batch = atoll(value);
        } else if (strcmp(argv[i], "--image") == 0) {
            s->image = atoll(value);
        } else if (strcmp(argv[i], "--precision") == 0) {
            s->precision = strcmp(value, "f16") == 0 ? GT_DTYPE_F16 : strcmp(value, "bf16") == 0 ? GT_DTYPE_BF16 : GT_DTYPE_F32;
        } else if (strcmp(argv[i], "--checkpoint") == 0) {
            s->checkpoint = atoi(value) != 0;
        } else if (strcmp(argv[i], "--steps") == 0) {
            s->steps = atoi(value);
        } else if (strcmp(argv[i], "--device") == 0) {
            s->cpu = strcmp(value, "cpu") == 0;
        } else if (strcmp(argv[i], "--limit") == 0) {
            s->limit = atof(value);
        } else {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            return 2;
        }
        ++i;
    }
    if (s->batch > 0 && s->image > 0 && s->steps > 0) return 0;
    fprintf(stderr, "--batch, --image and --steps must be at least 1\n");
    return 2;
}

int main(int argc, char **argv) {
    setup s = {.batch = 256, .image = 224, .precision = GT_DTYPE_F16, .steps = 25};
    int code = parse(argc, argv, &s);
    if (code != 0) return code;
    gt_context_options options;
    training t = {.setup = &s};
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return report();
    options.device = s.cpu ? GT_DEVICE_CPU : GT_DEVICE_CUDA;
    options.memory_limit = (uint64_t)(s.limit * MIB);
    if (gt_context_create(&options, &t.ctx) != GT_OK) return report();
    code = make_training(&t) == GT_OK ? run(&t) : report();
    gt_scaler_destroy(t.scaler);
    gt_optimizer_destroy(t.optimizer);
    gt_module_destroy(t.net);
    gt_tensor_release(t.x);
    gt_tensor_release(t.y);
    gt_context_destroy(t.ctx);
    return code;
}

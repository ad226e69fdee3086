/* Time and arena of compiled steps with elementwise ops one by one and in chains (gt_step_options.fuse_elementwise), as one JSON line a workload. The two are measured in turns.
 *
 *     chain_time [--precision f16|bf16|f32] [--threads n] [--device cuda|cpu] WORKLOAD...
 *
 * WORKLOAD is a name and a size: loss1000000 (mean((a - b)^2) of so many elements), block1000000 (x + dropout(gelu(x) * s)), scale1000000 (two cheap ops), swish256 (an MLP
 * 512-2048-2048-512 with x * sigmoid(x) and the loss above, forward, backward and SGD, at that batch size). */
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 9, WIDE = 2048, NARROW = 512, LAYERS = 3 };

typedef struct bench {
    gt_context *ctx;
    gt_module *net, *layers[LAYERS];
    gt_optimizer *optimizers[2]; /* one by one, in chains */
    gt_tensor *inputs[2];
    gt_dtype precision;
    const char *kind;
} bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int report(void) {
    fprintf(stderr, "%s: %s %s\n", gt_status_name(gt_last_error()->status), gt_last_error()->message, gt_last_error()->hint);
    return 1;
}

static gt_tensor *squares(gt_tensor *a, gt_tensor *b) {
    gt_tensor *d = gt_sub(a, b);
    return gt_mean(gt_mul(d, d), NULL, 0, 0);
}

static gt_status work(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    const bench *b = user;
    gt_tensor *x = inputs[0];
    (void)n;
    if (strcmp(b->kind, "loss") == 0) {
        r->loss = squares(gt_cast(x, GT_DTYPE_F32), gt_cast(inputs[1], GT_DTYPE_F32));
    } else if (strcmp(b->kind, "block") == 0) {
        r->outputs[0] = gt_add(x, gt_dropout(gt_mul(gt_gelu(x), inputs[1]), 0.1, 1));
    } else if (strcmp(b->kind, "scale") == 0) {
        r->outputs[0] = gt_add(gt_mul_scalar(x, 0.5), inputs[1]);
    } else {
        for (int i = 0; i < LAYERS; ++i) {
            x = gt_module_forward(b->layers[i], x);
            if (i + 1 < LAYERS) x = gt_mul(x, gt_sigmoid(x));
        }
        r->loss = squares(gt_cast(x, GT_DTYPE_F32), inputs[1]);
    }
    return r->loss || r->outputs[0] ? GT_OK : gt_last_error()->status;
}

static gt_status make(bench *b, int64_t size) {
    int swish = strcmp(b->kind, "swish") == 0;
    const int64_t shape[2] = {swish ? size : 1, swish ? NARROW : size};
    gt_status status = gt_scope_begin(b->ctx);
    for (int k = 0; k < 2; ++k) {
        gt_tensor *x = gt_tensor_normal(b->ctx, GT_DTYPE_F32, 2, shape, 0, 1);
        b->inputs[k] = gt_tensor_retain(swish ? x : gt_cast(x, b->precision));
    }
    if (status == GT_OK) status = gt_scope_end(b->ctx);
    if (b->inputs[0] == NULL || b->inputs[1] == NULL) return gt_last_error()->status;
    if (status != GT_OK || !swish) return status;
    static const int64_t widths[LAYERS + 1] = {NARROW, WIDE, WIDE, NARROW};
    for (int i = 0; i < LAYERS; ++i) b->layers[i] = gt_nn_linear(b->ctx, widths[i], widths[i + 1], NULL);
    b->net = gt_nn_sequential_from(b->ctx, b->layers, LAYERS);
    return b->net ? GT_OK : gt_last_error()->status;
}

static gt_status make_step(bench *b, int fused, gt_step **step) {
    gt_step_options o;
    gt_status status = gt_step_options_init(&o, sizeof o);
    if (status != GT_OK) return status;
    o.fn = work;
    o.user = b;
    o.module = b->net;
    o.fuse_elementwise = fused ? 1 : -1;
    if (b->net) {
        gt_optimizer_options sgd;
        status = gt_optimizer_options_init(&sgd, sizeof sgd, GT_OPTIMIZER_SGD);
        sgd.learning_rate = 1e-3;
        if (status == GT_OK) status = gt_optimizer_create_for(&sgd, b->net, &b->optimizers[fused]);
        o.optimizers = &b->optimizers[fused];
        o.n_optimizers = 1;
        o.autocast = b->precision;
    }
    return status == GT_OK ? gt_step_create(b->ctx, &o, step) : status;
}

static gt_status repeat(bench *b, gt_step *step, int times, double *seconds) {
    gt_status status = GT_OK;
    double begin = now();
    for (int i = 0; i < times && status == GT_OK; ++i) status = gt_step_run(step, b->inputs, 2);
    if (status == GT_OK) status = gt_context_synchronize(b->ctx);
    *seconds = (now() - begin) / times;
    return status;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static gt_status measure(bench *b, gt_step *const *steps, const char *name) {
    double seconds[2][ROUNDS], one;
    gt_step_memory memory[2];
    gt_status status = GT_OK;
    for (int k = 0; k < 2 && status == GT_OK; ++k) status = repeat(b, steps[k], 5, &one);
    if (status == GT_OK) status = repeat(b, steps[0], 5, &one);
    int times = status == GT_OK && 0.1 / one + 1 < 2000 ? (int)(0.1 / one + 1) : 2000;
    for (int r = 0; r < ROUNDS; ++r)
        for (int k = 0; k < 2 && status == GT_OK; ++k) status = repeat(b, steps[k], times, &seconds[k][r]);
    for (int k = 0; k < 2 && status == GT_OK; ++k) {
        qsort(seconds[k], ROUNDS, sizeof seconds[k][0], by_value);
        status = gt_step_memory_init(&memory[k], sizeof memory[k]);
        if (status == GT_OK) status = gt_step_get_memory(steps[k], &memory[k]);
    }
    if (status != GT_OK) return status;
    const double *ms[2] = {seconds[0], seconds[1]};
    printf("{\"workload\": \"%s\", \"dtype\": \"%s\", \"ms\": %.4f, \"chains_ms\": %.4f, \"best_ms\": %.4f, \"chains_best_ms\": %.4f, "
           "\"ratio\": %.2f, "
           "\"instructions\": %d, \"chains_instructions\": %d, \"arena_mib\": %.2f, \"chains_arena_mib\": %.2f}\n",
           name, gt_dtype_name(b->precision), ms[0][ROUNDS / 2] * 1e3, ms[1][ROUNDS / 2] * 1e3, ms[0][0] * 1e3, ms[1][0] * 1e3,
           ms[0][ROUNDS / 2] / ms[1][ROUNDS / 2], (int)memory[0].instructions, (int)memory[1].instructions,
           (double)memory[0].arena / 1048576.0, (double)memory[1].arena / 1048576.0);
    fflush(stdout);
    return GT_OK;
}

static int run(const gt_context_options *options, gt_dtype precision, const char *name) {
    static const char *const kinds[] = {"loss", "block", "scale", "swish"};
    bench b = {.precision = precision};
    int64_t size = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        if (strncmp(name, kinds[i], strlen(kinds[i])) != 0) continue;
        b.kind = kinds[i];
        size = atoll(name + strlen(kinds[i]));
    }
    if (size <= 0) {
        fprintf(stderr, "%s: a workload is loss, block, scale or swish and a size, such as loss1000000\n", name);
        return 2;
    }
    gt_step *steps[2] = {NULL, NULL};
    gt_status status = gt_context_create(options, &b.ctx);
    if (status == GT_OK) status = make(&b, size);
    for (int k = 0; k < 2 && status == GT_OK; ++k) status = make_step(&b, k, &steps[k]);
    if (status == GT_OK) status = measure(&b, steps, name);
    int code = status == GT_OK ? 0 : report();
    for (int k = 0; k < 2; ++k) {
        gt_step_destroy(steps[k]);
        gt_optimizer_destroy(b.optimizers[k]);
        gt_tensor_release(b.inputs[k]);
    }
    gt_module_destroy(b.net);
    gt_context_destroy(b.ctx);
    return code;
}

int main(int argc, char **argv) {
    gt_context_options options;
    gt_dtype precision = GT_DTYPE_F32;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return report();
    int at = 1, code = 0;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        const char *value = argv[at + 1];
        if (strcmp(argv[at], "--device") == 0) {
            options.device = strcmp(value, "cpu") == 0 ? GT_DEVICE_CPU : GT_DEVICE_CUDA;
        } else if (strcmp(argv[at], "--threads") == 0) {
            options.cpu_threads = atoi(value);
        } else if (strcmp(argv[at], "--precision") == 0) {
            precision = strcmp(value, "f16") == 0 ? GT_DTYPE_F16 : strcmp(value, "bf16") == 0 ? GT_DTYPE_BF16 : GT_DTYPE_F32;
        } else {
            fprintf(stderr, "unknown option %s\n", argv[at]);
            return 2;
        }
    }
    for (; at < argc && code == 0; ++at) code = run(&options, precision, argv[at]);
    return code;
}

/* A tour of what gtrain does about memory: a convolutional network and a deep MLP are trained under a limit that their plain training does not fit.
 *
 *  1. The network is trained plainly and without a limit, to see what it needs.
 *  2. Under a limit the same training runs out of memory. The report says where the bytes are and what would help; the window goes back to its start, and
 *     the very same batch then goes through in smaller pieces.
 *  3. Each technique alone, and all together, under the limit: the peak by category, the time of a step, and the loss on data that were seen in training.
 *
 * None of them changes what is learned: accumulation, checkpointing and offload give the plain run's loss but for the order of sums, and half precision
 * comes close to it.
 *
 *     memory_tour [--device auto|cpu|cuda] [--steps N] [--timeline FILE.html] [--json]
 */
#include <gtrain/gtrain.h>

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        gt_status try_status = (call);                                                                                                     \
        if (try_status != GT_OK) return try_status;                                                                                        \
    } while (0)

enum { CLASSES = 10, BATCHES = 4, CHUNKS = 8 };

/* --- the techniques ------------------------------------------------------------------------------------------------------------------ */
typedef struct technique {
    const char *name;
    int32_t micro_batches; /* pieces that a batch goes through in; their gradients are summed, and then there is one update */
    gt_dtype dtype;        /* in which products are computed and their results kept; weights and updates stay f32 */
    int32_t segments;      /* of the network: backward has only the inputs of each, and computes the rest again. 0: keeps everything */
    int32_t offload;       /* not 0: what backward will need waits in the host's memory */
} technique;

static const technique techniques[] = {
    {"plain", 1, GT_DTYPE_F32, 0, 0},        {"accumulation", 4, GT_DTYPE_F32, 0, 0},  {"f16", 1, GT_DTYPE_F16, 0, 0},
    {"bf16", 1, GT_DTYPE_BF16, 0, 0},        {"checkpointing", 1, GT_DTYPE_F32, 4, 0}, {"offload", 1, GT_DTYPE_F32, 0, 1},
    {"all together", 4, GT_DTYPE_F16, 4, 1},
};
enum { TECHNIQUES = sizeof techniques / sizeof techniques[0] };

/* --- the networks, in sizes for each device -------------------------------------------------------------------------------------------- */
typedef struct problem {
    const char *name;
    int64_t batch, width, depth, side; /* side 0: rows of `width` features instead of images of 3 x side x side */
    double learning_rate;
} problem;

static const problem problems_cpu[] = {{"cnn", 32, 16, 8, 16, 2e-3}, {"mlp", 1024, 64, 16, 0, 2e-3}};
static const problem problems_cuda[] = {{"cnn", 256, 128, 16, 32, 1e-3}, {"mlp", 8192, 2048, 24, 0, 1e-4}};
enum { PROBLEMS = 2 };

static int64_t sample_size(const problem *p) { return p->side ? 3 * p->side * p->side : p->width; }

/* x + gelu(layer(x)): deep stacks of it learn from the first step on. */
static gt_module *residual(gt_context *ctx, gt_module *layer) {
    gt_module *body[] = {layer, gt_nn_gelu(ctx, 0)};
    return gt_nn_residual(gt_nn_sequential_from(ctx, body, 2), gt_nn_identity(ctx), NULL);
}

static gt_module *conv3x3(gt_context *ctx, int64_t in, int64_t out) {
    gt_nn_conv2d_options options;
    if (gt_nn_conv2d_options_init(&options, sizeof options) != GT_OK) return NULL;
    options.padding[0] = options.padding[1] = 1;
    return gt_nn_conv2d(ctx, in, out, 3, &options);
}

/* NULL if a layer could not be made; the error is kept. */
static gt_module *make_net(gt_context *ctx, const problem *p) {
    gt_module *net = gt_nn_sequential(ctx);
    gt_status status = GT_OK;
    if (p->side) status = gt_nn_sequential_add(net, conv3x3(ctx, 3, p->width));
    for (int64_t i = 0; i < p->depth && status == GT_OK; ++i) {
        gt_module *layer = p->side ? conv3x3(ctx, p->width, p->width) : gt_nn_linear(ctx, p->width, p->width, NULL);
        status = gt_nn_sequential_add(net, residual(ctx, layer));
    }
    if (p->side && status == GT_OK) status = gt_nn_sequential_add(net, gt_nn_adaptive_avg_pool2d(ctx, 4, 4));
    if (p->side && status == GT_OK) status = gt_nn_sequential_add(net, gt_nn_flatten(ctx, 1));
    if (status == GT_OK) status = gt_nn_sequential_add(net, gt_nn_linear(ctx, p->side ? 16 * p->width : p->width, CLASSES, NULL));
    if (status == GT_OK) return net;
    gt_module_destroy(net);
    return NULL;
}

/* --- data: each class is a random pattern, each sample its class's pattern under noise ------------------------------------------------------ */
typedef struct data {
    float *samples; /* BATCHES * batch of them */
    int64_t *labels;
} data;

static float noise(uint64_t *state) { /* uniform in [-1, 1): xorshift64* (Vigna 2016) */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (float)(int32_t)(*state * 0x2545f4914f6cdd1dull >> 32) * 0x1p-31f;
}

static int data_make(data *d, const problem *p) {
    int64_t count = BATCHES * p->batch, size = sample_size(p);
    uint64_t state = 42;
    float *patterns = malloc((size_t)(CLASSES * size) * sizeof *patterns);
    d->samples = malloc((size_t)(count * size) * sizeof *d->samples);
    d->labels = malloc((size_t)count * sizeof *d->labels);
    if (patterns == NULL || d->samples == NULL || d->labels == NULL) {
        free(patterns);
        return 1;
    }
    for (int64_t i = 0; i < CLASSES * size; ++i) patterns[i] = noise(&state);
    for (int64_t s = 0; s < count; ++s) {
        d->labels[s] = s * 7 % CLASSES;
        for (int64_t i = 0; i < size; ++i) d->samples[s * size + i] = 0.3f * patterns[d->labels[s] * size + i] + noise(&state);
    }
    free(patterns);
    return 0;
}

static void data_free(data *d) {
    free(d->samples);
    free(d->labels);
}

/* --- a training in progress ------------------------------------------------------------------------------------------------------------ */
typedef struct session {
    const problem *p;
    const technique *how;
    const data *d;
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_scaler *scaler; /* f16 alone: keeps small gradients from becoming 0 */
    gt_window *window; /* sums the gradients of micro-batches and updates after the last */
} session;

static gt_status session_open(session *s, gt_device_kind device, uint64_t limit) {
    gt_context_options context;
    TRY(gt_context_options_init(&context, sizeof context));
    context.device = device;
    context.memory_limit = limit;
    context.seed = 1; /* the same weights each time */
    TRY(gt_context_create(&context, &s->ctx));
    s->net = make_net(s->ctx, s->p);
    if (s->net == NULL) return gt_last_error()->status;
    if (s->how->segments > 0) TRY(gt_nn_sequential_set_segments(s->net, s->how->segments));
    gt_optimizer_options rule;
    TRY(gt_optimizer_options_init(&rule, sizeof rule, GT_OPTIMIZER_ADAM));
    rule.learning_rate = s->p->learning_rate;
    TRY(gt_optimizer_create_for(&rule, s->net, &s->optimizer));
    if (s->how->dtype == GT_DTYPE_F16) TRY(gt_scaler_create(s->ctx, NULL, &s->scaler));
    gt_window_options window;
    TRY(gt_window_options_init(&window, sizeof window));
    window.micro_batches = s->how->micro_batches;
    window.module = s->net;
    window.optimizers = &s->optimizer;
    window.n_optimizers = 1;
    window.scaler = s->scaler;
    return gt_window_create(&window, &s->window);
}

static void session_close(session *s) {
    gt_window_destroy(s->window);
    gt_scaler_destroy(s->scaler);
    gt_optimizer_destroy(s->optimizer);
    gt_module_destroy(s->net);
    gt_context_destroy(s->ctx);
}

static gt_tensor *mean_loss(session *s, int64_t first, int64_t count) {
    const problem *p = s->p;
    const int64_t image[4] = {count, 3, p->side, p->side}, row[2] = {count, p->width};
    size_t bytes = (size_t)(count * sample_size(p)) * sizeof(float);
    gt_tensor *x =
        gt_tensor_from_data(s->ctx, GT_DTYPE_F32, p->side ? 4 : 2, p->side ? image : row, s->d->samples + first * sample_size(p), bytes);
    gt_tensor *y = gt_tensor_from_data(s->ctx, GT_DTYPE_I64, 1, &count, s->d->labels + first, (size_t)count * sizeof(int64_t));
    return gt_cross_entropy(gt_module_forward(s->net, x), y, NULL);
}

/* Forward and backward of samples first to first + count: the whole of the techniques' code. */
static gt_status micro_batch(session *s, int64_t first, int64_t count) {
    TRY(gt_scope_begin(s->ctx));
    gt_status status = gt_window_micro_begin(s->window);
    if (status == GT_OK) {
        int half = s->how->dtype != GT_DTYPE_F32 && gt_autocast_begin(s->ctx, s->how->dtype) == GT_OK;
        int offload = s->how->offload && gt_offload_begin(s->ctx, 64 << 10) == GT_OK;
        gt_tensor *loss = mean_loss(s, first, count);
        if (offload) gt_offload_end(s->ctx);
        if (half) gt_autocast_end(s->ctx);
        status = gt_window_micro_end(s->window, loss, (double)count, NULL); /* backward; after the window's last micro-batch, the update */
    }
    TRY(gt_scope_end(s->ctx)); /* frees the batch and all that was computed from it, after a failure too */
    return status;
}

/* One update. */
static gt_status train_step(session *s, int64_t step, int32_t micro_batches) {
    int64_t first = step % BATCHES * s->p->batch, count = s->p->batch / micro_batches;
    for (int32_t i = 0; i < micro_batches; ++i) TRY(micro_batch(s, first + i * count, count));
    return GT_OK;
}

/* The mean loss over all data, in f32 and in small pieces, whatever the training did. */
static gt_status final_loss(session *s, double *loss) {
    int64_t count = s->p->batch / CHUNKS;
    *loss = 0;
    for (int64_t i = 0; i < BATCHES * CHUNKS; ++i) {
        double part = 0;
        TRY(gt_scope_begin(s->ctx));
        TRY(gt_no_grad_begin(s->ctx));
        gt_tensor *mean = mean_loss(s, i * count, count);
        TRY(gt_no_grad_end(s->ctx));
        gt_status status = mean ? gt_tensor_item(mean, &part) : gt_last_error()->status;
        TRY(gt_scope_end(s->ctx));
        TRY(status);
        *loss += part / (BATCHES * CHUNKS);
    }
    return GT_OK;
}

/* --- step 1 and 3: training with one technique ------------------------------------------------------------------------------------------- */
typedef struct result {
    gt_status status;       /* OUT_OF_MEMORY where the technique alone is not enough */
    gt_memory_stats memory; /* of the whole training but for its first step, in which plans are tried out */
    double milliseconds;    /* of a step */
    double loss;
} result;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static gt_status train(session *s, int64_t steps, result *r) {
    TRY(train_step(s, 0, s->how->micro_batches));
    TRY(gt_context_synchronize(s->ctx));
    TRY(gt_memory_reset_peak(s->ctx));
    double began = seconds();
    for (int64_t step = 1; step < steps; ++step) TRY(train_step(s, step, s->how->micro_batches));
    TRY(gt_context_synchronize(s->ctx));
    r->milliseconds = 1e3 * (seconds() - began) / (double)(steps - 1);
    TRY(gt_memory_stats_init(&r->memory, sizeof r->memory));
    TRY(gt_memory_get_stats(s->ctx, &r->memory));
    return final_loss(s, &r->loss);
}

static gt_status measure(session s, gt_device_kind device, uint64_t limit, int64_t steps, result *r) {
    *r = (result){0};
    r->status = session_open(&s, device, limit);
    if (r->status == GT_OK) r->status = train(&s, steps, r);
    session_close(&s);
    return r->status == GT_OUT_OF_MEMORY ? GT_OK : r->status;
}

/* --- step 2: running out of memory, and going on --------------------------------------------------------------------------------------------- */
typedef struct shortage {
    char text[GT_OOM_TEXT_SIZE];
    char json[16384];
} shortage;

static gt_status run_out(session s, gt_device_kind device, uint64_t limit, const char *timeline, shortage *out) {
    const int32_t pieces = 4;
    size_t needed = 0;
    gt_oom_report report;
    gt_status status = session_open(&s, device, limit);
    /* Two updates from batches in pieces, which fit ... */
    if (status == GT_OK) status = gt_window_set_micro_batches(s.window, pieces);
    for (int64_t step = 0; step < 2 && status == GT_OK; ++step) status = train_step(&s, step, pieces);
    /* ... and one from a whole batch, which does not. */
    if (status == GT_OK) status = gt_window_set_micro_batches(s.window, 1);
    if (status == GT_OK) {
        status = train_step(&s, 2, 1);
        if (status == GT_OK) {
            fprintf(stderr, "%s: a whole batch fits after all\n", s.p->name);
            status = GT_BAD_STATE;
        } else if (status == GT_OUT_OF_MEMORY) {
            status = gt_oom_report_init(&report, sizeof report);
        }
    }
    if (status == GT_OK) status = gt_memory_last_oom(s.ctx, &report);
    if (status == GT_OK) status = gt_oom_report_text(&report, out->text, sizeof out->text, NULL);
    if (status == GT_OK) status = gt_oom_report_json(&report, NULL, 0, &needed);
    if (status == GT_OK && needed > sizeof out->json) status = GT_BAD_STATE;
    if (status == GT_OK) status = gt_oom_report_json(&report, out->json, sizeof out->json, NULL);
    /* Weights, optimizer and random numbers are as before the batch that failed: in pieces it goes through. */
    if (status == GT_OK) status = gt_window_set_micro_batches(s.window, pieces);
    if (status == GT_OK) status = train_step(&s, 2, pieces);
    if (status == GT_OK && timeline) status = gt_memory_timeline(s.ctx, timeline);
    session_close(&s);
    return status;
}

/* --- what is printed ------------------------------------------------------------------------------------------------------------------------- */
static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

static const gt_memory_category columns[] = {GT_MEMORY_PARAMETER, GT_MEMORY_GRADIENT, GT_MEMORY_OPTIMIZER, GT_MEMORY_ACTIVATION};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

static void print_row(const char *name, const result *r, uint64_t limit) {
    if (r->status != GT_OK) {
        printf("  %-15s runs out of memory\n", name);
        return;
    }
    uint64_t rest = r->memory.peak_in_use;
    printf("  %-15s %8.1f", name, mib(rest));
    for (int c = 0; c < COLUMNS; ++c) {
        uint64_t bytes = r->memory.category_at_peak[columns[c]];
        rest -= bytes;
        printf(" %10.1f", mib(bytes));
    }
    printf(" %8.1f %9.1f %9.4f%s\n", mib(rest), r->milliseconds, r->loss, limit ? "" : "  without a limit");
}

static void print_json(const char *name, const result *r, int first) {
    printf("%s{\"technique\":\"%s\",\"status\":\"%s\"", first ? "" : ",", name, gt_status_name(r->status));
    if (r->status == GT_OK) {
        printf(",\"peak_bytes\":%llu,\"categories\":{", (unsigned long long)r->memory.peak_in_use);
        for (gt_memory_category c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c)
            printf("%s\"%s\":%llu", c ? "," : "", gt_memory_category_name(c), (unsigned long long)r->memory.category_at_peak[c]);
        printf("},\"ms\":%.3f,\"loss\":%.6f", r->milliseconds, r->loss);
    }
    printf("}");
}

typedef struct settings {
    gt_device_kind device;
    int64_t steps;
    const char *timeline;
    int json;
} settings;

static gt_status tour(const settings *o, const problem *p, const data *d, int first) {
    static const char *const heads[COLUMNS] = {"parameters", "gradients", "optimizer", "saved"};
    result results[TECHNIQUES];
    shortage out;
    session s = {.p = p, .how = &techniques[0], .d = d};
    TRY(measure(s, o->device, 0, o->steps, &results[0]));
    TRY(results[0].status);
    uint64_t limit = results[0].memory.peak_in_use / 4 * 3;
    if (!o->json)
        printf("%s: %lld layers of width %lld, batches of %lld. It needs %.1f MiB; the limit is set to three quarters, %.1f MiB.\n\n",
               p->name, (long long)p->depth, (long long)p->width, (long long)p->batch, mib(results[0].memory.peak_in_use), mib(limit));
    TRY(run_out(s, o->device, limit, first ? o->timeline : NULL, &out));
    if (!o->json) printf("%s\nThe same batch in four pieces went through.\n\n", out.text);
    for (int i = 1; i < TECHNIQUES; ++i) {
        s.how = &techniques[i];
        TRY(measure(s, o->device, limit, o->steps, &results[i]));
    }
    if (o->json) {
        printf("%s{\"network\":\"%s\",\"batch\":%lld,\"limit\":%llu,\"out_of_memory\":%s,\"runs\":[", first ? "" : ",", p->name,
               (long long)p->batch, (unsigned long long)limit, out.json);
        for (int i = 0; i < TECHNIQUES; ++i) print_json(techniques[i].name, &results[i], i == 0);
        printf("]}");
        return GT_OK;
    }
    printf("  %-15s %8s", "peak, MiB", "all");
    for (int c = 0; c < COLUMNS; ++c) printf(" %10s", heads[c]);
    printf(" %8s %9s %9s\n", "other", "ms a step", "loss");
    for (int i = 0; i < TECHNIQUES; ++i) print_row(techniques[i].name, &results[i], i ? limit : 0);
    printf("\n");
    return GT_OK;
}

static int usage(FILE *out, const char *program) {
    fprintf(out,
            "Trains two networks under a memory limit, with each technique that saves memory.\n\n"
            "Usage: %s [options]\n"
            "  --device NAME    auto, cpu or cuda (auto)\n"
            "  --steps N        updates of each training (50)\n"
            "  --timeline FILE  write the first network's memory over time, as it runs out, to an HTML page\n"
            "  --json           one line of JSON instead of text\n"
            "  --help           this text\n",
            program);
    return out == stdout ? 0 : 2;
}

/* Not 0 after a mistake. */
static int read_option(int code, settings *o) {
    char *end;
    switch (code) {
    case 'd':
        o->device = strcmp(optarg, "cpu") == 0 ? GT_DEVICE_CPU : strcmp(optarg, "cuda") == 0 ? GT_DEVICE_CUDA : GT_DEVICE_AUTO;
        return o->device == GT_DEVICE_AUTO && strcmp(optarg, "auto") != 0;
    case 's':
        o->steps = strtoll(optarg, &end, 10);
        return *end != '\0' || end == optarg || o->steps < 2 || o->steps > 1000000;
    case 't':
        o->timeline = optarg;
        return 0;
    case 'j':
        o->json = 1;
        return 0;
    default:
        return 1;
    }
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},   {"steps", required_argument, NULL, 's'},
                                            {"timeline", required_argument, NULL, 't'}, {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0}};
    settings o = {.device = GT_DEVICE_AUTO, .steps = 50};
    for (int code; (code = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (code == 'h') return usage(stdout, argv[0]);
        if (read_option(code, &o)) return usage(stderr, argv[0]);
    }
    if (optind < argc) return usage(stderr, argv[0]);

    /* Which device it is decides the sizes. */
    gt_context_options context;
    gt_context *ctx = NULL;
    gt_status status = gt_context_options_init(&context, sizeof context);
    context.device = o.device;
    if (status == GT_OK) status = gt_context_create(&context, &ctx);
    if (status == GT_OK) {
        o.device = gt_context_device(ctx);
        printf(o.json ? "{\"device\":\"%s\",\"networks\":[" : "%s\n\n", gt_context_device_name(ctx));
    }
    gt_context_destroy(ctx);
    const problem *problems = o.device == GT_DEVICE_CUDA ? problems_cuda : problems_cpu;
    for (int i = 0; i < PROBLEMS && status == GT_OK; ++i) {
        data d = {0};
        if (data_make(&d, &problems[i]) == 0)
            status = tour(&o, &problems[i], &d, i == 0);
        else
            status = GT_OUT_OF_HOST_MEMORY;
        data_free(&d);
    }
    if (status != GT_OK) {
        fflush(stdout);
        fprintf(stderr, "%s: %s: %s\n%s\n", argv[0], gt_status_name(status), gt_last_error()->message, gt_last_error()->hint);
        return 1;
    }
    if (o.json) printf("]}\n");
    if (!o.json && o.timeline) printf("Open %s in a browser.\n", o.timeline);
    return 0;
}

/* Batch norm at the shapes of ResNet-50 (batch 256): alone, with relu, and with a residual and relu; forward and backward. Time, and terabytes a second by the
 * passes that have to touch memory: what a kernel that reads and writes everything just once a pass would move.
 *
 *     norm_time [f16|bf16|f32] [--device cpu] [--batch n]
 */
#include "core/core.h"

#include <gtrain/gtrain.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 20, REPEAT = 10 };
enum { PLAIN, RELU, ADD_RELU, MODES };

static const struct {
    const char *name;
    gt__op_id forward, backward;
    int forward_passes, backward_passes; /* over a tensor of x's size, read and written */
} modes[MODES] = {{"plain", GT__OP_BATCH_NORM, GT__OP_BATCH_NORM_BACKWARD, 3, 5},
                  {"relu", GT__OP_BATCH_NORM_RELU, GT__OP_BATCH_NORM_RELU_BACKWARD, 3, 5},
                  {"add_relu", GT__OP_BATCH_NORM_ADD_RELU, GT__OP_BATCH_NORM_ADD_RELU_BACKWARD, 4, 7}};

typedef struct inputs {
    gt_context *ctx;
    gt_tensor *x, *residual, *dy, *weight, *bias, *running_mean, *running_var, *y, *mean, *rstd;
    gt__attrs attr;
} inputs;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int report(void) {
    fprintf(stderr, "%s: %s\n", gt_status_name(gt_last_error()->status), gt_last_error()->message);
    return 1;
}

static gt_status forward(inputs *in, int mode, gt_tensor **out) {
    gt_tensor *tensors[6] = {in->x, in->weight, in->bias, in->running_mean, in->running_var, in->residual};
    return gt__op_multi(modes[mode].forward, tensors, mode == ADD_RELU ? 6 : 5, &in->attr, 7, out);
}

static gt_status backward(inputs *in, int mode, gt_tensor **out) {
    gt_tensor *plain[5] = {in->dy, in->x, in->weight, in->mean, in->rstd};
    gt_tensor *relu[6] = {in->dy, in->x, in->weight, mode == RELU ? in->bias : in->y, in->mean, in->rstd};
    return gt__op_multi(modes[mode].backward, mode == PLAIN ? plain : relu, mode == PLAIN ? 5 : 6, &in->attr, mode == ADD_RELU ? 15 : 7,
                        out);
}

/* One normalise (+ relu) again from given statistics, as backward does it instead of keeping the output: two passes. */
static gt_status apply(inputs *in, int mode, gt_tensor **out) {
    gt_tensor *tensors[5] = {in->x, in->weight, in->bias, in->mean, in->rstd};
    gt__attrs attr = in->attr;
    attr.norm.activation = mode == PLAIN ? GT_ACTIVATION_NONE : GT_ACTIVATION_RELU;
    return gt__op_multi(GT__OP_BATCH_NORM_APPLY, tensors, 5, &attr, 1, out);
}

typedef gt_status (*call_fn)(inputs *in, int mode, gt_tensor **out);

/* Microseconds of one call. Several are queued between two waits, so that launches are hidden as in a training step. */
static int measure(inputs *in, call_fn call, int mode, double *best) {
    *best = 1e9;
    for (int r = 0; r < ROUNDS; ++r) {
        if (gt_context_synchronize(in->ctx) != GT_OK) return report();
        double begin = now();
        for (int i = 0; i < REPEAT; ++i) {
            gt_tensor *out[GT__MAX_OUT] = {NULL};
            if (gt_scope_begin(in->ctx) != GT_OK || call(in, mode, out) != GT_OK || gt_scope_end(in->ctx) != GT_OK) return report();
        }
        if (gt_context_synchronize(in->ctx) != GT_OK) return report();
        double took = (now() - begin) / REPEAT * 1e6;
        if (took < *best) *best = took;
    }
    return 0;
}

static int run_shape(gt_context *ctx, gt_dtype dtype, int64_t batch, int64_t channels, int64_t size, double *total) {
    const int64_t shape[4] = {batch, channels, size, size};
    inputs in = {.ctx = ctx};
    memset(&in.attr, 0, sizeof in.attr);
    in.attr.norm.epsilon = 1e-5;
    in.attr.norm.momentum = 0.1;
    in.attr.norm.training = 1;
    if (gt_scope_begin(ctx) != GT_OK) return report();
    gt_tensor **images[] = {&in.x, &in.residual, &in.dy};
    for (int i = 0; i < 3; ++i) {
        if (gt_scope_begin(ctx) != GT_OK) return report();
        *images[i] = gt_scope_return(ctx, gt_channels_last(gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, shape, 0, 1), dtype)));
        if (*images[i] == NULL) return report();
    }
    gt_tensor **vectors[] = {&in.weight, &in.bias, &in.running_mean, &in.running_var};
    for (int i = 0; i < 4; ++i) *vectors[i] = gt_tensor_full(ctx, GT_DTYPE_F32, 1, &channels, i % 3 == 0);
    gt_tensor *out[GT__MAX_OUT] = {NULL};
    if (in.running_var == NULL || forward(&in, RELU, out) != GT_OK) return report();
    in.y = out[0];
    in.mean = out[1];
    in.rstd = out[2];
    const double bytes = (double)gt_tensor_bytes(in.x);
    printf("[%lld,%lld,%lld,%lld] %.1f MB\n", (long long)batch, (long long)channels, (long long)size, (long long)size, bytes / 1e6);
    for (int mode = 0; mode < MODES; ++mode) {
        double f, b, a;
        if (measure(&in, forward, mode, &f) || measure(&in, backward, mode, &b) || measure(&in, apply, mode, &a)) return 1;
        printf("  %-9s forward %8.1f us %5.2f TB/s   backward %8.1f us %5.2f TB/s   apply %8.1f us %5.2f TB/s\n", modes[mode].name, f,
               modes[mode].forward_passes * bytes / f / 1e6, b, modes[mode].backward_passes * bytes / b / 1e6, a, 2 * bytes / a / 1e6);
        total[mode * 2] += f;
        total[mode * 2 + 1] += b;
    }
    return gt_scope_end(ctx) == GT_OK ? 0 : report();
}

int main(int argc, char **argv) {
    static const struct {
        int64_t channels, size;
    } layers[] = {{64, 112}, {64, 56},  {256, 56},  {128, 56}, {128, 28}, {512, 28},
                  {256, 28}, {256, 14}, {1024, 14}, {512, 14}, {512, 7},  {2048, 7}};
    gt_context_options options;
    gt_context *ctx;
    gt_dtype dtype = GT_DTYPE_F16;
    int64_t batch = 256;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return report();
    options.device = GT_DEVICE_CUDA;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "f16") == 0 || strcmp(argv[i], "bf16") == 0 || strcmp(argv[i], "f32") == 0) {
            dtype = argv[i][0] == 'b' ? GT_DTYPE_BF16 : argv[i][1] == '1' ? GT_DTYPE_F16 : GT_DTYPE_F32;
        } else if (i + 1 < argc && strcmp(argv[i], "--device") == 0) {
            options.device = strcmp(argv[++i], "cpu") == 0 ? GT_DEVICE_CPU : GT_DEVICE_CUDA;
        } else if (i + 1 < argc && strcmp(argv[i], "--batch") == 0) {
            batch = atoll(argv[++i]);
        } else {
            fprintf(stderr, "usage: norm_time [f16|bf16|f32] [--device cpu] [--batch n]\n");
            return 2;
        }
    }
    if (gt_context_create(&options, &ctx) != GT_OK) return report();
    printf("%s, %s channels-last, best of %d times %d\n", gt_context_device_name(ctx), gt_dtype_name(dtype), ROUNDS, REPEAT);
    int code = 0;
    double total[2 * MODES] = {0};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0] && code == 0; ++i)
        code = run_shape(ctx, dtype, batch, layers[i].channels, layers[i].size, total);
    for (int mode = 0; mode < MODES && code == 0; ++mode)
        printf("all shapes once, %-9s forward %8.1f us   backward %8.1f us\n", modes[mode].name, total[mode * 2], total[mode * 2 + 1]);
    gt_context_destroy(ctx);
    return code;
}

/* Time of single ops, forward and backward, on large images stored channels-last: one line each, to lay beside bench/peers/torch_ops.py.
 *
 *     op_time cpu|cuda [f32|f16]
 */
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 30 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int report(void) {
    fprintf(stderr, "%s: %s\n", gt_status_name(gt_last_error()->status), gt_last_error()->message);
    return 1;
}

typedef struct inputs {
    gt_tensor *x, *weight, *bias, *mean, *var;
} inputs;

static gt_tensor *call_relu(const inputs *in) { return gt_relu(in->x); }
static gt_tensor *call_batch_norm(const inputs *in) { return gt_batch_norm(in->x, in->weight, in->bias, in->mean, in->var, 1, 0.1, 1e-5); }

static gt_tensor *call_pool(const inputs *in, gt_tensor *(*pool)(gt_tensor *, const gt_pool2d_options *)) {
    gt_pool2d_options options;
    if (gt_pool2d_options_init(&options, sizeof options) != GT_OK) return NULL;
    options.kernel[0] = options.kernel[1] = 3;
    options.stride[0] = options.stride[1] = 2;
    options.padding[0] = options.padding[1] = 1;
    return pool(in->x, &options);
}
static gt_tensor *call_max_pool(const inputs *in) { return call_pool(in, gt_max_pool2d); }
static gt_tensor *call_avg_pool(const inputs *in) { return call_pool(in, gt_avg_pool2d); }
static gt_tensor *call_global_pool(const inputs *in) { return gt_adaptive_avg_pool2d(in->x, 1, 1); }

typedef struct bench {
    const char *name;
    gt_tensor *(*call)(const inputs *in);
} bench;

static const bench benches[] = {{"relu", call_relu},
                                {"batch_norm", call_batch_norm},
                                {"max_pool2d", call_max_pool},
                                {"avg_pool2d", call_avg_pool},
                                {"global_avg_pool", call_global_pool}};

static int run(gt_context *ctx, const bench *b, inputs *in) {
    double forward = 1e9, backward = 1e9;
    for (int r = 0; r < ROUNDS; ++r) {
        if (gt_scope_begin(ctx) != GT_OK || gt_context_synchronize(ctx) != GT_OK) return report();
        double begin = now();
        gt_tensor *y = b->call(in);
        if (y == NULL || gt_context_synchronize(ctx) != GT_OK) return report();
        double between = now();
        if (between - begin < forward) forward = between - begin;
        gt_tensor *dy = gt_mul_scalar(gt_tensor_detach(y), 0.5);
        if (dy == NULL || gt_context_synchronize(ctx) != GT_OK) return report();
        between = now();
        if (gt_backward_from(&y, &dy, 1, 0) != GT_OK || gt_context_synchronize(ctx) != GT_OK) return report();
        double end = now();
        if (end - between < backward) backward = end - between;
        gt_tensor *leaves[3] = {in->x, in->weight, in->bias};
        for (int i = 0; i < 3; ++i) {
            if (gt_tensor_zero_grad(leaves[i]) != GT_OK) return report();
        }
        if (gt_scope_end(ctx) != GT_OK) return report();
    }
    printf("%-16s forward %8.1f us   backward %8.1f us\n", b->name, forward * 1e6, backward * 1e6);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: op_time cpu|cuda [f32|f16]\n");
        return 2;
    }
    gt_context_options options;
    gt_context *ctx;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return report();
    int gpu = strcmp(argv[1], "cuda") == 0;
    options.device = gpu ? GT_DEVICE_CUDA : GT_DEVICE_CPU;
    if (gt_context_create(&options, &ctx) != GT_OK) return report();
    gt_dtype dtype = argc > 2 && strcmp(argv[2], "f16") == 0 ? GT_DTYPE_F16 : GT_DTYPE_F32;
    const int64_t shape[4] = {gpu ? 256 : 4, 64, 112, 112}, channels[1] = {64};
    inputs in = {0};
    if (gt_scope_begin(ctx) != GT_OK) return report();
    /* The gradient of a half-precision leaf is converted to f32: the backward of f16 has that pass on top. */
    gt_tensor *x = gt_tensor_detach(gt_channels_last(gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, shape, 0, 1), dtype)));
    in.x = gt_tensor_retain(x);
    if (gt_scope_end(ctx) != GT_OK) return report();
    in.weight = gt_tensor_full(ctx, GT_DTYPE_F32, 1, channels, 1);
    in.bias = gt_tensor_full(ctx, GT_DTYPE_F32, 1, channels, 0);
    in.mean = gt_tensor_full(ctx, GT_DTYPE_F32, 1, channels, 0);
    in.var = gt_tensor_full(ctx, GT_DTYPE_F32, 1, channels, 1);
    gt_tensor *leaves[3] = {in.x, in.weight, in.bias};
    for (int i = 0; i < 3; ++i) {
        if (gt_tensor_set_requires_grad(leaves[i], 1) != GT_OK) return report();
    }
    printf("%s, %s [%d,64,112,112] channels-last, best of %d\n", gt_context_device_name(ctx), gt_dtype_name(dtype), (int)shape[0], ROUNDS);
    int code = 0;
    for (size_t i = 0; i < sizeof benches / sizeof benches[0] && code == 0; ++i) code = run(ctx, &benches[i], &in);
    gt_tensor_release(in.x);
    gt_tensor_release(in.weight);
    gt_tensor_release(in.bias);
    gt_tensor_release(in.mean);
    gt_tensor_release(in.var);
    gt_context_destroy(ctx);
    return code;
}

/* The first convolution of ResNet-50, 7x7 with stride 2 on images of 3 channels, and on images that were padded with channels of zeros: forward and the gradient
 * of the weight. cuDNN may have faster engines for 4 or 8 channels; 3 are what a program has.
 *
 *     stem_time [f16|bf16|f32] [--device cpu] [--batch n]
 */
#include "core/core.h"

#include <gtrain/gtrain.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 10, REPEAT = 5, IMAGE = 224, WARM_UP = 3 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int report(void) {
    fprintf(stderr, "%s: %s\n", gt_status_name(gt_last_error()->status), gt_last_error()->message);
    return 1;
}

/* Microseconds of one call. */
static int measure(gt_context *ctx, gt__op_id op, gt_tensor *const *in, int32_t n_in, const gt__attrs *attr, double *best) {
    *best = 1e9;
    for (int r = 0; r < WARM_UP + ROUNDS; ++r) {
        if (gt_context_synchronize(ctx) != GT_OK) return report();
        double begin = now();
        for (int i = 0; i < REPEAT; ++i) {
            gt_tensor *out[GT__MAX_OUT] = {NULL};
            if (gt_scope_begin(ctx) != GT_OK || gt__op_multi(op, in, n_in, attr, 1, out) != GT_OK || gt_scope_end(ctx) != GT_OK)
                return report();
        }
        if (gt_context_synchronize(ctx) != GT_OK) return report();
        double took = (now() - begin) / REPEAT * 1e6;
        if (r >= WARM_UP && took < *best) *best = took;
    }
    return 0;
}

static gt_tensor *image(gt_context *ctx, gt_dtype dtype, int64_t n, int64_t c, int64_t size) {
    const int64_t shape[4] = {n, c, size, size};
    return gt_channels_last(gt_cast(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, shape, 0, 1), dtype));
}

static int run(gt_context *ctx, gt_dtype dtype, int64_t batch, int64_t channels) {
    if (gt_scope_begin(ctx) != GT_OK) return report();
    gt_tensor *x = image(ctx, dtype, batch, channels, IMAGE), *w = image(ctx, dtype, 64, channels, 7),
              *dy = image(ctx, dtype, batch, 64, IMAGE / 2);
    if (x == NULL || w == NULL || dy == NULL) return report();
    gt__attrs attr;
    memset(&attr, 0, sizeof attr);
    attr.conv.groups = 1;
    for (int i = 0; i < 2; ++i) {
        attr.conv.stride[i] = 2;
        attr.conv.padding[i] = 3;
        attr.conv.dilation[i] = 1;
    }
    gt_tensor *in[3] = {x, w, NULL}, *gradient[2] = {dy, x};
    double forward, weight;
    if (measure(ctx, GT__OP_CONV2D, in, 3, &attr, &forward)) return 1;
    memcpy(attr.conv.shape, w->meta.shape, sizeof attr.conv.shape);
    if (measure(ctx, GT__OP_CONV2D_BACKWARD_WEIGHT, gradient, 2, &attr, &weight)) return 1;
    printf("[%lld,%lld,%d,%d] %s: forward %8.1f us, gradient of the weight %8.1f us\n", (long long)batch, (long long)channels, IMAGE, IMAGE,
           gt_dtype_name(dtype), forward, weight);
    return gt_scope_end(ctx) == GT_OK ? 0 : report();
}

int main(int argc, char **argv) {
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
            fprintf(stderr, "usage: stem_time [f16|bf16|f32] [--device cpu] [--batch n]\n");
            return 2;
        }
    }
    if (gt_context_create(&options, &ctx) != GT_OK) return report();
    int code = 0;
    for (int64_t channels = 3; channels <= 8 && code == 0; channels = channels == 3 ? 4 : channels + 4)
        code = run(ctx, dtype, batch, channels);
    gt_context_destroy(ctx);
    return code;
}

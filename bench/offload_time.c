/* Does offload cost time where the bus is fast enough? A deep MLP so wide that a layer's products take longer than its activation needs to cross to the host.
 *
 *     offload_time [width] [batch] [layers]          defaults 16384 8192 6
 *
 * Prints the time of a forward and backward in f16, kept on the device and offloaded, and what each needs at its peak. */
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 8, WARM_UP = 3 };

#define TRY(expr)                                                                                                                          \
    do {                                                                                                                                   \
        if ((expr) != GT_OK) {                                                                                                             \
            fprintf(stderr, "%s: %s\n", gt_status_name(gt_last_error()->status), gt_last_error()->message);                                \
            return -1;                                                                                                                     \
        }                                                                                                                                  \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Milliseconds of a step, below 0 after a failure. */
static double step_time(gt_context *ctx, gt_module *net, gt_tensor *x, int offload, double *peak) {
    double best = 1e30;
    for (int i = 0; i < WARM_UP + ROUNDS; ++i) {
        if (i == WARM_UP) TRY(gt_memory_reset_peak(ctx));
        TRY(gt_context_synchronize(ctx));
        double begin = now();
        TRY(gt_scope_begin(ctx));
        TRY(gt_autocast_begin(ctx, GT_DTYPE_F16));
        if (offload) TRY(gt_offload_begin(ctx, 1 << 20));
        gt_tensor *loss = gt_mean(gt_cast(gt_module_forward(net, x), GT_DTYPE_F32), NULL, 0, 0);
        if (offload) TRY(gt_offload_end(ctx));
        TRY(gt_autocast_end(ctx));
        TRY(gt_backward(loss));
        TRY(gt_scope_end(ctx));
        TRY(gt_context_synchronize(ctx));
        if (i >= WARM_UP && now() - begin < best) best = now() - begin;
    }
    gt_memory_stats stats;
    TRY(gt_memory_stats_init(&stats, sizeof stats));
    TRY(gt_memory_get_stats(ctx, &stats));
    *peak = (double)stats.peak_in_use / 1048576.0;
    return best * 1e3;
}

int main(int argc, char **argv) {
    const int64_t width = argc > 1 ? atoll(argv[1]) : 16384, batch = argc > 2 ? atoll(argv[2]) : 8192;
    const int layers = argc > 3 ? atoi(argv[3]) : 6;
    gt_context *ctx;
    TRY(gt_context_create(NULL, &ctx));
    gt_module *net = gt_nn_sequential(ctx);
    for (int i = 0; i < layers; ++i) {
        TRY(gt_nn_sequential_add(net, gt_nn_linear(ctx, width, width, NULL)));
        TRY(gt_nn_sequential_add(net, gt_nn_relu(ctx)));
    }
    const int64_t shape[2] = {batch, width};
    gt_tensor *x = gt_tensor_normal(ctx, GT_DTYPE_F32, 2, shape, 0, 1);
    double kept_peak = 0, away_peak = 0;
    double kept = step_time(ctx, net, x, 0, &kept_peak), away = step_time(ctx, net, x, 1, &away_peak);
    if (kept < 0 || away < 0) return 1;
    printf("%s: %d layers of %lld, batch %lld, f16: kept %.2f ms, %.0f MiB; offloaded %.2f ms, %.0f MiB\n", gt_context_device_name(ctx),
           layers, (long long)width, (long long)batch, kept, kept_peak, away, away_peak);
    gt_tensor_release(x);
    gt_module_destroy(net);
    gt_context_destroy(ctx);
    return 0;
}

/* What an op call costs the host, beside a bare kernel launch, in microseconds.
 *
 *     host_cost [--device cpu|cuda]
 *
 * Small tensors, so that the device keeps up and the time to issue a call is what is measured. "recorded": an input requires a gradient. */
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#ifdef GTRAIN_BENCH_CUDA
double bare_launch_seconds(int count); /* bare_launch.cu */
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct inputs {
    gt_tensor *a, *b, *w, *bias;
} inputs;

static gt_tensor *call_add(const inputs *in) { return gt_add(in->a, in->b); }
static gt_tensor *call_relu(const inputs *in) { return gt_relu(in->a); }
static gt_tensor *call_scale(const inputs *in) { return gt_mul_scalar(in->a, 0.5); }
static gt_tensor *call_reshape(const inputs *in) { return gt_flatten(in->a, 0); }
static gt_tensor *call_softmax(const inputs *in) { return gt_softmax(in->a, -1); }
static gt_tensor *call_linear(const inputs *in) { return gt_linear(in->a, in->w, in->bias); }

typedef struct bench {
    const char *name;
    gt_tensor *(*call)(const inputs *in);
} bench;

static const bench benches[] = {{"reshape (a view)", call_reshape}, {"add", call_add},         {"relu", call_relu},
                                {"mul_scalar", call_scale},         {"softmax", call_softmax}, {"linear", call_linear}};

static int report(void) {
    fprintf(stderr, "%s: %s\n", gt_status_name(gt_last_error()->status), gt_last_error()->message);
    return 1;
}

/* The best of five rounds: anything slower was something else on the machine. */
static double measure(gt_context *ctx, const bench *b, const inputs *in) {
    enum { CALLS = 400, ROUNDS = 25 };
    double best = 1e9;
    for (int r = 0; r < ROUNDS; ++r) {
        if (gt_scope_begin(ctx) != GT_OK) return -1;
        double begin = now();
        for (int i = 0; i < CALLS; ++i) {
            gt_tensor *y = b->call(in);
            if (y == NULL) return -1;
        }
        double each = (now() - begin) / CALLS;
        if (gt_scope_end(ctx) != GT_OK || gt_context_synchronize(ctx) != GT_OK) return -1;
        if (each < best) best = each;
    }
    return best;
}

int main(int argc, char **argv) {
    gt_context_options options;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return report();
    if (argc == 3 && strcmp(argv[1], "--device") == 0) options.device = strcmp(argv[2], "cuda") == 0 ? GT_DEVICE_CUDA : GT_DEVICE_CPU;
    gt_context *ctx;
    if (gt_context_create(&options, &ctx) != GT_OK) return report();
    const int64_t square[2] = {32, 32}, row[1] = {32};
    inputs in = {gt_tensor_normal(ctx, GT_DTYPE_F32, 2, square, 0, 1), gt_tensor_normal(ctx, GT_DTYPE_F32, 2, square, 0, 1),
                 gt_tensor_normal(ctx, GT_DTYPE_F32, 2, square, 0, 1), gt_tensor_normal(ctx, GT_DTYPE_F32, 1, row, 0, 1)};
    if (!in.a || !in.b || !in.w || !in.bias) return report();
    double bare = 0;
#ifdef GTRAIN_BENCH_CUDA
    if (gt_context_device(ctx) == GT_DEVICE_CUDA) bare = bare_launch_seconds(400);
#endif
    printf("%s, bare launch %.2f us\n%-18s %10s %10s %12s\n", gt_context_device_name(ctx), bare * 1e6, "op", "us", "recorded",
           "over launch");
    for (size_t i = 0; i < sizeof benches / sizeof benches[0]; ++i) {
        double plain = measure(ctx, &benches[i], &in);
        if (plain < 0 || gt_tensor_set_requires_grad(in.a, 1) != GT_OK) return report();
        double recorded = measure(ctx, &benches[i], &in);
        if (recorded < 0 || gt_tensor_set_requires_grad(in.a, 0) != GT_OK) return report();
        double launch = i == 0 ? 0 : bare; /* a view launches nothing */
        printf("%-18s %10.2f %10.2f %12.2f\n", benches[i].name, plain * 1e6, recorded * 1e6, (plain - launch) * 1e6);
    }
    gt_tensor_release(in.a);
    gt_tensor_release(in.b);
    gt_tensor_release(in.w);
    gt_tensor_release(in.bias);
    gt_context_destroy(ctx);
    return 0;
}

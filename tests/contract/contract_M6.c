/* M6: changing shapes do not grow memory: 1000 lengths, three passes, one and eight threads. */
#include "harness/test.h"

#include <gtrain/gtrain.h>

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

enum { LENGTHS = 1000, PASSES = 3, THREADS = 8, WIDTH = 64, CLASSES = 8 };

typedef struct worker {
    gt_context *ctx;
    gt_module *net;
    int number;
    gt_status status;
    uint64_t reserved, need;
} worker;

static pthread_barrier_t together;
static int64_t host_after[PASSES]; /* bytes of host memory in use at the end of each pass, device memory that lies in it left out */
static _Atomic uint64_t reserved_by_all;

/* 0 where the C library does not tell: another allocator is in its place. On the CPU, device memory lies in it, too. */
static int64_t host_bytes(const gt_context *ctx, uint64_t reserved) {
    struct mallinfo2 m = mallinfo2();
    if (m.uordblks == 0) return 0;
    return (int64_t)(m.uordblks + m.hblkhd) - (gt_context_device(ctx) == GT_DEVICE_CPU ? (int64_t)reserved : 0);
}

static gt_status step(worker *w, int64_t length) {
    gt_context *ctx = w->ctx;
    gt_status status = gt_scope_begin(ctx);
    if (status != GT_OK) return status;
    const int64_t shape[2] = {length, WIDTH};
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 0.25);
    gt_tensor *h = gt_relu(gt_mul_scalar(gt_tanh(x), 2));
    status = gt_backward(gt_mean(gt_module_forward(w->net, h), NULL, 0, 0));
    if (status == GT_OK) status = gt_module_zero_grad(w->net);
    gt_status ended = gt_scope_end(ctx);
    return status == GT_OK ? ended : status;
}

static gt_memory_stats stats_of(gt_context *ctx) {
    gt_memory_stats stats;
    (void)gt_memory_stats_init(&stats, sizeof stats);
    (void)gt_memory_get_stats(ctx, &stats);
    return stats;
}

/* All lengths in an order of its own, three times. */
static void *work(void *argument) {
    worker *w = argument;
    for (int pass = 0; pass < PASSES; ++pass) {
        for (int i = 0; i < LENGTHS; ++i) {
            int64_t length = 1 + ((int64_t)i * 389 + w->number * 123) % LENGTHS; /* 389 and 1000 have no common factor */
            if (w->status == GT_OK) w->status = step(w, length);
            /* All at once: else what the process's caches hold at the end of a pass is a matter of timing. */
            (void)pthread_barrier_wait(&together);
        }
        if (w->status == GT_OK) w->status = gt_context_synchronize(w->ctx);
        gt_memory_stats stats = stats_of(w->ctx);
        w->reserved = stats.reserved;
        w->need = stats.peak_in_use;
        reserved_by_all += stats.reserved;
        (void)pthread_barrier_wait(&together);
        if (w->number == 0) {
            host_after[pass] = host_bytes(w->ctx, reserved_by_all);
            reserved_by_all = 0;
        }
        (void)pthread_barrier_wait(&together);
    }
    return NULL;
}

static void run(test_case *t, int threads) {
    static worker workers[THREADS];
    gt_context_options options;
    pthread_t ids[THREADS];
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.cpu_threads = 1;
    options.deterministic = 1; /* algorithms are not timed: there are thousands of shapes */
    for (int i = 0; i < threads; ++i) {
        worker *w = &workers[i];
        *w = (worker){.ctx = test_context_with(t, &options), .number = i};
        w->net = gt_nn_linear(w->ctx, WIDTH, CLASSES, NULL);
        CHECK(w->net != NULL);
    }
    /* What the largest length alone takes from the device. */
    CHECK_OK(step(&workers[0], LENGTHS));
    const uint64_t single = stats_of(workers[0].ctx).reserved;
    CHECK(pthread_barrier_init(&together, NULL, (unsigned)threads) == 0);
    reserved_by_all = 0;
    for (int i = 0; i < threads; ++i) CHECK(pthread_create(&ids[i], NULL, work, &workers[i]) == 0);
    for (int i = 0; i < threads; ++i) (void)pthread_join(ids[i], NULL);
    (void)pthread_barrier_destroy(&together);
    for (int i = 0; i < threads; ++i) {
        worker *w = &workers[i];
        CHECK_OK(w->status);
        CHECK(w->reserved <= 2 * single);
        CHECK(w->need <= single);
        gt_module_destroy(w->net);
    }
    /* Flat but for the host's own allocator, and on a GPU its driver's: half of what the least that the C library hands out, 32 bytes, would come
     * to if each step lost it. */
    const int64_t slack = (int64_t)threads * (test_device(t) == GT_DEVICE_CPU ? PASSES - 1 : 64) * LENGTHS * 16;
    for (int pass = 1; pass < PASSES; ++pass)
        if (host_after[pass] > host_after[0] + slack)
            FAIL("host memory grew from %lld to %lld bytes in pass %d", (long long)host_after[0], (long long)host_after[pass], pass);
}

TEST_DEVICES(contract, M6_changing_lengths_on_one_thread) { run(t, 1); }
TEST_DEVICES(contract, M6_changing_lengths_on_eight_threads) { run(t, THREADS); }

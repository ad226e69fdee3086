/* M1 on a card that others fill: memory of this process outside the context, and of another process. */
#include "support.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static gt_tensor *take(gt_context *ctx, size_t bytes) {
    const int64_t shape[1] = {(int64_t)bytes};
    return gt_tensor_empty(ctx, GT_DTYPE_U8, 1, shape);
}

/* All but about `left` bytes, in pieces; the number of pieces. */
enum { PIECES = 64 };
static int hold_all_but(size_t left, void **pieces, size_t *held) {
    int n = 0;
    *held = 0;
    for (; n < PIECES; ++n) {
        size_t free_bytes, total;
        CHECK(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess);
        if (free_bytes <= left + 2 * MIB) break;
        size_t bytes = (free_bytes - left) & ~(2 * MIB - 1);
        while (bytes >= 2 * MIB && cudaMalloc(&pieces[n], bytes) != cudaSuccess) {
            (void)cudaGetLastError();
            bytes /= 2;
        }
        if (bytes < 2 * MIB) break;
        *held += bytes;
    }
    return n;
}

static void check_external(gt_context *ctx, size_t held) {
    gt_oom_report *r = malloc(sizeof *r);
    CHECK_OK(gt_oom_report_init(r, sizeof *r));
    gt_clear_error();
    CHECK(take(ctx, 256 * MIB) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
    CHECK_ERROR_HAS("EXTERNAL: others hold ");
    CHECK_OK(gt_memory_last_oom(ctx, r));
    CHECK_EQ_INT(r->cause, GT_OOM_EXTERNAL);
    CHECK_EQ_INT(r->ours + r->others + r->device_free, r->device_total);
    CHECK_EQ_INT(r->in_use + r->cached, r->reserved);
    CHECK(r->others >= held);
    CHECK(r->device_free < 256 * MIB);
    char text[GT_OOM_TEXT_SIZE];
    CHECK_OK(gt_oom_report_text(r, text, sizeof text, NULL));
    if (getenv("GTRAIN_TEST_PRINT")) printf("%s", text);
    free(r);
}

TEST_CUDA_ONLY(contract, M1_the_host_program_holds_all_but_64_MiB) {
    gt_context *ctx = test_context(t);
    gt_tensor_release(CHECK_TENSOR(take(ctx, MIB)));
    void *pieces[PIECES];
    size_t held;
    int n = hold_all_but(64 * MIB, pieces, &held);
    check_external(ctx, held);
    for (int i = 0; i < n; ++i) CHECK(cudaFree(pieces[i]) == cudaSuccess);
    gt_tensor_release(CHECK_TENSOR(take(ctx, 256 * MIB))); /* what the report says is what helps */
}

/* The other process of the next case: holds memory until its input ends. */
TEST_CUDA_ONLY(contract, M1_as_another_process_hold_memory) {
    if (getenv("GTRAIN_TEST_HOLD_MEMORY") == NULL) SKIP("run by M1_another_process_holds_all_but_64_MiB");
    void *pieces[PIECES];
    size_t held;
    char byte = 0;
    CHECK(hold_all_but(64 * MIB, pieces, &held) > 0);
    CHECK(write(STDERR_FILENO, &held, sizeof held) == sizeof held);
    CHECK(read(STDIN_FILENO, &byte, 1) == 0);
}

TEST_CUDA_ONLY(contract, M1_another_process_holds_all_but_64_MiB) {
    gt_context *ctx = test_context(t);
    gt_tensor_release(CHECK_TENSOR(take(ctx, MIB)));
    CHECK_OK(gt_memory_trim(ctx));
    int in[2], out[2];
    CHECK(pipe(in) == 0 && pipe(out) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char *const arguments[] = {"cuda", "M1_as_another_process_hold_memory", NULL};
        (void)dup2(in[0], STDIN_FILENO);
        (void)dup2(out[1], STDERR_FILENO);
        (void)close(in[1]);
        (void)close(out[0]);
        (void)setenv("GTRAIN_TEST_HOLD_MEMORY", "1", 1);
        (void)execv("/proc/self/exe", arguments);
        _exit(127);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    size_t held = 0;
    int told = read(out[0], &held, sizeof held) == (ssize_t)sizeof held;
    if (told) check_external(ctx, held);
    gt_oom_report *r = malloc(sizeof *r);
    CHECK_OK(gt_oom_report_init(r, sizeof *r));
    if (told) CHECK_OK(gt_memory_last_oom(ctx, r));
    int32_t seen = 0; /* NVML may not know it by our number, in a container */
    for (int32_t i = 0; told && i < r->n_holders; ++i) seen |= r->holders[i].process == (int64_t)child;
    const gt_oom_remedy *best = r->n_remedies > 0 ? &r->remedies[0] : NULL;
    CHECK(!seen || (best && best->kind == GT_OOM_REMEDY_OTHER_PROCESS && best->process == (int64_t)child && best->enough));
    (void)close(in[1]); /* applied: it ends */
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    (void)close(out[0]);
    CHECK(told);
    gt_tensor_release(CHECK_TENSOR(take(ctx, 256 * MIB)));
    free(r);
}

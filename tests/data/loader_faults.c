/* Samples that fail, hang or take their thread down (F1), and forks. */
#include "data/support.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum fault { FAIL_SAMPLE, END_THREAD, HANG, BAD_LABEL_VALUE };

typedef struct faulty {
    enum fault fault;
    int64_t sample;       /* the one that is at fault */
    atomic_bool healed;   /* from now on it is not */
    atomic_bool released; /* a hanging fetch returns */
    atomic_int interrupts;
    atomic_int running;
} faulty;

static gt_status fetch(void *user, int64_t index, int64_t epoch, void *sample, void *label) {
    (void)epoch;
    faulty *self = user;
    *(float *)sample = (float)index;
    *(int64_t *)label = index % 7;
    if (index != self->sample || atomic_load(&self->healed)) return GT_OK;
    atomic_fetch_add(&self->running, 1);
    switch (self->fault) {
    case FAIL_SAMPLE:
        atomic_fetch_sub(&self->running, 1);
        return GT_IO;
    case END_THREAD:
        atomic_fetch_sub(&self->running, 1);
        pthread_exit(NULL);
    case BAD_LABEL_VALUE:
        *(int64_t *)label = 7;
        break;
    case HANG:
        while (!atomic_load(&self->released)) sched_yield();
        break;
    }
    atomic_fetch_sub(&self->running, 1);
    return GT_OK;
}

static void interrupt(void *user) {
    faulty *self = user;
    atomic_fetch_add(&self->interrupts, 1);
    atomic_store(&self->released, true);
}

static gt_loader *faulty_loader(gt_context *ctx, faulty *self, int64_t length, const gt_loader_options *options) {
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.length = length;
    format.classes = 7;
    gt_dataset_callbacks callbacks;
    CHECK_OK(gt_dataset_callbacks_init(&callbacks, sizeof callbacks));
    callbacks.user = self;
    callbacks.fetch = fetch;
    callbacks.interrupt = interrupt;
    gt_dataset *dataset = NULL;
    gt_loader *loader = NULL;
    CHECK_OK(gt_dataset_from_callbacks(&format, &callbacks, &dataset));
    CHECK_OK(gt_loader_create(ctx, dataset, options, &loader));
    gt_dataset_destroy(dataset);
    return loader;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Batches of 4 up to the first failure; returns how many came. */
static int64_t batches_until_failure(gt_loader *loader, gt_status *status) {
    gt_context *ctx = gt_loader_context(loader);
    int64_t batches = 0, count = 1;
    *status = GT_OK;
    while (*status == GT_OK && count > 0) {
        gt_tensor *x, *y;
        CHECK_OK(gt_scope_begin(ctx));
        *status = gt_loader_next(loader, &x, &y, &count);
        CHECK_OK(gt_scope_end(ctx));
        if (*status == GT_OK && count > 0) batches++;
    }
    return batches;
}

/* The batches before the fault come, then the failure, again and again; a new epoch works once the fault is gone. */
static void check_fault(test_case *t, enum fault fault, gt_status want, const char *message, int32_t workers) {
    gt_context *ctx = test_context(t);
    faulty self = {.fault = fault, .sample = 22};
    gt_loader_options options = loader_options(4);
    options.workers = workers;
    options.timeout = fault == HANG ? 0.3 : 30;
    gt_loader *loader = faulty_loader(ctx, &self, 40, &options);
    gt_status status;
    double began = seconds();
    CHECK_EQ_INT(batches_until_failure(loader, &status), 5);
    EXPECT(seconds() - began < 10);
    EXPECT_STATUS(status, want);
    EXPECT_ERROR_HAS(message);
    CHECK_EQ_INT(batches_until_failure(loader, &status), 0);
    EXPECT_STATUS(status, want);
    EXPECT_ERROR_HAS(message);
    EXPECT_ERROR_HAS("the epoch ended there");

    atomic_store(&self.healed, true);
    atomic_store(&self.released, true);
    float samples[MAX_SAMPLES];
    CHECK_OK(gt_loader_start_epoch(loader, 1));
    CHECK_EQ_INT(drain(loader, samples), 40);
    gt_loader_destroy(loader);
    EXPECT_EQ_INT(atomic_load(&self.running), 0);
}

TEST(contract, F1_failing_fetch_names_the_sample) {
    for (int32_t workers = 1; workers <= 4; ++workers)
        check_fault(t, FAIL_SAMPLE, GT_WORKER, "sample 22: the fetch callback returned GT_IO", workers);
}

TEST(contract, F1_ended_worker_names_the_sample) {
    for (int32_t workers = 1; workers <= 4; ++workers)
        check_fault(t, END_THREAD, GT_WORKER, "sample 22: the worker thread was ended", workers);
}

TEST(contract, F1_stuck_worker_is_a_timeout_that_names_the_sample) {
    for (int32_t workers = 1; workers <= 4; workers += 3)
        check_fault(t, HANG, GT_TIMEOUT, "sample 22 of epoch 0 is not there after", workers);
}

TEST(contract, F1_bad_label_of_a_callback_names_the_sample) {
    check_fault(t, BAD_LABEL_VALUE, GT_BAD_LABEL, "sample 22: label 7, but there are 7 classes", 2);
}

TEST(contract, F1_destroy_interrupts_and_joins_a_stuck_worker) {
    gt_context *ctx = test_context(t);
    faulty self = {.fault = HANG, .sample = 0};
    gt_loader_options options = loader_options(4);
    options.workers = 2;
    options.timeout = 0.2;
    gt_loader *loader = faulty_loader(ctx, &self, 40, &options);
    gt_status status;
    CHECK_EQ_INT(batches_until_failure(loader, &status), 0);
    CHECK_STATUS(status, GT_TIMEOUT);
    CHECK_STATUS(gt_loader_start_epoch(loader, 1), GT_TIMEOUT); /* it still hangs */
    CHECK_ERROR_HAS("sample 0");
    gt_loader_destroy(loader);
    EXPECT_EQ_INT(atomic_load(&self.interrupts), 1);
    EXPECT_EQ_INT(atomic_load(&self.running), 0);
}

TEST(unit, loader_of_a_parent_process_says_forked) {
    gt_context *ctx = test_context(t);
    gt_loader_options options = loader_options(4);
    gt_dataset *dataset = numbers(40);
    gt_loader *loader = NULL;
    gt_tensor *x, *y;
    int64_t count;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_loader_next(loader, &x, &y, &count));
    CHECK_OK(gt_scope_end(ctx));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int bad = gt_loader_next(loader, &x, &y, &count) != GT_FORKED;
        bad += 2 * (gt_loader_start_epoch(loader, 1) != GT_FORKED);
        gt_loader_destroy(loader);
        _exit(bad);
    }
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child);
    CHECK(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    float samples[MAX_SAMPLES];
    CHECK_EQ_INT(drain(loader, samples), 36); /* the parent goes on */
    gt_loader_destroy(loader);
    gt_dataset_destroy(dataset);
}

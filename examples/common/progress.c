#include "common/progress.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

void progress_begin(progress *p) {
    const char *terminal = getenv("TERM");
    p->live = isatty(STDOUT_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
    p->last_shown = 0;
    p->samples_shown = 0;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESETHAND; /* a second Ctrl-C ends the program at once */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL); /* what a cluster sends before it takes the machine away */
}

double progress_clock(void) {
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void print_numbers(const gt_train_progress *now) {
    printf("epoch %lld/%lld", (long long)now->epoch + 1, (long long)now->epochs);
    printf("  %3.0f %%", now->steps > 0 ? 100.0 * (double)now->step / (double)now->steps : 0);
    if (now->samples_per_second > 0) printf("  %6.0f samples/s", now->samples_per_second);
    if (now->training.samples > 0) printf("  loss %.4f  accuracy %.2f %%", now->training.loss, 100 * now->training.accuracy);
    if (now->samples_per_second > 0) printf("  %.0f:%02.0f left", floor(now->seconds_left / 60), floor(fmod(now->seconds_left, 60)));
}

int32_t progress_step(void *user, const gt_train_progress *now) {
    progress *p = user;
    double pause = p->live ? 0.2 : 10; /* seconds between two lines */
    /* Loss and accuracy are read now and then alone: lines that stay say nothing twice. */
    int fresh = p->live || now->training.samples != p->samples_shown;
    if (now->seconds - p->last_shown >= pause && now->training.samples > 0 && fresh && now->step < now->steps) {
        p->last_shown = now->seconds;
        p->samples_shown = now->training.samples;
        if (p->live) printf("\r");
        print_numbers(now);
        printf(p->live ? "\033[K" : "\n");
        fflush(stdout);
    }
    return interrupted;
}

int32_t progress_epoch(void *user, const gt_train_progress *now) {
    progress *p = user;
    p->last_shown = now->seconds;
    p->samples_shown = 0;
    if (p->live) printf("\r");
    print_numbers(now);
    if (now->validation.samples > 0) printf("  test accuracy %.2f %%", 100 * now->validation.accuracy);
    printf(p->live ? "\033[K\n" : "\n");
    fflush(stdout);
    return interrupted;
}

void progress_describe(gt_context *ctx, gt_module *net) {
    size_t needed = 0;
    printf("%s\n", gt_context_device_name(ctx));
    if (gt_module_describe(net, NULL, 0, &needed) != GT_OK) return;
    char *text = malloc(needed);
    if (text && gt_module_describe(net, text, needed, NULL) == GT_OK) printf("%s\n", text);
    free(text);
    fflush(stdout);
}

static const char *bytes_text(uint64_t bytes, char *text, size_t size) {
    if (bytes >= 1u << 30)
        (void)snprintf(text, size, "%.2f GiB", (double)bytes / (1 << 30));
    else if (bytes >= 1u << 20)
        (void)snprintf(text, size, "%.1f MiB", (double)bytes / (1 << 20));
    else
        (void)snprintf(text, size, "%.1f KiB", (double)bytes / (1 << 10));
    return text;
}

static void print_row(const char *title, uint64_t now, uint64_t peak) {
    char a[32], b[32];
    printf("  %-32s %12s %12s\n", title, bytes_text(now, a, sizeof a), bytes_text(peak, b, sizeof b));
}

gt_status progress_summary(const args *a, gt_context *ctx, const char *name, const gt_fit_result *result) {
    gt_memory_stats memory;
    gt_status status = gt_memory_stats_init(&memory, sizeof memory);
    if (status == GT_OK) status = gt_memory_get_stats(ctx, &memory);
    if (status != GT_OK) return status;
    if (result->stopped) printf("stopped\n");
    if (result->validation.samples > 0)
        printf("\ntest accuracy  %.2f %% (%lld of %lld images), loss %.4f\n", 100 * result->validation.accuracy,
               (long long)result->validation.correct, (long long)result->validation.samples, result->validation.loss);
    printf("training       %.0f samples/s, %.1f s\n", result->samples_per_second, result->training_seconds);
    printf("device memory  %-17s %12s %12s\n", "", "now", "at peak");
    for (gt_memory_category c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c)
        if (memory.category_in_use[c] > 0 || memory.category_at_peak[c] > 0)
            print_row(gt_memory_category_name(c), memory.category_in_use[c], memory.category_at_peak[c]);
    print_row("in use", memory.in_use, memory.peak_in_use);
    print_row("reserved", memory.reserved, memory.peak_reserved);
    if (a->json)
        printf("{\"example\": \"%s\", \"device\": \"%s\", \"epochs\": %lld, \"batch\": %lld, \"test_accuracy\": %.4f, "
               "\"train_loss\": %.6g, \"samples_per_second\": %.1f, \"seconds\": %.2f, \"peak_memory\": %llu}\n",
               name, gt_context_device(ctx) == GT_DEVICE_CUDA ? "cuda" : "cpu", (long long)result->epochs, (long long)a->batch,
               result->validation.samples > 0 ? result->validation.accuracy : 0.0,
               result->training.samples > 0 ? result->training.loss : 0.0, result->samples_per_second, result->seconds,
               (unsigned long long)memory.peak_in_use);
    fflush(stdout);
    return GT_OK;
}

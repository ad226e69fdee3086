/* What the fuzz targets share. A target is a function that must do nothing bad for any bytes; libFuzzer calls it with bytes of its own, replay.c with
 * those of a folder. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <gtrain/gtrain.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a target checks: a broken promise ends it with a report. */
#define DEMAND(condition)                                                                                                                  \
    do {                                                                                                                                   \
        if (!(condition)) {                                                                                                                \
            fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #condition, gt_last_error()->message);                       \
            abort();                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

/* A file of these bytes in memory, and a path to it that is good until it is closed. */
static inline int fuzz_file(const void *data, size_t size, char *path, size_t room) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    DEMAND(fd >= 0);
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)data + done, size - done);
        DEMAND(n > 0);
        done += (size_t)n;
    }
    (void)snprintf(path, room, "/proc/self/fd/%d", fd);
    return fd;
}

static inline gt_context *fuzz_context(void) {
    gt_context_options options;
    gt_context *ctx = NULL;
    DEMAND(gt_context_options_init(&options, sizeof options) == GT_OK);
    options.device = GT_DEVICE_CPU;
    options.cpu_threads = 1;
    options.memory_limit = (uint64_t)64 << 20;
    DEMAND(gt_context_create(&options, &ctx) == GT_OK);
    return ctx;
}

#endif

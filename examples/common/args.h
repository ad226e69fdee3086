/* The command line that the training examples share. */
#ifndef EXAMPLES_ARGS_H
#define EXAMPLES_ARGS_H

#include <gtrain/gtrain.h>

typedef struct args {
    const char *program;
    gt_device_kind device;
    gt_optimizer_kind optimizer;
    gt_precision precision;
    const char *data; /* folder, or NULL: the usual places */
    int64_t epochs;
    int64_t batch;
    int64_t limit_samples; /* 0: all */
    double learning_rate;  /* the peak of the one-cycle schedule; 0: the optimizer's usual one */
    uint64_t seed;
    int64_t accumulation;  /* batches that make one update */
    int64_t memory_limit;  /* bytes of device memory; 0: all */
    int64_t memory_budget; /* bytes that an update's plan keeps to; 0: none */
    int32_t offload;       /* and for which the host's memory may serve */
    int32_t threads;       /* 0: all cores */
    int32_t deterministic;
    int32_t compile; /* updates run as compiled steps */
    int32_t json;
    const char *save; /* file of the run's state, or NULL */
    int32_t resume;   /* go on from there, if the file is there */
} args;

/* Reads the command line over the defaults that `a` holds. Returns -1 to go on, else the exit code: 0 after --help, 2 after a mistake. */
int args_parse(int argc, char **argv, const char *what, args *a);

/* Prints the library's last error and its hint to stderr, and returns 1. */
int args_fail(const args *a, const char *doing);

/* Opens the context that the command line asks for. */
gt_status args_open(const args *a, gt_context **ctx);

/* The optimizer and the one-cycle schedule of the command line, for `steps` updates. */
gt_status args_optimizer(const args *a, gt_module *net, int64_t steps, gt_optimizer **optimizer, gt_schedule *schedule);

#endif

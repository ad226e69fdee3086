/* A small network to be profiled: convolution, pooling, two linear layers, SGD. */
#ifndef TESTS_PROFILE_NETWORK_H
#define TESTS_PROFILE_NETWORK_H

#include "harness/test.h"

#include <gtrain/gtrain.h>

enum { NETWORK_BATCH = 4, NETWORK_SIDE = 8, NETWORK_CLASSES = 5 };

typedef struct network {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_step *step; /* NULL: eager */
    /* Called by the step's function while it is traced; may be NULL. */
    void (*tracing)(void *user);
    void *user;
} network;

/* Deterministic. */
void network_begin(test_case *t, network *n, int compiled);
void network_end(network *n);
/* One training step on always the same batch. */
void network_train(network *n);
/* Its loss, read: what the step computed to the bit. */
double network_train_loss(network *n);
/* The entry of that op, module ("" outside) and phase; NULL: any. Ends the case if there is none. */
const gt_profile_entry *network_entry(const gt_profile *profile, const char *op, const char *module, const char *phase);
/* Ceilings that nobody has measured, which takes a while: 10 GB/s, 100 and 200 GFLOP/s. Done by network_begin. */
void network_set_ceilings(gt_context *ctx);
/* Device times by timers, as on a GPU, on the CPU too. */
void network_use_timers(network *n);
/* A profile of everything, or with the given schedule. */
gt_profile *network_profile(network *n, int wait, int warmup, int active, int repeat);

#endif

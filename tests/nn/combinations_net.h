/* Random small networks, the same for the same seed. */
#ifndef TESTS_NN_COMBINATIONS_NET_H
#define TESTS_NN_COMBINATIONS_NET_H

#include "support.h"

/* splitmix64 */
typedef struct dice {
    uint64_t state;
} dice;

static inline uint64_t roll(dice *d) {
    uint64_t z = (d->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline int64_t below(dice *d, int64_t n) { return (int64_t)(roll(d) % (uint64_t)n); }
static inline int chance(dice *d, int percent) { return below(d, 100) < percent; }

typedef enum net_kind { NET_VECTOR, NET_IMAGE, NET_TOKENS } net_kind;

/* What goes in and what the network is made of. */
typedef struct net_plan {
    uint64_t seed;
    net_kind kind;
    int64_t width;  /* features, channels or embedding */
    int64_t extent; /* height and width, or tokens a sample */
    int64_t classes;
    int32_t plain; /* no batch norm, dropout or custom module: the same result in any cut of the batch */
    int32_t large; /* batch norms' results of more than 1 MiB */
} net_plan;

/* The caller's; NULL after a failure. Draws its weights from the context's random numbers. */
gt_module *random_net(gt_context *ctx, const net_plan *plan);
/* `rows` samples, in the innermost scope. */
gt_tensor *random_input(gt_context *ctx, const net_plan *plan, dice *d, int64_t rows);

#endif

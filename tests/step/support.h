/* A small network, its step and its batches, for tests of compiled steps. */
#ifndef GTRAIN_TESTS_STEP_SUPPORT_H
#define GTRAIN_TESTS_STEP_SUPPORT_H

#include "harness/test.h"

#include <gtrain/gtrain.h>
#include <stdbool.h>
#include <stdlib.h>

enum { NET_IN = 12, NET_HIDDEN = 16, NET_CLASSES = 5, NET_ROWS = 64 };

typedef struct net_step {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_scaler *scaler;
    gt_step *step;
} net_step;

static inline gt_context *net_context(test_case *t) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.seed = 5;
    options.deterministic = 1;
    options.allow_tf32 = 0;
    return test_context_with(t, &options);
}

/* linear, batch norm, relu, dropout, linear: what has weights, running statistics, a counter and random numbers. */
static inline gt_module *net_mlp(gt_context *ctx, int64_t in, int64_t hidden) {
    gt_module *const layers[] = {gt_nn_linear(ctx, in, hidden, NULL), gt_nn_batch_norm(ctx, hidden, NULL), gt_nn_relu(ctx),
                                 gt_nn_dropout(ctx, 0.25), gt_nn_linear(ctx, hidden, NET_CLASSES, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 5);
    CHECK(net != NULL);
    return net;
}

static inline gt_optimizer *net_adam(gt_module *net) {
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAM));
    o.learning_rate = 0.01;
    CHECK_OK(gt_optimizer_create_for(&o, net, &optimizer));
    return optimizer;
}

static inline gt_status net_loss(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    (void)n;
    gt_tensor *logits = gt_module_forward(user, inputs[0]);
    r->loss = gt_cross_entropy(logits, inputs[1], NULL);
    r->outputs[0] = logits;
    return r->loss ? GT_OK : gt_last_error()->status;
}

static inline gt_step_options net_options(const net_step *n) {
    gt_step_options o;
    CHECK_OK(gt_step_options_init(&o, sizeof o));
    o.fn = net_loss;
    o.user = o.module = n->net;
    o.optimizers = &n->optimizer;
    o.n_optimizers = n->optimizer != NULL;
    o.scaler = n->scaler;
    if (n->scaler) o.autocast = GT_DTYPE_F16;
    return o;
}

/* `half`: f16 with loss scaling. */
static inline net_step net_begin(gt_context *ctx, bool half, int32_t micro_batches) {
    net_step n = {.ctx = ctx, .net = net_mlp(ctx, NET_IN, NET_HIDDEN)};
    n.optimizer = net_adam(n.net);
    if (half) CHECK_OK(gt_scaler_create(ctx, NULL, &n.scaler));
    gt_step_options o = net_options(&n);
    o.micro_batches = micro_batches;
    CHECK_OK(gt_step_create(ctx, &o, &n.step));
    return n;
}

static inline void net_end(net_step *n) {
    gt_step_destroy(n->step);
    gt_scaler_destroy(n->scaler);
    gt_optimizer_destroy(n->optimizer);
    gt_module_destroy(n->net);
}

/* In the innermost scope. */
static inline void net_batch(gt_context *ctx, int rows, int number, gt_tensor **inputs) {
    float x[NET_ROWS * NET_IN];
    int64_t y[NET_ROWS];
    CHECK(rows <= NET_ROWS);
    for (int i = 0; i < rows * NET_IN; ++i) x[i] = (float)((i * 7 + number * 13 + i / 5) % 23 - 11) / 7;
    for (int i = 0; i < rows; ++i) y[i] = (i * 3 + number) % NET_CLASSES;
    inputs[0] =
        CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, (const int64_t[]){rows, NET_IN}, x, (size_t)rows * NET_IN * sizeof *x));
    inputs[1] = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, (const int64_t[]){rows}, y, (size_t)rows * sizeof *y));
}

static inline gt_status net_run(net_step *n, int rows, int number) {
    gt_tensor *inputs[2];
    CHECK_OK(gt_scope_begin(n->ctx));
    net_batch(n->ctx, rows, number, inputs);
    gt_status status = gt_step_run(n->step, inputs, 2);
    CHECK_OK(gt_scope_end(n->ctx));
    return status;
}

/* All parameters and buffers, one after the other; the caller's. */
static inline char *net_values(gt_module *net, size_t *bytes) {
    int32_t parameters = gt_module_parameter_count(net), total = parameters + gt_module_buffer_count(net);
    char *values = NULL;
    *bytes = 0;
    for (int32_t i = 0; i < total; ++i) {
        gt_tensor *x;
        CHECK_OK(i < parameters ? gt_module_parameter(net, i, NULL, &x) : gt_module_buffer(net, i - parameters, NULL, &x));
        values = realloc(values, *bytes + gt_tensor_bytes(x));
        CHECK_OK(gt_tensor_read(x, values + *bytes, gt_tensor_bytes(x)));
        *bytes += gt_tensor_bytes(x);
    }
    return values;
}

/* Parameters and buffers of one network into another of its kind. */
static inline void net_copy(gt_module *from, gt_module *to) {
    int32_t parameters = gt_module_parameter_count(from), total = parameters + gt_module_buffer_count(from);
    for (int32_t i = 0; i < total; ++i) {
        gt_tensor *x, *y;
        CHECK_OK(i < parameters ? gt_module_parameter(from, i, NULL, &x) : gt_module_buffer(from, i - parameters, NULL, &x));
        CHECK_OK(i < parameters ? gt_module_parameter(to, i, NULL, &y) : gt_module_buffer(to, i - parameters, NULL, &y));
        char *values = malloc(gt_tensor_bytes(x));
        CHECK_OK(gt_tensor_read(x, values, gt_tensor_bytes(x)));
        CHECK_OK(gt_tensor_write(y, values, gt_tensor_bytes(x)));
        free(values);
    }
}

static inline void net_same(gt_module *a, gt_module *b) {
    size_t left, right;
    char *x = net_values(a, &left), *y = net_values(b, &right);
    CHECK_EQ_INT(left, right);
    CHECK(memcmp(x, y, left) == 0);
    free(x);
    free(y);
}

static inline gt_memory_stats net_memory(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    return stats;
}

static inline gt_step_memory net_step_memory(void) {
    gt_step_memory m;
    CHECK_OK(gt_step_memory_init(&m, sizeof m));
    return m;
}

#endif

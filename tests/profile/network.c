#include "profile/network.h"

#include "profile/profile.h"

#include <math.h>

static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t count, gt_step_result *r) {
    network *n = user;
    (void)count;
    if (n->tracing) n->tracing(n->user);
    r->loss = gt_cross_entropy(gt_module_forward(n->net, inputs[0]), inputs[1], NULL);
    return r->loss ? GT_OK : gt_last_error()->status;
}

void network_begin(test_case *t, network *n, int compiled) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.deterministic = 1;
    options.seed = 5;
    *n = (network){.ctx = test_context_with(t, &options)};
    network_set_ceilings(n->ctx);
    gt_module *layers[] = {gt_nn_conv2d(n->ctx, 1, 8, 3, NULL),
                           gt_nn_relu(n->ctx),
                           gt_nn_max_pool2d(n->ctx, 2, NULL),
                           gt_nn_flatten(n->ctx, 1),
                           gt_nn_linear(n->ctx, 8 * 3 * 3, 16, NULL),
                           gt_nn_relu(n->ctx),
                           gt_nn_linear(n->ctx, 16, NETWORK_CLASSES, NULL)};
    n->net = gt_nn_sequential_from(n->ctx, layers, 7);
    CHECK(n->net != NULL);
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    CHECK_OK(gt_optimizer_create_for(&o, n->net, &n->optimizer));
    if (!compiled) return;
    gt_step_options s;
    CHECK_OK(gt_step_options_init(&s, sizeof s));
    s.fn = loss_of;
    s.user = n;
    s.module = n->net;
    s.optimizers = &n->optimizer;
    s.n_optimizers = 1;
    CHECK_OK(gt_step_create(n->ctx, &s, &n->step));
}

void network_end(network *n) {
    gt_step_destroy(n->step);
    gt_optimizer_destroy(n->optimizer);
    gt_module_destroy(n->net);
}

static void batch(gt_context *ctx, gt_tensor **inputs) {
    float x[NETWORK_BATCH * NETWORK_SIDE * NETWORK_SIDE];
    int64_t y[NETWORK_BATCH];
    for (int i = 0; i < NETWORK_BATCH * NETWORK_SIDE * NETWORK_SIDE; ++i) x[i] = (float)(i * 7 % 29 - 14) / 9;
    for (int i = 0; i < NETWORK_BATCH; ++i) y[i] = i * 3 % NETWORK_CLASSES;
    const int64_t shape[4] = {NETWORK_BATCH, 1, NETWORK_SIDE, NETWORK_SIDE};
    inputs[0] = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 4, shape, x, sizeof x));
    inputs[1] = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, shape, y, sizeof y));
}

static void train(network *n, double *value) {
    gt_tensor *inputs[2];
    CHECK_OK(gt_scope_begin(n->ctx));
    batch(n->ctx, inputs);
    if (n->step) {
        CHECK_OK(gt_step_run(n->step, inputs, 2));
        if (value) CHECK_OK(gt_tensor_item(gt_step_loss(n->step), value));
    } else {
        CHECK_OK(gt_optimizer_zero_grad(n->optimizer));
        gt_tensor *loss = CHECK_TENSOR(gt_cross_entropy(gt_module_forward(n->net, inputs[0]), inputs[1], NULL));
        CHECK_OK(gt_backward(loss));
        if (value) CHECK_OK(gt_tensor_item(loss, value));
        CHECK_OK(gt_optimizer_step(n->optimizer));
    }
    CHECK_OK(gt_scope_end(n->ctx));
}

void network_train(network *n) { train(n, NULL); }

double network_train_loss(network *n) {
    double loss = NAN;
    train(n, &loss);
    return loss;
}

static int fits(const char *have, const char *want) { return want == NULL || strcmp(have, want) == 0; }

const gt_profile_entry *network_entry(const gt_profile *profile, const char *op, const char *module, const char *phase) {
    for (int32_t i = 0; i < gt_profile_entry_count(profile); ++i) {
        const gt_profile_entry *e = gt_profile_get_entry(profile, i);
        if (strcmp(e->op, op) == 0 && fits(e->module, module) && fits(e->phase, phase)) return e;
    }
    FAIL("no entry %s \"%s\" %s", op, module ? module : "*", phase ? phase : "*");
    return NULL;
}

void network_set_ceilings(gt_context *ctx) {
    gt__profiled *d;
    CHECK_OK(gt__profiled_get(ctx, &d));
    d->measured = true;
    d->ceilings = (gt_profile_ceilings){
        .struct_size = sizeof d->ceilings, .bytes_per_second = 1e10, .f32_flops_per_second = 1e11, .f16_flops_per_second = 2e11};
}

void network_use_timers(network *n) {
    gt__profiled *d;
    CHECK_OK(gt__profiled_get(n->ctx, &d));
    d->timers = true;
}

gt_profile *network_profile(network *n, int wait, int warmup, int active, int repeat) {
    gt_profile_options o;
    gt_profile *profile = NULL;
    CHECK_OK(gt_profile_options_init(&o, sizeof o));
    o.wait = wait;
    o.warmup = warmup;
    o.active = active;
    o.repeat = repeat;
    CHECK_OK(gt_profile_create(n->ctx, &o, &profile));
    return profile;
}

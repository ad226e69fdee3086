/* Contract E1 for steps: each host allocation in turn may fail, and a window or scaler is then as it was. */
#include "contract/step_support.h"

#include "core/core.h"
#include "fake_device.h"
#include "optim/optimizer.h"

typedef struct parts {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_tensor *x;
} parts;

static parts parts_of(test_case *t) {
    parts p = {.ctx = test_context(t)};
    gt_module *const layers[] = {gt_nn_linear(p.ctx, 2, 3, NULL), gt_nn_batch_norm(p.ctx, 3, NULL)};
    p.net = gt_nn_sequential_from(p.ctx, layers, 2);
    CHECK(p.net != NULL);
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAM));
    CHECK_OK(gt_optimizer_create_for(&o, p.net, &p.optimizer));
    p.x = CHECK_TENSOR(gt_tensor_normal(p.ctx, GT_DTYPE_F32, 2, (const int64_t[]){4, 2}, 0, 1));
    return p;
}

static void parts_end(parts *p) {
    gt_tensor_release(p->x);
    gt_optimizer_destroy(p->optimizer);
    gt_module_destroy(p->net);
}

/* Both handles, or neither. */
static gt_status make_both(parts *p, gt_scaler **scaler, gt_window **window) {
    gt_scaler_options so;
    gt_window_options o;
    gt_status status = gt_scaler_options_init(&so, sizeof so);
    so.diagnose = 1;
    if (status == GT_OK) status = gt_scaler_create(p->ctx, &so, scaler);
    if (status != GT_OK) return status;
    status = gt_window_options_init(&o, sizeof o);
    o.optimizers = &p->optimizer;
    o.n_optimizers = 1;
    o.micro_batches = 2;
    o.module = p->net;
    o.scaler = *scaler;
    if (status == GT_OK) status = gt_window_create(&o, window);
    if (status != GT_OK) {
        gt_scaler_destroy(*scaler);
        *scaler = NULL;
    }
    return status;
}

/* A window of two micro-batches; the first failure ends it. */
static gt_status run_window(parts *p, gt_window *window) {
    gt_status status = GT_OK;
    for (int i = 0; i < 2 && status == GT_OK; ++i) {
        status = gt_window_micro_begin(window);
        if (status == GT_OK) status = gt_scope_begin(p->ctx);
        if (status != GT_OK) break;
        gt_tensor *loss = gt_sum(gt_square(gt_module_forward(p->net, p->x)), NULL, 0, 0);
        status = gt_window_micro_end(window, loss, 4, NULL);
        (void)gt_scope_end(p->ctx);
    }
    if (status != GT_OK) (void)gt_window_cancel(window);
    return status;
}

TEST(contract, E1_windows_and_scalers_survive_each_failing_host_allocation) {
    parts p = parts_of(t);
    gt_scaler *scaler = NULL;
    gt_window *window = NULL;
    gt_status status = GT_OUT_OF_HOST_MEMORY;
    for (int64_t n = 0; status != GT_OK; ++n) {
        CHECK(n < 1000);
        fake_host_fail(n);
        status = make_both(&p, &scaler, &window);
        fake_host_fail(-1);
        if (status == GT_OK) break;
        CHECK_EQ_INT(status, GT_OUT_OF_HOST_MEMORY);
        CHECK(p.ctx->diagnosis == NULL && window == NULL);
    }
    int failures = 0;
    float before[6], after[6];
    gt_tensor *weight, *mean;
    CHECK_OK(gt_module_find(p.net, "0.weight", &weight));
    CHECK_OK(gt_module_find(p.net, "1.running_mean", &mean));
    step_read(weight, before, 6);
    status = GT_OUT_OF_HOST_MEMORY;
    for (int64_t n = 0; status != GT_OK; ++n) {
        CHECK(n < 10000);
        fake_host_fail(n);
        status = run_window(&p, window);
        fake_host_fail(-1);
        if (status == GT_OK) break;
        ++failures;
        CHECK_EQ_INT(status, GT_OUT_OF_HOST_MEMORY);
        CHECK(p.ctx->open_windows == 0 && !p.optimizer->in_window);
        step_read(weight, after, 6);
        CHECK(memcmp(before, after, sizeof before) == 0);
        step_read(mean, after, 3);
        CHECK(after[0] == 0 && after[1] == 0 && after[2] == 0);
        CHECK(gt_tensor_grad(weight) == NULL);
    }
    CHECK(failures > 5);
    CHECK_EQ_INT(step_window_state(window).updates, 1);
    step_read(weight, after, 6);
    CHECK(memcmp(before, after, sizeof before) != 0);
    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    parts_end(&p);
}

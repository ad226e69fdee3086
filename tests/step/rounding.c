/* Passes that round otherwise than the calls do one by one. On the CPU, where a step does without them, they are made to run. */
#include "harness/test.h"
#include "step/step.h"

#include <gtrain/gtrain.h>
#include <math.h>
#include <stdlib.h>

enum { ROWS = 6, SIDE = 20, CLASSES = 7, STEPS = 4 };

typedef struct world {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_step *step;
    gt_window *window;
    gt_tensor *inputs[2];
} world;

static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    (void)n;
    r->loss = gt_cross_entropy(gt_module_forward(user, inputs[0]), inputs[1], NULL);
    return r->loss ? GT_OK : gt_last_error()->status;
}

/* Pooling with windows that do not overlap, and with such that do. */
static gt_module *network(gt_context *ctx) {
    gt_pool2d_options overlapping;
    CHECK_OK(gt_pool2d_options_init(&overlapping, sizeof overlapping));
    overlapping.stride[0] = overlapping.stride[1] = 2;
    overlapping.padding[0] = overlapping.padding[1] = 1;
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 8, 3, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_conv2d(ctx, 8, 16, 3, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_max_pool2d(ctx, 2, NULL),
                           gt_nn_conv2d(ctx, 16, 16, 3, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_max_pool2d(ctx, 3, &overlapping),
                           gt_nn_flatten(ctx, 1),
                           gt_nn_linear(ctx, 16 * 3 * 3, CLASSES, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 10);
    CHECK(net != NULL);
    return net;
}

static void begin(test_case *t, world *w, bool compiled) {
    gt_context_options options;
    *w = (world){0};
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.seed = 9;
    options.allow_tf32 = 0;
    w->ctx = test_context_with(t, &options);
    w->net = network(w->ctx);
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    o.learning_rate = 0.05;
    CHECK_OK(gt_optimizer_create_for(&o, w->net, &w->optimizer));
    float x[ROWS * SIDE * SIDE];
    int64_t y[ROWS];
    for (int i = 0; i < ROWS * SIDE * SIDE; ++i) x[i] = (float)((i * 7 + i / 13) % 31 - 15) / 8;
    for (int i = 0; i < ROWS; ++i) y[i] = i % CLASSES;
    const int64_t shape[4] = {ROWS, 1, SIDE, SIDE};
    w->inputs[0] = CHECK_TENSOR(gt_tensor_from_data(w->ctx, GT_DTYPE_F32, 4, shape, x, sizeof x));
    w->inputs[1] = CHECK_TENSOR(gt_tensor_from_data(w->ctx, GT_DTYPE_I64, 1, shape, y, sizeof y));
    if (compiled) {
        gt_step_options so;
        CHECK_OK(gt_step_options_init(&so, sizeof so));
        so.fn = loss_of;
        so.user = so.module = w->net;
        so.optimizers = &w->optimizer;
        so.n_optimizers = 1;
        CHECK_OK(gt_step_create(w->ctx, &so, &w->step));
    } else {
        gt_window_options wo;
        CHECK_OK(gt_window_options_init(&wo, sizeof wo));
        wo.module = w->net;
        wo.optimizers = &w->optimizer;
        wo.n_optimizers = 1;
        CHECK_OK(gt_window_create(&wo, &w->window));
    }
}

static void end(world *w) {
    gt_step_destroy(w->step);
    gt_window_destroy(w->window);
    gt_optimizer_destroy(w->optimizer);
    gt_module_destroy(w->net);
    gt_tensor_release(w->inputs[0]);
    gt_tensor_release(w->inputs[1]);
}

static void eager_step(world *w) {
    gt_step_result r = {0};
    CHECK_OK(gt_scope_begin(w->ctx));
    CHECK_OK(gt_window_micro_begin(w->window));
    CHECK_OK(loss_of(w->net, w->inputs, 2, &r));
    CHECK_OK(gt_window_micro_end(w->window, r.loss, ROWS, NULL));
    CHECK_OK(gt_scope_end(w->ctx));
}

static int64_t rows_of_relu_gradients(const gt__plan *plan) {
    int64_t rows = 0;
    for (int32_t i = 0; i < plan->program.count; ++i) {
        const gt__instruction *n = &plan->program.list[i];
        if (n->kind == GT__DO_CALL && n->call->call.op == GT__OP_BIAS_RELU_BACKWARD) rows += n->call->call.in[0]->meta.shape[2];
    }
    return rows;
}

static int32_t first_convolutions(const gt__plan *plan) {
    int32_t found = 0;
    for (int32_t i = 0; i < plan->program.count; ++i) {
        const gt__instruction *n = &plan->program.list[i];
        found += n->kind == GT__DO_CALL && n->call->call.op == GT__OP_CONV2D_RELU_BACKWARD_WEIGHT;
    }
    return found;
}

TEST_DEVICES(unit, step_relus_gradient_passes_pooling_at_the_pooled_size) {
    world eager, compiled;
    begin(t, &eager, false);
    begin(t, &compiled, true);
    gt__plan *plan = NULL;
    if (test_device(t) == GT_DEVICE_CPU) {
        gt__meta metas[2] = {compiled.inputs[0]->meta, compiled.inputs[1]->meta};
        CHECK_OK(gt__plan_create(compiled.step, metas, 2, 1, true, false, &plan));
        CHECK_EQ_INT(rows_of_relu_gradients(plan), 18 + 16 + 6);
        CHECK_EQ_INT(first_convolutions(plan), 0);
        gt__plan_destroy(compiled.step, plan);
        compiled.step->free_to_round = true;
        CHECK_OK(gt__plan_create(compiled.step, metas, 2, 1, true, false, &plan));
        CHECK_EQ_INT(rows_of_relu_gradients(plan), 8 + 3);
        CHECK_EQ_INT(first_convolutions(plan), 1);
    }
    for (int i = 0; i < STEPS; ++i) {
        eager_step(&eager);
        CHECK_OK(plan ? gt__plan_run(compiled.step, plan, compiled.inputs) : gt_step_run(compiled.step, compiled.inputs, 2));
    }
    for (int32_t i = 0; i < gt_module_parameter_count(eager.net); ++i) {
        gt_tensor *x, *y;
        CHECK_OK(gt_module_parameter(eager.net, i, NULL, &x));
        CHECK_OK(gt_module_parameter(compiled.net, i, NULL, &y));
        float *a = malloc(gt_tensor_bytes(x)), *b = malloc(gt_tensor_bytes(x));
        CHECK_OK(gt_tensor_read(x, a, gt_tensor_bytes(x)));
        CHECK_OK(gt_tensor_read(y, b, gt_tensor_bytes(x)));
        CHECK_ALLCLOSE_F32(b, a, gt_tensor_numel(x), 1e-4, 1e-6);
        free(a);
        free(b);
    }
    gt__plan_destroy(compiled.step, plan);
    end(&eager);
    end(&compiled);
}

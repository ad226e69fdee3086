/* Passes that round otherwise than the calls do one by one. On the CPU, where a step does without them, they are made to run. */
#include "harness/test.h"
#include "step/step.h"

#include <gtrain/gtrain.h>
#include <math.h>
#include <stdlib.h>

enum { ROWS = 6, SIDE = 20, CLASSES = 7, STEPS = 4 };

/* A network, and how it is trained. */
typedef struct setting {
    gt_module *(*network)(gt_context *ctx);
    gt_dtype autocast; /* F32: none */
    int micro_batches;
} setting;

typedef struct world {
    const setting *s;
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

static void begin(test_case *t, world *w, const setting *s, bool compiled) {
    gt_context_options options;
    *w = (world){.s = s};
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.seed = 9;
    options.allow_tf32 = 0;
    w->ctx = test_context_with(t, &options);
    w->net = s->network(w->ctx);
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
        so.micro_batches = s->micro_batches;
        so.autocast = s->autocast;
        so.fn = loss_of;
        so.user = so.module = w->net;
        so.optimizers = &w->optimizer;
        so.n_optimizers = 1;
        CHECK_OK(gt_step_create(w->ctx, &so, &w->step));
    } else {
        gt_window_options wo;
        CHECK_OK(gt_window_options_init(&wo, sizeof wo));
        wo.micro_batches = s->micro_batches;
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
    const int k = w->s->micro_batches;
    CHECK_OK(gt_scope_begin(w->ctx));
    for (int m = 0; m < k; ++m) {
        gt_step_result r = {0};
        gt_tensor *part[2];
        for (int i = 0; i < 2; ++i) part[i] = CHECK_TENSOR(gt_slice(w->inputs[i], 0, ROWS / k * m, ROWS / k * (m + 1), 1));
        CHECK_OK(gt_window_micro_begin(w->window));
        if (w->s->autocast != GT_DTYPE_F32) CHECK_OK(gt_autocast_begin(w->ctx, w->s->autocast));
        CHECK_OK(loss_of(w->net, k > 1 ? part : w->inputs, 2, &r));
        if (w->s->autocast != GT_DTYPE_F32) CHECK_OK(gt_autocast_end(w->ctx));
        CHECK_OK(gt_window_micro_end(w->window, r.loss, ROWS / k, NULL));
    }
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

static void same_parameters(world *a, world *b, double relative, double absolute) {
    for (int32_t i = 0; i < gt_module_parameter_count(a->net); ++i) {
        gt_tensor *x, *y;
        CHECK_OK(gt_module_parameter(a->net, i, NULL, &x));
        CHECK_OK(gt_module_parameter(b->net, i, NULL, &y));
        float *want = malloc(gt_tensor_bytes(x)), *got = malloc(gt_tensor_bytes(x));
        CHECK_OK(gt_tensor_read(x, want, gt_tensor_bytes(x)));
        CHECK_OK(gt_tensor_read(y, got, gt_tensor_bytes(x)));
        CHECK_ALLCLOSE_F32(got, want, gt_tensor_numel(x), relative, absolute);
        free(want);
        free(got);
    }
}

TEST_DEVICES(unit, step_relus_gradient_passes_pooling_at_the_pooled_size) {
    const setting s = {network, GT_DTYPE_F32, 1};
    world eager, compiled;
    begin(t, &eager, &s, false);
    begin(t, &compiled, &s, true);
    gt__plan *plan = NULL;
    if (test_device(t) == GT_DEVICE_CPU) {
        gt__meta metas[2] = {compiled.inputs[0]->meta, compiled.inputs[1]->meta};
        CHECK_OK(gt__plan_create(compiled.step, metas, 2, 1, true, false, &plan));
        CHECK_EQ_INT(rows_of_relu_gradients(plan), 18 + 16 + 6);
        CHECK_EQ_INT(first_convolutions(plan), 0);
        gt__plan_destroy(compiled.step, plan);
        compiled.step->free_to_round = true;
        CHECK_OK(gt__plan_create(compiled.step, metas, 2, 1, true, false, &plan));
        CHECK_EQ_INT(rows_of_relu_gradients(plan), 3); /* the other in one call with pooling's */
        CHECK_EQ_INT(first_convolutions(plan), 1);
    }
    for (int i = 0; i < STEPS; ++i) {
        eager_step(&eager);
        CHECK_OK(plan ? gt__plan_run(compiled.step, plan, compiled.inputs) : gt_step_run(compiled.step, compiled.inputs, 2));
    }
    same_parameters(&eager, &compiled, 1e-4, 1e-6);
    gt__plan_destroy(compiled.step, plan);
    end(&eager);
    end(&compiled);
}

/* --- pooling, with what surrounds it ------------------------------------------------------------------------------------------------------- */

static gt_module *flatten_network(gt_context *ctx, int32_t bias, int64_t kernel, bool relu) {
    gt_nn_conv2d_options o;
    CHECK_OK(gt_nn_conv2d_options_init(&o, sizeof o));
    o.bias = bias;
    const int64_t side = (SIDE - 2 - kernel + 1) / 2;
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 8, 3, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_conv2d(ctx, 8, 16, kernel, &o),
                           relu ? gt_nn_relu(ctx) : gt_nn_identity(ctx),
                           gt_nn_max_pool2d(ctx, 2, NULL),
                           gt_nn_flatten(ctx, 1),
                           gt_nn_linear(ctx, 16 * side * side, 24, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_linear(ctx, 24, CLASSES, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, sizeof layers / sizeof *layers);
    CHECK(net != NULL);
    return net;
}

static gt_module *flattened(gt_context *ctx) { return flatten_network(ctx, 1, 3, true); }
static gt_module *flattened_without_bias(gt_context *ctx) { return flatten_network(ctx, 0, 3, true); }
static gt_module *flattened_odd(gt_context *ctx) { return flatten_network(ctx, 1, 4, true); }
static gt_module *flattened_without_relu(gt_context *ctx) { return flatten_network(ctx, 1, 3, false); }

/* Copies between channels-last and row-major order. */
static int32_t turns(const gt__plan *plan) {
    int32_t found = 0;
    for (int32_t i = 0; i < plan->program.count; ++i) {
        const gt__instruction *n = &plan->program.list[i];
        if (n->kind != GT__DO_CALL || n->call->call.op != GT__OP_COPY) continue;
        found += !gt__meta_same_layout(&n->call->call.in[0]->meta, &n->call->call.out[0]->meta);
    }
    return found;
}

static int32_t calls(const gt__plan *plan, gt__op_id op) {
    int32_t found = 0;
    for (int32_t i = 0; i < plan->program.count; ++i)
        found += plan->program.list[i].kind == GT__DO_CALL && plan->program.list[i].call->call.op == op;
    return found;
}

/* Of the plan, a micro-batch. */
typedef struct counts {
    int32_t turns, relus, gradients, joined;
} counts;

static void check_pooling(test_case *t, const setting *s, counts want, counts before, double relative, double absolute) {
    world eager, compiled;
    begin(t, &eager, s, false);
    begin(t, &compiled, s, true);
    for (int free_to_round = test_device(t) == GT_DEVICE_CUDA; free_to_round < 2; ++free_to_round) {
        const counts c = free_to_round ? want : before;
        compiled.step->free_to_round = free_to_round != 0;
        gt__meta metas[2] = {compiled.inputs[0]->meta, compiled.inputs[1]->meta};
        gt__plan *plan = NULL;
        CHECK_OK(gt__plan_create(compiled.step, metas, 2, s->micro_batches, true, false, &plan));
        CHECK_EQ_INT(turns(plan), c.turns * s->micro_batches);
        /* From the second micro-batch on the first convolution's weight gradient is added, and relu's stays. */
        const int32_t relus = c.relus * s->micro_batches + (free_to_round ? s->micro_batches - 1 : 0);
        const int32_t behind_linear = calls(plan, GT__OP_LINEAR_RELU_BACKWARD);
        CHECK_EQ_INT(calls(plan, GT__OP_BIAS_RELU_BACKWARD) + calls(plan, GT__OP_RELU_BACKWARD) + behind_linear, relus);
        CHECK_EQ_INT(calls(plan, GT__OP_MAX_POOL2D_BACKWARD), c.gradients * s->micro_batches);
        CHECK_EQ_INT(calls(plan, GT__OP_MAX_POOL2D_RELU_BACKWARD), c.joined * s->micro_batches);
        gt__plan_destroy(compiled.step, plan);
    }
    for (int i = 0; i < STEPS; ++i) {
        eager_step(&eager);
        CHECK_OK(gt_step_run(compiled.step, compiled.inputs, 2));
    }
    CHECK_EQ_INT(calls(compiled.step->last, GT__OP_MAX_POOL2D_RELU_BACKWARD), want.joined * s->micro_batches);
    same_parameters(&eager, &compiled, relative, absolute);
    end(&eager);
    end(&compiled);
}

/* relu's gradients: of the first convolution, which is left to its weight gradient; of the pooled one; of the linear layer. */
#define POOLING(name, relative, absolute, before, want, ...)                                                                               \
    TEST_DEVICES(unit, step_pooling_##name) {                                                                                              \
        const setting s = {__VA_ARGS__};                                                                                                   \
        check_pooling(t, &s, (counts)want, (counts)before, relative, absolute);                                                            \
    }
#define OF(...)                                                                                                                            \
    { __VA_ARGS__ }

POOLING(around_flatten_is_row_major, 1e-4, 1e-6, OF(2, 3, 1, 0), OF(0, 1, 0, 1), flattened, GT_DTYPE_F32, 1)
POOLING(around_flatten_in_micro_batches, 1e-4, 1e-6, OF(2, 3, 1, 0), OF(0, 1, 0, 1), flattened, GT_DTYPE_F32, 3)
POOLING(around_flatten_in_halves, 0, 2e-3, OF(2, 3, 1, 0), OF(0, 1, 0, 1), flattened, GT_DTYPE_BF16, 1)
POOLING(around_flatten_of_odd_images, 1e-4, 1e-6, OF(2, 3, 1, 0), OF(0, 1, 0, 1), flattened_odd, GT_DTYPE_F32, 2)
POOLING(around_flatten_without_bias, 1e-4, 1e-6, OF(2, 3, 1, 0), OF(0, 1, 0, 1), flattened_without_bias, GT_DTYPE_F32, 1)
POOLING(without_relu_is_row_major_forward, 1e-4, 1e-6, OF(2, 2, 1, 0), OF(1, 1, 1, 0), flattened_without_relu, GT_DTYPE_F32, 1)
/* One before a convolution; one of overlapping windows, which stays as it is. */
POOLING(before_a_convolution_takes_relus_gradient, 1e-4, 1e-6, OF(2, 3, 2, 0), OF(2, 1, 1, 1), network, GT_DTYPE_F32, 1)

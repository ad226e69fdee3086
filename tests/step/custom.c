/* Custom ops in a compiled step: their callbacks run when the step runs, and do what they do without one. */
#include "support.h"

typedef struct counts {
    int shape, forward, backward;
    gt_status fail; /* what the next backward returns */
} counts;

static int64_t elements(const gt_array *a) {
    int64_t n = 1;
    for (int32_t i = 0; i < a->ndim; ++i) n *= a->shape[i];
    return n;
}

/* out 0: x * scale[0] + x^2; out 1: x - 1. */
static gt_status forward(const gt_custom_call *c) {
    counts *n = c->user;
    const float *x = c->inputs[0].data, *scale = c->inputs[1].data;
    float *y = c->outputs[0].data, *z = c->outputs[1].data;
    n->forward++;
    for (int64_t i = 0; i < elements(&c->inputs[0]); ++i) {
        y[i] = x[i] * scale[0] + x[i] * x[i];
        z[i] = x[i] - 1;
    }
    return GT_OK;
}

static gt_status backward(const gt_custom_call *c) {
    counts *n = c->user;
    const float *x = c->inputs[0].data, *scale = c->inputs[1].data, *dy = c->output_grads[0].data, *dz = c->output_grads[1].data;
    float *dx = c->input_grads[0].data, *dscale = c->input_grads[1].data, sum = 0;
    gt_status status = n->fail;
    n->backward++;
    n->fail = GT_OK;
    for (int64_t i = 0; i < elements(&c->inputs[0]); ++i) {
        if (dx) dx[i] = dy[i] * (scale[0] + 2 * x[i]) + dz[i];
        sum += dy[i] * x[i];
    }
    if (dscale) dscale[0] = sum;
    return status;
}

static gt_status shape(const gt_custom_call *c, int32_t *ndim, int64_t *sizes, gt_dtype *dtype) {
    counts *n = c->user;
    n->shape++;
    for (int32_t k = 0; k < 2; ++k) {
        ndim[k] = c->inputs[0].ndim;
        memcpy(sizes + k * GT_MAX_DIMS, c->inputs[0].shape, (size_t)ndim[k] * sizeof *sizes);
        dtype[k] = c->inputs[0].dtype;
    }
    return GT_OK;
}

/* Two layers around the op, whose second output is used or not. */
typedef struct world {
    net_step n; /* net: the first layer; optimizer: of all parameters */
    gt_module *last;
    gt_tensor *scale;
    counts counts;
    bool both;
} world;

static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t count, gt_step_result *r) {
    world *w = user;
    gt_custom_op_options o;
    gt_tensor *out[2];
    (void)count;
    CHECK_OK(gt_custom_op_options_init(&o, sizeof o));
    o.name = "bend";
    o.user = &w->counts;
    o.n_outputs = 2;
    o.shape = shape;
    o.forward = forward;
    o.backward = backward;
    gt_tensor *const in[2] = {gt_module_forward(w->n.net, inputs[0]), w->scale};
    gt_status status = gt_custom_op_call(&o, in, 2, out);
    if (status != GT_OK) return status;
    gt_tensor *mixed = w->both ? gt_add(out[0], out[1]) : out[0];
    r->loss = gt_cross_entropy(gt_module_forward(w->last, mixed), inputs[1], NULL);
    return r->loss ? GT_OK : gt_last_error()->status;
}

static void begin(test_case *t, world *w, bool both, bool compiled) {
    *w = (world){.both = both};
    w->n.ctx = net_context(t);
    w->n.net = gt_nn_linear(w->n.ctx, NET_IN, NET_HIDDEN, NULL);
    w->last = gt_nn_linear(w->n.ctx, NET_HIDDEN, NET_CLASSES, NULL);
    w->scale = CHECK_TENSOR(gt_tensor_full(w->n.ctx, GT_DTYPE_F32, 1, (const int64_t[]){1}, 0.5)); /* in no scope: ours */
    CHECK_OK(gt_tensor_set_requires_grad(w->scale, 1));
    gt_tensor *parameters[5];
    for (int i = 0; i < 4; ++i) CHECK_OK(gt_module_parameter(i < 2 ? w->n.net : w->last, i % 2, NULL, &parameters[i]));
    parameters[4] = w->scale;
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    o.learning_rate = 0.05;
    CHECK_OK(gt_optimizer_create(&o, parameters, 5, &w->n.optimizer));
    if (!compiled) return;
    gt_step_options so = net_options(&w->n);
    so.fn = loss_of;
    so.user = w;
    so.module = NULL;
    CHECK_OK(gt_step_create(w->n.ctx, &so, &w->n.step));
}

static void end(world *w) {
    gt_tensor_release(w->scale);
    gt_module_destroy(w->last);
    net_end(&w->n);
}

static gt_status eager(world *w, int number) {
    gt_tensor *inputs[2];
    gt_step_result r = {0};
    CHECK_OK(gt_scope_begin(w->n.ctx));
    net_batch(w->n.ctx, 9, number, inputs);
    gt_status status = gt_optimizer_zero_grad(w->n.optimizer);
    if (status == GT_OK) status = loss_of(w, inputs, 2, &r);
    if (status == GT_OK) status = gt_backward(r.loss);
    if (status == GT_OK) status = gt_optimizer_step(w->n.optimizer);
    CHECK_OK(gt_scope_end(w->n.ctx));
    return status;
}

static void same(const world *a, const world *b) {
    double x, y;
    net_same(a->n.net, b->n.net);
    net_same(a->last, b->last);
    CHECK_OK(gt_tensor_item(a->scale, &x));
    CHECK_OK(gt_tensor_item(b->scale, &y));
    CHECK(x == y && x != 0.5);
}

static void compare(test_case *t, bool both) {
    world a, b;
    begin(t, &a, both, false);
    begin(t, &b, both, true);
    for (int i = 0; i < 5; ++i) {
        CHECK_OK(eager(&a, i));
        CHECK_OK(net_run(&b.n, 9, i));
        same(&a, &b);
        CHECK_EQ_INT(b.counts.forward, i + 1); /* none while it was traced */
        CHECK_EQ_INT(b.counts.backward, i + 1);
    }
    end(&a);
    end(&b);
}

TEST(unit, step_with_a_custom_op_is_the_same_as_eager) { compare(t, true); }
TEST(unit, step_with_a_custom_op_gives_zeros_for_what_flows_back_to_an_unused_output) { compare(t, false); }

TEST(unit, step_whose_custom_backward_fails_changes_nothing_and_runs_again) {
    world a, b;
    begin(t, &a, true, false);
    begin(t, &b, true, true);
    CHECK_OK(eager(&a, 0));
    CHECK_OK(net_run(&b.n, 9, 0));
    b.counts.fail = GT_IO;
    CHECK_STATUS(net_run(&b.n, 9, 1), GT_CALLBACK);
    CHECK_ERROR_HAS("custom op \"bend\": its backward callback returned");
    same(&a, &b);
    CHECK_OK(eager(&a, 1));
    CHECK_OK(net_run(&b.n, 9, 1));
    same(&a, &b);
    end(&a);
    end(&b);
}

TEST(unit, step_describes_custom_ops_by_name) {
    world w;
    char text[8192];
    begin(t, &w, true, true);
    CHECK_OK(net_run(&w.n, 9, 0));
    CHECK_OK(gt_step_describe(w.n.step, GT_STEP_TEXT, text, sizeof text, NULL));
    CHECK(strstr(text, "custom[bend](") != NULL);
    CHECK(strstr(text, "custom_backward[bend](") != NULL);
    CHECK_OK(gt_step_describe(w.n.step, GT_STEP_GRAPHVIZ, text, sizeof text, NULL));
    CHECK(strstr(text, "bend custom_backward") != NULL);
    end(&w);
}

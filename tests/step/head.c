/* A classifier's last layer and its loss in two calls (step/pass_head.c). On the CPU, where a step does without, the pass is made to run: there the same kernels run one after the
 * other, and nothing may change. */
#include "harness/test.h"
#include "step/hand_made.h"
#include "step/step.h"

#include <gtrain/gtrain.h>
#include <stdlib.h>

enum { ROWS = 12, IN = 9, HIDDEN = 24, STEPS = 3, MOST = 2000 };

typedef struct net {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_step *step;
    gt_window *window;
    gt_tensor *inputs[2];
    int64_t rows;
    int32_t micro_batches;
    bool looks; /* at the logits */
} net;

static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    const net *w = user;
    (void)n;
    gt_cross_entropy_options o;
    CHECK_OK(gt_cross_entropy_options_init(&o, sizeof o));
    o.label_smoothing = 0.1;
    gt_tensor *logits = gt_module_forward(w->net, inputs[0]);
    r->loss = gt_cross_entropy(logits, inputs[1], &o);
    if (w->looks) r->outputs[0] = logits;
    return r->loss ? GT_OK : gt_last_error()->status;
}

static void begin(test_case *t, net *w, int64_t rows, int64_t classes, bool relu, bool compiled, int32_t micro_batches) {
    gt_context_options options;
    *w = (net){.rows = rows, .micro_batches = micro_batches};
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.seed = 3;
    options.allow_tf32 = 0;
    w->ctx = test_context_with(t, &options);
    gt_module *layers[] = {gt_nn_linear(w->ctx, IN, HIDDEN, NULL), relu ? gt_nn_relu(w->ctx) : gt_nn_tanh(w->ctx),
                           gt_nn_linear(w->ctx, HIDDEN, classes, NULL)};
    w->net = gt_nn_sequential_from(w->ctx, layers, 3);
    CHECK(w->net != NULL);
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    o.learning_rate = 0.1;
    o.momentum = 0.9;
    CHECK_OK(gt_optimizer_create_for(&o, w->net, &w->optimizer));
    static float x[MOST * IN];
    static int64_t y[MOST];
    CHECK(rows <= MOST);
    for (int64_t i = 0; i < rows * IN; ++i) x[i] = (float)((i * 7 + i / 13) % 31 - 15) / 8;
    for (int64_t i = 0; i < rows; ++i) y[i] = i % 5 == 4 ? -100 : i % classes;
    const int64_t shape[2] = {rows, IN};
    w->inputs[0] = CHECK_TENSOR(gt_tensor_from_data(w->ctx, GT_DTYPE_F32, 2, shape, x, (size_t)(rows * IN) * sizeof *x));
    w->inputs[1] = CHECK_TENSOR(gt_tensor_from_data(w->ctx, GT_DTYPE_I64, 1, shape, y, (size_t)rows * sizeof *y));
    if (compiled) {
        gt_step_options so;
        CHECK_OK(gt_step_options_init(&so, sizeof so));
        so.fn = loss_of;
        so.user = w;
        so.module = w->net;
        so.optimizers = &w->optimizer;
        so.n_optimizers = 1;
        so.micro_batches = micro_batches;
        CHECK_OK(gt_step_create(w->ctx, &so, &w->step));
    } else {
        gt_window_options wo;
        CHECK_OK(gt_window_options_init(&wo, sizeof wo));
        wo.module = w->net;
        wo.optimizers = &w->optimizer;
        wo.n_optimizers = 1;
        wo.micro_batches = micro_batches;
        CHECK_OK(gt_window_create(&wo, &w->window));
    }
}

static void end(net *w) {
    gt_step_destroy(w->step);
    gt_window_destroy(w->window);
    gt_optimizer_destroy(w->optimizer);
    gt_module_destroy(w->net);
    gt_tensor_release(w->inputs[0]);
    gt_tensor_release(w->inputs[1]);
}

static void eager_step(net *w) {
    for (int32_t k = 0; k < w->micro_batches; ++k) {
        gt_step_result r = {0};
        CHECK_OK(gt_scope_begin(w->ctx));
        CHECK_OK(gt_window_micro_begin(w->window));
        int64_t each = w->rows / w->micro_batches;
        gt_tensor *part[2];
        for (int i = 0; i < 2; ++i) part[i] = CHECK_TENSOR(gt_slice(w->inputs[i], 0, k * each, (k + 1) * each, 1));
        CHECK_OK(loss_of(w, part, 2, &r));
        CHECK_OK(gt_window_micro_end(w->window, r.loss, (double)each, NULL));
        CHECK_OK(gt_scope_end(w->ctx));
    }
}

static void compare(test_case *t, const net *a, const net *b) {
    for (int32_t i = 0; i < gt_module_parameter_count(a->net); ++i) {
        gt_tensor *x, *y;
        CHECK_OK(gt_module_parameter(a->net, i, NULL, &x));
        CHECK_OK(gt_module_parameter(b->net, i, NULL, &y));
        float *p = malloc(gt_tensor_bytes(x)), *q = malloc(gt_tensor_bytes(x));
        CHECK_OK(gt_tensor_read(x, p, gt_tensor_bytes(x)));
        CHECK_OK(gt_tensor_read(y, q, gt_tensor_bytes(x)));
        if (test_device(t) == GT_DEVICE_CPU)
            CHECK(memcmp(p, q, gt_tensor_bytes(x)) == 0);
        else
            CHECK_ALLCLOSE_F32(q, p, gt_tensor_numel(x), 1e-4, 1e-6);
        free(p);
        free(q);
    }
}

typedef struct expected {
    int32_t losses, backs, sums;
} expected;

/* The same training with and without; how many of which calls a plan has, made on the CPU. */
static void check(test_case *t, int64_t rows, int64_t classes, bool relu, bool looks, int32_t micro_batches, expected want) {
    net eager, compiled;
    begin(t, &eager, rows, classes, relu, false, micro_batches);
    begin(t, &compiled, rows, classes, relu, true, micro_batches);
    compiled.looks = looks;
    gt__plan *plan = NULL;
    if (test_device(t) == GT_DEVICE_CPU) {
        gt__meta metas[2] = {compiled.inputs[0]->meta, compiled.inputs[1]->meta};
        compiled.step->free_to_round = true;
        CHECK_OK(gt__plan_create(compiled.step, metas, 2, micro_batches, true, false, &plan));
        CHECK_EQ_INT(count_op(&plan->program, GT__OP_LINEAR_CROSS_ENTROPY), want.losses);
        CHECK_EQ_INT(count_op(&plan->program, GT__OP_CROSS_ENTROPY_BOTH), 0);
        CHECK_EQ_INT(count_op(&plan->program, GT__OP_LINEAR_RELU_BACKWARD), want.backs);
        CHECK_EQ_INT(count_op(&plan->program, GT__OP_SUM), want.sums);
    }
    for (int i = 0; i < STEPS; ++i) {
        eager_step(&eager);
        CHECK_OK(plan ? gt__plan_run(compiled.step, plan, compiled.inputs) : gt_step_run(compiled.step, compiled.inputs, 2));
    }
    compare(t, &eager, &compiled);
    gt__plan_destroy(compiled.step, plan);
    end(&eager);
    end(&compiled);
}

TEST_DEVICES(unit, head_is_two_calls) {
    check(t, ROWS, 10, true, false, 1, (expected){1, 1, 0});
    check(t, ROWS, 32, true, true, 1, (expected){1, 1, 0});
    check(t, 1000, 10, true, true, 1, (expected){1, 1, 0});
}

/* Without relu there is no mask to apply: the product and the sum stay. */
TEST_DEVICES(unit, head_without_relu_is_one_call_and_the_rest) { check(t, ROWS, 10, false, false, 1, (expected){1, 0, 2}); }

static int32_t count_calls(const gt__plan *plan, gt__op_id op) { return count_op(&plan->program, op); }

TEST(unit, head_of_many_classes_or_rows_stays_as_it_is) {
    const int64_t sizes[][2] = {{ROWS, 33}, {1025, 10}};
    for (int i = 0; i < 2; ++i) {
        net w;
        begin(t, &w, sizes[i][0], sizes[i][1], true, true, 1);
        gt__meta metas[2] = {w.inputs[0]->meta, w.inputs[1]->meta};
        gt__plan *plan = NULL;
        w.step->free_to_round = true;
        CHECK_OK(gt__plan_create(w.step, metas, 2, 1, true, false, &plan));
        CHECK_EQ_INT(count_calls(plan, GT__OP_LINEAR_CROSS_ENTROPY), 0);
        CHECK_EQ_INT(count_calls(plan, GT__OP_LINEAR_RELU_BACKWARD), 0);
        CHECK_EQ_INT(count_calls(plan, GT__OP_CROSS_ENTROPY_BOTH), 1);
        gt__plan_destroy(w.step, plan);
        w.step->free_to_round = false;
        CHECK_OK(gt__plan_create(w.step, metas, 2, 1, true, false, &plan));
        CHECK_EQ_INT(count_calls(plan, GT__OP_LINEAR_CROSS_ENTROPY), 0);
        gt__plan_destroy(w.step, plan);
        end(&w);
    }
}

/* --- by hand --------------------------------------------------------------------------------------------------------------------------------- */

enum { N = 4, C = 3, K = 5 };

typedef struct made {
    gt_context *ctx;
    gt__program p;
    operand dloss, x, w, b, labels, h, product, dz, db, sum, loss, logits, lse, sums, dlogits;
    float memory[256];
    int64_t of_labels[N];
} made;

static void make(test_case *t, made *m) {
    const int64_t nk[2] = {N, K}, ck[2] = {C, K}, nc[2] = {N, C}, n = N, c = C, k = K, one = 1;
    *m = (made){.ctx = test_context(t)};
    for (int i = 0; i < 256; ++i) m->memory[i] = (float)((i * 7) % 11 - 5) / 4;
    for (int i = 0; i < N; ++i) m->of_labels[i] = i % C;
    float *at = m->memory;
    m->dloss = operand_of(at, GT_DTYPE_F32, 0, &one);
    m->x = operand_of(at + 16, GT_DTYPE_F32, 2, nk);
    m->w = operand_of(at + 40, GT_DTYPE_F32, 2, ck);
    m->b = operand_of(at + 60, GT_DTYPE_F32, 1, &c);
    m->dz = operand_of(at + 80, GT_DTYPE_F32, 2, nk);
    m->db = operand_of(at + 100, GT_DTYPE_F32, 1, &k);
    m->sum = operand_of(at + 110, GT_DTYPE_F32, 1, &c);
    m->loss = operand_of(at + 120, GT_DTYPE_F32, 0, &one);
    m->labels = operand_of(m->of_labels, GT_DTYPE_I64, 1, &n);
    operand logits = buffer(&m->p, N * C), dlogits = buffer(&m->p, N * C), product = buffer(&m->p, N * K);
    m->lse = buffer(&m->p, N);
    m->sums = buffer(&m->p, 2);
    m->logits = operand_of(logits.data, GT_DTYPE_F32, 2, nc);
    m->dlogits = operand_of(dlogits.data, GT_DTYPE_F32, 2, nc);
    m->product = operand_of(product.data, GT_DTYPE_F32, 2, nk);
}

static void add_linear(made *m) {
    const operand *in[] = {&m->x, &m->w, &m->b}, *out[] = {&m->logits};
    (void)add_call(&m->p, m->ctx, GT__OP_LINEAR, out, 1, in, 3);
}
static void add_loss(made *m) {
    const operand *in[] = {&m->dloss, &m->logits, &m->labels, NULL}, *out[] = {&m->loss, &m->lse, &m->sums, &m->dlogits};
    gt__call *both = add_call(&m->p, m->ctx, GT__OP_CROSS_ENTROPY_BOTH, out, 4, in, 4);
    both->attr.loss.ignore_label = -100;
    both->attr.loss.reduction = GT_REDUCTION_MEAN;
}
static void add_sum(made *m) {
    const operand *in = &m->dlogits, *out = &m->sum;
    add_call(&m->p, m->ctx, GT__OP_SUM, &out, 1, &in, 1)->attr.reduce.mask = 1;
}
static void add_product(made *m) {
    const operand *in[] = {&m->dlogits, &m->w}, *out[] = {&m->product};
    (void)add_call(&m->p, m->ctx, GT__OP_MATMUL, out, 1, in, 2);
}
static void add_relu(made *m) {
    const operand *in[] = {&m->product, &m->x}, *out[] = {&m->dz, &m->db};
    (void)add_call(&m->p, m->ctx, GT__OP_BIAS_RELU_BACKWARD, out, 2, in, 2);
}
static void add_write(made *m, const operand *to) { unary(&m->p, m->ctx, GT__OP_NEG, to, to); }

/* What stands between two that would be joined keeps them apart where it touches what they do; `want`: calls of each kind afterwards. */
static void check_made(made *m, expected want) {
    float before[256], after[256];
    memcpy(before, m->memory, sizeof before);
    run_by_hand(m->ctx, &m->p, m->memory);
    memcpy(after, m->memory, sizeof after);
    memcpy(m->memory, before, sizeof before);
    CHECK_OK(gt__pass_head(&m->p));
    CHECK_EQ_INT(count_op(&m->p, GT__OP_LINEAR_CROSS_ENTROPY), want.losses);
    CHECK_EQ_INT(count_op(&m->p, GT__OP_LINEAR_RELU_BACKWARD), want.backs);
    CHECK_EQ_INT(count_op(&m->p, GT__OP_SUM), want.sums);
    run_by_hand(m->ctx, &m->p, m->memory);
    CHECK(memcmp(after, m->memory, sizeof after) == 0);
    gt__program_free(&m->p);
}

#define CHECK_MADE(want_losses, want_backs, want_sums, after_linear, after_loss, after_product)                                            \
    do {                                                                                                                                   \
        static made m;                                                                                                                     \
        make(t, &m);                                                                                                                       \
        add_linear(&m);                                                                                                                    \
        after_linear;                                                                                                                      \
        add_loss(&m);                                                                                                                      \
        after_loss;                                                                                                                        \
        add_product(&m);                                                                                                                   \
        after_product;                                                                                                                     \
        add_relu(&m);                                                                                                                      \
        check_made(&m, (expected){want_losses, want_backs, want_sums});                                                                    \
    } while (0)

TEST(unit, head_joins_only_what_nobody_comes_between) {
    CHECK_MADE(1, 1, 0, (void)0, add_sum(&m), (void)0);
    CHECK_MADE(0, 1, 0, add_write(&m, &m.w), add_sum(&m), (void)0);
    CHECK_MADE(0, 1, 0, add_write(&m, &m.x), add_sum(&m), (void)0);
    CHECK_MADE(0, 1, 0, add_write(&m, &m.logits), add_sum(&m), (void)0);
    CHECK_MADE(1, 0, 1, (void)0, add_sum(&m), add_write(&m, &m.w));
    CHECK_MADE(1, 0, 1, (void)0, add_sum(&m), add_write(&m, &m.dlogits));
    CHECK_MADE(1, 0, 1, (void)0, add_sum(&m), add_write(&m, &m.product));
    /* The sum of what was there before, or which somebody has read or changed since, stays where it is. */
    CHECK_MADE(1, 1, 1, (void)0, (add_sum(&m), add_write(&m, &m.dlogits)), (void)0);
    CHECK_MADE(1, 1, 1, (void)0, (add_sum(&m), add_write(&m, &m.sum)), (void)0);
    CHECK_MADE(1, 1, 0, (void)0, (void)0, add_sum(&m));
    /* Somebody wants the sums of exponentials, or what the product was. */
    CHECK_MADE(0, 1, 0, (void)0, (add_sum(&m), add_write(&m, &m.lse)), (void)0);
    CHECK_MADE(1, 0, 1, (void)0, add_sum(&m), unary(&m.p, m.ctx, GT__OP_NEG, &m.dz, &m.product));
}

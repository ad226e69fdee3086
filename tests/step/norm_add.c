/* Batch norm's gradient takes two gradients instead of their sum. On the CPU, where a step does without that, it is made to. */
#include "harness/test.h"
#include "step/passes.h"
#include "step/step.h"

#include <gtrain/gtrain.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* --- the pass alone ------------------------------------------------------------------------------------------------------------------------ */

enum { N = 3, C = 4, SIDE = 2, COUNT = N * C * SIDE * SIDE };

/* What stands around a sum that could be left to the gradient of batch norm. */
typedef enum trouble {
    NONE,
    APART,         /* the sum has memory of its own */
    IN_THE_SECOND, /* or that of the second */
    TWICE,         /* one gradient and itself */
    READ_BEFORE,   /* somebody else reads the sum */
    READ_AFTER,
    READ_LATE_AFTER_OTHERS_WROTE, /* what is read then is another value */
    FIRST_WRITTEN,                /* the sum is apart, and what went into it changes before the gradient runs */
    SECOND_WRITTEN,
    WIDE,        /* f32 into halves */
    SPREAD,      /* one of the two is a channel's */
    OTHER_ORDER, /* row-major and channels-last */
    AS_X,        /* the sum is what was normalised, too */
    OUTSIDE,     /* the sum stays when the program has run */
    THREE,       /* sums of sums: only the last is left out */
    TROUBLES
} trouble;

static void into(gt__op_id op, gt_tensor *a, gt_tensor *b, gt_tensor *out) {
    gt_tensor *in[2] = {a, b};
    CHECK_OK(gt__op_into(op, in, b ? 2 : 1, NULL, out));
}

static int32_t count_ops(const gt__program *program, gt__op_id op) {
    int32_t count = 0;
    for (int32_t i = 0; i < program->count; ++i) count += program->list[i].kind == GT__DO_CALL && program->list[i].call->call.op == op;
    return count;
}

/* Number of gradients that the program's batch norms get beyond their first; the last of these pairs. */
static int32_t find_pairs(const gt__program *program, const void **pair) {
    int32_t count = 0;
    for (int32_t i = 0; i < program->count; ++i) {
        const gt__instruction *n = &program->list[i];
        if (n->kind != GT__DO_CALL) continue;
        const gt__call *c = &n->call->call;
        const int32_t second = c->op == GT__OP_BATCH_NORM_BACKWARD                                                        ? 5
                               : c->op == GT__OP_BATCH_NORM_RELU_BACKWARD || c->op == GT__OP_BATCH_NORM_ADD_RELU_BACKWARD ? 6
                                                                                                                          : INT32_MAX;
        if (c->n_in <= second || c->in[second] == NULL) continue;
        pair[0] = c->in[0]->data;
        pair[1] = c->in[second]->data;
        count++;
    }
    return count;
}

static int32_t count_seconds(const gt__program *program) {
    const void *pair[2];
    return find_pairs(program, pair);
}

static gt__meta meta_of(gt_dtype dtype, int32_t ndim, int64_t a, int64_t b, int64_t c, int64_t d, bool channels_last) {
    gt__meta m = {.dtype = dtype, .ndim = ndim, .shape = {a, b, c, d}};
    m.numel = ndim == 4 ? a * b * c * d : ndim == 2 ? a * b : a;
    if (channels_last)
        gt__meta_set_channels_last(&m);
    else
        gt__meta_set_row_major(&m);
    return m;
}

/* Traces a sum with that trouble, and the gradient of batch norm after it. *left: sums that must be left; summed: where the last one's two are. */
static void trace_sum(gt_context *ctx, trouble what, gt__op_id op, gt__program *program, int32_t *left, const void **summed) {
    uint64_t cells[2] = {0}, drawn;
    int32_t lost;
    gt__trace *trace = NULL;
    gt_tensor *outside =
        what == OUTSIDE ? CHECK_TENSOR(gt_channels_last(gt_tensor_zeros(ctx, GT_DTYPE_F16, 4, (const int64_t[]){N, C, SIDE, SIDE}))) : NULL;
    gt__meta image = meta_of(GT_DTYPE_F16, 4, N, C, SIDE, SIDE, true), wide = meta_of(GT_DTYPE_F32, 4, N, C, SIDE, SIDE, true),
             rows = meta_of(GT_DTYPE_F16, 4, N, C, SIDE, SIDE, false), channel = meta_of(GT_DTYPE_F16, 4, 1, C, 1, 1, true),
             vector = meta_of(GT_DTYPE_F32, 1, C, 0, 0, 0, false), mean = meta_of(GT_DTYPE_F32, 2, 2, C, 0, 0, false);
    CHECK_OK(gt__trace_begin(ctx, program, cells, &trace));
    gt_tensor *a = gt__trace_input(trace, &image), *x = gt__trace_input(trace, &image), *other = gt__trace_input(trace, &image),
              *b = gt__trace_input(trace, what == WIDE          ? &wide
                                          : what == SPREAD      ? &channel
                                          : what == OTHER_ORDER ? &rows
                                                                : &image),
              *y = gt__trace_input(trace, &image), *w = gt__trace_input(trace, &vector), *m = gt__trace_input(trace, &mean),
              *own = gt__trace_input(trace, &image);
    CHECK(a && b && x && y && other && w && m && own);
    bool apart = what == APART || what == FIRST_WRITTEN || what == SECOND_WRITTEN || what == TWICE;
    gt_tensor *sum = apart ? own : what == IN_THE_SECOND ? b : what == OUTSIDE ? outside : a;
    summed[0] = a->data;
    summed[1] = what == TWICE ? a->data : b->data;
    if (what == THREE) into(GT__OP_ADD, other, a, a);
    into(GT__OP_ADD, a, what == TWICE ? a : b, sum);
    if (what == READ_BEFORE) into(GT__OP_RELU, sum, NULL, other);
    if (what == FIRST_WRITTEN) into(GT__OP_RELU, other, NULL, a);
    if (what == SECOND_WRITTEN) into(GT__OP_RELU, other, NULL, b);
    gt_tensor *plain[5] = {sum, what == AS_X ? sum : x, w, m, w},
              *masked[6] = {sum, what == AS_X ? sum : x, w, op == GT__OP_BATCH_NORM_RELU_BACKWARD ? w : y, m, w},
              *out[GT__MAX_OUT] = {NULL};
    gt__attrs attr;
    memset(&attr, 0, sizeof attr);
    attr.norm.training = 1;
    CHECK_OK(gt__scope_begin(ctx));
    CHECK_OK(gt_no_grad_begin(ctx));
    CHECK_OK(gt__op_multi(op, op == GT__OP_BATCH_NORM_BACKWARD ? plain : masked, op == GT__OP_BATCH_NORM_BACKWARD ? 5 : 6, &attr,
                          op == GT__OP_BATCH_NORM_ADD_RELU_BACKWARD ? 15 : 7, out));
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_OK(gt_scope_end(ctx));
    if (what == READ_LATE_AFTER_OTHERS_WROTE) into(GT__OP_RELU, y, NULL, sum);
    if (what == READ_AFTER || what == READ_LATE_AFTER_OTHERS_WROTE) into(GT__OP_RELU, sum, NULL, other);
    gt_tensor *all[] = {a, b, x, y, other, w, m, own};
    for (size_t i = 0; i < GT__COUNT(all); ++i) gt_tensor_release(all[i]);
    gt__trace_end(trace, &drawn, &lost);
    CHECK_EQ_INT(lost, 0);
    bool fuses = what <= TWICE || what == READ_LATE_AFTER_OTHERS_WROTE || what == THREE;
    *left = (what == THREE ? 2 : 1) - fuses;
}

TEST(unit, pass_norm_add_takes_sums_that_nobody_else_sees) {
    gt_context *ctx = test_context(t);
    static const gt__op_id ops[] = {GT__OP_BATCH_NORM_BACKWARD, GT__OP_BATCH_NORM_RELU_BACKWARD, GT__OP_BATCH_NORM_ADD_RELU_BACKWARD};
    CHECK_OK(gt_scope_begin(ctx));
    for (trouble what = NONE; what < TROUBLES; what++)
        for (size_t k = 0; k < GT__COUNT(ops); ++k) {
            gt__program program = {0};
            const void *summed[2], *pair[2] = {NULL};
            int32_t left;
            trace_sum(ctx, what, ops[k], &program, &left, summed);
            const int32_t before = program.count, sums = count_ops(&program, GT__OP_ADD);
            CHECK_OK(gt__pass_norm_add(&program));
            if (count_ops(&program, GT__OP_ADD) != left) test_fail(1, __FILE__, __LINE__, "trouble %d, op %d", (int)what, (int)k);
            CHECK_EQ_INT(before - program.count, sums - left);
            CHECK_EQ_INT(find_pairs(&program, pair), sums - left);
            if (left < sums) CHECK(pair[0] == summed[0] && pair[1] == summed[1]);
            CHECK_OK(gt__pass_norm_add(&program)); /* there is one place for a second */
            CHECK_EQ_INT(before - program.count, sums - left);
            gt__program_free(&program);
        }
    CHECK_OK(gt_scope_end(ctx));
}

/* --- in a residual network ------------------------------------------------------------------------------------------------------------------- */

enum { ROWS = 8, IMAGE = 8, CLASSES = 5, STEPS = 3 };

typedef struct world {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_step *step;
    gt_window *window;
    gt_tensor *inputs[2];
    gt_dtype autocast;
} world;

static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    (void)n;
    r->loss = gt_cross_entropy(gt_module_forward(user, inputs[0]), inputs[1], NULL);
    return r->loss ? GT_OK : gt_last_error()->status;
}

/* Three blocks of which the second and third get what two branches read: two sums that batch norm's gradient reads, and one, of the first block's input, that relu's and
 * batch norm's gradient in one reads. */
static gt_module *network(gt_context *ctx) {
    gt_module *layers[] = {gt_nn_conv2d(ctx, 3, 8, 3, NULL),
                           gt_nn_batch_norm(ctx, 8, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_resnet_basic_block(ctx, 8, 8, 1),
                           gt_nn_resnet_bottleneck(ctx, 8, 4, 2),
                           gt_nn_resnet_bottleneck(ctx, 16, 4, 1),
                           gt_nn_adaptive_avg_pool2d(ctx, 1, 1),
                           gt_nn_flatten(ctx, 1),
                           gt_nn_linear(ctx, 16, CLASSES, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, (int32_t)GT__COUNT(layers));
    CHECK(net != NULL);
    return net;
}

static void begin(test_case *t, world *w, gt_dtype autocast, bool compiled, int deterministic) {
    gt_context_options options;
    *w = (world){.autocast = autocast};
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.seed = 11;
    options.allow_tf32 = 0;
    options.deterministic = deterministic;
    w->ctx = test_context_with(t, &options);
    w->net = network(w->ctx);
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    o.learning_rate = 0.02;
    CHECK_OK(gt_optimizer_create_for(&o, w->net, &w->optimizer));
    static float x[ROWS * 3 * IMAGE * IMAGE];
    int64_t y[ROWS];
    for (size_t i = 0; i < GT__COUNT(x); ++i) x[i] = (float)sin(0.7 * (double)(i * i % 977));
    for (int i = 0; i < ROWS; ++i) y[i] = i % CLASSES;
    const int64_t shape[4] = {ROWS, 3, IMAGE, IMAGE}, rows = ROWS;
    w->inputs[0] = CHECK_TENSOR(gt_tensor_from_data(w->ctx, GT_DTYPE_F32, 4, shape, x, sizeof x));
    w->inputs[1] = CHECK_TENSOR(gt_tensor_from_data(w->ctx, GT_DTYPE_I64, 1, &rows, y, sizeof y));
    if (compiled) {
        gt_step_options so;
        CHECK_OK(gt_step_options_init(&so, sizeof so));
        so.fn = loss_of;
        so.user = so.module = w->net;
        so.optimizers = &w->optimizer;
        so.n_optimizers = 1;
        so.autocast = autocast;
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
    bool half = w->autocast != GT_DTYPE_F32;
    CHECK_OK(gt_scope_begin(w->ctx));
    CHECK_OK(gt_window_micro_begin(w->window));
    if (half) CHECK_OK(gt_autocast_begin(w->ctx, w->autocast));
    CHECK_OK(loss_of(w->net, w->inputs, 2, &r));
    if (half) CHECK_OK(gt_autocast_end(w->ctx));
    CHECK_OK(gt_window_micro_end(w->window, r.loss, ROWS, NULL));
    CHECK_OK(gt_scope_end(w->ctx));
}

/* Mean distance of the weights. */
static double distance(gt_module *a, gt_module *b) {
    int64_t total = 0;
    double sum = 0;
    for (int32_t i = 0; i < gt_module_parameter_count(a); ++i) {
        gt_tensor *x, *y;
        CHECK_OK(gt_module_parameter(a, i, NULL, &x));
        CHECK_OK(gt_module_parameter(b, i, NULL, &y));
        float *p = malloc(gt_tensor_bytes(x)), *q = malloc(gt_tensor_bytes(x));
        CHECK(p && q);
        CHECK_OK(gt_tensor_read(x, p, gt_tensor_bytes(x)));
        CHECK_OK(gt_tensor_read(y, q, gt_tensor_bytes(x)));
        for (int64_t k = 0; k < gt_tensor_numel(x); ++k) sum += fabs((double)p[k] - (double)q[k]);
        total += gt_tensor_numel(x);
        free(p);
        free(q);
    }
    return sum / (double)total;
}

/* In a context that must give the bits of the single calls a step leaves the sums alone. */
TEST_DEVICES(unit, step_deterministic_keeps_sums_before_batch_norm) {
    world w;
    begin(t, &w, GT_DTYPE_F16, true, 1);
    gt__meta metas[2] = {w.inputs[0]->meta, w.inputs[1]->meta};
    gt__plan *plan = NULL;
    CHECK_OK(gt__plan_create(w.step, metas, 2, 1, true, false, &plan));
    CHECK_EQ_INT(count_seconds(&plan->program), 0);
    gt__plan_destroy(w.step, plan);
    end(&w);
}

static gt__plan *plan_without_sums(test_case *t, world *w) {
    gt__meta metas[2] = {w->inputs[0]->meta, w->inputs[1]->meta};
    gt__plan *plan = NULL;
    CHECK_OK(gt__plan_create(w->step, metas, 2, 1, true, false, &plan));
    if (test_device(t) == GT_DEVICE_CPU) {
        const int32_t sums = count_ops(&plan->program, GT__OP_ADD), count = plan->program.count;
        CHECK_EQ_INT(count_seconds(&plan->program), 0);
        CHECK_OK(gt__pass_norm_add(&plan->program));
        CHECK_EQ_INT(sums - count_ops(&plan->program, GT__OP_ADD), 3);
        CHECK_EQ_INT(count - plan->program.count, 3);
        CHECK_OK(gt__plan_place(plan));
    }
    CHECK_EQ_INT(count_seconds(&plan->program), 3);
    return plan;
}

/* Trained in halves it stays as near to the network trained in f32 as without. */
TEST_DEVICES(unit, step_leaves_sums_to_batch_norms_gradient) {
    static const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16};
    world exact;
    begin(t, &exact, GT_DTYPE_F32, false, 0);
    for (int i = 0; i < STEPS; ++i) eager_step(&exact);
    for (size_t d = 0; d < GT__COUNT(dtypes); ++d) {
        world eager, compiled;
        begin(t, &eager, dtypes[d], false, 0);
        begin(t, &compiled, dtypes[d], true, 0);
        gt__plan *plan = plan_without_sums(t, &compiled);
        for (int i = 0; i < STEPS; ++i) {
            eager_step(&eager);
            CHECK_OK(gt__plan_run(compiled.step, plan, compiled.inputs));
        }
        double apart = distance(eager.net, compiled.net), off = distance(eager.net, exact.net), off2 = distance(compiled.net, exact.net);
        bool good = dtypes[d] == GT_DTYPE_F32 ? apart < 1e-6 : apart < off * 1.25 && off2 < off * 1.25;
        if (dtypes[d] == GT_DTYPE_F32 && test_device(t) == GT_DEVICE_CPU) good = apart == 0; /* the sum is f32's either way */
        if (!good) test_fail(1, __FILE__, __LINE__, "dtype %d: apart %g, from f32 %g and %g", (int)d, apart, off, off2);
        gt__plan_destroy(compiled.step, plan);
        end(&eager);
        end(&compiled);
    }
    end(&exact);
}

/* Bytes and operations of calls, against numbers computed by hand. */
#include "core/op_cost.h"
#include "core/core.h"
#include "harness/test.h"

#include <gtrain/gtrain.h>

TEST(unit, every_op_has_a_cost) {
    for (int op = 0; op < GT__OP_COUNT; ++op)
        if (!gt__op_has_cost((gt__op_id)op)) FAIL("%s has no line in src/core/op_cost.c", gt__op_table[op].name);
}

/* Keeps the cost of the last call of each op. */
typedef struct seen {
    gt__observer observer;
    gt_context *ctx;
    gt__cost cost[GT__OP_COUNT];
    int calls[GT__OP_COUNT];
} seen;

static gt_status note(gt__observer *observer, const gt__call *call) {
    seen *s = (seen *)(void *)observer;
    gt__op_cost(call, &s->cost[call->op]);
    s->calls[call->op]++;
    /* A call whose outputs are not there yet costs the same. */
    gt__call before = *call;
    gt__cost again;
    int wanted = 0;
    for (int k = 0; k < call->n_out; ++k) {
        wanted += call->out[k] != NULL;
        before.out[k] = NULL;
    }
    gt__op_cost(&before, &again);
    EXPECT_EQ_INT(again.flops, s->cost[call->op].flops);
    if (wanted == call->n_out) EXPECT_EQ_INT(again.bytes, s->cost[call->op].bytes);
    return GT_OK;
}
static gt_status allow_read(gt__observer *o, const gt_tensor *t, const char *who) {
    (void)o, (void)t, (void)who;
    return GT_OK;
}
static gt_status allow_overwrite(gt__observer *o, const gt_tensor *t, const gt_tensor *source, const char *who) {
    (void)o, (void)t, (void)source, (void)who;
    return GT_OK;
}

static void watch(test_case *t, seen *s) {
    *s = (seen){.observer = {.call = note, .read = allow_read, .overwrite = allow_overwrite}, .ctx = test_context(t)};
    CHECK_OK(gt_scope_begin(s->ctx));
    s->ctx->observer = &s->observer;
}

static void unwatch(seen *s) {
    s->ctx->observer = NULL;
    CHECK_OK(gt_scope_end(s->ctx));
}

static void check(const seen *s, gt__op_id op, uint64_t bytes, uint64_t flops, int matrix) {
    if (s->calls[op] == 0) FAIL("%s was not called", gt__op_table[op].name);
    EXPECT_EQ_INT(s->cost[op].bytes, bytes);
    EXPECT_EQ_INT(s->cost[op].flops, flops);
    EXPECT_EQ_INT(s->cost[op].matrix, matrix);
}

static gt_tensor *ones(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    return CHECK_TENSOR(gt_tensor_full(ctx, dtype, ndim, shape, 1));
}
#define ONES(dtype, ...) ones(s.ctx, dtype, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

TEST_DEVICES(unit, cost_of_elementwise_calls) {
    seen s;
    watch(t, &s);
    gt_tensor *a = ONES(GT_DTYPE_F32, 6, 10), *row = ONES(GT_DTYPE_F32, 10);
    CHECK_TENSOR(gt_add(a, row)); /* the row is read once: 60 + 10 + 60 elements */
    check(&s, GT__OP_ADD, 4 * 130, 60, 0);
    CHECK_TENSOR(gt_gelu(a));
    check(&s, GT__OP_GELU, 4 * 120, 300, 0);
    CHECK_TENSOR(gt_cast(a, GT_DTYPE_F16));
    check(&s, GT__OP_CAST, 60 * 4 + 60 * 2, 0, 0);
    CHECK_TENSOR(gt_sum(a, (int32_t[]){1}, 1, 0));
    check(&s, GT__OP_SUM, 4 * 66, 60, 0);
    CHECK_TENSOR(gt_mean(a, (int32_t[]){1}, 1, 0));
    check(&s, GT__OP_MEAN, 4 * 66, 66, 0);
    CHECK_TENSOR(gt_relu(gt_expand(row, 2, (int64_t[]){6, 10}))); /* 10 elements, repeated */
    check(&s, GT__OP_RELU, 4 * 70, 60, 0);
    CHECK_TENSOR(gt_softmax(a, 1));
    check(&s, GT__OP_SOFTMAX, 4 * 120, 300, 0);
    check(&s, GT__OP_EXPAND, 0, 0, 0);
    unwatch(&s);
}

TEST_DEVICES(unit, cost_of_products) {
    seen s;
    watch(t, &s);
    /* [2,3,4] x [2,4,5]: 30 results of 4 terms */
    CHECK_TENSOR(gt_matmul(ONES(GT_DTYPE_F32, 2, 3, 4), ONES(GT_DTYPE_F32, 2, 4, 5)));
    check(&s, GT__OP_MATMUL, 4 * (24 + 40 + 30), 2 * 4 * 30, 1);
    gt_tensor *x = ONES(GT_DTYPE_F32, 6, 4), *w = ONES(GT_DTYPE_F32, 5, 4), *b = ONES(GT_DTYPE_F32, 5);
    CHECK_TENSOR(gt_linear(x, w, b));
    check(&s, GT__OP_LINEAR, 4 * (24 + 20 + 5 + 30), 2 * 4 * 30 + 30, 1);
    CHECK_TENSOR(gt_linear(x, w, NULL));
    check(&s, GT__OP_LINEAR, 4 * (24 + 20 + 30), 2 * 4 * 30, 1);
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    CHECK_OK(gt_backward(gt_sum(gt_linear(x, w, NULL), NULL, 0, 0)));
    check(&s, GT__OP_LINEAR, 4 * (24 + 20 + 30), 2 * 4 * 30, 1);
    unwatch(&s);
    /* dz [6,5], x [6,4]; added to the gradient: that is read too */
    gt_tensor dz = *x, dw = *w, xs = *x, *in[2] = {&dz, &xs};
    CHECK_OK(gt__meta_make(&dz.meta, GT_DTYPE_F32, 2, (int64_t[]){6, 5}, "test"));
    gt__call call = {.ctx = s.ctx, .in = in, .n_in = 2, .n_out = 1, .out = {&dw}, .op = GT__OP_LINEAR_BACKWARD_WEIGHT};
    gt__cost cost;
    gt__op_cost(&call, &cost);
    EXPECT_EQ_INT(cost.bytes, 4 * (30 + 24 + 20));
    EXPECT_EQ_INT(cost.flops, 2 * 6 * 20);
    call.attr.linear.accumulate = 1;
    gt__op_cost(&call, &cost);
    EXPECT_EQ_INT(cost.bytes, 4 * (30 + 24 + 2 * 20));
    EXPECT_EQ_INT(cost.flops, 2 * 6 * 20 + 20);
}

TEST_DEVICES(unit, cost_of_convolutions_and_pooling) {
    seen s;
    watch(t, &s);
    gt_conv2d_options o;
    CHECK_OK(gt_conv2d_options_init(&o, sizeof o));
    o.groups = 2;
    gt_tensor *x = ONES(GT_DTYPE_F32, 2, 4, 6, 5), *w = ONES(GT_DTYPE_F32, 8, 2, 3, 2), *b = ONES(GT_DTYPE_F32, 8);
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    gt_tensor *y = CHECK_TENSOR(gt_conv2d(x, w, b, &o)); /* [2,8,4,4]: 256 results of 2 * 3 * 2 terms */
    check(&s, GT__OP_CONV2D, 4 * (240 + 96 + 8 + 256), 256 * (2 * 12 + 1), 1);
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    check(&s, GT__OP_CONV2D_BACKWARD_INPUT, 4 * (1 + 96 + 240), 256 * 24, 1); /* dy is one number, repeated */
    EXPECT_EQ_INT(s.cost[GT__OP_SUM].flops, 256);
    gt_pool2d_options p;
    CHECK_OK(gt_pool2d_options_init(&p, sizeof p));
    p.kernel[0] = p.kernel[1] = 2;
    gt_tensor *image = ONES(GT_DTYPE_F16, 2, 3, 6, 6);
    CHECK_TENSOR(gt_max_pool2d(image, &p)); /* [2,3,3,3]: 54 of 4 places */
    EXPECT_EQ_INT(s.cost[GT__OP_MAX_POOL2D].flops, 54 * 4);
    CHECK_TENSOR(gt_avg_pool2d(image, &p));
    check(&s, GT__OP_AVG_POOL2D, 2 * (216 + 54), 54 * 5, 0);
    /* 6 places to 4: windows of 2, 2, 2, 2; 6 to 1: one of 6 */
    CHECK_TENSOR(gt_adaptive_avg_pool2d(image, 4, 1));
    check(&s, GT__OP_ADAPTIVE_AVG_POOL2D, 2 * (216 + 24), 6 * (8 * 6) + 24, 0);
    unwatch(&s);
}

TEST_DEVICES(unit, cost_of_norms_losses_and_embeddings) {
    seen s;
    watch(t, &s);
    gt_tensor *x = ONES(GT_DTYPE_F32, 4, 3, 5, 5), *mean = ONES(GT_DTYPE_F32, 3), *variance = ONES(GT_DTYPE_F32, 3);
    gt_tensor *w = ONES(GT_DTYPE_F32, 3), *b = ONES(GT_DTYPE_F32, 3);
    CHECK_TENSOR(gt_batch_norm(x, w, b, mean, variance, 0, 0.1, 1e-5)); /* evaluation: statistics are read */
    EXPECT_EQ_INT(s.cost[GT__OP_BATCH_NORM].flops, 300 * 4);
    gt_tensor *logits = ONES(GT_DTYPE_F32, 6, 10), *labels = ONES(GT_DTYPE_I64, 6);
    CHECK_TENSOR(gt_cross_entropy(logits, labels, NULL));
    EXPECT_EQ_INT(s.cost[GT__OP_CROSS_ENTROPY].flops, 240);
    gt_tensor *one = ONES(GT_DTYPE_F32, 1), *both[4] = {one, logits, labels, NULL}, *slopes = ONES(GT_DTYPE_F32, 6, 10);
    gt_tensor *sums = ONES(GT_DTYPE_F32, 2), *rows = ONES(GT_DTYPE_F32, 6);
    gt__call call = {.ctx = s.ctx, .in = both, .n_in = 4, .n_out = 4, .out = {one, rows, sums, slopes}, .op = GT__OP_CROSS_ENTROPY_BOTH};
    gt__cost cost;
    gt__op_cost(&call, &cost);
    EXPECT_EQ_INT(cost.flops, 480);
    EXPECT_EQ_INT(cost.bytes, 4 * 1 + 4 * 60 + 8 * 6 + 4 * (1 + 6 + 2 + 60));
    gt_tensor *table = ONES(GT_DTYPE_F32, 1000, 16);
    CHECK_TENSOR(gt_embedding(table, labels)); /* six rows of the table, the indices, the result */
    check(&s, GT__OP_EMBEDDING, 4 * 96 + 8 * 6 + 4 * 96, 0, 0);
    CHECK_TENSOR(gt_layer_norm(logits, ONES(GT_DTYPE_F32, 10), ONES(GT_DTYPE_F32, 10), 1, 1e-5));
    EXPECT_EQ_INT(s.cost[GT__OP_LAYER_NORM].flops, 60 * 8);
    unwatch(&s);
}

TEST(unit, cost_of_updates) {
    gt__cost cost;
    int32_t step[2];
    float data[1];
    gt__update_rule sgd = {.kind = GT_OPTIMIZER_SGD};
    gt__update u = {.param = data, .grad = data, .count = 100, .param_dtype = GT_DTYPE_F32, .grad_dtype = GT_DTYPE_F32, .step = step};
    gt__update_cost(&sgd, &u, 1, false, &cost); /* the gradient and the weight are read, the weight is written */
    EXPECT_EQ_INT(cost.bytes, 1200);
    EXPECT_EQ_INT(cost.flops, 200);
    u.state0 = data;
    sgd.momentum = 0.9;
    gt__update_cost(&sgd, &u, 1, true, &cost);
    EXPECT_EQ_INT(cost.bytes, 2000);
    EXPECT_EQ_INT(cost.flops, 500);
    u.state1 = data;
    u.half = data;
    u.half_dtype = GT_DTYPE_F16;
    gt__update_cost(&sgd, &u, 1, false, &cost); /* Adam with a half copy */
    EXPECT_EQ_INT(cost.bytes, 100 * (4 + 8 + 8 + 8 + 2));
    EXPECT_EQ_INT(cost.flops, 1300);
    u = (gt__update){.param = data, .master = data, .grad = data, .count = 10, .param_dtype = GT_DTYPE_F16, .grad_dtype = GT_DTYPE_F32};
    gt__update_cost(&sgd, &u, 1, false, &cost); /* the half is written alone */
    EXPECT_EQ_INT(cost.bytes, 10 * (4 + 8 + 2));
    const gt__grad_list_item grads[2] = {{.grad = data, .count = 10, .dtype = GT_DTYPE_F32},
                                         {.grad = data, .count = 5, .dtype = GT_DTYPE_F64}};
    gt__grads_cost(grads, 2, 2, true, &cost);
    EXPECT_EQ_INT(cost.bytes, 2 * (40 + 40));
    EXPECT_EQ_INT(cost.flops, 30);
}

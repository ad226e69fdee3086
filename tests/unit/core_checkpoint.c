/* Segments compute what the same calls compute without them, on every way in and out. */
#include "unit/ops_util.h"

#include <stdlib.h>

enum { MOST = 1 << 16 };

/* f32 as f32, and the same bits each time. */
static gt_context *exact(test_case *t) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.allow_tf32 = 0;
    options.deterministic = 1;
    return test_context_with(t, &options);
}

static uint64_t in_use(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    return stats.in_use;
}

static uint64_t random_offset(gt_context *ctx) {
    uint64_t offset = 0;
    CHECK_OK(gt_random_state_get(ctx, NULL, &offset));
    return offset;
}

static gt_tensor *named(gt_module *net, const char *name) {
    gt_tensor *found = NULL;
    CHECK_OK(gt_module_find(net, name, &found));
    return found;
}

static gt_module *child(gt_module *net, int32_t index) {
    const char *name;
    gt_module *found = NULL;
    CHECK_OK(gt_module_child(net, index, &name, &found));
    return found;
}

/* --- networks ---------------------------------------------------------------------------------------------------------------------------- */

static size_t take(gt_tensor *x, float *to, size_t at) {
    size_t n = (size_t)gt_tensor_numel(x);
    CHECK(at + n <= MOST);
    CHECK_OK(gt_tensor_read(x, to + at, n * sizeof *to));
    return at + n;
}

/* Loss, gradient of the input, gradients of the parameters of one step. */
static size_t step(gt_module *net, gt_tensor *x, int retain, gt_dtype autocast, float *out) {
    gt_context *ctx = gt_module_context(net);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_random_seed(ctx, 11));
    CHECK_OK(gt_module_zero_grad(net));
    CHECK_OK(gt_tensor_zero_grad(x));
    if (autocast) CHECK_OK(gt_autocast_begin(ctx, autocast));
    gt_tensor *y = CHECK_TENSOR(gt_module_forward(net, x));
    if (autocast) CHECK_OK(gt_autocast_end(ctx));
    gt_tensor *loss = CHECK_TENSOR(gt_mean(gt_square(gt_cast(y, GT_DTYPE_F32)), NULL, 0, 0));
    uint64_t drawn = random_offset(ctx);
    for (int i = 0; i <= retain; i++) CHECK_OK(gt_backward_from(&loss, NULL, 1, i < retain));
    CHECK_EQ_INT(random_offset(ctx), drawn);
    size_t at = take(loss, out, 0);
    if (gt_tensor_requires_grad(x)) at = take(gt_tensor_grad(x), out, at);
    for (int32_t i = 0; i < gt_module_parameter_count(net); i++) {
        gt_tensor *p;
        const char *name;
        CHECK_OK(gt_module_parameter(net, i, &name, &p));
        at = take(gt_tensor_grad(p), out, at);
    }
    CHECK_OK(gt_scope_end(ctx));
    return at;
}

static void clear(gt_module *net, int32_t children) {
    CHECK_OK(gt_module_set_checkpointing(net, 0));
    CHECK_OK(gt_nn_sequential_set_segments(net, 0));
    for (int32_t i = 0; i < children; i++) CHECK_OK(gt_module_set_checkpointing(child(net, i), 0));
}

/* All ways of checkpointing a sequential give the bits of none. */
static void check_all_ways(gt_module *net, gt_tensor *x, gt_dtype autocast) {
    int32_t children = gt_module_child_count(net);
    float *want = malloc(MOST * sizeof *want), *got = malloc(MOST * sizeof *got);
    for (int retain = 0; retain < 2; retain++) {
        size_t n = step(net, x, retain, autocast, want);
        for (int way = -2; way <= children; way++) {
            if (way == 0) continue;
            if (way == -1 || way == children) CHECK_OK(gt_module_set_checkpointing(net, 1));
            if (way == -2)
                for (int32_t i = 0; i < children; i++) CHECK_OK(gt_module_set_checkpointing(child(net, i), 1));
            if (way > 0) CHECK_OK(gt_nn_sequential_set_segments(net, way));
            CHECK_EQ_INT(step(net, x, retain, autocast, got), n);
            for (size_t i = 0; i < n; i++)
                if (memcmp(&want[i], &got[i], sizeof want[i]) != 0)
                    FAIL("way %d, retain %d: value %zu is %g, want %g", way, retain, i, (double)got[i], (double)want[i]);
            clear(net, children);
        }
    }
    free(want);
    free(got);
}

TEST_DEVICES(unit, checkpoint_mlp_is_bitwise_the_same) {
    gt_context *ctx = exact(t);
    gt_module *layers[] = {
        gt_nn_linear(ctx, 12, 32, NULL), gt_nn_relu(ctx), gt_nn_dropout(ctx, .3), gt_nn_linear(ctx, 32, 16, NULL), gt_nn_gelu(ctx, 0),
        gt_nn_linear(ctx, 16, 8, NULL),  gt_nn_relu(ctx)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 7);
    CHECK(net != NULL);
    gt_tensor *x = CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, SHAPE(20, 12), 0, 1));
    check_all_ways(net, x, 0);
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    check_all_ways(net, x, 0);
    check_all_ways(net, x, GT_DTYPE_F16);
    check_all_ways(net, x, GT_DTYPE_BF16);
    gt_tensor_release(x);
    gt_module_destroy(net);
}

TEST_DEVICES(unit, checkpoint_cnn_is_bitwise_the_same) {
    gt_context *ctx = exact(t);
    gt_module *layers[] = {gt_nn_conv2d(ctx, 3, 8, 3, NULL),
                           gt_nn_batch_norm(ctx, 8, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_dropout(ctx, .2),
                           gt_nn_resnet_basic_block(ctx, 8, 8, 1),
                           gt_nn_resnet_basic_block(ctx, 8, 12, 2),
                           gt_nn_conv2d(ctx, 12, 4, 3, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_flatten(ctx, 1),
                           gt_nn_linear(ctx, 4, 5, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 10);
    CHECK(net != NULL);
    gt_tensor *x = CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, SHAPE(6, 3, 8, 8), 0, 1));
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    check_all_ways(net, x, 0);
    check_all_ways(net, x, GT_DTYPE_F16);
    check_all_ways(net, x, GT_DTYPE_BF16);
    gt_tensor_release(x);
    gt_module_destroy(net);
}

TEST(unit, checkpoint_segments_of_a_sequential_are_checked) {
    gt_context *ctx = test_context(t);
    gt_module *layers[] = {gt_nn_linear(ctx, 2, 2, NULL), gt_nn_relu(ctx)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 2);
    CHECK(net != NULL);
    CHECK_STATUS(gt_nn_sequential_set_segments(net, 3), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("2 children");
    CHECK_STATUS(gt_nn_sequential_set_segments(net, -1), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_nn_sequential_set_segments(child(net, 0), 1), GT_BAD_STATE);
    CHECK_ERROR_HAS("Linear \"0\"");
    CHECK_OK(gt_nn_sequential_set_segments(net, 2));
    gt_module_destroy(net);
}

/* --- the module tree in the second run ---------------------------------------------------------------------------------------------------- */

typedef struct twin {
    gt_module *left;
    int runs, fail_at, odd_at;
} twin;

/* left(a) + b */
static gt_tensor *twin_forward(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count) {
    twin *self = user;
    (void)count;
    (void)module;
    if (++self->runs == self->fail_at) return gt_module_forward(self->left, gt_concat(inputs, 2, 1)); /* too wide */
    gt_tensor *y = gt_add(gt_module_forward(self->left, inputs[0]), inputs[1]);
    return self->runs == self->odd_at ? gt_sum(y, NULL, 0, 0) : y;
}

static gt_module *twin_new(gt_context *ctx, twin *self) {
    gt_nn_custom_options o;
    CHECK_OK(gt_nn_custom_options_init(&o, sizeof o));
    o.n_inputs = 2;
    o.user = self;
    o.forward = twin_forward;
    gt_module *m = gt_nn_custom(ctx, &o), *root = gt_nn_sequential(ctx);
    self->left = gt_nn_linear(ctx, 3, 3, NULL);
    CHECK_OK(gt_module_add_child(m, "left", self->left));
    CHECK_OK(gt_nn_sequential_add_named(root, "twin", m));
    return root;
}

TEST_DEVICES(unit, checkpoint_modules_of_several_inputs) {
    gt_context *ctx = exact(t);
    twin self = {0};
    gt_module *root = twin_new(ctx, &self), *m = child(root, 0);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *in[2] = {F32(ctx, SHAPE(1, 3), 1, 2, 3), F32(ctx, SHAPE(1, 3), 4, 5, 6)};
    CHECK_OK(gt_tensor_set_requires_grad(in[1], 1));
    CHECK_OK(gt_module_set_checkpointing(m, 1));
    gt_tensor *y = CHECK_TENSOR(gt_module_forward_many(m, in, 2));
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    CHECK_EQ_INT(self.runs, 2);
    CHECK_VALUES(gt_tensor_grad(in[1]), 1, 1, 1);
    CHECK_VALUES(gt_tensor_grad(named(self.left, "weight")), 1, 2, 3, 1, 2, 3, 1, 2, 3);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(root);
}

TEST_DEVICES(unit, checkpoint_errors_of_the_second_run_name_the_module) {
    gt_context *ctx = exact(t);
    twin self = {.fail_at = 2};
    gt_module *root = twin_new(ctx, &self), *m = child(root, 0);
    CHECK_OK(gt_module_set_checkpointing(m, 1));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *in[2] = {F32(ctx, SHAPE(1, 3), 1, 2, 3), F32(ctx, SHAPE(1, 3), 4, 5, 6)};
    gt_tensor *loss = CHECK_TENSOR(gt_sum(gt_module_forward_many(m, in, 2), NULL, 0, 0));
    uint64_t before = in_use(ctx);
    CHECK_STATUS(gt_backward_from(&loss, NULL, 1, 1), GT_BAD_SHAPE);
    CHECK_ERROR_HAS("\"twin.left\"");
    CHECK_EQ_INT(in_use(ctx), before);
    CHECK(gt_tensor_grad(named(self.left, "weight")) == NULL);
    CHECK_EQ_INT(gt_grad_enabled(ctx), 1);
    CHECK_OK(gt_backward(loss)); /* and the next try is as if nothing had happened */
    CHECK_VALUES(gt_tensor_grad(named(self.left, "bias")), 1, 1, 1);
    /* a segment that does something else */
    self = (twin){.left = self.left, .odd_at = 2};
    loss = CHECK_TENSOR(gt_sum(gt_module_forward_many(m, in, 2), NULL, 0, 0));
    CHECK_STATUS(gt_backward(loss), GT_BAD_STATE);
    CHECK_ERROR_HAS("output 0 of the segment was f32 [1,3] in the forward and f32 [] when");
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(root);
}

TEST_DEVICES(unit, checkpoint_a_module_destroyed_before_the_backward) {
    gt_context *ctx = exact(t);
    for (int segments = 0; segments < 2; segments++) {
        gt_module *layers[] = {gt_nn_linear(ctx, 2, 2, NULL), gt_nn_tanh(ctx)}, *net = gt_nn_sequential_from(ctx, layers, 2);
        CHECK(net != NULL);
        CHECK_OK(segments ? gt_nn_sequential_set_segments(net, 1) : gt_module_set_checkpointing(net, 1));
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *loss = CHECK_TENSOR(gt_sum(gt_module_forward(net, F32(ctx, SHAPE(1, 2), 1, 2)), NULL, 0, 0));
        gt_module_destroy(net);
        CHECK_STATUS(gt_backward(loss), GT_BAD_STATE);
        CHECK_ERROR_HAS("destroyed");
        CHECK_OK(gt_scope_end(ctx));
    }
}

/* --- functions ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct closure {
    gt_tensor *w;
    int calls, way;
} closure;

static gt_status uses_outside(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    closure *c = user;
    c->calls++;
    outputs[0] = gt_mul(gt_mul(inputs[0], c->w), c->w);
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

TEST_DEVICES(unit, checkpoint_gradients_reach_tensors_from_outside_that_have_a_history) {
    gt_context *ctx = exact(t);
    gt_scope_begin(ctx);
    for (int input = 0; input < 2; input++) {
        gt_tensor *v = F32(ctx, SHAPE(2), 1, 2), *x = F32(ctx, SHAPE(2), 5, 7), *y = NULL;
        CHECK_OK(gt_tensor_set_requires_grad(v, 1));
        if (input) CHECK_OK(gt_tensor_set_requires_grad(x, 1));
        closure c = {.w = gt_mul_scalar(v, 3)}; /* y = 9 x v^2; and w once more behind the segment */
        CHECK_OK(gt_checkpoint(ctx, uses_outside, &c, &x, 1, &y, 1));
        CHECK_OK(gt_backward(gt_sum(gt_add(y, c.w), NULL, 0, 0)));
        CHECK_VALUES(gt_tensor_grad(v), 18 * 5 * 1 + 3, 18 * 7 * 2 + 3);
        if (input) CHECK_VALUES(gt_tensor_grad(x), 9, 36);
        CHECK_EQ_INT(c.calls, 2);
    }
    gt_scope_end(ctx);
}

static gt_status outputs_that_share(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    const closure *c = user;
    gt_tensor *x = inputs[0];
    if (c->way == 0) outputs[0] = gt_slice(x, 0, 1, 3, 1); /* of an input */
    if (c->way == 1) outputs[0] = gt_slice(c->w, 0, 1, 3, 1);
    if (c->way == 2) { /* of each other */
        gt_tensor *y = gt_mul(x, c->w);
        outputs[0] = gt_slice(y, 0, 1, 3, 1);
        outputs[1] = y;
        outputs[2] = outputs[0];
    }
    if (c->way == 3) { /* what was there before */
        outputs[0] = gt_slice(gt_mul(x, c->w), 0, 1, 3, 1);
        outputs[1] = c->w;
        outputs[2] = x;
    }
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

TEST_DEVICES(unit, checkpoint_outputs_may_share_memory) {
    gt_context *ctx = exact(t);
    gt_scope_begin(ctx);
    for (int way = 0; way < 4; way++) {
        gt_tensor *leaf = F32(ctx, SHAPE(3), 1, 2, 3), *x = NULL, *y[3];
        closure c = {.way = way, .w = F32(ctx, SHAPE(3), 4, 5, 6)};
        CHECK_OK(gt_tensor_set_requires_grad(leaf, 1));
        CHECK_OK(gt_tensor_set_requires_grad(c.w, 1));
        x = gt_mul_scalar(leaf, 2);
        CHECK_OK(gt_checkpoint(ctx, outputs_that_share, &c, &x, 1, y, 3));
        gt_tensor *loss = gt_sum(gt_square(y[0]), NULL, 0, 0);
        if (way == 0) {
            CHECK_OK(gt_tensor_fill(y[0], 1)); /* does not reach the input */
            CHECK_VALUES(x, 2, 4, 6);
            CHECK_STATUS(gt_backward(loss), GT_SAVED_MODIFIED);
            continue;
        }
        if (way >= 2) loss = gt_add(loss, gt_add(gt_sum(y[1], NULL, 0, 0), gt_sum(y[2], NULL, 0, 0)));
        CHECK_OK(gt_backward(loss));
        if (way == 1) CHECK_VALUES(gt_tensor_grad(c.w), 0, 10, 12);
        /* y = x w = (8, 20, 36): squares of the last two, the sum of all, the last two again */
        if (way == 2) CHECK_VALUES(gt_tensor_grad(c.w), 2, 4 * (40 + 2), 6 * (72 + 2));
        if (way == 2) CHECK_VALUES(gt_tensor_grad(leaf), 2 * 4, 2 * 5 * (40 + 2), 2 * 6 * (72 + 2));
        if (way == 3) {
            CHECK(y[1] == c.w && y[2] == x);
            CHECK_VALUES(gt_tensor_grad(c.w), 1, 4 * 40 + 1, 6 * 72 + 1);
            CHECK_VALUES(gt_tensor_grad(leaf), 2, 2 * (5 * 40 + 1), 2 * (6 * 72 + 1));
        }
    }
    gt_scope_end(ctx);
}

static gt_status no_grad_inside(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    closure *c = user;
    gt_context *ctx = gt_tensor_context(inputs[0]);
    c->calls++;
    gt_tensor *scale;
    CHECK_OK(gt_no_grad_begin(ctx));
    scale = gt_mul_scalar(c->w, 2); /* a constant */
    CHECK_OK(gt_no_grad_end(ctx));
    outputs[0] = gt_mul(inputs[0], scale);
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

TEST_DEVICES(unit, checkpoint_a_no_grad_region_inside) {
    gt_context *ctx = exact(t);
    gt_scope_begin(ctx);
    for (int input = 0; input < 2; input++) {
        gt_tensor *x = F32(ctx, SHAPE(2), 5, 7), *y = NULL;
        closure c = {.w = F32(ctx, SHAPE(2), 1, 2)};
        CHECK_OK(gt_tensor_set_requires_grad(c.w, 1));
        if (input) CHECK_OK(gt_tensor_set_requires_grad(x, 1));
        CHECK_OK(gt_checkpoint(ctx, no_grad_inside, &c, &x, 1, &y, 1));
        CHECK_EQ_INT(gt_tensor_requires_grad(y), input);
        if (!input) continue;
        CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
        CHECK_VALUES(gt_tensor_grad(x), 2, 4);
        CHECK(gt_tensor_grad(c.w) == NULL);
    }
    gt_scope_end(ctx);
}

/* --- a custom op --------------------------------------------------------------------------------------------------------------------------- */

static gt_status twice(const gt_custom_call *call) {
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;
    for (int64_t i = 0; i < call->inputs[0].shape[0]; i++) y[i] = 2 * x[i] * x[i];
    return GT_OK;
}

static gt_status twice_backward(const gt_custom_call *call) {
    const float *x = call->inputs[0].data, *dy = call->output_grads[0].data;
    float *dx = call->input_grads[0].data;
    for (int64_t i = 0; i < call->inputs[0].shape[0]; i++) dx[i] = 4 * x[i] * dy[i];
    return GT_OK;
}

static gt_status custom_inside(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    gt_custom_op_options o;
    (void)user;
    CHECK_OK(gt_custom_op_options_init(&o, sizeof o));
    o.name = "twice";
    o.forward = twice;
    o.backward = twice_backward;
    o.saves_inputs = 1;
    gt_tensor *h = gt_mul_scalar(inputs[0], 3);
    return h ? gt_custom_op_call(&o, &h, 1, outputs) : gt_last_error()->status;
}

TEST(unit, checkpoint_a_custom_op_inside) {
    gt_context *ctx = exact(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2), 1, 2), *y = NULL;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_checkpoint(ctx, custom_inside, NULL, &x, 1, &y, 1));
    CHECK_VALUES(y, 18, 72);
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(x), 36, 72);
    gt_scope_end(ctx);
}

/* --- failures ------------------------------------------------------------------------------------------------------------------------------ */

static gt_status fails(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    const closure *c = user;
    gt_context *ctx = gt_tensor_context(inputs[0]);
    outputs[0] = gt_dropout(inputs[0], .5, 1);
    if (c->way == 1) return GT_BAD_FILE;
    if (c->way == 2) CHECK_OK(gt_scope_end(ctx));
    if (c->way == 3) { /* left open: closed for it */
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_no_grad_begin(ctx));
        CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    }
    if (c->way == 4) outputs[0] = gt_matmul(inputs[0], inputs[0]);
    return c->way == 4 ? gt_last_error()->status : GT_OK;
}

TEST_DEVICES(unit, checkpoint_a_failing_function_changes_nothing) {
    gt_context *ctx = exact(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(3), 1, 2, 3), *y = x;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    const gt_status want[] = {GT_OK, GT_BAD_FILE, GT_CALLBACK, GT_OK, GT_BAD_SHAPE};
    for (int grad = 0; grad < 2; grad++) {
        if (!grad) CHECK_OK(gt_no_grad_begin(ctx));
        for (int way = 1; way < 5; way++) {
            closure c = {.way = way};
            uint64_t before = in_use(ctx), offset = random_offset(ctx);
            gt_clear_error();
            CHECK_STATUS(gt_checkpoint(ctx, fails, &c, &x, 1, &y, 1), want[way]);
            CHECK_EQ_INT(gt_last_error()->status, want[way]);
            CHECK_EQ_INT(gt_grad_enabled(ctx), grad);
            CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_F32);
            CHECK_STATUS(gt_autocast_end(ctx), GT_BAD_STATE);
            if (want[way] == GT_OK) continue;
            CHECK(y == NULL);
            CHECK_EQ_INT(in_use(ctx), before);
            CHECK_EQ_INT(random_offset(ctx), offset);
        }
        if (!grad) CHECK_OK(gt_no_grad_end(ctx));
    }
    CHECK_OK(gt_scope_end(ctx));
    CHECK_STATUS(gt_scope_end(ctx), GT_BAD_STATE);
}

TEST(unit, checkpoint_refuses_bad_arguments) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(1), 1), *y[9], *none = NULL;
    closure c = {0};
    CHECK_STATUS(gt_checkpoint(ctx, NULL, &c, &x, 1, y, 1), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_checkpoint(ctx, fails, &c, &x, 1, NULL, 1), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_checkpoint(ctx, fails, &c, &x, 1, y, 9), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_checkpoint(ctx, fails, &c, &x, 1, y, 0), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_checkpoint(ctx, fails, &c, NULL, 1, y, 1), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_checkpoint(ctx, fails, &c, &x, -1, y, 1), GT_BAD_ARGUMENT);
    gt_clear_error();
    CHECK_STATUS(gt_checkpoint(ctx, fails, &c, &none, 1, y, 1), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_checkpoint(NULL, fails, &c, &x, 1, y, 1), GT_BAD_ARGUMENT);
    gt_context *other = test_context(t);
    CHECK_STATUS(gt_checkpoint(other, fails, &c, &x, 1, y, 1), GT_BAD_DEVICE);
    gt_scope_end(ctx);
}

/* Tensors of 12 MiB, each in a segment of the allocator's own: the limit decides which allocation fails. */
enum { BIG = 3 << 20 };
static gt_status big_layers(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    closure *c = user;
    gt_tensor *h = gt_tanh(gt_mul(inputs[0], c->w));
    outputs[0] = gt_sigmoid(gt_dropout(h, .5, 1));
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

TEST_DEVICES(unit, checkpoint_short_of_memory_at_any_place) {
    gt_context *ctx = exact(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(BIG), .5));
    closure c = {.w = F32(ctx, SHAPE(1), 2)};
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_tensor_set_requires_grad(c.w, 1));
    int failed_forward = 0, failed_backward = 0, passed = 0;
    for (uint64_t more = 32 << 20; more < 96 << 20; more += 6 << 20) {
        CHECK_OK(gt_memory_trim(ctx));
        uint64_t before = in_use(ctx), offset = random_offset(ctx);
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *y = NULL, *loss = NULL;
        CHECK_OK(gt_context_set_memory_limit(ctx, before + (4 << 20) + more));
        gt_status status = gt_checkpoint(ctx, big_layers, &c, &x, 1, &y, 1);
        if (status != GT_OK) {
            CHECK_STATUS(status, GT_OUT_OF_MEMORY);
            CHECK(y == NULL);
            CHECK_EQ_INT(in_use(ctx), before);
            CHECK_EQ_INT(random_offset(ctx), offset);
            failed_forward++;
        } else if ((loss = gt_sum(y, NULL, 0, 0)) != NULL) {
            uint64_t recorded = in_use(ctx), drawn = random_offset(ctx);
            status = gt_backward_from(&loss, NULL, 1, 1);
            CHECK_EQ_INT(random_offset(ctx), drawn);
            CHECK_EQ_INT(gt_grad_enabled(ctx), 1);
            if (status != GT_OK) {
                CHECK_STATUS(status, GT_OUT_OF_MEMORY);
                CHECK_EQ_INT(in_use(ctx), recorded);
                CHECK(gt_tensor_grad(x) == NULL && gt_tensor_grad(c.w) == NULL);
                failed_backward++;
                CHECK_OK(gt_context_set_memory_limit(ctx, 0)); /* the retry works */
                CHECK_OK(gt_backward(loss));
            } else {
                passed++;
            }
            CHECK(gt_tensor_grad(x) != NULL && gt_tensor_grad(c.w) != NULL);
        }
        CHECK_OK(gt_context_set_memory_limit(ctx, 0));
        CHECK_OK(gt_tensor_zero_grad(x));
        CHECK_OK(gt_tensor_zero_grad(c.w));
        CHECK_OK(gt_scope_end(ctx));
        CHECK_EQ_INT(in_use(ctx), before);
    }
    if (failed_forward < 2 || failed_backward < 2 || passed < 2)
        FAIL("%d failed in forward, %d in backward, %d passed", failed_forward, failed_backward, passed);
    CHECK_OK(gt_scope_end(ctx));
}

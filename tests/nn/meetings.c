/* Where one feature meets another: small cases of what went wrong in random combinations (combinations.c). */
#include "support.h"

/* --- a caller's function that fails in the middle of its regions ------------------------------------------------------------------------------ */

static gt_tensor *fails_in_regions(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count) {
    (void)count;
    gt_context *ctx = gt_module_context(module);
    CHECK_OK(gt_autocast_disable(ctx));
    CHECK_OK(gt_offload_begin(ctx, 0));
    CHECK_OK(gt_no_grad_begin(ctx));
    return *(int *)user ? gt_matmul(inputs[0], inputs[0]) : gt_mul_scalar(inputs[0], 2);
}

static gt_tensor *ends_more_than_it_began(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count) {
    (void)count;
    CHECK_OK(*(int *)user ? gt_autocast_end(gt_module_context(module)) : gt_offload_end(gt_module_context(module)));
    return inputs[0];
}

static gt_module *custom_module(gt_context *ctx, gt_nn_forward_fn forward, int *user) {
    gt_nn_custom_options o;
    CHECK_OK(gt_nn_custom_options_init(&o, sizeof o));
    o.forward = forward;
    o.user = user;
    gt_module *m = gt_nn_custom(ctx, &o);
    CHECK(m != NULL);
    return m;
}

/* One autocast and one offload region are open, and nothing else. */
static void check_regions(gt_context *ctx) {
    CHECK_EQ_INT(gt_autocast_dtype(ctx), GT_DTYPE_F16);
    CHECK(gt_grad_enabled(ctx));
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_STATUS(gt_autocast_end(ctx), GT_BAD_STATE);
    CHECK_OK(gt_offload_end(ctx));
    CHECK_STATUS(gt_offload_end(ctx), GT_BAD_STATE);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    CHECK_OK(gt_offload_begin(ctx, 0));
    gt_clear_error();
}

TEST_DEVICES(unit, regions_that_a_custom_module_leaves_open_are_closed) {
    gt_context *ctx = test_context(t);
    int flag = 0;
    gt_scope_begin(ctx);
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 3});
    gt_module *leaves = custom_module(ctx, fails_in_regions, &flag), *ends = custom_module(ctx, ends_more_than_it_began, &flag);
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    CHECK_OK(gt_offload_begin(ctx, 0));
    for (int checkpointing = 0; checkpointing < 2; checkpointing++) {
        CHECK_OK(gt_module_set_checkpointing(leaves, checkpointing));
        CHECK_OK(gt_module_set_checkpointing(ends, checkpointing));
        for (flag = 0; flag < 2; flag++) {
            CHECK((gt_module_forward(leaves, x) == NULL) == flag);
            check_regions(ctx);
            CHECK(gt_module_forward(ends, x) == NULL);
            CHECK_EQ_INT(gt_last_error()->status, GT_CALLBACK);
            check_regions(ctx);
        }
    }
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_OK(gt_offload_end(ctx));
    gt_scope_end(ctx);
    gt_module_destroy(leaves);
    gt_module_destroy(ends);
}

static gt_tensor *returns_what_is_gone(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count) {
    (void)user;
    (void)count;
    gt_tensor *y = gt_relu(inputs[0]);
    CHECK_OK(gt_scope_end(gt_module_context(module)));
    return y;
}

TEST_DEVICES(unit, a_custom_module_that_returns_what_it_released_breaks_nothing) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 3});
    gt_module *m = custom_module(ctx, returns_what_is_gone, NULL);
    uint64_t before = bytes_in_use(ctx, -1);
    CHECK(gt_module_forward(m, x) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_CALLBACK);
    CHECK_EQ_INT(bytes_in_use(ctx, -1), before);
    gt_tensor *one = CHECK_TENSOR(gt_mul_scalar(x, 2)),
              *two = CHECK_TENSOR(gt_mul_scalar(x, 3)); /* of handles that were free once, not twice */
    CHECK(one != two);
    gt_scope_end(ctx);
    gt_module_destroy(m);
}

static gt_status segment_in_regions(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    gt_context *ctx = user;
    CHECK_OK(gt_autocast_disable(ctx));
    CHECK_OK(gt_offload_begin(ctx, 0));
    outputs[0] = gt_tanh(inputs[0]);
    return GT_OK;
}

TEST_DEVICES(unit, regions_that_a_segment_leaves_open_are_closed) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 3}), *y = NULL;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_F16));
    CHECK_OK(gt_offload_begin(ctx, 0));
    CHECK_OK(gt_checkpoint(ctx, segment_in_regions, ctx, &x, 1, &y, 1));
    check_regions(ctx);
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    check_regions(ctx);
    CHECK_OK(gt_autocast_end(ctx));
    CHECK_OK(gt_offload_end(ctx));
    gt_scope_end(ctx);
}

/* --- a residual block whose body ends in a norm: relu and sum run with the norm, in segments too ------------------------------------------------- */

enum { PLAIN, BODY, BODY_SEGMENTS, BODY_BOTH, LAST_NORM, WAYS };

static gt_module *block(gt_context *ctx) {
    gt_nn_residual_options o;
    CHECK_OK(gt_nn_residual_options_init(&o, sizeof o));
    o.activation = GT_ACTIVATION_RELU;
    gt_module *const layers[] = {gt_nn_linear(ctx, 8, 8, NULL), gt_nn_dropout(ctx, 0.25), gt_nn_relu(ctx), gt_nn_linear(ctx, 8, 8, NULL),
                                 gt_nn_batch_norm(ctx, 8, NULL)};
    gt_module *m = gt_nn_residual(gt_nn_sequential_from(ctx, layers, 5), gt_nn_dropout(ctx, 0.25), &o);
    CHECK(m != NULL);
    fill_parameters(m);
    return m;
}

static void run_block(gt_context *ctx, gt_module *m, gt_dtype dtype, float *out) {
    gt_scope_begin(ctx);
    CHECK_OK(gt_random_seed(ctx, 3));
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){6, 8});
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    if (dtype != GT_DTYPE_F32) CHECK_OK(gt_autocast_begin(ctx, dtype));
    gt_tensor *y = gt_cast(CHECK_TENSOR(gt_module_forward(m, dtype == GT_DTYPE_F32 ? x : gt_cast(x, dtype))), GT_DTYPE_F32);
    if (dtype != GT_DTYPE_F32) CHECK_OK(gt_autocast_end(ctx));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(y), out, 48 * sizeof *out));
    CHECK_OK(gt_backward(gt_mean(gt_square(y), NULL, 0, 0)));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_tensor_grad(x)), out + 48, 48 * sizeof *out));
    CHECK_OK(gt_tensor_read(named(m, "body.4.running_mean"), out + 96, 8 * sizeof *out));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_tensor_grad(named(m, "body.0.weight"))), out + 104, 64 * sizeof *out));
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, residual_block_checkpointed_in_its_body_gives_the_same_bits) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.deterministic = 1;
    gt_context *ctx = test_context_with(t, &options);
    static const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16};
    for (int d = 0; d < 3; d++) {
        float want[168], got[168];
        for (int way = PLAIN; way < WAYS; way++) {
            gt_module *m = block(ctx), *body, *last;
            CHECK_OK(gt_module_find_module(m, "body", &body));
            CHECK_OK(gt_module_find_module(m, "body.4", &last));
            if (way == BODY || way == BODY_BOTH) CHECK_OK(gt_module_set_checkpointing(body, 1));
            if (way == BODY_SEGMENTS || way == BODY_BOTH) CHECK_OK(gt_nn_sequential_set_segments(body, 3));
            if (way == LAST_NORM) CHECK_OK(gt_module_set_checkpointing(last, 1));
            run_block(ctx, m, dtypes[d], way == PLAIN ? want : got);
            if (way != PLAIN) CHECK(memcmp(want, got, sizeof want) == 0);
            gt_module_destroy(m);
        }
    }
}

/* --- numbers that a record keeps, asked for while it has moved them to the host --------------------------------------------------------------------- */

TEST_DEVICES(unit, valid_rows_of_a_loss_that_is_offloaded) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){4, 3});
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    const int32_t labels[] = {0, -100, 2, 1};
    gt_tensor *y = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_I32, 1, (const int64_t[]){4}, labels, sizeof labels));
    CHECK_OK(gt_offload_begin(ctx, 0));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *loss = gt_scope_return(ctx, gt_cross_entropy(x, y, NULL));
    CHECK_OK(gt_offload_end(ctx));
    gt_tensor *taken[8]; /* where the numbers were */
    for (int i = 0; i < 8; i++) taken[i] = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, (const int64_t[]){3}, -7));
    (void)taken;
    CHECK_NEAR(item(gt_cross_entropy_valid(loss)), 3, 0);
    CHECK_OK(gt_backward(loss));
    CHECK_EQ_INT(gt_last_error()->status, GT_OK);
    gt_scope_end(ctx);
}

/* --- a record that computes its input again, after the backward that freed what it needs --------------------------------------------------------------- */

TEST_DEVICES(unit, a_second_backward_through_a_recomputed_norm_is_an_error) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_module *norm = gt_nn_batch_norm(ctx, 64, NULL), *one = gt_nn_linear(ctx, 64, 2, NULL), *two = gt_nn_linear(ctx, 64, 2, NULL);
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){4096, 64}); /* 1 MiB */
    gt_tensor *y =
        gt_batch_norm_activation(x, named(norm, "weight"), named(norm, "bias"), NULL, NULL, NULL, 1, 0.1, 1e-5, GT_ACTIVATION_RELU);
    gt_tensor *first = gt_mean(gt_module_forward(one, y), NULL, 0, 0), *second = gt_mean(gt_module_forward(two, y), NULL, 0, 0);
    CHECK_OK(gt_backward(CHECK_TENSOR(first)));
    CHECK_STATUS(gt_backward(CHECK_TENSOR(second)), GT_BAD_STATE);
    CHECK_ERROR_HAS("an earlier backward freed");
    CHECK(gt_tensor_grad(named(two, "weight")) == NULL);
    gt_scope_end(ctx);
    gt_module_destroy(norm);
    gt_module_destroy(one);
    gt_module_destroy(two);
}

/* --- a module whose weights get other memory between a segment's forward and its backward ----------------------------------------------------------------- */

TEST_DEVICES(unit, a_segment_whose_weights_were_converted_is_not_computed_again) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_module *net = gt_nn_linear(ctx, 4, 3, NULL);
    CHECK_OK(gt_module_set_checkpointing(net, 1));
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){5, 4});
    gt_tensor *loss = CHECK_TENSOR(gt_mean(gt_square(gt_module_forward(net, x)), NULL, 0, 0));
    CHECK_OK(gt_module_to_dtype(net, GT_DTYPE_BF16)); /* which rounds */
    CHECK_OK(gt_module_to_dtype(net, GT_DTYPE_F32));
    CHECK_STATUS(gt_backward(loss), GT_SAVED_MODIFIED);
    CHECK_ERROR_HAS("\"weight\"");
    CHECK(gt_tensor_grad(named(net, "weight")) == NULL);
    gt_scope_end(ctx);
    gt_module_destroy(net);
}

/* --- a view of something that was overwritten is linked to its base anew when it is used: once for all who use it --------------------------------------------- */

TEST_DEVICES(unit, several_users_of_a_view_whose_base_was_overwritten) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *w = pattern(ctx, GT_DTYPE_F32, 1, (const int64_t[]){4});
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    gt_tensor *base = CHECK_TENSOR(gt_mul_scalar(w, 2)), *view = CHECK_TENSOR(gt_slice(base, 0, 0, 3, 1));
    CHECK_OK(gt_tensor_fill(gt_slice(base, 0, 0, 1, 1), 5));
    gt_tensor *y = gt_add(gt_mul_scalar(view, 10), gt_mul_scalar(view, 100));
    CHECK_OK(gt_backward(CHECK_TENSOR(gt_sum(y, NULL, 0, 0))));
    const double want[] = {0, 220, 220, 0};
    CHECK_VALUES(gt_tensor_grad(w), want, 1e-6);
    gt_scope_end(ctx);
}

static gt_status square_of_view(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    outputs[0] = gt_mul(gt_square(user), inputs[0]);
    return GT_OK;
}

TEST_DEVICES(unit, segments_share_a_view_whose_base_was_overwritten) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *w = pattern(ctx, GT_DTYPE_F32, 1, (const int64_t[]){6}), *one = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 0, NULL, 1));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    double want[6], got[6];
    for (int segments = 0; segments < 2; segments++) {
        gt_tensor *base = CHECK_TENSOR(gt_mul_scalar(w, 2)), *view = CHECK_TENSOR(gt_slice(base, 0, 0, 3, 1)), *y[2];
        CHECK_OK(gt_tensor_copy(gt_slice(base, 0, 1, 4, 1), gt_mul_scalar(gt_slice(w, 0, 0, 3, 1), 3)));
        for (int i = 0; i < 2; i++) {
            if (segments)
                CHECK_OK(gt_checkpoint(ctx, square_of_view, view, &one, 1, &y[i], 1));
            else
                CHECK_OK(square_of_view(view, &one, &y[i]));
        }
        gt_tensor *loss = CHECK_TENSOR(gt_sum(gt_add(y[0], y[1]), NULL, 0, 0));
        CHECK_OK(gt_backward_from(&loss, NULL, 1, 1));
        CHECK_OK(gt_backward(loss));
        read_values(gt_tensor_grad(w), segments ? got : want, 6);
        CHECK_OK(gt_tensor_zero_grad(w));
    }
    for (int i = 0; i < 6; i++) CHECK_NEAR(got[i], want[i], 1e-6);
    gt_scope_end(ctx);
}

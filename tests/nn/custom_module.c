/* Modules whose forward is the caller's. */
#include "support.h"

typedef struct twin {
    int forwards, destroyed;
    int misbehave;
    gt_module *left;
    gt_tensor *scale;
} twin;

/* scale * left(a) + b, with something that fails or leaks on request. */
static gt_tensor *twin_forward(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count) {
    twin *self = user;
    gt_context *ctx = gt_module_context(module);
    self->forwards++;
    if (count != 2) return NULL;
    switch (self->misbehave) {
    case 1:
        return NULL;
    case 2:
        return gt_matmul(inputs[0], inputs[1]);
    case 3:
        gt_scope_begin(ctx);
        gt_scope_begin(ctx);
        gt_no_grad_begin(ctx);
        break;
    case 4:
        gt_scope_end(ctx);
        return inputs[0];
    default:
        break;
    }
    return gt_add(gt_mul(self->scale, gt_module_forward(self->left, inputs[0])), inputs[1]);
}

static void twin_destroy(void *user) { ((twin *)user)->destroyed++; }

static gt_module *twin_new(gt_context *ctx, twin *self) {
    gt_nn_custom_options o;
    CHECK_OK(gt_nn_custom_options_init(&o, sizeof o));
    o.n_inputs = 2;
    o.kind = "Twin";
    o.user = self;
    o.forward = twin_forward;
    o.destroy = twin_destroy;
    gt_module *m = gt_nn_custom(ctx, &o);
    CHECK(m != NULL);
    self->left = gt_nn_linear(ctx, 3, 3, NULL);
    self->scale = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 0, NULL, 2));
    CHECK_OK(gt_module_add_child(m, "left", self->left));
    CHECK_OK(gt_module_add_parameter(m, "scale", self->scale, 0));
    gt_tensor *seen = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_I64, 0, NULL));
    CHECK_OK(gt_module_add_buffer(m, "seen", seen, 0));
    gt_tensor_release(seen);
    gt_tensor_release(self->scale); /* the module keeps it */
    return m;
}

TEST_DEVICES(unit, custom_module_computes_and_is_destroyed_once) {
    gt_context *ctx = exact_context(t);
    twin self = {0};
    gt_module *m = twin_new(ctx, &self);
    CHECK_EQ_STR(gt_module_kind(m), "Twin");
    const char *name;
    CHECK_EQ_INT(gt_module_parameter_count(m), 3);
    CHECK_OK(gt_module_parameter(m, 0, &name, NULL));
    CHECK_EQ_STR(name, "scale");
    CHECK_OK(gt_module_parameter(m, 2, &name, NULL));
    CHECK_EQ_STR(name, "left.bias");
    CHECK_OK(gt_module_buffer(m, 0, &name, NULL));
    CHECK_EQ_STR(name, "seen");
    CHECK_EQ_INT(gt_tensor_requires_grad(self.scale), 1);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *in[2] = {pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 3}),
                        gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 3})};
    gt_tensor *y = CHECK_TENSOR(gt_module_forward_many(m, in, 2));
    gt_tensor *want = gt_mul_scalar(gt_linear(in[0], named(m, "left.weight"), named(m, "left.bias")), 2);
    CHECK_NEAR(item(gt_max(gt_abs(gt_sub(y, want)), NULL, 0, 0)), 0, 1e-6);
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    CHECK_NEAR(item(gt_tensor_grad(self.scale)), item(gt_sum(want, NULL, 0, 0)) / 2, 1e-5);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(m);
    CHECK_EQ_INT(self.forwards, 1);
    CHECK_EQ_INT(self.destroyed, 1);
}

TEST(unit, custom_module_that_misbehaves_is_an_error) {
    gt_context *ctx = exact_context(t);
    twin self = {0};
    gt_module *m = twin_new(ctx, &self);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *in[2] = {pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 3}),
                        gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 3})};
    uint64_t before = bytes_in_use(ctx, -1);
    gt_clear_error();
    self.misbehave = 1;
    CHECK(gt_module_forward_many(m, in, 2) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_CALLBACK);
    CHECK_ERROR_HAS("Twin");
    self.misbehave = 2;
    CHECK(gt_module_forward_many(m, in, 2) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    self.misbehave = 4;
    CHECK(gt_module_forward_many(m, in, 2) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_CALLBACK);
    CHECK_ERROR_HAS("ended a scope");
    CHECK_EQ_INT(bytes_in_use(ctx, -1), before);
    self.misbehave = 3; /* what it left open is closed */
    CHECK_TENSOR(gt_module_forward_many(m, in, 2));
    CHECK_EQ_INT(gt_grad_enabled(ctx), 1);
    CHECK(gt_module_forward(m, in[0]) == NULL);
    CHECK_ERROR_HAS("takes 2 inputs, it was given 1");
    CHECK_OK(gt_scope_end(ctx));
    CHECK_STATUS(gt_scope_end(ctx), GT_BAD_STATE); /* no scope is left over */
    gt_module_destroy(m);
}

TEST(unit, errors_inside_a_custom_module_name_the_path) {
    gt_context *ctx = exact_context(t);
    twin self = {0};
    gt_module *m = twin_new(ctx, &self), *root = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add_named(root, "pair", m));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = pattern(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 4});
    gt_tensor *in[2] = {x, x};
    CHECK(gt_module_forward_many(m, in, 2) == NULL);
    CHECK_ERROR_HAS("\"pair.left\"");
    CHECK(gt_module_forward(root, x) == NULL);
    CHECK_ERROR_HAS("takes 2 inputs; a sequential gives it 1");
    CHECK(gt_matmul(x, x) == NULL);
    CHECK(strstr(gt_last_error()->message, "pair") == NULL); /* outside again */
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(root);
}

TEST(unit, custom_module_refuses_tensors_that_cannot_be_parameters) {
    gt_context *ctx = exact_context(t), *other = exact_context(t);
    twin self = {0};
    gt_module *m = twin_new(ctx, &self), *linear = gt_nn_linear(ctx, 2, 2, NULL);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_scope_begin(other));
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){4, 4}), *integers = gt_tensor_zeros(ctx, GT_DTYPE_I32, 0, NULL);
    CHECK_STATUS(gt_module_add_parameter(m, "p", integers, 0), GT_BAD_DTYPE);
    CHECK_STATUS(gt_module_add_parameter(m, "p", gt_tensor_detach(gt_slice(x, 0, 0, 4, 2)), 0), GT_BAD_SHAPE);
    CHECK_STATUS(gt_module_add_parameter(m, "p", gt_square(self.scale), 0), GT_BAD_STATE);
    CHECK_STATUS(gt_module_add_parameter(m, "p", gt_tensor_zeros(other, GT_DTYPE_F32, 0, NULL), 0), GT_BAD_DEVICE);
    CHECK_STATUS(gt_module_add_parameter(m, "scale", x, 0), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_module_add_parameter(m, "a.b", x, 0), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_module_add_parameter(linear, "p", x, 0), GT_BAD_STATE);
    CHECK_STATUS(gt_module_add_buffer(m, "b", self.scale, 0), GT_BAD_STATE);
    CHECK(gt_module_add_parameter(m, "p", NULL, 0) != GT_OK);
    CHECK_EQ_INT(gt_module_parameter_count(m), 3);
    CHECK_OK(gt_module_check(m));
    CHECK_STATUS(gt_module_add_child(m, "left", gt_nn_relu(ctx)), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_module_check(m), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_module_add_child(linear, "x", gt_nn_relu(ctx)), GT_BAD_STATE);
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_scope_end(other));
    gt_module_destroy(m);
    gt_module_destroy(linear);
    gt_nn_custom_options o;
    CHECK_OK(gt_nn_custom_options_init(&o, sizeof o));
    CHECK(gt_nn_custom(ctx, &o) == NULL);
    CHECK_ERROR_HAS("no forward callback");
}

TEST(unit, tied_weights_have_two_names_and_count_once) {
    gt_context *ctx = exact_context(t);
    twin self = {0};
    gt_module *m = twin_new(ctx, &self);
    gt_tensor *weight = named(m, "left.weight");
    CHECK_OK(gt_module_add_parameter(m, "tied", weight, 0));
    CHECK(named(m, "tied") == named(m, "left.weight"));
    CHECK_EQ_INT(gt_module_parameter_count(m), 4);
    int64_t elements = 0;
    CHECK_OK(gt_module_size(m, &elements, NULL));
    CHECK_EQ_INT(elements, 9 + 3 + 1);
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAM));
    CHECK_OK(gt_optimizer_create_for(&o, m, &optimizer));
    CHECK_EQ_INT(gt_optimizer_parameter_count(optimizer), 3);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(m);
}

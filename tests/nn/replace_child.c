/* Children that are put in the place of others. */
#include "support.h"

static gt_tensor *through_first(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count) {
    (void)user, (void)count;
    gt_module *first = NULL;
    return gt_module_child(module, 0, NULL, &first) == GT_OK ? gt_module_forward(first, inputs[0]) : NULL;
}

static gt_tensor *replaces_itself(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count) {
    (void)user, (void)count;
    return gt_module_replace_child(module, "a", NULL, NULL) == GT_OK ? gt_relu(inputs[0]) : NULL;
}

static gt_module *custom(gt_context *ctx, gt_nn_forward_fn forward) {
    gt_nn_custom_options o;
    CHECK_OK(gt_nn_custom_options_init(&o, sizeof o));
    o.forward = forward;
    gt_module *m = gt_nn_custom(ctx, &o);
    CHECK(m != NULL);
    CHECK_OK(gt_module_add_child(m, "a", gt_nn_linear(ctx, 3, 4, NULL)));
    CHECK_OK(gt_module_add_child(m, "b", gt_nn_relu(ctx)));
    return m;
}

TEST_DEVICES(unit, replaced_child_takes_the_place_and_the_names) {
    gt_context *ctx = exact_context(t);
    gt_module *net = custom(ctx, through_first), *outer = gt_nn_sequential(ctx), *old = NULL, *child = NULL;
    CHECK_OK(gt_nn_sequential_add_named(outer, "net", net));
    CHECK_EQ_INT(gt_module_parameter_count(outer), 2);
    CHECK_OK(gt_module_replace_child(net, "a", gt_nn_linear(ctx, 3, 2, NULL), &old));
    const char *name = NULL;
    CHECK_OK(gt_module_child(net, 0, &name, &child));
    CHECK_EQ_STR(name, "a");
    CHECK_EQ_STR(gt_module_path(child), "net.a");
    CHECK_EQ_STR(gt_module_path(old), "");
    gt_tensor *weight = NULL;
    CHECK_OK(gt_module_find(outer, "net.a.weight", &weight));
    CHECK_EQ_INT(gt_tensor_size(weight, 0), 2);
    CHECK_EQ_STR(gt_tensor_name(weight), "net.a.weight");
    CHECK_OK(gt_module_find(old, "weight", &weight));
    CHECK_EQ_INT(gt_tensor_size(weight, 0), 4);
    CHECK_EQ_STR(gt_tensor_name(weight), "weight");
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[2] = {5, 3};
    gt_tensor *y = CHECK_TENSOR(gt_module_forward(outer, gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, shape)));
    CHECK_EQ_INT(gt_tensor_size(y, 1), 2);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(old);
    /* Out, and in again under the same name. */
    CHECK_OK(gt_module_replace_child(net, "a", NULL, NULL));
    CHECK_EQ_INT(gt_module_child_count(net), 1);
    CHECK_EQ_INT(gt_module_parameter_count(outer), 0);
    CHECK_OK(gt_module_add_child(net, "a", gt_nn_linear(ctx, 1, 1, NULL)));
    gt_module_destroy(outer);
}

TEST_DEVICES(unit, last_layer_of_a_resnet_can_be_replaced) {
    gt_context *ctx = exact_context(t);
    gt_module *net = gt_nn_resnet18(ctx, 5);
    CHECK(net != NULL);
    CHECK_OK(gt_module_replace_child(net, "fc", gt_nn_linear(ctx, 512, 3, NULL), NULL));
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[4] = {2, 3, 32, 32};
    gt_tensor *y = CHECK_TENSOR(gt_module_forward(net, gt_tensor_zeros(ctx, GT_DTYPE_F32, 4, shape)));
    CHECK_EQ_INT(gt_tensor_size(y, 1), 3);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
}

TEST(unit, replace_child_refuses_and_leaves_all_as_it_was) {
    gt_context *ctx = test_context(t), *other = test_context(t);
    gt_module *net = custom(ctx, through_first), *foreign = gt_nn_relu(other), *mine = gt_nn_relu(ctx), *a = NULL;
    CHECK_OK(gt_module_child(net, 0, NULL, &a));
    CHECK_EQ_INT(gt_module_replace_child(net, "none", mine, NULL), GT_NOT_FOUND);
    CHECK_EQ_INT(gt_module_replace_child(net, "a", foreign, NULL), GT_BAD_DEVICE);
    CHECK_EQ_INT(gt_module_replace_child(net, "b", a, NULL), GT_BAD_STATE);
    CHECK_EQ_INT(gt_module_replace_child(net, "a", net, NULL), GT_BAD_STATE);
    CHECK_EQ_INT(gt_module_replace_child(a, "weight", mine, NULL), GT_BAD_STATE);
    gt_clear_error();
    CHECK_EQ_INT(gt_module_replace_child(NULL, "a", mine, NULL), GT_BAD_ARGUMENT);
    CHECK_EQ_INT(gt_module_replace_child(net, NULL, mine, NULL), GT_BAD_ARGUMENT);
    CHECK_EQ_INT(gt_module_child_count(net), 2);
    CHECK_EQ_STR(gt_module_path(a), "a");
    CHECK_OK(gt_module_check(net));
    gt_module_destroy(foreign);
    gt_module_destroy(mine);
    gt_module_destroy(net);
    net = custom(ctx, replaces_itself);
    const int64_t shape[1] = {3};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, shape));
    CHECK(gt_module_forward(net, x) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_STATE);
    gt_tensor_release(x);
    gt_module_destroy(net);
}

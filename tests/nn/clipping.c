/* Clipping by norm and by value. */
#include "support.h"

typedef struct two {
    gt_tensor *a, *b;
    gt_optimizer *optimizer;
} two;

/* Parameters of shapes [2,1] and [] whose gradients are exactly (x, y) and z. */
static two two_with_gradients(gt_context *ctx, float x, float y, float z) {
    two p = {gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 1}), gt_tensor_zeros(ctx, GT_DTYPE_F32, 0, NULL), NULL};
    CHECK_OK(gt_tensor_set_requires_grad(p.a, 1));
    CHECK_OK(gt_tensor_set_requires_grad(p.b, 1));
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    o.learning_rate = 1;
    CHECK_OK(gt_optimizer_create(&o, (gt_tensor *[]){p.a, p.b}, 2, &p.optimizer));
    const float xy[2] = {x, y};
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *ga = gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, (const int64_t[]){2, 1}, xy, sizeof xy);
    gt_tensor *gb = gt_tensor_from_data(ctx, GT_DTYPE_F32, 0, NULL, &z, sizeof z);
    CHECK_OK(gt_backward_from((gt_tensor *[]){gt_mul_scalar(p.a, 1), gt_mul_scalar(p.b, 1)}, (gt_tensor *[]){ga, gb}, 2, 0));
    CHECK_OK(gt_scope_end(ctx));
    return p;
}

static void check_gradients(two p, double x, double y, double z, double tol) {
    const double xy[2] = {x, y}, zs[1] = {z};
    CHECK_VALUES(gt_tensor_grad(p.a), xy, tol);
    CHECK_VALUES(gt_tensor_grad(p.b), zs, tol);
}

static void two_free(two p) {
    gt_optimizer_destroy(p.optimizer);
    gt_tensor_release(p.a);
    gt_tensor_release(p.b);
}

TEST_DEVICES(unit, clip_norm_scales_all_gradients_together) {
    gt_context *ctx = exact_context(t);
    two p = two_with_gradients(ctx, 2, -3, 6); /* norm 7 */
    gt_tensor *norm = NULL;
    CHECK_OK(gt_optimizer_clip_grad_norm(p.optimizer, 3.5, &norm));
    CHECK_NEAR(item(norm), 7, 1e-6);
    check_gradients(p, 1, -1.5, 3, 1e-6);
    gt_tensor_release(norm);
    CHECK_OK(gt_optimizer_clip_grad_norm(p.optimizer, 100, NULL)); /* below: left alone */
    check_gradients(p, 1, -1.5, 3, 1e-6);
    CHECK_OK(gt_optimizer_clip_grad_norm(p.optimizer, 0, NULL));
    check_gradients(p, 0, 0, 0, 0);
    CHECK_STATUS(gt_optimizer_clip_grad_norm(p.optimizer, -1, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_optimizer_clip_grad_norm(p.optimizer, NAN, NULL), GT_BAD_ARGUMENT);
    two_free(p);
}

TEST_DEVICES(unit, clip_value_clamps_each_element_and_keeps_nan) {
    gt_context *ctx = exact_context(t);
    two p = two_with_gradients(ctx, 2, -3, NAN);
    CHECK_OK(gt_optimizer_clip_grad_value(p.optimizer, 2.5));
    check_gradients(p, 2, -2.5, NAN, 0);
    CHECK_OK(gt_optimizer_clip_grad_value(p.optimizer, 0.5));
    check_gradients(p, 0.5, -0.5, NAN, 0);
    CHECK_STATUS(gt_optimizer_clip_grad_value(p.optimizer, -1), GT_BAD_ARGUMENT);
    two_free(p);
}

TEST_DEVICES(unit, clip_leaves_out_parameters_without_a_gradient) {
    gt_context *ctx = exact_context(t);
    two p = two_with_gradients(ctx, 3, 4, 12);
    CHECK_OK(gt_tensor_zero_grad(p.b));
    gt_tensor *norm = NULL;
    CHECK_OK(gt_optimizer_clip_grad_norm(p.optimizer, 1, &norm));
    CHECK_NEAR(item(norm), 5, 1e-6);
    CHECK(gt_tensor_grad(p.b) == NULL);
    gt_tensor_release(norm);
    two_free(p);
}

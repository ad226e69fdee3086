/* Ops of the user's own: forward, backward, what is saved, and how failures come back. The callbacks compute on the host, so these are CPU cases. */
#include "harness/test.h"

#include <gtrain/gtrain.h>

#include <math.h>
#include <stdlib.h>

static int64_t count_of(const gt_array *a) {
    int64_t n = 1;
    for (int32_t i = 0; i < a->ndim; i++) n *= a->shape[i];
    return n;
}

/* y = a * b, s = a + b */
static gt_status both_forward(const gt_custom_call *call) {
    const double *a = call->inputs[0].data, *b = call->inputs[1].data;
    double *product = call->outputs[0].data, *sum = call->outputs[1].data;
    for (int64_t i = 0; i < count_of(&call->inputs[0]); i++) {
        product[i] = a[i] * b[i];
        sum[i] = a[i] + b[i];
    }
    return GT_OK;
}

static gt_status both_backward(const gt_custom_call *call) {
    const double *a = call->inputs[0].data, *b = call->inputs[1].data, *dp = call->output_grads[0].data, *ds = call->output_grads[1].data;
    double *da = call->input_grads[0].data, *db = call->input_grads[1].data;
    for (int64_t i = 0; i < count_of(&call->inputs[0]); i++) {
        if (da) da[i] = dp[i] * b[i] + ds[i];
        if (db) db[i] = dp[i] * a[i] + ds[i];
    }
    return GT_OK;
}

static gt_custom_op_options options_of(const char *name, gt_custom_fn forward, gt_custom_fn backward) {
    gt_custom_op_options o;
    CHECK_OK(gt_custom_op_options_init(&o, sizeof o));
    CHECK_EQ_INT(o.n_outputs, 1);
    CHECK(o.saves_inputs && o.saves_outputs);
    o.name = name;
    o.forward = forward;
    o.backward = backward;
    return o;
}

TEST(grad, custom_op_with_two_outputs_flows_back_to_both_inputs) {
    gt_context *ctx = test_context(t);
    const int64_t shape[2] = {2, 3};
    const double av[6] = {1, 2, 3, 4, 5, 6}, bv[6] = {-1, 0.5, 2, 3, 1, 7};
    gt_custom_op_options o = options_of("both", both_forward, both_backward);
    o.n_outputs = 2;
    gt_scope_begin(ctx);
    gt_tensor *a = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F64, 2, shape, av, sizeof av));
    gt_tensor *b = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F64, 2, shape, bv, sizeof bv));
    CHECK_OK(gt_tensor_set_requires_grad(a, 1));
    CHECK_OK(gt_tensor_set_requires_grad(b, 1));
    gt_tensor *in[2] = {a, b}, *out[2] = {NULL, NULL};
    CHECK_OK(gt_custom_op_call(&o, in, 2, out));
    /* loss = sum(product) + 2 sum(sum) */
    CHECK_OK(gt_backward(gt_add(gt_sum(out[0], NULL, 0, 0), gt_mul_scalar(gt_sum(out[1], NULL, 0, 0), 2))));
    double da[6], db[6];
    CHECK_OK(gt_tensor_read(gt_tensor_grad(a), da, sizeof da));
    CHECK_OK(gt_tensor_read(gt_tensor_grad(b), db, sizeof db));
    for (int i = 0; i < 6; i++) {
        CHECK_NEAR(da[i], bv[i] + 2, 1e-12);
        CHECK_NEAR(db[i], av[i] + 2, 1e-12);
    }
    gt_scope_end(ctx);
}

TEST(grad, custom_op_output_without_gradient_counts_as_zero) {
    gt_context *ctx = test_context(t);
    const int64_t shape[1] = {3};
    gt_custom_op_options o = options_of("both", both_forward, both_backward);
    o.n_outputs = 2;
    gt_scope_begin(ctx);
    gt_tensor *a = gt_tensor_full(ctx, GT_DTYPE_F64, 1, shape, 3), *b = gt_tensor_full(ctx, GT_DTYPE_F64, 1, shape, 5);
    CHECK_OK(gt_tensor_set_requires_grad(a, 1));
    gt_tensor *in[2] = {a, b}, *out[2];
    CHECK_OK(gt_custom_op_call(&o, in, 2, out));
    CHECK_OK(gt_backward(gt_sum(out[0], NULL, 0, 0)));
    double da[3];
    CHECK_OK(gt_tensor_read(gt_tensor_grad(a), da, sizeof da));
    CHECK_NEAR(da[1], 5, 0);
    CHECK(gt_tensor_grad(b) == NULL);
    gt_scope_end(ctx);
}

/* y = sum of x's rows, [rows, n] -> [n]; seen through a transposed view */
static gt_status rows_shape(const gt_custom_call *call, int32_t *ndim, int64_t *shape, gt_dtype *dtype) {
    (void)dtype;
    if (call->inputs[0].ndim != 2 || call->inputs[0].data != NULL) return GT_BAD_SHAPE;
    ndim[0] = 1;
    shape[0] = call->inputs[0].shape[1];
    return GT_OK;
}
static gt_status rows_forward(const gt_custom_call *call) {
    const double *x = call->inputs[0].data;
    double *y = call->outputs[0].data;
    int64_t rows = call->inputs[0].shape[0], n = call->inputs[0].shape[1];
    for (int64_t j = 0; j < n; j++) y[j] = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) y[j] += x[i * n + j];
    return GT_OK;
}
static gt_status rows_backward(const gt_custom_call *call) {
    int *seen = call->user;
    *seen = (call->inputs[0].data != NULL) + 2 * (call->outputs[0].data != NULL);
    const double *dy = call->output_grads[0].data;
    double *dx = call->input_grads[0].data;
    int64_t rows = call->inputs[0].shape[0], n = call->inputs[0].shape[1];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) dx[i * n + j] = dy[j];
    return GT_OK;
}

TEST(grad, custom_op_gets_row_major_arrays_and_only_what_it_saves) {
    gt_context *ctx = test_context(t);
    const int64_t shape[2] = {3, 2};
    const double xv[6] = {1, 2, 3, 4, 5, 6};
    for (int saves = 0; saves < 4; saves++) {
        int seen = -1;
        gt_custom_op_options o = options_of("rows", rows_forward, rows_backward);
        o.shape = rows_shape;
        o.user = &seen;
        o.saves_inputs = saves & 1;
        o.saves_outputs = saves >> 1;
        gt_scope_begin(ctx);
        gt_tensor *x = gt_tensor_from_data(ctx, GT_DTYPE_F64, 2, shape, xv, sizeof xv), *out;
        CHECK_OK(gt_tensor_set_requires_grad(x, 1));
        gt_tensor *view = CHECK_TENSOR(gt_transpose(x, 0, 1)); /* [2,3] */
        CHECK_OK(gt_custom_op_call(&o, &view, 1, &out));
        double y[3], dx[6];
        const double w[3] = {1, 10, 100};
        const int64_t wshape[1] = {3};
        CHECK_OK(gt_tensor_read(out, y, sizeof y));
        CHECK_NEAR(y[0], 3, 0);
        CHECK_NEAR(y[1], 7, 0);
        CHECK_NEAR(y[2], 11, 0);
        gt_tensor *dy = gt_tensor_from_data(ctx, GT_DTYPE_F64, 1, wshape, w, sizeof w);
        CHECK_OK(gt_backward_from(&out, &dy, 1, 0));
        CHECK_OK(gt_tensor_read(gt_tensor_grad(x), dx, sizeof dx));
        for (int i = 0; i < 6; i++) CHECK_NEAR(dx[i], w[i / 2], 0);
        CHECK_EQ_INT(seen, saves);
        gt_scope_end(ctx);
    }
}

static gt_status refuse(const gt_custom_call *call) {
    (void)call;
    return GT_IO;
}

TEST(grad, custom_op_callback_failure_is_CALLBACK_by_name) {
    gt_context *ctx = test_context(t);
    const int64_t shape[1] = {3};
    gt_custom_op_options o = options_of("fragile", refuse, refuse);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F64, 1, shape, 1), *out = x;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_STATUS(gt_custom_op_call(&o, &x, 1, &out), GT_CALLBACK);
    CHECK(out == x);
    CHECK_ERROR_HAS("\"fragile\"");
    CHECK_ERROR_HAS("GT_IO");
    o.forward = rows_forward;
    o.shape = rows_shape;
    CHECK_STATUS(gt_custom_op_call(&o, &x, 1, &out), GT_CALLBACK); /* rank 1: the shape callback refuses */
    CHECK_ERROR_HAS("shape callback");
    gt_tensor *matrix = CHECK_TENSOR(gt_reshape(x, 2, (const int64_t[]){3, 1}));
    CHECK_OK(gt_custom_op_call(&o, &matrix, 1, &out));
    CHECK_STATUS(gt_backward(gt_sum(out, NULL, 0, 0)), GT_CALLBACK);
    CHECK_ERROR_HAS("backward callback");
    CHECK(gt_tensor_grad(x) == NULL);
    gt_scope_end(ctx);
}

TEST(grad, custom_op_without_backward_stops_the_gradient) {
    gt_context *ctx = test_context(t);
    const int64_t shape[2] = {3, 2};
    gt_custom_op_options o = options_of("rows", rows_forward, NULL);
    o.shape = rows_shape;
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F64, 2, shape, 1), *out;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_custom_op_call(&o, &x, 1, &out));
    CHECK_EQ_INT(gt_tensor_requires_grad(out), 0);
    CHECK_EQ_INT(gt_grad_enabled(ctx), 1);
    gt_scope_end(ctx);
}

TEST(grad, custom_op_refuses_bad_options) {
    gt_context *ctx = test_context(t);
    const int64_t shape[1] = {3};
    gt_custom_op_options o = options_of("odd", both_forward, both_backward);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F64, 1, shape, 1), *in[9], *out;
    for (int i = 0; i < 9; i++) in[i] = x;
    CHECK_STATUS(gt_custom_op_call(&o, in, 9, &out), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("9 inputs");
    CHECK_STATUS(gt_custom_op_call(&o, in, 0, &out), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_custom_op_call(NULL, in, 1, &out), GT_BAD_ARGUMENT);
    o.n_outputs = 4;
    CHECK_STATUS(gt_custom_op_call(&o, in, 1, &out), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("4 outputs");
    o.n_outputs = 1;
    o.forward = NULL;
    CHECK_STATUS(gt_custom_op_call(&o, in, 1, &out), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("forward is NULL");
    o.struct_size = 0;
    CHECK_STATUS(gt_custom_op_call(&o, in, 1, &out), GT_BAD_ABI);
    gt_scope_end(ctx);
}

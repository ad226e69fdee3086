/* An op of your own: Mish, y = x tanh(ln(1 + e^x)) (Misra 2019), with its gradient. It is checked against finite differences, and then used as the activation of a
 * small network that learns y = sin(3x).
 *
 * The callbacks here are plain C, so the context is on the CPU. On a GPU they would launch kernels on call->stream instead. */
#include <gtrain/gtrain.h>

#include <math.h>
#include <stdio.h>

static double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }

static double mish(double x) { return x * tanh(softplus(x)); }

static double mish_gradient(double x) {
    double t = tanh(softplus(x));
    return t + x * (1 - t * t) / (1 + exp(-x));
}

/* Elements are f32 or f64: read and write both as double. */
static double get(const gt_array *array, int64_t i) {
    return array->dtype == GT_DTYPE_F64 ? ((const double *)array->data)[i] : (double)((const float *)array->data)[i];
}

static void set(const gt_array *array, int64_t i, double value) {
    if (array->dtype == GT_DTYPE_F64)
        ((double *)array->data)[i] = value;
    else
        ((float *)array->data)[i] = (float)value;
}

static int64_t elements(const gt_array *array) {
    int64_t n = 1;
    for (int32_t axis = 0; axis < array->ndim; ++axis) n *= array->shape[axis];
    return n;
}

static gt_status mish_forward(const gt_custom_call *call) {
    const gt_array *x = &call->inputs[0], *y = &call->outputs[0];
    if (x->dtype != GT_DTYPE_F32 && x->dtype != GT_DTYPE_F64) return GT_BAD_DTYPE;
    for (int64_t i = 0; i < elements(x); ++i) set(y, i, mish(get(x, i)));
    return GT_OK;
}

static gt_status mish_backward(const gt_custom_call *call) {
    const gt_array *x = &call->inputs[0], *dy = &call->output_grads[0], *dx = &call->input_grads[0];
    if (dx->data == NULL) return GT_OK; /* no gradient wanted */
    for (int64_t i = 0; i < elements(x); ++i) set(dx, i, get(dy, i) * mish_gradient(get(x, i)));
    return GT_OK;
}

/* The op, in the convention of all ops. */
static gt_tensor *gt_mish(gt_tensor *x) {
    gt_custom_op_options options;
    gt_tensor *y = NULL;
    if (x == NULL || gt_custom_op_options_init(&options, sizeof options) != GT_OK) return NULL;
    options.name = "mish";
    options.forward = mish_forward;
    options.backward = mish_backward;
    options.saves_outputs = 0; /* backward reads the input alone */
    return gt_custom_op_call(&options, &x, 1, &y) == GT_OK ? y : NULL;
}

/* Compares the gradient of sum(mish(x)) with (f(x + h) - f(x - h)) / 2h. *worst gets the largest difference. */
static gt_status check_gradient(gt_context *ctx, double *worst) {
    enum { COUNT = 41 };
    double values[COUNT], gradient[COUNT];
    for (int i = 0; i < COUNT; ++i) values[i] = -5 + 0.25 * i;
    const int64_t shape[1] = {COUNT};
    gt_tensor *x = gt_tensor_from_data(ctx, GT_DTYPE_F64, 1, shape, values, sizeof values);
    gt_status status = gt_tensor_set_requires_grad(x, 1);
    if (status == GT_OK) status = gt_backward(gt_sum(gt_mish(x), NULL, 0, 0));
    if (status == GT_OK) status = gt_tensor_read(gt_tensor_grad(x), gradient, sizeof gradient);
    *worst = 0;
    const double h = 1e-5;
    for (int i = 0; status == GT_OK && i < COUNT; ++i)
        *worst = fmax(*worst, fabs(gradient[i] - (mish(values[i] + h) - mish(values[i] - h)) / (2 * h)));
    return status;
}

/* A module from the op, so that it can stand in a network. */
static gt_tensor *mish_module_forward(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count) {
    (void)user, (void)module, (void)count;
    return gt_mish(inputs[0]);
}

static gt_module *mish_module(gt_context *ctx) {
    gt_nn_custom_options options;
    if (gt_nn_custom_options_init(&options, sizeof options) != GT_OK) return NULL;
    options.kind = "Mish";
    options.forward = mish_module_forward;
    return gt_nn_custom(ctx, &options);
}

/* Fits sin(3x) on [-1, 1]. *loss gets the last mean squared error. */
static gt_status learn_sine(gt_context *ctx, gt_module *net, double *loss) {
    enum { COUNT = 64, STEPS = 400 };
    float points[COUNT], sines[COUNT];
    for (int i = 0; i < COUNT; ++i) {
        points[i] = -1 + 2 * (float)i / (COUNT - 1);
        sines[i] = sinf(3 * points[i]);
    }
    const int64_t shape[2] = {COUNT, 1};
    gt_tensor *x = gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, shape, points, sizeof points);
    gt_tensor *y = gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, shape, sines, sizeof sines);

    gt_optimizer_options adam;
    gt_optimizer *optimizer = NULL;
    gt_status status = gt_optimizer_options_init(&adam, sizeof adam, GT_OPTIMIZER_ADAM);
    adam.learning_rate = 0.02;
    if (status == GT_OK) status = gt_optimizer_create_for(&adam, net, &optimizer);
    for (int step = 0; status == GT_OK && step < STEPS; ++step) {
        status = gt_scope_begin(ctx);
        if (status != GT_OK) break;
        gt_tensor *error = gt_mse_loss(gt_module_forward(net, x), y, GT_REDUCTION_MEAN);
        status = gt_optimizer_zero_grad(optimizer);
        if (status == GT_OK) status = gt_backward(error);
        if (status == GT_OK) status = gt_optimizer_step(optimizer);
        if (status == GT_OK && step == STEPS - 1) status = gt_tensor_item(error, loss);
        gt_scope_end(ctx);
    }
    gt_optimizer_destroy(optimizer);
    return status;
}

static int fail(const char *doing) {
    fprintf(stderr, "%s failed: %s\n", doing, gt_last_error()->message);
    return 1;
}

static int run(gt_context *ctx, gt_module *net) {
    double worst, loss = 0;
    if (check_gradient(ctx, &worst) != GT_OK) return fail("checking the gradient");
    printf("mish: its gradient differs from finite differences by at most %.1e\n", worst);
    if (net == NULL) return fail("making the network");
    if (learn_sine(ctx, net, &loss) != GT_OK) return fail("learning");
    printf("a network with it learns sin(3x) to a mean squared error of %.1e\n", loss);
    return worst < 1e-8 && loss < 1e-3 ? 0 : 1;
}

int main(void) {
    gt_context_options options;
    gt_context *ctx;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return fail("setting up");
    options.device = GT_DEVICE_CPU;
    if (gt_context_create(&options, &ctx) != GT_OK) return fail("opening the CPU");
    gt_module *layers[] = {gt_nn_linear(ctx, 1, 32, NULL), mish_module(ctx), gt_nn_linear(ctx, 32, 32, NULL), mish_module(ctx),
                           gt_nn_linear(ctx, 32, 1, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, sizeof layers / sizeof layers[0]);
    gt_scope_begin(ctx);
    int code = run(ctx, net);
    gt_scope_end(ctx);
    gt_module_destroy(net);
    gt_context_destroy(ctx);
    return code;
}

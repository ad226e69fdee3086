/* Initialisation of weights. */
#include "nn/module.h"

#include <math.h>

static gt_status check(gt_tensor *t, const char *who) {
    if (t == NULL) return gt__error_null(who, "tensor", __FILE__, __LINE__);
    GT_TRY(gt__tensor_check(t, who));
    GT_REQUIRE(gt__dtype_is_float(t->meta.dtype), GT_BAD_DTYPE, "%s: tensor \"%s\" is %s; it must be floating-point", who,
               gt_tensor_name(t), gt_dtype_name(t->meta.dtype));
    return GT_OK;
}

/* A tensor with holes is filled through a dense one, which draws the same numbers. */
static gt_status fill_through_copy(gt_tensor *t, gt__op_id op, double a, double b) {
    GT_TRY(gt__scope_begin(t->ctx));
    gt_tensor *values = op == GT__OP_UNIFORM ? gt_tensor_uniform(t->ctx, t->meta.dtype, t->meta.ndim, t->meta.shape, a, b)
                                             : gt_tensor_normal(t->ctx, t->meta.dtype, t->meta.ndim, t->meta.shape, a, b);
    gt_status status = values ? gt_tensor_copy(t, values) : gt_last_error()->status;
    (void)gt_scope_end(t->ctx);
    return status;
}

static gt_status fill_random(gt_tensor *t, gt__op_id op, double a, double b) {
    if (t->meta.numel == 0) return GT_OK;
    gt_context *ctx = t->ctx;
    gt_status status;
    ctx->no_grad++;
    if (gt__meta_is_dense(&t->meta)) {
        gt__attrs attr;
        memset(&attr, 0, sizeof attr);
        gt__random_take(ctx, t->meta.numel, &attr);
        attr.random.a = a;
        attr.random.b = b;
        status = gt__op_into(op, NULL, 0, &attr, t);
        if (status == GT_OK) gt__storage_changed(t->storage);
    } else {
        status = fill_through_copy(t, op, a, b);
    }
    ctx->no_grad--;
    return status;
}

gt_status gt_nn_init_constant(gt_tensor *tensor, double value) {
    GT_TRY(check(tensor, "gt_nn_init_constant"));
    gt_context *ctx = tensor->ctx;
    ctx->no_grad++;
    gt_status status = gt_tensor_fill(tensor, value);
    ctx->no_grad--;
    return status;
}

gt_status gt_nn_init_uniform(gt_tensor *tensor, double low, double high) {
    GT_TRY(check(tensor, "gt_nn_init_uniform"));
    GT_REQUIRE(isfinite(low) && isfinite(high) && low <= high, GT_BAD_ARGUMENT, "gt_nn_init_uniform: no range from %g to %g", low, high);
    return fill_random(tensor, GT__OP_UNIFORM, low, high);
}

gt_status gt_nn_init_normal(gt_tensor *tensor, double mean, double deviation) {
    GT_TRY(check(tensor, "gt_nn_init_normal"));
    GT_REQUIRE(isfinite(mean) && isfinite(deviation) && deviation >= 0, GT_BAD_ARGUMENT,
               "gt_nn_init_normal: mean %g, deviation %g; the deviation must not be negative", mean, deviation);
    return fill_random(tensor, GT__OP_NORMAL, mean, deviation);
}

typedef struct fans {
    double in, out;
} fans;

static gt_status fans_of(gt_tensor *t, const char *who, fans *result) {
    GT_TRY(check(t, who));
    char shape[GT__SHAPE_TEXT];
    GT_REQUIRE(t->meta.ndim >= 2, GT_BAD_SHAPE, "%s: a fan needs at least 2 axes, tensor \"%s\" is %s", who, gt_tensor_name(t),
               gt__meta_text(shape, sizeof shape, &t->meta));
    double field = 1;
    for (int32_t i = 2; i < t->meta.ndim; ++i) field *= (double)t->meta.shape[i];
    result->out = (double)t->meta.shape[0] * field;
    result->in = (double)t->meta.shape[1] * field;
    return GT_OK;
}

static gt_status xavier_deviation(gt_tensor *t, const char *who, double gain, double *deviation) {
    fans f;
    GT_TRY(fans_of(t, who, &f));
    GT_REQUIRE(isfinite(gain) && gain >= 0, GT_BAD_ARGUMENT, "%s: gain %g", who, gain);
    *deviation = f.in + f.out > 0 ? gain * sqrt(2.0 / (f.in + f.out)) : 0;
    return GT_OK;
}

static gt_status kaiming_deviation(gt_tensor *t, const char *who, double slope, gt_nn_fan fan, double *deviation) {
    fans f;
    GT_TRY(fans_of(t, who, &f));
    GT_REQUIRE(isfinite(slope), GT_BAD_ARGUMENT, "%s: negative slope %g", who, slope);
    GT_REQUIRE(fan == GT_NN_FAN_IN || fan == GT_NN_FAN_OUT, GT_BAD_ARGUMENT, "%s: fan %d is neither GT_NN_FAN_IN nor GT_NN_FAN_OUT", who,
               fan);
    double n = fan == GT_NN_FAN_IN ? f.in : f.out;
    *deviation = n > 0 ? sqrt(2.0 / (1.0 + slope * slope)) / sqrt(n) : 0;
    return GT_OK;
}

gt_status gt_nn_init_xavier_uniform(gt_tensor *tensor, double gain) {
    double deviation;
    GT_TRY(xavier_deviation(tensor, "gt_nn_init_xavier_uniform", gain, &deviation));
    return fill_random(tensor, GT__OP_UNIFORM, -sqrt(3.0) * deviation, sqrt(3.0) * deviation);
}

gt_status gt_nn_init_xavier_normal(gt_tensor *tensor, double gain) {
    double deviation;
    GT_TRY(xavier_deviation(tensor, "gt_nn_init_xavier_normal", gain, &deviation));
    return fill_random(tensor, GT__OP_NORMAL, 0, deviation);
}

gt_status gt_nn_init_kaiming_uniform(gt_tensor *tensor, double negative_slope, gt_nn_fan fan) {
    double deviation;
    GT_TRY(kaiming_deviation(tensor, "gt_nn_init_kaiming_uniform", negative_slope, fan, &deviation));
    return fill_random(tensor, GT__OP_UNIFORM, -sqrt(3.0) * deviation, sqrt(3.0) * deviation);
}

gt_status gt_nn_init_kaiming_normal(gt_tensor *tensor, double negative_slope, gt_nn_fan fan) {
    double deviation;
    GT_TRY(kaiming_deviation(tensor, "gt_nn_init_kaiming_normal", negative_slope, fan, &deviation));
    return fill_random(tensor, GT__OP_NORMAL, 0, deviation);
}

/* Normalisation layers: batch_norm (1d and 2d), layer_norm. */
#include "nn/module.h"

#include <math.h>

static gt_status add_number(gt__text *text, const char *name, double value) {
    char number[32];
    return gt__text_add(text, ", %s=%s", name, gt__number_text(number, sizeof number, value));
}

static gt_status ones_and_zeros(gt_module *m, int32_t first) {
    GT_TRY(gt_nn_init_constant(m->slots[first].tensor, 1));
    return gt_nn_init_constant(m->slots[first + 1].tensor, 0);
}

/* --- batch norm. Slots: weight, bias if affine; then running_mean, running_var, num_batches_tracked if tracked. */
typedef struct batch_norm_state {
    double epsilon, momentum;
    int64_t features;
    int64_t untold;          /* training batches that num_batches_tracked does not count yet: counting on the host costs no launch */
    int32_t affine, tracked; /* slot numbers of their first tensor, or -1 */
} batch_norm_state;

gt_status gt_nn_batch_norm_options_init(gt_nn_batch_norm_options *options, size_t size) {
    gt_nn_batch_norm_options defaults = {
        .struct_size = sizeof defaults, .affine = 1, .track_running_stats = 1, .epsilon = 1e-5, .momentum = 0.1};
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_nn_batch_norm_options");
}

static gt_tensor *at(const gt_module *m, int32_t first, int32_t offset) { return first < 0 ? NULL : m->slots[first + offset].tensor; }

gt_tensor *gt__batch_norm_run_with(gt_module *m, gt_tensor *x, gt_tensor *residual, gt_activation activation) {
    batch_norm_state *s = gt__module_state(m);
    bool batch_statistics = m->training || s->tracked < 0;
    gt_tensor *y = gt_batch_norm_activation(x, at(m, s->affine, 0), at(m, s->affine, 1), at(m, s->tracked, 0), at(m, s->tracked, 1),
                                            residual, batch_statistics, s->momentum, s->epsilon, activation);
    if (y && m->training && s->tracked >= 0 && gt_tensor_numel(x) > 0 && !m->ctx->recomputing) s->untold++;
    return y;
}

gt_tensor *gt__batch_norm_run(gt_module *m, gt_tensor *x, gt_activation activation) {
    return gt__batch_norm_run_with(m, x, NULL, activation);
}

static gt_tensor *batch_norm_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    return gt__batch_norm_run(m, in[0], GT_ACTIVATION_NONE);
}

static gt_status batch_norm_flush(gt_module *m) {
    batch_norm_state *s = gt__module_state(m);
    if (s->untold == 0) return GT_OK;
    gt_tensor *count = at(m, s->tracked, 2);
    gt_context *ctx = count->ctx;
    GT_TRY(gt__tensor_check(count, "batch_norm"));
    GT_TRY(gt__scope_begin(ctx));
    ctx->no_grad++;
    gt_tensor *sum = gt_add(count, gt_tensor_full(ctx, GT_DTYPE_I64, 0, NULL, (double)s->untold));
    gt_status status = sum ? gt_tensor_copy(count, sum) : gt_last_error()->status;
    ctx->no_grad--;
    (void)gt_scope_end(ctx);
    if (status == GT_OK) s->untold = 0;
    return status;
}

static int64_t *batch_norm_counter(gt_module *m) { return &((batch_norm_state *)gt__module_state(m))->untold; }

static gt_status batch_norm_describe(const gt_module *m, gt__text *text) {
    const batch_norm_state *s = gt__module_state(m);
    GT_TRY(gt__text_add(text, "%lld", (long long)s->features));
    GT_TRY(add_number(text, "eps", s->epsilon));
    GT_TRY(add_number(text, "momentum", s->momentum));
    if (s->affine < 0) GT_TRY(gt__text_add(text, ", affine=False"));
    if (s->tracked < 0) GT_TRY(gt__text_add(text, ", track_running_stats=False"));
    return GT_OK;
}

const gt__module_kind gt__batch_norm_kind = {.name = "BatchNorm",
                                             .n_inputs = 1,
                                             .state_size = sizeof(batch_norm_state),
                                             .forward = batch_norm_forward,
                                             .describe = batch_norm_describe,
                                             .flush = batch_norm_flush,
                                             .counter = batch_norm_counter};

static gt_status batch_norm_build(gt_module *m, int64_t features, const gt_nn_batch_norm_options *o) {
    batch_norm_state *s = gt__module_state(m);
    *s = (batch_norm_state){.epsilon = o->epsilon, .momentum = o->momentum, .features = features, .affine = -1, .tracked = -1};
    if (o->affine) {
        s->affine = m->n_slots;
        GT_TRY(gt__module_tensor_new(m, "weight", GT__SLOT_KEEP_F32, GT_DTYPE_F32, 1, &features));
        GT_TRY(gt__module_tensor_new(m, "bias", GT__SLOT_KEEP_F32, GT_DTYPE_F32, 1, &features));
        GT_TRY(ones_and_zeros(m, s->affine));
    }
    if (o->track_running_stats) {
        int32_t first = m->n_slots;
        GT_TRY(gt__module_tensor_new(m, "running_mean", GT__SLOT_BUFFER | GT__SLOT_KEEP_F32, GT_DTYPE_F32, 1, &features));
        GT_TRY(gt__module_tensor_new(m, "running_var", GT__SLOT_BUFFER | GT__SLOT_KEEP_F32, GT_DTYPE_F32, 1, &features));
        GT_TRY(gt__module_tensor_new(m, "num_batches_tracked", GT__SLOT_BUFFER | GT__SLOT_KEEP_F32, GT_DTYPE_I64, 0, NULL));
        GT_TRY(gt_nn_init_constant(m->slots[first].tensor, 0));
        GT_TRY(gt_nn_init_constant(m->slots[first + 1].tensor, 1));
        GT_TRY(gt_tensor_fill(m->slots[first + 2].tensor, 0));
        s->tracked = first;
    }
    return GT_OK;
}

gt_module *gt_nn_batch_norm(gt_context *ctx, int64_t features, const gt_nn_batch_norm_options *options) {
    gt_nn_batch_norm_options o;
    GT_TRY_NULL(gt_nn_batch_norm_options_init(&o, sizeof o));
    if (options) GT_TRY_NULL(gt__options_read(&o, sizeof o, options, "gt_nn_batch_norm_options"));
    GT_REQUIRE_NULL(features > 0, GT_BAD_ARGUMENT, "batch_norm: features is %lld; it must be at least 1", (long long)features);
    GT_REQUIRE_NULL(isfinite(o.epsilon) && o.epsilon >= 0, GT_BAD_ARGUMENT, "batch_norm: epsilon is %g; it must not be negative",
                    o.epsilon);
    GT_REQUIRE_NULL(o.momentum >= 0 && o.momentum <= 1, GT_BAD_ARGUMENT, "batch_norm: momentum is %g; it must be in [0, 1]", o.momentum);
    gt_module *m = gt__module_new(ctx, &gt__batch_norm_kind);
    return m ? gt__module_finish(m, batch_norm_build(m, features, &o)) : NULL;
}

/* --- layer norm */
typedef struct layer_norm_state {
    int64_t shape[GT_MAX_DIMS];
    double epsilon;
    int32_t n_axes;
} layer_norm_state;

gt_status gt_nn_layer_norm_options_init(gt_nn_layer_norm_options *options, size_t size) {
    gt_nn_layer_norm_options defaults = {.struct_size = sizeof defaults, .affine = 1, .epsilon = 1e-5};
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_nn_layer_norm_options");
}

static gt_tensor *layer_norm_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    const layer_norm_state *s = gt__module_state(m);
    const gt__meta *x = &in[0]->meta;
    bool fits = x->ndim >= s->n_axes && memcmp(x->shape + x->ndim - s->n_axes, s->shape, (size_t)s->n_axes * sizeof *s->shape) == 0;
    if (!fits) {
        char have[GT__SHAPE_TEXT], want[GT__SHAPE_TEXT];
        (void)GT_RAISE(GT_BAD_SHAPE, "layer_norm \"%s\": the input %s must end in %s", m->path, gt__meta_text(have, sizeof have, x),
                       gt__shape_text(want, sizeof want, s->n_axes, s->shape));
        return NULL;
    }
    return gt_layer_norm(in[0], m->n_slots ? m->slots[0].tensor : NULL, m->n_slots ? m->slots[1].tensor : NULL, s->n_axes, s->epsilon);
}

static gt_status layer_norm_describe(const gt_module *m, gt__text *text) {
    const layer_norm_state *s = gt__module_state(m);
    for (int32_t i = 0; i < s->n_axes; ++i) GT_TRY(gt__text_add(text, i ? ", %lld" : "(%lld", (long long)s->shape[i]));
    GT_TRY(gt__text_add(text, s->n_axes == 1 ? ",)" : ")"));
    GT_TRY(add_number(text, "eps", s->epsilon));
    return m->n_slots ? GT_OK : gt__text_add(text, ", affine=False");
}

static const gt__module_kind layer_norm_kind = {.name = "LayerNorm",
                                                .n_inputs = 1,
                                                .state_size = sizeof(layer_norm_state),
                                                .forward = layer_norm_forward,
                                                .describe = layer_norm_describe};

static gt_status layer_norm_build(gt_module *m, int32_t n_axes, const int64_t *shape, const gt_nn_layer_norm_options *o) {
    layer_norm_state *s = gt__module_state(m);
    s->epsilon = o->epsilon;
    s->n_axes = n_axes;
    memcpy(s->shape, shape, (size_t)n_axes * sizeof *shape);
    if (!o->affine) return GT_OK;
    GT_TRY(gt__module_tensor_new(m, "weight", GT__SLOT_KEEP_F32, GT_DTYPE_F32, n_axes, shape));
    GT_TRY(gt__module_tensor_new(m, "bias", GT__SLOT_KEEP_F32, GT_DTYPE_F32, n_axes, shape));
    return ones_and_zeros(m, 0);
}

gt_module *gt_nn_layer_norm(gt_context *ctx, int32_t n_axes, const int64_t *shape, const gt_nn_layer_norm_options *options) {
    gt_nn_layer_norm_options o;
    GT_TRY_NULL(gt_nn_layer_norm_options_init(&o, sizeof o));
    if (options) GT_TRY_NULL(gt__options_read(&o, sizeof o, options, "gt_nn_layer_norm_options"));
    GT_REQUIRE_NULL(n_axes >= 1 && n_axes <= GT_MAX_DIMS, GT_BAD_ARGUMENT, "layer_norm: n_axes is %d; it must be 1 to %d", n_axes,
                    GT_MAX_DIMS);
    GT_REQUIRE_NULL(shape != NULL, GT_BAD_ARGUMENT, "layer_norm: shape is NULL");
    for (int32_t i = 0; i < n_axes; ++i)
        GT_REQUIRE_NULL(shape[i] > 0, GT_BAD_ARGUMENT, "layer_norm: shape[%d] is %lld; it must be at least 1", i, (long long)shape[i]);
    GT_REQUIRE_NULL(isfinite(o.epsilon) && o.epsilon >= 0, GT_BAD_ARGUMENT, "layer_norm: epsilon is %g; it must not be negative",
                    o.epsilon);
    gt_module *m = gt__module_new(ctx, &layer_norm_kind);
    return m ? gt__module_finish(m, layer_norm_build(m, n_axes, shape, &o)) : NULL;
}

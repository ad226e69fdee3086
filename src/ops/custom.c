/* Ops of the user's own. Forward runs as the kernel of CUSTOM, the same on every device; backward is called directly, since a call of it
 * may have more results than an op has outputs. */
#include "ops/ops.h"

struct gt__custom {
    int64_t references;
    gt_custom_op_options options; /* options.name points into `name` */
    char name[];
};

#define MAX_IN  GT__MAX_SAVED_IN /* all inputs may have to be saved */
#define MAX_OUT 3                /* as autograd.h says */

void gt__custom_retain(struct gt__custom *op) { op->references++; }

void gt__custom_release(struct gt__custom *op) {
    if (op != NULL && --op->references == 0) gt__free(op);
}

const char *gt__custom_name(const struct gt__custom *op) { return op->name; }

uint32_t gt__custom_saves(const struct gt__custom *op, int32_t n_in) {
    uint32_t mask = 0;
    if (op->options.saves_inputs) mask |= GT__IN(n_in) - 1;
    if (op->options.saves_outputs) mask |= GT__OUT(op->options.n_outputs) - GT__OUT(0);
    return mask;
}

static gt_array array_of(const gt__meta *meta, void *data) {
    return (gt_array){.data = data, .shape = meta->shape, .dtype = meta->dtype, .ndim = meta->ndim};
}

static gt_custom_call start_call(const struct gt__custom *op, int32_t n_in, const gt_array *inputs, const gt_array *outputs) {
    return (gt_custom_call){.struct_size = sizeof(gt_custom_call),
                            .n_inputs = n_in,
                            .n_outputs = op->options.n_outputs,
                            .user = op->options.user,
                            .inputs = inputs,
                            .outputs = outputs};
}

static gt_status check_callback(const struct gt__custom *op, gt_status status, const char *which) {
    GT_REQUIRE(status == GT_OK, GT_CALLBACK, "custom op \"%s\": its %s callback returned %s (%d)", op->name, which, gt_status_name(status),
               (int)status);
    return GT_OK;
}

static void *stream_of(gt__device *device) {
    return device->backend->stream != NULL ? device->backend->stream(device, GT__STREAM_COMPUTE) : NULL;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------------ */

/* The metas of the outputs, from those of the inputs. */
static gt_status output_metas(const struct gt__custom *op, int32_t n_in, const gt__meta *const *in, gt__meta *out) {
    gt_array inputs[MAX_IN];
    int32_t ndim[GT__MAX_OUT];
    int64_t shape[GT__MAX_OUT * GT_MAX_DIMS] = {0};
    gt_dtype dtype[GT__MAX_OUT];
    int32_t n_out = op->options.n_outputs;
    for (int32_t k = 0; k < n_in; k++) inputs[k] = array_of(in[k], NULL);
    for (int32_t k = 0; k < n_out; k++) {
        ndim[k] = in[0]->ndim;
        dtype[k] = in[0]->dtype;
        memcpy(&shape[k * GT_MAX_DIMS], in[0]->shape, (size_t)in[0]->ndim * sizeof *shape);
    }
    if (op->options.shape != NULL) {
        const gt_custom_call call = start_call(op, n_in, inputs, NULL);
        GT_TRY(check_callback(op, op->options.shape(&call, ndim, shape, dtype), "shape"));
    }
    for (int32_t k = 0; k < n_out; k++) GT_TRY(gt__meta_make(&out[k], dtype[k], ndim[k], &shape[k * GT_MAX_DIMS], op->name));
    return GT_OK;
}

gt_status gt__shape_custom(gt__call *call) {
    const struct gt__custom *op = call->attr.custom.op;
    const gt__meta *in[MAX_IN] = {NULL};
    GT_CALL_REQUIRE(call, call->n_in >= 1 && call->n_in <= MAX_IN, GT_INTERNAL, "%d inputs", (int)call->n_in);
    for (int32_t k = 0; k < call->n_in; k++) {
        GT_CALL_REQUIRE(call, call->in[k]->ctx == call->ctx, GT_BAD_DEVICE, "\"%s\": input %d belongs to another context than input 0",
                        op->name, (int)k);
        in[k] = &call->in[k]->meta;
    }
    call->n_out = op->options.n_outputs;
    return output_metas(op, call->n_in, in, call->meta);
}

/* ---- forward ----------------------------------------------------------------------------------------------------------------- */

gt_status gt__custom_run(gt__device *device, const gt__call *call) {
    const struct gt__custom *op = call->attr.custom.op;
    gt_array inputs[MAX_IN], outputs[GT__MAX_OUT];
    for (int32_t k = 0; k < call->n_in; k++) inputs[k] = array_of(&call->in[k]->meta, call->in[k]->data);
    for (int32_t k = 0; k < call->n_out; k++) outputs[k] = array_of(&call->out[k]->meta, call->out[k]->data);
    gt_custom_call user = start_call(op, call->n_in, inputs, outputs);
    user.stream = stream_of(device);
    return check_callback(op, op->options.forward(&user), "forward");
}

/* ---- backward ---------------------------------------------------------------------------------------------------------------- */

gt_status gt__custom_backward_run(gt__device *device, const gt__custom_gradient *g) {
    gt_array inputs[MAX_IN], input_grads[MAX_IN], outputs[GT__MAX_OUT], output_grads[GT__MAX_OUT];
    for (int32_t k = 0; k < g->n_in; k++) {
        inputs[k] = array_of(&g->in_meta[k], g->in[k]);
        input_grads[k] = array_of(&g->in_meta[k], g->in_grad[k]);
    }
    for (int32_t k = 0; k < g->n_out; k++) {
        outputs[k] = array_of(&g->out_meta[k], g->out[k]);
        output_grads[k] = array_of(&g->out_meta[k], g->out_grad[k]);
    }
    gt_custom_call user = start_call(g->op, g->n_in, inputs, outputs);
    user.output_grads = output_grads;
    user.input_grads = input_grads;
    user.stream = stream_of(device);
    gt__profiler *profiler = device->ctx->profiler;
    const bool seen = profiler != NULL && profiler->custom_begin(profiler, g);
    gt_status status = check_callback(g->op, g->op->options.backward(&user), "backward");
    if (seen) profiler->custom_end(profiler, g, status);
    return status;
}

static gt_status run_backward(gt_context *ctx, const gt__custom_gradient *g) {
    if (ctx->tracer) return ctx->tracer->custom_backward(ctx->tracer, g);
    int32_t previous = gt__enter(ctx);
    gt_status status = gt__custom_backward_run(ctx->device, g);
    gt__leave(ctx, previous);
    return status;
}

gt_status gt__grad_custom(gt__grad *grad) {
    struct gt__custom *op = grad->attr->custom.op;
    gt__custom_gradient g = {.op = op, .n_in = grad->n_in, .n_out = op->options.n_outputs};
    const gt__meta *in[MAX_IN] = {NULL};
    gt_tensor *dx[MAX_IN] = {NULL};
    for (int32_t k = 0; k < g.n_in; k++) {
        in[k] = &grad->in_meta[k];
        g.in_meta[k] = *in[k];
        gt__meta_set_row_major(&g.in_meta[k]);
    }
    GT_TRY(output_metas(op, g.n_in, in, g.out_meta));
    for (int32_t k = 0; k < g.n_in; k++) {
        gt_tensor *x = grad->in[k];
        if (x != NULL) GT__TRY_TENSOR(x, gt_contiguous(x));
        if (grad->needs[k]) GT__TRY_TENSOR(dx[k], gt_tensor_empty(grad->ctx, in[k]->dtype, in[k]->ndim, in[k]->shape));
        g.in[k] = x != NULL ? x->data : NULL;
        g.in_grad[k] = dx[k] != NULL ? dx[k]->data : NULL;
    }
    for (int32_t k = 0; k < g.n_out; k++) {
        const gt__meta *out = &g.out_meta[k];
        gt_tensor *dy = grad->dy[k];
        GT__TRY_TENSOR(dy, dy != NULL ? gt_contiguous(dy) : gt_tensor_zeros(grad->ctx, out->dtype, out->ndim, out->shape));
        g.out[k] = grad->out[k] != NULL ? grad->out[k]->data : NULL;
        g.out_grad[k] = dy->data;
    }
    GT_TRY(run_backward(grad->ctx, &g));
    memcpy(grad->dx, dx, (size_t)g.n_in * sizeof *dx);
    return GT_OK;
}

/* ---- public ------------------------------------------------------------------------------------------------------------------ */

static const gt_custom_op_options custom_defaults = {
    .struct_size = sizeof(gt_custom_op_options),
    .n_outputs = 1,
    .saves_inputs = 1,
    .saves_outputs = 1,
};

gt_status gt_custom_op_options_init(gt_custom_op_options *options, size_t size) {
    return gt__options_write(options, size, &custom_defaults, sizeof custom_defaults, "gt_custom_op_options");
}

static gt_status make_custom(const gt_custom_op_options *options, struct gt__custom **result) {
    const char *name = options->name != NULL ? options->name : "custom";
    size_t length = strlen(name) + 1;
    struct gt__custom *op = gt__malloc(sizeof *op + length);
    if (op == NULL) return GT_OUT_OF_HOST_MEMORY;
    op->references = 1;
    op->options = *options;
    memcpy(op->name, name, length);
    op->options.name = op->name;
    *result = op;
    return GT_OK;
}

gt_status gt_custom_op_call(const gt_custom_op_options *options, gt_tensor *const *inputs, int32_t n_inputs, gt_tensor **outputs) {
    GT_REQUIRE(options != NULL && inputs != NULL && outputs != NULL, GT_BAD_ARGUMENT,
               "gt_custom_op_call: options, inputs or outputs is NULL");
    gt_custom_op_options o = custom_defaults;
    GT_TRY(gt__options_read(&o, sizeof o, options, "gt_custom_op_options"));
    const char *name = o.name != NULL ? o.name : "custom";
    GT_REQUIRE(o.forward != NULL, GT_BAD_ARGUMENT, "custom op \"%s\": forward is NULL", name);
    GT_REQUIRE(o.n_outputs >= 1 && o.n_outputs <= MAX_OUT, GT_BAD_ARGUMENT, "custom op \"%s\": %d outputs, but must have from 1 to %d",
               name, (int)o.n_outputs, MAX_OUT);
    GT_REQUIRE(n_inputs >= 1 && n_inputs <= MAX_IN, GT_BAD_ARGUMENT, "custom op \"%s\": %d inputs, but must have from 1 to %d", name,
               (int)n_inputs, MAX_IN);
    for (int32_t k = 0; k < n_inputs; k++) GT_TRY(gt__tensor_usable(inputs[k], "gt_custom_op_call", "an input", __FILE__, __LINE__));

    gt_context *ctx = inputs[0]->ctx;
    gt_tensor *made[GT__MAX_OUT] = {NULL, NULL, NULL};
    gt__attrs attr = gt__attrs_zero();
    GT_TRY(make_custom(&o, &attr.custom.op));
    if (o.backward == NULL) ctx->no_grad++;
    gt_status status = gt__op_multi(GT__OP_CUSTOM, inputs, n_inputs, &attr, (1u << o.n_outputs) - 1, made);
    if (o.backward == NULL) ctx->no_grad--;
    gt__custom_release(attr.custom.op);
    if (status == GT_OK) memcpy(outputs, made, (size_t)o.n_outputs * sizeof *made);
    return status;
}

#include "io/onnx_trace.h"
#include "nn/module.h"

#define WHO "gt_module_export_onnx"

/* --- lists ------------------------------------------------------------------------------------------------------------------------------ */

/* Room for one more in a list. */
static gt_status reserve(void **list, int32_t count, int32_t *capacity, size_t size) {
    if (count < *capacity) return GT_OK;
    int32_t grown = GT__MAX(*capacity * 2, 64);
    void *memory = gt__realloc(*list, (size_t)grown * size);
    if (memory == NULL) return GT_OUT_OF_HOST_MEMORY;
    *list = memory;
    *capacity = grown;
    return GT_OK;
}
#define ADD(trace, list, ...)                                                                                                              \
    do {                                                                                                                                   \
        void *memory = (trace)->list;                                                                                                      \
        GT_TRY(reserve(&memory, (trace)->n_##list, &(trace)->cap_##list, sizeof *(trace)->list));                                          \
        (trace)->list = memory;                                                                                                            \
        (trace)->list[(trace)->n_##list++] = __VA_ARGS__;                                                                                  \
    } while (0)

static ptrdiff_t offset_of(const gt_tensor *t) { return t->data ? (char *)t->data - (char *)t->storage->data : 0; }

static int32_t find(const gt__trace *trace, const gt_tensor *t) {
    ptrdiff_t offset = offset_of(t);
    for (int32_t i = trace->n_keys - 1; i >= 0; --i) {
        const gt__trace_key *key = &trace->keys[i];
        if (key->storage == t->storage->birth && key->offset == offset && key->meta.dtype == t->meta.dtype &&
            gt__meta_same_layout(&key->meta, &t->meta))
            return key->value;
    }
    return -1;
}

static const gt__trace_value *in_storage(const gt__trace *trace, const gt_tensor *t) {
    for (int32_t i = trace->n_keys - 1; i >= 0; --i)
        if (trace->keys[i].storage == t->storage->birth) return &trace->values[trace->keys[i].value];
    return NULL;
}

static gt_status add_key(gt__trace *trace, const gt_tensor *t, int32_t value) {
    ADD(trace, keys, (gt__trace_key){.storage = t->storage->birth, .offset = offset_of(t), .meta = t->meta, .value = value});
    return GT_OK;
}

static gt_status add_value(gt__trace *trace, gt_tensor *t, gt__trace_kind kind, int32_t *value) {
    ADD(trace, values, (gt__trace_value){.meta = t->meta, .kind = kind});
    *value = trace->n_values - 1;
    if (kind == GT__TRACE_WEIGHT || kind == GT__TRACE_CONSTANT) trace->values[*value].tensor = gt_tensor_retain(t);
    return add_key(trace, t, *value);
}

/* --- what core tells ---------------------------------------------------------------------------------------------------------------------- */

/* The first failure is kept, with its text, whatever the caller's forward makes of it. */
static gt_status keep(gt__trace *trace, gt_status status) {
    if (status == GT_OK || trace->status != GT_OK) return status;
    trace->status = status;
    (void)gt__text_add(&trace->message, "%s", gt_last_error()->message);
    return status;
}

static gt_status refuse_op(const gt__call *call) {
    switch (call->op) {
    case GT__OP_CUSTOM:
        GT_CALL_FAIL(call, GT_NOT_SUPPORTED, "the op of your own \"%s\" has no counterpart in ONNX", gt__custom_name(call->attr.custom.op));
    case GT__OP_DROPOUT:
        GT_CALL_FAIL_HINT(call, GT_NOT_SUPPORTED, "call it with training == 0 where gt_module_training is 0",
                          "random numbers cannot be written to ONNX");
    default:
        GT_CALL_FAIL_HINT(call, GT_NOT_SUPPORTED, "build the forward from other ops, or leave this one to what runs the model",
                          "cannot be written to ONNX");
    }
}

static gt_status value_of_input(gt__trace *trace, gt_tensor *t, int32_t *value) {
    *value = -1;
    if (t == NULL) return GT_OK;
    *value = find(trace, t);
    return *value >= 0 ? GT_OK : add_value(trace, t, GT__TRACE_CONSTANT, value);
}

static gt_status note_call(gt__trace *trace, const gt__call *call) {
    int32_t first = trace->n_links, value;
    for (int32_t k = 0; k < call->n_in; ++k) {
        GT_TRY(value_of_input(trace, call->in[k], &value));
        ADD(trace, links, value);
    }
    if (call->op == GT__OP_COPY) return add_key(trace, call->out[0], trace->links[first]);
    /* A view that shows its input just as it is. */
    if (gt__op_table[call->op].layout == GT__LAYOUT_VIEW && find(trace, call->out[0]) >= 0) return GT_OK;
    GT_TRY(add_value(trace, call->out[0], GT__TRACE_RESULT, &value));
    ADD(trace, calls,
        (gt__trace_call){
            .op = call->op, .n_in = call->n_in, .first_in = first, .out = value, .attr = call->attr, .module = call->ctx->module_path});
    return GT_OK;
}

static bool has_drawn(const gt__trace *trace) {
    return trace->ctx->rng_seed != trace->rng_seed || trace->ctx->rng_offset != trace->rng_offset;
}

static gt_status refuse_random(const gt__call *call) {
    GT_CALL_FAIL(call, GT_NOT_SUPPORTED, "the forward draws random numbers in evaluation mode, which cannot be written to ONNX");
}

static gt_status saw_call(gt__observer *observer, const gt__call *call) {
    gt__trace *trace = (gt__trace *)observer;
    if (!trace->supported(call->op)) return keep(trace, refuse_op(call));
    if (has_drawn(trace)) return keep(trace, refuse_random(call));
    return keep(trace, note_call(trace, call));
}

/* What the weights are is known at export; what an op made is different each time the model runs. */
static gt_status saw_read(gt__observer *observer, const gt_tensor *tensor, const char *who) {
    gt__trace *trace = (gt__trace *)observer;
    const gt__trace_value *value = in_storage(trace, tensor);
    if (value == NULL || value->kind == GT__TRACE_WEIGHT || value->kind == GT__TRACE_CONSTANT) return GT_OK;
    const char *module = trace->ctx->module_path;
    char text[2 * GT__SHAPE_TEXT];
    return keep(trace, GT_RAISE_HINT(GT_NOT_SUPPORTED, "compute it with ops on the device",
                                     "%s \"%s\": the forward reads a value on the host (%s), which cannot be written to ONNX", who,
                                     module ? module : "", gt__tensor_text(tensor, text, sizeof text)));
}

static gt_status saw_overwrite(gt__observer *observer, const gt_tensor *tensor, const gt_tensor *source, const char *who) {
    gt__trace *trace = (gt__trace *)observer;
    if (in_storage(trace, tensor) == NULL && (source == NULL || in_storage(trace, source) == NULL)) return GT_OK;
    const char *module = trace->ctx->module_path;
    char text[2 * GT__SHAPE_TEXT];
    return keep(trace, GT_RAISE_HINT(GT_NOT_SUPPORTED, "use the result of an op instead, such as gt_concat",
                                     "%s \"%s\": the forward changes a tensor in place (%s), which cannot be written to ONNX", who,
                                     module ? module : "", gt__tensor_text(tensor, text, sizeof text)));
}

/* --- modes of the modules ------------------------------------------------------------------------------------------------------------------ */

static size_t count_modules(const gt_module *m) {
    size_t n = 1;
    for (int32_t i = 0; i < m->n_children; ++i) n += count_modules(m->children[i]);
    return n;
}

static bool *save_modes(const gt_module *m, bool *at) {
    *at++ = m->training;
    for (int32_t i = 0; i < m->n_children; ++i) at = save_modes(m->children[i], at);
    return at;
}

/* A forward may have added modules: those stay as they are. */
static const bool *restore_modes(gt_module *m, const bool *at, const bool *end) {
    if (at < end) m->training = *at++;
    for (int32_t i = 0; i < m->n_children; ++i) at = restore_modes(m->children[i], at, end);
    return at;
}

/* --- running -------------------------------------------------------------------------------------------------------------------------------- */

static gt_status add_weight(gt__trace *trace, const char *name, gt_tensor *tensor) {
    int32_t value;
    if (find(trace, tensor) >= 0) return GT_OK; /* tied */
    GT_TRY(add_value(trace, tensor, GT__TRACE_WEIGHT, &value));
    trace->values[value].name = gt__strdup(name);
    return trace->values[value].name ? GT_OK : GT_OUT_OF_HOST_MEMORY;
}

static gt_status add_weights(gt__trace *trace, gt_module *module) {
    int32_t parameters = gt_module_parameter_count(module), buffers = gt_module_buffer_count(module);
    const char *name;
    gt_tensor *tensor;
    for (int32_t i = 0; i < parameters; ++i) {
        GT_TRY(gt_module_parameter(module, i, &name, &tensor));
        GT_TRY(add_weight(trace, name, tensor));
    }
    for (int32_t i = 0; i < buffers; ++i) {
        GT_TRY(gt_module_buffer(module, i, &name, &tensor));
        GT_TRY(add_weight(trace, name, tensor));
    }
    return GT_OK;
}

static gt_status run(gt__trace *trace, gt_module *module, gt_tensor *const *inputs, int32_t n_inputs) {
    gt_context *ctx = trace->ctx;
    trace->rng_seed = ctx->rng_seed;
    trace->rng_offset = ctx->rng_offset;
    ctx->observer = &trace->observer;
    gt_tensor *y = gt_module_forward_many(module, inputs, n_inputs);
    ctx->observer = NULL;
    bool draws = has_drawn(trace);
    ctx->rng_seed = trace->rng_seed;
    ctx->rng_offset = trace->rng_offset;
    if (trace->status != GT_OK) { /* said again, if the forward did something else after it */
        if (gt_last_error()->status == trace->status && trace->message.data && strcmp(gt_last_error()->message, trace->message.data) == 0)
            return trace->status;
        GT_FAIL(trace->status, "%s", trace->message.data ? trace->message.data : gt_status_text(trace->status));
    }
    if (y == NULL) return gt_last_error()->status;
    GT_REQUIRE(!draws, GT_NOT_SUPPORTED, "%s: the forward of %s \"%s\" draws random numbers in evaluation mode", WHO,
               gt_module_kind(module), gt_module_path(module));
    return value_of_input(trace, y, &trace->result);
}

gt_status gt__trace_forward(gt__trace *trace, gt_module *module, gt_tensor *const *inputs, int32_t n_inputs,
                            bool (*supported)(gt__op_id op)) {
    gt_context *ctx = module->ctx;
    trace->observer = (gt__observer){.call = saw_call, .read = saw_read, .overwrite = saw_overwrite};
    trace->ctx = ctx;
    trace->supported = supported;
    trace->n_inputs = n_inputs;
    for (int32_t k = 0; k < n_inputs; ++k) {
        int32_t value;
        GT_TRY(add_value(trace, inputs[k], GT__TRACE_INPUT, &value));
    }
    GT_TRY(add_weights(trace, module));
    size_t n_modes = count_modules(module);
    bool *modes = gt__malloc(n_modes * sizeof *modes);
    if (modes == NULL) return GT_OUT_OF_HOST_MEMORY;
    (void)save_modes(module, modes);
    gt_status status = gt_module_set_training(module, 0);
    if (status == GT_OK) status = gt__scope_begin(ctx);
    if (status == GT_OK) {
        ctx->no_grad++;
        status = run(trace, module, inputs, n_inputs);
        ctx->no_grad--;
        (void)gt_scope_end(ctx);
    }
    (void)restore_modes(module, modes, modes + n_modes);
    gt__free(modes);
    return status;
}

void gt__trace_free(gt__trace *trace) {
    for (int32_t i = 0; i < trace->n_values; ++i) {
        gt_tensor_release(trace->values[i].tensor);
        gt__free(trace->values[i].name);
    }
    gt__free(trace->values);
    gt__free(trace->keys);
    gt__free(trace->calls);
    gt__free(trace->links);
    gt__text_free(&trace->message);
    *trace = (gt__trace){0};
}

/* --- two runs ---------------------------------------------------------------------------------------------------------------------------------- */

static bool same_call(const gt__trace *a, const gt__trace *b, const gt__trace_call *x, const gt__trace_call *y) {
    return x->op == y->op && x->n_in == y->n_in && x->out == y->out &&
           memcmp(a->links + x->first_in, b->links + y->first_in, (size_t)x->n_in * sizeof *a->links) == 0;
}

static bool same_value(const gt__trace_value *x, const gt__trace_value *y) {
    return x->kind == y->kind && x->meta.dtype == y->meta.dtype && x->meta.ndim == y->meta.ndim;
}

/* Constants that the forward makes must be the same numbers each time. */
static gt_status same_constant(const gt__trace_value *x, const gt__trace_value *y, int64_t batch, int64_t other_batch) {
    if (x->tensor->storage == y->tensor->storage) return GT_OK;
    char text[GT__SHAPE_TEXT];
    bool same = gt__meta_same_shape(&x->meta, &y->meta);
    size_t bytes = gt_tensor_bytes(x->tensor);
    if (same && bytes > 0) {
        char *both = gt__calloc(2, bytes);
        if (both == NULL) return GT_OUT_OF_HOST_MEMORY;
        gt_status status = gt_tensor_read(x->tensor, both, bytes);
        if (status == GT_OK) status = gt_tensor_read(y->tensor, both + bytes, bytes);
        same = status == GT_OK && memcmp(both, both + bytes, bytes) == 0;
        gt__free(both);
        GT_TRY(status);
    }
    if (same) return GT_OK;
    GT_FAIL_HINT(GT_NOT_SUPPORTED, "compute it from the input, or set the option dynamic_batch to 0",
                 "%s: the forward makes a tensor %s %s without an op, and another one for a batch of %lld than for %lld", WHO,
                 gt_dtype_name(x->meta.dtype), gt__meta_text(text, sizeof text, &x->meta), (long long)other_batch, (long long)batch);
}

gt_status gt__trace_compare(const gt__trace *trace, const gt__trace *other, int64_t batch, int64_t other_batch) {
    static const char hint[] = "set the option dynamic_batch to 0 for a model of one batch size";
    int32_t calls = GT__MIN(trace->n_calls, other->n_calls);
    for (int32_t i = 0; i < calls; ++i) {
        const gt__trace_call *x = &trace->calls[i], *y = &other->calls[i];
        if (same_call(trace, other, x, y)) continue;
        GT_FAIL_HINT(GT_NOT_SUPPORTED, hint,
                     "%s: the forward depends on the batch size: call %d is %s \"%s\" for a batch of %lld and %s \"%s\" for %lld", WHO,
                     (int)i, gt__op_table[x->op].name, x->module ? x->module : "", (long long)batch, gt__op_table[y->op].name,
                     y->module ? y->module : "", (long long)other_batch);
    }
    bool same = trace->n_calls == other->n_calls && trace->n_values == other->n_values && trace->result == other->result;
    for (int32_t i = 0; same && i < trace->n_values; ++i) same = same_value(&trace->values[i], &other->values[i]);
    if (!same)
        GT_FAIL_HINT(GT_NOT_SUPPORTED, hint,
                     "%s: the forward depends on the batch size: it runs %d ops for a batch of %lld and %d for %lld", WHO,
                     (int)trace->n_calls, (long long)batch, (int)other->n_calls, (long long)other_batch);
    for (int32_t i = 0; i < trace->n_values; ++i)
        if (trace->values[i].kind == GT__TRACE_CONSTANT) GT_TRY(same_constant(&trace->values[i], &other->values[i], batch, other_batch));
    return GT_OK;
}

/* gt_module_export_onnx. With a dynamic batch the forward is written down twice, with two batch sizes: where the two differ is where the batch size comes in. */
#include "base/json_write.h" /* gt__utf8_character */
#include "base/replace_file.h"
#include "io/onnx_graph.h"
#include "nn/module.h"
#include <gtrain/onnx.h>

#include <stdio.h>

#define WHO "gt_module_export_onnx"

typedef struct export_call {
    gt_module *module;
    gt_tensor *const *inputs; /* the examples */
    int32_t n_inputs;
    gt_onnx_options options;
    gt__trace trace, other;
    gt__onnx graph;
    const char *graph_name;
} export_call;

/* --- options ---------------------------------------------------------------------------------------------------------------------------------- */

gt_status gt_onnx_options_init(gt_onnx_options *options, size_t size) {
    gt_onnx_options defaults = {
        .struct_size = sizeof defaults, .opset = 17, .dynamic_batch = 1, .output_name = "output", .batch_name = "batch"};
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_onnx_options");
}

static gt_status check_text(const char *what, const char *text) {
    GT_REQUIRE(text != NULL, GT_BAD_ARGUMENT, "%s: %s is NULL", WHO, what);
    for (const char *at = text; *at;) {
        size_t n = gt__utf8_character(at);
        GT_REQUIRE(n > 0, GT_BAD_ARGUMENT, "%s: %s is not valid UTF-8", WHO, what);
        at += n;
    }
    return GT_OK;
}

static gt_status check_name(const char *what, const char *text) {
    GT_TRY(check_text(what, text));
    GT_REQUIRE(text[0] != '\0', GT_BAD_ARGUMENT, "%s: %s is empty", WHO, what);
    return GT_OK;
}

static gt_status check_options(const gt_onnx_options *o, int32_t n_inputs) {
    GT_REQUIRE(o->opset >= GT__ONNX_OPSET_LEAST && o->opset <= GT__ONNX_OPSET_MOST, GT_BAD_ARGUMENT, "%s: opset is %d; it can be %d to %d",
               WHO, (int)o->opset, GT__ONNX_OPSET_LEAST, GT__ONNX_OPSET_MOST);
    for (int32_t k = 0; o->input_names && k < n_inputs; ++k) {
        GT_TRY(check_name("an input's name", o->input_names[k]));
        for (int32_t i = 0; i < k; ++i)
            GT_REQUIRE(strcmp(o->input_names[i], o->input_names[k]) != 0, GT_BAD_ARGUMENT, "%s: two inputs are named \"%s\"", WHO,
                       o->input_names[k]);
    }
    GT_TRY(check_name("the output's name", o->output_name));
    GT_TRY(check_name("the batch axis's name", o->batch_name));
    GT_REQUIRE(o->n_metadata >= 0 && (o->n_metadata == 0 || o->metadata != NULL), GT_BAD_ARGUMENT, "%s: %d pairs of metadata%s", WHO,
               (int)o->n_metadata, o->metadata ? "" : " at NULL");
    for (int32_t i = 0; i < o->n_metadata; ++i) {
        GT_TRY(check_name("a key of the metadata", o->metadata[2 * i]));
        GT_TRY(check_text("a value of the metadata", o->metadata[2 * i + 1]));
        for (int32_t k = 0; k < i; ++k)
            GT_REQUIRE(strcmp(o->metadata[2 * k], o->metadata[2 * i]) != 0, GT_BAD_ARGUMENT, "%s: the metadata has the key \"%s\" twice",
                       WHO, o->metadata[2 * i]);
    }
    return GT_OK;
}

static bool is_batched(const gt_onnx_options *o, int32_t k) { return o->dynamic_batch && (o->batched == NULL || o->batched[k]); }

/* --- inputs ------------------------------------------------------------------------------------------------------------------------------------ */

static gt_status check_inputs(const export_call *e) {
    int32_t first = -1;
    for (int32_t k = 0; k < e->n_inputs; ++k) {
        const gt_tensor *x = e->inputs[k];
        GT_REQUIRE(x != NULL, GT_BAD_ARGUMENT, "%s: input %d is NULL", WHO, (int)k);
        GT_TRY(gt__tensor_check(x, WHO));
        GT_REQUIRE(x->ctx == e->module->ctx, GT_BAD_DEVICE, "%s: input %d belongs to another context than the module", WHO, (int)k);
        if (!is_batched(&e->options, k)) continue;
        char text[GT__SHAPE_TEXT];
        GT_REQUIRE(x->meta.ndim > 0 && x->meta.shape[0] > 0, GT_BAD_SHAPE,
                   "%s: input %d is %s, which has no batch axis with an example in it", WHO, (int)k,
                   gt__meta_text(text, sizeof text, &x->meta));
        if (first < 0) first = k;
        if (x->meta.shape[0] != e->inputs[first]->meta.shape[0])
            GT_FAIL_HINT(GT_BAD_SHAPE, "say with the option batched which inputs have a batch axis",
                         "%s: input %d has a batch of %lld, input %d one of %lld", WHO, (int)first,
                         (long long)e->inputs[first]->meta.shape[0], (int)k, (long long)x->meta.shape[0]);
    }
    if (e->options.dynamic_batch) GT_REQUIRE(first >= 0, GT_BAD_ARGUMENT, "%s: no input has a batch axis; set dynamic_batch to 0", WHO);
    return GT_OK;
}

/* The least number over `after` that is no size of any input, so that no two axes are equal by chance. */
static int64_t batch_after(const export_call *e, int64_t after) {
    for (int64_t batch = after + 1;; ++batch) {
        bool fresh = true;
        for (int32_t k = 0; k < e->n_inputs; ++k)
            for (int32_t i = is_batched(&e->options, k) ? 1 : 0; i < e->inputs[k]->meta.ndim; ++i)
                fresh &= e->inputs[k]->meta.shape[i] != batch;
        if (fresh) return batch;
    }
}

/* A copy of x, in the innermost scope; of its rows over and over where `batch` is not 0. */
static gt_status copy_input(gt_tensor *x, int64_t batch, gt_tensor **out) {
    gt__meta meta;
    int64_t shape[GT_MAX_DIMS];
    memcpy(shape, x->meta.shape, sizeof shape);
    if (batch > 0) shape[0] = batch;
    GT_TRY(gt__meta_make(&meta, x->meta.dtype, x->meta.ndim, shape, WHO));
    gt_tensor *copy = gt__tensor_new(x->ctx, &meta, GT_MEMORY_TEMPORARY);
    if (copy == NULL) return gt_last_error()->status;
    *out = copy;
    if (batch == 0) return gt__op_into(GT__OP_COPY, &x, 1, NULL, copy);
    for (int64_t row = 0; row < batch; ++row) {
        int64_t from = row % x->meta.shape[0];
        gt_tensor *source = gt_slice(x, 0, from, from + 1, 1), *target = source ? gt_slice(copy, 0, row, row + 1, 1) : NULL;
        if (target == NULL) return gt_last_error()->status;
        GT_TRY(gt__op_into(GT__OP_COPY, &source, 1, NULL, target));
    }
    return GT_OK;
}

/* `batch` 0: with the examples' own. */
static gt_status trace_with(export_call *e, int64_t batch, gt__trace *trace) {
    gt_tensor **copies = gt__calloc((size_t)e->n_inputs, sizeof *copies);
    if (copies == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = GT_OK;
    for (int32_t k = 0; k < e->n_inputs && status == GT_OK; ++k)
        status = copy_input(e->inputs[k], is_batched(&e->options, k) ? batch : 0, &copies[k]);
    bool runs = status == GT_OK;
    if (runs) status = gt__trace_forward(trace, e->module, copies, e->n_inputs, gt__onnx_supports);
    gt__free(copies);
    if (!runs || batch == 0 || status != GT_BAD_SHAPE) return status;
    char message[512];
    (void)snprintf(message, sizeof message, "%s", gt_last_error()->message);
    GT_FAIL_HINT(status, "the forward must take any batch size; set the option dynamic_batch to 0 for a model of one",
                 "%s: with a batch of %lld: %s", WHO, (long long)batch, message);
}

static gt_status trace_all(export_call *e) {
    if (!e->options.dynamic_batch) return trace_with(e, 0, &e->trace);
    gt__onnx *g = &e->graph;
    g->batch = batch_after(e, 2); /* so that the first rows are a part of them */
    g->other_batch = batch_after(e, g->batch);
    GT_TRY(trace_with(e, g->batch, &e->trace));
    GT_TRY(trace_with(e, g->other_batch, &e->other));
    g->other = &e->other;
    while (!is_batched(&e->options, g->batched_input)) g->batched_input++;
    return gt__trace_compare(&e->trace, &e->other, g->batch, g->other_batch);
}

/* --- graph -------------------------------------------------------------------------------------------------------------------------------------- */

/* The names of inputs and output, before any other. */
static gt_status name_ends(export_call *e) {
    gt__onnx *g = &e->graph;
    for (int32_t k = 0; k < e->n_inputs; ++k) {
        char number[24];
        (void)snprintf(number, sizeof number, e->n_inputs == 1 ? "input" : "input_%d", (int)k);
        g->value_names[k] = gt__onnx_name(g, e->options.input_names ? e->options.input_names[k] : number);
    }
    GT_TRY(g->status);
    GT_REQUIRE(!gt__onnx_name_taken(g, e->options.output_name), GT_BAD_ARGUMENT, "%s: an input and the output are named \"%s\"", WHO,
               e->options.output_name);
    g->output_name = gt__onnx_name(g, e->options.output_name);
    for (int32_t i = 0; i < e->trace.n_values && g->status == GT_OK; ++i) {
        const char *name = e->trace.values[i].name;
        GT_REQUIRE(name == NULL || !gt__onnx_name_taken(g, name), GT_BAD_ARGUMENT,
                   "%s: \"%s\" names an input or the output, and a parameter too; choose another name in the options", WHO, name);
    }
    const char *kind = gt_module_kind(e->module);
    e->graph_name = gt__onnx_name(g, kind[0] ? kind : "module");
    return g->status;
}

static gt_status write_nodes(export_call *e) {
    gt__onnx *g = &e->graph;
    for (int32_t i = 0; i < e->trace.n_calls && g->status == GT_OK; ++i) {
        g->call = &e->trace.calls[i];
        g->other_call = g->other ? &e->other.calls[i] : NULL;
        gt__onnx_write_call(g);
    }
    g->call = g->other_call = NULL;
    GT_TRY(g->status);
    if (e->trace.values[e->trace.result].kind == GT__TRACE_RESULT) return GT_OK;
    const char *unchanged = gt__onnx_name(g, "Identity"); /* the forward hands on what it was given */
    gt__protobuf_begin(&g->nodes, GT__GRAPH_NODE);
    gt__protobuf_string(&g->nodes, GT__NODE_INPUT, gt__onnx_value(g, e->trace.result));
    gt__protobuf_string(&g->nodes, GT__NODE_OUTPUT, g->output_name);
    gt__protobuf_string(&g->nodes, GT__NODE_NAME, unchanged);
    gt__protobuf_string(&g->nodes, GT__NODE_OP_TYPE, "Identity");
    gt__onnx_end(g);
    return g->status;
}

/* --- model -------------------------------------------------------------------------------------------------------------------------------------- */

/* An axis that depends on the batch has the batch's name, a multiple of it, or nothing where it is something else. */
static void write_dim(const export_call *e, gt__protobuf *p, int64_t size, int64_t other_size) {
    const gt__onnx *g = &e->graph;
    gt__protobuf_begin(p, GT__SHAPE_DIM);
    if (size == other_size) {
        gt__protobuf_int(p, GT__DIM_VALUE, size);
    } else if (size % g->batch == 0 && size / g->batch * g->other_batch == other_size) {
        gt__text name = {0};
        gt_status status = size == g->batch ? gt__text_add(&name, "%s", e->options.batch_name)
                                            : gt__text_add(&name, "%lld*%s", (long long)(size / g->batch), e->options.batch_name);
        if (status == GT_OK)
            gt__protobuf_string(p, GT__DIM_PARAM, name.data);
        else if (p->status == GT_OK)
            p->status = status;
        gt__text_free(&name);
    }
    gt__protobuf_end(p);
}

static void write_value_info(const export_call *e, gt__protobuf *p, uint32_t field, const char *name, int32_t value) {
    const gt__meta *meta = &e->trace.values[value].meta, *other = e->graph.other ? &e->other.values[value].meta : meta;
    gt__protobuf_begin(p, field);
    gt__protobuf_string(p, GT__VALUE_INFO_NAME, name);
    gt__protobuf_begin(p, GT__VALUE_INFO_TYPE);
    gt__protobuf_begin(p, GT__TYPE_TENSOR);
    gt__protobuf_int(p, GT__TYPE_TENSOR_ELEM, gt__onnx_dtype(meta->dtype));
    gt__protobuf_begin(p, GT__TYPE_TENSOR_SHAPE);
    for (int32_t i = 0; i < meta->ndim; ++i) write_dim(e, p, meta->shape[i], other->shape[i]);
    gt__protobuf_end(p);
    gt__protobuf_end(p);
    gt__protobuf_end(p);
    gt__protobuf_end(p);
}

/* Parsers take no message over 2 GiB. */
static gt_status check_size(const export_call *e) {
    uint64_t bytes = e->graph.nodes.bytes.length + e->graph.constants.bytes.length + (1 << 20);
    for (int32_t i = 0; i < e->trace.n_values; ++i)
        if (e->trace.values[i].tensor && e->graph.value_names[i]) bytes += gt_tensor_bytes(e->trace.values[i].tensor);
    GT_REQUIRE(bytes <= INT32_MAX, GT_NOT_SUPPORTED, "%s: the model's weights take %llu bytes; an ONNX file holds 2 GiB at most", WHO,
               (unsigned long long)bytes);
    return GT_OK;
}

static void write_graph(const export_call *e, gt__protobuf *p) {
    const gt__onnx *g = &e->graph;
    gt__protobuf_begin(p, GT__MODEL_GRAPH);
    gt__protobuf_append(p, &g->nodes);
    gt__protobuf_string(p, GT__GRAPH_NAME, e->graph_name);
    gt__protobuf_append(p, &g->constants);
    for (int32_t i = 0; i < e->trace.n_values && p->status == GT_OK; ++i) {
        const gt__trace_value *value = &e->trace.values[i];
        if (value->tensor && g->value_names[i]) gt__onnx_tensor(p, g->value_names[i], &value->meta, value->tensor);
    }
    for (int32_t k = 0; k < e->n_inputs; ++k) write_value_info(e, p, GT__GRAPH_INPUT, g->value_names[k], k);
    write_value_info(e, p, GT__GRAPH_OUTPUT, g->output_name, e->trace.result);
    gt__protobuf_end(p);
}

/* The oldest version of the format that has the opset. */
static int64_t ir_version(int32_t opset) { return opset < 19 ? 8 : opset < 21 ? 9 : opset < 23 ? 10 : 11; }

static gt_status write_model(const export_call *e, const char *path) {
    gt__protobuf p = {0};
    gt__protobuf_int(&p, GT__MODEL_IR_VERSION, ir_version(e->options.opset));
    gt__protobuf_string(&p, GT__MODEL_PRODUCER_NAME, "gtrain");
    gt__protobuf_string(&p, GT__MODEL_PRODUCER_VERSION, gt_version_string());
    write_graph(e, &p);
    gt__protobuf_begin(&p, GT__MODEL_OPSET_IMPORT);
    gt__protobuf_int(&p, GT__OPSET_VERSION, e->options.opset);
    gt__protobuf_end(&p);
    for (int32_t i = 0; i < e->options.n_metadata; ++i) {
        gt__protobuf_begin(&p, GT__MODEL_METADATA_PROPS);
        gt__protobuf_string(&p, GT__ENTRY_KEY, e->options.metadata[2 * i]);
        gt__protobuf_string(&p, GT__ENTRY_VALUE, e->options.metadata[2 * i + 1]);
        gt__protobuf_end(&p);
    }
    gt_status status = p.status;
    if (status == GT_OK) status = gt__replace_file(WHO, path, p.bytes.data, p.bytes.length);
    gt__protobuf_free(&p);
    return status;
}

static gt_status export_to(export_call *e, const char *path) {
    gt__onnx *g = &e->graph;
    GT_TRY(trace_all(e));
    g->ctx = e->module->ctx;
    g->trace = &e->trace;
    g->opset = e->options.opset;
    g->value_names = gt__calloc((size_t)e->trace.n_values, sizeof *g->value_names);
    if (g->value_names == NULL) return GT_OUT_OF_HOST_MEMORY;
    GT_TRY(name_ends(e));
    GT_TRY(write_nodes(e));
    GT_TRY(check_size(e));
    return write_model(e, path);
}

gt_status gt_module_export_onnx(gt_module *module, gt_tensor *const *inputs, int32_t n_inputs, const gt_onnx_options *options,
                                const char *path) {
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE_HANDLE(inputs);
    GT_TRY(gt__tensor_check(module->anchor, WHO));
    GT_REQUIRE(path != NULL && path[0] != '\0', GT_BAD_ARGUMENT, "%s: the path is %s", WHO, path ? "empty" : "NULL");
    GT_REQUIRE(n_inputs >= 1 && (module->n_inputs == 0 || n_inputs == module->n_inputs), GT_BAD_ARGUMENT,
               "%s: %s \"%s\" takes %d inputs, it was given %d", WHO, module->kind_name, module->path, GT__MAX(module->n_inputs, 1),
               (int)n_inputs);
    gt_context *ctx = module->ctx;
    GT_REQUIRE(ctx->observer == NULL, GT_BAD_STATE, "%s: it was called by a forward that is being exported", WHO);
    export_call e = {.module = module, .inputs = inputs, .n_inputs = n_inputs};
    GT_TRY(gt_onnx_options_init(&e.options, sizeof e.options));
    if (options) GT_TRY(gt__options_read(&e.options, sizeof e.options, options, "gt_onnx_options"));
    if (e.options.output_name == NULL) e.options.output_name = "output";
    if (e.options.batch_name == NULL) e.options.batch_name = "batch";
    GT_TRY(check_options(&e.options, n_inputs));
    GT_TRY(check_inputs(&e));
    GT_TRY(gt__scope_begin(ctx)); /* for what is made on the way */
    ctx->no_grad++;
    gt_status status = export_to(&e, path);
    ctx->no_grad--;
    (void)gt_scope_end(ctx);
    gt__onnx_free(&e.graph);
    gt__trace_free(&e.trace);
    gt__trace_free(&e.other);
    return status;
}

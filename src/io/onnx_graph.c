#include "io/onnx_graph.h"
#include "base/json_write.h" /* gt__utf8_character */

#include <stdio.h>

int32_t gt__onnx_dtype(gt_dtype dtype) {
    static const int32_t numbers[GT_DTYPE_COUNT] = {[GT_DTYPE_F32] = 1, [GT_DTYPE_F16] = 10, [GT_DTYPE_BF16] = 16, [GT_DTYPE_F64] = 11,
                                                    [GT_DTYPE_I32] = 6, [GT_DTYPE_I64] = 7,  [GT_DTYPE_U8] = 2};
    return numbers[dtype];
}

/* --- failures ------------------------------------------------------------------------------------------------------------------------------ */

void gt__onnx_fail(gt__onnx *g, gt_status status, const char *hint, const char *format, ...) {
    if (g->status != GT_OK) return;
    char message[512];
    const char *module = g->call && g->call->module ? g->call->module : "";
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    g->status = GT_RAISE_HINT(status, hint, "%s%s%s%s: %s", g->call ? gt__op_table[g->call->op].name : "gt_module_export_onnx",
                              module[0] ? " \"" : "", module, module[0] ? "\"" : "", message);
}

static void note(gt__onnx *g, gt_status status) {
    if (g->status == GT_OK) g->status = status;
}

/* --- names ---------------------------------------------------------------------------------------------------------------------------------- */

bool gt__onnx_name_taken(const gt__onnx *g, const char *name) {
    for (int32_t i = 0; i < g->n_names; ++i)
        if (strcmp(g->names[i], name) == 0) return true;
    return false;
}

/* Whatever is not UTF-8 becomes '?'. */
static void make_valid(char *text) {
    while (*text) {
        size_t n = gt__utf8_character(text);
        if (n == 0) {
            *text = '?';
            n = 1;
        }
        text += n;
    }
}

const char *gt__onnx_name(gt__onnx *g, const char *base) {
    if (g->status != GT_OK) return "";
    if (g->n_names == g->cap_names) {
        int32_t capacity = GT__MAX(g->cap_names * 2, 64);
        char **grown = gt__realloc(g->names, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            note(g, GT_OUT_OF_HOST_MEMORY);
            return "";
        }
        g->names = grown;
        g->cap_names = capacity;
    }
    size_t room = strlen(base) + 24;
    char *name = gt__malloc(room);
    if (name == NULL) {
        note(g, GT_OUT_OF_HOST_MEMORY);
        return "";
    }
    (void)snprintf(name, room, "%s", base);
    make_valid(name);
    size_t length = strlen(name);
    for (int32_t k = g->n_names; gt__onnx_name_taken(g, name); ++k) (void)snprintf(name + length, room - length, "_%d", (int)k);
    g->names[g->n_names++] = name;
    return name;
}

/* "layer1.0.conv1/Conv" */
static const char *name_in_call(gt__onnx *g, const char *what) {
    const char *module = g->call && g->call->module ? g->call->module : "";
    gt__text text = {0};
    if (g->status == GT_OK) note(g, gt__text_add(&text, "%s%s%s", module, module[0] ? "/" : "", what));
    const char *name = g->status == GT_OK ? gt__onnx_name(g, text.data) : "";
    gt__text_free(&text);
    return name;
}

const char *gt__onnx_value(gt__onnx *g, int32_t number) {
    const gt__trace_value *value = &g->trace->values[number];
    if (g->value_names[number] == NULL && value->kind == GT__TRACE_WEIGHT)
        g->value_names[number] = gt__onnx_name(g, value->name);
    else if (g->value_names[number] == NULL && value->kind == GT__TRACE_CONSTANT)
        g->value_names[number] = gt__onnx_name(g, value->tensor->name ? value->tensor->name : "constant");
    else if (g->value_names[number] == NULL)
        gt__onnx_fail(g, GT_INTERNAL, NULL, "a value is used before it is made");
    return g->value_names[number] ? g->value_names[number] : "";
}

const char *gt__onnx_in(gt__onnx *g, int32_t k) {
    return gt__onnx_has(g, k) ? gt__onnx_value(g, g->trace->links[g->call->first_in + k]) : "";
}

/* --- tensors ---------------------------------------------------------------------------------------------------------------------------------- */

static void tensor_begin(gt__protobuf *p, const char *name, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    gt__protobuf_begin(p, GT__GRAPH_INITIALIZER);
    for (int32_t i = 0; i < ndim; ++i) gt__protobuf_int(p, GT__TENSOR_DIMS, shape[i]);
    gt__protobuf_int(p, GT__TENSOR_DATA_TYPE, gt__onnx_dtype(dtype));
    gt__protobuf_string(p, GT__TENSOR_NAME, name);
}

void gt__onnx_tensor(gt__protobuf *p, const char *name, const gt__meta *meta, gt_tensor *tensor) {
    tensor_begin(p, name, meta->dtype, meta->ndim, meta->shape);
    size_t bytes = gt_tensor_bytes(tensor);
    void *data = gt__protobuf_space(p, GT__TENSOR_RAW_DATA, bytes);
    if (data) p->status = gt_tensor_read(tensor, data, bytes);
    gt__protobuf_end(p);
}

const char *gt__onnx_vector(gt__onnx *g, const char *what, const int64_t *values, int32_t count) {
    const char *name = name_in_call(g, what);
    if (g->status != GT_OK) return "";
    const int64_t shape[1] = {count};
    tensor_begin(&g->constants, name, GT_DTYPE_I64, 1, shape);
    void *data = gt__protobuf_space(&g->constants, GT__TENSOR_RAW_DATA, (size_t)count * sizeof *values);
    if (data && count > 0) memcpy(data, values, (size_t)count * sizeof *values);
    gt__protobuf_end(&g->constants);
    note(g, g->constants.status);
    return name;
}

const char *gt__onnx_full(gt__onnx *g, const char *what, gt_dtype dtype, int32_t ndim, const int64_t *shape, double value) {
    const char *name = name_in_call(g, what);
    if (g->status != GT_OK) return "";
    gt_tensor *tensor = gt_tensor_full(g->ctx, dtype, ndim, shape, value); /* in the scope of the export */
    if (tensor == NULL) {
        note(g, gt_last_error()->status);
        return "";
    }
    gt__onnx_tensor(&g->constants, name, &tensor->meta, tensor);
    note(g, g->constants.status);
    return name;
}

const char *gt__onnx_batch(gt__onnx *g) {
    if (g->batch_vector) return g->batch_vector;
    const char *name = gt__onnx_begin(g, GT__ONNX_INNER, "Shape");
    gt__onnx_input(g, gt__onnx_value(g, g->batched_input));
    gt__onnx_int(g, "start", 0);
    gt__onnx_int(g, "end", 1);
    gt__onnx_end(g);
    if (g->status == GT_OK) g->batch_vector = name;
    return name;
}

/* --- nodes -------------------------------------------------------------------------------------------------------------------------------------- */

const char *gt__onnx_begin(gt__onnx *g, gt__onnx_role role, const char *type) {
    const char *name = name_in_call(g, type), *output = name;
    if (role == GT__ONNX_LAST && g->call && g->call->out == g->trace->result) output = g->output_name;
    gt__protobuf_begin(&g->nodes, GT__GRAPH_NODE);
    gt__protobuf_string(&g->nodes, GT__NODE_OUTPUT, output);
    gt__protobuf_string(&g->nodes, GT__NODE_NAME, name);
    gt__protobuf_string(&g->nodes, GT__NODE_OP_TYPE, type);
    return output;
}

void gt__onnx_input(gt__onnx *g, const char *name) { gt__protobuf_string(&g->nodes, GT__NODE_INPUT, name); }

enum { TYPE_FLOAT = 1, TYPE_INT = 2, TYPE_STRING = 3, TYPE_INTS = 7 };

static void attribute_begin(gt__onnx *g, const char *name, int32_t type) {
    gt__protobuf_begin(&g->nodes, GT__NODE_ATTRIBUTE);
    gt__protobuf_string(&g->nodes, GT__ATTRIBUTE_NAME, name);
    gt__protobuf_int(&g->nodes, GT__ATTRIBUTE_TYPE, type);
}

void gt__onnx_int(gt__onnx *g, const char *name, int64_t value) {
    attribute_begin(g, name, TYPE_INT);
    gt__protobuf_int(&g->nodes, GT__ATTRIBUTE_I, value);
    gt__protobuf_end(&g->nodes);
}

void gt__onnx_float(gt__onnx *g, const char *name, double value) {
    attribute_begin(g, name, TYPE_FLOAT);
    gt__protobuf_float(&g->nodes, GT__ATTRIBUTE_F, (float)value);
    gt__protobuf_end(&g->nodes);
}

void gt__onnx_text(gt__onnx *g, const char *name, const char *value) {
    attribute_begin(g, name, TYPE_STRING);
    gt__protobuf_string(&g->nodes, GT__ATTRIBUTE_S, value);
    gt__protobuf_end(&g->nodes);
}

void gt__onnx_ints(gt__onnx *g, const char *name, const int64_t *values, int32_t count) {
    attribute_begin(g, name, TYPE_INTS);
    for (int32_t i = 0; i < count; ++i) gt__protobuf_int(&g->nodes, GT__ATTRIBUTE_INTS, values[i]);
    gt__protobuf_end(&g->nodes);
}

void gt__onnx_end(gt__onnx *g) {
    gt__protobuf_end(&g->nodes);
    note(g, g->nodes.status);
}

const char *gt__onnx_node(gt__onnx *g, gt__onnx_role role, const char *type, int32_t n_in, ...) {
    const char *name = gt__onnx_begin(g, role, type);
    va_list inputs;
    va_start(inputs, n_in);
    for (int32_t k = 0; k < n_in; ++k) gt__onnx_input(g, va_arg(inputs, const char *));
    va_end(inputs);
    gt__onnx_end(g);
    return name;
}

void gt__onnx_free(gt__onnx *g) {
    gt__protobuf_free(&g->nodes);
    gt__protobuf_free(&g->constants);
    for (int32_t i = 0; i < g->n_names; ++i) gt__free(g->names[i]);
    gt__free(g->names);
    gt__free(g->value_names);
}

/* The nodes of an ONNX graph as they are written: names, constants, attributes. What each op becomes is in onnx_ops.c. */
#ifndef GT_IO_ONNX_GRAPH_H
#define GT_IO_ONNX_GRAPH_H

#include "io/onnx_trace.h"
#include "io/protobuf_write.h"

#define GT__ONNX_OPSET_LEAST 17
#define GT__ONNX_OPSET_MOST  23

/* Field numbers of onnx.proto (github.com/onnx/onnx). */
enum {
    GT__MODEL_IR_VERSION = 1,
    GT__MODEL_PRODUCER_NAME = 2,
    GT__MODEL_PRODUCER_VERSION = 3,
    GT__MODEL_GRAPH = 7,
    GT__MODEL_OPSET_IMPORT = 8,
    GT__MODEL_METADATA_PROPS = 14
};
enum { GT__OPSET_VERSION = 2 };
enum { GT__ENTRY_KEY = 1, GT__ENTRY_VALUE = 2 };
enum { GT__GRAPH_NODE = 1, GT__GRAPH_NAME = 2, GT__GRAPH_INITIALIZER = 5, GT__GRAPH_INPUT = 11, GT__GRAPH_OUTPUT = 12 };
enum { GT__NODE_INPUT = 1, GT__NODE_OUTPUT = 2, GT__NODE_NAME = 3, GT__NODE_OP_TYPE = 4, GT__NODE_ATTRIBUTE = 5 };
enum {
    GT__ATTRIBUTE_NAME = 1,
    GT__ATTRIBUTE_F = 2,
    GT__ATTRIBUTE_I = 3,
    GT__ATTRIBUTE_S = 4,
    GT__ATTRIBUTE_INTS = 8,
    GT__ATTRIBUTE_TYPE = 20
};
enum { GT__TENSOR_DIMS = 1, GT__TENSOR_DATA_TYPE = 2, GT__TENSOR_NAME = 8, GT__TENSOR_RAW_DATA = 9 };
enum { GT__VALUE_INFO_NAME = 1, GT__VALUE_INFO_TYPE = 2 };
enum { GT__TYPE_TENSOR = 1, GT__TYPE_TENSOR_ELEM = 1, GT__TYPE_TENSOR_SHAPE = 2, GT__SHAPE_DIM = 1, GT__DIM_VALUE = 1, GT__DIM_PARAM = 2 };

typedef struct gt__onnx {
    gt__protobuf nodes, constants; /* fields of the graph */
    gt_status status;              /* of the first failure; later calls do nothing */
    gt_context *ctx;
    const gt__trace *trace, *other; /* other: the same forward with another batch size; NULL: the sizes are fixed */
    int64_t batch, other_batch;
    int32_t opset;
    int32_t batched_input; /* the first input whose axis 0 is the batch */
    char **names;          /* all that are taken */
    int32_t n_names, cap_names;
    const char **value_names; /* of the trace's values; NULL: not used so far */
    const char *output_name;
    const gt__trace_call *call, *other_call; /* that is being written */
    const char *batch_vector;                /* an i64 vector that holds the batch size; NULL: not needed so far */
} gt__onnx;

int32_t gt__onnx_dtype(gt_dtype dtype); /* the number that ONNX has for it */

/* Reserves a name that begins with `base` and belongs to nothing else, in valid UTF-8; "" after a failure. */
const char *gt__onnx_name(gt__onnx *g, const char *base);
bool gt__onnx_name_taken(const gt__onnx *g, const char *name);
/* The value's name; weights and constants get theirs on first use. */
const char *gt__onnx_value(gt__onnx *g, int32_t value);
void gt__onnx_tensor(gt__protobuf *p, const char *name, const gt__meta *meta, gt_tensor *tensor); /* as an initializer of the graph */
/* GT_NOT_SUPPORTED and the like, in the name of the call that is being written. */
void gt__onnx_fail(gt__onnx *g, gt_status status, const char *hint, const char *format, ...) GT__PRINTF(4, 5);

/* --- the call that is being written */
static inline const gt__trace_value *gt__onnx_in_value(const gt__onnx *g, const gt__trace *trace, const gt__trace_call *call, int32_t k) {
    (void)g;
    int32_t value = trace->links[call->first_in + k];
    return value < 0 ? NULL : &trace->values[value];
}
/* Input k's shape and dtype; the other run's, or again the same where there is just one. */
static inline const gt__meta *gt__onnx_meta(const gt__onnx *g, int32_t k) { return &gt__onnx_in_value(g, g->trace, g->call, k)->meta; }
static inline const gt__meta *gt__onnx_other_meta(const gt__onnx *g, int32_t k) {
    return g->other ? &gt__onnx_in_value(g, g->other, g->other_call, k)->meta : gt__onnx_meta(g, k);
}
static inline bool gt__onnx_has(const gt__onnx *g, int32_t k) { return k < g->call->n_in && g->trace->links[g->call->first_in + k] >= 0; }
const char *gt__onnx_in(gt__onnx *g, int32_t k); /* "" for an optional input that is not there */
static inline const gt__meta *gt__onnx_out_meta(const gt__onnx *g) { return &g->trace->values[g->call->out].meta; }
static inline const gt__meta *gt__onnx_other_out_meta(const gt__onnx *g) {
    return g->other ? &g->other->values[g->other_call->out].meta : gt__onnx_out_meta(g);
}

/* --- nodes. The last node of a call is the one whose output is the call's. Nothing else may begin before the node ends. */
typedef enum gt__onnx_role { GT__ONNX_INNER, GT__ONNX_LAST } gt__onnx_role;
const char *gt__onnx_begin(gt__onnx *g, gt__onnx_role role, const char *type); /* returns the output's name */
void gt__onnx_input(gt__onnx *g, const char *name);
void gt__onnx_int(gt__onnx *g, const char *name, int64_t value);
void gt__onnx_float(gt__onnx *g, const char *name, double value);
void gt__onnx_text(gt__onnx *g, const char *name, const char *value);
void gt__onnx_ints(gt__onnx *g, const char *name, const int64_t *values, int32_t count);
void gt__onnx_end(gt__onnx *g);
/* A whole node without attributes. */
const char *gt__onnx_node(gt__onnx *g, gt__onnx_role role, const char *type, int32_t n_in, ...);

/* --- constants: return their names */
const char *gt__onnx_vector(gt__onnx *g, const char *what, const int64_t *values, int32_t count);
const char *gt__onnx_full(gt__onnx *g, const char *what, gt_dtype dtype, int32_t ndim, const int64_t *shape, double value);
const char *gt__onnx_batch(gt__onnx *g); /* gt__onnx.batch_vector */

/* --- onnx_ops.c */
bool gt__onnx_supports(gt__op_id op);
void gt__onnx_write_call(gt__onnx *g); /* writes the nodes of g->call */
void gt__onnx_free(gt__onnx *g);

#endif

/* Reads ONNX files as far as the tests need, with no code of the library's. */
#ifndef GTRAIN_TESTS_ONNX_READER_H
#define GTRAIN_TESTS_ONNX_READER_H

#include <stddef.h>
#include <stdint.h>

#define ONNX_DIMS 8
#define ONNX_TEXT 96

typedef struct onnx_text {
    const char *data; /* not NUL-terminated */
    size_t size;
} onnx_text;

typedef struct onnx_attribute {
    char name[ONNX_TEXT];
    int64_t i, ints[2 * ONNX_DIMS];
    int32_t n_ints, type;
    float f;
    char s[ONNX_TEXT];
} onnx_attribute;

typedef struct onnx_node {
    char type[ONNX_TEXT], name[ONNX_TEXT], output[ONNX_TEXT];
    char inputs[8][ONNX_TEXT];
    int32_t n_inputs, n_outputs, n_attributes;
    onnx_attribute attributes[8];
} onnx_node;

typedef struct onnx_tensor {
    char name[ONNX_TEXT];
    int64_t dims[ONNX_DIMS];
    int32_t ndim, dtype;
    onnx_text data;
} onnx_tensor;

typedef struct onnx_value {
    char name[ONNX_TEXT];
    int32_t ndim, dtype;
    int64_t dims[ONNX_DIMS];           /* -1: none */
    char params[ONNX_DIMS][ONNX_TEXT]; /* "": none */
} onnx_value;

typedef struct onnx_model {
    char *bytes;
    int64_t ir_version, opset;
    char producer[ONNX_TEXT], graph[ONNX_TEXT];
    onnx_node *nodes;
    onnx_tensor *tensors;
    onnx_value inputs[4], outputs[4];
    char keys[4][ONNX_TEXT], values[4][ONNX_TEXT];
    int32_t n_nodes, n_tensors, n_inputs, n_outputs, n_metadata;
} onnx_model;

/* Reads and checks: every field is whole and known, names are unique, each value is made before it is used, data has the size that dims and dtype say. NULL, or what is
 * wrong. onnx_close follows in any case. */
const char *onnx_open(onnx_model *m, const char *path);
void onnx_close(onnx_model *m);

const onnx_tensor *onnx_find_tensor(const onnx_model *m, const char *name);
const onnx_node *onnx_find_node(const onnx_model *m, const char *type, int32_t which); /* the which-th of a type, from 0 */
const onnx_attribute *onnx_find_attribute(const onnx_node *n, const char *name);
int32_t onnx_count(const onnx_model *m, const char *type);
/* The types of all nodes, "Gemm Relu Gemm". */
const char *onnx_types(const onnx_model *m, char *buffer, size_t size);

#endif

#include "io/onnx_reader.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- wire format ---------------------------------------------------------------------------------------------------------------------------------- */

typedef struct field {
    uint32_t number;
    uint64_t value; /* of a varint or a fixed32 */
    onnx_text data; /* of a length-delimited field */
    int wire;
} field;

static bool varint(onnx_text *at, uint64_t *value) {
    *value = 0;
    for (int shift = 0; at->size > 0 && shift < 64; shift += 7) {
        uint8_t byte = (uint8_t)*at->data++;
        at->size--;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

static bool next(onnx_text *at, field *f) {
    uint64_t key, size = 4;
    if (!varint(at, &key)) return false;
    *f = (field){.number = (uint32_t)(key >> 3), .wire = (int)(key & 7)};
    if (f->wire == 0) return varint(at, &f->value);
    if (f->wire == 2 && !varint(at, &size)) return false;
    if ((f->wire != 2 && f->wire != 5) || size > at->size) return false;
    f->data = (onnx_text){at->data, (size_t)size};
    if (f->wire == 5)
        for (int i = 3; i >= 0; --i) f->value = f->value << 8 | (uint8_t)at->data[i];
    at->data += size;
    at->size -= (size_t)size;
    return true;
}

static void text(char *out, onnx_text in) { (void)snprintf(out, ONNX_TEXT, "%.*s", (int)in.size, in.data ? in.data : ""); }

/* Walks a message; `return` in the body refuses it. */
#define FIELDS(message)                                                                                                                    \
    for (field f; message.size > 0;)                                                                                                       \
        if (!next(&message, &f))                                                                                                           \
            return "a field is cut";                                                                                                       \
        else

/* --- messages --------------------------------------------------------------------------------------------------------------------------------------- */

static const char *read_attribute(onnx_text at, onnx_attribute *a) {
    FIELDS(at) switch (f.number) {
    case 1:
        text(a->name, f.data);
        break;
    case 2:
        memcpy(&a->f, &(uint32_t){(uint32_t)f.value}, 4);
        break;
    case 3:
        a->i = (int64_t)f.value;
        break;
    case 4:
        text(a->s, f.data);
        break;
    case 8:
        if (a->n_ints == 2 * ONNX_DIMS) return "an attribute has too many numbers";
        a->ints[a->n_ints++] = (int64_t)f.value;
        break;
    case 20:
        a->type = (int32_t)f.value;
        break;
    default:
        return "an attribute has an unknown field";
    }
    return a->name[0] && a->type ? NULL : "an attribute lacks name or type";
}

static const char *read_node(onnx_text at, onnx_node *n) {
    const char *wrong;
    FIELDS(at) switch (f.number) {
    case 1:
        if (n->n_inputs == 8) return "a node has too many inputs";
        text(n->inputs[n->n_inputs++], f.data);
        break;
    case 2:
        n->n_outputs++;
        text(n->output, f.data);
        break;
    case 3:
        text(n->name, f.data);
        break;
    case 4:
        text(n->type, f.data);
        break;
    case 5:
        if (n->n_attributes == 8) return "a node has too many attributes";
        if ((wrong = read_attribute(f.data, &n->attributes[n->n_attributes++])) != NULL) return wrong;
        break;
    default:
        return "a node has an unknown field";
    }
    return n->n_outputs == 1 && n->type[0] && n->name[0] ? NULL : "a node lacks type, name or output";
}

static size_t element_size(int32_t dtype) {
    switch (dtype) {
    case 1:
    case 6:
        return 4;
    case 7:
    case 11:
        return 8;
    case 10:
    case 16:
        return 2;
    case 2:
        return 1;
    default:
        return 0;
    }
}

static const char *read_tensor(onnx_text at, onnx_tensor *t) {
    bool has_data = false;
    FIELDS(at) switch (f.number) {
    case 1:
        if (t->ndim == ONNX_DIMS) return "a tensor has too many axes";
        t->dims[t->ndim++] = (int64_t)f.value;
        break;
    case 2:
        t->dtype = (int32_t)f.value;
        break;
    case 8:
        text(t->name, f.data);
        break;
    case 9:
        t->data = f.data, has_data = true;
        break;
    default:
        return "a tensor has an unknown field";
    }
    size_t bytes = element_size(t->dtype);
    for (int32_t i = 0; i < t->ndim; ++i) bytes *= (size_t)t->dims[i];
    return has_data && t->name[0] && element_size(t->dtype) && bytes == t->data.size ? NULL : "a tensor's data is not what its shape says";
}

static const char *read_dim(onnx_text at, onnx_value *v) {
    if (v->ndim == ONNX_DIMS) return "a value has too many axes";
    int32_t i = v->ndim++;
    v->dims[i] = -1;
    FIELDS(at) {
        if (f.number == 1)
            v->dims[i] = (int64_t)f.value;
        else if (f.number == 2)
            text(v->params[i], f.data);
        else
            return "a size has an unknown field";
    }
    return NULL;
}

static const char *read_value(onnx_text at, onnx_value *v) {
    onnx_text type = {0}, tensor = {0}, shape = {0};
    const char *wrong;
    FIELDS(at) {
        if (f.number == 1)
            text(v->name, f.data);
        else if (f.number == 2)
            type = f.data;
        else
            return "a value has an unknown field";
    }
    FIELDS(type) {
        if (f.number != 1) return "a value is no tensor";
        tensor = f.data;
    }
    FIELDS(tensor) {
        if (f.number == 1)
            v->dtype = (int32_t)f.value;
        else if (f.number == 2)
            shape = f.data;
        else
            return "a type has an unknown field";
    }
    FIELDS(shape) {
        if (f.number != 1) return "a shape has an unknown field";
        if ((wrong = read_dim(f.data, v)) != NULL) return wrong;
    }
    return v->name[0] && element_size(v->dtype) ? NULL : "a value lacks name or type";
}

static void *grow(void *list, int32_t count, size_t size) {
    char *grown = realloc(list, ((size_t)count + 1) * size);
    if (grown == NULL) abort();
    memset(grown + (size_t)count * size, 0, size);
    return grown;
}

static const char *read_graph(onnx_text at, onnx_model *m) {
    const char *wrong = NULL;
    FIELDS(at) {
        switch (f.number) {
        case 1:
            m->nodes = grow(m->nodes, m->n_nodes, sizeof *m->nodes);
            wrong = read_node(f.data, &m->nodes[m->n_nodes++]);
            break;
        case 2:
            text(m->graph, f.data);
            break;
        case 5:
            m->tensors = grow(m->tensors, m->n_tensors, sizeof *m->tensors);
            wrong = read_tensor(f.data, &m->tensors[m->n_tensors++]);
            break;
        case 11:
            wrong = m->n_inputs == 4 ? "too many inputs" : read_value(f.data, &m->inputs[m->n_inputs++]);
            break;
        case 12:
            wrong = m->n_outputs == 4 ? "too many outputs" : read_value(f.data, &m->outputs[m->n_outputs++]);
            break;
        default:
            return "the graph has an unknown field";
        }
        if (wrong) return wrong;
    }
    return NULL;
}

static const char *read_pair(onnx_text at, char *key, char *value) {
    FIELDS(at) {
        if (f.number > 2) return "a pair has an unknown field";
        text(f.number == 1 ? key : value, f.data);
    }
    return NULL;
}

static const char *read_opset(onnx_text at, int64_t *version) {
    FIELDS(at) {
        if (f.number != 2) return "an opset has an unknown field";
        *version = (int64_t)f.value;
    }
    return NULL;
}

static const char *read_model(onnx_text at, onnx_model *m) {
    const char *wrong = NULL;
    FIELDS(at) {
        switch (f.number) {
        case 1:
            m->ir_version = (int64_t)f.value;
            break;
        case 2:
            text(m->producer, f.data);
            break;
        case 3:
            break;
        case 7:
            wrong = read_graph(f.data, m);
            break;
        case 8:
            wrong = read_opset(f.data, &m->opset);
            break;
        case 14:
            wrong = m->n_metadata == 4 ? "too many pairs" : read_pair(f.data, m->keys[m->n_metadata], m->values[m->n_metadata]);
            m->n_metadata++;
            break;
        default:
            return "the model has an unknown field";
        }
        if (wrong) return wrong;
    }
    return NULL;
}

/* --- what must be true of a graph ------------------------------------------------------------------------------------------------------------------ */

static bool defined_before(const onnx_model *m, const char *name, int32_t n_nodes) {
    for (int32_t i = 0; i < m->n_inputs; ++i)
        if (strcmp(m->inputs[i].name, name) == 0) return true;
    for (int32_t i = 0; i < n_nodes; ++i)
        if (strcmp(m->nodes[i].output, name) == 0) return true;
    return onnx_find_tensor(m, name) != NULL;
}

static int32_t times_made(const onnx_model *m, const char *name) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_inputs; ++i) n += strcmp(m->inputs[i].name, name) == 0;
    for (int32_t i = 0; i < m->n_nodes; ++i) n += strcmp(m->nodes[i].output, name) == 0;
    for (int32_t i = 0; i < m->n_tensors; ++i) n += strcmp(m->tensors[i].name, name) == 0;
    return n;
}

static const char *check_graph(const onnx_model *m) {
    if (m->ir_version == 0 || m->opset == 0 || m->graph[0] == '\0' || m->n_outputs == 0)
        return "the model lacks version, opset, name or output";
    for (int32_t i = 0; i < m->n_nodes; ++i) {
        for (int32_t k = 0; k < m->nodes[i].n_inputs; ++k)
            if (m->nodes[i].inputs[k][0] && !defined_before(m, m->nodes[i].inputs[k], i)) return "a value is used before it is made";
        for (int32_t k = 0; k < i; ++k)
            if (strcmp(m->nodes[i].name, m->nodes[k].name) == 0) return "two nodes have one name";
        if (times_made(m, m->nodes[i].output) != 1) return "two values have one name";
    }
    for (int32_t i = 0; i < m->n_tensors; ++i)
        if (times_made(m, m->tensors[i].name) != 1) return "two values have one name";
    for (int32_t i = 0; i < m->n_outputs; ++i)
        if (!defined_before(m, m->outputs[i].name, m->n_nodes)) return "an output is not made";
    return NULL;
}

const char *onnx_open(onnx_model *m, const char *path) {
    *m = (onnx_model){0};
    FILE *file = fopen(path, "rb");
    if (file == NULL) return "there is no such file";
    (void)fseek(file, 0, SEEK_END);
    long size = ftell(file);
    (void)fseek(file, 0, SEEK_SET);
    m->bytes = malloc((size_t)size + 1);
    bool whole = m->bytes && fread(m->bytes, 1, (size_t)size, file) == (size_t)size;
    (void)fclose(file);
    if (!whole) return "the file cannot be read";
    const char *wrong = read_model((onnx_text){m->bytes, (size_t)size}, m);
    return wrong ? wrong : check_graph(m);
}

void onnx_close(onnx_model *m) {
    free(m->bytes);
    free(m->nodes);
    free(m->tensors);
    *m = (onnx_model){0};
}

/* --- looking things up -------------------------------------------------------------------------------------------------------------------------------- */

const onnx_tensor *onnx_find_tensor(const onnx_model *m, const char *name) {
    for (int32_t i = 0; i < m->n_tensors; ++i)
        if (strcmp(m->tensors[i].name, name) == 0) return &m->tensors[i];
    return NULL;
}

const onnx_node *onnx_find_node(const onnx_model *m, const char *type, int32_t which) {
    for (int32_t i = 0; i < m->n_nodes; ++i)
        if (strcmp(m->nodes[i].type, type) == 0 && which-- == 0) return &m->nodes[i];
    return NULL;
}

const onnx_attribute *onnx_find_attribute(const onnx_node *n, const char *name) {
    for (int32_t i = 0; n && i < n->n_attributes; ++i)
        if (strcmp(n->attributes[i].name, name) == 0) return &n->attributes[i];
    return NULL;
}

int32_t onnx_count(const onnx_model *m, const char *type) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_nodes; ++i) n += strcmp(m->nodes[i].type, type) == 0;
    return n;
}

const char *onnx_types(const onnx_model *m, char *buffer, size_t size) {
    buffer[0] = '\0';
    for (int32_t i = 0; i < m->n_nodes; ++i) {
        size_t used = strlen(buffer);
        (void)snprintf(buffer + used, size - used, "%s%s", i ? " " : "", m->nodes[i].type);
    }
    return buffer;
}

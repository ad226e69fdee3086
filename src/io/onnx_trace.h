/* A forward written down: which ops ran on which values. What ONNX files are made from.
 *
 * Values are known by the memory they are in, not by their handles, which are used again: storages are numbered and never share a number, so a storage, a place in
 * it and a layout are one value. Ops that only change where a value lies leave nothing behind. */
#ifndef GT_IO_ONNX_TRACE_H
#define GT_IO_ONNX_TRACE_H

#include "core/core.h"

typedef enum gt__trace_kind {
    GT__TRACE_INPUT,
    GT__TRACE_WEIGHT,   /* a parameter or buffer of the module */
    GT__TRACE_CONSTANT, /* anything else that no op of the forward made */
    GT__TRACE_RESULT
} gt__trace_kind;

typedef struct gt__trace_value {
    gt__meta meta;
    gt__trace_kind kind;
    gt_tensor *tensor; /* weights and constants, counted; else NULL */
    char *name;        /* weights: the dotted name in the module; else NULL */
} gt__trace_value;

typedef struct gt__trace_call {
    gt__op_id op;
    int32_t n_in;
    int32_t first_in; /* in `links` */
    int32_t out;      /* the value of its first output; by-products are for backward */
    gt__attrs attr;
    const char *module; /* the context's string, or NULL */
} gt__trace_call;

typedef struct gt__trace_key {
    uint64_t storage;
    ptrdiff_t offset; /* bytes */
    gt__meta meta;
    int32_t value;
} gt__trace_key;

typedef struct gt__trace {
    gt__observer observer; /* first: what core calls */
    bool (*supported)(gt__op_id op);
    gt_context *ctx;
    uint64_t rng_seed, rng_offset; /* of the context, before and after */
    gt_status status;              /* of the first failure: a caller's forward may go on after it */
    gt__text message;
    gt__trace_value *values; /* the inputs, then the weights, then in the order of their making */
    gt__trace_key *keys;
    gt__trace_call *calls;
    int32_t *links; /* numbers of values; -1: an optional input that is not there */
    int32_t n_values, cap_values, n_keys, cap_keys, n_calls, cap_calls, n_links, cap_links;
    int32_t n_inputs;
    int32_t result;
} gt__trace;

/* Runs the module's forward in evaluation mode, without records, and writes it down. The module's modes and the context's random numbers stay as they are. `trace` is zero before, and
 * is freed by the caller after success and failure alike. NOT_SUPPORTED, naming the op, for what is not in `supported` and for values that are read on the host, changed in
 * place or drawn. */
gt_status gt__trace_forward(gt__trace *trace, gt_module *module, gt_tensor *const *inputs, int32_t n_inputs,
                            bool (*supported)(gt__op_id op));
void gt__trace_free(gt__trace *trace);

/* GT_OK if both ran the same ops on the same values; shapes, and numbers that belong to ops, may differ. `batch` and `other_batch` are for the message. */
gt_status gt__trace_compare(const gt__trace *trace, const gt__trace *other, int64_t batch, int64_t other_batch);

#endif

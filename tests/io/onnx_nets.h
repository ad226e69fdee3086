/* Modules that the tests of the ONNX export write: networks, and one module for each op. */
#ifndef GTRAIN_TESTS_ONNX_NETS_H
#define GTRAIN_TESTS_ONNX_NETS_H

#include <gtrain/gtrain.h>

#define NET_MOST_INPUTS 2

typedef struct net_input {
    gt_dtype dtype;
    int32_t ndim;
    int64_t shape[GT_MAX_DIMS]; /* axis 0 is the batch of the example */
    double low, high;           /* of its values */
} net_input;

typedef struct net {
    const char *name;
    gt_module *(*make)(gt_context *ctx);
    gt_nn_forward_fn forward; /* instead of `make`: a custom module without parameters */
    int32_t n_inputs;
    net_input inputs[NET_MOST_INPUTS];
    int32_t f32_only; /* its ops want f32 where the input is a half */
} net;

extern const net networks[];
extern const int32_t n_networks;
extern const net op_nets[]; /* small ones that have each op that can be written, and each way of writing it */
extern const int32_t n_op_nets;

const net *net_named(const char *name); /* of both lists; NULL: none */
gt_module *net_make(const net *n, gt_context *ctx);
/* An input of `rows` rows, or as many as the example has where `rows` is 0, in the innermost scope. */
gt_tensor *net_input_make(const net *n, int32_t k, gt_context *ctx, int64_t rows);

/* A module whose forward is `forward`. */
gt_module *module_of(gt_context *ctx, gt_nn_forward_fn forward, int32_t n_inputs);

#endif

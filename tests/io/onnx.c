/* What gt_module_export_onnx writes. That ONNX Runtime computes the same from it is tested by onnx_check.py, where that is installed. */
#include "harness/test.h"
#include "io/onnx_nets.h"
#include "io/onnx_reader.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define SHAPE(...)                                                                                                                         \
    (const int64_t[]) { __VA_ARGS__ }

static void open_model(onnx_model *m, const char *path) {
    const char *wrong = onnx_open(m, path);
    if (wrong) FAIL("%s: %s", path, wrong);
}

static gt_onnx_options options(void) {
    gt_onnx_options o;
    CHECK_OK(gt_onnx_options_init(&o, sizeof o));
    return o;
}

/* Writes a net from its example and reads it again. */
static void export_to(const char *path, gt_module *module, const net *n, const gt_onnx_options *o, onnx_model *m) {
    gt_context *ctx = gt_module_context(module);
    gt_tensor *inputs[NET_MOST_INPUTS];
    CHECK_OK(gt_scope_begin(ctx));
    for (int32_t k = 0; k < n->n_inputs; ++k) inputs[k] = CHECK_TENSOR(net_input_make(n, k, ctx, 0));
    CHECK_OK(gt_module_export_onnx(module, inputs, n->n_inputs, o, path));
    CHECK_OK(gt_scope_end(ctx));
    open_model(m, path);
}

static void export_net(test_case *t, gt_module *module, const net *n, const gt_onnx_options *o, onnx_model *m) {
    export_to(test_temp_path(t, "net.onnx"), module, n, o, m);
}

static void export_named(test_case *t, const char *name, const gt_onnx_options *o, onnx_model *m) {
    const net *n = net_named(name);
    gt_module *module = net_make(n, test_context(t));
    CHECK(module != NULL);
    export_net(t, module, n, o, m);
    gt_module_destroy(module);
}

static void check_ints(const onnx_node *n, const char *name, int32_t count, const int64_t *values) {
    const onnx_attribute *a = onnx_find_attribute(n, name);
    CHECK(a != NULL);
    CHECK_EQ_INT(a->n_ints, count);
    for (int32_t i = 0; i < count; ++i) CHECK_EQ_INT(a->ints[i], values[i]);
}

static int64_t int_of(const onnx_node *n, const char *name) {
    const onnx_attribute *a = onnx_find_attribute(n, name);
    CHECK(a != NULL);
    return a->i;
}

/* The numbers of an i64 vector that is input k of a node. */
static void check_vector(const onnx_model *m, const onnx_node *n, int32_t k, int32_t count, const int64_t *values) {
    CHECK(n != NULL && n->n_inputs > k);
    const onnx_tensor *tensor = onnx_find_tensor(m, n->inputs[k]);
    CHECK(tensor != NULL && tensor->ndim == 1);
    CHECK_EQ_INT(tensor->dims[0], count);
    for (int32_t i = 0; i < count; ++i) {
        int64_t value;
        memcpy(&value, tensor->data.data + (size_t)i * sizeof value, sizeof value);
        CHECK_EQ_INT(value, values[i]);
    }
}

/* A weight in the file holds what gt_tensor_read gives. */
static void check_weight(const onnx_model *m, gt_module *module, const char *name) {
    gt_tensor *tensor;
    CHECK_OK(gt_module_find(module, name, &tensor));
    const onnx_tensor *written = onnx_find_tensor(m, name);
    CHECK(written != NULL);
    CHECK_EQ_INT(written->ndim, gt_tensor_ndim(tensor));
    for (int32_t i = 0; i < written->ndim; ++i) CHECK_EQ_INT(written->dims[i], gt_tensor_shape(tensor)[i]);
    size_t bytes = gt_tensor_bytes(tensor);
    CHECK_EQ_INT(written->data.size, bytes);
    char *data = malloc(bytes);
    CHECK_OK(gt_tensor_read(tensor, data, bytes));
    CHECK(memcmp(data, written->data.data, bytes) == 0);
    free(data);
}

/* --- networks ------------------------------------------------------------------------------------------------------------------------------------ */

TEST_DEVICES(unit, onnx_mlp_is_its_layers) {
    const net *n = net_named("mlp");
    gt_module *module = net_make(n, test_context(t));
    onnx_model m;
    char types[256];
    export_net(t, module, n, NULL, &m);
    CHECK_EQ_INT(m.opset, 17);
    CHECK_EQ_INT(m.ir_version, 8);
    CHECK_EQ_STR(m.producer, "gtrain");
    CHECK_EQ_STR(m.graph, "Sequential");
    CHECK_EQ_STR(onnx_types(&m, types, sizeof types), "Gemm Relu Gemm Mul Erf Mul Add Mul Gemm");
    const onnx_node *first = onnx_find_node(&m, "Gemm", 0);
    CHECK_EQ_STR(first->name, "0/Gemm");
    CHECK_EQ_STR(first->inputs[0], "input");
    CHECK_EQ_STR(first->inputs[1], "0.weight");
    CHECK_EQ_STR(first->inputs[2], "0.bias");
    CHECK_EQ_INT(int_of(first, "transB"), 1);
    CHECK_EQ_STR(onnx_find_node(&m, "Gemm", 2)->output, "output");
    CHECK_EQ_INT(m.n_tensors, 6 + 3); /* weights, and gelu's numbers */
    check_weight(&m, module, "0.weight");
    check_weight(&m, module, "6.bias");
    onnx_close(&m);
    gt_module_destroy(module);
}

TEST_DEVICES(unit, onnx_writes_gelu_as_one_node_since_opset_20) {
    onnx_model m;
    char types[256];
    gt_onnx_options o = options();
    o.opset = 20;
    export_named(t, "mlp", &o, &m);
    CHECK_EQ_INT(m.opset, 20);
    CHECK_EQ_STR(onnx_types(&m, types, sizeof types), "Gemm Relu Gemm Gelu Gemm");
    CHECK_EQ_STR(onnx_find_attribute(onnx_find_node(&m, "Gelu", 0), "approximate")->s, "none");
    onnx_close(&m);
}

TEST_DEVICES(unit, onnx_weights_of_convolutions_are_row_major) {
    const net *n = net_named("cnn");
    gt_module *module = net_make(n, test_context(t));
    onnx_model m;
    char types[256];
    export_net(t, module, n, NULL, &m);
    CHECK_EQ_STR(onnx_types(&m, types, sizeof types), "Conv Relu Conv Relu MaxPool Flatten Gemm Relu Gemm");
    check_weight(&m, module, "2.weight"); /* [64,32,3,3], which is channels-last in memory */
    const onnx_node *conv = onnx_find_node(&m, "Conv", 1);
    check_ints(conv, "kernel_shape", 2, SHAPE(3, 3));
    check_ints(conv, "strides", 2, SHAPE(1, 1));
    check_ints(conv, "pads", 4, SHAPE(0, 0, 0, 0));
    CHECK_EQ_INT(int_of(conv, "group"), 1);
    check_ints(onnx_find_node(&m, "MaxPool", 0), "strides", 2, SHAPE(2, 2));
    onnx_close(&m);
    gt_module_destroy(module);
}

TEST_DEVICES(unit, onnx_resnet_has_torchvisions_names) {
    const net *n = net_named("resnet18");
    gt_module *module = net_make(n, test_context(t));
    onnx_model m;
    export_net(t, module, n, NULL, &m);
    CHECK_EQ_INT(onnx_count(&m, "Conv"), 20);
    CHECK_EQ_INT(onnx_count(&m, "BatchNormalization"), 20);
    CHECK_EQ_INT(onnx_count(&m, "Add"), 8);
    CHECK_EQ_INT(onnx_count(&m, "Relu"), 17);
    CHECK_EQ_INT(onnx_count(&m, "GlobalAveragePool"), 1);
    CHECK_EQ_INT(m.n_tensors, 62 + 40); /* parameters and running statistics, but not num_batches_tracked */
    check_weight(&m, module, "layer1.0.bn1.running_var");
    check_weight(&m, module, "layer4.1.conv2.weight");
    bool named = false;
    for (int32_t i = 0; i < m.n_nodes; ++i) named |= strcmp(m.nodes[i].name, "layer2.0.downsample.0/Conv") == 0;
    CHECK(named);
    const onnx_node *norm = onnx_find_node(&m, "BatchNormalization", 0);
    CHECK_EQ_STR(norm->inputs[3], "bn1.running_mean");
    CHECK_NEAR(onnx_find_attribute(norm, "epsilon")->f, 1e-5, 1e-9);
    onnx_close(&m);
    gt_module_destroy(module);
}

TEST_DEVICES(unit, onnx_each_op_is_well_formed) {
    static const int32_t opsets[] = {17, 18, 20, 23};
    const char *path = test_temp_path(t, "net.onnx");
    gt_context *ctx = test_context(t);
    for (int32_t i = 0; i < n_op_nets; ++i) {
        for (size_t k = 0; k < sizeof opsets / sizeof *opsets; ++k) {
            gt_module *module = net_make(&op_nets[i], ctx);
            onnx_model m;
            gt_onnx_options o = options();
            o.opset = opsets[k];
            o.dynamic_batch = k % 2;
            export_to(path, module, &op_nets[i], &o, &m);
            CHECK(m.n_nodes > 0);
            CHECK_EQ_STR(m.outputs[0].name, "output");
            onnx_close(&m);
            gt_module_destroy(module);
        }
    }
}

TEST_DEVICES(unit, onnx_ops_have_their_attributes) {
    onnx_model m;
    export_named(t, "conv", NULL, &m);
    const onnx_node *n = onnx_find_node(&m, "Conv", 0);
    check_ints(n, "kernel_shape", 2, SHAPE(2, 3));
    check_ints(n, "strides", 2, SHAPE(2, 1));
    check_ints(n, "pads", 4, SHAPE(1, 2, 1, 2)); /* both beginnings, then both ends */
    check_ints(n, "dilations", 2, SHAPE(1, 2));
    CHECK_EQ_INT(int_of(n, "group"), 3);
    onnx_close(&m);

    export_named(t, "pools", NULL, &m);
    n = onnx_find_node(&m, "AveragePool", 1);
    check_ints(n, "kernel_shape", 2, SHAPE(3, 2));
    check_ints(n, "strides", 2, SHAPE(1, 2));
    CHECK_EQ_INT(int_of(onnx_find_node(&m, "AveragePool", 0), "count_include_pad"), 1);
    CHECK_EQ_INT(int_of(n, "count_include_pad"), 0);
    CHECK_EQ_INT(int_of(onnx_find_node(&m, "Concat", 0), "axis"), 1);
    onnx_close(&m);

    export_named(t, "pad", NULL, &m);
    check_vector(&m, onnx_find_node(&m, "Pad", 0), 1, 6, SHAPE(0, 1, 0, 0, 2, 1));
    onnx_close(&m);
    export_named(t, "permute", NULL, &m);
    check_ints(onnx_find_node(&m, "Transpose", 0), "perm", 3, SHAPE(2, 0, 1));
    onnx_close(&m);
    export_named(t, "slice", NULL, &m);
    n = onnx_find_node(&m, "Slice", 0);
    for (int32_t k = 1; k < 5; ++k) check_vector(&m, n, k, 1, SHAPE(k == 2 ? INT64_MAX : k == 4 ? 2 : 1)); /* 1 to the end in steps of 2 */
    onnx_close(&m);
    export_named(t, "layer_norm", NULL, &m);
    n = onnx_find_node(&m, "LayerNormalization", 0);
    CHECK_EQ_INT(int_of(n, "axis"), -1);
    CHECK_NEAR(onnx_find_attribute(n, "epsilon")->f, 1e-3, 1e-9);
    onnx_close(&m);

    gt_onnx_options o = options();
    export_named(t, "max", &o, &m); /* the axes became an input in opset 18 */
    n = onnx_find_node(&m, "ReduceMax", 0);
    check_ints(n, "axes", 2, SHAPE(0, 2));
    CHECK_EQ_INT(int_of(n, "keepdims"), 0);
    onnx_close(&m);
    o.opset = 18;
    export_named(t, "max", &o, &m);
    n = onnx_find_node(&m, "ReduceMax", 0);
    CHECK(onnx_find_attribute(n, "axes") == NULL);
    check_vector(&m, n, 1, 2, SHAPE(0, 2));
    onnx_close(&m);
}

TEST_DEVICES(unit, onnx_half_parameters_stay_halves) {
    static const gt_dtype dtypes[] = {GT_DTYPE_F16, GT_DTYPE_BF16};
    gt_context *ctx = test_context(t);
    for (int i = 0; i < 2; ++i) {
        gt_module *module = net_make(net_named("resnet18"), ctx);
        CHECK_OK(gt_module_to_dtype(module, dtypes[i]));
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *x = CHECK_TENSOR(gt_tensor_uniform(ctx, dtypes[i], 4, SHAPE(1, 3, 32, 32), -1, 1));
        gt_onnx_options o = options();
        const char *path = test_temp_path(t, i ? "bf16.onnx" : "f16.onnx");
        if (i == 1) { /* ONNX's convolution knows bf16 since opset 22 */
            CHECK_STATUS(gt_module_export_onnx(module, &x, 1, &o, path), GT_NOT_SUPPORTED);
            CHECK_ERROR_HAS("conv2d \"conv1\": ONNX has no bf16");
            o.opset = 22;
        }
        CHECK_OK(gt_module_export_onnx(module, &x, 1, &o, path));
        onnx_model m;
        open_model(&m, path);
        const int32_t number = i ? 16 : 10;
        CHECK_EQ_INT(m.inputs[0].dtype, number);
        CHECK_EQ_INT(m.outputs[0].dtype, number);
        CHECK_EQ_INT(onnx_find_tensor(&m, "conv1.weight")->dtype, number);
        CHECK_EQ_INT(onnx_find_tensor(&m, "bn1.weight")->dtype, 1);
        check_weight(&m, module, "conv1.weight");
        onnx_close(&m);
        CHECK_OK(gt_scope_end(ctx));
        gt_module_destroy(module);
    }
}

/* --- batch axis, names, metadata ------------------------------------------------------------------------------------------------------------------------ */

TEST_DEVICES(unit, onnx_names_the_batch_axis) {
    onnx_model m;
    export_named(t, "cnn", NULL, &m);
    CHECK_EQ_INT(m.n_inputs, 1);
    CHECK_EQ_STR(m.inputs[0].name, "input");
    CHECK_EQ_INT(m.inputs[0].dtype, 1);
    CHECK_EQ_INT(m.inputs[0].ndim, 4);
    CHECK_EQ_STR(m.inputs[0].params[0], "batch");
    CHECK_EQ_INT(m.inputs[0].dims[1], 1);
    CHECK_EQ_INT(m.inputs[0].dims[3], 12);
    CHECK_EQ_STR(m.outputs[0].params[0], "batch");
    CHECK_EQ_INT(m.outputs[0].dims[1], 10);
    onnx_close(&m);

    gt_onnx_options o = options();
    const char *const names[] = {"image"}, *const metadata[] = {"classes", "a,b", "note", ""};
    o.input_names = names;
    o.output_name = "scores";
    o.batch_name = "N";
    o.metadata = metadata;
    o.n_metadata = 2;
    export_named(t, "cnn", &o, &m);
    CHECK_EQ_STR(m.inputs[0].name, "image");
    CHECK_EQ_STR(m.inputs[0].params[0], "N");
    CHECK_EQ_STR(m.outputs[0].name, "scores");
    CHECK_EQ_INT(m.n_metadata, 2);
    CHECK_EQ_STR(m.keys[0], "classes");
    CHECK_EQ_STR(m.values[0], "a,b");
    CHECK_EQ_STR(m.values[1], "");
    onnx_close(&m);

    o.dynamic_batch = 0;
    export_named(t, "cnn", &o, &m);
    CHECK_EQ_INT(m.inputs[0].dims[0], 3);
    CHECK_EQ_STR(m.inputs[0].params[0], "");
    CHECK_EQ_INT(m.outputs[0].dims[0], 3);
    onnx_close(&m);
}

TEST_DEVICES(unit, onnx_reshapes_leave_the_batch_open) {
    onnx_model m;
    export_named(t, "reshape_joins_batch", NULL, &m);
    check_vector(&m, onnx_find_node(&m, "Reshape", 0), 1, 2, SHAPE(-1, 3));
    CHECK_EQ_STR(m.outputs[0].params[0], "4*batch");
    onnx_close(&m);
    export_named(t, "reshape_copies_batch", NULL, &m);
    check_vector(&m, onnx_find_node(&m, "Reshape", 0), 1, 3, SHAPE(0, 2, 6));
    onnx_close(&m);
    gt_onnx_options o = options();
    o.dynamic_batch = 0;
    export_named(t, "reshape_joins_batch", &o, &m);
    check_vector(&m, onnx_find_node(&m, "Reshape", 0), 1, 2, SHAPE(12, 3));
    onnx_close(&m);
}

TEST_DEVICES(unit, onnx_expands_to_the_batch_of_the_input) {
    onnx_model m;
    char types[256];
    export_named(t, "expand_to_batch", NULL, &m); /* [1,4,3] to [2, 3 * batch, 4, 3] */
    CHECK_EQ_STR(onnx_types(&m, types, sizeof types), "Slice Shape Mul Concat Expand");
    CHECK_EQ_STR(onnx_find_node(&m, "Shape", 0)->inputs[0], "input");
    CHECK_EQ_INT(int_of(onnx_find_node(&m, "Shape", 0), "end"), 1);
    check_vector(&m, onnx_find_node(&m, "Mul", 0), 1, 1, SHAPE(3));
    check_vector(&m, onnx_find_node(&m, "Concat", 0), 0, 1, SHAPE(2));
    check_vector(&m, onnx_find_node(&m, "Concat", 0), 2, 2, SHAPE(4, 3));
    onnx_close(&m);
    export_named(t, "expand", NULL, &m); /* the batch is there already */
    CHECK_EQ_STR(onnx_types(&m, types, sizeof types), "Slice Expand");
    check_vector(&m, onnx_find_node(&m, "Expand", 0), 1, 3, SHAPE(1, 5, 3));
    onnx_close(&m);
}

TEST_DEVICES(unit, onnx_cuts_of_the_batch_count_from_where_they_are_fixed) {
    onnx_model m;
    export_named(t, "slice_batch", NULL, &m);
    check_vector(&m, onnx_find_node(&m, "Slice", 0), 1, 1, SHAPE(1));
    check_vector(&m, onnx_find_node(&m, "Slice", 0), 2, 1, SHAPE(INT64_MAX));
    onnx_close(&m);
    export_named(t, "slice_batch_end", NULL, &m);
    check_vector(&m, onnx_find_node(&m, "Slice", 0), 1, 1, SHAPE(-2));
    check_vector(&m, onnx_find_node(&m, "Slice", 0), 2, 1, SHAPE(-1));
    onnx_close(&m);
}

/* A mask [T,T] of the same size for every batch, beside scores [N,T,T]. */
TEST_DEVICES(unit, onnx_inputs_without_a_batch_axis_keep_their_size) {
    gt_context *ctx = test_context(t);
    const net *n = net_named("add");
    gt_module *module = net_make(n, ctx);
    gt_onnx_options o = options();
    const int32_t batched[] = {1, 0};
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *inputs[] = {CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 3, SHAPE(5, 4, 4))),
                           CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, SHAPE(4, 4)))};
    const char *path = test_temp_path(t, "mask.onnx");
    CHECK_STATUS(gt_module_export_onnx(module, inputs, 2, &o, path), GT_BAD_SHAPE);
    CHECK_ERROR_HAS("input 0 has a batch of 5, input 1 one of 4");
    o.batched = batched;
    CHECK_OK(gt_module_export_onnx(module, inputs, 2, &o, path));
    onnx_model m;
    open_model(&m, path);
    CHECK_EQ_STR(m.inputs[0].name, "input_0");
    CHECK_EQ_STR(m.inputs[0].params[0], "batch");
    CHECK_EQ_STR(m.inputs[1].name, "input_1");
    CHECK_EQ_INT(m.inputs[1].dims[0], 4);
    onnx_close(&m);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(module);
}

static gt_tensor *tied_forward(void *user, gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)user, (void)n;
    gt_tensor *w, *b;
    if (gt_module_find(m, "w", &w) != GT_OK || gt_module_find(m, "tied", &b) != GT_OK) return NULL;
    return gt_linear(gt_linear(in[0], w, NULL), b, NULL);
}

TEST_DEVICES(unit, onnx_tied_weights_are_written_once) {
    gt_context *ctx = test_context(t);
    gt_module *module = module_of(ctx, tied_forward, 1);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *w = CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, 2, SHAPE(4, 4), -1, 1));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, SHAPE(2, 4)));
    CHECK_OK(gt_module_add_parameter(module, "w", w, 0));
    CHECK_OK(gt_module_add_parameter(module, "tied", w, 0));
    const char *path = test_temp_path(t, "tied.onnx");
    CHECK_OK(gt_module_export_onnx(module, &x, 1, NULL, path));
    onnx_model m;
    open_model(&m, path);
    CHECK_EQ_INT(m.n_tensors, 1);
    CHECK_EQ_STR(onnx_find_node(&m, "Gemm", 1)->inputs[1], "w");
    onnx_close(&m);

    gt_onnx_options o = options();
    o.output_name = "w"; /* a parameter has it */
    CHECK_STATUS(gt_module_export_onnx(module, &x, 1, &o, path), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("\"w\" names an input or the output, and a parameter too");
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(module);
}

/* --- what it leaves alone ------------------------------------------------------------------------------------------------------------------------------ */

TEST_DEVICES(unit, onnx_leaves_modes_statistics_and_random_numbers) {
    gt_context *ctx = test_context(t);
    gt_module *dropout = gt_nn_dropout(ctx, 0.5);
    gt_module *layers[] = {gt_nn_conv2d(ctx, 3, 4, 3, NULL), gt_nn_batch_norm(ctx, 4, NULL), dropout};
    gt_module *module = gt_nn_sequential_from(ctx, layers, 3);
    CHECK(module != NULL);
    CHECK_OK(gt_module_set_training(dropout, 0));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, 4, SHAPE(2, 3, 5, 5), -1, 1));
    gt_tensor *tracked, *mean;
    float before[4], after[4], drawn[2][4];
    double batches;
    CHECK_OK(gt_module_find(module, "1.running_mean", &mean));
    CHECK_OK(gt_tensor_read(mean, before, sizeof before));
    for (int i = 0; i < 2; ++i) { /* the same draw with and without an export before it */
        CHECK_OK(gt_random_seed(ctx, 7));
        if (i) CHECK_OK(gt_module_export_onnx(module, &x, 1, NULL, test_temp_path(t, "net.onnx")));
        CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, 1, SHAPE(4), 0, 1)), drawn[i], sizeof drawn[i]));
    }
    CHECK(memcmp(drawn[0], drawn[1], sizeof drawn[0]) == 0);
    CHECK_OK(gt_tensor_read(mean, after, sizeof after));
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_OK(gt_module_find(module, "1.num_batches_tracked", &tracked));
    CHECK_OK(gt_tensor_item(tracked, &batches));
    CHECK_EQ_INT(batches, 0);
    CHECK_EQ_INT(gt_module_training(module), 1);
    CHECK_EQ_INT(gt_module_training(layers[1]), 1);
    CHECK_EQ_INT(gt_module_training(dropout), 0);
    CHECK_EQ_INT(gt_grad_enabled(ctx), 1);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(module);
}

/* What gt_module_export_onnx refuses, and that a refusal leaves everything as it was. */
#include "harness/test.h"
#include "io/onnx_nets.h"
#include "io/onnx_reader.h"
#include "unit/fake_device.h"

#include <stdio.h>
#include <stdlib.h>

#define SHAPE(...)                                                                                                                         \
    (const int64_t[]) { __VA_ARGS__ }
#define FORWARD(name)                                                                                                                      \
    static gt_tensor *name(__attribute__((unused)) void *user, __attribute__((unused)) gt_module *m, gt_tensor *const *in,                 \
                           __attribute__((unused)) int32_t n)

/* --- forwards that ONNX cannot say; x is [N,3,5,5] -------------------------------------------------------------------------------------------------- */

FORWARD(drops_always) { return gt_dropout(in[0], 0.5, 1); }
FORWARD(draws_noise) { return gt_add(in[0], gt_tensor_normal(gt_tensor_context(in[0]), GT_DTYPE_F32, 1, SHAPE(5), 0, 1)); }
FORWARD(has_a_loss) { return gt_cross_entropy(gt_flatten(in[0], 1), gt_argmax(gt_flatten(in[0], 1), 1, 0), NULL); }
FORWARD(normalises_by_batch) { return gt_batch_norm(in[0], NULL, NULL, NULL, NULL, 1, 0.1, 1e-5); }
FORWARD(pools_unevenly) { return gt_adaptive_avg_pool2d(in[0], 2, 5); }
FORWARD(pools_and_fails) { return gt_reshape(in[0], 2, SHAPE(4, 75)); }
FORWARD(scales_by_batch) { return gt_mul_scalar(in[0], 1.0 / (double)gt_tensor_size(in[0], 0)); }
FORWARD(adds_a_constant_of_the_batch) {
    return gt_add(in[0], gt_tensor_zeros(gt_tensor_context(in[0]), GT_DTYPE_F32, 4, SHAPE(gt_tensor_size(in[0], 0), 1, 1, 1)));
}
FORWARD(adds_a_number_of_the_batch) {
    return gt_add(in[0], gt_tensor_full(gt_tensor_context(in[0]), GT_DTYPE_F32, 0, NULL, (double)gt_tensor_size(in[0], 0)));
}
FORWARD(runs_another_op) { return gt_tensor_size(in[0], 0) == 3 ? gt_relu(in[0]) : gt_tanh(in[0]); }
FORWARD(runs_more_ops) { return gt_tensor_size(in[0], 0) == 3 ? gt_relu(gt_relu(in[0])) : gt_relu(in[0]); }
FORWARD(cuts_by_batch) { return gt_slice(in[0], 0, gt_tensor_size(in[0], 0) / 2, INT64_MAX, 1); }
FORWARD(multiplies_batches) {
    return gt_expand(gt_slice(in[0], 0, 0, 1, 1), 5, SHAPE(gt_tensor_size(in[0], 0) * gt_tensor_size(in[0], 0), 1, 3, 5, 5));
}

FORWARD(reads_an_item) {
    double value = 0;
    return gt_tensor_item(gt_mean(in[0], NULL, 0, 0), &value) == GT_OK ? gt_mul_scalar(in[0], value) : NULL;
}

/* Goes on as if nothing were, with another failure on the way. */
FORWARD(reads_and_ignores) {
    gt_tensor *mean = gt_mean(in[0], NULL, 0, 0);
    float value = 0;
    if (gt_tensor_read(mean, &value, sizeof value) == GT_OK) return NULL;
    (void)gt_tensor_read(mean, &value, 1);
    return gt_relu(in[0]);
}

FORWARD(fills_a_result) {
    gt_tensor *y = gt_relu(in[0]);
    return gt_tensor_fill(gt_slice(y, 1, 0, 1, 1), 0) == GT_OK ? y : NULL;
}

FORWARD(copies_into_a_constant) {
    gt_tensor *y = gt_tensor_zeros(gt_tensor_context(in[0]), GT_DTYPE_F32, 4, gt_tensor_shape(in[0]));
    return gt_tensor_copy(y, gt_relu(in[0])) == GT_OK ? y : NULL;
}

static gt_status custom_run(const gt_custom_call *call) {
    memcpy(call->outputs[0].data, call->inputs[0].data, sizeof(float));
    return GT_OK;
}

FORWARD(calls_its_own_op) {
    gt_custom_op_options o;
    gt_tensor *y = NULL;
    if (gt_custom_op_options_init(&o, sizeof o) != GT_OK) return NULL;
    o.name = "wavelet";
    o.forward = custom_run;
    return gt_custom_op_call(&o, in, 1, &y) == GT_OK ? y : NULL;
}

FORWARD(exports_itself) {
    const char *path = gt_tensor_name(in[0]);
    return gt_module_export_onnx(m, in, 1, NULL, path[0] ? path : "nowhere.onnx") == GT_OK ? in[0] : NULL;
}

typedef struct refusal {
    gt_nn_forward_fn forward;
    gt_status status;
    const char *says[2];
} refusal;

static const refusal refusals[] = {
    {drops_always, GT_NOT_SUPPORTED, {"dropout", "random numbers"}},
    {draws_noise, GT_NOT_SUPPORTED, {"draws random numbers", "add \"part\""}},
    {has_a_loss, GT_NOT_SUPPORTED, {"cross_entropy \"part\"", "cannot be written to ONNX"}},
    {normalises_by_batch, GT_NOT_SUPPORTED, {"batch_norm \"part\"", "batch's own statistics"}},
    {pools_unevenly, GT_NOT_SUPPORTED, {"adaptive_avg_pool2d \"part\"", "from 5x5 to 2x5"}},
    {pools_and_fails, GT_BAD_SHAPE, {"with a batch of 6", "reshape"}},
    {scales_by_batch, GT_NOT_SUPPORTED, {"mul_scalar \"part\"", "depend on the batch size"}},
    {adds_a_constant_of_the_batch, GT_NOT_SUPPORTED, {"makes a tensor f32 [", "without an op"}},
    {adds_a_number_of_the_batch, GT_NOT_SUPPORTED, {"makes a tensor f32 []", "without an op"}},
    {cuts_by_batch, GT_NOT_SUPPORTED, {"slice \"part\"", "place of the cut"}},
    {multiplies_batches, GT_NOT_SUPPORTED, {"expand \"part\"", "no multiple"}},
    {reads_an_item, GT_NOT_SUPPORTED, {"gt_tensor_item \"part\"", "reads a value on the host"}},
    {reads_and_ignores, GT_NOT_SUPPORTED, {"gt_tensor_read \"part\"", "reads a value on the host"}},
    {fills_a_result, GT_NOT_SUPPORTED, {"gt_tensor_fill \"part\"", "in place"}},
    {copies_into_a_constant, GT_NOT_SUPPORTED, {"gt_tensor_copy \"part\"", "in place"}},
    {calls_its_own_op, GT_NOT_SUPPORTED, {"custom \"part\"", "\"wavelet\""}},
    {exports_itself, GT_BAD_STATE, {"that is being exported", ""}},
};

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    CHECK(fputs(text, f) >= 0);
    CHECK(fclose(f) == 0);
}

static void check_text(const char *path, const char *text) {
    char buffer[64] = "";
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    (void)fgets(buffer, sizeof buffer, f);
    CHECK(fclose(f) == 0);
    CHECK_EQ_STR(buffer, text);
}

/* A module that has `forward` as its child "part". */
static gt_module *with_part(gt_context *ctx, gt_nn_forward_fn forward) {
    gt_module *module = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add_named(module, "part", module_of(ctx, forward, 1)));
    return module;
}

TEST_DEVICES(unit, onnx_refuses_by_name_what_it_cannot_write) {
    gt_context *ctx = test_context(t);
    const char *path = test_temp_path(t, "kept.onnx");
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, 4, SHAPE(2, 3, 5, 5), -1, 1));
    float first, drawn;
    CHECK_OK(gt_random_seed(ctx, 3));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, 1, SHAPE(1), 0, 1)), &first, sizeof first));
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; ++i) {
        const refusal *r = &refusals[i];
        if (r->forward == calls_its_own_op && test_device(t) != GT_DEVICE_CPU) continue; /* its callback reads host memory */
        gt_module *module = with_part(ctx, r->forward);
        write_text(path, "as it was");
        CHECK_OK(gt_random_seed(ctx, 3));
        CHECK_STATUS(gt_module_export_onnx(module, &x, 1, NULL, path), r->status);
        CHECK_ERROR_HAS(r->says[0]);
        CHECK_ERROR_HAS(r->says[1]);
        check_text(path, "as it was");
        CHECK_EQ_INT(gt_module_training(module), 1);
        CHECK_EQ_INT(gt_grad_enabled(ctx), 1);
        CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, 1, SHAPE(1), 0, 1)), &drawn, sizeof drawn));
        CHECK(drawn == first); /* the stream goes on where it was */
        double sum;
        CHECK_OK(gt_tensor_item(CHECK_TENSOR(gt_sum(x, NULL, 0, 0)), &sum)); /* nobody looks any more */
        gt_module_destroy(module);
    }
    CHECK_OK(gt_scope_end(ctx));
}

/* The two batch sizes are chosen by what the inputs' sizes leave; sizes 4 and 6 follow from [N,3,5,5]. */
TEST_DEVICES(unit, onnx_refuses_a_forward_that_depends_on_the_batch_size) {
    gt_context *ctx = test_context(t);
    const char *path = test_temp_path(t, "none.onnx");
    static const gt_nn_forward_fn forwards[] = {runs_another_op, runs_more_ops};
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, 2, SHAPE(2, 7), -1, 1)); /* batches of 3 and 4 */
    for (int i = 0; i < 2; ++i) {
        gt_module *module = with_part(ctx, forwards[i]);
        gt_onnx_options o;
        onnx_model m;
        CHECK_STATUS(gt_module_export_onnx(module, &x, 1, NULL, path), GT_NOT_SUPPORTED);
        CHECK_ERROR_HAS("the forward depends on the batch size");
        CHECK(strstr(gt_last_error()->hint, "dynamic_batch") != NULL);
        CHECK(onnx_open(&m, path) != NULL); /* there is no file */
        onnx_close(&m);
        CHECK_OK(gt_onnx_options_init(&o, sizeof o));
        o.dynamic_batch = 0;
        CHECK_OK(gt_module_export_onnx(module, &x, 1, &o, path));
        CHECK(onnx_open(&m, path) == NULL);
        CHECK_EQ_INT(onnx_count(&m, i ? "Relu" : "Tanh"), 1);
        onnx_close(&m);
        CHECK(remove(path) == 0);
        gt_module_destroy(module);
    }
    CHECK_OK(gt_scope_end(ctx));
}

/* Constants that a forward writes itself, and reading what does not depend on the input, are no harm. */
FORWARD(works_on_the_host) {
    gt_context *ctx = gt_tensor_context(in[0]);
    gt_tensor *scale = gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, SHAPE(5));
    const float values[5] = {1, 2, 3, 4, 5};
    float back[5];
    if (gt_tensor_write(scale, values, sizeof values) != GT_OK || gt_tensor_read(scale, back, sizeof back) != GT_OK) return NULL;
    return gt_mul(in[0], scale);
}

TEST_DEVICES(unit, onnx_takes_constants_that_a_forward_makes) {
    gt_context *ctx = test_context(t);
    gt_module *module = with_part(ctx, works_on_the_host);
    const char *path = test_temp_path(t, "net.onnx");
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, SHAPE(2, 5)));
    CHECK_OK(gt_module_export_onnx(module, &x, 1, NULL, path));
    onnx_model m;
    CHECK(onnx_open(&m, path) == NULL);
    CHECK_EQ_INT(m.n_tensors, 1);
    CHECK_EQ_STR(m.tensors[0].name, "constant");
    const float values[5] = {1, 2, 3, 4, 5};
    CHECK(memcmp(m.tensors[0].data.data, values, sizeof values) == 0);
    onnx_close(&m);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(module);
}

/* --- arguments ---------------------------------------------------------------------------------------------------------------------------------------- */

TEST_DEVICES(unit, onnx_checks_its_arguments) {
    gt_context *ctx = test_context(t);
    gt_module *module = gt_nn_linear(ctx, 4, 3, NULL);
    const char *path = test_temp_path(t, "net.onnx");
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, SHAPE(2, 4))), *none = NULL;
    gt_tensor *empty = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, SHAPE(0, 4)));
    gt_tensor *two[] = {x, x};
    gt_clear_error();
    CHECK_STATUS(gt_module_export_onnx(NULL, &x, 1, NULL, path), GT_BAD_ARGUMENT);
    gt_clear_error();
    CHECK_STATUS(gt_module_export_onnx(module, NULL, 1, NULL, path), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_module_export_onnx(module, &none, 1, NULL, path), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_module_export_onnx(module, &x, 1, NULL, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_module_export_onnx(module, &x, 1, NULL, ""), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_module_export_onnx(module, two, 2, NULL, path), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("takes 1 inputs, it was given 2");
    CHECK_STATUS(gt_module_export_onnx(module, &empty, 1, NULL, path), GT_BAD_SHAPE);
    CHECK_ERROR_HAS("[0,4]");
    CHECK_STATUS(gt_module_export_onnx(module, &x, 1, NULL, test_temp_path(t, "no/such/folder/net.onnx")), GT_IO);

    const char *const same[] = {"output"}, *const broken[] = {"\xff"}, *const twice[] = {"k", "1", "k", "2"};
    const int32_t unbatched[] = {0};
    struct {
        int32_t opset, n_metadata;
        const char *const *names, *const *metadata;
        const int32_t *batched;
        const char *output, *says;
    } const cases[] = {
        {16, 0, NULL, NULL, NULL, "output", "opset is 16"},
        {24, 0, NULL, NULL, NULL, "output", "opset is 24"},
        {17, 0, same, NULL, NULL, "output", "an input and the output are named \"output\""},
        {17, 0, broken, NULL, NULL, "output", "not valid UTF-8"},
        {17, 0, NULL, NULL, NULL, "", "the output's name is empty"},
        {17, 2, NULL, twice, NULL, "output", "the key \"k\" twice"},
        {17, 2, NULL, NULL, NULL, "output", "2 pairs of metadata at NULL"},
        {17, -1, NULL, twice, NULL, "output", "-1 pairs"},
        {17, 0, NULL, NULL, unbatched, "output", "no input has a batch axis"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        gt_onnx_options o;
        CHECK_OK(gt_onnx_options_init(&o, sizeof o));
        o.opset = cases[i].opset;
        o.n_metadata = cases[i].n_metadata;
        o.input_names = cases[i].names;
        o.metadata = cases[i].metadata;
        o.batched = cases[i].batched;
        o.output_name = cases[i].output;
        CHECK_STATUS(gt_module_export_onnx(module, &x, 1, &o, path), GT_BAD_ARGUMENT);
        CHECK_ERROR_HAS(cases[i].says);
    }
    FILE *f = fopen(path, "r");
    CHECK(f == NULL);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(module);
}

/* A module's names may be anything; ONNX's are UTF-8. */
TEST_DEVICES(unit, onnx_makes_names_valid) {
    gt_context *ctx = test_context(t);
    gt_module *module = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add_named(module, "a\xff", gt_nn_linear(ctx, 4, 4, NULL)));
    CHECK_OK(gt_nn_sequential_add_named(module, "a\xfe", gt_nn_linear(ctx, 4, 4, NULL)));
    CHECK_OK(gt_nn_sequential_add_named(module, "\xe2\x88\x87", gt_nn_relu(ctx)));
    const char *path = test_temp_path(t, "net.onnx");
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, SHAPE(2, 4)));
    CHECK_OK(gt_module_export_onnx(module, &x, 1, NULL, path));
    onnx_model m;
    const char *wrong = onnx_open(&m, path);
    if (wrong) FAIL("%s", wrong);
    CHECK(onnx_find_tensor(&m, "a?.weight") != NULL);
    CHECK_EQ_STR(m.nodes[0].name, "a?/Gemm");
    CHECK(strncmp(m.nodes[1].name, "a?/Gemm_", 8) == 0);
    onnx_close(&m);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(module);
}

/* --- no host memory ---------------------------------------------------------------------------------------------------------------------------------------- */

TEST(contract, E1_onnx_export_survives_each_failing_allocation) {
    gt_context *ctx = test_context(t);
    const char *const nets[] = {"expand_to_batch", "mlp"};
    for (int k = 0; k < 2; ++k) {
        const net *n = net_named(nets[k]);
        gt_module *module = net_make(n, ctx);
        const char *path = test_temp_path(t, "net.onnx");
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *x = CHECK_TENSOR(net_input_make(n, 0, ctx, 0));
        gt_status status = GT_OK;
        int64_t live = 0;
        int32_t failures = 0;
        for (int64_t i = 0; i < 5000; ++i) {
            if (i == 1) live = fake_host_live();
            fake_host_fail(i);
            status = gt_module_export_onnx(module, &x, 1, NULL, path);
            bool failed = fake_host_failed();
            fake_host_fail(-1);
            if (!failed) break;
            if (status == GT_OK) continue; /* what failed was not needed */
            failures++;
            CHECK_EQ_INT(status, GT_OUT_OF_HOST_MEMORY);
            CHECK_EQ_INT(gt_module_training(module), 1);
            CHECK_EQ_INT(gt_grad_enabled(ctx), 1);
        }
        CHECK_OK(status);
        CHECK(failures > 50);
        CHECK(fake_host_live() - live < 200); /* handles and names that the context keeps for the next use */
        onnx_model m;
        CHECK(onnx_open(&m, path) == NULL);
        onnx_close(&m);
        CHECK_OK(gt_scope_end(ctx));
        gt_module_destroy(module);
    }
}

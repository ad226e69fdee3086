/* Writes ONNX models with inputs and the outputs that gtrain has for them: onnx_check.py runs them in ONNX Runtime and compares.
 *
 *     onnx_models FOLDER [cpu|cuda]
 *
 * FOLDER/manifest.txt has a line a model, NAME RELATIVE ABSOLUTE RUN, then one a tensor, input|output NAME DTYPE FILE SIZES..., then an empty one. RUN is 0 where ONNX
 * Runtime has no CPU kernels for the dtype. */
#include "io/onnx_nets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *folder;
static FILE *manifest;

#define TRY(expr)                                                                                                                          \
    do {                                                                                                                                   \
        gt_status status_ = (expr);                                                                                                        \
        if (status_ != GT_OK) return status_;                                                                                              \
    } while (0)

static void path_of(char *path, size_t size, const char *name, const char *suffix) {
    (void)snprintf(path, size, "%s/%s%s", folder, name, suffix);
}

static gt_status dump(const char *kind, const char *name, const char *model, int32_t k, gt_tensor *t) {
    char file[128], path[1024];
    size_t bytes = gt_tensor_bytes(t);
    void *data = malloc(bytes + 1);
    gt_status status = data ? gt_tensor_read(t, data, bytes) : GT_OUT_OF_HOST_MEMORY;
    (void)snprintf(file, sizeof file, "%s.%s%d", model, kind, (int)k);
    path_of(path, sizeof path, file, "");
    FILE *f = status == GT_OK ? fopen(path, "wb") : NULL;
    if (status == GT_OK && (f == NULL || fwrite(data, 1, bytes, f) != bytes)) status = GT_IO;
    if (f && fclose(f) != 0) status = GT_IO;
    free(data);
    fprintf(manifest, "%s %s %s %s", kind, name, gt_dtype_name(gt_tensor_dtype(t)), file);
    for (int32_t i = 0; i < gt_tensor_ndim(t); ++i) fprintf(manifest, " %lld", (long long)gt_tensor_shape(t)[i]);
    fprintf(manifest, "\n");
    return status;
}

/* The model from the example's batch, values from a batch of another size unless the model's is fixed. */
static gt_status write_in_scope(gt_context *ctx, const net *n, gt_module *m, gt_dtype dtype, int32_t opset, int32_t dynamic,
                                const char *model) {
    gt_tensor *example[NET_MOST_INPUTS], *x[NET_MOST_INPUTS];
    char path[1024];
    for (int32_t k = 0; k < n->n_inputs; ++k) {
        example[k] = net_input_make(n, k, ctx, 0);
        x[k] = net_input_make(n, k, ctx, dynamic ? 7 : 0);
        if (n->inputs[k].dtype != GT_DTYPE_F32) continue;
        example[k] = gt_cast(example[k], dtype);
        x[k] = gt_cast(x[k], dtype);
    }
    gt_onnx_options o;
    TRY(gt_onnx_options_init(&o, sizeof o));
    const char *const metadata[4] = {"network", n->name, "accuracy", ""};
    o.opset = opset;
    o.dynamic_batch = dynamic;
    o.metadata = metadata;
    o.n_metadata = 2;
    path_of(path, sizeof path, model, ".onnx");
    TRY(gt_module_export_onnx(m, example, n->n_inputs, &o, path));
    TRY(gt_module_set_training(m, 0));
    gt_tensor *y = gt_module_forward_many(m, x, n->n_inputs);
    if (y == NULL) return gt_last_error()->status;
    double tolerance = dtype != GT_DTYPE_F32 || strcmp(n->name, "autocast") == 0 ? 5e-3 : 1e-4;
    fprintf(manifest, "%s %g %g %d\n", model, tolerance, tolerance, dtype != GT_DTYPE_BF16);
    for (int32_t k = 0; k < n->n_inputs; ++k) {
        char name[32];
        (void)snprintf(name, sizeof name, n->n_inputs == 1 ? "input" : "input_%d", (int)k);
        TRY(dump("input", name, model, k, x[k]));
    }
    TRY(dump("output", "output", model, 0, y));
    fprintf(manifest, "\n");
    return GT_OK;
}

static gt_status write_model(gt_context *ctx, const net *n, gt_dtype dtype, int32_t opset, int32_t dynamic) {
    char model[96];
    (void)snprintf(model, sizeof model, "%s_%s_%d%s", n->name, gt_dtype_name(dtype), (int)opset, dynamic ? "" : "_fixed");
    gt_module *m = net_make(n, ctx);
    if (m == NULL) return gt_last_error()->status;
    gt_status status = dtype == GT_DTYPE_F32 ? GT_OK : gt_module_to_dtype(m, dtype);
    if (status == GT_OK) status = gt_scope_begin(ctx);
    if (status == GT_OK) {
        status = write_in_scope(ctx, n, m, dtype, opset, dynamic, model);
        (void)gt_scope_end(ctx);
    }
    gt_module_destroy(m);
    if (status != GT_OK) fprintf(stderr, "%s: %s: %s\n", model, gt_status_name(status), gt_last_error()->message);
    return status;
}

static gt_status write_all(gt_context *ctx) {
    static const int32_t opsets[] = {17, 18, 20, 23};
    int32_t failures = 0;
    for (int32_t i = 0; i < n_networks; ++i) failures += write_model(ctx, &networks[i], GT_DTYPE_F32, 17, 1) != GT_OK;
    const char *const fixed[] = {"mlp", "cnn", "transformer"};
    for (int i = 0; i < 3; ++i) failures += write_model(ctx, net_named(fixed[i]), GT_DTYPE_F32, 23, 0) != GT_OK;
    for (int32_t i = 0; i < n_op_nets; ++i)
        for (size_t k = 0; k < sizeof opsets / sizeof *opsets; ++k)
            failures += write_model(ctx, &op_nets[i], GT_DTYPE_F32, opsets[k], 1) != GT_OK;
    const char *const half[] = {"mlp", "cnn", "resnet18"};
    for (int i = 0; i < 3; ++i) {
        failures += write_model(ctx, net_named(half[i]), GT_DTYPE_F16, 17, 1) != GT_OK;
        failures += write_model(ctx, net_named(half[i]), GT_DTYPE_BF16, 22, 1) != GT_OK;
    }
    for (int32_t i = 0; i < n_op_nets; ++i) {
        if (op_nets[i].f32_only) continue;
        failures += write_model(ctx, &op_nets[i], GT_DTYPE_F16, 17, 1) != GT_OK;
        failures += write_model(ctx, &op_nets[i], GT_DTYPE_BF16, 22, 1) != GT_OK;
    }
    return failures ? GT_INTERNAL : GT_OK;
}

int main(int argc, char **argv) {
    char path[1024];
    gt_context *ctx;
    gt_context_options o;
    if (argc < 2 || argc > 3 || gt_context_options_init(&o, sizeof o) != GT_OK) return 2;
    o.allow_tf32 = 0;
    o.device = argc == 3 && strcmp(argv[2], "cuda") == 0 ? GT_DEVICE_CUDA : GT_DEVICE_CPU;
    folder = argv[1];
    path_of(path, sizeof path, "manifest.txt", "");
    manifest = fopen(path, "w");
    if (manifest == NULL || gt_context_create(&o, &ctx) != GT_OK) return 1;
    gt_status status = write_all(ctx);
    gt_context_destroy(ctx);
    return fclose(manifest) == 0 && status == GT_OK ? 0 : 1;
}

/* For safetensors_check.py: writes a file of known tensors; prints what is in one, each tensor having gone through a context; or loads a module
 * from one file and saves it to another. */
#include <gtrain/gtrain.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(void) {
    fprintf(stderr, "%s\n", gt_last_error()->message);
    return 1;
}

/* Element i of every tensor is (7 i + 3) mod 100. */
static int write_file(gt_context *ctx, const char *path) {
    enum { DTYPES = GT_DTYPE_COUNT, ALL = DTYPES + 3 };
    static const int64_t shape[2] = {2, 3}, empty[2] = {0, 3};
    static const char *const names[ALL] = {"t0", "t1", "t2", "t3", "t4", "t5", "t6", "transposed", "empty", "scalar \xc3\xa4\""};
    static const float values[6] = {3, 10, 17, 24, 31, 38};
    gt_tensor *tensors[ALL];
    (void)gt_scope_begin(ctx);
    gt_tensor *f32 = gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, shape, values, sizeof values);
    for (int i = 0; i < DTYPES; ++i) tensors[i] = gt_cast(f32, (gt_dtype)i);
    tensors[DTYPES] = gt_transpose(f32, 0, 1);
    tensors[DTYPES + 1] = gt_tensor_zeros(ctx, GT_DTYPE_I64, 2, empty);
    tensors[DTYPES + 2] = gt_tensor_full(ctx, GT_DTYPE_F64, 0, NULL, 3);
    static const gt_text_pair texts[] = {{"format", "pt"}, {"text", "line\n\"quoted\" \xf0\x9f\x98\x80"}};
    gt_status status = gt_safetensors_save(path, names, tensors, ALL, texts, 2);
    (void)gt_scope_end(ctx);
    return status == GT_OK ? 0 : fail();
}

static int print_tensor(gt_context *ctx, const gt_safetensors *file, int64_t index) {
    gt_safetensors_info info;
    if (gt_safetensors_info_init(&info, sizeof info) != GT_OK || gt_safetensors_get_info(file, index, &info) != GT_OK) return fail();
    printf("%s|%s|", info.name, info.dtype_name);
    for (int32_t i = 0; i < info.ndim; ++i) printf("%s%lld", i ? "," : "", (long long)info.shape[i]);
    printf("|");
    (void)gt_scope_begin(ctx);
    gt_tensor *tensor = info.dtype >= 0 ? gt_safetensors_read(ctx, file, index) : NULL;
    unsigned char *bytes = calloc((size_t)info.bytes + 1, 1);
    int code = bytes == NULL;
    if (!code && tensor && gt_tensor_read(tensor, bytes, (size_t)info.bytes) != GT_OK) code = fail();
    for (uint64_t i = 0; !code && tensor && i < info.bytes; ++i) printf("%02x", bytes[i]);
    printf("\n");
    free(bytes);
    (void)gt_scope_end(ctx);
    return code;
}

static int print_file(gt_context *ctx, const char *path) {
    gt_safetensors *file;
    if (gt_safetensors_open(path, &file) != GT_OK) return fail();
    int code = 0;
    for (int64_t i = 0; i < gt_safetensors_count(file) && !code; ++i) code = print_tensor(ctx, file, i);
    for (int64_t i = 0; i < gt_safetensors_metadata_count(file) && !code; ++i) {
        gt_text_pair pair;
        if (gt_safetensors_metadata(file, i, &pair) != GT_OK) code = fail();
        if (!code) printf("metadata|%s|%s\n", pair.key, pair.value);
    }
    gt_safetensors_close(file);
    return code;
}

static int pass_on(gt_context *ctx, const char *from, const char *to) {
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 3, 3, NULL),
                           gt_nn_batch_norm(ctx, 3, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_conv2d(ctx, 3, 5, 3, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_flatten(ctx, 1),
                           gt_nn_dropout(ctx, 0.25),
                           gt_nn_linear(ctx, 80, 4, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 8);
    gt_status status = net ? gt_module_load(net, from, NULL) : gt_last_error()->status;
    if (status == GT_OK) status = gt_module_save(net, to, NULL, 0);
    gt_module_destroy(net);
    return status == GT_OK ? 0 : fail();
}

int main(int argc, char **argv) {
    gt_context_options options;
    gt_context *ctx = NULL;
    if (argc < 3 || argc > 4) return 2;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return fail();
    options.device = GT_DEVICE_CPU;
    if (gt_context_create(&options, &ctx) != GT_OK) return fail();
    int code = argc == 4                       ? pass_on(ctx, argv[2], argv[3])
               : strcmp(argv[1], "write") == 0 ? write_file(ctx, argv[2])
                                               : print_file(ctx, argv[2]);
    gt_context_destroy(ctx);
    return code;
}

/* What the tests of files share. */
#ifndef TESTS_IO_SUPPORT_H
#define TESTS_IO_SUPPORT_H

#include "harness/test.h"

#include <gtrain/gtrain.h>
#include <stdio.h>
#include <stdlib.h>

/* A path in the case's folder, which is the caller's to free. */
static inline char *io_path(test_case *t, const char *name) {
    char *path = strdup(test_temp_path(t, name));
    CHECK(path != NULL);
    return path;
}

static inline void io_write(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    size_t written = fwrite(bytes, 1, size, file);
    CHECK(fclose(file) == 0 && written == size);
}

/* Writes a safetensors file of this header and `data` bytes, which count up from 0. `length` is what the first eight bytes say; 0: the header's. */
static inline void io_write_header(const char *path, const char *header, size_t data, uint64_t length) {
    size_t size = strlen(header);
    unsigned char *bytes = malloc(8 + size + data);
    CHECK(bytes != NULL);
    if (length == 0) length = size;
    for (int i = 0; i < 8; ++i) bytes[i] = (unsigned char)(length >> (8 * i));
    memcpy(bytes + 8, header, size);
    for (size_t i = 0; i < data; ++i) bytes[8 + size + i] = (unsigned char)i;
    io_write(path, bytes, 8 + size + data);
    free(bytes);
}

/* All of a file; *size its bytes. The caller frees it. */
static inline unsigned char *io_slurp(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    long end = ftell(file);
    CHECK(end >= 0);
    rewind(file);
    unsigned char *bytes = malloc((size_t)end + 1);
    CHECK(bytes != NULL);
    *size = fread(bytes, 1, (size_t)end, file);
    CHECK(fclose(file) == 0 && *size == (size_t)end);
    return bytes;
}

static inline gt_safetensors *io_open(const char *path) {
    gt_safetensors *file = NULL;
    CHECK_OK(gt_safetensors_open(path, &file));
    return file;
}

static inline gt_safetensors_info io_info(const gt_safetensors *file, const char *name) {
    gt_safetensors_info info;
    int64_t index = -1;
    CHECK_OK(gt_safetensors_info_init(&info, sizeof info));
    CHECK_OK(gt_safetensors_find(file, name, &index));
    CHECK_OK(gt_safetensors_get_info(file, index, &info));
    return info;
}

/* The bits of all of a module's parameters and buffers, one after the other. The caller frees them. */
static inline unsigned char *io_bits(gt_module *module, size_t *size) {
    int32_t parameters = gt_module_parameter_count(module), count = parameters + gt_module_buffer_count(module);
    unsigned char *bits = NULL;
    *size = 0;
    for (int32_t i = 0; i < count; ++i) {
        gt_tensor *tensor;
        CHECK_OK(i < parameters ? gt_module_parameter(module, i, NULL, &tensor) : gt_module_buffer(module, i - parameters, NULL, &tensor));
        size_t bytes = gt_tensor_bytes(tensor);
        bits = realloc(bits, *size + bytes + 1);
        CHECK(bits != NULL);
        CHECK_OK(gt_tensor_read(tensor, bits + *size, bytes));
        *size += bytes;
    }
    return bits;
}

static inline void io_check_bits(gt_module *module, const unsigned char *bits, size_t size) {
    size_t now = 0;
    unsigned char *again = io_bits(module, &now);
    CHECK(now == size && memcmp(again, bits, size) == 0);
    free(again);
}

/* [N,1,8,8] to [N,4]: convolutions stored channels-last, batch norm's buffers, dropout. */
static inline gt_module *io_net(gt_context *ctx) {
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 3, 3, NULL),
                           gt_nn_batch_norm(ctx, 3, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_conv2d(ctx, 3, 5, 3, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_flatten(ctx, 1),
                           gt_nn_dropout(ctx, 0.25),
                           gt_nn_linear(ctx, 80, 4, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 8);
    CHECK(net != NULL);
    return net;
}

/* A module of two parameters that are one tensor, named a.weight and b.weight. */
static inline gt_tensor *io_tied_forward(void *user, gt_module *module, gt_tensor *const *inputs, int32_t count) {
    gt_tensor *weight = NULL;
    (void)user, (void)count;
    return gt_module_find(module, "a", &weight) == GT_OK ? gt_mul(inputs[0], weight) : NULL;
}
static inline gt_module *io_tied(gt_context *ctx, const float *values, int64_t n) {
    gt_nn_custom_options options;
    CHECK_OK(gt_nn_custom_options_init(&options, sizeof options));
    options.forward = io_tied_forward;
    gt_module *module = gt_nn_custom(ctx, &options);
    CHECK(module != NULL);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *weight = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, &n, values, (size_t)n * sizeof *values));
    CHECK_OK(gt_module_add_parameter(module, "a", weight, 0));
    CHECK_OK(gt_module_add_parameter(module, "b", weight, 0));
    CHECK_OK(gt_scope_end(ctx));
    return module;
}

/* Counts mismatches, and keeps their names. */
typedef struct io_told {
    int count;
    char names[4000];
} io_told;
static inline void io_tell(void *user, gt_mismatch kind, const char *name, const char *text) {
    io_told *told = user;
    told->count++;
    size_t used = strlen(told->names);
    (void)snprintf(told->names + used, sizeof told->names - used, "%d %s|", (int)kind, name);
    EXPECT(strstr(text, name) != NULL);
}

#endif

/* Opens any bytes as a safetensors file and reads all that is in it. */
#include "fuzz/fuzz.h"

static void read_all(gt_context *ctx, gt_safetensors *file, size_t size) {
    uint64_t total = 0;
    for (int64_t i = 0; i < gt_safetensors_count(file); ++i) {
        gt_safetensors_info info;
        int64_t index = -1;
        DEMAND(gt_safetensors_info_init(&info, sizeof info) == GT_OK && gt_safetensors_get_info(file, i, &info) == GT_OK);
        DEMAND(gt_safetensors_find(file, info.name, &index) == GT_OK && index == i);
        DEMAND(info.ndim >= 0 && info.ndim <= GT_MAX_DIMS);
        total += info.bytes;
        DEMAND(total <= size);
        volatile unsigned char sum = 0; /* every byte is mapped */
        for (uint64_t k = 0; k < info.bytes; ++k) sum = (unsigned char)(sum + ((const unsigned char *)info.data)[k]);
        (void)gt_scope_begin(ctx);
        gt_tensor *tensor = gt_safetensors_read(ctx, file, i);
        DEMAND(tensor ? gt_tensor_bytes(tensor) == info.bytes : gt_last_error()->status == GT_NOT_SUPPORTED);
        (void)gt_scope_end(ctx);
    }
    for (int64_t i = 0; i < gt_safetensors_metadata_count(file); ++i) {
        gt_text_pair pair;
        const char *value;
        DEMAND(gt_safetensors_metadata(file, i, &pair) == GT_OK);
        DEMAND(gt_safetensors_metadata_find(file, pair.key, &value) == GT_OK && value == pair.value);
    }
}

static void try_file(gt_context *ctx, const void *bytes, size_t size) {
    char path[64];
    int fd = fuzz_file(bytes, size, path, sizeof path);
    gt_safetensors *file = NULL;
    gt_status status = gt_safetensors_open(path, &file);
    DEMAND(status == GT_OK || status == GT_BAD_FILE);
    if (status == GT_OK) read_all(ctx, file, size);
    gt_safetensors_close(file);
    (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static gt_context *ctx;
    if (ctx == NULL) ctx = fuzz_context();
    try_file(ctx, data, size);
    /* The same bytes as a header, whose length is then right, with some data behind it, as many as the last byte says. */
    size_t more = size > 0 ? data[size - 1] : 0;
    unsigned char *whole = calloc(8 + size + more, 1);
    DEMAND(whole != NULL);
    for (int i = 0; i < 8; ++i) whole[i] = (unsigned char)((uint64_t)(size ? size - 1 : 0) >> (8 * i));
    if (size > 1) memcpy(whole + 8, data, size - 1);
    try_file(ctx, whole, 8 + (size ? size - 1 : 0) + more);
    free(whole);
    return 0;
}

#include "data/support.h"

#include <stdio.h>

gt_dataset *numbers(int64_t length) {
    float samples[MAX_SAMPLES];
    int64_t labels[MAX_SAMPLES];
    for (int64_t i = 0; i < length; ++i) {
        samples[i] = (float)i;
        labels[i] = i % 7;
    }
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.length = length;
    format.classes = 7;
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset));
    return dataset;
}

gt_loader_options loader_options(int64_t batch_size) {
    gt_loader_options options;
    CHECK_OK(gt_loader_options_init(&options, sizeof options));
    options.batch_size = batch_size;
    return options;
}

int64_t drain(gt_loader *loader, float *samples) {
    gt_context *ctx = gt_loader_context(loader);
    int64_t total = 0, count = 1;
    while (count > 0) {
        gt_tensor *x, *y;
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_loader_next(loader, &x, &y, &count));
        if (count > 0) {
            int64_t labels[MAX_SAMPLES];
            CHECK(total + count <= MAX_SAMPLES);
            CHECK_OK(gt_tensor_read(x, samples + total, gt_tensor_bytes(x)));
            CHECK_OK(gt_tensor_read(y, labels, gt_tensor_bytes(y)));
            for (int64_t i = 0; i < count; ++i) CHECK_EQ_INT(labels[i], (int64_t)samples[total + i] % 7);
        }
        total += count;
        CHECK_OK(gt_scope_end(ctx));
    }
    return total;
}

const char *write_file(test_case *t, const char *name, const void *bytes, size_t size) {
    const char *path = test_temp_path(t, name);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    size_t written = fwrite(bytes, 1, size, file);
    CHECK(fclose(file) == 0 && written == size);
    return path;
}

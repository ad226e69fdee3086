/* Feeding data. F1's faults, F2's transforms and F4's pinned memory are in tests/data, F3's files in tests/data/idx.c. */
#include "harness/test.h"
#include <gtrain/gtrain.h>

#include <stdio.h>

enum { SAMPLES = 500 };

/* SAMPLES numbers. */
static gt_dataset *make_dataset(float *numbers, int32_t borrow) {
    for (int i = 0; i < SAMPLES; ++i) numbers[i] = (float)i;
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.has_labels = 0;
    format.length = SAMPLES;
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_arrays(&format, numbers, NULL, borrow, &dataset));
    return dataset;
}

static void read_epoch(gt_context *ctx, gt_dataset *dataset, uint64_t seed, int32_t workers, int64_t epoch, float *out) {
    gt_loader_options options;
    CHECK_OK(gt_loader_options_init(&options, sizeof options));
    options.batch_size = 16;
    options.shuffle = 1;
    options.seed = seed;
    options.workers = workers;
    gt_loader *loader = NULL;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    CHECK_OK(gt_loader_start_epoch(loader, epoch));
    int64_t total = 0, count = 1;
    while (count > 0) {
        gt_tensor *x;
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_loader_next(loader, &x, NULL, &count));
        CHECK(total + count <= SAMPLES);
        if (count > 0) CHECK_OK(gt_tensor_read(x, out + total, gt_tensor_bytes(x)));
        total += count;
        CHECK_OK(gt_scope_end(ctx));
    }
    CHECK_EQ_INT(total, SAMPLES);
    gt_loader_destroy(loader);
}

static int same_places(const float *a, const float *b) {
    int same = 0;
    for (int i = 0; i < SAMPLES; ++i) same += a[i] == b[i];
    return same;
}

TEST_DEVICES(contract, F2_each_epoch_is_a_new_permutation) {
    gt_context *ctx = test_context(t);
    static float numbers[SAMPLES], order[6][SAMPLES], again[SAMPLES];
    gt_dataset *dataset = make_dataset(numbers, 0);
    for (int epoch = 0; epoch < 5; ++epoch) {
        read_epoch(ctx, dataset, 1, 1 + epoch % 3, epoch, order[epoch]);
        int seen[SAMPLES] = {0};
        for (int i = 0; i < SAMPLES; ++i) seen[(int)order[epoch][i]]++;
        for (int i = 0; i < SAMPLES; ++i) CHECK_EQ_INT(seen[i], 1);
        /* two permutations agree in one place on average */
        CHECK(same_places(order[epoch], numbers) < 10);
        for (int other = 0; other < epoch; ++other) CHECK(same_places(order[epoch], order[other]) < 10);
    }
    read_epoch(ctx, dataset, 1, 4, 3, again); /* the same seed and epoch: the same order, whatever the workers */
    CHECK_EQ_INT(same_places(again, order[3]), SAMPLES);
    read_epoch(ctx, dataset, 2, 4, 3, again); /* another seed */
    CHECK(same_places(again, order[3]) < 10);
    gt_dataset_destroy(dataset);
}

TEST(contract, F3_mismatched_files_are_refused_with_expected_and_found) {
    static const unsigned char images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 7, 8};
    static const unsigned char labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2};
    char images_path[512];
    (void)snprintf(images_path, sizeof images_path, "%s", test_temp_path(t, "images"));
    const char *labels_path = test_temp_path(t, "labels");
    FILE *file = fopen(images_path, "wb");
    CHECK(file != NULL && fwrite(images, 1, sizeof images, file) == sizeof images && fclose(file) == 0);
    file = fopen(labels_path, "wb");
    CHECK(file != NULL && fwrite(labels, 1, sizeof labels, file) == sizeof labels && fclose(file) == 0);
    gt_dataset *dataset = NULL;
    CHECK_STATUS(gt_dataset_from_idx(images_path, labels_path, 10, &dataset), GT_BAD_FILE);
    CHECK_ERROR_HAS("expected 2 labels");
    CHECK_ERROR_HAS("found 3");
    CHECK(dataset == NULL);
}

TEST_DEVICES(contract, F4_a_host_buffer_may_be_reused_as_soon_as_the_call_returns) {
    gt_context *ctx = test_context(t);
    static float numbers[SAMPLES], back[SAMPLES];
    gt_dataset *dataset = make_dataset(numbers, 0);
    const int64_t shape = SAMPLES;
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *made = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, &shape, numbers, sizeof numbers));
    memset(numbers, 255, sizeof numbers);
    CHECK_OK(gt_tensor_read(made, back, sizeof back));
    for (int i = 0; i < SAMPLES; ++i) CHECK_EQ_INT(back[i], i);
    CHECK_OK(gt_scope_end(ctx));
    read_epoch(ctx, dataset, 0, 2, 0, back);
    int seen[SAMPLES] = {0};
    for (int i = 0; i < SAMPLES; ++i) {
        CHECK(back[i] >= 0 && back[i] < SAMPLES);
        seen[(int)back[i]]++;
    }
    for (int i = 0; i < SAMPLES; ++i) CHECK_EQ_INT(seen[i], 1);
    gt_dataset_destroy(dataset);
}

/* Transforms: what each step computes, that random ones depend on seed, epoch and sample alone, and what is refused. */
#include "data/support.h"

#include <stdbool.h>

/* `length` u8 images of [channels, 2, 3]; image i holds 10 i + 0, 1, 2 … */
static gt_dataset *images(int64_t length, int64_t channels) {
    unsigned char samples[64 * 12];
    for (int64_t i = 0; i < length; ++i)
        for (int64_t k = 0; k < channels * 6; ++k) samples[i * channels * 6 + k] = (unsigned char)(10 * i + k);
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.sample_dtype = GT_DTYPE_U8;
    format.has_labels = 0;
    format.sample_ndim = 3;
    format.sample_shape[0] = channels;
    format.sample_shape[1] = 2;
    format.sample_shape[2] = 3;
    format.length = length;
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_arrays(&format, samples, NULL, 0, &dataset));
    return dataset;
}

/* Reads one epoch into `out`, in the data set's order. Returns its bytes. */
static size_t read_epoch(gt_context *ctx, gt_dataset *dataset, const gt_transform *transform, int32_t workers, int64_t epoch, void *out) {
    gt_loader_options options = loader_options(5);
    options.workers = workers;
    options.seed = 42;
    options.transform = transform;
    gt_loader *loader = NULL;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    CHECK_OK(gt_loader_start_epoch(loader, epoch));
    size_t bytes = 0;
    int64_t count = 1;
    while (count > 0) {
        gt_tensor *x;
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_loader_next(loader, &x, NULL, &count));
        if (count > 0) {
            CHECK_OK(gt_tensor_read(x, (char *)out + bytes, gt_tensor_bytes(x)));
            bytes += gt_tensor_bytes(x);
        }
        CHECK_OK(gt_scope_end(ctx));
    }
    gt_loader_destroy(loader);
    return bytes;
}

TEST(unit, transform_scales_and_normalizes_each_channel) {
    gt_context *ctx = test_context(t);
    gt_dataset *dataset = images(2, 2);
    gt_transform *transform = NULL;
    const double mean[2] = {1, 0.5}, std[2] = {2, 0.25};
    CHECK_OK(gt_transform_create(&transform));
    CHECK_OK(gt_transform_to_float(transform, 0.5));
    CHECK_OK(gt_transform_normalize(transform, mean, std, 2));
    float out[24];
    CHECK_EQ_INT(read_epoch(ctx, dataset, transform, 1, 0, out), sizeof out);
    for (int i = 0; i < 2; ++i)
        for (int k = 0; k < 12; ++k) CHECK_NEAR(out[12 * i + k], ((10 * i + k) * 0.5 - mean[k / 6]) / std[k / 6], 1e-6);
    gt_transform_destroy(transform);
    gt_dataset_destroy(dataset);
}

TEST(unit, transform_flip_mirrors_rows) {
    gt_context *ctx = test_context(t);
    gt_dataset *dataset = images(3, 1);
    unsigned char out[18];
    for (int probability = 0; probability <= 1; ++probability) {
        gt_transform *transform = NULL;
        CHECK_OK(gt_transform_create(&transform));
        CHECK_OK(gt_transform_horizontal_flip(transform, probability));
        CHECK_EQ_INT(read_epoch(ctx, dataset, transform, 2, 0, out), sizeof out);
        for (int i = 0; i < 18; ++i) {
            int image = i / 6, row = i % 6 / 3, column = i % 3;
            CHECK_EQ_INT(out[i], 10 * image + 3 * row + (probability ? 2 - column : column));
        }
        gt_transform_destroy(transform);
    }
    gt_dataset_destroy(dataset);
}

TEST(unit, transform_crop_is_a_window_of_the_padded_image) {
    gt_context *ctx = test_context(t);
    gt_dataset *dataset = images(24, 1);
    gt_transform *transform = NULL;
    CHECK_OK(gt_transform_create(&transform));
    CHECK_OK(gt_transform_random_crop(transform, 3, 2, 1)); /* out of 4 x 5 */
    unsigned char out[24 * 6];
    int seen[2][4] = {{0}};
    for (int draw = 0; draw < 4 * 24; ++draw) {
        int i = draw % 24, matches = 0;
        if (i == 0) CHECK_EQ_INT(read_epoch(ctx, dataset, transform, 2, draw / 24, out), sizeof out);
        for (int place = 0; place < 8; ++place) {
            int top = place / 4, left = place % 4;
            bool same = true;
            for (int k = 0; k < 6; ++k) {
                int row = top + k / 2 - 1, column = left + k % 2 - 1;
                bool inside = row >= 0 && row < 2 && column >= 0 && column < 3;
                same = same && out[6 * i + k] == (inside ? 10 * i + 3 * row + column : 0);
            }
            matches += same;
            seen[top][left] += same;
        }
        EXPECT(matches >= 1);
    }
    for (int k = 0; k < 8; ++k) EXPECT(seen[k / 4][k % 4] > 0); /* every place is drawn */
    gt_transform_destroy(transform);
    gt_dataset_destroy(dataset);
}

TEST(unit, transform_refuses_what_does_not_fit) {
    gt_context *ctx = test_context(t);
    gt_dataset *dataset = images(2, 2), *scalars = numbers(3);
    gt_transform *transform = NULL;
    gt_loader *loader = NULL;
    gt_loader_options options = loader_options(1);
    const double mean[3] = {0, 0, 0}, std[3] = {1, 1, 1}, zero = 0;

    CHECK_OK(gt_transform_create(&transform));
    CHECK_STATUS(gt_transform_normalize(transform, mean, &zero, 1), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("deviation 0");
    CHECK_STATUS(gt_transform_horizontal_flip(transform, 1.5), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_transform_random_crop(transform, 1, 1, -1), GT_BAD_ARGUMENT);
    CHECK_OK(gt_transform_normalize(transform, mean, std, 3));
    options.transform = transform;
    CHECK_STATUS(gt_loader_create(ctx, dataset, &options, &loader), GT_BAD_DTYPE);
    CHECK_ERROR_HAS("step 0 (normalize) takes f32 samples, but gets u8");
    gt_transform_destroy(transform);

    CHECK_OK(gt_transform_create(&transform));
    CHECK_OK(gt_transform_to_float(transform, 1));
    CHECK_OK(gt_transform_normalize(transform, mean, std, 3));
    options.transform = transform;
    CHECK_STATUS(gt_loader_create(ctx, dataset, &options, &loader), GT_BAD_SHAPE);
    CHECK_ERROR_HAS("step 1 (normalize) has 3 channels, but gets samples [2,2,3]");
    gt_transform_destroy(transform);

    CHECK_OK(gt_transform_create(&transform));
    CHECK_OK(gt_transform_random_crop(transform, 5, 3, 1));
    options.transform = transform;
    CHECK_STATUS(gt_loader_create(ctx, dataset, &options, &loader), GT_BAD_SHAPE);
    CHECK_ERROR_HAS("cuts 5 x 3 out of samples [2,2,3] with padding 1");
    CHECK_STATUS(gt_loader_create(ctx, scalars, &options, &loader), GT_BAD_SHAPE);
    gt_transform_destroy(transform);
    CHECK(loader == NULL);
    gt_dataset_destroy(dataset);
    gt_dataset_destroy(scalars);
}

static gt_transform *random_steps(void) {
    gt_transform *transform = NULL;
    CHECK_OK(gt_transform_create(&transform));
    CHECK_OK(gt_transform_random_crop(transform, 0, 0, 1));
    CHECK_OK(gt_transform_horizontal_flip(transform, 0.5));
    return transform;
}

TEST(contract, F2_random_transforms_do_not_depend_on_the_worker_count) {
    gt_context *ctx = test_context(t);
    gt_dataset *dataset = images(24, 1);
    gt_transform *transform = random_steps();
    unsigned char one[24 * 6], many[24 * 6];
    (void)read_epoch(ctx, dataset, transform, 1, 3, one);
    for (int32_t workers = 2; workers <= 8; workers *= 2) {
        (void)read_epoch(ctx, dataset, transform, workers, 3, many);
        CHECK(memcmp(one, many, sizeof one) == 0);
    }
    gt_transform_destroy(transform);
    gt_dataset_destroy(dataset);
}

TEST(contract, F2_random_transforms_differ_per_sample_and_epoch) {
    gt_context *ctx = test_context(t);
    /* 24 times the same image */
    unsigned char pixels[24 * 6];
    for (int i = 0; i < 24 * 6; ++i) pixels[i] = (unsigned char)(1 + i % 6);
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.sample_dtype = GT_DTYPE_U8;
    format.has_labels = 0;
    format.sample_ndim = 2;
    format.sample_shape[0] = 2;
    format.sample_shape[1] = 3;
    format.length = 24;
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_arrays(&format, pixels, NULL, 0, &dataset));
    gt_transform *transform = random_steps();
    unsigned char first[24 * 6], second[24 * 6];
    (void)read_epoch(ctx, dataset, transform, 2, 0, first);
    (void)read_epoch(ctx, dataset, transform, 2, 1, second);
    CHECK(memcmp(first, second, sizeof first) != 0);
    int different = 0;
    for (int i = 1; i < 24; ++i) different += memcmp(first, first + 6 * i, 6) != 0;
    CHECK(different > 10);
    gt_transform_destroy(transform);
    gt_dataset_destroy(dataset);
}

/* Data sets from arrays and callbacks, and slices of them. */
#include "data/support.h"

static gt_dataset_format vector_format(int64_t length) {
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.sample_ndim = 1;
    format.sample_shape[0] = 2;
    format.length = length;
    return format;
}

static void read_first(gt_context *ctx, gt_dataset *dataset, float *x, int64_t samples) {
    gt_loader_options options = loader_options(samples);
    gt_loader *loader = NULL;
    gt_tensor *batch;
    int64_t count;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_loader_next(loader, &batch, NULL, &count));
    CHECK_EQ_INT(count, samples);
    CHECK_OK(gt_tensor_read(batch, x, gt_tensor_bytes(batch)));
    CHECK_OK(gt_scope_end(ctx));
    gt_loader_destroy(loader);
}

TEST(unit, dataset_copies_or_borrows_arrays) {
    gt_context *ctx = test_context(t);
    float samples[4] = {1, 2, 3, 4}, back[4];
    int64_t labels[2] = {0, 1};
    gt_dataset_format format = vector_format(2);
    gt_dataset *copied = NULL, *borrowed = NULL;
    CHECK_OK(gt_dataset_from_arrays(&format, samples, labels, 0, &copied));
    CHECK_OK(gt_dataset_from_arrays(&format, samples, labels, 1, &borrowed));
    samples[3] = 40;
    read_first(ctx, copied, back, 2);
    CHECK_NEAR(back[3], 4, 0);
    read_first(ctx, borrowed, back, 2);
    CHECK_NEAR(back[3], 40, 0);
    gt_dataset_destroy(copied);
    gt_dataset_destroy(borrowed);
}

TEST(unit, dataset_refuses_formats_that_make_no_sense) {
    float samples[4] = {0};
    int64_t labels[2] = {0, 5};
    gt_dataset *dataset = NULL;
    gt_dataset_format format = vector_format(2);
    format.classes = 5;
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset), GT_BAD_LABEL);
    CHECK_ERROR_HAS("sample 1: label 5, but there are 5 classes");
    format.label_dtype = GT_DTYPE_F32;
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset), GT_BAD_DTYPE);
    CHECK_ERROR_HAS("labels are f32");
    format = vector_format(-1);
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("length -1");
    format = vector_format(2);
    format.sample_shape[0] = 0;
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset), GT_BAD_SHAPE);
    format.sample_shape[0] = INT64_MAX;
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset), GT_BAD_SHAPE);
    format = vector_format(INT64_MAX);
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset), GT_BAD_SHAPE);
    format = vector_format(2);
    format.sample_ndim = GT_MAX_DIMS;
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset), GT_BAD_SHAPE);
    format = vector_format(2);
    format.sample_dtype = 99;
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset), GT_BAD_DTYPE);
    format = vector_format(2);
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, NULL, 0, &dataset), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_dataset_from_arrays(&format, NULL, labels, 0, &dataset), GT_BAD_ARGUMENT);
    format.has_labels = 0;
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, labels, 0, &dataset), GT_BAD_ARGUMENT);
    format.struct_size = 0;
    CHECK_STATUS(gt_dataset_from_arrays(&format, samples, NULL, 0, &dataset), GT_BAD_ABI);
    CHECK(dataset == NULL);
}

TEST(unit, dataset_slice_sees_its_part) {
    gt_context *ctx = test_context(t);
    gt_dataset *all = numbers(10), *part = NULL, *smaller = NULL;
    CHECK_STATUS(gt_dataset_slice(all, 8, 3, &part), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("3 samples from 8 on, but there are 10");
    CHECK_STATUS(gt_dataset_slice(all, -1, 3, &part), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_dataset_slice(all, 1, INT64_MAX, &part), GT_BAD_ARGUMENT);
    CHECK_OK(gt_dataset_slice(all, 3, 6, &part));
    CHECK_OK(gt_dataset_slice(part, 2, 4, &smaller));
    gt_dataset_destroy(all);
    gt_dataset_destroy(part);
    CHECK_EQ_INT(gt_dataset_length(smaller), 4);
    float back[4];
    read_first(ctx, smaller, back, 4);
    for (int i = 0; i < 4; ++i) CHECK_NEAR(back[i], 5 + i, 0);
    gt_dataset_destroy(smaller);
}

typedef struct made {
    int64_t offset;
    int32_t destroyed;
} made;

static gt_status make_sample(void *user, int64_t index, int64_t epoch, void *sample, void *label) {
    const made *self = user;
    ((float *)sample)[0] = (float)(index + self->offset);
    ((float *)sample)[1] = (float)epoch;
    *(int64_t *)label = index;
    return GT_OK;
}

static void destroy_made(void *user) { ((made *)user)->destroyed++; }

TEST(unit, dataset_from_callbacks_makes_samples_and_is_destroyed_once) {
    gt_context *ctx = test_context(t);
    made self = {.offset = 100};
    gt_dataset_callbacks callbacks;
    CHECK_OK(gt_dataset_callbacks_init(&callbacks, sizeof callbacks));
    gt_dataset_format format = vector_format(3);
    gt_dataset *dataset = NULL;
    CHECK_STATUS(gt_dataset_from_callbacks(&format, &callbacks, &dataset), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("callbacks.fetch is NULL");
    callbacks.user = &self;
    callbacks.fetch = make_sample;
    callbacks.destroy = destroy_made;
    CHECK_OK(gt_dataset_from_callbacks(&format, &callbacks, &dataset));
    gt_loader_options options = loader_options(2);
    gt_loader *loader = NULL;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    gt_dataset_destroy(dataset);
    CHECK_EQ_INT(self.destroyed, 0);
    CHECK_OK(gt_loader_start_epoch(loader, 5));
    gt_tensor *x, *y;
    int64_t count;
    float back[4];
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_loader_next(loader, &x, &y, &count));
    CHECK_OK(gt_tensor_read(x, back, sizeof back));
    CHECK(back[0] == 100 && back[1] == 5 && back[2] == 101 && back[3] == 5);
    CHECK_OK(gt_scope_end(ctx));
    gt_loader_destroy(loader);
    CHECK_EQ_INT(self.destroyed, 1);
}

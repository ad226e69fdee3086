/* Loaders: which batches they give, in which order, and what they refuse. */
#include "data/support.h"

static gt_loader *make_loader(gt_context *ctx, int64_t length, const gt_loader_options *options) {
    gt_dataset *dataset = numbers(length);
    gt_loader *loader = NULL;
    CHECK_OK(gt_loader_create(ctx, dataset, options, &loader));
    gt_dataset_destroy(dataset);
    return loader;
}

TEST_DEVICES(unit, loader_gives_each_sample_once_in_order) {
    gt_context *ctx = test_context(t);
    for (int32_t prefetch = 1; prefetch <= 4; ++prefetch) {
        gt_loader_options options = loader_options(7);
        options.prefetch = prefetch;
        options.workers = 3;
        gt_loader *loader = make_loader(ctx, 100, &options);
        CHECK_EQ_INT(gt_loader_batches(loader), 15);
        CHECK_EQ_INT(gt_loader_samples(loader), 100);
        for (int64_t epoch = 0; epoch < 3; ++epoch) {
            float samples[MAX_SAMPLES];
            CHECK_OK(gt_loader_start_epoch(loader, epoch));
            CHECK_EQ_INT(drain(loader, samples), 100);
            for (int i = 0; i < 100; ++i) CHECK_NEAR(samples[i], i, 0);
            CHECK_EQ_INT(drain(loader, samples), 0); /* stays at the end */
        }
        gt_loader_destroy(loader);
    }
}

TEST_DEVICES(unit, loader_last_batch_is_smaller_or_dropped) {
    gt_context *ctx = test_context(t);
    gt_loader_options options = loader_options(64);
    for (int32_t drop = 0; drop <= 1; ++drop) {
        options.drop_last = drop;
        gt_loader *loader = make_loader(ctx, 100, &options);
        gt_tensor *x, *y;
        int64_t count;
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_loader_next(loader, &x, &y, &count));
        CHECK_EQ_INT(count, 64);
        CHECK_OK(gt_loader_next(loader, &x, &y, &count));
        CHECK_EQ_INT(count, drop ? 0 : 36);
        if (drop)
            CHECK(x == NULL && y == NULL);
        else
            CHECK(gt_tensor_ndim(x) == 1 && gt_tensor_size(x, 0) == 36 && gt_tensor_size(y, 0) == 36);
        CHECK_OK(gt_scope_end(ctx));
        gt_loader_destroy(loader);
    }
}

TEST(unit, loader_batches_may_be_kept) {
    gt_context *ctx = test_context(t);
    gt_loader_options options = loader_options(4);
    gt_loader *loader = make_loader(ctx, 40, &options);
    gt_tensor *kept[10], *y;
    int64_t count;
    for (int i = 0; i < 10; ++i) { /* no scope: ours to release */
        CHECK_OK(gt_loader_next(loader, &kept[i], &y, &count));
        gt_tensor_release(y);
    }
    gt_loader_destroy(loader);
    for (int i = 0; i < 10; ++i) {
        float back[4];
        CHECK_OK(gt_tensor_read(kept[i], back, sizeof back));
        for (int k = 0; k < 4; ++k) CHECK_NEAR(back[k], 4 * i + k, 0);
        gt_tensor_release(kept[i]);
    }
}

TEST(unit, loader_batches_count_as_input) {
    gt_context *ctx = test_context(t);
    gt_loader_options options = loader_options(256);
    gt_loader *loader = make_loader(ctx, 256, &options);
    gt_tensor *x, *y;
    int64_t count;
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_loader_next(loader, &x, &y, &count));
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK_EQ_INT(stats.category_in_use[GT_MEMORY_INPUT], 256 * (4 + 8));
    CHECK_OK(gt_scope_end(ctx));
    gt_loader_destroy(loader);
}

TEST(unit, loader_continues_from_a_state) {
    gt_context *ctx = test_context(t);
    gt_loader_options options = loader_options(8);
    options.shuffle = 1;
    options.seed = 7;
    options.workers = 2;
    gt_loader *first = make_loader(ctx, 100, &options), *second = make_loader(ctx, 100, &options);
    float all[MAX_SAMPLES], rest[MAX_SAMPLES];
    CHECK_OK(gt_loader_start_epoch(first, 4));
    CHECK_OK(gt_scope_begin(ctx));
    for (int i = 0; i < 3; ++i) {
        gt_tensor *x, *y;
        int64_t count;
        CHECK_OK(gt_loader_next(first, &x, &y, &count));
    }
    CHECK_OK(gt_scope_end(ctx));
    int64_t epoch, batch;
    CHECK_OK(gt_loader_state_get(first, &epoch, &batch));
    CHECK_EQ_INT(epoch, 4);
    CHECK_EQ_INT(batch, 3);
    CHECK_EQ_INT(drain(first, all), 76);
    CHECK_OK(gt_loader_state_set(second, epoch, batch));
    CHECK_EQ_INT(drain(second, rest), 76);
    CHECK(memcmp(all, rest, 76 * sizeof(float)) == 0);
    CHECK_STATUS(gt_loader_state_set(second, 0, 14), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("cannot go to batch 14 of epoch 0; an epoch has 13 batches");
    CHECK_STATUS(gt_loader_start_epoch(second, -1), GT_BAD_ARGUMENT);
    gt_loader_destroy(first);
    gt_loader_destroy(second);
}

TEST(unit, loader_starts_over_in_the_middle_of_an_epoch) {
    gt_context *ctx = test_context(t);
    gt_loader_options options = loader_options(3);
    options.workers = 4;
    gt_loader *loader = make_loader(ctx, 60, &options);
    for (int64_t round = 0; round < 20; ++round) {
        CHECK_OK(gt_loader_start_epoch(loader, round));
        CHECK_OK(gt_scope_begin(ctx));
        for (int64_t i = 0; i <= round % 5; ++i) {
            gt_tensor *x, *y;
            int64_t count;
            CHECK_OK(gt_loader_next(loader, &x, &y, &count));
            float back[3];
            CHECK_OK(gt_tensor_read(x, back, sizeof back));
            CHECK_NEAR(back[0], 3 * i, 0);
        }
        CHECK_OK(gt_scope_end(ctx));
    }
    gt_loader_destroy(loader);
}

TEST_DEVICES(unit, loader_converts_the_dtype_on_the_device) {
    gt_context *ctx = test_context(t);
    static const gt_dtype dtypes[] = {GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; ++i) {
        gt_loader_options options = loader_options(5);
        options.dtype = dtypes[i];
        gt_loader *loader = make_loader(ctx, 5, &options);
        gt_tensor *x, *y;
        int64_t count;
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_loader_next(loader, &x, &y, &count));
        CHECK_EQ_INT(gt_tensor_dtype(x), dtypes[i]);
        double last;
        CHECK_OK(gt_tensor_item(gt_slice(x, 0, 4, 5, 1), &last));
        CHECK_NEAR(last, 4, 0);
        CHECK_OK(gt_scope_end(ctx));
        gt_loader_destroy(loader);
    }
}

TEST(unit, loader_out_of_memory_loses_no_batch) {
    gt_context *ctx = test_context(t);
    gt_loader_options options = loader_options(100);
    gt_loader *loader = make_loader(ctx, 300, &options);
    float samples[MAX_SAMPLES];
    gt_tensor *x, *y;
    int64_t count = -1;
    CHECK_OK(gt_context_set_memory_limit(ctx, 1));
    CHECK_STATUS(gt_loader_next(loader, &x, &y, &count), GT_OUT_OF_MEMORY);
    CHECK_STATUS(gt_loader_next(loader, &x, &y, &count), GT_OUT_OF_MEMORY);
    CHECK_EQ_INT(count, -1);
    CHECK_OK(gt_context_set_memory_limit(ctx, 0));
    CHECK_EQ_INT(drain(loader, samples), 300);
    for (int i = 0; i < 300; ++i) CHECK_NEAR(samples[i], i, 0);
    gt_loader_destroy(loader);
}

TEST(unit, loader_refuses_options_out_of_range) {
    gt_context *ctx = test_context(t);
    gt_dataset *dataset = numbers(10);
    gt_loader *loader = NULL;
    gt_loader_options options = loader_options(0);
    CHECK_STATUS(gt_loader_create(ctx, dataset, &options, &loader), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("batch_size 0");
    options = loader_options(1);
    options.workers = 257;
    CHECK_STATUS(gt_loader_create(ctx, dataset, &options, &loader), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("workers 257");
    options = loader_options(1);
    options.prefetch = 5;
    CHECK_STATUS(gt_loader_create(ctx, dataset, &options, &loader), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("prefetch 5");
    options = loader_options(1);
    options.timeout = -1;
    CHECK_STATUS(gt_loader_create(ctx, dataset, &options, &loader), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("timeout -1");
    options = loader_options(1);
    options.dtype = GT_DTYPE_I64;
    CHECK_STATUS(gt_loader_create(ctx, dataset, &options, &loader), GT_BAD_DTYPE);
    CHECK_ERROR_HAS("dtype i64");
    options.struct_size = 0;
    CHECK_STATUS(gt_loader_create(ctx, dataset, &options, &loader), GT_BAD_ABI);
    gt_clear_error();
    CHECK_STATUS(gt_loader_create(NULL, dataset, NULL, &loader), GT_BAD_ARGUMENT);
    CHECK(loader == NULL);
    gt_dataset_destroy(dataset);
    gt_loader_destroy(NULL);
    gt_dataset_destroy(NULL);
    gt_transform_destroy(NULL);
}

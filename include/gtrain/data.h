/* gtrain/data.h: data sets, what is done to each sample, and loaders that make batches of them in worker threads.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * gt_status count_samples(gt_context *ctx, const char *images, const char *labels, int64_t *samples) {
 *     gt_dataset *dataset = NULL;
 *     gt_transform *transform = NULL;
 *     gt_loader *loader = NULL;
 *     const double mean = 0.2860, std = 0.3530;
 *     gt_loader_options options;
 *     gt_loader_options_init(&options, sizeof options);
 *     options.batch_size = 64;
 *     options.shuffle = 1;
 *     gt_status status = gt_dataset_from_idx(images, labels, 10, &dataset);
 *     if (status == GT_OK) status = gt_transform_create(&transform);
 *     if (status == GT_OK) status = gt_transform_to_float(transform, 1.0 / 255);
 *     if (status == GT_OK) status = gt_transform_normalize(transform, &mean, &std, 1);
 *     options.transform = transform;
 *     if (status == GT_OK) status = gt_loader_create(ctx, dataset, &options, &loader);
 *     for (int64_t count = 1; status == GT_OK && count > 0;) {
 *         gt_tensor *x, *y; // [count, 1, 28, 28] and [count]
 *         gt_scope_begin(ctx);
 *         status = gt_loader_next(loader, &x, &y, &count);
 *         if (status == GT_OK) *samples += count;
 *         gt_scope_end(ctx);
 *     }
 *     gt_loader_destroy(loader);
 *     gt_transform_destroy(transform);
 *     gt_dataset_destroy(dataset);
 *     return status;
 * }
 * @endcode
 */
#ifndef GTRAIN_DATA_H
#define GTRAIN_DATA_H

#include <gtrain/tensor.h>

GT_EXTERN_C_BEGIN

/* --- data sets ---------------------------------------------------------------------------------------------------------------------
 * A data set is a number of samples of one shape and dtype, each with a label. It belongs to no context, and may feed several loaders
 * on several threads. Loaders and slices keep what they use alive, so a data set may be destroyed as soon as they are made. */

typedef struct gt_dataset_format {
    uint32_t struct_size;
    gt_dtype sample_dtype;             /* default f32 */
    gt_dtype label_dtype;              /* default i64 */
    int32_t has_labels;                /* default 1 */
    int32_t sample_ndim;               /* 0 to GT_MAX_DIMS - 1, without the batch axis; default 0 */
    int32_t label_ndim;                /* default 0: one number a sample */
    int64_t sample_shape[GT_MAX_DIMS]; /* sample_ndim entries */
    int64_t label_shape[GT_MAX_DIMS];  /* label_ndim entries */
    int64_t length;                    /* samples */
    int64_t classes;                   /* not 0: labels are integers from 0 to classes - 1, which is checked; default 0 */
} gt_dataset_format;
GT_API gt_status gt_dataset_format_init(gt_dataset_format *format, size_t size); /* @since 0.1 */

/* Reads a pair of IDX files (the format of MNIST), plain or gzip. images: unsigned bytes, [N,H,W] (samples [1,H,W]), [N,C,H,W] or
 * [N,features]. labels: unsigned bytes [N], delivered as i64; NULL for images without. classes: labels must be below it; 0: not checked.
 * BAD_FILE with the file's name, what was expected and what was found; IO; OUT_OF_HOST_MEMORY. No more memory is taken than the
 * files' contents need, whatever their headers say. @since 0.1 */
GT_API gt_status gt_dataset_from_idx(const char *images, const char *labels, int64_t classes, gt_dataset **dataset);

/* From host arrays of format->length samples and labels, row-major without holes. borrow == 0: they are copied. borrow != 0: they must stay
 * as they are until the data set and all that uses it are destroyed. labels is NULL exactly if has_labels is 0. BAD_LABEL naming the
 * first sample whose label is not below format->classes. @since 0.1 */
GT_API gt_status gt_dataset_from_arrays(const gt_dataset_format *format, const void *samples, const void *labels, int32_t borrow,
                                        gt_dataset **dataset);

/* The functions that make a data set's samples. */
typedef struct gt_dataset_callbacks {
    uint32_t struct_size;
    uint32_t padding;
    void *user; /* handed to the functions */
    /* Writes sample `index` (0 to length - 1) and its label, row-major; label is NULL without labels. Called on several worker threads
     * at once. It must not use a context, throw, or jump out. Any status but GT_OK fails the batch with WORKER. Required. */
    gt_status (*fetch)(void *user, int64_t index, int64_t epoch, void *sample, void *label);
    /* May be NULL. Called from gt_loader_destroy while fetches are running, to make them return soon; any thread. */
    void (*interrupt)(void *user);
    /* May be NULL. Called once, when nothing will call the others any more. */
    void (*destroy)(void *user);
} gt_dataset_callbacks;
GT_API gt_status gt_dataset_callbacks_init(gt_dataset_callbacks *callbacks, size_t size); /* @since 0.1 */
/* Samples made by the caller's functions. On failure `destroy` is not called. @since 0.1 */
GT_API gt_status gt_dataset_from_callbacks(const gt_dataset_format *format, const gt_dataset_callbacks *callbacks, gt_dataset **dataset);

/* `count` samples from `first` on, as a data set of its own. BAD_ARGUMENT if they are not all there. @since 0.1 */
GT_API gt_status gt_dataset_slice(gt_dataset *dataset, int64_t first, int64_t count, gt_dataset **slice);

/* Fills a format that gt_dataset_format_init has initialised. @since 0.1 */
GT_API gt_status gt_dataset_get_format(const gt_dataset *dataset, gt_dataset_format *format);
GT_API int64_t gt_dataset_length(const gt_dataset *dataset); /* 0 for NULL. @since 0.1 */
/* Gives up the caller's hold. NULL is allowed. Any thread. @since 0.1 */
GT_API void gt_dataset_destroy(gt_dataset *dataset);

/* --- transforms: steps that a loader applies to each sample, in the order in which they were added ---------------------------------------
 * What is random depends on the loader's seed, the epoch and the sample's number alone, not on the number of workers. Whether a step fits
 * the samples is checked by gt_loader_create. */
/* A list of steps, in the order in which they were added. */
typedef struct gt_transform gt_transform;
GT_API gt_status gt_transform_create(gt_transform **transform); /* one without steps. @since 0.1 */
GT_API void gt_transform_destroy(gt_transform *transform);      /* NULL is allowed; loaders have copies. @since 0.1 */
/* u8 (or f32) to f32, times scale. @since 0.1 */
GT_API gt_status gt_transform_to_float(gt_transform *transform, double scale);
/* (x - mean[c]) / std[c] for each of `channels` channels, the first axis of f32 samples; one channel serves samples of any shape.
 * @since 0.1 */
GT_API gt_status gt_transform_normalize(gt_transform *transform, const double *mean, const double *std, int32_t channels);
/* Pads the last two axes with `padding` zeros on each side and cuts out height x width at a random place (0: as before). @since 0.1 */
GT_API gt_status gt_transform_random_crop(gt_transform *transform, int64_t height, int64_t width, int64_t padding);
/* Mirrors the last axis with the given probability. @since 0.1 */
GT_API gt_status gt_transform_horizontal_flip(gt_transform *transform, double probability);

/* --- loaders -------------------------------------------------------------------------------------------------------------------------
 * Worker threads fill `prefetch` pinned host buffers. Each batch goes to the device by an asynchronous copy on a stream of its own,
 * one batch ahead. A loader belongs to its context's thread, and must be destroyed before the context. */

/* Batches in the dtype that the data set and the transform make. */
#define GT_LOADER_DTYPE_KEEP (-1)

typedef struct gt_loader_options {
    uint32_t struct_size;
    int32_t shuffle;               /* not 0: a new order each epoch; default 0 */
    int64_t batch_size;            /* default 1 */
    int32_t drop_last;             /* not 0: leaves a last, smaller batch out; default 0 */
    int32_t workers;               /* threads, 1 to 256; 0 (default): chosen by the library */
    int32_t prefetch;              /* host buffers of one batch, 1 to 4; 0 (default): 4 */
    int32_t dtype;                 /* of the samples on the device; converted there. GT_LOADER_DTYPE_KEEP (default) or a floating dtype */
    uint64_t seed;                 /* of the order and the transforms; default 0 */
    double timeout;                /* seconds that one sample may take; default 60; 0: for ever */
    const gt_transform *transform; /* NULL: none. Copied */
} gt_loader_options;
GT_API gt_status gt_loader_options_init(gt_loader_options *options, size_t size); /* @since 0.1 */

/* Starts the workers, at the beginning of epoch 0. options may be NULL. BAD_ARGUMENT, with the numbers, for a loader that would yield no
 * batch; BAD_SHAPE or BAD_DTYPE for a transform step that does not fit; OUT_OF_HOST_MEMORY. @since 0.1 */
GT_API gt_status gt_loader_create(gt_context *ctx, gt_dataset *dataset, const gt_loader_options *options, gt_loader **loader);
/* Stops the workers, waits until each has returned from the sample it is at, joins them and gives the host memory back. A fetch callback that never
 * returns, even when interrupted, makes this wait: nothing it may touch is freed under it. NULL is allowed. @since 0.1 */
GT_API void gt_loader_destroy(gt_loader *loader);

/* The next batch: samples x [count, ...] and labels y [count, ...], new tensors of the innermost scope (or the caller's own). At the epoch's end
 * GT_OK with *count 0 and both NULL. y is NULL (and may be passed as NULL) without labels. WORKER or BAD_LABEL naming the sample that failed;
 * TIMEOUT naming one that takes longer than options.timeout: the epoch is then over, and gt_loader_start_epoch begins another. OUT_OF_MEMORY
 * loses no batch. Waits for workers if they are slower, and for copies made at least `prefetch / 2` batches ago. @since 0.1 */
GT_API gt_status gt_loader_next(gt_loader *loader, gt_tensor **x, gt_tensor **y, int64_t *count);

/* Goes to the beginning of an epoch (>= 0), which sets its order and transforms. @since 0.1 */
GT_API gt_status gt_loader_start_epoch(gt_loader *loader, int64_t epoch);
/* Where the loader is: the epoch, and how many of its batches were handed out. Both may be NULL. @since 0.1 */
GT_API gt_status gt_loader_state_get(const gt_loader *loader, int64_t *epoch, int64_t *batch);
/* Continues at that batch of that epoch: the same samples follow as they would have. @since 0.1 */
GT_API gt_status gt_loader_state_set(gt_loader *loader, int64_t epoch, int64_t batch);

/* These return 0 or NULL for a NULL loader. */
GT_API int64_t gt_loader_batches(const gt_loader *loader);     /* in an epoch. @since 0.1 */
GT_API int64_t gt_loader_samples(const gt_loader *loader);     /* in an epoch. @since 0.1 */
GT_API int64_t gt_loader_batch_size(const gt_loader *loader);  /* of all batches but perhaps the last. @since 0.1 */
GT_API uint64_t gt_loader_host_bytes(const gt_loader *loader); /* pinned host memory it holds. @since 0.1 */
GT_API gt_context *gt_loader_context(const gt_loader *loader); /* borrowed. @since 0.1 */

GT_EXTERN_C_END
#endif

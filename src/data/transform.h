/* Transforms, fitted to a data set: a pipeline takes a sample as fetched and leaves it as the batch holds it. */
#ifndef GT_DATA_TRANSFORM_H
#define GT_DATA_TRANSFORM_H

#include "data/dataset.h"

typedef struct gt__pipeline {
    gt_transform *steps; /* a copy, NULL if there are none */
    gt_dtype dtype;      /* of the results */
    int32_t ndim;
    int64_t shape[GT_MAX_DIMS];
    size_t bytes;         /* of one result */
    size_t scratch_bytes; /* a worker needs two buffers of this size; 0: none */
    int32_t moves;        /* steps that write to another buffer than they read */
} gt__pipeline;

/* `transform` may be NULL. On failure nothing is left to destroy. */
gt_status gt__pipeline_create(gt__pipeline *pipeline, const gt_transform *transform, const gt_dataset *dataset);
void gt__pipeline_destroy(gt__pipeline *pipeline);

/* Fetches sample `index` and writes it, transformed, to `out` (pipeline->bytes) and `label`. Random steps draw from (key, index) alone;
 * `key` comes from the loader's seed and the epoch. Any thread. */
gt_status gt__pipeline_run(const gt__pipeline *pipeline, const gt_dataset *dataset, uint64_t key, int64_t index, int64_t epoch,
                           unsigned char *const scratch[2], void *out, void *label, gt__sample_error *error);

#endif

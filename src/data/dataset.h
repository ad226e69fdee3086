/* The inside of a data set: a format, and the functions of its kind. */
#ifndef GT_DATA_DATASET_H
#define GT_DATA_DATASET_H

#include "base/host.h"
#include <gtrain/data.h>

#include <stdatomic.h>

/* What went wrong with one sample; written by a worker, raised by the loader's thread. */
typedef struct gt__sample_error {
    gt_status status;
    char text[200]; /* "sample 17: label 12, but there are 10 classes" */
} gt__sample_error;

typedef struct gt__dataset_kind {
    /* Writes one sample. Any thread. 0 <= index < length. */
    gt_status (*fetch)(const gt_dataset *dataset, int64_t index, int64_t epoch, void *sample, void *label, gt__sample_error *error);
    void (*interrupt)(const gt_dataset *dataset); /* may be NULL */
    void (*destroy)(gt_dataset *dataset);         /* frees what `self` points to */
} gt__dataset_kind;

struct gt_dataset {
    gt_dataset_format format;
    const gt__dataset_kind *kind;
    void *self; /* the kind's own data */
    size_t sample_bytes;
    size_t label_bytes; /* 0 without labels */
    atomic_int references;
};

/* Checks `format` and makes a data set that owns `self` (also on failure: then it is left to the caller). */
gt_status gt__dataset_new(const gt_dataset_format *format, const gt__dataset_kind *kind, void *self, gt_dataset **dataset);
gt_dataset *gt__dataset_retain(gt_dataset *dataset);

/* Fetches sample `index` and checks its label. Any thread. */
gt_status gt__dataset_fetch(const gt_dataset *dataset, int64_t index, int64_t epoch, void *sample, void *label, gt__sample_error *error);
void gt__dataset_interrupt(const gt_dataset *dataset);

/* Owned arrays whose labels, if any, are single bytes that are widened to the format's i64. Takes both arrays over on success. */
gt_status gt__dataset_from_bytes(const gt_dataset_format *format, void *samples, void *labels, gt_dataset **dataset);

#endif

#include "data/dataset.h"

#include <stdio.h>

static const gt_dataset_format format_defaults = {
    .struct_size = sizeof(gt_dataset_format),
    .sample_dtype = GT_DTYPE_F32,
    .label_dtype = GT_DTYPE_I64,
    .has_labels = 1,
};

gt_status gt_dataset_format_init(gt_dataset_format *format, size_t size) {
    return gt__options_write(format, size, &format_defaults, sizeof format_defaults, "gt_dataset_format");
}

/* Bytes of one item of `shape`; leaves room for a batch axis. */
static gt_status item_bytes(const char *what, gt_dtype dtype, int32_t ndim, const int64_t *shape, size_t *bytes) {
    GT_REQUIRE(gt_dtype_size(dtype) > 0, GT_BAD_DTYPE, "dataset: %s dtype %d is not a dtype", what, (int)dtype);
    GT_REQUIRE(ndim >= 0 && ndim < GT_MAX_DIMS, GT_BAD_SHAPE, "dataset: %ss have %d axes, but 0 to %d are possible", what, (int)ndim,
               GT_MAX_DIMS - 1);
    int64_t total = (int64_t)gt_dtype_size(dtype);
    for (int32_t i = 0; i < ndim; ++i) {
        char text[GT__SHAPE_TEXT];
        GT_REQUIRE(shape[i] > 0 && shape[i] <= (INT64_C(1) << 48) / total, GT_BAD_SHAPE,
                   "dataset: %s shape %s: axis %d must be at least 1, and a %s less than 2^48 bytes", what,
                   gt__shape_text(text, sizeof text, ndim, shape), (int)i, what);
        total *= shape[i];
    }
    *bytes = (size_t)total;
    return GT_OK;
}

static gt_status format_check(const gt_dataset_format *format, size_t *sample_bytes, size_t *label_bytes) {
    GT_REQUIRE(format->length >= 0, GT_BAD_ARGUMENT, "dataset: length %lld is negative", (long long)format->length);
    GT_REQUIRE(format->classes >= 0, GT_BAD_ARGUMENT, "dataset: classes %lld is negative", (long long)format->classes);
    GT_TRY(item_bytes("sample", format->sample_dtype, format->sample_ndim, format->sample_shape, sample_bytes));
    *label_bytes = 0;
    if (format->has_labels) GT_TRY(item_bytes("label", format->label_dtype, format->label_ndim, format->label_shape, label_bytes));
    if (format->classes > 0) {
        GT_REQUIRE(format->has_labels, GT_BAD_ARGUMENT, "dataset: %lld classes without labels", (long long)format->classes);
        GT_REQUIRE(format->label_dtype == GT_DTYPE_I64 || format->label_dtype == GT_DTYPE_I32 || format->label_dtype == GT_DTYPE_U8,
                   GT_BAD_DTYPE, "dataset: labels are %s, but class numbers are i64, i32 or u8", gt_dtype_name(format->label_dtype));
    }
    int64_t most = (INT64_C(1) << 62) / (int64_t)GT__MAX(*sample_bytes, *label_bytes);
    GT_REQUIRE(format->length <= most, GT_BAD_SHAPE, "dataset: %lld samples of %zu bytes are more than an address range",
               (long long)format->length, *sample_bytes);
    return GT_OK;
}

gt_status gt__dataset_new(const gt_dataset_format *format, const gt__dataset_kind *kind, void *self, gt_dataset **result) {
    size_t sample_bytes, label_bytes;
    GT_TRY(format_check(format, &sample_bytes, &label_bytes));
    gt_dataset *dataset = gt__calloc(1, sizeof *dataset);
    if (dataset == NULL) return GT_OUT_OF_HOST_MEMORY;
    dataset->format = *format;
    dataset->kind = kind;
    dataset->self = self;
    dataset->sample_bytes = sample_bytes;
    dataset->label_bytes = label_bytes;
    atomic_init(&dataset->references, 1);
    *result = dataset;
    return GT_OK;
}

gt_dataset *gt__dataset_retain(gt_dataset *dataset) {
    atomic_fetch_add_explicit(&dataset->references, 1, memory_order_relaxed);
    return dataset;
}

void gt_dataset_destroy(gt_dataset *dataset) {
    if (dataset == NULL) return;
    if (atomic_fetch_sub_explicit(&dataset->references, 1, memory_order_acq_rel) > 1) return;
    dataset->kind->destroy(dataset);
    gt__free(dataset);
}

/* The first label of `label` that is no class, in *bad; false if all are classes. */
static bool find_bad_label(const gt_dataset_format *format, const void *label, int64_t count, int64_t *bad) {
    for (int64_t i = 0; i < count; ++i) {
        int64_t value = 0;
        if (format->label_dtype == GT_DTYPE_I64) {
            memcpy(&value, (const char *)label + 8 * i, 8);
        } else if (format->label_dtype == GT_DTYPE_I32) {
            int32_t narrow;
            memcpy(&narrow, (const char *)label + 4 * i, 4);
            value = narrow;
        } else {
            value = ((const uint8_t *)label)[i];
        }
        if (value < 0 || value >= format->classes) {
            *bad = value;
            return true;
        }
    }
    return false;
}

static gt_status label_check(const gt_dataset *dataset, int64_t index, const void *label, gt__sample_error *error) {
    int64_t bad = 0;
    int64_t count = (int64_t)(dataset->label_bytes / gt_dtype_size(dataset->format.label_dtype));
    if (!find_bad_label(&dataset->format, label, count, &bad)) return GT_OK;
    error->status = GT_BAD_LABEL;
    (void)snprintf(error->text, sizeof error->text, "sample %lld: label %lld, but there are %lld classes", (long long)index, (long long)bad,
                   (long long)dataset->format.classes);
    return GT_BAD_LABEL;
}

gt_status gt__dataset_fetch(const gt_dataset *dataset, int64_t index, int64_t epoch, void *sample, void *label, gt__sample_error *error) {
    return dataset->kind->fetch(dataset, index, epoch, sample, label, error);
}

void gt__dataset_interrupt(const gt_dataset *dataset) {
    if (dataset->kind->interrupt) dataset->kind->interrupt(dataset);
}

gt_status gt_dataset_get_format(const gt_dataset *dataset, gt_dataset_format *format) {
    GT_REQUIRE_HANDLE(dataset);
    GT_REQUIRE(format != NULL, GT_BAD_ARGUMENT, "dataset_get_format: format is NULL");
    gt_dataset_format theirs; /* for its check of struct_size */
    GT_TRY(gt__options_read(&theirs, sizeof theirs, format, "gt_dataset_format"));
    return gt__options_write(format, format->struct_size, &dataset->format, sizeof dataset->format, "gt_dataset_format");
}

int64_t gt_dataset_length(const gt_dataset *dataset) { return dataset ? dataset->format.length : 0; }

/* --- arrays ----------------------------------------------------------------------------------------------------------------------- */

typedef struct arrays {
    const unsigned char *samples;
    const unsigned char *labels;
    bool owned;
    bool widen; /* labels are stored as bytes and delivered as i64 */
} arrays;

static gt_status arrays_fetch(const gt_dataset *dataset, int64_t index, int64_t epoch, void *sample, void *label, gt__sample_error *error) {
    (void)epoch, (void)error; /* labels were checked when the data set was made */
    const arrays *self = dataset->self;
    memcpy(sample, self->samples + (size_t)index * dataset->sample_bytes, dataset->sample_bytes);
    if (self->labels == NULL) return GT_OK;
    if (self->widen) {
        int64_t value = self->labels[index];
        memcpy(label, &value, sizeof value);
    } else {
        memcpy(label, self->labels + (size_t)index * dataset->label_bytes, dataset->label_bytes);
    }
    return GT_OK;
}

static void arrays_destroy(gt_dataset *dataset) {
    arrays *self = dataset->self;
    if (self->owned) {
        gt__free((void *)self->samples);
        gt__free((void *)self->labels);
    }
    gt__free(self);
}

static const gt__dataset_kind arrays_kind = {.fetch = arrays_fetch, .destroy = arrays_destroy};

gt_status gt__dataset_from_bytes(const gt_dataset_format *format, void *samples, void *labels, gt_dataset **dataset) {
    arrays *self = gt__calloc(1, sizeof *self);
    if (self == NULL) return GT_OUT_OF_HOST_MEMORY;
    *self = (arrays){.samples = samples, .labels = labels, .owned = true, .widen = true};
    gt_status status = gt__dataset_new(format, &arrays_kind, self, dataset);
    if (status != GT_OK) gt__free(self);
    return status;
}

static gt_status copy_array(const void *from, size_t bytes, const unsigned char **copy) {
    void *memory = gt__malloc(bytes);
    if (memory == NULL) return GT_OUT_OF_HOST_MEMORY;
    memcpy(memory, from, bytes);
    *copy = memory;
    return GT_OK;
}

gt_status gt_dataset_from_arrays(const gt_dataset_format *caller_format, const void *samples, const void *labels, int32_t borrow,
                                 gt_dataset **result) {
    GT_REQUIRE(caller_format != NULL, GT_BAD_ARGUMENT, "dataset_from_arrays: format is NULL");
    GT_REQUIRE(result != NULL, GT_BAD_ARGUMENT, "dataset_from_arrays: the result pointer is NULL");
    gt_dataset_format format = format_defaults;
    GT_TRY(gt__options_read(&format, sizeof format, caller_format, "gt_dataset_format"));
    GT_REQUIRE(samples != NULL || format.length == 0, GT_BAD_ARGUMENT, "dataset_from_arrays: samples is NULL, but the length is %lld",
               (long long)format.length);
    GT_REQUIRE(format.has_labels ? labels != NULL || format.length == 0 : labels == NULL, GT_BAD_ARGUMENT,
               "dataset_from_arrays: labels is %s, but has_labels is %d", labels ? "set" : "NULL", (int)format.has_labels);

    arrays *self = gt__calloc(1, sizeof *self);
    if (self == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_dataset *dataset = NULL;
    gt_status status = gt__dataset_new(&format, &arrays_kind, self, &dataset);
    if (status != GT_OK) {
        gt__free(self);
        return status;
    }
    self->owned = !borrow;
    if (borrow) {
        self->samples = samples;
        self->labels = labels;
    } else {
        size_t length = (size_t)format.length;
        if (samples) GT_TRY_GOTO(status, copy_array(samples, length * dataset->sample_bytes, &self->samples), fail);
        if (labels) GT_TRY_GOTO(status, copy_array(labels, length * dataset->label_bytes, &self->labels), fail);
    }
    for (int64_t i = 0; format.classes > 0 && i < format.length; ++i) {
        gt__sample_error error;
        if (label_check(dataset, i, self->labels + (size_t)i * dataset->label_bytes, &error) != GT_OK) {
            status = GT_RAISE(error.status, "dataset_from_arrays: %s", error.text);
            goto fail;
        }
    }
    *result = dataset;
    return GT_OK;
fail:
    gt_dataset_destroy(dataset);
    return status;
}

/* --- callbacks -------------------------------------------------------------------------------------------------------------------- */

static const gt_dataset_callbacks callbacks_defaults = {.struct_size = sizeof(gt_dataset_callbacks)};

gt_status gt_dataset_callbacks_init(gt_dataset_callbacks *callbacks, size_t size) {
    return gt__options_write(callbacks, size, &callbacks_defaults, sizeof callbacks_defaults, "gt_dataset_callbacks");
}

static gt_status callbacks_fetch(const gt_dataset *dataset, int64_t index, int64_t epoch, void *sample, void *label,
                                 gt__sample_error *error) {
    const gt_dataset_callbacks *self = dataset->self;
    gt_status status = self->fetch(self->user, index, epoch, sample, label);
    if (status != GT_OK) {
        error->status = GT_WORKER;
        (void)snprintf(error->text, sizeof error->text, "sample %lld: the fetch callback returned %s (%d)", (long long)index,
                       gt_status_name(status), (int)status);
        return GT_WORKER;
    }
    return dataset->format.classes > 0 ? label_check(dataset, index, label, error) : GT_OK;
}

static void callbacks_interrupt(const gt_dataset *dataset) {
    const gt_dataset_callbacks *self = dataset->self;
    if (self->interrupt) self->interrupt(self->user);
}

static void callbacks_destroy(gt_dataset *dataset) {
    gt_dataset_callbacks *self = dataset->self;
    if (self->destroy) self->destroy(self->user);
    gt__free(self);
}

static const gt__dataset_kind callbacks_kind = {.fetch = callbacks_fetch, .interrupt = callbacks_interrupt, .destroy = callbacks_destroy};

gt_status gt_dataset_from_callbacks(const gt_dataset_format *caller_format, const gt_dataset_callbacks *callbacks, gt_dataset **dataset) {
    GT_REQUIRE(caller_format != NULL && callbacks != NULL && dataset != NULL, GT_BAD_ARGUMENT, "dataset_from_callbacks: %s is NULL",
               caller_format == NULL ? "format"
               : callbacks == NULL   ? "callbacks"
                                     : "the result pointer");
    gt_dataset_format format = format_defaults;
    GT_TRY(gt__options_read(&format, sizeof format, caller_format, "gt_dataset_format"));
    gt_dataset_callbacks ours = callbacks_defaults;
    GT_TRY(gt__options_read(&ours, sizeof ours, callbacks, "gt_dataset_callbacks"));
    GT_REQUIRE(ours.fetch != NULL, GT_BAD_ARGUMENT, "dataset_from_callbacks: callbacks.fetch is NULL");
    gt_dataset_callbacks *self = gt__malloc(sizeof *self);
    if (self == NULL) return GT_OUT_OF_HOST_MEMORY;
    *self = ours;
    gt_status status = gt__dataset_new(&format, &callbacks_kind, self, dataset);
    if (status != GT_OK) gt__free(self);
    return status;
}

/* --- slices ----------------------------------------------------------------------------------------------------------------------- */

typedef struct slice {
    gt_dataset *parent; /* counted */
    int64_t first;
} slice;

static gt_status slice_fetch(const gt_dataset *dataset, int64_t index, int64_t epoch, void *sample, void *label, gt__sample_error *error) {
    const slice *self = dataset->self;
    return gt__dataset_fetch(self->parent, self->first + index, epoch, sample, label, error);
}

static void slice_interrupt(const gt_dataset *dataset) { gt__dataset_interrupt(((const slice *)dataset->self)->parent); }

static void slice_destroy(gt_dataset *dataset) {
    slice *self = dataset->self;
    gt_dataset_destroy(self->parent);
    gt__free(self);
}

static const gt__dataset_kind slice_kind = {.fetch = slice_fetch, .interrupt = slice_interrupt, .destroy = slice_destroy};

gt_status gt_dataset_slice(gt_dataset *dataset, int64_t first, int64_t count, gt_dataset **result) {
    GT_REQUIRE_HANDLE(dataset);
    GT_REQUIRE(result != NULL, GT_BAD_ARGUMENT, "dataset_slice: the result pointer is NULL");
    int64_t length = dataset->format.length;
    GT_REQUIRE(first >= 0 && count >= 0 && first <= length && count <= length - first, GT_BAD_ARGUMENT,
               "dataset_slice: %lld samples from %lld on, but there are %lld", (long long)count, (long long)first, (long long)length);
    slice *self = gt__malloc(sizeof *self);
    if (self == NULL) return GT_OUT_OF_HOST_MEMORY;
    *self = (slice){.parent = gt__dataset_retain(dataset), .first = first};
    gt_dataset_format format = dataset->format;
    format.length = count;
    gt_status status = gt__dataset_new(&format, &slice_kind, self, result);
    if (status != GT_OK) {
        gt_dataset_destroy(self->parent);
        gt__free(self);
    }
    return status;
}

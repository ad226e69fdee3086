#include "data/transform.h"
#include "data/random.h"

#include <math.h>

typedef enum step_kind { TO_FLOAT, NORMALIZE, RANDOM_CROP, HORIZONTAL_FLIP } step_kind;

static const char *const step_names[] = {"to_float", "normalize", "random_crop", "horizontal_flip"};

typedef struct step {
    step_kind kind;
    int32_t channels;         /* normalize */
    float *mean, *std;        /* normalize: one allocation, at mean */
    float scale;              /* to_float */
    double probability;       /* horizontal_flip */
    int64_t crop[2], padding; /* random_crop; 0: as before, until fitted */
    /* fitted: what the step gets, as [planes, height, width] */
    gt_dtype dtype;
    int64_t planes, height, width;
} step;

struct gt_transform {
    step *steps;
    int32_t count, capacity;
};

gt_status gt_transform_create(gt_transform **transform) {
    GT_REQUIRE(transform != NULL, GT_BAD_ARGUMENT, "transform_create: the result pointer is NULL");
    gt_transform *made = gt__calloc(1, sizeof *made);
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    *transform = made;
    return GT_OK;
}

void gt_transform_destroy(gt_transform *transform) {
    if (transform == NULL) return;
    for (int32_t i = 0; i < transform->count; ++i) gt__free(transform->steps[i].mean);
    gt__free(transform->steps);
    gt__free(transform);
}

static gt_status add_step(gt_transform *transform, const step *what) {
    if (transform->count == transform->capacity) {
        int32_t capacity = transform->capacity ? 2 * transform->capacity : 4;
        step *steps = gt__realloc(transform->steps, (size_t)capacity * sizeof *steps);
        if (steps == NULL) return GT_OUT_OF_HOST_MEMORY;
        transform->steps = steps;
        transform->capacity = capacity;
    }
    transform->steps[transform->count++] = *what;
    return GT_OK;
}

gt_status gt_transform_to_float(gt_transform *transform, double scale) {
    GT_REQUIRE_HANDLE(transform);
    GT_REQUIRE(isfinite(scale), GT_BAD_ARGUMENT, "transform_to_float: scale %g is not finite", scale);
    return add_step(transform, &(step){.kind = TO_FLOAT, .scale = (float)scale});
}

gt_status gt_transform_normalize(gt_transform *transform, const double *mean, const double *std, int32_t channels) {
    GT_REQUIRE_HANDLE(transform);
    GT_REQUIRE(mean != NULL && std != NULL && channels > 0, GT_BAD_ARGUMENT, "transform_normalize: mean is %s, std is %s, channels %d",
               mean ? "set" : "NULL", std ? "set" : "NULL", (int)channels);
    for (int32_t i = 0; i < channels; ++i)
        GT_REQUIRE(isfinite(mean[i]) && isfinite(std[i]) && (float)std[i] > 0, GT_BAD_ARGUMENT,
                   "transform_normalize: channel %d has mean %g and deviation %g; the deviation must be above 0", (int)i, mean[i], std[i]);
    step made = {.kind = NORMALIZE, .channels = channels};
    made.mean = gt__malloc(2 * (size_t)channels * sizeof(float));
    if (made.mean == NULL) return GT_OUT_OF_HOST_MEMORY;
    made.std = made.mean + channels;
    for (int32_t i = 0; i < channels; ++i) {
        made.mean[i] = (float)mean[i];
        made.std[i] = (float)std[i];
    }
    gt_status status = add_step(transform, &made);
    if (status != GT_OK) gt__free(made.mean);
    return status;
}

gt_status gt_transform_random_crop(gt_transform *transform, int64_t height, int64_t width, int64_t padding) {
    GT_REQUIRE_HANDLE(transform);
    GT_REQUIRE(height >= 0 && width >= 0 && padding >= 0 && height < INT32_MAX && width < INT32_MAX && padding < INT32_MAX / 4,
               GT_BAD_ARGUMENT, "transform_random_crop: height %lld, width %lld, padding %lld", (long long)height, (long long)width,
               (long long)padding);
    return add_step(transform, &(step){.kind = RANDOM_CROP, .crop = {height, width}, .padding = padding});
}

gt_status gt_transform_horizontal_flip(gt_transform *transform, double probability) {
    GT_REQUIRE_HANDLE(transform);
    GT_REQUIRE(probability >= 0 && probability <= 1, GT_BAD_ARGUMENT, "transform_horizontal_flip: probability %g is not from 0 to 1",
               probability);
    return add_step(transform, &(step){.kind = HORIZONTAL_FLIP, .probability = probability});
}

/* --- fitting ---------------------------------------------------------------------------------------------------------------------- */

/* Checks one step against the samples it will get, and moves the pipeline's dtype and shape past it. */
static gt_status fit_step(step *what, int32_t number, gt__pipeline *pipeline) {
    const char *name = step_names[what->kind];
    char text[GT__SHAPE_TEXT];
    int32_t ndim = pipeline->ndim;
    int64_t *shape = pipeline->shape;
    gt__shape_text(text, sizeof text, ndim, shape);

    what->dtype = pipeline->dtype;
    what->planes = what->height = what->width = 1;
    for (int32_t i = 0; i < ndim - 2; ++i) what->planes *= shape[i];
    if (ndim >= 2) what->height = shape[ndim - 2];
    if (ndim >= 1) what->width = shape[ndim - 1];

    switch (what->kind) {
    case TO_FLOAT:
        GT_REQUIRE(what->dtype == GT_DTYPE_U8 || what->dtype == GT_DTYPE_F32, GT_BAD_DTYPE,
                   "loader: transform step %d (%s) takes u8 or f32 samples, but gets %s", (int)number, name, gt_dtype_name(what->dtype));
        pipeline->dtype = GT_DTYPE_F32;
        break;
    case NORMALIZE:
        GT_REQUIRE(what->dtype == GT_DTYPE_F32, GT_BAD_DTYPE,
                   "loader: transform step %d (%s) takes f32 samples, but gets %s: put to_float before it", (int)number, name,
                   gt_dtype_name(what->dtype));
        GT_REQUIRE(what->channels == 1 || (ndim > 0 && shape[0] == what->channels), GT_BAD_SHAPE,
                   "loader: transform step %d (%s) has %d channels, but gets samples %s", (int)number, name, (int)what->channels, text);
        break;
    case RANDOM_CROP:
        GT_REQUIRE(ndim >= 2, GT_BAD_SHAPE, "loader: transform step %d (%s) needs at least 2 axes, but gets samples %s", (int)number, name,
                   text);
        for (int i = 0; i < 2; ++i) {
            int64_t *size = &shape[ndim - 2 + i];
            if (what->crop[i] == 0) what->crop[i] = *size;
            GT_REQUIRE(what->crop[i] - 2 * what->padding <= *size, GT_BAD_SHAPE,
                       "loader: transform step %d (%s) cuts %lld x %lld out of samples %s with padding %lld", (int)number, name,
                       (long long)what->crop[0], (long long)what->crop[1], text, (long long)what->padding);
            *size = what->crop[i];
        }
        break;
    case HORIZONTAL_FLIP:
        GT_REQUIRE(ndim >= 1, GT_BAD_SHAPE, "loader: transform step %d (%s) needs an axis to mirror, but samples are single numbers",
                   (int)number, name);
        break;
    }
    return GT_OK;
}

static gt_status pipeline_bytes(gt__pipeline *pipeline) {
    int64_t bytes = (int64_t)gt_dtype_size(pipeline->dtype);
    for (int32_t i = 0; i < pipeline->ndim; ++i) {
        GT_REQUIRE(pipeline->shape[i] <= (INT64_C(1) << 48) / bytes, GT_BAD_SHAPE, "loader: transformed samples are 2^48 bytes or more");
        bytes *= pipeline->shape[i];
    }
    pipeline->bytes = (size_t)bytes;
    return GT_OK;
}

static bool moves(const step *what) { return what->kind == TO_FLOAT || what->kind == RANDOM_CROP; }

static gt_status copy_steps(gt__pipeline *pipeline, const gt_transform *transform) {
    GT_TRY(gt_transform_create(&pipeline->steps));
    for (int32_t i = 0; i < transform->count; ++i) {
        step copy = transform->steps[i];
        if (copy.kind == NORMALIZE) {
            size_t bytes = 2 * (size_t)copy.channels * sizeof(float);
            const float *from = copy.mean;
            copy.mean = gt__malloc(bytes);
            if (copy.mean == NULL) return GT_OUT_OF_HOST_MEMORY;
            memcpy(copy.mean, from, bytes);
            copy.std = copy.mean + copy.channels;
        }
        gt_status status = add_step(pipeline->steps, &copy);
        if (status != GT_OK) {
            gt__free(copy.mean);
            return status;
        }
    }
    return GT_OK;
}

gt_status gt__pipeline_create(gt__pipeline *pipeline, const gt_transform *transform, const gt_dataset *dataset) {
    *pipeline = (gt__pipeline){.dtype = dataset->format.sample_dtype, .ndim = dataset->format.sample_ndim, .bytes = dataset->sample_bytes};
    memcpy(pipeline->shape, dataset->format.sample_shape, sizeof pipeline->shape);
    if (transform == NULL) return GT_OK;
    gt_status status = copy_steps(pipeline, transform);
    size_t largest = pipeline->bytes;
    for (int32_t i = 0; status == GT_OK && i < transform->count; ++i) {
        step *what = &pipeline->steps->steps[i];
        status = fit_step(what, i, pipeline);
        if (status == GT_OK) status = pipeline_bytes(pipeline);
        largest = GT__MAX(largest, pipeline->bytes);
        pipeline->moves += moves(what);
    }
    if (pipeline->moves > 0) pipeline->scratch_bytes = largest;
    if (status != GT_OK) gt__pipeline_destroy(pipeline);
    return status;
}

void gt__pipeline_destroy(gt__pipeline *pipeline) {
    gt_transform_destroy(pipeline->steps);
    pipeline->steps = NULL;
}

/* --- running ---------------------------------------------------------------------------------------------------------------------- */

static void run_to_float(const step *what, const unsigned char *in, float *out) {
    int64_t n = what->planes * what->height * what->width;
    if (what->dtype == GT_DTYPE_U8) {
        for (int64_t i = 0; i < n; ++i) out[i] = (float)in[i] * what->scale;
    } else {
        const float *from = (const float *)(const void *)in;
        for (int64_t i = 0; i < n; ++i) out[i] = from[i] * what->scale;
    }
}

static void run_normalize(const step *what, float *x) {
    int64_t n = what->planes * what->height * what->width / what->channels;
    for (int32_t c = 0; c < what->channels; ++c) {
        float mean = what->mean[c], std = what->std[c];
        for (int64_t i = 0; i < n; ++i) x[i] = (x[i] - mean) / std;
        x += n;
    }
}

static void run_random_crop(const step *what, gt__philox_block random, const unsigned char *in, unsigned char *out) {
    size_t element = gt_dtype_size(what->dtype);
    int64_t height = what->crop[0], width = what->crop[1];
    /* the window's corner in the image, which begins at (0, 0) and may be left on every side by the padding */
    int64_t top = gt__below(random.word[0], what->height + 2 * what->padding - height + 1) - what->padding;
    int64_t left = gt__below(random.word[1], what->width + 2 * what->padding - width + 1) - what->padding;
    int64_t first = GT__MAX(left, 0), last = GT__MIN(left + width, what->width); /* columns that are there */
    bool inside = top >= 0 && left >= 0 && top + height <= what->height && left + width <= what->width;
    if (!inside) memset(out, 0, (size_t)(what->planes * height * width) * element);
    for (int64_t plane = 0; plane < what->planes && first < last; ++plane) {
        for (int64_t row = 0; row < height; ++row) {
            int64_t from = top + row;
            if (from < 0 || from >= what->height) continue;
            memcpy(out + (size_t)((plane * height + row) * width + first - left) * element,
                   in + (size_t)((plane * what->height + from) * what->width + first) * element, (size_t)(last - first) * element);
        }
    }
}

#define REVERSE_ROWS(type)                                                                                                                 \
    for (int64_t row = 0; row < rows; ++row) {                                                                                             \
        type *x = (type *)data + row * width;                                                                                              \
        for (int64_t a = 0, b = width - 1; a < b; ++a, --b) {                                                                              \
            type kept = x[a];                                                                                                              \
            x[a] = x[b];                                                                                                                   \
            x[b] = kept;                                                                                                                   \
        }                                                                                                                                  \
    }

static void run_horizontal_flip(const step *what, gt__philox_block random, void *data) {
    if (gt__philox_uniform_f64(random.word[0]) >= what->probability) return;
    int64_t rows = what->planes * what->height, width = what->width;
    switch (gt_dtype_size(what->dtype)) {
    case 1:
        REVERSE_ROWS(uint8_t) break;
    case 2:
        REVERSE_ROWS(uint16_t) break;
    case 4:
        REVERSE_ROWS(uint32_t) break;
    default:
        REVERSE_ROWS(uint64_t) break;
    }
}

gt_status gt__pipeline_run(const gt__pipeline *pipeline, const gt_dataset *dataset, uint64_t key, int64_t index, int64_t epoch,
                           unsigned char *const scratch[2], void *out, void *label, gt__sample_error *error) {
    /* The last step that moves the sample writes to `out`. */
    int32_t moved = 0;
    unsigned char *now = pipeline->moves == 0 ? out : scratch[0];
    GT_TRY(gt__dataset_fetch(dataset, index, epoch, now, label, error));
    if (pipeline->steps == NULL) return GT_OK;

    uint64_t sample_key = gt__key_child(key, (uint64_t)index);
    for (int32_t i = 0; i < pipeline->steps->count; ++i) {
        const step *what = &pipeline->steps->steps[i];
        unsigned char *next = now;
        if (moves(what)) next = ++moved == pipeline->moves ? out : scratch[moved & 1];
        switch (what->kind) {
        case TO_FLOAT:
            run_to_float(what, now, (float *)(void *)next);
            break;
        case NORMALIZE:
            run_normalize(what, (float *)(void *)next);
            break;
        case RANDOM_CROP:
            run_random_crop(what, gt__philox(sample_key, (uint64_t)i), now, next);
            break;
        case HORIZONTAL_FLIP:
            run_horizontal_flip(what, gt__philox(sample_key, (uint64_t)i), next);
            break;
        }
        now = next;
    }
    return GT_OK;
}

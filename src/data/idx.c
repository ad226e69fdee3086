/* The IDX format of MNIST: two zero bytes, a type, a number of axes, big-endian sizes, the elements. */
#include "data/dataset.h"
#include "data/file.h"

enum { MAX_AXES = 4, TYPE_UNSIGNED_BYTE = 0x08 };

typedef struct idx {
    gt__file *file;
    const char *path;
    int64_t shape[MAX_AXES];
    int32_t ndim;
    int64_t elements;
    unsigned char *data; /* the caller's, once idx_read has returned GT_OK */
} idx;

static const char *type_name(unsigned type) {
    switch (type) {
    case 0x08:
        return "unsigned bytes";
    case 0x09:
        return "signed bytes";
    case 0x0B:
        return "16-bit integers";
    case 0x0C:
        return "32-bit integers";
    case 0x0D:
        return "32-bit floats";
    case 0x0E:
        return "64-bit floats";
    default:
        return "an unknown type";
    }
}

static gt_status read_header(idx *in, const char *what, int min_axes, int max_axes) {
    unsigned char bytes[4 + 4 * MAX_AXES];
    size_t got = 0;
    GT_TRY(gt__file_read(in->file, bytes, 4, &got));
    GT_REQUIRE(got == 4, GT_BAD_FILE, "%s: expected an IDX header of 4 bytes, found %zu bytes", in->path, got);
    GT_REQUIRE(bytes[0] != 0x1f || bytes[1] != 0x8b, GT_BAD_FILE,
               "%s: expected IDX data, found gzip data inside the gzip data: the file was compressed twice", in->path);
    GT_REQUIRE(bytes[0] == 0 && bytes[1] == 0, GT_BAD_FILE, "%s: expected an IDX file, which begins with 00 00, found %02x %02x", in->path,
               bytes[0], bytes[1]);
    GT_REQUIRE(bytes[2] == TYPE_UNSIGNED_BYTE, GT_BAD_FILE, "%s: expected unsigned bytes (type 08), found %s (type %02x)", in->path,
               type_name(bytes[2]), bytes[2]);
    GT_REQUIRE(bytes[3] >= min_axes && bytes[3] <= max_axes, GT_BAD_FILE, "%s: expected %s with %d%s axes, found %d%s", in->path, what,
               min_axes, min_axes == max_axes ? "" : " to 4", bytes[3],
               bytes[3] == 1   ? " (a file of labels?)"
               : bytes[3] == 3 ? " (a file of images?)"
                               : "");
    in->ndim = bytes[3];

    size_t sizes = 4 * (size_t)in->ndim;
    GT_TRY(gt__file_read(in->file, bytes + 4, sizes, &got));
    GT_REQUIRE(got == sizes, GT_BAD_FILE, "%s: expected an IDX header of %zu bytes, found %zu bytes", in->path, 4 + sizes, 4 + got);
    in->elements = 1;
    int64_t sample = 1; /* bounded by itself: a file without samples may claim any size for them */
    for (int32_t i = 0; i < in->ndim; ++i) {
        const unsigned char *b = bytes + 4 + 4 * i;
        int64_t n = (int64_t)b[0] << 24 | (int64_t)b[1] << 16 | (int64_t)b[2] << 8 | (int64_t)b[3];
        in->shape[i] = n;
        GT_REQUIRE(i == 0 || n > 0, GT_BAD_FILE, "%s: expected a size of at least 1 for axis %d, found 0", in->path, (int)i);
        GT_REQUIRE(n == 0 || (in->elements <= (INT64_C(1) << 62) / n && (i == 0 || sample < (INT64_C(1) << 48) / n)), GT_BAD_FILE,
                   "%s: expected sizes that fit in memory, found axes of %lld, %lld, … elements", in->path, (long long)in->shape[0],
                   (long long)in->shape[1]);
        if (i > 0) sample *= n;
        in->elements *= n;
    }
    return GT_OK;
}

/* Compares the header with what is there before anything is allocated by it. */
static gt_status check_length(idx *in) {
    int64_t header = 4 + 4 * (int64_t)in->ndim;
    int64_t found = 0;
    bool more = false;
    if (gt__file_is_gzip(in->file)) {
        unsigned char chunk[16 * 1024];
        size_t got = sizeof chunk;
        while (got == sizeof chunk && found <= in->elements) {
            GT_TRY(gt__file_read(in->file, chunk, sizeof chunk, &got));
            found += (int64_t)got;
        }
        more = found > in->elements;
    } else {
        found = (int64_t)gt__file_size(in->file) - header;
    }
    char text[GT__SHAPE_TEXT];
    GT_REQUIRE(found == in->elements, GT_BAD_FILE, "%s: expected %lld bytes of data for %s, found %s%lld: the file %s", in->path,
               (long long)in->elements, gt__shape_text(text, sizeof text, in->ndim, in->shape), more ? "at least " : "", (long long)found,
               found < in->elements ? "is truncated" : "has something after its data");
    return GT_OK;
}

static gt_status read_data(idx *in) {
    unsigned char header[4 + 4 * MAX_AXES];
    size_t got = 0, size = (size_t)in->elements;
    if (gt__file_is_gzip(in->file)) {
        GT_TRY(gt__file_rewind(in->file));
        GT_TRY(gt__file_read(in->file, header, 4 + 4 * (size_t)in->ndim, &got));
    }
    in->data = gt__malloc(size);
    if (in->data == NULL) return GT_OUT_OF_HOST_MEMORY;
    GT_TRY(gt__file_read(in->file, in->data, size, &got));
    GT_REQUIRE(got == size, GT_BAD_FILE, "%s: expected %zu bytes of data, found %zu: the file changed while it was read", in->path, size,
               got);
    return GT_OK;
}

static gt_status idx_read(const char *path, const char *what, int min_axes, int max_axes, idx *in) {
    *in = (idx){.path = path};
    GT_TRY(gt__file_open(path, &in->file));
    gt_status status = read_header(in, what, min_axes, max_axes);
    if (status == GT_OK) status = check_length(in);
    if (status == GT_OK) status = read_data(in);
    gt__file_close(in->file);
    in->file = NULL;
    if (status != GT_OK) {
        gt__free(in->data);
        in->data = NULL;
    }
    return status;
}

gt_status gt_dataset_from_idx(const char *images_path, const char *labels_path, int64_t classes, gt_dataset **dataset) {
    GT_REQUIRE(images_path != NULL, GT_BAD_ARGUMENT, "dataset_from_idx: the path of the images is NULL");
    GT_REQUIRE(dataset != NULL, GT_BAD_ARGUMENT, "dataset_from_idx: the result pointer is NULL");
    GT_REQUIRE(classes >= 0 && (classes == 0 || labels_path != NULL), GT_BAD_ARGUMENT, "dataset_from_idx: %lld classes%s",
               (long long)classes, labels_path ? "" : " without a file of labels");
    idx images = {0}, labels = {0};
    gt_status status = idx_read(images_path, "images", 2, 4, &images);
    if (status != GT_OK) return status;
    if (labels_path) {
        GT_TRY_GOTO(status, idx_read(labels_path, "labels", 1, 1, &labels), fail);
        if (labels.elements != images.shape[0]) {
            status = GT_RAISE(GT_BAD_FILE, "%s: expected %lld labels, one for each image of %s, found %lld", labels_path,
                              (long long)images.shape[0], images_path, (long long)labels.elements);
            goto fail;
        }
        for (int64_t i = 0; classes > 0 && i < labels.elements; ++i) {
            if (labels.data[i] >= classes) {
                status = GT_RAISE(GT_BAD_FILE, "%s: expected labels from 0 to %lld, found %d for sample %lld", labels_path,
                                  (long long)classes - 1, labels.data[i], (long long)i);
                goto fail;
            }
        }
    }

    gt_dataset_format format;
    GT_TRY_GOTO(status, gt_dataset_format_init(&format, sizeof format), fail);
    format.sample_dtype = GT_DTYPE_U8;
    format.has_labels = labels_path != NULL;
    format.length = images.shape[0];
    format.classes = classes;
    if (images.ndim == 3) format.sample_shape[format.sample_ndim++] = 1;
    for (int32_t i = 1; i < images.ndim; ++i) format.sample_shape[format.sample_ndim++] = images.shape[i];
    GT_TRY_GOTO(status, gt__dataset_from_bytes(&format, images.data, labels.data, dataset), fail);
    return GT_OK;
fail:
    gt__free(images.data);
    gt__free(labels.data);
    return status;
}

/* IDX files: good ones, and every way in which one is refused (F3). */
#include "data/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* 3 images of 2 x 2, and their labels. */
static const unsigned char images_bytes[] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255};
static const unsigned char labels_bytes[] = {0, 0, 8, 1, 0, 0, 0, 3, 4, 0, 9};

static uint32_t crc32_of(const unsigned char *bytes, size_t size) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; ++i) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void put32(unsigned char *to, uint32_t value) {
    for (int i = 0; i < 4; ++i) to[i] = (unsigned char)(value >> (8 * i));
}

/* One gzip member with a single stored block; returns its size. */
static size_t gzip(const unsigned char *bytes, size_t size, unsigned char *out) {
    static const unsigned char header[10] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255};
    memcpy(out, header, 10);
    out[10] = 1;
    out[11] = (unsigned char)size;
    out[12] = (unsigned char)(size >> 8);
    out[13] = (unsigned char)~out[11];
    out[14] = (unsigned char)~out[12];
    memcpy(out + 15, bytes, size);
    put32(out + 15 + size, crc32_of(bytes, size));
    put32(out + 19 + size, (uint32_t)size);
    return size + 23;
}

static void skip_without_zlib(test_case *t) {
    unsigned char packed[128];
    size_t size = gzip(images_bytes, sizeof images_bytes, packed);
    gt_dataset *dataset = NULL;
    gt_status status = gt_dataset_from_idx(write_file(t, "probe.gz", packed, size), NULL, 0, &dataset);
    gt_dataset_destroy(dataset);
    if (status == GT_OK) return;
    CHECK_STATUS(status, GT_BAD_FILE);
    CHECK_ERROR_HAS("reads no compressed files");
    SKIP("built without zlib");
}

/* Both files as given; expects BAD_FILE (unless `want` says otherwise) that names the file `culprit` and has both texts. */
static void refuse(test_case *t, const void *images, size_t images_size, const void *labels, size_t labels_size, const char *culprit,
                   const char *expected, const char *found) {
    char images_path[512], labels_path[512];
    (void)snprintf(images_path, sizeof images_path, "%s", write_file(t, "images", images, images_size));
    (void)snprintf(labels_path, sizeof labels_path, "%s", write_file(t, "labels", labels, labels_size));
    gt_dataset *dataset = NULL;
    EXPECT_STATUS(gt_dataset_from_idx(images_path, labels_path, 10, &dataset), GT_BAD_FILE);
    EXPECT(dataset == NULL);
    EXPECT_ERROR_HAS(culprit);
    EXPECT_ERROR_HAS(expected);
    EXPECT_ERROR_HAS(found);
    gt_dataset_destroy(dataset);
}

static void refuse_images(test_case *t, const void *images, size_t size, const char *expected, const char *found) {
    refuse(t, images, size, labels_bytes, sizeof labels_bytes, "/images:", expected, found);
}

static void refuse_labels(test_case *t, const void *labels, size_t size, const char *expected, const char *found) {
    refuse(t, images_bytes, sizeof images_bytes, labels, size, "/labels:", expected, found);
}

static void check_contents(test_case *t, gt_dataset *dataset) {
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    CHECK_OK(gt_dataset_get_format(dataset, &format));
    CHECK_EQ_INT(format.length, 3);
    CHECK_EQ_INT(format.sample_dtype, GT_DTYPE_U8);
    CHECK_EQ_INT(format.label_dtype, GT_DTYPE_I64);
    CHECK_EQ_INT(format.sample_ndim, 3);
    CHECK_EQ_INT(format.sample_shape[0], 1);
    CHECK_EQ_INT(format.sample_shape[1], 2);
    CHECK_EQ_INT(format.sample_shape[2], 2);

    gt_context *ctx = test_context(t);
    gt_loader_options options = loader_options(3);
    gt_loader *loader = NULL;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x, *y;
    int64_t count;
    CHECK_OK(gt_loader_next(loader, &x, &y, &count));
    CHECK_EQ_INT(count, 3);
    unsigned char pixels[12];
    int64_t labels[3];
    CHECK_OK(gt_tensor_read(x, pixels, sizeof pixels));
    CHECK_OK(gt_tensor_read(y, labels, sizeof labels));
    CHECK(memcmp(pixels, images_bytes + 16, 12) == 0);
    CHECK(labels[0] == 4 && labels[1] == 0 && labels[2] == 9);
    CHECK_OK(gt_scope_end(ctx));
    gt_loader_destroy(loader);
}

TEST_DEVICES(unit, idx_reads_images_and_labels) {
    char images[512];
    (void)snprintf(images, sizeof images, "%s", write_file(t, "images", images_bytes, sizeof images_bytes));
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_idx(images, write_file(t, "labels", labels_bytes, sizeof labels_bytes), 10, &dataset));
    check_contents(t, dataset);
    gt_dataset_destroy(dataset);
}

TEST_DEVICES(unit, idx_reads_gzip_in_one_and_in_two_members) {
    skip_without_zlib(t);
    unsigned char packed[256];
    char images[512];
    size_t size = gzip(images_bytes, 20, packed); /* cut in the middle of the data */
    size += gzip(images_bytes + 20, sizeof images_bytes - 20, packed + size);
    (void)snprintf(images, sizeof images, "%s", write_file(t, "images", packed, size));
    size = gzip(labels_bytes, sizeof labels_bytes, packed);
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_idx(images, write_file(t, "labels", packed, size), 10, &dataset));
    check_contents(t, dataset);
    gt_dataset_destroy(dataset);
}

TEST(unit, idx_without_labels) {
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_idx(write_file(t, "images", images_bytes, sizeof images_bytes), NULL, 0, &dataset));
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    CHECK_OK(gt_dataset_get_format(dataset, &format));
    CHECK_EQ_INT(format.has_labels, 0);
    gt_dataset_destroy(dataset);
}

TEST(unit, idx_refuses_a_wrong_header) {
    unsigned char bytes[sizeof images_bytes];
    memcpy(bytes, images_bytes, sizeof bytes);
    bytes[0] = 'P';
    refuse_images(t, bytes, sizeof bytes, "expected an IDX file", "found 50 00");
    memcpy(bytes, images_bytes, sizeof bytes);
    bytes[2] = 0x0d;
    refuse_images(t, bytes, sizeof bytes, "expected unsigned bytes (type 08)", "found 32-bit floats (type 0d)");
    bytes[2] = 0x77;
    refuse_images(t, bytes, sizeof bytes, "expected unsigned bytes (type 08)", "found an unknown type (type 77)");
    refuse_images(t, labels_bytes, sizeof labels_bytes, "expected images with 2 to 4 axes", "found 1 (a file of labels?)");
    refuse_labels(t, images_bytes, sizeof images_bytes, "expected labels with 1 axes", "found 3 (a file of images?)");
    memcpy(bytes, images_bytes, sizeof bytes);
    bytes[3] = 255;
    refuse_images(t, bytes, sizeof bytes, "expected images with 2 to 4 axes", "found 255");
    memcpy(bytes, images_bytes, sizeof bytes);
    bytes[11] = 0;
    refuse_images(t, bytes, sizeof bytes, "expected a size of at least 1 for axis 1", "found 0");
}

TEST(unit, idx_refuses_truncated_and_overlong_files) {
    for (size_t size = 0; size < sizeof images_bytes; ++size) {
        const char *expected = size < 4    ? "expected an IDX header of 4 bytes"
                               : size < 16 ? "expected an IDX header of 16 bytes"
                                           : "expected 12 bytes of data for [3,2,2]";
        refuse_images(t, images_bytes, size, expected, "found");
    }
    unsigned char longer[sizeof images_bytes + 1] = {0};
    memcpy(longer, images_bytes, sizeof images_bytes);
    refuse_images(t, longer, sizeof longer, "expected 12 bytes", "found 13: the file has something after its data");
}

TEST(unit, idx_refuses_labels_that_do_not_fit) {
    unsigned char bytes[sizeof labels_bytes];
    memcpy(bytes, labels_bytes, sizeof bytes);
    bytes[7] = 2;
    refuse_labels(t, bytes, sizeof bytes - 1, "expected 3 labels", "found 2");
    memcpy(bytes, labels_bytes, sizeof bytes);
    bytes[9] = 10;
    refuse_labels(t, bytes, sizeof bytes, "expected labels from 0 to 9", "found 10 for sample 1");
}

TEST(unit, idx_hostile_header_is_refused_before_memory_is_taken) {
    /* 4,294,967,295^3 elements; then 2^40, which malloc might even grant */
    unsigned char bytes[28];
    memcpy(bytes, images_bytes, sizeof bytes);
    memset(bytes + 4, 255, 12);
    refuse_images(t, bytes, sizeof bytes, "expected sizes that fit in memory", "found axes of 4294967295");
    static const unsigned char terabyte[12] = {0, 0x10, 0, 0, 0, 0, 4, 0, 0, 0, 4, 0};
    memcpy(bytes + 4, terabyte, 12);
    refuse_images(t, bytes, sizeof bytes, "expected 1099511627776 bytes", "found 12");
}

TEST(unit, idx_refuses_damaged_gzip) {
    skip_without_zlib(t);
    unsigned char packed[256], twice[256];
    size_t size = gzip(images_bytes, sizeof images_bytes, packed);
    refuse_images(t, packed, size - 9, "expected more after", "found its end");
    refuse_images(t, packed, size - 1, "expected more after", "found its end");
    memcpy(twice, packed, size);
    twice[size - 8] ^= 1; /* check sum */
    refuse_images(t, twice, size, "gzip data are damaged", "");
    refuse_images(t, twice, gzip(packed, size, twice), "expected IDX data", "compressed twice");
    memcpy(twice, packed, size);
    memcpy(twice + size, "junk", 4);
    refuse_images(t, twice, size + 4, "gzip data are damaged", "");
    unsigned char terabyte[sizeof images_bytes];
    memcpy(terabyte, images_bytes, sizeof terabyte);
    memset(terabyte + 4, 1, 8);
    size = gzip(terabyte, sizeof terabyte, packed);
    refuse_images(t, packed, size, "bytes of data for [16843009,16843009,2]", "found 12: the file is truncated");
}

TEST(unit, idx_without_a_file_is_io) {
    gt_dataset *dataset = NULL;
    CHECK_STATUS(gt_dataset_from_idx("/nowhere/at/all", NULL, 0, &dataset), GT_IO);
    CHECK_ERROR_HAS("/nowhere/at/all: cannot open");
    CHECK(gt_last_error()->native_code != 0);
    const char *folder = test_temp_path(t, "folder");
    CHECK(mkdir(folder, 0700) == 0);
    CHECK_STATUS(gt_dataset_from_idx(folder, NULL, 0, &dataset), GT_IO);
    CHECK_ERROR_HAS("expected a file, found a folder");
    const char *pipe_path = test_temp_path(t, "pipe");
    CHECK(mkfifo(pipe_path, 0600) == 0);
    CHECK_STATUS(gt_dataset_from_idx(pipe_path, NULL, 0, &dataset), GT_IO);
    gt_clear_error();
    CHECK_STATUS(gt_dataset_from_idx(NULL, NULL, 0, &dataset), GT_BAD_ARGUMENT);
    CHECK(dataset == NULL);
}

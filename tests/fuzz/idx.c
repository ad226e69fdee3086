/* Opens any bytes as a pair of IDX files: the first two say how many of the others are images. */
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    size_t first = (size_t)data[0] | (size_t)data[1] << 8;
    data += 2;
    size -= 2;
    if (first > size) first = size;
    char images[64], labels[64];
    int fd[2] = {fuzz_file(data, first, images, sizeof images), fuzz_file(data + first, size - first, labels, sizeof labels)};
    for (int with_labels = 0; with_labels < 2; ++with_labels) {
        gt_dataset *dataset = NULL;
        gt_dataset_format format;
        gt_status status = gt_dataset_from_idx(images, with_labels ? labels : NULL, with_labels ? 10 : 0, &dataset);
        DEMAND(status == GT_OK || status == GT_BAD_FILE);
        DEMAND((status == GT_OK) == (dataset != NULL));
        if (dataset) {
            DEMAND(gt_dataset_format_init(&format, sizeof format) == GT_OK && gt_dataset_get_format(dataset, &format) == GT_OK);
            DEMAND(format.length == gt_dataset_length(dataset) && format.has_labels == with_labels);
        }
        gt_dataset_destroy(dataset);
    }
    (void)close(fd[0]);
    (void)close(fd[1]);
    return 0;
}

#include "common/fashion.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The Debian package's place, then places beside the program. */
static const char *const usual_folders[] = {"/usr/share/datasets/fashion-mnist", "fashion-mnist", "data/fashion-mnist", NULL};

/* "<folder>/<name>" or the same with .gz, whichever is there; 0 if neither. */
static int find_file(const char *folder, const char *name, char *path, size_t size) {
    static const char *const endings[] = {"", ".gz"};
    for (int i = 0; i < 2; ++i) {
        int length = snprintf(path, size, "%s/%s%s", folder, name, endings[i]);
        if (length > 0 && (size_t)length < size && access(path, F_OK) == 0) return 1;
    }
    return 0;
}

static int say_how_to_get_it(const args *a) {
    if (a->data)
        fprintf(stderr, "%s: no Fashion-MNIST files in %s\n", a->program, a->data);
    else
        fprintf(stderr, "%s: Fashion-MNIST was not found in %s\n", a->program, usual_folders[0]);
    fprintf(stderr,
            "Install the Debian package dataset-fashion-mnist (apt install dataset-fashion-mnist), or give --data DIR with the four files\n"
            "  train-images-idx3-ubyte  train-labels-idx1-ubyte  t10k-images-idx3-ubyte  t10k-labels-idx1-ubyte\n"
            "each plain or with .gz at its end.\n");
    return 1;
}

static gt_status open_part(const args *a, gt_context *ctx, const char *images, const char *labels, int training, gt_loader **loader) {
    const double mean = 0.2860, deviation = 0.3530;
    gt_dataset *dataset = NULL, *part = NULL;
    gt_transform *transform = NULL;
    gt_loader_options options;
    gt_status status = gt_dataset_from_idx(images, labels, 10, &dataset);
    if (status == GT_OK && a->limit_samples > 0 && a->limit_samples < gt_dataset_length(dataset)) {
        status = gt_dataset_slice(dataset, 0, a->limit_samples, &part);
        gt_dataset_destroy(dataset);
        dataset = part;
    }
    if (status == GT_OK) status = gt_transform_create(&transform);
    if (status == GT_OK) status = gt_transform_to_float(transform, 1.0 / 255);
    if (status == GT_OK) status = gt_transform_normalize(transform, &mean, &deviation, 1);
    if (status == GT_OK) status = gt_loader_options_init(&options, sizeof options);
    if (status == GT_OK) {
        options.batch_size = a->batch;
        options.shuffle = training;
        options.seed = a->seed;
        options.transform = transform;
        status = gt_loader_create(ctx, dataset, &options, loader);
    }
    gt_transform_destroy(transform);
    gt_dataset_destroy(dataset);
    return status;
}

int fashion_open(const args *a, gt_context *ctx, gt_loader **training, gt_loader **test) {
    static const char *const names[4] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                                         "t10k-labels-idx1-ubyte"};
    const char *given[2] = {a->data, NULL};
    char paths[4][4096];
    int found = 0;
    for (const char *const *folder = a->data ? given : usual_folders; *folder && found < 4; ++folder)
        for (found = 0; found < 4 && find_file(*folder, names[found], paths[found], sizeof paths[found]);) found++;
    if (found < 4) return say_how_to_get_it(a);

    *training = *test = NULL;
    gt_status status = open_part(a, ctx, paths[0], paths[1], 1, training);
    if (status == GT_OK) status = open_part(a, ctx, paths[2], paths[3], 0, test);
    if (status == GT_OK) return 0;
    gt_loader_destroy(*training);
    return args_fail(a, "reading Fashion-MNIST");
}

/* What the tests of data sets and loaders share. */
#ifndef GTRAIN_TESTS_DATA_SUPPORT_H
#define GTRAIN_TESTS_DATA_SUPPORT_H

#include "harness/test.h"
#include <gtrain/gtrain.h>

enum { MAX_SAMPLES = 1024 };

/* `length` samples of one f32 each, number i being i; labels i64, number i being i % 7. Destroyed by the caller. */
gt_dataset *numbers(int64_t length);

/* Options with that batch size and the other defaults. */
gt_loader_options loader_options(int64_t batch_size);

/* Runs the rest of the epoch; writes the samples (one f32 each, at most MAX_SAMPLES) and returns how many there were. A label that is not the
 * sample's number % 7 fails the case. */
int64_t drain(gt_loader *loader, float *samples);

/* Writes a file of the case and returns its path. */
const char *write_file(test_case *t, const char *name, const void *bytes, size_t size);

#endif

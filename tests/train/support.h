/* What the trainer's tests share. */
#ifndef GTRAIN_TESTS_TRAIN_SUPPORT_H
#define GTRAIN_TESTS_TRAIN_SUPPORT_H

#include "harness/test.h"
#include <gtrain/gtrain.h>

/* A loader, in order, of `length` vectors of `width` f32 and, if not NULL, their class numbers. */
gt_loader *vectors_loader(gt_context *ctx, const float *samples, int64_t width, const int64_t *labels, int64_t length, int64_t batch);
/* The same with labels of `width` f32. */
gt_loader *pairs_loader(gt_context *ctx, const float *samples, const float *targets, int64_t width, int64_t length, int64_t batch);

/* y = w x for vectors of one number, w as given. */
gt_module *scale_module(gt_context *ctx, double w);
double scale_of(gt_module *scale);

gt_optimizer *sgd(gt_module *module, double learning_rate);
gt_trainer_options trainer_options(gt_optimizer *optimizer);

#endif

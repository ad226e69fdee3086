/* Fashion-MNIST (Xiao, Rasul & Vollgraf 2017): 60,000 + 10,000 images of 28 x 28 grey pixels in 10 classes. */
#ifndef EXAMPLES_FASHION_H
#define EXAMPLES_FASHION_H

#include "common/args.h"

/* Loaders of the training part, shuffled, and of the test part: samples f32 [1,28,28], normalised. On failure a message was printed and nothing is
 * left to free; returns 0 or the exit code. */
int fashion_open(const args *a, gt_context *ctx, gt_loader **training, gt_loader **test);

#endif

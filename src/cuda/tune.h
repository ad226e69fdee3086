/* Measuring candidates on the device, and asking it small questions. Everything here waits for the device: only for the first call of a shape. */
#ifndef GT_CUDA_TUNE_H
#define GT_CUDA_TUNE_H

#include "cuda/device.h"

/* Queues one run of a candidate on the compute stream; false if the library refuses it. */
typedef bool (*gt__tune_run)(void *argument);

/* False where the device may not be timed: in deterministic mode, where a choice must not depend on the clock, and while the stream is captured. */
bool gt__cuda_may_tune(gt__cuda_device *cuda);
/* False while the compute stream is captured, when nothing can be waited for. */
bool gt__cuda_may_wait(gt__cuda_device *cuda);

/* Milliseconds that one run takes, or a negative number if the candidate does not work. Short runs are timed inside a captured graph, so that the
 * host's launch cost does not hide the difference. A candidate much slower than `best` (milliseconds, 0: none yet) is measured roughly. */
float gt__cuda_time(gt__cuda_device *cuda, gt__tune_run run, void *argument, float best);

/* Seconds from an arbitrary start. */
double gt__cuda_clock(void);

/* Reads the elements at `first` and `last` (device memory) and says whether both are NaN. */
bool gt__cuda_both_nan(gt__cuda_device *cuda, const void *first, const void *last, gt_dtype dtype);

#endif

/* Worker threads that fill a ring of host buffers with the batches of an epoch. They never touch a context. Everything here but the workers
 * is called by one thread, the loader's.
 *
 * Batch b uses buffer b % slots. It may be claimed once batch b - slots has been recycled. Workers claim a few samples at a time, in order, so
 * the oldest unfinished batch is always the one that is worked on. */
#ifndef GT_DATA_WORKERS_H
#define GT_DATA_WORKERS_H

#include "data/transform.h"

typedef struct gt__feed gt__feed;

enum { GT__FEED_SLOTS = 4 };

typedef struct gt__feed_plan {
    const gt_dataset *dataset;
    const gt__pipeline *pipeline;
    int64_t samples; /* in an epoch */
    int64_t batch_size;
    int64_t batches;
    int32_t workers;
    int32_t slots;  /* at most GT__FEED_SLOTS */
    double timeout; /* seconds for a sample, 0: none */
    unsigned char *sample_buffer[GT__FEED_SLOTS];
    unsigned char *label_buffer[GT__FEED_SLOTS];
} gt__feed_plan;

/* Starts the threads; they wait for gt__feed_start. What the plan points to must outlive the feed. */
gt_status gt__feed_create(const gt__feed_plan *plan, gt__feed **feed);
/* Interrupts, waits for and joins the threads. NULL is allowed. */
void gt__feed_destroy(gt__feed *feed);

/* Drops what was being filled and begins at batch `first` of an epoch. All buffers count as recycled. `order` (NULL: as they come) gives the
 * sample at each place of the epoch; it is read until gt__feed_stop or the next start. */
gt_status gt__feed_start(gt__feed *feed, const int64_t *order, uint64_t key, int64_t epoch, int64_t first);
/* Waits until no worker is at a sample. Then `order` may be changed. TIMEOUT. */
gt_status gt__feed_stop(gt__feed *feed);

/* Waits until the batch lies in its buffer. WORKER, BAD_LABEL or TIMEOUT, naming the sample. */
gt_status gt__feed_wait(gt__feed *feed, int64_t batch);
/* Whether it does now, without a failure. */
bool gt__feed_ready(gt__feed *feed, int64_t batch);
/* The buffers of all batches before `batch` may be filled again. */
void gt__feed_recycle(gt__feed *feed, int64_t batch);

/* Samples in a batch. */
static inline int64_t gt__feed_count(const gt__feed_plan *plan, int64_t batch) {
    return GT__MIN(plan->batch_size, plan->samples - batch * plan->batch_size);
}

#endif

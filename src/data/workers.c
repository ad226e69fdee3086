#include "data/workers.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

typedef struct worker {
    gt__feed *feed;
    pthread_t thread;
    bool started;              /* to be joined */
    bool alive;                /* mutex */
    bool filling;              /* mutex; true while its samples are being made */
    int64_t batch, begin, end; /* mutex; what it claimed: places in the batch */
    atomic_llong sample;       /* the one it is at, or -1 */
    atomic_llong since;        /* nanoseconds, when it began that one */
    unsigned char *scratch[2];
} worker;

typedef struct slot {
    int64_t batch; /* whose samples it holds, or -1 */
    int64_t done;
    int64_t failed_at; /* first place that failed, or -1 */
    gt__sample_error error;
} slot;

struct gt__feed {
    gt__feed_plan plan;
    worker *workers;
    int64_t chunk; /* samples claimed at a time */
    pid_t process;
    pthread_mutex_t mutex;
    pthread_cond_t work;   /* something can be claimed, or it is time to end */
    pthread_cond_t filled; /* a batch is complete, or a worker is idle or gone */
    atomic_bool cancel;    /* workers stop after the sample they are at */
    /* under the mutex */
    bool open; /* claims are allowed */
    bool stopping;
    int32_t filling, alive;
    int64_t claim_batch, claim_at;
    int64_t recycled; /* batches before this one have left their buffers */
    slot slots[GT__FEED_SLOTS];
    /* of the epoch; written while nothing is filling */
    const int64_t *order;
    uint64_t key;
    int64_t epoch;
};

static int64_t nanoseconds(void) { return (int64_t)(gt__clock_seconds() * 1e9); }

/* --- in the workers --------------------------------------------------------------------------------------------------------------- */

/* Mutex held. */
static bool claim(gt__feed *feed, worker *self) {
    const gt__feed_plan *plan = &feed->plan;
    if (!feed->open || feed->claim_batch >= plan->batches || feed->claim_batch >= feed->recycled + plan->slots) return false;
    slot *into = &feed->slots[feed->claim_batch % plan->slots];
    if (into->batch != feed->claim_batch) *into = (slot){.batch = feed->claim_batch, .failed_at = -1};
    int64_t count = gt__feed_count(plan, feed->claim_batch);
    self->batch = feed->claim_batch;
    self->begin = feed->claim_at;
    self->end = GT__MIN(count, self->begin + feed->chunk);
    self->filling = true;
    feed->filling++;
    feed->claim_at = self->end;
    if (feed->claim_at == count) {
        feed->claim_batch++;
        feed->claim_at = 0;
    }
    return true;
}

/* Mutex held. `failed_at`: place of a failure, or -1. */
static void finish(gt__feed *feed, worker *self, int64_t failed_at, const gt__sample_error *error) {
    slot *into = &feed->slots[self->batch % feed->plan.slots];
    into->done += self->end - self->begin;
    if (failed_at >= 0 && (into->failed_at < 0 || failed_at < into->failed_at)) {
        into->failed_at = failed_at;
        into->error = *error;
    }
    self->filling = false;
    feed->filling--;
    atomic_store_explicit(&self->sample, -1, memory_order_relaxed);
    if (feed->filling == 0 || into->done == gt__feed_count(&feed->plan, self->batch)) pthread_cond_broadcast(&feed->filled);
}

static int64_t sample_at(const gt__feed *feed, int64_t batch, int64_t at) {
    int64_t place = batch * feed->plan.batch_size + at;
    return feed->order ? feed->order[place] : place;
}

/* Makes the claimed samples. Returns the place of a failure, or -1. */
static int64_t fill(gt__feed *feed, worker *self, gt__sample_error *error) {
    const gt__feed_plan *plan = &feed->plan;
    int64_t which = self->batch % plan->slots;
    size_t sample_bytes = plan->pipeline->bytes, label_bytes = plan->dataset->label_bytes;
    for (int64_t at = self->begin; at < self->end; ++at) {
        if (atomic_load_explicit(&feed->cancel, memory_order_relaxed)) return -1;
        int64_t sample = sample_at(feed, self->batch, at);
        atomic_store_explicit(&self->since, nanoseconds(), memory_order_relaxed);
        atomic_store_explicit(&self->sample, sample, memory_order_release);
        void *out = plan->sample_buffer[which] + (size_t)at * sample_bytes;
        void *label = label_bytes ? plan->label_buffer[which] + (size_t)at * label_bytes : NULL;
        if (gt__pipeline_run(plan->pipeline, plan->dataset, feed->key, sample, feed->epoch, self->scratch, out, label, error) != GT_OK)
            return at;
    }
    return -1;
}

/* Runs when a callback ends its thread (pthread_exit): the batch then fails instead of never coming. */
static void worker_gone(void *argument) {
    worker *self = argument;
    gt__feed *feed = self->feed;
    pthread_mutex_lock(&feed->mutex);
    gt__sample_error error = {.status = GT_WORKER};
    (void)snprintf(error.text, sizeof error.text, "sample %lld: the worker thread was ended while it fetched the sample",
                   (long long)atomic_load_explicit(&self->sample, memory_order_relaxed));
    finish(feed, self, self->begin, &error);
    self->alive = false;
    feed->alive--;
    pthread_cond_broadcast(&feed->filled);
    pthread_mutex_unlock(&feed->mutex);
}

static int64_t fill_guarded(gt__feed *feed, worker *self, gt__sample_error *error) {
    int64_t failed_at;
    pthread_cleanup_push(worker_gone, self);
    failed_at = fill(feed, self, error);
    pthread_cleanup_pop(0);
    return failed_at;
}

static void *worker_main(void *argument) {
    worker *self = argument;
    gt__feed *feed = self->feed;
    int previous;
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &previous);
    pthread_mutex_lock(&feed->mutex);
    while (!feed->stopping) {
        if (!claim(feed, self)) {
            pthread_cond_wait(&feed->work, &feed->mutex);
            continue;
        }
        pthread_mutex_unlock(&feed->mutex);
        gt__sample_error error = {.status = GT_OK};
        int64_t failed_at = fill_guarded(feed, self, &error);
        pthread_mutex_lock(&feed->mutex);
        finish(feed, self, failed_at, &error);
    }
    self->alive = false;
    feed->alive--;
    pthread_mutex_unlock(&feed->mutex);
    return NULL;
}

/* --- in the loader's thread --------------------------------------------------------------------------------------------------------- */

/* Signals go to the host's own threads. */
static gt_status start_thread(gt__feed *feed, worker *self) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    self->alive = true;
    int code = pthread_create(&self->thread, NULL, worker_main, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        self->alive = false;
        return gt__error_raise(GT_OUT_OF_HOST_MEMORY, __FILE__, __LINE__, code, "errno", NULL,
                               "loader: thread %d of %d could not be started: %s", (int)(self - feed->workers) + 1, (int)feed->plan.workers,
                               strerror(code));
    }
    self->started = true;
    feed->alive++;
    return GT_OK;
}

gt_status gt__feed_create(const gt__feed_plan *plan, gt__feed **result) {
    gt__feed *feed = gt__calloc(1, sizeof *feed);
    if (feed == NULL) return GT_OUT_OF_HOST_MEMORY;
    feed->plan = *plan;
    feed->process = getpid();
    feed->chunk = GT__MAX(1, GT__MIN(64, plan->batch_size / (2 * (int64_t)plan->workers)));
    for (int i = 0; i < GT__FEED_SLOTS; ++i) feed->slots[i] = (slot){.batch = -1, .failed_at = -1};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&feed->mutex, NULL);
    pthread_cond_init(&feed->work, NULL);
    pthread_cond_init(&feed->filled, &monotonic);
    pthread_condattr_destroy(&monotonic);

    gt_status status = GT_OK;
    feed->workers = gt__calloc((size_t)plan->workers, sizeof *feed->workers);
    if (feed->workers == NULL) {
        status = GT_OUT_OF_HOST_MEMORY;
        goto fail;
    }
    for (int32_t i = 0; i < plan->workers; ++i) {
        worker *self = &feed->workers[i];
        self->feed = feed;
        atomic_init(&self->sample, -1);
        atomic_init(&self->since, 0);
        for (int k = 0; k < 2 && plan->pipeline->scratch_bytes > 0; ++k) {
            self->scratch[k] = gt__malloc(plan->pipeline->scratch_bytes);
            if (self->scratch[k] == NULL) {
                status = GT_OUT_OF_HOST_MEMORY;
                goto fail;
            }
        }
    }
    pthread_mutex_lock(&feed->mutex);
    for (int32_t i = 0; i < plan->workers && status == GT_OK; ++i) status = start_thread(feed, &feed->workers[i]);
    pthread_mutex_unlock(&feed->mutex);
    if (status != GT_OK) goto fail;
    *result = feed;
    return GT_OK;
fail:
    gt__feed_destroy(feed);
    return status;
}

void gt__feed_destroy(gt__feed *feed) {
    if (feed == NULL) return;
    if (feed->process == getpid()) { /* after a fork, the threads and what they may have locked stayed in the parent */
        pthread_mutex_lock(&feed->mutex);
        feed->stopping = true;
        feed->open = false;
        atomic_store_explicit(&feed->cancel, true, memory_order_relaxed);
        bool busy = feed->filling > 0;
        pthread_cond_broadcast(&feed->work);
        pthread_mutex_unlock(&feed->mutex);
        if (busy) gt__dataset_interrupt(feed->plan.dataset);
        for (int32_t i = 0; feed->workers && i < feed->plan.workers; ++i)
            if (feed->workers[i].started) pthread_join(feed->workers[i].thread, NULL);
        pthread_cond_destroy(&feed->work);
        pthread_cond_destroy(&feed->filled);
        pthread_mutex_destroy(&feed->mutex);
    }
    for (int32_t i = 0; feed->workers && i < feed->plan.workers; ++i) {
        gt__free(feed->workers[i].scratch[0]);
        gt__free(feed->workers[i].scratch[1]);
    }
    gt__free(feed->workers);
    gt__free(feed);
}

static gt_status process_check(const gt__feed *feed) {
    GT_REQUIRE(feed->process == getpid(), GT_FORKED, "loader: its worker threads belong to the parent process %lld of this fork",
               (long long)feed->process);
    return GT_OK;
}

/* Mutex held. Waits on `filled` until a worker may have become overdue. TIMEOUT if one is, of those that are at `batch` (-1: any); the time
 * before `from` does not count. */
static gt_status wait_filled(gt__feed *feed, int64_t batch, int64_t from) {
    double timeout = feed->plan.timeout;
    if (timeout <= 0) {
        pthread_cond_wait(&feed->filled, &feed->mutex);
        return GT_OK;
    }
    int64_t limit = (int64_t)(timeout * 1e9), now = nanoseconds(), until = now + limit;
    for (int32_t i = 0; i < feed->plan.workers; ++i) {
        const worker *w = &feed->workers[i];
        if (!w->filling || (batch >= 0 && w->batch != batch)) continue;
        int64_t sample = atomic_load_explicit(&w->sample, memory_order_acquire);
        if (sample < 0) continue; /* about to begin */
        int64_t since = GT__MAX(from, atomic_load_explicit(&w->since, memory_order_relaxed));
        GT_REQUIRE(now - since < limit, GT_TIMEOUT, "loader: sample %lld of epoch %lld is not there after %.3g s; the time-out is %g s",
                   (long long)sample, (long long)feed->epoch, (double)(now - since) * 1e-9, timeout);
        until = GT__MIN(until, since + limit);
    }
    struct timespec deadline = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
    pthread_cond_timedwait(&feed->filled, &feed->mutex, &deadline);
    return GT_OK;
}

gt_status gt__feed_stop(gt__feed *feed) {
    GT_TRY(process_check(feed));
    gt_status status = GT_OK;
    int64_t began = nanoseconds();
    pthread_mutex_lock(&feed->mutex);
    feed->open = false;
    atomic_store_explicit(&feed->cancel, true, memory_order_relaxed);
    while (status == GT_OK && feed->filling > 0) status = wait_filled(feed, -1, began);
    pthread_mutex_unlock(&feed->mutex);
    return status;
}

gt_status gt__feed_start(gt__feed *feed, const int64_t *order, uint64_t key, int64_t epoch, int64_t first) {
    GT_TRY(gt__feed_stop(feed));
    gt_status status = GT_OK;
    pthread_mutex_lock(&feed->mutex);
    for (int32_t i = 0; i < feed->plan.workers && status == GT_OK; ++i) { /* a callback may have ended some */
        worker *self = &feed->workers[i];
        if (self->alive) continue;
        if (self->started) pthread_join(self->thread, NULL); /* it left the mutex before it was marked */
        self->started = false;
        status = start_thread(feed, self);
    }
    if (status == GT_OK) {
        for (int32_t i = 0; i < feed->plan.slots; ++i) feed->slots[i] = (slot){.batch = -1, .failed_at = -1};
        feed->order = order;
        feed->key = key;
        feed->epoch = epoch;
        feed->claim_batch = feed->recycled = first;
        feed->claim_at = 0;
        feed->open = true;
        atomic_store_explicit(&feed->cancel, false, memory_order_relaxed);
        pthread_cond_broadcast(&feed->work);
    }
    pthread_mutex_unlock(&feed->mutex);
    return status;
}

/* Mutex held. */
static bool complete(const gt__feed *feed, int64_t batch) {
    const slot *from = &feed->slots[batch % feed->plan.slots];
    return from->batch == batch && from->done == gt__feed_count(&feed->plan, batch);
}

gt_status gt__feed_wait(gt__feed *feed, int64_t batch) {
    GT_TRY(process_check(feed));
    gt_status status = GT_OK;
    pthread_mutex_lock(&feed->mutex);
    while (status == GT_OK && !complete(feed, batch)) {
        if (feed->alive == 0)
            status = GT_RAISE(GT_WORKER, "loader: no worker thread is left to fetch sample %lld",
                              (long long)sample_at(feed, feed->claim_batch, feed->claim_at));
        else
            status = wait_filled(feed, batch, 0);
    }
    const slot *from = &feed->slots[batch % feed->plan.slots];
    if (status == GT_OK && from->failed_at >= 0) status = GT_RAISE(from->error.status, "loader: %s", from->error.text);
    pthread_mutex_unlock(&feed->mutex);
    return status;
}

bool gt__feed_ready(gt__feed *feed, int64_t batch) {
    pthread_mutex_lock(&feed->mutex);
    bool ready = complete(feed, batch) && feed->slots[batch % feed->plan.slots].failed_at < 0;
    pthread_mutex_unlock(&feed->mutex);
    return ready;
}

void gt__feed_recycle(gt__feed *feed, int64_t batch) {
    pthread_mutex_lock(&feed->mutex);
    feed->recycled = batch;
    pthread_cond_broadcast(&feed->work);
    pthread_mutex_unlock(&feed->mutex);
}

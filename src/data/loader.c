/* The loader's own thread: it hands batches out, and moves them from the host buffers that the workers fill to the device, one batch ahead.
 *
 * What keeps memory in order. A batch's device memory comes from the caching allocator, whose reuse is ordered by the compute stream: so the copy
 * stream first waits for an event recorded there after the allocation. The copy of batch n + 1 is issued when batch n is handed out, before the work on n is
 * queued, and therefore overlaps with it. The compute stream waits for a batch's `copied` event when the batch is handed out; the host
 * waits for it before the workers may fill the buffer again. */
#include "core/core.h"
#include "data/loader.h"
#include "data/random.h"
#include "data/workers.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

/* A batch whose copy to the device was issued. */
typedef struct pending {
    gt_tensor *x, *y;
    int64_t count;
} pending;

struct gt_loader {
    gt_context *ctx;
    gt_dataset *dataset; /* counted */
    gt_loader_options options;
    gt__pipeline pipeline;
    gt__feed_plan plan;
    gt__feed *feed;
    int64_t *order; /* NULL without shuffle */
    size_t buffer_bytes;
    void *buffers[GT__FEED_SLOTS];     /* pinned */
    gt__event *copied[GT__FEED_SLOTS]; /* of the last copy out of the buffer */
    gt__event *computed;               /* where the compute stream was when a copy was issued */
    int64_t epoch;
    int64_t handed;   /* batches handed out */
    int64_t uploaded; /* batches whose copy was issued; those from `handed` on are in ahead[] */
    int64_t recycled; /* batches whose buffers were given back to the workers */
    pending ahead[2];
    bool running;     /* the workers know the epoch */
    gt_status failed; /* the epoch ended with this */
    char failure[512];
    pid_t process;
};

/* --- making a loader ------------------------------------------------------------------------------------------------------------- */

static const gt_loader_options defaults = {
    .struct_size = sizeof(gt_loader_options),
    .batch_size = 1,
    .dtype = GT_LOADER_DTYPE_KEEP,
    .timeout = 60,
};

gt_status gt_loader_options_init(gt_loader_options *options, size_t size) {
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_loader_options");
}

static int32_t automatic_workers(const gt_context *ctx) {
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    /* on the CPU the kernels want the cores too */
    return ctx->backend->kind == GT_DEVICE_CPU ? (cores > 4 ? 2 : 1) : GT__MAX(1, GT__MIN(8, cores / 2));
}

static gt_status check_options(const gt_loader_options *o, int64_t length) {
    GT_REQUIRE(o->batch_size > 0 && o->batch_size <= INT32_MAX, GT_BAD_ARGUMENT, "loader: batch_size %lld is not from 1 to 2^31 - 1",
               (long long)o->batch_size);
    GT_REQUIRE(o->workers >= 0 && o->workers <= 256, GT_BAD_ARGUMENT, "loader: workers %d is not from 1 to 256 (or 0: chosen)",
               (int)o->workers);
    GT_REQUIRE(o->prefetch >= 0 && o->prefetch <= GT__FEED_SLOTS, GT_BAD_ARGUMENT, "loader: prefetch %d is not from 1 to %d (or 0: chosen)",
               (int)o->prefetch, GT__FEED_SLOTS);
    GT_REQUIRE(isfinite(o->timeout) && o->timeout >= 0 && o->timeout <= 1e8, GT_BAD_ARGUMENT,
               "loader: timeout %g s is not from 0 (for ever) to 1e8", o->timeout);
    GT_REQUIRE(o->dtype == GT_LOADER_DTYPE_KEEP || (o->dtype >= 0 && o->dtype < GT_DTYPE_COUNT && gt__dtype_is_float(o->dtype)),
               GT_BAD_DTYPE, "loader: dtype %s (%d) is neither floating point nor GT_LOADER_DTYPE_KEEP", gt_dtype_name(o->dtype),
               (int)o->dtype);
    GT_REQUIRE(length > 0, GT_BAD_ARGUMENT, "loader: the data set has 0 samples, so there would be no batch (batch_size %lld)",
               (long long)o->batch_size);
    GT_REQUIRE(!o->drop_last || length >= o->batch_size, GT_BAD_ARGUMENT,
               "loader: %lld samples in batches of %lld without the last, smaller one leave no batch: lower batch_size or drop drop_last",
               (long long)length, (long long)o->batch_size);
    return GT_OK;
}

static gt_status make_plan(gt_loader *loader) {
    const gt_loader_options *o = &loader->options;
    int64_t length = loader->dataset->format.length;
    gt__feed_plan *plan = &loader->plan;
    plan->dataset = loader->dataset;
    plan->pipeline = &loader->pipeline;
    plan->batch_size = o->batch_size;
    plan->batches = o->drop_last ? length / o->batch_size : (length - 1) / o->batch_size + 1;
    plan->samples = o->drop_last ? plan->batches * o->batch_size : length;
    plan->workers = o->workers ? o->workers : automatic_workers(loader->ctx);
    plan->slots = (int32_t)GT__MIN(o->prefetch ? o->prefetch : GT__FEED_SLOTS, plan->batches);
    plan->timeout = o->timeout;
    size_t largest = (size_t)GT__MIN(o->batch_size, length), item = loader->pipeline.bytes + loader->dataset->label_bytes;
    GT_REQUIRE(item <= ((size_t)1 << 46) / largest, GT_BAD_SHAPE, "loader: a batch of %zu samples of %zu bytes is more than 2^46 bytes",
               largest, item);
    loader->buffer_bytes = largest * item;
    return GT_OK;
}

static gt_status make_buffers(gt_loader *loader) {
    gt_context *ctx = loader->ctx;
    gt__feed_plan *plan = &loader->plan;
    size_t largest = (size_t)GT__MIN(plan->batch_size, plan->samples);
    /* The part with the larger elements first: then both are aligned without a gap. */
    bool labels_first =
        loader->dataset->label_bytes > 0 && gt_dtype_size(loader->dataset->format.label_dtype) > gt_dtype_size(loader->pipeline.dtype);
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->event_create(ctx->device, &loader->computed);
    for (int32_t i = 0; status == GT_OK && i < plan->slots; ++i) {
        status = ctx->backend->event_create(ctx->device, &loader->copied[i]);
        if (status == GT_OK) status = ctx->backend->host_alloc(ctx->device, loader->buffer_bytes, &loader->buffers[i]);
        if (status != GT_OK) break;
        unsigned char *base = loader->buffers[i];
        plan->sample_buffer[i] = base + (labels_first ? largest * loader->dataset->label_bytes : 0);
        plan->label_buffer[i] = base + (labels_first ? 0 : largest * loader->pipeline.bytes);
    }
    gt__leave(ctx, previous);
    return status;
}

gt_status gt_loader_create(gt_context *ctx, gt_dataset *dataset, const gt_loader_options *caller_options, gt_loader **result) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE_HANDLE(dataset);
    GT_REQUIRE(result != NULL, GT_BAD_ARGUMENT, "loader_create: the result pointer is NULL");
    gt_loader_options options = defaults;
    if (caller_options) GT_TRY(gt__options_read(&options, sizeof options, caller_options, "gt_loader_options"));
    GT_TRY(check_options(&options, dataset->format.length));

    gt_loader *loader = gt__calloc(1, sizeof *loader);
    if (loader == NULL) return GT_OUT_OF_HOST_MEMORY;
    loader->ctx = ctx;
    loader->process = getpid();
    loader->options = options;
    loader->dataset = gt__dataset_retain(dataset);
    gt_status status = GT_OK;
    GT_TRY_GOTO(status, gt__pipeline_create(&loader->pipeline, options.transform, dataset), fail);
    loader->options.transform = NULL;
    GT_TRY_GOTO(status, make_plan(loader), fail);
    if (options.shuffle) {
        loader->order = gt__malloc((size_t)dataset->format.length * sizeof *loader->order);
        if (loader->order == NULL) {
            status = GT_OUT_OF_HOST_MEMORY;
            goto fail;
        }
    }
    GT_TRY_GOTO(status, make_buffers(loader), fail);
    GT_TRY_GOTO(status, gt__feed_create(&loader->plan, &loader->feed), fail);
    *result = loader;
    return GT_OK;
fail:
    gt_loader_destroy(loader);
    return status;
}

/* Lets go of batches that were copied ahead. Their memory may be used again only after the copies are done. */
static void drop_ahead(gt_loader *loader) {
    gt_context *ctx = loader->ctx;
    if (loader->recycled < loader->uploaded) {
        int32_t previous = gt__enter(ctx);
        (void)ctx->backend->synchronize(ctx->device, GT__STREAM_COPY);
        gt__leave(ctx, previous);
    }
    for (int64_t batch = loader->handed; batch < loader->uploaded; ++batch) {
        pending *p = &loader->ahead[batch & 1];
        gt_tensor_release(p->x);
        gt_tensor_release(p->y);
        *p = (pending){0};
    }
    loader->uploaded = loader->recycled = loader->handed;
}

void gt_loader_destroy(gt_loader *loader) {
    if (loader == NULL) return;
    gt_context *ctx = loader->ctx;
    gt__feed_destroy(loader->feed);
    if (loader->process == getpid()) { /* a forked child must not touch the device */
        drop_ahead(loader);
        int32_t previous = gt__enter(ctx);
        for (int32_t i = 0; i < GT__FEED_SLOTS; ++i) {
            if (loader->copied[i]) ctx->backend->event_destroy(ctx->device, loader->copied[i]);
            if (loader->buffers[i]) ctx->backend->host_free(ctx->device, loader->buffers[i]);
        }
        if (loader->computed) ctx->backend->event_destroy(ctx->device, loader->computed);
        gt__leave(ctx, previous);
    }
    gt__pipeline_destroy(&loader->pipeline);
    gt_dataset_destroy(loader->dataset);
    gt__free(loader->order);
    gt__free(loader);
}

/* --- epochs ----------------------------------------------------------------------------------------------------------------------- */

/* A uniform permutation of all samples (Durstenfeld 1964), which depends on the seed and the epoch. */
static void shuffle(int64_t *order, int64_t n, uint64_t key) {
    for (int64_t i = 0; i < n; ++i) order[i] = i;
    gt__philox_block block = {{0}};
    for (int64_t i = n - 1, draw = 0; i > 0; --i, ++draw) {
        if (draw % 2 == 0) block = gt__philox(key, (uint64_t)(draw / 2));
        const uint32_t *words = &block.word[2 * (draw % 2)];
        uint64_t number = (uint64_t)words[1] << 32 | words[0];
        int64_t other = i < INT32_MAX ? gt__below(words[0], i + 1) : (int64_t)(number % ((uint64_t)i + 1));
        int64_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

/* Makes the workers begin where the loader stands. */
static gt_status run_epoch(gt_loader *loader) {
    GT_TRY(gt__feed_stop(loader->feed));
    if (loader->order)
        shuffle(loader->order, loader->dataset->format.length, gt__key_epoch(loader->options.seed, loader->epoch, GT__KEY_ORDER));
    GT_TRY(gt__feed_start(loader->feed, loader->order, gt__key_epoch(loader->options.seed, loader->epoch, GT__KEY_TRANSFORM), loader->epoch,
                          loader->handed));
    loader->running = true;
    return GT_OK;
}

gt_status gt_loader_state_set(gt_loader *loader, int64_t epoch, int64_t batch) {
    GT_REQUIRE_HANDLE(loader);
    GT_REQUIRE(epoch >= 0 && batch >= 0 && batch <= loader->plan.batches, GT_BAD_ARGUMENT,
               "loader: cannot go to batch %lld of epoch %lld; an epoch has %lld batches", (long long)batch, (long long)epoch,
               (long long)loader->plan.batches);
    if (loader->failed == GT_OK && loader->epoch == epoch && loader->handed == batch && loader->running) return GT_OK;
    loader->running = false;
    GT_TRY(gt__feed_stop(loader->feed));
    drop_ahead(loader);
    loader->epoch = epoch;
    loader->handed = loader->uploaded = loader->recycled = batch;
    loader->failed = GT_OK;
    return run_epoch(loader);
}

gt_status gt_loader_start_epoch(gt_loader *loader, int64_t epoch) { return gt_loader_state_set(loader, epoch, 0); }

gt_status gt_loader_state_get(const gt_loader *loader, int64_t *epoch, int64_t *batch) {
    GT_REQUIRE_HANDLE(loader);
    if (epoch) *epoch = loader->epoch;
    if (batch) *batch = loader->handed;
    return GT_OK;
}

/* --- batches ---------------------------------------------------------------------------------------------------------------------- */

static gt_tensor *batch_tensor(gt_context *ctx, gt_dtype dtype, int64_t count, int32_t ndim, const int64_t *item) {
    int64_t shape[GT_MAX_DIMS] = {count};
    for (int32_t i = 0; i < ndim; ++i) shape[i + 1] = item[i];
    gt__meta meta;
    if (gt__meta_make(&meta, dtype, ndim + 1, shape, "loader") != GT_OK) return NULL;
    return gt__tensor_new_for(ctx, &meta, GT_MEMORY_INPUT, "loader");
}

static gt_status copy_batch(gt_loader *loader, int64_t batch, const pending *p) {
    gt_context *ctx = loader->ctx;
    const gt__backend *backend = ctx->backend;
    int64_t from = batch % loader->plan.slots;
    GT_TRY(backend->event_record(ctx->device, loader->computed, GT__STREAM_COMPUTE));
    GT_TRY(backend->event_wait_stream(ctx->device, loader->computed, GT__STREAM_COPY));
    GT_TRY(backend->copy(ctx->device, GT__STREAM_COPY, GT__COPY_HOST_TO_DEVICE, gt__data(p->x), loader->plan.sample_buffer[from],
                         gt_tensor_bytes(p->x)));
    if (p->y)
        GT_TRY(backend->copy(ctx->device, GT__STREAM_COPY, GT__COPY_HOST_TO_DEVICE, gt__data(p->y), loader->plan.label_buffer[from],
                             gt_tensor_bytes(p->y)));
    return backend->event_record(ctx->device, loader->copied[from], GT__STREAM_COPY);
}

/* Issues the copy of batch number loader->uploaded, which lies in its buffer. On failure nothing has changed. */
static gt_status upload(gt_loader *loader) {
    gt_context *ctx = loader->ctx;
    const gt_dataset_format *format = &loader->dataset->format;
    int64_t batch = loader->uploaded;
    pending p = {.count = gt__feed_count(&loader->plan, batch)};
    p.x = batch_tensor(ctx, loader->pipeline.dtype, p.count, loader->pipeline.ndim, loader->pipeline.shape);
    if (p.x && format->has_labels) p.y = batch_tensor(ctx, format->label_dtype, p.count, format->label_ndim, format->label_shape);
    gt_status status = p.x && (p.y || !format->has_labels) ? GT_OK : gt_last_error()->status;
    if (status == GT_OK) {
        int32_t previous = gt__enter(ctx);
        status = copy_batch(loader, batch, &p);
        if (status != GT_OK) (void)ctx->backend->synchronize(ctx->device, GT__STREAM_COPY);
        gt__leave(ctx, previous);
    }
    if (status != GT_OK) {
        gt_tensor_release(p.x);
        gt_tensor_release(p.y);
        return status;
    }
    loader->ahead[batch & 1] = p;
    loader->uploaded++;
    return GT_OK;
}

/* Gives buffers back to the workers, all but those of the last few copies: waiting for these would hold the host up. */
static gt_status recycle(gt_loader *loader) {
    gt_context *ctx = loader->ctx;
    int64_t kept = loader->plan.slots / 2, target = loader->uploaded - kept;
    if (loader->recycled >= target) return GT_OK;
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->event_wait_host(ctx->device, loader->copied[(target - 1) % loader->plan.slots]);
    gt__leave(ctx, previous);
    if (status != GT_OK) return status;
    loader->recycled = target; /* copies run in order */
    gt__feed_recycle(loader->feed, target);
    return GT_OK;
}

static gt_status wait_batch(gt_loader *loader, int64_t batch) {
    gt_status status = gt__feed_wait(loader->feed, batch);
    if (status != GT_OK && status != GT_FORKED) { /* the samples of the epoch would no longer be what they should be */
        loader->failed = status;
        (void)snprintf(loader->failure, sizeof loader->failure, "%s", gt_last_error()->message);
    }
    return status;
}

gt_status gt_loader_next(gt_loader *loader, gt_tensor **x, gt_tensor **y, int64_t *count) {
    GT_REQUIRE_HANDLE(loader);
    GT_REQUIRE(x != NULL && count != NULL, GT_BAD_ARGUMENT, "loader_next: %s is NULL", x ? "count" : "x");
    gt_context *ctx = loader->ctx;
    const gt__backend *backend = ctx->backend;
    GT_REQUIRE(loader->process == getpid(), GT_FORKED, "loader: its worker threads belong to the parent process %lld of this fork",
               (long long)loader->process);
    if (loader->failed != GT_OK)
        GT_FAIL_HINT(loader->failed, "gt_loader_start_epoch begins another epoch", "%s (the epoch ended there)", loader->failure);
    int64_t batch = loader->handed;
    if (batch == loader->plan.batches) {
        *x = NULL;
        if (y) *y = NULL;
        *count = 0;
        return GT_OK;
    }
    if (!loader->running) GT_TRY(run_epoch(loader));
    if (loader->uploaded == batch) {
        GT_TRY(wait_batch(loader, batch));
        GT_TRY(upload(loader));
    }
    if (loader->uploaded == batch + 1 && batch + 1 < loader->plan.batches && gt__feed_ready(loader->feed, batch + 1))
        GT_TRY(upload(loader));

    int32_t previous = gt__enter(ctx);
    gt_status status = backend->event_wait_stream(ctx->device, loader->copied[batch % loader->plan.slots], GT__STREAM_COMPUTE);
    gt__leave(ctx, previous);
    if (status != GT_OK) return status;
    GT_TRY(recycle(loader));

    pending *p = &loader->ahead[batch & 1];
    gt_tensor *samples, *labels = NULL;
    if (loader->options.dtype != GT_LOADER_DTYPE_KEEP && loader->options.dtype != loader->pipeline.dtype) {
        samples = gt_cast(p->x, loader->options.dtype);
    } else {
        samples = gt__scope_add(gt_tensor_retain(p->x));
    }
    if (samples == NULL) return gt_last_error()->status;
    if (p->y && y) {
        labels = gt__scope_add(gt_tensor_retain(p->y));
        if (labels == NULL) return gt_last_error()->status;
    }
    *x = samples;
    if (y) *y = labels;
    *count = p->count;
    gt_tensor_release(p->x);
    gt_tensor_release(p->y);
    *p = (pending){0};
    loader->handed++;
    return GT_OK;
}

int64_t gt_loader_batches(const gt_loader *loader) { return loader ? loader->plan.batches : 0; }
int64_t gt_loader_samples(const gt_loader *loader) { return loader ? loader->plan.samples : 0; }
int64_t gt_loader_batch_size(const gt_loader *loader) { return loader ? loader->plan.batch_size : 0; }
uint64_t gt_loader_host_bytes(const gt_loader *loader) { return loader ? (uint64_t)loader->plan.slots * loader->buffer_bytes : 0; }
gt_context *gt_loader_context(const gt_loader *loader) { return loader ? loader->ctx : NULL; }

void gt__loader_order(const gt_loader *loader, uint64_t *seed, int32_t *shuffle) {
    *seed = loader->options.seed;
    *shuffle = loader->options.shuffle != 0;
}

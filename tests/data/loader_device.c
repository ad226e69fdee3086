/* What a loader asks of the device, watched through a backend whose copy stream really is behind: a queued copy runs only when something waits for it. */
#include "core/core.h"
#include "data/support.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { MAX_QUEUED = 64 };

typedef struct queued_copy {
    void *to;
    const void *from;
    size_t bytes;
} queued_copy;

/* One watched context at a time. */
static struct watch {
    const gt__backend *real;
    gt__backend table;
    queued_copy queue[MAX_QUEUED];
    int64_t queued, run;
    bool copy_waits_for_compute; /* since the last event on the copy stream */
    int32_t unordered_copies;
    uint64_t pinned, peak_pinned;
    int32_t events;
    atomic_llong host_knows; /* copies that the host has waited for */
    atomic_int too_early;    /* samples written to a buffer whose copy the host has not waited for */
} watch;

struct gt__event {
    gt__stream_id stream;
    int64_t place; /* copies queued before it */
    bool recorded;
};

static void run_until(int64_t place) {
    for (; watch.run < place; ++watch.run) {
        const queued_copy *c = &watch.queue[watch.run % MAX_QUEUED];
        memcpy(c->to, c->from, c->bytes);
    }
}

static gt_status watch_copy(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *to, const void *from, size_t bytes) {
    if (stream == GT__STREAM_COMPUTE) return watch.real->copy(device, stream, kind, to, from, bytes);
    watch.unordered_copies += !watch.copy_waits_for_compute;
    if (watch.queued - watch.run == MAX_QUEUED) run_until(watch.run + 1);
    watch.queue[watch.queued++ % MAX_QUEUED] = (queued_copy){to, from, bytes};
    return GT_OK;
}

static gt_status watch_event_create(gt__device *device, gt__event **event) {
    (void)device;
    *event = calloc(1, sizeof **event);
    watch.events++;
    return *event ? GT_OK : GT_OUT_OF_HOST_MEMORY;
}

static void watch_event_destroy(gt__device *device, gt__event *event) {
    (void)device;
    free(event);
    watch.events--;
}

static gt_status watch_event_record(gt__device *device, gt__event *event, gt__stream_id stream) {
    (void)device;
    *event = (gt__event){stream, watch.queued, true};
    if (stream == GT__STREAM_COPY) watch.copy_waits_for_compute = false;
    return GT_OK;
}

static gt_status watch_event_wait_stream(gt__device *device, gt__event *event, gt__stream_id stream) {
    (void)device;
    if (stream == GT__STREAM_COMPUTE && event->recorded && event->stream == GT__STREAM_COPY) run_until(event->place);
    if (stream == GT__STREAM_COPY && event->recorded && event->stream == GT__STREAM_COMPUTE) watch.copy_waits_for_compute = true;
    return GT_OK;
}

static gt_status watch_event_wait_host(gt__device *device, gt__event *event) {
    (void)device;
    if (!event->recorded || event->stream != GT__STREAM_COPY) return GT_OK;
    run_until(event->place);
    if (event->place > watch.host_knows) watch.host_knows = event->place;
    return GT_OK;
}

static gt_status watch_synchronize(gt__device *device, gt__stream_id stream) {
    if (stream == GT__STREAM_COPY) {
        run_until(watch.queued);
        watch.host_knows = watch.queued;
    }
    return watch.real->synchronize(device, stream);
}

static gt_status watch_host_alloc(gt__device *device, size_t bytes, void **pointer) {
    (void)device;
    size_t *block = malloc(bytes + 64);
    if (block == NULL) return GT_OUT_OF_HOST_MEMORY;
    block[0] = bytes;
    watch.pinned += bytes;
    watch.peak_pinned = GT__MAX(watch.peak_pinned, watch.pinned);
    *pointer = (char *)block + 64;
    return GT_OK;
}

static void watch_host_free(gt__device *device, void *pointer) {
    (void)device;
    size_t *block = (size_t *)(void *)((char *)pointer - 64);
    watch.pinned -= block[0];
    free(block);
}

static void watch_begin(gt_context *ctx) {
    memset(&watch, 0, sizeof watch);
    watch.real = ctx->backend;
    watch.table = *ctx->backend;
    watch.table.copy = watch_copy;
    watch.table.event_create = watch_event_create;
    watch.table.event_destroy = watch_event_destroy;
    watch.table.event_record = watch_event_record;
    watch.table.event_wait_stream = watch_event_wait_stream;
    watch.table.event_wait_host = watch_event_wait_host;
    watch.table.synchronize = watch_synchronize;
    watch.table.host_alloc = watch_host_alloc;
    watch.table.host_free = watch_host_free;
    ctx->backend = &watch.table;
}

static void watch_end(gt_context *ctx) { ctx->backend = watch.real; }

TEST(unit, loader_copies_keep_their_order_with_the_device) {
    gt_context *ctx = test_context(t);
    for (int32_t prefetch = 1; prefetch <= 4; ++prefetch) {
        watch_begin(ctx);
        gt_loader_options options = loader_options(4);
        options.prefetch = prefetch;
        options.workers = 3;
        gt_dataset *dataset = numbers(200);
        gt_loader *loader = NULL;
        CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
        gt_dataset_destroy(dataset);
        for (int64_t epoch = 0; epoch < 3; ++epoch) {
            float samples[MAX_SAMPLES];
            CHECK_OK(gt_loader_start_epoch(loader, epoch));
            CHECK_EQ_INT(drain(loader, samples), 200); /* checks the labels too */
            for (int i = 0; i < 200; ++i) CHECK_NEAR(samples[i], i, 0);
        }
        gt_loader_destroy(loader);
        EXPECT_EQ_INT(watch.unordered_copies, 0);
        EXPECT_EQ_INT(watch.events, 0);
        watch_end(ctx);
    }
}

enum { REFILL_BATCH = 4, REFILL_SLOTS = 3 };

/* Sample `index` goes to the buffer that the batch REFILL_SLOTS before its own was copied from, by one copy. */
static gt_status note_refill(void *user, int64_t index, int64_t epoch, void *sample, void *label) {
    (void)user, (void)epoch, (void)label;
    int64_t before = index / REFILL_BATCH - REFILL_SLOTS;
    if (watch.host_knows < before + 1) watch.too_early++;
    *(float *)sample = (float)index;
    return GT_OK;
}

TEST(unit, loader_refills_a_buffer_only_when_the_host_knows_that_its_copy_is_done) {
    gt_context *ctx = test_context(t);
    watch_begin(ctx);
    gt_dataset_format format;
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.has_labels = 0;
    format.length = 400;
    gt_dataset_callbacks callbacks;
    CHECK_OK(gt_dataset_callbacks_init(&callbacks, sizeof callbacks));
    callbacks.fetch = note_refill;
    gt_dataset *dataset = NULL;
    CHECK_OK(gt_dataset_from_callbacks(&format, &callbacks, &dataset));
    gt_loader_options options = loader_options(REFILL_BATCH);
    options.prefetch = REFILL_SLOTS;
    gt_loader *loader = NULL;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    gt_dataset_destroy(dataset);
    int64_t count = 1;
    while (count > 0) {
        gt_tensor *x;
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(gt_loader_next(loader, &x, NULL, &count));
        CHECK_OK(gt_scope_end(ctx));
    }
    gt_loader_destroy(loader);
    CHECK_EQ_INT(watch.queued, 100);
    CHECK_EQ_INT(watch.too_early, 0);
    watch_end(ctx);
}

/* A batch that was copied ahead must not be freed, and its buffer not be filled again, before its copy has run. */
TEST(unit, loader_drops_batches_copied_ahead_only_after_their_copies) {
    gt_context *ctx = test_context(t);
    watch_begin(ctx);
    gt_loader_options options = loader_options(4);
    gt_dataset *dataset = numbers(64);
    gt_loader *loader = NULL;
    CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
    for (int round = 0; round < 50; ++round) {
        gt_tensor *x, *y;
        int64_t count;
        CHECK_OK(gt_loader_start_epoch(loader, round));
        CHECK_OK(gt_scope_begin(ctx));
        for (int i = 0; i <= round % 3; ++i) CHECK_OK(gt_loader_next(loader, &x, &y, &count));
        CHECK_OK(gt_scope_end(ctx));
        if (round % 2) {
            CHECK_OK(gt_loader_state_set(loader, round, 9));
            CHECK_EQ_INT(watch.run, watch.queued);
        }
    }
    gt_loader_destroy(loader);
    CHECK_EQ_INT(watch.run, watch.queued);
    watch_end(ctx);
    gt_dataset_destroy(dataset);
}

TEST(contract, F4_pinned_memory_stays_within_four_batches_and_goes_back) {
    gt_context *ctx = test_context(t);
    for (int64_t batch = 1; batch <= 100; batch += 33) {
        watch_begin(ctx);
        gt_loader_options options = loader_options(batch);
        gt_dataset *dataset = numbers(70);
        gt_loader *loader = NULL;
        CHECK_OK(gt_loader_create(ctx, dataset, &options, &loader));
        float samples[MAX_SAMPLES];
        CHECK_EQ_INT(drain(loader, samples), 70);
        uint64_t largest = (uint64_t)GT__MIN(batch, 70) * (sizeof(float) + sizeof(int64_t));
        EXPECT(watch.peak_pinned > 0 && watch.peak_pinned <= 4 * largest);
        EXPECT_EQ_INT(watch.peak_pinned, gt_loader_host_bytes(loader));
        gt_loader_destroy(loader);
        EXPECT_EQ_INT(watch.pinned, 0);
        watch_end(ctx);
        gt_dataset_destroy(dataset);
    }
}

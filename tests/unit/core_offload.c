/* Offload moves what was saved to the host and back, and changes no value. A device whose copies run as late as they may shows what is not ordered. */
#include "core/checkpoint.h"
#include "core/offload.h"
#include "unit/fake_device.h"
#include "unit/ops_util.h"

#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)
enum { BIG = 1 << 18, LARGE = 3 << 20, LAYERS = 8 }; /* elements: 1 and 12 MiB a tensor; the latter have segments of their own */

static gt_memory_stats stats_of(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    return stats;
}

/* --- the CPU with a copy stream that lags: a copy runs when something waits for it, or when it has been asked about often enough ------------------ */

typedef struct late_copy {
    void *to;
    const void *from;
    size_t bytes;
    gt__copy_kind kind;
} late_copy;

typedef struct late_event {
    int at; /* copies queued when it was recorded on the copy stream; 0: on the compute stream */
} late_event;

static struct {
    gt__backend table;
    const gt__backend *real;
    late_copy *queue;
    int queued, done, capacity;
    int questions, patience;                          /* every `patience` questions, one copy runs; 0: none does */
    int host_allocations, host_frees, fail_host_from; /* host allocations from this one on fail; 0: none */
    int events, host_waits;
    int most_ahead; /* copies to the device under way when the compute stream went on after waiting for one */
} late;

static void run_until(int count) {
    for (; late.done < count; ++late.done) memcpy(late.queue[late.done].to, late.queue[late.done].from, late.queue[late.done].bytes);
}

static gt_status late_copy_fn(gt__device *device, gt__stream_id stream, gt__copy_kind kind, void *to, const void *from, size_t bytes) {
    if (stream == GT__STREAM_COMPUTE) return late.real->copy(device, stream, kind, to, from, bytes);
    if (late.queued == late.capacity) {
        late.capacity = late.capacity * 2 + 64;
        late.queue = realloc(late.queue, (size_t)late.capacity * sizeof *late.queue);
    }
    late.queue[late.queued++] = (late_copy){to, from, bytes, kind};
    return GT_OK;
}

static gt_status late_synchronize(gt__device *device, gt__stream_id stream) {
    (void)device;
    late.host_waits++;
    if (stream == GT__STREAM_COPY) run_until(late.queued);
    return GT_OK;
}

static gt_status late_event_create(gt__device *device, gt__event **event) {
    (void)device;
    late.events++;
    *event = calloc(1, sizeof(late_event));
    return *event ? GT_OK : GT_OUT_OF_HOST_MEMORY;
}

static void late_event_destroy(gt__device *device, gt__event *event) {
    (void)device;
    late.events--;
    free(event);
}

static gt_status late_event_record(gt__device *device, gt__event *event, gt__stream_id stream) {
    (void)device;
    ((late_event *)(void *)event)->at = stream == GT__STREAM_COPY ? late.queued : 0;
    return GT_OK;
}

static gt_status late_wait_stream(gt__device *device, gt__event *event, gt__stream_id stream) {
    (void)device;
    if (stream != GT__STREAM_COMPUTE) return GT_OK;
    run_until(((late_event *)(void *)event)->at);
    int ahead = 0;
    for (int i = late.done; i < late.queued; i++) ahead += late.queue[i].kind == GT__COPY_HOST_TO_DEVICE;
    late.most_ahead = GT__MAX(late.most_ahead, ahead);
    return GT_OK;
}

static gt_status late_wait_host(gt__device *device, gt__event *event) {
    late.host_waits++;
    return late_wait_stream(device, event, GT__STREAM_COMPUTE);
}

static gt_status late_query(gt__device *device, gt__event *event, int32_t *done) {
    (void)device;
    if (late.patience && ++late.questions % late.patience == 0 && late.done < late.queued) run_until(late.done + 1);
    *done = ((late_event *)(void *)event)->at <= late.done;
    return GT_OK;
}

static gt_status late_host_alloc(gt__device *device, size_t bytes, void **pointer) {
    if (late.fail_host_from && late.host_allocations + 1 >= late.fail_host_from)
        return GT_RAISE(GT_OUT_OF_HOST_MEMORY, "no pinned memory in this test");
    late.host_allocations++;
    return late.real->host_alloc(device, bytes, pointer);
}

static void late_host_free(gt__device *device, void *pointer) {
    late.host_frees++;
    late.real->host_free(device, pointer);
}

static void late_begin(gt_context *ctx, int patience) {
    memset(&late, 0, sizeof late);
    late.real = ctx->backend;
    late.table = *ctx->backend;
    late.patience = patience;
    late.table.copy = late_copy_fn;
    late.table.synchronize = late_synchronize;
    late.table.event_create = late_event_create;
    late.table.event_destroy = late_event_destroy;
    late.table.event_record = late_event_record;
    late.table.event_wait_stream = late_wait_stream;
    late.table.event_wait_host = late_wait_host;
    late.table.event_query = late_query;
    late.table.host_alloc = late_host_alloc;
    late.table.host_free = late_host_free;
    ctx->backend = &late.table;
}

/* Nothing is left: no buffer, and no event but the one that the context keeps. */
static void late_end(gt_context *ctx) {
    CHECK_OK(gt_memory_trim(ctx));
    CHECK_EQ_INT(late.host_allocations, late.host_frees);
    CHECK(late.events <= 1);
    ctx->backend = late.real;
    free(late.queue);
    late.queue = NULL;
}

/* --- what is trained --------------------------------------------------------------------------------------------------------------------- */

typedef struct run {
    uint64_t min_bytes; /* 0: no offload */
    int checkpoint, retain, backwards;
} run;

static gt_status two_layers(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    outputs[0] = gt_tanh(gt_mul(gt_silu(inputs[0]), user)); /* saves its input too */
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

/* x -> tanh(silu(x) w), so many times; each result is let go of as soon as it was used. */
static gt_status forward(gt_context *ctx, const run *r, gt_tensor *x, gt_tensor *w, gt_tensor **loss) {
    gt_tensor *y = gt_tensor_retain(x);
    *loss = NULL;
    gt_status status = r->min_bytes ? gt_offload_begin(ctx, r->min_bytes) : GT_OK;
    int begun = r->min_bytes && status == GT_OK;
    for (int i = 0; i < LAYERS && status == GT_OK; i++) {
        gt_tensor *next = NULL;
        if ((status = gt_scope_begin(ctx)) != GT_OK) break;
        status = r->checkpoint ? gt_checkpoint(ctx, two_layers, w, &y, 1, &next, 1) : two_layers(w, &y, &next);
        gt_tensor_retain(next);
        CHECK_OK(gt_scope_end(ctx));
        gt_tensor_release(y);
        y = next;
    }
    if (begun) CHECK_OK(gt_offload_end(ctx));
    if (status == GT_OK && (*loss = gt_mean(gt_mul(y, y), NULL, 0, 0)) == NULL) status = gt_last_error()->status;
    gt_tensor_release(y);
    return status;
}

static gt_status train(gt_context *ctx, const run *r, gt_tensor *x, gt_tensor *w) {
    gt_status status = gt_scope_begin(ctx);
    if (status != GT_OK) return status;
    gt_tensor *loss;
    status = forward(ctx, r, x, w, &loss);
    for (int i = 0; i < r->backwards && status == GT_OK; i++) status = gt_backward_from(&loss, NULL, 1, r->retain || i + 1 < r->backwards);
    CHECK_OK(gt_scope_end(ctx));
    return status;
}

typedef struct values {
    float *data;
    size_t count;
} values;

static values gradients(gt_tensor *x, gt_tensor *w) {
    values v = {.count = (size_t)gt_tensor_numel(x) + (size_t)gt_tensor_numel(w)};
    v.data = malloc(v.count * sizeof *v.data);
    size_t n = (size_t)gt_tensor_numel(x);
    gt_status status = gt_tensor_read(gt_tensor_grad(x), v.data, n * sizeof *v.data);
    if (status == GT_OK) status = gt_tensor_read(gt_tensor_grad(w), v.data + n, (v.count - n) * sizeof *v.data);
    CHECK_OK(gt_tensor_zero_grad(x));
    CHECK_OK(gt_tensor_zero_grad(w));
    CHECK_OK(status);
    return v;
}

static void check_same(values a, values b) {
    CHECK_EQ_INT(a.count, b.count);
    int same = memcmp(a.data, b.data, a.count * sizeof *a.data) == 0;
    free(b.data);
    CHECK(same);
}

static gt_context *exact(test_case *t) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.allow_tf32 = 0;
    options.deterministic = 1;
    return test_context_with(t, &options);
}

static gt_tensor *input(gt_context *ctx, int64_t n) {
    gt_tensor *x = CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, SHAPE(n), 0, 1));
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    return x;
}

/* --- on every device ---------------------------------------------------------------------------------------------------------------------- */

TEST_DEVICES(unit, offload_gives_the_same_gradients) {
    gt_context *ctx = exact(t);
    gt_tensor *x = input(ctx, BIG), *w = input(ctx, BIG);
    const run plain = {.backwards = 1};
    CHECK_OK(train(ctx, &plain, x, w));
    values want = gradients(x, w);
    for (int way = 0; way < 6; way++) {
        const run r = {.min_bytes = way == 5 ? 64 * MIB : MIB, .checkpoint = way & 1, .retain = way & 2, .backwards = 1};
        CHECK_OK(train(ctx, &r, x, w));
        check_same(want, gradients(x, w));
    }
    free(want.data);
    gt_tensor_release(x);
    gt_tensor_release(w);
}

/* A limit that the activations do not fit into. */
TEST_DEVICES(unit, offload_needs_less_device_memory) {
    gt_context *ctx = exact(t);
    gt_tensor *x = input(ctx, LARGE), *w = input(ctx, LARGE);
    run r = {.backwards = 1};
    CHECK_OK(train(ctx, &r, x, w));
    values want = gradients(x, w);
    CHECK_OK(gt_memory_trim(ctx));
    /* A layer saves two results of 12 MiB; backward needs two, w's gradient and a few of its own. */
    CHECK_OK(gt_context_set_memory_limit(ctx, stats_of(ctx).reserved + 12 * 12 * MIB));
    CHECK_STATUS(train(ctx, &r, x, w), GT_OUT_OF_MEMORY);
    gt_clear_error();
    CHECK_OK(gt_tensor_zero_grad(x));
    CHECK_OK(gt_tensor_zero_grad(w));
    CHECK_OK(gt_memory_reset_peak(ctx));
    uint64_t before = stats_of(ctx).in_use;
    r.min_bytes = 1 * MIB;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(train(ctx, &r, x, w));
        check_same(want, gradients(x, w));
    }
    CHECK(stats_of(ctx).peak_in_use <= before + 12 * 12 * MIB);
    CHECK_EQ_INT(stats_of(ctx).in_use, before);
    free(want.data);
    gt_tensor_release(x);
    gt_tensor_release(w);
}

TEST(unit, offload_regions_nest_and_must_match) {
    gt_context *ctx = test_context(t);
    CHECK_STATUS(gt_offload_end(ctx), GT_BAD_STATE);
    CHECK_OK(gt_offload_begin(ctx, 0));
    CHECK_OK(gt_offload_begin(ctx, 1 << 20));
    CHECK_OK(gt_offload_end(ctx));
    CHECK_OK(gt_offload_end(ctx));
    CHECK_STATUS(gt_offload_end(ctx), GT_BAD_STATE);
    gt_status status = GT_OK;
    int open = 0;
    while (open < 1000 && (status = gt_offload_begin(ctx, 0)) == GT_OK) open++;
    CHECK_STATUS(status, GT_BAD_STATE);
    CHECK_STATUS(gt_offload_begin(NULL, 0), GT_BAD_STATE);
    gt_clear_error();
    CHECK_STATUS(gt_offload_begin(NULL, 0), GT_BAD_ARGUMENT);
}

TEST_DEVICES(unit, offload_leaves_weights_small_and_shared_tensors) {
    gt_context *ctx = exact(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *w = input(ctx, BIG), *small = input(ctx, 1000), *kept = NULL;
    CHECK_OK(gt_offload_begin(ctx, 1 * MIB));
    kept = CHECK_TENSOR(gt_exp(w)); /* saved, but the caller has it too */
    gt_tensor *loss = gt_add(gt_mean(gt_mul(kept, w), NULL, 0, 0), gt_mean(gt_exp(small), NULL, 0, 0));
    CHECK_OK(gt_offload_end(ctx));
    CHECK(kept->storage->block != NULL && w->storage->block != NULL && small->storage->parcel == NULL);
    CHECK_OK(gt_backward(loss));
    CHECK(kept->storage->block != NULL);
    CHECK_OK(gt_scope_end(ctx));
}

/* --- with late copies ----------------------------------------------------------------------------------------------------------------------- */

TEST(unit, offload_orders_copies_with_the_memory_they_use) {
    gt_context *ctx = exact(t);
    gt_tensor *x = input(ctx, BIG / 64), *w = input(ctx, BIG / 64);
    const run plain = {.backwards = 1}, again = {.backwards = 3};
    CHECK_OK(train(ctx, &plain, x, w));
    values once = gradients(x, w);
    CHECK_OK(train(ctx, &again, x, w));
    values three = gradients(x, w);
    for (int patience = 0; patience < 6; patience++) {
        late_begin(ctx, patience);
        uint64_t before = stats_of(ctx).in_use;
        for (int way = 0; way < 8; way++) {
            const run r = {.min_bytes = 1000, .checkpoint = way & 1, .retain = way & 2, .backwards = way & 4 ? 3 : 1};
            CHECK_OK(train(ctx, &r, x, w));
            CHECK_EQ_INT(late.host_waits, 0); /* a step never waits */
            check_same(way & 4 ? three : once, gradients(x, w));
            late.host_waits = 0; /* reading did */
            CHECK_EQ_INT(stats_of(ctx).in_use, before);
        }
        CHECK(late.queued > 0);
        late_end(ctx);
    }
    free(once.data);
    free(three.data);
    gt_tensor_release(x);
    gt_tensor_release(w);
}

/* With one copy out a question, all are out when backward begins. */
TEST(unit, offload_fetches_ahead_of_use) {
    gt_context *ctx = exact(t);
    gt_tensor *x = input(ctx, BIG / 16), *w = input(ctx, BIG / 16);
    const run r = {.min_bytes = 1000, .backwards = 1};
    late_begin(ctx, 1);
    CHECK_OK(train(ctx, &r, x, w));
    CHECK(late.most_ahead >= 1 && late.most_ahead <= 2);
    free(gradients(x, w).data);
    late_end(ctx);
    gt_tensor_release(x);
    gt_tensor_release(w);
}

/* A backward fetches ahead what belongs to another graph; that is dropped while the copies are under way, and others get the memory. */
TEST(unit, offload_copies_under_way_hit_nobody_else) {
    enum { N = BIG / 4 };
    gt_context *ctx = exact(t);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = input(ctx, N), *w = input(ctx, N);
    const run r = {.min_bytes = 1000};
    late_begin(ctx, 1);
    gt_tensor *older = NULL, *newer = NULL;
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(forward(ctx, &r, x, w, &older));
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(forward(ctx, &r, x, w, &newer));
    late.patience = 0;
    CHECK_OK(gt_backward(newer));
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_scope_end(ctx)); /* the older one goes */
    gt_tensor *fresh[8];
    for (int i = 0; i < 8; i++) fresh[i] = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(N), 7));
    run_until(late.queued);
    float *got = malloc(N * sizeof *got);
    int wrong = 0;
    for (int i = 0; i < 8; i++) {
        CHECK_OK(gt_tensor_read(fresh[i], got, N * sizeof *got));
        for (int k = 0; k < N; k++) wrong += got[k] != 7;
    }
    free(got);
    CHECK_EQ_INT(wrong, 0);
    CHECK_OK(gt_scope_end(ctx));
    late_end(ctx);
}

/* A gradient rule may hold what it was given while the last other handle goes. */
TEST(unit, offload_leaves_alone_what_backward_has_looked_at) {
    gt_context *ctx = exact(t);
    gt_tensor *x = input(ctx, BIG / 4), *y = input(ctx, BIG / 4);
    gt__saved looked_at = {0}, other = {0};
    CHECK_OK(gt_offload_begin(ctx, 1000));
    CHECK_OK(gt__save(&looked_at, x, GT_MEMORY_USER));
    CHECK_OK(gt__save(&other, y, GT_MEMORY_USER));
    CHECK_OK(gt_offload_end(ctx));
    void *address = x->data;
    CHECK_OK(gt__offload_fetch(looked_at.tensor));
    gt_tensor_release(x);
    gt_tensor_release(y);
    CHECK(looked_at.tensor->storage->block != NULL && looked_at.tensor->data == address);
    CHECK_OK(gt__offload_fetch(other.tensor));
    CHECK(other.tensor->storage->block != NULL && other.tensor->data == other.tensor->storage->data);
    gt_tensor_release(looked_at.tensor);
    gt_tensor_release(other.tensor);
}

TEST_DEVICES(unit, offload_a_graph_that_outlives_its_context) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.device = test_device(t);
    for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
        gt_context *ctx = NULL;
        CHECK_OK(gt_context_create(&options, &ctx));
        gt_tensor *x = input(ctx, BIG), *w = input(ctx, BIG), *loss = NULL;
        const run r = {.min_bytes = 1000, .checkpoint = checkpoint};
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_OK(forward(ctx, &r, x, w, &loss));
        gt_tensor_retain(loss);
        CHECK_OK(gt_scope_end(ctx));
        gt_context_destroy(ctx);
        CHECK_STATUS(gt_backward(loss), GT_BAD_STATE);
        gt_tensor_release(loss);
        gt_tensor_release(x);
        gt_tensor_release(w);
    }
}

TEST(unit, offload_a_graph_that_is_dropped) {
    gt_context *ctx = exact(t);
    gt_tensor *x = input(ctx, BIG / 16), *w = input(ctx, BIG / 16);
    for (int patience = 0; patience < 3; patience++) {
        late_begin(ctx, patience);
        uint64_t before = stats_of(ctx).in_use;
        for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
            const run r = {.min_bytes = 1000, .checkpoint = checkpoint};
            CHECK_OK(train(ctx, &r, x, w));
            CHECK_EQ_INT(stats_of(ctx).in_use, before);
            CHECK(ctx->offload != NULL);
        }
        late_end(ctx);
    }
    gt_tensor_release(x);
    gt_tensor_release(w);
}

TEST(unit, offload_without_host_memory_stays_on_the_device) {
    gt_context *ctx = exact(t);
    gt_tensor *x = input(ctx, BIG / 16), *w = input(ctx, BIG / 16);
    const run plain = {.backwards = 1}, r = {.min_bytes = 1000, .backwards = 1};
    CHECK_OK(train(ctx, &plain, x, w));
    values want = gradients(x, w);
    for (int from = 1; from < 12; from += 3) {
        late_begin(ctx, 1);
        late.fail_host_from = from;
        gt_clear_error();
        CHECK_OK(train(ctx, &r, x, w));
        CHECK_EQ_INT(gt_last_error()->status, GT_OK); /* nobody is told: nothing failed */
        CHECK(late.host_allocations < from);
        check_same(want, gradients(x, w));
        late_end(ctx);
    }
    /* and an error that was there stays as it was */
    late_begin(ctx, 1);
    late.fail_host_from = 1;
    (void)GT_RAISE(GT_BAD_FILE, "an older error");
    CHECK_OK(train(ctx, &r, x, w));
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_FILE);
    CHECK_ERROR_HAS("an older error");
    gt_clear_error();
    check_same(want, gradients(x, w));
    late_end(ctx);
    free(want.data);
    gt_tensor_release(x);
    gt_tensor_release(w);
}

TEST(unit, offload_host_buffers_serve_the_next_step) {
    gt_context *ctx = exact(t);
    gt_tensor *x = input(ctx, BIG / 16), *w = input(ctx, BIG / 16);
    const run r = {.min_bytes = 1000, .backwards = 1};
    late_begin(ctx, 1);
    CHECK_OK(train(ctx, &r, x, w));
    int first = late.host_allocations;
    CHECK(first > 4);
    for (int i = 0; i < 5; i++) CHECK_OK(train(ctx, &r, x, w));
    CHECK_EQ_INT(late.host_allocations, first);
    free(gradients(x, w).data);
    /* other sizes take their place: no more than half again of what is in use at once is kept */
    gt_tensor *x2 = input(ctx, BIG / 8), *w2 = input(ctx, BIG / 8);
    for (int i = 0; i < 3; i++) CHECK_OK(train(ctx, &r, x2, w2));
    CHECK(late.host_frees > 0);
    free(gradients(x2, w2).data);
    late_end(ctx);
    gt_tensor_release(x2);
    gt_tensor_release(w2);
    gt_tensor_release(x);
    gt_tensor_release(w);
}

/* The device is so short that what was fetched early must go again. */
TEST(unit, offload_under_pressure_with_late_copies) {
    gt_context *ctx = exact(t);
    gt_tensor *x = input(ctx, LARGE), *w = input(ctx, LARGE);
    run r = {.backwards = 1};
    CHECK_OK(train(ctx, &r, x, w));
    values want = gradients(x, w);
    r.min_bytes = 1 * MIB;
    int passed = 0;
    for (int tensors = 4; tensors < 12; tensors++) {
        late_begin(ctx, 0);
        CHECK_OK(gt_memory_trim(ctx));
        uint64_t before = stats_of(ctx).in_use;
        CHECK_OK(gt_context_set_memory_limit(ctx, stats_of(ctx).reserved + (uint64_t)tensors * 12 * MIB + 2 * MIB));
        gt_status status = train(ctx, &r, x, w);
        CHECK_OK(gt_context_set_memory_limit(ctx, 0));
        if (status == GT_OK) {
            passed++;
            check_same(want, gradients(x, w));
        } else {
            CHECK_STATUS(status, GT_OUT_OF_MEMORY);
            gt_clear_error();
            CHECK_OK(gt_tensor_zero_grad(x));
            CHECK_OK(gt_tensor_zero_grad(w));
        }
        CHECK_EQ_INT(stats_of(ctx).in_use, before);
        late_end(ctx);
    }
    CHECK(passed > 3);
    free(want.data);
    gt_tensor_release(x);
    gt_tensor_release(w);
}

/* --- short of host memory ------------------------------------------------------------------------------------------------------------------ */

TEST(unit, offload_and_segments_when_any_host_allocation_fails) {
    gt_context *ctx = exact(t);
    gt_tensor *x = input(ctx, 1000), *w = input(ctx, 1000);
    const run plain = {.backwards = 1};
    CHECK_OK(train(ctx, &plain, x, w));
    values want = gradients(x, w);
    late_begin(ctx, 2);
    for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
        const run r = {.min_bytes = 1000, .checkpoint = checkpoint, .backwards = 1};
        int at = 0, refused = 0;
        for (int failed = 1; failed; at++) {
            uint64_t before = stats_of(ctx).in_use, offset, after;
            CHECK_OK(gt_random_state_get(ctx, NULL, &offset));
            gt_clear_error();
            fake_host_fail(at);
            gt_status status = train(ctx, &r, x, w);
            failed = fake_host_failed();
            fake_host_fail(-1);
            CHECK_OK(gt_random_state_get(ctx, NULL, &after));
            CHECK_EQ_INT(offset, after);
            CHECK_EQ_INT(gt_grad_enabled(ctx), 1);
            if (status == GT_OK) { /* perhaps something stayed on the device */
                check_same(want, gradients(x, w));
            } else {
                CHECK_STATUS(status, GT_OUT_OF_HOST_MEMORY);
                CHECK(gt_tensor_grad(x) == NULL && gt_tensor_grad(w) == NULL);
                refused++;
            }
            CHECK_EQ_INT(stats_of(ctx).in_use, before);
        }
        CHECK(at > 20 && refused > 0);
    }
    late_end(ctx);
    free(want.data);
    gt_tensor_release(x);
    gt_tensor_release(w);
}

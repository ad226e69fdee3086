/* Every remedy is applied: the step that failed then fits below the same limit, and what that freed is within 15 % of what the report promised. */
#include "harness/test.h"

#include "core/core.h"
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)

/* A network of blocks (linear, tanh, linear, tanh; or conv2d, batch norm, relu), one step of which is the job. */
typedef struct job {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    int64_t batch, width;
    int blocks;
    int images; /* `width` channels of 32 x 32 */
    /* remedies */
    int64_t micro_batch; /* 0: the whole batch at once */
    int half;
    uint64_t offload;
} job;

enum { NUMBERED, NAMED };

static gt_module *dense_block(const job *j) {
    gt_module *layers[4] = {gt_nn_linear(j->ctx, j->width, j->width, NULL), gt_nn_tanh(j->ctx),
                            gt_nn_linear(j->ctx, j->width, j->width, NULL), gt_nn_tanh(j->ctx)};
    return gt_nn_sequential_from(j->ctx, layers, 4);
}

static gt_module *conv_block(const job *j) {
    gt_nn_conv2d_options options;
    CHECK_OK(gt_nn_conv2d_options_init(&options, sizeof options));
    options.padding[0] = options.padding[1] = 1;
    gt_module *layers[3] = {gt_nn_conv2d(j->ctx, j->width, j->width, 3, &options), gt_nn_batch_norm(j->ctx, j->width, NULL),
                            gt_nn_relu(j->ctx)};
    return gt_nn_sequential_from(j->ctx, layers, 3);
}

static void job_open(job *j, test_case *t, uint64_t limit, int names) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.memory_limit = limit;
    options.workspace_limit = 0; /* the numbers are those of tensors */
    options.cpu_threads = 1;
    j->ctx = test_context_with(t, &options);
    j->net = gt_nn_sequential(j->ctx);
    for (int i = 0; i < j->blocks; ++i) {
        gt_module *block = j->images ? conv_block(j) : dense_block(j);
        char name[16];
        (void)snprintf(name, sizeof name, "block%d", i);
        CHECK_OK(names == NAMED ? gt_nn_sequential_add_named(j->net, name, block) : gt_nn_sequential_add(j->net, block));
    }
    CHECK_OK(gt_module_check(j->net));
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    CHECK_OK(gt_optimizer_create_for(&o, j->net, &j->optimizer));
}

static void job_close(job *j) {
    gt_optimizer_destroy(j->optimizer);
    gt_module_destroy(j->net);
}

static gt_tensor *job_loss(const job *j, int64_t samples) {
    const int64_t shape[4] = {samples, j->width, 32, 32};
    gt_tensor *x = gt_tensor_full(j->ctx, GT_DTYPE_F32, j->images ? 4 : 2, shape, 0.25), *y, *loss;
    if (j->half && gt_autocast_begin(j->ctx, GT_DTYPE_F16) != GT_OK) return NULL;
    if (j->offload && gt_offload_begin(j->ctx, j->offload) != GT_OK) return NULL;
    y = gt_module_forward(j->net, x);
    loss = gt_mean(y, NULL, 0, 0);
    if (j->offload) (void)gt_offload_end(j->ctx);
    if (j->half) (void)gt_autocast_end(j->ctx);
    return loss;
}

/* One update. In one piece, as a plain loop does it; in micro-batches, as a window. */
static gt_status job_step(job *j) {
    gt_status status = GT_OK;
    if (j->micro_batch == 0) {
        CHECK_OK(gt_scope_begin(j->ctx));
        status = gt_optimizer_zero_grad(j->optimizer);
        if (status == GT_OK) status = gt_backward(job_loss(j, j->batch));
        if (status == GT_OK) status = gt_optimizer_step(j->optimizer);
        CHECK_OK(gt_scope_end(j->ctx));
        return status;
    }
    gt_window_options options;
    gt_window *window = NULL;
    CHECK_OK(gt_window_options_init(&options, sizeof options));
    options.micro_batches = (int32_t)((j->batch + j->micro_batch - 1) / j->micro_batch);
    options.optimizers = &j->optimizer;
    options.n_optimizers = 1;
    options.module = j->net;
    status = gt_window_create(&options, &window);
    for (int64_t at = 0; at < j->batch && status == GT_OK; at += j->micro_batch) {
        int64_t samples = j->batch - at < j->micro_batch ? j->batch - at : j->micro_batch;
        CHECK_OK(gt_scope_begin(j->ctx));
        status = gt_window_micro_begin(window);
        if (status == GT_OK) status = gt_window_micro_end(window, job_loss(j, samples), (double)samples, NULL);
        CHECK_OK(gt_scope_end(j->ctx));
    }
    gt_window_destroy(window);
    return status;
}

static uint64_t job_peak(job *j) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_reset_peak(j->ctx));
    CHECK_OK(job_step(j));
    CHECK_OK(gt_context_synchronize(j->ctx));
    CHECK_OK(gt_memory_get_stats(j->ctx, &stats));
    return stats.peak_in_use;
}

static gt_oom_report *new_report(void) {
    gt_oom_report *r = calloc(1, sizeof *r);
    CHECK_OK(gt_oom_report_init(r, sizeof *r));
    return r;
}

static void print_report(const gt_oom_report *r) {
    char text[GT_OOM_TEXT_SIZE];
    CHECK_OK(gt_oom_report_text(r, text, sizeof text, NULL));
    if (getenv("GTRAIN_TEST_PRINT")) printf("%s", text);
}

static gt_oom_remedy remedy_of(const gt_oom_report *r, gt_oom_remedy_kind kind) {
    print_report(r);
    for (int32_t i = 0; i < r->n_remedies; ++i)
        if (r->remedies[i].kind == kind) return r->remedies[i];
    FAIL("%s is not among the %d remedies", gt_oom_remedy_name(kind), (int)r->n_remedies);
    return r->remedies[0];
}

static void check_not_offered(const gt_oom_report *r, gt_oom_remedy_kind kind) {
    for (int32_t i = 0; i < r->n_remedies; ++i) CHECK(r->remedies[i].kind != kind);
}

static void check_promise(uint64_t promised, uint64_t freed) {
    if (getenv("GTRAIN_TEST_PRINT"))
        printf("promised %.2f MiB, freed %.2f MiB\n", (double)promised / (double)MIB, (double)freed / (double)MIB);
    CHECK(promised > 0);
    CHECK_NEAR((double)freed / (double)promised, 1.0, 0.15);
}

/* The peak of a step without remedies, and the report of one that fails just below it. */
static uint64_t fail_below_peak(test_case *t, job *j, int names, double part, gt_oom_report *report, uint64_t *limit) {
    job_open(j, t, 0, names);
    uint64_t peak = job_peak(j);
    job_close(j);
    *limit = (uint64_t)((double)peak * part);
    job_open(j, t, *limit, names);
    CHECK_STATUS(job_step(j), GT_OUT_OF_MEMORY);
    CHECK_OK(gt_memory_last_oom(j->ctx, report));
    CHECK(report->cause == GT_OOM_LIMIT || report->cause == GT_OOM_FRAGMENTED); /* just below the limit, pieces are in the way */
    CHECK(report->largest_possible < report->rounded);
    job_close(j);
    return peak;
}

/* The network again, below the limit, with what `j` now says. */
static uint64_t peak_below(test_case *t, job *j, int names, uint64_t limit, const gt_oom_remedy *checkpoint) {
    job_open(j, t, limit, names);
    if (checkpoint && checkpoint->segments > 0) {
        gt_module *target;
        CHECK_OK(gt_module_find_module(j->net, checkpoint->target, &target));
        CHECK_OK(gt_nn_sequential_set_segments(target, (int32_t)checkpoint->segments));
    }
    for (int32_t i = 0; checkpoint && checkpoint->depth == 1 && i < gt_module_child_count(j->net); ++i) {
        gt_module *child;
        CHECK_OK(gt_module_child(j->net, i, NULL, &child));
        CHECK_OK(gt_module_set_checkpointing(child, 1));
    }
    uint64_t peak = job_peak(j);
    CHECK(peak <= limit);
    return peak;
}

TEST_DEVICES(unit, remedy_micro_batch) {
    job j = {.batch = 4096, .width = 32, .blocks = 16};
    gt_oom_report *r = new_report();
    uint64_t limit, peak = fail_below_peak(t, &j, NAMED, 0.97, r, &limit);
    gt_oom_remedy m = remedy_of(r, GT_OOM_REMEDY_MICRO_BATCH);
    CHECK(m.enough && m.micro_batch == 2048 && m.accumulation == 2);
    j.micro_batch = m.micro_batch;
    check_promise(m.bytes, peak - peak_below(t, &j, NAMED, limit, NULL));
    job_close(&j);
    free(r);
}

/* The forward fails in its first third: the layers to come are foreseen. */
TEST_DEVICES(unit, remedy_micro_batch_fits_where_the_forward_had_just_begun) {
    job j = {.batch = 4096, .width = 32, .blocks = 16};
    gt_oom_report *r = new_report();
    uint64_t limit;
    (void)fail_below_peak(t, &j, NAMED, 0.3, r, &limit);
    CHECK(r->layers == 64 && r->layers_run < 32);
    gt_oom_remedy m = remedy_of(r, GT_OOM_REMEDY_MICRO_BATCH);
    CHECK(m.enough && (m.micro_batch == 1024 || m.micro_batch == 512) && m.micro_batch * m.accumulation == 4096);
    j.micro_batch = m.micro_batch;
    (void)peak_below(t, &j, NAMED, limit, NULL);
    job_close(&j);
    free(r);
}

TEST_DEVICES(unit, remedy_checkpoint_modules) {
    job j = {.batch = 4096, .width = 32, .blocks = 16};
    gt_oom_report *r = new_report();
    uint64_t limit, peak = fail_below_peak(t, &j, NAMED, 0.97, r, &limit);
    gt_oom_remedy m = remedy_of(r, GT_OOM_REMEDY_CHECKPOINT);
    CHECK(m.enough && m.depth == 1 && m.segments == 0 && m.count == 16);
    CHECK(strstr(m.subject, "block0") && strstr(m.subject, "block15"));
    check_promise(m.bytes, peak - peak_below(t, &j, NAMED, limit, &m));
    CHECK_OK(gt_context_set_memory_limit(j.ctx, limit / 3)); /* it is on: not offered again */
    CHECK_OK(gt_memory_trim(j.ctx));
    CHECK_STATUS(job_step(&j), GT_OUT_OF_MEMORY);
    CHECK_OK(gt_memory_last_oom(j.ctx, r));
    check_not_offered(r, GT_OOM_REMEDY_CHECKPOINT);
    job_close(&j);
    free(r);
}

TEST_DEVICES(unit, remedy_checkpoint_segments) {
    job j = {.batch = 4096, .width = 32, .blocks = 16};
    gt_oom_report *r = new_report();
    uint64_t limit, peak = fail_below_peak(t, &j, NUMBERED, 0.97, r, &limit);
    gt_oom_remedy m = remedy_of(r, GT_OOM_REMEDY_CHECKPOINT);
    CHECK(m.enough && m.segments > 2 && m.segments < 9 && m.depth == 0);
    CHECK_EQ_STR(m.target, "");
    check_promise(m.bytes, peak - peak_below(t, &j, NUMBERED, limit, &m));
    job_close(&j);
    free(r);
}

TEST_DEVICES(unit, remedy_half_precision) {
    job j = {.batch = 4096, .width = 32, .blocks = 8};
    gt_oom_report *r = new_report();
    uint64_t limit, peak = fail_below_peak(t, &j, NAMED, 0.97, r, &limit);
    gt_oom_remedy m = remedy_of(r, GT_OOM_REMEDY_HALF_PRECISION);
    CHECK(m.enough);
    j.half = 1;
    check_promise(m.bytes, peak - peak_below(t, &j, NAMED, limit, NULL));
    CHECK_OK(gt_memory_trim(j.ctx));
    CHECK_OK(gt_context_set_memory_limit(j.ctx, limit / 3));
    CHECK_STATUS(job_step(&j), GT_OUT_OF_MEMORY);
    CHECK_OK(gt_memory_last_oom(j.ctx, r));
    check_not_offered(r, GT_OOM_REMEDY_HALF_PRECISION);
    job_close(&j);
    free(r);
}

/* The same promises for convolutions and norms. Tensors of 2 MiB: a batch norm with relu is computed again in backward, where its result has a MiB or more. */
TEST_DEVICES(slow, remedies_of_a_convolutional_network) {
    job j = {.batch = 128, .width = 4, .blocks = 18, .images = 1};
    gt_oom_report *r = new_report();
    uint64_t limit, peak = fail_below_peak(t, &j, NUMBERED, 0.99, r, &limit);
    CHECK_EQ_INT(r->batch, 128);
    gt_oom_remedy micro = remedy_of(r, GT_OOM_REMEDY_MICRO_BATCH), half = remedy_of(r, GT_OOM_REMEDY_HALF_PRECISION),
                  checkpoint = remedy_of(r, GT_OOM_REMEDY_CHECKPOINT);
    job micro_job = j, half_job = j, checkpoint_job = j;
    micro_job.micro_batch = micro.micro_batch;
    check_promise(micro.bytes, peak - peak_below(t, &micro_job, NUMBERED, limit, NULL));
    job_close(&micro_job);
    half_job.half = 1;
    check_promise(half.bytes, peak - peak_below(t, &half_job, NUMBERED, limit, NULL));
    job_close(&half_job);
    check_promise(checkpoint.bytes, peak - peak_below(t, &checkpoint_job, NUMBERED, limit, &checkpoint));
    job_close(&checkpoint_job);
    free(r);
}

TEST_DEVICES(unit, remedy_offload) {
    job j = {.batch = 8192, .width = 32, .blocks = 12};
    gt_oom_report *r = new_report();
    uint64_t limit, peak = fail_below_peak(t, &j, NAMED, 0.97, r, &limit);
    gt_oom_remedy m = remedy_of(r, GT_OOM_REMEDY_OFFLOAD);
    CHECK(m.enough && m.limit == MIB && m.count >= 23);
    j.offload = m.limit;
    /* Where copies take time, memory goes when it is wanted: the step fits below what was promised. */
    uint64_t least = peak - m.bytes * 85 / 100;
    uint64_t with = peak_below(t, &j, NAMED, test_device(t) == GT_DEVICE_CPU ? limit : least + 4 * MIB, NULL);
    if (test_device(t) == GT_DEVICE_CPU) check_promise(m.bytes, peak - with);
    CHECK_OK(gt_memory_trim(j.ctx));
    CHECK_OK(gt_context_set_memory_limit(j.ctx, 4 * MIB));
    CHECK_STATUS(job_step(&j), GT_OUT_OF_MEMORY);
    CHECK_OK(gt_memory_last_oom(j.ctx, r));
    check_not_offered(r, GT_OOM_REMEDY_OFFLOAD);
    job_close(&j);
    free(r);
}

TEST_DEVICES(unit, remedy_raise_limit) {
    job j = {.batch = 4096, .width = 32, .blocks = 8};
    gt_oom_report *r = new_report();
    uint64_t limit;
    (void)fail_below_peak(t, &j, NAMED, 0.6, r, &limit);
    gt_oom_remedy m = remedy_of(r, GT_OOM_REMEDY_RAISE_LIMIT);
    CHECK(m.enough && m.limit > limit);
    CHECK_EQ_INT(m.bytes, m.limit - limit);
    (void)peak_below(t, &j, NAMED, m.limit, NULL);
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(j.ctx, &stats));
    CHECK_EQ_INT(stats.limit - limit, m.bytes);
    job_close(&j);
    free(r);
}

static uint64_t in_use(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    return stats.in_use;
}

/* Losses that are kept without a backward, over one step. */
TEST_DEVICES(unit, remedy_release_graphs) {
    job j = {.batch = 4096, .width = 32, .blocks = 4};
    job_open(&j, t, 32 * MIB, NAMED);
    gt_oom_report *r = new_report();
    gt_tensor *kept[16] = {NULL}, *loss;
    int n = 0;
    for (; n < 16; ++n) {
        CHECK_OK(gt_scope_begin(j.ctx));
        kept[n] = gt_tensor_retain(job_loss(&j, j.batch));
        CHECK_OK(gt_scope_end(j.ctx));
        if (kept[n] == NULL) break;
    }
    CHECK(n > 2 && n < 16);
    CHECK_OK(gt_memory_last_oom(j.ctx, r));
    gt_oom_remedy m = remedy_of(r, GT_OOM_REMEDY_RELEASE_GRAPHS);
    CHECK(m.enough);
    CHECK(m.count == n || m.count == n - 1); /* the forward that failed may have been too short to be one */
    CHECK(r->graphs >= n);
    CHECK(strstr(m.subject, "mean") != NULL);
    uint64_t before = in_use(j.ctx);
    for (int i = 0; i < n; ++i) gt_tensor_release(kept[i]);
    check_promise(m.bytes, before - in_use(j.ctx));
    CHECK_OK(gt_scope_begin(j.ctx));
    loss = CHECK_TENSOR(job_loss(&j, j.batch));
    CHECK_OK(gt_backward(loss));
    CHECK_OK(gt_scope_end(j.ctx));
    job_close(&j);
    free(r);
}

/* A list of results that grows by one a step. */
TEST_DEVICES(unit, remedy_release_kept) {
    job j = {.batch = 4096, .width = 32, .blocks = 4};
    job_open(&j, t, 16 * MIB, NAMED);
    gt_oom_report *r = new_report();
    gt_tensor *kept[64] = {NULL};
    gt_status status = GT_OK;
    int n = 0;
    for (; n < 64; ++n) {
        CHECK_OK(gt_scope_begin(j.ctx));
        const int64_t shape[2] = {j.batch, j.width};
        gt_tensor *x = gt_tensor_full(j.ctx, GT_DTYPE_F32, 2, shape, 0.25), *y = gt_module_forward(j.net, x);
        status = gt_optimizer_zero_grad(j.optimizer);
        kept[n] = gt_tensor_retain(gt_tensor_detach(y));
        if (status == GT_OK) status = gt_backward(gt_mean(y, NULL, 0, 0));
        if (status == GT_OK) status = gt_optimizer_step(j.optimizer);
        CHECK_OK(gt_scope_end(j.ctx));
        if (status != GT_OK) break;
    }
    CHECK(n > 8 && n < 64);
    CHECK_STATUS(status, GT_OUT_OF_MEMORY);
    CHECK_OK(gt_memory_last_oom(j.ctx, r));
    print_report(r);
    CHECK_EQ_INT(r->cause, GT_OOM_GROWTH);
    CHECK_EQ_STR(r->growth_op, "tanh");
    CHECK_EQ_STR(r->growth_module, "block3.3");
    CHECK_EQ_INT(r->category_in_use[GT_MEMORY_ACTIVATION], r->saved); /* what is kept is not backward's any more */
    CHECK_EQ_INT(r->growth, MIB / 2);
    gt_oom_remedy m = remedy_of(r, GT_OOM_REMEDY_RELEASE_KEPT);
    CHECK(m.enough);
    CHECK(strstr(gt_last_error()->hint, "that are kept") != NULL);
    uint64_t before = in_use(j.ctx);
    for (int i = 0; i <= n; ++i) gt_tensor_release(kept[i]);
    check_promise(m.bytes, before - in_use(j.ctx));
    CHECK_OK(job_step(&j));
    job_close(&j);
    free(r);
}

/* A kernel that takes as much workspace as it is allowed, as backends do, while an output is asked for. */
static gt_tensor *greedy(gt_context *ctx, uint64_t want) {
    void *pointer, *handle = NULL;
    const int64_t shape[1] = {3 * (int64_t)MIB};
    uint64_t limit = ctx->device->workspace_limit;
    (void)gt__scratch_alloc_quiet(ctx, (size_t)(want < limit ? want : limit), &pointer, &handle);
    gt_tensor *y = gt_tensor_empty(ctx, GT_DTYPE_F32, 1, shape);
    gt__scratch_free(ctx, handle);
    return y;
}

TEST_DEVICES(unit, remedy_workspace_limit) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.memory_limit = 32 * MIB;
    gt_context *ctx = test_context_with(t, &options);
    gt_oom_report *r = new_report();
    CHECK(greedy(ctx, 24 * MIB) == NULL);
    CHECK_OK(gt_memory_last_oom(ctx, r));
    gt_oom_remedy m = remedy_of(r, GT_OOM_REMEDY_WORKSPACE_LIMIT);
    CHECK(m.enough);
    CHECK_EQ_INT(m.bytes, 24 * MIB);
    CHECK_OK(gt_context_set_workspace_limit(ctx, m.limit));
    CHECK_OK(gt_memory_reset_peak(ctx));
    gt_tensor *y = CHECK_TENSOR(greedy(ctx, 24 * MIB));
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    check_promise(m.bytes, r->in_use + r->rounded - stats.peak_in_use);
    gt_tensor_release(y);
    free(r);
}

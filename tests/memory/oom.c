/* A shortage as a caller sees it: the error, the report, the observer. */
#include "harness/test.h"

#include <gtrain/gtrain.h>
#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)

static gt_context *limited(test_case *t, uint64_t limit) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.memory_limit = limit;
    options.cpu_threads = 1;
    return test_context_with(t, &options);
}

static gt_tensor *take(gt_context *ctx, uint64_t bytes) {
    const int64_t shape[1] = {(int64_t)(bytes / 4)};
    return gt_tensor_empty(ctx, GT_DTYPE_F32, 1, shape);
}

static gt_oom_report *new_report(void) {
    gt_oom_report *r = malloc(sizeof *r);
    CHECK_OK(gt_oom_report_init(r, sizeof *r));
    return r;
}

TEST_DEVICES(unit, oom_message_and_hint_come_from_the_report) {
    gt_context *ctx = limited(t, 100 * MIB);
    gt_oom_report *r = new_report();
    CHECK_STATUS(gt_memory_last_oom(ctx, r), GT_NOT_FOUND);
    gt_tensor *x = CHECK_TENSOR(take(ctx, 60 * MIB));
    CHECK(take(ctx, 50 * MIB) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
    CHECK_ERROR_HAS("tensor_empty: 50.0 MiB (52428800 bytes) asked, LIMIT: ");
    CHECK_ERROR_HAS("60.0 MiB in use (user tensors 60.0 MiB)");
    CHECK_ERROR_HAS("limit 100.0 MiB");
    CHECK(strstr(gt_last_error()->hint, "raise the memory limit to ") == gt_last_error()->hint);
    CHECK_OK(gt_memory_last_oom(ctx, r));
    CHECK_EQ_INT(r->cause, GT_OOM_LIMIT);
    CHECK_EQ_INT(r->requested, 50 * MIB);
    CHECK_EQ_STR(r->op, "tensor_empty");
    CHECK_EQ_INT(r->in_use, 60 * MIB);
    CHECK_EQ_INT(r->in_use + r->cached, r->reserved);
    CHECK_EQ_INT(r->ours + r->others + r->device_free, r->device_total);
    gt_tensor_release(x);
    x = CHECK_TENSOR(take(ctx, 50 * MIB)); /* the report stays */
    CHECK_OK(gt_memory_last_oom(ctx, r));
    CHECK_EQ_INT(r->in_use, 60 * MIB);
    gt_tensor_release(x);
    free(r);
}

TEST_DEVICES(unit, oom_report_of_the_present_state) {
    gt_context *ctx = test_context(t);
    gt_oom_report *r = new_report();
    gt_tensor *x = CHECK_TENSOR(take(ctx, 30 * MIB));
    gt_clear_error();
    CHECK_OK(gt_memory_report(ctx, r));
    CHECK_EQ_INT(gt_last_error()->status, GT_OK);
    CHECK_EQ_INT(r->cause, GT_OOM_NONE);
    CHECK_EQ_INT(r->requested, 0);
    CHECK_EQ_INT(r->in_use, 30 * MIB);
    CHECK_EQ_INT(r->n_groups, 1);
    CHECK_EQ_STR(r->groups[0].op, "tensor_empty");
    CHECK_EQ_INT(r->groups[0].shape[0], 30 * (int64_t)MIB / 4);
    CHECK_EQ_INT(r->ours + r->others + r->device_free, r->device_total);
    CHECK_STATUS(gt_memory_last_oom(ctx, r), GT_NOT_FOUND);
    gt_clear_error();
    CHECK_STATUS(gt_memory_report(NULL, r), GT_BAD_ARGUMENT);
    gt_clear_error();
    CHECK_STATUS(gt_memory_report(ctx, NULL), GT_BAD_ARGUMENT);
    r->struct_size = 0;
    CHECK_STATUS(gt_memory_report(ctx, r), GT_BAD_ABI);
    r->struct_size = offsetof(gt_oom_report, shape);
    memset(r->shape, 7, sizeof r->shape); /* beyond what an older caller has nothing is written */
    CHECK_OK(gt_memory_report(ctx, r));
    CHECK_EQ_INT(r->shape[0], 0x0707070707070707);
    CHECK_EQ_INT(r->struct_size, offsetof(gt_oom_report, shape));
    gt_tensor_release(x);
    free(r);
}

typedef struct watcher {
    gt_tensor *spare;
    uint64_t new_limit;
    int calls, stubborn;
    gt_oom_cause cause;
} watcher;

static int32_t watch(void *user, gt_context *ctx, const gt_oom_report *report) {
    watcher *w = user;
    w->calls++;
    w->cause = report->cause;
    if (w->spare) {
        gt_tensor_release(w->spare);
        w->spare = NULL;
        return 1;
    }
    if (w->new_limit) {
        if (gt_context_set_memory_limit(ctx, w->new_limit) != GT_OK) return 0;
        w->new_limit = 0;
        return 1;
    }
    return w->stubborn;
}

TEST_DEVICES(unit, oom_observer_frees_memory_and_the_call_succeeds) {
    gt_context *ctx = limited(t, 100 * MIB);
    watcher w = {.spare = CHECK_TENSOR(take(ctx, 60 * MIB))};
    CHECK_OK(gt_memory_set_oom_observer(ctx, watch, &w));
    gt_clear_error();
    gt_tensor *x = CHECK_TENSOR(take(ctx, 80 * MIB));
    CHECK_EQ_INT(gt_last_error()->status, GT_OK); /* nothing failed */
    CHECK_EQ_INT(w.calls, 1);
    CHECK_EQ_INT(w.cause, GT_OOM_LIMIT);
    w.new_limit = 256 * MIB;
    gt_tensor *y = CHECK_TENSOR(take(ctx, 80 * MIB));
    CHECK_EQ_INT(w.calls, 2);
    CHECK(take(ctx, 200 * MIB) == NULL); /* it has nothing more to give */
    CHECK_EQ_INT(w.calls, 3);
    CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
    w.stubborn = 1; /* asks again without having freed anything: once is enough */
    CHECK(take(ctx, 200 * MIB) == NULL);
    CHECK_EQ_INT(w.calls, 4);
    CHECK_OK(gt_memory_set_oom_observer(ctx, NULL, NULL));
    CHECK(take(ctx, 200 * MIB) == NULL);
    CHECK_EQ_INT(w.calls, 4);
    gt_tensor_release(x);
    gt_tensor_release(y);
}

TEST_DEVICES(unit, oom_names_module_and_how_far_the_forward_came) {
    gt_context *ctx = limited(t, 21 * MIB);
    gt_oom_report *r = new_report();
    gt_module *net = gt_nn_sequential(ctx);
    for (int i = 0; i < 4; ++i) CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, 512, 512, NULL)));
    CHECK_OK(gt_module_check(net));
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t shape[2] = {2048, 512};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 0.5)); /* 4 MiB, as every result; the weights have 1 MiB each */
    CHECK(gt_module_forward(net, x) == NULL);
    CHECK_ERROR_HAS("linear \"2\"");
    CHECK_OK(gt_memory_last_oom(ctx, r));
    CHECK_EQ_STR(r->op, "linear");
    CHECK_EQ_STR(r->module, "2");
    CHECK_EQ_STR(r->phase, "forward");
    CHECK_EQ_INT(r->layers, 4);
    CHECK_EQ_INT(r->layers_run, 2);
    CHECK_EQ_INT(r->batch, 2048);
    CHECK_EQ_INT(r->graphs, 1);
    CHECK_EQ_INT(r->saved, 4 * MIB); /* the input of "1"; that of "0" is the caller's, and "2" has not run */
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
    free(r);
}

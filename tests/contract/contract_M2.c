/* M2: keeping loss handles keeps no graph; and where graphs are kept, the report says how many and how large. */
#include "harness/test.h"

#include <gtrain/gtrain.h>

#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 200, MIB = 1 << 20 };

static gt_tensor *weight(gt_context *ctx) {
    const int64_t shape[1] = {MIB / 4};
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 0.5));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    return w;
}

/* One step of which 1 MiB is saved for backward. */
static gt_tensor *step(gt_context *ctx, gt_tensor *w, int backward) {
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *loss = gt_tensor_retain(gt_sum(gt_tanh(w), NULL, 0, 0));
    if (loss && backward) CHECK_OK(gt_backward(loss));
    CHECK_OK(gt_scope_end(ctx));
    return loss;
}

static uint64_t in_use(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    return stats.in_use;
}

TEST_DEVICES(contract, M2_kept_losses_hold_nothing_after_their_backward) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = weight(ctx), *losses[STEPS];
    gt_oom_report *r = malloc(sizeof *r);
    CHECK_OK(gt_oom_report_init(r, sizeof *r));
    uint64_t before = 0;
    for (int i = 0; i < STEPS; ++i) {
        losses[i] = CHECK_TENSOR(step(ctx, w, 1));
        uint64_t now = in_use(ctx);
        CHECK(i == 0 || now <= before + 4096);
        before = now;
    }
    CHECK_OK(gt_memory_report(ctx, r));
    CHECK_EQ_INT(r->graphs, 0);
    CHECK_EQ_INT(r->saved, 0);
    CHECK_EQ_INT(r->category_in_use[GT_MEMORY_ACTIVATION], 0);
    for (int i = 0; i < STEPS; ++i) gt_tensor_release(losses[i]);
    gt_tensor_release(w);
    free(r);
}

TEST_DEVICES(contract, M2_without_a_backward_the_report_names_the_graphs) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.memory_limit = 64 * MIB;
    gt_context *ctx = test_context_with(t, &options);
    gt_tensor *w = weight(ctx), *losses[STEPS];
    gt_oom_report *r = malloc(sizeof *r);
    char text[GT_OOM_TEXT_SIZE];
    CHECK_OK(gt_oom_report_init(r, sizeof *r));
    int n = 0;
    gt_clear_error();
    while (n < STEPS && (losses[n] = step(ctx, w, 0)) != NULL) ++n;
    CHECK(n > 40 && n < 64);
    CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
    CHECK_ERROR_HAS("GROWTH: 1.0 MiB more in each of 7 steps, ");
    CHECK_ERROR_HAS("so far, by tanh;");
    CHECK_OK(gt_memory_last_oom(ctx, r));
    CHECK_EQ_INT(r->cause, GT_OOM_GROWTH);
    CHECK_EQ_STR(r->growth_op, "tanh");
    CHECK_EQ_INT(r->growth_category, GT_MEMORY_ACTIVATION);
    CHECK_EQ_INT(r->graphs, n);
    CHECK_EQ_INT(r->saved, (uint64_t)n * MIB);
    CHECK_OK(gt_oom_report_text(r, text, sizeof text, NULL));
    char want[64];
    (void)snprintf(want, sizeof want, "%d.0 MiB saved for backward by %d live graphs", n, n);
    if (strstr(text, want) == NULL) FAIL("\"%s\" is not in\n%s", want, text);
    CHECK_EQ_INT(r->remedies[0].kind, GT_OOM_REMEDY_RELEASE_GRAPHS);
    for (int i = 0; i < n; ++i) gt_tensor_release(losses[i]);
    losses[0] = CHECK_TENSOR(step(ctx, w, 1));
    gt_tensor_release(losses[0]);
    gt_tensor_release(w);
    free(r);
}

/* Two results of one forward are one graph; what they share is counted once. */
TEST_DEVICES(contract, M2_results_that_share_records_are_one_graph) {
    gt_context *ctx = test_context(t);
    gt_tensor *w = weight(ctx);
    gt_oom_report *r = malloc(sizeof *r);
    CHECK_OK(gt_oom_report_init(r, sizeof *r));
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *y = gt_tanh(w), *z = gt_tanh(y);
    CHECK_TENSOR(gt_sum(z, NULL, 0, 0));
    CHECK_TENSOR(gt_mean(y, NULL, 0, 0));
    CHECK_TENSOR(gt_sum(gt_sigmoid(w), NULL, 0, 0)); /* another: it shares just the leaf */
    CHECK_OK(gt_memory_report(ctx, r));
    CHECK_EQ_INT(r->graphs, 2);
    CHECK_EQ_INT(r->saved, 3 * MIB);
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_memory_report(ctx, r));
    CHECK_EQ_INT(r->graphs, 0);
    CHECK_EQ_INT(r->saved, 0);
    gt_tensor_release(w);
    free(r);
}

/* C6: checkpointing saves memory. */
#include "unit/ops_util.h"

#define MIB ((uint64_t)1 << 20)
enum { LAYERS = 16, ELEMENTS = 4 << 20 };

static gt_status tanh_layers(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    gt_tensor *y = inputs[0];
    for (int i = 0; i < *(const int *)user && y; i++) y = gt_tanh(y);
    outputs[0] = y;
    return y ? GT_OK : gt_last_error()->status;
}

static uint64_t peak_of(gt_context *ctx, int segments) {
    gt_memory_stats before, after;
    CHECK_OK(gt_memory_stats_init(&before, sizeof before));
    after = before;
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(ELEMENTS), .5)), *y = x;
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_memory_reset_peak(ctx));
    CHECK_OK(gt_memory_get_stats(ctx, &before));
    int each = LAYERS / (segments ? segments : 1);
    if (segments == 0) CHECK_OK(tanh_layers(&each, &x, &y));
    for (int i = 0; i < segments; i++) {
        gt_tensor *in = y;
        CHECK_OK(gt_checkpoint(ctx, tanh_layers, &each, &in, 1, &y, 1));
    }
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    CHECK_OK(gt_memory_get_stats(ctx, &after));
    CHECK_OK(gt_scope_end(ctx));
    return after.peak_in_use - before.in_use;
}

TEST_DEVICES(contract, C6_four_segments_of_sixteen_layers) {
    gt_context *ctx = test_context(t);
    uint64_t plain = peak_of(ctx, 0), segments = peak_of(ctx, 4);
    CHECK(plain >= 256 * MIB);
    if (segments > 176 * MIB) FAIL("peak %llu MiB above the input", (unsigned long long)(segments / MIB));
}

/* M3: after a call that failed for want of memory, in-use is exactly what it was, and the call works once there is room, 100 times over. */
#include "harness/test.h"

#include <gtrain/gtrain.h>

enum { MIB = 1 << 20, TIMES = 100 };

static gt_context *limited(test_case *t) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.memory_limit = 48 * MIB;
    return test_context_with(t, &options);
}

static uint64_t in_use(gt_context *ctx) {
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK(stats.in_use + stats.cached == stats.reserved);
    return stats.in_use;
}

typedef struct inputs {
    gt_tensor *column, *row, *image, *kernel; /* results are far larger than they are */
} inputs;

static gt_tensor *call_empty(gt_context *ctx, const inputs *in) {
    (void)in;
    const int64_t shape[2] = {16, MIB};
    return gt_tensor_empty(ctx, GT_DTYPE_F32, 2, shape);
}
static gt_tensor *call_add(gt_context *ctx, const inputs *in) { return (void)ctx, gt_add(in->column, in->row); }
static gt_tensor *call_matmul(gt_context *ctx, const inputs *in) { return (void)ctx, gt_matmul(in->column, in->row); }
static gt_tensor *call_conv(gt_context *ctx, const inputs *in) { return (void)ctx, gt_conv2d(in->image, in->kernel, NULL, NULL); }

TEST_DEVICES(contract, M3_in_use_after_a_failed_op) {
    static gt_tensor *(*const calls[])(gt_context *, const inputs *) = {call_empty, call_add, call_matmul, call_conv};
    gt_context *ctx = limited(t);
    const int64_t column[2] = {4096, 1}, row[2] = {1, 4096}, image[4] = {16, 1, 64, 64}, kernel[4] = {256, 1, 1, 1};
    inputs in = {.column = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, column, 1)),
                 .row = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, row, 2)),
                 .image = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 4, image, 1)),
                 .kernel = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 4, kernel, 1))};
    const uint64_t before = in_use(ctx);
    for (int i = 0; i < TIMES; ++i) {
        const int which = i % (int)(sizeof calls / sizeof *calls);
        CHECK_OK(gt_memory_trim(ctx)); /* what is cached would do in spite of the limit */
        CHECK_OK(gt_context_set_memory_limit(ctx, 48 * MIB));
        CHECK(calls[which](ctx, &in) == NULL);
        CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
        gt_clear_error();
        CHECK(in_use(ctx) == before);
        if (i % 10 >= 4) continue; /* several failures in a row, too */
        CHECK_OK(gt_context_set_memory_limit(ctx, 200 * MIB));
        gt_tensor_release(CHECK_TENSOR(calls[which](ctx, &in)));
        CHECK(in_use(ctx) == before);
    }
    gt_tensor_release(in.column);
    gt_tensor_release(in.row);
    gt_tensor_release(in.image);
    gt_tensor_release(in.kernel);
}

/* The backward of a step that does not fit: memory is as before it, and with room the same backward works. */
TEST_DEVICES(contract, M3_in_use_after_a_failed_backward) {
    gt_context *ctx = limited(t);
    const int64_t shape[2] = {1664, 1664}; /* more than 10 MiB: a segment of its own on the CPU */
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 0.5));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    const uint64_t before = in_use(ctx);
    for (int i = 0; i < TIMES; ++i) {
        gt_memory_stats stats;
        CHECK_OK(gt_context_set_memory_limit(ctx, 100 * MIB));
        CHECK_OK(gt_memory_trim(ctx));
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *loss = CHECK_TENSOR(gt_sum(gt_mul(w, w), NULL, 0, 0));
        CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
        CHECK_OK(gt_memory_get_stats(ctx, &stats));
        CHECK_OK(gt_context_set_memory_limit(ctx, stats.reserved));          /* no room for the gradient */
        CHECK_STATUS(gt_backward_from(&loss, NULL, 1, 1), GT_OUT_OF_MEMORY); /* the record is kept: it would be freed on the way */
        gt_clear_error();
        CHECK(in_use(ctx) == stats.in_use);
        CHECK(gt_tensor_grad(w) == NULL);
        CHECK_OK(gt_context_set_memory_limit(ctx, 100 * MIB));
        CHECK_OK(gt_backward(loss));
        CHECK(gt_tensor_grad(w) != NULL);
        CHECK_OK(gt_tensor_zero_grad(w));
        CHECK_OK(gt_scope_end(ctx));
        CHECK(in_use(ctx) == before);
    }
    gt_tensor_release(w);
}

/* M5: sizes never wrap. */
#include "unit/ops_util.h"

static uint64_t allocations(gt_context *ctx) {
    gt_memory_stats s;
    CHECK_OK(gt_memory_stats_init(&s, sizeof s));
    CHECK_OK(gt_memory_get_stats(ctx, &s));
    return s.allocations;
}

TEST_DEVICES(contract, M5_sizes_never_wrap) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    uint64_t before = allocations(ctx);
    CHECK_REFUSED(gt_tensor_empty(ctx, GT_DTYPE_F32, SHAPE((1ll << 62) + 2)), GT_BAD_SHAPE, "4611686018427387906");
    CHECK_REFUSED(gt_tensor_empty(ctx, GT_DTYPE_F32, SHAPE(2, 2, 1, 1ll << 61)), GT_BAD_SHAPE, "[2,2,1,2305843009213693952]");
    CHECK_REFUSED(gt_tensor_empty(ctx, GT_DTYPE_F32, SHAPE(-1)), GT_BAD_SHAPE, "-1");
    CHECK_REFUSED(gt_tensor_zeros(ctx, GT_DTYPE_U8, SHAPE(1ll << 32, 1ll << 32)), GT_BAD_SHAPE, "[4294967296,4294967296]");
    CHECK_EQ_INT(allocations(ctx), before);
    CHECK_EQ_INT(gt_tensor_numel(CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(0, 3)))), 0);
    CHECK_EQ_INT(gt_tensor_numel(CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 0, NULL))), 1);
    gt_scope_end(ctx);
}

/* Ops whose results would be too large say so instead of wrapping. */
TEST_DEVICES(contract, M5_results_of_ops_never_wrap) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    const int64_t huge = 1ll << 31;
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(1)), *a = gt_expand(x, SHAPE(huge, 1)), *b = gt_expand(x, SHAPE(1, huge)),
              *c = gt_expand(x, SHAPE(4, 1, 1));
    uint64_t before = allocations(ctx);
    CHECK_REFUSED(gt_expand(x, SHAPE(1ll << 62)), GT_BAD_SHAPE, "expand");
    CHECK_REFUSED(gt_add(a, gt_expand(b, SHAPE(4, 1, huge))), GT_BAD_SHAPE, "add");
    CHECK_REFUSED(gt_matmul(a, b), GT_BAD_SHAPE, "matmul");
    CHECK_REFUSED(gt_matmul(gt_expand(a, SHAPE(4, huge, 1)), gt_expand(b, SHAPE(4, 1, huge))), GT_BAD_SHAPE, "matmul");
    CHECK_REFUSED(gt_linear(a, gt_transpose(b, 0, 1), NULL), GT_BAD_SHAPE, "linear");
    CHECK_REFUSED(gt_pad(c, (const int64_t[]){0, huge, huge}, (const int64_t[]){0, 0, 0}, 0), GT_BAD_SHAPE, "pad");
    gt_tensor *wide = gt_expand(x, SHAPE(1ll << 59));
    CHECK_REFUSED(gt_concat((gt_tensor *const[]){wide, wide, wide}, 3, 0), GT_BAD_SHAPE, "concat");
    CHECK_REFUSED(gt_embedding(gt_expand(x, SHAPE(1, huge)), gt_expand(gt_tensor_zeros(ctx, GT_DTYPE_I32, SHAPE(1)), SHAPE(huge))),
                  GT_BAD_SHAPE, "embedding");
    CHECK_REFUSED(gt_adaptive_avg_pool2d(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(1, 1, 1, 1)), huge, huge), GT_BAD_SHAPE,
                  "adaptive_avg_pool2d");
    CHECK(allocations(ctx) <= before + 2); /* the two small inputs made above */
    gt_scope_end(ctx);
}

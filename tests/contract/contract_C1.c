/* C1: recomputation draws the same random numbers, and the draw after the segment is the one that the run without checkpointing makes. */
#include "unit/ops_util.h"

static gt_status drop(void *user, gt_tensor *const *inputs, gt_tensor **outputs) {
    int *calls = user;
    ++*calls;
    outputs[0] = gt_dropout(inputs[0], 0.5, 1);
    return outputs[0] ? GT_OK : gt_last_error()->status;
}

TEST_DEVICES(contract, C1_the_gradient_has_the_mask_of_the_forward) {
    enum { N = 1000 };
    gt_context *ctx = test_context(t);
    float y[N], dx[N], plain[N];
    uint64_t seed, after, plain_after;
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_random_seed(ctx, 7));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(N), 1));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_dropout(x, 0.5, 1)), plain, sizeof plain));
    CHECK_OK(gt_random_state_get(ctx, &seed, &plain_after));

    CHECK_OK(gt_random_seed(ctx, 7));
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    int calls = 0;
    gt_tensor *out = NULL;
    CHECK_OK(gt_checkpoint(ctx, drop, &calls, &x, 1, &out, 1));
    CHECK_OK(gt_random_state_get(ctx, &seed, &after));
    CHECK_EQ_INT(after, plain_after);
    CHECK_TENSOR(gt_tensor_uniform(ctx, GT_DTYPE_F32, SHAPE(5), 0, 1)); /* draws of others in between */
    CHECK_OK(gt_random_state_get(ctx, &seed, &after));
    CHECK_OK(gt_backward(gt_sum(out, NULL, 0, 0)));
    CHECK_EQ_INT(calls, 2);
    uint64_t at_end;
    CHECK_OK(gt_random_state_get(ctx, &seed, &at_end));
    CHECK_EQ_INT(at_end, after);
    CHECK_OK(gt_tensor_read(out, y, sizeof y));
    CHECK_OK(gt_tensor_read(gt_tensor_grad(x), dx, sizeof dx));
    int kept = 0;
    for (int i = 0; i < N; i++) {
        CHECK(y[i] == plain[i] && (y[i] == 2 || y[i] == 0));
        CHECK(dx[i] == y[i]);
        kept += y[i] == 2;
    }
    CHECK(kept > 400 && kept < 600);
    CHECK_OK(gt_scope_end(ctx));
}

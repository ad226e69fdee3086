/* dropout. The mask is not kept: the gradient draws it again from the same place of the random stream. Its shape rule is that of all
 * elementwise ops. */
#include "ops/ops.h"

gt_status gt__grad_dropout(gt__grad *grad) {
    GT__TRY_TENSOR(grad->dx[0], gt__op1(GT__OP_DROPOUT, grad->dy[0], grad->attr));
    return GT_OK;
}

gt_tensor *gt_dropout(gt_tensor *x, double probability, int32_t training) {
    GT__NEED(x);
    GT__REQUIRE_OP(probability >= 0 && probability <= 1, x, DROPOUT, GT_BAD_ARGUMENT, "probability is %g, but must be from 0 to 1",
                   probability);
    GT__REQUIRE_OP(gt__dtype_is_float(x->meta.dtype), x, DROPOUT, GT_BAD_DTYPE,
                   "the input is %s, but must be f32, f16, bf16 or f64; use gt_cast", gt_dtype_name(x->meta.dtype));
    if (!training || probability == 0) return gt__same(x);
    uint64_t offset = x->ctx->rng_offset;
    gt__attrs attr = gt__attrs_zero();
    gt__random_take(x->ctx, x->meta.numel, &attr);
    attr.random.a = probability;
    gt_tensor *y = gt__op1(GT__OP_DROPOUT, x, &attr);
    if (y == NULL) x->ctx->rng_offset = offset; /* a failed call draws nothing */
    return y;
}

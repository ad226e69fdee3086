/* dtype, shape and strides of a tensor, and what can be said from them alone. */
#ifndef GT_CORE_SHAPE_H
#define GT_CORE_SHAPE_H

#include "base/host.h"
#include <gtrain/tensor.h>

GT_EXTERN_C_BEGIN

typedef struct gt__meta {
    int64_t shape[GT_MAX_DIMS];
    int64_t strides[GT_MAX_DIMS]; /* in elements, >= 0; 0 where expanded */
    int64_t numel;
    int32_t ndim;
    gt_dtype dtype;
} gt__meta;

/* Checks ndim, entries >= 0 and that numel * element size fits in 2^62, then fills a row-major meta. `who` names the op. */
gt_status gt__meta_make(gt__meta *meta, gt_dtype dtype, int32_t ndim, const int64_t *shape, const char *who);
/* Row-major strides for meta's shape (already checked). */
void gt__meta_set_row_major(gt__meta *meta);
/* Channels-last strides for ndim 4, row-major otherwise. */
void gt__meta_set_channels_last(gt__meta *meta);
/* Row-major strides, size-1 axes and empty tensors never matter. */
bool gt__meta_is_row_major(const gt__meta *meta);
bool gt__meta_is_channels_last(const gt__meta *meta); /* ndim 4 */
/* Some permutation of row-major: every element once, no holes. */
bool gt__meta_is_dense(const gt__meta *meta);
bool gt__meta_same_shape(const gt__meta *a, const gt__meta *b);
/* Same shape and the elements lie at the same places (strides of axes longer than 1 agree). */
bool gt__meta_same_layout(const gt__meta *a, const gt__meta *b);
/* Axis -ndim..ndim-1 to 0..ndim-1, or -1. */
int32_t gt__axis(int32_t ndim, int32_t axis);
const char *gt__meta_text(char *buffer, size_t size, const gt__meta *meta); /* "[8,32,28,28]" */

static inline bool gt__dtype_is_float(gt_dtype d) {
    return d == GT_DTYPE_F32 || d == GT_DTYPE_F16 || d == GT_DTYPE_BF16 || d == GT_DTYPE_F64;
}
static inline bool gt__dtype_is_half(gt_dtype d) { return d == GT_DTYPE_F16 || d == GT_DTYPE_BF16; }
static inline bool gt__dtype_is_int(gt_dtype d) { return d == GT_DTYPE_I32 || d == GT_DTYPE_I64 || d == GT_DTYPE_U8; }
/* f32 for half precision, else the dtype itself: what sums, statistics and losses are kept in. */
static inline gt_dtype gt__dtype_accumulate(gt_dtype d) { return gt__dtype_is_half(d) ? GT_DTYPE_F32 : d; }

/* Up to GT__ITER_OPERANDS operands that are walked together: one iteration shape, a stride per operand and axis. Made by gt__iter_make, which drops
 * axes of size 1 and joins neighbours, so that a dense case is one axis with stride 1 everywhere. Axis 0 is the outermost. */
#define GT__ITER_OPERANDS 4
typedef struct gt__iter {
    int64_t shape[GT_MAX_DIMS];
    int64_t strides[GT__ITER_OPERANDS][GT_MAX_DIMS]; /* in elements */
    int64_t numel;
    int32_t ndim; /* >= 1 */
    int32_t n;    /* operands */
} gt__iter;
/* metas[0] gives the iteration shape; the others must have it or be broadcast to it (size 1, or fewer axes: aligned at the end). */
void gt__iter_make(gt__iter *iter, const gt__meta *const *metas, int32_t n);
/* True when the walk is one axis and every operand's stride is 1. */
bool gt__iter_is_linear(const gt__iter *iter);

GT_EXTERN_C_END
#endif

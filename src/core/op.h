/* The op table and the description of one op call. A backend's kernels and the rules in src/ops see a call through this header alone. */
#ifndef GT_CORE_OP_H
#define GT_CORE_OP_H

#include "core/op_list.h"
#include "core/tensor.h"
#include <gtrain/amp.h>
#include <gtrain/autograd.h>
#include <gtrain/ops.h>

GT_EXTERN_C_BEGIN

typedef enum gt__op_id {
#define GT__OP_ENUM(id, name, shape, grad, layout, saves, cast) GT__OP_##id,
    GT__OP_LIST(GT__OP_ENUM)
#undef GT__OP_ENUM
        GT__OP_COUNT
} gt__op_id;

typedef enum gt__layout { GT__LAYOUT_ANY, GT__LAYOUT_ROW_MAJOR, GT__LAYOUT_CHANNELS_LAST, GT__LAYOUT_MATRIX, GT__LAYOUT_VIEW } gt__layout;

#define GT__MAX_OUT      4
#define GT__MAX_SAVED_IN 8 /* inputs beyond these are never saved (concat) */

#define GT__IN(k)  (1u << (k))
#define GT__OUT(k) (256u << (k))
/* Masks of 16 bits in one number: for inputs 0, 1, 2, and for all after them. */
#define GT__SAVE_REST(for0, for1, for2, rest) ((uint64_t)(for0) | (uint64_t)(for1) << 16 | (uint64_t)(for2) << 32 | (uint64_t)(rest) << 48)
#define GT__SAVE(for0, for1, for2)            GT__SAVE_REST(for0, for1, for2, 0)

struct gt__custom;

/* Attributes of a call. A flat value: copied into records and, later, into programs. */
typedef union gt__attrs {
    struct {
        double value;
    } scalar;
    struct {
        double a, b;
        uint64_t seed, offset;
        const uint64_t *cells;
    } random; /* element i uses word i % 4 of Philox block offset + i / 4. cells: device memory, a seed in place of `seed` and what `offset` is counted from; or NULL */
    struct {
        gt_dtype dtype;
        int32_t channels_last;
    } layout;
    struct {
        int64_t shape[GT_MAX_DIMS];
        int64_t strides[GT_MAX_DIMS];
        int64_t offset;
        int32_t ndim;
    } view; /* offset in elements, of the storage (as_strided) */
    struct {
        int32_t axes[GT_MAX_DIMS];
    } axes;
    struct {
        int64_t shape[GT_MAX_DIMS];
        int64_t start, stop, step;
        int32_t axis, ndim;
    } slice; /* shape, ndim: slice_backward's result */
    struct {
        int64_t before[GT_MAX_DIMS], after[GT_MAX_DIMS];
        double value;
    } pad;
    struct {
        uint32_t mask;
        int32_t keep_dims;
        int32_t axis;
        int32_t wide;
    } reduce; /* mask: bit a set if axis a is reduced; axis: argmax; wide: sums of halves are f32 (sum, bias_relu_backward) */
    struct {
        gt_activation activation;
        int32_t accumulate;
    } linear; /* accumulate: linear_backward_weight adds to its output, which the caller gives */
    struct {
        int64_t stride[2], padding[2], dilation[2], groups;
        int64_t shape[4];
        gt_activation activation;
        int32_t accumulate;
    } conv; /* shape: the gradient's, in conv2d_backward_*; accumulate: conv2d_backward_weight adds to its output, which the caller gives,
               and conv2d_relu_backward_weight to both of its outputs */
    struct {
        int64_t kernel[2], stride[2], padding[2];
        int64_t shape[4];
        int32_t count_include_pad;
    } pool; /* shape: x's, in *_backward */
    struct {
        double momentum, epsilon;
        int32_t training;
        gt_activation activation; /* batch_norm_apply */
    } norm;
    struct {
        int32_t axis;
        int32_t converts;
        gt_dtype dtype;
    } softmax; /* converts: the result is of `dtype`: f32 of a half, or, backward, a half of f32 */
    struct {
        int64_t ignore_label;
        double label_smoothing;
        gt_reduction reduction;
    } loss;
    struct {
        struct gt__custom *op;
        int32_t backward;
    } custom;                       /* counted by the record */
    struct gt__segment *checkpoint; /* counted by the record */
} gt__attrs;

/* One call. Kernels read in[k]->meta and gt__data(in[k]), and write gt__data(out[k]). Optional inputs are NULL. out[k] is NULL where an output is not
 * wanted. Zero-element calls reach kernels too, and must be handled (results that do not depend on elements, such as zero gradients of a
 * weight, must be written). */
typedef struct gt__call {
    gt_context *ctx;
    gt_tensor *const *in;
    int32_t n_in;
    int32_t n_out;
    gt_tensor *out[GT__MAX_OUT];
    gt__attrs attr;
    gt__op_id op;
    int64_t view_offset;        /* views: of the result, in elements from in[0]'s first element */
    gt__meta meta[GT__MAX_OUT]; /* filled by the shape rule; kernels use out[k]->meta */
} gt__call;

/* What a gradient rule gets and fills. */
typedef struct gt__grad {
    gt_context *ctx;
    const gt__attrs *attr;
    gt__op_id op;
    gt_tensor *dy[GT__MAX_OUT];         /* NULL where nothing flowed back; at least one is there */
    gt_tensor *in[GT__MAX_SAVED_IN];    /* saved inputs, NULL if not saved */
    gt_tensor *out[GT__MAX_OUT];        /* saved outputs, NULL if not saved */
    gt_tensor *fresh[GT__MAX_SAVED_IN]; /* those of `in` that were computed again; for gt__grad_done_in */
    const gt__meta *in_meta;            /* n_in metas, saved or not */
    const uint8_t *needs;               /* needs[k] != 0: the gradient of input k is wanted */
    int32_t n_in;
    struct gt__node *node;     /* for gt__grad_done_* */
    struct gt__engine *engine; /* for gt__grad_sink */
    bool retain;               /* another backward will want what was saved */
    gt_tensor **dx; /* n_in results, NULL at first. Shape of the input; dtype of the input, or f32 for a half. Leaving NULL means zero */
} gt__grad;

typedef gt_status (*gt__shape_rule)(
    gt__call *
        call); /* checks in[] and attr; sets n_out and meta[] (strides included). Views: meta[0] and view_offset; as_strided: offset from the storage's start */
typedef gt_status (*gt__grad_rule)(gt__grad *grad); /* written with ops; runs in a scope and a no-grad region of its own */

typedef struct gt__op_def {
    const char *name;
    gt__shape_rule shape;
    gt__grad_rule grad; /* gt__grad_none: no gradient */
    gt__layout layout;
    uint64_t saves;
    gt_cast_policy cast; /* what autocast does to floating inputs */
} gt__op_def;
extern const gt__op_def gt__op_table[GT__OP_COUNT];

/* --- calling ops: the one way in -------------------------------------------------------------------------------------------------------
 * gt__op runs (or records, or traces) a call and returns its first output in the innermost scope, or NULL. in[k] may be NULL for optional
 * inputs only; the public wrappers have dealt with NULL from failed ops. `attr` may be NULL. */
gt_tensor *gt__op(gt__op_id op, gt_tensor *const *in, int32_t n_in, const gt__attrs *attr);
gt_tensor *gt__op1(gt__op_id op, gt_tensor *a, const gt__attrs *attr);
gt_tensor *gt__op2(gt__op_id op, gt_tensor *a, gt_tensor *b, const gt__attrs *attr);
/* All outputs; want: bit k set if output k is wanted (others stay NULL and are not computed where the kernel allows). */
gt_status gt__op_multi(gt__op_id op, gt_tensor *const *in, int32_t n_in, const gt__attrs *attr, uint32_t want, gt_tensor **out);
/* Writes into an existing tensor (FILL, COPY, UNIFORM …), or adds to it where the attributes say `accumulate`. Not recorded, not checked, not cast; does not touch
 * the version. */
gt_status gt__op_into(gt__op_id op, gt_tensor *const *in, int32_t n_in, const gt__attrs *attr, gt_tensor *out);

/* A gradient rule that is done with dy[k], in[k] or out[k] lets go of it, so that its memory serves the rest of the rule. */
void gt__grad_done_dy(gt__grad *grad, int k);
void gt__grad_done_in(gt__grad *grad, int k);
void gt__grad_done_out(gt__grad *grad, int k);

/* Where input k's gradient ends in a leaf, perhaps through a cast, a rule may write it there itself: no second copy, and halves are summed in f32. */
typedef struct gt__sink {
    gt_tensor *into; /* of the leaf's shape and layout, accumulate dtype; NULL: there is no such place, set dx[k] as always */
    gt_tensor *leaf;
    bool accumulate; /* add to what `into` holds; else overwrite it */
} gt__sink;
gt_status gt__grad_sink(gt__grad *grad, int k, gt__sink *sink);
/* After writing, with the outcome of that, which it returns. */
gt_status gt__grad_sink_done(gt__sink *sink, gt_status status);

/* --- helpers for shape rules and kernels -----------------------------------------------------------------------------------------------
 * `conv2d "block1.conv"`: the call's op and, inside a module, its path. */
const char *gt__call_text(const gt__call *call, char *buffer, size_t size);
#define GT_CALL_RAISE(call, code, hint, ...) ((void)gt__call_fail(call, code, __FILE__, __LINE__, hint, __VA_ARGS__), (gt_status)(code))
#define GT_CALL_REQUIRE(call, cond, code, ...)                                                                                             \
    do {                                                                                                                                   \
        if (GT__UNLIKELY(!(cond))) return GT_CALL_RAISE(call, code, NULL, __VA_ARGS__);                                                    \
    } while (0)
#define GT_CALL_FAIL(call, code, ...)            return GT_CALL_RAISE(call, code, NULL, __VA_ARGS__)
#define GT_CALL_FAIL_HINT(call, code, hint, ...) return GT_CALL_RAISE(call, code, hint, __VA_ARGS__)
/* Raises "<call text>: <message>". */
gt_status gt__call_fail(const gt__call *call, gt_status status, const char *file, int line, const char *hint, const char *format, ...)
    GT__PRINTF(6, 7);

#define GT__SHAPE_RULE(id, name, shape, grad, layout, saves, cast) gt_status gt__shape_##shape(gt__call *call);
GT__OP_LIST(GT__SHAPE_RULE)
#undef GT__SHAPE_RULE
#define GT__GRAD_RULE(id, name, shape, grad, layout, saves, cast) gt_status gt__grad_##grad(gt__grad *grad);
GT__OP_LIST(GT__GRAD_RULE)
#undef GT__GRAD_RULE

GT_EXTERN_C_END
#endif

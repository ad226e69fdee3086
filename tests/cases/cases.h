/* Every op with the shapes, layouts and values that it is tried on. The gradient tests check small cases against finite differences in f64;
 * the parity tests run all of them in every dtype on each device against f64 on the CPU. */
#ifndef GTRAIN_TEST_CASES_H
#define GTRAIN_TEST_CASES_H

#include "harness/test.h"

#include <gtrain/gtrain.h>

enum { CASE_INPUTS = 6, CASE_ARGS = 16 };

/* How an input lies in memory. The op sees `shape` in any case. */
typedef enum case_layout {
    PLAIN,
    TRANSPOSED,    /* the last two axes swapped in memory */
    SLICED,        /* every second element along the last axis, from an odd offset */
    EXPANDED,      /* stride 0 along the first axis */
    CHANNELS_LAST, /* through gt_channels_last */
    OFFSET,        /* dense, but one element into its memory */
} case_layout;

typedef enum case_values {
    SMOOTH,   /* in +-[0.2, 1.5]: away from kinks at 0 */
    POSITIVE, /* in [0.5, 2] */
    DISTINCT, /* a shuffled ladder: no two are close */
    GRID,     /* quarters: products and sums are exact in every precision */
    GRID_ODD, /* odd 32nds: added to a sum of quarters' products the result is never 0 */
    TIES,     /* 0, 1 or 2 */
    LABELS,   /* 0 … classes - 1 */
} case_values;

typedef struct case_in {
    int32_t present;
    int32_t ndim;
    int64_t shape[GT_MAX_DIMS];
    case_layout layout;
    case_values values;
    int32_t constant;     /* wants no gradient */
    int32_t wide;         /* f32 where the case runs in half precision */
    int32_t as_f32;       /* always f32, for casts */
    gt_dtype label_dtype; /* LABELS: i64 if 0 */
    int32_t classes;
    int64_t ignored; /* LABELS: every fourth is this, if not 0 */
} case_in;

typedef gt_tensor *(*case_fn)(gt_context *ctx, gt_tensor **in, const double *arg);

typedef struct op_case {
    const char *op;
    case_fn fn;
    case_in in[CASE_INPUTS];
    double arg[CASE_ARGS];
    int32_t large;       /* for parity alone */
    int32_t no_gradient; /* the result has none */
    double loose;        /* times the usual tolerance; 0: 1 */
    double least;        /* difference that is always allowed */
} op_case;

#define D0                .present = 1, .ndim = 0
#define D1(a)             .present = 1, .ndim = 1, .shape = {a}
#define D2(a, b)          .present = 1, .ndim = 2, .shape = {a, b}
#define D3(a, b, c)       .present = 1, .ndim = 3, .shape = {a, b, c}
#define D4(a, b, c, d)    .present = 1, .ndim = 4, .shape = {a, b, c, d}
#define D5(a, b, c, d, e) .present = 1, .ndim = 5, .shape = {a, b, c, d, e}
#define IN(...)                                                                                                                            \
    { __VA_ARGS__ }
#define ARG(...) .arg = {__VA_ARGS__}

/* Families; each list ends with op NULL. */
extern const op_case elementwise_cases[], shape_cases[], reduce_cases[], linear_cases[], conv_cases[], pool_cases[], norm_cases[],
    loss_cases[];
/* The next case of `op` after `from` (NULL: the first), or NULL. */
const op_case *case_next(const char *op, const op_case *from);

/* Ops on which something can be tried, once: X(name of op). */
#define OPS_WITH_GRADIENT(X)                                                                                                               \
    X(add)                                                                                                                                 \
    X(sub) X(mul) X(div) X(maximum) X(minimum) X(neg) X(abs) X(square) X(sqrt) X(exp) X(log) X(tanh) X(sigmoid) X(relu) X(gelu)            \
        X(gelu_tanh) X(silu) X(add_scalar) X(mul_scalar) X(pow_scalar) X(dropout) X(cast) X(contiguous) X(channels_last) X(reshape)        \
            X(flatten) X(transpose) X(permute) X(expand) X(slice) X(concat) X(pad) X(sum) X(mean) X(max) X(matmul) X(linear)               \
                X(linear_relu) X(conv2d) X(conv2d_relu) X(max_pool2d) X(avg_pool2d) X(adaptive_avg_pool2d) X(batch_norm) X(layer_norm)     \
                    X(batch_norm_relu) X(batch_norm_add_relu) X(softmax) X(log_softmax) X(cross_entropy) X(mse_loss) X(embedding)
#define OPS_WITHOUT_GRADIENT(X) X(equal) X(argmax)

/* --- running a case ------------------------------------------------------------------------------------------------------------ */
typedef struct case_array {
    double *data; /* malloc'ed; NULL where there is no gradient */
    int64_t count;
} case_array;

typedef struct case_result {
    case_array out;
    case_array grad[CASE_INPUTS]; /* of the leaves, in their own order */
} case_result;

/* Forward, and backward from fixed random output gradients. Ends the test case on failure. */
void case_run(gt_context *ctx, const op_case *c, gt_dtype dtype, case_result *result);
void case_free(case_result *result);
/* "conv2d [2,3,5,5] x [4,3,3,3]" into `buffer`. */
const char *case_text(const op_case *c, char *buffer, size_t size);

/* Central differences in f64 against backward, for each element (a sample of large inputs). */
void case_check_gradient(gt_context *ctx, const op_case *c);
/* f32, f16, bf16 (and f64 on other devices) against f64 on the CPU. */
void case_check_parity(gt_context *ctx, gt_context *reference, const op_case *c);

#endif

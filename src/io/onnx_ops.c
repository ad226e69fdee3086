/* What each op is in ONNX: one line of the table at the end, and where one node is not enough, a function before it. */
#include "io/onnx_graph.h"

#include <math.h>

typedef struct mapping {
    const char *(*write)(gt__onnx *g, const char *type); /* returns the name of the result; NULL: the op cannot be written */
    const char *type;                                    /* of the node, or of its main one */
} mapping;

#define LAST  GT__ONNX_LAST
#define INNER GT__ONNX_INNER

/* --- elementwise ---------------------------------------------------------------------------------------------------------------------------- */

/* One node with the same inputs and no attributes. */
static const char *plain(gt__onnx *g, const char *type) {
    const char *y = gt__onnx_begin(g, LAST, type);
    for (int32_t k = 0; k < g->call->n_in; ++k) gt__onnx_input(g, gt__onnx_in(g, k));
    gt__onnx_end(g);
    return y;
}

static const char *number(gt__onnx *g, double value) { return gt__onnx_full(g, "number", gt__onnx_meta(g, 0)->dtype, 0, NULL, value); }

/* x and the op's own number. */
static const char *with_number(gt__onnx *g, const char *type) {
    return gt__onnx_node(g, LAST, type, 2, gt__onnx_in(g, 0), number(g, g->call->attr.scalar.value));
}

static const char *square(gt__onnx *g, const char *type) { return gt__onnx_node(g, LAST, type, 2, gt__onnx_in(g, 0), gt__onnx_in(g, 0)); }

static const char *silu(gt__onnx *g, const char *type) {
    return gt__onnx_node(g, LAST, type, 2, gt__onnx_in(g, 0), gt__onnx_node(g, INNER, "Sigmoid", 1, gt__onnx_in(g, 0)));
}

/* x / 2 (1 + inside) */
static const char *gelu_of(gt__onnx *g, const char *inside) {
    const char *half = gt__onnx_node(g, INNER, "Mul", 2, gt__onnx_in(g, 0), number(g, 0.5));
    return gt__onnx_node(g, LAST, "Mul", 2, half, gt__onnx_node(g, INNER, "Add", 2, inside, number(g, 1)));
}

/* A node of its own since opset 20. */
static const char *gelu(gt__onnx *g, const char *type) {
    bool approximate = g->call->op == GT__OP_GELU_TANH;
    const char *x = gt__onnx_in(g, 0);
    if (g->opset >= 20) {
        const char *y = gt__onnx_begin(g, LAST, type);
        gt__onnx_input(g, x);
        gt__onnx_text(g, "approximate", approximate ? "tanh" : "none");
        gt__onnx_end(g);
        return y;
    }
    if (!approximate) {
        const char *scaled = gt__onnx_node(g, INNER, "Mul", 2, x, number(g, sqrt(0.5)));
        return gelu_of(g, gt__onnx_node(g, INNER, "Erf", 1, scaled));
    }
    const char *squared = gt__onnx_node(g, INNER, "Mul", 2, x, x);
    const char *term = gt__onnx_node(g, INNER, "Mul", 2, squared, number(g, 0.044715));
    const char *factor = gt__onnx_node(g, INNER, "Add", 2, term, number(g, 1));
    const char *sum = gt__onnx_node(g, INNER, "Mul", 2, x, factor);
    const char *scaled = gt__onnx_node(g, INNER, "Mul", 2, sum, number(g, sqrt(2 / acos(-1))));
    return gelu_of(g, gt__onnx_node(g, INNER, "Tanh", 1, scaled));
}

static const char *cast_to(gt__onnx *g, gt__onnx_role role, const char *x, gt_dtype dtype) {
    const char *y = gt__onnx_begin(g, role, "Cast");
    gt__onnx_input(g, x);
    gt__onnx_int(g, "to", gt__onnx_dtype(dtype));
    gt__onnx_end(g);
    return y;
}

static const char *cast(gt__onnx *g, const char *type) {
    (void)type;
    return cast_to(g, LAST, gt__onnx_in(g, 0), gt__onnx_out_meta(g)->dtype);
}

/* Ours gives 1 and 0 in the inputs' dtype, ONNX gives booleans. */
static const char *compare(gt__onnx *g, const char *type) {
    const char *boolean = gt__onnx_node(g, INNER, type, 2, gt__onnx_in(g, 0), gt__onnx_in(g, 1));
    return cast_to(g, LAST, boolean, gt__onnx_out_meta(g)->dtype);
}

/* --- shapes ----------------------------------------------------------------------------------------------------------------------------------- */

static bool varies(const gt__meta *a, const gt__meta *b, int32_t axis) { return a->shape[axis] != b->shape[axis]; }

static bool same_size(const gt__meta *x, int32_t i, const gt__meta *y, int32_t k) { return x->shape[i] == y->shape[k]; }

static void two_free_axes(gt__onnx *g) {
    gt__onnx_fail(g, GT_NOT_SUPPORTED, "set the option dynamic_batch to 0 for a model of one batch size",
                  "more than one axis of the new shape depends on the batch size");
}

static const char *reshape(gt__onnx *g, const char *type) {
    const gt__meta *x = gt__onnx_meta(g, 0), *y = gt__onnx_out_meta(g), *x2 = gt__onnx_other_meta(g, 0), *y2 = gt__onnx_other_out_meta(g);
    if (y->ndim == 2 && x->ndim > 2 && same_size(x, 0, y, 0) && same_size(x2, 0, y2, 0)) {
        const char *flat = gt__onnx_begin(g, LAST, "Flatten");
        gt__onnx_input(g, gt__onnx_in(g, 0));
        gt__onnx_int(g, "axis", 1);
        gt__onnx_end(g);
        return flat;
    }
    int64_t target[GT_MAX_DIMS] = {0};
    int32_t copied = 0, inferred = 0, empty = 0;
    for (int32_t i = 0; i < y->ndim; ++i) {
        target[i] = y->shape[i];
        if (!varies(y, y2, i)) {
            empty += y->shape[i] == 0;
        } else if (i < x->ndim && same_size(x, i, y, i) && same_size(x2, i, y2, i)) {
            target[i] = 0; /* as in the input */
            copied++;
        } else {
            target[i] = -1;
            inferred++;
        }
    }
    if (inferred > 1 || (empty > 0 && inferred + copied > 0)) two_free_axes(g);
    const char *shape = gt__onnx_vector(g, "shape", target, y->ndim);
    const char *result = gt__onnx_begin(g, LAST, type);
    gt__onnx_input(g, gt__onnx_in(g, 0));
    gt__onnx_input(g, shape);
    if (empty > 0) gt__onnx_int(g, "allowzero", 1);
    gt__onnx_end(g);
    return result;
}

/* factor * batch, as a vector of one. */
static const char *batches(gt__onnx *g, int64_t factor) {
    const char *batch = gt__onnx_batch(g);
    return factor == 1 ? batch : gt__onnx_node(g, INNER, "Mul", 2, batch, gt__onnx_vector(g, "factor", &factor, 1));
}

/* The sizes to expand to; where they depend on the batch, from pieces that are computed when the model runs. */
static const char *expand(gt__onnx *g, const char *type) {
    const gt__meta *x = gt__onnx_meta(g, 0), *y = gt__onnx_out_meta(g), *x2 = gt__onnx_other_meta(g, 0), *y2 = gt__onnx_other_out_meta(g);
    const char *pieces[GT_MAX_DIMS];
    int64_t run[GT_MAX_DIMS];
    int32_t n_pieces = 0, n_run = 0;
    for (int32_t i = 0; i < y->ndim; ++i) {
        int32_t from = i - (y->ndim - x->ndim);
        if (!varies(y, y2, i)) {
            run[n_run++] = y->shape[i];
        } else if (from >= 0 && same_size(x, from, y, i) && same_size(x2, from, y2, i)) {
            run[n_run++] = 1; /* stays as it is */
        } else {
            int64_t factor = y->shape[i] / g->batch;
            if (factor * g->batch != y->shape[i] || factor * g->other_batch != y2->shape[i])
                gt__onnx_fail(g, GT_NOT_SUPPORTED, NULL, "axis %d becomes %lld for a batch of %lld and %lld for %lld, which is no multiple",
                              (int)i, (long long)y->shape[i], (long long)g->batch, (long long)y2->shape[i], (long long)g->other_batch);
            if (n_run > 0) pieces[n_pieces++] = gt__onnx_vector(g, "shape", run, n_run);
            pieces[n_pieces++] = batches(g, factor);
            n_run = 0;
        }
    }
    if (n_run > 0 || n_pieces == 0) pieces[n_pieces++] = gt__onnx_vector(g, "shape", run, n_run);
    const char *shape = pieces[0];
    if (n_pieces > 1) {
        shape = gt__onnx_begin(g, INNER, "Concat");
        for (int32_t i = 0; i < n_pieces; ++i) gt__onnx_input(g, pieces[i]);
        gt__onnx_int(g, "axis", 0);
        gt__onnx_end(g);
    }
    return gt__onnx_node(g, LAST, type, 2, gt__onnx_in(g, 0), shape);
}

static const char *permute(gt__onnx *g, const char *type) {
    int64_t axes[GT_MAX_DIMS];
    int32_t ndim = gt__onnx_meta(g, 0)->ndim;
    for (int32_t i = 0; i < ndim; ++i) axes[i] = g->call->attr.axes.axes[i];
    const char *y = gt__onnx_begin(g, LAST, type);
    gt__onnx_input(g, gt__onnx_in(g, 0));
    gt__onnx_ints(g, "perm", axes, ndim);
    gt__onnx_end(g);
    return y;
}

/* A place on an axis as ONNX counts it: from the start, or from the end if that is what stays the same. */
static int64_t place(gt__onnx *g, int64_t a, int64_t b, int64_t size_a, int64_t size_b, bool stop) {
    if (stop && a == size_a && b == size_b) return INT64_MAX;
    if (a == b) return a;
    if (size_a - a != size_b - b)
        gt__onnx_fail(g, GT_NOT_SUPPORTED, "set the option dynamic_batch to 0 for a model of one batch size",
                      "the place of the cut depends on the batch size");
    return a - size_a;
}

static const char *slice(gt__onnx *g, const char *type) {
    const gt__attrs *a = &g->call->attr, *b = g->other ? &g->other_call->attr : a;
    int32_t axis = a->slice.axis;
    if (b->slice.axis != axis || b->slice.step != a->slice.step)
        gt__onnx_fail(g, GT_NOT_SUPPORTED, NULL, "axis or step depends on the batch size");
    int64_t size = gt__onnx_meta(g, 0)->shape[axis], other_size = gt__onnx_other_meta(g, 0)->shape[axis];
    int64_t start = place(g, a->slice.start, b->slice.start, size, other_size, false);
    int64_t stop = place(g, a->slice.stop, b->slice.stop, size, other_size, true);
    int64_t axes = axis, step = a->slice.step;
    return gt__onnx_node(g, LAST, type, 5, gt__onnx_in(g, 0), gt__onnx_vector(g, "starts", &start, 1), gt__onnx_vector(g, "ends", &stop, 1),
                         gt__onnx_vector(g, "axes", &axes, 1), gt__onnx_vector(g, "steps", &step, 1));
}

static const char *concat(gt__onnx *g, const char *type) {
    const char *y = gt__onnx_begin(g, LAST, type);
    for (int32_t k = 0; k < g->call->n_in; ++k) gt__onnx_input(g, gt__onnx_in(g, k));
    gt__onnx_int(g, "axis", g->call->attr.slice.axis);
    gt__onnx_end(g);
    return y;
}

static const char *pad(gt__onnx *g, const char *type) {
    int64_t pads[2 * GT_MAX_DIMS];
    int32_t ndim = gt__onnx_meta(g, 0)->ndim;
    for (int32_t i = 0; i < ndim; ++i) {
        pads[i] = g->call->attr.pad.before[i];
        pads[ndim + i] = g->call->attr.pad.after[i];
    }
    return gt__onnx_node(g, LAST, type, 3, gt__onnx_in(g, 0), gt__onnx_vector(g, "pads", pads, 2 * ndim),
                         number(g, g->call->attr.pad.value));
}

/* --- reductions ------------------------------------------------------------------------------------------------------------------------------- */

/* The axes are an input of ReduceSum; of the others since opset 18, before that an attribute. */
static const char *reduce(gt__onnx *g, const char *type) {
    const gt__meta *x = gt__onnx_meta(g, 0);
    const char *from = gt__onnx_in(g, 0);
    gt_dtype dtype = gt__onnx_out_meta(g)->dtype;
    if (dtype != x->dtype) from = cast_to(g, INNER, from, dtype);
    if (x->ndim == 0) return gt__onnx_node(g, LAST, "Identity", 1, from);
    int64_t axes[GT_MAX_DIMS];
    int32_t n = 0;
    for (int32_t i = 0; i < x->ndim; ++i)
        if (g->call->attr.reduce.mask >> i & 1) axes[n++] = i;
    bool as_input = g->opset >= 18 || g->call->op == GT__OP_SUM;
    const char *vector = as_input ? gt__onnx_vector(g, "axes", axes, n) : NULL;
    const char *y = gt__onnx_begin(g, LAST, type);
    gt__onnx_input(g, from);
    if (as_input)
        gt__onnx_input(g, vector);
    else
        gt__onnx_ints(g, "axes", axes, n);
    gt__onnx_int(g, "keepdims", g->call->attr.reduce.keep_dims);
    gt__onnx_end(g);
    return y;
}

static const char *argmax(gt__onnx *g, const char *type) {
    const char *y = gt__onnx_begin(g, LAST, type);
    gt__onnx_input(g, gt__onnx_in(g, 0));
    gt__onnx_int(g, "axis", g->call->attr.reduce.axis);
    gt__onnx_int(g, "keepdims", g->call->attr.reduce.keep_dims);
    gt__onnx_end(g);
    return y;
}

static const char *softmax(gt__onnx *g, const char *type) {
    const char *x = gt__onnx_in(g, 0);
    gt_dtype dtype = gt__onnx_out_meta(g)->dtype;
    if (dtype != gt__onnx_meta(g, 0)->dtype) x = cast_to(g, INNER, x, dtype);
    const char *y = gt__onnx_begin(g, LAST, type);
    gt__onnx_input(g, x);
    gt__onnx_int(g, "axis", g->call->attr.softmax.axis);
    gt__onnx_end(g);
    return y;
}

/* --- products --------------------------------------------------------------------------------------------------------------------------------- */

static const char *linear(gt__onnx *g, const char *type) {
    bool relu = g->call->op == GT__OP_LINEAR_RELU;
    const char *y = gt__onnx_begin(g, relu ? INNER : LAST, type);
    for (int32_t k = 0; k < 3 && gt__onnx_has(g, k); ++k) gt__onnx_input(g, gt__onnx_in(g, k));
    gt__onnx_int(g, "transB", 1);
    gt__onnx_end(g);
    return relu ? gt__onnx_node(g, LAST, "Relu", 1, y) : y;
}

/* Convolution and pooling know bf16 since opset 22. */
static void check_image_dtype(gt__onnx *g) {
    if (gt__onnx_meta(g, 0)->dtype == GT_DTYPE_BF16 && g->opset < 22)
        gt__onnx_fail(g, GT_NOT_SUPPORTED, "set the option opset to 22 or more, or convert the module to f32",
                      "ONNX has no bf16 for it in opset %d", (int)g->opset);
}

/* Zeros, or nothing, on both sides of both axes. */
static void padding(gt__onnx *g, const int64_t *sides) {
    const int64_t pads[4] = {sides[0], sides[1], sides[0], sides[1]};
    gt__onnx_ints(g, "pads", pads, 4);
}

static const char *conv2d(gt__onnx *g, const char *type) {
    check_image_dtype(g);
    const gt__attrs *a = &g->call->attr;
    bool relu = g->call->op == GT__OP_CONV2D_RELU;
    const char *y = gt__onnx_begin(g, relu ? INNER : LAST, type);
    for (int32_t k = 0; k < 3 && gt__onnx_has(g, k); ++k) gt__onnx_input(g, gt__onnx_in(g, k));
    gt__onnx_ints(g, "kernel_shape", gt__onnx_meta(g, 1)->shape + 2, 2);
    gt__onnx_ints(g, "strides", a->conv.stride, 2);
    padding(g, a->conv.padding);
    gt__onnx_ints(g, "dilations", a->conv.dilation, 2);
    gt__onnx_int(g, "group", a->conv.groups);
    gt__onnx_end(g);
    return relu ? gt__onnx_node(g, LAST, "Relu", 1, y) : y;
}

static const char *pool(gt__onnx *g, const char *type) {
    check_image_dtype(g);
    const gt__attrs *a = &g->call->attr;
    const char *y = gt__onnx_begin(g, LAST, type);
    gt__onnx_input(g, gt__onnx_in(g, 0));
    gt__onnx_ints(g, "kernel_shape", a->pool.kernel, 2);
    gt__onnx_ints(g, "strides", a->pool.stride, 2);
    padding(g, a->pool.padding);
    if (g->call->op == GT__OP_AVG_POOL2D) gt__onnx_int(g, "count_include_pad", a->pool.count_include_pad);
    gt__onnx_end(g);
    return y;
}

/* To one pixel, or where its windows are all alike. */
static const char *adaptive_pool(gt__onnx *g, const char *type) {
    check_image_dtype(g);
    const gt__meta *x = gt__onnx_meta(g, 0), *x2 = gt__onnx_other_meta(g, 0);
    const int64_t *size = g->call->attr.pool.kernel;
    if (size[0] == 1 && size[1] == 1) return gt__onnx_node(g, LAST, "GlobalAveragePool", 1, gt__onnx_in(g, 0));
    if (varies(x, x2, 2) || varies(x, x2, 3) || x->shape[2] % size[0] != 0 || x->shape[3] % size[1] != 0)
        gt__onnx_fail(g, GT_NOT_SUPPORTED, "use sizes that divide the input's, or avg_pool2d",
                      "from %lldx%lld to %lldx%lld its windows differ in size, which ONNX's pooling cannot do", (long long)x->shape[2],
                      (long long)x->shape[3], (long long)size[0], (long long)size[1]);
    const int64_t kernel[2] = {x->shape[2] / size[0], x->shape[3] / size[1]};
    const char *y = gt__onnx_begin(g, LAST, type);
    gt__onnx_input(g, gt__onnx_in(g, 0));
    gt__onnx_ints(g, "kernel_shape", kernel, 2);
    gt__onnx_ints(g, "strides", kernel, 2);
    gt__onnx_end(g);
    return y;
}

/* --- normalisation ---------------------------------------------------------------------------------------------------------------------------- */

/* A weight, or what stands for one that is not there. */
static const char *weight_or(gt__onnx *g, int32_t k, const char *what, gt_dtype dtype, int64_t size, double value) {
    return gt__onnx_has(g, k) ? gt__onnx_in(g, k) : gt__onnx_full(g, what, dtype, 1, &size, value);
}

static const char *batch_norm(gt__onnx *g, const char *type) {
    const gt__meta *x = gt__onnx_meta(g, 0);
    gt_dtype dtype = gt__dtype_accumulate(x->dtype);
    bool adds = g->call->op == GT__OP_BATCH_NORM_ADD_RELU, relu = adds || g->call->op == GT__OP_BATCH_NORM_RELU;
    if (g->call->attr.norm.training) {
        gt__onnx_fail(g, GT_NOT_SUPPORTED, "keep running statistics (track_running_stats)",
                      "it uses the batch's own statistics in evaluation mode, which ONNX's BatchNormalization does not");
        return "";
    }
    const char *weight = weight_or(g, 1, "scale", dtype, x->shape[1], 1), *bias = weight_or(g, 2, "bias", dtype, x->shape[1], 0);
    const char *y = gt__onnx_begin(g, relu ? INNER : LAST, type);
    gt__onnx_input(g, gt__onnx_in(g, 0));
    gt__onnx_input(g, weight);
    gt__onnx_input(g, bias);
    gt__onnx_input(g, gt__onnx_in(g, 3));
    gt__onnx_input(g, gt__onnx_in(g, 4));
    gt__onnx_float(g, "epsilon", g->call->attr.norm.epsilon);
    gt__onnx_end(g);
    if (adds) y = gt__onnx_node(g, INNER, "Add", 2, y, gt__onnx_in(g, 5));
    return relu ? gt__onnx_node(g, LAST, "Relu", 1, y) : y;
}

/* Weight and bias are f32 for a half x here, of x's dtype in ONNX. */
static const char *layer_norm(gt__onnx *g, const char *type) {
    const gt__meta *x = gt__onnx_meta(g, 0);
    gt_dtype dtype = gt__dtype_accumulate(x->dtype);
    bool half = dtype != x->dtype;
    const char *weight = weight_or(g, 1, "scale", dtype, x->shape[1], 1);
    const char *wide = half ? cast_to(g, INNER, gt__onnx_in(g, 0), dtype) : gt__onnx_in(g, 0);
    const char *y = gt__onnx_begin(g, half ? INNER : LAST, type);
    gt__onnx_input(g, wide);
    gt__onnx_input(g, weight);
    if (gt__onnx_has(g, 2)) gt__onnx_input(g, gt__onnx_in(g, 2));
    gt__onnx_int(g, "axis", -1);
    gt__onnx_float(g, "epsilon", g->call->attr.norm.epsilon);
    gt__onnx_end(g);
    return half ? cast_to(g, LAST, y, x->dtype) : y;
}

static const char *embedding(gt__onnx *g, const char *type) {
    const char *y = gt__onnx_begin(g, LAST, type);
    gt__onnx_input(g, gt__onnx_in(g, 0));
    gt__onnx_input(g, gt__onnx_in(g, 1));
    gt__onnx_int(g, "axis", 0);
    gt__onnx_end(g);
    return y;
}

/* --- the table ---------------------------------------------------------------------------------------------------------------------------------- */

static const mapping mappings[GT__OP_COUNT] = {
    [GT__OP_ADD] = {plain, "Add"},
    [GT__OP_SUB] = {plain, "Sub"},
    [GT__OP_MUL] = {plain, "Mul"},
    [GT__OP_DIV] = {plain, "Div"},
    [GT__OP_MAXIMUM] = {plain, "Max"},
    [GT__OP_MINIMUM] = {plain, "Min"},
    [GT__OP_EQUAL] = {compare, "Equal"},
    [GT__OP_GREATER] = {compare, "Greater"},
    [GT__OP_NEG] = {plain, "Neg"},
    [GT__OP_ABS] = {plain, "Abs"},
    [GT__OP_SIGN] = {plain, "Sign"},
    [GT__OP_SQUARE] = {square, "Mul"},
    [GT__OP_SQRT] = {plain, "Sqrt"},
    [GT__OP_EXP] = {plain, "Exp"},
    [GT__OP_LOG] = {plain, "Log"},
    [GT__OP_TANH] = {plain, "Tanh"},
    [GT__OP_SIGMOID] = {plain, "Sigmoid"},
    [GT__OP_RELU] = {plain, "Relu"},
    [GT__OP_GELU] = {gelu, "Gelu"},
    [GT__OP_GELU_TANH] = {gelu, "Gelu"},
    [GT__OP_SILU] = {silu, "Mul"},
    [GT__OP_ADD_SCALAR] = {with_number, "Add"},
    [GT__OP_MUL_SCALAR] = {with_number, "Mul"},
    [GT__OP_POW_SCALAR] = {with_number, "Pow"},
    [GT__OP_CAST] = {cast, "Cast"},
    [GT__OP_COPY] = {plain, "Identity"},
    [GT__OP_RESHAPE] = {reshape, "Reshape"},
    [GT__OP_PERMUTE] = {permute, "Transpose"},
    [GT__OP_EXPAND] = {expand, "Expand"},
    [GT__OP_SLICE] = {slice, "Slice"},
    [GT__OP_CONCAT] = {concat, "Concat"},
    [GT__OP_PAD] = {pad, "Pad"},
    [GT__OP_SUM] = {reduce, "ReduceSum"},
    [GT__OP_MEAN] = {reduce, "ReduceMean"},
    [GT__OP_MAX] = {reduce, "ReduceMax"},
    [GT__OP_ARGMAX] = {argmax, "ArgMax"},
    [GT__OP_MATMUL] = {plain, "MatMul"},
    [GT__OP_LINEAR] = {linear, "Gemm"},
    [GT__OP_LINEAR_RELU] = {linear, "Gemm"},
    [GT__OP_CONV2D] = {conv2d, "Conv"},
    [GT__OP_CONV2D_RELU] = {conv2d, "Conv"},
    [GT__OP_MAX_POOL2D] = {pool, "MaxPool"},
    [GT__OP_AVG_POOL2D] = {pool, "AveragePool"},
    [GT__OP_ADAPTIVE_AVG_POOL2D] = {adaptive_pool, "AveragePool"},
    [GT__OP_BATCH_NORM] = {batch_norm, "BatchNormalization"},
    [GT__OP_BATCH_NORM_RELU] = {batch_norm, "BatchNormalization"},
    [GT__OP_BATCH_NORM_ADD_RELU] = {batch_norm, "BatchNormalization"},
    [GT__OP_LAYER_NORM] = {layer_norm, "LayerNormalization"},
    [GT__OP_SOFTMAX] = {softmax, "Softmax"},
    [GT__OP_LOG_SOFTMAX] = {softmax, "LogSoftmax"},
    [GT__OP_EMBEDDING] = {embedding, "Gather"},
};

bool gt__onnx_supports(gt__op_id op) { return mappings[op].write != NULL; }

/* Numbers of the op that are not those of a shape must not depend on the batch size. */
static bool same_attributes(const gt__onnx *g) {
    switch (g->call->op) {
    case GT__OP_RESHAPE:
    case GT__OP_EXPAND:
    case GT__OP_SLICE:
        return true; /* checked where they are written */
    default:
        return g->other == NULL || memcmp(&g->call->attr, &g->other_call->attr, sizeof g->call->attr) == 0;
    }
}

void gt__onnx_write_call(gt__onnx *g) {
    const mapping *m = &mappings[g->call->op];
    if (!same_attributes(g))
        gt__onnx_fail(g, GT_NOT_SUPPORTED, "set the option dynamic_batch to 0 for a model of one batch size",
                      "its attributes depend on the batch size");
    const char *result = g->status == GT_OK ? m->write(g, m->type) : "";
    if (g->status == GT_OK) g->value_names[g->call->out] = result;
}

/* Products and convolutions of f32 through oneDNN.
 *
 * Images stay channels-last and matrices as they lie. A convolution's weights are brought into the layout that oneDNN likes best, on every call, since
 * they change with every step. relu is not fused: oneDNN's lets no NaN through. Where oneDNN has only its own reference code, ours is better. */
#include "cpu/onednn.h"

#include "cpu/onednn_cache.h"

#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#ifdef GTRAIN_HAVE_OPENMP
#include <omp.h>
#else
/* Where we are built without OpenMP (clang) but oneDNN with it, oneDNN brings these. */
extern int omp_get_max_threads(void) __attribute__((weak));
extern int omp_get_thread_limit(void) __attribute__((weak));
extern int omp_in_parallel(void) __attribute__((weak));
extern void omp_set_num_threads(int threads) __attribute__((weak));
#endif

struct gt__onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    gt__onednn_cache *cache;
    pid_t owner; /* in the child of a fork, oneDNN's threads are gone, and it may wait for them for ever */
};

enum { KIND_MATMUL = 1, KIND_FORWARD, KIND_BACKWARD_DATA, KIND_BACKWARD_WEIGHTS };

/* Below this many multiplications our own product is as fast, and one thread is as fast as several. */
#define WORTH_A_CALL  4096.0
#define WORTH_THREADS 1e6

/* --- the engine ---------------------------------------------------------------------------------------------------------------------------- */

void gt__onednn_destroy(gt__onednn *onednn) {
    if (!onednn) return;
    gt__onednn_cache_destroy(onednn->cache);
    if (onednn->stream) (void)dnnl_stream_destroy(onednn->stream);
    if (onednn->engine) (void)dnnl_engine_destroy(onednn->engine);
    gt__free(onednn);
}

gt_status gt__onednn_create(int32_t threads, gt__onednn **out) {
    (void)threads;
    gt__onednn *onednn = gt__calloc(1, sizeof *onednn);
    if (!onednn) return GT_OUT_OF_HOST_MEMORY;
    dnnl_status_t status = dnnl_engine_create(&onednn->engine, dnnl_cpu, 0);
    if (status == dnnl_success) status = dnnl_stream_create(&onednn->stream, onednn->engine, dnnl_stream_default_flags);
    onednn->cache = status == dnnl_success ? gt__onednn_cache_create() : NULL;
    if (!onednn->cache) {
        gt__onednn_destroy(onednn);
        if (status == dnnl_success) return GT_OUT_OF_HOST_MEMORY;
        return gt__error_raise(GT_LIBRARY, __FILE__, __LINE__, (int64_t)status, "dnnl_status_t", NULL,
                               "oneDNN cannot make its CPU engine: status %d", (int)status);
    }
    onednn->owner = getpid();
    *out = onednn;
    return GT_OK;
}

static bool usable(gt__device *device) {
    const gt__onednn *onednn = gt__cpu(device)->onednn;
    return onednn && onednn->owner == getpid();
}

const char *gt__onednn_version(char *buffer, size_t size) {
    const dnnl_version_t *version = dnnl_version();
    (void)snprintf(buffer, size, ", oneDNN %d.%d", version->major, version->minor);
    return buffer;
}

/* oneDNN runs on as many threads as OpenMP would use in the calling thread: ours while a call lasts, then the caller's again. A primitive leaves work undone
 * when it gets fewer threads than it was built for, so *threads is cut to what OpenMP will grant: one inside a parallel region of the host's. */
static int threads_enter(int *threads) {
#ifndef GTRAIN_HAVE_OPENMP
    if (!omp_get_max_threads || !omp_set_num_threads || !omp_in_parallel || !omp_get_thread_limit) return *threads;
#endif
    *threads = omp_in_parallel() ? 1 : GT__MIN(*threads, omp_get_thread_limit());
    int previous = omp_get_max_threads();
    if (previous != *threads) omp_set_num_threads(*threads);
    return previous;
}

static void threads_leave(int threads, int previous) {
    if (previous != threads) omp_set_num_threads(previous);
}

/* --- building plans --------------------------------------------------------------------------------------------------------------------------- */

#define DNN_TRY(expr)                                                                                                                      \
    do {                                                                                                                                   \
        dnnl_status_t dnn_status = (expr);                                                                                                 \
        if (dnn_status != dnnl_success) return dnn_status;                                                                                 \
    } while (0)

static dnnl_status_t make_memory(gt__onednn *onednn, gt__dnn_md_ref md, dnnl_memory_t *memory) {
    return dnnl_memory_create(memory, md, onednn->engine, DNNL_MEMORY_NONE);
}

/* oneDNN's own plain loops, which are slower than ours. */
static bool is_reference(const_dnnl_primitive_desc_t pd) {
    const char *name = NULL;
    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name) != dnnl_success || !name) return true;
    return strstr(name, "ref") != NULL;
}

static dnnl_status_t make_primitive(gt__onednn *onednn, const_dnnl_primitive_desc_t pd, gt__onednn_plan *plan) {
    if (is_reference(pd)) return dnnl_unimplemented;
    gt__dnn_md_ref scratchpad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    plan->scratchpad_bytes = scratchpad ? dnnl_memory_desc_get_size(scratchpad) : 0;
    if (plan->scratchpad_bytes) DNN_TRY(make_memory(onednn, scratchpad, &plan->scratchpad));
    return dnnl_primitive_create(&plan->primitive, pd);
}

/* plan->weights is as our tensors lie (`ours`); a reorder between that and what the primitive wants (`theirs`) if they differ. */
static dnnl_status_t make_weights(gt__onednn *onednn, gt__dnn_md_ref ours, gt__dnn_md_ref theirs, bool gradient, gt__onednn_plan *plan) {
    DNN_TRY(make_memory(onednn, ours, &plan->weights));
    if (dnnl_memory_desc_equal(ours, theirs)) return dnnl_success;
    DNN_TRY(make_memory(onednn, theirs, &plan->own_weights));
    plan->own_weights_bytes = dnnl_memory_desc_get_size(theirs);
    gt__dnn_pd pd = NULL;
    DNN_TRY(
        dnnl_reorder_primitive_desc_create(&pd, gradient ? theirs : ours, onednn->engine, gradient ? ours : theirs, onednn->engine, NULL));
    dnnl_status_t status = dnnl_primitive_create(&plan->reorder, pd);
    (void)dnnl_primitive_desc_destroy(pd);
    return status;
}

static dnnl_status_t user_scratchpad(dnnl_primitive_attr_t *attr) {
    DNN_TRY(dnnl_primitive_attr_create(attr));
    return dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
}

typedef struct matmul_shape {
    int32_t ndim;
    dnnl_dims_t a, b, c, bias, a_strides, b_strides, c_strides, bias_strides;
    bool has_bias;
    bool accumulate; /* c += a b */
} matmul_shape;

/* dst += result, instead of dst = result. */
static dnnl_status_t add_to_result(dnnl_primitive_attr_t attr) {
    dnnl_post_ops_t ops = NULL;
    DNN_TRY(dnnl_post_ops_create(&ops));
    dnnl_status_t status = gt__dnn_append_sum(ops);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, ops);
    (void)dnnl_post_ops_destroy(ops);
    return status;
}

static dnnl_status_t build_matmul(gt__onednn *onednn, const matmul_shape *s, gt__onednn_plan *plan) {
    gt__dnn_md md[4] = {0};
    gt__dnn_pd pd = NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status = user_scratchpad(&attr);
    if (status == dnnl_success && s->accumulate) status = add_to_result(attr);
    if (status == dnnl_success) status = gt__dnn_md_strided(&md[0], s->ndim, s->a, s->a_strides);
    if (status == dnnl_success) status = gt__dnn_md_strided(&md[1], s->ndim, s->b, s->b_strides);
    if (status == dnnl_success) status = gt__dnn_md_strided(&md[2], s->ndim, s->c, s->c_strides);
    if (status == dnnl_success && s->has_bias) status = gt__dnn_md_strided(&md[3], s->ndim, s->bias, s->bias_strides);
    gt__dnn_md_ref bias = s->has_bias ? gt__dnn_ref(&md[3]) : NULL;
    if (status == dnnl_success)
        status = gt__dnn_matmul(&pd, onednn->engine, gt__dnn_ref(&md[0]), gt__dnn_ref(&md[1]), bias, gt__dnn_ref(&md[2]), attr);
    if (status == dnnl_success) status = make_primitive(onednn, pd, plan);
    if (status == dnnl_success) status = make_memory(onednn, gt__dnn_ref(&md[0]), &plan->src);
    if (status == dnnl_success) status = make_memory(onednn, gt__dnn_ref(&md[1]), &plan->weights);
    if (status == dnnl_success) status = make_memory(onednn, gt__dnn_ref(&md[2]), &plan->dst);
    if (status == dnnl_success && s->has_bias) status = make_memory(onednn, bias, &plan->bias);
    if (pd) (void)dnnl_primitive_desc_destroy(pd);
    if (attr) (void)dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 4; i++) gt__dnn_md_free(&md[i]);
    return status;
}

typedef struct conv_shape {
    int64_t kind;
    dnnl_dims_t x, y, w, w_strides, bias;
    int32_t w_ndim; /* 5 with groups */
    bool has_bias;
    gt__dnn_conv conv;
} conv_shape;

enum { MD_X, MD_Y, MD_W, MD_ANY, MD_BIAS, MD_COUNT };

static dnnl_status_t conv_descriptions(const conv_shape *s, gt__dnn_md *md) {
    DNN_TRY(gt__dnn_md_tag(&md[MD_X], 4, s->x, dnnl_nhwc));
    DNN_TRY(gt__dnn_md_tag(&md[MD_Y], 4, s->y, dnnl_nhwc));
    DNN_TRY(gt__dnn_md_strided(&md[MD_W], s->w_ndim, s->w, s->w_strides));
    DNN_TRY(gt__dnn_md_tag(&md[MD_ANY], s->w_ndim, s->w, dnnl_format_tag_any));
    if (s->has_bias) DNN_TRY(gt__dnn_md_tag(&md[MD_BIAS], 1, s->bias, dnnl_x));
    return dnnl_success;
}

/* The backward ones need the forward's description as a hint. */
static dnnl_status_t conv_primitive_desc(gt__onednn *onednn, const conv_shape *s, gt__dnn_md *md, const_dnnl_primitive_attr_t attr,
                                         gt__dnn_pd *pd) {
    gt__dnn_md_ref x = gt__dnn_ref(&md[MD_X]), y = gt__dnn_ref(&md[MD_Y]), w = gt__dnn_ref(&md[MD_ANY]);
    gt__dnn_md_ref bias = s->has_bias ? gt__dnn_ref(&md[MD_BIAS]) : NULL;
    if (s->kind == KIND_FORWARD) return gt__dnn_conv_forward(pd, onednn->engine, x, w, bias, y, &s->conv, attr);
    gt__dnn_pd hint = NULL;
    DNN_TRY(gt__dnn_conv_forward(&hint, onednn->engine, x, w, NULL, y, &s->conv, NULL));
    dnnl_status_t status = s->kind == KIND_BACKWARD_DATA ? gt__dnn_conv_backward_data(pd, onednn->engine, x, w, y, &s->conv, hint, attr)
                                                         : gt__dnn_conv_backward_weights(pd, onednn->engine, x, w, y, &s->conv, hint, attr);
    (void)dnnl_primitive_desc_destroy(hint);
    return status;
}

static dnnl_status_t build_conv(gt__onednn *onednn, const conv_shape *s, gt__onednn_plan *plan) {
    gt__dnn_md md[MD_COUNT] = {0};
    gt__dnn_pd pd = NULL;
    dnnl_primitive_attr_t attr = NULL;
    bool gradient = s->kind == KIND_BACKWARD_WEIGHTS;
    dnnl_status_t status = user_scratchpad(&attr);
    if (status == dnnl_success) status = conv_descriptions(s, md);
    if (status == dnnl_success) status = conv_primitive_desc(onednn, s, md, attr, &pd);
    if (status == dnnl_success) status = make_primitive(onednn, pd, plan);
    if (status == dnnl_success) status = make_memory(onednn, gt__dnn_ref(&md[MD_X]), &plan->src);
    if (status == dnnl_success) status = make_memory(onednn, gt__dnn_ref(&md[MD_Y]), &plan->dst);
    if (status == dnnl_success && s->has_bias) status = make_memory(onednn, gt__dnn_ref(&md[MD_BIAS]), &plan->bias);
    if (status == dnnl_success) {
        gt__dnn_md_ref theirs = dnnl_primitive_desc_query_md(pd, gradient ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
        status = make_weights(onednn, gt__dnn_ref(&md[MD_W]), theirs, gradient, plan);
    }
    if (pd) (void)dnnl_primitive_desc_destroy(pd);
    if (attr) (void)dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < MD_COUNT; i++) gt__dnn_md_free(&md[i]);
    return status;
}

/* The plan for `key`, built on first use. A plan that could not be built is remembered as one without a primitive. */
static gt__onednn_plan *find_plan(gt__onednn *onednn, const gt__onednn_key *key, const matmul_shape *matmul, const conv_shape *conv) {
    gt__onednn_plan *plan = gt__onednn_cache_get(onednn->cache, key);
    if (plan) return plan;
    gt__onednn_plan made = {0};
    dnnl_status_t status = matmul ? build_matmul(onednn, matmul, &made) : build_conv(onednn, conv, &made);
    if (status != dnnl_success) gt__onednn_plan_free(&made);
    return gt__onednn_cache_put(onednn->cache, key, &made);
}

/* --- running them ------------------------------------------------------------------------------------------------------------------------- */

typedef struct run_data {
    const void *src, *weights, *bias, *dst;
} run_data;

static dnnl_status_t set_handle(dnnl_memory_t memory, const void *data) {
    return memory ? dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)data) : dnnl_success;
}

static dnnl_status_t set_handles(const gt__onednn_plan *plan, const run_data *data, char *scratch) {
    DNN_TRY(set_handle(plan->src, data->src));
    DNN_TRY(set_handle(plan->weights, data->weights));
    DNN_TRY(set_handle(plan->bias, data->bias));
    DNN_TRY(set_handle(plan->dst, data->dst));
    DNN_TRY(set_handle(plan->scratchpad, scratch));
    return set_handle(plan->own_weights, scratch ? scratch + plan->scratchpad_bytes : NULL);
}

static dnnl_status_t run_reorder(gt__onednn *onednn, const gt__onednn_plan *plan, bool gradient) {
    dnnl_exec_arg_t arguments[2] = {{DNNL_ARG_FROM, gradient ? plan->own_weights : plan->weights},
                                    {DNNL_ARG_TO, gradient ? plan->weights : plan->own_weights}};
    return dnnl_primitive_execute(plan->reorder, onednn->stream, 2, arguments);
}

static dnnl_status_t run_primitive(gt__onednn *onednn, const gt__onednn_plan *plan, int64_t kind) {
    bool backward_data = kind == KIND_BACKWARD_DATA, gradient = kind == KIND_BACKWARD_WEIGHTS;
    dnnl_memory_t weights = plan->own_weights ? plan->own_weights : plan->weights;
    dnnl_exec_arg_t arguments[5] = {
        {backward_data ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, plan->src},
        {gradient ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, weights},
        {backward_data || gradient ? DNNL_ARG_DIFF_DST : DNNL_ARG_DST, plan->dst},
    };
    int count = 3;
    if (plan->bias) arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, plan->bias};
    if (plan->scratchpad) arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, plan->scratchpad};
    if (plan->reorder && !gradient) DNN_TRY(run_reorder(onednn, plan, false));
    DNN_TRY(dnnl_primitive_execute(plan->primitive, onednn->stream, count, arguments));
    if (plan->reorder && gradient) DNN_TRY(run_reorder(onednn, plan, true));
    return dnnl_stream_wait(onednn->stream);
}

static gt_status run_plan(gt__device *device, const gt__call *call, const gt__onednn_plan *plan, int64_t kind, const run_data *data) {
    gt__onednn *onednn = gt__cpu(device)->onednn;
    size_t aligned = (plan->scratchpad_bytes + 63) / 64 * 64,
           bytes = plan->own_weights_bytes ? aligned + plan->own_weights_bytes : plan->scratchpad_bytes;
    void *scratch = NULL, *handle = NULL;
    if (bytes > 0) GT_TRY(gt__cpu_room(device, bytes, &scratch, &handle));
    dnnl_status_t status = set_handles(plan, data, scratch);
    if (status == dnnl_success) status = run_primitive(onednn, plan, kind);
    gt__scratch_free(device->ctx, handle);
    if (status == dnnl_success) return GT_OK;
    char who[256];
    return gt__error_raise(GT_LIBRARY, __FILE__, __LINE__, (int64_t)status, "dnnl_status_t", NULL, "%s: oneDNN failed with status %d",
                           gt__call_text(call, who, sizeof who), (int)status);
}

/* `multiplications`: how much work it is. */
static gt_status find_and_run(gt__device *device, const gt__call *call, gt__onednn_key *key, const matmul_shape *matmul,
                              const conv_shape *conv, const run_data *data, double multiplications) {
    gt__cpu_device *cpu = gt__cpu(device);
    int threads = multiplications < WORTH_THREADS ? 1 : cpu->threads;
    int previous = threads_enter(&threads);
    key->numbers[1] = threads;
    gt__onednn_plan *plan = find_plan(cpu->onednn, key, matmul, conv);
    gt_status status = plan->primitive ? run_plan(device, call, plan, key->numbers[0], data) : GT_NOT_SUPPORTED;
    threads_leave(threads, previous);
    return status;
}

/* --- matrix products ------------------------------------------------------------------------------------------------------------------------ */

/* A matrix as oneDNN wants it: one of its strides 1, the other at least as long as a row. Axes of size 1 may have had any stride. */
static bool matrix_strides(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, dnnl_dim_t *strides) {
    if (columns == 1) column_stride = 1;
    if (rows == 1) row_stride = column_stride == 1 ? columns : 1;
    if (columns == 1 && row_stride < 1) return false;
    strides[0] = row_stride;
    strides[1] = column_stride;
    return (column_stride == 1 && row_stride >= columns) || (row_stride == 1 && column_stride >= rows);
}

/* Batch axes and matrix of one operand. A repeated axis is given as one of size 1, which oneDNN repeats. */
static bool operand(const gt__meta *meta, dnnl_dims_t shape, dnnl_dims_t strides) {
    int32_t batch = meta->ndim - 2;
    int64_t inner = meta->shape[batch] * meta->shape[batch + 1];
    for (int32_t axis = batch - 1; axis >= 0; axis--) {
        bool repeated = meta->shape[axis] == 1 || meta->strides[axis] == 0;
        shape[axis] = repeated ? 1 : meta->shape[axis];
        strides[axis] = repeated ? inner : meta->strides[axis];
        inner = GT__MAX(inner, strides[axis] * shape[axis]);
    }
    shape[batch] = meta->shape[batch];
    shape[batch + 1] = meta->shape[batch + 1];
    return matrix_strides(meta->shape[batch], meta->shape[batch + 1], meta->strides[batch], meta->strides[batch + 1], strides + batch);
}

static void matmul_key(const matmul_shape *s, gt__onednn_key *key) {
    memset(key, 0, sizeof *key);
    key->numbers[0] = KIND_MATMUL;
    key->numbers[2] = s->ndim;
    key->numbers[3] = s->has_bias | (s->accumulate ? 2 : 0);
    int64_t *to = key->numbers + 4;
    for (int32_t i = 0; i < s->ndim; i++) {
        *to++ = s->a[i];
        *to++ = s->b[i];
        *to++ = s->c[i];
        *to++ = s->a_strides[i];
        *to++ = s->b_strides[i];
        *to++ = s->c_strides[i];
    }
}
_Static_assert(4 + 6 * GT_MAX_DIMS <= GT__ONEDNN_KEY, "a product's description must fit the key");

static bool worth_it(gt__device *device, const gt_tensor *c, int64_t k) {
    return usable(device) && c->meta.dtype == GT_DTYPE_F32 && k > 0 && (double)c->meta.numel * (double)k >= WORTH_A_CALL;
}

gt_status gt__onednn_matmul(gt__device *device, const gt__call *call) {
    const gt_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
    if (!worth_it(device, c, a->meta.shape[a->meta.ndim - 1])) return GT_NOT_SUPPORTED;
    matmul_shape s = {.ndim = c->meta.ndim};
    if (!operand(&a->meta, s.a, s.a_strides) || !operand(&b->meta, s.b, s.b_strides) || !operand(&c->meta, s.c, s.c_strides))
        return GT_NOT_SUPPORTED;
    gt__onednn_key key;
    matmul_key(&s, &key);
    run_data data = {.src = gt__data(a), .weights = gt__data(b), .dst = gt__data(c)};
    return find_and_run(device, call, &key, &s, NULL, &data, (double)c->meta.numel * (double)a->meta.shape[a->meta.ndim - 1]);
}

gt_status gt__onednn_linear(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL, *y = call->out[0];
    if (!worth_it(device, y, x->meta.shape[1])) return GT_NOT_SUPPORTED;
    gt__meta turned = w->meta; /* [K,N] */
    turned.shape[0] = w->meta.shape[1];
    turned.shape[1] = w->meta.shape[0];
    turned.strides[0] = w->meta.strides[1];
    turned.strides[1] = w->meta.strides[0];
    int64_t n = y->meta.shape[1];
    matmul_shape s = {.ndim = 2, .has_bias = bias != NULL, .bias = {1, n}, .bias_strides = {n, 1}};
    if (!operand(&x->meta, s.a, s.a_strides) || !operand(&turned, s.b, s.b_strides) || !operand(&y->meta, s.c, s.c_strides))
        return GT_NOT_SUPPORTED;
    gt__onednn_key key;
    matmul_key(&s, &key);
    run_data data = {.src = gt__data(x), .weights = gt__data(w), .bias = bias ? gt__data(bias) : NULL, .dst = gt__data(y)};
    return find_and_run(device, call, &key, &s, NULL, &data, (double)y->meta.numel * (double)x->meta.shape[1]);
}

gt_status gt__onednn_linear_backward_weight(gt__device *device, const gt__call *call) {
    const gt_tensor *dz = call->in[0], *x = call->in[1], *dw = call->out[0];
    int64_t rows = x->meta.shape[0];
    if (!worth_it(device, dw, rows) || dz->meta.dtype != GT_DTYPE_F32) return GT_NOT_SUPPORTED;
    gt__meta turned = dz->meta; /* [N,M] */
    turned.shape[0] = dz->meta.shape[1];
    turned.shape[1] = rows;
    turned.strides[0] = dz->meta.strides[1];
    turned.strides[1] = dz->meta.strides[0];
    matmul_shape s = {.ndim = 2, .accumulate = call->attr.linear.accumulate != 0};
    if (!operand(&turned, s.a, s.a_strides) || !operand(&x->meta, s.b, s.b_strides) || !operand(&dw->meta, s.c, s.c_strides))
        return GT_NOT_SUPPORTED;
    gt__onednn_key key;
    matmul_key(&s, &key);
    run_data data = {.src = gt__data(dz), .weights = gt__data(x), .dst = gt__data(dw)};
    return find_and_run(device, call, &key, &s, NULL, &data, (double)dw->meta.numel * (double)rows);
}

/* --- convolution ---------------------------------------------------------------------------------------------------------------------------- */

static gt_status convolve(gt__device *device, const gt__call *call, int64_t kind, const gt_tensor *x, const gt_tensor *w,
                          const gt_tensor *bias, const gt_tensor *y) {
    if (!usable(device) || x->meta.dtype != GT_DTYPE_F32 || w->meta.dtype != GT_DTYPE_F32 || y->meta.dtype != GT_DTYPE_F32)
        return GT_NOT_SUPPORTED;
    const int64_t *ws = w->meta.shape;
    int64_t groups = call->attr.conv.groups, grouped = groups > 1;
    conv_shape s = {.kind = kind, .w_ndim = grouped ? 5 : 4, .has_bias = bias != NULL, .bias = {ws[0]}};
    for (int i = 0; i < 4; i++) {
        s.x[i] = x->meta.shape[i];
        s.y[i] = y->meta.shape[i];
    }
    dnnl_dim_t *shape = s.w, *strides = s.w_strides;
    if (grouped) {
        *shape++ = groups;
        *strides++ = ws[0] / groups * ws[1] * ws[2] * ws[3];
    }
    shape[0] = ws[0] / groups;
    shape[1] = ws[1];
    shape[2] = ws[2];
    shape[3] = ws[3];
    strides[0] = ws[1] * ws[2] * ws[3];
    strides[1] = 1;
    strides[2] = ws[3] * ws[1];
    strides[3] = ws[1];
    gt__onednn_key key = {.numbers = {kind, 0, bias != NULL, groups}};
    int64_t *to = key.numbers + 4;
    for (int i = 0; i < 4; i++) {
        *to++ = s.x[i];
        *to++ = s.y[i];
        *to++ = ws[i];
    }
    for (int i = 0; i < 2; i++) {
        *to++ = s.conv.stride[i] = call->attr.conv.stride[i];
        *to++ = s.conv.dilation[i] = call->attr.conv.dilation[i] - 1;
        *to++ = s.conv.padding[i] = call->attr.conv.padding[i];
    }
    run_data data = {.src = gt__data(x), .weights = gt__data(w), .bias = bias ? gt__data(bias) : NULL, .dst = gt__data(y)};
    return find_and_run(device, call, &key, NULL, &s, &data, (double)y->meta.numel * (double)(ws[1] * ws[2] * ws[3]));
}

gt_status gt__onednn_conv2d(gt__device *device, const gt__call *call) {
    return convolve(device, call, KIND_FORWARD, call->in[0], call->in[1], call->n_in > 2 ? call->in[2] : NULL, call->out[0]);
}

gt_status gt__onednn_conv2d_backward_input(gt__device *device, const gt__call *call) {
    return convolve(device, call, KIND_BACKWARD_DATA, call->out[0], call->in[1], NULL, call->in[0]);
}

gt_status gt__onednn_conv2d_backward_weight(gt__device *device, const gt__call *call) {
    return convolve(device, call, KIND_BACKWARD_WEIGHTS, call->in[1], call->out[0], NULL, call->in[0]);
}

/* Building a case's inputs, running it, and the two ways to check it. */
#include "cases/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const op_case *const families[] = {elementwise_cases, shape_cases, reduce_cases, linear_cases,
                                          conv_cases,        pool_cases,  norm_cases,   loss_cases};

const op_case *case_next(const char *op, const op_case *from) {
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (const op_case *c = families[f]; c->op; c++) {
            if (c == from)
                from = NULL;
            else if (!from && strcmp(c->op, op) == 0)
                return c;
        }
    return NULL;
}

const char *case_text(const op_case *c, char *buffer, size_t size) {
    static const char *const layouts[] = {"", " transposed", " sliced", " expanded", " channels-last", " offset"};
    size_t used = (size_t)snprintf(buffer, size, "%s", c->op);
    for (int k = 0; k < CASE_INPUTS && c->in[k].present && used < size; k++) {
        used += (size_t)snprintf(buffer + used, size - used, "%s[", k ? ", " : " ");
        for (int i = 0; i < c->in[k].ndim && used < size; i++)
            used += (size_t)snprintf(buffer + used, size - used, "%s%lld", i ? "," : "", (long long)c->in[k].shape[i]);
        if (used < size) used += (size_t)snprintf(buffer + used, size - used, "]%s", layouts[c->in[k].layout]);
    }
    for (int i = 0; i < CASE_ARGS && used < size; i++)
        if (c->arg[i] != 0) used += (size_t)snprintf(buffer + used, size - used, " a%d=%g", i, c->arg[i]);
    return buffer;
}

/* ---- values ------------------------------------------------------------------------------------------------------------------ */

typedef struct random_state {
    uint64_t s;
} random_state;

static uint64_t next_random(random_state *r) /* splitmix64 (Steele, Lea, Flood 2014) */
{
    uint64_t z = (r->s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double unit(random_state *r) { return (double)(next_random(r) >> 11) * 0x1p-53; }

/* To what the dtype can hold. Values here stay in the normal range. */
static double rounded(double v, gt_dtype dtype) {
    int bits = dtype == GT_DTYPE_F16 ? 11 : dtype == GT_DTYPE_BF16 ? 8 : dtype == GT_DTYPE_F32 ? 24 : 53, e = 0;
    double m = frexp(v, &e);
    return ldexp(rint(ldexp(m, bits)), e - bits);
}

static void fill_values(double *v, int64_t n, const case_in *in, uint64_t seed, gt_dtype dtype) {
    random_state r = {seed};
    for (int64_t i = 0; i < n; i++) {
        double u = unit(&r), sign = next_random(&r) & 1 ? 1 : -1;
        switch (in->values) {
        case SMOOTH:
            v[i] = sign * (0.2 + 1.3 * u);
            break;
        case POSITIVE:
            v[i] = 0.5 + 1.5 * u;
            break;
        case DISTINCT:
            v[i] = ((double)i - (double)n / 2) * (n < 200 ? 0.03 : 6.0 / (double)n) + 0.01;
            break;
        case GRID:
            v[i] = (double)((int64_t)(u * 13) - 6) / 4;
            break;
        case GRID_ODD:
            v[i] = (double)(2 * (int64_t)(u * 13) - 13) / 32;
            break;
        case TIES:
            v[i] = (double)(int64_t)(u * 3);
            break;
        case LABELS:
            v[i] = in->ignored && i % 4 == 2 ? (double)in->ignored : (double)(int64_t)(u * in->classes);
            break;
        }
    }
    if (in->values == DISTINCT)
        for (int64_t i = n - 1; i > 0; i--) {
            int64_t j = (int64_t)(unit(&r) * (double)(i + 1));
            double swap = v[i];
            v[i] = v[j];
            v[j] = swap;
        }
    if (in->values != LABELS)
        for (int64_t i = 0; i < n; i++) v[i] = rounded(v[i], dtype);
}

static double *allocate(int64_t n) {
    double *p = calloc((size_t)n + 1, sizeof *p);
    if (!p) FAIL("no host memory for %lld values", (long long)n);
    return p;
}

static int64_t count_of(int32_t ndim, const int64_t *shape) {
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; i++) n *= shape[i];
    return n;
}

/* The shape of the leaf behind an input. */
static int32_t leaf_shape(const case_in *in, int64_t *shape) {
    int32_t n = in->ndim;
    memcpy(shape, in->shape, sizeof in->shape);
    if (in->layout == TRANSPOSED) {
        shape[n - 1] = in->shape[n - 2];
        shape[n - 2] = in->shape[n - 1];
    } else if (in->layout == SLICED) {
        shape[n - 1] = 2 * in->shape[n - 1] + 1;
    } else if (in->layout == EXPANDED) {
        shape[0] = 1;
    } else if (in->layout == OFFSET) {
        shape[0] = count_of(n, in->shape) + 1;
        n = 1;
    }
    return n;
}

static gt_tensor *view_of(gt_tensor *leaf, const case_in *in) {
    switch (in->layout) {
    case TRANSPOSED:
        return gt_transpose(leaf, -2, -1);
    case SLICED:
        return gt_slice(leaf, -1, 1, INT64_MAX, 2);
    case EXPANDED:
        return gt_expand(leaf, in->ndim, in->shape);
    case CHANNELS_LAST:
        return gt_channels_last(leaf);
    case OFFSET:
        return gt_reshape(gt_slice(leaf, 0, 1, INT64_MAX, 1), in->ndim, in->shape);
    default:
        return leaf;
    }
}

static gt_dtype dtype_of(const case_in *in, gt_dtype dtype) {
    if (in->values == LABELS) return in->label_dtype ? in->label_dtype : GT_DTYPE_I64;
    if (in->as_f32) return dtype == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32;
    return in->wide && dtype != GT_DTYPE_F64 ? GT_DTYPE_F32 : dtype;
}

static void wants_gradient(gt_tensor *leaf, const op_case *c, int k) {
    if (!c->no_gradient && !c->in[k].constant && c->in[k].values != LABELS) CHECK_OK(gt_tensor_set_requires_grad(leaf, 1));
}

/* A tensor of any dtype from doubles that it can hold. */
static gt_tensor *upload(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, const double *values) {
    int64_t n = count_of(ndim, shape);
    gt_tensor *wide = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F64, ndim, shape, values, (size_t)n * sizeof *values));
    return CHECK_TENSOR(gt_tensor_detach(CHECK_TENSOR(gt_cast(wide, dtype))));
}

static void read_all(gt_tensor *x, case_array *array) {
    array->count = gt_tensor_numel(x);
    array->data = allocate(array->count);
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(x, GT_DTYPE_F64)), array->data, (size_t)array->count * sizeof(double)));
}

/* The numbers by which the outputs are weighted. Quarters, so that sums of GRID cases stay exact. */
static double *output_weights(int64_t n) {
    const case_in grid = {.values = GRID};
    double *r = allocate(n);
    fill_values(r, n, &grid, 99, GT_DTYPE_F64);
    return r;
}

static uint64_t seed_of(const op_case *c, int k) {
    uint64_t h = 1469598103934665603u;
    for (const char *p = c->op; *p; p++) h = (h ^ (unsigned char)*p) * 1099511628211u;
    return h + (uint64_t)k * 7919u;
}

/* The dtype that the values are rounded to, so that f64 sees what the others see. */
static void run_rounded(gt_context *ctx, const op_case *c, gt_dtype dtype, gt_dtype grid_dtype, case_result *result) {
    gt_tensor *leaves[CASE_INPUTS] = {NULL}, *in[CASE_INPUTS] = {NULL};
    char text[512];
    memset(result, 0, sizeof *result);
    CHECK_OK(gt_scope_begin(ctx));
    for (int k = 0; k < CASE_INPUTS && c->in[k].present; k++) {
        int64_t shape[GT_MAX_DIMS];
        int32_t ndim = leaf_shape(&c->in[k], shape);
        int64_t n = count_of(ndim, shape);
        double *values = allocate(n);
        fill_values(values, n, &c->in[k], seed_of(c, k), dtype_of(&c->in[k], grid_dtype));
        leaves[k] = upload(ctx, dtype_of(&c->in[k], dtype), ndim, shape, values);
        free(values);
        wants_gradient(leaves[k], c, k);
        in[k] = CHECK_TENSOR(view_of(leaves[k], &c->in[k]));
    }
    gt_tensor *out = c->fn(ctx, in, c->arg);
    if (!out)
        FAIL("%s in %s: %s: %s", case_text(c, text, sizeof text), gt_dtype_name(dtype), gt_status_name(gt_last_error()->status),
             gt_last_error()->message);
    read_all(out, &result->out);
    if (!c->no_gradient) {
        double *r = output_weights(result->out.count);
        gt_tensor *dy = upload(ctx, gt_tensor_dtype(out), gt_tensor_ndim(out), gt_tensor_shape(out), r);
        free(r);
        if (gt_backward_from(&out, &dy, 1, 0) != GT_OK)
            FAIL("%s in %s, backward: %s: %s", case_text(c, text, sizeof text), gt_dtype_name(dtype),
                 gt_status_name(gt_last_error()->status), gt_last_error()->message);
        for (int k = 0; k < CASE_INPUTS && c->in[k].present; k++) {
            if (!gt_tensor_requires_grad(leaves[k])) continue;
            gt_tensor *grad = gt_tensor_grad(leaves[k]);
            if (grad) read_all(grad, &result->grad[k]);
        }
    }
    CHECK_OK(gt_scope_end(ctx));
}

void case_run(gt_context *ctx, const op_case *c, gt_dtype dtype, case_result *result) { run_rounded(ctx, c, dtype, dtype, result); }

void case_free(case_result *result) {
    free(result->out.data);
    for (int k = 0; k < CASE_INPUTS; k++) free(result->grad[k].data);
    memset(result, 0, sizeof *result);
}

/* ---- finite differences ------------------------------------------------------------------------------------------------------ */

typedef struct probe {
    gt_context *ctx;
    const op_case *c;
    gt_tensor *leaves[CASE_INPUTS];
    double *weights;
    int64_t n_out;
} probe;

/* sum of weights * outputs with leaf k holding `values`. */
static double objective(probe *p, int k, const double *values, int64_t n) {
    gt_tensor *in[CASE_INPUTS] = {NULL};
    double *out = allocate(p->n_out), sum = 0;
    CHECK_OK(gt_tensor_write(p->leaves[k], values, (size_t)n * sizeof *values));
    CHECK_OK(gt_scope_begin(p->ctx));
    for (int i = 0; i < CASE_INPUTS && p->c->in[i].present; i++) in[i] = CHECK_TENSOR(view_of(p->leaves[i], &p->c->in[i]));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(p->c->fn(p->ctx, in, p->c->arg)), out, (size_t)p->n_out * sizeof *out));
    CHECK_OK(gt_scope_end(p->ctx));
    for (int64_t i = 0; i < p->n_out; i++) sum += p->weights[i] * out[i];
    free(out);
    return sum;
}

void case_check_gradient(gt_context *ctx, const op_case *c) {
    enum { MOST = 48 }; /* elements of an input that are tried */
    const double h = 1e-5;
    char text[512];
    case_result result;
    probe p = {.ctx = ctx, .c = c};
    case_run(ctx, c, GT_DTYPE_F64, &result);
    p.n_out = result.out.count;
    p.weights = output_weights(p.n_out);
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_no_grad_begin(ctx));
    double *values[CASE_INPUTS] = {NULL};
    int64_t counts[CASE_INPUTS] = {0};
    for (int k = 0; k < CASE_INPUTS && c->in[k].present; k++) {
        int64_t shape[GT_MAX_DIMS];
        int32_t ndim = leaf_shape(&c->in[k], shape);
        counts[k] = count_of(ndim, shape);
        values[k] = allocate(counts[k]);
        gt_dtype dtype = dtype_of(&c->in[k], GT_DTYPE_F64);
        fill_values(values[k], counts[k], &c->in[k], seed_of(c, k), dtype);
        p.leaves[k] = upload(ctx, dtype, ndim, shape, values[k]);
    }
    for (int k = 0; k < CASE_INPUTS && c->in[k].present; k++) {
        if (c->no_gradient || c->in[k].constant || c->in[k].values == LABELS) continue;
        if (!result.grad[k].data) FAIL("%s: input %d got no gradient", case_text(c, text, sizeof text), k);
        CHECK_EQ_INT(result.grad[k].count, counts[k]);
        int64_t step = counts[k] > MOST ? counts[k] / MOST : 1;
        for (int64_t i = 0; i < counts[k]; i += step) {
            double was = values[k][i];
            values[k][i] = was + h;
            double above = objective(&p, k, values[k], counts[k]);
            values[k][i] = was - h;
            double below = objective(&p, k, values[k], counts[k]);
            values[k][i] = was;
            double want = (above - below) / (2 * h), got = result.grad[k].data[i];
            if (!(fabs(got - want) <= 2e-6 * (1 + fabs(want)) * (c->loose > 0 ? c->loose : 1)))
                FAIL("%s: gradient of input %d at element %lld is %.10g, the difference quotient %.10g", case_text(c, text, sizeof text), k,
                     (long long)i, got, want);
        }
        CHECK_OK(gt_tensor_write(p.leaves[k], values[k], (size_t)counts[k] * sizeof(double)));
    }
    CHECK_OK(gt_no_grad_end(ctx));
    CHECK_OK(gt_scope_end(ctx));
    for (int k = 0; k < CASE_INPUTS; k++) free(values[k]);
    free(p.weights);
    case_free(&result);
}

/* ---- parity ------------------------------------------------------------------------------------------------------------------ */

static double tolerance_of(gt_dtype dtype) {
    return dtype == GT_DTYPE_F64 ? 1e-10 : dtype == GT_DTYPE_F32 ? 1e-5 : dtype == GT_DTYPE_F16 ? 2e-3 : 1.6e-2;
}

/* Apart by at most tolerance times (the value + the root mean square of all). */
static void compare(const op_case *c, gt_dtype dtype, const char *what, int k, const case_array *got, const case_array *want) {
    char text[512];
    double tolerance = tolerance_of(dtype) * (c->loose > 0 ? c->loose : 1), square = 0;
    if (!got->data != !want->data || got->count != want->count)
        FAIL("%s in %s: %s %d has %lld values, want %lld", case_text(c, text, sizeof text), gt_dtype_name(dtype), what, k,
             (long long)got->count, (long long)want->count);
    for (int64_t i = 0; i < want->count; i++) square += want->data[i] * want->data[i];
    double rms = want->count ? sqrt(square / (double)want->count) : 0;
    for (int64_t i = 0; i < want->count; i++) {
        double a = got->data[i], b = want->data[i];
        if (!(fabs(a - b) <= tolerance * (fabs(b) + rms) + c->least + 1e-30) && !(isnan(a) && isnan(b)))
            FAIL("%s in %s: %s %d at element %lld of %lld is %.9g, want %.9g (rms %.3g)", case_text(c, text, sizeof text),
                 gt_dtype_name(dtype), what, k, (long long)i, (long long)want->count, a, b, rms);
    }
}

void case_check_parity(gt_context *ctx, gt_context *reference, const op_case *c) {
    static const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64};
    int count = gt_context_device(ctx) == GT_DEVICE_CPU ? 3 : 4;
    for (int d = 0; d < count; d++) {
        case_result got, want;
        run_rounded(reference, c, GT_DTYPE_F64, dtypes[d], &want);
        run_rounded(ctx, c, dtypes[d], dtypes[d], &got);
        compare(c, dtypes[d], "output", 0, &got.out, &want.out);
        for (int k = 0; k < CASE_INPUTS; k++) compare(c, dtypes[d], "gradient of input", k, &got.grad[k], &want.grad[k]);
        case_free(&got);
        case_free(&want);
    }
}

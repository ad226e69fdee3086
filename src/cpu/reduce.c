/* sum, mean, max, argmax over any axes. Floating sums are kept in f64, so that their error does not grow with the number of elements.
 *
 * The input's axes are divided into kept and reduced ones. Where memory runs along a kept axis ("columns") whole rows are added to a row of results;
 * else each result reads its own elements. The work is split over results, or, where there are few of them, over the reduced elements, with one set of
 * partial results a part, combined in order. */
#include "cpu/reduce.h"

#include "cpu/kernels.h"
#include "cpu/target.h"

#include <math.h>

typedef enum reduce_kind { REDUCE_SUM, REDUCE_MAX } reduce_kind;

typedef struct axes_list {
    int64_t shape[GT_MAX_DIMS];
    int64_t strides[GT_MAX_DIMS];
    int64_t numel;
    int32_t ndim; /* >= 1 */
} axes_list;

typedef union value {
    double f;
    int64_t i;
} value;

typedef struct reduce_job {
    axes_list kept, reduced;
    const char *x;
    gt_dtype dtype;
    reduce_kind kind;
    bool columns;
    bool split_reduced;
    value *results; /* kept.numel of them; when the reduced elements are split, that many a part */
    int64_t part_length;
} reduce_job;

/* --- the axes --------------------------------------------------------------------------------------------------------------------------- */

static void axes_add(axes_list *list, int64_t extent, int64_t stride) {
    list->numel *= extent;
    if (extent == 1) return;
    int32_t last = list->ndim - 1;
    if (last >= 0 && list->strides[last] == stride * extent) {
        list->shape[last] *= extent;
        list->strides[last] = stride;
        return;
    }
    list->shape[list->ndim] = extent;
    list->strides[list->ndim++] = stride;
}

static void axes_finish(axes_list *list) {
    if (list->ndim > 0) return;
    list->shape[0] = 1;
    list->strides[0] = 1;
    list->ndim = 1;
}

/* Kept axes stay in order, since results are row-major over them; reduced ones go by stride, so that the last one runs along memory. */
static void axes_divide(reduce_job *job, const gt__meta *x, uint32_t mask) {
    int32_t order[GT_MAX_DIMS], n = 0;
    job->kept = (axes_list){.numel = 1};
    job->reduced = (axes_list){.numel = 1};
    for (int32_t axis = 0; axis < x->ndim; axis++) {
        if (!(mask >> axis & 1u)) {
            axes_add(&job->kept, x->shape[axis], x->strides[axis]);
            continue;
        }
        int32_t at = n++;
        for (; at > 0 && x->strides[order[at - 1]] < x->strides[axis]; at--) order[at] = order[at - 1];
        order[at] = axis;
    }
    for (int32_t i = 0; i < n; i++) axes_add(&job->reduced, x->shape[order[i]], x->strides[order[i]]);
    axes_finish(&job->kept);
    axes_finish(&job->reduced);
    int32_t k = job->kept.ndim - 1, r = job->reduced.ndim - 1;
    job->columns = job->kept.shape[k] > 1 && job->kept.strides[k] < job->reduced.strides[r] && job->reduced.numel > 1;
}

/* The offset of element `flat` and its index along each axis. */
static int64_t axes_seek(const axes_list *list, int64_t flat, int64_t *index) {
    int64_t offset = 0;
    for (int32_t axis = list->ndim - 1; axis >= 0; axis--) {
        index[axis] = flat % list->shape[axis];
        flat /= list->shape[axis];
        offset += index[axis] * list->strides[axis];
    }
    return offset;
}

/* Moves n elements on, within or to the end of the innermost axis; returns the new offset. */
static int64_t axes_step(const axes_list *list, int64_t offset, int64_t *index, int64_t n) {
    int32_t axis = list->ndim - 1;
    index[axis] += n;
    offset += n * list->strides[axis];
    while (axis > 0 && index[axis] == list->shape[axis]) {
        offset -= index[axis] * list->strides[axis];
        index[axis] = 0;
        axis--;
        index[axis]++;
        offset += list->strides[axis];
    }
    return offset;
}

/* --- runs of elements ------------------------------------------------------------------------------------------------------------------ */

GT__CPU_CLONES static void add_lanes_f32(double *to, const float *x, int64_t n) {
    double lanes[GT__SUM_LANES];
    for (int k = 0; k < GT__SUM_LANES; k++) lanes[k] = to[k];
    for (int64_t i = 0; i < n; i += GT__SUM_LANES)
        for (int k = 0; k < GT__SUM_LANES; k++) lanes[k] += (double)x[i + k];
    for (int k = 0; k < GT__SUM_LANES; k++) to[k] = lanes[k];
}

void gt__cpu_sum_lanes_f32(double *lanes, const float *x, int64_t n) { add_lanes_f32(lanes, x, n); }

double gt__cpu_sum_end_f32(const double *lanes, const float *rest, int64_t n) {
    double sum = 0;
    for (int k = 0; k < GT__SUM_LANES; k++) sum += lanes[k];
    for (int64_t i = 0; i < n; i++) sum += (double)rest[i];
    return sum;
}

static double sum_f32(const float *x, int64_t n) {
    double lanes[GT__SUM_LANES] = {0};
    const int64_t whole = n / GT__SUM_LANES * GT__SUM_LANES;
    add_lanes_f32(lanes, x, whole);
    return gt__cpu_sum_end_f32(lanes, x + whole, n - whole);
}

GT__CPU_CLONES static double sum_f64(const double *x, int64_t n) {
    double lanes[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) lanes[k] += x[i + k];
    double sum = 0;
    for (int k = 0; k < 16; k++) sum += lanes[k];
    for (; i < n; i++) sum += x[i];
    return sum;
}

double gt__cpu_sum_f64(const double *x, int64_t n) { return sum_f64(x, n); }

static inline double larger(double a, double b) { return (a > b || a != a) ? a : b; }

GT__CPU_CLONES static double max_f64(double start, const double *x, int64_t n) {
    double result = start;
    for (int64_t i = 0; i < n; i++) result = larger(result, x[i]);
    return result;
}

GT__CPU_CLONES static void add_row_f32(double *to, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += (double)x[i];
}

void gt__cpu_sum_row_f32(double *to, const float *x, int64_t n) { add_row_f32(to, x, n); }

static value start_value(const reduce_job *job) {
    value start;
    if (gt__dtype_is_int(job->dtype))
        start.i = job->kind == REDUCE_MAX ? INT64_MIN : 0;
    else
        start.f = job->kind == REDUCE_MAX ? -(double)INFINITY : 0.0;
    return start;
}

static value combine(const reduce_job *job, value a, value b) {
    if (gt__dtype_is_int(job->dtype))
        a.i = job->kind == REDUCE_MAX ? GT__MAX(a.i, b.i) : (int64_t)((uint64_t)a.i + (uint64_t)b.i);
    else
        a.f = job->kind == REDUCE_MAX ? larger(a.f, b.f) : a.f + b.f;
    return a;
}

/* One result with n elements more. */
static value reduce_run(const reduce_job *job, value so_far, const char *x, int64_t stride, int64_t n) {
    if (job->dtype == GT_DTYPE_F32 && job->kind == REDUCE_SUM && stride == 1) {
        so_far.f += sum_f32((const float *)(const void *)x, n);
        return so_far;
    }
    for (int64_t i = 0; i < n; i += GT__CHUNK) {
        int64_t m = GT__MIN(n - i, GT__CHUNK);
        const char *from = gt__cpu_at(x, job->dtype, i * stride);
        if (gt__dtype_is_int(job->dtype)) {
            int64_t chunk[GT__CHUNK];
            gt__cpu_load_i64(chunk, from, job->dtype, stride, m);
            for (int64_t k = 0; k < m; k++) so_far = combine(job, so_far, (value){.i = chunk[k]});
        } else {
            double buffer[GT__CHUNK];
            const double *chunk = gt__cpu_view_f64(from, job->dtype, stride, m, buffer);
            so_far.f = job->kind == REDUCE_MAX ? max_f64(so_far.f, chunk, m) : so_far.f + sum_f64(chunk, m);
        }
    }
    return so_far;
}

/* n neighbouring results with one element more each. */
static void reduce_row(const reduce_job *job, value *to, const char *x, int64_t stride, int64_t n) {
    if (job->dtype == GT_DTYPE_F32 && job->kind == REDUCE_SUM && stride == 1) {
        add_row_f32(&to[0].f, (const float *)(const void *)x, n);
        return;
    }
    for (int64_t i = 0; i < n; i += GT__CHUNK) {
        int64_t m = GT__MIN(n - i, GT__CHUNK);
        const char *from = gt__cpu_at(x, job->dtype, i * stride);
        value chunk[GT__CHUNK];
        if (gt__dtype_is_int(job->dtype))
            gt__cpu_load_i64(&chunk[0].i, from, job->dtype, stride, m);
        else
            gt__cpu_load_f64(&chunk[0].f, from, job->dtype, stride, m);
        for (int64_t k = 0; k < m; k++) to[i + k] = combine(job, to[i + k], chunk[k]);
    }
}

/* --- the loops --------------------------------------------------------------------------------------------------------------------------- */

/* Results [k0, k1) over the reduced elements [r0, r1), written to to[0 .. k1 - k0). */
static void reduce_part(const reduce_job *job, int64_t k0, int64_t k1, int64_t r0, int64_t r1, value *to) {
    const axes_list *kept = &job->kept, *reduced = &job->reduced;
    int64_t index[GT_MAX_DIMS], inner[GT_MAX_DIMS];
    int32_t last = job->columns ? kept->ndim - 1 : reduced->ndim - 1;
    value start = start_value(job);
    int64_t offset = axes_seek(kept, k0, index);
    for (int64_t k = k0; k < k1;) {
        int64_t width = 1;
        if (job->columns) width = GT__MIN(GT__MIN(kept->shape[last] - index[last], k1 - k), 2048); /* a row of results stays in cache */
        for (int64_t i = 0; i < width; i++) to[k - k0 + i] = start;
        if (r0 < r1) {
            int64_t at = axes_seek(reduced, r0, inner);
            for (int64_t r = r0; r < r1;) {
                int64_t n = 1;
                const char *x = gt__cpu_at(job->x, job->dtype, offset + at);
                if (job->columns) {
                    reduce_row(job, to + (k - k0), x, kept->strides[last], width);
                } else {
                    n = GT__MIN(reduced->shape[last] - inner[last], r1 - r);
                    to[k - k0] = reduce_run(job, to[k - k0], x, reduced->strides[last], n);
                }
                r += n;
                if (r < r1) at = axes_step(reduced, at, inner, n);
            }
        }
        k += width;
        if (k < k1) offset = axes_step(kept, offset, index, width);
    }
}

static void reduce_kept_range(void *argument, int64_t begin, int64_t end) {
    reduce_job *job = argument;
    reduce_part(job, begin, end, 0, job->reduced.numel, job->results + begin);
}

static void reduce_reduced_range(void *argument, int64_t begin, int64_t end) {
    reduce_job *job = argument;
    for (int64_t part = begin; part < end; part++) {
        int64_t r0 = part * job->part_length, r1 = GT__MIN(r0 + job->part_length, job->reduced.numel);
        reduce_part(job, 0, job->kept.numel, r0, GT__MAX(r0, r1), job->results + part * job->kept.numel);
    }
}

static void store_results(const reduce_job *job, gt_tensor *y, double scale) {
    gt_dtype dtype = y->meta.dtype;
    void *to = gt__data(y);
    for (int64_t k = 0; k < job->kept.numel; k++) {
        if (gt__dtype_is_int(dtype))
            gt__cpu_store_i64(gt__cpu_at_mut(to, dtype, k), dtype, 1, &job->results[k].i, 1);
        else
            gt__cpu_put_f64(to, dtype, k, job->results[k].f * scale);
    }
}

int64_t gt__cpu_sum_parts(gt__device *device, int64_t kept, int64_t reduced) {
    const int64_t threads = gt__cpu(device)->threads;
    if (threads > 1 && kept < 64 * threads && reduced >= 512 && kept * reduced >= 131072) return GT__MIN(threads, reduced / 256);
    return 1;
}

static gt_status reduce(gt__device *device, const gt__call *call, reduce_kind kind, bool mean) {
    const gt_tensor *x = call->in[0];
    gt_tensor *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    reduce_job job = {.x = gt__data(x), .dtype = x->meta.dtype, .kind = kind};
    axes_divide(&job, &x->meta, call->attr.reduce.mask);
    int64_t kept = job.kept.numel, reduced = job.reduced.numel;
    int64_t parts = gt__cpu_sum_parts(device, kept, reduced);
    job.part_length = (reduced + parts - 1) / parts;
    value few[64];
    job.results = few;
    if (kept * parts > (int64_t)GT__COUNT(few)) {
        job.results = gt__calloc((size_t)(kept * parts), sizeof *job.results);
        if (!job.results) return GT_OUT_OF_HOST_MEMORY;
    }
    if (parts > 1) {
        gt__cpu_for(device, parts, 1, reduce_reduced_range, &job);
        for (int64_t part = 1; part < parts; part++)
            for (int64_t k = 0; k < kept; k++) job.results[k] = combine(&job, job.results[k], job.results[part * kept + k]);
    } else {
        gt__cpu_for(device, kept, gt__cpu_grain(reduced), reduce_kept_range, &job);
    }
    store_results(&job, y, mean ? 1.0 / (double)reduced : 1.0);
    if (job.results != few) gt__free(job.results);
    return GT_OK;
}

GT__CPU_KERNEL(sum) { return reduce(device, call, REDUCE_SUM, false); }
GT__CPU_KERNEL(mean) { return reduce(device, call, REDUCE_SUM, true); }
GT__CPU_KERNEL(max) { return reduce(device, call, REDUCE_MAX, false); }

/* --- argmax ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct argmax_job {
    const gt_tensor *x;
    int64_t *y;
    int32_t axis;
} argmax_job;

static void argmax_range(void *argument, int64_t begin, int64_t end) {
    const argmax_job *job = argument;
    const gt__meta *x = &job->x->meta;
    int64_t extent = x->shape[job->axis], stride = x->strides[job->axis];
    for (int64_t k = begin; k < end; k++) {
        int64_t rest = k, offset = 0, best = 0;
        for (int32_t axis = x->ndim - 1; axis >= 0; axis--) {
            if (axis == job->axis) continue;
            offset += rest % x->shape[axis] * x->strides[axis];
            rest /= x->shape[axis];
        }
        if (gt__dtype_is_int(x->dtype)) {
            int64_t most = INT64_MIN;
            for (int64_t i = 0; i < extent; i++) {
                int64_t v = gt__cpu_get_i64(gt__data(job->x), x->dtype, offset + i * stride);
                if (i == 0 || v > most) most = v, best = i;
            }
        } else {
            double most = 0;
            for (int64_t i = 0; i < extent && most == most; i++) {
                double v = gt__cpu_get_f64(gt__data(job->x), x->dtype, offset + i * stride);
                if (i == 0 || v > most || v != v) most = v, best = i;
            }
        }
        job->y[k] = best;
    }
}

GT__CPU_KERNEL(argmax) {
    argmax_job job = {.x = call->in[0], .y = gt__data(call->out[0]), .axis = call->attr.reduce.axis};
    int64_t n = call->out[0]->meta.numel;
    if (n == 0) return GT_OK;
    gt__cpu_for(device, n, gt__cpu_grain(call->in[0]->meta.shape[job.axis]), argmax_range, &job);
    return GT_OK;
}

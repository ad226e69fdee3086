/* Batch and layer normalisation. Both see a row-major matrix: batch norm one of [pixels, channels] with statistics a column, layer norm one of
 * [rows, width] with statistics a row. Statistics are computed in two passes, in f64, unless columns.c can do it. */
#include "cpu/columns.h"
#include "cpu/copy.h"
#include "cpu/kernels.h"
#include "cpu/target.h"

#include <math.h>

typedef struct norm_job {
    const gt_tensor *x, *dy, *dy2, *w, *b, *residual; /* all but x may be NULL */
    gt_tensor *y;                                     /* or dx, or dz */
    gt_tensor *rounded;                               /* dz again, in its result; may be NULL */
    int64_t rows, width;
    double epsilon;
    /* batch norm: a value a column */
    const double *mean, *scale, *shift;
    const double *rstd, *dot; /* backward */
    double *sums, *sums2;     /* width a part */
    int64_t rows_each;
    bool centred; /* sum squares about the mean */
    bool relu;
    /* layer norm */
    const gt_tensor *mean_in, *rstd_in;
    gt_tensor *mean_out, *rstd_out;
} norm_job;

static double get_or(const gt_tensor *t, int64_t i, double otherwise) {
    return t ? gt__cpu_get_f64(gt__data(t), t->meta.dtype, i) : otherwise;
}
static void put(gt_tensor *t, int64_t i, double value) {
    if (t) gt__cpu_put_f64(gt__data(t), t->meta.dtype, i, value);
}

/* n elements from `at` of a tensor, as they lie in memory. */
static const double *read_f64(const gt_tensor *t, int64_t at, int64_t n, double *buffer) {
    return gt__cpu_view_f64(gt__cpu_at(gt__data(t), t->meta.dtype, at), t->meta.dtype, 1, n, buffer);
}

static void write_f64(gt_tensor *t, int64_t at, int64_t n, const double *values) {
    gt__cpu_store_f64(gt__cpu_at_mut(gt__data(t), t->meta.dtype, at), t->meta.dtype, 1, values, n);
}

/* --- sums a column --------------------------------------------------------------------------------------------------------------------- */

GT__CPU_CLONES static void add_row(int64_t n, double *sum, const double *x) {
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

GT__CPU_CLONES static void add_row_squares(int64_t n, double *sum, const double *x, const double *mean) {
    for (int64_t i = 0; i < n; i++) sum[i] += (x[i] - mean[i]) * (x[i] - mean[i]);
}

GT__CPU_CLONES static void add_row_products(int64_t n, double *sum, double *sum2, const double *dy, const double *x, const double *mean) {
    for (int64_t i = 0; i < n; i++) {
        sum[i] += dy[i];
        sum2[i] += dy[i] * (x[i] - mean[i]);
    }
}

static void column_sums_range(void *argument, int64_t begin, int64_t end) {
    const norm_job *job = argument;
    double buffer[GT__CHUNK], buffer2[GT__CHUNK];
    for (int64_t part = begin; part < end; part++) {
        int64_t last = GT__MIN((part + 1) * job->rows_each, job->rows);
        double *sums = job->sums + part * job->width, *sums2 = job->sums2 ? job->sums2 + part * job->width : NULL;
        for (int64_t row = part * job->rows_each; row < last; row++) {
            for (int64_t c = 0; c < job->width; c += GT__CHUNK) {
                int64_t n = GT__MIN(job->width - c, GT__CHUNK);
                const double *x = read_f64(job->x, row * job->width + c, n, buffer);
                if (job->dy)
                    add_row_products(n, sums + c, sums2 + c, read_f64(job->dy, row * job->width + c, n, buffer2), x, job->mean + c);
                else if (job->centred)
                    add_row_squares(n, sums + c, x, job->mean + c);
                else
                    add_row(n, sums + c, x);
            }
        }
    }
}

static int64_t column_parts(gt__device *device, int64_t rows, int64_t width) {
    if (rows * width < 65536) return 1;
    return GT__MIN(GT__MAX(rows / 16, 1), gt__cpu(device)->threads);
}

/* Fills job->sums[0 .. width) (and sums2) by rows in parts, added up in order. */
static void column_sums(gt__device *device, norm_job *job, int64_t parts) {
    job->rows_each = (job->rows + parts - 1) / parts;
    memset(job->sums, 0, (size_t)(parts * job->width) * sizeof *job->sums);
    if (job->sums2) memset(job->sums2, 0, (size_t)(parts * job->width) * sizeof *job->sums2);
    gt__cpu_for(device, parts, 1, column_sums_range, job);
    for (int64_t part = 1; part < parts; part++) {
        add_row(job->width, job->sums, job->sums + part * job->width);
        if (job->sums2) add_row(job->width, job->sums2, job->sums2 + part * job->width);
    }
}

/* --- batch norm -------------------------------------------------------------------------------------------------------------------------- */

GT__CPU_CLONES static void scale_row(int64_t n, double *y, const double *x, const double *mean, const double *scale, const double *shift) {
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean[i]) * scale[i] + shift[i];
}

GT__CPU_CLONES static void add_relu_row(int64_t n, double *y, const double *residual) {
    for (int64_t i = 0; residual && i < n; i++) y[i] += residual[i];
    for (int64_t i = 0; i < n; i++) y[i] = y[i] <= 0 ? 0 : y[i]; /* NaN stays */
}

static void batch_norm_range(void *argument, int64_t begin, int64_t end) {
    const norm_job *job = argument;
    double buffer[GT__CHUNK], result[GT__CHUNK];
    for (int64_t row = begin; row < end; row++) {
        for (int64_t c = 0; c < job->width; c += GT__CHUNK) {
            int64_t n = GT__MIN(job->width - c, GT__CHUNK), at = row * job->width + c;
            scale_row(n, result, read_f64(job->x, at, n, buffer), job->mean + c, job->scale + c, job->shift + c);
            if (job->relu) add_relu_row(n, result, job->residual ? read_f64(job->residual, at, n, buffer) : NULL);
            write_f64(job->y, at, n, result);
        }
    }
}

/* scale and shift of every column, from `mean` and `rstd` as they are given to others: y must not depend on where they come from. */
static void batch_scales(norm_job *job, const double *mean, const double *rstd, double *scale, double *shift) {
    for (int64_t c = 0; c < job->width; c++) {
        scale[c] = rstd[c] * get_or(job->w, c, 1);
        shift[c] = get_or(job->b, c, 0);
    }
    job->mean = mean;
    job->scale = scale;
    job->shift = shift;
}

static void batch_apply(gt__device *device, norm_job *job) {
    if (job->y &&
        !gt__cpu_columns_scale(device, job->x, job->residual, job->y, job->rows, job->width, job->mean, job->scale, job->shift, job->relu))
        gt__cpu_for(device, job->rows, gt__cpu_grain(job->width * 2), batch_norm_range, job);
}

/* The batch's statistics, and the running ones moved towards them. */
static void batch_statistics(gt__device *device, const gt__call *call, norm_job *job, int64_t parts, double *mean, double *rstd) {
    gt_tensor *running_mean = call->in[3], *running_var = call->in[4];
    double count = (double)job->rows, momentum = call->attr.norm.momentum;
    job->mean = mean;
    if (!gt__cpu_columns_moments(device, job->x, job->rows, job->width, job->epsilon, mean, job->sums)) {
        column_sums(device, job, parts);
        for (int64_t c = 0; c < job->width; c++) mean[c] = job->sums[c] / count;
        job->centred = true;
        column_sums(device, job, parts);
    }
    for (int64_t c = 0; c < job->width; c++) {
        double variance = job->sums[c] / count;
        rstd[c] = 1.0 / sqrt(variance + job->epsilon);
        if (!running_mean) continue;
        put(running_mean, c, (1.0 - momentum) * get_or(running_mean, c, 0) + momentum * mean[c]);
        put(running_var, c, (1.0 - momentum) * get_or(running_var, c, 0) + momentum * (job->sums[c] / (count - 1.0)));
    }
}

/* The mean as it is kept: a number, and what that lost by rounding to the statistics' dtype. */
static double mean_of(const gt_tensor *kept, int64_t width, int64_t c) { return get_or(kept, c, 0) + get_or(kept, width + c, 0); }

/* Rounds both to what can be kept, and keeps them where wanted: whoever is given the kept ones computes the same. */
static void keep_statistics(const gt__call *call, int64_t width, double *mean, double *rstd) {
    bool whole = call->in[0]->meta.dtype == GT_DTYPE_F64;
    for (int64_t c = 0; c < width; c++) {
        double near = whole ? mean[c] : (double)(float)mean[c], rest = isfinite(near) ? mean[c] - near : 0;
        if (!whole) rest = (double)(float)rest;
        mean[c] = near + rest;
        if (!whole) rstd[c] = (double)(float)rstd[c];
        put(call->out[1], c, near);
        put(call->out[1], width + c, rest);
        put(call->out[2], c, rstd[c]);
    }
}

static gt_status batch_norm(gt__device *device, const gt__call *call, const gt_tensor *residual, bool relu) {
    const gt_tensor *x = call->in[0];
    bool training = call->attr.norm.training != 0;
    norm_job job = {.x = x,
                    .w = call->in[1],
                    .b = call->in[2],
                    .residual = residual,
                    .y = call->out[0],
                    .width = x->meta.shape[1],
                    .epsilon = call->attr.norm.epsilon,
                    .relu = relu};
    if (job.width == 0) return GT_OK;
    job.rows = x->meta.numel / job.width;
    int64_t parts = column_parts(device, job.rows, job.width), width = job.width;
    double *room = gt__calloc((size_t)(width * (parts + 4)), sizeof *room);
    if (!room) return GT_OUT_OF_HOST_MEMORY;
    double *mean = room, *rstd = mean + width, *scale = rstd + width, *shift = scale + width;
    job.sums = shift + width;
    if (training && job.rows > 0) {
        batch_statistics(device, call, &job, parts, mean, rstd);
    } else if (!training) {
        for (int64_t c = 0; c < width; c++) {
            mean[c] = get_or(call->in[3], c, 0);
            rstd[c] = 1.0 / sqrt(get_or(call->in[4], c, 0) + job.epsilon);
        }
    }
    keep_statistics(call, width, mean, rstd);
    batch_scales(&job, mean, rstd, scale, shift);
    batch_apply(device, &job);
    gt__free(room);
    return GT_OK;
}

GT__CPU_KERNEL(batch_norm) { return batch_norm(device, call, NULL, false); }
GT__CPU_KERNEL(batch_norm_relu) { return batch_norm(device, call, NULL, true); }
GT__CPU_KERNEL(batch_norm_add_relu) { return batch_norm(device, call, call->in[5], true); }

/* Room for, and the values of, mean, rstd, scale and shift; the caller frees job->mean. */
static gt_status given_statistics(norm_job *job, const gt_tensor *mean_in, const gt_tensor *rstd_in) {
    int64_t width = job->width;
    double *mean = gt__calloc((size_t)width, 4 * sizeof *mean), *rstd = mean + width;
    if (!mean) return GT_OUT_OF_HOST_MEMORY;
    for (int64_t c = 0; c < width; c++) {
        mean[c] = mean_of(mean_in, width, c);
        rstd[c] = get_or(rstd_in, c, 0);
    }
    batch_scales(job, mean, rstd, rstd + width, rstd + 2 * width);
    return GT_OK;
}

GT__CPU_KERNEL(batch_norm_apply) {
    const gt_tensor *x = call->in[0];
    norm_job job = {.x = x,
                    .w = call->in[1],
                    .b = call->in[2],
                    .y = call->out[0],
                    .width = x->meta.shape[1],
                    .relu = call->attr.norm.activation == GT_ACTIVATION_RELU};
    if (x->meta.numel == 0) return GT_OK;
    job.rows = x->meta.numel / job.width;
    GT_TRY(given_statistics(&job, call->in[3], call->in[4]));
    batch_apply(device, &job);
    gt__free((double *)job.mean);
    return GT_OK;
}

/* dx = scale (dy - shift - (x - mean) dot), where in training shift is the mean of dy, and dot that of dy (x - mean), times rstd^2. */
GT__CPU_CLONES static void gradient_row(int64_t n, double *dx, const double *dy, const double *x, const double *mean, const double *scale,
                                        const double *shift, const double *dot) {
    for (int64_t i = 0; i < n; i++) dx[i] = scale[i] * (dy[i] - shift[i] - (x[i] - mean[i]) * dot[i]);
}

static void batch_norm_backward_range(void *argument, int64_t begin, int64_t end) {
    const norm_job *job = argument;
    double buffer[GT__CHUNK], buffer2[GT__CHUNK], result[GT__CHUNK];
    for (int64_t row = begin; row < end; row++) {
        for (int64_t c = 0; c < job->width; c += GT__CHUNK) {
            int64_t n = GT__MIN(job->width - c, GT__CHUNK), at = row * job->width + c;
            gradient_row(n, result, read_f64(job->dy, at, n, buffer), read_f64(job->x, at, n, buffer2), job->mean + c, job->scale + c,
                         job->shift + c, job->dot + c);
            write_f64(job->y, at, n, result);
        }
    }
}

/* `dy` may be dx's memory. */
static gt_status batch_norm_gradient(gt__device *device, const gt__call *call, const gt_tensor *dy, const gt_tensor *mean_in,
                                     const gt_tensor *rstd_in) {
    const gt_tensor *x = call->in[1], *w = call->in[2];
    bool training = call->attr.norm.training != 0;
    norm_job job = {.x = x, .dy = dy, .y = call->out[0], .width = x->meta.shape[1]};
    if (job.width == 0) return GT_OK;
    job.rows = x->meta.numel / job.width;
    int64_t parts = column_parts(device, job.rows, job.width), width = job.width;
    double *room = gt__calloc((size_t)(width * (2 * parts + 4)), sizeof *room);
    if (!room) return GT_OUT_OF_HOST_MEMORY;
    double *mean = room, *scale = mean + width, *shift = scale + width, *dot = shift + width;
    job.sums = dot + width;
    job.sums2 = job.sums + width * parts;
    for (int64_t c = 0; c < width; c++) mean[c] = mean_of(mean_in, width, c);
    job.mean = mean;
    if (job.rows > 0 && !gt__cpu_columns_products(device, dy, x, job.rows, width, mean, job.sums, job.sums2))
        column_sums(device, &job, parts);
    for (int64_t c = 0; c < width; c++) {
        double rstd = get_or(rstd_in, c, 0);
        put(call->out[1], c, job.sums2[c] * rstd);
        put(call->out[2], c, job.sums[c]);
        scale[c] = rstd * get_or(w, c, 1);
        if (training && job.rows > 0) {
            shift[c] = job.sums[c] / (double)job.rows;
            dot[c] = job.sums2[c] / (double)job.rows * rstd * rstd;
        }
    }
    job.scale = scale;
    job.shift = shift;
    job.dot = dot;
    if (job.y && !gt__cpu_columns_gradient(device, dy, x, job.y, job.rows, width, mean, scale, shift, job.dot))
        gt__cpu_for(device, job.rows, gt__cpu_grain(width * 3), batch_norm_backward_range, &job);
    gt__free(room);
    return GT_OK;
}

/* --- with relu or of two gradients: what flows into batch norm first, in the memory of a result, then its gradient from there --------------- */

GT__CPU_CLONES static void mask_row(int64_t n, double *dz, const double *dy, const double *y) {
    for (int64_t i = 0; i < n; i++) dz[i] = y[i] > 0 ? dy[i] : (y[i] != y[i] ? y[i] : 0);
}

/* The residual of the job is the y that decides, or NULL: it is computed from x. Without relu nothing is masked. */
static void mask_range(void *argument, int64_t begin, int64_t end) {
    const norm_job *job = argument;
    double buffer[GT__CHUNK], buffer_dy[GT__CHUNK], sum[GT__CHUNK], result[GT__CHUNK];
    for (int64_t row = begin; row < end; row++) {
        for (int64_t c = 0; c < job->width; c += GT__CHUNK) {
            int64_t n = GT__MIN(job->width - c, GT__CHUNK), at = row * job->width + c;
            const double *dy = read_f64(job->dy, at, n, buffer_dy), *y = result;
            if (job->dy2) {
                memcpy(sum, dy, (size_t)n * sizeof *sum);
                add_row(n, sum, read_f64(job->dy2, at, n, buffer));
                dy = sum;
            }
            if (job->residual)
                y = read_f64(job->residual, at, n, buffer);
            else if (job->relu)
                scale_row(n, result, read_f64(job->x, at, n, buffer), job->mean + c, job->scale + c, job->shift + c);
            if (job->relu) {
                mask_row(n, result, dy, y);
                dy = result;
            }
            write_f64(job->y, at, n, dy);
            if (job->rounded) write_f64(job->rounded, at, n, dy);
        }
    }
}

/* dz's memory: a result's that is there, else `*room`, the caller's. The sum of two halves gets room in f32, where it is not rounded; the job rounds it for the
 * residual's gradient. */
static gt_status mask_room(const gt__call *call, norm_job *job, gt_tensor *dz, void **room) {
    gt_tensor *residual = call->n_out > 3 ? call->out[3] : NULL, *result = residual ? residual : call->out[0];
    *dz = *call->in[0];
    *room = NULL;
    job->y = dz;
    if (job->dy2) dz->meta.dtype = gt__dtype_accumulate(dz->meta.dtype);
    if (dz->meta.dtype != call->in[0]->meta.dtype) {
        job->rounded = residual;
    } else if (result) {
        dz->data = gt__data(result);
        return GT_OK;
    }
    *room = gt__calloc((size_t)GT__MAX(dz->meta.numel, 1), gt_dtype_size(dz->meta.dtype));
    dz->data = *room;
    return *room ? GT_OK : GT_OUT_OF_HOST_MEMORY;
}

static const gt_tensor *optional_input(const gt__call *call, int32_t k) { return k < call->n_in ? call->in[k] : NULL; }

GT__CPU_KERNEL(batch_norm_backward) {
    const gt_tensor *x = call->in[1], *mean = call->in[3], *rstd = call->in[4];
    norm_job job = {.x = x, .dy = call->in[0], .dy2 = optional_input(call, 5), .width = x->meta.shape[1]};
    gt_tensor dz;
    void *room;
    if (job.dy2 == NULL || job.width == 0) return batch_norm_gradient(device, call, job.dy, mean, rstd);
    GT_TRY(mask_room(call, &job, &dz, &room));
    job.rows = x->meta.numel / job.width;
    gt__cpu_for(device, job.rows, gt__cpu_grain(job.width * 2), mask_range, &job);
    gt_status status = batch_norm_gradient(device, call, &dz, mean, rstd);
    gt__free(room);
    return status;
}

GT__CPU_KERNEL(batch_norm_relu_backward) {
    const gt_tensor *x = call->in[1], *mean = call->in[4], *rstd = call->in[5];
    norm_job job = {.x = x,
                    .dy = call->in[0],
                    .dy2 = optional_input(call, 6),
                    .w = call->in[2],
                    .b = call->in[3],
                    .width = x->meta.shape[1],
                    .relu = true};
    gt_tensor dz;
    void *room;
    if (job.width == 0) return GT_OK;
    GT_TRY(mask_room(call, &job, &dz, &room));
    job.rows = x->meta.numel / job.width;
    gt_status status = given_statistics(&job, mean, rstd);
    if (status == GT_OK) {
        if (!gt__cpu_columns_mask(device, job.dy, job.dy2, x, &dz, job.rows, job.width, job.mean, job.scale, job.shift))
            gt__cpu_for(device, job.rows, gt__cpu_grain(job.width * 3), mask_range, &job);
        gt__free((double *)job.mean);
        status = batch_norm_gradient(device, call, &dz, mean, rstd);
    }
    gt__free(room);
    return status;
}

GT__CPU_KERNEL(batch_norm_add_relu_backward) {
    const gt_tensor *x = call->in[1];
    norm_job job = {
        .x = x, .dy = call->in[0], .dy2 = optional_input(call, 6), .residual = call->in[3], .width = x->meta.shape[1], .relu = true};
    gt_tensor dz;
    void *room;
    if (job.width == 0) return GT_OK;
    GT_TRY(mask_room(call, &job, &dz, &room));
    job.rows = x->meta.numel / job.width;
    gt__cpu_for(device, job.rows, gt__cpu_grain(job.width * 2), mask_range, &job);
    gt_status status = GT_OK;
    if (call->out[0] || call->out[1] || call->out[2]) status = batch_norm_gradient(device, call, &dz, call->in[4], call->in[5]);
    gt__free(room);
    return status;
}

/* --- layer norm -------------------------------------------------------------------------------------------------------------------------- */

static void layer_norm_range(void *argument, int64_t begin, int64_t end) {
    const norm_job *job = argument;
    double buffer[GT__CHUNK], result[GT__CHUNK], buffer_w[GT__CHUNK], buffer_b[GT__CHUNK];
    int64_t width = job->width;
    for (int64_t row = begin; row < end; row++) {
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < width; c += GT__CHUNK) {
            int64_t n = GT__MIN(width - c, GT__CHUNK);
            const double *x = read_f64(job->x, row * width + c, n, buffer);
            for (int64_t i = 0; i < n; i++) mean += x[i];
        }
        mean /= (double)width;
        for (int64_t c = 0; c < width; c += GT__CHUNK) {
            int64_t n = GT__MIN(width - c, GT__CHUNK);
            const double *x = read_f64(job->x, row * width + c, n, buffer);
            for (int64_t i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean);
        }
        double rstd = 1.0 / sqrt(variance / (double)width + job->epsilon);
        put(job->mean_out, row, mean);
        put(job->rstd_out, row, rstd);
        if (!job->y) continue;
        for (int64_t c = 0; c < width; c += GT__CHUNK) {
            int64_t n = GT__MIN(width - c, GT__CHUNK);
            const double *x = read_f64(job->x, row * width + c, n, buffer);
            for (int64_t i = 0; i < n; i++) result[i] = (x[i] - mean) * rstd;
            if (job->w) {
                const double *w = read_f64(job->w, c, n, buffer_w);
                for (int64_t i = 0; i < n; i++) result[i] *= w[i];
            }
            if (job->b) {
                const double *b = read_f64(job->b, c, n, buffer_b);
                for (int64_t i = 0; i < n; i++) result[i] += b[i];
            }
            write_f64(job->y, row * width + c, n, result);
        }
    }
}

GT__CPU_KERNEL(layer_norm) {
    const gt_tensor *x = call->in[0];
    norm_job job = {.x = x,
                    .w = call->in[1],
                    .b = call->in[2],
                    .y = call->out[0],
                    .mean_out = call->out[1],
                    .rstd_out = call->out[2],
                    .rows = x->meta.shape[0],
                    .width = x->meta.shape[1],
                    .epsilon = call->attr.norm.epsilon};
    gt__cpu_for(device, job.rows, gt__cpu_grain(job.width * 8), layer_norm_range, &job);
    return GT_OK;
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy w. */
static void layer_norm_dx_range(void *argument, int64_t begin, int64_t end) {
    const norm_job *job = argument;
    double buffer[GT__CHUNK], buffer_dy[GT__CHUNK], buffer_w[GT__CHUNK], result[GT__CHUNK];
    int64_t width = job->width;
    for (int64_t row = begin; row < end; row++) {
        double mean = get_or(job->mean_in, row, 0), rstd = get_or(job->rstd_in, row, 0), sum = 0, dot = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t c = 0; c < width; c += GT__CHUNK) {
                int64_t n = GT__MIN(width - c, GT__CHUNK);
                const double *x = read_f64(job->x, row * width + c, n, buffer), *dy = read_f64(job->dy, row * width + c, n, buffer_dy);
                const double *w = job->w ? read_f64(job->w, c, n, buffer_w) : NULL;
                for (int64_t i = 0; i < n; i++) {
                    double g = w ? dy[i] * w[i] : dy[i], normal = (x[i] - mean) * rstd;
                    if (pass == 0) {
                        sum += g;
                        dot += g * normal;
                    } else {
                        result[i] = rstd * (g - sum - normal * dot);
                    }
                }
                if (pass == 1) write_f64(job->y, row * width + c, n, result);
            }
            if (pass == 0) {
                sum /= (double)width;
                dot /= (double)width;
            }
        }
    }
}

/* Sums of dy and dy xhat a column, by rows in parts. */
static void layer_norm_dw_range(void *argument, int64_t begin, int64_t end) {
    const norm_job *job = argument;
    double buffer[GT__CHUNK], buffer_dy[GT__CHUNK];
    int64_t width = job->width;
    for (int64_t part = begin; part < end; part++) {
        int64_t last = GT__MIN((part + 1) * job->rows_each, job->rows);
        double *db = job->sums + part * width, *dw = job->sums2 + part * width;
        for (int64_t row = part * job->rows_each; row < last; row++) {
            double mean = get_or(job->mean_in, row, 0), rstd = get_or(job->rstd_in, row, 0);
            for (int64_t c = 0; c < width; c += GT__CHUNK) {
                int64_t n = GT__MIN(width - c, GT__CHUNK);
                const double *x = read_f64(job->x, row * width + c, n, buffer), *dy = read_f64(job->dy, row * width + c, n, buffer_dy);
                for (int64_t i = 0; i < n; i++) {
                    db[c + i] += dy[i];
                    dw[c + i] += dy[i] * ((x[i] - mean) * rstd);
                }
            }
        }
    }
}

GT__CPU_KERNEL(layer_norm_backward) {
    const gt_tensor *x = call->in[1];
    norm_job job = {.x = x,
                    .dy = call->in[0],
                    .w = call->in[2],
                    .y = call->out[0],
                    .mean_in = call->in[3],
                    .rstd_in = call->in[4],
                    .rows = x->meta.shape[0],
                    .width = x->meta.shape[1]};
    if (job.width == 0) return GT_OK;
    if (job.y) gt__cpu_for(device, job.rows, gt__cpu_grain(job.width * 8), layer_norm_dx_range, &job);
    if (!call->out[1] && !call->out[2]) return GT_OK;
    int64_t parts = column_parts(device, job.rows, job.width);
    job.sums = gt__calloc((size_t)(2 * parts * job.width), sizeof *job.sums);
    if (!job.sums) return GT_OUT_OF_HOST_MEMORY;
    job.sums2 = job.sums + parts * job.width;
    job.rows_each = (job.rows + parts - 1) / parts;
    gt__cpu_for(device, parts, 1, layer_norm_dw_range, &job);
    for (int64_t part = 1; part < parts; part++) {
        add_row(job.width, job.sums, job.sums + part * job.width);
        add_row(job.width, job.sums2, job.sums2 + part * job.width);
    }
    for (int64_t c = 0; c < job.width; c++) {
        put(call->out[1], c, job.sums2[c]);
        put(call->out[2], c, job.sums[c]);
    }
    gt__free(job.sums);
    return GT_OK;
}

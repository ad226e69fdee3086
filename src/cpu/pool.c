/* Pooling of channels-last images: maximum, average, adaptive average, and their gradients. The gradients gather: each input pixel adds up what the
 * windows that cover it send, so that rows of pixels can be computed on any thread. The result of max pooling, and its gradient, may have any
 * strides. */
#include "cpu/copy.h"
#include "cpu/kernels.h"
#include "cpu/target.h"

typedef struct pool_job {
    int64_t images, channels;
    int64_t x[2], y[2]; /* height and width of input and result */
    int64_t kernel[2], stride[2], padding[2];
    bool adaptive, count_include_pad;
    const gt_tensor *in, *index_in; /* x; or dy and the maxima's places */
    gt_tensor *out, *index_out;
    const struct window *over; /* average's gradient: the results over each column, */
    const float *shares[2];    /* and 1 / a window's height and width, of each row and column of results */
} pool_job;

static pool_job pool_job_for(const gt__call *call, const int64_t *x, const int64_t *y, bool adaptive) {
    pool_job job = {.images = x[0],
                    .channels = x[1],
                    .adaptive = adaptive,
                    .count_include_pad = call->attr.pool.count_include_pad != 0,
                    .in = call->in[0],
                    .out = call->out[0]};
    for (int i = 0; i < 2; i++) {
        job.x[i] = x[2 + i];
        job.y[i] = y[2 + i];
        job.kernel[i] = call->attr.pool.kernel[i];
        job.stride[i] = call->attr.pool.stride[i];
        job.padding[i] = call->attr.pool.padding[i];
    }
    return job;
}

/* What window `o` covers along an axis: [first, last) inside the image; `origin` is where it begins with its padding. */
typedef struct window {
    int64_t first, last, origin;
} window;

static window window_of(const pool_job *job, int axis, int64_t o) {
    window w;
    if (job->adaptive) {
        w.origin = w.first = o * job->x[axis] / job->y[axis];
        w.last = ((o + 1) * job->x[axis] + job->y[axis] - 1) / job->y[axis];
        return w;
    }
    w.origin = o * job->stride[axis] - job->padding[axis];
    w.first = GT__MAX(w.origin, 0);
    w.last = GT__MIN(w.origin + job->kernel[axis], job->x[axis]);
    return w;
}

/* The results [first, last) whose windows cover `at`. */
static window windows_over(const pool_job *job, int axis, int64_t at) {
    window w = {0, 0, 0};
    if (job->adaptive) {
        w.first = at * job->y[axis] / job->x[axis];
        w.last = ((at + 1) * job->y[axis] + job->x[axis] - 1) / job->x[axis];
    } else {
        int64_t reach = at + job->padding[axis] - job->kernel[axis]; /* the last place of a window that is too early */
        w.first = reach < 0 ? 0 : reach / job->stride[axis] + 1;
        w.last = (at + job->padding[axis]) / job->stride[axis] + 1;
    }
    w.last = GT__MIN(w.last, job->y[axis]);
    return w;
}

/* Along an axis, how many places a window's sum is divided by. */
static int64_t window_length(const pool_job *job, int axis, window w) {
    return !job->adaptive && job->count_include_pad ? job->kernel[axis] : w.last - w.first;
}

static double window_share(const pool_job *job, window rows, window columns) {
    return 1.0 / (double)(window_length(job, 0, rows) * window_length(job, 1, columns));
}

/* --- runs of channels -------------------------------------------------------------------------------------------------------------------- */

#define RUNS(suffix, real)                                                                                                                 \
    GT__CPU_CLONES static void keep_max_##suffix(int64_t n, real *best, int32_t *place, const real *x, int32_t here) {                     \
        for (int64_t i = 0; i < n; i++) {                                                                                                  \
            bool better = (x[i] > best[i]) | ((x[i] != x[i]) & (best[i] == best[i]));                                                      \
            place[i] = better ? here : place[i];                                                                                           \
            best[i] = better ? x[i] : best[i];                                                                                             \
        }                                                                                                                                  \
    }                                                                                                                                      \
    GT__CPU_CLONES static void add_scaled_##suffix(int64_t n, double *sum, const real *x, double scale) {                                  \
        for (int64_t i = 0; i < n; i++) sum[i] += (double)x[i] * scale;                                                                    \
    }                                                                                                                                      \
    GT__CPU_CLONES static void add_where_u8_##suffix(int64_t n, real *sum, const real *dy, const uint8_t *place, uint8_t here) {           \
        for (int64_t i = 0; i < n; i++) sum[i] += place[i] == here ? dy[i] : (real)0;                                                      \
    }                                                                                                                                      \
    GT__CPU_CLONES static void add_where_i32_##suffix(int64_t n, real *sum, const real *dy, const int32_t *place, int32_t here) {          \
        for (int64_t i = 0; i < n; i++) sum[i] += place[i] == here ? dy[i] : (real)0;                                                      \
    }

RUNS(f32, float)
RUNS(f64, double)

/* --- maximum ----------------------------------------------------------------------------------------------------------------------------- */

#define MAX_FORWARD(suffix, real)                                                                                                          \
    /* Channels [c, c + n) of one result. */                                                                                               \
    static void max_pixel_##suffix(const pool_job *job, int64_t image, window rows, window columns, int64_t to, int64_t at_y, int64_t c,   \
                                   int64_t n) {                                                                                            \
        gt_dtype dtype = job->in->meta.dtype;                                                                                              \
        real best[GT__CHUNK], buffer[GT__CHUNK];                                                                                           \
        int32_t place[GT__CHUNK];                                                                                                          \
        for (int64_t h = rows.first; h < rows.last; h++) {                                                                                 \
            for (int64_t w = columns.first; w < columns.last; w++) {                                                                       \
                int64_t at = ((image * job->x[0] + h) * job->x[1] + w) * job->channels + c;                                                \
                const real *x = gt__cpu_view_##suffix(gt__cpu_at(gt__data(job->in), dtype, at), dtype, 1, n, buffer);                      \
                int32_t here = (int32_t)((h - rows.origin) * job->kernel[1] + (w - columns.origin));                                       \
                if (h == rows.first && w == columns.first) {                                                                               \
                    memcpy(best, x, (size_t)n * sizeof *best);                                                                             \
                    for (int64_t i = 0; i < n; i++) place[i] = here;                                                                       \
                } else {                                                                                                                   \
                    keep_max_##suffix(n, best, place, x, here);                                                                            \
                }                                                                                                                          \
            }                                                                                                                              \
        }                                                                                                                                  \
        int64_t step = job->out->meta.strides[1];                                                                                          \
        gt__cpu_store_##suffix(gt__cpu_at_mut(gt__data(job->out), dtype, at_y + c * step), dtype, step, best, n);                          \
        if (!job->index_out) return;                                                                                                       \
        if (job->index_out->meta.dtype == GT_DTYPE_U8) {                                                                                   \
            uint8_t *index = (uint8_t *)gt__data(job->index_out) + to + c;                                                                 \
            for (int64_t i = 0; i < n; i++) index[i] = (uint8_t)place[i];                                                                  \
        } else {                                                                                                                           \
            memcpy((int32_t *)gt__data(job->index_out) + to + c, place, (size_t)n * sizeof *place);                                        \
        }                                                                                                                                  \
    }

MAX_FORWARD(f32, float)
MAX_FORWARD(f64, double)

/* Where pixel (h, w) of an image begins. */
static int64_t pixel_of(const gt_tensor *x, int64_t image, int64_t h, int64_t w) {
    return image * x->meta.strides[0] + h * x->meta.strides[2] + w * x->meta.strides[3];
}

/* Rows of results. */
static void max_forward_range(void *argument, int64_t begin, int64_t end) {
    const pool_job *job = argument;
    bool wide = job->in->meta.dtype == GT_DTYPE_F64;
    for (int64_t row = begin; row < end; row++) {
        int64_t image = row / job->y[0], oh = row % job->y[0];
        window rows = window_of(job, 0, oh);
        for (int64_t ow = 0; ow < job->y[1]; ow++) {
            window columns = window_of(job, 1, ow);
            int64_t to = (row * job->y[1] + ow) * job->channels, at_y = pixel_of(job->out, image, oh, ow);
            for (int64_t c = 0; c < job->channels; c += GT__CHUNK) {
                int64_t n = GT__MIN(job->channels - c, GT__CHUNK);
                if (wide)
                    max_pixel_f64(job, image, rows, columns, to, at_y, c, n);
                else
                    max_pixel_f32(job, image, rows, columns, to, at_y, c, n);
            }
        }
    }
}

GT__CPU_KERNEL(max_pool2d) {
    if (call->out[0]->meta.numel == 0) return GT_OK;
    pool_job job = pool_job_for(call, call->in[0]->meta.shape, call->out[0]->meta.shape, false);
    job.index_out = call->n_out > 1 ? call->out[1] : NULL;
    int64_t cost = job.y[1] * job.channels * job.kernel[0] * job.kernel[1];
    gt__cpu_for(device, job.images * job.y[0], gt__cpu_grain(cost), max_forward_range, &job);
    return GT_OK;
}

#define MAX_BACKWARD(suffix, real)                                                                                                         \
    static void max_gradient_##suffix(const pool_job *job, int64_t image, int64_t h, int64_t w, int64_t c, int64_t n) {                    \
        gt_dtype dtype = job->in->meta.dtype;                                                                                              \
        real sum[GT__CHUNK], buffer[GT__CHUNK];                                                                                            \
        memset(sum, 0, (size_t)n * sizeof *sum);                                                                                           \
        window rows = windows_over(job, 0, h), columns = windows_over(job, 1, w);                                                          \
        for (int64_t oh = rows.first; oh < rows.last; oh++) {                                                                              \
            for (int64_t ow = columns.first; ow < columns.last; ow++) {                                                                    \
                int64_t at = ((image * job->y[0] + oh) * job->y[1] + ow) * job->channels + c;                                              \
                int64_t here = (h - window_of(job, 0, oh).origin) * job->kernel[1] + (w - window_of(job, 1, ow).origin);                   \
                int64_t step = job->in->meta.strides[1], from = pixel_of(job->in, image, oh, ow) + c * step;                               \
                const real *dy = gt__cpu_view_##suffix(gt__cpu_at(gt__data(job->in), dtype, from), dtype, step, n, buffer);                \
                if (job->index_in->meta.dtype == GT_DTYPE_U8)                                                                              \
                    add_where_u8_##suffix(n, sum, dy, (const uint8_t *)gt__data(job->index_in) + at, (uint8_t)here);                       \
                else                                                                                                                       \
                    add_where_i32_##suffix(n, sum, dy, (const int32_t *)gt__data(job->index_in) + at, (int32_t)here);                      \
            }                                                                                                                              \
        }                                                                                                                                  \
        int64_t to = ((image * job->x[0] + h) * job->x[1] + w) * job->channels + c;                                                        \
        gt__cpu_store_##suffix(gt__cpu_at_mut(gt__data(job->out), job->out->meta.dtype, to), job->out->meta.dtype, 1, sum, n);             \
    }

MAX_BACKWARD(f32, float)
MAX_BACKWARD(f64, double)

/* Rows of inputs. */
static void max_backward_range(void *argument, int64_t begin, int64_t end) {
    const pool_job *job = argument;
    bool wide = job->in->meta.dtype == GT_DTYPE_F64;
    for (int64_t row = begin; row < end; row++) {
        for (int64_t w = 0; w < job->x[1]; w++) {
            for (int64_t c = 0; c < job->channels; c += GT__CHUNK) {
                int64_t n = GT__MIN(job->channels - c, GT__CHUNK);
                if (wide)
                    max_gradient_f64(job, row / job->x[0], row % job->x[0], w, c, n);
                else
                    max_gradient_f32(job, row / job->x[0], row % job->x[0], w, c, n);
            }
        }
    }
}

GT__CPU_KERNEL(max_pool2d_backward) {
    if (call->out[0]->meta.numel == 0) return GT_OK;
    pool_job job = pool_job_for(call, call->out[0]->meta.shape, call->in[0]->meta.shape, false);
    job.index_in = call->in[1];
    gt__cpu_for(device, job.images * job.x[0], gt__cpu_grain(job.x[1] * job.channels * 4), max_backward_range, &job);
    return GT_OK;
}

/* As the ops that it stands for, one after the other: the masked gradient stands channels-last in scratch memory, and so does a result that is not. */
GT__CPU_KERNEL(max_pool2d_relu_backward) {
    gt_tensor *dy = call->in[0], *y = call->in[2], *dx = call->out[0], *db = call->n_out > 1 ? call->out[1] : NULL;
    gt_tensor dz = *dy, result = *y;
    size_t bytes = (size_t)dy->meta.numel * gt_dtype_size(dy->meta.dtype), at = (bytes + 63) / 64 * 64;
    void *data = NULL, *handle = NULL;
    if (bytes) GT_TRY(gt__scratch_alloc(device->ctx, 2 * at, &data, &handle));
    gt__meta_set_channels_last(&dz.meta);
    gt__meta_set_channels_last(&result.meta);
    dz.data = data;
    if (!gt__meta_is_channels_last(&dy->meta)) {
        gt__cpu_copy_tensor(device, dz.data, &dz.meta, gt__data(dy), &dy->meta);
        dy = &dz;
    }
    if (!gt__meta_is_channels_last(&y->meta)) {
        result.data = (char *)data + at;
        gt__cpu_copy_tensor(device, result.data, &result.meta, gt__data(y), &y->meta);
        y = &result;
    }
    gt_tensor *masked[2] = {dy, y}, *pooled[2] = {&dz, call->in[1]};
    gt__call relu = {.ctx = call->ctx, .in = masked, .n_in = 2, .n_out = 2, .out = {&dz, db}, .op = GT__OP_BIAS_RELU_BACKWARD};
    gt__call pool = {
        .ctx = call->ctx, .in = pooled, .n_in = 2, .n_out = 1, .out = {dx}, .attr = call->attr, .op = GT__OP_MAX_POOL2D_BACKWARD};
    gt_status status = gt__cpu_bias_relu_backward(device, &relu);
    if (status == GT_OK) status = gt__cpu_max_pool2d_backward(device, &pool);
    gt__scratch_free(device->ctx, handle);
    return status;
}

/* --- average ------------------------------------------------------------------------------------------------------------------------------ */

static void add_pixel(const gt_tensor *from, int64_t at, int64_t n, double *sum, double scale) {
    gt_dtype dtype = from->meta.dtype;
    const void *x = gt__cpu_at(gt__data(from), dtype, at);
    if (dtype == GT_DTYPE_F64) {
        add_scaled_f64(n, sum, x, scale);
    } else {
        float buffer[GT__CHUNK];
        add_scaled_f32(n, sum, gt__cpu_view_f32(x, dtype, 1, n, buffer), scale);
    }
}

/* Up to this many terms are added in f32. */
#define FEW 64

typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));

/* Sums over pixels of a window, each pixel's n channels together: *y = the sum, times share. */
GT__CPU_CLONES static void average_f32(int64_t n, float *restrict y, const float *restrict x, int64_t rows, int64_t columns,
                                       int64_t row_stride, int64_t column_stride, float share) {
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        lanes a = {0}, b = {0}, c = {0}, d = {0};
        for (int64_t h = 0; h < rows; h++) {
            for (int64_t w = 0; w < columns; w++) {
                const lanes *from = (const lanes *)(x + h * row_stride + w * column_stride + i);
                a += from[0];
                b += from[1];
                c += from[2];
                d += from[3];
            }
        }
        lanes *to = (lanes *)(y + i);
        to[0] = a * share;
        to[1] = b * share;
        to[2] = c * share;
        to[3] = d * share;
    }
    for (; i + 16 <= n; i += 16) {
        lanes a = {0};
        for (int64_t h = 0; h < rows; h++)
            for (int64_t w = 0; w < columns; w++) a += *(const lanes *)(x + h * row_stride + w * column_stride + i);
        *(lanes *)(y + i) = a * share;
    }
    for (; i < n; i++) {
        float a = 0;
        for (int64_t h = 0; h < rows; h++)
            for (int64_t w = 0; w < columns; w++) a += x[h * row_stride + w * column_stride + i];
        y[i] = a * share;
    }
}

/* The same, each pixel times its row's and its column's share. */
GT__CPU_CLONES static void gather_f32(int64_t n, float *restrict y, const float *restrict x, int64_t rows, int64_t columns,
                                      int64_t row_stride, int64_t column_stride, const float *row_share, const float *column_share) {
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        lanes a = {0}, b = {0}, c = {0}, d = {0};
        for (int64_t h = 0; h < rows; h++) {
            for (int64_t w = 0; w < columns; w++) {
                const lanes *from = (const lanes *)(x + h * row_stride + w * column_stride + i);
                float share = row_share[h] * column_share[w];
                a += from[0] * share;
                b += from[1] * share;
                c += from[2] * share;
                d += from[3] * share;
            }
        }
        lanes *to = (lanes *)(y + i);
        to[0] = a;
        to[1] = b;
        to[2] = c;
        to[3] = d;
    }
    for (; i + 16 <= n; i += 16) {
        lanes a = {0};
        for (int64_t h = 0; h < rows; h++)
            for (int64_t w = 0; w < columns; w++)
                a += *(const lanes *)(x + h * row_stride + w * column_stride + i) * (row_share[h] * column_share[w]);
        *(lanes *)(y + i) = a;
    }
    for (; i < n; i++) {
        float a = 0;
        for (int64_t h = 0; h < rows; h++)
            for (int64_t w = 0; w < columns; w++) a += x[h * row_stride + w * column_stride + i] * (row_share[h] * column_share[w]);
        y[i] = a;
    }
}

static bool few_f32(const pool_job *job, window rows, window columns) {
    return job->in->meta.dtype == GT_DTYPE_F32 && job->out->meta.dtype == GT_DTYPE_F32 &&
           (rows.last - rows.first) * (columns.last - columns.first) <= FEW;
}

static void average_forward_range(void *argument, int64_t begin, int64_t end) {
    const pool_job *job = argument;
    double sum[GT__CHUNK];
    for (int64_t row = begin; row < end; row++) {
        int64_t image = row / job->y[0];
        window rows = window_of(job, 0, row % job->y[0]);
        for (int64_t ow = 0; ow < job->y[1]; ow++) {
            window columns = window_of(job, 1, ow);
            double share = window_share(job, rows, columns);
            if (few_f32(job, rows, columns)) {
                int64_t from = ((image * job->x[0] + rows.first) * job->x[1] + columns.first) * job->channels;
                average_f32(job->channels, (float *)gt__data(job->out) + (row * job->y[1] + ow) * job->channels,
                            (const float *)gt__data(job->in) + from, rows.last - rows.first, columns.last - columns.first,
                            job->x[1] * job->channels, job->channels, (float)share);
                continue;
            }
            for (int64_t c = 0; c < job->channels; c += GT__CHUNK) {
                int64_t n = GT__MIN(job->channels - c, GT__CHUNK);
                memset(sum, 0, (size_t)n * sizeof *sum);
                for (int64_t h = rows.first; h < rows.last; h++)
                    for (int64_t w = columns.first; w < columns.last; w++)
                        add_pixel(job->in, ((image * job->x[0] + h) * job->x[1] + w) * job->channels + c, n, sum, 1.0);
                for (int64_t i = 0; i < n; i++) sum[i] *= share;
                int64_t to = (row * job->y[1] + ow) * job->channels + c;
                gt__cpu_store_f64(gt__cpu_at_mut(gt__data(job->out), job->out->meta.dtype, to), job->out->meta.dtype, 1, sum, n);
            }
        }
    }
}

static gt_status average_forward(gt__device *device, const gt__call *call, bool adaptive) {
    if (call->out[0]->meta.numel == 0) return GT_OK;
    pool_job job = pool_job_for(call, call->in[0]->meta.shape, call->out[0]->meta.shape, adaptive);
    int64_t row_cost = job.x[1] * job.channels * (adaptive ? job.x[0] / job.y[0] + 1 : job.kernel[0]);
    gt__cpu_for(device, job.images * job.y[0], gt__cpu_grain(row_cost * 2), average_forward_range, &job);
    return GT_OK;
}

GT__CPU_KERNEL(avg_pool2d) { return average_forward(device, call, false); }
GT__CPU_KERNEL(adaptive_avg_pool2d) { return average_forward(device, call, true); }

static void average_backward_range(void *argument, int64_t begin, int64_t end) {
    const pool_job *job = argument;
    double sum[GT__CHUNK];
    for (int64_t row = begin; row < end; row++) {
        int64_t image = row / job->x[0];
        window rows = windows_over(job, 0, row % job->x[0]);
        for (int64_t w = 0; w < job->x[1]; w++) {
            window columns = job->over[w];
            if (few_f32(job, rows, columns)) {
                int64_t from = ((image * job->y[0] + rows.first) * job->y[1] + columns.first) * job->channels;
                gather_f32(job->channels, (float *)gt__data(job->out) + (row * job->x[1] + w) * job->channels,
                           (const float *)gt__data(job->in) + from, rows.last - rows.first, columns.last - columns.first,
                           job->y[1] * job->channels, job->channels, job->shares[0] + rows.first, job->shares[1] + columns.first);
                continue;
            }
            for (int64_t c = 0; c < job->channels; c += GT__CHUNK) {
                int64_t n = GT__MIN(job->channels - c, GT__CHUNK);
                memset(sum, 0, (size_t)n * sizeof *sum);
                for (int64_t oh = rows.first; oh < rows.last; oh++)
                    for (int64_t ow = columns.first; ow < columns.last; ow++)
                        add_pixel(job->in, ((image * job->y[0] + oh) * job->y[1] + ow) * job->channels + c, n, sum,
                                  window_share(job, window_of(job, 0, oh), window_of(job, 1, ow)));
                int64_t to = (row * job->x[1] + w) * job->channels + c;
                gt__cpu_store_f64(gt__cpu_at_mut(gt__data(job->out), job->out->meta.dtype, to), job->out->meta.dtype, 1, sum, n);
            }
        }
    }
}

static gt_status average_backward(gt__device *device, const gt__call *call, bool adaptive) {
    if (call->out[0]->meta.numel == 0) return GT_OK;
    pool_job job = pool_job_for(call, call->out[0]->meta.shape, call->in[0]->meta.shape, adaptive);
    window *over = gt__calloc((size_t)job.x[1], sizeof *over);
    float *shares = gt__calloc((size_t)(job.y[0] + job.y[1]) + 1, sizeof *shares);
    gt_status status = over && shares ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    if (status == GT_OK) {
        for (int64_t w = 0; w < job.x[1]; w++) over[w] = windows_over(&job, 1, w);
        job.over = over;
        job.shares[0] = shares;
        job.shares[1] = shares + job.y[0];
        for (int axis = 0; axis < 2; axis++) {
            float *to = shares + axis * job.y[0];
            for (int64_t o = 0; o < job.y[axis]; o++) to[o] = 1.0f / (float)window_length(&job, axis, window_of(&job, axis, o));
        }
        gt__cpu_for(device, job.images * job.x[0], gt__cpu_grain(job.x[1] * job.channels * 4), average_backward_range, &job);
    }
    gt__free(over);
    gt__free(shares);
    return status;
}

GT__CPU_KERNEL(avg_pool2d_backward) { return average_backward(device, call, false); }
GT__CPU_KERNEL(adaptive_avg_pool2d_backward) { return average_backward(device, call, true); }

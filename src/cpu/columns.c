/* Sums down columns, and the same scaling of every row; see columns.h.
 *
 * A block of at most BLOCK rows is summed in f32 about the mean k of its first SAMPLE rows. The sampled rows alone spread about the block's mean m by at least
 * SAMPLE (k - m)^2, so the sum of squares about k is at most 1 + BLOCK / SAMPLE times that about m, whatever the values: taking the difference costs no more
 * than 3 bits. Blocks are joined in f64, in order. */
#include "cpu/columns.h"

#include "cpu/target.h"

#include <float.h>
#include <math.h>

#define BLOCK  128
#define SAMPLE 16

typedef struct columns_job {
    const float *x, *dy, *dy2, *residual;
    float *y; /* or dx */
    void (*scale_rows)(const struct columns_job *job, int64_t at, int64_t c, int64_t n, int64_t rows);
    int64_t rows, width;
    int64_t blocks_each, pitch; /* blocks a part; sums of one part to those of the next */
    const double *mean;
    double *sums, *sums2;           /* a row of `pitch` a part */
    const float *k, *a, *b, *slope; /* the scaling's coefficients */
} columns_job;

static bool is_f32(const gt_tensor *t) { return !t || t->meta.dtype == GT_DTYPE_F32; }

/* --- one block ----------------------------------------------------------------------------------------------------------------------------- */

GT__CPU_CLONES static void sample_mean(int64_t n, int64_t rows, int64_t width, const float *restrict x, float *restrict k) {
    float share = 1.0f / (float)rows; /* exact: a power of 2 */
    for (int64_t i = 0; i < n; i++) k[i] = x[i] * share;
    for (int64_t row = 1; row < rows; row++)
        for (int64_t i = 0; i < n; i++) k[i] += x[row * width + i] * share;
}

GT__CPU_CLONES static void block_squares(int64_t n, int64_t rows, int64_t width, const float *restrict x, const float *restrict k,
                                         float *restrict sum, float *restrict squares) {
    for (int64_t i = 0; i < n; i++) sum[i] = squares[i] = 0;
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) {
        const float *x0 = x + row * width, *x1 = x0 + width, *x2 = x1 + width, *x3 = x2 + width;
        for (int64_t i = 0; i < n; i++) {
            float d0 = x0[i] - k[i], d1 = x1[i] - k[i], d2 = x2[i] - k[i], d3 = x3[i] - k[i];
            sum[i] += (d0 + d1) + (d2 + d3);
            squares[i] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
        }
    }
    for (; row < rows; row++) {
        for (int64_t i = 0; i < n; i++) {
            float d = x[row * width + i] - k[i];
            sum[i] += d;
            squares[i] += d * d;
        }
    }
}

GT__CPU_CLONES static void block_products(int64_t n, int64_t rows, int64_t width, const float *restrict dy, const float *restrict x,
                                          const float *restrict k, float *restrict sum, float *restrict products) {
    for (int64_t i = 0; i < n; i++) sum[i] = products[i] = 0;
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) {
        const float *x0 = x + row * width, *x1 = x0 + width, *x2 = x1 + width, *x3 = x2 + width;
        const float *g0 = dy + row * width, *g1 = g0 + width, *g2 = g1 + width, *g3 = g2 + width;
        for (int64_t i = 0; i < n; i++) {
            sum[i] += (g0[i] + g1[i]) + (g2[i] + g3[i]);
            products[i] += (g0[i] * (x0[i] - k[i]) + g1[i] * (x1[i] - k[i])) + (g2[i] * (x2[i] - k[i]) + g3[i] * (x3[i] - k[i]));
        }
    }
    for (; row < rows; row++) {
        for (int64_t i = 0; i < n; i++) {
            sum[i] += dy[row * width + i];
            products[i] += dy[row * width + i] * (x[row * width + i] - k[i]);
        }
    }
}

/* --- blocks together ------------------------------------------------------------------------------------------------------------------------- */

/* (mean, squares) of `before` rows, joined by those of `count` more. */
GT__CPU_CLONES static void join_moments(int64_t n, double before, double count, double *restrict mean, double *restrict squares,
                                        const double *restrict mean2, const double *restrict squares2) {
    double share = count / (before + count), weight = before * share;
    for (int64_t i = 0; i < n; i++) {
        double apart = mean2[i] - mean[i];
        mean[i] += apart * share;
        squares[i] += squares2[i] + apart * apart * weight;
    }
}

GT__CPU_CLONES static void block_moments(int64_t n, double count, const float *restrict k, const float *restrict sum,
                                         const float *restrict about_k, double *restrict mean, double *restrict squares) {
    double share = 1.0 / count;
    for (int64_t i = 0; i < n; i++) {
        double off = (double)sum[i] * share, rest = (double)about_k[i] - off * (double)sum[i];
        mean[i] = (double)k[i] + off;
        squares[i] = rest < 0 ? 0 : rest; /* NaN stays */
    }
}

/* Of dy (x - mean), where the block has dy (x - k). */
GT__CPU_CLONES static void add_products(int64_t n, double *restrict sums, double *restrict products, const float *restrict sum,
                                        const float *restrict about_k, const float *restrict k, const double *restrict mean) {
    for (int64_t i = 0; i < n; i++) {
        sums[i] += (double)sum[i];
        products[i] += (double)about_k[i] - (mean[i] - (double)k[i]) * (double)sum[i];
    }
}

static void moments_range(void *argument, int64_t begin, int64_t end) {
    const columns_job *job = argument;
    float k[GT__CHUNK], sum[GT__CHUNK], about_k[GT__CHUNK];
    double mean[GT__CHUNK], squares[GT__CHUNK];
    for (int64_t part = begin; part < end; part++) {
        int64_t first = part * job->blocks_each * BLOCK, last = GT__MIN(first + job->blocks_each * BLOCK, job->rows);
        double *means = job->sums + part * job->pitch, *all = job->sums2 + part * job->pitch;
        for (int64_t row = first; row < last; row += BLOCK) {
            int64_t rows = GT__MIN(last - row, BLOCK);
            for (int64_t c = 0; c < job->width; c += GT__CHUNK) {
                int64_t n = GT__MIN(job->width - c, GT__CHUNK);
                const float *x = job->x + row * job->width + c;
                sample_mean(n, rows >= SAMPLE ? SAMPLE : 1, job->width, x, k);
                block_squares(n, rows, job->width, x, k, sum, about_k);
                block_moments(n, (double)rows, k, sum, about_k, mean, squares);
                join_moments(n, (double)(row - first), (double)rows, means + c, all + c, mean, squares);
            }
        }
    }
}

static void products_range(void *argument, int64_t begin, int64_t end) {
    const columns_job *job = argument;
    float k[GT__CHUNK], sum[GT__CHUNK], products[GT__CHUNK];
    for (int64_t part = begin; part < end; part++) {
        int64_t first = part * job->blocks_each * BLOCK, last = GT__MIN(first + job->blocks_each * BLOCK, job->rows);
        for (int64_t c = 0; c < job->width; c += GT__CHUNK) {
            int64_t n = GT__MIN(job->width - c, GT__CHUNK);
            for (int64_t i = 0; i < n; i++) k[i] = (float)job->mean[c + i];
            for (int64_t row = first; row < last; row += BLOCK) {
                int64_t at = row * job->width + c;
                block_products(n, GT__MIN(last - row, BLOCK), job->width, job->dy + at, job->x + at, k, sum, products);
                add_products(n, job->sums + part * job->pitch + c, job->sums2 + part * job->pitch + c, sum, products, k, job->mean + c);
            }
        }
    }
}

/* Runs `range` over parts of the blocks. job->sums and sums2 get a row of zeros a part, a cache line apart; the caller frees job->sums. Returns the number of
 * parts, or 0 without memory. */
static int64_t run_parts(gt__device *device, columns_job *job, gt__range_fn range) {
    int64_t blocks = (job->rows + BLOCK - 1) / BLOCK;
    int64_t parts = job->rows * job->width < 65536 ? 1 : GT__MIN(blocks, gt__cpu(device)->threads);
    job->blocks_each = (blocks + parts - 1) / parts;
    parts = (blocks + job->blocks_each - 1) / job->blocks_each;
    job->pitch = (job->width + 15) / 8 * 8;
    job->sums = gt__calloc((size_t)(2 * parts * job->pitch), sizeof *job->sums);
    if (!job->sums) return 0;
    job->sums2 = job->sums + parts * job->pitch;
    gt__cpu_for(device, parts, 1, range, job);
    return parts;
}

bool gt__cpu_columns_moments(gt__device *device, const gt_tensor *x, int64_t rows, int64_t width, double epsilon, double *mean,
                             double *squares) {
    if (!is_f32(x)) return false;
    columns_job job = {.x = gt__data(x), .rows = rows, .width = width};
    int64_t parts = run_parts(device, &job, moments_range);
    if (parts == 0) return false;
    int64_t before = GT__MIN(job.blocks_each * BLOCK, rows);
    for (int64_t part = 1; part < parts; part++) {
        int64_t count = GT__MIN(job.blocks_each * BLOCK, rows - before);
        join_moments(width, (double)before, (double)count, job.sums, job.sums2, job.sums + part * job.pitch, job.sums2 + part * job.pitch);
        before += count;
    }
    bool good = true;
    for (int64_t c = 0; c < width; c++) {
        mean[c] = job.sums[c];
        squares[c] = job.sums2[c];
        /* Squares may have overflowed; or vanished, where epsilon does not hide it. */
        if (!isfinite(squares[c]) || squares[c] / (double)rows + epsilon < 1e-20) good = false;
    }
    gt__free(job.sums);
    return good;
}

bool gt__cpu_columns_products(gt__device *device, const gt_tensor *dy, const gt_tensor *x, int64_t rows, int64_t width, const double *mean,
                              double *sums, double *products) {
    if (!is_f32(x) || !is_f32(dy)) return false;
    columns_job job = {.x = gt__data(x), .dy = gt__data(dy), .rows = rows, .width = width, .mean = mean};
    int64_t parts = run_parts(device, &job, products_range);
    if (parts == 0) return false;
    bool good = true;
    for (int64_t c = 0; c < width; c++) {
        sums[c] = products[c] = 0;
        for (int64_t part = 0; part < parts; part++) {
            sums[c] += job.sums[part * job.pitch + c];
            products[c] += job.sums2[part * job.pitch + c];
        }
        if (!isfinite(sums[c]) || !isfinite(products[c])) good = false;
    }
    gt__free(job.sums);
    return good;
}

/* --- the same scaling of every row ------------------------------------------------------------------------------------------------------------- */

GT__CPU_CLONES static void scale_rows(int64_t n, int64_t rows, int64_t width, float *restrict y, const float *restrict x,
                                      const float *restrict k, const float *restrict a, const float *restrict b) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < n; i++) y[row * width + i] = (x[row * width + i] - k[i]) * a[i] + b[i];
}

GT__CPU_CLONES static void gradient_rows(int64_t n, int64_t rows, int64_t width, float *restrict dx, const float *restrict dy,
                                         const float *restrict x, const float *restrict k, const float *restrict a, const float *restrict b,
                                         const float *restrict slope) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < n; i++) dx[row * width + i] = dy[row * width + i] * a[i] + (b[i] - (x[row * width + i] - k[i]) * slope[i]);
}

GT__CPU_CLONES static void scale_rows_relu(int64_t n, int64_t rows, int64_t width, float *restrict y, const float *restrict x,
                                           const float *restrict k, const float *restrict a, const float *restrict b) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < n; i++) {
            float value = (x[row * width + i] - k[i]) * a[i] + b[i];
            y[row * width + i] = value <= 0 ? 0 : value; /* NaN stays */
        }
    }
}

GT__CPU_CLONES static void scale_rows_add_relu(int64_t n, int64_t rows, int64_t width, float *restrict y, const float *restrict x,
                                               const float *restrict residual, const float *restrict k, const float *restrict a,
                                               const float *restrict b) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < n; i++) {
            float value = ((x[row * width + i] - k[i]) * a[i] + b[i]) + residual[row * width + i];
            y[row * width + i] = value <= 0 ? 0 : value;
        }
    }
}

GT__CPU_CLONES static void mask_rows(int64_t n, int64_t rows, int64_t width, float *restrict dz, const float *restrict dy,
                                     const float *restrict x, const float *restrict k, const float *restrict a, const float *restrict b) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < n; i++) {
            float value = (x[row * width + i] - k[i]) * a[i] + b[i];
            dz[row * width + i] = value > 0 ? dy[row * width + i] : (value != value ? value : 0);
        }
    }
}

GT__CPU_CLONES static void mask_rows_of_two(int64_t n, int64_t rows, int64_t width, float *restrict dz, const float *restrict dy,
                                            const float *restrict dy2, const float *restrict x, const float *restrict k,
                                            const float *restrict a, const float *restrict b) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < n; i++) {
            float value = (x[row * width + i] - k[i]) * a[i] + b[i];
            dz[row * width + i] = value > 0 ? dy[row * width + i] + dy2[row * width + i] : (value != value ? value : 0);
        }
    }
}

/* dy's memory becomes dx. */
GT__CPU_CLONES static void gradient_rows_in_place(int64_t n, int64_t rows, int64_t width, float *restrict dx, const float *restrict x,
                                                  const float *restrict k, const float *restrict a, const float *restrict b,
                                                  const float *restrict slope) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < n; i++) dx[row * width + i] = dx[row * width + i] * a[i] + (b[i] - (x[row * width + i] - k[i]) * slope[i]);
}

static void scale_block(const columns_job *job, int64_t at, int64_t c, int64_t n, int64_t rows) {
    scale_rows(n, rows, job->width, job->y + at, job->x + at, job->k + c, job->a + c, job->b + c);
}

static void scale_relu_block(const columns_job *job, int64_t at, int64_t c, int64_t n, int64_t rows) {
    scale_rows_relu(n, rows, job->width, job->y + at, job->x + at, job->k + c, job->a + c, job->b + c);
}

static void scale_add_relu_block(const columns_job *job, int64_t at, int64_t c, int64_t n, int64_t rows) {
    scale_rows_add_relu(n, rows, job->width, job->y + at, job->x + at, job->residual + at, job->k + c, job->a + c, job->b + c);
}

static void mask_block(const columns_job *job, int64_t at, int64_t c, int64_t n, int64_t rows) {
    if (job->dy2)
        mask_rows_of_two(n, rows, job->width, job->y + at, job->dy + at, job->dy2 + at, job->x + at, job->k + c, job->a + c, job->b + c);
    else
        mask_rows(n, rows, job->width, job->y + at, job->dy + at, job->x + at, job->k + c, job->a + c, job->b + c);
}

static void gradient_block(const columns_job *job, int64_t at, int64_t c, int64_t n, int64_t rows) {
    if (job->dy == job->y)
        gradient_rows_in_place(n, rows, job->width, job->y + at, job->x + at, job->k + c, job->a + c, job->b + c, job->slope + c);
    else
        gradient_rows(n, rows, job->width, job->y + at, job->dy + at, job->x + at, job->k + c, job->a + c, job->b + c, job->slope + c);
}

static void scale_range(void *argument, int64_t begin, int64_t end) {
    const columns_job *job = argument;
    for (int64_t c = 0; c < job->width; c += GT__CHUNK)
        job->scale_rows(job, begin * job->width + c, c, GT__MIN(job->width - c, GT__CHUNK), end - begin);
}

/* As f32, unless that loses it. */
static bool narrow(double value, float *to) {
    *to = (float)value;
    return value == 0 || (fabs(value) >= (double)FLT_MIN && fabs(value) <= (double)FLT_MAX);
}

/* value = whole + rest, with `whole` an f32. */
static bool split(double value, float *whole, double *rest) {
    bool good = narrow(value, whole) || fabs(value) < (double)FLT_MIN;
    *rest = value - (double)*whole;
    return good;
}

/* (x - k) a + b is (x - mean) scale + shift. */
static bool coefficients(int64_t width, const double *mean, const double *scale, const double *shift, float *k, float *a, float *b) {
    bool good = true;
    for (int64_t c = 0; c < width; c++) {
        double rest;
        good = split(mean[c], k + c, &rest) && narrow(scale[c], a + c) && good;
        double moved = shift[c] - rest * scale[c];
        good = fabs(moved) <= (double)FLT_MAX && good;
        b[c] = (float)moved;
    }
    return good;
}

bool gt__cpu_columns_scale(gt__device *device, const gt_tensor *x, const gt_tensor *residual, gt_tensor *y, int64_t rows, int64_t width,
                           const double *mean, const double *scale, const double *shift, bool relu) {
    if (!is_f32(x) || !is_f32(y) || !is_f32(residual) || (residual && !relu)) return false;
    float *k = gt__calloc((size_t)width, 3 * sizeof *k), *a = k + width, *b = a + width;
    if (!k) return false;
    bool good = coefficients(width, mean, scale, shift, k, a, b);
    columns_job job = {.x = gt__data(x), .y = gt__data(y), .width = width, .k = k, .a = a, .b = b};
    if (residual) job.residual = gt__data(residual);
    job.scale_rows = residual ? scale_add_relu_block : relu ? scale_relu_block : scale_block;
    if (good) gt__cpu_for(device, rows, gt__cpu_grain(width * 2), scale_range, &job);
    gt__free(k);
    return good;
}

bool gt__cpu_columns_mask(gt__device *device, const gt_tensor *dy, const gt_tensor *dy2, const gt_tensor *x, gt_tensor *dz, int64_t rows,
                          int64_t width, const double *mean, const double *scale, const double *shift) {
    if (!is_f32(x) || !is_f32(dy) || !is_f32(dy2) || !is_f32(dz)) return false;
    float *k = gt__calloc((size_t)width, 3 * sizeof *k), *a = k + width, *b = a + width;
    if (!k) return false;
    bool good = coefficients(width, mean, scale, shift, k, a, b);
    columns_job job = {.x = gt__data(x), .dy = gt__data(dy), .y = gt__data(dz), .width = width, .k = k, .a = a, .b = b};
    if (dy2) job.dy2 = gt__data(dy2);
    job.scale_rows = mask_block;
    if (good) gt__cpu_for(device, rows, gt__cpu_grain(width * 3), scale_range, &job);
    gt__free(k);
    return good;
}

bool gt__cpu_columns_gradient(gt__device *device, const gt_tensor *dy, const gt_tensor *x, gt_tensor *dx, int64_t rows, int64_t width,
                              const double *mean, const double *scale, const double *shift, const double *dot) {
    if (!is_f32(x) || !is_f32(dy) || !is_f32(dx)) return false;
    float *k = gt__calloc((size_t)width, 4 * sizeof *k), *a = k + width, *b = a + width, *slope = b + width;
    if (!k) return false;
    bool good = true;
    for (int64_t c = 0; c < width; c++) {
        double rest, lean = scale[c] * dot[c];
        good = split(mean[c], k + c, &rest) && narrow(scale[c], a + c) && good;
        good = narrow(lean, slope + c) && good;
        double moved = rest * lean - scale[c] * shift[c];
        good = fabs(moved) <= (double)FLT_MAX && good;
        b[c] = (float)moved;
    }
    columns_job job = {.x = gt__data(x), .dy = gt__data(dy), .y = gt__data(dx), .width = width, .k = k, .a = a, .b = b, .slope = slope};
    job.scale_rows = gradient_block;
    if (good) gt__cpu_for(device, rows, gt__cpu_grain(width * 3), scale_range, &job);
    gt__free(k);
    return good;
}

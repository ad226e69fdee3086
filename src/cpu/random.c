/* uniform, normal, arange and dropout: element i, in logical row-major order, depends on i alone, whatever the strides and threads. */
#include "core/philox.h"
#include "cpu/copy.h"
#include "cpu/chain.h"
#include "cpu/kernels.h"

#include <math.h>

/* Values are made four at a time (a Philox block) and put where logical elements 4 b .. 4 b + 3 lie. */
typedef struct random_job {
    gt__attrs attr;
    const gt__meta *to_meta, *from_meta;
    char *to;
    const char *from; /* dropout's x */
    bool linear;      /* to (and from) are row-major */
    void (*values)(const gt__attrs *attr, gt_dtype dtype, uint64_t block, double *out);
} random_job;

/* The call's attributes with the seed and the offset that count. */
static gt__attrs placed(const gt__call *call) {
    gt__attrs attr = call->attr;
    const uint64_t *cells = attr.random.cells;
    if (cells) {
        attr.random.seed = cells[0];
        attr.random.offset += cells[1];
    }
    return attr;
}

static int64_t logical_offset(const gt__meta *meta, int64_t index) {
    int64_t offset = 0;
    for (int32_t axis = meta->ndim - 1; axis >= 0; axis--) {
        offset += index % meta->shape[axis] * meta->strides[axis];
        index /= meta->shape[axis];
    }
    return offset;
}

/* u in [0, 1) to [a, b): rounding must not reach b. */
static double between(const gt__attrs *attr, gt_dtype dtype, uint32_t word) {
    double a = attr->random.a, b = attr->random.b;
    if (dtype == GT_DTYPE_F64) {
        double value = a + (b - a) * gt__philox_uniform_f64(word);
        return value >= b && a < b ? nextafter(b, a) : value;
    }
    float low = (float)a, high = (float)b;
    float value = low + (high - low) * gt__philox_uniform_f32(word);
    return (double)(value >= high && low < high ? nextafterf(high, low) : value);
}

static void uniform_values(const gt__attrs *attr, gt_dtype dtype, uint64_t block, double *out) {
    gt__philox_block words = gt__philox(attr->random.seed, attr->random.offset + block);
    for (int k = 0; k < 4; k++) out[k] = between(attr, dtype, words.word[k]);
}

/* Box & Muller 1958, on words (0, 1) and (2, 3). */
static void normal_values(const gt__attrs *attr, gt_dtype dtype, uint64_t block, double *out) {
    gt__philox_block words = gt__philox(attr->random.seed, attr->random.offset + block);
    for (int k = 0; k < 4; k += 2) {
        if (dtype == GT_DTYPE_F64) {
            double radius = sqrt(-2.0 * log(((double)words.word[k] + 1.0) * 0x1p-32));
            double angle = 6.283185307179586477 * ((double)words.word[k + 1] * 0x1p-32);
            out[k] = attr->random.a + attr->random.b * (radius * cos(angle));
            out[k + 1] = attr->random.a + attr->random.b * (radius * sin(angle));
        } else {
            float radius = sqrtf(-2.0f * logf(((float)words.word[k] + 1.0f) * 0x1p-32f));
            float angle = 6.283185307f * ((float)words.word[k + 1] * 0x1p-32f);
            out[k] = (double)((float)attr->random.a + (float)attr->random.b * (radius * cosf(angle)));
            out[k + 1] = (double)((float)attr->random.a + (float)attr->random.b * (radius * sinf(angle)));
        }
    }
}

static void arange_values(const gt__attrs *attr, gt_dtype dtype, uint64_t block, double *out) {
    (void)dtype;
    for (int k = 0; k < 4; k++) out[k] = attr->random.a + attr->random.b * (double)(block * 4 + (uint64_t)k);
}

static void random_range(void *argument, int64_t begin, int64_t end) {
    const random_job *job = argument;
    gt_dtype dtype = job->to_meta->dtype;
    for (int64_t block = begin; block < end; block++) {
        double values[4];
        job->values(&job->attr, dtype, (uint64_t)block, values);
        int64_t first = block * 4, n = GT__MIN(job->to_meta->numel - first, 4);
        if (job->linear) {
            gt__cpu_convert(gt__cpu_at_mut(job->to, dtype, first), dtype, 1, values, GT_DTYPE_F64, 1, n);
        } else {
            for (int64_t k = 0; k < n; k++)
                gt__cpu_convert(gt__cpu_at_mut(job->to, dtype, logical_offset(job->to_meta, first + k)), dtype, 1, &values[k], GT_DTYPE_F64,
                                1, 1);
        }
    }
}

static gt_status make_values(gt__device *device, const gt__call *call, void (*values)(const gt__attrs *, gt_dtype, uint64_t, double *)) {
    gt_tensor *to = call->out[0];
    random_job job = {
        .attr = placed(call), .to_meta = &to->meta, .to = gt__data(to), .linear = gt__meta_is_row_major(&to->meta), .values = values};
    gt__cpu_for(device, (to->meta.numel + 3) / 4, gt__cpu_grain(64), random_range, &job);
    return GT_OK;
}

GT__CPU_KERNEL(uniform) { return make_values(device, call, uniform_values); }
GT__CPU_KERNEL(normal) { return make_values(device, call, normal_values); }
GT__CPU_KERNEL(arange) { return make_values(device, call, arange_values); }

/* --- dropout ------------------------------------------------------------------------------------------------------------------------ */

static void dropout_range(void *argument, int64_t begin, int64_t end) {
    const random_job *job = argument;
    const gt__attrs *attr = &job->attr;
    gt_dtype dtype = job->to_meta->dtype;
    double p = attr->random.a;
    double scale = p < 1.0 ? 1.0 / (1.0 - p) : 0.0;
    for (int64_t block = begin; block < end; block++) {
        gt__philox_block words = gt__philox(attr->random.seed, attr->random.offset + (uint64_t)block);
        int64_t first = block * 4, n = GT__MIN(job->to_meta->numel - first, 4);
        for (int64_t k = 0; k < n; k++) {
            int64_t to = first + k, from = to;
            if (!job->linear) {
                to = logical_offset(job->to_meta, first + k);
                from = logical_offset(job->from_meta, first + k);
            }
            bool keep = (double)gt__philox_uniform_f32(words.word[k]) >= p;
            if (dtype == GT_DTYPE_F32)
                ((float *)(void *)job->to)[to] = keep ? ((const float *)(const void *)job->from)[from] * (float)scale : 0.0f;
            else
                gt__cpu_put_f64(job->to, dtype, to, keep ? gt__cpu_get_f64(job->from, dtype, from) * scale : 0.0);
        }
    }
}

/* As dropout_range does it, on values in the type that they are computed in. */
#define DROPOUT_RUN(suffix, type, kept)                                                                                                    \
    static void dropout_run_##suffix(const gt__attrs *attr, int64_t first, int64_t n, type *y, const type *x) {                            \
        const double p = attr->random.a, scale = p < 1.0 ? 1.0 / (1.0 - p) : 0.0;                                                          \
        gt__philox_block words = {{0}};                                                                                                    \
        for (int64_t k = 0; k < n; k++) {                                                                                                  \
            const int64_t i = first + k;                                                                                                   \
            if (k == 0 || i % 4 == 0) words = gt__philox(attr->random.seed, attr->random.offset + (uint64_t)(i / 4));                      \
            y[k] = (double)gt__philox_uniform_f32(words.word[i % 4]) >= p ? (kept) : 0;                                                    \
        }                                                                                                                                  \
    }
DROPOUT_RUN(f32, float, x[k] * (float)scale)
DROPOUT_RUN(f64, double, x[k] * scale)

/* Halves are multiplied in f64. */
static void dropout_run_half(const gt__attrs *attr, gt_dtype dtype, int64_t first, int64_t n, float *y, const float *x) {
    for (int64_t i = 0; i < n; i += GT__CHUNK) {
        double values[GT__CHUNK];
        uint16_t halves[GT__CHUNK];
        int64_t m = GT__MIN(n - i, GT__CHUNK);
        for (int64_t k = 0; k < m; k++) values[k] = (double)x[i + k];
        dropout_run_f64(attr, first + i, m, values, values);
        gt__cpu_store_f64(halves, dtype, 1, values, m);
        gt__cpu_load_f32(y + i, halves, dtype, 1, m);
    }
}

void gt__cpu_dropout_run(const gt__chain_node *node, int64_t first, int64_t n, void *y, const void *x) {
    gt__attrs attr = {.random = {.a = node->value, .seed = node->seed, .offset = node->offset}};
    if (node->cells) {
        attr.random.seed = node->cells[0];
        attr.random.offset += node->cells[1];
    }
    if (node->dtype == GT_DTYPE_F64)
        dropout_run_f64(&attr, first, n, y, x);
    else if (node->dtype == GT_DTYPE_F32)
        dropout_run_f32(&attr, first, n, y, x);
    else
        dropout_run_half(&attr, node->dtype, first, n, y, x);
}

GT__CPU_KERNEL(dropout) {
    gt_tensor *x = call->in[0], *y = call->out[0];
    random_job job = {.attr = placed(call),
                      .to_meta = &y->meta,
                      .from_meta = &x->meta,
                      .to = gt__data(y),
                      .from = gt__data(x),
                      .linear = gt__meta_is_row_major(&y->meta) && gt__meta_is_row_major(&x->meta)};
    gt__cpu_for(device, (y->meta.numel + 3) / 4, gt__cpu_grain(48), dropout_range, &job);
    return GT_OK;
}

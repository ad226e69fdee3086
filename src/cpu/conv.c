/* Convolution as one matrix product whose operands are read from where they lie: patches are gathered while panels are packed. Images are
 * channels-last, weights [out, kernel height, kernel width, in / groups]. */
#include "cpu/copy.h"
#include "cpu/gemm.h"
#include "cpu/kernels.h"
#include "cpu/map.h"
#include "cpu/onednn.h"

/* What a run of k = (kernel row, kernel column, channel) at grid point i = (image, row, column) is made of. */
typedef struct patches {
    int64_t grid[2];  /* rows and columns that i runs over */
    int64_t size[2];  /* of the images that are read */
    int64_t channels; /* of a pixel in memory */
    int64_t group;    /* of them in one group */
    int64_t taps[2];  /* kernel size */
    int64_t stride[2], padding[2], dilation[2];
    bool transposed; /* grid points are inputs, images that are read are results: for the input's gradient */
} patches;

/* The row (or column) that tap `tap` at grid position `at` reads, or -1 outside the image. */
static inline int64_t tap_position(const patches *p, int axis, int64_t at, int64_t tap) {
    int64_t position;
    if (p->transposed) {
        int64_t scaled = at + p->padding[axis] - tap * p->dilation[axis];
        if (scaled < 0 || scaled % p->stride[axis] != 0) return -1;
        position = scaled / p->stride[axis];
    } else {
        position = at * p->stride[axis] - p->padding[axis] + tap * p->dilation[axis];
    }
    return position >= 0 && position < p->size[axis] ? position : -1;
}

#define PATCH_FETCH(suffix, real)                                                                                                          \
    static const real *patch_fetch_##suffix(const gt__gemm_source *source, const void *data, int64_t point, int64_t begin, int64_t n,      \
                                            real *buffer) {                                                                                \
        const patches *p = source->geometry;                                                                                               \
        int64_t column = point % p->grid[1], row = point / p->grid[1] % p->grid[0], image = point / p->grid[1] / p->grid[0];               \
        int64_t channel = begin % p->group, tap = begin / p->group;                                                                        \
        int64_t tap_row = tap / p->taps[1], tap_column = tap % p->taps[1];                                                                 \
        for (int64_t done = 0; done < n;) {                                                                                                \
            int64_t run = GT__MIN(p->group - channel, n - done);                                                                           \
            int64_t h = tap_position(p, 0, row, tap_row), w = tap_position(p, 1, column, tap_column);                                      \
            if (h < 0 || w < 0) {                                                                                                          \
                for (int64_t i = 0; i < run; i++) buffer[done + i] = 0;                                                                    \
            } else {                                                                                                                       \
                int64_t at = ((image * p->size[0] + h) * p->size[1] + w) * p->channels + channel;                                          \
                gt__cpu_load_##suffix(buffer + done, gt__cpu_at(data, source->dtype, at), source->dtype, 1, run);                          \
            }                                                                                                                              \
            done += run;                                                                                                                   \
            channel = 0;                                                                                                                   \
            if (++tap_column == p->taps[1]) {                                                                                              \
                tap_column = 0;                                                                                                            \
                tap_row++;                                                                                                                 \
            }                                                                                                                              \
        }                                                                                                                                  \
        return buffer;                                                                                                                     \
    }

PATCH_FETCH(f32, float)
PATCH_FETCH(f64, double)

static gt__gemm_source patch_source(const gt_tensor *images, const patches *geometry, bool along_k) {
    return (gt__gemm_source){.fetch_f32 = patch_fetch_f32,
                             .fetch_f64 = patch_fetch_f64,
                             .data = gt__data(images),
                             .dtype = images->meta.dtype,
                             .geometry = geometry,
                             .along_k = along_k};
}

/* Weights for the input's gradient: k = (kernel row, kernel column, output channel of the group), columns are input channels. */
typedef struct tap_weights {
    int64_t group_out, group_in, taps;
} tap_weights;

static inline int64_t tap_weights_at(const tap_weights *w, int64_t k, int64_t channel) {
    return (k % w->group_out * w->taps + k / w->group_out) * w->group_in + channel;
}

static const float *tap_weights_fetch_f32(const gt__gemm_source *source, const void *data, int64_t k, int64_t begin, int64_t n,
                                          float *buffer) {
    return gt__cpu_view_f32(gt__cpu_at(data, source->dtype, tap_weights_at(source->geometry, k, begin)), source->dtype, 1, n, buffer);
}

static const double *tap_weights_fetch_f64(const gt__gemm_source *source, const void *data, int64_t k, int64_t begin, int64_t n,
                                           double *buffer) {
    return gt__cpu_view_f64(gt__cpu_at(data, source->dtype, tap_weights_at(source->geometry, k, begin)), source->dtype, 1, n, buffer);
}

/* The sizes that all three products share. */
typedef struct conv_sizes {
    int64_t images, groups, in, out; /* channels in a group */
    int64_t x[2], y[2], taps[2];
} conv_sizes;

static conv_sizes sizes_of(const gt__call *call, const int64_t *x, const int64_t *w, const int64_t *y) {
    int64_t groups = call->attr.conv.groups;
    return (conv_sizes){.images = x[0],
                        .groups = groups,
                        .in = x[1] / groups,
                        .out = w[0] / groups,
                        .x = {x[2], x[3]},
                        .y = {y[2], y[3]},
                        .taps = {w[2], w[3]}};
}

static patches patches_of(const gt__call *call, const conv_sizes *s, bool transposed) {
    patches p = {.transposed = transposed};
    for (int i = 0; i < 2; i++) {
        p.grid[i] = transposed ? s->x[i] : s->y[i];
        p.size[i] = transposed ? s->y[i] : s->x[i];
        p.taps[i] = s->taps[i];
        p.stride[i] = call->attr.conv.stride[i];
        p.padding[i] = call->attr.conv.padding[i];
        p.dilation[i] = call->attr.conv.dilation[i];
    }
    p.group = transposed ? s->out : s->in;
    p.channels = p.group * s->groups;
    return p;
}

static gt_status conv2d(gt__device *device, const gt__call *call, bool relu) {
    const gt_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL;
    gt_tensor *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    gt_status status = gt__onednn_conv2d(device, call);
    if (status == GT_OK && relu) gt__cpu_relu_in_place(device, gt__data(y), y->meta.numel);
    if (status != GT_NOT_SUPPORTED) return status;

    conv_sizes s = sizes_of(call, x->meta.shape, w->meta.shape, y->meta.shape);
    patches geometry = patches_of(call, &s, false);
    int64_t k = s.taps[0] * s.taps[1] * s.in;
    gt__gemm gemm = {.m = s.images * s.y[0] * s.y[1],
                     .n = s.out,
                     .k = k,
                     .a = patch_source(x, &geometry, true),
                     .b = gt__gemm_matrix(gt__data(w), w->meta.dtype, k, 1),
                     .c = gt__data(y),
                     .c_dtype = y->meta.dtype,
                     .row_stride = s.out * s.groups,
                     .column_stride = 1,
                     .bias = bias ? gt__data(bias) : NULL,
                     .bias_dtype = bias ? bias->meta.dtype : GT_DTYPE_F32,
                     .relu = relu,
                     .batch_ndim = 1,
                     .batch_shape = {s.groups},
                     .c_batch_strides = {s.out},
                     .bias_batch_strides = {s.out}};
    gemm.a.batch_strides[0] = s.in;
    gemm.b.batch_strides[0] = s.out * k;
    return gt__cpu_gemm(device, &gemm);
}

GT__CPU_KERNEL(conv2d) { return conv2d(device, call, call->attr.conv.activation == GT_ACTIVATION_RELU); }
GT__CPU_KERNEL(conv2d_relu) { return conv2d(device, call, true); }

GT__CPU_KERNEL(conv2d_backward_input) {
    const gt_tensor *dy = call->in[0], *w = call->in[1];
    gt_tensor *dx = call->out[0];
    if (dx->meta.numel == 0) return GT_OK;
    gt_status status = gt__onednn_conv2d_backward_input(device, call);
    if (status != GT_NOT_SUPPORTED) return status;

    conv_sizes s = sizes_of(call, dx->meta.shape, w->meta.shape, dy->meta.shape);
    patches geometry = patches_of(call, &s, true);
    tap_weights weights = {.group_out = s.out, .group_in = s.in, .taps = s.taps[0] * s.taps[1]};
    gt__gemm gemm = {.m = s.images * s.x[0] * s.x[1],
                     .n = s.in,
                     .k = weights.taps * s.out,
                     .a = patch_source(dy, &geometry, true),
                     .b = {.fetch_f32 = tap_weights_fetch_f32,
                           .fetch_f64 = tap_weights_fetch_f64,
                           .data = gt__data(w),
                           .dtype = w->meta.dtype,
                           .geometry = &weights},
                     .c = gt__data(dx),
                     .c_dtype = dx->meta.dtype,
                     .row_stride = s.in * s.groups,
                     .column_stride = 1,
                     .batch_ndim = 1,
                     .batch_shape = {s.groups},
                     .c_batch_strides = {s.in}};
    gemm.a.batch_strides[0] = s.out;
    gemm.b.batch_strides[0] = s.out * weights.taps * s.in;
    return gt__cpu_gemm(device, &gemm);
}

/* --- the weight's gradient, which may be added to what is there -------------------------------------------------------------------------- */

typedef struct sum_job {
    float *sum;
    const float *add;
} sum_job;

static void sum_range(void *argument, int64_t begin, int64_t end) {
    const sum_job *job = argument;
    for (int64_t i = begin; i < end; i++) job->sum[i] += job->add[i];
}

/* oneDNN can only overwrite. */
static gt_status onednn_backward_weight(gt__device *device, const gt__call *call) {
    gt_tensor *dw = call->out[0];
    if (!call->attr.conv.accumulate) return gt__onednn_conv2d_backward_weight(device, call);
    size_t bytes = (size_t)dw->meta.numel * gt_dtype_size(dw->meta.dtype);
    void *data, *handle;
    if (dw->meta.dtype != GT_DTYPE_F32 || call->in[0]->meta.dtype != GT_DTYPE_F32) return GT_NOT_SUPPORTED;
    GT_TRY(gt__cpu_room(device, bytes, &data, &handle));
    gt_tensor alone = *dw;
    alone.data = data;
    gt__call part = *call;
    part.out[0] = &alone;
    gt_status status = gt__onednn_conv2d_backward_weight(device, &part);
    sum_job job = {gt__data(dw), data};
    if (status == GT_OK) gt__cpu_for(device, dw->meta.numel, 16384, sum_range, &job);
    gt__scratch_free(device->ctx, handle);
    return status;
}

GT__CPU_KERNEL(conv2d_backward_weight) {
    const gt_tensor *dy = call->in[0], *x = call->in[1];
    gt_tensor *dw = call->out[0];
    if (dw->meta.numel == 0) return GT_OK;
    if (dy->meta.numel == 0) {
        if (!call->attr.conv.accumulate) gt__cpu_fill_tensor(device, gt__data(dw), &dw->meta, 0.0);
        return GT_OK;
    }
    gt_status status = onednn_backward_weight(device, call);
    if (status != GT_NOT_SUPPORTED) return status;

    conv_sizes s = sizes_of(call, x->meta.shape, dw->meta.shape, dy->meta.shape);
    patches geometry = patches_of(call, &s, false);
    int64_t columns = s.taps[0] * s.taps[1] * s.in;
    gt__gemm gemm = {.m = s.out,
                     .n = columns,
                     .k = s.images * s.y[0] * s.y[1],
                     .a = gt__gemm_matrix(gt__data(dy), dy->meta.dtype, 1, s.out * s.groups),
                     .b = patch_source(x, &geometry, false),
                     .c = gt__data(dw),
                     .c_dtype = dw->meta.dtype,
                     .row_stride = columns,
                     .column_stride = 1,
                     .accumulate = call->attr.conv.accumulate,
                     .batch_ndim = 1,
                     .batch_shape = {s.groups},
                     .c_batch_strides = {s.out * columns}};
    gemm.a.along_k = false; /* also for a single channel, whose pixels lie side by side: a run is then one pixel's */
    gemm.a.batch_strides[0] = s.out;
    gemm.b.batch_strides[0] = s.in;
    return gt__cpu_gemm(device, &gemm);
}

/* As the two ops that it stands for, one after the other: the gradient before relu stands in scratch memory. */
GT__CPU_KERNEL(conv2d_relu_backward_weight) {
    gt_tensor *dw = call->out[0], *db = call->n_out > 1 ? call->out[1] : NULL;
    bool add = db && call->attr.conv.accumulate;
    size_t dz_bytes = dw ? (size_t)call->in[0]->meta.numel * gt_dtype_size(call->in[0]->meta.dtype) : 0;
    size_t at = (dz_bytes + 63) / 64 * 64, bytes = at + (add ? (size_t)db->meta.numel * gt_dtype_size(db->meta.dtype) : 0);
    void *data = NULL, *handle = NULL;
    if (bytes) GT_TRY(gt__scratch_alloc(device->ctx, bytes, &data, &handle));
    gt_tensor dz = *call->in[0], sums = dz;
    dz.data = data;
    gt_tensor *masked_in[2] = {call->in[0], call->in[1]}, *weight_in[2] = {&dz, call->in[2]};
    gt__call part = {
        .ctx = call->ctx, .in = masked_in, .n_in = 2, .n_out = 2, .out = {dw ? &dz : NULL, db}, .op = GT__OP_BIAS_RELU_BACKWARD};
    if (add) {
        sums = *db;
        sums.data = (char *)data + at;
        part.out[1] = &sums;
    }
    gt_status status = gt__cpu_bias_relu_backward(device, &part);
    if (status == GT_OK && add) {
        gt_tensor *both[2] = {db, &sums};
        gt__call sum = {.ctx = call->ctx, .in = both, .n_in = 2, .n_out = 1, .out = {db}, .op = GT__OP_ADD};
        status = gt__cpu_add(device, &sum);
    }
    if (status == GT_OK && dw) {
        gt__call weight = {
            .ctx = call->ctx, .in = weight_in, .n_in = 2, .n_out = 1, .out = {dw}, .attr = call->attr, .op = GT__OP_CONV2D_BACKWARD_WEIGHT};
        status = gt__cpu_conv2d_backward_weight(device, &weight);
    }
    gt__scratch_free(device->ctx, handle);
    return status;
}

#include "cpu/gemm.h"

/* Tiles of C that one thread computes at a time; all are multiples of every kernel's rows and columns. */
enum { BLOCK_M = 96, BLOCK_N = 256, BLOCK_K = 256 };
_Static_assert(BLOCK_N <= GT__CHUNK && BLOCK_K <= GT__CHUNK, "a fetched run must fit its buffer");

typedef struct gemm_job {
    const gt__gemm *gemm;
    void (*kernel_f32)(int64_t k, const float *a, const float *b, float *c, int64_t c_stride);
    void (*kernel_f64)(int64_t k, const double *a, const double *b, double *c, int64_t c_stride);
    void *room;
    int64_t room_each;
    int64_t mr, nr;
    int64_t tile_m, tile_n, tiles_m, tiles_n; /* a product's tiles */
    int64_t tiles;                            /* of all products */
    int64_t slots;                            /* threads at work */
} gemm_job;

/* The operands, moved to a batch entry. */
typedef struct block_place {
    const void *a, *b, *bias;
    void *c;
} block_place;

static void tile_place(const gemm_job *job, int64_t tile, block_place *place, int64_t *i0, int64_t *j0) {
    const gt__gemm *gemm = job->gemm;
    *i0 = tile % job->tiles_m * job->tile_m;
    tile /= job->tiles_m;
    *j0 = tile % job->tiles_n * job->tile_n;
    tile /= job->tiles_n;
    int64_t a = 0, b = 0, c = 0, bias = 0;
    for (int32_t axis = gemm->batch_ndim - 1; axis >= 0; axis--) {
        int64_t index = tile % gemm->batch_shape[axis];
        tile /= gemm->batch_shape[axis];
        a += index * gemm->a.batch_strides[axis];
        b += index * gemm->b.batch_strides[axis];
        c += index * gemm->c_batch_strides[axis];
        bias += index * gemm->bias_batch_strides[axis];
    }
    place->a = gt__cpu_at(gemm->a.data, gemm->a.dtype, a);
    place->b = gt__cpu_at(gemm->b.data, gemm->b.dtype, b);
    place->c = gt__cpu_at_mut(gemm->c, gemm->c_dtype, c);
    place->bias = gemm->bias ? gt__cpu_at(gemm->bias, gemm->bias_dtype, bias) : NULL;
}

#define REAL    float
#define NAME(x) x##_f32
#include "cpu/gemm_blocks.h"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(x) x##_f64
#include "cpu/gemm_blocks.h"
#undef REAL
#undef NAME

/* --- matrices as sources ------------------------------------------------------------------------------------------------------------ */

static const float *matrix_fetch_f32(const gt__gemm_source *source, const void *data, int64_t fixed, int64_t begin, int64_t n,
                                     float *buffer) {
    int64_t along = source->along_k ? source->stride_k : source->stride_i, across = source->along_k ? source->stride_i : source->stride_k;
    return gt__cpu_view_f32(gt__cpu_at(data, source->dtype, fixed * across + begin * along), source->dtype, along, n, buffer);
}

static const double *matrix_fetch_f64(const gt__gemm_source *source, const void *data, int64_t fixed, int64_t begin, int64_t n,
                                      double *buffer) {
    int64_t along = source->along_k ? source->stride_k : source->stride_i, across = source->along_k ? source->stride_i : source->stride_k;
    return gt__cpu_view_f64(gt__cpu_at(data, source->dtype, fixed * across + begin * along), source->dtype, along, n, buffer);
}

gt__gemm_source gt__gemm_matrix(const void *data, gt_dtype dtype, int64_t stride_i, int64_t stride_k) {
    gt__gemm_source source = {.fetch_f32 = matrix_fetch_f32,
                              .fetch_f64 = matrix_fetch_f64,
                              .data = data,
                              .dtype = dtype,
                              .stride_i = stride_i,
                              .stride_k = stride_k,
                              .along_k = stride_k < stride_i};
    return source;
}

/* --- the call ------------------------------------------------------------------------------------------------------------------------ */

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* Smaller tiles until every thread has some. */
static void choose_tiles(gemm_job *job, int64_t products, int64_t threads) {
    const gt__gemm *gemm = job->gemm;
    job->tile_m = GT__MIN(BLOCK_M, round_up(gemm->m, job->mr));
    job->tile_n = GT__MIN(BLOCK_N, round_up(gemm->n, job->nr));
    for (;;) {
        job->tiles_m = (gemm->m + job->tile_m - 1) / job->tile_m;
        job->tiles_n = (gemm->n + job->tile_n - 1) / job->tile_n;
        job->tiles = products * job->tiles_m * job->tiles_n;
        if (job->tiles >= threads) return;
        if (job->tile_n > job->nr && job->tile_n >= job->tile_m)
            job->tile_n = round_up(job->tile_n / 2, job->nr);
        else if (job->tile_m > job->mr)
            job->tile_m = round_up(job->tile_m / 2, job->mr);
        else if (job->tile_n > job->nr)
            job->tile_n = round_up(job->tile_n / 2, job->nr);
        else
            return;
    }
}

/* Room for packed panels is kept by the device: a product never fails for want of it once one has run. */
static gt_status panel_room(gt__cpu_device *device, size_t bytes, void **room) {
    if (device->pack_bytes < bytes) {
        void *larger = gt__malloc(bytes + 64);
        if (!larger) return GT_OUT_OF_HOST_MEMORY;
        gt__free(device->pack);
        device->pack = larger;
        device->pack_bytes = bytes;
    }
    *room = (char *)device->pack + (64 - (uintptr_t)device->pack % 64) % 64;
    return GT_OK;
}

gt_status gt__cpu_gemm(gt__device *device, const gt__gemm *gemm) {
    gt__cpu_device *cpu = gt__cpu(device);
    int64_t products = 1;
    for (int32_t axis = 0; axis < gemm->batch_ndim; axis++) products *= gemm->batch_shape[axis];
    if (gemm->m == 0 || gemm->n == 0 || products == 0) return GT_OK;

    gemm_job job = {.gemm = gemm};
    bool wide = gemm->a.dtype == GT_DTYPE_F64;
    if (wide) {
        gt__gemm_kernel_f64 kernel = gt__gemm_kernel_for_f64();
        job.kernel_f64 = kernel.run;
        job.mr = kernel.mr;
        job.nr = kernel.nr;
    } else {
        gt__gemm_kernel_f32 kernel = gt__gemm_kernel_for_f32();
        job.kernel_f32 = kernel.run;
        job.mr = kernel.mr;
        job.nr = kernel.nr;
    }
    /* A small product is done before a second thread would have started. */
    bool small = (double)gemm->m * (double)gemm->n * (double)gemm->k * (double)products < 1e6;
    int64_t threads = small ? 1 : cpu->threads;
    choose_tiles(&job, products, threads);
    job.slots = GT__MIN(job.tiles, threads);
    job.room_each = (BLOCK_M * BLOCK_K + BLOCK_N * BLOCK_K + BLOCK_M * BLOCK_N) * (int64_t)(wide ? sizeof(double) : sizeof(float));
    GT_TRY(panel_room(cpu, (size_t)(job.room_each * job.slots), &job.room));
    /* One slot a range: as many ranges as slots, each one long. After a fork they run one after another. */
    gt__cpu_for(device, job.slots, 1, wide ? tiles_f64 : tiles_f32, &job);
    return GT_OK;
}

/* What a device reaches at the most: a large copy, and large matrix products. Measured on raw memory, so that the allocator's statistics and what it keeps
 * stay as they are. */
#include "profile/profile.h"

#define LARGEST_COPY   ((uint64_t)1 << 28) /* bytes of each of two buffers */
#define CPU_COPY       ((uint64_t)1 << 26)
#define LEAST_COPY     ((uint64_t)1 << 20)
#define LARGEST_MATRIX 8192
#define LEAST_MATRIX   512
#define SCRATCH        ((uint64_t)64 << 20) /* for the libraries' algorithms, at the most */
#define LONG_ENOUGH    0.02                 /* seconds: products grow until one takes so long */
/* Something is run at least so often, and so often at the most while all runs together take less than so long: other programs want the device too. */
#define LEAST_RUNS 3
#define MOST_RUNS  32
#define RUNS_TIME  0.02

gt_status gt_profile_ceilings_init(gt_profile_ceilings *ceilings, size_t size) {
    const gt_profile_ceilings defaults = {.struct_size = sizeof defaults};
    return gt__options_write(ceilings, size, &defaults, sizeof defaults, "gt_profile_ceilings");
}

/* Raw memory of the device in equal parts. */
typedef struct ground {
    gt__profiled *d;
    const gt__backend *b;
    char *part[3];
    uint64_t bytes; /* of a part */
    gt__event *begin, *end;
} ground;

/* A quarter of what may be had. */
static gt_status room(gt__profiled *d, uint64_t *bytes) {
    uint64_t free_bytes, total;
    gt_memory_stats stats = {.struct_size = sizeof stats};
    GT_TRY(d->real->backend->memory_info(d->real, &free_bytes, &total));
    gt__allocator_stats(d->ctx->allocator, &stats);
    uint64_t limit = gt__allocator_limit(d->ctx->allocator);
    if (limit > 0) free_bytes = GT__MIN(free_bytes, limit > stats.reserved ? limit - stats.reserved : 0);
    *bytes = free_bytes / 4;
    return GT_OK;
}

static gt_status make_ground(ground *g, void **scratch, uint64_t *scratch_bytes) {
    uint64_t bytes, most = g->d->real->backend->kind == GT_DEVICE_CPU ? CPU_COPY : LARGEST_COPY;
    GT_TRY(room(g->d, &bytes));
    *scratch_bytes = GT__MIN(SCRATCH, bytes / 4);
    g->bytes = GT__MIN((bytes - *scratch_bytes) / 3, most) / 512 * 512;
    GT_REQUIRE(g->bytes >= LEAST_COPY, GT_OUT_OF_MEMORY,
               "gt_profile: %llu bytes of device memory may be used to measure what it can do, and that is too few",
               (unsigned long long)bytes);
    gt_status status = g->b->memory_alloc(g->d->real, *scratch_bytes, scratch);
    for (int i = 0; i < 3 && status == GT_OK; ++i) status = g->b->memory_alloc(g->d->real, g->bytes, (void **)&g->part[i]);
    if (status == GT_OUT_OF_MEMORY) GT_FAIL(status, "gt_profile: no device memory to measure what it can do");
    if (status == GT_OK) status = g->b->timer_create(g->d->real, &g->begin);
    if (status == GT_OK) status = g->b->timer_create(g->d->real, &g->end);
    return status;
}

static gt_tensor tensor_over(const ground *g, int part, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    gt_tensor t = {.data = g->part[part], .ctx = g->d->ctx, .references = 1};
    (void)gt__meta_make(&t.meta, dtype, ndim, shape, "gt_profile");
    return t;
}

/* Numbers like those of a network: zeros take less power, and are computed faster for it. */
static gt_status fill(const ground *g, gt_tensor *t) {
    gt__call call = {.ctx = g->d->ctx, .n_out = 1, .out = {t}, .op = GT__OP_UNIFORM, .attr.random = {.a = -1, .b = 1, .seed = 1}};
    return g->b->kernels[GT__OP_UNIFORM](g->d->real, &call);
}

typedef gt_status (*work_fn)(const ground *g, void *argument);

/* The least time of several runs. The first is not counted: it chooses algorithms. */
static gt_status least_time(const ground *g, work_fn work, void *argument, double *least) {
    double total = 0;
    *least = 0;
    for (int run = 0; run < LEAST_RUNS || (run < MOST_RUNS && total < RUNS_TIME); ++run) {
        double seconds;
        GT_TRY(g->b->event_record(g->d->real, g->begin, GT__STREAM_COMPUTE));
        GT_TRY(work(g, argument));
        GT_TRY(g->b->event_record(g->d->real, g->end, GT__STREAM_COMPUTE));
        GT_TRY(g->b->event_wait_host(g->d->real, g->end));
        GT_TRY(g->b->event_elapsed(g->d->real, g->begin, g->end, &seconds));
        total += seconds;
        if (run > 0 && seconds > 0 && (*least == 0 || seconds < *least)) *least = seconds;
    }
    return GT_OK;
}

static gt_status copy_plainly(const ground *g, void *argument) {
    (void)argument;
    return g->b->copy(g->d->real, GT__STREAM_COMPUTE, GT__COPY_DEVICE_TO_DEVICE, g->part[1], g->part[0], (size_t)g->bytes);
}

/* By a kernel: on the CPU several threads copy faster than one. */
static gt_status copy_by_kernel(const ground *g, void *argument) {
    (void)argument;
    const int64_t count = (int64_t)(g->bytes / sizeof(float));
    gt_tensor from = tensor_over(g, 0, GT_DTYPE_F32, 1, &count), to = tensor_over(g, 1, GT_DTYPE_F32, 1, &count), *in = &from;
    gt__call call = {.ctx = g->d->ctx, .in = &in, .n_in = 1, .n_out = 1, .out = {&to}, .op = GT__OP_COPY};
    return g->b->kernels[GT__OP_COPY](g->d->real, &call);
}

static gt_status measure_copy(const ground *g, double *rate) {
    double plain, kernel;
    for (int i = 0; i < 2; ++i)
        GT_TRY(g->b->memset_zero(g->d->real, GT__STREAM_COMPUTE, g->part[i], (size_t)g->bytes)); /* every page is there */
    GT_TRY(least_time(g, copy_plainly, NULL, &plain));
    GT_TRY(least_time(g, copy_by_kernel, NULL, &kernel));
    double least = plain > 0 && kernel > 0 ? GT__MIN(plain, kernel) : GT__MAX(plain, kernel);
    *rate = least > 0 ? 2 * (double)g->bytes / least : 0;
    return GT_OK;
}

static gt_status multiply(const ground *g, void *argument) {
    gt__call *call = argument;
    return g->b->kernels[GT__OP_MATMUL](g->d->real, call);
}

static gt_status measure_products(const ground *g, gt_dtype dtype, double *rate) {
    *rate = 0;
    for (int64_t n = LEAST_MATRIX; n <= LARGEST_MATRIX; n *= 2) {
        if ((uint64_t)(n * n) * gt_dtype_size(dtype) > g->bytes) break;
        const int64_t shape[2] = {n, n};
        gt_tensor a = tensor_over(g, 0, dtype, 2, shape), b = tensor_over(g, 1, dtype, 2, shape), c = tensor_over(g, 2, dtype, 2, shape);
        gt_tensor *in[2] = {&a, &b};
        gt__call call = {.ctx = g->d->ctx, .in = in, .n_in = 2, .n_out = 1, .out = {&c}, .op = GT__OP_MATMUL};
        double seconds;
        GT_TRY(fill(g, &a));
        GT_TRY(fill(g, &b));
        GT_TRY(least_time(g, multiply, &call, &seconds));
        if (seconds <= 0) continue;
        *rate = GT__MAX(*rate, 2.0 * (double)n * (double)n * (double)n / seconds);
        if (seconds > LONG_ENOUGH) break;
    }
    return GT_OK;
}

static gt_status measure_on(ground *g, gt_profile_ceilings *ceilings) {
    gt_context *ctx = g->d->ctx;
    void *scratch_memory = NULL;
    uint64_t scratch_bytes = 0;
    gt__scratch *before = ctx->scratch;
    gt_status status = make_ground(g, &scratch_memory, &scratch_bytes);
    gt__scratch scratch = {.data = scratch_memory, .bytes = (size_t)scratch_bytes};
    if (status == GT_OK) {
        ctx->scratch = &scratch;
        status = measure_copy(g, &ceilings->bytes_per_second);
        if (status == GT_OK) status = measure_products(g, GT_DTYPE_F32, &ceilings->f32_flops_per_second);
        if (status == GT_OK) status = measure_products(g, GT_DTYPE_F16, &ceilings->f16_flops_per_second);
        (void)g->b->synchronize(g->d->real, GT__STREAM_COMPUTE);
        ctx->scratch = before;
    }
    if (g->begin) g->b->event_destroy(g->d->real, g->begin);
    if (g->end) g->b->event_destroy(g->d->real, g->end);
    for (int i = 0; i < 3; ++i)
        if (g->part[i]) g->b->memory_free(g->d->real, g->part[i]);
    if (scratch_memory) g->b->memory_free(g->d->real, scratch_memory);
    return status;
}

gt_status gt__ceilings_measure(gt__profiled *d) {
    if (d->measured) return GT_OK;
    ground g = {.d = d, .b = d->real->backend};
    gt_profile_ceilings found = {.struct_size = sizeof found};
    int32_t previous = gt__profiled_enter(d);
    gt_status status = g.b->synchronize(d->real, GT__STREAM_COMPUTE);
    if (status == GT_OK) status = measure_on(&g, &found);
    gt__profiled_leave(d, previous);
    GT_TRY(status);
    d->ceilings = found;
    d->measured = true;
    return GT_OK;
}

double gt__ceilings_seconds(const gt_profile_ceilings *c, const gt_profile_entry *e) {
    double rate = !e->matrix                    ? 0
                  : gt__dtype_is_half(e->dtype) ? c->f16_flops_per_second
                  : e->dtype == GT_DTYPE_F32    ? c->f32_flops_per_second
                                                : 0;
    if (e->matrix && rate <= 0) return 0;
    double compute = e->matrix ? (double)e->flops / rate : 0;
    double memory = c->bytes_per_second > 0 ? (double)e->bytes / c->bytes_per_second : 0;
    return GT__MAX(compute, memory);
}

gt_status gt_profile_get_ceilings(gt_context *ctx, gt_profile_ceilings *ceilings) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE_HANDLE(ceilings);
    GT_REQUIRE(ceilings->struct_size >= sizeof(uint32_t), GT_BAD_ABI,
               "gt_profile_get_ceilings: struct_size is %u; fill the struct with gt_profile_ceilings_init first",
               (unsigned)ceilings->struct_size);
    gt__profiled *d;
    GT_TRY(gt__profiled_get(ctx, &d));
    if (!d->measured) {
        GT_REQUIRE(ctx->tracer == NULL && !ctx->in_backward && d->profile == NULL, GT_BAD_STATE,
                   "gt_profile_get_ceilings: a %s; ask before or after it",
                   ctx->tracer  ? "step is being traced"
                   : d->profile ? "profile is measuring"
                                : "backward is running");
        GT_TRY(gt__ceilings_measure(d));
    }
    gt_profile_ceilings ours = d->ceilings;
    ours.struct_size = ceilings->struct_size;
    memcpy(ceilings, &ours, GT__MIN((size_t)ceilings->struct_size, sizeof ours));
    return GT_OK;
}

/* Parts of the CUDA backend that need no GPU. */
#include "harness/test.h"

#include "cuda/device.h"

#include <sys/wait.h>
#include <unistd.h>

/* --- the plan cache ----------------------------------------------------------------------------------------------------------- */

typedef struct key {
    int64_t number, zero;
} key;
typedef struct plan {
    int64_t value;
} plan;

static int64_t disposed;
static void dispose(void *stored) {
    (void)stored;
    disposed++;
}

static void add(gt__plan_cache *cache, int64_t number) {
    key k = {number, 0};
    plan p = {number * 10};
    CHECK(gt__plan_cache_add(cache, &k, &p) != NULL);
}

static int64_t find(gt__plan_cache *cache, int64_t number) {
    key k = {number, 0};
    plan *p = gt__plan_cache_find(cache, &k);
    return p ? p->value : -1;
}

TEST(unit, plan_cache_finds_what_was_added) {
    gt__plan_cache cache;
    gt__plan_cache_init(&cache, sizeof(key), sizeof(plan), 1000, dispose);
    CHECK_EQ_INT(find(&cache, 1), -1);
    for (int64_t i = 0; i < 1000; i++) add(&cache, i);
    for (int64_t i = 0; i < 1000; i++) CHECK_EQ_INT(find(&cache, i), i * 10);
    CHECK_EQ_INT(find(&cache, 1000), -1);
    gt__plan_cache_clear(&cache, false);
    CHECK_EQ_INT(find(&cache, 1), -1);
}

TEST(unit, plan_cache_keeps_its_bound_and_drops_the_longest_unused) {
    gt__plan_cache cache;
    disposed = 0;
    gt__plan_cache_init(&cache, sizeof(key), sizeof(plan), 4, dispose);
    for (int64_t i = 0; i < 4; i++) add(&cache, i);
    CHECK_EQ_INT(find(&cache, 0), 0); /* now 1 is the longest unused */
    add(&cache, 4);
    CHECK_EQ_INT(disposed, 1);
    CHECK_EQ_INT(find(&cache, 1), -1);
    CHECK_EQ_INT(find(&cache, 0), 0);
    CHECK_EQ_INT(find(&cache, 2), 20);
    CHECK_EQ_INT(find(&cache, 4), 40);
    for (int64_t i = 100; i < 200; i++) add(&cache, i);
    CHECK_EQ_INT(cache.count, 4);
    CHECK_EQ_INT(disposed, 101);
    gt__plan_cache_clear(&cache, false);
    CHECK_EQ_INT(disposed, 105);
}

TEST(unit, plan_cache_abandons_plans_without_disposing) {
    gt__plan_cache cache;
    disposed = 0;
    gt__plan_cache_init(&cache, sizeof(key), sizeof(plan), 4, dispose);
    add(&cache, 1);
    gt__plan_cache_clear(&cache, true);
    CHECK_EQ_INT(disposed, 0);
}

/* --- errors ------------------------------------------------------------------------------------------------------------------------ */

TEST(unit, cuda_statuses_name_the_call_and_the_native_code) {
    CHECK_STATUS(gt__cuda_raise(cudaErrorMemoryAllocation, "cudaMalloc(&p, 1)", __FILE__, __LINE__), GT_OUT_OF_MEMORY);
    CHECK_ERROR_HAS("cudaMalloc: ");
    CHECK_EQ_INT(gt_last_error()->native_code, cudaErrorMemoryAllocation);
    CHECK_EQ_STR(gt_last_error()->native_name, "cudaError_t");
    CHECK_STATUS(gt__cuda_raise_cublas(CUBLAS_STATUS_ALLOC_FAILED, "cublasLtCreate(&h)", __FILE__, __LINE__), GT_OUT_OF_MEMORY);
    CHECK_ERROR_HAS("cublasLtCreate: ");
    CHECK_STATUS(gt__cuda_raise_cudnn(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "cudnnCreate(&h)", __FILE__, __LINE__),
                 GT_OUT_OF_MEMORY);
    CHECK_ERROR_HAS("cudnnCreate: ");
    CHECK_STATUS(gt__cuda_raise_cudnn(CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendExecute", __FILE__, __LINE__), GT_LIBRARY);
    CHECK_EQ_INT(gt_last_error()->native_code, CUDNN_STATUS_NOT_SUPPORTED);
}

/* --- fork -------------------------------------------------------------------------------------------------------------------------- */

static gt_status works(gt__device *device, gt__stream_id stream) {
    (void)device, (void)stream;
    return GT_OK;
}

static int in_child(gt__backend *table) {
    gt__call call = {.op = GT__OP_CONV2D};
    gt__device device = {.backend = table};
    void *pointer;
    int wrong = table->synchronize(&device, GT__STREAM_COMPUTE) != GT_FORKED;
    wrong |= (table->kernels[GT__OP_CONV2D](&device, &call) != GT_FORKED || !strstr(gt_last_error()->message, "conv2d")) << 1;
    wrong |= (table->memory_alloc(&device, 1, &pointer) != GT_FORKED) << 2;
    wrong |= (table->update(&device, NULL, NULL, 0, NULL) != GT_FORKED || table->step_task(&device, NULL) != GT_FORKED ||
              table->copy_many(&device, NULL, 0) != GT_FORKED)
             << 3;
    wrong |= (table->enter(&device) != 0) << 4;
    wrong |= (table->memory_map(&device, NULL, 1) != GT_FORKED || table->address_reserve(&device, 1, &pointer) != GT_FORKED ||
              table->map_grain(&device) != 0 || table->memory_holders(&device, NULL, 0) != 0 ||
              table->event_query(&device, NULL, NULL) != GT_FORKED)
             << 5;
    table->memory_unmap(&device, NULL, 1);
    table->address_release(&device, NULL, 1);
    return wrong;
}

TEST(unit, fork_replaces_the_backend_in_the_child_alone) {
    static gt__backend table = {.synchronize = works};
    CHECK_OK(gt__cuda_fork_guard(&table));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(in_child(&table));
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_EQ_INT(WEXITSTATUS(status), 0);
    CHECK_OK(table.synchronize(NULL, GT__STREAM_COMPUTE));
}

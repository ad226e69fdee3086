/* Two implementations of one small pool: over OpenMP, so that our loops and oneDNN's run on the same threads, and over our own threads.
 *
 * In the child of a fork no worker exists any more (and OpenMP's runtime would wait for them for ever), so loops then run serially. */
#include "base/parallel.h"

#include "base/host.h"

#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#ifdef GTRAIN_HAVE_OPENMP
#include <omp.h>
#else
#include <pthread.h>
#include <stdatomic.h>
#endif

#define MAX_THREADS 4096

static int cores_allowed(void) {
    for (int size = 1024; size <= 1 << 20; size *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)size);
        if (!set) break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)size);
        CPU_ZERO_S(bytes, set);
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) return count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < MAX_THREADS ? (int)online : 1;
}

static gt_status threads_wanted(int threads, int *wanted) {
    GT_REQUIRE(threads >= 0 && threads <= MAX_THREADS, GT_BAD_ARGUMENT, "cpu_threads is %d: it must be between 0 (all cores) and %d",
               threads, MAX_THREADS);
    *wanted = threads ? threads : cores_allowed();
    if (*wanted > MAX_THREADS) *wanted = MAX_THREADS;
    return GT_OK;
}

/* Part `k` of `parts` equal ones of [0, n). */
static int64_t part_begin(int64_t n, int64_t parts, int64_t k) {
    int64_t each = n / parts, more = n % parts;
    return each * k + (k < more ? k : more);
}

static int64_t part_count(int64_t n, int64_t grain, int threads) {
    int64_t parts = n / (grain > 0 ? grain : 1);
    if (parts > threads) parts = threads;
    return parts > 0 ? parts : 1;
}

#ifdef GTRAIN_HAVE_OPENMP

struct gt__pool {
    int threads;
    pid_t owner;
};

gt_status gt__pool_create(int threads, gt__pool **out) {
    int wanted = 1;
    GT_TRY(threads_wanted(threads, &wanted));
    gt__pool *pool = gt__malloc(sizeof *pool);
    if (!pool) return GT_OUT_OF_HOST_MEMORY;
    pool->threads = wanted;
    pool->owner = getpid();
    *out = pool;
    return GT_OK;
}

void gt__pool_destroy(gt__pool *pool) { gt__free(pool); }

int gt__pool_threads(const gt__pool *pool) { return pool->owner == getpid() ? pool->threads : 1; }

void gt__parallel_for(gt__pool *pool, int64_t n, int64_t grain, gt__range_fn body, void *argument) {
    if (n <= 0) return;
    int64_t parts = part_count(n, grain, pool->threads);
    if (parts == 1) {
        body(argument, 0, n);
        return;
    }
    if (pool->owner != getpid()) {
        for (int64_t k = 0; k < parts; k++) body(argument, part_begin(n, parts, k), part_begin(n, parts, k + 1));
        return;
    }
    /* Always the same team, even if some of it has nothing to do: the runtime starts threads anew when a team grows. */
#pragma omp parallel num_threads(pool->threads)
    {
        int64_t team = omp_get_num_threads();
        for (int64_t k = omp_get_thread_num(); k < parts; k += team) body(argument, part_begin(n, parts, k), part_begin(n, parts, k + 1));
    }
}

#else

#define SPINS 2000

struct gt__pool {
    int threads; /* with the caller's */
    pid_t owner;
    pthread_t *workers;
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    atomic_uint generation; /* of the job below; changed under the lock */
    atomic_int pending;     /* workers that have not finished the job */
    bool stop;              /* under the lock */
    int started;            /* workers that took their number; under the lock */
    gt__range_fn body;
    void *argument;
    int64_t n, parts;
};

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void *worker(void *argument) {
    gt__pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    int number = ++pool->started; /* the caller is number 0 */
    pthread_mutex_unlock(&pool->lock);
    unsigned seen = 0;
    for (;;) {
        unsigned generation = seen;
        for (int i = 0; i < SPINS && generation == seen; i++) {
            generation = atomic_load_explicit(&pool->generation, memory_order_acquire);
            relax();
        }
        if (generation == seen) {
            pthread_mutex_lock(&pool->lock);
            while ((generation = atomic_load_explicit(&pool->generation, memory_order_acquire)) == seen)
                pthread_cond_wait(&pool->start, &pool->lock);
            pthread_mutex_unlock(&pool->lock);
        }
        seen = generation;
        if (pool->stop) return NULL;
        if (number < pool->parts)
            pool->body(pool->argument, part_begin(pool->n, pool->parts, number), part_begin(pool->n, pool->parts, number + 1));
        if (atomic_fetch_sub_explicit(&pool->pending, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

/* Publishes the job that was written to the pool's fields. */
static void publish(gt__pool *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_store_explicit(&pool->pending, pool->threads - 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
}

gt_status gt__pool_create(int threads, gt__pool **out) {
    int wanted = 1;
    GT_TRY(threads_wanted(threads, &wanted));
    gt__pool *pool = gt__calloc(1, sizeof *pool);
    if (!pool) return GT_OUT_OF_HOST_MEMORY;
    pool->owner = getpid();
    pool->threads = 1;
    if (wanted > 1) {
        pool->workers = gt__calloc((size_t)wanted - 1, sizeof *pool->workers);
        if (!pool->workers) {
            gt__free(pool);
            return GT_OUT_OF_HOST_MEMORY;
        }
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    /* Where the system allows fewer threads than there are cores we do with those. */
    while (pool->threads < wanted && pthread_create(&pool->workers[pool->threads - 1], NULL, worker, pool) == 0) pool->threads++;
    *out = pool;
    return GT_OK;
}

void gt__pool_destroy(gt__pool *pool) {
    if (!pool) return;
    if (pool->owner == getpid()) {
        pool->stop = true;
        publish(pool);
        for (int i = 0; i < pool->threads - 1; i++) pthread_join(pool->workers[i], NULL);
        pthread_cond_destroy(&pool->done);
        pthread_cond_destroy(&pool->start);
        pthread_mutex_destroy(&pool->lock);
    }
    gt__free(pool->workers);
    gt__free(pool);
}

int gt__pool_threads(const gt__pool *pool) { return pool->owner == getpid() ? pool->threads : 1; }

void gt__parallel_for(gt__pool *pool, int64_t n, int64_t grain, gt__range_fn body, void *argument) {
    if (n <= 0) return;
    int64_t parts = part_count(n, grain, pool->threads);
    if (parts == 1 || pool->owner != getpid()) {
        for (int64_t k = 0; k < parts; k++) body(argument, part_begin(n, parts, k), part_begin(n, parts, k + 1));
        return;
    }
    pool->body = body;
    pool->argument = argument;
    pool->n = n;
    pool->parts = parts;
    publish(pool);
    body(argument, 0, part_begin(n, parts, 1));
    for (int i = 0; i < SPINS && atomic_load_explicit(&pool->pending, memory_order_acquire) > 0; i++) relax();
    if (atomic_load_explicit(&pool->pending, memory_order_acquire) > 0) {
        pthread_mutex_lock(&pool->lock);
        while (atomic_load_explicit(&pool->pending, memory_order_acquire) > 0) pthread_cond_wait(&pool->done, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
    }
}

#endif

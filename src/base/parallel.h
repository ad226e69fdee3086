/* Parallel loops on the CPU. With oneDNN the loops use OpenMP, so that both share one set of threads; otherwise our own pool. */
#ifndef GT_BASE_PARALLEL_H
#define GT_BASE_PARALLEL_H

#include "base/error.h"

typedef struct gt__pool gt__pool;
/* `threads` 0: all cores that the process may run on. */
gt_status gt__pool_create(int threads, gt__pool **pool);
void gt__pool_destroy(gt__pool *pool);
int gt__pool_threads(const gt__pool *pool);

typedef void (*gt__range_fn)(void *argument, int64_t begin, int64_t end);
/* Calls body on disjoint ranges that cover [0, n), at least `grain` long where n allows; returns when all are done. Runs in the calling thread
 * alone when n <= grain. The split depends on n, grain and the number of threads only. Bodies must not start loops. */
void gt__parallel_for(gt__pool *pool, int64_t n, int64_t grain, gt__range_fn body, void *argument);

#endif

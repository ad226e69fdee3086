/* The CPU device, and what its kernels share. */
#ifndef GT_CPU_DEVICE_H
#define GT_CPU_DEVICE_H

#include "backend/backend.h"
#include "base/parallel.h"
#include "core/op.h"
#include "cpu/load.h"

struct gt__onednn;

typedef struct gt__cpu_device {
    gt__device head;
    gt__pool *pool;
    int32_t threads;
    struct gt__onednn *onednn; /* NULL where oneDNN is not used */
    void *pack;                /* room for packed panels, one piece a thread; see gemm.c */
    size_t pack_bytes;
} gt__cpu_device;

static inline gt__cpu_device *gt__cpu(gt__device *device) { return (gt__cpu_device *)device; }

/* Loops over [0, n) on the device's threads. */
static inline void gt__cpu_for(gt__device *device, int64_t n, int64_t grain, gt__range_fn body, void *argument) {
    gt__parallel_for(gt__cpu(device)->pool, n, grain, body, argument);
}

/* Iterations worth a thread of their own when each costs about `cost` simple operations: some ten microseconds, since starting a thread on them costs a few,
 * and far more where other programs want the cores too. */
static inline int64_t gt__cpu_grain(int64_t cost) {
    int64_t grain = 65536 / (cost > 0 ? cost : 1);
    return grain > 0 ? grain : 1;
}

/* Scratch memory for a faster way. NOT_SUPPORTED: there is none, and the op takes its other way. That one rounds otherwise, so that in deterministic mode, where no bit may
 * depend on how much memory happens to be free, a shortage is OUT_OF_MEMORY. */
gt_status gt__cpu_room(gt__device *device, size_t bytes, void **data, void **handle);

/* Where a kernel exists, its name is gt__cpu_<op>. */
#define GT__CPU_KERNEL(name) gt_status gt__cpu_##name(gt__device *device, const gt__call *call)

extern const gt__kernel gt__cpu_kernels[GT__OP_COUNT];

gt_status gt__cpu_update(gt__device *device, const gt__update_rule *rule, const gt__update *list, int32_t count,
                         const gt__step_control *control);
gt_status gt__cpu_grad_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, double *norm, int32_t *first_bad);
gt_status gt__cpu_grad_clip_norm(gt__device *device, const gt__grad_list_item *list, int32_t count, const double *norm, double max_norm);
gt_status gt__cpu_grad_clip_value(gt__device *device, const gt__grad_list_item *list, int32_t count, double max_value);
gt_status gt__cpu_grad_scale(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_control *control);
gt_status gt__cpu_step_task(gt__device *device, const gt__step_task *task);
gt_status gt__cpu_grad_step_task(gt__device *device, const gt__grad_list_item *list, int32_t count, const gt__step_task *task);
gt_status gt__cpu_mark_not_finite(gt__device *device, const void *data, gt_dtype dtype, int64_t count, uint64_t mark, uint64_t *least);
gt_status gt__cpu_move_many(gt__device *device, const gt__move *list, int32_t count);
gt_status gt__cpu_copy_many(gt__device *device, const gt__copy_item *list, int32_t count);

#endif

/* How a kernel reports what only the device knows. */
#ifndef GT_CUDA_REPORT_CUH
#define GT_CUDA_REPORT_CUH

#include "backend/backend.h"

/* Where device.c keeps the slot; the first report wins until the host takes it. */
extern "C" gt__device_error *gt__cuda_error_slot(gt__device *device);

#ifdef __CUDACC__
namespace gt {

__device__ inline void report_label(gt__device_error *slot, int32_t op, int64_t row, int64_t value, int64_t classes) {
    if (atomicCAS_system(reinterpret_cast<int *>(&slot->status), GT_OK, GT_BAD_LABEL) != GT_OK) return;
    slot->op = op;
    slot->row = row;
    slot->value = value;
    slot->classes = classes;
}

} // namespace gt
#endif
#endif

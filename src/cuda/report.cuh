/* How a kernel reports what only the device knows. */
#ifndef GT_CUDA_REPORT_CUH
#define GT_CUDA_REPORT_CUH

#include "cuda/cuda_util.h"

#ifdef __CUDACC__
namespace gt {

__device__ inline void report_label(gt__error_slot slot, int32_t op, int64_t row, int64_t value, int64_t classes) {
    if (atomicCAS(slot.claimed, 0, 1) != 0) return;
    slot.record->status = GT_BAD_LABEL;
    slot.record->op = op;
    slot.record->row = row;
    slot.record->value = value;
    slot.record->classes = classes;
}

} // namespace gt
#endif
#endif

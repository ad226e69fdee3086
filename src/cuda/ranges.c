/* NVTX ranges: what Nsight Systems and other tools show above the kernels. NVTX is headers alone: without a tool, which names a library of its own in the
 * environment, a range is one test of a pointer. */
#include "cuda/device.h"

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#define HAVE_NVTX 1
#endif
#endif

#ifdef HAVE_NVTX
#include <nvtx3/nvToolsExt.h>

void gt__cuda_range_push(gt__device *device, const char *text) {
    (void)device;
    (void)nvtxRangePushA(text);
}

void gt__cuda_range_pop(gt__device *device) {
    (void)device;
    (void)nvtxRangePop();
}
#else
void gt__cuda_range_push(gt__device *device, const char *text) { (void)device, (void)text; }
void gt__cuda_range_pop(gt__device *device) { (void)device; }
#endif

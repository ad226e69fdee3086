/* A step's task on the device. The numbers that it works with are brought into shared memory by the whole block at once, and back again: one thread that went to global memory for
 * one after the other would wait longer than it computes. */
#ifndef GT_CUDA_STEP_CELLS_CUH
#define GT_CUDA_STEP_CELLS_CUH

#include "core/step_math.h"

namespace gt {

struct StepCells {
    gt__scaler_cells scaler;
    gt__window_cells window;
    gt__step_control control[2];
};

#ifdef __CUDACC__

template <typename T>
__device__ __forceinline__ void copy_words(T *to, const T *from) {
    static_assert(sizeof(T) % sizeof(uint32_t) == 0, "whole words");
    for (uint32_t i = threadIdx.x; i < sizeof(T) / sizeof(uint32_t); i += blockDim.x)
        reinterpret_cast<uint32_t *>(to)[i] = reinterpret_cast<const uint32_t *>(from)[i];
}

/* A barrier follows, before step_run. */
__device__ __forceinline__ void step_load(const gt__step_task &task, StepCells &cells) {
    if (task.scaler) copy_words(&cells.scaler, task.scaler);
    if (task.window) copy_words(&cells.window, task.window);
    if (task.control) copy_words(&cells.control[0], task.control);
}

/* By one thread; a barrier follows. */
__device__ __forceinline__ void step_run(const gt__step_task &task, StepCells &cells) {
    gt__step_task here = task;
    if (task.scaler) here.scaler = &cells.scaler;
    if (task.window) here.window = &cells.window;
    if (task.control) here.control = cells.control;
    gt__step_run(&here);
}

__device__ __forceinline__ void step_store(const gt__step_task &task, const StepCells &cells) {
    if (task.scaler) copy_words(task.scaler, &cells.scaler);
    if (task.window) copy_words(task.window, &cells.window);
    if (task.control) copy_words(task.control, &cells.control[0]);
    if (task.control && task.kind == GT__STEP_UNSCALE) copy_words(task.control + 1, &cells.control[1]);
}

#endif

} // namespace gt

#endif

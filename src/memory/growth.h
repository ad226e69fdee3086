/* Getting memory for a request that no free block fits. */
#ifndef GT_MEMORY_GROWTH_H
#define GT_MEMORY_GROWTH_H

#include "memory/internal.h"

/* *block is then free and large enough. *moved: cached memory was given back or moved for it. OUT_OF_MEMORY raises nothing. */
gt_status gt__grow(gt__allocator *a, size_t bytes, bool small, bool *moved, gt__block **block);

#endif

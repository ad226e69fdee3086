/* The caching allocator: device memory for one context, over a backend's raw memory. Sizes are rounded to 512 bytes; free blocks are kept, split and
 * merged; best fit. Reuse is ordered by the compute stream, so a block may be freed while queued work still uses it. */
#ifndef GT_MEMORY_ALLOCATOR_H
#define GT_MEMORY_ALLOCATOR_H

#include "backend/backend.h"
#include <gtrain/memory.h>

typedef struct gt__allocator gt__allocator;
typedef struct gt__block gt__block;

gt_status gt__allocator_create(gt__device *device, uint64_t limit, gt__allocator **allocator);
void gt__allocator_destroy(gt__allocator *allocator); /* gives everything back to the device, live blocks too */
void gt__allocator_set_limit(gt__allocator *allocator, uint64_t limit);

/* `op` and `module` (may be NULL; must stay valid while the block lives) say what it is for. OUT_OF_MEMORY unless `quiet`, then just the status. bytes > 0. */
gt_status gt__allocator_alloc(gt__allocator *allocator, size_t bytes, gt_memory_category category, const char *op, const char *module,
                              bool quiet, gt__block **block);
void gt__allocator_free(gt__allocator *allocator, gt__block *block);
void *gt__block_data(const gt__block *block);
/* Moves a live block to another category. */
void gt__block_set_category(gt__allocator *allocator, gt__block *block, gt_memory_category category);
gt_memory_category gt__block_category(const gt__block *block);

void gt__allocator_stats(const gt__allocator *allocator, gt_memory_stats *stats); /* struct_size is left alone */
void gt__allocator_reset_peak(gt__allocator *allocator);
/* Returns wholly free segments to the device. The caller has synchronised. */
void gt__allocator_trim(gt__allocator *allocator);

#endif

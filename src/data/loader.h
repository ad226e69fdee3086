/* What a saved run remembers of its loader, besides where it stands. */
#ifndef GT_DATA_LOADER_H
#define GT_DATA_LOADER_H

#include <gtrain/data.h>

/* What the order of the samples depends on. */
void gt__loader_order(const gt_loader *loader, uint64_t *seed, int32_t *shuffle);

#endif

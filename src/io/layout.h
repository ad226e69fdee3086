/* Between the order in which a file holds a tensor, row-major, and the one in which it lies in memory, on the host: so that neither saving nor loading needs device
 * memory. */
#ifndef GT_IO_LAYOUT_H
#define GT_IO_LAYOUT_H

#include "core/shape.h"

/* `meta` is dense; `logical` and `stored` have numel elements each. */
void gt__layout_to_logical(const gt__meta *meta, const void *stored, void *logical);
void gt__layout_to_stored(const gt__meta *meta, const void *logical, void *stored);

#endif

/* Writing a file so that whoever looks finds the old one or the new one, whole, whatever happens in between. */
#ifndef GT_BASE_REPLACE_FILE_H
#define GT_BASE_REPLACE_FILE_H

#include "base/host.h"

/* Writes `size` bytes to a new file beside `path`, flushes it to the disk, and renames it to `path`. On failure `path` is as it was and nothing is left
 * behind: IO with errno, or BAD_ARGUMENT for a path that names something other than a plain file. `who` is the function that messages name. */
gt_status gt__replace_file(const char *who, const char *path, const void *data, size_t size);

#endif

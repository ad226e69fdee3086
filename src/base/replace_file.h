/* Writing a file so that whoever looks finds the old one or the new one, whole, whatever happens in between. */
#ifndef GT_BASE_REPLACE_FILE_H
#define GT_BASE_REPLACE_FILE_H

#include "base/host.h"

/* Writes `size` bytes to a new file beside `path`, flushes it to the disk, and renames it to `path`. On failure `path` is as it was and nothing is left
 * behind: IO with errno, or BAD_ARGUMENT for a path that names something other than a plain file. `who` is the function that messages name. */
gt_status gt__replace_file(const char *who, const char *path, const void *data, size_t size);

/* The same in pieces, for what is too large to be put together first. `who` and `path` must stay valid until the end. */
typedef struct gt__replacement {
    const char *who, *path;
    char *name; /* of the file beside `path`; NULL: nothing to give up */
    int fd;
} gt__replacement;
gt_status gt__replace_begin(gt__replacement *replacement, const char *who, const char *path);
gt_status gt__replace_write(gt__replacement *replacement, const void *data, size_t size);
/* Flushes and renames. Whatever comes of it, the replacement is over. */
gt_status gt__replace_finish(gt__replacement *replacement);
/* Removes what was written; nothing to do after finish, or for one that is all zero. */
void gt__replace_give_up(gt__replacement *replacement);

#endif

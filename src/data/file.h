/* Reading a file from its beginning to its end, through gzip where it is compressed. */
#ifndef GT_DATA_FILE_H
#define GT_DATA_FILE_H

#include "base/host.h"

typedef struct gt__file gt__file;

/* Opens a regular file for reading. `path` must stay valid while it is open. IO with errno. */
gt_status gt__file_open(const char *path, gt__file **file);
void gt__file_close(gt__file *file); /* NULL is allowed */

/* Reads up to `size` bytes of the (uncompressed) contents; *got < size only at their end. BAD_FILE for damaged or cut-off gzip data. */
gt_status gt__file_read(gt__file *file, void *buffer, size_t size, size_t *got);
gt_status gt__file_rewind(gt__file *file);

/* Whether the contents come out of gzip; then their length is not known before they are read. */
bool gt__file_is_gzip(const gt__file *file);
/* Bytes on disk. */
uint64_t gt__file_size(const gt__file *file);

#endif

/* What the allocator knows, as files: a snapshot in JSON, a picture of its history in HTML, and what PyTorch's memory_viz reads. */
#ifndef GT_MEMORY_FILES_H
#define GT_MEMORY_FILES_H

#include "memory/allocator.h"

/* Which device the memory is of. */
typedef struct gt__memory_origin {
    const char *device;   /* its name */
    uint64_t free, total; /* bytes of the whole device now; 0: unknown */
} gt__memory_origin;

/* Each writes `path` as gt__replace_file does: wholly or not at all. `who` is the public function for messages. IO, OUT_OF_HOST_MEMORY. */
gt_status gt__memory_write_snapshot(const char *who, const gt__allocator *allocator, const gt__memory_origin *origin, const char *path);
gt_status gt__memory_write_timeline(const char *who, const gt__allocator *allocator, const gt__memory_origin *origin, const char *path);
gt_status gt__memory_write_viz(const char *who, const gt__allocator *allocator, const gt__memory_origin *origin, const char *path);

#endif

/* The inside of an open safetensors file. */
#ifndef GT_IO_FILE_H
#define GT_IO_FILE_H

#include "io/table.h"
#include <gtrain/io.h>

struct gt_safetensors {
    char *path;
    int fd;
    const unsigned char *map; /* the whole file */
    uint64_t size;
    const unsigned char *data; /* behind the header, in `map` */
    gt__table table;
};

static inline const gt__entry *gt__safetensors_entry(const gt_safetensors *file, int64_t index) { return &file->table.entries[index]; }
/* Reads the file through once, so that a damaged disk or a file that was shortened is a status here, and not a signal where its map is used. */
gt_status gt__safetensors_verify(const gt_safetensors *file);

#endif

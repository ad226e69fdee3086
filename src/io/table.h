/* The header of a safetensors file, checked and made into a table.
 *
 * A file is a little-endian u64, the header's length; the header, JSON that maps names to dtype, shape and place; and the bytes of the tensors, which fill the rest
 * of the file without overlap or hole. */
#ifndef GT_IO_TABLE_H
#define GT_IO_TABLE_H

#include "base/host.h"
#include <gtrain/tensor.h>

/* The header's length, in bytes; and the longest header that is read, as in the reference implementation. */
#define GT__SAFETENSORS_PREFIX 8
#define GT__SAFETENSORS_HEADER 100000000

/* Small on purpose: an entry takes at least 50 bytes of the header, so the table is never larger than the file. The shape is read from the header when asked for. */
typedef struct gt__entry {
    const char *name;
    uint64_t begin, end; /* of its bytes, from the end of the header */
    uint32_t shape_at;   /* of the shape in the header */
    uint8_t ndim;
    uint8_t type; /* see gt__safetensors_type */
} gt__entry;

typedef struct gt__table {
    char *header; /* a copy, in which names and texts were freed of their escapes and end with NUL */
    gt__entry *entries;
    uint32_t *by_name;  /* numbers of entries, sorted */
    uint32_t *metadata; /* where keys begin in `header`, sorted; a key's text follows behind its NUL */
    uint32_t n_entries, n_metadata;
} gt__table;

/* `data_size`: bytes of the file behind the header. BAD_FILE beginning with `path`. */
gt_status gt__table_read(const char *path, const void *header, size_t header_size, uint64_t data_size, gt__table *table);
void gt__table_free(gt__table *table);
void gt__table_shape(const gt__table *table, const gt__entry *entry, int64_t *shape);
/* Their numbers, or -1. */
int64_t gt__table_find(const gt__table *table, const char *name);
int64_t gt__table_find_text(const gt__table *table, const char *key);

typedef struct gt__safetensors_type {
    const char *name; /* "F32" */
    int32_t bits;     /* of an element */
    gt_dtype dtype;   /* -1: gtrain has none */
} gt__safetensors_type;
const gt__safetensors_type *gt__safetensors_type_at(uint8_t type);
const char *gt__safetensors_type_name(gt_dtype dtype); /* of one of ours */

#endif

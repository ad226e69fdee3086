/* Host memory, options structs, and small helpers. */
#ifndef GT_BASE_HOST_H
#define GT_BASE_HOST_H

#include "base/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

GT_EXTERN_C_BEGIN

/* gt__error_raise with its arguments as a list. */
gt_status gt__error_raisev(gt_status status, const char *file, int line, int64_t native_code, const char *native_name, const char *hint,
                           const char *format, va_list arguments);

/* All host memory of the library comes from here, so that tests can make any allocation fail. NULL with OUT_OF_HOST_MEMORY raised.
 * gt__calloc checks count * size. */
void *gt__malloc(size_t size);
void *gt__calloc(size_t count, size_t size);
void *gt__realloc(void *pointer, size_t size); /* on failure `pointer` is still valid */
void gt__free(void *pointer);
char *gt__strdup(const char *text);

/* Copies a caller's options struct of another version over our own. `theirs` begins with its uint32_t struct_size. `ours` holds the defaults
 * and our struct_size. Shorter: the rest keeps our defaults. Longer with a zero tail: accepted. Longer with a set tail, or
 * size < 4: BAD_ABI. */
gt_status gt__options_read(void *ours, size_t our_size, const void *theirs, const char *type_name);
/* The common part of every _init: writes `defaults` (our_size bytes) cut to `size`, zero beyond, and struct_size. */
gt_status gt__options_write(void *theirs, size_t size, const void *defaults, size_t our_size, const char *type_name);

/* "[8,32,28,28]" into `buffer`; returns `buffer`. */
#define GT__SHAPE_TEXT 200
const char *gt__shape_text(char *buffer, size_t size, int32_t ndim, const int64_t *shape);

/* Seconds from an arbitrary start, monotonic. */
double gt__clock_seconds(void);

/* A growing byte-string for messages. Zero-initialise; text is NUL-terminated once something was added. */
typedef struct gt__text {
    char *data;
    size_t length;
    size_t capacity;
} gt__text;
gt_status gt__text_add(gt__text *text, const char *format, ...) GT__PRINTF(2, 3);
gt_status gt__text_append(gt__text *text, const void *bytes, size_t count); /* as they are */
gt_status gt__text_reserve(gt__text *text, size_t more);                    /* `capacity` for so many more bytes and a NUL */
void gt__text_free(gt__text *text);

GT_EXTERN_C_END

#define GT__MIN(a, b)    ((a) < (b) ? (a) : (b))
#define GT__MAX(a, b)    ((a) > (b) ? (a) : (b))
#define GT__COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif

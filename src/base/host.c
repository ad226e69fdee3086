#include "base/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *checked(void *pointer, size_t size) {
    if (pointer == NULL) (void)GT_RAISE(GT_OUT_OF_HOST_MEMORY, "the host could not give %zu bytes of memory", size);
    return pointer;
}

void *gt__malloc(size_t size) { return checked(malloc(size ? size : 1), size); }

void *gt__calloc(size_t count, size_t size) {
    if (size != 0 && count > SIZE_MAX / size) {
        (void)GT_RAISE(GT_OUT_OF_HOST_MEMORY, "%zu elements of %zu bytes are more than an address range", count, size);
        return NULL;
    }
    size_t total = count * size;
    return checked(calloc(total ? total : 1, 1), total);
}

void *gt__realloc(void *pointer, size_t size) { return checked(realloc(pointer, size ? size : 1), size); }

void gt__free(void *pointer) { free(pointer); }

char *gt__strdup(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = gt__malloc(size);
    if (copy) memcpy(copy, text, size);
    return copy;
}

gt_status gt__options_read(void *ours, size_t our_size, const void *theirs, const char *type_name) {
    uint32_t size = 0;
    memcpy(&size, theirs, sizeof size);
    GT_REQUIRE(size >= sizeof size, GT_BAD_ABI, "%s: struct_size is %u; fill the struct with %s_init(&options, sizeof options) first",
               type_name, (unsigned)size, type_name);
    if (size > our_size) {
        const unsigned char *bytes = theirs;
        for (size_t i = our_size; i < size; ++i) {
            GT_REQUIRE(bytes[i] == 0, GT_BAD_ABI,
                       "%s: the caller's struct has %u bytes and sets byte %zu, but version %s of the library knows %zu bytes", type_name,
                       (unsigned)size, i, gt_version_string(), our_size);
        }
    }
    memcpy(ours, theirs, GT__MIN((size_t)size, our_size));
    uint32_t full = (uint32_t)our_size;
    memcpy(ours, &full, sizeof full);
    return GT_OK;
}

gt_status gt__options_write(void *theirs, size_t size, const void *defaults, size_t our_size, const char *type_name) {
    GT_REQUIRE(theirs != NULL, GT_BAD_ARGUMENT, "%s_init: the struct is NULL", type_name);
    GT_REQUIRE(size >= sizeof(uint32_t) && size <= (1u << 20), GT_BAD_ABI, "%s_init: a size of %zu bytes is not one of a %s", type_name,
               size, type_name);
    memset(theirs, 0, size);
    memcpy(theirs, defaults, GT__MIN(size, our_size));
    uint32_t full = (uint32_t)size;
    memcpy(theirs, &full, sizeof full);
    return GT_OK;
}

const char *gt__shape_text(char *buffer, size_t size, int32_t ndim, const int64_t *shape) {
    size_t used = 0;
    int written = snprintf(buffer, size, "[");
    used += (size_t)written;
    for (int32_t i = 0; i < ndim && used < size; ++i) {
        written = snprintf(buffer + used, size - used, i ? ",%lld" : "%lld", (long long)shape[i]);
        used += (size_t)written;
    }
    if (used < size) (void)snprintf(buffer + used, size - used, "]");
    return buffer;
}

double gt__clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

gt_status gt__text_reserve(gt__text *text, size_t more) {
    if (more < text->capacity - text->length) return GT_OK; /* and the NUL */
    size_t capacity = GT__MAX(text->capacity * 2, text->length + more + 64);
    char *data = gt__realloc(text->data, capacity);
    if (data == NULL) return GT_OUT_OF_HOST_MEMORY;
    text->data = data;
    text->capacity = capacity;
    return GT_OK;
}

gt_status gt__text_add(gt__text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int needed = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    gt_status status = needed < 0 ? GT_RAISE(GT_INTERNAL, "a message could not be formatted") : gt__text_reserve(text, (size_t)needed);
    if (status == GT_OK) {
        (void)vsnprintf(text->data + text->length, (size_t)needed + 1, format, again);
        text->length += (size_t)needed;
    }
    va_end(again);
    return status;
}

gt_status gt__text_append(gt__text *text, const void *bytes, size_t count) {
    GT_TRY(gt__text_reserve(text, count));
    memcpy(text->data + text->length, bytes, count);
    text->length += count;
    text->data[text->length] = '\0';
    return GT_OK;
}

void gt__text_free(gt__text *text) {
    gt__free(text->data);
    *text = (gt__text){0};
}

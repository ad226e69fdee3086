#include "io/host_memory.h"

#include <errno.h>

static _Thread_local int64_t left = -1;
static _Thread_local int failed;
static _Thread_local size_t largest;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);

void host_memory_watch(int64_t after) {
    left = after;
    failed = 0;
    largest = 0;
}

int host_memory_failed(void) { return failed; }
size_t host_memory_largest(void) { return largest; }

static int allowed(size_t size) {
    if (size > largest) largest = size;
    if (left < 0 || left-- > 0) return 1;
    failed = 1;
    errno = ENOMEM;
    return 0;
}

void *__wrap_malloc(size_t size) { return allowed(size) ? __real_malloc(size) : NULL; }
void *__wrap_calloc(size_t count, size_t size) { return allowed(count * size) ? __real_calloc(count, size) : NULL; }
void *__wrap_realloc(void *pointer, size_t size) { return allowed(size) ? __real_realloc(pointer, size) : NULL; }

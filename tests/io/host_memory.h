/* The library's host allocations, watched: how large the largest was, and one that fails. Link with --wrap=malloc, calloc and realloc. */
#ifndef TESTS_IO_HOST_MEMORY_H
#define TESTS_IO_HOST_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* From now on the `after`th allocation (0: the next) of this thread fails, just that one; negative: none. Forgets the largest. */
void host_memory_watch(int64_t after);
int host_memory_failed(void);     /* one has failed since then */
size_t host_memory_largest(void); /* bytes of the largest request of this thread since then */

#endif

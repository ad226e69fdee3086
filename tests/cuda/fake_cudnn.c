/* A cuDNN that only knows its version. */
#include <stddef.h>

__attribute__((visibility("default"))) size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void) { return VERSION; }

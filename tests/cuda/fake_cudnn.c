/* A cuDNN that only knows its version, or not even that. */
#include <stdlib.h>

__attribute__((visibility("default"))) size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void) {
#ifdef INCOMPLETE
    abort(); /* as the real one does where it does not find what it calls */
#else
    return VERSION;
#endif
}

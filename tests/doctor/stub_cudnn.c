/* libcudnn.so.9: like the real one, it ends the process if what it hands calls to is not there. The doctor must not call it. */
#include "stubs.h"

EXPORT size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void) { abort(); }

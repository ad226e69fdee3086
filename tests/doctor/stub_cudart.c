/* libcudart.so.13: STUB_RUNTIME (13000). */
#include "stubs.h"

EXPORT int cudaRuntimeGetVersion(int *version);
int cudaRuntimeGetVersion(int *version) {
    *version = (int)stub_number("STUB_RUNTIME", 13000);
    return 0;
}

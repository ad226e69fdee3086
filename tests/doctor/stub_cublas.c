/* libcublas.so.13: STUB_CUBLAS (130100). */
#include "stubs.h"

EXPORT int cublasGetProperty(int kind, int *value);
int cublasGetProperty(int kind, int *value) {
    int version = (int)stub_number("STUB_CUBLAS", 130100);
    *value = kind == 0 ? version / 10000 : kind == 1 ? version % 10000 / 100 : version % 100;
    return 0;
}

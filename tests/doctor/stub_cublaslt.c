/* libcublasLt.so.13: STUB_CUBLASLT (130100). */
#include "stubs.h"

EXPORT size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void) { return (size_t)stub_number("STUB_CUBLASLT", 130100); }

/* libcudnn_graph.so.9, which does cuDNN's work: STUB_CUDNN (91400). */
#include "stubs.h"

EXPORT size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void) { return (size_t)stub_number("STUB_CUDNN", 91400); }

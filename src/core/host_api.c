/* The functions of libgtrain.so that the CUDA module may call. */
#include "core/core.h"

const gt__host_api *gt__host_functions(void) {
    static const gt__host_api functions = {
        .abi = GT__BACKEND_ABI,
        .op_count = GT__OP_COUNT,
        .error_raisev = gt__error_raisev,
        .malloc_fn = gt__malloc,
        .calloc_fn = gt__calloc,
        .realloc_fn = gt__realloc,
        .free_fn = gt__free,
        .scratch_alloc = gt__scratch_alloc,
        .scratch_free = gt__scratch_free,
        .scratch_alloc_quiet = gt__scratch_alloc_quiet,
        .cache_release = gt__cache_release,
        .log = gt__log_text,
        .call_text = gt__call_text,
        .custom_run = gt__custom_run,
        .shape_text = gt__shape_text,
    };
    return &functions;
}

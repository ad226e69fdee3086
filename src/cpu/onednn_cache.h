/* Primitives that were built, by the whole description of the call: building one generates code and costs far more than running it. At most
 * GT__ONEDNN_CACHE of them are kept; the least recently used one makes way. */
#ifndef GT_CPU_ONEDNN_CACHE_H
#define GT_CPU_ONEDNN_CACHE_H

#include "base/host.h"
#include "cpu/onednn_api.h"

#define GT__ONEDNN_CACHE 256
#define GT__ONEDNN_KEY   64

/* All that a primitive depends on; unused numbers are 0. */
typedef struct gt__onednn_key {
    int64_t numbers[GT__ONEDNN_KEY];
} gt__onednn_key;

typedef struct gt__onednn_plan {
    dnnl_primitive_t primitive; /* NULL: oneDNN cannot do this well */
    dnnl_primitive_t reorder;   /* of the weights, or of their gradient; NULL: they lie as wanted */
    dnnl_memory_t src, weights, bias, dst;
    dnnl_memory_t own_weights; /* in the layout that oneDNN chose; NULL without a reorder */
    dnnl_memory_t scratchpad;  /* NULL if none is needed */
    size_t scratchpad_bytes, own_weights_bytes;
} gt__onednn_plan;

typedef struct gt__onednn_cache gt__onednn_cache;

gt__onednn_cache *gt__onednn_cache_create(void); /* NULL with OUT_OF_HOST_MEMORY raised */
void gt__onednn_cache_destroy(gt__onednn_cache *cache);
/* The plan, or NULL. Valid until the next put. */
gt__onednn_plan *gt__onednn_cache_get(gt__onednn_cache *cache, const gt__onednn_key *key);
/* Takes over the plan's contents. */
gt__onednn_plan *gt__onednn_cache_put(gt__onednn_cache *cache, const gt__onednn_key *key, const gt__onednn_plan *plan);
void gt__onednn_plan_free(gt__onednn_plan *plan);

#endif

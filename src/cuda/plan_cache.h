/* A bounded map from a call's description to what was prepared for it (an algorithm, an execution plan). Keys are flat structs of one size,
 * compared bytewise: zero them before filling. When it is full the entry that was used longest ago makes room, so that changing shapes do
 * not grow memory. One thread at a time, as the device it belongs to. */
#ifndef GT_CUDA_PLAN_CACHE_H
#define GT_CUDA_PLAN_CACHE_H

#include "base/host.h"

typedef struct gt__plan_entry {
    struct gt__plan_entry *chain;         /* of one bucket */
    struct gt__plan_entry *newer, *older; /* by last use */
    uint64_t hash;
    /* then the key, then the plan */
} gt__plan_entry;

typedef struct gt__plan_cache {
    gt__plan_entry **buckets; /* a power of two of them; NULL until the first entry */
    gt__plan_entry *newest, *oldest;
    size_t key_bytes, plan_bytes; /* multiples of 8 */
    uint32_t bucket_count, count, capacity;
    void (*dispose)(void *plan); /* frees what a plan owns */
} gt__plan_cache;

void gt__plan_cache_init(gt__plan_cache *cache, size_t key_bytes, size_t plan_bytes, uint32_t capacity, void (*dispose)(void *plan));
/* Frees all entries, calling dispose for each unless `abandon`: then what they own is left alone. */
void gt__plan_cache_clear(gt__plan_cache *cache, bool abandon);
/* The plan stored for `key`, or NULL. Valid until the next add. */
void *gt__plan_cache_find(gt__plan_cache *cache, const void *key);
/* Stores a copy of *plan, which then owns what plan owned; `key` is not there yet. Returns the stored plan. NULL with OUT_OF_HOST_MEMORY raised:
 * the caller still owns it. */
void *gt__plan_cache_add(gt__plan_cache *cache, const void *key, const void *plan);

#endif

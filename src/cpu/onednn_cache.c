#include "cpu/onednn_cache.h"

#define BUCKETS 512
#define NONE    (-1)

typedef struct entry {
    gt__onednn_key key;
    gt__onednn_plan plan;
    uint64_t last_use;
    int32_t bucket;
    int32_t next; /* in the bucket */
} entry;

struct gt__onednn_cache {
    entry entries[GT__ONEDNN_CACHE];
    int32_t first[BUCKETS];
    int32_t count;
    uint64_t uses;
};

gt__onednn_cache *gt__onednn_cache_create(void) {
    gt__onednn_cache *cache = gt__calloc(1, sizeof *cache);
    if (!cache) return NULL;
    for (int32_t i = 0; i < BUCKETS; i++) cache->first[i] = NONE;
    return cache;
}

void gt__onednn_plan_free(gt__onednn_plan *plan) {
    dnnl_memory_t memories[] = {plan->src, plan->weights, plan->bias, plan->dst, plan->own_weights, plan->scratchpad};
    for (size_t i = 0; i < GT__COUNT(memories); i++)
        if (memories[i]) (void)dnnl_memory_destroy(memories[i]);
    if (plan->primitive) (void)dnnl_primitive_destroy(plan->primitive);
    if (plan->reorder) (void)dnnl_primitive_destroy(plan->reorder);
    memset(plan, 0, sizeof *plan);
}

void gt__onednn_cache_destroy(gt__onednn_cache *cache) {
    if (!cache) return;
    for (int32_t i = 0; i < cache->count; i++) gt__onednn_plan_free(&cache->entries[i].plan);
    gt__free(cache);
}

static int32_t bucket_of(const gt__onednn_key *key) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t i = 0; i < GT__ONEDNN_KEY; i++) hash = (hash ^ (uint64_t)key->numbers[i]) * 0x100000001b3u;
    return (int32_t)((hash ^ hash >> 29) % BUCKETS);
}

gt__onednn_plan *gt__onednn_cache_get(gt__onednn_cache *cache, const gt__onednn_key *key) {
    for (int32_t i = cache->first[bucket_of(key)]; i != NONE; i = cache->entries[i].next) {
        if (memcmp(&cache->entries[i].key, key, sizeof *key) != 0) continue;
        cache->entries[i].last_use = ++cache->uses;
        return &cache->entries[i].plan;
    }
    return NULL;
}

/* A free place: a new one, or that of the least recently used. */
static int32_t take_place(gt__onednn_cache *cache) {
    if (cache->count < GT__ONEDNN_CACHE) return cache->count++;
    int32_t oldest = 0;
    for (int32_t i = 1; i < GT__ONEDNN_CACHE; i++)
        if (cache->entries[i].last_use < cache->entries[oldest].last_use) oldest = i;
    int32_t *link = &cache->first[cache->entries[oldest].bucket];
    while (*link != oldest) link = &cache->entries[*link].next;
    *link = cache->entries[oldest].next;
    gt__onednn_plan_free(&cache->entries[oldest].plan);
    return oldest;
}

gt__onednn_plan *gt__onednn_cache_put(gt__onednn_cache *cache, const gt__onednn_key *key, const gt__onednn_plan *plan) {
    int32_t place = take_place(cache);
    entry *e = &cache->entries[place];
    e->key = *key;
    e->plan = *plan;
    e->last_use = ++cache->uses;
    e->bucket = bucket_of(key);
    e->next = cache->first[e->bucket];
    cache->first[e->bucket] = place;
    return &e->plan;
}

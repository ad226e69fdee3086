#include "cuda/plan_cache.h"

static unsigned char *entry_key(gt__plan_entry *entry) { return (unsigned char *)(entry + 1); }

static void *entry_plan(const gt__plan_cache *cache, gt__plan_entry *entry) { return entry_key(entry) + cache->key_bytes; }

static uint64_t hash_key(const void *key, size_t bytes) {
    const unsigned char *at = key;
    uint64_t hash = 0x9e3779b97f4a7c15u ^ bytes;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word;
        memcpy(&word, at + i, sizeof word);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

void gt__plan_cache_init(gt__plan_cache *cache, size_t key_bytes, size_t plan_bytes, uint32_t capacity, void (*dispose)(void *plan)) {
    *cache = (gt__plan_cache){.key_bytes = key_bytes, .plan_bytes = plan_bytes, .capacity = capacity, .dispose = dispose};
    cache->bucket_count = 64;
    while (cache->bucket_count < capacity) cache->bucket_count *= 2;
}

static void unlink_use(gt__plan_cache *cache, gt__plan_entry *entry) {
    if (entry->newer)
        entry->newer->older = entry->older;
    else
        cache->newest = entry->older;
    if (entry->older)
        entry->older->newer = entry->newer;
    else
        cache->oldest = entry->newer;
}

static void link_newest(gt__plan_cache *cache, gt__plan_entry *entry) {
    entry->newer = NULL;
    entry->older = cache->newest;
    if (cache->newest)
        cache->newest->newer = entry;
    else
        cache->oldest = entry;
    cache->newest = entry;
}

static void drop_oldest(gt__plan_cache *cache) {
    gt__plan_entry *entry = cache->oldest;
    gt__plan_entry **link = &cache->buckets[entry->hash & (cache->bucket_count - 1)];
    while (*link != entry) link = &(*link)->chain;
    *link = entry->chain;
    unlink_use(cache, entry);
    cache->count--;
    cache->dispose(entry_plan(cache, entry));
    gt__free(entry);
}

void gt__plan_cache_clear(gt__plan_cache *cache, bool abandon) {
    gt__plan_entry *entry = cache->newest;
    while (entry) {
        gt__plan_entry *next = entry->older;
        if (!abandon) cache->dispose(entry_plan(cache, entry));
        gt__free(entry);
        entry = next;
    }
    gt__free(cache->buckets);
    cache->buckets = NULL;
    cache->newest = cache->oldest = NULL;
    cache->count = 0;
}

void *gt__plan_cache_find(gt__plan_cache *cache, const void *key) {
    /* A training step repeats its calls in order, so the newest entry is rarely the one: no short cut for it. */
    if (!cache->buckets) return NULL;
    uint64_t hash = hash_key(key, cache->key_bytes);
    gt__plan_entry *entry = cache->buckets[hash & (cache->bucket_count - 1)];
    while (entry && (entry->hash != hash || memcmp(entry_key(entry), key, cache->key_bytes) != 0)) entry = entry->chain;
    if (!entry) return NULL;
    if (entry != cache->newest) {
        unlink_use(cache, entry);
        link_newest(cache, entry);
    }
    return entry_plan(cache, entry);
}

void *gt__plan_cache_add(gt__plan_cache *cache, const void *key, const void *plan) {
    if (!cache->buckets) {
        cache->buckets = gt__calloc(cache->bucket_count, sizeof *cache->buckets);
        if (!cache->buckets) return NULL;
    }
    gt__plan_entry *entry = gt__malloc(sizeof *entry + cache->key_bytes + cache->plan_bytes);
    if (!entry) return NULL;
    if (cache->count == cache->capacity) drop_oldest(cache);
    entry->hash = hash_key(key, cache->key_bytes);
    memcpy(entry_key(entry), key, cache->key_bytes);
    memcpy(entry_plan(cache, entry), plan, cache->plan_bytes);
    gt__plan_entry **bucket = &cache->buckets[entry->hash & (cache->bucket_count - 1)];
    entry->chain = *bucket;
    *bucket = entry;
    link_newest(cache, entry);
    cache->count++;
    return entry_plan(cache, entry);
}

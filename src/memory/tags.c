/* Bytes in use by (op, module, category), and at the ends of the last steps. Steps cost nothing here: a tag fills in those it slept through when it changes. */
#include "memory/internal.h"

static size_t hash_of(const char *op, const char *module, gt_memory_category category) {
    uint64_t h =
        (uint64_t)(uintptr_t)op * 0x9e3779b97f4a7c15ull ^ ((uint64_t)(uintptr_t)module + (uint64_t)category) * 0xc2b2ae3d27d4eb4full;
    return (size_t)(h >> 20 ^ h >> 40);
}

/* Where the tag is, or the empty slot where it belongs. */
static size_t slot_of(const gt__tags *tags, const char *op, const char *module, gt_memory_category category) {
    size_t mask = tags->capacity - 1, i = hash_of(op, module, category) & mask;
    for (; tags->slots[i]; i = (i + 1) & mask) {
        const gt__tag_bytes *t = tags->slots[i];
        if (t->op == op && t->module == module && t->category == category) break;
    }
    return i;
}

static gt_status grow(gt__tags *tags) {
    gt__tags larger = {.capacity = tags->capacity ? tags->capacity * 2 : 64, .count = tags->count};
    larger.slots = gt__calloc(larger.capacity, sizeof *larger.slots);
    if (larger.slots == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (size_t i = 0; i < tags->capacity; ++i) {
        gt__tag_bytes *t = tags->slots[i];
        if (t) larger.slots[slot_of(&larger, t->op, t->module, t->category)] = t;
    }
    gt__free(tags->slots);
    *tags = larger;
    return GT_OK;
}

gt__tag_bytes *gt__tags_find(gt__tags *tags, const char *op, const char *module, gt_memory_category category, uint64_t steps) {
    if (GT__LIKELY(tags->capacity)) {
        gt__tag_bytes *found = tags->slots[slot_of(tags, op, module, category)];
        if (GT__LIKELY(found)) return found;
    }
    if (2 * (tags->count + 1) > tags->capacity && grow(tags) != GT_OK) return NULL;
    gt__tag_bytes *made = gt__calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->op = op;
    made->module = module;
    made->category = category;
    made->synced = steps;
    tags->slots[slot_of(tags, op, module, category)] = made;
    tags->count++;
    return made;
}

void gt__tags_free(gt__tags *tags) {
    for (size_t i = 0; i < tags->capacity; ++i) gt__free(tags->slots[i]);
    gt__free(tags->slots);
    *tags = (gt__tags){0};
}

void gt__tag_sync(gt__tag_bytes *tag, uint64_t steps) {
    uint64_t first = steps > GT__GROWTH_STEPS ? steps - GT__GROWTH_STEPS : 0;
    for (uint64_t t = GT__MAX(tag->synced, first); t < steps; ++t) tag->bytes[t % GT__GROWTH_STEPS] = tag->now;
    tag->synced = steps;
}

void gt__allocator_visit_tags(const gt__allocator *a, gt__tag_visitor visit, void *user) {
    uint64_t steps = a->stats.steps;
    for (size_t i = 0; i < a->tags.capacity; ++i) {
        if (a->tags.slots[i] == NULL) continue;
        gt__tag_bytes t = *a->tags.slots[i];
        gt__tag_sync(&t, steps);
        gt__tag_growth growth = {.op = t.op, .module = t.module, .category = t.category, .now = t.now};
        growth.steps = (int32_t)GT__MIN(steps, (uint64_t)GT__GROWTH_STEPS);
        uint64_t any = t.now;
        for (int32_t k = 0; k < growth.steps; ++k) {
            growth.bytes[k] = t.bytes[(steps - (uint64_t)growth.steps + (uint64_t)k) % GT__GROWTH_STEPS];
            any |= growth.bytes[k];
        }
        if (any) visit(user, &growth);
    }
}

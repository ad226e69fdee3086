/* Block records, and free blocks by size: sixteen classes for every power of two, so that the first class with a block is nearly the best fit, and of the first
 * few blocks of a class the smallest that fits is taken. A bitmap of classes that are not empty makes the search constant time; all of a class are looked at only
 * where nothing else fits. */
#include "memory/internal.h"

enum { SLAB = 64, SCAN_MOST = 12, LINE = 64 };

/* SLAB records follow, from the next cache line on. */
struct gt__block_slab {
    struct gt__block_slab *next;
};

/* --- records ---------------------------------------------------------------------------------------------------------------------- */

gt_status gt__blocks_ensure(gt__allocator *a, int32_t count) {
    if (GT__LIKELY(a->spares >= count)) return GT_OK;
    struct gt__block_slab *slab = gt__calloc(1, sizeof *slab + LINE + SLAB * sizeof(gt__block));
    if (slab == NULL) return GT_OUT_OF_HOST_MEMORY;
    slab->next = a->slabs;
    a->slabs = slab;
    gt__block *records = (gt__block *)(((uintptr_t)(slab + 1) + LINE - 1) / LINE * LINE);
    for (int i = SLAB - 1; i >= 0; --i) gt__block_recycle(a, &records[i]);
    return GT_OK;
}

void gt__blocks_free(gt__allocator *a) {
    while (a->slabs) {
        struct gt__block_slab *slab = a->slabs;
        a->slabs = slab->next;
        gt__free(slab);
    }
}

gt__block *gt__block_new(gt__allocator *a) {
    gt__block *block = a->spare;
    a->spare = block->next;
    a->spares--;
    block->left = block->right = block->next = block->previous = NULL;
    return block;
}

void gt__block_recycle(gt__allocator *a, gt__block *block) {
    block->next = a->spare;
    a->spare = block;
    a->spares++;
}

gt__block *gt__block_cut(gt__allocator *a, gt__block *block, size_t bytes) {
    gt__block *right = gt__block_new(a);
    right->data = block->data + bytes;
    right->bytes = block->bytes - bytes;
    right->segment = block->segment;
    right->state = block->state;
    right->left = block;
    right->right = block->right;
    if (right->right) right->right->left = right;
    block->right = right;
    block->bytes = bytes;
    return right;
}

void gt__block_join_right(gt__allocator *a, gt__block *block) {
    gt__block *right = block->right;
    block->bytes += right->bytes;
    block->right = right->right;
    if (block->right) block->right->left = block;
    gt__block_recycle(a, right);
}

/* --- classes ---------------------------------------------------------------------------------------------------------------------- */

static int class_of(size_t bytes) {
    uint64_t units = bytes / GT__MEMORY_UNIT;
    int log = 63 - __builtin_clzll(units);
    if (log < GT__CLASS_SUB_BITS) return (int)units;
    int sub = (int)(units >> (log - GT__CLASS_SUB_BITS)) & ((1 << GT__CLASS_SUB_BITS) - 1);
    return ((log - GT__CLASS_SUB_BITS + 1) << GT__CLASS_SUB_BITS) + sub;
}

static void class_insert(gt__allocator *a, gt__block *block) {
    int c = class_of(block->bytes), small = block->segment->small;
    block->state = GT__BLOCK_FREE;
    block->previous = NULL;
    block->next = a->classes[small][c];
    if (block->next) block->next->previous = block;
    a->classes[small][c] = block;
    a->bitmap[small][c / 64] |= 1ull << (c % 64);
}

void gt__class_remove(gt__allocator *a, gt__block *block) {
    int c = class_of(block->bytes), small = block->segment->small;
    if (block->previous) {
        block->previous->next = block->next;
    } else {
        a->classes[small][c] = block->next;
        if (block->next == NULL) a->bitmap[small][c / 64] &= ~(1ull << (c % 64));
    }
    if (block->next) block->next->previous = block->previous;
}

gt__block *gt__block_set_free(gt__allocator *a, gt__block *block) {
    if (block->right && block->right->state == GT__BLOCK_FREE) {
        gt__class_remove(a, block->right);
        gt__block_join_right(a, block);
    }
    if (block->left && block->left->state == GT__BLOCK_FREE) {
        block = block->left;
        gt__class_remove(a, block);
        gt__block_join_right(a, block);
    }
    class_insert(a, block);
    return block;
}

static gt__block *smallest_fit(gt__block *list, size_t bytes, int most) {
    gt__block *best = NULL;
    for (gt__block *b = list; b && most > 0; b = b->next, --most) {
        if (b->bytes >= bytes && (best == NULL || b->bytes < best->bytes)) {
            best = b;
            if (b->bytes == bytes) break;
        }
    }
    return best;
}

gt__block *gt__class_find(const gt__allocator *a, bool small, size_t bytes) {
    int own = class_of(bytes);
    gt__block *found = smallest_fit(a->classes[small][own], bytes, SCAN_MOST);
    if (found) return found;
    /* Every block of a higher class fits. */
    for (int word = (own + 1) / 64; word < GT__CLASS_WORDS; ++word) {
        uint64_t bits = a->bitmap[small][word];
        if (word == (own + 1) / 64) bits &= ~0ull << ((own + 1) % 64);
        if (bits) return smallest_fit(a->classes[small][word * 64 + __builtin_ctzll(bits)], bytes, SCAN_MOST);
    }
    return smallest_fit(a->classes[small][own], bytes, INT32_MAX);
}

size_t gt__class_largest(const gt__allocator *a, bool small) {
    size_t most = 0;
    for (int word = GT__CLASS_WORDS - 1; word >= 0; --word) {
        if (a->bitmap[small][word] == 0) continue;
        int top = word * 64 + 63 - __builtin_clzll(a->bitmap[small][word]);
        for (const gt__block *b = a->classes[small][top]; b; b = b->next) most = GT__MAX(most, b->bytes);
        break;
    }
    return most;
}

/* Random numbers for feeding data. Keys form a tree: the seed, an epoch under it, a sample under that. */
#ifndef GT_DATA_RANDOM_H
#define GT_DATA_RANDOM_H

#include "core/philox.h"

/* What an epoch's numbers are for. */
enum { GT__KEY_ORDER = 0, GT__KEY_TRANSFORM = 1 };

static inline uint64_t gt__key_child(uint64_t key, uint64_t child) {
    gt__philox_block block = gt__philox(key, child);
    return (uint64_t)block.word[1] << 32 | block.word[0];
}

static inline uint64_t gt__key_epoch(uint64_t seed, int64_t epoch, int purpose) {
    return gt__key_child(seed, 2 * (uint64_t)epoch + (uint64_t)purpose);
}

/* 0 to n - 1, 0 < n <= 2^32. */
static inline int64_t gt__below(uint32_t word, int64_t n) { return (int64_t)((uint64_t)word * (uint64_t)n >> 32); }

#endif

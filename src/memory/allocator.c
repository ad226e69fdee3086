#include "memory/allocator.h"

#include <stdio.h>

/* Free blocks are kept by size: eight classes for every power of two, so that the first class with a block is nearly the best fit, and within a
 * class the smallest block that fits is taken. A bitmap of non-empty classes makes the search constant time. */
enum { GRAIN = 512, SUB_BITS = 3, CLASS_COUNT = 64 << SUB_BITS, WORDS = CLASS_COUNT / 64, SCAN_MOST = 32 };
static const size_t SMALL_MOST = 1u << 20; /* requests up to this share small segments */
static const size_t SMALL_SEGMENT = 2u << 20;
static const size_t MEDIUM_MOST = 10u << 20;
static const size_t MEDIUM_SEGMENT = 20u << 20;
static const size_t LARGE_ROUND = 2u << 20;

typedef struct segment {
    void *data;
    size_t bytes;
    bool small;
    struct segment *next, *previous;
} segment;

struct gt__block {
    char *data;
    size_t bytes;
    segment *segment;
    gt__block *left, *right; /* neighbours in the segment, by address */
    gt__block *class_next, *class_previous;
    const char *op, *module;
    gt_memory_category category;
    bool free;
};

struct gt__allocator {
    gt__device *device;
    uint64_t limit;
    gt__block *classes[2][CLASS_COUNT]; /* [small] */
    uint64_t bitmap[2][WORDS];
    segment *segments;
    gt__block *spare; /* recycled block records, linked by class_next */
    gt_memory_stats stats;
};

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/* The class whose blocks have at least this size's class floor. */
static int class_of(size_t bytes) {
    uint64_t grains = bytes / GRAIN;
    int log = 63 - __builtin_clzll(grains);
    if (log < SUB_BITS) return (int)grains;
    int sub = (int)(grains >> (log - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    return ((log - SUB_BITS + 1) << SUB_BITS) + sub;
}

static void class_insert(gt__allocator *a, gt__block *block) {
    int c = class_of(block->bytes);
    int small = block->segment->small;
    block->free = true;
    block->class_previous = NULL;
    block->class_next = a->classes[small][c];
    if (block->class_next) block->class_next->class_previous = block;
    a->classes[small][c] = block;
    a->bitmap[small][c / 64] |= 1ull << (c % 64);
}

static void class_remove(gt__allocator *a, gt__block *block) {
    int c = class_of(block->bytes);
    int small = block->segment->small;
    if (block->class_previous) {
        block->class_previous->class_next = block->class_next;
    } else {
        a->classes[small][c] = block->class_next;
        if (block->class_next == NULL) a->bitmap[small][c / 64] &= ~(1ull << (c % 64));
    }
    if (block->class_next) block->class_next->class_previous = block->class_previous;
    block->free = false;
}

static gt__block *smallest_fit(gt__block *list, size_t bytes, bool all) {
    gt__block *best = NULL;
    int seen = 0;
    for (gt__block *b = list; b && (all || seen < SCAN_MOST); b = b->class_next, ++seen) {
        if (b->bytes >= bytes && (best == NULL || b->bytes < best->bytes)) {
            best = b;
            if (b->bytes == bytes) break;
        }
    }
    return best;
}

static gt__block *find_free(gt__allocator *a, bool small, size_t bytes) {
    int c = class_of(bytes);
    gt__block *own = smallest_fit(a->classes[small][c], bytes, true);
    if (own) return own;
    ++c;
    for (int word = c / 64; word < WORDS; ++word) {
        uint64_t bits = a->bitmap[small][word];
        if (word == c / 64) bits &= c % 64 ? ~0ull << (c % 64) : ~0ull;
        if (bits) return smallest_fit(a->classes[small][word * 64 + __builtin_ctzll(bits)], bytes, false);
    }
    return NULL;
}

static gt__block *record_new(gt__allocator *a) {
    gt__block *block = a->spare;
    if (block) {
        a->spare = block->class_next;
        memset(block, 0, sizeof *block);
        return block;
    }
    return gt__calloc(1, sizeof *block);
}

static void record_recycle(gt__allocator *a, gt__block *block) {
    block->class_next = a->spare;
    a->spare = block;
}

static gt_status device_alloc(gt__allocator *a, size_t bytes, void **data) {
    const gt__backend *backend = a->device->backend;
    int32_t previous = backend->enter ? backend->enter(a->device) : 0;
    gt_status status = backend->memory_alloc(a->device, bytes, data);
    if (backend->enter) backend->leave(a->device, previous);
    return status;
}

static void device_free(gt__allocator *a, void *data) {
    const gt__backend *backend = a->device->backend;
    int32_t previous = backend->enter ? backend->enter(a->device) : 0;
    backend->memory_free(a->device, data);
    if (backend->enter) backend->leave(a->device, previous);
}

/* Gives a wholly free segment, known by its only block, back to the device. */
static void segment_return(gt__allocator *a, gt__block *block) {
    segment *s = block->segment;
    class_remove(a, block);
    record_recycle(a, block);
    device_free(a, s->data);
    a->stats.reserved -= s->bytes;
    if (s->previous)
        s->previous->next = s->next;
    else
        a->segments = s->next;
    if (s->next) s->next->previous = s->previous;
    gt__free(s);
}

void gt__allocator_trim(gt__allocator *a) {
    for (int small = 0; small < 2; ++small) {
        for (int c = 0; c < CLASS_COUNT; ++c) {
            gt__block *next;
            for (gt__block *b = a->classes[small][c]; b; b = next) {
                next = b->class_next;
                if (b->left == NULL && b->right == NULL) segment_return(a, b);
            }
        }
    }
}

static bool segment_fits(const gt__allocator *a, size_t bytes) {
    return a->limit == 0 || (bytes <= a->limit && a->stats.reserved <= a->limit - bytes);
}

/* A new segment of `bytes` as one free block (not in a class yet). */
static gt_status segment_new(gt__allocator *a, size_t bytes, bool small, gt__block **out) {
    segment *s = gt__calloc(1, sizeof *s);
    if (s == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__block *block = record_new(a);
    if (block == NULL) {
        gt__free(s);
        return GT_OUT_OF_HOST_MEMORY;
    }
    gt_status status = device_alloc(a, bytes, &s->data);
    if (status != GT_OK) {
        record_recycle(a, block);
        gt__free(s);
        return status;
    }
    s->bytes = bytes;
    s->small = small;
    s->next = a->segments;
    if (s->next) s->next->previous = s;
    a->segments = s;
    a->stats.reserved += bytes;
    a->stats.peak_reserved = GT__MAX(a->stats.peak_reserved, a->stats.reserved);
    a->stats.device_allocations++;
    block->data = s->data;
    block->bytes = bytes;
    block->segment = s;
    *out = block;
    return GT_OK;
}

static gt_status grow(gt__allocator *a, size_t bytes, bool small, gt__block **out) {
    size_t generous = small ? SMALL_SEGMENT : bytes <= MEDIUM_MOST ? MEDIUM_SEGMENT : round_up(bytes, LARGE_ROUND);
    gt_status status = GT_OUT_OF_MEMORY;
    if (segment_fits(a, generous)) status = segment_new(a, generous, small, out);
    if (status != GT_OUT_OF_MEMORY) return status;
    /* Short of memory: give back what is cached, then ask for no more than is needed. */
    gt__allocator_trim(a);
    if (segment_fits(a, generous)) status = segment_new(a, generous, small, out);
    if (status == GT_OUT_OF_MEMORY && segment_fits(a, bytes)) status = segment_new(a, bytes, small, out);
    return status;
}

static void split(gt__allocator *a, gt__block *block, size_t bytes, bool small) {
    size_t rest = block->bytes - bytes;
    if (rest < (small ? (size_t)GRAIN : SMALL_MOST)) return;
    gt__block *right = record_new(a);
    if (right == NULL) { /* a larger block than needed is still right */
        gt_clear_error();
        return;
    }
    right->data = block->data + bytes;
    right->bytes = rest;
    right->segment = block->segment;
    right->left = block;
    right->right = block->right;
    if (right->right) right->right->left = right;
    block->right = right;
    block->bytes = bytes;
    class_insert(a, right);
}

static gt_status report_shortage(const gt__allocator *a, size_t bytes, const char *op, const char *module) {
    char use[512];
    size_t at = 0;
    use[0] = '\0';
    for (int i = 0; i < GT_MEMORY_CATEGORY_COUNT && at < sizeof use; ++i) {
        if (a->stats.category_in_use[i] == 0) continue;
        int written = snprintf(use + at, sizeof use - at, "%s%s %.1f MiB", at ? ", " : "", gt_memory_category_name(i),
                               (double)a->stats.category_in_use[i] / 1048576.0);
        at += (size_t)written;
    }
    char limit[64] = "no limit set";
    if (a->limit) (void)snprintf(limit, sizeof limit, "limit %.1f MiB", (double)a->limit / 1048576.0);
    uint64_t device_free = 0, device_total = 0;
    (void)a->device->backend->memory_info(a->device, &device_free, &device_total);
    return GT_RAISE_HINT(
        GT_OUT_OF_MEMORY, "use a smaller batch, release tensors that are no longer needed, or raise the limit",
        "%s%s%s%s: %.1f MiB (%zu bytes) asked, %.1f MiB in use (%s), %.1f MiB reserved, %s, device has %.1f of %.1f MiB free",
        op ? op : "allocation", module ? " \"" : "", module ? module : "", module ? "\"" : "", (double)bytes / 1048576.0, bytes,
        (double)a->stats.in_use / 1048576.0, use, (double)a->stats.reserved / 1048576.0, limit, (double)device_free / 1048576.0,
        (double)device_total / 1048576.0);
}

gt_status gt__allocator_alloc(gt__allocator *a, size_t bytes, gt_memory_category category, const char *op, const char *module, bool quiet,
                              gt__block **out) {
    if (bytes > SIZE_MAX / 4) return quiet ? GT_OUT_OF_MEMORY : report_shortage(a, bytes, op, module);
    size_t asked = bytes;
    bytes = round_up(bytes, GRAIN);
    bool small = bytes <= SMALL_MOST;
    gt__block *block = find_free(a, small, bytes);
    if (block) {
        class_remove(a, block);
    } else {
        gt_status status = grow(a, bytes, small, &block);
        if (status != GT_OK) return status == GT_OUT_OF_MEMORY && !quiet ? report_shortage(a, asked, op, module) : status;
    }
    split(a, block, bytes, small);
    block->category = category;
    block->op = op;
    block->module = module;
    gt_memory_stats *s = &a->stats;
    s->allocations++;
    s->in_use += block->bytes;
    s->category_in_use[category] += block->bytes;
    if (s->in_use > s->peak_in_use) {
        s->peak_in_use = s->in_use;
        memcpy(s->category_at_peak, s->category_in_use, sizeof s->category_at_peak);
    }
    *out = block;
    return GT_OK;
}

void gt__allocator_free(gt__allocator *a, gt__block *block) {
    a->stats.in_use -= block->bytes;
    a->stats.category_in_use[block->category] -= block->bytes;
    gt__block *left = block->left, *right = block->right;
    if (right && right->free) {
        class_remove(a, right);
        block->bytes += right->bytes;
        block->right = right->right;
        if (block->right) block->right->left = block;
        record_recycle(a, right);
    }
    if (left && left->free) {
        class_remove(a, left);
        left->bytes += block->bytes;
        left->right = block->right;
        if (left->right) left->right->left = left;
        record_recycle(a, block);
        block = left;
    }
    class_insert(a, block);
}

void *gt__block_data(const gt__block *block) { return block->data; }
gt_memory_category gt__block_category(const gt__block *block) { return block->category; }

void gt__block_set_category(gt__allocator *a, gt__block *block, gt_memory_category category) {
    a->stats.category_in_use[block->category] -= block->bytes;
    a->stats.category_in_use[category] += block->bytes;
    block->category = category;
}

gt_status gt__allocator_create(gt__device *device, uint64_t limit, gt__allocator **out) {
    gt__allocator *a = gt__calloc(1, sizeof *a);
    if (a == NULL) return GT_OUT_OF_HOST_MEMORY;
    a->device = device;
    a->limit = limit;
    *out = a;
    return GT_OK;
}

void gt__allocator_destroy(gt__allocator *a) {
    if (a == NULL) return;
    segment *next_segment;
    for (segment *s = a->segments; s; s = next_segment) {
        next_segment = s->next;
        device_free(a, s->data);
        gt__free(s);
    }
    for (int small = 0; small < 2; ++small) {
        for (int c = 0; c < CLASS_COUNT; ++c) {
            gt__block *next;
            for (gt__block *b = a->classes[small][c]; b; b = next) {
                next = b->class_next;
                gt__free(b);
            }
        }
    }
    gt__block *next;
    for (gt__block *b = a->spare; b; b = next) {
        next = b->class_next;
        gt__free(b);
    }
    gt__free(a);
}

void gt__allocator_set_limit(gt__allocator *a, uint64_t limit) { a->limit = limit; }

void gt__allocator_stats(const gt__allocator *a, gt_memory_stats *stats) {
    uint32_t size = stats->struct_size;
    *stats = a->stats;
    stats->struct_size = size;
    stats->cached = stats->reserved - stats->in_use;
}

void gt__allocator_reset_peak(gt__allocator *a) {
    a->stats.peak_in_use = a->stats.in_use;
    a->stats.peak_reserved = a->stats.reserved;
    memcpy(a->stats.category_at_peak, a->stats.category_in_use, sizeof a->stats.category_at_peak);
}

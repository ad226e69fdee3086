/* Expandable segments: ranges of addresses of which just the used part is backed, grain by grain. Memory can be taken from free grains anywhere and put where a
 * request needs it, whatever lies between them. */
#include "memory/internal.h"

/* --- ranges ----------------------------------------------------------------------------------------------------------------------- */

static void unmapped_insert(gt__block *block) {
    gt__segment *s = block->segment;
    block->state = GT__BLOCK_UNMAPPED;
    block->previous = NULL;
    block->next = s->unmapped;
    if (block->next) block->next->previous = block;
    s->unmapped = block;
}

static void unmapped_remove(gt__block *block) {
    if (block->previous)
        block->previous->next = block->next;
    else
        block->segment->unmapped = block->next;
    if (block->next) block->next->previous = block->previous;
}

/* Small requests never need more addresses than the device has memory. Large ones may leave holes that are too small for others: twice that, and further ranges
 * if even that should not do. */
static size_t range_bytes(const gt__allocator *a, bool small, uint64_t total) {
    size_t most = SIZE_MAX / 8 / a->grain * a->grain;
    size_t bytes = total < most ? gt__round_up((size_t)total, a->grain) : most;
    return small ? bytes : 2 * bytes;
}

gt_status gt__range_new(gt__allocator *a, bool small) {
    uint64_t unused, total;
    GT_TRY(gt__blocks_ensure(a, 1));
    GT_TRY(gt__device_info(a, &unused, &total));
    gt__segment *s = gt__calloc(1, sizeof *s);
    if (s == NULL) return GT_OUT_OF_HOST_MEMORY;
    void *address = NULL;
    size_t bytes = GT__MAX(range_bytes(a, small, total), a->grain);
    gt_status status = gt__device_reserve(a, bytes, &address);
    if (status != GT_OK) {
        gt__free(s);
        return status;
    }
    s->data = address;
    s->bytes = bytes;
    s->small = small;
    s->expandable = true;
    a->range_bytes[small] = bytes;
    gt__segment_link(a, s);
    gt__block *block = gt__block_new(a);
    block->data = s->data;
    block->bytes = bytes;
    block->segment = s;
    s->first = block;
    unmapped_insert(block);
    return GT_OK;
}

void gt__range_free(gt__allocator *a, gt__segment *s) {
    char *from = s->data;
    for (gt__block *b = s->first; b; b = b->right) {
        if (b->state == GT__BLOCK_UNMAPPED) {
            if (b->data > from) gt__device_unmap(a, from, (size_t)(b->data - from));
            from = gt__block_end(b);
        }
    }
    char *end = s->data + s->bytes;
    if (end > from) gt__device_unmap(a, from, (size_t)(end - from));
    gt__device_release(a, s->data, s->bytes);
}

/* --- moving memory ---------------------------------------------------------------------------------------------------------------- */

/* Joins an unmapped block that is in no list with unmapped neighbours, and lists it. */
static void set_unmapped(gt__allocator *a, gt__block *block) {
    if (block->right && block->right->state == GT__BLOCK_UNMAPPED) {
        unmapped_remove(block->right);
        gt__block_join_right(a, block);
    }
    if (block->left && block->left->state == GT__BLOCK_UNMAPPED) {
        block = block->left;
        unmapped_remove(block);
        gt__block_join_right(a, block);
    }
    unmapped_insert(block);
}

/* Cuts [from, to) out of a block that is in no list, and gives it another state; what is left of the block on its sides is returned and in no list either. */
static gt__block *cut_out(gt__allocator *a, gt__block *block, char *from, char *to, gt__block_state state, gt__block **before,
                          gt__block **after) {
    gt__block *piece = from > block->data ? gt__block_cut(a, block, (size_t)(from - block->data)) : block;
    *before = piece != block ? block : NULL;
    *after = to < gt__block_end(piece) ? gt__block_cut(a, piece, (size_t)(to - from)) : NULL;
    piece->state = state;
    return piece;
}

void gt__range_unmap(gt__allocator *a, gt__block *block, char *from, char *to) {
    gt__segment *s = block->segment;
    gt__block *before, *after;
    gt__device_unmap(a, from, (size_t)(to - from));
    gt__class_remove(a, block);
    gt__block *piece = cut_out(a, block, from, to, GT__BLOCK_UNMAPPED, &before, &after);
    if (before) (void)gt__block_set_free(a, before);
    if (after) (void)gt__block_set_free(a, after);
    set_unmapped(a, piece);
    gt__reserved_remove(a, s, from, (size_t)(to - from));
}

/* Backs [from, to) of an unmapped block; *out is the free block that it is then in. There are two spare records. */
static gt_status map(gt__allocator *a, gt__block *block, char *from, char *to, gt__block **out) {
    gt__segment *s = block->segment;
    gt__block *before, *after;
    GT_TRY(gt__device_map(a, from, (size_t)(to - from)));
    unmapped_remove(block);
    gt__block *piece = cut_out(a, block, from, to, GT__BLOCK_USED, &before, &after);
    if (before) unmapped_insert(before);
    if (after) unmapped_insert(after);
    *out = gt__block_set_free(a, piece);
    gt__reserved_add(a, s, from, (size_t)(to - from));
    return GT_OK;
}

/* --- places ----------------------------------------------------------------------------------------------------------------------- */

/* A run is what lies between two used blocks: free and unmapped ones by turns. The first block of the run in which `unmapped` is the first unmapped one; NULL if
 * another comes before it. */
static gt__block *run_of(gt__block *unmapped) {
    gt__block *left = unmapped->left;
    if (left == NULL || left->state != GT__BLOCK_FREE) return unmapped;
    return left->left && left->left->state == GT__BLOCK_UNMAPPED ? NULL : left;
}

static char *run_end(gt__block *run) {
    char *end = run->data;
    for (gt__block *b = run; b && b->state != GT__BLOCK_USED; b = b->right) end = gt__block_end(b);
    return end;
}

/* Takes [begin, begin + bytes) for *best if it is better. */
static void consider(const gt__allocator *a, gt__block *run, char *begin, size_t bytes, bool tight, gt__place *best) {
    gt__segment *s = run->segment;
    gt__place p = {.segment = s, .run = run, .begin = begin};
    p.low = gt__grain_down(a, s, begin);
    p.high = gt__grain_up(a, s, begin + bytes);
    for (gt__block *b = run; b && b->state != GT__BLOCK_USED && b->data < p.high; b = b->right) {
        bool fresh = b->state == GT__BLOCK_UNMAPPED;
        char *from = GT__MAX(p.low, gt__grain_up(a, s, b->data)), *to = GT__MIN(p.high, gt__grain_down(a, s, gt__block_end(b)));
        if (from >= to) continue;
        p.exclusive += (size_t)(to - from);
        if (fresh) p.fresh += (size_t)(to - from);
    }
    size_t first = tight ? p.exclusive : p.fresh, second = tight ? p.fresh : p.exclusive;
    size_t best_first = tight ? best->exclusive : best->fresh, best_second = tight ? best->fresh : best->exclusive;
    if (best->run == NULL || first < best_first || (first == best_first && second < best_second) ||
        (first == best_first && second == best_second && p.begin < best->begin))
        *best = p;
}

bool gt__place_find(const gt__allocator *a, bool small, size_t bytes, bool tight, gt__place *place) {
    *place = (gt__place){0};
    for (gt__segment *s = a->segments; s; s = s->next) {
        if (!s->expandable || s->small != small) continue;
        for (gt__block *u = s->unmapped; u; u = u->next) {
            gt__block *run = run_of(u);
            if (run == NULL) continue;
            char *end = run_end(run);
            if ((size_t)(end - run->data) < bytes) continue;
            /* How many grains are needed changes evenly while a place moves along: the best one begins or ends where a block does. */
            for (gt__block *b = run; b && b->state != GT__BLOCK_USED; b = b->right) {
                if ((size_t)(end - b->data) >= bytes) consider(a, run, b->data, bytes, tight, place);
                if ((size_t)(gt__block_end(b) - run->data) >= bytes) consider(a, run, gt__block_end(b) - bytes, bytes, tight, place);
            }
        }
    }
    return place->run != NULL;
}

gt_status gt__place_map(gt__allocator *a, const gt__place *place, gt__block **out) {
    for (gt__block *b = place->run; b && b->state != GT__BLOCK_USED && b->data < place->high; b = b->right) {
        if (b->state == GT__BLOCK_UNMAPPED && gt__block_end(b) > place->low) {
            GT_TRY(gt__blocks_ensure(a, 2));
            GT_TRY(map(a, b, GT__MAX(b->data, place->low), GT__MIN(gt__block_end(b), place->high), &b));
        }
        *out = b;
    }
    return GT_OK;
}

size_t gt__range_largest(const gt__allocator *a, bool small, size_t spare) {
    size_t most = 0;
    for (gt__segment *s = a->segments; s; s = s->next) {
        if (!s->expandable || s->small != small) continue;
        for (gt__block *u = s->unmapped; u; u = u->next) {
            gt__block *run = run_of(u);
            if (run == NULL) continue;
            char *begin = run->data, *end = run_end(run);
            char *low = gt__grain_up(a, s, begin), *high = gt__grain_down(a, s, end);
            /* All of it, or its free part in a grain that others use, and then as many grains as there are. */
            size_t fits =
                (size_t)(high - low) <= spare ? (size_t)(end - begin) : GT__MAX((size_t)(low - begin), (size_t)(end - high)) + spare;
            most = GT__MAX(most, fits);
        }
    }
    return most;
}

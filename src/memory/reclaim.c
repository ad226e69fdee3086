/* Giving free memory back to the device: plain segments that are wholly free, and free grains of expandable ones. */
#include "memory/internal.h"

typedef struct piece {
    char *from, *to;
} piece;

static size_t piece_bytes(piece p) { return p.to > p.from ? (size_t)(p.to - p.from) : 0; }

/* What could be taken from a free block: all of a plain segment's only one, whole grains of an expandable one's on both sides of `keep`. The first is the one of
 * higher addresses. */
static void pieces_of(const gt__allocator *a, const gt__block *b, const gt__place *keep, piece pieces[2]) {
    gt__segment *s = b->segment;
    pieces[0] = pieces[1] = (piece){NULL, NULL};
    if (!s->expandable) {
        if (b->left == NULL && b->right == NULL) pieces[0] = (piece){b->data, gt__block_end(b)};
        return;
    }
    piece all = {gt__grain_up(a, s, b->data), gt__grain_down(a, s, gt__block_end(b))};
    if (keep == NULL || keep->segment != s || keep->high <= all.from || keep->low >= all.to) {
        pieces[0] = all;
    } else {
        pieces[0] = (piece){GT__MAX(all.from, keep->high), all.to};
        pieces[1] = (piece){all.from, GT__MIN(all.to, keep->low)};
    }
}

size_t gt__reclaimable(const gt__allocator *a, const gt__place *keep) {
    size_t sum = 0;
    for (int small = 0; small < 2; ++small) {
        for (int c = 0; c < GT__CLASS_COUNT; ++c) {
            for (const gt__block *b = a->classes[small][c]; b; b = b->next) {
                piece pieces[2];
                pieces_of(a, b, keep, pieces);
                sum += piece_bytes(pieces[0]) + piece_bytes(pieces[1]);
            }
        }
    }
    return sum;
}

/* Gives up to `wanted` bytes (rounded up to grains) of the block back. */
static gt_status give_back(gt__allocator *a, gt__block *b, size_t wanted, const gt__place *keep, size_t *got) {
    piece pieces[2];
    pieces_of(a, b, keep, pieces);
    if (!b->segment->expandable) {
        *got += b->bytes;
        gt__segment_return(a, b);
        return GT_OK;
    }
    for (int i = 0; i < 2 && wanted > 0; ++i) { /* the higher one first: the block then keeps its record */
        size_t bytes = piece_bytes(pieces[i]);
        if (bytes == 0) continue;
        if (wanted < bytes) bytes = gt__round_up(wanted, a->grain);
        GT_TRY(gt__blocks_ensure(a, 2));
        gt__range_unmap(a, b, pieces[i].to - bytes, pieces[i].to);
        *got += bytes;
        wanted -= GT__MIN(bytes, wanted);
    }
    return GT_OK;
}

gt_status gt__reclaim(gt__allocator *a, size_t wanted, const gt__place *keep, size_t *got) {
    bool waited = false;
    *got = 0;
    /* The largest first: fewer calls for as many bytes. */
    for (int c = GT__CLASS_COUNT - 1; c >= 0; --c) {
        for (int small = 0; small < 2; ++small) {
            gt__block *next;
            for (gt__block *b = a->classes[small][c]; b; b = next) {
                piece pieces[2];
                next = b->next;
                if (*got >= wanted) return GT_OK;
                pieces_of(a, b, keep, pieces);
                if (piece_bytes(pieces[0]) + piece_bytes(pieces[1]) == 0) continue;
                if (!waited) GT_TRY(gt__device_wait(a));
                waited = true;
                GT_TRY(give_back(a, b, wanted - *got, keep, got));
            }
        }
    }
    return GT_OK;
}

/* Getting memory for a request that no free block fits: from the device, or, when that or the limit does not allow it, from what is free elsewhere. Memory is given
 * back only where that can be enough, so that requests which may fail (workspaces) do not cost the cache. */
#include "memory/growth.h"

static const size_t small_segment = 2u << 20;
static const size_t medium_below = 10u << 20;
static const size_t medium_segment = 20u << 20;
static const size_t large_round = 2u << 20;

enum { ROUNDS = 16 };
/* Requests from this size on ask the device what it has before they take it piece by piece. */
static const size_t ask_first = 64u << 20;
/* What a device says is free is trusted up to this. */
static const size_t doubt = 32u << 20;

static bool hopeless(const gt__allocator *a, size_t wanted, size_t back) {
    uint64_t device_free, total;
    return gt__device_info(a, &device_free, &total) == GT_OK && (uint64_t)wanted > device_free + back + doubt;
}

/* --- plain segments ----------------------------------------------------------------------------------------------------------------- */

static gt_status add_segment(gt__allocator *a, size_t bytes, bool small, bool *moved, gt__block **out) {
    size_t generous = small ? small_segment : bytes < medium_below ? medium_segment : gt__round_up(bytes, large_round), got;
    gt_status status = GT_OUT_OF_MEMORY;
    if (gt__limit_allows(a, generous)) status = gt__segment_new(a, generous, small, out);
    if (status != GT_OUT_OF_MEMORY) return status;
    size_t back = gt__reclaimable(a, NULL);
    if (a->limit && (bytes > a->limit || a->stats.reserved - back > a->limit - bytes)) return GT_OUT_OF_MEMORY;
    if (hopeless(a, bytes, back)) return GT_OUT_OF_MEMORY;
    GT_TRY(gt__reclaim(a, SIZE_MAX, NULL, &got));
    if (got) *moved = true;
    if (gt__limit_allows(a, generous)) status = gt__segment_new(a, generous, small, out);
    /* No more than is needed. */
    if (status == GT_OUT_OF_MEMORY && gt__limit_allows(a, bytes)) status = gt__segment_new(a, bytes, small, out);
    return status;
}

/* --- expandable ones ---------------------------------------------------------------------------------------------------------------- */

static bool has_range(const gt__allocator *a, bool small) {
    for (const gt__segment *s = a->segments; s; s = s->next)
        if (s->expandable && s->small == small) return true;
    return false;
}

/* Backs a place for the request. If that takes more than there is, as many grains as are missing are taken from elsewhere. */
static gt_status expand(gt__allocator *a, size_t bytes, bool small, bool *moved, gt__block **out) {
    bool tight = false, full = false;
    for (int round = 0; round < ROUNDS; ++round) {
        gt__place place;
        size_t got;
        if (!gt__place_find(a, small, bytes, tight, &place)) {
            if (bytes > a->range_bytes[small]) return GT_OUT_OF_MEMORY;
            GT_TRY(gt__range_new(a, small)); /* no hole among its addresses is large enough */
            continue;
        }
        size_t after = (size_t)a->stats.reserved + place.fresh;
        size_t over = a->limit && after > a->limit ? after - (size_t)a->limit : 0;
        if (over == 0 && !full) {
            gt_status status = GT_OUT_OF_MEMORY;
            uint64_t device_free, total;
            if (place.fresh < ask_first || gt__device_info(a, &device_free, &total) != GT_OK || place.fresh <= device_free)
                status = gt__place_map(a, &place, out);
            if (status != GT_OUT_OF_MEMORY) return status;
            tight = full = true;
            continue;
        }
        if (!tight) {
            tight = true;
            continue;
        }
        size_t back = gt__reclaimable(a, &place);
        if (over > back || (full && hopeless(a, place.fresh, back))) return GT_OUT_OF_MEMORY;
        size_t wanted = !full ? over : round < ROUNDS / 2 ? GT__MAX(over, place.fresh) : SIZE_MAX;
        GT_TRY(gt__reclaim(a, wanted, &place, &got));
        if (got == 0) return GT_OUT_OF_MEMORY;
        *moved = true;
        full = false;
    }
    return GT_OUT_OF_MEMORY;
}

/* Reserves the pool's first range. Where that fails, segments of this pool are plain from now on. */
static gt_status first_range(gt__allocator *a, bool small) {
    if (has_range(a, small)) return GT_OK;
    bool clean = gt_last_error()->status == GT_OK;
    gt_status status = gt__range_new(a, small);
    if (status == GT_OK || status == GT_OUT_OF_HOST_MEMORY) return status;
    if (clean) gt_clear_error();
    a->plain[small] = true;
    return GT_OK;
}

gt_status gt__grow(gt__allocator *a, size_t bytes, bool small, bool *moved, gt__block **out) {
    gt_status status = GT_OK;
    bool expandable = a->grain != 0 && !a->plain[small];
    if (expandable) {
        GT_TRY(first_range(a, small));
        expandable = !a->plain[small];
    }
    if (expandable) status = expand(a, bytes, small, moved, out);
    /* A limit may leave room for the request, but not for a grain. */
    if (!expandable || (status == GT_OUT_OF_MEMORY && a->limit && bytes < a->grain)) status = add_segment(a, bytes, small, moved, out);
    if (status != GT_OUT_OF_MEMORY || !small) return status;
    gt__block *large = gt__class_find(a, false, bytes);
    if (large == NULL) return GT_OUT_OF_MEMORY;
    *out = large;
    return GT_OK;
}

#include "memory/growth.h"

#include <stdio.h>

/* How often on_shortage may ask for another try. */
enum { TRIES = 1024 };

gt_status gt__allocator_create(gt__device *device, const gt__allocator_options *options, gt__allocator **out) {
    gt__allocator *a = gt__calloc(1, sizeof *a);
    if (a == NULL) return GT_OUT_OF_HOST_MEMORY;
    a->device = device;
    a->limit = options->limit;
    a->on_shortage = options->on_shortage;
    a->user = options->user;
    a->begin = gt__clock_seconds();
    gt_status status = gt__allocator_set_history(a, options->history);
    if (status != GT_OK) {
        gt__free(a);
        return status;
    }
    if (options->expandable) a->grain = gt__device_grain(a);
    *out = a;
    return GT_OK;
}

void gt__allocator_destroy(gt__allocator *a) {
    if (a == NULL) return;
    gt__segments_free(a);
    gt__blocks_free(a);
    gt__tags_free(&a->tags);
    gt__free(a->history.events);
    gt__free(a);
}

/* --- failing ------------------------------------------------------------------------------------------------------------------------ */

static gt_status plain_message(const gt__allocator *a, size_t bytes, const gt__tag *tag) {
    const char *op = tag->op, *module = tag->module;
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
    (void)gt__device_info(a, &device_free, &device_total);
    return GT_RAISE_HINT(
        GT_OUT_OF_MEMORY, "use a smaller batch, release tensors that are no longer needed, or raise the limit",
        "%s%s%s%s: %.1f MiB (%zu bytes) asked, %.1f MiB in use (%s), %.1f MiB reserved, %s, device has %.1f of %.1f MiB free",
        op ? op : "allocation", module ? " \"" : "", module ? module : "", module ? "\"" : "", (double)bytes / 1048576.0, bytes,
        (double)a->stats.in_use / 1048576.0, use, (double)a->stats.reserved / 1048576.0, limit, (double)device_free / 1048576.0,
        (double)device_total / 1048576.0);
}

/* Counts and notes a failure. */
static void note_failure(gt__allocator *a, size_t bytes, const gt__tag *tag) {
    a->stats.out_of_memory++;
    gt__memory_event *e = gt__history_add(a, GT__MEMORY_OOM, gt__allocator_clock(a));
    if (e == NULL) return;
    e->bytes = bytes;
    e->op = tag->op;
    e->module = tag->module;
    e->category = tag->category;
    e->dtype = tag->dtype;
    if (tag->shape) e->ndim = tag->ndim;
    for (int32_t i = 0; i < e->ndim; ++i) e->shape[i] = tag->shape[i];
}

/* --- allocating --------------------------------------------------------------------------------------------------------------------- */

static bool is_small(size_t bytes) { return bytes <= gt__small_most; }

/* What is left of a plain segment's block below the large requests' size stays with it: nobody could use it. */
static bool worth_cutting(const gt__block *block, size_t bytes) {
    return block->bytes - bytes >= (block->segment->small || block->segment->expandable ? (size_t)GT__MEMORY_UNIT : gt__small_most);
}

static void count_up(gt__allocator *a, gt_memory_category category, size_t bytes) {
    gt_memory_stats *s = &a->stats;
    s->category_in_use[category] += bytes;
    s->category_peak[category] = GT__MAX(s->category_peak[category], s->category_in_use[category]);
}

static void take(gt__allocator *a, gt__block *block, size_t asked, const gt__tag *tag, gt__tag_bytes *tagged) {
    gt_memory_stats *s = &a->stats;
    block->state = GT__BLOCK_USED;
    block->tagged = tagged;
    block->asked = asked;
    block->sequence = ++s->allocations;
    block->seconds = gt__allocator_clock(a);
    block->step = s->steps;
    block->category = tag->category;
    block->phase = a->phase;
    block->ndim = tag->shape ? tag->ndim : -1;
    block->dtype = tag->dtype;
    for (int32_t i = 0; i < block->ndim; ++i) block->shape[i] = tag->shape[i];
    gt__tag_add(tagged, block->bytes, s->steps);
    count_up(a, tag->category, block->bytes);
    s->in_use += block->bytes;
    s->step_peak = GT__MAX(s->step_peak, s->in_use);
    if (s->in_use > s->peak_in_use) {
        s->peak_in_use = s->in_use;
        memcpy(s->category_at_peak, s->category_in_use, sizeof s->category_at_peak);
    }
    gt__history_block(a, GT__MEMORY_ALLOC, block->seconds, block, block->category);
}

/* One try; changes nothing but what is cached if it fails. */
static gt_status attempt(gt__allocator *a, size_t asked, const gt__tag *tag, bool *moved, gt__block **out) {
    if (asked > SIZE_MAX / 4) return GT_OUT_OF_MEMORY;
    size_t bytes = gt__round_up(asked, GT__MEMORY_UNIT);
    bool small = is_small(bytes);
    gt__tag_bytes *tagged = gt__tags_find(&a->tags, tag->op, tag->module, tag->category, a->stats.steps);
    if (tagged == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__block *block = gt__class_find(a, small, bytes);
    if (block == NULL) {
        GT_TRY(gt__grow(a, bytes, small, moved, &block));
        a->stats.device_allocations++;
    }
    GT_TRY(gt__blocks_ensure(a, 1));
    gt__class_remove(a, block);
    if (worth_cutting(block, bytes)) {
        gt__block *rest = gt__block_cut(a, block, bytes);
        block->state = GT__BLOCK_USED;
        (void)gt__block_set_free(a, rest);
    }
    take(a, block, asked, tag, tagged);
    *out = block;
    return GT_OK;
}

static bool is_shortage(gt_status status) { return status == GT_OUT_OF_MEMORY || status == GT_OUT_OF_HOST_MEMORY; }

/* After a first try failed for want of memory: asks the hook, and fails if that does not help. */
static gt_status ask(gt__allocator *a, size_t bytes, const gt__tag *tag, gt_status status, gt__block **out) {
    for (int i = 0; a->on_shortage && !a->asking && i < TRIES; ++i) {
        const gt__shortage shortage = {.bytes = bytes,
                                       .rounded = bytes > SIZE_MAX / 4 ? bytes : gt__round_up(bytes, GT__MEMORY_UNIT),
                                       .tag = tag,
                                       .host = status == GT_OUT_OF_HOST_MEMORY};
        bool moved;
        a->asking = true; /* what the hook allocates itself must not ask it again */
        bool again = a->on_shortage(a->user, &shortage);
        a->asking = false;
        if (!again) {
            note_failure(a, bytes, tag);
            gt_status raised = gt_last_error()->status;
            return raised == GT_OK ? plain_message(a, bytes, tag) : raised;
        }
        status = attempt(a, bytes, tag, &moved, out);
        if (status == GT_OK) {
            a->stats.retries++;
            return GT_OK;
        }
        if (!is_shortage(status)) return status;
    }
    note_failure(a, bytes, tag);
    return status == GT_OUT_OF_HOST_MEMORY ? status : plain_message(a, bytes, tag);
}

gt_status gt__allocator_alloc(gt__allocator *a, size_t bytes, const gt__tag *tag, bool quiet, gt__block **out) {
    bool moved = false;
    gt_status status = attempt(a, bytes, tag, &moved, out);
    if (GT__LIKELY(status == GT_OK)) {
        if (GT__UNLIKELY(moved)) a->stats.retries++;
        return GT_OK;
    }
    return quiet || !is_shortage(status) ? status : ask(a, bytes, tag, status, out);
}

void gt__allocator_free(gt__allocator *a, gt__block *block) {
    a->stats.frees++;
    a->stats.in_use -= block->bytes;
    a->stats.category_in_use[block->category] -= block->bytes;
    gt__tag_remove(block->tagged, block->bytes, a->stats.steps);
    if (a->history.capacity) gt__history_block(a, GT__MEMORY_FREE, gt__allocator_clock(a), block, block->category);
    (void)gt__block_set_free(a, block);
}

void gt__allocator_trim(gt__allocator *a) {
    size_t got;
    bool clean = gt_last_error()->status == GT_OK;
    /* A device that cannot be waited for keeps its memory; whoever waits for it next is told. */
    if (gt__reclaim(a, SIZE_MAX, NULL, &got) != GT_OK && clean) gt_clear_error();
}

/* --- what a block is for -------------------------------------------------------------------------------------------------------------- */

void *gt__block_data(const gt__block *block) { return block->data; }
size_t gt__block_bytes(const gt__block *block) { return block->bytes; }
gt_memory_category gt__block_category(const gt__block *block) { return block->category; }

void gt__block_set_category(gt__allocator *a, gt__block *block, gt_memory_category category) {
    gt_memory_category before = block->category;
    if (before == category) return;
    bool clean = gt_last_error()->status == GT_OK;
    gt__tag_bytes *tagged = gt__tags_find(&a->tags, block->tagged->op, block->tagged->module, category, a->stats.steps);
    if (tagged) {
        gt__tag_remove(block->tagged, block->bytes, a->stats.steps);
        gt__tag_add(tagged, block->bytes, a->stats.steps);
        block->tagged = tagged;
    } else if (clean) { /* the growth of its old tag goes on counting it */
        gt_clear_error();
    }
    a->stats.category_in_use[before] -= block->bytes;
    count_up(a, category, block->bytes);
    block->category = category;
    if (a->history.capacity) gt__history_block(a, GT__MEMORY_CATEGORY, gt__allocator_clock(a), block, before);
}

/* --- settings and figures ------------------------------------------------------------------------------------------------------------- */

void gt__allocator_set_limit(gt__allocator *a, uint64_t limit) { a->limit = limit; }
uint64_t gt__allocator_limit(const gt__allocator *a) { return a->limit; }
void gt__allocator_set_phase(gt__allocator *a, gt__phase phase) { a->phase = phase; }
gt__phase gt__allocator_phase(const gt__allocator *a) { return a->phase; }

void gt__allocator_next_step(gt__allocator *a) {
    if (a->history.capacity) (void)gt__history_add(a, GT__MEMORY_STEP, gt__allocator_clock(a));
    a->stats.steps++;
    a->stats.last_step_peak = a->stats.step_peak;
    a->stats.step_peak = a->stats.in_use;
}

void gt__allocator_stats(const gt__allocator *a, gt_memory_stats *stats) {
    uint32_t size = stats->struct_size;
    *stats = a->stats;
    stats->struct_size = size;
    stats->cached = stats->reserved - stats->in_use;
    stats->limit = a->limit;
    stats->largest_free = gt__allocator_largest_free(a);
    stats->fragmentation = stats->cached ? 1.0 - (double)stats->largest_free / (double)stats->cached : 0.0;
}

void gt__allocator_reset_peak(gt__allocator *a) {
    gt_memory_stats *s = &a->stats;
    s->peak_in_use = s->in_use;
    s->peak_reserved = s->reserved;
    memcpy(s->category_at_peak, s->category_in_use, sizeof s->category_at_peak);
    memcpy(s->category_peak, s->category_in_use, sizeof s->category_peak);
}

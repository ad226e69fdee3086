/* The allocator's state and history as JSON. */
#include "base/json_write.h"
#include "base/replace_file.h"
#include "memory/files.h"
#include "memory/lives.h"

static void write_address(gt__json *json, const char *key, const void *address) { gt__json_unsigned(json, key, (uintptr_t)address); }

static void write_shape(gt__json *json, int32_t ndim, const int64_t *shape, gt_dtype dtype) {
    if (ndim < 0) return;
    gt__json_begin(json, "shape", '[');
    for (int32_t i = 0; i < ndim; ++i) gt__json_integer(json, NULL, shape[i]);
    gt__json_end(json, ']');
    gt__json_string(json, "dtype", gt_dtype_name(dtype));
}

static void write_stats(gt__json *json, const gt_memory_stats *s) {
    gt__json_newline(json);
    gt__json_begin(json, "stats", '{');
#define FIELD(name) gt__json_unsigned(json, #name, s->name)
    FIELD(in_use);
    FIELD(cached);
    FIELD(reserved);
    FIELD(peak_in_use);
    FIELD(peak_reserved);
    FIELD(allocations);
    FIELD(device_allocations);
    FIELD(frees);
    FIELD(retries);
    FIELD(out_of_memory);
    FIELD(segments);
    FIELD(largest_free);
    FIELD(steps);
    FIELD(step_peak);
    FIELD(last_step_peak);
#undef FIELD
    gt__json_number(json, "fragmentation", s->fragmentation);
    gt__json_end(json, '}');
    gt__json_newline(json);
    gt__json_begin(json, "categories", '[');
    for (gt_memory_category c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) {
        gt__json_begin(json, NULL, '{');
        gt__json_string(json, "name", gt_memory_category_name(c));
        gt__json_unsigned(json, "in_use", s->category_in_use[c]);
        gt__json_unsigned(json, "at_peak", s->category_at_peak[c]);
        gt__json_unsigned(json, "peak", s->category_peak[c]);
        gt__json_end(json, '}');
    }
    gt__json_end(json, ']');
}

static void write_block(gt__json *json, const gt__block_info *b) {
    static const char *const states[] = {[GT__BLOCK_USED] = "used", [GT__BLOCK_FREE] = "free", [GT__BLOCK_UNMAPPED] = "unmapped"};
    gt__json_newline(json);
    gt__json_begin(json, NULL, '{');
    write_address(json, "address", b->address);
    gt__json_unsigned(json, "bytes", b->bytes);
    gt__json_string(json, "state", states[b->state]);
    if (b->state == GT__BLOCK_USED) {
        gt__json_unsigned(json, "asked", b->asked);
        gt__json_string(json, "category", gt_memory_category_name(b->category));
        gt__json_string(json, "op", b->op);
        gt__json_string(json, "module", b->module);
        write_shape(json, b->ndim, b->shape, b->dtype);
        gt__json_integer(json, "step", b->step);
        gt__json_string(json, "phase", gt__phase_name(b->phase));
        gt__json_unsigned(json, "sequence", b->sequence);
        gt__json_number(json, "seconds", b->seconds);
    }
    gt__json_end(json, '}');
}

static void write_segments(gt__json *json, const gt__lives *h) {
    gt__json_newline(json);
    gt__json_begin(json, "segments", '[');
    for (int64_t i = 0; i < h->n_blocks; ++i) {
        const gt__block_info *b = &h->blocks[i];
        if (i == 0 || b->segment != b[-1].segment) {
            if (i > 0) {
                gt__json_end(json, ']');
                gt__json_end(json, '}');
            }
            gt__json_newline(json);
            gt__json_begin(json, NULL, '{');
            write_address(json, "address", b->segment);
            gt__json_unsigned(json, "bytes", b->segment_bytes);
            gt__json_bool(json, "expandable", b->expandable);
            gt__json_bool(json, "small", b->small);
            gt__json_begin(json, "blocks", '[');
        }
        write_block(json, b);
    }
    if (h->n_blocks > 0) {
        gt__json_end(json, ']');
        gt__json_end(json, '}');
    }
    gt__json_end(json, ']');
}

static void write_event(gt__json *json, const gt__memory_event *e) {
    gt__json_newline(json);
    gt__json_begin(json, NULL, '{');
    gt__json_string(json, "kind", gt__event_name(e->kind));
    gt__json_number(json, "seconds", e->seconds);
    gt__json_integer(json, "step", e->step);
    if (e->kind != GT__MEMORY_STEP) gt__json_unsigned(json, "bytes", e->bytes);
    if (e->kind == GT__MEMORY_RESERVE || e->kind == GT__MEMORY_UNRESERVE) write_address(json, "address", e->address);
    if (e->kind == GT__MEMORY_ALLOC || e->kind == GT__MEMORY_FREE || e->kind == GT__MEMORY_CATEGORY) {
        write_address(json, "address", e->address);
        gt__json_unsigned(json, "sequence", e->sequence);
    }
    if (e->kind == GT__MEMORY_CATEGORY) gt__json_string(json, "category_before", gt_memory_category_name(e->category_before));
    if (e->kind == GT__MEMORY_ALLOC || e->kind == GT__MEMORY_FREE || e->kind == GT__MEMORY_CATEGORY || e->kind == GT__MEMORY_OOM) {
        gt__json_string(json, "category", gt_memory_category_name(e->category));
        gt__json_string(json, "op", e->op);
        gt__json_string(json, "module", e->module);
        write_shape(json, e->ndim, e->shape, e->dtype);
        gt__json_string(json, "phase", gt__phase_name(e->phase));
    }
    gt__json_end(json, '}');
}

static void write_all(gt__json *json, const gt__lives *h, uint64_t limit, const gt__memory_origin *origin) {
    gt__json_begin(json, NULL, '{');
    gt__json_string(json, "format", "gtrain memory snapshot 1");
    gt__json_string(json, "library", gt_version_string());
    gt__json_newline(json);
    gt__json_begin(json, "device", '{');
    gt__json_string(json, "name", origin->device);
    gt__json_unsigned(json, "total", origin->total);
    gt__json_unsigned(json, "free", origin->free);
    gt__json_end(json, '}');
    gt__json_unsigned(json, "limit", limit);
    write_stats(json, &h->stats);
    write_segments(json, h);
    gt__json_newline(json);
    gt__json_begin(json, "history", '{');
    gt__json_unsigned(json, "lost", h->lost);
    gt__json_begin(json, "events", '[');
    for (int64_t i = 0; i < h->n_events; ++i) write_event(json, &h->events[i]);
    gt__json_end(json, ']');
    gt__json_end(json, '}');
    gt__json_end(json, '}');
}

gt_status gt__memory_write_snapshot(const char *who, const gt__allocator *allocator, const gt__memory_origin *origin, const char *path) {
    gt__lives lives;
    gt__json json = {0};
    gt_status status = gt__lives_collect(allocator, &lives);
    if (status == GT_OK) {
        write_all(&json, &lives, gt__allocator_limit(allocator), origin);
        status = json.status;
    }
    if (status == GT_OK) status = gt__text_append(&json.text, "\n", 1);
    if (status == GT_OK) status = gt__replace_file(who, path, json.text.data, json.text.length);
    gt__json_free(&json);
    gt__lives_free(&lives);
    return status;
}

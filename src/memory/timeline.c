/* The allocator's history as one HTML page. The page (timeline_page.html) draws; here is the data that it draws, put in where the page says so. */
#include "base/json_write.h"
#include "base/replace_file.h"
#include "memory/files.h"
#include "memory/lives.h"
#include "memory/timeline_page.h"

/* Each op and module once. Equal names have equal pointers nearly always; where not, a name is there twice and nothing is wrong. */
typedef struct names {
    const char **list;
    int32_t count, capacity;
} names;

static gt_status name_index(names *n, const char *text, int32_t *index) {
    *index = -1;
    if (text == NULL) return GT_OK;
    for (int32_t i = n->count - 1; i >= 0; --i) {
        if (n->list[i] != text) continue;
        *index = i;
        return GT_OK;
    }
    if (n->count == n->capacity) {
        int32_t capacity = GT__MAX(64, n->capacity * 2);
        const char **list = gt__realloc(n->list, (size_t)capacity * sizeof *list);
        if (list == NULL) return GT_OUT_OF_HOST_MEMORY;
        n->list = list;
        n->capacity = capacity;
    }
    n->list[n->count] = text;
    *index = n->count++;
    return GT_OK;
}

static gt_status write_tag(gt__json *json, names *n, const char *op, const char *module, int32_t ndim, const int64_t *shape,
                           gt_dtype dtype) {
    int32_t op_index, module_index;
    GT_TRY(name_index(n, op, &op_index));
    GT_TRY(name_index(n, module, &module_index));
    gt__json_integer(json, NULL, op_index);
    gt__json_integer(json, NULL, module_index);
    if (ndim < 0) {
        gt__json_integer(json, NULL, 0);
        gt__json_integer(json, NULL, -1);
        return GT_OK;
    }
    gt__json_begin(json, NULL, '[');
    for (int32_t i = 0; i < ndim; ++i) gt__json_integer(json, NULL, shape[i]);
    gt__json_end(json, ']');
    gt__json_integer(json, NULL, dtype);
    return GT_OK;
}

/* [bytes, category, step, phase, born, died, op, module, shape or 0, dtype or -1]; born is -1 before the first event, died -1 after the last. */
static gt_status write_lives(gt__json *json, names *n, const gt__lives *h) {
    gt__json_begin(json, "lives", '[');
    for (int64_t i = 0; i < h->count; ++i) {
        const gt__life *life = &h->list[i];
        gt__json_newline(json);
        gt__json_begin(json, NULL, '[');
        gt__json_unsigned(json, NULL, life->bytes);
        gt__json_integer(json, NULL, life->category);
        gt__json_integer(json, NULL, life->step);
        gt__json_integer(json, NULL, life->phase);
        gt__json_integer(json, NULL, life->born);
        gt__json_integer(json, NULL, life->died == GT__NOT_DIED ? -1 : life->died);
        GT_TRY(write_tag(json, n, life->op, life->module, life->ndim, life->shape, life->dtype));
        gt__json_end(json, ']');
    }
    gt__json_end(json, ']');
    return GT_OK;
}

/* [kind, microseconds, x]: x is the block's life, the category after a change as [life, category], bytes, the step, or the request that failed as
 * [bytes, category, step, phase, op, module, shape or 0, dtype or -1]. */
static gt_status write_events(gt__json *json, names *n, const gt__lives *h) {
    gt__json_begin(json, "events", '[');
    for (int64_t i = 0; i < h->n_events; ++i) {
        const gt__memory_event *event = &h->events[i];
        if (i % 8 == 0) gt__json_newline(json);
        gt__json_begin(json, NULL, '[');
        gt__json_integer(json, NULL, event->kind);
        gt__json_integer(json, NULL, (int64_t)(1e6 * event->seconds));
        switch (event->kind) {
        case GT__MEMORY_ALLOC:
        case GT__MEMORY_FREE:
            gt__json_integer(json, NULL, h->life_of[i]);
            break;
        case GT__MEMORY_CATEGORY:
            gt__json_begin(json, NULL, '[');
            gt__json_integer(json, NULL, h->life_of[i]);
            gt__json_integer(json, NULL, event->category);
            gt__json_end(json, ']');
            break;
        case GT__MEMORY_STEP:
            gt__json_integer(json, NULL, event->step);
            break;
        case GT__MEMORY_OOM:
            gt__json_begin(json, NULL, '[');
            gt__json_unsigned(json, NULL, event->bytes);
            gt__json_integer(json, NULL, event->category);
            gt__json_integer(json, NULL, event->step);
            gt__json_integer(json, NULL, event->phase);
            GT_TRY(write_tag(json, n, event->op, event->module, event->ndim, event->shape, event->dtype));
            gt__json_end(json, ']');
            break;
        default: /* RESERVE, UNRESERVE */
            gt__json_unsigned(json, NULL, event->bytes);
        }
        gt__json_end(json, ']');
    }
    gt__json_end(json, ']');
    return GT_OK;
}

static gt_status write_data(gt__json *json, const gt__lives *h, uint64_t limit, const gt__memory_origin *origin) {
    gt__json_begin(json, NULL, '{');
    gt__json_string(json, "library", gt_version_string());
    gt__json_string(json, "device", origin->device);
    gt__json_unsigned(json, "total", origin->total);
    gt__json_unsigned(json, "limit", limit);
    gt__json_unsigned(json, "lost", h->lost);
    gt__json_unsigned(json, "in_use", h->stats.in_use);
    gt__json_unsigned(json, "reserved_at_start", h->reserved_at_start);
    gt__json_begin(json, "categories", '[');
    for (gt_memory_category c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) gt__json_string(json, NULL, gt_memory_category_name(c));
    gt__json_end(json, ']');
    gt__json_begin(json, "phases", '[');
    for (gt__phase p = 0; p < GT__PHASE_COUNT; ++p) gt__json_string(json, NULL, gt__phase_name(p));
    gt__json_end(json, ']');
    gt__json_begin(json, "dtypes", '[');
    for (gt_dtype d = 0; d < GT_DTYPE_COUNT; ++d) gt__json_string(json, NULL, gt_dtype_name(d));
    gt__json_end(json, ']');
    names n = {0};
    gt_status status = write_lives(json, &n, h);
    if (status == GT_OK) status = write_events(json, &n, h);
    if (status == GT_OK) {
        gt__json_begin(json, "names", '[');
        for (int32_t i = 0; i < n.count; ++i) gt__json_string(json, NULL, n.list[i]);
        gt__json_end(json, ']');
        gt__json_end(json, '}');
        status = json->status;
    }
    gt__free(n.list);
    return status;
}

gt_status gt__memory_write_timeline(const char *who, const gt__allocator *allocator, const gt__memory_origin *origin, const char *path) {
    static const char mark[] = "@DATA@";
    const char *page = (const char *)gt__timeline_page, *data = strstr(page, mark);
    gt__lives lives;
    gt__json json = {0};
    gt_status status = gt__lives_collect(allocator, &lives);
    if (status == GT_OK) status = gt__text_append(&json.text, page, (size_t)(data - page));
    if (status == GT_OK) status = write_data(&json, &lives, gt__allocator_limit(allocator), origin);
    if (status == GT_OK) status = gt__text_append(&json.text, data + sizeof mark - 1, strlen(data + sizeof mark - 1));
    if (status == GT_OK) status = gt__replace_file(who, path, json.text.data, json.text.length);
    gt__json_free(&json);
    gt__lives_free(&lives);
    return status;
}

/* The allocator's state and history as PyTorch's memory_viz (pytorch.org/memory_viz) and torch.cuda._memory_viz read them: a pickle of the dict that
 * torch.cuda.memory._snapshot() returns. An op is a stack frame's function, and its module the frame's file.
 *
 * Of pickle (protocol 2) it takes the few codes that the page's own reader knows too: dicts, lists, text and whole numbers. */
#include "base/json_write.h"
#include "base/replace_file.h"
#include "memory/files.h"
#include "memory/lives.h"

typedef struct pickle {
    gt__text text;
    gt_status status; /* the first failure */
} pickle;

static void raw(pickle *p, const void *bytes, size_t count) {
    if (p->status == GT_OK) p->status = gt__text_append(&p->text, bytes, count);
}
static void code(pickle *p, char opcode) { raw(p, &opcode, 1); }
static void little_endian(pickle *p, uint64_t value, size_t count) {
    unsigned char bytes[8];
    for (size_t i = 0; i < count; ++i) bytes[i] = (unsigned char)(value >> 8 * i);
    raw(p, bytes, count);
}

static void text_value(pickle *p, const char *text) { /* BINUNICODE; what is not UTF-8 becomes '?' */
    size_t length = strlen(text);
    code(p, 'X');
    little_endian(p, length, 4);
    for (const char *s = text; *s;) {
        size_t n = gt__utf8_character(s);
        raw(p, n ? s : "?", n ? n : 1);
        s += n ? n : 1;
    }
}

static void number_value(pickle *p, uint64_t value) {
    if (value <= INT32_MAX) { /* BININT */
        code(p, 'J');
        little_endian(p, value, 4);
        return;
    }
    const bool top = value >> 63; /* needs a ninth byte, or it would be negative */
    static const unsigned char zero = 0;
    code(p, '\x8a'); /* LONG1 */
    little_endian(p, top ? 9 : 8, 1);
    little_endian(p, value, 8);
    if (top) raw(p, &zero, 1);
}

/* A dict is '}', then '(', its keys and values, then 'u'; a list is ']', then each element followed by 'a'. */
static void dict_begin(pickle *p) { raw(p, "}(", 2); }
static void dict_end(pickle *p) { code(p, 'u'); }
static void text_member(pickle *p, const char *key, const char *text) {
    text_value(p, key);
    text_value(p, text);
}
static void number_member(pickle *p, const char *key, uint64_t value) {
    text_value(p, key);
    number_value(p, value);
}

static void frames_member(pickle *p, const char *op, const char *module) {
    text_value(p, "frames");
    code(p, ']');
    if (op == NULL && module == NULL) return;
    dict_begin(p);
    text_member(p, "name", op ? op : "?");
    text_member(p, "filename", module ? module : "");
    number_member(p, "line", 0);
    dict_end(p);
    code(p, 'a');
}

/* --- segments: an expandable one is as many of them as it has runs of memory */
static bool same_run(const gt__block_info *a, const gt__block_info *b) {
    return a->segment == b->segment && a->state != GT__BLOCK_UNMAPPED && b->state != GT__BLOCK_UNMAPPED;
}

static void write_block(pickle *p, const gt__block_info *b) {
    bool used = b->state == GT__BLOCK_USED;
    dict_begin(p);
    number_member(p, "address", (uintptr_t)b->address);
    number_member(p, "size", b->bytes);
    number_member(p, "requested_size", used ? b->asked : 0);
    text_member(p, "state", used ? "active_allocated" : "inactive");
    frames_member(p, used ? b->op : NULL, used ? b->module : NULL);
    dict_end(p);
    code(p, 'a');
}

static void write_segments(pickle *p, const gt__lives *h) {
    code(p, ']');
    for (int64_t i = 0, end; i < h->n_blocks; i = end) {
        const gt__block_info *first = &h->blocks[i];
        uint64_t total = first->bytes, used = first->state == GT__BLOCK_USED ? first->bytes : 0;
        for (end = i + 1; end < h->n_blocks && same_run(&h->blocks[end - 1], &h->blocks[end]); ++end) {
            total += h->blocks[end].bytes;
            if (h->blocks[end].state == GT__BLOCK_USED) used += h->blocks[end].bytes;
        }
        if (first->state == GT__BLOCK_UNMAPPED) continue;
        dict_begin(p);
        number_member(p, "device", 0);
        number_member(p, "address", (uintptr_t)first->address);
        number_member(p, "total_size", total);
        number_member(p, "allocated_size", used);
        number_member(p, "active_size", used);
        number_member(p, "stream", 0);
        text_member(p, "segment_type", first->small ? "small" : "large");
        frames_member(p, NULL, NULL);
        text_value(p, "blocks");
        code(p, ']');
        for (int64_t k = i; k < end; ++k) write_block(p, &h->blocks[k]);
        dict_end(p);
        code(p, 'a');
    }
}

/* --- events */
static bool is_expandable(const gt__lives *h, const void *address) {
    for (int64_t i = 0; i < h->n_blocks; ++i) {
        const gt__block_info *b = &h->blocks[i];
        uintptr_t offset = (uintptr_t)address - (uintptr_t)b->address;
        if (b->expandable && offset < b->bytes) return true;
    }
    return false;
}

static void write_event(pickle *p, const char *action, const gt__memory_event *e, uint64_t device_free) {
    dict_begin(p);
    text_member(p, "action", action);
    number_member(p, "addr", (uintptr_t)e->address);
    number_member(p, "size", e->bytes);
    number_member(p, "stream", 0);
    number_member(p, "time_us", e->seconds > 0 ? (uint64_t)(1e6 * e->seconds) : 0);
    if (e->kind == GT__MEMORY_OOM) number_member(p, "device_free", device_free);
    frames_member(p, e->op, e->module);
    dict_end(p);
    code(p, 'a');
}

static void write_trace(pickle *p, const gt__lives *h, uint64_t device_free) {
    code(p, ']');
    for (int64_t i = 0; i < h->n_events; ++i) {
        const gt__memory_event *e = &h->events[i];
        switch (e->kind) {
        case GT__MEMORY_ALLOC:
            write_event(p, "alloc", e, device_free);
            break;
        case GT__MEMORY_FREE: /* reuse is in the order of the stream: both at once */
            write_event(p, "free_requested", e, device_free);
            write_event(p, "free_completed", e, device_free);
            break;
        case GT__MEMORY_RESERVE:
            write_event(p, is_expandable(h, e->address) ? "segment_map" : "segment_alloc", e, device_free);
            break;
        case GT__MEMORY_UNRESERVE:
            write_event(p, is_expandable(h, e->address) ? "segment_unmap" : "segment_free", e, device_free);
            break;
        case GT__MEMORY_OOM:
            write_event(p, "oom", e, device_free);
            break;
        default: /* steps and categories have no counterpart */
            break;
        }
    }
}

gt_status gt__memory_write_viz(const char *who, const gt__allocator *allocator, const gt__memory_origin *origin, const char *path) {
    gt__lives lives;
    pickle p = {0};
    gt_status status = gt__lives_collect(allocator, &lives);
    if (status == GT_OK) {
        raw(&p, "\x80\x02", 2);
        dict_begin(&p);
        text_value(&p, "segments");
        write_segments(&p, &lives);
        text_value(&p, "device_traces"); /* one list a device */
        code(&p, ']');
        write_trace(&p, &lives, origin->free);
        code(&p, 'a');
        dict_end(&p);
        code(&p, '.');
        status = p.status;
    }
    if (status == GT_OK) status = gt__replace_file(who, path, p.text.data, p.text.length);
    gt__text_free(&p.text);
    gt__lives_free(&lives);
    return status;
}

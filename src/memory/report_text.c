/* The report for a terminal: at most 24 lines of 100 characters, what to do before what is. */
#include "memory/report.h"

#include <stdio.h>

enum { LINES = 24, COLUMNS = 100, REMEDIES_SHOWN = 4, HOLDERS_SHOWN = 2, PINS_SHOWN = 2 };

static const char *const cause_names[] = {
#define NAME(name, value, text) [value] = #name,
    GT_OOM_CAUSE_LIST(NAME)
#undef NAME
};
static const char *const remedy_names[] = {
#define NAME(name, value, cost) [value] = #name,
    GT_OOM_REMEDY_LIST(NAME)
#undef NAME
};

const char *gt_oom_cause_name(gt_oom_cause cause) {
    return cause >= 0 && (size_t)cause < GT__COUNT(cause_names) ? cause_names[cause] : "?";
}
const char *gt_oom_remedy_name(gt_oom_remedy_kind kind) {
    return kind >= 0 && (size_t)kind < GT__COUNT(remedy_names) ? remedy_names[kind] : "?";
}

/* --- pieces ---------------------------------------------------------------------------------------------------------------------------- */

const char *gt__bytes_text(uint64_t bytes, char buffer[GT__BYTES_TEXT]) {
    if (bytes < 1024)
        (void)snprintf(buffer, GT__BYTES_TEXT, "%u bytes", (unsigned)bytes);
    else if (bytes < 1024 * 1024)
        (void)snprintf(buffer, GT__BYTES_TEXT, "%.1f KiB", (double)bytes / 1024);
    else if (bytes < (uint64_t)10 << 30)
        (void)snprintf(buffer, GT__BYTES_TEXT, "%.1f MiB", (double)bytes / (1 << 20));
    else
        (void)snprintf(buffer, GT__BYTES_TEXT, "%.2f GiB", (double)bytes / (1 << 30));
    return buffer;
}

const char *gt__report_who(const char *op, const char *module, char *buffer, size_t size) {
    const char *name = op && op[0] ? op : "allocation";
    (void)snprintf(buffer, size, module && module[0] ? "%s \"%s\"" : "%s", name, module);
    return buffer;
}

const char *gt__report_cause_text(const gt_oom_report *r, char *buffer, size_t size) {
    char a[GT__BYTES_TEXT], b[GT__BYTES_TEXT], c[GT__BYTES_TEXT], d[GT__BYTES_TEXT], who[128];
    switch (r->cause) {
    case GT_OOM_TOO_LARGE:
        (void)snprintf(buffer, size, "the device has %s in all", gt__bytes_text(r->device_total, a));
        break;
    case GT_OOM_LIMIT:
        (void)snprintf(buffer, size, "%s in use and %s asked are more than the limit, %s", gt__bytes_text(r->in_use, a),
                       gt__bytes_text(r->rounded, b), gt__bytes_text(r->limit, c));
        break;
    case GT_OOM_CAPACITY:
        (void)snprintf(buffer, size, "%s in use, %s of the device's %s are free", gt__bytes_text(r->in_use, a),
                       gt__bytes_text(r->device_free, b), gt__bytes_text(r->device_total, c));
        break;
    case GT_OOM_FRAGMENTED:
        (void)snprintf(buffer, size, "%s free, but at most %s in one piece; %s not taken yet", gt__bytes_text(r->cached, a),
                       gt__bytes_text(r->largest_free, b), gt__bytes_text(gt__report_room(r), c));
        break;
    case GT_OOM_EXTERNAL:
        (void)snprintf(buffer, size, "others hold %s of the device's %s; ours are %s, free %s", gt__bytes_text(r->others, a),
                       gt__bytes_text(r->device_total, b), gt__bytes_text(r->ours, c), gt__bytes_text(r->device_free, d));
        break;
    case GT_OOM_GROWTH:
        (void)snprintf(buffer, size, "%s more in each of %d steps, %s so far, by %s", gt__bytes_text(r->growth, a), (int)r->growth_steps,
                       gt__bytes_text(r->growth_now, b), gt__report_who(r->growth_op, r->growth_module, who, sizeof who));
        break;
    case GT_OOM_HOST:
        (void)snprintf(buffer, size, "the host's own memory ran out while the request was served");
        break;
    default:
        (void)snprintf(buffer, size, "nothing failed");
        break;
    }
    return buffer;
}

/* --- lines ----------------------------------------------------------------------------------------------------------------------------- */

typedef struct page {
    char *buffer;
    size_t size, length; /* length: of the whole text, written or not */
    int lines;
} page;

static void put(page *p, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; ++i, ++p->length)
        if (p->length + 1 < p->size) p->buffer[p->length] = bytes[i];
}

/* Bytes of `text` that make at most `columns` characters, and never part of one. */
static size_t cut(const char *text, int columns) {
    size_t at = 0;
    while (text[at]) {
        bool starts = ((unsigned char)text[at] & 0xc0) != 0x80;
        if (starts && columns-- == 0) break;
        ++at;
    }
    return at;
}

static void line(page *p, const char *format, ...) GT__PRINTF(2, 3);
static void line(page *p, const char *format, ...) {
    if (p->lines == LINES) return;
    char text[640];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    size_t length = cut(text, COLUMNS);
    while (length > 0 && text[length - 1] == ' ') --length;
    put(p, text, length);
    put(p, "\n", 1);
    p->lines++;
}

/* `label` and words with blanks between, on as many lines as they need. */
typedef struct filler {
    page *page;
    char text[COLUMNS + 1];
    int length;
} filler;

static void fill_start(filler *f, page *p, const char *label) {
    f->page = p;
    f->length = snprintf(f->text, sizeof f->text, "%-10s", label);
}

static void fill_end(filler *f) {
    if (f->length > 10) line(f->page, "%s", f->text);
}

static void fill(filler *f, const char *format, ...) GT__PRINTF(2, 3);
static void fill(filler *f, const char *format, ...) {
    char word[COLUMNS - 12];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(word, sizeof word, format, arguments);
    va_end(arguments);
    length = GT__MIN(length, (int)sizeof word - 1);
    if (f->length + 2 + length > COLUMNS) {
        line(f->page, "%s,", f->text);
        f->length = snprintf(f->text, sizeof f->text, "%-10s", "");
    }
    f->length += snprintf(f->text + f->length, sizeof f->text - (size_t)f->length, f->length > 10 ? ", %s" : "%s", word);
}

/* --- the sections ---------------------------------------------------------------------------------------------------------------------- */

static const char *tensor_text(char *buffer, size_t size, int32_t ndim, const int64_t *shape, gt_dtype dtype) {
    char dims[GT__SHAPE_TEXT];
    buffer[0] = '\0';
    if (ndim >= 0) (void)snprintf(buffer, size, "%s %s", gt__shape_text(dims, sizeof dims, ndim, shape), gt_dtype_name(dtype));
    return buffer;
}

static void headline(page *p, const gt_oom_report *r) {
    char who[512], bytes[GT__BYTES_TEXT], in_use[GT__BYTES_TEXT], tensor[240], cause[320];
    if (r->cause == GT_OOM_NONE) {
        line(p, "device memory: %s in use, %s reserved", gt__bytes_text(r->in_use, in_use), gt__bytes_text(r->reserved, bytes));
        return;
    }
    (void)tensor_text(tensor, sizeof tensor, r->ndim, r->shape, r->dtype);
    line(p, "out of memory: %s asked %s%s%s%s", gt__report_who(r->op, r->module, who, sizeof who), gt__bytes_text(r->requested, bytes),
         tensor[0] ? " (" : "", tensor, tensor[0] ? ")" : "");
    line(p, "%-9s %s: %s", "cause", gt_oom_cause_name(r->cause), gt__report_cause_text(r, cause, sizeof cause));
}

static void remedies(page *p, const gt_oom_report *r) {
    char bytes[GT__BYTES_TEXT], need[GT__BYTES_TEXT];
    for (int32_t i = 0; i < GT__MIN(r->n_remedies, REMEDIES_SHOWN); ++i) {
        const gt_oom_remedy *m = &r->remedies[i];
        char after[2 * GT__BYTES_TEXT] = "";
        if (m->need)
            (void)snprintf(after, sizeof after, m->enough ? ", then needs %s" : ", then needs %s: too much", gt__bytes_text(m->need, need));
        line(p, "%-9s %d. %s", i == 0 ? "do" : "or", i + 1, m->subject);
        line(p, "%13s%s %s%s; cost: %s", "", m->kind == GT_OOM_REMEDY_RAISE_LIMIT ? "adds" : "frees", gt__bytes_text(m->bytes, bytes),
             after, m->cost);
    }
}

static void device(page *p, const gt_oom_report *r) {
    char a[GT__BYTES_TEXT], b[GT__BYTES_TEXT], c[GT__BYTES_TEXT], d[GT__BYTES_TEXT];
    line(p, "%-9s %s = ours %s + others %s + free %s", "device", gt__bytes_text(r->device_total, a), gt__bytes_text(r->ours, b),
         gt__bytes_text(r->others, c), gt__bytes_text(r->device_free, d));
    filler f;
    fill_start(&f, p, "others");
    for (int32_t i = 0; i < GT__MIN(r->n_holders, HOLDERS_SHOWN); ++i)
        fill(&f, "process %lld %s", (long long)r->holders[i].process, r->holders[i].bytes ? gt__bytes_text(r->holders[i].bytes, a) : "?");
    if (r->here > 0) fill(&f, "this process outside the context %s", gt__bytes_text(r->here, a));
    fill_end(&f);
    fill_start(&f, p, "ours");
    fill(&f, "in use %s + cached %s = reserved %s", gt__bytes_text(r->in_use, a), gt__bytes_text(r->cached, b),
         gt__bytes_text(r->reserved, c));
    if (r->cached > 0) fill(&f, "largest free block %s", gt__bytes_text(r->largest_free, a));
    fill(&f, "peak %s", gt__bytes_text(r->peak_in_use, a));
    if (r->step > 0) fill(&f, "last step %s", gt__bytes_text(r->last_step_peak, a));
    if (r->limit > 0) fill(&f, "limit %s", gt__bytes_text(r->limit, a));
    fill_end(&f);
}

/* From the largest to the smallest. */
static void categories(page *p, const gt_oom_report *r) {
    filler f;
    fill_start(&f, p, "for");
    uint32_t done = 0;
    for (int n = 0; n < GT_MEMORY_CATEGORY_COUNT; ++n) {
        int best = -1;
        for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c)
            if ((done >> c & 1) == 0 && (best < 0 || r->category_in_use[c] > r->category_in_use[best])) best = c;
        done |= 1u << best;
        char bytes[GT__BYTES_TEXT];
        if (r->category_in_use[best] > 0) fill(&f, "%s %s", gt_memory_category_name(best), gt__bytes_text(r->category_in_use[best], bytes));
    }
    fill_end(&f);
}

/* On the lines that are left. */
static void groups(page *p, const gt_oom_report *r) {
    char who[512], bytes[GT__BYTES_TEXT], tensor[240];
    for (int32_t i = 0; i < r->n_groups; ++i) {
        const gt_oom_group *g = &r->groups[i];
        char many[48] = "";
        if (g->count > 1) (void)snprintf(many, sizeof many, "in %lld of up to ", (long long)g->count);
        (void)tensor_text(tensor, sizeof tensor, g->ndim, g->shape, g->dtype);
        if (tensor[0] == '\0') (void)gt__bytes_text(g->largest, tensor);
        line(p, "%-9s %s: %s %s%s", i == 0 ? "largest" : "", gt__report_who(g->op, g->module, who, sizeof who),
             gt__bytes_text(g->bytes, bytes), many, g->count > 1 || g->ndim >= 0 ? tensor : "");
    }
}

static void rest(page *p, const gt_oom_report *r) {
    char who[512], a[GT__BYTES_TEXT], b[GT__BYTES_TEXT];
    filler f;
    fill_start(&f, p, "pinned by");
    for (int32_t i = 0; i < GT__MIN(r->n_pins, PINS_SHOWN); ++i)
        fill(&f, "%s %s in %lld", gt__report_who(r->pins[i].op, r->pins[i].module, who, sizeof who), gt__bytes_text(r->pins[i].bytes, a),
             (long long)r->pins[i].count);
    fill_end(&f);
    if (r->graphs > 0)
        line(p, "%-9s %s saved for backward by %lld live graph%s", "graphs", gt__bytes_text(r->saved, a), (long long)r->graphs,
             r->graphs == 1 ? "" : "s");
    if (r->growth_steps > 0 && r->cause != GT_OOM_GROWTH)
        line(p, "%-9s %s a step over %d steps, most by %s; %s so far", "growth", gt__bytes_text(r->growth, a), (int)r->growth_steps,
             gt__report_who(r->growth_op, r->growth_module, who, sizeof who), gt__bytes_text(r->growth_now, b));
    fill_start(&f, p, "where");
    fill(&f, "step %lld", (long long)r->step);
    if (r->phase[0]) fill(&f, "%s", r->phase);
    if (r->layers > 0) fill(&f, "%d of %d layers had run", (int)r->layers_run, (int)r->layers);
    if (r->batch > 0) fill(&f, "batch of %lld", (long long)r->batch);
    fill_end(&f);
}

gt_status gt_oom_report_text(const gt_oom_report *report, char *buffer, size_t size, size_t *needed) {
    gt_oom_report ours;
    GT_TRY(gt__report_read(&ours, report, buffer, size, "gt_oom_report_text"));
    page p = {.buffer = buffer, .size = size};
    headline(&p, &ours);
    remedies(&p, &ours);
    device(&p, &ours);
    categories(&p, &ours);
    rest(&p, &ours);
    groups(&p, &ours);
    if (size > 0) buffer[GT__MIN(p.length, size - 1)] = '\0';
    if (needed) *needed = p.length + 1;
    return GT_OK;
}

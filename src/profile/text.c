/* Results as a table for the terminal: 120 columns at the most. */
#include "profile/profile.h"

#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 120, NAME_LEAST = 8 };
#define OUTSIDE "outside modules"

/* Sums of the entries that a row joins. */
typedef struct row {
    const char *op, *module, *phase; /* "" where they differ */
    int64_t calls;
    double host, device, least; /* least: the device time by the ceilings, of what has one */
    double limited;             /* device time of that */
    uint64_t bytes, flops;
} row;

/* --- joining ---------------------------------------------------------------------------------------------------------------------------------- */

static void join(row *r, const gt_profile_entry *e) {
    r->calls += e->calls;
    r->host += e->host_seconds;
    r->device += e->device_seconds;
    r->bytes += e->bytes;
    r->flops += e->flops;
    if (e->ceiling <= 0) return;
    r->least += e->ceiling * e->device_seconds;
    r->limited += e->device_seconds;
}

static bool belongs(const row *r, const gt_profile_entry *e, gt_profile_group group) {
    switch (group) {
    case GT_PROFILE_BY_OP:
        return strcmp(r->op, e->op) == 0;
    case GT_PROFILE_BY_MODULE:
        return strcmp(r->module, e->module) == 0;
    case GT_PROFILE_BY_PHASE:
        return strcmp(r->phase, e->phase) == 0;
    default: /* dtypes joined */
        return strcmp(r->op, e->op) == 0 && strcmp(r->module, e->module) == 0 && strcmp(r->phase, e->phase) == 0;
    }
}

static int by_device_time(const void *a, const void *b) {
    const row *x = a, *y = b;
    if (x->device != y->device) return x->device < y->device ? 1 : -1;
    return x->host < y->host ? 1 : x->host > y->host ? -1 : 0;
}

static gt_status make_rows(const gt_profile *p, gt_profile_group group, row **rows, int32_t *count) {
    row *made = gt__calloc((size_t)p->n_sums + 1, sizeof *made);
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    *count = 0;
    for (int32_t i = 0; i < p->n_sums; ++i) {
        const gt_profile_entry *e = &p->sums[i].shown;
        int32_t k = 0;
        while (k < *count && !belongs(&made[k], e, group)) ++k;
        if (k == *count) {
            const bool all = group == GT_PROFILE_BY_ALL;
            made[(*count)++] = (row){.op = all || group == GT_PROFILE_BY_OP ? e->op : "",
                                     .module = all || group == GT_PROFILE_BY_MODULE ? e->module : "",
                                     .phase = all || group == GT_PROFILE_BY_PHASE ? e->phase : ""};
        }
        join(&made[k], e);
    }
    qsort(made, (size_t)*count, sizeof *made, by_device_time);
    *rows = made;
    return GT_OK;
}

/* --- cells ------------------------------------------------------------------------------------------------------------------------------------- */

static int columns_of(const char *text) {
    int columns = 0;
    for (; *text; ++text) columns += ((unsigned char)*text & 0xc0) != 0x80;
    return columns;
}

/* `text` in `width` columns; of one that is too long the end, which says more of a path. */
static gt_status name_cell(gt__text *out, const char *text, int width) {
    int columns = columns_of(text);
    bool cut = columns > width;
    for (; columns > width - cut; --columns) do
            ++text;
        while (((unsigned char)*text & 0xc0) == 0x80);
    return gt__text_add(out, "%s%s%*s ", cut ? "\xe2\x80\xa6" : "", text, width - cut - columns, "");
}

/* Seconds as milliseconds in eight columns. */
static gt_status time_cell(gt__text *out, double seconds) {
    double ms = 1e3 * seconds;
    if (ms <= 0) return gt__text_add(out, " %8s", "-");
    return gt__text_add(out, " %8.*f", ms < 1000 ? 3 : ms < 10000 ? 2 : ms < 100000 ? 1 : 0, ms);
}

/* A number of three digits or so in seven columns, "-" for none. */
static gt_status rate_cell(gt__text *out, double value) {
    if (value <= 0) return gt__text_add(out, " %7s", "-");
    return gt__text_add(out, " %7.*f", value < 1 ? 4 : value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0, value);
}

/* A share as a percentage in six columns. */
static gt_status share_cell(gt__text *out, double share, bool known) {
    if (!known) return gt__text_add(out, " %6s", "-");
    return gt__text_add(out, " %5.*f%%", share < 9.9995 ? 1 : 0, 100 * share);
}

typedef struct layout {
    int op, module, phase; /* columns; 0: not shown */
    double device;         /* all of it */
    double rate_unit;      /* of both rates: 1e12, or 1e9 on a device that is far from that */
} layout;

static gt_status write_row(gt__text *out, const layout *l, const row *r) {
    if (l->op) GT_TRY(name_cell(out, r->op, l->op));
    if (l->module) GT_TRY(name_cell(out, !l->op && r->module[0] == '\0' ? OUTSIDE : r->module, l->module));
    if (l->phase) GT_TRY(name_cell(out, r->phase, l->phase));
    GT_TRY(gt__text_add(out, "%7lld", (long long)r->calls));
    GT_TRY(time_cell(out, r->host));
    GT_TRY(time_cell(out, r->device));
    GT_TRY(share_cell(out, l->device > 0 ? r->device / l->device : 0, l->device > 0));
    GT_TRY(rate_cell(out, (double)r->bytes / 1e9));
    GT_TRY(rate_cell(out, r->device > 0 ? (double)r->bytes / r->device / l->rate_unit : 0));
    GT_TRY(rate_cell(out, r->device > 0 ? (double)r->flops / r->device / l->rate_unit : 0));
    GT_TRY(share_cell(out, r->limited > 0 ? r->least / r->limited : 0, r->limited > 0));
    return gt__text_add(out, "\n");
}

enum { NUMBERS = 7 + 9 + 9 + 7 + 8 + 8 + 8 + 7 };

/* --- the whole ------------------------------------------------------------------------------------------------------------------------------------ */

/* What the names need, cut to what there is: paths take what ops leave. */
static layout layout_of(const gt_profile *p, const row *rows, int32_t count, gt_profile_group group) {
    const bool slow = p->ceilings.bytes_per_second > 0 && p->ceilings.bytes_per_second < 2e11;
    layout l = {.device = p->summary.device_seconds, .rate_unit = slow ? 1e9 : 1e12};
    int op = NAME_LEAST, module = NAME_LEAST;
    for (int32_t i = 0; i < count; ++i) {
        op = GT__MAX(op, columns_of(rows[i].op));
        module = GT__MAX(module, columns_of(rows[i].module));
    }
    const int room = WIDTH - NUMBERS;
    if (group == GT_PROFILE_BY_ALL) {
        l.phase = 8;
        l.op = GT__MIN(op, 28);
        l.module = GT__MIN(module, room - l.phase - 1 - l.op - 1 - 1);
    } else if (group == GT_PROFILE_BY_OP) {
        l.op = GT__MIN(op, room - 1);
    } else if (group == GT_PROFILE_BY_MODULE) {
        l.module = GT__MIN(GT__MAX(module, (int)sizeof OUTSIDE - 1), room - 1);
    } else {
        l.phase = 8;
    }
    return l;
}

static gt_status write_head(gt__text *out, const gt_profile *p, const layout *l) {
    const gt_profile_summary *s = &p->summary;
    const gt_profile_ceilings *c = &p->ceilings;
    const double steps = (double)GT__MAX(s->steps, 1);
    GT_TRY(gt__text_add(out, "%lld step%s on %s, a step: wall %.3f ms, device %.3f ms, host in calls %.3f ms\n", (long long)s->steps,
                        s->steps == 1 ? "" : "s", p->device_name, 1e3 * s->wall_seconds / steps, 1e3 * s->device_seconds / steps,
                        1e3 * s->host_seconds / steps));
    const char *unit = l->rate_unit < 1e12 ? "G" : "T";
    if (c->bytes_per_second > 0)
        GT_TRY(gt__text_add(out, "ceilings measured: copy %.3g %sB/s, products %.3g %sFLOP/s in f32, %.3g in f16\n",
                            c->bytes_per_second / l->rate_unit, unit, c->f32_flops_per_second / l->rate_unit, unit,
                            c->f16_flops_per_second / l->rate_unit));
    if (s->untimed > 0 || s->dropped_events > 0)
        GT_TRY(gt__text_add(out, "%lld calls without a device time, %lld left out of the trace\n", (long long)s->untimed,
                            (long long)s->dropped_events));
    if (l->op) GT_TRY(name_cell(out, "op", l->op));
    if (l->module) GT_TRY(name_cell(out, "module", l->module));
    if (l->phase) GT_TRY(name_cell(out, "phase", l->phase));
    return gt__text_add(out, "%7s %8s %8s %6s %7s %4s%s %s%s %6s\n", "calls", "host ms", "dev ms", "share", "GB", unit, "B/s", unit,
                        "FLOP/s", "ceil");
}

static gt_status write_rule(gt__text *out, const layout *l) {
    int width = NUMBERS + (l->op ? l->op + 1 : 0) + (l->module ? l->module + 1 : 0) + (l->phase ? l->phase + 1 : 0);
    for (int i = 0; i < width; ++i) GT_TRY(gt__text_append(out, "-", 1));
    return gt__text_append(out, "\n", 1);
}

static void put_name(row *r, const layout *l, const char *name) { *(l->op ? &r->op : l->module ? &r->module : &r->phase) = name; }

static void join_row(row *into, const row *r) {
    into->calls += r->calls;
    into->host += r->host;
    into->device += r->device;
    into->least += r->least;
    into->limited += r->limited;
    into->bytes += r->bytes;
    into->flops += r->flops;
}

static gt_status write_table(gt__text *out, const gt_profile *p, gt_profile_group group, row *rows, int32_t count, int32_t most) {
    const layout l = layout_of(p, rows, count, group);
    const int32_t shown = most > 0 && most < count ? most : count;
    row rest = {.op = "", .module = "", .phase = ""}, total = rest;
    char name[32];
    GT_TRY(write_head(out, p, &l));
    GT_TRY(write_rule(out, &l));
    for (int32_t i = 0; i < count; ++i) {
        join_row(&total, &rows[i]);
        if (i >= shown)
            join_row(&rest, &rows[i]);
        else
            GT_TRY(write_row(out, &l, &rows[i]));
    }
    if (shown < count) {
        (void)snprintf(name, sizeof name, "%d more", (int)(count - shown));
        put_name(&rest, &l, name);
        GT_TRY(write_row(out, &l, &rest));
    }
    GT_TRY(write_rule(out, &l));
    put_name(&total, &l, "total");
    return write_row(out, &l, &total);
}

gt_status gt_profile_text(const gt_profile *profile, gt_profile_group group, int32_t rows, char *buffer, size_t size, size_t *needed) {
    GT_TRY(gt__profile_check_results(profile, "gt_profile_text"));
    GT_REQUIRE(group >= GT_PROFILE_BY_ALL && group <= GT_PROFILE_BY_PHASE, GT_BAD_ARGUMENT,
               "gt_profile_text: group %d is none of GT_PROFILE_BY_ALL, _OP, _MODULE and _PHASE", (int)group);
    GT_REQUIRE(rows >= 0, GT_BAD_ARGUMENT, "gt_profile_text: %d rows; 0 means all", (int)rows);
    GT_REQUIRE(buffer != NULL || size == 0, GT_BAD_ARGUMENT, "gt_profile_text: buffer is NULL and size %zu", size);
    row *made = NULL;
    int32_t count = 0;
    gt__text out = {0};
    gt_status status = make_rows(profile, group, &made, &count);
    if (status == GT_OK) status = write_table(&out, profile, group, made, count, rows);
    if (status == GT_OK) {
        if (size > 0) {
            size_t length = GT__MIN(out.length, size - 1);
            memcpy(buffer, out.data, length);
            buffer[length] = '\0';
        }
        if (needed) *needed = out.length + 1;
    }
    gt__free(made);
    gt__text_free(&out);
    return status;
}

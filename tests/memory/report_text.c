/* The report as text and JSON. */
#include "memory/report_support.h"

#include <stdio.h>
#include <stdlib.h>

/* A report with everything in it, and names as long as they come. */
static void fill_report(gt_oom_report *r, const char *name) {
    CHECK_OK(gt_oom_report_init(r, sizeof *r));
    r->cause = GT_OOM_FRAGMENTED;
    r->requested = r->rounded = 123 * MIB;
    r->op = "conv2d";
    r->module = name;
    r->phase = "forward";
    r->ndim = 4;
    for (int i = 0; i < 4; ++i) r->shape[i] = 123456789;
    r->layers = 24;
    r->layers_run = 12;
    r->step = 1000000;
    r->device_total = 81559 * MIB;
    r->device_free = 1000 * MIB;
    r->ours = r->reserved = 70000 * MIB;
    r->others = 10559 * MIB;
    r->here = 559 * MIB;
    r->limit = 75000 * MIB;
    r->in_use = 60000 * MIB;
    r->cached = 10000 * MIB;
    r->largest_free = 99 * MIB;
    r->peak_in_use = 66666 * MIB;
    r->last_step_peak = 66666 * MIB;
    for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) r->category_in_use[c] = 7500 * MIB;
    r->saved = 40000 * MIB;
    r->graphs = 12345;
    r->batch = 256;
    r->growth_op = "cross_entropy";
    r->growth_module = name;
    r->growth = 12 * MIB;
    r->growth_now = 1200 * MIB;
    r->growth_steps = 8;
    r->n_groups = GT_OOM_GROUPS;
    r->n_pins = GT_OOM_PINS;
    r->n_holders = GT_OOM_HOLDERS;
    r->n_remedies = GT_OOM_REMEDIES;
    for (int i = 0; i < GT_OOM_GROUPS; ++i) {
        r->groups[i] = (gt_oom_group){.op = "linear", .module = name, .bytes = 999 * MIB, .count = 12, .ndim = 2, .shape = {4096, 4096}};
        if (i < GT_OOM_PINS) r->pins[i] = r->groups[i];
    }
    for (int i = 0; i < GT_OOM_HOLDERS; ++i) r->holders[i] = (gt_oom_holder){.process = 1234567, .bytes = 1111 * MIB};
    for (int i = 0; i < GT_OOM_REMEDIES; ++i) {
        gt_oom_remedy *m = &r->remedies[i];
        *m = (gt_oom_remedy){.kind = i % GT_OOM_REMEDY_KINDS, .bytes = 500 * MIB, .need = 1000 * MIB};
        (void)snprintf(m->subject, sizeof m->subject, "checkpoint \"%.60s\" to \"%.60s\" (12 modules)", name, name);
        (void)snprintf(m->cost, sizeof m->cost, "more and smaller kernels; the same gradient");
    }
}

static int characters(const char *text, size_t bytes) {
    int count = 0;
    for (size_t i = 0; i < bytes; ++i) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

static void check_screen(const char *text) {
    int lines = 0;
    while (*text) {
        const char *end = strchr(text, '\n');
        CHECK(end != NULL);
        CHECK(characters(text, (size_t)(end - text)) <= 100);
        CHECK(end == text || end[-1] != ' ');
        text = end + 1;
        ++lines;
    }
    CHECK(lines > 5 && lines <= 24);
}

TEST(unit, oom_text_fits_a_terminal) {
    gt_oom_report *r = calloc(1, sizeof *r);
    const char *names[] = {
        "", "block1.conv",
        "a.very.long.path.of.modules.in.modules.in.modules.in.modules.in.modules.in.modules.in.modules.in.modules.in.modules",
        "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4"
        "\xc3\xb6"
        "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4"
        "\xc3\xb6"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        char text[GT_OOM_TEXT_SIZE];
        size_t needed = 0;
        fill_report(r, names[i]);
        for (gt_oom_cause cause = GT_OOM_NONE; cause <= GT_OOM_HOST; ++cause) {
            r->cause = cause;
            CHECK_OK(gt_oom_report_text(r, text, sizeof text, &needed));
            CHECK_EQ_INT(needed, strlen(text) + 1);
            check_screen(text);
            CHECK(strstr(text, "12345 live graphs") != NULL);
            if (cause != GT_OOM_NONE)
                CHECK(strncmp(text, "out of memory: conv2d", 21) == 0 && strstr(text, gt_oom_cause_name(cause)) != NULL);
        }
    }
    free(r);
}

TEST(unit, oom_text_is_cut_to_the_buffer) {
    gt_oom_report *r = calloc(1, sizeof *r);
    char text[64], whole[GT_OOM_TEXT_SIZE];
    size_t needed = 0, again = 0;
    fill_report(r, "m");
    CHECK_OK(gt_oom_report_text(r, NULL, 0, &needed));
    CHECK_OK(gt_oom_report_text(r, whole, sizeof whole, NULL));
    CHECK_OK(gt_oom_report_text(r, text, sizeof text, &again));
    CHECK_EQ_INT(again, needed);
    CHECK_EQ_INT(strlen(text), sizeof text - 1);
    CHECK(memcmp(text, whole, sizeof text - 1) == 0);
    CHECK_STATUS(gt_oom_report_text(r, NULL, 8, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_oom_report_text(NULL, text, sizeof text, NULL), GT_BAD_ARGUMENT);
    r->struct_size = 0;
    CHECK_STATUS(gt_oom_report_text(r, text, sizeof text, NULL), GT_BAD_ABI);
    free(r);
}

/* Brackets match outside strings, and nothing follows. */
static void check_json(const char *text) {
    char stack[64];
    int depth = 0, strings = 0;
    for (const char *s = text; *s; ++s) {
        if (*s == '"') {
            for (++s; *s != '"'; ++s) {
                CHECK((unsigned char)*s >= 0x20);
                if (*s == '\\') ++s;
            }
            ++strings;
        } else if (*s == '{' || *s == '[') {
            CHECK(depth < 64);
            stack[depth++] = *s;
        } else if (*s == '}' || *s == ']') {
            CHECK(depth > 0 && stack[--depth] == (*s == '}' ? '{' : '['));
            CHECK(depth > 0 || s[1] == '\0' || s[1] == '\n');
        }
    }
    CHECK(depth == 0 && strings > 50);
}

TEST(unit, oom_json_has_every_part) {
    gt_oom_report *r = calloc(1, sizeof *r);
    fill_report(r, "a \"quoted\" \\ name\n");
    size_t needed = 0;
    CHECK_OK(gt_oom_report_json(r, NULL, 0, &needed));
    char *text = malloc(needed);
    CHECK_OK(gt_oom_report_json(r, text, needed, NULL));
    CHECK_EQ_INT(strlen(text) + 1, needed);
    check_json(text);
    const char *parts[] = {"\"cause\":\"FRAGMENTED\"", "\"request\"",     "\"remedies\"", "\"MICRO_BATCH\"",
                           "\"RAISE_LIMIT\"",          "\"device\"",      "\"holders\"",  "\"in_use\"",
                           "\"category_in_use\"",      "\"growth\"",      "\"groups\"",   "\"pins\"",
                           "\"graphs\":12345",         "a \\\"quoted\\\""};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i)
        if (strstr(text, parts[i]) == NULL) FAIL("%s is missing in %s", parts[i], text);
    char small[16];
    CHECK_OK(gt_oom_report_json(r, small, sizeof small, NULL));
    CHECK(memcmp(small, text, sizeof small - 1) == 0 && small[sizeof small - 1] == '\0');
    free(text);
    free(r);
}

TEST(unit, oom_report_of_an_older_caller_is_read) {
    gt_oom_report *r = calloc(1, sizeof *r);
    char text[GT_OOM_TEXT_SIZE];
    fill_report(r, "m");
    CHECK_OK(gt_oom_report_init(r, offsetof(gt_oom_report, n_groups)));
    CHECK_OK(gt_oom_report_text(r, text, sizeof text, NULL));
    CHECK_EQ_STR(gt_oom_cause_name(GT_OOM_EXTERNAL), "EXTERNAL");
    CHECK_EQ_STR(gt_oom_cause_name(99), "?");
    CHECK_EQ_STR(gt_oom_remedy_name(GT_OOM_REMEDY_OFFLOAD), "OFFLOAD");
    CHECK_EQ_STR(gt_oom_remedy_name(-1), "?");
    free(r);
}

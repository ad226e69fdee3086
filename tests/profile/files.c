/* Results as text, JSON and a time line. */
#include "profile/network.h"

#include "base/json_read.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static gt_profile *profiled(test_case *t, network *n, int steps) {
    network_begin(t, n, 0);
    network_use_timers(n);
    network_train(n);
    gt_profile *p = network_profile(n, 0, 0, 0, 0);
    for (int i = 0; i < steps; ++i) network_train(n);
    CHECK_OK(gt_profile_stop(p));
    return p;
}

static char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    *length = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*length + 1);
    CHECK(fread(text, 1, *length, file) == *length);
    text[*length] = '\0';
    fclose(file);
    return text;
}

/* --- the table -------------------------------------------------------------------------------------------------------------------------------- */

static int columns(const char *line, size_t length) {
    int n = 0;
    for (size_t i = 0; i < length; ++i) n += ((unsigned char)line[i] & 0xc0) != 0x80;
    return n;
}

/* Lines of the table proper are of one width; none is wider than the terminal. Returns how many there are. */
static int check_table(const char *text) {
    int lines = 0, width = 0;
    for (const char *line = text; *line; ++lines) {
        const char *end = strchr(line, '\n');
        CHECK(end != NULL);
        int n = columns(line, (size_t)(end - line));
        if (n > 120) FAIL("%d columns: %.*s", n, (int)(end - line), line);
        if (line[0] == '-') width = n;
        if (width > 0 && n != width) FAIL("%d columns, the table has %d: %.*s", n, width, (int)(end - line), line);
        line = end + 1;
    }
    CHECK(width > 0);
    return lines;
}

TEST_DEVICES(unit, profile_table_is_aligned_and_fits_the_terminal) {
    network n;
    static char text[1 << 16], part[300];
    gt_profile *p = profiled(t, &n, 2);
    size_t needed, again;
    for (gt_profile_group group = GT_PROFILE_BY_ALL; group <= GT_PROFILE_BY_PHASE; ++group) {
        CHECK_OK(gt_profile_text(p, group, 0, text, sizeof text, &needed));
        CHECK_EQ_INT(needed, strlen(text) + 1);
        int all = check_table(text);
        CHECK(strstr(text, "\ntotal ") != NULL && strstr(text, "100.0%") != NULL);
        CHECK(strstr(text, "2 steps on ") == text);
        CHECK(strstr(text, "ceilings measured") != NULL);
        CHECK_OK(gt_profile_text(p, group, 2, text, sizeof text, NULL));
        int few = check_table(text); /* two rows, one for the rest */
        CHECK_EQ_INT(few, all < 9 ? all : 9);
        CHECK((strstr(text, " more ") != NULL) == (all > 8));
    }
    CHECK_OK(gt_profile_text(p, GT_PROFILE_BY_ALL, 0, text, sizeof text, &needed));
    CHECK_OK(gt_profile_text(p, GT_PROFILE_BY_ALL, 0, part, sizeof part, &again)); /* cut */
    CHECK_EQ_INT(again, needed);
    CHECK(strlen(part) == sizeof part - 1 && strncmp(part, text, sizeof part - 1) == 0);
    CHECK_OK(gt_profile_text(p, GT_PROFILE_BY_ALL, 0, NULL, 0, &again));
    CHECK_EQ_INT(again, needed);
    CHECK_STATUS(gt_profile_text(p, 9, 0, text, sizeof text, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_profile_text(p, 0, -1, text, sizeof text, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_profile_text(p, 0, 0, NULL, 10, NULL), GT_BAD_ARGUMENT);
    gt_profile_destroy(p);
    network_end(&n);
}

/* A path is cut at its front, however many bytes its characters have. */
TEST(unit, profile_table_cuts_long_module_paths) {
    gt_context *ctx = test_context(t);
    static char text[1 << 14], name[400];
    gt_module *layer[1];
    for (int i = 0; i < 100; ++i) strcat(name, i % 10 == 9 ? "\xc3\xa4" : "abc");
    strcat(name, "the_end");
    gt_module *net = gt_nn_linear(ctx, 4, 4, NULL);
    for (int depth = 0; depth < 2; ++depth) {
        layer[0] = net;
        net = gt_nn_sequential(ctx);
        CHECK(net != NULL);
        CHECK_OK(gt_nn_sequential_add_named(net, name, layer[0]));
    }
    gt_profile *p;
    network_set_ceilings(ctx);
    CHECK_OK(gt_profile_create(ctx, NULL, &p));
    const int64_t shape[2] = {2, 4};
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_TENSOR(gt_module_forward(net, CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1))));
    CHECK_OK(gt_scope_end(ctx));
    CHECK_OK(gt_profile_stop(p));
    for (gt_profile_group group = GT_PROFILE_BY_ALL; group <= GT_PROFILE_BY_MODULE; ++group) {
        CHECK_OK(gt_profile_text(p, group, 0, text, sizeof text, NULL));
        check_table(text);
        if (group != GT_PROFILE_BY_OP) CHECK(strstr(text, "the_end") != NULL && strstr(text, "\xe2\x80\xa6") != NULL);
    }
    gt_profile_destroy(p);
    gt_module_destroy(net);
}

/* --- JSON --------------------------------------------------------------------------------------------------------------------------------------- */

typedef struct event {
    char name[64], phase;
    int pid, tid;
    double begin, end;
    bool module, bytes;
} event;

static double number(const char *text, const gt__json_token *token) { return strtod(text + token->at, NULL); }

/* The events of a time line, in the file's order. */
static event *read_events(const char *path, int *count) {
    size_t length;
    char *text = read_file(path, &length), key[64] = "";
    gt__json_reader reader;
    gt__json_token token;
    event *events = NULL, now = {.phase = 0};
    int depth = 0;
    double duration = 0;
    *count = 0;
    gt__json_reader_init(&reader, text, length);
    while (gt__json_next(&reader, &token) && token.kind != GT__JSON_END) {
        if (token.kind == GT__JSON_OBJECT && ++depth == 2) {
            now = (event){.phase = 0};
            duration = 0;
        }
        if (token.kind == GT__JSON_OBJECT_END && depth-- == 2) {
            now.end = now.begin + duration;
            events = realloc(events, (size_t)(*count + 1) * sizeof *events);
            events[(*count)++] = now;
        }
        if (token.kind == GT__JSON_KEY) {
            CHECK(token.length < sizeof key);
            memcpy(key, text + token.at, token.length);
            key[token.length] = '\0';
            now.module |= depth == 3 && strcmp(key, "module") == 0;
            now.bytes |= depth == 3 && strcmp(key, "bytes") == 0;
        } else if (depth == 2) {
            if (strcmp(key, "ph") == 0) now.phase = text[token.at];
            if (strcmp(key, "name") == 0 && token.kind == GT__JSON_STRING)
                snprintf(now.name, sizeof now.name, "%.*s", (int)token.length, text + token.at);
            if (strcmp(key, "pid") == 0) now.pid = (int)number(text, &token);
            if (strcmp(key, "tid") == 0) now.tid = (int)number(text, &token);
            if (strcmp(key, "ts") == 0) now.begin = number(text, &token);
            if (strcmp(key, "dur") == 0) duration = number(text, &token);
        }
    }
    if (reader.problem) FAIL("%s: %s at %zu", path, reader.problem, reader.at);
    free(text);
    return events;
}

static int by_begin(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end ? 1 : 0;
}

/* On one track each event lies inside the one before it or begins after it: what a viewer needs to stack them. */
static void check_nesting(event *events, int count, int pid, int tid, int most_depth) {
    event stack[8];
    int depth = 0;
    qsort(events, (size_t)count, sizeof *events, by_begin);
    for (int i = 0; i < count; ++i) {
        const event *e = &events[i];
        if (e->phase != 'X' || e->pid != pid || e->tid != tid) continue;
        while (depth > 0 && e->begin >= stack[depth - 1].end - 1e-6) --depth;
        if (depth > 0 && e->end > stack[depth - 1].end + 1e-6)
            FAIL("%s [%f, %f] begins inside %s [%f, %f] and ends after it", e->name, e->begin, e->end, stack[depth - 1].name,
                 stack[depth - 1].begin, stack[depth - 1].end);
        CHECK(depth < most_depth);
        stack[depth++] = *e;
    }
}

TEST_DEVICES(unit, profile_trace_is_a_time_line_that_nests) {
    network n;
    gt_profile_summary s;
    enum { STEPS = 3 };
    gt_profile *p = profiled(t, &n, STEPS);
    const char *path = test_temp_path(t, "trace.json");
    CHECK_OK(gt_profile_trace(p, path));
    CHECK_OK(gt_profile_summary_init(&s, sizeof s));
    CHECK_OK(gt_profile_get_summary(p, &s));
    int count, steps = 0, host = 0, device = 0;
    event *events = read_events(path, &count);
    for (int i = 0; i < count; ++i) {
        const event *e = &events[i];
        if (e->phase != 'X') continue;
        CHECK(e->begin >= -100 && e->end >= e->begin && e->end <= 1e6 * s.wall_seconds + 1000);
        if (strcmp(e->name, "step") == 0) {
            steps++;
            continue;
        }
        CHECK(e->module);
        host += e->pid == 1;
        device += e->pid == 2;
        if (strcmp(e->name, "conv2d_relu") == 0) CHECK(e->bytes);
    }
    CHECK_EQ_INT(steps, STEPS);
    CHECK_EQ_INT(host, s.calls);
    CHECK(device >= STEPS * 12 && device <= s.calls); /* not what the host does alone */
    check_nesting(events, count, 1, 1, 2);            /* steps, and calls in them */
    check_nesting(events, count, 2, 1, 1);
    check_nesting(events, count, 2, 2, 1);
    free(events);
    gt_profile_destroy(p);
    network_end(&n);
}

TEST_DEVICES(unit, profile_json_has_what_the_entries_have) {
    network n;
    gt_profile *p = profiled(t, &n, 1);
    const char *path = test_temp_path(t, "profile.json");
    CHECK_OK(gt_profile_json(p, path));
    size_t length;
    char *text = read_file(path, &length), line[64];
    gt__json_reader reader;
    gt__json_token token;
    int objects = 0;
    gt__json_reader_init(&reader, text, length);
    while (gt__json_next(&reader, &token) && token.kind != GT__JSON_END) objects += token.kind == GT__JSON_OBJECT;
    CHECK(reader.problem == NULL);
    CHECK_EQ_INT(objects, 2 + gt_profile_entry_count(p));
    const gt_profile_entry *e = network_entry(p, "linear_relu", "4", "forward");
    snprintf(line, sizeof line, "\"flops\":%llu", (unsigned long long)e->flops);
    const char *entry = strstr(text, "\"op\":\"linear_relu\",\"module\":\"4\",\"phase\":\"forward\",\"dtype\":\"f32\",\"calls\":1");
    CHECK(entry != NULL && strstr(entry, line) != NULL);
    free(text);
    gt_profile_destroy(p);
    network_end(&n);
}

TEST(unit, profile_files_that_cannot_be_written_are_statuses) {
    network n;
    gt_profile *p = profiled(t, &n, 1);
    CHECK_STATUS(gt_profile_trace(p, "/nowhere/at/all.json"), GT_IO);
    CHECK_STATUS(gt_profile_json(p, "/nowhere/at/all.json"), GT_IO);
    CHECK_STATUS(gt_profile_trace(p, ""), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_profile_json(p, NULL), GT_BAD_ARGUMENT);
    gt_profile_destroy(p);
    network_end(&n);
}

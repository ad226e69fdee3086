/* The allocator's history made whole, and the files that show it. */
#include "harness/test.h"
#include "unit/fake_device.h"

#include "base/json_write.h"
#include "base/replace_file.h"
#include "memory/lives.h"
#include <gtrain/gtrain.h>

#include <dirent.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/core.h" /* the allocator inside a context */

/* --- a workload: steps of a small network, whose names need escaping ---------------------------------------------------------------- */
typedef struct workload {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
} workload;

static workload workload_open(gt_context *ctx) {
    workload w = {.ctx = ctx, .net = gt_nn_sequential(ctx)};
    CHECK_OK(gt_nn_sequential_add_named(w.net, "fc</script>\"\\1", gt_nn_linear(ctx, 64, 128, NULL)));
    CHECK_OK(gt_nn_sequential_add_named(w.net, "\xe2\x88\x87\x01", gt_nn_gelu(ctx, 0)));
    CHECK_OK(gt_nn_sequential_add_named(w.net, "out\xff", gt_nn_linear(ctx, 128, 10, NULL)));
    gt_optimizer_options rule;
    CHECK_OK(gt_optimizer_options_init(&rule, sizeof rule, GT_OPTIMIZER_ADAM));
    CHECK_OK(gt_optimizer_create_for(&rule, w.net, &w.optimizer));
    return w;
}

static void workload_step(workload *w) {
    const int64_t x_shape[2] = {32, 64}, y_shape[1] = {32};
    CHECK_OK(gt_scope_begin(w->ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_uniform(w->ctx, GT_DTYPE_F32, 2, x_shape, -1, 1));
    gt_tensor *y = CHECK_TENSOR(gt_tensor_zeros(w->ctx, GT_DTYPE_I64, 1, y_shape));
    CHECK_OK(gt_optimizer_zero_grad(w->optimizer));
    CHECK_OK(gt_backward(gt_cross_entropy(gt_module_forward(w->net, x), y, NULL)));
    CHECK_OK(gt_optimizer_step(w->optimizer));
    CHECK_OK(gt_scope_end(w->ctx));
}

static void workload_close(workload *w) {
    gt_optimizer_destroy(w->optimizer);
    gt_module_destroy(w->net);
}

/* --- the history made whole ---------------------------------------------------------------------------------------------------------- */
/* Bytes in use before the first event and after each, by category; n_events + 1 rows. */
typedef uint64_t row[GT_MEMORY_CATEGORY_COUNT];
static row *replay(const gt__lives *h) {
    row *rows = calloc((size_t)h->n_events + 1, sizeof *rows);
    gt_memory_category *now = calloc((size_t)h->count + 1, sizeof *now);
    CHECK(rows != NULL && now != NULL);
    for (int64_t i = 0; i < h->count; ++i) {
        now[i] = h->list[i].category;
        if (h->list[i].born == GT__BORN_BEFORE) rows[0][now[i]] += h->list[i].bytes;
    }
    for (int64_t i = 0; i < h->n_events; ++i) {
        memcpy(rows[i + 1], rows[i], sizeof rows[i]);
        int64_t k = h->life_of[i];
        if (k < 0) continue;
        const gt__memory_event *e = &h->events[i];
        CHECK(h->list[k].sequence == e->sequence && h->list[k].bytes == e->bytes);
        if (e->kind == GT__MEMORY_ALLOC) {
            rows[i + 1][now[k]] += e->bytes;
            continue;
        }
        CHECK(rows[i][now[k]] >= e->bytes);
        rows[i + 1][now[k]] -= e->bytes;
        if (e->kind == GT__MEMORY_CATEGORY) rows[i + 1][now[k] = e->category] += e->bytes;
    }
    free(now);
    return rows;
}

static uint64_t total(const row r) {
    uint64_t sum = 0;
    for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) sum += r[c];
    return sum;
}

TEST_DEVICES(unit, memory_history_ends_with_the_live_bytes) {
    workload w = workload_open(test_context(t));
    for (int i = 0; i < 4; ++i) workload_step(&w);
    gt__lives whole, part;
    CHECK_OK(gt__lives_collect(w.ctx->allocator, &whole));
    CHECK(whole.n_events > 150 && whole.lost == 0);
    row *all = replay(&whole);
    CHECK_EQ_INT(total(all[0]), 0);
    uint64_t peak = 0;
    for (int64_t i = 0; i <= whole.n_events; ++i) peak = GT__MAX(peak, total(all[i]));
    CHECK_EQ_INT(peak, whole.stats.peak_in_use);
    for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) CHECK_EQ_INT(all[whole.n_events][c], whole.stats.category_in_use[c]);
    CHECK_EQ_INT(whole.reserved_at_start, 0);
    for (int64_t i = 0; i < whole.count; ++i) {
        CHECK(whole.list[i].born >= 0 && whole.list[i].step >= 0 && whole.list[i].op != NULL);
        CHECK(i == 0 || whole.list[i].sequence > whole.list[i - 1].sequence);
    }
    workload_close(&w);

    /* The same with a ring that keeps the end of it: what was before is found again. */
    for (int64_t kept = 1; kept <= 150; kept += 37) {
        w = workload_open(test_context(t));
        CHECK_OK(gt_memory_set_history(w.ctx, kept));
        for (int i = 0; i < 4; ++i) workload_step(&w);
        CHECK_OK(gt__lives_collect(w.ctx->allocator, &part));
        CHECK_EQ_INT(part.n_events, kept);
        CHECK(part.lost > 0);
        row *end = replay(&part);
        CHECK_EQ_INT(total(end[kept]), part.stats.in_use);
        if (part.stats.peak_in_use == peak) { /* the device did the same work in the same memory */
            for (int64_t i = 0; i <= kept; ++i) CHECK(memcmp(end[i], all[whole.n_events - kept + i], sizeof end[i]) == 0);
        }
        free(end);
        gt__lives_free(&part);
        workload_close(&w);
    }
    free(all);
    gt__lives_free(&whole);
}

/* --- files --------------------------------------------------------------------------------------------------------------------------- */
static char *slurp(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    CHECK(f != NULL);
    CHECK(fseek(f, 0, SEEK_END) == 0);
    *size = (size_t)ftell(f);
    rewind(f);
    char *data = calloc(*size + 1, 1);
    CHECK(data != NULL && fread(data, 1, *size, f) == *size);
    fclose(f);
    return data;
}

/* One JSON value of RFC 8259 (its text is known to be UTF-8); NULL where it is none. */
static const char *json_value(const char *s);
static const char *json_space(const char *s) { return s + strspn(s, " \n\r\t"); }
static const char *json_text(const char *s) {
    if (*s++ != '"') return NULL;
    for (; *s != '"'; ++s) {
        if ((unsigned char)*s < 0x20) return NULL;
        if (*s != '\\') continue;
        ++s;
        if (*s == '\0' || !strchr("\"\\/bfnrtu", *s)) return NULL;
        if (*s != 'u') continue;
        if (strspn(s + 1, "0123456789abcdefABCDEF") < 4) return NULL;
        s += 4;
    }
    return s + 1;
}
static const char *json_list(const char *s, char end) {
    s = json_space(s + 1);
    if (*s == end) return s + 1;
    for (;;) {
        if (end == '}') {
            s = json_text(json_space(s));
            if (s == NULL || *(s = json_space(s)) != ':') return NULL;
            ++s;
        }
        s = json_value(s);
        if (s == NULL) return NULL;
        s = json_space(s);
        if (*s == end) return s + 1;
        if (*s++ != ',') return NULL;
    }
}
static const char *json_value(const char *s) {
    s = json_space(s);
    if (*s == '{') return json_list(s, '}');
    if (*s == '[') return json_list(s, ']');
    if (*s == '"') return json_text(s);
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < 3; ++i)
        if (strncmp(s, words[i], strlen(words[i])) == 0) return s + strlen(words[i]);
    const char *digits = s + (*s == '-'), *end = digits + strspn(digits, "0123456789");
    if (end == digits || (*digits == '0' && end > digits + 1)) return NULL;
    if (*end == '.') {
        size_t n = strspn(end + 1, "0123456789");
        if (n == 0) return NULL;
        end += 1 + n;
    }
    if (*end == 'e' || *end == 'E') {
        const char *power = end + 1 + (end[1] == '+' || end[1] == '-');
        size_t n = strspn(power, "0123456789");
        if (n == 0) return NULL;
        end = power + n;
    }
    return end;
}
static int is_json(const char *text) {
    const char *end = json_value(text);
    return end != NULL && *json_space(end) == '\0';
}
static int is_utf8(const char *s) {
    for (size_t n; *s; s += n) {
        n = gt__utf8_character(s);
        if (n == 0) return 0;
    }
    return 1;
}

static uint64_t member(const char *json, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(json, quoted);
    CHECK(at != NULL);
    return strtoull(at + strlen(quoted), NULL, 10);
}

/* Bytes of the blocks in one state. */
static uint64_t bytes_of(const char *json, const char *state) {
    char mark[64];
    snprintf(mark, sizeof mark, ",\"state\":\"%s\"", state);
    uint64_t sum = 0;
    for (const char *at = strstr(json, mark); at; at = strstr(at + 1, mark)) {
        const char *digits = at;
        while (digits[-1] >= '0' && digits[-1] <= '9') digits--;
        sum += strtoull(digits, NULL, 10);
    }
    return sum;
}

TEST_DEVICES(unit, memory_snapshot_adds_up) {
    workload w = workload_open(test_context(t));
    for (int i = 0; i < 2; ++i) workload_step(&w);
    const char *path = test_temp_path(t, "snapshot.json");
    CHECK_OK(gt_memory_snapshot(w.ctx, path));
    CHECK_OK(gt_memory_snapshot(w.ctx, path)); /* over the first */
    size_t size;
    char *json = slurp(path, &size);
    CHECK(strlen(json) == size && is_json(json) && is_utf8(json));
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_get_stats(w.ctx, &stats));
    CHECK(stats.in_use > 0 && stats.steps > 0);
    CHECK_EQ_INT(member(json, "in_use"), stats.in_use);
    CHECK_EQ_INT(member(json, "peak_in_use"), stats.peak_in_use);
    CHECK_EQ_INT(bytes_of(json, "used"), stats.in_use);
    CHECK_EQ_INT(bytes_of(json, "free"), stats.cached);
    CHECK(strstr(json, "</script>") == NULL && strstr(json, "fc\\u003c/script>\\\"\\\\1") != NULL);
    CHECK(strstr(json, "out\\ufffd") != NULL);
    free(json);
    workload_close(&w);
}

TEST_DEVICES(unit, memory_timeline_is_one_page) {
    workload w = workload_open(test_context(t));
    for (int i = 0; i < 2; ++i) workload_step(&w);
    /* A request that fails is in the history. */
    const int64_t huge[1] = {(int64_t)1 << 40};
    CHECK(gt_tensor_empty(w.ctx, GT_DTYPE_F32, 1, huge) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_OUT_OF_MEMORY);
    const char *path = test_temp_path(t, "timeline.html");
    CHECK_OK(gt_memory_timeline(w.ctx, path));
    size_t size;
    char *page = slurp(path, &size);
    CHECK(strlen(page) == size && is_utf8(page));
    CHECK(strstr(page, "http://") == NULL && strstr(page, "https://") == NULL && strstr(page, "<link") == NULL &&
          strstr(page, "@DATA@") == NULL);
    char *data = strstr(page, "<script id=\"data\"");
    CHECK(data != NULL);
    data = strchr(data, '>') + 1;
    char *end = strstr(data, "</script>");
    CHECK(end != NULL);
    *end = '\0';
    CHECK(is_json(data));
    char failed[32];
    snprintf(failed, sizeof failed, ",[%llu,", (unsigned long long)huge[0] * 4);
    CHECK(strstr(data, failed) != NULL);
    free(page);
    workload_close(&w);
}

static int python_there(void) { return system("python3 -c 'import json, pickle' >/dev/null 2>&1") == 0; }

TEST_DEVICES(unit, memory_viz_is_a_pickle) {
    workload w = workload_open(test_context(t));
    for (int i = 0; i < 2; ++i) workload_step(&w);
    const int64_t huge[1] = {(int64_t)1 << 40};
    CHECK(gt_tensor_empty(w.ctx, GT_DTYPE_F32, 1, huge) == NULL);
    char path[512], snapshot[512], command[4096];
    snprintf(path, sizeof path, "%s", test_temp_path(t, "viz.pickle"));
    snprintf(snapshot, sizeof snapshot, "%s", test_temp_path(t, "snapshot.json"));
    CHECK_OK(gt_memory_viz(w.ctx, path));
    CHECK_OK(gt_memory_snapshot(w.ctx, snapshot));
    workload_close(&w);
    size_t size;
    char *bytes = slurp(path, &size);
    CHECK(size > 1000 && memcmp(bytes, "\x80\x02}", 3) == 0 && bytes[size - 1] == '.');
    free(bytes);
    if (!python_there()) SKIP("no python3 to read the pickle with");
    snprintf(command, sizeof command,
             "python3 -c \"\n"
             "import json, pickle\n"
             "p = pickle.load(open('%s', 'rb'))\n"
             "j = json.load(open('%s'))\n"
             "s = j['stats']\n"
             "assert set(p) == {'segments', 'device_traces'}, p.keys()\n"
             "assert sum(g['total_size'] for g in p['segments']) == s['reserved']\n"
             "assert sum(g['allocated_size'] for g in p['segments']) == s['in_use']\n"
             "for g in p['segments']:\n"
             "    address = g['address']\n"
             "    for b in g['blocks']:\n"
             "        assert b['address'] == address and b['requested_size'] <= b['size']\n"
             "        address += b['size']\n"
             "    assert address == g['address'] + g['total_size']\n"
             "e, = p['device_traces']\n"
             "live = {}\n"
             "for x in e:\n"
             "    if x['action'] == 'alloc': assert x['addr'] not in live; live[x['addr']] = x['size']\n"
             "    if x['action'] == 'free_completed': assert live.pop(x['addr']) == x['size']\n"
             "assert sum(live.values()) == s['in_use'], (sum(live.values()), s['in_use'])\n"
             "assert [x['size'] for x in e if x['action'] == 'oom'] == [2**42]\n"
             "assert any(f['filename'].startswith('fc</script>') and f['name'] == 'linear' for x in e for f in x['frames'])\n"
             "assert j['history']['lost'] == 0 and j['device']['name']\n"
             "\"",
             path, snapshot);
    CHECK_EQ_INT(system(command), 0);
}

/* A folder's entries. */
static int entries(const char *folder) {
    DIR *d = opendir(folder);
    CHECK(d != NULL);
    int n = -2; /* . and .. */
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

typedef gt_status (*write_fn)(gt_context *ctx, const char *path);
static const write_fn writers[] = {gt_memory_snapshot, gt_memory_timeline, gt_memory_viz};

TEST(unit, memory_files_that_cannot_be_written_leave_nothing) {
    workload w = workload_open(test_context(t));
    workload_step(&w);
    char folder[512], path[600];
    snprintf(folder, sizeof folder, "%s", test_temp_path(t, "files"));
    CHECK(mkdir(folder, 0777) == 0);
    for (size_t i = 0; i < GT__COUNT(writers); ++i) {
        CHECK_STATUS(writers[i](w.ctx, NULL), GT_BAD_ARGUMENT);
        CHECK_STATUS(writers[i](w.ctx, ""), GT_BAD_ARGUMENT);
        CHECK_STATUS(writers[i](NULL, "x"), GT_BAD_ARGUMENT);
        CHECK_STATUS(writers[i](w.ctx, folder), GT_BAD_ARGUMENT); /* not a file */
        CHECK_ERROR_HAS("files is not a plain file");
        snprintf(path, sizeof path, "%s/nowhere/x", folder);
        CHECK_STATUS(writers[i](w.ctx, path), GT_IO);
        CHECK_EQ_INT(gt_last_error()->native_code, ENOENT);
        CHECK_EQ_STR(gt_last_error()->native_name, "errno");
        CHECK_ERROR_HAS("gt_memory_");
        CHECK_ERROR_HAS(path);

        /* A disk that is full, in the form of a limit on a file's size. */
        snprintf(path, sizeof path, "%s/kept", folder);
        FILE *f = fopen(path, "w");
        CHECK(f != NULL && fputs("old", f) >= 0 && fclose(f) == 0);
        struct rlimit before, small = {.rlim_cur = 4096};
        CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
        small.rlim_max = before.rlim_max;
        void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
        CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
        gt_status status = writers[i](w.ctx, path);
        CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
        signal(SIGXFSZ, handler);
        CHECK_STATUS(status, GT_IO);
        CHECK_EQ_INT(gt_last_error()->native_code, EFBIG);
        CHECK_EQ_INT(entries(folder), 1);
        size_t size;
        char *text = slurp(path, &size);
        CHECK_EQ_STR(text, "old");
        free(text);
        CHECK(unlink(path) == 0);
    }
    workload_close(&w);
}

TEST(unit, memory_files_survive_each_host_allocation_that_fails) {
    workload w = workload_open(test_context(t));
    workload_step(&w);
    char folder[512], path[600];
    snprintf(folder, sizeof folder, "%s", test_temp_path(t, "files"));
    CHECK(mkdir(folder, 0777) == 0);
    snprintf(path, sizeof path, "%s/file", folder);
    for (size_t i = 0; i < GT__COUNT(writers); ++i) {
        int64_t before = fake_host_live(), after = 0;
        for (;; ++after) {
            fake_host_fail(after);
            gt_status status = writers[i](w.ctx, path);
            int failed = fake_host_failed();
            fake_host_fail(-1);
            if (status == GT_OK && !failed) break;
            CHECK(status == GT_OK || status == GT_OUT_OF_HOST_MEMORY); /* OK: somewhere that does without */
            if (status != GT_OK) CHECK_EQ_INT(entries(folder), 0);
            if (status == GT_OK) CHECK(unlink(path) == 0);
        }
        CHECK(after >= 5);
        CHECK_EQ_INT(fake_host_live(), before);
        CHECK_EQ_INT(entries(folder), 1);
        CHECK(unlink(path) == 0);
    }
    workload_close(&w);
}

TEST_DEVICES(unit, memory_history_can_be_off) {
    workload w = workload_open(test_context(t));
    CHECK_STATUS(gt_memory_set_history(w.ctx, -1), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_memory_set_history(w.ctx, ((int64_t)1 << 24) + 1), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_memory_set_history(NULL, 1), GT_BAD_ARGUMENT);
    CHECK_OK(gt_memory_set_history(w.ctx, 0));
    workload_step(&w);
    char path[512];
    size_t size;
    snprintf(path, sizeof path, "%s", test_temp_path(t, "file"));
    CHECK_OK(gt_memory_snapshot(w.ctx, path));
    char *text = slurp(path, &size);
    CHECK(is_json(text) && strstr(text, "\"events\":[]") != NULL);
    gt_memory_stats stats = {.struct_size = sizeof stats};
    CHECK_OK(gt_memory_get_stats(w.ctx, &stats));
    CHECK_EQ_INT(bytes_of(text, "used"), stats.in_use);
    free(text);
    CHECK_OK(gt_memory_timeline(w.ctx, path));
    CHECK_OK(gt_memory_viz(w.ctx, path));
    gt__lives h;
    CHECK_OK(gt__lives_collect(w.ctx->allocator, &h));
    CHECK_EQ_INT(h.n_events, 0);
    uint64_t live = 0;
    for (int64_t i = 0; i < h.count; ++i) live += h.list[i].bytes;
    CHECK_EQ_INT(live, stats.in_use);
    gt__lives_free(&h);
    CHECK_OK(gt_memory_set_history(w.ctx, 100)); /* and on again */
    workload_step(&w);
    CHECK_OK(gt__lives_collect(w.ctx->allocator, &h));
    CHECK(h.n_events > 0 && h.n_events <= 100);
    gt__lives_free(&h);
    workload_close(&w);
}

/* --- JSON and files in general --------------------------------------------------------------------------------------------------------- */
TEST(unit, json_numbers_and_text) {
    const char *had = setlocale(LC_NUMERIC, NULL);
    char before[64];
    snprintf(before, sizeof before, "%s", had);
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8")) (void)setlocale(LC_NUMERIC, "fr_FR.UTF-8"); /* a decimal comma, where there is one */
    gt__json json = {0};
    gt__json_begin(&json, NULL, '[');
    gt__json_number(&json, NULL, 0.1);
    gt__json_number(&json, NULL, -1.5e300);
    gt__json_number(&json, NULL, 1.0 / 3);
    gt__json_number(&json, NULL, NAN);
    gt__json_number(&json, NULL, INFINITY);
    gt__json_integer(&json, NULL, INT64_MIN);
    gt__json_unsigned(&json, NULL, UINT64_MAX);
    gt__json_integer(&json, NULL, 0);
    gt__json_begin(&json, NULL, '{');
    gt__json_end(&json, '}');
    gt__json_bool(&json, NULL, true);
    gt__json_string(&json, NULL, NULL);
    gt__json_string(&json, NULL, "a\"\\\n<\x7f\xe2\x80\xa8\xe2\x80\xa7\xc3\xa9\xf0\x9f\x98\x80\xff\xc0\x80\xed\xa0\x80\xe2\x82");
    gt__json_end(&json, ']');
    (void)setlocale(LC_NUMERIC, before);
    CHECK_OK(json.status);
    CHECK_EQ_STR(json.text.data, "[0.1,-1.5e+300,0.3333333333333333,null,null,-9223372036854775808,18446744073709551615,0,{},true,null,"
                                 "\"a\\\"\\\\\\u000a\\u003c\\u007f\\u2028\xe2\x80\xa7\xc3\xa9\xf0\x9f\x98\x80\\ufffd\\ufffd\\ufffd"
                                 "\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\"]");
    CHECK(is_json(json.text.data));
    gt__json_free(&json);
}

TEST(unit, a_file_is_replaced_as_a_whole) {
    char path[512];
    snprintf(path, sizeof path, "%s", test_temp_path(t, "file"));
    size_t size;
    CHECK_OK(gt__replace_file("test", path, "one", 3));
    CHECK_OK(gt__replace_file("test", path, "", 0));
    char *text = slurp(path, &size);
    CHECK_EQ_INT(size, 0);
    free(text);
    CHECK_STATUS(gt__replace_file("test", "/dev/null", "one", 3), GT_BAD_ARGUMENT);
    struct stat there;
    CHECK(stat("/dev/null", &there) == 0 && S_ISCHR(there.st_mode));
}

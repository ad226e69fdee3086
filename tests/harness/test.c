#include "harness/test.h"

#include <errno.h>
#include <fnmatch.h>
#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <gtrain/memory.h>
#include <gtrain/tensor.h>

#define EXIT_SKIPPED 77 /* ctest's SKIP_RETURN_CODE */
#define MAX_CONTEXTS 128
#define MAX_PATHS    64

typedef struct open_context {
    gt_context *ctx;
    uint64_t in_use_before;
} open_context;

/* The case that runs now. Only the case's own thread unwinds; others may only count failures. */
static struct {
    test_case *test;
    pthread_t thread;
    jmp_buf unwind;
    int unwindable;
    atomic_int failures;
    char skip_reason[512];
    int skipped;
    open_context contexts[MAX_CONTEXTS];
    int context_count;
    char *paths[MAX_PATHS];
    int path_count;
    char folder[256];
} run;

static test_case *registered;

static const char *device_suffix(int device) { return device == TEST_CPU ? ".cpu" : device == TEST_CUDA ? ".cuda" : ""; }

static void full_name(const test_case *t, char *out, size_t size) { snprintf(out, size, "%s%s", t->name, device_suffix(t->device)); }

/* Sorted by file and line so that a run reads like the sources, whatever the order of constructors. */
static int comes_before(const test_case *a, const test_case *b) {
    int by_file = strcmp(a->file, b->file);
    if (by_file != 0) return by_file < 0;
    if (a->line != b->line) return a->line < b->line;
    return a->device < b->device;
}

void test_register(test_case *t) {
    test_case **at = &registered;
    while (*at && comes_before(*at, t)) at = &(*at)->next;
    t->next = *at;
    *at = t;
}

/* ---- failing and skipping ---------------------------------------------------------------------------------------- */

static void unwind(void) {
    if (run.unwindable && pthread_equal(run.thread, pthread_self())) longjmp(run.unwind, 1);
}

static void fail_at(int fatal, const char *file, int line, const char *format, va_list args) {
    char text[2048];
    vsnprintf(text, sizeof text, format, args);
    atomic_fetch_add(&run.failures, 1);
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    if (fatal) unwind();
}

void test_fail(int fatal, const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fail_at(fatal, file, line, format, args);
    va_end(args);
}

void test_skip(const char *file, int line, const char *reason) {
    if (!pthread_equal(run.thread, pthread_self())) {
        test_fail(0, file, line, "SKIP(\"%s\") on another thread than the case's own", reason);
        return;
    }
    snprintf(run.skip_reason, sizeof run.skip_reason, "%s", reason);
    run.skipped = 1;
    unwind();
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

void test_true(int ok, int fatal, const char *file, int line, const char *expr) {
    if (!ok) test_fail(fatal, file, line, "not true: %s", expr);
}

void test_status(gt_status got, gt_status want, int fatal, const char *file, int line, const char *expr) {
    if (got == want) return;
    test_fail(fatal, file, line, "%s\n    is   %s%s%s\n    want %s", expr, gt_status_name(got), got == GT_OK ? "" : ": ",
              got == GT_OK ? "" : gt_last_error()->message, gt_status_name(want));
}

void test_int(long long a, long long b, int fatal, const char *file, int line, const char *ea, const char *eb) {
    if (a != b) test_fail(fatal, file, line, "%s == %s\n    left  %lld\n    right %lld", ea, eb, a, b);
}

void test_str(const char *a, const char *b, int fatal, const char *file, int line, const char *ea) {
    if (!a || !b || strcmp(a, b) != 0)
        test_fail(fatal, file, line, "%s\n    is   \"%s\"\n    want \"%s\"", ea, a ? a : "(NULL)", b ? b : "(NULL)");
}

void test_near(double a, double b, double tol, int fatal, const char *file, int line, const char *ea, const char *eb) {
    if (a == b) return;
    double allowed = tol * fmax(1.0, fabs(b));
    if (!(fabs(a - b) <= allowed) || isinf(a) || isinf(b))
        test_fail(fatal, file, line, "%s near %s\n    left  %.17g\n    right %.17g\n    apart %.3g, allowed %.3g", ea, eb, a, b,
                  fabs(a - b), allowed);
}

static int values_agree(double a, double b, double rtol, double atol) {
    if (a == b || (isnan(a) && isnan(b))) return 1;
    return !isinf(a) && !isinf(b) && fabs(a - b) <= atol + rtol * fabs(b);
}

typedef struct mismatch {
    size_t count, first;
    double a, b;
} mismatch;

static void note_value(mismatch *m, size_t i, double a, double b, double rtol, double atol) {
    if (values_agree(a, b, rtol, atol)) return;
    if (m->count++ == 0) {
        m->first = i;
        m->a = a;
        m->b = b;
    }
}

static void report_mismatch(const mismatch *m, size_t n, double rtol, double atol, int fatal, const char *file, int line, const char *ea) {
    if (m->count > 0)
        test_fail(fatal, file, line, "%s: %zu of %zu values differ (rtol %.3g, atol %.3g)\n    first at [%zu]: is %.9g, want %.9g", ea,
                  m->count, n, rtol, atol, m->first, m->a, m->b);
}

void test_allclose_f32(const float *a, const float *b, size_t n, double rtol, double atol, int fatal, const char *file, int line,
                       const char *ea) {
    mismatch m = {0, 0, 0.0, 0.0};
    for (size_t i = 0; i < n; i++) note_value(&m, i, (double)a[i], (double)b[i], rtol, atol);
    report_mismatch(&m, n, rtol, atol, fatal, file, line, ea);
}

void test_allclose_f64(const double *a, const double *b, size_t n, double rtol, double atol, int fatal, const char *file, int line,
                       const char *ea) {
    mismatch m = {0, 0, 0.0, 0.0};
    for (size_t i = 0; i < n; i++) note_value(&m, i, a[i], b[i], rtol, atol);
    report_mismatch(&m, n, rtol, atol, fatal, file, line, ea);
}

void test_error_has(const char *substring, int fatal, const char *file, int line) {
    const gt_error *error = gt_last_error();
    if (!error || !error->message || !strstr(error->message, substring))
        test_fail(fatal, file, line, "the error record lacks \"%s\"\n    %s: %s", substring,
                  error ? gt_status_name(error->status) : "(no record)", error && error->message ? error->message : "(no message)");
}

gt_tensor *test_tensor(gt_tensor *x, const char *file, int line, const char *expr) {
    if (!x) test_fail(1, file, line, "%s is NULL\n    %s: %s", expr, gt_status_name(gt_last_error()->status), gt_last_error()->message);
    return x;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

int32_t test_device(const test_case *t) { return t->device == TEST_CUDA ? GT_DEVICE_CUDA : GT_DEVICE_CPU; }

static uint64_t bytes_in_use(const gt_context *ctx) {
    gt_memory_stats stats;
    if (gt_memory_stats_init(&stats, sizeof stats) != GT_OK || gt_memory_get_stats(ctx, &stats) != GT_OK) return 0;
    return stats.in_use;
}

gt_context *test_context_with(test_case *t, const gt_context_options *options) {
    gt_context_options mine = *options;
    gt_context *ctx = NULL;
    mine.device = test_device(t);
    if (run.context_count == MAX_CONTEXTS) test_fail(1, t->file, t->line, "a case may make %d contexts, not more", MAX_CONTEXTS);
    test_status(gt_context_create(&mine, &ctx), GT_OK, 1, t->file, t->line, "test_context(t)");
    if (gt_context_device(ctx) != mine.device) {
        gt_context_destroy(ctx);
        test_fail(1, t->file, t->line, "asked for device %d, got another", mine.device);
    }
    run.contexts[run.context_count].ctx = ctx;
    run.contexts[run.context_count].in_use_before = bytes_in_use(ctx);
    run.context_count++;
    return ctx;
}

gt_context *test_context(test_case *t) {
    gt_context_options options;
    test_status(gt_context_options_init(&options, sizeof options), GT_OK, 1, t->file, t->line, "gt_context_options_init");
    return test_context_with(t, &options);
}

/* What is in use by category, for a leak's message. */
static void describe_use(const gt_context *ctx, char *out, size_t size) {
    gt_memory_stats stats;
    size_t used = 0;
    out[0] = 0;
    if (gt_memory_stats_init(&stats, sizeof stats) != GT_OK || gt_memory_get_stats(ctx, &stats) != GT_OK) return;
    for (int i = 0; i < GT_MEMORY_CATEGORY_COUNT && used < size; i++)
        if (stats.category_in_use[i] > 0)
            used += (size_t)snprintf(out + used, size - used, "%s %llu %s", used ? "," : "", (unsigned long long)stats.category_in_use[i],
                                     gt_memory_category_name(i));
}

static void close_contexts(void) {
    /* A case that failed left its tensors behind; that is not a second failure. */
    int failed_before = atomic_load(&run.failures) > 0;
    for (int i = 0; i < run.context_count; i++) {
        open_context *c = &run.contexts[i];
        while (gt_scope_end(c->ctx) == GT_OK) {
        }
        gt_context_synchronize(c->ctx);
        uint64_t left = bytes_in_use(c->ctx);
        if (!failed_before && !run.skipped && left > c->in_use_before) {
            char use[512];
            describe_use(c->ctx, use, sizeof use);
            test_fail(0, run.test->file, run.test->line, "leak: %llu bytes of device memory are still in use after the case (%s )",
                      (unsigned long long)(left - c->in_use_before), use);
        }
        gt_context_destroy(c->ctx);
    }
    run.context_count = 0;
    gt_clear_error();
}

/* NULL where CUDA cases can run, else why not. Asked once a process. */
static const char *cuda_missing(void) {
    static int asked;
    static char reason[512];
    if (asked) return reason[0] ? reason : NULL;
    asked = 1;
    gt_context_options options;
    gt_context *ctx = NULL;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return NULL;
    options.device = GT_DEVICE_CUDA;
    if (gt_context_create(&options, &ctx) == GT_OK) {
        gt_context_destroy(ctx);
    } else if (gt_last_error()->status == GT_NO_DEVICE) {
        snprintf(reason, sizeof reason, "%s", gt_last_error()->message);
    }
    gt_clear_error();
    return reason[0] ? reason : NULL;
}

/* ---- temporary files --------------------------------------------------------------------------------------------- */

const char *test_temp_path(test_case *t, const char *name) {
    if (!run.folder[0]) {
        const char *tmp = getenv("TMPDIR");
        snprintf(run.folder, sizeof run.folder, "%s/gtrain-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(run.folder)) {
            run.folder[0] = 0;
            test_fail(1, t->file, t->line, "cannot make a temporary folder: %s", strerror(errno));
        }
    }
    size_t size = strlen(run.folder) + strlen(name) + 2;
    char *path = run.path_count < MAX_PATHS ? malloc(size) : NULL;
    if (!path)
        test_fail(1, t->file, t->line, "too many temporary paths");
    else {
        snprintf(path, size, "%s/%s", run.folder, name);
        run.paths[run.path_count++] = path;
    }
    return path;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static void remove_temp(void) {
    for (int i = 0; i < run.path_count; i++) free(run.paths[i]);
    run.path_count = 0;
    if (run.folder[0]) nftw(run.folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    run.folder[0] = 0;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void call_body(test_case *t) {
    if (setjmp(run.unwind) == 0) {
        run.unwindable = 1;
        t->body(t);
    }
    run.unwindable = 0;
}

static double now_ms(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec * 1e-6;
}

typedef enum outcome { PASSED, FAILED, SKIPPED } outcome;

static outcome run_case(test_case *t) {
    char name[256];
    full_name(t, name, sizeof name);
    double start = now_ms();
    run.test = t;
    run.thread = pthread_self();
    run.skipped = 0;
    atomic_store(&run.failures, 0);
    gt_clear_error();

    const char *missing = t->device == TEST_CUDA ? cuda_missing() : NULL;
    if (missing && !getenv("GTRAIN_TEST_REQUIRE_CUDA")) {
        snprintf(run.skip_reason, sizeof run.skip_reason, "%s", missing);
        run.skipped = 1;
    } else {
        call_body(t);
        close_contexts();
        remove_temp();
    }

    double took = now_ms() - start;
    outcome result = atomic_load(&run.failures) > 0 ? FAILED : run.skipped ? SKIPPED : PASSED;
    if (result == SKIPPED)
        printf("skip  %-60s %s\n", name, run.skip_reason);
    else
        printf("%s  %-60s %8.1f ms\n", result == PASSED ? "ok  " : "FAIL", name, took);
    fflush(stdout);
    run.test = NULL;
    return result;
}

/* Names the case before the default action ends the process; a debugger or core dump sees the signal as it was. */
static void on_crash(int signal_number) {
    static const char start[] = "crashed in ";
    const char *name = run.test ? run.test->name : "(no case)";
    const char *suffix = run.test ? device_suffix(run.test->device) : "";
    ssize_t written = write(2, start, sizeof start - 1);
    written += write(2, name, strlen(name));
    written += write(2, suffix, strlen(suffix));
    written += write(2, "\n", 1);
    (void)written;
    raise(signal_number);
}

static void watch_crashes(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction old, mine;
        if (sigaction(signals[i], NULL, &old) != 0 || (old.sa_flags & SA_SIGINFO) || old.sa_handler != SIG_DFL)
            continue; /* a sanitizer's own report is better */
        memset(&mine, 0, sizeof mine);
        mine.sa_handler = on_crash;
        mine.sa_flags = (int)SA_RESETHAND;
        sigaction(signals[i], &mine, NULL);
    }
}

static int names_are_unique(void) {
    int unique = 1;
    for (test_case *a = registered; a; a = a->next)
        for (test_case *b = a->next; b; b = b->next)
            if (a->device == b->device && strcmp(a->name, b->name) == 0) {
                fprintf(stderr, "%s:%d: the case %s is also in %s:%d\n", b->file, b->line, b->name, a->file, a->line);
                unique = 0;
            }
    return unique;
}

static int usage(const char *program) {
    fprintf(stderr,
            "usage: %s [--list] [--device cpu|cuda] [--without pattern]... [name or pattern ...]\n"
            "  Runs the cases whose full name (\"conv2d_gradient.cpu\"), bare name or label matches a pattern; all "
            "without one.\n"
            "  --list        prints \"name<TAB>label\" instead\n"
            "  --device D    leaves out cases of the other device\n"
            "  --without P   leaves out cases that match P\n"
            "  GTRAIN_TEST_REQUIRE_CUDA=1 makes a missing GPU a failure instead of a skip.\n",
            program);
    return 2;
}

static int matches(const test_case *t, const char *pattern) {
    char name[256];
    full_name(t, name, sizeof name);
    return fnmatch(pattern, name, 0) == 0 || strcmp(pattern, t->name) == 0 || strcmp(pattern, t->label) == 0;
}

/* `options` are the arguments before the patterns. */
static int is_selected(const test_case *t, int device, char **options, int n_options, char **patterns, int n_patterns) {
    if (device != TEST_NO_DEVICE && t->device != TEST_NO_DEVICE && t->device != device) return 0;
    for (int i = 0; i + 1 < n_options; i++)
        if (strcmp(options[i], "--without") == 0 && matches(t, options[++i])) return 0;
    for (int i = 0; i < n_patterns; i++)
        if (matches(t, patterns[i])) return 1;
    return n_patterns == 0;
}

int main(int argc, char **argv) {
    int device = TEST_NO_DEVICE, list = 0, first = 1;
    for (; first < argc && strncmp(argv[first], "--", 2) == 0; first++) {
        if (strcmp(argv[first], "--list") == 0)
            list = 1;
        else if (strcmp(argv[first], "--device") == 0 && first + 1 < argc && strcmp(argv[first + 1], "cpu") == 0) {
            device = TEST_CPU;
            first++;
        } else if (strcmp(argv[first], "--device") == 0 && first + 1 < argc && strcmp(argv[first + 1], "cuda") == 0) {
            device = TEST_CUDA;
            first++;
        } else if (strcmp(argv[first], "--without") == 0 && first + 1 < argc)
            first++;
        else
            return usage(argv[0]);
    }
    if (!names_are_unique()) return 2;
    watch_crashes();

    int counts[3] = {0, 0, 0};
    for (test_case *t = registered; t; t = t->next) {
        if (!is_selected(t, device, argv + 1, first - 1, argv + first, argc - first)) continue;
        if (list) {
            char name[256];
            full_name(t, name, sizeof name);
            printf("%s\t%s%s\n", name, t->label, t->device == TEST_CUDA ? ";cuda" : "");
        } else {
            counts[run_case(t)]++;
        }
    }
    if (list) return 0;
    int total = counts[PASSED] + counts[FAILED] + counts[SKIPPED];
    if (total == 0) {
        fprintf(stderr, "no case matches\n");
        return 2;
    }
    printf("%d passed, %d failed, %d skipped\n", counts[PASSED], counts[FAILED], counts[SKIPPED]);
    if (counts[FAILED] > 0) return 1;
    return counts[SKIPPED] == total ? EXIT_SKIPPED : 0;
}

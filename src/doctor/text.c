/* The report for people. Prose is wrapped at 80 columns; paths and commands, which are copied, stand on lines of their own and are never cut. */
#include "doctor/findings.h"

#include <stdio.h>

enum { WIDTH = 80, INDENT = 10 };

#define GIB(bytes) ((double)(bytes) / (double)(1ull << 30))

/* What is written; the first failure is kept, and later pieces are left out. */
typedef struct sheet {
    gt__text *text;
    gt_status status;
} sheet;

static void put(sheet *out, const char *format, ...) GT__PRINTF(2, 3);
static void put(sheet *out, const char *format, ...) {
    char piece[GT__DOCTOR_PATH + 512];
    va_list arguments;
    if (out->status != GT_OK) return;
    va_start(arguments, format);
    int length = vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    out->status = gt__text_append(out->text, piece, (size_t)GT__MIN(length, (int)sizeof piece - 1));
}

/* Columns that a text takes: its characters, of which UTF-8 makes several bytes. */
static int columns(const char *text, size_t bytes) {
    int count = 0;
    for (size_t i = 0; i < bytes; i++) count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

/* Words of `prose` after `lead`, further lines indented. */
static void wrap(sheet *out, const char *lead, int indent, const char *prose) {
    put(out, "%s", lead);
    int column = columns(lead, strlen(lead));
    bool first = true;
    for (const char *at = prose + strspn(prose, " \n"); *at;) {
        size_t length = strcspn(at, " \n");
        int width = columns(at, length);
        if (!first && column + 1 + width > WIDTH) {
            put(out, "\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            put(out, " ");
            column++;
        }
        put(out, "%.*s", (int)length, at);
        column += width;
        first = false;
        at += length;
        at += strspn(at, " \n");
    }
    put(out, "\n");
}

/* "Driver    580.65.06, …": a heading, and what belongs to it below each other. */
static void line(sheet *out, const char *heading, const char *prose) {
    char lead[INDENT + 32];
    (void)snprintf(lead, sizeof lead, "%-*s", INDENT, heading);
    wrap(out, lead, INDENT, prose);
}

static void path_line(sheet *out, const char *path) {
    if (path[0]) put(out, "%*s%s\n", INDENT, "", path);
}

static void cure(sheet *out, const gt_doctor_fault *fault) {
    wrap(out, "  ", 2, fault->remedy);
    if (fault->command[0]) put(out, "    $ %s\n", fault->command);
}

static void write_faults(gt_doctor_report *report, sheet *out) {
    static const char *const verdicts[] = {"READY: ", "CPU ONLY: ", "BROKEN: "};
    static const char *const severities[] = {"Error: ", "Warning: ", "Note: "};
    wrap(out, verdicts[report->verdict], 2, report->summary);
    for (int32_t i = 0; i < report->fault_count; i++) {
        const gt_doctor_fault *fault = &report->faults[i];
        if (i > 0 || strcmp(fault->what, report->summary) != 0) { /* the first one's is said already */
            put(out, "\n");
            wrap(out, severities[fault->severity], 2, fault->what);
        }
        cure(out, fault);
    }
}

static void write_gpus(const gt_doctor_report *report, sheet *out) {
    static const char *const reasons[] = {NULL, NULL, "power cap", "hardware slowdown", NULL, "heat", "heat (hardware)", "power brake"};
    char heading[32], text[512];
    for (int32_t i = 0; i < report->gpu_count; i++) {
        const gt__gpu *gpu = &report->gpus[i];
        size_t used = 0, size = sizeof text;
        (void)snprintf(heading, sizeof heading, "GPU %d", gpu->index >= 0 ? gpu->index : gpu->cuda_index);
        used += (size_t)snprintf(text, size, "%s", gpu->name);
        if (gpu->capability)
            used += (size_t)snprintf(text + used, size - used, ", compute capability %d.%d", gpu->capability / 10, gpu->capability % 10);
        if (gpu->cuda_index >= 0) used += (size_t)snprintf(text + used, size - used, ", cuda:%d", gpu->cuda_index);
        (void)snprintf(text + used, size - used, "%s%s%s", gpu->hidden ? ", hidden" : "", gpu->mig == 1 ? ", cut into MIG instances" : "",
                       gpu->lost ? ", does not answer" : "");
        line(out, heading, text);
        used = 0;
        text[0] = '\0';
        if (gpu->has_memory)
            used += (size_t)snprintf(text, size, "%.1f of %.1f GiB free", GIB(gpu->memory_free), GIB(gpu->memory_total));
        else if (gpu->memory_total)
            used += (size_t)snprintf(text, size, "%.1f GiB", GIB(gpu->memory_total));
        if (gpu->ecc >= 0) used += (size_t)snprintf(text + used, size - used, "%sECC %s", used ? ", " : "", gpu->ecc ? "on" : "off");
        if (gpu->ecc_uncorrected)
            used += (size_t)snprintf(text + used, size - used, ", %llu uncorrected errors", (unsigned long long)gpu->ecc_uncorrected);
        if (gpu->temperature >= 0) used += (size_t)snprintf(text + used, size - used, "%s%d C", used ? ", " : "", gpu->temperature);
        for (size_t bit = 0; bit < GT__COUNT(reasons); bit++)
            if (reasons[bit] && gpu->throttle >> bit & 1) used += (size_t)snprintf(text + used, size - used, ", slowed: %s", reasons[bit]);
        if (text[0]) line(out, "", text);
        for (int32_t k = 0; k < GT__MIN(gpu->user_count, GT__DOCTOR_USERS); k++) {
            const gt__gpu_user *user = &gpu->users[k];
            char bytes[48] = "";
            if (user->bytes) (void)snprintf(bytes, sizeof bytes, ": %.1f GiB", GIB(user->bytes));
            (void)snprintf(text, size, "used by process %lld%s%s%s%s", (long long)user->process, user->name[0] ? " (" : "", user->name,
                           user->name[0] ? ")" : "", bytes);
            line(out, "", text);
        }
    }
}

static void write_driver(const gt_doctor_report *report, sheet *out) {
    const gt__library *cuda = &report->libraries[GT__LIBRARY_DRIVER];
    const gt__found_driver *driver = &report->driver;
    const char *version = driver->version[0] ? driver->version : driver->kernel_version;
    char text[256], a[32];
    if (cuda->state != GT__LIBRARY_FOUND) {
        (void)snprintf(text, sizeof text, "%s%slibcuda.so.1 %s", version, version[0] ? ", but " : "",
                       cuda->state == GT__LIBRARY_BROKEN ? "does not load" : "was not found");
    } else {
        (void)snprintf(text, sizeof text, "%s%sCUDA up to %s%s", version, version[0] ? ", " : "",
                       gt__version_text(driver->cuda, a, sizeof a), driver->asked ? "" : " (not started)");
    }
    line(out, "Driver", text);
    path_line(out, cuda->path);
}

static void write_libraries(const gt_doctor_report *report, sheet *out) {
    static const char *const states[] = {"not found", "not on the path", "does not load", ""};
    for (int i = GT__LIBRARY_RUNTIME; i < GT__LIBRARY_COUNT; i++) {
        const gt__library *library = &report->libraries[i];
        char text[160], found[32], built[32];
        if (i == GT__LIBRARY_NVML && library->state == GT__LIBRARY_FOUND) continue; /* part of the driver */
        if (!library->needed && library->state != GT__LIBRARY_FOUND) continue;      /* nobody misses it */
        (void)gt__version_text(library->found, found, sizeof found);
        (void)gt__version_text(library->needed ? library->built : (gt__version){0, 0, -1}, built, sizeof built);
        (void)snprintf(text, sizeof text, "%s %s%s%s%s%s", library->name,
                       library->state == GT__LIBRARY_FOUND ? found : states[library->state], built[0] ? ", built for " : "", built,
                       library->loaded && i != GT__LIBRARY_ONEDNN ? ", in the process already" : "",
                       library->needed || i == GT__LIBRARY_ONEDNN ? "" : ", not needed");
        line(out, i == GT__LIBRARY_RUNTIME ? "Libraries" : "", text);
        path_line(out, library->path);
    }
}

static void write_rest(const gt_doctor_report *report, sheet *out) {
    const gt__found_module *module = &report->module;
    const gt__found_machine *machine = &report->machine;
    char text[768], cuda[32], quota[64] = "";
    if (!module->path[0])
        (void)snprintf(text, sizeof text, "%s, without CUDA", gt_version_string());
    else if (!module->note)
        (void)snprintf(text, sizeof text, "%s, with a CUDA backend that says nothing of itself", gt_version_string());
    else
        (void)snprintf(text, sizeof text, "%s, CUDA %s%s, built for %s", gt_version_string(),
                       gt__version_text(module->cuda, cuda, sizeof cuda), module->linked_in ? " (linked in)" : "", module->architectures);
    line(out, "gtrain", text);
    path_line(out, module->path);
    if (machine->quota > 0) (void)snprintf(quota, sizeof quota, ", time for %.1f", machine->quota);
    (void)snprintf(text, sizeof text, "%s, %d of %d cores%s%s", machine->cpu_name[0] ? machine->cpu_name : "unknown",
                   machine->cores_allowed, machine->cores, quota, machine->openmp ? ", OpenMP" : "");
    line(out, "CPU", text);
    if (machine->cpu_features[0]) line(out, "", machine->cpu_features);
    if (machine->container[0]) line(out, "Container", machine->container);
}

gt_status gt__doctor_write_text(gt_doctor_report *report) {
    sheet out = {.text = &report->text};
    write_faults(report, &out);
    put(&out, "\n");
    write_gpus(report, &out);
    write_driver(report, &out);
    write_libraries(report, &out);
    write_rest(report, &out);
    return out.status;
}

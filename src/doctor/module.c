/* libgtrain_cuda.so, or what is linked in of it, and what it was built for: a note in its file says so (cuda/build_note.c), so that the doctor knows even where
 * the module does not load. */
#include "doctor/elf_file.h"
#include "doctor/findings.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MODULE "libgtrain_cuda.so"

/* The value after "key=" in a note of words "key=value", one a line; false and "" if it is not there. */
static bool note_value(const char *note, const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    value[0] = '\0';
    for (const char *line = note; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, key, length) != 0 || line[length] != '=') continue;
        int count = (int)strcspn(line, "\n") - (int)length - 1;
        return snprintf(value, size, "%.*s", count, line + length + 1) < (int)size;
    }
    return false;
}

static gt__version note_version(const char *note, const char *key) {
    char value[64];
    gt__version version = {0, 0, -1};
    if (note_value(note, key, value, sizeof value)) {
        int count = sscanf(value, "%d.%d.%d", &version.major, &version.minor, &version.patch);
        if (count < 2) version = (gt__version){0, 0, -1};
    }
    return version;
}

static void read_note(gt__found_module *module, const gt__elf_file *elf) {
    char value[32];
    module->note = elf->note[0] != '\0';
    if (!module->note) return;
    module->abi = note_value(elf->note, "abi", value, sizeof value) ? (int32_t)strtol(value, NULL, 10) : 0;
    if (note_value(elf->note, "cuda", value, sizeof value)) { /* as the runtime packs it: 13000 is 13.0 */
        long packed = strtol(value, NULL, 10);
        if (packed >= 1000 && packed < 1000000) module->cuda = (gt__version){(int32_t)(packed / 1000), (int32_t)(packed % 1000 / 10), -1};
    }
    module->cublas = note_version(elf->note, "cublas");
    module->cudnn = note_version(elf->note, "cudnn");
    module->cudnn_least = note_version(elf->note, "cudnn_least");
    (void)note_value(elf->note, "architectures", module->architectures, sizeof module->architectures);
}

static void need(gt__library *library, const gt__elf_file *elf, const char *stem) {
    size_t length = strlen(stem);
    for (int32_t i = 0; i < elf->needed_count; i++) {
        if (strncmp(elf->needed[i], stem, length) != 0 || strncmp(elf->needed[i] + length, ".so", 3) != 0) continue;
        (void)snprintf(library->soname, sizeof library->soname, "%s", elf->needed[i]);
        library->needed = true;
    }
}

static void read_needed(gt_doctor_report *report, const gt__elf_file *elf) {
    need(&report->libraries[GT__LIBRARY_RUNTIME], elf, "libcudart");
    need(&report->libraries[GT__LIBRARY_CUBLASLT], elf, "libcublasLt");
    need(&report->libraries[GT__LIBRARY_CUBLAS], elf, "libcublas");
    need(&report->libraries[GT__LIBRARY_CUDNN], elf, "libcudnn");
    (void)snprintf(report->module.runpath, sizeof report->module.runpath, "%s", elf->runpath);
}

/* One of the folders of a list with ':' between. */
static bool in_folders(const char *folders, char *path, size_t size) {
    while (folders && *folders) {
        int length = (int)strcspn(folders, ":");
        if (length > 0 && snprintf(path, size, "%.*s/" MODULE, length, folders) < (int)size && access(path, F_OK) == 0) return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

/* As backend/loader.c looks for it: what was chosen, what is linked in, beside this library, on the library path. */
static void find(gt_doctor_report *report, gt__elf_file *own) {
    gt__found_module *module = &report->module;
    const char *chosen = report->options.module;
    char *path = module->path;
    size_t size = sizeof module->path;
    (void)gt__doctor_own_path(path, size);
    if (!chosen && path[0] && gt__elf_read(path, own) && own->note[0]) {
        module->linked_in = true;
        return;
    }
    if (chosen && !chosen[0]) {
        path[0] = '\0';
        return;
    }
    if (!chosen) chosen = gt__doctor_setting("GTRAIN_CUDA_MODULE");
    if (chosen && chosen[0]) {
        module->chosen = true;
        (void)snprintf(path, size, "%s", chosen);
        return;
    }
    char *slash = strrchr(path, '/');
    if (slash && (size_t)(slash - path) + sizeof "/" MODULE <= size) {
        (void)strcpy(slash, "/" MODULE);
        if (access(path, F_OK) == 0) return;
    }
    const char *folders = report->options.library_path ? report->options.library_path : gt__doctor_setting("LD_LIBRARY_PATH");
    if (!in_folders(folders, path, size)) path[0] = '\0';
}

void gt__doctor_module(gt_doctor_report *report) {
    gt__found_module *module = &report->module;
    gt__elf_file elf = {0};
    find(report, &elf);
    if (!module->path[0]) return;
    if (!module->linked_in && !gt__elf_read(module->path, &elf)) {
        (void)snprintf(module->why, sizeof module->why, "%s", elf.why);
        return;
    }
    module->is_file = true;
    if (!gt__elf_runs_here(&elf)) {
        (void)snprintf(module->why, sizeof module->why, "it was built for another processor");
        return;
    }
    read_note(module, &elf);
    read_needed(report, &elf);
}

/* Small files, settings, paths and versions. */
#include "doctor/findings.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int gt__version_compare(gt__version a, gt__version b) {
    int32_t x[3] = {a.major, GT__MAX(a.minor, 0), GT__MAX(a.patch, 0)}, y[3] = {b.major, GT__MAX(b.minor, 0), GT__MAX(b.patch, 0)};
    for (int i = 0; i < 3; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

const char *gt__version_text(gt__version version, char *buffer, size_t size) {
    if (version.major == 0)
        buffer[0] = '\0';
    else if (version.minor < 0)
        (void)snprintf(buffer, size, "%d", version.major);
    else if (version.patch < 0)
        (void)snprintf(buffer, size, "%d.%d", version.major, version.minor);
    else
        (void)snprintf(buffer, size, "%d.%d.%d", version.major, version.minor, version.patch);
    return buffer;
}

const char *gt__doctor_path(const gt_doctor_report *report, const char *path, char *buffer, size_t size) {
    const char *root = report->options.root ? report->options.root : "";
    size_t length = strlen(root);
    while (length > 0 && root[length - 1] == '/') length--;
    if (snprintf(buffer, size, "%.*s%s", (int)length, root, path) >= (int)size) buffer[0] = '\0'; /* nothing lies under such a name */
    return buffer;
}

bool gt__doctor_line(const gt_doctor_report *report, const char *path, char *line, size_t size) {
    char full[GT__DOCTOR_PATH];
    line[0] = '\0';
    FILE *file = fopen(gt__doctor_path(report, path, full, sizeof full), "re");
    if (!file) return false;
    bool read = fgets(line, (int)size, file) != NULL;
    (void)fclose(file);
    if (read) line[strcspn(line, "\n")] = '\0';
    return read;
}

const char *gt__doctor_setting(const char *name) { return getenv(name); }

const char *gt__doctor_own_path(char *buffer, size_t size) {
    Dl_info info;
    buffer[0] = '\0';
    if (dladdr((const void *)&gt__doctor_own_path, &info) && info.dli_fname && snprintf(buffer, size, "%s", info.dli_fname) >= (int)size)
        buffer[0] = '\0';
    return buffer;
}

void *gt__doctor_symbol(const gt__library *library, const char *name) {
    return library->handle && library->state == GT__LIBRARY_FOUND ? dlsym(library->handle, name) : NULL;
}

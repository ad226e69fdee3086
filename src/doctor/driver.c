/* What the driver's library tells, and which GPUs CUDA would show to this process. */
#include "doctor/findings.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum { OK = 0, NOT_INITIALIZED = 3, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

typedef int (*init_fn)(unsigned int flags);
typedef int (*count_fn)(int *count);
typedef int (*device_fn)(int *device, int index);
typedef int (*text_fn)(char *text, int size, int device);
typedef int (*attribute_fn)(int *value, int attribute, int device);
typedef int (*bytes_fn)(size_t *bytes, int device);

/* The same place on the bus, however many digits its domain is written with. */
static bool same_place(const char *a, const char *b) {
    unsigned int x[3], y[3];
    return sscanf(a, "%x:%x:%x", &x[0], &x[1], &x[2]) == 3 && sscanf(b, "%x:%x:%x", &y[0], &y[1], &y[2]) == 3 &&
           memcmp(x, y, sizeof x) == 0;
}

static void ask_gpu(gt_doctor_report *report, const gt__library *cuda, int index) {
    int device = 0, major = 0, minor = 0;
    char place[32] = "";
    size_t bytes = 0;
    device_fn get = GT__DOCTOR_FIND(cuda, "cuDeviceGet", device_fn);
    text_fn bus = GT__DOCTOR_FIND(cuda, "cuDeviceGetPCIBusId", text_fn), name = GT__DOCTOR_FIND(cuda, "cuDeviceGetName", text_fn);
    attribute_fn attribute = GT__DOCTOR_FIND(cuda, "cuDeviceGetAttribute", attribute_fn);
    bytes_fn total = GT__DOCTOR_FIND(cuda, "cuDeviceTotalMem_v2", bytes_fn);
    if (!get || get(&device, index) != OK) return;
    if (bus) (void)bus(place, sizeof place, device);
    for (int32_t i = 0; i < report->gpu_count; i++) {
        if (!same_place(report->gpus[i].pci, place)) continue;
        if (report->gpus[i].cuda_index < 0) report->gpus[i].cuda_index = index; /* instances of one GPU: the first */
        report->gpus[i].hidden = false;
        return;
    }
    if (report->gpu_count == GT__DOCTOR_GPUS) return;
    gt__gpu *gpu = &report->gpus[report->gpu_count++];
    *gpu = (gt__gpu){.index = -1, .cuda_index = index, .compute_mode = -1, .ecc = -1, .temperature = -1};
    (void)snprintf(gpu->pci, sizeof gpu->pci, "%s", place);
    if (!name || name(gpu->name, sizeof gpu->name, device) != OK) (void)strcpy(gpu->name, "NVIDIA GPU");
    if (attribute && attribute(&major, CAPABILITY_MAJOR, device) == OK && attribute(&minor, CAPABILITY_MINOR, device) == OK)
        gpu->capability = major * 10 + minor;
    if (total && total(&bytes, device) == OK) gpu->memory_total = bytes;
}

/* CUDA_VISIBLE_DEVICES: numbers and beginnings of UUIDs up to the first that names no GPU. Its numbers are CUDA's, which are NVML's where the GPUs are alike
 * or CUDA_DEVICE_ORDER is PCI_BUS_ID. */
static void apply_visibility(gt_doctor_report *report) {
    const char *list = gt__doctor_setting("CUDA_VISIBLE_DEVICES");
    const char *order = gt__doctor_setting("CUDA_DEVICE_ORDER");
    bool alike = order && strcmp(order, "PCI_BUS_ID") == 0;
    if (!alike) {
        alike = true;
        for (int32_t i = 1; i < report->gpu_count; i++) alike &= strcmp(report->gpus[i].name, report->gpus[0].name) == 0;
    }
    if (!list) {
        for (int32_t i = 0; i < report->gpu_count; i++) report->gpus[i].cuda_index = alike ? i : -1;
        return;
    }
    int32_t shown = 0;
    bool all_numbers = true;
    for (int32_t i = 0; i < report->gpu_count; i++) report->gpus[i].hidden = true;
    while (*list) {
        size_t length = strcspn(list, ",");
        char item[128], *end;
        (void)snprintf(item, sizeof item, "%.*s", (int)length, list + strspn(list, " "));
        gt__gpu *gpu = NULL;
        long number = strtol(item, &end, 10);
        if (isdigit((unsigned char)item[0]) && strspn(end, " ") == strlen(end)) {
            if (number < report->gpu_count) gpu = &report->gpus[number];
        } else {
            all_numbers = false;
            for (int32_t i = 0; i < report->gpu_count && item[0]; i++)
                if (strncasecmp(report->gpus[i].uuid, item, strlen(item)) == 0) gpu = &report->gpus[i];
        }
        if (!gpu) break;
        gpu->hidden = false;
        gpu->cuda_index = shown++;
        list += length + (list[length] == ',');
    }
    /* Which GPU a number means is not known then: that some are shown is. */
    if (!alike && all_numbers && shown > 0)
        for (int32_t i = 0; i < report->gpu_count; i++) {
            report->gpus[i].hidden = false;
            report->gpus[i].cuda_index = -1;
        }
}

void gt__doctor_driver(gt_doctor_report *report) {
    gt__library *cuda = &report->libraries[GT__LIBRARY_DRIVER];
    gt__found_driver *driver = &report->driver;
    driver->cuda = cuda->found;
    driver->count = -1;
    init_fn init = GT__DOCTOR_FIND(cuda, "cuInit", init_fn);
    count_fn count = GT__DOCTOR_FIND(cuda, "cuDeviceGetCount", count_fn);
    if (!init || !count) {
        apply_visibility(report);
        return;
    }
    int number = 0;
    int code = count(&number); /* answers if somebody in this process has started the driver */
    if (code == NOT_INITIALIZED && report->options.own_process) {
        /* A driver that was started must stay. */
        void *kept = dlopen(cuda->path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
        code = init(0);
        if (code == OK) code = count(&number);
        if (kept) (void)dlclose(kept);
    }
    driver->asked = code != NOT_INITIALIZED;
    driver->started = code == OK;
    if (!driver->asked) {
        apply_visibility(report);
        return;
    }
    driver->start_code = code;
    if (code != OK) {
        apply_visibility(report);
        return;
    }
    driver->count = number;
    for (int32_t i = 0; i < report->gpu_count; i++) report->gpus[i].hidden = true;
    for (int i = 0; i < number; i++) ask_gpu(report, cuda, i);
}

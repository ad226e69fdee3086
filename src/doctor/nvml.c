/* What NVML tells of the GPUs. It starts nothing of CUDA in this process; its functions are declared as its interface has them. */
#include "doctor/findings.h"

#include <stdio.h>

enum { OK = 0, TOO_SMALL = 7, LOST = 15 };

typedef void *device_t;
typedef struct memory_info {
    unsigned long long total, free, used;
} memory_info;
typedef struct pci_info {
    char short_bus_id[16];
    unsigned int domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_info;
typedef struct process_info {
    unsigned int process;
    unsigned long long bytes; /* all bits set: not available */
    unsigned int gpu_instance, compute_instance;
} process_info;

typedef int (*plain_fn)(void);
typedef int (*system_text_fn)(char *text, unsigned int size);
typedef int (*count_fn)(unsigned int *count);
typedef int (*by_index_fn)(unsigned int index, device_t *device);
typedef int (*text_fn)(device_t device, char *text, unsigned int size);
typedef int (*memory_fn)(device_t device, memory_info *info);
typedef int (*pci_fn)(device_t device, pci_info *info);
typedef int (*pair_fn)(device_t device, int *first, int *second);
typedef int (*unsigned_pair_fn)(device_t device, unsigned int *first, unsigned int *second);
typedef int (*one_fn)(device_t device, int *value);
typedef int (*kind_fn)(device_t device, int kind, unsigned int *value);
typedef int (*ecc_fn)(device_t device, int kind, int since, unsigned long long *count);
typedef int (*remap_fn)(device_t device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed);
typedef int (*reasons_fn)(device_t device, unsigned long long *reasons);
typedef int (*processes_fn)(device_t device, unsigned int *count, process_info *list);

/* Calls a function if this NVML has it: its code, or -1. */
#define CALL(library, type, name, ...) (GT__DOCTOR_FIND(library, name, type) ? GT__DOCTOR_FIND(library, name, type)(__VA_ARGS__) : -1)

static void add_user(gt__gpu *gpu, const process_info *info) {
    uint64_t bytes = info->bytes == UINT64_MAX ? 0 : info->bytes;
    int32_t listed = GT__MIN(gpu->user_count, GT__DOCTOR_USERS), at = 0;
    for (int32_t i = 0; i < listed; i++) {
        if (gpu->users[i].process != (int64_t)info->process) continue;
        gpu->users[i].bytes =
            GT__MAX(gpu->users[i].bytes, bytes); /* a process that computes and draws is in both lists with all it holds */
        return;
    }
    while (at < listed && gpu->users[at].bytes >= bytes) at++;
    gpu->user_count++;
    if (at == GT__DOCTOR_USERS) return;
    int32_t moved = GT__MIN(listed, GT__DOCTOR_USERS - 1) - at;
    if (moved > 0) memmove(&gpu->users[at + 1], &gpu->users[at], (size_t)moved * sizeof gpu->users[0]);
    gpu->users[at] = (gt__gpu_user){.process = (int64_t)info->process, .bytes = bytes};
}

static void find_users(gt_doctor_report *report, const gt__library *nvml, device_t device, gt__gpu *gpu) {
    static const char *const lists[][2] = {
        {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"},
        {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"},
        {"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"},
    };
    enum { MOST = 128 };
    for (size_t i = 0; i < GT__COUNT(lists); i++) {
        process_info list[MOST];
        unsigned int count = MOST;
        const char *name = gt__doctor_symbol(nvml, lists[i][0]) ? lists[i][0] : lists[i][1];
        if (CALL(nvml, processes_fn, name, device, &count, list) != OK) continue;
        for (unsigned int k = 0; k < GT__MIN(count, (unsigned)MOST); k++) add_user(gpu, &list[k]);
    }
    for (int32_t i = 0; i < GT__MIN(gpu->user_count, GT__DOCTOR_USERS); i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "/proc/%lld/comm", (long long)gpu->users[i].process);
        (void)gt__doctor_line(report, path, gpu->users[i].name, sizeof gpu->users[i].name);
    }
}

static void ask_health(const gt__library *nvml, device_t device, gt__gpu *gpu) {
    int now = 0, next = 0;
    unsigned long long count = 0;
    unsigned int corrected = 0, uncorrected = 0, pending = 0, failed = 0, celsius = 0, current = 0, later = 0;
    if (CALL(nvml, pair_fn, "nvmlDeviceGetEccMode", device, &now, &next) == OK) gpu->ecc = now != 0;
    /* uncorrected, since the driver was loaded */
    if (CALL(nvml, ecc_fn, "nvmlDeviceGetTotalEccErrors", device, 1, 0, &count) == OK) gpu->ecc_uncorrected = count;
    if (CALL(nvml, remap_fn, "nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &pending, &failed) == OK) {
        gpu->remap_pending = pending != 0;
        gpu->remap_failed = failed != 0;
    }
    if (CALL(nvml, reasons_fn, "nvmlDeviceGetCurrentClocksEventReasons", device, &count) == OK ||
        CALL(nvml, reasons_fn, "nvmlDeviceGetCurrentClocksThrottleReasons", device, &count) == OK)
        gpu->throttle = count;
    if (CALL(nvml, kind_fn, "nvmlDeviceGetTemperature", device, 0, &celsius) == OK) gpu->temperature = (int32_t)celsius;
    if (CALL(nvml, one_fn, "nvmlDeviceGetComputeMode", device, &now) == OK) gpu->compute_mode = now;
    if (CALL(nvml, unsigned_pair_fn, "nvmlDeviceGetMigMode", device, &current, &later) == OK) gpu->mig = current != 0;
}

static void ask_gpu(gt_doctor_report *report, const gt__library *nvml, unsigned int index) {
    device_t device = NULL;
    gt__gpu *gpu = &report->gpus[report->gpu_count++];
    *gpu = (gt__gpu){.index = (int32_t)index, .cuda_index = -1, .compute_mode = -1, .ecc = -1, .temperature = -1};
    int code = CALL(nvml, by_index_fn, "nvmlDeviceGetHandleByIndex_v2", index, &device);
    if (code != OK) {
        gpu->lost = true;
        (void)snprintf(gpu->name, sizeof gpu->name, "GPU (NVML error %d)", code);
        return;
    }
    memory_info memory = {0};
    pci_info pci = {0};
    int major = 0, minor = 0;
    if (CALL(nvml, text_fn, "nvmlDeviceGetName", device, gpu->name, sizeof gpu->name) != OK) (void)strcpy(gpu->name, "NVIDIA GPU");
    (void)CALL(nvml, text_fn, "nvmlDeviceGetUUID", device, gpu->uuid, sizeof gpu->uuid);
    if (CALL(nvml, pci_fn, "nvmlDeviceGetPciInfo_v3", device, &pci) == OK)
        (void)snprintf(gpu->pci, sizeof gpu->pci, "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
    if (CALL(nvml, pair_fn, "nvmlDeviceGetCudaComputeCapability", device, &major, &minor) == OK) gpu->capability = major * 10 + minor;
    code = CALL(nvml, memory_fn, "nvmlDeviceGetMemoryInfo", device, &memory);
    gpu->lost = code == LOST;
    if (code == OK) {
        gpu->has_memory = true;
        gpu->memory_total = memory.total;
        gpu->memory_free = memory.free;
    }
    if (gpu->lost) return;
    ask_health(nvml, device, gpu);
    find_users(report, nvml, device, gpu);
}

void gt__doctor_nvml(gt_doctor_report *report) {
    const gt__library *nvml = &report->libraries[GT__LIBRARY_NVML];
    gt__found_driver *driver = &report->driver;
    plain_fn start = GT__DOCTOR_FIND(nvml, "nvmlInit_v2", plain_fn);
    plain_fn stop = GT__DOCTOR_FIND(nvml, "nvmlShutdown", plain_fn);
    if (!start || !stop) return;
    driver->nvml_asked = true;
    driver->nvml_code = start();
    if (driver->nvml_code != OK) return;
    unsigned int count = 0;
    (void)CALL(nvml, system_text_fn, "nvmlSystemGetDriverVersion", driver->version, sizeof driver->version);
    if (CALL(nvml, count_fn, "nvmlDeviceGetCount_v2", &count) != OK) count = 0;
    for (unsigned int i = 0; i < count && report->gpu_count < GT__DOCTOR_GPUS; i++) ask_gpu(report, nvml, i);
    (void)stop();
}

/* libnvidia-ml.so.1: STUB_NVML (0, the code of nvmlInit), STUB_GPUS (1), and for each GPU the same: STUB_FREE_MIB (71680 of 81920; of GPU 0 STUB_FREE_MIB_0),
 * STUB_CAPABILITY (90), STUB_MODE (0), STUB_ECC_ERRORS (0), STUB_REMAP (0: bit 0 pending, bit 1 failed), STUB_THROTTLE (0), STUB_LOST (-1: which), STUB_USERS (0). */
#include "stubs.h"

#include <stdint.h>
#include <stdio.h>

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
    unsigned long long bytes;
    unsigned int gpu_instance, compute_instance;
} process_info;

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned int size);
EXPORT int nvmlDeviceGetCount_v2(unsigned int *count);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device);
EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned int size);
EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned int size);
EXPORT int nvmlDeviceGetPciInfo_v3(void *device, pci_info *info);
EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, memory_info *info);
EXPORT int nvmlDeviceGetEccMode(void *device, int *now, int *next);
EXPORT int nvmlDeviceGetTotalEccErrors(void *device, int kind, int since, unsigned long long *count);
EXPORT int nvmlDeviceGetRemappedRows(void *device, unsigned int *a, unsigned int *b, unsigned int *pending, unsigned int *failed);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons);
EXPORT int nvmlDeviceGetTemperature(void *device, int kind, unsigned int *celsius);
EXPORT int nvmlDeviceGetComputeMode(void *device, int *mode);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_info *list);

static unsigned int number_of(void *device) { return (unsigned int)((uintptr_t)device - 1); }

int nvmlInit_v2(void) { return (int)stub_number("STUB_NVML", 0); }
int nvmlShutdown(void) { return 0; }

int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    (void)snprintf(text, size, "580.65.06");
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = (unsigned int)stub_number("STUB_GPUS", 1);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (stub_number("STUB_LOST", -1) == (long)index) return 15;
    *device = (void *)(uintptr_t)(index + 1);
    return 0;
}

int nvmlDeviceGetName(void *device, char *text, unsigned int size) {
    (void)device;
    (void)snprintf(text, size, "Stub GPU");
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned int size) {
    (void)snprintf(text, size, "GPU-%x%x%x%x", number_of(device), number_of(device), number_of(device), number_of(device));
    return 0;
}

int nvmlDeviceGetPciInfo_v3(void *device, pci_info *info) {
    *info = (pci_info){.bus = 0x19 + number_of(device)};
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    (void)device;
    long capability = stub_number("STUB_CAPABILITY", 90);
    *major = (int)(capability / 10);
    *minor = (int)(capability % 10);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_info *info) {
    long mib = stub_number("STUB_FREE_MIB", 71680);
    if (number_of(device) == 0) mib = stub_number("STUB_FREE_MIB_0", mib);
    info->total = 81920ull << 20;
    info->free = (unsigned long long)mib << 20;
    info->used = info->total - info->free;
    return 0;
}

int nvmlDeviceGetEccMode(void *device, int *now, int *next) {
    (void)device;
    *now = *next = 1;
    return 0;
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int since, unsigned long long *count) {
    (void)device;
    *count = kind == 1 && since == 0 ? (unsigned long long)stub_number("STUB_ECC_ERRORS", 0) : 999;
    return 0;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned int *a, unsigned int *b, unsigned int *pending, unsigned int *failed) {
    (void)device;
    *a = *b = 0;
    *pending = stub_number("STUB_REMAP", 0) & 1;
    *failed = stub_number("STUB_REMAP", 0) >> 1 & 1;
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    (void)device;
    *reasons = (unsigned long long)stub_number("STUB_THROTTLE", 0);
    return 0;
}

int nvmlDeviceGetTemperature(void *device, int kind, unsigned int *celsius) {
    (void)device;
    (void)kind;
    *celsius = 91;
    return 0;
}

int nvmlDeviceGetComputeMode(void *device, int *mode) {
    (void)device;
    *mode = (int)stub_number("STUB_MODE", 0);
    return 0;
}

/* Processes 4711, 4712 and so on, each with a GiB more than the one before. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_info *list) {
    (void)device;
    unsigned int users = (unsigned int)stub_number("STUB_USERS", 0);
    if (users > *count) return 7;
    for (unsigned int i = 0; i < users; i++) list[i] = (process_info){.process = 4711 + i, .bytes = (unsigned long long)(i + 1) << 30};
    *count = users;
    return 0;
}

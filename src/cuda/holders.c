/* Which processes hold the device's memory: only NVML knows. It comes with the driver; it is opened for the question and closed again, and what cannot be found
 * out is left out. */
#include "cuda/device.h"

#include <dlfcn.h>

/* As NVML's interface has them. */
enum { NVML_OK = 0, NVML_TOO_SMALL = 7 };
typedef struct nvml_process {
    unsigned int process;
    unsigned long long bytes; /* all bits set: not available */
    unsigned int gpu_instance, compute_instance;
} nvml_process;
typedef void *nvml_device;
typedef int (*nvml_plain_fn)(void);
typedef int (*nvml_find_fn)(const char *pci_bus_id, nvml_device *device);
typedef int (*nvml_list_fn)(nvml_device device, unsigned int *count, nvml_process *list);

/* The newest form of a list function that this NVML has. */
static nvml_list_fn list_function(void *library, const char *newest, const char *older) {
    nvml_list_fn found = (nvml_list_fn)(uintptr_t)dlsym(library, newest);
    return found ? found : (nvml_list_fn)(uintptr_t)dlsym(library, older);
}

/* Adds a process, or what it holds in another way, to those found. */
static int32_t add(gt__memory_holder *list, int32_t capacity, int32_t count, const nvml_process *p) {
    uint64_t bytes = p->bytes == UINT64_MAX ? 0 : p->bytes;
    for (int32_t i = 0; i < GT__MIN(count, capacity); i++) {
        if (list[i].process != (int64_t)p->process) continue;
        list[i].bytes = GT__MAX(list[i].bytes, bytes); /* a process that computes and draws is in both lists with all it holds */
        return count;
    }
    if (count < capacity) list[count] = (gt__memory_holder){.process = (int64_t)p->process, .bytes = bytes};
    return count + 1;
}

static int32_t add_all(nvml_list_fn function, nvml_device device, gt__memory_holder *list, int32_t capacity, int32_t count) {
    enum { ENOUGH = 128 };
    nvml_process few[ENOUGH], *found = few;
    unsigned int entries = ENOUGH;
    int code = function(device, &entries, few);
    if (code == NVML_TOO_SMALL) {
        entries += ENOUGH; /* more may have come since */
        found = gt__calloc(entries, sizeof *found);
        if (!found) return count;
        code = function(device, &entries, found);
    }
    if (code == NVML_OK)
        for (unsigned int i = 0; i < entries; i++) count = add(list, capacity, count, &found[i]);
    if (found != few) gt__free(found);
    return count;
}

int32_t gt__cuda_memory_holders(gt__device *device, gt__memory_holder *list, int32_t capacity) {
    static const char *const lists[][2] = {
        {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"},
        {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"},
        {"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"},
    };
    char bus_id[32];
    nvml_device nvml;
    int32_t count = 0;
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, gt__cuda(device)->index) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library) return 0;
    nvml_plain_fn init = (nvml_plain_fn)(uintptr_t)dlsym(library, "nvmlInit_v2");
    nvml_plain_fn stop = (nvml_plain_fn)(uintptr_t)dlsym(library, "nvmlShutdown");
    nvml_find_fn find = (nvml_find_fn)(uintptr_t)dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    if (init && stop && find && init() == NVML_OK) {
        if (find(bus_id, &nvml) == NVML_OK) {
            for (size_t i = 0; i < GT__COUNT(lists); i++) {
                nvml_list_fn function = list_function(library, lists[i][0], lists[i][1]);
                if (function) count = add_all(function, nvml, list, capacity, count);
            }
        }
        (void)stop();
    }
    (void)dlclose(library);
    return count;
}

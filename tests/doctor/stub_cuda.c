/* libcuda.so.1: STUB_DRIVER (13000), STUB_INIT (0), STUB_GPUS (1). Notes in STUB_STARTED that it was started. */
#include "stubs.h"

#include <stdio.h>

EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuInit(unsigned int flags);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuDeviceGet(int *device, int index);
EXPORT int cuDeviceGetPCIBusId(char *text, int size, int device);
EXPORT int cuDeviceGetName(char *text, int size, int device);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device);

int cuDriverGetVersion(int *version) {
    *version = (int)stub_number("STUB_DRIVER", 13000);
    return 0;
}

int cuInit(unsigned int flags) {
    (void)flags;
    int code = (int)stub_number("STUB_INIT", 0);
    if (code == 0) (void)setenv("STUB_STARTED", "1", 1);
    return code;
}

int cuDeviceGetCount(int *count) {
    if (!stub_number("STUB_STARTED", 0)) return 3;
    *count = (int)stub_number("STUB_GPUS", 1);
    return 0;
}

int cuDeviceGet(int *device, int index) {
    *device = index;
    return 0;
}

/* CUDA's order is the reverse of NVML's, so that a test sees which is which. */
int cuDeviceGetPCIBusId(char *text, int size, int device) {
    (void)snprintf(text, (size_t)size, "0000:%02x:00.0", 0x19 + (int)stub_number("STUB_GPUS", 1) - 1 - device);
    return 0;
}

int cuDeviceGetName(char *text, int size, int device) {
    (void)snprintf(text, (size_t)size, "Driver's GPU %d", device);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : 0;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)80 << 30;
    return 0;
}

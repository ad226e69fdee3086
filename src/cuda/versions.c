/* Are the libraries that were found at run time, and the driver, new enough? And has the build code for this GPU? */
#include "cuda/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* Set by the build: the oldest cuDNN whose functions and attributes are enough, as cudnnGetVersion gives it. */
#ifndef GTRAIN_CUDNN_MIN_VERSION
#define GTRAIN_CUDNN_MIN_VERSION 90000
#endif

static const char *library_path(const void *symbol) {
    Dl_info info;
    return dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : "path unknown";
}

static gt_status too_old(const char *library, const char *found, const char *needed, const char *path, const char *install) {
    char hint[256];
    snprintf(hint, sizeof hint, "Install %s %s or newer%s.", library, needed, install);
    GT_FAIL_HINT(GT_VERSION_MISMATCH, hint, "%s %s is too old: gtrain's CUDA backend was built for %s or newer (%s)", library, found,
                 needed, path);
}

/* 91400 is 9.14.0; before cuDNN 9 8907 was 8.9.7. */
static void version_text(char *text, size_t size, size_t version) {
    size_t unit = version >= 10000 ? 10000 : 1000;
    snprintf(text, size, "%zu.%zu.%zu", version / unit, version % unit / 100, version % 100);
}

gt_status gt__cuda_check_libraries(void) {
    char found[32], needed[32];
    int runtime = 0;
    GT_TRY_CUDA(cudaRuntimeGetVersion(&runtime));
    if (runtime / 1000 < CUDART_VERSION / 1000) {
        snprintf(found, sizeof found, "%d.%d", runtime / 1000, runtime % 1000 / 10);
        snprintf(needed, sizeof needed, "%d.0", CUDART_VERSION / 1000);
        return too_old("the CUDA runtime", found, needed, library_path((const void *)&cudaRuntimeGetVersion), "");
    }

    size_t cublas = cublasLtGetVersion();
    if (cublas / 10000 < CUBLAS_VER_MAJOR) {
        version_text(found, sizeof found, cublas);
        snprintf(needed, sizeof needed, "%d.0", CUBLAS_VER_MAJOR);
        return too_old("cuBLASLt", found, needed, library_path((const void *)&cublasLtGetVersion), "");
    }

    size_t cudnn = cudnnGetVersion();
    if (cudnn < GTRAIN_CUDNN_MIN_VERSION) {
        version_text(found, sizeof found, cudnn);
        version_text(needed, sizeof needed, GTRAIN_CUDNN_MIN_VERSION);
        return too_old("cuDNN", found, needed, library_path((const void *)&cudnnGetVersion),
                       " (packages cudnn9-cuda-13 or -12, or the pip wheels nvidia-cudnn-cu13 or -cu12)");
    }
    return GT_OK;
}

gt_status gt__cuda_check_driver(void) {
    int driver = 0, runtime = 0;
    GT_TRY_CUDA(cudaDriverGetVersion(&driver));
    GT_TRY_CUDA(cudaRuntimeGetVersion(&runtime));
    if (driver == 0)
        GT_FAIL_HINT(GT_NO_DEVICE, "Install the NVIDIA driver; in a container, start it with GPU access (for example --gpus all).",
                     "no NVIDIA driver is loaded (libcuda.so.1 was not found)");
    if (driver / 1000 < runtime / 1000) {
        char hint[128];
        snprintf(hint, sizeof hint, "Install a driver for CUDA %d, or build gtrain with CUDA %d.", runtime / 1000, driver / 1000);
        GT_FAIL_HINT(GT_VERSION_MISMATCH, hint, "the NVIDIA driver is too old: it supports CUDA %d.%d, the CUDA runtime is %d.%d (%s)",
                     driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                     library_path((const void *)&cudaRuntimeGetVersion));
    }
    return GT_OK;
}

/* Machine code runs on its own major version from its own minor version on (90a: on 9.0 alone); PTX on anything newer. An entry is "80-real" (machine
 * code), "90-virtual" (PTX) or "90" (both). */
bool gt__cuda_architecture_covers(const char *architectures, int capability) {
    const char *at = architectures;
    while (*at) {
        char *end;
        long arch = strtol(at, &end, 10);
        if (end == at) {
            at++;
            continue;
        }
        char kind = *end;
        bool exact = kind == 'a', family = kind == 'f';
        if (exact || family) end++;
        bool real = strncmp(end, "-real", 5) == 0, ptx = strncmp(end, "-virtual", 8) == 0;
        bool same_major = arch / 10 == capability / 10;
        if (!ptx && same_major && (exact ? arch == capability : arch <= capability)) return true;
        if (!real && !exact && !family && arch <= capability) return true;
        while (*end && *end != ';' && *end != ' ' && *end != ',') end++;
        at = end;
    }
    return false;
}

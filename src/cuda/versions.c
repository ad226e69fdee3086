/* Are the libraries that were found at run time, and the driver, new enough? */
#include "cuda/device.h"

#include <dlfcn.h>
#include <stdio.h>

/* Set by the build: the oldest cuDNN whose functions and attributes are enough, as cudnnGetVersion gives it. */
#ifndef GTRAIN_CUDNN_MIN_VERSION
#define GTRAIN_CUDNN_MIN_VERSION 90000
#endif

#define TEXT_OF(value)   #value
#define TEXT(value)      TEXT_OF(value)
#define CUDNN_MAJOR_TEXT TEXT(CUDNN_MAJOR)

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

/* libcudnn.so.9 hands each call, that for its version too, to a library beside it, and ends the process if that one does not load. What is opened here stays
 * open, as it does when cuDNN opens it. */
static gt_status check_cudnn_parts(void) {
    const char *name = "libcudnn_graph.so." CUDNN_MAJOR_TEXT, *path = library_path((const void *)&cudnnGetVersion);
    char beside[4096];
    const char *slash = strrchr(path, '/');
    int length = slash ? (int)(slash - path) + 1 : 0;
    void *part = NULL;
    if (snprintf(beside, sizeof beside, "%.*s%s", length, path, name) < (int)sizeof beside) part = dlopen(beside, RTLD_LAZY | RTLD_LOCAL);
    if (!part) part = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (part) return GT_OK;
    const char *why = dlerror();
    GT_FAIL_HINT(GT_NO_DEVICE,
                 "Install cuDNN anew, all of its libraries in one folder (packages cudnn9-cuda-13 or -12, or the pip wheels nvidia-cudnn-cu13 or -cu12).",
                 "cuDNN (%s) is not complete: %s", path, why ? why : name);
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

    GT_TRY(check_cudnn_parts());
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

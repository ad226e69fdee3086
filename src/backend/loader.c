/* Finds the CUDA backend: linked in, or in the module libgtrain_cuda.so. Until a GPU is asked for, nothing of CUDA is touched. */
#include "backend/backend.h"

#ifdef GTRAIN_STATIC_CUDA

gt_status gt__backend_cuda(const gt__backend **backend) { return gt__cuda_backend(backend); }

#else

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MODULE     "libgtrain_cuda.so"
#define PATH_BYTES 4096

typedef gt_status (*entry_fn)(const gt__host_api *host, const gt__backend **backend);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const gt__backend *loaded;

/* Where this code lies: libgtrain.so, or the program that has it linked in. */
static bool own_folder(char *path, size_t size) {
    Dl_info info;
    if (!dladdr((const void *)&own_folder, &info) || !info.dli_fname) return false;
    const char *slash = strrchr(info.dli_fname, '/');
    int length = slash ? (int)(slash - info.dli_fname) : 1;
    return snprintf(path, size, "%.*s", length, slash ? info.dli_fname : ".") < (int)size;
}

/* Kept for the life of the process (NODELETE): CUDA's libraries do not survive unloading. Lazy, so that the version check runs before a symbol that an
 * older library lacks is looked up. */
static void *open_module(const char *path, gt__text *tried) {
    void *module = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (!module) {
        const char *why = dlerror();
        (void)gt__text_add(tried, "%s%s", tried->length ? "; " : "", why ? why : path);
    }
    return module;
}

static void *find_module(gt__text *tried) {
    const char *chosen = getenv("GTRAIN_CUDA_MODULE");
    if (chosen && chosen[0]) return open_module(chosen, tried);
    char path[PATH_BYTES];
    bool beside = own_folder(path, sizeof path - sizeof "/" MODULE);
    if (beside) {
        size_t folder = strlen(path);
        strcat(path, "/" MODULE);
        /* If it is there, what keeps it from loading is the answer. */
        if (access(path, F_OK) == 0) return open_module(path, tried);
        path[folder] = '\0';
    }
    void *module = open_module(MODULE, tried);
    if (module || !beside || !strstr(tried->data ? tried->data : "", MODULE ": ")) return module;
    /* The module itself is missing, not a library that it needs. dladdr's path may have "..". */
    gt__text_free(tried);
    char *plain = realpath(path, NULL);
    (void)gt__text_add(tried, "there is no " MODULE " in %s or on the library path (built without CUDA?)", plain ? plain : path);
    free(plain);
    return NULL;
}

static gt_status load(const gt__backend **backend) {
    gt__text tried = {0};
    void *module = find_module(&tried);
    if (!module) {
        /* dlerror names the library that is missing, which need not be the module itself. */
        gt_status status = gt__error_raise(
            GT_NO_DEVICE, __FILE__, __LINE__, 0, NULL,
            "Install what is missing: the CUDA runtime and cuBLAS 12 or 13 (cuda-libraries-13-0, or the pip wheels nvidia-cuda-runtime and "
            "nvidia-cublas), cuDNN 9 (cudnn9-cuda-13, or nvidia-cudnn-cu13) and " MODULE " beside libgtrain.so; make their folders known "
            "by LD_LIBRARY_PATH or ldconfig. GTRAIN_CUDA_MODULE names another module.",
            "the CUDA backend could not be loaded: %s", tried.data ? tried.data : MODULE " was not found");
        gt__text_free(&tried);
        return status;
    }
    gt__text_free(&tried);

    Dl_info info;
    entry_fn entry;
    void *symbol = dlsym(module, "gt_backend_cuda_v1");
    memcpy(&entry, &symbol, sizeof entry);
    const char *path = symbol && dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : MODULE;
    gt_status status = GT_BAD_ABI;
    const gt__backend *found = NULL;
    if (entry) {
        status = entry(gt__host_functions(), &found);
        if (status == GT_OK && found->abi != GT__BACKEND_ABI) status = GT_BAD_ABI;
    }
    if (status == GT_BAD_ABI)
        GT_FAIL_HINT(GT_BAD_ABI, "Install " MODULE " and libgtrain.so from one build.",
                     "%s does not belong to this libgtrain (version %d.%d.%d)", path, GT_VERSION_MAJOR, GT_VERSION_MINOR, GT_VERSION_PATCH);
    if (status != GT_OK) return status;
    *backend = found;
    return GT_OK;
}

gt_status gt__backend_cuda(const gt__backend **backend) {
    (void)pthread_mutex_lock(&lock);
    /* A failure is not remembered: what was missing may be there the next time, and the reason is written anew for this thread. */
    gt_status status = loaded ? GT_OK : load(&loaded);
    if (status == GT_OK) *backend = loaded;
    (void)pthread_mutex_unlock(&lock);
    return status;
}

#endif

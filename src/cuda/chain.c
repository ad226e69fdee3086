/* Chains: their kernels, compiled for this GPU when a step is planned, kept by their source text, loaded at their first run. */
#include "cuda/chain.h"

#include "cuda/chain_kernels.h"
#include "cuda/chain_source.h"

#include <pthread.h>
#include <stdio.h>

/* All there, or `usable` is false. */
static struct {
    CUresult(CUDAAPI *load)(CUmodule *, const void *);
    CUresult(CUDAAPI *unload)(CUmodule);
    CUresult(CUDAAPI *function)(CUfunction *, CUmodule, const char *);
    CUresult(CUDAAPI *launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
    bool usable;
} driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load_driver(void) {
    driver.usable = gt__cuda_driver_find("cuModuleLoadData", (void **)&driver.load) &&
                    gt__cuda_driver_find("cuModuleUnload", (void **)&driver.unload) &&
                    gt__cuda_driver_find("cuModuleGetFunction", (void **)&driver.function) &&
                    gt__cuda_driver_find("cuLaunchKernel", (void **)&driver.launch);
}

/* --- kernels ------------------------------------------------------------------------------------------------------------------------------- */

enum { WHY = 512 };

/* The one for the chain, compiled; NULL with the reason in `why`. */
static gt__chain_kernel *get_kernel(gt__cuda_device *cuda, const gt__chain *chain, char *why) {
    char *source = NULL;
    (void)snprintf(why, WHY, "no host memory");
    if (gt__chain_source(chain, &source) != GT_OK) return NULL;
    gt__chain_kernel *k = gt__chain_kernel_find(cuda, source);
    if (k) {
        gt__free(source);
        (void)snprintf(why, WHY, "NVRTC has refused it before");
        return k->refused ? NULL : k;
    }
    if (cuda->chain_count == GT__CHAIN_KERNELS) (void)snprintf(why, WHY, "there are %d kernels already", GT__CHAIN_KERNELS);
    k = gt__chain_kernel_add(cuda, source);
    if (!k) {
        gt__free(source);
        return NULL;
    }
    k->refused = !gt__nvrtc_compile(k->source, cuda->capability, &k->image, why, WHY);
    return k->refused ? NULL : k;
}

static void unload(CUmodule module) { (void)driver.unload(module); }

void gt__cuda_chains_close(gt__cuda_device *cuda, bool gone) { gt__chain_kernels_clear(cuda, gone ? NULL : unload); }

static gt_status failed(const gt__chain *chain, const char *call, int code) {
    char text[GT__CHAIN_TEXT];
    return gt__error_raise(
        code == CUDA_ERROR_OUT_OF_MEMORY ? GT_OUT_OF_MEMORY : GT_LIBRARY, __FILE__, __LINE__, code, "CUresult",
        code == CUDA_ERROR_OUT_OF_MEMORY ? "Free some of the device's memory, or lower memory_limit, and repeat the call." : NULL,
        "%s \"%s\" of %lld elements: %s returned error %d", gt__chain_text(chain, text, sizeof text), chain->module ? chain->module : "",
        (long long)chain->n, call, code);
}

static gt_status load_kernel(gt__cuda_device *cuda, const gt__chain *chain, gt__chain_kernel *k) {
    if (k->module) return GT_OK;
    CUresult code = driver.load(&k->module, k->image.data);
    if (code == CUDA_ERROR_OUT_OF_MEMORY && gt__cache_release(cuda->base.ctx)) code = driver.load(&k->module, k->image.data);
    if (code != CUDA_SUCCESS) {
        k->module = NULL;
        return failed(chain, "cuModuleLoadData", code);
    }
    code = driver.function(&k->run, k->module, "gt_chain");
    if (code == CUDA_SUCCESS && chain->sum.data) code = driver.function(&k->sum, k->module, "gt_chain_sum");
    if (code != CUDA_SUCCESS) {
        (void)driver.unload(k->module);
        k->module = NULL;
        return failed(chain, "cuModuleGetFunction", code);
    }
    gt__free(k->image.data);
    k->image = (gt__nvrtc_image){0};
    return GT_OK;
}

/* --- the backend's functions ----------------------------------------------------------------------------------------------------------------- */

/* Grids have 2^31 - 1 blocks along x. */
static bool fits(const gt__chain *c) {
    const int64_t most = (int64_t)1 << 31;
    return c->n <= most * 256 && (c->sum.data == NULL || c->sum.kept <= most);
}

bool gt__cuda_can_chain(gt__device *device, const gt__chain *chain, bool prepare) {
    char why[WHY], text[GT__CHAIN_TEXT];
    (void)pthread_once(&once, load_driver);
    if (!driver.usable || !gt__nvrtc_usable() || !fits(chain)) return false;
    if (!prepare || get_kernel(gt__cuda(device), chain, why) != NULL) return true;
    gt__log(device->ctx, GT_LOG_WARNING, "%s: its ops run one by one: %s", gt__chain_text(chain, text, sizeof text), why);
    return false;
}

static gt_status launch(gt__device *device, const gt__chain *chain, CUfunction function, const gt__chain_launch *l,
                        gt__chain_arguments *arguments) {
    void *list[] = {arguments};
    CUresult code =
        driver.launch(function, l->grid_x, l->grid_y, 1, l->block_x, l->block_y, 1, 0, (CUstream)gt__cuda(device)->compute, list, NULL);
    return GT__LIKELY(code == CUDA_SUCCESS) ? GT_OK : failed(chain, "cuLaunchKernel", code);
}

gt_status gt__cuda_run_chain(gt__device *device, const gt__chain *chain) {
    gt__cuda_device *cuda = gt__cuda(device);
    gt__chain_arguments arguments;
    gt__chain_launch first, second;
    size_t partial_bytes = 0;
    void *handle = NULL;
    char why[WHY], text[GT__CHAIN_TEXT];
    gt__chain_kernel *kernel = get_kernel(cuda, chain, why); /* there since the step was planned */
    GT_REQUIRE(kernel != NULL, GT_NOT_SUPPORTED, "%s \"%s\": %s", gt__chain_text(chain, text, sizeof text),
               chain->module ? chain->module : "", why);
    GT_TRY(load_kernel(cuda, chain, kernel));
    gt__chain_prepare(chain, cuda->multiprocessors, 1024, &arguments, &first, &second, &partial_bytes);
    if (partial_bytes > 0 && !gt__cuda_scratch_try(device, partial_bytes, &arguments.partial, &handle))
        gt__chain_prepare(chain, cuda->multiprocessors, 1, &arguments, &first, &second, &partial_bytes);
    gt_status status = launch(device, chain, kernel->run, &first, &arguments);
    if (status == GT_OK && arguments.parts > 1) status = launch(device, chain, kernel->sum, &second, &arguments);
    gt__scratch_free(device->ctx, handle);
    return status;
}

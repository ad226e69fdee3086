/* Device memory: whole pieces by cudaMalloc, ranges of addresses backed grain by grain through the driver's virtual memory, and pinned host memory. OUT_OF_MEMORY
 * raises nothing here: the allocator, which knows what the memory is for and may have a way out, does. */
#include "cuda/device.h"

#include <pthread.h>

/* --- whole pieces ------------------------------------------------------------------------------------------------------------------- */

gt_status gt__cuda_memory_alloc(gt__device *device, size_t bytes, void **pointer) {
    (void)device;
    void *memory = NULL;
    cudaError_t code = cudaMalloc(&memory, bytes);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return GT_OUT_OF_MEMORY;
    }
    if (code != cudaSuccess) return gt__cuda_raise(code, "cudaMalloc", __FILE__, __LINE__);
    *pointer = memory;
    return GT_OK;
}

void gt__cuda_memory_free(gt__device *device, void *pointer) {
    (void)device;
    if (cudaFree(pointer) != cudaSuccess) (void)cudaGetLastError();
}

gt_status gt__cuda_memory_info(gt__device *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    (void)device;
    size_t free_size, total_size;
    GT_TRY_CUDA(cudaMemGetInfo(&free_size, &total_size));
    *free_bytes = free_size;
    *total_bytes = total_size;
    return GT_OK;
}

gt_status gt__cuda_host_alloc(gt__device *device, size_t bytes, void **pointer) {
    (void)device;
    void *memory = NULL;
    cudaError_t code = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return gt__error_raise(GT_OUT_OF_HOST_MEMORY, __FILE__, __LINE__, code, "cudaError_t", NULL,
                               "cudaHostAlloc: no %zu bytes of pinned host memory", bytes);
    }
    if (code != cudaSuccess) return gt__cuda_raise(code, "cudaHostAlloc", __FILE__, __LINE__);
    *pointer = memory;
    return GT_OK;
}

void gt__cuda_host_free(gt__device *device, void *pointer) {
    (void)device;
    if (cudaFreeHost(pointer) != cudaSuccess) (void)cudaGetLastError();
}

/* --- maps ----------------------------------------------------------------------------------------------------------------------------- */

/* All there, or `usable` is false. */
static struct {
    CUresult(CUDAAPI *attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult(CUDAAPI *granularity)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
    CUresult(CUDAAPI *address_reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult(CUDAAPI *address_free)(CUdeviceptr, size_t);
    CUresult(CUDAAPI *create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult(CUDAAPI *release)(CUmemGenericAllocationHandle);
    CUresult(CUDAAPI *map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult(CUDAAPI *set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult(CUDAAPI *unmap)(CUdeviceptr, size_t);
    bool usable;
} driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load_driver(void) {
    driver.usable =
        gt__cuda_driver_find("cuDeviceGetAttribute", (void **)&driver.attribute) &&
        gt__cuda_driver_find("cuMemGetAllocationGranularity", (void **)&driver.granularity) &&
        gt__cuda_driver_find("cuMemAddressReserve", (void **)&driver.address_reserve) &&
        gt__cuda_driver_find("cuMemAddressFree", (void **)&driver.address_free) &&
        gt__cuda_driver_find("cuMemCreate", (void **)&driver.create) && gt__cuda_driver_find("cuMemRelease", (void **)&driver.release) &&
        gt__cuda_driver_find("cuMemMap", (void **)&driver.map) && gt__cuda_driver_find("cuMemSetAccess", (void **)&driver.set_access) &&
        gt__cuda_driver_find("cuMemUnmap", (void **)&driver.unmap);
}

static CUmemAllocationProp properties_of(const gt__cuda_device *cuda) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->index}};
}

size_t gt__cuda_map_grain(gt__device *device) {
    gt__cuda_device *cuda = gt__cuda(device);
    CUmemAllocationProp properties = properties_of(cuda);
    int maps = 0;
    size_t grain = 0;
    (void)pthread_once(&once, load_driver);
    if (!driver.usable || driver.attribute(&maps, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, cuda->index) != CUDA_SUCCESS ||
        !maps || driver.granularity(&grain, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        grain = 0;
    cuda->grain = grain;
    return grain;
}

gt_status gt__cuda_address_reserve(gt__device *device, size_t bytes, void **address) {
    CUdeviceptr pointer = 0;
    CUresult code = driver.address_reserve(&pointer, bytes, gt__cuda(device)->grain, 0, 0);
    if (code == CUDA_ERROR_OUT_OF_MEMORY) return GT_OUT_OF_MEMORY;
    if (code != CUDA_SUCCESS) return gt__cuda_raise_driver(code, "cuMemAddressReserve", __FILE__, __LINE__);
    *address = (void *)(uintptr_t)pointer;
    return GT_OK;
}

void gt__cuda_address_release(gt__device *device, void *address, size_t bytes) {
    (void)device;
    (void)driver.address_free((CUdeviceptr)(uintptr_t)address, bytes);
}

/* A mapping can only be undone whole, so there is one a grain, and unmapping names each. */
static void unmap_grains(size_t grain, CUdeviceptr begin, size_t bytes) {
    for (size_t at = 0; at < bytes; at += grain) (void)driver.unmap(begin + at, grain);
}

gt_status gt__cuda_memory_map(gt__device *device, void *address, size_t bytes) {
    gt__cuda_device *cuda = gt__cuda(device);
    const CUmemAllocationProp properties = properties_of(cuda);
    const CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr begin = (CUdeviceptr)(uintptr_t)address;
    CUresult code = CUDA_SUCCESS;
    const char *call = "cuMemCreate";
    size_t done = 0;
    for (; done < bytes; done += cuda->grain) {
        CUmemGenericAllocationHandle handle;
        call = "cuMemCreate";
        code = driver.create(&handle, cuda->grain, &properties, 0);
        if (code != CUDA_SUCCESS) break;
        call = "cuMemMap";
        code = driver.map(begin + done, cuda->grain, 0, handle, 0);
        (void)driver.release(handle); /* from now on the mapping alone holds the memory */
        if (code != CUDA_SUCCESS) break;
    }
    if (code == CUDA_SUCCESS) {
        call = "cuMemSetAccess";
        code = driver.set_access(begin, bytes, &access, 1);
    }
    if (code == CUDA_SUCCESS) return GT_OK;
    unmap_grains(cuda->grain, begin, done);
    return code == CUDA_ERROR_OUT_OF_MEMORY ? GT_OUT_OF_MEMORY : gt__cuda_raise_driver(code, call, __FILE__, __LINE__);
}

void gt__cuda_memory_unmap(gt__device *device, void *address, size_t bytes) {
    unmap_grains(gt__cuda(device)->grain, (CUdeviceptr)(uintptr_t)address, bytes);
}

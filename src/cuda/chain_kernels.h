/* The kernels of chains that a device has: bounded, and none ever goes before the device does, since a graph may hold it. */
#ifndef GT_CUDA_CHAIN_KERNELS_H
#define GT_CUDA_CHAIN_KERNELS_H

#include "cuda/device.h"
#include "cuda/nvrtc.h"

#define GT__CHAIN_KERNELS 256

typedef struct gt__chain_kernel {
    struct gt__chain_kernel *next;
    char *source; /* gt__free */
    uint64_t hash;
    gt__nvrtc_image image; /* until it is loaded */
    CUmodule module;       /* NULL: not loaded yet */
    CUfunction run, sum;   /* sum: NULL where there is none */
    bool refused;          /* the compiler did not take it: not tried again */
} gt__chain_kernel;

gt__chain_kernel *gt__chain_kernel_find(const gt__cuda_device *cuda, const char *source);
/* A new one, which takes the source over. NULL: there are too many already, or (raised) no host memory; the source is the caller's still. */
gt__chain_kernel *gt__chain_kernel_add(gt__cuda_device *cuda, char *source);
/* `unload`: what the driver does with a module that is not needed any more; NULL: modules are left alone. */
void gt__chain_kernels_clear(gt__cuda_device *cuda, void (*unload)(CUmodule module));

#endif

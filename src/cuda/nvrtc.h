/* NVRTC, NVIDIA's compiler at run time: opened when it is first asked for, never linked. Needs no GPU. */
#ifndef GT_CUDA_NVRTC_H
#define GT_CUDA_NVRTC_H

#include "base/host.h"

/* Whether there is one that can be used. Opened once and kept; any thread. */
bool gt__nvrtc_usable(void);

/* What the driver loads: machine code of the GPU's own architecture, or PTX where this NVRTC knows only older ones. */
typedef struct gt__nvrtc_image {
    void *data; /* gt__free */
    size_t bytes;
} gt__nvrtc_image;

/* Compiles a chain's source for a capability (90: 9.0). False, with the reason in `why`: there is no NVRTC, or it refuses the source. Raises nothing. */
bool gt__nvrtc_compile(const char *source, int capability, gt__nvrtc_image *image, char *why, size_t size);

#endif

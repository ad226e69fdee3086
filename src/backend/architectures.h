/* Does a build have code for a GPU? */
#ifndef GT_BACKEND_ARCHITECTURES_H
#define GT_BACKEND_ARCHITECTURES_H

typedef enum gt__gpu_code {
    GT__GPU_CODE_NONE,
    GT__GPU_CODE_PTX, /* the driver has to compile it, for which it must be as new as the compiler that wrote it */
    GT__GPU_CODE_MACHINE
} gt__gpu_code;

/* The best that a list of architectures, as CMAKE_CUDA_ARCHITECTURES has them ("80-real;90"), holds for compute capability 90 (9.0). */
gt__gpu_code gt__architectures_cover(const char *architectures, int capability);

#endif

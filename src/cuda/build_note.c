/* What this build needs, as a note in the file: whoever wants to know why the module does not load (doctor/module.c) reads it without loading it. */
#include "cuda/device.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

/* Set by the build: what nvcc compiled for, as CMAKE_CUDA_ARCHITECTURES, and the oldest cuDNN that will do, as in versions.c. */
#ifndef GTRAIN_CUDA_ARCHITECTURES
#define GTRAIN_CUDA_ARCHITECTURES ""
#endif
#ifndef GTRAIN_CUDNN_MIN
#define GTRAIN_CUDNN_MIN "9.0.0"
#endif

#define TEXT(value)      TEXT_OF(value)
#define TEXT_OF(value)   #value
#define LINE(key, value) key "=" value "\n"

#define CUBLAS TEXT(CUBLAS_VER_MAJOR) "." TEXT(CUBLAS_VER_MINOR) "." TEXT(CUBLAS_VER_PATCH)
#define CUDNN  TEXT(CUDNN_MAJOR) "." TEXT(CUDNN_MINOR) "." TEXT(CUDNN_PATCHLEVEL)

/* The keys that doctor/module.c reads. cuda is packed as the runtime packs it. */
#define NOTE                                                                                                                               \
    LINE("abi", TEXT(GT__BACKEND_ABI))                                                                                                     \
    LINE("cuda", TEXT(CUDART_VERSION)) LINE("cublas", CUBLAS) LINE("cudnn", CUDNN) LINE("cudnn_least", GTRAIN_CUDNN_MIN)                   \
        LINE("architectures", GTRAIN_CUDA_ARCHITECTURES)

/* The layout of an ELF note. */
typedef struct build_note {
    uint32_t name_bytes, text_bytes, type;
    char name[8]; /* "gtrain" and its end, padded to a multiple of four */
    char text[(sizeof NOTE + 3) & ~(size_t)3];
} build_note;

__attribute__((section(".note.gtrain"), aligned(4), used)) static const build_note note = {
    .name_bytes = sizeof "gtrain", .text_bytes = sizeof NOTE, .type = 1, .name = "gtrain", .text = NOTE};

const char *gt__cuda_architectures(void) { return GTRAIN_CUDA_ARCHITECTURES; }

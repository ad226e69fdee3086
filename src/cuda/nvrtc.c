#include "cuda/nvrtc.h"

#include "cuda/chain_prelude_text.h"
#include "cuda/math_text.h"
#include "cuda/philox_text.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

/* As NVRTC's interface has them. */
typedef void *nvrtc_program;
static struct {
    int (*version)(int *major, int *minor);
    int (*arch_count)(int *count);
    int (*archs)(int *list);
    int (*create)(nvrtc_program *program, const char *source, const char *name, int headers, const char *const *texts,
                  const char *const *names);
    int (*compile)(nvrtc_program program, int options, const char *const *list);
    int (*log_size)(nvrtc_program program, size_t *size);
    int (*log)(nvrtc_program program, char *text);
    int (*cubin_size)(nvrtc_program program, size_t *size);
    int (*cubin)(nvrtc_program program, char *data);
    int (*ptx_size)(nvrtc_program program, size_t *size);
    int (*ptx)(nvrtc_program program, char *data);
    int (*destroy)(nvrtc_program *program);
    const char *(*error)(int code);
    bool usable;
} nvrtc;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static bool find_all(void *library) {
    return find(library, "nvrtcVersion", &nvrtc.version) && find(library, "nvrtcGetNumSupportedArchs", &nvrtc.arch_count) &&
           find(library, "nvrtcGetSupportedArchs", &nvrtc.archs) && find(library, "nvrtcCreateProgram", &nvrtc.create) &&
           find(library, "nvrtcCompileProgram", &nvrtc.compile) && find(library, "nvrtcGetProgramLogSize", &nvrtc.log_size) &&
           find(library, "nvrtcGetProgramLog", &nvrtc.log) && find(library, "nvrtcGetCUBINSize", &nvrtc.cubin_size) &&
           find(library, "nvrtcGetCUBIN", &nvrtc.cubin) && find(library, "nvrtcGetPTXSize", &nvrtc.ptx_size) &&
           find(library, "nvrtcGetPTX", &nvrtc.ptx) && find(library, "nvrtcDestroyProgram", &nvrtc.destroy) &&
           find(library, "nvrtcGetErrorString", &nvrtc.error);
}

/* The runtime's own major version first: a driver need not take a newer one's machine code. */
static void open_library(void) {
    static const char *const libraries[2] = {"libnvrtc.so.13", "libnvrtc.so.12"};
    const int first = CUDART_VERSION < 13000;
    for (int i = 0; i < 2 && !nvrtc.usable; i++) {
        void *library = dlopen(libraries[(first + i) % 2], RTLD_LAZY | RTLD_LOCAL);
        if (!library) continue;
        nvrtc.usable = find_all(library);
        if (!nvrtc.usable) (void)dlclose(library);
    }
}

bool gt__nvrtc_usable(void) {
    (void)pthread_once(&once, open_library);
    return nvrtc.usable;
}

/* The newest architecture that it knows and that is not above `capability`; 0: there is none. */
static int known_architecture(int capability) {
    enum { MOST = 64 };
    int list[MOST], count = 0, best = 0;
    if (nvrtc.arch_count(&count) != 0 || count > MOST || nvrtc.archs(list) != 0) return 0;
    for (int i = 0; i < count; i++)
        if (list[i] <= capability && list[i] > best) best = list[i];
    return best;
}

/* "nvrtcCompileProgram: NVRTC_ERROR_COMPILATION: gtrain_chain.cu(7): error: ..." */
static void say(char *why, size_t size, const char *call, int code, const char *text) {
    (void)snprintf(why, size, "%s: %s%s%.*s", call, nvrtc.error(code), text[0] ? ": " : "", (int)strcspn(text, "\n"), text);
}

static void say_refused(nvrtc_program program, int code, char *why, size_t size) {
    size_t length = 0;
    char *text = nvrtc.log_size(program, &length) == 0 && length > 0 ? gt__malloc(length + 1) : NULL;
    if (text) {
        text[length] = '\0';
        if (nvrtc.log(program, text) != 0) text[0] = '\0';
    }
    say(why, size, "nvrtcCompileProgram", code, text ? text : "");
    gt__free(text);
}

static bool take_image(nvrtc_program program, bool machine_code, gt__nvrtc_image *image, char *why, size_t size) {
    int code = (machine_code ? nvrtc.cubin_size : nvrtc.ptx_size)(program, &image->bytes);
    if (code == 0 && image->bytes > 0) image->data = gt__malloc(image->bytes);
    if (image->data) code = (machine_code ? nvrtc.cubin : nvrtc.ptx)(program, image->data);
    if (code == 0 && image->data) return true;
    say(why, size, machine_code ? "nvrtcGetCUBIN" : "nvrtcGetPTX", code, "");
    gt__free(image->data);
    *image = (gt__nvrtc_image){0};
    return false;
}

bool gt__nvrtc_compile(const char *source, int capability, gt__nvrtc_image *image, char *why, size_t size) {
    /* Integers as in the host's <stdint.h>, which NVRTC does not have. */
    static const char integers[] =
        "typedef signed char int8_t; typedef unsigned char uint8_t; typedef int int32_t; typedef unsigned int uint32_t;\n"
        "typedef long int64_t; typedef unsigned long uint64_t; typedef unsigned long uintptr_t;\n";
    static const char *const header_names[] = {"cuda/chain_prelude.cuh", "cuda/math.cuh", "core/philox.h", "stdint.h"};
    const char *const texts[] = {(const char *)gt__chain_prelude_text, (const char *)gt__math_text, (const char *)gt__philox_text,
                                 integers};
    char architecture[64];
    *image = (gt__nvrtc_image){0};
    const int known = gt__nvrtc_usable() ? known_architecture(capability) : 0;
    if (known == 0) {
        (void)snprintf(why, size,
                       nvrtc.usable ? "NVRTC compiles for no architecture up to %d" : "libnvrtc was not found (GPU of capability %d)",
                       capability);
        return false;
    }
    (void)snprintf(architecture, sizeof architecture, "--gpu-architecture=%s_%d", known == capability ? "sm" : "compute", known);
    const char *const options[] = {architecture, "--std=c++17"};
    nvrtc_program program = NULL;
    int code = nvrtc.create(&program, source, "gtrain_chain.cu", (int)GT__COUNT(texts), texts, header_names);
    if (code != 0) {
        say(why, size, "nvrtcCreateProgram", code, "");
        return false;
    }
    code = nvrtc.compile(program, (int)GT__COUNT(options), options);
    if (code != 0) say_refused(program, code, why, size);
    bool done = code == 0 && take_image(program, known == capability, image, why, size);
    (void)nvrtc.destroy(&program);
    return done;
}

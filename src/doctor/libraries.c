/* The libraries that CUDA training stands on: where the dynamic loader would find each, and of which version it is. A library is opened to be asked, with its
 * names kept to itself, and closed again; one that is in the process already is asked as it is. */
#include "doctor/elf_file.h"
#include "doctor/findings.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Names of those that the module does not name, the newest first. */
static const struct description {
    const char *name, *key, *sonames[2];
} descriptions[GT__LIBRARY_COUNT] = {
    [GT__LIBRARY_DRIVER] = {"NVIDIA driver", "driver", {"libcuda.so.1", NULL}},
    [GT__LIBRARY_RUNTIME] = {"CUDA runtime", "cudart", {"libcudart.so.13", "libcudart.so.12"}},
    [GT__LIBRARY_CUBLASLT] = {"cuBLASLt", "cublasLt", {"libcublasLt.so.13", "libcublasLt.so.12"}},
    [GT__LIBRARY_CUBLAS] = {"cuBLAS", "cublas", {"libcublas.so.13", "libcublas.so.12"}},
    [GT__LIBRARY_CUDNN] = {"cuDNN", "cudnn", {"libcudnn.so.9", NULL}},
    [GT__LIBRARY_NCCL] = {"NCCL", "nccl", {"libnccl.so.2", NULL}},
    [GT__LIBRARY_NVML] = {"NVML", "nvml", {"libnvidia-ml.so.1", NULL}},
    [GT__LIBRARY_ONEDNN] = {"oneDNN", "onednn", {NULL, NULL}},
};

/* --- finding one ------------------------------------------------------------------------------------------------------------------- */

/* `path`: where it was opened; NULL: the loader knows. */
static void found(gt__library *library, void *handle, const char *path) {
    struct link_map *map = NULL;
    library->handle = handle;
    library->state = GT__LIBRARY_FOUND;
    if (path)
        (void)snprintf(library->path, sizeof library->path, "%s", path);
    else if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && map->l_name[0])
        (void)snprintf(library->path, sizeof library->path, "%s", map->l_name);
}

/* What keeps the library at `path` from loading, without the path that the loader puts before it. */
static void broken(gt__library *library, const char *path, const char *why) {
    size_t length = strlen(path);
    library->state = GT__LIBRARY_BROKEN;
    (void)snprintf(library->path, sizeof library->path, "%s", path);
    if (!why) why = "the dynamic loader refuses it";
    if (strncmp(why, path, length) == 0 && strncmp(why + length, ": ", 2) == 0) why += length + 2;
    (void)snprintf(library->why, sizeof library->why, "%s", why);
}

/* True: the search has ended, well or not. A library for another machine does not end it: the dynamic loader goes on too. */
static bool open_in(gt__library *library, const char *folder, int length) {
    char path[GT__DOCTOR_PATH];
    gt__elf_file elf;
    if (length == 0 || snprintf(path, sizeof path, "%.*s/%s", length, folder, library->soname) >= (int)sizeof path) return false;
    if (access(path, F_OK) != 0) return false;
    if (gt__elf_read(path, &elf) && !gt__elf_runs_here(&elf)) return false;
    void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (handle)
        found(library, handle, path);
    else
        broken(library, path, dlerror());
    return true;
}

/* Folders with ':' between; $ORIGIN is the folder `origin`. */
static bool open_in_folders(gt__library *library, const char *folders, const char *origin) {
    for (; folders && *folders; folders += *folders == ':') {
        int length = (int)strcspn(folders, ":"), name = 0;
        if (strncmp(folders, "$ORIGIN", 7) == 0) name = 7;
        if (strncmp(folders, "${ORIGIN}", 9) == 0) name = 9;
        char path[GT__DOCTOR_PATH];
        const char *folder = folders;
        int count = length;
        if (name) {
            count = snprintf(path, sizeof path, "%s%.*s", origin, length - name, folders + name);
            if (count >= (int)sizeof path) count = 0;
            folder = path;
        }
        if (open_in(library, folder, count)) return true;
        folders += length;
    }
    return false;
}

/* Where packages and wheels put libraries, and the loader may not look. */
static bool find_elsewhere(const gt_doctor_report *report, gt__library *library) {
    static const char *const places[] = {
        "/usr/local/cuda/lib64",
        "/usr/local/cuda/targets/*/lib",
        "/usr/local/cuda-*/lib64",
        "/opt/cuda/lib64",
        "/usr/lib/*-linux-gnu",
        "/usr/lib64",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
        "/usr/lib/python3*/*-packages/nvidia/*/lib",
    };
    static const char *const below[][2] = {
        {"CUDA_HOME", "/lib64"},
        {"CUDA_PATH", "/lib64"},
        {"VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/*/lib"},
        {"CONDA_PREFIX", "/lib"},
        {"CONDA_PREFIX", "/lib/python3*/site-packages/nvidia/*/lib"},
        {"HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib"},
    };
    for (size_t i = 0; i < GT__COUNT(places) + GT__COUNT(below); i++) {
        char place[GT__DOCTOR_PATH], pattern[GT__DOCTOR_PATH];
        size_t k = i - GT__COUNT(places);
        if (i < GT__COUNT(places)) {
            if (snprintf(place, sizeof place, "%s/%s", places[i], library->soname) >= (int)sizeof place) continue;
        } else {
            const char *folder = gt__doctor_setting(below[k][0]);
            if (!folder || folder[0] != '/') continue;
            if (snprintf(place, sizeof place, "%s%s/%s", folder, below[k][1], library->soname) >= (int)sizeof place) continue;
        }
        glob_t matches = {0};
        bool have = glob(gt__doctor_path(report, place, pattern, sizeof pattern), GLOB_NOSORT, NULL, &matches) == 0;
        bool fits = false;
        for (size_t m = 0; have && m < matches.gl_pathc && !fits; m++) {
            gt__elf_file elf;
            fits = gt__elf_read(matches.gl_pathv[m], &elf) && gt__elf_runs_here(&elf);
            if (fits) (void)snprintf(library->path, sizeof library->path, "%s", matches.gl_pathv[m]);
        }
        globfree(&matches);
        if (fits) return true;
    }
    return false;
}

/* In the loader's order: what is loaded, LD_LIBRARY_PATH, the folders that whoever needs it names (NULL: none; $ORIGIN is its own), the system's. */
static void look_for(gt_doctor_report *report, gt__library *library, const char *runpath, const char *user) {
    char origin[GT__DOCTOR_PATH];
    (void)snprintf(origin, sizeof origin, "%s", user);
    char *slash = strrchr(origin, '/');
    (void)strcpy(slash ? slash : origin, slash ? "" : ".");
    if (report->options.library_path) {
        if (open_in_folders(library, report->options.library_path, origin)) return;
    } else {
        void *handle = dlopen(library->soname, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
        library->loaded = handle != NULL;
        if (handle) {
            found(library, handle, NULL);
            return;
        }
        if (open_in_folders(library, gt__doctor_setting("LD_LIBRARY_PATH"), origin)) return;
        if (open_in_folders(library, runpath, origin)) return;
        handle = dlopen(library->soname, RTLD_LAZY | RTLD_LOCAL);
        if (handle) {
            found(library, handle, NULL);
            return;
        }
        const char *why = dlerror();
        /* "libx.so: cannot open shared object file": it is not there. Anything else is told of a file that is. */
        if (why && !(strncmp(why, library->soname, strlen(library->soname)) == 0 && strstr(why, "cannot open shared object file"))) {
            broken(library, library->soname, why);
            return;
        }
    }
    library->state = find_elsewhere(report, library) ? GT__LIBRARY_ELSEWHERE : GT__LIBRARY_MISSING;
}

/* --- asking one -------------------------------------------------------------------------------------------------------------------- */

static gt__version packed_cuda(int value) { return (gt__version){value / 1000, value % 1000 / 10, -1}; }

/* 91400 is 9.14.0; before cuDNN 9 and NCCL 2.9, 8907 was 8.9.7. */
static gt__version packed(size_t value) {
    size_t unit = value >= 10000 ? 10000 : 1000;
    return (gt__version){(int32_t)(value / unit), (int32_t)(value % unit / 100), (int32_t)(value % 100)};
}

typedef int (*integer_fn)(int *value);
typedef size_t (*size_fn)(void);
typedef int (*property_fn)(int kind, int *value);
typedef const int *(*onednn_fn)(void); /* a struct that begins with major, minor, patch */

static void ask_integer(gt__library *library, const char *function, bool cuda) {
    int value = 0;
    integer_fn ask = GT__DOCTOR_FIND(library, function, integer_fn);
    if (ask && ask(&value) == 0 && value > 0) library->found = cuda ? packed_cuda(value) : packed((size_t)value);
}

static void ask_size(gt__library *library, const char *function) {
    size_fn ask = GT__DOCTOR_FIND(library, function, size_fn);
    if (ask) library->found = packed(ask());
}

static void ask_cublas(gt__library *library) {
    gt__version version = {0, 0, 0};
    property_fn ask = GT__DOCTOR_FIND(library, "cublasGetProperty", property_fn);
    if (ask && ask(0, &version.major) == 0 && ask(1, &version.minor) == 0 && ask(2, &version.patch) == 0) library->found = version;
}

/* Is a part of cuDNN beside the library at `path`, or on the library path? */
static bool part_exists(const gt_doctor_report *report, const char *library_path, const char *stem, const char *version) {
    char path[GT__DOCTOR_PATH];
    const char *slash = strrchr(library_path, '/');
    if (!slash) return true; /* who knows */
    if (snprintf(path, sizeof path, "%.*s/%s%s", (int)(slash - library_path), library_path, stem, version) >= (int)sizeof path) return true;
    if (access(path, F_OK) == 0) return true;
    const char *folders = report->options.library_path ? report->options.library_path : gt__doctor_setting("LD_LIBRARY_PATH");
    for (; folders && *folders; folders += *folders == ':') {
        int length = (int)strcspn(folders, ":");
        if (snprintf(path, sizeof path, "%.*s/%s%s", length, folders, stem, version) < (int)sizeof path && access(path, F_OK) == 0)
            return true;
        folders += length;
    }
    return false;
}

static void part_missing(gt__library *library, const char *stem, const char *version, const char *why) {
    library->state = GT__LIBRARY_BROKEN;
    (void)snprintf(library->why, sizeof library->why, "its part %s%.32s was not found, %s", stem, version, why);
}

/* The version in the name of the file, where the name is a link to "libcudnn.so.9.14.0"; else the soname's major one alone. */
static gt__version version_of_name(const gt__library *library) {
    gt__version version = {0, -1, -1};
    char *file = realpath(library->path, NULL); /* allocated: a path has no largest size */
    const char *numbers = file ? strstr(file, ".so.") : NULL;
    if (!numbers || sscanf(numbers, ".so.%d.%d.%d", &version.major, &version.minor, &version.patch) < 1)
        if (sscanf(strstr(library->soname, ".so"), ".so.%d", &version.major) != 1) version.major = 0;
    free(file);
    return version;
}

/* libcudnn.so.9 hands each call to one of its parts, which it opens on first use; where it cannot, it ends the process. So it is never called: the part is
 * asked. That one cannot be unloaded, and would be found in place of their own by others that bring a cuDNN: it is opened in a process of ours alone. */
static void ask_cudnn(gt_doctor_report *report) {
    static const char stem[] = "libcudnn_graph", heuristic[] = "libcudnn_heuristic";
    static const char precompiled[] = "libcudnn_engines_precompiled", compiled_here[] = "libcudnn_engines_runtime_compiled";
    gt__library *library = &report->libraries[GT__LIBRARY_CUDNN];
    const char *version = strstr(library->soname, ".so");
    gt__library graph = {.name = library->name};
    if (library->state != GT__LIBRARY_FOUND || !version) return;
    (void)snprintf(graph.soname, sizeof graph.soname, "%s%.32s", stem, version);
    void *loaded = report->options.library_path ? NULL : dlopen(graph.soname, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (loaded) (void)dlclose(loaded);
    if (loaded || report->options.own_process) {
        look_for(report, &graph, "$ORIGIN", library->path);
        library->part = graph.handle;
        ask_size(&graph, "cudnnGetVersion");
        library->found = graph.found;
    } else {
        library->found = version_of_name(library);
    }
    const char *beside = graph.state == GT__LIBRARY_FOUND ? graph.path : library->path;
    bool asked = loaded || report->options.own_process;
    bool engines = part_exists(report, beside, precompiled, version) || part_exists(report, beside, compiled_here, version);
    if (graph.state == GT__LIBRARY_BROKEN) {
        library->state = GT__LIBRARY_BROKEN;
        (void)snprintf(library->why, sizeof library->why, "its part %s does not load: %.200s", graph.soname, graph.why);
    } else if (asked ? graph.state != GT__LIBRARY_FOUND : !part_exists(report, beside, stem, version)) {
        part_missing(library, stem, version, "without which it ends the process that calls it");
    } else if (!part_exists(report, beside, heuristic, version) || !engines) {
        part_missing(library, engines ? heuristic : precompiled, version, "with which it computes");
    }
}

/* What cannot tell its version is no library of that name. */
static void must_tell(gt__library *library, const char *function) {
    if (library->state != GT__LIBRARY_FOUND || library->found.major) return;
    library->state = GT__LIBRARY_BROKEN;
    (void)snprintf(library->why, sizeof library->why, "%s does not tell its version", function);
}

/* oneDNN is linked, so that it is looked up from this library on. */
static void ask_onednn(gt_doctor_report *report) {
    gt__library *library = &report->libraries[GT__LIBRARY_ONEDNN];
    char own[GT__DOCTOR_PATH];
    Dl_info info;
    (void)gt__doctor_own_path(own, sizeof own);
#ifdef GTRAIN_HAVE_ONEDNN
    library->state = GT__LIBRARY_FOUND; /* though its version may be out of sight, where it was linked in with its names hidden */
#endif
    void *handle = own[0] ? dlopen(own, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD) : NULL;
    if (!handle) handle = dlopen(NULL, RTLD_LAZY | RTLD_LOCAL); /* linked into the program */
    if (!handle) return;
    void *symbol = dlsym(handle, "dnnl_version");
    onednn_fn version = (onednn_fn)(uintptr_t)symbol;
    report->machine.openmp = dlsym(handle, "GOMP_parallel") != NULL;
    if (version) {
        const int *numbers = version();
        library->found = (gt__version){numbers[0], numbers[1], numbers[2]};
        library->state = GT__LIBRARY_FOUND;
        library->loaded = true;
        if (dladdr(symbol, &info) && info.dli_fname) (void)snprintf(library->path, sizeof library->path, "%s", info.dli_fname);
    }
    (void)dlclose(handle);
}

/* What was built for, and the oldest that will do: the same major version, of cuDNN what the build says. */
static void set_built(gt__library *library, gt__version built, gt__version least) {
    library->built = built;
    library->least = built.major ? least : (gt__version){0, 0, -1};
}

void gt__doctor_libraries(gt_doctor_report *report) {
    const gt__found_module *module = &report->module;
    gt__library *list = report->libraries;
    set_built(&list[GT__LIBRARY_DRIVER], module->cuda, (gt__version){module->cuda.major, 0, -1});
    set_built(&list[GT__LIBRARY_RUNTIME], module->cuda, (gt__version){module->cuda.major, 0, -1});
    set_built(&list[GT__LIBRARY_CUBLASLT], module->cublas, (gt__version){module->cublas.major, 0, -1});
    set_built(&list[GT__LIBRARY_CUBLAS], module->cublas, (gt__version){module->cublas.major, 0, -1});
    set_built(&list[GT__LIBRARY_CUDNN], module->cudnn, module->cudnn_least);
    for (int i = 0; i < GT__LIBRARY_COUNT; i++) {
        list[i].name = descriptions[i].name;
        list[i].key = descriptions[i].key;
        for (int k = 0; k < 2 && i != GT__LIBRARY_ONEDNN; k++) {
            bool named = list[i].soname[0] != '\0' && k == 0;
            if (!named && (list[i].needed || !descriptions[i].sonames[k])) break;
            if (!named) (void)snprintf(list[i].soname, sizeof list[i].soname, "%s", descriptions[i].sonames[k]);
            look_for(report, &list[i], list[i].needed ? report->module.runpath : NULL, report->module.path);
            if (list[i].state != GT__LIBRARY_MISSING) break;
        }
    }
    ask_integer(&list[GT__LIBRARY_DRIVER], "cuDriverGetVersion", true);
    ask_integer(&list[GT__LIBRARY_RUNTIME], "cudaRuntimeGetVersion", true);
    ask_size(&list[GT__LIBRARY_CUBLASLT], "cublasLtGetVersion");
    ask_cublas(&list[GT__LIBRARY_CUBLAS]);
    ask_cudnn(report);
    ask_integer(&list[GT__LIBRARY_NCCL], "ncclGetVersion", false);
    must_tell(&list[GT__LIBRARY_RUNTIME], "cudaRuntimeGetVersion");
    must_tell(&list[GT__LIBRARY_CUBLASLT], "cublasLtGetVersion");
    must_tell(&list[GT__LIBRARY_CUBLAS], "cublasGetProperty");
    must_tell(&list[GT__LIBRARY_CUDNN], "cudnnGetVersion");
    ask_onednn(report);
}

void gt__doctor_libraries_close(gt_doctor_report *report) {
    for (int i = GT__LIBRARY_COUNT; i-- > 0;) {
        if (report->libraries[i].part) (void)dlclose(report->libraries[i].part);
        if (report->libraries[i].handle) (void)dlclose(report->libraries[i].handle);
        report->libraries[i].part = report->libraries[i].handle = NULL;
    }
}

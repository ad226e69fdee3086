/* The CUDA module and the libraries that it needs. */
#include "doctor/faults.h"

#include "backend/backend.h"

#include <stdio.h>

/* --- the module ---------------------------------------------------------------------------------------------------------------------- */

void gt__faults_of_module(gt_doctor_report *report, gt__fault_draft *draft) {
    const gt__found_module *module = &report->module;
    if (!module->path[0]) {
        gt__fault_what(draft, "This gtrain was built without CUDA: there is no libgtrain_cuda.so beside it or on the library path.");
        gt__fault_remedy(draft, "For training on a GPU, build and install gtrain with CUDA.");
        gt__fault_command(draft, "cmake -B build -DGTRAIN_CUDA=ON && cmake --build build && sudo cmake --install build");
        gt__fault_add(report, GT_DOCTOR_BUILT_WITHOUT_CUDA, GT_DOCTOR_ERROR, draft);
        return;
    }
    bool other = module->is_file && !module->why[0] && (!module->note || module->abi != GT__BACKEND_ABI);
    if (!module->why[0] && !other) return;
    if (other)
        gt__fault_what(draft, "%s does not belong to this libgtrain (version %s).", module->path, gt_version_string());
    else
        gt__fault_what(draft, "The CUDA backend %s cannot be used: %s.", module->path, module->why);
    if (module->chosen && !report->options.module) {
        gt__fault_remedy(draft, "It was named by GTRAIN_CUDA_MODULE: take that setting away, or name the module of this build.");
        gt__fault_command(draft, "unset GTRAIN_CUDA_MODULE");
    } else {
        gt__fault_remedy(draft, "Install libgtrain.so and libgtrain_cuda.so from one build.");
        gt__fault_command(draft, "cmake --build build && sudo cmake --install build");
    }
    gt__fault_add(report, GT_DOCTOR_MODULE_BROKEN, GT_DOCTOR_ERROR, draft);
}

/* --- its libraries ------------------------------------------------------------------------------------------------------------------- */

/* Adds text to a draft's command or the like, as far as it fits. */
static void append(char *text, size_t size, const char *more) {
    size_t used = strlen(text);
    (void)snprintf(text + used, size - used, "%s", more);
}

/* The packages that hold the libraries of a state, in the words of this distribution's tool; pip's where there is none. */
static void install_command(const gt_doctor_report *report, const bool *wanted, gt__fault_draft *draft) {
    const char *name = report->machine.distribution;
    bool apt = strcmp(name, "ubuntu") == 0 || strcmp(name, "debian") == 0;
    bool dnf = strcmp(name, "fedora") == 0 || strcmp(name, "rhel") == 0 || strcmp(name, "rocky") == 0 || strcmp(name, "almalinux") == 0;
    gt__version cuda = report->module.cuda;
    if (cuda.major == 0) cuda = (gt__version){13, 0, -1};
    char packages[3][64];
    if (apt || dnf) {
        (void)snprintf(packages[0], sizeof packages[0], " cuda-cudart-%d-%d", cuda.major, cuda.minor);
        (void)snprintf(packages[1], sizeof packages[1], " libcublas-%d-%d", cuda.major, cuda.minor);
        (void)snprintf(packages[2], sizeof packages[2], apt ? " cudnn9-cuda-%d" : " libcudnn9-cuda-%d", cuda.major);
    } else { /* the wheels of CUDA 13 dropped the suffix, but for cuDNN's */
        const char *suffix = cuda.major >= 13 ? "" : "-cu12";
        (void)snprintf(packages[0], sizeof packages[0], " nvidia-cuda-runtime%s", suffix);
        (void)snprintf(packages[1], sizeof packages[1], " nvidia-cublas%s", suffix);
        (void)snprintf(packages[2], sizeof packages[2], " nvidia-cudnn-cu%d", cuda.major);
    }
    gt__fault_command(draft, "%s", apt ? "sudo apt-get install" : dnf ? "sudo dnf install" : "pip install");
    if (wanted[GT__LIBRARY_RUNTIME]) append(draft->command, sizeof draft->command, packages[0]);
    if (wanted[GT__LIBRARY_CUBLASLT] || wanted[GT__LIBRARY_CUBLAS]) append(draft->command, sizeof draft->command, packages[1]);
    if (wanted[GT__LIBRARY_CUDNN]) append(draft->command, sizeof draft->command, packages[2]);
}

/* Marks the needed libraries of a state and writes "a, b and c"; returns how many there are. */
static int select_state(const gt_doctor_report *report, gt__library_state state, bool *wanted, char *names, size_t size) {
    int count = 0, listed = 0;
    for (int i = 0; i < GT__LIBRARY_COUNT; i++) {
        wanted[i] = report->libraries[i].needed && report->libraries[i].state == state;
        count += wanted[i];
    }
    names[0] = '\0';
    for (int i = 0; i < GT__LIBRARY_COUNT; i++) {
        if (!wanted[i]) continue;
        append(names, size, listed == 0 ? "" : listed + 1 == count ? " and " : ", ");
        append(names, size, report->libraries[i].soname);
        listed++;
    }
    return count;
}

static void missing(gt_doctor_report *report, gt__fault_draft *draft) {
    bool wanted[GT__LIBRARY_COUNT];
    char names[512];
    int count = select_state(report, GT__LIBRARY_MISSING, wanted, names, sizeof names);
    if (count == 0) return;
    gt__fault_what(draft, "%s, which the CUDA backend needs, %s not found.", names, count == 1 ? "was" : "were");
    install_command(report, wanted, draft);
    gt__fault_remedy(draft, strncmp(draft->command, "pip", 3) == 0
                                ? "Install it, and add its folder to LD_LIBRARY_PATH if it is not found then."
                                : "Install it from NVIDIA's package repository for CUDA.");
    gt__fault_add(report, GT_DOCTOR_LIBRARY_MISSING, GT_DOCTOR_ERROR, draft);
}

static void elsewhere(gt_doctor_report *report, gt__fault_draft *draft) {
    bool wanted[GT__LIBRARY_COUNT];
    char names[512];
    int count = select_state(report, GT__LIBRARY_ELSEWHERE, wanted, names, sizeof names);
    if (count == 0) return;
    gt__fault_what(draft, "%s %s installed, but in a folder that is not on the library path.", names, count == 1 ? "is" : "are");
    gt__fault_remedy(draft, "Add the folder to the library path (or to /etc/ld.so.conf.d, followed by ldconfig).");
    gt__fault_command(draft, "export LD_LIBRARY_PATH=\"");
    for (int i = 0; i < GT__LIBRARY_COUNT; i++) {
        if (!wanted[i]) continue;
        char folder[GT__DOCTOR_PATH];
        (void)snprintf(folder, sizeof folder, "%s", report->libraries[i].path);
        char *slash = strrchr(folder, '/');
        if (slash) (void)strcpy(slash, ":");
        if (strstr(draft->command, folder)) continue; /* once is enough */
        append(draft->command, sizeof draft->command, folder);
    }
    append(draft->command, sizeof draft->command, "$LD_LIBRARY_PATH\"");
    gt__fault_add(report, GT_DOCTOR_LIBRARY_PATH, GT_DOCTOR_ERROR, draft);
}

/* cuBLASLt and cuBLAS are one product in two files. */
static bool mixed(gt_doctor_report *report, gt__fault_draft *draft) {
    const gt__library *light = &report->libraries[GT__LIBRARY_CUBLASLT], *full = &report->libraries[GT__LIBRARY_CUBLAS];
    char a[32], b[32];
    if (light->state != GT__LIBRARY_FOUND || !light->needed || !full->needed) return false;
    bool refused = full->state == GT__LIBRARY_BROKEN && strstr(full->why, "cublasLt") && strstr(full->why, "undefined symbol");
    bool different = full->state == GT__LIBRARY_FOUND && gt__version_compare(light->found, full->found) != 0;
    if (!refused && !different) return false;
    gt__fault_what(draft, "cuBLAS%s%s (%s) and cuBLASLt %s (%s) are of different versions.", refused ? "" : " ",
                   refused ? "" : gt__version_text(full->found, a, sizeof a), full->path, gt__version_text(light->found, b, sizeof b),
                   light->path);
    gt__fault_remedy(draft, "Both come with one package: put its folder first on the library path%s.",
                     light->loaded || full->loaded ? ", or import gtrain before what has loaded the other" : "");
    gt__fault_command(draft, "export LD_LIBRARY_PATH=\"%.*s:$LD_LIBRARY_PATH\"",
                      (int)(strrchr(full->path, '/') ? strrchr(full->path, '/') - full->path : 0), full->path);
    gt__fault_add(report, GT_DOCTOR_LIBRARY_MIXED, refused ? GT_DOCTOR_ERROR : GT_DOCTOR_WARNING, draft);
    return refused;
}

void gt__faults_of_libraries(gt_doctor_report *report, gt__fault_draft *draft) {
    if (!report->module.path[0]) return;
    missing(report, draft);
    elsewhere(report, draft);
    bool told = mixed(report, draft);
    for (int i = 0; i < GT__LIBRARY_COUNT; i++) {
        const gt__library *library = &report->libraries[i];
        bool only[GT__LIBRARY_COUNT] = {false};
        char a[32], b[32];
        if (!library->needed) continue;
        only[i] = true;
        if (library->state == GT__LIBRARY_BROKEN && !(told && i == GT__LIBRARY_CUBLAS)) {
            gt__fault_what(draft, "%s cannot be loaded: %s (%s).", library->name, library->why, library->path);
            gt__fault_remedy(draft, "The file is damaged, or something that it needs is missing: install it anew.");
            install_command(report, only, draft);
            gt__fault_add(report, GT_DOCTOR_LIBRARY_BROKEN, GT_DOCTOR_ERROR, draft);
        } else if (library->state == GT__LIBRARY_FOUND && library->least.major && gt__version_compare(library->found, library->least) < 0) {
            gt__fault_what(draft, "%s %s is too old: gtrain's CUDA backend needs %s or newer (%s).", library->name,
                           gt__version_text(library->found, a, sizeof a), gt__version_text(library->least, b, sizeof b), library->path);
            gt__fault_remedy(draft, library->loaded
                                        ? "It was loaded by something else in this process: update that, or load gtrain first."
                                        : "Install a newer one; if there is one already, its folder must come first in LD_LIBRARY_PATH.");
            install_command(report, only, draft);
            gt__fault_add(report, GT_DOCTOR_LIBRARY_TOO_OLD, GT_DOCTOR_ERROR, draft);
        }
    }
}

#include "machine.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void forget_settings(void) {
    static const char *const names[] = {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "KUBERNETES_SERVICE_HOST",
        "SINGULARITY_CONTAINER",
        "APPTAINER_CONTAINER",
        "GTRAIN_CUDA_MODULE",
        "OMP_THREAD_LIMIT",
        "OMP_PROC_BIND",
        "OMP_DYNAMIC",
        "OMP_WAIT_POLICY",
        "GOMP_CPU_AFFINITY",
        "STUB_DRIVER",
        "STUB_INIT",
        "STUB_STARTED",
        "STUB_GPUS",
        "STUB_NVML",
        "STUB_FREE_MIB",
        "STUB_FREE_MIB_0",
        "STUB_CAPABILITY",
        "STUB_MODE",
        "STUB_ECC_ERRORS",
        "STUB_REMAP",
        "STUB_THROTTLE",
        "STUB_LOST",
        "STUB_USERS",
        "STUB_RUNTIME",
        "STUB_CUBLASLT",
        "STUB_CUBLAS",
        "STUB_CUDNN",
        "CUDA_HOME",
        "CUDA_PATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "HOME",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) (void)unsetenv(names[i]);
}

static void join(char *out, const char *folder, const char *path) {
    if (snprintf(out, MACHINE_PATH, "%s/%s", folder, path + (path[0] == '/')) >= MACHINE_PATH) FAIL("too long: %s/%s", folder, path);
}

static void make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0755) != 0 && errno != EEXIST) FAIL("mkdir %s: %s", path, strerror(errno));
        *slash = '/';
    }
}

void machine_write(machine *m, const char *path, const char *text) {
    char full[MACHINE_PATH];
    join(full, m->root, path);
    make_folders(full);
    FILE *file = fopen(full, "w");
    if (!file) FAIL("%s: %s", full, strerror(errno));
    if (fputs(text, file) < 0 || fclose(file) != 0) FAIL("%s could not be written", full);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

void machine_remove(machine *m, const char *path) {
    char full[MACHINE_PATH];
    join(full, m->root, path);
    CHECK(nftw(full, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

void machine_remove_library(machine *m, const char *name) {
    char full[MACHINE_PATH];
    join(full, m->libraries, name);
    CHECK(unlink(full) == 0);
}

void machine_remove_gpu(machine *m) {
    machine_remove(m, "/dev");
    machine_remove(m, "/proc/driver");
    machine_remove(m, "/sys/bus/pci/devices/0000:19:00.0");
    machine_remove_library(m, "libcuda.so.1");
    machine_remove_library(m, "libnvidia-ml.so.1");
}

void machine_make(test_case *t, machine *m) {
    static const char *const libraries[] = {"libcuda.so.1",        "libnvidia-ml.so.1",       "libcudart.so.13",
                                            "libcublasLt.so.13",   "libcublas.so.13",         "libcudnn.so.9",
                                            "libcudnn_graph.so.9", "libcudnn_heuristic.so.9", "libcudnn_engines_precompiled.so.9"};
    memset(m, 0, sizeof *m);
    forget_settings();
    (void)snprintf(m->root, sizeof m->root, "%s", test_temp_path(t, "root"));
    (void)snprintf(m->libraries, sizeof m->libraries, "%s", test_temp_path(t, "libraries"));
    (void)snprintf(m->module, sizeof m->module, "%s/libgtrain_cuda.so", STUBS);
    CHECK(mkdir(m->libraries, 0755) == 0);
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++) {
        char from[MACHINE_PATH], to[MACHINE_PATH];
        join(from, STUBS, libraries[i]);
        join(to, m->libraries, libraries[i]);
        CHECK(symlink(from, to) == 0);
    }
    machine_write(m, "/dev/nvidiactl", "");
    machine_write(m, "/dev/nvidia-uvm", "");
    machine_write(m, "/dev/nvidia0", "");
    machine_write(m, "/dev/nvidia-caps", "");
    machine_write(m, "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n");
    machine_write(m, "/proc/cpuinfo", "processor : 0\nmodel name : A CPU\nflags : fpu sse2 avx avx2 fma f16c avx512f\n");
    machine_write(m, "/sys/bus/pci/devices/0000:19:00.0/vendor", "0x10de\n");
    machine_write(m, "/sys/bus/pci/devices/0000:19:00.0/class", "0x030200\n");
    machine_write(m, "/sys/bus/pci/devices/0000:01:00.0/vendor", "0x8086\n");
    machine_write(m, "/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
    machine_write(m, "/etc/os-release", "NAME=\"Ubuntu\"\nID=ubuntu\n");
    CHECK_OK(gt_doctor_options_init(&m->options, sizeof m->options));
    m->options.own_process = 1;
    m->options.root = m->root;
    m->options.library_path = m->libraries;
    m->options.module = m->module;
}

void machine_examine(machine *m, gt_doctor_verdict expected) {
    static const char *const names[] = {"READY", "CPU ONLY", "BROKEN"};
    machine_free(m);
    CHECK_OK(gt_doctor(&m->options, &m->report));
    if (gt_doctor_report_verdict(m->report) != expected) FAIL("not %s:\n%s", names[expected], gt_doctor_report_text(m->report));
    /* The text says the same, first of all. */
    CHECK(strncmp(gt_doctor_report_text(m->report), names[expected], strlen(names[expected])) == 0);
}

static const gt_doctor_fault *find(const machine *m, gt_doctor_fault_kind kind) {
    for (int32_t i = 0; i < gt_doctor_report_faults(m->report); i++)
        if (gt_doctor_report_fault(m->report, i)->kind == kind) return gt_doctor_report_fault(m->report, i);
    return NULL;
}

void machine_expect(machine *m, gt_doctor_fault_kind kind, gt_doctor_severity severity, const char *what, const char *command) {
    const gt_doctor_fault *fault = find(m, kind);
    if (!fault) FAIL("no %s in:\n%s", gt_doctor_fault_name(kind), gt_doctor_report_text(m->report));
    if (fault->severity != severity) FAIL("%s is of severity %d", gt_doctor_fault_name(kind), fault->severity);
    if (what && !strstr(fault->what, what)) FAIL("\"%s\" is not in: %s", what, fault->what);
    if (command && !strstr(fault->command, command)) FAIL("\"%s\" is not in: %s", command, fault->command);
    CHECK(fault->remedy[0] != '\0');
}

void machine_expect_not(machine *m, gt_doctor_fault_kind kind) {
    if (find(m, kind)) FAIL("%s is told:\n%s", gt_doctor_fault_name(kind), gt_doctor_report_text(m->report));
}

void machine_check_width(const char *text) {
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        const char *first = line + strspn(line, " ");
        size_t words = length - (size_t)(first - line);
        int command = strncmp(first, "$ ", 2) == 0;
        int one_word = strcspn(first, " \n") >= words;
        if (length > 80 && !command && !one_word) FAIL("%zu columns: %.*s", length, (int)length, line);
        line += length + (line[length] == '\n');
    }
}

void machine_free(machine *m) {
    gt_doctor_report_destroy(m->report);
    m->report = NULL;
}

/* Faults of the driver, its device nodes and the container. */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(unit, doctor_finds_a_machine_that_is_ready) {
    machine m;
    machine_make(t, &m);
    machine_examine(&m, GT_DOCTOR_READY);
    for (int32_t i = 0; i < gt_doctor_report_faults(m.report); i++)
        CHECK(gt_doctor_report_fault(m.report, i)->severity == GT_DOCTOR_NOTE ||
              gt_doctor_report_fault(m.report, i)->kind >= GT_DOCTOR_CPU_SLOW);
    const char *text = gt_doctor_report_text(m.report);
    CHECK(strstr(text, "READY: Stub GPU (cuda:0), 70.0 of 80.0 GiB free\n") == text);
    CHECK(strstr(text, "580.65.06, CUDA up to 13.0"));
    CHECK(strstr(text, "cuDNN 9.14.0, built for 9.14.0"));
    CHECK(strstr(text, "cuBLASLt 13.1.0, built for 13.1.0"));
    CHECK(strstr(text, "CUDA runtime 13.0, built for 13.0"));
    CHECK(strstr(text, "built for 80-real 90-real 100"));
    machine_free(&m);
}

TEST(unit, doctor_missing_driver) {
    machine m;
    machine_make(t, &m);
    machine_remove_library(&m, "libcuda.so.1");
    machine_remove_library(&m, "libnvidia-ml.so.1");
    machine_remove(&m, "/dev");
    machine_remove(&m, "/proc/driver");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_NO_DRIVER, GT_DOCTOR_ERROR, "libcuda.so.1 was not found", "sudo ubuntu-drivers install");
    CHECK_EQ_INT(gt_doctor_report_fault(m.report, 0)->kind, GT_DOCTOR_NO_DRIVER);
    CHECK(strstr(gt_doctor_report_fault(m.report, 0)->remedy, "580 or newer"));
    machine_write(&m, "/etc/os-release", "ID=\"debian\"\n");
    machine_write(&m, "/sys/module/nouveau/version", "");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_NO_DRIVER, GT_DOCTOR_ERROR, NULL, "apt-get install nvidia-driver");
    CHECK(strstr(gt_doctor_report_fault(m.report, 0)->remedy, "nouveau"));
    machine_free(&m);
}

TEST(unit, doctor_driver_off_the_library_path) {
    machine m;
    char from[MACHINE_PATH], to[2 * MACHINE_PATH];
    machine_make(t, &m);
    machine_remove_library(&m, "libcuda.so.1");
    machine_write(&m, "/usr/lib/wsl/lib/other", "");
    (void)snprintf(from, sizeof from, "%s/libcuda.so.1", STUBS);
    (void)snprintf(to, sizeof to, "%s/usr/lib/wsl/lib/libcuda.so.1", m.root);
    CHECK(symlink(from, to) == 0);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_PATH, GT_DOCTOR_ERROR, "/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/wsl/lib:$LD_LIBRARY_PATH\"");
    machine_free(&m);
}

TEST(unit, doctor_driver_older_than_the_runtime) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_DRIVER", "12040", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DRIVER_TOO_OLD, GT_DOCTOR_ERROR,
                   "580.65.06 is too old: it supports CUDA up to 12.4, the CUDA runtime is 13.0", "ubuntu-drivers");
    /* A newer one, and an older minor version of the same major one, are fine. */
    (void)setenv("STUB_DRIVER", "14010", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    (void)setenv("STUB_DRIVER", "13000", 1);
    (void)setenv("STUB_RUNTIME", "13020", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    machine_free(&m);
}

TEST(unit, doctor_driver_whose_parts_differ) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_NVML", "18", 1);
    (void)setenv("STUB_INIT", "803", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DRIVER_MISMATCH, GT_DOCTOR_ERROR, "which is 580.65.06", "sudo reboot");
    m.options.own_process = 0; /* NVML's word is enough */
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DRIVER_MISMATCH, GT_DOCTOR_ERROR, NULL, NULL);
    machine_free(&m);
}

TEST(unit, doctor_kernel_module_not_loaded) {
    machine m;
    machine_make(t, &m);
    machine_remove(&m, "/dev");
    machine_remove(&m, "/proc/driver");
    (void)setenv("STUB_NVML", "9", 1);
    (void)setenv("STUB_INIT", "100", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DRIVER_NOT_LOADED, GT_DOCTOR_ERROR, NULL, "sudo modprobe nvidia");
    machine_expect_not(&m, GT_DOCTOR_DRIVER_FAILED); /* the effect of it */
    machine_write(&m, "/sys/module/nouveau/version", "");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DRIVER_NOT_LOADED, GT_DOCTOR_ERROR, "nouveau", "blacklist nouveau");
    machine_free(&m);
}

TEST(unit, doctor_stub_of_the_toolkit) {
    machine m;
    char to[2 * MACHINE_PATH], from[MACHINE_PATH], path[4 * MACHINE_PATH];
    machine_make(t, &m);
    (void)snprintf(to, sizeof to, "%s/stubs", m.libraries);
    CHECK(mkdir(to, 0755) == 0);
    (void)snprintf(path, sizeof path, "%s:%s", to, m.libraries);
    (void)strcat(to, "/libcuda.so.1");
    (void)snprintf(from, sizeof from, "%s/libcuda.so.1", STUBS);
    CHECK(symlink(from, to) == 0);
    m.options.library_path = path;
    m.options.own_process = 0;
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DRIVER_STUB, GT_DOCTOR_ERROR, "/stubs/libcuda.so.1", "LD_LIBRARY_PATH");
    m.options.own_process = 1; /* and one that says so itself */
    m.options.library_path = m.libraries;
    (void)setenv("STUB_INIT", "34", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DRIVER_STUB, GT_DOCTOR_ERROR, "/libraries/libcuda.so.1", NULL);
    machine_free(&m);
}

TEST(unit, doctor_driver_that_does_not_start) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_INIT", "999", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DRIVER_FAILED, GT_DOCTOR_ERROR, "cuInit: 999", "modprobe nvidia_uvm");
    (void)setenv("STUB_INIT", "802", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DRIVER_FAILED, GT_DOCTOR_ERROR, "fabric manager", "systemctl enable --now nvidia-fabricmanager");
    (void)setenv("STUB_INIT", "0", 1);
    (void)setenv("STUB_NVML", "17", 1);
    m.options.own_process = 0;
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DRIVER_FAILED, GT_DOCTOR_ERROR, "nvmlInit: 17", "dmesg");
    machine_free(&m);
}

TEST(unit, doctor_driver_that_finds_no_gpu) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_GPUS", "0", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_NO_GPU, GT_DOCTOR_ERROR, "finds no GPU", "dmesg");
    machine_free(&m);
}

/* Root may open everything. */
static int as_nobody(machine *m, const char *node, int mode, int group) {
    char path[2 * MACHINE_PATH];
    (void)snprintf(path, sizeof path, "%s%s", m->root, node);
    CHECK(chmod(path, (mode_t)mode) == 0);
    if (group) CHECK(chown(path, (uid_t)-1, (gid_t)group) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        gt_doctor_report *report = NULL;
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(9);
        if (gt_doctor(&m->options, &report) != GT_OK) _exit(8);
        const gt_doctor_fault *fault = gt_doctor_report_fault(report, 0);
        int wrong = !fault || fault->kind != GT_DOCTOR_NO_PERMISSION || fault->severity != GT_DOCTOR_ERROR || !strstr(fault->what, node);
        wrong |= (gt_doctor_report_verdict(report) != GT_DOCTOR_BROKEN) << 1;
        wrong |= (!fault || !strstr(fault->command, group ? "sudo usermod -aG \"$(stat -c %G /dev/nvidia" : "sudo chmod a+rw /dev/nvidia*"))
                 << 2;
        _exit(wrong);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(chmod(path, 0666) == 0);
    return WEXITSTATUS(status);
}

TEST(unit, doctor_device_without_permission) {
    machine m;
    machine_make(t, &m);
    (void)chmod(m.root, 0755);
    /* What the driver says then. */
    (void)setenv("STUB_INIT", "100", 1);
    (void)setenv("STUB_NVML", "4", 1);
    char folder[MACHINE_PATH];
    (void)snprintf(folder, sizeof folder, "%s", m.root);
    *strrchr(folder, '/') = '\0';
    (void)chmod(folder, 0755);
    CHECK_EQ_INT(as_nobody(&m, "/dev/nvidiactl", 0600, 0), 0);
    CHECK_EQ_INT(as_nobody(&m, "/dev/nvidia-uvm", 0600, 0), 0);
    CHECK_EQ_INT(as_nobody(&m, "/dev/nvidia0", 0600, 0), 0);
    if (geteuid() == 0) CHECK_EQ_INT(as_nobody(&m, "/dev/nvidiactl", 0660, 44), 0);
    machine_free(&m);
}

TEST(unit, doctor_device_node_missing) {
    machine m;
    machine_make(t, &m);
    machine_remove(&m, "/dev/nvidia-uvm");
    (void)setenv("STUB_INIT", "999", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_DEVICE_NODE_MISSING, GT_DOCTOR_ERROR, "/dev/nvidia-uvm is missing", "sudo nvidia-modprobe -u -c 0");
    /* Starting the driver makes it: no fault then. */
    (void)unsetenv("STUB_INIT");
    machine_examine(&m, GT_DOCTOR_READY);
    machine_expect_not(&m, GT_DOCTOR_DEVICE_NODE_MISSING);
    machine_free(&m);
}

TEST(unit, doctor_container_without_gpu) {
    machine m;
    machine_make(t, &m);
    machine_write(&m, "/.dockerenv", "");
    machine_remove(&m, "/dev");
    machine_remove_library(&m, "libcuda.so.1");
    machine_remove_library(&m, "libnvidia-ml.so.1");
    /* The host's bus and kernel module are seen in every container. One that does not ask for a GPU is as it is meant to be. */
    machine_examine(&m, GT_DOCTOR_CPU_ONLY);
    machine_expect(&m, GT_DOCTOR_CONTAINER_WITHOUT_GPU, GT_DOCTOR_NOTE, "(docker)", "docker run --gpus all");
    machine_expect_not(&m, GT_DOCTOR_NO_DRIVER);
    (void)setenv("NVIDIA_VISIBLE_DEVICES", "void", 1);
    machine_examine(&m, GT_DOCTOR_CPU_ONLY);
    (void)setenv("NVIDIA_VISIBLE_DEVICES", "all", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_CONTAINER_WITHOUT_GPU, GT_DOCTOR_ERROR, "NVIDIA_VISIBLE_DEVICES is all", "docker run --gpus all");
    (void)setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_CONTAINER_WITHOUT_GPU, GT_DOCTOR_ERROR, "(kubernetes)", "nvidia.com/gpu=1");
    machine_free(&m);
}

TEST(unit, doctor_container_without_the_drivers_libraries) {
    machine m;
    machine_make(t, &m);
    machine_write(&m, "/run/.containerenv", "");
    machine_remove_library(&m, "libcuda.so.1");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_NO_DRIVER, GT_DOCTOR_ERROR, "not the driver's library", "NVIDIA_DRIVER_CAPABILITIES=compute,utility");
    machine_free(&m);
}

TEST(unit, doctor_machine_without_gpu_is_no_fault) {
    machine m;
    machine_make(t, &m);
    machine_remove_gpu(&m);
    machine_remove_library(&m, "libcudnn.so.9");
    machine_write(&m, "/sys/bus/pci/devices/0000:20:00.0/vendor", "0x10de\n"); /* a switch of NVIDIA's, no GPU */
    machine_write(&m, "/sys/bus/pci/devices/0000:20:00.0/class", "0x068000\n");
    machine_examine(&m, GT_DOCTOR_CPU_ONLY);
    machine_expect(&m, GT_DOCTOR_NO_GPU, GT_DOCTOR_NOTE, "no NVIDIA GPU in this machine (none on the PCI bus)", NULL);
    machine_expect(&m, GT_DOCTOR_LIBRARY_MISSING, GT_DOCTOR_NOTE, "libcudnn.so.9", NULL); /* good to know */
    machine_expect_not(&m, GT_DOCTOR_NO_DRIVER);
    machine_free(&m);
}

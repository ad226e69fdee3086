/* The driver, its files in /dev, and the container. One cause has many effects: the first rule that holds ends the search. */
#include "doctor/faults.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* Codes of NVML and of the driver. */
enum { NVML_NO_DRIVER = 9, NVML_MISMATCH = 18 };
enum { CU_NO_DEVICE = 100, CU_STUB = 34, CU_NOT_READY = 802, CU_MISMATCH = 803, CU_UNKNOWN = 999 };

#define NODES_CONTROL 0 /* /dev/nvidiactl is looked at first, then /dev/nvidia-uvm, then the GPUs */
#define NODES_MEMORY  1
#define NODES_GPUS    2

static const char *driver_command(const gt_doctor_report *report) {
    const char *name = report->machine.distribution;
    if (strcmp(name, "ubuntu") == 0) return "sudo ubuntu-drivers install --gpgpu && sudo reboot";
    if (strcmp(name, "debian") == 0) return "sudo apt-get install nvidia-driver && sudo reboot";
    if (strcmp(name, "fedora") == 0 || strcmp(name, "rhel") == 0 || strcmp(name, "rocky") == 0 || strcmp(name, "almalinux") == 0)
        return "sudo dnf install cuda-drivers && sudo reboot";
    if (strcmp(name, "arch") == 0) return "sudo pacman -S nvidia && sudo reboot";
    return "xdg-open https://www.nvidia.com/drivers";
}

static const char *container_command(const gt_doctor_report *report) {
    const char *name = report->machine.container;
    if (strcmp(name, "kubernetes") == 0) return "kubectl set resources deployment NAME --limits=nvidia.com/gpu=1";
    if (strcmp(name, "podman") == 0) return "podman run --device nvidia.com/gpu=all IMAGE";
    if (strcmp(name, "apptainer") == 0) return "apptainer exec --nv IMAGE COMMAND";
    return "docker run --gpus all IMAGE";
}

static const gt__node *node(const gt_doctor_report *report, int index) { return &report->machine.nodes[index]; }

static bool no_nodes(const gt_doctor_report *report) {
    for (int32_t i = 0; i < report->machine.node_count; i++)
        if (node(report, i)->state != GT__NODE_MISSING) return false;
    return !report->machine.wsl;
}

/* --- the rules, in order; true: it holds -------------------------------------------------------------------------------------------- */

static bool container_without_gpu(gt_doctor_report *report, gt__fault_draft *draft) {
    if (!report->machine.container[0] || !no_nodes(report) || report->gpu_count > 0) return false;
    const char *wanted = gt__doctor_setting("NVIDIA_VISIBLE_DEVICES");
    gt__fault_what(draft, "This container (%s) was started without a GPU: there is no /dev/nvidiactl in it%s%s.", report->machine.container,
                   wanted ? ", NVIDIA_VISIBLE_DEVICES is " : "", wanted ? (wanted[0] ? wanted : "empty") : "");
    gt__fault_remedy(draft, "If the host has a GPU: install the NVIDIA Container Toolkit there and start the container with the GPUs.");
    gt__fault_command(draft, "%s", container_command(report));
    gt__fault_add(report, GT_DOCTOR_CONTAINER_WITHOUT_GPU, GT_DOCTOR_ERROR, draft);
    return true;
}

static bool no_gpu(gt_doctor_report *report, gt__fault_draft *draft) {
    if (gt__doctor_gpu_expected(report)) return false;
    gt__fault_what(draft, "There is no NVIDIA GPU in this machine%s.", report->machine.pci_known ? " (none on the PCI bus)" : "");
    gt__fault_remedy(
        draft, "Training runs on the CPU. If there is a GPU, see whether it is seated, powered, and passed on to this virtual machine.");
    gt__fault_command(draft, "lspci -d 10de:");
    gt__fault_add(report, GT_DOCTOR_NO_GPU, GT_DOCTOR_NOTE, draft);
    return true;
}

static bool no_library(gt_doctor_report *report, gt__fault_draft *draft) {
    const gt__library *cuda = &report->libraries[GT__LIBRARY_DRIVER];
    if (cuda->state == GT__LIBRARY_BROKEN) {
        gt__fault_what(draft, "The driver's library does not load: %s (%s).", cuda->why, cuda->path);
        gt__fault_remedy(draft, "Install the driver anew.");
        gt__fault_command(draft, "%s", driver_command(report));
        gt__fault_add(report, GT_DOCTOR_LIBRARY_BROKEN, GT_DOCTOR_ERROR, draft);
        return true;
    }
    if (cuda->state == GT__LIBRARY_FOUND) return false;
    if (cuda->state == GT__LIBRARY_ELSEWHERE) {
        int folder = (int)(strrchr(cuda->path, '/') - cuda->path);
        gt__fault_what(draft, "The driver's library lies where it is not looked for: %s.", cuda->path);
        gt__fault_remedy(draft, "Add its folder to the library path.");
        gt__fault_command(draft, "export LD_LIBRARY_PATH=\"%.*s:$LD_LIBRARY_PATH\"", folder, cuda->path);
        gt__fault_add(report, GT_DOCTOR_LIBRARY_PATH, GT_DOCTOR_ERROR, draft);
    } else if (report->machine.container[0]) {
        gt__fault_what(draft, "The container has the GPU's device files but not the driver's library, libcuda.so.1.");
        gt__fault_remedy(draft, "Start it with the driver's compute libraries: NVIDIA_DRIVER_CAPABILITIES must hold compute.");
        gt__fault_command(draft, "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE");
        gt__fault_add(report, GT_DOCTOR_NO_DRIVER, GT_DOCTOR_ERROR, draft);
    } else {
        int32_t major = report->module.cuda.major;
        gt__fault_what(draft, "The NVIDIA driver is not installed: libcuda.so.1 was not found.");
        gt__fault_remedy(draft, "Install a driver%s%s.",
                         major >= 13   ? " of version 580 or newer, which CUDA 13 needs"
                         : major == 12 ? " of version 525 or newer, which CUDA 12 needs"
                                       : "",
                         report->machine.nouveau ? "; it replaces nouveau, which is loaded now and holds the GPU" : "");
        gt__fault_command(draft, "%s", driver_command(report));
        gt__fault_add(report, GT_DOCTOR_NO_DRIVER, GT_DOCTOR_ERROR, draft);
    }
    return true;
}

static bool stub(gt_doctor_report *report, gt__fault_draft *draft) {
    const gt__library *cuda = &report->libraries[GT__LIBRARY_DRIVER];
    /* It says so when it is started; else its folder does. */
    if (report->driver.asked ? report->driver.start_code != CU_STUB : !strstr(cuda->path, "/stubs/")) return false;
    gt__fault_what(draft, "%s is the toolkit's stub for linking, not the driver.", cuda->path);
    gt__fault_remedy(draft, "Take its folder out of LD_LIBRARY_PATH.");
    gt__fault_command(draft, "export LD_LIBRARY_PATH=\"$(echo \"$LD_LIBRARY_PATH\" | tr : '\\n' | grep -v /stubs | paste -sd:)\"");
    gt__fault_add(report, GT_DOCTOR_DRIVER_STUB, GT_DOCTOR_ERROR, draft);
    return true;
}

static bool not_loaded(gt_doctor_report *report, gt__fault_draft *draft) {
    const gt__found_machine *machine = &report->machine;
    bool absent = !machine->driver_files && no_nodes(report);
    if (machine->wsl || report->gpu_count > 0 || !(absent || report->driver.nvml_code == NVML_NO_DRIVER)) return false;
    gt__fault_what(draft, "The driver is installed, but its kernel module is not loaded%s.",
                   machine->nouveau ? ": nouveau holds the GPU" : "");
    gt__fault_remedy(draft, machine->nouveau ? "Keep nouveau from loading, and reboot."
                                             : "Load it. If that fails, it was not built for this kernel (dmesg says why; with secure boot "
                                               "it has to be signed): install the driver anew.");
    gt__fault_command(draft, machine->nouveau ? "echo blacklist nouveau | sudo tee /etc/modprobe.d/no-nouveau.conf && sudo reboot"
                                              : "sudo modprobe nvidia && sudo modprobe nvidia-uvm");
    gt__fault_add(report, GT_DOCTOR_DRIVER_NOT_LOADED, GT_DOCTOR_ERROR, draft);
    return true;
}

static bool mismatch(gt_doctor_report *report, gt__fault_draft *draft) {
    const gt__found_driver *driver = &report->driver;
    if (driver->nvml_code != NVML_MISMATCH && driver->start_code != CU_MISMATCH) return false;
    gt__fault_what(draft, "The driver's libraries are of another version than its kernel module%s%s.",
                   driver->kernel_version[0] ? ", which is " : "", driver->kernel_version);
    gt__fault_remedy(draft, "The driver was updated while the old module was loaded: reboot%s.",
                     report->machine.container[0] ? " the host, and start the container anew" : "");
    gt__fault_command(draft, "sudo reboot");
    gt__fault_add(report, GT_DOCTOR_DRIVER_MISMATCH, GT_DOCTOR_ERROR, draft);
    return true;
}

static bool forbidden(gt_doctor_report *report, gt__fault_draft *draft) {
    const gt__node *closed = NULL;
    int32_t gpus_open = 0;
    for (int32_t i = report->machine.node_count; i-- > 0;) {
        const gt__node *n = node(report, i);
        bool gpu = i >= NODES_GPUS;
        gpus_open += gpu && n->state == GT__NODE_OPEN;
        if (n->state == GT__NODE_FORBIDDEN && (!gpu || gpus_open == 0)) closed = n;
    }
    if (!closed) return false;
    gt__fault_what(draft, "This user may not open %s (mode %04o, group %u): %s.", closed->path, closed->mode, closed->group,
                   closed->error == EPERM ? "the operating system forbids it" : "permission denied");
    if (closed->error == EPERM || (closed->mode & 0006) == 0006) {
        gt__fault_remedy(draft, "The file's mode would allow it, but the container or control group does not: give it the device.");
        gt__fault_command(draft, "%s", container_command(report));
    } else if ((closed->mode & 0060) == 0060 && closed->group != 0) {
        gt__fault_remedy(draft, "Add the user to the group that may, and log in again.");
        gt__fault_command(draft, "sudo usermod -aG \"$(stat -c %%G %s)\" \"$USER\"", closed->path);
    } else {
        gt__fault_remedy(draft, "Allow everybody to open the NVIDIA devices (the driver's default, NVreg_DeviceFileMode=0666).");
        gt__fault_command(draft, "sudo chmod a+rw /dev/nvidia*");
    }
    gt__fault_add(report, GT_DOCTOR_NO_PERMISSION, GT_DOCTOR_ERROR, draft);
    return true;
}

static bool node_missing(gt_doctor_report *report, gt__fault_draft *draft) {
    char path[GT__DOCTOR_PATH];
    const gt__found_driver *driver = &report->driver;
    if (report->machine.wsl || (driver->started && driver->count > 0)) return false;
    const char *missing = NULL;
    bool helper = access(gt__doctor_path(report, "/usr/bin/nvidia-modprobe", path, sizeof path), X_OK) == 0;
    /* The driver makes what is missing itself, with this helper's rights, when it is started. */
    if (!helper || driver->asked) {
        if (report->machine.gpu_nodes == 0) missing = "/dev/nvidia0";
        if (node(report, NODES_MEMORY)->state == GT__NODE_MISSING) missing = "/dev/nvidia-uvm";
        if (node(report, NODES_CONTROL)->state == GT__NODE_MISSING) missing = "/dev/nvidiactl";
    }
    if (!missing) return false;
    gt__fault_what(draft, "The driver is loaded, but %s is missing.", missing);
    if (report->machine.container[0]) {
        gt__fault_remedy(draft, "The container was given some of the device files alone: start it with the NVIDIA Container Toolkit.");
        gt__fault_command(draft, "%s", container_command(report));
    } else {
        gt__fault_remedy(draft, "Let the driver's helper make it.");
        gt__fault_command(draft, "sudo nvidia-modprobe -u -c 0");
    }
    gt__fault_add(report, GT_DOCTOR_DEVICE_NODE_MISSING, GT_DOCTOR_ERROR, draft);
    return true;
}

static bool hidden(gt_doctor_report *report, gt__fault_draft *draft) {
    const char *list = gt__doctor_setting("CUDA_VISIBLE_DEVICES");
    if (!list || report->driver.count > 0) return false;
    for (int32_t i = 0; i < report->gpu_count; i++)
        if (!report->gpus[i].hidden) return false;
    if (report->gpu_count == 0 && report->driver.start_code != CU_NO_DEVICE) return false;
    gt__fault_what(draft, "CUDA_VISIBLE_DEVICES=\"%.200s\" hides %s from this process.", list,
                   report->gpu_count == 1 ? "the GPU" : "all GPUs");
    gt__fault_remedy(draft, "Take the setting away, or give it the number of a GPU.");
    gt__fault_command(draft, "unset CUDA_VISIBLE_DEVICES");
    gt__fault_add(report, GT_DOCTOR_GPU_HIDDEN, GT_DOCTOR_WARNING, draft);
    return true;
}

static bool failed(gt_doctor_report *report, gt__fault_draft *draft) {
    const gt__found_driver *driver = &report->driver;
    if (driver->asked && driver->start_code == CU_NOT_READY) {
        gt__fault_what(draft, "The driver waits for the fabric manager, which connects the GPUs of this machine (cuInit: 802).");
        gt__fault_remedy(draft, "Start it; it must be of the driver's version%s%s.", driver->version[0] ? ", " : "", driver->version);
        gt__fault_command(draft, "sudo systemctl enable --now nvidia-fabricmanager");
    } else if (driver->asked && driver->start_code != 0) {
        gt__fault_what(draft, "The driver does not start (cuInit: %d%s).", driver->start_code,
                       driver->start_code == CU_NO_DEVICE ? ", no device" : "");
        gt__fault_remedy(draft, "The kernel's log says more. %s",
                         driver->start_code == CU_UNKNOWN ? "After a suspend the module for unified memory has to be loaded anew." : "");
        gt__fault_command(draft, driver->start_code == CU_UNKNOWN ? "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm"
                                                                  : "sudo dmesg | grep -iE 'nvrm|nvidia'");
    } else if (driver->nvml_asked && driver->nvml_code != 0 && driver->count <= 0) {
        gt__fault_what(draft, "The driver does not answer (nvmlInit: %d).", driver->nvml_code);
        gt__fault_remedy(draft, "The kernel's log says more.");
        gt__fault_command(draft, "sudo dmesg | grep -iE 'nvrm|nvidia'");
    } else if (report->gpu_count == 0 && (driver->nvml_asked || driver->asked)) {
        gt__fault_what(draft, "The driver works, but finds no GPU.");
        gt__fault_remedy(draft, "A GPU that it does not support, or that has fallen off the bus: the kernel's log says more.");
        gt__fault_command(draft, "sudo dmesg | grep -iE 'nvrm|nvidia'");
        gt__fault_add(report, GT_DOCTOR_NO_GPU, GT_DOCTOR_ERROR, draft);
        return true;
    } else {
        return false;
    }
    gt__fault_add(report, GT_DOCTOR_DRIVER_FAILED, GT_DOCTOR_ERROR, draft);
    return true;
}

static void too_old(gt_doctor_report *report, gt__fault_draft *draft) {
    const gt__library *runtime = &report->libraries[GT__LIBRARY_RUNTIME];
    gt__version needed = runtime->found.major ? runtime->found : report->module.cuda, has = report->driver.cuda;
    char a[32], b[32], version[96] = "";
    if (!report->module.path[0] || has.major == 0 || needed.major == 0 || has.major >= needed.major) return;
    if (report->driver.version[0]) (void)snprintf(version, sizeof version, " %s", report->driver.version);
    gt__fault_what(draft, "The NVIDIA driver%s is too old: it supports CUDA up to %s, the CUDA runtime is %s.", version,
                   gt__version_text(has, a, sizeof a), gt__version_text(needed, b, sizeof b));
    gt__fault_remedy(draft, "Install driver %s or newer%s, or build gtrain with CUDA %d.", needed.major >= 13 ? "580" : "525",
                     report->machine.container[0] ? " on the host" : "", has.major);
    gt__fault_command(draft, "%s", driver_command(report));
    gt__fault_add(report, GT_DOCTOR_DRIVER_TOO_OLD, GT_DOCTOR_ERROR, draft);
}

void gt__faults_of_driver(gt_doctor_report *report, gt__fault_draft *draft) {
    if (container_without_gpu(report, draft) || no_gpu(report, draft) || no_library(report, draft) || stub(report, draft)) return;
    /* The stub's version would say nothing; that of a driver that does not run is right. */
    bool fault = not_loaded(report, draft) || mismatch(report, draft) || forbidden(report, draft) || node_missing(report, draft);
    too_old(report, draft);
    if (!fault && !hidden(report, draft)) (void)failed(report, draft);
}

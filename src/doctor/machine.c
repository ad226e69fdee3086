/* The machine without its GPUs: device nodes, the kernel's part of the driver, the container, and the CPU. */
#include "doctor/findings.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static bool exists(const gt_doctor_report *report, const char *path) {
    char full[GT__DOCTOR_PATH];
    return access(gt__doctor_path(report, path, full, sizeof full), F_OK) == 0;
}

/* --- device nodes ------------------------------------------------------------------------------------------------------------------- */

/* Opened, and closed at once: a container may forbid what the file's mode allows. */
static void look_at_node(gt_doctor_report *report, const char *path) {
    gt__found_machine *machine = &report->machine;
    if (machine->node_count == GT__DOCTOR_NODES) return;
    gt__node *node = &machine->nodes[machine->node_count++];
    char full[GT__DOCTOR_PATH];
    struct stat info;
    (void)snprintf(node->path, sizeof node->path, "%s", path);
    (void)gt__doctor_path(report, path, full, sizeof full);
    if (stat(full, &info) == 0) {
        node->mode = info.st_mode & 07777;
        node->owner = info.st_uid;
        node->group = info.st_gid;
    }
    int file = open(full, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file >= 0) {
        (void)close(file);
        node->state = GT__NODE_OPEN;
        return;
    }
    node->error = errno;
    bool missing = errno == ENOENT || errno == ENOTDIR, forbidden = errno == EACCES || errno == EPERM;
    node->state = missing ? GT__NODE_MISSING : forbidden ? GT__NODE_FORBIDDEN : GT__NODE_FAILED;
}

static void find_nodes(gt_doctor_report *report) {
    char path[64], folder[GT__DOCTOR_PATH];
    int32_t numbers[GT__DOCTOR_GPUS], count = 0;
    report->machine.wsl = exists(report, "/dev/dxg");
    look_at_node(report, "/dev/nvidiactl");
    look_at_node(report, "/dev/nvidia-uvm");
    DIR *dev = opendir(gt__doctor_path(report, "/dev", folder, sizeof folder));
    if (!dev) return;
    for (const struct dirent *entry; (entry = readdir(dev)) && count < GT__DOCTOR_GPUS;) {
        char *end;
        if (strncmp(entry->d_name, "nvidia", 6) != 0 || !isdigit((unsigned char)entry->d_name[6])) continue;
        long number = strtol(entry->d_name + 6, &end, 10);
        if (*end || number >= 4096) continue;
        int32_t at = count++;
        for (; at > 0 && numbers[at - 1] > number; at--) numbers[at] = numbers[at - 1];
        numbers[at] = (int32_t)number;
    }
    (void)closedir(dev);
    report->machine.gpu_nodes = count;
    for (int32_t i = 0; i < count; i++) {
        (void)snprintf(path, sizeof path, "/dev/nvidia%d", numbers[i]);
        look_at_node(report, path);
    }
}

/* --- the bus and the kernel ---------------------------------------------------------------------------------------------------------- */

static void find_on_bus(gt_doctor_report *report) {
    static const char place[] = "/sys/bus/pci/devices";
    char folder[GT__DOCTOR_PATH], path[512], line[32];
    DIR *bus = opendir(gt__doctor_path(report, place, folder, sizeof folder));
    if (!bus) return;
    report->machine.pci_known = true;
    for (const struct dirent *entry; (entry = readdir(bus));) {
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof path, "%s/%.64s/vendor", place, entry->d_name);
        if (!gt__doctor_line(report, path, line, sizeof line) || strcmp(line, "0x10de") != 0) continue;
        (void)snprintf(path, sizeof path, "%s/%.64s/class", place, entry->d_name);
        report->machine.pci_gpus +=
            gt__doctor_line(report, path, line, sizeof line) && strncmp(line, "0x03", 4) == 0; /* a display controller */
    }
    (void)closedir(bus);
}

/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build": the first word that is a version. */
static void kernel_version(gt_doctor_report *report) {
    char line[256];
    report->machine.driver_files = exists(report, "/proc/driver/nvidia");
    report->machine.nouveau = exists(report, "/sys/module/nouveau");
    if (!gt__doctor_line(report, "/proc/driver/nvidia/version", line, sizeof line)) return;
    for (const char *word = line; *word; word += strcspn(word, " "), word += strspn(word, " ")) {
        size_t length = strcspn(word, " ");
        if (length < 4 || length >= 32 || strspn(word, "0123456789.") != length || !memchr(word, '.', length)) continue;
        (void)snprintf(report->driver.kernel_version, sizeof report->driver.kernel_version, "%.*s", (int)length, word);
        return;
    }
}

static void find_container(gt_doctor_report *report) {
    char line[512];
    const char *name = "";
    if (gt__doctor_setting("KUBERNETES_SERVICE_HOST"))
        name = "kubernetes";
    else if (exists(report, "/.dockerenv"))
        name = "docker";
    else if (exists(report, "/run/.containerenv"))
        name = "podman";
    else if (gt__doctor_setting("SINGULARITY_CONTAINER") || gt__doctor_setting("APPTAINER_CONTAINER"))
        name = "apptainer";
    else if (gt__doctor_line(report, "/proc/1/cgroup", line, sizeof line) &&
             (strstr(line, "docker") || strstr(line, "kubepods") || strstr(line, "containerd") || strstr(line, "/lxc")))
        name = "container";
    (void)snprintf(report->machine.container, sizeof report->machine.container, "%s", name);
}

static void find_distribution(gt_doctor_report *report) {
    char path[GT__DOCTOR_PATH], line[128];
    FILE *file = fopen(gt__doctor_path(report, "/etc/os-release", path, sizeof path), "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "ID=", 3) != 0) continue;
        const char *name = line + 3 + (line[3] == '"');
        (void)snprintf(report->machine.distribution, sizeof report->machine.distribution, "%.*s", (int)strcspn(name, "\"\n"), name);
    }
    (void)fclose(file);
}

/* --- the CPU ------------------------------------------------------------------------------------------------------------------------- */

static bool has_word(const char *words, const char *word) {
    size_t length = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += length)
        if ((at == words || isspace((unsigned char)at[-1])) && (at[length] == '\0' || isspace((unsigned char)at[length]))) return true;
    return false;
}

static void find_cpu(gt_doctor_report *report) {
    static const char *const wanted[] = {
        "avx2",  "fma",     "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", /* x86 */
        "asimd", "asimdhp", "bf16", "sve",     "sve2",                                                              /* Arm */
    };
    gt__found_machine *machine = &report->machine;
    char path[GT__DOCTOR_PATH], line[8192], flags[8192] = "";
    FILE *file = fopen(gt__doctor_path(report, "/proc/cpuinfo", path, sizeof path), "re");
    if (!file) return;
    while (!flags[0] && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (!value) continue;
        value += 1 + strspn(value + 1, " ");
        value[strcspn(value, "\n")] = '\0';
        if (strncmp(line, "model name", 10) == 0 && !machine->cpu_name[0])
            (void)snprintf(machine->cpu_name, sizeof machine->cpu_name, "%.95s", value);
        else if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0)
            (void)snprintf(flags, sizeof flags, "%s", value);
    }
    (void)fclose(file);
    machine->cpu_known = flags[0] != '\0';
    char *out = machine->cpu_features;
    size_t used = 0, size = sizeof machine->cpu_features;
    for (size_t i = 0; i < GT__COUNT(wanted); i++)
        if (has_word(flags, wanted[i])) used += (size_t)snprintf(out + used, size - used, "%s%s", used ? " " : "", wanted[i]);
    bool x86_fast = has_word(flags, "avx2") && has_word(flags, "fma");
    machine->cpu_slow = machine->cpu_known && !x86_fast && !has_word(flags, "asimd");
}

/* The least of the limits of the control group that the process sees as its own. */
static void find_quota(gt_doctor_report *report) {
    char line[64], period_line[64];
    long long quota = 0, period = 0;
    if (gt__doctor_line(report, "/sys/fs/cgroup/cpu.max", line, sizeof line)) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2) return; /* "max 100000" */
    } else if (gt__doctor_line(report, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof line) &&
               gt__doctor_line(report, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", period_line, sizeof period_line)) {
        quota = strtoll(line, NULL, 10);
        period = strtoll(period_line, NULL, 10);
    }
    if (quota > 0 && period > 0) report->machine.quota = (double)quota / (double)period;
}

static void find_cores(gt__found_machine *machine) {
    enum { MOST = 1 << 16 };
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    machine->cores = online > 0 && online < MOST ? (int32_t)online : 1;
    machine->cores_allowed = machine->cores;
    cpu_set_t *set = CPU_ALLOC(MOST);
    if (!set) return;
    size_t bytes = CPU_ALLOC_SIZE(MOST);
    CPU_ZERO_S(bytes, set);
    if (sched_getaffinity(0, bytes, set) == 0) machine->cores_allowed = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
}

void gt__doctor_machine(gt_doctor_report *report) {
    find_nodes(report);
    find_on_bus(report);
    kernel_version(report);
    find_container(report);
    find_distribution(report);
    find_cpu(report);
    find_quota(report);
    find_cores(&report->machine);
}

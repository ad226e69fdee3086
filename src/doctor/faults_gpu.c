/* Each GPU for itself, and the CPU. What keeps one GPU from being used is an error where there is no other. */
#include "doctor/faults.h"

#include "backend/architectures.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define GIB (1ull << 30)

/* Bits of NVML's reasons to slow the clocks that mean trouble: they come from the hardware or from heat. */
enum { HARDWARE = 0x08, HOT_SOFTWARE = 0x20, HOT_HARDWARE = 0x40, POWER_BRAKE = 0x80 };
/* nvmlComputeMode_t. */
enum { EXCLUSIVE_THREAD = 1, PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 };

/* "GPU 1 (NVIDIA H200)". */
static const char *gpu_name(const gt__gpu *gpu, char *buffer, size_t size) {
    (void)snprintf(buffer, size, "GPU %d (%s)", gpu->index >= 0 ? gpu->index : gpu->cuda_index, gpu->name);
    return buffer;
}

/* CUDA's libraries take some hundred MiB before the first tensor. */
static bool is_full(const gt__gpu *gpu) {
    return gpu->has_memory && gpu->memory_total > 0 && gpu->mig != 1 && gpu->memory_free < GT__MIN(GIB, gpu->memory_total / 4);
}

static bool taken(const gt__gpu *gpu) {
    return gpu->compute_mode == PROHIBITED ||
           ((gpu->compute_mode == EXCLUSIVE_PROCESS || gpu->compute_mode == EXCLUSIVE_THREAD) && gpu->user_count > 0);
}

static gt__gpu_code code_for(const gt_doctor_report *report, const gt__gpu *gpu) {
    const char *architectures = report->module.architectures;
    if (!report->module.note || gpu->capability == 0) return GT__GPU_CODE_MACHINE; /* not known: the driver will tell */
    gt__gpu_code code = gt__architectures_cover(architectures, gpu->capability);
    gt__version compiler = report->module.cuda, driver = report->driver.cuda;
    bool readable = compiler.major == 0 || driver.major == 0 || gt__version_compare(driver, compiler) >= 0;
    return code == GT__GPU_CODE_PTX && !readable ? GT__GPU_CODE_NONE : code;
}

static bool can_be_used(const gt_doctor_report *report, const gt__gpu *gpu) {
    return !gpu->hidden && !gpu->lost && !taken(gpu) && !is_full(gpu) && code_for(report, gpu) != GT__GPU_CODE_NONE;
}

static void users_text(const gt__gpu *gpu, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < GT__MIN(gpu->user_count, 3) && used < size; i++) {
        const gt__gpu_user *user = &gpu->users[i];
        used += (size_t)snprintf(text + used, size - used, "%sprocess %lld%s%s%s", i ? ", " : ": ", (long long)user->process,
                                 user->name[0] ? " (" : "", user->name, user->name[0] ? ")" : "");
        if (user->bytes && used < size)
            used += (size_t)snprintf(text + used, size - used, " holds %.1f GiB", (double)user->bytes / (double)GIB);
    }
    if (gpu->user_count > 3 && used < size) (void)snprintf(text + used, size - used, " and %d more", gpu->user_count - 3);
}

static void full(gt_doctor_report *report, const gt__gpu *gpu, gt_doctor_severity severity, gt__fault_draft *draft) {
    char name[160], users[384];
    users_text(gpu, users, sizeof users);
    gt__fault_what(draft, "%s is full: %llu MiB of %.1f GiB are free%s.", gpu_name(gpu, name, sizeof name),
                   (unsigned long long)(gpu->memory_free >> 20), (double)gpu->memory_total / (double)GIB, users);
    for (int32_t i = 0; i < report->gpu_count; i++) {
        if (!report->gpus[i].usable) continue;
        int32_t other = report->gpus[i].index >= 0 ? report->gpus[i].index : report->gpus[i].cuda_index;
        gt__fault_remedy(draft, "Use another GPU, or stop what holds the memory.");
        gt__fault_command(draft, "export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=%d", other);
        break;
    }
    if (!draft->remedy[0]) {
        gt__fault_remedy(draft, gpu->user_count ? "Stop what holds the memory, or wait for it."
                                                : "Processes of other containers or users hold it: find them on the host.");
        if (gpu->user_count)
            gt__fault_command(draft, "kill %lld", (long long)gpu->users[0].process);
        else
            gt__fault_command(draft, "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv");
    }
    gt__fault_add(report, GT_DOCTOR_GPU_FULL, severity, draft);
}

static void why_not(gt_doctor_report *report, const gt__gpu *gpu, gt_doctor_severity severity, gt__fault_draft *draft) {
    char name[160], a[32], b[32];
    (void)gpu_name(gpu, name, sizeof name);
    if (gpu->lost) {
        gt__fault_what(draft, "%s does not answer: it has fallen off the bus or hangs.", name);
        gt__fault_remedy(draft, "Reset it, or reboot. If it comes back to this, look at its power, seat and cooling.");
        gt__fault_command(draft, "sudo nvidia-smi --gpu-reset -i %d || sudo reboot", gpu->index);
        gt__fault_add(report, GT_DOCTOR_GPU_LOST, severity, draft);
    } else if (code_for(report, gpu) == GT__GPU_CODE_NONE) {
        bool ptx = gt__architectures_cover(report->module.architectures, gpu->capability) == GT__GPU_CODE_PTX;
        gt__fault_what(draft, "%s has compute capability %d.%d; this gtrain was built for %s.", name, gpu->capability / 10,
                       gpu->capability % 10, report->module.architectures[0] ? report->module.architectures : "none");
        if (ptx)
            gt__fault_what(draft, "%s needs code compiled by the driver, which knows CUDA %s; this gtrain was compiled with CUDA %s.", name,
                           gt__version_text(report->driver.cuda, a, sizeof a), gt__version_text(report->module.cuda, b, sizeof b));
        gt__fault_remedy(draft, ptx ? "Build gtrain for this GPU, or install a newer driver." : "Build gtrain for this GPU.");
        gt__fault_command(draft, "cmake -B build -DGTRAIN_CUDA=ON -DGTRAIN_CUDA_ARCHITECTURES=%d && cmake --build build", gpu->capability);
        gt__fault_add(report, GT_DOCTOR_GPU_NOT_COMPILED_FOR, severity, draft);
    } else if (taken(gpu)) {
        bool prohibited = gpu->compute_mode == PROHIBITED;
        gt__fault_what(draft, "%s is in compute mode %s%s.", name, prohibited ? "Prohibited" : "Exclusive",
                       prohibited ? "" : ", and another process uses it");
        gt__fault_remedy(draft, prohibited ? "Set the mode back." : "Wait for the other process, or allow several.");
        gt__fault_command(draft, "sudo nvidia-smi -i %d -c DEFAULT", gpu->index);
        gt__fault_add(report, GT_DOCTOR_GPU_PROHIBITED, severity, draft);
    } else if (is_full(gpu)) {
        full(report, gpu, severity, draft);
    }
}

static void health(gt_doctor_report *report, const gt__gpu *gpu, gt__fault_draft *draft) {
    char name[160];
    (void)gpu_name(gpu, name, sizeof name);
    if (gpu->ecc_uncorrected > 0 || gpu->remap_pending || gpu->remap_failed) {
        gt__fault_what(draft, "%s: %llu memory errors that ECC could not correct%s%s.", name, (unsigned long long)gpu->ecc_uncorrected,
                       gpu->remap_pending ? "; rows wait to be replaced" : "", gpu->remap_failed ? "; rows could not be replaced" : "");
        gt__fault_remedy(draft, gpu->remap_failed ? "Results cannot be trusted: have the card exchanged."
                                                  : "Stop what uses the GPU and reset it, so that bad rows are replaced.");
        gt__fault_command(draft, gpu->remap_failed ? "nvidia-smi -q -d ECC,ROW_REMAPPER -i %d" : "sudo nvidia-smi --gpu-reset -i %d",
                          gpu->index);
        gt__fault_add(report, GT_DOCTOR_GPU_MEMORY_ERRORS, GT_DOCTOR_WARNING, draft);
    }
    if (gpu->throttle & (HARDWARE | HOT_SOFTWARE | HOT_HARDWARE | POWER_BRAKE)) {
        bool hot = gpu->throttle & (HOT_SOFTWARE | HOT_HARDWARE), brake = gpu->throttle & POWER_BRAKE;
        char heat[32] = "";
        if (gpu->temperature >= 0) (void)snprintf(heat, sizeof heat, " (%d C)", gpu->temperature);
        gt__fault_what(draft, "%s is slowed down by %s%s.", name,
                       hot     ? "heat"
                       : brake ? "the power supply's brake"
                               : "its hardware",
                       hot ? heat : "");
        gt__fault_remedy(draft, hot ? "Look at fans, air flow and dust; training is slower until it cools down."
                                    : "Look at the power supply and its cables; training is slower meanwhile.");
        gt__fault_command(draft, "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i %d", gpu->index);
        gt__fault_add(report, GT_DOCTOR_GPU_THROTTLED, GT_DOCTOR_WARNING, draft);
    }
}

void gt__faults_of_gpus(gt_doctor_report *report, gt__fault_draft *draft) {
    bool any = false;
    for (int32_t i = 0; i < report->gpu_count; i++) any |= report->gpus[i].usable = can_be_used(report, &report->gpus[i]);
    for (int32_t i = 0; i < report->gpu_count; i++) {
        if (report->gpus[i].hidden) continue; /* nobody asked for it */
        if (!report->gpus[i].usable) why_not(report, &report->gpus[i], any ? GT_DOCTOR_WARNING : GT_DOCTOR_ERROR, draft);
        if (!report->gpus[i].lost) health(report, &report->gpus[i], draft);
    }
}

/* --- the CPU ------------------------------------------------------------------------------------------------------------------------- */

static bool set_to(const char *name, const char *value) {
    const char *is = gt__doctor_setting(name);
    return is && strcasecmp(is, value) == 0;
}

static void openmp(gt_doctor_report *report, gt__fault_draft *draft) {
    const char *limit = gt__doctor_setting("OMP_THREAD_LIMIT"), *bind = gt__doctor_setting("OMP_PROC_BIND");
    const char *name = NULL;
    int32_t cores = report->machine.cores_allowed;
    if (gt__doctor_setting("GOMP_CPU_AFFINITY")) name = "GOMP_CPU_AFFINITY";
    if (bind && bind[0] && strcasecmp(bind, "false") != 0) name = "OMP_PROC_BIND";
    if (name) {
        gt__fault_what(draft,
                       "%s is set: OpenMP binds the thread that trains to one core, and the loader's threads, which it starts, "
                       "share that core with it.",
                       name);
    } else if (limit && limit[0] && strtol(limit, NULL, 10) < cores) {
        name = "OMP_THREAD_LIMIT";
        gt__fault_what(draft, "OMP_THREAD_LIMIT=%.16s allows fewer threads than the process has cores (%d).", limit, cores);
    } else if (set_to("OMP_DYNAMIC", "true")) {
        name = "OMP_DYNAMIC";
        gt__fault_what(draft, "OMP_DYNAMIC is true: OpenMP may use fewer threads than there are cores, and changes their number.");
    } else if (set_to("OMP_WAIT_POLICY", "active")) {
        name = "OMP_WAIT_POLICY";
        gt__fault_what(draft,
                       "OMP_WAIT_POLICY is active: idle OpenMP threads keep their cores busy, which the loader's threads lack then.");
    }
    if (!name) return;
    gt__fault_remedy(draft, "Take the setting away before the process starts.");
    gt__fault_command(draft, "unset %s", name);
    gt__fault_add(report, GT_DOCTOR_OMP_SETTING, GT_DOCTOR_WARNING, draft);
}

void gt__faults_of_cpu(gt_doctor_report *report, gt__fault_draft *draft) {
    const gt__found_machine *machine = &report->machine;
    int32_t cores = machine->cores_allowed;
    if (machine->quota > 0 && machine->quota + 0.5 < cores) {
        gt__fault_what(draft,
                       "The control group grants %.1f cores' worth of time, the process sees %d cores: its threads are stopped again "
                       "and again.",
                       machine->quota, cores);
        gt__fault_remedy(draft, "Let the process see as many cores as it may use (or set cpu_threads of the context's options to %d).",
                         GT__MAX(1, (int32_t)machine->quota));
        gt__fault_command(draft, "taskset -c 0-%d COMMAND", GT__MAX(1, (int32_t)machine->quota) - 1);
        gt__fault_add(report, GT_DOCTOR_CPU_LIMITED, GT_DOCTOR_WARNING, draft);
    } else if (cores == 1 && machine->cores > 1) {
        gt__fault_what(draft, "The process may run on 1 of the machine's %d cores: batches are loaded, and CPU kernels run, on that one.",
                       machine->cores);
        gt__fault_remedy(draft, "Widen its affinity, unless a scheduler has set it on purpose.");
        gt__fault_command(draft, "taskset -c 0-%d COMMAND", machine->cores - 1);
        gt__fault_add(report, GT_DOCTOR_CPU_LIMITED, GT_DOCTOR_WARNING, draft);
    }
    if (machine->openmp) openmp(report, draft);
    bool onednn = report->libraries[GT__LIBRARY_ONEDNN].state == GT__LIBRARY_FOUND;
    if (machine->cpu_slow) {
        gt__fault_what(draft, "The CPU has no AVX2: CPU training is slow on it.");
        gt__fault_remedy(draft, "In a virtual machine, pass on the host's CPU (for example -cpu host).");
        gt__fault_add(report, GT_DOCTOR_CPU_SLOW, GT_DOCTOR_NOTE, draft);
    } else if (!onednn) {
        gt__fault_what(draft, "This gtrain has no oneDNN: convolutions and matrix products on the CPU are slower than they could be.");
        gt__fault_remedy(draft, "Install oneDNN and build gtrain anew. On a GPU it makes no difference.");
        gt__fault_command(draft, "sudo apt-get install libdnnl-dev && cmake -B build -DGTRAIN_ONEDNN=ON && cmake --build build");
        gt__fault_add(report, GT_DOCTOR_CPU_SLOW, GT_DOCTOR_NOTE, draft);
    }
}

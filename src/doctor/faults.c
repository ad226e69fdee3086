/* Puts the faults in order and comes to a verdict. */
#include "doctor/faults.h"

#include <stdio.h>

/* --- drafts -------------------------------------------------------------------------------------------------------------------------- */

#define FORMAT_INTO(field)                                                                                                                 \
    do {                                                                                                                                   \
        va_list arguments;                                                                                                                 \
        va_start(arguments, format);                                                                                                       \
        (void)vsnprintf(draft->field, sizeof draft->field, format, arguments);                                                             \
        va_end(arguments);                                                                                                                 \
    } while (0)

void gt__fault_what(gt__fault_draft *draft, const char *format, ...) { FORMAT_INTO(what); }
void gt__fault_remedy(gt__fault_draft *draft, const char *format, ...) { FORMAT_INTO(remedy); }
void gt__fault_command(gt__fault_draft *draft, const char *format, ...) { FORMAT_INTO(command); }

void gt__fault_add(gt_doctor_report *report, gt_doctor_fault_kind kind, gt_doctor_severity severity, gt__fault_draft *draft) {
    const char *from[3] = {draft->what, draft->remedy, draft->command};
    char *copies[3] = {NULL, NULL, NULL};
    if (report->status != GT_OK || report->fault_count == GT__DOCTOR_FAULTS) return;
    for (int i = 0; i < 3; i++) {
        copies[i] = gt__strdup(from[i]);
        if (copies[i]) continue;
        report->status = GT_OUT_OF_HOST_MEMORY;
        for (int k = 0; k < i; k++) gt__free(copies[k]);
        return;
    }
    report->faults[report->fault_count++] =
        (gt_doctor_fault){.kind = kind, .severity = severity, .what = copies[0], .remedy = copies[1], .command = copies[2]};
    draft->what[0] = draft->remedy[0] = draft->command[0] = '\0';
}

/* --- verdict ------------------------------------------------------------------------------------------------------------------------- */

bool gt__doctor_gpu_expected(const gt_doctor_report *report) {
    const gt__found_machine *machine = &report->machine;
    const char *wanted = gt__doctor_setting("NVIDIA_VISIBLE_DEVICES");
    if (report->gpu_count > 0 || report->driver.count > 0 || machine->wsl) return true;
    for (int32_t i = 0; i < machine->node_count; i++)
        if (machine->nodes[i].state != GT__NODE_MISSING) return true;
    /* A container sees the host's bus and kernel, whether it was given the GPUs or not. */
    if (machine->container[0]) return wanted && wanted[0] && strcmp(wanted, "void") != 0 && strcmp(wanted, "none") != 0;
    return machine->pci_gpus > 0 || machine->driver_files;
}

static const gt__gpu *first_usable(const gt_doctor_report *report) {
    const gt__gpu *best = NULL;
    for (int32_t i = 0; i < report->gpu_count; i++) {
        const gt__gpu *gpu = &report->gpus[i];
        if (gpu->usable && (!best || (gpu->cuda_index >= 0 && gpu->cuda_index < best->cuda_index))) best = gpu;
    }
    return best;
}

static void sort_faults(gt_doctor_report *report) {
    for (int32_t i = 1; i < report->fault_count; i++) { /* keeps the order of those of one severity */
        gt_doctor_fault fault = report->faults[i];
        int32_t at = i;
        for (; at > 0 && report->faults[at - 1].severity > fault.severity; at--) report->faults[at] = report->faults[at - 1];
        report->faults[at] = fault;
    }
}

static void judge(gt_doctor_report *report) {
    const gt__gpu *gpu = first_usable(report);
    const gt_doctor_fault *first = report->fault_count > 0 ? &report->faults[0] : NULL;
    bool failed = first && first->severity == GT_DOCTOR_ERROR;
    bool expected = gt__doctor_gpu_expected(report);
    char memory[64] = "", place[32] = "";
    if (gpu && !failed) {
        report->verdict = GT_DOCTOR_READY;
        if (gpu->has_memory)
            (void)snprintf(memory, sizeof memory, ", %.1f of %.1f GiB free", (double)gpu->memory_free / (1 << 30),
                           (double)gpu->memory_total / (1 << 30));
        if (gpu->cuda_index >= 0) (void)snprintf(place, sizeof place, " (cuda:%d)", gpu->cuda_index);
        (void)snprintf(report->summary, sizeof report->summary, "%s%s%s", gpu->name, place, memory);
        return;
    }
    bool module_wanted = report->module.path[0] != '\0';
    report->verdict = module_wanted && failed && expected ? GT_DOCTOR_BROKEN : GT_DOCTOR_CPU_ONLY;
    if (report->module.chosen && !report->module.is_file) report->verdict = GT_DOCTOR_BROKEN;
    (void)snprintf(report->summary, sizeof report->summary, "%s", first ? first->what : "no GPU can be used");
}

void gt__doctor_faults(gt_doctor_report *report) {
    gt__fault_draft *draft = gt__calloc(1, sizeof *draft);
    if (!draft) {
        report->status = GT_OUT_OF_HOST_MEMORY;
        return;
    }
    gt__faults_of_driver(report, draft);
    gt__faults_of_module(report, draft);
    gt__faults_of_libraries(report, draft);
    gt__faults_of_gpus(report, draft);
    gt__faults_of_cpu(report, draft);
    gt__free(draft);
    /* What keeps a GPU from being used that is not there is good to know and no more. */
    bool expected = gt__doctor_gpu_expected(report);
    for (int32_t i = 0; i < report->fault_count; i++) {
        gt_doctor_fault *fault = &report->faults[i];
        bool always = fault->kind == GT_DOCTOR_MODULE_BROKEN;
        if (!expected && !always && fault->severity == GT_DOCTOR_ERROR) fault->severity = GT_DOCTOR_NOTE;
    }
    sort_faults(report);
    judge(report);
}

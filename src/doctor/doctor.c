/* The public functions, and the order of the examination. */
#include "doctor/findings.h"

gt_status gt_doctor_options_init(gt_doctor_options *options, size_t size) {
    const gt_doctor_options defaults = {.struct_size = sizeof defaults};
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_doctor_options");
}

static void examine(gt_doctor_report *report) {
    gt__doctor_machine(report);
    gt__doctor_module(report);
    gt__doctor_libraries(report);
    gt__doctor_nvml(report);
    gt__doctor_driver(report);
    gt__doctor_libraries_close(report);
    gt__doctor_faults(report);
}

gt_status gt_doctor(const gt_doctor_options *options, gt_doctor_report **report) {
    GT_REQUIRE(report, GT_BAD_ARGUMENT, "gt_doctor: report is NULL");
    gt_doctor_report *made = gt__calloc(1, sizeof *made);
    if (!made) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = gt_doctor_options_init(&made->options, sizeof made->options);
    if (status == GT_OK && options) status = gt__options_read(&made->options, sizeof made->options, options, "gt_doctor_options");
    if (status == GT_OK) {
        examine(made);
        status = made->status;
    }
    if (status == GT_OK) status = gt__doctor_write_text(made);
    if (status == GT_OK) status = gt__doctor_write_json(made);
    if (status != GT_OK) {
        gt_doctor_report_destroy(made);
        return status;
    }
    made->options = (gt_doctor_options){0};
    *report = made;
    return GT_OK;
}

void gt_doctor_report_destroy(gt_doctor_report *report) {
    if (!report) return;
    for (int32_t i = 0; i < report->fault_count; i++) {
        gt__free((void *)(uintptr_t)report->faults[i].what);
        gt__free((void *)(uintptr_t)report->faults[i].remedy);
        gt__free((void *)(uintptr_t)report->faults[i].command);
    }
    gt__text_free(&report->text);
    gt__free(report->json);
    gt__free(report);
}

gt_doctor_verdict gt_doctor_report_verdict(const gt_doctor_report *report) { return report ? report->verdict : GT_DOCTOR_BROKEN; }

int32_t gt_doctor_report_faults(const gt_doctor_report *report) { return report ? report->fault_count : 0; }

const gt_doctor_fault *gt_doctor_report_fault(const gt_doctor_report *report, int32_t index) {
    return report && index >= 0 && index < report->fault_count ? &report->faults[index] : NULL;
}

const char *gt_doctor_report_text(const gt_doctor_report *report) { return report ? report->text.data : ""; }

const char *gt_doctor_report_json(const gt_doctor_report *report) { return report ? report->json : "{}"; }

const char *gt_doctor_fault_name(gt_doctor_fault_kind kind) {
    switch (kind) {
#define FAULT_NAME(name, value, text)                                                                                                      \
    case value:                                                                                                                            \
        return #name;
        GT_DOCTOR_FAULT_LIST(FAULT_NAME)
#undef FAULT_NAME
    default:
        return "?";
    }
}

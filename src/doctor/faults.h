/* The rules: what was found, as faults and a verdict. Each file adds its own; faults.c puts them in order. */
#ifndef GT_DOCTOR_FAULTS_H
#define GT_DOCTOR_FAULTS_H

#include "doctor/findings.h"

/* Texts are built in these and copied into the report. */
typedef struct gt__fault_draft {
    char what[1024], remedy[1024], command[GT__DOCTOR_PATH + 256];
} gt__fault_draft;
void gt__fault_what(gt__fault_draft *draft, const char *format, ...) GT__PRINTF(2, 3);
void gt__fault_remedy(gt__fault_draft *draft, const char *format, ...) GT__PRINTF(2, 3);
void gt__fault_command(gt__fault_draft *draft, const char *format, ...) GT__PRINTF(2, 3);
/* Adds it and empties the draft. */
void gt__fault_add(gt_doctor_report *report, gt_doctor_fault_kind kind, gt_doctor_severity severity, gt__fault_draft *draft);

/* Ought this process to have a GPU? */
bool gt__doctor_gpu_expected(const gt_doctor_report *report);

void gt__faults_of_module(gt_doctor_report *report, gt__fault_draft *draft);
void gt__faults_of_driver(gt_doctor_report *report, gt__fault_draft *draft);
void gt__faults_of_libraries(gt_doctor_report *report, gt__fault_draft *draft);
void gt__faults_of_gpus(gt_doctor_report *report, gt__fault_draft *draft);
void gt__faults_of_cpu(gt_doctor_report *report, gt__fault_draft *draft);

#endif

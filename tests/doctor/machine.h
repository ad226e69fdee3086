/* A made-up machine: a folder that stands for "/", another with the libraries that are installed, and the settings. Fresh ones hold a GPU that works. */
#ifndef GTRAIN_DOCTOR_MACHINE_H
#define GTRAIN_DOCTOR_MACHINE_H

#include "harness/test.h"

#include <gtrain/doctor.h>

#define MACHINE_PATH 512

typedef struct machine {
    char root[MACHINE_PATH], libraries[MACHINE_PATH], module[MACHINE_PATH];
    gt_doctor_options options; /* for the two above, with own_process */
    gt_doctor_report *report;
} machine;

/* Sets all settings that matter back, and makes it. */
void machine_make(test_case *t, machine *m);
/* A file below the root, with the folders that it lies in. */
void machine_write(machine *m, const char *path, const char *text);
/* Takes a file away below the root, or a folder with all in it. */
void machine_remove(machine *m, const char *path);
void machine_remove_library(machine *m, const char *name);
/* A GPU is no more: neither nodes nor driver nor anything on the bus. */
void machine_remove_gpu(machine *m);

/* Examines it: the verdict must be the expected one. The report is freed by machine_free, or by the next examination. */
void machine_examine(machine *m, gt_doctor_verdict expected);
/* The fault of that kind must be there, with that severity, and its sentence and command must hold these (NULL: anything). */
void machine_expect(machine *m, gt_doctor_fault_kind kind, gt_doctor_severity severity, const char *what, const char *command);
/* The fault of that kind must not be there. */
void machine_expect_not(machine *m, gt_doctor_fault_kind kind);
/* A line may be longer than 80 columns only if it is a command, or a path that is a line of its own or one word of it. */
void machine_check_width(const char *text);
void machine_free(machine *m);

#endif

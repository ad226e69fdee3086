/* gtrain/doctor.h: can this machine train on its GPUs, and if not, why not and what mends it.
 *
 * The doctor looks at what a CUDA context would need, one thing after the other: the library's module, the CUDA libraries, the driver, the device nodes, the
 * GPUs, and the settings that hide or slow them. It needs none of them to be there, opens no context, and leaves the process as it was: libraries that it
 * opens to ask for their version are closed again. The program gtrain-doctor prints what it finds.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * #include <stdio.h>
 * int main(void) {
 *     gt_doctor_report *report;
 *     if (gt_doctor(NULL, &report) != GT_OK) return 1;
 *     fputs(gt_doctor_report_text(report), stdout);
 *     if (gt_doctor_report_verdict(report) == GT_DOCTOR_BROKEN) {
 *         const gt_doctor_fault *first = gt_doctor_report_fault(report, 0);
 *         printf("first of all: %s\n", first->command);
 *     }
 *     gt_doctor_report_destroy(report);
 *     return 0;
 * }
 * @endcode
 */
#ifndef GTRAIN_DOCTOR_H
#define GTRAIN_DOCTOR_H

#include <gtrain/status.h>

GT_EXTERN_C_BEGIN

/* What the doctor has found. */
typedef struct gt_doctor_report gt_doctor_report;

/* The exit codes of gtrain-doctor. */
typedef int32_t gt_doctor_verdict;
enum {
    GT_DOCTOR_READY = 0,    /* at least one GPU can be trained on */
    GT_DOCTOR_CPU_ONLY = 1, /* nothing is broken, but there is no GPU for this process, or the library was built without CUDA */
    GT_DOCTOR_BROKEN = 2    /* a GPU should be usable and is not; the first fault says why */
};

/* How bad a fault is. */
typedef int32_t gt_doctor_severity;
enum {
    GT_DOCTOR_ERROR = 0,   /* no GPU can be used because of it */
    GT_DOCTOR_WARNING = 1, /* training works, slower or on fewer GPUs than it might */
    GT_DOCTOR_NOTE = 2     /* good to know */
};

/* name, value, meaning. Values never change; new ones go to the end. */
#define GT_DOCTOR_FAULT_LIST(X)                                                                                                            \
    X(NO_GPU, 1, "there is no NVIDIA GPU")                                                                                                 \
    X(BUILT_WITHOUT_CUDA, 2, "the library has no CUDA backend")                                                                            \
    X(MODULE_BROKEN, 3, "the CUDA backend is not a module of this library")                                                                \
    X(CONTAINER_WITHOUT_GPU, 4, "the container was started without the GPUs")                                                              \
    X(NO_DRIVER, 5, "the NVIDIA driver is not installed")                                                                                  \
    X(DRIVER_NOT_LOADED, 6, "the driver's kernel module is not loaded")                                                                    \
    X(DRIVER_TOO_OLD, 7, "the driver is older than the CUDA runtime")                                                                      \
    X(DRIVER_MISMATCH, 8, "the driver's library and kernel module are of different versions")                                              \
    X(DRIVER_STUB, 9, "the toolkit's stub was found in place of the driver")                                                               \
    X(DRIVER_FAILED, 10, "the driver does not start")                                                                                      \
    X(NO_PERMISSION, 11, "the user may not open the device")                                                                               \
    X(DEVICE_NODE_MISSING, 12, "a file in /dev is missing")                                                                                \
    X(LIBRARY_MISSING, 13, "a CUDA library is not installed")                                                                              \
    X(LIBRARY_PATH, 14, "a CUDA library is installed where it is not looked for")                                                          \
    X(LIBRARY_BROKEN, 15, "a CUDA library cannot be loaded")                                                                               \
    X(LIBRARY_TOO_OLD, 16, "a CUDA library is older than the one built for")                                                               \
    X(LIBRARY_MIXED, 17, "libraries that belong together are of different versions")                                                       \
    X(GPU_HIDDEN, 18, "CUDA_VISIBLE_DEVICES hides the GPUs")                                                                               \
    X(GPU_NOT_COMPILED_FOR, 19, "the library has no code for the GPU")                                                                     \
    X(GPU_FULL, 20, "the GPU's memory is taken")                                                                                           \
    X(GPU_PROHIBITED, 21, "the GPU's compute mode keeps the process out")                                                                  \
    X(GPU_LOST, 22, "the GPU does not answer")                                                                                             \
    X(GPU_MEMORY_ERRORS, 23, "the GPU's memory had errors that ECC could not correct")                                                     \
    X(GPU_THROTTLED, 24, "the GPU is slowed by heat or its power supply")                                                                  \
    X(CPU_SLOW, 25, "the CPU lacks vector instructions, or the library a fast CPU backend")                                                \
    X(CPU_LIMITED, 26, "the process is given less CPU time than it sees cores")                                                            \
    X(OMP_SETTING, 27, "a setting of OpenMP's takes cores away")

/* The faults, as GT_DOCTOR_FAULT_LIST has them. */
typedef int32_t gt_doctor_fault_kind;
enum {
#define GT_DOCTOR_FAULT_ENUM(name, value, text) GT_DOCTOR_##name = value,
    GT_DOCTOR_FAULT_LIST(GT_DOCTOR_FAULT_ENUM)
#undef GT_DOCTOR_FAULT_ENUM
};

/* Fields may be added at its end. */
typedef struct gt_doctor_fault {
    gt_doctor_fault_kind kind;   /* which fault it is */
    gt_doctor_severity severity; /* what it keeps one from */
    const char *what;            /* one sentence, with the names and numbers */
    const char *remedy;          /* what to do about it */
    const char *command;         /* that does it, for a shell; "" where there is none */
} gt_doctor_fault;

typedef struct gt_doctor_options {
    uint32_t struct_size; /* set by gt_doctor_options_init */
    /* Not 0: nothing else happens in this process. The driver is started (cuInit), which alone tells whether it would, and in which order it counts the
     * GPUs; processes forked afterwards cannot use them. cuDNN is opened, which cannot be unloaded again. 0 (default): both are asked for no more than can be told
     * without, unless something in the process uses them already. */
    int32_t own_process;
    const char *module;       /* path of libgtrain_cuda.so, "": none; NULL: the one that gt_context_create would load */
    const char *library_path; /* folders, separated by ':', in which alone libraries are looked for; NULL: where the dynamic loader looks */
    const char *root;         /* the folder that stands for "/" in what is looked up in /dev, /proc, /sys, /etc and the like; NULL: "/" */
} gt_doctor_options;

/* Fills `options` with the defaults. `size` is sizeof(gt_doctor_options) of the caller's header. BAD_ABI. @since 0.1 */
GT_API gt_status gt_doctor_options_init(gt_doctor_options *options, size_t size);

/* Examines the machine and this process. `options` may be NULL for the defaults. On success *report is owned by the caller. What is wrong with the machine
 * is in the report and no failure of the call: OUT_OF_HOST_MEMORY, BAD_ABI. From any thread. Takes some milliseconds, and seconds where a GPU has to wake
 * up. @since 0.1 */
GT_API gt_status gt_doctor(const gt_doctor_options *options, gt_doctor_report **report);
/* NULL is allowed. @since 0.1 */
GT_API void gt_doctor_report_destroy(gt_doctor_report *report);

GT_API gt_doctor_verdict gt_doctor_report_verdict(const gt_doctor_report *report); /* whether a GPU can be trained on. @since 0.1 */
/* The number of faults. @since 0.1 */
GT_API int32_t gt_doctor_report_faults(const gt_doctor_report *report);
/* The fault of that number, from 0: errors first, and of those the one to mend first. NULL beyond the last one. Lives as long as the report. @since 0.1 */
GT_API const gt_doctor_fault *gt_doctor_report_fault(const gt_doctor_report *report, int32_t index);
/* All of it, for people: lines of at most 80 characters (paths and commands excepted, which are never cut), the most important one first. Lives as long as
 * the report. @since 0.1 */
GT_API const char *gt_doctor_report_text(const gt_doctor_report *report);
/* All of it, for programs: {"verdict","summary","faults","gpus","libraries","driver","module","cpu","environment"}. Lives as long as the report. @since 0.1 */
GT_API const char *gt_doctor_report_json(const gt_doctor_report *report);
/* "LIBRARY_MISSING" …; "?" for an unknown value. Static. @since 0.1 */
GT_API const char *gt_doctor_fault_name(gt_doctor_fault_kind kind);

GT_EXTERN_C_END
#endif

/* The report's form, and what the examination does to the process: nothing. */
#include "machine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

TEST(unit, doctor_text_fits_a_terminal) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_GPUS", "4", 1);
    (void)setenv("STUB_FREE_MIB_0", "3", 1);
    (void)setenv("STUB_USERS", "9", 1);
    (void)setenv("STUB_ECC_ERRORS", "123456", 1);
    (void)setenv("STUB_THROTTLE", "0xff", 1);
    (void)setenv("STUB_CUBLASLT", "130000", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    machine_check_width(gt_doctor_report_text(m.report));
    (void)setenv("STUB_CUDNN", "8000", 1);
    (void)setenv("STUB_DRIVER", "11000", 1);
    (void)setenv("STUB_CAPABILITY", "52", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_check_width(gt_doctor_report_text(m.report));
    /* Errors come before warnings, warnings before notes. */
    for (int32_t i = 1; i < gt_doctor_report_faults(m.report); i++)
        CHECK(gt_doctor_report_fault(m.report, i - 1)->severity <= gt_doctor_report_fault(m.report, i)->severity);
    machine_free(&m);
}

TEST(unit, doctor_leaves_the_process_as_it_was) {
    machine m;
    char path[2 * MACHINE_PATH];
    machine_make(t, &m);
    m.options.own_process = 0;
    (void)snprintf(path, sizeof path, "%s/libcuda.so.1", m.libraries);
    void *before = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD); /* one that another case has started stays */
    machine_examine(&m, GT_DOCTOR_READY);
    CHECK(getenv("STUB_STARTED") == NULL); /* cuInit was not called */
    static const char *const names[] = {"libcuda.so.1",    "libnvidia-ml.so.1", "libcudart.so.13",    "libcublasLt.so.13",
                                        "libcublas.so.13", "libcudnn.so.9",     "libcudnn_graph.so.9"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", m.libraries, names[i]);
        void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
        if (handle && !(i == 0 && before)) FAIL("%s is still loaded", names[i]);
    }
    /* A driver that somebody has started is asked for its order of GPUs. */
    (void)setenv("STUB_STARTED", "1", 1);
    (void)setenv("STUB_GPUS", "2", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    CHECK(strstr(gt_doctor_report_json(m.report), "\"index\":1,\"cuda_index\":0"));
    machine_free(&m);
}

TEST(unit, doctor_refuses_what_is_wrong) {
    gt_doctor_options options;
    gt_doctor_report *report = NULL;
    CHECK_STATUS(gt_doctor(NULL, NULL), GT_BAD_ARGUMENT);
    CHECK_OK(gt_doctor_options_init(&options, sizeof options));
    options.struct_size = 0;
    CHECK_STATUS(gt_doctor(&options, &report), GT_BAD_ABI);
    CHECK(report == NULL);
    CHECK_STATUS(gt_doctor_options_init(&options, 0), GT_BAD_ABI);
    gt_doctor_report_destroy(NULL);
    CHECK_EQ_INT(gt_doctor_report_faults(NULL), 0);
    CHECK(gt_doctor_report_fault(NULL, 0) == NULL);
    CHECK_EQ_STR(gt_doctor_report_text(NULL), "");
    CHECK_EQ_STR(gt_doctor_fault_name(GT_DOCTOR_GPU_FULL), "GPU_FULL");
    CHECK_EQ_STR(gt_doctor_fault_name(9999), "?");
}

/* This machine, whatever it is. On its own: a stand-in for the driver, once started, stays in a process under the driver's name. */
#include "machine.h"

#include <stdio.h>

TEST(unit, doctor_looks_at_this_machine) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("CUDA's libraries leak what their own C++ runtime allocates when they are closed");
#endif
    gt_doctor_report *report = NULL;
    CHECK_OK(gt_doctor(NULL, &report));
    CHECK(gt_doctor_report_verdict(report) >= GT_DOCTOR_READY && gt_doctor_report_verdict(report) <= GT_DOCTOR_BROKEN);
    machine_check_width(gt_doctor_report_text(report));
    CHECK(strncmp(gt_doctor_report_json(report), "{\"format\":1,", 12) == 0);
    gt_doctor_report_destroy(report);
}

/* On a machine with a GPU that contexts can use, the doctor must find it ready, before the driver is started and after. */
TEST_CUDA_ONLY(cuda, doctor_agrees_with_contexts) {
    gt_doctor_report *report = NULL;
    CHECK_OK(gt_doctor(NULL, &report));
    gt_doctor_verdict before = gt_doctor_report_verdict(report);
    gt_doctor_report_destroy(report);
    gt_context *ctx = test_context(t); /* where there is no GPU, the case ends here */
    CHECK_EQ_INT(before, GT_DOCTOR_READY);
    CHECK_OK(gt_doctor(NULL, &report));
    if (gt_doctor_report_verdict(report) != GT_DOCTOR_READY) FAIL("%s", gt_doctor_report_text(report));
    CHECK(strstr(gt_doctor_report_json(report), "\"started\":true,\"start_code\":0"));
    char name[160];
    (void)snprintf(name, sizeof name, "READY: %s", gt_context_device_name(ctx)); /* "NVIDIA H200 (cuda:0)" */
    if (strncmp(gt_doctor_report_text(report), name, strlen(name)) != 0) FAIL("not %s: %s", name, gt_doctor_report_text(report));
    CHECK(strstr(gt_doctor_report_json(report), "\"memory_free\":"));
    gt_doctor_report_destroy(report);
    CHECK_OK(gt_context_synchronize(ctx)); /* which goes on as if nothing had happened */
}

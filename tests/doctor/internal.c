/* Parts of the doctor that are not seen from outside: files that are made up, memory that runs out, what a build has code for. */
#include "machine.h"

#include "backend/architectures.h"
#include "doctor/elf_file.h"
#include "unit/fake_device.h"

#include <stdio.h>
#include <stdlib.h>

TEST(unit, architectures_run_on_their_own_major_version) {
    static const char *const list = "75-real 80-real 90-real";
    CHECK_EQ_INT(gt__architectures_cover(list, 75), GT__GPU_CODE_MACHINE);
    CHECK_EQ_INT(gt__architectures_cover(list, 86), GT__GPU_CODE_MACHINE); /* 80 runs on 86 */
    CHECK_EQ_INT(gt__architectures_cover(list, 90), GT__GPU_CODE_MACHINE);
    CHECK_EQ_INT(gt__architectures_cover("75-real 86-real 90-real", 80), GT__GPU_CODE_NONE); /* 86 does not run on 80 */
    CHECK_EQ_INT(gt__architectures_cover(list, 100), GT__GPU_CODE_NONE);
    CHECK_EQ_INT(gt__architectures_cover(list, 70), GT__GPU_CODE_NONE);
    CHECK_EQ_INT(gt__architectures_cover("", 90), GT__GPU_CODE_NONE);
    CHECK_EQ_INT(gt__architectures_cover("90a-real", 90), GT__GPU_CODE_MACHINE);
    CHECK_EQ_INT(gt__architectures_cover("100a", 103), GT__GPU_CODE_NONE);
    CHECK_EQ_INT(gt__architectures_cover("100f", 103), GT__GPU_CODE_MACHINE);
    CHECK_EQ_INT(gt__architectures_cover("100f", 120), GT__GPU_CODE_NONE);
}

TEST(unit, architectures_with_ptx_run_on_newer_gpus) {
    CHECK_EQ_INT(gt__architectures_cover("75-real;90", 90), GT__GPU_CODE_MACHINE);
    CHECK_EQ_INT(gt__architectures_cover("75-real;90", 120), GT__GPU_CODE_PTX);
    CHECK_EQ_INT(gt__architectures_cover("80-virtual", 90), GT__GPU_CODE_PTX);
    CHECK_EQ_INT(gt__architectures_cover("80-virtual;90-real", 90), GT__GPU_CODE_MACHINE); /* the best, in any order */
    CHECK_EQ_INT(gt__architectures_cover("90-virtual", 80), GT__GPU_CODE_NONE);
}

TEST(unit, elf_file_is_read_without_loading_it) {
    gt__elf_file elf;
    CHECK(gt__elf_read(STUBS "/libgtrain_cuda.so", &elf));
    CHECK(gt__elf_runs_here(&elf));
    CHECK(strstr(elf.note, "\narchitectures=80-real 90-real 100\n"));
    int found = 0;
    for (int32_t i = 0; i < elf.needed_count; i++)
        found += strcmp(elf.needed[i], "libcudnn.so.9") == 0 || strcmp(elf.needed[i], "libcudart.so.13") == 0;
    CHECK_EQ_INT(found, 2);
    CHECK(elf.runpath[0] != '\0'); /* of the build tree */
    CHECK(!gt__elf_read("/nowhere", &elf));
    CHECK(elf.why[0] != '\0');
    CHECK(!gt__elf_read("/etc/passwd", &elf));
    CHECK_EQ_STR(elf.why, "it is not a shared library");
}

/* Cut at any byte, and with any byte of its headers, its dynamic section or its notes changed: told as it is or refused, and never a crash. */
TEST(unit, elf_file_that_is_made_up) {
    static unsigned char bytes[1 << 20];
    gt__elf_file elf;
    FILE *file = fopen(STUBS "/libgtrain_cuda.so", "rb");
    CHECK(file != NULL);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);
    CHECK(size > 4096 && size < sizeof bytes);
    const char *path = test_temp_path(t, "made_up.so");
    uint64_t state = 1;
    for (int round = 0; round < 600; round++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t at = (size_t)(state >> 33) % (round % 2 ? 1024 : size), length = size;
        unsigned char before = bytes[at];
        if (round % 3 == 0)
            length = at;
        else
            bytes[at] = (unsigned char)(round % 5 == 0 ? 0xff : state >> 20);
        file = fopen(path, "wb");
        CHECK(file != NULL && fwrite(bytes, 1, length, file) == length && fclose(file) == 0);
        if (!gt__elf_read(path, &elf)) CHECK(elf.why[0] != '\0');
        CHECK(memchr(elf.note, '\0', sizeof elf.note) && memchr(elf.runpath, '\0', sizeof elf.runpath));
        bytes[at] = before;
    }
}

TEST(contract, E1_doctor_survives_any_host_allocation_that_fails) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_GPUS", "2", 1);
    (void)setenv("STUB_CUDNN", "8000", 1);
    (void)setenv("STUB_THROTTLE", "0x40", 1);
    gt_doctor_report *report = NULL;
    CHECK_OK(gt_doctor(&m.options, &report)); /* what is made once in a process is made now */
    gt_doctor_report_destroy(report);
    int64_t live = fake_host_live();
    int failures = 0;
    for (int64_t after = 0;; after++) {
        report = NULL;
        fake_host_fail(after);
        gt_status status = gt_doctor(&m.options, &report);
        int failed = fake_host_failed();
        fake_host_fail(-1);
        if (!failed) {
            CHECK_OK(status);
            gt_doctor_report_destroy(report);
            break;
        }
        failures++;
        /* The C library's own, for a folder or a file that is read, may fail without harm. */
        if (status != GT_OK) {
            CHECK_EQ_INT(status, GT_OUT_OF_HOST_MEMORY);
            CHECK(report == NULL);
        }
        gt_doctor_report_destroy(report);
        CHECK_EQ_INT(fake_host_live(), live);
    }
    CHECK(failures > 20);
    machine_free(&m);
}

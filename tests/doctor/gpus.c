/* Faults of GPUs one by one, of what hides them, and of the CPU. */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>

TEST(unit, doctor_full_gpu) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_FREE_MIB", "80", 1);
    (void)setenv("STUB_USERS", "2", 1);
    machine_write(&m, "/proc/4712/comm", "python3\n");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(
        &m, GT_DOCTOR_GPU_FULL, GT_DOCTOR_ERROR,
        "GPU 0 (Stub GPU) is full: 80 MiB of 80.0 GiB are free: process 4712 (python3) holds 2.0 GiB, process 4711 holds 1.0 GiB.",
        "kill 4712");
    (void)setenv("STUB_USERS", "0", 1); /* another container's processes are not seen */
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_GPU_FULL, GT_DOCTOR_ERROR, "80 MiB of 80.0 GiB are free.", "nvidia-smi --query-compute-apps");
    (void)setenv("STUB_FREE_MIB", "1024", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    machine_free(&m);
}

TEST(unit, doctor_full_gpu_beside_a_free_one) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_GPUS", "2", 1);
    (void)setenv("STUB_FREE_MIB_0", "80", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    machine_expect(&m, GT_DOCTOR_GPU_FULL, GT_DOCTOR_WARNING, "GPU 0", "export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1");
    /* The stand-in's CUDA counts backwards. */
    CHECK(strstr(gt_doctor_report_text(m.report), "READY: Stub GPU (cuda:0), 70.0 of 80.0 GiB free"));
    CHECK(strstr(gt_doctor_report_json(m.report), "\"index\":1,\"cuda_index\":0"));
    CHECK(strstr(gt_doctor_report_json(m.report), "\"index\":0,\"cuda_index\":1"));
    machine_free(&m);
}

TEST(unit, doctor_many_processes_on_one_gpu) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_USERS", "100", 1);
    (void)setenv("STUB_FREE_MIB", "0", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_GPU_FULL, GT_DOCTOR_ERROR, "process 4810 holds 100.0 GiB, process 4809 holds 99.0 GiB, ", "kill 4810");
    machine_expect(&m, GT_DOCTOR_GPU_FULL, GT_DOCTOR_ERROR, " and 97 more", NULL);
    machine_free(&m);
}

TEST(unit, doctor_hidden_gpus) {
    machine m;
    machine_make(t, &m);
    for (int start = 0; start < 2; start++) { /* with and without the driver's word */
        (void)setenv("STUB_GPUS", "1", 1);
        (void)unsetenv("STUB_STARTED");
        (void)unsetenv("STUB_INIT");
        m.options.own_process = start;
        if (start) (void)setenv("STUB_INIT", "100", 1);
        (void)setenv("CUDA_VISIBLE_DEVICES", "", 1);
        machine_examine(&m, GT_DOCTOR_CPU_ONLY);
        machine_expect(&m, GT_DOCTOR_GPU_HIDDEN, GT_DOCTOR_WARNING, "CUDA_VISIBLE_DEVICES=\"\" hides the GPU",
                       "unset CUDA_VISIBLE_DEVICES");
        machine_expect_not(&m, GT_DOCTOR_DRIVER_FAILED);
        (void)setenv("CUDA_VISIBLE_DEVICES", "7", 1);
        machine_examine(&m, GT_DOCTOR_CPU_ONLY);
        machine_expect(&m, GT_DOCTOR_GPU_HIDDEN, GT_DOCTOR_WARNING, "\"7\"", NULL);
    }
    machine_free(&m);
}

TEST(unit, doctor_reads_cuda_visible_devices) {
    static const struct {
        const char *list;
        const char *order[3]; /* of GPU 0, 1, 2 in JSON */
    } cases[] = {
        {"2,0", {"\"index\":0,\"cuda_index\":1", "\"index\":1,\"name\"", "\"index\":2,\"cuda_index\":0"}},
        {"GPU-1111", {"\"index\":0,\"name\"", "\"index\":1,\"cuda_index\":0", "\"index\":2,\"name\""}},
        {"1,-1,0", {"\"index\":0,\"name\"", "\"index\":1,\"cuda_index\":0", "\"index\":2,\"name\""}},
        {" 0 ", {"\"index\":0,\"cuda_index\":0", "\"index\":1,\"name\"", "\"index\":2,\"name\""}},
    };
    machine m;
    machine_make(t, &m);
    m.options.own_process = 0;
    (void)setenv("STUB_GPUS", "3", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)setenv("CUDA_VISIBLE_DEVICES", cases[i].list, 1);
        machine_examine(&m, GT_DOCTOR_READY);
        for (int k = 0; k < 3; k++)
            if (!strstr(gt_doctor_report_json(m.report), cases[i].order[k])) FAIL("%s: %s", cases[i].list, gt_doctor_report_json(m.report));
    }
    machine_free(&m);
}

TEST(unit, doctor_gpu_without_code) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_CAPABILITY", "75", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_GPU_NOT_COMPILED_FOR, GT_DOCTOR_ERROR,
                   "has compute capability 7.5; this gtrain was built for 80-real 90-real 100.", "-DGTRAIN_CUDA_ARCHITECTURES=75");
    /* 12.0 runs PTX of 10.0, if the driver is as new as the compiler. */
    (void)setenv("STUB_CAPABILITY", "120", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    char newer[MACHINE_PATH];
    (void)snprintf(newer, sizeof newer, "%s/newer_cuda.so", STUBS);
    m.options.module = newer;
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_GPU_NOT_COMPILED_FOR, GT_DOCTOR_ERROR,
                   "needs code compiled by the driver, which knows CUDA 13.0; this gtrain was compiled with CUDA 13.2.", "=120");
    (void)setenv("STUB_DRIVER", "13020", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    (void)setenv("STUB_DRIVER", "13000", 1);
    (void)setenv("STUB_CAPABILITY", "90", 1); /* machine code needs no compiler */
    machine_examine(&m, GT_DOCTOR_READY);
    machine_free(&m);
}

TEST(unit, doctor_gpu_in_another_compute_mode) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_MODE", "2", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_GPU_PROHIBITED, GT_DOCTOR_ERROR, "Prohibited", "sudo nvidia-smi -i 0 -c DEFAULT");
    (void)setenv("STUB_MODE", "3", 1);
    machine_examine(&m, GT_DOCTOR_READY); /* nobody else is on it */
    (void)setenv("STUB_USERS", "1", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_GPU_PROHIBITED, GT_DOCTOR_ERROR, "Exclusive, and another process uses it", NULL);
    machine_free(&m);
}

TEST(unit, doctor_lost_gpu) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_GPUS", "2", 1);
    (void)setenv("STUB_LOST", "0", 1);
    m.options.own_process = 0;
    machine_examine(&m, GT_DOCTOR_READY);
    machine_expect(&m, GT_DOCTOR_GPU_LOST, GT_DOCTOR_WARNING, "GPU 0", "nvidia-smi --gpu-reset -i 0");
    (void)setenv("STUB_GPUS", "1", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_GPU_LOST, GT_DOCTOR_ERROR, "does not answer", NULL);
    machine_free(&m);
}

TEST(unit, doctor_gpu_in_poor_health_still_trains) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_ECC_ERRORS", "3", 1);
    (void)setenv("STUB_REMAP", "1", 1);
    (void)setenv("STUB_THROTTLE", "0x40", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    machine_expect(&m, GT_DOCTOR_GPU_MEMORY_ERRORS, GT_DOCTOR_WARNING,
                   "3 memory errors that ECC could not correct; rows wait to be replaced", "sudo nvidia-smi --gpu-reset -i 0");
    machine_expect(&m, GT_DOCTOR_GPU_THROTTLED, GT_DOCTOR_WARNING, "slowed down by heat (91 C)", "nvidia-smi -q -d PERFORMANCE");
    (void)setenv("STUB_REMAP", "2", 1);
    (void)setenv("STUB_THROTTLE", "0x80", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    machine_expect(&m, GT_DOCTOR_GPU_MEMORY_ERRORS, GT_DOCTOR_WARNING, "could not be replaced", "nvidia-smi -q -d ECC,ROW_REMAPPER -i 0");
    machine_expect(&m, GT_DOCTOR_GPU_THROTTLED, GT_DOCTOR_WARNING, "the power supply's brake", NULL);
    /* Idle clocks, clocks that the user has set, and the power cap are how it is meant to be. */
    (void)setenv("STUB_ECC_ERRORS", "0", 1);
    (void)setenv("STUB_REMAP", "0", 1);
    (void)setenv("STUB_THROTTLE", "0x7", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    machine_expect_not(&m, GT_DOCTOR_GPU_MEMORY_ERRORS);
    machine_expect_not(&m, GT_DOCTOR_GPU_THROTTLED);
    machine_free(&m);
}

TEST(unit, doctor_gpu_that_nvml_does_not_know) {
    machine m;
    machine_make(t, &m);
    machine_remove_library(&m, "libnvidia-ml.so.1");
    machine_examine(&m, GT_DOCTOR_READY);
    CHECK(strstr(gt_doctor_report_text(m.report), "READY: Driver's GPU 0 (cuda:0)\n"));
    CHECK(strstr(gt_doctor_report_text(m.report), "Driver's GPU 0, compute capability 9.0, cuda:0"));
    machine_free(&m);
}

TEST(unit, doctor_cpu) {
    machine m;
    machine_make(t, &m);
    machine_write(&m, "/sys/fs/cgroup/cpu.max", "50000 100000\n");
    machine_examine(&m, GT_DOCTOR_READY);
    CHECK(strstr(gt_doctor_report_text(m.report), "A CPU, "));
    CHECK(strstr(gt_doctor_report_text(m.report), "time for 0.5"));
    CHECK(strstr(gt_doctor_report_json(m.report), "\"features\":\"avx2 fma f16c avx512f\""));
    CHECK(!strstr(gt_doctor_report_text(m.report), "no AVX2"));
    machine_write(&m, "/sys/fs/cgroup/cpu.max", "max 100000\n");
    machine_write(&m, "/proc/cpuinfo", "flags : fpu sse2 avx avx2x\n");
    machine_examine(&m, GT_DOCTOR_READY);
    machine_expect_not(&m, GT_DOCTOR_CPU_LIMITED);
    machine_expect(&m, GT_DOCTOR_CPU_SLOW, GT_DOCTOR_NOTE, "no AVX2", NULL);
    machine_free(&m);
}

TEST(unit, doctor_cpu_time_that_is_limited) {
    machine m;
    machine_make(t, &m);
    machine_write(&m, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "25000\n"); /* of the first version of control groups */
    machine_write(&m, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    machine_examine(&m, GT_DOCTOR_READY);
    machine_expect(&m, GT_DOCTOR_CPU_LIMITED, GT_DOCTOR_WARNING, "grants 0.2 cores' worth of time", "taskset -c 0-0 COMMAND");
    machine_free(&m);
}

TEST(unit, doctor_openmp_settings) {
    static const char *const settings[][2] = {
        {"OMP_WAIT_POLICY", "ACTIVE"}, {"OMP_DYNAMIC", "true"},    {"OMP_THREAD_LIMIT", "0"},
        {"OMP_PROC_BIND", "close"},    {"GOMP_CPU_AFFINITY", "0"},
    };
    machine m;
    machine_make(t, &m);
    machine_examine(&m, GT_DOCTOR_READY);
    machine_expect_not(&m, GT_DOCTOR_OMP_SETTING);
    if (!strstr(gt_doctor_report_json(m.report), "\"openmp\":true")) {
        machine_free(&m);
        SKIP("this build does not use OpenMP");
    }
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        (void)setenv(settings[i][0], settings[i][1], 1);
        machine_examine(&m, GT_DOCTOR_READY);
        machine_expect(&m, GT_DOCTOR_OMP_SETTING, GT_DOCTOR_WARNING, settings[i][0], settings[i][0]);
        (void)unsetenv(settings[i][0]);
    }
    (void)setenv("OMP_NUM_THREADS", "1", 1); /* the library sets the number itself */
    (void)setenv("OMP_PROC_BIND", "false", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    machine_expect_not(&m, GT_DOCTOR_OMP_SETTING);
    (void)unsetenv("OMP_NUM_THREADS");
    (void)unsetenv("OMP_PROC_BIND");
    machine_free(&m);
}

/* Faults of the CUDA libraries and of the module that needs them. */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes a file in place of a library. */
static void write_library(const machine *m, const char *name, const char *text) {
    char path[2 * MACHINE_PATH];
    (void)snprintf(path, sizeof path, "%s/%s", m->libraries, name);
    (void)unlink(path);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    CHECK(fputs(text, file) >= 0 && fclose(file) == 0);
}

static void copy_file(const char *from, const char *to) {
    char bytes[4096];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    CHECK(in && out);
    for (size_t count; (count = fread(bytes, 1, sizeof bytes, in)) > 0;) CHECK(fwrite(bytes, 1, count, out) == count);
    CHECK(fclose(in) == 0 && fclose(out) == 0);
}

/* A library that is installed below the root, where the loader does not look. */
static void install_elsewhere(machine *m, const char *folder, const char *name) {
    char from[MACHINE_PATH], to[2 * MACHINE_PATH];
    (void)snprintf(to, sizeof to, "%s/placeholder", folder);
    machine_write(m, to, "");
    (void)snprintf(from, sizeof from, "%s/%s", STUBS, name);
    (void)snprintf(to, sizeof to, "%s%s/%s", m->root, folder, name);
    CHECK(symlink(from, to) == 0);
}

TEST(unit, doctor_missing_libraries) {
    machine m;
    machine_make(t, &m);
    machine_remove_library(&m, "libcudnn.so.9");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_MISSING, GT_DOCTOR_ERROR, "libcudnn.so.9, which the CUDA backend needs, was not found",
                   "sudo apt-get install cudnn9-cuda-13");
    machine_remove_library(&m, "libcublas.so.13");
    machine_remove_library(&m, "libcudart.so.13");
    machine_write(&m, "/etc/os-release", "ID=fedora\n");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_MISSING, GT_DOCTOR_ERROR, "libcudart.so.13, libcublas.so.13 and libcudnn.so.9,",
                   "sudo dnf install cuda-cudart-13-0 libcublas-13-0 libcudnn9-cuda-13");
    machine_write(&m, "/etc/os-release", "ID=gentoo\n");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_MISSING, GT_DOCTOR_ERROR, NULL, "pip install nvidia-cuda-runtime nvidia-cublas nvidia-cudnn-cu13");
    machine_free(&m);
}

TEST(unit, doctor_libraries_off_the_library_path) {
    machine m;
    char command[4 * MACHINE_PATH];
    machine_make(t, &m);
    machine_remove_library(&m, "libcudnn.so.9");
    machine_remove_library(&m, "libcublas.so.13");
    machine_remove_library(&m, "libcublasLt.so.13");
    install_elsewhere(&m, "/usr/local/cuda-13.0/lib64", "libcublas.so.13");
    install_elsewhere(&m, "/usr/local/cuda-13.0/lib64", "libcublasLt.so.13");
    install_elsewhere(&m, "/usr/local/lib/python3.12/dist-packages/nvidia/cudnn/lib", "libcudnn.so.9");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    (void)snprintf(command, sizeof command,
                   "export LD_LIBRARY_PATH=\"%s/usr/local/cuda-13.0/lib64:%s/usr/local/lib/python3.12/dist-packages/nvidia/cudnn/lib:"
                   "$LD_LIBRARY_PATH\"",
                   m.root, m.root);
    machine_expect(&m, GT_DOCTOR_LIBRARY_PATH, GT_DOCTOR_ERROR, "libcublasLt.so.13, libcublas.so.13 and libcudnn.so.9 are installed",
                   command);
    machine_expect_not(&m, GT_DOCTOR_LIBRARY_MISSING);
    machine_free(&m);
}

TEST(unit, doctor_broken_library) {
    machine m;
    machine_make(t, &m);
    write_library(&m, "libcudnn.so.9", "not a library at all");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_BROKEN, GT_DOCTOR_ERROR, "cuDNN cannot be loaded: ", "cudnn9-cuda-13");
    machine_expect(&m, GT_DOCTOR_LIBRARY_BROKEN, GT_DOCTOR_ERROR, m.libraries, NULL);
    machine_free(&m);
    /* A library of that name which is another. */
    char from[MACHINE_PATH], to[2 * MACHINE_PATH];
    (void)snprintf(from, sizeof from, "%s/libcudart.so.13", STUBS);
    (void)snprintf(to, sizeof to, "%s/libcublasLt.so.13", m.libraries);
    CHECK(unlink(to) == 0 && symlink(from, to) == 0);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_BROKEN, GT_DOCTOR_ERROR, "cublasLtGetVersion does not tell its version", "libcublas-13-0");
    machine_free(&m);
}

TEST(unit, doctor_cudnn_without_its_parts) {
    machine m;
    machine_make(t, &m);
    machine_remove_library(&m, "libcudnn_graph.so.9");
    machine_examine(&m, GT_DOCTOR_BROKEN); /* and the process lives on */
    machine_expect(&m, GT_DOCTOR_LIBRARY_BROKEN, GT_DOCTOR_ERROR, "cuDNN cannot be loaded: its part libcudnn_graph.so.9 was not found",
                   "cudnn9-cuda-13");
    write_library(&m, "libcudnn_graph.so.9", "not a library at all");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_BROKEN, GT_DOCTOR_ERROR, "its part libcudnn_graph.so.9 does not load: ", NULL);
    machine_free(&m);
}

TEST(unit, doctor_light_examination_of_cudnn) {
    machine m;
    char from[2 * MACHINE_PATH], to[2 * MACHINE_PATH];
    machine_make(t, &m);
    m.options.own_process = 0;
    (void)setenv("STUB_CUDNN", "90100", 1); /* it is not asked */
    machine_examine(&m, GT_DOCTOR_READY);
    CHECK(strstr(gt_doctor_report_text(m.report), "cuDNN 9, built for 9.14.0\n"));
    /* As packages install it: the name is a link to a file whose name tells. */
    machine_remove_library(&m, "libcudnn.so.9");
    (void)snprintf(from, sizeof from, "%s/libcudnn.so.9", STUBS);
    (void)snprintf(to, sizeof to, "%s/libcudnn.so.9.20.1", m.libraries);
    copy_file(from, to);
    (void)snprintf(from, sizeof from, "%s/libcudnn.so.9", m.libraries);
    CHECK(symlink("libcudnn.so.9.20.1", from) == 0);
    machine_examine(&m, GT_DOCTOR_READY);
    CHECK(strstr(gt_doctor_report_text(m.report), "cuDNN 9.20.1, built for 9.14.0\n"));
    machine_remove_library(&m, "libcudnn_graph.so.9");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_BROKEN, GT_DOCTOR_ERROR, "its part libcudnn_graph.so.9 was not found", NULL);
    machine_free(&m);
}

TEST(unit, doctor_cudnn_without_what_it_computes_with) {
    machine m;
    machine_make(t, &m);
    machine_remove_library(&m, "libcudnn_engines_precompiled.so.9");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_BROKEN, GT_DOCTOR_ERROR,
                   "its part libcudnn_engines_precompiled.so.9 was not found, with which it computes", NULL);
    write_library(&m, "libcudnn_engines_runtime_compiled.so.9", ""); /* one kind of engines is enough */
    machine_examine(&m, GT_DOCTOR_READY);
    machine_remove_library(&m, "libcudnn_heuristic.so.9");
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_BROKEN, GT_DOCTOR_ERROR, "libcudnn_heuristic.so.9", NULL);
    machine_free(&m);
}

TEST(unit, doctor_library_for_another_processor_is_passed_over) {
    machine m;
    machine_make(t, &m);
    write_library(&m, "libcudnn.so.9", "\177ELF\001\001\001");
    char folders[2 * MACHINE_PATH];
    (void)snprintf(folders, sizeof folders, "/nowhere::%s:%s", m.libraries, STUBS);
    m.options.library_path = folders;
    /* Of a file with a cut head nobody knows for whom it is. */
    machine_examine(&m, GT_DOCTOR_BROKEN);
    char head[65] = "\177ELF\002\001\001";
    FILE *file;
    char path[2 * MACHINE_PATH];
    (void)snprintf(path, sizeof path, "%s/libcudnn.so.9", m.libraries);
    head[18] = 8; /* MIPS */
    head[54] = 56;
    CHECK((file = fopen(path, "w")) != NULL && fwrite(head, 1, 64, file) == 64 && fclose(file) == 0);
    machine_examine(&m, GT_DOCTOR_READY);
    machine_free(&m);
}

TEST(unit, doctor_library_too_old) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_CUDNN", "8907", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_TOO_OLD, GT_DOCTOR_ERROR, "cuDNN 8.9.7 is too old: gtrain's CUDA backend needs 9.0.0 or newer (",
                   "cudnn9-cuda-13");
    machine_expect(&m, GT_DOCTOR_LIBRARY_TOO_OLD, GT_DOCTOR_ERROR, "/libcudnn.so.9)", NULL);
    (void)setenv("STUB_CUDNN", "90000", 1); /* the oldest that will do */
    machine_examine(&m, GT_DOCTOR_READY);
    (void)setenv("STUB_CUDNN", "99900", 1);
    machine_examine(&m, GT_DOCTOR_READY);
    (void)setenv("STUB_CUBLASLT", "120805", 1);
    (void)setenv("STUB_CUBLAS", "120805", 1);
    (void)setenv("STUB_RUNTIME", "12080", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_LIBRARY_TOO_OLD, GT_DOCTOR_ERROR, "CUDA runtime 12.8 is too old: gtrain's CUDA backend needs 13.0",
                   "cuda-cudart-13-0");
    CHECK(strstr(gt_doctor_report_text(m.report), "cuBLASLt 12.8.5 is too old"));
    machine_free(&m);
}

TEST(unit, doctor_mixed_cublas) {
    machine m;
    machine_make(t, &m);
    (void)setenv("STUB_CUBLASLT", "130000", 1);
    machine_examine(&m, GT_DOCTOR_READY); /* it may work */
    machine_expect(&m, GT_DOCTOR_LIBRARY_MIXED, GT_DOCTOR_WARNING, "cuBLAS 13.1.0", "export LD_LIBRARY_PATH=\"");
    machine_expect(&m, GT_DOCTOR_LIBRARY_MIXED, GT_DOCTOR_WARNING, "cuBLASLt 13.0.0", m.libraries);
    machine_free(&m);
}

TEST(unit, doctor_build_without_cuda) {
    machine m;
    machine_make(t, &m);
    m.options.module = ""; /* none: neither the one that is looked for nor another */
    machine_examine(&m, GT_DOCTOR_CPU_ONLY);
    machine_expect(&m, GT_DOCTOR_BUILT_WITHOUT_CUDA, GT_DOCTOR_ERROR, "built without CUDA", "-DGTRAIN_CUDA=ON");
    machine_remove_gpu(&m);
    machine_examine(&m, GT_DOCTOR_CPU_ONLY);
    machine_expect(&m, GT_DOCTOR_BUILT_WITHOUT_CUDA, GT_DOCTOR_NOTE, NULL, NULL);
    CHECK_EQ_INT(gt_doctor_report_fault(m.report, 0)->kind, GT_DOCTOR_NO_GPU); /* what matters more */
    machine_free(&m);
}

TEST(unit, doctor_module_that_is_none) {
    machine m;
    char other[MACHINE_PATH + 16];
    machine_make(t, &m);
    (void)snprintf(other, sizeof other, "%s/other_abi.so", STUBS);
    m.options.module = other;
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_MODULE_BROKEN, GT_DOCTOR_ERROR, "other_abi.so does not belong to this libgtrain", "cmake --install");
    (void)snprintf(other, sizeof other, "%s/libcudart.so.13", STUBS); /* a library, but no module */
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_MODULE_BROKEN, GT_DOCTOR_ERROR, "does not belong", NULL);
    m.options.module = NULL;
    (void)setenv("GTRAIN_CUDA_MODULE", "/nowhere/libgtrain_cuda.so", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_MODULE_BROKEN, GT_DOCTOR_ERROR, "/nowhere/libgtrain_cuda.so cannot be used: it cannot be opened",
                   "unset GTRAIN_CUDA_MODULE");
    (void)setenv("GTRAIN_CUDA_MODULE", "/etc", 1);
    machine_examine(&m, GT_DOCTOR_BROKEN);
    machine_expect(&m, GT_DOCTOR_MODULE_BROKEN, GT_DOCTOR_ERROR, "it is not a file", NULL);
    (void)setenv("GTRAIN_CUDA_MODULE", m.module, 1);
    machine_examine(&m, GT_DOCTOR_READY);
    (void)unsetenv("GTRAIN_CUDA_MODULE");
    machine_free(&m);
}

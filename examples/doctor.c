/* gtrain-doctor: says whether this machine can train on its GPUs and, if not, why not and what mends it. */
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <string.h>

enum { MISUSED = 64 }; /* not one of the verdicts, which are the exit codes */

static int usage(const char *program, FILE *out) {
    fprintf(out,
            "usage: %s [--json] [--light] [--module FILE] [--library-path FOLDERS] [--root FOLDER]\n"
            "\n"
            "Examines the driver, the CUDA libraries, the GPUs and the CPU.\n"
            "\n"
            "  --json                  for programs\n"
            "  --light                 neither starts the driver nor opens cuDNN: quicker, but finds less\n"
            "  --module FILE           the CUDA backend, in place of the one that would be loaded\n"
            "  --library-path FOLDERS  look for libraries in these alone (separated by ':')\n"
            "  --root FOLDER           look for /dev, /proc, /sys, /etc there\n"
            "\n"
            "Exit code: 0 ready for training on a GPU, 1 CPU only, 2 broken: a GPU should work and does not.\n",
            program);
    return out == stdout ? 0 : MISUSED;
}

int main(int argc, char **argv) {
    gt_doctor_options options;
    gt_doctor_options_init(&options, sizeof options);
    options.own_process = 1;
    int json = 0;
    for (int i = 1; i < argc; i++) {
        const char **value = NULL;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return usage(argv[0], stdout);
        if (strcmp(argv[i], "--json") == 0) {
            json = 1;
            continue;
        }
        if (strcmp(argv[i], "--light") == 0) {
            options.own_process = 0;
            continue;
        }
        if (strcmp(argv[i], "--module") == 0) value = &options.module;
        if (strcmp(argv[i], "--library-path") == 0) value = &options.library_path;
        if (strcmp(argv[i], "--root") == 0) value = &options.root;
        if (value == NULL || i + 1 == argc) return usage(argv[0], stderr);
        *value = argv[++i];
    }

    gt_doctor_report *report;
    if (gt_doctor(&options, &report) != GT_OK) {
        fprintf(stderr, "%s: %s\n", argv[0], gt_last_error()->message);
        return MISUSED;
    }
    if (json)
        puts(gt_doctor_report_json(report));
    else
        fputs(gt_doctor_report_text(report), stdout);
    int code = gt_doctor_report_verdict(report);
    gt_doctor_report_destroy(report);
    return fflush(stdout) == 0 ? code : MISUSED;
}

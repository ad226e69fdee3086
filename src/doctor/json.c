/* The report for programs. Numbers that nobody knows are null or left out; keys never change their meaning. */
#include "base/json_write.h"
#include "doctor/findings.h"

static void text_or_null(gt__json *json, const char *key, const char *text) { gt__json_string(json, key, text[0] ? text : NULL); }

static void version(gt__json *json, const char *key, gt__version version) {
    char text[32];
    text_or_null(json, key, gt__version_text(version, text, sizeof text));
}

static void write_faults(gt__json *json, const gt_doctor_report *report) {
    static const char *const severities[] = {"error", "warning", "note"};
    gt__json_begin(json, "faults", '[');
    for (int32_t i = 0; i < report->fault_count; i++) {
        const gt_doctor_fault *fault = &report->faults[i];
        gt__json_newline(json);
        gt__json_begin(json, NULL, '{');
        gt__json_string(json, "kind", gt_doctor_fault_name(fault->kind));
        gt__json_string(json, "severity", severities[fault->severity]);
        gt__json_string(json, "what", fault->what);
        gt__json_string(json, "remedy", fault->remedy);
        text_or_null(json, "command", fault->command);
        gt__json_end(json, '}');
    }
    gt__json_end(json, ']');
}

static void write_gpus(gt__json *json, const gt_doctor_report *report) {
    gt__json_newline(json);
    gt__json_begin(json, "gpus", '[');
    for (int32_t i = 0; i < report->gpu_count; i++) {
        const gt__gpu *gpu = &report->gpus[i];
        gt__json_newline(json);
        gt__json_begin(json, NULL, '{');
        if (gpu->index >= 0) gt__json_integer(json, "index", gpu->index);
        if (gpu->cuda_index >= 0) gt__json_integer(json, "cuda_index", gpu->cuda_index);
        gt__json_string(json, "name", gpu->name);
        text_or_null(json, "uuid", gpu->uuid);
        text_or_null(json, "pci", gpu->pci);
        gt__json_bool(json, "usable", gpu->usable);
        gt__json_bool(json, "hidden", gpu->hidden);
        gt__json_bool(json, "lost", gpu->lost);
        if (gpu->capability) {
            gt__json_integer(json, "compute_capability_major", gpu->capability / 10);
            gt__json_integer(json, "compute_capability_minor", gpu->capability % 10);
        }
        if (gpu->memory_total) gt__json_unsigned(json, "memory_total", gpu->memory_total);
        if (gpu->has_memory) gt__json_unsigned(json, "memory_free", gpu->memory_free);
        gt__json_bool(json, "mig", gpu->mig == 1);
        if (gpu->ecc >= 0) gt__json_bool(json, "ecc", gpu->ecc == 1);
        gt__json_unsigned(json, "ecc_uncorrected", gpu->ecc_uncorrected);
        gt__json_unsigned(json, "throttle_reasons", gpu->throttle);
        if (gpu->temperature >= 0) gt__json_integer(json, "temperature", gpu->temperature);
        gt__json_begin(json, "processes", '[');
        for (int32_t k = 0; k < GT__MIN(gpu->user_count, GT__DOCTOR_USERS); k++) {
            gt__json_begin(json, NULL, '{');
            gt__json_integer(json, "id", gpu->users[k].process);
            text_or_null(json, "name", gpu->users[k].name);
            gt__json_unsigned(json, "bytes", gpu->users[k].bytes);
            gt__json_end(json, '}');
        }
        gt__json_end(json, ']');
        gt__json_end(json, '}');
    }
    gt__json_end(json, ']');
}

static void write_libraries(gt__json *json, const gt_doctor_report *report) {
    static const char *const states[] = {"missing", "elsewhere", "broken", "found"};
    gt__json_newline(json);
    gt__json_begin(json, "libraries", '{');
    for (int i = 0; i < GT__LIBRARY_COUNT; i++) {
        const gt__library *library = &report->libraries[i];
        gt__json_newline(json);
        gt__json_begin(json, library->key, '{');
        gt__json_string(json, "name", library->name);
        text_or_null(json, "file", library->soname);
        gt__json_string(json, "state", states[library->state]);
        gt__json_bool(json, "needed", library->needed);
        gt__json_bool(json, "loaded", library->loaded);
        version(json, "version", library->found);
        version(json, "built_for", library->built);
        version(json, "at_least", library->least);
        text_or_null(json, "path", library->path);
        text_or_null(json, "error", library->why);
        gt__json_end(json, '}');
    }
    gt__json_end(json, '}');
}

static void write_driver(gt__json *json, const gt_doctor_report *report) {
    const gt__found_driver *driver = &report->driver;
    gt__json_newline(json);
    gt__json_begin(json, "driver", '{');
    text_or_null(json, "version", driver->version);
    text_or_null(json, "kernel_module", driver->kernel_version);
    version(json, "cuda", driver->cuda);
    gt__json_bool(json, "started", driver->started);
    if (driver->asked) gt__json_integer(json, "start_code", driver->start_code);
    if (driver->nvml_asked) gt__json_integer(json, "nvml_code", driver->nvml_code);
    if (driver->count >= 0) gt__json_integer(json, "gpus", driver->count);
    gt__json_end(json, '}');

    const gt__found_module *module = &report->module;
    gt__json_newline(json);
    gt__json_begin(json, "module", '{');
    text_or_null(json, "path", module->path);
    gt__json_bool(json, "linked_in", module->linked_in);
    version(json, "cuda", module->cuda);
    text_or_null(json, "architectures", module->architectures);
    text_or_null(json, "error", module->why);
    gt__json_end(json, '}');
}

static void write_machine(gt__json *json, const gt_doctor_report *report) {
    static const char *const node_states[] = {"missing", "forbidden", "open", "failed"};
    static const char *const settings[] = {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "LD_LIBRARY_PATH",
        "GTRAIN_CUDA_MODULE",
        "OMP_NUM_THREADS",
        "OMP_THREAD_LIMIT",
        "OMP_PROC_BIND",
        "OMP_WAIT_POLICY",
        "OMP_DYNAMIC",
        "GOMP_CPU_AFFINITY",
    };
    const gt__found_machine *machine = &report->machine;
    gt__json_newline(json);
    gt__json_begin(json, "cpu", '{');
    text_or_null(json, "name", machine->cpu_name);
    text_or_null(json, "features", machine->cpu_features);
    gt__json_integer(json, "cores", machine->cores);
    gt__json_integer(json, "cores_allowed", machine->cores_allowed);
    if (machine->quota > 0) gt__json_number(json, "quota", machine->quota);
    gt__json_bool(json, "openmp", machine->openmp);
    gt__json_end(json, '}');

    gt__json_newline(json);
    gt__json_begin(json, "environment", '{');
    text_or_null(json, "container", machine->container);
    gt__json_bool(json, "wsl", machine->wsl);
    text_or_null(json, "distribution", machine->distribution);
    if (machine->pci_known) gt__json_integer(json, "gpus_on_bus", machine->pci_gpus);
    gt__json_begin(json, "nodes", '{');
    for (int32_t i = 0; i < machine->node_count; i++) gt__json_string(json, machine->nodes[i].path, node_states[machine->nodes[i].state]);
    gt__json_end(json, '}');
    gt__json_begin(json, "settings", '{');
    for (size_t i = 0; i < GT__COUNT(settings); i++)
        if (gt__doctor_setting(settings[i])) gt__json_string(json, settings[i], gt__doctor_setting(settings[i]));
    gt__json_end(json, '}');
    gt__json_end(json, '}');
}

gt_status gt__doctor_write_json(gt_doctor_report *report) {
    static const char *const verdicts[] = {"ready", "cpu_only", "broken"};
    gt__json json = {0};
    gt__json_begin(&json, NULL, '{');
    gt__json_integer(&json, "format", 1);
    gt__json_string(&json, "gtrain", gt_version_string());
    gt__json_string(&json, "verdict", verdicts[report->verdict]);
    gt__json_string(&json, "summary", report->summary);
    gt__json_newline(&json);
    write_faults(&json, report);
    write_gpus(&json, report);
    write_libraries(&json, report);
    write_driver(&json, report);
    write_machine(&json, report);
    gt__json_end(&json, '}');
    gt_status status = json.status;
    if (status == GT_OK) report->json = gt__strdup(json.text.data);
    if (status == GT_OK && !report->json) status = GT_OUT_OF_HOST_MEMORY;
    gt__json_free(&json);
    return status;
}

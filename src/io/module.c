/* Modules by PyTorch's names. */
#include "io/load.h"
#include "io/save.h"
#include "nn/module.h"

/* --- saving --------------------------------------------------------------------------------------------------------------------------------- */
/* Parameter or buffer number i; buffers are brought up to date. */
static gt_status tensor_at(gt_module *module, int32_t i, const char **name, gt_tensor **tensor) {
    int32_t parameters = gt_module_parameter_count(module);
    return i < parameters ? gt_module_parameter(module, i, name, tensor) : gt_module_buffer(module, i - parameters, name, tensor);
}

static int32_t count_tensors(const gt_module *module) { return gt_module_parameter_count(module) + gt_module_buffer_count(module); }

gt_status gt__save_module(gt__save_list *list, gt_module *module, const char *prefix) {
    int32_t count = count_tensors(module);
    for (int32_t i = 0; i < count; ++i) {
        const char *name;
        gt_tensor *tensor;
        GT_TRY(tensor_at(module, i, &name, &tensor));
        GT_TRY(gt__save_tensor(list, tensor, "%s%s", prefix, name));
    }
    return GT_OK;
}

gt_status gt_module_save(gt_module *module, const char *path, const gt_text_pair *metadata, int32_t n_metadata) {
    static const char who[] = "gt_module_save";
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE(path != NULL, GT_BAD_ARGUMENT, "%s: path is NULL", who);
    GT_TRY(gt_module_check(module));
    gt__save_list list = {.who = who};
    gt_status status = gt__save_metadata(&list, metadata, n_metadata);
    if (status == GT_OK) status = gt__save_module(&list, module, "");
    if (status == GT_OK) status = gt__save_write(&list, path);
    gt__save_free(&list);
    return status;
}

/* --- loading -------------------------------------------------------------------------------------------------------------------------------- */
/* The other names of one tensor are its own too: the first of them that the file has is loaded, and others must say the same. */
static gt_status load_tied(gt__load_plan *plan, const char *name, int64_t first, int64_t again) {
    const gt__entry *a = gt__safetensors_entry(plan->file, first), *b = gt__safetensors_entry(plan->file, again);
    if (first == again || (a->type == b->type && a->end - a->begin == b->end - b->begin &&
                           memcmp(plan->file->data + a->begin, plan->file->data + b->begin, (size_t)(a->end - a->begin)) == 0))
        return GT_OK;
    return gt__load_mismatch(plan, true, GT_MISMATCH_DIFFERENT, name, "is one weight with \"%s\" here, and another one in the file",
                             a->name);
}

typedef struct tied {
    gt_tensor *tensor;
    int64_t entry; /* -1: none of its names so far is in the file */
    const char *name;
} tied;

static gt_status full_name(const char *prefix, const char *name, gt__text *text) {
    text->length = 0;
    return gt__text_add(text, "%s%s", prefix, name);
}

/* Asks for every name; fills seen[], one entry a tensor. */
static gt_status ask(gt__load_plan *plan, gt_module *module, const char *prefix, bool convert, gt__text *text, tied *seen, int32_t *n) {
    int32_t count = count_tensors(module);
    for (int32_t i = 0; i < count; ++i) {
        const char *name;
        gt_tensor *tensor;
        GT_TRY(tensor_at(module, i, &name, &tensor));
        GT_TRY(full_name(prefix, name, text));
        int64_t entry = gt__load_find(plan, text->data);
        int32_t k = 0;
        while (k < *n && seen[k].tensor != tensor) ++k;
        if (k == *n) seen[(*n)++] = (tied){.tensor = tensor, .entry = -1, .name = name};
        if (entry < 0) continue;
        if (seen[k].entry >= 0) {
            GT_TRY(load_tied(plan, text->data, seen[k].entry, entry));
            continue;
        }
        seen[k].entry = entry;
        GT_TRY(gt__load_entry(plan, entry, text->data, tensor, convert));
    }
    return GT_OK;
}

gt_status gt__load_module(gt__load_plan *plan, gt_module *module, const char *prefix, bool strict, bool convert) {
    gt__text text = {0};
    int32_t n = 0;
    tied *seen = gt__calloc((size_t)count_tensors(module), sizeof *seen);
    gt_status status = seen ? ask(plan, module, prefix, convert, &text, seen, &n) : GT_OUT_OF_HOST_MEMORY;
    for (int32_t k = 0; k < n && status == GT_OK; ++k) {
        if (seen[k].entry >= 0) continue;
        status = full_name(prefix, seen[k].name, &text);
        if (status == GT_OK) status = gt__load_mismatch(plan, strict, GT_MISMATCH_MISSING, text.data, "is not in the file");
    }
    if (status == GT_OK) status = gt__load_unexpected(plan, strict, prefix);
    gt__text_free(&text);
    gt__free(seen);
    return status;
}

static const gt_module_load_options defaults = {.struct_size = sizeof(gt_module_load_options), .strict = 1};

gt_status gt_module_load_options_init(gt_module_load_options *options, size_t size) {
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_module_load_options");
}

gt_status gt_module_load(gt_module *module, const char *path, const gt_module_load_options *options) {
    static const char who[] = "gt_module_load";
    GT_REQUIRE_HANDLE(module);
    gt_module_load_options o = defaults;
    if (options) GT_TRY(gt__options_read(&o, sizeof o, options, "gt_module_load_options"));
    GT_TRY(gt_module_check(module));
    GT_TRY(gt__tensor_check(module->anchor, who));
    gt__load_plan plan = {.who = who, .ctx = module->ctx, .on_mismatch = o.on_mismatch, .user = o.user};
    gt_status status = gt__load_open(&plan, path);
    if (status == GT_OK) status = gt__load_module(&plan, module, "", o.strict != 0, true);
    if (status == GT_OK) status = gt__load_prepare(&plan);
    if (status == GT_OK) status = gt__load_commit(&plan);
    gt__load_close(&plan);
    return status;
}

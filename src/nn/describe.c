/* A module as text. */
#include "nn/module.h"

#include <math.h>
#include <stdio.h>

const char *gt__number_text(char *buffer, size_t size, double value) {
    (void)snprintf(buffer, size, "%g", value);
    for (char *c = buffer; isfinite(value) && *c; ++c)
        if (strchr("0123456789+-e", *c) == NULL) *c = '.'; /* the decimal point of the process's locale */
    return buffer;
}

static gt_status add_grouped(gt__text *text, uint64_t value) {
    if (value >= 1000) {
        GT_TRY(add_grouped(text, value / 1000));
        return gt__text_add(text, ",%03u", (unsigned)(value % 1000));
    }
    return gt__text_add(text, "%u", (unsigned)value);
}

static gt_status add_bytes(gt__text *text, uint64_t bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) return gt__text_add(text, "%u bytes", (unsigned)bytes);
    size_t unit = 1;
    while (unit + 1 < GT__COUNT(units) && bytes >= 1024u * 1024u) {
        bytes /= 1024;
        unit++;
    }
    uint64_t tenths = bytes * 10 / 1024;
    return gt__text_add(text, "%llu.%u %s", (unsigned long long)(tenths / 10), (unsigned)(tenths % 10), units[unit]);
}

static gt_status add_module(gt__text *text, const gt_module *m, int depth) {
    GT_TRY(gt__text_add(text, "%s(", m->kind_name));
    if (m->kind->describe) GT_TRY(m->kind->describe(m, text));
    for (int32_t i = 0; i < m->n_children; ++i) {
        const char *name = m->children[i]->name;
        GT_TRY(gt__text_add(text, "%s%*s(%s): ", i == 0 ? "\n" : "", 2 * (depth + 1), "", name[0] ? name : "-"));
        GT_TRY(add_module(text, m->children[i], depth + 1));
    }
    GT_TRY(gt__text_add(text, "%*s)", m->n_children ? 2 * depth : 0, ""));
    uint64_t elements = 0, bytes = 0;
    bool frozen = true;
    for (int32_t i = 0; i < m->n_slots; ++i) {
        const gt__slot *slot = &m->slots[i];
        if (slot->is_buffer) continue;
        elements += (uint64_t)gt_tensor_numel(slot->tensor);
        bytes += gt_tensor_bytes(slot->tensor);
        if (slot->tensor->requires_grad) frozen = false;
    }
    if (elements > 0) {
        GT_TRY(gt__text_add(text, "  # "));
        GT_TRY(add_grouped(text, elements));
        GT_TRY(gt__text_add(text, " parameters, "));
        GT_TRY(add_bytes(text, bytes));
        if (frozen) GT_TRY(gt__text_add(text, ", frozen"));
    }
    if (m->failed != GT_OK) GT_TRY(gt__text_add(text, "  # a child is missing"));
    return gt__text_add(text, "\n");
}

static gt_status add_totals(gt__text *text, gt_module *module) {
    int64_t elements;
    uint64_t bytes, buffer_bytes = 0;
    GT_TRY(gt_module_size(module, &elements, &bytes));
    for (int32_t i = 0; i < module->n_buffers; ++i) buffer_bytes += gt_tensor_bytes(module->table[module->n_parameters + i].tensor);
    GT_TRY(add_grouped(text, (uint64_t)elements));
    GT_TRY(gt__text_add(text, " parameters in %d tensors, ", module->n_parameters));
    GT_TRY(add_bytes(text, bytes));
    if (module->n_buffers > 0) {
        GT_TRY(gt__text_add(text, "; %d buffers, ", module->n_buffers));
        GT_TRY(add_bytes(text, buffer_bytes));
    }
    return gt__text_add(text, "\n");
}

gt_status gt_module_describe(gt_module *module, char *buffer, size_t size, size_t *needed) {
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE(buffer != NULL || size == 0, GT_BAD_ARGUMENT, "gt_module_describe: the buffer is NULL and its size %zu", size);
    gt__text text = {0};
    gt_status status = add_module(&text, module, 0);
    if (status == GT_OK) status = add_totals(&text, module);
    if (status == GT_OK) {
        if (size > 0) {
            size_t length = GT__MIN(text.length, size - 1);
            memcpy(buffer, text.data, length);
            buffer[length] = '\0';
        }
        if (needed) *needed = text.length + 1;
    }
    gt__text_free(&text);
    return status;
}

/* Looking at a tree: parameters, buffers and modules by number and by dotted name. */
#include "nn/module.h"

#include <stdlib.h>

static int32_t count_below(const gt_module *m, bool buffers) {
    int32_t count = 0;
    for (int32_t i = 0; i < m->n_slots; ++i) count += m->slots[i].is_buffer == buffers;
    for (int32_t i = 0; i < m->n_children; ++i) count += count_below(m->children[i], buffers);
    return count;
}

/* The part of a name that belongs to the modules above the one that is asked is left out: from a path "a.b.c", asked at "a", "b.c". */
static const char *relative(const char *full, size_t skip) {
    size_t length = strlen(full);
    if (length <= skip) return "";
    return full + skip + (skip > 0 && full[skip] == '.' ? 1 : 0);
}

static gt_status collect(gt_module *m, size_t skip, bool buffers, gt__named_tensor **at) {
    for (int32_t i = 0; i < m->n_slots; ++i) {
        const gt__slot *slot = &m->slots[i];
        if (slot->is_buffer != buffers) continue;
        gt__text name = {0};
        const char *path = relative(m->path, skip);
        GT_TRY(gt__text_add(&name, "%s%s%s", path, path[0] ? "." : "", slot->name));
        *(*at)++ = (gt__named_tensor){.name = name.data, .tensor = slot->tensor};
    }
    for (int32_t i = 0; i < m->n_children; ++i) GT_TRY(collect(m->children[i], skip, buffers, at));
    return GT_OK;
}

gt_status gt__module_table(gt_module *m) {
    if (m->table) return GT_OK;
    m->n_parameters = count_below(m, false);
    m->n_buffers = count_below(m, true);
    m->table = gt__calloc((size_t)(m->n_parameters + m->n_buffers), sizeof *m->table);
    if (m->table == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__named_tensor *at = m->table;
    gt_status status = collect(m, strlen(m->path), false, &at);
    if (status == GT_OK) status = collect(m, strlen(m->path), true, &at);
    if (status != GT_OK) gt__module_table_drop(m);
    return status;
}

static gt_status flush_below(gt_module *m) {
    if (m->kind->flush) GT_TRY(m->kind->flush(m));
    for (int32_t i = 0; i < m->n_children; ++i) GT_TRY(flush_below(m->children[i]));
    return GT_OK;
}

int32_t gt__module_counters(gt_module *m, int64_t *values, bool write) {
    int32_t n = 0;
    if (m->kind->counter) {
        int64_t *counter = m->kind->counter(m);
        if (values && write) *counter = values[n];
        if (values && !write) values[n] = *counter;
        ++n;
    }
    for (int32_t i = 0; i < m->n_children; ++i) n += gt__module_counters(m->children[i], values ? values + n : NULL, write);
    return n;
}

int32_t gt__module_counters_add(gt_module *m, const int64_t *values) {
    int32_t n = 0;
    if (m->kind->counter) *m->kind->counter(m) += values[n++];
    for (int32_t i = 0; i < m->n_children; ++i) n += gt__module_counters_add(m->children[i], values + n);
    return n;
}

const char *gt_module_kind(const gt_module *module) { return module ? module->kind_name : ""; }
const char *gt_module_path(const gt_module *module) { return module ? module->path : ""; }
gt_context *gt_module_context(const gt_module *module) { return module ? module->anchor->ctx : NULL; }
int32_t gt_module_parameter_count(const gt_module *module) { return module ? count_below(module, false) : 0; }
int32_t gt_module_buffer_count(const gt_module *module) { return module ? count_below(module, true) : 0; }
int32_t gt_module_child_count(const gt_module *module) { return module ? module->n_children : 0; }

gt_status gt_module_parameter(gt_module *module, int32_t index, const char **name, gt_tensor **tensor) {
    GT_REQUIRE_HANDLE(module);
    GT_TRY(gt__module_table(module));
    GT_REQUIRE(index >= 0 && index < module->n_parameters, GT_BAD_ARGUMENT, "%s \"%s\" has %d parameters, number %d was asked for",
               module->kind_name, module->path, module->n_parameters, index);
    if (name) *name = module->table[index].name;
    if (tensor) *tensor = module->table[index].tensor;
    return GT_OK;
}

gt_status gt_module_buffer(gt_module *module, int32_t index, const char **name, gt_tensor **tensor) {
    GT_REQUIRE_HANDLE(module);
    GT_TRY(gt__module_table(module));
    GT_REQUIRE(index >= 0 && index < module->n_buffers, GT_BAD_ARGUMENT, "%s \"%s\" has %d buffers, number %d was asked for",
               module->kind_name, module->path, module->n_buffers, index);
    if (tensor) GT_TRY(flush_below(module));
    if (name) *name = module->table[module->n_parameters + index].name;
    if (tensor) *tensor = module->table[module->n_parameters + index].tensor;
    return GT_OK;
}

/* Up to eight names, those that share the longest beginning with what was asked for first. */
static gt_status not_found(const gt_module *m, const char *name) {
    gt__text known = {0};
    int32_t total = m->n_parameters + m->n_buffers, listed = 0;
    for (size_t common = strlen(name) + 1; common-- > 0 && listed < 8;) {
        for (int32_t i = 0; i < total && listed < 8; ++i) {
            size_t same = 0;
            while (name[same] && name[same] == m->table[i].name[same]) ++same;
            if (same == common && gt__text_add(&known, "%s%s", listed ? ", " : "", m->table[i].name) == GT_OK) ++listed;
        }
    }
    gt_status status = GT_RAISE(GT_NOT_FOUND, "%s \"%s\" has no parameter or buffer \"%s\"; it has %d, such as %s", m->kind_name, m->path,
                                name, total, known.data ? known.data : "none");
    gt__text_free(&known);
    return status;
}

gt_status gt_module_find(gt_module *module, const char *name, gt_tensor **tensor) {
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE(name != NULL && tensor != NULL, GT_BAD_ARGUMENT, "gt_module_find: %s is NULL", name ? "tensor" : "name");
    GT_TRY(gt__module_table(module));
    for (int32_t i = 0; i < module->n_parameters + module->n_buffers; ++i) {
        if (strcmp(module->table[i].name, name) != 0) continue;
        if (i >= module->n_parameters) GT_TRY(flush_below(module));
        *tensor = module->table[i].tensor;
        return GT_OK;
    }
    return not_found(module, name);
}

gt_status gt_module_child(gt_module *module, int32_t index, const char **name, gt_module **child) {
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE(index >= 0 && index < module->n_children, GT_BAD_ARGUMENT, "%s \"%s\" has %d children, number %d was asked for",
               module->kind_name, module->path, module->n_children, index);
    if (name) *name = module->children[index]->name;
    if (child) *child = module->children[index];
    return GT_OK;
}

/* A child without a name of its own is looked through. */
static gt_module *find_below(gt_module *m, const char *path) {
    for (int32_t i = 0; i < m->n_children; ++i) {
        gt_module *child = m->children[i];
        size_t length = strlen(child->name);
        gt_module *found = NULL;
        if (length == 0) {
            found = find_below(child, path);
        } else if (strncmp(path, child->name, length) == 0) {
            if (path[length] == '\0') return child;
            if (path[length] == '.') found = find_below(child, path + length + 1);
        }
        if (found) return found;
    }
    return NULL;
}

gt_status gt_module_find_module(gt_module *module, const char *path, gt_module **found) {
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE(path != NULL && found != NULL, GT_BAD_ARGUMENT, "gt_module_find_module: %s is NULL", path ? "found" : "path");
    gt_module *m = path[0] ? find_below(module, path) : module;
    GT_REQUIRE(m != NULL, GT_NOT_FOUND, "%s \"%s\" has no module \"%s\" below it", module->kind_name, module->path, path);
    *found = m;
    return GT_OK;
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t) * (gt_tensor *const *)a, y = (uintptr_t) * (gt_tensor *const *)b;
    return x < y ? -1 : x > y;
}

gt_status gt_module_size(gt_module *module, int64_t *elements, uint64_t *bytes) {
    GT_REQUIRE_HANDLE(module);
    GT_TRY(gt__module_table(module));
    gt_tensor **sorted = gt__calloc((size_t)module->n_parameters, sizeof *sorted);
    if (sorted == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < module->n_parameters; ++i) sorted[i] = module->table[i].tensor;
    qsort(sorted, (size_t)module->n_parameters, sizeof *sorted, by_address);
    int64_t sum = 0;
    uint64_t sum_bytes = 0;
    for (int32_t i = 0; i < module->n_parameters; ++i) {
        if (i > 0 && sorted[i] == sorted[i - 1]) continue;
        sum += gt_tensor_numel(sorted[i]);
        sum_bytes += gt_tensor_bytes(sorted[i]);
    }
    gt__free(sorted);
    if (elements) *elements = sum;
    if (bytes) *bytes = sum_bytes;
    return GT_OK;
}

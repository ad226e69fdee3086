/* Putting modules into one another: ownership, paths and tensor names. */
#include "nn/module.h"

#include <stdio.h>

/* "a" and "b" to "a.b"; an empty part adds no dot. */
static char *join(const char *a, const char *b) {
    size_t la = strlen(a), lb = strlen(b), dot = la > 0 && lb > 0 ? 1 : 0;
    char *text = gt__malloc(la + dot + lb + 1);
    if (text == NULL) return NULL;
    memcpy(text, a, la);
    if (dot) text[la] = '.';
    memcpy(text + la + dot, b, lb + 1);
    return text;
}

/* Phase one: everything that can fail. */
static gt_status rename_prepare(gt_module *m, const char *above) {
    m->new_path = join(above, m->name);
    m->new_tag = m->new_path ? gt__context_string(m->ctx, m->new_path) : NULL;
    if (m->new_tag == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < m->n_slots; ++i) {
        m->slots[i].new_name = join(m->new_path, m->slots[i].name);
        if (m->slots[i].new_name == NULL) return GT_OUT_OF_HOST_MEMORY;
    }
    for (int32_t i = 0; i < m->n_children; ++i) GT_TRY(rename_prepare(m->children[i], m->new_path));
    return GT_OK;
}

static void rename_finish(gt_module *m, bool commit) {
    if (commit) {
        gt__free(m->path);
        m->path = m->new_path;
        m->tag = m->new_tag;
    } else {
        gt__free(m->new_path);
    }
    m->new_path = NULL;
    for (int32_t i = 0; i < m->n_slots; ++i) {
        gt__slot *slot = &m->slots[i];
        if (commit) {
            gt__free(slot->tensor->name);
            slot->tensor->name = slot->new_name;
        } else {
            gt__free(slot->new_name);
        }
        slot->new_name = NULL;
    }
    for (int32_t i = 0; i < m->n_children; ++i) rename_finish(m->children[i], commit);
}

gt_status gt__module_rename(gt_module *m) {
    GT_TRY(gt__tensor_check(m->anchor, m->kind_name));
    gt_status status = rename_prepare(m, m->parent ? m->parent->path : "");
    rename_finish(m, status == GT_OK);
    return status;
}

void gt__module_table_drop(gt_module *m) {
    for (; m; m = m->parent) {
        for (int32_t i = 0; m->table && i < m->n_parameters + m->n_buffers; ++i) gt__free(m->table[i].name);
        gt__free(m->table);
        m->table = NULL;
    }
}

gt_status gt__module_check_name(const gt_module *m, const char *name) {
    GT_REQUIRE(name != NULL && name[0] != '\0', GT_BAD_ARGUMENT, "%s \"%s\": a name is empty", m->kind_name, m->path);
    GT_REQUIRE(strchr(name, '.') == NULL, GT_BAD_ARGUMENT, "%s \"%s\": the name \"%s\" has a dot; dots join the names of a path",
               m->kind_name, m->path, name);
    for (int32_t i = 0; i < m->n_slots; ++i)
        GT_REQUIRE(strcmp(m->slots[i].name, name) != 0, GT_BAD_ARGUMENT, "%s \"%s\" has a tensor named \"%s\" already", m->kind_name,
                   m->path, name);
    for (int32_t i = 0; i < m->n_children; ++i)
        GT_REQUIRE(strcmp(m->children[i]->name, name) != 0, GT_BAD_ARGUMENT, "%s \"%s\" has a child named \"%s\" already", m->kind_name,
                   m->path, name);
    return GT_OK;
}

static int32_t height_of(const gt_module *m) {
    int32_t height = 0;
    for (int32_t i = 0; i < m->n_children; ++i) {
        int32_t below = height_of(m->children[i]);
        height = GT__MAX(height, below);
    }
    return height + 1;
}

static int32_t depth_of(const gt_module *m) {
    int32_t depth = 0;
    for (; m; m = m->parent) ++depth;
    return depth;
}

static bool contains(const gt_module *m, const gt_module *other) {
    for (; other; other = other->parent)
        if (other == m) return true;
    return false;
}

/* The first failure stays: later ones are often its consequences. */
gt_status gt__module_mark_failed(gt_module *parent, gt_status status) {
    if (parent->failed == GT_OK) {
        char message[512];
        (void)snprintf(message, sizeof message, "%s", gt_last_error()->message);
        parent->failed = status;
        parent->failed_message = gt__strdup(message);
    }
    return status;
}

static gt_status attach(gt_module *parent, const char *name, gt_module *child) {
    GT_REQUIRE(parent->ctx == child->ctx, GT_BAD_DEVICE, "%s \"%s\": the child \"%s\" belongs to another context", parent->kind_name,
               parent->path, name);
    int32_t depth = depth_of(parent) + height_of(child);
    GT_REQUIRE(depth <= GT__MODULE_MAX_DEPTH, GT_BAD_ARGUMENT,
               "%s \"%s\": with the child \"%s\" the tree would be %d deep, at most %d are allowed", parent->kind_name, parent->path, name,
               depth, GT__MODULE_MAX_DEPTH);
    if (parent->n_children == parent->cap_children) {
        int32_t capacity = GT__MAX(parent->cap_children * 2, 8);
        gt_module **grown = gt__realloc(parent->children, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        parent->children = grown;
        parent->cap_children = capacity;
    }
    char *copy = gt__strdup(name);
    if (copy == NULL) return GT_OUT_OF_HOST_MEMORY;
    char *old = child->name;
    child->name = copy;
    child->parent = parent;
    gt_status status = gt__module_rename(child);
    if (status != GT_OK) {
        child->name = old;
        child->parent = NULL;
        gt__free(copy);
        return status;
    }
    gt__free(old);
    parent->children[parent->n_children++] = child;
    gt__module_table_drop(parent);
    return GT_OK;
}

gt_status gt__module_attach(gt_module *parent, const char *name, gt_module *child) {
    if (parent == NULL || child == NULL) {
        gt_status status = gt__error_null("adding a child", parent ? "child" : "container", __FILE__, __LINE__);
        if (parent) return gt__module_mark_failed(parent, status);
        gt_module_destroy(child);
        return status;
    }
    if (child->parent != NULL || contains(child, parent)) {
        gt_status status = child->parent ? GT_RAISE(GT_BAD_STATE, "%s \"%s\": the child \"%s\" has an owner already, %s \"%s\"",
                                                    parent->kind_name, parent->path, name, child->parent->kind_name, child->parent->path)
                                         : GT_RAISE(GT_BAD_STATE, "%s \"%s\" cannot be inside itself", parent->kind_name, parent->path);
        return gt__module_mark_failed(parent, status);
    }
    gt_status status = attach(parent, name, child);
    if (status == GT_OK) return GT_OK;
    gt_module_destroy(child);
    return gt__module_mark_failed(parent, status);
}

gt_status gt_module_add_child(gt_module *module, const char *name, gt_module *child) {
    gt_status status = GT_OK;
    if (module && child) {
        status = module->kind == &gt__custom_kind
                     ? gt__module_check_name(module, name)
                     : GT_RAISE(GT_BAD_STATE, "%s \"%s\" takes no children this way; only modules from gt_nn_custom do", module->kind_name,
                                module->path);
    }
    if (status == GT_OK) return gt__module_attach(module, name, child);
    if (!contains(child, module)) gt_module_destroy(child);
    return gt__module_mark_failed(module, status);
}

static int32_t child_index(const gt_module *m, const char *name) {
    for (int32_t i = 0; i < m->n_children; ++i)
        if (strcmp(m->children[i]->name, name) == 0) return i;
    return -1;
}

/* What can fail comes first: with everything renamed nothing is left to go wrong. */
static gt_status swap_child(gt_module *parent, int32_t index, gt_module *child) {
    gt_module *old = parent->children[index];
    char *root_name = gt__strdup(""), *name = child ? gt__strdup(old->name) : NULL;
    if (root_name == NULL || (child && name == NULL)) {
        gt__free(root_name);
        gt__free(name);
        return GT_OUT_OF_HOST_MEMORY;
    }
    char *old_name = old->name, *child_name = child ? child->name : NULL;
    old->name = root_name;
    old->parent = NULL;
    gt_status status = gt__module_rename(old);
    if (status == GT_OK && child) {
        child->name = name;
        child->parent = parent;
        status = gt__module_rename(child);
        if (status != GT_OK) {
            child->name = child_name;
            child->parent = NULL;
        }
    }
    if (status != GT_OK) {
        old->name = old_name;
        old->parent = parent;
        /* Its paths were the parent's before, and are still held by the context. */
        if (gt__module_rename(old) != GT_OK) status = gt__module_mark_failed(parent, status);
        gt__free(root_name);
        gt__free(name);
        return status;
    }
    gt__free(old_name);
    gt__module_table_drop(parent);
    if (child) {
        gt__free(child_name);
        parent->children[index] = child;
        return GT_OK;
    }
    parent->n_children--;
    for (int32_t i = index; i < parent->n_children; ++i) parent->children[i] = parent->children[i + 1];
    return GT_OK;
}

gt_status gt_module_replace_child(gt_module *module, const char *name, gt_module *child, gt_module **removed) {
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE(name != NULL, GT_BAD_ARGUMENT, "%s \"%s\": the name is NULL", module->kind_name, module->path);
    GT_REQUIRE(module->kind == &gt__custom_kind || gt__module_is_sequential(module), GT_BAD_STATE,
               "%s \"%s\": its children cannot be replaced; those of sequentials and of modules from gt_nn_custom can", module->kind_name,
               module->path);
    GT_TRY(gt__tensor_check(module->anchor, module->kind_name));
    GT_REQUIRE(module->ctx->module_depth == 0, GT_BAD_STATE, "%s \"%s\": children cannot be replaced while a module runs",
               module->kind_name, module->path);
    int32_t index = child_index(module, name);
    GT_REQUIRE(index >= 0, GT_NOT_FOUND, "%s \"%s\" has no child named \"%s\"", module->kind_name, module->path, name);
    if (child) {
        GT_REQUIRE(child->ctx == module->ctx, GT_BAD_DEVICE, "%s \"%s\": the child \"%s\" belongs to another context", module->kind_name,
                   module->path, name);
        GT_REQUIRE(child->parent == NULL, GT_BAD_STATE, "%s \"%s\": the child \"%s\" has an owner already, %s \"%s\"", module->kind_name,
                   module->path, name, child->parent->kind_name, child->parent->path);
        GT_REQUIRE(!contains(child, module), GT_BAD_STATE, "%s \"%s\" cannot be inside itself", module->kind_name, module->path);
        int32_t depth = depth_of(module) + height_of(child);
        GT_REQUIRE(depth <= GT__MODULE_MAX_DEPTH, GT_BAD_ARGUMENT,
                   "%s \"%s\": with the child \"%s\" the tree would be %d deep, at most %d are allowed", module->kind_name, module->path,
                   name, depth, GT__MODULE_MAX_DEPTH);
    }
    gt_module *old = module->children[index];
    GT_TRY(swap_child(module, index, child));
    if (removed)
        *removed = old;
    else
        gt_module_destroy(old);
    return GT_OK;
}

gt_status gt_module_check(gt_module *module) {
    GT_REQUIRE_HANDLE(module);
    if (module->failed != GT_OK) return gt__module_failure(module);
    for (int32_t i = 0; i < module->n_children; ++i) GT_TRY(gt_module_check(module->children[i]));
    return GT_OK;
}

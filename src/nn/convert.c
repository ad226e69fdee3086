/* Changes of a whole tree: mode, freezing, gradients, dtype. */
#include "nn/module.h"

static void set_training(gt_module *m, bool training) {
    m->training = training;
    for (int32_t i = 0; i < m->n_children; ++i) set_training(m->children[i], training);
}

gt_status gt_module_set_training(gt_module *module, int32_t training) {
    GT_REQUIRE_HANDLE(module);
    set_training(module, training != 0);
    return GT_OK;
}

int32_t gt_module_training(const gt_module *module) { return module && module->training ? 1 : 0; }

gt_status gt_module_set_trainable(gt_module *module, int32_t trainable) {
    GT_REQUIRE_HANDLE(module);
    for (int32_t i = 0; i < module->n_slots; ++i) {
        gt__slot *slot = &module->slots[i];
        if (slot->is_buffer) continue;
        if (!trainable) GT_TRY(gt_tensor_zero_grad(slot->tensor));
        GT_TRY(gt_tensor_set_requires_grad(slot->tensor, trainable ? 1 : 0));
    }
    for (int32_t i = 0; i < module->n_children; ++i) GT_TRY(gt_module_set_trainable(module->children[i], trainable));
    return GT_OK;
}

gt_status gt_module_zero_grad(gt_module *module) {
    GT_REQUIRE_HANDLE(module);
    for (int32_t i = 0; i < module->n_slots; ++i)
        if (!module->slots[i].is_buffer) GT_TRY(gt_tensor_zero_grad(module->slots[i].tensor));
    for (int32_t i = 0; i < module->n_children; ++i) GT_TRY(gt_module_zero_grad(module->children[i]));
    return GT_OK;
}

/* --- dtype: all new contents are made first, then they are exchanged, which cannot fail --------------------------------------------- */
typedef struct conversion {
    gt_tensor *tensor;
    gt_tensor *converted; /* counted */
} conversion;

typedef struct conversion_list {
    conversion *items;
    int32_t count;
} conversion_list;

static gt_status convert_slot(conversion_list *list, const gt__slot *slot, gt_dtype dtype) {
    gt_tensor *t = slot->tensor;
    if (!gt__dtype_is_float(t->meta.dtype)) return GT_OK;
    gt_dtype wanted = slot->keep_f32 ? gt__dtype_accumulate(dtype) : dtype;
    if (t->meta.dtype == wanted) return GT_OK;
    for (int32_t i = 0; i < list->count; ++i)
        if (list->items[i].tensor == t) return GT_OK;
    GT_TRY(gt__tensor_check(t, "gt_module_to_dtype"));
    GT_TRY(gt__scope_begin(t->ctx));
    gt_tensor *converted = gt_tensor_retain(gt_cast(t, wanted));
    (void)gt_scope_end(t->ctx);
    if (converted == NULL) return gt_last_error()->status;
    list->items[list->count++] = (conversion){t, converted};
    return GT_OK;
}

static gt_status convert_below(conversion_list *list, gt_module *m, gt_dtype dtype) {
    for (int32_t i = 0; i < m->n_slots; ++i) GT_TRY(convert_slot(list, &m->slots[i], dtype));
    for (int32_t i = 0; i < m->n_children; ++i) GT_TRY(convert_below(list, m->children[i], dtype));
    return GT_OK;
}

/* The handle stays, so whoever holds it sees the new contents; aliases that records have saved keep the old memory. */
static void exchange(gt_tensor *t, gt_tensor *converted) {
    uint32_t version = t->storage->version;
    gt__storage *storage = t->storage;
    void *data = t->data;
    gt__meta meta = t->meta;
    t->storage = converted->storage;
    t->data = converted->data;
    t->meta = converted->meta;
    t->storage->version = version + 1;
    t->view_version = t->storage->version;
    converted->storage = storage;
    converted->data = data;
    converted->meta = meta;
    gt_tensor_release(t->grad);
    t->grad = NULL;
    t->grad_valid = 0;
    gt__tensor_set_category(t, GT_MEMORY_PARAMETER);
}

gt_status gt_module_to_dtype(gt_module *module, gt_dtype dtype) {
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE(gt__dtype_is_float(dtype), GT_BAD_DTYPE, "gt_module_to_dtype: parameters can be f32, f16, bf16 or f64, not %s",
               gt_dtype_name(dtype));
    int32_t total = gt_module_parameter_count(module) + gt_module_buffer_count(module);
    if (total == 0) return GT_OK;
    conversion_list list = {.items = gt__calloc((size_t)total, sizeof *list.items)};
    if (list.items == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = gt__module_table(module);
    if (status == GT_OK) status = gt__tensor_check(module->table[0].tensor, "gt_module_to_dtype");
    if (status == GT_OK) {
        module->ctx->no_grad++;
        status = convert_below(&list, module, dtype);
        module->ctx->no_grad--;
    }
    for (int32_t i = 0; i < list.count; ++i) {
        if (status == GT_OK) exchange(list.items[i].tensor, list.items[i].converted);
        gt_tensor_release(list.items[i].converted);
    }
    gt__free(list.items);
    return status;
}

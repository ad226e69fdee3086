#include "io/load.h"

#include "core/checkpoint.h"
#include "io/layout.h"

#include <stdio.h>

gt_status gt__load_open(gt__load_plan *plan, const char *path) {
    const gt_context *ctx = plan->ctx;
    GT_REQUIRE(path != NULL, GT_BAD_ARGUMENT, "%s: path is NULL", plan->who);
    GT_REQUIRE(ctx->open_windows == 0, GT_BAD_STATE, "%s: a window is open; flush or cancel it first", plan->who);
    GT_REQUIRE(!ctx->in_backward && ctx->segment == NULL, GT_BAD_STATE, "%s: a %s is running", plan->who,
               ctx->in_backward ? "backward" : "checkpointed segment");
    GT_TRY(gt_safetensors_open(path, &plan->file));
    plan->used = gt__calloc(plan->file->table.n_entries, 1);
    return plan->used ? GT_OK : GT_OUT_OF_HOST_MEMORY;
}

void gt__load_close(gt__load_plan *plan) {
    for (int32_t i = 0; i < plan->n_items; ++i) {
        gt_tensor_release(plan->items[i].tensor);
        gt_tensor_release(plan->items[i].ready);
    }
    gt__free(plan->items);
    gt__free(plan->used);
    gt__free(plan->stored);
    gt__text_free(&plan->message);
    gt_safetensors_close(plan->file);
    *plan = (gt__load_plan){0};
}

/* --- mismatches ---------------------------------------------------------------------------------------------------------------------------- */
gt_status gt__load_mismatch(gt__load_plan *plan, bool fatal, gt_mismatch kind, const char *name, const char *format, ...) {
    enum { MESSAGE_MOST = 800 }; /* bytes: what an error record's message has room for, besides the rest of it */
    gt__text text = {0};
    va_list arguments;
    char detail[400];
    va_start(arguments, format);
    (void)vsnprintf(detail, sizeof detail, format, arguments);
    va_end(arguments);
    GT_TRY(gt__text_add(&text, "\"%s\" %s", name, detail));
    gt_status status = GT_OK;
    if (fatal) {
        plan->mismatches++;
        if (plan->message.length + text.length <= MESSAGE_MOST)
            status = gt__text_add(&plan->message, "%s%s", plan->message.length ? "; " : "", text.data);
        else
            plan->left_out++;
    }
    gt__log(plan->ctx, fatal ? GT_LOG_ERROR : GT_LOG_INFO, "%s: %s", plan->who, text.data);
    if (plan->on_mismatch) plan->on_mismatch(plan->user, kind, name, text.data);
    gt__text_free(&text);
    return status;
}

static gt_status raise_mismatches(const gt__load_plan *plan) {
    if (plan->mismatches == 0) return GT_OK;
    char more[100] = "";
    if (plan->left_out > 0) (void)snprintf(more, sizeof more, "; and %lld more, which the context's log has", (long long)plan->left_out);
    GT_FAIL(GT_BAD_FILE, "%s: %s does not fit: %s%s", plan->who, plan->file->path, plan->message.data ? plan->message.data : "", more);
}

gt_status gt__load_unexpected(gt__load_plan *plan, bool fatal, const char *prefix) {
    size_t length = strlen(prefix);
    for (uint32_t i = 0; i < plan->file->table.n_entries; ++i) {
        const char *name = gt__safetensors_entry(plan->file, i)->name;
        if (plan->used[i] || strncmp(name, prefix, length) != 0) continue;
        GT_TRY(gt__load_mismatch(plan, fatal, GT_MISMATCH_UNEXPECTED, name, "has no place here"));
    }
    return GT_OK;
}

/* --- asking -------------------------------------------------------------------------------------------------------------------------------- */
int64_t gt__load_find(gt__load_plan *plan, const char *name) {
    int64_t entry = gt__table_find(&plan->file->table, name);
    if (entry >= 0) plan->used[entry] = 1;
    return entry;
}

static gt_status add_item(gt__load_plan *plan, gt_tensor *tensor, gt__load_item **item) {
    if (plan->n_items == plan->cap_items) {
        int32_t capacity = GT__MAX(plan->cap_items * 2, 64);
        gt__load_item *grown = gt__realloc(plan->items, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        plan->items = grown;
        plan->cap_items = capacity;
    }
    *item = &plan->items[plan->n_items++];
    **item = (gt__load_item){.tensor = gt_tensor_retain(tensor), .entry = -1};
    return GT_OK;
}

gt_status gt__load_entry(gt__load_plan *plan, int64_t index, const char *name, gt_tensor *tensor, bool convert) {
    const gt__entry *entry = gt__safetensors_entry(plan->file, index);
    const gt__safetensors_type *type = gt__safetensors_type_at(entry->type);
    int64_t shape[GT_MAX_DIMS];
    char theirs[GT__SHAPE_TEXT], ours[GT__SHAPE_TEXT];
    gt__table_shape(&plan->file->table, entry, shape);
    bool same = entry->ndim == tensor->meta.ndim;
    for (int32_t i = 0; same && i < entry->ndim; ++i) same = shape[i] == tensor->meta.shape[i];
    if (!same)
        return gt__load_mismatch(plan, true, GT_MISMATCH_DIFFERENT, name, "is %s in the file, %s here",
                                 gt__shape_text(theirs, sizeof theirs, entry->ndim, shape),
                                 gt__meta_text(ours, sizeof ours, &tensor->meta));
    gt_dtype dtype = tensor->meta.dtype;
    bool fits = type->dtype == dtype || (convert && type->dtype >= 0 && gt__dtype_is_float(type->dtype) && gt__dtype_is_float(dtype));
    if (!fits)
        return gt__load_mismatch(plan, true, GT_MISMATCH_DIFFERENT, name, "is %s in the file, %s here", type->name,
                                 gt__safetensors_type_name(dtype));
    gt__load_item *item;
    GT_TRY(gt__check_writable(tensor, plan->who));
    GT_TRY(add_item(plan, tensor, &item));
    item->entry = index;
    return GT_OK;
}

gt_status gt__load_tensor(gt__load_plan *plan, const char *name, gt_tensor *tensor) {
    int64_t entry = gt__load_find(plan, name);
    if (entry < 0) return gt__load_mismatch(plan, true, GT_MISMATCH_MISSING, name, "is not in the file");
    return gt__load_entry(plan, entry, name, tensor, false);
}

gt_status gt__load_bytes(gt__load_plan *plan, gt_tensor *tensor, const void *bytes) {
    gt__load_item *item;
    GT_TRY(add_item(plan, tensor, &item));
    item->bytes = bytes;
    return GT_OK;
}

/* The eight bytes of a scalar. *found false: a mismatch was noted. */
static gt_status load_number(gt__load_plan *plan, const char *name, gt_dtype dtype, void *value, bool *found) {
    int64_t index = gt__load_find(plan, name);
    *found = false;
    memset(value, 0, 8);
    if (index < 0) return gt__load_mismatch(plan, true, GT_MISMATCH_MISSING, name, "is not in the file");
    const gt__entry *entry = gt__safetensors_entry(plan->file, index);
    const gt__safetensors_type *type = gt__safetensors_type_at(entry->type);
    if (type->dtype != dtype || entry->ndim != 0)
        return gt__load_mismatch(plan, true, GT_MISMATCH_DIFFERENT, name, "is %s with %d axes in the file; expected one %s", type->name,
                                 entry->ndim, gt__safetensors_type_name(dtype));
    memcpy(value, plan->file->data + entry->begin, 8);
    *found = true;
    return GT_OK;
}

gt_status gt__load_i64(gt__load_plan *plan, const char *name, int64_t least, int64_t *value) {
    bool found;
    GT_TRY(load_number(plan, name, GT_DTYPE_I64, value, &found));
    if (!found || *value >= least) return GT_OK;
    int64_t number = *value;
    *value = 0;
    return gt__load_mismatch(plan, true, GT_MISMATCH_DIFFERENT, name, "is %lld in the file; expected at least %lld", (long long)number,
                             (long long)least);
}

gt_status gt__load_f64(gt__load_plan *plan, const char *name, double *value) {
    bool found;
    return load_number(plan, name, GT_DTYPE_F64, value, &found);
}

/* --- doing --------------------------------------------------------------------------------------------------------------------------------- */
/* A tensor like item->tensor, dense, made on the device from the file's. */
static gt_status make_ready(const gt__load_plan *plan, gt__load_item *item) {
    gt_safetensors_info info = {.struct_size = sizeof info};
    GT_TRY(gt_safetensors_get_info(plan->file, item->entry, &info));
    gt__meta meta = item->tensor->meta;
    gt__meta_set_row_major(&meta);
    gt_context *ctx = plan->ctx;
    GT_TRY(gt__scope_begin(ctx));
    gt_tensor *raw = gt_tensor_from_data(ctx, info.dtype, info.ndim, info.shape, info.data, (size_t)info.bytes);
    gt_status status = raw ? GT_OK : gt_last_error()->status;
    if (status == GT_OK && meta.dtype == info.dtype) {
        item->ready = gt_tensor_retain(raw);
    } else if (status == GT_OK) {
        item->ready = gt__tensor_new_for(ctx, &meta, GT_MEMORY_TEMPORARY, "module_load");
        status = item->ready ? gt__op_into(GT__OP_COPY, &raw, 1, NULL, item->ready) : gt_last_error()->status;
    }
    (void)gt_scope_end(ctx);
    return status;
}

gt_status gt__load_prepare(gt__load_plan *plan) {
    GT_TRY(raise_mismatches(plan));
    GT_TRY(gt__safetensors_verify(plan->file));
    size_t most = 0;
    for (int32_t i = 0; i < plan->n_items; ++i) {
        gt__load_item *item = &plan->items[i];
        if (item->entry < 0 || item->tensor->meta.numel == 0) continue;
        const gt__entry *entry = gt__safetensors_entry(plan->file, item->entry);
        const gt__meta *meta = &item->tensor->meta;
        if (gt__safetensors_type_at(entry->type)->dtype != meta->dtype || !gt__meta_is_dense(meta))
            GT_TRY(make_ready(plan, item));
        else if (!gt__meta_is_row_major(meta))
            most = GT__MAX(most, gt_tensor_bytes(item->tensor));
    }
    if (most > 0 && (plan->stored = gt__malloc(most)) == NULL) return GT_OUT_OF_HOST_MEMORY;
    return gt_context_synchronize(plan->ctx); /* what only the device knew is told before anything changes */
}

static gt_status upload(const gt_tensor *tensor, const void *bytes) {
    gt_context *ctx = tensor->ctx;
    int32_t previous = gt__enter(ctx);
    gt_status status =
        ctx->backend->copy(ctx->device, GT__STREAM_COMPUTE, GT__COPY_HOST_TO_DEVICE, tensor->data, bytes, gt_tensor_bytes(tensor));
    if (status == GT_OK) status = ctx->backend->synchronize(ctx->device, GT__STREAM_COMPUTE);
    gt__leave(ctx, previous);
    return status;
}

static gt_status commit(const gt__load_plan *plan, gt__load_item *item) {
    gt_tensor *tensor = item->tensor;
    if (tensor->meta.numel == 0) return GT_OK;
    gt__storage_changed(tensor->storage);
    if (item->ready) return gt__op_into(GT__OP_COPY, &item->ready, 1, NULL, tensor);
    const void *bytes = item->bytes;
    if (item->entry >= 0) bytes = plan->file->data + gt__safetensors_entry(plan->file, item->entry)->begin;
    if (item->entry >= 0 && !gt__meta_is_row_major(&tensor->meta)) {
        gt__layout_to_stored(&tensor->meta, bytes, plan->stored);
        bytes = plan->stored;
    }
    return upload(tensor, bytes);
}

gt_status gt__load_commit(gt__load_plan *plan) {
    for (int32_t i = 0; i < plan->n_items; ++i) GT_TRY(commit(plan, &plan->items[i]));
    return gt_context_synchronize(plan->ctx);
}

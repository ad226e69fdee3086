#include "io/save.h"

#include "base/json_write.h"
#include "base/replace_file.h"
#include "io/layout.h"
#include "io/table.h"

#include <stdio.h>
#include <stdlib.h>

/* --- gathering --------------------------------------------------------------------------------------------------------------------------- */
static gt_status check_text(const char *who, const char *what, const char *text) {
    for (const char *s = text; *s;) {
        size_t length = gt__utf8_character(s);
        GT_REQUIRE(length > 0, GT_BAD_ARGUMENT, "%s: %s \"%s\" is not UTF-8 at byte %zu", who, what, text, (size_t)(s - text));
        s += length;
    }
    return GT_OK;
}

static gt_status add_item(gt__save_list *list, const char *format, va_list arguments, gt__save_item **item) {
    if (list->n_items == list->cap_items) {
        int32_t capacity = GT__MAX(list->cap_items * 2, 64);
        gt__save_item *grown = gt__realloc(list->items, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        list->items = grown;
        list->cap_items = capacity;
    }
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    GT_REQUIRE(length >= 0, GT_INTERNAL, "%s: a name could not be formatted", list->who);
    char *name = gt__malloc((size_t)length + 1);
    if (name == NULL) return GT_OUT_OF_HOST_MEMORY;
    (void)vsnprintf(name, (size_t)length + 1, format, arguments);
    gt_status status = check_text(list->who, "the name", name);
    if (status == GT_OK && strcmp(name, "__metadata__") == 0)
        status = GT_RAISE(GT_BAD_ARGUMENT, "%s: no tensor can be named \"__metadata__\" in this format", list->who);
    if (status != GT_OK) {
        gt__free(name);
        return status;
    }
    *item = &list->items[list->n_items++];
    **item = (gt__save_item){.name = name};
    return GT_OK;
}

static bool same_memory(const gt_tensor *a, const gt_tensor *b) {
    return a == b || (a->data != NULL && a->data == b->data && a->meta.dtype == b->meta.dtype && gt__meta_same_layout(&a->meta, &b->meta));
}

static gt_status add_tensor(gt__save_list *list, gt_tensor *tensor, const char *format, va_list arguments) {
    gt__save_item *item;
    GT_TRY(gt__tensor_check(tensor, list->who));
    if (list->ctx == NULL) list->ctx = tensor->ctx;
    GT_TRY(add_item(list, format, arguments, &item));
    GT_REQUIRE(tensor->ctx == list->ctx, GT_BAD_DEVICE, "%s: tensor \"%s\" belongs to another context than the first", list->who,
               item->name);
    for (int32_t i = 0; i < list->n_items - 1; ++i) {
        if (list->items[i].tensor == NULL || !same_memory(list->items[i].tensor, tensor)) continue;
        gt_status status = strcmp(item->name, list->items[i].name) == 0
                               ? GT_RAISE(GT_BAD_ARGUMENT, "%s: two tensors are named \"%s\"", list->who, item->name)
                               : gt__save_text(list, item->name, list->items[i].name);
        gt__free(item->name);
        list->n_items--;
        return status;
    }
    item->tensor = tensor;
    item->dtype = tensor->meta.dtype;
    item->bytes = gt_tensor_bytes(tensor);
    return GT_OK;
}

gt_status gt__save_tensor(gt__save_list *list, gt_tensor *tensor, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    gt_status status = add_tensor(list, tensor, format, arguments);
    va_end(arguments);
    return status;
}

static gt_status add_number(gt__save_list *list, gt_dtype dtype, const void *value, const char *format, va_list arguments) {
    gt__save_item *item;
    GT_TRY(add_item(list, format, arguments, &item));
    item->dtype = dtype;
    item->bytes = sizeof item->number;
    memcpy(&item->number, value, sizeof item->number);
    return GT_OK;
}

gt_status gt__save_i64(gt__save_list *list, int64_t value, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    gt_status status = add_number(list, GT_DTYPE_I64, &value, format, arguments);
    va_end(arguments);
    return status;
}

gt_status gt__save_f64(gt__save_list *list, double value, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    gt_status status = add_number(list, GT_DTYPE_F64, &value, format, arguments);
    va_end(arguments);
    return status;
}

gt_status gt__save_text(gt__save_list *list, const char *key, const char *value) {
    GT_TRY(check_text(list->who, "the key", key));
    GT_TRY(check_text(list->who, "the text", value));
    if (list->n_texts == list->cap_texts) {
        int32_t capacity = GT__MAX(list->cap_texts * 2, 16);
        char **grown = gt__realloc(list->texts, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        list->texts = grown;
        list->cap_texts = capacity;
    }
    char *one = gt__strdup(key), *two = one ? gt__strdup(value) : NULL;
    if (two == NULL) {
        gt__free(one);
        return GT_OUT_OF_HOST_MEMORY;
    }
    list->texts[list->n_texts++] = one;
    list->texts[list->n_texts++] = two;
    return GT_OK;
}

gt_status gt__save_metadata(gt__save_list *list, const gt_text_pair *metadata, int32_t n_metadata) {
    GT_REQUIRE(n_metadata == 0 || (n_metadata > 0 && metadata != NULL), GT_BAD_ARGUMENT, "%s: %d texts%s", list->who, (int)n_metadata,
               metadata ? "" : " at NULL");
    for (int32_t i = 0; i < n_metadata; ++i) {
        GT_REQUIRE(metadata[i].key != NULL && metadata[i].value != NULL, GT_BAD_ARGUMENT, "%s: the %s of text %d is NULL", list->who,
                   metadata[i].key ? "value" : "key", (int)i);
        GT_TRY(gt__save_text(list, metadata[i].key, metadata[i].value));
    }
    return GT_OK;
}

void gt__save_free(gt__save_list *list) {
    for (int32_t i = 0; i < list->n_items; ++i) gt__free(list->items[i].name);
    for (int32_t i = 0; i < list->n_texts; ++i) gt__free(list->texts[i]);
    gt__free(list->items);
    gt__free(list->texts);
    *list = (gt__save_list){0};
}

/* --- the header ---------------------------------------------------------------------------------------------------------------------------- */
static int compare(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static gt_status check_unique(const gt__save_list *list, bool texts) {
    const char *what = texts ? "metadata texts" : "tensors";
    int32_t count = texts ? list->n_texts / 2 : list->n_items;
    const char **all = gt__calloc((size_t)count, sizeof *all);
    if (all == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < count; ++i) all[i] = texts ? list->texts[2 * (size_t)i] : list->items[i].name;
    qsort(all, (size_t)count, sizeof *all, compare);
    gt_status status = GT_OK;
    for (int32_t i = 1; i < count && status == GT_OK; ++i)
        if (strcmp(all[i], all[i - 1]) == 0) status = GT_RAISE(GT_BAD_ARGUMENT, "%s: two %s are named \"%s\"", list->who, what, all[i]);
    gt__free(all);
    return status;
}

/* Larger elements first, so that all are aligned. */
static int32_t next_size(int32_t size) { return size == 0 ? 8 : size / 2; }

static void place(gt__save_list *list) {
    uint64_t at = 0;
    for (int32_t size = next_size(0); size > 0; size = next_size(size)) {
        for (int32_t i = 0; i < list->n_items; ++i) {
            gt__save_item *item = &list->items[i];
            if (gt_dtype_size(item->dtype) != (size_t)size) continue;
            item->begin = at;
            at += item->bytes;
        }
    }
}

static void describe(gt__json *json, const gt__save_item *item) {
    gt__json_begin(json, item->name, '{');
    gt__json_string(json, "dtype", gt__safetensors_type_name(item->dtype));
    gt__json_begin(json, "shape", '[');
    for (int32_t i = 0; item->tensor && i < item->tensor->meta.ndim; ++i) gt__json_integer(json, NULL, item->tensor->meta.shape[i]);
    gt__json_end(json, ']');
    gt__json_begin(json, "data_offsets", '[');
    gt__json_unsigned(json, NULL, item->begin);
    gt__json_unsigned(json, NULL, item->begin + item->bytes);
    gt__json_end(json, ']');
    gt__json_end(json, '}');
}

/* The length, the header, and spaces to the next multiple of 8. */
static gt_status make_header(const gt__save_list *list, gt__json *json) {
    static const char blanks[8] = "        ";
    unsigned char prefix[GT__SAFETENSORS_PREFIX] = {0};
    json->status = gt__text_append(&json->text, prefix, sizeof prefix);
    gt__json_begin(json, NULL, '{');
    if (list->n_texts > 0) {
        gt__json_begin(json, "__metadata__", '{');
        for (int32_t i = 0; i < list->n_texts; i += 2) gt__json_string(json, list->texts[i], list->texts[i + 1]);
        gt__json_end(json, '}');
    }
    for (int32_t size = next_size(0); size > 0; size = next_size(size)) /* in the order of their places */
        for (int32_t i = 0; i < list->n_items; ++i)
            if (gt_dtype_size(list->items[i].dtype) == (size_t)size) describe(json, &list->items[i]);
    gt__json_end(json, '}');
    if (json->status == GT_OK) json->status = gt__text_append(&json->text, blanks, (8 - json->text.length % 8) % 8);
    GT_TRY(json->status);
    uint64_t length = json->text.length - sizeof prefix;
    GT_REQUIRE(length <= GT__SAFETENSORS_HEADER, GT_BAD_ARGUMENT, "%s: names and texts make a header of %llu bytes; at most %d can be read",
               list->who, (unsigned long long)length, GT__SAFETENSORS_HEADER);
    for (size_t i = 0; i < sizeof prefix; ++i) json->text.data[i] = (char)(length >> (8 * i) & 0xff);
    return GT_OK;
}

/* --- the data ------------------------------------------------------------------------------------------------------------------------------ */
typedef struct buffers {
    void *stored, *logical; /* each as large as the largest tensor that goes through it */
} buffers;

static bool on_host(const gt_tensor *tensor) { return tensor->ctx->backend->kind == GT_DEVICE_CPU; }
static bool needs_stored(const gt_tensor *tensor) { return !on_host(tensor) && gt__meta_is_dense(&tensor->meta); }
static bool needs_logical(const gt_tensor *tensor) { return !gt__meta_is_row_major(&tensor->meta); }

static gt_status make_buffers(const gt__save_list *list, buffers *b) {
    size_t stored = 0, logical = 0;
    for (int32_t i = 0; i < list->n_items; ++i) {
        const gt__save_item *item = &list->items[i];
        if (item->tensor && needs_stored(item->tensor)) stored = GT__MAX(stored, (size_t)item->bytes);
        if (item->tensor && needs_logical(item->tensor)) logical = GT__MAX(logical, (size_t)item->bytes);
    }
    if (stored > 0 && (b->stored = gt__malloc(stored)) == NULL) return GT_OUT_OF_HOST_MEMORY;
    if (logical > 0 && (b->logical = gt__malloc(logical)) == NULL) return GT_OUT_OF_HOST_MEMORY;
    return GT_OK;
}

static gt_status download(const gt_tensor *tensor, void *to, size_t bytes) {
    gt_context *ctx = tensor->ctx;
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->copy(ctx->device, GT__STREAM_COMPUTE, GT__COPY_DEVICE_TO_HOST, to, tensor->data, bytes);
    if (status == GT_OK) status = ctx->backend->synchronize(ctx->device, GT__STREAM_COMPUTE);
    gt__leave(ctx, previous);
    return status;
}

static gt_status write_tensor(gt__replacement *file, const gt__save_item *item, const buffers *b) {
    gt_tensor *tensor = item->tensor;
    const size_t bytes = (size_t)item->bytes;
    const void *from = tensor->data;
    if (bytes == 0) return GT_OK;
    if (!gt__meta_is_dense(&tensor->meta)) {
        GT_TRY(gt_tensor_read(tensor, b->logical, bytes));
        return gt__replace_write(file, b->logical, bytes);
    }
    if (!on_host(tensor)) {
        GT_TRY(download(tensor, b->stored, bytes));
        from = b->stored;
    }
    if (needs_logical(tensor)) {
        gt__layout_to_logical(&tensor->meta, from, b->logical);
        from = b->logical;
    }
    return gt__replace_write(file, from, bytes);
}

static gt_status write_all(gt__save_list *list, gt__replacement *file, const gt__json *header, const buffers *b) {
    GT_TRY(gt__replace_write(file, header->text.data, header->text.length));
    for (int32_t size = next_size(0); size > 0; size = next_size(size)) {
        for (int32_t i = 0; i < list->n_items; ++i) {
            const gt__save_item *item = &list->items[i];
            if (gt_dtype_size(item->dtype) != (size_t)size) continue;
            GT_TRY(item->tensor ? write_tensor(file, item, b) : gt__replace_write(file, &item->number, sizeof item->number));
        }
    }
    return GT_OK;
}

gt_status gt__save_write(gt__save_list *list, const char *path) {
    GT_TRY(check_unique(list, false));
    GT_TRY(check_unique(list, true));
    if (list->ctx) GT_TRY(gt_context_synchronize(list->ctx)); /* what only the device knew is told before anything is written */
    place(list);
    gt__json header = {0};
    buffers b = {0};
    gt__replacement file = {0};
    gt_status status = make_header(list, &header);
    if (status == GT_OK) status = make_buffers(list, &b);
    if (status == GT_OK) status = gt__replace_begin(&file, list->who, path);
    if (status == GT_OK) status = write_all(list, &file, &header, &b);
    if (status == GT_OK) status = gt__replace_finish(&file);
    gt__replace_give_up(&file);
    gt__free(b.stored);
    gt__free(b.logical);
    gt__json_free(&header);
    return status;
}

/* --- tensors by name ------------------------------------------------------------------------------------------------------------------------- */
gt_status gt_safetensors_save(const char *path, const char *const *names, gt_tensor *const *tensors, int32_t count,
                              const gt_text_pair *metadata, int32_t n_metadata) {
    static const char who[] = "gt_safetensors_save";
    GT_REQUIRE(path != NULL, GT_BAD_ARGUMENT, "%s: path is NULL", who);
    GT_REQUIRE(count >= 0 && (count == 0 || (names != NULL && tensors != NULL)), GT_BAD_ARGUMENT, "%s: %d tensors%s", who, (int)count,
               names && tensors ? "" : " at NULL");
    gt__save_list list = {.who = who};
    gt_status status = gt__save_metadata(&list, metadata, n_metadata);
    for (int32_t i = 0; i < count && status == GT_OK; ++i) {
        if (names[i] == NULL)
            status = GT_RAISE(GT_BAD_ARGUMENT, "%s: the name of tensor %d is NULL", who, (int)i);
        else if (tensors[i] == NULL)
            status = gt__error_null(who, names[i], __FILE__, __LINE__);
        else
            status = gt__save_tensor(&list, tensors[i], "%s", names[i]);
    }
    if (status == GT_OK) status = gt__save_write(&list, path);
    gt__save_free(&list);
    return status;
}

/* What is to be written to a safetensors file, gathered item by item.
 *
 *     gt__save_list list = {.who = "gt_module_save"};
 *     status = gt__save_tensor(&list, weight, "%s.weight", path); // …
 *     if (status == GT_OK) status = gt__save_write(&list, path);
 *     gt__save_free(&list); */
#ifndef GT_IO_SAVE_H
#define GT_IO_SAVE_H

#include "core/core.h"
#include <gtrain/io.h>

typedef struct gt__save_item {
    char *name;
    gt_tensor *tensor; /* borrowed; NULL: `number` */
    uint64_t number;   /* the bits of an i64 or f64 */
    gt_dtype dtype;
    uint64_t bytes, begin;
} gt__save_item;

typedef struct gt__save_list {
    const char *who; /* the function that messages name */
    gt_context *ctx; /* of the tensors; NULL until the first */
    gt__save_item *items;
    char **texts; /* key, text, key, text … */
    int32_t n_items, cap_items, n_texts, cap_texts;
} gt__save_list;

/* A tensor that is the same memory as an earlier one becomes a text that names it. The tensor must live until the list is freed. */
gt_status gt__save_tensor(gt__save_list *list, gt_tensor *tensor, const char *format, ...) GT__PRINTF(3, 4);
/* Scalars. */
gt_status gt__save_i64(gt__save_list *list, int64_t value, const char *format, ...) GT__PRINTF(3, 4);
gt_status gt__save_f64(gt__save_list *list, double value, const char *format, ...) GT__PRINTF(3, 4);
gt_status gt__save_text(gt__save_list *list, const char *key, const char *value);
/* The caller's array of texts. */
gt_status gt__save_metadata(gt__save_list *list, const gt_text_pair *metadata, int32_t n_metadata);
/* Writes the file, all or nothing. Waits for the device. */
gt_status gt__save_write(gt__save_list *list, const char *path);
void gt__save_free(gt__save_list *list);

/* --- module.c: the module's parameters and buffers, named <prefix><name>. */
gt_status gt__save_module(gt__save_list *list, gt_module *module, const char *prefix);

#endif

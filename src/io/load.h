/* Loading tensors from a safetensors file, all or nothing: first everything is looked at, and every mismatch noted; then what can fail is done; at last bytes are copied.
 *
 *     gt__load_plan plan = {.who = "gt_module_load", .ctx = ctx};
 *     status = gt__load_open(&plan, path);
 *     … gt__load_tensor, gt__load_i64, gt__load_unexpected …   a mismatch is noted, not returned
 *     if (status == GT_OK) status = gt__load_prepare(&plan);   // fails if there were mismatches
 *     if (status == GT_OK) status = gt__load_commit(&plan);    // fails only if the device does
 *     gt__load_close(&plan); */
#ifndef GT_IO_LOAD_H
#define GT_IO_LOAD_H

#include "core/core.h"
#include "io/file.h"

typedef struct gt__load_item {
    gt_tensor *tensor; /* to be overwritten; counted */
    gt_tensor *ready;  /* its new value where bytes cannot be copied: another dtype, or memory with holes; counted */
    int64_t entry;     /* of the file; -1: `bytes` */
    const void *bytes; /* borrowed until gt__load_commit */
} gt__load_item;

typedef struct gt__load_plan {
    const char *who; /* the function that messages name */
    gt_context *ctx;
    gt_mismatch_fn on_mismatch;
    void *user;
    gt_safetensors *file;
    uint8_t *used; /* by entry: something has asked for it */
    gt__load_item *items;
    gt__text message;             /* the first mismatches */
    void *stored;                 /* room for the largest tensor that is not row-major */
    int64_t mismatches, left_out; /* left_out: of them, those that the message does not name */
    int32_t n_items, cap_items;
} gt__load_plan;

/* BAD_STATE where tensors of the context must not change now. */
gt_status gt__load_open(gt__load_plan *plan, const char *path);
void gt__load_close(gt__load_plan *plan);

/* Notes a mismatch; `fatal` 0: it is told and logged, but does not make the loading fail. Fails for want of host memory alone. */
gt_status gt__load_mismatch(gt__load_plan *plan, bool fatal, gt_mismatch kind, const char *name, const char *format, ...) GT__PRINTF(5, 6);
/* The entry of that name, or -1. It counts as asked for. */
int64_t gt__load_find(gt__load_plan *plan, const char *name);
/* `tensor` is to become the file's tensor of that number. Another dtype is a mismatch, unless `convert` and both are floating-point. */
gt_status gt__load_entry(gt__load_plan *plan, int64_t entry, const char *name, gt_tensor *tensor, bool convert);
/* gt__load_find and gt__load_entry; MISSING where there is none. */
gt_status gt__load_tensor(gt__load_plan *plan, const char *name, gt_tensor *tensor);
/* `tensor` is to become these bytes, in the order in which it is stored; they must stay until gt__load_commit. */
gt_status gt__load_bytes(gt__load_plan *plan, gt_tensor *tensor, const void *bytes);
/* A scalar, which must be at least `least`; 0 where it is a mismatch. */
gt_status gt__load_i64(gt__load_plan *plan, const char *name, int64_t least, int64_t *value);
gt_status gt__load_f64(gt__load_plan *plan, const char *name, double *value);
/* Notes what nothing has asked for among the entries whose names begin with `prefix`. */
gt_status gt__load_unexpected(gt__load_plan *plan, bool fatal, const char *prefix);

gt_status gt__load_prepare(gt__load_plan *plan);
gt_status gt__load_commit(gt__load_plan *plan);

/* --- module.c: the module's parameters and buffers, named <prefix><name>. Parameters and buffers are up to date on the device afterwards. */
gt_status gt__load_module(gt__load_plan *plan, gt_module *module, const char *prefix, bool strict, bool convert);

#endif

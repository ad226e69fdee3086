/* gtrain/io.h: files. Tensors in the safetensors format, modules by PyTorch's names, and whole training runs that go on where they stopped.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * // Fine-tunes a network that PyTorch has saved, and goes on with a run of its own if there is one.
 * gt_status fine_tune(gt_module *net, gt_trainer *trainer, gt_loader *training) {
 *     gt_state_parts parts;
 *     gt_state_parts_init(&parts, sizeof parts);
 *     parts.trainer = trainer; // with its module, optimizer, scaler and window
 *     parts.loader = training;
 *     gt_status status = gt_state_load("run.safetensors", &parts);
 *     if (status == GT_IO) status = gt_module_load(net, "pretrained.safetensors", NULL); // the run begins
 *     if (status == GT_OK) status = gt_trainer_fit(trainer, training, NULL, 1, NULL);
 *     if (status == GT_OK) status = gt_state_save("run.safetensors", &parts);
 *     return status;
 * }
 * @endcode
 *
 * Saving is all or nothing: the file is written beside its place, flushed to the disk and renamed, so that a full disk or a killed process leaves the old
 * file as it was (and perhaps one named <path>.<process>-<n>.tmp, which may be deleted). Loading is all or nothing too: what can fail is done before the first
 * tensor changes. A file is not trusted: whatever is in it, the worst that comes of it is BAD_FILE with the tensor's name and the numbers.
 */
#ifndef GTRAIN_IO_H
#define GTRAIN_IO_H

#include <gtrain/tensor.h>

GT_EXTERN_C_BEGIN

/* A piece of text with a name, kept in a file beside its tensors. Both are UTF-8. Complete: will not grow. */
typedef struct gt_text_pair {
    const char *key;   /* its name */
    const char *value; /* the text */
} gt_text_pair;

/* --- safetensors: tensors by name, as in https://github.com/huggingface/safetensors --------------------------------------------------------- */
/* A file that is open for reading. */
typedef struct gt_safetensors gt_safetensors;

/* Opens a file for reading and checks its header; tensors are mapped into memory and read when they are asked for. Any thread may use an open file,
 * several at once too. While it is open the file must not be shortened or written to in place (replacing it by rename, as saving does, is fine). IO with errno;
 * BAD_FILE with the tensor's name and what is wrong; no more memory is taken than the file is long. @since 0.1 */
GT_API gt_status gt_safetensors_open(const char *path, gt_safetensors **file);
GT_API void gt_safetensors_close(gt_safetensors *file); /* NULL is allowed. @since 0.1 */

/* What a file says of one of its tensors. */
typedef struct gt_safetensors_info {
    uint32_t struct_size;
    gt_dtype dtype;             /* -1: one that gtrain has no tensors of; dtype_name says which */
    const char *name;           /* valid while the file is open, as all pointers here */
    const char *dtype_name;     /* as the format spells it: "F32", "BF16", "BOOL" … */
    const void *data;           /* its bytes, row-major and little-endian, perhaps not aligned */
    uint64_t bytes;             /* of data */
    int64_t shape[GT_MAX_DIMS]; /* ndim entries */
    int32_t ndim;               /* number of axes */
    int32_t padding;
} gt_safetensors_info;
GT_API gt_status gt_safetensors_info_init(gt_safetensors_info *info, size_t size); /* @since 0.1 */

GT_API int64_t gt_safetensors_count(const gt_safetensors *file); /* tensors; 0 for NULL. @since 0.1 */
/* Fills an info that gt_safetensors_info_init has initialised. Tensors are numbered in the order of the header. BAD_ARGUMENT. @since 0.1 */
GT_API gt_status gt_safetensors_get_info(const gt_safetensors *file, int64_t index, gt_safetensors_info *info);
/* The number of the tensor of that name; also by the other names of a tied one (see gt_safetensors_save). NOT_FOUND. @since 0.1 */
GT_API gt_status gt_safetensors_find(const gt_safetensors *file, const char *name, int64_t *index);
/* A new tensor of that number on the context's device, with its name, as an op. NOT_SUPPORTED for a dtype that gtrain does not have. @since 0.1 */
GT_API gt_tensor *gt_safetensors_read(gt_context *ctx, const gt_safetensors *file, int64_t index);
GT_API int64_t gt_safetensors_metadata_count(const gt_safetensors *file); /* 0 for NULL. @since 0.1 */
/* A pair of the file's texts by number; both borrowed, valid while the file is open. @since 0.1 */
GT_API gt_status gt_safetensors_metadata(const gt_safetensors *file, int64_t index, gt_text_pair *pair);
/* The text of that key. NOT_FOUND. @since 0.1 */
GT_API gt_status gt_safetensors_metadata_find(const gt_safetensors *file, const char *key, const char **value);

/* Writes `count` tensors of one context, each in logical order whatever its strides, and `n_metadata` texts (`metadata` may be NULL for 0). Tensors that are the same
 * memory (tied weights) are written once, under the first name; the others become texts "other name": "first name". Waits for the device. BAD_ARGUMENT for a name that
 * is used twice, is not UTF-8 or is "__metadata__"; IO with errno; OUT_OF_HOST_MEMORY. Host memory: the largest tensor's. @since 0.1 */
GT_API gt_status gt_safetensors_save(const char *path, const char *const *names, gt_tensor *const *tensors, int32_t count,
                                     const gt_text_pair *metadata, int32_t n_metadata);

/* --- modules --------------------------------------------------------------------------------------------------------------------------------
 * Parameters and buffers by the names of gt_module_parameter and gt_module_buffer, which are PyTorch's: what safetensors.torch saves of the same network fits, and
 * the other way round. */
/* Writes a module's parameters and buffers, and texts, as gt_safetensors_save does, with its errors. @since 0.1 */
GT_API gt_status gt_module_save(gt_module *module, const char *path, const gt_text_pair *metadata, int32_t n_metadata);

/* How a file and a module differ. */
typedef int32_t gt_mismatch;
enum {
    GT_MISMATCH_MISSING = 0,    /* the file has no such tensor */
    GT_MISMATCH_UNEXPECTED = 1, /* there is no place for a tensor of the file */
    GT_MISMATCH_DIFFERENT = 2   /* shape, dtype or value do not fit */
};
/* Told of a mismatch of that `kind`: `name` is the tensor's, `text` says what does not fit, with the numbers. Both are valid during the call. */
typedef void (*gt_mismatch_fn)(void *user, gt_mismatch kind, const char *name, const char *text);

typedef struct gt_module_load_options {
    uint32_t struct_size;
    int32_t strict;             /* default 1. 0: tensors that just one of them has are left alone; what both have must fit all the same */
    gt_mismatch_fn on_mismatch; /* is told every mismatch, also those that `strict` 0 allows; NULL: nobody */
    void *user;                 /* handed to on_mismatch */
} gt_module_load_options;
GT_API gt_status gt_module_load_options_init(gt_module_load_options *options, size_t size); /* @since 0.1 */
/* Overwrites parameters and buffers from a file; floating-point values are converted to the module's dtype. options may be NULL. A tied weight may be in the file under
 * any of its names. IO; BAD_FILE: where the file is well-formed but does not fit, with as many mismatches as a message has room for, and each of them is a line of the
 * context's log and a call of on_mismatch. On failure nothing has changed. BAD_STATE inside a window, a backward or a
 * checkpointed segment. Gradients stay. Waits for the device. @since 0.1 */
GT_API gt_status gt_module_load(gt_module *module, const char *path, const gt_module_load_options *options);

/* --- the state of a run -----------------------------------------------------------------------------------------------------------------------
 * What is needed to go on as if nothing had happened: parameters, buffers, the optimizers' state by parameter name in its own dtype (with f32 master weights and
 * step counts) and learning rate, the scaler, the updates that a schedule counts, the trainer's epoch, batch and metrics, the loader's epoch and batch, and the
 * context's random state. (Not to be confused with gtrain/checkpoint.h, which is about activations.) One safetensors file; its module's
 * tensors are named "module.<name>". Gradients and half-done windows are not kept: save after an update. Windows count skipped and
 * empty updates anew; the scaler goes on counting its own. */
typedef struct gt_state_parts {
    uint32_t struct_size;
    int32_t n_optimizers;            /* in `optimizers` */
    gt_module *module;               /* each may be NULL, but not all of module, optimizers and trainer */
    gt_optimizer *const *optimizers; /* n_optimizers; kept by their number in this list */
    gt_scaler *scaler;               /* loss scaling */
    gt_window *window;               /* the updates that a schedule counts */
    gt_trainer *trainer;             /* stands in for module, optimizers, scaler and window where these are not given */
    gt_loader *loader;               /* training data: the position, and what makes the order (seed, batch size, samples), which must fit */
    const gt_text_pair *metadata;    /* texts of your own to save; not read by gt_state_load: see gt_safetensors_metadata */
    int32_t n_metadata;              /* in `metadata` */
    int32_t padding;
    gt_mismatch_fn on_mismatch; /* gt_state_load: told every mismatch; NULL: nobody */
    void *user;                 /* handed to on_mismatch */
} gt_state_parts;
GT_API gt_status gt_state_parts_init(gt_state_parts *parts, size_t size); /* @since 0.1 */

/* Writes the state of these parts. BAD_STATE inside a window (in a trainer's callback: while progress->open_batches is not 0), BAD_ARGUMENT, IO, as
 * gt_safetensors_save. Waits for the device. @since 0.1 */
GT_API gt_status gt_state_save(const char *path, const gt_state_parts *parts);
/* Puts these parts, and the random state of their context, where the file says. Parts of the file that are not asked for are left alone; what is asked for must
 * fit in names, shapes and dtypes: BAD_FILE otherwise, told as by gt_module_load, and nothing has changed. IO if there is no file. @since 0.1 */
GT_API gt_status gt_state_load(const char *path, const gt_state_parts *parts);

/* For runs that keep several states, named <prefix><number>.safetensors ("run/state-", 120: "run/state-000120.safetensors"). `needed` as in gt_module_describe.
 * @since 0.1 */
GT_API gt_status gt_state_path(const char *prefix, int64_t number, char *path, size_t size, size_t *needed);
/* Of those with that `prefix` the one with the greatest number: its path as above, and its number (may be NULL). NOT_FOUND. @since 0.1 */
GT_API gt_status gt_state_latest(const char *prefix, char *path, size_t size, size_t *needed, int64_t *number);
/* Removes all states with that `prefix` but the `keep` (from 1) with the greatest numbers. Call it after saving. IO naming the first file that could not be removed. @since 0.1 */
GT_API gt_status gt_state_keep_last(const char *prefix, int32_t keep);

GT_EXTERN_C_END
#endif

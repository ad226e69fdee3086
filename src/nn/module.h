/* The inside of a module: a kind (a table of functions), slots for its own tensors, and children. A tree has one owner, its root. */
#ifndef GT_NN_MODULE_H
#define GT_NN_MODULE_H

#include "core/checkpoint.h"
#include <gtrain/nn.h>

typedef struct gt__module_kind {
    const char *name;  /* "Linear" */
    int32_t n_inputs;  /* 0: any number from 1 */
    size_t state_size; /* of the kind's own struct, see gt__module_state */
    gt_tensor *(*forward)(gt_module *m, gt_tensor *const *in, int32_t n);
    gt_status (*describe)(const gt_module *m, gt__text *text); /* what stands between the parentheses; NULL: nothing */
    gt_status (*flush)(gt_module *m);                          /* brings buffers up to date before they are looked at; may be NULL */
    void (*destroy)(gt_module *m);                             /* frees what the state holds; may be NULL */
    int64_t *(*counter)(gt_module *m); /* a number on the host that belongs to the buffers (see flush); may be NULL */
} gt__module_kind;

typedef struct gt__slot {
    char *name;        /* "weight" */
    char *new_name;    /* while the tree changes */
    gt_tensor *tensor; /* counted */
    uint8_t is_buffer;
    uint8_t keep_f32; /* stays f32 when the module becomes half precision */
} gt__slot;

typedef struct gt__named_tensor {
    char *name; /* dotted, relative to the module that holds the table */
    gt_tensor *tensor;
} gt__named_tensor;

struct gt_module {
    const gt__module_kind *kind;
    const char *kind_name; /* kind->name, or a custom module's own */
    gt_context *ctx;       /* not used any more once the context was destroyed, which shows in `anchor` */
    gt_tensor *anchor;     /* an empty handle: its context becomes NULL when the context is destroyed */
    gt_module *parent;
    char *name;      /* among the parent's children; "" for the root and for a child that adds no name of its own */
    char *path;      /* from the root; "" there */
    const char *tag; /* the same as the context's string, which records and memory tags keep beyond the module's life */
    char *new_path;  /* while the tree changes */
    const char *new_tag;
    gt__slot *slots;
    gt_module **children;
    int32_t n_slots, n_children, cap_children;
    int32_t n_inputs;
    bool training;
    bool checkpointing; /* its forward is a segment */
    gt_status failed; /* not GT_OK: a child is missing, because of this */
    char *failed_message;
    gt__named_tensor *table;         /* parameters, then buffers; NULL until asked for and after changes below */
    int32_t n_parameters, n_buffers; /* of the table */
};

/* Kinds put their own struct behind the module. */
static inline void *gt__module_state(const gt_module *m) { return (void *)(m + 1); }

#define GT__MODULE_MAX_DEPTH 128 /* of a tree; walks are recursive */

/* --- module.c */
/* NULL ctx: keeps the error that is there. */
gt_module *gt__module_new(gt_context *ctx, const gt__module_kind *kind);
/* m if all went well; else destroys it and returns NULL. */
gt_module *gt__module_finish(gt_module *m, gt_status status);
enum { GT__SLOT_BUFFER = 1, GT__SLOT_KEEP_F32 = 2, GT__SLOT_CHANNELS_LAST = 4 /* of a new tensor of rank 4; else row-major */ };
/* A new tensor in a new slot: a parameter that requires a gradient, or a buffer. The caller fills it. */
gt_status gt__module_tensor_new(gt_module *m, const char *name, uint32_t flags, gt_dtype dtype, int32_t ndim, const int64_t *shape);
/* Takes over one reference to `tensor`, also on failure. */
gt_status gt__module_slot_add(gt_module *m, const char *name, uint32_t flags, gt_tensor *tensor);
/* Runs a module with its path set. The inputs are there and of its context. */
gt_tensor *gt__module_call(gt_module *m, gt_tensor *const *in, int32_t n);
gt_status gt__module_failure(const gt_module *m); /* raises m->failed */
/* Before a module's forward runs by another way than gt__module_call: a segment that is running remembers its training flag. */
static inline gt_status gt__module_watch(gt_module *m) {
    return m->ctx->segment ? gt__segment_flag(m->ctx, &m->training, m->anchor) : GT_OK;
}

/* --- tree.c */
/* Takes over `child` as the add functions promise. An empty name is allowed here. */
gt_status gt__module_attach(gt_module *parent, const char *name, gt_module *child);
gt_status gt__module_mark_failed(gt_module *parent, gt_status status); /* with the error record's message; returns `status` */
gt_status gt__module_check_name(const gt_module *m, const char *name);
/* Computes the paths and tensor names below m, all or nothing. */
gt_status gt__module_rename(gt_module *m);
void gt__module_table_drop(gt_module *m); /* of m and all above */

/* --- names.c */
gt_status gt__module_table(gt_module *m);
/* Reads all counters below m (`write` 0) or sets them, in one order; `values` may be NULL to count them. Returns how many there are. */
int32_t gt__module_counters(gt_module *m, int64_t *values, bool write);
/* Adds to each, in the same order. */
int32_t gt__module_counters_add(gt_module *m, const int64_t *values);

/* --- kinds that others look for */
extern const gt__module_kind gt__linear_kind, gt__conv2d_kind, gt__batch_norm_kind, gt__relu_kind, gt__custom_kind;
gt_tensor *gt__linear_run(gt_module *m, gt_tensor *x, gt_activation activation);
gt_tensor *gt__conv2d_run(gt_module *m, gt_tensor *x, gt_activation activation);
gt_tensor *gt__batch_norm_run(gt_module *m, gt_tensor *x, gt_activation activation);
/* activation(m(x) + residual); residual may be NULL. */
gt_tensor *gt__batch_norm_run_with(gt_module *m, gt_tensor *x, gt_tensor *residual, gt_activation activation);

/* --- sequential.c */
bool gt__module_is_sequential(const gt_module *m);
/* The last child of a sequential, else NULL. */
gt_module *gt__sequential_last(const gt_module *m);
/* Runs the children of such a sequential but the last; in segments where it is to run so. */
gt_tensor *gt__sequential_run_before_last(gt_module *m, gt_tensor *x);
/* Text of a number for describe: "0.1", "1e-05", whatever the locale. */
const char *gt__number_text(char *buffer, size_t size, double value);

#endif

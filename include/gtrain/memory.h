/* gtrain/memory.h: what a context's device memory is used for.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * #include <stdio.h>
 * int main(void) {
 *     gt_context *ctx;
 *     if (gt_context_create(NULL, &ctx) != GT_OK) return 1;
 *     gt_memory_stats stats;
 *     gt_memory_stats_init(&stats, sizeof stats);
 *     if (gt_memory_get_stats(ctx, &stats) == GT_OK)
 *         printf("peak %llu bytes\n", (unsigned long long)stats.peak_in_use);
 *     gt_context_destroy(ctx);
 *     return 0;
 * }
 * @endcode
 */
#ifndef GTRAIN_MEMORY_H
#define GTRAIN_MEMORY_H

#include <gtrain/context.h>

GT_EXTERN_C_BEGIN

/* name, value, title */
#define GT_MEMORY_LIST(X)                                                                                                                  \
    X(PARAMETER, 0, "parameters")                                                                                                          \
    X(GRADIENT, 1, "gradients")                                                                                                            \
    X(OPTIMIZER, 2, "optimizer state")                                                                                                     \
    X(ACTIVATION, 3, "activations saved for backward")                                                                                     \
    X(TEMPORARY, 4, "temporaries")                                                                                                         \
    X(WORKSPACE, 5, "workspace")                                                                                                           \
    X(INPUT, 6, "input batches")                                                                                                           \
    X(USER, 7, "user tensors")

/* What memory is used for. */
typedef int32_t gt_memory_category;
enum {
#define GT_MEMORY_ENUM(name, value, title) GT_MEMORY_##name = value,
    GT_MEMORY_LIST(GT_MEMORY_ENUM)
#undef GT_MEMORY_ENUM
        GT_MEMORY_CATEGORY_COUNT = 8 /* how many there are */
};

/* All in bytes. In use + cached = reserved. */
typedef struct gt_memory_stats {
    uint32_t struct_size;
    uint32_t padding;
    uint64_t in_use;                                     /* of live allocations, rounded as allocated */
    uint64_t cached;                                     /* reserved but free */
    uint64_t reserved;                                   /* taken from the device */
    uint64_t peak_in_use;                                /* since creation or gt_memory_reset_peak */
    uint64_t peak_reserved;                              /* most that was reserved in that time */
    uint64_t allocations;                                /* that succeeded, so far */
    uint64_t device_allocations;                         /* of them, those that had to ask the device */
    uint64_t category_in_use[GT_MEMORY_CATEGORY_COUNT];  /* in_use by category */
    uint64_t category_at_peak[GT_MEMORY_CATEGORY_COUNT]; /* what was in use at the moment of peak_in_use */
    uint64_t category_peak[GT_MEMORY_CATEGORY_COUNT];    /* each category's own peak */
    uint64_t limit;                                      /* most bytes that may be reserved; 0: the device's */
    uint64_t frees;                                      /* calls so far */
    uint64_t retries;                                    /* allocations that succeeded after cached memory was given back or moved */
    uint64_t out_of_memory;                              /* allocations that failed */
    uint64_t segments;                                   /* pieces of memory or ranges of addresses held now */
    uint64_t largest_free;                               /* the largest free block */
    uint64_t steps;                                      /* that have ended */
    uint64_t step_peak;                                  /* most in use since the last step ended */
    uint64_t last_step_peak;                             /* and in the step before */
    double fragmentation;                                /* 1 - largest_free / cached; 0 when nothing is cached */
} gt_memory_stats;

GT_API gt_status gt_memory_stats_init(gt_memory_stats *stats, size_t size); /* @since 0.1 */
/* fills statistics that gt_memory_stats_init has initialised. Never waits. @since 0.1 */
GT_API gt_status gt_memory_get_stats(const gt_context *ctx, gt_memory_stats *stats);
GT_API gt_status gt_memory_reset_peak(gt_context *ctx); /* the peaks begin again at what is in use now. @since 0.1 */
/* Gives cached memory back to the device, and autocast's half copies of weights, which the next use makes again. Waits for the device. @since 0.1 */
GT_API gt_status gt_memory_trim(gt_context *ctx);
/* Ends a step for the figures of steps and for the reports' growth. An optimizer's update, or the end of an outermost scope in which there was none, does so by
 * itself. @since 0.1 */
GT_API gt_status gt_memory_next_step(gt_context *ctx);
/* "parameters" …; "?" for an unknown category. Static. @since 0.1 */
GT_API const char *gt_memory_category_name(gt_memory_category category);

/* --- seeing it: history and files --------------------------------------------------------------------------------------------------- */
/* How many of the latest allocator events (allocations, frees, segments, changed categories, steps, failures) are kept: 16384 at first, 0 for none, at most
 * 2^24. Those kept before are forgotten. BAD_ARGUMENT, OUT_OF_HOST_MEMORY. @since 0.1 */
GT_API gt_status gt_memory_set_history(gt_context *ctx, int64_t events);
/* Writes what the allocator knows to a file: every segment and block with its op, module, shape, category, step and phase, the statistics, and the events that are
 * kept. JSON, UTF-8, sizes in bytes.
 *
 * These three write the whole file beside `path`, flush it and rename it: on failure `path` is as it was and nothing is left behind. IO with errno;
 * BAD_ARGUMENT for a path that names something other than a plain file; OUT_OF_HOST_MEMORY. None waits for the device, and none
 * depends on the locale. @since 0.1 */
GT_API gt_status gt_memory_snapshot(gt_context *ctx, const char *path);
/* One HTML page that needs nothing else: memory over time by category, each block as a band from its birth to its death with its op, module, shape and
 * step, the limit, the steps, and requests that failed. It reaches as far back as the events that are kept. @since 0.1 */
GT_API gt_status gt_memory_timeline(gt_context *ctx, const char *path);
/* The pickle that pytorch.org/memory_viz and torch.cuda._memory_viz read. An op is a frame's function, its module the frame's file. @since 0.1 */
GT_API gt_status gt_memory_viz(gt_context *ctx, const char *path);

/* --- running out ----------------------------------------------------------------------------------------------------------------------
 * When a request cannot be served, a report is made before the call fails: what was asked, who holds the device's memory, one cause, and what can be done about
 * it, ranked by the bytes that each would free. Remedies are worked out from what is live, and one that is already in use is not among them. The numbers
 * of remedies are estimates.
 *
 *     char text[GT_OOM_TEXT_SIZE];
 *     gt_oom_report report;
 *     gt_oom_report_init(&report, sizeof report);
 *     if (gt_memory_last_oom(ctx, &report) == GT_OK && gt_oom_report_text(&report, text, sizeof text, NULL) == GT_OK) puts(text);
 */

/* name, value, what it means */
#define GT_OOM_CAUSE_LIST(X)                                                                                                               \
    X(NONE, 0, "nothing failed")                                                                                                           \
    X(TOO_LARGE, 1, "one request is larger than the device")                                                                               \
    X(LIMIT, 2, "the memory limit is reached")                                                                                             \
    X(CAPACITY, 3, "the device is full")                                                                                                   \
    X(FRAGMENTED, 4, "enough is free, but not in one piece")                                                                               \
    X(EXTERNAL, 5, "others hold the device's memory")                                                                                      \
    X(GROWTH, 6, "memory that is kept grows from step to step")                                                                            \
    X(HOST, 7, "the host's own memory ran out")

/* Why there was no memory, as GT_OOM_CAUSE_LIST has it. */
typedef int32_t gt_oom_cause;
enum {
#define GT_OOM_ENUM(name, value, text) GT_OOM_##name = value,
    GT_OOM_CAUSE_LIST(GT_OOM_ENUM)
#undef GT_OOM_ENUM
};

/* name, value, what it costs */
#define GT_OOM_REMEDY_LIST(X)                                                                                                              \
    X(MICRO_BATCH, 0, "more, smaller kernels; same gradient")                                                                              \
    X(CHECKPOINT, 1, "a second forward: a third more time")                                                                                \
    X(HALF_PRECISION, 2, "rounding to f16 or bf16")                                                                                        \
    X(OFFLOAD, 3, "their bytes cross to the host and back")                                                                                \
    X(WORKSPACE_LIMIT, 4, "slower algorithms")                                                                                             \
    X(RELEASE_GRAPHS, 5, "their gradients are lost")                                                                                       \
    X(RELEASE_KEPT, 6, "the program keeps fewer tensors")                                                                                  \
    X(OTHER_PROCESS, 7, "that program stops or moves")                                                                                     \
    X(RAISE_LIMIT, 8, "less is left for others")

/* What can be done, as GT_OOM_REMEDY_LIST has it. */
typedef int32_t gt_oom_remedy_kind;
enum {
#define GT_OOM_ENUM(name, value, text) GT_OOM_REMEDY_##name = value,
    GT_OOM_REMEDY_LIST(GT_OOM_ENUM)
#undef GT_OOM_ENUM
        GT_OOM_REMEDY_KINDS = 9 /* how many there are */
};

#define GT_OOM_GROUPS    8    /* most groups in a report */
#define GT_OOM_PINS      4    /* most pins in a report */
#define GT_OOM_HOLDERS   8    /* most holders in a report */
#define GT_OOM_REMEDIES  12   /* most remedies in a report */
#define GT_OOM_TEXT_SIZE 2560 /* enough for gt_oom_report_text: 24 lines of at most 100 characters */

/* Live memory of one op in one module. Strings of a report are never NULL and valid as long as the context. */
typedef struct gt_oom_group {
    const char *op;              /* "" if there is none */
    const char *module;          /* "" outside modules */
    uint64_t bytes;              /* of all of them */
    uint64_t largest;            /* of the largest */
    uint64_t pinned;             /* in `pins`: free bytes beside them */
    int64_t count;               /* blocks */
    int64_t shape[GT_MAX_DIMS];  /* of the largest */
    int32_t ndim;                /* -1: not a tensor */
    int32_t dtype;               /* gt_dtype */
    gt_memory_category category; /* of all of them */
    int32_t padding;
} gt_oom_group;

/* Another process with memory on the device. */
typedef struct gt_oom_holder {
    int64_t process; /* its id; 0: unknown */
    uint64_t bytes;  /* that it holds */
} gt_oom_holder;

/* What can be done about a request that failed, with the numbers to do it with. */
typedef struct gt_oom_remedy {
    gt_oom_remedy_kind kind; /* what to do */
    int32_t enough;          /* 1: with it alone the whole step is estimated to fit */
    uint64_t bytes;          /* that it takes off the moment that failed, estimated. RAISE_LIMIT: that it adds */
    uint64_t need;           /* in use at the fullest moment of the step with it, estimated; 0: not known */
    int64_t micro_batch;     /* MICRO_BATCH: samples at a time */
    int64_t accumulation;    /* MICRO_BATCH: how many of them make the batch */
    int64_t depth;           /* CHECKPOINT: gt_module_set_checkpointing on each module of this depth below the root; 0: see `segments` */
    int64_t segments;        /* CHECKPOINT: gt_nn_sequential_set_segments of the module `target` */
    uint64_t limit;    /* RAISE_LIMIT: the new memory limit; WORKSPACE_LIMIT: the new workspace limit; OFFLOAD: smallest tensors to move */
    int64_t process;   /* OTHER_PROCESS: its id */
    int64_t count;     /* modules, graphs or tensors it is about; 0: does not apply */
    char target[64];   /* CHECKPOINT with segments: the sequential's path, "" for the root */
    char subject[192]; /* what to do, in words */
    char cost[96];     /* what it costs, in words */
} gt_oom_remedy;

/* Who holds the device's memory, why a request failed, and what can be done. */
typedef struct gt_oom_report {
    uint32_t struct_size;
    gt_oom_cause cause; /* why it failed */
    /* the request; in a report of the present state empty */
    uint64_t requested;          /* bytes, as asked */
    uint64_t rounded;            /* as they would have been taken */
    const char *op;              /* that asked, or "" */
    const char *module;          /* in which it ran, or "" */
    const char *phase;           /* "forward", "backward", "update" or "" */
    int64_t shape[GT_MAX_DIMS];  /* of the tensor; ndim entries */
    int32_t ndim;                /* -1: not a tensor */
    int32_t dtype;               /* gt_dtype of the tensor */
    gt_memory_category category; /* what it was for */
    int32_t layers;              /* of the outermost module that runs or ran last */
    int32_t layers_run;          /* of them */
    int32_t padding;
    int64_t step; /* steps that had ended */
    /* the device, in bytes: ours + others + device_free = device_total */
    uint64_t device_total;
    uint64_t device_free; /* not taken by anybody */
    uint64_t ours;        /* reserved by this context */
    uint64_t others;      /* other processes, other contexts, and the driver's own */
    uint64_t here;        /* of `others`: this process outside the context, where that is known */
    /* this context: in_use + cached = reserved */
    uint64_t limit;                                     /* 0: none */
    uint64_t in_use;                                    /* of live allocations */
    uint64_t cached;                                    /* reserved but free */
    uint64_t reserved;                                  /* taken from the device */
    uint64_t largest_free;                              /* the largest free block */
    uint64_t largest_possible;                          /* the largest request that would succeed */
    uint64_t peak_in_use;                               /* most in use so far */
    uint64_t last_step_peak;                            /* most in use in the last step that ended */
    uint64_t category_in_use[GT_MEMORY_CATEGORY_COUNT]; /* in_use by category */
    uint64_t category_peak[GT_MEMORY_CATEGORY_COUNT];   /* each category's own peak */
    /* what backward would still need */
    uint64_t saved; /* bytes that records of ops keep for a backward that has not run */
    int64_t graphs; /* separate records with a result that is still held */
    int64_t batch;  /* samples or rows in the batch, a guess; 0: not known */
    /* growth: the op whose live bytes rose over each of the last steps, with the most bytes. growth_steps 0: none */
    const char *growth_op;
    const char *growth_module;                       /* and its module */
    uint64_t growth;                                 /* bytes a step, of all that grew */
    uint64_t growth_now;                             /* bytes estimated to have gathered so */
    gt_memory_category growth_category;              /* of what grew */
    int32_t growth_steps;                            /* over how many steps it rose; 0: nothing grew */
    int32_t n_groups, n_pins, n_holders, n_remedies; /* entries that are filled in the arrays below */
    gt_oom_group groups[GT_OOM_GROUPS];              /* the most live bytes first */
    gt_oom_group pins[GT_OOM_PINS];          /* what lies between free pieces, the most free bytes first; where memory cannot be moved */
    gt_oom_holder holders[GT_OOM_HOLDERS];   /* other processes on the device, the most bytes first */
    gt_oom_remedy remedies[GT_OOM_REMEDIES]; /* the most bytes first; RAISE_LIMIT, which frees none, last */
} gt_oom_report;
GT_API gt_status gt_oom_report_init(gt_oom_report *report, size_t size); /* @since 0.1 */

/* The report of the last request that failed. NOT_FOUND if none has. @since 0.1 */
GT_API gt_status gt_memory_last_oom(const gt_context *ctx, gt_oom_report *report);
/* The same for the present state: cause NONE, and remedies as if memory were short now. Slow: it asks the driver. @since 0.1 */
GT_API gt_status gt_memory_report(gt_context *ctx, gt_oom_report *report);
/* Writes the report as text (at most 24 lines of 100 characters, the most important first) or JSON (one object), cut to `size` bytes and NUL-terminated if
 * size > 0. *needed (may be NULL) gets the bytes of the whole with its NUL. `buffer` may be NULL if `size` is 0. @since 0.1 */
GT_API gt_status gt_oom_report_text(const gt_oom_report *report, char *buffer, size_t size, size_t *needed);
/* the same as one JSON object. @since 0.1 */
GT_API gt_status gt_oom_report_json(const gt_oom_report *report, char *buffer, size_t size, size_t *needed);

/* Called before a call fails for want of memory, on its thread; the report is valid during the call. It may release tensors, raise the limit or ask somebody else to
 * free memory, and return 1: the request is then tried again, as long as that made memory free. 0: the call fails. It must not run ops. */
typedef int32_t (*gt_memory_oom_fn)(void *user, gt_context *ctx, const gt_oom_report *report);
/* Sets the function that is asked before a call fails, and the `user` that it is handed. fn NULL: none. @since 0.1 */
GT_API gt_status gt_memory_set_oom_observer(gt_context *ctx, gt_memory_oom_fn fn, void *user);
/* "LIMIT", "MICRO_BATCH" …; "?" for an unknown value. Static. @since 0.1 */
GT_API const char *gt_oom_cause_name(gt_oom_cause cause);
GT_API const char *gt_oom_remedy_name(gt_oom_remedy_kind kind); /* as gt_oom_cause_name. @since 0.1 */

GT_EXTERN_C_END
#endif

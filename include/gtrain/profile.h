/* gtrain/profile.h: where a training step's time goes: each op of each module, on the host and on the device, against what the device can do.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * #include <stdio.h>
 * gt_status profile_steps(gt_context *ctx, gt_status (*train_one_batch)(void *user), void *user) {
 *     static char text[65536];
 *     gt_profile_options options;
 *     gt_profile_options_init(&options, sizeof options);
 *     options.wait = 2;   // steps that run as ever
 *     options.warmup = 2; // steps that are seen and forgotten
 *     options.active = 5; // steps that are measured
 *     options.repeat = 1;
 *     gt_profile *profile;
 *     gt_status status = gt_profile_create(ctx, &options, &profile);
 *     if (status != GT_OK) return status;
 *     for (int i = 0; i < 9 && status == GT_OK; i++) status = train_one_batch(user); // each update ends a step
 *     if (status == GT_OK) status = gt_profile_stop(profile);
 *     if (status == GT_OK) status = gt_profile_text(profile, GT_PROFILE_BY_ALL, 30, text, sizeof text, NULL);
 *     if (status == GT_OK) puts(text);
 *     if (status == GT_OK) status = gt_profile_trace(profile, "trace.json"); // for ui.perfetto.dev
 *     gt_profile_destroy(profile);
 *     return status;
 * }
 * @endcode
 *
 * While a profile measures, it stands between the context and its device and sees every call of the device: kernels, copies, updates. Between rounds, and
 * when no profile is there, nothing is in between. Nothing is waited for while a round measures; the device is waited for where a round begins and ends.
 *
 * Device time is what passes on the device's stream between a call's first work and its last, taken by the device itself. Where the device is ahead of the
 * host (many small kernels), it contains the time until the host has launched the work. On the CPU the device's time is the host's. A compiled step that
 * runs as a CUDA graph runs call by call while it is measured, so that its parts can be seen, which takes longer, and custom ops' functions are called
 * again; with the option whole_graphs it stays one item.
 *
 * Bytes and operations follow from shapes: bytes are the least that the op has to read and write, operations those of its definition (a multiply-add is
 * two). Rates are what that makes a second, so a kernel that reads its input twice shows half the bandwidth that the memory had. */
#ifndef GTRAIN_PROFILE_H
#define GTRAIN_PROFILE_H

#include <gtrain/status.h>
#include <gtrain/tensor.h>

GT_EXTERN_C_BEGIN

/* What watches a context's calls of its device. */
typedef struct gt_profile gt_profile;

typedef int32_t gt_profile_phase;
enum {
    GT_PROFILE_WAIT = 0,   /* nothing is seen */
    GT_PROFILE_WARMUP = 1, /* seen and forgotten: what is made on first use does not count */
    GT_PROFILE_ACTIVE = 2, /* measured */
    GT_PROFILE_DONE = 3    /* all rounds are over, or gt_profile_stop was called */
};

/* Called when a round has ended, on the thread that ended its last step; its results can be read, also by functions that write files. It must not run ops,
 * nor stop or destroy the profile. */
typedef void (*gt_profile_fn)(void *user, gt_profile *profile);

/* The schedule is torch.profiler's: after `skip_first` steps come rounds of `wait`, `warmup` and `active` steps. A step ends with an update
 * (gt_optimizer_step, gt_scaler_step, a window's end, gt_step_run) or gt_memory_next_step, or where gt_profile_step says so. */
typedef struct gt_profile_options {
    uint32_t struct_size;
    int32_t skip_first;     /* default 0 */
    int32_t wait;           /* default 0 */
    int32_t warmup;         /* default 0 */
    int32_t active;         /* default 0: all that follows, until gt_profile_stop */
    int32_t repeat;         /* rounds; default 0: until gt_profile_stop */
    int32_t manual_steps;   /* not 0: steps end by gt_profile_step alone, as where several optimizers step one after the other */
    int32_t whole_graphs;   /* not 0: a compiled step's graph is one item */
    int32_t nvtx;           /* not 0 (default 1): each call is an NVTX range too, for tools that show them; CUDA alone */
    int32_t max_events;     /* most calls of a round that are kept one by one for gt_profile_trace, default 1000000; sums have all */
    gt_profile_fn on_round; /* may be NULL */
    void *user;             /* handed to on_round */
} gt_profile_options;
GT_API gt_status gt_profile_options_init(gt_profile_options *options, size_t size); /* @since 0.1 */

/* Begins with the first step. `options` may be NULL for the defaults: everything from now on is measured. Measures the device's ceilings too if nobody has
 * asked for them in this context; if there is no memory to do so, shares of them stay unknown. BAD_ARGUMENT naming the option; BAD_STATE where the context
 * has a profile that has not been stopped, while a step is traced, inside a backward or a custom op's function. Waits for the device. @since 0.1 */
GT_API gt_status gt_profile_create(gt_context *ctx, const gt_profile_options *options, gt_profile **profile);
/* Stops it first. NULL is allowed, and so is a profile whose context was destroyed. @since 0.1 */
GT_API void gt_profile_destroy(gt_profile *profile);

/* A step ends. Nothing to do once all rounds are over. BAD_STATE after gt_profile_stop, and while a step is traced, inside a backward or a custom op's
 * function; what the device reported where a round ends. Waits for the device where an active phase begins or ends. @since 0.1 */
GT_API gt_status gt_profile_step(gt_profile *profile);
/* The last step ends; a round that measures ends with what it has. Nothing to do for one that has stopped, or whose context was destroyed. BAD_STATE as
 * gt_profile_step; the first failure of measuring, if there was one: results are then incomplete. Waits for the device. @since 0.1 */
GT_API gt_status gt_profile_stop(gt_profile *profile);
/* Of the step that runs now. @since 0.1 */
GT_API gt_profile_phase gt_profile_get_phase(const gt_profile *profile);

/* --- results: of the last round that has ended. They stay until the next one begins to measure; while one measures all of these are BAD_STATE, or 0 and
 * NULL. */

typedef struct gt_profile_summary {
    uint32_t struct_size;
    int32_t rounds;         /* that have ended */
    int64_t steps;          /* of the last one */
    int64_t calls;          /* of the device */
    double wall_seconds;    /* from the begin of the active phase until the device had done all of it */
    double host_seconds;    /* of it, inside calls of the device */
    double device_seconds;  /* sum over calls; streams that work at the same time both count */
    uint64_t bytes;         /* that the calls move at the least: every element read or written once */
    uint64_t flops;         /* floating-point operations of the calls */
    int64_t untimed;        /* calls whose device time could not be taken: too many were under way, or the device failed */
    int64_t dropped_events; /* calls that are in the sums but not in the trace */
} gt_profile_summary;
GT_API gt_status gt_profile_summary_init(gt_profile_summary *summary, size_t size); /* @since 0.1 */
/* BAD_STATE before the first round's end. @since 0.1 */
GT_API gt_status gt_profile_get_summary(const gt_profile *profile, gt_profile_summary *summary);

/* All calls of one op in one module, phase and dtype. Fields may be added at its end. */
typedef struct gt_profile_entry {
    const char *op;          /* "conv2d", "update", "copy host to device", "graph"; a custom op's own name */
    const char *module;      /* "block1.conv", "" outside modules */
    const char *phase;       /* "forward", "backward", "update", or "other" */
    int64_t calls;           /* how many there were */
    double host_seconds;     /* inside them on the host */
    double device_seconds;   /* of them on the device */
    uint64_t bytes;          /* as in gt_profile_summary */
    uint64_t flops;          /* as in gt_profile_summary */
    double bytes_per_second; /* of device time; 0: none was taken */
    double flops_per_second; /* the same of flops */
    double ceiling;          /* least device time by the ceilings over the device time: 1 is the best (a cache may give more). 0: unknown */
    gt_dtype dtype;          /* of the first input; -1: none */
    int32_t matrix;          /* 1: products or convolutions, whose ceiling is that of the dtype's matrix rate too */
} gt_profile_entry;
/* How many there are, the most device time first. @since 0.1 */
GT_API int32_t gt_profile_entry_count(const gt_profile *profile);
/* Borrowed until the next round begins to measure. NULL: there is none of that number. @since 0.1 */
GT_API const gt_profile_entry *gt_profile_get_entry(const gt_profile *profile, int32_t index);

typedef int32_t gt_profile_group;
enum {
    GT_PROFILE_BY_ALL = 0,    /* a row an entry: op, module and phase */
    GT_PROFILE_BY_OP = 1,     /* modules joined */
    GT_PROFILE_BY_MODULE = 2, /* ops joined */
    GT_PROFILE_BY_PHASE = 3   /* forward, backward, update, other */
};
/* A table for the terminal: at most 120 columns, the most device time first, grouped by `group`, `rows` rows (0: all) and one for the rest, then totals. "ceil" is
 * gt_profile_entry.ceiling; rates are in TB/s and TFLOP/s, or in thousandths of them on a device that copies less than 0.2 TB/s. Cut to `size` bytes and
 * NUL-terminated if size > 0. *needed (may be NULL) gets the bytes of the whole with its NUL. `buffer` may be NULL if `size` is 0. BAD_ARGUMENT, BAD_STATE.
 * @since 0.1 */
GT_API gt_status gt_profile_text(const gt_profile *profile, gt_profile_group group, int32_t rows, char *buffer, size_t size,
                                 size_t *needed);
/* Summary, ceilings and entries as one JSON object, to a file: the old one stays where that fails. IO, BAD_STATE, OUT_OF_HOST_MEMORY. @since 0.1 */
GT_API gt_status gt_profile_json(const gt_profile *profile, const char *path);
/* Every call on a time line, for ui.perfetto.dev or chrome://tracing: steps and calls on the host, and the device's streams below them. As gt_profile_json.
 * @since 0.1 */
GT_API gt_status gt_profile_trace(const gt_profile *profile, const char *path);

/* What the device was seen to reach, the best of several runs. 0: it could not be measured. */
typedef struct gt_profile_ceilings {
    uint32_t struct_size;
    int32_t padding;
    double bytes_per_second;     /* a large copy in device memory, read and written bytes together */
    double f32_flops_per_second; /* a large f32 matrix product, with TF32 if the context allows it */
    double f16_flops_per_second; /* an f16 one; taken for bf16 too */
} gt_profile_ceilings;
GT_API gt_status gt_profile_ceilings_init(gt_profile_ceilings *ceilings, size_t size); /* @since 0.1 */
/* Measured by the first call in a context, kept for later ones. Takes a fraction of a second and at most a quarter of the memory that is free and
 * within the limit, which it gives back. OUT_OF_MEMORY; BAD_STATE while a step is traced, inside a backward, or while a profile measures. Waits for the
 * device. @since 0.1 */
GT_API gt_status gt_profile_get_ceilings(gt_context *ctx, gt_profile_ceilings *ceilings);

GT_EXTERN_C_END
#endif

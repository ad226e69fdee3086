/* The inside of the profiler.
 *
 * device.c    a device that stands before the context's own while a round runs: each function of its table notes a call and hands it on
 * watch.c     notes calls: host clock, timers on the stream, sums by op, module, phase and dtype, and a list for the time line
 * profile.c   the schedule: when it is put in place and taken away, when results are complete
 * ceilings.c  what the device can do
 * text.c, json.c  results for people, programs and Perfetto
 *
 * The device that stands before lives as long as the context, since a trace of a compiled step may hold it; the profile lives as long as its caller wants. */
#ifndef GT_PROFILE_PROFILE_H
#define GT_PROFILE_PROFILE_H

#include "core/core.h"
#include "core/op_cost.h"
#include <gtrain/profile.h>

/* A timing event that several calls may share: the end of one is the begin of the next. */
typedef struct gt__timer {
    gt__event *event;
    struct gt__timer *next; /* in the list of free ones */
    int32_t references;
} gt__timer;

/* A call whose device time is still to be read. */
typedef struct gt__pending {
    gt__timer *begin, *end;
    int32_t entry;
    int64_t call; /* in `calls`; -1: not there */
} gt__pending;

/* Seconds: of the host's clock. */
typedef struct gt__profile_call {
    double host_begin, host_end;
    double device_begin, device_end; /* NaN: not known */
    uint64_t bytes, flops;
    int32_t entry;
    int32_t stream; /* gt__stream_id, or GT__STREAM_NONE */
} gt__profile_call;

typedef struct gt__profile_sum {
    gt_profile_entry shown;
    const char *op, *module; /* of the context: what entries are found by */
    gt__phase phase;
    int32_t number; /* in the order in which they were met */
    char *range;    /* for NVTX; made when it is first wanted */
} gt__profile_sum;

typedef struct gt__span {
    double begin, end;
} gt__span;

#define GT__STREAMS 2

struct gt_profile {
    gt_profile_options options;
    struct gt__profiled *device; /* NULL: the context is gone, or has another profile now */
    gt_profile_phase phase;
    int64_t steps_done; /* since it was made */
    bool stopped;
    bool results;             /* a round has ended */
    bool in_callback, doomed; /* on_round runs; and has destroyed it */
    gt_status failure;        /* the first of measuring, */
    char failure_text[256];   /* and its message */
    char device_name[128];
    gt_profile_ceilings ceilings; /* as of the end of the round; 0: not known */

    /* sums */
    gt__profile_sum *sums;
    int32_t n_sums, cap_sums;
    int32_t *slots; /* where a sum is by its key's hash; 2^n of them; -1: free */
    int32_t n_slots;
    gt_profile_summary summary;

    /* the time line */
    gt__profile_call *calls;
    int64_t n_calls, cap_calls;
    gt__span *steps;
    int64_t n_steps, cap_steps;
    int64_t step_calls; /* calls when the last step ended */
    double begin, end;  /* of the active phase */

    /* what is under way: a ring, from the oldest */
    gt__pending *pending;
    int32_t first_pending, n_pending, cap_pending;
    gt__timer *free_timers;
    gt__timer *last[GT__STREAMS];  /* end of the last call of the stream, not counted; NULL: none */
    double last_host[GT__STREAMS]; /* when that was recorded */
    gt__timer *origin;             /* what device times are counted from, */
    double origin_seconds;         /* and when that was */
};

/* A call that is being noted. */
#define GT__STREAM_NONE (-1) /* the host alone works, or waits */
typedef struct gt__watch {
    gt__timer *begin; /* NULL: no device time can be taken */
    double host;
    int32_t sum; /* -1: none */
    int32_t stream;
    bool range; /* one was pushed */
} gt__watch;

/* A device before the context's own. */
typedef struct gt__profiled {
    gt__device device; /* first: what backend functions are given */
    gt__backend table;
    gt__kernel kernels[GT__OP_COUNT];
    gt__profiler hooks;
    gt_context *ctx;
    gt__device *real;
    gt_profile *owner;   /* the context's profile, or NULL */
    gt_profile *profile; /* the same while it notes; NULL: all is handed on and nothing noted */
    bool timers;         /* device times are taken by timers; false: the device is the host, whose clock is read anyway */
    bool watching;       /* a call is being noted: what it calls is part of it */
    bool capturing;      /* work is written down, not done */
    bool measured;       /* `ceilings` are */
    gt_profile_ceilings ceilings;
    gt__watch custom; /* of a custom op's backward */
} gt__profiled;

static inline gt__profiled *gt__profiled_of(gt__device *device) { return (gt__profiled *)(void *)device; }

/* --- device.c */
extern const char *const gt__copy_names[3]; /* by gt__copy_kind */
/* The context's, made by the first call. */
gt_status gt__profiled_get(gt_context *ctx, gt__profiled **profiled);
/* The real device current, whatever stands before it now. */
static inline int32_t gt__profiled_enter(gt__profiled *p) { return p->real->backend->enter ? p->real->backend->enter(p->real) : -1; }
static inline void gt__profiled_leave(gt__profiled *p, int32_t previous) {
    if (p->real->backend->enter) p->real->backend->leave(p->real, previous);
}
gt__profiled *gt__profiled_of_hooks(gt__profiler *hooks);
/* Before the context's own device, or away again. */
void gt__profiled_place(gt__profiled *profiled);
void gt__profiled_remove(gt__profiled *profiled);

/* --- watch.c */
/* False: nothing is to be noted. */
static inline bool gt__watches(const gt__profiled *p) { return p->profile != NULL && !p->watching && !p->capturing; }
/* Around a call, where gt__watches. `op`: valid as long as the context. */
void gt__watch_begin(gt__profiled *p, gt__watch *watch, const char *op, int32_t dtype, int32_t stream);
void gt__watch_end(gt__profiled *p, gt__watch *watch, const gt__cost *cost, gt_status status);
/* After calls on a stream have waited for something else: the last one's end is not the next one's begin. */
static inline void gt__watch_gap(gt__profiled *p, gt__stream_id stream) {
    if (p->profile) p->profile->last[stream] = NULL;
}
/* Forgets all that was noted, and begins anew: device times are counted from here. The device has nothing to do, and is current. */
gt_status gt__watch_restart(gt_profile *profile);
/* Reads what is under way, fills rates and sorts. The device has nothing to do, and is current. */
void gt__watch_finish(gt_profile *profile);
/* Frees what needs the device, which is current. */
void gt__watch_close(gt_profile *profile);
/* Frees the rest. */
void gt__watch_free(gt_profile *profile);
/* A step of an active phase has ended. */
void gt__watch_step(gt_profile *profile);
/* Keeps the first failure, which was raised. */
void gt__profile_failed(gt_profile *profile, gt_status status);

/* --- profile.c: hooks.step_done and hooks.close */
void gt__profile_step_done(gt__profiler *hooks);
void gt__profile_context_closes(gt__profiler *hooks);
/* BAD_STATE: there is nothing to be shown now. */
gt_status gt__profile_check_results(const gt_profile *profile, const char *who);

/* --- ceilings.c */
/* Fills profiled->ceilings if that was not done. OUT_OF_MEMORY. */
gt_status gt__ceilings_measure(gt__profiled *profiled);
/* The least seconds for so much of an entry's kind; 0: not known. */
double gt__ceilings_seconds(const gt_profile_ceilings *ceilings, const gt_profile_entry *entry);

#endif

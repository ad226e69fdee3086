/* The out-of-memory report: from what the allocator knows, and from facts about the training step that core collects, to one cause and a list of remedies.
 * Nothing here allocates device memory. Host memory may run out: then the report says less. */
#ifndef GT_MEMORY_REPORT_H
#define GT_MEMORY_REPORT_H

#include "memory/allocator.h"

/* What the allocator cannot see. Zero means unknown, or nothing of it. */
typedef struct gt__report_facts {
    const gt__shortage *shortage; /* NULL: a report of the present state */
    uint64_t device_free, device_total;
    const gt__memory_holder *holders;
    int32_t n_holders;
    int64_t process; /* this one: which of the holders we are */
    /* the step */
    int64_t batch; /* guessed samples in the batch */
    int32_t layers, layers_run;
    uint64_t missing_gradients; /* bytes of gradients that leaves do not have yet */
    /* records of ops that wait for a backward */
    int64_t graphs;       /* that share nothing but leaves */
    uint64_t saved;       /* bytes that they keep */
    uint64_t held;        /* bytes that nobody but they hold */
    uint64_t held_newest; /* of them, by the newest: the forward that runs */
    const char *root_op;  /* of the oldest graph's result, or NULL */
    const char *root_module;
    /* what is on already */
    bool autocast, offload;
    uint64_t workspace_limit; /* GT_WORKSPACE_AUTO: none */
    /* half precision */
    uint64_t half_saved;                             /* bytes by which what the newest graph saves would shrink */
    uint64_t half_copies;                            /* bytes of half copies of weights and inputs that there would be instead */
    bool (*half_result)(void *user, const char *op); /* would a temporary of this op be half? May be NULL */
    void *user;
} gt__report_facts;

/* Fills `report` (struct_size apart). */
void gt__report_make(const gt__allocator *allocator, const gt__report_facts *facts, gt_oom_report *report);
/* A caller's report of another version as ours, with what is missing empty. BAD_ARGUMENT and BAD_ABI, also for the buffer that goes with it. */
gt_status gt__report_read(gt_oom_report *ours, const gt_oom_report *theirs, const char *buffer, size_t size, const char *who);
/* Bytes that could still be taken from the device. */
uint64_t gt__report_room(const gt_oom_report *report);
/* One sentence with the numbers of the report's cause. */
const char *gt__report_cause_text(const gt_oom_report *report, char *buffer, size_t size);
/* `conv2d "block1.conv"`. */
const char *gt__report_who(const char *op, const char *module, char *buffer, size_t size);
/* "12.5 MiB" */
#define GT__BYTES_TEXT 24
const char *gt__bytes_text(uint64_t bytes, char buffer[GT__BYTES_TEXT]);
/* What to do first: by its cause, else what frees most. NULL: there is no remedy. */
const gt_oom_remedy *gt__report_best(const gt_oom_report *report);

/* --- parts of it, and for their tests ------------------------------------------------------------------------------------------------ */
/* A live block, as far as remedies are concerned. */
typedef struct gt__live_block {
    const char *op, *module; /* never NULL */
    uint64_t bytes, sequence, pinned;
    int64_t step; /* in which it was made */
    int64_t shape[GT_MAX_DIMS];
    int32_t ndim;
    gt_dtype dtype;
    gt_memory_category category;
} gt__live_block;

typedef struct gt__live_list {
    gt__live_block *blocks; /* by sequence: in the order of allocation */
    int64_t count;
} gt__live_list;

/* Adds the remedies that apply, the most bytes first. report has everything but remedies. */
void gt__remedies_add(const gt__live_list *live, const gt__report_facts *facts, gt_oom_report *report);

/* Which modules to checkpoint so that the most is freed of what has been saved since step `step` began. */
typedef struct gt__checkpoint_plan {
    uint64_t frees; /* bytes off the fullest moment of backward; 0: nothing would be gained */
    int64_t depth, segments, count;
    char target[64], first[64], last[64];
} gt__checkpoint_plan;
void gt__checkpoint_plan_make(const gt__live_list *live, int64_t step, gt__checkpoint_plan *plan);

#endif

/* Out of memory, as core sees it: the facts about the step that a report needs, and what a shortage sets in motion. */
#ifndef GT_CORE_OOM_H
#define GT_CORE_OOM_H

#include "core/core.h"
#include "memory/report.h"

enum { GT__HOLDERS_MOST = 64 };

typedef struct gt__oom {
    gt_oom_report last;
    bool has_last;
    gt_memory_oom_fn observer;
    void *user;
    uint32_t walks; /* over the records so far */
    gt__memory_holder holders[GT__HOLDERS_MOST];
} gt__oom;

gt_status gt__oom_create(gt_context *ctx);
void gt__oom_destroy(gt_context *ctx);
/* gt__allocator_options.on_shortage; `user` is the context. */
bool gt__oom_shortage(void *user, const gt__shortage *shortage);

/* Walks the context's handles and records. Allocates no device memory. `facts->shortage` is set by the caller. */
void gt__oom_facts(gt_context *ctx, gt__report_facts *facts);

#endif

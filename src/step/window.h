/* A window seen by a compiled step, which traces what the window does and does it later, in one run or in several. */
#ifndef GT_STEP_WINDOW_H
#define GT_STEP_WINDOW_H

#include "core/core.h"
#include <gtrain/window.h>

bool gt__window_is_open(const gt_window *window);
int32_t gt__window_done(const gt_window *window); /* micro-batches of the open one */
int32_t gt__window_micro_batches(const gt_window *window);

const gt_tensor *gt__window_memory(const gt_window *window); /* its numbers on the device, borrowed */

/* Opens it, as the first gt_window_micro_begin does; `who` asks. gt_window_cancel goes back to here. */
gt_status gt__window_open(gt_window *window, const char *who);
/* Micro-batches of the open window have run; `ended`: and its update too, which closes it. */
gt_status gt__window_advance(gt_window *window, int32_t micro_batches, bool ended);

/* For a run that is a whole window, without opening one: what a failure goes back to, and going back. */
gt_status gt__window_remember(gt_window *window);
gt_status gt__window_go_back(gt_window *window);

/* Where a window stands on the host. A trace begins where it stands, opened if it was not, and leaves it there whatever was traced. */
typedef struct gt__window_place {
    int32_t done;
    bool open, in_micro;
} gt__window_place;
void gt__window_trace_begin(gt_window *window, gt__window_place *place);
void gt__window_trace_end(gt_window *window, const gt__window_place *place);

#endif

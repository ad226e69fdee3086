/* Schedules that are known to be in range. The rate itself is gt__scheduled_rate (core/step_math.h), which the device computes too. */
#ifndef GT_OPTIM_SCHEDULE_H
#define GT_OPTIM_SCHEDULE_H

#include "base/host.h"
#include <gtrain/optim.h>

/* A caller's schedule with the defaults of fields that it does not have. BAD_ARGUMENT naming the field that does not fit. */
gt_status gt__schedule_read(const gt_schedule *theirs, gt_schedule *ours);

#endif

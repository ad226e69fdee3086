#include "step/branches.h"

#include "step/flow.h"

/* The first instruction after i that must wait for it. */
static int32_t first_dependent(const gt__flow *flow, int32_t i, int32_t end) {
    int32_t first = end;
    for (int32_t t = flow->first[i]; t < flow->first[i + 1]; ++t) {
        const gt__touch *mine = &flow->touches[t];
        for (int32_t k = 0; k < gt__flow_count(flow, mine->area); ++k) {
            const gt__touch *other = gt__flow_touch(flow, mine->area, k);
            if (other->instruction <= i || other->instruction >= first) continue;
            bool overlap = gt__touch_begin(other) < gt__touch_end(mine) && gt__touch_begin(mine) < gt__touch_end(other);
            if (overlap && (mine->access.writes || other->access.writes)) first = other->instruction;
        }
    }
    return first;
}

static int32_t find_join(const gt__program *program) {
    for (int32_t i = 0; i < program->count; ++i) {
        gt__instruction_kind kind = program->list[i].kind;
        if (kind == GT__DO_GRAD_STEP_TASK || kind == GT__DO_GRAD_NORM || kind == GT__DO_UPDATE) return i;
    }
    return -1;
}

gt_status gt__find_branches(gt__program *program, uint8_t *aside, int32_t *join) {
    gt__flow flow;
    memset(aside, 0, (size_t)program->count);
    *join = find_join(program);
    if (*join < 0) return GT_OK;
    GT_TRY(gt__flow_make(program, &flow));
    bool beside = false; /* whether there is something for it to run beside */
    for (int32_t i = *join - 1; i >= 0; --i) {
        const gt__instruction *n = &program->list[i];
        bool candidate = n->kind == GT__DO_CALL && n->phase == GT__PHASE_BACKWARD && n->call->call.op != GT__OP_CUSTOM &&
                         first_dependent(&flow, i, program->count) >= *join;
        aside[i] = candidate && beside;
        beside |= !candidate && n->phase == GT__PHASE_BACKWARD;
    }
    gt__flow_free(&flow);
    return GT_OK;
}

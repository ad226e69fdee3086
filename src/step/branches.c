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

/* The last instruction before i that it must wait for; 0 if there is none. */
static int32_t last_needed(const gt__flow *flow, int32_t i) {
    int32_t last = 0;
    for (int32_t t = flow->first[i]; t < flow->first[i + 1]; ++t) {
        const gt__touch *mine = &flow->touches[t];
        for (int32_t k = 0; k < gt__flow_count(flow, mine->area); ++k) {
            const gt__touch *other = gt__flow_touch(flow, mine->area, k);
            if (other->instruction >= i || other->instruction <= last) continue;
            bool overlap = gt__touch_begin(other) < gt__touch_end(mine) && gt__touch_begin(mine) < gt__touch_end(other);
            if (overlap && (mine->access.writes || other->access.writes)) last = other->instruction;
        }
    }
    return last;
}

static int32_t find_join(const gt__program *program) {
    for (int32_t i = 0; i < program->count; ++i) {
        gt__instruction_kind kind = program->list[i].kind;
        if (kind == GT__DO_GRAD_STEP_TASK || kind == GT__DO_GRAD_NORM || kind == GT__DO_UPDATE) return i;
    }
    return -1;
}

/* Gradients of weights and the like: nobody waits for them before the join. */
static bool is_candidate(const gt__flow *flow, const gt__program *program, int32_t i, int32_t join) {
    const gt__instruction *n = &program->list[i];
    return n->kind == GT__DO_CALL && n->phase == GT__PHASE_BACKWARD && n->call->call.op != GT__OP_CUSTOM &&
           first_dependent(flow, i, program->count) >= join;
}

gt_status gt__find_branches(gt__program *program, uint8_t *aside, int32_t *join) {
    gt__flow flow;
    memset(aside, 0, (size_t)program->count);
    *join = find_join(program);
    if (*join < 0) return GT_OK;
    GT_TRY(gt__flow_make(program, &flow));
    bool beside = false; /* whether there is something for it to run beside */
    for (int32_t i = *join - 1; i >= 0; --i) {
        bool candidate = is_candidate(&flow, program, i, *join);
        aside[i] = candidate && beside;
        beside |= !aside[i] && program->list[i].phase == GT__PHASE_BACKWARD;
    }
    gt__flow_free(&flow);
    return GT_OK;
}

gt_status gt__branch_order(gt__program *program, int32_t *order) {
    gt__flow flow;
    int32_t join = find_join(program), n = 0;
    for (int32_t i = 0; i < program->count; ++i) order[i] = i;
    if (join < 0) return GT_OK;
    int32_t *after = gt__calloc((size_t)program->count, sizeof *after); /* whom a candidate follows; -1: no candidate */
    if (after == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = gt__flow_make(program, &flow);
    if (status == GT_OK) {
        for (int32_t i = 0; i < program->count; ++i) {
            bool candidate = i > 0 && i < join && is_candidate(&flow, program, i, join);
            after[i] = candidate ? last_needed(&flow, i) : -1;
        }
        for (int32_t i = 0; i < program->count; ++i) {
            if (after[i] >= 0) continue;
            order[n++] = i;
            for (int32_t k = i + 1; k < join; ++k)
                if (after[k] == i) order[n++] = k;
        }
        gt__flow_free(&flow);
    }
    gt__free(after);
    return status;
}

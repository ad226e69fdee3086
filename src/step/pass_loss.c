/* What surrounds a loss: the seed of its gradient, and cross-entropy with its gradient in one call. */
#include "step/calls.h"
#include "step/passes.h"

static bool is_task(const gt__instruction *n, gt__step_task_kind kind) {
    return (n->kind == GT__DO_STEP_TASK || n->kind == GT__DO_GRAD_STEP_TASK) && n->task.task.kind == kind;
}

static int32_t find_task(const gt__program *program, gt__step_task_kind kind, int32_t *count) {
    int32_t found = -1;
    *count = 0;
    for (int32_t i = 0; i < program->count; ++i) {
        if (!is_task(&program->list[i], kind)) continue;
        ++*count;
        found = i;
    }
    return found;
}

typedef struct replacing {
    const void *from, *to;
} replacing;

static void replace(void *user, const gt__access *access) {
    const replacing *r = user;
    if (access->pointer == r->from) gt__access_set(access, r->to);
}

gt_status gt__pass_seed(gt__program *program, const float *one) {
    int32_t seeds, ends, seed = find_task(program, GT__STEP_SEED, &seeds), end = find_task(program, GT__STEP_WINDOW_END, &ends);
    if (seeds != 1 || ends != 1) return GT_OK;
    const gt__step_task task = program->list[seed].task.task;
    if (task.items_cell != NULL || !task.first || task.micro_batches != 1 || !(task.items > 0)) return GT_OK;
    program->list[end].task.task.alone = 1;
    program->list[end].task.task.items = task.items;
    gt__program_drop(program, seed);
    replacing r = {task.seed, task.scaler ? &task.scaler->scale : one};
    for (int32_t i = 0; i < program->count; ++i) gt__instruction_visit(&program->list[i], replace, &r);
    return GT_OK;
}

/* --- cross-entropy ----------------------------------------------------------------------------------------------------------------------- */

static bool is_call(const gt__instruction *n, gt__op_id op) { return n->kind == GT__DO_CALL && n->call->call.op == op; }

static bool same(const gt_tensor *a, const gt_tensor *b) {
    return a == b || (a && b && a->data == b->data && a->meta.dtype == b->meta.dtype && gt__meta_same_layout(&a->meta, &b->meta));
}

/* The gradient of this cross-entropy. */
static int32_t find_gradient(const gt__program *program, int32_t forward) {
    const gt__call *f = &program->list[forward].call->call;
    for (int32_t i = forward + 1; i < program->count; ++i) {
        if (!is_call(&program->list[i], GT__OP_CROSS_ENTROPY_BACKWARD)) continue;
        const gt__call *b = &program->list[i].call->call;
        if (same(b->in[1], f->in[0]) && same(b->in[2], f->in[1]) && same(b->in[3], f->in[2]) && f->out[1] && same(b->in[4], f->out[1]) &&
            f->out[2] && same(b->in[5], f->out[2]))
            return i;
    }
    return -1;
}

/* Whether instructions of [from, to) touch the tensor (reading counts where `reading`). */
static bool touched(gt__program *program, int32_t from, int32_t to, const gt_tensor *t, bool reading) {
    const gt__uses uses = gt__uses_of(program, from, to, t);
    return uses.writes || (reading && uses.reads);
}

static gt_status join(gt__program *program, int32_t forward, int32_t backward) {
    const gt__call *f = &program->list[forward].call->call, *b = &program->list[backward].call->call;
    const gt_tensor *in[] = {b->in[0], f->in[0], f->in[1], f->in[2]}, *out[] = {f->out[0], f->out[1], f->out[2], b->out[0]};
    GT_TRY(gt__call_replace(&program->list[forward], GT__OP_CROSS_ENTROPY_BOTH, f, in, 4, out, 4));
    gt__program_drop(program, backward);
    return GT_OK;
}

gt_status gt__pass_loss(gt__program *program) {
    for (int32_t i = 0; i < program->count; ++i) {
        if (!is_call(&program->list[i], GT__OP_CROSS_ENTROPY) || program->list[i].call->call.attr.loss.reduction == GT_REDUCTION_NONE)
            continue;
        int32_t b = find_gradient(program, i);
        if (b < 0) continue;
        const gt__call *f = &program->list[i].call->call, *g = &program->list[b].call->call;
        bool kept = touched(program, i, b, g->in[0], false) || touched(program, i, b, g->out[0], true);
        for (int32_t k = 0; k < 3; ++k) kept |= touched(program, i + 1, b, f->in[k], false);
        for (int32_t k = 1; k < 3; ++k) kept |= touched(program, i + 1, b, f->out[k], false);
        if (!kept) GT_TRY(join(program, i, b));
    }
    return GT_OK;
}

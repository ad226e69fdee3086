/* Programs as text: one line an instruction, then the memory. */
#include "step/step.h"

static gt_status operand(gt__text *text, const gt__program *p, const gt_tensor *t) {
    char shape[GT__SHAPE_TEXT];
    gt__meta_text(shape, sizeof shape, &t->meta);
    int32_t b = gt__program_buffer(p, t->data);
    if (b >= 0) return gt__text_add(text, "%%%d %s%s", (int)b, gt_dtype_name(t->meta.dtype), shape);
    return gt__text_add(text, "%s%s", gt_dtype_name(t->meta.dtype), shape);
}

static gt_status call_line(gt__text *text, const gt__program *p, const gt__call *call) {
    bool first = true;
    for (int32_t k = 0; k < call->n_out; ++k) {
        if (call->out[k] == NULL) continue;
        GT_TRY(gt__text_add(text, first ? "" : ", "));
        GT_TRY(operand(text, p, call->out[k]));
        first = false;
    }
    GT_TRY(gt__text_add(text, " = %s(", gt__op_table[call->op].name));
    for (int32_t k = 0; k < call->n_in; ++k) {
        GT_TRY(gt__text_add(text, k ? ", " : ""));
        GT_TRY(call->in[k] ? operand(text, p, call->in[k]) : gt__text_add(text, "-"));
    }
    return gt__text_add(text, ")");
}

gt_status gt__plan_text(const gt__plan *plan, gt__text *text) {
    static const char *const phases[] = {"", "forward", "backward", "update"};
    const gt__program *p = &plan->program;
    for (int32_t i = 0; i < p->count; ++i) {
        const gt__instruction *n = &p->list[i];
        GT_TRY(gt__text_add(text, "%4d %-8s %-12s ", (int)i, phases[n->phase], n->module ? n->module : ""));
        if (n->kind == GT__DO_CALL)
            GT_TRY(call_line(text, p, &n->call->call));
        else if (n->kind == GT__DO_UPDATE)
            GT_TRY(gt__text_add(text, "update %d parameters", (int)n->update.count));
        else if (n->kind == GT__DO_GRAD_STEP_TASK)
            GT_TRY(gt__text_add(text, "%s of %d gradients", gt__instruction_name(n), (int)n->task.count));
        else if (n->kind == GT__DO_ZERO || n->kind == GT__DO_COPY)
            GT_TRY(gt__text_add(text, "%s %zu bytes", gt__instruction_name(n), n->kind == GT__DO_ZERO ? n->zero.bytes : n->copy.bytes));
        else
            GT_TRY(gt__text_add(text, "%s", gt__instruction_name(n)));
        GT_TRY(gt__text_add(text, n->workspace ? "  [workspace %zu]\n" : "\n", n->workspace));
    }
    return gt__text_add(text, "%d instructions, arena %zu bytes, most at once %zu\n", (int)p->count, plan->arena_bytes, plan->bound);
}

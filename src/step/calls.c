#include "step/calls.h"

gt__call *gt__call_at(gt__program *program, int32_t i, gt__op_id op) {
    gt__instruction *n = &program->list[i];
    return n->kind == GT__DO_CALL && n->call->call.op == op ? &n->call->call : NULL;
}

typedef struct looking {
    uintptr_t begin, end;
    gt__uses uses;
} looking;

static void look(void *user, const gt__access *access) {
    looking *l = user;
    uintptr_t begin = (uintptr_t)access->pointer;
    if (begin >= l->end || begin + access->bytes <= l->begin) return;
    l->uses.count++;
    l->uses.reads |= access->reads;
    l->uses.writes |= access->writes;
}

gt__uses gt__uses_of(gt__program *program, int32_t from, int32_t to, const gt_tensor *t) {
    if (t == NULL) return (gt__uses){0};
    uintptr_t begin = (uintptr_t)t->data;
    looking l = {.begin = begin, .end = begin + (size_t)t->meta.numel * gt_dtype_size(t->meta.dtype)};
    for (int32_t i = from; i < to; ++i) gt__instruction_visit(&program->list[i], look, &l);
    return l.uses;
}

gt_status gt__call_replace(gt__instruction *n, gt__op_id op, const gt__call *like, const gt_tensor *const *in, int32_t n_in,
                           const gt_tensor *const *out, int32_t n_out) {
    size_t tensors = (size_t)n_in + (size_t)n_out;
    gt__traced_call *made = gt__calloc(1, sizeof *made + tensors * sizeof(gt_tensor) + (size_t)n_in * sizeof(gt_tensor *));
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    made->call = *like;
    made->call.op = op;
    made->call.n_in = n_in;
    made->call.n_out = n_out;
    made->tensors = (gt_tensor *)(made + 1);
    made->in = (gt_tensor **)(made->tensors + tensors);
    made->call.in = made->in;
    memset(made->call.out, 0, sizeof made->call.out);
    for (int32_t k = 0; k < n_in; ++k) {
        if (in[k]) made->tensors[k] = *in[k];
        made->in[k] = in[k] ? &made->tensors[k] : NULL;
    }
    for (int32_t k = 0; k < n_out; ++k) {
        if (out[k]) made->tensors[n_in + k] = *out[k];
        made->call.out[k] = out[k] ? &made->tensors[n_in + k] : NULL;
    }
    gt__free(n->memory);
    n->memory = n->call = made;
    return GT_OK;
}

void gt__program_drop(gt__program *program, int32_t i) {
    gt__instruction_free(&program->list[i]);
    memmove(program->list + i, program->list + i + 1, (size_t)(program->count - i - 1) * sizeof *program->list);
    program->count--;
}

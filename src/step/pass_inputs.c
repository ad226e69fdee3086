/* The inputs come in by the program's first instruction, which on a GPU is one launch. An input that is only wanted in half precision is converted on the way. */
#include "step/passes.h"

typedef struct counting {
    const gt__program *program;
    int32_t buffer, found;
} counting;

static void count_access(void *user, const gt__access *access) {
    counting *c = user;
    if (gt__program_buffer(c->program, access->pointer) == c->buffer) c->found++;
}

static int32_t accesses_of(gt__program *program, int32_t buffer) {
    counting c = {program, buffer, 0};
    for (int32_t i = 0; i < program->count; ++i) gt__instruction_visit(&program->list[i], count_access, &c);
    return c.found;
}

static bool is_whole(const gt__program *program, const gt_tensor *t, int32_t *buffer) {
    *buffer = gt__program_buffer(program, t->data);
    if (*buffer < 0 || !gt__meta_is_dense(&t->meta)) return false;
    const gt__buffer *b = &program->buffers[*buffer];
    return (uintptr_t)t->data == b->address && (size_t)t->meta.numel * gt_dtype_size(t->meta.dtype) == b->bytes;
}

/* The instruction that converts the whole of an f32 input to half precision, if nothing else looks at it; else -1. */
static int32_t find_cast(gt__program *program, int32_t input) {
    for (int32_t i = 0; i < program->count; ++i) {
        const gt__instruction *n = &program->list[i];
        if (n->kind != GT__DO_CALL || n->call->call.op != GT__OP_CAST) continue;
        const gt_tensor *from = n->call->call.in[0], *to = n->call->call.out[0];
        int32_t read, written;
        if (!is_whole(program, from, &read) || read != input || !is_whole(program, to, &written)) continue;
        bool converts = from->meta.dtype == GT_DTYPE_F32 && gt__dtype_is_half(to->meta.dtype) && gt__meta_same_layout(&from->meta, &to->meta);
        return converts && accesses_of(program, input) == 1 ? i : -1;
    }
    return -1;
}

gt_status gt__pass_inputs(gt__program *program, const gt__meta *metas, const int32_t *buffers, int32_t n) {
    if (gt__program_add(program, GT__DO_MOVES, (size_t)n * sizeof(gt__move)) == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__instruction moves = program->list[program->count - 1];
    memmove(program->list + 1, program->list, (size_t)(program->count - 1) * sizeof *program->list);
    moves.moves.list = moves.memory;
    moves.moves.count = n;
    program->list[0] = moves;
    for (int32_t i = 0; i < n; ++i) {
        gt__move *move = &moves.moves.list[i];
        *move = (gt__move){.to = metas[i].dtype, .from = metas[i].dtype};
        if (buffers[i] < 0 || accesses_of(program, buffers[i]) == 0) continue; /* empty, or nobody looks at it */
        move->count = metas[i].numel;
        int32_t cast = find_cast(program, buffers[i]);
        if (cast < 0) {
            move->destination = (void *)(uintptr_t)program->buffers[buffers[i]].address;
            continue;
        }
        const gt_tensor *to = program->list[cast].call->call.out[0];
        move->destination = to->data;
        move->to = to->meta.dtype;
        gt__instruction_free(&program->list[cast]);
        memmove(program->list + cast, program->list + cast + 1, (size_t)(program->count - cast - 1) * sizeof *program->list);
        program->count--;
    }
    return GT_OK;
}

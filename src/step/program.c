/* Programs: keeping instructions, showing what they touch, running one. */
#include "step/program.h"

/* --- host memory ------------------------------------------------------------------------------------------------------------------------- */

void gt__instruction_free(gt__instruction *instruction) {
    if (instruction->kind == GT__DO_CALL && instruction->call && instruction->call->call.op == GT__OP_CUSTOM)
        gt__custom_release(instruction->call->call.attr.custom.op);
    if (instruction->kind == GT__DO_CUSTOM_BACKWARD && instruction->custom) gt__custom_release(instruction->custom->op);
    gt__free(instruction->memory);
    *instruction = (gt__instruction){0};
}

void gt__program_free(gt__program *program) {
    for (int32_t i = 0; i < program->count; ++i) gt__instruction_free(&program->list[i]);
    gt__free(program->list);
    gt__free(program->buffers);
    *program = (gt__program){0};
}

gt__instruction *gt__program_add(gt__program *program, gt__instruction_kind kind, size_t memory_bytes) {
    if (program->count == program->capacity) {
        int32_t capacity = GT__MAX(program->capacity * 2, 64);
        gt__instruction *grown = gt__realloc(program->list, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return NULL;
        program->list = grown;
        program->capacity = capacity;
    }
    void *memory = NULL;
    if (memory_bytes > 0 && (memory = gt__calloc(1, memory_bytes)) == NULL) return NULL;
    gt__instruction *made = &program->list[program->count++];
    *made = (gt__instruction){.kind = kind, .memory = memory};
    return made;
}

void gt__program_remove(gt__program *program, const bool *marked) {
    int32_t kept = 0;
    for (int32_t i = 0; i < program->count; ++i) {
        if (marked[i])
            gt__instruction_free(&program->list[i]);
        else
            program->list[kept++] = program->list[i];
    }
    program->count = kept;
}

gt_status gt__program_reorder(gt__program *program, const int32_t *order) {
    if (program->count == 0) return GT_OK;
    gt__instruction *list = gt__malloc((size_t)program->count * sizeof *list);
    if (list == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < program->count; ++i) list[i] = program->list[order[i]];
    gt__free(program->list);
    program->list = list;
    program->capacity = program->count;
    return GT_OK;
}

int32_t gt__program_buffer(const gt__program *program, const void *pointer) {
    if (!gt__is_traced(pointer)) return -1;
    uint64_t address = (uintptr_t)pointer;
    int32_t low = 0, high = program->n_buffers; /* the last whose address is not above */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (program->buffers[middle].address <= address)
            low = middle;
        else
            high = middle;
    }
    return program->n_buffers > 0 && program->buffers[low].address <= address ? low : -1;
}

/* --- what an instruction touches ----------------------------------------------------------------------------------------------------------- */

typedef struct visiting {
    gt__access_visitor visit;
    void *user;
} visiting;

static void see(const visiting *v, void *place, size_t bytes, bool reads, bool writes) {
    gt__access access = {.place = place, .bytes = bytes, .reads = reads, .writes = writes};
    memcpy(&access.pointer, place, sizeof access.pointer); /* whatever its type is */
    if (access.pointer != NULL && bytes > 0) v->visit(v->user, &access);
}

/* Bytes from the first element to the end of the last. */
static size_t extent(const gt__meta *meta) {
    int64_t last = 0;
    if (meta->numel == 0) return 0;
    for (int32_t i = 0; i < meta->ndim; ++i) last += (meta->shape[i] - 1) * meta->strides[i];
    return (size_t)(last + 1) * gt_dtype_size(meta->dtype);
}

bool gt__call_changes_input(const gt__call *call, int32_t k) {
    bool batch_norm = call->op == GT__OP_BATCH_NORM || call->op == GT__OP_BATCH_NORM_RELU || call->op == GT__OP_BATCH_NORM_ADD_RELU;
    return batch_norm && call->attr.norm.training && (k == 3 || k == 4);
}

/* Kernels that add to what their output holds. */
static bool adds_to_output(const gt__call *call) {
    if (call->op == GT__OP_LINEAR_BACKWARD_WEIGHT) return call->attr.linear.accumulate != 0;
    if (call->op == GT__OP_CONV2D_BACKWARD_WEIGHT || call->op == GT__OP_CONV2D_RELU_BACKWARD_WEIGHT) return call->attr.conv.accumulate != 0;
    return false;
}

static bool draws(gt__op_id op) { return op == GT__OP_DROPOUT || op == GT__OP_UNIFORM || op == GT__OP_NORMAL; }

static void visit_call(const visiting *v, gt__call *call) {
    for (int32_t k = 0; k < call->n_in; ++k) {
        gt_tensor *t = call->in[k];
        if (t) see(v, &t->data, extent(&t->meta), true, gt__call_changes_input(call, k));
    }
    for (int32_t k = 0; k < call->n_out; ++k) {
        gt_tensor *t = call->out[k];
        /* What a strided output leaves out keeps its value: as if it were read. */
        if (t) see(v, &t->data, extent(&t->meta), adds_to_output(call) || !gt__meta_is_dense(&t->meta), true);
    }
    if (draws(call->op)) see(v, &call->attr.random.cells, 2 * sizeof(uint64_t), true, false);
}

static void visit_chain(const visiting *v, gt__chain *c) {
    for (int32_t k = 0; k < c->n_inputs; ++k) see(v, &c->inputs[k].data, gt__chain_input_bytes(&c->inputs[k]), true, false);
    for (int32_t k = 0; k < c->n_nodes; ++k) see(v, &c->nodes[k].cells, 2 * sizeof(uint64_t), true, false);
    for (int32_t k = 0; k < c->n_outputs; ++k)
        see(v, &c->outputs[k].data, (size_t)c->n * gt_dtype_size(c->nodes[c->outputs[k].node].dtype), false, true);
    see(v, &c->sum.data, (size_t)c->sum.kept * gt_dtype_size(c->sum.dtype), false, true);
}

static void visit_task(const visiting *v, gt__step_task *t) {
    see(v, &t->scaler, sizeof *t->scaler, true, t->kind != GT__STEP_SEED);
    see(v, &t->window, sizeof *t->window, true, true);
    see(v, &t->control, sizeof *t->control * (t->kind == GT__STEP_UNSCALE ? 2 : 1), true, true);
    see(v, &t->seed, sizeof *t->seed, false, true);
    see(v, &t->items_cell, t->items_dtype == GT_DTYPE_F64 ? sizeof(double) : sizeof(float), true, false);
    see(v, &t->rate_cell, sizeof(double), true, false);
    see(v, &t->random_cells, 2 * sizeof(uint64_t), true, true);
    see(v, &t->settle, (size_t)t->settle_count * 2 * sizeof(int32_t), true, true);
}

static void visit_grads(const visiting *v, gt__grad_list_item *list, int32_t count, bool writes) {
    for (int32_t i = 0; i < count; ++i) see(v, &list[i].grad, (size_t)list[i].count * gt_dtype_size(list[i].dtype), true, writes);
}

static void visit_update(const visiting *v, gt__instruction *n) {
    for (int32_t i = 0; i < n->update.count; ++i) {
        gt__update *u = &n->update.list[i];
        size_t count = (size_t)u->count, wide = count * gt_dtype_size(u->param_dtype == GT_DTYPE_F64 ? GT_DTYPE_F64 : GT_DTYPE_F32);
        see(v, &u->param, count * gt_dtype_size(u->param_dtype), true, true);
        see(v, &u->master, count * sizeof(float), true, true);
        see(v, &u->grad, count * gt_dtype_size(u->grad_dtype), true, false);
        see(v, &u->state0, wide, true, true);
        see(v, &u->state1, wide, true, true);
        see(v, &u->half, count * gt_dtype_size(u->half_dtype), false, true);
        see(v, &u->step, 2 * sizeof *u->step, true, true); /* a trace reads the first of the pair, and the second is written */
    }
    see(v, &n->update.rule.rate_cell, sizeof(double), true, false);
    see(v, &n->update.control, sizeof *n->update.control, true, false);
}

static void visit_custom(const visiting *v, gt__custom_gradient *g) {
    for (int32_t k = 0; k < g->n_in; ++k) {
        see(v, &g->in[k], extent(&g->in_meta[k]), true, false);
        see(v, &g->in_grad[k], extent(&g->in_meta[k]), false, true);
    }
    for (int32_t k = 0; k < g->n_out; ++k) {
        see(v, &g->out[k], extent(&g->out_meta[k]), true, false);
        see(v, &g->out_grad[k], extent(&g->out_meta[k]), true, false);
    }
}

void gt__instruction_visit(gt__instruction *n, gt__access_visitor visit, void *user) {
    const visiting v = {visit, user};
    switch (n->kind) {
    case GT__DO_CALL:
        visit_call(&v, &n->call->call);
        break;
    case GT__DO_CHAIN:
        visit_chain(&v, n->chain);
        break;
    case GT__DO_COPY:
        see(&v, &n->copy.destination, n->copy.bytes, false, true);
        if (n->copy.kind == GT__COPY_DEVICE_TO_DEVICE) see(&v, &n->copy.source, n->copy.bytes, true, false);
        break;
    case GT__DO_ZERO:
        see(&v, &n->zero.data, n->zero.bytes, false, true);
        break;
    case GT__DO_MOVES:
        for (int32_t i = 0; i < n->moves.count; ++i) {
            gt__move *m = &n->moves.list[i];
            see(&v, &m->source, (size_t)m->count * gt_dtype_size(m->from), true, false);
            see(&v, &m->destination, (size_t)m->count * gt_dtype_size(m->to), false, true);
        }
        break;
    case GT__DO_COPY_MANY:
        for (int32_t i = 0; i < n->copies.count; ++i) {
            see(&v, &n->copies.list[i].source, n->copies.list[i].bytes, true, false);
            see(&v, &n->copies.list[i].destination, n->copies.list[i].bytes, false, true);
        }
        break;
    case GT__DO_UPDATE:
        visit_update(&v, n);
        break;
    case GT__DO_GRAD_NORM:
    case GT__DO_GRAD_CLIP_NORM:
    case GT__DO_GRAD_CLIP_VALUE:
    case GT__DO_GRAD_SCALE:
        visit_grads(&v, n->grads.list, n->grads.count, n->kind != GT__DO_GRAD_NORM);
        see(&v, &n->grads.norm, sizeof *n->grads.norm, n->kind != GT__DO_GRAD_NORM, n->kind == GT__DO_GRAD_NORM);
        see(&v, &n->grads.first_bad, sizeof *n->grads.first_bad, false, true);
        see(&v, &n->grads.control, sizeof *n->grads.control, true, false);
        break;
    case GT__DO_STEP_TASK:
    case GT__DO_GRAD_STEP_TASK:
        visit_grads(&v, n->task.list, n->task.count, false);
        visit_task(&v, &n->task.task);
        break;
    case GT__DO_CUSTOM_BACKWARD:
        visit_custom(&v, n->custom);
        break;
    case GT__DO_LEAVE:
        see(&v, &n->transfer.data, n->transfer.bytes, true, false);
        break;
    case GT__DO_FETCH:
        see(&v, &n->transfer.data, n->transfer.bytes, false, true);
        break;
    case GT__DO_AWAIT: /* until then the memory is in use */
        see(&v, &n->transfer.data, n->transfer.bytes, true, n->transfer.back);
        break;
    default:
        see(&v, &n->mark.data, (size_t)n->mark.count * gt_dtype_size(n->mark.dtype), true, false);
        see(&v, &n->mark.least, sizeof *n->mark.least, true, true);
        break;
    }
}

static const char *const names[GT__DO_COUNT] = {
    [GT__DO_CHAIN] = "chain",
    [GT__DO_MOVES] = "inputs",
    [GT__DO_COPY] = "copy",
    [GT__DO_ZERO] = "zero",
    [GT__DO_COPY_MANY] = "copy_many",
    [GT__DO_UPDATE] = "update",
    [GT__DO_GRAD_NORM] = "grad_norm",
    [GT__DO_GRAD_CLIP_NORM] = "grad_clip_norm",
    [GT__DO_GRAD_CLIP_VALUE] = "grad_clip_value",
    [GT__DO_GRAD_SCALE] = "grad_scale",
    [GT__DO_MARK_NOT_FINITE] = "mark_not_finite",
    [GT__DO_LEAVE] = "leave",
    [GT__DO_FETCH] = "fetch",
    [GT__DO_AWAIT] = "await",
};

const char *gt__instruction_name(const gt__instruction *n) {
    static const char *const tasks[] = {"step_seed", "step_window_end", "step_unscale", "step_scaler_update", "step_advance"};
    if (n->kind == GT__DO_CALL) return gt__op_table[n->call->call.op].name;
    if (n->kind == GT__DO_CUSTOM_BACKWARD) return "custom_backward";
    if (n->kind == GT__DO_STEP_TASK || n->kind == GT__DO_GRAD_STEP_TASK) return tasks[n->task.task.kind];
    return names[n->kind];
}

/* --- lives ------------------------------------------------------------------------------------------------------------------------------------ */

typedef struct living {
    gt__program *program;
    int32_t now;
} living;

static void lives_on(void *user, const gt__access *access) {
    living *l = user;
    int32_t b = gt__program_buffer(l->program, access->pointer);
    if (b < 0) return;
    gt__buffer *buffer = &l->program->buffers[b];
    if (buffer->first < 0) buffer->first = buffer->input ? 0 : l->now;
    buffer->last = l->now;
}

void gt__program_lives(gt__program *program) {
    for (int32_t b = 0; b < program->n_buffers; ++b) program->buffers[b].first = program->buffers[b].last = -1;
    living l = {.program = program};
    for (; l.now < program->count; ++l.now) gt__instruction_visit(&program->list[l.now], lives_on, &l);
}

/* --- copying and running ------------------------------------------------------------------------------------------------------------------------ */

static gt_status copy_call(const gt__instruction *from, gt__instruction *to) {
    const gt__traced_call *c = from->call;
    const gt__call *call = &c->call;
    int32_t n = call->n_in + call->n_out;
    size_t bytes = sizeof *c + (size_t)call->n_in * sizeof(gt_tensor *) + (size_t)n * sizeof(gt_tensor);
    gt__traced_call *made = gt__malloc(bytes);
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    *made = *c;
    made->tensors = (gt_tensor *)(made + 1);
    made->in = (gt_tensor **)(made->tensors + n);
    memcpy(made->tensors, c->tensors, (size_t)n * sizeof(gt_tensor));
    for (int32_t k = 0; k < call->n_in; ++k) made->in[k] = call->in[k] ? made->tensors + (call->in[k] - c->tensors) : NULL;
    for (int32_t k = 0; k < call->n_out; ++k) made->call.out[k] = call->out[k] ? made->tensors + (call->out[k] - c->tensors) : NULL;
    made->call.in = made->in;
    if (call->op == GT__OP_CUSTOM) gt__custom_retain(call->attr.custom.op);
    to->memory = to->call = made;
    return GT_OK;
}

/* `list` of `bytes` again; *place is where the instruction points to it. */
static gt_status copy_list(gt__instruction *to, const void *list, size_t bytes, void *place) {
    to->memory = NULL;
    if (bytes == 0) return GT_OK;
    void *made = gt__malloc(bytes);
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    memcpy(made, list, bytes);
    to->memory = made;
    memcpy(place, &made, sizeof made);
    return GT_OK;
}

static gt_status copy_instruction(const gt__instruction *from, gt__instruction *to) {
    *to = *from;
    switch (from->kind) {
    case GT__DO_CALL:
        return copy_call(from, to);
    case GT__DO_CHAIN:
        return copy_list(to, from->chain, sizeof *from->chain, &to->chain);
    case GT__DO_COPY:
        if (from->copy.kind != GT__COPY_HOST_TO_DEVICE) return GT_OK;
        return copy_list(to, from->copy.source, from->copy.bytes, &to->copy.source);
    case GT__DO_MOVES:
        return copy_list(to, from->moves.list, (size_t)from->moves.count * sizeof *from->moves.list, &to->moves.list);
    case GT__DO_COPY_MANY:
        return copy_list(to, from->copies.list, (size_t)from->copies.count * sizeof *from->copies.list, &to->copies.list);
    case GT__DO_UPDATE:
        return copy_list(to, from->update.list, (size_t)from->update.count * sizeof *from->update.list, &to->update.list);
    case GT__DO_GRAD_NORM:
    case GT__DO_GRAD_CLIP_NORM:
    case GT__DO_GRAD_CLIP_VALUE:
    case GT__DO_GRAD_SCALE:
        return copy_list(to, from->grads.list, (size_t)from->grads.count * sizeof *from->grads.list, &to->grads.list);
    case GT__DO_GRAD_STEP_TASK:
        return copy_list(to, from->task.list, (size_t)from->task.count * sizeof *from->task.list, &to->task.list);
    case GT__DO_CUSTOM_BACKWARD:
        to->custom = NULL;
        GT_TRY(copy_list(to, from->custom, sizeof *from->custom, &to->custom));
        gt__custom_retain(to->custom->op);
        return GT_OK;
    default:
        return GT_OK;
    }
}

gt_status gt__instruction_copy(const gt__instruction *from, gt__instruction *to) {
    gt_status status = copy_instruction(from, to);
    if (status != GT_OK) *to = (gt__instruction){0}; /* what it holds is the other's */
    return status;
}

gt_status gt__program_copy(const gt__program *from, gt__program *to) {
    *to = (gt__program){.cap_buffers = from->n_buffers, .capacity = from->count + 1};
    to->buffers = gt__malloc(((size_t)from->n_buffers + 1) * sizeof *to->buffers);
    to->list = gt__malloc((size_t)to->capacity * sizeof *to->list);
    if (to->buffers == NULL || to->list == NULL) return GT_OUT_OF_HOST_MEMORY;
    to->n_buffers = from->n_buffers;
    memcpy(to->buffers, from->buffers, (size_t)from->n_buffers * sizeof *to->buffers);
    for (; to->count < from->count; ++to->count) GT_TRY(gt__instruction_copy(&from->list[to->count], &to->list[to->count]));
    return GT_OK;
}

/* After what the compute stream has so far, on the stream beside it. */
static gt_status transfer(const gt__instruction *n, gt__device *device) {
    const gt__backend *b = device->backend;
    bool back = n->transfer.back;
    GT_TRY(b->event_record(device, n->transfer.begins, GT__STREAM_COMPUTE));
    GT_TRY(b->event_wait_stream(device, n->transfer.begins, GT__STREAM_COPY));
    GT_TRY(b->copy(device, GT__STREAM_COPY, back ? GT__COPY_HOST_TO_DEVICE : GT__COPY_DEVICE_TO_HOST,
                   back ? n->transfer.data : n->transfer.host, back ? n->transfer.host : n->transfer.data, n->transfer.bytes));
    return b->event_record(device, n->transfer.is_over, GT__STREAM_COPY);
}

gt_status gt__instruction_run(const gt__instruction *n, gt__device *device) {
    const gt__backend *b = device->backend;
    switch (n->kind) {
    case GT__DO_CALL:
        return b->kernels[n->call->call.op](device, &n->call->call);
    case GT__DO_CHAIN:
        return b->run_chain(device, n->chain);
    case GT__DO_COPY:
        return b->copy(device, GT__STREAM_COMPUTE, n->copy.kind, n->copy.destination, n->copy.source, n->copy.bytes);
    case GT__DO_ZERO:
        return b->memset_zero(device, GT__STREAM_COMPUTE, n->zero.data, n->zero.bytes);
    case GT__DO_MOVES:
        return b->move_many(device, n->moves.list, n->moves.count);
    case GT__DO_COPY_MANY:
        return b->copy_many(device, n->copies.list, n->copies.count);
    case GT__DO_UPDATE:
        return b->update(device, &n->update.rule, n->update.list, n->update.count, n->update.control);
    case GT__DO_GRAD_NORM:
        return b->grad_norm(device, n->grads.list, n->grads.count, n->grads.norm, n->grads.first_bad);
    case GT__DO_GRAD_CLIP_NORM:
        return b->grad_clip_norm(device, n->grads.list, n->grads.count, n->grads.norm, n->grads.most);
    case GT__DO_GRAD_CLIP_VALUE:
        return b->grad_clip_value(device, n->grads.list, n->grads.count, n->grads.most);
    case GT__DO_GRAD_SCALE:
        return b->grad_scale(device, n->grads.list, n->grads.count, n->grads.control);
    case GT__DO_STEP_TASK:
        return b->step_task(device, &n->task.task);
    case GT__DO_GRAD_STEP_TASK:
        return b->grad_step_task(device, n->task.list, n->task.count, &n->task.task);
    case GT__DO_CUSTOM_BACKWARD:
        return gt__custom_backward_run(device, n->custom);
    case GT__DO_LEAVE:
    case GT__DO_FETCH:
        return transfer(n, device);
    case GT__DO_AWAIT:
        return b->event_wait_stream(device, n->transfer.is_over, GT__STREAM_COMPUTE);
    default:
        return b->mark_not_finite(device, n->mark.data, n->mark.dtype, n->mark.count, n->mark.mark, n->mark.least);
    }
}

/* What instructions touch, and how long buffers live. */
#include "made.h"

#include <gtrain/gtrain.h>

enum { READ = 1, WRITE = 2, BOTH = 3 };

typedef struct expected {
    uintptr_t address;
    size_t bytes;
    int how, seen;
} expected;

typedef struct seen_list {
    expected list[40];
    int n, unknown;
    uintptr_t next;
} seen_list;

/* The next address, of which `bytes` are to be seen. */
static void *expect(seen_list *s, size_t bytes, int how) {
    if (s->next == 0) s->next = 0x10000;
    s->next += 0x1000;
    s->list[s->n++] = (expected){s->next, bytes, how, 0};
    return (void *)s->next;
}

static void note_seen(void *user, const gt__access *access) {
    seen_list *s = user;
    const void *held;
    memcpy(&held, access->place, sizeof held);
    CHECK(held == access->pointer);
    for (int i = 0; i < s->n; ++i) {
        expected *e = &s->list[i];
        if (e->address != (uintptr_t)access->pointer) continue;
        EXPECT_EQ_INT(access->bytes, e->bytes);
        EXPECT_EQ_INT((access->reads ? READ : 0) | (access->writes ? WRITE : 0), e->how);
        e->seen++;
        return;
    }
    s->unknown++;
}

static void sees_all_once(gt__instruction *n, seen_list *s) {
    gt__instruction_visit(n, note_seen, s);
    EXPECT_EQ_INT(s->unknown, 0);
    for (int i = 0; i < s->n; ++i)
        if (s->list[i].seen != 1) FAIL("kind %d: pointer %d is seen %d times", (int)n->kind, i, s->list[i].seen);
    *s = (seen_list){0};
}

static void see_call(gt__program *p, gt_context *ctx) {
    seen_list s = {0};
    operand a = outside(expect(&s, 40, READ), 10), b = outside(expect(&s, 40, READ), 10), y = outside(expect(&s, 40, WRITE), 10);
    binary(p, ctx, GT__OP_ADD, &y, &a, &b);
    sees_all_once(&p->list[p->count - 1], &s);

    /* a strided input has holes, a strided output keeps what is in them */
    const int64_t shape[2] = {3, 2};
    operand wide = operand_of(expect(&s, (2 * 10 + 1 + 1) * sizeof(float), READ), GT_DTYPE_F32, 2, shape), narrow = wide;
    wide.meta.strides[0] = narrow.meta.strides[0] = 10;
    narrow.data = expect(&s, (2 * 10 + 1 + 1) * sizeof(float), BOTH);
    unary(p, ctx, GT__OP_COPY, &narrow, &wide);
    sees_all_once(&p->list[p->count - 1], &s);

    operand x = outside(expect(&s, 40, READ), 10), z = outside(expect(&s, 40, WRITE), 10);
    const operand *in[] = {&x, NULL}, *out[] = {&z, NULL};
    gt__call *dropout = add_call(p, ctx, GT__OP_DROPOUT, out, 2, in, 2);
    dropout->attr.random.cells = expect(&s, 16, READ);
    sees_all_once(&p->list[p->count - 1], &s);

    operand dw = outside(expect(&s, 40, BOTH), 10);
    const operand *into = &dw;
    add_call(p, ctx, GT__OP_LINEAR_BACKWARD_WEIGHT, &into, 1, NULL, 0)->attr.linear.accumulate = 1;
    sees_all_once(&p->list[p->count - 1], &s);

    operand five[5];
    const operand *inputs[5];
    for (int k = 0; k < 5; ++k) {
        five[k] = outside(expect(&s, 40, k < 3 ? READ : BOTH), 10); /* running statistics */
        inputs[k] = &five[k];
    }
    add_call(p, ctx, GT__OP_BATCH_NORM, NULL, 0, inputs, 5)->attr.norm.training = 1;
    sees_all_once(&p->list[p->count - 1], &s);
}

static void see_moves(gt__program *p) {
    seen_list s = {0};
    gt__instruction *n = gt__program_add(p, GT__DO_COPY, 0);
    n->copy.kind = GT__COPY_DEVICE_TO_DEVICE;
    n->copy.destination = expect(&s, 24, WRITE);
    n->copy.source = expect(&s, 24, READ);
    n->copy.bytes = 24;
    sees_all_once(n, &s);

    n = gt__program_add(p, GT__DO_COPY, 24);
    n->copy.kind = GT__COPY_HOST_TO_DEVICE; /* from the program's own memory */
    n->copy.destination = expect(&s, 24, WRITE);
    n->copy.source = n->memory;
    n->copy.bytes = 24;
    sees_all_once(n, &s);

    n = gt__program_add(p, GT__DO_ZERO, 0);
    n->zero.data = expect(&s, 24, WRITE);
    n->zero.bytes = 24;
    sees_all_once(n, &s);

    n = gt__program_add(p, GT__DO_COPY_MANY, 2 * sizeof(gt__copy_item));
    n->copies.list = n->memory;
    n->copies.count = 2;
    for (int i = 0; i < 2; ++i) n->copies.list[i] = (gt__copy_item){expect(&s, 24, WRITE), expect(&s, 24, READ), 24};
    sees_all_once(n, &s);

    n = gt__program_add(p, GT__DO_MOVES, sizeof(gt__move));
    n->moves.list = n->memory;
    n->moves.count = 1;
    n->moves.list[0] = (gt__move){expect(&s, 20, WRITE), expect(&s, 40, READ), 10, GT_DTYPE_F16, GT_DTYPE_F32};
    sees_all_once(n, &s);

    n = gt__program_add(p, GT__DO_MARK_NOT_FINITE, 0);
    n->mark.data = expect(&s, 20, READ);
    n->mark.dtype = GT_DTYPE_F16;
    n->mark.count = 10;
    n->mark.least = expect(&s, 8, BOTH);
    sees_all_once(n, &s);
}

static void see_update(gt__program *p) {
    seen_list s = {0};
    gt__instruction *n = gt__program_add(p, GT__DO_UPDATE, sizeof(gt__update));
    n->update.list = n->memory;
    n->update.count = 1;
    n->update.list[0] = (gt__update){.param = expect(&s, 20, BOTH),
                                     .master = expect(&s, 40, BOTH),
                                     .grad = expect(&s, 40, READ),
                                     .state0 = expect(&s, 40, BOTH),
                                     .state1 = expect(&s, 40, BOTH),
                                     .count = 10,
                                     .param_dtype = GT_DTYPE_F16,
                                     .grad_dtype = GT_DTYPE_F32,
                                     .step = expect(&s, 2 * sizeof(int32_t), BOTH), /* the other one of the pair is written */
                                     .half = expect(&s, 20, WRITE),
                                     .half_dtype = GT_DTYPE_BF16};
    n->update.rule.rate_cell = expect(&s, 8, READ);
    n->update.control = expect(&s, sizeof(gt__step_control), READ);
    sees_all_once(n, &s);
}

static void see_grads(gt__program *p) {
    seen_list s = {0};
    for (gt__instruction_kind kind = GT__DO_GRAD_NORM; kind <= GT__DO_GRAD_SCALE; ++kind) {
        bool norm = kind == GT__DO_GRAD_NORM;
        gt__instruction *n = gt__program_add(p, kind, 2 * sizeof(gt__grad_list_item));
        n->grads.list = n->memory;
        n->grads.count = 2;
        n->grads.list[0] = (gt__grad_list_item){.grad = expect(&s, 40, norm ? READ : BOTH), .count = 10, .dtype = GT_DTYPE_F32};
        n->grads.list[1] = (gt__grad_list_item){.grad = expect(&s, 80, norm ? READ : BOTH), .count = 10, .dtype = GT_DTYPE_F64};
        n->grads.norm = expect(&s, 8, norm ? WRITE : READ);
        if (norm) n->grads.first_bad = expect(&s, 4, WRITE);
        if (kind == GT__DO_GRAD_SCALE) n->grads.control = expect(&s, sizeof(gt__step_control), READ);
        sees_all_once(n, &s);
    }
}

static void see_tasks(gt__program *p) {
    seen_list s = {0};
    for (int grads = 0; grads < 2; ++grads) {
        gt__instruction *n = gt__program_add(p, grads ? GT__DO_GRAD_STEP_TASK : GT__DO_STEP_TASK, sizeof(gt__grad_list_item));
        n->task.list = n->memory;
        n->task.count = grads;
        if (grads) n->task.list[0] = (gt__grad_list_item){.grad = expect(&s, 40, READ), .count = 10, .dtype = GT_DTYPE_F32};
        n->task.task = (gt__step_task){.kind = GT__STEP_WINDOW_END,
                                       .scaler = expect(&s, sizeof(gt__scaler_cells), BOTH),
                                       .window = expect(&s, sizeof(gt__window_cells), BOTH),
                                       .control = expect(&s, sizeof(gt__step_control), BOTH),
                                       .seed = expect(&s, 4, WRITE),
                                       .items_cell = expect(&s, 8, READ),
                                       .items_dtype = GT_DTYPE_F64,
                                       .rate_cell = expect(&s, 8, READ),
                                       .random_cells = expect(&s, 16, BOTH),
                                       .settle = expect(&s, 24, BOTH),
                                       .settle_count = 3};
        sees_all_once(n, &s);
    }
}

static void see_custom(gt__program *p) {
    seen_list s = {0};
    gt__instruction *n = gt__program_add(p, GT__DO_CUSTOM_BACKWARD, sizeof(gt__custom_gradient));
    gt__custom_gradient *g = n->custom = n->memory;
    const int64_t ten = 10;
    g->n_in = g->n_out = 1;
    CHECK_OK(gt__meta_make(&g->in_meta[0], GT_DTYPE_F32, 1, &ten, "test"));
    CHECK_OK(gt__meta_make(&g->out_meta[0], GT_DTYPE_F64, 1, &ten, "test"));
    g->in[0] = expect(&s, 40, READ);
    g->in_grad[0] = expect(&s, 40, WRITE);
    g->out[0] = expect(&s, 80, READ);
    g->out_grad[0] = expect(&s, 80, READ);
    sees_all_once(n, &s);
    n->custom = NULL; /* it has no op to release */
}

/* Memory on the host is not the program's. */
static void see_transfers(gt__program *p) {
    for (gt__instruction_kind kind = GT__DO_LEAVE; kind <= GT__DO_AWAIT; ++kind) {
        for (int back = kind == GT__DO_FETCH; back <= (kind != GT__DO_LEAVE); ++back) {
            seen_list s = {0};
            char host[24];
            gt__instruction *n = gt__program_add(p, kind, 0);
            n->transfer.bytes = 24;
            n->transfer.back = back != 0;
            n->transfer.host = host;
            n->transfer.data = expect(&s, 24, kind == GT__DO_FETCH ? WRITE : back ? BOTH : READ);
            sees_all_once(n, &s);
            n->transfer.host = NULL;
        }
    }
}

static void see_chain(gt__program *p) {
    seen_list s = {0};
    gt__instruction *n = gt__program_add(p, GT__DO_CHAIN, sizeof(gt__chain));
    gt__chain *c = n->chain = n->memory;
    c->n = 12;
    c->n_inputs = c->n_nodes = 2;
    c->n_outputs = 3;
    c->inputs[0] = (gt__chain_input){.data = expect(&s, 48, READ), .inner = 1, .size = 12, .dtype = GT_DTYPE_F32};
    c->inputs[1] = (gt__chain_input){.data = expect(&s, 8, READ), .inner = 3, .size = 4, .dtype = GT_DTYPE_F16};
    c->nodes[0] = (gt__chain_node){.op = GT__OP_DROPOUT, .dtype = GT_DTYPE_F32, .a = ~0, .cells = expect(&s, 16, READ)};
    c->nodes[1] = (gt__chain_node){.op = GT__OP_CAST, .dtype = GT_DTYPE_F64, .a = 0};
    c->outputs[0] = (gt__chain_output){.data = expect(&s, 48, WRITE), .node = 0};
    c->outputs[1] = (gt__chain_output){.data = NULL, .node = 0};
    c->outputs[2] = (gt__chain_output){.data = expect(&s, 96, WRITE), .node = 1};
    c->sum = (gt__chain_sum){.data = expect(&s, 16, WRITE), .kept = 4, .reduced = 3, .dtype = GT_DTYPE_F32, .node = 0};
    sees_all_once(n, &s);
}

TEST(unit, instruction_visit_shows_every_pointer_once) {
    gt_context *ctx = test_context(t);
    gt__program p = {0};
    see_call(&p, ctx);
    see_chain(&p);
    see_moves(&p);
    see_update(&p);
    see_grads(&p);
    see_tasks(&p);
    see_custom(&p);
    see_transfers(&p);
    bool kinds[GT__DO_COUNT] = {false};
    for (int32_t i = 0; i < p.count; ++i) kinds[p.list[i].kind] = true;
    for (int k = 0; k < GT__DO_COUNT; ++k)
        if (!kinds[k]) FAIL("kind %d of instructions is not looked at here", k);
    gt__program_free(&p);
}

TEST(unit, program_lives_go_from_first_to_last_use) {
    gt_context *ctx = test_context(t);
    gt__program p = {0};
    operand x = buffer(&p, N), a = buffer(&p, N), b = buffer(&p, N), none = buffer(&p, N), kept = buffer(&p, N);
    float out[N];
    operand y = outside(out, N);
    p.buffers[number(&p, &x)].input = p.buffers[number(&p, &none)].input = true;
    unary(&p, ctx, GT__OP_RELU, &kept, &kept);
    unary(&p, ctx, GT__OP_RELU, &a, &x);
    unary(&p, ctx, GT__OP_RELU, &b, &a);
    operand half = part(&a, N / 2, N / 2), other = part(&y, 0, N / 2);
    unary(&p, ctx, GT__OP_RELU, &other, &half);
    unary(&p, ctx, GT__OP_RELU, &y, &kept);
    gt__program_lives(&p);
    static const int32_t want[][2] = {{0, 1}, {1, 3}, {2, 2}, {-1, -1}, {0, 4}};
    for (int i = 0; i < 5; ++i) {
        CHECK_EQ_INT(p.buffers[i].first, want[i][0]);
        CHECK_EQ_INT(p.buffers[i].last, want[i][1]);
    }
    CHECK_EQ_INT(gt__program_buffer(&p, half.data), number(&p, &a));
    CHECK_EQ_INT(gt__program_buffer(&p, out), -1);
    gt__program_free(&p);
}

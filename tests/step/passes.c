/* Each pass alone, on programs made by hand. */
#include "hand_made.h"

#include <gtrain/gtrain.h>

enum { N = 1000 }; /* elements, unless said otherwise: 4096 bytes of an arena */

/* --- what instructions touch ------------------------------------------------------------------------------------------------------------- */

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

/* --- copies -------------------------------------------------------------------------------------------------------------------------------- */

/* A program with places of its own to write to. */
typedef struct made {
    gt_context *ctx;
    gt__program p;
    _Alignas(64) float in[N + 8]; /* as the library's memory */
    _Alignas(64) float out[N + 8];
    _Alignas(64) float other[N + 8];
    operand x, y, z; /* over these */
} made;

static void make(test_case *t, made *m) {
    *m = (made){.ctx = test_context(t)};
    m->x = outside(m->in, N);
    m->y = outside(m->out, N);
    m->z = outside(m->other, N);
    for (int i = 0; i < N; ++i) m->in[i] = (float)(i % 37) - 18;
}

#define UNARY(m, op, y, x)     unary(&(m)->p, (m)->ctx, GT__OP_##op, &(y), &(x))
#define BINARY(m, op, y, a, b) binary(&(m)->p, (m)->ctx, GT__OP_##op, &(y), &(a), &(b))

static void copies_leave(made *m, int32_t instructions) {
    CHECK_OK(gt__pass_copies(&m->p));
    CHECK_EQ_INT(m->p.count, instructions);
    gt__program_free(&m->p);
}

TEST(unit, copies_into_a_result_are_written_by_the_maker) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, NEG, m.z, a);
    UNARY(&m, COPY, m.y, a);
    CHECK_OK(gt__pass_copies(&m.p));
    CHECK_EQ_INT(m.p.count, 2);
    CHECK(call_at(&m.p, 0)->out[0]->data == m.out && call_at(&m.p, 1)->in[0]->data == m.out);
    run_by_hand(m.ctx, &m.p, NULL);
    for (int i = 0; i < N; ++i) CHECK(m.out[i] == (m.in[i] > 0 ? m.in[i] : 0) && m.other[i] == -m.out[i]);
    gt__program_free(&m.p);
}

TEST(unit, copies_are_read_from_their_source) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N), c = buffer(&m.p, N), d = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, COPY, b, a);
    device_copy(&m.p, &c, &b); /* and a chain of them */
    UNARY(&m, CAST, d, c);
    UNARY(&m, NEG, m.y, d);
    BINARY(&m, ADD, m.z, a, b);
    CHECK_OK(gt__pass_copies(&m.p));
    CHECK_EQ_INT(m.p.count, 3);
    CHECK(call_at(&m.p, 1)->in[0]->data == a.data && call_at(&m.p, 2)->in[1]->data == a.data);
    run_by_hand(m.ctx, &m.p, NULL);
    for (int i = 0; i < N; ++i) CHECK(m.out[i] == (m.in[i] > 0 ? -m.in[i] : -0.0f));
    gt__program_free(&m.p);
}

TEST(unit, copies_of_memory_outside_are_read_from_there) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N);
    UNARY(&m, COPY, a, m.x);
    UNARY(&m, NEG, m.y, a);
    copies_leave(&m, 1);
}

TEST(unit, copies_of_memory_outside_stay_if_it_is_written_before_they_are_read) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N);
    UNARY(&m, COPY, a, m.x);
    UNARY(&m, NEG, m.x, m.z);
    UNARY(&m, NEG, m.y, a);
    copies_leave(&m, 3);
}

TEST(unit, copies_stay_where_the_copy_is_changed_and_the_source_read) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, COPY, b, a);
    UNARY(&m, NEG, b, b);
    BINARY(&m, ADD, m.y, a, b);
    copies_leave(&m, 4);
}

TEST(unit, copies_go_where_the_copy_is_changed_and_the_source_forgotten) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, COPY, b, a);
    UNARY(&m, NEG, m.z, a);
    UNARY(&m, NEG, b, b);
    UNARY(&m, NEG, m.y, b);
    copies_leave(&m, 4);
}

TEST(unit, copies_stay_where_somebody_reads_what_the_result_was) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, NEG, m.z, m.y); /* between the source's making and the copy */
    UNARY(&m, COPY, m.y, a);
    copies_leave(&m, 3);
}

TEST(unit, copies_stay_where_the_maker_reads_what_the_result_was) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N);
    BINARY(&m, ADD, a, m.x, m.y);
    UNARY(&m, COPY, m.y, a);
    copies_leave(&m, 2);
}

TEST(unit, copies_stay_where_the_source_changes_after_a_result_was_taken) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, COPY, m.y, a);
    UNARY(&m, NEG, a, a);
    UNARY(&m, NEG, m.z, a);
    copies_leave(&m, 4);
}

TEST(unit, copies_of_inputs_to_results_stay) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N);
    m.p.buffers[0].input = true;
    UNARY(&m, COPY, m.y, a);
    copies_leave(&m, 1);
}

TEST(unit, copies_that_convert_or_lay_out_anew_stay) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N), c = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    const int64_t shape[2] = {10, N / 10};
    operand rows = operand_of(a.data, GT_DTYPE_F32, 2, shape), columns = operand_of(b.data, GT_DTYPE_F32, 2, shape);
    columns.meta.strides[0] = 1;
    columns.meta.strides[1] = 10;
    UNARY(&m, COPY, columns, rows);
    UNARY(&m, NEG, m.y, b);
    const int64_t n = N;
    operand half = operand_of(c.data, GT_DTYPE_F16, 1, &n);
    UNARY(&m, CAST, half, a);
    UNARY(&m, CAST, m.z, half);
    copies_leave(&m, 5);
}

TEST(unit, copies_of_a_part_to_the_start_of_a_buffer_go_where_the_part_is_aligned) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, 128), c = buffer(&m.p, 100);
    operand second = part(&a, 128, 128), odd = part(&a, 5, 100);
    operand y = part(&m.y, 0, 128), z = part(&m.y, 128, 100);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, COPY, b, second); /* 512 bytes in */
    UNARY(&m, COPY, c, odd);
    UNARY(&m, NEG, y, b);
    UNARY(&m, NEG, z, c);
    copies_leave(&m, 4);
}

TEST(unit, copies_into_parts_are_written_by_the_makers) {
    static made m;
    make(t, &m);
    operand whole = buffer(&m.p, 256), a = buffer(&m.p, 128), b = buffer(&m.p, 128);
    operand x = part(&m.x, 0, 128), first = part(&whole, 0, 128), second = part(&whole, 128, 128), y = part(&m.y, 0, 256);
    UNARY(&m, RELU, a, x);
    UNARY(&m, NEG, b, x);
    UNARY(&m, COPY, first, a);
    UNARY(&m, COPY, second, b);
    UNARY(&m, NEG, y, whole);
    CHECK_OK(gt__pass_copies(&m.p));
    CHECK_EQ_INT(m.p.count, 3);
    run_by_hand(m.ctx, &m.p, NULL);
    for (int i = 0; i < 128; ++i) CHECK(m.out[i] == (m.in[i] > 0 ? -m.in[i] : -0.0f) && m.out[128 + i] == m.in[i]);
    gt__program_free(&m.p);
}

/* --- dead code ------------------------------------------------------------------------------------------------------------------------------- */

TEST(unit, dead_chains_are_dropped) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N), c = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, NEG, b, a);
    UNARY(&m, NEG, c, b);
    UNARY(&m, ABS, m.y, a);
    gt__instruction *zero = gt__program_add(&m.p, GT__DO_ZERO, 0);
    zero->zero.data = b.data;
    zero->zero.bytes = N * sizeof(float);
    CHECK_OK(gt__pass_dead(&m.p));
    CHECK_EQ_INT(m.p.count, 2);
    CHECK(call_at(&m.p, 0)->op == GT__OP_RELU && call_at(&m.p, 1)->op == GT__OP_ABS);
    gt__program_free(&m.p);
}

TEST(unit, dead_are_values_that_are_overwritten_before_they_are_read) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, NEG, a, m.x);
    UNARY(&m, ABS, m.y, a);
    CHECK_OK(gt__pass_dead(&m.p));
    CHECK_EQ_INT(m.p.count, 2);
    CHECK(call_at(&m.p, 0)->op == GT__OP_NEG);
    gt__program_free(&m.p);
}

TEST(unit, dead_are_no_values_that_are_partly_overwritten_or_added_to) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N), first = part(&a, 0, N / 2), x = part(&m.x, 0, N / 2);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, NEG, first, x);
    UNARY(&m, ABS, m.y, a);
    UNARY(&m, RELU, b, m.x);
    BINARY(&m, ADD, b, b, m.x);
    UNARY(&m, ABS, m.z, b);
    CHECK_OK(gt__pass_dead(&m.p));
    CHECK_EQ_INT(m.p.count, 6);
    gt__program_free(&m.p);
}

TEST(unit, dead_is_nothing_that_changes_memory_outside) {
    static made m;
    make(t, &m);
    float mean[4] = {0}, var[4] = {1, 1, 1, 1};
    const int64_t shape[2] = {N / 4, 4};
    operand x = operand_of(m.in, GT_DTYPE_F32, 2, shape), running_mean = outside(mean, 4), running_var = outside(var, 4);
    operand a = buffer(&m.p, N), y = operand_of(a.data, GT_DTYPE_F32, 2, shape);
    const operand *in[] = {&x, NULL, NULL, &running_mean, &running_var}, *out = &y;
    add_call(&m.p, m.ctx, GT__OP_BATCH_NORM, &out, 1, in, 5)->attr.norm.training = 1;
    CHECK_OK(gt__pass_dead(&m.p));
    CHECK_EQ_INT(m.p.count, 1);
    gt__program_free(&m.p);
}

TEST(unit, dead_outputs_of_calls_are_not_asked_for) {
    static made m;
    make(t, &m);
    const int64_t shape[2] = {N / 10, 10};
    operand dz = buffer(&m.p, N), db = buffer(&m.p, 10), db2 = buffer(&m.p, 10), dz2 = buffer(&m.p, N);
    operand dy = operand_of(m.in, GT_DTYPE_F32, 2, shape), z = operand_of(dz.data, GT_DTYPE_F32, 2, shape),
            z2 = operand_of(dz2.data, GT_DTYPE_F32, 2, shape), y = part(&m.y, 0, 10);
    const operand *in[] = {&dy, &dy}, *out[] = {&z, &db}, *out2[] = {&z2, &db2};
    add_call(&m.p, m.ctx, GT__OP_BIAS_RELU_BACKWARD, out, 2, in, 2);
    add_call(&m.p, m.ctx, GT__OP_BIAS_RELU_BACKWARD, out2, 2, in, 2);
    UNARY(&m, NEG, m.z, dz);
    UNARY(&m, NEG, y, db2);
    CHECK_OK(gt__pass_dead(&m.p));
    CHECK_EQ_INT(m.p.count, 4);
    CHECK(call_at(&m.p, 0)->out[0] != NULL && call_at(&m.p, 0)->out[1] == NULL);
    CHECK(call_at(&m.p, 1)->out[0] == NULL && call_at(&m.p, 1)->out[1] != NULL);
    run_by_hand(m.ctx, &m.p, NULL);
    for (int i = 0; i < N; ++i) CHECK(m.other[i] == (m.in[i] > 0 ? -m.in[i] : -0.0f));
    gt__program_free(&m.p);
}

TEST(unit, dead_outputs_that_kernels_cannot_leave_out_stay) {
    static made m;
    make(t, &m);
    const int64_t from[4] = {1, 1, 20, 20}, to[4] = {1, 1, 10, 10};
    operand a = buffer(&m.p, 100), b = buffer(&m.p, 25);
    operand x = operand_of(m.in, GT_DTYPE_F32, 4, from), pooled = operand_of(a.data, GT_DTYPE_F32, 4, to),
            index = operand_of(b.data, GT_DTYPE_U8, 4, to), y = part(&m.y, 0, 25);
    const operand *in = &x, *out[] = {&pooled, &index};
    gt__call *call = add_call(&m.p, m.ctx, GT__OP_MAX_POOL2D, out, 2, &in, 1);
    for (int i = 0; i < 2; ++i) call->attr.pool.kernel[i] = call->attr.pool.stride[i] = 2;
    UNARY(&m, COPY, y, b);
    CHECK_OK(gt__pass_dead(&m.p));
    CHECK_EQ_INT(m.p.count, 2);
    CHECK(call_at(&m.p, 0)->out[0] != NULL && call_at(&m.p, 0)->out[1] != NULL);
    gt__program_free(&m.p);
}

/* --- in place --------------------------------------------------------------------------------------------------------------------------------- */

/* The arena in vectors of N. */
static size_t vectors(made *m) {
    size_t *offsets, bytes = arena_of(&m->p, &offsets);
    free(offsets);
    return bytes / 4096;
}

TEST(unit, inplace_chains_take_one_place) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N), c = buffer(&m.p, N);
    UNARY(&m, COPY, a, m.x);
    UNARY(&m, RELU, b, a);
    BINARY(&m, MUL, c, b, b);
    BINARY(&m, SUB, m.y, m.x, c);
    CHECK_EQ_INT(vectors(&m), 2);
    CHECK_OK(gt__pass_inplace(&m.p));
    CHECK_EQ_INT(m.p.count, 4);
    CHECK(call_at(&m.p, 1)->out[0]->data == a.data && call_at(&m.p, 2)->out[0]->data == a.data && call_at(&m.p, 3)->in[1]->data == a.data);
    CHECK_EQ_INT(vectors(&m), 1);
    run_by_hand(m.ctx, &m.p, NULL);
    for (int i = 0; i < N; ++i) CHECK(m.out[i] == m.in[i] - (m.in[i] > 0 ? m.in[i] * m.in[i] : 0));
    gt__program_free(&m.p);
}

/* No buffer is another's afterwards. */
static void nothing_in_place(made *m) {
    gt__program_lives(&m->p);
    for (int32_t b = 0; b < m->p.n_buffers; ++b) CHECK(m->p.buffers[b].first >= 0);
    CHECK_OK(gt__pass_inplace(&m->p));
    gt__program_lives(&m->p);
    for (int32_t b = 0; b < m->p.n_buffers; ++b) CHECK(m->p.buffers[b].first >= 0);
    gt__program_free(&m->p);
}

TEST(unit, inplace_leaves_what_is_read_again) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N);
    UNARY(&m, COPY, a, m.x);
    UNARY(&m, RELU, b, a);
    BINARY(&m, ADD, m.y, a, b);
    nothing_in_place(&m);
}

TEST(unit, inplace_leaves_memory_outside) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, NEG, m.y, a);
    nothing_in_place(&m);
}

TEST(unit, inplace_leaves_what_is_read_otherwise_too) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N), one = part(&a, 0, 1);
    UNARY(&m, COPY, a, m.x);
    BINARY(&m, MUL, b, a, one); /* the first element is wanted by all */
    UNARY(&m, NEG, m.y, b);
    nothing_in_place(&m);
}

TEST(unit, inplace_leaves_other_dtypes_layouts_and_ops) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N), c = buffer(&m.p, N), d = buffer(&m.p, N), one = buffer(&m.p, 1),
            first = part(&m.y, 0, 1);
    const int64_t n = N, shape[2] = {10, N / 10};
    operand integers = operand_of(b.data, GT_DTYPE_I32, 1, &n);
    UNARY(&m, COPY, a, m.x);
    UNARY(&m, CAST, integers, a);
    UNARY(&m, CAST, c, integers);
    operand rows = operand_of(c.data, GT_DTYPE_F32, 2, shape), columns = operand_of(d.data, GT_DTYPE_F32, 2, shape);
    columns.meta.strides[0] = 1;
    columns.meta.strides[1] = 10;
    UNARY(&m, NEG, columns, rows);
    sum_of(&m.p, m.ctx, &one, &d);
    sum_of(&m.p, m.ctx, &first, &one);
    operand h = buffer(&m.p, N), s = buffer(&m.p, N), l = buffer(&m.p, N);
    operand half = operand_of(h.data, GT_DTYPE_F16, 2, shape), converted = operand_of(s.data, GT_DTYPE_F32, 2, shape),
            normal = operand_of(l.data, GT_DTYPE_F32, 2, shape);
    UNARY(&m, CAST, half, m.x);
    UNARY(&m, SOFTMAX, converted, half);
    UNARY(&m, LAYER_NORM, normal, converted);
    UNARY(&m, NEG, m.z, l);
    nothing_in_place(&m);
}

TEST(unit, inplace_takes_dy_for_dz_and_leaves_the_sums_apart) {
    static made m;
    make(t, &m);
    const int64_t shape[2] = {N / 10, 10};
    operand dy = buffer(&m.p, N), dz = buffer(&m.p, N), db = buffer(&m.p, 10), y = part(&m.z, 0, 10);
    operand from = operand_of(dy.data, GT_DTYPE_F32, 2, shape), to = operand_of(dz.data, GT_DTYPE_F32, 2, shape),
            x = operand_of(m.in, GT_DTYPE_F32, 2, shape);
    const operand *in[] = {&from, &x}, *out[] = {&to, &db};
    UNARY(&m, COPY, dy, m.x);
    add_call(&m.p, m.ctx, GT__OP_BIAS_RELU_BACKWARD, out, 2, in, 2);
    UNARY(&m, NEG, m.y, dz);
    UNARY(&m, NEG, y, db);
    CHECK_OK(gt__pass_inplace(&m.p));
    CHECK(call_at(&m.p, 1)->out[0]->data == dy.data && call_at(&m.p, 1)->out[1]->data == db.data);
    run_by_hand(m.ctx, &m.p, NULL);
    double sums[10] = {0};
    for (int i = 0; i < N; ++i) {
        float z = m.in[i] > 0 ? m.in[i] : 0;
        CHECK(m.out[i] == -z);
        sums[i % 10] += (double)z;
    }
    for (int c = 0; c < 10; ++c) CHECK_NEAR(-m.other[c], sums[c], 1e-6);
    gt__program_free(&m.p);
}

TEST(unit, inplace_takes_the_logits_for_their_gradient) {
    static made m;
    make(t, &m);
    const int64_t shape[2] = {N / 10, 10}, rows = N / 10, scalar[1] = {1};
    int64_t labels[N / 10];
    float one = 1, want[N];
    for (int i = 0; i < N / 10; ++i) labels[i] = i % 10;
    operand l = buffer(&m.p, N), g = buffer(&m.p, N), lse = buffer(&m.p, N / 10), sums = buffer(&m.p, 2), loss = part(&m.z, 0, 1);
    operand logits = operand_of(l.data, GT_DTYPE_F32, 2, shape), gradient = operand_of(g.data, GT_DTYPE_F32, 2, shape),
            seed = operand_of(&one, GT_DTYPE_F32, 0, scalar), targets = operand_of(labels, GT_DTYPE_I64, 1, &rows);
    const operand *in[] = {&seed, &logits, &targets, NULL}, *out[] = {&loss, &lse, &sums, &gradient};
    UNARY(&m, COPY, l, m.x);
    gt__call *both = add_call(&m.p, m.ctx, GT__OP_CROSS_ENTROPY_BOTH, out, 4, in, 4);
    both->attr.loss.ignore_label = -100;
    both->attr.loss.reduction = GT_REDUCTION_MEAN;
    UNARY(&m, NEG, m.y, g);
    run_by_hand(m.ctx, &m.p, NULL);
    memcpy(want, m.out, sizeof want);
    float loss_then = m.other[0];
    CHECK(want[0] > 0 && loss_then > 0);
    CHECK_OK(gt__pass_inplace(&m.p));
    CHECK(call_at(&m.p, 1)->out[3]->data == l.data && call_at(&m.p, 2)->in[0]->data == l.data);
    run_by_hand(m.ctx, &m.p, NULL);
    CHECK(memcmp(want, m.out, sizeof want) == 0 && m.other[0] == loss_then);
    gt__program_free(&m.p);
}

/* --- order ------------------------------------------------------------------------------------------------------------------------------------ */

TEST(unit, order_frees_large_buffers_early) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N), c = buffer(&m.p, N), sa = buffer(&m.p, 1), sb = buffer(&m.p, 1), sc = buffer(&m.p, 1),
            first = part(&m.y, 0, 1);
    UNARY(&m, RELU, a, m.x);      /* 0 */
    UNARY(&m, NEG, b, m.x);       /* 1 */
    UNARY(&m, ABS, c, m.x);       /* 2 */
    sum_of(&m.p, m.ctx, &sa, &a); /* 3: could have come before 1 */
    sum_of(&m.p, m.ctx, &sb, &b);
    sum_of(&m.p, m.ctx, &sc, &c);
    BINARY(&m, ADD, sa, sa, sb);
    BINARY(&m, ADD, first, sa, sc);
    CHECK_EQ_INT(vectors(&m), 3);
    CHECK_OK(gt__pass_order(&m.p));
    CHECK_EQ_INT(vectors(&m), 1);
    CHECK_EQ_INT(m.p.count, 8);
    static const gt__op_id want[] = {GT__OP_RELU, GT__OP_SUM, GT__OP_NEG, GT__OP_SUM};
    for (int i = 0; i < 4; ++i) CHECK_EQ_INT(call_at(&m.p, i)->op, want[i]);
    run_by_hand(m.ctx, &m.p, NULL);
    double sum = 0;
    for (int i = 0; i < N; ++i)
        sum += (m.in[i] > 0 ? (double)m.in[i] : 0) - (double)m.in[i] + (m.in[i] > 0 ? (double)m.in[i] : -(double)m.in[i]);
    CHECK_NEAR(m.out[0], sum, 1e-5);
    gt__program_free(&m.p);
}

TEST(unit, order_stays_where_none_is_better) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, ABS, m.z, m.x); /* may stand anywhere */
    UNARY(&m, NEG, b, a);
    UNARY(&m, NEG, m.y, b);
    CHECK_OK(gt__pass_order(&m.p));
    static const gt__op_id want[] = {GT__OP_RELU, GT__OP_ABS, GT__OP_NEG, GT__OP_NEG};
    for (int i = 0; i < 4; ++i) CHECK_EQ_INT(call_at(&m.p, i)->op, want[i]);
    gt__program_free(&m.p);
}

TEST(unit, order_keeps_what_depends_on_memory_outside) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, N), b = buffer(&m.p, N), sa = buffer(&m.p, 1), sb = buffer(&m.p, 1), first = part(&m.y, 0, 1);
    UNARY(&m, RELU, a, m.x);
    UNARY(&m, NEG, b, m.x);
    UNARY(&m, ABS, m.x, m.z); /* x is another from here on: what reads it may not cross this */
    sum_of(&m.p, m.ctx, &sa, &a);
    sum_of(&m.p, m.ctx, &sb, &b);
    BINARY(&m, ADD, first, sa, sb);
    CHECK_OK(gt__pass_order(&m.p));
    int32_t neg = -1, abs = -1, relu = -1;
    for (int32_t i = 0; i < m.p.count; ++i) {
        neg = call_at(&m.p, i)->op == GT__OP_NEG ? i : neg;
        abs = call_at(&m.p, i)->op == GT__OP_ABS ? i : abs;
        relu = call_at(&m.p, i)->op == GT__OP_RELU ? i : relu;
    }
    CHECK_EQ_INT(vectors(&m), 1);
    CHECK(neg >= 0 && relu >= 0 && abs > neg && abs > relu);
    gt__program_free(&m.p);
}

TEST(unit, order_stays_where_little_is_gained) {
    static made m;
    make(t, &m);
    operand large = buffer(&m.p, 1000 * 128), a = buffer(&m.p, 1), b = buffer(&m.p, 1), c = buffer(&m.p, 1), x = part(&m.x, 0, 1),
            y = part(&m.y, 0, 1);
    UNARY(&m, NEG, a, x);
    UNARY(&m, ABS, b, x);
    gt__instruction *zero = gt__program_add(&m.p, GT__DO_ZERO, 0);
    zero->zero.data = large.data;
    zero->zero.bytes = 1000 * 512;
    sum_of(&m.p, m.ctx, &c, &large);
    BINARY(&m, ADD, c, c, a); /* a and b could be made behind the peak */
    BINARY(&m, ADD, y, c, b);
    CHECK_OK(gt__pass_order(&m.p));
    CHECK(call_at(&m.p, 0)->op == GT__OP_NEG && call_at(&m.p, 1)->op == GT__OP_ABS);
    m.p.buffers[number(&m.p, &large)].bytes = zero->zero.bytes = 10 * 512;
    m.p.list[2].zero.bytes = 10 * 512;
    m.p.list[3].call->tensors[0].meta = part(&large, 0, 10 * 128).meta;
    CHECK_OK(gt__pass_order(&m.p));
    CHECK(m.p.list[0].kind == GT__DO_ZERO); /* where it is a tenth they are */
    gt__program_free(&m.p);
}

TEST(unit, order_puts_nothing_behind_an_update_that_stood_before_it) {
    for (int update = 0; update < 2; ++update) {
        static made m;
        make(t, &m);
        operand a = buffer(&m.p, N), large = buffer(&m.p, N);
        int32_t step[2] = {0};
        UNARY(&m, RELU, large, m.x); /* not wanted before z is new, and better made then */
        UNARY(&m, NEG, a, m.x);
        if (update) {
            gt__instruction *n = gt__program_add(&m.p, GT__DO_UPDATE, sizeof(gt__update));
            n->update.list = n->memory;
            n->update.count = 1;
            n->update.list[0] = (gt__update){
                .param = m.other, .grad = a.data, .count = N, .param_dtype = GT_DTYPE_F32, .grad_dtype = GT_DTYPE_F32, .step = step};
        } else {
            UNARY(&m, ABS, m.z, a);
        }
        BINARY(&m, MUL, m.y, large, m.z);
        CHECK_OK(gt__pass_order(&m.p));
        CHECK_EQ_INT(vectors(&m), update ? 2 : 1);
        CHECK_EQ_INT(m.p.list[update ? 2 : 1].kind == (update ? GT__DO_UPDATE : GT__DO_CALL), 1);
        gt__program_free(&m.p);
    }
}

TEST(unit, passes_keep_the_inputs_first) {
    static made m;
    make(t, &m);
    operand converted = buffer(&m.p, N), b = buffer(&m.p, N), s = buffer(&m.p, 1), first = part(&m.y, 0, 1);
    gt__instruction *n = gt__program_add(&m.p, GT__DO_MOVES, sizeof(gt__move));
    n->moves.list = n->memory;
    n->moves.count = 1;
    n->moves.list[0] = (gt__move){converted.data, NULL, N, GT_DTYPE_F32, GT_DTYPE_F32};
    UNARY(&m, NEG, b, m.x); /* before the inputs came there would be more room for this */
    sum_of(&m.p, m.ctx, &s, &b);
    BINARY(&m, MUL, m.z, converted, s);
    UNARY(&m, NEG, first, s);
    CHECK_OK(gt__pass_copies(&m.p));
    CHECK_OK(gt__pass_dead(&m.p));
    CHECK_OK(gt__pass_order(&m.p));
    CHECK_OK(gt__pass_inplace(&m.p));
    CHECK(m.p.count == 5 && m.p.list[0].kind == GT__DO_MOVES);
    gt__program_free(&m.p);
    n = gt__program_add(&m.p, GT__DO_MOVES, sizeof(gt__move)); /* also if nobody wants them */
    n->moves.list = n->memory;
    n->moves.count = 1;
    operand none = buffer(&m.p, N);
    n->moves.list[0] = (gt__move){none.data, NULL, N, GT_DTYPE_F32, GT_DTYPE_F32};
    UNARY(&m, NEG, m.y, m.x);
    CHECK_OK(gt__pass_dead(&m.p));
    CHECK_EQ_INT(m.p.count, 2);
    gt__program_free(&m.p);
}

/* --- random programs ---------------------------------------------------------------------------------------------------------------------------- */

enum { BUFFERS = 12, OUTSIDE = 5, LENGTH = 256 };

static uint64_t state;
static int32_t below(int32_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int32_t)((state >> 20) % (uint64_t)n);
}

typedef struct world {
    operand places[BUFFERS + OUTSIDE];
    _Alignas(64) float memory[OUTSIDE][LENGTH];
    bool written[BUFFERS];
} world;

/* Somewhere in a buffer or outside: the whole, or an aligned half of it. */
static operand pick(const world *w, bool to_read, bool half, int32_t *which) {
    do *which = below(BUFFERS + OUTSIDE);
    while (to_read && *which < BUFFERS && !w->written[*which]);
    return half ? part(&w->places[*which], below(2) * LENGTH / 2, LENGTH / 2) : w->places[*which];
}

/* Whatever it does, it does the same each time: no memory is read that was not written. */
static void make_random(gt__program *p, gt_context *ctx, world *w, int instructions) {
    static const gt__op_id one[] = {GT__OP_COPY, GT__OP_COPY, GT__OP_COPY, GT__OP_NEG, GT__OP_RELU, GT__OP_ABS, GT__OP_TANH};
    static const gt__op_id two[] = {GT__OP_ADD, GT__OP_SUB, GT__OP_MUL, GT__OP_MAXIMUM, GT__OP_RELU_BACKWARD};
    memset(w->written, 0, sizeof w->written);
    for (int b = 0; b < BUFFERS; ++b) {
        w->places[b] = buffer(p, LENGTH);
        p->buffers[b].input = w->written[b] = b < 2;
    }
    for (int o = 0; o < OUTSIDE; ++o) w->places[BUFFERS + o] = outside(w->memory[o], LENGTH);
    for (int i = 0; i < instructions; ++i) {
        bool half = below(4) == 0, binary_op = below(2) == 0;
        int32_t a, b, y;
        operand from = pick(w, true, half, &a), other = pick(w, true, half, &b), to = pick(w, false, half, &y);
        bool exact = from.data == to.data || a != y, exact_other = other.data == to.data || b != y;
        if (!exact || (binary_op && !exact_other)) continue; /* kernels may not overlap themselves */
        if (y < BUFFERS && half && !w->written[y]) continue;
        if (!binary_op && (a == y)) continue;
        if (binary_op)
            binary(p, ctx, two[below(GT__COUNT(two))], &to, &from, &other);
        else if (below(4) == 0)
            device_copy(p, &to, &from);
        else
            unary(p, ctx, one[below(GT__COUNT(one))], &to, &from);
        if (y < BUFFERS) w->written[y] = true;
    }
}

static void fill_world(world *w) {
    for (int o = 0; o < OUTSIDE; ++o)
        for (int i = 0; i < LENGTH; ++i) w->memory[o][i] = (float)((i * (o + 3)) % 17 - 8) / 4;
}

typedef gt_status (*pass_function)(gt__program *program);

TEST(unit, passes_leave_random_programs_results_as_they_are) {
    static const pass_function passes[][6] = {
        {gt__pass_copies},
        {gt__pass_dead},
        {gt__pass_order},
        {gt__pass_inplace},
        {gt__pass_copies, gt__pass_dead, gt__pass_inplace, gt__pass_order, gt__pass_inplace},
        {gt__pass_inplace, gt__pass_order, gt__pass_dead, gt__pass_copies, gt__pass_order, gt__pass_inplace},
    };
    static world plain, passed;
    gt_context *ctx = test_context(t);
    float input[LENGTH];
    int64_t gone = 0, smaller = 0;
    for (int i = 0; i < LENGTH; ++i) input[i] = (float)(i % 23 - 11) / 8;
    for (uint64_t seed = 1; seed <= 600; ++seed) {
        gt__program p = {0}, q = {0};
        int length = 4 + (int)(seed % 40);
        size_t *offsets;
        state = seed * UINT64_C(0x9E3779B97F4A7C15);
        make_random(&p, ctx, &plain, length);
        fill_world(&plain);
        run_by_hand(ctx, &p, input);
        state = seed * UINT64_C(0x9E3779B97F4A7C15);
        make_random(&q, ctx, &passed, length);
        const pass_function *list = passes[seed % GT__COUNT(passes)];
        for (int k = 0; k < 6 && list[k]; ++k) CHECK_OK(list[k](&q));
        fill_world(&passed);
        run_by_hand(ctx, &q, input);
        for (int o = 0; o < OUTSIDE; ++o)
            if (memcmp(plain.memory[o], passed.memory[o], sizeof plain.memory[o]) != 0)
                FAIL("seed %d, passes %d: memory %d differs", (int)seed, (int)(seed % GT__COUNT(passes)), o);
        gone += p.count - q.count;
        smaller += (int64_t)arena_of(&p, &offsets);
        free(offsets);
        smaller -= (int64_t)arena_of(&q, &offsets);
        free(offsets);
        gt__program_free(&p);
        gt__program_free(&q);
    }
    CHECK(gone > 600 && smaller > 600 * 512); /* they did something */
}

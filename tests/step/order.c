/* The pass that orders instructions. */
#include "made.h"

#include <gtrain/gtrain.h>

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

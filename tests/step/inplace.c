/* The pass that has elementwise calls write over their input. */
#include "made.h"

#include <gtrain/gtrain.h>

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

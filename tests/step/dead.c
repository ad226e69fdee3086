/* The pass that drops what nobody reads. */
#include "made.h"

#include <gtrain/gtrain.h>

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

/* The pass that drops copies. */
#include "made.h"

#include <gtrain/gtrain.h>

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

/* What may run on a branch of a graph, and how early. */
#include "step/branches.h"
#include "step/hand_made.h"

enum { N = 8 };

static void add_norm(gt__program *p, const operand *const *gradients, int32_t count) {
    gt__instruction *i = gt__program_add(p, GT__DO_GRAD_NORM, (size_t)count * sizeof *i->grads.list);
    i->grads.list = i->memory;
    i->grads.count = count;
    for (int32_t k = 0; k < count; ++k)
        i->grads.list[k] = (gt__grad_list_item){.grad = gradients[k]->data, .count = N, .index = k, .dtype = GT_DTYPE_F32};
}

TEST(unit, branches_begin_as_early_as_they_may) {
    gt_context *ctx = test_context(t);
    gt__program p = {0};
    static float x[N];
    operand in = outside(x, N), a = buffer(&p, N), b = buffer(&p, N), c = buffer(&p, N), d = buffer(&p, N), of_a = buffer(&p, N),
            of_b = buffer(&p, N), of_c = buffer(&p, N);
    unary(&p, ctx, GT__OP_NEG, &a, &in);        /* 0 */
    unary(&p, ctx, GT__OP_NEG, &b, &a);         /* 1 */
    unary(&p, ctx, GT__OP_NEG, &c, &b);         /* 2 */
    unary(&p, ctx, GT__OP_NEG, &d, &c);         /* 3 */
    unary(&p, ctx, GT__OP_SQUARE, &of_a, &a);   /* 4 */
    unary(&p, ctx, GT__OP_NEG, &c, &c);         /* 5: in place, after 3 has read it */
    unary(&p, ctx, GT__OP_SQUARE, &of_b, &b);   /* 6 */
    binary(&p, ctx, GT__OP_ADD, &of_c, &c, &d); /* 7 */
    const operand *gradients[] = {&of_a, &of_b, &of_c};
    add_norm(&p, gradients, 3); /* 8 */
    for (int i = 0; i < 8; ++i) p.list[i].phase = GT__PHASE_BACKWARD;
    int32_t order[9], join;
    uint8_t aside[9];
    CHECK_OK(gt__find_branches(&p, aside, &join));
    CHECK_EQ_INT(join, 8);
    const uint8_t at_first[9] = {0, 0, 0, 0, 1, 0, 1, 0, 0}; /* 7 ends the chain */
    CHECK(memcmp(aside, at_first, sizeof aside) == 0);
    CHECK_OK(gt__branch_order(&p, order));
    const int32_t want[9] = {0, 4, 1, 6, 2, 3, 5, 7, 8};
    for (int i = 0; i < 9; ++i) CHECK_EQ_INT(order[i], want[i]);
    CHECK_OK(gt__program_reorder(&p, order));
    CHECK_OK(gt__find_branches(&p, aside, &join));
    const uint8_t then[9] = {0, 1, 0, 1, 0, 0, 0, 0, 0};
    CHECK(memcmp(aside, then, sizeof aside) == 0);
    /* In forward nothing is moved, nor without a join. */
    for (int i = 0; i < 8; ++i) p.list[i].phase = GT__PHASE_FORWARD;
    CHECK_OK(gt__branch_order(&p, order));
    for (int i = 0; i < 9; ++i) CHECK_EQ_INT(order[i], i);
    gt__program_free(&p);
}

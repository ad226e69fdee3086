/* Passes, alone and one after the other, on random programs: results stay as they are. */
#include "hand_made.h"

#include <gtrain/gtrain.h>

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

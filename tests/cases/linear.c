#include "cases/cases.h"

/* clang-format off */

static gt_tensor *run_matmul(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; (void)arg; return gt_matmul(in[0], in[1]); }
static gt_tensor *run_linear(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; (void)arg; return gt_linear(in[0], in[1], in[2]); }
static gt_tensor *run_linear_relu(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    (void)arg;
    return gt_linear_activation(in[0], in[1], in[2], GT_ACTIVATION_RELU);
}

#define C(name, ...) {.op = #name, .fn = run_##name, __VA_ARGS__}
#define G .values = GRID
#define B .values = GRID_ODD
#define MM(a, b, ...) C(matmul, .in = {IN(a, G), IN(b, G)}, __VA_ARGS__)
#define L(d, l) d, .layout = l
#define LIN(x, o, i, ...) C(linear, .in = {IN(x, G), IN(D2(o, i), G), IN(D1(o), B)}, __VA_ARGS__)
#define LINR(x, o, i, ...) C(linear_relu, .in = {IN(x, G), IN(D2(o, i), G), IN(D1(o), B)}, __VA_ARGS__)
#define BIG .large = 1

const op_case linear_cases[] = {
    MM(D2(3, 4), D2(4, 5)), MM(D2(1, 1), D2(1, 1)), MM(L(D2(3, 4), TRANSPOSED), D2(4, 5)), MM(D2(3, 4), L(D2(4, 5), TRANSPOSED)),
    MM(L(D2(3, 4), TRANSPOSED), L(D2(4, 5), TRANSPOSED)), MM(L(D2(3, 4), SLICED), L(D2(4, 5), SLICED)),
    MM(L(D2(3, 4), EXPANDED), D2(4, 5)),
    MM(L(D2(3, 5), OFFSET), L(D2(5, 7), OFFSET)),
    MM(D3(2, 3, 4), D3(2, 4, 5)), MM(D3(2, 3, 4), D2(4, 5)), MM(D2(3, 4), D3(2, 4, 5)), MM(L(D3(2, 3, 4), TRANSPOSED), D2(4, 5)),
    MM(L(D3(2, 3, 4), TRANSPOSED), L(D3(2, 4, 5), TRANSPOSED)), MM(D3(1, 3, 4), D3(3, 4, 2)), MM(D4(2, 1, 3, 4), D3(3, 4, 2)),
    MM(L(D3(2, 3, 4), EXPANDED), D3(2, 4, 2)),
    MM(D2(0, 4), D2(4, 5)), MM(D2(3, 0), D2(0, 5)), MM(D3(0, 3, 4), D3(0, 4, 5)), MM(D2(3, 4), D2(4, 0)), MM(D3(2, 0, 4), D2(4, 3)),
    MM(D3(0, 3, 4), D2(4, 3)),
    MM(D2(5, 1), D2(1, 7)), MM(D2(1, 9), D2(9, 1)),
    MM(D2(65, 129), D2(129, 33), BIG), MM(D2(64, 128), D2(128, 256), BIG),
    MM(L(D2(130, 70), TRANSPOSED), L(D2(70, 129), TRANSPOSED), BIG),
    MM(D2(1, 300), D2(300, 257), BIG), MM(D2(257, 300), D2(300, 1), BIG), MM(D3(9, 33, 65), D3(9, 65, 31), BIG),
    MM(D4(3, 5, 17, 40), D4(3, 5, 40, 24), BIG),
    MM(L(D3(9, 33, 65), TRANSPOSED), D3(9, 65, 31), BIG), MM(L(D2(65, 127), OFFSET), L(D2(127, 63), OFFSET), BIG),
    MM(L(D2(65, 127), SLICED), D2(127, 63), BIG),
    MM(D3(66000, 2, 3), D3(66000, 3, 2), BIG), MM(D3(7, 64, 48), D2(48, 80), BIG), MM(D2(256, 512), D2(512, 384), BIG),
    MM(D3(5, 1, 64), D3(5, 64, 1), BIG),

    LIN(D2(3, 4), 5, 4), LIN(D2(1, 1), 1, 1), LIN(L(D2(3, 4), TRANSPOSED), 5, 4), LIN(L(D2(3, 4), SLICED), 2, 4), LIN(D1(4), 3, 4),
    LIN(D3(2, 3, 4), 5, 4),
    LIN(D4(2, 3, 2, 4), 3, 4), LIN(L(D3(2, 3, 4), TRANSPOSED), 5, 4), LIN(D2(0, 4), 3, 4), LIN(D3(2, 0, 4), 3, 4), LIN(D2(3, 4), 0, 4),
    LIN(D2(3, 0), 2, 0),
    C(linear, .in = {IN(D2(3, 4), G), IN(D2(5, 4), G)}),
    C(linear, .in = {IN(D2(3, 4), G), IN(D2(5, 4), G, .layout = TRANSPOSED), IN(D1(5), B, .layout = SLICED)}),
    C(linear, .in = {IN(D2(3, 4), G, .constant = 1), IN(D2(5, 4), G), IN(D1(5), B)}),
    C(linear, .in = {IN(D2(3, 4), G), IN(D2(5, 4), G, .constant = 1), IN(D1(5), B)}),
    C(linear, .in = {IN(D2(3, 4), G), IN(D2(5, 4), G), IN(D1(5), B, .constant = 1)}),
    C(linear, .in = {IN(D2(3, 4), G, .constant = 1), IN(D2(5, 4), G, .constant = 1), IN(D1(5), B)}),
    LIN(D2(64, 784), 512, 784, BIG), LIN(D2(65, 129), 33, 129, BIG), LIN(D2(64, 512), 10, 512, BIG), LIN(D3(3, 17, 70), 31, 70, BIG),
    LIN(L(D2(65, 129), OFFSET), 64, 129, BIG),
    LIN(D2(1, 128), 64, 128, BIG), C(linear, .in = {IN(D2(64, 128), G), IN(D2(64, 128), G)}, BIG),

    LINR(D2(3, 4), 5, 4), LINR(D2(1, 1), 1, 1), LINR(D3(2, 3, 4), 5, 4), LINR(L(D2(3, 4), SLICED), 2, 4), LINR(D2(0, 4), 3, 4),
    LINR(D2(3, 4), 0, 4), LINR(D1(4), 3, 4),
    LINR(D2(3, 0), 2, 0),
    C(linear_relu, .in = {IN(D2(3, 4)), IN(D2(5, 4))}, .loose = 2),
    C(linear_relu, .in = {IN(D2(3, 4), G, .constant = 1), IN(D2(5, 4), G), IN(D1(5), B)}),
    C(linear_relu, .in = {IN(D2(3, 4), G), IN(D2(5, 4), G, .constant = 1), IN(D1(5), B, .constant = 1)}),
    C(linear_relu, .in = {IN(D2(3, 4), G, .constant = 1), IN(D2(5, 4), G, .constant = 1), IN(D1(5), B)}),
    LINR(D2(64, 784), 512, 784, BIG), LINR(D2(65, 129), 33, 129, BIG), LINR(D3(3, 17, 70), 31, 70, BIG),
    LINR(L(D2(65, 129), OFFSET), 64, 129, BIG), LINR(D2(1, 128), 64, 128, BIG),
    {0},
};

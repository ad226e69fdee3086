#include "cases/cases.h"

/* clang-format off */

/* arg: reduction, smoothing, ignored label (0: the default) */
static gt_tensor *run_cross_entropy(gt_context *ctx, gt_tensor **in, const double *arg)
{
    (void)ctx;
    gt_cross_entropy_options o;
    if (gt_cross_entropy_options_init(&o, sizeof o) != GT_OK) return NULL;
    o.reduction = (gt_reduction)arg[0];
    o.label_smoothing = arg[1];
    if (arg[2] != 0) o.ignore_label = (int64_t)arg[2];
    o.class_weights = in[2];
    return gt_cross_entropy(in[0], in[1], &o);
}
static gt_tensor *run_mse_loss(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; return gt_mse_loss(in[0], in[1], (gt_reduction)arg[0]); }
static gt_tensor *run_embedding(gt_context *ctx, gt_tensor **in, const double *arg) { (void)ctx; (void)arg; return gt_embedding(in[0], in[1]); }

#define C(name, ...) {.op = #name, .fn = run_##name, __VA_ARGS__}
#define L(d, l) d, .layout = l
#define BIG .large = 1
#define LAB(d, n) IN(d, .values = LABELS, .classes = n)
#define LABI(d, n, i) IN(d, .values = LABELS, .classes = n, .ignored = i)
#define WEIGHTS(n) IN(D1(n), .values = POSITIVE, .wide = 1, .constant = 1)
#define CE(n, c, ...) C(cross_entropy, .in = {IN(D2(n, c)), LAB(D1(n), c)}, __VA_ARGS__)
#define CEI(n, c, ...) C(cross_entropy, .in = {IN(D2(n, c)), LABI(D1(n), c, -100)}, __VA_ARGS__)
#define CEW(n, c, ...) C(cross_entropy, .in = {IN(D2(n, c)), LABI(D1(n), c, -100), WEIGHTS(c)}, __VA_ARGS__)
#define MEAN GT_REDUCTION_MEAN
#define SUM GT_REDUCTION_SUM
#define NONE GT_REDUCTION_NONE

const op_case loss_cases[] = {
    CE(5, 4, ARG(MEAN)), CE(5, 4, ARG(SUM)), CE(5, 4, ARG(NONE)), CEI(6, 4, ARG(MEAN)), CEI(6, 4, ARG(SUM)), CEI(6, 4, ARG(NONE)),
    CE(1, 1, ARG(MEAN)), CE(1, 7, ARG(MEAN)),
    CEI(6, 4, ARG(MEAN, 0.1)), CEI(6, 4, ARG(SUM, 0.3)), CEI(6, 4, ARG(NONE, 1)), CEW(6, 4, ARG(MEAN)), CEW(6, 4, ARG(SUM)),
    CEW(6, 4, ARG(NONE)), CEW(6, 4, ARG(MEAN, 0.1)),
    CEW(6, 4, ARG(SUM, 0.2)), CEW(6, 4, ARG(NONE, 0.2)), CE(0, 4, ARG(SUM)), CE(0, 4, ARG(MEAN)), CE(0, 4, ARG(NONE)),
    C(cross_entropy, .in = {IN(D2(5, 4), .layout = TRANSPOSED), IN(D1(5), .values = LABELS, .classes = 4, .label_dtype = GT_DTYPE_I32, .layout = SLICED)}, ARG(MEAN)),
    C(cross_entropy, .in = {IN(D2(5, 4), .layout = SLICED), IN(D1(5), .values = LABELS, .classes = 4, .label_dtype = GT_DTYPE_U8, .ignored = 255)}, ARG(MEAN, 0.1, 255)),
    C(cross_entropy, .in = {IN(D2(6, 4)), LABI(D1(6), 4, 3)}, ARG(MEAN, 0, 3)),
    CE(64, 10, ARG(MEAN), BIG), CEI(64, 10, ARG(MEAN, 0.1), BIG), CEW(1025, 37, ARG(MEAN, 0.1), BIG, .loose = 2),
    CEI(70001, 3, ARG(MEAN), BIG, .loose = 4), CEI(70001, 3, ARG(SUM), BIG, .loose = 4),
    CEI(130, 1000, ARG(NONE, 0.1), BIG, .loose = 2), CEI(33, 50257, ARG(MEAN), BIG, .loose = 2),
    CEW(4100, 10, ARG(MEAN), BIG, .loose = 2), CEI(4100, 10, ARG(SUM, 0.2), BIG, .loose = 2),

    C(mse_loss, .in = {IN(D2(3, 4)), IN(D2(3, 4))}, ARG(MEAN)), C(mse_loss, .in = {IN(D2(3, 4)), IN(D2(3, 4))}, ARG(SUM)),
    C(mse_loss, .in = {IN(D2(3, 4)), IN(D2(3, 4))}, ARG(NONE)),
    C(mse_loss, .in = {IN(D2(3, 4), .layout = TRANSPOSED), IN(D2(3, 4), .constant = 1)}, ARG(MEAN)),
    C(mse_loss, .in = {IN(D2(0, 4)), IN(D2(0, 4))}, ARG(SUM)),
    C(mse_loss, .in = {IN(D0), IN(D0)}, ARG(MEAN)), C(mse_loss, .in = {IN(D2(257, 129)), IN(D2(257, 129))}, ARG(MEAN), BIG, .loose = 2),

    C(embedding, .in = {IN(D2(5, 3), .values = GRID), LAB(D1(7), 5)}),
    C(embedding, .in = {IN(D2(5, 3), .values = GRID), LAB(D2(2, 3), 5)}),
    C(embedding, .in = {IN(D2(5, 3), .values = GRID, .layout = TRANSPOSED), IN(D2(2, 3), .values = LABELS, .classes = 5, .label_dtype = GT_DTYPE_I32, .layout = TRANSPOSED)}),
    C(embedding, .in = {IN(D2(5, 3), .values = GRID), LAB(D1(0), 5)}), C(embedding, .in = {IN(D2(5, 3), .values = GRID), LAB(D0, 5)}),
    C(embedding, .in = {IN(D2(5, 0), .values = GRID), LAB(D1(2), 5)}),
    C(embedding, .in = {IN(D2(1, 1), .values = GRID), LAB(D1(9), 1)}),
    C(embedding, .in = {IN(D2(1003, 129), .values = GRID), LAB(D2(33, 65), 1003)}, BIG),
    C(embedding, .in = {IN(D2(3, 64), .values = GRID), LAB(D1(5000), 3)}, BIG),
    C(embedding, .in = {IN(D2(50257, 5), .values = GRID), LAB(D1(300), 50257)}, BIG),
    {0},
};

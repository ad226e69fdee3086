/* The kernels of a classifier's last layer (src/cuda/head.cuh), emulated: no GPU is needed. Beside the same in double precision. */
#include "cuda/emulate.h"
#include "harness/test.h"

#include "cuda/head.cuh"

#include <cmath>

using namespace gt;

namespace {

/* Numbers in [-1, 1] in steps of 1/8: exact in every float type. */
template <typename T>
struct Numbers {
    explicit Numbers(size_t count, uint32_t seed = 0)
        : size(count), memory(count * sizeof(T) / 16 + 2), data(reinterpret_cast<T *>(memory.data())) {
        for (size_t i = 0; i < size && seed; i++) {
            seed = seed * 1664525u + 1013904223u;
            data[i] = convert<T>(static_cast<float>(static_cast<int>((seed >> 20) % 17) - 8) / 8);
        }
    }
    double operator[](size_t i) const { return convert<double>(data[i]); }
    size_t size;
    std::vector<uint4> memory; /* aligned to 16 bytes */
    T *data;
};

struct Case {
    int rows, classes, width;
    bool bias, weights;
    double smoothing;
    gt_reduction reduction;
};

template <typename T, int V, int N>
void check_loss(const Case &z, double tolerance) {
    using C = compute_t<T>;
    const size_t rows = static_cast<size_t>(z.rows), classes = static_cast<size_t>(z.classes), width = static_cast<size_t>(z.width);
    Numbers<T> x(rows * width, 1), w(classes * width, 2), b(classes, 3), logits(rows * classes), dlogits(rows * classes);
    Numbers<C> weights(classes, 4), loss(1), sums(2), partial(rows / kHeadTile + 1);
    for (size_t i = 0; i < width * classes; i++) w.data[i] = convert<T>(static_cast<float>(w[i]) / 4);
    for (size_t c = 0; c < classes; c++) weights.data[c] = static_cast<C>(1.0 + std::fabs(weights[c]));
    std::vector<int32_t> labels(rows);
    for (size_t r = 0; r < rows; r++) labels[r] = r % 7 == 3 ? -100 : static_cast<int32_t>((r * 5 + 1) % classes);
    const C dloss = C(3);
    Loss<C> info = {};
    info.labels = labels.data();
    info.weights = z.weights ? weights.data : nullptr;
    info.label_dtype = GT_DTYPE_I32;
    info.rows = z.rows;
    info.classes = z.classes;
    info.ignore = -100;
    info.smoothing = static_cast<C>(z.smoothing);
    info.reduction = z.reduction;
    const unsigned blocks = static_cast<unsigned>((z.rows + kHeadTile - 1) / kHeadTile);
    uint32_t counter = 0;
    emulate::launch(k_linear_cross_entropy<T, V, N>, {blocks, 1, 1}, {kHeadBlock, 1, 1}, 0, &dloss, static_cast<const T *>(x.data),
                    static_cast<const T *>(w.data), static_cast<const T *>(z.bias ? b.data : nullptr), static_cast<int64_t>(z.width), info,
                    loss.data, logits.data, sums.data, dlogits.data, partial.data, &counter);
    CHECK_EQ_INT(counter, 0);

    double total = 0, divisor = 0, valid = 0;
    for (size_t r = 0; r < rows; r++) {
        if (labels[r] < 0) continue;
        divisor += z.weights ? weights[static_cast<size_t>(labels[r])] : 1;
        valid += 1;
    }
    for (size_t r = 0; r < rows; r++) {
        std::vector<double> l(classes), p(classes);
        double sum = 0;
        for (size_t c = 0; c < classes; c++) {
            l[c] = z.bias ? b[c] : 0;
            for (size_t k = 0; k < width; k++) l[c] += x[r * width + k] * w[c * width + k];
            CHECK_NEAR(logits[r * classes + c], l[c], tolerance * (1 + std::fabs(l[c])));
            l[c] = logits[r * classes + c]; /* the loss is that of the rounded ones */
            sum += std::exp(l[c]);
        }
        double all = 0, one = 0;
        const double g = 3 / (z.reduction == GT_REDUCTION_MEAN ? divisor : 1), soft = z.smoothing / z.classes;
        const size_t label = static_cast<size_t>(labels[r] < 0 ? 0 : labels[r]);
        for (size_t c = 0; c < classes; c++) {
            p[c] = std::exp(l[c]) / sum;
            const double of = z.weights ? weights[c] : 1;
            all += of;
            one -= soft * of * std::log(p[c]);
        }
        const double of_label = z.weights ? weights[label] : 1;
        one -= (1 - z.smoothing) * of_label * std::log(p[label]);
        if (labels[r] >= 0) total += one;
        for (size_t c = 0; c < classes; c++) {
            const double of = z.weights ? weights[c] : 1;
            const double slope = (1 - z.smoothing) * of_label * (p[c] - (c == label)) + soft * (p[c] * all - of);
            CHECK_NEAR(dlogits[r * classes + c], labels[r] < 0 ? 0 : g * slope, tolerance * (1e-3 + std::fabs(g * slope)));
        }
    }
    CHECK_NEAR(loss[0], z.reduction == GT_REDUCTION_MEAN ? total / divisor : total, 1e-4 * (1 + total));
    CHECK_NEAR(sums[0], divisor, 1e-4);
    CHECK_NEAR(sums[1], valid, 0);
}

template <typename T, int V>
void check_back(int rows_, int classes_, int width_, bool with_db, bool with_sums) {
    using C = compute_t<T>;
    const size_t rows = static_cast<size_t>(rows_), classes = static_cast<size_t>(classes_), width = static_cast<size_t>(width_);
    Numbers<T> dy(rows * classes, 5), w(classes * width, 6), y(rows * width, 7), dz(rows * width);
    Columns columns = {};
    columns.rows = rows_;
    columns.channels = width_;
    columns.part_rows = kHeadRows * kHeadHigh;
    columns.block_x = kHeadWide;
    columns.block_y = kHeadHigh;
    columns.parts = static_cast<uint32_t>((rows_ + columns.part_rows - 1) / columns.part_rows);
    columns.tiles = static_cast<uint32_t>((width_ + kHeadWide * V - 1) / (kHeadWide * V));
    Numbers<C> db(width), sums(classes), partial(columns.parts * (width + classes));
    std::vector<uint32_t> counters(columns.tiles);
    y.data[3] = convert<T>(NAN);
    emulate::launch(k_linear_relu_backward<T, V>, {columns.tiles, columns.parts, 1}, {kHeadWide, kHeadHigh, 1}, 0,
                    static_cast<const T *>(dy.data), static_cast<const T *>(w.data), static_cast<const T *>(y.data), dz.data,
                    static_cast<void *>(with_db ? db.data : nullptr), static_cast<void *>(with_sums ? sums.data : nullptr),
                    static_cast<gt_dtype>(sizeof(C) == 8 ? GT_DTYPE_F64 : GT_DTYPE_F32), static_cast<int32_t>(classes_),
                    columns.parts > 1 ? partial.data : nullptr, counters.data(), columns);
    for (uint32_t counter : counters) CHECK_EQ_INT(counter, 0);
    for (size_t k = 0; k < width; k++) {
        double sum = 0;
        for (size_t r = 0; r < rows; r++) {
            double g = 0;
            for (size_t c = 0; c < classes; c++) g += dy[r * classes + c] * w[c * width + k];
            g = convert<double>(convert<T>(g));
            if (r * width + k == 3) {
                CHECK(std::isnan(dz[3]));
                sum = NAN;
                continue;
            }
            if (!(y[r * width + k] > 0)) g = 0;
            CHECK_NEAR(dz[r * width + k], g, 0);
            sum += g;
        }
        if (with_db && k != 3) CHECK_NEAR(db[k], sum, 1e-6 * (1 + std::fabs(sum)));
        if (with_db && k == 3) CHECK(std::isnan(db[k]));
    }
    for (size_t c = 0; c < classes && with_sums; c++) {
        double sum = 0;
        for (size_t r = 0; r < rows; r++) sum += dy[r * classes + c];
        CHECK_NEAR(sums[c], sum, 1e-6);
    }
}

} // namespace

TEST(unit, head_linear_cross_entropy) {
    check_loss<__half, 0, 16>({64, 10, 512, true, false, 0, GT_REDUCTION_MEAN}, 2e-3);
    check_loss<__half, 0, 16>({37, 16, 144, false, true, 0.1, GT_REDUCTION_SUM}, 2e-3);
    check_loss<__nv_bfloat16, 0, 32>({3, 31, 16, true, true, 0.2, GT_REDUCTION_MEAN}, 1.6e-2);
    check_loss<__half, 8, 16>({64, 10, 512, true, false, 0, GT_REDUCTION_MEAN}, 2e-3);
    check_loss<__half, 8, 16>({5, 16, 24, false, true, 0.1, GT_REDUCTION_MEAN}, 2e-3);
    check_loss<__nv_bfloat16, 8, 32>({33, 17, 40, true, true, 0.2, GT_REDUCTION_SUM}, 1.6e-2);
    check_loss<float, 4, 32>({19, 32, 12, true, false, 0.1, GT_REDUCTION_MEAN}, 1e-5);
    check_loss<float, 1, 16>({8, 1, 7, true, false, 0, GT_REDUCTION_SUM}, 1e-5);
    check_loss<double, 2, 16>({50, 10, 130, true, true, 0.3, GT_REDUCTION_MEAN}, 1e-6);
}

TEST(unit, head_linear_relu_backward) {
    check_back<__half, 8>(64, 10, 512, true, true);
    check_back<__half, 8>(300, 10, 128, true, true);
    check_back<__nv_bfloat16, 8>(70, 32, 72, true, false);
    check_back<float, 1>(33, 3, 13, false, true);
    check_back<float, 4>(1, 1, 4, true, true);
    check_back<double, 2>(129, 17, 10, true, true);
}

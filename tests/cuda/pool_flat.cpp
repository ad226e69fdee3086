/* The kernels of max pooling around a flatten (src/cuda/pool_flat.cuh), emulated: no GPU is needed. Numbers are small multiples of 1/4, so that every sum is exact in any order. */
#include "cuda/emulate.h"
#include "harness/test.h"

#include "cuda/pool_flat.cuh"

#include <algorithm>
#include <cmath>

using namespace gt;

namespace {

struct Sizes {
    int64_t n, c, h, w;
    int64_t rows() const { return h / 2; }
    int64_t columns() const { return w / 2; }
    int64_t pixels() const { return rows() * columns(); }
    size_t large() const { return static_cast<size_t>(n * c * h * w); }
    size_t small() const { return static_cast<size_t>(n * c * pixels()); }
};

template <typename T>
struct Array {
    explicit Array(size_t count) : size(count), memory(count * sizeof(T) / 16 + 2), data(reinterpret_cast<T *>(memory.data())) {}
    size_t size;
    std::vector<uint4> memory; /* aligned to 16 bytes */
    T *data;
    double operator[](size_t i) const { return convert<compute_t<T>>(data[i]); }
    void set(size_t i, double value) { data[i] = convert<T>(static_cast<compute_t<T>>(value)); }
    void fill(uint32_t seed, uint32_t nan) { /* every nan-th is one, about; 0: none */
        for (size_t i = 0; i < size; i++) {
            seed = seed * 1664525u + 1013904223u;
            set(i, nan && (seed >> 8) % nan == 0 ? NAN : static_cast<double>(static_cast<int>((seed >> 20) % 9) - 4) / 4);
        }
    }
};

/* Where channel c of a pooled pixel is. */
size_t place(const Sizes &z, bool rows, int64_t n, int64_t c, int64_t pixel) {
    return static_cast<size_t>(rows ? (n * z.c + c) * z.pixels() + pixel : (n * z.pixels() + pixel) * z.c + c);
}

void same(double got, double want) { CHECK(got == want || (std::isnan(got) && std::isnan(want))); }

template <typename T, int W>
void check_forward(const Sizes &z, unsigned parts, int64_t processors, uint32_t nan, bool wants_index) {
    constexpr int V = kVector<T>;
    Array<T> x(z.large()), y(z.small());
    Array<uint8_t> index(z.small());
    x.fill(1, nan);
    const int64_t larger[4] = {z.n, z.c, z.h, z.w}, smaller[4] = {z.n, z.c, z.rows(), z.columns()};
    Columns columns;
    const Slabs slabs = slabs_make(kFlat, processors, larger, smaller, V, W, &columns);
    emulate::launch(k_pool_flat<T, W>, {columns.tiles, parts ? parts : columns.parts, 1}, {columns.block_x, columns.block_y, 1},
                    kFlatShared * sizeof(uint4), static_cast<const T *>(x.data), y.data,
                    static_cast<uint8_t *>(wants_index ? index.data : nullptr), slabs);
    for (int64_t n = 0; n < z.n; n++)
        for (int64_t pixel = 0; pixel < z.pixels(); pixel++)
            for (int64_t c = 0; c < z.c; c++) {
                double best = 0;
                int where = -1;
                for (int p = 0; p < 4; p++) {
                    const int64_t row = pixel / z.columns() * 2 + p / 2, column = pixel % z.columns() * 2 + p % 2;
                    const double value = x[static_cast<size_t>(((n * z.h + row) * z.w + column) * z.c + c)];
                    if (where < 0 || value > best || (std::isnan(value) && !std::isnan(best))) {
                        best = value;
                        where = p;
                    }
                }
                same(y[place(z, true, n, c, pixel)], best);
                if (wants_index) CHECK_EQ_INT(index.data[place(z, false, n, c, pixel)], where);
            }
}

template <typename T, bool rows, int W>
void check_backward(const Sizes &z, unsigned parts, int64_t processors, uint32_t nan, bool sums, int64_t counters_most = 1023) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    Array<T> dy(z.small()), y(z.small()), dx(z.large());
    Array<uint8_t> index(z.small());
    Array<C> db(static_cast<size_t>(z.c));
    dy.fill(2, 0);
    y.fill(3, nan);
    dx.fill(4, 1); /* all NaN: every one of them is written */
    for (size_t i = 0; i < index.size; i++) index.data[i] = static_cast<uint8_t>((i * 7 + i / 5) % 4);
    const int64_t larger[4] = {z.n, z.c, z.h, z.w}, smaller[4] = {z.n, z.c, z.rows(), z.columns()};
    Columns columns;
    const Slabs slabs = slabs_make(kFlatBackward, processors, larger, smaller, V, W, &columns);
    if (parts) columns.parts = std::min(columns.parts, parts);
    const FlatJoin join = flat_join_make(processors, counters_most, &columns);
    Array<C> partial(join.rows() * static_cast<size_t>(z.c));
    std::vector<uint32_t> counters(columns.tiles * (join.groups + 1), 0);
    const size_t shared = kFlatBackwardShared * sizeof(uint4) + kFlatBackward.threads * V * sizeof(C);
    for (int again = 0; again < 2; again++) { /* the counters are 0 again */
        db.fill(5, 1);
        partial.fill(6, 1);
        emulate::launch(k_pool_flat_backward<T, rows, W>, {columns.tiles, columns.parts, 1}, {columns.block_x, columns.block_y, 1}, shared,
                        static_cast<const T *>(dy.data), static_cast<const uint8_t *>(index.data), static_cast<const T *>(y.data), dx.data,
                        static_cast<void *>(sums ? db.data : nullptr), sizeof(C) == 8 ? GT_DTYPE_F64 : GT_DTYPE_F32,
                        columns.parts > 1 ? partial.data : static_cast<C *>(nullptr), counters.data(), slabs, join);
        for (uint32_t counter : counters) CHECK_EQ_INT(counter, 0);
    }
    std::vector<double> want(z.large(), 0), total(static_cast<size_t>(z.c), 0);
    for (int64_t n = 0; n < z.n; n++)
        for (int64_t pixel = 0; pixel < z.pixels(); pixel++)
            for (int64_t c = 0; c < z.c; c++) {
                const size_t at = place(z, rows, n, c, pixel);
                const double value = std::isnan(y[at]) ? NAN : y[at] > 0 ? dy[at] : 0;
                const int p = index.data[place(z, false, n, c, pixel)];
                const int64_t row = pixel / z.columns() * 2 + p / 2, column = pixel % z.columns() * 2 + p % 2;
                want[static_cast<size_t>(((n * z.h + row) * z.w + column) * z.c + c)] = value;
                total[static_cast<size_t>(c)] += value;
            }
    for (size_t i = 0; i < want.size(); i++) same(dx[i], want[i]);
    for (size_t c = 0; c < total.size() && sums; c++) same(db[c], total[c]);
}

template <typename T, int W>
void check_both(const Sizes &z, unsigned parts, int64_t processors, uint32_t nan) {
    check_forward<T, W>(z, parts, processors, nan, parts != 1);
    check_backward<T, true, W>(z, parts, processors, nan, true);
    check_backward<T, true, W>(z, parts, processors, 0, nan == 0);
}

} // namespace

TEST(unit, pool_flat_of_packs_of_pixels) {
    check_both<__half, 8>({2, 64, 24, 24}, 0, 1, 0); /* a slab an image */
    check_both<__half, 8>({3, 64, 24, 24}, 0, 132, 50);
    check_both<__nv_bfloat16, 8>({2, 72, 16, 9}, 3, 1, 9); /* a tile of channels that is not full, a column that no window covers */
    check_both<__half, 8>({1, 8, 65, 33}, 0, 1, 30);       /* one pack of channels */
    check_both<float, 4>({2, 36, 9, 17}, 0, 1, 20);
    check_both<double, 2>({3, 10, 4, 7}, 2, 1, 5);
}

TEST(unit, pool_flat_of_odd_images) {
    check_both<__half, 1>({3, 64, 10, 7}, 0, 4, 11);
    check_both<__nv_bfloat16, 1>({5, 24, 2, 2}, 1, 1, 3);
    check_both<float, 1>({2, 20, 7, 11}, 0, 132, 0);
    check_both<__half, 1>({1, 16, 43, 42}, 0, 1, 7); /* several slabs an image, the last of which is not full */
}

TEST(unit, pool_flat_gradient_of_channels_last) {
    check_backward<__half, false, 8>({2, 64, 24, 24}, 0, 1, 40, true);
    check_backward<__nv_bfloat16, false, 8>({3, 40, 9, 7}, 0, 132, 0, true);
    check_backward<float, false, 4>({2, 100, 5, 31}, 2, 1, 9, true);
    check_backward<double, false, 2>({2, 6, 41, 3}, 1, 1, 0, false);
    check_backward<__half, false, 8>({4, 16, 15, 16}, 3, 132, 0, true); /* blocks of two slabs and of one */
}

TEST(unit, pool_flat_sums_of_many_blocks) {
    check_backward<__half, true, 8>({259, 16, 8, 4}, 0, 132, 300, true); /* in groups, the last of which is not full */
    check_backward<float, true, 4>({258, 36, 4, 8}, 0, 132, 0, true);    /* of each of two tiles */
    check_backward<double, false, 2>({257, 4, 5, 5}, 0, 132, 90, true);
    check_backward<__nv_bfloat16, false, 8>({300, 8, 4, 4}, 0, 132, 0, true, 4); /* as one group: there are few counters */
    check_backward<__half, true, 8>({270, 72, 4, 8}, 0, 132, 0, true, 3);        /* in one part for want of counters */
    check_backward<__half, true, 8>({70, 8, 8, 8}, 0, 2, 60, true);              /* blocks that have two slabs each */
}

/* The kernels of convolutions of few channels (src/cuda/conv_mma.cuh), emulated: no GPU is needed. Numbers are small multiples of 1/4, so that every sum is exact in any order. */
#include "cuda/emulate.h"
#include "harness/test.h"

#include "cuda/conv_mma.cuh"

#include <cmath>

using namespace gt;

namespace {

struct Sizes {
    int n, h, w, k, r, s, top, left; /* k: channels of the result */
    int out_h() const { return h + 2 * top - r + 1; }
    int out_w() const { return w + 2 * left - s + 1; }
    int pixels() const { return n * out_h() * out_w(); }
};

template <typename T>
struct Array {
    explicit Array(size_t count) : size(count), memory(count * sizeof(T) / 16 + 2), data(reinterpret_cast<T *>(memory.data())) {}
    size_t size;
    std::vector<uint4> memory; /* aligned to 16 bytes */
    T *data;
    float operator[](size_t i) const { return convert<float>(data[i]); }
    void fill(uint32_t seed) {
        for (size_t i = 0; i < size; i++) {
            seed = seed * 1664525u + 1013904223u;
            data[i] = convert<T>(static_cast<float>(static_cast<int>((seed >> 20) % 9) - 4) / 4);
        }
    }
};

Correlation correlation(const Sizes &z, int tile) {
    Correlation c = {};
    c.height = z.h;
    c.width = z.w;
    c.out_height = z.out_h();
    c.out_width = z.out_w();
    c.taps_high = z.r;
    c.taps_wide = z.s;
    c.top = z.top;
    c.left = z.left;
    c.patch_width = c.out_width + z.s - 1;
    c.image_rows = c.out_height + z.r - 1;
    c.pixels = z.pixels();
    c.tiles = (c.pixels + tile - 1) / tile;
    c.out_channels = z.k;
    c.by_out_width.set(c.out_width);
    c.by_out_pixels.set(static_cast<int64_t>(c.out_height) * c.out_width);
    c.by_patch_width.set(c.patch_width);
    c.by_image_rows.set(c.image_rows);
    return c;
}

/* Of the largest patch of any tile. */
size_t patch_halves(const Correlation &c, int tile, int channels) {
    int rows = 0;
    for (int begin = 0; begin < c.pixels; begin += tile) {
        const int of_tile = patch_tile(c, begin, begin + tile < c.pixels ? begin + tile : c.pixels).rows;
        rows = of_tile > rows ? of_tile : rows;
    }
    return static_cast<size_t>(rows) * c.patch_width * (channels + kTilePad);
}

/* Calls use(place in x, place in the result) for each pair of pixels that tap (r, s) joins. */
template <typename Use>
void for_tap(const Sizes &z, int r, int s, Use use) {
    for (int n = 0; n < z.n; n++)
        for (int i = 0; i < z.out_h(); i++)
            for (int j = 0; j < z.out_w(); j++) {
                const int h = i + r - z.top, w = j + s - z.left;
                if (h >= 0 && h < z.h && w >= 0 && w < z.w)
                    use((static_cast<size_t>(n) * z.h + h) * z.w + w, (static_cast<size_t>(n) * z.out_h() + i) * z.out_w() + j);
            }
}

/* turned: the weight is [C, r, s, k] and read from its end. */
template <typename T, int C, int M, int N, bool turned>
void check_correlate(const Sizes &z, bool with_bias, bool relu) {
    constexpr int kTile = kCorrelateWarps * M * 16;
    const size_t taps = static_cast<size_t>(z.r * z.s), k = static_cast<size_t>(z.k);
    Array<T> x(static_cast<size_t>(z.n * z.h * z.w) * C), w(k * taps * C), b(k), y(static_cast<size_t>(z.pixels()) * k);
    x.fill(1);
    w.fill(2);
    b.fill(3);
    const Correlation c = correlation(z, kTile);
    const size_t patch = patch_halves(c, kTile, C), out = static_cast<size_t>(kTile) * (N + kTilePad);
    const size_t shared = 2 * (weight_halves<C, N, turned>(z.r * z.s) + (patch > out ? patch : out));
    emulate::launch(k_correlate<T, C, M, N, turned>, {3, static_cast<unsigned>((z.k + N - 1) / N), 1}, {kCorrelateWarps * 32, 1, 1}, shared,
                    static_cast<const T *>(x.data), static_cast<const T *>(w.data), static_cast<const T *>(with_bias ? b.data : nullptr),
                    y.data, c, relu);
    std::vector<float> want(y.size);
    for (size_t i = 0; i < want.size(); i++) want[i] = with_bias ? b[i % k] : 0.0f;
    for (int r = 0; r < z.r; r++)
        for (int s = 0; s < z.s; s++)
            for_tap(z, r, s, [&](size_t from, size_t to) {
                const size_t tap = static_cast<size_t>(r * z.s + s);
                for (size_t o = 0; o < k; o++)
                    for (size_t ch = 0; ch < C; ch++)
                        want[to * k + o] +=
                            x[from * C + ch] * (turned ? w[(ch * taps + taps - 1 - tap) * k + o] : w[(o * taps + tap) * C + ch]);
            });
    for (size_t i = 0; i < want.size(); i++) {
        const float value = relu && want[i] <= 0 ? 0.0f : want[i];
        CHECK_NEAR(y[i], convert<float>(convert<T>(value)), 0);
    }
}

template <typename T, int C, int rows, int columns, int pixels>
void check_gradient(const Sizes &z, bool accumulate) {
    const size_t taps = static_cast<size_t>(z.r * z.s), k = static_cast<size_t>(z.k), count = k * taps * C;
    constexpr unsigned kParts = 3, kWide = kGradientWarps / rows * columns;
    Array<T> x(static_cast<size_t>(z.n * z.h * z.w) * C), dy(static_cast<size_t>(z.pixels()) * k);
    Array<float> partial(kParts * count), dw(count);
    x.fill(4);
    dy.fill(5);
    dw.fill(6);
    std::vector<float> want(count);
    for (size_t i = 0; i < count; i++) want[i] = accumulate ? dw[i] : 0.0f;
    const Correlation c = correlation(z, pixels);
    const size_t shared = pixels * 4 + 2 * (static_cast<size_t>(pixels) * (rows * 32 + kTilePad) + patch_halves(c, pixels, C));
    emulate::launch(
        k_correlate_gradient<T, C, rows, columns, pixels>,
        {kParts, (static_cast<unsigned>(taps) * C / 8 + kWide - 1) / kWide, static_cast<unsigned>((z.k + rows * 32 - 1) / (rows * 32))},
        {kGradientWarps * 32, 1, 1}, shared, static_cast<const T *>(dy.data), static_cast<const T *>(x.data), partial.data, c);
    emulate::launch(k_join_parts<float>, {static_cast<unsigned>(count / (kJoinColumns * 4) + 1), 1, 1}, {kJoinColumns * kJoinRows, 1, 1},
                    sizeof(Pack<float, 4>) * kJoinColumns * kJoinRows, static_cast<const float *>(partial.data),
                    static_cast<int32_t>(kParts), static_cast<int32_t>(count), dw.data, accumulate);
    for (int r = 0; r < z.r; r++)
        for (int s = 0; s < z.s; s++)
            for_tap(z, r, s, [&](size_t from, size_t to) {
                for (size_t o = 0; o < k; o++)
                    for (size_t ch = 0; ch < C; ch++)
                        want[(o * taps + static_cast<size_t>(r * z.s + s)) * C + ch] += x[from * C + ch] * dy[to * k + o];
            });
    for (size_t i = 0; i < count; i++) CHECK_NEAR(dw[i], want[i], 0);
}

} // namespace

TEST(unit, conv_mma_forward) {
    check_correlate<__half, 32, 2, 64, false>({2, 12, 13, 64, 3, 3, 0, 0}, true, true);
    check_correlate<__half, 32, 4, 32, false>({3, 9, 11, 24, 3, 3, 1, 1}, false, false);
    check_correlate<__nv_bfloat16, 16, 4, 32, false>({5, 4, 4, 40, 2, 3, 1, 2}, true,
                                                     false); /* several images in a tile, two blocks of channels */
    check_correlate<__half, 64, 2, 64, false>({7, 3, 3, 72, 1, 1, 0, 0}, false, true);
    check_correlate<__half, 16, 2, 32, false>({2, 10, 10, 32, 5, 5, 2, 2}, true, true);
}

TEST(unit, conv_mma_backward_input) {
    check_correlate<__half, 64, 4, 32, true>({2, 14, 14, 32, 3, 3, 2, 2}, false, false);
    check_correlate<__nv_bfloat16, 32, 2, 64, true>({3, 9, 8, 72, 3, 3, 1, 1}, false, false);
    check_correlate<__half, 16, 2, 32, true>({2, 7, 30, 16, 1, 4, 0, 3}, false, false);
    check_correlate<__half, 16, 4, 64, true>({4, 8, 8, 64, 3, 3, -1, -1}, false,
                                             false); /* of a forward with more padding than its taps reach */
}

TEST(unit, conv_mma_backward_weight) {
    check_gradient<__half, 32, 2, 9, 256>({2, 13, 14, 64, 3, 3, 0, 0}, false);
    check_gradient<__half, 32, 2, 9, 128>({3, 9, 8, 72, 3, 3, 1, 1}, true);
    check_gradient<__nv_bfloat16, 16, 1, 3, 128>({5, 4, 4, 24, 2, 3, 1, 2}, false);
    check_gradient<__half, 64, 2, 9, 128>({2, 9, 9, 64, 3, 3, 1, 1}, false);
    check_gradient<__half, 16, 2, 5, 128>({2, 9, 9, 40, 5, 5, 2, 2}, true);
}
